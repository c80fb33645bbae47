// What operations over latent rows share: numbers rounded, and pairs of neighbours turned.
#include <cstdint>
#include <type_traits>

#if defined(WEFT_OPS_MLA_TURN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_MLA_TURN_INL_H_
#undef WEFT_OPS_MLA_TURN_INL_H_
#else
#define WEFT_OPS_MLA_TURN_INL_H_
#endif

#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class Out>
Out converted(float x) {
  if constexpr (std::is_same_v<Out, bf16>) {
    return to_bf16(x);
  } else {
    return x;
  }
}

template <class Out>
void turn_pairs(const float* x, const float* cosines, const float* sines, int64_t turned,
                Out* out) {
  for (int64_t i = 0; i < turned / 2; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    out[2 * i] = converted<Out>(a * cosines[i] - b * sines[i]);
    out[2 * i + 1] = converted<Out>(b * cosines[i] + a * sines[i]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

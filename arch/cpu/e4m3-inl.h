// Numbers in e4m3fn as f32. Included once per instruction set.
#include <cstdint>
#include <cstring>

#include "arch/cpu/vector-inl.h"
#include "base/fp8.h"

#if defined(WEFT_ARCH_CPU_E4M3_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_E4M3_INL_H_
#undef WEFT_ARCH_CPU_E4M3_INL_H_
#else
#define WEFT_ARCH_CPU_E4M3_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Numbers in e4m3fn come as 2^-8 of themselves: their bits, moved up by seven beside the sign, are
/// an f16's, whose exponent counts from 15 instead of 7. So subnormals need no care. The code of
/// NaN is 480.
inline constexpr float kE4m3Unit = 256;
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const e4m3fn* p) {
  if constexpr (hn::MaxLanes(D()) == 1) {
    return hn::Set(
        d, to_float(f16{static_cast<uint16_t>((p->bits & 0x80) << 8 | (p->bits & 0x7f) << 7)}));
  } else {
    const hn::Rebind<int8_t, D> d8;
    const hn::Rebind<int16_t, D> d16;
    const hn::Rebind<hwy::float16_t, D> dh;
    const auto wide = hn::PromoteTo(d16, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p)));
    // Above the number there are copies of its sign: one stays.
    const auto half = hn::And(hn::ShiftLeft<7>(wide), hn::Set(d16, static_cast<int16_t>(0xbf80)));
    return hn::PromoteTo(d, hn::BitCast(dh, half));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const e4m3fn* p, size_t count) {
  e4m3fn padded[hn::MaxLanes(D())] = {};
  std::memcpy(padded, p, count);
  return load(d, padded);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

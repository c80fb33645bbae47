// The steps that all attention kernels share: scores with a soft cap, and the last one.
#include <algorithm>
#include <cmath>

#include "ops/attention/op.h"

#if defined(WEFT_OPS_ATTENTION_WRITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ATTENTION_WRITE_INL_H_
#undef WEFT_OPS_ATTENTION_WRITE_INL_H_
#else
#define WEFT_OPS_ATTENTION_WRITE_INL_H_
#endif

#include "arch/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// q.k to what, times the scale, is the score under the soft cap: softmax then has one form.
HWY_INLINE FloatVec cap_score(const AttentionArgs& args, FloatVec product) {
  const FloatTag d;
  return hn::Mul(tanh(d, hn::Mul(product, hn::Set(d, args.scale / args.soft_cap))),
                 hn::Set(d, args.soft_cap / args.scale));
}

/// The same of `count` products, whole vectors, in place.
inline void cap_scores(const AttentionArgs& args, float* products, int64_t count) {
  const FloatTag d;
  for (int64_t i = 0; i < count; i += kFloatLanes) {
    hn::StoreU(cap_score(args, hn::LoadU(d, products + i)), d, products + i);
  }
}

template <class Out>
void write_scaled(const float* x, float factor, int64_t count, Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, hn::Mul(load(d, x + i), f), out + i);
  }
  if (i < count) {
    store_first(d, hn::Mul(load_first(d, x + i, count - i), f), out + i, count - i);
  }
}

/// What a head's unnormalised sum is multiplied by: `total` is that of exp(score - maximum).
inline float normaliser(const AttentionArgs& args, int64_t query_head, float maximum, float total) {
  if (args.sinks.data == nullptr) {
    return 1 / total;
  }
  const float sink = with_type(args.sinks.dtype, [&](auto type) {
    return to_float(static_cast<const decltype(type)*>(args.sinks.data)[query_head]);
  });
  const float origin = std::max(maximum, sink);
  const float decay = std::exp(maximum - origin);
  return decay / (total * decay + std::exp(sink - origin));
}

/// out[row, head, columns] = x * factor, in out's format.
inline void write_head(const AttentionArgs& args, int64_t row_index, int64_t query_head,
                       Range columns, const float* x, float factor) {
  const int64_t at = query_head * args.head_dim + columns.begin;
  if (args.out.dtype == DType::bf16) {
    write_scaled(x, factor, columns.size(), row<bf16>(args.out, row_index) + at);
  } else {
    write_scaled(x, factor, columns.size(), row<float>(args.out, row_index) + at);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

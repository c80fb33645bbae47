// The last step of every attention kernel.
#include "ops/attention/op.h"

#if defined(WEFT_OPS_ATTENTION_WRITE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_OPS_ATTENTION_WRITE_INL_H_
#undef WEFT_OPS_ATTENTION_WRITE_INL_H_
#else
#define WEFT_OPS_ATTENTION_WRITE_INL_H_
#endif

#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

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

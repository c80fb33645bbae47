// gated_linear on the CPU: both products of arch/cpu/dot-inl.h side by side, so that f(g) * u is
// taken from the sums without a trip through memory.
#include "ops/gated_linear/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gated_linear/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/activation-inl.h"
#include "arch/cpu/dot-inl.h"
#include "arch/cpu/packed.h"
#include "arch/cpu/streams.h"
#include "ops/round_fp8-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

class GatedEpilogue {
 public:
  explicit GatedEpilogue(const GatedLinearArgs& args) : args_(args) {}

  void begin(Range columns) {
    gate_bias_.begin(args_.gate_bias, columns);
    up_bias_.begin(args_.up_bias, columns);
  }

  HWY_INLINE void finish(int64_t r, int64_t column, int64_t count, const FloatVec (&sums)[2]) {
    const auto gate = hn::Add(sums[0], gate_bias_.at(column));
    const auto up = hn::Add(sums[1], up_bias_.at(column));
    const auto value = hn::Mul(activate(args_.activation, gate), up);
    if (args_.out.dtype == DType::bf16) {
      write(value, row<bf16>(args_.out, r) + column, count);
    } else {
      write(value, row<float>(args_.out, r) + column, count);
    }
  }

 private:
  template <class Out>
  static HWY_INLINE void write(FloatVec value, Out* out, int64_t count) {
    if (count == static_cast<int64_t>(kFloatLanes)) {
      store(FloatTag(), value, out);
    } else {
      store_first(FloatTag(), value, out, count);
    }
  }

  const GatedLinearArgs& args_;
  BiasPanel gate_bias_;
  BiasPanel up_bias_;
};

void gated_tile(const GatedLinearArgs& args, Range rows, Range columns,
                std::span<std::byte> scratch) {
  GatedEpilogue epilogue(args);
  const ConstMatrix a = round_rows(args.rounding, args.a, rows, args.k, scratch);
  with_weights(args.gate.dtype, [&](auto w) {
    const Factors<decltype(w), 2> factors{.a = a.data,
                                          .a_dtype = a.dtype,
                                          .a_stride = a.stride,
                                          .w = {static_cast<const decltype(w)*>(args.gate.data),
                                                static_cast<const decltype(w)*>(args.up.data)},
                                          .w_stride = {args.gate.stride, args.up.stride},
                                          .scales = {args.gate_scales, args.up_scales},
                                          .packed = args.packed,
                                          .k = args.k};
    dot(factors, rows, columns, scratch, epilogue);
  });
}

int64_t gated_scratch(const GatedLinearArgs& args, int64_t rows) {
  return rounded_bytes(args.rounding, rows, args.k) + dot_scratch_bytes(rows, args.k);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

void gated_linear(const GatedLinearArgs& args, Range rows, Range columns,
                  std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(gated_tile)(args, rows, columns, scratch);
}

void gated_linear_prefetch(const GatedLinearArgs& args, Range columns, int64_t line) {
  if (args.packed != nullptr) {
    return prefetch_packed(*args.packed, columns, line);
  }
  const auto row_bytes = args.gate.stride * static_cast<int64_t>(size_of(args.gate.dtype));
  const void* const matrices[] = {args.gate.data, args.up.data};
  prefetch_streams(matrices, 2, row_bytes, args.k, columns, line);
}

size_t gated_linear_scratch_bytes(const GatedLinearArgs& args, int64_t rows) {
  return WEFT_CPU_DISPATCH(gated_scratch)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

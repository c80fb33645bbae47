// linear on the CPU: the product of arch/cpu/dot-inl.h, then bias, alpha and the residual.
#include "ops/linear/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/cpu.cc"
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

class LinearEpilogue {
 public:
  explicit LinearEpilogue(const LinearArgs& args) : args_(args) {}

  void begin(Range columns) { bias_.begin(args_.bias, columns); }

  HWY_INLINE void finish(int64_t r, int64_t column, int64_t count, const FloatVec (&sum)[1]) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    const auto alpha = hn::Set(d, args_.alpha);
    const auto value = hn::Add(sum[0], bias_.at(column));
    if (bends_) {
      return finish_bent(r, column, count, hn::Mul(alpha, value));
    }
    float* out = row<float>(args_.out, r) + column;
    if (count == lanes) {
      store(d, args_.accumulate ? hn::MulAdd(alpha, value, load(d, out)) : hn::Mul(alpha, value),
            out);
    } else {
      store_first(d,
                  args_.accumulate ? hn::MulAdd(alpha, value, load_first(d, out, count))
                                   : hn::Mul(alpha, value),
                  out, count);
    }
  }

 private:
  /// With an activation or a soft cap, which accumulate nothing, or in bf16.
  void finish_bent(int64_t r, int64_t column, int64_t count, FloatVec value) {
    const FloatTag d;
    value = activate(args_.activation, value);
    if (args_.soft_cap > 0) {
      value = hn::Mul(tanh(d, hn::Mul(value, hn::Set(d, 1 / args_.soft_cap))),
                      hn::Set(d, args_.soft_cap));
    }
    const auto write = [&](auto* out) HWY_ATTR {
      if (count == static_cast<int64_t>(kFloatLanes)) {
        store(d, value, out);
      } else {
        store_first(d, value, out, count);
      }
    };
    if (args_.out.dtype == DType::bf16) {
      write(row<bf16>(args_.out, r) + column);
    } else {
      write(row<float>(args_.out, r) + column);
    }
  }

  const LinearArgs& args_;
  const bool bends_ =
      args_.activation != Activation::none || args_.soft_cap > 0 || args_.out.dtype == DType::bf16;
  BiasPanel bias_;
};

void linear_tile(const LinearArgs& args, Range rows, Range columns, std::span<std::byte> scratch) {
  LinearEpilogue epilogue(args);
  const ConstMatrix a = round_rows(args.rounding, args.a, rows, args.k, scratch);
  with_weights(args.w.dtype, [&](auto w) {
    const Factors<decltype(w), 1> factors{.a = a.data,
                                          .a_dtype = a.dtype,
                                          .a_stride = a.stride,
                                          .w = {static_cast<const decltype(w)*>(args.w.data)},
                                          .w_stride = {args.w.stride},
                                          .scales = {args.scales},
                                          .packed = args.packed,
                                          .k = args.k};
    dot(factors, rows, columns, scratch, epilogue);
  });
}

int64_t linear_scratch(const LinearArgs& args, int64_t rows) {
  return rounded_bytes(args.rounding, rows, args.k) + dot_scratch_bytes(rows, args.k);
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

void linear(const LinearArgs& args, Range rows, Range columns, std::span<std::byte> scratch) {
  WEFT_CHECK(!args.accumulate || (args.activation == Activation::none && args.soft_cap == 0 &&
                                  args.out.dtype == DType::f32));
  WEFT_CPU_DISPATCH(linear_tile)(args, rows, columns, scratch);
}

void linear_prefetch(const LinearArgs& args, Range columns, int64_t line) {
  if (args.packed != nullptr) {
    return prefetch_packed(*args.packed, columns, line);
  }
  const auto row_bytes = args.w.stride * static_cast<int64_t>(size_of(args.w.dtype));
  prefetch_streams(&args.w.data, 1, row_bytes, args.k, columns, line);
}

size_t linear_scratch_bytes(const LinearArgs& args, int64_t rows) {
  return WEFT_CPU_DISPATCH(linear_scratch)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

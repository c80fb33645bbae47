// gemm_bf16 on the CPU: the product of arch/cpu/dot-inl.h, rounded to the output's format or added
// to what is there.
#include "ops/gemm_bf16/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/gemm_bf16/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class Out, bool kAccumulate>
class StoringEpilogue {
 public:
  explicit StoringEpilogue(const Matrix& out) : out_(out) {}

  void begin(Range /*columns*/) {}

  HWY_INLINE void finish(int64_t r, int64_t column, int64_t count, const FloatVec (&sum)[1]) {
    const FloatTag d;
    Out* out = row<Out>(out_, r) + column;
    const bool whole = count == static_cast<int64_t>(kFloatLanes);
    auto value = sum[0];
    if constexpr (kAccumulate) {
      value = hn::Add(value, whole ? load(d, out) : load_first(d, out, count));
    }
    if (whole) {
      store(d, value, out);
    } else {
      store_first(d, value, out, count);
    }
  }

 private:
  Matrix out_;
};

void gemm_bf16_tile(const GemmBf16Args& args, Range rows, Range columns,
                    std::span<std::byte> scratch) {
  const Factors<bf16, 1> factors{.a = args.a.data,
                                 .a_dtype = DType::bf16,
                                 .a_stride = args.a.stride,
                                 .w = {static_cast<const bf16*>(args.b.data)},
                                 .w_stride = {args.b.stride},
                                 .k = args.k};
  const auto run = [&](auto epilogue) { dot(factors, rows, columns, scratch, epilogue); };
  if (args.out.dtype == DType::bf16) {
    run(StoringEpilogue<bf16, false>(args.out));
  } else if (args.accumulate) {
    run(StoringEpilogue<float, true>(args.out));
  } else {
    run(StoringEpilogue<float, false>(args.out));
  }
}

int64_t gemm_bf16_scratch(int64_t rows, int64_t k) { return dot_scratch_bytes(rows, k); }

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

void gemm_bf16(const GemmBf16Args& args, Range rows, Range columns, std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(gemm_bf16_tile)(args, rows, columns, scratch);
}

size_t gemm_bf16_scratch_bytes(const GemmBf16Args& args, int64_t rows) {
  return static_cast<size_t>(WEFT_CPU_DISPATCH(gemm_bf16_scratch)(rows, args.k));
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

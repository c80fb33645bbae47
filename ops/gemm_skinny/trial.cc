#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/gemm_skinny/op.h"
#include "ops/harness/products.h"

namespace weft::trial {
namespace {

constexpr Word<DType> kFormats[] = {
    {"bf16", DType::bf16}, {"e4m3fn", DType::e4m3fn}, {"e4m3fnuz", DType::e4m3fnuz}};

struct Case {
  Use use;
  int64_t m;
  int64_t n;
  int64_t k;
  DType type;
  Scaling scaling;
  DType out;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("m", m, {.most = kSkinnyRows});
    v.size("n", n, {.least = 8, .unit = 8});
    v.size("k", k, {.least = 16, .unit = 16});
    v.word("", type, kFormats);
    v.optional_word("", scaling, kScalings);
    v.word("out", out, kFloats);
  }
  std::string_view conflict() const {
    return is_fp8(type) != (scaling != Scaling::none) ? "fp8 has scales, bf16 has none"
           : scaling == Scaling::block && k % kScaleBlock != 0
               ? "with scales of blocks k is a multiple of 128"
               : "";
  }
};

constexpr Case kCases[] = {
#include "ops/gemm_skinny/cases.inc"
};

class GemmSkinnyTrial : public KernelTrial<GemmSkinnyArgs> {
 public:
  GemmSkinnyTrial(const Case& c, Random& random)
      : KernelTrial(gemm_skinny_kernel),
        case_(c),
        a_(input("a", c.m, c.k, c.type, random, 1, gap())),
        b_(input("b", c.n, c.k, c.type, random, 1, gap())),
        out_(output("out", c.m, c.n, c.out, gap())) {
    if (c.scaling == Scaling::none) {
      return;
    }
    const int64_t blocks = c.scaling == Scaling::block ? c.k / kScaleBlock : 1;
    const auto lines = [&](int64_t rows, int64_t group) {
      return c.scaling == Scaling::tensor  ? 1
             : c.scaling == Scaling::block ? ceil_div(rows, group)
                                           : rows;
    };
    // Normal numbers, so of both signs; one is zero.
    a_scale_ = &input("a_scale", lines(c.m, 1), blocks, DType::f32, random);
    b_scale_ = &input("b_scale", lines(c.n, kScaleBlock), blocks, DType::f32, random);
    if (c.scaling != Scaling::tensor) {
      b_scale_->set(random.below(b_scale_->rows()), random.below(blocks), 0);
    }
  }

  int64_t rows() const override { return case_.m; }

  /// Products are exact in f32; the sum's error is that of k of them, and a few scalings.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    const auto operands = args(Side::host);
    std::vector<double> of_blocks(out.value.size());
    expect_product(out, [&](Range some, Range columns, double* values, double* magnitudes) {
      reference::gemm_skinny(operands, some, columns, values, magnitudes,
                             of_blocks.data() + (values - out.value.data()));
    });
    for (double& tolerance : out.tolerance) {
      tolerance *= sum_tolerance(case_.k);
    }
    if (is_fp8(case_.type)) {
      allow_fp8_sums(out, of_blocks);
    }
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::gemm_skinny(args(Side::host), {0, rows()}, share(case_.n, piece, 8), scratch(piece));
  }

  size_t scratch_bytes() const override {
    return cpu::gemm_skinny_scratch_bytes(args(Side::host), rows());
  }

  Work work() const override {
    const size_t scales = a_scale_ != nullptr ? a_scale_->bytes() + b_scale_->bytes() : 0;
    return {.bytes = static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes() + scales),
            .flops = 2.0 * static_cast<double>(case_.m * case_.n * case_.k),
            .peak = case_.scaling == Scaling::none ? Peak::bf16 : Peak::fp8};
  }

 protected:
  GemmSkinnyArgs args(Side side) const override {
    return {.m = case_.m,
            .n = case_.n,
            .k = case_.k,
            .a = a_.in(side),
            .b = b_.in(side),
            .scaling = case_.scaling,
            .a_scale = scales(a_scale_, side),
            .b_scale = scales(b_scale_, side),
            .out = out_.out(side),
            .constant_b = true,
            .workspace = {}};
  }

 private:
  /// Strides are multiples of 16 bytes.
  int64_t gap() const { return case_.use == Use::check ? 16 : 0; }

  static ConstScales scales(const Tensor* tensor, Side side) {
    if (tensor == nullptr) {
      return {};
    }
    const ConstMatrix matrix = tensor->in(side);
    return {static_cast<const float*>(matrix.data), matrix.stride, 1};
  }

  Case case_;
  Tensor& a_;
  Tensor& b_;
  Tensor& out_;
  Tensor* a_scale_ = nullptr;
  Tensor* b_scale_ = nullptr;
};

}  // namespace

Operation gemm_skinny() { return operation_of<GemmSkinnyTrial, Case>("gemm_skinny", kCases); }

}  // namespace weft::trial

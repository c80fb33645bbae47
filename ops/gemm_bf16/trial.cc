#include "ops/check_operands.h"
#include "ops/gemm_bf16/op.h"
#include "ops/harness/products.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t m;
  int64_t n;
  int64_t k;
  DType out;
  bool accumulate = false;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("m", m);
    v.size("n", n, {.least = 8, .unit = 8});
    v.size("k", k, {.least = 8, .unit = 8});
    v.word("out", out, kFloats);
    v.flag("accumulate", accumulate);
  }
};

constexpr Case kCases[] = {
#include "ops/gemm_bf16/cases.inc"
};

class GemmBf16Trial : public KernelTrial<GemmBf16Args> {
 public:
  GemmBf16Trial(const Case& c, Random& random)
      : KernelTrial(gemm_bf16_kernel),
        k_(c.k),
        a_(input("a", c.m, c.k, DType::bf16, random, 1, gap(c))),
        b_(input("b", c.n, c.k, DType::bf16, random, 1, gap(c))),
        accumulate_(c.accumulate),
        out_(add("out", c.accumulate ? Tensor::Role::inout : Tensor::Role::output, c.m, c.n, c.out,
                 gap(c))) {
    if (accumulate_) {
      out_.fill(random, 10);
    }
  }

  int64_t rows() const override { return a_.rows(); }

  /// Products are exact in f32; the sum's error is that of k of them.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    const auto operands = args(Side::host);
    expect_product(out, [&](Range some, Range columns, double* values, double* magnitudes) {
      reference::gemm_bf16(operands, some, columns, values, magnitudes);
    });
    for (size_t i = 0; i < out.value.size(); ++i) {
      out.tolerance[i] *= sum_tolerance(k_);
      if (accumulate_) {
        const auto at = static_cast<int64_t>(i);
        out.value[i] += out_.get(rows.begin + at / out_.columns(), at % out_.columns());
      }
    }
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::gemm_bf16(args(Side::host), {0, rows()}, share(out_.columns(), piece, 8), scratch(piece));
  }

  size_t scratch_bytes() const override {
    return cpu::gemm_bf16_scratch_bytes(args(Side::host), rows());
  }

  Work work() const override {
    return {.bytes =
                static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes() * (accumulate_ ? 2 : 1)),
            .flops = 2.0 * static_cast<double>(a_.rows() * b_.rows() * k_),
            .peak = Peak::bf16};
  }

 protected:
  GemmBf16Args args(Side side) const override {
    return {.m = a_.rows(),
            .n = b_.rows(),
            .k = k_,
            .a = a_.in(side),
            .b = b_.in(side),
            .out = out_.out(side),
            .accumulate = accumulate_,
            .constant_b = true,
            .workspace = {}};
  }

 private:
  /// Strides are multiples of 16 bytes.
  static int64_t gap(const Case& c) { return c.use == Use::check ? 8 : 0; }

  int64_t k_;
  Tensor& a_;
  Tensor& b_;
  bool accumulate_;
  Tensor& out_;
};

}  // namespace

Operation gemm_bf16() { return operation_of<GemmBf16Trial, Case>("gemm_bf16", kCases); }

}  // namespace weft::trial

#include "ops/harness/trial.h"

#include <fmt/format.h>

#include "ops/gemm_bf16/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t m;
  int64_t n;
  int64_t k;
  DType out;

  std::string name() const { return fmt::format("m={},n={},k={},out={}", m, n, k, name_of(out)); }
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
        out_(output("out", c.m, c.n, c.out, gap(c))) {}

  int64_t rows() const override { return a_.rows(); }

  /// Products are exact in f32; the sum's error is that of k of them.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    reference::gemm_bf16(args(Side::host), rows, out.columns, out.value.data(),
                         out.tolerance.data());
    for (double& tolerance : out.tolerance) {
      tolerance *= sum_tolerance(k_);
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
    return {.bytes = static_cast<double>(a_.bytes() + b_.bytes() + out_.bytes()),
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
            .workspace = {}};
  }

 private:
  /// Strides are multiples of 16 bytes.
  static int64_t gap(const Case& c) { return c.use == Use::check ? 8 : 0; }

  int64_t k_;
  Tensor& a_;
  Tensor& b_;
  Tensor& out_;
};

}  // namespace

Operation gemm_bf16() { return operation_of<GemmBf16Trial, Case>("gemm_bf16", kCases); }

}  // namespace weft::trial

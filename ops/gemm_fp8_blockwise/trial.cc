#include <algorithm>
#include <limits>
#include <set>

#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/harness/products.h"

namespace weft::trial {
namespace {

/// Which scales lie with adjacent rows (of a or b) next to each other, and which with adjacent
/// blocks of k.
enum class ScaleLayout {
  columns,  ///< both by rows: the challenge's
  mixed,    ///< a's by rows, b's by blocks: what engines have
  rows,     ///< both by blocks
};
constexpr Word<ScaleLayout> kScaleLayouts[] = {{"column-major", ScaleLayout::columns},
                                               {"mixed", ScaleLayout::mixed},
                                               {"row-major", ScaleLayout::rows}};
constexpr Word<Fp8Layout> kLayouts[] = {{"k-major", Fp8Layout::k_major},
                                        {"mn-major", Fp8Layout::mn_major}};

struct Case {
  Use use;
  int64_t m;
  int64_t n;
  int64_t k;
  Fp8Layout layout;
  ScaleLayout scales;
  DType type;
  int64_t groups = 0;
  bool ragged = false;  ///< groups of any rows, from none on, and rows that none has

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("m", m);
    v.size("n", n, {.least = 8, .unit = 8});
    v.size("k", k, {.least = kScaleBlock, .unit = kScaleBlock});
    v.word("", layout, kLayouts);
    v.word("", type, kFp8Formats);
    v.word("scales", scales, kScaleLayouts);
    v.size("groups", groups, {.required = false});
    v.flag("ragged", ragged);
  }
  std::string_view conflict() const {
    return ragged && groups == 0                              ? "only groups can be ragged"
           : groups > 0 && m % kGroupRows != 0                ? "m is a multiple of 128 with groups"
           : groups > 0 && layout != Fp8Layout::k_major       ? "groups are k-major"
           : groups * n > std::numeric_limits<int32_t>::max() ? "groups * n is below 2^31"
                                                              : "";
  }
};

constexpr Case kCases[] = {
#include "ops/gemm_fp8_blockwise/cases.inc"
};

class GemmFp8BlockwiseTrial : public KernelTrial<GemmFp8BlockwiseArgs> {
 public:
  GemmFp8BlockwiseTrial(const Case& c, Random& random)
      : KernelTrial(gemm_fp8_blockwise_kernel),
        case_(c),
        a_(operand("a", c.m, random)),
        b_(operand("b", c.n * std::max<int64_t>(c.groups, 1), random)),
        a_scale_(scales("a_scale", c.m, c.scales == ScaleLayout::rows, random)),
        b_scale_(scales("b_scale", ceil_div(c.n, kScaleBlock) * std::max<int64_t>(c.groups, 1),
                        c.scales != ScaleLayout::columns, random)),
        group_of_(add("group_of", Tensor::Role::index, 1, c.groups > 0 ? c.m / kGroupRows : 0,
                      DType::f32)),
        out_(output("out", c.m, c.n, DType::bf16, c.use == Use::check ? 8 : 0)) {
    // Groups have as many blocks of rows as each other, or each block draws its group, or none.
    const std::span group_of(static_cast<int32_t*>(group_of_.data()),
                             static_cast<size_t>(group_of_.columns()));
    for (size_t i = 0; i < group_of.size(); ++i) {
      group_of[i] = static_cast<int32_t>(c.ragged ? random.below(c.groups + 1) - 1
                                                  : static_cast<int64_t>(i) * c.groups /
                                                        static_cast<int64_t>(group_of.size()));
    }
    std::sort(group_of.begin(), group_of.end());
    const auto first = std::lower_bound(group_of.begin(), group_of.end(), 0);
    had_rows_ = c.groups > 0 ? (group_of.end() - first) * kGroupRows : c.m;
    had_groups_ = c.groups > 0 ? std::set(first, group_of.end()).size() : 1;
  }

  int64_t rows() const override { return case_.m; }

  /// Products are exact in f32; the sum's error is that of k of them, and a few scalings.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    Expectation& out = result[0];
    const auto operands = args(Side::host);
    std::vector<double> of_blocks(out.value.size());
    expect_product(out, [&](Range some, Range columns, double* values, double* magnitudes) {
      reference::gemm_fp8_blockwise(operands, some, columns, values, magnitudes,
                                    of_blocks.data() + (values - out.value.data()));
    });
    for (double& tolerance : out.tolerance) {
      tolerance *= sum_tolerance(case_.k);
    }
    allow_fp8_sums(out, of_blocks);
    out.allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::gemm_fp8_blockwise(args(Side::host), {0, rows()}, share(case_.n, piece, kScaleBlock),
                            scratch(piece));
  }

  size_t scratch_bytes() const override {
    return cpu::gemm_fp8_blockwise_scratch_bytes(args(Side::host), rows());
  }

  Work work() const override {
    const double rows = static_cast<double>(had_rows_) / static_cast<double>(case_.m);
    const double groups =
        static_cast<double>(had_groups_) / static_cast<double>(std::max<int64_t>(case_.groups, 1));
    return {.bytes = rows * static_cast<double>(a_.bytes() + a_scale_.bytes() + out_.bytes()) +
                     groups * static_cast<double>(b_.bytes() + b_scale_.bytes()),
            .flops = 2.0 * static_cast<double>(had_rows_ * case_.n * case_.k),
            .peak = Peak::fp8};
  }

 protected:
  GemmFp8BlockwiseArgs args(Side side) const override {
    return {
        .m = case_.m,
        .n = case_.n,
        .k = case_.k,
        .layout = case_.layout,
        .groups = case_.groups,
        .group_of = case_.groups > 0 ? static_cast<const int32_t*>(group_of_.data(side)) : nullptr,
        .a = a_.in(side),
        .b = b_.in(side),
        .a_scale = strided(a_scale_, side, case_.scales == ScaleLayout::rows),
        .b_scale = strided(b_scale_, side, case_.scales != ScaleLayout::columns),
        .out = out_.out(side),
        .constant_b = true,
        .workspace = {}};
  }

 private:
  /// [lines, k] or [k, lines]; strides are multiples of 16 bytes.
  Tensor& operand(std::string name, int64_t lines, Random& random) {
    const bool k_major = case_.layout == Fp8Layout::k_major;
    const int64_t columns = k_major ? case_.k : lines;
    const int64_t gap = (16 - columns % 16) % 16 + (case_.use == Use::check ? 16 : 0);
    return input(std::move(name), k_major ? lines : case_.k, columns, case_.type, random, 1, gap);
  }

  /// Normal numbers, so of both signs; one is zero. `by_blocks`: blocks of k are adjacent.
  Tensor& scales(std::string name, int64_t lines, bool by_blocks, Random& random) {
    const int64_t blocks = case_.k / kScaleBlock;
    Tensor& tensor = input(std::move(name), by_blocks ? lines : blocks, by_blocks ? blocks : lines,
                           DType::f32, random, 1, case_.use == Use::check ? 3 : 0);
    tensor.set(random.below(tensor.rows()), random.below(tensor.columns()), 0);
    return tensor;
  }

  static ConstScales strided(const Tensor& tensor, Side side, bool by_blocks) {
    const ConstMatrix matrix = tensor.in(side);
    return {static_cast<const float*>(matrix.data), by_blocks ? matrix.stride : 1,
            by_blocks ? 1 : matrix.stride};
  }

  Case case_;
  Tensor& a_;
  Tensor& b_;
  Tensor& a_scale_;
  Tensor& b_scale_;
  Tensor& group_of_;
  Tensor& out_;
  int64_t had_rows_;    ///< that some group has
  int64_t had_groups_;  ///< that have rows
};

}  // namespace

Operation gemm_fp8_blockwise() {
  return operation_of<GemmFp8BlockwiseTrial, Case>("gemm_fp8_blockwise", kCases);
}

}  // namespace weft::trial

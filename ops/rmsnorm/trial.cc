#include <cmath>

#include "base/divide.h"
#include "ops/harness/prefill_trial.h"
#include "ops/rmsnorm/op.h"

namespace weft::trial {
namespace {

enum class Out { f32, bf16, in_place, nowhere };
constexpr Word<Out> kOuts[] = {
    {"f32", Out::f32}, {"bf16", Out::bf16}, {"in-place", Out::in_place}, {"nowhere", Out::nowhere}};

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  int64_t groups;
  DType weight;
  bool residual;
  Out out;
  float weight_offset = 0;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns);
    v.size("groups", groups);
    v.word("weight", weight, kFileFormats);
    v.word("out", out, kOuts);
    v.flag("residual", residual);
    v.real("weight-offset", weight_offset,
           {.least = -1e3, .most = 1e3, .required = false, .otherwise = 0});
  }
  std::string_view conflict() const {
    return rows % groups != 0                 ? "rows are no multiple of groups"
           : out == Out::nowhere && !residual ? "without a residual y goes nowhere"
           : residual && (groups > 1 || out == Out::in_place)
               ? "a residual is added to plain rows, and not in place"
               : "";
  }
};

constexpr Case kCases[] = {
#include "ops/rmsnorm/cases.inc"
};

class RmsNormTrial : public PrefillTrial {
 public:
  RmsNormTrial(const Case& c, Random& random)
      : rows_(c.rows),
        x_(add("x", c.out == Out::in_place ? Tensor::Role::inout : Tensor::Role::input,
               c.rows / c.groups, c.groups * c.columns, DType::f32,
               gap_after(c.groups * c.columns))),
        weight_(input("weight", 1, c.columns, c.weight, random)) {
    const int64_t lines = x_.rows();
    const int64_t width = x_.columns();
    x_.fill(random, 3);
    if (c.residual) {
      residual_ = &add("residual", Tensor::Role::inout, lines, width, DType::f32, gap_after(width));
      residual_->fill(random, 2);
    }
    if (c.out == Out::in_place) {
      out_ = &x_;
    } else if (c.out != Out::nowhere) {
      out_ = &output("out", lines, width, c.out == Out::bf16 ? DType::bf16 : DType::f32,
                     gap_after(width));
    }
    args_ = {.x = x_.in(),
             .weight = weight_.vector(),
             .columns = c.columns,
             .groups = c.groups,
             .epsilon = 1e-5f,
             .scale = c.residual ? 0.22f : 1.0f,
             .residual = c.residual ? residual_->out() : Matrix{},
             .out = out_ != nullptr ? out_->out() : Matrix{},
             .weight_offset = c.weight_offset};
  }

  int64_t rows() const override { return rows_; }

  /// The sum of squares has no cancellation, so its relative error is that of a sum; half of it is
  /// left after the root. Mean, root, reciprocal and three products round once each.
  std::vector<Expectation> expect(Range rows) override {
    // Whole lines: a line's groups are compared together.
    const Range lines{rows.begin / args_.groups, ceil_div(rows.end, args_.groups)};
    std::vector<Expectation> result;
    for (Tensor* tensor : {residual_, out_}) {
      if (tensor == nullptr) {
        continue;
      }
      Expectation& each = result.emplace_back(*tensor, lines);
      reference::rmsnorm(args_, {lines.begin * args_.groups, lines.end * args_.groups},
                         each.value.data());
      for (size_t i = 0; i < each.value.size(); ++i) {
        const int64_t line = lines.begin + static_cast<int64_t>(i) / x_.columns();
        const int64_t column = static_cast<int64_t>(i) % x_.columns();
        const double before = residual_ != nullptr ? residual_->get(line, column) : 0;
        each.tolerance[i] =
            (sum_tolerance(args_.columns) / 2 + 8 * 0x1p-24) * std::fabs(each.value[i] - before) +
            0x1p-24 * std::fabs(each.value[i]);
      }
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override { cpu::rmsnorm(args_, share(rows_, piece)); }

  Work work() const override {
    const double values = static_cast<double>(rows_ * args_.columns);
    const double out = out_ != nullptr ? static_cast<double>(size_of(out_->dtype())) : 0;
    return {.bytes = values * (4 + out + (residual_ != nullptr ? 8 : 0)) +
                     static_cast<double>(weight_.bytes()),
            .flops = values * 4};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    return chunk_kernels(arch)->refuse_rmsnorm(args_);
  }

  Status launch_rows(Arch arch, Stream stream) override {
    RmsNormArgs args = args_;
    args.x = x_.in(Side::device);
    args.weight = weight_.vector(Side::device);
    args.residual = residual_ != nullptr ? residual_->out(Side::device) : Matrix{};
    args.out = out_ != nullptr ? out_->out(Side::device) : Matrix{};
    return chunk_kernels(arch)->rmsnorm(args, rows_, stream);
  }

 private:
  int64_t rows_;
  Tensor& x_;
  Tensor& weight_;
  Tensor* residual_ = nullptr;
  Tensor* out_ = nullptr;
  RmsNormArgs args_;
};

}  // namespace

Operation rmsnorm() { return operation_of<RmsNormTrial, Case>("rmsnorm", kCases); }

}  // namespace weft::trial

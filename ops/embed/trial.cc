#include "ops/embed/op.h"
#include "ops/harness/prefill_trial.h"

namespace weft::trial {
namespace {

constexpr int64_t kVocabulary = 1000;

struct Case {
  Use use;
  int64_t rows;
  int64_t columns;
  DType table;
  float scale;
  bool copy;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("columns", columns);
    v.word("table", table, kFileFormats);
    v.real("scale", scale, {.least = -1e6, .most = 1e6});
    v.flag("copy", copy);
  }
};

constexpr Case kCases[] = {
#include "ops/embed/cases.inc"
};

class EmbedTrial : public PrefillTrial {
 public:
  EmbedTrial(const Case& c, Random& random)
      : table_(input("table", kVocabulary, c.columns, c.table, random, 1, gap_after(c.columns))),
        out_(output("out", c.rows, c.columns, DType::f32, gap_after(c.columns))),
        copy_(c.copy ? &output("copy", c.rows, c.columns, DType::bf16, gap_after(c.columns) + 8)
                     : nullptr) {
    for (int64_t r = 0; r < c.rows; ++r) {
      tokens_.push_back(static_cast<int32_t>(random.below(kVocabulary)));
    }
    args_ = {.table = table_.in(),
             .tokens = tokens_.data(),
             .columns = c.columns,
             .scale = c.scale,
             .out = out_.out(),
             .copy = c.copy ? copy_->out() : Matrix{}};
  }

  int64_t rows() const override { return out_.rows(); }

  /// One product: only the outputs' own rounding.
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    reference::embed(args_, rows, result[0].value.data());
    if (copy_ != nullptr) {
      result.emplace_back(*copy_, rows);
      result[1].value = result[0].value;
    }
    for (Expectation& each : result) {
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override { cpu::embed(args_, share(rows(), piece)); }

  Work work() const override {
    const double values = static_cast<double>(rows() * args_.columns);
    return {.bytes = values *
                     static_cast<double>(size_of(table_.dtype()) + 4 + (copy_ != nullptr ? 2 : 0)),
            .flops = values};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    return chunk_kernels(arch)->refuse_embed(args_);
  }

  Status launch_rows(Arch arch, Stream stream) override {
    EmbedArgs args = args_;
    args.table = table_.in(Side::device);
    WEFT_ASSIGN(args.tokens, on_device(tokens_));
    args.out = out_.out(Side::device);
    args.copy = copy_ != nullptr ? copy_->out(Side::device) : Matrix{};
    return chunk_kernels(arch)->embed(args, rows(), stream);
  }

 private:
  Tensor& table_;
  Tensor& out_;
  Tensor* copy_;
  std::vector<int32_t> tokens_;
  EmbedArgs args_;
};

}  // namespace

Operation embed() { return operation_of<EmbedTrial, Case>("embed", kCases); }

}  // namespace weft::trial

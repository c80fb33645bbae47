#include <algorithm>
#include <cmath>
#include <mutex>

#include "ops/attention/op.h"
#include "ops/harness/prefill_trial.h"
#include "ops/matrix_rows.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int32_t first;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  int64_t window;
  int64_t splits;
  DType q;
  DType cache;
  DType out;
  float soft_cap = 0;
  bool sinks = false;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("first", first, {.least = 0});
    v.pair("heads", query_heads, kv_heads);
    v.size("dim", head_dim, {.least = 2, .unit = 2});
    v.size("window", window, {.least = 0});
    v.size("splits", splits);
    v.word("q", q, kFileFloats);
    v.word("cache", cache, kFileFloats);
    v.word("out", out, kFileFloats);
    v.real("soft-cap", soft_cap, {.least = 0, .most = 1e6, .required = false, .otherwise = 0});
    v.flag("sinks", sinks);
  }
  std::string_view conflict() const {
    return query_heads % kv_heads != 0 ? "query heads are no multiple of KV heads" : "";
  }
};

constexpr Case kCases[] = {
#include "ops/attention/cases.inc"
};

class AttentionTrial : public PrefillTrial {
 public:
  AttentionTrial(const Case& c, Random& random)
      : capacity_(c.first + c.rows),
        q_(input("q", c.rows, c.query_heads * c.head_dim, c.q, random, 1,
                 gap_after(c.query_heads * c.head_dim))),
        keys_(input("keys", c.kv_heads * capacity_, c.head_dim, c.cache, random)),
        values_(input("values", c.kv_heads * capacity_, c.head_dim, c.cache, random)),
        partials_(add("partials", Tensor::Role::output, c.rows * c.query_heads * c.splits,
                      c.head_dim + 2, DType::f32)),
        sinks_(input("sinks", 1, c.query_heads, DType::bf16, random)),
        out_(output("out", c.rows, q_.columns(), c.out, gap_after(q_.columns()))) {
    for (int64_t r = 0; r < c.rows; ++r) {
      positions_.push_back(c.first + static_cast<int32_t>(r));
    }
    args_ = {.q = q_.in(),
             .cache = {keys_.data(), values_.data(), c.cache, capacity_ * c.head_dim},
             .query_heads = c.query_heads,
             .kv_heads = c.kv_heads,
             .head_dim = c.head_dim,
             .positions = positions_.data(),
             .scale = 1.5f / std::sqrt(static_cast<float>(c.head_dim)),
             .soft_cap = c.soft_cap,
             .window = c.window,
             .splits = c.splits,
             .partials = c.splits > 1 ? static_cast<float*>(partials_.data()) : nullptr,
             .out = out_.out(),
             .sinks = c.sinks ? sinks_.vector() : ConstVector{}};
  }

  int64_t rows() const override { return q_.rows(); }

  /// A score is off by e = scale * (the error of a sum) * sum|q k|, at most |q| |k|; a probability
  /// is then off by 2e relatively (numerator and denominator), by the exponential's 2 units and by
  /// the sums' errors; the output by that share of sum p|v|. A soft cap, whose slope is at most 1,
  /// adds 4 units of a score. With bf16 products, each probability
  /// is rounded to bf16 besides; f32 queries on a bf16 cache, and their probabilities, to 17 bits.
  std::vector<Expectation> expect(Range rows) override {
    const Range heads{0, args_.query_heads};
    std::vector<Expectation> result{Expectation(out_, rows)};
    reference::attention(args_, rows, heads, result[0].value.data());
    const Tensor magnitudes = values_.magnitudes();
    AttentionArgs unsigned_args = args_;
    unsigned_args.cache.values = const_cast<void*>(magnitudes.data());  // read only
    std::vector<double>& tolerance = result[0].tolerance;
    reference::attention(unsigned_args, rows, heads, tolerance.data());
    const bool bf16_products = q_.dtype() == DType::bf16 && keys_.dtype() == DType::bf16;
    const bool pieces = q_.dtype() == DType::f32 && keys_.dtype() == DType::bf16;
    const double cut = pieces ? 0x1p-17 : 0;
    size_t i = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const Range seen = attention_keys(positions_[static_cast<size_t>(r)], args_.window);
      for (int64_t h = 0; h < args_.query_heads; ++h) {
        const double score_error = args_.scale * (sum_tolerance(args_.head_dim) + cut) *
                                   length(q_, r, h * args_.head_dim) * longest_key(h, seen);
        const double cap_error = 4 * 0x1p-24 * args_.soft_cap;
        const double share = 2 * (score_error + cap_error) + 2 * sum_tolerance(seen.size()) +
                             8 * 0x1p-24 + cut + (bf16_products ? roundoff(DType::bf16) : 0);
        for (int64_t c = 0; c < args_.head_dim; ++c, ++i) {
          tolerance[i] *= share;
        }
      }
    }
    result[0].allow_rounding();
    return result;
  }

  int phases() const override { return args_.splits > 1 ? 2 : 1; }

  void run(int phase, Piece piece) override {
    if (phase == 1) {
      cpu::attention_combine(args_, {0, rows()}, share(args_.query_heads, piece));
      return;
    }
    // Tasks are (row block, split, KV head). A block has more rows than kAttentionFewRows, unless
    // all have not, so that the kernel is the same however the work is shared.
    const int64_t block = rows() % kRowBlock > kAttentionFewRows ? kRowBlock : rows();
    const int64_t blocks = (rows() + block - 1) / block;
    const Range tasks = share(blocks * args_.splits * args_.kv_heads, piece);
    for (int64_t task = tasks.begin; task < tasks.end; ++task) {
      const int64_t head = task % args_.kv_heads;
      const int64_t split = task / args_.kv_heads % args_.splits;
      const int64_t begin = task / args_.kv_heads / args_.splits * block;
      cpu::attention(args_, {begin, std::min(begin + block, rows())}, {head, head + 1}, split,
                     scratch(piece));
    }
  }

  size_t scratch_bytes() const override {
    return std::max(cpu::attention_scratch_bytes(args_, 1),
                    cpu::attention_scratch_bytes(args_, rows()));
  }

  Work work() const override {
    double seen = 0;
    for (const int32_t position : positions_) {
      seen += static_cast<double>(attention_keys(position, args_.window).size());
    }
    const Range first = attention_keys(positions_.front(), args_.window);
    const double cached = static_cast<double>((positions_.back() + 1 - first.begin) *
                                              args_.kv_heads * args_.head_dim);
    const bool bf16_products = q_.dtype() == DType::bf16 && keys_.dtype() == DType::bf16;
    return {.bytes = 2 * cached * static_cast<double>(size_of(keys_.dtype())) +
                     static_cast<double>(q_.bytes() + out_.bytes()),
            .flops = 4 * seen * static_cast<double>(args_.query_heads * args_.head_dim),
            .peak = bf16_products ? Peak::bf16 : Peak::f32};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    const std::string_view why = chunk_kernels(arch)->refuse_attention(args_);
    if (!why.empty()) {
      return why;
    }
    // A weight of zero times NaN is NaN.
    return values_.finite()
               ? ""
               : "values that are not finite reach rows of their tile that do not see them";
  }

  Status launch_rows(Arch arch, Stream stream) override {
    return launch(arch, {0, rows()}, stream);
  }
  Status launch_pieces_on(const Plan& /*plan*/, Workspace /*workspace*/, Stream stream) override {
    return launch_cut([&](Range part) { return launch(device().info().arch, part, stream); });
  }

 private:
  static constexpr int64_t kRowBlock = 64;

  Status launch(Arch arch, Range part, Stream stream) const {
    AttentionArgs args = args_;
    args.q = below(q_.in(Side::device), part.begin);
    args.cache.keys = keys_.data(Side::device);
    args.cache.values = values_.data(Side::device);
    args.out = below(out_.out(Side::device), part.begin);
    if (args.sinks.data != nullptr) {
      args.sinks = sinks_.vector(Side::device);
    }
    return chunk_kernels(arch)->attention(args, part.size(), positions_.front() + part.begin,
                                          stream);
  }

  double length(const Tensor& x, int64_t r, int64_t first) const {
    double squares = 0;
    for (int64_t c = first; c < first + args_.head_dim; ++c) {
      squares += x.get(r, c) * x.get(r, c);
    }
    return std::sqrt(squares);
  }

  double longest_key(int64_t query_head, Range seen) {
    const int64_t head = query_head / (args_.query_heads / args_.kv_heads);
    std::call_once(key_lengths_made_, [&] {  // rows are expected by several threads
      for (int64_t r = 0; r < keys_.rows(); ++r) {
        key_lengths_.push_back(length(keys_, r, 0));
      }
    });
    const auto at = key_lengths_.begin() + head * capacity_;
    return *std::max_element(at + seen.begin, at + seen.end);
  }

  int64_t capacity_;
  Tensor& q_;
  Tensor& keys_;
  Tensor& values_;
  Tensor& partials_;
  Tensor& sinks_;
  Tensor& out_;
  std::vector<int32_t> positions_;
  std::vector<double> key_lengths_;  // [kv_head][position]
  std::once_flag key_lengths_made_;
  AttentionArgs args_;
};

}  // namespace

Operation attention() { return operation_of<AttentionTrial, Case>("attention", kCases); }

}  // namespace weft::trial

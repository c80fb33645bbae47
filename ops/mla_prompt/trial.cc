#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <vector>

#include "ops/decode.h"
#include "ops/harness/prefill_trial.h"
#include "ops/matrix_rows.h"
#include "ops/mla_prompt/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t first;
  int64_t heads;
  int64_t rank;
  int64_t unturned;
  int64_t turned;
  int64_t value;
  DType w;
  DType element;
  DType out;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("first", first, {.least = 0});
    v.size("heads", heads);
    v.size("rank", rank, {.least = 2, .unit = 2});
    v.size("unturned", unturned);
    v.size("turned", turned, {.least = 2, .unit = 2});
    v.size("value", value);
    v.word("w", w, kFileFormats);
    v.word("element", element, kFileFloats);
    v.word("out", out, kFileFloats);
  }
  /// An infinity has another way through what is absorbed.
  std::string_view conflict() const {
    const LatentHeads of{heads, rank, unturned, turned, value, {}};
    return multiplies_out(of, rows, first + rows) ? "" : "rows are few: they would be absorbed";
  }
};

constexpr Case kCases[] = {
#include "ops/mla_prompt/cases.inc"
};

class MlaPromptTrial : public PrefillTrial {
 public:
  MlaPromptTrial(const Case& c, Random& random)
      : first_(c.first),
        q_(input("q", c.rows, c.heads * (c.unturned + c.turned), DType::f32, random, 1, kGap)),
        w_(input("w", c.heads * (c.unturned + c.value), c.rank, c.w, random,
                 1 / std::sqrt(static_cast<float>(c.rank)))),
        cache_(input("cache", c.first + c.rows, c.rank + c.turned, c.element, random)),
        angles_(input("angles", 2 * c.rows, c.turned / 2, DType::f32, random, 0.7F)),
        out_(output("out", c.rows, c.heads * c.value, c.out, kGap)),
        positions_(static_cast<size_t>(c.rows)) {
    std::iota(positions_.begin(), positions_.end(), static_cast<int32_t>(c.first));
    args_.of = {c.heads, c.rank, c.unturned, c.turned, c.value, w_.in()};
    args_.q = q_.in();
    args_.cosines = static_cast<const float*>(angles_.data());
    args_.sines = args_.cosines + c.rows * c.turned / 2;
    args_.positions = positions_.data();
    args_.cache = {.keys = cache_.data(), .dtype = c.element};
    args_.element = c.element;
    args_.scale = 1 / std::sqrt(static_cast<float>(c.unturned + c.turned));
    args_.out = out_.out();
  }

  int64_t rows() const override { return q_.rows(); }

  /// A key's element is off by the error of its sum and its rounding, and so is a query's; a score
  /// by that times the lengths of both, and a probability by twice as much relatively, its own
  /// rounding and the sums' errors; the result by that share of the largest value that it may be
  /// made of, and by such a value's error.
  std::vector<Expectation> expect(Range rows) override {
    const LatentHeads& of = args_.of;
    std::vector<Expectation> result{Expectation(out_, rows)};
    reference::latent_attention(args_, rows, {0, of.heads}, result[0].value.data());
    std::call_once(measured_, [&] { measure(); });
    const int64_t size = of.unturned + of.turned;
    const double rounding = args_.element == DType::bf16 ? roundoff(DType::bf16) : 0;
    size_t i = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const auto seen = static_cast<size_t>(positions_[static_cast<size_t>(r)]);
      for (int64_t h = 0; h < of.heads; ++h) {
        double squares = 0;
        for (int64_t c = h * size; c < (h + 1) * size; ++c) {
          squares += q_.get(r, c) * q_.get(r, c);
        }
        const Longest& longest = longest_[static_cast<size_t>(h)][seen];
        const double score = args_.scale * 2 * std::sqrt(squares) *
                             ((3 * rounding + sum_tolerance(size)) * longest.key +
                              sum_tolerance(of.rank) * longest.key_magnitude);
        const double share = 2 * score + 2 * sum_tolerance(positions_[static_cast<size_t>(r)] + 1) +
                             2 * rounding + 8 * 0x1p-24;
        for (int64_t v = 0; v < of.value; ++v, ++i) {
          const auto at = static_cast<size_t>(v);
          result[0].tolerance[i] =
              share * longest.value[at] + sum_tolerance(of.rank) * longest.value_magnitude[at];
        }
      }
    }
    result[0].allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::latent_attention(args_, {0, rows()}, share(args_.of.heads, piece), scratch(piece));
  }
  size_t scratch_bytes() const override {
    return cpu::latent_attention_scratch_bytes(args_, rows(), args_.of.heads);
  }

  Work work() const override {
    const LatentHeads& of = args_.of;
    const double made =
        static_cast<double>(w_.rows() * cache_.rows()) * static_cast<double>(of.rank);
    const double met = static_cast<double>(rows()) *
                       (static_cast<double>(first_) + static_cast<double>(rows() + 1) / 2) *
                       static_cast<double>(of.heads * (of.unturned + of.turned + of.value));
    return {.bytes = static_cast<double>(q_.bytes() + w_.bytes() + cache_.bytes() + out_.bytes()),
            .flops = 2 * (made + met),
            .peak = args_.element == DType::bf16 ? Peak::bf16 : Peak::f32};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    if (chunk_limits(arch).refuse_latent_prompt == nullptr) {
      return "the architecture has no kernel for it";
    }
    const std::string_view why = chunk_limits(arch).refuse_latent_prompt(args_);
    if (!why.empty()) {
      return why;
    }
    // A weight of zero times NaN is NaN.
    return w_.finite() && cache_.finite()
               ? ""
               : "values that are not finite reach rows of their tile that do not see them";
  }

  size_t workspace_bytes(const Plan& /*plan*/) const override {
    return chunk_kernels(device().info().arch)
        ->latent_prompt_workspace({args_, cache_.rows(), {}}, rows());
  }
  Status launch_on(const Plan& /*plan*/, Workspace workspace, Stream stream) override {
    return launch(workspace, {0, rows()}, stream);
  }
  Status launch_pieces_on(const Plan& /*plan*/, Workspace workspace, Stream stream) override {
    return launch_cut([&](Range part) { return launch(workspace, part, stream); });
  }
  Status launch_rows(Arch /*arch*/, Stream /*stream*/) override {
    return device_error("mla_prompt wants a workspace");
  }

 private:
  static constexpr int64_t kGap = 8;

  Status launch(Workspace workspace, Range part, Stream stream) const {
    LatentAttentionArgs args = args_;
    const int64_t angles = args.of.turned / 2;
    args.of.w = w_.in(Side::device);
    args.q = below(q_.in(Side::device), part.begin);
    args.cosines = static_cast<const float*>(angles_.data(Side::device)) + part.begin * angles;
    args.sines = args.cosines + rows() * angles;
    args.cache.keys = cache_.data(Side::device);
    args.out = below(out_.out(Side::device), part.begin);
    return chunk_kernels(device().info().arch)
        ->latent_prompt({args, cache_.rows(), workspace}, part.size(), first_ + part.begin, stream);
  }

  /// Of a head's keys and values up to a position; `_magnitude`: of the sums of |terms| that these
  /// are.
  struct Longest {
    double key = 0, key_magnitude = 0;
    std::vector<double> value, value_magnitude;  // by element
  };

  struct Squares {
    double sums = 0, magnitudes = 0;
  };
  void measure() {
    const LatentHeads& of = args_.of;
    const int64_t cached = of.rank + of.turned;
    for (int64_t h = 0; h < of.heads; ++h) {
      const int64_t rows = of.key_row(1);
      std::vector<std::vector<double>> weights;
      for (int64_t i = h * rows; i < (h + 1) * rows; ++i) {
        weights.push_back(reference::decode(of.w.data, of.w.dtype, i * of.w.stride, 1, of.rank));
      }
      Longest longest;
      longest.value.resize(static_cast<size_t>(of.value));
      longest.value_magnitude = longest.value;
      std::vector<Longest>& head = longest_.emplace_back();
      for (int64_t p = 0; p < cache_.rows(); ++p) {
        const std::vector<double> latent =
            reference::decode(args_.cache.keys, args_.element, p * cached, 1, cached);
        Squares key;
        for (int64_t i = 0; i < rows; ++i) {
          const reference::Product made =
              reference::product(weights[static_cast<size_t>(i)].data(), latent.data(), of.rank);
          if (i < of.unturned) {
            key.sums += made.value * made.value;
            key.magnitudes += made.magnitude * made.magnitude;
            continue;
          }
          const auto v = static_cast<size_t>(i - of.unturned);
          longest.value[v] = std::max(longest.value[v], std::fabs(made.value));
          longest.value_magnitude[v] = std::max(longest.value_magnitude[v], made.magnitude);
        }
        const double turned = reference::product(&latent[static_cast<size_t>(of.rank)],
                                                 &latent[static_cast<size_t>(of.rank)], of.turned)
                                  .value;
        longest.key = std::max(longest.key, std::sqrt(key.sums + turned));
        longest.key_magnitude = std::max(longest.key_magnitude, std::sqrt(key.magnitudes));
        head.push_back(longest);
      }
    }
  }

  const int64_t first_;
  Tensor& q_;
  Tensor& w_;
  Tensor& cache_;
  Tensor& angles_;
  Tensor& out_;
  std::vector<int32_t> positions_;
  std::vector<std::vector<Longest>> longest_;  // [head][position]
  std::once_flag measured_;
  LatentAttentionArgs args_;
};

}  // namespace

Operation mla_prompt() { return operation_of<MlaPromptTrial, Case>("mla_prompt", kCases); }

}  // namespace weft::trial

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/divide.h"
#include "ops/attention_decode/op.h"
#include "ops/harness/trial.h"

namespace weft::trial {
namespace {

/// `near`: scores are near the unified maximum; `far`: those of some sequences are not.
enum class Unified { none, near, far };
constexpr Word<Unified> kUnified[] = {{"unified", Unified::near}, {"unified-far", Unified::far}};

struct Case {
  Use use;
  int64_t batch;
  int64_t length;
  int64_t tokens;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  DType out;
  bool paged = false;
  bool ragged = false;  ///< lengths from 0 to `length`
  int64_t window = 0;
  float soft_cap = 0;
  bool sinks = false;
  Unified unified = Unified::none;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("batch", batch);
    v.size("length", length);
    v.size("tokens", tokens, {.most = kDecodeTokens});
    v.pair("heads", query_heads, kv_heads);
    v.size("dim", head_dim, {.least = 8, .unit = 8, .most = kDecodeDim});
    v.word("out", out, kFloats);
    v.flag("paged", paged);
    v.flag("ragged", ragged);
    v.size("window", window, {.least = 0, .required = false});
    v.real("soft-cap", soft_cap, {.least = 0, .most = 1e6, .required = false, .otherwise = 0});
    v.flag("sinks", sinks);
    v.optional_word("", unified, kUnified);
  }
  std::string_view conflict() const {
    return query_heads % kv_heads != 0 ? "query heads are no multiple of KV heads" : "";
  }
};

constexpr Case kCases[] = {
#include "ops/attention_decode/cases.inc"
};

class AttentionDecodeTrial : public KernelTrial<AttentionDecodeArgs> {
 public:
  AttentionDecodeTrial(const Case& c, Random& random)
      : KernelTrial(attention_decode_kernel),
        case_(c),
        block_rows_(c.paged ? kKvPage : c.length + 1),
        pages_(ceil_div(c.length, kKvPage)),
        blocks_(c.paged ? c.batch * pages_ + 3 : c.batch),
        q_(input("q", c.batch * c.tokens, c.query_heads * c.head_dim, DType::bf16, random, 1,
                 gap())),
        keys_(cache("keys", random)),
        values_(cache("values", random)),
        sinks_(input("sinks", 1, c.query_heads, DType::bf16, random)),
        tables_(add("tables", Tensor::Role::index, c.paged ? c.batch : 0, pages_, DType::f32)),
        lengths_(add("lengths", Tensor::Role::index, 1, c.batch, DType::f32)),
        out_(output("out", c.batch * c.tokens, q_.columns(), c.out, gap())) {
    if (c.unified != Unified::none) {
      distances_ = &output("distances", q_.rows(), c.query_heads, DType::f32);
    }
    auto* lengths = static_cast<int32_t*>(lengths_.data());
    for (int64_t i = 0; i < c.batch; ++i) {
      // Among those that differ, no key and one key.
      const int64_t length = !c.ragged || i + 1 == c.batch ? c.length
                             : i < 2                       ? i
                                                           : random.below(c.length + 1);
      lengths[i] = static_cast<int32_t>(length);
    }
    std::vector<int32_t> pages(static_cast<size_t>(blocks_));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = 1; c.paged && i < pages.size(); ++i) {
      std::swap(pages[i], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    for (int64_t i = 0; c.paged && i < c.batch * pages_; ++i) {
      const bool used = i % pages_ * kKvPage < lengths[i / pages_];
      static_cast<int32_t*>(tables_.data())[i] = used ? pages[static_cast<size_t>(i)] : -1;
    }
    poison_unused();
    // Every other sequence's scores are far from 0 then.
    for (int64_t r = 0; c.unified == Unified::far && r < q_.rows(); ++r) {
      for (int64_t column = 0; r / c.tokens % 2 == 1 && column < q_.columns(); ++column) {
        q_.set(r, column, static_cast<float>(q_.get(r, column)) * 64);
      }
    }
  }

  int64_t rows() const override { return q_.rows(); }

  /// As attention's (ops/attention/trial.cc): a score is off by the error of its sum, with a soft
  /// cap by 4 units of that; a probability by twice that relatively, by its rounding to bf16 and by
  /// the sum of all. A distance is off by a score's error. Less a unified maximum, exponentials are
  /// of numbers as large as the distance, each with a rounding of its own.
  std::vector<Expectation> expect(Range rows) override {
    const AttentionDecodeArgs operands = args(Side::host);
    std::vector<Expectation> result{Expectation(out_, rows)};
    std::vector<double> distances(static_cast<size_t>(rows.size() * case_.query_heads));
    reference::attention_decode(operands, rows, result[0].value.data(), result[0].tolerance.data(),
                                distances.data());
    std::vector<double> errors;
    size_t i = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t sequence = r / case_.tokens;
      const Range keys = decode_keys(operands, operands.lengths[sequence], r % case_.tokens);
      for (int64_t h = 0; h < case_.query_heads; ++h) {
        const double longest = longest_key(operands, sequence, keys, h);
        const double size = operands.scale * length(q_.in(), r, h * case_.head_dim) * longest;
        const double score_error = sum_tolerance(case_.head_dim) * size +
                                   4 * 0x1p-24 * (case_.soft_cap + std::min(size, 2e3));
        errors.push_back(score_error);
        const double share =
            2 * score_error + 2 * sum_tolerance(keys.size()) + 8 * 0x1p-24 + roundoff(DType::bf16);
        for (int64_t c = 0; c < case_.head_dim; ++c, ++i) {
          result[0].tolerance[i] *= share;
        }
      }
    }
    // Scores that are far apart have weights below the smallest f32: zeros, which make NaN of an
    // infinite value. What is finite has to be so, all the same.
    if (case_.unified == Unified::far) {
      result[0].any_infinity = true;
      for (i = 0; i < result[0].value.size(); ++i) {
        if (std::isfinite(result[0].value[i])) {
          result[0].tolerance[i] = std::min(result[0].tolerance[i], 1e300);
        }
      }
    }
    result[0].allow_rounding();
    if (distances_ != nullptr) {
      Expectation& of_distances = result.emplace_back(*distances_, rows);
      of_distances.value = std::move(distances);
      of_distances.tolerance = std::move(errors);
      of_distances.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    const Range tasks = share(case_.batch * case_.kv_heads, piece);
    for (int64_t i = tasks.begin; i < tasks.end; ++i) {
      const int64_t sequence = i / case_.kv_heads;
      const int64_t head = i % case_.kv_heads;
      cpu::attention_decode(args(Side::host), {sequence, sequence + 1}, {head, head + 1},
                            scratch(piece));
    }
  }

  size_t scratch_bytes() const override {
    return cpu::attention_decode_scratch_bytes(args(Side::host));
  }

  Work work() const override {
    const AttentionDecodeArgs operands = args(Side::host);
    double read = 0;
    double seen = 0;
    for (int64_t i = 0; i < case_.batch; ++i) {
      const int64_t first = decode_keys(operands, operands.lengths[i], 0).begin;
      read += static_cast<double>(operands.lengths[i] - first);
      for (int64_t t = 0; t < case_.tokens; ++t) {
        seen += static_cast<double>(decode_keys(operands, operands.lengths[i], t).size());
      }
    }
    return {.bytes = 4 * read * static_cast<double>(case_.kv_heads * case_.head_dim) +
                     static_cast<double>(q_.bytes() + out_.bytes()),
            .flops = 4 * seen * static_cast<double>(q_.columns()),
            .peak = Peak::bf16};
  }

  Plan plan(const DeviceInfo& device) const override {
    // A weight of zero times NaN is NaN.
    if (case_.tokens > 1 && !finite()) {
      return {.why = "values that are not finite reach query tokens that do not see them"};
    }
    return KernelTrial::plan(device);
  }

 protected:
  AttentionDecodeArgs args(Side side) const override {
    AttentionDecodeArgs args;
    args.batch = case_.batch;
    args.tokens = case_.tokens;
    args.query_heads = case_.query_heads;
    args.kv_heads = case_.kv_heads;
    args.head_dim = case_.head_dim;
    args.q = q_.in(side);
    args.cache = {.keys = keys_.in(side).data,
                  .values = values_.in(side).data,
                  .blocks = blocks_,
                  .block_rows = block_rows_,
                  .head_stride = (block_rows_ + gap_rows()) * case_.head_dim};
    if (case_.paged) {
      args.cache.tables = static_cast<const int32_t*>(tables_.in(side).data);
      args.cache.table_stride = pages_;
    }
    args.lengths = static_cast<const int32_t*>(lengths_.in(side).data);
    args.scale = 1.5f / std::sqrt(static_cast<float>(case_.head_dim));
    args.soft_cap = case_.soft_cap;
    args.window = case_.window;
    args.sinks = case_.sinks ? sinks_.vector(side) : ConstVector{};
    args.unified = case_.unified != Unified::none;
    args.unified_maximum = args.unified ? 0.25f : 0;
    args.out = out_.out(side);
    args.distances = distances_ != nullptr ? static_cast<float*>(distances_->data(side)) : nullptr;
    return args;
  }

 private:
  /// Strides are multiples of 16 bytes.
  int64_t gap() const { return case_.use == Use::check ? 8 : 0; }
  int64_t gap_rows() const { return case_.paged ? 0 : 1; }

  Tensor& cache(const char* name, Random& random) {
    return input(name, blocks_ * case_.kv_heads * (block_rows_ + gap_rows()), case_.head_dim,
                 DType::bf16, random);
  }

  /// NaN, where no key is: the first position behind the last key, and a page that nobody has.
  void poison_unused() {
    const AttentionDecodeArgs operands = args(Side::host);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; i < case_.batch; ++i) {
      const int64_t behind = operands.lengths[i];
      if (case_.paged && behind % kKvPage == 0) {
        continue;
      }
      for (int64_t h = 0; h < case_.kv_heads; ++h) {
        const int64_t row =
            operands.cache.place(i, behind, h, case_.kv_heads, case_.head_dim) / case_.head_dim;
        for (int64_t c = 0; c < case_.head_dim; ++c) {
          keys_.set(row, c, nan);
          values_.set(row, c, nan);
        }
      }
    }
  }

  double length(const ConstMatrix& x, int64_t r, int64_t first) const {
    double squares = 0;
    for (int64_t c = first; c < first + case_.head_dim; ++c) {
      squares += element(x, r, c) * element(x, r, c);
    }
    return std::sqrt(squares);
  }

  double longest_key(const AttentionDecodeArgs& operands, int64_t sequence, Range keys,
                     int64_t head) const {
    double longest = 0;
    const int64_t kv_head = head / (case_.query_heads / case_.kv_heads);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      const int64_t row =
          operands.cache.place(sequence, key, kv_head, case_.kv_heads, case_.head_dim) /
          case_.head_dim;
      longest = std::max(longest, length(keys_.in(), row, 0));
    }
    return longest;
  }

  bool finite() const {
    const AttentionDecodeArgs operands = args(Side::host);
    bool all = true;
    for (int64_t i = 0; i < case_.batch; ++i) {
      for (int64_t p = decode_keys(operands, operands.lengths[i], 0).begin; p < operands.lengths[i];
           ++p) {
        for (int64_t h = 0; h < case_.kv_heads; ++h) {
          const int64_t at = operands.cache.place(i, p, h, case_.kv_heads, case_.head_dim);
          for (int64_t c = 0; c < case_.head_dim; ++c) {
            all = all && std::isfinite(element(values_.data(), DType::bf16, at + c));
          }
        }
      }
    }
    return all;
  }

  Case case_;
  int64_t block_rows_;
  int64_t pages_;  ///< of the longest sequence
  int64_t blocks_;
  Tensor& q_;
  Tensor& keys_;
  Tensor& values_;
  Tensor& sinks_;
  Tensor& tables_;
  Tensor& lengths_;
  Tensor& out_;
  Tensor* distances_ = nullptr;
};

}  // namespace

Operation attention_decode() {
  return operation_of<AttentionDecodeTrial, Case>("attention_decode", kCases);
}

}  // namespace weft::trial

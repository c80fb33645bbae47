#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "base/divide.h"
#include "base/fp8.h"
#include "ops/harness/trial.h"
#include "ops/mla_decode/op.h"

namespace weft::trial {
namespace {

constexpr Word<DType> kCaches[] = {{"bf16", DType::bf16}, {"e4m3fn", DType::e4m3fn}};

struct Case {
  Use use;
  int64_t batch;
  int64_t length;
  int64_t tokens;
  int64_t heads;
  DType cache;
  DType out;
  bool paged = false;
  bool ragged = false;  ///< lengths from 0 to `length`
  bool owners = false;  ///< blocks in another order than sequences; a row less of each length
  bool run = false;     ///< of one sequence of `length` keys in the end
  bool alone = false;
  bool unturned = false;  ///< keys are turned as they are read

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("batch", batch, {.most = kLatentSequences});
    v.size("length", length);
    v.size("tokens", tokens, {.most = kLatentTokens});
    v.size("heads", heads, {.most = kLatentHeads});
    v.word("cache", cache, kCaches);
    v.word("out", out, kFloats);
    v.flag("paged", paged);
    v.flag("ragged", ragged);
    v.flag("owners", owners);
    v.flag("run", run);
    v.flag("alone", alone);
    v.flag("unturned", unturned);
  }
  std::string_view conflict() const {
    return paged && (owners || run)           ? "pages have no owners and no runs"
           : owners && run                    ? "a run has one block"
           : run && ragged                    ? "lengths of a run are what they are"
           : run && batch * tokens > length   ? "a run has at most as many tokens as keys"
           : unturned && cache != DType::bf16 ? "rows in fp8 are turned"
                                              : "";
  }
};

constexpr Case kCases[] = {
#include "ops/mla_decode/cases.inc"
};

class MlaDecodeTrial : public KernelTrial<MlaDecodeArgs> {
 public:
  MlaDecodeTrial(const Case& c, Random& random)
      : KernelTrial(mla_decode_kernel),
        case_(c),
        // One row and a gap more than a sequence has in its piece, a few pages more than are used.
        block_rows_(c.paged ? kKvPage : c.length + 1),
        block_stride_(block_rows_ + (c.paged ? 0 : 2)),
        pages_(ceil_div(c.length, kKvPage)),
        blocks_(c.paged ? c.batch * pages_ + 3
                : c.run ? 1
                        : c.batch),
        q_(input("q", c.batch * c.tokens, c.heads * kLatentRow, DType::bf16, random, 1, gap())),
        // Rows in e4m3fn have parts of several formats: as pairs of bytes.
        cache_(add("cache", Tensor::Role::input, blocks_ * block_stride_,
                   c.cache == DType::bf16 ? kLatentRow : kLatentFp8Bytes / 2, DType::bf16)),
        tables_(add("tables", Tensor::Role::index, c.paged ? c.batch : 0, pages_, DType::f32)),
        lengths_(add("lengths", Tensor::Role::index, 1, c.run ? 0 : c.batch, DType::f32)),
        owners_(add("owners", Tensor::Role::index, 1, c.owners ? c.batch : 0, DType::f32)),
        angles_(add("angles", Tensor::Role::input, c.unturned ? c.length : 0, kLatentTurned,
                    DType::bf16)),
        out_(output("out", c.batch * c.tokens, c.heads * kLatentRank, c.out, gap())),
        sums_(output("sums", c.batch * c.tokens, c.heads, DType::f32)) {
    auto* lengths = static_cast<int32_t*>(lengths_.data());
    for (int64_t i = 0; i < c.batch && c.owners; ++i) {
      static_cast<int32_t*>(owners_.data())[i] = static_cast<int32_t>(c.batch - 1 - i);
    }
    for (int64_t i = 0; i < c.batch && !c.run; ++i) {
      // Among those that differ, no key and one key.
      const int64_t length = !c.ragged || i + 1 == c.batch ? c.length
                             : i < 2                       ? i
                                                           : random.below(c.length + 1);
      lengths[i] = static_cast<int32_t>(length - more());
    }
    std::vector<int32_t> pages(static_cast<size_t>(blocks_));
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = 1; c.paged && i < pages.size(); ++i) {
      std::swap(pages[i], pages[static_cast<size_t>(random.below(static_cast<int64_t>(i) + 1))]);
    }
    for (int64_t i = 0; c.paged && i < c.batch * pages_; ++i) {
      const bool used = i % pages_ * kKvPage < lengths[i / pages_] + more();
      static_cast<int32_t*>(tables_.data())[i] = used ? pages[static_cast<size_t>(i)] : -1;
    }
    for (int64_t p = 0; p < angles_.rows(); ++p) {
      for (int64_t i = 0; i < kLatentTurned / 2; ++i) {
        const float angle = 4 * random.normal();
        angles_.set(p, i, std::cos(angle));
        angles_.set(p, kLatentTurned / 2 + i, std::sin(angle));
      }
    }
    fill_rows(random);
  }

  int64_t rows() const override { return q_.rows(); }

  /// As attention's (ops/attention/trial.cc): a score is off by the error of its sum, a probability
  /// by twice that relatively, by its rounding to bf16 and by the sum of all; a logarithm of a sum
  /// by the score's error and the sum's.
  std::vector<Expectation> expect(Range rows) override {
    const MlaDecodeArgs operands = args(Side::host);
    std::vector<Expectation> result{Expectation(out_, rows), Expectation(sums_, rows)};
    reference::mla_decode(operands, rows, result[0].value.data(), result[0].tolerance.data(),
                          result[1].value.data());
    size_t i = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t sequence = r / case_.tokens;
      const int64_t keys = latent_keys(operands.length(sequence), case_.tokens, r % case_.tokens);
      const double longest = longest_key(operands, sequence, keys);
      for (int64_t h = 0; h < case_.heads; ++h) {
        double squares = 0;
        for (int64_t c = h * kLatentRow; c < (h + 1) * kLatentRow; ++c) {
          squares += q_.get(r, c) * q_.get(r, c);
        }
        const double score_error =
            operands.scale * sum_tolerance(kLatentRow) * std::sqrt(squares) * longest;
        const double share =
            2 * score_error + 2 * sum_tolerance(keys) + 8 * 0x1p-24 + roundoff(DType::bf16);
        for (int64_t c = 0; c < kLatentRank; ++c, ++i) {
          result[0].tolerance[i] *= share;
        }
        const auto at = static_cast<size_t>((r - rows.begin) * case_.heads + h);
        result[1].tolerance[at] = score_error + sum_tolerance(keys) + 8 * 0x1p-24 +
                                  4 * 0x1p-24 * std::fabs(result[1].value[at]);
      }
    }
    result[0].allow_rounding();
    result[1].allow_rounding();
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    // Tasks are (sequence, head), those of a sequence side by side.
    const Range tasks = share(case_.batch * case_.heads, piece);
    for (int64_t i = tasks.begin; i < tasks.end;) {
      const int64_t sequence = i / case_.heads;
      const int64_t first = i % case_.heads;
      const int64_t count = std::min(case_.heads - first, tasks.end - i);
      cpu::mla_decode(args(Side::host), {sequence, sequence + 1}, {first, first + count},
                      scratch(piece));
      i += count;
    }
  }

  size_t scratch_bytes() const override { return cpu::mla_decode_scratch_bytes(args(Side::host)); }

  Work work() const override {
    const MlaDecodeArgs operands = args(Side::host);
    double read = 0;
    double seen = 0;
    for (int64_t i = 0; i < case_.batch; ++i) {
      read += case_.run && i + 1 < case_.batch ? 0 : static_cast<double>(operands.length(i));
      for (int64_t t = 0; t < case_.tokens; ++t) {
        seen += static_cast<double>(latent_keys(operands.length(i), case_.tokens, t));
      }
    }
    return {.bytes = read * static_cast<double>(operands.cache.row_bytes()) +
                     static_cast<double>(q_.bytes() + out_.bytes()),
            .flops = 2 * seen * static_cast<double>(case_.heads * (kLatentRow + kLatentRank)),
            .peak = Peak::bf16};
  }

  Plan plan(const DeviceInfo& device) const override {
    // A weight of zero times NaN is NaN.
    if (case_.tokens > 1 && !finite()) {
      return {.why = "rows that are not finite reach query tokens that do not see them"};
    }
    return KernelTrial::plan(device);
  }

 protected:
  MlaDecodeArgs args(Side side) const override {
    MlaDecodeArgs args;
    args.batch = case_.batch;
    args.tokens = case_.tokens;
    args.heads = case_.heads;
    args.q = q_.in(side);
    args.cache = {.rows = cache_.in(side).data,
                  .dtype = case_.cache,
                  .blocks = blocks_,
                  .block_rows = block_rows_,
                  .block_stride = block_stride_};
    if (case_.paged) {
      args.cache.tables = static_cast<const int32_t*>(tables_.in(side).data);
      args.cache.table_stride = pages_;
    }
    if (case_.owners) {
      args.cache.owners = static_cast<const int32_t*>(owners_.in(side).data);
    }
    if (case_.unturned) {
      args.cache.angles = angles_.in(side).data;
    }
    args.lengths = static_cast<const int32_t*>(lengths_.in(side).data);
    args.more = more();
    args.run = case_.run;
    args.alone = case_.alone;
    args.scale = 1.5f / std::sqrt(static_cast<float>(kLatentRow));
    args.out = out_.out(side);
    args.sums = static_cast<float*>(sums_.data(side));
    return args;
  }

 private:
  int64_t more() const {
    return case_.owners ? 1 : case_.run ? case_.length - (case_.batch - 1) * case_.tokens : 0;
  }
  /// Strides are multiples of 16 bytes.
  int64_t gap() const { return case_.use == Use::check ? 8 : 0; }

  /// Fills the rows of keys; NaN stays in all others. From tables, since there can be gigabytes.
  void fill_rows(Random& random) {
    constexpr int64_t kTable = int64_t{1} << 16;
    std::vector<bf16> numbers(kTable);
    std::generate(numbers.begin(), numbers.end(), [&] { return to_bf16(random.normal()); });
    std::vector<e4m3fn> codes(kTable);
    std::generate(codes.begin(), codes.end(),
                  [&] { return saturate_to<e4m3fn>(100 * random.normal()); });
    const auto some = [&](const auto& table, int64_t count) {
      return table.data() + random.below(kTable - count);
    };
    const MlaDecodeArgs operands = args(Side::host);
    const int64_t row_bytes = operands.cache.row_bytes();
    for (int64_t i = case_.run ? case_.batch - 1 : 0; i < case_.batch; ++i) {
      for (int64_t position = 0; position < operands.length(i); ++position) {
        auto* to = static_cast<std::byte*>(cache_.data()) + operands.place(i, position) * row_bytes;
        if (case_.cache == DType::bf16) {
          std::memcpy(to, some(numbers, kLatentRow), 2 * kLatentRow);
          continue;
        }
        std::memcpy(to, some(codes, kLatentRank), kLatentRank);
        for (int64_t s = 0; s < kLatentScales; ++s) {
          const float scale = 0.01f * (1 + std::fabs(random.normal()));
          std::memcpy(to + kLatentRank + 4 * s, &scale, sizeof(scale));
        }
        std::memcpy(to + kLatentRank + 4 * kLatentScales, some(numbers, kLatentTurned),
                    2 * kLatentTurned);
      }
    }
  }

  template <class F>
  void for_elements(const MlaDecodeArgs& operands, int64_t sequence, int64_t position,
                    const F& f) const {
    const int64_t row = operands.place(sequence, position);
    for (int64_t c = 0; c < kLatentRow; ++c) {
      f(reference::latent_element(operands.cache, row, c));
    }
  }

  double longest_key(const MlaDecodeArgs& operands, int64_t sequence, int64_t keys) const {
    double longest = 0;
    for (int64_t position = 0; position < keys; ++position) {
      double squares = 0;
      for_elements(operands, sequence, position, [&](double x) { squares += x * x; });
      longest = std::max(longest, squares);
    }
    return std::sqrt(longest);
  }

  bool finite() const {
    const MlaDecodeArgs operands = args(Side::host);
    bool all = true;
    for (int64_t i = 0; i < case_.batch; ++i) {
      const int64_t length = operands.length(i);
      // Those that not every query token sees.
      for (int64_t p = std::max<int64_t>(0, length - case_.tokens + 1); p < length; ++p) {
        for_elements(operands, i, p, [&](double x) { all = all && std::isfinite(x); });
        for (int64_t c = 0; c < kLatentTurned && case_.unturned; ++c) {
          all = all && std::isfinite(angles_.get(p, c));
        }
      }
    }
    return all;
  }

  Case case_;
  int64_t block_rows_;
  int64_t block_stride_;
  int64_t pages_;  ///< of the longest sequence
  int64_t blocks_;
  Tensor& q_;
  Tensor& cache_;
  Tensor& tables_;
  Tensor& lengths_;
  Tensor& owners_;
  Tensor& angles_;
  Tensor& out_;
  Tensor& sums_;
};

}  // namespace

Operation mla_decode() { return operation_of<MlaDecodeTrial, Case>("mla_decode", kCases); }

}  // namespace weft::trial

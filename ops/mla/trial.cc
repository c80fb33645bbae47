#include <cmath>
#include <numeric>
#include <vector>

#include "ops/harness/prefill_trial.h"
#include "ops/mla/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t rows;
  int64_t heads;
  int64_t rank;
  int64_t unturned;
  int64_t turned;
  int64_t value;
  DType w;
  DType out;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("rows", rows);
    v.size("heads", heads);
    v.size("rank", rank, {.least = 2, .unit = 2});
    v.size("unturned", unturned);
    v.size("turned", turned, {.least = 2, .unit = 2});
    v.size("value", value);
    v.word("w", w, kFileFormats);
    v.word("out", out, kFileFloats);
  }
  std::string_view conflict() const { return ""; }
};

constexpr Case kCases[] = {
#include "ops/mla/cases.inc"
};

/// A row appended, queries into its space, and values of what was attended to: each from its own
/// inputs.
class MlaTrial : public PrefillTrial {
 public:
  MlaTrial(const Case& c, Random& random)
      : x_(input("x", c.rows, c.rank + c.turned, DType::f32, random, 2, kGap)),
        norm_(input("norm", 1, c.rank, c.w, random)),
        q_(input("q", c.rows, c.heads * (c.unturned + c.turned), DType::f32, random, 1, kGap)),
        w_(input("w", c.heads * (c.unturned + c.value), c.rank, c.w, random, 0.3F)),
        attended_(input("attended", c.rows, c.heads * (c.rank + c.turned), DType::f32, random)),
        angles_(input("angles", 2 * c.rows, c.turned / 2, DType::f32, random, 0.7F)),
        cache_(output("cache", c.rows, c.rank + c.turned, c.out)),
        queries_(output("queries", c.rows, c.heads * (c.rank + c.turned), c.out, kGap)),
        values_(output("values", c.rows, c.heads * c.value, c.out, kGap)),
        positions_(static_cast<size_t>(c.rows)) {
    std::iota(positions_.begin(), positions_.end(), 0);
    const auto* cosines = static_cast<const float*>(angles_.data());
    const float* sines = cosines + c.rows * c.turned / 2;
    append_ = {.x = x_.in(),
               .norm = norm_.vector(),
               .rank = c.rank,
               .turned = c.turned,
               .epsilon = 1e-6F,
               .positions = positions_.data(),
               .cosines = cosines,
               .sines = sines,
               .cache = {.keys = cache_.data(), .dtype = c.out}};
    const LatentHeads of{c.heads, c.rank, c.unturned, c.turned, c.value, w_.in()};
    into_ = {.of = of, .q = q_.in(), .cosines = cosines, .sines = sines, .out = queries_.out()};
    out_ = {.of = of, .a = attended_.in(), .pitch = c.rank + c.turned, .out = values_.out()};
  }

  int64_t rows() const override { return x_.rows(); }

  /// Sums err by their magnitudes, a norm by half of its sum's error and eight roundings, what RoPE
  /// turns by three.
  std::vector<Expectation> expect(Range rows) override {
    const LatentHeads& of = into_.of;
    std::vector<Expectation> result{Expectation(cache_, rows), Expectation(queries_, rows),
                                    Expectation(values_, rows)};
    reference::latent_append(append_, rows, result[0].value.data());
    reference::latent_queries(into_, rows, {0, of.heads}, result[1].value.data());
    reference::latent_values(out_, rows, {0, of.heads}, result[2].value.data());
    const int64_t row = of.rank + of.turned;
    for (int64_t r = 0; r < rows.size(); ++r) {
      for (int64_t c = 0; c < row; ++c) {
        const auto i = static_cast<size_t>(r * row + c);
        result[0].tolerance[i] =
            c < of.rank ? (sum_tolerance(of.rank) / 2 + 9 * 0x1p-24) * std::fabs(result[0].value[i])
                        : turn_error(x_, rows.begin + r, of.rank, c - of.rank);
      }
      for (int64_t h = 0; h < of.heads; ++h) {
        expect_head(rows.begin + r, r, h, result[1], result[2]);
      }
    }
    for (Expectation& each : result) {
      each.allow_rounding();
    }
    return result;
  }

  void run(int /*phase*/, Piece piece) override {
    cpu::latent_append(append_, share(rows(), piece));
    cpu::latent_queries(into_, {0, rows()}, share(into_.of.heads, piece));
    cpu::latent_values(out_, {0, rows()}, share(into_.of.heads, piece), scratch(piece));
  }
  size_t scratch_bytes() const override { return cpu::latent_values_scratch_bytes(out_, rows()); }

  Work work() const override {
    return {.bytes = static_cast<double>(x_.bytes() + q_.bytes() + w_.bytes() + attended_.bytes() +
                                         cache_.bytes() + queries_.bytes() + values_.bytes()),
            .flops = 2 * static_cast<double>(rows() * w_.rows() * w_.columns())};
  }

 protected:
  std::string_view refuse(Arch arch) const override {
    const ChunkKernels& kernels = *chunk_kernels(arch);
    for (const std::string_view why :
         {kernels.refuse_latent_append(append_), kernels.refuse_latent_queries(into_),
          kernels.refuse_latent_values(out_)}) {
      if (!why.empty()) {
        return why;
      }
    }
    return {};
  }

  Status launch_rows(Arch arch, Stream stream) override {
    const ChunkKernels& kernels = *chunk_kernels(arch);
    const auto* cosines = static_cast<const float*>(angles_.in(Side::device).data);
    const float* sines = cosines + rows() * append_.turned / 2;
    LatentAppendArgs append = append_;
    append.x = x_.in(Side::device);
    append.norm = norm_.vector(Side::device);
    append.cosines = cosines;
    append.sines = sines;
    append.cache.keys = cache_.out(Side::device).data;
    WEFT_TRY(kernels.latent_append(append, rows(), 0, stream, {}));
    LatentQueriesArgs into = into_;
    into.of.w = w_.in(Side::device);
    into.q = q_.in(Side::device);
    into.cosines = cosines;
    into.sines = sines;
    into.out = queries_.out(Side::device);
    WEFT_TRY(kernels.latent_queries(into, rows(), stream));
    LatentValuesArgs out = out_;
    out.of.w = into.of.w;
    out.a = attended_.in(Side::device);
    out.out = values_.out(Side::device);
    return kernels.latent_values(out, rows(), stream);
  }

 private:
  static constexpr int64_t kGap = 8;

  static double turn_error(const Tensor& x, int64_t r, int64_t first, int64_t c) {
    const int64_t pair = first + c / 2 * 2;
    return 0x1p-21 * (std::fabs(x.get(r, pair)) + std::fabs(x.get(r, pair + 1)));
  }
  void expect_head(int64_t r, int64_t local, int64_t h, Expectation& queries,
                   Expectation& values) const {
    const LatentHeads& of = into_.of;
    const int64_t row = of.rank + of.turned;
    const int64_t q = h * (of.unturned + of.turned);
    for (int64_t c = 0; c < row; ++c) {
      double magnitude = 0;
      for (int64_t i = 0; i < of.unturned && c < of.rank; ++i) {
        magnitude += std::fabs(q_.get(r, q + i) * w_.get(of.key_row(h) + i, c));
      }
      queries.tolerance[static_cast<size_t>((local * of.heads + h) * row + c)] =
          c < of.rank ? sum_tolerance(of.unturned) * magnitude
                      : turn_error(q_, r, q + of.unturned, c - of.rank);
    }
    for (int64_t v = 0; v < of.value; ++v) {
      double magnitude = 0;
      for (int64_t c = 0; c < of.rank; ++c) {
        magnitude += std::fabs(attended_.get(r, h * row + c) * w_.get(of.value_row(h) + v, c));
      }
      values.tolerance[static_cast<size_t>((local * of.heads + h) * of.value + v)] =
          sum_tolerance(of.rank) * magnitude;
    }
  }

  Tensor& x_;
  Tensor& norm_;
  Tensor& q_;
  Tensor& w_;
  Tensor& attended_;
  Tensor& angles_;
  Tensor& cache_;
  Tensor& queries_;
  Tensor& values_;
  std::vector<int32_t> positions_;
  LatentAppendArgs append_;
  LatentQueriesArgs into_;
  LatentValuesArgs out_;
};

}  // namespace

Operation mla() { return operation_of<MlaTrial, Case>("mla", kCases); }

}  // namespace weft::trial

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "ops/harness/trial.h"
#include "ops/mla_layer/op.h"

namespace weft::trial {
namespace {

struct Case {
  Use use;
  int64_t batch;
  int64_t dim;
  int64_t q_rank;
  int64_t heads;
  int64_t prefill;
  int64_t capacity;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("batch", batch, {.most = kLatentSequences});
    v.size("dim", dim, {.least = 8, .unit = 8});
    v.size("q_rank", q_rank, {.least = 8, .unit = 8});
    v.size("heads", heads, {.most = kLatentHeads});
    v.size("prefill", prefill, {.least = 0});
    v.size("capacity", capacity, {.most = kLayerCapacity});
  }
  std::string_view conflict() const {
    return capacity <= prefill ? "the new row needs room in the cache" : "";
  }
};

constexpr Case kCases[] = {
#include "ops/mla_layer/cases.inc"
};

class MlaLayerTrial : public Trial {
 public:
  MlaLayerTrial(const Case& c, Random& random)
      : case_(c),
        x_(input("x", c.batch, c.dim, DType::bf16, random, 1, gap())),
        q_down_(weight("q_down", c.q_rank, c.dim, random)),
        q_up_(weight("q_up", c.heads * kLayerQuery, c.q_rank, random)),
        kv_down_(weight("kv_down", kLatentRow, c.dim, random)),
        kv_up_(weight("kv_up", c.heads * kLayerHeadRows, kLatentRank, random)),
        o_(weight("o", c.dim, c.heads * kLayerValue, random)),
        // NaN stays in rows that are not there yet.
        cache_(add("cache", Tensor::Role::inout, c.batch * c.capacity, kLatentRow, DType::bf16)),
        angles_(add("angles", Tensor::Role::input, c.prefill + 1, kLatentTurned, DType::bf16)),
        out_(output("out", c.batch, c.dim, DType::bf16, gap())),
        buffers_(mla_layer_buffer_bytes(args(Side::host)) + kAligned) {
    mla_layer_angles(c.prefill + 1, static_cast<bf16*>(angles_.data()));
    // From a table, since there can be a gigabyte.
    std::vector<bf16> numbers(1 << 16);
    std::generate(numbers.begin(), numbers.end(), [&] { return to_bf16(random.normal()); });
    for (int64_t i = 0; i < c.batch * c.prefill; ++i) {
      const int64_t row = i / c.prefill * c.capacity + i % c.prefill;
      const int64_t first = random.below(static_cast<int64_t>(numbers.size()) - kLatentRow);
      std::copy_n(numbers.begin() + first, kLatentRow,
                  static_cast<bf16*>(cache_.data()) + row * kLatentRow);
    }
  }

  int64_t rows() const override { return case_.batch; }

  /// Roundings between the steps may fall to either side, where sums differ in the last bits; all
  /// together they move a result as far as not to round would. Of that, which is alike for all of a
  /// token's results, the root of the mean square is taken, and eight times it: what a normal
  /// number passes less than once in 10^14 times.
  std::vector<Expectation> expect(Range sequences) override {
    const MlaLayerArgs operands = args(Side::host);
    std::vector<Expectation> result{Expectation(out_, sequences)};
    Expectation& out = result[0];
    std::vector<double> new_rows(static_cast<size_t>(sequences.size() * kLatentRow));
    std::vector<double> exact(out.value.size());
    reference::mla_layer(operands, sequences, false, exact.data(), new_rows.data());
    reference::mla_layer(operands, sequences, true, out.value.data(), new_rows.data());
    for (size_t first = 0; first < exact.size(); first += static_cast<size_t>(case_.dim)) {
      double squares = 0;
      for (size_t i = first; i < first + static_cast<size_t>(case_.dim); ++i) {
        const double difference = out.value[i] - exact[i];
        squares += std::isfinite(difference) ? difference * difference : 0;
      }
      const double tolerance = 8 * std::sqrt(squares / static_cast<double>(case_.dim));
      for (size_t i = first; i < first + static_cast<size_t>(case_.dim); ++i) {
        out.tolerance[i] = std::isinf(out.value[i]) ? kInfinity : tolerance;
      }
    }
    out.any_infinity = true;  // of what sign, a value near zero decides
    out.allow_rounding();
    const GemmBf16Args kv_down =
        MlaLayerSteps(operands, MlaLayerBuffers(operands, nullptr), {}).kv_down;
    for (int64_t i = sequences.begin; i < sequences.end; ++i) {
      expect_cache(operands, kv_down, i, new_rows.data() + (i - sequences.begin) * kLatentRow,
                   result);
    }
    return result;
  }

  int phases() const override { return cpu::kMlaLayerSteps; }
  void run(int phase, Piece piece) override {
    const MlaLayerArgs operands = args(Side::host);
    const auto address = reinterpret_cast<uintptr_t>(buffers_.data());
    const MlaLayerBuffers buffers(operands,
                                  buffers_.data() + (kAligned - address % kAligned) % kAligned);
    cpu::mla_layer(operands, buffers, phase, piece.index, piece.count, scratch(piece));
  }
  size_t scratch_bytes() const override { return cpu::mla_layer_scratch_bytes(args(Side::host)); }

  /// Weights and cached rows are read once, the new rows and the results written; arithmetic of the
  /// absorbed form.
  Work work() const override {
    const auto keys = static_cast<double>(case_.batch * (case_.prefill + 1));
    const auto heads = static_cast<double>(case_.heads);
    double bytes = keys * kLatentRow * 2 + static_cast<double>(x_.bytes() + out_.bytes());
    double weights = 0;
    for (const Tensor* each : {&q_down_, &q_up_, &kv_down_, &kv_up_, &o_}) {
      bytes += static_cast<double>(each->bytes());
      weights += static_cast<double>(each->rows() * each->columns());
    }
    return {.bytes = bytes,
            .flops = 2 * static_cast<double>(case_.batch) * weights +
                     2 * keys * heads * (kLatentRow + kLatentRank),
            .peak = Peak::bf16};
  }

  bool has_kernels(Arch arch) const override { return mla_layer_kernels(arch) != nullptr; }
  /// How its attention is cut, which is most of it.
  Plan plan(const DeviceInfo& device) const override {
    if (!has_kernels(device.arch)) {
      return Trial::plan(device);
    }
    const MlaLayerArgs operands = args(Side::host);
    const MlaLayerSteps steps(operands, MlaLayerBuffers(operands, nullptr), {});
    return mla_decode_kernel(device.arch)->plan(steps.attention, device);
  }
  std::vector<Plan> candidates(const DeviceInfo& device) const override {
    const Plan only = plan(device);
    return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
  }

 protected:
  size_t workspace_bytes(const Plan& /*plan*/) const override {
    return *mla_layer_workspace(args(Side::host), device().stream());
  }
  Status launch_on(const Plan& /*plan*/, Workspace workspace, Stream stream) override {
    MlaLayerArgs on_device = args(Side::device);
    on_device.workspace = workspace;
    return mla_layer(on_device, stream);
  }

 private:
  static constexpr uintptr_t kAligned = 256;
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();

  Tensor& weight(const char* name, int64_t rows, int64_t columns, Random& random) {
    return input(name, rows, columns, DType::bf16, random,
                 1 / std::sqrt(static_cast<float>(columns)), gap());
  }

  /// The new row, and that no other changed.
  void expect_cache(const MlaLayerArgs& operands, const GemmBf16Args& kv_down, int64_t sequence,
                    const double* new_row, std::vector<Expectation>& result) {
    Expectation cache(cache_, {sequence * case_.capacity, (sequence + 1) * case_.capacity});
    size_t at = 0;
    for (int64_t r = cache.rows.begin; r < cache.rows.end; ++r) {
      for (int64_t i = 0; i < kLatentRow; ++i, ++at) {
        cache.value[at] = cache_.get(r, i);
        cache.tolerance[at] = 0;
      }
    }
    const auto first = static_cast<size_t>(operands.prefill * kLatentRow);
    std::vector<double> sums(kLatentRow);
    std::vector<double> magnitudes(kLatentRow);
    reference::gemm_bf16(kv_down, {sequence, sequence + 1}, {0, kLatentRow}, sums.data(),
                         magnitudes.data());
    for (int64_t i = 0; i < kLatentRow; ++i) {
      const auto own = static_cast<size_t>(i);
      cache.value[first + own] = new_row[i];
      // Rounded already: another rounding may be the next number.
      cache.tolerance[first + own] = sum_tolerance(case_.dim) * magnitudes[own] +
                                     2 * roundoff(DType::bf16) * std::fabs(new_row[i]);
    }
    result.push_back(std::move(cache));
  }

  MlaLayerArgs args(Side side) const {
    return {.batch = case_.batch,
            .dim = case_.dim,
            .q_rank = case_.q_rank,
            .heads = case_.heads,
            .prefill = case_.prefill,
            .capacity = case_.capacity,
            .x = x_.in(side),
            .q_down = q_down_.in(side),
            .q_up = q_up_.in(side),
            .kv_down = kv_down_.in(side),
            .kv_up = kv_up_.in(side),
            .o = o_.in(side),
            .cache = cache_.data(side),
            .angles = angles_.data(side),
            .constant_weights = true,
            .out = out_.out(side),
            .workspace = {}};
  }

  /// Strides are multiples of 16 bytes.
  int64_t gap() const { return case_.use == Use::check ? 8 : 0; }

  Case case_;
  Tensor& x_;
  Tensor& q_down_;
  Tensor& q_up_;
  Tensor& kv_down_;
  Tensor& kv_up_;
  Tensor& o_;
  Tensor& cache_;
  Tensor& angles_;
  Tensor& out_;
  std::vector<std::byte> buffers_;  ///< on the CPU
};

}  // namespace

Operation mla_layer() { return operation_of<MlaLayerTrial, Case>("mla_layer", kCases); }

}  // namespace weft::trial

#include "engine/cdna/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <utility>
#include <variant>

#include "base/check.h"
#include "engine/cdna/layout.h"
#include "ops/linear/forms/fp8/words.h"
#include "ops/linear/forms/mxfp4/words.h"
#include "ops/linear/forms/packed/windowed.h"

namespace weft::cdna {

using resident::Arena;
using resident::Code;
using resident::Opcode;

namespace {

constexpr int64_t kHalf = kUnitColumns / 2;

WeightForm form_of(const Code& code) { return static_cast<WeightForm>(code.product.weights); }
bool is_drawn(const Code& code) {
  return code.units > 0 && code.product.draw == resident::DrawOf::experts;
}
/// Of the rows of the code's weights.
int weight_k(const Code& code) {
  return is_drawn(code) && code.product.form == resident::RowForm::slots
             ? code.product.slot_elements
             : code.product.k;
}
int64_t stream_bytes(const Code& code) {
  return product_bytes(weight_k(code), code.units, form_of(code)) *
         (is_drawn(code) ? code.product.experts : 1);
}

int parts_of(const Code& code) { return std::max<int>(1, code.product.streamed); }

/// Lists of a product's weights, for each block, part and wave.
uint32_t lists_of(const Code& code, int64_t sequences) {
  return code.units > 0 && form_of(code) == WeightForm::packed
             ? static_cast<uint32_t>(ceil_div(int{code.units}, block_units(sequences)) *
                                     parts_of(code) * kTeamWaves)
             : 0;
}

class Units final : public resident::Target {
 public:
  Units(cdna::Target target, const Program& program, const std::vector<bool>& plain, Lowered& out)
      : target_(target),
        program_(program),
        sequences_(program.sequences),
        plain_(plain),
        mixes_(std::ranges::any_of(program.operations,
                                   [](const Operation& operation) {
                                     return std::holds_alternative<RouteOp>(operation.body);
                                   })),
        out_(out) {}

  resident::Limits limits() const override {
    return {.device = name_of(target_),
            .head_dim = 256,
            .layer_norm = std::numeric_limits<int64_t>::max(),
            .fp8 = true,
            .f16 = true,
            .experts = kMostExperts,
            .chosen = kMostChosen,
            .slot_row = most_elements(target_, 1),
            .mx = mixes_,
            .sinks = mixes_,
            .latent_rank = kLatentRank,
            .latent_turned = kLatentTurned,
            .route_groups = kMostExperts,
            .head_grain = kUnitColumns};
  }
  void begin_product(Code& code, const Tensor& weight) override {
    code.product.weights = static_cast<uint8_t>(form_of_weight(code.operation, weight));
    const int parts = cdna::parts_of(target_, sequences_, code.product.k);
    code.product.streamed = static_cast<uint8_t>(parts > 1 ? parts : 0);
  }
  bool may_join(const Code& code, int32_t operation, const Tensor& weight) const override {
    return form_of(code) == form_of_weight(operation, weight);
  }
  void add_columns(Code& code, const resident::ProductTile& tile) override {
    const bool gated = tile.up.tensor != nullptr;
    const int64_t unit = gated ? kHalf : kUnitColumns;
    const Range columns = tile.columns;
    code.units = static_cast<uint16_t>(code.units + ceil_div(columns.size(), unit));
    for (int64_t c = columns.begin; c < columns.end; c += unit) {
      PackJob job;
      job.k = code.product.k;
      job.form = form_of(code);
      job.operation = tile.operation;
      job.gated = gated;
      for (const int half : {0, 1}) {
        const int64_t first = !gated && half == 1 ? c + kHalf : c;
        job.source[half] = gated && half == 1 ? tile.up.tensor : tile.weight.tensor;
        job.first_row[half] = first;
        job.rows[half] = static_cast<int>(std::clamp<int64_t>(columns.end - first, 0, kHalf));
      }
      if (tile.heads.columns > 0) {
        place_in_head(tile.heads, columns.begin, job);
      }
      units_.push_back(job);
    }
  }
  /// Those of an expert lie one after the other.
  void add_experts(Code& code, Range /*columns*/,
                   std::span<const resident::ProductTile> experts) override {
    for (const resident::ProductTile& tile : experts) {
      code.units = 0;
      add_columns(code, tile);
    }
  }
  int64_t slot_k(int64_t elements) const override {
    return round_up(elements, int64_t{kSlotSteps});
  }
  int64_t end_product(const Code& code, int64_t destination) override {
    if (is_drawn(code)) {
      const int k = weight_k(code);
      int64_t at = destination;
      for (PackJob& job : units_) {
        job.k = k;
        job.destination = at;
        job.block = job.block_units = 1;
        job.part = slices_of(k, job.form);
        at += units_bytes(k, 1, job.form);
        out_.pack.push_back(job);
      }
      units_.clear();
      return stream_bytes(code);
    }
    const int64_t unit_bytes = units_bytes(code.product.k, 1, form_of(code));
    for (int unit = 0; unit < code.units; ++unit) {
      PackJob& job = units_[static_cast<size_t>(unit)];
      job.destination = destination;
      job.unit = unit;
      job.part = part_slices(slices_of(code.product.k), parts_of(code));
      job.block = block_units(sequences_);
      job.block_units = std::min(job.block, code.units - unit / job.block * job.block);
      job.scales = destination + code.units * unit_bytes;
      out_.pack.push_back(job);
    }
    units_.clear();
    return stream_bytes(code);
  }

 private:
  /// A unit's rows, which are of one head. `first`: of the product's columns.
  static void place_in_head(const resident::ProductTile::Heads& heads, int64_t first,
                            PackJob& job) {
    const int64_t head = job.first_row[0] / heads.columns;
    const int64_t begin = head * heads.pitch + heads.first;
    job.head = static_cast<int>(head - first / heads.columns);
    job.across_from = heads.across ? begin : -1;
    for (int64_t& row : job.first_row) {
      row += (heads.across ? 0 : begin) - head * heads.columns;
    }
  }
  WeightForm form_of_weight(int32_t operation, const Tensor& weight) const {
    if (weight.dtype == DType::e4m3fn) {
      return weight.scales.scaling == Scaling::block ? WeightForm::fp8_blocks : WeightForm::fp8;
    }
    if (weight.dtype == DType::f16) {
      return WeightForm::f16;
    }
    if (weight.mx.k > 0) {
      return WeightForm::mx;
    }
    // Which weights of experts are listed for which wave depends on what is drawn.
    const Operation& of = program_.operations[static_cast<size_t>(operation)];
    const auto* down = std::get_if<ExpertsDownOp>(&of.body);
    const bool drawn = std::holds_alternative<ExpertsUpOp>(of.body) ||
                       (down != nullptr && down->weight.role == Role::expert_down);
    const bool plain =
        plain_[static_cast<size_t>(operation)] || drawn || out_.weights != KernelWeights::bf16;
    return plain ? WeightForm::plain : WeightForm::packed;
  }

  const cdna::Target target_;
  const Program& program_;
  const int64_t sequences_;
  const std::vector<bool>& plain_;
  const bool mixes_;
  Lowered& out_;
  std::vector<PackJob> units_;  // of the product that has not ended
};

/// The lists of blocks, made unit by unit.
class Lists {
 public:
  explicit Lists(Streams& out) : out_(out) {}

  /// A unit begins: the first of a block, or the next one.
  void begin(const PackJob& job) {
    if (job.unit % job.block == 0) {
      parts_.assign(static_cast<size_t>(ceil_div(slices_of(job.k), job.part)), {});
    }
  }
  void add(const PackJob& job, int row, int k, uint32_t moved) {
    const int of_block = job.unit % job.block;
    const int part = k / kSliceK / job.part;
    const int first = part * job.part;
    const int slices = std::min(job.part, slices_of(job.k) - first);
    const Runs runs(job.block_units * slices);
    const int slice = of_block * slices + k / kSliceK - first;
    int wave = 0;
    while (runs.first(wave + 1) <= slice) {
      ++wave;
    }
    parts_[static_cast<size_t>(part)][static_cast<size_t>(wave)].push_back(
        {.sums = static_cast<uint32_t>(sums_place(of_block, wave) + row),
         .k = static_cast<uint16_t>(job.head * slices_of(job.k) * kSliceK + k - first * kSliceK),
         .weight = static_cast<uint16_t>(moved)});
  }
  /// All of a unit have been added.
  void end(const PackJob& job) {
    if (job.unit % job.block + 1 < job.block_units) {
      return;
    }
    for (const auto& waves : parts_) {
      for (const std::vector<Listed>& wave : waves) {
        out_.list_begin.push_back(static_cast<uint32_t>(out_.listed.size()));
        append_rounds(wave);
      }
    }
  }

 private:
  /// Puts each where the first round has room that has nothing of its column.
  void append_rounds(const std::vector<Listed>& listed) {
    std::array<uint16_t, block_sums(block_units(1))> next_round = {};  // of a column
    std::vector<std::vector<Listed>> rounds;
    size_t first = 0;  // that has room
    for (const Listed& each : listed) {
      size_t round = std::max<size_t>(first, next_round[each.sums]);
      while (round < rounds.size() && rounds[round].size() == kWaveLanes) {
        ++round;
      }
      rounds.resize(std::max(rounds.size(), round + 1));
      rounds[round].push_back(each);
      next_round[each.sums] = static_cast<uint16_t>(round + 1);
      while (first < rounds.size() && rounds[first].size() == kWaveLanes) {
        ++first;
      }
    }
    for (size_t i = 0; i < rounds.size(); ++i) {
      if (i + 1 < rounds.size()) {
        rounds[i].resize(kWaveLanes, {.sums = Listed::kNoSums});
      }
      out_.listed.insert(out_.listed.end(), rounds[i].begin(), rounds[i].end());
    }
  }

  Streams& out_;
  std::vector<std::array<std::vector<Listed>, kTeamWaves>> parts_;  // of the block
};

/// Row `column` of a unit's weights; null: there is none.
const std::byte* row_of(const PackJob& job, int column) {
  const auto half = static_cast<size_t>(column / kHalf);
  const int row = column % static_cast<int>(kHalf);
  return row < job.rows[half] ? static_cast<const std::byte*>(job.source[half]->data) +
                                    (job.first_row[half] + row) * job.k *
                                        static_cast<int64_t>(size_of(job.source[half]->dtype))
                              : nullptr;
}
constexpr int kChunk = 8;  ///< elements of a lane
/// The lane of a slice that has elements k .. k + 7 of a row.
constexpr int lane_of(int k, int row) { return k % kSliceK / kChunk * kUnitColumns + row; }

/// Row `column` of a unit's weights of 16 bits, up to whole slices; false: there is none.
bool copy_row(const PackJob& job, int column, std::vector<uint16_t>& row) {
  row.assign(static_cast<size_t>(slices_of(job.k)) * kSliceK, 0);
  if (job.across_from < 0) {
    const std::byte* from = row_of(job, column);
    if (from != nullptr) {
      std::memcpy(row.data(), from, static_cast<size_t>(job.k) * 2);
    }
    return from != nullptr;
  }
  const auto half = static_cast<size_t>(column / kHalf);
  const int of_half = column % static_cast<int>(kHalf);
  if (of_half >= job.rows[half]) {
    return false;
  }
  const Tensor& tensor = *job.source[half];
  const auto* data = reinterpret_cast<const uint16_t*>(tensor.data);
  for (int k = 0; k < job.k; ++k) {
    row[static_cast<size_t>(k)] =
        data[(job.across_from + k) * tensor.columns() + job.first_row[half] + of_half];
  }
  return true;
}

void pack_plain(const PackJob& job, std::byte* packed) {
  std::vector<uint16_t> row;
  for (int column = 0; column < kUnitColumns; ++column) {
    copy_row(job, column, row);
    for (int k = 0; k < std::ssize(row); k += kChunk) {
      std::memcpy(
          packed + job.place_of(k / kSliceK) + lane_of(k, column) * lane_bytes(WeightForm::plain),
          &row[static_cast<size_t>(k)], kChunk * 2);
    }
  }
}

void pack_fp8(const PackJob& job, std::byte* packed) {
  const auto put_scale = [&](int64_t at, float scale) {
    scale *= kFp8RowScale;
    std::memcpy(packed + job.scales + at, &scale, sizeof(scale));
  };
  const auto scale_of = [&](int column, int k) {
    const auto half = static_cast<size_t>(column / kHalf);
    return row_of(job, column) == nullptr
               ? 0
               : job.source[half]->scales.at(job.first_row[half] + column % kHalf, k);
  };
  for (int column = 0; column < kUnitColumns; ++column) {
    const std::byte* from = row_of(job, column);
    for (int k = 0; k < slices_of(job.k) * kSliceK; k += kChunk) {
      std::array<uint8_t, kChunk> codes = {};
      if (from != nullptr && k < job.k) {
        std::memcpy(codes.data(), from + k, kChunk);
      }
      const uint32_t words[2] = {fp8_words::fp8_word(codes[0], codes[1], codes[2], codes[3]),
                                 fp8_words::fp8_word(codes[4], codes[5], codes[6], codes[7])};
      static_assert(sizeof(words) == lane_bytes(WeightForm::fp8));
      std::memcpy(packed + job.place_of(k / kSliceK) + lane_of(k, column) * lane_bytes(job.form),
                  words, sizeof(words));
    }
    if (job.form == WeightForm::fp8) {
      put_scale(int64_t{4} * scale_place(job.unit, column, job.gated, job.block),
                scale_of(column, 0));
    }
  }
  if (job.form == WeightForm::fp8_blocks) {
    for (int slice = 0; slice < slices_of(job.k); ++slice) {
      for (const int half : {0, 1}) {
        // The half's columns have one scale.
        WEFT_CHECK(job.first_row[half] % kHalf == 0);
        const int64_t place = (job.place_of(slice) - job.destination) / slice_bytes(job.form);
        put_scale(place * kSliceScaleBytes + half * 4,
                  scale_of(half * static_cast<int>(kHalf), slice * kSliceK));
      }
    }
  }
}

void pack_mx(const PackJob& job, std::byte* packed) {
  constexpr int kSlice = slice_k(WeightForm::mx);
  constexpr int kBlocks = kSlice / kSliceK;
  for (int column = 0; column < kUnitColumns; ++column) {
    const auto half = static_cast<size_t>(column / kHalf);
    const int row = column % static_cast<int>(kHalf);
    const bool there = row < job.rows[half];
    const MxMatrix& mx = job.source[half]->mx;
    const int64_t at = job.first_row[half] + row;
    for (int slice = 0; slice < slices_of(job.k, job.form); ++slice) {
      std::byte* const to = packed + job.place_of(slice);
      for (int block = 0; block < kBlocks; ++block) {
        const int k = slice * kSlice + block * kSliceK;
        const bool any = there && k < job.k;
        for (int chunk = 0; chunk < kSliceK; chunk += kChunk) {
          uint32_t word = 0;
          for (int i = 0; any && i < kChunk; ++i) {
            const int element = k + chunk + i;
            const auto code =
                static_cast<uint32_t>(mx.row_codes(at)[element / 2] >> (element % 2 * 4) & 15);
            word |= mx_words::mx_placed(code, i / 2) << (i % 2 * 16);
          }
          std::memcpy(to + lane_of(chunk, column) * kBlocks * 4 + block * 4, &word, sizeof(word));
        }
        to[kWaveLanes * kBlocks * 4 + (column / 4 * kBlocks + block) * 4 + column % 4] =
            any ? static_cast<std::byte>(mx.row_scales(at)[k / kSliceK].bits) : std::byte{0};
      }
    }
  }
}

/// False: it cannot be, or too many would be listed.
bool pack_windowed(const PackJob& job, std::byte* packed, Lists& lists) {
  constexpr int kWeightsOfListed = 256;  // one of so many may be listed
  const int most_listed = kUnitColumns * job.k / kWeightsOfListed;
  int listed = 0;
  bool fits = true;
  std::vector<uint16_t> row;
  lists.begin(job);
  for (int column = 0; column < kUnitColumns; ++column) {
    int first = 0;  // all are zero
    if (copy_row(job, column, row)) {
      std::array<int, 256> count = {};
      for (int k = 0; k < job.k; ++k) {
        const uint32_t weight = row[static_cast<size_t>(k)];
        if ((weight & 0x7fff) == 0 || windowed::bf16_exponent(weight) > 0) {
          ++count[static_cast<size_t>(windowed::bf16_exponent(weight))];
        }
      }
      first = windowed::best_window(count.data(), job.k);
    }
    packed[job.scales + scale_place(job.unit, column, job.gated, job.block)] =
        static_cast<std::byte>(first == 0 ? windowed::kZeroScale : windowed::scale_exponent(first));
    const auto moved = [&](int k) -> uint32_t {
      const uint32_t weight = row[static_cast<size_t>(k)];
      if (first == 0 || k >= job.k) {
        return windowed::kWindowBits;  // scaled to zero, or times zero
      }
      if (windowed::in_window(weight, first)) {
        return windowed::move_to_window(weight, first);
      }
      fits = fits && windowed::can_be_listed(weight, first);
      if (fits && ++listed <= most_listed) {
        lists.add(job, column, k, windowed::move_listed(weight, first));
      }
      return windowed::kWindowBits;
    };
    for (int k = 0; k < std::ssize(row); k += kChunk) {
      uint32_t words[3] = {};
      for (int pair = 0; pair < kChunk / 2; ++pair) {
        const uint32_t low = moved(k + 2 * pair);
        const uint32_t high = moved(k + 2 * pair + 1);
        words[pair / 2] |= (windowed::low_part(low) | windowed::low_part(high) << 8)
                           << (pair % 2 * 16);
        words[2] |= windowed::high_parts(low | high << 16, pair);
      }
      static_assert(sizeof(words) == lane_bytes(WeightForm::packed));
      std::memcpy(
          packed + job.place_of(k / kSliceK) + lane_of(k, column) * lane_bytes(WeightForm::packed),
          words, sizeof(words));
    }
  }
  lists.end(job);
  return fits && listed <= most_listed;
}

/// Elements of the rows of a product of heads; of others 0.
int64_t rows_of_heads(const Code& code) {
  if (code.units == 0 || code.product.segment[0].head_columns == 0) {
    return 0;
  }
  const resident::Segment& segment = code.product.segment[0];
  const int64_t first = code.product.first / segment.head_columns;
  const int64_t end =
      ceil_div(code.product.first + int64_t{segment.columns}, int64_t{segment.head_columns});
  return (end - first) * slices_of(code.product.k) * kSliceK;
}

/// What the kernel has no room for.
Status check_room(const Lowered& lowered, const ModelConfig& config, Target target) {
  const int floats = attention_floats(static_cast<int>(config.head_dim),
                                      static_cast<int>(config.query_heads / config.kv_heads));
  if (!lowered.latents && floats > most_elements(target, lowered.shape.sequences)) {
    return input_error(fmt::format(
        "{} has {} query heads of {} to a KV head: the {} device has no room for them; use "
        "--device cpu",
        config.name, config.query_heads / config.kv_heads, config.head_dim, name_of(target)));
  }
  if (lowered.latents && lowered.weights != KernelWeights::bf16) {
    return input_error(
        fmt::format("{} has attention over latent rows and weights in other formats than bf16: the "
                    "{} device has no kernel for it; use --device cpu",
                    config.name, name_of(target)));
  }
  if (lowered.shape.experts &&
      (lowered.weights == KernelWeights::fp8 || lowered.weights == KernelWeights::f16)) {
    return input_error(fmt::format(
        "{} has experts and weights in {}: the {} device has no kernel for it; use "
        "--device cpu",
        config.name, lowered.weights == KernelWeights::fp8 ? "e4m3fn" : "f16", name_of(target)));
  }
  for (const auto& codes : lowered.codes) {
    for (const Code& code : codes) {
      if (is_drawn(code) && lowered.weights == KernelWeights::mx &&
          form_of(code) != WeightForm::mx) {
        return input_error(fmt::format(
            "{} has experts in bf16 beside others in MXFP4: the {} device has no kernel "
            "for it; use --device cpu",
            config.name, name_of(target)));
      }
      if (is_drawn(code) && code.product.streamed != 0) {
        return input_error(fmt::format(
            "{} has experts over rows of {}, and the {} device has room for {}; use --device cpu",
            config.name, code.product.k, name_of(target), most_elements(target, 1)));
      }
      if (const int64_t elements = rows_of_heads(code); elements > most_elements(target, 1)) {
        return input_error(fmt::format(
            "{} has rows of heads of {} elements for a worker, and the {} device has room for {}: "
            "give it more workers",
            config.name, elements, name_of(target), most_elements(target, 1)));
      }
      if (code.units > 0 && !has_form(lowered.weights, form_of(code))) {
        return input_error(fmt::format(
            "{} has weights in f16 beside others: the {} device has no kernel for it; use --device "
            "cpu",
            config.name, name_of(target)));
      }
    }
  }
  for (size_t worker = 0; worker < lowered.streams.size(); ++worker) {
    const int64_t end =
        worker + 1 < lowered.streams.size() ? lowered.streams[worker + 1] : lowered.packed_bytes;
    if (end - lowered.streams[worker] > std::numeric_limits<int32_t>::max()) {
      return input_error(fmt::format(
          "{} has {} bytes of weights for each of {} workers, and a worker takes 2 GiB: give it "
          "more workers",
          config.name, end - lowered.streams[worker], lowered.streams.size()));
    }
  }
  return {};
}

}  // namespace

int64_t PackJob::place_of(int slice) const {
  const SlicePlace places{slices_of(k, form), part, block};
  return destination + places.of(unit, slice, block_units) * slice_bytes(form);
}

KernelWeights kernel_weights(const Weights& weights) {
  if (weights.get(Role::embedding, -1).dtype == DType::f16) {
    return KernelWeights::f16;
  }
  const auto& tensors = weights.tensors();
  if (std::ranges::any_of(tensors, [](const Tensor& tensor) { return tensor.mx.k > 0; })) {
    return KernelWeights::mx;
  }
  const bool codes = std::any_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return tensor.dtype == DType::e4m3fn;
  });
  return codes ? KernelWeights::fp8 : KernelWeights::bf16;
}

PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences) {
  PlanOptions options;
  options.sequences = sequences;
  options.workers = units;
  options.capacity = capacity;
  options.kv = kv;
  options.columns = kUnitColumns;
  options.workers = most_workers(config, options);
  options.gated_columns = kHalf;
  options.fewest_columns = kUnitColumns;
  options.attention_tasks = options.workers;
  options.fuse_attention = true;
  options.near_heads = true;
  // Beyond so many splits with keys, what all workers would read of them takes longer to bring
  // across the device than one more exchange does within an XCD (an estimate, of nominal rates).
  constexpr int64_t kSplitsForAll = 4;
  options.merge_once = resident::splits_of_full_cache(config, options) > kSplitsForAll;
  return options;
}

Arena lay_out(const Program& program, const Weights& weights, resident::Hold hold) {
  const int64_t sequences = program.sequences;
  return resident::lay_out(
      program, weights,
      [sequences](int64_t columns) -> int64_t {
        return sequences * 2 * operand_pitch(static_cast<int>(columns)) * 2;
      },
      hold);
}

Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, Target target,
                      const std::vector<bool>& plain) {
  WEFT_CHECK(plain.size() == program.operations.size());
  Lowered out;
  out.weights = kernel_weights(weights);
  Units units(target, program, plain, out);
  WEFT_ASSIGN(static_cast<resident::Lowered&>(out),
              resident::lower(program, config, weights, arena, capacity, units));
  WEFT_TRY(check_room(out, config, target));
  uint32_t lists = 0;
  for (const auto& codes : out.codes) {
    out.lists_begin.push_back(lists);
    for (const Code& code : codes) {
      lists += lists_of(code, program.sequences);
    }
  }
  return out;
}

Products products_of(const Lowered& lowered, std::span<const std::vector<Code>> codes) {
  Products products;
  for (size_t worker = 0; worker < codes.size(); ++worker) {
    products.begin.push_back(static_cast<uint32_t>(products.places.size()));
    uint32_t lists = lowered.lists_begin[worker];
    bool awaits_draw = false;
    for (const Code& code : codes[worker]) {
      awaits_draw |= code.opcode == Opcode::route && code.route.draw == resident::DrawOf::experts;
      if (code.units > 0) {
        const bool drawn = is_drawn(code);
        const int slices = slices_of(weight_k(code), form_of(code));
        const uint32_t slots = code.product.slots;
        products.places.push_back(
            {.stream = code.product.stream,
             .units = code.units * (drawn ? int{code.product.slots} : 1),
             .slices = slices,
             .part = part_slices(slices, parts_of(code)),
             .flags = (code.head != 0 ? ProductPlace::kHead : 0) |
                      (drawn && awaits_draw ? ProductPlace::kAwaitsDraw : 0) |
                      uint32_t{code.product.weights} << ProductPlace::kForm,
             .lists = lists,
             .slots = drawn ? slots | uint32_t{code.product.first_slot} << 8 : 0,
             .expert_units = drawn ? code.units : 0});
        awaits_draw &= !drawn;
        lists += lists_of(code, lowered.shape.sequences);
      }
    }
  }
  products.begin.push_back(static_cast<uint32_t>(products.places.size()));
  products.places.emplace_back();  // who has none looks at the next one's, and loads nothing
  return products;
}

Streams pack(const Lowered& lowered) {
  Streams out;
  out.bytes.resize(static_cast<size_t>(lowered.packed_bytes));
  Lists lists(out);
  for (const PackJob& job : lowered.pack) {
    switch (job.form) {
      case WeightForm::plain:
      case WeightForm::f16:
        pack_plain(job, out.bytes.data());
        break;
      case WeightForm::packed:
        if (!pack_windowed(job, out.bytes.data(), lists)) {
          out.refused.push_back(job.operation);
        }
        break;
      case WeightForm::fp8:
      case WeightForm::fp8_blocks:
        pack_fp8(job, out.bytes.data());
        break;
      case WeightForm::mx:
        pack_mx(job, out.bytes.data());
        break;
    }
  }
  out.list_begin.push_back(static_cast<uint32_t>(out.listed.size()));
  return out;
}

Status verify_codes(const Lowered& lowered, const Program& program, resident::NextToken next,
                    int64_t position) {
  return resident::verify_codes(lowered, program, stream_bytes, next, position);
}

}  // namespace weft::cdna

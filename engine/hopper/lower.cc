#include "engine/hopper/lower.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/attention/hopper_layout.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {
namespace {

class Units : public Target {
 public:
  /// `latents`: attention is over latent rows.
  Units(const Program& program, bool latents, const std::vector<bool>& plain, Lowered& out)
      : program_(program),
        several_(program.sequences > 1),
        latents_(latents),
        batch_(batch_of(static_cast<int>(program.sequences))),
        plain_(plain),
        out_(out) {}

  Limits limits() const override {
    return {.device = "cuda",
            .head_dim = 256,
            .layer_norm = kMostLayerNorm,
            .fp8 = true,
            .experts = kMostExperts,
            .chosen = kMostChosen,
            .chosen_of_several = kMostChosenOfSeveral,
            // Slices are counted with small_quotient().
            .union_weights = (int64_t{1} << 20) * kSliceK * kUnitColumns / 2,
            .slot_row = kMostSlotSlices * kSliceK,
            .mx = true,
            .sinks = true,
            .latent_rank = kLatentRank,
            .latent_turned = kLatentTurned,
            .latents_of_several = true,
            .route_groups = kMostGroups,
            .head_grain = kUnitColumns};
  }
  void begin_product(Code& code, const Tensor& weight) override {
    const StreamForm form = stream_form(code.operation, weight);
    code.product.weights = static_cast<uint8_t>(form);
    out_.page_bytes = std::max(out_.page_bytes, page_bytes(form));
  }
  /// As long as units are whole.
  bool may_join(const Code& code, int32_t operation, const Tensor& weight) const override {
    return code.product.fold == 0 && form_of(code) == stream_form(operation, weight);
  }
  void add_columns(Code& code, const ProductTile& tile) override {
    constexpr int64_t kHalf = kUnitColumns / 2;
    const bool gated = tile.up.tensor != nullptr;
    const int64_t unit = gated ? kHalf : kUnitColumns;
    const Range columns = tile.columns;
    ProductCode& product = code.product;
    const WeightScales& scales = tile.weight.tensor->scales;
    const int64_t row_bytes = product.k * static_cast<int64_t>(size_of(tile.weight.tensor->dtype));
    // What folded units have of k side by side must have one scale.
    const bool of_heads = tile.heads.columns > 0;
    const bool folds = !several_ && scales.scaling != Scaling::block && !of_heads;
    code.units = static_cast<uint16_t>(code.units + units_of(columns.size(), unit));
    product.fold = static_cast<uint8_t>(folds ? last_fold(columns.size(), unit) : 0);
    for (int64_t c = columns.begin; c < columns.end; c += unit) {
      PackJob job;
      job.k = product.k;
      job.fold = static_cast<int16_t>(c + unit < columns.end ? 0 : product.fold);
      job.form = form_of(code);
      job.grid = grid_of(scales);
      job.operation = tile.operation;
      job.stage =
          of_heads ? kKept : stage_of(program_.operations[static_cast<size_t>(tile.operation)]);
      job.pitch = static_cast<int32_t>(tile.heads.across ? tile.weight.tensor->columns() : 0);
      const int64_t most = kHalf >> job.fold;
      for (const int half : {0, 1}) {
        const int64_t first = !gated && half == 1 ? c + most : c;
        const PlacedWeight& weight = gated && half == 1 ? tile.up : tile.weight;
        job.source[half] =
            weight.place + (of_heads ? place_in_head(tile, first) : first * row_bytes);
        job.scales[half] = weight.scales;
        job.first_row[half] = static_cast<int32_t>(first);
        job.rows[half] = static_cast<int32_t>(std::clamp<int64_t>(columns.end - first, 0, most));
      }
      units_.push_back(job);
    }
    const auto head_of = [&](int64_t column) { return of_heads ? column / tile.heads.columns : 0; };
    place_rows(product, head_of(columns.end - 1) - head_of(columns.begin) + 1);
  }
  /// Those of an expert lie one after the other: how they are dealt to warps depends on what is
  /// drawn. The last one of one sequence's second products is folded, where slots are so many
  /// slices that each stays whole.
  void add_experts(Code& code, Range columns, std::span<const ProductTile> experts) override {
    const bool gated = experts.front().up.tensor != nullptr;
    const int64_t k = experts.front().weight.tensor->columns();
    const int64_t unit = gated ? kUnitColumns / 2 : kUnitColumns;
    WEFT_CHECK(code.product.flat == 0 || columns.begin % unit == 0);
    const bool of_slots = gated && code.product.flat == 0;  // the same columns of each
    code.units =
        static_cast<uint16_t>(units_of(columns.size(), unit) * (of_slots ? code.product.slots : 1));
    const bool folds = !several_ && !gated;
    const int most_fold = form_of(code) == StreamForm::mx ? kMostMxFold : kMostFold;
    int fold = folds ? std::min(last_fold(columns.size(), unit), most_fold) : 0;
    while (slices_of(k) % (1 << fold) != 0) {
      --fold;
    }
    code.product.fold = static_cast<uint8_t>(fold);
    for (const ProductTile& tile : experts) {
      for (int64_t c = tile.columns.begin; c < tile.columns.end; c += unit) {
        PackJob job;
        job.k = static_cast<int32_t>(k);
        job.fold = static_cast<int16_t>(c + unit < tile.columns.end ? 0 : fold);
        job.form = form_of(code);
        job.operation = tile.operation;
        job.stage = stage_of(program_.operations[static_cast<size_t>(tile.operation)]);
        for (const int half : {0, 1}) {
          const int64_t most = kUnitColumns / 2 >> job.fold;
          const int64_t first = !gated && half == 1 ? c + most : c;
          const PlacedWeight& weight = gated && half == 1 ? tile.up : tile.weight;
          if (job.form == StreamForm::mx) {  // codes, then scales: see put_weights()
            job.source[half] = weight.place + first * (k / 2);
            job.scales[half] =
                weight.place + weight.tensor->elements() / 2 + first * (k / kMxBlock);
          } else {
            job.source[half] = weight.place + first * k * static_cast<int64_t>(sizeof(uint16_t));
          }
          job.first_row[half] = static_cast<int32_t>(first);
          job.rows[half] =
              static_cast<int32_t>(std::clamp<int64_t>(tile.columns.end - first, 0, most));
        }
        units_.push_back(job);
      }
    }
    place_rows(code.product);
  }
  /// In the same form, of whole units; kernels for latent rows can.
  bool may_join_slots(const Code& code, int32_t operation, const Tensor& weight,
                      int64_t k) const override {
    const ProductCode& product = code.product;
    return !several_ && latents_ && form_of(code) == stream_form(operation, weight) &&
           weight.scales.scaling == Scaling::none &&
           product.segment[0].columns % kUnitColumns == 0 && k <= kMostSharedRow &&
           slices_of(product.k) + slices_of(k) <= kMostSlotSlices;
  }
  int64_t slot_k(int64_t elements) const override { return slices_of(elements) * kSliceK; }
  int64_t end_product(const Code& code, int64_t destination) override {
    const ProductCode& product = code.product;
    const int64_t slice_bytes = weight_slice_bytes(form_of(code));
    if (product.draw == DrawOf::experts) {
      const int64_t begin = destination;
      for (PackJob& job : units_) {
        job.destination = destination;
        destination += unit_slices(job.k, job.fold) * slice_bytes;
        out_.pack.push_back(job);
      }
      units_.clear();
      return destination - begin;
    }
    const int64_t slices = slices_of(product.k);
    for (int i = 0; i < code.units; ++i) {
      const int block = i / kBlockUnits * kBlockUnits;  // its first unit
      PackJob& job = units_[static_cast<size_t>(i)];
      job.destination = destination + block * slices * slice_bytes;
      job.first = static_cast<int32_t>((i - block) * slices);
      job.slices = block_runs(product.k, code.units, product.fold, block).slices();
      out_.pack.push_back(job);
    }
    units_.clear();
    return product_slices(product.k, code.units, product.fold) * slice_bytes;
  }

 private:
  /// Where a head's column of weights in bf16 begins, in bytes.
  static int64_t place_in_head(const ProductTile& tile, int64_t column) {
    const ProductTile::Heads& heads = tile.heads;
    const int64_t row = column / heads.columns * heads.pitch + heads.first;
    const int64_t of_head = column % heads.columns;
    const int64_t k = tile.weight.tensor->columns();
    return (heads.across ? row * k + of_head : (row + of_head) * k) *
           static_cast<int64_t>(sizeof(uint16_t));
  }
  /// How a product's weights lie in the stream.
  StreamForm stream_form(int32_t operation, const Tensor& weight) const {
    return weight.mx.k > 0                          ? StreamForm::mx
           : is_fp8(weight.dtype)                   ? StreamForm::fp8
           : plain_[static_cast<size_t>(operation)] ? StreamForm::plain
                                                    : StreamForm::compressed;
  }
  /// How a product's rows come: shared memory for all of what a worker would have to make again.
  void place_rows(ProductCode& product, int64_t heads = 1) {
    int64_t slices = row_slices(product.k, product.fold) * heads;
    const bool drawn = product.form == RowForm::slots && product.draw == DrawOf::experts;
    product.streamed = product.source == kOperands && (drawn || rows_are_streamed(slices)) ? 1 : 0;
    if (product.streamed != 0) {
      slices = kTeamWarps * kStreamedSlices;
    }
    // A power of two for each slice of a row, of rows that stream for all slices.
    static_assert(kMxRowBlock == kSliceK);
    const int64_t units = static_cast<StreamForm>(product.weights) == StreamForm::mx
                              ? slices * batch_ * size_of(Element::f32)
                              : 0;
    out_.scratch_bytes = std::max(out_.scratch_bytes,
                                  static_cast<int32_t>(slices * row_slice_bytes(batch_) + units));
  }

  const Program& program_;
  const bool several_;
  const bool latents_;
  const int batch_;
  const std::vector<bool>& plain_;
  Lowered& out_;
  std::vector<PackJob> units_;  // of the product that is not packed yet
};

/// Of one sequence, and models with experts: a product takes the row that the one before it has
/// made, if it is the same; and while a worker waits for a draw, it makes the row of the first
/// products, which nobody writes any more.
void make_rows_ahead(std::vector<Code>& codes) {
  const Code* left = nullptr;  // the product whose row lies in its place
  for (size_t i = 0; i < codes.size(); ++i) {
    Code& code = codes[i];
    Code* const draw = i > 0 && codes[i - 1].opcode == Opcode::route ? &codes[i - 1] : nullptr;
    if (code.opcode == Opcode::route) {
      continue;
    }
    if (code.units > 0 && code.product.form == RowForm::rms_norm) {
      const bool there = left != nullptr && same_row(*left, code);
      const bool mx = form_of(code) == StreamForm::mx;
      const bool as_left = there && (form_of(*left) == StreamForm::mx) == mx;
      if (draw != nullptr && !as_left) {
        draw->route.next_row = there && mx ? NextRow::turned : NextRow::made;
      }
      if (draw != nullptr || as_left) {
        code.product.form = RowForm::rms_normed;
      }
    }
    left = code.units > 0 ? &code : nullptr;
  }
}

/// Whether one sequence's splits of attention are merged by some workers for all: reading many of
/// them takes longer than an exchange (measured on an H200: docs/journal/h200-experts.md).
bool merges_once(const ModelConfig& config, const PlanOptions& options) {
  constexpr int64_t kSplitsForAll = 4;
  return resident::splits_of_full_cache(config, options) > kSplitsForAll;
}

}  // namespace

PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences) {
  PlanOptions options;
  options.sequences = sequences;
  options.workers = units;
  options.capacity = capacity;
  options.kv = kv;
  options.columns = kUnitColumns;
  options.workers = most_workers(config, options);
  options.gated_columns = kUnitColumns / 2;
  const bool folds = sequences == 1 && config.quantization.weights != Scaling::block;
  options.fewest_columns = folds ? kUnitColumns >> kMostFold : kUnitColumns;
  options.attention_tasks = options.workers;
  options.fuse_attention = true;
  options.merge_once = sequences == 1 && config.latent.rank == 0 && merges_once(config, options);
  // What takes slots in turn would overwrite the residual while others may read it.
  options.flat_slots =
      sequences > 1 || config.experts.chosen * slices_of(config.experts.size) <= kMostSlotSlices;
  return options;
}

bool same_row(const Code& made, const Code& wanted) {
  const ProductCode& a = made.product;
  const ProductCode& b = wanted.product;
  return made.units > 0 && wanted.units > 0 && is_normed(a.form) && is_normed(b.form) &&
         a.row == b.row && a.source == b.source && a.norm_weight == b.norm_weight &&
         a.epsilon == b.epsilon && a.weight_offset == b.weight_offset && a.k == b.k &&
         row_slices(a.k, a.fold) >= row_slices(b.k, b.fold);
}

Arena lay_out(const Program& program, const Weights& weights, Hold hold) {
  const int batch = batch_of(static_cast<int>(program.sequences));
  return resident::lay_out(
      program, weights,
      [batch](int64_t columns) { return slices_of(columns) * row_slice_bytes(batch); }, hold);
}

Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, const std::vector<bool>& plain) {
  WEFT_CHECK(plain.size() == program.operations.size());
  Lowered out;
  out.scratch_bytes = static_cast<int32_t>(
      config.latent.rank > 0 ? int64_t{sizeof(LatentScratch)}
                             : attention_scratch_bytes(kTeamWarps, config.head_dim,
                                                       config.query_heads / config.kv_heads));
  Units units(program, config.latent.rank > 0, plain, out);
  WEFT_ASSIGN(static_cast<resident::Lowered&>(out),
              resident::lower(program, config, weights, arena, capacity, units));
  if (program.sequences == 1 && config.experts.count > 0) {
    for (std::vector<Code>& codes : out.codes) {
      make_rows_ahead(codes);
    }
  }
  return out;
}

}  // namespace weft::hopper

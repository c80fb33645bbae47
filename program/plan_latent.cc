#include "program/plan_latent.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/divide.h"

namespace weft::planning {
namespace {

/// Ranges of keys that a decode step's attention is cut into at most: all heads share them, and
/// each leaves a row of heads * (rank + turned) sums. Fused, who reads them reads a head's.
constexpr int64_t kMostSplits = 8;
constexpr int64_t kMostFusedSplits = 32;
constexpr int64_t kFusedHeads = 8;  ///< of an instruction: those of a matrix unit's rows

class LatentPlanner : public AttentionPlanner {
 public:
  explicit LatentPlanner(Weaver& weaver)
      : AttentionPlanner(weaver),
        latent_(weaver.config().latent),
        fused_(weaver.options().fuse_attention && !weaver.chunk()) {}

  void make_buffers() override;
  void project(Residual& residual, Section& all, const LayerSpec& spec, int64_t layer) override;
  void attend(Residual& residual, Section& section, const LayerSpec& spec, int64_t layer) override;

 protected:
  Space angles_space() const override { return fused_ ? Space::worker : Space::activation; }
  void spread_angles(int32_t op, Section& all, const Waits& next_step) override {
    if (fused_) {
      weaver_.repeat(op, next_step, weaver_.everyone());
      return;
    }
    const Tiles tiles = all.whole(weaver_.options().workers - 1);
    angles_ready_.push_back({weaver_.spread(op, tiles, next_step)});
  }
  // What follows is of the other forms' project() and attend().
  Waits prepare(Section& /*all*/, const LayerSpec& /*spec*/, int64_t /*layer*/,
                Waits projected) override {
    return projected;
  }
  void complete(AttentionOp& /*op*/, const LayerSpec& /*spec*/, int64_t /*layer*/) const override {}
  bool always_splits() const override { return true; }

 private:
  int64_t heads() const { return weaver_.config().query_heads; }
  int64_t row() const { return weaver_.config().head_dim; }  // elements of a cached one
  int64_t query_size() const { return heads() * (latent_.unturned + latent_.turned); }

  /// Fused, both are parts of attention.
  EventId append(Section& all, int64_t layer, Waits made);
  /// Attention to each head's values; what is ready then.
  EventId attend_chunk(Section& section, const LayerSpec& spec, int64_t layer);
  /// `tiles`: of the heads' values.
  EventId attend_step(Section& section, const LayerSpec& spec, int64_t layer, const Tiles& tiles);
  /// Tiles of attention: a sequence, a split of its keys and a few heads.
  Tiles by_heads_and_splits(int64_t splits) const;
  /// A product of heads, `columns` of each: by those who do not attend. These ask for their keys
  /// meanwhile, and others would wait for who comes from there.
  Tiles by_columns_of_heads(int64_t columns, int64_t k);
  /// Merges splits, of one sequence by each for the heads that its `values` have columns of; what
  /// these wait for then.
  Waits merge(Section& section, const AttentionOp& op, int64_t layer, EventId attended,
              const Tiles& values);
  /// The queries, as they are projected; what is ready then. `input` and `waits`: the block's.
  Waits project_queries(Section& all, const LayerSpec& spec, int64_t layer, BufferId input,
                        const Waits& waits, const Tiles& tiles);
  void describe(LatentHeadsOp& op, int64_t layer) const {
    op.weight = weaver_.weight(Role::latent_up, layer);
    op.heads = heads();
    op.rank = latent_.rank;
    op.unturned = latent_.unturned;
    op.turned = latent_.turned;
    op.value = latent_.value;
    op.fused = fused_;
  }
  /// Whether who multiplies a head's values out merges its splits for itself.
  bool merges_own() const { return fused_ && weaver_.program.sequences == 1; }
  /// Elements of a head in queries_ and attended_.
  int64_t pitch() const { return fused_ ? latent_.rank : row(); }
  LinearOp product(Role weight, int64_t layer, BufferId a, BufferId out, int64_t n,
                   int64_t k) const {
    LinearOp op;
    op.weight = weaver_.weight(weight, layer);
    op.a = a;
    op.out = out;
    op.n = n;
    op.k = k;
    return op;
  }

  /// What a chunk's queries, keys and values are rounded to where they are multiplied.
  Element chunk_element() const {
    const bool bf16 = weaver_.options().kv == DType::bf16 &&
                      weaver_.chunk_element(Role::query, 0) == Element::bf16;
    return bf16 ? Element::bf16 : Element::f32;
  }

  const LatentAttention latent_;
  const bool fused_;
  BufferId query_latent_ = kNone, query_input_ = kNone;  // before and after the norm
  BufferId made_ = kNone;                                // a latent row as projected
  // Of a decode step:
  BufferId queries_ = kNone;   // in the rows' space
  BufferId attended_ = kNone;  // rows, summed for each head
  Waits angles_ready_, ready_;
};

void LatentPlanner::make_buffers() {
  const ModelConfig& config = weaver_.config();
  const PlanOptions& options = weaver_.options();
  const bool chunk = weaver_.chunk();
  const int64_t rows = weaver_.program.rows;
  const int64_t sequences = weaver_.program.sequences;
  const auto shared = [&](const char* name, Element element, int64_t columns) {
    return weaver_.buffer(name, Space::activation, element, rows, columns);
  };
  if (latent_.query_rank > 0) {
    query_latent_ = shared("query_latent", Element::f32, latent_.query_rank);
    query_input_ = weaver_.buffer("query_input", chunk ? Space::activation : Space::worker,
                                  chunk ? weaver_.chunk_element(Role::query, 0) : Element::f32,
                                  rows, latent_.query_rank);
  }
  q_ = shared("q", Element::f32, query_size());
  made_ = shared("latent", Element::f32, row());
  const int64_t groups = fused_ ? ceil_div(heads(), kFusedHeads) : 1;
  splits_ = std::clamp<int64_t>(options.attention_tasks / (groups * sequences), 1,
                                fused_ ? kMostFusedSplits : kMostSplits);
  if (!chunk) {
    queries_ = shared("queries", Element::f32, heads() * pitch());
    attended_ = weaver_.buffer("attended", merges_own() ? Space::worker : Space::activation,
                               Element::f32, rows, heads() * pitch());
    // Each sequence's partials begin at a multiple of four elements, for vector loads.
    splits_ += sequences > 1 && config.query_heads * splits_ % 2 != 0 ? 1 : 0;
    partials_ = weaver_.buffer("partials", Space::activation, Element::f32, sequences,
                               config.query_heads * splits_ * (pitch() + 2));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    keys_.push_back(weaver_.buffer("latents." + std::to_string(layer), Space::kv,
                                   element_of(options.kv), sequences, options.capacity * row()));
    weaver_.program.buffers.back().layer = layer;
  }
}

Waits LatentPlanner::project_queries(Section& all, const LayerSpec& spec, int64_t layer,
                                     BufferId input, const Waits& waits, const Tiles& tiles) {
  const int64_t hidden = weaver_.config().hidden;
  if (latent_.query_rank == 0) {
    const int32_t id = weaver_.operation(
        "q_proj", layer, all.rows, product(Role::query, layer, input, q_, query_size(), hidden));
    return {{weaver_.spread(id, tiles, waits)}};
  }
  const int32_t down = weaver_.operation(
      "q_a_proj", layer, all.rows,
      product(Role::query_latent, layer, input, query_latent_, latent_.query_rank, hidden));
  const Waits made = {{weaver_.spread(down, tiles, waits)}};
  RmsNormOp norm =
      rms_norm(weaver_, spec.norm, Role::query_latent_norm, layer, query_latent_, query_input_);
  norm.columns = latent_.query_rank;
  norm.epsilon = static_cast<float>(kLatentNormEpsilon);
  const Tiles ups = all.product(query_size(), latent_.query_rank);
  Users users;
  add_users(ups, users);
  const Waits normed =
      all.prepare(weaver_.operation("q_a_norm", layer, all.rows, norm), made, users);
  const int32_t up = weaver_.operation(
      "q_b_proj", layer, all.rows,
      product(Role::query, layer, query_input_, q_, query_size(), latent_.query_rank));
  return {{weaver_.spread(up, ups, normed)}};
}

void LatentPlanner::project(Residual& residual, Section& all, const LayerSpec& spec,
                            int64_t layer) {
  const int64_t hidden = weaver_.config().hidden;
  const std::vector<Tiles> tiles =
      all.products({latent_.query_rank > 0 ? latent_.query_rank : query_size(), row()}, hidden);
  Users users;
  add_users(tiles[0], users);
  add_users(tiles[1], users);
  Waits waits;
  const BufferId input = residual.input(all, spec, "attention_norm", layer, Role::attention_norm,
                                        Role::attention_norm_bias, users, waits);
  const int32_t down = weaver_.operation("kv_a_proj", layer, all.rows,
                                         product(Role::latent, layer, input, made_, row(), hidden));
  Waits made = {{weaver_.spread(down, tiles[1], waits)}};
  Waits queried = project_queries(all, spec, layer, input, waits, tiles[0]);

  LatentQueriesOp queries;
  describe(queries, layer);
  queries.q = q_;
  queries.out = queries_;
  if (fused_) {
    const EventId ready =
        weaver_.spread(weaver_.operation("latent_queries", layer, all.rows, queries),
                       by_columns_of_heads(latent_.rank, latent_.unturned), queried);
    ready_ = made;
    ready_.push_back({ready});
    return;
  }
  const EventId appended = append(all, layer, std::move(made));
  queried.push_back(angles_ready_.front());
  if (weaver_.chunk()) {
    ready_ = std::move(queried);
    ready_.push_back({appended});
    return;
  }
  queries.cosines = cosines_.front();
  queries.sines = sines_.front();
  const EventId ready =
      weaver_.spread(weaver_.operation("latent_queries", layer, all.rows, queries),
                     weaver_.by_heads(heads()), queried);
  ready_ = {{appended}, {ready}};
}

EventId LatentPlanner::append(Section& all, int64_t layer, Waits made) {
  LatentAppendOp op;
  op.norm = weaver_.weight(Role::latent_norm, layer);
  op.x = made_;
  op.positions = weaver_.program.positions;
  op.cosines = cosines_.front();
  op.sines = sines_.front();
  op.cache = keys_[static_cast<size_t>(layer)];
  op.rank = latent_.rank;
  op.turned = latent_.turned;
  op.epsilon = static_cast<float>(kLatentNormEpsilon);
  made.push_back(angles_ready_.front());
  return weaver_.spread(weaver_.operation("latent_append", layer, all.rows, op), all.whole(1),
                        made);
}

Tiles LatentPlanner::by_heads_and_splits(int64_t splits) const {
  const int64_t workers = weaver_.options().workers;
  const int64_t sequences = weaver_.program.sequences;
  const int64_t groups = ceil_div(heads(), kFusedHeads);
  const int64_t tasks = groups * sequences * splits;
  Tiles tiles(static_cast<size_t>(workers));
  for (int64_t task = 0; task < tasks; ++task) {
    const int64_t first = task % groups * kFusedHeads;
    const int64_t row = task / groups % sequences;
    tiles[static_cast<size_t>(task * workers / tasks)].push_back(
        {{row, row + 1},
         {first, std::min(heads(), first + kFusedHeads)},
         static_cast<int32_t>(task / (groups * sequences))});
  }
  return tiles;
}

Tiles LatentPlanner::by_columns_of_heads(int64_t columns, int64_t k) {
  Users attend;
  add_users(by_heads_and_splits(splits_), attend);
  const int64_t grain = weaver_.options().columns;
  const auto others = weaver_.by_others(heads() * columns, k, grain, attend);
  return others ? *others : weaver_.by_grains(heads() * columns, k, grain);
}

Waits LatentPlanner::merge(Section& section, const AttentionOp& op, int64_t layer, EventId attended,
                           const Tiles& values) {
  const int32_t id =
      weaver_.operation("attention_combine", layer, section.rows, AttentionCombineOp{op});
  if (!merges_own()) {
    return {{weaver_.spread(id, weaver_.by_heads_from_last(heads()), {{attended}})}};
  }
  Tiles tiles = values;
  for (auto& of_worker : tiles) {
    for (Tile& tile : of_worker) {
      tile.tile = {tile.tile.begin / latent_.value, ceil_div(tile.tile.end, latent_.value)};
    }
  }
  weaver_.repeat(id, {{attended}}, tiles);
  return {};
}

EventId LatentPlanner::attend_chunk(Section& section, const LayerSpec& spec, int64_t layer) {
  LatentAttentionOp op;
  describe(op, layer);
  op.q = q_;
  op.cosines = cosines_.front();
  op.sines = sines_.front();
  op.positions = weaver_.program.positions;
  op.cache = keys_[static_cast<size_t>(layer)];
  op.out = section.attention_out;
  op.element = chunk_element();
  op.absorbs = weaver_.options().cut_anywhere;
  op.scale = static_cast<float>(spec.attention.scale);
  // By heads: what a head's keys and values are multiplied out to is of all rows.
  return weaver_.spread(weaver_.operation("attention", layer, section.rows, op),
                        weaver_.by_heads(heads()), ready_);
}

EventId LatentPlanner::attend_step(Section& section, const LayerSpec& spec, int64_t layer,
                                   const Tiles& tiles) {
  AttentionOp op;
  op.q = queries_;
  op.keys = op.values = keys_[static_cast<size_t>(layer)];
  op.positions = weaver_.program.positions;
  op.partials = partials_;
  op.out = attended_;
  op.query_heads = heads();
  op.kv_heads = 1;
  op.head_dim = pitch();
  op.splits = splits_;
  op.scale = static_cast<float>(spec.attention.scale);
  if (fused_) {
    op.k = made_;
    op.cosines = cosines_.front();
    op.sines = sines_.front();
    op.key_norm = weaver_.weight(Role::latent_norm, layer);
    op.epsilon = static_cast<float>(kLatentNormEpsilon);
    op.latent = {.projected = q_, .unturned = latent_.unturned, .turned = latent_.turned};
  }
  const int32_t id = weaver_.operation("attention", layer, section.rows, op);
  const EventId attended =
      weaver_.spread(id, fused_ ? by_heads_and_splits(op.splits) : by_tasks(op), ready_);
  const Waits merged = merge(section, op, layer, attended, tiles);
  LatentValuesOp values;
  describe(values, layer);
  values.a = attended_;
  values.out = section.attention_out;
  return weaver_.spread(weaver_.operation("latent_values", layer, section.rows, values), tiles,
                        merged);
}

void LatentPlanner::attend(Residual& residual, Section& section, const LayerSpec& spec,
                           int64_t layer) {
  const Tiles values =
      fused_ ? by_columns_of_heads(latent_.value, latent_.rank) : weaver_.by_heads(heads());
  const EventId done = weaver_.chunk() ? attend_chunk(section, spec, layer)
                                       : attend_step(section, spec, layer, values);
  Users late;
  if (fused_) {
    add_users(values, late);
  }
  const int64_t size = heads() * latent_.value;
  const Tiles columns = outputs(section, size, late);
  const LinearOp output = output_product(weaver_, Role::attention_out, Role::attention_out_bias,
                                         layer, section.attention_out, size);
  residual.add(section, spec, layer, {{"o_proj", output}}, Role::attention_out_norm, columns,
               {{done}});
}

}  // namespace

std::unique_ptr<AttentionPlanner> make_latent_planner(Weaver& weaver) {
  return std::make_unique<LatentPlanner>(weaver);
}

}  // namespace weft::planning

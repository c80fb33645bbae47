#include "program/plan_latent.h"

#include <algorithm>
#include <string>
#include <utility>

namespace weft::planning {
namespace {

/// Ranges of keys that a decode step's attention is cut into at most: all heads share them, and
/// each leaves a row of heads * (rank + turned) sums.
constexpr int64_t kMostSplits = 8;

class LatentPlanner : public AttentionPlanner {
 public:
  explicit LatentPlanner(Weaver& weaver)
      : AttentionPlanner(weaver), latent_(weaver.config().latent) {}

  void make_buffers() override;
  void project(Residual& residual, Section& all, const LayerSpec& spec, int64_t layer) override;
  void attend(Residual& residual, Section& section, const LayerSpec& spec, int64_t layer) override;

 protected:
  Space angles_space() const override { return Space::activation; }
  void spread_angles(int32_t op, Section& all, const Waits& next_step) override {
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

  /// The queries, as they are projected; what is ready then. `input` and `waits`: the block's.
  Waits project_queries(Section& all, const LayerSpec& spec, int64_t layer, BufferId input,
                        const Waits& waits, const Tiles& tiles);
  template <class Op>
  void describe(Op& op, int64_t layer) const {
    op.weight = weaver_.weight(Role::latent_up, layer);
    op.heads = heads();
    op.rank = latent_.rank;
    op.unturned = latent_.unturned;
    op.turned = latent_.turned;
    op.value = latent_.value;
  }
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

  const LatentAttention latent_;
  BufferId query_latent_ = kNone, query_input_ = kNone;  // before and after the norm
  BufferId made_ = kNone;                                // a latent row as projected
  BufferId queries_ = kNone;                             // in the rows' space
  BufferId attended_ = kNone;                            // rows, summed for each head
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
  const bool bf16 =
      chunk && options.kv == DType::bf16 && weaver_.chunk_element(Role::query, 0) == Element::bf16;
  queries_ = shared("queries", bf16 ? Element::bf16 : Element::f32, config.query_size());
  attended_ = shared("attended", Element::f32, config.query_size());
  splits_ = std::clamp<int64_t>(options.attention_tasks / sequences, 1, kMostSplits);
  if (!chunk) {
    // Each sequence's partials begin at a multiple of four elements, for vector loads.
    splits_ += sequences > 1 && config.query_heads * splits_ % 2 != 0 ? 1 : 0;
    partials_ = weaver_.buffer("partials", Space::activation, Element::f32, sequences,
                               config.query_heads * splits_ * (row() + 2));
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

  LatentAppendOp append;
  append.norm = weaver_.weight(Role::latent_norm, layer);
  append.x = made_;
  append.positions = weaver_.program.positions;
  append.cosines = cosines_.front();
  append.sines = sines_.front();
  append.cache = keys_[static_cast<size_t>(layer)];
  append.rank = latent_.rank;
  append.turned = latent_.turned;
  append.epsilon = static_cast<float>(kLatentNormEpsilon);
  made.push_back(angles_ready_.front());
  const EventId appended = weaver_.spread(
      weaver_.operation("latent_append", layer, all.rows, append), all.whole(1), made);

  LatentQueriesOp queries;
  describe(queries, layer);
  queries.q = q_;
  queries.cosines = cosines_.front();
  queries.sines = sines_.front();
  queries.out = queries_;
  queried.push_back(angles_ready_.front());
  const EventId ready =
      weaver_.spread(weaver_.operation("latent_queries", layer, all.rows, queries),
                     weaver_.by_heads(heads()), queried);
  ready_ = {{appended}, {ready}};
}

void LatentPlanner::attend(Residual& residual, Section& section, const LayerSpec& spec,
                           int64_t layer) {
  const bool split = !weaver_.chunk();
  AttentionOp op;
  op.q = queries_;
  op.keys = op.values = keys_[static_cast<size_t>(layer)];
  op.positions = weaver_.program.positions;
  op.partials = split ? partials_ : kNone;
  op.out = attended_;
  op.query_heads = heads();
  op.kv_heads = 1;
  op.head_dim = row();
  op.splits = split ? splits_ : 1;
  op.scale = static_cast<float>(spec.attention.scale);
  const int32_t id = weaver_.operation("attention", layer, section.rows, op);
  Waits attended = {{weaver_.spread(id, split ? by_tasks(op) : section.attention(1), ready_)}};
  if (split) {
    const int32_t merge =
        weaver_.operation("attention_combine", layer, section.rows, AttentionCombineOp{op});
    attended = {{weaver_.spread(merge, weaver_.by_heads(heads()), attended)}};
  }
  LatentValuesOp values;
  describe(values, layer);
  values.a = attended_;
  values.out = section.attention_out;
  const EventId done =
      weaver_.spread(weaver_.operation("latent_values", layer, section.rows, values),
                     weaver_.by_heads(heads()), attended);
  const int64_t size = heads() * latent_.value;
  const Tiles tiles = section.product(weaver_.config().hidden, size);
  const LinearOp output = output_product(weaver_, Role::attention_out, Role::attention_out_bias,
                                         layer, section.attention_out, size);
  residual.add(section, spec, layer, {{"o_proj", output}}, Role::attention_out_norm, tiles,
               {{done}});
}

}  // namespace

std::unique_ptr<AttentionPlanner> make_latent_planner(Weaver& weaver) {
  return std::make_unique<LatentPlanner>(weaver);
}

}  // namespace weft::planning

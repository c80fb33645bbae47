#include "program/plan_attention.h"

#include <algorithm>

#include "program/plan_latent.h"

namespace weft::planning {
namespace {

bool fused(const Weaver& weaver) { return weaver.options().fuse_attention && !weaver.chunk(); }

/// Query and key norms, rotation, cache, each an operation of its own.
class SeparateAttention : public AttentionPlanner {
 public:
  using AttentionPlanner::AttentionPlanner;

 protected:
  Space angles_space() const override { return Space::activation; }
  void spread_angles(int32_t op, Section& all, const Waits& next_step) override {
    const Tiles tiles = all.whole(weaver_.options().workers - 1);
    angles_ready_.push_back({weaver_.spread(op, tiles, next_step)});
  }
  bool always_splits() const override { return false; }
  void complete(AttentionOp& /*op*/, const LayerSpec& /*spec*/, int64_t /*layer*/) const override {}

  Waits prepare(Section& all, const LayerSpec& spec, int64_t layer, Waits projected) override {
    const AttentionSpec& attention = spec.attention;
    if (attention.qk_norm != QkNorm::none) {
      projected = norm_heads(all, spec, layer, projected);
    }
    RopeAppendOp op;
    op.q = q_;
    op.k = k_;
    op.v = v_;
    op.positions = weaver_.program.positions;
    set_rope(op, attention);
    if (attention.rope != kNoRope) {
      projected.push_back(angles_ready_[static_cast<size_t>(attention.rope)]);
    }
    op.q_out = q_rotated_;
    op.keys = keys_[static_cast<size_t>(layer)];
    op.values = values_[static_cast<size_t>(layer)];
    op.query_heads = attention.query_heads;
    op.kv_heads = attention.kv_heads;
    op.head_dim = attention.head_dim;
    const int32_t id = weaver_.operation("rope_append", layer, Rows::all, op);
    return {{weaver_.spread(id, all.heads(attention.kv_heads, 1), projected)}};
  }

 private:
  /// In place. Of norms per head, a worker norms the heads that it rotates next.
  Waits norm_heads(Section& all, const LayerSpec& spec, int64_t layer, const Waits& projected) {
    const AttentionSpec& attention = spec.attention;
    const bool per_head = attention.qk_norm == QkNorm::per_head;
    struct HeadNorm {
      const char* name;
      Role role;
      BufferId x;
      int64_t heads;
    };
    const HeadNorm norms[] = {{"q_norm", Role::query_norm, q_, attention.query_heads},
                              {"k_norm", Role::key_norm, k_, attention.kv_heads}};
    Waits normed;
    for (const HeadNorm& n : norms) {
      RmsNormOp op = rms_norm(weaver_, spec.norm, n.role, layer, n.x, n.x);
      op.columns = per_head ? attention.head_dim : n.heads * attention.head_dim;
      op.groups = per_head ? n.heads : 1;
      const int32_t id = weaver_.operation(n.name, layer, Rows::all, op);
      const Tiles tiles = per_head ? all.heads(attention.kv_heads, n.heads / attention.kv_heads)
                                   : all.whole(n.role == Role::query_norm ? 0 : 1);
      normed.push_back({weaver_.spread(id, tiles, projected)});
    }
    return normed;
  }

  Waits angles_ready_;  // [ropes]
};

/// Who attends norms and rotates its queries for itself, and one of them the step's own key.
class FusedAttention : public AttentionPlanner {
 public:
  using AttentionPlanner::AttentionPlanner;

 protected:
  Space angles_space() const override { return Space::worker; }
  void spread_angles(int32_t op, Section& /*all*/, const Waits& next_step) override {
    weaver_.repeat(op, next_step, weaver_.everyone());
  }
  bool always_splits() const override { return true; }
  Waits prepare(Section& /*all*/, const LayerSpec& /*spec*/, int64_t /*layer*/,
                Waits projected) override {
    return projected;
  }
  void complete(AttentionOp& op, const LayerSpec& spec, int64_t layer) const override {
    op.k = k_;
    op.v = v_;
    set_rope(op, spec.attention);
    op.query_norm = weaver_.weight(Role::query_norm, layer);
    op.key_norm = weaver_.weight(Role::key_norm, layer);
    op.whole_norm = spec.attention.qk_norm == QkNorm::whole;
    op.epsilon = static_cast<float>(spec.norm.epsilon);
    op.weight_offset = static_cast<float>(spec.norm.weight_offset);
  }
};

}  // namespace

bool merges_for_itself(const Weaver& weaver) {
  return fused(weaver) && weaver.options().sequences == 1 && !weaver.options().merge_once;
}

std::unique_ptr<AttentionPlanner> make_attention_planner(Weaver& weaver) {
  if (weaver.config().latent.rank > 0) {
    return make_latent_planner(weaver);
  }
  if (fused(weaver)) {
    return std::make_unique<FusedAttention>(weaver);
  }
  return std::make_unique<SeparateAttention>(weaver);
}

void AttentionPlanner::make_angle_buffers() {
  for (const RopeSpec& rope : weaver_.ropes()) {
    std::string number;  // none for the first
    if (!cosines_.empty()) {
      number.append(".").append(std::to_string(cosines_.size()));
    }
    const auto add = [&](const char* name) {
      return weaver_.buffer(name + number, angles_space(), Element::f32, weaver_.program.rows,
                            rope.dim / 2);
    };
    cosines_.push_back(add("cosines"));
    sines_.push_back(add("sines"));
  }
}

void AttentionPlanner::make_buffers() {
  const ModelConfig& config = weaver_.config();
  const PlanOptions& options = weaver_.options();
  const int64_t rows = weaver_.program.rows;
  const int64_t sequences = weaver_.program.sequences;
  const auto shared = [&](const char* name, Element element, int64_t columns) {
    return weaver_.buffer(name, Space::activation, element, rows, columns);
  };
  q_ = shared("q", Element::f32, config.query_size());
  k_ = shared("k", Element::f32, config.kv_size());
  v_ = shared("v", Element::f32, config.kv_size());
  const bool q_bf16 = weaver_.chunk() && options.kv == DType::bf16 &&
                      weaver_.chunk_element(Role::query, 0) == Element::bf16;
  q_rotated_ = q_bf16 ? shared("q_rotated", Element::bf16, config.query_size()) : q_;
  splits_ = std::max<int64_t>(1, options.attention_tasks / (config.kv_heads * sequences));
  if (sequences > 1 && config.query_heads * splits_ % 2 != 0) {
    ++splits_;  // each sequence's partials begin at a multiple of four elements, for vector loads
  }
  if (splits()) {
    partials_ = weaver_.buffer("partials", Space::activation, Element::f32, sequences,
                               config.query_heads * splits_ * (config.head_dim + 2));
  }
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const auto add = [&](const char* name) {
      const BufferId id =
          weaver_.buffer(name + std::to_string(layer), Space::kv, element_of(options.kv),
                         sequences * config.kv_heads, options.capacity * config.head_dim);
      weaver_.program.buffers.back().layer = layer;
      return id;
    };
    keys_.push_back(add("keys."));
    values_.push_back(add("values."));
  }
}

bool AttentionPlanner::near_heads() const {
  return weaver_.options().near_heads && !weaver_.chunk();
}

bool AttentionPlanner::splits() const {
  // Rows of several sequences are attended one by one, as splits are.
  return !weaver_.chunk() && (splits_ > 1 || always_splits() || weaver_.program.sequences > 1);
}

void AttentionPlanner::angles(Section& all, const Waits& next_step) {
  for (size_t i = 0; i < weaver_.ropes().size(); ++i) {
    const RopeSpec& rope = weaver_.ropes()[i];
    RopeAnglesOp op;
    op.positions = weaver_.program.positions;
    op.inverse_frequencies = weaver_.program.inverse_frequencies;
    op.cosines = cosines_[i];
    op.sines = sines_[i];
    op.rope = static_cast<int64_t>(i);
    op.half = rope.dim / 2;
    op.scale = static_cast<float>(rope.scaling.attention_factor);
    spread_angles(weaver_.operation("rope_angles", -1, Rows::all, op), all, next_step);
  }
}

void AttentionPlanner::project(Residual& residual, Section& all, const LayerSpec& spec,
                               int64_t layer) {
  const AttentionSpec& attention = spec.attention;
  struct Projection {
    const char* name;
    Role weight, bias;
    BufferId out;
    int64_t n;
  };
  const int64_t query_size = attention.query_heads * attention.head_dim;
  const int64_t kv_size = attention.kv_heads * attention.head_dim;
  const Projection projections[] = {
      {"q_proj", Role::query, Role::query_bias, q_, query_size},
      {"k_proj", Role::key, Role::key_bias, k_, kv_size},
      {"v_proj", Role::value, Role::value_bias, v_, kv_size},
  };
  const int64_t hidden = weaver_.config().hidden;
  const std::vector<Tiles> tiles =
      near_heads() ? weaver_.by_near_heads(
                         {query_size / attention.kv_heads, attention.head_dim, attention.head_dim},
                         attention.kv_heads, hidden, weaver_.options().columns)
                   : all.products({query_size, kv_size, kv_size}, hidden);
  Users users;
  for (const Tiles& of_one : tiles) {
    add_users(of_one, users);
  }
  Waits waits;
  const BufferId input = residual.input(all, spec, "attention_norm", layer, Role::attention_norm,
                                        Role::attention_norm_bias, users, waits);
  Waits projected;
  for (size_t i = 0; i < std::size(projections); ++i) {
    const Projection& p = projections[i];
    LinearOp op;
    op.weight = weaver_.weight(p.weight, layer);
    op.bias = weaver_.weight(p.bias, layer);
    op.a = input;
    op.out = p.out;
    op.n = p.n;
    op.k = hidden;
    const int32_t id = weaver_.operation(p.name, layer, all.rows, op);
    projected.push_back({weaver_.spread(id, tiles[i], waits)});
  }
  ready_ = prepare(all, spec, layer, std::move(projected));
}

void AttentionPlanner::attend(Residual& residual, Section& section, const LayerSpec& spec,
                              int64_t layer) {
  const AttentionSpec& attention = spec.attention;
  const bool split = splits();
  AttentionOp op;
  op.q = q_rotated_;
  op.keys = keys_[static_cast<size_t>(layer)];
  op.values = values_[static_cast<size_t>(layer)];
  op.positions = weaver_.program.positions;
  op.partials = split ? partials_ : kNone;
  op.out = section.attention_out;
  op.query_heads = attention.query_heads;
  op.kv_heads = attention.kv_heads;
  op.head_dim = attention.head_dim;
  op.window = attention.window;
  op.splits = split ? splits_ : 1;
  op.scale = static_cast<float>(attention.scale);
  op.soft_cap = static_cast<float>(attention.soft_cap);
  op.sinks = weaver_.weight(Role::attention_sinks, layer);
  complete(op, spec, layer);
  const int32_t id = weaver_.operation("attention", layer, section.rows, op);
  const EventId done =
      weaver_.spread(id, split ? by_tasks(op) : section.attention(op.kv_heads), ready_);
  const int64_t query_size = op.query_heads * op.head_dim;
  Users mergers;
  if (split && weaver_.options().merge_once && !near_heads()) {
    add_users(weaver_.by_heads_from_last(op.query_heads), mergers);
  }
  const Tiles tiles = outputs(section, query_size, mergers);
  const Waits merged = split ? combine(section, op, layer, done, tiles) : Waits{{done}};
  const LinearOp output = output_product(weaver_, Role::attention_out, Role::attention_out_bias,
                                         layer, section.attention_out, query_size);
  residual.add(section, spec, layer, {{"o_proj", output}}, Role::attention_out_norm, tiles, merged);
}

Tiles AttentionPlanner::outputs(Section& section, int64_t size, const Users& late) {
  const int64_t hidden = weaver_.config().hidden;
  const auto others = weaver_.by_others(hidden, size, weaver_.options().columns, late);
  return others ? *others : section.product(hidden, size);
}

Tiles AttentionPlanner::by_tasks(const AttentionOp& op) const {
  const int64_t workers = weaver_.options().workers;
  const int64_t sequences = weaver_.program.sequences;
  Tiles tiles(static_cast<size_t>(workers));
  if (near_heads()) {
    const int64_t of_head = op.splits * sequences;
    for (const Weaver::Neighbours& near : weaver_.neighbours(op.kv_heads)) {
      const auto count = static_cast<int64_t>(near.end - near.first);
      const int64_t tasks = near.heads.size() * of_head;
      for (int64_t i = 0; i < count; ++i) {
        for (int64_t task = tasks * i / count; task < tasks * (i + 1) / count; ++task) {
          const int64_t head = near.heads.begin + task / of_head;
          const int64_t row = task % of_head % sequences;
          tiles[near.first + static_cast<size_t>(i)].push_back(
              {{row, row + 1}, {head, head + 1}, static_cast<int32_t>(task % of_head / sequences)});
        }
      }
    }
    return tiles;
  }
  const int64_t tasks = op.splits * sequences * op.kv_heads;
  for (int64_t w = 0; w < workers; ++w) {
    int64_t task = tasks * w / workers;
    const int64_t end = tasks * (w + 1) / workers;
    while (task < end) {
      const int64_t run = task / op.kv_heads;
      const int64_t stop = std::min(end, (run + 1) * op.kv_heads);
      const int64_t row = run % sequences;
      tiles[static_cast<size_t>(w)].push_back({{row, row + 1},
                                               {task - run * op.kv_heads, stop - run * op.kv_heads},
                                               static_cast<int32_t>(run / sequences)});
      task = stop;
    }
  }
  return tiles;
}

Waits AttentionPlanner::combine(Section& section, const AttentionOp& op, int64_t layer,
                                EventId done, const Tiles& readers) {
  const int32_t id =
      weaver_.operation("attention_combine", layer, section.rows, AttentionCombineOp{op});
  if (!merges_for_itself(weaver_)) {
    return {{weaver_.spread(id,
                            near_heads() ? weaver_.by_heads(op.query_heads)
                                         : weaver_.by_heads_from_last(op.query_heads),
                            {{done}})}};
  }
  Users users;
  add_users(readers, users);
  weaver_.repeat(id, {{done}}, users, {0, op.query_heads});
  return {};
}

}  // namespace weft::planning

#include "program/planner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "model/layer.h"

namespace weft {
namespace {

// Rows of a chunk are dealt to workers in blocks of this many, in turn, so that a chunk that is not
// full keeps all workers busy.
constexpr int64_t kRowBlock = 16;
constexpr int64_t kAttentionRowBlock = 64;
// A chunk's shares of columns are multiples of this: whole panels of a GEMM.
constexpr int64_t kChunkColumns = 64;
// Shares of fewer weights than this stay whole grains: an SM of an H200 has as many in store when a
// product's row comes, so that evener ones would not end earlier.
constexpr int64_t kWeightsInStore = 1 << 17;

/// One tile of an operation.
struct Tile {
  Range rows;
  Range tile;
  int32_t split = 0;
};
using Tiles = std::vector<std::vector<Tile>>;  // [worker]
using Waits = std::vector<Wait>;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Marks the workers that have a tile.
void add_users(const Tiles& tiles, std::vector<bool>& users) {
  users.resize(tiles.size());
  for (size_t w = 0; w < tiles.size(); ++w) {
    users[w] = users[w] || !tiles[w].empty();
  }
}

class Planner {
 public:
  Planner(const ModelConfig& config, const Weights& weights, const PlanOptions& options)
      : config_(config), weights_(weights), options_(options) {
    WEFT_CHECK(options.workers >= 1 && options.rows >= 1 && options.capacity >= 1);
    WEFT_CHECK(options.sequences == 1 || (options.sequences > 1 && options.rows == 1));
    program_.name = options.rows == 1 ? "decode" : "chunk";
    program_.rows = options.rows * options.sequences;
    program_.sequences = options.sequences;
    program_.workers.resize(static_cast<size_t>(options.workers));
    dealt_.resize(static_cast<size_t>(options.workers));
  }

  Program run();

 private:
  // Buffers, operations, instructions.
  BufferId buffer(std::string name, Space space, Element element, int64_t rows, int64_t columns);
  WeightRef weight(Role role, int64_t layer = -1) const;
  int32_t operation(std::string name, int64_t layer, Rows rows, decltype(Operation::body) body);
  /// Gives each worker its tiles; the first waits, the last signals the event that is returned.
  EventId spread(int32_t op, const Tiles& tiles, const Waits& waits);
  /// Each of `users` does the whole of it for itself: nothing is announced.
  void repeat(int32_t op, const Waits& waits, const std::vector<bool>& users, Range tile = {0, 1});
  EventId on_one_worker(int32_t op, int worker, const Waits& waits);

  // Ways to cut an operation.
  Tiles by_columns(int64_t n, int64_t unit, Range rows) const;
  Tiles by_rows(Range tile) const;
  /// A sequence each, so that several workers are at work at once; of a chunk, all rows.
  /// `first`: the worker of the first sequence.
  Tiles by_sequences(Range tile, int64_t first = 0) const;
  Tiles by_heads(int64_t heads, Range rows) const;
  /// Products of one row, of columns[i] columns with k weights each, in grains of `grain` columns:
  /// in a decode step, the workers that have been dealt the fewest weights so far get the grains
  /// that do not divide evenly.
  std::vector<Tiles> by_weights(const std::vector<int64_t>& columns, int64_t k, int64_t grain,
                                bool many);
  Tiles by_weights(int64_t n, int64_t k, bool many) {
    return std::move(by_weights({n}, k, options_.columns, many).front());
  }
  /// Deals n columns in grains to workers [first, end). `had`: columns of the same product that a
  /// worker has already, of which it gets no more than `most` unless all have as many.
  Tiles deal(int64_t n, int64_t k, int64_t grain, size_t first, size_t end,
             std::vector<int64_t>& had, int64_t most);

  // The parts of a step. `many`: all rows of a chunk; otherwise one row (decode, or a chunk's
  // last).
  void begin_step();
  void attention_inputs(const LayerSpec& spec, int64_t layer);
  void attention_block(const LayerSpec& spec, int64_t layer, bool many);
  void ffn_block(const LayerSpec& spec, int64_t layer, bool many);
  /// f(gate) up, or f(up); the event that says so.
  EventId ffn_inputs(const LayerSpec& spec, int64_t layer, bool many, BufferId out);
  void logits(bool many);

  EventId linear(std::string name, int64_t layer, bool many, LinearOp op, const Tiles& tiles,
                 const Waits& waits);
  /// The value a projection reads: the norm of the residual, or the residual itself (norms after).
  /// In a decode step `users` make it for themselves.
  BufferId block_input(std::string name, int64_t layer, Role norm, Role bias, bool many,
                       const std::vector<bool>& users, Waits& waits);
  /// Adds a block's output projection to the residual, through a norm when norms stand after.
  void add_to_residual(const LayerSpec& spec, const std::string& name, int64_t layer, bool many,
                       LinearOp op, Role norm, const Tiles& tiles, const Waits& waits);
  /// `repeated`: the workers that make it for themselves; empty: it is shared.
  void norm(std::string name, int64_t layer, bool many, decltype(Operation::body) op,
            const Waits& waits, const std::vector<bool>& repeated, Waits& ready);
  std::vector<bool> everyone() const { return std::vector<bool>(program_.workers.size(), true); }

  Rows rows_of(bool many) const { return many || !chunk() ? Rows::all : Rows::last; }
  bool fused() const { return options_.fuse_attention && !chunk(); }
  /// Whether each worker merges attention's splits for itself. Of several sequences that would be
  /// more than an exchange costs.
  bool merges_itself() const { return fused() && options_.sequences == 1; }
  bool chunk() const { return options_.rows > 1; }
  Range all_rows() const { return {0, program_.rows}; }
  /// Format of activations that meet these weights in a chunk.
  Element chunk_element(Role role, int64_t layer) const {
    const bool round = options_.round_activations && weights_.get(role, layer).dtype == DType::bf16;
    return round ? Element::bf16 : Element::f32;
  }
  RmsNormOp rms_norm(Role role, int64_t layer, BufferId x, BufferId residual, BufferId out) const;
  /// The norm of the residual, of the kind that the model's layers have.
  decltype(Operation::body) input_norm(Role role, Role bias, int64_t layer, BufferId out) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const PlanOptions& options_;
  const std::vector<RopeSpec> ropes_ = ropes(config_);
  Program program_;

  // Shared activations of a chunk's rows; `one` beside them: of a single row (see buffers in
  // run()).
  struct Activations {
    BufferId input = kNone;      // a projection's input: normed residual
    BufferId attention = kNone;  // heads' outputs
    BufferId ffn = kNone;        // silu(gate) * up
    BufferId delta = kNone;      // a block's output, when a norm follows it
  };
  Activations many_, one_;
  BufferId residual_ = kNone, residual_copy_ = kNone;
  BufferId q_ = kNone, k_ = kNone, v_ = kNone, q_rotated_ = kNone, partials_ = kNone;
  std::vector<BufferId> cosines_, sines_;  // [ropes_]
  std::vector<BufferId> keys_, values_;
  int64_t splits_ = 1;
  std::vector<int64_t> dealt_;  // [worker]: weights so far
  Waits residual_ready_, angles_ready_, appended_;
};

BufferId Planner::buffer(std::string name, Space space, Element element, int64_t rows,
                         int64_t columns) {
  program_.buffers.push_back({std::move(name), space, element, rows, columns, -1});
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

WeightRef Planner::weight(Role role, int64_t layer) const {
  return {role, layer, weights_.find(role, layer) != nullptr};
}

int32_t Planner::operation(std::string name, int64_t layer, Rows rows,
                           decltype(Operation::body) body) {
  program_.operations.push_back({std::move(name), layer, rows, std::move(body)});
  return static_cast<int32_t>(program_.operations.size()) - 1;
}

EventId Planner::spread(int32_t op, const Tiles& tiles, const Waits& waits) {
  const auto event = static_cast<EventId>(program_.events.size());
  program_.events.push_back({program_.operations[static_cast<size_t>(op)].name, 0});
  for (size_t worker = 0; worker < tiles.size(); ++worker) {
    for (size_t i = 0; i < tiles[worker].size(); ++i) {
      const Tile& tile = tiles[worker][i];
      Instruction instruction{op, tile.rows, tile.tile, tile.split, {}, kNone};
      if (i == 0) {
        instruction.waits = waits;
      }
      if (i + 1 == tiles[worker].size()) {
        instruction.signal = event;
        ++program_.events.back().signals;
      }
      program_.workers[worker].push_back(std::move(instruction));
    }
  }
  return event;
}

void Planner::repeat(int32_t op, const Waits& waits, const std::vector<bool>& users, Range tile) {
  for (size_t w = 0; w < users.size(); ++w) {
    if (users[w]) {
      program_.workers[w].push_back({op, all_rows(), tile, 0, waits, kNone});
    }
  }
}

EventId Planner::on_one_worker(int32_t op, int worker, const Waits& waits) {
  Tiles tiles(program_.workers.size());
  tiles[static_cast<size_t>(worker) % tiles.size()].push_back({all_rows(), {0, 1}, 0});
  return spread(op, tiles, waits);
}

Tiles Planner::by_columns(int64_t n, int64_t unit, Range rows) const {
  const int64_t units = (n + unit - 1) / unit;
  const int64_t workers = options_.workers;
  Tiles tiles(static_cast<size_t>(workers));
  for (int64_t w = 0; w < workers; ++w) {
    const Range columns{units * w / workers * unit, std::min(n, units * (w + 1) / workers * unit)};
    if (!columns.empty()) {
      tiles[static_cast<size_t>(w)].push_back({rows, columns, 0});
    }
  }
  return tiles;
}

Tiles Planner::by_sequences(Range tile, int64_t first) const {
  Tiles tiles(static_cast<size_t>(options_.workers));
  for (int64_t row = 0; row < program_.sequences; ++row) {
    const Range rows = program_.sequences > 1 ? Range{row, row + 1} : all_rows();
    tiles[static_cast<size_t>((first + row) % options_.workers)].push_back({rows, tile, 0});
  }
  return tiles;
}

Tiles Planner::by_rows(Range tile) const {
  Tiles tiles(static_cast<size_t>(options_.workers));
  for (int64_t begin = 0, i = 0; begin < options_.rows; begin += kRowBlock, ++i) {
    const Range rows{begin, std::min(begin + kRowBlock, options_.rows)};
    tiles[static_cast<size_t>(i % options_.workers)].push_back({rows, tile, 0});
  }
  return tiles;
}

Tiles Planner::by_heads(int64_t heads, Range rows) const { return by_columns(heads, 1, rows); }

Tiles Planner::deal(int64_t n, int64_t k, int64_t grain, size_t first, size_t end,
                    std::vector<int64_t>& had, int64_t most) {
  const int64_t grains = ceil_div(n, grain);
  const auto workers = static_cast<int64_t>(end - first);
  std::vector<size_t> order(end - first);
  std::iota(order.begin(), order.end(), first);
  const int64_t each = grains / workers * grain;  // at least
  const auto place = [&](size_t w) { return std::pair(had[w] + each + grain > most, dealt_[w]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<int64_t> counts(dealt_.size(), grains / workers);
  for (int64_t i = 0; i < grains % workers; ++i) {
    ++counts[order[static_cast<size_t>(i)]];
  }
  Tiles tiles(dealt_.size());
  int64_t begin = 0;
  for (size_t w = first; w < end; ++w) {
    const int64_t stop = std::min(n, begin + counts[w] * grain);
    if (begin < stop) {
      tiles[w].push_back({all_rows(), {begin, stop}, 0});
      dealt_[w] += counts[w] * grain * k;
      had[w] += counts[w] * grain;
    }
    begin = stop;
  }
  return tiles;
}

std::vector<Tiles> Planner::by_weights(const std::vector<int64_t>& columns, int64_t k,
                                       int64_t grain, bool many) {
  std::vector<Tiles> tiles;
  if (many) {
    for (const int64_t n : columns) {
      tiles.push_back(by_columns(n, kChunkColumns, all_rows()));
    }
    return tiles;
  }
  // Of whole grains, the largest share is this; a part of a grain may make it smaller. Then each
  // worker has columns of one product, so that it has but one part.
  const int64_t workers = options_.workers;
  const auto needed = [&](int64_t unit) {  // units or, of shares, workers
    return std::accumulate(columns.begin(), columns.end(), int64_t{0},
                           [&](int64_t sum, int64_t n) { return sum + ceil_div(n, unit); });
  };
  int64_t share = ceil_div(needed(grain), workers) * grain;
  int64_t part = grain;
  // No more than two halvings; three quarters of a grain take as long as a whole one.
  for (int64_t p = grain / 2; p >= std::max(options_.fewest_columns, grain / 4); p /= 2) {
    int64_t s = p;
    while (s < share && (needed(s) > workers || s % grain == grain - grain / 4)) {
      s += p;
    }
    if (s < share && share * k >= kWeightsInStore) {
      share = s;
      part = p;
    }
  }
  std::vector<int64_t> had(dealt_.size());
  if (part == grain) {
    for (const int64_t n : columns) {
      tiles.push_back(deal(n, k, grain, 0, dealt_.size(), had, share));
    }
    return tiles;
  }
  int64_t spare = workers - needed(share);
  size_t first = 0;
  for (const int64_t n : columns) {
    const size_t end = first + static_cast<size_t>(ceil_div(n, share) + std::exchange(spare, 0));
    tiles.push_back(deal(n, k, part, first, end, had, share));
    first = end;
  }
  return tiles;
}

RmsNormOp Planner::rms_norm(Role role, int64_t layer, BufferId x, BufferId residual,
                            BufferId out) const {
  RmsNormOp op;
  op.weight = weight(role, layer);
  op.x = x;
  op.residual = residual;
  op.out = out;
  op.columns = config_.hidden;
  op.epsilon = static_cast<float>(config_.norm_epsilon);
  op.scale = static_cast<float>(config_.residual_multiplier);
  op.weight_offset = static_cast<float>(config_.norm_weight_offset);
  return op;
}

decltype(Operation::body) Planner::input_norm(Role role, Role bias, int64_t layer,
                                              BufferId out) const {
  if (config_.norm_kind == NormKind::rms) {
    return rms_norm(role, layer, residual_, kNone, out);
  }
  LayerNormOp op;
  op.weight = weight(role, layer);
  op.bias = weight(bias, layer);
  op.x = residual_;
  op.out = out;
  op.columns = config_.hidden;
  op.epsilon = static_cast<float>(config_.norm_epsilon);
  return op;
}

void Planner::norm(std::string name, int64_t layer, bool many, decltype(Operation::body) op,
                   const Waits& waits, const std::vector<bool>& repeated, Waits& ready) {
  const int32_t id = operation(std::move(name), layer, rows_of(many), std::move(op));
  if (!repeated.empty()) {
    repeat(id, waits, repeated);
    ready.clear();
  } else if (many) {
    ready = {{spread(id, by_rows({0, 1}), waits)}};
  } else {
    ready = {{on_one_worker(id, 0, waits)}};
  }
}

BufferId Planner::block_input(std::string name, int64_t layer, Role role, Role bias, bool many,
                              const std::vector<bool>& users, Waits& waits) {
  waits = residual_ready_;
  if (config_.norm_placement == NormPlacement::after && role != Role::final_norm) {
    return many && residual_copy_ != kNone ? residual_copy_ : residual_;
  }
  const BufferId out = many ? many_.input : one_.input;
  Waits ready;
  norm(std::move(name), layer, many, input_norm(role, bias, layer, out), waits,
       many ? std::vector<bool>{} : users, ready);
  waits = ready;
  return out;
}

EventId Planner::linear(std::string name, int64_t layer, bool many, LinearOp op, const Tiles& tiles,
                        const Waits& waits) {
  return spread(operation(std::move(name), layer, rows_of(many), op), tiles, waits);
}

void Planner::begin_step() {
  Waits next_step;
  if (options_.sample && !chunk()) {
    program_.sampled = static_cast<EventId>(program_.events.size());
    program_.events.push_back({"sampled", 0});
    next_step = {{program_.sampled, true}};
  }
  // Angles first: a device may know the position before the token.
  for (size_t i = 0; i < ropes_.size(); ++i) {
    RopeAnglesOp angles;
    angles.positions = program_.positions;
    angles.inverse_frequencies = program_.inverse_frequencies;
    angles.cosines = cosines_[i];
    angles.sines = sines_[i];
    angles.rope = static_cast<int64_t>(i);
    angles.half = ropes_[i].dim / 2;
    angles.scale = static_cast<float>(ropes_[i].scaling.attention_factor);
    const int32_t id = operation("rope_angles", -1, Rows::all, angles);
    if (fused()) {
      repeat(id, next_step, everyone());
    } else {
      angles_ready_.push_back({chunk() ? spread(id, by_rows({0, 1}), next_step)
                                       : on_one_worker(id, options_.workers - 1, next_step)});
    }
  }
  EmbedOp embed;
  embed.table = weight(Role::embedding);
  embed.tokens = program_.tokens;
  embed.out = residual_;
  embed.copy = residual_copy_;
  embed.columns = config_.hidden;
  embed.scale = static_cast<float>(config_.embedding_multiplier);
  const int32_t embed_id = operation("embed", -1, Rows::all, embed);
  if (chunk()) {
    residual_ready_ = {{spread(embed_id, by_rows({0, config_.hidden}), next_step)}};
  } else if (program_.buffers[static_cast<size_t>(residual_)].space == Space::worker) {
    repeat(embed_id, next_step, everyone());
  } else {
    // Not by those who sample: they have enough to do between two steps.
    residual_ready_ = {{spread(embed_id, by_sequences({0, 1}, program_.sequences), next_step)}};
  }
}

void Planner::attention_inputs(const LayerSpec& spec, int64_t layer) {
  const AttentionSpec& attention = spec.attention;
  const bool many = chunk();
  struct Projection {
    const char* name;
    Role weight, bias;
    BufferId out;
    int64_t n;
  };
  const Projection projections[] = {
      {"q_proj", Role::query, Role::query_bias, q_, config_.query_size()},
      {"k_proj", Role::key, Role::key_bias, k_, config_.kv_size()},
      {"v_proj", Role::value, Role::value_bias, v_, config_.kv_size()},
  };
  const std::vector<Tiles> tiles =
      by_weights({config_.query_size(), config_.kv_size(), config_.kv_size()}, config_.hidden,
                 options_.columns, many);
  std::vector<bool> users;
  for (const Tiles& of_one : tiles) {
    add_users(of_one, users);
  }
  Waits waits;
  const BufferId input = block_input("attention_norm", layer, Role::attention_norm,
                                     Role::attention_norm_bias, many, users, waits);
  Waits projected;
  for (size_t i = 0; i < std::size(projections); ++i) {
    const Projection& p = projections[i];
    LinearOp op;
    op.weight = weight(p.weight, layer);
    op.bias = weight(p.bias, layer);
    op.a = input;
    op.out = p.out;
    op.n = p.n;
    op.k = config_.hidden;
    projected.push_back({linear(p.name, layer, many, op, tiles[i], waits)});
  }

  if (fused()) {
    appended_ = projected;
    return;
  }

  // Query and key norms, in place.
  const int64_t group = config_.query_heads / config_.kv_heads;
  if (attention.qk_norm != QkNorm::none) {
    const bool per_head = attention.qk_norm == QkNorm::per_head;
    struct HeadNorm {
      const char* name;
      Role role;
      BufferId x;
      int64_t heads;
    };
    const HeadNorm norms[] = {{"q_norm", Role::query_norm, q_, config_.query_heads},
                              {"k_norm", Role::key_norm, k_, config_.kv_heads}};
    Waits normed;
    for (const HeadNorm& n : norms) {
      RmsNormOp op = rms_norm(n.role, layer, n.x, kNone, n.x);
      op.columns = per_head ? config_.head_dim : n.heads * config_.head_dim;
      op.groups = per_head ? n.heads : 1;
      const int32_t id = operation(n.name, layer, Rows::all, op);
      if (many) {
        normed.push_back({spread(id, by_rows({0, op.groups}), projected)});
      } else if (per_head) {
        // A worker norms the heads that it rotates next.
        Tiles tiles = by_heads(config_.kv_heads, all_rows());
        for (auto& worker : tiles) {
          for (Tile& tile : worker) {
            const int64_t each = n.role == Role::query_norm ? group : 1;
            tile.tile = {tile.tile.begin * each, tile.tile.end * each};
          }
        }
        normed.push_back({spread(id, tiles, projected)});
      } else {
        normed.push_back({on_one_worker(id, n.role == Role::query_norm ? 0 : 1, projected)});
      }
    }
    projected = normed;
  }

  RopeAppendOp rope;
  rope.q = q_;
  rope.k = k_;
  rope.v = v_;
  rope.positions = program_.positions;
  rope.unturned = attention.head_dim;
  if (attention.rope != kNoRope) {
    const auto at = static_cast<size_t>(attention.rope);
    rope.cosines = cosines_[at];
    rope.sines = sines_[at];
    rope.unturned -= ropes_[at].dim;
    projected.push_back(angles_ready_[at]);
  }
  rope.q_out = q_rotated_;
  rope.keys = keys_[static_cast<size_t>(layer)];
  rope.values = values_[static_cast<size_t>(layer)];
  rope.query_heads = config_.query_heads;
  rope.kv_heads = config_.kv_heads;
  rope.head_dim = config_.head_dim;
  const int32_t id = operation("rope_append", layer, Rows::all, rope);
  appended_ = {
      {spread(id, many ? by_rows({0, config_.kv_heads}) : by_heads(config_.kv_heads, all_rows()),
              projected)}};
}

void Planner::attention_block(const LayerSpec& spec, int64_t layer, bool many) {
  const bool split = !many && !chunk() && (splits_ > 1 || fused());
  AttentionOp op;
  op.q = q_rotated_;
  op.keys = keys_[static_cast<size_t>(layer)];
  op.values = values_[static_cast<size_t>(layer)];
  op.positions = program_.positions;
  op.partials = split ? partials_ : kNone;
  op.out = many ? many_.attention : one_.attention;
  op.query_heads = config_.query_heads;
  op.kv_heads = config_.kv_heads;
  op.head_dim = config_.head_dim;
  op.window = spec.attention.window;
  op.splits = split ? splits_ : 1;
  op.scale = static_cast<float>(spec.attention.scale);
  op.soft_cap = static_cast<float>(spec.attention.soft_cap);
  if (fused()) {
    op.partials = partials_;
    op.splits = splits_;
    op.k = k_;
    op.v = v_;
    op.unturned = spec.attention.head_dim;
    if (spec.attention.rope != kNoRope) {
      const auto at = static_cast<size_t>(spec.attention.rope);
      op.cosines = cosines_[at];
      op.sines = sines_[at];
      op.unturned -= ropes_[at].dim;
    }
    op.query_norm = weight(Role::query_norm, layer);
    op.key_norm = weight(Role::key_norm, layer);
    op.whole_norm = spec.attention.qk_norm == QkNorm::whole;
    op.epsilon = static_cast<float>(spec.norm.epsilon);
    op.weight_offset = static_cast<float>(spec.norm.weight_offset);
  }
  const int32_t id = operation("attention", layer, rows_of(many), op);

  Tiles tiles(program_.workers.size());
  if (split) {
    // Tasks in order of split, then sequence, then head; a worker's run of heads is one tile.
    const int64_t tasks = op.splits * program_.sequences * op.kv_heads;
    for (int64_t w = 0; w < options_.workers; ++w) {
      int64_t task = tasks * w / options_.workers;
      const int64_t end = tasks * (w + 1) / options_.workers;
      while (task < end) {
        const int64_t run = task / op.kv_heads;
        const int64_t stop = std::min(end, (run + 1) * op.kv_heads);
        const int64_t row = run % program_.sequences;
        tiles[static_cast<size_t>(w)].push_back(
            {{row, row + 1},
             {task - run * op.kv_heads, stop - run * op.kv_heads},
             static_cast<int32_t>(run / program_.sequences)});
        task = stop;
      }
    }
  } else if (many && op.kv_heads % options_.workers != 0) {
    // Causal rows cost more the later they are: blocks of (rows, head) in turn even that out.
    int64_t task = 0;
    for (int64_t head = 0; head < op.kv_heads; ++head) {
      for (int64_t begin = 0; begin < options_.rows; begin += kAttentionRowBlock, ++task) {
        const Range rows{begin, std::min(begin + kAttentionRowBlock, options_.rows)};
        tiles[static_cast<size_t>(task % options_.workers)].push_back({rows, {head, head + 1}, 0});
      }
    }
  } else {
    tiles = by_heads(op.kv_heads, all_rows());
  }
  EventId done = spread(id, tiles, appended_);
  Waits ready{{done}};
  const Tiles out_tiles = by_weights(config_.hidden, config_.query_size(), many);
  if (merges_itself()) {
    std::vector<bool> users;
    add_users(out_tiles, users);
    repeat(operation("attention_combine", layer, rows_of(many), AttentionCombineOp{op}), ready,
           users, {0, op.query_heads});
    ready.clear();
  } else if (split) {
    const int32_t combine =
        operation("attention_combine", layer, rows_of(many), AttentionCombineOp{op});
    ready = {{spread(combine, by_heads(op.query_heads, all_rows()), ready)}};
  }

  LinearOp out;
  out.weight = weight(Role::attention_out, layer);
  out.bias = weight(Role::attention_out_bias, layer);
  out.a = op.out;
  out.n = config_.hidden;
  out.k = config_.query_size();
  add_to_residual(spec, "o_proj", layer, many, out, Role::attention_out_norm, out_tiles, ready);
}

void Planner::add_to_residual(const LayerSpec& spec, const std::string& name, int64_t layer,
                              bool many, LinearOp op, Role role, const Tiles& tiles,
                              const Waits& waits) {
  if (!spec.norms_outputs()) {
    op.out = residual_;
    op.accumulate = true;
    op.alpha = static_cast<float>(spec.residual_scale);
    residual_ready_ = {{linear(name, layer, many, op, tiles, waits)}};
    return;
  }
  op.out = many ? many_.delta : one_.delta;
  const EventId projected = linear(name, layer, many, op, tiles, waits);
  const bool own_residual = program_.buffers[static_cast<size_t>(residual_)].space == Space::worker;
  norm(name + "_norm", layer, many,
       rms_norm(role, layer, op.out, residual_, many ? residual_copy_ : kNone), {{projected}},
       own_residual ? everyone() : std::vector<bool>{}, residual_ready_);
}

EventId Planner::ffn_inputs(const LayerSpec& spec, int64_t layer, bool many, BufferId out) {
  const FfnSpec& ffn = spec.ffn;
  // 32 gate and 32 up columns fill one GEMM panel.
  const Tiles tiles =
      !ffn.gated ? by_weights(ffn.size, config_.hidden, many)
      : many     ? by_columns(ffn.size, kChunkColumns / 2, all_rows())
             : by_weights({ffn.size}, 2 * config_.hidden, options_.gated_columns, false).front();
  std::vector<bool> users;
  add_users(tiles, users);
  Waits waits;
  const BufferId input =
      block_input("ffn_norm", layer, Role::ffn_norm, Role::ffn_norm_bias, many, users, waits);
  if (!ffn.gated) {
    LinearOp up;
    up.weight = weight(Role::up, layer);
    up.bias = weight(Role::up_bias, layer);
    up.a = input;
    up.out = out;
    up.n = ffn.size;
    up.k = config_.hidden;
    up.activation = ffn.activation;
    return linear("up_proj", layer, many, up, tiles, waits);
  }
  GatedLinearOp gated;
  gated.a = input;
  gated.gate = weight(Role::gate, layer);
  gated.up = weight(Role::up, layer);
  gated.gate_bias = weight(Role::gate_bias, layer);
  gated.up_bias = weight(Role::up_bias, layer);
  gated.out = out;
  gated.n = ffn.size;
  gated.k = config_.hidden;
  gated.activation = ffn.activation;
  return spread(operation("gate_up_proj", layer, rows_of(many), gated), tiles, waits);
}

void Planner::ffn_block(const LayerSpec& spec, int64_t layer, bool many) {
  LinearOp down;
  down.a = many ? many_.ffn : one_.ffn;
  const EventId done = ffn_inputs(spec, layer, many, down.a);
  down.weight = weight(Role::down, layer);
  down.bias = weight(Role::down_bias, layer);
  down.n = config_.hidden;
  down.k = spec.ffn.size;
  add_to_residual(spec, "down_proj", layer, many, down, Role::ffn_out_norm,
                  by_weights(down.n, down.k, many), {{done}});
}

void Planner::logits(bool many) {
  const Tiles tiles = by_weights(config_.vocabulary, config_.hidden, many);
  std::vector<bool> users;
  add_users(tiles, users);
  Waits waits;
  LinearOp head;
  head.a =
      block_input("final_norm", -1, Role::final_norm, Role::final_norm_bias, many, users, waits);
  head.weight = weight(Role::head);
  head.out = program_.logits;
  head.n = config_.vocabulary;
  head.k = config_.hidden;
  head.alpha = static_cast<float>(1.0 / config_.logits_divisor);
  head.soft_cap = static_cast<float>(config_.logits_soft_cap);
  const EventId done = linear("head", -1, many, head, tiles, waits);
  if (!options_.sample) {
    return;
  }
  const int32_t id =
      operation("sample", -1, rows_of(false),
                SampleOp{program_.logits, program_.tokens, program_.positions, config_.vocabulary});
  if (program_.sampled != kNone) {
    program_.events[static_cast<size_t>(program_.sampled)].signals =
        static_cast<int32_t>(program_.sequences);
  }
  const Tiles draws = by_sequences({0, 1});
  for (size_t w = 0; w < draws.size(); ++w) {
    for (const Tile& tile : draws[w]) {
      program_.workers[w].push_back({id, tile.rows, tile.tile, 0, {{done}}, program_.sampled});
    }
  }
}

Program Planner::run() {
  const int64_t rows = program_.rows;
  const int64_t one = program_.sequences;  // rows of what a chunk has one of
  const bool after = config_.norm_placement != NormPlacement::before;  // norms of outputs
  program_.tokens = buffer("tokens", Space::state, Element::i32, rows, 1);
  program_.positions = buffer("positions", Space::state, Element::i32, rows, 1);
  program_.inverse_frequencies = buffer("inverse_frequencies", Space::constant, Element::f32,
                                        std::ssize(ropes_), ropes_.front().dim / 2);
  const Space angles = fused() ? Space::worker : Space::activation;
  for (const RopeSpec& rope : ropes_) {
    const std::string number = cosines_.empty() ? "" : "." + std::to_string(cosines_.size());
    cosines_.push_back(buffer("cosines" + number, angles, Element::f32, rows, rope.dim / 2));
    sines_.push_back(buffer("sines" + number, angles, Element::f32, rows, rope.dim / 2));
  }
  // In a decode step with norms after the blocks every worker keeps the residual itself: adding a
  // normed row is cheaper than waiting for another to have done it.
  residual_ = buffer("residual", !chunk() && after ? Space::worker : Space::activation,
                     Element::f32, rows, config_.hidden);
  const Element chunk_format = chunk_element(Role::query, 0);
  if (chunk()) {
    if (config_.norm_placement == NormPlacement::after && chunk_format == Element::bf16) {
      residual_copy_ =
          buffer("residual_copy", Space::activation, Element::bf16, rows, config_.hidden);
    }
    many_.input = buffer("input", Space::activation, chunk_format, rows, config_.hidden);
    many_.attention = buffer("attention", Space::activation, chunk_element(Role::attention_out, 0),
                             rows, config_.query_size());
    many_.ffn = buffer("ffn", Space::activation, chunk_element(Role::down, 0), rows, config_.ffn);
    if (after) {
      many_.delta = buffer("delta", Space::activation, Element::f32, rows, config_.hidden);
    }
  }
  if (options_.logits != Logits::all) {
    one_.input = buffer("input_row", Space::worker, Element::f32, one, config_.hidden);
    one_.attention = buffer("attention_row", merges_itself() ? Space::worker : Space::activation,
                            Element::f32, one, config_.query_size());
    one_.ffn = buffer("ffn_row", Space::activation, Element::f32, one, config_.ffn);
    if (after) {
      one_.delta = buffer("delta_row", Space::activation, Element::f32, one, config_.hidden);
    }
  }
  q_ = buffer("q", Space::activation, Element::f32, rows, config_.query_size());
  k_ = buffer("k", Space::activation, Element::f32, rows, config_.kv_size());
  v_ = buffer("v", Space::activation, Element::f32, rows, config_.kv_size());
  const bool q_bf16 = chunk() && options_.kv == DType::bf16 && chunk_format == Element::bf16;
  q_rotated_ =
      q_bf16 ? buffer("q_rotated", Space::activation, Element::bf16, rows, config_.query_size())
             : q_;
  splits_ = std::max<int64_t>(1, options_.attention_tasks / (config_.kv_heads * one));
  if (!chunk() && (splits_ > 1 || fused())) {
    partials_ = buffer("partials", Space::activation, Element::f32, one,
                       config_.query_heads * splits_ * (config_.head_dim + 2));
  }
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const bool key : {true, false}) {
      const std::string name = (key ? "keys." : "values.") + std::to_string(layer);
      (key ? keys_ : values_)
          .push_back(buffer(name, Space::kv, element_of(options_.kv), one * config_.kv_heads,
                            options_.capacity * config_.head_dim));
      program_.buffers.back().layer = layer;
    }
  }
  if (options_.logits != Logits::none) {
    program_.logits = buffer("logits", Space::activation, Element::f32,
                             options_.logits == Logits::all ? rows : one, config_.vocabulary);
  }

  begin_step();
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const bool last = layer + 1 == config_.layers;
    const LayerSpec spec = layer_spec(config_, layer);
    attention_inputs(spec, layer);
    if (last && options_.logits == Logits::none) {
      break;  // the cache is all that is wanted
    }
    // Only the last row's logits are wanted: from here on, only that row is.
    const bool many = chunk() && !(last && options_.logits == Logits::last);
    attention_block(spec, layer, many);
    ffn_block(spec, layer, many);
  }
  if (options_.logits != Logits::none) {
    logits(chunk() && options_.logits == Logits::all);
  }
  return std::move(program_);
}

}  // namespace

Program plan(const ModelConfig& config, const Weights& weights, const PlanOptions& options) {
  return Planner(config, weights, options).run();
}

}  // namespace weft

#include "engine/cpu_interpreter.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "model/layer.h"
#include "ops/mla_prompt/op.h"

namespace weft {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t aligned(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A counter of an event's signals, on a cache line of its own.
struct alignas(kAlignment) Counter {
  std::atomic<int64_t> signals{0};
};

/// Returns when the counter has come to `signals`; calls idle() again and again until then. `idle`
/// says whether it still had something to do.
template <class Idle>
void wait_for(const Counter& counter, int64_t signals, Idle idle) {
  constexpr int kSpins =
      4000;  // some microseconds: longer than any exchange between running threads
  for (int spins = 0; counter.signals.load(std::memory_order_acquire) < signals;) {
    if (idle()) {
      continue;
    }
    if (++spins < kSpins) {
      __builtin_ia32_pause();
    } else {
      sched_yield();  // the producer may not be running: fewer cores than workers
    }
  }
}

/// Seconds that an instruction took in all steps of a run.
struct InstructionTime {
  double wait = 0, work = 0, slowest = 0;
};

/// Splits a worker's time into parts; reads no clock unless it is wanted.
class Stopwatch {
 public:
  explicit Stopwatch(bool wanted) : wanted_(wanted), last_(now()) {}
  /// Seconds since the last call.
  double lap() {
    const auto before = last_;
    last_ = now();
    return std::chrono::duration<double>(last_ - before).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point now() const { return wanted_ ? Clock::now() : Clock::time_point(); }

  bool wanted_;
  Clock::time_point last_;
};

/// The fused form of attention (see AttentionOp): the operations that it repeats, with a row of
/// prepared queries and one of keys in scratch between them.
struct FusedAttentionArgs {
  RmsNormArgs query_norm, key_norm;  ///< `out` in scratch; without weights: no norm
  RopeAppendArgs rope;               ///< `q_out` in scratch
  AttentionArgs attention;           ///< `q` in scratch

  int64_t query_size() const { return attention.query_heads * attention.head_dim; }
  int64_t kv_size() const { return attention.kv_heads * attention.head_dim; }
  size_t rows_bytes() const {  ///< of the two rows in scratch
    return aligned(static_cast<size_t>(query_size() + kv_size()) * sizeof(float));
  }
};

/// The same over latent rows; in scratch are the queries and the partials of attention, which sums
/// whole rows.
struct FusedLatentArgs {
  LatentAppendArgs append;
  LatentQueriesArgs queries;  ///< of which the turned parts are made; `out` in scratch
  ConstMatrix q;              ///< [1, query_heads * rank]
  AttentionArgs attention;    ///< `q` and `partials` in scratch
  float* partials = nullptr;  ///< [query_heads][splits][rank + 2]

  size_t query_bytes() const {
    return aligned(static_cast<size_t>(attention.query_heads * attention.head_dim) * sizeof(float));
  }
  size_t rows_bytes() const {
    return query_bytes() + aligned(static_cast<size_t>(attention.query_heads * attention.splits *
                                                       (attention.head_dim + 2)) *
                                   sizeof(float));
  }
};

/// Fused ones have tiles of columns.
struct LatentQueryColumnsArgs : LatentQueriesArgs {};
struct LatentValueColumnsArgs : LatentValuesArgs {};

using Bound = std::variant<EmbedArgs, RopeAnglesArgs, RmsNormArgs, LayerNormArgs, LinearArgs,
                           GatedLinearArgs, RopeAppendArgs, AttentionArgs, FusedAttentionArgs,
                           SampleArgs, RouteArgs, ExpertsUpArgs, ExpertsDownArgs, LatentAppendArgs,
                           LatentQueriesArgs, LatentValuesArgs, LatentAttentionArgs,
                           FusedLatentArgs, LatentQueryColumnsArgs, LatentValueColumnsArgs>;

}  // namespace

Result<CpuSequence> CpuSequence::create(const ModelConfig& config, int64_t capacity, DType kv,
                                        int64_t max_rows) {
  CpuSequence sequence;
  sequence.capacity = capacity;
  sequence.kv = kv;
  WEFT_TRY(sequence.allocate(config, capacity));
  sequence.tokens.resize(static_cast<size_t>(max_rows));
  sequence.positions.resize(static_cast<size_t>(max_rows));
  sequence.history.reserve(static_cast<size_t>(capacity) + 1);
  return sequence;
}

Result<CpuSequence> CpuSequence::create_paged(const ModelConfig& config, int64_t capacity,
                                              int64_t pages, DType kv, int64_t max_rows) {
  CpuSequence sequence;
  sequence.capacity = capacity;
  sequence.kv = kv;
  WEFT_TRY(sequence.allocate(config, pages * kKvPage));
  sequence.tokens.resize(static_cast<size_t>(max_rows));
  sequence.positions.resize(static_cast<size_t>(max_rows));
  sequence.tables.resize(static_cast<size_t>(max_rows));
  return sequence;
}

Status CpuSequence::allocate(const ModelConfig& config, int64_t positions) {
  const size_t bytes =
      static_cast<size_t>(config.kv_heads * positions * config.head_dim) * size_of(kv);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    WEFT_ASSIGN(Pages keys, Pages::allocate(bytes));
    this->keys.push_back(std::move(keys));
    if (config.latent.rank == 0) {
      WEFT_ASSIGN(Pages values, Pages::allocate(bytes));
      this->values.push_back(std::move(values));
    }
  }
  return {};
}

KvCache CpuSequence::cache(int64_t layer, int64_t kv_heads, int64_t head_dim) const {
  const auto i = static_cast<size_t>(layer);
  KvCache cache{keys[i].data(), (values.empty() ? keys : values)[i].data(), kv,
                capacity * head_dim};
  if (!tables.empty()) {
    cache.head_stride = kKvPage * head_dim;
    cache.page_stride = kv_heads * cache.head_stride;
    cache.tables = tables.data();
  }
  return cache;
}

class CpuInterpreter::Loaded {
 public:
  Program program;
  Pages memory;
  std::vector<size_t> offsets;            // [buffer]: in memory; Space::worker: of worker 0's
  size_t worker_bytes = 0;                // from one worker's private part to the next's
  std::vector<std::vector<Bound>> bound;  // [worker][operation]
  /// [worker][instruction]: the next instruction, it included and counted round into the next step,
  /// that streams weights from memory; -1 in a chunk of prefill, whose products do not.
  std::vector<std::vector<int32_t>> next_stream;
  std::vector<Pages> scratch;  // [worker]
  bool profile = false;
  std::vector<std::vector<InstructionTime>> times;  // [worker][instruction], of the last run
  int64_t timed_steps = 0;
  std::unique_ptr<Counter[]> counters;     // [event]
  std::vector<float> inverse_frequencies;  // [ropes()][dim / 2]
  int64_t frequencies_length = 0;          // that they were made for
  size_t logits_elements = 0;
  const float* logits = nullptr;
};

namespace {

/// Turns the operands of one operation into the addresses that one worker sees.
class Binder {
 public:
  Binder(const CpuInterpreter::Loaded& loaded, const Weights& weights, const PackedWeights* packed,
         CpuSequence& sequence, size_t worker)
      : loaded_(loaded),
        weights_(weights),
        packed_weights_(packed),
        sequence_(sequence),
        worker_(worker) {}

  Bound operator()(const EmbedOp& op) {
    return EmbedArgs{
        matrix(tensor(op.table)), i32(op.tokens), op.columns, op.scale, out(op.out), out(op.copy)};
  }
  Bound operator()(const RopeAnglesOp& op) {
    return RopeAnglesArgs{i32(op.positions), f32(op.inverse_frequencies) + op.rope * op.half,
                          op.half,           f32(op.cosines),
                          f32(op.sines),     op.scale};
  }
  Bound operator()(const RmsNormOp& op) {
    RmsNormArgs args;
    args.x = in(op.x);
    args.weight = vector(op.weight);
    args.columns = op.columns;
    args.groups = op.groups;
    args.epsilon = op.epsilon;
    args.scale = op.scale;
    args.residual = out(op.residual);
    args.out = out(op.out);
    args.weight_offset = op.weight_offset;
    return args;
  }
  Bound operator()(const LayerNormOp& op) {
    return LayerNormArgs{.x = in(op.x),
                         .weight = vector(op.weight),
                         .bias = vector(op.bias),
                         .columns = op.columns,
                         .epsilon = op.epsilon,
                         .out = out(op.out)};
  }
  Bound operator()(const LinearOp& op) {
    LinearArgs args;
    args.a = in(op.a);
    args.w = matrix(tensor(op.weight));
    args.bias = vector(op.bias);
    args.packed = packed(tensor(op.weight));
    args.scales = tensor(op.weight).scales;
    args.rounding = rounding(op.rounding, tensor(op.weight));
    args.n = op.n;
    args.k = op.k;
    args.alpha = op.alpha;
    args.accumulate = op.accumulate;
    args.activation = op.activation;
    args.soft_cap = op.soft_cap;
    args.out = out(op.out);
    return args;
  }
  Bound operator()(const GatedLinearOp& op) {
    GatedLinearArgs args;
    args.a = in(op.a);
    args.gate = matrix(tensor(op.gate));
    args.up = matrix(tensor(op.up));
    args.gate_bias = vector(op.gate_bias);
    args.up_bias = vector(op.up_bias);
    args.packed = packed(tensor(op.gate));
    args.gate_scales = tensor(op.gate).scales;
    args.up_scales = tensor(op.up).scales;
    args.rounding = rounding(op.rounding, tensor(op.gate));
    args.n = op.n;
    args.k = op.k;
    args.out = out(op.out);
    args.activation = op.activation;
    return args;
  }
  Bound operator()(const RopeAppendOp& op) {
    RopeAppendArgs args = rope(op);
    args.q_out = out(op.q_out);
    return args;
  }
  Bound operator()(const AttentionOp& op) {
    const AttentionArgs args = attention(op);
    if (op.fused_latent()) {
      return fused_latent(op, args);
    }
    if (op.k == kNone) {
      return args;
    }
    FusedAttentionArgs fused;
    fused.attention = args;
    const auto norm = [&](const WeightRef& weight, BufferId x, int64_t heads) {
      RmsNormArgs norm;
      norm.x = in(x);
      norm.weight = vector(weight);
      norm.columns = op.whole_norm ? heads * op.head_dim : op.head_dim;
      norm.groups = op.whole_norm ? 1 : heads;
      norm.epsilon = op.epsilon;
      norm.weight_offset = op.weight_offset;
      return norm;
    };
    fused.query_norm = norm(op.query_norm, op.q, op.query_heads);
    fused.key_norm = norm(op.key_norm, op.k, op.kv_heads);
    fused.rope = rope(op);
    return fused;
  }
  Bound operator()(const AttentionCombineOp& op) { return attention(op.attention); }
  Bound operator()(const SampleOp& op) {
    SampleArgs args;
    args.logits = f32(op.logits);
    args.vocabulary = op.vocabulary;
    return args;
  }
  Bound operator()(const RouteOp& op) {
    return RouteArgs{.logits = in(op.logits),
                     .experts = op.experts,
                     .sigmoid = op.sigmoid,
                     .renormalise = op.renormalise,
                     .drawn = drawn(op.ids, op.weights, op.chosen),
                     .correction = vector(op.correction),
                     .groups = op.groups,
                     .kept_groups = op.kept_groups,
                     .scale = op.scale};
  }
  Bound operator()(const ExpertsUpOp& op) {
    ExpertsUpArgs args;
    args.a = in(op.a);
    args.drawn = drawn(op.ids, kNone, op.chosen);
    args.drawn.alone = op.alone;
    args.out = out(op.out);
    args.out.stride = op.n;
    args.flat = op.flat;
    const auto gates = weights_.of_experts(op.gate.role, op.gate.layer, op.experts);
    const auto ups = weights_.of_experts(op.up.role, op.up.layer, op.experts);
    for (size_t e = 0; e < gates.size(); ++e) {
      GatedLinearArgs expert;
      expert.gate = matrix(gates[e]);
      expert.up = matrix(ups[e]);
      expert.packed = packed(gates[e]);
      expert.gate_scales = gates[e].scales;
      expert.up_scales = ups[e].scales;
      expert.rounding = rounding(op.rounding, gates[e]);
      expert.n = op.n;
      expert.k = op.k;
      expert.activation = op.activation;
      expert.gate_bias = part_of(vector(op.gate_bias), e, op.n);
      expert.up_bias = part_of(vector(op.up_bias), e, op.n);
      args.experts.push_back(expert);
      if (gates[e].mx.k > 0) {
        args.gates.push_back(gates[e].mx);
        args.ups.push_back(ups[e].mx);
      }
    }
    args.limit = op.limit;
    return args;
  }
  Bound operator()(const ExpertsDownOp& op) {
    ExpertsDownArgs args;
    args.a = in(op.a);
    args.a.stride = op.k;
    args.drawn = drawn(op.ids, op.weights, op.chosen);
    args.drawn.alone = op.alone;
    for (const Tensor& weight : weights_.of_experts(op.weight.role, op.weight.layer, op.experts)) {
      LinearArgs expert;
      expert.w = matrix(weight);
      expert.packed = packed(weight);
      expert.scales = weight.scales;
      expert.rounding = rounding(op.rounding, weight);
      expert.n = op.n;
      expert.k = op.k;
      expert.bias = part_of(vector(op.bias), args.experts.size(), op.n);
      args.experts.push_back(expert);
      if (weight.mx.k > 0) {
        args.mx.push_back(weight.mx);
      }
    }
    args.alpha = op.alpha;
    args.accumulate = op.accumulate;
    args.out = out(op.out);
    return args;
  }

  Bound operator()(const LatentAppendOp& op) {
    LatentAppendArgs args;
    args.x = in(op.x);
    args.norm = vector(op.norm);
    args.rank = op.rank;
    args.turned = op.turned;
    args.epsilon = op.epsilon;
    args.positions = i32(op.positions);
    args.cosines = f32(op.cosines);
    args.sines = f32(op.sines);
    args.cache = cache(op.cache, 1, op.rank + op.turned);
    return args;
  }
  Bound operator()(const LatentQueriesOp& op) {
    const LatentQueriesArgs args{.of = latent_heads(op),
                                 .q = in(op.q),
                                 .cosines = f32(op.cosines),
                                 .sines = f32(op.sines),
                                 .out = out(op.out)};
    return op.fused ? Bound(LatentQueryColumnsArgs{args}) : Bound(args);
  }
  Bound operator()(const LatentValuesOp& op) {
    const LatentValuesArgs args{
        .of = latent_heads(op), .a = in(op.a), .pitch = op.pitch(), .out = out(op.out)};
    return op.fused ? Bound(LatentValueColumnsArgs{args}) : Bound(args);
  }
  Bound operator()(const LatentAttentionOp& op) {
    return LatentAttentionArgs{.of = latent_heads(op),
                               .q = in(op.q),
                               .cosines = f32(op.cosines),
                               .sines = f32(op.sines),
                               .positions = i32(op.positions),
                               .cache = cache(op.cache, 1, op.rank + op.turned),
                               .element = dtype_of(op.element),
                               .scale = op.scale,
                               .out = out(op.out),
                               .absorbs = op.absorbs};
  }

 private:
  FusedLatentArgs fused_latent(const AttentionOp& op, const AttentionArgs& attention) const {
    FusedLatentArgs args;
    const int64_t row = op.head_dim + op.latent.turned;
    args.append = {.x = in(op.k),
                   .norm = vector(op.key_norm),
                   .rank = op.head_dim,
                   .turned = op.latent.turned,
                   .epsilon = op.epsilon,
                   .positions = i32(op.positions),
                   .cosines = f32(op.cosines),
                   .sines = f32(op.sines),
                   .cache = cache(op.keys, 1, row)};
    args.queries.of = {.heads = op.query_heads,
                       .rank = op.head_dim,
                       .unturned = op.latent.unturned,
                       .turned = op.latent.turned,
                       .w = {}};
    args.queries.q = in(op.latent.projected);
    args.queries.cosines = f32(op.cosines);
    args.queries.sines = f32(op.sines);
    args.q = in(op.q);
    args.attention = attention;
    args.attention.cache = args.append.cache;
    args.attention.head_dim = row;
    args.partials = attention.partials;
    return args;
  }
  LatentHeads latent_heads(const LatentHeadsOp& op) const {
    const Tensor& weight = tensor(op.weight);
    return {op.heads, op.rank, op.unturned, op.turned, op.value, matrix(weight), weight.scales};
  }
  /// The part of expert `e` in a vector of all experts'.
  static ConstVector part_of(ConstVector all, size_t e, int64_t n) {
    if (all.data != nullptr) {
      all.data = static_cast<const std::byte*>(all.data) +
                 static_cast<int64_t>(e) * n * static_cast<int64_t>(size_of(all.dtype));
    }
    return all;
  }
  Drawn drawn(BufferId ids, BufferId weights, int64_t chosen) const {
    return {i32(ids), f32(weights), chosen,
            stride(loaded_.program.buffers[static_cast<size_t>(ids)])};
  }
  /// What rope_append and the fused form of attention have in common.
  template <class Op>
  RopeAppendArgs rope(const Op& op) const {
    RopeAppendArgs args;
    args.q = in(op.q);
    args.k = in(op.k);
    args.v = in(op.v);
    args.query_heads = op.query_heads;
    args.kv_heads = op.kv_heads;
    args.head_dim = op.head_dim;
    args.positions = i32(op.positions);
    args.cosines = f32(op.cosines);
    args.sines = f32(op.sines);
    args.cache = cache(op.keys, op.kv_heads, op.head_dim);
    args.unturned = op.unturned;
    return args;
  }
  AttentionArgs attention(const AttentionOp& op) const {
    AttentionArgs args;
    args.q = in(op.q);
    args.cache = cache(op.keys, op.kv_heads, op.head_dim);
    args.sinks = vector(op.sinks);
    args.query_heads = op.query_heads;
    args.kv_heads = op.kv_heads;
    args.head_dim = op.head_dim;
    args.positions = i32(op.positions);
    args.scale = op.scale;
    args.soft_cap = op.soft_cap;
    args.window = op.window;
    args.splits = op.splits;
    args.partials = f32(op.partials);
    args.out = out(op.out);
    return args;
  }
  void* address(BufferId id) const {
    if (id == kNone) {
      return nullptr;
    }
    const Buffer& buffer = loaded_.program.buffers[static_cast<size_t>(id)];
    switch (buffer.space) {
      case Space::state:
        return id == loaded_.program.tokens ? sequence_.tokens.data() : sequence_.positions.data();
      case Space::constant:
        // Never written: the program has it as Space::constant.
        return const_cast<float*>(loaded_.inverse_frequencies.data());
      case Space::kv:
        WEFT_CHECK(false);  // addressed through cache()
      case Space::activation:
        return loaded_.memory.data() + loaded_.offsets[static_cast<size_t>(id)];
      case Space::worker:
        return loaded_.memory.data() + loaded_.offsets[static_cast<size_t>(id)] +
               worker_ * loaded_.worker_bytes;
    }
    return nullptr;
  }
  float* f32(BufferId id) const { return static_cast<float*>(address(id)); }
  int32_t* i32(BufferId id) const { return static_cast<int32_t*>(address(id)); }

  /// A buffer of one row stands for the row that matters, whichever it is: stride 0.
  int64_t stride(const Buffer& buffer) const { return buffer.rows == 1 ? 0 : buffer.columns; }
  ConstMatrix in(BufferId id) const {
    const Matrix m = out(id);
    return {m.data, m.dtype, m.stride};
  }
  Matrix out(BufferId id) const {
    if (id == kNone) {
      return {};
    }
    const Buffer& buffer = loaded_.program.buffers[static_cast<size_t>(id)];
    return {address(id), dtype_of(buffer.element), stride(buffer)};
  }
  const Tensor& tensor(const WeightRef& ref) const { return weights_.get(ref.role, ref.layer); }
  static ConstMatrix matrix(const Tensor& tensor) {
    return {tensor.data, tensor.dtype, tensor.columns()};
  }
  static Fp8Rounding rounding(Fp8Rounding rounding, const Tensor& tensor) {
    rounding.scale = tensor.input_scale;
    return rounding;
  }
  const cpu::PackedMatrix* packed(const Tensor& tensor) const {
    return packed_weights_ == nullptr ? nullptr : packed_weights_->find(tensor);
  }
  ConstVector vector(const WeightRef& ref) const {
    if (!ref.present) {
      return {};
    }
    const Tensor& tensor = weights_.get(ref.role, ref.layer);
    return {tensor.data, tensor.dtype};
  }
  KvCache cache(BufferId keys, int64_t kv_heads, int64_t head_dim) const {
    const int64_t layer = loaded_.program.buffers[static_cast<size_t>(keys)].layer;
    return sequence_.cache(layer, kv_heads, head_dim);
  }

  const CpuInterpreter::Loaded& loaded_;
  const Weights& weights_;
  const PackedWeights* packed_weights_;
  CpuSequence& sequence_;
  size_t worker_;
};

/// Scratch that an operation needs for `rows` rows.
size_t scratch_bytes(const Bound& bound, int64_t rows) {
  struct Visitor {
    int64_t rows;
    size_t operator()(const LinearArgs& args) const {
      return cpu::linear_scratch_bytes(args, rows);
    }
    size_t operator()(const GatedLinearArgs& args) const {
      return cpu::gated_linear_scratch_bytes(args, rows);
    }
    size_t operator()(const AttentionArgs& args) const {
      return cpu::attention_scratch_bytes(args, rows);
    }
    size_t operator()(const FusedAttentionArgs& args) const {
      return args.rows_bytes() + (*this)(args.attention);
    }
    size_t operator()(const SampleArgs& args) const {
      return cpu::sample_scratch_bytes(args.vocabulary);
    }
    size_t operator()(const EmbedArgs&) const { return 0; }
    size_t operator()(const RopeAnglesArgs&) const { return 0; }
    size_t operator()(const RmsNormArgs&) const { return 0; }
    size_t operator()(const LayerNormArgs&) const { return 0; }
    size_t operator()(const RopeAppendArgs&) const { return 0; }
    size_t operator()(const RouteArgs&) const { return 0; }
    size_t operator()(const LatentAppendArgs&) const { return 0; }
    size_t operator()(const LatentQueriesArgs&) const { return 0; }
    size_t operator()(const LatentValuesArgs& args) const {
      return cpu::latent_values_scratch_bytes(args, rows);
    }
    size_t operator()(const LatentAttentionArgs& args) const {
      return cpu::latent_attention_scratch_bytes(args, rows, args.of.heads);
    }
    size_t operator()(const FusedLatentArgs& args) const {
      return args.rows_bytes() + (*this)(args.attention);
    }
    size_t operator()(const ExpertsUpArgs& args) const {
      return cpu::experts_up_scratch_bytes(args, rows);
    }
    size_t operator()(const ExpertsDownArgs& args) const {
      return cpu::experts_down_scratch_bytes(args, rows);
    }
  };
  return std::visit(Visitor{rows}, bound);
}

/// While a worker waits, runs ahead of it: brings the beginning of the weights that it streams next
/// into its second-level cache, so that memory is not idle while data is exchanged.
class RunAhead {
 public:
  RunAhead(const CpuInterpreter::Loaded& loaded, size_t worker)
      : instructions_(loaded.program.workers[worker]),
        bound_(loaded.bound[worker]),
        next_stream_(loaded.next_stream[worker]) {}

  /// From now on the worker waits before instruction `index`.
  void at(size_t index) {
    if (next_stream_[index] != target_) {
      target_ = next_stream_[index];
      line_ = 0;
    }
  }
  /// One line of each stream further. False: there is nothing more worth it.
  bool operator()() {
    if (target_ < 0 || line_ >= kLines) {
      return false;
    }
    const Instruction& instruction = instructions_[static_cast<size_t>(target_)];
    const Bound& bound = bound_[static_cast<size_t>(instruction.operation)];
    if (const auto* linear = std::get_if<LinearArgs>(&bound)) {
      cpu::linear_prefetch(*linear, instruction.tile, line_);
    } else if (const auto* gated = std::get_if<GatedLinearArgs>(&bound)) {
      cpu::gated_linear_prefetch(*gated, instruction.tile, line_);
    } else if (const auto* down = std::get_if<ExpertsDownArgs>(&bound)) {
      cpu::experts_down_prefetch(*down, instruction.tile, line_);
    }
    ++line_;
    return true;
  }

 private:
  // Of two to six streams, or four lines of packed weights: 128 to 384 KiB, what a second-level
  // cache of 1 MiB keeps.
  static constexpr int64_t kLines = 1024;

  const std::vector<Instruction>& instructions_;
  const std::vector<Bound>& bound_;
  const std::vector<int32_t>& next_stream_;
  int32_t target_ = -1;
  int64_t line_ = 0;
};

/// For each instruction of a worker, see Loaded::next_stream.
std::vector<int32_t> find_streams(const Program& program, size_t worker) {
  const auto& instructions = program.workers[worker];
  std::vector<int32_t> next(instructions.size(), -1);
  if (program.rows > program.sequences) {
    return next;
  }
  int32_t stream = -1;
  for (size_t pass = 0; pass < 2; ++pass) {  // the second time round knows the next step's first
    for (size_t i = instructions.size(); i-- > 0;) {
      const auto& body = program.operations[static_cast<size_t>(instructions[i].operation)].body;
      if (std::holds_alternative<LinearOp>(body) || std::holds_alternative<GatedLinearOp>(body) ||
          std::holds_alternative<ExpertsDownOp>(body)) {
        stream = static_cast<int32_t>(i);
      } else if (std::holds_alternative<ExpertsUpOp>(body)) {
        stream = -1;  // which experts is not known before it
      }
      next[i] = stream;
    }
  }
  return next;
}

/// Executes one instruction's tile. Sampling is the run loop's: it ends steps.
struct Execute {
  const Instruction& instruction;
  Range rows;
  bool combine;
  std::span<std::byte> scratch;
  std::span<const Instruction> following;  ///< of the same worker
  int64_t step_rows;

  void operator()(const EmbedArgs& args) const { cpu::embed(args, rows); }
  void operator()(const RopeAnglesArgs& args) const { cpu::rope_angles(args, rows); }
  void operator()(const RmsNormArgs& args) const {
    const Range groups = instruction.tile;
    if (groups.size() == args.groups) {
      cpu::rmsnorm(args, {rows.begin * args.groups, rows.end * args.groups});
      return;
    }
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      cpu::rmsnorm(args, {row * args.groups + groups.begin, row * args.groups + groups.end});
    }
  }
  void operator()(const LayerNormArgs& args) const { cpu::layernorm(args, rows); }
  void operator()(const LinearArgs& args) const {
    cpu::linear(args, rows, instruction.tile, scratch);
  }
  void operator()(const GatedLinearArgs& args) const {
    cpu::gated_linear(args, rows, instruction.tile, scratch);
  }
  void operator()(const RopeAppendArgs& args) const {
    cpu::rope_append(args, rows, instruction.tile);
  }
  void operator()(const AttentionArgs& args) const {
    if (combine) {
      cpu::attention_combine(args, rows, instruction.tile);
    } else {
      const auto next = next_attention(args);
      cpu::attention(args, rows, instruction.tile, instruction.split, scratch,
                     next ? &*next : nullptr);
    }
  }
  /// What the worker attends with next in the same operation.
  std::optional<AttentionTask> next_attention(const AttentionArgs& args) const {
    for (const Instruction& next : following) {
      if (next.operation != instruction.operation) {
        break;
      }
      const AttentionTask task{next.rows.begin, next.tile.begin, next.split};
      if (task.row < step_rows &&
          !attention_split(args.positions[task.row], args.window, args.splits, task.split)
               .empty()) {
        return task;
      }
    }
    return {};
  }
  /// Decode alone has this form: rows is {0, 1}.
  void operator()(const FusedAttentionArgs& args) const {
    auto* q = reinterpret_cast<float*>(scratch.data());
    float* k = q + args.query_size();
    const Range kv_heads = instruction.tile;
    const int64_t group = args.attention.query_heads / args.attention.kv_heads;
    const auto norm = [&](RmsNormArgs norm, Range heads, float* out) {
      norm.out = {out, DType::f32, 0};
      cpu::rmsnorm(norm, norm.groups == 1 ? Range{0, 1} : heads);
      return ConstMatrix{out, DType::f32, 0};
    };
    RopeAppendArgs rope = args.rope;
    rope.q_out = {q, DType::f32, 0};
    if (args.query_norm.weight.data != nullptr) {
      rope.q = norm(args.query_norm, {kv_heads.begin * group, kv_heads.end * group}, q);
    }
    const AttentionArgs& attention = args.attention;
    const int32_t position = attention.positions[0];
    const Range keys =
        attention_split(position, attention.window, attention.splits, instruction.split);
    if (keys.begin > position || position >= keys.end) {
      rope.cache = {};  // another split's instruction appends the row
    } else if (args.key_norm.weight.data != nullptr) {
      rope.k = norm(args.key_norm, kv_heads, k);
    }
    cpu::rope_append(rope, {0, 1}, kv_heads);
    AttentionArgs prepared = attention;
    prepared.q = {q, DType::f32, 0};
    cpu::attention(prepared, {0, 1}, kv_heads, instruction.split,
                   scratch.subspan(args.rows_bytes()));
  }
  void operator()(const SampleArgs&) const {}
  void operator()(const RouteArgs& args) const { cpu::route(args, rows); }
  void operator()(const LatentAppendArgs& args) const { cpu::latent_append(args, rows); }
  void operator()(const LatentQueriesArgs& args) const {
    cpu::latent_queries(args, rows, instruction.tile);
  }
  void operator()(const LatentValuesArgs& args) const {
    cpu::latent_values(args, rows, instruction.tile, scratch);
  }
  void operator()(const LatentAttentionArgs& args) const {
    cpu::latent_attention(args, rows, instruction.tile, scratch);
  }
  void operator()(const LatentQueryColumnsArgs& args) const {
    cpu::latent_query_columns(args, rows, instruction.tile);
  }
  void operator()(const LatentValueColumnsArgs& args) const {
    cpu::latent_value_columns(args, rows, instruction.tile, scratch);
  }
  /// Of decode steps on one thread: all whose keys include the step's own row append it.
  void operator()(const FusedLatentArgs& args) const {
    const Range heads = instruction.tile;
    AttentionArgs attention = args.attention;
    const int64_t row = attention.head_dim;
    const int64_t rank = args.append.rank;
    auto* q = reinterpret_cast<float*>(scratch.data());
    LatentQueriesArgs queries = args.queries;
    queries.out = {q, DType::f32, 0};
    cpu::latent_turned_queries(queries, {0, 1}, heads);
    const auto* unturned = static_cast<const float*>(args.q.data);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      std::copy_n(unturned + head * rank, rank, q + head * row);
    }
    const int32_t position = attention.positions[0];
    const Range keys = attention_split(position, 0, attention.splits, instruction.split);
    if (keys.begin <= position && position < keys.end) {
      cpu::latent_append(args.append, {0, 1});
    }
    attention.q = {q, DType::f32, 0};
    attention.partials = reinterpret_cast<float*>(scratch.data() + args.query_bytes());
    cpu::attention(attention, {0, 1}, {0, 1}, instruction.split,
                   scratch.subspan(args.rows_bytes()));
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t slot = head * attention.splits + instruction.split;
      const float* from = attention.partials + slot * (row + 2);
      float* to = args.partials + slot * (rank + 2);
      std::copy_n(from, rank, to);
      std::copy_n(from + row, 2, to + rank);
    }
  }
  void operator()(const ExpertsUpArgs& args) const {
    cpu::experts_up(args, rows, instruction.tile, scratch);
  }
  void operator()(const ExpertsDownArgs& args) const {
    cpu::experts_down(args, rows, instruction.tile, scratch);
  }
};

}  // namespace

CpuInterpreter::CpuInterpreter(const ModelConfig& config, const Weights& weights,
                               CpuSequence& sequence, WorkerTeam& team, const PackedWeights* packed)
    : config_(config), weights_(weights), sequence_(sequence), team_(team), packed_(packed) {}

Result<std::shared_ptr<CpuInterpreter::Loaded>> CpuInterpreter::load(Program program,
                                                                     bool profile) {
  auto loaded = std::make_shared<Loaded>();
  loaded->profile = profile;
  loaded->program = std::move(program);
  const Program& p = loaded->program;
  const size_t workers = p.workers.size();

  // Shared buffers first, then each worker's own.
  size_t shared = 0;
  loaded->offsets.resize(p.buffers.size());
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    const auto bytes = aligned(static_cast<size_t>(p.buffers[i].bytes()));
    if (p.buffers[i].space == Space::activation) {
      loaded->offsets[i] = shared;
      shared += bytes;
    } else if (p.buffers[i].space == Space::worker) {
      loaded->offsets[i] = loaded->worker_bytes;
      loaded->worker_bytes += bytes;
    }
  }
  for (size_t i = 0; i < p.buffers.size(); ++i) {
    loaded->offsets[i] += p.buffers[i].space == Space::worker ? shared : 0;
  }
  WEFT_ASSIGN(loaded->memory, Pages::allocate(shared + workers * loaded->worker_bytes));
  make_frequencies(*loaded);

  size_t scratch = 0;
  for (size_t worker = 0; worker < workers; ++worker) {
    Binder binder(*loaded, weights_, packed_, sequence_, worker);
    std::vector<Bound> bound;
    for (const Operation& operation : p.operations) {
      bound.push_back(std::visit(binder, operation.body));
      const int64_t rows = operation.rows == Rows::last ? 1 : p.rows;
      scratch = std::max(scratch, scratch_bytes(bound.back(), rows));
    }
    loaded->bound.push_back(std::move(bound));
    loaded->next_stream.push_back(find_streams(p, worker));
  }
  for (size_t worker = 0; worker < workers; ++worker) {
    WEFT_ASSIGN(Pages pages, Pages::allocate(scratch));
    loaded->scratch.push_back(std::move(pages));
  }
  loaded->counters = std::make_unique<Counter[]>(p.events.size());
  if (p.logits != kNone) {
    const Buffer& buffer = p.buffers[static_cast<size_t>(p.logits)];
    loaded->logits_elements = static_cast<size_t>(buffer.rows * buffer.columns);
    loaded->logits = reinterpret_cast<const float*>(loaded->memory.data() +
                                                    loaded->offsets[static_cast<size_t>(p.logits)]);
  }
  return loaded;
}

void CpuInterpreter::make_frequencies(Loaded& loaded) const {
  const std::vector<float> all = inverse_frequencies(config_, sequence_.length);
  loaded.inverse_frequencies.resize(all.size());  // once: bound operations point into it
  std::copy(all.begin(), all.end(), loaded.inverse_frequencies.begin());
  loaded.frequencies_length = sequence_.length;
}

std::span<const float> CpuInterpreter::logits(const Loaded& loaded) {
  return {loaded.logits, loaded.logits_elements};
}

std::optional<int32_t> CpuInterpreter::execute(Loaded& loaded, size_t worker,
                                               std::span<const Instruction> from, int64_t rows) {
  const Instruction& instruction = from.front();
  const auto index = static_cast<size_t>(instruction.operation);
  const Operation& operation = loaded.program.operations[index];
  const Bound& bound = loaded.bound[worker][index];
  const std::span<std::byte> scratch{loaded.scratch[worker].data(), loaded.scratch[worker].size()};
  const Range range = operation.rows == Rows::last
                          ? Range{rows - 1, rows}
                          : Range{instruction.rows.begin, std::min(instruction.rows.end, rows)};
  if (const auto* sample = std::get_if<SampleArgs>(&bound)) {
    // The token becomes the next step's input.
    SampleArgs args = *sample;
    const int32_t position = sequence_.positions[static_cast<size_t>(rows - 1)];
    args.options = sequence_.sampling;
    args.history = sequence_.history;
    args.draw = static_cast<uint64_t>(position) + 1;
    const int32_t token = cpu::sample(args, scratch);
    sequence_.history.push_back(token);
    sequence_.tokens[0] = token;
    sequence_.positions[0] = position + 1;
    return token;
  }
  if (!range.empty()) {
    const bool combine = std::holds_alternative<AttentionCombineOp>(operation.body);
    std::visit(Execute{instruction, range, combine, scratch, from.subspan(1), rows}, bound);
  }
  return {};
}

int64_t CpuInterpreter::run(Loaded& loaded, int64_t rows, int64_t steps,
                            const std::function<bool(int32_t)>& on_token) {
  const Program& program = loaded.program;
  WEFT_CHECK(static_cast<int>(program.workers.size()) == team_.size());
  WEFT_CHECK(rows >= 1 && rows <= program.rows);
  WEFT_CHECK(steps == 1 || program.sampled != kNone);
  if (loaded.frequencies_length != sequence_.length) {
    make_frequencies(loaded);
  }
  for (size_t event = 0; event < program.events.size(); ++event) {
    loaded.counters[event].signals.store(0, std::memory_order_relaxed);
  }
  loaded.times.clear();
  for (const auto& instructions : program.workers) {
    loaded.times.emplace_back(loaded.profile ? instructions.size() : 0);
  }
  std::atomic<bool> stop{false};
  int64_t steps_run = 0;

  team_.run([&](int worker_index) {
    const auto worker = static_cast<size_t>(worker_index);
    const std::vector<Instruction>& instructions = program.workers[worker];
    if (instructions.empty()) {
      return;  // more workers than the model has work for
    }
    RunAhead run_ahead(loaded, worker);
    Stopwatch watch(loaded.profile);
    for (int64_t step = 0; step < steps; ++step) {
      if (step > 0) {
        run_ahead.at(0);
        wait_for(loaded.counters[static_cast<size_t>(program.sampled)], step, std::ref(run_ahead));
        if (stop.load(std::memory_order_relaxed)) {
          break;
        }
      }
      for (size_t i = 0; i < instructions.size(); ++i) {
        const Instruction& instruction = instructions[i];
        run_ahead.at(i);
        for (const Wait& wait : instruction.waits) {
          const auto event = static_cast<size_t>(wait.event);
          const int64_t wanted = wait.previous_step ? step : step + 1;
          wait_for(loaded.counters[event], wanted * program.events[event].signals,
                   std::ref(run_ahead));
        }
        const double waited = watch.lap();
        if (const auto token = execute(loaded, worker, std::span(instructions).subspan(i), rows)) {
          ++steps_run;
          if (on_token && !on_token(*token)) {
            stop.store(true, std::memory_order_relaxed);
          }
        }
        if (instruction.signal != kNone) {
          loaded.counters[static_cast<size_t>(instruction.signal)].signals.fetch_add(
              1, std::memory_order_acq_rel);
        }
        if (loaded.profile) {
          const double worked = watch.lap();
          InstructionTime& time = loaded.times[worker][i];
          time.wait += waited;
          time.work += worked;
          time.slowest = std::max(time.slowest, worked);
        }
      }
    }
  });
  loaded.timed_steps = std::max<int64_t>(1, steps_run);
  return program.sampled == kNone ? 1 : steps_run;
}

void CpuInterpreter::run_operations(Loaded& loaded, int64_t rows, Range operations) {
  const Program& program = loaded.program;
  WEFT_CHECK(rows >= 1 && rows <= program.rows);
  WEFT_CHECK(operations.begin >= 0 &&
             operations.end <= static_cast<int64_t>(program.operations.size()));
  for (int64_t operation = operations.begin; operation < operations.end; ++operation) {
    for (size_t worker = 0; worker < program.workers.size(); ++worker) {
      for (const Instruction& instruction : program.workers[worker]) {
        if (instruction.operation == operation) {
          execute(loaded, worker, {&instruction, 1}, rows);
        }
      }
    }
  }
}

std::vector<OperationTime> CpuInterpreter::operation_times(const Loaded& loaded) {
  const auto steps = static_cast<double>(loaded.timed_steps);
  OperationTimes times;
  for (size_t worker = 0; worker < loaded.times.size(); ++worker) {
    for (size_t i = 0; i < loaded.times[worker].size(); ++i) {
      const auto operation = static_cast<size_t>(loaded.program.workers[worker][i].operation);
      const InstructionTime& time = loaded.times[worker][i];
      times.add({.name = loaded.program.operations[operation].name,
                 .wait = time.wait / steps,
                 .work = time.work / steps,
                 .slowest = time.slowest});
    }
  }
  return times.means();
}

std::span<std::byte> CpuInterpreter::buffer(const Loaded& loaded, BufferId id, size_t worker) {
  const Buffer& buffer = loaded.program.buffers[static_cast<size_t>(id)];
  WEFT_CHECK(buffer.space == Space::activation || buffer.space == Space::worker);
  const size_t own = buffer.space == Space::worker ? worker * loaded.worker_bytes : 0;
  return {loaded.memory.data() + loaded.offsets[static_cast<size_t>(id)] + own,
          static_cast<size_t>(buffer.bytes())};
}

}  // namespace weft

#include "engine/hopper/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "ops/attention/hopper_layout.h"
#include "ops/linear/hopper_layout.h"
#include "program/operands.h"

namespace weft::hopper {
namespace {

constexpr int64_t kArenaAlignment = 256;
constexpr int64_t kMostEvents = kPreviousStep - 1;

int64_t aligned(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

Status without_kernel(std::string_view what) {
  return input_error(
      fmt::format("{}: the cuda device has no kernel for it; use --device cpu", what));
}

/// Buffers that an operation writes, but for caches, and for angles, which stay in shared memory.
std::vector<BufferId> written_by(const Program& program, int32_t index) {
  const Operation& operation = program.operations[static_cast<size_t>(index)];
  std::vector<BufferId> buffers;
  if (std::holds_alternative<RopeAnglesOp>(operation.body)) {
    return buffers;
  }
  for (const Operand& operand : operands_of(operation)) {
    const Buffer& buffer = program.buffers[static_cast<size_t>(operand.buffer)];
    if (operand.written && buffer.space != Space::kv) {
      buffers.push_back(operand.buffer);
    }
  }
  return buffers;
}

/// Which buffers are rows as products take them: those of several sequences that are as they shall
/// be when they are written, with no norm to come.
std::vector<bool> operand_buffers(const Program& program) {
  std::vector<bool> operands(program.buffers.size(), false);
  for (int32_t i = 0; i < std::ssize(program.operations); ++i) {
    const auto& body = program.operations[static_cast<size_t>(i)].body;
    const auto* linear = std::get_if<LinearOp>(&body);
    const bool made_whole = std::holds_alternative<GatedLinearOp>(body) ||
                            std::holds_alternative<AttentionCombineOp>(body) ||
                            (linear != nullptr && linear->activation != Activation::none);
    for (const BufferId id : written_by(program, i)) {
      operands[static_cast<size_t>(id)] = made_whole && program.sequences > 1;
    }
  }
  return operands;
}

/// Which buffers' elements carry tags: what else is handed on within a step, but for logits.
std::vector<bool> tagged_buffers(const Program& program, const std::vector<bool>& operands) {
  std::vector<bool> tagged(program.buffers.size(), false);
  for (int32_t i = 0; i < std::ssize(program.operations); ++i) {
    for (const BufferId id : written_by(program, i)) {
      const Buffer& buffer = program.buffers[static_cast<size_t>(id)];
      tagged[static_cast<size_t>(id)] =
          (buffer.space == Space::activation || buffer.space == Space::worker) &&
          id != program.logits && !operands[static_cast<size_t>(id)];
    }
  }
  return tagged;
}

/// For each event, whether waiting for its operation's data makes waiting for it needless.
std::vector<bool> events_in_data(const Program& program, const std::vector<bool>& tagged) {
  std::vector<bool> result(program.events.size(), false);
  for (const auto& worker : program.workers) {
    for (const Instruction& instruction : worker) {
      if (instruction.signal != kNone && instruction.signal != program.sampled) {
        const auto written = written_by(program, instruction.operation);
        result[static_cast<size_t>(instruction.signal)] =
            std::all_of(written.begin(), written.end(),
                        [&](BufferId id) { return tagged[static_cast<size_t>(id)]; });
      }
    }
  }
  return result;
}

/// Whether an operation has what ModelShape::general names.
struct IsGeneral {
  bool operator()(const LayerNormOp& /*op*/) const { return true; }
  bool operator()(const RmsNormOp& op) const { return op.weight_offset != 0; }
  bool operator()(const LinearOp& op) const {
    return op.activation != Activation::none || op.soft_cap > 0;
  }
  bool operator()(const GatedLinearOp& op) const { return op.activation != Activation::silu; }
  bool operator()(const AttentionOp& op) const {
    return op.soft_cap > 0 || op.weight_offset != 0 || op.unturned > 0;
  }
  template <class Op>
  bool operator()(const Op& /*op*/) const {
    return false;
  }
};

/// Lowers the instructions of one worker.
class WorkerLowering {
 public:
  WorkerLowering(const Program& program, const Weights& weights, const Arena& arena,
                 const std::vector<bool>& in_data, const std::vector<bool>& plain, size_t worker,
                 Lowered& out)
      : program_(program),
        weights_(weights),
        arena_(arena),
        in_data_(in_data),
        plain_(plain),
        worker_(worker),
        out_(out) {}

  Status run() {
    out_.streams.push_back(out_.packed_bytes);
    for (const Instruction& instruction : program_.workers[worker_]) {
      WEFT_TRY(lower(instruction));
    }
    pack_product();
    if (!codes().empty()) {
      codes().back().ends_step = 1;
    }
    out_.most_codes = std::max(out_.most_codes, static_cast<int32_t>(codes().size()));
    return {};
  }

 private:
  std::vector<Code>& codes() { return out_.codes[worker_]; }

  Status lower(const Instruction& instruction) {
    const Operation& operation = program_.operations[static_cast<size_t>(instruction.operation)];
    instruction_ = &instruction;
    code_ = {};
    code_.operation = instruction.operation;
    joined_ = left_to_product_ = false;
    WEFT_TRY(std::visit(*this, operation.body));
    for (const Wait& wait : instruction.waits) {
      const bool begins_step = wait.previous_step && wait.event == program_.sampled;
      if (!begins_step && !in_data_[static_cast<size_t>(wait.event)]) {
        waits_.push_back(
            static_cast<uint16_t>(wait.event | (wait.previous_step ? kPreviousStep : 0)));
      }
    }
    if (left_to_product_) {
      WEFT_CHECK(instruction.signal == kNone || in_data_[static_cast<size_t>(instruction.signal)]);
      return {};
    }
    Code* code = &code_;
    if (joined_) {
      code = &codes().back();
    } else {
      if (waits_.size() > static_cast<size_t>(kMostWaits)) {
        return input_error(fmt::format("{} waits for more events than the {} of the kernel's codes",
                                       operation.name, kMostWaits));
      }
      std::copy(waits_.begin(), waits_.end(), code->wait);
      code->waits = static_cast<uint8_t>(waits_.size());
      waits_.clear();
    }
    if (instruction.signal != kNone && instruction.signal != program_.sampled &&
        !in_data_[static_cast<size_t>(instruction.signal)]) {
      WEFT_CHECK(code->signals < kMostSignals);
      code->signal[code->signals++] = static_cast<uint16_t>(instruction.signal);
    }
    if (!joined_) {
      codes().push_back(code_);
    }
    return {};
  }

  // Places.
  Place buffer(BufferId id) const {
    if (id == kNone) {
      return kNowhere;
    }
    const auto index = static_cast<size_t>(id);
    const bool own = program_.buffers[index].space == Space::worker;
    WEFT_CHECK(arena_.buffers[index] >= 0);
    return arena_.buffers[index] + (own ? static_cast<int64_t>(worker_) * arena_.worker_bytes : 0);
  }
  /// The version that this instruction writes to a buffer.
  Version version(BufferId id) const {
    return arena_.tagged[static_cast<size_t>(id)]     ? instruction_->operation
           : arena_.operands[static_cast<size_t>(id)] ? kOperands
                                                      : kPlain;
  }
  /// The version of a buffer that this instruction reads: the last operation's before it that wrote
  /// it.
  Version source(BufferId id) const {
    if (!arena_.tagged[static_cast<size_t>(id)]) {
      return arena_.operands[static_cast<size_t>(id)] ? kOperands : kPlain;
    }
    for (int32_t i = instruction_->operation - 1; i >= 0; --i) {
      const auto written = written_by(program_, i);
      if (std::find(written.begin(), written.end(), id) != written.end()) {
        return i;
      }
    }
    WEFT_CHECK(false);  // verify() has seen that every read has a write before it
  }
  const Tensor& tensor(const WeightRef& ref) const { return weights_.get(ref.role, ref.layer); }
  int64_t weight_bytes(const WeightRef& ref) const {
    return arena_.weights[static_cast<size_t>(&tensor(ref) - weights_.tensors().data())];
  }
  Result<Place> weight(const WeightRef& ref) const {
    if (!ref.present) {
      return kNowhere;
    }
    const Tensor& t = tensor(ref);
    if (t.dtype != DType::bf16) {
      return input_error(
          fmt::format("{} is {}: the cuda device runs bf16 weights; use --device cpu", t.name,
                      name_of(t.dtype)));
    }
    return weight_bytes(ref);
  }
  /// A bias's elements from `column` on.
  Result<Place> bias(const WeightRef& ref, int64_t column) const {
    WEFT_ASSIGN(const Place base, weight(ref));
    return base == kNowhere ? base : base + column * size_of(Element::bf16);
  }

  /// The tile of a product's out.
  Result<Segment> segment_of(BufferId out, const WeightRef& bias_ref, int64_t n) const {
    const Range columns = instruction_->tile;
    Segment segment;
    segment.version = version(out);
    segment.out = buffer(out);
    if (segment.version != kOperands) {  // columns lie one after the other
      segment.out += columns.begin * size_of(Element::f32);
    }
    WEFT_ASSIGN(segment.bias, bias(bias_ref, columns.begin));
    segment.columns = static_cast<uint32_t>(columns.size());
    segment.stride = static_cast<int32_t>(n);
    return segment;
  }
  /// Which of the model's ropes turns attention's heads: that whose angles it reads.
  int32_t rope_of(const AttentionOp& op) const {
    for (const Operation& operation : program_.operations) {
      const auto* angles = std::get_if<RopeAnglesOp>(&operation.body);
      if (angles != nullptr && angles->cosines == op.cosines && op.unturned < op.head_dim) {
        return static_cast<int32_t>(angles->rope);
      }
    }
    return -1;
  }
  static Splits splits_of(const AttentionOp& op) {
    return {static_cast<int32_t>(op.splits), static_cast<int32_t>(op.window)};
  }
  static Status not_fused() {
    return input_error("the cuda device runs programs with fused attention");
  }

  /// What a product reads instead of a row that only exists on the way to it: a normed row, or
  /// attention's splits merged. The program makes it a buffer of the worker's own.
  struct InputRow {
    BufferId made = kNone - 1;  ///< the buffer that is not made
    RowForm form = RowForm::plain;
    Place row = kNowhere;
    Version source = kPlain;
    Place norm_weight = kNowhere, norm_bias = kNowhere;
    float epsilon = 0;
    float weight_offset = 0;
    Splits splits = {};
  };
  void leave_to_product(const InputRow& row) {
    WEFT_CHECK(program_.buffers[static_cast<size_t>(row.made)].space == Space::worker);
    input_row_ = row;
    product_input_ = kNone - 1;  // what follows is not joined to a product of an earlier row
    left_to_product_ = true;
  }

  /// The units of the last product, when no other joins it.
  void pack_product() {
    if (units_.empty()) {
      return;
    }
    const Code& code =
        *std::find_if(codes().rbegin(), codes().rend(), [](const Code& c) { return c.units > 0; });
    const ProductCode& product = code.product;
    const int64_t slices = slices_of(product.k);
    const int64_t slice_bytes = weight_slice_bytes(product.compressed != 0);
    for (int i = 0; i < code.units; ++i) {
      const int block = i / kBlockUnits * kBlockUnits;  // its first unit
      PackJob& job = units_[static_cast<size_t>(i)];
      job.destination = out_.packed_bytes + block * slices * slice_bytes;
      job.first = static_cast<int32_t>((i - block) * slices);
      job.slices = block_runs(product.k, code.units, product.fold, block).slices();
      out_.pack.push_back(job);
    }
    out_.packed_bytes += product_slices(product.k, code.units, product.fold) * slice_bytes;
    units_.clear();
  }
  /// The units of a tile; `up`: the other half of each unit, if that is not the same weight's.
  void add_units(Code& code, Range columns, const WeightRef& ref, const WeightRef* up = nullptr) {
    constexpr int64_t kHalf = kUnitColumns / 2;
    const int64_t unit = up != nullptr ? kHalf : kUnitColumns;
    ProductCode& product = code.product;
    const int64_t k = product.k;
    code.units = static_cast<uint16_t>(code.units + units_of(columns.size(), unit));
    product.fold =
        static_cast<uint8_t>(program_.sequences > 1 ? 0 : last_fold(columns.size(), unit));
    for (int64_t c = columns.begin; c < columns.end; c += unit) {
      PackJob job;
      job.k = product.k;
      job.fold = static_cast<int16_t>(c + unit < columns.end ? 0 : product.fold);
      job.compressed = product.compressed;
      job.operation = instruction_->operation;
      const int64_t most = kHalf >> job.fold;
      for (const int half : {0, 1}) {
        const int64_t first = up == nullptr && half == 1 ? c + most : c;
        job.source[half] = weight_bytes(up != nullptr && half == 1 ? *up : ref) + first * k * 2;
        job.rows[half] = static_cast<int32_t>(std::clamp<int64_t>(columns.end - first, 0, most));
        out_.plain_bytes += job.rows[half] * k * 2;
      }
      units_.push_back(job);
    }
  }
  bool compressed() const { return !plain_[static_cast<size_t>(instruction_->operation)]; }
  Status begin_product(Opcode opcode, int64_t k, BufferId a) {
    if (k % 8 != 0) {
      return input_error(
          fmt::format("a product over {} elements: the cuda device wants multiples of 8", k));
    }
    pack_product();
    const bool made_here = a == input_row_.made;
    const InputRow row = made_here ? input_row_ : InputRow{.row = buffer(a), .source = source(a)};
    WEFT_CHECK(row.source != kPlain);
    ProductCode& product = begin(opcode, code_.product);
    product.row = row.row;
    product.form = row.form;
    product.norm_weight = row.norm_weight;
    product.norm_bias = row.norm_bias;
    product.epsilon = row.epsilon;
    product.weight_offset = row.weight_offset;
    product.splits = row.splits;
    product.source = row.source;
    product.k = static_cast<int32_t>(k);
    product.first = static_cast<int32_t>(instruction_->tile.begin);
    product.compressed = compressed() ? 1 : 0;
    out_.page_bytes = std::max(out_.page_bytes, page_bytes(compressed()));
    product.stream = static_cast<uint32_t>((out_.packed_bytes - out_.streams.back()) / 16);
    product_input_ = a;
    return {};
  }
  /// Whether a product joins the one before it: the projections of one row follow one another
  /// without a wait, and are one product as long as units are whole.
  bool joins_product(const LinearOp& op) {
    if (codes().empty() || codes().back().opcode != Opcode::linear) {
      return false;
    }
    const Code& code = codes().back();
    const ProductCode& product = code.product;
    return instruction_->waits.empty() && product.k == op.k && product_input_ == op.a &&
           product.fold == 0 && (product.compressed != 0) == compressed() &&
           code.segments < kMostSegments && op.out != program_.logits && op.alpha == 1 &&
           product.alpha == 1 && !op.accumulate && product.accumulate == 0 &&
           op.activation == Activation::none && product.activation == Activation::none &&
           (instruction_->signal == kNone || in_data_[static_cast<size_t>(instruction_->signal)]);
  }
  /// How a product's rows come: shared memory for all of what a worker would have to make again.
  void place_rows(ProductCode& product) {
    const int batch = batch_of(out_.shape.sequences);
    int64_t slices = row_slices(product.k, product.fold);
    product.streamed = product.source == kOperands && rows_are_streamed(slices) ? 1 : 0;
    if (product.streamed != 0) {
      slices = kTeamWarps * kStreamedSlices;
    }
    out_.scratch_bytes =
        std::max(out_.scratch_bytes, static_cast<int32_t>(slices * row_slice_bytes(batch)));
  }
  /// Makes the code one of `opcode`, whose fields are `fields` of it.
  template <class Fields>
  Fields& begin(Opcode opcode, Fields& fields) {
    code_.opcode = opcode;
    return *std::construct_at(&fields);
  }

 public:
  Status operator()(const EmbedOp& op) {
    EmbedCode& embed = begin(Opcode::embed, code_.embed);
    WEFT_ASSIGN(embed.table, weight(op.table));
    embed.out = buffer(op.out);
    embed.version = version(op.out);
    embed.columns = static_cast<int32_t>(op.columns);
    embed.scale = op.scale;
    embed.first = static_cast<int32_t>(instruction_->rows.begin);
    embed.last = static_cast<int32_t>(instruction_->rows.end);
    return {};
  }
  /// All of the model's ropes, which a step begins with, are one code.
  Status operator()(const RopeAnglesOp& op) {
    WEFT_CHECK(op.half == out_.shape.rope_half);
    joined_ = op.rope > 0;
    WEFT_CHECK(joined_ == !codes().empty() && op.rope < kMostRopes);
    if (!joined_) {
      begin(Opcode::begin_step, code_.begin_step).inverse_frequencies =
          buffer(op.inverse_frequencies);
    }
    BeginStepCode& step = joined_ ? codes().back().begin_step : code_.begin_step;
    step.scale[op.rope] = op.scale;
    return {};
  }
  Status operator()(const LayerNormOp& op) {
    if (op.columns > kMostLayerNorm) {
      return without_kernel(
          fmt::format("a LayerNorm of {} elements, more than {}", op.columns, kMostLayerNorm));
    }
    InputRow row{.made = op.out,
                 .form = RowForm::layer_norm,
                 .row = buffer(op.x),
                 .source = source(op.x),
                 .epsilon = op.epsilon};
    WEFT_ASSIGN(row.norm_weight, weight(op.weight));
    WEFT_ASSIGN(row.norm_bias, weight(op.bias));
    leave_to_product(row);
    return {};
  }
  Status operator()(const RmsNormOp& op) {
    WEFT_ASSIGN(const Place norm_weight, weight(op.weight));
    if (op.residual == kNone) {
      leave_to_product({.made = op.out,
                        .form = RowForm::rms_norm,
                        .row = buffer(op.x),
                        .source = source(op.x),
                        .norm_weight = norm_weight,
                        .epsilon = op.epsilon,
                        .weight_offset = op.weight_offset});
      return {};
    }
    NormAddCode& norm = begin(Opcode::norm_add, code_.norm_add);
    norm.x = buffer(op.x);
    norm.weight = norm_weight;
    norm.residual = buffer(op.residual);
    norm.columns = static_cast<int32_t>(op.columns);
    norm.epsilon = op.epsilon;
    norm.weight_offset = op.weight_offset;
    norm.scale = op.scale;
    norm.source = source(op.x);
    norm.version = version(op.residual);
    return {};
  }
  Status operator()(const LinearOp& op) {
    const Range columns = instruction_->tile;
    WEFT_ASSIGN(const Segment segment, segment_of(op.out, op.bias, op.n));
    WEFT_TRY(weight(op.weight));

    joined_ = joins_product(op);
    Code* code = joined_ ? &codes().back() : &code_;
    if (!joined_) {
      WEFT_TRY(begin_product(Opcode::linear, op.k, op.a));
      code->head = op.out == program_.logits ? 1 : 0;
      code->product.alpha = op.alpha;
      code->product.accumulate = op.accumulate ? 1 : 0;
      code->product.prior = op.accumulate ? source(op.out) : kPlain;
      code->product.activation = op.activation;
      code->product.soft_cap = op.soft_cap;
    }
    code->product.segment[code->segments++] = segment;
    add_units(*code, columns, op.weight);
    place_rows(code->product);
    return {};
  }
  Status operator()(const GatedLinearOp& op) {
    const Range columns = instruction_->tile;
    WEFT_TRY(begin_product(Opcode::gated_linear, op.k, op.a));
    ProductCode& product = code_.product;
    WEFT_ASSIGN(product.segment[0], segment_of(op.out, op.gate_bias, op.n));
    WEFT_ASSIGN(product.up_bias, bias(op.up_bias, columns.begin));
    WEFT_TRY(weight(op.gate));
    WEFT_TRY(weight(op.up));
    product.activation = op.activation;
    code_.segments = 1;
    add_units(code_, columns, op.gate, &op.up);
    place_rows(product);
    return {};
  }
  Status operator()(const RopeAppendOp&) { return not_fused(); }
  Status operator()(const AttentionOp& op) {
    if (op.k == kNone) {
      return not_fused();
    }
    AttentionCode& attention = begin(Opcode::attention, code_.attention);
    attention.q = buffer(op.q);
    attention.k = buffer(op.k);
    attention.v = buffer(op.v);
    attention.keys = buffer(op.keys);
    attention.values = buffer(op.values);
    attention.partials = buffer(op.partials);
    WEFT_ASSIGN(attention.query_norm, weight(op.query_norm));
    WEFT_ASSIGN(attention.key_norm, weight(op.key_norm));
    attention.q_version = source(op.q);
    attention.k_version = source(op.k);
    attention.v_version = source(op.v);
    attention.version = version(op.partials);
    attention.sequence = static_cast<int32_t>(instruction_->rows.begin);
    attention.first = static_cast<int32_t>(instruction_->tile.begin);
    attention.last = static_cast<int32_t>(instruction_->tile.end);
    attention.split = instruction_->split;
    attention.splits = splits_of(op);
    attention.scale = op.scale;
    attention.soft_cap = op.soft_cap;
    attention.epsilon = op.epsilon;
    attention.weight_offset = op.weight_offset;
    attention.rope = rope_of(op);
    attention.whole_norm = op.whole_norm ? 1 : 0;
    return {};
  }
  Status operator()(const AttentionCombineOp& op) {
    const AttentionOp& attention = op.attention;
    if (program_.buffers[static_cast<size_t>(attention.out)].space == Space::worker) {
      leave_to_product({.made = attention.out,
                        .form = RowForm::merged,
                        .row = buffer(attention.partials),
                        .source = source(attention.partials),
                        .splits = splits_of(attention)});
      return {};
    }
    CombineCode& combine = begin(Opcode::combine, code_.combine);
    combine.partials = buffer(attention.partials);
    combine.out = buffer(attention.out);
    combine.first = static_cast<int32_t>(instruction_->tile.begin);
    combine.last = static_cast<int32_t>(instruction_->tile.end);
    combine.source = source(attention.partials);
    combine.splits = splits_of(attention);
    return {};
  }
  Status operator()(const RouteOp& /*op*/) { return without_kernel("a mixture of experts"); }
  Status operator()(const ExpertsUpOp& /*op*/) { return without_kernel("a mixture of experts"); }
  Status operator()(const ExpertsDownOp& /*op*/) { return without_kernel("a mixture of experts"); }
  Status operator()(const SampleOp& op) {
    SampleCode& sample = begin(Opcode::sample, code_.sample);
    sample.logits = buffer(op.logits);
    sample.vocabulary = static_cast<int32_t>(op.vocabulary);
    sample.sequence = static_cast<int32_t>(instruction_->rows.begin);
    code_.head = 1;
    return {};
  }

 private:
  const Program& program_;
  const Weights& weights_;
  const Arena& arena_;
  const std::vector<bool>& in_data_;
  const std::vector<bool>& plain_;
  const size_t worker_;
  Lowered& out_;
  const Instruction* instruction_ = nullptr;
  Code code_;
  bool joined_ = false;           // to the code before
  bool left_to_product_ = false;  // no code of its own
  InputRow input_row_;
  std::vector<PackJob> units_;          // of a product that is not packed yet
  BufferId product_input_ = kNone - 1;  // of the product before
  std::vector<uint16_t> waits_;         // of this instruction and of those without a code before it
};

}  // namespace

PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences) {
  PlanOptions options;
  options.sequences = sequences;
  options.workers = units;
  if (config.norm_placement != NormPlacement::before) {
    // Every worker keeps the residual itself, so every worker takes part in every exchange.
    const int64_t fewest = std::min({config.hidden, config.ffn, config.query_size()});
    options.workers = static_cast<int>(std::min<int64_t>(units, units_of(fewest)));
  }
  options.capacity = capacity;
  options.kv = kv;
  options.columns = kUnitColumns;
  options.gated_columns = kUnitColumns / 2;
  options.fewest_columns = sequences > 1 ? kUnitColumns : kUnitColumns >> kMostFold;
  options.attention_tasks = options.workers;
  options.fuse_attention = true;
  return options;
}

Arena lay_out(const Program& program, const Weights& weights) {
  Arena arena;
  const auto take = [&](int64_t bytes) {
    return std::exchange(arena.bytes, arena.bytes + aligned(bytes));
  };
  for (const Tensor& tensor : weights.tensors()) {
    arena.weights.push_back(take(tensor.bytes()));
  }
  arena.buffers.assign(program.buffers.size(), -1);
  arena.operands = operand_buffers(program);
  arena.tagged = tagged_buffers(program, arena.operands);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.space == Space::worker) {
      arena.buffers[i] = arena.worker_bytes;
      arena.worker_bytes += aligned(buffer.bytes());
    } else if (arena.operands[i]) {
      arena.buffers[i] = take(slices_of(buffer.columns) *
                              row_slice_bytes(batch_of(static_cast<int>(program.sequences))));
    } else if (buffer.space != Space::state) {
      arena.buffers[i] = take(buffer.bytes());
    }
  }
  const int64_t own = take(arena.worker_bytes * static_cast<int64_t>(program.workers.size()));
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    arena.buffers[i] += program.buffers[i].space == Space::worker ? own : 0;
  }
  return arena;
}

Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, const std::vector<bool>& plain) {
  WEFT_CHECK(plain.size() == program.operations.size());
  WEFT_CHECK(program.rows == program.sequences && program.sequences <= kMostSequences);
  constexpr int64_t kMostHeadDim = 256;
  if (config.head_dim % 8 != 0 || config.head_dim > kMostHeadDim) {
    return input_error(
        fmt::format("{} has heads of {}: the cuda device runs multiples of 8 up to {}", config.name,
                    config.head_dim, kMostHeadDim));
  }
  if (static_cast<int64_t>(program.events.size()) > kMostEvents) {
    return input_error(fmt::format("{} needs {} events: the kernel's codes name {}", config.name,
                                   program.events.size(), kMostEvents));
  }
  Lowered out;
  out.codes.resize(program.workers.size());
  out.shape.sequences = static_cast<int32_t>(program.sequences);
  out.shape.query_heads = static_cast<int32_t>(config.query_heads);
  out.shape.kv_heads = static_cast<int32_t>(config.kv_heads);
  out.shape.group = static_cast<int32_t>(config.query_heads / config.kv_heads);
  out.shape.head_dim = static_cast<int32_t>(config.head_dim);
  out.shape.capacity = static_cast<int32_t>(capacity);
  out.shape.vocabulary = static_cast<int32_t>(config.vocabulary);
  const Buffer& frequencies = program.buffers[static_cast<size_t>(program.inverse_frequencies)];
  out.shape.ropes = static_cast<int32_t>(frequencies.rows);
  out.shape.rope_half = static_cast<int32_t>(frequencies.columns);
  for (const Operation& operation : program.operations) {
    out.shape.general |= std::visit(IsGeneral{}, operation.body);
  }
  for (const Buffer& buffer : program.buffers) {
    out.shape.kv_f32 |= buffer.space == Space::kv && buffer.element == Element::f32;
  }
  out.scratch_bytes = static_cast<int32_t>(
      attention_scratch_bytes(kTeamWarps, config.head_dim, config.query_heads / config.kv_heads));
  const std::vector<bool> in_data = events_in_data(program, arena.tagged);
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    WEFT_TRY(WorkerLowering(program, weights, arena, in_data, plain, worker, out).run());
  }
  for (const Event& event : program.events) {
    out.event_signals.push_back(static_cast<uint32_t>(event.signals));
  }
  return out;
}

}  // namespace weft::hopper

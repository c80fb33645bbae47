#include "engine/resident/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "base/check.h"
#include "engine/resident/exchange.h"
#include "engine/resident/split_keys.h"
#include "program/operands.h"

namespace weft::resident {
namespace {

constexpr int64_t kMostEvents = kPreviousStep - 1;
/// Of a shorter k units are what counts (Limits::union_weights).
constexpr int64_t kFewestUnionK = 4096;
/// ExpertsUpOp::limit in MXFP4: rows between experts' products are f16 with one power of two for
/// all that it bounds, so numbers near 1 keep 18 bits.
constexpr float kMostUnionLimit = 1000;

/// Whether an operation has what ModelShape::general names.
struct IsGeneral {
  bool operator()(const LayerNormOp& /*op*/) const { return true; }
  bool operator()(const RmsNormOp& op) const { return op.weight_offset != 0; }
  bool operator()(const LinearOp& op) const {
    return op.activation != Activation::none || op.soft_cap > 0;
  }
  bool operator()(const GatedLinearOp& op) const { return op.activation != Activation::silu; }
  bool operator()(const ExpertsUpOp& op) const {
    return op.activation != Activation::silu || op.gate_bias.present || op.up_bias.present ||
           op.limit > 0;
  }
  bool operator()(const ExpertsDownOp& op) const { return op.bias.present; }
  bool operator()(const AttentionOp& op) const {
    return op.soft_cap > 0 || op.weight_offset != 0 || op.unturned > 0 || op.sinks.present;
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
                 const std::vector<bool>& in_data, Target& target, size_t worker, Lowered& out)
      : program_(program),
        weights_(weights),
        arena_(arena),
        in_data_(in_data),
        target_(target),
        limits_(target.limits()),
        worker_(worker),
        out_(out) {}

  Status run() {
    out_.streams.push_back(out_.packed_bytes);
    for (const Instruction& instruction : program_.workers[worker_]) {
      WEFT_TRY(lower(instruction));
    }
    end_product();
    if (!codes().empty()) {
      codes().back().ends_step = 1;
    }
    out_.most_codes = std::max(out_.most_codes, static_cast<int32_t>(codes().size()));
    return {};
  }

 private:
  std::vector<Code>& codes() { return out_.codes[worker_]; }
  bool several() const { return program_.sequences > 1; }

  Status lower(const Instruction& instruction) {
    const Operation& operation = program_.operations[static_cast<size_t>(instruction.operation)];
    instruction_ = &instruction;
    code_ = {};
    code_.operation = instruction.operation;
    joined_ = left_to_product_ = false;
    more_.clear();
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
      codes().insert(codes().end(), more_.begin(), more_.end());
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
    return last_writer(program_, id, instruction_->operation);
  }
  const Tensor& tensor(const WeightRef& ref) const { return weights_.get(ref.role, ref.layer); }
  PlacedWeight placed(const WeightRef& ref) const {
    const size_t index = index_of(ref);
    return {.tensor = &weights_.tensors()[index],
            .place = arena_.weights[index],
            .scales = arena_.scales[index]};
  }
  size_t index_of(const WeightRef& ref) const {
    return static_cast<size_t>(&tensor(ref) - weights_.tensors().data());
  }
  Result<Place> weight(const WeightRef& ref) const {
    if (!ref.present) {
      return kNowhere;
    }
    const Tensor& t = tensor(ref);
    if (t.dtype != (out_.shape.f16 ? DType::f16 : DType::bf16)) {
      return without_format(t);
    }
    return placed(ref).place;
  }
  Error without_format(const Tensor& t) const {
    return input_error(fmt::format("{} is {}: the {} device has no kernel for it; use --device cpu",
                                   t.name, name_of(t.dtype), limits_.device));
  }
  /// Whether a product's weights have a form in the stream.
  Status check_product(const WeightRef& ref, const Fp8Rounding& rounding) {
    if (rounding.scaling != Scaling::none) {
      return without_kernel("decode steps that quantise activations to fp8");
    }
    const Tensor& t = tensor(ref);
    if (limits_.fp8 && t.dtype == DType::e4m3fn) {
      out_.shape.general = true;
      return {};
    }
    if (t.dtype != DType::bf16 && !(limits_.f16 && t.dtype == DType::f16)) {
      return without_format(t);
    }
    return {};
  }
  /// A bias's elements from `column` on.
  Result<Place> bias(const WeightRef& ref, int64_t column) const {
    WEFT_ASSIGN(const Place base, weight(ref));
    return base == kNowhere ? base : base + column * size_of(Element::bf16);
  }

  /// The tile of a product's out. `flat`: a bias is that of the first column.
  Result<Segment> segment_of(BufferId out, const WeightRef& bias_ref, int64_t n,
                             bool flat = false) const {
    const Range columns = instruction_->tile;
    Segment segment;
    segment.version = version(out);
    segment.out = buffer(out);
    if (segment.version != kOperands) {  // columns lie one after the other
      segment.out += columns.begin * size_of(Element::f32);
    }
    WEFT_ASSIGN(segment.bias, bias(bias_ref, flat ? 0 : columns.begin));
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
  Status without_kernel(std::string_view what) const {
    return input_error(fmt::format("{}: the {} device has no kernel for it; use --device cpu", what,
                                   limits_.device));
  }
  Status experts_of(int64_t size) const {
    return without_kernel(fmt::format("experts of {}, no multiple of 8", size));
  }
  Status of_latents() const { return without_kernel("attention over latent rows"); }
  /// `columns`: of a head.
  Status check_latents(const LatentHeadsOp& op, int64_t columns) const {
    if (!op.fused || limits_.latent_rank == 0) {
      return of_latents();
    }
    if (several() && !limits_.latents_of_several) {
      return without_kernel("attention over latent rows of several sequences");
    }
    if (op.rank != limits_.latent_rank || op.turned != limits_.latent_turned) {
      return without_kernel(
          fmt::format("attention over latent rows of {} + {}", op.rank, op.turned));
    }
    if (columns % limits_.head_grain != 0) {
      return without_kernel(
          fmt::format("attention over latent rows with heads of {}, no multiple of {}", columns,
                      limits_.head_grain));
    }
    if (const DType dtype = tensor(op.weight).dtype; dtype != DType::bf16) {
      return without_kernel(
          fmt::format("attention over latent rows with heads in {}", name_of(dtype)));
    }
    return {};
  }
  /// Makes the code's product one of a row of each head's part.
  void take_heads(int64_t pitch) {
    code_.product.form = RowForm::heads;
    code_.product.head_pitch = static_cast<int32_t>(pitch);
  }
  /// The rest of a product of heads.
  Status end_heads(const LatentHeadsOp& op, BufferId out, const ProductTile::Heads& heads) {
    WEFT_ASSIGN(Segment segment, segment_of(out, {}, op.heads * heads.columns));
    segment.head_columns = static_cast<int32_t>(heads.columns);
    code_.product.segment[0] = segment;
    code_.segments = 1;
    add_columns(code_, op.weight, nullptr, heads);
    return {};
  }
  /// What every attention's code says. `v`: a row's values, or of latent rows the queries as
  /// projected.
  Status describe(const AttentionOp& op, BufferId v, AttentionCode& attention) {
    attention.q = buffer(op.q);
    attention.k = buffer(op.k);
    attention.v = buffer(v);
    attention.keys = buffer(op.keys);
    attention.values = buffer(op.values);
    attention.partials = buffer(op.partials);
    WEFT_ASSIGN(attention.key_norm, weight(op.key_norm));
    attention.q_version = source(op.q);
    attention.k_version = source(op.k);
    attention.v_version = source(v);
    attention.version = version(op.partials);
    attention.sequence = static_cast<int32_t>(instruction_->rows.begin);
    attention.first = static_cast<int32_t>(instruction_->tile.begin);
    attention.last = static_cast<int32_t>(instruction_->tile.end);
    attention.split = instruction_->split;
    attention.splits = splits_of(op);
    attention.scale = op.scale;
    attention.epsilon = op.epsilon;
    attention.rope = rope_of(op);
    return {};
  }
  Status fused_latent(const AttentionOp& op) {
    if (limits_.latent_rank == 0) {
      return of_latents();
    }
    if (program_.buffers[static_cast<size_t>(op.keys)].element != Element::bf16) {
      return without_kernel("attention over latent rows in f32");
    }
    AttentionCode& attention = begin(Opcode::attention, code_.attention);
    WEFT_TRY(describe(op, op.latent.projected, attention));
    attention.latent_rank = static_cast<int32_t>(op.head_dim);
    attention.projected = static_cast<int32_t>(op.latent.unturned + op.latent.turned);
    return {};
  }
  Status not_fused() const {
    return input_error(
        fmt::format("the {} device runs programs with fused attention", limits_.device));
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

  /// When no other product joins the last one.
  void end_product() {
    if (product_ < 0) {
      return;
    }
    const Code& code = codes()[static_cast<size_t>(product_)];
    const int64_t bytes = target_.end_product(code, out_.packed_bytes);
    out_.packed_bytes += bytes;
    const int64_t saved = plain_bytes_ - bytes;
    const bool drawn = code.product.draw == DrawOf::experts && !shared_part_;
    const double share = drawn ? drawn_share(chosen_, code.product.experts, program_.sequences) : 1;
    out_.saved_bytes += std::llround(static_cast<double>(saved) * share);
    out_.plain_bytes += plain_bytes_;
    plain_bytes_ = 0;
    product_ = -1;
    shared_part_ = false;
  }
  /// A tile of a product's columns; `up`: of gate and up projections.
  void add_columns(Code& code, const WeightRef& ref, const WeightRef* up = nullptr,
                   const ProductTile::Heads& heads = {}) {
    const Range columns = instruction_->tile;
    const ProductTile tile{.operation = instruction_->operation,
                           .columns = columns,
                           .weight = placed(ref),
                           .up = up != nullptr ? placed(*up) : PlacedWeight{},
                           .heads = heads};
    target_.add_columns(code, tile);
    const auto element = static_cast<int64_t>(size_of(tile.weight.tensor->dtype));
    plain_bytes_ += columns.size() * code.product.k * element * (up != nullptr ? 2 : 1);
  }
  /// Likewise, of each of a layer's experts, `packed` columns; `k`: of one.
  Status add_experts(Code& code, Range packed, int64_t k, const WeightRef& first,
                     const WeightRef* up = nullptr) {
    std::vector<ProductTile> tiles;
    for (int64_t expert = 0; expert < code.product.experts; ++expert) {
      const auto of_expert = [&](const WeightRef& ref) {
        const size_t index = index_of(ref) + static_cast<size_t>(expert);
        return PlacedWeight{.tensor = &weights_.tensors()[index],
                            .place = arena_.weights[index],
                            .scales = arena_.scales[index]};
      };
      tiles.push_back({.operation = instruction_->operation,
                       .columns = packed,
                       .weight = of_expert(first),
                       .up = up != nullptr ? of_expert(*up) : PlacedWeight{}});
      for (const PlacedWeight* weight : {&tiles.back().weight, &tiles.back().up}) {
        if (weight->tensor != nullptr && weight->tensor->dtype != DType::bf16) {
          return without_kernel(fmt::format("{} is {}, an expert's matrix", weight->tensor->name,
                                            name_of(weight->tensor->dtype)));
        }
      }
    }
    target_.add_experts(code, instruction_->tile, tiles);
    const int64_t elements = packed.size() * k * std::ssize(tiles) * (up != nullptr ? 2 : 1);
    plain_bytes_ += tensor(first).mx.k > 0 ? MxMatrix::bytes_of(elements)
                                           : elements * static_cast<int64_t>(sizeof(uint16_t));
    return {};
  }
  Status begin_product(Opcode opcode, int64_t k, BufferId a, const WeightRef& ref) {
    if (k % 8 != 0) {
      return input_error(fmt::format(
          "a product over {} elements: the {} device wants multiples of 8", k, limits_.device));
    }
    end_product();
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
    product.stream = static_cast<uint32_t>((out_.packed_bytes - out_.streams.back()) / 16);
    product_input_ = a;
    product_ = std::ssize(codes());
    target_.begin_product(code_, tensor(ref));
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
           target_.may_join(code, instruction_->operation, tensor(op.weight)) &&
           code.segments < kMostSegments && op.out != program_.logits && op.alpha == 1 &&
           product.alpha == 1 && !op.accumulate && product.accumulate == 0 &&
           op.activation == Activation::none && product.activation == Activation::none &&
           (instruction_->signal == kNone || in_data_[static_cast<size_t>(instruction_->signal)]);
  }
  /// Whether a product is that of the expert that every token has, and may be part of the drawn
  /// ones' before it, whose columns it has.
  bool joins_slots(const LinearOp& op, const Segment& segment) const {
    const std::vector<Code>& codes = out_.codes[worker_];
    if (codes.empty() || codes.back().opcode != Opcode::linear) {
      return false;
    }
    const Code& code = codes.back();
    const ProductCode& product = code.product;
    return product.draw == DrawOf::experts && product.slots == chosen_ &&
           code.operation + 1 == instruction_->operation && instruction_->waits.empty() &&
           op.accumulate && product.segment[0].out == segment.out &&
           product.segment[0].columns == segment.columns && !op.bias.present &&
           op.alpha == product.alpha && op.activation == Activation::none && op.soft_cap == 0 &&
           (instruction_->signal == kNone || in_data_[static_cast<size_t>(instruction_->signal)]) &&
           target_.may_join_slots(code, instruction_->operation, tensor(op.weight), op.k);
  }
  void join_slots(const LinearOp& op) {
    end_product();  // all that is drawn
    Code& code = codes().back();
    ProductCode& product = code.product;
    product.shared_row = buffer(op.a);
    product.shared = {.source = source(op.a), .elements = static_cast<int32_t>(op.k)};
    product.k += static_cast<int32_t>(target_.slot_k(op.k));
    product.segment[0].version = version(op.out);
    product_ = std::ssize(codes()) - 1;
    shared_part_ = joined_ = true;
    const ProductTile tile{.operation = instruction_->operation,
                           .columns = instruction_->tile,
                           .weight = placed(op.weight),
                           .up = {}};
    target_.add_experts(code, tile.columns, {&tile, 1});
    plain_bytes_ +=
        tile.columns.size() * op.k * static_cast<int64_t>(size_of(tile.weight.tensor->dtype));
  }
  /// Which of a layer's draws has its ids there.
  DrawOf draw_of(BufferId ids) {
    auto found = std::find(draws_.begin(), draws_.end(), ids);
    if (found == draws_.end()) {
      found = draws_.insert(draws_.end(), ids);
    }
    WEFT_CHECK(draws_.size() <= 2);
    return found == draws_.begin() ? DrawOf::experts : DrawOf::shared;
  }
  /// Makes the code's product one of what was drawn.
  void take_slots(BufferId ids, int64_t experts, int64_t chosen) {
    ProductCode& product = code_.product;
    product.draw = draw_of(ids);
    product.slots = static_cast<uint8_t>(chosen);
    product.experts = static_cast<uint16_t>(experts);
    chosen_ = chosen;
  }
  /// Of second products: what bounds their rows, which in MXFP4 then need not be looked at for it.
  /// Those of several sequences must have it, as they come as operands.
  Status take_limit(const ExpertsDownOp& op, ProductCode& product) const {
    const auto& up = std::get<ExpertsUpOp>(
        program_
            .operations[static_cast<size_t>(last_writer(program_, op.a, instruction_->operation))]
            .body);
    const bool mx = tensor(op.weight).mx.k > 0;
    if (several() && mx != (tensor(up.gate).mx.k > 0)) {
      return without_kernel(fmt::format("{} and {}, one of them in MXFP4, of several sequences",
                                        tensor(up.gate).name, tensor(op.weight).name));
    }
    product.limit = mx && up.limit <= kMostUnionLimit ? up.limit : 0;
    return {};
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
    if (op.columns > limits_.layer_norm) {
      return without_kernel(
          fmt::format("a LayerNorm of {} elements, more than {}", op.columns, limits_.layer_norm));
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
    const int64_t pitch = program_.buffers[static_cast<size_t>(op.out)].columns;
    WEFT_ASSIGN(const Segment segment, segment_of(op.out, op.bias, pitch));
    WEFT_TRY(check_product(op.weight, op.rounding));
    if (joins_slots(op, segment)) {
      join_slots(op);
      return {};
    }

    joined_ = joins_product(op);
    Code* code = joined_ ? &codes().back() : &code_;
    if (!joined_) {
      WEFT_TRY(begin_product(Opcode::linear, op.k, op.a, op.weight));
      code->head = op.out == program_.logits ? 1 : 0;
      code->product.alpha = op.alpha;
      code->product.accumulate = op.accumulate ? 1 : 0;
      code->product.prior = op.accumulate ? source(op.out) : kPlain;
      code->product.activation = op.activation;
      code->product.soft_cap = op.soft_cap;
    }
    code->product.segment[code->segments++] = segment;
    add_columns(*code, op.weight);
    return {};
  }
  Status operator()(const GatedLinearOp& op) {
    const Range columns = instruction_->tile;
    WEFT_TRY(begin_product(Opcode::gated_linear, op.k, op.a, op.gate));
    ProductCode& product = code_.product;
    WEFT_ASSIGN(product.segment[0], segment_of(op.out, op.gate_bias, op.n));
    WEFT_ASSIGN(product.up_bias, bias(op.up_bias, columns.begin));
    WEFT_TRY(check_product(op.gate, op.rounding));
    WEFT_TRY(check_product(op.up, op.rounding));
    if (tensor(op.gate).dtype != tensor(op.up).dtype ||
        tensor(op.gate).scales.scaling != tensor(op.up).scales.scaling) {
      return without_kernel(fmt::format("{} and {} have different formats", tensor(op.gate).name,
                                        tensor(op.up).name));
    }
    product.activation = op.activation;
    code_.segments = 1;
    add_columns(code_, op.gate, &op.up);
    return {};
  }
  Status operator()(const RopeAppendOp&) { return not_fused(); }
  Status operator()(const AttentionOp& op) {
    if (op.fused_latent()) {
      return fused_latent(op);
    }
    if (op.values == op.keys) {
      return of_latents();
    }
    if (op.sinks.present && !limits_.sinks) {
      return without_kernel("attention with sinks");
    }
    if (op.k == kNone) {
      return not_fused();
    }
    AttentionCode& attention = begin(Opcode::attention, code_.attention);
    WEFT_TRY(describe(op, op.v, attention));
    WEFT_ASSIGN(attention.query_norm, weight(op.query_norm));
    attention.soft_cap = op.soft_cap;
    attention.weight_offset = op.weight_offset;
    attention.whole_norm = op.whole_norm ? 1 : 0;
    return {};
  }
  Status operator()(const AttentionCombineOp& op) {
    const AttentionOp& attention = op.attention;
    if (program_.buffers[static_cast<size_t>(attention.out)].space == Space::worker) {
      WEFT_ASSIGN(const Place sinks, weight(attention.sinks));
      leave_to_product({.made = attention.out,
                        .form = RowForm::merged,
                        .row = buffer(attention.partials),
                        .source = source(attention.partials),
                        .norm_weight = sinks,
                        .splits = splits_of(attention)});
      return {};
    }
    CombineCode& combine = begin(Opcode::combine, code_.combine);
    combine.partials = buffer(attention.partials);
    combine.out = buffer(attention.out);
    WEFT_ASSIGN(combine.sinks, weight(attention.sinks));
    combine.first = static_cast<int32_t>(instruction_->tile.begin);
    combine.last = static_cast<int32_t>(instruction_->tile.end);
    combine.source = source(attention.partials);
    combine.version = version(attention.out);
    combine.splits = splits_of(attention);
    combine.latent_rank = attention.fused_latent() ? static_cast<int32_t>(attention.head_dim) : 0;
    return {};
  }
  Status operator()(const RouteOp& op) {
    if (op.experts > limits_.experts || op.chosen > limits_.chosen) {
      return without_kernel(fmt::format("{} of {} experts", op.chosen, op.experts));
    }
    if (several() && op.chosen > limits_.chosen_of_several) {
      return without_kernel(
          limits_.chosen_of_several == 0
              ? "a mixture of experts of several sequences"
              : fmt::format("{} of {} experts of several sequences", op.chosen, op.experts));
    }
    const bool apart = op.correction.present || op.kept_groups < op.groups || op.scale != 1;
    if (apart && (!out_.latents || op.groups > limits_.route_groups)) {
      return without_kernel("experts that are drawn by groups, a correction or a scale");
    }
    RouteCode& route = begin(Opcode::route, code_.route);
    route.logits = buffer(op.logits);
    route.source = source(op.logits);
    route.experts = static_cast<int32_t>(op.experts);
    route.chosen = static_cast<int32_t>(op.chosen);
    route.draw = draw_of(op.ids);
    route.sigmoid = op.sigmoid ? 1 : 0;
    route.renormalise = op.renormalise ? 1 : 0;
    if (op.correction.present) {
      const Tensor& correction = tensor(op.correction);
      if (correction.dtype != DType::f32 && correction.dtype != DType::bf16) {
        return without_format(correction);
      }
      route.correction = placed(op.correction).place;
      route.correction_f32 = correction.dtype == DType::f32 ? 1 : 0;
    }
    route.groups = static_cast<int32_t>(op.groups);
    route.kept_groups = static_cast<int32_t>(op.kept_groups);
    route.scale = op.scale;
    return {};
  }
  Status operator()(const ExpertsUpOp& op) {
    if (!limits_.mx && (op.limit > 0 || op.gate_bias.present || tensor(op.gate).mx.k > 0)) {
      return without_kernel("experts in MXFP4, clamped or with biases");
    }
    if (several() && tensor(op.gate).mx.k > 0 && (op.limit <= 0 || op.limit > kMostUnionLimit)) {
      return without_kernel(fmt::format(
          "experts in MXFP4 of several sequences, clamped at {} (0: not clamped)", op.limit));
    }
    if (op.rounding.scaling != Scaling::none) {
      return without_kernel("decode steps that quantise activations to fp8");
    }
    const int64_t most = std::min(program_.sequences * op.chosen, op.experts);
    if (several() && most * op.n * std::max(op.k, kFewestUnionK) > limits_.union_weights) {
      return without_kernel(fmt::format("experts of {} x {}, of which {} sequences draw {}", op.n,
                                        op.k, program_.sequences, most));
    }
    out_.shape.general |= tensor(op.gate).mx.k > 0;
    WEFT_TRY(begin_product(Opcode::gated_linear, op.k, op.a, op.gate));
    ProductCode& product = code_.product;
    WEFT_ASSIGN(product.segment[0], segment_of(op.out, op.gate_bias, op.n, op.flat));
    WEFT_ASSIGN(product.up_bias, bias(op.up_bias, op.flat ? 0 : instruction_->tile.begin));
    product.activation = op.activation;
    product.limit = op.limit;
    code_.segments = 1;
    take_slots(op.ids, op.experts, op.chosen);
    Range packed = instruction_->tile;
    if (op.flat && op.n % 8 != 0) {
      return experts_of(op.n);
    }
    if (op.flat) {  // by the first worker that reads them, for all
      const auto [place, first] =
          out_.shared.try_emplace(instruction_->operation, out_.packed_bytes);
      WEFT_CHECK(place->second % kSharedGrain == 0);
      product.flat = 1;
      product.stream = static_cast<uint32_t>(place->second / kSharedGrain);
      packed = {0, first ? op.n : 0};
    }
    return add_experts(code_, packed, op.k, op.gate, &op.up);
  }
  /// Slots of which a row would be too long are taken by several codes, each of which adds to what
  /// the one before has left. What these leave has a tag that is no operation's that writes there.
  Status operator()(const ExpertsDownOp& op) {
    if (op.rounding.scaling != Scaling::none) {
      return without_kernel("decode steps that quantise activations to fp8");
    }
    out_.shape.general |= tensor(op.weight).mx.k > 0;
    if (op.k % 8 != 0) {
      return experts_of(op.k);
    }
    const bool drawn = draw_of(op.ids) == DrawOf::experts;
    const int64_t slot_k = drawn && !several() ? target_.slot_k(op.k) : op.k;
    const int64_t most = several() ? op.chosen : std::max<int64_t>(1, limits_.slot_row / slot_k);
    const int64_t parts = (op.chosen + most - 1) / most;
    WEFT_TRY(begin_product(Opcode::linear, several() ? op.k : slot_k * std::min(most, op.chosen),
                           op.a, op.weight));
    ProductCode& product = code_.product;
    WEFT_CHECK((product.source == kOperands) == several());
    WEFT_ASSIGN(product.segment[0], segment_of(op.out, op.bias, op.n));
    product.form = RowForm::slots;
    product.shared = {.source = kPlain, .elements = 0};
    product.slot_elements = static_cast<int32_t>(op.k);
    product.alpha = op.alpha;
    product.accumulate = op.accumulate ? 1 : 0;
    product.prior = op.accumulate ? source(op.out) : kPlain;
    code_.segments = 1;
    take_slots(op.ids, op.experts, op.chosen);
    if (drawn) {
      WEFT_TRY(take_limit(op, product));
    }
    if (!drawn) {
      WEFT_TRY(check_product(op.weight, op.rounding));
      add_columns(code_, op.weight);
      return {};
    }
    product.slots = static_cast<uint8_t>(std::min(most, op.chosen));
    WEFT_TRY(add_experts(code_, instruction_->tile, op.k, op.weight));
    const Version last = product.segment[0].version;
    const auto between = [&](int64_t part) {
      return last - static_cast<Version>(parts - part) + 1;
    };
    for (int64_t part = 1; part < parts; ++part) {
      Code more = code_;
      more.product.first_slot = static_cast<uint8_t>(part * most);
      more.product.slots = static_cast<uint8_t>(std::min(most, op.chosen - part * most));
      more.product.k = static_cast<int32_t>(slot_k * more.product.slots);
      more.product.accumulate = 1;
      more.product.prior = between(part - 1);
      more.product.segment[0].version = between(part);
      more_.push_back(more);
    }
    product.segment[0].version = between(0);
    for (Version v = between(0); v < last; ++v) {
      const auto written = written_by(program_, v);
      WEFT_CHECK(std::find(written.begin(), written.end(), op.out) == written.end());
    }
    return {};
  }
  Status operator()(const LatentAppendOp& /*op*/) { return of_latents(); }
  Status operator()(const LatentAttentionOp& /*op*/) { return of_latents(); }
  Status operator()(const LatentQueriesOp& op) {
    WEFT_TRY(check_latents(op, op.rank));
    WEFT_TRY(begin_product(Opcode::linear, op.unturned, op.q, op.weight));
    take_heads(op.unturned + op.turned);
    ProductCode& product = code_.product;
    product.row += product.first / op.rank * product.head_pitch * size_of(Element::f32);
    return end_heads(op, op.out,
                     {.columns = op.rank, .pitch = op.unturned + op.value, .across = true});
  }
  Status operator()(const LatentValuesOp& op) {
    WEFT_TRY(check_latents(op, op.value));
    WEFT_TRY(begin_product(Opcode::linear, op.rank, op.a, op.weight));
    if (several()) {  // the splits are merged already
      take_heads(op.rank);
    }
    return end_heads(op, op.out,
                     {.columns = op.value, .first = op.unturned, .pitch = op.unturned + op.value});
  }
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
  Target& target_;
  const Limits limits_;
  const size_t worker_;
  Lowered& out_;
  const Instruction* instruction_ = nullptr;
  Code code_;
  std::vector<Code> more_;        // that this instruction is besides
  std::vector<BufferId> draws_;   // ids of the experts', then of the shared one's
  int64_t chosen_ = 0;            // of the last product of drawn experts
  int64_t plain_bytes_ = 0;       // of the product
  bool joined_ = false;           // to the code before
  bool left_to_product_ = false;  // no code of its own
  InputRow input_row_;
  bool shared_part_ = false;            // the product is that part of one, see SharedRow
  int64_t product_ = -1;                // the code of a product that others may join; -1: none
  BufferId product_input_ = kNone - 1;  // of the product before
  std::vector<uint16_t> waits_;         // of this instruction and of those without a code before it
};

}  // namespace

Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, Target& target) {
  WEFT_CHECK(program.rows == program.sequences && program.sequences <= kMostSequences);
  const Limits limits = target.limits();
  // Latent rows are longer than heads: what reads them is refused by name.
  if (config.latent.rank == 0 && (config.head_dim % 8 != 0 || config.head_dim > limits.head_dim)) {
    return input_error(fmt::format("{} has heads of {}: the {} device runs multiples of 8 up to {}",
                                   config.name, config.head_dim, limits.device, limits.head_dim));
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
  out.shape.ropes = static_cast<int32_t>(frequencies.rows / program.sequences);
  out.shape.rope_half = static_cast<int32_t>(frequencies.columns);
  for (const Operation& operation : program.operations) {
    out.shape.general |= std::visit(IsGeneral{}, operation.body);
    out.shape.experts |= std::holds_alternative<RouteOp>(operation.body);
    const auto* attention = std::get_if<AttentionOp>(&operation.body);
    out.latents |= attention != nullptr && attention->fused_latent();
  }
  out.shape.f16 = limits.f16 && weights.get(Role::embedding, -1).dtype == DType::f16;
  for (const Buffer& buffer : program.buffers) {
    out.shape.kv_f32 |= buffer.space == Space::kv && buffer.element == Element::f32;
  }
  const std::vector<bool> in_data = events_in_data(program, arena.tagged);
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    WEFT_TRY(WorkerLowering(program, weights, arena, in_data, target, worker, out).run());
  }
  for (const Event& event : program.events) {
    out.event_signals.push_back(static_cast<uint32_t>(event.signals));
  }
  return out;
}

int64_t splits_of_full_cache(const ModelConfig& config, const PlanOptions& options) {
  const auto splits =
      static_cast<int32_t>(std::max<int64_t>(1, options.attention_tasks / config.kv_heads));
  return SplitKeys({.count = splits}, options.capacity - 1, 0).active;
}

}  // namespace weft::resident

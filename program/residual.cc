#include "program/residual.h"

namespace weft::planning {

RmsNormOp rms_norm(const Weaver& weaver, const NormSpec& norm, Role weight, int64_t layer,
                   BufferId x, BufferId out) {
  RmsNormOp op;
  op.weight = weaver.weight(weight, layer);
  op.x = x;
  op.out = out;
  op.columns = weaver.config().hidden;
  op.epsilon = static_cast<float>(norm.epsilon);
  op.weight_offset = static_cast<float>(norm.weight_offset);
  return op;
}

Residual::Residual(Weaver& weaver) : weaver_(weaver) {
  // In a decode step with norms after the blocks every worker keeps the residual itself: adding a
  // normed row is cheaper than waiting for another to have done it.
  const ModelConfig& config = weaver.config();
  const bool own = !weaver.chunk() && config.norm_placement != NormPlacement::before;
  buffer_ = weaver.buffer("residual", own ? Space::worker : Space::activation, Element::f32,
                          weaver.program.rows, config.hidden);
}

void Residual::make_copy() {
  copy_ = weaver_.buffer("residual_copy", Space::activation, Element::bf16, weaver_.program.rows,
                         weaver_.config().hidden);
}

void Residual::embed(Section& all, const Waits& next_step) {
  const ModelConfig& config = weaver_.config();
  EmbedOp op;
  op.table = weaver_.weight(Role::embedding);
  op.tokens = weaver_.program.tokens;
  op.out = buffer_;
  op.copy = copy_;
  op.columns = config.hidden;
  op.scale = static_cast<float>(config.embedding_multiplier);
  const int32_t id = weaver_.operation("embed", -1, Rows::all, op);
  if (weaver_.at(buffer_).space == Space::worker) {
    weaver_.repeat(id, next_step, weaver_.everyone());
  } else {
    ready_ = {{weaver_.spread(id, all.tokens(config.hidden), next_step)}};
  }
}

decltype(Operation::body) Residual::norm_op(const NormSpec& norm, Role weight, Role bias,
                                            int64_t layer, BufferId out) const {
  if (norm.kind == NormKind::rms) {
    return rms_norm(weaver_, norm, weight, layer, buffer_, out);
  }
  LayerNormOp op;
  op.weight = weaver_.weight(weight, layer);
  op.bias = weaver_.weight(bias, layer);
  op.x = buffer_;
  op.out = out;
  op.columns = weaver_.config().hidden;
  op.epsilon = static_cast<float>(norm.epsilon);
  return op;
}

BufferId Residual::input(Section& section, const LayerSpec& spec, const std::string& name,
                         int64_t layer, Role norm, Role bias, const Users& users, Waits& waits) {
  waits = ready_;
  if (!spec.norms_inputs() && norm != Role::final_norm) {
    return copy_ != kNone && section.rows == Rows::all ? copy_ : buffer_;
  }
  const int32_t id = weaver_.operation(name, layer, section.rows,
                                       norm_op(spec.norm, norm, bias, layer, section.input));
  waits = section.prepare(id, waits, users);
  return section.input;
}

void Residual::add(Section& section, const LayerSpec& spec, int64_t layer,
                   const std::vector<BlockOutput>& outputs, Role norm_role, const Tiles& tiles,
                   const Waits& waits) {
  const bool direct = !spec.norms_outputs();
  Waits added = waits;
  for (const BlockOutput& output : outputs) {
    auto body = output.body;
    const auto place = [&](auto& op) {
      op.out = direct ? buffer_ : section.delta;
      op.accumulate = direct || &output != &outputs.front();
      op.alpha = direct ? static_cast<float>(spec.residual_scale) : 1;
    };
    if (auto* linear = std::get_if<LinearOp>(&body)) {
      place(*linear);
    } else {
      place(std::get<ExpertsDownOp>(body));
    }
    // Of several, all have the same tiles: what a worker adds, it adds to its own.
    const int32_t id = weaver_.operation(output.name, layer, section.rows, body);
    added = {{weaver_.spread(id, tiles, &output == &outputs.front() ? waits : Waits{})}};
  }
  if (direct) {
    ready_ = added;
    return;
  }
  RmsNormOp norm = rms_norm(weaver_, spec.norm, norm_role, layer, section.delta,
                            section.rows == Rows::all ? copy_ : kNone);
  norm.residual = buffer_;
  norm.scale = static_cast<float>(spec.residual_scale);
  const int32_t id = weaver_.operation(outputs.back().name + "_norm", layer, section.rows, norm);
  if (weaver_.at(buffer_).space == Space::worker) {
    weaver_.repeat(id, added, weaver_.everyone());
    ready_.clear();
  } else {
    ready_ = {{weaver_.spread(id, section.whole(0), added)}};
  }
}

/// The product that most blocks end with.
LinearOp output_product(const Weaver& weaver, Role weight, Role bias, int64_t layer, BufferId a,
                        int64_t k) {
  LinearOp op;
  op.weight = weaver.weight(weight, layer);
  op.bias = weaver.weight(bias, layer);
  op.a = a;
  op.n = weaver.config().hidden;
  op.k = k;
  return op;
}

EventId Residual::logits(Section& section) {
  const ModelConfig& config = weaver_.config();
  const Tiles tiles = section.product(config.vocabulary, config.hidden);
  Users users;
  add_users(tiles, users);
  Waits waits;
  LinearOp head;
  head.a = input(section, layer_spec(config, config.layers - 1), "final_norm", -1, Role::final_norm,
                 Role::final_norm_bias, users, waits);
  head.weight = weaver_.weight(Role::head);
  head.out = weaver_.program.logits;
  head.n = config.vocabulary;
  head.k = config.hidden;
  head.alpha = static_cast<float>(1.0 / config.logits_divisor);
  head.soft_cap = static_cast<float>(config.logits_soft_cap);
  return weaver_.spread(weaver_.operation("head", -1, section.rows, head), tiles, waits);
}

}  // namespace weft::planning

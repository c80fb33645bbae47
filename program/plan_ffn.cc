#include "program/plan_ffn.h"

namespace weft::planning {
namespace {

/// What both forms have: their tiles, their input and what they wait for.
struct Inputs {
  Tiles tiles;
  BufferId input = kNone;
  Waits waits;
};
Inputs read(Residual& residual, Section& section, const LayerSpec& spec, int64_t layer,
            Tiles tiles) {
  Inputs inputs;
  inputs.tiles = std::move(tiles);
  Users users;
  add_users(inputs.tiles, users);
  inputs.input = residual.input(section, spec, "ffn_norm", layer, Role::ffn_norm,
                                Role::ffn_norm_bias, users, inputs.waits);
  return inputs;
}

EventId plan_gated(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
                   int64_t layer) {
  const int64_t hidden = weaver.config().hidden;
  const Inputs inputs =
      read(residual, section, spec, layer, section.gated_product(spec.ffn.size, hidden));
  GatedLinearOp op;
  op.a = inputs.input;
  op.gate = weaver.weight(Role::gate, layer);
  op.up = weaver.weight(Role::up, layer);
  op.gate_bias = weaver.weight(Role::gate_bias, layer);
  op.up_bias = weaver.weight(Role::up_bias, layer);
  op.out = section.ffn;
  op.n = spec.ffn.size;
  op.k = hidden;
  op.activation = spec.ffn.activation;
  return weaver.spread(weaver.operation("gate_up_proj", layer, section.rows, op), inputs.tiles,
                       inputs.waits);
}

EventId plan_plain(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
                   int64_t layer) {
  const int64_t hidden = weaver.config().hidden;
  const Inputs inputs =
      read(residual, section, spec, layer, section.product(spec.ffn.size, hidden));
  LinearOp op;
  op.a = inputs.input;
  op.weight = weaver.weight(Role::up, layer);
  op.bias = weaver.weight(Role::up_bias, layer);
  op.out = section.ffn;
  op.n = spec.ffn.size;
  op.k = hidden;
  op.activation = spec.ffn.activation;
  return weaver.spread(weaver.operation("up_proj", layer, section.rows, op), inputs.tiles,
                       inputs.waits);
}

}  // namespace

void plan_ffn(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
              int64_t layer) {
  const EventId done = spec.ffn.gated ? plan_gated(weaver, residual, section, spec, layer)
                                      : plan_plain(weaver, residual, section, spec, layer);
  const Tiles tiles = section.product(weaver.config().hidden, spec.ffn.size);
  const LinearOp output =
      output_product(weaver, Role::down, Role::down_bias, layer, section.ffn, spec.ffn.size);
  residual.add(section, spec, layer, {{"down_proj", output}}, Role::ffn_out_norm, tiles, {{done}});
}

}  // namespace weft::planning

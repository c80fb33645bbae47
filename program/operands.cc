#include "program/operands.h"

#include <cmath>
#include <utility>

namespace weft {
namespace {

using Columns = Operand::Columns;
using Part = WeightOperand::Part;

/// Lists an operation's operands and weights.
class Declarations {
 public:
  void operator()(const EmbedOp& op) {
    weight("table", op.table, Part::rows);
    read("tokens", op.tokens, 1);
    write("out", op.out, op.columns);
    write("copy", op.copy, op.columns);
  }
  void operator()(const RopeAnglesOp& op) {
    read("positions", op.positions, 1);
    add({.name = "inverse_frequencies",
         .buffer = op.inverse_frequencies,
         .rows = Operand::Rows::fixed,
         .size = op.half,
         .row = op.rope});
    write("cosines", op.cosines, op.half);
    write("sines", op.sines, op.half);
  }
  void operator()(const RmsNormOp& op) {
    weight("weight", op.weight, Part::whole);
    read("x", op.x, op.columns, Columns::tile);
    read("residual", op.residual, op.columns, Columns::tile);
    write("residual", op.residual, op.columns, Columns::tile);
    write("out", op.out, op.columns, Columns::tile);
  }
  void operator()(const LayerNormOp& op) {
    weight("weight", op.weight, Part::whole);
    weight("bias", op.bias, Part::whole);
    read("x", op.x, op.columns);
    write("out", op.out, op.columns);
  }
  void operator()(const LinearOp& op) {
    weight("w", op.weight, Part::tile);
    weight("bias", op.bias, Part::tile);
    read("a", op.a, op.k);
    if (op.accumulate) {
      read("out", op.out, 1, Columns::tile);
    }
    write("out", op.out, 1, Columns::tile);
  }
  void operator()(const GatedLinearOp& op) {
    weight("gate", op.gate, Part::tile);
    weight("up", op.up, Part::tile);
    weight("gate_bias", op.gate_bias, Part::tile);
    weight("up_bias", op.up_bias, Part::tile);
    read("a", op.a, op.k);
    write("out", op.out, 1, Columns::tile);
  }
  void operator()(const RopeAppendOp& op) {
    const int64_t queries = op.query_heads / op.kv_heads * op.head_dim;
    read("positions", op.positions, 1);
    read("cosines", op.cosines, (op.head_dim - op.unturned) / 2);
    read("sines", op.sines, (op.head_dim - op.unturned) / 2);
    read("q", op.q, queries, Columns::tile);
    read("k", op.k, op.head_dim, Columns::tile);
    read("v", op.v, op.head_dim, Columns::tile);
    write("q_out", op.q_out, queries, Columns::tile);
    write("keys", op.keys, 1, Columns::tile);
    write("values", op.values, 1, Columns::tile);
  }
  void operator()(const AttentionOp& op) {
    const int64_t queries = op.tile_heads() * op.head_dim;
    read("positions", op.positions, 1);
    if (op.fused_latent()) {
      fused_latent(op);
    } else if (op.k != kNone) {
      fused(op, queries);
    } else {
      read("q", op.q, queries, Columns::tile);
      const bool same = op.values == op.keys;
      for (const auto& [name, buffer] :
           {std::pair("keys", op.keys), {"values", same ? kNone : op.values}}) {
        add({.name = name,
             .buffer = buffer,
             .rows = Operand::Rows::seen,
             .columns = Columns::tile,
             .size = 1});
      }
    }
    if (op.partials == kNone) {
      weight("sinks", op.sinks, Part::whole);
      write("out", op.out, queries, Columns::tile);
    } else {
      write("partials", op.partials, tiles(op), Columns::split);
    }
  }
  void operator()(const AttentionCombineOp& op) {
    const AttentionOp& attention = op.attention;
    weight("sinks", attention.sinks, Part::whole);
    read("positions", attention.positions, 1);
    read("partials", attention.partials, attention.splits * tiles(attention));
    write("out", attention.out, attention.head_dim, Columns::tile);
  }
  void operator()(const SampleOp& op) {
    read("logits", op.logits, op.vocabulary);
    read("positions", op.positions, 1);
    for (const auto& [name, buffer] :
         {std::pair("tokens", op.tokens), {"positions", op.positions}}) {
      add({.name = name,
           .buffer = buffer,
           .written = true,
           .rows = Operand::Rows::next,
           .size = 1});
    }
  }

  void operator()(const LatentAppendOp& op) {
    weight("norm", op.norm, Part::whole);
    read("x", op.x, op.rank + op.turned);
    read("positions", op.positions, 1);
    read("cosines", op.cosines, op.turned / 2);
    read("sines", op.sines, op.turned / 2);
    write("cache", op.cache, 1, Columns::tile);
  }
  void operator()(const LatentQueriesOp& op) {
    heads(op, op.unturned, op.fused);
    if (op.fused) {
      of_heads("q", op.q, op.rank, op.unturned + op.turned);
    } else {
      read("q", op.q, op.unturned + op.turned, Columns::tile);
      read("cosines", op.cosines, op.turned / 2);
      read("sines", op.sines, op.turned / 2);
    }
    write("out", op.out, op.fused ? 1 : op.pitch(), Columns::tile);
  }
  /// Fused, it reads the rows of heads that it has columns of.
  void operator()(const LatentValuesOp& op) {
    heads(op, op.fused ? 1 : op.value, false);
    if (!op.fused) {
      read("a", op.a, op.pitch(), Columns::tile);
    } else {
      of_heads("a", op.a, op.value, op.rank);
    }
    write("out", op.out, op.fused ? 1 : op.value, Columns::tile);
  }
  void operator()(const LatentAttentionOp& op) {
    heads(op, op.unturned + op.value, false);
    read("positions", op.positions, 1);
    read("q", op.q, op.unturned + op.turned, Columns::tile);
    read("cosines", op.cosines, op.turned / 2);
    read("sines", op.sines, op.turned / 2);
    add({.name = "cache", .buffer = op.cache, .rows = Operand::Rows::seen, .size = 1});
    write("out", op.out, op.value, Columns::tile);
  }

  void operator()(const RouteOp& op) {
    weight("correction", op.correction, Part::whole);
    read("logits", op.logits, op.experts);
    write("ids", op.ids, op.chosen);
    write("weights", op.weights, op.chosen);
  }
  void operator()(const ExpertsUpOp& op) {
    of_experts("gate", op.gate, op.experts, op.chosen, op.flat);
    of_experts("up", op.up, op.experts, op.chosen, op.flat);
    if (op.gate_bias.present) {
      of_experts("gate_bias", op.gate_bias, op.experts, op.chosen, op.flat);
      of_experts("up_bias", op.up_bias, op.experts, op.chosen, op.flat);
    }
    read("a", op.a, op.k);
    read("ids", op.ids, op.chosen);
    add({.name = "out",
         .buffer = op.out,
         .written = true,
         .columns = Columns::tile,
         .size = 1,
         .rows_each = op.flat ? 1 : op.chosen});
  }
  void operator()(const ExpertsDownOp& op) {
    of_experts("w", op.weight, op.experts, op.chosen);
    if (op.bias.present) {
      of_experts("bias", op.bias, op.experts, op.chosen);
    }
    if (op.flat) {
      read("a", op.a, op.chosen * op.k);
    } else {
      add({.name = "a", .buffer = op.a, .size = op.k, .rows_each = op.chosen});
    }
    read("ids", op.ids, op.chosen);
    read("weights", op.weights, op.chosen);
    if (op.accumulate) {
      read("out", op.out, 1, Columns::tile);
    }
    write("out", op.out, 1, Columns::tile);
  }

  std::vector<Operand> operands;
  std::vector<WeightOperand> weights;

 private:
  void heads(const LatentHeadsOp& op, int64_t rows, bool column) {
    weights.push_back(
        {.name = "w", .ref = op.weight, .part = Part::tile, .rows_each = rows, .column = column});
  }
  /// `each` columns of the heads of which the tile has some of `size` columns.
  void of_heads(std::string_view name, BufferId buffer, int64_t size, int64_t each) {
    add({.name = name, .buffer = buffer, .columns = Columns::heads, .size = size, .each = each});
  }
  /// Parts that attention's tiles have in all.
  static int64_t tiles(const AttentionOp& op) { return op.query_heads / op.tile_heads(); }
  /// As fused(), but that all heads have the same rows: all who have the step's own norm it, the
  /// first appends it.
  void fused_latent(const AttentionOp& op) {
    weight("key_norm", op.key_norm, Part::whole);
    read("q", op.q, op.head_dim, Columns::tile);
    read("projected", op.latent.projected, op.latent.unturned + op.latent.turned, Columns::tile);
    read("cosines", op.cosines, op.latent.turned / 2);
    read("sines", op.sines, op.latent.turned / 2);
    add({.name = "keys", .buffer = op.keys, .rows = Operand::Rows::earlier, .size = 1});
    add({.name = "k",
         .buffer = op.k,
         .size = op.head_dim + op.latent.turned,
         .first_split_only = true});
    add({.name = "keys",
         .buffer = op.keys,
         .written = true,
         .size = 1,
         .first_split_only = true,
         .first_tile_only = true});
  }
  /// Which split has the step's own row depends on the position; one has it. Let it be split 0.
  void fused(const AttentionOp& op, int64_t queries) {
    weight("query_norm", op.query_norm, Part::whole);
    weight("key_norm", op.key_norm, Part::whole);
    const bool whole = op.query_norm.present && op.whole_norm;
    if (whole) {
      read("q", op.q, op.query_heads * op.head_dim);
    } else {
      read("q", op.q, queries, Columns::tile);
    }
    read("cosines", op.cosines, (op.head_dim - op.unturned) / 2);
    read("sines", op.sines, (op.head_dim - op.unturned) / 2);
    const auto own = [&](std::string_view name, BufferId buffer, bool written, Columns columns,
                         int64_t size) {
      add({.name = name,
           .buffer = buffer,
           .written = written,
           .columns = columns,
           .size = size,
           .first_split_only = true});
    };
    for (const auto& [name, buffer] : {std::pair("keys", op.keys), {"values", op.values}}) {
      add({.name = name,
           .buffer = buffer,
           .rows = Operand::Rows::earlier,
           .columns = Columns::tile,
           .size = 1});
    }
    own("k", op.k, false, whole ? Columns::whole : Columns::tile,
        whole ? op.kv_heads * op.head_dim : op.head_dim);
    own("v", op.v, false, Columns::tile, op.head_dim);
    own("keys", op.keys, true, Columns::tile, 1);
    own("values", op.values, true, Columns::tile, 1);
  }

  void read(std::string_view name, BufferId buffer, int64_t size,
            Columns columns = Columns::whole) {
    add({.name = name, .buffer = buffer, .columns = columns, .size = size});
  }
  void write(std::string_view name, BufferId buffer, int64_t size,
             Columns columns = Columns::whole) {
    add({.name = name, .buffer = buffer, .written = true, .columns = columns, .size = size});
  }
  void add(const Operand& operand) {
    if (operand.buffer != kNone) {
      operands.push_back(operand);
    }
  }
  void weight(std::string_view name, const WeightRef& ref, Part part) {
    if (ref.present) {
      weights.push_back({name, ref, part});
    }
  }
  /// `chosen`: that a tile is of.
  void of_experts(std::string_view name, const WeightRef& ref, int64_t experts, int64_t chosen,
                  bool flat = false) {
    weights.push_back({.name = name,
                       .ref = ref,
                       .part = Part::tile,
                       .experts = experts,
                       .chosen = chosen,
                       .slots = flat ? chosen : 1});
  }
};

Declarations declarations_of(const Operation& operation) {
  Declarations declarations;
  std::visit(declarations, operation.body);
  return declarations;
}

}  // namespace

double drawn_share(int64_t chosen, int64_t experts, int64_t rows) {
  return 1 - std::pow(1 - static_cast<double>(chosen) / static_cast<double>(experts),
                      static_cast<double>(rows));
}

std::vector<Operand> operands_of(const Operation& operation) {
  return std::move(declarations_of(operation).operands);
}

std::vector<WeightOperand> weights_of(const Operation& operation) {
  return std::move(declarations_of(operation).weights);
}

}  // namespace weft

#include "program/program.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "program/operands.h"

namespace weft {
namespace {

/// Of the weights that an instruction reads for `rows` rows.
double weight_bytes(const Operation& operation, const Instruction& instruction,
                    const Weights& weights, int64_t rows) {
  double bytes = 0;
  for (const WeightOperand& operand : weights_of(operation)) {
    const Tensor& tensor = weights.get(operand.ref.role, operand.ref.layer);
    const int64_t row = tensor.shape.size() == 2 && !operand.column ? tensor.columns() : 1;
    const int64_t elements = operand.part == WeightOperand::Part::rows ? rows * row
                             : operand.part == WeightOperand::Part::tile
                                 ? instruction.tile.size() * operand.rows_each * row
                                 : tensor.elements();
    // Experts that nobody of the rows draws are not read.
    const double matrices = operand.experts == 1
                                ? 1
                                : static_cast<double>(operand.experts) *
                                      drawn_share(operand.chosen, operand.experts, rows) /
                                      static_cast<double>(operand.slots);
    const double all_bytes =
        static_cast<double>(tensor.bytes()) + 4 * static_cast<double>(tensor.scale_count());
    bytes += matrices * static_cast<double>(elements) * all_bytes /
             static_cast<double>(tensor.elements());
  }
  return bytes;
}

/// Keys that `rows` tokens from `position` on see in all.
double visible_keys(int64_t rows, int64_t position, int64_t window) {
  double sum = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t seen = position + r + 1;
    sum += static_cast<double>(window > 0 ? std::min(seen, window) : seen);
  }
  return sum;
}

/// Bytes of the cache and flops.
struct CostOf {
  const Program& program;
  const Instruction& instruction;
  int64_t rows;      // of this instruction
  int64_t position;  // of its first row

  Cost operator()(const EmbedOp&) const { return {}; }
  Cost operator()(const RopeAnglesOp&) const { return {}; }
  Cost operator()(const RmsNormOp& op) const { return of_elements(4, op.columns); }
  Cost operator()(const LayerNormOp& op) const { return of_elements(7, op.columns); }
  Cost operator()(const LinearOp& op) const {
    return of_elements(2, instruction.tile.size() * op.k);
  }
  Cost operator()(const GatedLinearOp& op) const {
    return of_elements(4, instruction.tile.size() * op.k);
  }
  Cost operator()(const RopeAppendOp& op) const {
    const double elements = static_cast<double>(rows * instruction.tile.size() * op.head_dim);
    return {0, 2 * elements * static_cast<double>(size_of(program.buffers[op.keys].element)),
            6.0 * elements * static_cast<double>(op.query_heads / op.kv_heads + 1) / 2};
  }
  Cost operator()(const AttentionOp& op) const {
    const double share = 1.0 / static_cast<double>(op.splits);
    const auto of_one = [&](int64_t at) { return visible_keys(1, at, op.window) * share; };
    const bool apart = program.sequences > 1;  // each row has keys of its own
    const double keys = apart ? static_cast<double>(rows) * of_one(position)
                              : visible_keys(rows, position, op.window) * share;
    const double last = apart ? keys : of_one(position + rows - 1);
    // Latent rows are of all heads, also where a tile has few of these.
    const double group = static_cast<double>(op.query_heads / op.kv_heads);
    const double heads =
        static_cast<double>(instruction.tile.size()) * static_cast<double>(op.tile_heads()) / group;
    const double dim = static_cast<double>(op.head_dim + op.latent.turned);
    const double element = static_cast<double>(size_of(program.buffers[op.keys].element));
    const double caches = op.values == op.keys ? 1 : 2;
    // A chunk reads the keys that its last row sees once for all its rows.
    return {0, caches * last * heads * dim * element, 4 * keys * heads * group * dim};
  }
  Cost operator()(const LatentAppendOp& op) const {
    const double elements = static_cast<double>(rows * (op.rank + op.turned));
    return {0, elements * static_cast<double>(size_of(program.buffers[op.cache].element)),
            4 * elements};
  }
  Cost operator()(const LatentQueriesOp& op) const {
    return of_elements(2, instruction.tile.size() * op.unturned * (op.fused ? 1 : op.rank));
  }
  Cost operator()(const LatentValuesOp& op) const {
    return of_elements(2, instruction.tile.size() * op.rank * (op.fused ? 1 : op.value));
  }
  /// In the form that has less to do: products with a head's weights are of all rows that are
  /// seen, or of the queries alone.
  Cost operator()(const LatentAttentionOp& op) const {
    const int64_t seen = position + rows;
    const double keys = visible_keys(rows, position, 0);
    const auto flops = [&](int64_t multiplied, int64_t key) {
      return 2 * static_cast<double>(instruction.tile.size()) *
             (static_cast<double>(multiplied * op.rank * (op.unturned + op.value)) +
              keys * static_cast<double>(key));
    };
    const auto element = static_cast<double>(size_of(program.buffers[op.cache].element));
    return {0, static_cast<double>(seen * (op.rank + op.turned)) * element,
            std::min(flops(seen, op.unturned + op.turned + op.value),
                     flops(rows, 2 * op.rank + op.turned))};
  }
  Cost operator()(const AttentionCombineOp&) const { return {}; }
  Cost operator()(const SampleOp&) const { return {}; }
  Cost operator()(const RouteOp& op) const { return of_elements(2, op.experts); }
  Cost operator()(const ExpertsUpOp& op) const {
    return of_elements(4, (op.flat ? 1 : op.chosen) * instruction.tile.size() * op.k);
  }
  Cost operator()(const ExpertsDownOp& op) const {
    return of_elements(2, op.chosen * instruction.tile.size() * op.k);
  }

 private:
  Cost of_elements(double flops, int64_t elements) const {
    return {0, 0, flops * static_cast<double>(rows * elements)};
  }
};

}  // namespace

Element element_of(DType type) {
  switch (type) {
    case DType::f32:
      return Element::f32;
    case DType::bf16:
      return Element::bf16;
    case DType::f16:
      return Element::f16;
    default:
      WEFT_CHECK(false);  // no program has a buffer of it
  }
}

DType dtype_of(Element element) {
  WEFT_CHECK(element != Element::i32);
  return element == Element::f32 ? DType::f32 : element == Element::bf16 ? DType::bf16 : DType::f16;
}

int64_t size_of(Element element) {
  return element == Element::f32 || element == Element::i32 ? 4 : 2;
}

std::string_view name_of(Element element) {
  constexpr std::array<std::string_view, 4> kNames = {"f32", "bf16", "f16", "i32"};
  return kNames[static_cast<size_t>(element)];
}

std::string_view kind_of(const Operation& operation) {
  constexpr std::array<std::string_view, std::variant_size_v<decltype(Operation::body)>> kNames = {
      "embed",         "rope_angles",     "rmsnorm",      "layernorm",         "linear",
      "gated_linear",  "rope_append",     "attention",    "attention_combine", "sample",
      "route",         "experts_up",      "experts_down", "latent_append",     "latent_queries",
      "latent_values", "latent_attention"};
  return kNames[operation.body.index()];
}

Cost& Cost::operator+=(const Cost& other) {
  weight_bytes += other.weight_bytes;
  kv_bytes += other.kv_bytes;
  flops += other.flops;
  return *this;
}

Cost cost_of(const Program& program, const Instruction& instruction, const Weights& weights,
             int64_t rows, int64_t position) {
  const Operation& operation = program.operations[static_cast<size_t>(instruction.operation)];
  Range range = operation.rows == Rows::last
                    ? Range{rows - 1, rows}
                    : Range{instruction.rows.begin, std::min(instruction.rows.end, rows)};
  if (range.empty()) {
    return {};
  }
  const int64_t first = program.sequences > 1 ? position : position + range.begin;
  Cost cost = std::visit(CostOf{program, instruction, range.size(), first}, operation.body);
  cost.weight_bytes = weight_bytes(operation, instruction, weights, range.size());
  return cost;
}

Cost cost_of(const Program& program, const Weights& weights, int64_t rows, int64_t position) {
  Cost sum;
  for (const auto& worker : program.workers) {
    for (const Instruction& instruction : worker) {
      sum += cost_of(program, instruction, weights, rows, position);
    }
  }
  return sum;
}

}  // namespace weft

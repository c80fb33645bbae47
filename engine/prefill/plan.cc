#include "engine/prefill/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/divide.h"
#include "ops/chunk_kernels.h"

namespace weft {
namespace {

constexpr int64_t kTileRows = 128;  // of the kernels that multiply

int64_t aligned(int64_t bytes) { return round_up(bytes, 256); }

const LinearOp* linear_at(const Program& program, size_t i) {
  return i < program.operations.size() ? std::get_if<LinearOp>(&program.operations[i].body)
                                       : nullptr;
}

/// Of the weights of `joined` products, in the format of their rows, or of what attention over
/// latent rows multiplies, if they are codes. A product may be of up to 7 columns more than there
/// are.
int64_t widened_bytes(const Program& chunk, const Weights& weights, size_t first, int joined) {
  int64_t rows = 0;
  int64_t row_bytes = 0;
  const auto add = [&](const WeightRef& ref, Element like) {
    const Tensor& tensor = weights.tensors()[tensor_index(weights, ref)];
    rows += tensor.rows();
    row_bytes = is_fp8(tensor.dtype) ? tensor.columns() * size_of(like) : 0;
  };
  const auto element = [&](BufferId id) { return chunk.buffers[static_cast<size_t>(id)].element; };
  for (size_t i = first; i < first + static_cast<size_t>(joined); ++i) {
    const auto& body = chunk.operations[i].body;
    if (const auto* linear = std::get_if<LinearOp>(&body)) {
      add(linear->weight, element(linear->a));
    } else if (const auto* gated = std::get_if<GatedLinearOp>(&body)) {
      add(gated->gate, element(gated->a));
      add(gated->up, element(gated->a));
    } else if (const auto* latent = std::get_if<LatentAttentionOp>(&body)) {
      add(latent->weight, latent->element);
    }
  }
  return (rows + 7) * row_bytes;
}

/// In words that follow others; empty: there are no latent rows.
std::string describe_latent_prompt(Arch arch, const ModelConfig& config, const Weights& weights,
                                   DType kv, bool rounds) {
  if (config.latent.rank == 0) {
    return {};
  }
  LatentAttentionOp op;
  op.heads = config.query_heads;
  op.rank = config.latent.rank;
  op.unturned = config.latent.unturned;
  op.turned = config.latent.turned;
  op.value = config.latent.value;
  op.element = rounds && kv == DType::bf16 ? Element::bf16 : Element::f32;
  const std::string_view why =
      refuse_latent_prompt(arch, op, weights.get(Role::latent_up, 0).dtype, kv);
  return why.empty() ? ", keys and values multiplied out of latent rows"
                     : fmt::format(", attention over latent rows absorbed: {}", why);
}

}  // namespace

size_t tensor_index(const Weights& weights, const WeightRef& ref) {
  return static_cast<size_t>(&weights.get(ref.role, ref.layer) - weights.tensors().data());
}

std::vector<uint8_t> pack_mx(const Tensor& tensor) {
  const MxMatrix& mx = tensor.mx;
  std::vector<uint8_t> packed(static_cast<size_t>(tensor.bytes()));
  uint8_t* codes = packed.data();
  uint8_t* scales = codes + tensor.elements() / 2;
  const int64_t code_bytes = mx.k / 2;
  const int64_t scale_bytes = mx.k / kMxBlock;
  for (int64_t r = 0; r < tensor.rows(); ++r) {
    std::memcpy(codes + r * code_bytes, mx.row_codes(r), static_cast<size_t>(code_bytes));
    std::memcpy(scales + r * scale_bytes, mx.row_scales(r), static_cast<size_t>(scale_bytes));
  }
  return packed;
}

std::string refuse_prefill(Arch arch, const ModelConfig& config, const Weights& weights,
                           ChunkFormats formats) {
  const ChunkLimits& limits = chunk_limits(arch);
  const bool has_biases = config.qkv_bias || config.attention_out_bias || config.ffn_bias;
  const LatentAttention& latent = config.latent;
  if (latent.rank > 0 && config.head_dim > limits.latent_row) {
    return fmt::format("its latent rows are of {} elements, more than {}", config.head_dim,
                       limits.latent_row);
  }
  if (config.experts.count > 0 && config.experts.groups > limits.route_groups) {
    return fmt::format("its experts are of {} groups, more than {}", config.experts.groups,
                       limits.route_groups);
  }
  if (config.sinks && !limits.sinks) {
    return "its attention has sinks";
  }
  for (const Tensor& tensor : weights.tensors()) {
    const DType type = tensor.dtype;
    if (type == DType::e4m3fnuz || (is_fp8(type) && !limits.widened)) {
      return fmt::format("{} is {}", tensor.name, name_of(type));
    }
    if (is_fp8(type) && config.experts.count > 0 && tensor.scales.scaling != Scaling::block) {
      return fmt::format("{} is {} in a model with experts, and its scales are not of blocks",
                         tensor.name, name_of(type));
    }
    if (is_fp8(type) && !formats.round_activations && has_biases) {
      return fmt::format("{} is {} beside biases, and activations are f32", tensor.name,
                         name_of(type));
    }
  }
  for (const int64_t size : {config.hidden, config.ffn, config.query_size(), config.kv_size(),
                             config.experts.size, config.experts.shared_size, latent.query_rank,
                             latent.rank, latent.unturned, config.attended_size()}) {
    if (size % 8 != 0) {
      return fmt::format("{} is no multiple of 8", size);
    }
  }
  if (latent.rank == 0 && (config.head_dim % 8 != 0 || config.head_dim > limits.head_dim)) {
    return fmt::format("its heads are of {}, not a multiple of 8 up to {}", config.head_dim,
                       limits.head_dim);
  }
  if (config.rotary_dim() % 8 != 0) {
    return fmt::format("RoPE turns {} of a head's elements, not a multiple of 8",
                       config.rotary_dim());
  }
  return {};
}

std::string_view refuse_latent_prompt(Arch arch, const LatentAttentionOp& op, DType weights,
                                      DType kv) {
  const ChunkLimits& limits = chunk_limits(arch);
  if (limits.refuse_latent_prompt == nullptr) {
    return "there is no other kernel";
  }
  LatentAttentionArgs args;
  args.element = dtype_of(op.element);
  args.of = {.heads = op.heads,
             .rank = op.rank,
             .unturned = op.unturned,
             .turned = op.turned,
             .value = op.value,
             .w = {.dtype = is_fp8(weights) ? args.element : weights}};
  args.cache.dtype = kv;
  return limits.refuse_latent_prompt(args);
}

std::string describe_prefill(Arch arch, const ModelConfig& config, const Weights& weights,
                             ChunkFormats formats) {
  const std::string why = refuse_prefill(arch, config, weights, formats);
  const DType type = weights.get(Role::query, 0).dtype;
  const bool rounds = formats.round_activations && (type == DType::bf16 || is_fp8(type));
  return why.empty()
             ? fmt::format(
                   "by chunks of up to {} tokens (fewer than {}: token by token), activations {}, "
                   "KV cache {}{}",
                   kChunkRows, fewest_tokens(formats), rounds ? "bf16" : "f32",
                   name_of(element_of(formats.kv)),
                   describe_latent_prompt(arch, config, weights, formats.kv, rounds))
             : fmt::format("token by token: {}", why);
}

PlanOptions chunk_options(int64_t rows, int64_t capacity, Logits logits, ChunkFormats formats) {
  PlanOptions options;
  options.workers = 1;
  options.rows = std::max<int64_t>(2, rows);  // one row would be a decode step
  options.capacity = capacity;
  options.kv = formats.kv;
  options.round_activations = formats.round_activations;
  options.logits = logits;
  options.sample = false;
  return options;
}

Chunks cut_into_chunks(int64_t rows, int64_t most) {
  Chunks result;
  result.count = (rows + most - 1) / most;
  if (result.count > 0) {
    const int64_t each = (rows + result.count - 1) / result.count;
    result.rows = std::min(most, round_up(each, kTileRows));
    result.count = (rows + result.rows - 1) / result.rows;
  }
  return result;
}

ChunkLayout lay_out_chunk(Arch arch, const Program& chunk, const Weights& weights,
                          std::span<const int64_t> places) {
  ChunkLayout layout;
  layout.joined.assign(chunk.operations.size(), 1);
  layout.buffers.resize(chunk.buffers.size());
  const auto take = [&](int64_t bytes) {
    const int64_t offset = layout.bytes;
    layout.bytes += aligned(bytes);
    return offset;
  };
  /// Whether the second weight begins where the first ends; both absent will do.
  const auto adjacent = [&](const WeightRef& first, const WeightRef& second) {
    if (!first.present || !second.present) {
      return first.present == second.present;
    }
    const size_t a = tensor_index(weights, first);
    const size_t b = tensor_index(weights, second);
    return places[b] == places[a] + weights.tensors()[a].bytes() &&
           weights.tensors()[b].dtype == weights.tensors()[a].dtype;
  };

  /// Rows of a product that are there at a time.
  const auto rows_of = [&](BufferId out) {
    const int64_t rows = chunk.buffers[static_cast<size_t>(out)].rows;
    return out == chunk.logits ? std::min(rows, kLogitsRows) : rows;
  };
  const auto place_of = [&](const LinearOp& op) -> ChunkMatrix& {
    return layout.buffers[static_cast<size_t>(op.out)];
  };
  /// Whether the results can be, or are already, neighbouring columns.
  const auto side_by_side = [&](const LinearOp& first, const LinearOp& second) {
    const ChunkMatrix& a = place_of(first);
    const ChunkMatrix& b = place_of(second);
    return a.offset < 0 ? b.offset < 0 && &a != &b
                        : b.stride == a.stride && b.offset == a.offset + first.n * 4;
  };

  // Projections of the same rows become one product into neighbouring columns.
  for (size_t i = 0; i < chunk.operations.size(); ++i) {
    const LinearOp* first = linear_at(chunk, i);
    if (first == nullptr) {
      continue;
    }
    const LinearOp* last = first;
    int64_t columns = first->n;
    size_t end = i + 1;
    for (const LinearOp* next = linear_at(chunk, end); next != nullptr;
         next = linear_at(chunk, ++end)) {
      if (next->a != first->a || next->alpha != first->alpha || first->accumulate ||
          next->accumulate || first->activation != next->activation ||
          first->soft_cap != next->soft_cap || !adjacent(last->weight, next->weight) ||
          !adjacent(last->bias, next->bias) || !side_by_side(*last, *next)) {
        break;
      }
      columns += next->n;
      last = next;
    }
    layout.joined[i] = static_cast<int>(end - i);
    if (place_of(*first).offset < 0) {  // an earlier layer's has it already otherwise
      const Buffer& out = chunk.buffers[static_cast<size_t>(first->out)];
      const int64_t stride = round_up(columns, 8);  // see Prefill::linear_args()
      int64_t offset = take(rows_of(first->out) * stride * size_of(out.element));
      for (size_t j = i; j < end; ++j) {
        const LinearOp& op = *linear_at(chunk, j);
        place_of(op) = {offset, stride};
        offset += op.n * size_of(out.element);
      }
    }
    std::fill(layout.joined.begin() + static_cast<ptrdiff_t>(i) + 1,
              layout.joined.begin() + static_cast<ptrdiff_t>(end), 0);
    i = end - 1;
  }

  int64_t order = 0;
  int64_t products = 0;
  for (const Operation& operation : chunk.operations) {
    if (const auto* route = std::get_if<RouteOp>(&operation.body)) {
      for (const BufferId id : {route->ids, route->weights}) {
        if (ChunkMatrix& place = layout.buffers[static_cast<size_t>(id)]; place.offset < 0) {
          place = {take(chunk.rows * route->chosen * 4), route->chosen};  // no gaps between rows
        }
      }
      order = std::max(order, moe_order_elements(chunk.rows, route->chosen, route->experts));
    } else if (const auto* down = std::get_if<ExpertsDownOp>(&operation.body)) {
      products = std::max(products, chunk.rows * down->chosen * down->n);
    }
  }
  for (const Operation& operation : chunk.operations) {
    if (const auto* op = std::get_if<LatentAttentionOp>(&operation.body)) {
      const DType kv = dtype_of(chunk.buffers[static_cast<size_t>(op->cache)].element);
      const DType weight = weights.tensors()[tensor_index(weights, op->weight)].dtype;
      layout.multiplies_out = refuse_latent_prompt(arch, *op, weight, kv).empty();
      layout.absorbed_rows =
          layout.multiplies_out ? std::min(chunk.rows, kMostStepRows) : chunk.rows;
      const int64_t elements = layout.absorbed_rows * op->heads * (op->rank + op->turned);
      layout.absorbed_queries = take(elements * size_of(op->element));
      layout.absorbed = take(elements * 4);
      break;  // all layers' are alike
    }
  }
  layout.order = take(order * 4);
  layout.products = take(products * 4);

  for (size_t i = 0; i < chunk.buffers.size(); ++i) {
    const Buffer& buffer = chunk.buffers[i];
    const bool held = buffer.space == Space::activation || buffer.space == Space::worker;
    if (held && layout.buffers[i].offset < 0) {
      const int64_t stride =
          round_up(buffer.columns, static_cast<int64_t>(16 / size_of(buffer.element)));
      layout.buffers[i] = {take(buffer.rows * stride * size_of(buffer.element)), stride};
    }
  }
  int64_t scratch = 0;
  for (size_t i = 0; i < chunk.operations.size(); ++i) {
    const LinearOp* op = linear_at(chunk, i);
    if (op != nullptr && chunk.buffers[static_cast<size_t>(op->a)].element == Element::bf16) {
      const bool bends = op->bias.present || op->alpha != 1 || op->activation != Activation::none ||
                         op->soft_cap > 0;
      const int64_t rows = chunk_limits(arch).scratch_rows(
          bends, op->accumulate, dtype_of(chunk.buffers[static_cast<size_t>(op->out)].element),
          rows_of(op->out));
      scratch = std::max(scratch, rows * place_of(*op).stride);
    }
  }
  layout.scratch = take(scratch * 4);
  int64_t widened = 0;
  for (size_t i = 0; i < chunk.operations.size(); ++i) {
    widened = std::max(widened, widened_bytes(chunk, weights, i, layout.joined[i]));
  }
  layout.widened = take(widened);
  return layout;
}

}  // namespace weft

#include "engine/prefill/prefill.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/divide.h"
#include "ops/layernorm/op.h"
#include "ops/matrix_rows.h"

namespace weft {

std::vector<char*> caches_of(const Program& decode, const resident::Arena& arena, char* at) {
  std::vector<char*> caches;
  for (size_t i = 0; i < decode.buffers.size(); ++i) {
    if (decode.buffers[i].space == Space::kv) {
      caches.push_back(at + arena.buffers[i]);
    }
  }
  return caches;
}

PrefillPlaces places_of(const Program& decode, const resident::Arena& arena, char* at,
                        int64_t sequences) {
  const auto frequencies = static_cast<size_t>(decode.inverse_frequencies);
  const Buffer& buffer = decode.buffers[frequencies];
  PrefillPlaces places;
  places.weights = at;
  places.weight_places = arena.weights;
  places.scale_places = arena.scales;
  places.caches = caches_of(decode, arena, at);
  places.sequences = sequences;
  places.inverse_frequencies = reinterpret_cast<const float*>(at + arena.buffers[frequencies]);
  places.frequency_stride = buffer.rows * buffer.columns / sequences;
  return places;
}

Prefill::Prefill(const ModelConfig& config, const Weights& weights, PrefillPlaces places,
                 ChunkFormats formats, int64_t capacity, Device& device, int64_t step_rows,
                 FixedSums fixed, int64_t tile_room)
    : config_(config),
      weights_(weights),
      places_(std::move(places)),
      formats_(formats),
      capacity_(capacity),
      step_rows_(step_rows),
      fixed_(fixed),
      tile_room_(tile_room),
      device_(device),
      kernels_(*chunk_kernels(device.info().arch)) {}

Result<std::unique_ptr<Prefill>> Prefill::create(const ModelConfig& config, const Weights& weights,
                                                 PrefillPlaces places, ChunkFormats formats,
                                                 int64_t capacity, Device& device,
                                                 int64_t step_rows, FixedSums fixed,
                                                 int64_t tile_room) {
  std::unique_ptr<Prefill> prefill(new Prefill(config, weights, std::move(places), formats,
                                               capacity, device, step_rows, fixed, tile_room));
  const int64_t rows = std::min(kChunkRows, std::max(capacity, step_rows));
  WEFT_ASSIGN(prefill->chunk_, prefill->load(rows, Logits::all, fixed.chunks));
  return prefill;
}

Result<std::unique_ptr<Prefill::Chunk>> Prefill::load(int64_t rows, Logits logits, bool whole_k) {
  auto chunk = std::make_unique<Chunk>();
  chunk->whole_k = whole_k;
  chunk->program = plan(config_, weights_, chunk_options(rows, capacity_, logits, formats_));
  chunk->layout =
      lay_out_chunk(device_.info().arch, chunk->program, weights_, places_.weight_places);
  int64_t caches = 0;
  for (const Buffer& buffer : chunk->program.buffers) {
    chunk->caches.push_back(buffer.space == Space::kv ? caches++ : -1);
  }
  for (size_t i = 0; i < chunk->program.operations.size(); ++i) {
    const auto& body = chunk->program.operations[i].body;
    if (std::holds_alternative<RopeAppendOp>(body) ||
        std::holds_alternative<LatentAppendOp>(body)) {
      chunk->last_append = i;
    }
  }
  auto memory = device_.allocate(static_cast<size_t>(chunk->layout.bytes));
  if (!memory.ok()) {
    return device_error(
        fmt::format("{}: {} needs {} MiB for the activations of {} rows of a prompt, and there is "
                    "not so much free: use a smaller model or --context",
                    device_.info().id, config_.name, chunk->layout.bytes >> 20, rows));
  }
  chunk->memory = std::move(*memory);
  WEFT_TRY(make_workspace(*chunk));
  WEFT_TRY(make_tiles(*chunk));
  return chunk;
}

Status Prefill::make_tiles(const Chunk& chunk) {
  const TiledKernels& tiled = kernels_.tiled;
  if (tiled.linear_bytes == nullptr || places_.bring != nullptr) {  // the weights do not stay
    return {};
  }
  struct Product {
    std::optional<LinearArgs> linear;
    std::optional<GatedLinearArgs> gated;
    int64_t bytes = 0;
    bool wanted = false;
  };
  std::map<size_t, Product> products;
  int64_t bytes = 0;
  for (size_t i = 0; i < chunk.program.operations.size(); ++i) {
    const auto& body = chunk.program.operations[i].body;
    const auto* linear = std::get_if<LinearOp>(&body);
    const auto* gated = std::get_if<GatedLinearOp>(&body);
    Product product;
    size_t index = 0;
    if (linear != nullptr && chunk.layout.joined[i] > 0) {
      index = tensor_index(weights_, linear->weight);
      product.linear = linear_args(chunk, i);
      product.bytes = tiled.linear_bytes(*product.linear);
      product.wanted = tiled.takes_linear(*product.linear, 1, chunk.whole_k, device_.stream());
    } else if (gated != nullptr) {
      index = tensor_index(weights_, gated->gate);
      product.gated = gated_linear_args(chunk, *gated);
      product.bytes = tiled.gated_bytes(*product.gated);
      product.wanted = tiled.takes_gated(*product.gated, 1, chunk.whole_k, device_.stream());
    }
    if (product.wanted && product.bytes > 0 && !is_fp8(weights_.tensors()[index].dtype) &&
        !tiles_.contains(index) && products.emplace(index, product).second) {
      bytes += product.bytes;
    }
  }
  if (products.empty() || bytes > tile_room_) {
    return {};
  }
  tile_room_ -= bytes;
  std::vector<uint32_t> refused(products.size());
  WEFT_ASSIGN(const DeviceMemory refused_at, device_.allocate(refused.size() * sizeof(uint32_t)));
  WEFT_TRY(device_.upload(refused_at.data(), refused.data(), refused.size() * sizeof(uint32_t)));
  auto* word = reinterpret_cast<uint32_t*>(refused_at.data());
  for (const auto& [index, product] : products) {
    WEFT_ASSIGN(tiles_[index], device_.allocate(static_cast<size_t>(product.bytes)));
    auto* const to = reinterpret_cast<char*>(tiles_[index].data());
    WEFT_TRY(product.linear ? tiled.make_linear(*product.linear, to, word++, device_.stream())
                            : tiled.make_gated(*product.gated, to, word++, device_.stream()));
  }
  WEFT_TRY(device_.synchronize());
  WEFT_TRY(device_.download(refused.data(), refused_at.data(), refused.size() * sizeof(uint32_t)));
  size_t i = 0;
  for (const auto& [index, product] : products) {
    if (refused[i++] != 0) {
      tiles_.erase(index);
    }
  }
  return {};
}

const char* Prefill::tiles(const WeightRef& first) const {
  if (tiles_.empty()) {
    return nullptr;
  }
  const auto found = tiles_.find(tensor_index(weights_, first));
  return found == tiles_.end() ? nullptr : reinterpret_cast<const char*>(found->second.data());
}

ConstMatrix Prefill::weight(const WeightRef& ref) const {
  const size_t index = tensor_index(weights_, ref);
  const Tensor& tensor = weights_.tensors()[index];
  return {places_.weights + places_.weight_places[index], tensor.dtype, tensor.columns()};
}

ConstMatrix Prefill::product_weight(const Chunk& chunk, const WeightRef& ref, DType type,
                                    int64_t before) const {
  const ConstMatrix stored = weight(ref);
  return is_fp8(stored.dtype) ? ConstMatrix{chunk.memory.data() + chunk.layout.widened +
                                                before * static_cast<int64_t>(size_of(type)),
                                            type, stored.stride}
                              : stored;
}

Status Prefill::widen(const Chunk& chunk, const WeightRef& ref, DType type, int64_t before) const {
  const size_t index = tensor_index(weights_, ref);
  const Tensor& tensor = weights_.tensors()[index];
  if (!is_fp8(tensor.dtype)) {
    return {};
  }
  const auto* scales =
      reinterpret_cast<const float*>(places_.weights + places_.scale_places[index]);
  void* const to = const_cast<void*>(product_weight(chunk, ref, type, before).data);
  return places_.widen(tensor, weight(ref).data, scales, type, to);
}

Status Prefill::widen_joined(const Chunk& chunk, size_t index) const {
  int64_t before = 0;
  for (int i = 0; i < chunk.layout.joined[index]; ++i) {
    const auto& op =
        std::get<LinearOp>(chunk.program.operations[index + static_cast<size_t>(i)].body);
    WEFT_TRY(widen(chunk, op.weight, input(chunk, op.a).dtype, before));
    before += op.n * op.k;
  }
  return {};
}

ConstVector Prefill::vector(const WeightRef& ref) const {
  if (!ref.present) {
    return {};
  }
  const ConstMatrix matrix = weight(ref);
  return {matrix.data, matrix.dtype};
}

Matrix Prefill::matrix(const Chunk& chunk, BufferId id) const {
  if (id == kNone) {
    return {};
  }
  const auto index = static_cast<size_t>(id);
  const ChunkMatrix& place = chunk.layout.buffers[index];
  return {chunk.memory.data() + place.offset, dtype_of(chunk.program.buffers[index].element),
          place.stride};
}

ConstMatrix Prefill::input(const Chunk& chunk, BufferId id) const {
  const Matrix m = matrix(chunk, id);
  return {m.data, m.dtype, m.stride};
}

KvCache Prefill::cache(const Chunk& chunk, BufferId keys, BufferId values, int sequence) const {
  const int64_t bytes =
      config_.kv_heads * capacity_ * config_.head_dim * static_cast<int64_t>(size_of(formats_.kv));
  const auto place = [&](BufferId id) {
    return places_.caches[static_cast<size_t>(chunk.caches[static_cast<size_t>(id)])] +
           sequence * bytes;
  };
  return {place(keys), place(values), formats_.kv, capacity_ * config_.head_dim};
}

LinearArgs Prefill::linear_args(const Chunk& chunk, size_t index) const {
  const auto& operations = chunk.program.operations;
  const auto& op = std::get<LinearOp>(operations[index].body);
  LinearArgs args{.a = input(chunk, op.a),
                  .w = product_weight(chunk, op.weight, input(chunk, op.a).dtype, 0),
                  .bias = vector(op.bias),
                  .n = op.n,
                  .k = op.k,
                  .alpha = op.alpha,
                  .accumulate = op.accumulate,
                  .activation = op.activation,
                  .out = matrix(chunk, op.out),
                  .soft_cap = op.soft_cap};
  for (int i = 1; i < chunk.layout.joined[index]; ++i) {
    args.n += std::get<LinearOp>(operations[index + static_cast<size_t>(i)].body).n;
  }
  if (args.a.dtype == DType::bf16 || chunk_limits(device_.info().arch).whole_columns) {
    // A vocabulary may be of any size: columns up to the multiple of 8 are of what follows the head
    // in the arena, and nobody looks at them.
    args.n = round_up(args.n, int64_t{8});
  }
  return args;
}

LatentAttentionArgs Prefill::latent_args(const Chunk& chunk, const LatentAttentionOp& op) const {
  const DType element = dtype_of(op.element);
  return {.of = {op.heads, op.rank, op.unturned, op.turned, op.value,
                 product_weight(chunk, op.weight, element, 0)},
          .q = input(chunk, op.q),
          .cosines = static_cast<const float*>(input(chunk, op.cosines).data),
          .sines = static_cast<const float*>(input(chunk, op.sines).data),
          .cache = cache(chunk, op.cache, op.cache, 0),
          .element = element,
          .scale = op.scale,
          .out = matrix(chunk, op.out)};
}

PrefillLatentAttention Prefill::absorbed_args(const Chunk& chunk,
                                              const LatentAttentionOp& op) const {
  const ChunkLayout& layout = chunk.layout;
  return {
      .q = {chunk.memory.data() + layout.absorbed_queries, dtype_of(op.element),
            op.heads * (op.rank + op.turned)},
      .cache = cache(chunk, op.cache, op.cache, 0),
      .capacity = capacity_,
      .sequences = places_.sequences,
      .heads = op.heads,
      .rank = op.rank,
      .turned = op.turned,
      .scale = op.scale,
      .alone = chunk.whole_k,
      .out = {chunk.memory.data() + layout.absorbed, DType::f32, op.heads * (op.rank + op.turned)},
      .workspace = workspace()};
}

AttentionArgs Prefill::attention_args(const Chunk& chunk, const AttentionOp& op) const {
  return {.q = input(chunk, op.q),
          .cache = cache(chunk, op.keys, op.values, 0),
          .query_heads = op.query_heads,
          .kv_heads = op.kv_heads,
          .head_dim = op.head_dim,
          .scale = op.scale,
          .soft_cap = op.soft_cap,
          .window = op.window,
          .splits = op.splits,
          .out = matrix(chunk, op.out),
          .sinks = vector(op.sinks)};
}

GatedLinearArgs Prefill::gated_linear_args(const Chunk& chunk, const GatedLinearOp& op) const {
  const DType type = input(chunk, op.a).dtype;
  return {.a = input(chunk, op.a),
          .gate = product_weight(chunk, op.gate, type, 0),
          .up = product_weight(chunk, op.up, type, op.n * op.k),
          .gate_bias = vector(op.gate_bias),
          .up_bias = vector(op.up_bias),
          .n = op.n,
          .k = op.k,
          .out = matrix(chunk, op.out),
          .activation = op.activation};
}

Status Prefill::launch_linear(const Chunk& chunk, size_t index, const LinearArgs& args,
                              int64_t rows) const {
  const Stream stream = device_.stream();
  const char* const own = tiles(std::get<LinearOp>(chunk.program.operations[index].body).weight);
  const bool takes =
      own != nullptr && kernels_.tiled.takes_linear(args, rows, chunk.whole_k, stream);
  return kernels_.linear(
      args, rows,
      {.product = reinterpret_cast<float*>(chunk.memory.data() + chunk.layout.scratch),
       .workspace = workspace(),
       .whole_k = chunk.whole_k,
       .tiles = takes ? own : nullptr},
      stream);
}

Status Prefill::make_workspace(const Chunk& chunk) {
  size_t most = 0;
  for (size_t i = 0; i < chunk.program.operations.size(); ++i) {
    if (chunk.layout.joined[i] > 0 &&
        std::holds_alternative<LinearOp>(chunk.program.operations[i].body)) {
      WEFT_ASSIGN(const size_t bytes,
                  kernels_.linear_workspace(linear_args(chunk, i), device_.stream()));
      most = std::max(most, bytes);
    }
    if (const auto* op = std::get_if<LatentAttentionOp>(&chunk.program.operations[i].body)) {
      WEFT_ASSIGN(const size_t bytes,
                  kernels_.latent_workspace(absorbed_args(chunk, *op), chunk.layout.absorbed_rows,
                                            device_.stream()));
      most = std::max(most, bytes);
      if (chunk.layout.multiplies_out) {
        most = std::max(most, kernels_.latent_prompt_workspace(
                                  {latent_args(chunk, *op), capacity_, {}}, chunk.program.rows));
      }
    }
    const auto* attention = std::get_if<AttentionOp>(&chunk.program.operations[i].body);
    if (attention != nullptr && kernels_.step_workspace != nullptr) {
      most = std::max(most,
                      kernels_.step_workspace(attention_args(chunk, *attention), device_.stream()));
    }
  }
  if (most <= workspace_.size()) {
    return {};
  }
  WEFT_ASSIGN(workspace_, device_.allocate(most));
  const std::vector<char> zeros(std::min(most, kCounterBytes));
  return device_.upload(workspace_.data(), zeros.data(), zeros.size());
}

Status Prefill::fits(const Chunk& chunk, size_t index, std::string_view refusal) const {
  return refusal.empty() ? Status{}
                         : usage_error(fmt::format("{} of a chunk of {}: {}",
                                                   chunk.program.operations[index].name,
                                                   config_.name, refusal));
}

/// Launches one operation, or several that are joined.
class Prefill::Launcher {
 public:
  Launcher(const Prefill& prefill, const Chunk& chunk, size_t index, const Span& span)
      : p_(prefill),
        chunk_(chunk),
        index_(index),
        span_(span),
        kernels_(prefill.kernels_),
        stream_(prefill.device_.stream()) {}

  Status operator()(const EmbedOp& op) const {
    const EmbedArgs args{.table = p_.weight(op.table),
                         .tokens = span_.tokens,
                         .columns = op.columns,
                         .scale = op.scale,
                         .out = matrix(op.out),
                         .copy = matrix(op.copy)};
    WEFT_TRY(fits(kernels_.refuse_embed(args)));
    return kernels_.embed(args, span_.rows, stream_);
  }
  Status operator()(const RopeAnglesOp& op) const {
    const PrefillPlaces& places = p_.places_;
    return kernels_.rope_angles(
        {.inverse_frequencies = places.inverse_frequencies +
                                span_.sequence * places.frequency_stride + op.rope * op.half,
         .half = op.half,
         .cosines = f32(op.cosines),
         .sines = f32(op.sines),
         .scale = op.scale},
        span_.rows, span_.first, stream_, span_.places);
  }
  Status operator()(const RmsNormOp& op) const {
    if (head_norms(index_ + 1) || head_norms(index_ + 2)) {
      return {};  // rope_append does it
    }
    const RmsNormArgs args{.x = input(op.x),
                           .weight = p_.vector(op.weight),
                           .columns = op.columns,
                           .groups = op.groups,
                           .epsilon = op.epsilon,
                           .scale = op.scale,
                           .residual = matrix(op.residual),
                           .out = matrix(op.out),
                           .weight_offset = op.weight_offset};
    WEFT_TRY(fits(kernels_.refuse_rmsnorm(args)));
    return kernels_.rmsnorm(args, span_.rows * op.groups, stream_);
  }
  Status operator()(const LayerNormOp& op) const {
    return weft::layernorm({.rows = span_.rows,
                            .x = input(op.x),
                            .weight = p_.vector(op.weight),
                            .bias = p_.vector(op.bias),
                            .columns = op.columns,
                            .epsilon = op.epsilon,
                            .out = matrix(op.out)},
                           stream_);
  }
  Status operator()(const LinearOp& /*op*/) const {
    const LinearArgs args = p_.linear_args(chunk_, index_);
    WEFT_TRY(fits(kernels_.refuse_linear(args)));
    WEFT_TRY(p_.widen_joined(chunk_, index_));
    return p_.launch_linear(chunk_, index_, args, span_.rows);
  }
  Status operator()(const GatedLinearOp& op) const {
    const GatedLinearArgs args = p_.gated_linear_args(chunk_, op);
    WEFT_TRY(fits(kernels_.refuse_gated_linear(args)));
    const char* const tiles = p_.tiles(op.gate);
    if (tiles != nullptr && kernels_.tiled.takes_gated(args, span_.rows, chunk_.whole_k, stream_)) {
      return kernels_.tiled.gated(args, tiles, span_.rows, stream_);
    }
    WEFT_TRY(p_.widen(chunk_, op.gate, args.a.dtype, 0));
    WEFT_TRY(p_.widen(chunk_, op.up, args.a.dtype, op.n * op.k));
    const bool soon = !chunk_.whole_k && kernels_.gated_linear_soon != nullptr;
    return (soon ? kernels_.gated_linear_soon : kernels_.gated_linear)(args, span_.rows, stream_);
  }
  Status operator()(const RouteOp& op) const {
    const RouteArgs args{.logits = input(op.logits),
                         .experts = op.experts,
                         .sigmoid = op.sigmoid,
                         .renormalise = op.renormalise,
                         .drawn = {place<int32_t>(op.ids), f32(op.weights), op.chosen, op.chosen},
                         .correction = p_.vector(op.correction),
                         .groups = op.groups,
                         .kept_groups = op.kept_groups,
                         .scale = op.scale};
    WEFT_TRY(fits(kernels_.refuse_route(args)));
    return kernels_.route(args, span_.rows, stream_);
  }
  Status operator()(const ExpertsUpOp& op) const {
    const PrefillExpertsUp args{.a = input(op.a),
                                .drawn = draw(op),
                                .gate = matrices(op.gate, op.experts),
                                .up = matrices(op.up, op.experts),
                                .gate_bias = p_.vector(op.gate_bias),
                                .up_bias = p_.vector(op.up_bias),
                                .n = op.n,
                                .k = op.k,
                                .activation = op.activation,
                                .limit = op.limit,
                                .out = matrix(op.out)};
    WEFT_TRY(fits(kernels_.refuse_experts_up(args)));
    return kernels_.experts_up(args, span_.rows, stream_);
  }
  Status operator()(const ExpertsDownOp& op) const {
    PrefillExpertsDown args{
        .a = input(op.a),
        .drawn = draw(op),
        .sorted = is_sorted(op),
        .weight = matrices(op.weight, op.experts),
        .bias = p_.vector(op.bias),
        .n = op.n,
        .k = op.k,
        .alpha = op.alpha,
        .accumulate = op.accumulate,
        .out = matrix(op.out),
        .products = reinterpret_cast<float*>(chunk_.memory.data() + chunk_.layout.products)};
    args.drawn.weights = f32(op.weights);
    WEFT_TRY(fits(kernels_.refuse_experts_down(args)));
    return kernels_.experts_down(args, span_.rows, stream_);
  }
  Status operator()(const RopeAppendOp& op) const {
    const RopeAppendArgs args = rope_append_args(op);
    WEFT_TRY(fits(kernels_.refuse_rope_append(args)));
    if (const auto norms = head_norms(index_)) {
      return kernels_.normed_rope_append(args, *norms, span_.rows, span_.first, stream_,
                                         span_.places);
    }
    return kernels_.rope_append(args, span_.rows, span_.first, stream_, span_.places);
  }
  Status operator()(const LatentAppendOp& op) const {
    const LatentAppendArgs args{.x = input(op.x),
                                .norm = p_.vector(op.norm),
                                .rank = op.rank,
                                .turned = op.turned,
                                .epsilon = op.epsilon,
                                .cosines = f32(op.cosines),
                                .sines = f32(op.sines),
                                .cache = cache(op.cache, op.cache)};
    WEFT_TRY(fits(kernels_.refuse_latent_append(args)));
    return kernels_.latent_append(args, span_.rows, span_.first, stream_, span_.places);
  }
  Status operator()(const LatentAttentionOp& op) const {
    LatentAttentionArgs args = p_.latent_args(chunk_, op);
    if (span_.places.positions == nullptr) {
      args.cache = cache(op.cache, op.cache);
      return of_prompt(op, args, span_.rows, span_.first);
    }
    if (span_.own > 0) {
      WEFT_TRY(absorbed(op, args, span_.own, 0, span_.places));
    }
    const auto go_on = [&](int64_t rows) {
      const int64_t angles = rows * op.turned / 2;
      args.q = below(args.q, rows);
      args.out = below(args.out, rows);
      args.cosines += angles;
      args.sines += angles;
    };
    go_on(span_.own);
    for (const FedRows& fed : span_.fed) {
      args.cache = p_.cache(chunk_, op.cache, op.cache, fed.sequence);
      WEFT_TRY(of_prompt(op, args, fed.rows, fed.first));
      go_on(fed.rows);
    }
    return {};
  }
  Status operator()(const AttentionOp& op) const {
    AttentionArgs args = p_.attention_args(chunk_, op);
    args.cache = cache(op.keys, op.values);
    WEFT_TRY(fits(kernels_.refuse_attention(args)));
    if (span_.places.positions == nullptr) {
      return kernels_.attention(args, span_.rows, span_.first, stream_);
    }
    if (span_.own > 0) {
      const Workspace workspace = chunk_.whole_k ? Workspace{} : p_.workspace();
      WEFT_TRY(kernels_.step_attention(args, span_.own, span_.places, workspace, stream_));
    }
    AttentionArgs part = args;
    part.q = below(part.q, span_.own);
    part.out = below(part.out, span_.own);
    for (const FedRows& fed : span_.fed) {
      part.cache = p_.cache(chunk_, op.keys, op.values, fed.sequence);
      WEFT_TRY(kernels_.attention(part, fed.rows, fed.first, stream_));
      part.q = below(part.q, fed.rows);
      part.out = below(part.out, fed.rows);
    }
    return {};
  }
  template <class Other>
  Status operator()(const Other& /*op*/) const {
    return fits("there is no kernel for it");
  }

 private:
  Status fits(std::string_view refusal) const { return p_.fits(chunk_, index_, refusal); }
  /// Rows of one sequence. In which form is the model's affair alone, so that it does not depend on
  /// how a prompt is cut.
  Status of_prompt(const LatentAttentionOp& op, const LatentAttentionArgs& args, int64_t rows,
                   int64_t first) const {
    if (!chunk_.layout.multiplies_out) {
      return absorbed(op, args, rows, first, {});
    }
    WEFT_TRY(p_.widen(chunk_, op.weight, args.element, 0));
    return kernels_.latent_prompt({args, p_.capacity_, p_.workspace()}, rows, first, stream_);
  }
  Status absorbed(const LatentAttentionOp& op, const LatentAttentionArgs& args, int64_t rows,
                  int64_t first, const RowPlaces& places) const {
    WEFT_CHECK(rows <= chunk_.layout.absorbed_rows);
    PrefillLatentAttention attention = p_.absorbed_args(chunk_, op);
    attention.cache = args.cache;
    const LatentQueriesArgs queries{
        .of = args.of,
        .q = args.q,
        .cosines = args.cosines,
        .sines = args.sines,
        .out = {const_cast<void*>(attention.q.data), attention.q.dtype, attention.q.stride}};
    LatentValuesArgs values{.of = args.of,
                            .a = {attention.out.data, attention.out.dtype, attention.out.stride},
                            .pitch = op.rank,
                            .out = args.out};
    values.of.w = p_.product_weight(chunk_, op.weight, values.out.dtype, 0);
    WEFT_TRY(fits(kernels_.refuse_latent_queries(queries)));
    WEFT_TRY(fits(kernels_.refuse_latent_attention(attention)));
    WEFT_TRY(fits(kernels_.refuse_latent_values(values)));
    WEFT_TRY(p_.widen(chunk_, op.weight, args.element, 0));
    WEFT_TRY(kernels_.latent_queries(queries, rows, stream_));
    WEFT_TRY(kernels_.latent_attention(attention, rows, first, stream_, places));
    if (values.out.dtype != args.element) {
      WEFT_TRY(p_.widen(chunk_, op.weight, values.out.dtype, 0));
    }
    return kernels_.latent_values(values, rows, stream_);
  }
  RopeAppendArgs rope_append_args(const RopeAppendOp& op) const {
    return {.q = input(op.q),
            .k = input(op.k),
            .v = input(op.v),
            .query_heads = op.query_heads,
            .kv_heads = op.kv_heads,
            .head_dim = op.head_dim,
            .cosines = f32(op.cosines),
            .sines = f32(op.sines),
            .q_out = matrix(op.q_out),
            .cache = cache(op.keys, op.values),
            .unturned = op.unturned};
  }
  /// The norms of q's and k's heads right before operation `index`, if that is a rope_append whose
  /// kernel does them itself.
  std::optional<HeadNorms> head_norms(size_t index) const {
    const auto& operations = chunk_.program.operations;
    if (kernels_.norms_heads == nullptr || index < 2 || index >= operations.size()) {
      return std::nullopt;
    }
    const auto* op = std::get_if<RopeAppendOp>(&operations[index].body);
    const auto* query = std::get_if<RmsNormOp>(&operations[index - 2].body);
    const auto* key = std::get_if<RmsNormOp>(&operations[index - 1].body);
    const auto of_heads = [&](const RmsNormOp* norm, BufferId x, int64_t heads) {
      return norm != nullptr && norm->x == x && norm->out == x && norm->residual == kNone &&
             norm->columns == op->head_dim && norm->groups == heads;
    };
    if (op == nullptr || !of_heads(query, op->q, op->query_heads) ||
        !of_heads(key, op->k, op->kv_heads) || !kernels_.norms_heads(rope_append_args(*op))) {
      return std::nullopt;
    }
    const HeadNorms norms{p_.vector(query->weight), p_.vector(key->weight), query->epsilon,
                          query->weight_offset};
    const bool alike = norms.key.dtype == norms.query.dtype && key->epsilon == query->epsilon &&
                       key->weight_offset == query->weight_offset;
    return alike ? std::optional(norms) : std::nullopt;
  }
  Matrix matrix(BufferId id) const { return p_.matrix(chunk_, id); }
  ConstMatrix input(BufferId id) const { return p_.input(chunk_, id); }
  float* f32(BufferId id) const { return static_cast<float*>(matrix(id).data); }
  template <class T>
  T* place(BufferId id) const {
    return reinterpret_cast<T*>(chunk_.memory.data() +
                                chunk_.layout.buffers[static_cast<size_t>(id)].offset);
  }
  template <class Op>
  PrefillDraw draw(const Op& op) const {
    return {.ids = place<const int32_t>(op.ids),
            .experts = op.experts,
            .chosen = op.chosen,
            .order = reinterpret_cast<int32_t*>(chunk_.memory.data() + chunk_.layout.order),
            .alone = chunk_.whole_k};
  }
  /// Whether the slots that were sorted last are of the same draw.
  bool is_sorted(const ExpertsDownOp& op) const {
    for (size_t i = index_; i-- > 0;) {
      const auto& body = chunk_.program.operations[i].body;
      if (const auto* up = std::get_if<ExpertsUpOp>(&body)) {
        return up->ids == op.ids;
      }
      if (std::holds_alternative<ExpertsDownOp>(body) || std::holds_alternative<RouteOp>(body)) {
        return false;
      }
    }
    return false;
  }
  ExpertMatrices matrices(const WeightRef& first, int64_t experts) const {
    const size_t index = tensor_index(p_.weights_, first);
    const auto place = p_.places_.weight_places.begin() + static_cast<ptrdiff_t>(index);
    const int64_t pitch = experts > 1 ? place[1] - place[0] : 0;
    WEFT_CHECK(place[experts - 1] == place[0] + (experts - 1) * pitch);
    const Tensor& tensor = p_.weights_.tensors()[index];
    ExpertMatrices all{p_.weight(first), pitch, tensor.mx.k > 0 ? tensor.elements() / 2 : 0};
    if (tensor.scales.scaling == Scaling::block) {
      const auto scales = p_.places_.scale_places.begin() + static_cast<ptrdiff_t>(index);
      all.block_scales = reinterpret_cast<const float*>(p_.places_.weights + scales[0]);
      all.block_scales_pitch = experts > 1 ? scales[1] - scales[0] : 0;
      WEFT_CHECK(scales[experts - 1] == scales[0] + (experts - 1) * all.block_scales_pitch);
    }
    return all;
  }
  KvCache cache(BufferId keys, BufferId values) const {
    return p_.cache(chunk_, keys, values, span_.sequence);
  }

  const Prefill& p_;
  const Chunk& chunk_;
  const size_t index_;
  const Span& span_;
  const ChunkKernels& kernels_;
  const Stream stream_;
};

Status Prefill::launch(const Chunk& chunk, const Span& span) {
  // Of what is fed the last layer's keys and values are all that is wanted.
  Span own = span;
  own.rows = span.own;
  own.fed = {};
  int64_t here = -1;  // the layer whose weights have been brought
  for (size_t i = 0; i < chunk.program.operations.size(); ++i) {
    const auto& body = chunk.program.operations[i].body;
    const int64_t layer = chunk.program.operations[i].layer;
    if (places_.bring && layer > here) {
      here = layer;
      WEFT_TRY(places_.bring(layer,
                             layer + 1 < config_.layers ? std::optional(layer + 1) : std::nullopt));
    }
    const auto* product = std::get_if<LinearOp>(&body);
    const bool head = product != nullptr && product->out == chunk.program.logits;
    const Span& rows = i > chunk.last_append ? own : span;
    if (chunk.layout.joined[i] > 0 && !head && rows.rows > 0) {
      WEFT_TRY(std::visit(Launcher(*this, chunk, i, rows), body));
    }
  }
  return {};
}

Status Prefill::feed(const int32_t* tokens, int64_t begin, int64_t end, int sequence) {
  const Chunks chunks = cut_into_chunks(end - begin, chunk_->program.rows);
  for (int64_t i = 0; i < chunks.count; ++i, begin += chunks.rows) {
    WEFT_TRY(
        launch(*chunk_, {tokens + begin, begin, std::min(chunks.rows, end - begin), sequence}));
  }
  return {};
}

Prefill::Span Prefill::span_of(const int32_t* tokens, const RowPlaces& places, int64_t own,
                               std::span<const FedRows> fed) const {
  Span span{tokens, 0, own, 0, places, own, fed};
  span.places.sequence_stride = config_.kv_heads * capacity_ * config_.head_dim;
  span.places.frequency_stride = places_.frequency_stride;
  for (const FedRows& part : fed) {
    span.rows += part.rows;
  }
  return span;
}

Status Prefill::feed(const int32_t* tokens, const RowPlaces& places, std::span<const FedRows> fed) {
  return launch(*chunk_, span_of(tokens, places, 0, fed));
}

int64_t Prefill::last_chunk(int64_t count) const {
  const Chunks chunks = cut_into_chunks(count, chunk_->program.rows);
  return (chunks.count - 1) * chunks.rows;
}

Status Prefill::step(const int32_t* tokens, const RowPlaces& places, int64_t rows,
                     std::span<const FedRows> fed) {
  if (step_ == nullptr && fixed_.steps != fixed_.chunks) {
    WEFT_ASSIGN(step_, load(step_rows_, Logits::all, fixed_.steps));
  }
  const Chunk& chunk = stepped();
  WEFT_TRY(launch(chunk, span_of(tokens, places, rows, fed)));
  WEFT_ASSIGN(const LinearArgs args, begin_head(chunk));
  return launch_linear(chunk, head_of(chunk), args, rows);
}

size_t Prefill::head_of(const Chunk& chunk) { return chunk.program.operations.size() - 1; }

Result<LinearArgs> Prefill::begin_head(const Chunk& chunk) const {
  const size_t head = head_of(chunk);
  if (places_.bring) {
    WEFT_TRY(places_.bring(resident::kHeadStage, std::nullopt));
  }
  const LinearArgs args = linear_args(chunk, head);
  WEFT_TRY(fits(chunk, head, kernels_.refuse_linear(args)));
  WEFT_TRY(widen_joined(chunk, head));
  return args;
}

Status Prefill::launch_head(const Chunk& chunk, const Span& span, int64_t end, float* logprobs) {
  WEFT_ASSIGN(const LinearArgs whole, begin_head(chunk));
  for (int64_t row = 0; row < span.rows; row += kLogitsRows) {
    const int64_t rows = std::min(kLogitsRows, span.rows - row);
    LinearArgs args = whole;
    args.a.data = static_cast<const std::byte*>(whole.a.data) +
                  row * whole.a.stride * static_cast<int64_t>(size_of(whole.a.dtype));
    WEFT_TRY(launch_linear(chunk, head_of(chunk), args, rows));
    const int64_t rated = std::min(rows, end - (span.first + row) - 1);
    if (rated > 0) {
      WEFT_TRY(kernels_.token_logprob({.logits = {args.out.data, args.out.dtype, args.out.stride},
                                       .tokens = span.tokens + row + 1,
                                       .columns = config_.vocabulary,
                                       .out = logprobs + row},
                                      rated, device_.stream()));
    }
  }
  return {};
}

Result<Score> Prefill::score(const int32_t* tokens, int64_t count) {
  if (score_ == nullptr && fixed_.chunks) {
    WEFT_ASSIGN(score_, load(std::min(kChunkRows, capacity_), Logits::all));
  }
  const Chunk& chunk = fixed_.chunks ? *score_ : *chunk_;
  WEFT_ASSIGN(const DeviceMemory memory,
              device_.allocate(static_cast<size_t>(count) * sizeof(float)));
  auto* const logprobs = reinterpret_cast<float*>(memory.data());
  const Chunks chunks = cut_into_chunks(count, chunk.program.rows);
  int64_t rows = 0;  // of the last chunk
  for (int64_t begin = 0; begin < count; begin += rows) {
    rows = std::min(chunks.rows, count - begin);
    const Span span{.tokens = tokens + begin, .first = begin, .rows = rows, .own = rows};
    WEFT_TRY(launch(chunk, span));
    WEFT_TRY(launch_head(chunk, span, count, logprobs + begin));
  }
  std::vector<float> rated(static_cast<size_t>(count - 1));
  WEFT_TRY(device_.download(rated.data(), logprobs, rated.size() * sizeof(float)));
  Score score;
  score.logprobs.assign(rated.begin(), rated.end());
  score.last_logits.resize(static_cast<size_t>(config_.vocabulary));
  const Matrix logits = matrix(chunk, chunk.program.logits);
  WEFT_TRY(device_.download(
      score.last_logits.data(),
      static_cast<const float*>(logits.data) + (rows - 1) % kLogitsRows * logits.stride,
      score.last_logits.size() * sizeof(float)));
  return score;
}

}  // namespace weft

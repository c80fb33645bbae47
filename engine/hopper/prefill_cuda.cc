#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "engine/hopper/prefill.h"
#include "ops/attention/hopper_prefill.h"
#include "ops/embed/hopper_prefill.h"
#include "ops/gated_linear/hopper_prefill.h"
#include "ops/linear/hopper_prefill.h"
#include "ops/rmsnorm/hopper_prefill.h"
#include "ops/rope_angles/hopper_prefill.h"
#include "ops/rope_append/hopper_prefill.h"

namespace weft::hopper {

Prefill::Prefill(const ModelConfig& config, const Weights& weights, PrefillPlaces places,
                 ChunkFormats formats, int64_t capacity, Device& device)
    : config_(config),
      weights_(weights),
      places_(std::move(places)),
      formats_(formats),
      capacity_(capacity),
      device_(device) {}

Result<std::unique_ptr<Prefill>> Prefill::create(const ModelConfig& config, const Weights& weights,
                                                 PrefillPlaces places, ChunkFormats formats,
                                                 int64_t capacity, Device& device) {
  std::unique_ptr<Prefill> prefill(
      new Prefill(config, weights, std::move(places), formats, capacity, device));
  WEFT_ASSIGN(prefill->chunk_, prefill->load(std::min(kChunkRows, capacity), Logits::none));
  return prefill;
}

Result<std::unique_ptr<Prefill::Chunk>> Prefill::load(int64_t rows, Logits logits) {
  auto chunk = std::make_unique<Chunk>();
  chunk->program = plan(config_, weights_, chunk_options(rows, capacity_, logits, formats_));
  chunk->layout = lay_out_chunk(chunk->program, weights_, places_.weight_places);
  int64_t caches = 0;
  for (const Buffer& buffer : chunk->program.buffers) {
    chunk->caches.push_back(buffer.space == Space::kv ? caches++ : -1);
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
  return chunk;
}

ConstMatrix Prefill::weight(const WeightRef& ref) const {
  const size_t index = tensor_index(weights_, ref);
  const Tensor& tensor = weights_.tensors()[index];
  return {places_.weights + places_.weight_places[index], tensor.dtype, tensor.columns()};
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

Status Prefill::launch(const Chunk& chunk, const Span& span) {
  for (size_t i = 0; i < chunk.program.operations.size(); ++i) {
    if (chunk.layout.joined[i] > 0) {
      WEFT_TRY(launch_operation(chunk, i, span));
    }
  }
  return {};
}

LinearArgs Prefill::linear_args(const Chunk& chunk, size_t index) const {
  const auto& operations = chunk.program.operations;
  const auto& op = std::get<LinearOp>(operations[index].body);
  LinearArgs args{.a = input(chunk, op.a),
                  .w = weight(op.weight),
                  .bias = vector(op.bias),
                  .n = op.n,
                  .k = op.k,
                  .alpha = op.alpha,
                  .accumulate = op.accumulate,
                  .out = matrix(chunk, op.out)};
  for (int i = 1; i < chunk.layout.joined[index]; ++i) {
    args.n += std::get<LinearOp>(operations[index + static_cast<size_t>(i)].body).n;
  }
  if (args.a.dtype == DType::bf16) {
    // A vocabulary may be of any size: columns up to the multiple of 8 are of what follows the head
    // in the arena, and nobody looks at them.
    args.n = (args.n + 7) / 8 * 8;
  }
  return args;
}

Status Prefill::make_workspace(const Chunk& chunk) {
  size_t most = 0;
  for (size_t i = 0; i < chunk.program.operations.size(); ++i) {
    if (chunk.layout.joined[i] > 0 &&
        std::holds_alternative<LinearOp>(chunk.program.operations[i].body)) {
      WEFT_ASSIGN(const size_t bytes,
                  prefill_linear_workspace(linear_args(chunk, i), device_.stream()));
      most = std::max(most, bytes);
    }
  }
  if (most <= workspace_.size()) {
    return {};
  }
  WEFT_ASSIGN(workspace_, device_.allocate(most));
  const std::vector<char> zeros(std::min(most, kCounterBytes));
  return device_.upload(workspace_.data(), zeros.data(), zeros.size());
}

Status Prefill::launch_operation(const Chunk& chunk, size_t index, const Span& span) {
  const auto [tokens, first, rows, sequence] = span;
  const Stream stream = device_.stream();
  const auto& operations = chunk.program.operations;
  const auto& body = operations[index].body;
  const auto fits = [&](std::string_view refusal) -> Status {
    return refusal.empty()
               ? Status{}
               : usage_error(fmt::format("{} of a chunk of {}: {}", operations[index].name,
                                         config_.name, refusal));
  };
  if (const auto* op = std::get_if<EmbedOp>(&body)) {
    return prefill_embed({.table = weight(op->table),
                          .tokens = tokens,
                          .columns = op->columns,
                          .scale = op->scale,
                          .out = matrix(chunk, op->out),
                          .copy = matrix(chunk, op->copy)},
                         rows, stream);
  }
  if (const auto* op = std::get_if<RopeAnglesOp>(&body)) {
    return prefill_rope_angles({.inverse_frequencies = places_.inverse_frequencies,
                                .half = op->half,
                                .cosines = static_cast<float*>(matrix(chunk, op->cosines).data),
                                .sines = static_cast<float*>(matrix(chunk, op->sines).data)},
                               rows, first, stream);
  }
  if (const auto* op = std::get_if<RmsNormOp>(&body)) {
    const RmsNormArgs args{.x = input(chunk, op->x),
                           .weight = vector(op->weight),
                           .columns = op->columns,
                           .groups = op->groups,
                           .epsilon = op->epsilon,
                           .scale = op->scale,
                           .residual = matrix(chunk, op->residual),
                           .out = matrix(chunk, op->out)};
    WEFT_TRY(fits(refuse_prefill_rmsnorm(args)));
    return prefill_rmsnorm(args, rows * op->groups, stream);
  }
  if (std::holds_alternative<LinearOp>(body)) {
    const LinearArgs args = linear_args(chunk, index);
    WEFT_TRY(fits(refuse_prefill_linear(args)));
    return prefill_linear(args, rows,
                          {reinterpret_cast<float*>(chunk.memory.data() + chunk.layout.scratch),
                           {workspace_.data(), workspace_.size()}},
                          stream);
  }
  if (const auto* op = std::get_if<GatedLinearOp>(&body)) {
    const GatedLinearArgs args{.a = input(chunk, op->a),
                               .gate = weight(op->gate),
                               .up = weight(op->up),
                               .gate_bias = vector(op->gate_bias),
                               .up_bias = vector(op->up_bias),
                               .n = op->n,
                               .k = op->k,
                               .out = matrix(chunk, op->out)};
    WEFT_TRY(fits(refuse_prefill_gated_linear(args)));
    return prefill_gated_linear(args, rows, stream);
  }
  if (const auto* op = std::get_if<RopeAppendOp>(&body)) {
    const RopeAppendArgs args{.q = input(chunk, op->q),
                              .k = input(chunk, op->k),
                              .v = input(chunk, op->v),
                              .query_heads = op->query_heads,
                              .kv_heads = op->kv_heads,
                              .head_dim = op->head_dim,
                              .cosines = static_cast<float*>(matrix(chunk, op->cosines).data),
                              .sines = static_cast<float*>(matrix(chunk, op->sines).data),
                              .q_out = matrix(chunk, op->q_out),
                              .cache = cache(chunk, op->keys, op->values, sequence)};
    WEFT_TRY(fits(refuse_prefill_rope_append(args)));
    return prefill_rope_append(args, rows, first, stream);
  }
  if (const auto* op = std::get_if<AttentionOp>(&body)) {
    const AttentionArgs args{.q = input(chunk, op->q),
                             .cache = cache(chunk, op->keys, op->values, sequence),
                             .query_heads = op->query_heads,
                             .kv_heads = op->kv_heads,
                             .head_dim = op->head_dim,
                             .scale = op->scale,
                             .window = op->window,
                             .splits = op->splits,
                             .out = matrix(chunk, op->out)};
    WEFT_TRY(fits(refuse_prefill_attention(args)));
    return prefill_attention(args, rows, first, stream);
  }
  return fits("there is no kernel for it");
}

Status Prefill::feed(const int32_t* tokens, int64_t begin, int64_t end, int sequence) {
  const Chunks chunks = cut_into_chunks(end - begin, chunk_->program.rows);
  for (int64_t i = 0; i < chunks.count; ++i, begin += chunks.rows) {
    WEFT_TRY(
        launch(*chunk_, {tokens + begin, begin, std::min(chunks.rows, end - begin), sequence}));
  }
  return {};
}

Status Prefill::score(const int32_t* tokens, int64_t count, const Runner::OnLogits& on_logits) {
  if (score_ == nullptr) {
    WEFT_ASSIGN(score_, load(std::min(kScoreRows, capacity_), Logits::all));
  }
  const Matrix logits = matrix(*score_, score_->program.logits);
  std::vector<float> host(static_cast<size_t>(kScoreRows * logits.stride));
  for (int64_t begin = 0; begin < count; begin += kScoreRows) {
    const int64_t rows = std::min(kScoreRows, count - begin);
    WEFT_TRY(launch(*score_, {tokens + begin, begin, rows, 0}));
    WEFT_TRY(device_.download(host.data(), logits.data,
                              static_cast<size_t>(rows * logits.stride) * sizeof(float)));
    for (int64_t r = 0; r < rows; ++r) {
      on_logits(begin + r,
                {host.data() + r * logits.stride, static_cast<size_t>(config_.vocabulary)});
    }
  }
  return {};
}

}  // namespace weft::hopper

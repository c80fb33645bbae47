// mla_layer on the CPU: the operations that it is made of, in turn.
#include <algorithm>

#include "ops/mla/op.h"
#include "ops/mla_decode/turn.h"
#include "ops/mla_layer/op.h"

namespace weft::cpu {
namespace {

/// This part of [0, size).
Range share(int64_t size, int64_t index, int64_t count) {
  return {size * index / count, size * (index + 1) / count};
}
/// Of columns of a product, which are multiples of 8.
Range columns_of(int64_t columns, int64_t index, int64_t count) {
  const Range eights = share(columns / 8, index, count);
  return {eights.begin * 8, eights.end * 8};
}

Matrix columns_from(const Matrix& m, int64_t column) {
  return {static_cast<bf16*>(m.data) + column, m.dtype, m.stride};
}

/// A head's queries, of all sequences.
void make_queries(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, int64_t head,
                  float* widened) {
  for (int64_t r = 0; r < args.batch; ++r) {
    const bf16* q = row<bf16>(buffers.q, r) + head * kLayerQuery;
    std::transform(q, q + kLayerQuery, widened + r * kLayerQuery,
                   [](bf16 x) { return to_float(x); });
  }
  const Matrix out = columns_from(buffers.queries, head * kLatentRow);
  const LatentQueriesArgs queries{.of = {.heads = 1,
                                         .rank = kLatentRank,
                                         .unturned = kLayerNope,
                                         .turned = kLatentTurned,
                                         .value = kLayerValue,
                                         .w = layer_keys(args.kv_up, head)},
                                  .q = {widened, DType::f32, kLayerQuery},
                                  .out = out};
  latent_query_columns(queries, {0, args.batch}, {0, kLatentRank});
  for (int64_t r = 0; r < args.batch; ++r) {
    float* x = widened + r * kLayerQuery + kLayerNope;
    turn_halves(args.angles, args.prefill, x);
    std::transform(x, x + kLatentTurned, row<bf16>(out, r) + kLatentRank,
                   [](float y) { return to_bf16(y); });
  }
}

/// A head's values, of all sequences.
GemmBf16Args values_of(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, int64_t head) {
  return {.m = args.batch,
          .n = kLayerValue,
          .k = kLatentRank,
          .a = {static_cast<const bf16*>(buffers.seen.data) + head * kLatentRank, DType::bf16,
                buffers.seen.stride},
          .b = layer_values(args.kv_up, head),
          .out = columns_from(buffers.values, head * kLayerValue),
          .workspace = {}};
}

}  // namespace

void mla_layer(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, int step, int64_t index,
               int64_t count, std::span<std::byte> scratch) {
  const MlaLayerSteps steps(args, buffers, {});
  const auto multiply = [&](const GemmBf16Args& product) {
    gemm_bf16(product, {0, product.m}, columns_of(product.n, index, count), scratch);
  };
  const Range heads = share(args.heads, index, count);
  switch (step) {
    case 0:
      multiply(steps.kv_down);
      multiply(steps.q_down);
      if (index == 0) {
        std::fill(buffers.lengths, buffers.lengths + args.batch,
                  static_cast<int32_t>(args.prefill + 1));
      }
      break;
    case 1:
      multiply(steps.q_up);
      break;
    case 2:
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        make_queries(args, buffers, head, reinterpret_cast<float*>(scratch.data()));
      }
      break;
    case 3: {
      // Heads of a sequence side by side: they read the same rows.
      const Range tasks = share(args.batch * args.heads, index, count);
      for (int64_t i = tasks.begin; i < tasks.end;) {
        const int64_t sequence = i / args.heads;
        const int64_t head = i % args.heads;
        const int64_t some = std::min(args.heads - head, tasks.end - i);
        mla_decode(steps.attention, {sequence, sequence + 1}, {head, head + some}, scratch);
        i += some;
      }
      break;
    }
    case 4:
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        gemm_bf16(values_of(args, buffers, head), {0, args.batch}, {0, kLayerValue}, scratch);
      }
      break;
    default:
      multiply(steps.o);
  }
}

size_t mla_layer_scratch_bytes(const MlaLayerArgs& args) {
  const MlaLayerBuffers buffers(args, nullptr);
  const MlaLayerSteps steps(args, buffers, {});
  const size_t queries = static_cast<size_t>(args.batch * kLayerQuery) * sizeof(float);
  size_t most = std::max(queries, mla_decode_scratch_bytes(steps.attention));
  for (const GemmBf16Args& each :
       {steps.kv_down, steps.q_up, steps.o, values_of(args, buffers, 0)}) {
    most = std::max(most, gemm_bf16_scratch_bytes(each, args.batch));
  }
  return (most + 255) / 256 * 256;
}

}  // namespace weft::cpu

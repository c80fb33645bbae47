// mla_prompt for a chunk's rows on sm_90a: see hopper_prefill.h.
#include <algorithm>
#include <cstddef>
#include <type_traits>

#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "base/divide.h"
#include "ops/hopper_f32.cuh"
#include "ops/linear/hopper_prefill.h"
#include "ops/mla/hopper_turn.cuh"
#include "ops/mla_prompt/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kTurnThreads = 256;

/// A block a row: its queries with their ends turned, in the format of `to`.
__global__ void __launch_bounds__(kTurnThreads)
    turn_queries(const __grid_constant__ LatentAttentionArgs args,
                 const __grid_constant__ Matrix to) {
  begin_in_turn();
  const auto row = static_cast<int64_t>(blockIdx.x);
  const auto unturned = static_cast<int>(args.of.unturned);
  const auto head = static_cast<int>(args.of.unturned + args.of.turned);
  const auto columns = static_cast<int>(args.of.heads) * head;
  const int64_t angles = row * (args.of.turned / 2);
  for (int i = 4 * static_cast<int>(threadIdx.x); i < columns; i += 4 * kTurnThreads) {
    float4 x = read_x4(static_cast<const float*>(args.q.data) + row * args.q.stride + i);
    if (const int at = i % head - unturned; at >= 0) {
      const int64_t angle = angles + at / 2;
      const float2 low = turn({x.x, x.y}, args.cosines[angle], args.sines[angle]);
      const float2 high = turn({x.z, x.w}, args.cosines[angle + 1], args.sines[angle + 1]);
      x = {low.x, low.y, high.x, high.y};
    }
    store_x4(to.data, to.dtype, row * to.stride + i, x);
  }
}

/// Where in a workspace turned queries are, and behind them keys and values.
struct Multiplied {
  int64_t queries = static_cast<int64_t>(kCounterBytes);
  int64_t keys = 0;

  Multiplied(const LatentAttentionArgs& args, int64_t rows)
      : keys(queries + round_up(rows * args.of.heads * (args.of.unturned + args.of.turned) *
                                    static_cast<int64_t>(size_of(args.element)),
                                int64_t{256})) {}
};

}  // namespace

Status prefill_latent_prompt(const PrefillLatentPrompt& args, int64_t rows, int64_t first,
                             Stream stream) {
  const LatentHeads& of = args.of;
  const Multiplied at(args, rows);
  auto* const memory = static_cast<std::byte*>(args.workspace.data);
  const int64_t head = of.unturned + of.turned;
  const Matrix queries{memory + at.queries, args.element, of.heads * head};
  WEFT_TRY(launch_kernel(turn_queries,
                         {.blocks = static_cast<int>(rows),
                          .threads = kTurnThreads,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)},
                         static_cast<const LatentAttentionArgs&>(args), queries));
  const auto plus = [](auto* data, DType type, int64_t elements) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(data)>>,
                                    const std::byte, std::byte>;
    return static_cast<Byte*>(data) + elements * static_cast<int64_t>(size_of(type));
  };
  const int64_t positions = first + rows;
  const int64_t together = multiplied_heads(args, positions);
  const int64_t pitch = of.key_row(1);  // elements of a head's key and value
  for (int64_t begin = 0; begin < of.heads; begin += together) {
    const int64_t heads = std::min(together, of.heads - begin);
    const Matrix made{memory + at.keys, args.element, heads * pitch};
    WEFT_TRY(prefill_linear({.a = {args.cache.keys, args.cache.dtype, of.rank + of.turned},
                             .w = {plus(of.w.data, of.w.dtype, of.key_row(begin) * of.w.stride),
                                   of.w.dtype, of.w.stride},
                             .bias = {},
                             .n = heads * pitch,
                             .k = of.rank,
                             .out = made},
                            positions, {.workspace = {}, .whole_k = true}, stream));
    WEFT_TRY(prefill_attention_over(
        {.q = {plus(queries.data, queries.dtype, begin * head), queries.dtype, queries.stride},
         .cache = {},
         .query_heads = heads,
         .kv_heads = heads,
         .head_dim = head,
         .scale = args.scale,
         .out = {plus(args.out.data, args.out.dtype, begin * of.value), args.out.dtype,
                 args.out.stride}},
        {.keys = {made.data, of.unturned, made.stride, pitch},
         .shared = {plus(args.cache.keys, args.cache.dtype, of.rank), of.turned,
                    of.rank + of.turned},
         .values = {plus(made.data, made.dtype, of.unturned), of.value, made.stride, pitch},
         .dtype = args.element},
        rows, first, stream));
  }
  return {};
}

size_t prefill_latent_prompt_workspace(const PrefillLatentPrompt& args, int64_t rows) {
  const int64_t each =
      args.of.key_row(1) * args.capacity * static_cast<int64_t>(size_of(args.element));
  return static_cast<size_t>(Multiplied(args, rows).keys +
                             std::min(each * args.of.heads, std::max(each, kMultipliedBytes)));
}

}  // namespace weft::hopper

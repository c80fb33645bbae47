// attention on AMD, the host's side.
#include "ops/attention/cdna.h"

#include "ops/attention/cdna_prefill.h"
#include "ops/attention_decode/cdna_step.h"
#include "ops/cdna_launch.h"

namespace weft::cdna {

std::string_view refuse_prefill_attention(const AttentionArgs& args) {
  if (args.splits > 1) {
    return "a chunk's keys are not split";
  }
  if (args.sinks.data != nullptr && args.sinks.dtype == DType::f16) {
    return "attention sinks must be f32 or bf16";
  }
  const bool bf16 = args.q.dtype == DType::bf16 && args.cache.dtype == DType::bf16;
  if (!bf16 && args.q.dtype != DType::f32) {
    return "queries must be f32, or bf16 and the cache too";
  }
  if (args.cache.dtype == DType::f16 || args.out.dtype == DType::f16) {
    return "cache and result must be f32 or bf16";
  }
  if (args.head_dim % 8 != 0 || args.head_dim > kMostPrefillHeadDim || args.q.stride % 8 != 0 ||
      args.out.stride % 4 != 0) {
    return "heads must be multiples of 8 up to 256, and rows too";
  }
  return {};
}

namespace {

AttentionParams params_of(const AttentionArgs& args, int64_t rows, int64_t first) {
  constexpr float kLog2E = 1.4426950408889634f;
  const auto element = static_cast<int64_t>(size_of(args.cache.dtype));
  return {.q = args.q.data,
          .keys = args.cache.keys,
          .values = args.cache.values,
          .out = args.out.data,
          .lse = nullptr,
          .q_stride = stride_bytes(args.q),
          .out_stride = stride_bytes(args.out),
          .key_stride = args.head_dim * element,
          .value_stride = args.head_dim * element,
          .head_stride = args.cache.head_stride * element,
          .sequences = 1,
          .rows = static_cast<int32_t>(rows),
          .first = static_cast<int32_t>(first),
          .causal = 1,
          .query_heads = static_cast<int32_t>(args.query_heads),
          .group = static_cast<int32_t>(args.query_heads / args.kv_heads),
          .head_dim = static_cast<int32_t>(args.head_dim),
          .window = static_cast<int32_t>(args.window),
          .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0,
          .score_scale = (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E,
          .cap_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : 0,
          .sinks = args.sinks.data,
          .sinks_f32 = args.sinks.dtype == DType::f32 ? 1 : 0};
}

Status launch(const AttentionArgs& args, const AttentionParams& params, int64_t groups,
              Stream stream) {
  const std::string kernel =
      fmt::format("attention_{}_{}_{}", short_name(args.q.dtype), short_name(args.cache.dtype),
                  round_up(args.head_dim, int64_t{64}));
  return hip_device(stream).launch({.operation = "attention",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(groups),
                                    .threads = 256},
                                   params, stream.native);
}

}  // namespace

Status prefill_attention(const AttentionArgs& args, int64_t rows, int64_t first, Stream stream) {
  return launch(args, params_of(args, rows, first),
                ceil_div(rows, int64_t{kAttentionRows}) * args.query_heads, stream);
}

size_t step_attention_workspace(const AttentionArgs& args, Stream stream) {
  return is_attention_decode(args) ? workspace_as_attention_decode(args, stream) : 0;
}

Status step_attention(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                      const Workspace& workspace, Stream stream) {
  if (is_attention_decode(args) && workspace.data != nullptr) {
    return attend_as_attention_decode(args, rows, places, workspace, stream);
  }
  AttentionParams params = params_of(args, rows, 0);
  params.positions = places.positions;
  params.row_sequences = places.sequences;
  params.sequence_stride = places.sequence_stride * static_cast<int64_t>(size_of(args.cache.dtype));
  return launch(args, params,
                rows * ceil_div(int64_t{params.group}, int64_t{kAttentionRows}) * args.kv_heads,
                stream);
}

}  // namespace weft::cdna

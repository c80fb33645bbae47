// attention_backward on AMD, the host's side.
#include "ops/attention_backward/cdna.h"

#include "ops/attention_backward/op.h"
#include "ops/cdna_launch.h"

namespace weft::cdna {
namespace {

int64_t stats_tokens(const SequenceShape& shape) {
  return round_up(shape.tokens, int64_t{kBackwardTile});
}

Plan plan(const AttentionBackwardArgs& args, const DeviceInfo& /*device*/) {
  if (args.shape.head_dim > kMostBackwardDim) {
    return {.why = "heads must have 128 elements at most"};
  }
  return {.kernel = "rows",
          .tile_m = kBackwardRows,
          .tile_n = kBackwardTile,
          .threads = kBackwardThreads,
          .why = "the one kernel there is"};
}

std::vector<Plan> candidates(const AttentionBackwardArgs& args, const DeviceInfo& device) {
  const Plan only = plan(args, device);
  return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
}

size_t workspace(const AttentionBackwardArgs& args, const Plan& /*plan*/) {
  const SequenceShape& shape = args.shape;
  return kCounterBytes +
         static_cast<size_t>(2 * shape.sequences * shape.query_heads * stats_tokens(shape)) *
             sizeof(float);
}

Status launch(const AttentionBackwardArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("attention_backward", args.workspace, workspace(args, plan)));
  const SequenceShape& shape = args.shape;
  const AttentionBackwardParams params{.q = args.q.data,
                                       .k = args.k.data,
                                       .v = args.v.data,
                                       .out = args.out.data,
                                       .d_out = args.d_out.data,
                                       .lse = args.lse,
                                       .stats = static_cast<float*>(partial_sums(args.workspace)),
                                       .d_q = args.d_q.data,
                                       .d_k = args.d_k.data,
                                       .d_v = args.d_v.data,
                                       .q_stride = stride_bytes(args.q),
                                       .k_stride = stride_bytes(args.k),
                                       .v_stride = stride_bytes(args.v),
                                       .out_stride = stride_bytes(args.out),
                                       .d_out_stride = stride_bytes(args.d_out),
                                       .d_q_stride = stride_bytes(args.d_q),
                                       .d_k_stride = stride_bytes(args.d_k),
                                       .d_v_stride = stride_bytes(args.d_v),
                                       .sequences = static_cast<int32_t>(shape.sequences),
                                       .tokens = static_cast<int32_t>(shape.tokens),
                                       .stats_tokens = static_cast<int32_t>(stats_tokens(shape)),
                                       .query_heads = static_cast<int32_t>(shape.query_heads),
                                       .group = static_cast<int32_t>(shape.group()),
                                       .head_dim = static_cast<int32_t>(shape.head_dim),
                                       .causal = shape.causal ? 1 : 0,
                                       .bf16 = args.d_q.dtype == DType::bf16 ? 1 : 0,
                                       .scale = shape.scale};
  const auto start = [&](std::string_view part, int64_t groups) {
    const std::string kernel = fmt::format("attention_backward_{}", part);
    return hip_device(stream).launch({.operation = "attention_backward",
                                      .kernel = kernel,
                                      .groups_x = static_cast<uint32_t>(groups),
                                      .threads = kBackwardThreads},
                                     params, stream.native);
  };
  const int64_t dim = round_up(shape.head_dim, int64_t{64});
  const int64_t row_tiles = ceil_div(shape.tokens, int64_t{kBackwardRows});
  const int64_t heads = shape.sequences * shape.query_heads;
  WEFT_TRY(start("stats", ceil_div(heads * stats_tokens(shape), int64_t{kStatsOfWorkgroup})));
  WEFT_TRY(start(fmt::format("keys_{}", dim), row_tiles * shape.sequences * shape.kv_heads));
  return start(fmt::format("queries_{}", dim), row_tiles * heads);
}

}  // namespace

const weft::Kernel<AttentionBackwardArgs> attention_backward = {plan, candidates, workspace,
                                                                launch};

}  // namespace weft::cdna

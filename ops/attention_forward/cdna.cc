// attention_forward on AMD: the kernels of ops/attention with another way to say where rows and
// keys lie.
#include "ops/attention/cdna.h"
#include "ops/attention/cdna_prefill.h"
#include "ops/attention_forward/op.h"
#include "ops/cdna_launch.h"

namespace weft::cdna {
namespace {

Plan plan(const AttentionForwardArgs& args, const DeviceInfo& /*device*/) {
  if (args.shape.head_dim > kMostPrefillHeadDim) {
    return {.why = "heads must have 256 elements at most"};
  }
  return {.kernel = "rows",
          .tile_m = kAttentionRows,
          .tile_n = 64,
          .threads = 256,
          .why = "the one kernel there is"};
}

std::vector<Plan> candidates(const AttentionForwardArgs& args, const DeviceInfo& device) {
  const Plan only = plan(args, device);
  return only.kernel.empty() ? std::vector<Plan>{} : std::vector<Plan>{only};
}

size_t workspace(const AttentionForwardArgs& /*args*/, const Plan& /*plan*/) { return 0; }

Status launch(const AttentionForwardArgs& args, const Plan& plan, Stream stream) {
  constexpr float kLog2E = 1.4426950408889634f;
  const SequenceShape& shape = args.shape;
  const AttentionParams params{.q = args.q.data,
                               .keys = args.k.data,
                               .values = args.v.data,
                               .out = args.out.data,
                               .lse = args.lse,
                               .q_stride = stride_bytes(args.q),
                               .out_stride = stride_bytes(args.out),
                               .key_stride = stride_bytes(args.k),
                               .value_stride = stride_bytes(args.v),
                               .head_stride = shape.head_dim * int64_t{sizeof(bf16)},
                               .sequences = static_cast<int32_t>(shape.sequences),
                               .rows = static_cast<int32_t>(shape.tokens),
                               .first = 0,
                               .causal = shape.causal ? 1 : 0,
                               .query_heads = static_cast<int32_t>(shape.query_heads),
                               .group = static_cast<int32_t>(shape.group()),
                               .head_dim = static_cast<int32_t>(shape.head_dim),
                               .window = 0,
                               .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0,
                               .score_scale = shape.scale * kLog2E,
                               .cap_scale = 0};
  const std::string kernel =
      fmt::format("attention_bf16_bf16_{}", round_up(shape.head_dim, int64_t{64}));
  return hip_device(stream).launch(
      {.operation = "attention",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(ceil_div(shape.tokens, int64_t{kAttentionRows}) *
                                         shape.query_heads * shape.sequences),
       .threads = static_cast<uint32_t>(plan.threads)},
      params, stream.native);
}

}  // namespace

const weft::Kernel<AttentionForwardArgs> attention_forward = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

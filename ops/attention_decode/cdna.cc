// attention_decode on AMD, the host's side.
#include "ops/attention_decode/cdna.h"

#include <bit>

#include "ops/attention_decode/cdna_step.h"
#include "ops/attention_decode/op.h"
#include "ops/cdna_launch.h"

namespace weft::cdna {
namespace {

constexpr int kMostColumns = 256;
static_assert(kDecodeDim == kMostColumns && kUnifiedReach == 60, "what the kernels know");
static_assert(kKvPage % kDecodeBlockKeys == 0);
constexpr int kPageShift = std::countr_zero(uint64_t{kKvPage});
constexpr int kWholeShift = 30;  ///< all positions

int columns_of(const AttentionDecodeArgs& args) {
  return static_cast<int>(round_up(args.head_dim, int64_t{64}));
}
int64_t row_tiles(const AttentionDecodeArgs& args) {
  return ceil_div(args.query_heads / args.kv_heads * args.tokens, int64_t{kDecodeTileRows});
}

Plan plan_of(const AttentionDecodeArgs& args, int workgroups, std::string_view why) {
  return {.kernel = "keys",
          .tile_m = kDecodeTileRows,
          .tile_n = columns_of(args),
          .tile_k = kDecodeBlockKeys,
          .splits = workgroups,
          .threads = 256,
          .why = why};
}

Plan plan(const AttentionDecodeArgs& args, const DeviceInfo& device) {
  if (args.batch * args.kv_heads * row_tiles(args) > 1 << 24) {
    return {.why = "sequences times KV heads times tiles of 16 rows are more than 2^24"};
  }
  return plan_of(args, device.units, "a workgroup a compute unit");
}

std::vector<Plan> candidates(const AttentionDecodeArgs& args, const DeviceInfo& device) {
  const Plan all = plan(args, device);
  if (all.kernel.empty()) {
    return {};
  }
  return {all, plan_of(args, 2 * device.units, {}),
          plan_of(args, std::max(1, device.units / 2), {})};
}

size_t workspace(const AttentionDecodeArgs& /*args*/, const Plan& plan) {
  return kCounterBytes + static_cast<size_t>(plan.splits) * 2 *
                             static_cast<size_t>(decode_part_floats(plan.tile_n)) * sizeof(float);
}

AttentionDecodeParams params_of(const AttentionDecodeArgs& args, const Plan& plan) {
  constexpr float kLog2E = 1.4426950408889634f;
  return {.q = args.q.data,
          .keys = args.cache.keys,
          .values = args.cache.values,
          .tables = args.cache.tables,
          .lengths = args.lengths,
          .sinks = args.sinks.data,
          .out = args.out.data,
          .distances = args.unified ? args.distances : nullptr,
          .parts = static_cast<float*>(partial_sums(args.workspace)),
          .tickets = static_cast<uint32_t*>(args.workspace.data),
          .q_stride = stride_bytes(args.q),
          .out_stride = stride_bytes(args.out),
          .head_stride = args.cache.head_stride * 2,
          .table_stride = args.cache.table_stride,
          .batch = static_cast<int32_t>(args.batch),
          .page_shift = kPageShift,
          .more = 0,
          .tokens = static_cast<int32_t>(args.tokens),
          .query_heads = static_cast<int32_t>(args.query_heads),
          .kv_heads = static_cast<int32_t>(args.kv_heads),
          .group = static_cast<int32_t>(args.query_heads / args.kv_heads),
          .head_dim = static_cast<int32_t>(args.head_dim),
          .row_tiles = static_cast<int32_t>(row_tiles(args)),
          .window = static_cast<int32_t>(args.window),
          .workgroups = plan.splits,
          .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0,
          .sinks_format = format_number(args.sinks.dtype),
          .unified = args.unified ? 1 : 0,
          .unified_maximum = args.unified_maximum * kLog2E,
          .score_scale = (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E,
          .cap_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : 0};
}

Status launch(const AttentionDecodeParams& params, const Plan& plan, Stream stream) {
  return hip_device(stream).launch({.operation = "attention_decode",
                                    .kernel = fmt::format("attention_decode_{}", plan.tile_n),
                                    .groups_x = static_cast<uint32_t>(plan.splits),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

Status launch(const AttentionDecodeArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("attention_decode", args.workspace, workspace(args, plan)));
  return launch(params_of(args, plan), plan, stream);
}

/// Of a token of each sequence.
AttentionDecodeArgs decode_args(const AttentionArgs& args, int64_t rows,
                                const Workspace& workspace) {
  return {.batch = rows,
          .tokens = 1,
          .query_heads = args.query_heads,
          .kv_heads = args.kv_heads,
          .head_dim = args.head_dim,
          .q = args.q,
          .cache = {.keys = args.cache.keys,
                    .values = args.cache.values,
                    .head_stride = args.cache.head_stride},
          .scale = args.scale,
          .soft_cap = args.soft_cap,
          .window = args.window,
          .sinks = args.sinks,
          .out = args.out,
          .workspace = workspace};
}

}  // namespace

const weft::Kernel<AttentionDecodeArgs> attention_decode = {plan, candidates, workspace, launch};

bool is_attention_decode(const AttentionArgs& args) {
  return args.q.dtype == DType::bf16 && args.cache.dtype == DType::bf16;
}
Status attend_as_attention_decode(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                                  const Workspace& room, Stream stream) {
  AttentionDecodeArgs step = decode_args(args, rows, room);
  step.lengths = places.positions;
  const Plan all = plan(step, hip_device(stream).info());
  WEFT_TRY(check_workspace("attention_decode", room, workspace(step, all)));
  AttentionDecodeParams params = params_of(step, all);
  params.tables = places.sequences;
  params.table_stride = 1;
  params.page_shift = kWholeShift;
  params.more = 1;  // the row's own
  return launch(params, all, stream);
}
size_t workspace_as_attention_decode(const AttentionArgs& args, Stream stream) {
  const AttentionDecodeArgs step = decode_args(args, 1, {});
  return workspace(step, plan(step, hip_device(stream).info()));
}

}  // namespace weft::cdna

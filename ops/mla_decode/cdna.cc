// mla_decode on AMD, the host's side.
#include "ops/mla_decode/cdna.h"

#include "ops/cdna_launch.h"
#include "ops/mla_decode/op.h"

namespace weft::cdna {
namespace {

static_assert(kLatentRank == 512 && kLatentTurned == 64 && kKvPage == 64, "what the kernels know");

int64_t row_tiles(const MlaDecodeArgs& args, int rows) { return ceil_div(args.rows(), rows); }

Plan plan_of(int rows, int workgroups, std::string_view why) {
  return {.kernel = "keys",
          .tile_m = rows,
          .tile_n = static_cast<int>(kLatentRank),
          .tile_k = kMlaBlockKeys,
          .splits = workgroups,
          .threads = 256,
          .why = why};
}

/// Workgroups that share a sequence leave all their rows' sums in memory, so few sequences want few
/// rows of a workgroup; their keys then come from the caches for the other rows.
Plan plan(const MlaDecodeArgs& args, const DeviceInfo& device) {
  if (args.alone) {
    return {.why = "keys are dealt together with other sequences'"};
  }
  const int64_t rows = args.rows();
  if (args.cache.angles != nullptr) {
    return plan_of(64, device.units, "the one kernel that turns keys");
  }
  if (rows <= 16 || args.batch <= 2) {
    return plan_of(16, device.units, rows <= 16 ? "a tile of 16 rows" : "few sequences");
  }
  return rows <= 32 ? plan_of(32, device.units, "two tiles of 16 rows")
                    : plan_of(64, device.units, "four tiles of 16 rows");
}

std::vector<Plan> candidates(const MlaDecodeArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  const Plan chosen = plan(args, device);
  if (chosen.kernel.empty()) {
    return plans;
  }
  if (args.cache.angles != nullptr) {
    return {chosen};
  }
  for (const int rows : {16, 32, 64}) {
    if (rows == 16 || args.rows() > rows / 2) {
      plans.push_back(plan_of(rows, device.units, {}));
    }
  }
  return plans;
}

size_t workspace(const MlaDecodeArgs& /*args*/, const Plan& plan) {
  return kCounterBytes + static_cast<size_t>(plan.splits) * 2 *
                             static_cast<size_t>(mla_part_floats(plan.tile_m)) * sizeof(float);
}

Status launch(const MlaDecodeArgs& args, const Plan& plan, Stream stream) {
  constexpr float kLog2E = 1.4426950408889634f;
  WEFT_TRY(check_workspace("mla_decode", args.workspace, workspace(args, plan)));
  const MlaDecodeParams params{.q = args.q.data,
                               .cache = args.cache.rows,
                               .angles = args.cache.angles,
                               .tables = args.cache.tables,
                               .owners = args.cache.owners,
                               .lengths = args.run ? nullptr : args.lengths,
                               .out = args.out.data,
                               .sums = args.sums,
                               .parts = static_cast<float*>(partial_sums(args.workspace)),
                               .tickets = static_cast<uint32_t*>(args.workspace.data),
                               .q_stride = stride_bytes(args.q),
                               .out_stride = stride_bytes(args.out),
                               .block_stride = args.cache.block_stride * args.cache.row_bytes(),
                               .table_stride = args.cache.table_stride,
                               .batch = static_cast<int32_t>(args.batch),
                               .tokens = static_cast<int32_t>(args.tokens),
                               .heads = static_cast<int32_t>(args.heads),
                               .row_tiles = static_cast<int32_t>(row_tiles(args, plan.tile_m)),
                               .workgroups = plan.splits,
                               .more = static_cast<int32_t>(args.more),
                               .out_bf16 = args.out.dtype == DType::bf16 ? 1 : 0,
                               .score_scale = args.scale * kLog2E};
  return hip_device(stream).launch({.operation = "mla_decode",
                                    .kernel = fmt::format("mla_decode_{}_{}",
                                                          args.cache.angles != nullptr ? "turning"
                                                          : args.cache.dtype == DType::bf16 ? "bf16"
                                                                                            : "fp8",
                                                          plan.tile_m),
                                    .groups_x = static_cast<uint32_t>(plan.splits),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

}  // namespace

const weft::Kernel<MlaDecodeArgs> mla_decode = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

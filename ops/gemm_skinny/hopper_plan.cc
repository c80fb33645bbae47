#include "ops/gemm_skinny/hopper_plan.h"

#include <algorithm>

#include "base/divide.h"

namespace weft::hopper {
namespace {

constexpr TunedPlan kTuned[] = {
    {},  // a table may be empty
#include "ops/gemm_skinny/hopper_table.inc"
};

constexpr std::string_view kNoFnuz = "sm_90a multiplies e4m3fn, not e4m3fnuz";
/// As many blocks draw all of the memory's bandwidth: 128 KiB under way in each are what it takes
/// to hide 1.3 us at 4.4 TB/s. With as many again, each waits less for its share of a's rows.
constexpr int kEnoughBlocks = 96;
constexpr int kMostCluster = 8;
/// Bytes of a row for which a block of hopper_dealt.cuh is worth its start.
constexpr int64_t kLongRow = 8192;
/// Bytes of b of such a block that are much to read, and that where some multiprocessors get two
/// blocks and others one.
constexpr int64_t kLongBlock = int64_t{400} << 10;
constexpr int64_t kLongUnevenBlock = int64_t{200} << 10;

int64_t groups_of(const GemmSkinnyArgs& args, int rows) { return ceil_div(args.n, rows); }

/// A stream's or a small block's rows of a, padded.
int padded_rows(const GemmSkinnyArgs& args, int least) {
  return std::max(least, args.m <= 8 ? 8 : args.m <= 16 ? 16 : 32);
}
Plan plan_of(const GemmSkinnyArgs& args, int rows, int row_bytes, int cluster) {
  return {.kernel = "stream",
          .tile_m = padded_rows(args, 16),
          .tile_n = rows,
          .tile_k = args.a.dtype == DType::bf16 ? row_bytes / 2 : row_bytes,
          .cluster = cluster};
}

Plan vector_plan(int rows, int warps, const VectorKernel& kernel = kVectorKernels[0]) {
  return {.kernel = kernel.name, .tile_m = 1, .tile_n = rows, .threads = warps * 32};
}

std::vector<Plan> dealt_plans(const GemmSkinnyArgs& args) {
  const bool bf16 = args.a.dtype == DType::bf16;
  const int chunk = bf16 ? 64 : 128;  // elements, 128 bytes
  std::vector<Plan> plans;
  // Copies of chunks know no end of a row within one.
  if (args.k % chunk == 0 && (bf16 || args.m <= 16)) {
#define WEFT_TILE(ROWS, CHUNKS, STAGES, WARPS)     \
  plans.push_back({.kernel = "dealt",              \
                   .tile_m = padded_rows(args, 8), \
                   .tile_n = ROWS,                 \
                   .tile_k = CHUNKS * chunk,       \
                   .stages = STAGES,               \
                   .threads = WARPS * 32});
    WEFT_SKINNY_DEALT(WEFT_TILE)
#undef WEFT_TILE
  }
  return plans;
}

int64_t row_bytes(const GemmSkinnyArgs& args) {
  return args.k * (args.a.dtype == DType::bf16 ? 2 : 1);
}

}  // namespace

bool reads_once(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  return args.n * row_bytes(args) < 5 * static_cast<int64_t>(device.l2);
}

bool lets_next_begin_late(const GemmSkinnyArgs& args, int rows, int shared_bytes,
                          const DeviceInfo& device) {
  const int64_t places = device.units * (static_cast<int64_t>(device.shared_memory) / shared_bytes);
  const int64_t blocks = groups_of(args, rows);
  const int64_t block_bytes = rows * row_bytes(args);
  return blocks * 4 <= places * 3 &&
         block_bytes >= (blocks > device.units ? kLongUnevenBlock : kLongBlock);
}

SkinnyShares skinny_shares(const GemmSkinnyArgs& args, const Plan& plan, int units) {
  const int groups = static_cast<int>(groups_of(args, plan.tile_n));
  // Groups of multiprocessors hold no more large clusters than this.
  const int room = plan.cluster <= 2   ? units / plan.cluster
                   : plan.cluster == 4 ? units * 10 / 44
                                       : units / 9;
  return {.groups = groups,
          .stages_of_k = static_cast<int>(ceil_div(args.k, plan.tile_k)),
          .cluster = plan.cluster,
          .clusters = std::clamp(room, 1, groups),
          .k_blocks = static_cast<int>(ceil_div(args.k, kScaleBlock))};
}

Plan plan_gemm_skinny(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (args.a.dtype == DType::e4m3fnuz) {
    return {.why = kNoFnuz};
  }
  if (const Plan* tuned = find_tuned(kTuned, plan_key(args), device); tuned != nullptr) {
    Plan plan = *tuned;  // the row may be another m's
    plan.why = "measured";
    if (is_vector(plan) && args.m == 1) {
      return plan;
    }
    if (plan.kernel == "stream") {
      plan.tile_m = padded_rows(args, 16);
      return plan;
    }
    plan.tile_m = padded_rows(args, 8);
    const std::vector<Plan> dealt = dealt_plans(args);
    if (std::find(dealt.begin(), dealt.end(), plan) != dealt.end()) {
      return plan;
    }
  }
  const bool bf16 = args.a.dtype == DType::bf16;
  if (args.m == 1) {
    // A block has whole rows under way, or as much of them as its threads can.
    int warps = kVectorMostWarps;
    while (warps > 2 && warps * kVectorStep * (bf16 ? 4 : 2) > row_bytes(args)) {
      warps /= 2;
    }
    Plan plan = vector_plan(bf16 ? 2 : 8, warps);
    plan.why = "one row";
    return plan;
  }
  const std::vector<Plan> dealt = dealt_plans(args);
  // In fp8, and with the more rows of a, small blocks pay for each reading all of a, and for the
  // products (fp8 numbers are widened first); where blocks are many and short, for their starts.
  const bool few = groups_of(args, 64) * 2 <= device.units;
  if (!dealt.empty() && (few || row_bytes(args) >= kLongRow) &&
      args.m <= (!bf16 ? 8
                 : few ? 32
                       : 16)) {
    Plan plan = dealt[args.m <= 16 ? 0 : dealt.size() - 1];
    plan.why = "several rows: small blocks read whole rows";
    return plan;
  }
  const bool many = groups_of(args, 128) >= device.units;
  int cluster = 1;
  while (cluster < kMostCluster && groups_of(args, 64) * cluster * 2 <= device.units &&
         groups_of(args, 64) * cluster < kEnoughBlocks) {
    cluster *= 2;
  }
  const bool wide = many && !bf16;
  Plan plan = plan_of(args, wide ? 128 : 64, wide ? 256 : 512, cluster);
  plan.why = cluster == 1 ? "enough groups of rows to draw the memory's bandwidth"
                          : "few groups of rows: clusters share them";
  return plan;
}

std::vector<Plan> gemm_skinny_candidates(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  if (args.a.dtype != DType::e4m3fnuz) {
    for (int rows = 2; args.m == 1 && rows <= 8; rows *= 2) {
      for (int warps = 2; warps <= kVectorMostWarps; warps *= 2) {
        for (const VectorKernel& kernel : kVectorKernels) {
          plans.push_back(vector_plan(rows, warps, kernel));
        }
      }
    }
    for (const Plan& plan : dealt_plans(args)) {
      plans.push_back(plan);
    }
    for (int cluster = 1; cluster <= kMostCluster; cluster *= 2) {
      plans.push_back(plan_of(args, 64, 512, cluster));
      if (cluster == 1 || groups_of(args, 128) * cluster <= device.units) {
        plans.push_back(plan_of(args, 128, 256, cluster));
      }
      if (groups_of(args, 64) * cluster > device.units) {
        break;
      }
    }
  }
  return plans;
}

}  // namespace weft::hopper

#include "ops/attention_decode/hopper_plan.h"

#include <algorithm>

#include "ops/hopper_gemm_plan.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 384;  ///< eight warps that multiply, four for what they read

int64_t jobs_of(const AttentionDecodeArgs& args) {
  return args.batch * args.kv_heads * decode_row_tiles(args);
}

Plan plan_of(const AttentionDecodeArgs& args, int splits, std::string_view why) {
  const int columns = decode_columns(args.head_dim);
  return {.kernel = "mma",
          .tile_m = kDecodeRows,
          .tile_n = columns,
          .tile_k = kDecodeKeys,
          .stages = decode_stages(columns),
          .splits = splits,
          .threads = kThreads,
          .why = why};
}

constexpr int kClusters[] = {16, 8, 4};  ///< blocks; the kernel has no others
constexpr int64_t kClusterDim = 128;
/// Keys up to which a job's cluster is faster than all blocks with parts of it: of one job, 16
/// blocks took 37 us for 65,536 keys and 132 blocks 34, of 16,384 16 and 29 (H200).
constexpr int64_t kClusterKeys = 131072;

/// A cluster for each job; where there is room for fewer, each takes several in turn.
Plan cluster_plan(const AttentionDecodeArgs& args, const DeviceInfo& device, int cluster) {
  const int64_t clusters = std::min<int64_t>(jobs_of(args), device.units / cluster);
  Plan plan = plan_of(args, static_cast<int>(clusters), "a cluster a job");
  plan.cluster = cluster;
  return plan;
}

/// Whether all jobs' clusters run at once.
bool clusters_fit(const AttentionDecodeArgs& args, const DeviceInfo& device, int cluster) {
  return args.head_dim <= kClusterDim && args.cache.positions() <= kClusterKeys &&
         jobs_of(args) <= resident_clusters(device.units, cluster);
}

}  // namespace

Plan plan_attention_decode(const AttentionDecodeArgs& args, const DeviceInfo& device) {
  if (jobs_of(args) > static_cast<int64_t>(kCounterBytes / 4)) {
    return {.why = "sequences times KV heads times tiles of 16 rows are more than 16384"};
  }
  for (const int cluster : kClusters) {
    if (clusters_fit(args, device, cluster)) {
      return cluster_plan(args, device, cluster);
    }
  }
  return plan_of(args, device.units, "a block a multiprocessor");
}

std::vector<Plan> attention_decode_candidates(const AttentionDecodeArgs& args,
                                              const DeviceInfo& device) {
  if (plan_attention_decode(args, device).kernel.empty()) {
    return {};
  }
  std::vector<Plan> plans = {plan_of(args, device.units, "a block a multiprocessor"),
                             plan_of(args, std::max(1, device.units / 2), {})};
  for (const int cluster : kClusters) {
    if (args.head_dim <= kClusterDim && jobs_of(args) <= device.units / cluster * 2) {
      plans.push_back(cluster_plan(args, device, cluster));
    }
  }
  return plans;
}

}  // namespace weft::hopper

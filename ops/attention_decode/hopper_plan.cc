#include "ops/attention_decode/hopper_plan.h"

#include <algorithm>

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

}  // namespace

Plan plan_attention_decode(const AttentionDecodeArgs& args, const DeviceInfo& device) {
  if (jobs_of(args) > static_cast<int64_t>(kCounterBytes / 4)) {
    return {.why = "sequences times KV heads times tiles of 16 rows are more than 16384"};
  }
  return plan_of(args, device.units, "a block a multiprocessor");
}

std::vector<Plan> attention_decode_candidates(const AttentionDecodeArgs& args,
                                              const DeviceInfo& device) {
  const Plan all = plan_attention_decode(args, device);
  if (all.kernel.empty()) {
    return {};
  }
  std::vector<Plan> plans = {all, plan_of(args, std::max(1, device.units / 2), {})};
  const auto jobs = static_cast<int>(jobs_of(args));
  for (const int cluster : {4, 8}) {
    const int clusters = device.units / cluster;
    if (all.tile_n <= 128 && jobs <= 2 * clusters) {
      Plan plan = plan_of(args, std::min(jobs, clusters), {});
      plan.cluster = cluster;
      plans.push_back(plan);
    }
  }
  return plans;
}

}  // namespace weft::hopper

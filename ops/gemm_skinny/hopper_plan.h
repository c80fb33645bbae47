// How gemm_skinny is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "ops/gemm_skinny/op.h"

namespace weft::hopper {

/// A run of stages of k of one group of b's rows.
struct SkinnyRun {
  int group = 0;
  int begin = 0;  ///< in stages of k
  int end = 0;
};

/// Which runs the blocks stream: whole groups, dealt round to clusters of blocks, each of which has
/// its part of k. Half of the multiprocessors draw all of the memory's bandwidth, so that an uneven
/// last round costs nothing; clusters are for few groups.
struct SkinnyShares {
  int groups = 0;
  int stages_of_k = 0;  ///< of one group
  int cluster = 1;      ///< blocks that share a group: 1, 2, 4 or 8
  int clusters = 0;     ///< at once
  int k_blocks = 0;     ///< of 128 elements, for scales

  constexpr int blocks() const { return clusters * cluster; }
  constexpr int cluster_shift() const { return cluster > 2 ? cluster / 4 + 1 : cluster / 2; }
  /// Run `index` of block `rank` of a cluster, which may be empty; false: it has no more.
  constexpr bool run(int cluster_index, int rank, int index, SkinnyRun& run) const {
    run.group = cluster_index + index * clusters;
    run.begin = (stages_of_k * rank) >> cluster_shift();
    run.end = (stages_of_k * (rank + 1)) >> cluster_shift();
    return run.group < groups;
  }
};
SkinnyShares skinny_shares(const GemmSkinnyArgs& args, const Plan& plan, int units);

/// The kernel for one row (hopper_vector.cuh): bytes of a row of b that a warp reads at a time,
/// loads that a thread has under way, and warps of a block.
inline constexpr int kVectorStep = 512;
inline constexpr int kVectorLoads = 8;
inline constexpr int kVectorMostWarps = 8;
/// Its two forms: with so many registers that a multiprocessor holds so many of the largest blocks.
struct VectorKernel {
  std::string_view name;
  int resident = 0;
};
inline constexpr VectorKernel kVectorKernels[] = {{"vector", 2}, {"narrow vector", 3}};
constexpr bool is_vector(const Plan& plan) {
  return plan.kernel == kVectorKernels[0].name || plan.kernel == kVectorKernels[1].name;
}
/// Whether b shall leave L2 first, so that less of what others have there is written back. Where b
/// is many times L2, all of that goes anyway, and hints cost a few percent.
bool reads_once(const GemmSkinnyArgs& args, const DeviceInfo& device);

/// The kernels for several rows by small blocks (hopper_dealt.cuh), for 8, 16 and 32 of them each
/// (fp8: 8 and 16):
/// X(rows of b, chunks of 128 bytes of k in a stage, stages, warps).
#define WEFT_SKINNY_DEALT(X) \
  X(16, 8, 3, 8)             \
  X(16, 8, 4, 8)             \
  X(32, 4, 3, 4)             \
  X(32, 4, 4, 4)             \
  X(32, 4, 6, 4)

/// Whether blocks of `rows` rows of b and so much shared memory (hopper_dealt.cuh) let the next
/// kernel begin late (SkinnyOverlap): where all come at once, leave places free that the next
/// kernel's would crowd on few multiprocessors, and each has much to read.
bool lets_next_begin_late(const GemmSkinnyArgs& args, int rows, int shared_bytes,
                          const DeviceInfo& device);

Plan plan_gemm_skinny(const GemmSkinnyArgs& args, const DeviceInfo& device);
std::vector<Plan> gemm_skinny_candidates(const GemmSkinnyArgs& args, const DeviceInfo& device);

}  // namespace weft::hopper

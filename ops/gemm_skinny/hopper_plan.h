// How gemm_skinny is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/gemm_skinny/op.h"

namespace weft::hopper {

/// A run of stages of k of one group of b's rows.
struct SkinnyRun {
  int group = 0;
  int begin = 0;  ///< in stages of k
  int end = 0;
};

/// Which runs the blocks stream. Either whole groups, dealt round: half of the multiprocessors draw
/// all of the memory's bandwidth, so that an uneven last round costs nothing. Or, where groups are
/// few, equal shares of all stages of all groups, numbered along k first: then groups are shared.
struct SkinnyShares {
  int groups = 0;
  int stages_of_k = 0;  ///< of one group
  int blocks = 0;
  bool whole = true;
  int k_blocks = 0;  ///< of 128 elements, for scales

  constexpr int units() const { return groups * stages_of_k; }
  /// Not whole: the first unit of a block; that of block `blocks` is units().
  constexpr int first_unit(int block) const {
    const int more = units() % blocks;  // blocks that have one unit more
    return units() / blocks * block + (block < more ? block : more);
  }
  /// Not whole: the block whose share holds a unit.
  constexpr int block_of(int unit) const {
    const int each = units() / blocks;
    const int more = units() % blocks;
    const int border = more * (each + 1);
    return unit < border ? unit / (each + 1) : more + (unit - border) / each;
  }
  /// Run `index` of a block; false: it has no more.
  constexpr bool run(int block, int index, SkinnyRun& run) const {
    if (whole) {
      run = {block + index * blocks, 0, stages_of_k};
      return run.group < groups;
    }
    const int end = first_unit(block + 1);
    const int group = first_unit(block) / stages_of_k + index;
    const int begin = index == 0 ? first_unit(block) : group * stages_of_k;
    if (begin >= end) {
      return false;
    }
    const int group_end = (group + 1) * stages_of_k;
    run = {group, begin - group * stages_of_k,
           (end < group_end ? end : group_end) - group * stages_of_k};
    return true;
  }
};
SkinnyShares skinny_shares(const GemmSkinnyArgs& args, const Plan& plan, int blocks);

Plan plan_gemm_skinny(const GemmSkinnyArgs& args, const DeviceInfo& device);
std::vector<Plan> gemm_skinny_candidates(const GemmSkinnyArgs& args, const DeviceInfo& device);
size_t gemm_skinny_plan_workspace(const GemmSkinnyArgs& args, const Plan& plan);

}  // namespace weft::hopper

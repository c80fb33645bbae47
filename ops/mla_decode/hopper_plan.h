// How mla_decode is cut on sm_90a. Pure functions of shape and device.
#pragma once

#include <vector>

#include "ops/mla_decode/op.h"

namespace weft::hopper {

/// "few": 16 or 32 rows (tokens times heads) of a sequence by mma; "many": 64 by wgmma. `splits`
/// units (clusters of blocks) for each tile of rows share the keys of all sequences.
Plan plan_mla_decode(const MlaDecodeArgs& args, const DeviceInfo& device);
std::vector<Plan> mla_decode_candidates(const MlaDecodeArgs& args, const DeviceInfo& device);

/// Whether units have whole sequences in turn: where they must (`alone`), and in runs of many,
/// whose parts would cost more than uneven shares do (512 times 64 rows on an H200: 444 us, 167
/// whole).
constexpr bool whole_sequences(const MlaDecodeArgs& args, const DeviceInfo& device) {
  return args.alone || (args.run && args.rows() > 32 && args.batch >= 2 * device.units);
}

/// Floats of a result of tile_m rows (PartRows).
constexpr int64_t latent_part_floats(const Plan& plan) {
  return int64_t{plan.tile_m} * (kLatentRank + 2 * plan.cluster);
}

}  // namespace weft::hopper

// How the weights of products lie in a resident kernel's stream on CDNA, and who multiplies which.
// Plain numbers, for the host that packs them and the kernel that reads them.
//
// A unit is 16 columns of out (16 rows of the weight; gated_linear: 8 gate columns, then the 8 up
// columns beside them), a slice is a unit's weights of 32 of k: what one wave's load of 16 bytes a
// lane brings. Lane l has k 8 (l / 16) .. + 7 of row l % 16, which is the operand A of one
// v_mfma_f32_16x16x32_bf16 (gfx950) or of two v_mfma_f32_16x16x16_bf16 (gfx942), in which k may
// stand in any order. Slices of a unit follow one another, zeros where k has ended, and so do the
// units of a product.
//
// A product is worked on in blocks of at most kBlockUnits units. The slices of a block are dealt to
// the waves in runs, as even as can be, whatever k is; waves that share a unit leave their sums
// side by side, and they are added in the order of the waves: the bits repeat.
#pragma once

#include <cstdint>

#include "arch/cdna/target.h"
#include "base/divide.h"

namespace weft::cdna {

inline constexpr int kTeamWaves = 8;
inline constexpr int kTeamThreads = kTeamWaves * kWaveLanes;
inline constexpr int kUnitColumns = 16;
inline constexpr int kSliceK = 32;
inline constexpr int kSliceBytes = kUnitColumns * kSliceK * 2;
inline constexpr int kBlockUnits = kTeamThreads / kUnitColumns;  ///< a column for each thread
/// Slices of a wave that are in registers, or on their way there, while it waits.
inline constexpr int kSlicesAhead = 16;

/// k of the products that a worker has LDS for: rows lie there whole.
constexpr int most_k(Target target) { return target == Target::gfx942 ? 14336 : 32768; }

constexpr int slices_of(int k) { return ceil_div(k, kSliceK); }
constexpr int64_t product_bytes(int k, int units) {
  return int64_t{units} * slices_of(k) * kSliceBytes;
}

/// The slices of a block, dealt to the waves.
struct Runs {
  int each;
  int more;  ///< waves that have one more: the first ones

  constexpr explicit Runs(int slices)
      : each(slices / kTeamWaves), more(slices - each * kTeamWaves) {}
  /// The first slice of a wave; of the wave after the last: the end.
  constexpr int first(int wave) const { return wave * each + (wave < more ? wave : more); }
  constexpr int count(int wave) const { return each + (wave < more ? 1 : 0); }
};

/// Where a wave leaves its sums of a block's unit. Runs follow one another, so no two pairs of unit
/// and wave with the same place both have sums.
constexpr int sums_place(int unit, int wave) { return (unit + wave) * kUnitColumns; }
inline constexpr int kBlockSums = (kBlockUnits + kTeamWaves - 1) * kUnitColumns;

/// Query heads that attention handles in one pass over the keys.
inline constexpr int kHeadsAtOnce = 4;
/// Floats of LDS that attention works in: the queries of a KV head's `group`, its new key and value
/// as computed and as the cache has them, and each wave's part of the result.
constexpr int attention_floats(int head_dim, int group) {
  return (group + 4) * head_dim + kTeamWaves * kHeadsAtOnce * (head_dim + 2);
}

}  // namespace weft::cdna

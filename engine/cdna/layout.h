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
// Packed weights are of 12 bits (ops/linear/windowed.h): a lane's part of a slice is three words,
// the low parts of its eight weights and then the high parts of its four pairs. After all units of
// a product come the scales of its columns, for each thread that finishes a column of a block two
// bytes: its column's, or gate's and up's. Weights beside the windows are listed apart, for each
// wave those of its run; a list is in rounds of kWaveLanes, none of which has a column twice.
//
// A product is worked on in blocks of at most block_units() units. The slices of a block are dealt
// to the waves in runs, as even as can be, whatever k is; waves that share a unit leave their sums
// side by side, and they are added in the order of the waves: the bits repeat.
#pragma once

#include <cstdint>

#include "arch/cdna/target.h"
#include "base/divide.h"
#include "engine/resident/code.h"

namespace weft::cdna {

inline constexpr int kTeamWaves = 8;
inline constexpr int kTeamThreads = kTeamWaves * kWaveLanes;
inline constexpr int kUnitColumns = 16;
inline constexpr int kSliceK = 32;

/// How a product's weights lie in the stream.
enum class WeightForm : uint8_t { plain, packed };

/// Of a lane, of a slice.
constexpr int lane_bytes(WeightForm form) { return form == WeightForm::plain ? 16 : 12; }
constexpr int slice_bytes(WeightForm form) { return kWaveLanes * lane_bytes(form); }
inline constexpr int kUnitScaleBytes = 2 * kUnitColumns;  ///< of packed weights

/// A weight beside its column's window: times element k of the row it is to be added to sums, less
/// what stands in its place.
struct Listed {
  uint32_t sums = 0;  ///< of the block's, sums_place() + row; kNoSums: none
  uint16_t k = 0;
  uint16_t weight = 0;  ///< bf16, moved as the window is

  static constexpr uint32_t kNoSums = ~0u;
};

/// Units of a block: a column, of one sequence or of each of eight, for each thread.
constexpr int block_units(int64_t sequences) {
  return kTeamThreads / kUnitColumns / (sequences > 1 ? resident::kMostSequences : 1);
}
/// Slices of a wave that are in registers, or on their way there, while it waits.
inline constexpr int kSlicesAhead = 16;

/// Elements of a product's rows, of all sequences, that a worker has LDS for: they lie there whole.
constexpr int most_elements(Target target, int64_t sequences) {
  return target == Target::gfx950 ? 32768 : sequences > 1 ? 10240 : 14336;
}

constexpr int slices_of(int k) { return ceil_div(k, kSliceK); }
/// Of the units alone.
constexpr int64_t units_bytes(int k, int units, WeightForm form) {
  return int64_t{units} * slices_of(k) * slice_bytes(form);
}
constexpr int64_t product_bytes(int k, int units, WeightForm form) {
  return units_bytes(k, units, form) + (form == WeightForm::packed ? units * kUnitScaleBytes : 0);
}
/// Where the scale of a unit's row lies, from the first scale.
constexpr int scale_place(int unit, int row, bool gated, int block_units) {
  const int block = unit / block_units;
  const int of_block = unit - block * block_units;
  constexpr int kHalf = kUnitColumns / 2;
  const int place = gated ? (of_block * kHalf + row % kHalf) * 2 + row / kHalf
                          : (of_block * kUnitColumns + row) * 2;
  return block * block_units * kUnitScaleBytes + place;
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
constexpr int block_sums(int units) { return (units + kTeamWaves - 1) * kUnitColumns; }

/// Elements from a part of a sequence's row in LDS to the next part, where there are several: the
/// lanes of a load take other banks.
constexpr int row_pitch(int k) { return slices_of(k) * kSliceK + 8; }
/// Of several sequences' rows in memory, as products take them: [sequence][upper, lower parts][k],
/// of two bf16 that sum to an element within 2^-17.
constexpr int operand_pitch(int k) { return slices_of(k) * kSliceK; }

/// Query heads that attention handles in one pass over the keys.
inline constexpr int kHeadsAtOnce = 4;
/// Floats of LDS that attention works in: the queries of a KV head's `group`, its new key and value
/// as computed and as the cache has them, and each wave's part of the result.
constexpr int attention_floats(int head_dim, int group) {
  return (group + 4) * head_dim + kTeamWaves * kHeadsAtOnce * (head_dim + 2);
}

}  // namespace weft::cdna

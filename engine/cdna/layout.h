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
// Packed weights are of 12 bits (ops/linear/forms/packed/windowed.h): a lane's part of a slice is
// three words, the low parts of its eight weights and then the high parts of its four pairs. After
// all units of a product come the scales of its columns, for each thread that finishes a column of
// a block two bytes: its column's, or gate's and up's. Weights beside the windows are listed apart,
// for each wave those of its run; a list is in rounds of kWaveLanes, none of which has a column
// twice.
//
// Weights in e4m3fn are two words of a lane's part (ops/linear/forms/fp8/words.h), which become
// 2^-120 of bf16 numbers; rows are multiplied by 2^60 for them, so that no product is too small,
// and scales by 2^60 besides. After all units come the scales: those of columns, for each thread
// that finishes one two f32, its column's, or gate's and up's; or, where weights have scales of 128
// x 128, for each slice those of its first eight columns and of the others.
//
// Weights of experts in MXFP4 have slices of 128 of k: a lane's part is four words of codes
// (ops/linear/forms/mxfp4/words.h), of 32 of k each, and after all lanes' come the scales, for each
// four rows those of each 32 of k. Codes become 2^-126 of bf16 numbers, rows are multiplied by
// 2^60, and sums by 2^66.
//
// Weights in f16 become two bf16 each, their upper and their lower bits: two products.
//
// A product is worked on in blocks of at most block_units() units, and a block in parts of k where
// LDS has no room for all of the rows (part_slices()): rows of one part after the other are brought
// there, for each block anew. The slices of a block's part lie one behind the other and are dealt
// to the waves in runs, as even as can be, whatever k is; waves that share a unit leave their sums
// side by side, and they are added in the order of the waves: the bits repeat.
#pragma once

#include <algorithm>
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
enum class WeightForm : uint8_t {
  plain,
  packed,  ///< bf16 in 12 bits
  f16,
  fp8,         ///< e4m3fn, with scales of columns
  fp8_blocks,  ///< e4m3fn, with scales of 128 x 128 weights
  mx,          ///< MXFP4, of drawn experts
};

/// The weights that a kernel is made for: it has the forms that such a model's may have. With more
/// forms it would spill registers.
enum class KernelWeights : uint8_t {
  bf16,  ///< plain, packed
  fp8,   ///< both of e4m3fn, plain
  f16,   ///< f16 alone
  mx,    ///< of mixtures: mx, plain
};
constexpr bool has_form(KernelWeights kernel, WeightForm form) {
  switch (kernel) {
    case KernelWeights::bf16:
      return form == WeightForm::plain || form == WeightForm::packed;
    case KernelWeights::mx:
      return form == WeightForm::plain || form == WeightForm::mx;
    case KernelWeights::fp8:
      return form == WeightForm::plain || form == WeightForm::fp8 || form == WeightForm::fp8_blocks;
    default:
      return form == WeightForm::f16;
  }
}

/// Of a lane, of a slice; of mx with its share of the scales.
constexpr int lane_bytes(WeightForm form) {
  switch (form) {
    case WeightForm::mx:
      return 17;
    case WeightForm::packed:
      return 12;
    case WeightForm::fp8:
    case WeightForm::fp8_blocks:
      return 8;
    default:
      return 16;
  }
}
constexpr int slice_bytes(WeightForm form) { return kWaveLanes * lane_bytes(form); }
/// Of the scales of a unit's columns, see scale_place().
constexpr int unit_scale_bytes(WeightForm form) {
  return form == WeightForm::packed ? 2 * kUnitColumns
         : form == WeightForm::fp8  ? 2 * kUnitColumns * 4
                                    : 0;
}
inline constexpr int kSliceScaleBytes = 2 * 4;  ///< of WeightForm::fp8_blocks
/// What rows are multiplied with for weights in e4m3fn, and their scales too.
inline constexpr float kFp8RowScale = 0x1p60f;
/// What is missing of the sums of MXFP4's codes, of rows that are multiplied so.
inline constexpr float kMxSumScale = 0x1p66f;
/// k of a slice.
constexpr int slice_k(WeightForm form) { return form == WeightForm::mx ? 4 * kSliceK : kSliceK; }
/// Elements of k from a slot's part of a row to the next one's, whatever the form.
inline constexpr int kSlotSteps = 4 * kSliceK;

/// A weight beside its column's window: times element k of the row it is to be added to sums, less
/// what stands in its place.
struct Listed {
  uint32_t sums = 0;    ///< of the block's, sums_place() + row; kNoSums: none
  uint16_t k = 0;       ///< of the part
  uint16_t weight = 0;  ///< bf16, moved as the window is

  static constexpr uint32_t kNoSums = ~0u;
};

/// Units of a block: a column, of one sequence or of each of eight, for each thread.
constexpr int block_units(int64_t sequences) {
  return kTeamThreads / kUnitColumns / (sequences > 1 ? resident::kMostSequences : 1);
}
/// Experts that a router may have, a thread each, and how many of them a token.
inline constexpr int kMostExperts = kTeamThreads;
inline constexpr int kMostChosen = 16;

/// Slices of a wave that are in registers, or on their way there, while it waits.
inline constexpr int kSlicesAhead = 16;

/// Elements of a product's rows, of all sequences, that a worker has LDS for.
constexpr int most_elements(Target target, int64_t sequences) {
  return target == Target::gfx950 ? 32768 : sequences > 1 ? 10240 : 14336;
}

constexpr int slices_of(int k, WeightForm form = WeightForm::plain) {
  return ceil_div(k, slice_k(form));
}

/// Elements from a part of a sequence's row in LDS to the next part, where there are several: the
/// lanes of a load take other banks.
constexpr int row_pitch(int k) { return slices_of(k) * kSliceK + 8; }
/// Parts of a product's k, and the slices of each but the last.
constexpr int parts_of(Target target, int64_t sequences, int k) {
  const auto each = static_cast<int>(most_elements(target, sequences) / sequences);
  return ceil_div(slices_of(k), (sequences > 1 ? each - row_pitch(0) : each) / kSliceK);
}
constexpr int part_slices(int slices, int parts) { return ceil_div(slices, parts); }

/// Which of a product's slices in the stream that of a unit is.
struct SlicePlace {
  int slices;       ///< of a unit
  int part;         ///< slices of a part
  int block_units;  ///< of a whole block

  /// `units`: of the unit's block.
  constexpr int64_t of(int unit, int slice, int units) const {
    const int block = unit / block_units;
    const int first = slice / part * part;  // of the slice's part
    return int64_t{block} * block_units * slices + int64_t{units} * first +
           (unit - block * block_units) * std::min(part, slices - first) + slice - first;
  }
};
/// Of the units alone.
constexpr int64_t units_bytes(int k, int units, WeightForm form) {
  return int64_t{units} * slices_of(k, form) * slice_bytes(form);
}
constexpr int64_t product_bytes(int k, int units, WeightForm form) {
  const int64_t of_slices = form == WeightForm::fp8_blocks ? kSliceScaleBytes : 0;
  return units_bytes(k, units, form) +
         round_up(units * (unit_scale_bytes(form) + slices_of(k) * of_slices), int64_t{16});
}
/// Which of a product's scales of columns that of a unit's row is.
constexpr int scale_place(int unit, int row, bool gated, int block_units) {
  const int block = unit / block_units;
  const int of_block = unit - block * block_units;
  constexpr int kHalf = kUnitColumns / 2;
  const int place = gated ? (of_block * kHalf + row % kHalf) * 2 + row / kHalf
                          : (of_block * kUnitColumns + row) * 2;
  return block * block_units * 2 * kUnitColumns + place;
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

/// Of several sequences' rows in memory, as products take them: [sequence][upper, lower parts][k],
/// of two bf16 that sum to an element within 2^-17.
constexpr int operand_pitch(int k) { return slices_of(k) * kSliceK; }

/// Latent rows that attention is over, and the heads that one of its codes has at most.
inline constexpr int kLatentRank = 512;
inline constexpr int kLatentTurned = 64;
inline constexpr int kLatentHeads = 8;

/// Query heads that attention handles in one pass over the keys.
inline constexpr int kHeadsAtOnce = 4;
/// Floats of LDS that attention works in: the queries of a KV head's `group`, its new key and value
/// as computed and as the cache has them, and each wave's part of the result.
constexpr int attention_floats(int head_dim, int group) {
  return (group + 4) * head_dim + kTeamWaves * kHeadsAtOnce * (head_dim + 2);
}

}  // namespace weft::cdna

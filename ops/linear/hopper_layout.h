// How the weights of linear and gated_linear lie in a resident kernel's stream (see hopper.cuh).
// Plain numbers, for the host that packs them and the kernel that reads them.
#pragma once

#include <cstdint>

namespace weft::hopper {

inline constexpr int kUnitColumns = 16;  ///< rows of the weight in a unit that is not folded
inline constexpr int kMostFold = 2;
inline constexpr int kGroupK = 32;  ///< k in a group
inline constexpr int kGroupBytes = kUnitColumns * kGroupK * 2;
inline constexpr int kSliceGroups = 8;  ///< of a unit, that one warp multiplies
inline constexpr int kSliceK = kSliceGroups * kGroupK;
inline constexpr int kPageSlices = 2;
inline constexpr int kPageGroups = kPageSlices * kSliceGroups;

// Slices as they are in bf16, and compressed (hopper_compress.h): a header, then each group's low
// and high parts.
inline constexpr int kPlainSliceBytes = kSliceGroups * kGroupBytes;
inline constexpr int kSliceHeaderBytes = 128;
inline constexpr int kLowBytes = kUnitColumns * kGroupK;
inline constexpr int kHighBytes = kUnitColumns * kGroupK / 2;
inline constexpr int kCompressedGroupBytes = kLowBytes + kHighBytes;
inline constexpr int kCompressedSliceBytes =
    kSliceHeaderBytes + kSliceGroups * kCompressedGroupBytes;
/// Weights that a slice may list: the header has a byte for each column, then four for each of
/// these.
inline constexpr int kMostListed = (kSliceHeaderBytes - kUnitColumns) / 4;
constexpr int weight_slice_bytes(bool compressed) {
  return compressed ? kCompressedSliceBytes : kPlainSliceBytes;
}
/// Of a whole page.
constexpr int page_bytes(bool compressed) { return kPageSlices * weight_slice_bytes(compressed); }

// Rows. The operand B of an mma has eight columns. They take the row of one sequence as two bf16
// that sum to its elements within 2^-17 (the other six are idle), the rows of up to four sequences
// likewise, or those of up to eight rounded to bf16.
inline constexpr int kMostSequences = 8;
/// A kernel is made for at most this many sequences: 1, 4 or 8.
constexpr int batch_of(int sequences) { return sequences == 1 ? 1 : sequences <= 4 ? 4 : 8; }
constexpr int row_parts(int batch) { return batch <= 4 ? 2 : 1; }    ///< bf16 to an element
constexpr int row_columns(int batch) { return batch == 1 ? 2 : 8; }  ///< of B that are in use
/// A slice of all rows in shared memory.
constexpr int row_slice_bytes(int batch) { return kSliceK * 2 * row_columns(batch); }
/// Units whose sums are gathered at once: few where there are many rows.
constexpr int block_units(int batch) { return batch == 1 ? 8 : 16 / batch; }

constexpr int64_t groups_of(int64_t k) { return (k + kGroupK - 1) / kGroupK; }
/// Of a unit that is folded `fold` times.
constexpr int64_t folded_groups(int64_t groups, int fold) {
  return (groups + (int64_t{1} << fold) - 1) >> fold;
}
constexpr int64_t slices_of(int64_t k) { return (k + kSliceK - 1) / kSliceK; }
/// Of a unit. Compressed slices are whole.
constexpr int64_t unit_bytes(int64_t k, int fold, bool compressed) {
  return compressed ? slices_of(k) * kCompressedSliceBytes >> fold
                    : folded_groups(groups_of(k), fold) * kGroupBytes;
}
static_assert(kSliceHeaderBytes >> kMostFold << kMostFold == kSliceHeaderBytes);
/// The page of such a unit that has a slice, and the slice's place there.
constexpr int page_of(int slice, int fold) { return slice / kPageSlices >> fold; }
constexpr int place_in_page(int slice, int fold) { return slice & ((kPageSlices << fold) - 1); }
static_assert((kPageSlices & (kPageSlices - 1)) == 0);
/// The most pages from one that a warp of a team of `warps` reads to the next one it reads, in a
/// product over k (see SliceShare in hopper.cuh).
constexpr int64_t page_jump(int64_t k, int64_t warps) {
  const int64_t slices = slices_of(k);
  const int64_t pages = (slices + kPageSlices - 1) / kPageSlices;  // of a unit
  if (slices < warps) {
    return warps / slices * pages;
  }
  const int64_t rest = slices % warps;  // the last slices of a unit, which some warps have not
  return warps / kPageSlices + (rest + kPageSlices - 1) / kPageSlices;
}
/// Units of `columns` columns, of which each has `unit`: kUnitColumns, or half of it where gate and
/// up columns share units.
constexpr int64_t units_of(int64_t columns, int64_t unit = kUnitColumns) {
  return (columns + unit - 1) / unit;
}
/// How often the last of them is folded: as often as its columns allow.
constexpr int last_fold(int64_t columns, int64_t unit = kUnitColumns) {
  const int64_t rest = columns % unit;
  int fold = 0;
  while (rest > 0 && fold < kMostFold && rest <= unit >> (fold + 1)) {
    ++fold;
  }
  return fold;
}

}  // namespace weft::hopper

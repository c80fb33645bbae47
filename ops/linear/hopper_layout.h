// How the weights of linear and gated_linear lie in a resident kernel's stream (see hopper.cuh).
// Plain numbers, for the host that packs them and the kernel that reads them.
#pragma once

#include <cstdint>
#include <type_traits>

#include "ops/linear/forms/hopper_forms.h"

namespace weft::hopper {

inline constexpr int kTeamWarps = 8;  ///< that a product's slices are dealt to
inline constexpr int kMostFold = 2;
/// Arrivals that give a page back: its slices' readers share them. `codes`: of a kernel that takes
/// those, too.
constexpr int page_readers(bool codes) { return codes ? kMostPageSlices : kPageSlices; }

// Rows. The operand B of an mma has eight columns. They take the row of one sequence as two bf16
// that sum to its elements within 2^-17 (the other six are idle, or have other k where a unit is
// folded), the rows of up to four sequences likewise, or those of up to eight rounded to bf16.
/// A kernel is made for at most this many sequences: 1, 4 or 8.
constexpr int batch_of(int sequences) { return sequences == 1 ? 1 : sequences <= 4 ? 4 : 8; }
constexpr int row_parts(int batch) { return batch <= 4 ? 2 : 1; }    ///< bf16 to an element
constexpr int row_columns(int batch) { return batch == 1 ? 2 : 8; }  ///< of B that are in use
/// A slice of all rows in shared memory.
constexpr int row_slice_bytes(int batch) { return kSliceK * 2 * row_columns(batch); }
/// Slices of rows that each warp has at once where rows are too large to lie in shared memory
/// whole: the one in use and the next.
inline constexpr int kStreamedSlices = 2;
constexpr bool rows_are_streamed(int64_t slices) { return slices > kTeamWarps * kStreamedSlices; }
/// Units of a block, after which sums are gathered; whole pages, so that only the last block of a
/// product may end within one.
inline constexpr int kBlockUnits = 24;
static_assert(kBlockUnits % kMostPageSlices == 0);

/// a / b of what is not below 0: a shift where b is a power of two.
template <class T>
constexpr T quotient(T a, int b) {
  return static_cast<T>(static_cast<std::make_unsigned_t<T>>(a) / static_cast<unsigned>(b));
}

// For integers of any size: those of a kernel are short.
template <class T>
constexpr T slices_of(T k) {
  return quotient(k + T{kSliceK - 1}, kSliceK);
}
/// Of a unit that is folded `fold` times: a slice of it has fewer columns and more of k.
template <class T>
constexpr T unit_slices(T k, int fold) {
  return (slices_of(k) + (T{1} << fold) - 1) >> fold;
}
/// Of a block or a product of `units` units, the last of which is folded `fold` times.
template <class T>
constexpr T product_slices(T k, int units, int fold) {
  return (units - 1) * slices_of(k) + unit_slices(k, fold);
}
/// Of a row in shared memory, zeros after its k.
template <class T>
constexpr T row_slices(T k, int fold) {
  return unit_slices(k, fold) << fold;
}

/// How the slices of a block, unit after unit, are dealt to the team's warps: a warp has a run of
/// them, runs are as even as can be. In the stream the first slices of all runs come first, then
/// the second ones.
///
/// Runs may be of whole units (`grain`: slices of one), so that what a unit's sums are added in
/// does not depend on how many units there are. Then in the end only some warps have slices, each
/// time as many as the last page of them holds: a page is always of the same warps.
struct SliceRuns {
  int each;  ///< grains
  int more;  ///< runs that have one more: the first ones
  int grain = 1;

  constexpr explicit SliceRuns(int slices)
      : each(quotient(slices, kTeamWarps)), more(slices - each * kTeamWarps) {}
  constexpr SliceRuns(int units, int unit_slices) : SliceRuns(units) { grain = unit_slices; }
  constexpr int slices() const { return (each * kTeamWarps + more) * grain; }
  /// The first slice of a warp's run; of the warp after the last: the end.
  constexpr int first(int warp) const {
    return (warp * each + (warp < more ? warp : more)) * grain;
  }
  constexpr int count(int warp) const { return (each + (warp < more ? 1 : 0)) * grain; }
  /// Slices of a run after those that all have.
  constexpr int tail(int warp) const { return warp < more ? grain : 0; }
  /// Pages of `1 << shift` slices.
  constexpr int pages(int shift) const {
    return each * grain * (kTeamWarps >> shift) + tail_pages(shift) * grain;
  }
  /// That bring a slice of each run that has a tail.
  constexpr int tail_pages(int shift) const { return (more + (1 << shift) - 1) >> shift; }
  // Of single slices:
  constexpr int warp_of(int slice) const {
    return slice < more * (each + 1) ? slice / (each + 1) : (slice - more) / each;
  }
  /// The slice's place in the stream.
  constexpr int place(int slice) const {
    const int warp = warp_of(slice);
    return (slice - first(warp)) * kTeamWarps + warp;
  }
};
/// Of the block of a product that begins at unit `first`.
/// `whole`: runs are of whole units, of which none is folded.
constexpr SliceRuns block_runs(int k, int units, int fold, int first, bool whole = false) {
  const int left = units - first;
  if (whole) {
    return {left > kBlockUnits ? kBlockUnits : left, slices_of(k)};
  }
  return SliceRuns(left > kBlockUnits ? product_slices(k, kBlockUnits, 0)
                                      : product_slices(k, left, fold));
}
/// Pages from one that a warp reads to the next one, at most: of the form with the fewest slices.
inline constexpr int kPageJump = kTeamWarps / kPageSlices;
static_assert(kTeamWarps % kMostPageSlices == 0);

/// Units of `columns` columns, of which each has `unit`: kUnitColumns, or half of it where gate and
/// up columns share units.
template <class T>
constexpr T units_of(T columns, T unit = kUnitColumns) {
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

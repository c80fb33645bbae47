// What slices of weights in a resident kernel's stream have in common, whatever their form
// (ops/linear/hopper.cuh). Plain numbers, for the host that packs them and the kernel that reads
// them.
#pragma once

namespace weft::hopper {

inline constexpr int kUnitColumns = 16;  ///< rows of the weight in a unit that is not folded
inline constexpr int kGroupK = 32;       ///< k in a group
inline constexpr int kSliceGroups = 8;   ///< of a unit, that one warp multiplies at once
inline constexpr int kSliceK = kSliceGroups * kGroupK;
/// Of the forms that have a header, before the groups.
inline constexpr int kSliceHeaderBytes = 128;
/// What one copy brings, of weights in bf16, packed or not. Forms with fewer bytes have more slices
/// in a page, as large as others in bytes: a loader's time is by page.
inline constexpr int kPageSlices = 2;

}  // namespace weft::hopper

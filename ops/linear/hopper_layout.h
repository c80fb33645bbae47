// How the weights of linear and gated_linear lie in a resident kernel's stream (see hopper.cuh).
// Plain numbers, for the host that packs them and the kernel that reads them.
#pragma once

#include <cstdint>

namespace weft::hopper {

inline constexpr int kUnitColumns = 16;  ///< columns of out in a unit
inline constexpr int kGroupK = 32;       ///< k in a group
inline constexpr int kGroupBytes = kUnitColumns * kGroupK * 2;
inline constexpr int kPageBytes = 16384;
inline constexpr int kPageGroups = kPageBytes / kGroupBytes;
inline constexpr int kSliceGroups = 8;  ///< of a unit, that one warp multiplies
inline constexpr int kSliceK = kSliceGroups * kGroupK;
inline constexpr int kPageSlices = kPageGroups / kSliceGroups;
/// A slice of the row in shared memory: two bf16 an element.
inline constexpr int kRowSliceBytes = kSliceK * 4;

constexpr int64_t groups_of(int64_t k) { return (k + kGroupK - 1) / kGroupK; }
constexpr int64_t slices_of(int64_t k) { return (k + kSliceK - 1) / kSliceK; }
constexpr int64_t units_of(int64_t columns) { return (columns + kUnitColumns - 1) / kUnitColumns; }

}  // namespace weft::hopper

// What copies tell mbarriers.
#pragma once

#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {

/// Counts bytes that have arrived at an mbarrier; false: what is wrong has been said.
bool complete_bytes(Warp& warp, uint32_t lane, std::byte* barrier, int64_t bytes);

/// Lets a copy land whose bytes an mbarrier counts, now or when somebody looks at the barrier.
/// `land` is to count them.
bool land_at(Grid& grid, std::byte* barrier, std::function<bool()> land);

}  // namespace weft::ptx

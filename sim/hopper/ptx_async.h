// What copies tell mbarriers.
#pragma once

#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {

/// Counts bytes that have arrived at an mbarrier; false: what is wrong has been said.
bool complete_bytes(Warp& warp, uint32_t lane, std::byte* barrier, int64_t bytes);

}  // namespace weft::ptx

// What the simulator can be: the targets of arch/cdna, and the registers of their waves.
#pragma once

#include <cstdint>

#include "arch/cdna/target.h"

namespace weft::sim {

using cdna::Target;

inline constexpr int kLanes = cdna::kWaveLanes;

/// One vector register: 32 bits for each of a wave's 64 lanes.
using Lanes = uint32_t[kLanes];

}  // namespace weft::sim

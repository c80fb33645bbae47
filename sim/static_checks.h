// What is wrong with a program's instructions wherever they run, told of those that did run.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/hazards.h"
#include "sim/report.h"

namespace weft::sim {

struct Launch;

/// How many registers a wave was given.
struct Allocation {
  int vgprs = 0;
  int agprs = 0;
  int sgprs = 0;  ///< numbered ones
};

/// Findings for instructions that were executed, `executed` times by ordinal: those that come too
/// early after another that was executed, too, and those that name registers beyond the allocation.
std::vector<Finding> static_findings(const Launch& launch, std::span<const Hazard> hazards,
                                     const Allocation& allocation,
                                     std::span<const uint64_t> executed);

}  // namespace weft::sim

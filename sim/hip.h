// The HIP runtime's module API, answered by the simulator: device 0 is a gfx942, device 1 a gfx950.
// Statically linked programs take the table; others open libweft-amdhip64.so, which exports the
// same functions under HIP's names (sim/hip_library.cc).
//
// Everything happens at once: copies and launches are done when their call returns, streams and
// events order nothing. hipEventElapsedTime is the host's time between two records, which says how
// long the simulator took and nothing about a GPU. A launch with findings returns
// hipErrorLaunchFailure; last_launch() has them.
#pragma once

#include <string>

#include "arch/cdna/hip_abi.h"
#include "sim/report.h"

namespace weft::sim {

const hip::HipApi& hip_api();

/// The last launch of the calling thread; an empty report before the first.
const LaunchReport& last_launch();
/// All findings of the last launch of the calling thread, a sentence each line; "" when there are
/// none.
std::string last_findings();

/// Whether launches look for uninitialised reads, missing waits and races. On at first, unless
/// WEFT_SIM_SANITIZE=0 is in the environment.
void set_sanitizer(bool on);

/// Whether a launch that fails says so on stderr, too. Off at first.
void set_findings_to_stderr(bool on);

/// Makes `sim:gfx942` and `sim:gfx950` openable (arch/cdna/hip.h).
void install();

}  // namespace weft::sim

// The HIP runtime's module API, answered by the simulator. Statically linked programs take the
// table; others open libweft-amdhip64.so, which exports the same functions, and many more
// (sim/hip_abi.h), under HIP's names (sim/hip_library.cc).
//
// GPUs are numbered through the nodes that there are: a gfx942 and a gfx950 for themselves, or what
// the environment's WEFT_SIM_DEVICES names ("gfx942*8"). GPUs of one node reach each other's memory
// once hipDeviceEnablePeerAccess allows it.
//
// Streams are HIP's: launches return at once, their work is done in the order of the stream, by a
// thread of the stream's, and different streams' side by side. A launch with findings makes the
// next call that waits for the device return hipErrorLaunchFailure; last_launch() has them, and
// waits for the launch. With HIP_LAUNCH_BLOCKING=1 in the environment launches wait and return it
// themselves. hipEventElapsedTime is the host's time between two records, which says how long the
// simulator took and nothing about a GPU.
#pragma once

#include <string>

#include "arch/cdna/hip_abi.h"
#include "arch/cdna/target.h"
#include "base/result.h"
#include "sim/report.h"

namespace weft::sim {

const hip::HipApi& hip_api();

/// The last launch of the calling thread; an empty report before the first.
const LaunchReport& last_launch();
/// All findings of the last launch of the calling thread, a sentence each line; "" when there are
/// none.
std::string last_findings();

/// Whether launches look for uninitialised reads, missing waits and races. On at first, unless
/// WEFT_SIM_SANITIZE=0 is in the environment. WEFT_SIM_SEED=N there: each launch runs by a seed,
/// from N on (LaunchOptions::seed).
void set_sanitizer(bool on);

/// Launches run by seeds from this one on, as with WEFT_SIM_SEED; 0: by none.
void set_seed(uint64_t first);

/// LaunchOptions::hang_seconds of launches.
void set_hang_seconds(double seconds);

/// Whether a launch that fails says so on stderr, too. Off at first.
void set_findings_to_stderr(bool on);

/// The HIP number of a GPU of a node, which is made when it is first asked for. Errors (device):
/// there are too many.
Result<int> hip_ordinal(const cdna::Node& node);

/// Makes `sim:gfx942` and `sim:gfx950` openable (arch/cdna/hip.h).
void install();

}  // namespace weft::sim

// Waves that wait for others without end, and how they wait without executing anything.
//
// A wave that comes back to an instruction with the same registers, having changed no memory since,
// does the same again for as long as what it read in between stays as it was. Such a wave is
// parked: it executes nothing until one of the words that it read changes. That is exact, whatever
// the loop looks like. A loop that counts its turns or reads a clock is never parked.
#pragma once

#include "sim/wave.h"

namespace weft::sim {

/// After a turn in which a wave changed nothing: runs it on by `step`, an instruction at a time,
/// and parks it if it only waits. It may also get on, come to a barrier or end. Tries less and less
/// often while it gets on.
void try_park(Wave& wave, void (*step)(Wave&));

/// Whether something that a parked wave watches has changed.
bool woken(const Wave& wave);

}  // namespace weft::sim

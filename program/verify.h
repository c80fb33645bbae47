// Checks a program before it runs: that it can finish, and that no two workers touch the same data
// in an order that only luck decides.
#pragma once

#include "base/result.h"
#include "program/program.h"

namespace weft {

/// Runs two steps of the program symbolically (one when it draws no token to go on with). Errors
/// (input) name the instruction: indices out of range; an event that nobody or
/// everybody-but-as-many-as-it-says signals; a wait that can never be over (no producer, or a
/// cycle); two accesses to overlapping parts of a buffer, one of them a write, by workers that no
/// chain of waits orders (a read before its write, a buffer overwritten before its last reader); a
/// read of what nothing wrote.
Status verify(const Program& program);

}  // namespace weft

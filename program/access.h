// Which parts of which buffers an instruction reads and writes: what verify orders and disassemble
// prints.
#pragma once

#include <vector>

#include "program/program.h"

namespace weft {

/// A rectangle of a buffer. Rows and columns are the buffer's elements, except in a KV buffer
/// (Space::kv), where rows are the step's tokens and columns are KV heads, and in the partials of
/// split attention, where columns are (split, KV head) pairs.
struct Access {
  BufferId buffer = kNone;
  Range rows;
  Range columns;
  bool write = false;
  bool earlier = false;  ///< of a KV buffer: a read of what earlier steps wrote there, alone
};

/// Accesses of an instruction in a step of program.rows tokens, reads before writes.
std::vector<Access> accesses_of(const Program& program, const Instruction& instruction);

}  // namespace weft

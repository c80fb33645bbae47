// A program in readable form, for `weft inspect --program`.
#pragma once

#include <string>

#include "program/program.h"

namespace weft {

/// One instruction on one line: what, tile, operands, waits, signal.
std::string disassemble(const Program& program, const Instruction& instruction);

/// The whole program: buffers, then each worker's instructions with their bytes and flops for a
/// step of `rows` tokens whose first is at `position`, then the sums. `max_layers`: layers printed
/// in full (the others are alike); negative: all.
std::string disassemble(const Program& program, const Weights& weights, int64_t rows,
                        int64_t position, int64_t max_layers);

}  // namespace weft

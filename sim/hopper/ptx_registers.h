// Registers share room: PTX has a register for nearly every result, tens of thousands of them, of
// which few are needed at the same time.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "sim/hopper/ptx_program.h"

namespace weft::ptx {

/// How an instruction uses one of its slots.
struct SlotUse {
  uint8_t bytes = 0;  ///< of a lane; 0: a predicate
  bool read = false;
  bool written = false;
};
using SlotUses = std::deque<std::vector<SlotUse>>;  ///< by instruction, beside Program::slots

/// Gives the registers of a function new places in its frame, from frame::kRegisters on: registers
/// of the same width share one when no thread needs both. Returns the bytes of all.
uint32_t share_registers(Program& program, const Function& function, const SlotUses& uses);

}  // namespace weft::ptx

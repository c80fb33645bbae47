// Which bytes of registers mean something. Compilers put halves and bytes together in registers
// that nobody wrote before, by instructions that move bytes or mask them: their results mean
// something byte by byte. Everything else that is done with a register takes it as a whole.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

/// Of each byte of a register, the lanes in which it means something.
using KnownBytes = std::array<uint64_t, 4>;

/// What is known of vector register `index`.
KnownBytes known_bytes(const WaveChecks& checks, int index);
/// Of an instruction's result, one register; nullopt: it does not move bytes.
std::optional<KnownBytes> result_bytes(const Wave& wave, const Instruction& instruction);
/// Bit k: source operand n contributes its byte k to what the instruction does.
uint32_t bytes_read(const Instruction& instruction, int n);
/// Notes what an instruction made of a register in these lanes.
void set_known_bytes(WaveChecks& checks, int index, uint64_t lanes, const KnownBytes& known);

}  // namespace weft::sim

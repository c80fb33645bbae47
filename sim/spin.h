// Loops that wait: a wave reads a word until another wave has changed it.
#pragma once

#include <span>

#include "sim/instruction.h"

namespace weft::sim {

/// Marks the reads of LDS that spin (Instruction::spins), from the code alone, because a wave may
/// find what it waits for at once. A read spins in the innermost loop around it if
///
/// - the loop stores nothing but to the wave's own stack, meets no barrier and calls nothing;
/// - the read's address is the same in every turn;
/// - the value read decides a branch of the loop, together with nothing that the loop changes,
///
/// and so does the same read before such a loop when its value decides whether the loop is entered
/// (compilers take the first turn out, with the address in a register of its own). These are the
/// conditions of Jannesari and Tichy, "Identifying Ad-hoc Synchronization for Enhanced Race
/// Detection" (IPDPS 2010). Loops are backward branches, with their code in one piece. Flat stores
/// count as the stack's, where unoptimised code has its variables.
///
/// A flat load with one of sc0 and sc1 needs no loop: compilers mark atomic loads of a workgroup's
/// or the device's scope so, and volatile ones with both (LLVM, "Memory Model GFX942"). True: some
/// read spins.
bool mark_spins(std::span<Instruction> code);

}  // namespace weft::sim

// Wait states that a program must leave between two instructions because the hardware does not wait
// by itself. Sources: AMD Instinct MI300 (CDNA3) and CDNA4 Instruction Set Architecture, sections
// 4.5 (manually inserted wait states) and 7.5 (required independent instructions), and LLVM 22
// (GCNHazardRecognizer.cpp), whose programs are known to run: where they differ, a rule asks for
// the fewer states.
//
// A wait state is any instruction in between; s_nop n is n + 1 of them. A wave waits for itself
// alone, so all is found in the code, before anything runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace weft::sim {

class Code;

/// Two instructions too close to each other on some path through the code.
struct Hazard {
  uint32_t first = 0;   ///< ordinals in the code
  uint32_t second = 0;  ///< the one that comes too early
  int needed = 0;       ///< wait states between them
  int present = 0;
  std::string_view rule;  ///< what the two do
};

/// All pairs, ordered by the second's ordinal; of several rules that a pair breaks the one that
/// lacks most. Paths follow both sides of a branch; they end where the next address is in
/// registers.
std::vector<Hazard> find_hazards(const Code& code);
/// What Hazard::rule can be.
std::vector<std::string_view> hazard_rules();

}  // namespace weft::sim

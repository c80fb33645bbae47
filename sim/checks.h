// The sanitizer: what each wave has written, what it waits for, and who touched which word of LDS.
// Clocks: a wave's clock of another wave says up to which of its steps everything happened before.
// Barriers join all clocks of a workgroup; LDS atomics join those of the waves that meet at a word.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <deque>
#include <vector>

#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

inline constexpr int kMaxWaves = 16;
using Clock = std::array<uint32_t, kMaxWaves>;

/// An operation that was issued and not yet waited for.
struct Outstanding {
  int first = -1;  ///< register that it writes; -1: none
  int words = 0;
  bool scalar = false;
  bool any_order = false;
  uint32_t ordinal = 0;
  std::vector<uint32_t> lds_words;  ///< that it writes
};

struct WaveChecks {
  std::array<uint64_t, kVectorRegisters> written{};  ///< lanes
  std::array<uint8_t, kVectorRegisters> pending{};   ///< outstanding operations that write it
  std::bitset<128> scalar_written;
  std::array<uint8_t, 128> scalar_pending{};
  std::deque<Outstanding> vm;
  std::deque<Outstanding> lgkm;
  std::vector<uint32_t> lds_words;  ///< of the instruction being executed
  Clock clock{};
};

/// Before an instruction: are its sources there?
void check_sources(Wave& wave, const Instruction& instruction);
/// After it: what did it write?
void note_results(Wave& wave, const Instruction& instruction);
/// All waves of a workgroup met.
void note_barrier(Workgroup& group);

}  // namespace weft::sim

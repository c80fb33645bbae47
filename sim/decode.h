// From assembler text to instructions. LLVM's printer is the one description of every encoding;
// what it prints is regular enough to be read back, which saves a second copy of the encodings.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "sim/disassembler.h"
#include "sim/instruction.h"

namespace weft::sim {

/// The instructions of a code object's text, in the order of their addresses.
class Code {
 public:
  /// `text`: machine code at `address`. What cannot be decoded becomes an instruction that stops
  /// the run when it is reached, because text holds padding and data, too.
  static Result<Code> decode(std::span<const std::byte> text, uint64_t address, Target target);

  std::span<const Instruction> instructions() const { return instructions_; }
  /// nullptr: no instruction begins there.
  const Instruction* at(uint64_t address) const;
  /// As LLVM prints it; ".long 0x..." where it decodes nothing.
  const std::string& text(const Instruction& instruction) const {
    return lines_[instruction.ordinal].text;
  }
  /// Why an instruction without a row cannot be executed: it is none, one of another target, or one
  /// that the simulator leaves out.
  std::string why_unknown(const Instruction& instruction) const;
  Target target() const { return target_; }
  /// Some read of LDS spins (sim/spin.h).
  bool spins() const { return spins_; }

 private:
  friend class Decoder;
  Target target_ = Target::gfx942;
  bool spins_ = false;
  uint64_t address_ = 0;
  std::vector<std::byte> bytes_;
  std::vector<AssemblerLine> lines_;
  std::vector<Instruction> instructions_;
  std::vector<int32_t> by_word_;  ///< ordinal of the instruction at each 4 bytes; -1: none
  /// Constants, each repeated for 64 lanes, low word before high.
  std::unordered_map<uint64_t, std::unique_ptr<uint32_t[]>> constants_;
};

}  // namespace weft::sim

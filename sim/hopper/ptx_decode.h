// From an instruction's text to the function that executes it. Each family of instructions says
// which opcodes it knows.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/hopper/ptx_program.h"

namespace weft::ptx {

/// An operand as the parser has understood it.
struct Operand {
  enum class Kind : uint8_t { none, reg, immediate, symbol, vector, special, label };
  enum class Literal : uint8_t { integer, f32, f64 };

  Kind kind = Kind::none;
  bool address = false;   ///< in brackets
  bool inverted = false;  ///< !p
  bool piped = false;     ///< a vector written a|p: its second element is a predicate
  Literal literal = Literal::integer;
  uint8_t bytes = 0;  ///< of a register's lane: 4, 8, 16; 0: predicate
  Slot slot;          ///< of a register, or of what a symbol is relative to
  uint64_t bits = 0;  ///< of an immediate
  int64_t displacement = 0;
  std::string_view text;
  std::vector<Operand> elements;  ///< of a vector; an address's coordinates
};

/// An opcode's words, an instruction's operands.
struct Statement {
  std::string_view opcode;
  std::vector<std::string_view> words;
  std::vector<Operand> operands;

  bool has(std::string_view word) const {
    for (const std::string_view w : words) {
      if (w == word) {
        return true;
      }
    }
    return false;
  }
};

/// How an instruction is executed. `layout` has a letter an operand, a capital for what is written:
/// p a predicate, w 4 bytes a lane, d 8, q 16, m any register (loads, stores, conversions), a an
/// address in brackets, s an address as a value (a register or a symbol), l a label or function, V
/// 4 bytes that are read and written. A vector's elements have the same; what is written may be
/// `_`. Trailing operands may be absent behind `?`.
struct Form {
  Handler run = nullptr;
  std::string_view layout = {};
  uint32_t modifier = 0;
  uint8_t bytes = 0;
  uint8_t flags = 0;
  Flow flow = Flow::on;
};

/// Instruction::flags: an operand is a predicate to be inverted.
constexpr uint8_t kInverted = 0x80;

using Found = std::optional<Form>;
Found find_integer(const Statement& statement);
Found find_float(const Statement& statement);
Found find_compare(const Statement& statement);
Found find_convert(const Statement& statement);
Found find_memory(const Statement& statement);
Found find_control(const Statement& statement);
Found find_warp(const Statement& statement);
Found find_async(const Statement& statement);
Found find_matrix(const Statement& statement);
Found find_tiles(const Statement& statement);

/// mov of a special register (%tid.x, %clock64, ...); null: there is none of that name.
Handler special_register(std::string_view name);

}  // namespace weft::ptx

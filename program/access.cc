#include "program/access.h"

#include "base/divide.h"
#include "program/operands.h"

namespace weft {
namespace {

/// Rows and columns of an operand that an instruction touches.
class Places {
 public:
  Places(const Program& program, const Operation& operation, const Instruction& instruction)
      : program_(program),
        instruction_(instruction),
        own_(operation.rows == Rows::last ? Range{program.rows - 1, program.rows}
                                          : instruction.rows) {}

  Range rows(const Operand& operand) const {
    const bool apart = program_.sequences > 1;  // each row is a sequence's own
    switch (operand.rows) {
      case Operand::Rows::seen:
        return apart ? own_ : Range{0, program_.rows};
      case Operand::Rows::next:
        return apart ? own_ : Range{0, 1};
      case Operand::Rows::fixed:
        return {operand.row, operand.row + 1};
      case Operand::Rows::earlier:
      case Operand::Rows::own:
        break;
    }
    // A buffer of one row holds the row that matters, whichever it is.
    const auto index = static_cast<size_t>(operand.buffer);
    const int64_t each = operand.rows_each;
    const bool known = operand.buffer >= 0 && index < program_.buffers.size();
    const bool one =
        known && program_.buffers[index].rows == each && program_.buffers[index].space != Space::kv;
    return one ? Range{0, each} : Range{own_.begin * each, own_.end * each};
  }
  Range columns(const Operand& operand) const {
    const Range tile = instruction_.tile;
    switch (operand.columns) {
      case Operand::Columns::tile:
        return {tile.begin * operand.size, tile.end * operand.size};
      case Operand::Columns::split: {
        const int64_t first = instruction_.split * operand.size;
        return {first + tile.begin, first + tile.end};
      }
      case Operand::Columns::heads:
        return {tile.begin / operand.size * operand.each,
                ceil_div(tile.end, operand.size) * operand.each};
      case Operand::Columns::whole:
        break;
    }
    return {0, operand.size};
  }

 private:
  const Program& program_;
  const Instruction& instruction_;
  Range own_;
};

}  // namespace

std::vector<Access> accesses_of(const Program& program, const Instruction& instruction) {
  const Operation& operation = program.operations[static_cast<size_t>(instruction.operation)];
  const Places places(program, operation, instruction);
  std::vector<Access> accesses;
  for (const Operand& operand : operands_of(operation)) {
    if ((!operand.first_split_only || instruction.split == 0) &&
        (!operand.first_tile_only || instruction.tile.begin == 0)) {
      accesses.push_back({operand.buffer, places.rows(operand), places.columns(operand),
                          operand.written, operand.rows == Operand::Rows::earlier});
    }
  }
  return accesses;
}

}  // namespace weft

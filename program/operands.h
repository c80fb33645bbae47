// What each operation reads and writes, declared once: its buffers and weights by name, and how an
// instruction's tile maps to their rows and columns. Access, verifier, disassembler, costs and
// lowering follow from it.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "program/program.h"

namespace weft {

/// A buffer of an operation. One that is read and written is two operands.
struct Operand {
  /// Which rows of it an instruction touches.
  enum class Rows : uint8_t {
    own,      ///< the instruction's
    seen,     ///< of a cache: those of the step's tokens that its rows may see
    earlier,  ///< of a cache: those that earlier steps wrote for its rows
    next,     ///< of the sequences' state: the next step's
    fixed,    ///< `row`, whatever the instruction
  };
  /// Which columns.
  enum class Columns : uint8_t {
    whole,  ///< [0, size)
    tile,   ///< the instruction's tile, `size` columns for each of its parts
    split,  ///< of attention's partials: (split, KV head) pairs, of `size` KV heads
    heads,  ///< `each` of every head that the tile, of columns, has some of the `size` of
  };
  std::string_view name;
  BufferId buffer = kNone;  ///< never kNone
  bool written = false;
  Rows rows = Rows::own;
  Columns columns = Columns::whole;
  int64_t size = 0;
  int64_t each = 0;
  int64_t row = 0;
  int64_t rows_each = 1;          ///< of the buffer, for each of the instruction's
  bool first_split_only = false;  ///< of attention: see operands.cc
  bool first_tile_only = false;   ///< likewise
};

/// A weight of an operation that is there.
struct WeightOperand {
  /// How much of it an instruction reads, in rows of a matrix or elements of a vector.
  enum class Part : uint8_t {
    rows,   ///< one for each of the instruction's rows: the embedding
    tile,   ///< the instruction's tile
    whole,  ///< all
  };
  std::string_view name;
  WeightRef ref;
  Part part = Part::whole;
  int64_t experts = 1;    ///< so many follow one another
  int64_t chosen = 1;     ///< of them for each row
  int64_t slots = 1;      ///< that a tile counts columns through (ExpertsUpOp::flat)
  int64_t rows_each = 1;  ///< rows of it for each part of the instruction's tile
  bool column = false;    ///< of each of those rows an element alone
};

/// Of a layer's experts, what share rows that draw `chosen` of them at random have in the mean.
double drawn_share(int64_t chosen, int64_t experts, int64_t rows);

/// Reads before writes.
std::vector<Operand> operands_of(const Operation& operation);
std::vector<WeightOperand> weights_of(const Operation& operation);

}  // namespace weft

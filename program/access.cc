#include "program/access.h"

#include <utility>

namespace weft {
namespace {

class Collector {
 public:
  Collector(const Program& program, const Instruction& instruction)
      : program_(program),
        tile_(instruction.tile),
        split_(instruction.split),
        rows_(operation_of(program, instruction).rows == Rows::last
                  ? Range{program.rows - 1, program.rows}
                  : instruction.rows) {}

  void operator()(const EmbedOp& op) {
    read(op.tokens, {0, 1});
    write(op.out, {0, op.columns});
    write(op.copy, {0, op.columns});
  }
  void operator()(const RopeAnglesOp& op) {
    read(op.positions, {0, 1});
    add(op.inverse_frequencies, {op.rope, op.rope + 1}, {0, op.half}, false);
    write(op.cosines, {0, op.half});
    write(op.sines, {0, op.half});
  }
  void operator()(const RmsNormOp& op) {
    const Range columns = scaled(tile_, op.columns);
    read(op.x, columns);
    read(op.residual, columns);
    write(op.residual, columns);
    write(op.out, columns);
  }
  void operator()(const LayerNormOp& op) {
    read(op.x, {0, op.columns});
    write(op.out, {0, op.columns});
  }
  void operator()(const LinearOp& op) {
    read(op.a, {0, op.k});
    if (op.accumulate) {
      read(op.out, tile_);
    }
    write(op.out, tile_);
  }
  void operator()(const GatedLinearOp& op) {
    read(op.a, {0, op.k});
    write(op.out, tile_);
  }
  void operator()(const RopeAppendOp& op) {
    const Range queries = scaled(tile_, op.query_heads / op.kv_heads * op.head_dim);
    const Range pairs = scaled(tile_, op.head_dim);
    read(op.positions, {0, 1});
    read(op.cosines, {0, (op.head_dim - op.unturned) / 2});
    read(op.sines, {0, (op.head_dim - op.unturned) / 2});
    read(op.q, queries);
    read(op.k, pairs);
    read(op.v, pairs);
    write(op.q_out, queries);
    write(op.keys, tile_);
    write(op.values, tile_);
  }
  void operator()(const AttentionOp& op) {
    const Range queries = scaled(tile_, op.query_heads / op.kv_heads * op.head_dim);
    read(op.positions, {0, 1});
    if (op.k != kNone) {
      const Range pairs = scaled(tile_, op.head_dim);
      const bool whole = op.query_norm.present && op.whole_norm;
      read(op.q, whole ? Range{0, op.query_heads * op.head_dim} : queries);
      read(op.cosines, {0, (op.head_dim - op.unturned) / 2});
      read(op.sines, {0, (op.head_dim - op.unturned) / 2});
      // Which split has the step's own row depends on the position; one has it. Let it be split 0.
      if (split_ == 0) {
        read(op.k, whole ? Range{0, op.kv_heads * op.head_dim} : pairs);
        read(op.v, pairs);
        write(op.keys, tile_);
        write(op.values, tile_);
      }
      write(op.partials, {split_ * op.kv_heads + tile_.begin, split_ * op.kv_heads + tile_.end});
      return;
    }
    read(op.q, queries);
    const Range seen = program_.sequences > 1 ? rows_ : Range{0, program_.rows};
    add(op.keys, seen, tile_, false);
    add(op.values, seen, tile_, false);
    if (op.partials == kNone) {
      write(op.out, queries);
    } else {
      write(op.partials, {split_ * op.kv_heads + tile_.begin, split_ * op.kv_heads + tile_.end});
    }
  }
  void operator()(const AttentionCombineOp& op) {
    read(op.attention.positions, {0, 1});
    read(op.attention.partials, {0, op.attention.splits * op.attention.kv_heads});
    write(op.attention.out, scaled(tile_, op.attention.head_dim));
  }
  void operator()(const SampleOp& op) {
    read(op.logits, {0, op.vocabulary});
    add(op.positions, rows_, {0, 1}, false);
    const Range next = program_.sequences > 1 ? rows_ : Range{0, 1};  // of the next step
    add(op.tokens, next, {0, 1}, true);
    add(op.positions, next, {0, 1}, true);
  }

  std::vector<Access> take() { return std::move(accesses_); }

 private:
  static const Operation& operation_of(const Program& program, const Instruction& instruction) {
    return program.operations[static_cast<size_t>(instruction.operation)];
  }
  static Range scaled(Range range, int64_t by) { return {range.begin * by, range.end * by}; }

  void read(BufferId buffer, Range columns) { add(buffer, rows_of(buffer), columns, false); }
  void write(BufferId buffer, Range columns) { add(buffer, rows_of(buffer), columns, true); }
  void add(BufferId buffer, Range rows, Range columns, bool write) {
    if (buffer != kNone) {
      accesses_.push_back({buffer, rows, columns, write});
    }
  }
  /// A buffer of one row holds the row that matters, whichever it is.
  Range rows_of(BufferId buffer) const {
    if (buffer == kNone) {
      return {};
    }
    const Buffer& b = program_.buffers[static_cast<size_t>(buffer)];
    return b.rows == 1 && b.space != Space::kv ? Range{0, 1} : rows_;
  }

  const Program& program_;
  Range tile_;
  int64_t split_;
  Range rows_;
  std::vector<Access> accesses_;
};

}  // namespace

std::vector<Access> accesses_of(const Program& program, const Instruction& instruction) {
  Collector collector(program, instruction);
  std::visit(collector, program.operations[static_cast<size_t>(instruction.operation)].body);
  return collector.take();
}

}  // namespace weft

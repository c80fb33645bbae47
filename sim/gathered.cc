// Rows of the instructions whose arithmetic lies in sim/matrix.h and sim/convert.h: operands are
// gathered as those functions want them.
#include <array>
#include <cstring>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "sim/convert.h"
#include "sim/dpp.h"
#include "sim/instruction.h"
#include "sim/matrix.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

/// An operand's registers; a constant or scalar is repeated in `tmp`.
const Lanes* registers(Wave& w, const Operand& o, int count, Lanes* tmp) {
  if (o.kind == Operand::Kind::vgpr) {
    return reinterpret_cast<const Lanes*>(w.lanes(o.index));
  }
  const uint64_t value = w.read64(o);
  const bool wide = o.type == Type::f64;
  for (int k = 0; k < count; ++k) {
    const auto word = static_cast<uint32_t>(wide && k % 2 == 1 ? value >> 32 : value);
    for (uint32_t& lane : tmp[k]) {
      lane = word;
    }
  }
  return tmp;
}

void matrix(Wave& w, const Instruction& i) {
  const MatrixOp& op = *i.matrix;
  alignas(64) Lanes scales[2];
  MatrixOperands operands{};
  operands.d = reinterpret_cast<Lanes*>(w.lanes(i.operand[0].index));
  operands.a = reinterpret_cast<const Lanes*>(w.lanes(i.operand[1].index));
  operands.b = reinterpret_cast<const Lanes*>(w.lanes(i.operand[2].index));
  operands.cbsz = i.cbsz;
  operands.abid = i.abid;
  operands.blgp = i.blgp;
  if (op.sparse) {
    operands.c = operands.d;
    operands.index = reinterpret_cast<const Lanes*>(w.lanes(i.operand[3].index));
    op.run(operands, w.group->launch->target);
    return;
  }
  if (op.scaled && i.operands > 5) {
    operands.scale_a = registers(w, i.operand[4], 1, &scales[0]);
    operands.scale_b = registers(w, i.operand[5], 1, &scales[1]);
    operands.op_sel_a = static_cast<uint8_t>((i.op_sel & 1) | (i.op_sel_hi & 1) << 1);
    operands.op_sel_b = static_cast<uint8_t>((i.op_sel >> 1 & 1) | (i.op_sel_hi & 2));
  }
  if (i.operand[3].kind == Operand::Kind::vgpr) {
    operands.c = reinterpret_cast<const Lanes*>(w.lanes(i.operand[3].index));
    op.run(operands, w.group->launch->target);
  } else {
    alignas(64) Lanes constant[32];
    operands.c = registers(w, i.operand[3], op.d_regs, constant);
    op.run(operands, w.group->launch->target);
  }
}

/// SDWA's choice of a byte or half, then abs and neg.
void modify(const Operand& o, Lanes* values, int count) {
  const int shift = o.select < 4 ? 8 * o.select : o.select == 5 ? 16 : 0;
  const uint32_t keep = o.select < 4 ? 0xff : o.select < 6 ? 0xffff : 0xffffffff;
  for (int k = 0; k < count; ++k) {
    for (uint32_t& lane : values[k]) {
      lane = lane >> shift & keep;
      lane = (o.absolute ? lane & 0x7fffffff : lane) ^ (o.negate ? 0x80000000 : 0);
    }
  }
}

/// DPP: each lane's source from another lane; 0 where there is none.
void permute(const Wave& w, const Instruction& i, const Lanes* from, Lanes* to, int count) {
  int source[kLanes];
  dpp_lanes(i, source);
  const uint64_t exec = w.exec();
  for (int k = 0; k < count; ++k) {
    Lanes moved;
    for (int l = 0; l < kLanes; ++l) {
      const bool there = source[l] >= 0 && (exec >> source[l] & 1) != 0;
      moved[l] = there ? from[k][source[l]] : 0;
    }
    std::memcpy(to[k], moved, sizeof moved);
  }
}

void convert(Wave& w, const Instruction& i) {
  const ConvertOp& op = *i.convert;
  alignas(64) Lanes result[32];
  alignas(64) Lanes sources[3][32];
  uint32_t* to = w.lanes(i.operand[0].index);
  std::memcpy(result, to, sizeof(Lanes) * op.d_regs);
  ConvertOperands operands{};
  operands.d = result;
  for (int k = 0; k < 3 && op.src_regs[k] != 0; ++k) {
    const Operand& o = i.operand[1 + k];
    const Lanes* p = registers(w, o, op.src_regs[k], sources[k]);
    if (k == 0 && i.dpp != Dpp::none) {
      permute(w, i, p, sources[k], op.src_regs[k]);
      p = sources[k];
    }
    if (o.select != 6 || o.absolute || o.negate) {
      std::memmove(sources[k], p, sizeof(Lanes) * op.src_regs[k]);
      modify(o, sources[k], op.src_regs[k]);
      p = sources[k];
    }
    operands.src[k] = p;
  }
  const bool vop3 = i.word >> 26 == 0b110100;
  operands.op_sel = static_cast<uint8_t>(vop3 ? i.word >> 11 & 15 : 0);
  operands.fp16_ovfl = (w.mode >> 23 & 1) != 0;
  op.run(operands, w.group->launch->target);
  if (i.destination_select != 6) {
    select_destination(i, to, result[0]);
  }
  const uint64_t mask = write_mask(w, i);
  for (int k = 0; k < op.d_regs; ++k) {
    for (int l = 0; l < kLanes; ++l) {
      if ((mask >> l & 1) != 0) {
        to[k * kLanes + l] = result[k][l];
      }
    }
  }
}

/// Rows made on demand; they live as long as the program.
class MadeRows {
 public:
  template <class Make>
  const Row* get(const void* key, Make make) {
    const std::lock_guard lock(mutex_);
    const auto found = by_key_.find(key);
    if (found != by_key_.end()) {
      return found->second;
    }
    return by_key_[key] = &rows_.emplace_back(make());
  }

 private:
  std::mutex mutex_;
  std::deque<Row> rows_;
  std::unordered_map<const void*, const Row*> by_key_;
};
MadeRows& made_rows() {
  static MadeRows rows;
  return rows;
}

Type registers_type(int count) {
  switch (count) {
    case 1:
      return Type::b32;
    case 2:
      return Type::b64;
    default:
      return Type::any;
  }
}

}  // namespace

const Row* find_matrix_row(const MatrixOp& op) {
  return made_rows().get(&op, [&] {
    const bool wide = op.name.find("_f64_") != std::string_view::npos;
    Row row{.name = op.name, .run = &matrix, .cost = Class::mfma};
    row.types[0] = row.types[1] = row.types[2] = Type::any;
    row.types[3] = op.sparse ? Type::b32 : wide ? Type::f64 : Type::any;
    if (op.scaled) {
      row.types[4] = row.types[5] = Type::b32;
    }
    row.reads_result = op.sparse ? 1 : 0;
    row.flags = kIgnoresExec;
    return row;
  });
}

const Row* find_convert_row(const ConvertOp& op) {
  return made_rows().get(&op, [&] {
    Row row{.name = op.name, .run = &convert};
    row.types[0] = registers_type(op.d_regs);
    for (int k = 0; k < 3; ++k) {
      row.types[1 + k] = op.src_regs[k] == 0   ? Type::none
                         : op.src_regs[k] == 1 ? Type::f32
                                               : registers_type(op.src_regs[k]);
    }
    if (row.types[1] == Type::f32) {  // the name ends with what is converted
      row.types[1] = op.name.ends_with("_bf16")  ? Type::bf16
                     : op.name.ends_with("_f16") ? Type::f16
                                                 : Type::f32;
    }
    return row;
  });
}

}  // namespace weft::sim

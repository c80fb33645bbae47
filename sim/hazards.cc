#include "sim/hazards.h"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "arch/cdna/matrix_layout.h"
#include "sim/decode.h"
#include "sim/instruction.h"
#include "sim/matrix.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

/// What the rules call instructions, as bits. Vector arithmetic is exactly one of the first three,
/// a matrix instruction exactly one of the next four.
enum Kind : uint32_t {
  kPlain = 1 << 0,
  kTrans = 1 << 1,  ///< exp, log, rcp, rsq, sqrt, sin, cos
  kDot = 1 << 2,
  kXdl = 1 << 3,      ///< matrices of formats below 32 bits, and xf32
  kSgemm = 1 << 4,    ///< of f32
  kDgemm4 = 1 << 5,   ///< of f64, 4 x 4
  kDgemm16 = 1 << 6,  ///< of f64, 16 x 16
  kVmem = 1 << 7,     ///< buffer, flat, global, scratch
  kLds = 1 << 8,
  kSalu = 1 << 9,
  kSetreg = 1 << 10,
  kGetreg = 1 << 11,
  kTakesM0 = 1 << 12,
  kDpp = 1 << 13,
  kPermlane = 1 << 14,
  kLane = 1 << 15,      ///< v_readlane, v_readfirstlane, v_writelane
  kReadlane = 1 << 16,  ///< the first two
  kDivFmas = 1 << 17,
  kFma64 = 1 << 18,
  kCmpx = 1 << 19,
  kMoved = 1 << 20,  ///< its result is not where it was computed: SDWA, op_sel
  kValu = kPlain | kTrans | kDot,
  kMatrix = kXdl | kSgemm | kDgemm4 | kDgemm16,
  kMemory = kVmem | kLds,
};

/// What an instruction does with registers, as bits.
enum Use : uint8_t {
  kNoMatter = 0,
  kWrites = 1,
  kReads = 2,        ///< as a value, an address, or A or B of a matrix or dot product
  kAddend = 4,       ///< as C of a matrix or dot product
  kMask = 8,         ///< as carries or as what a lane chooses
  kLaneSelect = 16,  ///< as the number of a lane
  kZeroFlag = 32,    ///< VCCZ and EXECZ as values
  kStores = 64,      ///< writes more than two words of each lane to memory
};

/// Registers in one order: vector ones, scalar ones as encoded, hardware ones.
constexpr int kScalar = kVectorRegisters;
constexpr int kHardware = kScalar + 128;
struct Registers {
  int first;
  int words;
};
constexpr Registers kVgprs = {0, kVectorRegisters};
constexpr Registers kSgprs = {kScalar, 128};
constexpr Registers kVccOnly = {kScalar + kVcc, 2};
constexpr Registers kExecOnly = {kScalar + kExec, 2};
constexpr Registers kM0Only = {kScalar + kM0, 1};
constexpr Registers kHardwareRegisters = {kHardware, 64};

/// Which registers of the first and the second have to meet.
enum class Meet : uint8_t { overlap, same, partly };
/// Whether the two must have one mnemonic.
enum class Names : uint8_t { any, equal, different };

/// Wait states by the passes of the first instruction: 2, 4, 8, 16.
using States = std::array<uint8_t, 4>;
constexpr States always(int n) {
  const auto states = static_cast<uint8_t>(n);
  return {states, states, states, states};
}

struct Rule {
  std::string_view text;
  uint32_t first;     ///< any of these kinds
  uint8_t first_use;  ///< does any of these
  uint32_t second;
  uint8_t second_use;
  Registers registers;  ///< with registers among these
  States gfx942;
  States gfx950;
  Meet meet = Meet::overlap;
  Names names = Names::any;
};

constexpr States kNone = always(0);
// Until a result of a matrix instruction of small formats is in its registers; and of one of f32.
constexpr States kXdlDone942 = {5, 7, 11, 19};
constexpr States kXdlDone950 = {5, 8, 12, 19};  // LLVM 22 wants 20 but looks back over 19
constexpr States kSgemmDone = {4, 6, 10, 18};

constexpr Rule kRules[] = {
    // Section 4.5, in its order. Left out: what concerns VSKIP and traps, which do not exist here;
    // VCC under its number, which the text does not show; stores and loads to their data, which
    // compilers do not keep apart.
    {"s_setreg, then s_getreg of the same register", kSetreg, kWrites, kGetreg, kReads,
     kHardwareRegisters, always(2), always(2)},
    {"s_setreg, then s_setreg of the same register", kSetreg, kWrites, kSetreg, kWrites,
     kHardwareRegisters, always(2), always(2)},
    {"a vector instruction sets VCC or EXEC, then one reads VCCZ or EXECZ", kValu, kWrites, kValu,
     kZeroFlag, kSgprs, always(5), always(5)},
    {"a vector instruction writes the SGPR that selects a lane", kValu, kWrites, kLane, kLaneSelect,
     kSgprs, always(4), always(4)},
    {"a vector instruction writes VCC, then v_div_fmas", kValu, kWrites, kDivFmas, kMask, kVccOnly,
     always(4), always(4)},
    {"a vector instruction overwrites what a store of more than two words takes", kVmem, kStores,
     kValu, kWrites, kVgprs, always(2), always(2)},
    {"a vector instruction writes an SGPR that a memory instruction reads", kValu, kWrites, kVmem,
     kReads, kSgprs, always(5), always(5)},
    {"M0 is written before what takes it", kSalu, kWrites, kTakesM0, kReads, kM0Only, always(1),
     always(1)},
    {"a vector instruction writes a register that DPP reads", kValu, kWrites, kDpp, kReads, kVgprs,
     always(2), always(2)},
    {"a vector instruction writes EXEC, then DPP", kValu, kWrites, kDpp, kNoMatter, kExecOnly,
     always(5), always(5)},
    {"a vector instruction writes an SGPR that another reads as a value", kValu, kWrites, kValu,
     kReads, kSgprs, always(2), always(2)},
    {"a vector instruction writes EXEC, then v_readlane, v_readfirstlane or v_writelane", kValu,
     kWrites, kLane, kNoMatter, kExecOnly, always(4), always(4)},
    {"a vector instruction writes a register that v_readlane or v_readfirstlane reads", kValu,
     kWrites, kReadlane, kReads, kVgprs, always(1), always(1)},
    {"SDWA or op_sel moves a result that the next vector instruction reads", kMoved, kWrites, kValu,
     kReads | kAddend, kVgprs, always(1), always(1)},
    {"a transcendental result is read by another kind of vector instruction", kTrans, kWrites,
     kPlain | kDot, kReads | kAddend, kVgprs, always(1), always(1)},
    {"v_cmpx, then v_permlane", kCmpx, kWrites, kPermlane, kNoMatter, kExecOnly, kNone, always(4)},
    {"a vector instruction writes a register that v_permlane reads", kValu, kWrites, kPermlane,
     kReads, kVgprs, kNone, always(2)},

    // Section 7.5. Not asked for, because LLVM does not keep them apart: f32 matrices from the C of
    // other formats, dot products from matrices.
    {"a vector instruction writes a register that a matrix instruction reads", kPlain | kTrans,
     kWrites, kMatrix, kReads | kAddend, kVgprs, always(2), always(2)},
    {"v_cmpx, then a matrix instruction", kCmpx, kWrites, kMatrix, kNoMatter, kExecOnly, always(4),
     always(4)},
    {"a dot product is a factor of the next of its kind", kDot, kWrites, kDot, kReads, kVgprs,
     always(3), always(3), Meet::overlap, Names::equal},
    {"a dot product is read by another instruction", kDot, kWrites, kValu, kReads | kAddend, kVgprs,
     always(3), always(3), Meet::overlap, Names::different},
    {"a dot product is read by a memory instruction", kDot, kWrites, kMemory, kReads, kVgprs,
     always(3), always(3)},
    {"a dot product is overwritten by another instruction", kDot, kWrites, kValu, kWrites, kVgprs,
     always(3), always(3), Meet::overlap, Names::different},

    {"a matrix is the C of the next",
     kXdl,
     kWrites,
     kXdl,
     kAddend,
     kVgprs,
     {2, 0, 0, 0},
     {2, 0, 0, 0},
     Meet::same},
    {"a matrix overlaps the C of the next",
     kXdl,
     kWrites,
     kXdl,
     kAddend,
     kVgprs,
     {3, 5, 9, 17},
     {4, 6, 10, 18},
     Meet::partly},
    {"a matrix overlaps the C of one of f32 or f64",
     kXdl,
     kWrites,
     kSgemm | kDgemm4 | kDgemm16,
     kAddend,
     kVgprs,
     {3, 5, 9, 17},
     {3, 6, 10, 18},
     Meet::partly},
    {"a matrix is read as A, B or indices", kXdl, kWrites, kMatrix, kReads, kVgprs, kXdlDone942,
     kXdlDone950},
    {"a matrix is read by a vector instruction", kXdl, kWrites, kValu, kReads | kAddend, kVgprs,
     kXdlDone942, kXdlDone950},
    {"a matrix is overwritten by a vector instruction", kXdl, kWrites, kValu, kWrites, kVgprs,
     kXdlDone942, kXdlDone950},
    {"a matrix is read by a memory instruction", kXdl, kWrites, kMemory, kReads, kVgprs,
     kXdlDone942, kXdlDone950},
    {"a vector instruction overwrites the C of a matrix instruction",
     kXdl,
     kAddend,
     kValu,
     kWrites,
     kVgprs,
     {1, 3, 7, 15},
     {1, 3, 7, 15}},

    {"a matrix of f32 overlaps the C of one of f32 or f64",
     kSgemm,
     kWrites,
     kSgemm | kDgemm4 | kDgemm16,
     kAddend,
     kVgprs,
     {2, 4, 8, 16},
     {2, 4, 8, 16},
     Meet::partly},
    {"a matrix of f32 is read as A, B or indices", kSgemm, kWrites, kMatrix, kReads, kVgprs,
     kSgemmDone, kSgemmDone},
    {"a matrix of f32 is read by a vector instruction", kSgemm, kWrites, kValu, kReads | kAddend,
     kVgprs, kSgemmDone, kSgemmDone},
    {"a matrix of f32 is overwritten by a vector instruction", kSgemm, kWrites, kValu, kWrites,
     kVgprs, kSgemmDone, kSgemmDone},
    {"a matrix of f32 is read by a memory instruction", kSgemm, kWrites, kMemory, kReads, kVgprs,
     kSgemmDone, kSgemmDone},

    {"a 16 x 16 matrix of f64 overlaps the C of one of f32 or f64", kDgemm16, kWrites,
     kSgemm | kDgemm4 | kDgemm16, kAddend, kVgprs, always(9), always(17), Meet::partly},
    {"a 16 x 16 matrix of f64 is read as A, B or indices", kDgemm16, kWrites, kMatrix, kReads,
     kVgprs, always(11), always(19)},
    {"a 16 x 16 matrix of f64 is read by a vector instruction", kDgemm16, kWrites, kValu,
     kReads | kAddend, kVgprs, always(11), always(19)},
    {"a 16 x 16 matrix of f64 is overwritten by a vector instruction", kDgemm16, kWrites, kValu,
     kWrites, kVgprs, always(11), always(11)},
    {"a 16 x 16 matrix of f64 is read by a memory instruction", kDgemm16, kWrites, kMemory, kReads,
     kVgprs, always(18), always(18)},
    {"a 4 x 4 matrix of f64 is the C of the next", kDgemm4, kWrites, kDgemm4, kAddend, kVgprs,
     always(4), always(4), Meet::same},
    {"a 4 x 4 matrix of f64 overlaps the C of one of f32 or f64", kDgemm4, kWrites,
     kSgemm | kDgemm4 | kDgemm16, kAddend, kVgprs, always(4), always(4), Meet::partly},
    {"a 4 x 4 matrix of f64 is read as A, B or indices", kDgemm4, kWrites, kMatrix, kReads, kVgprs,
     always(6), always(6)},
    {"a 4 x 4 matrix of f64 is read or overwritten by a vector instruction", kDgemm4, kWrites,
     kValu, kReads | kAddend | kWrites, kVgprs, always(6), always(6)},
    {"a 4 x 4 matrix of f64 is read by a memory instruction", kDgemm4, kWrites, kMemory, kReads,
     kVgprs, always(9), always(9)},
    {"a matrix instruction of f64, then a multiply-add of f64", kDgemm4 | kDgemm16, kWrites, kFma64,
     kNoMatter, kVgprs, always(2), always(2)},
};

/// Some registers of an instruction.
struct Access {
  int16_t first = 0;
  int16_t words = 0;
  uint8_t use = 0;
};

constexpr size_t kMostAccesses = 12;
/// What the rules want to know of an instruction.
struct Facts {
  uint32_t kinds = 0;
  int pass_column = 0;  ///< of States
  int states = 1;       ///< that it is between two others
  bool falls_through = true;
  int target = -1;  ///< of a branch: ordinal
  std::array<Access, kMostAccesses> accesses{};
  size_t count = 0;

  std::span<const Access> all() const { return std::span(accesses).first(count); }
  void add(int first, int words, uint8_t use) {
    if (count < kMostAccesses) {
      accesses[count++] = {static_cast<int16_t>(first), static_cast<int16_t>(words), use};
    }
  }
  void add(const Operand& o, uint8_t use) {
    if (o.kind == Operand::Kind::vgpr) {
      add(o.index, o.words, use);
    } else if (o.kind == Operand::Kind::sgpr) {
      add(kScalar + o.index, o.words, use);
    } else if (o.kind == Operand::Kind::special && o.index <= Operand::execz) {
      add(kScalar + (o.index == Operand::vccz ? kVcc : kExec), 2, kZeroFlag);
    }
  }
};

bool begins_with_any(std::string_view name, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}
bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

/// Whether a vector instruction's result is moved to other bits after it was computed.
bool moves_result(const Instruction& i) {
  const std::string_view name = i.row->name;
  const bool packed = i.word >> 23 == 0b110100111;  // VOP3P: op_sel is about sources alone
  const bool converts = name.starts_with("v_cvt_");
  // Bits of op_sel beyond the sources; conversions have the place of a byte there, from bit 2.
  const int first_bit = converts ? 2 : std::max(0, i.operands - i.results);
  return i.destination_select != 6 || (!packed && i.op_sel >> first_bit != 0) ||
         (converts && contains(name, "pk_fp4_"));  // always (LLVM: at every place)
}

uint32_t vector_kinds(const Instruction& i) {
  const std::string_view name = i.row->name;
  uint32_t kinds =
      begins_with_any(name, {"v_exp_", "v_log_", "v_rcp_", "v_rsq_", "v_sqrt_", "v_sin_", "v_cos_"})
          ? kTrans
      : name.starts_with("v_dot") ? kDot
                                  : kPlain;
  const bool reads_lane = name.starts_with("v_readlane") || name.starts_with("v_readfirstlane");
  const auto when = [&](bool is, Kind kind) { kinds |= is ? uint32_t{kind} : 0; };
  when(i.dpp != Dpp::none, kDpp);
  when(name.starts_with("v_permlane"), kPermlane);
  when(reads_lane || name.starts_with("v_writelane"), kLane);
  when(reads_lane, kReadlane);
  when(name.starts_with("v_div_fmas_"), kDivFmas);
  when(name == "v_fma_f64" || name == "v_fmac_f64", kFma64);
  when(name.starts_with("v_cmpx_"), kCmpx);
  when(moves_result(i), kMoved);
  return kinds;
}

void note_vector(const Instruction& i, Facts& facts) {
  const std::string_view name = i.row->name;
  facts.kinds = vector_kinds(i);
  const bool dot = (facts.kinds & kDot) != 0;
  const bool has_mask = begins_with_any(name, {"v_cndmask_", "v_addc_", "v_subb_", "v_subbrev_"});
  for (int k = 0; k < i.operands; ++k) {
    const bool last = k == i.operands - 1;
    uint8_t use = kReads;
    if (k < i.results) {
      const bool reads = (i.row->reads_result >> k & 1) != 0;
      use = static_cast<uint8_t>(kWrites | (reads ? (dot ? kAddend : kReads) : 0));
    } else if (has_mask && last) {
      use = kMask;
    } else if ((facts.kinds & kLane) != 0 && k == i.results + 1) {
      use = kLaneSelect;
    } else if (dot && k == i.results + 2) {
      use = kAddend;
    }
    facts.add(i.operand[k], use);
  }
  if ((facts.kinds & kCmpx) != 0) {
    facts.add(kExecOnly.first, 2, kWrites);
  }
  if ((facts.kinds & kDivFmas) != 0) {
    facts.add(kVccOnly.first, 2, kMask);
  }
}

void note_matrix(const Instruction& i, Target target, Facts& facts) {
  const cdna::MatrixInstruction& shape = *i.matrix->instruction;
  facts.kinds = shape.a == cdna::MatrixFormat::f64   ? (shape.m == 4 ? kDgemm4 : kDgemm16)
                : shape.a == cdna::MatrixFormat::f32 ? kSgemm
                                                     : kXdl;
  for (int passes = i.matrix->passes(target, i.cbsz, i.blgp); passes > 2 && facts.pass_column < 3;
       passes /= 2) {
    ++facts.pass_column;
  }
  for (int k = 0; k < i.operands; ++k) {
    uint8_t use = kReads;
    if (k == 0) {
      use = static_cast<uint8_t>(kWrites | (i.matrix->sparse ? kAddend : kNoMatter));
    } else if (k == 3 && !i.matrix->sparse) {
      use = kAddend;
    }
    facts.add(i.operand[k], use);
  }
}

void note_memory(const Instruction& i, Facts& facts) {
  const std::string_view name = i.row->name;
  const bool in_lds = i.row->cost == Class::lds;
  const bool buffer = begins_with_any(name, {"buffer_", "tbuffer_"});
  const bool stores = i.row->cost == Class::vmem_store || i.row->cost == Class::vmem_atomic;
  // A buffer's data comes first, that of others after the result and the address; with an offset in
  // a scalar register a buffer's data is read in time.
  const int data = buffer ? 0 : i.results + 1;
  const bool late = stores && !(buffer && i.operand[3].kind == Operand::Kind::sgpr);
  facts.kinds = in_lds ? kLds : kVmem;
  for (int k = 0; k < i.operands; ++k) {
    const Operand& o = i.operand[k];
    uint8_t use = k < i.results ? kWrites : kReads;
    if (stores && k == data) {
      use |= late && o.words > 2 ? kStores : 0;
      use |= buffer && i.row->cost == Class::vmem_atomic && i.sc0 ? kWrites : 0;
    }
    facts.add(o, use);
  }
  if (i.gds || i.lds || contains(name, "_addtid_") || contains(name, "_load_lds_")) {
    facts.kinds |= kTakesM0;
    facts.add(kM0Only.first, 1, kReads);
  }
}

void note_scalar(const Instruction& i, Facts& facts) {
  const std::string_view name = i.row->name;
  facts.kinds = i.row->cost == Class::salu ? uint32_t{kSalu} : 0;
  for (int k = 0; k < i.operands; ++k) {
    facts.add(i.operand[k], k < i.results ? kWrites : kReads);
  }
  if (contains(name, "saveexec") || contains(name, "wrexec")) {
    facts.add(kExecOnly.first, 2, kWrites);
  }
  const int hardware_register = kHardware + (i.offset & 63);
  if (name.starts_with("s_setreg_")) {
    facts.kinds |= kSetreg;
    facts.add(hardware_register, 1, kWrites);
  } else if (name.starts_with("s_getreg_")) {
    facts.kinds |= kGetreg;
    facts.add(hardware_register, 1, kReads);
  } else if (begins_with_any(name, {"s_movrel", "s_sendmsg"})) {
    facts.kinds |= kTakesM0;
    facts.add(kM0Only.first, 1, kReads);
  } else if (name == "s_nop") {
    facts.states = (i.offset & 15) + 1;
  } else if (begins_with_any(name, {"s_branch", "s_cbranch_"})) {
    facts.target = i.target;
    facts.falls_through = name != "s_branch";
  } else if (begins_with_any(name, {"s_endpgm", "s_setpc_", "s_swappc_", "s_call_", "s_trap"})) {
    facts.falls_through = false;
  }
}

Facts facts_of(const Instruction& i, Target target) {
  Facts facts;
  if (i.row == nullptr) {
    facts.falls_through = false;
    return facts;
  }
  switch (i.row->cost) {
    case Class::mfma:
      note_matrix(i, target, facts);
      break;
    case Class::valu:
    case Class::valu_slow:
      note_vector(i, facts);
      break;
    case Class::lds:
    case Class::vmem_load:
    case Class::vmem_store:
    case Class::vmem_atomic:
      note_memory(i, facts);
      break;
    default:
      note_scalar(i, facts);
      break;
  }
  return facts;
}

bool overlap(int first, int words, int other, int other_words) {
  return first < other + other_words && other < first + words;
}

/// Where a search has come to: what is left of the first instruction's registers, a bit for each
/// word of each access, and the wait states so far.
struct Place {
  uint32_t ordinal = 0;
  int states = 0;
  std::array<uint32_t, kMostAccesses> alive{};
};

/// Searches on from one instruction for those that come too early after it.
class Search {
 public:
  Search(const Code& code, std::span<const Facts> facts, std::vector<Hazard>& found)
      : code_(code), facts_(facts), found_(found) {}

  void from(uint32_t ordinal) {
    first_ = ordinal;
    rules_.clear();
    window_ = 0;
    const Facts& first = facts_[ordinal];
    for (const Rule& rule : kRules) {
      if ((first.kinds & rule.first) != 0 && states_of(rule) != 0 &&
          std::any_of(first.all().begin(), first.all().end(), [&](const Access& access) {
            return (access.use & rule.first_use) != 0 &&
                   overlap(access.first, access.words, rule.registers.first, rule.registers.words);
          })) {
        rules_.push_back(&rule);
        window_ = std::max(window_, states_of(rule));
      }
    }
    if (rules_.empty()) {
      return;
    }
    seen_.clear();
    places_.clear();
    Place start;
    start.alive.fill(~uint32_t{0});
    go_on(facts_[ordinal], ordinal, start);
    while (!places_.empty()) {
      const Place place = places_.back();
      places_.pop_back();
      visit(place);
    }
  }

 private:
  int states_of(const Rule& rule) const {
    const States& states = code_.target() == Target::gfx942 ? rule.gfx942 : rule.gfx950;
    return states[static_cast<size_t>(facts_[first_].pass_column)];
  }

  /// To what follows the instruction at `ordinal`.
  void go_on(const Facts& facts, uint32_t ordinal, Place place) {
    if (facts.falls_through && ordinal + 1 < facts_.size()) {
      place.ordinal = ordinal + 1;
      places_.push_back(place);
    }
    if (facts.target >= 0) {
      place.ordinal = static_cast<uint32_t>(facts.target);
      // A place where a search has been with as much left to find is not worth another.
      const bool known = std::any_of(seen_.begin(), seen_.end(), [&](const Place& seen) {
        bool covered = seen.ordinal == place.ordinal && seen.states <= place.states;
        for (size_t k = 0; k < kMostAccesses; ++k) {
          covered &= (place.alive[k] & ~seen.alive[k]) == 0;
        }
        return covered;
      });
      constexpr size_t kMostSeen = 64;
      if (!known && seen_.size() < kMostSeen) {
        seen_.push_back(place);
        places_.push_back(place);
      }
    }
  }

  void visit(Place place) {
    const Facts& second = facts_[place.ordinal];
    const Rule* worst = nullptr;
    for (const Rule* rule : rules_) {
      if (place.states < states_of(*rule) && (second.kinds & rule->second) != 0 &&
          breaks(*rule, second, place) &&
          (worst == nullptr || states_of(*rule) > states_of(*worst))) {
        worst = rule;
      }
    }
    if (worst != nullptr) {
      note({.first = first_,
            .second = place.ordinal,
            .needed = states_of(*worst),
            .present = place.states,
            .rule = worst->text});
    }
    // What is overwritten is no longer the first instruction's.
    const std::span<const Access> firsts = facts_[first_].all();
    for (const Access& access : second.all()) {
      if ((access.use & kWrites) == 0) {
        continue;
      }
      for (size_t k = 0; k < firsts.size(); ++k) {
        for (int word = 0; word < std::min<int>(firsts[k].words, 32); ++word) {
          if (overlap(firsts[k].first + word, 1, access.first, access.words)) {
            place.alive[k] &= ~(uint32_t{1} << word);
          }
        }
      }
    }
    place.states += second.states;
    if (place.states < window_) {
      go_on(second, place.ordinal, place);
    }
  }

  bool breaks(const Rule& rule, const Facts& second, const Place& place) const {
    if (rule.names != Names::any) {
      const auto instructions = code_.instructions();
      const bool equal = instructions[first_].row->name == instructions[place.ordinal].row->name;
      if (equal != (rule.names == Names::equal)) {
        return false;
      }
    }
    const std::span<const Access> firsts = facts_[first_].all();
    for (size_t k = 0; k < firsts.size(); ++k) {
      const Access& one = firsts[k];
      if ((one.use & rule.first_use) == 0 || place.alive[k] == 0 ||
          !overlap(one.first, one.words, rule.registers.first, rule.registers.words)) {
        continue;
      }
      if (rule.second_use == kNoMatter) {
        return true;
      }
      for (const Access& other : second.all()) {
        if ((other.use & rule.second_use) != 0 && meet(rule, one, place.alive[k], other)) {
          return true;
        }
      }
    }
    return false;
  }

  static bool meet(const Rule& rule, const Access& one, uint32_t alive, const Access& other) {
    const bool same = one.first == other.first && one.words == other.words;
    if (rule.meet != Meet::overlap && same != (rule.meet == Meet::same)) {
      return false;
    }
    for (int word = 0; word < std::min<int>(one.words, 32); ++word) {
      if ((alive >> word & 1) != 0 && overlap(one.first + word, 1, other.first, other.words) &&
          overlap(one.first + word, 1, rule.registers.first, rule.registers.words)) {
        return true;
      }
    }
    return false;
  }

  void note(const Hazard& hazard) {
    for (auto known = found_.rbegin(); known != found_.rend() && known->first == first_; ++known) {
      if (known->second == hazard.second) {
        if (hazard.needed - hazard.present > known->needed - known->present) {
          *known = hazard;
        }
        return;
      }
    }
    found_.push_back(hazard);
  }

  const Code& code_;
  std::span<const Facts> facts_;
  std::vector<Hazard>& found_;
  uint32_t first_ = 0;
  int window_ = 0;                  ///< the most states that a rule asks for
  std::vector<const Rule*> rules_;  ///< those that the first instruction begins
  std::vector<Place> places_;       ///< still to be looked at
  std::vector<Place> seen_;         ///< behind branches
};

}  // namespace

std::vector<Hazard> find_hazards(const Code& code) {
  const std::span<const Instruction> instructions = code.instructions();
  std::vector<Facts> facts;
  facts.reserve(instructions.size());
  for (const Instruction& i : instructions) {
    facts.push_back(facts_of(i, code.target()));
  }
  std::vector<Hazard> found;
  Search search(code, facts, found);
  for (uint32_t k = 0; k < facts.size(); ++k) {
    search.from(k);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const Hazard& a, const Hazard& b) { return a.second < b.second; });
  return found;
}

std::vector<std::string_view> hazard_rules() {
  std::vector<std::string_view> texts;
  for (const Rule& rule : kRules) {
    texts.push_back(rule.text);
  }
  return texts;
}

}  // namespace weft::sim

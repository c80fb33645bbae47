// The simulator's own form of an instruction: decoded once, then executed millions of times.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sim/target.h"

namespace weft::sim {

struct Wave;
struct Instruction;
struct MatrixOp;
struct ConvertOp;

/// Executes one instruction for all lanes of a wave.
using Execute = void (*)(Wave&, const Instruction&);

/// What an operand's bits are: how wide it is, and what a constant means in it. An inline 1.0 is
/// one in the operand's own format, in integers that of f32; whole inline numbers are sign-extended
/// to 32 bits, or to 64. So a 16-bit type is also that of a pair: the constant is the low one, and
/// the high one is what those 32 bits hold (LLVM, AMDGPUBaseInfo.cpp, getInlineEncodingV216()).
enum class Type : uint8_t {
  none,
  b8,
  b16,
  b32,
  b64,
  i64,  ///< signed: a literal, which has 32 bits, is sign-extended
  b96,
  b128,
  b256,
  b512,
  f16,
  bf16,
  f32,
  f64,
  mix,   ///< f32, or f16 where op_sel_hi says so
  pk32,  ///< two 32-bit numbers in a register pair; a constant is both
  any,   ///< as many registers as the text names
};

constexpr int words_of(Type type) {
  switch (type) {
    case Type::none:
      return 0;
    case Type::b64:
    case Type::i64:
    case Type::f64:
    case Type::pk32:
      return 2;
    case Type::b96:
      return 3;
    case Type::b128:
      return 4;
    case Type::b256:
      return 8;
    case Type::b512:
      return 16;
    default:
      return 1;
  }
}

/// What an instruction costs, and which counter it adds to.
enum class Class : uint8_t {
  salu,       ///< scalar arithmetic
  smem,       ///< scalar memory
  branch,     ///< branches, barriers, waits and the like
  valu,       ///< ordinary vector arithmetic: 4 cycles of a SIMD
  valu_slow,  ///< transcendental and others at a quarter of the rate: 16 cycles
  mfma,       ///< matrix arithmetic
  lds,
  vmem_load,
  vmem_store,
  vmem_atomic,
};
inline constexpr int kClasses = 10;
std::string_view name_of(Class c);

/// One row of the tables of instructions (`rows()`): everything that is known of a mnemonic.
struct Row {
  std::string_view name;  ///< as the assembler writes it, without _e32, _e64, _sdwa, _dpp
  Execute run = nullptr;
  Class cost = Class::valu;
  uint8_t results = 1;       ///< how many of the printed operands are written
  Type types[6] = {};        ///< of the printed operands, results first
  uint8_t reads_result = 0;  ///< bit k: result k is read, too (v_fmac_f32)
  uint8_t flags = 0;         ///< RowFlags
  uint8_t a = 0, b = 0;      ///< what `run` makes of them
};

enum RowFlags : uint8_t {
  kMoves = 1,      ///< only moves bits: reading what was never written is no fault of it
  kKeepsHigh = 2,  ///< writes 16 bits and keeps the other half (most clear it)
  kBothTargets = 0,
  kOnlyGfx950 = 4,
  kWritesVccText = 8,  ///< a carry is printed as second result
  kFloatResult = 16,   ///< clamp means [0, 1]
  kIgnoresExec = 64,
};

struct Operand {
  enum class Kind : uint8_t { none, vgpr, sgpr, constant, special };
  /// `index` of a special operand.
  enum Special : uint8_t {
    vccz,
    execz,
    scc,
    shared_base,
    shared_limit,
    private_base,
    private_limit
  };

  Kind kind = Kind::none;
  Type type = Type::none;
  uint8_t words = 0;
  uint8_t select = 6;  ///< SDWA: 0-3 a byte, 4-5 a half, 6 everything
  bool sign_extend = false;
  bool negate = false;
  bool absolute = false;
  uint16_t index = 0;               ///< VGPRs are 0-255, AGPRs 256-511; SGPRs as encoded
  uint64_t value = 0;               ///< of a constant
  const uint32_t* lanes = nullptr;  ///< a constant, 64 times for each word
};

/// Data-parallel primitives: how source 0 is permuted among the lanes.
enum class Dpp : uint8_t {
  none,
  quad_perm,  ///< control: 8 bits
  row_shl,    ///< control: 1-15
  row_shr,
  row_ror,
  wave_shl,
  wave_rol,
  wave_shr,
  wave_ror,
  row_mirror,
  row_half_mirror,
  row_bcast15,
  row_bcast31,
  row_newbcast,
};

/// How the sanitizer looks at an instruction.
enum class Reader : uint8_t {
  plain,    ///< its result means something where its sources do
  sink,     ///< its sources must mean something
  selects,  ///< v_cndmask: so must only what is chosen
  selects_scalar,
  moves_pair,  ///< v_pk_mov: each word of its result comes from one source
  writes_lane,
  reads_lane,  ///< v_readlane, v_readfirstlane: one lane must
  exchanges,   ///< lanes receive what others have, as far as it means something
  swaps,       ///< two registers, or rows of them, change places
  bitwise,     ///< s_and and the like: bit by bit, as masks of lanes are joined
};

/// Words of the sanitizer's bits, one bit for each of 512 vector and 128 scalar registers.
inline constexpr int kTouchedWords = 10;
inline constexpr int kTouchesMuch = 255;

struct Instruction {
  Execute run = nullptr;
  const Row* row = nullptr;
  uint32_t ordinal = 0;  ///< index among the code's instructions
  uint32_t word = 0;     ///< first word of the encoding
  uint64_t address = 0;  ///< in the code object
  uint32_t bytes = 0;

  uint8_t operands = 0;
  uint8_t results = 0;    ///< the row's, but for atomics and loads to LDS, which vary
  bool modified = false;  ///< a source has SDWA, DPP, neg or abs
  bool altered = false;   ///< the result has clamp, omod or an SDWA selection
  bool vector = false;    ///< works on lanes
  Operand operand[6];     ///< as printed

  // VOP3 and VOP3P
  bool clamp = false;
  uint8_t omod = 0;    ///< 1: *2, 2: *4, 3: /2
  uint8_t op_sel = 0;  ///< bit k: operand k of the sources; the result's bit follows them
  uint8_t op_sel_hi = 7;
  uint8_t neg_lo = 0;
  uint8_t neg_hi = 0;
  uint8_t destination_select = 6;  ///< SDWA
  uint8_t destination_unused = 0;  ///< SDWA: 0 zero, 1 sign-extend, 2 keep
  // DPP
  Dpp dpp = Dpp::none;
  uint8_t dpp_control = 0;
  uint8_t row_mask = 15;
  uint8_t bank_mask = 15;
  bool bound_control = false;  ///< lanes that have no source read 0 and are written
  // Matrices
  uint8_t cbsz = 0, abid = 0, blgp = 0;
  // Memory
  int32_t offset = 0;
  uint8_t offset0 = 0, offset1 = 0;
  bool sc0 = false, sc1 = false, nt = false, lds = false, offen = false, idxen = false, gds = false;
  uint8_t cost = 1;  ///< issue cycles or matrix passes

  // The sanitizer's
  Reader reader = Reader::plain;
  bool spins = false;         ///< reads LDS until another wave has written there (sim/spin.h)
  uint8_t touched_words = 0;  ///< kTouchesMuch: more than there is room for
  bool fills = false;  ///< its results mean something in all lanes that it writes if its sources do
  bool whole = false;  ///< it fills its results in all lanes if all are active, and keeps nothing
  struct Touched {
    uint8_t word;
    uint64_t mask;
    uint64_t sources;  ///< those that it reads
  } touched[4] = {};   ///< registers of all operands

  int32_t target = -1;  ///< a branch's: ordinal
  const MatrixOp* matrix = nullptr;
  const ConvertOp* convert = nullptr;
  const void* detail = nullptr;  ///< what a family of instructions keeps for itself
};

/// All rows, or those of one name. nullptr: no instruction of that name.
const Row* find_row(std::string_view name, Target target);

// The tables, one to a family.
std::span<const Row> scalar_rows();
std::span<const Row> flow_rows();
std::span<const Row> scalar_memory_rows();
std::span<const Row> vector_float_rows();
std::span<const Row> vector_integer_rows();
std::span<const Row> vector_convert_rows();
std::span<const Row> vector_compare_rows();
std::span<const Row> vector_packed_rows();
std::span<const Row> lane_rows();
std::span<const Row> memory_rows();
std::span<const Row> lds_rows();
std::span<const Row> matrix_rows();

}  // namespace weft::sim

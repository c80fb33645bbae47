// The matrix instructions of gfx942 and gfx950 as data, and where each element of a matrix lies in
// the registers of a wave. Sources: AMD Instinct MI300 (CDNA3) and CDNA4 Instruction Set
// Architecture, chapter 7 (lists, layouts, passes), and AMD's matrix instruction calculator.
//
// A matrix lies in `items`: item t of all lanes is the t-th element that each lane holds. Items are
// packed into a lane's consecutive registers from the low bits up: element t of `bits` bits begins
// at bit t * bits of them, so it is in register t * bits / 32.
#pragma once

#include <cstdint>
#include <string_view>

#include "arch/cdna/target.h"

namespace weft::cdna {

enum class MatrixFormat : uint8_t {
  f64,
  f32,
  xf32,  ///< f32, read with a mantissa of 10 bits
  f16,
  bf16,
  fp8,  ///< e4m3: fnuz on gfx942, fn (OCP) on gfx950
  bf8,  ///< e5m2: fnuz on gfx942, OCP on gfx950
  fp6,  ///< e2m3
  bf6,  ///< e3m2
  fp4,  ///< e2m1
  i8,
  i32,
  chosen,  ///< by the instruction's cbsz (A) or blgp (B): see chosen_format()
};

/// Bits of an element; of the widest choice where the instruction chooses.
constexpr int bits_of(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::f64:
      return 64;
    case MatrixFormat::f32:
    case MatrixFormat::xf32:
    case MatrixFormat::i32:
      return 32;
    case MatrixFormat::f16:
    case MatrixFormat::bf16:
      return 16;
    case MatrixFormat::fp6:
    case MatrixFormat::bf6:
      return 6;
    case MatrixFormat::fp4:
      return 4;
    default:
      return 8;
  }
}

/// What cbsz or blgp of a f8f6f4 instruction stands for; values above 4 are reserved and give
/// `chosen`.
constexpr MatrixFormat chosen_format(int cbsz_or_blgp) {
  constexpr MatrixFormat kFormats[] = {MatrixFormat::fp8, MatrixFormat::bf8, MatrixFormat::fp6,
                                       MatrixFormat::bf6, MatrixFormat::fp4};
  return cbsz_or_blgp >= 0 && cbsz_or_blgp < 5 ? kFormats[cbsz_or_blgp] : MatrixFormat::chosen;
}

/// Where an element is: item `item` of lane `lane`.
struct LaneItem {
  int lane;
  int item;

  friend constexpr bool operator==(LaneItem, LaneItem) = default;
};

/// Layout of A (outer = M, the row) or B (outer = N, the column). Consecutive k lie in consecutive
/// items of a lane as far as `chunk` goes, then in the next group of lanes; after the last group in
/// the first group's next chunk. A chunk is at most four registers, but for 6-bit formats.
struct InputLayout {
  int outer;   ///< rows of A, columns of B
  int k;       ///< of one block; of a sparse A half of the instruction's K, the elements stored
  int blocks;  ///< independent matrices in one instruction
  int bits;

  constexpr int items() const { return k * outer * blocks / kWaveLanes; }
  constexpr int registers() const { return (items() * bits + 31) / 32; }
  constexpr int groups() const { return kWaveLanes / (outer * blocks); }
  constexpr int chunk() const { return bits == 6 || items() * bits <= 128 ? items() : 128 / bits; }

  constexpr LaneItem at(int index, int kk, int block) const {
    const int piece = kk / chunk();
    return {.lane = index + outer * (block + blocks * (piece % groups())),
            .item = piece / groups() * chunk() + kk % chunk()};
  }

  struct Element {
    int index;  ///< row of A, column of B
    int k;
    int block;
  };
  constexpr Element element(LaneItem at) const {
    const int group = at.lane / (outer * blocks);
    return {.index = at.lane % outer,
            .k = (at.item / chunk() * groups() + group) * chunk() + at.item % chunk(),
            .block = at.lane / outer % blocks};
  }
};

/// Layout of C and D: strips of `height()` rows, one row after the other in a lane's items, lie
/// side by side in the lanes: first the strips of as many blocks as fit, then those of further
/// rows.
struct OutputLayout {
  int m;
  int n;
  int blocks;
  int bits;  ///< 32 or 64

  constexpr int height() const { return bits == 64 ? 1 : 4; }
  constexpr int items() const { return m * n * blocks / kWaveLanes; }
  constexpr int registers() const { return items() * bits / 32; }
  /// Blocks beside one another in one item.
  constexpr int blocks_abreast() const {
    return m * n / height() >= kWaveLanes ? 1 : kWaveLanes * height() / (m * n);
  }
  /// Strips of one block beside one another in one item.
  constexpr int strips_abreast() const { return kWaveLanes / blocks_abreast() / n; }
  /// Items that one block takes.
  constexpr int items_per_block() const { return m / strips_abreast(); }

  constexpr LaneItem at(int row, int column, int block) const {
    const int strip = row / height();
    return {.lane = column +
                    n * (block % blocks_abreast() + blocks_abreast() * (strip % strips_abreast())),
            .item = row % height() + strip / strips_abreast() * height() +
                    block / blocks_abreast() * items_per_block()};
  }

  struct Element {
    int row;
    int column;
    int block;
  };
  constexpr Element element(LaneItem at) const {
    const int across = at.lane / n;
    const int down = at.item % items_per_block();
    const int strip = down / height() * strips_abreast() + across / blocks_abreast();
    return {.row = strip * height() + down % height(),
            .column = at.lane % n,
            .block = at.item / items_per_block() * blocks_abreast() + across % blocks_abreast()};
  }
};

/// A matrix instruction: D = A * B + C for each block, A of m x k, B of k x n. A sparse one reads
/// half of A's elements, two of each four along k, and takes C from D.
struct MatrixInstruction {
  std::string_view name;  ///< as LLVM writes it
  int m;
  int n;
  int k;
  int blocks;
  MatrixFormat a;
  MatrixFormat b;
  MatrixFormat d;  ///< and C
  bool sparse;
  bool scaled;  ///< has scales for blocks of 32 along k
  /// Passes of four cycles on gfx942 and gfx950; 0: the target has no such instruction. For chosen
  /// formats, if A or B has 8 bits; half as many if neither has.
  int passes[2];

  constexpr bool exists_on(Target target) const { return passes_on(target) > 0; }
  constexpr int passes_on(Target target) const { return passes[target == Target::gfx950]; }
  constexpr InputLayout a_layout(MatrixFormat format) const {
    return {.outer = m, .k = sparse ? k / 2 : k, .blocks = blocks, .bits = bits_of(format)};
  }
  constexpr InputLayout a_layout() const { return a_layout(a); }
  constexpr InputLayout b_layout(MatrixFormat format) const {
    return {.outer = n, .k = k, .blocks = blocks, .bits = bits_of(format)};
  }
  constexpr InputLayout b_layout() const { return b_layout(b); }
  constexpr OutputLayout d_layout() const {
    return {.m = m, .n = n, .blocks = blocks, .bits = bits_of(d)};
  }

  /// Sparse: the bit of the index register at which the two bits begin that place stored element
  /// `item` of the same lane of A among its four; the sets that one register can hold are chosen by
  /// abid unless cbsz is set.
  constexpr int index_bit(int item, int cbsz, int abid) const {
    const int set_bits = 2 * a_layout().items();
    const int sets = 32 / set_bits;
    return (cbsz % 4 == 0 ? abid % sets : 0) * set_bits + 2 * item;
  }
};

/// Every one of both targets.
inline constexpr MatrixInstruction kMatrixInstructions[] = {
#define WEFT_DENSE(NAME, M, N, K, BLOCKS, A, B, D, PASSES942, PASSES950) \
  {"v_mfma_" NAME,                                                       \
   M,                                                                    \
   N,                                                                    \
   K,                                                                    \
   BLOCKS,                                                               \
   MatrixFormat::A,                                                      \
   MatrixFormat::B,                                                      \
   MatrixFormat::D,                                                      \
   false,                                                                \
   false,                                                                \
   {PASSES942, PASSES950}},
#define WEFT_SPARSE(NAME, M, N, K, A, B, D, PASSES942, PASSES950) \
  {"v_smfmac_" NAME,                                              \
   M,                                                             \
   N,                                                             \
   K,                                                             \
   1,                                                             \
   MatrixFormat::A,                                               \
   MatrixFormat::B,                                               \
   MatrixFormat::D,                                               \
   true,                                                          \
   false,                                                         \
   {PASSES942, PASSES950}},
    WEFT_DENSE("f32_32x32x1_2b_f32", 32, 32, 1, 2, f32, f32, f32, 16, 16) WEFT_DENSE(
        "f32_16x16x1_4b_f32", 16, 16, 1, 4, f32, f32, f32, 8,
        8) WEFT_DENSE("f32_4x4x1_16b_f32", 4, 4, 1, 16, f32, f32, f32, 2,
                      2) WEFT_DENSE("f32_32x32x2_f32", 32, 32, 2, 1, f32, f32, f32, 16, 16)
        WEFT_DENSE("f32_16x16x4_f32", 16, 16, 4, 1, f32, f32, f32, 8, 8) WEFT_DENSE(
            "f32_32x32x4_xf32", 32, 32, 4, 1, xf32, xf32, f32,
            8, 0) WEFT_DENSE("f32_16x16x8_xf32", 16, 16, 8, 1, xf32, xf32, f32, 4,
                             0) WEFT_DENSE("f32_32x32x4_2b_f16", 32, 32, 4, 2, f16, f16, f32, 16, 16)
            WEFT_DENSE("f32_16x16x4_4b_f16", 16, 16, 4, 4, f16, f16, f32, 8, 8) WEFT_DENSE(
                "f32_4x4x4_16b_f16",
                4, 4, 4, 16, f16,
                f16, f32, 2, 2) WEFT_DENSE("f32_32x32x8_f16", 32, 32, 8, 1, f16, f16, f32, 8, 8)
                WEFT_DENSE("f32_16x16x16_f16", 16, 16, 16, 1, f16, f16, f32, 4, 4) WEFT_DENSE(
                    "f32_32x32x16_f16",
                    32,
                    32,
                    16,
                    1, f16, f16, f32,
                    0, 8) WEFT_DENSE("f32_16x16x32_f16", 16, 16, 32, 1, f16, f16, f32,
                                     0, 4) WEFT_DENSE("f32_32x32x4_2b_bf16", 32, 32, 4, 2, bf16, bf16, f32, 16, 16)
                    WEFT_DENSE("f32_16x16x4_4b_bf16", 16, 16, 4, 4, bf16, bf16, f32, 8, 8) WEFT_DENSE(
                        "f32_4x4x4_16b_bf16",
                        4, 4, 4, 16, bf16,
                        bf16, f32,
                        2, 2) WEFT_DENSE("f32_32x32x8_bf16", 32, 32, 8, 1, bf16, bf16, f32, 8,
                                         8) WEFT_DENSE("f32_16x16x16_bf16", 16, 16, 16, 1, bf16, bf16, f32, 4, 4)
                        WEFT_DENSE("f32_32x32x16_bf16", 32, 32, 16, 1, bf16, bf16, f32, 0, 8) WEFT_DENSE(
                            "f32_16x16x32_bf16",
                            16,
                            16,
                            32,
                            1, bf16, bf16,
                            f32, 0,
                            4) WEFT_DENSE("i32_32x32x4_2b_i8", 32, 32, 4, 2, i8, i8, i32, 16,
                                          16) WEFT_DENSE("i32_16x16x4_4b_i8", 16, 16, 4, 4, i8, i8, i32, 8, 8)
                            WEFT_DENSE("i32_4x4x4_16b_i8", 4, 4, 4, 16, i8, i8, i32, 2, 2) WEFT_DENSE(
                                "i32_32x32x16_i8",
                                32,
                                32,
                                16,
                                1, i8, i8,
                                i32,
                                8, 8) WEFT_DENSE("i32_16x16x32_i8", 16, 16, 32, 1, i8, i8, i32, 4,
                                                 4) WEFT_DENSE("i32_32x32x32_i8", 32, 32, 32, 1, i8, i8, i32, 0, 8)
                                WEFT_DENSE("i32_16x16x64_i8", 16, 16, 64, 1, i8, i8, i32, 0, 4) WEFT_DENSE(
                                    "f64_16x16x4_f64",
                                    16,
                                    16,
                                    4, 1, f64,
                                    f64, f64, 8,
                                    16) WEFT_DENSE("f64_4x4x4_4b_f64", 4, 4, 4, 4, f64, f64, f64, 4, 4)
                                    WEFT_DENSE("f32_32x32x16_fp8_fp8", 32, 32, 16, 1, fp8, fp8, f32, 8, 8) WEFT_DENSE(
                                        "f32_32x32x16_fp8_bf8",
                                        32,
                                        32,
                                        16,
                                        1, fp8,
                                        bf8, f32, 8,
                                        8) WEFT_DENSE("f32_32x32x16_bf8_fp8", 32, 32, 16, 1, bf8, fp8, f32, 8, 8)
                                        WEFT_DENSE("f32_32x32x16_bf8_bf8", 32, 32, 16, 1, bf8, bf8, f32, 8, 8) WEFT_DENSE(
                                            "f32_16x16x32_fp8_fp8",
                                            16,
                                            16,
                                            32,
                                            1, fp8,
                                            fp8, f32, 4,
                                            4) WEFT_DENSE("f32_16x16x32_fp8_bf8", 16, 16, 32, 1, fp8, bf8, f32, 4, 4)
                                            WEFT_DENSE("f32_16x16x32_bf8_fp8", 16, 16, 32, 1, bf8, fp8, f32, 4, 4) WEFT_DENSE(
                                                "f32_16x16x32_bf8_bf8",
                                                16,
                                                16,
                                                32,
                                                1, bf8,
                                                bf8, f32, 4,
                                                4) WEFT_DENSE("f32_32x32x64_f8f6f4", 32, 32, 64,
                                                              1, chosen,
                                                              chosen,
                                                              f32,
                                                              0, 16)
                                                WEFT_DENSE("f32_16x16x128_f8f6f4", 16, 16, 128, 1, chosen, chosen, f32, 0, 8) WEFT_SPARSE(
                                                    "f32_32x32x16_f16",
                                                    32,
                                                    32,
                                                    16,
                                                    f16, f16, f32,
                                                    8,
                                                    8) WEFT_SPARSE("f32_16x16x32_f16", 16, 16, 32,
                                                                   f16,
                                                                   f16,
                                                                   f32,
                                                                   4, 4)
                                                    WEFT_SPARSE("f32_32x32x32_f16", 32, 32, 32, f16, f16, f32, 0, 8) WEFT_SPARSE(
                                                        "f32_16x16x64_f16",
                                                        16,
                                                        16,
                                                        64,
                                                        f16, f16, f32,
                                                        0,
                                                        4) WEFT_SPARSE("f32_32x32x16_bf16", 32, 32,
                                                                       16,
                                                                       bf16,
                                                                       bf16, f32, 8, 8)
                                                        WEFT_SPARSE("f32_16x16x32_bf16", 16, 16, 32, bf16, bf16, f32, 4, 4) WEFT_SPARSE(
                                                            "f32_32x32x32_bf16", 32, 32, 32, bf16,
                                                            bf16, f32, 0,
                                                            8) WEFT_SPARSE("f32_16x16x64_bf16", 16,
                                                                           16,
                                                                           64,
                                                                           bf16,
                                                                           bf16, f32, 0, 4)
                                                            WEFT_SPARSE(
                                                                "i32_32x32x32_i8",
                                                                32,
                                                                32,
                                                                32,
                                                                i8,
                                                                i8,
                                                                i32, 8,
                                                                8) WEFT_SPARSE("i32_16x16x64_"
                                                                               "i8",
                                                                               16,
                                                                               16,
                                                                               64,
                                                                               i8,
                                                                               i8,
                                                                               i32,
                                                                               4, 4)
                                                                WEFT_SPARSE(
                                                                    "i32_32x32x64_i8",
                                                                    32,
                                                                    32,
                                                                    64,
                                                                    i8,
                                                                    i8,
                                                                    i32, 0,
                                                                    8) WEFT_SPARSE("i32_"
                                                                                   "16x16x12"
                                                                                   "8_i8",
                                                                                   16,
                                                                                   16,
                                                                                   128,
                                                                                   i8,
                                                                                   i8,
                                                                                   i32,
                                                                                   0, 4)
                                                                    WEFT_SPARSE(
                                                                        "f32_32x32x32_fp8_fp8",
                                                                        32,
                                                                        32,
                                                                        32,
                                                                        fp8, fp8, f32, 8,
                                                                        8) WEFT_SPARSE("f32_"
                                                                                       "32x32x3"
                                                                                       "2_fp8_"
                                                                                       "bf8",
                                                                                       32,
                                                                                       32,
                                                                                       32,
                                                                                       fp8, bf8,
                                                                                       f32,
                                                                                       8, 8)
                                                                        WEFT_SPARSE(
                                                                            "f32_32x32x32_bf8_"
                                                                            "fp8",
                                                                            32,
                                                                            32,
                                                                            32,
                                                                            bf8, fp8, f32, 8,
                                                                            8) WEFT_SPARSE("f32"
                                                                                           "_32"
                                                                                           "x32"
                                                                                           "x32"
                                                                                           "_bf"
                                                                                           "8_"
                                                                                           "bf"
                                                                                           "8",
                                                                                           32,
                                                                                           32,
                                                                                           32,
                                                                                           bf8,
                                                                                           bf8,
                                                                                           f32,
                                                                                           8, 8)
                                                                            WEFT_SPARSE(
                                                                                "f32_16x16x64_"
                                                                                "fp8_fp8",
                                                                                16,
                                                                                16,
                                                                                64,
                                                                                fp8, fp8, f32, 4,
                                                                                4) WEFT_SPARSE("f32"
                                                                                               "_16"
                                                                                               "x16"
                                                                                               "x64"
                                                                                               "_fp"
                                                                                               "8_"
                                                                                               "bf"
                                                                                               "8",
                                                                                               16,
                                                                                               16,
                                                                                               64,
                                                                                               fp8,
                                                                                               bf8,
                                                                                               f32,
                                                                                               4, 4)
                                                                                WEFT_SPARSE(
                                                                                    "f32_"
                                                                                    "16x16x64_"
                                                                                    "bf8_fp8",
                                                                                    16, 16,
                                                                                    64, bf8, fp8,
                                                                                    f32, 4,
                                                                                    4) WEFT_SPARSE("f32_16x16x64_bf8_bf8",
                                                                                                   16,
                                                                                                   16,
                                                                                                   64,
                                                                                                   bf8,
                                                                                                   bf8,
                                                                                                   f32,
                                                                                                   4, 4)
                                                                                    WEFT_SPARSE(
                                                                                        "f32_"
                                                                                        "32x32x"
                                                                                        "64_"
                                                                                        "fp8_"
                                                                                        "fp8",
                                                                                        32, 32,
                                                                                        64, fp8,
                                                                                        fp8, f32, 0,
                                                                                        8) WEFT_SPARSE("f32_32x32x64_fp8_bf8",
                                                                                                       32,
                                                                                                       32,
                                                                                                       64,
                                                                                                       fp8,
                                                                                                       bf8,
                                                                                                       f32,
                                                                                                       0, 8)
                                                                                        WEFT_SPARSE(
                                                                                            "f3"
                                                                                            "2_"
                                                                                            "32"
                                                                                            "x3"
                                                                                            "2x"
                                                                                            "64"
                                                                                            "_b"
                                                                                            "f8"
                                                                                            "_f"
                                                                                            "p"
                                                                                            "8",
                                                                                            32,
                                                                                            32,
                                                                                            64,
                                                                                            bf8,
                                                                                            fp8,
                                                                                            f32, 0,
                                                                                            8) WEFT_SPARSE("f32_32x32x64_bf8_bf8",
                                                                                                           32,
                                                                                                           32,
                                                                                                           64,
                                                                                                           bf8,
                                                                                                           bf8,
                                                                                                           f32,
                                                                                                           0, 8)
                                                                                            WEFT_SPARSE(
                                                                                                "f3"
                                                                                                "2_"
                                                                                                "16"
                                                                                                "x1"
                                                                                                "6x"
                                                                                                "12"
                                                                                                "8_"
                                                                                                "fp"
                                                                                                "8_"
                                                                                                "fp"
                                                                                                "8",
                                                                                                16,
                                                                                                16,
                                                                                                128,
                                                                                                fp8,
                                                                                                fp8,
                                                                                                f32,
                                                                                                0,
                                                                                                4) WEFT_SPARSE("f32_16x16x128_fp8_bf8",
                                                                                                               16,
                                                                                                               16,
                                                                                                               128,
                                                                                                               fp8,
                                                                                                               bf8,
                                                                                                               f32,
                                                                                                               0,
                                                                                                               4)
                                                                                                WEFT_SPARSE(
                                                                                                    "f32_16x16x128_bf8_fp8",
                                                                                                    16,
                                                                                                    16,
                                                                                                    128,
                                                                                                    bf8,
                                                                                                    fp8,
                                                                                                    f32,
                                                                                                    0,
                                                                                                    4)
                                                                                                    WEFT_SPARSE(
                                                                                                        "f32_16x16x128_bf8_bf8",
                                                                                                        16,
                                                                                                        16,
                                                                                                        128,
                                                                                                        bf8,
                                                                                                        bf8,
                                                                                                        f32,
                                                                                                        0,
                                                                                                        4)
#undef WEFT_DENSE
#undef WEFT_SPARSE
                                                                                                        {"v_mfma_scale_f32_32x32x64_f8f6f4",
                                                                                                         32,
                                                                                                         32,
                                                                                                         64,
                                                                                                         1,
                                                                                                         MatrixFormat::
                                                                                                             chosen,
                                                                                                         MatrixFormat::
                                                                                                             chosen,
                                                                                                         MatrixFormat::
                                                                                                             f32,
                                                                                                         false,
                                                                                                         true,
                                                                                                         {0,
                                                                                                          16}},
    {"v_mfma_scale_f32_16x16x128_f8f6f4",
     16,
     16,
     128,
     1,
     MatrixFormat::chosen,
     MatrixFormat::chosen,
     MatrixFormat::f32,
     false,
     true,
     {0, 8}},
};

/// nullptr: the target has no instruction of this name.
constexpr const MatrixInstruction* find_matrix_instruction(std::string_view name, Target target) {
  for (const MatrixInstruction& instruction : kMatrixInstructions) {
    if (instruction.name == name && instruction.exists_on(target)) {
      return &instruction;
    }
  }
  return nullptr;
}

/// Elements along k that one scale of a scaled instruction stands for. The scale of row (column)
/// `index` and block `k / kScaleBlock` lies in lane index + outer * (k / kScaleBlock).
inline constexpr int kScaleBlock = 32;

/// Broadcasts of A: the block whose A block `block` is multiplied with. In each set of 2^cbsz
/// consecutive blocks, number `abid` of the set feeds all.
constexpr int broadcast_block(int block, int cbsz, int abid) {
  return (block >> cbsz << cbsz) + (cbsz == 0 ? 0 : abid);
}

/// Permutation of B's lanes: the lane that is read in place of `lane`.
constexpr int permuted_lane(int lane, int blgp) {
  switch (blgp) {
    case 1:
    case 2:
      return lane % 32 + 32 * (blgp - 1);
    case 3:
      return (lane + 16) % 64;
    case 4:
    case 5:
    case 6:
    case 7:
      return lane % 16 + 16 * (blgp - 4);
    default:
      return lane;
  }
}

}  // namespace weft::cdna

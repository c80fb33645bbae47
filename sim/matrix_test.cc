// Matrix instructions against the manuals: layouts against AMD's published tables, results against
// a model in long double that places and decodes elements by its own reading of the manuals.
#include "sim/matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arch/cdna/matrix_layout.h"
#include "arch/cpu/dispatch.h"
#include "sim/test_formats.h"

namespace weft::sim {
namespace {

using cdna::kMatrixInstructions;
using cdna::LaneItem;
using cdna::MatrixFormat;
using cdna::MatrixInstruction;

constexpr Target kTargets[] = {Target::gfx942, Target::gfx950};

// ---------------------------------------------------------------------------------------------
// Layouts

/// FNV-1a over bytes.
class Hash {
 public:
  void add(LaneItem at, int bits) {
    add(at.item * bits / 32);
    add(at.item * bits % 32);
    add(at.lane);
  }
  void add(int byte) { value_ = (value_ ^ static_cast<uint32_t>(byte)) * 0x01000193U; }
  uint32_t value() const { return value_; }

 private:
  uint32_t value_ = 0x811c9dc5U;
};

struct PublishedLayout {
  std::string_view name;
  uint32_t a;
  uint32_t b;
  uint32_t d;
  uint32_t a_broadcast;  ///< for every cbsz and abid; 0: not given
  uint32_t b_permuted;   ///< for every blgp; 0: not given
  uint32_t index;        ///< for cbsz 0 and 1 and every abid; 0: dense
};

// Every location that AMD's matrix instruction calculator 1.3.2 (github.com/ROCm/
// amd_matrix_instruction_calculator) gives for an instruction of CDNA3: register, lowest bit and
// lane of each element, in the order block, row (column), k, hashed. A sparse A's location is that
// of the four elements along k that share it.
constexpr PublishedLayout kPublished[] = {
    {"v_mfma_f32_16x16x8_xf32", 0xbb009305, 0xbb009305, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_32x32x4_xf32", 0x128bba45, 0x128bba45, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_32x32x1_2b_f32", 0xd7b79185, 0xd7b79185, 0xc0104e45, 0x8dabc905, 0x3cf464c5, 0},
    {"v_mfma_f32_16x16x1_4b_f32", 0xd7b79185, 0xd7b79185, 0xfe2a0445, 0x9f8d6905, 0x3cf464c5, 0},
    {"v_mfma_f32_4x4x1_16b_f32", 0xd7b79185, 0xd7b79185, 0x14ac8445, 0x59c86105, 0x3cf464c5, 0},
    {"v_mfma_f32_32x32x2_f32", 0x4c9dd885, 0x4c9dd885, 0x1ba97ac5, 0, 0x54cba145, 0},
    {"v_mfma_f32_16x16x4_f32", 0x750d81e5, 0x750d81e5, 0x8e9e6105, 0, 0x362a2f85, 0},
    {"v_mfma_f32_32x32x4_2b_f16", 0x72a22d45, 0x72a22d45, 0xc0104e45, 0x6d874c45, 0x6b9399c5, 0},
    {"v_mfma_f32_16x16x4_4b_f16", 0x72a22d45, 0x72a22d45, 0xfe2a0445, 0x656f0a45, 0x6b9399c5, 0},
    {"v_mfma_f32_4x4x4_16b_f16", 0x72a22d45, 0x72a22d45, 0x14ac8445, 0xbfc801c5, 0x6b9399c5, 0},
    {"v_mfma_f32_32x32x8_f16", 0x6d9c1105, 0x6d9c1105, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_16x16x16_f16", 0x5c8c9a45, 0x5c8c9a45, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_i32_32x32x4_2b_i8", 0x880ef745, 0x880ef745, 0xc0104e45, 0xee33aa45, 0x9ccee9c5, 0},
    {"v_mfma_i32_16x16x4_4b_i8", 0x880ef745, 0x880ef745, 0xfe2a0445, 0x026f9045, 0x9ccee9c5, 0},
    {"v_mfma_i32_4x4x4_16b_i8", 0x880ef745, 0x880ef745, 0x14ac8445, 0x71c2cf45, 0x9ccee9c5, 0},
    {"v_mfma_i32_32x32x16_i8", 0xa4313505, 0xa4313505, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_i32_16x16x32_i8", 0x0c0fee85, 0x0c0fee85, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_32x32x4_2b_bf16", 0x72a22d45, 0x72a22d45, 0xc0104e45, 0x6d874c45, 0x6b9399c5, 0},
    {"v_mfma_f32_16x16x4_4b_bf16", 0x72a22d45, 0x72a22d45, 0xfe2a0445, 0x656f0a45, 0x6b9399c5, 0},
    {"v_mfma_f32_4x4x4_16b_bf16", 0x72a22d45, 0x72a22d45, 0x14ac8445, 0xbfc801c5, 0x6b9399c5, 0},
    {"v_mfma_f32_32x32x8_bf16", 0x6d9c1105, 0x6d9c1105, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_16x16x16_bf16", 0x5c8c9a45, 0x5c8c9a45, 0x8e9e6105, 0, 0, 0},
    {"v_smfmac_f32_16x16x32_f16", 0xdf4b1685, 0x26ffc7c5, 0x8e9e6105, 0, 0, 0xf44744c5},
    {"v_smfmac_f32_32x32x16_f16", 0xd6ed4f05, 0x6294d145, 0x1ba97ac5, 0, 0, 0xb3459345},
    {"v_smfmac_f32_16x16x32_bf16", 0xdf4b1685, 0x26ffc7c5, 0x8e9e6105, 0, 0, 0xf44744c5},
    {"v_smfmac_f32_32x32x16_bf16", 0xd6ed4f05, 0x6294d145, 0x1ba97ac5, 0, 0, 0xb3459345},
    {"v_smfmac_i32_16x16x64_i8", 0x57fb2345, 0xca6e4fc5, 0x8e9e6105, 0, 0, 0x070e9bc5},
    {"v_smfmac_i32_32x32x32_i8", 0xed889f45, 0x90e18145, 0x1ba97ac5, 0, 0, 0xfde3aa45},
    {"v_mfma_f64_16x16x4_f64", 0x750d81e5, 0x750d81e5, 0x9ca8a2c5, 0, 0x362a2f85, 0},
    {"v_mfma_f64_4x4x4_4b_f64", 0x750d81e5, 0x750d81e5, 0xd3341e85, 0, 0x362a2f85, 0},
    {"v_mfma_f32_16x16x32_bf8_bf8", 0x0c0fee85, 0x0c0fee85, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_16x16x32_bf8_fp8", 0x0c0fee85, 0x0c0fee85, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_16x16x32_fp8_bf8", 0x0c0fee85, 0x0c0fee85, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_16x16x32_fp8_fp8", 0x0c0fee85, 0x0c0fee85, 0x8e9e6105, 0, 0, 0},
    {"v_mfma_f32_32x32x16_bf8_bf8", 0xa4313505, 0xa4313505, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_32x32x16_bf8_fp8", 0xa4313505, 0xa4313505, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_32x32x16_fp8_bf8", 0xa4313505, 0xa4313505, 0x1ba97ac5, 0, 0, 0},
    {"v_mfma_f32_32x32x16_fp8_fp8", 0xa4313505, 0xa4313505, 0x1ba97ac5, 0, 0, 0},
    {"v_smfmac_f32_16x16x64_bf8_bf8", 0x57fb2345, 0xca6e4fc5, 0x8e9e6105, 0, 0, 0x070e9bc5},
    {"v_smfmac_f32_16x16x64_bf8_fp8", 0x57fb2345, 0xca6e4fc5, 0x8e9e6105, 0, 0, 0x070e9bc5},
    {"v_smfmac_f32_16x16x64_fp8_bf8", 0x57fb2345, 0xca6e4fc5, 0x8e9e6105, 0, 0, 0x070e9bc5},
    {"v_smfmac_f32_16x16x64_fp8_fp8", 0x57fb2345, 0xca6e4fc5, 0x8e9e6105, 0, 0, 0x070e9bc5},
    {"v_smfmac_f32_32x32x32_bf8_bf8", 0xed889f45, 0x90e18145, 0x1ba97ac5, 0, 0, 0xfde3aa45},
    {"v_smfmac_f32_32x32x32_bf8_fp8", 0xed889f45, 0x90e18145, 0x1ba97ac5, 0, 0, 0xfde3aa45},
    {"v_smfmac_f32_32x32x32_fp8_bf8", 0xed889f45, 0x90e18145, 0x1ba97ac5, 0, 0, 0xfde3aa45},
    {"v_smfmac_f32_32x32x32_fp8_fp8", 0xed889f45, 0x90e18145, 0x1ba97ac5, 0, 0, 0xfde3aa45},
};

TEST(MatrixLayout, IsThatOfAmdsCalculatorForCdna3) {
  for (const PublishedLayout& published : kPublished) {
    SCOPED_TRACE(published.name);
    const MatrixInstruction* shape = cdna::find_matrix_instruction(published.name, Target::gfx942);
    ASSERT_NE(shape, nullptr);
    const cdna::InputLayout a = shape->a_layout();
    const cdna::InputLayout b = shape->b_layout();
    const cdna::OutputLayout d = shape->d_layout();
    // A pair of stored elements stands for four along k.
    const auto stored = [&](int k) { return shape->sparse ? k / 4 * 2 : k; };
    Hash hash_a;
    Hash hash_b;
    Hash hash_d;
    for (int block = 0; block < shape->blocks; ++block) {
      for (int row = 0; row < shape->m; ++row) {
        for (int k = 0; k < shape->k; ++k) {
          hash_a.add(a.at(row, stored(k), block), a.bits);
          hash_b.add(b.at(row, k, block), b.bits);
        }
        for (int column = 0; column < shape->n; ++column) {
          hash_d.add(d.at(row, column, block), d.bits);
        }
      }
    }
    EXPECT_EQ(hash_a.value(), published.a);
    EXPECT_EQ(hash_b.value(), published.b);
    EXPECT_EQ(hash_d.value(), published.d);

    if (published.a_broadcast != 0) {
      Hash hash;
      for (int cbsz = 0; 1 << cbsz <= shape->blocks; ++cbsz) {
        for (int abid = 0; abid < 1 << cbsz; ++abid) {
          for (int block = 0; block < shape->blocks; ++block) {
            for (int row = 0; row < shape->m; ++row) {
              for (int k = 0; k < shape->k; ++k) {
                hash.add(a.at(row, k, cdna::broadcast_block(block, cbsz, abid)), a.bits);
              }
            }
          }
        }
      }
      EXPECT_EQ(hash.value(), published.a_broadcast);
    }
    if (published.b_permuted != 0) {
      Hash hash;
      for (int blgp = 0; blgp < 8; ++blgp) {
        for (int block = 0; block < shape->blocks; ++block) {
          for (int column = 0; column < shape->n; ++column) {
            for (int k = 0; k < shape->k; ++k) {
              LaneItem at = b.at(column, k, block);
              at.lane = cdna::permuted_lane(at.lane, blgp);
              hash.add(at, b.bits);
            }
          }
        }
      }
      EXPECT_EQ(hash.value(), published.b_permuted);
    }
    if (published.index != 0) {
      Hash hash;
      for (int cbsz = 0; cbsz < 2; ++cbsz) {
        for (int abid = 0; abid < 16 / a.items(); ++abid) {
          for (int row = 0; row < shape->m; ++row) {
            for (int k = 0; k < shape->k; ++k) {
              const LaneItem at = a.at(row, stored(k), 0);
              hash.add(0);
              hash.add(shape->index_bit(at.item, cbsz, abid));
              hash.add(at.lane);
            }
          }
        }
      }
      EXPECT_EQ(hash.value(), published.index);
    }
  }
}

/// A row of a table of the CDNA4 manual: the first k in a register for the four rows of 16 lanes.
struct TableRow {
  int reg;
  int k[4];
};
struct Table {
  std::string_view name;
  bool is_a;
  MatrixFormat format;
  std::vector<TableRow> rows;
};

TEST(MatrixLayout, IsThatOfTheCdna4Tables) {
  using enum MatrixFormat;
  const Table tables[] = {
      // Section 7.1.5.1, "A[m][k]/B[k][n] Layout".
      {"v_mfma_f32_16x16x32_bf16",
       true,
       bf16,
       {{0, {0, 8, 16, 24}}, {1, {2, 10, 18, 26}}, {2, {4, 12, 20, 28}}, {3, {6, 14, 22, 30}}}},
      {"v_mfma_i32_16x16x64_i8",
       true,
       i8,
       {{0, {0, 16, 32, 48}}, {1, {4, 20, 36, 52}}, {2, {8, 24, 40, 56}}, {3, {12, 28, 44, 60}}}},
      {"v_mfma_i32_32x32x32_i8",
       false,
       i8,
       {{0, {0, 0, 16, 16}}, {1, {4, 4, 20, 20}}, {2, {8, 8, 24, 24}}, {3, {12, 12, 28, 28}}}},
      // "For 32x32x64 FP4": item k % 32 of lane i + 32 * (k / 32).
      {"v_mfma_f32_32x32x64_f8f6f4",
       true,
       fp4,
       {{0, {0, 0, 32, 32}}, {1, {8, 8, 40, 40}}, {2, {16, 16, 48, 48}}, {3, {24, 24, 56, 56}}}},
      // FP8 (the manual's figure; tabulated in composable_kernel, test/mx_mfma_op).
      {"v_mfma_f32_16x16x128_f8f6f4",
       true,
       fp8,
       {{0, {0, 16, 32, 48}},
        {3, {12, 28, 44, 60}},
        {4, {64, 80, 96, 112}},
        {7, {76, 92, 108, 124}}}},
      {"v_mfma_f32_32x32x64_f8f6f4",
       false,
       bf8,
       {{0, {0, 0, 16, 16}}, {3, {12, 12, 28, 28}}, {4, {32, 32, 48, 48}}, {7, {44, 44, 60, 60}}}},
      // Section 7.5.1.3, matrix B of sparse instructions.
      {"v_smfmac_f32_16x16x64_bf16",
       false,
       bf16,
       {{0, {0, 8, 16, 24}}, {3, {6, 14, 22, 30}}, {4, {32, 40, 48, 56}}, {7, {38, 46, 54, 62}}}},
      {"v_smfmac_f32_32x32x32_f16",
       false,
       f16,
       {{0, {0, 0, 8, 8}}, {3, {6, 6, 14, 14}}, {4, {16, 16, 24, 24}}, {7, {22, 22, 30, 30}}}},
      {"v_smfmac_i32_16x16x128_i8",
       false,
       i8,
       {{0, {0, 16, 32, 48}},
        {3, {12, 28, 44, 60}},
        {4, {64, 80, 96, 112}},
        {7, {76, 92, 108, 124}}}},
      {"v_smfmac_f32_32x32x64_fp8_bf8",
       false,
       bf8,
       {{0, {0, 0, 16, 16}}, {3, {12, 12, 28, 28}}, {4, {32, 32, 48, 48}}, {7, {44, 44, 60, 60}}}},
      // Matrix A there is packed as A[16][32], A[32][16], A[16][64], A[32][32].
      {"v_smfmac_f32_16x16x64_bf16", true, bf16, {{0, {0, 8, 16, 24}}, {3, {6, 14, 22, 30}}}},
      {"v_smfmac_i32_32x32x64_i8", true, i8, {{0, {0, 0, 16, 16}}, {3, {12, 12, 28, 28}}}},
  };
  for (const Table& table : tables) {
    SCOPED_TRACE(table.name);
    const MatrixInstruction* shape = cdna::find_matrix_instruction(table.name, Target::gfx950);
    ASSERT_NE(shape, nullptr);
    const cdna::InputLayout layout =
        table.is_a ? shape->a_layout(table.format) : shape->b_layout(table.format);
    for (const TableRow& row : table.rows) {
      for (int lane = 0; lane < 64; ++lane) {
        for (int part = 0; part < 32 / layout.bits; ++part) {
          const auto element =
              layout.element({.lane = lane, .item = row.reg * 32 / layout.bits + part});
          EXPECT_EQ(element.k, row.k[lane / 16] + part)
              << "register " << row.reg << " lane " << lane;
          EXPECT_EQ(element.index, lane % layout.outer);
        }
      }
    }
  }
}

TEST(MatrixLayout, ElementAndPlaceAreInverse) {
  for (const MatrixInstruction& shape : kMatrixInstructions) {
    SCOPED_TRACE(shape.name);
    std::vector<MatrixFormat> formats = {shape.a};
    if (shape.a == MatrixFormat::chosen) {
      formats = {MatrixFormat::fp8, MatrixFormat::fp6, MatrixFormat::fp4};
    }
    for (const MatrixFormat format : formats) {
      for (const cdna::InputLayout& layout : {shape.a_layout(format), shape.b_layout(format)}) {
        for (int lane = 0; lane < 64; ++lane) {
          for (int item = 0; item < layout.items(); ++item) {
            const LaneItem at{.lane = lane, .item = item};
            const auto e = layout.element(at);
            EXPECT_EQ(layout.at(e.index, e.k, e.block), at);
            EXPECT_TRUE(e.k >= 0 && e.k < layout.k && e.block < layout.blocks);
          }
        }
      }
    }
    const cdna::OutputLayout layout = shape.d_layout();
    for (int lane = 0; lane < 64; ++lane) {
      for (int item = 0; item < layout.items(); ++item) {
        const LaneItem at{.lane = lane, .item = item};
        const auto e = layout.element(at);
        EXPECT_EQ(layout.at(e.row, e.column, e.block), at);
        EXPECT_TRUE(e.row < layout.m && e.block < layout.blocks);
      }
    }
  }
}

// ---------------------------------------------------------------------------------------------
// The model

using test::Real;

test::Format model_of(MatrixFormat format, Target target) {
  switch (format) {
    case MatrixFormat::f64:
      return test::kF64;
    case MatrixFormat::f16:
      return test::kF16;
    case MatrixFormat::bf16:
      return test::kBf16;
    case MatrixFormat::fp8:
      return test::fp8_of(target);
    case MatrixFormat::bf8:
      return test::bf8_of(target);
    case MatrixFormat::fp6:
      return test::kFp6;
    case MatrixFormat::bf6:
      return test::kBf6;
    case MatrixFormat::fp4:
      return test::kFp4;
    default:
      return test::kF32;
  }
}

Real decode(uint64_t code, MatrixFormat format, Target target) {
  switch (format) {
    case MatrixFormat::i8:
      return static_cast<int8_t>(code);
    case MatrixFormat::i32:
      return static_cast<int32_t>(code);
    case MatrixFormat::xf32:
      return test::decode(code & ~uint64_t{0x1fff}, test::kF32);
    default:
      return test::decode(code, model_of(format, target));
  }
}

/// The code of a small integer.
uint64_t encode(int value, MatrixFormat format, Target target) {
  switch (format) {
    case MatrixFormat::f64:
      return std::bit_cast<uint64_t>(static_cast<double>(value));
    case MatrixFormat::f32:
    case MatrixFormat::xf32:
      return std::bit_cast<uint32_t>(static_cast<float>(value));
    case MatrixFormat::i32:
      return static_cast<uint32_t>(value);
    case MatrixFormat::i8:
      return static_cast<uint8_t>(value);
    default: {
      static std::map<std::tuple<int, MatrixFormat, Target>, uint64_t> known;
      const auto [it, fresh] = known.try_emplace({value, format, target}, 0);
      for (uint64_t code = 0; fresh && code < 65536; ++code) {
        if (decode(code, format, target) == value) {
          it->second = code;
          break;
        }
      }
      return it->second;
    }
  }
}

int width_of(MatrixFormat format) {
  switch (format) {
    case MatrixFormat::f64:
      return 64;
    case MatrixFormat::f16:
    case MatrixFormat::bf16:
      return 16;
    case MatrixFormat::fp6:
    case MatrixFormat::bf6:
      return 6;
    case MatrixFormat::fp4:
      return 4;
    case MatrixFormat::fp8:
    case MatrixFormat::bf8:
    case MatrixFormat::i8:
      return 8;
    default:
      return 32;
  }
}

/// Registers of a wave, with elements at bit positions of a lane.
struct Registers {
  Lanes lanes[32] = {};

  void set(int lane, int bit, int bits, uint64_t value) {
    for (int i = 0; i < bits; ++i) {
      uint32_t& word = lanes[(bit + i) / 32][lane];
      const uint32_t mask = 1U << (bit + i) % 32;
      word = (value >> i & 1) != 0 ? word | mask : word & ~mask;
    }
  }
  uint64_t get(int lane, int bit, int bits) const {
    uint64_t value = 0;
    for (int i = 0; i < bits; ++i) {
      value |= uint64_t{lanes[(bit + i) / 32][lane] >> (bit + i) % 32 & 1} << i;
    }
    return value;
  }
};

struct Modifiers {
  int cbsz = 0;
  int abid = 0;
  int blgp = 0;
};

/// One instruction in the model's terms.
struct Case {
  const MatrixOp* op;
  Target target;
  MatrixFormat a;
  MatrixFormat b;
  MatrixFormat d;
  Modifiers modifiers = {};
  Registers ra = {};
  Registers rb = {};
  Registers rc = {};
  Registers index = {};
  Registers scale_a = {};
  Registers scale_b = {};
  int op_sel_a = 0;
  int op_sel_b = 0;

  /// Section 7.1.4.1: K_L consecutive k in a lane; of what is wider than four registers (the tables
  /// of 7.1.5.1 and 7.5.1.3) each half of K_L for itself.
  std::pair<int, int> input_place(int outer_index, int k, int block, int outer, int kk,
                                  MatrixFormat format) const {
    const int groups = 64 / (outer * op->blocks);
    int k_l = kk / groups;
    int first = 0;
    if (k_l * width_of(format) > 128 && width_of(format) != 6) {
      k_l /= 2;
      first = k / (k_l * groups) * k_l;
      k %= k_l * groups;
    }
    return {outer_index + outer * (block + op->blocks * (k / k_l)), first + k % k_l};
  }

  uint64_t a_code(int row, int stored, int block) const {
    // Field text of CBSZ and ABID, CDNA4 section 13.3: in each set of 2^CBSZ blocks one is
    // broadcast.
    if (!op->scaled && a != MatrixFormat::f64 && !op->sparse &&
        op->instruction->a != MatrixFormat::chosen && modifiers.cbsz != 0) {
      block = block / (1 << modifiers.cbsz) * (1 << modifiers.cbsz) + modifiers.abid;
    }
    const auto [lane, item] =
        input_place(row, stored, block, op->m, op->sparse ? op->k / 2 : op->k, a);
    return ra.get(lane, item * width_of(a), width_of(a));
  }
  uint64_t b_code(int column, int k, int block) const {
    auto [lane, item] = input_place(column, k, block, op->n, op->k, b);
    if (op->instruction->b != MatrixFormat::chosen && !op->sparse && b != MatrixFormat::f64) {
      switch (modifiers.blgp) {  // table 29
        case 1:
          lane = lane % 32;
          break;
        case 2:
          lane = lane % 32 + 32;
          break;
        case 3:
          lane = (lane + 16) % 64;
          break;
        case 4:
          lane = lane % 16;
          break;
        case 5:
          lane = lane % 16 + 16;
          break;
        case 6:
          lane = lane % 16 + 32;
          break;
        case 7:
          lane = lane % 16 + 48;
          break;
        default:
          break;
      }
    }
    return rb.get(lane, item * width_of(b), width_of(b));
  }
  /// Section 7.1.4.2. Its formula for the lane puts rows inside blocks; for the one instruction
  /// where an item holds several of both (4x4x4_4b f64) the calculator has the blocks inside, as
  /// here.
  std::pair<int, int> output_place(int i, int j, int block) const {
    const int h = d == MatrixFormat::f64 ? 1 : 4;
    const int b_i = static_cast<int>(std::ceil(64.0 / (op->n * op->m / h)));
    const int m_i = 64 / b_i / op->n;
    const int g = op->m / (h * m_i);
    return {j + op->n * (block % b_i + b_i * (i / h % m_i)),
            i % h + h * (i / (h * m_i) + g * (block / b_i))};
  }

  /// The k that stored element `stored` of a row multiplies: section 7.5.1.
  int place(int row, int stored) const {
    const auto [lane, item] = input_place(row, stored, 0, op->m, op->k / 2, a);
    const int per_lane = op->k / 2 / (64 / op->m);
    const int sets = 16 / per_lane;
    const int set = modifiers.cbsz == 0 && sets > 1 ? modifiers.abid % sets : 0;
    return stored / 2 * 4 + static_cast<int>(index.get(lane, set * per_lane * 2 + item * 2, 2));
  }

  int scale(const Registers& from, int outer_index, int k, int outer, int op_sel) const {
    return static_cast<int>(from.get(outer_index + outer * (k / 32), 8 * op_sel, 8));
  }

  struct Sum {
    Real value = 0;
    Real magnitude = 0;  ///< sum of the finite |products| and |C|
  };
  Sum expected(int i, int j, int block) const {
    const auto [lane, item] = output_place(i, j, block);
    Real c = decode(rc.get(lane, item * width_of(d), width_of(d)), d, target);
    const bool f64 = d == MatrixFormat::f64;
    if (f64 && (modifiers.blgp & 4) != 0) {
      c = -c;
    }
    Sum sum{.value = c, .magnitude = std::isfinite(c) ? std::fabs(c) : 0};
    const int terms = op->sparse ? op->k / 2 : op->k;
    for (int t = 0; t < terms; ++t) {
      const int k = op->sparse ? place(i, t) : t;
      Real x = decode(a_code(i, t, block), a, target);
      Real y = decode(b_code(j, k, block), b, target);
      x = f64 && (modifiers.blgp & 1) != 0 ? -x : x;
      y = f64 && (modifiers.blgp & 2) != 0 ? -y : y;
      Real product = x * y;
      if (op->scaled) {
        const int of_a = scale(scale_a, i, k, op->m, op_sel_a);
        const int of_b = scale(scale_b, j, k, op->n, op_sel_b);
        product = of_a == 255 || of_b == 255 ? std::numeric_limits<Real>::quiet_NaN()
                                             : std::ldexp(product, of_a + of_b - 254);
      }
      sum.value += product;
      sum.magnitude += std::isfinite(product) ? std::fabs(product) : 0;
    }
    return sum;
  }

  uint64_t result(const Registers& rd, int i, int j, int block) const {
    const auto [lane, item] = output_place(i, j, block);
    return rd.get(lane, item * width_of(d), width_of(d));
  }

  MatrixOperands operands(Registers& rd) const {
    return {.d = rd.lanes,
            .a = ra.lanes,
            .b = rb.lanes,
            .c = op->sparse ? rd.lanes : rc.lanes,
            .index = op->sparse ? index.lanes : nullptr,
            .scale_a = op->scaled ? scale_a.lanes : nullptr,
            .scale_b = op->scaled ? scale_b.lanes : nullptr,
            .cbsz = static_cast<uint8_t>(modifiers.cbsz),
            .abid = static_cast<uint8_t>(modifiers.abid),
            .blgp = static_cast<uint8_t>(modifiers.blgp),
            .op_sel_a = static_cast<uint8_t>(op_sel_a),
            .op_sel_b = static_cast<uint8_t>(op_sel_b)};
  }
  void run(Registers& rd) const {
    if (op->sparse) {
      rd = rc;
    }
    op->run(operands(rd), target);
  }
};

/// Every instruction of both targets, f8f6f4 with every pair of formats.
template <class Visit>
void for_each_case(Visit visit) {
  for (const Target target : kTargets) {
    for (const MatrixOp& op : matrix_ops()) {
      if (find_matrix_op(op.name, target) == nullptr) {
        continue;
      }
      SCOPED_TRACE(std::string(op.name) + (target == Target::gfx942 ? " gfx942" : " gfx950"));
      Case c{.op = &op,
             .target = target,
             .a = op.instruction->a,
             .b = op.instruction->b,
             .d = op.instruction->d};
      if (c.a != MatrixFormat::chosen) {
        visit(c);
        continue;
      }
      using enum MatrixFormat;
      constexpr MatrixFormat kChoices[] = {fp8, bf8, fp6, bf6, fp4};  // CDNA4 section 7.1.5
      for (c.modifiers.cbsz = 0; c.modifiers.cbsz < 5; ++c.modifiers.cbsz) {
        for (c.modifiers.blgp = 0; c.modifiers.blgp < 5; ++c.modifiers.blgp) {
          c.a = kChoices[c.modifiers.cbsz];
          c.b = kChoices[c.modifiers.blgp];
          visit(c);
        }
      }
    }
  }
}

/// Index pairs that obey index0 < index1.
uint32_t random_indices(std::mt19937& random) {
  constexpr uint32_t kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110};
  uint32_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word = word << 4 | kPairs[random() % 6];
  }
  return word;
}

void fill_with_integers(Case& c, std::mt19937& random) {
  constexpr int kValues[] = {-3, -2, -1, 0, 1, 2, 3};
  const auto fill = [&](Registers& r, MatrixFormat format, int registers) {
    for (int lane = 0; lane < 64; ++lane) {
      for (int bit = 0; bit + width_of(format) <= registers * 32; bit += width_of(format)) {
        r.set(lane, bit, width_of(format), encode(kValues[random() % 7], format, c.target));
      }
    }
  };
  fill(c.ra, c.a, c.op->a_regs);
  fill(c.rb, c.b, c.op->b_regs);
  fill(c.rc, c.d, c.op->d_regs);
  for (int lane = 0; lane < 64; ++lane) {
    c.index.lanes[0][lane] = random_indices(random);
    // Powers of two that keep every sum an integer below 2^24.
    c.scale_a.lanes[0][lane] = 0x01010101U * (127 + random() % 4);
    c.scale_b.lanes[0][lane] = 0x01010101U * (127 + random() % 4);
  }
}

/// Whatever the order of summation, sums of small integers are exact.
TEST(Matrix, MultipliesIntegersExactly) {
  std::mt19937 random(20240601);
  for_each_case([&](Case& c) {
    const bool broadcasts = c.op->blocks > 1 && c.a != MatrixFormat::f64;
    const bool permutes = !c.op->sparse && c.op->instruction->a != MatrixFormat::chosen;
    std::vector<Modifiers> all = {c.modifiers};
    for (int cbsz = 1; broadcasts && 1 << cbsz <= c.op->blocks; ++cbsz) {
      for (int abid = 0; abid < 1 << cbsz; ++abid) {
        all.push_back({.cbsz = cbsz, .abid = abid, .blgp = static_cast<int>(random() % 8)});
      }
    }
    for (int blgp = 1; permutes && blgp < 8; ++blgp) {
      all.push_back({.blgp = blgp});
    }
    for (int abid = 0; c.op->sparse && abid < 4; ++abid) {
      all.push_back({.abid = abid});
      all.push_back({.cbsz = 1, .abid = abid});
    }
    for (const Modifiers& modifiers : all) {
      c.modifiers = modifiers;
      SCOPED_TRACE(testing::Message() << "cbsz " << modifiers.cbsz << " abid " << modifiers.abid
                                      << " blgp " << modifiers.blgp);
      fill_with_integers(c, random);
      Registers d;
      c.run(d);
      for (int block = 0; block < c.op->blocks; ++block) {
        for (int i = 0; i < c.op->m; ++i) {
          for (int j = 0; j < c.op->n; ++j) {
            const Real got = decode(c.result(d, i, j, block), c.d, c.target);
            ASSERT_EQ(got, c.expected(i, j, block).value)
                << "row " << i << " column " << j << " block " << block;
          }
        }
      }
    }
  });
}

void fill_with_codes(Case& c, std::mt19937& random) {
  for (int r = 0; r < 32; ++r) {
    for (int lane = 0; lane < 64; ++lane) {
      c.ra.lanes[r][lane] = static_cast<uint32_t>(random());
      c.rb.lanes[r][lane] = static_cast<uint32_t>(random());
      c.rc.lanes[r][lane] = static_cast<uint32_t>(random());
    }
  }
  for (int lane = 0; lane < 64; ++lane) {
    c.index.lanes[0][lane] = random_indices(random);
    const auto scales = [&] {  // mostly near 1, some extreme, some NaN
      uint32_t word = 0;
      for (int i = 0; i < 4; ++i) {
        const uint32_t kind = random() % 64;
        word = word << 8 | (kind == 0   ? 255
                            : kind == 1 ? 0
                            : kind == 2 ? 254
                                        : 117 + random() % 21);
      }
      return word;
    };
    c.scale_a.lanes[0][lane] = scales();
    c.scale_b.lanes[0][lane] = scales();
  }
}

/// Any codes: infinities and NaNs as IEEE 754 has them, and numbers within the error of a sum in
/// f32 (f64): each of K + 1 roundings errs by at most half an ulp of a partial sum, which no
/// magnitude above the sum of all magnitudes can have; below the normal range by half of the least
/// number.
TEST(Matrix, MultipliesAnyCodesWithinRounding) {
  std::mt19937 random(20240602);
  for_each_case([&](Case& c) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      fill_with_codes(c, random);
      c.op_sel_a = c.op->scaled ? static_cast<int>(random() % 4) : 0;
      c.op_sel_b = c.op->scaled ? static_cast<int>(random() % 4) : 0;
      Registers d;
      c.run(d);
      const bool f64 = c.d == MatrixFormat::f64;
      const Real largest =
          f64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
      const Real epsilon = std::ldexp(Real{1}, f64 ? -53 : -24);
      const Real least = std::ldexp(Real{1}, f64 ? -1075 : -150);
      for (int block = 0; block < c.op->blocks; ++block) {
        for (int i = 0; i < c.op->m; ++i) {
          for (int j = 0; j < c.op->n; ++j) {
            const Case::Sum want = c.expected(i, j, block);
            const uint64_t code = c.result(d, i, j, block);
            const Real got = decode(code, c.d, c.target);
            if (c.d == MatrixFormat::i32) {  // wraps
              ASSERT_EQ(static_cast<uint32_t>(code),
                        static_cast<uint32_t>(static_cast<int64_t>(want.value)));
              continue;
            }
            const auto where = [&] {
              return testing::Message()
                     << "row " << i << " column " << j << " block " << block << " got "
                     << static_cast<double>(got) << " want " << static_cast<double>(want.value);
            };
            if (std::isnan(want.value)) {
              ASSERT_EQ(code, f64 ? 0x7ff8000000000000 : 0x7fc00000) << where();
            } else if (want.magnitude > largest) {
              continue;  // a partial sum may overflow: signs and order decide
            } else if (std::isinf(want.value)) {
              ASSERT_EQ(got, want.value) << where();
            } else {
              const Real bound = (c.op->k + 2) * (epsilon * want.magnitude + least);
              ASSERT_LE(std::fabs(got - want.value), bound) << where();
            }
          }
        }
      }
    }
  });
}

/// Every code of A times 1: the formats' tables. Codes of 16 bits: all of them.
TEST(Matrix, DecodesEveryCode) {
  for (const Target target : kTargets) {
    for (const char* name :
         {"v_mfma_f32_16x16x32_fp8_fp8", "v_mfma_f32_16x16x32_bf8_bf8", "v_mfma_f32_16x16x16_f16",
          "v_mfma_f32_16x16x16_bf16", "v_mfma_f32_16x16x128_f8f6f4"}) {
      const MatrixOp* op = find_matrix_op(name, target);
      if (op == nullptr) {
        continue;
      }
      using enum MatrixFormat;
      std::vector<std::pair<MatrixFormat, int>> formats = {{op->instruction->a, 0}};
      if (formats[0].first == chosen) {
        formats = {{fp8, 0}, {bf8, 1}, {fp6, 2}, {bf6, 3}, {fp4, 4}};
      }
      for (const auto& [format, selector] : formats) {
        SCOPED_TRACE(testing::Message() << name << " format " << selector);
        auto c = std::make_unique<Case>();
        *c = {.op = op,
              .target = target,
              .a = format,
              .b = format,
              .d = f32,
              .modifiers = {.cbsz = selector, .blgp = selector}};
        for (int j = 0; j < 16; ++j) {  // B: row 0 is 1
          c->rb.set(j, 0, width_of(format), encode(1, format, target));
        }
        for (int first = 0; first < 1 << width_of(format); first += 16) {
          for (int i = 0; i < 16; ++i) {
            c->ra.set(i, 0, width_of(format),
                      static_cast<uint64_t>(first) + static_cast<uint64_t>(i));
          }
          Registers d;
          c->run(d);
          for (int i = 0; i < 16; ++i) {
            const Real want =
                decode(static_cast<uint64_t>(first) + static_cast<uint64_t>(i), format, target);
            for (const int j : {0, 15}) {
              const Real got = decode(c->result(d, i, j, 0), f32, target);
              ASSERT_TRUE(std::isnan(want) ? std::isnan(got) : got == want) << first + i;
            }
          }
        }
      }
    }
  }
}

TEST(Matrix, KeepsDenormalsAndOverflowsToInfinity) {
  const MatrixOp* op = find_matrix_op("v_mfma_f32_16x16x4_f32", Target::gfx942);
  ASSERT_NE(op, nullptr);
  Case c{.op = op,
         .target = Target::gfx942,
         .a = MatrixFormat::f32,
         .b = MatrixFormat::f32,
         .d = MatrixFormat::f32};
  const auto bits = [](float x) { return std::bit_cast<uint32_t>(x); };
  c.ra.set(0, 0, 32, bits(0x1p-140f));  // A[0][0]: a denormal
  c.ra.set(1, 0, 32, bits(0x1p127f));
  c.ra.set(2, 0, 32, bits(0x1p-100f));
  c.rb.set(0, 0, 32, bits(2));  // B[0][0]
  c.rb.set(1, 0, 32, bits(0x1p-45f));
  Registers d;
  c.run(d);
  EXPECT_EQ(c.result(d, 0, 0, 0), bits(0x1p-139f));
  EXPECT_EQ(c.result(d, 1, 0, 0), bits(std::numeric_limits<float>::infinity()));
  EXPECT_EQ(c.result(d, 2, 1, 0), bits(0x1p-145f));
}

/// The manuals' text on xf32: the mantissa is cut to 10 bits.
TEST(Matrix, CutsXf32) {
  const MatrixOp* op = find_matrix_op("v_mfma_f32_16x16x8_xf32", Target::gfx942);
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(find_matrix_op("v_mfma_f32_16x16x8_xf32", Target::gfx950), nullptr);
  Case c{.op = op,
         .target = Target::gfx942,
         .a = MatrixFormat::xf32,
         .b = MatrixFormat::xf32,
         .d = MatrixFormat::f32};
  c.ra.set(0, 0, 32, 0x3f801fff);  // 1 + 2^-10 - 2^-23
  c.rb.set(0, 0, 32, 0x3f800000);
  Registers d;
  c.run(d);
  EXPECT_EQ(c.result(d, 0, 0, 0), 0x3f800000U);
}

TEST(Matrix, OperandsMayOverlapTheResult) {
  std::mt19937 random(20240603);
  for_each_case([&](Case& c) {
    fill_with_integers(c, random);
    Registers apart;
    c.run(apart);
    // D in place of A, of B, of C, of the index and the scales.
    for (int which = 0; which < 6; ++which) {
      Case copy = c;
      Registers* over[] = {&copy.ra, &copy.rb, &copy.rc, &copy.index, &copy.scale_a, &copy.scale_b};
      Registers& d = *over[which];
      if (c.op->sparse && which != 2) {
        continue;  // C is D
      }
      MatrixOperands operands = copy.operands(d);
      c.op->run(operands, c.target);
      EXPECT_EQ(std::memcmp(d.lanes, apart.lanes, sizeof(Lanes) * c.op->d_regs), 0) << which;
    }
  });
}

TEST(Matrix, EveryInstructionSetOfTheHostGivesTheSameBits) {
  std::mt19937 random(20240604);
  for_each_case([&](Case& c) {
    fill_with_codes(c, random);
    cpu::force_isa(cpu::Isa::scalar);
    Registers scalar;
    c.run(scalar);
    for (const cpu::Isa isa : {cpu::Isa::avx2, cpu::Isa::avx512}) {
      if (isa <= cpu::detected_isa()) {
        cpu::force_isa(isa);
        Registers d;
        c.run(d);
        EXPECT_EQ(std::memcmp(d.lanes, scalar.lanes, sizeof(Lanes) * c.op->d_regs), 0)
            << cpu::name_of(isa);
      }
    }
    cpu::force_isa(std::nullopt);
  });
}

TEST(Matrix, TargetsHaveTheirOwn) {
  EXPECT_EQ(find_matrix_op("v_mfma_f32_16x16x32_f16", Target::gfx942), nullptr);
  EXPECT_NE(find_matrix_op("v_mfma_f32_16x16x32_f16", Target::gfx950), nullptr);
  EXPECT_EQ(find_matrix_op("v_mfma_f32_16x16x16f16", Target::gfx950), nullptr);
  int counts[2] = {};
  for (const MatrixOp& op : matrix_ops()) {
    for (const Target target : kTargets) {
      counts[target == Target::gfx950] += find_matrix_op(op.name, target) == &op ? 1 : 0;
    }
  }
  EXPECT_EQ(counts[0], 46);  // the manual's list for CDNA3
  EXPECT_EQ(counts[1], 68);  // CDNA4: 64, and f8f6f4 in two shapes with and without scales
}

}  // namespace
}  // namespace weft::sim

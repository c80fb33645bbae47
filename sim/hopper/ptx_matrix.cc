// Products of matrices that a warp holds in its registers: PTX ISA, "mma.sync", "ldmatrix",
// "stmatrix", "movmatrix". Products are exact and summed in double, then rounded once: what the
// tensor cores do between is not documented.
#include <algorithm>
#include <bit>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {
namespace {

/// Elements as they lie in a register.
struct Bf16Element {
  static constexpr int kBits = 16;
  static float widen(uint32_t bits) { return std::bit_cast<float>(bits << 16); }
};
struct F16Element {
  static constexpr int kBits = 16;
  static float widen(uint32_t bits) { return to_float(f16{static_cast<uint16_t>(bits)}); }
};
struct Tf32Element {
  static constexpr int kBits = 32;
  static float widen(uint32_t bits) { return std::bit_cast<float>(bits & ~0x1fffu); }
};
template <class F>
struct ByteElement {
  static constexpr int kBits = 8;
  static float widen(uint32_t bits) { return to_float(F{static_cast<uint8_t>(bits)}); }
};

/// Every live lane of the warp is at the instruction.
bool whole(Warp& warp, uint32_t mask) { return together(warp, ~0u, mask); }

/// d = a b + c: A 16 x k by rows, B k x 8 by columns, in registers of 32 bits; a lane (g, t) =
/// (lane / 4, lane % 4) has in register r of A row g + 8 (r % 2) and the elements of k from (t + 4
/// (r / 2)) elements-in-a-register on, in register r of B column g and the same elements; of C and
/// D rows g and g + 8, columns 2 t and 2 t + 1.
template <class E, int kDepth>
Step multiply(Warp& warp, const Instruction& in, uint32_t mask) {
  constexpr int kPerRegister = 32 / E::kBits;
  constexpr int kOfA = 16 * kDepth * E::kBits / 32 / 32;
  constexpr int kOfB = std::max(8 * kDepth * E::kBits / 32 / 32, 1);
  if (!whole(warp, mask)) {
    return Step::moved;
  }
  alignas(64) double a[16][kDepth];
  alignas(64) double b[kDepth][8];
  const auto unpack = [](uint32_t bits, int e) {
    return E::widen(kPerRegister == 1 ? bits
                                      : bits >> (e * E::kBits) & ((1u << (E::kBits & 31)) - 1));
  };
  for (int r = 0; r < kOfA; ++r) {
    const uint32_t* words = warp.in<uint32_t>(in.o[4 + r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int e = 0; e < kPerRegister; ++e) {
        a[lane / 4 + 8 * (r % 2)][(lane % 4 + 4 * (r / 2)) * kPerRegister + e] =
            unpack(words[lane], e);
      }
    }
  }
  for (int r = 0; r < kOfB; ++r) {
    const uint32_t* words = warp.in<uint32_t>(in.o[4 + kOfA + r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      for (int e = 0; e < kPerRegister; ++e) {
        b[(lane % 4 + 4 * r) * kPerRegister + e][lane / 4] = unpack(words[lane], e);
      }
    }
  }
  alignas(64) double sums[16][8];
  for (int r = 0; r < 4; ++r) {
    const uint32_t* words = warp.in<uint32_t>(in.o[4 + kOfA + kOfB + r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      sums[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2] = std::bit_cast<float>(words[lane]);
    }
  }
  for (int i = 0; i < 16; ++i) {
    for (int k = 0; k < kDepth; ++k) {
      for (int j = 0; j < 8; ++j) {
        sums[i][j] = std::fma(a[i][k], b[k][j], sums[i][j]);  // a product is exact
      }
    }
  }
  for (int r = 0; r < 4; ++r) {
    uint32_t* words = warp.out<uint32_t>(in.o[r]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto value = static_cast<float>(sums[lane / 4 + 8 * (r / 2)][lane % 4 * 2 + r % 2]);
      words[lane] = value != value ? 0x7fffffffu : std::bit_cast<uint32_t>(value);
    }
  }
  return Step::next;
}

/// Integers, exactly and modulo 2^32.
template <class A, class B>
Step multiply_bytes(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!whole(warp, mask)) {
    return Step::moved;
  }
  const auto at = [&](int operand, int lane, int e) {
    return warp.in<uint32_t>(in.o[operand])[lane] >> (8 * e);
  };
  uint32_t sums[4][kLanes];
  for (int r = 0; r < 4; ++r) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int row = lane / 4;
      const int column = lane % 4 * 2 + r % 2;
      uint32_t sum = warp.in<uint32_t>(in.o[10 + r])[lane];
      for (int k = 0; k < 32; ++k) {
        const int from = k / 4 % 4;
        const auto x = static_cast<A>(at(4 + r / 2 + k / 16 * 2, row * 4 + from, k % 4));
        const auto y = static_cast<B>(at(8 + k / 16, column * 4 + from, k % 4));
        sum += static_cast<uint32_t>(int32_t{x} * int32_t{y});
      }
      sums[r][lane] = sum;
    }
  }
  for (int r = 0; r < 4; ++r) {
    std::memcpy(warp.out<uint32_t>(in.o[r]), sums[r], sizeof(sums[r]));
  }
  return Step::next;
}

/// 8 x 8 matrices of 16-bit elements: row l of matrix m is at the address that lane 8 m + l gives;
/// lane l has elements (l / 4, 2 (l % 4) + {0, 1}), transposed with their places exchanged.
/// modifier: matrices.
bool locate_rows(Warp& warp, const Instruction& in, Slot base, uint32_t matrices, Places& rows) {
  const uint32_t lanes = matrices == 4 ? ~0u : (1u << (8 * matrices)) - 1;
  return locate(warp, lanes, Space::shared, base, in.wide != 0, in.immediate, 16, 16, rows);
}
template <bool kTransposed>
Step load_matrices(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!whole(warp, mask)) {
    return Step::moved;
  }
  Places rows;
  const uint32_t count = in.modifier;
  if (!locate_rows(warp, in, in.o[count], count, rows)) {
    return Step::fault;
  }
  for (uint32_t m = 0; m < count; ++m) {
    uint16_t matrix[8][8];
    for (uint32_t r = 0; r < 8; ++r) {
      std::memcpy(matrix[r], rows[8 * m + r], 16);
    }
    uint32_t* d = warp.out<uint32_t>(in.o[m]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = lane / 4;
      const int j = lane % 4 * 2;
      d[lane] = kTransposed ? matrix[j][i] | uint32_t{matrix[j + 1][i]} << 16
                            : matrix[i][j] | uint32_t{matrix[i][j + 1]} << 16;
    }
  }
  return Step::next;
}
template <bool kTransposed>
Step store_matrices(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!whole(warp, mask)) {
    return Step::moved;
  }
  Places rows;
  const uint32_t count = in.modifier;
  if (!locate_rows(warp, in, in.o[0], count, rows)) {
    return Step::fault;
  }
  for (uint32_t m = 0; m < count; ++m) {
    uint16_t matrix[8][8];
    const uint32_t* a = warp.in<uint32_t>(in.o[1 + m]);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int i = lane / 4;
      const int j = lane % 4 * 2;
      (kTransposed ? matrix[j][i] : matrix[i][j]) = static_cast<uint16_t>(a[lane]);
      (kTransposed ? matrix[j + 1][i] : matrix[i][j + 1]) = static_cast<uint16_t>(a[lane] >> 16);
    }
    for (uint32_t r = 0; r < 8; ++r) {
      std::memcpy(rows[8 * m + r], matrix[r], 16);
    }
  }
  return Step::next;
}
Step transpose(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!whole(warp, mask)) {
    return Step::moved;
  }
  uint16_t matrix[8][8];
  std::memcpy(matrix, warp.in<uint32_t>(in.o[1]), sizeof(matrix));
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  for (int lane = 0; lane < kLanes; ++lane) {
    const int i = lane / 4;
    const int j = lane % 4 * 2;
    d[lane] = matrix[j][i] | uint32_t{matrix[j + 1][i]} << 16;
  }
  return Step::next;
}

Found find_mma(const Statement& s) {
  struct Row {
    std::string_view opcode;
    Handler run;
  };
  static const Row kRows[] = {
      {"m16n8k16.row.col.f32.bf16.bf16.f32", multiply<Bf16Element, 16>},
      {"m16n8k8.row.col.f32.bf16.bf16.f32", multiply<Bf16Element, 8>},
      {"m16n8k16.row.col.f32.f16.f16.f32", multiply<F16Element, 16>},
      {"m16n8k8.row.col.f32.f16.f16.f32", multiply<F16Element, 8>},
      {"m16n8k8.row.col.f32.tf32.tf32.f32", multiply<Tf32Element, 8>},
      {"m16n8k4.row.col.f32.tf32.tf32.f32", multiply<Tf32Element, 4>},
      {"m16n8k32.row.col.f32.e4m3.e4m3.f32", multiply<ByteElement<e4m3fn>, 32>},
      {"m16n8k32.row.col.f32.e5m2.e5m2.f32", multiply<ByteElement<e5m2>, 32>},
      {"m16n8k32.row.col.s32.s8.s8.s32", multiply_bytes<int8_t, int8_t>},
      {"m16n8k32.row.col.s32.u8.u8.s32", multiply_bytes<uint8_t, uint8_t>},
  };
  for (const Row& row : kRows) {
    if (s.opcode.ends_with(row.opcode) && s.opcode.starts_with("mma.sync.aligned.")) {
      return Form{.run = row.run, .layout = "Wwww"};
    }
  }
  return {};
}

}  // namespace

Found find_matrix(const Statement& statement) {
  const std::string_view op = statement.words[0];
  if (op == "mma") {
    return find_mma(statement);
  }
  if (op == "movmatrix") {
    return Form{.run = transpose, .layout = "Ww"};
  }
  if ((op != "ldmatrix" && op != "stmatrix") || !statement.has("m8n8") ||
      statement.words.back() != "b16") {
    return {};
  }
  const bool transposed = statement.has("trans");
  const uint32_t count = statement.has("x4") ? 4 : statement.has("x2") ? 2 : 1;
  if (op == "ldmatrix") {
    return Form{.run = transposed ? load_matrices<true> : load_matrices<false>,
                .layout = "Wa",
                .modifier = count};
  }
  return Form{.run = transposed ? store_matrices<true> : store_matrices<false>,
              .layout = "aw",
              .modifier = count};
}

}  // namespace weft::ptx

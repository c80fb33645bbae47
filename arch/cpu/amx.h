// Intel's AMX: eight registers of up to 16 rows of 64 bytes, and a product of two of them that adds
// 16 x 16 sums of 32 products of bf16 in 16 cycles. Intel 64 and IA-32 Architectures Software
// Developer's Manual, volume 1, chapter 18. As assembly: compilers' intrinsics want the whole
// function compiled for it.
#pragma once

#include <cstdint>

namespace weft::cpu {

/// Whether the processor has it for bf16 and the system lets this process use it, which is asked
/// for on the first call.
bool has_amx_bf16();

/// What a tile register of each kind holds, 64 bytes a row: registers 0 to 3 sums, of the first
/// kTileRows rows of `a` the first two and of the rest the others; 4 and 5 those rows of `a`; 6 and
/// 7 weights.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};
inline constexpr int kTileRows = 16;

/// For up to 2 kTileRows rows of `a`.
inline TileConfig tile_config(int64_t rows) {
  TileConfig config;
  const auto first = static_cast<uint8_t>(rows < kTileRows ? rows : kTileRows);
  const auto second = static_cast<uint8_t>(rows - first);
  const uint8_t all[8] = {first, first, second, second, first, second, kTileRows, kTileRows};
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = all[i];
    config.row_bytes[i] = all[i] > 0 ? 64 : 0;
  }
  return config;
}

/// The same where weights come first: 4 and 5 have `count` of their rows, as the sums in 0 to 3 do,
/// and 6 and 7 pairs of columns.
inline TileConfig few_tile_config(int64_t count) {
  TileConfig config;
  for (int i = 0; i < 8; ++i) {
    config.rows[i] = static_cast<uint8_t>(i < 6 ? count : kTileRows);
    config.row_bytes[i] = 64;
  }
  return config;
}

/// Sets this thread's tile registers up, to zeros.
inline void configure_tiles(const TileConfig& config) {
  asm volatile("ldtilecfg %0" ::"m"(config));
}
/// By each thread that configured them, at its end: the system saves what is in use.
inline void release_tiles() { asm volatile("tilerelease"); }

/// `stride`: bytes from one row to the next.
template <int kTile>
void load_tile(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void store_tile(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
/// sums += a w: a row of `a` has 16 pairs of bf16, a row of w one pair for each of 16 columns. Each
/// product is rounded to nearest as it is added; subnormals are zeros.
template <int kSums, int kA, int kW>
void multiply_tiles() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSums), "i"(kA), "i"(kW));
}

}  // namespace weft::cpu

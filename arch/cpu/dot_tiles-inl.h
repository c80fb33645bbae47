// Product of a few rows in f32 with bf16 weights on AMX's tiles: the shape of a step of several
// sequences. Weights are the tiles' first operand, sixteen rows as they lie, so each is loaded once
// for all rows of `a`, of which every element is three bf16 (F32Tiles) in columns of their own.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "arch/cpu/amx.h"
#include "arch/cpu/dot_blocked-inl.h"
#include "arch/cpu/dot_units-inl.h"
#include "base/divide.h"
#include "base/range.h"

#if defined(WEFT_ARCH_CPU_DOT_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_TILES_INL_H_
#undef WEFT_ARCH_CPU_DOT_TILES_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_TILES_INL_H_
#endif

#if HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

inline constexpr int64_t kTileRows = cpu::kTileRows;

/// Whether few rows are multiplied so: sixteen rows of weights are then a block of memory that the
/// first-level cache holds, so that memory is read in order; longer rows would be sixteen streams.
constexpr bool suits_few_tiles(int64_t k) { return k % 32 == 0 && k <= 1024; }

/// Floats of scratch for up to `rows` rows.
constexpr int64_t few_tiles_floats(int64_t rows, int64_t k) {
  return round_up(rows * F32Tiles::kParts, kTileRows) * (k / F32Tiles::kElements);
}

/// Computes [rows, columns] and hands it to an epilogue as StreamProduct does. The sums of a row's
/// parts are added at the end, the smallest first.
template <int kMatrices, class Epilogue>
class FewTilesProduct {
  static constexpr int64_t kParts = F32Tiles::kParts;
  static constexpr int64_t kMostTiles = 2;  ///< of `a`'s columns, of 8 rows
  static constexpr int64_t kBlock = F32Tiles::kElements * kUnitBlock;  ///< elements of k in a tile

 public:
  FewTilesProduct(const Factors<bf16, kMatrices>& factors, Range rows, float* scratch,
                  Epilogue& epilogue)
      : factors_(factors),
        rows_(rows),
        tiles_(ceil_div(rows.size() * kParts, kTileRows)),
        blocks_(factors.k / kBlock),
        a_(scratch),
        epilogue_(epilogue) {
    pack_rows();
  }

  void run(Range columns) {
    for (int64_t c = columns.begin; c < columns.end; c += kPanel) {
      const Range panel{c, std::min(columns.end, c + kPanel)};
      epilogue_.begin(panel);
      if (tiles_ > 1) {
        multiply_panel<2>(panel);
      } else {
        multiply_panel<1>(panel);
      }
    }
    cpu::release_tiles();
  }

 private:
  /// a_: [tile][block of k][pair of the block][column of the tile], column part * rows + row.
  void pack_rows() {
    const int64_t columns = rows_.size() * kParts;
    alignas(64) float units[kMostTiles * kTileRows][kUnitBlock] = {};
    for (int64_t b = 0; b < blocks_; ++b) {
      for (int64_t r = 0; r < rows_.size(); ++r) {
        const auto* a = static_cast<const float*>(factors_.a) +
                        (rows_.begin + r) * factors_.a_stride + b * kBlock;
        F32Tiles::convert_row(a, DType::f32, kBlock, units[r], rows_.size() * kUnitBlock);
      }
      for (int64_t t = 0; t < ceil_div(columns, kTileRows); ++t) {
        FloatVec in[kFloatLanes];
#pragma GCC unroll 16
        for (size_t i = 0; i < kFloatLanes; ++i) {
          in[i] = hn::LoadU(FloatTag(), units[t * kTileRows + static_cast<int64_t>(i)]);
        }
        transpose(in, a_ + (t * blocks_ + b) * kTileRows * kUnitBlock, kTileRows);
      }
    }
  }

  /// A product of tiles takes 16 cycles, and 52 until its sums can be added to: as many groups of
  /// columns at once as give four tiles of sums.
  template <int kTiles>
  void multiply_panel(Range panel) {
    constexpr int kGroups = 4 / (kMatrices * kTiles);
    int64_t i = panel.begin;
    for (; i + kGroups * kTileRows <= panel.end; i += kGroups * kTileRows) {
      multiply<kTiles, kGroups>(i, kTileRows);
    }
    for (; i < panel.end; i += kTileRows) {
      multiply<kTiles, 1>(i, std::min(kTileRows, panel.end - i));
    }
  }

  /// Columns [first, first + count) of every matrix and those of further groups.
  template <int kTiles, int kGroups>
  HWY_INLINE void multiply(int64_t first, int64_t count) {
    constexpr int64_t kTileFloats = kTileRows * kUnitBlock;
    if (configured_ != count) {
      cpu::configure_tiles(cpu::few_tile_config(count));
      configured_ = count;
    }
    // Tiles of sums: [group][matrix][tile of a's columns].
    constexpr auto kAll = std::make_integer_sequence<int, kGroups * kMatrices>();
    const bf16* w[kGroups * kMatrices];
    for (int i = 0; i < kGroups * kMatrices; ++i) {
      w[i] = factors_.w[i % kMatrices] +
             (first + i / kMatrices * kTileRows) * factors_.w_stride[i % kMatrices];
    }
    cpu::zero_tile<0>();
    cpu::zero_tile<1>();
    cpu::zero_tile<2>();
    cpu::zero_tile<3>();
    const float* a = a_;
    for (int64_t b = 0; b < blocks_; ++b, a += kTileFloats) {
      cpu::load_tile<6>(a, 64);
      if constexpr (kTiles > 1) {
        cpu::load_tile<7>(a + blocks_ * kTileFloats, 64);
      }
      multiply_block<kTiles>(w, b * kBlock, kAll);
    }
    // [group and matrix][tile][weight row][column]
    alignas(64) float sums[kGroups * kMatrices][kMostTiles][kTileRows * kTileRows];
    if (count < kTileRows) {
      std::memset(sums, 0, sizeof(sums));
    }
    store_sums<kTiles>(sums, kAll);
    for (int64_t g = 0; g < kGroups; ++g) {
      finish<kTiles>(first + g * kTileRows, count, sums + g * kMatrices);
    }
  }
  template <int kTiles, int... kWhich>
  HWY_INLINE void multiply_block(const bf16* const* w, int64_t element,
                                 std::integer_sequence<int, kWhich...> /*which*/) {
    constexpr int64_t kAhead = static_cast<int64_t>(sizeof...(kWhich)) / kMatrices * kTileRows;
    (multiply_rows<kTiles, kWhich>(w[kWhich] + element, factors_.w_stride[kWhich % kMatrices],
                                   kAhead),
     ...);
  }
  template <int kTiles, int kWhich>
  HWY_INLINE static void multiply_rows(const bf16* w, int64_t stride, int64_t ahead) {
    // A tile's own loads are too few on their way at once.
    const bf16* next = w + ahead * stride;
#pragma GCC unroll 16
    for (int64_t i = 0; i < kTileRows; ++i) {
      __builtin_prefetch(next + i * stride, 0, 2);
    }
    cpu::load_tile<4 + kWhich % 2>(w, stride * static_cast<int64_t>(sizeof(bf16)));
    cpu::multiply_tiles<kWhich * kTiles, 4 + kWhich % 2, 6>();
    if constexpr (kTiles > 1) {
      cpu::multiply_tiles<kWhich * kTiles + 1, 4 + kWhich % 2, 7>();
    }
  }
  template <int kTiles, int kCount, int... kWhich>
  HWY_INLINE static void store_sums(float (&sums)[kCount][kMostTiles][kTileRows * kTileRows],
                                    std::integer_sequence<int, kWhich...> /*which*/) {
    (cpu::store_tile<kWhich * kTiles>(sums[kWhich][0], 64), ...);
    if constexpr (kTiles > 1) {
      (cpu::store_tile<kWhich * kTiles + 1>(sums[kWhich][1], 64), ...);
    }
  }

  template <int kTiles>
  void finish(int64_t first, int64_t count,
              const float (*sums)[kMostTiles][kTileRows * kTileRows]) {
    const FloatTag d;
    alignas(64) float turned[kMatrices][kMostTiles * kTileRows][kTileRows];  // [column][weight row]
    for (int m = 0; m < kMatrices; ++m) {
      for (int t = 0; t < kTiles; ++t) {
        FloatVec in[kFloatLanes];
#pragma GCC unroll 16
        for (size_t i = 0; i < kFloatLanes; ++i) {
          in[i] = hn::Load(d, sums[m][t] + i * kTileRows);
        }
        transpose(in, turned[m][t * kTileRows], kTileRows);
      }
    }
    const int64_t rows = rows_.size();
    for (int64_t r = 0; r < rows; ++r) {
      FloatVec all[kMatrices];
      for (int m = 0; m < kMatrices; ++m) {
        const auto part = [&](int64_t p) HWY_ATTR { return hn::Load(d, turned[m][p * rows + r]); };
        all[m] = hn::Add(hn::Add(part(2), part(1)), part(0));
      }
      epilogue_.finish(rows_.begin + r, first, count, all);
    }
  }

  const Factors<bf16, kMatrices>& factors_;
  const Range rows_;
  const int64_t tiles_, blocks_;
  float* const a_;
  Epilogue& epilogue_;
  int64_t configured_ = 0;  ///< weight rows that the tile registers are set up for
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();
#endif

#endif  // per-target include guard

// Product of many rows with weights: the shape of prefill, whose cost is arithmetic. After Goto and
// van de Geijn (2008): 64 weight rows are turned into a panel whose vectors run across the weight
// rows, and every strip of six rows of `a` is multiplied with the panel, the sums in registers. The
// panel stays in the second-level cache, strips of `a` come past it once per panel, read in place
// where they need no conversion, and the next panel's weights are prefetched from memory meanwhile.
//
// A sum runs over k from first to last, one unit after the other, whatever the tiling: a split of
// rows or columns changes no bit.
#include <algorithm>
#include <cstdint>
#include <span>

#include "arch/cpu/amx.h"
#include "arch/cpu/dot_packed-inl.h"
#include "arch/cpu/dot_units-inl.h"
#include "base/range.h"

#if defined(WEFT_ARCH_CPU_DOT_BLOCKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_BLOCKED_INL_H_
#undef WEFT_ARCH_CPU_DOT_BLOCKED_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_BLOCKED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

inline constexpr int64_t kPanel = 64;    ///< weight rows per panel
inline constexpr int kRegisterRows = 6;  ///< of a strip whose sums are in registers
/// Vectors of weight rows that a strip is multiplied with at once: 6 x 4 sums fill the 32 registers
/// of AVX-512, 6 x 2 the 16 of AVX2.
inline constexpr int kTileVectors = kFloatLanes == 8 ? 2 : 4;
inline constexpr int64_t kTile = kTileVectors * kFloatLanes;  ///< weight rows per tile
static_assert(kPanel % kTile == 0 && kUnitBlock % kFloatLanes == 0, "whole tiles, whole vectors");

/// out[unit][lane] = in[lane][unit] for one square of kFloatLanes weight rows and units.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void transpose(const FloatVec (&in)[1], float* out, int64_t /*stride*/) {
  store(FloatTag(), in[0], out);
}
#else
HWY_INLINE void transpose(const FloatVec (&in)[kFloatLanes], float* out, int64_t stride) {
  const FloatTag d;
  const hn::Repartition<uint64_t, FloatTag> d64;
  const auto wide = [&](FloatVec v) HWY_ATTR { return hn::BitCast(d64, v); };
  constexpr int kBlocks = kFloatLanes / 4;
  // In every 128-bit block b: part[g][j] = weight rows 4g..4g+3 of unit 4b + j.
  FloatVec part[kBlocks][4];
#pragma GCC unroll 4
  for (int g = 0; g < kBlocks; ++g) {
    const FloatVec* v = in + 4 * g;
    const auto low01 = wide(hn::InterleaveLower(d, v[0], v[1]));
    const auto low23 = wide(hn::InterleaveLower(d, v[2], v[3]));
    const auto high01 = wide(hn::InterleaveUpper(d, v[0], v[1]));
    const auto high23 = wide(hn::InterleaveUpper(d, v[2], v[3]));
    part[g][0] = hn::BitCast(d, hn::InterleaveLower(d64, low01, low23));
    part[g][1] = hn::BitCast(d, hn::InterleaveUpper(d64, low01, low23));
    part[g][2] = hn::BitCast(d, hn::InterleaveLower(d64, high01, high23));
    part[g][3] = hn::BitCast(d, hn::InterleaveUpper(d64, high01, high23));
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
#if HWY_TARGET == HWY_AVX3
    const auto lower01 = _mm512_shuffle_f32x4(part[0][j].raw, part[1][j].raw, 0x44);
    const auto lower23 = _mm512_shuffle_f32x4(part[2][j].raw, part[3][j].raw, 0x44);
    const auto upper01 = _mm512_shuffle_f32x4(part[0][j].raw, part[1][j].raw, 0xee);
    const auto upper23 = _mm512_shuffle_f32x4(part[2][j].raw, part[3][j].raw, 0xee);
    _mm512_storeu_ps(out + j * stride, _mm512_shuffle_f32x4(lower01, lower23, 0x88));
    _mm512_storeu_ps(out + (4 + j) * stride, _mm512_shuffle_f32x4(lower01, lower23, 0xdd));
    _mm512_storeu_ps(out + (8 + j) * stride, _mm512_shuffle_f32x4(upper01, upper23, 0x88));
    _mm512_storeu_ps(out + (12 + j) * stride, _mm512_shuffle_f32x4(upper01, upper23, 0xdd));
#else
    store(d, hn::ConcatLowerLower(d, part[1][j], part[0][j]), out + j * stride);
    store(d, hn::ConcatUpperUpper(d, part[1][j], part[0][j]), out + (4 + j) * stride);
#endif
  }
}
#endif

/// Where a call's scratch goes; all parts are multiples of 64 bytes. kTiles: multiplied by AMX.
template <bool kTiles>
struct BlockedScratch {
  static constexpr int kStripRows = kTiles ? 2 * cpu::kTileRows : kRegisterRows;
  static constexpr int64_t kRowBytes = int64_t{4} << 20;  ///< packed rows of `a` at most
  static constexpr int64_t kPanelUnits = 1024;            ///< units of k in a panel at most

  /// Packed rows of `a`, each of `units` units, that fit at a time: whole strips, one at least.
  static constexpr int64_t most_rows(int64_t units) {
    return std::max<int64_t>(1, kRowBytes / (units * 4 * kStripRows)) * kStripRows;
  }
  /// Those that are worked on at a time, so that all times are alike.
  static constexpr int64_t block_rows(int64_t rows, int64_t units) {
    const int64_t most = most_rows(units);
    const int64_t blocks = (rows + most - 1) / most;
    const int64_t even = (rows + blocks - 1) / blocks;
    return (even + kStripRows - 1) / kStripRows * kStripRows;
  }
  static constexpr int64_t panel_floats(int64_t units) {
    return std::min(units, kPanelUnits) * kPanel;
  }
  /// Sums carried from one part of k to the next; those of tiles come out by way of memory.
  static constexpr int64_t sum_floats(int64_t rows, int64_t units) {
    return units > kPanelUnits ? rows * kPanel : kTiles ? kStripRows * kPanel : 0;
  }
  /// Enough for any number of rows up to `rows`; block_rows() is not the largest for the most.
  /// `units` of weights, for each of which a row of `a` has `parts`.
  static constexpr int64_t bytes(int64_t rows, int64_t units, int64_t parts = 1) {
    return 4 * (std::min(rows, most_rows(parts * units)) * parts * units + panel_floats(units) +
                sum_floats(rows, units));
  }
};

/// Computes [rows, columns] and hands it to an epilogue like that of StreamProduct; `finish` is
/// called with every row before the next `begin`.
template <class Units, int kMatrices, class Epilogue>
class BlockedProduct {
  using Weight = typename Units::Weight;
  using Scratch = BlockedScratch<Units::kTiles>;
  static constexpr int kStripRows = Scratch::kStripRows;
  static constexpr int64_t kColumns = kPanel / kMatrices;     // of out, in a panel
  static constexpr int64_t kTileColumns = kTile / kMatrices;  // of out, in a tile
  static constexpr int64_t kBlockElements = kUnitBlock * Units::kElements;
  static constexpr int64_t kSquare = kFloatLanes * Units::kElements;  // of a transposed square

 public:
  BlockedProduct(const Factors<Weight, kMatrices>& factors, float* scratch, Epilogue& epilogue)
      : factors_(factors),
        units_(padded_units<Units::kElements>(factors.k)),
        scratch_(scratch),
        epilogue_(epilogue) {}

  void run(Range rows, Range columns) {
    // Rows of whole blocks and whole units need no packing.
    in_place_ = Units::kInPlace && factors_.k % kBlockElements == 0 &&
                factors_.a_stride % Units::kElements == 0 &&
                reinterpret_cast<uintptr_t>(factors_.a) % sizeof(float) == 0;
    const int64_t most =
        in_place_ ? rows.size() : Scratch::block_rows(rows.size(), units_ * Units::kParts);
    panel_ = scratch_;
    sums_ = panel_ + Scratch::panel_floats(units_);
    strips_ = sums_ + Scratch::sum_floats(rows.size(), units_);
    for (int64_t r = rows.begin; r < rows.end; r += most) {
      rows_ = {r, std::min(rows.end, r + most)};
      if (!in_place_) {
        pack_rows();
      }
      for (int64_t c = columns.begin; c < columns.end; c += kColumns) {
        multiply_panel({c, std::min(columns.end, c + kColumns)}, columns.end);
      }
    }
    if constexpr (Units::kTiles) {
      cpu::release_tiles();
      configured_rows_ = 0;
    }
  }

 private:
  /// strips_: [strip][unit block][part][row of the strip][kUnitBlock]: a strip's rows lie side by
  /// side, so that walking along k touches consecutive lines whatever the stride of `a`.
  void pack_rows() {
    const int64_t whole = factors_.k / kBlockElements;
    const auto* a = static_cast<const std::byte*>(factors_.a);
    const int64_t element = size_of(factors_.a_dtype);
    for (int64_t s = rows_.begin; s < rows_.end; s += kStripRows) {
      const int64_t count = std::min<int64_t>(kStripRows, rows_.end - s);
      float* strip = strips_ + (s - rows_.begin) * units_ * Units::kParts;
      for (int64_t r = 0; r < count; ++r) {
        const std::byte* row = a + (s + r) * factors_.a_stride * element;
        float* out = strip + r * kUnitBlock;
        const auto step = [&](int64_t block) { return row + block * kBlockElements * element; };
        for (int64_t b = 0; b < whole; ++b, out += count * kUnitBlock * Units::kParts) {
          pack_block(step(b), kBlockElements, out, count * kUnitBlock);
        }
        if (const int64_t rest = factors_.k - whole * kBlockElements; rest > 0) {
          std::fill(out, out + kUnitBlock, 0.0f);
          pack_block(step(whole), rest, out, count * kUnitBlock);
        }
      }
    }
  }
  void pack_block(const std::byte* from, int64_t elements, float* out,
                  [[maybe_unused]] int64_t part_step) const {
    if constexpr (Units::kParts > 1) {
      Units::convert_row(from, factors_.a_dtype, elements, out, part_step);
    } else {
      Units::convert_row(from, factors_.a_dtype, elements, out);
    }
  }

  /// Where a strip's units are: `data`[block * block_step + part * part_step + row * row_step +
  /// unit of the block].
  struct Strip {
    const float* data;
    int64_t row_step, block_step, part_step = 0;
  };
  Strip find_strip(int64_t index, int64_t count) const {
    if (!in_place_) {
      return {strips_ + index * kStripRows * units_ * Units::kParts, kUnitBlock,
              count * kUnitBlock * Units::kParts, count * kUnitBlock};
    }
    const auto* a = static_cast<const std::byte*>(factors_.a);
    const std::byte* first =
        a + (rows_.begin + index * kStripRows) * factors_.a_stride * size_of(factors_.a_dtype);
    return {reinterpret_cast<const float*>(first), factors_.a_stride / Units::kElements,
            kUnitBlock};
  }

  /// Which matrix and column the panel's i-th row is. Beyond the last column, the last one is
  /// repeated: its sums are computed and dropped.
  struct PanelRow {
    int64_t matrix, column;
  };
  static PanelRow panel_row(Range columns, int64_t i) {
    const int64_t column = columns.begin + i / kTile * kTileColumns + i % kTileColumns;
    return {i % kTile / kTileColumns, std::min(column, columns.end - 1)};
  }
  const Weight* weight_row(PanelRow row) const {
    return factors_.w[row.matrix] + row.column * factors_.w_stride[row.matrix];
  }
  /// Which row of which group a panel's row is in packed weights.
  struct PackedRow {
    int64_t group, row;
  };
  PackedRow packed_row(PanelRow row) const {
    const int64_t width = factors_.packed->group_columns();
    return {row.column / width, row.matrix * width + row.column % width};
  }

  /// panel_: [tile][unit][kTile].
  float* panel_place(int64_t i, int64_t unit, int64_t units) const {
    return panel_ + i / kTile * units * kTile + unit * kTile + i % kTile;
  }
  void pack_panel(Range columns, Range units) {
    const Range elements{units.begin * Units::kElements, units.end * Units::kElements};
    if constexpr (std::is_same_v<Weight, bf16>) {
      if (factors_.packed != nullptr) {
        unpack_panel(columns, elements);
        return put_listed(columns, elements);
      }
    }
    for (int64_t i = 0; i < kPanel; i += kFloatLanes) {
      const Weight* rows[kFloatLanes];
      const float* scales[kFloatLanes];
      for (size_t lane = 0; lane < kFloatLanes; ++lane) {
        const PanelRow row = panel_row(columns, i + lane);
        rows[lane] = weight_row(row);
        scales[lane] = factors_.scales[row.matrix].of_row(row.column);
      }
      float* out = panel_place(i, 0, units.size());
      for (int64_t e = elements.begin; e < elements.end; e += kSquare, out += kFloatLanes * kTile) {
        if constexpr (std::is_same_v<Weight, e4m3fn>) {
          pack_scaled_square(rows, scales, e, factors_.k - e, out);
        } else {
          pack_square(rows, e, factors_.k - e, out);
        }
      }
    }
  }
  /// As pack_square(), of codes with their rows' scales.
  void pack_scaled_square(const e4m3fn* const* rows, const float* const* scales, int64_t element,
                          int64_t left, float* out) {
    const int64_t block = element / kScaleBlock * factors_.scales[0].step();
    FloatVec in[kFloatLanes];
    for (size_t lane = 0; lane < kFloatLanes; ++lane) {
      const float factor = scales[lane][block] * kE4m3Unit;
      if (left >= kSquare) {
        in[lane] = Units::scaled_weights(rows[lane] + element, factor);
      } else if (left > 0) {
        e4m3fn padded[kSquare] = {};
        std::memcpy(padded, rows[lane] + element, static_cast<size_t>(left));
        in[lane] = Units::scaled_weights(padded, factor);
      } else {
        in[lane] = hn::Zero(FloatTag());
      }
    }
    transpose(in, out, kTile);
  }
  /// kFloatLanes rows' units from an element on, of which `left` are there.
  void pack_square(const Weight* const* rows, int64_t element, int64_t left, float* out) {
    FloatVec in[kFloatLanes];
    if (left >= kSquare) {
#pragma GCC unroll 16
      for (size_t lane = 0; lane < kFloatLanes; ++lane) {
        in[lane] = Units::weights(rows[lane] + element);
      }
    } else {
      for (size_t lane = 0; lane < kFloatLanes; ++lane) {
        in[lane] =
            left > 0 ? Units::first_weights(rows[lane] + element, left) : hn::Zero(FloatTag());
      }
    }
    transpose(in, out, kTile);
  }
  /// The same as pack_panel() from packed weights, by way of a block of each row.
  void unpack_panel(Range columns, Range elements) {
    bf16 unpacked[kFloatLanes][cpu::kPackedBlock];
    const bf16* rows[kFloatLanes];
    PackedRow from[kFloatLanes];
    for (int64_t i = 0; i < kPanel; i += kFloatLanes) {
      for (size_t lane = 0; lane < kFloatLanes; ++lane) {
        rows[lane] = unpacked[lane];
        from[lane] = packed_row(panel_row(columns, i + lane));
      }
      float* out = panel_place(i, 0, elements.size() / Units::kElements);
      for (int64_t e = elements.begin; e < elements.end; e += cpu::kPackedBlock) {
        for (size_t lane = 0; lane < kFloatLanes; ++lane) {
          unpack_block(factors_.packed->group(from[lane].group), from[lane].row,
                       e / cpu::kPackedBlock, unpacked[lane]);
        }
        const int64_t count = std::min(cpu::kPackedBlock, elements.end - e);
        for (int64_t j = 0; j < count; j += kSquare, out += kFloatLanes * kTile) {
          pack_square(rows, j, kSquare, out);
        }
      }
    }
  }
  /// Puts the weights that packed rows list where zeros stand for them.
  void put_listed(Range columns, Range elements) {
    for (int64_t i = 0; i < kPanel; ++i) {
      const PackedRow found = packed_row(panel_row(columns, i));
      for (const cpu::ListedWeight& weight :
           factors_.packed->list({found.group, found.group + 1})) {
        if (weight.row == found.row && weight.element >= elements.begin &&
            weight.element < elements.end) {
          const int64_t e = weight.element - elements.begin;
          Units::set(panel_place(i, e / Units::kElements, elements.size() / Units::kElements),
                     e % Units::kElements, weight.value);
        }
      }
    }
  }

  /// All rows of the block times the weight rows of `columns`.
  void multiply_panel(Range columns, int64_t last_column) {
    epilogue_.begin(columns);
    for (int64_t u = 0; u < units_; u += Scratch::kPanelUnits) {
      const Range units{u, std::min(units_, u + Scratch::kPanelUnits)};
      pack_panel(columns, units);
      find_next_weights(columns, units, last_column);
      const int64_t strips = (rows_.size() + kStripRows - 1) / kStripRows;
      for (int64_t s = 0; s < strips; ++s) {
        const int64_t from = s * kPanel / strips;
        const int64_t to = (s + 1) * kPanel / strips;
        const Range prefetched = next_[0] == nullptr ? Range{} : Range{from, to};
        const int64_t count = std::min<int64_t>(kStripRows, rows_.size() - s * kStripRows);
        if constexpr (Units::kTiles) {
          multiply_in_tiles(s, count, units, columns, prefetched);
        } else {
          for (int64_t t = 0; t < kPanel / kTile; ++t) {
            multiply_strip(s, count, t, units, columns, t == 0 ? prefetched : Range{});
          }
        }
      }
    }
  }

  /// next_: what pack_panel() will read next, for each of the panel's rows as many bytes.
  void find_next_weights(Range columns, Range units, int64_t last_column) {
    const Range following{columns.end, std::min(last_column, columns.end + kColumns)};
    const bool same = units.end < units_;  // columns
    const int64_t element = same ? units.end * Units::kElements : 0;
    const Range next = same ? columns : following;
    for (int64_t i = 0; i < kPanel; ++i) {
      next_[i] = next.empty() ? nullptr : weight_bytes(panel_row(next, i), element);
    }
  }
  const std::byte* weight_bytes(PanelRow row, int64_t element) const {
    if (factors_.packed == nullptr) {
      return reinterpret_cast<const std::byte*>(weight_row(row) + element);
    }
    const PackedRow found = packed_row(row);
    const int64_t left = std::min(Scratch::kPanelUnits * Units::kElements, factors_.k - element);
    return factors_.packed->group(found.group) + cpu::kGroupHeader +
           element / cpu::kPackedBlock * cpu::kBlockBytes +
           found.row * (left * cpu::kBlockBytes / (cpu::kPackedBlock * cpu::kGroupRows));
  }
  /// Bytes of a weight row in a block of units.
  int64_t block_bytes() const {
    return factors_.packed == nullptr
               ? kBlockElements * static_cast<int64_t>(sizeof(Weight))
               : kBlockElements * cpu::kBlockBytes / (cpu::kPackedBlock * cpu::kGroupRows);
  }

  /// `count` x kPanel sums over `units`, in four tiles at a time: two of rows by two of weight
  /// rows.
  HWY_NOINLINE void multiply_in_tiles(int64_t strip, int64_t count, Range units, Range columns,
                                      Range prefetched) {
    if (configured_rows_ != count) {
      cpu::configure_tiles(cpu::tile_config(count));
      configured_rows_ = count;
    }
    const Strip found = find_strip(strip, count);
    const float* a = found.data + units.begin / kUnitBlock * found.block_step;
    float* sums = units_ > Scratch::kPanelUnits ? sums_ + strip * kStripRows * kPanel : sums_;
    constexpr int64_t kColumnsAtOnce = 2 * cpu::kTileRows;
    for (int64_t c = 0; c < kPanel; c += kColumnsAtOnce) {
      const Range ahead = c == 0 ? prefetched : Range{};
      if (count > cpu::kTileRows) {
        multiply_tiles<true>(a, found, c, units, ahead, sums + c);
      } else {
        multiply_tiles<false>(a, found, c, units, ahead, sums + c);
      }
    }
    if (units.end < units_) {
      return;
    }
    const FloatTag d;
    const int64_t row = rows_.begin + strip * kStripRows;
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t v = 0; v < kColumns && columns.begin + v < columns.end; v += kFloatLanes) {
        FloatVec found_sums[kMatrices];
        for (int64_t m = 0; m < kMatrices; ++m) {
          found_sums[m] = hn::LoadU(d, sums + r * kPanel + m * kColumns + v);
        }
        const int64_t column = columns.begin + v;
        epilogue_.finish(row + r, column, std::min<int64_t>(kFloatLanes, columns.end - column),
                         found_sums);
      }
    }
  }
  /// kBoth: there are more than kTileRows rows.
  template <bool kBoth>
  HWY_INLINE void multiply_tiles(const float* a, const Strip& strip, int64_t column, Range units,
                                 Range prefetched, float* sums) {
    constexpr int64_t kBytes = sizeof(float);
    float* lower = sums + cpu::kTileRows * kPanel;
    if (units.begin == 0) {
      cpu::zero_tile<0>();
      cpu::zero_tile<1>();
      if constexpr (kBoth) {
        cpu::zero_tile<2>();
        cpu::zero_tile<3>();
      }
    } else {
      cpu::load_tile<0>(sums, kPanel * kBytes);
      cpu::load_tile<1>(sums + cpu::kTileRows, kPanel * kBytes);
      if constexpr (kBoth) {
        cpu::load_tile<2>(lower, kPanel * kBytes);
        cpu::load_tile<3>(lower + cpu::kTileRows, kPanel * kBytes);
      }
    }
    const float* w = panel_ + column;
    const int64_t step = block_bytes();
    for (int64_t u = 0, ahead = 0; u < units.size();
         u += kUnitBlock, ahead += step, a += strip.block_step, w += kUnitBlock * kTile) {
      for (int64_t i = prefetched.begin; i < prefetched.end; ++i) {
        __builtin_prefetch(next_[i] + ahead);
      }
      cpu::load_tile<6>(w, kTile * kBytes);
      cpu::load_tile<7>(w + cpu::kTileRows, kTile * kBytes);
#pragma GCC unroll 3
      for (int64_t part = 0; part < Units::kParts; ++part) {
        const float* rows = a + part * strip.part_step;
        cpu::load_tile<4>(rows, strip.row_step * kBytes);
        cpu::multiply_tiles<0, 4, 6>();
        cpu::multiply_tiles<1, 4, 7>();
        if constexpr (kBoth) {
          cpu::load_tile<5>(rows + cpu::kTileRows * strip.row_step, strip.row_step * kBytes);
          cpu::multiply_tiles<2, 5, 6>();
          cpu::multiply_tiles<3, 5, 7>();
        }
      }
    }
    cpu::store_tile<0>(sums, kPanel * kBytes);
    cpu::store_tile<1>(sums + cpu::kTileRows, kPanel * kBytes);
    if constexpr (kBoth) {
      cpu::store_tile<2>(lower, kPanel * kBytes);
      cpu::store_tile<3>(lower + cpu::kTileRows, kPanel * kBytes);
    }
  }

  void multiply_strip(int64_t strip, int64_t count, int64_t tile, Range units, Range columns,
                      Range prefetched) {
    switch (count) {
      case 1:
        return multiply_tile<1>(strip, tile, units, columns, prefetched);
      case 2:
        return multiply_tile<2>(strip, tile, units, columns, prefetched);
      case 3:
        return multiply_tile<3>(strip, tile, units, columns, prefetched);
      case 4:
        return multiply_tile<4>(strip, tile, units, columns, prefetched);
      case 5:
        return multiply_tile<5>(strip, tile, units, columns, prefetched);
      default:
        return multiply_tile<kStripRows>(strip, tile, units, columns, prefetched);
    }
  }

  /// kRows x kTile sums over `units`, in registers.
  template <int kRows>
  HWY_NOINLINE void multiply_tile(int64_t strip, int64_t tile, Range units, Range columns,
                                  Range prefetched) {
    const FloatTag d;
    const Strip found = find_strip(strip, kRows);
    const float* a = found.data + units.begin / kUnitBlock * found.block_step;
    const int64_t row_step = found.row_step;
    const float* w = panel_ + tile * units.size() * kTile;
    float* carried = sums_ + (strip * kStripRows) * kPanel + tile * kTile;
    FloatVec sum[kRows][kTileVectors];
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors; ++v) {
        sum[r][v] =
            units.begin == 0 ? hn::Zero(d) : hn::LoadU(d, carried + r * kPanel + v * kFloatLanes);
      }
    }
    const int64_t step = block_bytes();
    for (int64_t u = 0, ahead = 0; u < units.size();
         u += kUnitBlock, ahead += step, a += found.block_step) {
      for (int64_t i = prefetched.begin; i < prefetched.end; ++i) {
        __builtin_prefetch(next_[i] + ahead);
      }
#pragma GCC unroll 2
      for (int64_t j = 0; j < kUnitBlock; ++j, w += kTile) {
        FloatVec weights[kTileVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) {
          weights[v] = hn::LoadU(d, w + v * kFloatLanes);
        }
#pragma GCC unroll 6
        for (int r = 0; r < kRows; ++r) {
          const FloatVec x = hn::Set(d, a[r * row_step + j]);
#pragma GCC unroll 4
          for (int v = 0; v < kTileVectors; ++v) {
            sum[r][v] = Units::multiply_add(x, weights[v], sum[r][v]);
          }
        }
      }
    }
    if (units.end < units_) {
#pragma GCC unroll 6
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kTileVectors; ++v) {
          hn::StoreU(sum[r][v], d, carried + r * kPanel + v * kFloatLanes);
        }
      }
      return;
    }
    const int64_t row = rows_.begin + strip * kStripRows;
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (int v = 0; v < kTileVectors / kMatrices; ++v) {
        const int64_t c = columns.begin + tile * kTileColumns + v * kFloatLanes;
        if (c < columns.end) {
          FloatVec sums[kMatrices];
          for (int m = 0; m < kMatrices; ++m) {
            sums[m] = sum[r][v + m * (kTileVectors / kMatrices)];
          }
          epilogue_.finish(row + r, c, std::min<int64_t>(kFloatLanes, columns.end - c), sums);
        }
      }
    }
  }

  const Factors<Weight, kMatrices>& factors_;
  int64_t units_;  // per row, a multiple of kUnitBlock
  float* scratch_;
  float* strips_ = nullptr;
  float* panel_ = nullptr;
  float* sums_ = nullptr;
  bool in_place_ = false;  // strips are read from `a` itself
  Epilogue& epilogue_;
  int64_t configured_rows_ = 0;    // that the tile registers are set up for
  Range rows_;                     // the block of rows that strips_ holds
  const std::byte* next_[kPanel];  // null: nothing comes next
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

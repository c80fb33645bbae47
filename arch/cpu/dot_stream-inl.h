// Product of a few rows with weights that are read from memory once: the shape of a decode step,
// whose cost is the weights' bytes. Two to six weight rows are in flight at once, so that the
// sums are independent and a row of `a` is loaded once for all. They are not neighbours: each comes
// from its own part of the columns, so that memory is read as a few long streams, which the
// hardware prefetchers follow at full bandwidth (with neighbours a stream would stop at every row's
// end; prefetch instructions make it slower). Packed weights (packed.h) are one stream of sixteen
// rows.
#include <algorithm>
#include <cstdint>

#include "arch/cpu/dot_blocked-inl.h"
#include "arch/cpu/dot_packed-inl.h"
#include "arch/cpu/dot_units-inl.h"
#include "arch/cpu/streams.h"
#include "base/range.h"

#if defined(WEFT_ARCH_CPU_DOT_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_STREAM_INL_H_
#undef WEFT_ARCH_CPU_DOT_STREAM_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_STREAM_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

using cpu::kStreamRows;
/// Sums of a stream gathered before the epilogue. Many, because reading them as vectors right after
/// they were written one by one waits until all loads before them are over, weights from memory
/// among them.
inline constexpr int64_t kGather = 2 * kPanel;

/// sum[r][c] += a[r] . w[c] over [first, end) of their k elements, where `a` holds units, zero
/// beyond k. Every sum runs over k in the same order whatever kRows and kColumns are.
template <class Units, int kRows, int kColumns>
HWY_INLINE void add_dots(const float* a, int64_t a_stride, const typename Units::Weight* const* w,
                         Range k, FloatVec (&sum)[kRows][kColumns]) {
  const FloatTag d;
  constexpr int64_t kStep = kFloatLanes * Units::kElements;
  const auto step = [&](int64_t i, auto load_weights) HWY_ATTR {
#pragma GCC unroll 8
    for (int c = 0; c < kColumns; ++c) {
      const FloatVec weights = load_weights(w[c] + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const FloatVec x = hn::LoadU(d, a + r * a_stride + i / Units::kElements);
        sum[r][c] = Units::multiply_add(x, weights, sum[r][c]);
      }
    }
  };
  int64_t i = k.begin;
  for (; i + kStep <= k.end; i += kStep) {
    step(i, [](const auto* p) HWY_ATTR { return Units::weights(p); });
  }
  if (i < k.end) {
    step(i, [&](const auto* p) HWY_ATTR { return Units::first_weights(p, k.end - i); });
  }
}

template <int kRows, int kColumns>
HWY_INLINE void reduce(const FloatVec (&sum)[kRows][kColumns], float (&sums)[kRows][kColumns]) {
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = hn::GetLane(hn::SumOfLanes(FloatTag(), sum[r][c]));
    }
  }
}

template <int kRows, int kColumns>
HWY_INLINE void clear(FloatVec (&sum)[kRows][kColumns]) {
  for (auto& row : sum) {
    std::fill(row, row + kColumns, hn::Zero(FloatTag()));
  }
}

/// sums[r][c] = a[r] . w[c].
template <class Units, int kRows, int kColumns>
void stream_dots(const float* a, int64_t a_stride, const typename Units::Weight* const* w,
                 int64_t k, float (&sums)[kRows][kColumns]) {
  FloatVec sum[kRows][kColumns];
  clear(sum);
  add_dots<Units, kRows, kColumns>(a, a_stride, w, {0, k}, sum);
  reduce(sum, sums);
}

/// The same of codes, where each `block` elements of w[c] have the next of its scales[c].
template <class Units, int kRows, int kColumns>
void scaled_dots(const float* a, int64_t a_stride, const typename Units::Weight* const* w,
                 const float* const* scales, int64_t block, int64_t k,
                 float (&sums)[kRows][kColumns]) {
  FloatVec sum[kRows][kColumns];
  clear(sum);
  for (int64_t i = 0, b = 0; i < k; i += block, ++b) {
    FloatVec part[kRows][kColumns];
    clear(part);
    add_dots<Units, kRows, kColumns>(a, a_stride, w, {i, std::min(k, i + block)}, part);
    for (int c = 0; c < kColumns; ++c) {
      const FloatVec scale = hn::Set(FloatTag(), scales[c][b] * kE4m3Unit);
      for (int r = 0; r < kRows; ++r) {
        sum[r][c] = hn::MulAdd(part[r][c], scale, sum[r][c]);
      }
    }
  }
  reduce(sum, sums);
}

/// Computes [rows, columns] and hands it to
///   epilogue.begin(columns): kPanel columns at most come next
///   epilogue.finish(row, first column, count, one vector of sums for each matrix).
/// units: [rows.size()][padded_units(k), or packed_units(k)].
template <class Units, int kMatrices, class Epilogue>
class StreamProduct {
  using Weight = typename Units::Weight;

 public:
  StreamProduct(const Factors<Weight, kMatrices>& factors, Range rows, float* units,
                Epilogue& epilogue)
      : factors_(factors),
        rows_(rows),
        units_(units),
        stride_(factors.packed != nullptr ? packed_units<Units::kElements>(factors.k)
                                          : padded_units<Units::kElements>(factors.k)),
        epilogue_(epilogue) {
    for (int64_t r = 0; r < rows.size(); ++r) {
      float* row = units + r * stride_;
      const auto* a = static_cast<const std::byte*>(factors.a) +
                      (rows.begin + r) * factors.a_stride * size_of(factors.a_dtype);
      if (factors.packed != nullptr) {
        Units::split_row(a, factors.a_dtype, factors.k, row);
        continue;
      }
      const int64_t used = (factors.k + Units::kElements - 1) / Units::kElements;
      std::fill(row + used, row + stride_, 0.0f);
      Units::convert_row(a, factors.a_dtype, factors.k, row);
    }
  }

  void run(Range columns) {
    if constexpr (std::is_same_v<Weight, bf16>) {
      if (factors_.packed != nullptr) {
        return run_packed(columns);
      }
    }
    switch (cpu::stream_count(stride_, rows_.size())) {
      case 2:
        return run_streams<2>(columns);
      case 4:
        return run_streams<4>(columns);
      default:
        return run_streams<6>(columns);
    }
  }

 private:
  template <int kStreams>
  void run_streams(Range columns) {
    constexpr int kParts = kStreams / kMatrices;
    const int64_t part = columns.size() / kParts;
    for (int64_t i = 0; i < part; i += kGather) {
      multiply<kParts>(columns.begin + i, part, std::min(kGather, part - i));
    }
    const int64_t rest = columns.begin + part * kParts;
    if (rest < columns.end) {
      multiply<1>(rest, 0, columns.end - rest);
    }
  }

  /// Those that are in flight together.
  template <int kCount>
  struct WeightRows {
    const Weight* data[kMatrices * kCount];
    const float* scales[kMatrices * kCount];  // of e4m3fn
  };

  /// Columns [first + p * part, first + p * part + count) for all p < kCount and all rows.
  template <int kCount>
  void multiply(int64_t first, int64_t part, int64_t count) {
    // As many rows as leave the sums in registers: 16 of AVX-512's 32, 8 of AVX2's 16.
    constexpr int kMaxRows =
        std::max(1, (kFloatLanes == 16 ? 16 : 8) / std::max(4, kMatrices * kCount));
    float sums[kStreamRows][kMatrices][kCount][kGather];  // not all of them are used
    for (int64_t i = 0; i < count; ++i) {
      WeightRows<kCount> w;
      for (int m = 0; m < kMatrices; ++m) {
        for (int p = 0; p < kCount; ++p) {
          const int64_t column = first + p * part + i;
          w.data[m * kCount + p] = factors_.w[m] + column * factors_.w_stride[m];
          w.scales[m * kCount + p] = factors_.scales[m].of_row(column);
        }
      }
      const int64_t rows = rows_.size();
      int64_t r = 0;
      // Weights come from memory for the first group of rows, from the cache for the others.
      for (; r + kMaxRows <= rows; r += kMaxRows) {
        dots<kMaxRows>(r, w, i, sums);
      }
      if (kMaxRows > 2 && r + 2 <= rows) {
        dots<2>(r, w, i, sums);
        r += 2;
      }
      if (r < rows) {
        dots<1>(r, w, i, sums);
      }
    }
    for (int p = 0; p < kCount; ++p) {
      finish(first + p * part, count, sums, p);
    }
  }

  void run_packed(Range columns) {
    const cpu::PackedMatrix& packed = *factors_.packed;
    const int64_t width = packed.group_columns();
    while (!columns.empty()) {
      // Whole groups but for those that the range cuts.
      const int64_t end = std::min(columns.end, columns.begin / width * width + kGather);
      multiply_packed(packed, {columns.begin, end});
      columns.begin = end;
    }
  }

  void multiply_packed(const cpu::PackedMatrix& packed, Range columns) {
    const int64_t width = packed.group_columns();
    const Range groups{columns.begin / width, (columns.end + width - 1) / width};
    float sums[kStreamRows][kMatrices][1][kGather];
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      const Place place{packed.group(g), g * width - columns.begin, columns.size()};
      const int64_t rows = rows_.size();
      int64_t r = 0;
      for (; r + 4 <= rows; r += 4) {
        packed_group<4>(r, place, sums);
      }
      if (r + 2 <= rows) {
        packed_group<2>(r, place, sums);
        r += 2;
      }
      if (r < rows) {
        packed_group<1>(r, place, sums);
      }
    }
    for (int64_t g = groups.begin; g < groups.end; ++g) {
      for (const cpu::ListedWeight& weight : packed.list({g, g + 1})) {
        const int64_t place = g * width + weight.row % width - columns.begin;
        for (int64_t r = 0; r < rows_.size() && place >= 0 && place < columns.size(); ++r) {
          const FloatTag d;
          float& sum = sums[r][weight.row / width][0][place];
          sum = hn::GetLane(
              hn::MulAdd(hn::Set(d, Units::element(units_ + r * stride_, weight.element)),
                         hn::Set(d, to_float(weight.value)), hn::Set(d, sum)));
        }
      }
    }
    finish(columns.begin, columns.size(), sums, 0);
  }

  /// A group, and where its first column's sums go: some may be before the first, or at `count` or
  /// beyond, which are dropped.
  struct Place {
    const std::byte* group;
    int64_t first, count;
  };

  template <int kRows>
  void packed_group(int64_t r, const Place& place,
                    float (&sums)[kStreamRows][kMatrices][1][kGather]) {
    constexpr int64_t kWidth = cpu::kGroupRows / kMatrices;
    float result[kRows][cpu::kGroupRows];
    packed_dots<Units>(units_ + r * stride_, stride_, place.group, cpu::packed_blocks(factors_.k),
                       result);
    for (int64_t c = 0; c < kWidth; ++c) {
      const int64_t to = place.first + c;
      for (int i = 0; i < kRows && to >= 0 && to < place.count; ++i) {
        for (int m = 0; m < kMatrices; ++m) {
          sums[r + i][m][0][to] = result[i][m * kWidth + c];
        }
      }
    }
  }

  template <int kRows, int kCount>
  void dots(int64_t r, const WeightRows<kCount>& w, int64_t place,
            float (&sums)[kStreamRows][kMatrices][kCount][kGather]) {
    float result[kRows][kMatrices * kCount];
    const float* a = units_ + r * stride_;
    if constexpr (std::is_same_v<Weight, e4m3fn>) {
      const bool blocks = factors_.scales[0].scaling == Scaling::block;
      scaled_dots<Units>(a, stride_, w.data, w.scales, blocks ? kScaleBlock : factors_.k,
                         factors_.k, result);
    } else {
      stream_dots<Units>(a, stride_, w.data, factors_.k, result);
    }
    for (int i = 0; i < kRows; ++i) {
      for (int m = 0; m < kMatrices; ++m) {
        for (int p = 0; p < kCount; ++p) {
          sums[r + i][m][p][place] = result[i][m * kCount + p];
        }
      }
    }
  }

  template <int kCount>
  void finish(int64_t first, int64_t count,
              const float (&sums)[kStreamRows][kMatrices][kCount][kGather], int p) {
    const int64_t lanes = kFloatLanes;
    for (int64_t panel = 0; panel < count; panel += kPanel) {
      const int64_t end = std::min(panel + kPanel, count);
      epilogue_.begin({first + panel, first + end});
      for (int64_t r = 0; r < rows_.size(); ++r) {
        for (int64_t c = panel; c < end; c += lanes) {
          FloatVec vectors[kMatrices];
          for (int m = 0; m < kMatrices; ++m) {
            const float* from = sums[r][m][p] + c;
            vectors[m] = end - c < lanes ? load_first(FloatTag(), from, end - c)
                                         : hn::LoadU(FloatTag(), from);
          }
          epilogue_.finish(rows_.begin + r, first + c, std::min(lanes, end - c), vectors);
        }
      }
    }
  }

  const Factors<Weight, kMatrices>& factors_;
  Range rows_;
  float* units_;
  int64_t stride_;
  Epilogue& epilogue_;
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

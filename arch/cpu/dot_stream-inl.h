// Product of a few rows with weights that are read from memory once: the shape of a decode step,
// whose cost is the weights' bytes. Four weight rows are in flight at once, so that the sums are
// independent and a row of `a` is loaded once for four, and the block of rows that comes next is
// prefetched: hardware prefetchers stop at every 4 KiB page, that is at every row or two.
#include <algorithm>
#include <cstdint>

#include "arch/cpu/dot_units-inl.h"
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

inline constexpr int64_t kStreamRows = 8;      ///< more rows go to the blocked product
inline constexpr int64_t kStreamColumns = 64;  ///< sums gathered before the epilogue sees them

/// sums[r][c] = a[r] . w[c], where `a` holds units, zero beyond k. Every sum runs over k in the
/// same order whatever kRows and kColumns are.
template <class Units, int kRows, int kColumns>
void stream_dots(const float* a, int64_t a_stride, const typename Units::Weight* const* w,
                 int64_t k, int64_t ahead, float (&sums)[kRows][kColumns]) {
  using Weight = typename Units::Weight;
  const FloatTag d;
  constexpr int64_t kStep = kFloatLanes * Units::kElements;
  constexpr int64_t kLine = std::max<int64_t>(kStep, 64 / sizeof(Weight));
  FloatVec sum[kRows][kColumns];
  for (auto& row : sum) {
    std::fill(row, row + kColumns, hn::Zero(d));
  }
  int64_t i = 0;
  for (; i + kLine <= k; i += kLine) {
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      __builtin_prefetch(w[c] + i + ahead);
    }
#pragma GCC unroll 4
    for (int64_t j = i; j < i + kLine; j += kStep) {
#pragma GCC unroll 4
      for (int c = 0; c < kColumns; ++c) {
        const FloatVec weights = Units::weights(w[c] + j);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const FloatVec x = hn::LoadU(d, a + r * a_stride + j / Units::kElements);
          sum[r][c] = Units::multiply_add(x, weights, sum[r][c]);
        }
      }
    }
  }
  for (; i < k; i += kStep) {
    for (int c = 0; c < kColumns; ++c) {
      const FloatVec weights =
          k - i < kStep ? Units::first_weights(w[c] + i, k - i) : Units::weights(w[c] + i);
      for (int r = 0; r < kRows; ++r) {
        const FloatVec x = hn::LoadU(d, a + r * a_stride + i / Units::kElements);
        sum[r][c] = Units::multiply_add(x, weights, sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = hn::GetLane(hn::SumOfLanes(d, sum[r][c]));
    }
  }
}

/// Computes [rows, columns] and hands it to
///   epilogue.begin(columns):  up to kStreamColumns columns come next
///   epilogue.finish(row, first column, count, one vector of sums for each matrix).
/// units: [rows.size()][padded_units(k)].
template <class Units, int kMatrices, class Epilogue>
class StreamProduct {
  using Weight = typename Units::Weight;
  static constexpr int kBlock = 4 / kMatrices;                // columns at once: four weight rows
  static constexpr int kMaxRows = kFloatLanes == 16 ? 4 : 2;  // sums that the registers hold

 public:
  StreamProduct(const Factors<Weight, kMatrices>& factors, Range rows, float* units,
                Epilogue& epilogue)
      : factors_(factors),
        rows_(rows),
        units_(units),
        stride_(padded_units<Units::kElements>(factors.k)),
        epilogue_(epilogue) {
    const auto* a = static_cast<const std::byte*>(factors.a);
    for (int64_t r = 0; r < rows.size(); ++r) {
      float* row = units + r * stride_;
      const int64_t used = (factors.k + Units::kElements - 1) / Units::kElements;
      std::fill(row + used, row + stride_, 0.0f);
      Units::convert_row(a + (rows.begin + r) * factors.a_stride * size_of(factors.a_dtype),
                         factors.a_dtype, factors.k, row);
    }
  }

  void run(Range columns) {
    for (int64_t c = columns.begin; c < columns.end; c += kStreamColumns) {
      const Range part{c, std::min(columns.end, c + kStreamColumns)};
      epilogue_.begin(part);
      int64_t at = part.begin;
      for (; at + kBlock <= part.end; at += kBlock) {
        block<kBlock>(at, at - part.begin, at + kBlock < columns.end);
      }
      for (; at < part.end; ++at) {
        block<1>(at, at - part.begin, at + 1 < columns.end);
      }
      finish(part);
    }
  }

 private:
  /// kCount columns from `column` on, for all rows; the weights after the first group of rows come
  /// from the cache.
  template <int kCount>
  void block(int64_t column, int64_t place, bool more) {
    const Weight* w[kMatrices * kCount];
    for (int m = 0; m < kMatrices; ++m) {
      for (int i = 0; i < kCount; ++i) {
        w[m * kCount + i] = factors_.w[m] + (column + i) * factors_.w_stride[m];
      }
    }
    const int64_t ahead = more ? kCount * factors_.w_stride[0] : 0;
    const int64_t count = rows_.size();
    int64_t r = 0;
    for (; r + kMaxRows <= count; r += kMaxRows) {
      group<kMaxRows, kCount>(r, w, place, r == 0 ? ahead : 0);
    }
    for (; r + 2 <= count; r += 2) {
      group<2, kCount>(r, w, place, r == 0 ? ahead : 0);
    }
    for (; r < count; ++r) {
      group<1, kCount>(r, w, place, r == 0 ? ahead : 0);
    }
  }

  template <int kRows, int kCount>
  void group(int64_t r, const Weight* const* w, int64_t place, int64_t ahead) {
    float sums[kRows][kMatrices * kCount];
    stream_dots<Units>(units_ + r * stride_, stride_, w, factors_.k, ahead, sums);
    for (int i = 0; i < kRows; ++i) {
      for (int m = 0; m < kMatrices; ++m) {
        std::copy_n(sums[i] + m * kCount, kCount, sums_[r + i][m] + place);
      }
    }
  }

  void finish(Range part) {
    const int64_t lanes = kFloatLanes;
    for (int64_t r = 0; r < rows_.size(); ++r) {
      for (int64_t c = 0; c < part.size(); c += lanes) {
        FloatVec sums[kMatrices];
        for (int m = 0; m < kMatrices; ++m) {
          sums[m] = hn::LoadU(FloatTag(), sums_[r][m] + c);
        }
        epilogue_.finish(rows_.begin + r, part.begin + c, std::min(lanes, part.size() - c), sums);
      }
    }
  }

  const Factors<Weight, kMatrices>& factors_;
  Range rows_;
  float* units_;
  int64_t stride_;
  Epilogue& epilogue_;
  float sums_[kStreamRows][kMatrices][kStreamColumns] = {};
};

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

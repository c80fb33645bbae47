// Product of a few rows with weights that are read from memory once: the shape of a decode step,
// whose cost is the weights' bytes. Four or eight weight rows are in flight at once, so that the
// sums are independent and a row of `a` is loaded once for all. They are not neighbours: each comes
// from its own part of the columns, so that memory is read as a few long streams, which the
// hardware prefetchers follow at full bandwidth (with neighbours a stream would stop at every row's
// end; prefetch instructions make it slower).
#include <algorithm>
#include <cstdint>

#include "arch/cpu/dot_blocked-inl.h"
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

inline constexpr int64_t kStreamRows = 8;  ///< more rows go to the blocked product
/// Sums of a stream gathered before the epilogue. Many, because reading them as vectors right after
/// they were written one by one waits until all loads before them are over, weights from memory
/// among them.
inline constexpr int64_t kGather = 2 * kPanel;

/// sums[r][c] = a[r] . w[c], where `a` holds units, zero beyond k. Every sum runs over k in the
/// same order whatever kRows and kColumns are.
template <class Units, int kRows, int kColumns>
void stream_dots(const float* a, int64_t a_stride, const typename Units::Weight* const* w,
                 int64_t k, float (&sums)[kRows][kColumns]) {
  const FloatTag d;
  constexpr int64_t kStep = kFloatLanes * Units::kElements;
  FloatVec sum[kRows][kColumns];
  for (auto& row : sum) {
    std::fill(row, row + kColumns, hn::Zero(d));
  }
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
  int64_t i = 0;
  for (; i + kStep <= k; i += kStep) {
    step(i, [](const auto* p) HWY_ATTR { return Units::weights(p); });
  }
  if (i < k) {
    step(i, [&](const auto* p) HWY_ATTR { return Units::first_weights(p, k - i); });
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = hn::GetLane(hn::SumOfLanes(d, sum[r][c]));
    }
  }
}

/// Computes [rows, columns] and hands it to
///   epilogue.begin(columns): kPanel columns at most come next
///   epilogue.finish(row, first column, count, one vector of sums for each matrix).
/// units: [rows.size()][padded_units(k)].
template <class Units, int kMatrices, class Epilogue>
class StreamProduct {
  using Weight = typename Units::Weight;

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

  /// `shared`: other workers compute some of the columns; null: none does.
  void run(Range columns, cpu::StreamSteps* shared) {
    if (cpu::stream_count(stride_) == 8) {
      run_streams<8>(columns, shared);
    } else {
      run_streams<4>(columns, shared);
    }
  }

 private:
  /// What workers take from one another at a time: some microseconds of reading.
  static constexpr int64_t kGrainBytes = 128 << 10;

  /// What steps of kCount streams came to: sums[row][matrix][stream][step].
  template <int kCount>
  struct Gathered {
    Range steps;
    float sums[kStreamRows][kMatrices][kCount][kGather];
  };

  template <int kStreams>
  void run_streams(Range columns, cpu::StreamSteps* shared) {
    constexpr int kParts = kStreams / kMatrices;
    const int64_t part = columns.size() / kParts;
    Gathered<kParts> gathered;
    if (shared == nullptr) {
      multiply(columns.begin, part, {0, part}, gathered);
    } else {
      const auto step_bytes = static_cast<int64_t>(kStreams * sizeof(Weight)) * factors_.k;
      const int64_t grain = std::max<int64_t>(kGrainBytes / step_bytes, 1);
      for (Range steps = shared->next(part, grain); !steps.empty();
           steps = shared->next(part, grain)) {
        multiply(columns.begin, part, steps, gathered);
      }
    }
    finish(columns.begin, part, gathered);
    const int64_t rest = columns.begin + part * kParts;
    if (rest < columns.end && (shared == nullptr || shared->rest())) {
      Gathered<1> single;
      multiply(rest, 0, {0, columns.end - rest}, single);
      finish(rest, 0, single);
    }
  }

  /// Columns first + p * part + i for all p < kCount, all i of `steps` and all rows. Goes on where
  /// the call before it stopped.
  template <int kCount>
  void multiply(int64_t first, int64_t part, Range steps, Gathered<kCount>& gathered) {
    // As many rows as leave the sums in registers: 16 of AVX-512's 32, 8 of AVX2's 16.
    constexpr int kMaxRows =
        std::max(1, (kFloatLanes == 16 ? 16 : 8) / std::max(4, kMatrices * kCount));
    for (int64_t i = steps.begin; i < steps.end; ++i) {
      if (gathered.steps.size() == kGather) {
        finish(first, part, gathered);
      }
      if (gathered.steps.empty()) {
        gathered.steps = {i, i};
      }
      const Weight* w[kMatrices * kCount];
      for (int m = 0; m < kMatrices; ++m) {
        for (int p = 0; p < kCount; ++p) {
          w[m * kCount + p] = factors_.w[m] + (first + p * part + i) * factors_.w_stride[m];
        }
      }
      const int64_t place = gathered.steps.size();
      const int64_t rows = rows_.size();
      int64_t r = 0;
      // Weights come from memory for the first group of rows, from the cache for the others.
      for (; r + kMaxRows <= rows; r += kMaxRows) {
        dots<kMaxRows>(r, w, place, gathered);
      }
      if (kMaxRows > 2 && r + 2 <= rows) {
        dots<2>(r, w, place, gathered);
        r += 2;
      }
      if (r < rows) {
        dots<1>(r, w, place, gathered);
      }
      gathered.steps.end = i + 1;
    }
  }

  template <int kRows, int kCount>
  void dots(int64_t r, const Weight* const* w, int64_t place, Gathered<kCount>& gathered) {
    float result[kRows][kMatrices * kCount];
    stream_dots<Units>(units_ + r * stride_, stride_, w, factors_.k, result);
    for (int i = 0; i < kRows; ++i) {
      for (int m = 0; m < kMatrices; ++m) {
        for (int p = 0; p < kCount; ++p) {
          gathered.sums[r + i][m][p][place] = result[i][m * kCount + p];
        }
      }
    }
  }

  /// Hands what was gathered to the epilogue.
  template <int kCount>
  void finish(int64_t first, int64_t part, Gathered<kCount>& gathered) {
    const int64_t lanes = kFloatLanes;
    const int64_t count = gathered.steps.size();
    for (int p = 0; p < kCount; ++p) {
      const int64_t column = first + p * part + gathered.steps.begin;
      for (int64_t panel = 0; panel < count; panel += kPanel) {
        const int64_t end = std::min(panel + kPanel, count);
        epilogue_.begin({column + panel, column + end});
        for (int64_t r = 0; r < rows_.size(); ++r) {
          for (int64_t c = panel; c < end; c += lanes) {
            FloatVec vectors[kMatrices];
            for (int m = 0; m < kMatrices; ++m) {
              const float* sums = gathered.sums[r][m][p] + c;
              vectors[m] = end - c < lanes ? load_first(FloatTag(), sums, end - c)
                                           : hn::LoadU(FloatTag(), sums);
            }
            epilogue_.finish(rows_.begin + r, column + c, std::min(lanes, end - c), vectors);
          }
        }
      }
    }
    gathered.steps = {};
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

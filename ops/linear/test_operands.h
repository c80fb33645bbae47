// What the tests of linear and gated_linear share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/packed.h"
#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

/// Fresh normal values in a format, with a row stride above the row's length; what lies between
/// rows is NaN, so that a kernel that reads it shows.
struct Values {
  Values(int64_t rows, int64_t columns, DType type, float scale, std::mt19937& random)
      : rows(rows), columns(columns), stride(columns + (columns % 2 == 0 ? 4 : 3)), type(type) {
    std::normal_distribution<float> normal(0, scale);
    bytes.resize(rows * stride * size_of(type));
    for (int64_t i = 0; i < rows * stride; ++i) {
      set(i, i % stride < columns ? normal(random) : std::numeric_limits<float>::quiet_NaN());
    }
  }
  void set(int64_t i, float x) {
    with_type(type, [&](auto t) {
      auto* data = reinterpret_cast<decltype(t)*>(bytes.data());
      if constexpr (std::is_same_v<decltype(t), float>) {
        data[i] = x;
      } else if constexpr (std::is_same_v<decltype(t), bf16>) {
        data[i] = to_bf16(x);
      } else {
        data[i] = to_f16(x);
      }
    });
  }
  double get(int64_t r, int64_t c) const { return element(matrix(), r, c); }
  ConstMatrix matrix() const { return {bytes.data(), type, stride}; }
  ConstVector vector() const { return {bytes.data(), type}; }
  /// The same values without signs: what the error of a sum is measured against.
  Values magnitudes() const {
    Values result = *this;
    for (int64_t i = 0; i < rows * stride; ++i) {
      result.set(i, static_cast<float>(std::fabs(element(bytes.data(), type, i))));
    }
    return result;
  }

  int64_t rows, columns, stride;
  DType type;
  std::vector<std::byte> bytes;
};

/// bf16 matrices of one shape, packed side by side.
class PackedValues {
 public:
  explicit PackedValues(const std::vector<const Values*>& matrices) {
    const Values& first = *matrices.front();
    const int64_t width = cpu::kGroupRows / std::ssize(matrices);
    const int64_t groups = (first.rows + width - 1) / width;
    const int64_t bytes = cpu::packed_group_bytes(first.columns);
    groups_.resize(static_cast<size_t>(groups * bytes / 64));
    auto* out = reinterpret_cast<std::byte*>(groups_.data());
    list_begin_.push_back(0);
    for (int64_t g = 0; g < groups; ++g) {
      const bf16* rows[cpu::kGroupRows] = {};
      for (int64_t r = 0; r < cpu::kGroupRows; ++r) {
        const int64_t row = g * width + r % width;
        rows[r] = row < first.rows
                      ? weft::row<bf16>(matrices[static_cast<size_t>(r / width)]->matrix(), row)
                      : nullptr;
      }
      cpu::pack_group(rows, first.columns, out + g * bytes, listed_);
      list_begin_.push_back(static_cast<uint32_t>(listed_.size()));
    }
    packed_ = {out, first.columns, static_cast<int>(matrices.size()), list_begin_.data(),
               listed_.data()};
  }
  PackedValues(const PackedValues&) = delete;
  PackedValues& operator=(const PackedValues&) = delete;
  const cpu::PackedMatrix* get() const { return &packed_; }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> groups_;
  std::vector<uint32_t> list_begin_;
  std::vector<cpu::ListedWeight> listed_;
  cpu::PackedMatrix packed_;
};

/// Output memory, poisoned, with guards on every side.
struct Output {
  static constexpr int64_t kGuard = 64;
  Output(int64_t rows, int64_t columns, DType type = DType::f32)
      : rows(rows), columns(columns), stride(columns + 5), type(type) {
    cells.assign((2 * kGuard + rows * stride) * size_of(type) / 2, kPoison);
  }
  Matrix matrix() { return {cells.data() + kGuard * size_of(type) / 2, type, stride}; }
  double get(int64_t r, int64_t c) const {
    return element(cells.data(), type, kGuard + r * stride + c);
  }
  /// Whether every cell outside [rows, columns] still holds poison.
  bool only(Range written_rows, Range written_columns) const {
    const int64_t halves = size_of(type) / 2;
    for (int64_t i = 0; i < static_cast<int64_t>(cells.size()); ++i) {
      const int64_t at = i / halves - kGuard;
      const int64_t r = at / stride;
      const int64_t c = at % stride;
      const bool inside = at >= 0 && r >= written_rows.begin && r < written_rows.end &&
                          c >= written_columns.begin && c < written_columns.end;
      if (!inside && cells[i] != kPoison) {
        return false;
      }
    }
    return true;
  }

  static constexpr uint16_t kPoison = 0x7fa5;  // NaN as bf16, and as f32 in pairs
  int64_t rows, columns, stride;
  DType type;
  std::vector<uint16_t> cells;
};

struct Scratch {
  explicit Scratch(size_t bytes) : lines(bytes / 64 + 2) {}
  std::span<std::byte> span() {
    return {reinterpret_cast<std::byte*>(lines.data()), (lines.size() - 1) * sizeof(Line)};
  }
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::vector<Line> lines;
};

/// Rounding errors of a sum of k products behave like a random walk of steps of 2^-24 of the
/// magnitudes summed so far: below lambda sqrt(k) 2^-24 sum|a w| with lambda = 4 but for a chance
/// of 1e-3 per worst case (Higham & Mary, 2019, SIAM J. Sci. Comput. 41), which real sums stay far
/// from. Bias, alpha and the residual add a rounding each. f16 and bf16 factors are exact in f32.
inline double sum_tolerance(int64_t k, double magnitude) {
  return 0x1p-24 * (4 * std::sqrt(static_cast<double>(k)) + 4) * magnitude + 0x1p-126;
}

inline std::vector<cpu::Isa> available() {
  std::vector<cpu::Isa> result;
  for (int i = 0; i <= static_cast<int>(cpu::detected_isa()); ++i) {
    result.push_back(static_cast<cpu::Isa>(i));
  }
  return result;
}

/// Forces instruction sets, and lets go of them afterwards.
class Products : public testing::Test {
 protected:
  void TearDown() override { cpu::force_isa(std::nullopt); }
  std::mt19937 random_{20240611};
};

inline constexpr std::pair<DType, DType> kFormats[] = {{DType::f32, DType::f32},
                                                       {DType::f32, DType::bf16},
                                                       {DType::f32, DType::f16},
                                                       {DType::bf16, DType::bf16}};
/// Whether weights of a format are packed.
inline std::vector<bool> forms(DType w) {
  return w == DType::bf16 ? std::vector<bool>{false, true} : std::vector<bool>{false};
}
/// Below, on and above every tile: lanes, panels, unit blocks, pairs.
inline constexpr std::pair<int64_t, int64_t> kShapes[] = {{1, 1},   {3, 7},    {16, 64}, {33, 95},
                                                          {64, 65}, {130, 31}, {65, 513}};

}  // namespace weft

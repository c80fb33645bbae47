// The memory that checks and benches give to operations: matrices between guard bands, filled with
// fresh random numbers or with poison, and afterwards looked over for damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/range.h"
#include "ops/matrix.h"

namespace weft::trial {

/// Random numbers from a seed, fast enough to fill gigabytes (SplitMix64).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  /// In [0, bound).
  int64_t below(int64_t bound) {
    return static_cast<int64_t>(next() % static_cast<uint64_t>(bound));
  }
  /// Mean 0, deviation 1, within +-3.47: the sum of four uniform numbers.
  float normal();

 private:
  uint64_t state_;
};

/// A matrix on the host between guard bands. What the operation must not touch (guards, the gap
/// between rows, inputs) is checked by damage().
class Tensor {
 public:
  enum class Role {
    input,   ///< read only
    output,  ///< poisoned (NaN in every format) before each run
    inout,   ///< read and written: its first contents come back before each run
  };

  /// `gap`: elements between rows, poisoned.
  Tensor(std::string name, Role role, int64_t rows, int64_t columns, DType dtype, int64_t gap = 0);

  const std::string& name() const { return name_; }
  Role role() const { return role_; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return static_cast<size_t>(rows_ * columns_) * size_of(dtype_); }

  void* data() { return cells_.data() + start_; }
  const void* data() const { return cells_.data() + start_; }
  ConstMatrix in() const { return {data(), dtype_, stride_}; }
  Matrix out() { return {data(), dtype_, stride_}; }
  ConstVector vector() const { return {data(), dtype_}; }

  double get(int64_t r, int64_t c) const { return element(in(), r, c); }
  /// Rounds x to the format.
  void set(int64_t r, int64_t c, float x);
  void fill(Random& random, float deviation, float mean = 0);
  /// A copy without signs: what the error of a sum is measured against.
  Tensor magnitudes() const;

  /// Remembers the contents, which are complete now; to be called once before the first run.
  void seal();
  /// Poison or first contents, whichever the role asks for.
  void restore();
  /// What a run wrote where it must not write, as the rest of a sentence; nullopt: nothing.
  std::optional<std::string> damage() const;
  /// The contents, gaps and guards included.
  const std::vector<uint16_t>& cells() const { return cells_; }

 private:
  uint64_t checksum() const;

  std::string name_;
  Role role_;
  int64_t rows_;
  int64_t columns_;
  int64_t stride_;
  DType dtype_;
  size_t start_ = 0;             // of the matrix, in cells
  std::vector<uint16_t> cells_;  // guard, matrix, guard
  std::vector<uint16_t> first_;  // contents before a run (inout)
  uint64_t checksum_ = 0;        // of the cells (input)
};

/// What rows `rows` of an output must hold: value +- tolerance, both [rows.size()][columns].
/// A NaN must be met by a NaN, an infinity by the same one.
struct Expectation {
  const Tensor* tensor = nullptr;
  Range rows;
  std::vector<double> value;
  std::vector<double> tolerance;

  Expectation(const Tensor& tensor, Range rows);
  /// Adds the format's own rounding to every tolerance: to be called once, last.
  void allow_rounding();
};

/// The unit roundoff of a format: half the distance from 1 to the next number.
constexpr double roundoff(DType type) {
  return type == DType::f32 ? 0x1p-24 : type == DType::f16 ? 0x1p-11 : 0x1p-8;
}

/// How far an f32 sum of `count` products may be off, in units of the sum of their magnitudes.
/// Roundings walk at random: lambda sqrt(count) u with lambda = 4 is passed less than once in 1000
/// worst cases (Higham and Mary 2019), and a handful of roundings beside the sum are added.
double sum_tolerance(int64_t count);

}  // namespace weft::trial

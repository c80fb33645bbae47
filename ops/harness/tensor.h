// The memory that checks and benches give to operations: matrices between guard bands, filled with
// fresh random numbers or with poison, and afterwards looked over for damage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arch/device.h"
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

/// Whose addresses a kernel is given.
enum class Side { host, device };

/// A matrix on the host between guard bands. What the operation must not touch (guards, the gap
/// between rows, inputs) is checked by damage(). For a kernel of another device it has copies
/// there, guards and all: upload(), run, download(), and then it is looked at here.
class Tensor {
 public:
  enum class Role {
    input,   ///< read only
    index,   ///< read only: whole numbers, as cells of four bytes, that say where things are
    output,  ///< poisoned (NaN in every format) before each run
    inout,   ///< read and written: its first contents come back before each run
  };

  /// `gap`: elements between rows, poisoned.
  Tensor(std::string name, Role role, int64_t rows, int64_t columns, DType dtype, int64_t gap = 0);

  const std::string& name() const { return name_; }
  Role role() const { return role_; }
  bool read_only() const { return role_ == Role::input || role_ == Role::index; }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  DType dtype() const { return dtype_; }
  size_t bytes() const { return static_cast<size_t>(rows_ * columns_) * size_of(dtype_); }

  void* data(Side side = Side::host) { return address(side); }
  const void* data(Side side = Side::host) const { return address(side); }
  ConstMatrix in(Side side = Side::host) const { return {data(side), dtype_, stride_}; }
  Matrix out(Side side = Side::host) { return {data(side), dtype_, stride_}; }
  ConstVector vector(Side side = Side::host) const { return {data(side), dtype_}; }

  double get(int64_t r, int64_t c) const { return element(in(), r, c); }
  /// Rounds x to the format; saturates in fp8.
  void set(int64_t r, int64_t c, float x);
  /// Normal numbers.
  void fill(Random& random, float deviation, float mean = 0);
  /// Whether all elements are numbers but infinities.
  bool finite() const;
  /// A copy without signs: what the error of a sum is measured against.
  Tensor magnitudes() const;

  /// Remembers the contents, which are complete now; to be called once before the first run.
  void seal();
  /// Poison or first contents, whichever the role asks for.
  void restore();
  /// What a run wrote where it must not write, as the rest of a sentence; nullopt: nothing.
  std::optional<std::string> damage() const;
  /// The contents, gaps and guards included.
  const std::vector<uint8_t>& cells() const { return cells_; }

  /// Memory for so many copies on a device, their data aligned to 256 bytes. Error (device): none
  /// left.
  Status place(Device& device, int copies = 1);
  /// Which of the copies Side::device and download() mean: the first until told.
  void select(int copy) { selected_ = static_cast<size_t>(copy); }
  /// To all copies.
  Status upload(Device& device) const;
  Status download(Device& device);

 private:
  void* address(Side side) const;
  void fill_with_poison();
  uint64_t checksum() const;

  std::string name_;
  Role role_;
  int64_t rows_;
  int64_t columns_;
  int64_t stride_;
  DType dtype_;
  size_t start_ = 0;            // of the matrix in cells_
  std::vector<uint8_t> cells_;  // guard, matrix, guard
  std::vector<uint8_t> first_;  // contents before a run (inout)
  uint64_t checksum_ = 0;       // of the cells (input)
  std::vector<DeviceMemory> copies_;
  size_t selected_ = 0;
  size_t shift_ = 0;  // of the cells in each copy
};

/// What a part of an output must hold: value +- tolerance, both [rows.size()][columns.size()].
/// A NaN must be met by a NaN, an infinity by the same one.
struct Expectation {
  const Tensor* tensor = nullptr;
  Range rows;
  Range columns;
  std::vector<double> value;
  std::vector<double> tolerance;
  /// An infinite factor meets sums that are only so exact: where one is close to zero its sign, and
  /// so the infinity's, is anybody's, and two may cancel to NaN. Whatever is not finite will do
  /// where the tolerance is infinite.
  bool any_infinity = false;
  /// [element]: what is right as well; empty where nothing else is anywhere.
  std::vector<std::vector<double>> others;

  Expectation(const Tensor& tensor, Range rows)
      : Expectation(tensor, rows, {0, tensor.columns()}) {}
  Expectation(const Tensor& tensor, Range rows, Range columns);
  /// Adds the format's own rounding to every tolerance: to be called once, last.
  void allow_rounding();
};

/// The unit roundoff of a format: half the distance from 1 to the next number.
constexpr double roundoff(DType type) {
  return type == DType::f32    ? 0x1p-24
         : type == DType::f16  ? 0x1p-11
         : type == DType::bf16 ? 0x1p-8
                               : 0x1p-4;
}
/// Half the distance between the smallest numbers of a format: what is lost below its normal range.
/// Numbers that small may be flushed to zero in the formats of two bytes and more.
constexpr double underflow(DType type) {
  return type == DType::e4m3fn     ? 0x1p-10
         : type == DType::e4m3fnuz ? 0x1p-11
         : type == DType::f16      ? 0x1p-25
                                   : 0x1p-126;
}

/// How far an f32 sum of `count` products may be off, in units of the sum of their magnitudes.
/// Roundings walk at random: lambda sqrt(count) u with lambda = 4 is passed less than once in 1000
/// worst cases (Higham and Mary 2019), and a handful of roundings beside the sum are added.
double sum_tolerance(int64_t count);

}  // namespace weft::trial

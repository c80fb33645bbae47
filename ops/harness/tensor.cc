#include "ops/harness/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace weft::trial {
namespace {

constexpr size_t kGuardCells = 128;     // on each side: 256 bytes, more than any vector
constexpr uint16_t kPoison = 0x7fa5;    // NaN as bf16, as f16, and twice as f32
constexpr size_t kAlignmentCells = 32;  // 64 bytes

void put(void* data, DType type, int64_t i, float x) {
  switch (type) {
    case DType::f32:
      static_cast<float*>(data)[i] = x;
      break;
    case DType::bf16:
      static_cast<bf16*>(data)[i] = to_bf16(x);
      break;
    case DType::f16:
      static_cast<f16*>(data)[i] = to_f16(x);
      break;
  }
}

}  // namespace

uint64_t Random::next() {
  uint64_t z = state_ += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

float Random::normal() {
  const uint64_t bits = next();
  const auto part = [&](int i) { return static_cast<float>(bits >> (16 * i) & 0xffff); };
  // Four uniform numbers on [0, 65536) have mean 131070 and deviation 65536 / sqrt(3).
  return (part(0) + part(1) + part(2) + part(3) - 131070.0f) * (1.7320508f / 65536.0f);
}

Tensor::Tensor(std::string name, Role role, int64_t rows, int64_t columns, DType dtype, int64_t gap)
    : name_(std::move(name)),
      role_(role),
      rows_(rows),
      columns_(columns),
      stride_(columns + gap),
      dtype_(dtype) {
  const size_t cells = static_cast<size_t>(rows * stride_) * size_of(dtype) / sizeof(uint16_t);
  cells_.assign(cells + 2 * kGuardCells + kAlignmentCells, kPoison);
  const auto address = reinterpret_cast<uintptr_t>(cells_.data() + kGuardCells);
  start_ = kGuardCells + (64 - address % 64) % 64 / sizeof(uint16_t);
}

void Tensor::set(int64_t r, int64_t c, float x) { put(data(), dtype_, r * stride_ + c, x); }

void Tensor::fill(Random& random, float deviation, float mean) {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < columns_; ++c) {
      set(r, c, mean + deviation * random.normal());
    }
  }
}

Tensor Tensor::magnitudes() const {
  Tensor result(name_, role_, rows_, columns_, dtype_, stride_ - columns_);
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < columns_; ++c) {
      result.set(r, c, static_cast<float>(std::fabs(get(r, c))));
    }
  }
  return result;
}

uint64_t Tensor::checksum() const {
  uint64_t sum = 0;
  const size_t words = cells_.size() / 4;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, cells_.data() + 4 * i, sizeof(word));
    sum = (sum ^ word) * 0x9e3779b97f4a7c15;
    sum ^= sum >> 32;
  }
  for (size_t i = 4 * words; i < cells_.size(); ++i) {
    sum = (sum ^ cells_[i]) * 0x9e3779b97f4a7c15;
  }
  return sum;
}

void Tensor::seal() {
  if (role_ == Role::input) {
    checksum_ = checksum();
  } else if (role_ == Role::inout) {
    first_ = cells_;
  }
}

void Tensor::restore() {
  if (role_ == Role::output) {
    std::fill(cells_.begin(), cells_.end(), kPoison);
  } else if (role_ == Role::inout) {
    cells_ = first_;
  }
}

std::optional<std::string> Tensor::damage() const {
  if (role_ == Role::input) {
    if (checksum() != checksum_) {
      return fmt::format("the input {} was written to", name_);
    }
    return std::nullopt;
  }
  const int64_t width = static_cast<int64_t>(size_of(dtype_) / sizeof(uint16_t));
  for (size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i] == kPoison) {
      continue;
    }
    const int64_t at = static_cast<int64_t>(i) - static_cast<int64_t>(start_);
    if (at < 0 || at >= rows_ * stride_ * width) {
      return fmt::format("{} was written to {} bytes {} it", name_,
                         2 * (at < 0 ? -at : at - rows_ * stride_ * width),
                         at < 0 ? "before" : "after");
    }
    if (at / width % stride_ >= columns_) {
      return fmt::format("{} was written to after the end of row {}", name_, at / width / stride_);
    }
  }
  return std::nullopt;
}

Expectation::Expectation(const Tensor& of, Range some_rows)
    : tensor(&of),
      rows(some_rows),
      value(some_rows.size() * of.columns()),
      tolerance(some_rows.size() * of.columns()) {}

void Expectation::allow_rounding() {
  for (size_t i = 0; i < value.size(); ++i) {
    // The last term: numbers below the normal range may be flushed to zero.
    tolerance[i] += roundoff(tensor->dtype()) * (std::fabs(value[i]) + tolerance[i]) + 0x1p-126;
  }
}

double sum_tolerance(int64_t count) {
  return 0x1p-24 * (4 * std::sqrt(static_cast<double>(count)) + 4);
}

}  // namespace weft::trial

#include "ops/harness/tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/divide.h"
#include "base/splitmix.h"
#include "ops/harness/parts.h"

namespace weft::trial {
namespace {

constexpr size_t kGuardBytes = 256;  // on each side: more than any vector
constexpr size_t kAlignment = 64;
constexpr size_t kDeviceAlignment = 256;

/// The byte at address i (from an even one on): NaN in every format.
constexpr uint8_t poison(DType type, size_t i) {
  switch (type) {
    case DType::e4m3fn:
      return e4m3fn::kNan;
    case DType::e4m3fnuz:
      return e4m3fnuz::kNan;
    default:
      return i % 2 == 0 ? 0xa5 : 0x7f;  // 0x7fa5 as bf16 and as f16, twice as f32
  }
}

template <class T>
T round_to(float x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(x);
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(x);
  } else {
    return saturate_to<T>(x);
  }
}

// Large tensors of small formats are filled in pieces of this many elements by all threads, each
// piece drawing from a table of numbers that are rounded already: the machine with the fast kernels
// waits for its inputs otherwise.
constexpr int64_t kPieceElements = int64_t{1} << 20;
constexpr size_t kTableSize = size_t{1} << 16;

template <class T, class Row>
void fill_from_table(Random& random, const T* table, int64_t rows, int64_t columns, Row&& row) {
  const int64_t rows_in_piece = std::max<int64_t>(1, kPieceElements / columns);
  const int64_t pieces = ceil_div(rows, rows_in_piece);
  const uint64_t seed = random.next();
  for_parts(pieces, [&](Range part) {
    for (int64_t piece = part.begin; piece < part.end; ++piece) {
      Random own(seed ^ (static_cast<uint64_t>(piece) * kSplitMixStep));
      const int64_t end = std::min(rows, (piece + 1) * rows_in_piece);
      for (int64_t r = piece * rows_in_piece; r < end; ++r) {
        T* to = row(r);
        for (int64_t c = 0; c < columns; c += 4) {
          const uint64_t bits = own.next();
          const int64_t count = std::min<int64_t>(4, columns - c);
          for (int64_t i = 0; i < count; ++i) {
            to[c + i] = table[bits >> (16 * i) & 0xffff];
          }
        }
      }
    }
  });
}

}  // namespace

uint64_t Random::next() { return splitmix(state_ += kSplitMixStep); }

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
  constexpr double kMost =
      0x1p40;  // elements: the product of what a shape may ask for can overflow
  if (static_cast<double>(rows) * static_cast<double>(stride_) > kMost) {
    throw std::bad_alloc();
  }
  const size_t bytes = static_cast<size_t>(rows * stride_) * size_of(dtype);
  cells_.resize(bytes + 2 * kGuardBytes + kAlignment);
  const auto address = reinterpret_cast<uintptr_t>(cells_.data() + kGuardBytes);
  start_ = kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
  fill_with_poison();
}

void Tensor::fill_with_poison() {
  const std::array<uint8_t, 2> pair = {poison(dtype_, 0), poison(dtype_, 1)};
  size_t i = 0;
  for (; i + 2 <= cells_.size(); i += 2) {
    std::memcpy(cells_.data() + i, pair.data(), 2);
  }
  if (i < cells_.size()) {
    cells_[i] = pair[0];
  }
}

void* Tensor::address(Side side) const {
  const uint8_t* cells = cells_.data();
  if (side == Side::device) {
    WEFT_CHECK(selected_ < copies_.size());
    cells = reinterpret_cast<const uint8_t*>(copies_[selected_].data()) + shift_;
  }
  return const_cast<uint8_t*>(cells) + start_;
}

void Tensor::set(int64_t r, int64_t c, float x) {
  with_any_type(dtype_, [&](auto t) {
    using T = decltype(t);
    static_cast<T*>(data())[r * stride_ + c] = round_to<T>(x);
  });
}

void Tensor::fill(Random& random, float deviation, float mean) {
  with_any_type(dtype_, [&](auto t) {
    using T = decltype(t);
    const auto row = [&](int64_t r) { return static_cast<T*>(data()) + r * stride_; };
    const auto draw = [&] { return round_to<T>(mean + deviation * random.normal()); };
    if (sizeof(T) <= 2 && rows_ * columns_ > kPieceElements) {
      std::vector<T> table(kTableSize);
      std::generate(table.begin(), table.end(), draw);
      fill_from_table(random, table.data(), rows_, columns_, row);
      return;
    }
    for (int64_t r = 0; r < rows_; ++r) {
      std::generate_n(row(r), columns_, draw);
    }
  });
}

bool Tensor::finite() const {
  for (int64_t r = 0; r < rows_; ++r) {
    for (int64_t c = 0; c < columns_; ++c) {
      if (!std::isfinite(get(r, c))) {
        return false;
      }
    }
  }
  return true;
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
  const size_t words = cells_.size() / 8;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word;
    std::memcpy(&word, cells_.data() + 8 * i, sizeof(word));
    sum = (sum ^ word) * kSplitMixStep;
    sum ^= sum >> 32;
  }
  for (size_t i = 8 * words; i < cells_.size(); ++i) {
    sum = (sum ^ cells_[i]) * kSplitMixStep;
  }
  return sum;
}

void Tensor::seal() {
  if (read_only()) {
    checksum_ = checksum();
  } else if (role_ == Role::inout) {
    first_ = cells_;
  }
}

void Tensor::restore() {
  if (role_ == Role::output) {
    fill_with_poison();
  } else if (role_ == Role::inout) {
    cells_ = first_;
  }
}

std::optional<std::string> Tensor::damage() const {
  if (read_only()) {
    if (checksum() != checksum_) {
      return fmt::format("the input {} was written to", name_);
    }
    return std::nullopt;
  }
  const auto width = static_cast<int64_t>(size_of(dtype_));
  for (size_t i = 0; i < cells_.size(); ++i) {
    if (cells_[i] == poison(dtype_, i)) {
      continue;
    }
    const int64_t at = static_cast<int64_t>(i) - static_cast<int64_t>(start_);
    if (at < 0 || at >= rows_ * stride_ * width) {
      return fmt::format("{} was written to {} bytes {} it", name_,
                         at < 0 ? -at : at - rows_ * stride_ * width, at < 0 ? "before" : "after");
    }
    if (at / width % stride_ >= columns_) {
      return fmt::format("{} was written to after the end of row {}", name_, at / width / stride_);
    }
  }
  return std::nullopt;
}

Status Tensor::place(Device& device, int copies) {
  copies_.clear();
  for (int i = 0; i < copies; ++i) {
    WEFT_ASSIGN(DeviceMemory copy, device.allocate(cells_.size() + kDeviceAlignment));
    copies_.push_back(std::move(copy));
  }
  shift_ = (kDeviceAlignment - start_ % kDeviceAlignment) % kDeviceAlignment;
  return {};
}

Status Tensor::upload(Device& device) const {
  std::byte* first = copies_.front().data() + shift_;
  WEFT_TRY(device.upload(first, cells_.data(), cells_.size()));
  for (size_t i = 1; i < copies_.size(); ++i) {
    WEFT_TRY(device.copy(copies_[i].data() + shift_, first, cells_.size()));
  }
  return {};
}

Status Tensor::download(Device& device) {
  return device.download(cells_.data(), copies_[selected_].data() + shift_, cells_.size());
}

Expectation::Expectation(const Tensor& of, Range some_rows, Range some_columns)
    : tensor(&of),
      rows(some_rows),
      columns(some_columns),
      value(static_cast<size_t>(rows.size() * columns.size())),
      tolerance(value.size()) {}

void Expectation::allow_rounding() {
  for (size_t i = 0; i < value.size(); ++i) {
    tolerance[i] += roundoff(tensor->dtype()) * (std::fabs(value[i]) + tolerance[i]) +
                    underflow(tensor->dtype());
  }
}

double sum_tolerance(int64_t count) {
  return 0x1p-24 * (4 * std::sqrt(static_cast<double>(count)) + 4);
}

}  // namespace weft::trial

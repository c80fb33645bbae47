// MXFP4 on the CPU. A block of 32 codes is 16 bytes: their low halves are its even elements, their
// high halves the odd ones, so rows of activations are put in that order, and no code is moved.
#include "ops/linear/forms/mxfp4/cpu.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/divide.h"
#include "ops/linear/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/linear/forms/mxfp4/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Twice the numbers of the codes, which are integers, and half the powers of two of the scales.
constexpr int8_t kTwice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr std::array<float, 256> make_half_scales() {
  std::array<float, 256> scales{};
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = to_float(e8m0{static_cast<uint8_t>(i)}) / 2;
  }
  return scales;
}
constexpr std::array<float, 256> kHalfScales = make_half_scales();

/// The numbers of a block, twice as large: even elements, then odd ones.
class Block {
 public:
  static constexpr int64_t kVectors = 16 / kFloatLanes;  // of either half

  explicit HWY_INLINE Block(const uint8_t* codes) {
#if HWY_TARGET == HWY_AVX3
    const hn::RebindToUnsigned<FloatTag> du;
    const hn::Rebind<uint8_t, FloatTag> d8;
    bytes_ = hn::PromoteTo(du, hn::LoadU(d8, codes));
#elif HWY_TARGET == HWY_SCALAR
    for (int64_t i = 0; i < 16; ++i) {
      twice_[i] = kTwice[codes[i] & 15];
      twice_[16 + i] = kTwice[codes[i] >> 4];
    }
#else
    const hn::FixedTag<uint8_t, 16> d8;
    const hn::FixedTag<int8_t, 16> di8;
    const auto table = hn::LoadU(di8, kTwice);
    const auto bytes = hn::LoadU(d8, codes);
    hn::StoreU(hn::TableLookupBytes(table, hn::BitCast(di8, hn::And(bytes, hn::Set(d8, 15)))), di8,
               twice_);
    hn::StoreU(hn::TableLookupBytes(table, hn::BitCast(di8, hn::ShiftRight<4>(bytes))), di8,
               twice_ + 16);
#endif
  }

  /// Vector v of the even (0) or odd (1) elements.
  template <int kHalf>
  HWY_INLINE FloatVec at([[maybe_unused]] int64_t v) const {
    const FloatTag d;
#if HWY_TARGET == HWY_AVX3
    // The instruction looks at four bits of an index.
    constexpr float kTable[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const auto index = kHalf == 0 ? bytes_ : hn::ShiftRight<4>(bytes_);
    return hn::Vec<FloatTag>{_mm512_permutexvar_ps(index.raw, hn::LoadU(d, kTable).raw)};
#elif HWY_TARGET == HWY_SCALAR
    return hn::Set(d, static_cast<float>(twice_[kHalf * 16 + v]));
#else
    const hn::Rebind<int8_t, FloatTag> d8;
    const hn::RebindToSigned<FloatTag> d32;
    return hn::ConvertTo(d,
                         hn::PromoteTo(d32, hn::LoadU(d8, twice_ + kHalf * 16 + v * kFloatLanes)));
#endif
  }

 private:
#if HWY_TARGET == HWY_AVX3
  hn::Vec<hn::RebindToUnsigned<FloatTag>> bytes_;
#else
  int8_t twice_[32];
#endif
};

/// A row of `a` in the order of blocks, in f32.
template <class A>
void order_row(const A* a, int64_t k, float* out) {
  for (int64_t block = 0; block < k; block += kMxBlock) {
    for (int64_t i = 0; i < kMxBlock; ++i) {
      out[block + i % 2 * 16 + i / 2] = to_float(a[block + i]);
    }
  }
}

/// A weight row.
struct MxRow {
  const uint8_t* codes;
  const e8m0* scales;
};

/// sums[r][c] = a[r] . w[c], where rows of `a` are ordered and k apart.
template <int kRows, int kColumns>
void mx_dots(const float* a, const MxRow (&w)[kColumns], int64_t k,
             float (&sums)[kRows][kColumns]) {
  const FloatTag d;
  FloatVec sum[kRows][kColumns];
  for (auto& row : sum) {
    std::fill(row, row + kColumns, hn::Zero(d));
  }
  for (int64_t block = 0; block < k / kMxBlock; ++block) {
    const float* x = a + block * kMxBlock;
#pragma GCC unroll 4
    for (int c = 0; c < kColumns; ++c) {
      const Block weights(w[c].codes + block * (kMxBlock / 2));
      const FloatVec scale = hn::Set(d, kHalfScales[w[c].scales[block].bits]);
      FloatVec part[kRows];
      std::fill(part, part + kRows, hn::Zero(d));
#pragma GCC unroll 4
      for (int64_t v = 0; v < Block::kVectors; ++v) {
        const FloatVec even = weights.at<0>(v);
        const FloatVec odd = weights.at<1>(v);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          const float* from = x + r * k + v * kFloatLanes;
          part[r] = hn::MulAdd(even, hn::LoadU(d, from), part[r]);
          part[r] = hn::MulAdd(odd, hn::LoadU(d, from + 16), part[r]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        sum[r][c] = hn::MulAdd(part[r], scale, sum[r][c]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kColumns; ++c) {
      sums[r][c] = hn::GetLane(hn::SumOfLanes(d, sum[r][c]));
    }
  }
}

/// Few rows. Four weight rows are in flight at once, of parts of the columns that are far apart:
/// memory is then read as a few long streams.
class MxStream {
 public:
  MxStream(std::span<const MxMatrix> w, const float* a, int64_t rows, std::span<float* const> outs,
           int64_t stride)
      : w_(w), a_(a), rows_(rows), outs_(outs), stride_(stride), k_(w.front().k) {}

  void run(Range columns) const {
    const int64_t parts = kAtOnce / std::ssize(w_);
    const int64_t each = columns.size() / parts;
    for (int64_t i = 0; i < each; ++i) {
      Place places[kAtOnce];
      for (int64_t j = 0; j < kAtOnce; ++j) {
        places[j] = {j % std::ssize(w_), columns.begin + j / std::ssize(w_) * each + i};
      }
      multiply<kAtOnce>(places);
    }
    for (int64_t c = columns.begin + parts * each; c < columns.end; ++c) {
      for (int64_t m = 0; m < std::ssize(w_); ++m) {
        const Place places[1] = {{m, c}};
        multiply<1>(places);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 4;
  struct Place {
    int64_t matrix, column;
  };

  template <int kColumns>
  void multiply(const Place (&places)[kColumns]) const {
    MxRow rows[kColumns];
    for (int c = 0; c < kColumns; ++c) {
      const MxMatrix& matrix = w_[static_cast<size_t>(places[c].matrix)];
      rows[c] = {matrix.row_codes(places[c].column), matrix.row_scales(places[c].column)};
    }
    int64_t r = 0;
    for (; r + 2 <= rows_; r += 2) {
      multiply_rows<2>(r, rows, places);
    }
    if (r < rows_) {
      multiply_rows<1>(r, rows, places);
    }
  }
  template <int kRows, int kColumns>
  void multiply_rows(int64_t r, const MxRow (&rows)[kColumns],
                     const Place (&places)[kColumns]) const {
    float sums[kRows][kColumns];
    mx_dots(a_ + r * k_, rows, k_, sums);
    for (int i = 0; i < kRows; ++i) {
      for (int c = 0; c < kColumns; ++c) {
        outs_[static_cast<size_t>(places[c].matrix)][(r + i) * stride_ + places[c].column] =
            sums[i][c];
      }
    }
  }

  std::span<const MxMatrix> w_;
  const float* a_;
  int64_t rows_;
  std::span<float* const> outs_;
  int64_t stride_, k_;
};

void mx_stream(std::span<const MxMatrix> w, const ConstMatrix& a, int64_t rows, Range columns,
               std::span<float* const> outs, int64_t stride, float* ordered) {
  const int64_t k = w.front().k;
  for (int64_t r = 0; r < rows; ++r) {
    with_type(a.dtype,
              [&](auto type) { order_row(row<decltype(type)>(a, r), k, ordered + r * k); });
  }
  MxStream(w, ordered, rows, outs, stride).run(columns);
}

/// A weight row in bf16.
void mx_unpack(const uint8_t* codes, const e8m0* scales, int64_t k, bf16* out) {
  const FloatTag d;
  for (int64_t block = 0; block < k / kMxBlock; ++block, out += kMxBlock) {
    const Block numbers(codes + block * (kMxBlock / 2));
    const FloatVec scale = hn::Set(d, kHalfScales[scales[block].bits]);
    bf16 halves[kMxBlock];
    for (int64_t v = 0; v < Block::kVectors; ++v) {
      store(d, hn::Mul(numbers.at<0>(v), scale), halves + v * kFloatLanes);
      store(d, hn::Mul(numbers.at<1>(v), scale), halves + 16 + v * kFloatLanes);
    }
    for (int64_t i = 0; i < kMxBlock / 2; ++i) {
      out[2 * i] = halves[i];
      out[2 * i + 1] = halves[16 + i];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {
namespace {

constexpr int64_t kUnpacked = 64;  // columns that are in bf16 at a time: they stay in the L2 cache
constexpr size_t kAligned = 64;

size_t unpacked_bytes(int64_t k) {
  return round_up(static_cast<size_t>(kUnpacked * k) * sizeof(bf16), kAligned);
}
LinearArgs unpacked_product(int64_t k) {
  LinearArgs product;
  product.w = {nullptr, DType::bf16, k};
  product.k = k;
  return product;
}

}  // namespace

void mx_products(std::span<const MxMatrix> w, const ConstMatrix& a, int64_t rows, Range columns,
                 std::span<float* const> outs, int64_t stride, std::span<std::byte> scratch) {
  const int64_t k = w.front().k;
  if (rows <= kMxFewRows) {
    return WEFT_CPU_DISPATCH(mx_stream)(w, a, rows, columns, outs, stride,
                                        reinterpret_cast<float*>(scratch.data()));
  }
  auto* unpacked = reinterpret_cast<bf16*>(scratch.data());
  LinearArgs product = unpacked_product(k);
  product.a = a;
  product.w.data = unpacked;
  for (size_t m = 0; m < w.size(); ++m) {
    for (int64_t c = columns.begin; c < columns.end; c += kUnpacked) {
      product.n = std::min(kUnpacked, columns.end - c);
      for (int64_t i = 0; i < product.n; ++i) {
        WEFT_CPU_DISPATCH(mx_unpack)
        (w[m].row_codes(c + i), w[m].row_scales(c + i), k, unpacked + i * k);
      }
      product.out = {outs[m] + c, DType::f32, stride};
      linear(product, {0, rows}, {0, product.n}, scratch.subspan(unpacked_bytes(k)));
    }
  }
}

size_t mx_products_scratch_bytes(int64_t rows, int64_t k) {
  const auto ordered = static_cast<size_t>(std::min(rows, kMxFewRows) * k) * sizeof(float);
  return rows <= kMxFewRows ? ordered
                            : std::max(ordered, unpacked_bytes(k) + linear_scratch_bytes(
                                                                        unpacked_product(k), rows));
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

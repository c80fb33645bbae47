// Products of fp8 matrices on the CPU: widened to bf16 (exactly) and multiplied as that, with
// scales. Included once per instruction set.
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "arch/cpu/dot-inl.h"
#include "base/fp8.h"
#include "base/range.h"

#if defined(WEFT_ARCH_CPU_FP8_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_FP8_INL_H_
#undef WEFT_ARCH_CPU_FP8_INL_H_
#else
#define WEFT_ARCH_CPU_FP8_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// The numbers that the codes of an fp8 format stand for, as bf16.
template <class F>
constexpr std::array<bf16, 256> bf16_codes() {
  std::array<bf16, 256> codes;
  for (int i = 0; i < 256; ++i) {
    codes[i] = to_bf16(to_float(F{static_cast<uint8_t>(i)}));
  }
  return codes;
}

/// An fp8 matrix: element (row, i) is data[row * row_step + i * step], and one of the steps is 1.
struct Fp8Matrix {
  const uint8_t* data = nullptr;
  DType dtype = DType::e4m3fn;
  int64_t row_step = 0;
  int64_t step = 1;
};

/// Widens [rows] x [columns] to bf16, row-major with `stride`.
inline void widen(const Fp8Matrix& matrix, Range rows, Range columns, bf16* out, int64_t stride) {
  static constexpr std::array<bf16, 256> kFn = bf16_codes<e4m3fn>();
  static constexpr std::array<bf16, 256> kFnuz = bf16_codes<e4m3fnuz>();
  const bf16* codes = matrix.dtype == DType::e4m3fn ? kFn.data() : kFnuz.data();
  constexpr int64_t kTile = 64;  // where rows are not contiguous: a tile stays in the cache
  const int64_t tile = matrix.step == 1 ? columns.size() : kTile;
  for (int64_t first = columns.begin; first < columns.end; first += tile) {
    const int64_t last = std::min(first + tile, columns.end);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const uint8_t* from = matrix.data + r * matrix.row_step;
      bf16* to = out + (r - rows.begin) * stride - columns.begin;
      for (int64_t c = first; c < last; ++c) {
        to[c] = codes[from[c * matrix.step]];
      }
    }
  }
}

/// out[r, c] = sum over blocks of k of a_scale(r, block) * b_scale(c, block) * (a . b in the
/// block).
struct Fp8Product {
  Fp8Matrix a;
  Fp8Matrix b;
  int64_t k = 0;
  int64_t block = 0;  ///< elements of k that share their scales
  const float* a_scale = nullptr;
  int64_t a_scale_row = 0;  ///< steps of the scales; 0: the same one
  int64_t a_scale_block = 0;
  const float* b_scale = nullptr;
  int64_t b_scale_rows = 1;  ///< columns of the result that share a scale
  int64_t b_scale_row = 0;
  int64_t b_scale_block = 0;
  Matrix out;  ///< bf16 or f32
};

inline constexpr int64_t kFp8Panel = 128;  ///< columns at a time; all share their scales or none do

/// Where the parts of the scratch lie, each aligned to 64 bytes.
struct Fp8Scratch {
  Fp8Scratch(int64_t rows, int64_t k, int64_t block) {
    const auto part = [&](int64_t bytes) {
      const int64_t at = size;
      size += (bytes + 63) / 64 * 64;
      return at;
    };
    a = part(rows * k * 2);
    panel = part(kFp8Panel * block * 2);
    sums = part(rows * kFp8Panel * 4);
    dot = part(dot_scratch_bytes(rows, block));
  }
  int64_t size = 0;
  int64_t a, panel, sums, dot;
};

/// Adds scaled products of a block to the sums of a panel.
class Fp8Sums {
 public:
  Fp8Sums(const Fp8Product& product, int64_t first_row, float* sums)
      : product_(product), first_row_(first_row), sums_(sums) {}

  void start(Range panel, int64_t block) {
    block_ = block;
    for (int64_t c = 0; c < panel.size(); ++c) {
      const int64_t group = (panel.begin + c) / product_.b_scale_rows;
      b_scales_[c] =
          product_.b_scale[group * product_.b_scale_row + block * product_.b_scale_block];
    }
  }
  void begin(Range /*columns*/) {}
  HWY_INLINE void finish(int64_t r, int64_t column, int64_t count, const FloatVec (&sum)[1]) {
    const FloatTag d;
    const auto a_scale = hn::Set(
        d, product_
               .a_scale[(first_row_ + r) * product_.a_scale_row + block_ * product_.a_scale_block]);
    const auto scale = hn::Mul(a_scale, hn::LoadU(d, b_scales_ + column));
    float* to = sums_ + r * kFp8Panel + column;
    if (count == static_cast<int64_t>(kFloatLanes)) {
      hn::StoreU(hn::MulAdd(scale, sum[0], hn::LoadU(d, to)), d, to);
    } else {
      store_first(d, hn::MulAdd(scale, sum[0], load_first(d, to, count)), to, count);
    }
  }

 private:
  const Fp8Product& product_;
  int64_t first_row_;
  float* sums_;
  int64_t block_ = 0;
  float b_scales_[kFp8Panel + kFloatLanes] = {};
};

/// Computes out[rows, columns]; scratch of at least Fp8Scratch::size bytes.
inline void fp8_product(const Fp8Product& product, Range rows, Range columns,
                        std::span<std::byte> scratch) {
  const Fp8Scratch layout(rows.size(), product.k, product.block);
  WEFT_CHECK(static_cast<int64_t>(scratch.size()) >= layout.size);
  auto* a = reinterpret_cast<bf16*>(scratch.data() + layout.a);
  auto* panel = reinterpret_cast<bf16*>(scratch.data() + layout.panel);
  auto* sums = reinterpret_cast<float*>(scratch.data() + layout.sums);
  widen(product.a, rows, {0, product.k}, a, product.k);
  Fp8Sums epilogue(product, rows.begin, sums);
  for (int64_t first = columns.begin; first < columns.end; first += kFp8Panel) {
    const Range part{first, std::min(first + kFp8Panel, columns.end)};
    std::fill_n(sums, rows.size() * kFp8Panel, 0.0f);
    for (int64_t k = 0; k < product.k; k += product.block) {
      widen(product.b, part, {k, k + product.block}, panel, product.block);
      epilogue.start(part, k / product.block);
      const Factors<bf16, 1> factors{.a = a + k,
                                     .a_dtype = DType::bf16,
                                     .a_stride = product.k,
                                     .w = {panel},
                                     .w_stride = {product.block},
                                     .k = product.block};
      dot(factors, {0, rows.size()}, {0, part.size()}, scratch.subspan(layout.dot), epilogue);
    }
    for (int64_t r = 0; r < rows.size(); ++r) {
      const float* from = sums + r * kFp8Panel;
      for (int64_t c = 0; c < part.size(); ++c) {
        if (product.out.dtype == DType::bf16) {
          row<bf16>(product.out, rows.begin + r)[part.begin + c] = to_bf16(from[c]);
        } else {
          row<float>(product.out, rows.begin + r)[part.begin + c] = from[c];
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

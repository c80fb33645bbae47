// The two ways to multiply by a weight matrix. Both work on 32-bit units along k, so that packing,
// tiling and loops are written once: a unit is one f32 element, multiplied by FMA; or two adjacent
// bf16 elements, multiplied and summed in f32 by VDPBF16PS. Included once per instruction set.
#include <algorithm>
#include <cstdint>

#include "arch/cpu/e4m3-inl.h"
#include "arch/cpu/packed.h"
#include "arch/cpu/vector-inl.h"
#include "base/scaling.h"

#if defined(WEFT_ARCH_CPU_DOT_UNITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_UNITS_INL_H_
#undef WEFT_ARCH_CPU_DOT_UNITS_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_UNITS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

inline constexpr int64_t kUnitBlock = 16;  ///< units in a cache line

/// Units in a row of k elements, with zeros up to a whole line.
template <int64_t kElements>
constexpr int64_t padded_units(int64_t k) {
  return (k + kElements * kUnitBlock - 1) / (kElements * kUnitBlock) * kUnitBlock;
}

/// What a product reads: a[rows, k] and kMatrices weight matrices [n, k] of the same format, all
/// row-major with strides in elements, of e4m3fn with scales; or, of bf16, packed side by side.
template <class Weight, int kMatrices>
struct Factors {
  const void* a = nullptr;
  DType a_dtype = DType::f32;  ///< f32, or bf16 where Weight is bf16
  int64_t a_stride = 0;
  const Weight* w[kMatrices] = {};
  int64_t w_stride[kMatrices] = {};
  WeightScales scales[kMatrices] = {};
  const cpu::PackedMatrix* packed = nullptr;  ///< read in place of w
  int64_t k = 0;
};

/// Units in a row of k elements, with zeros up to a whole block of packed weights.
template <int64_t kElements>
constexpr int64_t packed_units(int64_t k) {
  return cpu::packed_blocks(k) * (cpu::kPackedBlock / kElements);
}

/// Where a row that is multiplied with packed weights in f32 has an element: of each 32, those in
/// even places come first, because a bf16 in an even place becomes an f32 by a shift and one in an
/// odd place by a mask.
constexpr int64_t split_place(int64_t element) {
  return element / 32 * 32 + element % 2 * 16 + element % 32 / 2;
}

/// Weights of any format, widened to f32.
template <class W>
struct F32Units {
  using Weight = W;
  static constexpr int64_t kElements = 1;  ///< elements in a unit
  static constexpr bool kInPlace = false;  ///< rows of `a` need conversion
  static constexpr bool kTiles = false;    ///< multiplied by AMX
  static constexpr int64_t kParts = 1;     ///< units for each of `a`, whose products are added

  /// A vector of units, or the first `count` elements of one and zeros; of e4m3fn in kE4m3Unit.
  static HWY_INLINE FloatVec weights(const W* w) { return load(FloatTag(), w); }
  static HWY_INLINE FloatVec first_weights(const W* w, int64_t count) {
    return load_first(FloatTag(), w, count);
  }
  /// The same, times a factor that all of them have.
  static HWY_INLINE FloatVec scaled_weights(const W* w, float factor) {
    return hn::Mul(weights(w), hn::Set(FloatTag(), factor));
  }
  static HWY_INLINE FloatVec multiply_add(FloatVec a, FloatVec w, FloatVec sum) {
    return hn::MulAdd(a, w, sum);
  }

  /// Copies k elements of a row of `a` into units.
  static void convert_row(const void* a, DType dtype, int64_t k, float* units) {
    if (dtype == DType::bf16) {
      convert(static_cast<const bf16*>(a), k, units);
    } else {
      std::memcpy(units, a, k * sizeof(float));
    }
  }

  // With packed weights:

  /// A row of `a` as packed_units(k) units in the order of split_place().
  static void split_row(const void* a, DType dtype, int64_t k, float* units) {
    float block[cpu::kPackedBlock];
    for (int64_t i = 0; i < k; i += cpu::kPackedBlock, units += cpu::kPackedBlock) {
      const int64_t count = std::min(cpu::kPackedBlock, k - i);
      std::fill(block + count, block + cpu::kPackedBlock, 0.0f);
      convert_row(static_cast<const std::byte*>(a) + i * size_of(dtype), dtype, count, block);
#if HWY_TARGET == HWY_SCALAR
      for (int64_t j = 0; j < cpu::kPackedBlock; ++j) {
        units[split_place(j)] = block[j];
      }
#else
      const FloatTag d;
      constexpr int64_t kLanes = kFloatLanes;
      for (int64_t j = 0; j < cpu::kPackedBlock; j += 2 * kLanes) {
        const auto first = hn::LoadU(d, block + j);
        const auto second = hn::LoadU(d, block + j + kLanes);
        hn::StoreU(hn::ConcatEven(d, second, first), d, units + split_place(j));
        hn::StoreU(hn::ConcatOdd(d, second, first), d, units + split_place(j) + 16);
      }
#endif
    }
  }
  /// sum += a * w for a vector of bf16 weights whose first is `element` of the block at `units`.
  template <class Bits>
  static HWY_INLINE FloatVec add_products(const float* units, int64_t element, Bits weights,
                                          FloatVec sum) {
    const FloatTag d;
    const hn::RebindToUnsigned<FloatTag> d32;
    const float* a = units + split_place(element);
    const auto bits = hn::BitCast(d32, weights);
    const auto even = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    const auto odd = hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xffff0000)));
    return hn::MulAdd(hn::LoadU(d, a + 16), odd, hn::MulAdd(hn::LoadU(d, a), even, sum));
  }
  static float element(const float* units, int64_t i) { return units[split_place(i)]; }
  /// Puts one of a unit's weights, the first or (where there are two) the second.
  static void set(float* unit, int64_t /*0*/, bf16 value) { *unit = to_float(value); }

 private:
  static void convert(const bf16* a, int64_t k, float* units) {
    const FloatTag d;
    const int64_t lanes = kFloatLanes;
    int64_t i = 0;
    for (; i + lanes <= k; i += lanes) {
      store(d, load(d, a + i), units + i);
    }
    for (; i < k; ++i) {
      units[i] = to_float(a[i]);
    }
  }
};

#if HWY_TARGET == HWY_AVX3
/// Pairs of bf16 elements, as raw bits in a vector that is called f32. Needs Isa::avx512_bf16.
struct Bf16Pairs {
  using Weight = bf16;
  static constexpr int64_t kElements = 2;
  static constexpr bool kInPlace = true;  ///< rows of `a` are units as they lie
  static constexpr bool kTiles = false;
  static constexpr int64_t kParts = 1;

  static HWY_INLINE FloatVec weights(const bf16* w) {
    return hn::LoadU(FloatTag(), reinterpret_cast<const float*>(w));
  }
  static HWY_INLINE FloatVec first_weights(const bf16* w, int64_t count) {
    bf16 padded[2 * kFloatLanes] = {};
    std::memcpy(padded, w, count * sizeof(bf16));
    return weights(padded);
  }
  /// sum += a.odd * w.odd, then a.even * w.even, each rounded to nearest; subnormals are zeros.
  static HWY_INLINE FloatVec multiply_add(FloatVec a, FloatVec w, FloatVec sum) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "v"(w.raw));
    return sum;
  }

  /// An odd last element is paired with zero.
  static void convert_row(const void* a, DType /*bf16*/, int64_t k, float* units) {
    if (k % 2 != 0) {
      units[k / 2] = 0;
    }
    std::memcpy(units, a, k * sizeof(bf16));
  }

  // With packed weights: pairs lie as in `a`.

  static void split_row(const void* a, DType dtype, int64_t k, float* units) {
    std::fill(units + k / 2, units + packed_units<2>(k), 0.0f);
    convert_row(a, dtype, k, units);
  }
  template <class Bits>
  static HWY_INLINE FloatVec add_products(const float* units, int64_t element, Bits weights,
                                          FloatVec sum) {
    return multiply_add(hn::LoadU(FloatTag(), units + element / 2),
                        hn::BitCast(FloatTag(), weights), sum);
  }
  static float element(const float* units, int64_t i) {
    bf16 value;
    std::memcpy(&value, reinterpret_cast<const bf16*>(units) + i, sizeof(value));
    return to_float(value);
  }
  static void set(float* unit, int64_t which, bf16 value) {
    std::memcpy(reinterpret_cast<bf16*>(unit) + which, &value, sizeof(value));
  }
};

/// The same pairs, 16 of each of 16 rows at a time. Needs Isa::amx_bf16.
struct Bf16Tiles : Bf16Pairs {
  static constexpr bool kTiles = true;
};

/// Rows of f32 likewise, each element as three bf16 that add up to it: what is left of it is cut
/// off after eight bits of a number twice, which leaves eight. Parts below 2^-126 are zeros.
struct F32Tiles : Bf16Tiles {
  static constexpr bool kInPlace = false;
  static constexpr int64_t kParts = 3;

  /// Up to a line's elements of a row, and zeros behind them; `part_step` from a part to the next.
  static void convert_row(const void* a, DType /*f32*/, int64_t k, float* units,
                          int64_t part_step) {
    // Of the 16-bit halves of two vectors' numbers, the upper ones. (Highway's lookup in two tables
    // is younger than Debian 12.)
    alignas(64) static constexpr uint16_t kOddHalves[2 * kFloatLanes] = {
        1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};
    const FloatTag d;
    const hn::Repartition<uint16_t, FloatTag> d16;
    const auto upper_half = hn::BitCast(d, hn::Set(hn::RebindToUnsigned<FloatTag>(), 0xffff0000));
    constexpr int64_t kLine = kElements * kUnitBlock;
    alignas(64) float padded[kLine] = {};
    const auto* from = static_cast<const float*>(a);
    if (k < kLine) {
      std::memcpy(padded, a, static_cast<size_t>(k) * sizeof(float));
      from = padded;
    }
    const auto odd = hn::Load(d16, kOddHalves);
    FloatVec left[2] = {hn::LoadU(d, from), hn::LoadU(d, from + kFloatLanes)};
#pragma GCC unroll 3
    for (int64_t part = 0; part < kParts; ++part) {
      const auto halves = _mm512_permutex2var_epi16(hn::BitCast(d16, left[0]).raw, odd.raw,
                                                    hn::BitCast(d16, left[1]).raw);
      _mm512_storeu_si512(units + part * part_step, halves);
#pragma GCC unroll 2
      for (FloatVec& each : left) {
        // Nothing is left of infinity; of NaN, NaN, even if its upper half is an infinity's.
        const FloatVec whole = hn::And(each, upper_half);
        each = hn::IfThenZeroElse(hn::IsInf(each), hn::Sub(each, whole));
      }
    }
  }
};

/// Weights in e4m3fn as pairs of bf16 (Bf16Pairs or Bf16Tiles), to which they are rounded
/// once they are scaled: what their checkpoint would hold in bf16.
template <class Pairs>
struct Fp8Pairs : Pairs {
  using Weight = e4m3fn;

  static HWY_INLINE FloatVec scaled_weights(const e4m3fn* w, float factor) {
    const FloatTag d;
    alignas(64) bf16 pairs[2 * kFloatLanes];
    store(d, F32Units<e4m3fn>::scaled_weights(w, factor), pairs);
    store(d, F32Units<e4m3fn>::scaled_weights(w + kFloatLanes, factor), pairs + kFloatLanes);
    return Pairs::weights(pairs);
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

// What every CPU kernel needs of Highway beyond Highway itself: loads and stores that convert
// between the storage formats and f32, short tails, exp. Included once per instruction set
// (hwy/foreach_target.h).
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/fp8.h"
#include "base/number.h"

#if defined(WEFT_ARCH_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_VECTOR_INL_H_
#undef WEFT_ARCH_CPU_VECTOR_INL_H_
#else
#define WEFT_ARCH_CPU_VECTOR_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The widest f32 vector of this instruction set.
using FloatTag = hn::ScalableTag<float>;
using FloatVec = hn::Vec<FloatTag>;
inline constexpr size_t kFloatLanes = hn::MaxLanes(FloatTag());

/// Lanes(d) elements from p, as f32. p needs no alignment.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const float* p) {
  return hn::LoadU(d, p);
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const f16* p) {
  if constexpr (hn::MaxLanes(D()) == 1) {  // Highway's scalar conversion knows no infinities
    return hn::Set(d, to_float(*p));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
  }
}

/// The first `count` < Lanes(d) elements from p, then zeros; reads nothing beyond them.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_first(D d, const T* p, size_t count) {
  T padded[hn::MaxLanes(D())] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load(d, padded);
}

/// Rounds v to T and writes Lanes(d) elements to p.
template <class D>
HWY_INLINE void store(D d, hn::Vec<D> v, float* p) {
  hn::StoreU(v, d, p);
}
template <class D>
HWY_INLINE void store(D /*d*/, hn::Vec<D> v, bf16* p) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, v);
  const auto upper = hn::ShiftRight<16>(bits);
  const auto odd = hn::And(upper, hn::Set(d32, 1));
  const auto even = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fff))));
  const auto quiet = hn::Or(upper, hn::Set(d32, 0x40));  // NaN must not round to infinity
  const auto nan = hn::RebindMask(d32, hn::IsNaN(v));
  hn::StoreU(hn::TruncateTo(d16, hn::IfThenElse(nan, quiet, even)), d16,
             reinterpret_cast<uint16_t*>(p));
}

/// saturate_to<>() of a vector.
template <class D, int E, int M, int B, Specials S>
HWY_INLINE void store(D d, hn::Vec<D> v, SmallFloat<E, M, B, S>* p) {
  using F = SmallFloat<E, M, B, S>;
  static_assert(F::kHasNan && F::kCodeBits == 8);
  const hn::Rebind<uint32_t, D> d32;
  const hn::Rebind<uint8_t, D> d8;
  constexpr int kDropped = 23 - M;  // bits of f32's mantissa
  const auto magnitude = hn::Min(hn::Abs(v), hn::Set(d, kMax<F>));
  // Normal numbers: to even on the lowest bit that stays; then the exponent's other bias.
  const auto bits = hn::BitCast(d32, magnitude);
  const auto odd = hn::And(hn::ShiftRight<kDropped>(bits), hn::Set(d32, 1));
  const auto half = hn::Set(d32, (1U << (kDropped - 1)) - 1);
  const auto normal = hn::Sub(hn::ShiftRight<kDropped>(hn::Add(bits, hn::Add(odd, half))),
                              hn::Set(d32, static_cast<uint32_t>(127 - B) << M));
  // Below them: units of the last place, rounded by adding 2^23.
  const auto units = hn::Mul(magnitude, hn::Set(d, detail::power_of_two(M - F::kLeastExponent)));
  const auto subnormal =
      hn::Sub(hn::BitCast(d32, hn::Add(units, hn::Set(d, 0x1p23f))), hn::Set(d32, 0x4b000000));
  const auto small =
      hn::RebindMask(d32, hn::Lt(magnitude, hn::Set(d, detail::power_of_two(F::kLeastExponent))));
  auto code = hn::IfThenElse(small, subnormal, normal);
  auto sign = hn::And(hn::ShiftRight<24>(hn::BitCast(d32, v)), hn::Set(d32, F::kSign));
  if (S == Specials::fnuz) {  // which has no negative zero
    sign = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(d32)), sign);
  }
  code =
      hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(v)), hn::Set(d32, F::kNan), hn::Or(sign, code));
  hn::StoreU(hn::TruncateTo(d8, code), d8, reinterpret_cast<uint8_t*>(p));
}

template <class D>
HWY_INLINE void store([[maybe_unused]] D d, hn::Vec<D> v, f16* p) {
  if constexpr (hn::MaxLanes(D()) == 1) {  // Highway's scalar conversion knows no infinities
    *p = to_f16(hn::GetLane(v));
  } else {
    const hn::Rebind<hwy::float16_t, D> d16;
    hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
  }
}

/// Writes the first `count` < Lanes(d) elements only.
template <class D, class T>
HWY_INLINE void store_first(D d, hn::Vec<D> v, T* p, size_t count) {
  T padded[hn::MaxLanes(D())];
  store(d, v, padded);
  std::memcpy(p, padded, count * sizeof(T));
}

/// exp(x) within 2 ulp for results in the normal range; below it zero, above it infinity; NaN
/// stays. x = n ln2 + r with |r| <= ln2 / 2, and exp(r) by its Taylor polynomial, economised
/// (Cephes expf).
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  const hn::Rebind<int32_t, D> di;
  // Clamped so that 2^n below is made of two normal factors. NaN passes both comparisons.
  const auto low = hn::Set(d, -87.336544f);  // ln(2^-126)
  const auto high = hn::Set(d, 88.722839f);  // ln(largest f32)
  const auto below = hn::Lt(x, low);
  const auto above = hn::Gt(x, high);
  const auto clamped = hn::IfThenElse(below, low, hn::IfThenElse(above, high, x));
  const auto n = hn::Round(hn::Mul(clamped, hn::Set(d, 1.44269504f)));
  auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), clamped);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, r, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.0000001201e-1f));
  p = hn::Add(hn::MulAdd(p, hn::Mul(r, r), r), hn::Set(d, 1.0f));
  // 2^n as two factors: n = 128 has no single normal power of two.
  const auto ni = hn::ConvertTo(di, hn::IfThenElse(hn::IsNaN(x), hn::Zero(d), n));
  const auto half = hn::ShiftRight<1>(ni);
  const auto bias = hn::Set(di, 127);
  const auto power = [&](auto e)
                         HWY_ATTR { return hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(e, bias))); };
  const auto result = hn::Mul(hn::Mul(p, power(half)), power(hn::Sub(ni, half)));
  const auto infinity = hn::Set(d, __builtin_inff());
  return hn::IfThenElse(above, infinity, hn::IfThenZeroElse(below, result));
}

/// 2^x for x <= 0 within 2 ulp, exactly 1 at 0; 0 below 2^-125; NaN stays. For softmax.
template <class D>
HWY_INLINE hn::Vec<D> exp2_of_nonpositive(D d, hn::Vec<D> x) {
  const hn::Rebind<int32_t, D> di;
  const auto low = hn::Set(d, -125.0f);
  const auto below = hn::Lt(x, low);
  const auto clamped = hn::IfThenElse(below, low, x);
  // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
  const auto magic = hn::Set(d, 12582912.0f);
  const auto shifted = hn::Add(clamped, magic);
  const auto f = hn::Sub(clamped, hn::Sub(shifted, magic));
  auto p = hn::Set(d, 0.00132647151f);  // minimax over [-1/2, 1/2] with p(0) = 1: 9.2e-8
  p = hn::MulAdd(p, f, hn::Set(d, 0.00967151277f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555073377f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240222421f));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693146978f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const auto power = hn::BitCast(d, hn::Add(exponent, hn::Set(di, 0x3f800000)));
  return hn::IfThenZeroElse(below, hn::Mul(p, power));
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

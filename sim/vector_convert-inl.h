// Conversions among binary16, binary32, binary64 and integers (8-bit floats, bf16 and scaled
// formats are in sim/convert.h). Included inside foreach_isa.h only.
#include "sim/vector-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

/// Towards zero; out of range stops at the ends, NaN gives 0.
template <class To, class From>
To truncated(From x) {
  using Limits = std::numeric_limits<To>;
  // Both bounds are exact in From: -2^n, and 2^m, the first number above.
  constexpr From kLow = static_cast<From>(Limits::min());
  constexpr From kAbove = static_cast<From>(Limits::max() / 2 + 1) * 2;
  return x != x        ? To(0)
         : x <= kLow   ? Limits::min()
         : x >= kAbove ? Limits::max()
                       : static_cast<To>(x);
}

/// [-1, 1] to 16 bits, or [0, 1]; to the nearest even. The product with the scale is rounded to the
/// type of x: halves come as double, which keeps it exact.
template <class T, class Float>
T normalized(Float x) {
  constexpr Float kScale = std::numeric_limits<T>::max();
  constexpr Float kLow = std::is_signed_v<T> ? -1 : 0;
  const Float bounded = x != x ? 0 : x < kLow ? kLow : x > 1 ? 1 : x;
  return static_cast<T>(__builtin_rint(bounded * kScale));
}
template <class T>
uint32_t packed_pair(T low, T high) {
  return static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16;
}

/// Two floats to binary16 towards zero.
inline void pack_towards_zero(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t out[kLanes];
  const uint32_t* a = load<F32>(w, i, 0, tmp[0]);
  const uint32_t* b = load<F32>(w, i, 1, tmp[1]);
  for (int l = 0; l < kLanes; ++l) {
    const auto low = static_cast<uint32_t>(_mm_cvtsi128_si32(
        _mm_cvtps_ph(_mm_set_ss(std::bit_cast<float>(a[l])), _MM_FROUND_TO_ZERO)));
    const auto high = static_cast<uint32_t>(_mm_cvtsi128_si32(
        _mm_cvtps_ph(_mm_set_ss(std::bit_cast<float>(b[l])), _MM_FROUND_TO_ZERO)));
    out[l] = (low & 0xffff) | high << 16;
  }
  finish<U32>(w, i, out);
}

/// Two binary16 side by side: the halves that op_sel names, as bits; neg and abs apply.
inline void pack_halves(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t out[kLanes];
  const uint32_t* p[2];
  for (int k = 0; k < 2; ++k) {
    const Operand& o = i.operand[1 + k];
    const uint32_t* q = plain_source(w, o, tmp[k], 1);
    const int shift = (i.op_sel >> k & 1) != 0 ? 16 : 0;
    const uint32_t clear = o.absolute ? 0x7fff : 0xffff;
    const uint32_t flip = o.negate ? 0x8000 : 0;
    for (int l = 0; l < kLanes; ++l) {
      tmp[k][l] = (q[l] >> shift & clear) ^ flip;
    }
    p[k] = tmp[k];
  }
  WEFT_SIM_LANES { out[l] = p[0][l] | p[1][l] << 16; }
  finish<U32>(w, i, out);
}

/// Two floats to binary16, MODE's rounding.
inline void pack_rounded(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t halves[2][kLanes];
  for (int k = 0; k < 2; ++k) {
    const FloatMode mode(w, Type::f16);
    narrow(w, load<F32>(w, i, k, tmp[k]), halves[k]);
  }
  WEFT_SIM_LANES { halves[0][l] |= halves[1][l] << 16; }
  finish<U32>(w, i, halves[0]);
}

template <int kByte>
constexpr Row unsigned_byte(std::string_view name) {
  return row<F32(U32)>(name, [](uint32_t a) { return static_cast<float>(a >> (8 * kByte) & 255); });
}

constexpr Row pair_row(std::string_view name, Execute run, Type source, uint8_t flags = 0) {
  return {.name = name, .run = run, .types = {Type::b32, source, source}, .flags = flags};
}

/// c with its byte `at` replaced by a, rounded.
inline uint32_t with_byte(float a, uint32_t at, uint32_t c) {
  const float bounded = a != a ? 0 : a < 0 ? 0 : a > 255 ? 255 : a;
  const auto byte = static_cast<uint32_t>(__builtin_rintf(bounded));
  const uint32_t shift = 8 * (at & 3);
  return (c & ~(0xffU << shift)) | byte << shift;
}

constexpr Row kConvertRows[] = {
    row<F32(I32)>("v_cvt_f32_i32", [](int32_t a) { return static_cast<float>(a); }),
    row<F32(U32)>("v_cvt_f32_u32", [](uint32_t a) { return static_cast<float>(a); }),
    row<U32(F32)>("v_cvt_u32_f32", [](float a) { return truncated<uint32_t>(a); }),
    row<I32(F32)>("v_cvt_i32_f32", [](float a) { return truncated<int32_t>(a); }),
    row<F16(F32)>("v_cvt_f16_f32", [](float a) { return a; }),
    row<F32(F16)>("v_cvt_f32_f16", [](float a) { return a != a ? a + a : a; }),
    row<I32(F32)>("v_cvt_rpi_i32_f32",
                  [](float a) { return truncated<int32_t>(__builtin_floor(double{a} + 0.5)); }),
    row<I32(F32)>("v_cvt_flr_i32_f32",
                  [](float a) { return truncated<int32_t>(__builtin_floorf(a)); }),
    row<F32(U32)>(
        "v_cvt_off_f32_i4",
        [](uint32_t a) { return static_cast<float>(static_cast<int32_t>(a << 28) >> 28) / 16; }),
    unsigned_byte<0>("v_cvt_f32_ubyte0"),
    unsigned_byte<1>("v_cvt_f32_ubyte1"),
    unsigned_byte<2>("v_cvt_f32_ubyte2"),
    unsigned_byte<3>("v_cvt_f32_ubyte3"),
    row<I32(F64)>("v_cvt_i32_f64", [](double a) { return truncated<int32_t>(a); }),
    row<U32(F64)>("v_cvt_u32_f64", [](double a) { return truncated<uint32_t>(a); }),
    row<F64(I32)>("v_cvt_f64_i32", [](int32_t a) { return static_cast<double>(a); }),
    row<F64(U32)>("v_cvt_f64_u32", [](uint32_t a) { return static_cast<double>(a); }),
    row<F32(F64)>("v_cvt_f32_f64", [](double a) { return static_cast<float>(a); }),
    row<F64(F32)>("v_cvt_f64_f32", [](float a) { return static_cast<double>(a); }),
    row<F16(U16)>("v_cvt_f16_u16", [](uint16_t a) { return static_cast<float>(a); }),
    row<F16(I16)>("v_cvt_f16_i16", [](int16_t a) { return static_cast<float>(a); }),
    row<U16(F16)>("v_cvt_u16_f16", [](float a) { return truncated<uint16_t>(a); }),
    row<I16(F16)>("v_cvt_i16_f16", [](float a) { return truncated<int16_t>(a); }),
    row<I16(F16)>("v_cvt_norm_i16_f16", [](float a) { return normalized<int16_t>(double{a}); }),
    row<U16(F16)>("v_cvt_norm_u16_f16", [](float a) { return normalized<uint16_t>(double{a}); }),
    row<U32(F32, F32)>("v_cvt_pknorm_i16_f32",
                       [](float a, float b) {
                         return packed_pair(normalized<int16_t>(a), normalized<int16_t>(b));
                       }),
    row<U32(F32, F32)>("v_cvt_pknorm_u16_f32",
                       [](float a, float b) {
                         return packed_pair(normalized<uint16_t>(a), normalized<uint16_t>(b));
                       }),
    row<U32(F16, F16)>("v_cvt_pknorm_i16_f16",
                       [](float a, float b) {
                         return packed_pair(normalized<int16_t>(double{a}),
                                            normalized<int16_t>(double{b}));
                       }),
    row<U32(F16, F16)>("v_cvt_pknorm_u16_f16",
                       [](float a, float b) {
                         return packed_pair(normalized<uint16_t>(double{a}),
                                            normalized<uint16_t>(double{b}));
                       }),
    row<U32(U32, U32)>("v_cvt_pk_u16_u32",
                       [](uint32_t a, uint32_t b) {
                         return packed_pair(static_cast<uint16_t>(a > 0xffff ? 0xffff : a),
                                            static_cast<uint16_t>(b > 0xffff ? 0xffff : b));
                       }),
    row<U32(I32, I32)>("v_cvt_pk_i16_i32",
                       [](int32_t a, int32_t b) {
                         const auto bound = [](int32_t x) {
                           return static_cast<int16_t>(x < -32768 ? -32768 : x > 32767 ? 32767 : x);
                         };
                         return packed_pair(bound(a), bound(b));
                       }),
    row<U32(F32, U32, U32)>("v_cvt_pk_u8_f32",
                            [](float a, uint32_t at, uint32_t c) { return with_byte(a, at, c); }),
    accumulate<U32(F32, U32)>("v_cvt_pkaccum_u8_f32",
                              [](float a, uint32_t at, uint32_t c) { return with_byte(a, at, c); }),
    pair_row("v_cvt_pkrtz_f16_f32", &pack_towards_zero, Type::f32),
    pair_row("v_cvt_pk_f16_f32", &pack_rounded, Type::f32, kOnlyGfx950),
    pair_row("v_pack_b32_f16", &pack_halves, Type::f16, kMoves),
};

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim

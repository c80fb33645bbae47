// Packed arithmetic (VOP3P), dot products, mixed-precision multiply-add. Included inside
// foreach_isa.h only.
#include "sim/vector_arithmetic-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

/// The half of each word that `high` names, sign-extended or not.
inline void halves(const uint32_t* p, bool high, uint32_t* out) {
  if (high) {
    WEFT_SIM_LANES { out[l] = p[l] >> 16; }
  } else {
    WEFT_SIM_LANES { out[l] = p[l] & 0xffff; }
  }
}

/// Two 16-bit results from two halves of each source: op_sel and op_sel_hi name the halves, neg_lo
/// and neg_hi turn the sign of floats.
template <class Signature, class F>
struct Packed16;
template <class D, class... S, class F>
struct Packed16<D(S...), F> {
  static void run(Wave& w, const Instruction& i) {
    constexpr bool kFloat = D::kType == Type::f16;
    constexpr int kSources = sizeof...(S);
    alignas(64) uint32_t tmp[kSources][2 * kLanes];
    alignas(64) uint32_t part[kSources][kLanes];
    alignas(64) uint32_t result[2][kLanes];
    const FloatMode mode(w, D::kType);
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < kSources; ++k) {
        const uint32_t* p = plain_source(w, i.operand[1 + k], tmp[k], 1);
        const uint32_t select = half == 0 ? i.op_sel : i.op_sel_hi;
        const uint32_t negate = half == 0 ? i.neg_lo : i.neg_hi;
        halves(p, (select >> k & 1) != 0, part[k]);
        if (kFloat) {
          if ((negate >> k & 1) != 0) {
            WEFT_SIM_LANES { part[k][l] ^= 0x8000; }
          }
          widen(part[k], part[k]);
        }
      }
      each(part, result[half], i.clamp, std::index_sequence_for<S...>());
      if constexpr (kFloat) {
        if (i.clamp) {
          float_modifiers<F32>(w, i, result[half]);
        }
        narrow(w, result[half], result[half]);
      }
    }
    WEFT_SIM_LANES { result[0][l] = (result[0][l] & 0xffff) | result[1][l] << 16; }
    blend(w.lanes(i.operand[0].index), result[0], w.exec(), 1);
  }

 private:
  template <size_t... K>
  static void each(uint32_t (*part)[kLanes], uint32_t* out, bool clamp, std::index_sequence<K...>) {
    const F f{};
    if constexpr (D::kType == Type::f16) {
      WEFT_SIM_LANES { D::put(out, l, f(S::get(part[K], l)...)); }
    } else {
      using T = typename D::T;
      using Limits = std::numeric_limits<T>;
      WEFT_SIM_LANES {
        const int64_t exact = f(static_cast<int64_t>(S::get(part[K], l))...);
        const int64_t bounded = exact < Limits::min()   ? Limits::min()
                                : exact > Limits::max() ? Limits::max()
                                                        : exact;
        out[l] = static_cast<uint16_t>(clamp ? bounded : exact);
      }
    }
  }
};

template <class Signature, class F>
constexpr Row packed(std::string_view name, F, uint8_t flags = 0) {
  return Types<Signature>::fill(
      {.name = name, .run = &Packed16<Signature, F>::run, .flags = flags});
}

/// v_pk_fmac_f16: the result register is the third source.
inline void packed_fmac(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t part[3][kLanes];
  alignas(64) uint32_t result[2][kLanes];
  const FloatMode mode(w, Type::f16);
  const uint32_t* p[3] = {plain_source(w, i.operand[1], tmp[0], 1),
                          plain_source(w, i.operand[2], tmp[1], 1), w.lanes(i.operand[0].index)};
  for (int half = 0; half < 2; ++half) {
    for (int k = 0; k < 3; ++k) {
      halves(p[k], half == 1, part[k]);
      widen(part[k], part[k]);
    }
    for (int l = 0; l < kLanes; ++l) {
      F32::put(result[half], l,
               fused_half(F32::get(part[0], l), F32::get(part[1], l), F32::get(part[2], l)));
    }
    narrow(w, result[half], result[half]);
  }
  WEFT_SIM_LANES { result[0][l] = (result[0][l] & 0xffff) | result[1][l] << 16; }
  blend(w.lanes(i.operand[0].index), result[0], w.exec(), 1);
}

/// Two 32-bit results; op_sel and op_sel_hi name the words of each source.
template <int kSources, class F>
void packed32(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[kSources][2 * kLanes];
  alignas(64) uint32_t flipped[kSources][kLanes];
  alignas(64) uint32_t result[2 * kLanes];
  const FloatMode mode(w, Type::f32);
  const uint32_t* p[kSources];
  for (int k = 0; k < kSources; ++k) {
    p[k] = plain_source(w, i.operand[1 + k], tmp[k], 2);
  }
  const F f{};
  // Straight into its registers, if the first half is not what the second one reads.
  constexpr int kAll = (1 << kSources) - 1;
  bool straight = direct(w, i) && !i.clamp && (i.op_sel_hi & kAll) == kAll;
  for (int k = 0; k < kSources; ++k) {
    const Operand& o = i.operand[1 + k];
    straight &= o.kind != Operand::Kind::vgpr || o.index + 1 != i.operand[0].index;
  }
  uint32_t* to = w.lanes(i.operand[0].index);
  for (int half = 0; half < 2; ++half) {
    const uint32_t select = half == 0 ? i.op_sel : i.op_sel_hi;
    const uint32_t negate = half == 0 ? i.neg_lo : i.neg_hi;
    const uint32_t* q[kSources];
    for (int k = 0; k < kSources; ++k) {
      q[k] = p[k] + (select >> k & 1) * kLanes;
      if ((negate >> k & 1) != 0) {
        WEFT_SIM_LANES { flipped[k][l] = q[k][l] ^ 0x80000000; }
        q[k] = flipped[k];
      }
    }
    uint32_t* out = (straight ? to : result) + half * kLanes;
    if constexpr (kSources == 2) {
      WEFT_SIM_LANES { F32::put(out, l, f(F32::get(q[0], l), F32::get(q[1], l))); }
    } else {
      WEFT_SIM_LANES {
        F32::put(out, l, f(F32::get(q[0], l), F32::get(q[1], l), F32::get(q[2], l)));
      }
    }
  }
  if (i.clamp) {
    float_modifiers<F32>(w, i, result);
    float_modifiers<F32>(w, i, result + kLanes);
  }
  if (!straight) {
    blend(to, result, w.exec(), 2);
  }
}
template <int kSources, class F>
constexpr Row pair(std::string_view name, F) {
  return {.name = name,
          .run = &packed32<kSources, F>,
          .types = {Type::pk32, Type::pk32, Type::pk32, kSources == 3 ? Type::pk32 : Type::none},
          .flags = kFloatResult};
}

inline void packed_move(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t result[2 * kLanes];
  for (int k = 0; k < 2; ++k) {
    const uint32_t* p = plain_source(w, i.operand[1 + k], tmp[k], 2) + (i.op_sel >> k & 1) * kLanes;
    std::memcpy(result + k * kLanes, p, sizeof(Lanes));
  }
  blend(w.lanes(i.operand[0].index), result, w.exec(), 2);
}

/// a * b + c in float, where each source is a float or, by op_sel_hi, the half that op_sel names.
inline void mixed(Wave& w, const Instruction& i, uint32_t* out) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  for (int k = 0; k < 3; ++k) {
    const Operand& o = i.operand[1 + k];
    const uint32_t* p = plain_source(w, o, tmp[k], 1);
    if ((i.op_sel_hi >> k & 1) != 0) {
      alignas(64) uint32_t part[kLanes];
      halves(p, (i.op_sel >> k & 1) != 0, part);
      widen(part, tmp[k]);
      p = tmp[k];
    }
    const uint32_t clear = o.absolute ? 0x7fffffff : 0xffffffff;
    const uint32_t flip = o.negate ? 0x80000000 : 0;
    WEFT_SIM_LANES { tmp[k][l] = (p[l] & clear) ^ flip; }
  }
  WEFT_SIM_LANES {
    F32::put(out, l, fused(F32::get(tmp[0], l), F32::get(tmp[1], l), F32::get(tmp[2], l)));
  }
}
inline void mix_f32(Wave& w, const Instruction& i) {
  alignas(64) uint32_t out[kLanes];
  const FloatMode mode(w, Type::f32);
  mixed(w, i, out);
  if (i.clamp) {
    float_modifiers<F32>(w, i, out);
  }
  blend(w.lanes(i.operand[0].index), out, w.exec(), 1);
}
template <bool kHigh>
void mix_f16(Wave& w, const Instruction& i) {
  alignas(64) uint32_t out[kLanes];
  const FloatMode mode(w, Type::f32);
  mixed(w, i, out);
  if (i.clamp) {
    float_modifiers<F32>(w, i, out);
  }
  narrow(w, out, out);
  uint32_t* to = w.lanes(i.operand[0].index);
  WEFT_SIM_LANES {
    out[l] = kHigh ? out[l] << 16 | (to[l] & 0xffff) : (out[l] & 0xffff) | (to[l] & 0xffff0000);
  }
  blend(to, out, w.exec(), 1);
}
constexpr Row mix_row(std::string_view name, Execute run, uint8_t reads_result) {
  return {.name = name,
          .run = run,
          .types = {Type::b32, Type::mix, Type::mix, Type::mix},
          .reads_result = reads_result,
          .flags = reads_result != 0 ? kKeepsHigh : kBothTargets};
}

// Dot products. Floats: the products are added to the third operand one after the other, lowest
// element first, each step one fused multiply-add in binary32; denormal inputs and results are zero
// (CDNA 3 manual, section 6.4).
inline float half_to_float(uint32_t bits) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(static_cast<int>(bits & 0xffff))));
}
inline float flushed(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x7f800000) == 0 ? std::bit_cast<float>(bits & 0x80000000) : x;
}
inline float flushed_half(uint32_t bits) {
  return (bits & 0x7c00) == 0 ? ((bits & 0x8000) != 0 ? -0.0F : 0.0F) : half_to_float(bits);
}
inline float dot2_f16(uint32_t a, uint32_t b, float c) {
  float sum = flushed(c);
  sum = __builtin_fmaf(flushed_half(a & 0xffff), flushed_half(b & 0xffff), sum);
  return flushed(__builtin_fmaf(flushed_half(a >> 16), flushed_half(b >> 16), sum));
}
inline float dot2_bf16(uint32_t a, uint32_t b, float c) {
  const auto low = [](uint32_t x) { return flushed(std::bit_cast<float>(x << 16)); };
  const auto high = [](uint32_t x) { return flushed(std::bit_cast<float>(x & 0xffff0000)); };
  float sum = __builtin_fmaf(low(a), low(b), flushed(c));
  return flushed(__builtin_fmaf(high(a), high(b), sum));
}
/// Elements of `kBits` bits, signed or not, summed exactly.
template <int kBits, bool kSigned>
int64_t dot(uint32_t a, uint32_t b) {
  int64_t sum = 0;
  for (int shift = 0; shift < 32; shift += kBits) {
    if constexpr (kSigned) {
      const int32_t x = static_cast<int32_t>(a << (32 - kBits - shift)) >> (32 - kBits);
      const int32_t y = static_cast<int32_t>(b << (32 - kBits - shift)) >> (32 - kBits);
      sum += int64_t{x} * y;
    } else {
      constexpr uint32_t kMask = (1U << kBits) - 1;
      sum += static_cast<int64_t>(uint64_t{a >> shift & kMask} * (b >> shift & kMask));
    }
  }
  return sum;
}

template <int kBits, bool kSigned, bool kInPlace>
void integer_dot(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t out[kLanes];
  const uint32_t* a = source(w, i, 1, tmp[0], 1, Type::b32);
  const uint32_t* b = source(w, i, 2, tmp[1], 1, Type::b32);
  const uint32_t* c =
      kInPlace ? w.lanes(i.operand[0].index) : source(w, i, 3, tmp[2], 1, Type::b32);
  for (int l = 0; l < kLanes; ++l) {
    const int64_t exact = dot<kBits, kSigned>(a[l], b[l]) +
                          (kSigned ? int64_t{static_cast<int32_t>(c[l])} : int64_t{c[l]});
    constexpr int64_t kLow = kSigned ? std::numeric_limits<int32_t>::min() : 0;
    constexpr int64_t kHigh = kSigned ? std::numeric_limits<int32_t>::max()
                                      : int64_t{std::numeric_limits<uint32_t>::max()};
    const int64_t bounded = exact < kLow ? kLow : exact > kHigh ? kHigh : exact;
    out[l] = static_cast<uint32_t>(i.clamp ? bounded : exact);
  }
  blend(w.lanes(i.operand[0].index), out, write_mask(w, i), 1);
}
template <int kBits, bool kSigned>
constexpr Row dot_row(std::string_view name) {
  return {.name = name,
          .run = &integer_dot<kBits, kSigned, false>,
          .types = {Type::b32, Type::b32, Type::b32, Type::b32}};
}
template <int kBits, bool kSigned>
constexpr Row dot_in_place(std::string_view name) {
  return {.name = name,
          .run = &integer_dot<kBits, kSigned, true>,
          .types = {Type::b32, Type::b32, Type::b32},
          .reads_result = 1};
}

/// Float dot products; neg_lo and neg_hi turn the signs of the low and high elements.
template <class F, uint32_t kSign>
void float_dot(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t out[kLanes];
  const bool in_place = i.row->reads_result != 0;
  const uint32_t* p[3];
  for (int k = 0; k < 3; ++k) {
    p[k] = k == 2 && in_place ? w.lanes(i.operand[0].index)
                              : plain_source(w, i.operand[1 + k], tmp[k], 1);
  }
  uint32_t flip[2];
  for (int k = 0; k < 2; ++k) {
    flip[k] = ((i.neg_lo >> k & 1) != 0 ? 0x8000 : 0) | ((i.neg_hi >> k & 1) != 0 ? 0x80000000 : 0);
  }
  const uint32_t flip_c = (i.neg_lo & 4) != 0 ? 0x80000000 : 0;
  const F f{};
  for (int l = 0; l < kLanes; ++l) {
    F32::put(out, l,
             f(p[0][l] ^ flip[0], p[1][l] ^ flip[1], std::bit_cast<float>(p[2][l] ^ flip_c)));
  }
  if (i.clamp) {
    float_modifiers<F32>(w, i, out);
  }
  blend(w.lanes(i.operand[0].index), out, write_mask(w, i), 1);
}
template <class F>
constexpr Row float_dot_row(std::string_view name, F, Type element, bool in_place,
                            uint8_t flags = 0) {
  return {.name = name,
          .run = &float_dot<F, 0x8000>,
          .types = {Type::b32, element, element, in_place ? Type::none : Type::f32},
          .reads_result = static_cast<uint8_t>(in_place ? 1 : 0),
          .flags = static_cast<uint8_t>(flags | kFloatResult)};
}

template <class Signature, class Ieee, class Other>
constexpr Row packed_by_ieee(std::string_view name, Ieee, Other) {
  return Types<Signature>::fill(
      {.name = name, .run = &ByIeee<Packed16, Signature, Ieee, Other>::run, .flags = kFloatResult});
}

constexpr auto kDot2F16 = [](uint32_t a, uint32_t b, float c) { return dot2_f16(a, b, c); };
constexpr auto kDot2Bf16 = [](uint32_t a, uint32_t b, float c) { return dot2_bf16(a, b, c); };

constexpr Row kPackedRows[] = {
    packed<F16(F16, F16)>("v_pk_add_f16", [](float a, float b) { return a + b; }),
    packed<F16(F16, F16)>("v_pk_mul_f16", [](float a, float b) { return a * b; }),
    packed<F16(F16, F16, F16)>("v_pk_fma_f16",
                               [](float a, float b, float c) { return fused_half(a, b, c); }),
    {.name = "v_pk_fmac_f16",
     .run = &packed_fmac,
     .types = {Type::f16, Type::f16, Type::f16},
     .reads_result = 1},
    packed_by_ieee<F16(F16, F16)>("v_pk_min_f16", WEFT_IEEE(extreme<false, kIeee>)),
    packed_by_ieee<F16(F16, F16)>("v_pk_max_f16", WEFT_IEEE(extreme<true, kIeee>)),
    packed<F16(F16, F16, F16)>(
        "v_pk_minimum3_f16",
        [](float a, float b, float c) { return extreme_nan<false>(extreme_nan<false>(a, b), c); },
        kOnlyGfx950),
    packed<F16(F16, F16, F16)>(
        "v_pk_maximum3_f16",
        [](float a, float b, float c) { return extreme_nan<true>(extreme_nan<true>(a, b), c); },
        kOnlyGfx950),
    packed<U16(U16, U16)>("v_pk_add_u16", [](int64_t a, int64_t b) { return a + b; }),
    packed<U16(U16, U16)>("v_pk_sub_u16", [](int64_t a, int64_t b) { return a - b; }),
    packed<I16(I16, I16)>("v_pk_add_i16", [](int64_t a, int64_t b) { return a + b; }),
    packed<I16(I16, I16)>("v_pk_sub_i16", [](int64_t a, int64_t b) { return a - b; }),
    packed<U16(U16, U16)>("v_pk_mul_lo_u16", [](int64_t a, int64_t b) { return a * b; }),
    packed<U16(U16, U16, U16)>("v_pk_mad_u16",
                               [](int64_t a, int64_t b, int64_t c) { return a * b + c; }),
    packed<I16(I16, I16, I16)>("v_pk_mad_i16",
                               [](int64_t a, int64_t b, int64_t c) { return a * b + c; }),
    packed<U16(U16, U16)>("v_pk_lshlrev_b16",
                          [](int64_t n, int64_t a) { return (a << (n & 15)) & 0xffff; }),
    packed<U16(U16, U16)>("v_pk_lshrrev_b16", [](int64_t n, int64_t a) { return a >> (n & 15); }),
    packed<I16(U16, I16)>("v_pk_ashrrev_i16", [](int64_t n, int64_t a) { return a >> (n & 15); }),
    packed<I16(I16, I16)>("v_pk_min_i16", [](int64_t a, int64_t b) { return a < b ? a : b; }),
    packed<I16(I16, I16)>("v_pk_max_i16", [](int64_t a, int64_t b) { return a > b ? a : b; }),
    packed<U16(U16, U16)>("v_pk_min_u16", [](int64_t a, int64_t b) { return a < b ? a : b; }),
    packed<U16(U16, U16)>("v_pk_max_u16", [](int64_t a, int64_t b) { return a > b ? a : b; }),

    pair<3>("v_pk_fma_f32", [](float a, float b, float c) { return fused(a, b, c); }),
    pair<2>("v_pk_mul_f32", [](float a, float b) { return a * b; }),
    pair<2>("v_pk_add_f32", [](float a, float b) { return a + b; }),
    {.name = "v_pk_mov_b32",
     .run = &packed_move,
     .types = {Type::pk32, Type::pk32, Type::pk32},
     .flags = kMoves},

    mix_row("v_fma_mix_f32", &mix_f32, 0),
    mix_row("v_fma_mixlo_f16", &mix_f16<false>, 1),
    mix_row("v_fma_mixhi_f16", &mix_f16<true>, 1),
    float_dot_row("v_dot2_f32_f16", kDot2F16, Type::f16, false),
    float_dot_row("v_dot2c_f32_f16", kDot2F16, Type::f16, true),
    float_dot_row("v_dot2_f32_bf16", kDot2Bf16, Type::bf16, false, kOnlyGfx950),
    float_dot_row("v_dot2c_f32_bf16", kDot2Bf16, Type::bf16, true, kOnlyGfx950),
    dot_row<16, true>("v_dot2_i32_i16"),
    dot_row<16, false>("v_dot2_u32_u16"),
    dot_row<8, true>("v_dot4_i32_i8"),
    dot_row<8, false>("v_dot4_u32_u8"),
    dot_row<4, true>("v_dot8_i32_i4"),
    dot_row<4, false>("v_dot8_u32_u4"),
    dot_in_place<16, true>("v_dot2c_i32_i16"),
    dot_in_place<8, true>("v_dot4c_i32_i8"),
    dot_in_place<4, true>("v_dot8c_i32_i4"),
};

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim

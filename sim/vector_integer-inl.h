// Integer and bit arithmetic: one row for each instruction. Included inside foreach_isa.h only.
#include "sim/vector-inl.h"

namespace weft::sim {
namespace WEFT_SIM_ISA {

template <class T>
T saturated(int64_t x) {
  using Limits = std::numeric_limits<T>;
  return x < Limits::min() ? Limits::min() : x > Limits::max() ? Limits::max() : static_cast<T>(x);
}

/// With clamp the second function.
template <class Signature, class F, class Clamped>
struct Clampable {
  static void run(Wave& w, const Instruction& i) {
    if (i.clamp) {
      Elementwise<Signature, Clamped>::run(w, i);
    } else {
      Elementwise<Signature, F>::run(w, i);
    }
  }
};
template <class Signature, class F, class Clamped>
constexpr Row clampable(std::string_view name, F, Clamped, uint8_t flags = 0) {
  return Types<Signature>::fill(
      {.name = name, .run = &Clampable<Signature, F, Clamped>::run, .flags = flags});
}

constexpr int32_t signed24(uint32_t x) { return static_cast<int32_t>(x << 8) >> 8; }
constexpr uint32_t low24(uint32_t x) { return x & 0xffffff; }

constexpr uint32_t reversed(uint32_t x) {
  x = (x >> 1 & 0x55555555) | (x & 0x55555555) << 1;
  x = (x >> 2 & 0x33333333) | (x & 0x33333333) << 2;
  x = (x >> 4 & 0x0f0f0f0f) | (x & 0x0f0f0f0f) << 4;
  return __builtin_bswap32(x);
}

constexpr uint32_t byte_of(uint32_t x, int k) { return x >> (8 * k) & 255; }
constexpr uint32_t distance(uint32_t a, uint32_t b) { return a > b ? a - b : b - a; }

inline uint32_t permuted(uint32_t high, uint32_t low, uint32_t selector) {
  const uint64_t data = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t s = byte_of(selector, k);
    uint32_t byte = 0;
    if (s >= 13) {
      byte = 0xff;
    } else if (s == 12) {
      byte = 0;
    } else if (s >= 8) {
      byte = (data >> (16 * (s - 8) + 15) & 1) != 0 ? 0xff : 0;
    } else {
      byte = static_cast<uint32_t>(data >> (8 * s)) & 0xff;
    }
    result |= byte << (8 * k);
  }
  return result;
}

template <class T>
T middle(T a, T b, T c) {
  return a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b);
}

inline uint32_t sad_u8(uint32_t a, uint32_t b, uint32_t c, bool masked) {
  for (int k = 0; k < 4; ++k) {
    c += masked && byte_of(b, k) == 0 ? 0 : distance(byte_of(a, k), byte_of(b, k));
  }
  return c;
}

/// Four sums of byte differences: of bytes k to k + 3 of the first source, for k = 0 to 3. kBits of
/// each sum, and of what is added to it: 16 packed, or 32.
template <bool kMasked, int kBits>
void four_sads(Wave& w, const Instruction& i) {
  constexpr int kWords = kBits / 8;
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t constant[kWords * kLanes] = {};
  alignas(64) uint32_t out[kWords * kLanes];
  const uint32_t* a = source(w, i, 1, tmp[0], 2, Type::b64);
  const uint32_t* b = source(w, i, 2, tmp[1], 1, Type::b32);
  const Operand& addend = i.operand[3];
  const uint32_t* c = constant;
  if (addend.kind == Operand::Kind::vgpr) {
    c = w.lanes(addend.index);
  } else {
    splat(constant, static_cast<uint32_t>(w.read64(addend)));
  }
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t bytes = U64::get(a, l);
    uint32_t sums[4];
    for (int k = 0; k < 4; ++k) {
      const uint32_t old =
          kBits == 32 ? c[k * kLanes + l] : c[k / 2 * kLanes + l] >> (16 * (k % 2)) & 0xffff;
      sums[k] = sad_u8(static_cast<uint32_t>(bytes >> (8 * k)), b[l], old, kMasked);
    }
    for (int word = 0; word < kWords; ++word) {
      out[word * kLanes + l] =
          kBits == 32 ? sums[word] : (sums[2 * word] & 0xffff) | sums[2 * word + 1] << 16;
    }
  }
  blend(w.lanes(i.operand[0].index), out, w.exec(), kWords);
}
constexpr Row four_sads_row(std::string_view name, Execute run, Type sums) {
  return {.name = name,
          .run = run,
          .cost = Class::valu_slow,
          .types = {sums, Type::b64, Type::b32, sums}};
}

/// Additions with a carry: results and carry-out, the carry-in from the last operand.
template <class F>
void with_carry(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t out[kLanes];
  const uint32_t* a = source(w, i, 2, tmp[0], 1, Type::b32);
  const uint32_t* b = source(w, i, 3, tmp[1], 1, Type::b32);
  const uint64_t carry_in = i.operands > 4 ? w.read64(i.operand[4]) : 0;
  const F f{};
  uint64_t carry_out = 0;
  for (int l = 0; l < kLanes; ++l) {
    // 33 bits: the top one is the carry, or the borrow.
    const uint64_t sum = f(uint64_t{a[l]}, uint64_t{b[l]}, carry_in >> l & 1);
    const uint64_t carry = sum >> 32 & 1;
    carry_out |= carry << l;
    out[l] = static_cast<uint32_t>(sum);
  }
  if (i.clamp) {
    // A carry saturates to all ones, a borrow to zero.
    const bool subtracts = f(0, 1, 0) >> 32 != 0 || f(1, 0, 0) >> 32 != 0;
    for (int l = 0; l < kLanes; ++l) {
      if ((carry_out >> l & 1) != 0) {
        out[l] = subtracts ? 0 : ~0U;
      }
    }
  }
  const uint64_t mask = write_mask(w, i);
  const uint64_t exec = w.exec();
  if (i.destination_select != 6) {
    select_destination(i, w.lanes(i.operand[0].index), out);
  }
  blend(w.lanes(i.operand[0].index), out, mask, 1);
  w.write64(i.operand[1], carry_out & exec);
}
template <class F>
constexpr Row carrying(std::string_view name, F) {
  return {.name = name,
          .run = &with_carry<F>,
          .results = 2,
          .types = {Type::b32, Type::b64, Type::b32, Type::b32, Type::b64, Type::none}};
}

/// 32 x 32 + 64 bits with the carry out of bit 63.
template <bool kSigned>
void mad_64(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t out[2 * kLanes];
  const uint32_t* a = source(w, i, 2, tmp[0], 1, Type::b32);
  const uint32_t* b = source(w, i, 3, tmp[1], 1, Type::b32);
  const uint32_t* c = source(w, i, 4, tmp[2], 2, Type::b64);
  uint64_t carry_out = 0;
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t product = kSigned ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(a[l])} *
                                                             static_cast<int32_t>(b[l]))
                                     : uint64_t{a[l]} * b[l];
    uint64_t sum = 0;
    const uint64_t addend = U64::get(c, l);
    bool carry = __builtin_add_overflow(product, addend, &sum);
    if (kSigned) {
      // The 65th bit of the signed sum.
      const int top = static_cast<int>(product >> 63) + static_cast<int>(addend >> 63) +
                      static_cast<int>(carry);
      carry = (top & 1) != 0;
    }
    carry_out |= static_cast<uint64_t>(carry) << l;
    U64::put(out, l, sum);
  }
  blend(w.lanes(i.operand[0].index), out, w.exec(), 2);
  w.write64(i.operand[1], carry_out & w.exec());
}
constexpr Row mad_row(std::string_view name, Execute run) {
  return {.name = name,
          .run = run,
          .cost = Class::valu_slow,
          .results = 2,
          .types = {Type::b64, Type::b64, Type::b32, Type::b32, Type::b64, Type::none}};
}

inline void select_lane(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[2][2 * kLanes];
  alignas(64) uint32_t result[kLanes];
  const uint32_t* no = source(w, i, 1, tmp[0], 1, Type::f32);
  const uint32_t* yes = source(w, i, 2, tmp[1], 1, Type::f32);
  const uint64_t mask = w.read64(i.operand[3]);
  uint32_t* out = direct(w, i) ? w.lanes(i.operand[0].index) : result;
#if WEFT_SIM_AVX512
  for (int l = 0; l < kLanes; l += 16) {
    _mm512_storeu_si512(
        out + l, _mm512_mask_blend_epi32(static_cast<__mmask16>(mask >> l),
                                         _mm512_loadu_si512(no + l), _mm512_loadu_si512(yes + l)));
  }
#else
  for (int l = 0; l < kLanes; ++l) {
    out[l] = (mask >> l & 1) != 0 ? yes[l] : no[l];
  }
#endif
  finish<U32>(w, i, out);
}

/// Bit k of the result is the truth table's bit for the sources' bits k. The table, 8 bits, comes
/// from the instruction word: omod, abs and neg hold it (CDNA 4, V_BITOP3_B32).
template <class S>
void bit_operation(Wave& w, const Instruction& i) {
  alignas(64) uint32_t tmp[3][2 * kLanes];
  alignas(64) uint32_t result[2 * kLanes];
  const uint32_t* a = load<S>(w, i, 0, tmp[0]);
  const uint32_t* b = load<S>(w, i, 1, tmp[1]);
  const uint32_t* c = load<S>(w, i, 2, tmp[2]);
  const uint32_t table = i.offset0;
  for (int l = 0; l < kLanes; ++l) {
    uint32_t r = 0;
    for (uint32_t k = 0; k < 8; ++k) {
      if ((table >> k & 1) != 0) {
        r |= ((k & 4) != 0 ? a[l] : ~a[l]) & ((k & 2) != 0 ? b[l] : ~b[l]) &
             ((k & 1) != 0 ? c[l] : ~c[l]);
      }
    }
    S::put(result, l, static_cast<typename S::T>(r));
  }
  finish<S>(w, i, result);
}

constexpr Row kIntegerRows[] = {
    // moves and bits
    row<U32(U32)>("v_mov_b32", [](uint32_t a) { return a; }, kMoves),
    row<U64(U64)>("v_mov_b64", [](uint64_t a) { return a; }, kMoves),
    row<U32(U32)>("v_accvgpr_read_b32", [](uint32_t a) { return a; }, kMoves),
    row<U32(U32)>("v_accvgpr_write_b32", [](uint32_t a) { return a; }, kMoves),
    row<U32(U32)>("v_accvgpr_mov_b32", [](uint32_t a) { return a; }, kMoves),
    {.name = "v_cndmask_b32",
     .run = &select_lane,
     .types = {Type::b32, Type::f32, Type::f32, Type::b64},
     .flags = kMoves},
    row<U32(U32)>("v_not_b32", [](uint32_t a) { return ~a; }),
    row<U32(U32)>("v_bfrev_b32", [](uint32_t a) { return reversed(a); }),
    row<U32(U32)>("v_ffbh_u32",
                  [](uint32_t a) { return a == 0 ? ~0U : static_cast<uint32_t>(__builtin_clz(a)); }),
    row<U32(U32)>("v_ffbl_b32",
                  [](uint32_t a) { return a == 0 ? ~0U : static_cast<uint32_t>(__builtin_ctz(a)); }),
    row<U32(U32)>("v_ffbh_i32",
                  [](uint32_t a) {
                    const uint32_t x = a ^ static_cast<uint32_t>(static_cast<int32_t>(a) >> 31);
                    return x == 0 ? ~0U : static_cast<uint32_t>(__builtin_clz(x));
                  }),
    row<U32(U32, U32)>("v_and_b32", [](uint32_t a, uint32_t b) { return a & b; }),
    row<U32(U32, U32)>("v_or_b32", [](uint32_t a, uint32_t b) { return a | b; }),
    row<U32(U32, U32)>("v_xor_b32", [](uint32_t a, uint32_t b) { return a ^ b; }),
    row<U32(U32, U32)>("v_xnor_b32", [](uint32_t a, uint32_t b) { return ~(a ^ b); }),
    row<U32(U32, U32)>("v_lshlrev_b32", [](uint32_t n, uint32_t a) { return a << (n & 31); }),
    row<U32(U32, U32)>("v_lshrrev_b32", [](uint32_t n, uint32_t a) { return a >> (n & 31); }),
    row<I32(U32, I32)>("v_ashrrev_i32", [](uint32_t n, int32_t a) { return a >> (n & 31); }),
    row<U64(U32, U64)>("v_lshlrev_b64", [](uint32_t n, uint64_t a) { return a << (n & 63); }),
    row<U64(U32, U64)>("v_lshrrev_b64", [](uint32_t n, uint64_t a) { return a >> (n & 63); }),
    row<I64(U32, I64)>("v_ashrrev_i64", [](uint32_t n, int64_t a) { return a >> (n & 63); }),
    row<U32(U32, U32, U32)>("v_bfe_u32",
                            [](uint32_t a, uint32_t at, uint32_t n) {
                              n &= 31;
                              return n == 0 ? 0 : a >> (at & 31) & ((1U << n) - 1);
                            }),
    row<I32(I32, U32, U32)>("v_bfe_i32",
                            [](int32_t a, uint32_t at, uint32_t n) {
                              n &= 31;
                              const auto field = static_cast<uint32_t>(a >> (at & 31));
                              return n == 0 ? 0
                                            : static_cast<int32_t>(field << (32 - n)) >>
                                                  static_cast<int>(32 - n);
                            }),
    row<U32(U32, U32, U32)>(
        "v_bfi_b32", [](uint32_t m, uint32_t a, uint32_t b) { return (m & a) | (~m & b); }),
    row<U32(U32, U32)>("v_bfm_b32",
                       [](uint32_t n, uint32_t at) { return ((1U << (n & 31)) - 1) << (at & 31); }),
    row<U32(U32, U32, U32)>("v_alignbit_b32",
                            [](uint32_t a, uint32_t b, uint32_t n) {
                              return static_cast<uint32_t>((uint64_t{a} << 32 | b) >> (n & 31));
                            }),
    row<U32(U32, U32, U32)>("v_alignbyte_b32",
                            [](uint32_t a, uint32_t b, uint32_t n) {
                              return static_cast<uint32_t>((uint64_t{a} << 32 | b) >> (8 * (n & 3)));
                            }),
    row<U32(U32, U32, U32)>(
        "v_perm_b32", [](uint32_t a, uint32_t b, uint32_t s) { return permuted(a, b, s); }, kMoves),
    row<U32(U32, U32)>("v_bcnt_u32_b32",
                       [](uint32_t a, uint32_t b) {
                         return static_cast<uint32_t>(__builtin_popcount(a)) + b;
                       }),
    row<U32(U32, U32, U32)>("v_and_or_b32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }),
    row<U32(U32, U32, U32)>("v_or3_b32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return a | b | c; }),
    row<U32(U32, U32, U32)>("v_lshl_or_b32",
                            [](uint32_t a, uint32_t n, uint32_t c) { return a << (n & 31) | c; }),
    {.name = "v_bitop3_b32",
     .run = &bit_operation<U32>,
     .types = {Type::b32, Type::b32, Type::b32, Type::b32},
     .flags = kOnlyGfx950},
    {.name = "v_bitop3_b16",
     .run = &bit_operation<U16>,
     .types = {Type::b16, Type::b16, Type::b16, Type::b16},
     .flags = kOnlyGfx950 | kKeepsHigh},

    // 32-bit integers
    clampable<U32(U32, U32)>(
        "v_add_u32", [](uint32_t a, uint32_t b) { return a + b; },
        [](uint32_t a, uint32_t b) { return a + b < a ? ~0U : a + b; }),
    clampable<U32(U32, U32)>(
        "v_sub_u32", [](uint32_t a, uint32_t b) { return a - b; },
        [](uint32_t a, uint32_t b) { return a < b ? 0U : a - b; }),
    clampable<U32(U32, U32)>(
        "v_subrev_u32", [](uint32_t a, uint32_t b) { return b - a; },
        [](uint32_t a, uint32_t b) { return b < a ? 0U : b - a; }),
    clampable<U32(U32, U32)>(
        "v_add_i32", [](uint32_t a, uint32_t b) { return a + b; },
        [](uint32_t a, uint32_t b) {
          return static_cast<uint32_t>(
              saturated<int32_t>(int64_t{static_cast<int32_t>(a)} + static_cast<int32_t>(b)));
        }),
    clampable<U32(U32, U32)>(
        "v_sub_i32", [](uint32_t a, uint32_t b) { return a - b; },
        [](uint32_t a, uint32_t b) {
          return static_cast<uint32_t>(
              saturated<int32_t>(int64_t{static_cast<int32_t>(a)} - static_cast<int32_t>(b)));
        }),
    carrying("v_add_co_u32", [](uint64_t a, uint64_t b, uint64_t) { return a + b; }),
    carrying("v_addc_co_u32", [](uint64_t a, uint64_t b, uint64_t c) { return a + b + c; }),
    carrying("v_sub_co_u32", [](uint64_t a, uint64_t b, uint64_t) { return a - b; }),
    carrying("v_subb_co_u32", [](uint64_t a, uint64_t b, uint64_t c) { return a - b - c; }),
    carrying("v_subrev_co_u32", [](uint64_t a, uint64_t b, uint64_t) { return b - a; }),
    carrying("v_subbrev_co_u32", [](uint64_t a, uint64_t b, uint64_t c) { return b - a - c; }),
    row<U32(U32, U32, U32)>("v_add3_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return a + b + c; }),
    row<U32(U32, U32, U32)>("v_lshl_add_u32",
                            [](uint32_t a, uint32_t n, uint32_t c) { return (a << (n & 31)) + c; }),
    row<U32(U32, U32, U32)>("v_add_lshl_u32",
                            [](uint32_t a, uint32_t b, uint32_t n) { return (a + b) << (n & 31); }),
    row<U64(U64, U32, U64)>("v_lshl_add_u64",
                            [](uint64_t a, uint32_t n, uint64_t c) { return (a << (n & 7)) + c; }),
    row<U32(U32, U32, U32)>("v_xad_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return (a ^ b) + c; }),
    row<U32(U32, U32)>("v_mul_u32_u24",
                       [](uint32_t a, uint32_t b) { return low24(a) * low24(b); }),
    row<U32(U32, U32)>("v_mul_hi_u32_u24",
                       [](uint32_t a, uint32_t b) {
                         return static_cast<uint32_t>(uint64_t{low24(a)} * low24(b) >> 32);
                       }),
    row<U32(U32, U32)>("v_mul_i32_i24",
                       [](uint32_t a, uint32_t b) {
                         return static_cast<uint32_t>(int64_t{signed24(a)} * signed24(b));
                       }),
    row<U32(U32, U32)>("v_mul_hi_i32_i24",
                       [](uint32_t a, uint32_t b) {
                         return static_cast<uint32_t>((int64_t{signed24(a)} * signed24(b)) >> 32);
                       }),
    clampable<U32(U32, U32, U32)>(
        "v_mad_u32_u24",
        [](uint32_t a, uint32_t b, uint32_t c) { return low24(a) * low24(b) + c; },
        [](uint32_t a, uint32_t b, uint32_t c) {
          const uint64_t sum = uint64_t{low24(a)} * low24(b) + c;
          return sum > ~0U ? ~0U : static_cast<uint32_t>(sum);
        }),
    clampable<U32(U32, U32, U32)>(
        "v_mad_i32_i24",
        [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>(int64_t{signed24(a)} * signed24(b)) + c;
        },
        [](uint32_t a, uint32_t b, uint32_t c) {
          return static_cast<uint32_t>(saturated<int32_t>(int64_t{signed24(a)} * signed24(b) +
                                                          static_cast<int32_t>(c)));
        }),
    slow<U32(U32, U32)>("v_mul_lo_u32", [](uint32_t a, uint32_t b) { return a * b; }),
    slow<U32(U32, U32)>("v_mul_hi_u32",
                        [](uint32_t a, uint32_t b) {
                          return static_cast<uint32_t>(uint64_t{a} * b >> 32);
                        }),
    slow<U32(I32, I32)>("v_mul_hi_i32",
                        [](int32_t a, int32_t b) {
                          return static_cast<uint32_t>((int64_t{a} * b) >> 32);
                        }),
    mad_row("v_mad_u64_u32", &mad_64<false>),
    mad_row("v_mad_i64_i32", &mad_64<true>),
    row<I32(I32, I32)>("v_min_i32", [](int32_t a, int32_t b) { return a < b ? a : b; }),
    row<I32(I32, I32)>("v_max_i32", [](int32_t a, int32_t b) { return a > b ? a : b; }),
    row<U32(U32, U32)>("v_min_u32", [](uint32_t a, uint32_t b) { return a < b ? a : b; }),
    row<U32(U32, U32)>("v_max_u32", [](uint32_t a, uint32_t b) { return a > b ? a : b; }),
    row<I32(I32, I32, I32)>("v_min3_i32",
                            [](int32_t a, int32_t b, int32_t c) {
                              const int32_t m = a < b ? a : b;
                              return m < c ? m : c;
                            }),
    row<I32(I32, I32, I32)>("v_max3_i32",
                            [](int32_t a, int32_t b, int32_t c) {
                              const int32_t m = a > b ? a : b;
                              return m > c ? m : c;
                            }),
    row<U32(U32, U32, U32)>("v_min3_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) {
                              const uint32_t m = a < b ? a : b;
                              return m < c ? m : c;
                            }),
    row<U32(U32, U32, U32)>("v_max3_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) {
                              const uint32_t m = a > b ? a : b;
                              return m > c ? m : c;
                            }),
    row<I32(I32, I32, I32)>("v_med3_i32",
                            [](int32_t a, int32_t b, int32_t c) { return middle(a, b, c); }),
    row<U32(U32, U32, U32)>("v_med3_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return middle(a, b, c); }),
    row<U32(U32, U32, U32)>(
        "v_sad_u8", [](uint32_t a, uint32_t b, uint32_t c) { return sad_u8(a, b, c, false); }),
    row<U32(U32, U32, U32)>(
        "v_msad_u8", [](uint32_t a, uint32_t b, uint32_t c) { return sad_u8(a, b, c, true); }),
    four_sads_row("v_qsad_pk_u16_u8", &four_sads<false, 16>, Type::b64),
    four_sads_row("v_mqsad_pk_u16_u8", &four_sads<true, 16>, Type::b64),
    four_sads_row("v_mqsad_u32_u8", &four_sads<true, 32>, Type::b128),
    row<U32(U32, U32, U32)>("v_sad_hi_u8",
                            [](uint32_t a, uint32_t b, uint32_t c) {
                              return (sad_u8(a, b, 0, false) << 16) + c;
                            }),
    row<U32(U32, U32, U32)>("v_sad_u16",
                            [](uint32_t a, uint32_t b, uint32_t c) {
                              return c + distance(a & 0xffff, b & 0xffff) +
                                     distance(a >> 16, b >> 16);
                            }),
    row<U32(U32, U32, U32)>("v_sad_u32",
                            [](uint32_t a, uint32_t b, uint32_t c) { return c + distance(a, b); }),
    row<U32(U32, U32, U32)>("v_lerp_u8",
                            [](uint32_t a, uint32_t b, uint32_t c) {
                              uint32_t r = 0;
                              for (int k = 0; k < 4; ++k) {
                                r |= (byte_of(a, k) + byte_of(b, k) + (byte_of(c, k) & 1)) >> 1
                                     << (8 * k);
                              }
                              return r;
                            }),
    clampable<U32(U16, U16, U32)>(
        "v_mad_u32_u16",
        [](uint16_t a, uint16_t b, uint32_t c) { return uint32_t{a} * b + c; },
        [](uint16_t a, uint16_t b, uint32_t c) {
          const uint64_t sum = uint64_t{uint32_t{a} * b} + c;
          return sum > ~0U ? ~0U : static_cast<uint32_t>(sum);
        }),
    clampable<U32(I16, I16, U32)>(
        "v_mad_i32_i16",
        [](int16_t a, int16_t b, uint32_t c) {
          return static_cast<uint32_t>(int32_t{a} * b) + c;
        },
        [](int16_t a, int16_t b, uint32_t c) {
          return static_cast<uint32_t>(
              saturated<int32_t>(int64_t{a} * b + static_cast<int32_t>(c)));
        }),

    // 16-bit integers
    clampable<U16(U16, U16)>(
        "v_add_u16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a + b); },
        [](uint16_t a, uint16_t b) { return saturated<uint16_t>(a + b); }),
    clampable<U16(U16, U16)>(
        "v_sub_u16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(a - b); },
        [](uint16_t a, uint16_t b) { return saturated<uint16_t>(a - b); }),
    clampable<U16(U16, U16)>(
        "v_subrev_u16", [](uint16_t a, uint16_t b) { return static_cast<uint16_t>(b - a); },
        [](uint16_t a, uint16_t b) { return saturated<uint16_t>(b - a); }),
    clampable<I16(I16, I16)>(
        "v_add_i16", [](int16_t a, int16_t b) { return static_cast<int16_t>(a + b); },
        [](int16_t a, int16_t b) { return saturated<int16_t>(a + b); }, kKeepsHigh),
    clampable<I16(I16, I16)>(
        "v_sub_i16", [](int16_t a, int16_t b) { return static_cast<int16_t>(a - b); },
        [](int16_t a, int16_t b) { return saturated<int16_t>(a - b); }, kKeepsHigh),
    row<U16(U16, U16)>("v_mul_lo_u16",
                       [](uint16_t a, uint16_t b) {
                         return static_cast<uint16_t>(uint32_t{a} * b);
                       }),
    clampable<U16(U16, U16, U16)>(
        "v_mad_legacy_u16",
        [](uint16_t a, uint16_t b, uint16_t c) {
          return static_cast<uint16_t>(uint32_t{a} * b + c);
        },
        [](uint16_t a, uint16_t b, uint16_t c) {
          return saturated<uint16_t>(int64_t{a} * b + c);
        }),
    clampable<I16(I16, I16, I16)>(
        "v_mad_legacy_i16",
        [](int16_t a, int16_t b, int16_t c) { return static_cast<int16_t>(a * b + c); },
        [](int16_t a, int16_t b, int16_t c) { return saturated<int16_t>(a * b + c); }),
    clampable<U16(U16, U16, U16)>(
        "v_mad_u16",
        [](uint16_t a, uint16_t b, uint16_t c) {
          return static_cast<uint16_t>(uint32_t{a} * b + c);
        },
        [](uint16_t a, uint16_t b, uint16_t c) {
          return saturated<uint16_t>(int64_t{a} * b + c);
        },
        kKeepsHigh),
    clampable<I16(I16, I16, I16)>(
        "v_mad_i16",
        [](int16_t a, int16_t b, int16_t c) { return static_cast<int16_t>(a * b + c); },
        [](int16_t a, int16_t b, int16_t c) { return saturated<int16_t>(a * b + c); }, kKeepsHigh),
    row<U16(U16, U16)>("v_lshlrev_b16",
                       [](uint16_t n, uint16_t a) {
                         return static_cast<uint16_t>(uint32_t{a} << (n & 15));
                       }),
    row<U16(U16, U16)>("v_lshrrev_b16",
                       [](uint16_t n, uint16_t a) { return static_cast<uint16_t>(a >> (n & 15)); }),
    row<I16(U16, I16)>("v_ashrrev_i16",
                       [](uint16_t n, int16_t a) { return static_cast<int16_t>(a >> (n & 15)); }),
    row<U16(U16, U16)>("v_min_u16", [](uint16_t a, uint16_t b) { return a < b ? a : b; }),
    row<U16(U16, U16)>("v_max_u16", [](uint16_t a, uint16_t b) { return a > b ? a : b; }),
    row<I16(I16, I16)>("v_min_i16", [](int16_t a, int16_t b) { return a < b ? a : b; }),
    row<I16(I16, I16)>("v_max_i16", [](int16_t a, int16_t b) { return a > b ? a : b; }),
    row<U16(U16, U16, U16)>(
        "v_min3_u16",
        [](uint16_t a, uint16_t b, uint16_t c) { return std::min(a, std::min(b, c)); }, kKeepsHigh),
    row<U16(U16, U16, U16)>(
        "v_max3_u16",
        [](uint16_t a, uint16_t b, uint16_t c) { return std::max(a, std::max(b, c)); }, kKeepsHigh),
    row<U16(U16, U16, U16)>(
        "v_med3_u16", [](uint16_t a, uint16_t b, uint16_t c) { return middle(a, b, c); },
        kKeepsHigh),
    row<I16(I16, I16, I16)>(
        "v_min3_i16", [](int16_t a, int16_t b, int16_t c) { return std::min(a, std::min(b, c)); },
        kKeepsHigh),
    row<I16(I16, I16, I16)>(
        "v_max3_i16", [](int16_t a, int16_t b, int16_t c) { return std::max(a, std::max(b, c)); },
        kKeepsHigh),
    row<I16(I16, I16, I16)>(
        "v_med3_i16", [](int16_t a, int16_t b, int16_t c) { return middle(a, b, c); }, kKeepsHigh),
    row<U16(U32)>("v_sat_pk_u8_i16",
                  [](uint32_t a) {
                    const auto low = saturated<uint8_t>(static_cast<int16_t>(a));
                    const auto high = saturated<uint8_t>(static_cast<int16_t>(a >> 16));
                    return static_cast<uint16_t>(low | high << 8);
                  }),
    row<U16(I32, I32, U32)>(
        "v_ashr_pk_i8_i32",
        [](int32_t a, int32_t b, uint32_t n) {
          const auto low = static_cast<uint8_t>(saturated<int8_t>(a >> (n & 31)));
          const auto high = static_cast<uint8_t>(saturated<int8_t>(b >> (n & 31)));
          return static_cast<uint16_t>(low | high << 8);
        },
        kOnlyGfx950 | kKeepsHigh),
    row<U16(I32, I32, U32)>(
        "v_ashr_pk_u8_i32",
        [](int32_t a, int32_t b, uint32_t n) {
          const auto low = saturated<uint8_t>(a >> (n & 31));
          const auto high = saturated<uint8_t>(b >> (n & 31));
          return static_cast<uint16_t>(low | high << 8);
        },
        kOnlyGfx950 | kKeepsHigh),
};

}  // namespace WEFT_SIM_ISA
}  // namespace weft::sim

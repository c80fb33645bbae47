// Integer, bitwise and lane instructions against models from the manuals' pseudocode.
#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

using enum Kind;

uint32_t w(uint64_t x) { return static_cast<uint32_t>(x); }
int64_t s(uint64_t x) { return static_cast<int32_t>(x); }
int64_t s16(uint64_t x) { return static_cast<int16_t>(x); }
uint64_t u16(uint64_t x) { return x & 0xffff; }
int64_t s24(uint64_t x) { return static_cast<int32_t>(w(x) << 8) >> 8; }
uint64_t u24(uint64_t x) { return x & 0xffffff; }
uint64_t keep(uint64_t result, uint64_t old) { return (result & 0xffff) | (old & 0xffff0000); }
uint64_t pack(uint64_t low, uint64_t high) { return (low & 0xffff) | (high & 0xffff) << 16; }

int64_t clamped(int64_t x, int64_t least, int64_t most) {
  return x < least ? least : x > most ? most : x;
}
template <class T>
T middle(T x, T y, T z) {
  return std::max(std::min(x, y), std::min(std::max(x, y), z));
}
uint64_t byte(uint64_t x, int n) { return x >> 8 * n & 255; }
uint64_t sad(uint64_t x, uint64_t y, bool masked) {
  uint64_t sum = 0;
  for (int n = 0; n < 4; ++n) {
    const auto p = static_cast<int64_t>(byte(x, n));
    const auto q = static_cast<int64_t>(byte(y, n));
    sum += masked && q == 0 ? 0 : static_cast<uint64_t>(std::abs(p - q));
  }
  return sum;
}
uint64_t permuted(uint64_t high, uint64_t low, uint64_t selector) {
  const uint64_t data = (high & 0xffffffff) << 32 | (low & 0xffffffff);
  uint64_t result = 0;
  for (int n = 0; n < 4; ++n) {
    const uint64_t select = byte(selector, n);
    const uint64_t value = select >= 13   ? 255
                           : select == 12 ? 0
                           : select >= 8
                               ? ((data >> (8 * (2 * (select - 8) + 1) + 7) & 1) != 0 ? 255 : 0)
                               : byte(data, static_cast<int>(select));
    result |= value << 8 * n;
  }
  return result;
}
template <int kBits>
int64_t dot(uint64_t x, uint64_t y, bool is_signed) {
  int64_t sum = 0;
  for (int n = 0; n < 32 / kBits; ++n) {
    const uint64_t mask = (uint64_t{1} << kBits) - 1;
    auto p = static_cast<int64_t>(x >> n * kBits & mask);
    auto q = static_cast<int64_t>(y >> n * kBits & mask);
    if (is_signed) {
      p -= p >> (kBits - 1) << kBits;
      q -= q >> (kBits - 1) << kBits;
    }
    sum += p * q;
  }
  return sum;
}
uint64_t reversed(uint64_t x) {
  uint64_t result = 0;
  for (int n = 0; n < 32; ++n) {
    result |= (x >> n & 1) << (31 - n);
  }
  return result;
}
int leading(uint64_t x, bool is_signed) {
  const bool sign = is_signed && (x >> 31 & 1) != 0;
  for (int n = 0; n < 32; ++n) {
    if (((x >> (31 - n) & 1) != 0) != sign) {
      return n;
    }
  }
  return -1;
}
int trailing(uint64_t x) {
  for (int n = 0; n < 32; ++n) {
    if ((x >> n & 1) != 0) {
      return n;
    }
  }
  return -1;
}
uint64_t bits_extracted(uint64_t x, uint64_t offset, uint64_t width, bool is_signed) {
  offset &= 31;
  width &= 31;
  if (width == 0) {
    return 0;
  }
  uint64_t field = 0;  // beyond bit 31: zeros, or the sign
  for (uint64_t n = 0; n < width; ++n) {
    const uint64_t at = offset + n;
    const bool bit = at < 32 ? (x >> at & 1) != 0 : is_signed && (x >> 31 & 1) != 0;
    field |= static_cast<uint64_t>(bit) << n;
  }
  const bool negative = is_signed && (field >> (width - 1) & 1) != 0;
  return negative ? field | ~((uint64_t{1} << width) - 1) : field;
}
using U128 = unsigned __int128;

const std::vector<Check>& arithmetic() {
  static const std::vector<Check> checks = {
      {"v_add_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a + b)},
      {"v_sub_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a - b)},
      {"v_subrev_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(b - a)},
      {"v_add_u32 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(clamped(w(a) + int64_t{w(b)}, 0, 0xffffffff))},
      {"v_sub_u32 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(clamped(w(a) - int64_t{w(b)}, 0, 0xffffffff))},
      {"v_add_i32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a + b)},
      {"v_add_i32 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(clamped(s(a) + s(b), INT32_MIN, INT32_MAX))},
      {"v_sub_i32 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(clamped(s(a) - s(b), INT32_MIN, INT32_MAX))},
      {"v_add_co_u32 D, vcc, A, B", i32, i32, none, As::bits, WEFT_MODEL(a + b),
       WEFT_VCC((uint64_t{w(a)} + w(b)) >> 32 != 0)},
      {"v_sub_co_u32 D, vcc, A, B", i32, i32, none, As::bits, WEFT_MODEL(a - b), WEFT_VCC(w(a) < w(b))},
      {"v_subrev_co_u32 D, vcc, A, B", i32, i32, none, As::bits, WEFT_MODEL(b - a),
       WEFT_VCC(w(b) < w(a))},
      {"v_addc_co_u32 D, vcc, A, B, vcc", i32, i32, none, As::bits, WEFT_MODEL(a + b + (vcc ? 1 : 0)),
       WEFT_VCC((uint64_t{w(a)} + w(b) + (vcc ? 1 : 0)) >> 32 != 0)},
      {"v_subb_co_u32 D, vcc, A, B, vcc", i32, i32, none, As::bits, WEFT_MODEL(a - b - (vcc ? 1 : 0)),
       WEFT_VCC(w(a) < uint64_t{w(b)} + (vcc ? 1 : 0))},
      {"v_subbrev_co_u32 D, vcc, A, B, vcc", i32, i32, none, As::bits, WEFT_MODEL(b - a - (vcc ? 1 : 0)),
       WEFT_VCC(w(b) < uint64_t{w(a)} + (vcc ? 1 : 0))},
      {"v_mul_lo_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(uint64_t{w(a)} * w(b))},
      {"v_mul_hi_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(uint64_t{w(a)} * w(b) >> 32)},
      {"v_mul_hi_i32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(s(a) * s(b) >> 32)},
      {"v_mul_u32_u24 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(u24(a) * u24(b))},
      {"v_mul_hi_u32_u24 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(u24(a) * u24(b) >> 32)},
      {"v_mul_i32_i24 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(s24(a) * s24(b))},
      {"v_mul_hi_i32_i24 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(s24(a) * s24(b) >> 32)},
      {"v_mad_u32_u24 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(u24(a) * u24(b) + c)},
      {"v_mad_i32_i24 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(s24(a) * s24(b)) + c)},
      {"v_mad_u64_u32 D2, vcc, A, B, C2", i32, i32, i64, As::bits, WEFT_MODEL(uint64_t{w(a)} * w(b) + c),
       WEFT_VCC(static_cast<uint64_t>((U128{w(a)} * w(b) + c) >> 64) != 0)},
      {"v_mad_i64_i32 D2, s[20:21], A, B, C2", i32, i32, i64, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(s(a) * s(b)) + c)},
      {"v_mad_u32_u16 D, A, B, C", i16, i16, i32, As::bits, WEFT_MODEL(u16(a) * u16(b) + c)},
      {"v_mad_i32_i16 D, A, B, C", i16, i16, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(s16(a) * s16(b)) + c)},
      {"v_min_i32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(std::min(s(a), s(b)))},
      {"v_max_i32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(std::max(s(a), s(b)))},
      {"v_min_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(std::min(w(a), w(b)))},
      {"v_max_u32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(std::max(w(a), w(b)))},
      {"v_min3_i32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(std::min({s(a), s(b), s(c)}))},
      {"v_max3_i32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(std::max({s(a), s(b), s(c)}))},
      {"v_med3_i32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(middle(s(a), s(b), s(c)))},
      {"v_min3_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(std::min({w(a), w(b), w(c)}))},
      {"v_max3_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(std::max({w(a), w(b), w(c)}))},
      {"v_med3_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(middle(w(a), w(b), w(c)))},
      {"v_add3_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(a + b + c)},
      {"v_lshl_add_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((w(a) << (b & 31)) + c)},
      {"v_add_lshl_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(w(a + b) << (c & 31))},
      {"v_lshl_or_b32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(w(a) << (b & 31) | w(c))},
      {"v_and_or_b32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((a & b) | c)},
      {"v_or3_b32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(a | b | c)},
      {"v_xad_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((a ^ b) + c)},
      {"v_lshl_add_u64 D2, A2, 3, C2", i64, none, i64, As::bits, WEFT_MODEL((a << 3) + c)},
      {"v_lshl_add_u64 D2, A2, 4, C2", i64, none, i64, As::bits, WEFT_MODEL((a << 4) + c)},
      {"v_sad_u8 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(sad(a, b, false) + c)},
      {"v_sad_hi_u8 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((sad(a, b, false) << 16) + c)},
      {"v_msad_u8 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(sad(a, b, true) + c)},
      {"v_sad_u16 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(std::abs(static_cast<int64_t>(u16(a)) - static_cast<int64_t>(u16(b))) +
                                        std::abs(static_cast<int64_t>(w(a) >> 16) -
                                                 static_cast<int64_t>(w(b) >> 16))) + c)},
      {"v_sad_u32 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL(uint64_t{w(a) > w(b) ? w(a) - w(b) : w(b) - w(a)} + c)},
      {"v_lerp_u8 D, A, B, C", i32, i32, i32, As::bits, [](const In& in) {
         uint64_t result = 0;
         for (int n = 0; n < 4; ++n) {
           result |= (byte(in.a, n) + byte(in.b, n) + (in.c >> 8 * n & 1)) >> 1 << 8 * n;
         }
         return result;
       }},
      {"v_perm_b32 D, A, B, C", i64, i64, i64, As::bits, WEFT_MODEL(permuted(a, b, c))},
      {"v_perm_b32 D, A, B, C", i64, i64, none, As::bits, WEFT_MODEL(permuted(a, b, c)), {}, 0,
       [](In& in) { in.c &= 0x0f0f0f0f; }},
      {"v_alignbit_b32 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL((uint64_t{w(a)} << 32 | w(b)) >> (c & 31))},
      {"v_alignbyte_b32 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL((uint64_t{w(a)} << 32 | w(b)) >> (c & 3) * 8)},
      {"v_dot4_i32_i8 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<8>(a, b, true)) + c)},
      {"v_dot4_u32_u8 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<8>(a, b, false)) + c)},
      {"v_dot8_i32_i4 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<4>(a, b, true)) + c)},
      {"v_dot8_u32_u4 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<4>(a, b, false)) + c)},
      {"v_dot2_i32_i16 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<16>(a, b, true)) + c)},
      {"v_dot2_u32_u16 D, A, B, C", i64, i64, i32, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<16>(a, b, false)) + c)},
      {"v_dot4c_i32_i8 D, A, B", i64, i64, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<8>(a, b, true)) + d)},
      {"v_dot8c_i32_i4 D, A, B", i64, i64, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<4>(a, b, true)) + d)},
      {"v_dot2c_i32_i16 D, A, B", i64, i64, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(dot<16>(a, b, true)) + d)},
      {"v_cvt_pk_i16_i32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(clamped(s(a), -32768, 32767)),
                       static_cast<uint64_t>(clamped(s(b), -32768, 32767))))},
      {"v_cvt_pk_u16_u32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(std::min<uint64_t>(w(a), 65535), std::min<uint64_t>(w(b), 65535)))},
      {"v_sat_pk_u8_i16 D, A", i32, none, none, As::low16,
       WEFT_MODEL(clamped(s16(a), 0, 255) | clamped(s16(a >> 16), 0, 255) << 8)},
  };
  return checks;
}

const std::vector<Check>& bitwise() {
  static const std::vector<Check> checks = {
      {"v_mov_b32 D, A", i32, none, none, As::bits, WEFT_MODEL(a)},
      {"v_mov_b64 D2, A2", i64, none, none, As::bits, WEFT_MODEL(a)},
      {"v_mov_b32 D, -17", none, none, none, As::bits, WEFT_MODEL(0xffffffffU - 16)},
      {"v_mov_b32 D, -16", none, none, none, As::bits, WEFT_MODEL(0xfffffff0U)},
      {"v_mov_b32 D, 64", none, none, none, As::bits, WEFT_MODEL(64)},
      {"v_mov_b32 D, 0.15915494", none, none, none, As::bits, WEFT_MODEL(0x3e22f983)},
      {"v_mov_b32 D, -4.0", none, none, none, As::bits, WEFT_MODEL(0xc0800000U)},
      {"v_and_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a & b)},
      {"v_or_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a | b)},
      {"v_xor_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(a ^ b)},
      {"v_xnor_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(~(a ^ b))},
      {"v_not_b32 D, A", i32, none, none, As::bits, WEFT_MODEL(~a)},
      {"v_bfrev_b32 D, A", i32, none, none, As::bits, WEFT_MODEL(reversed(a))},
      {"v_lshlrev_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(w(b) << (a & 31))},
      {"v_lshrrev_b32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(w(b) >> (a & 31))},
      {"v_ashrrev_i32 D, A, B", i32, i32, none, As::bits, WEFT_MODEL(s(b) >> (a & 31))},
      {"v_lshlrev_b64 D2, A, B2", i32, i64, none, As::bits, WEFT_MODEL(b << (a & 63))},
      {"v_lshrrev_b64 D2, A, B2", i32, i64, none, As::bits, WEFT_MODEL(b >> (a & 63))},
      {"v_ashrrev_i64 D2, A, B2", i32, i64, none, As::bits,
       WEFT_MODEL(static_cast<int64_t>(b) >> (a & 63))},
      {"v_bfe_u32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(bits_extracted(a, b, c, false))},
      {"v_bfe_i32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL(bits_extracted(a, b, c, true))},
      {"v_bfi_b32 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((a & b) | (~a & c))},
      {"v_bfm_b32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(((uint64_t{1} << (a & 31)) - 1) << (b & 31))},
      {"v_bcnt_u32_b32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(std::popcount(w(a))) + b)},
      {"v_ffbh_u32 D, A", i32, none, none, As::bits, WEFT_MODEL(leading(a, false))},
      {"v_ffbh_i32 D, A", i32, none, none, As::bits, WEFT_MODEL(leading(a, true))},
      {"v_ffbl_b32 D, A", i32, none, none, As::bits, WEFT_MODEL(trailing(a))},
      {"v_cndmask_b32 D, A, B, vcc", i32, i32, none, As::bits, WEFT_MODEL(vcc ? b : a)},
      {"v_cndmask_b32_e64 D, -A, |B|, vcc", i32, i32, none, As::bits,
       WEFT_MODEL(vcc ? b & 0x7fffffff : a ^ 0x80000000)},
      {"v_mbcnt_lo_u32_b32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(
           static_cast<uint64_t>(std::popcount(w(a) & w((uint64_t{1} << std::min(lane, 32)) - 1))) +
           b)},
      {"v_mbcnt_hi_u32_b32 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(
                      std::popcount(w(a) & w((uint64_t{1} << std::max(lane - 32, 0)) - 1))) +
                  b)},
  };
  return checks;
}

const std::vector<Check>& sixteen_bits() {
  static const std::vector<Check> checks = {
      {"v_add_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(a + b))},
      {"v_sub_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(a - b))},
      {"v_subrev_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(b - a))},
      {"v_add_u16 D, A, B clamp", i16, i16, none, As::bits,
       WEFT_MODEL(std::min<uint64_t>(u16(a) + u16(b), 65535))},
      {"v_mul_lo_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(u16(a) * u16(b)))},
      {"v_min_i16 D, A, B", i16, i16, none, As::bits,
       WEFT_MODEL(u16(static_cast<uint64_t>(std::min(s16(a), s16(b)))))},
      {"v_max_i16 D, A, B", i16, i16, none, As::bits,
       WEFT_MODEL(u16(static_cast<uint64_t>(std::max(s16(a), s16(b)))))},
      {"v_min_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(std::min(u16(a), u16(b)))},
      {"v_max_u16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(std::max(u16(a), u16(b)))},
      {"v_lshlrev_b16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(b << (a & 15)))},
      {"v_lshrrev_b16 D, A, B", i16, i16, none, As::bits, WEFT_MODEL(u16(b) >> (a & 15))},
      {"v_ashrrev_i16 D, A, B", i16, i16, none, As::bits,
       WEFT_MODEL(u16(static_cast<uint64_t>(s16(b) >> (a & 15))))},
      // Of these the manuals do not say what becomes of the other half.
      {"v_add_i16 D, A, B", i16, i16, none, As::low16, WEFT_MODEL(a + b)},
      {"v_add_i16 D, A, B clamp", i16, i16, none, As::low16,
       WEFT_MODEL(clamped(s16(a) + s16(b), -32768, 32767))},
      {"v_sub_i16 D, A, B clamp", i16, i16, none, As::low16,
       WEFT_MODEL(clamped(s16(a) - s16(b), -32768, 32767))},
      {"v_min3_i16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(std::min({s16(a), s16(b), s16(c)}))},
      {"v_max3_u16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(std::max({u16(a), u16(b), u16(c)}))},
      {"v_max3_i16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(std::max({s16(a), s16(b), s16(c)}))},
      {"v_min3_u16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(std::min({u16(a), u16(b), u16(c)}))},
      {"v_med3_i16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(middle(s16(a), s16(b), s16(c)))},
      {"v_med3_u16 D, A, B, C", i16, i16, i16, As::low16,
       WEFT_MODEL(middle(u16(a), u16(b), u16(c)))},
      // These keep it (OPSEL[3] chooses).
      {"v_mad_u16 D, A, B, C", i16, i16, i16, As::bits,
       WEFT_MODEL(keep(u16(a) * u16(b) + u16(c), d))},
      {"v_mad_i16 D, A, B, C clamp", i16, i16, i16, As::bits,
       WEFT_MODEL(
           keep(static_cast<uint64_t>(clamped(s16(a) * s16(b) + s16(c), -32768, 32767)), d))},
      {"v_mad_u16 D, A, B, C op_sel:[1,0,1,1]", i32, i16, i32, As::bits,
       WEFT_MODEL(pack(d, u16(a >> 16) * u16(b) + u16(c >> 16)))},
      {"v_pack_b32_f16 D, A, B",
       i16,
       i16,
       none,
       As::bits,
       WEFT_MODEL(pack(a, b)),
       {},
       0,
       [](In& in) {
         in.a &= 0xffff3fff, in.b &= 0xffff3fff;
       }},  // normal numbers: no question of NaN
      {"v_pk_add_u16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(a + b, (a >> 16) + (b >> 16)))},
      {"v_pk_add_u16 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(pack(std::min<uint64_t>(u16(a) + u16(b), 65535),
                       std::min<uint64_t>(u16(a >> 16) + u16(b >> 16), 65535)))},
      {"v_pk_sub_u16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(a - b, (a >> 16) - (b >> 16)))},
      {"v_pk_add_i16 D, A, B clamp", i32, i32, none, As::bits,
       WEFT_MODEL(
           pack(static_cast<uint64_t>(clamped(s16(a) + s16(b), -32768, 32767)),
                static_cast<uint64_t>(clamped(s16(a >> 16) + s16(b >> 16), -32768, 32767))))},
      {"v_pk_sub_i16 D, A, B op_sel:[0,1] op_sel_hi:[0,1]", i32, i32, none, As::bits,
       WEFT_MODEL(pack(a - (b >> 16), a - (b >> 16)))},
      {"v_pk_mul_lo_u16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(u16(a) * u16(b), u16(a >> 16) * u16(b >> 16)))},
      {"v_pk_mad_u16 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL(pack(u16(a) * u16(b) + c, u16(a >> 16) * u16(b >> 16) + (c >> 16)))},
      {"v_pk_mad_i16 D, A, B, C", i32, i32, i32, As::bits,
       WEFT_MODEL(pack(u16(a) * u16(b) + c, u16(a >> 16) * u16(b >> 16) + (c >> 16)))},
      {"v_pk_min_i16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(std::min(s16(a), s16(b))),
                       static_cast<uint64_t>(std::min(s16(a >> 16), s16(b >> 16)))))},
      {"v_pk_max_u16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(std::max(u16(a), u16(b)), std::max(u16(a >> 16), u16(b >> 16))))},
      {"v_pk_max_i16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(std::max(s16(a), s16(b))),
                       static_cast<uint64_t>(std::max(s16(a >> 16), s16(b >> 16)))))},
      {"v_pk_min_u16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(std::min(u16(a), u16(b)), std::min(u16(a >> 16), u16(b >> 16))))},
      {"v_pk_lshlrev_b16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(b << (a & 15), u16(b >> 16) << (a >> 16 & 15)))},
      {"v_pk_lshrrev_b16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(u16(b) >> (a & 15), u16(b >> 16) >> (a >> 16 & 15)))},
      {"v_pk_ashrrev_i16 D, A, B", i32, i32, none, As::bits,
       WEFT_MODEL(pack(static_cast<uint64_t>(s16(b) >> (a & 15)),
                       static_cast<uint64_t>(s16(b >> 16) >> (a >> 16 & 15))))},
  };
  return checks;
}

TEST(IsaInteger, Arithmetic) {
  for (const Target target : cdna::kTargets) {
    run_checks(arithmetic(), target);
  }
}
TEST(IsaInteger, Bitwise) {
  for (const Target target : cdna::kTargets) {
    run_checks(bitwise(), target);
  }
}
TEST(IsaInteger, SixteenBits) {
  for (const Target target : cdna::kTargets) {
    run_checks(sixteen_bits(), target);
  }
}

TEST(IsaInteger, OnlyGfx950) {
  std::vector<Check> checks = {
      {"v_ashr_pk_i8_i32 D, A, B, C", i32, i32, i32, As::low16,
       WEFT_MODEL((static_cast<uint64_t>(clamped(s(a) >> (c & 31), -128, 127)) & 255) |
                  (static_cast<uint64_t>(clamped(s(b) >> (c & 31), -128, 127)) & 255) << 8)},
      {"v_ashr_pk_u8_i32 D, A, B, C", i32, i32, i32, As::low16,
       WEFT_MODEL(static_cast<uint64_t>(clamped(s(a) >> (c & 31), 0, 255)) |
                  static_cast<uint64_t>(clamped(s(b) >> (c & 31), 0, 255)) << 8)},
  };
  for (const int table : {0x96, 0xfe, 0x40, 0x1b, 0xca}) {
    const auto model = [table](const In& in) {
      uint64_t result = 0;
      for (int n = 0; n < 32; ++n) {
        const auto select = (in.a >> n & 1) << 2 | (in.b >> n & 1) << 1 | (in.c >> n & 1);
        result |= (static_cast<uint64_t>(table) >> select & 1) << n;
      }
      return result;
    };
    checks.push_back({"v_bitop3_b32 D, A, B, C bitop3:" + std::to_string(table), i32, i32, i32,
                      As::bits, model});
  }
  run_checks(checks, Target::gfx950);
}

TEST(IsaInteger, Compares) {
  std::vector<Check> checks;
  const auto keep_d = WEFT_MODEL(d);
  const std::pair<const char*, int> relations[] = {
      // bit 0: less, 1: equal, 2: greater
      {"f", 0}, {"lt", 1}, {"eq", 2}, {"le", 3}, {"gt", 4}, {"ne", 5}, {"ge", 6}, {"t", 7}};
  for (const auto& [name, when] : relations) {
    for (const int width : {16, 32, 64}) {
      for (const bool is_signed : {false, true}) {
        const auto vcc = [width, is_signed, when = when](const In& in) {
          const auto extended = [&](uint64_t x) {
            return is_signed ? static_cast<int64_t>(x << (64 - width)) >> (64 - width) : 0;
          };
          const auto cut = [&](uint64_t x) { return x << (64 - width) >> (64 - width); };
          const int relation = is_signed ? (extended(in.a) < extended(in.b)    ? 1
                                            : extended(in.a) == extended(in.b) ? 2
                                                                               : 4)
                                         : (cut(in.a) < cut(in.b)    ? 1
                                            : cut(in.a) == cut(in.b) ? 2
                                                                     : 4);
          return (when & relation) != 0;
        };
        const Kind kind = width == 16 ? i16 : width == 32 ? i32 : i64;
        checks.push_back({std::string("v_cmp_") + name + (is_signed ? "_i" : "_u") +
                              std::to_string(width) + (width == 64 ? " vcc, A2, B2" : " vcc, A, B"),
                          kind, kind, none, As::bits, keep_d, vcc});
      }
    }
  }
  // V_CMPX writes EXEC as well: the lanes where it holds go on.
  checks.push_back({"v_cmpx_lt_u32 vcc, A, B\n v_mov_b32 D, 60", i32, i32, none, As::bits,
                    WEFT_MODEL(w(a) < w(b) ? 60 : d), WEFT_VCC(w(a) < w(b))});
  checks.push_back({"v_cmpx_ne_i32 vcc, A, B\n v_add_u32 D, A, B", i32, i32, none, As::bits,
                    WEFT_MODEL(w(a) != w(b) ? a + b : d), WEFT_VCC(w(a) != w(b))});
  checks.push_back({"v_cmp_lt_u32 s[20:21], A, B\n s_nop 4\n v_cndmask_b32 D, 1, 2, s[20:21]", i32,
                    i32, none, As::bits, WEFT_MODEL(w(a) < w(b) ? 2 : 1)});
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 16);
  }
}

/// SDWA: bytes and halves of sources, sign extension, where the result goes.
TEST(IsaInteger, Sdwa) {
  const std::vector<Check> checks = {
      {"v_add_u32_sdwa D, A, B dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_1 src1_sel:WORD_1",
       i64, i64, none, As::bits, WEFT_MODEL(byte(a, 1) + u16(b >> 16))},
      {"v_add_u32_sdwa D, sext(A), sext(B) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_3 "
       "src1_sel:WORD_0",
       i64, i64, none, As::bits, WEFT_MODEL(static_cast<int8_t>(byte(a, 3)) + s16(b))},
      {"v_add_u32_sdwa D, A, B dst_sel:BYTE_2 dst_unused:UNUSED_PRESERVE src0_sel:DWORD "
       "src1_sel:DWORD",
       i32, i32, none, As::bits, WEFT_MODEL((d & 0xff00ffff) | ((a + b) & 255) << 16)},
      {"v_add_u32_sdwa D, A, B dst_sel:WORD_1 dst_unused:UNUSED_PAD src0_sel:DWORD src1_sel:DWORD",
       i32, i32, none, As::bits, WEFT_MODEL(u16(a + b) << 16)},
      {"v_add_u32_sdwa D, A, B dst_sel:BYTE_1 dst_unused:UNUSED_SEXT src0_sel:DWORD src1_sel:DWORD",
       i32, i32, none, As::bits,
       WEFT_MODEL(static_cast<uint64_t>(int64_t{static_cast<int8_t>(a + b)}) << 8 & 0xffffff00)},
      {"v_mov_b32_sdwa D, A dst_sel:BYTE_0 dst_unused:UNUSED_PRESERVE src0_sel:BYTE_3", i64, none,
       none, As::bits, WEFT_MODEL((d & 0xffffff00) | byte(a, 3))},
      {"v_lshlrev_b32_sdwa D, A, B dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:BYTE_0 "
       "src1_sel:BYTE_2",
       i64, i64, none, As::bits, WEFT_MODEL(byte(b, 2) << (byte(a, 0) & 31))},
      {"v_cvt_f32_f16_sdwa D, A dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1", pk_f16, none,
       none, As::f32, WEFT_MODEL(u(static_cast<float>(h(a >> 16))))},
      {"v_cvt_f32_f16_sdwa D, -|A| dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_0", pk_f16,
       none, none, As::f32, WEFT_MODEL(u(-std::fabs(static_cast<float>(h(a)))))},
      {"v_add_f16_sdwa D, A, B dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:WORD_1 "
       "src1_sel:WORD_0",
       pk_f16, pk_f16, none, As::pk_f16, WEFT_MODEL(pack(d, half(h(a >> 16) + h(b))))},
      {"v_cmp_lt_u32_sdwa vcc, A, B src0_sel:BYTE_0 src1_sel:BYTE_3", i64, i64, none, As::bits,
       WEFT_MODEL(d), WEFT_VCC(byte(a, 0) < byte(b, 3))},
  };
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target);
  }
}

/// DPP: B holds the lane's own value; the source is what the control picks of A, which is 1000 *
/// the lane's number plus a random byte that the model knows nothing of, so it must come from the
/// lane.
TEST(IsaInteger, Dpp) {
  struct Control {
    const char* text;
    int (*from)(int lane);  ///< negative: none
  };
  const Control controls[] = {
      {"quad_perm:[3,2,0,1]",
       [](int l) {
         return l / 4 * 4 + std::array{3, 2, 0, 1}[static_cast<size_t>(l % 4)];
       }},
      {"row_shl:1", [](int l) { return l % 16 == 15 ? -1 : l + 1; }},
      {"row_shl:5", [](int l) { return l % 16 + 5 > 15 ? -1 : l + 5; }},
      {"row_shr:1", [](int l) { return l % 16 == 0 ? -1 : l - 1; }},
      {"row_shr:8", [](int l) { return l % 16 < 8 ? -1 : l - 8; }},
      {"row_ror:3", [](int l) { return l / 16 * 16 + (l + 13) % 16; }},
      {"row_mirror", [](int l) { return l / 16 * 16 + 15 - l % 16; }},
      {"row_half_mirror", [](int l) { return l / 8 * 8 + 7 - l % 8; }},
      {"row_bcast:15", [](int l) { return l < 16 ? -1 : l / 16 * 16 - 1; }},
      {"row_bcast:31", [](int l) { return l < 32 ? -1 : 31; }},
      {"row_newbcast:7", [](int l) { return l / 16 * 16 + 7; }},
      {"wave_shl:1", [](int l) { return l == 63 ? -1 : l + 1; }},
      {"wave_shr:1", [](int l) { return l == 0 ? -1 : l - 1; }},
      {"wave_rol:1", [](int l) { return (l + 1) % 64; }},
      {"wave_ror:1", [](int l) { return (l + 63) % 64; }},
  };
  for (const Target target : cdna::kTargets) {
    std::vector<Check> checks;
    for (const Control& control : controls) {
      const auto from = control.from;
      const auto value = [](int lane) { return 1000 * static_cast<uint64_t>(lane) + 7; };
      const auto prepare = [value](In& in) { in.a = value(in.lane); };
      // bound_ctrl: 0 where there is no source; otherwise the lane keeps what it had.
      checks.push_back(
          {std::string("v_mov_b32_dpp D, A ") + control.text +
               " row_mask:0xf bank_mask:0xf bound_ctrl:0",
           none,
           none,
           none,
           As::bits,
           [from, value](const In& in) { return from(in.lane) < 0 ? 0 : value(from(in.lane)); },
           {},
           0,
           prepare});
      checks.push_back(
          {std::string("v_add_u32_dpp D, A, B ") + control.text + " row_mask:0xb bank_mask:0xd",
           none,
           i32,
           none,
           As::bits,
           [from, value](const In& in) {
             const bool masked = in.lane / 16 == 2 || in.lane % 16 / 4 == 1;
             const bool writes = !masked && from(in.lane) >= 0;
             return writes ? value(from(in.lane)) + in.b : in.d;
           },
           {},
           0,
           prepare});
    }
    // With some lanes off, what a lane that is off would give depends on the control: all lanes
    // here.
    run_checks(checks, target, 4, /*with_partial_exec=*/false);
  }
}

/// Lanes that swap, shuffle through LDS hardware, and scalar reads of lanes.
TEST(IsaInteger, Lanes) {
  const auto number = [](In& in) {
    in.a = 1000 * static_cast<uint64_t>(in.lane) + 3;
    in.d = (1000 * static_cast<uint64_t>(in.lane) + 5) | (in.d >> 32 << 32);
  };
  std::vector<Check> checks = {
      {"v_readlane_b32 s20, A, 37\n s_nop 4\n v_mov_b32 D, s20",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(37003),
       {},
       0,
       number},
      {"v_readfirstlane_b32 s20, A\n s_nop 4\n v_mov_b32 D, s20",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(3),
       {},
       0,
       number},
      {"v_writelane_b32 D, 63, 5", none, none, none, As::bits, WEFT_MODEL(lane == 5 ? 63 : d)},
      {"v_lshlrev_b32 B, 2, B\n ds_bpermute_b32 D, B, A\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * (b & 63) + 3),
       {},
       0,
       [number](In& in) {
         number(in);
         in.b = in.b % 256;
       }},
      {"v_lshlrev_b32 B, 2, B\n ds_permute_b32 D, B, A\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * ((lane + 64 - 11) % 64) + 3),
       {},
       0,
       [number](In& in) {
         number(in);
         in.b = (static_cast<uint64_t>(in.lane) + 11) % 64;
       }},
      {"ds_swizzle_b32 D, A offset:swizzle(QUAD_PERM, 1, 0, 3, 2)\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * (lane ^ 1) + 3),
       {},
       0,
       number},
      {"ds_swizzle_b32 D, A offset:swizzle(BITMASK_PERM, \"01pip\")\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * ((lane & 32) | 8 | (lane & 4) | (~lane & 2) | (lane & 1)) + 3),
       {},
       0,
       number},
      {"ds_swizzle_b32 D, A offset:swizzle(SWAP, 16)\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * (lane ^ 16) + 3),
       {},
       0,
       number},
      {"ds_swizzle_b32 D, A offset:swizzle(REVERSE, 8)\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * (lane ^ 7) + 3),
       {},
       0,
       number},
      {"ds_swizzle_b32 D, A offset:swizzle(BROADCAST, 4, 2)\n s_waitcnt lgkmcnt(0)",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(1000 * (lane / 4 * 4 + 2) + 3),
       {},
       0,
       number},
  };
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 4, /*with_partial_exec=*/false);
  }
  const std::vector<Check> gfx950 = {
      // D is VDST, A is SRC0: odd rows of VDST change places with even rows of SRC0.
      {"v_permlane16_swap_b32 D, A",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(lane / 16 % 2 == 1 ? 1000 * (lane - 16) + 3 : 1000 * lane + 5),
       {},
       0,
       number},
      {"v_permlane16_swap_b32 D, A\n v_mov_b32 D, A",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(lane / 16 % 2 == 0 ? 1000 * (lane + 16) + 5 : 1000 * lane + 3),
       {},
       0,
       number},
      {"v_permlane32_swap_b32 D, A",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(lane >= 32 ? 1000 * (lane - 32) + 3 : 1000 * lane + 5),
       {},
       0,
       number},
      {"v_permlane32_swap_b32 D, A\n v_mov_b32 D, A",
       none,
       none,
       none,
       As::bits,
       WEFT_MODEL(lane < 32 ? 1000 * (lane + 32) + 5 : 1000 * lane + 3),
       {},
       0,
       number},
  };
  run_checks(gfx950, Target::gfx950, 4, /*with_partial_exec=*/false);
}

}  // namespace
}  // namespace weft::sim::test

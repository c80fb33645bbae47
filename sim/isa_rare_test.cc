// Instructions that compilers rarely emit, against models from the manuals' text: typed buffers,
// scalar atomics, sums of byte differences, cube maps, and others.
#include <cmath>

#include "sim/buffer_format.h"
#include "sim/test_isa.h"

namespace weft::sim {
namespace {

using namespace weft::sim::test;  // NOLINT(google-build-using-namespace): this test's own words

using Kind::f32;
using Kind::i32;
using Kind::i64;
using Kind::none;

void run_on_both(const std::vector<Check>& checks, bool with_partial_exec = true) {
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 4, with_partial_exec);
  }
}

uint64_t byte(uint64_t x, int k) { return x >> (8 * k) & 255; }
/// CDNA3 manual, V_SAD_U8 and V_MSAD_U8, of bytes k to k + 3 of a.
uint64_t sad(uint64_t a, int k, uint64_t b, uint64_t add, bool masked) {
  uint64_t sum = add;
  for (int j = 0; j < 4; ++j) {
    const auto x = static_cast<int>(byte(a, k + j));
    const auto y = static_cast<int>(byte(b, j));
    sum += masked && y == 0 ? 0 : static_cast<uint64_t>(std::abs(x - y));
  }
  return sum;
}
uint64_t four_sads(const In& in, bool masked) {
  uint64_t result = 0;
  for (int k = 0; k < 4; ++k) {
    result |= (sad(in.a, k, in.b, in.c >> (16 * k) & 0xffff, masked) & 0xffff) << (16 * k);
  }
  return result;
}

TEST(IsaRare, ByteDifferences) {
  run_on_both({
      {"v_qsad_pk_u16_u8 D2, A2, B, C2", i64, i32, i64, As::bits,
       [](const In& in) { return four_sads(in, false); }},
      {"v_mqsad_pk_u16_u8 D2, A2, B, C2", i64, i32, i64, As::bits,
       [](const In& in) { return four_sads(in, true); }},
      {"v_mov_b32 v20, C\n v_mov_b32 v21, B\n v_mov_b32 v22, C\n v_mov_b32 v23, 7\n s_nop 1\n"
       " v_mqsad_u32_u8 v[24:27], A2, B, v[20:23]\n v_mov_b32 D, v27",
       i64, i32, i32, As::bits, WEFT_MODEL(sad(a, 3, b, 7, true))},
      {"v_cvt_pkaccum_u8_f32 D, A, B", f32, i32, none, As::bits,
       [](const In& in) -> uint64_t {
         const float x = f(in.a);
         const double bounded = std::isnan(x) ? 0 : std::clamp(double{x}, 0.0, 255.0);
         const int shift = static_cast<int>(in.b & 3) * 8;
         return (in.d & ~(uint64_t{255} << shift) & 0xffffffff) |
                static_cast<uint64_t>(std::nearbyint(bounded)) << shift;
       }},
  });
}

TEST(IsaRare, CubeMaps) {
  // CDNA3 manual, V_CUBEID_F32 and the following.
  const auto face = [](const In& in, float* s, float* t, float* m) -> float {
    const float x = f(in.a);
    const float y = f(in.b);
    const float z = f(in.c);
    if (std::fabs(z) >= std::fabs(x) && std::fabs(z) >= std::fabs(y)) {
      *s = z < 0 ? -x : x;
      *t = -y;
      *m = 2 * z;
      return z < 0 ? 5 : 4;
    }
    if (std::fabs(y) >= std::fabs(x)) {
      *s = x;
      *t = y < 0 ? -z : z;
      *m = 2 * y;
      return y < 0 ? 3 : 2;
    }
    *s = x < 0 ? z : -z;
    *t = -y;
    *m = 2 * x;
    return x < 0 ? 1 : 0;
  };
  const auto model = [face](int which) {
    return [=](const In& in) {
      float values[4];
      values[0] = face(in, &values[1], &values[2], &values[3]);
      return u(values[which]);
    };
  };
  run_on_both({{"v_cubeid_f32 D, A, B, C", f32, f32, f32, As::f32, model(0)},
               {"v_cubesc_f32 D, A, B, C", f32, f32, f32, As::f32, model(1)},
               {"v_cubetc_f32 D, A, B, C", f32, f32, f32, As::f32, model(2)},
               {"v_cubema_f32 D, A, B, C", f32, f32, f32, As::f32, model(3)}});
}

TEST(IsaRare, LegacyHalves) {
  const auto fma = [](const In& in) { return half_fma(h(in.a), h(in.b), h(in.c)); };
  run_on_both({
      {"v_fma_legacy_f16 D, A, B, C", Kind::f16, Kind::f16, Kind::f16, As::f16, fma},
      {"v_mad_legacy_u16 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((a * b + c) & 0xffff)},
      {"v_mad_legacy_i16 D, A, B, C", i32, i32, i32, As::bits, WEFT_MODEL((a * b + c) & 0xffff)},
  });
}

/// DPP and SDWA of conversions: lanes l and l ^ 1 change places; the result goes to a half.
TEST(IsaRare, ConversionsOfOtherLanes) {
  for (const Target target : cdna::kTargets) {
    const float one = target == Target::gfx950 ? 1.0F : 0.5F;  // 0x38 in e4m3fn and e4m3fnuz
    const auto even_and_odd = [](In& in) { in.a = in.lane % 2 == 0 ? 0x38 : 0x40; };
    run_checks({{"v_cvt_f32_fp8_dpp D, A quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf",
                 i32,
                 none,
                 none,
                 As::f32,
                 [one](const In& in) { return u(in.lane % 2 == 0 ? 2 * one : one); },
                 {},
                 0,
                 even_and_odd}},
               target, 1, /*with_partial_exec=*/false);
  }
}

/// 2 / pi from the sum of arctangents of Machin, in whole numbers of 64-bit words: bits after the
/// point, highest first.
std::vector<bool> two_over_pi_bits() {
  constexpr int kWords = 44;  // of 32 bits; the first is before the point
  using Number = std::vector<uint32_t>;
  const auto divide = [](Number x, uint32_t by) {
    uint64_t rest = 0;
    for (uint32_t& word : x) {
      rest = rest << 32 | word;
      word = static_cast<uint32_t>(rest / by);
      rest %= by;
    }
    return x;
  };
  const auto add = [](Number& x, const Number& y, bool minus) {
    int64_t carry = 0;
    for (int k = kWords - 1; k >= 0; --k) {
      const auto at = static_cast<size_t>(k);
      carry += minus ? int64_t{x[at]} - y[at] : int64_t{x[at]} + y[at];
      x[at] = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  };
  // pi = 16 atan(1/5) - 4 atan(1/239)
  Number pi(kWords, 0);
  for (const auto& [times, of] : {std::pair<uint32_t, uint32_t>{16, 5}, {4, 239}}) {
    Number power(kWords, 0);
    power[0] = times;
    power = divide(power, of);
    for (uint32_t n = 1; n < 2000; n += 2) {
      add(pi, divide(power, n), (n % 4 == 3) != (of == 239));
      power = divide(divide(power, of), of);
    }
  }
  // Bits of 2 / pi by long division.
  std::vector<bool> bits;
  Number rest(kWords, 0);
  rest[0] = 2;
  for (int k = 0; k < 1201; ++k) {
    Number twice = rest;
    add(twice, rest, false);
    const bool fits =
        !std::lexicographical_compare(twice.begin(), twice.end(), pi.begin(), pi.end());
    if (fits) {
      add(twice, pi, true);
    }
    bits.push_back(fits);
    rest = twice;
  }
  return bits;
}

TEST(IsaRare, TwoOverPi) {
  const std::vector<bool> bits = two_over_pi_bits();
  const auto model = [&](const In& in) {
    const auto exponent = static_cast<int>(in.a >> 52 & 0x7ff);
    int shift = static_cast<int>(in.b & 31) * 53 + std::max(exponent - 1077, 0);
    double result = 0;
    for (int k = 0; k < 53; ++k) {
      const auto at = static_cast<size_t>(shift) + static_cast<size_t>(k);
      result = 2 * result + (at < bits.size() && bits[at] ? 1 : 0);
    }
    return u(std::ldexp(result, -53 - shift + (exponent >= 1968 ? 128 : 0)));
  };
  run_on_both({{"v_trig_preop_f64 D2, A2, B", Kind::f64, i32, none, As::f64, model}});
}

// --- typed buffers ------------------------------------------------------------------------------

/// The text of a check on a raw buffer of 128 bytes, a word of A for each of the first 32 lanes.
Check on_buffer(const std::string& text, Kind b, As as, std::function<uint64_t(const In&)> model,
                const std::string& word3 = "0x00020fac") {
  const std::string resource =
      "s_add_u32 s12, s6, 512\n s_addc_u32 s13, s7, 0\n s_mov_b32 s14, 128\n s_mov_b32 s15, " +
      word3 + "\n global_store_dword v1, A, s[6:7] offset:512\n s_waitcnt vmcnt(0)\n ";
  return {resource + text + "\n s_waitcnt vmcnt(0)", i64, b, none, as, std::move(model)};
}
std::string format(const char* data, const char* numbers) {
  return std::string(" format:[BUF_DATA_FORMAT_") + data + ",BUF_NUM_FORMAT_" + numbers + "] offen";
}

TEST(IsaRare, TypedLoads) {
  const auto inside = [](auto value) {
    return [=](const In& in) -> uint64_t { return in.lane < 32 ? value(in.a & 0xffffffff) : 0; };
  };
  const auto both = [](float x, float y) { return pair(u(x), u(y)); };
  run_on_both(
      {
          on_buffer("tbuffer_load_format_xy D2, v1, s[12:15], 0" + format("8_8", "UNORM"), none,
                    As::bits, inside([=](uint64_t a) {
                      return both(static_cast<float>(byte(a, 0) / 255.0),
                                  static_cast<float>(byte(a, 1) / 255.0));
                    })),
          on_buffer("tbuffer_load_format_xy D2, v1, s[12:15], 0" + format("16_16", "SNORM"), none,
                    As::bits, inside([=](uint64_t a) {
                      return both(static_cast<float>(std::max(short_of(a) / 32767.0, -1.0)),
                                  static_cast<float>(std::max(short_of(a >> 16) / 32767.0, -1.0)));
                    })),
          on_buffer("tbuffer_load_format_xy D2, v1, s[12:15], 0" + format("16_16", "SINT"), none,
                    As::bits, inside([](uint64_t a) {
                      return pair(static_cast<uint32_t>(int32_t{short_of(a)}),
                                  static_cast<uint32_t>(int32_t{short_of(a >> 16)}));
                    })),
          on_buffer("tbuffer_load_format_xyzw v[20:23], v1, s[12:15], 0" +
                        format("2_10_10_10", "USCALED") +
                        "\n s_waitcnt vmcnt(0)\n v_mov_b32 v8, v21\n v_mov_b32 v9, v23 ; D2",
                    none, As::bits, inside([=](uint64_t a) {
                      return both(static_cast<float>(a >> 10 & 1023), static_cast<float>(a >> 30));
                    })),
          on_buffer("tbuffer_load_format_xyzw v[20:23], v1, s[12:15], 0" + format("16", "UINT") +
                        "\n s_waitcnt vmcnt(0)\n v_mov_b32 v8, v20\n v_mov_b32 v9, v23 ; D2",
                    none, As::bits, inside([](uint64_t a) { return pair(a & 0xffff, 1); })),
          on_buffer("tbuffer_load_format_d16_xy D, v1, s[12:15], 0" + format("8_8", "UNORM"), none,
                    As::bits, inside([](uint64_t a) {
                      return half(static_cast<float>(byte(a, 0) / 255.0)) |
                             half(static_cast<float>(byte(a, 1) / 255.0)) << 16;
                    })),
          // The descriptor says format 8_8_8_8, uint, and x from the third component.
          on_buffer("buffer_load_format_x D, v1, s[12:15], 0 offen", none, As::bits,
                    inside([](uint64_t a) { return byte(a, 2); }), "0x00054fae"),
      },
      false);
}

TEST(IsaRare, TypedStores) {
  const auto unorm = [](uint64_t x) -> uint64_t {
    const float value = f(x);
    return std::isnan(value)
               ? 0
               : static_cast<uint64_t>(std::nearbyint(std::clamp(double{value}, 0.0, 1.0) * 255));
  };
  const std::string back = "\n s_waitcnt vmcnt(0)\n global_load_dword D, v1, s[6:7] offset:512";
  run_on_both(
      {
          on_buffer("tbuffer_store_format_xy B2, v1, s[12:15], 0" + format("8_8", "UNORM") + back,
                    Kind::pk_f32, As::bits,
                    [=](const In& in) -> uint64_t {
                      return in.lane < 32
                                 ? (in.a & 0xffff0000) | unorm(in.b) | unorm(in.b >> 32) << 8
                                 : in.a & 0xffffffff;
                    }),
          on_buffer("tbuffer_store_format_x B, v1, s[12:15], 0" + format("16", "SINT") + back, i32,
                    As::bits,
                    [](const In& in) -> uint64_t {
                      const auto stored = static_cast<uint16_t>(std::clamp(i(in.b), -32768, 32767));
                      return in.lane < 32 ? (in.a & 0xffff0000) | stored : in.a & 0xffffffff;
                    }),
      },
      false);
}

TEST(BufferFormat, SmallFloats) {
  const BufferFormat format = buffer_format(6, 7, kOwnComponents);  // 10_11_11, float
  EXPECT_EQ(format.bytes, 4);
  for (const float x : {0.0F, 1.0F, 0.5F, 3.0F, 0x1p-14F, 0x1p-20F, 60000.0F, -2.0F, INFINITY}) {
    uint32_t memory = 0;
    const uint32_t values[4] = {std::bit_cast<uint32_t>(x), std::bit_cast<uint32_t>(x), 0, 0};
    format.store(&memory, false, values, 2);
    uint32_t back[4];
    format.load(&memory, false, back);
    const float want = std::isinf(x) ? x : std::min(std::max(x, 0.0F), 65024.0F);
    const auto got = std::bit_cast<float>(back[0]);
    EXPECT_TRUE(got == want || std::fabs(got - want) <= want / 64) << got << " of " << x;
    EXPECT_EQ(back[2], 0U);
    EXPECT_EQ(back[3], 0x3f800000U);
  }
}

// --- scalar memory ------------------------------------------------------------------------------

/// SMEM: the assembler has no scalar atomics and stores for these targets, its disassembler does.
std::string scalar_memory(uint32_t opcode, bool returns) {
  // of s[20:21] at s[6:7] + 512
  const uint32_t word =
      0b110000U << 26 | opcode << 18 | 1U << 17 | (returns ? 1U : 0U) << 16 | 20U << 6 | 6U / 2;
  return "\n .long " + std::to_string(word) + ", 512\n s_waitcnt lgkmcnt(0)\n";
}

TEST(IsaRare, ScalarAtomicsAndStores) {
  // Memory gets lane 0's A, the register its B; results are the old value and what is there after.
  const std::string before =
      "global_store_dword v1, A, s[6:7] offset:512\n s_waitcnt vmcnt(0)\n"
      " v_readfirstlane_b32 s20, B\n v_readfirstlane_b32 s21, C\n s_nop 4\n";
  const std::string after =
      " v_mov_b32 v8, s20\n v_mov_b32 v9, 0\n global_load_dword v9, v9, s[6:7] offset:512\n"
      " s_waitcnt vmcnt(0) ; D2";
  // Of all lanes only the first's operands count: every lane is given the same.
  const auto check = [&](uint32_t opcode, bool returns,
                         const std::function<uint64_t(uint32_t, uint32_t, uint32_t)>& now) {
    return Check{before + scalar_memory(opcode, returns) + after,
                 i32,
                 i32,
                 i32,
                 As::bits,
                 [=](const In& in) {
                   const auto a = static_cast<uint32_t>(in.a);
                   const auto b = static_cast<uint32_t>(in.b);
                   return pair(returns ? a : b, now(a, b, static_cast<uint32_t>(in.c)));
                 },
                 {},
                 0,
                 [](In& in) {
                   in.a = 0x1234567;
                   in.b = 0x89abcde;
                   in.c = 0x1234567;
                 }};
  };
  run_on_both(
      {
          check(0x82, true, [](uint32_t a, uint32_t b, uint32_t) { return a + b; }),
          check(0x82, false, [](uint32_t a, uint32_t b, uint32_t) { return a + b; }),
          check(0x80, true, [](uint32_t, uint32_t b, uint32_t) { return b; }),
          check(0x81, true, [](uint32_t a, uint32_t b, uint32_t c) { return a == c ? b : a; }),
          check(0x88, true, [](uint32_t a, uint32_t b, uint32_t) { return a & b; }),
          check(0x10, false, [](uint32_t, uint32_t b, uint32_t) { return b; }),  // s_store_dword
      },
      false);
}

TEST(IsaRare, ScalarRegistersIndexedByM0) {
  const auto same = [](In& in) { in.a = 0x55aa; };
  run_on_both({{"v_readfirstlane_b32 s20, A\n s_mov_b32 s23, 99\n s_mov_b32 m0, 3\n s_nop 4\n"
                " s_movreld_b32 s20, s20\n s_mov_b32 m0, 2\n s_nop 0\n s_movrels_b32 s24, s21\n"
                " v_mov_b32 D, s24",
                i32,
                none,
                none,
                As::bits,
                WEFT_MODEL(a),
                {},
                0,
                same}},
              false);
}

TEST(IsaRare, LdsWrapsAndExchanges) {
  run_on_both(
      {{"v_mov_b32 v20, A\n ds_write_b32 v1, v20\n s_waitcnt lgkmcnt(0)\n"
        " ds_wrap_rtn_b32 v8, v1, B, C\n s_waitcnt lgkmcnt(0)\n ds_read_b32 v9, v1\n"
        " s_waitcnt lgkmcnt(0) ; D2",
        i32, i32, i32, As::bits,
        [](const In& in) {
          const auto a = static_cast<uint32_t>(in.a);
          const auto b = static_cast<uint32_t>(in.b);
          return pair(a, a >= b ? a - b : a + static_cast<uint32_t>(in.c));
        }},
       {"s_mov_b32 m0, 64\n s_nop 0\n ds_write_addtid_b32 A offset:16\n s_waitcnt lgkmcnt(0)\n"
        " ds_read_b32 v8, v1 offset:80\n ds_read_addtid_b32 v9 offset:16\n"
        " s_waitcnt lgkmcnt(0) ; D2",
        i32, none, none, As::bits, WEFT_MODEL(pair(a, a))},
       {"v_lshlrev_b32 v20, 1, v1\n ds_write_b64 v20, A2\n s_waitcnt lgkmcnt(0)\n"
        " ds_condxchg32_rtn_b64 v[22:23], v20, B2\n s_waitcnt lgkmcnt(0)\n"
        " ds_read_b64 D2, v20\n s_waitcnt lgkmcnt(0)",
        i64, i64, none, As::bits,
        [](const In& in) {
          const auto part = [](uint64_t old, uint64_t x) {
            return (x >> 31 & 1) != 0 ? x & 0x7fffffff : old & 0xffffffff;
          };
          return pair(part(in.a, in.b), part(in.a >> 32, in.b >> 32));
        }},
       {"ds_write_b32 v1, A\n ds_write_b32 v1, B offset:256\n s_waitcnt lgkmcnt(0)\n"
        " ds_wrxchg2_rtn_b32 v[20:21], v1, C, C offset1:64\n s_waitcnt lgkmcnt(0)\n"
        " v_mov_b32 v8, v20\n v_mov_b32 v9, v21 ; D2",
        i32, i32, i32, As::bits, WEFT_MODEL(pair(a, b))}},
      false);
}

}  // namespace
}  // namespace weft::sim

// What constants mean in operands: literals in operands of 64 bits, inline constants in halves of
// registers, in mixed precision and in other formats. CDNA 3 and 4 manuals, sections 6.2.1 and
// 6.2.1.1; inline constants of 16-bit operands: LLVM, AMDGPUBaseInfo.cpp, getInlineEncodingV216().
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "sim/decode.h"
#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

using enum Kind;

/// Literals: one that is no inline constant, and some whose bits are an inline constant's in 32 or
/// 16 bits, which LLVM prints as such.
constexpr uint32_t kLiterals[] = {0xdeadbeef, 0x3f800000, 0xc0800000, 0x3e22f983, 1,
                                  64,         0xfffffff0, 0x3c00,     0x3118,     0xbc00};

/// What a literal is to the source `which` of an instruction, by the type at the end of its name.
uint64_t widened(std::string_view name, int which, uint32_t literal) {
  const std::string_view type = name.substr(name.rfind('_') + 1);
  bool single = !type.ends_with("64");
  for (const std::string_view shift :
       {"s_lshl_", "s_lshr_", "s_ashr_", "s_bfe_", "s_bitcmp0_", "s_bitcmp1_"}) {
    single |= which == 1 && name.starts_with(shift);  // by how much, which bits
  }
  for (const std::string_view bits : {"s_bfm_b64", "s_bitset0_b64", "s_bitset1_b64"}) {
    single |= name == bits;
  }
  if (single || type == "b64" || type == "u64") {
    return type.ends_with("16") ? literal & 0xffff : literal;
  }
  return type == "f64" ? uint64_t{literal} << 32
                       : static_cast<uint64_t>(int64_t{static_cast<int32_t>(literal)});
}

/// Every opcode of every encoding that takes a literal, with the literal as each of its sources.
TEST(IsaConstants, LiteralsOfEveryInstruction) {
  static constexpr struct {
    uint32_t first;
    int opcode_shift;
    int opcode_bits;
    uint32_t other;  ///< operands; the sources' fields are filled with the literal's code
    int source[2];   ///< where the fields begin; -1: none
  } kEncodings[] = {
      {0b10U << 30, 23, 7, 16 | 20 << 8 | 24 << 16, {0, 8}},  // SOP2
      {0b101111101U << 23, 8, 8, 16 | 24 << 16, {0, -1}},     // SOP1
      {0b101111110U << 23, 16, 7, 16 | 20 << 8, {0, 8}},      // SOPC
      {0b0111111U << 25, 9, 8, 260 | 8 << 17, {0, -1}},       // VOP1
      {0, 25, 6, 260 | 4 << 9 | 8 << 17, {0, -1}},            // VOP2
      {0b0111110U << 25, 17, 8, 260 | 4 << 9, {0, -1}},       // VOPC
  };
  for (const Target target : cdna::kTargets) {
    int pairs = 0;
    for (const uint32_t literal : kLiterals) {
      for (const auto& encoding : kEncodings) {
        for (int which = 0; which < 2 && encoding.source[which] >= 0; ++which) {
          std::vector<uint32_t> words;
          const bool nine_bits = encoding.first >> 31 == 0;
          const uint32_t field = (nine_bits ? 511U : 255U) << encoding.source[which];
          for (uint32_t opcode = 0; opcode < 1U << encoding.opcode_bits; ++opcode) {
            words.insert(words.end(),
                         {encoding.first | opcode << encoding.opcode_shift |
                              (encoding.other & ~field) | 255U << encoding.source[which],
                          literal, 0xbf800000, 0xbf800000});
          }
          const Result<Code> code = Code::decode(std::as_bytes(std::span(words)), 0, target);
          ASSERT_TRUE(code.ok());
          for (const Instruction& i : code.value().instructions()) {
            const std::string& text = code.value().text(i);
            if (i.row == nullptr || i.address % 16 != 0 || i.bytes != 8 ||
                text.find("/*") != std::string::npos) {
              continue;
            }
            const uint64_t want = widened(i.row->name, which, literal);
            for (int k = i.results; k < i.operands; ++k) {
              const Operand& o = i.operand[k];
              const bool flags = i.row->name == "s_set_gpr_idx_on" && k != i.results;
              if (o.kind == Operand::Kind::constant && !flags) {
                const uint64_t read = i.row->name.ends_with("16") ? 0xffff
                                      : o.words == 2              ? ~uint64_t{0}
                                                                  : 0xffffffff;
                EXPECT_EQ(o.value & read, want)
                    << text << std::hex << " has " << o.value << " of " << literal;
                EXPECT_EQ(o.lanes[0], static_cast<uint32_t>(o.value)) << text;
                EXPECT_EQ(o.lanes[kLanes], o.value >> 32) << text;
                pairs += i.row->name.ends_with("64") ? 1 : 0;
              }
            }
          }
        }
      }
    }
    EXPECT_GT(pairs, 1300) << cdna::name_of(target);
  }
}

void run_on(const std::vector<Check>& checks, std::initializer_list<Target> targets) {
  for (const Target target : targets) {
    run_checks(checks, target, 4);
  }
}
void run_on_both(const std::vector<Check>& checks) {
  run_on(checks, {Target::gfx942, Target::gfx950});
}

TEST(IsaConstants, LiteralsOfVectorPairs) {
  const auto near = [](In& in) {
    const uint64_t choices[] = {0xdeadbeef, 0xffffffffdeadbeef, 0xdeadbeef00000000};
    in.a = choices[in.lane % 3];
  };
  const auto compare = [&](const std::string& name, std::function<bool(const In&)> model) {
    return Check{name + " vcc, 0xdeadbeef, A2",
                 i64,
                 none,
                 none,
                 As::bits,
                 WEFT_MODEL(d),
                 std::move(model),
                 0,
                 near};
  };
  run_on_both({
      {"v_mov_b64 D2, 0xdeadbeef", none, none, none, As::bits, WEFT_MODEL(0xdeadbeef)},
      {"v_rcp_f64 D2, 0x40000000", none, none, none, As::f64, WEFT_MODEL(u(0.5)), {}, 0.5},
      {"v_fmac_f64 D2, 0x40000000, A2", f64, none, none, As::f64,
       WEFT_MODEL(u(std::fma(2.0, d64(a), d64(d))))},
      compare("v_cmp_eq_u64_e32", WEFT_VCC(a == 0xdeadbeef)),
      compare("v_cmp_eq_i64_e32", WEFT_VCC(a == 0xffffffffdeadbeef)),
      compare("v_cmp_lt_u64_e32", WEFT_VCC(0xdeadbeef < a)),
      compare("v_cmp_gt_i64_e32", WEFT_VCC(static_cast<int64_t>(a) < int64_t{i(0xdeadbeef)})),
      compare("v_cmp_eq_f64_e32", WEFT_VCC(a == 0xdeadbeef00000000)),
  });
}

/// With a source's op_sel_hi bit a constant is a binary16: the low half; the high one is zero.
TEST(IsaConstants, MixedPrecision) {
  run_on_both({
      {"v_fma_mix_f32 D, A, 2.0, C op_sel_hi:[0,1,0]", f32, none, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), 2.0F, f(c))))},
      {"v_fma_mix_f32 D, A, 2.0, C", f32, none, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), 2.0F, f(c))))},
      {"v_fma_mix_f32 D, A, -4.0, C op_sel:[0,1,0] op_sel_hi:[0,1,0]", f32, none, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), 0.0F, f(c))))},
      {"v_fma_mix_f32 D, 0.15915494, A, 1.0 op_sel_hi:[1,0,1]", f32, none, none, As::f32,
       WEFT_MODEL(u(std::fma(static_cast<float>(h(0x3118)), f(a), 1.0F)))},
      {"v_fma_mix_f32 D, A, -|2.0|, C op_sel_hi:[0,1,0]", f32, none, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), -2.0F, f(c))))},
      {"v_fma_mix_f32 D, A, 1, C op_sel_hi:[0,1,0]", f32, none, f32, As::f32,
       WEFT_MODEL(u(std::fma(f(a), 0x1p-24F, f(c))))},
      {"v_fma_mixlo_f16 D, A, 2.0, 0 op_sel_hi:[1,1,0]", f16, none, none, As::f16,
       WEFT_MODEL((d & 0xffff0000) | half(h(a) * 2 + 0.0))},
      {"v_fma_mixhi_f16 D, A, 0.5, 0 op_sel_hi:[1,1,0]", f16, none, none, As::pk_f16,
       WEFT_MODEL((d & 0xffff) | half(h(a) * 0.5 + 0.0) << 16)},
  });
}

uint64_t halves(uint64_t low, uint64_t high) { return (low & 0xffff) | (high & 0xffff) << 16; }

/// Of 16-bit integers an inline 1.0 is that of binary32, of halves that of binary16 with zero
/// above.
TEST(IsaConstants, Halves) {
  run_on_both({
      {"v_pk_add_u16 D, A, 1.0", i32, none, none, As::bits,
       WEFT_MODEL(halves(a, (a >> 16) + 0x3f80))},
      {"v_pk_add_u16 D, A, 1.0 op_sel_hi:[1,0]", i32, none, none, As::bits,
       WEFT_MODEL(a & 0xffffffff)},
      {"v_pk_add_u16 D, A, 1.0 op_sel:[0,1]", i32, none, none, As::bits,
       WEFT_MODEL(halves(a + 0x3f80, (a >> 16) + 0x3f80))},
      {"v_pk_add_u16 D, A, 0.15915494", i32, none, none, As::bits,
       WEFT_MODEL(halves(a + 0xf983, (a >> 16) + 0x3e22))},
      {"v_pk_add_u16 D, A, -2", i32, none, none, As::bits,
       WEFT_MODEL(halves(a + 0xfffe, (a >> 16) + 0xffff))},
      {"v_pk_add_u16 D, A, 3", i32, none, none, As::bits, WEFT_MODEL(halves(a + 3, a >> 16))},
      {"v_pk_add_f16 D, A, 1.0", pk_f16, none, none, As::pk_f16,
       WEFT_MODEL(half(h(a) + 1) | half(h_high(a) + 0.0) << 16)},
      {"v_pk_mul_f16 D, A, 2.0 op_sel_hi:[1,0]", pk_f16, none, none, As::pk_f16,
       WEFT_MODEL(half(h(a) * 2) | half(h_high(a) * 2) << 16)},
      {"v_add_u16_e32 D, 1.0, A", i32, none, none, As::low16, WEFT_MODEL(a & 0xffff)},
      {"v_add_u16_e32 D, 0x3c00, A", i32, none, none, As::low16, WEFT_MODEL((a + 0x3c00) & 0xffff)},
      {"v_add_u16_e64 D, A, 0.15915494", i32, none, none, As::low16,
       WEFT_MODEL((a + 0xf983) & 0xffff)},
      {"v_mad_u16 D, A, 1, 1.0 op_sel:[0,0,1,0]", i32, none, none, As::low16,
       WEFT_MODEL((a + 0x3f80) & 0xffff)},
      {"v_add_f16_e32 D, 1.0, A", f16, none, none, As::low_f16, WEFT_MODEL(half(h(a) + 1))},
      {"v_ldexp_f16_e64 D, A, 1.0", f16, none, none, As::low_f16,
       WEFT_MODEL(half(std::ldexp(h(a), 0x3c00)))},
      {"v_mad_i32_i16 D, A, 1.0, C op_sel:[0,1,0,0]", i32, none, i32, As::bits,
       WEFT_MODEL(static_cast<uint32_t>(short_of(a) * 0x3f80 + i(c)))},
      {"v_dot2_i32_i16 D, A, 1.0, C", i32, none, i32, As::bits,
       WEFT_MODEL(static_cast<uint32_t>(short_of(a >> 16) * 0x3f80 + static_cast<int64_t>(i(c))))},
      {"v_dot4_u32_u8 D, A, 1.0, C", i32, none, i32, As::bits,
       WEFT_MODEL(static_cast<uint32_t>((a >> 24 & 255) * 0x3f + (a >> 16 & 255) * 0x80 + c))},
      {"v_dot2_f32_f16 D, A, 2.0, 0",
       pk_f16,
       none,
       none,
       As::f32,
       WEFT_MODEL(u(static_cast<float>(h(a) * 2))),
       {},
       0,
       [](In& in) { in.a = half(0.25 * in.lane) | half(1 + in.lane) << 16; }},
      {"v_cmp_class_f16_e64 vcc, 1.0, A", i32, none, none, As::bits, WEFT_MODEL(d),
       WEFT_VCC((a >> 8 & 1) != 0)},
      {"v_cmp_class_f16_e64 vcc, -|A|, B", f16, i32, none, As::bits, WEFT_MODEL(d),
       WEFT_VCC((b >> (std::isnan(h(a))        ? ((a & 0x200) != 0 ? 1 : 0)
                       : std::isinf(h(a))      ? 2
                       : (a & 0x7fff) >= 0x400 ? 3
                       : (a & 0x7fff) != 0     ? 4
                                               : 5) &
                 1) != 0)},
  });
  run_on(
      {
          {"v_cvt_f32_bf16_e32 D, -4.0", none, none, none, As::f32, WEFT_MODEL(u(-4.0F))},
          {"v_dot2_f32_bf16 D, A, 1.0, 0",
           i32,
           none,
           none,
           As::f32,
           WEFT_MODEL(a << 16),
           {},
           0,
           [](In& in) { in.a = u(1.0F + static_cast<float>(in.lane)) >> 16 | 0x40000000; }},
          {"v_bitop3_b16 D, A, 1.0, 0 bitop3:0x3c op_sel:[0,1,0,0]", i32, none, none, As::low16,
           WEFT_MODEL((a ^ 0x3f80) & 0xffff)},
      },
      {Target::gfx950});
}

}  // namespace
}  // namespace weft::sim::test

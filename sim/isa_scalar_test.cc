// Scalar instructions against models from the manuals' pseudocode: one wave for each set of
// operands.
#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

/// The scalar unit before an instruction, and what it made of it.
struct Scalar {
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t d = 0;
  bool scc = false;
};

struct ScalarCheck {
  std::string text;  ///< with A, B, D for registers, A2, B2, D2 for pairs
  std::function<uint64_t(const Scalar&)> model;
  std::function<bool(const Scalar&)> scc = {};  ///< where the instruction writes it
  std::function<void(Scalar&)> prepare = {};
};

std::string with_scalar_registers(const std::string& text) {
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    const size_t letter = std::string("ABD").find(text[at]);
    const bool inside = at > 0 && (std::isalnum(text[at - 1]) != 0 || text[at - 1] == '_');
    if (letter == std::string::npos || inside) {
      out += text[at];
      continue;
    }
    const int first = 16 + 2 * static_cast<int>(letter);
    if (at + 1 < text.size() && text[at + 1] == '2') {
      out += "s[" + std::to_string(first) + ":" + std::to_string(first + 1) + "]";
      ++at;
    } else {
      out += "s" + std::to_string(first);
    }
  }
  return out;
}

std::string scalar_kernel(const std::string& name, const ScalarCheck& check) {
  return "\n.globl " + name + "\n.p2align 8\n.type " + name + ",@function\n" + name + ":\n" +
         "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_lshl_b32 s8, s2, 5\ns_waitcnt lgkmcnt(0)\n"
         "s_add_u32 s4, s4, s8\ns_addc_u32 s5, s5, 0\ns_load_dwordx8 s[16:23], s[4:5], 0x0\n"
         "s_lshl_b32 s8, s2, 4\ns_add_u32 s6, s6, s8\ns_addc_u32 s7, s7, 0\ns_waitcnt lgkmcnt(0)\n"
         "s_cmp_lg_u32 s22, 0\n" +
         with_scalar_registers(check.text) +
         "\ns_cselect_b32 s24, 1, 0\nv_mov_b32 v2, s20\nv_mov_b32 v3, s21\nv_mov_b32 v4, s24\n"
         "v_mov_b32 v0, 0\ns_mov_b64 exec, 1\nglobal_store_dwordx3 v0, v[2:4], s[6:7]\ns_endpgm\n"
         ".section .rodata,\"a\",@progbits\n.p2align 6\n.amdhsa_kernel " +
         name +
         "\n.amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_user_sgpr_count "
         "2\n.amdhsa_next_free_vgpr 16\n"
         ".amdhsa_next_free_sgpr 32\n.amdhsa_accum_offset 16\n.amdhsa_kernarg_size "
         "24\n.end_amdhsa_kernel\n"
         ".text\n";
}

void run_scalar_checks(const std::vector<ScalarCheck>& checks, Target target) {
  if (!have_assembler()) {
    GTEST_SKIP() << "clang-22 is not installed";
  }
  std::string text = ".text\n";
  std::vector<std::string> names;
  for (size_t k = 0; k < checks.size(); ++k) {
    names.push_back("check" + std::to_string(k));
    text += scalar_kernel(names.back(), checks[k]);
  }
  Device device(target);
  const std::shared_ptr<Module> module = loaded(device, text, names);
  if (module == nullptr) {
    return;
  }
  constexpr uint32_t kCases = 512;
  const uint64_t in_address = device.allocate(kCases * 32).value();
  const uint64_t out_address = device.allocate(kCases * 16).value();
  auto* in = reinterpret_cast<uint64_t*>(in_address);          // NOLINT(performance-no-int-to-ptr)
  const auto* out = reinterpret_cast<uint32_t*>(out_address);  // NOLINT(performance-no-int-to-ptr)
  for (size_t k = 0; k < checks.size(); ++k) {
    const ScalarCheck& check = checks[k];
    SCOPED_TRACE(check.text);
    std::mt19937_64 random(20240900 + k);
    std::vector<Scalar> cases(kCases);
    for (size_t n = 0; n < kCases; ++n) {
      Scalar& x = cases[n];
      x = {.a = draw(Kind::i64, random),
           .b = draw(Kind::i64, random),
           .d = random(),
           .scc = (random() & 1) != 0};
      if (n % 8 == 0) {
        x.b = x.a;
      }
      if (check.prepare) {
        check.prepare(x);
      }
      in[4 * n] = x.a;
      in[4 * n + 1] = x.b;
      in[4 * n + 2] = x.d;
      in[4 * n + 3] = x.scc ? 1 : 0;
    }
    const uint64_t arguments[] = {in_address, out_address, 0};
    const auto report = device.launch(*module->kernel(names[k]), {.x = kCases}, {.x = 64}, 0,
                                      std::as_bytes(std::span(arguments)));
    ASSERT_TRUE(report.ok()) << report.error().message;
    if (!report.value().ok()) {
      ADD_FAILURE() << report.value().findings.front().text();
      continue;
    }
    int failures = 0;
    for (size_t n = 0; n < kCases && failures < 3; ++n) {
      const Scalar& x = cases[n];
      const uint64_t got = out[4 * n] | static_cast<uint64_t>(out[4 * n + 1]) << 32;
      const uint64_t model = check.model(x);
      const bool is_pair = check.text.find("D2") != std::string::npos;
      const uint64_t want = is_pair ? model : (model & 0xffffffff) | (x.d >> 32 << 32);
      const bool want_scc = check.scc ? check.scc(x) : x.scc;
      if (got != want || (out[4 * n + 2] != 0) != want_scc) {
        ++failures;
        ADD_FAILURE() << std::hex << "D is " << got << " SCC " << out[4 * n + 2] << ", not " << want
                      << " SCC " << want_scc << ", of A " << x.a << " B " << x.b << " old D " << x.d
                      << " SCC " << x.scc;
      }
    }
  }
}

#define WEFT_SCALAR(...)                                          \
  [](const Scalar& in) -> uint64_t {                              \
    [[maybe_unused]] const uint64_t a = in.a, b = in.b, d = in.d; \
    [[maybe_unused]] const bool scc = in.scc;                     \
    return static_cast<uint64_t>(__VA_ARGS__);                    \
  }
#define WEFT_SCC(...)                                             \
  [](const Scalar& in) -> bool {                                  \
    [[maybe_unused]] const uint64_t a = in.a, b = in.b, d = in.d; \
    [[maybe_unused]] const bool scc = in.scc;                     \
    return (__VA_ARGS__);                                         \
  }

uint32_t w(uint64_t x) { return static_cast<uint32_t>(x); }
int32_t s(uint64_t x) { return static_cast<int32_t>(x); }
uint64_t magnitude(int32_t x) {
  return x < 0 ? 0U - w(static_cast<uint64_t>(x)) : w(static_cast<uint64_t>(x));
}
uint64_t field(uint64_t x, uint64_t control, int bits, bool is_signed) {
  const uint64_t offset = control & static_cast<uint64_t>(bits - 1);
  const uint64_t width = control >> 16 & 0x7f;
  if (width == 0) {
    return 0;
  }
  uint64_t shifted;
  if (bits == 32) {
    shifted = is_signed ? static_cast<uint64_t>(int64_t{s(x)} >> offset) : w(x) >> offset;
  } else {
    shifted = is_signed ? static_cast<uint64_t>(static_cast<int64_t>(x) >> offset) : x >> offset;
  }
  if (width >= 64) {
    return shifted;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  const bool negative = is_signed && (shifted >> (width - 1) & 1) != 0;
  return negative ? shifted | ~mask : shifted & mask;
}
template <class T>
int first_one_from_below(T x) {
  for (int n = 0; n < static_cast<int>(8 * sizeof(T)); ++n) {
    if ((x >> n & 1) != 0) {
      return n;
    }
  }
  return -1;
}
template <class T>
int first_from_above(T x, bool unlike_sign) {
  constexpr int kBits = static_cast<int>(8 * sizeof(T));
  const bool sign = unlike_sign && (x >> (kBits - 1) & 1) != 0;
  for (int n = 0; n < kBits; ++n) {
    if (((x >> (kBits - 1 - n) & 1) != 0) != sign) {
      return n;
    }
  }
  return -1;
}
uint64_t quads(uint64_t x, int bits, bool spread) {
  uint64_t result = 0;
  for (int n = 0; n < bits; ++n) {
    const bool any = (x >> n / 4 * 4 & 15) != 0;
    result |= static_cast<uint64_t>(any) << (spread ? n : n / 4);
  }
  return result;
}

const std::vector<ScalarCheck>& arithmetic() {
  static const std::vector<ScalarCheck> checks = {
      {"s_add_u32 D, A, B", WEFT_SCALAR(a + b), WEFT_SCC((uint64_t{w(a)} + w(b)) >> 32 != 0)},
      {"s_sub_u32 D, A, B", WEFT_SCALAR(a - b), WEFT_SCC(w(b) > w(a))},
      {"s_add_i32 D, A, B", WEFT_SCALAR(a + b), WEFT_SCC(int64_t{s(a)} + s(b) != s(a + b))},
      {"s_sub_i32 D, A, B", WEFT_SCALAR(a - b), WEFT_SCC(int64_t{s(a)} - s(b) != s(a - b))},
      {"s_addc_u32 D, A, B", WEFT_SCALAR(a + b + (scc ? 1 : 0)),
       WEFT_SCC((uint64_t{w(a)} + w(b) + (scc ? 1 : 0)) >> 32 != 0)},
      {"s_subb_u32 D, A, B", WEFT_SCALAR(a - b - (scc ? 1 : 0)),
       WEFT_SCC(uint64_t{w(b)} + (scc ? 1 : 0) > w(a))},
      {"s_min_i32 D, A, B", WEFT_SCALAR(std::min(s(a), s(b))), WEFT_SCC(s(a) < s(b))},
      {"s_min_u32 D, A, B", WEFT_SCALAR(std::min(w(a), w(b))), WEFT_SCC(w(a) < w(b))},
      {"s_max_i32 D, A, B", WEFT_SCALAR(std::max(s(a), s(b))), WEFT_SCC(s(a) >= s(b))},
      {"s_max_u32 D, A, B", WEFT_SCALAR(std::max(w(a), w(b))), WEFT_SCC(w(a) >= w(b))},
      {"s_mul_i32 D, A, B", WEFT_SCALAR(uint64_t{w(a)} * w(b))},
      {"s_mul_hi_u32 D, A, B", WEFT_SCALAR(uint64_t{w(a)} * w(b) >> 32)},
      {"s_mul_hi_i32 D, A, B", WEFT_SCALAR(int64_t{s(a)} * s(b) >> 32)},
      {"s_absdiff_i32 D, A, B", WEFT_SCALAR(magnitude(s(a - b))), WEFT_SCC(w(a) != w(b))},
      {"s_abs_i32 D, A", WEFT_SCALAR(magnitude(s(a))), WEFT_SCC(w(a) != 0)},
      {"s_lshl1_add_u32 D, A, B", WEFT_SCALAR((a << 1) + b),
       WEFT_SCC(((uint64_t{w(a)} << 1) + w(b)) >> 32 != 0)},
      {"s_lshl2_add_u32 D, A, B", WEFT_SCALAR((a << 2) + b),
       WEFT_SCC(((uint64_t{w(a)} << 2) + w(b)) >> 32 != 0)},
      {"s_lshl3_add_u32 D, A, B", WEFT_SCALAR((a << 3) + b),
       WEFT_SCC(((uint64_t{w(a)} << 3) + w(b)) >> 32 != 0)},
      {"s_lshl4_add_u32 D, A, B", WEFT_SCALAR((a << 4) + b),
       WEFT_SCC(((uint64_t{w(a)} << 4) + w(b)) >> 32 != 0)},
      {"s_addk_i32 D, -1234", WEFT_SCALAR(d - 1234), WEFT_SCC(int64_t{s(d)} - 1234 != s(d - 1234))},
      {"s_mulk_i32 D, -3", WEFT_SCALAR(static_cast<int64_t>(s(d)) * -3)},
      {"s_movk_i32 D, -32768", WEFT_SCALAR(0xffff8000U)},
      {"s_cmovk_i32 D, 77", WEFT_SCALAR(scc ? 77 : d)},
      {"s_cselect_b32 D, A, B", WEFT_SCALAR(scc ? a : b)},
      {"s_cselect_b64 D2, A2, B2", WEFT_SCALAR(scc ? a : b)},
      {"s_cmov_b32 D, A", WEFT_SCALAR(scc ? a : d)},
      {"s_cmov_b64 D2, A2", WEFT_SCALAR(scc ? a : d)},
      {"s_mov_b64 D2, A2", WEFT_SCALAR(a)},
      {"s_mov_b32 D, 0xdeadbeef", WEFT_SCALAR(0xdeadbeefU)},
      {"s_mov_b64 D2, -5", WEFT_SCALAR(static_cast<uint64_t>(int64_t{-5}))},
  };
  return checks;
}

const std::vector<ScalarCheck>& bitwise() {
  static const std::vector<ScalarCheck> checks = [] {
    std::vector<ScalarCheck> all = {
        {"s_not_b32 D, A", WEFT_SCALAR(~a), WEFT_SCC(w(~a) != 0)},
        {"s_not_b64 D2, A2", WEFT_SCALAR(~a), WEFT_SCC(~a != 0)},
        {"s_lshl_b32 D, A, B", WEFT_SCALAR(w(a) << (b & 31)), WEFT_SCC(w(w(a) << (b & 31)) != 0)},
        {"s_lshr_b32 D, A, B", WEFT_SCALAR(w(a) >> (b & 31)), WEFT_SCC(w(a) >> (b & 31) != 0)},
        {"s_ashr_i32 D, A, B", WEFT_SCALAR(s(a) >> (b & 31)), WEFT_SCC(s(a) >> (b & 31) != 0)},
        {"s_lshl_b64 D2, A2, B", WEFT_SCALAR(a << (b & 63)), WEFT_SCC(a << (b & 63) != 0)},
        {"s_lshr_b64 D2, A2, B", WEFT_SCALAR(a >> (b & 63)), WEFT_SCC(a >> (b & 63) != 0)},
        {"s_ashr_i64 D2, A2, B", WEFT_SCALAR(static_cast<int64_t>(a) >> (b & 63)),
         WEFT_SCC(static_cast<int64_t>(a) >> (b & 63) != 0)},
        {"s_bfm_b32 D, A, B", WEFT_SCALAR(((uint64_t{1} << (a & 31)) - 1) << (b & 31))},
        {"s_bfm_b64 D2, A, B", WEFT_SCALAR(((uint64_t{1} << (a & 63)) - 1) << (b & 63))},
        {"s_brev_b32 D, A",
         [](const Scalar& in) {
           uint64_t r = 0;
           for (int n = 0; n < 32; ++n) {
             r |= (in.a >> n & 1) << (31 - n);
           }
           return r;
         }},
        {"s_brev_b64 D2, A2",
         [](const Scalar& in) {
           uint64_t r = 0;
           for (int n = 0; n < 64; ++n) {
             r |= (in.a >> n & 1) << (63 - n);
           }
           return r;
         }},
        {"s_bcnt0_i32_b32 D, A", WEFT_SCALAR(32 - std::popcount(w(a))),
         WEFT_SCC(w(a) != 0xffffffffU)},
        {"s_bcnt1_i32_b32 D, A", WEFT_SCALAR(std::popcount(w(a))), WEFT_SCC(w(a) != 0)},
        {"s_bcnt1_i32_b64 D, A2", WEFT_SCALAR(std::popcount(a)), WEFT_SCC(a != 0)},
        {"s_ff1_i32_b32 D, A", WEFT_SCALAR(first_one_from_below(w(a)))},
        {"s_ff1_i32_b64 D, A2", WEFT_SCALAR(first_one_from_below(a))},
        {"s_ff0_i32_b32 D, A", WEFT_SCALAR(first_one_from_below(w(~a)))},
        {"s_flbit_i32_b32 D, A", WEFT_SCALAR(first_from_above(w(a), false))},
        {"s_flbit_i32_b64 D, A2", WEFT_SCALAR(first_from_above(a, false))},
        {"s_flbit_i32 D, A", WEFT_SCALAR(first_from_above(w(a), true))},
        {"s_flbit_i32_i64 D, A2", WEFT_SCALAR(first_from_above(a, true))},
        {"s_sext_i32_i8 D, A", WEFT_SCALAR(static_cast<int8_t>(a))},
        {"s_sext_i32_i16 D, A", WEFT_SCALAR(static_cast<int16_t>(a))},
        {"s_bitset0_b32 D, A", WEFT_SCALAR(d & ~(uint64_t{1} << (a & 31)))},
        {"s_bitset1_b32 D, A", WEFT_SCALAR(d | uint64_t{1} << (a & 31))},
        {"s_bitset1_b64 D2, A", WEFT_SCALAR(d | uint64_t{1} << (a & 63))},
        {"s_wqm_b32 D, A", WEFT_SCALAR(quads(a, 32, true)), WEFT_SCC(w(a) != 0)},
        {"s_wqm_b64 D2, A2", WEFT_SCALAR(quads(a, 64, true)), WEFT_SCC(a != 0)},
        {"s_quadmask_b32 D, A", WEFT_SCALAR(quads(a, 32, false)), WEFT_SCC(w(a) != 0)},
        {"s_quadmask_b64 D2, A2", WEFT_SCALAR(quads(a, 64, false)), WEFT_SCC(a != 0)},
        {"s_bcnt0_i32_b64 D, A2", WEFT_SCALAR(64 - std::popcount(a)), WEFT_SCC(~a != 0)},
        {"s_ff0_i32_b64 D, A2", WEFT_SCALAR(first_one_from_below(~a))},
        {"s_bitset0_b64 D2, A", WEFT_SCALAR(d & ~(uint64_t{1} << (a & 63)))},
        {"s_bitcmp0_b64 A2, B", WEFT_SCALAR(d), WEFT_SCC((a >> (b & 63) & 1) == 0)},
        {"s_bitreplicate_b64_b32 D2, A",
         [](const Scalar& in) {
           uint64_t r = 0;
           for (int n = 0; n < 32; ++n) {
             r |= (in.a >> n & 1) * 3 << 2 * n;
           }
           return r;
         }},
        {"s_pack_ll_b32_b16 D, A, B", WEFT_SCALAR((a & 0xffff) | b << 16)},
        {"s_pack_lh_b32_b16 D, A, B", WEFT_SCALAR((a & 0xffff) | (b & 0xffff0000))},
        {"s_pack_hh_b32_b16 D, A, B", WEFT_SCALAR((a >> 16 & 0xffff) | (b & 0xffff0000))},
        {"s_bitcmp0_b32 A, B", WEFT_SCALAR(d), WEFT_SCC((a >> (b & 31) & 1) == 0)},
        {"s_bitcmp1_b32 A, B", WEFT_SCALAR(d), WEFT_SCC((a >> (b & 31) & 1) != 0)},
        {"s_bitcmp1_b64 A2, B", WEFT_SCALAR(d), WEFT_SCC((a >> (b & 63) & 1) != 0)},
    };
    struct Operation {
      const char* name;
      uint64_t (*run)(uint64_t, uint64_t);
    };
    for (const Operation& op :
         {Operation{"and", [](uint64_t x, uint64_t y) { return x & y; }},
          Operation{"or", [](uint64_t x, uint64_t y) { return x | y; }},
          Operation{"xor", [](uint64_t x, uint64_t y) { return x ^ y; }},
          Operation{"andn2", [](uint64_t x, uint64_t y) { return x & ~y; }},
          Operation{"orn2", [](uint64_t x, uint64_t y) { return x | ~y; }},
          Operation{"nand", [](uint64_t x, uint64_t y) { return ~(x & y); }},
          Operation{"nor", [](uint64_t x, uint64_t y) { return ~(x | y); }},
          Operation{"xnor", [](uint64_t x, uint64_t y) { return ~(x ^ y); }}}) {
      const auto run = op.run;
      const std::string name = std::string("s_") + op.name;
      all.push_back({name + "_b32 D, A, B", [run](const Scalar& in) { return run(in.a, in.b); },
                     [run](const Scalar& in) { return w(run(in.a, in.b)) != 0; }});
      all.push_back({name + "_b64 D2, A2, B2", [run](const Scalar& in) { return run(in.a, in.b); },
                     [run](const Scalar& in) { return run(in.a, in.b) != 0; }});
    }
    for (const int bits : {32, 64}) {
      for (const bool is_signed : {false, true}) {
        const auto model = [bits, is_signed](const Scalar& in) {
          return field(in.a, in.b, bits, is_signed);
        };
        const auto scc = [bits, is_signed](const Scalar& in) {
          const uint64_t r = field(in.a, in.b, bits, is_signed);
          return (bits == 32 ? w(r) : r) != 0;
        };
        const auto prepare = [bits](Scalar& in) {  // offset and a width that the operand has
          in.b = (in.b & static_cast<uint64_t>(bits - 1)) |
                 (in.b >> 8) % static_cast<uint64_t>(bits + 1) << 16;
        };
        all.push_back({std::string(is_signed ? "s_bfe_i" : "s_bfe_u") +
                           (bits == 32 ? "32 D, A, B" : "64 D2, A2, B"),
                       model, scc, prepare});
      }
    }
    return all;
  }();
  return checks;
}

std::vector<ScalarCheck> compares() {
  std::vector<ScalarCheck> checks;
  const std::pair<const char*, int> relations[] = {{"lt", 1}, {"eq", 2}, {"le", 3},
                                                   {"gt", 4}, {"lg", 5}, {"ge", 6}};
  for (const auto& [name, when] : relations) {
    for (const bool is_signed : {false, true}) {
      const auto relation = [is_signed](uint64_t x, uint64_t y) {
        return is_signed ? (s(x) < s(y)    ? 1
                            : s(x) == s(y) ? 2
                                           : 4)
                         : (w(x) < w(y)    ? 1
                            : w(x) == w(y) ? 2
                                           : 4);
      };
      const std::string type = is_signed ? "_i32" : "_u32";
      checks.push_back({std::string("s_cmp_") + name + type + " A, B", WEFT_SCALAR(d),
                        [relation, when = when](const Scalar& in) {
                          return (relation(in.a, in.b) & when) != 0;
                        }});
      const uint64_t constant = is_signed ? 0xffffff00 : 0xff00;
      checks.push_back(
          {std::string("s_cmpk_") + name + type + (is_signed ? " A, -256" : " A, 0xff00"),
           WEFT_SCALAR(d), [relation, constant, when = when](const Scalar& in) {
             return (relation(in.a, constant) & when) != 0;
           }});
    }
  }
  checks.push_back({"s_cmp_eq_u64 A2, B2", WEFT_SCALAR(d), WEFT_SCC(a == b)});
  checks.push_back({"s_cmp_lg_u64 A2, B2", WEFT_SCALAR(d), WEFT_SCC(a != b)});
  return checks;
}

/// Branches, calls and the execution mask: D counts what was executed.
std::vector<ScalarCheck> control() {
  return {
      {"s_mov_b32 D, 0\n s_cbranch_scc1 L%=\n s_mov_b32 D, 1\nL%=:\n", WEFT_SCALAR(scc ? 0 : 1)},
      {"s_mov_b32 D, 0\n s_cbranch_scc0 L%=\n s_mov_b32 D, 1\nL%=:\n", WEFT_SCALAR(scc ? 1 : 0)},
      {"s_mov_b64 vcc, A2\n s_mov_b32 D, 0\n s_cbranch_vccz L%=\n s_mov_b32 D, 1\nL%=:\n",
       WEFT_SCALAR(a == 0 ? 0 : 1)},
      {"s_mov_b64 exec, A2\n s_mov_b32 D, 0\n s_cbranch_execz L%=\n s_mov_b32 D, 1\nL%=:\n "
       "s_mov_b64 exec, -1",
       WEFT_SCALAR(a == 0 ? 0 : 1)},
      {"s_mov_b64 exec, A2\n s_and_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(a & b), WEFT_SCC((a & b) != 0)},
      {"s_mov_b64 exec, A2\n s_or_saveexec_b64 D2, B2\n s_mov_b64 exec, -1", WEFT_SCALAR(a),
       WEFT_SCC((a | b) != 0)},
      // S0 with EXEC: andn2 is S0 & ~EXEC, andn1 ~S0 & EXEC.
      {"s_mov_b64 exec, A2\n s_andn2_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(b & ~a), WEFT_SCC((b & ~a) != 0)},
      {"s_mov_b64 exec, A2\n s_andn1_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(~b & a), WEFT_SCC((~b & a) != 0)},
      {"s_mov_b64 exec, A2\n s_xor_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(a ^ b), WEFT_SCC((a ^ b) != 0)},
      {"s_mov_b64 exec, A2\n s_nand_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(~(a & b)), WEFT_SCC(~(a & b) != 0)},
      {"s_mov_b64 exec, A2\n s_nor_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(~(a | b)), WEFT_SCC(~(a | b) != 0)},
      {"s_mov_b64 exec, A2\n s_xnor_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(~(a ^ b)), WEFT_SCC(~(a ^ b) != 0)},
      {"s_mov_b64 exec, A2\n s_orn2_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(b | ~a), WEFT_SCC((b | ~a) != 0)},
      {"s_mov_b64 exec, A2\n s_orn1_saveexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(~b | a), WEFT_SCC((~b | a) != 0)},
      // Writes the result to EXEC and the destination.
      {"s_mov_b64 exec, A2\n s_andn1_wrexec_b64 D2, B2\n s_mov_b64 exec, -1", WEFT_SCALAR(~b & a),
       WEFT_SCC((~b & a) != 0)},
      {"s_mov_b64 exec, A2\n s_andn2_wrexec_b64 D2, B2\n s_mov_b64 D2, exec\n s_mov_b64 exec, -1",
       WEFT_SCALAR(b & ~a), WEFT_SCC((b & ~a) != 0)},
      {"s_mov_b32 D, 1\n s_branch L%=\n s_mov_b32 D, 2\nL%=:", WEFT_SCALAR(1)},
      {"s_mov_b64 exec, A2\n s_mov_b32 D, 0\n s_cbranch_execnz L%=\n s_mov_b32 D, 1\nL%=:\n "
       "s_mov_b64 exec, -1",
       WEFT_SCALAR(a != 0 ? 0 : 1)},
      {"s_mov_b64 vcc, A2\n s_mov_b32 D, 0\n s_cbranch_vccnz L%=\n s_mov_b32 D, 1\nL%=:",
       WEFT_SCALAR(a != 0 ? 0 : 1)},
      {"s_mov_b32 D, 0\n s_call_b64 s[26:27], L%=\n s_add_u32 D, D, 8\n s_branch M%=\nL%=:\n"
       " s_mov_b32 D, 1\n s_setpc_b64 s[26:27]\nM%=:\n s_cmp_lg_u32 s22, 0",
       WEFT_SCALAR(9)},
      {"s_getpc_b64 s[26:27]\n s_add_u32 s26, s26, 20\n s_addc_u32 s27, s27, 0\n s_mov_b32 D, 0\n"
       " s_setpc_b64 s[26:27]\n s_mov_b32 D, 1\n s_cmp_lg_u32 s22, 0\n",
       WEFT_SCALAR(0)},
      // The assembler's default of MODE[7:4]: denormals of f16 and f64 kept, of f32 flushed.
      {"s_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, 4), 5\n s_nop 1\n s_getreg_b32 D, "
       "hwreg(HW_REG_MODE, 0, 8)",
       WEFT_SCALAR(0xc5)},
      {"s_mov_b32 m0, 0\n s_mov_b32 D, 5\n L%=:\n s_sub_u32 D, D, 1\n s_cmp_lg_u32 D, 0\n "
       "s_cbranch_scc1 L%=",
       WEFT_SCALAR(0), WEFT_SCC(false)},
  };
}

TEST(IsaScalar, Arithmetic) {
  for (const Target target : cdna::kTargets) {
    run_scalar_checks(arithmetic(), target);
  }
}
TEST(IsaScalar, Bitwise) {
  for (const Target target : cdna::kTargets) {
    run_scalar_checks(bitwise(), target);
  }
}
TEST(IsaScalar, Compares) {
  for (const Target target : cdna::kTargets) {
    run_scalar_checks(compares(), target);
  }
}
/// Section 6.2.1.1 of the manuals: literals of unsigned operands are extended with zeros, of signed
/// ones with their sign.
TEST(IsaScalar, LiteralsOfPairs) {
  const std::vector<ScalarCheck> checks = {
      {"s_mov_b64 D2, 0xdeadbeef", WEFT_SCALAR(0xdeadbeef)},
      {"s_mov_b64 D2, -17", WEFT_SCALAR(0xffffffef)},
      {"s_mov_b64 D2, -16", WEFT_SCALAR(~uint64_t{15})},
      {"s_mov_b64 D2, 1.0", WEFT_SCALAR(0x3ff0000000000000)},
      {"s_and_b64 D2, A2, 0xdeadbeef", WEFT_SCALAR(a & 0xdeadbeef),
       WEFT_SCC((a & 0xdeadbeef) != 0)},
      {"s_orn2_b64 D2, A2, 0x80000000", WEFT_SCALAR(a | ~uint64_t{0x80000000}), WEFT_SCC(true)},
      {"s_cselect_b64 D2, A2, 0xdeadbeef", WEFT_SCALAR(scc ? a : 0xdeadbeef)},
      {"s_cmp_eq_u64 A2, 0xdeadbeef\n s_mov_b64 D2, 0", WEFT_SCALAR(0), WEFT_SCC(a == 0xdeadbeef),
       [](Scalar& x) { x.a = x.scc ? 0xdeadbeef : 0xffffffffdeadbeef; }},
      {"s_lshr_b64 D2, 0xdeadbeef, 4", WEFT_SCALAR(0xdeadbee), WEFT_SCC(true)},
      {"s_ashr_i64 D2, 0xdeadbeef, 4", WEFT_SCALAR(0xfffffffffdeadbee), WEFT_SCC(true)},
      {"s_mov_b32 s25, 0x200010\n s_bfe_u64 D2, 0xdeadbeef, s25", WEFT_SCALAR(0xdead),
       WEFT_SCC(true)},
      {"s_mov_b32 s25, 0x300010\n s_bfe_i64 D2, 0xdeadbeef, s25", WEFT_SCALAR(0xffffffffffffdead),
       WEFT_SCC(true)},
      {"s_flbit_i32_i64 D, 0xfffffffe", WEFT_SCALAR(63)},
      {"s_flbit_i32_b64 D, 0xfffffffe", WEFT_SCALAR(32)},
      {"s_bcnt1_i32_b64 D, 0xdeadbeef", WEFT_SCALAR(24), WEFT_SCC(true)},
  };
  for (const Target target : cdna::kTargets) {
    run_scalar_checks(checks, target);
  }
}
TEST(IsaScalar, Control) {
  std::vector<ScalarCheck> checks = control();
  for (size_t k = 0; k < checks.size(); ++k) {  // labels of their own
    for (size_t at; (at = checks[k].text.find("%=")) != std::string::npos;) {
      checks[k].text.replace(at, 2, std::to_string(k));
    }
  }
  for (const Target target : cdna::kTargets) {
    run_scalar_checks(checks, target);
  }
}

}  // namespace
}  // namespace weft::sim::test

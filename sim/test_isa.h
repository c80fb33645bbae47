// Single instructions in the simulator: tests give an instruction's text and a model of it written
// from the ISA manuals; one kernel for each is assembled with clang-22, all of a test in one file,
// and run over chosen and random operands, with all lanes and with some.
#pragma once

#include <gtest/gtest.h>

#include <unistd.h>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "sim/device.h"
#include "sim/test_formats.h"

namespace weft::sim::test {

/// What an operand is filled with.
enum class Kind : uint8_t { none, i16, i32, i64, f16, f32, f64, pk_f16, pk_f32 };

/// How a result is compared. In floating point any NaN is as good as another.
/// `low`: of the low half, whatever the other is.
enum class As : uint8_t { bits, low16, low_f16, f16, f32, f64, pk_f16, pk_f32 };

/// A lane's operands: 64 bits each, of which an instruction may use fewer.
struct In {
  uint64_t a = 0;
  uint64_t b = 0;
  uint64_t c = 0;
  uint64_t d = 0;  ///< the destination's old contents
  bool vcc = false;
  int lane = 0;
};

struct Check {
  /// The instruction with D, A, B, C for registers and D2, A2, B2, C2 for pairs.
  std::string text;
  Kind a = Kind::none;
  Kind b = Kind::none;
  Kind c = Kind::none;
  As as = As::bits;
  std::function<uint64_t(const In&)> model;  ///< the destination, 64 bits with a pair
  std::function<bool(const In&)> vcc = {};   ///< VCC's bit, where the instruction writes it
  double ulps = 0;                        ///< allowed error of a float result; negative: absolute
  std::function<void(In&)> prepare = {};  ///< changes the operands drawn
  unsigned mode = 0xf0;                   ///< MODE[7:0]: rounding, denormals
};

// Operands as numbers, and back.
inline float f(uint64_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x)); }
inline float f_high(uint64_t x) { return f(x >> 32); }
inline double d64(uint64_t x) { return std::bit_cast<double>(x); }
inline uint64_t u(float x) { return std::bit_cast<uint32_t>(x); }
inline uint64_t u(double x) { return std::bit_cast<uint64_t>(x); }
inline uint64_t pair(uint64_t low, uint64_t high) { return (low & 0xffffffff) | high << 32; }
inline double h(uint64_t x) { return static_cast<double>(decode(x & 0xffff, kF16)); }
inline double h_high(uint64_t x) { return h(x >> 16); }
inline int32_t i(uint64_t x) { return static_cast<int32_t>(x); }
inline int16_t short_of(uint64_t x) { return static_cast<int16_t>(x); }

/// Exact arithmetic on f16 and f32 products and sums.
__extension__ using Wide = __float128;

/// The f16 that x rounds to; a zero takes the sign of `sign`.
inline uint64_t half(Wide x, double sign, Round mode = Round::even) {
  const auto near = static_cast<double>(x);
  if (std::isnan(sign)) {
    return 0x7e00;
  }
  const bool negative = x != 0 ? x < 0 : std::signbit(sign);
  const uint64_t sign_bit = negative ? 0x8000 : 0;
  if (std::isinf(near) || std::isinf(sign)) {
    return sign_bit | 0x7c00;
  }
  const Wide magnitude = x < 0 ? -x : x;
  int exponent = -14;
  while (exponent < 17 && magnitude >= static_cast<Wide>(std::ldexp(1.0, exponent + 1))) {
    ++exponent;
  }
  if (exponent > 15) {
    const bool to_infinity = mode == Round::even || (mode == Round::up && !negative) ||
                             (mode == Round::down && negative);
    return sign_bit | (to_infinity ? 0x7c00 : 0x7bff);
  }
  const Wide units = magnitude * static_cast<Wide>(std::ldexp(1.0, 10 - exponent));
  auto whole = static_cast<uint64_t>(units);
  const Wide rest = units - static_cast<Wide>(whole);
  const bool away = mode == Round::even   ? rest > 0.5 || (rest == 0.5 && (whole & 1) != 0)
                    : mode == Round::up   ? rest > 0 && !negative
                    : mode == Round::down ? rest > 0 && negative
                                          : false;
  whole += away ? 1 : 0;
  const uint64_t code = (static_cast<uint64_t>(exponent + 14) << 10) + whole;
  return sign_bit | (code > 0x7c00 ? 0x7c00 : code);
}
/// Of a result that a double holds exactly, specials included.
inline uint64_t half(double exact) { return half(static_cast<Wide>(exact), exact); }
inline uint64_t half_fma(double a, double b, double c) {
  return half(static_cast<Wide>(a) * static_cast<Wide>(b) + static_cast<Wide>(c),
              std::fma(a, b, c));
}

/// Values at which instructions go wrong.
inline const std::vector<uint64_t>& edges(Kind kind) {
  static const auto of_float = [](std::vector<double> numbers, const Format& format) {
    std::vector<uint64_t> codes;
    const uint64_t one_up = 1;
    for (const double x : numbers) {
      const uint64_t code = code_of(static_cast<Real>(x), false, format);
      for (const uint64_t near : {code, code + one_up, code - (code == 0 ? 0 : one_up)}) {
        codes.push_back(near);
        codes.push_back(near | format.sign());
      }
    }
    const uint64_t infinity = ((uint64_t{1} << format.exponent_bits) - 1) << format.mantissa_bits;
    const uint64_t quiet = uint64_t{1} << (format.mantissa_bits - 1);
    for (const uint64_t code : {uint64_t{0}, uint64_t{1}, (uint64_t{1} << format.mantissa_bits) - 1,
                                uint64_t{1} << format.mantissa_bits, infinity - 1, infinity,
                                infinity | quiet, infinity | quiet | 5, infinity | 1}) {
      codes.push_back(code);
      codes.push_back(code | format.sign());
    }
    return codes;
  };
  static const std::vector<uint64_t> kNothing = {0};
  static const std::vector<uint64_t> kF16s = of_float(
      {0.5, 1, 1.5, 2, 2.5, 3, 4, 7.75, 100, 255.5, 1024, 2048, 32768, 0.25, 0.0001}, kF16);
  static const std::vector<uint64_t> kF32s = of_float({0.5,
                                                       1,
                                                       1.5,
                                                       2,
                                                       2.5,
                                                       3.5,
                                                       4,
                                                       0.15915493667125702,
                                                       0.25,
                                                       255.5,
                                                       65504,
                                                       65520,
                                                       8388608,
                                                       16777216,
                                                       2147483648.0,
                                                       4294967296.0,
                                                       0x1p63,
                                                       0x1p100,
                                                       0x1p-100,
                                                       0x1p-24,
                                                       0x1p-25,
                                                       0x1p-14,
                                                       1e-3},
                                                      kF32);
  static const std::vector<uint64_t> kF64s = of_float({0.5,
                                                       1,
                                                       1.5,
                                                       2,
                                                       2.5,
                                                       3.5,
                                                       4,
                                                       255.5,
                                                       2147483647.0,
                                                       2147483648.0,
                                                       4294967295.0,
                                                       4294967296.0,
                                                       0x1p52,
                                                       0x1p53,
                                                       0x1p63,
                                                       0x1p127,
                                                       0x1p128,
                                                       0x1p-126,
                                                       0x1p-149,
                                                       0x1p1000,
                                                       0x1p-1000,
                                                       1e-3},
                                                      kF64);
  static const std::vector<uint64_t> kI32s = {
      0,          1,          2,          3,         4,          5,          7,          8,
      15,         16,         24,         31,        32,         33,         63,         64,
      0x7f,       0x80,       0xff,       0x100,     0x7fff,     0x8000,     0xffff,     0x10000,
      0x7fffff,   0x800000,   0xffffff,   0x1000000, 0x7fffffff, 0x80000000, 0x55555555, 0xaaaaaaaa,
      0x80008000, 0x7fff7fff, 0xfffffffe, 0xffffffff};
  static const std::vector<uint64_t> kI64s = [] {
    std::vector<uint64_t> values = kI32s;
    for (const uint64_t high :
         {uint64_t{1}, uint64_t{0x7fffffff}, uint64_t{0x80000000}, uint64_t{0xffffffff}}) {
      for (const uint64_t low :
           {uint64_t{0}, uint64_t{1}, uint64_t{0x80000000}, uint64_t{0xffffffff}}) {
        values.push_back(high << 32 | low);
      }
    }
    return values;
  }();
  switch (kind) {
    case Kind::f16:
    case Kind::pk_f16:
      return kF16s;
    case Kind::f32:
    case Kind::pk_f32:
      return kF32s;
    case Kind::f64:
      return kF64s;
    case Kind::i64:
      return kI64s;
    case Kind::i16:
    case Kind::i32:
      return kI32s;
    default:
      return kNothing;
  }
}

/// A value of this kind; unused high bits are random.
inline uint64_t draw(Kind kind, std::mt19937_64& random) {
  const uint64_t any = random();
  const std::vector<uint64_t>& values = edges(kind);
  const auto edge = [&] { return values[random() % values.size()]; };
  const bool chosen = any % 4 != 0;
  switch (kind) {
    case Kind::f16:
    case Kind::i16:
      return chosen ? (random() & ~uint64_t{0xffff}) | (edge() & 0xffff) : random();
    case Kind::pk_f16:
      return chosen ? (random() << 32) | edge() << 16 | edge() : random();
    case Kind::i32:
    case Kind::f32:
      if (any % 16 == 0 && kind == Kind::f32) {  // of moderate size
        return random() << 32 | u(static_cast<float>(static_cast<int64_t>(random())) * 0x1p-60F);
      }
      return chosen ? (random() << 32) | edge() : random();
    case Kind::pk_f32:
      return chosen ? edge() << 32 | edge() : random();
    case Kind::f64:
      if (any % 16 == 0) {
        return u(static_cast<double>(static_cast<int64_t>(random())) * 0x1p-60);
      }
      return chosen ? edge() : random();
    case Kind::i64:
      return chosen ? edge() : random();
    default:
      return any;
  }
}

/// `want` within `ulps` of `got`, both codes of a format; any NaN for any other.
inline bool close(uint64_t got, uint64_t want, const Format& format, double ulps) {
  const Real g = decode(got, format);
  const Real w = decode(want, format);
  if (std::isnan(w) || std::isnan(g)) {
    return std::isnan(w) && std::isnan(g);
  }
  if (ulps == 0 || std::isinf(w) || std::isinf(g) || (w == 0 && ulps > 0)) {
    return got == want;
  }
  return std::fabs(g - w) <= (ulps < 0 ? -static_cast<Real>(ulps)
                                       : static_cast<Real>(ulps) * step_at(std::fabs(w), format));
}

inline bool matches(uint64_t got, uint64_t want, const Check& check) {
  const auto halves = [&](uint64_t x, uint64_t y) {
    return close(x & 0xffff, y & 0xffff, kF16, check.ulps);
  };
  const auto singles = [&](uint64_t x, uint64_t y) {
    return close(x & 0xffffffff, y & 0xffffffff, kF32, check.ulps);
  };
  const bool high_word = got >> 32 == want >> 32;
  switch (check.as) {
    case As::low16:
      return (got & 0xffff) == (want & 0xffff) && high_word;
    case As::low_f16:
      return halves(got, want) && high_word;
    case As::f16:
      return halves(got, want) && got >> 16 == want >> 16;
    case As::f32:
      return singles(got, want) && high_word;
    case As::pk_f16:
      return halves(got, want) && halves(got >> 16, want >> 16) && high_word;
    case As::pk_f32:
      return singles(got, want) && singles(got >> 32, want >> 32);
    case As::f64:
      return close(got, want, kF64, check.ulps);
    default:
      return got == want;
  }
}

/// The text with registers for its operands.
inline std::string with_registers(const std::string& text) {
  static const std::pair<char, int> kRegisters[] = {{'A', 2}, {'B', 4}, {'C', 6}, {'D', 8}};
  std::string out;
  for (size_t at = 0; at < text.size(); ++at) {
    int first = -1;
    for (const auto& [letter, reg] : kRegisters) {
      first = text[at] == letter ? reg : first;
    }
    const bool word = at > 0 && (std::isalnum(text[at - 1]) != 0 || text[at - 1] == '_');
    if (first < 0 || word || (at + 1 < text.size() && std::isalpha(text[at + 1]) != 0)) {
      out += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == '2') {
      out += "v[" + std::to_string(first) + ":" + std::to_string(first + 1) + "]";
      ++at;
    } else {
      out += "v" + std::to_string(first);
    }
  }
  return out;
}

/// Assembler text of one kernel: nine words of each lane from `in`, three to `out`, EXEC as given.
inline std::string kernel_text(const std::string& name, const Check& check) {
  std::string s =
      "\n.globl " + name + "\n.p2align 8\n.type " + name + ",@function\n" + name + ":\n";
  s += "s_load_dwordx4 s[4:7], s[0:1], 0x0\ns_load_dwordx2 s[10:11], s[0:1], 0x10\n"
       "s_waitcnt lgkmcnt(0)\ns_mul_i32 s8, s2, 2304\ns_add_u32 s4, s4, s8\ns_addc_u32 s5, s5, 0\n"
       "s_mul_i32 s8, s2, 768\ns_add_u32 s6, s6, s8\ns_addc_u32 s7, s7, 0\nv_lshlrev_b32_e32 v1, "
       "2, v0\n";
  for (int word = 0; word < 9; ++word) {
    s += "global_load_dword v" + std::to_string(2 + word) +
         ", v1, s[4:5] offset:" + std::to_string(256 * word) + "\n";
  }
  s += "s_waitcnt vmcnt(0)\nv_cmp_ne_u32_e32 vcc, 0, v10\ns_setreg_imm32_b32 hwreg(HW_REG_MODE, 0, "
       "8), " +
       std::to_string(check.mode) + "\ns_mov_b64 exec, s[10:11]\ns_nop 4\n" +
       with_registers(check.text) +
       "\ns_nop 15\ns_mov_b64 exec, -1\nv_cndmask_b32_e64 v11, 0, 1, vcc\n"
       "global_store_dword v1, v8, s[6:7]\nglobal_store_dword v1, v9, s[6:7] offset:256\n"
       "global_store_dword v1, v11, s[6:7] offset:512\ns_endpgm\n";
  s += ".section .rodata,\"a\",@progbits\n.p2align 6\n.amdhsa_kernel " + name +
       "\n.amdhsa_group_segment_fixed_size 8192\n.amdhsa_user_sgpr_kernarg_segment_ptr "
       "1\n.amdhsa_user_sgpr_count 2\n"
       ".amdhsa_next_free_vgpr 32\n.amdhsa_next_free_sgpr 32\n.amdhsa_accum_offset 32\n"
       ".amdhsa_kernarg_size 24\n.end_amdhsa_kernel\n.text\n";
  return s;
}

inline std::string metadata_text(const std::string& name) {
  return "  - .name: " + name + "\n    .symbol: " + name +
         ".kd\n    .kernarg_segment_size: 24\n    .kernarg_segment_align: 8\n"
         "    .group_segment_fixed_size: 8192\n    .private_segment_fixed_size: 0\n"
         "    .wavefront_size: 64\n    .sgpr_count: 32\n    .vgpr_count: 32\n    .agpr_count: 0\n"
         "    .sgpr_spill_count: 0\n    .vgpr_spill_count: 0\n"
         "    .max_flat_workgroup_size: 64\n    .args:\n"
         "      - {.offset: 0, .size: 8, .value_kind: global_buffer, .address_space: global}\n"
         "      - {.offset: 8, .size: 8, .value_kind: global_buffer, .address_space: global}\n"
         "      - {.offset: 16, .size: 8, .value_kind: by_value}\n";
}

inline bool have_assembler() {
  static const bool have = std::system("clang-22 --version >/dev/null 2>&1") == 0;
  return have;
}

/// The code object of this assembler text; empty, and a failed test, when it does not assemble.
inline std::vector<std::byte> assembled(const std::string& text, Target target) {
  namespace fs = std::filesystem;
  static int count = 0;
  const fs::path stem = fs::temp_directory_path() /
                        ("weft-isa-" + std::to_string(getpid()) + "-" + std::to_string(count++));
  const std::string source = stem.string() + ".s";
  const std::string object = stem.string() + ".co";
  const std::string log = stem.string() + ".log";
  std::ofstream(source) << text;
  const std::string command =
      "clang-22 -target amdgcn-amd-amdhsa -mcpu=" + std::string(cdna::name_of(target)) + " -o " +
      object + " " + source + " >" + log + " 2>&1";
  std::vector<std::byte> bytes;
  if (std::system(command.c_str()) == 0) {
    std::ifstream in(object, std::ios::binary);
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    bytes.resize(content.size());
    std::memcpy(bytes.data(), content.data(), content.size());
  } else {
    std::ifstream in(log);
    ADD_FAILURE() << std::string((std::istreambuf_iterator<char>(in)), {}).substr(0, 4000);
  }
  for (const std::string& path : {source, object, log}) {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  return bytes;
}

/// The kernels of this text on the device; nullptr, and a failed test, when there is something
/// wrong.
inline std::shared_ptr<Module> loaded(Device& device, const std::string& text,
                                      const std::vector<std::string>& names) {
  std::string metadata =
      ".amdgpu_metadata\namdhsa.version: [1, 2]\namdhsa.target: amdgcn-amd-amdhsa--" +
      std::string(cdna::name_of(device.target())) + "\namdhsa.kernels:\n";
  for (const std::string& name : names) {
    metadata += metadata_text(name);
  }
  const std::vector<std::byte> object =
      assembled(text + metadata + ".end_amdgpu_metadata\n", device.target());
  if (object.empty()) {
    return nullptr;
  }
  auto module = device.load(object);
  if (!module.ok()) {
    ADD_FAILURE() << module.error().message;
    return nullptr;
  }
  return module.value();
}

/// Runs every check over `waves` waves of operands with all lanes, and over one with some.
inline void run_checks(const std::vector<Check>& checks, Target target, int waves = 24,
                       bool with_partial_exec = true) {
  if (!have_assembler()) {
    GTEST_SKIP() << "clang-22 is not installed";
  }
  std::string text = ".text\n";
  std::vector<std::string> names;
  for (size_t k = 0; k < checks.size(); ++k) {
    names.push_back("check" + std::to_string(k));
    text += kernel_text(names.back(), checks[k]);
  }
  Device device(target);
  const std::shared_ptr<Module> module = loaded(device, text, names);
  if (module == nullptr) {
    return;
  }
  const auto words = static_cast<size_t>(waves) * 64;
  const uint64_t in_address = device.allocate(words * 9 * 4).value();
  const uint64_t out_address = device.allocate(words * 3 * 4).value();
  auto* in = reinterpret_cast<uint32_t*>(in_address);    // NOLINT(performance-no-int-to-ptr)
  auto* out = reinterpret_cast<uint32_t*>(out_address);  // NOLINT(performance-no-int-to-ptr)

  for (size_t k = 0; k < checks.size(); ++k) {
    const Check& check = checks[k];
    SCOPED_TRACE(check.text);
    const Kernel* kernel = module->kernel(names[k]);
    ASSERT_NE(kernel, nullptr);
    std::mt19937_64 random(20240700 + k);
    for (const uint64_t exec : {~uint64_t{0}, uint64_t{0x8000ff5512345679}}) {
      if (exec != ~uint64_t{0} && !with_partial_exec) {
        continue;
      }
      const int count = exec == ~uint64_t{0} ? waves : 1;
      std::vector<In> cases(static_cast<size_t>(count) * 64);
      for (size_t n = 0; n < cases.size(); ++n) {
        In& x = cases[n];
        x = {.a = draw(check.a, random),
             .b = draw(check.b, random),
             .c = draw(check.c, random),
             .d = random(),
             .vcc = (random() & 1) != 0,
             .lane = static_cast<int>(n % 64)};
        // An accumulator is of the kind of the result.
        if (check.as == As::f32) {
          x.d = draw(Kind::f32, random);
        } else if (check.as == As::f64) {
          x.d = draw(Kind::f64, random);
        } else if (check.as == As::f16 || check.as == As::pk_f16) {
          x.d = draw(Kind::pk_f16, random);
        }
        if (check.prepare) {
          check.prepare(x);
        }
        uint32_t* lane = in + n / 64 * 576 + n % 64;
        const uint64_t values[] = {x.a, x.b, x.c, x.d};
        for (int v = 0; v < 4; ++v) {
          lane[128 * v] = static_cast<uint32_t>(values[v]);
          lane[128 * v + 64] = static_cast<uint32_t>(values[v] >> 32);
        }
        lane[512] = x.vcc ? 1 : 0;
      }
      const uint64_t arguments[] = {in_address, out_address, exec};
      const auto report = device.launch(*kernel, {.x = static_cast<uint32_t>(count)}, {.x = 64}, 0,
                                        std::as_bytes(std::span(arguments)));
      ASSERT_TRUE(report.ok()) << report.error().message;
      if (!report.value().ok()) {
        ADD_FAILURE() << report.value().findings.front().text();
        break;
      }
      int failures = 0;
      for (size_t n = 0; n < cases.size() && failures < 3; ++n) {
        const In& x = cases[n];
        const bool active = (exec >> (n % 64) & 1) != 0;
        const uint32_t* lane = out + n / 64 * 192 + n % 64;
        const uint64_t got = lane[0] | static_cast<uint64_t>(lane[64]) << 32;
        const bool got_vcc = lane[128] != 0;
        const uint64_t model = active ? check.model(x) : x.d;
        const bool is_pair = check.text.find("D2") != std::string::npos;
        const uint64_t want = !active || is_pair ? model : (model & 0xffffffff) | (x.d >> 32 << 32);
        const bool want_vcc = !check.vcc ? x.vcc : active && check.vcc(x);
        if (active ? !matches(got, want, check) : got != want) {
          ++failures;
          ADD_FAILURE() << std::hex << "D is " << got << ", not " << want << ", of A " << x.a
                        << " B " << x.b << " C " << x.c << " old D " << x.d << " VCC " << x.vcc
                        << " lane " << std::dec << x.lane << (active ? "" : " (inactive)");
        }
        if (got_vcc != want_vcc) {
          ++failures;
          ADD_FAILURE() << std::hex << "VCC is " << got_vcc << " of A " << x.a << " B " << x.b
                        << " C " << x.c << " VCC " << x.vcc << " lane " << std::dec << x.lane
                        << (active ? "" : " (inactive)");
        }
      }
    }
  }
}

}  // namespace weft::sim::test

/// A model: the destination as an expression of a, b, c, d, vcc and lane.
#define WEFT_MODEL(...)                                                     \
  [](const ::weft::sim::test::In& in) -> uint64_t {                         \
    [[maybe_unused]] const uint64_t a = in.a, b = in.b, c = in.c, d = in.d; \
    [[maybe_unused]] const bool vcc = in.vcc;                               \
    [[maybe_unused]] const int lane = in.lane;                              \
    return static_cast<uint64_t>(__VA_ARGS__);                              \
  }
/// VCC's bit likewise.
#define WEFT_VCC(...)                                                       \
  [](const ::weft::sim::test::In& in) -> bool {                             \
    [[maybe_unused]] const uint64_t a = in.a, b = in.b, c = in.c, d = in.d; \
    [[maybe_unused]] const bool vcc = in.vcc;                               \
    return (__VA_ARGS__);                                                   \
  }

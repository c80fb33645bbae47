// Memory instructions against models from the manuals' pseudocode: loads and stores of parts of
// words, atomics with their old and new values, bounds of buffers, transposed reads.
#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

using enum Kind;

uint32_t w(uint64_t x) { return static_cast<uint32_t>(x); }
int32_t s(uint64_t x) { return static_cast<int32_t>(x); }

/// C is each lane's own 16 bytes of LDS.
void own_slot(In& in) { in.c = 16 * static_cast<uint64_t>(in.lane); }

std::string lines(std::initializer_list<std::string> parts) {
  std::string text;
  for (const std::string& part : parts) {
    text += (text.empty() ? "" : "\n ") + part;
  }
  return text;
}
constexpr const char* kWaitLds = "s_waitcnt lgkmcnt(0)";
constexpr const char* kWaitMemory = "s_waitcnt vmcnt(0)";

float smaller(float x, float y) { return x < y ? x : y; }
float larger(float x, float y) { return x > y ? x : y; }

/// What an atomic makes of `memory` (32 bits) and its operand; `compare` of cmpswap.
struct Atomic {
  const char* lds;     ///< nullptr: LDS has none
  const char* global;  ///< nullptr: global memory has none
  Kind kind;
  uint64_t (*run)(uint64_t memory, uint64_t operand);
};
const Atomic kAtomics[] = {
    {"ds_add_rtn_u32", "global_atomic_add", i32, [](uint64_t m, uint64_t x) { return m + x; }},
    {"ds_sub_rtn_u32", "global_atomic_sub", i32, [](uint64_t m, uint64_t x) { return m - x; }},
    {"ds_rsub_rtn_u32", nullptr, i32, [](uint64_t m, uint64_t x) { return x - m; }},
    {"ds_inc_rtn_u32", "global_atomic_inc", i32,
     [](uint64_t m, uint64_t x) -> uint64_t { return w(m) >= w(x) ? 0 : w(m) + 1; }},
    {"ds_dec_rtn_u32", "global_atomic_dec", i32,
     [](uint64_t m, uint64_t x) -> uint64_t { return w(m) == 0 || w(m) > w(x) ? w(x) : w(m) - 1; }},
    {"ds_min_rtn_i32", "global_atomic_smin", i32,
     [](uint64_t m, uint64_t x) -> uint64_t {
       return w(static_cast<uint64_t>(std::min(s(m), s(x))));
     }},
    {"ds_max_rtn_i32", "global_atomic_smax", i32,
     [](uint64_t m, uint64_t x) -> uint64_t {
       return w(static_cast<uint64_t>(std::max(s(m), s(x))));
     }},
    {"ds_min_rtn_u32", "global_atomic_umin", i32,
     [](uint64_t m, uint64_t x) -> uint64_t { return std::min(w(m), w(x)); }},
    {"ds_max_rtn_u32", "global_atomic_umax", i32,
     [](uint64_t m, uint64_t x) -> uint64_t { return std::max(w(m), w(x)); }},
    {"ds_and_rtn_b32", "global_atomic_and", i32, [](uint64_t m, uint64_t x) { return m & x; }},
    {"ds_or_rtn_b32", "global_atomic_or", i32, [](uint64_t m, uint64_t x) { return m | x; }},
    {"ds_xor_rtn_b32", "global_atomic_xor", i32, [](uint64_t m, uint64_t x) { return m ^ x; }},
    {"ds_wrxchg_rtn_b32", "global_atomic_swap", i32, [](uint64_t, uint64_t x) { return x; }},
    {"ds_min_rtn_f32", nullptr, f32, [](uint64_t m, uint64_t x) { return u(smaller(f(x), f(m))); }},
    {"ds_max_rtn_f32", nullptr, f32, [](uint64_t m, uint64_t x) { return u(larger(f(x), f(m))); }},
    {"ds_add_rtn_f32", "global_atomic_add_f32", f32,
     [](uint64_t m, uint64_t x) { return u(f(m) + f(x)); }},
    {"ds_pk_add_rtn_f16", "global_atomic_pk_add_f16", pk_f16,
     [](uint64_t m, uint64_t x) {
       return half(h(m) + h(x)) | half(h(m >> 16) + h(x >> 16)) << 16;
     }},
};

/// Moderate numbers: what becomes of NaN and denormals in atomics is the memory's own.
void moderate(In& in, Kind kind) {
  const auto number = [&](uint64_t x) -> uint64_t {
    if (kind == f32) {
      return u(static_cast<float>(static_cast<int64_t>(x % 4001) - 2000) * 0.25F);
    }
    if (kind == pk_f16) {
      return half(static_cast<double>(x % 401) - 200) |
             half(static_cast<double>(x / 401 % 401) - 200) << 16;
    }
    return x;
  };
  in.a = number(in.a);
  in.b = number(in.b);
}

TEST(IsaMemory, AtomicsOfWords) {
  std::vector<Check> checks;
  for (const Atomic& atomic : kAtomics) {
    const auto run = atomic.run;
    const Kind kind = atomic.kind;
    const Kind drawn = kind == i32 ? i32 : i64;
    const auto model = [run](const In& in) { return pair(in.a, run(in.a, in.b)); };
    if (atomic.lds != nullptr) {
      checks.push_back({lines({"ds_write_b32 C, A offset:4", kWaitLds,
                               std::string(atomic.lds) + " D, C, B offset:4", kWaitLds,
                               "ds_read_b32 v9, C offset:4 ; D2", kWaitLds}),
                        drawn,
                        drawn,
                        none,
                        As::bits,
                        model,
                        {},
                        0,
                        [kind](In& in) {
                          moderate(in, kind);
                          own_slot(in);
                        }});
    }
    if (atomic.global != nullptr) {
      checks.push_back(
          {lines({"global_store_dword v1, A, s[6:7] offset:512", kWaitMemory,
                  std::string(atomic.global) + " D, v1, B, s[6:7] offset:512 sc0", kWaitMemory,
                  "global_load_dword v9, v1, s[6:7] offset:512 ; D2", kWaitMemory}),
           drawn,
           drawn,
           none,
           As::bits,
           model,
           {},
           0,
           [kind](In& in) { moderate(in, kind); }});
    }
  }
  // Compare and swap: LDS has the comparison first, memory the new value.
  checks.push_back({lines({"ds_write_b32 C, A", kWaitLds, "ds_cmpst_rtn_b32 D, C, B, v5", kWaitLds,
                           "ds_read_b32 v9, C ; D2", kWaitLds}),
                    i64,
                    i64,
                    none,
                    As::bits,
                    WEFT_MODEL(pair(a, w(a) == w(b) ? b >> 32 : a)),
                    {},
                    0,
                    [](In& in) {
                      own_slot(in);
                      in.b = in.lane % 2 == 0 ? pair(in.a, in.b >> 32) : in.b;
                    }});
  checks.push_back({lines({"global_store_dword v1, A, s[6:7] offset:512", kWaitMemory,
                           "global_atomic_cmpswap D, v1, B2, s[6:7] offset:512 sc0", kWaitMemory,
                           "global_load_dword v9, v1, s[6:7] offset:512 ; D2", kWaitMemory}),
                    i64,
                    i64,
                    none,
                    As::bits,
                    WEFT_MODEL(pair(a, w(a) == b >> 32 ? b : a)),
                    {},
                    0,
                    [](In& in) { in.b = in.lane % 2 == 0 ? pair(in.b, in.a) : in.b; }});
  checks.push_back({lines({"ds_write_b32 C, A", kWaitLds, "ds_mskor_rtn_b32 D, C, B, v5", kWaitLds,
                           "ds_read_b32 v9, C ; D2", kWaitLds}),
                    i32,
                    i64,
                    none,
                    As::bits,
                    WEFT_MODEL(pair(a, (a & ~b) | b >> 32)),
                    {},
                    0,
                    own_slot});
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 4);
  }
}

TEST(IsaMemory, AtomicsOfPairs) {
  struct Atomic64 {
    const char* lds;
    const char* global;
    uint64_t (*run)(uint64_t memory, uint64_t operand);
    bool numbers;
  };
  const Atomic64 atomics[] = {
      {"ds_add_rtn_u64", "global_atomic_add_x2", [](uint64_t m, uint64_t x) { return m + x; },
       false},
      {"ds_sub_rtn_u64", "global_atomic_sub_x2", [](uint64_t m, uint64_t x) { return m - x; },
       false},
      {"ds_min_rtn_i64", "global_atomic_smin_x2",
       [](uint64_t m, uint64_t x) {
         return static_cast<uint64_t>(std::min(static_cast<int64_t>(m), static_cast<int64_t>(x)));
       },
       false},
      {"ds_max_rtn_u64", "global_atomic_umax_x2",
       [](uint64_t m, uint64_t x) { return std::max(m, x); }, false},
      {"ds_xor_rtn_b64", "global_atomic_xor_x2", [](uint64_t m, uint64_t x) { return m ^ x; },
       false},
      {"ds_wrxchg_rtn_b64", "global_atomic_swap_x2", [](uint64_t, uint64_t x) { return x; }, false},
      {"ds_add_rtn_f64", "global_atomic_add_f64",
       [](uint64_t m, uint64_t x) { return u(d64(m) + d64(x)); }, true},
      {nullptr, "global_atomic_min_f64",
       [](uint64_t m, uint64_t x) { return u(std::min(d64(m), d64(x))); }, true},
      {nullptr, "global_atomic_max_f64",
       [](uint64_t m, uint64_t x) { return u(std::max(d64(m), d64(x))); }, true},
  };
  std::vector<Check> checks;
  for (const Atomic64& atomic : atomics) {
    const auto run = atomic.run;
    const bool numbers = atomic.numbers;
    const auto prepare = [numbers](In& in) {
      own_slot(in);
      if (numbers) {
        in.a = u(static_cast<double>(in.a % 100000) - 50000);
        in.b = u(static_cast<double>(in.b % 100000) * 0.125);
      }
    };
    for (const bool fresh : {false, true}) {  // the old value, and what memory holds then
      const auto model = [run, fresh](const In& in) { return fresh ? run(in.a, in.b) : in.a; };
      if (atomic.lds != nullptr) {
        checks.push_back(
            {lines({"ds_write_b64 C, A2", kWaitLds, std::string(atomic.lds) + " D2, C, B2",
                    kWaitLds, fresh ? "ds_read_b64 D2, C" : "s_nop 0", kWaitLds}),
             i64,
             i64,
             none,
             As::bits,
             model,
             {},
             0,
             prepare});
      }
      checks.push_back(
          {lines({"v_lshlrev_b32 v12, 3, v0", "global_store_dwordx2 v12, A2, s[6:7]", kWaitMemory,
                  std::string(atomic.global) + " D2, v12, B2, s[6:7] sc0", kWaitMemory,
                  fresh ? "global_load_dwordx2 D2, v12, s[6:7]" : "s_nop 0", kWaitMemory}),
           i64,
           i64,
           none,
           As::bits,
           model,
           {},
           0,
           prepare});
    }
  }
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 4);
  }
}

TEST(IsaMemory, PartsOfWords) {
  const auto byte = [](uint64_t x, int n) { return x >> 8 * n & 255; };
  const std::string store = "ds_write_b64 C, A2";
  const auto lds = [&](const std::string& rest, std::function<uint64_t(const In&)> model) {
    return Check{lines({store, kWaitLds, rest, kWaitLds}),
                 i64,
                 i64,
                 none,
                 As::bits,
                 std::move(model),
                 {},
                 0,
                 own_slot};
  };
  const std::string keep = "global_store_dword v1, A, s[6:7] offset:512";
  const auto global = [&](const std::string& rest, std::function<uint64_t(const In&)> model) {
    return Check{
        lines({keep, kWaitMemory, rest, kWaitMemory}), i64, i64, none, As::bits, std::move(model)};
  };
  const std::vector<Check> checks = {
      lds("ds_read_u8 D, C offset:1", [=](const In& in) { return byte(in.a, 1); }),
      lds("ds_read_i8 D, C offset:3",
          [=](const In& in) {
            return static_cast<uint64_t>(int64_t{static_cast<int8_t>(byte(in.a, 3))});
          }),
      lds("ds_read_u16 D, C offset:2", WEFT_MODEL(a >> 16 & 0xffff)),
      lds("ds_read_i16 D, C offset:2", WEFT_MODEL(static_cast<int16_t>(a >> 16))),
      lds("ds_read_u8_d16 D, C offset:2",
          [=](const In& in) { return (in.d & 0xffff0000) | byte(in.a, 2); }),
      lds("ds_read_u8_d16_hi D, C offset:2",
          [=](const In& in) { return (in.d & 0xffff) | byte(in.a, 2) << 16; }),
      lds("ds_read_i8_d16_hi D, C",
          WEFT_MODEL((d & 0xffff) |
                     (static_cast<uint64_t>(int64_t{static_cast<int8_t>(a)}) & 0xffff) << 16)),
      lds("ds_read_u16_d16 D, C", WEFT_MODEL((d & 0xffff0000) | (a & 0xffff))),
      lds("ds_read_u16_d16_hi D, C", WEFT_MODEL((d & 0xffff) | (a & 0xffff) << 16)),
      lds("ds_write_b8 C, B offset:2\n s_waitcnt lgkmcnt(0)\n ds_read_b32 D, C",
          WEFT_MODEL((a & 0xff00ffff) | (b & 255) << 16)),
      lds("ds_write_b16 C, B offset:2\n s_waitcnt lgkmcnt(0)\n ds_read_b32 D, C",
          WEFT_MODEL((a & 0xffff) | (b & 0xffff) << 16)),
      lds("ds_write_b8_d16_hi C, B\n s_waitcnt lgkmcnt(0)\n ds_read_b32 D, C",
          WEFT_MODEL((a & 0xffffff00) | (b >> 16 & 255))),
      lds("ds_write_b16_d16_hi C, B\n s_waitcnt lgkmcnt(0)\n ds_read_b32 D, C",
          WEFT_MODEL((a & 0xffff0000) | (b >> 16 & 0xffff))),
      lds("ds_read2_b32 D2, C offset0:1 offset1:0", WEFT_MODEL(a >> 32 | a << 32)),
      lds("ds_write2_b32 C, B, A offset0:1 offset1:0\n s_waitcnt lgkmcnt(0)\n ds_read_b64 D2, C",
          WEFT_MODEL(pair(a, b))),
      lds("ds_write2st64_b32 C, B, A offset0:4 offset1:8\n s_waitcnt lgkmcnt(0)\n ds_read2st64_b32 "
          "D2, C offset0:8 offset1:4",
          WEFT_MODEL(pair(a, b))),
      lds("ds_write_b64 C, B2 offset:8\n s_waitcnt lgkmcnt(0)\n ds_read_b128 v[12:15], C\n "
          "s_waitcnt lgkmcnt(0)\n v_mov_b32 v8, v13\n v_mov_b32 v9, v14 ; D2",
          WEFT_MODEL(pair(a >> 32, b))),
      lds("ds_write_b64 C, B2 offset:8\n s_waitcnt lgkmcnt(0)\n ds_read_b96 v[12:14], C\n "
          "s_waitcnt lgkmcnt(0)\n v_mov_b32 v8, v12\n v_mov_b32 v9, v14 ; D2",
          WEFT_MODEL(pair(a, b))),
      global("global_load_ubyte D, v1, s[6:7] offset:514",
             [=](const In& in) { return byte(in.a, 2); }),
      global("global_load_sbyte D, v1, s[6:7] offset:513",
             [=](const In& in) {
               return static_cast<uint64_t>(int64_t{static_cast<int8_t>(byte(in.a, 1))});
             }),
      global("global_load_ushort D, v1, s[6:7] offset:514", WEFT_MODEL(a >> 16 & 0xffff)),
      global("global_load_sshort D, v1, s[6:7] offset:512", WEFT_MODEL(static_cast<int16_t>(a))),
      global("global_load_ubyte_d16 D, v1, s[6:7] offset:513",
             [=](const In& in) { return (in.d & 0xffff0000) | byte(in.a, 1); }),
      global("global_load_sbyte_d16_hi D, v1, s[6:7] offset:512",
             WEFT_MODEL((d & 0xffff) |
                        (static_cast<uint64_t>(int64_t{static_cast<int8_t>(a)}) & 0xffff) << 16)),
      global("global_load_short_d16 D, v1, s[6:7] offset:514",
             WEFT_MODEL((d & 0xffff0000) | (a >> 16 & 0xffff))),
      global("global_load_short_d16_hi D, v1, s[6:7] offset:512",
             WEFT_MODEL((d & 0xffff) | (a & 0xffff) << 16)),
      global("global_store_byte v1, B, s[6:7] offset:513\n s_waitcnt vmcnt(0)\n global_load_dword "
             "D, v1, s[6:7] offset:512",
             WEFT_MODEL((a & 0xffff00ff) | (b & 255) << 8)),
      global("global_store_short v1, B, s[6:7] offset:514\n s_waitcnt vmcnt(0)\n global_load_dword "
             "D, v1, s[6:7] offset:512",
             WEFT_MODEL((a & 0xffff) | (b & 0xffff) << 16)),
      global("global_store_byte_d16_hi v1, B, s[6:7] offset:512\n s_waitcnt vmcnt(0)\n "
             "global_load_dword D, v1, s[6:7] offset:512",
             WEFT_MODEL((a & 0xffffff00) | (b >> 16 & 255))),
      global("global_store_short_d16_hi v1, B, s[6:7] offset:512\n s_waitcnt vmcnt(0)\n "
             "global_load_dword D, v1, s[6:7] offset:512",
             WEFT_MODEL((a & 0xffff0000) | (b >> 16 & 0xffff))),
      // Addresses in registers, and flat ones.
      global("v_mov_b32 v13, s7\n v_add_co_u32 v12, vcc, s6, v1\n v_addc_co_u32 v13, vcc, 0, v13, "
             "vcc\n"
             " global_load_dword D, v[12:13], off offset:512\n s_mov_b64 vcc, 0",
             WEFT_MODEL(a)),
      global("v_mov_b32 v13, s7\n v_add_co_u32 v12, vcc, s6, v1\n v_addc_co_u32 v13, vcc, 0, v13, "
             "vcc\n"
             " flat_load_dword D, v[12:13] offset:512\n s_waitcnt lgkmcnt(0)\n s_mov_b64 vcc, 0",
             WEFT_MODEL(a)),
  };
  std::vector<Check> all = checks;
  for (Check& check : all) {
    if (check.text.find("vcc") != std::string::npos) {
      check.vcc = WEFT_VCC(false);
    }
  }
  for (const Target target : cdna::kTargets) {
    run_checks(all, target, 4, /*with_partial_exec=*/false);
  }
}

/// A raw buffer of 128 bytes in the middle of the output: beyond it loads give zero and stores are
/// dropped (CDNA3 section 9.1.5.1).
TEST(IsaMemory, Buffers) {
  const std::string resource =
      "s_add_u32 s12, s6, 512\n s_addc_u32 s13, s7, 0\n s_mov_b32 s14, 128\n s_mov_b32 s15, "
      "0x00020000";
  const std::string keep = "global_store_dword v1, A, s[6:7] offset:512";
  const auto check = [&](const std::string& rest, std::function<uint64_t(const In&)> model) {
    return Check{lines({resource, keep, kWaitMemory, rest, kWaitMemory}),
                 i64,
                 i64,
                 none,
                 As::bits,
                 std::move(model)};
  };
  const std::vector<Check> checks = {
      check("buffer_load_dword D, v1, s[12:15], 0 offen", WEFT_MODEL(lane < 32 ? a : 0)),
      check("buffer_load_ushort D, v1, s[12:15], 0 offen offset:2",
            WEFT_MODEL(lane < 32 ? a >> 16 & 0xffff : 0)),
      check(
          "buffer_load_sbyte D, v1, s[12:15], 0 offen offset:1",
          WEFT_MODEL(lane < 32 ? static_cast<uint64_t>(int64_t{static_cast<int8_t>(a >> 8)}) : 0)),
      check("buffer_store_dword B, v1, s[12:15], 0 offen\n s_waitcnt vmcnt(0)\n global_load_dword "
            "D, v1, s[6:7] offset:512",
            WEFT_MODEL(lane < 32 ? b : a)),
      check("buffer_store_byte B, v1, s[12:15], 0 offen offset:3\n s_waitcnt vmcnt(0)\n "
            "global_load_dword D, v1, s[6:7] offset:512",
            WEFT_MODEL(lane < 32 ? (a & 0xffffff) | (b & 255) << 24 : a)),
      check(
          "buffer_atomic_add B, v1, s[12:15], 0 offen sc0\n s_waitcnt vmcnt(0)\n v_mov_b32 v8, B\n"
          " global_load_dword v9, v1, s[6:7] offset:512 ; D2",
          WEFT_MODEL(lane < 32 ? pair(a, a + b) : pair(0, a))),
  };
  std::vector<Check> all(checks.begin(),
                         checks.end() - 1);  // lane 0 of the last reads lane 1's word
  for (const Target target : cdna::kTargets) {
    run_checks(checks, target, 4, /*with_partial_exec=*/false);
  }
}

/// A swizzled buffer of 64 records of 8 bytes: eight records' first words, then their second words,
/// and so on. Bits 116:115 of the descriptor, here set, are no size of elements (section 9.1.8).
TEST(IsaMemory, SwizzledBuffers) {
  const std::string resource =
      "s_mov_b32 s12, s6\n s_or_b32 s13, s7, 0x80080000\n s_mov_b32 s14, 64\n s_mov_b32 s15, "
      "0x001a0000";
  const auto check = [&](int begin) {
    return Check{
        lines({resource, "buffer_store_dword B, v0, s[12:15], 0 idxen offset:4",
               "buffer_store_dword A, v0, s[12:15], 0 idxen", kWaitMemory,
               "global_load_dword D, v1, s[6:7] offset:" + std::to_string(begin), kWaitMemory}),
        none,
        none,
        none,
        As::bits,
        [begin](const In& in) -> uint64_t {
          const int word = begin / 4 + in.lane;
          const bool second = word % 16 / 8 != 0;
          return static_cast<uint64_t>((second ? 2000 : 1000) + word / 16 * 8 + word % 8);
        },
        {},
        0,
        [](In& in) {
          in.a = 1000 + static_cast<uint64_t>(in.lane);
          in.b = 2000 + static_cast<uint64_t>(in.lane);
        }};
  };
  for (const Target target : cdna::kTargets) {
    run_checks({check(0), check(256)}, target, 4, /*with_partial_exec=*/false);
  }
}

/// Where lanes are added, the data format is bits 17:14 of the stride: lane 1 is 16 KiB on.
TEST(IsaMemory, WideStrideOfScratch) {
  const Check check{
      lines({"v_mov_b32 D, 0", "s_sub_u32 s12, s6, 0x3e00\n s_subb_u32 s13, s7, 0",
             "s_mov_b32 s14, 0\n s_mov_b32 s15, 0x00808000\n s_mov_b64 exec, 2",
             "buffer_store_dword A, off, s[12:15], 0", kWaitMemory, "s_mov_b64 exec, -1",
             "v_mov_b32 D, 0\n global_load_dword D, D, s[6:7] offset:512", kWaitMemory}),
      none,
      none,
      none,
      As::bits,
      WEFT_MODEL(77),
      {},
      0,
      [](In& in) { in.a = 77; }};
  for (const Target target : cdna::kTargets) {
    run_checks({check}, target, 32, /*with_partial_exec=*/false);
  }
}

/// Transposed reads of gfx950 (CDNA4 section 11.4 and the matrix layouts it serves): the 64 bits of
/// 16 lanes, one after the other, are rows of 16 elements; each lane gets a column.
TEST(IsaMemory, TransposedReads) {
  // 16-bit elements: the 16 lanes' 8 bytes are 4 rows of 16 elements... each lane gets 4 of a
  // column.
  std::vector<Check> checks;
  for (const int bits : {16, 8, 4}) {
    const int per_lane = 64 / bits;
    const std::string name = "ds_read_b64_tr_b" + std::to_string(bits);
    // Which element of which lane, as far as the bits hold it.
    const auto value = [bits](int lane, int e) -> uint64_t {
      return bits == 16  ? static_cast<uint64_t>(16 * lane + e)
             : bits == 8 ? static_cast<uint64_t>(lane % 16 * 16 + e)
                         : static_cast<uint64_t>((lane * 5 + e * 3 + lane / 16) % 16);
    };
    const auto prepare = [=](In& in) {
      in.a = 0;
      for (int e = 0; e < per_lane; ++e) {
        in.a |= value(in.lane, e) << bits * e;
      }
      in.c = 8 * static_cast<uint64_t>(in.lane);
    };
    const auto model = [=](const In& in) {
      // Lane i's element r comes from lane (i / per_lane + r * (16 / per_lane)) of its group of 16,
      // element i % per_lane.
      const int group = in.lane / 16 * 16;
      const int i = in.lane % 16;
      uint64_t result = 0;
      for (int r = 0; r < per_lane; ++r) {
        result |= value(group + i / per_lane + r * (16 / per_lane), i % per_lane) << bits * r;
      }
      return result;
    };
    checks.push_back({lines({"ds_write_b64 C, A2", kWaitLds, name + " D2, C", kWaitLds}),
                      none,
                      none,
                      none,
                      As::bits,
                      model,
                      {},
                      0,
                      prepare});
  }
  // Of the 96 bits of 6-bit elements the first 64.
  const auto six = [](int lane, int e) -> uint64_t {
    return static_cast<uint64_t>(lane * 7 + e * 5 + lane / 16) % 64;
  };
  checks.push_back(
      {lines({"ds_write_b64 C, A2", "ds_write_b32 C, B offset:8", kWaitLds,
              "ds_read_b96_tr_b6 v[12:14], C", kWaitLds, "v_mov_b32 v8, v12",
              "v_mov_b32 v9, v13 ; D2"}),
       none,
       none,
       none,
       As::bits,
       [six](const In& in) {
         uint64_t result = 0;
         for (int r = 0; r < 11; ++r) {
           result |= six(in.lane / 16 * 16 + r, in.lane % 16) << 6 * r;
         }
         return result;
       },
       {},
       0,
       [six](In& in) {
         own_slot(in);
         in.a = in.b = 0;
         for (int e = 0; e < 16; ++e) {
           const uint64_t x = six(in.lane, e);
           in.a |= 6 * e < 64 ? x << 6 * e : 0;
           in.b |= 6 * e >= 64 ? x << (6 * e - 64) : 6 * e > 58 ? x >> (64 - 6 * e) : 0;
         }
       }});
  run_checks(checks, Target::gfx950, 2, /*with_partial_exec=*/false);
}

}  // namespace
}  // namespace weft::sim::test

// Matrix and conversion instructions in the executor: that it hands their registers, constants and
// modifiers to MatrixOp and ConvertOp as the assembler's text says. What those compute is tested
// against models by matrix_test.cc and convert_test.cc.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "arch/cdna/matrix_layout.h"
#include "sim/convert.h"
#include "sim/matrix.h"
#include "sim/test_isa.h"

namespace weft::sim::test {
namespace {

/// One instruction on whole registers: v[0:127] hold random words, and AGPRs a[0:127] others; all
/// 256 are read back.
struct RegisterCheck {
  std::string text;
  std::function<void(Lanes* v, Lanes* a)> model;  ///< what it makes of them
};
inline constexpr int kEach = 128;

std::string name_of_registers(char file, int first, int count) {
  const std::string start(1, file);
  return count == 1
             ? start + std::to_string(first)
             : start + "[" + std::to_string(first) + ":" + std::to_string(first + count - 1) + "]";
}

/// v255 is the lane's offset into memory.
std::string register_kernel(const std::string& name, const std::string& text) {
  std::string s =
      "\n.globl " + name + "\n.p2align 8\n.type " + name + ",@function\n" + name + ":\n" +
      "s_load_dwordx4 s[4:7], s[0:1], 0x0\nv_lshlrev_b32_e32 v255, 4, v0\ns_waitcnt lgkmcnt(0)\n";
  const auto advance = [&](int pair) {
    const std::string low = std::to_string(pair);
    const std::string high = std::to_string(pair + 1);
    s += "s_add_u32 s" + low + ", s" + low + ", 2048\ns_addc_u32 s" + high + ", s" + high + ", 0\n";
  };
  const auto each = [&](bool load, int pair) {  // four registers at a time
    for (int r = 0; r < 2 * kEach; r += 4) {
      const std::string registers = name_of_registers(r < kEach ? 'v' : 'a', r % kEach, 4);
      const std::string base =
          name_of_registers('s', pair, 2) + " offset:" + std::to_string(r / 4 % 2 * 1024) + "\n";
      s += load ? "global_load_dwordx4 " + registers + ", v255, " + base
                : "global_store_dwordx4 v255, " + registers + ", " + base;
      if (r % 8 == 4) {
        advance(pair);
      }
    }
  };
  each(true, 4);
  s += "s_waitcnt vmcnt(0)\ns_mov_b32 s20, 0x01020304\ns_nop 7\n" + text + "\ns_nop 15\ns_nop 15\n";
  each(false, 6);
  s += "s_endpgm\n.section .rodata,\"a\",@progbits\n.p2align 6\n.amdhsa_kernel " + name +
       "\n.amdhsa_user_sgpr_kernarg_segment_ptr 1\n.amdhsa_user_sgpr_count "
       "2\n.amdhsa_next_free_vgpr 512\n"
       ".amdhsa_next_free_sgpr 32\n.amdhsa_accum_offset 256\n.amdhsa_kernarg_size "
       "24\n.end_amdhsa_kernel\n.text\n";
  return s;
}

void run_register_checks(const std::vector<RegisterCheck>& checks, Target target) {
  if (!have_assembler()) {
    GTEST_SKIP() << "clang-22 is not installed";
  }
  std::string text = ".text\n";
  std::vector<std::string> names;
  for (size_t k = 0; k < checks.size(); ++k) {
    names.push_back("check" + std::to_string(k));
    text += register_kernel(names.back(), checks[k].text);
  }
  Device device(target);
  const std::shared_ptr<Module> module = loaded(device, text, names);
  if (module == nullptr) {
    return;
  }
  const uint64_t in = device.allocate(sizeof(Lanes) * 2 * kEach).value();
  const uint64_t out = device.allocate(sizeof(Lanes) * 2 * kEach).value();
  std::mt19937 random(20240800);
  for (size_t k = 0; k < checks.size(); ++k) {
    SCOPED_TRACE(checks[k].text);
    static Lanes before[2 * kEach];
    static Lanes want[2 * kEach];
    for (Lanes& r : before) {
      for (uint32_t& word : r) {
        word = static_cast<uint32_t>(random());
      }
    }
    std::memcpy(want, before, sizeof(want));
    checks[k].model(want, want + kEach);
    auto* quads = reinterpret_cast<uint32_t*>(in);  // NOLINT(performance-no-int-to-ptr)
    for (int r = 0; r < 2 * kEach; ++r) {
      for (int lane = 0; lane < kLanes; ++lane) {
        quads[(r / 4 * kLanes + lane) * 4 + r % 4] = before[r][lane];
      }
    }
    const uint64_t arguments[] = {in, out, 0};
    const auto report = device.launch(*module->kernel(names[k]), {}, {.x = 64}, 0,
                                      std::as_bytes(std::span(arguments)));
    ASSERT_TRUE(report.ok()) << report.error().message;
    ASSERT_TRUE(report.value().ok()) << report.value().findings.front().text();
    const auto* got = reinterpret_cast<const uint32_t*>(out);  // NOLINT(performance-no-int-to-ptr)
    int failures = 0;
    for (int r = 0; r < 2 * kEach && failures < 3; ++r) {
      for (int lane = 0; lane < kLanes && failures < 3; ++lane) {
        const uint32_t word = got[(r / 4 * kLanes + lane) * 4 + r % 4];
        if (word != want[r][lane]) {
          ++failures;
          ADD_FAILURE() << (r < kEach ? "v" : "a") << r % kEach << " lane " << lane << " is "
                        << std::hex << word << ", not " << want[r][lane];
        }
      }
    }
  }
}

constexpr int kD = 0;
constexpr int kA = 40;
constexpr int kB = 60;
constexpr int kC = 80;
constexpr int kIndex = 120;

TEST(IsaMatrix, RegistersConstantsAndModifiers) {
  for (const Target target : cdna::kTargets) {
    std::vector<RegisterCheck> checks;
    for (const MatrixOp& op : matrix_ops()) {
      if (find_matrix_op(op.name, target) == nullptr) {
        continue;
      }
      const bool chosen = op.instruction->a == cdna::MatrixFormat::chosen;
      const std::string name(op.name);
      /// d, a, b, c in AGPRs or not; c a constant.
      struct Form {
        bool d_acc, a_acc, b_acc;
        const char* constant;
        int cbsz, abid, blgp;
      };
      std::vector<Form> forms = {{false, false, false, nullptr, 0, 0, 0}};
      if (op.sparse) {
        forms.push_back({true, false, true, nullptr, 0, 1, 0});
        forms.push_back({false, true, false, nullptr, 1, 1, 0});
      } else if (chosen) {
        forms.push_back({true, true, false, nullptr, 4, 0, 1});
        forms.push_back({false, false, true, nullptr, 2, 0, 4});
      } else {
        forms.push_back({true, true, false, nullptr, 0, 0,
                         op.d_regs == 2 || name.find("f64") != std::string::npos ? 5 : 0});
        forms.push_back({false, false, true, "0", 0, 0, 0});
        forms.push_back({false, false, false, "1.0", 0, 0, 0});
        if (op.blocks > 1 && name.find("f64") == std::string::npos) {
          forms.push_back({true, false, false, nullptr, 1, 1, 3});
        }
      }
      for (const Form& form : forms) {
        const auto registers_of = [&](int most, int selector) {
          return !chosen ? most : selector == 4 ? 4 : selector >= 2 ? 6 : 8;
        };
        std::string text =
            name + " " + name_of_registers(form.d_acc ? 'a' : 'v', kD, op.d_regs) + ", " +
            name_of_registers(form.a_acc ? 'a' : 'v', kA, registers_of(op.a_regs, form.cbsz)) +
            ", " +
            name_of_registers(form.b_acc ? 'a' : 'v', kB, registers_of(op.b_regs, form.blgp)) +
            ", ";
        text += op.sparse ? "v" + std::to_string(kIndex)
                : form.constant != nullptr
                    ? std::string(form.constant)
                    : name_of_registers(form.d_acc ? 'a' : 'v', kC, op.d_regs);
        if (op.scaled) {
          text += form.cbsz == 2 ? ", v121, v122 op_sel:[1,0,0] op_sel_hi:[1,0,0]"
                                 : ", v121, v122 op_sel:[0,1,0] op_sel_hi:[0,1,0]";
        }
        if (name.find("f64") != std::string::npos && form.blgp != 0) {
          text += " neg:[1,0,1]";
        } else {
          text += form.cbsz != 0 ? " cbsz:" + std::to_string(form.cbsz) : "";
          text += form.abid != 0 ? " abid:" + std::to_string(form.abid) : "";
          text += form.blgp != 0 ? " blgp:" + std::to_string(form.blgp) : "";
        }
        checks.push_back(
            {text, [&op, form, target](Lanes* v, Lanes* a) {
               static Lanes c[32];
               const uint32_t constant =
                   form.constant == nullptr || form.constant[0] == '0' ? 0 : 0x3f800000;
               const bool f64 = op.instruction->d == cdna::MatrixFormat::f64;
               for (int r = 0; r < 32; ++r) {
                 for (int lane = 0; lane < kLanes; ++lane) {
                   // 1.0 is that of the result's format; i32 takes the bits of the f32.
                   c[r][lane] = form.constant == nullptr ? (form.d_acc ? a : v)[kC + r][lane]
                                : f64 ? (r % 2 == 1 && constant != 0 ? 0x3ff00000U : 0U)
                                      : constant;
                 }
               }
               Lanes* d = (form.d_acc ? a : v) + kD;
               const bool first = form.cbsz == 2;
               op.run({.d = d,
                       .a = (form.a_acc ? a : v) + kA,
                       .b = (form.b_acc ? a : v) + kB,
                       .c = op.sparse ? d : c,
                       .index = op.sparse ? v + kIndex : nullptr,
                       .scale_a = op.scaled ? v + 121 : nullptr,
                       .scale_b = op.scaled ? v + 122 : nullptr,
                       .cbsz = static_cast<uint8_t>(form.cbsz),
                       .abid = static_cast<uint8_t>(form.abid),
                       .blgp = static_cast<uint8_t>(form.blgp),
                       .op_sel_a = static_cast<uint8_t>(first ? 3 : 0),
                       .op_sel_b = static_cast<uint8_t>(first ? 0 : 3)},
                      target);
             }});
      }
    }
    run_register_checks(checks, target);
  }
}

TEST(IsaMatrix, MovesBetweenTheFiles) {
  const std::vector<RegisterCheck> checks = {
      {"v_accvgpr_read_b32 v3, a7",
       [](Lanes* v, Lanes* a) { std::memcpy(v[3], a[7], sizeof(Lanes)); }},
      {"v_accvgpr_write_b32 a9, v5",
       [](Lanes* v, Lanes* a) { std::memcpy(a[9], v[5], sizeof(Lanes)); }},
      {"v_accvgpr_mov_b32 a1, a2",
       [](Lanes*, Lanes* a) { std::memcpy(a[1], a[2], sizeof(Lanes)); }},
      {"v_swap_b32 v1, v2", [](Lanes* v, Lanes*) { std::swap(v[1], v[2]); }},
  };
  for (const Target target : cdna::kTargets) {
    run_register_checks(checks, target);
  }
}

TEST(IsaConvert, RegistersAndSelectors) {
  for (const Target target : cdna::kTargets) {
    std::vector<RegisterCheck> checks;
    for (const ConvertOp& op : convert_ops()) {
      if (find_convert_op(op.name, target) == nullptr) {
        continue;
      }
      const std::string name(op.name);
      int sources = 0;
      std::string operands = name_of_registers('v', kD, op.d_regs);
      for (; sources < 3 && op.src_regs[sources] != 0; ++sources) {
        operands += ", " + name_of_registers('v', 32 * (sources + 1), op.src_regs[sources]);
      }
      /// Bits of OPSEL that the instruction's text uses.
      struct Selector {
        const char* text;
        int op_sel;
      };
      std::vector<Selector> selectors = {{"", 0}};
      const bool pk32 =
          name.find("pk32") != std::string::npos || name.find("2xpk16") != std::string::npos;
      const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
      if (name == "v_cvt_pk_fp8_f32" || name == "v_cvt_pk_bf8_f32" || has("v_cvt_sr_f16") ||
          has("v_cvt_sr_bf16") ||
          ((has("scalef32_pk_fp8_") || has("scalef32_pk_bf8_")) && !has("8_f32"))) {
        selectors.push_back({" op_sel:[0,0,1]", 8});
      } else if (has("_sr_fp8") || has("_sr_bf8") || (has("pk_fp4_f32") && has("scalef32")) ||
                 has("_sr_pk_fp4")) {
        selectors.push_back({" op_sel:[0,0,1,0]", 4});
        selectors.push_back({" op_sel:[0,0,1,1]", 12});
      } else if (has("pk_fp4_f16") || has("pk_fp4_bf16")) {
        selectors.push_back({" op_sel:[0,0,1,0]", 4});
        selectors.push_back({" op_sel:[0,0,0,1]", 8});
      } else if (has("scalef32_pk_fp8_f32") || has("scalef32_pk_bf8_f32")) {
        selectors.push_back({" op_sel:[0,0,0,1]", 8});
      } else if (has("scalef32") && !pk32 && (has("_fp4") || has("_f32_fp8") || has("_f32_bf8")) &&
                 !has("pk_f32_fp8") && !has("pk_f32_bf8")) {
        selectors.push_back({" op_sel:[1,1,0]", 3});
      } else if (has("scalef32_f16_")) {
        selectors.push_back({" op_sel:[0,1,1]", 10});
      } else if (has("scalef32_pk_") && !pk32) {
        selectors.push_back({" op_sel:[1,0,0]", 1});
      }
      for (const Selector& selector : selectors) {
        checks.push_back({name + " " + operands + selector.text,
                          [&op, selector, target, sources](Lanes* v, Lanes*) {
                            ConvertOperands o{.d = v,
                                              .src = {},
                                              .op_sel = static_cast<uint8_t>(selector.op_sel),
                                              .fp16_ovfl = false};
                            static Lanes copies[3][32];
                            for (int k = 0; k < sources; ++k) {
                              std::memcpy(copies[k], v[32 * (k + 1)],
                                          sizeof(Lanes) * op.src_regs[k]);
                              o.src[k] = copies[k];
                            }
                            op.run(o, target);
                          }});
      }
    }
    run_register_checks(checks, target);
  }
}

}  // namespace
}  // namespace weft::sim::test

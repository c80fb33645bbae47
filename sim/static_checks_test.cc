// What is found in instructions that ran, wherever they ran: wait states, registers that were not
// asked for, and bytes that are no instructions.
#include <string>

#include "sim/decode.h"
#include "sim/test_isa.h"
#include "sim/test_kernels.h"

namespace weft::sim::test {
namespace {

class StaticChecks : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (!have_assembler()) {
      GTEST_SKIP() << "clang-22 is not installed";
    }
  }

  /// What a wave's run of this text leads to.
  std::vector<Finding> run(const std::string& text, bool sanitize = true) {
    Device device(GetParam());
    const Check check{text, Kind::i32, Kind::i32, Kind::i32, As::bits, {}};
    const std::shared_ptr<Module> module =
        loaded(device, ".text\n" + kernel_text("planted", check), {"planted"});
    if (module == nullptr) {
      return {};
    }
    entry_ = module->kernel("planted")->info->entry;
    const uint64_t memory = device.allocate(4096).value();
    const uint64_t arguments[] = {memory, memory + 2304, ~uint64_t{0}};
    LaunchOptions options;
    options.sanitize = sanitize;
    const auto report = device.launch(*module->kernel("planted"), {.x = 1}, {.x = 64}, 0,
                                      std::as_bytes(std::span(arguments)), options);
    EXPECT_TRUE(report.ok());
    return report.ok() ? report.value().findings : std::vector<Finding>{};
  }
  /// The only finding's text, without that a failed test.
  std::string only(const std::string& text, FindingKind kind) {
    const std::vector<Finding> findings = run(text);
    if (findings.size() != 1) {
      ADD_FAILURE() << findings.size() << " findings in " << text;
      return {};
    }
    EXPECT_EQ(findings[0].kind, kind);
    EXPECT_EQ(findings[0].kernel, "planted");
    EXPECT_GT(findings[0].address, entry_);
    return findings[0].text();
  }

  uint64_t entry_ = 0;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_P(StaticChecks, MissingWaitStates) {
  const std::string text = only("v_readfirstlane_b32 s12, A\n s_nop 0\n v_add_u32 D, s12, B",
                                FindingKind::missing_states);
  EXPECT_TRUE(has(text, "`v_add_u32_e32 v8, s12, v4`")) << text;
  EXPECT_TRUE(has(text, "2 wait states are needed after `v_readfirstlane_b32 s12, v2` at 0x"))
      << text;
  EXPECT_TRUE(has(text, "there is 1 (in every wave)")) << text;
  EXPECT_TRUE(run("v_readfirstlane_b32 s12, A\n s_nop 1\n v_add_u32 D, s12, B").empty());
  EXPECT_TRUE(run("v_readfirstlane_b32 s12, A\n v_add_u32 D, s12, B", false).empty());
}

TEST_P(StaticChecks, OnlyOfWhatRuns) {
  EXPECT_TRUE(run("s_branch L1\n v_readfirstlane_b32 s12, A\n v_add_u32 D, s12, B\n L1:").empty());
  EXPECT_TRUE(run("v_mov_b32 D, 0\n s_branch L2\n v_mov_b32 v99, 0\n L2:").empty());
}

/// The kernels here ask for 32 VGPRs, no AGPRs and, with VCC and the like, for 48 SGPRs.
TEST_P(StaticChecks, RegistersBeyondTheAllocation) {
  const auto kind = FindingKind::beyond_allocation;
  EXPECT_TRUE(run("v_mov_b32 v31, 0\n s_mov_b32 s47, 0").empty());
  EXPECT_TRUE(has(only("v_mov_b32 v32, 0", kind), "v32 is not among the 32 VGPRs"));
  EXPECT_TRUE(has(only("v_mov_b64 v[30:31], 0\n v_mov_b64 v[34:35], 0", kind),
                  "v35 is not among the 32 VGPRs"));
  EXPECT_TRUE(has(only("v_accvgpr_write_b32 a0, 0", kind), "a0 is not among the 0 AGPRs"));
  EXPECT_TRUE(has(only("s_mov_b32 s48, 0", kind), "s48 is not among the 48 SGPRs"));
  EXPECT_TRUE(run("v_mov_b32 v32, 0", false).empty());
}

TEST_P(StaticChecks, BytesThatAreNoInstruction) {
  const auto kind = FindingKind::unknown_instruction;
  const std::string none = only(".long 0xffffffff\n", kind);
  EXPECT_TRUE(has(none, "in kernel planted, `.long 0xffffffff` at 0x")) << none;
  EXPECT_TRUE(has(none, "begins with the bytes ff ff ff ff")) << none;
  const bool is_gfx942 = GetParam() == Target::gfx942;
  const std::string other =
      only(is_gfx942 ? ".long 0x7e04b303\n" : ".long 0xd3be0000, 0x04020d04\n", kind);
  EXPECT_TRUE(has(other, is_gfx942 ? "gfx942 has no such instruction, but gfx950 has: v_permlane16"
                                   : "gfx950 has no such instruction, but gfx942 has: v_mfma_f32_"))
      << other;
  // What else a message looks at ends where an instruction wants a literal.
  const std::string cut =
      only(".long 0xffffffff, 0xbf800000, 0xbf800000, 0xbe8000ff, 0x12345678\n", kind);
  EXPECT_TRUE(has(cut, "begins with the bytes ff ff ff ff")) << cut;
  const std::string left_out = only("s_sethalt 1\n", kind);
  EXPECT_TRUE(has(left_out, "`s_sethalt 1`") && has(left_out, "leaves this instruction out"))
      << left_out;
}

TEST_P(StaticChecks, JumpsToNowhere) {
  const auto kind = FindingKind::unknown_instruction;
  const std::string jump = only("s_mov_b64 s[12:13], 36\n s_setpc_b64 s[12:13]\n", kind);
  EXPECT_TRUE(has(jump, "it jumps to 0x24, ")) << jump;
  const std::string branch = only("s_branch 0x7fff\n", kind);
  EXPECT_TRUE(has(branch, "it branches to 0x2")) << branch;
}

INSTANTIATE_TEST_SUITE_P(Targets, StaticChecks, testing::ValuesIn(cdna::kTargets), target_name);

}  // namespace
}  // namespace weft::sim::test

#include "arch/cdna/code_object.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "arch/cdna/embedded.h"

namespace weft::cdna {
namespace {

std::vector<std::byte> copy(const EmbeddedCode& code) {
  return {code.bytes.begin(), code.bytes.end()};
}

/// Tests of real code objects: a build without clang-22 has none.
class CodeObjects : public testing::Test {
 protected:
  void SetUp() override {
    if (embedded_code().empty()) {
      GTEST_SKIP() << "this build has no AMD kernels";
    }
  }
};

TEST_F(CodeObjects, AreOfBothTargets) {
  std::set<std::string_view> of[2];
  for (const EmbeddedCode& code : embedded_code()) {
    const auto parsed = CodeObject::parse(code.bytes, code.operation);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed->target(), code.target);
    EXPECT_FALSE(parsed->kernels().empty());
    of[static_cast<int>(code.target)].insert(code.operation);
    EXPECT_EQ(embedded_code(code.operation, code.target)->bytes.data(), code.bytes.data());
  }
  EXPECT_EQ(of[0], of[1]);
  EXPECT_EQ(embedded_code("no_such_operation", Target::gfx942), nullptr);
}

/// What a kernel keeps in memory that belongs in registers costs more than anything else it does.
TEST_F(CodeObjects, NeitherSpillNorUseScratch) {
  for (const EmbeddedCode& code : embedded_code()) {
    const auto parsed = CodeObject::parse(code.bytes, code.operation);
    ASSERT_TRUE(parsed.ok());
    for (const Kernel& kernel : parsed->kernels()) {
      SCOPED_TRACE(std::string(kernel.name) + " for " + std::string(name_of(code.target)));
      EXPECT_EQ(kernel.scratch_bytes, 0);
      EXPECT_EQ(kernel.vgpr_spills, 0);
      // These go to a vector register's lanes. A kernel that follows codes is allowed a few,
      // outside of its loops over weights; one that draws experts, as many again.
      const bool draws = kernel.name == "decode_experts" || kernel.name == "decode_mx";
      EXPECT_LE(kernel.sgpr_spills, draws ? 48 : kernel.name.starts_with("decode") ? 24 : 0);
      EXPECT_TRUE(kernel.name.starts_with(code.operation));
      ASSERT_EQ(kernel.arguments.size(), 1) << "a struct by value";
      EXPECT_EQ(kernel.arguments[0].kind, "by_value");
      EXPECT_GE(waves_per_simd(kernel, code.target, static_cast<int>(kernel.max_workgroup_threads)),
                1);
      EXPECT_EQ(parsed->kernel(kernel.name), &kernel);
    }
    EXPECT_FALSE(parsed->section(".text").bytes.empty());
    EXPECT_FALSE(parsed->section(".debug_line").bytes.empty());
    EXPECT_TRUE(parsed->section(".no_such").bytes.empty());
  }
}

TEST_F(CodeObjects, CutShortGiveASentence) {
  const std::vector<std::byte> whole = copy(embedded_code().front());
  std::vector<size_t> sizes{0, 1, 63, 64, 65, whole.size() - 1};
  for (size_t size = 0; size < whole.size(); size += 61) {
    sizes.push_back(size);
  }
  for (const size_t size : sizes) {
    const auto parsed = CodeObject::parse(std::span(whole).first(size), "cut.co");
    ASSERT_FALSE(parsed.ok()) << size;
    EXPECT_EQ(parsed.error().kind, ErrorKind::input);
    EXPECT_TRUE(parsed.error().message.starts_with("cut.co is no usable code object: "));
  }
}

/// Damage anywhere must neither crash (sanitizers see more) nor give kernels that lie.
TEST_F(CodeObjects, DamagedAreSafe) {
  std::mt19937 random(7);
  const std::vector<std::byte> whole = copy(embedded_code().front());
  int refused = 0;
  for (int i = 0; i < 20000; ++i) {
    std::vector<std::byte> damaged = whole;
    for (unsigned flips = 1 + random() % 4; flips > 0; --flips) {
      // Half of them among the headers and notes, where they hurt.
      const size_t reach = flips % 2 == 0 ? damaged.size() : 4096;
      damaged[random() % std::min(reach, damaged.size())] ^= std::byte(1U << random() % 8);
    }
    const auto parsed = CodeObject::parse(damaged, "damaged.co");
    refused += parsed.ok() ? 0 : 1;
    for (size_t k = 0; parsed.ok() && k < parsed->kernels().size(); ++k) {
      const Kernel& kernel = parsed->kernels()[k];
      EXPECT_LT(kernel.entry, parsed->image_bytes());
      EXPECT_LE(kernel.vgprs, kVectorRegisters);
      EXPECT_LE(kernel.max_workgroup_threads, kMaxWorkgroupThreads);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST_F(CodeObjects, OfAnotherProcessorSayWhich) {
  std::vector<std::byte> other = copy(embedded_code().front());
  other[48] = std::byte{0x3f};  // e_flags: gfx90a
  const auto parsed = CodeObject::parse(other, "other.co");
  ASSERT_FALSE(parsed.ok());
  EXPECT_NE(parsed.error().message.find("0x3f"), std::string::npos) << parsed.error().message;
  EXPECT_NE(parsed.error().message.find("gfx942"), std::string::npos);
}

TEST(CodeObject, OfAnotherKindSaysSo) {
  const std::string text = "#!/bin/sh\nexit 0\n";
  const auto parsed = CodeObject::parse(std::as_bytes(std::span(text)), "script");
  ASSERT_FALSE(parsed.ok());
  EXPECT_EQ(parsed.error().message,
            "script is no usable code object: its 17 bytes do not begin with an ELF header");
}

TEST(Occupancy, FollowsRegistersAndLds) {
  Kernel kernel;
  kernel.vgprs = 64;
  kernel.sgprs = 32;
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256), 8);
  kernel.vgprs = 128;  // 512 / 128
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256), 4);
  kernel.vgprs = 129;  // given in eights: 136
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256), 3);
  kernel.vgprs = 64;
  kernel.lds_bytes = 32768;  // two workgroups of four waves on four SIMDs
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256), 2);
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx950, 256), 4);  // 160 KiB
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256, 32768), 1);
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 256, 32769), 0);
  kernel.lds_bytes = 0;
  kernel.vgprs = 256;  // 16 waves do not fit 2 a SIMD
  EXPECT_EQ(waves_per_simd(kernel, Target::gfx942, 1024), 0);
}

}  // namespace
}  // namespace weft::cdna

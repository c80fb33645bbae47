// PTX written by hand, against what the manual says that it does.
#include "sim/hopper/ptx.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

namespace weft::ptx {
namespace {

constexpr const char* kHead = ".version 9.0\n.target sm_90a\n.address_size 64\n";

/// A kernel of one parameter, a pointer that is in %rd0; %r0 is the thread. The text may use
/// %r<64>, %rd<32>, %f<32>, %fd<16>, %h<16> (16 bits) and %p<16>.
std::string kernel(const std::string& body, const std::string& before = "") {
  return std::string(kHead) + before +
         ".visible .entry test(.param .u64 out)\n{\n"
         ".reg .b32 %r<64>;\n.reg .b64 %rd<32>;\n.reg .f32 %f<32>;\n.reg .f64 %fd<16>;\n"
         ".reg .b16 %h<16>;\n.reg .pred %p<16>;\n"
         "ld.param.u64 %rd0, [out];\ncvta.to.global.u64 %rd0, %rd0;\nmov.u32 %r0, %tid.x;\n" +
         body + "\nret;\n}\n";
}

Result<Counts> launch(const std::string& text, void* out, const Launch& how, int seconds = 20) {
  auto module = Module::parse(text, "test.ptx");
  if (!module.ok()) {
    return module.error();
  }
  const void* arguments[] = {&out};
  return run(*module, "test", how, arguments, {.time = std::chrono::seconds(seconds)});
}

/// Runs a body of which every thread stores %r1 at its place.
std::vector<uint32_t> words(const std::string& body, uint32_t threads = 32, uint32_t ctas = 1,
                            const std::string& before = "") {
  std::vector<uint32_t> out(static_cast<size_t>(threads) * ctas, 0xdeadbeef);
  const auto done =
      launch(kernel(body + "mov.u32 %r60, %ctaid.x;\nmov.u32 %r61, %ntid.x;\n"
                           "mad.lo.s32 %r62, %r60, %r61, %r0;\nmul.wide.u32 %rd30, %r62, 4;\n"
                           "add.s64 %rd30, %rd30, %rd0;\nst.global.u32 [%rd30], %r1;\n",
                    before),
             out.data(), {.grid = {ctas, 1, 1}, .block = {threads, 1, 1}});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return out;
}

TEST(Ptx, ThreadsStoreTheirNumbers) {
  const auto out = words("mov.u32 %r1, %r0;\n", 96, 3);
  for (uint32_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], i % 96);
  }
}

TEST(Ptx, LoopsThatDivergeMeetAgain) {
  const auto out = words(
      "mov.u32 %r1, 0;\nmov.u32 %r2, %r0;\n"
      "$loop:\nsetp.eq.u32 %p0, %r2, 0;\n@%p0 bra $done;\nadd.u32 %r1, %r1, %r2;\n"
      "sub.u32 %r2, %r2, 1;\nbra.uni $loop;\n$done:\n"
      "shfl.sync.bfly.b32 %r3, %r1, 1, 31, -1;\nadd.u32 %r1, %r1, %r3;\n");
  for (uint32_t i = 0; i < 32; ++i) {
    const uint32_t j = i ^ 1;
    EXPECT_EQ(out[i], i * (i + 1) / 2 + j * (j + 1) / 2);
  }
}

TEST(Ptx, BarriersOrderSharedMemory) {
  const auto out = words(
      ".shared .align 4 .b8 slots[512];\nmov.u32 %r2, slots;\nshl.b32 %r3, %r0, 2;\n"
      "add.u32 %r4, %r2, %r3;\nst.shared.u32 [%r4], %r0;\nbar.sync 0;\n"
      "xor.b32 %r5, %r3, 508;\nadd.u32 %r5, %r5, %r2;\nld.shared.u32 %r1, [%r5];\n",
      128);
  for (uint32_t i = 0; i < 128; ++i) {
    EXPECT_EQ(out[i], 127 - i);
  }
}

TEST(Ptx, SpinsOfOneThreadDoNotStarveAnother) {
  // Thread 1 spins for what thread 0 stores behind the loop.
  const auto out = words(
      ".shared .align 4 .u32 flag;\nsetp.eq.u32 %p0, %r0, 0;\n@%p0 st.shared.u32 [flag], 0;\n"
      "bar.sync 0;\n@%p0 bra $behind;\n"
      "$spin:\nld.volatile.shared.u32 %r1, [flag];\nsetp.eq.u32 %p1, %r1, 0;\n@%p1 bra $spin;\n"
      "bra $end;\n$behind:\nmov.u32 %r1, 7;\nst.volatile.shared.u32 [flag], %r1;\n$end:\n");
  EXPECT_EQ(out, std::vector<uint32_t>(32, 7));
}

TEST(Ptx, GridsWaitForOneAnother) {
  const auto out = words(
      "ld.acquire.gpu.global.u32 %r1, [counter];\n"  // looked at once before
      "mov.u32 %r3, %nctaid.x;\n"
      "setp.ne.u32 %p0, %r0, 0;\n@%p0 bra $wait;\n"
      "red.release.gpu.global.add.u32 [counter], 1;\n$wait:\n"
      "$spin:\nld.acquire.gpu.global.u32 %r1, [counter];\nsetp.lt.u32 %p1, %r1, %r3;\n"
      "@%p1 bra $spin;\n",
      64, 5, ".global .align 4 .u32 counter = 0;\n");
  EXPECT_EQ(out, std::vector<uint32_t>(320, 5));
}

TEST(Ptx, WhoWaitsForNobodyIsToldApart) {
  std::vector<uint32_t> out(64);
  const auto done =
      launch(kernel("setp.gt.u32 %p0, %r0, 31;\n@%p0 bra $end;\nbar.sync 1, 64;\n$end:\n"),
             out.data(), {.block = {64, 1, 1}});
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("bar.sync"), std::string::npos) << done.error().message;
}

TEST(Ptx, CallsCopyArguments) {
  const auto out = words(
      "{\n.param .b32 given;\nst.param.b32 [given+0], %r0;\n.param .b32 back;\n"
      "call.uni (back), square, (given);\nld.param.b32 %r1, [back+0];\n}\n",
      32, 1,
      ".func (.param .b32 result) square(.param .b32 x);\n"
      ".func (.param .b32 result) square(.param .b32 x)\n{\n.reg .b32 %r<4>;\n"
      "ld.param.u32 %r1, [x];\nmul.lo.s32 %r2, %r1, %r1;\nst.param.b32 [result+0], "
      "%r2;\nret;\n}\n");
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i], i * i);
  }
}

TEST(Ptx, UnknownInstructionsAreNamed) {
  const auto module = Module::parse(kernel("frobnicate.u32 %r1, %r2;\n"), "test.ptx");
  ASSERT_FALSE(module.ok());
  EXPECT_NE(module.error().message.find("frobnicate.u32"), std::string::npos);
  EXPECT_NE(module.error().message.find("line 15"), std::string::npos) << module.error().message;
}

}  // namespace
}  // namespace weft::ptx

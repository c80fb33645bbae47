// PTX written by hand, against what the manual says that it does.
#include "sim/hopper/ptx.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "sim/hopper/tensor_map.h"

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

constexpr const char* kSource = ".global .align 16 .u32 source[4] = {1, 2, 3, 4};\n";

/// Runs a body of which every thread stores %r1 at its place.
std::vector<uint32_t> words(const std::string& body, uint32_t threads = 32, uint32_t ctas = 1,
                            const std::string& before = "", Landing copies = Landing::either) {
  std::vector<uint32_t> out(static_cast<size_t>(threads) * ctas, 0xdeadbeef);
  const auto done =
      launch(kernel(body + "mov.u32 %r60, %ctaid.x;\nmov.u32 %r61, %ntid.x;\n"
                           "mad.lo.s32 %r62, %r60, %r61, %r0;\nmul.wide.u32 %rd30, %r62, 4;\n"
                           "add.s64 %rd30, %rd30, %rd0;\nst.global.u32 [%rd30], %r1;\n",
                    before),
             out.data(), {.grid = {ctas, 1, 1}, .block = {threads, 1, 1}, .copies = copies});
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

TEST(Ptx, ProductsAndSumsAreOneInstruction) {
  // 1 + 2^-12, whose square has 2^-24 more than a register holds.
  const auto difference = [](const std::string& body) {
    return std::bit_cast<float>(
        words(".reg .f32 %x<9>;\nmov.f32 %x0, 0f3F800800;\nmul.rn.f32 %x1, %x0, %x0;\n" + body +
              "mov.b32 %r1, %x5;\n")[0]);
  };
  const float lost = 0x1p-24f;
  EXPECT_EQ(difference("mul.f32 %x2, %x0, %x0;\nsub.f32 %x5, %x2, %x1;\n"), lost);
  EXPECT_EQ(difference("mul.f32 %x2, %x0, %x0;\nsub.f32 %x5, %x1, %x2;\n"), -lost);
  EXPECT_EQ(difference("mul.f32 %x2, %x0, %x0;\nneg.f32 %x3, %x1;\nadd.f32 %x5, %x3, %x2;\n"),
            lost);
  // Not where a rounding is said, a factor is another by then, or others may come.
  for (const char* body :
       {"mul.rn.f32 %x2, %x0, %x0;\nsub.f32 %x5, %x2, %x1;\n",
        "mul.f32 %x2, %x0, %x0;\nsub.rn.f32 %x5, %x2, %x1;\n",
        "mul.f32 %x2, %x0, %x0;\nmov.f32 %x0, 0f40000000;\nsub.f32 %x5, %x2, %x1;\n",
        "mul.f32 %x2, %x0, %x0;\n$here:\nsub.f32 %x5, %x2, %x1;\n"}) {
    EXPECT_EQ(difference(body), 0) << body;
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

TEST(Ptx, UnknownInstructionsAreNamedWhereTheyAreExecuted) {
  std::vector<uint32_t> out(32);
  const auto passed =
      launch(kernel("setp.eq.u32 %p0, %r0, %r0;\n@%p0 bra $on;\nfrobnicate.u32 %r1, %r2;\n$on:\n"),
             out.data(), {.block = {32, 1, 1}});
  EXPECT_TRUE(passed.ok()) << passed.error().message;
  const auto done = launch(kernel("frobnicate.u32 %r1, %r2;\n"), out.data(), {.block = {32, 1, 1}});
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("frobnicate.u32"), std::string::npos);
  EXPECT_NE(done.error().message.find("line 15"), std::string::npos) << done.error().message;
}

/// Each thread of one warp reads an element of `in` to %r2 (and of `b`, `c` to %r3, %r4) and stores
/// %r1.
std::vector<uint32_t> of_values(const std::string& body, const std::vector<uint32_t>& a,
                                std::vector<uint32_t> b = {}, std::vector<uint32_t> c = {}) {
  std::vector<uint32_t> memory(128);
  b.resize(32);
  c.resize(32);
  std::copy_n(a.begin(), std::min<size_t>(32, a.size()), memory.begin());
  std::copy_n(b.begin(), 32, memory.begin() + 32);
  std::copy_n(c.begin(), 32, memory.begin() + 64);
  const auto done = launch(
      kernel("mul.wide.u32 %rd1, %r0, 4;\nadd.s64 %rd1, %rd1, %rd0;\nld.global.u32 %r2, [%rd1];\n"
             "ld.global.u32 %r3, [%rd1+128];\nld.global.u32 %r4, [%rd1+256];\n"
             "mov.b32 %f2, %r2;\nmov.b32 %f3, %r3;\nmov.b32 %f4, %r4;\n" +
             body + "st.global.u32 [%rd1+384], %r1;\n"),
      memory.data(), {.block = {32, 1, 1}});
  EXPECT_TRUE(done.ok()) << done.error().message;
  return {memory.begin() + 96, memory.end()};
}
uint32_t bits(float x) { return std::bit_cast<uint32_t>(x); }

TEST(PtxInteger, BitsAndFields) {
  const std::vector<uint32_t> a = {0, 1, 0x80000000u, 0xffffffffu, 0x12345678u, 0x00f0u};
  const auto top = of_values("bfind.shiftamt.u32 %r1, %r2;\n", a);
  const auto popc = of_values("popc.b32 %r1, %r2;\n", a);
  const auto brev = of_values("brev.b32 %r1, %r2;\n", a);
  const auto field = of_values("bfe.s32 %r1, %r2, 4, 8;\n", a);
  const auto prmt = of_values("prmt.b32 %r1, %r2, 0xaabbccdd, 0x7f31;\n", a);
  const auto lop = of_values("lop3.b32 %r1, %r2, 0x0ff0, 0x00ff, 0xe8;\n", a);
  for (size_t i = 0; i < a.size(); ++i) {
    const uint32_t x = a[i];
    EXPECT_EQ(top[i], x == 0 ? ~0u : static_cast<uint32_t>(std::countl_zero(x)));
    EXPECT_EQ(popc[i], static_cast<uint32_t>(std::popcount(x)));
    uint32_t reversed = 0;
    for (int b = 0; b < 32; ++b) {
      reversed |= (x >> b & 1) << (31 - b);
    }
    EXPECT_EQ(brev[i], reversed);
    EXPECT_EQ(field[i], static_cast<uint32_t>(static_cast<int32_t>(x << 20) >> 24));
    const uint32_t b3 = 0xaa;
    const uint32_t sign = 0xff;  // of byte 7, which f names with its sign wanted
    EXPECT_EQ(prmt[i], (x >> 8 & 0xff) | (x >> 24) << 8 | sign << 16 | b3 << 24);
    EXPECT_EQ(lop[i], (x & 0x0ff0) | (x & 0x00ff) | (0x0ff0 & 0x00ff));  // the majority
  }
}

TEST(PtxInteger, CarriesGoOn) {
  const auto high = of_values("add.cc.u32 %r5, %r2, %r3;\naddc.u32 %r1, 0, 0;\n",
                              {0xffffffffu, 1, 0x80000000u}, {1, 1, 0x80000000u});
  EXPECT_EQ((std::vector<uint32_t>(high.begin(), high.begin() + 3)),
            (std::vector<uint32_t>{1, 0, 1}));
  const auto borrow = of_values("sub.cc.u32 %r5, %r2, %r3;\nsubc.u32 %r1, 5, 0;\n", {0, 3}, {1, 3});
  EXPECT_EQ(borrow[0], 4u);
  EXPECT_EQ(borrow[1], 5u);
}

TEST(PtxFloat, RoundingIsAsAsked) {
  const std::vector<uint32_t> a = {bits(1.0F), bits(-1.0F), bits(0x1p-126F)};
  const std::vector<uint32_t> b = {bits(0x1p-30F), bits(0x1p-30F), bits(0.5F)};
  const auto up = of_values("add.rp.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", a, b);
  const auto down = of_values("add.rm.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", a, b);
  const auto near = of_values("add.rn.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", a, b);
  EXPECT_EQ(up[0], bits(std::nextafter(1.0F, 2.0F)));
  EXPECT_EQ(down[0], bits(1.0F));
  EXPECT_EQ(near[0], bits(1.0F));
  EXPECT_EQ(up[1], bits(std::nextafter(-1.0F, 0.0F)));
  EXPECT_EQ(down[1], bits(-1.0F));
  const auto kept = of_values("mul.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", a, b);
  const auto flushed = of_values("mul.ftz.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", a, b);
  EXPECT_EQ(kept[2], bits(0x1p-127F));
  EXPECT_EQ(flushed[2], 0u);
  // A product is not rounded before it is added to.
  const auto fused = of_values("fma.rn.f32 %f1, %f2, %f3, %f4;\nmov.b32 %r1, %f1;\n",
                               {bits(1 + 0x1p-12F)}, {bits(1 - 0x1p-12F)}, {bits(-1.0F)});
  EXPECT_EQ(fused[0], bits(-0x1p-24F));
  const auto nan = of_values("add.f32 %f1, %f2, %f3;\nmov.b32 %r1, %f1;\n", {0xffc12345u}, {0});
  EXPECT_EQ(nan[0], 0x7fffffffu);
  const auto saturated = of_values("cvt.sat.f32.f32 %f1, %f2;\nmov.b32 %r1, %f1;\n",
                                   {bits(2.0F), bits(-1.0F), 0x7fc00000u, bits(0.25F)});
  EXPECT_EQ((std::vector<uint32_t>(saturated.begin(), saturated.begin() + 4)),
            (std::vector<uint32_t>{bits(1.0F), 0, 0, bits(0.25F)}));
}

TEST(PtxFloat, ComparisonsKnowNaN) {
  const uint32_t nan = 0x7fc00000u;
  const std::vector<uint32_t> a = {bits(1.0F), nan, bits(2.0F)};
  const std::vector<uint32_t> b = {bits(2.0F), bits(1.0F), bits(2.0F)};
  const auto of = [&](const std::string& op) {
    const auto out =
        of_values("setp." + op + ".f32 %p1, %f2, %f3;\nselp.u32 %r1, 1, 0, %p1;\n", a, b);
    return std::vector<uint32_t>(out.begin(), out.begin() + 3);
  };
  using V = std::vector<uint32_t>;
  EXPECT_EQ(of("lt"), (V{1, 0, 0}));
  EXPECT_EQ(of("ltu"), (V{1, 1, 0}));
  EXPECT_EQ(of("ne"), (V{1, 0, 0}));
  EXPECT_EQ(of("neu"), (V{1, 1, 0}));
  EXPECT_EQ(of("equ"), (V{0, 1, 1}));
  EXPECT_EQ(of("num"), (V{1, 0, 1}));
  EXPECT_EQ(of("nan"), (V{0, 1, 0}));
}

TEST(PtxConvert, RoundsOnceAndSaturates) {
  // Halfway cases of bf16 go to even; a bit below decides otherwise.
  const auto pair = of_values("cvt.rn.bf16x2.f32 %r1, %f2, %f3;\n",
                              {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x7fc00001u},
                              {0x3f800000u, 0xbf800000u, 0x7f7fffffu, 0});
  EXPECT_EQ(pair[0], 0x3f803f80u);
  EXPECT_EQ(pair[1], 0x3f82bf80u);
  EXPECT_EQ(pair[2], 0x3f817f80u);
  EXPECT_EQ(pair[3], 0x7fff0000u);
  const auto whole =
      of_values("cvt.rzi.s32.f32 %r1, %f2;\n", {bits(-1.9F), bits(3e9F), bits(-3e9F), 0x7fc00000u});
  EXPECT_EQ((std::vector<uint32_t>(whole.begin(), whole.begin() + 4)),
            (std::vector<uint32_t>{0xffffffffu, 0x7fffffffu, 0x80000000u, 0}));
  const auto even = of_values("cvt.rni.s32.f32 %r1, %f2;\n", {bits(2.5F), bits(3.5F)});
  EXPECT_EQ(even[0], 2u);
  EXPECT_EQ(even[1], 4u);
  // 2^53 + 1 is rounded to f32 in one step.
  const auto wide = of_values(
      "mov.u64 %rd2, 0x20000020000001;\ncvt.rn.f32.u64 %f1, %rd2;\nmov.b32 %r1, %f1;\n", {0});
  EXPECT_EQ(wide[0], bits(static_cast<float>(0x20000020000001ull)));
  const auto small =
      of_values("cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f3;\ncvt.u32.u16 %r1, %h1;\n",
                {bits(1000.0F)}, {bits(-0.5F)});
  EXPECT_EQ(small[0], 0x7eb0u);
}

TEST(PtxWarp, ShufflesKnowTheirSegments) {
  const auto out = words(
      "shfl.sync.up.b32 %r1|%p1, %r0, 1, 0x1800, -1;\nselp.u32 %r2, 100, 0, %p1;\n"
      "add.u32 %r1, %r1, %r2;\n");  // segments of 8
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i], i % 8 == 0 ? i : i - 1 + 100);
  }
  const auto down = words("shfl.sync.down.b32 %r1, %r0, 4, 0x1f, -1;\n");
  const auto index = words("shfl.sync.idx.b32 %r1, %r0, 5, 0x181f, -1;\n");
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(down[i], i + 4 < 32 ? i + 4 : i);
    EXPECT_EQ(index[i], i / 8 * 8 + 5);
  }
}

TEST(PtxWarp, VotesOfPartsWaitForTheirMembers) {
  // The odd lanes come to the vote by another way than the even ones.
  const auto out = words(
      "and.b32 %r2, %r0, 1;\nsetp.eq.u32 %p1, %r2, 1;\nsetp.gt.u32 %p2, %r0, 15;\n"
      "mov.u32 %r3, 0x55555555;\n@%p1 mov.u32 %r3, 0xaaaaaaaa;\n@%p1 bra $odd;\nbra.uni $vote;\n"
      "$odd:\nnanosleep.u32 20;\n$vote:\nvote.sync.ballot.b32 %r1, %p2, %r3;\n"
      "bar.warp.sync -1;\n");
  for (uint32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(out[i], (i % 2 == 0 ? 0x55550000u : 0xaaaa0000u));
  }
}

TEST(PtxBarrier, PhasesCountArrivalsAndBytes) {
  // Thread 0 expects 16 bytes and copies them; all wait for the phase of parity 0, and the next one
  // has not ended.
  const auto out = words(
      ".shared .align 16 .b8 tile[16];\n.shared .align 8 .b64 bar;\n"
      "mov.u32 %r2, bar;\nmov.u32 %r3, tile;\nsetp.eq.u32 %p1, %r0, 0;\n"
      "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
      "mov.u64 %rd2, source;\n"
      "@%p1 mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 16;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r2], 1;\n"  // the phase before
      "@%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 16, "
      "[%r2];\n"
      "$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra $wait;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r2], 1;\n"
      "ld.shared.u32 %r1, [tile+8];\n@%p3 add.u32 %r1, %r1, 100;\n@%p4 add.u32 %r1, %r1, 1000;\n",
      64, 1, kSource);
  EXPECT_EQ(out, std::vector<uint32_t>(64, 1003));
}

TEST(PtxCopies, OfGroupsLandWhenTheyAreWaitedFor) {
  // Two groups of a copy each; a look after waiting for all but one, for none, and for both.
  const auto look = [](const std::string& wait, Landing copies) {
    return words(
        ".shared .align 16 .b8 tile[32];\nmov.u32 %r2, tile;\nmov.u64 %rd2, source;\n"
        "mov.u32 %r3, 70;\nst.shared.u32 [tile], %r3;\nst.shared.u32 [tile+16], %r3;\n"
        "cp.async.cg.shared.global [%r2], [%rd2], 16;\ncp.async.commit_group;\n"
        "cp.async.ca.shared.global [%r2+16], [%rd2], 4;\ncp.async.commit_group;\n" +
            wait +
            "ld.shared.u32 %r4, [tile];\nld.shared.u32 %r5, [tile+16];\n"
            "mad.lo.u32 %r1, %r4, 100, %r5;\n",
        1, 1, kSource, copies)[0];
  };
  EXPECT_EQ(look("", Landing::late), 7070);
  EXPECT_EQ(look("cp.async.wait_group 2;\n", Landing::late), 7070);
  EXPECT_EQ(look("cp.async.wait_group 1;\n", Landing::late), 170);
  EXPECT_EQ(look("", Landing::soon), 101);
  for (const Landing copies : {Landing::either, Landing::soon, Landing::late}) {
    EXPECT_EQ(look("cp.async.wait_group 0;\n", copies), 101);
    EXPECT_EQ(look("cp.async.wait_all;\n", copies), 101);
  }
}

TEST(PtxCopies, ThatABarrierCountsLandWhenSomebodyLooksAtIt) {
  const auto look = [](const std::string& wait, Landing copies) {
    return words(
        ".shared .align 16 .b8 tile[16];\n.shared .align 8 .b64 bar;\n"
        "mov.u32 %r2, bar;\nmov.u32 %r3, tile;\nmov.u32 %r4, 70;\nst.shared.u32 [tile], %r4;\n"
        "mbarrier.init.shared::cta.b64 [%r2], 1;\nmov.u64 %rd2, source;\n"
        "mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 _, [%r2], 16;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd2], 16, "
        "[%r2];\n" +
            wait + "ld.shared.u32 %r1, [tile];\n",
        1, 1, kSource, copies)[0];
  };
  EXPECT_EQ(look("", Landing::late), 70);
  EXPECT_EQ(look("", Landing::soon), 1);
  for (const Landing copies : {Landing::either, Landing::soon, Landing::late}) {
    EXPECT_EQ(look("$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n"
                   "@!%p2 bra $wait;\n",
                   copies),
              1);
  }
}

TEST(PtxCopies, FromSharedMemoryReadItUntilTheyAreWaitedFor) {
  // What is copied out is overwritten, before or after a wait.
  const auto copied = [](const std::string& before, const std::string& after, Landing copies) {
    return words(
        ".shared .align 16 .b8 tile[16];\nmov.u32 %r3, tile;\nmov.u64 %rd2, source;\n"
        "mov.u32 %r4, 70;\nst.shared.u32 [tile], %r4;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r3], 16;\n"
        "cp.async.bulk.commit_group;\n" +
            before + "mov.u32 %r4, 80;\nst.shared.u32 [tile], %r4;\n" + after +
            "ld.global.u32 %r1, [%rd2];\n",
        1, 1, kSource, copies)[0];
  };
  const std::string wait = "cp.async.bulk.wait_group 0;\n";
  EXPECT_EQ(copied("", wait, Landing::late), 80);
  EXPECT_EQ(copied("", wait, Landing::soon), 70);
  EXPECT_EQ(copied("", "", Landing::late), 1);
  for (const Landing copies : {Landing::either, Landing::soon, Landing::late}) {
    EXPECT_EQ(copied("cp.async.bulk.wait_group.read 0;\n", wait, copies), 70);
  }
}

TEST(PtxCopies, OperandsOfAProductStayUntilItIsWaitedFor) {
  const auto done = [](const std::string& before, const std::string& after) {
    std::vector<uint32_t> out(128);
    return launch(
        kernel(".shared .align 128 .b8 tile[4096];\nmov.u32 %r2, tile;\nshr.u32 %r2, %r2, 4;\n"
               "cvt.u64.u32 %rd2, %r2;\nor.b64 %rd2, %rd2, 0x1000080000;\n"
               "add.s64 %rd3, %rd2, 128;\nsetp.ne.u32 %p3, %r0, %r0;\n"
               "wgmma.fence.sync.aligned;\n"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, "
               "%rd3, %p3, 1, 1, 0, 0;\nwgmma.commit_group.sync.aligned;\n" +
               before + "wgmma.wait_group.sync.aligned 0;\n" + after),
        out.data(), {.block = {128, 1, 1}});
  };
  EXPECT_TRUE(done("", "st.shared.u32 [tile+4], %r0;\n").ok());
  for (const char* operand :
       {"st.shared.u32 [tile+4], %r0;\n", "st.shared.u32 [tile+2048], %r0;\n"}) {
    const auto overwritten = done(operand, "");
    ASSERT_FALSE(overwritten.ok());
    EXPECT_NE(overwritten.error().message.find("has been overwritten"), std::string::npos);
  }
  // A group of its own, for which nobody waits.
  EXPECT_TRUE(done("wgmma.wait_group.sync.aligned 1;\n", "").ok());
}

TEST(PtxBarrier, ASecondArrivalTooManyIsAFault) {
  std::vector<uint32_t> out(32);
  const auto done =
      launch(kernel(".shared .align 8 .b64 bar;\nmov.u32 %r2, bar;\nsetp.eq.u32 %p1, %r0, 0;\n"
                    "@%p1 mbarrier.init.shared::cta.b64 [%r2], 2;\n"
                    "mbarrier.arrive.shared::cta.b64 _, [%r2], 3;\n"),
             out.data(), {.block = {32, 1, 1}});
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("more often than it expects"), std::string::npos);
}

TEST(PtxBarrier, ASpinThatNobodyEndsIsTold) {
  std::vector<uint32_t> out(32);
  const auto done = launch(
      kernel(".shared .align 8 .b64 bar;\nmov.u32 %r2, bar;\nsetp.eq.u32 %p1, %r0, 0;\n"
             "@%p1 mbarrier.init.shared::cta.b64 [%r2], 2;\nbar.sync 0;\n"
             "$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra $wait;\n"),
      out.data(), {.block = {32, 1, 1}}, 1);
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("still running"), std::string::npos);
  EXPECT_NE(done.error().message.find("line"), std::string::npos);
}

TEST(PtxMemory, SharedMemoryHasBounds) {
  std::vector<uint32_t> out(32);
  for (const char* access : {"ld.shared.u32 %r1, [slots+128];\n", "st.shared.u32 [slots-4], %r0;\n",
                             "ld.shared.u32 %r1, [slots+2];\n"}) {
    const auto done = launch(kernel(std::string(".shared .align 4 .b8 slots[128];\n") + access),
                             out.data(), {.block = {32, 1, 1}});
    ASSERT_FALSE(done.ok()) << access;
    EXPECT_NE(done.error().message.find("thread (0, 0, 0)"), std::string::npos);
  }
}

TEST(PtxMemory, AtomicsCountEveryThread) {
  const auto out = words(
      ".shared .align 4 .u32 sum;\nsetp.eq.u32 %p1, %r0, 0;\n@%p1 st.shared.u32 [sum], 0;\n"
      "bar.sync 0;\natom.shared.add.u32 %r2, [sum], %r0;\nbar.sync 0;\nld.shared.u32 %r1, [sum];\n",
      96);
  EXPECT_EQ(out, std::vector<uint32_t>(96, 95 * 96 / 2));
}

TEST(PtxMemory, ClustersWriteTheirNeighbours) {
  std::vector<uint32_t> out(64);
  const auto done = launch(
      kernel(
          ".shared .align 4 .u32 slots[32];\nmov.u32 %r2, slots;\nmov.u32 %r3, %cluster_ctarank;\n"
          "xor.b32 %r4, %r3, 1;\nmapa.shared::cluster.u32 %r5, %r2, %r4;\nshl.b32 %r6, %r0, 2;\n"
          "add.u32 %r5, %r5, %r6;\nmad.lo.s32 %r7, %r3, 100, %r0;\n"
          "st.shared::cluster.u32 [%r5], %r7;\nbarrier.cluster.arrive.release.aligned;\n"
          "barrier.cluster.wait.acquire.aligned;\nadd.u32 %r2, %r2, %r6;\n"
          "ld.shared.u32 %r1, [%r2];\nshl.b32 %r8, %r3, 7;\nadd.u32 %r8, %r8, %r6;\n"
          "cvt.u64.u32 %rd1, %r8;\nadd.s64 %rd1, %rd1, %rd0;\nst.global.u32 [%rd1], %r1;\n"),
      out.data(), {.grid = {2, 1, 1}, .block = {32, 1, 1}, .cluster = 2});
  ASSERT_TRUE(done.ok()) << done.error().message;
  for (uint32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i], (i < 32 ? 100u : 0u) + i % 32);
  }
}

TEST(PtxMatrix, ProductsHaveTheManualsLayout) {
  // A (16 x 16) has i + 2 k, B (16 x 8) k - j: lanes give their elements by the manual's formulas.
  std::vector<float> out(128);
  std::string body;
  const auto element = [&](const std::string& target, const std::string& value) {
    body += value + "cvt.rn.f32.s32 %f9, %r9;\ncvt.rn.bf16.f32 " + target + ", %f9;\n";
  };
  body += "shr.u32 %r20, %r0, 2;\nand.b32 %r21, %r0, 3;\nshl.b32 %r21, %r21, 1;\n";
  for (int r = 0; r < 4; ++r) {
    for (int e = 0; e < 2; ++e) {
      element("%h" + std::to_string(e),
              "add.s32 %r8, %r20, " + std::to_string(8 * (r % 2)) + ";\nadd.s32 %r7, %r21, " +
                  std::to_string(8 * (r / 2) + e) + ";\nmad.lo.s32 %r9, %r7, 2, %r8;\n");
    }
    body += "mov.b32 %r" + std::to_string(30 + r) + ", {%h0, %h1};\n";
  }
  for (int r = 0; r < 2; ++r) {
    for (int e = 0; e < 2; ++e) {
      element("%h" + std::to_string(e),
              "add.s32 %r7, %r21, " + std::to_string(8 * r + e) + ";\nsub.s32 %r9, %r7, %r20;\n");
    }
    body += "mov.b32 %r" + std::to_string(34 + r) + ", {%h0, %h1};\n";
  }
  body +=
      "mov.f32 %f1, 0f3F800000;\n"
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f4,%f5,%f6,%f7}, "
      "{%r30,%r31,%r32,%r33}, {%r34,%r35}, {%f1,%f1,%f1,%f1};\n"
      "mul.wide.u32 %rd1, %r0, 16;\nadd.s64 %rd1, %rd1, %rd0;\n"
      "st.global.v4.f32 [%rd1], {%f4,%f5,%f6,%f7};\n";
  const auto done = launch(kernel(body), out.data(), {.block = {32, 1, 1}});
  ASSERT_TRUE(done.ok()) << done.error().message;
  for (int lane = 0; lane < 32; ++lane) {
    for (int r = 0; r < 4; ++r) {
      const int i = lane / 4 + 8 * (r / 2);
      const int j = lane % 4 * 2 + r % 2;
      float sum = 1;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<float>((i + 2 * k) * (k - j));
      }
      EXPECT_EQ(out[static_cast<size_t>(lane) * 4 + static_cast<size_t>(r)], sum) << i << ", " << j;
    }
  }
}

TEST(Ptx, LargeGridsTakeTurns) {
  std::vector<uint32_t> out(1);
  const auto done = launch(kernel("setp.eq.u32 %p1, %r0, 0;\n@%p1 red.global.add.u32 [%rd0], 1;\n"),
                           out.data(), {.grid = {1000, 3, 1}, .block = {32, 1, 1}});
  ASSERT_TRUE(done.ok()) << done.error().message;
  EXPECT_EQ(out[0], 3000u);
}

TEST(Ptx, TrapsNameThread) {
  std::vector<uint32_t> out(64);
  const auto done =
      launch(kernel("setp.eq.u32 %p1, %r0, 37;\n@%p1 trap;\n"), out.data(), {.block = {64, 1, 1}});
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("thread (37, 0, 0)"), std::string::npos)
      << done.error().message;
}

/// Tiles of 64 and 16 rows of 64 bf16 (a row is 128 bytes, swizzled), loaded through maps, and the
/// product of a warpgroup over the first 32 of k: d[i][j] of thread and register as the manual
/// says. `turned`: a row of A's tile is one of k.
void multiply_what_maps_load(bool turned) {
  constexpr int kRows = 60;  // of the tensor: the tile's last rows are zeros
  struct Memory {
    TensorMap a, b;
    std::array<std::array<uint16_t, 64>, 64> a_rows{}, b_rows{};
    std::array<float, 128 * 8> out{};
  };
  alignas(64) static Memory memory;
  const auto code = [](int x) {
    return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(x)) >> 16);
  };
  for (int i = 0; i < 64; ++i) {
    for (int k = 0; k < 64; ++k) {
      memory.a_rows[static_cast<size_t>(turned ? k : i)][static_cast<size_t>(turned ? i : k)] =
          code((i * 7 + k * 3) % 11 - 5);
      memory.b_rows[static_cast<size_t>(i)][static_cast<size_t>(k)] = code((i * 5 + k) % 7 - 3);
    }
  }
  memory.a = {.dimensions = 2,
              .element_bytes = 2,
              .swizzle_bytes = 128,
              .address = reinterpret_cast<uint64_t>(memory.a_rows.data()),
              .size = {64, kRows, 1},
              .stride = {2, 128, 0},
              .box = {64, 64, 1}};
  memory.b = memory.a;
  memory.b.address = reinterpret_cast<uint64_t>(memory.b_rows.data());
  memory.b.box = {64, 16, 1};
  const std::string major = turned ? "1, 0;\n" : "0, 0;\n";
  const std::string next = turned ? "128;\n" : "2;\n";  // 16 rows, or 32 bytes of each
  const std::string load =
      "@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes ";
  const auto done = launch(
      kernel(".shared .align 1024 .b8 a[8192];\n.shared .align 1024 .b8 b[2048];\n"
             ".shared .align 8 .b64 bar;\n.reg .f32 %d<8>;\n"
             "mov.u32 %r2, bar;\nmov.u32 %r3, a;\nmov.u32 %r4, b;\nsetp.eq.u32 %p1, %r0, 0;\n"
             "@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;\nbar.sync 0;\n"
             "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 10240;\n"
             "mov.u32 %r9, 0;\n" +
             std::string("add.s64 %rd2, %rd0, ") + std::to_string(offsetof(Memory, b)) + ";\n" +
             load + "[%r3], [%rd0, {%r9, %r9}], [%r2];\n" + load +
             "[%r4], [%rd2, {%r9, %r9}], [%r2];\n"
             "$wait:\nmbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0;\n@!%p2 bra $wait;\n"
             "shr.u32 %r5, %r3, 4;\nshr.u32 %r6, %r4, 4;\ncvt.u64.u32 %rd3, %r5;\n"
             "cvt.u64.u32 %rd4, %r6;\nor.b64 %rd3, %rd3, 0x4000004000010000;\n"
             "or.b64 %rd4, %rd4, 0x4000004000010000;\nsetp.eq.u32 %p3, 0, 1;\n"
             "wgmma.fence.sync.aligned;\n"
             "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
             "{%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7}, %rd3, %rd4, %p3, 1, 1, " +
             major + "add.s64 %rd3, %rd3, " + next +
             "add.s64 %rd4, %rd4, 2;\nsetp.eq.u32 %p3, 1, 1;\n"
             "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
             "{%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7}, %rd3, %rd4, %p3, 1, 1, " +
             major +
             "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
             "mul.wide.u32 %rd5, %r0, 32;\nadd.s64 %rd5, %rd5, %rd0;\n"
             "st.global.v4.f32 [%rd5+" +
             std::to_string(offsetof(Memory, out)) +
             "], {%d0,%d1,%d2,%d3};\nst.global.v4.f32 [%rd5+" +
             std::to_string(offsetof(Memory, out) + 16) + "], {%d4,%d5,%d6,%d7};\n"),
      &memory, {.block = {128, 1, 1}});
  ASSERT_TRUE(done.ok()) << done.error().message;
  for (int thread = 0; thread < 128; ++thread) {
    for (int r = 0; r < 8; ++r) {
      const int i = thread / 32 * 16 + thread % 32 / 4 + 8 * (r % 4 / 2);
      const int j = r / 4 * 8 + thread % 4 * 2 + r % 2;
      float sum = 0;
      for (int k = 0; k < 32 && (turned || i < kRows); ++k) {
        sum +=
            static_cast<float>((i * 7 + k * 3) % 11 - 5) * static_cast<float>((j * 5 + k) % 7 - 3);
      }
      EXPECT_EQ(memory.out[static_cast<size_t>(thread * 8 + r)], sum) << i << ", " << j;
    }
  }
}

TEST(PtxTiles, WarpgroupsMultiplyWhatMapsLoad) { multiply_what_maps_load(false); }
TEST(PtxTiles, WarpgroupsMultiplyTransposedTiles) { multiply_what_maps_load(true); }

}  // namespace
}  // namespace weft::ptx

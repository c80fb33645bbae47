#include <gtest/gtest.h>

#include <vector>

#include "ops/gemm_bf16/op.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(GemmBf16, MatchesTheReference) { trial::expect_right("gemm_bf16"); }

/// A 1 x 8 by 8 x 8 product whose result can be told by looking.
struct Small {
  alignas(16) bf16 a[8];
  alignas(16) bf16 b[8][8];
  alignas(16) float out[8];
  std::vector<std::byte> scratch;
  GemmBf16Args args;

  Small() {
    for (int i = 0; i < 8; ++i) {
      a[i] = to_bf16(static_cast<float>(i));
      for (int j = 0; j < 8; ++j) {
        b[i][j] = to_bf16(i == j ? 2.0F : 0.0F);
      }
    }
    args = {.m = 1,
            .n = 8,
            .k = 8,
            .a = {a, DType::bf16, 8},
            .b = {b, DType::bf16, 8},
            .out = {out, DType::f32, 8},
            .workspace = {}};
    scratch.resize(*gemm_bf16_workspace(args, {}) + 64);
    const auto address = reinterpret_cast<uintptr_t>(scratch.data());
    args.workspace = {scratch.data() + (64 - address % 64) % 64, scratch.size() - 64};
  }
};

TEST(GemmBf16, RunsOnTheCpuStream) {
  Small small;
  ASSERT_TRUE(gemm_bf16(small.args, {}).ok());
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(small.out[i], 2.0F * static_cast<float>(i));
  }
}

void expect_refused(const GemmBf16Args& args, std::string_view says) {
  const Status status = gemm_bf16(args, {});
  ASSERT_FALSE(status.ok()) << says;
  EXPECT_EQ(status.error().kind, ErrorKind::usage);
  EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
}

TEST(GemmBf16, RefusesWhatItCannotCompute) {
  const Small small;
  GemmBf16Args args = small.args;
  args.m = 0;
  expect_refused(args, "m is 0");
  args = small.args;
  args.n = 12;
  expect_refused(args, "n is 12, but must be a multiple of 8");
  args = small.args;
  args.accumulate = true;
  args.out.dtype = DType::bf16;
  expect_refused(args, "out (with accumulate) is BF16, but must be F32");
  args = small.args;
  args.a.dtype = DType::f16;
  expect_refused(args, "a is F16, but must be BF16");
  args = small.args;
  args.b.stride = 4;
  expect_refused(args, "the stride of b is 4");
  args = small.args;
  args.b.data = small.b[0] + 1;
  expect_refused(args, "b is not aligned");
  args = small.args;
  args.out.data = nullptr;
  expect_refused(args, "out is null");
  args = small.args;
  args.workspace.bytes = 0;
  expect_refused(args, "the workspace has 0 bytes");
}

}  // namespace
}  // namespace weft

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/harness/test_checks.h"

namespace weft {
namespace {

TEST(GemmFp8Blockwise, MatchesTheReference) { trial::expect_right("gemm_fp8_blockwise"); }

/// Ones everywhere, so that the result tells which scales met: 128 (s_a0 s_b0 + s_a1 s_b1).
TEST(GemmFp8Blockwise, ScalesBlocksOfK) {
  constexpr int64_t kN = 136;
  constexpr int64_t kK = 256;
  std::vector<e4m3fn> storage(kN * kK + 16, e4m3fn{0x38});
  const auto address = reinterpret_cast<uintptr_t>(storage.data());
  const e4m3fn* ones = storage.data() + (16 - address % 16) % 16;
  const float a_scale[] = {1, -2};          // of blocks 0 and 1
  const float b_scale[] = {3, 5, 0.5F, 0};  // of columns 0-127, then 128-135
  alignas(16) bf16 out[kN];
  GemmFp8BlockwiseArgs args{.m = 1,
                            .n = kN,
                            .k = kK,
                            .layout = Fp8Layout::k_major,
                            .a = {ones, DType::e4m3fn, kK},
                            .b = {ones, DType::e4m3fn, kK},
                            .a_scale = {a_scale, 2, 1},
                            .b_scale = {b_scale, 2, 1},
                            .out = {out, DType::bf16, kN},
                            .workspace = {}};
  std::vector<std::byte> scratch(*gemm_fp8_blockwise_workspace(args, {}) + 64);
  const auto at = reinterpret_cast<uintptr_t>(scratch.data());
  args.workspace = {scratch.data() + (64 - at % 64) % 64, scratch.size() - 64};
  ASSERT_TRUE(gemm_fp8_blockwise(args, {}).ok());
  for (int64_t c = 0; c < kN; ++c) {
    EXPECT_EQ(to_float(out[c]), c < 128 ? 128.0F * (3 - 10) : 64.0F) << c;
  }
}

}  // namespace
}  // namespace weft

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "ops/gemm_fp8_blockwise/op.h"
#include "ops/harness/tensor.h"
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

/// Ones times ones again: each block of 128 rows meets its group's b, which is its number, and that
/// group's scales, whose rows begin anew though n is no multiple of 128.
TEST(GemmFp8Blockwise, RowsMeetTheirGroup) {
  constexpr int64_t kN = 136;
  constexpr int64_t kGroups = 3;
  constexpr int32_t kGroupOf[] = {2, -1, 0, 2, 1};
  constexpr int64_t kM = std::size(kGroupOf) * kGroupRows;
  trial::Tensor a("a", trial::Tensor::Role::input, kM, kScaleBlock, DType::e4m3fn);
  trial::Tensor b("b", trial::Tensor::Role::input, kGroups * kN, kScaleBlock, DType::e4m3fn);
  trial::Tensor out("out", trial::Tensor::Role::output, kM, kN, DType::bf16);
  for (int64_t i = 0; i < kScaleBlock; ++i) {
    for (int64_t r = 0; r < kM; ++r) {
      a.set(r, i, 1);
    }
    for (int64_t r = 0; r < b.rows(); ++r) {
      b.set(r, i, static_cast<float>(r / kN + 1));
    }
  }
  const std::vector<float> a_scale(kM, 1);
  const float b_scale[] = {1, 2, 4, 8, 16, 32};  // of columns 0-127, then 128-135, of each group
  GemmFp8BlockwiseArgs args{.m = kM,
                            .n = kN,
                            .k = kScaleBlock,
                            .groups = kGroups,
                            .group_of = kGroupOf,
                            .a = a.in(),
                            .b = b.in(),
                            .a_scale = {a_scale.data(), 1, 1},
                            .b_scale = {b_scale, 1, 1},
                            .out = out.out(),
                            .workspace = {}};
  trial::Tensor scratch("scratch", trial::Tensor::Role::output, 1,
                        static_cast<int64_t>(*gemm_fp8_blockwise_workspace(args, {})),
                        DType::e4m3fn);
  args.workspace = {scratch.data(), scratch.bytes()};
  out.restore();
  for (const auto& [group, refusal] : {std::pair(-2, "is -2, but must be at least -1"),
                                       std::pair(3, "is 3, but must be at most 2")}) {
    const int32_t beyond[] = {2, -1, 0, 2, group};
    args.group_of = beyond;
    EXPECT_EQ(gemm_fp8_blockwise(args, {}).error().message,
              fmt::format("gemm_fp8_blockwise: a group in group_of {}", refusal));
  }
  args.group_of = kGroupOf;
  ASSERT_TRUE(gemm_fp8_blockwise(args, {}).ok());
  for (int64_t r = 0; r < kM; ++r) {
    const int32_t group = kGroupOf[r / kGroupRows];
    for (int64_t c = 0; c < kN; ++c) {
      if (group < 0) {
        EXPECT_TRUE(std::isnan(out.get(r, c))) << r << " " << c;  // as it was
      } else {
        EXPECT_EQ(out.get(r, c), 128 * (group + 1) * b_scale[2 * group + c / 128]) << r << " " << c;
      }
    }
  }
}

TEST(GemmFp8Blockwise, RefusesGroupsThatDoNotFit) {
  const int32_t group_of[2] = {};
  const auto refused = [&](int64_t m, int64_t groups, const int32_t* of, Fp8Layout layout) {
    GemmFp8BlockwiseArgs args;
    args.m = m;
    args.n = 1 << 20;
    args.k = kScaleBlock;
    args.groups = groups;
    args.group_of = of;
    args.layout = layout;
    const Status status = check(args);
    return status.ok() ? std::string() : status.error().message;
  };
  constexpr Fp8Layout kMajor = Fp8Layout::k_major;
  EXPECT_EQ(refused(256, -1, nullptr, kMajor),
            "gemm_fp8_blockwise: groups is -1, but must be at least 0");
  EXPECT_EQ(refused(255, 2, group_of, kMajor),
            "gemm_fp8_blockwise: m with groups is 255, but must be a multiple of 128, and at least "
            "128");
  EXPECT_EQ(refused(256, 4096, group_of, kMajor),
            "gemm_fp8_blockwise: groups * n is 4294967296, but must be at most 2147483647");
  EXPECT_EQ(refused(256, 2, nullptr, kMajor),
            "gemm_fp8_blockwise: group_of is null, but groups is 2");
  EXPECT_EQ(refused(256, 0, group_of, kMajor),
            "gemm_fp8_blockwise: group_of is given, but groups is 0");
  EXPECT_EQ(refused(256, 2, group_of, Fp8Layout::mn_major),
            "gemm_fp8_blockwise: layout is mn_major, but with groups must be k_major");
  EXPECT_EQ(refused(256, 2, group_of, kMajor), "gemm_fp8_blockwise: a is null");
}

}  // namespace
}  // namespace weft

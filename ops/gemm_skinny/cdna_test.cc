#include <gtest/gtest.h>

#include <string>

#include "arch/cdna/target.h"
#include "base/divide.h"
#include "ops/gemm_skinny/op.h"

namespace weft::cdna {
namespace {

DeviceInfo device_of(Target target) {
  DeviceInfo device;
  device.target = name_of(target);
  device.units = limits_of(target).compute_units;
  device.fp8_fnuz = target == Target::gfx942;
  return device;
}

GemmSkinnyArgs args_of(int64_t m, int64_t n, int64_t k, DType format, Scaling scaling) {
  GemmSkinnyArgs args;
  args.m = m;
  args.n = n;
  args.k = k;
  args.a.dtype = format;
  args.b.dtype = format;
  args.scaling = scaling;
  return args;
}

TEST(GemmSkinnyCdnaPlan, ChoosesTheWayByShape) {
  const auto way = [](Target target, int64_t m, int64_t n, int64_t k, Scaling scaling) {
    const DType format = target == Target::gfx942 ? DType::e4m3fnuz : DType::e4m3fn;
    return gemm_skinny.plan(args_of(m, n, k, format, scaling), device_of(target)).kernel;
  };
  EXPECT_EQ(way(Target::gfx942, 8, 2304, 16384, Scaling::tensor), "sparse queue");
  EXPECT_EQ(way(Target::gfx942, 16, 2304, 16384, Scaling::tensor), "queue");
  EXPECT_EQ(way(Target::gfx942, 32, 2304, 16384, Scaling::tensor), "stream");
  EXPECT_EQ(way(Target::gfx942, 8, 2048, 2048, Scaling::row), "sparse");
  EXPECT_EQ(way(Target::gfx942, 8, 2304, 16384, Scaling::block), "stream");
  EXPECT_EQ(way(Target::gfx950, 8, 2304, 16384, Scaling::tensor), "stream");
}

TEST(GemmSkinnyCdnaPlan, RefusesTheOtherFp8) {
  const Plan plan = gemm_skinny.plan(args_of(1, 64, 128, DType::e4m3fn, Scaling::tensor),
                                     device_of(Target::gfx942));
  EXPECT_TRUE(plan.kernel.empty());
  EXPECT_NE(plan.why.find("e4m3fnuz"), std::string::npos);
}

/// Sums that splits leave in memory are an eighth of b at most, and every tile has a ticket.
TEST(GemmSkinnyCdnaPlan, SplitsLittleAndFillsTheDevice) {
  for (const Target target : kTargets) {
    const DeviceInfo device = device_of(target);
    for (const int64_t m : {1, 8, 16, 32}) {
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2304, 16384},
                                 {2048, 2048},
                                 {16384, 6656},
                                 {128256, 4096},
                                 {2000000, 512},
                                 {8, 16}}) {
        const GemmSkinnyArgs args = args_of(m, n, k, DType::bf16, Scaling::none);
        const Plan plan = gemm_skinny.plan(args, device);
        SCOPED_TRACE(std::to_string(m) + "," + std::to_string(n) + "," + std::to_string(k) + ": " +
                     to_text(plan));
        const int64_t tiles = ceil_div(n, plan.tile_n);
        const size_t workspace = gemm_skinny.workspace(args, plan);
        if (plan.splits == 1) {
          EXPECT_EQ(workspace, 0);
        } else {
          EXPECT_LE(2 * 4 * m * plan.splits * 8, k * 2);
          EXPECT_LE(tiles, static_cast<int64_t>(kCounterBytes / 4));
          EXPECT_EQ(workspace,
                    kCounterBytes + static_cast<size_t>(tiles * plan.splits * m * plan.tile_n * 4));
        }
      }
    }
  }
  const Plan plan = gemm_skinny.plan(args_of(1, 2304, 16384, DType::bf16, Scaling::none),
                                     device_of(Target::gfx942));
  EXPECT_GE(2304 / plan.tile_n * plan.splits, 250);
}

}  // namespace
}  // namespace weft::cdna

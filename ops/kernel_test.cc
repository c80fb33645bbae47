#include "ops/kernel.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

DeviceInfo device_of(std::string target, int units) {
  DeviceInfo info;
  info.target = std::move(target);
  info.units = units;
  return info;
}

constexpr TunedPlan kTable[] = {
    {{16, 512, 128, "bf16"}, "sm_90a", 132, {.kernel = "a"}},
    {{64, 512, 128, "bf16"}, "sm_90a", 132, {.kernel = "b"}},
    {{64, 512, 128, "f32"}, "sm_90a", 132, {.kernel = "c"}},
    {{64, 512, 128, "bf16"}, "sm_90a", 114, {.kernel = "d"}},
};

std::string_view found(const PlanKey& key, const DeviceInfo& device) {
  const Plan* plan = find_tuned(kTable, key, device);
  return plan != nullptr ? plan->kernel : "none";
}

TEST(TunedPlans, AreFoundByShapeFormatAndDevice) {
  const DeviceInfo h200 = device_of("sm_90a", 132);
  EXPECT_EQ(found({16, 512, 128, "bf16"}, h200), "a");
  EXPECT_EQ(found({64, 512, 128, "f32"}, h200), "c");
  EXPECT_EQ(found({64, 512, 128, "bf16"}, device_of("sm_90a", 114)), "d");
  EXPECT_EQ(found({64, 512, 128, "bf16"}, device_of("gfx942", 132)), "none");
  EXPECT_EQ(found({64, 512, 256, "bf16"}, h200), "none");
  EXPECT_EQ(found({64, 520, 128, "bf16"}, h200), "none");
}

TEST(TunedPlans, StandForRowsNearby) {
  const DeviceInfo h200 = device_of("sm_90a", 132);
  EXPECT_EQ(found({32, 512, 128, "bf16"}, h200), "b") << "the next larger";
  EXPECT_EQ(found({33, 512, 128, "bf16"}, h200), "b");
  EXPECT_EQ(found({17, 512, 128, "bf16"}, h200), "a") << "64 is too far, 16 is near";
  EXPECT_EQ(found({128, 512, 128, "bf16"}, h200), "b") << "the largest below";
  EXPECT_EQ(found({129, 512, 128, "bf16"}, h200), "none");
  EXPECT_EQ(found({7, 512, 128, "bf16"}, h200), "none");
}

TEST(Plan, IsToldInWords) {
  EXPECT_EQ(to_text({.kernel = "tile",
                     .tile_m = 128,
                     .tile_n = 256,
                     .tile_k = 64,
                     .stages = 4,
                     .splits = 2,
                     .swapped = true,
                     .why = "measured"}),
            "tile 128x256x64, 4 stages, 2 splits, swapped (measured)");
  EXPECT_EQ(to_text({.kernel = "row", .threads = 256}), "row, 256 threads");
}

}  // namespace
}  // namespace weft

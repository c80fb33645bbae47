// Checks, benches and tuning on a device, without one: the device is made up, its kernels are
// functions of this file, and each kind of mistake that a kernel can make must be found.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "ops/harness/placed.h"
#include "ops/harness/prefill_trial.h"
#include "ops/harness/test_device.h"
#include "ops/harness/tune.h"

namespace weft::trial {
namespace {

struct DoublingArgs {
  ConstMatrix in;
  Matrix out;
  Workspace workspace;
};
Status check(const DoublingArgs& /*args*/) { return {}; }
PlanKey plan_key(const DoublingArgs& /*args*/) { return {3, 5, 0, "f32"}; }

Plan plan_of(const DoublingArgs& /*args*/, const DeviceInfo& /*device*/) {
  return {.kernel = "right", .threads = 1};
}
std::vector<Plan> candidates_of(const DoublingArgs& /*args*/, const DeviceInfo& /*device*/) {
  std::vector<Plan> result;
  for (const std::string_view kernel :
       {"right", "wrong", "before", "after", "gap", "input", "counters", "unwritten", "unsteady"}) {
    result.push_back({.kernel = kernel, .threads = 1});
  }
  return result;
}
size_t workspace_of(const DoublingArgs& /*args*/, const Plan& /*plan*/) {
  return kCounterBytes + 1024;
}

Status run(const DoublingArgs& args, const Plan& plan, Stream /*stream*/) {
  static int launches = 0;
  EXPECT_EQ(reinterpret_cast<uintptr_t>(args.out.data) % 256, 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(args.workspace.data) % 256, 0);
  auto* in = const_cast<float*>(static_cast<const float*>(args.in.data));
  auto* out = static_cast<float*>(args.out.data);
  for (int64_t r = 0; r < 3; ++r) {
    for (int64_t c = 0; c < 5; ++c) {
      if (plan.kernel != "unwritten" || r != 2) {
        out[r * args.out.stride + c] = 2 * in[r * args.in.stride + c];
      }
    }
  }
  std::memset(static_cast<std::byte*>(args.workspace.data) + kCounterBytes, 1, 1024);
  const std::string_view mistake = plan.kernel;
  if (mistake == "wrong") {
    out[0] += 1;
  } else if (mistake == "before") {
    out[-1] = 0;
  } else if (mistake == "after") {
    out[3 * args.out.stride] = 0;
  } else if (mistake == "gap") {
    out[5] = 0;
  } else if (mistake == "input") {
    in[0] = 7;
  } else if (mistake == "counters") {
    static_cast<uint32_t*>(args.workspace.data)[3] = 1;
  } else if (mistake == "unsteady") {
    out[0] *= ++launches % 2 == 0 ? 1.0F : 1 + 0x1p-23F;
  }
  return {};
}

const Kernel<DoublingArgs> kDoubling = {plan_of, candidates_of, workspace_of, run};
const Kernel<DoublingArgs>* kernel_of(Arch arch) {
  return arch == Arch::hopper ? &kDoubling : nullptr;
}

class DoublingTrial : public KernelTrial<DoublingArgs> {
 public:
  explicit DoublingTrial(Random& random)
      : KernelTrial(kernel_of),
        in_(input("in", 3, 5, DType::f32, random, 1, 1)),
        out_(output("out", 3, 5, DType::f32, 2)) {}
  int64_t rows() const override { return 3; }
  std::vector<Expectation> expect(Range rows) override {
    std::vector<Expectation> result{Expectation(out_, rows)};
    for (size_t i = 0; i < result[0].value.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      result[0].value[i] = 2 * in_.get(rows.begin + at / 5, at % 5);
      result[0].tolerance[i] = 1e-5;
    }
    return result;
  }
  void run(int /*phase*/, Piece /*piece*/) override {}
  Work work() const override { return {.bytes = 120, .flops = 15}; }

 protected:
  DoublingArgs args(Side side) const override {
    return {.in = in_.in(side), .out = out_.out(side), .workspace = {}};
  }

 private:
  Tensor& in_;
  Tensor& out_;
};

TEST(OnADevice, EveryMistakeIsFound) {
  MadeUpDevice device;
  for (const Plan& plan : candidates_of({}, device.info())) {
    Random random(3);
    DoublingTrial trial(random);
    ASSERT_TRUE(trial.place(device, {&plan, 1}).ok());
    trial.prepare(0);
    const auto expectations = expect_all_rows(trial);
    const auto mismatch = check_twice(trial, plan, expectations);
    ASSERT_TRUE(mismatch.ok());
    EXPECT_EQ(mismatch->has_value(), plan.kernel != "right") << plan.kernel;
  }
}

TEST(OnADevice, AnOperationWithoutKernelsSaysSo) {
  MadeUpDevice device;
  Random random(3);
  DoublingTrial trial(random);
  DeviceInfo other = device.info();
  other.arch = Arch::cdna;
  EXPECT_TRUE(trial.plan(other).kernel.empty());
  EXPECT_FALSE(trial.plan(other).why.empty());
  EXPECT_EQ(trial.plan(device.info()).kernel, "right");
}

/// Whatever kernels this build has: every valid shape has a plan on every device of theirs, unless
/// the device has not got its format, and something to tune. A chunk's kernels may refuse more, but
/// say why.
TEST(OnADevice, EveryCaseHasAPlan) {
  DeviceInfo h200;
  h200.id = "cuda:0";
  h200.target = "sm_90a";
  h200.arch = Arch::hopper;
  h200.units = 132;
  h200.shared_memory = 227 << 10;
  DeviceInfo mi300x;
  mi300x.id = "hip:0";
  mi300x.target = "gfx942";
  mi300x.arch = Arch::cdna;
  mi300x.units = 304;
  mi300x.shared_memory = 64 << 10;
  mi300x.fp8_fnuz = true;
  DeviceInfo mi355x = mi300x;
  mi355x.target = "gfx950";
  mi355x.units = 256;
  mi355x.shared_memory = 160 << 10;
  mi355x.fp8_fnuz = false;
  const auto cases = select_cases({}, {Use::check});
  ASSERT_TRUE(cases.ok());
  for (const SelectedCase& each : *cases) {
    Random random(1);
    const auto trial = each.info.make(random);
    for (const DeviceInfo& device : {h200, mi300x, mi355x}) {
      const std::string subject =
          fmt::format("{} {} on {}", each.operation->name, each.name(), device.target);
      const Plan plan = trial->plan(device);
      if (!trial->has_kernels(device.arch)) {
        EXPECT_TRUE(plan.kernel.empty()) << subject;
        continue;
      }
      const std::string_view other = device.fp8_fnuz ? "e4m3fn," : "e4m3fnuz";
      // (A cache's codes are widened by instructions that every device has.)
      const std::string name = each.name() + ",";
      const bool foreign = name.find(other) != std::string::npos &&
                           name.find(fmt::format("cache={}", other)) == std::string::npos;
      // Sizes that the CPU alone takes are refused with the rule that they break, and on AMD what
      // only Hopper's engine asks of mla_decode.
      const bool refused =
          plan.why.find("must be a multiple of") != std::string::npos ||
          (device.arch == Arch::cdna && plan.why.starts_with("keys are dealt together"));
      if (dynamic_cast<const PrefillTrial*>(trial.get()) == nullptr) {
        EXPECT_EQ(plan.kernel.empty(), foreign || refused) << subject << ": " << plan.why;
      }
      EXPECT_FALSE(plan.why.empty()) << subject;
      EXPECT_EQ(trial->candidates(device).empty(), plan.kernel.empty()) << subject;
    }
  }
}

TEST(OnADevice, AKernelIsTimedAndCheckedAgain) {
  MadeUpDevice device;
  Random random(3);
  const Plan plan{.kernel = "right", .threads = 1};
  auto placed =
      PlacedTrial::place(std::make_unique<DoublingTrial>(random), device, {&plan, 1}, random);
  ASSERT_TRUE(placed.ok());
  for (int i = 0; i < 2; ++i) {
    const auto mismatch = placed->check(plan);
    ASSERT_TRUE(mismatch.ok());
    EXPECT_FALSE(mismatch->has_value());
    const auto seconds = placed->time(plan, 7);
    ASSERT_TRUE(seconds.ok());
    EXPECT_EQ(seconds->size(), 7);
  }
}

TEST(OnADevice, LaunchesInARowHaveOperandsOfTheirOwn) {
  MadeUpDevice device;
  Random random(4);
  const Plan right{.kernel = "right", .threads = 1};
  const Plan wrong{.kernel = "wrong", .threads = 1};
  auto placed = PlacedTrial::place(std::make_unique<DoublingTrial>(random), device,
                                   std::array{right, wrong}, random, 5);
  ASSERT_TRUE(placed.ok());
  for (const Plan& plan : {right, wrong, right}) {
    const auto mismatch = placed->check(plan);
    ASSERT_TRUE(mismatch.ok());
    EXPECT_EQ(mismatch->has_value(), plan == wrong);
  }
  const auto seconds = placed->time(right, 7);
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(seconds->size(), 7);
  EXPECT_DOUBLE_EQ(seconds->front(), 1e-6 / 5);
}

TEST(Tuning, WritesATableThatIsReadAsCode) {
  TuneOutcome outcome{
      .selected = {}, .key = {64, 512, 128, "bf16"}, .skipped = {}, .candidates = {}};
  outcome.candidates.push_back(
      {.plan = {.kernel = "tile", .tile_m = 64, .splits = 4, .swapped = true},
       .mismatch = {},
       .median = 5e-6});
  outcome.candidates.push_back({.plan = {.kernel = "tile"}, .mismatch = {}, .median = 6.04e-6});
  DeviceInfo info;
  info.target = "sm_90a";
  info.units = 132;
  const std::string row = table_row(outcome, info);
  EXPECT_EQ(
      row,
      "{{64, 512, 128, \"bf16\"}, \"sm_90a\", 132, {.kernel = \"tile\", .tile_m = 64, .splits = 4, "
      ".swapped = true}},  // 5.0 us; next 6.0 us");
  outcome.candidates[0].in_a_row = 2e-6;
  EXPECT_EQ(table_row(outcome, info).substr(row.find("//")),
            "// 5.0 us, 2.0 in a row; next 6.0 us");
  const std::string other =
      "{{1, 512, 128, \"bf16\"}, \"sm_90a\", 132, {.kernel = \"old\"}},  // 1 us";
  const std::string old =
      "{{64, 512, 128, \"bf16\"}, \"sm_90a\", 132, {.kernel = \"old\"}},  // 9 us";
  EXPECT_EQ(merge_table("// measured\n" + old + "\n" + other + "\n", {row}),
            "// measured\n" + other + "\n" + row + "\n");
}

}  // namespace
}  // namespace weft::trial

// Attention of a launched step's rows on the simulated GPUs: split over the device as by one
// workgroup a row and head, whichever sequence a row is of.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arch/cdna/target.h"
#include "arch/device.h"
#include "base/number.h"
#include "base/relative_difference.h"
#include "ops/chunk_kernels.h"
#include "sim/hip.h"

namespace weft {
namespace {

constexpr int64_t kQueryHeads = 6, kKvHeads = 2, kDim = 64, kCapacity = 1024, kSequences = 3;

class StepAttention : public testing::TestWithParam<cdna::Target> {
 protected:
  template <class T>
  T* put(const std::vector<T>& data) {
    memory_.push_back(device_->allocate(data.size() * sizeof(T)).value());
    EXPECT_TRUE(device_->upload(memory_.back().data(), data.data(), data.size() * sizeof(T)).ok());
    return reinterpret_cast<T*>(memory_.back().data());
  }
  static std::vector<bf16> numbers(int64_t count, float step) {
    std::vector<bf16> x(static_cast<size_t>(count));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = to_bf16(2 * std::sin(step * static_cast<float>(i % 100003)));
    }
    return x;
  }

  std::unique_ptr<Device> device_;
  std::vector<DeviceMemory> memory_;
};

TEST_P(StepAttention, OfSplitKeysIsTheSame) {
  auto opened = open_device("sim:" + std::string(cdna::name_of(GetParam())));
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  device_ = std::move(*opened);
  const ChunkKernels& kernels = *chunk_kernels(Arch::cdna);
  const std::array<int32_t, kSequences> owners{2, 0, 1};
  const std::array<int32_t, kSequences> positions{900, 0, 63};
  constexpr int64_t kRow = kQueryHeads * kDim;
  constexpr int64_t kCache = kSequences * kKvHeads * kCapacity * kDim;
  AttentionArgs args;
  args.q = {put(numbers(kSequences * kRow, 0.37F)), DType::bf16, kRow};
  args.cache = {put(numbers(kCache, 0.11F)), put(numbers(kCache, 0.23F)), DType::bf16,
                kCapacity * kDim};
  args.query_heads = kQueryHeads;
  args.kv_heads = kKvHeads;
  args.head_dim = kDim;
  args.scale = 0.125;
  const RowPlaces places{put(std::vector<int32_t>(positions.begin(), positions.end())),
                         put(std::vector<int32_t>(owners.begin(), owners.end())),
                         kKvHeads * kCapacity * kDim};
  std::vector<float> out(kSequences * kRow);
  args.out = {put(out), DType::f32, kRow};
  for (const int64_t window : {0, 100}) {
    SCOPED_TRACE(window);
    args.window = window;
    const size_t bytes = kernels.step_workspace(args, device_->stream());
    const Workspace workspace{put(std::vector<char>(bytes)), bytes};
    std::vector<std::vector<float>> results;
    std::vector<uint64_t> workgroups;
    for (const Workspace& room : {Workspace{}, workspace, workspace}) {
      ASSERT_TRUE(kernels.step_attention(args, kSequences, places, room, device_->stream()).ok());
      ASSERT_TRUE(device_->synchronize().ok());
      ASSERT_TRUE(device_->download(out.data(), args.out.data, out.size() * sizeof(float)).ok());
      results.push_back(out);
      workgroups.push_back(sim::last_launch().counters.workgroups);
    }
    EXPECT_LE(relative_difference(results[1], results[0]), 5e-3);
    EXPECT_EQ(results[1], results[2]);
    EXPECT_EQ(workgroups[0], static_cast<uint64_t>(kSequences * kKvHeads));
    EXPECT_EQ(workgroups[1], static_cast<uint64_t>(device_->info().units));
  }
}

INSTANTIATE_TEST_SUITE_P(Some, StepAttention, testing::ValuesIn(cdna::kTargets),
                         [](const auto& info) { return std::string(cdna::name_of(info.param)); });

}  // namespace
}  // namespace weft

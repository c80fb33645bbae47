// Several devices: whose memory is whose, who reaches it, and kernels that run at the same time and
// wait for one another.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "sim/hip.h"
#include "sim/hip_runtime.h"
#include "sim/memory.h"
#include "sim/test_kernels.h"

namespace weft::sim {
namespace {

using namespace weft::hip;  // NOLINT: HIP's names

class TwoDevices : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    code_ = test_kernels("node", GetParam());
    if (code_.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
  }
  LaunchReport put(Device& device, uint64_t to) {
    const auto module = device.load(code_);
    EXPECT_TRUE(module.ok());
    struct {
      uint64_t to;
      int value;
    } const arguments{to, 7};
    auto report = device.launch(*module.value()->kernel("put"), {1}, {64}, 0,
                                std::as_bytes(std::span(&arguments, 1)));
    EXPECT_TRUE(report.ok());
    return std::move(report).value();
  }
  std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  Device first_{GetParam(), memory_};
  Device second_{GetParam(), memory_};
  std::vector<std::byte> code_;
};

TEST_P(TwoDevices, ReachEachOthersMemoryWhereThatIsEnabled) {
  const uint64_t there = second_.allocate(256).value();
  const uint64_t host = memory_->allocate(256, {kHost, Grain::fine}).value();
  EXPECT_TRUE(put(second_, there).ok());
  EXPECT_TRUE(put(first_, host).ok());

  const LaunchReport refused = put(first_, there);
  ASSERT_EQ(refused.findings.size(), 1U);
  EXPECT_EQ(refused.findings[0].kind, FindingKind::no_peer_access);
  EXPECT_EQ(refused.findings[0].times, 64U);
  const std::string text = refused.findings[0].text();
  EXPECT_NE(text.find("in device 1, which device 0 does not reach"), std::string::npos) << text;
  EXPECT_NE(text.find("hipDeviceEnablePeerAccess(1, 0) with device 0 current"), std::string::npos);

  EXPECT_TRUE(memory_->set_peer(0, 1, true));
  EXPECT_FALSE(memory_->set_peer(0, 1, true));
  EXPECT_TRUE(put(first_, there).ok());
  EXPECT_EQ(reinterpret_cast<int*>(there)[63], 70);
  EXPECT_TRUE(memory_->set_peer(0, 1, false));
  EXPECT_FALSE(put(first_, there).ok());
}

TEST_P(TwoDevices, CountTheirMemoryApart) {
  const uint64_t before = memory_->used(0);
  const uint64_t address = second_.allocate(1000).value();
  EXPECT_EQ(memory_->used(0), before);
  EXPECT_EQ(memory_->used(1), 1000U);
  Memory::Range range;
  ASSERT_TRUE(memory_->find(address + 999, range));
  EXPECT_EQ(range.placement.home, 1);
  EXPECT_EQ(range.placement.grain, Grain::coarse);
  EXPECT_FALSE(memory_->find(address + 1000, range));
  ASSERT_TRUE(second_.free(address).ok());
  EXPECT_EQ(memory_->used(1), 0U);
}

/// What is freed while a kernel runs must stay readable to it, and be no allocation any more.
TEST_P(TwoDevices, KeepWhatIsFreedMappedWhileKernelsRun) {
  const uint64_t address = first_.allocate(4096).value();
  Memory::Range range;
  {
    const Memory::Use use(*memory_);
    ASSERT_TRUE(first_.free(address).ok());
    EXPECT_FALSE(memory_->find(address, range));
    EXPECT_EQ(*reinterpret_cast<volatile char*>(address), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, TwoDevices, testing::ValuesIn(cdna::kTargets), target_name);

/// A node through HIP.
class NodeTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    code_ = test_kernels("node", Target::gfx942);
    if (code_.empty()) {
      GTEST_SKIP() << "this build has no clang-22";
    }
    const auto first = hip_ordinal({Target::gfx942, GetParam(), 0});
    ASSERT_TRUE(first.ok()) << first.error().message;
    first_ = first.value();
  }
  void TearDown() override { (void)hipSetDevice(0); }

  struct Rank {
    hipModule_t module = nullptr;
    hipFunction_t kernel = nullptr;
    hipStream_t stream = nullptr;
    float* data = nullptr;
    float* inbox = nullptr;
    unsigned* flag = nullptr;
  };
  /// A rank on each device, each able to write into the next one's inbox.
  std::vector<Rank> ring(const std::vector<std::vector<float>>& data) {
    const int ranks = GetParam();
    std::vector<Rank> all(static_cast<size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
      Rank& rank = all[static_cast<size_t>(r)];
      const std::vector<float>& mine = data[static_cast<size_t>(r)];
      const size_t bytes = mine.size() * sizeof(float);
      EXPECT_EQ(hipSetDevice(first_ + r), hipSuccess);
      EXPECT_EQ(hipModuleLoadData(&rank.module, code_.data()), hipSuccess);
      EXPECT_EQ(hipModuleGetFunction(&rank.kernel, rank.module, "ring_all_reduce"), hipSuccess);
      EXPECT_EQ(hipStreamCreate(&rank.stream), hipSuccess);
      EXPECT_EQ(hipMalloc(reinterpret_cast<void**>(&rank.data), bytes), hipSuccess);
      EXPECT_EQ(hipMemcpy(rank.data, mine.data(), bytes, hipMemcpyHostToDevice), hipSuccess);
      EXPECT_EQ(hipExtMallocWithFlags(reinterpret_cast<void**>(&rank.inbox), 2 * bytes,
                                      hipDeviceMallocFinegrained),
                hipSuccess);
      EXPECT_EQ(hipExtMallocWithFlags(reinterpret_cast<void**>(&rank.flag), sizeof(unsigned),
                                      hipDeviceMallocUncached),
                hipSuccess);
      const hipError_t peer = hipDeviceEnablePeerAccess(first_ + (r + 1) % ranks, 0);
      EXPECT_TRUE(peer == hipSuccess || peer == hipErrorPeerAccessAlreadyEnabled);
    }
    return all;
  }
  static hipError_t launch(const std::vector<Rank>& ring, size_t r, int chunk) {
    const Rank& mine = ring[r];
    const Rank& next = ring[(r + 1) % ring.size()];
    int rank = static_cast<int>(r);
    int ranks = static_cast<int>(ring.size());
    const void* parameters[] = {&mine.data, &mine.inbox, &next.inbox, &mine.flag,
                                &next.flag, &rank,       &ranks,      &chunk};
    return hipModuleLaunchKernel(mine.kernel, 1, 1, 1, 256, 1, 1, 0, mine.stream,
                                 const_cast<void**>(parameters), nullptr);
  }
  void release(std::vector<Rank>& ring) {
    for (size_t r = 0; r < ring.size(); ++r) {
      (void)hipSetDevice(first_ + static_cast<int>(r));
      EXPECT_EQ(hipStreamDestroy(ring[r].stream), hipSuccess);
      for (void* each : {static_cast<void*>(ring[r].data), static_cast<void*>(ring[r].inbox),
                         static_cast<void*>(ring[r].flag)}) {
        EXPECT_EQ(hipFree(each), hipSuccess);
      }
      EXPECT_EQ(hipModuleUnload(ring[r].module), hipSuccess);
    }
  }

  int first_ = 0;
  std::vector<std::byte> code_;
};

/// Small whole numbers: their sums are exact in any order.
std::vector<std::vector<float>> numbers(int ranks, int chunk) {
  std::vector<std::vector<float>> data(static_cast<size_t>(ranks));
  for (size_t r = 0; r < data.size(); ++r) {
    for (int i = 0; i < ranks * chunk; ++i) {
      data[r].push_back(static_cast<float>((i * 7 + static_cast<int>(r) * 13) % 101));
    }
  }
  return data;
}
void expect_sums(const std::vector<std::vector<float>>& data, const float* result, size_t rank) {
  for (size_t i = 0; i < data[0].size(); ++i) {
    float sum = 0;
    for (const std::vector<float>& each : data) {
      sum += each[i];
    }
    ASSERT_EQ(result[i], sum) << "rank " << rank << " element " << i;
  }
}

TEST_P(NodeTest, AllReducesByLaunchesOfOneThread) {
  constexpr int kChunk = 300;
  const auto data = numbers(GetParam(), kChunk);
  std::vector<Rank> ranks = ring(data);
  for (size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(hipSetDevice(first_ + static_cast<int>(r)), hipSuccess);
    ASSERT_EQ(launch(ranks, r, kChunk), hipSuccess);
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(hipStreamSynchronize(ranks[r].stream), hipSuccess) << last_findings();
    expect_sums(data, ranks[r].data, r);
  }
  release(ranks);
}

TEST_P(NodeTest, AllReducesByAThreadForEachDevice) {
  constexpr int kChunk = 300;
  const auto data = numbers(GetParam(), kChunk);
  std::vector<Rank> ranks = ring(data);
  std::vector<std::thread> threads;
  std::vector<hipError_t> errors(ranks.size());
  std::vector<std::string> findings(ranks.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      errors[r] = hipSetDevice(first_ + static_cast<int>(r));
      if (errors[r] == hipSuccess) {
        errors[r] = launch(ranks, r, kChunk);
      }
      if (errors[r] == hipSuccess) {
        errors[r] = hipDeviceSynchronize();
      }
      findings[r] = last_findings();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (size_t r = 0; r < ranks.size(); ++r) {
    ASSERT_EQ(errors[r], hipSuccess) << findings[r];
    expect_sums(data, ranks[r].data, r);
  }
  release(ranks);
}

TEST_P(NodeTest, EndsALaunchThatNobodyAnswers) {
  constexpr int kChunk = 64;
  set_hang_seconds(1);
  std::vector<Rank> ranks = ring(numbers(GetParam(), kChunk));
  ASSERT_EQ(hipSetDevice(first_), hipSuccess);
  ASSERT_EQ(launch(ranks, 0, kChunk), hipSuccess);
  EXPECT_EQ(hipStreamQuery(ranks[0].stream), hipErrorNotReady);
  EXPECT_EQ(hipStreamSynchronize(ranks[0].stream), hipErrorLaunchFailure);
  ASSERT_EQ(last_launch().findings.size(), 1U);
  EXPECT_EQ(last_launch().findings[0].kind, FindingKind::hang);
  // It was told once, and the device goes on.
  EXPECT_EQ(hipStreamSynchronize(ranks[0].stream), hipSuccess);
  set_hang_seconds(LaunchOptions().hang_seconds);
  release(ranks);
}

TEST_P(NodeTest, OrdersStreamsOfDevicesByEvents) {
  std::vector<Rank> ranks = ring(numbers(GetParam(), 16));
  // A number is written by the first device, copied by the second after an event, and copied back.
  hipFunction_t put = nullptr;
  ASSERT_EQ(hipModuleGetFunction(&put, ranks[0].module, "put"), hipSuccess);
  hipEvent_t written = nullptr;
  ASSERT_EQ(hipEventCreate(&written), hipSuccess);
  ASSERT_EQ(hipSetDevice(first_), hipSuccess);
  void* to = ranks[0].inbox;
  int value = 5;
  void* parameters[] = {&to, &value};
  std::atomic<bool> go{false};
  ASSERT_EQ(hipLaunchHostFunc(
                ranks[0].stream,
                [](void* flag) {
                  while (!static_cast<std::atomic<bool>*>(flag)->load()) {
                    std::this_thread::yield();
                  }
                },
                &go),
            hipSuccess);
  ASSERT_EQ(hipModuleLaunchKernel(put, 1, 1, 1, 16, 1, 1, 0, ranks[0].stream, parameters, nullptr),
            hipSuccess);
  ASSERT_EQ(hipEventRecord(written, ranks[0].stream), hipSuccess);
  ASSERT_EQ(hipSetDevice(first_ + 1), hipSuccess);
  ASSERT_EQ(hipStreamWaitEvent(ranks[1].stream, written, 0), hipSuccess);
  ASSERT_EQ(hipMemcpyPeerAsync(ranks[1].inbox, first_ + 1, to, first_, 64, ranks[1].stream),
            hipSuccess);
  EXPECT_EQ(hipEventQuery(written), hipErrorNotReady);
  EXPECT_EQ(hipStreamQuery(ranks[1].stream), hipErrorNotReady);
  go = true;
  ASSERT_EQ(hipStreamSynchronize(ranks[1].stream), hipSuccess);
  EXPECT_EQ(reinterpret_cast<int*>(ranks[1].inbox)[15], 20);
  EXPECT_EQ(hipMemcpyPeerAsync(ranks[1].inbox, first_, to, first_, 64, nullptr),
            hipErrorInvalidValue);
  EXPECT_EQ(hipMemcpyPeer(ranks[1].inbox, first_ + 1, to, first_, 64), hipSuccess);
  ASSERT_EQ(hipEventDestroy(written), hipSuccess);
  release(ranks);
}

TEST_P(NodeTest, AnswersForPeers) {
  const int last = first_ + GetParam() - 1;
  int can = 0;
  ASSERT_EQ(hipDeviceCanAccessPeer(&can, first_, last), hipSuccess);
  EXPECT_EQ(can, 1);
  ASSERT_EQ(hipDeviceCanAccessPeer(&can, first_, first_), hipSuccess);
  EXPECT_EQ(can, 0);
  ASSERT_EQ(hipDeviceCanAccessPeer(&can, first_, 0), hipSuccess);  // of another node
  EXPECT_EQ(can, 0);
  EXPECT_EQ(hipDeviceCanAccessPeer(&can, first_, 99), hipErrorInvalidDevice);
  ASSERT_EQ(hipSetDevice(last), hipSuccess);
  EXPECT_EQ(hipDeviceEnablePeerAccess(0, 0), hipErrorPeerAccessUnsupported);
  EXPECT_NE(last_findings().find("not two devices of one node"), std::string::npos);
  (void)hipDeviceDisablePeerAccess(first_);
  EXPECT_EQ(hipDeviceEnablePeerAccess(first_, 0), hipSuccess);
  EXPECT_EQ(hipDeviceEnablePeerAccess(first_, 0), hipErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(hipDeviceDisablePeerAccess(first_), hipSuccess);
  EXPECT_EQ(hipDeviceDisablePeerAccess(first_), hipErrorPeerAccessNotEnabled);
}

TEST_P(NodeTest, PlacesMemoryAsAsked) {
  const int last = first_ + GetParam() - 1;
  ASSERT_EQ(hipSetDevice(last), hipSuccess);
  const auto placement = [](const void* pointer) {
    Memory::Range range;
    EXPECT_TRUE(runtime().memory->find(reinterpret_cast<uint64_t>(pointer), range));
    return range.placement;
  };
  const auto expect = [&](auto allocate, int home, Grain grain) {
    void* pointer = nullptr;
    ASSERT_EQ(allocate(&pointer), hipSuccess);
    EXPECT_EQ(placement(pointer).home, home);
    EXPECT_EQ(placement(pointer).grain, grain);
    EXPECT_EQ(hipFree(pointer), hipSuccess);
  };
  const auto device = [](unsigned flags) {
    return [=](void** to) { return hipExtMallocWithFlags(to, 8, flags); };
  };
  const auto host = [](unsigned flags) {
    return [=](void** to) { return hipHostMalloc(to, 8, flags); };
  };
  expect([](void** to) { return hipMalloc(to, 8); }, last, Grain::coarse);
  expect(device(hipDeviceMallocDefault), last, Grain::coarse);
  expect(device(hipDeviceMallocFinegrained), last, Grain::fine);
  expect(device(hipDeviceMallocUncached), last, Grain::uncached);
  expect(host(0), kHost, Grain::fine);
  expect(host(hipHostMallocCoherent), kHost, Grain::fine);
  expect(host(hipHostMallocNonCoherent), kHost, Grain::coarse);
  void* p = nullptr;
  EXPECT_EQ(hipExtMallocWithFlags(&p, 8, 77), hipErrorInvalidValue);
  EXPECT_EQ(hipHostMalloc(&p, 8, hipHostMallocCoherent | hipHostMallocNonCoherent),
            hipErrorInvalidValue);
  ASSERT_EQ(hipMallocManaged(&p, 8, hipMemAttachGlobal), hipSuccess);
  EXPECT_EQ(placement(p).home, kHost);
  EXPECT_EQ(placement(p).grain, Grain::fine);
  EXPECT_EQ(hipMemAdvise(p, 8, hipMemAdviseSetCoarseGrain, last), hipSuccess);
  EXPECT_EQ(placement(p).grain, Grain::coarse);
  EXPECT_EQ(hipMemAdvise(p, 4, hipMemAdviseUnsetCoarseGrain, last), hipErrorNotSupported);
  EXPECT_EQ(hipFree(p), hipSuccess);
  std::vector<int> mine(100);
  ASSERT_EQ(hipHostRegister(mine.data(), 400, 0), hipSuccess);
  EXPECT_EQ(placement(mine.data() + 99).home, kHost);
  EXPECT_EQ(hipHostRegister(mine.data() + 50, 4, 0), hipErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(hipFree(mine.data()), hipErrorInvalidValue);
  EXPECT_EQ(hipHostUnregister(mine.data()), hipSuccess);
  EXPECT_EQ(hipHostUnregister(mine.data()), hipErrorHostMemoryNotRegistered);
}

INSTANTIATE_TEST_SUITE_P(Sizes, NodeTest, testing::Values(2, 8),
                         [](const auto& info) { return std::to_string(info.param); });

}  // namespace
}  // namespace weft::sim

// How units that share jobs merge their parts, whoever comes late or does not wait.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "arch/hopper/test_memory.h"
#include "ops/hopper_key_shares.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = 64;
constexpr int kUnits = 24;  ///< a share each of a job at most

struct Deal {
  const int32_t* lengths;
  int jobs;
  int patience;
  int late;  ///< every third unit looks so often at nothing before it comes
  uint32_t* counters;
  int32_t* parts;   ///< [job]
  int32_t* merged;  ///< [job][kUnits]: how often each share
};

__global__ void deal_and_merge(Deal deal) {
  __shared__ KeyShares<32>::Scratch scratch;
  __shared__ SharedSegments segments;
  const auto unit = static_cast<int>(blockIdx.x);
  auto shares = KeyShares<32>::deal<kThreads>({.lengths = deal.lengths, .count = deal.jobs}, kUnits,
                                              unit, scratch);
  int count = 0;
  for (KeySegment segment; shares.next(segment);) {
    if (!segment.whole()) {
      if (threadIdx.x == 0) {
        segments.put(count, segment);
      }
      ++count;
    }
  }
  for (int i = 0; unit % 3 == 0 && i < deal.late; ++i) {
    load_acquire(deal.counters + deal.jobs);
  }
  merge_shared<kThreads>(
      segments, count, shares, static_cast<int>(threadIdx.x), 1, deal.patience,
      [&](int job) { return deal.counters + job; },
      [&](const KeySegment& segment, int parts, int /*first*/, int share) {
        if (threadIdx.x == 0) {
          deal.parts[segment.job] = parts;
          atomicAdd(deal.merged + segment.job * kUnits + share, 1);
        }
      });
}

TEST(MergeShared, EachShareIsMergedOnce) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    GTEST_SKIP() << "no GPU";
  }
  const std::vector<std::vector<int32_t>> all_lengths = {
      {5000}, {700, 1, 2400, 0, 90, 3000}, {640, 640, 640, 640, 640}};
  for (const std::vector<int32_t>& of_jobs : all_lengths) {
    const auto jobs = static_cast<int>(of_jobs.size());
    const Memory<int32_t> lengths(of_jobs);
    const Memory<uint32_t> counters(std::vector<uint32_t>(jobs + 1));
    for (const int patience : {0, 1, 20, kMergePatience, 1 << 20}) {
      for (const int late : {0, 30, 1000}) {
        SCOPED_TRACE(testing::Message() << jobs << " jobs, " << patience << ", " << late);
        const Memory<int32_t> parts(std::vector<int32_t>(jobs, 0));
        const Memory<int32_t> merged(std::vector<int32_t>(jobs * kUnits, 0));
        deal_and_merge<<<kUnits, kThreads>>>({.lengths = lengths.data(),
                                              .jobs = jobs,
                                              .patience = patience,
                                              .late = late,
                                              .counters = counters.data(),
                                              .parts = parts.data(),
                                              .merged = merged.data()});
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        const std::vector<int32_t> of = parts.read();
        EXPECT_GT(std::accumulate(of.begin(), of.end(), 0), jobs);
        const std::vector<int32_t> times = merged.read();
        for (int job = 0; job < jobs; ++job) {
          for (int share = 0; share < kUnits; ++share) {
            EXPECT_EQ(times[job * kUnits + share], share < of[job] ? 1 : 0) << job << " " << share;
          }
        }
        for (const uint32_t counter : counters.read()) {
          EXPECT_EQ(counter, 0u);
        }
      }
    }
  }
}

}  // namespace
}  // namespace weft::hopper

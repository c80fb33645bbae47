#include "engine/worker_team.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace weft {
namespace {

// Of numbers that are no atomics: ThreadSanitizer sees a round that does not wait for the one
// before.
TEST(WorkerTeam, EachRoundSeesWhatAllDidInTheOneBefore) {
  constexpr size_t kWorkers = 3;
  constexpr int64_t kRounds = 200;
  constexpr int64_t kPause = 20;  // rounds before one after which workers and caller sleep
  const auto sleep = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  WorkerTeam team(kWorkers);
  std::vector<int64_t> before(kWorkers, 0), after(kWorkers, 0);
  for (int64_t round = 0; round < kRounds; ++round) {
    team.run([&](int worker) {
      const auto i = static_cast<size_t>(worker);
      after[i] = before[(i + 1) % kWorkers] + 1;
      if (worker > 0 && round % kPause == 0) {
        sleep();  // run() waits for longer than it looks out
      }
    });
    std::swap(before, after);
    if (round % kPause == 1) {
      sleep();  // and so do the workers
    }
  }
  EXPECT_EQ(before, std::vector<int64_t>(kWorkers, kRounds));
}

}  // namespace
}  // namespace weft

// What is computed here for a fast device is computed in all threads, or the device waits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/range.h"

namespace weft::trial {

/// Calls f(Range) for parts of [0, size), each in a thread of its own, and waits.
template <class F>
void for_parts(int64_t size, F&& f) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t count = std::max<int64_t>(1, std::min(cores, size));
  std::vector<std::thread> threads;
  for (int64_t i = 1; i < count; ++i) {
    threads.emplace_back([&f, part = Range{size * i / count, size * (i + 1) / count}] { f(part); });
  }
  f(Range{0, size / count});
  for (std::thread& thread : threads) {
    thread.join();
  }
}

}  // namespace weft::trial

// What the plans of operations on rows share on sm_90a.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/divide.h"

namespace weft::hopper {

inline constexpr std::string_view kNoFnuz = "sm_90a converts to e4m3fn, not to e4m3fnuz";
inline constexpr int kMostCluster = 8;

/// Threads that have one chunk of 8 numbers each of a row that `cluster` blocks share: whole warps,
/// at most 1024.
constexpr int threads_for(int64_t columns, int cluster) {
  const int64_t chunks = (columns / 8 + cluster - 1) / cluster;
  const int64_t threads = round_up(chunks, 32);
  return static_cast<int>(threads < 1024 ? threads : 1024);
}

}  // namespace weft::hopper

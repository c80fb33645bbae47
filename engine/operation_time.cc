#include "engine/operation_time.h"

#include <algorithm>

namespace weft {

void OperationTimes::add(const OperationTime& time) {
  const auto [place, added] = places_.emplace(time.name, sums_.size());
  if (added) {
    sums_.push_back({.name = time.name});
  }
  OperationTime& sum = sums_[place->second];
  ++sum.instructions;
  sum.wait += time.wait;
  sum.work += time.work;
  sum.signal += time.signal;
  sum.slowest = std::max(sum.slowest, time.slowest);
}

std::vector<OperationTime> OperationTimes::means() const {
  std::vector<OperationTime> result = sums_;
  for (OperationTime& time : result) {
    const auto count = static_cast<double>(time.instructions);
    time.wait /= count;
    time.work /= count;
    time.signal /= count;
  }
  return result;
}

}  // namespace weft

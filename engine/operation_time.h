// What workers spent on a program's operations, for `weft bench decode --profile`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft {

/// What workers spent on an operation's instructions: means over the instructions, in seconds, of
/// the last step on a GPU, of all steps of the last decode() on the CPU.
struct OperationTime {
  std::string name;
  int64_t instructions = 0;
  double wait = 0;  ///< for events; data that carries its own readiness is waited for in `work`
  double work = 0;
  double signal = 0;   ///< on the CPU part of `work`
  double slowest = 0;  ///< longest work
};

/// Puts the times of instructions together by their operations' names, in the order in which these
/// come.
class OperationTimes {
 public:
  /// Of one instruction; `time.name` is its operation's, `time.instructions` is not looked at.
  void add(const OperationTime& time);
  std::vector<OperationTime> means() const;

 private:
  std::vector<OperationTime> sums_;
  std::map<std::string, size_t> places_;  // in sums_
};

}  // namespace weft

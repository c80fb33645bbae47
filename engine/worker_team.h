// A fixed team of threads, each pinned to a core, that runs one function together, again and again.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace weft {

class WorkerTeam {
 public:
  /// `workers` >= 1. The caller of run() is worker 0, so workers - 1 threads are started.
  explicit WorkerTeam(int workers);
  ~WorkerTeam();
  WorkerTeam(const WorkerTeam&) = delete;
  WorkerTeam& operator=(const WorkerTeam&) = delete;

  int size() const { return static_cast<int>(threads_.size()) + 1; }

  /// Calls function(worker) on every worker at once and returns when all have returned. Not
  /// reentrant; the function must not throw.
  void run(const std::function<void(int worker)>& function);

 private:
  void work(int worker);
  /// Waits for the round after `seen`; false: the team ends.
  bool wait_for_round(uint64_t seen);

  const std::function<void(int)>* function_ = nullptr;
  std::atomic<uint64_t> round_{0};
  std::atomic<int> busy_{0};
  std::atomic<bool> quit_{false};

  // For who has waited long.
  std::mutex mutex_;
  std::condition_variable start_, done_;
  int parked_ = 0;        // workers that wait on start_
  bool waiting_ = false;  // run() waits on done_
  std::vector<std::thread> threads_;
};

}  // namespace weft

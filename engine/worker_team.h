// A fixed team of threads, each pinned to a core, that runs one function together, again and again.
#pragma once

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

  std::mutex mutex_;
  std::condition_variable start_, done_;
  const std::function<void(int)>* function_ = nullptr;
  uint64_t round_ = 0;
  int busy_ = 0;
  bool quit_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace weft

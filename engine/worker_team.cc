#include "engine/worker_team.h"

#include "arch/cpu/threads.h"
#include "base/check.h"

namespace weft {

WorkerTeam::WorkerTeam(int workers) {
  WEFT_CHECK(workers >= 1);
  (void)cpu::usable_cpus();  // learn the cores before any thread is pinned to one
  threads_.reserve(static_cast<size_t>(workers) - 1);
  for (int worker = 1; worker < workers; ++worker) {
    threads_.emplace_back([this, worker] { work(worker); });
  }
}

WorkerTeam::~WorkerTeam() {
  {
    const std::lock_guard lock(mutex_);
    quit_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void WorkerTeam::run(const std::function<void(int)>& function) {
  {
    const std::lock_guard lock(mutex_);
    WEFT_CHECK(busy_ == 0);
    function_ = &function;
    busy_ = static_cast<int>(threads_.size());
    ++round_;
  }
  start_.notify_all();
  // The caller belongs to the program around us: it is pinned only while it works here.
  const cpu::PinnedThread pinned(0);
  function(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void WorkerTeam::work(int worker) {
  cpu::pin_thread(worker);
  uint64_t seen = 0;
  for (;;) {
    const std::function<void(int)>* function = nullptr;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return quit_ || round_ != seen; });
      if (quit_) {
        return;
      }
      seen = round_;
      function = function_;
    }
    (*function)(worker);
    bool last = false;
    {
      const std::lock_guard lock(mutex_);
      last = --busy_ == 0;
    }
    if (last) {
      done_.notify_one();
    }
  }
}

}  // namespace weft

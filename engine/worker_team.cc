#include "engine/worker_team.h"

#include <sched.h>

#include <chrono>

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

namespace {

/// Looks at `is_so` for as long as the time between two steps of a model takes; true: it is so.
/// Waking a thread that sleeps takes longer than much of a step.
template <class Condition>
bool spin_until(const Condition& is_so) {
  constexpr auto kLimit = std::chrono::microseconds(200);
  constexpr int kLooks = 64;
  const auto end = std::chrono::steady_clock::now() + kLimit;
  do {
    for (int i = 0; i < kLooks; ++i) {
      if (is_so()) {
        return true;
      }
      __builtin_ia32_pause();
    }
    sched_yield();  // another thread may wait for this core
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

void WorkerTeam::run(const std::function<void(int)>& function) {
  WEFT_CHECK(busy_ == 0);
  function_ = &function;
  busy_ = static_cast<int>(threads_.size());
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    ++round_;
    wake = parked_ > 0;
  }
  if (wake) {
    start_.notify_all();
  }
  // The caller belongs to the program around us: it is pinned only while it works here.
  const cpu::PinnedThread pinned(0);
  function(0);
  const auto all_returned = [this] { return busy_ == 0; };
  if (spin_until(all_returned)) {
    return;
  }
  std::unique_lock lock(mutex_);
  waiting_ = true;
  done_.wait(lock, all_returned);
  waiting_ = false;
}

bool WorkerTeam::wait_for_round(uint64_t seen) {
  const auto begins = [&] { return round_ != seen || quit_; };
  if (!spin_until(begins)) {
    std::unique_lock lock(mutex_);
    ++parked_;
    start_.wait(lock, begins);
    --parked_;
  }
  return !quit_;
}

void WorkerTeam::work(int worker) {
  cpu::pin_thread(worker);
  for (uint64_t seen = 0; wait_for_round(seen);) {
    seen = round_;
    (*function_)(worker);
    if (--busy_ == 0) {
      const std::lock_guard lock(mutex_);
      if (waiting_) {
        done_.notify_one();
      }
    }
  }
}

}  // namespace weft

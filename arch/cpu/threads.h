// Threads and the cores they run on.
#pragma once

#include <sched.h>

namespace weft::cpu {

/// Cores this process may run on (its affinity mask when the program started).
int usable_cpus();

/// Keeps the calling thread on the worker-th usable core, counted round when there are more workers
/// than cores. A refusal by the system is ignored: it costs speed, not results.
void pin_thread(int worker);

/// Keeps the calling thread on the cores that pin_thread() gives to none of the workers 0 to
/// `workers` - 1; nothing where they have all.
void keep_off_workers(int workers);

/// Pins the calling thread while it lives, then gives it back the cores it had. Costs little where
/// the thread is pinned there already.
class PinnedThread {
 public:
  explicit PinnedThread(int worker);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  cpu_set_t before_;
  bool pinned_ = false;
};

}  // namespace weft::cpu

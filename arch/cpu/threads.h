// Threads and the cores they run on.
#pragma once

#include <sched.h>

namespace weft::cpu {

/// Cores this process may run on (its affinity mask when the program started).
int usable_cpus();

/// Keeps the calling thread on the worker-th usable core, counted round when there are more workers
/// than cores. A refusal by the system is ignored: it costs speed, not results.
void pin_thread(int worker);

/// Pins the calling thread while it lives, then gives it back the cores it had.
class PinnedThread {
 public:
  explicit PinnedThread(int worker);
  ~PinnedThread();
  PinnedThread(const PinnedThread&) = delete;
  PinnedThread& operator=(const PinnedThread&) = delete;

 private:
  cpu_set_t before_;
  bool known_ = false;
};

}  // namespace weft::cpu

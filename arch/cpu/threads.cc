#include "arch/cpu/threads.h"

#include <vector>

namespace weft::cpu {
namespace {

/// Taken once, before any thread is pinned: a pinned thread's own mask has one core.
const std::vector<int>& cores() {
  static const std::vector<int> list = [] {
    std::vector<int> found;
    cpu_set_t mask;
    CPU_ZERO(&mask);
    if (sched_getaffinity(0, sizeof mask, &mask) == 0) {
      for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &mask)) {
          found.push_back(cpu);
        }
      }
    }
    if (found.empty()) {
      found.push_back(0);
    }
    return found;
  }();
  return list;
}

}  // namespace

int usable_cpus() { return static_cast<int>(cores().size()); }

void pin_thread(int worker) {
  const auto& list = cores();
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(list[static_cast<size_t>(worker) % list.size()], &mask);
  (void)sched_setaffinity(0, sizeof mask, &mask);
}

PinnedThread::PinnedThread(int worker) {
  (void)usable_cpus();  // before this thread's mask shrinks
  known_ = sched_getaffinity(0, sizeof before_, &before_) == 0;
  pin_thread(worker);
}

PinnedThread::~PinnedThread() {
  if (known_) {
    (void)sched_setaffinity(0, sizeof before_, &before_);
  }
}

}  // namespace weft::cpu

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

cpu_set_t core_of(int worker) {
  const auto& list = cores();
  cpu_set_t mask;
  CPU_ZERO(&mask);
  CPU_SET(list[static_cast<size_t>(worker) % list.size()], &mask);
  return mask;
}

}  // namespace

int usable_cpus() { return static_cast<int>(cores().size()); }

void pin_thread(int worker) {
  const cpu_set_t mask = core_of(worker);
  (void)sched_setaffinity(0, sizeof mask, &mask);
}

void keep_off_workers(int workers) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (size_t i = static_cast<size_t>(workers); i < cores().size(); ++i) {
    CPU_SET(cores()[i], &mask);
  }
  if (CPU_COUNT(&mask) > 0) {
    (void)sched_setaffinity(0, sizeof mask, &mask);
  }
}

PinnedThread::PinnedThread(int worker) {
  const cpu_set_t mask = core_of(worker);
  pinned_ = sched_getaffinity(0, sizeof before_, &before_) == 0 && !CPU_EQUAL(&before_, &mask) &&
            sched_setaffinity(0, sizeof mask, &mask) == 0;
}

PinnedThread::~PinnedThread() {
  if (pinned_) {
    (void)sched_setaffinity(0, sizeof before_, &before_);
  }
}

}  // namespace weft::cpu

#include "ops/harness/bench.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <optional>
#include <thread>

#include "arch/cpu/limits.h"
#include "arch/cpu/threads.h"
#include "base/median.h"
#include "base/pages.h"
#include "ops/harness/placed.h"

namespace weft::trial {
namespace {

using Clock = std::chrono::steady_clock;

// Read between runs so that nothing of the case is left in a cache; also what the bandwidth is
// measured on. Several times the largest last-level caches that a few cores reach.
constexpr size_t kFlushBytes = size_t{256} << 20;
constexpr double kSeconds = 0.3;  // of timed runs a case, within these numbers of runs
constexpr int64_t kFewestRuns = 5;
constexpr int64_t kMostRuns = 200;

/// A barrier that spins: waking a sleeping thread takes longer than the smaller operations do.
class SpinBarrier {
 public:
  explicit SpinBarrier(int threads) : threads_(threads) {}
  void wait() {
    const int64_t round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    for (int spins = 0; round_.load(std::memory_order_acquire) == round; ++spins) {
      if (spins > 10000) {
        std::this_thread::yield();  // more threads than cores: let them come
      }
    }
  }

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<int64_t> round_{0};
};

/// One worker's part of reading the flush buffer.
uint64_t read_share(const Pages& memory, Piece piece) {
  const Range range = share(static_cast<int64_t>(memory.size()), piece, 64);
  uint64_t sum = 0;
  for (int64_t i = range.begin; i < range.end; i += 64) {
    uint64_t word;
    std::memcpy(&word, memory.data() + i, sizeof(word));
    sum += word;
  }
  return sum;
}

/// Runs the trial until enough was timed. Every run starts restored and with cold caches.
std::vector<double> time_runs(Trial& trial, int threads, const Pages& flush) {
  SpinBarrier barrier(threads);
  std::vector<double> seconds;
  std::atomic<bool> done = false;
  std::atomic<uint64_t> sink = 0;
  const auto worker = [&](int index) {
    const cpu::PinnedThread pinned(index);
    const Piece piece{index, threads};
    double total = 0;
    while (true) {
      if (index == 0) {
        const auto runs = static_cast<int64_t>(seconds.size());
        done = runs >= kMostRuns || (runs >= kFewestRuns && total >= kSeconds);
        trial.restore();
      }
      barrier.wait();
      if (done) {
        return;
      }
      sink += read_share(flush, piece);
      barrier.wait();
      const auto start = Clock::now();  // before anyone can start
      barrier.wait();
      for (int phase = 0; phase < trial.phases(); ++phase) {
        trial.run(phase, piece);
        barrier.wait();
      }
      if (index == 0) {
        seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
        total += seconds.back();
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back(worker, i);
  }
  worker(0);
  for (std::thread& thread : others) {
    thread.join();
  }
  return seconds;
}

void set_times(const std::vector<double>& seconds, BenchOutcome& outcome) {
  const auto [best, slowest] = std::minmax_element(seconds.begin(), seconds.end());
  outcome.runs = static_cast<int64_t>(seconds.size());
  outcome.best = *best;
  outcome.median = median(seconds);
  outcome.slowest = *slowest;
}

/// Checks and times a trial on the CPU.
void bench_on_cpu(Trial& trial, int threads, const Pages& flush, Random& random,
                  BenchOutcome& outcome) {
  const std::vector<Expectation> expectations = expect_some_rows(trial, random);
  trial.prepare(threads);
  trial.restore();
  trial.run_all(threads);
  auto mismatch = compare(expectations);
  if (!mismatch) {
    mismatch = trial.damage();
  }
  if (mismatch) {
    outcome.mismatch = mismatch->message;
    return;
  }
  // Before and after: the machine's other work comes and goes.
  const auto measure_limits = [&] {
    const auto memory = std::span(flush.data(), flush.size());
    const double bandwidth = cpu::read_bandwidth(threads, memory).best;
    // fp8 is multiplied as bf16.
    const double peak =
        outcome.work.peak == Peak::f32 ? cpu::f32_peak(threads).best : cpu::bf16_peak(threads).best;
    outcome.bandwidth = std::max(outcome.bandwidth, bandwidth);
    outcome.peak = std::max(outcome.peak, peak);
  };
  measure_limits();
  const std::vector<double> seconds = time_runs(trial, threads, flush);
  measure_limits();
  set_times(seconds, outcome);
}

/// Checks a trial on a device, and times or counts it.
Status bench_on_device(std::unique_ptr<Trial> trial, const BenchOptions& options, Random& random,
                       BenchOutcome& outcome) {
  Device& device = *options.device;
  const DeviceInfo& info = device.info();
  const Plan plan = trial->plan(info);
  if (plan.kernel.empty()) {
    outcome.skipped = plan.why;
    return {};
  }
  outcome.plan = plan;
  outcome.bandwidth = info.bandwidth;
  outcome.peak = info.peak[static_cast<size_t>(outcome.work.peak)];
  WEFT_ASSIGN(PlacedTrial placed,
              PlacedTrial::place(std::move(trial), device, {&plan, 1}, random, options.in_a_row));
  WEFT_ASSIGN(const auto mismatch, placed.check(plan));
  if (mismatch) {
    outcome.mismatch = mismatch->message;
  } else if (info.keeps_time) {
    WEFT_ASSIGN(const std::vector<double> seconds, placed.time(plan, options.runs));
    set_times(seconds, outcome);
  } else {
    WEFT_ASSIGN(outcome.counters, placed.count(plan));
  }
  return {};
}

}  // namespace

double BenchOutcome::limit() const {
  const double bytes = bandwidth > 0 ? work.bytes / bandwidth : 0;
  return std::max(bytes, peak > 0 ? work.flops / peak : 0);
}

bool BenchOutcome::memory_bound() const {
  return peak <= 0 || work.bytes / bandwidth >= work.flops / peak;
}

Result<BenchReport> bench_operations(const BenchOptions& options,
                                     const std::function<void(const BenchOutcome&)>& report) {
  WEFT_TRY(check_in_a_row(options.in_a_row, options.device));
  WEFT_ASSIGN(const auto selected, select_cases(options.selection, {Use::bench}));
  BenchReport result;
  Pages flush;
  if (options.device == nullptr) {
    WEFT_ASSIGN(flush, Pages::allocate(kFlushBytes, true));
    std::memset(flush.data(), 1, flush.size());  // untouched pages are one page of zeros
  } else if (options.device->info().keeps_time) {
    WEFT_ASSIGN(const std::vector<double> seconds,
                options.device->time([](Stream /*own*/) { return Status(); }, options.runs));
    result.empty_run = median(seconds);
  }
  double logarithms = 0;
  int64_t timed = 0;
  for (const SelectedCase& each : selected) {
    Random random = random_for(each, options.seed);
    std::unique_ptr<Trial> trial = each.info.make(random);
    BenchOutcome outcome;
    outcome.selected = each;
    outcome.work = trial->work();
    if (options.device != nullptr) {
      WEFT_TRY(bench_on_device(std::move(trial), options, random, outcome));
    } else {
      bench_on_cpu(*trial, options.threads, flush, random, outcome);
    }
    result.failed += outcome.mismatch.empty() ? 0 : 1;
    if (outcome.timed() && outcome.limit() > 0) {
      logarithms += std::log(outcome.limit() / outcome.median);
      ++timed;
    }
    report(outcome);
    result.outcomes.push_back(std::move(outcome));
  }
  result.mean_share = timed > 0 ? std::exp(logarithms / static_cast<double>(timed)) : 0;
  return result;
}

}  // namespace weft::trial

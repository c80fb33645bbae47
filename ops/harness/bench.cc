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
#include "base/pages.h"

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

/// Rows that are compared: the reference takes far longer than the kernel, so the first, the last
/// and one between stand for all; `weft check` looks at every element.
std::vector<Expectation> expectations_of(Trial& trial, Random& random) {
  const int64_t rows = trial.rows();
  std::vector<int64_t> some{0};
  if (rows > 1) {
    some.push_back(rows - 1);
  }
  if (rows > 2) {
    some.push_back(1 + random.below(rows - 2));
  }
  std::vector<Expectation> result;
  for (const int64_t r : some) {
    for (Expectation& each : trial.expect({r, r + 1})) {
      result.push_back(std::move(each));
    }
  }
  return result;
}

}  // namespace

double BenchOutcome::limit() const { return std::max(work.bytes / bandwidth, work.flops / peak); }

bool BenchOutcome::memory_bound() const { return work.bytes / bandwidth >= work.flops / peak; }

Result<BenchReport> bench_operations(const BenchOptions& options,
                                     const std::function<void(const BenchOutcome&)>& report) {
  WEFT_ASSIGN(const auto selected, select_cases(options.selection, Use::bench));
  WEFT_ASSIGN(const Pages flush, Pages::allocate(kFlushBytes, true));
  std::memset(flush.data(), 1, flush.size());  // untouched pages are one page of zeros

  BenchReport result;
  double logarithms = 0;
  for (const SelectedCase& each : selected) {
    Random random = random_for(each, options.seed);
    const std::unique_ptr<Trial> trial = each.operation->make(each.index, random);
    BenchOutcome outcome;
    outcome.selected = each;
    outcome.work = trial->work();

    const std::vector<Expectation> expectations = expectations_of(*trial, random);
    trial->prepare(options.threads);
    trial->restore();
    trial->run_all(options.threads);
    auto mismatch = compare(expectations);
    if (!mismatch) {
      mismatch = trial->damage();
    }
    if (mismatch) {
      outcome.mismatch = mismatch->message;
      ++result.failed;
    } else {
      // Before and after: the machine's other work comes and goes.
      const auto measure_limits = [&] {
        const auto memory = std::span(flush.data(), flush.size());
        const double bandwidth = cpu::read_bandwidth(options.threads, memory).best;
        const double peak = outcome.work.peak == Peak::bf16 ? cpu::bf16_peak(options.threads).best
                                                            : cpu::f32_peak(options.threads).best;
        outcome.bandwidth = std::max(outcome.bandwidth, bandwidth);
        outcome.peak = std::max(outcome.peak, peak);
      };
      measure_limits();
      std::vector<double> seconds = time_runs(*trial, options.threads, flush);
      measure_limits();
      std::sort(seconds.begin(), seconds.end());
      outcome.runs = static_cast<int64_t>(seconds.size());
      outcome.best = seconds.front();
      outcome.median = seconds[seconds.size() / 2];
      outcome.slowest = seconds.back();
      logarithms += std::log(outcome.limit() / outcome.median);
    }
    report(outcome);
    result.outcomes.push_back(std::move(outcome));
  }
  const auto right =
      static_cast<double>(result.outcomes.size()) - static_cast<double>(result.failed);
  result.mean_share = right > 0 ? std::exp(logarithms / right) : 0;
  return result;
}

}  // namespace weft::trial

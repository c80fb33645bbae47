// What runs the steps of several sequences on one device, whose KV caches share one pool of pages:
// the lower half of Slots. It knows rows and pages, not whose they are.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"

namespace weft {

/// A token to be fed and the pages of its sequence (KvCache::tables), which hold what is before it.
struct StepRow {
  int32_t token = 0;
  int32_t position = 0;
  const int32_t* table = nullptr;
};

class BatchRunner {
 public:
  BatchRunner() = default;
  BatchRunner(const BatchRunner&) = delete;
  BatchRunner& operator=(const BatchRunner&) = delete;
  virtual ~BatchRunner() = default;

  /// A sequence has the pages of `table` from now on, until it leaves. Those of its prompt that are
  /// full may be in tables of others too, and hold what was fed of it.
  virtual void enter(const int32_t* table) { (void)table; }
  virtual void leave(const int32_t* table) { (void)table; }

  /// Feeds tokens of a prompt (1 to most_fed()) at positions `first` onward: their keys and values
  /// go to the cache, the same bits however a prompt is cut. Positions up to kFedBeyond behind the
  /// last may be written too: the table has an entry for them, PagePool::kNoPage where the sequence
  /// has no page.
  static constexpr int64_t kFedBeyond = 16;
  virtual Status feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) = 0;
  /// Waits until what feed() has had so far has been fed.
  virtual Status settle() { return {}; }
  /// Whether a step feeds it too, in place of settle(); run() takes one step then. A row may follow
  /// what is fed of its own sequence.
  virtual bool mixes() const { return false; }
  /// Feeds each row's token (1 to most_rows() rows). Rows that follow one another may be
  /// consecutive tokens of one sequence. Returns logits [rows.size()][vocabulary], which the caller
  /// may change, until the next call. A row's bits depend on no other row.
  virtual Result<std::span<float>> step(std::span<const StepRow> rows) = 0;
  /// The same, but returns what has the best logit after each row [rows.size()], until the next
  /// call. For runners with most_steps().
  virtual Result<std::span<const int32_t>> step_best(std::span<const StepRow> rows);
  /// Feeds each row's token, rows of different sequences, and then, up to most_steps() in all, what
  /// has the best logit after it: on_best gets those tokens as they come, a row's in order, and
  /// says whether the row is to go on.
  using OnBest = std::function<bool(size_t row, int32_t token)>;
  virtual Status run(std::span<const StepRow> rows, int64_t steps, const OnBest& on_best);
  /// 0: the runner takes one step at a time.
  virtual int64_t most_steps() const { return 0; }
  /// Copies a page of every layer; either may be one in host memory, whose numbers follow.
  virtual Status copy_page(int32_t from, int32_t to) = 0;

  virtual int64_t most_fed() const = 0;
  /// How many rows' time feeding so many tokens takes: a few take as long as more would.
  virtual int64_t rows_fed(int64_t tokens) const { return tokens; }
  virtual int64_t most_rows() const = 0;
  /// Pinned threads that a step keeps busy (cpu::pin_thread), the caller as the first; 0: a GPU's.
  virtual int cpu_workers() const { return 0; }
};

inline Status BatchRunner::run(std::span<const StepRow> /*rows*/, int64_t /*steps*/,
                               const OnBest& /*on_best*/) {
  return usage_error("this runner takes one step at a time");
}

inline Result<std::span<const int32_t>> BatchRunner::step_best(std::span<const StepRow> /*rows*/) {
  return usage_error("this runner returns logits");
}

}  // namespace weft

#include "engine/hopper/batch_runner.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "arch/hopper/device.h"
#include "arch/hopper/handle.h"
#include "base/divide.h"
#include "engine/hopper/kv_pages.h"
#include "engine/hopper/rows.h"
#include "engine/prefill/plan.h"
#include "engine/resident/code.h"
#include "ops/matrix.h"

namespace weft::hopper {
namespace {

// Steps of a launch: few enough for who joins not to wait long, enough to make little of what a
// launch costs.
constexpr int64_t kMostSteps = 8;

Status check(cudaError_t error, std::string_view what) {
  return error == cudaSuccess
             ? Status{}
             : device_error(fmt::format("cuda: {} failed: {}", what, cudaGetErrorString(error)));
}

class HopperBatchRunner : public BatchRunner {
 public:
  HopperBatchRunner(const ModelConfig& config, const BatchRunnerOptions& options)
      : config_(config), options_(options), caches_() {
    // Of a launch of several steps a sequence that ends at its context is stepped with the others.
    options_.runner.capacity = round_up(options.runner.capacity + kMostSteps, kKvPage);
    options_.runner.fed = options.chunk;
    seats_.resize(static_cast<size_t>(options.runner.sequences));
  }

  Status create(const Weights& weights, int64_t& pages);

  void enter(const int32_t* table) override;
  void leave(const int32_t* table) override;
  Status feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) override;
  Status settle() override;
  bool mixes() const override { return mixes_; }
  Result<std::span<float>> step(std::span<const StepRow> rows) override;
  Result<std::span<const int32_t>> step_best(std::span<const StepRow> rows) override;
  Status run(std::span<const StepRow> rows, int64_t steps, const OnBest& on_best) override;
  Status copy_page(int32_t from, int32_t to) override;
  int64_t most_fed() const override { return options_.chunk; }
  int64_t most_rows() const override {
    return options_.drafts ? rows_->most_launched() : options_.runner.sequences;
  }
  int64_t most_steps() const override { return kMostSteps; }

 private:
  /// A row of the resident kernel.
  struct Seat {
    const int32_t* table = nullptr;  ///< whose it is; null: nobody's
    int64_t held = 0;  ///< positions that its cache holds, or will when what waits has been fed
  };
  /// What is to be fed.
  struct Waiting {
    std::vector<int32_t> tokens;
    int64_t first = 0;
    int seat = 0;
  };
  int seat_of(const int32_t* table) const;
  Seat& at(int seat) { return seats_[static_cast<size_t>(seat)]; }
  /// Copies pages first .. last - 1 of a sequence to or from the pool.
  Status copy_pages(int seat, int64_t first, int64_t last, bool to_pool);
  /// Brings what is before `position` from the sequence's pages, where its cache lacks it.
  Status bring(int seat, int64_t position);
  std::vector<FedChunk> waiting() const;
  /// What waited has been fed: others get the pages that are full.
  Status share_fed();
  cudaStream_t stream() { return static_cast<cudaStream_t>(rows_->device().stream().native); }

  const ModelConfig& config_;
  BatchRunnerOptions options_;
  std::unique_ptr<Rows> rows_;
  PagedCaches caches_;
  DeviceMemory pool_, cache_list_;
  int64_t pages_ = 0;                   // of the pool
  Handle<void*, cudaFreeHost> host_;    // further ones, pinned
  Handle<void*, cudaFreeHost> logits_;  // f32 [sequences, vocabulary], pinned
  std::vector<Seat> seats_;
  std::vector<Waiting> waiting_;
  bool mixes_ = false;
};

Status HopperBatchRunner::create(const Weights& weights, int64_t& pages) {
  if (options_.runner.sequences <= resident::kMostSequences) {
    WEFT_ASSIGN(rows_, create_rows(config_, weights, options_.runner));
  } else {
    WEFT_ASSIGN(rows_, create_launched_rows(config_, weights, options_.runner));
  }
  if (options_.drafts && rows_->most_launched() == 0) {
    return input_error(fmt::format(
        "{} has no drafts on {}: they are verified with the weights as the checkpoint has them, "
        "and there is room for packed ones alone: use no --draft",
        config_.name, options_.runner.device));
  }
  mixes_ = rows_->most_launched() > 0 && (!options_.runner.exact || rows_->launches_alike());
  Device& device = rows_->device();
  const std::vector<char*> caches = rows_->caches();
  caches_.count = static_cast<int32_t>(caches.size());
  caches_.heads = static_cast<int32_t>(config_.kv_heads);
  caches_.capacity = options_.runner.capacity;
  caches_.row_bytes = config_.head_dim * static_cast<int64_t>(size_of(options_.runner.kv));
  WEFT_ASSIGN(cache_list_, device.allocate(caches.size() * sizeof(char*)));
  WEFT_TRY(device.upload(cache_list_.data(), caches.data(), caches.size() * sizeof(char*)));
  caches_.caches = reinterpret_cast<char* const*>(cache_list_.data());

  WEFT_ASSIGN(const int64_t free, free_bytes());
  // Prefill makes more when it first needs it.
  const int64_t most = free / 2 / caches_.page_bytes() - 1;
  if (most < 1) {
    return device_error(
        fmt::format("{}: no memory is left for pages of {} positions of {}: use fewer --slots or "
                    "less --context",
                    options_.runner.device, kKvPage, config_.name));
  }
  pages = std::min(pages, most);
  WEFT_ASSIGN(pool_, device.allocate(static_cast<size_t>((pages + 1) * caches_.page_bytes())));
  caches_.pool = reinterpret_cast<char*>(pool_.data());
  pages_ = pages;
  if (options_.host_pages > 0) {
    const int64_t host_bytes = options_.host_pages * caches_.page_bytes();
    if (cudaHostAlloc(host_.put(), static_cast<size_t>(host_bytes), cudaHostAllocDefault) !=
        cudaSuccess) {
      return device_error(fmt::format(
          "{:.1f} GiB of pinned memory for beginnings of prompts cannot be had: use a smaller "
          "--prefix-host-gib",
          static_cast<double>(host_bytes) / (1 << 30)));
    }
  }
  const auto bytes =
      static_cast<size_t>(most_rows()) * static_cast<size_t>(config_.vocabulary) * sizeof(float);
  return check(cudaHostAlloc(logits_.put(), bytes, cudaHostAllocDefault),
               "allocating pinned memory");
}

int HopperBatchRunner::seat_of(const int32_t* table) const {
  return static_cast<int>(std::find_if(seats_.begin(), seats_.end(),
                                       [&](const Seat& seat) { return seat.table == table; }) -
                          seats_.begin());
}

void HopperBatchRunner::enter(const int32_t* table) { at(seat_of(nullptr)) = {table, 0}; }
void HopperBatchRunner::leave(const int32_t* table) { at(seat_of(table)) = {}; }

Status HopperBatchRunner::copy_pages(int seat, int64_t first, int64_t last, bool to_pool) {
  while (first < last) {
    PageList list;
    list.sequence = seat;
    list.first = static_cast<int32_t>(first);
    list.count = static_cast<int32_t>(std::min<int64_t>(PageList::kMost, last - first));
    std::copy_n(at(seat).table + first, list.count, list.page);
    WEFT_TRY(check(launch_copy_pages(caches_, list, to_pool, stream()), "copying pages"));
    first += list.count;
  }
  return {};
}

Status HopperBatchRunner::bring(int seat, int64_t position) {
  if (at(seat).held < position) {
    WEFT_TRY(settle());  // which may be what it brings
    WEFT_TRY(copy_pages(seat, at(seat).held / kKvPage, ceil_div(position, kKvPage), false));
    at(seat).held = position;
  }
  return {};
}

Status HopperBatchRunner::feed(std::span<const int32_t> tokens, int64_t first,
                               const int32_t* table) {
  const int seat = seat_of(table);
  WEFT_TRY(bring(seat, first));
  int64_t rows = std::ssize(tokens);
  for (const Waiting& each : waiting_) {
    rows += std::ssize(each.tokens);
  }
  if (rows > options_.chunk) {
    WEFT_TRY(settle());
  }
  waiting_.push_back({{tokens.begin(), tokens.end()}, first, seat});
  at(seat).held = first + std::ssize(tokens);
  return {};
}

std::vector<FedChunk> HopperBatchRunner::waiting() const {
  std::vector<FedChunk> chunks;
  for (const Waiting& each : waiting_) {
    chunks.push_back({each.tokens, each.first, each.seat});
  }
  return chunks;
}

Status HopperBatchRunner::share_fed() {
  for (const Waiting& each : waiting_) {
    const int64_t end = each.first + std::ssize(each.tokens);
    WEFT_TRY(copy_pages(each.seat, each.first / kKvPage, end / kKvPage, true));
  }
  waiting_.clear();
  return {};
}

Status HopperBatchRunner::settle() {
  if (waiting_.empty()) {
    return {};
  }
  WEFT_TRY(rows_->feed(waiting()));
  WEFT_TRY(share_fed());
  return rows_->device().synchronize();
}

Status HopperBatchRunner::run(std::span<const StepRow> rows, int64_t steps, const OnBest& on_best) {
  std::vector<RowStep> all(seats_.size());
  for (size_t i = 0; i < seats_.size(); ++i) {
    all[i].position = seats_[i].held;  // it writes where its sequence will write anew
  }
  std::vector<size_t> row_of(seats_.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    const int seat = seat_of(rows[i].table);
    WEFT_TRY(bring(seat, rows[i].position));
    all[static_cast<size_t>(seat)] = {rows[i].position, rows[i].token, true};
    row_of[static_cast<size_t>(seat)] = i;
    at(seat).held = rows[i].position;
  }
  if (!waiting_.empty()) {
    WEFT_ASSIGN(const std::span<const int32_t> tokens, step_best(rows));
    for (size_t i = 0; i < rows.size(); ++i) {
      on_best(i, tokens[i]);
    }
    return {};
  }
  return rows_->run_rows(all, steps, [&](int seat, int32_t token) {
    ++at(seat).held;
    return on_best(row_of[static_cast<size_t>(seat)], token);
  });
}

Result<std::span<const int32_t>> HopperBatchRunner::step_best(std::span<const StepRow> rows) {
  std::vector<FedRow> fed;
  for (const StepRow& row : rows) {
    const int seat = seat_of(row.table);
    WEFT_TRY(bring(seat, row.position));
    at(seat).held = row.position + 1;
    fed.push_back({row.token, row.position, seat});
  }
  WEFT_ASSIGN(const std::span<const int32_t> tokens, rows_->launch(fed, waiting()));
  WEFT_TRY(share_fed());
  return tokens;
}

Result<std::span<float>> HopperBatchRunner::step(std::span<const StepRow> rows) {
  const bool drafts = std::ranges::adjacent_find(rows, {}, &StepRow::table) != rows.end();
  const bool launched = drafts || !waiting_.empty();
  if (launched) {
    WEFT_TRY(step_best(rows));
  } else {
    WEFT_TRY(run(rows, 1, [](size_t /*row*/, int32_t /*token*/) { return true; }));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    float* const to =
        static_cast<float*>(logits_.get()) + i * static_cast<size_t>(config_.vocabulary);
    WEFT_TRY(launched ? rows_->copy_launched_logits(i, to)
                      : rows_->copy_logits(seat_of(rows[i].table), to));
  }
  WEFT_TRY(rows_->device().synchronize());
  return std::span(static_cast<float*>(logits_.get()),
                   rows.size() * static_cast<size_t>(config_.vocabulary));
}

Status HopperBatchRunner::copy_page(int32_t from, int32_t to) {
  WEFT_TRY(settle());
  const int64_t bytes = caches_.page_bytes();
  const auto place = [&](int32_t page) {
    return page <= pages_ ? caches_.pool + page * bytes
                          : static_cast<char*>(host_.get()) + (page - pages_ - 1) * bytes;
  };
  return check(cudaMemcpyAsync(place(to), place(from), static_cast<size_t>(bytes),
                               cudaMemcpyDefault, stream()),
               "copying a page");
}

}  // namespace

Result<std::unique_ptr<BatchRunner>> create_batch_runner(const ModelConfig& config,
                                                         const Weights& weights,
                                                         const BatchRunnerOptions& options,
                                                         int64_t& pages) {
  auto runner = std::make_unique<HopperBatchRunner>(config, options);
  WEFT_TRY(runner->create(weights, pages));
  return std::unique_ptr<BatchRunner>(std::move(runner));
}

}  // namespace weft::hopper

#include "engine/slots.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
#include <numeric>

#include "arch/cpu/threads.h"
#include "base/built.h"
#include "base/clock.h"
#include "base/divide.h"
#include "base/pages.h"
#include "engine/chunk_pace.h"
#include "engine/cpu_batch_runner.h"
#include "engine/draft.h"
#include "engine/hopper/batch_runner.h"
#include "engine/page_pool.h"
#include "engine/prefill/plan.h"
#include "engine/resident/code.h"
#include "engine/score.h"

namespace weft {
namespace {

using Clock = std::chrono::steady_clock;

// A chunk while nobody waits for a step.
constexpr int64_t kIdleChunk = 512;
// Steps that a runner takes at once while requests wait for a slot.
constexpr int64_t kStepsWhileOthersWait = 2;
// Tokens that a page must have in common to be copied rather than computed.
constexpr int64_t kWorthCopying = 8;

/// A request with its slot.
struct Sequence {
  RequestId id = 0;
  Request request;
  int64_t limit = 0;                        // new tokens at most
  Stop at_limit = Stop::length;             // why there are no more
  std::vector<int32_t> tokens;              // the prompt and what was drawn
  std::vector<int32_t> table;               // pages; behind them kNoPage
  int64_t pages = 0;                        // in table
  int64_t fed = 0;                          // positions whose keys and values are known
  int64_t shared = 0;                       // positions in pages that are found by content
  PagePool::Chain chain = PagePool::kRoot;  // of those
  int64_t cached = 0;
  int64_t reported = 0;
  Clock::time_point submitted;
  double waited = 0;  // seconds from there to its slot
  std::optional<NgramDrafter> drafter;
  double acceptance = 1;  // of drafts, lately
  int64_t undrafted = 0;  // tokens since the last draft

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  /// All of the prompt but its last token is fed in chunks; that one is the first step's row.
  int64_t to_feed() const { return prompt_size() - 1; }
  bool running() const { return fed >= to_feed(); }
  /// Whether its tokens are the ones with the best logits, and nothing else is asked of those.
  bool takes_best() const {
    return request.sampling.temperature == 0 && request.sampling.repetition_penalty == 1 &&
           !request.adjust && !request.want_logprob && request.logprobs == 0;
  }
  std::span<const int32_t> part(int64_t begin, int64_t end) const {
    return std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  }
};

/// The part of a step that is one sequence's: its next token's row and those of drafts.
struct Turn {
  Sequence* sequence = nullptr;
  size_t first = 0, count = 0;  // rows
};

}  // namespace

class Slots::Impl {
 public:
  Impl(ModelConfig config, std::unique_ptr<BatchRunner> runner, const SlotsOptions& options,
       bool paced)
      : config_(std::move(config)),
        runner_(std::move(runner)),
        options_(options),
        pace_(most_rows(*runner_, options), paced),
        pool_(options.pages, options.host_pages),
        scratch_(Pages::allocate(cpu::sample_scratch_bytes(config_.vocabulary)).value()) {
    publish_status();
  }

  Result<RequestId> submit(Request request);
  void cancel(RequestId id);
  Result<bool> step(const OnToken& on_token, const OnEnd& on_end);
  SlotsStatus status() const {
    const std::lock_guard lock(mutex_);
    SlotsStatus status = status_;
    status.queued += static_cast<int64_t>(inbox_.size());
    return status;
  }
  const ModelConfig& config() const { return config_; }
  int64_t context() const { return options_.context; }
  int cpu_workers() const { return runner_->cpu_workers(); }

 private:
  /// Rows that are fed at once while others wait, at most; where the runner feeds them in a step,
  /// of that step, the stepped ones included: products take as long for a tile as for a part of it.
  static int64_t most_rows(const BatchRunner& runner, const SlotsOptions& options) {
    return std::min(options.prefill_chunk, runner.most_fed());
  }
  /// Tokens that are fed where a step has so many rows.
  int64_t fed_of(int64_t rows) const {
    return runner_->mixes() ? std::max(kKvPage, rows - options_.slots) : rows;
  }
  Status check(const Request& request) const;
  int64_t pages_for(const Request& request) const;
  int64_t limit_of(const Request& request) const {
    return std::min(request.max_tokens,
                    options_.context - static_cast<int64_t>(request.prompt.size()) + 1);
  }
  void take_inbox(const OnEnd& on_end);
  Status admit();
  Result<bool> enter(Sequence& sequence);
  void want_outside(const Sequence& sequence);
  Result<int32_t> take_page();
  /// Of pages in host memory, brings at most `most` back. Returns how many.
  Result<int64_t> share(Sequence& sequence, int64_t most);
  Status copy_beginning(Sequence& sequence);
  Result<bool> prefill(bool others_wait);
  Status feed_chunk(Sequence& sequence, int64_t chunk);
  Status decode(const OnToken& on_token, const OnEnd& on_end);
  Status run_turns(std::span<Turn> turns, const OnToken& on_token, const OnEnd& on_end);
  /// Several steps of sequences whose tokens are all the best ones.
  Status run_best(std::span<const Turn> turns, const OnToken& on_token, const OnEnd& on_end);
  std::span<const int32_t> draft(Sequence& sequence, int64_t most);
  /// Draws a row's token and takes it; false: the sequence has ended.
  bool draw(Sequence& sequence, std::span<float> logits, const OnToken& on_token,
            const OnEnd& on_end);
  bool ends(const Sequence& sequence, int32_t token) const;
  /// `event` may have log-probabilities.
  bool take(Sequence& sequence, int32_t token, TokenEvent event, const OnToken& on_token,
            const OnEnd& on_end);
  /// Makes an ended sequence's place in active_ empty.
  void drop(const Sequence& sequence);
  /// Whether a sequence is stepped.
  bool runs() const { return running() > 0; }
  /// How many are.
  int64_t running() const {
    return std::count_if(active_.begin(), active_.end(),
                         [](const auto& each) { return each->running(); });
  }
  void rate(const Request& request, std::span<const float> logits, TokenEvent& event) const;
  void end(Sequence& sequence, Stop stop, const OnEnd& on_end);
  void publish_status();

  const ModelConfig config_;
  const std::unique_ptr<BatchRunner> runner_;
  const SlotsOptions options_;

  // Of the thread that steps.
  ChunkPace pace_;
  int64_t fed_ = 0;     // tokens of prompts since the last step
  bool mixed_ = false;  // the next step feeds them
  PagePool pool_;
  Pages scratch_;  // for sampling
  std::deque<std::unique_ptr<Sequence>> queue_;
  std::vector<std::unique_ptr<Sequence>> active_;  // in order of admission; null: has just ended
  std::vector<StepRow> rows_;
  std::vector<float> raw_;  // logits before they are adjusted
  SlotsStatus now_;

  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<Sequence>> inbox_;
  std::vector<RequestId> cancelled_;
  RequestId next_id_ = 1;
  SlotsStatus status_;
};

namespace {

Error cannot_have(std::string_view what, int64_t value, int64_t least, int64_t most) {
  return usage_error(fmt::format("{} {} cannot be had: use {} to {}", value, what, least, most));
}

int64_t page_bytes(const ModelConfig& config, DType kv) {
  return config.layers * config.cached_size() * kKvPage * static_cast<int64_t>(size_of(kv));
}

/// Pages for a context of each slot, or what half of the free memory holds.
int64_t default_pages(const ModelConfig& config, const SlotsOptions& options, DType kv) {
  const int64_t free = static_cast<int64_t>(::sysconf(_SC_AVPHYS_PAGES)) *
                       static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  const int64_t wanted = options.slots * ceil_div(options.context, kKvPage);
  return std::max<int64_t>(1, std::min(wanted, free / 2 / page_bytes(config, kv)));
}

/// Checks options and sets those that follow from the model.
Status complete(const ModelConfig& config, SlotsOptions& options) {
  constexpr int64_t kMostPages = int64_t{1} << 30;
  constexpr int64_t kMostChunk = 1 << 16;
  int64_t context = config.context;
  if (config.rope_scaling.kind == RopeScaling::Kind::longrope) {
    // Beyond it a sequence's tokens would have to be fed anew, by other frequencies.
    context = std::min(context, config.rope_scaling.original_context);
  }
  if (options.slots < 1 || options.slots > kMostSlots) {
    return cannot_have("slots", options.slots, 1, kMostSlots);
  }
  if (options.context < 0 || options.context > context) {
    return usage_error(fmt::format("a context of {} positions cannot be had in slots: {} has {}",
                                   options.context, config.name, context));
  }
  if (options.pages < 0 || options.pages > kMostPages) {
    return cannot_have("pages", options.pages, 1, kMostPages);
  }
  if (options.host_pages < 0 || options.host_pages > kMostPages) {
    return cannot_have("pages in host memory", options.host_pages, 0, kMostPages);
  }
  if (options.prefill_chunk < 0 || options.prefill_chunk > kMostChunk) {
    return cannot_have("tokens of a prefill chunk", options.prefill_chunk, 1, kMostChunk);
  }
  if (options.queue < 1) {
    return cannot_have("waiting requests", options.queue, 1, INT32_MAX);
  }
  if (options.draft < 0 || options.draft > kMostDraft) {
    return cannot_have("drafted tokens", options.draft, 0, kMostDraft);
  }
  options.context = options.context > 0 ? options.context : context;
  if (options.prefill_chunk == 0) {
    options.prefill_chunk = options.device == "cpu" ? kChunk : kCudaChunk;
  }
  options.prefill_chunk = round_up(options.prefill_chunk, kKvPage);
  return {};
}

}  // namespace

Slots::Slots(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Slots::~Slots() = default;
Result<RequestId> Slots::submit(Request request) { return impl_->submit(std::move(request)); }
void Slots::cancel(RequestId id) { impl_->cancel(id); }
Result<bool> Slots::step(const OnToken& on_token, const OnEnd& on_end) {
  return impl_->step(on_token, on_end);
}
SlotsStatus Slots::status() const { return impl_->status(); }
const ModelConfig& Slots::config() const { return impl_->config(); }
int64_t Slots::context() const { return impl_->context(); }
int Slots::cpu_workers() const { return impl_->cpu_workers(); }

Result<std::unique_ptr<Slots>> Slots::create(ModelConfig config,
                                             std::unique_ptr<BatchRunner> runner,
                                             const SlotsOptions& options) {
  SlotsOptions completed = options;
  WEFT_TRY(complete(config, completed));
  const bool paced = options.prefill_chunk == 0 && options.device != "cpu";
  return std::unique_ptr<Slots>(
      new Slots(std::make_unique<Impl>(std::move(config), std::move(runner), completed, paced)));
}

namespace {

/// A runner with the model that it runs.
class OwningRunner : public BatchRunner {
 public:
  OwningRunner(const ModelConfig& config, Weights weights)
      : config_(config), weights_(std::move(weights)) {}
  /// `make(config, weights)`: of what stays.
  template <class Make>
  Status open(const Make& make) {
    WEFT_ASSIGN(runner_, make(config_, weights_));
    return {};
  }
  void enter(const int32_t* table) override { runner_->enter(table); }
  void leave(const int32_t* table) override { runner_->leave(table); }
  Status feed(std::span<const int32_t> tokens, int64_t first, const int32_t* table) override {
    return runner_->feed(tokens, first, table);
  }
  Status settle() override { return runner_->settle(); }
  bool mixes() const override { return runner_->mixes(); }
  Result<std::span<float>> step(std::span<const StepRow> rows) override {
    return runner_->step(rows);
  }
  Result<std::span<const int32_t>> step_best(std::span<const StepRow> rows) override {
    return runner_->step_best(rows);
  }
  Status run(std::span<const StepRow> rows, int64_t steps, const OnBest& on_best) override {
    return runner_->run(rows, steps, on_best);
  }
  int64_t most_steps() const override { return runner_->most_steps(); }
  Status copy_page(int32_t from, int32_t to) override { return runner_->copy_page(from, to); }
  int64_t most_fed() const override { return runner_->most_fed(); }
  int64_t rows_fed(int64_t tokens) const override { return runner_->rows_fed(tokens); }
  int64_t most_rows() const override { return runner_->most_rows(); }

 private:
  const ModelConfig config_;
  Weights weights_;
  std::unique_ptr<BatchRunner> runner_;
};

Status check_cuda(const SlotsOptions& options) {
  if constexpr (!built::kCuda) {
    return device_error(
        fmt::format("device {} cannot be had: this build has no CUDA kernels", options.device));
  }
  if (options.draft > 0 && options.exact && options.slots <= resident::kMostSequences) {
    return usage_error(fmt::format(
        "drafts on {} with up to {} slots are verified by other kernels than those that draw "
        "without them, and a logit's last bits differ: use --exact off, more slots or no --draft",
        options.device, resident::kMostSequences));
  }
  if (options.prefill_chunk > kChunkRows) {
    return cannot_have("tokens of a prefill chunk", options.prefill_chunk, 1, kChunkRows);
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Slots>> Slots::create(ModelConfig config, Weights weights,
                                             const SlotsOptions& options) {
  const bool cuda = options.device.starts_with("cuda");
  if (options.device != "cpu" && !cuda) {
    return usage_error(fmt::format("device {} has no slots: use cpu, or cuda", options.device));
  }
  if (options.workers < 0 || options.workers > 4096) {
    return cannot_have("workers", options.workers, 1, 4096);
  }
  if (options.quantise_activations && config.quantization.activations.scaling == Scaling::none) {
    return usage_error(fmt::format(
        "activations cannot be quantised to fp8: {} has no rule for them", config.name));
  }
  SlotsOptions completed = options;
  WEFT_TRY(complete(config, completed));
  const DType kv = options.kv.value_or(default_kv(config, weights));
  const bool round = options.round_activations.value_or(default_round_activations(config));
  if (completed.host_pages == 0) {
    completed.host_pages = options.host_bytes / page_bytes(config, kv);
  }
  auto runner = std::make_unique<OwningRunner>(config, std::move(weights));
  if (cuda) {
    WEFT_TRY(check_cuda(completed));
    completed.pages =
        options.pages > 0 ? options.pages : options.slots * ceil_div(completed.context, kKvPage);
    if constexpr (built::kCuda) {
      WEFT_TRY(runner->open([&](const ModelConfig& own, const Weights& kept) {
        return hopper::create_batch_runner(own, kept,
                                           {.runner = {.device = options.device,
                                                       .workers = options.workers,
                                                       .capacity = completed.context,
                                                       .sequences = static_cast<int>(options.slots),
                                                       .kv = kv,
                                                       .round_activations = round,
                                                       .compress_weights = options.compress_weights,
                                                       .weights_seed = options.weights_seed,
                                                       .exact = options.exact},
                                            .chunk = completed.prefill_chunk,
                                            .drafts = options.draft > 0,
                                            .host_pages = completed.host_pages},
                                           completed.pages);
      }));
    }
    // However short a mixture's chunk is, it reads nearly all experts: cut, prompts take several
    // times as long, and so do those who wait for them.
    if (config.experts.count == 0) {
      completed.prefill_chunk = options.prefill_chunk;
    }
    return create(std::move(config), std::move(runner), completed);
  }
  completed.pages = options.pages > 0 ? options.pages : default_pages(config, completed, kv);
  WEFT_TRY(runner->open(
      [&](const ModelConfig& own, Weights& kept) -> Result<std::unique_ptr<BatchRunner>> {
        WEFT_ASSIGN(auto made,
                    CpuBatchRunner::create(
                        own, kept,
                        {.workers = options.workers > 0 ? options.workers : cpu::usable_cpus(),
                         .capacity = completed.context,
                         .pages = completed.pages + completed.host_pages,
                         .kv = kv,
                         .round_activations = round,
                         .quantise_activations = options.quantise_activations,
                         .most_fed = std::max(completed.prefill_chunk, kIdleChunk),
                         .compress_weights = options.compress_weights,
                         .exact = options.exact}));
        return std::unique_ptr<BatchRunner>(std::move(made));
      }));
  return create(std::move(config), std::move(runner), completed);
}

// Requests.

int64_t Slots::Impl::pages_for(const Request& request) const {
  // The last token is drawn and not fed.
  const auto positions = static_cast<int64_t>(request.prompt.size()) + limit_of(request) - 1;
  return ceil_div(positions, kKvPage);
}

Status Slots::Impl::check(const Request& request) const {
  const auto size = static_cast<int64_t>(request.prompt.size());
  if (size == 0) {
    return input_error("the prompt has no tokens: give at least one");
  }
  for (int64_t i = 0; i < size; ++i) {
    const int32_t id = request.prompt[static_cast<size_t>(i)];
    if (id < 0 || id >= config_.vocabulary) {
      return input_error(fmt::format("token {} of the prompt is {}: the model's ids are 0 to {}", i,
                                     id, config_.vocabulary - 1));
    }
  }
  if (size > options_.context) {
    return input_error(
        fmt::format("the prompt has {} tokens but the context holds {}: shorten the prompt", size,
                    options_.context));
  }
  if (request.max_tokens < 1) {
    return input_error(
        fmt::format("{} new tokens cannot be drawn: ask for at least one", request.max_tokens));
  }
  if (request.logprobs < 0 || request.logprobs > config_.vocabulary) {
    return input_error(fmt::format("{} log-probabilities a token cannot be had: ask for 0 to {}",
                                   request.logprobs, config_.vocabulary));
  }
  if (const int64_t pages = pages_for(request); pages > pool_.size()) {
    return input_error(fmt::format(
        "{} prompt and {} new tokens need {} pages of {} positions but there are {}: ask for fewer "
        "tokens",
        size, limit_of(request), pages, kKvPage, pool_.size()));
  }
  return {};
}

Result<RequestId> Slots::Impl::submit(Request request) {
  WEFT_TRY(check(request));
  auto sequence = std::make_unique<Sequence>();
  sequence->limit = limit_of(request);
  sequence->at_limit = sequence->limit < request.max_tokens ? Stop::context : Stop::length;
  sequence->tokens = request.prompt;
  sequence->request = std::move(request);
  sequence->submitted = Clock::now();
  const std::lock_guard lock(mutex_);
  if (status_.queued + static_cast<int64_t>(inbox_.size()) >= options_.queue) {
    return usage_error(fmt::format("{} requests wait already: try again later", options_.queue));
  }
  sequence->id = next_id_++;
  inbox_.push_back(std::move(sequence));
  return inbox_.back()->id;
}

void Slots::Impl::cancel(RequestId id) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(id);
}

void Slots::Impl::take_inbox(const OnEnd& on_end) {
  std::vector<RequestId> cancelled;
  {
    const std::lock_guard lock(mutex_);
    status_.queued += static_cast<int64_t>(inbox_.size());
    std::move(inbox_.begin(), inbox_.end(), std::back_inserter(queue_));
    inbox_.clear();
    cancelled.swap(cancelled_);
  }
  for (const RequestId id : cancelled) {
    const auto is_it = [&](const auto& sequence) { return sequence->id == id; };
    if (const auto at = std::find_if(queue_.begin(), queue_.end(), is_it); at != queue_.end()) {
      end(**at, Stop::caller, on_end);
      queue_.erase(at);
    } else if (const auto in = std::find_if(active_.begin(), active_.end(), is_it);
               in != active_.end()) {
      end(**in, Stop::caller, on_end);
      active_.erase(in);
    }
  }
}

// Pages.

Result<int32_t> Slots::Impl::take_page() {
  const PagePool::Taken taken = pool_.take();
  if (taken.moved_to != PagePool::kNoPage) {
    WEFT_TRY(runner_->copy_page(taken.page, taken.moved_to));
  }
  return taken.page;
}

/// Keeps in host memory what a sequence will bring from there.
void Slots::Impl::want_outside(const Sequence& sequence) {
  PagePool::Chain chain = sequence.chain;
  std::vector<int32_t> wanted;
  for (int64_t at = sequence.fed; at + kKvPage <= sequence.to_feed(); at += kKvPage) {
    const std::span<const int32_t> tokens = sequence.part(at, at + kKvPage);
    int32_t page = pool_.find(chain, tokens);
    if (page == PagePool::kNoPage) {
      page = pool_.find_outside(chain, tokens);
      if (page == PagePool::kNoPage) {
        break;
      }
      wanted.push_back(page);
    }
    chain = pool_.chain(page);
  }
  // What follows is of no use without what is before it.
  std::for_each(wanted.rbegin(), wanted.rend(), [&](int32_t page) { pool_.want(page); });
}

/// Gives a sequence all pages that it can ever need, or none.
Result<bool> Slots::Impl::enter(Sequence& sequence) {
  const int64_t needed = pages_for(sequence.request);
  sequence.table.assign(
      static_cast<size_t>(ceil_div(options_.context + BatchRunner::kFedBeyond, kKvPage)) + 1,
      PagePool::kNoPage);
  WEFT_TRY(share(sequence, 0));
  if (pool_.available() < needed - sequence.pages) {
    while (sequence.pages > 0) {
      pool_.release(sequence.table[static_cast<size_t>(--sequence.pages)]);
    }
    sequence.fed = sequence.shared = sequence.cached = 0;
    sequence.chain = PagePool::kRoot;
    return false;
  }
  if (options_.share_prefixes) {
    want_outside(sequence);
  }
  while (sequence.pages < needed) {
    WEFT_ASSIGN(sequence.table[static_cast<size_t>(sequence.pages)], take_page());
    ++sequence.pages;
  }
  runner_->enter(sequence.table.data());
  if (options_.draft > 0) {
    const int64_t places = options_.draft_memory / options_.slots / int64_t{sizeof(int32_t)};
    sequence.drafter.emplace(std::min(places, 2 * options_.context));
  }
  return true;
}

Status Slots::Impl::admit() {
  // In order: who needs many pages is not overtaken for ever by those who need few.
  while (!queue_.empty() && static_cast<int64_t>(active_.size()) < options_.slots) {
    WEFT_ASSIGN(const bool entered, enter(*queue_.front()));
    if (!entered) {
      break;
    }
    queue_.front()->waited = seconds_since(queue_.front()->submitted);
    active_.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  return {};
}

/// Goes on in pages that hold what comes next, in place of the sequence's own.
Result<int64_t> Slots::Impl::share(Sequence& sequence, int64_t most) {
  const int64_t before = sequence.fed;
  int64_t brought = 0;
  while (options_.share_prefixes && sequence.fed == sequence.shared &&
         sequence.fed + kKvPage <= sequence.to_feed()) {
    const std::span<const int32_t> tokens = sequence.part(sequence.fed, sequence.fed + kKvPage);
    const int64_t index = sequence.fed / kKvPage;
    int32_t& entry = sequence.table[static_cast<size_t>(index)];
    if (const int32_t page = pool_.find(sequence.chain, tokens); page != PagePool::kNoPage) {
      pool_.use(page);
      if (index < sequence.pages) {
        pool_.release(entry);
      } else {
        ++sequence.pages;
      }
      entry = page;
    } else {
      const int32_t outside =
          brought < most ? pool_.find_outside(sequence.chain, tokens) : PagePool::kNoPage;
      if (outside == PagePool::kNoPage) {
        break;
      }
      WEFT_TRY(runner_->copy_page(outside, entry));
      pool_.bring(outside, entry);
      ++brought;
    }
    sequence.chain = pool_.chain(entry);
    sequence.fed += kKvPage;
    sequence.shared = sequence.fed;
  }
  sequence.cached += sequence.fed - before;
  return brought;
}

/// Of the page that comes next, copies the beginning that another one has in common.
Status Slots::Impl::copy_beginning(Sequence& sequence) {
  if (!options_.share_prefixes || sequence.fed != sequence.shared) {
    return {};
  }
  const int64_t end = std::min(sequence.to_feed(), sequence.fed + kKvPage);
  const PagePool::Beginning found =
      pool_.find_beginning(sequence.chain, sequence.part(sequence.fed, end));
  if (found.tokens < kWorthCopying) {
    return {};
  }
  WEFT_TRY(
      runner_->copy_page(found.page, sequence.table[static_cast<size_t>(sequence.fed / kKvPage)]));
  sequence.fed += found.tokens;
  sequence.cached += found.tokens;
  return {};
}

// Prompts.

/// Feeds what comes next of the prompt and lets others find the pages that are full.
Status Slots::Impl::feed_chunk(Sequence& sequence, int64_t chunk) {
  const int64_t begin = sequence.fed;
  const int64_t end =
      std::min(sequence.to_feed(), (runner_->mixes() ? begin : begin / kKvPage * kKvPage) + chunk);
  WEFT_TRY(runner_->feed(sequence.part(begin, end), begin, sequence.table.data()));
  sequence.fed = end;
  while (options_.share_prefixes && sequence.shared + kKvPage <= end) {
    int32_t& page = sequence.table[static_cast<size_t>(sequence.shared / kKvPage)];
    page = pool_.publish(page, sequence.chain,
                         sequence.part(sequence.shared, sequence.shared + kKvPage));
    sequence.chain = pool_.chain(page);
    sequence.shared += kKvPage;
  }
  return {};
}

/// Feeds what takes a chunk's time of the prompts that have waited longest: part of a long one, or
/// several short ones, so that who comes with many begins with them. True: it did.
Result<bool> Slots::Impl::prefill(bool others_wait) {
  // Who wait for a step to begin at all count as those who wait for the next one.
  const bool few_wait = std::ssize(active_) >= 2 * running();
  int64_t left =
      !others_wait ? runner_->most_fed() : fed_of(few_wait ? pace_.most() : pace_.chunk());
  bool fed = false;
  for (const auto& each : active_) {
    Sequence& sequence = *each;
    if (sequence.running()) {
      continue;
    }
    const int64_t most = (others_wait ? options_.prefill_chunk : options_.context) / kKvPage;
    WEFT_ASSIGN(const int64_t brought, share(sequence, most));
    if (others_wait && brought == most) {
      return true;
    }
    WEFT_TRY(copy_beginning(sequence));
    if (sequence.running()) {
      continue;
    }
    // What is fed between steps ends with a page, so that others find it, or with the prompt; in a
    // step, where rows are worth their time.
    const int64_t chunk = runner_->mixes() ? left : left / kKvPage * kKvPage;
    const int64_t next = std::min(sequence.to_feed() - sequence.fed, chunk);
    if (fed && (chunk == 0 || runner_->rows_fed(next) > left)) {
      break;
    }
    const int64_t before = sequence.fed;
    WEFT_TRY(feed_chunk(sequence, chunk));
    left -= runner_->rows_fed(sequence.fed - before);
    fed_ += sequence.fed - before;
    fed = true;
  }
  return fed;
}

// Steps.

std::span<const int32_t> Slots::Impl::draft(Sequence& sequence, int64_t most) {
  // A row more costs a part of a step: drafts are given up while few are right, and tried again.
  constexpr double kWorth = 0.4;
  constexpr int64_t kTryAgain = 32;
  const int64_t left = sequence.limit - sequence.reported - 1;
  most = std::min({most, options_.draft, left});
  const bool given_up = sequence.acceptance < kWorth && sequence.undrafted < kTryAgain;
  if (!sequence.drafter || most < 1 || given_up) {
    return {};
  }
  return sequence.drafter->draft(sequence.tokens, most);
}

Status Slots::Impl::decode(const OnToken& on_token, const OnEnd& on_end) {
  const int64_t most = runner_->most_rows();
  std::vector<Turn> turns;
  for (const auto& sequence : active_) {
    if (sequence->running()) {
      turns.push_back({sequence.get()});
    }
  }
  for (size_t i = 0; i < turns.size(); i += static_cast<size_t>(most)) {
    const size_t count = std::min(turns.size() - i, static_cast<size_t>(most));
    const int64_t before = now_.steps;
    const Clock::time_point start = Clock::now();
    WEFT_TRY(run_turns(std::span(turns).subspan(i, count), on_token, on_end));
    const double seconds = seconds_since(start) / static_cast<double>(now_.steps - before);
    if (mixed_) {
      ++now_.mixed_steps;
      pace_.fed_beside(fed_ + options_.slots, seconds);
    } else {
      pace_.stepped(seconds);
    }
    mixed_ = false;
  }
  std::erase(active_, nullptr);
  return {};
}

void Slots::Impl::drop(const Sequence& sequence) {
  std::find_if(active_.begin(), active_.end(), [&](const auto& each) {
    return each.get() == &sequence;
  })->reset();
}

Status Slots::Impl::run_best(std::span<const Turn> turns, const OnToken& on_token,
                             const OnEnd& on_end) {
  int64_t left = 0;
  for (const Turn& turn : turns) {
    left = std::max(left, turn.sequence->limit - turn.sequence->reported);
  }
  const int64_t spare = runner_->most_rows() - std::ssize(turns);
  // Who joins waits for the launch to end.
  const bool joins = std::any_of(active_.begin(), active_.end(),
                                 [](auto& each) { return each != nullptr && !each->running(); });
  const int64_t most = mixed_ || joins   ? 1
                       : !queue_.empty() ? kStepsWhileOthersWait
                                         : runner_->most_steps();
  bool drafted = false;  // a draft is at hand: all go on with it in the next step
  std::vector<int64_t> taken(turns.size());
  size_t live = turns.size();  // rows that go on
  size_t due = live;           // of them, those whose tokens of this step are still to come
  WEFT_TRY(runner_->run(rows_, std::min(left, most), [&](size_t row, int32_t token) {
    Sequence& sequence = *turns[row].sequence;
    ++now_.rows;
    ++taken[row];
    ++sequence.fed;
    --due;
    const bool more = take(sequence, token, {.more = due > 0}, on_token, on_end);
    if (!more) {
      drop(sequence);
    }
    drafted = drafted || (more && !draft(sequence, spare).empty());
    const bool goes_on = more && !drafted;
    live -= goes_on ? 0 : 1;
    due = due > 0 ? due : live;
    return goes_on;
  }));
  now_.steps += *std::max_element(taken.begin(), taken.end());
  return {};
}

Status Slots::Impl::run_turns(std::span<Turn> turns, const OnToken& on_token, const OnEnd& on_end) {
  int64_t spare = runner_->most_rows() - std::ssize(turns);
  rows_.clear();
  for (Turn& turn : turns) {
    Sequence& sequence = *turn.sequence;
    const std::span<const int32_t> drafted = draft(sequence, spare);
    spare -= std::ssize(drafted);
    turn.first = rows_.size();
    turn.count = 1 + drafted.size();
    auto position = static_cast<int32_t>(sequence.fed);
    rows_.push_back({sequence.tokens.back(), position, sequence.table.data()});
    for (const int32_t token : drafted) {
      rows_.push_back({token, ++position, sequence.table.data()});
    }
  }
  const bool best = runner_->most_steps() > 0 &&
                    std::all_of(turns.begin(), turns.end(),
                                [](const Turn& turn) { return turn.sequence->takes_best(); });
  if (best && rows_.size() == turns.size()) {
    return run_best(turns, on_token, on_end);
  }
  std::span<const int32_t> tokens;
  std::span<float> logits;
  if (best) {
    WEFT_ASSIGN(tokens, runner_->step_best(rows_));
  } else {
    WEFT_ASSIGN(logits, runner_->step(rows_));
  }
  ++now_.steps;
  now_.rows += std::ssize(rows_);
  now_.drafts += std::ranges::count_if(turns, [](const Turn& turn) { return turn.count > 1; });
  now_.drafted += std::ssize(rows_) - std::ssize(turns);
  const auto vocabulary = static_cast<size_t>(config_.vocabulary);
  for (const Turn& turn : turns) {
    Sequence& sequence = *turn.sequence;
    size_t taken = 0;
    bool going_on = true;
    // A draft's row is of the answer while the draft is what was drawn.
    do {
      ++sequence.fed;
      const size_t row = turn.first + taken;
      going_on =
          best ? take(sequence, tokens[row], {}, on_token, on_end)
               : draw(sequence, logits.subspan(row * vocabulary, vocabulary), on_token, on_end);
      ++taken;
    } while (going_on && taken < turn.count &&
             sequence.tokens.back() == rows_[turn.first + taken].token);
    const size_t drafted = turn.count - 1;
    now_.accepted += static_cast<int64_t>(taken) - 1;
    if (!going_on) {
      drop(sequence);
    } else if (drafted > 0) {
      constexpr double kMemory = 0.75;
      const double right = static_cast<double>(taken - 1) / static_cast<double>(drafted);
      sequence.acceptance = kMemory * sequence.acceptance + (1 - kMemory) * right;
      sequence.undrafted = 0;
    }
  }
  return {};
}

void Slots::Impl::rate(const Request& request, std::span<const float> logits,
                       TokenEvent& event) const {
  event.logprob = logprob_of(logits, event.token);
  const auto count = static_cast<size_t>(request.logprobs);
  if (count == 0) {
    return;
  }
  std::vector<int32_t> best(logits.size());
  std::iota(best.begin(), best.end(), 0);
  std::partial_sort(best.begin(), best.begin() + static_cast<ptrdiff_t>(count), best.end(),
                    [&](int32_t a, int32_t b) {
                      const float x = logits[static_cast<size_t>(a)];
                      const float y = logits[static_cast<size_t>(b)];
                      return x > y || (x == y && a < b);
                    });
  best.resize(count);
  const float origin = logits[static_cast<size_t>(best.front())];
  const float first = logprob_of(logits, best.front());
  for (const int32_t token : best) {
    event.top.emplace_back(token, first + (logits[static_cast<size_t>(token)] - origin));
  }
}

bool Slots::Impl::draw(Sequence& sequence, std::span<float> logits, const OnToken& on_token,
                       const OnEnd& on_end) {
  const Request& request = sequence.request;
  const bool rated = request.want_logprob || request.logprobs > 0;
  if (rated) {
    raw_.assign(logits.begin(), logits.end());
  }
  if (request.adjust) {
    request.adjust(sequence.part(sequence.prompt_size(), std::ssize(sequence.tokens)), logits);
  }
  const int32_t token = cpu::sample({.logits = logits.data(),
                                     .vocabulary = config_.vocabulary,
                                     .options = request.sampling,
                                     .history = sequence.tokens,
                                     .draw = static_cast<uint64_t>(sequence.fed)},
                                    {scratch_.data(), scratch_.size()});
  TokenEvent event;
  event.token = token;
  if (rated && !ends(sequence, token)) {
    rate(request, raw_, event);
  }
  return take(sequence, token, std::move(event), on_token, on_end);
}

bool Slots::Impl::ends(const Sequence& sequence, int32_t token) const {
  const auto among = [&](const std::vector<int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return (sequence.request.eos == Eos::ends && among(config_.eos)) ||
         among(sequence.request.stop_ids);
}

bool Slots::Impl::take(Sequence& sequence, int32_t token, TokenEvent event, const OnToken& on_token,
                       const OnEnd& on_end) {
  sequence.tokens.push_back(token);
  ++sequence.undrafted;
  if (ends(sequence, token)) {
    end(sequence, Stop::eos, on_end);
    return false;
  }
  event.id = sequence.id;
  event.token = token;
  event.first = sequence.reported == 0;
  event.waited = sequence.waited;
  ++sequence.reported;
  ++now_.new_tokens;
  on_token(event);
  if (sequence.reported == sequence.limit) {
    end(sequence, sequence.at_limit, on_end);
    return false;
  }
  return true;
}

void Slots::Impl::end(Sequence& sequence, Stop stop, const OnEnd& on_end) {
  if (sequence.pages > 0) {
    runner_->leave(sequence.table.data());
  }
  // The last pages first: what others may have in common goes last.
  for (int64_t i = sequence.pages; i-- > 0;) {
    pool_.release(sequence.table[static_cast<size_t>(i)]);
  }
  sequence.pages = 0;
  now_.prompt_tokens += sequence.prompt_size();
  now_.cached_tokens += sequence.cached;
  on_end({.id = sequence.id,
          .stop = stop,
          .prompt_tokens = sequence.prompt_size(),
          .cached_tokens = sequence.cached,
          .new_tokens = sequence.reported});
}

Result<bool> Slots::Impl::step(const OnToken& on_token, const OnEnd& on_end) {
  take_inbox(on_end);
  WEFT_TRY(admit());
  const bool others_wait = runs();
  const Clock::time_point start = Clock::now();
  fed_ = 0;
  WEFT_ASSIGN(const bool fed, prefill(others_wait));
  mixed_ = fed_ > 0 && runner_->mixes() && runs();
  if (!mixed_) {
    WEFT_TRY(runner_->settle());
  }
  if (fed && others_wait && !mixed_) {
    const double seconds = seconds_since(start);
    Pauses& pauses = now_.prefill_pauses;
    ++pauses.count;
    pauses.seconds += seconds;
    pauses.longest = std::max(pauses.longest, seconds);
    pace_.fed(fed_, seconds);
  }
  WEFT_TRY(decode(on_token, on_end));
  publish_status();
  return !active_.empty() || !queue_.empty();
}

void Slots::Impl::publish_status() {
  now_.slots = options_.slots;
  now_.running = running();
  now_.joining = std::ssize(active_) - now_.running;
  now_.queued = std::ssize(queue_);
  now_.pages = pool_.size();
  now_.pages_used = pool_.used();
  now_.pages_cached = pool_.cached();
  now_.pages_evicted = pool_.evicted();
  now_.pages_host = pool_.outside();
  now_.pages_brought = pool_.brought();
  const std::lock_guard lock(mutex_);
  status_ = now_;
}

}  // namespace weft

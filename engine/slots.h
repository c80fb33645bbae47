// Requests that come and go: each gets a slot, pages of the KV cache for its prompt and answer, and
// a row of every step beside the others'. Prompts are fed in chunks between steps; whole pages of
// prompts that begin alike are shared. What a request is answered does not depend on the others.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "engine/batch_runner.h"
#include "engine/engine.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/sample/op.h"

namespace weft {

struct SlotsOptions {
  std::string device = "cpu";
  int workers = 0;      ///< threads; 0: one for each that this process may use
  int64_t slots = 8;    ///< requests that are answered at once, 1 to kMostSlots
  int64_t context = 0;  ///< positions of a sequence at most; 0: the model's
  int64_t pages = 0;    ///< of kKvPage positions; 0: a context for each slot, as memory allows
  /// Pages more, in host memory, for beginnings of prompts that nobody has just now; 0: what
  /// host_bytes hold.
  int64_t host_pages = 0;
  int64_t host_bytes = 0;
  /// Tokens of prompts fed between two steps while others wait; 0: kChunk, on cuda as many, up to
  /// kCudaChunk, as let nobody wait longer than ChunkPace says; of a mixture kCudaChunk.
  int64_t prefill_chunk = 0;
  int64_t queue = 1024;  ///< requests that wait for a slot at most
  bool share_prefixes = true;
  int64_t draft = 0;  ///< tokens drafted for a step of a sequence (engine/draft.h); 0: none
  int64_t draft_memory = int64_t{64} << 20;  ///< bytes for drafts' places, of all slots
  /// Whether no bit of an answer depends on the company or on drafts. On cuda with up to 8 slots
  /// drafts are had without it alone: they are verified by kernels that round otherwise.
  bool exact = true;
  std::optional<DType> kv = {};  ///< as EngineOptions has them
  std::optional<bool> round_activations = {};
  bool quantise_activations = false;
  std::optional<bool> compress_weights = {};
  uint64_t weights_seed = 0;  ///< of weights that are only described
};

inline constexpr int64_t kMostSlots = 64;
inline constexpr int64_t kMostDraft = 64;
inline constexpr int64_t kChunk = 128;
inline constexpr int64_t kCudaChunk = 512;

struct Request {
  std::vector<int32_t> prompt = {};  ///< at least one token
  int64_t max_tokens = 16;           ///< at least 1; the context may end earlier
  SamplingOptions sampling = {};
  std::vector<int32_t> stop_ids = {};  ///< beside the model's end-of-sequence tokens
  Eos eos = Eos::ends;                 ///< Eos::ignore: stop_ids alone end the answer
  int logprobs = 0;                    ///< best tokens whose log-probabilities come with each token
  bool want_logprob = false;           ///< the token's own; logprobs > 0 wants it too
  /// Changes the logits [vocabulary] before a token is drawn from them (masks, biases), knowing the
  /// tokens so far. Log-probabilities are of the logits before. Called by who calls step().
  std::function<void(std::span<const int32_t> generated, std::span<float> logits)> adjust = {};
};

using RequestId = uint64_t;

/// A token of an answer. Tokens that end it (end of sequence, stop_ids) are not reported.
struct TokenEvent {
  RequestId id = 0;
  int32_t token = 0;
  float logprob = 0;                                ///< natural, where it is wanted
  std::vector<std::pair<int32_t, float>> top = {};  ///< [logprobs], best first
  bool first = false;
  double waited = 0;  ///< seconds from submit() to the request's slot
  /// Others come at once, of this step or with step()'s return: who collects may wait for them.
  bool more = true;
};

/// An answer's end: Stop::eos, length, context, or caller (cancel()).
struct EndEvent {
  RequestId id = 0;
  Stop stop = Stop::length;
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  ///< of the prompt, not computed
  int64_t new_tokens = 0;     ///< reported
};

/// Time that running sequences waited for something between their steps.
struct Pauses {
  int64_t count = 0;
  double seconds = 0, longest = 0;
};

struct SlotsStatus {
  int64_t slots = 0, running = 0, joining = 0, queued = 0;  ///< joining: the prompt is being fed
  int64_t pages = 0, pages_used = 0, pages_cached = 0;      ///< cached: content without a user
  int64_t pages_evicted = 0;                                ///< contents that lost their page
  int64_t pages_host = 0;                                   ///< contents in host memory
  int64_t pages_brought = 0;                                ///< that came back from there
  int64_t steps = 0, rows = 0;                              ///< rows: fed by steps, drafts included
  int64_t prompt_tokens = 0, cached_tokens = 0, new_tokens = 0;
  int64_t drafts = 0;                 ///< steps of a sequence with some
  int64_t drafted = 0, accepted = 0;  ///< tokens
  int64_t mixed_steps = 0;            ///< that fed prompts too, so that nobody paused
  Pauses prefill_pauses;              ///< for a chunk of another's prompt
};

/// One thread calls step(); submit(), cancel() and status() are for any.
class Slots {
 public:
  /// Errors: usage (options that cannot be had), device (no memory).
  static Result<std::unique_ptr<Slots>> create(ModelConfig config, Weights weights,
                                               const SlotsOptions& options);
  /// Over a runner of `options.pages` pages and `options.host_pages` more for sequences of
  /// `options.context` positions.
  static Result<std::unique_ptr<Slots>> create(ModelConfig config,
                                               std::unique_ptr<BatchRunner> runner,
                                               const SlotsOptions& options);
  ~Slots();

  /// Queues a request. Errors (input): an empty prompt, an id outside the vocabulary, a prompt
  /// longer than the context, more pages needed than there are, no token wanted; usage: the queue
  /// is full.
  Result<RequestId> submit(Request request);
  /// Ends a request at the beginning of the next step; nothing when it has ended.
  void cancel(RequestId id);

  using OnToken = std::function<void(const TokenEvent&)>;
  using OnEnd = std::function<void(const EndEvent&)>;
  /// Admits who waits, feeds prompts for as long as a chunk takes, and steps every running
  /// sequence. False: there is nothing to do. Error (device): the step failed; no further one can
  /// succeed.
  Result<bool> step(const OnToken& on_token, const OnEnd& on_end);

  SlotsStatus status() const;
  const ModelConfig& config() const;
  int64_t context() const;
  /// BatchRunner's: where there are some, who steps often does well to have a cpu::PinnedThread(0).
  int cpu_workers() const;

 private:
  class Impl;
  explicit Slots(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace weft

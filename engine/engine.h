// The engine: a model, its KV cache and the programs that run it. Prompt in, tokens out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "engine/runner.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/sample/op.h"
#include "program/program.h"

namespace weft {

// Large models have bf16 caches and activations by default; small ones answer in milliseconds
// either way and keep f32.

/// The KV format a model has by default: bf16 for large models with bf16 weights, else f32.
DType default_kv(const ModelConfig& config, const Weights& weights);
/// Whether a model's prompts have activations rounded by default: large ones.
bool default_round_activations(const ModelConfig& config);

struct EngineOptions {
  std::string device = "cpu";  ///< "cpu", "cuda", "cuda:1", "hip", "sim:gfx942"
  /// Threads, or SMs or compute units; 0: one for each that this process may use, but two where a
  /// GPU is simulated.
  int workers = 0;
  int64_t context = 0;  ///< positions of a sequence's KV cache; 0: the model's
  int sequences =
      1;  ///< decoded at once, each with a cache of its own: on cuda up to 8, on AMD to 64
  std::optional<DType> kv = {};  ///< KV format; default: default_kv()
  /// Whether prefill rounds activations to bf16 where they meet bf16 weights (see PlanOptions).
  /// Default: default_round_activations().
  std::optional<bool> round_activations = {};
  /// Whether activations that meet weights in eight bits are quantised too, as the checkpoint says.
  bool quantise_activations = false;
  int64_t chunk = 512;  ///< tokens of one prefill step
  /// Whether weights are read that are compressed without loss, where they can be: by cuda's decode
  /// steps, by all of cpu's. Default: when they do not fit the device's last cache; on cpu, when
  /// they are found to be faster besides, which is measured (Runner::compressed_time).
  std::optional<bool> compress_weights = {};
  /// GPUs: whether packed weights are held alone; for prompts, which take longer then, cuda unpacks
  /// them layer by layer, and AMD's go token by token. Default: where there is no room for both.
  std::optional<bool> hold_once = {};
  /// cuda: the seed of weights that are only described (Weights::describe): they are made on the
  /// device, the same values that Weights::generate makes.
  uint64_t weights_seed = 0;
  bool profile = false;  ///< time every operation of a decode step (operation_times)
  /// cpu: asked before each chunk of a prompt or text that is not the last; true ends the call with
  /// an error (input). Steps of a decode ask on_token.
  std::function<bool()> interrupted = {};
};

/// Why a generation ended.
enum class Stop { eos, length, context, caller };
std::string_view name_of(Stop stop);

/// Whether an end-of-sequence token ends a generation or is a token like any other (benchmarks).
enum class Eos { ends, ignore };

struct Generation {
  std::vector<int32_t> tokens;  ///< new ones, without the end-of-sequence token
  Stop stop = Stop::length;
  double prefill_seconds = 0;          ///< to the first new token
  std::vector<double> decode_seconds;  ///< each further step
};

class Engine {
 public:
  /// Errors: device (no memory), usage (options the model cannot have).
  static Result<std::unique_ptr<Engine>> create(ModelConfig config, Weights weights,
                                                const EngineOptions& options);
  ~Engine();

  const ModelConfig& config() const;
  const Weights& weights() const;
  int workers() const;
  int sequences() const;
  int64_t context() const;
  DType kv() const;
  int64_t chunk() const;

  /// Forgets the sequence, feeds `prompt` (at least one token), then draws up to `max_tokens`
  /// tokens. on_token gets each as it comes, before the next step begins; false ends the
  /// generation. Errors (input): an empty prompt, an id outside the vocabulary, a prompt that does
  /// not fit the context.
  Result<Generation> generate(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                              int64_t max_tokens, const std::function<bool(int32_t)>& on_token = {},
                              Eos eos = Eos::ends);

  using Prompt = std::vector<int32_t>;
  /// Gets a sequence's token as it comes; false ends that sequence.
  using OnToken = std::function<bool(int sequence, int32_t token)>;
  /// The same for several sequences at once, one for each of `prompts` (sequences() of them).
  /// Sequence i draws with the seed sampling.seed + i. Errors as above, the sequence named; usage:
  /// another number of prompts.
  Result<std::vector<Generation>> generate_batch(std::span<const Prompt> prompts,
                                                 const SamplingOptions& sampling,
                                                 int64_t max_tokens, const OnToken& on_token = {},
                                                 Eos eos = Eos::ends);

  /// Draws up to `max_tokens` more tokens of each sequence that generate() left and that has not
  /// ended, with its sampling. Error (usage): there is none.
  Result<std::vector<Generation>> extend(int64_t max_tokens, const OnToken& on_token = {},
                                         Eos eos = Eos::ends);

  /// Log-probabilities of a text's tokens (at least two for any; one gives logits alone). Errors as
  /// generate's.
  Result<Score> score(std::span<const int32_t> ids);

  /// Logits that the last token of a sequence was drawn from, [vocabulary]; empty when the sequence
  /// ended before others.
  std::span<const float> last_logits(int sequence = 0) const;

  /// How far logits of a decode step and of the same text scored as a whole may be apart, as
  /// relative_difference() has it. They are two orders of the same sums, 1e-6, and on cuda two ways
  /// to multiply f32, 2e-5: 3e-4, as weft diff takes it. Where one of them rounds to bf16 what the
  /// other does not (activations), or both what is not quite the same (the cache), the roundings of
  /// 2^-9 grow through the layers: 3e-2. In a mixture either may draw another expert of two whose
  /// logits nearly tie, as they do in every text where there are many: 0.5 where something is
  /// rounded (of random weights up to 0.38 was seen; unrelated logits are 1.4 apart), else 3e-2.
  double logits_tolerance() const;

  /// What a prompt of this many tokens, or a decode step of all sequences at this position, costs;
  /// a step's weights as the device reads them (Runner::saved_bytes).
  Cost prefill_cost(int64_t tokens) const;
  Cost decode_cost(int64_t position) const;
  /// Bytes that a decode step reads less than the weights have in the checkpoint.
  int64_t saved_bytes() const;
  /// See Runner.
  std::optional<double> compressed_time() const;

  /// See Runner.
  Result<double> read_bandwidth();
  std::vector<OperationTime> operation_times() const;

  /// Bytes of KV cache that a sequence of this many positions has.
  int64_t kv_bytes(int64_t positions) const;

 private:
  struct State;
  class Takers;
  /// Decode steps until every sequence has ended or has `max_tokens` more.
  Status decode(int64_t max_tokens, Eos eos, Takers& takers);
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace weft

// What runs a model's programs on one device: the engine's lower half. It holds the sequences (KV
// caches, tokens) and knows nothing of prompts' limits, ends of sequence or timing.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/number.h"
#include "base/result.h"
#include "engine/operation_time.h"
#include "ops/sample/op.h"

namespace weft {

struct Score {
  std::vector<double> logprobs;    ///< natural log-probability of ids[1..], given those before
  std::vector<float> last_logits;  ///< [vocabulary]
};

class Runner {
 public:
  using Tokens = std::span<const int32_t>;
  /// Gets each token as it is drawn for a sequence; false: draw no more for that one.
  using OnToken = std::function<bool(int sequence, int32_t token)>;

  Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  virtual ~Runner() = default;

  /// Forgets the sequences, feeds each its prompt (1 to capacity() valid ids) and draws the token
  /// after it. `prompts`: [sequences()]. Sequence i draws with the seed sampling.seed + i, as it
  /// would alone with that seed.
  virtual Status begin(std::span<const Tokens> prompts, const SamplingOptions& sampling,
                       const OnToken& on_token) = 0;
  /// Feeds the tokens drawn last, draws the next, and so on: up to `steps` more tokens (at least
  /// one) for each sequence that has not ended; none of these has fewer positions left. `ends`:
  /// tokens after which on_token will answer false; a runner that draws ahead of it need not ask.
  virtual Status decode(int64_t steps, Tokens ends, const OnToken& on_token) = 0;
  /// Forgets the sequences and feeds `ids` (1 to capacity() valid ones) to the first.
  virtual Result<Score> score(Tokens ids) = 0;
  /// Draws no more for a sequence, as when on_token had answered false.
  virtual void end(int sequence) = 0;

  /// Sequences that are decoded at once.
  virtual int sequences() const = 0;
  /// Logits that the sequence's last token was drawn from: [vocabulary]; empty before, and where
  /// they are gone because the sequence ended before others.
  virtual std::span<const float> logits(int sequence) = 0;
  /// Positions fed so far; 0: there is no sequence.
  virtual int64_t position(int sequence) const = 0;
  virtual int64_t capacity() const = 0;
  virtual DType kv() const = 0;
  virtual int workers() const = 0;

  /// Bytes per second that the device reads from memory at most, measured now on the weights.
  virtual Result<double> read_bandwidth() = 0;
  /// Bytes of weights that a decode step reads less than the checkpoint has, where the device keeps
  /// them compressed.
  virtual int64_t saved_bytes() const { return 0; }
  /// The time of products with compressed weights, of that with plain ones, where it was measured
  /// to choose between them.
  virtual std::optional<double> compressed_time() const { return {}; }
  /// Of the last decode(), when the engine was made to profile; empty where it cannot.
  virtual std::vector<OperationTime> operation_times() const { return {}; }
};

}  // namespace weft

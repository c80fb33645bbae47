// What runs a model's programs on one device: the engine's lower half. It holds the sequence (KV
// cache, tokens) and knows nothing of prompts' limits, ends of sequence or timing.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/number.h"
#include "base/result.h"
#include "engine/operation_time.h"
#include "ops/sample/op.h"

namespace weft {

class Runner {
 public:
  /// Gets each token as it is drawn; false: draw no more.
  using OnToken = std::function<bool(int32_t token)>;
  /// Gets the logits after each token that was fed.
  using OnLogits = std::function<void(int64_t index, std::span<const float> logits)>;

  Runner() = default;
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  virtual ~Runner() = default;

  /// Forgets the sequence, feeds `prompt` (1 to capacity() valid ids) and draws the token after it.
  virtual Status begin(std::span<const int32_t> prompt, const SamplingOptions& sampling,
                       const OnToken& on_token) = 0;
  /// Feeds the token drawn last, draws the next, and so on: up to `steps` (at least one, and no
  /// more than there are positions left) more tokens. `ends`: tokens after which on_token will
  /// answer false; a runner that draws ahead of it need not ask.
  virtual Status decode(int64_t steps, std::span<const int32_t> ends, const OnToken& on_token) = 0;
  /// Forgets the sequence and feeds `ids`.
  virtual Status score(std::span<const int32_t> ids, const OnLogits& on_logits) = 0;

  /// Logits that the last token was drawn from: [vocabulary]; empty before.
  virtual std::span<const float> logits() = 0;
  /// Positions fed so far; 0: there is no sequence.
  virtual int64_t position() const = 0;
  virtual int64_t capacity() const = 0;
  virtual DType kv() const = 0;
  virtual int workers() const = 0;

  /// Bytes per second that the device reads from memory at most, measured now on the weights.
  virtual Result<double> read_bandwidth() = 0;
  /// Of the last decode(), when the engine was made to profile; empty where it cannot.
  virtual std::vector<OperationTime> operation_times() const { return {}; }
};

}  // namespace weft

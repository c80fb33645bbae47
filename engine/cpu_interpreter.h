// Runs programs on the CPU: the slow, clear interpreter that any other is held against. Each worker
// thread walks its instructions in order, spins on the events that they wait for, and calls the
// operations' CPU kernels.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/pages.h"
#include "base/result.h"
#include "engine/operation_time.h"
#include "engine/packed_weights.h"
#include "engine/worker_team.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/attention/op.h"
#include "ops/embed/op.h"
#include "ops/gated_linear/op.h"
#include "ops/layernorm/op.h"
#include "ops/linear/op.h"
#include "ops/mla/op.h"
#include "ops/moe/op.h"
#include "ops/rmsnorm/op.h"
#include "ops/rope_angles/op.h"
#include "ops/rope_append/op.h"
#include "ops/sample/op.h"
#include "program/program.h"

namespace weft {

/// What a sequence is besides its program: shared by the decode and prefill programs.
struct CpuSequence {
  /// Memory for the KV cache of `config` and rows' state. Error (device): no memory.
  static Result<CpuSequence> create(const ModelConfig& config, int64_t capacity, DType kv,
                                    int64_t max_rows);
  /// The same for several sequences of up to `capacity` positions, whose caches are in `pages`
  /// pages of kKvPage positions that they share.
  static Result<CpuSequence> create_paged(const ModelConfig& config, int64_t capacity,
                                          int64_t pages, DType kv, int64_t max_rows);

  /// One layer's cache as kernels see it.
  KvCache cache(int64_t layer, int64_t kv_heads, int64_t head_dim) const;

  int64_t capacity = 0;
  DType kv = DType::bf16;
  std::vector<Pages> keys, values;  ///< [layer]: see KvCache; of latent rows there are keys alone
  std::vector<int32_t> tokens;      ///< [max_rows]: this step's
  std::vector<int32_t> positions;   ///< [max_rows]
  /// [max_rows]: each row's pages (see KvCache::tables); empty: the cache is not in pages.
  std::vector<const int32_t*> tables;
  std::vector<int32_t> history;  ///< all tokens so far, the one not yet fed included
  int64_t length = 0;  ///< tokens that LongRoPE is to choose its frequencies for; see RopeScaling
  SamplingOptions sampling;

 private:
  /// Caches of this many positions in all.
  Status allocate(const ModelConfig& config, int64_t positions);
};

class CpuInterpreter {
 public:
  /// All outlive the interpreter. Products read `packed` weights where there are some.
  CpuInterpreter(const ModelConfig& config, const Weights& weights, CpuSequence& sequence,
                 WorkerTeam& team, const PackedWeights* packed = nullptr);

  /// A program laid over memory.
  class Loaded;
  /// Error (device): no memory for its buffers. `profile`: run() times every instruction.
  Result<std::shared_ptr<Loaded>> load(Program program, bool profile = false);

  /// Runs up to `steps` steps of `rows` tokens each (more than one step only when the program
  /// samples), beginning with the sequence's tokens and positions; the program has as many workers
  /// as the team. After each sampled token on_token is called, by worker 0; false ends the run.
  /// Returns the number of steps run.
  int64_t run(Loaded& program, int64_t rows, int64_t steps,
              const std::function<bool(int32_t token)>& on_token);

  /// Executes operations [begin, end) of one step of `rows` tokens on the calling thread: all
  /// workers' instructions, operation by operation, an order that every wait agrees with. A program
  /// for any number of workers, and stopped anywhere: what another interpreter's run is bisected
  /// with. When sampling is among them, the sequence stands at the next step afterwards.
  void run_operations(Loaded& program, int64_t rows, Range operations);

  /// What a buffer of the program holds now, to be read or, between operations, replaced.
  /// Space::activation, or Space::worker: `worker`'s own; the others are the sequence's.
  static std::span<std::byte> buffer(const Loaded& program, BufferId id, size_t worker);

  /// Logits of the last step: [vocabulary], or [rows, vocabulary] with Logits::all.
  static std::span<const float> logits(const Loaded& program);

  /// What the last run's instructions took, means over its steps; empty unless loaded to profile.
  static std::vector<OperationTime> operation_times(const Loaded& program);

 private:
  /// Makes the program's constants for the sequence's length.
  void make_frequencies(Loaded& program) const;
  /// Executes the first of a worker's instructions from it on; the token, when it draws one.
  std::optional<int32_t> execute(Loaded& program, size_t worker, std::span<const Instruction> from,
                                 int64_t rows);

  const ModelConfig& config_;
  const Weights& weights_;
  CpuSequence& sequence_;
  WorkerTeam& team_;
  const PackedWeights* packed_;
};

}  // namespace weft

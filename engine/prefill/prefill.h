// Prefill on a GPU: chunks of a prompt through kernels that each do one operation for many
// rows, on the device's stream. They leave the keys and values in the cache that the resident
// kernel decodes with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "arch/device.h"
#include "engine/prefill/plan.h"
#include "engine/resident/arena.h"
#include "engine/runner.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/chunk_kernels.h"
#include "ops/matrix.h"
#include "ops/row_places.h"

namespace weft {

/// What a prefill works with, all on the device.
struct PrefillPlaces {
  const char* weights = nullptr;
  std::vector<int64_t> weight_places;  ///< bytes from `weights`, by Weights::tensors()
  std::vector<int64_t> scale_places;   ///< likewise, of the scales of those that are codes
  /// In the order of a program's buffers in Space::kv, of all sequences.
  std::vector<char*> caches;
  int64_t sequences = 1;  ///< that each cache is of
  /// Null, or what brings a layer's products' weights, or the head's (kHeadStage), to their places,
  /// and the next layer's meanwhile (WeightStages::bring).
  std::function<Status(int64_t stage, std::optional<int64_t> next)> bring;
  using Widen = std::function<Status(const Tensor& tensor, const void* codes, const float* scales,
                                     DType type, void* to)>;
  /// Null where no weights are codes, or what writes a tensor's codes times their scales, both on
  /// the device, as `type` to `to`, in the order of the device's stream.
  Widen widen;
  const float* inverse_frequencies = nullptr;  ///< of a sequence: [ropes()][rotary_dim / 2]
  int64_t frequency_stride = 0;  ///< elements to the next sequence's; 0: all have the same
};

/// The caches of a decode program laid out as `arena`, at `at` on the device, in the order of its
/// buffers.
std::vector<char*> caches_of(const Program& decode, const resident::Arena& arena, char* at);
/// Places in such an arena, of `sequences`.
PrefillPlaces places_of(const Program& decode, const resident::Arena& arena, char* at,
                        int64_t sequences);

/// Rows of a prompt among others: at positions first, first + 1, ...
struct FedRows {
  int64_t rows = 0;
  int64_t first = 0;
  int sequence = 0;
};

/// Whether a row's bits do not depend on how many rows are fed, or stepped, with it. Where
/// activations are f32 they never do; in bf16 that costs few rows a part of their speed.
struct FixedSums {
  bool chunks = false;
  bool steps = false;
};

class Prefill {
 public:
  /// `config`, `weights` and `device` outlive it; the model is one that refuse_prefill() takes.
  /// `step_rows`: of a step at most, with what is fed in it. `tile_room`: bytes that a second copy
  /// of the weights for few rows (TiledKernels) may take; it is made if that is enough. Error
  /// (device): no memory for a chunk's activations.
  static Result<std::unique_ptr<Prefill>> create(const ModelConfig& config, const Weights& weights,
                                                 PrefillPlaces places, ChunkFormats formats,
                                                 int64_t capacity, Device& device,
                                                 int64_t step_rows = kMostStepRows,
                                                 FixedSums fixed = {}, int64_t tile_room = 0);

  /// Feeds tokens[begin, end) of a sequence, its cache holding what is before them. Launches and
  /// returns.
  Status feed(const int32_t* tokens, int64_t begin, int64_t end, int sequence);
  /// Where the last of the chunks begins that a prompt of `count` tokens is fed in.
  int64_t last_chunk(int64_t count) const;
  /// Feeds tokens of several sequences in one chunk of at most kChunkRows: those of fed[0] come
  /// first in `tokens` and in what `places` has, which are all on the device.
  Status feed(const int32_t* tokens, const RowPlaces& places, std::span<const FedRows> fed);

  /// Feeds a token of each of `rows` sequences (at most kMostStepRows), all on the device: `tokens`
  /// and what `places` has. Their logits are step_logits() then. Behind those rows come what is fed
  /// of prompts in the same launches; a row may follow what is fed of its own sequence. Launches
  /// and returns.
  Status step(const int32_t* tokens, const RowPlaces& places, int64_t rows,
              std::span<const FedRows> fed = {});
  /// Whether a step without prompts that was recorded as a graph does the same again: nothing is
  /// brought for it.
  bool repeats() const { return places_.bring == nullptr; }
  /// [rows, vocabulary] f32, on the device.
  ConstMatrix step_logits() const { return input(stepped(), stepped().program.logits); }

  /// Feeds tokens[0, count) to the first sequence and rates each by the logits before it, which
  /// stay on the device but for the last ones.
  Result<Score> score(const int32_t* tokens, int64_t count);

 private:
  /// A program laid over memory.
  struct Chunk {
    Program program;
    ChunkLayout layout;
    std::vector<int64_t> caches;  ///< [program.buffers]: index in PrefillPlaces::caches
    size_t last_append = 0;       ///< operation behind which nothing is written to caches
    bool whole_k = false;         ///< see PrefillScratch
    DeviceMemory memory;
  };

  Prefill(const ModelConfig& config, const Weights& weights, PrefillPlaces places,
          ChunkFormats formats, int64_t capacity, Device& device, int64_t step_rows,
          FixedSums fixed, int64_t tile_room);
  Result<std::unique_ptr<Chunk>> load(int64_t rows, Logits logits, bool whole_k = false);
  /// Rows of tokens at positions first, first + 1, ..., or as `places` says: of the first `own`
  /// more than what the caches keep is wanted; with places they are of sequences of their own, and
  /// those of `fed` follow.
  struct Span {
    const int32_t* tokens = nullptr;
    int64_t first = 0;
    int64_t rows = 0;
    int sequence = 0;
    RowPlaces places = {};
    int64_t own = 0;
    std::span<const FedRows> fed = {};
  };
  /// What steps are launched of.
  const Chunk& stepped() const { return fixed_.steps == fixed_.chunks ? *chunk_ : *step_; }
  Span span_of(const int32_t* tokens, const RowPlaces& places, int64_t own,
               std::span<const FedRows> fed) const;
  /// All operations but a head.
  Status launch(const Chunk& chunk, const Span& span);
  /// The operation that makes the logits.
  static size_t head_of(const Chunk& chunk);
  /// Its operands, of the chunk's first rows, with its weights at their places.
  Result<LinearArgs> begin_head(const Chunk& chunk) const;
  /// The head on a chunk's rows, of whose logits there is room for kLogitsRows at a time:
  /// logprobs[r] is that of the token after row r, if it is before `end`.
  Status launch_head(const Chunk& chunk, const Span& span, int64_t end, float* logprobs);
  /// The operands of the product that operation `index` begins, with all that are joined to it.
  LinearArgs linear_args(const Chunk& chunk, size_t index) const;
  GatedLinearArgs gated_linear_args(const Chunk& chunk, const GatedLinearOp& op) const;
  // Of rows that have places.
  AttentionArgs attention_args(const Chunk& chunk, const AttentionOp& op) const;
  LatentAttentionArgs latent_args(const Chunk& chunk, const LatentAttentionOp& op) const;
  PrefillLatentAttention absorbed_args(const Chunk& chunk, const LatentAttentionOp& op) const;
  /// Tiles of the weights of a chunk's products that have none yet.
  Status make_tiles(const Chunk& chunk);
  /// Of the product whose first weights these are; null: none.
  const char* tiles(const WeightRef& first) const;
  /// Workspace enough for a chunk's products, and attention.
  Status make_workspace(const Chunk& chunk);
  Workspace workspace() const { return {workspace_.data(), workspace_.size()}; }
  Status launch_linear(const Chunk& chunk, size_t index, const LinearArgs& args,
                       int64_t rows) const;
  /// The error of operands that a kernel refuses; none where `refusal` is empty.
  Status fits(const Chunk& chunk, size_t index, std::string_view refusal) const;
  class Launcher;

  ConstMatrix weight(const WeightRef& ref) const;
  /// Where a product of rows in `type` reads its weights: as they lie in the checkpoint or, of
  /// codes, where widen() leaves them, after `before` elements of others.
  ConstMatrix product_weight(const Chunk& chunk, const WeightRef& ref, DType type,
                             int64_t before) const;
  Status widen(const Chunk& chunk, const WeightRef& ref, DType type, int64_t before) const;
  /// The weights of a product and those of all that are joined to it.
  Status widen_joined(const Chunk& chunk, size_t index) const;
  ConstVector vector(const WeightRef& ref) const;
  Matrix matrix(const Chunk& chunk, BufferId id) const;
  ConstMatrix input(const Chunk& chunk, BufferId id) const;
  KvCache cache(const Chunk& chunk, BufferId keys, BufferId values, int sequence) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const PrefillPlaces places_;
  const ChunkFormats formats_;
  const int64_t capacity_;
  const int64_t step_rows_;
  const FixedSums fixed_;
  int64_t tile_room_;
  Device& device_;
  const ChunkKernels& kernels_;
  DeviceMemory workspace_;
  std::map<size_t, DeviceMemory> tiles_;  ///< by the first weights' index in Weights::tensors()
  std::unique_ptr<Chunk> chunk_;
  std::unique_ptr<Chunk> step_;   ///< of steps, where their sums are others; when first needed
  std::unique_ptr<Chunk> score_;  ///< likewise, of texts that are rated
};

}  // namespace weft

// How a chunk of prefill runs on a GPU, as far as a machine without one can tell: which
// models can be fed by chunks, where a chunk's buffers lie, and which projections become one
// product. The chunk itself is the planner's program of many rows, whose operations are launched
// one after the other (prefill.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "arch/device.h"
#include "model/config.h"
#include "model/weights.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft {

/// Most rows of a chunk: enough to fill the tensor cores, few enough for the activations to stay
/// near the L2.
inline constexpr int64_t kChunkRows = 2048;
/// Rows of sequences of their own, at most.
inline constexpr int64_t kMostStepRows = 64;
/// Rows of a chunk whose logits are there at a time.
inline constexpr int64_t kLogitsRows = 128;

/// What a chunk keeps its numbers in (see PlanOptions).
struct ChunkFormats {
  DType kv = DType::bf16;
  bool round_activations = true;
};

/// A prompt of fewer tokens is sooner fed by steps of the resident kernel than by a chunk, which
/// reads all weights too, in many launches.
constexpr int64_t fewest_tokens(ChunkFormats formats) { return formats.round_activations ? 3 : 6; }

/// Why prompts of such a model are not fed by chunks on such a GPU; empty: they are.
std::string refuse_prefill(Arch arch, const ModelConfig& config, const Weights& weights,
                           ChunkFormats formats = {});
/// How prompts are fed, in words: "by chunks of up to 2048 tokens (fewer than 3: token by token),
/// activations bf16, KV cache bf16".
std::string describe_prefill(Arch arch, const ModelConfig& config, const Weights& weights,
                             ChunkFormats formats);

/// Why a prompt's attention over latent rows is absorbed on such a GPU; empty: keys and values are
/// multiplied out. (Rows of sequences of their own are always absorbed.)
std::string_view refuse_latent_prompt(Arch arch, const LatentAttentionOp& op, DType weights,
                                      DType kv);

/// The program of a chunk: `logits` none (all that is wanted is the cache) or all.
PlanOptions chunk_options(int64_t rows, int64_t capacity, Logits logits, ChunkFormats formats = {});

/// How `rows` are cut into chunks of at most `most`: equal ones but for rounding up to whole tiles,
/// so that the last is not a sliver.
struct Chunks {
  int64_t count = 0;  ///< chunks
  int64_t rows = 0;   ///< of each but the last
};
Chunks cut_into_chunks(int64_t rows, int64_t most);

/// A matrix in a chunk's memory; in elements of the buffer's format.
struct ChunkMatrix {
  int64_t offset = -1;  ///< bytes; -1: the buffer lies elsewhere (cache, state, constants)
  int64_t stride = 0;   ///< elements
};

struct ChunkLayout {
  std::vector<ChunkMatrix> buffers;  ///< [program.buffers]
  /// [program.operations]: how many linear operations, this one first, are one product, because
  /// their weights lie one behind the other and so do their results; 0: an earlier one does it.
  std::vector<int> joined;
  int64_t scratch = 0;   ///< offset of f32 [rows, n] for the products of bf16 that want it
  int64_t order = 0;     ///< offset of i32: a mixture's slots by expert, see PrefillDraw
  int64_t products = 0;  ///< offset of f32: its second products by slot
  /// Of a prompt's attention over latent rows: see refuse_latent_prompt().
  bool multiplies_out = false;
  /// Offsets of rows that are absorbed: queries, in the element of LatentAttentionOp, and what they
  /// attended to, f32; and how many there may be.
  int64_t absorbed_queries = 0, absorbed = 0, absorbed_rows = 0;
  int64_t widened = 0;  ///< offset of a product's weights in the rows' format, where they are codes
  int64_t bytes = 0;
};

/// `places`: where the weights lie, by Weights::tensors(). All offsets are multiples of 256, all
/// strides of 16 bytes; logits have room for kLogitsRows, and their rows for a multiple of 8.
ChunkLayout lay_out_chunk(Arch arch, const Program& chunk, const Weights& weights,
                          std::span<const int64_t> places);

/// A matrix in MXFP4 that has data, as chunks' kernels take it (ExpertMatrices): all codes row by
/// row, then all scales. The checkpoint has them apart, and rows of others between.
std::vector<uint8_t> pack_mx(const Tensor& tensor);

/// A tensor's index in Weights::tensors(), by role.
size_t tensor_index(const Weights& weights, const WeightRef& ref);

}  // namespace weft

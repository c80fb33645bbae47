// A program as a resident kernel reads it: for each worker (a CTA on an SM, a workgroup on a CU) an
// array of fixed-size codes, the same for every target. lower.h makes them; a target says of each
// product how its weights lie in the worker's stream.
#pragma once

#include <cstdint>

#include "base/activation.h"
#include "ops/sample/op.h"

namespace weft::resident {

inline constexpr int kMostSequences = 8;

/// A place in device memory, in bytes from the arena's beginning.
using Place = int64_t;
inline constexpr Place kNowhere = -1;

enum class Opcode : uint8_t {
  begin_step,    ///< waits for the tokens that the step before drew; RoPE's angles
  embed,         ///< EmbedCode
  norm_add,      ///< NormAddCode
  linear,        ///< ProductCode
  gated_linear,  ///< ProductCode, of one segment
  attention,     ///< AttentionCode
  combine,       ///< CombineCode
  sample,        ///< SampleCode
  route,         ///< RouteCode
};

/// The number of a code's result in a step, see Launch::first_tag; kPlain: a buffer of plain f32;
/// kOperands: rows of several sequences as the target's products take them.
using Version = int32_t;
inline constexpr Version kPlain = -1;
inline constexpr Version kOperands = -2;

/// How a layer's attention cuts the keys that a query sees.
struct Splits {
  int32_t count = 1;
  int32_t window = 0;  ///< keys, the query's own included; 0: all
};

inline constexpr int kMostRopes = 2;

struct BeginStepCode {
  Place inverse_frequencies = kNowhere;  ///< f32 [sequences, ModelShape::ropes, rope_half]
  float scale[kMostRopes] = {1, 1};      ///< of cosines and sines
};

/// Of sequences first .. last - 1.
struct EmbedCode {
  Place table = kNowhere;  ///< bf16, or see ModelShape::f16: [vocabulary, columns]
  Place out = kNowhere;
  int32_t columns = 0;
  int32_t first = 0, last = 0;
  float scale = 1;
  Version version = kPlain;  ///< of out
};

/// residual += scale * rmsnorm(x), of all sequences.
struct NormAddCode {
  Place x = kNowhere;
  Place weight = kNowhere;    ///< bf16 [columns]
  Place residual = kNowhere;  ///< the worker's own
  int32_t columns = 0;
  float epsilon = 0;
  float weight_offset = 0;  ///< weights are stored less this
  float scale = 1;
  Version source = kPlain;   ///< of x
  Version version = kPlain;  ///< of the residual
};

/// Consecutive columns of one product's out.
struct Segment {
  Place out = kNowhere;   ///< of the first of them; of kOperands: of the rows
  Place bias = kNowhere;  ///< bf16, of these columns
  uint32_t columns = 0;
  Version version = kPlain;  ///< of what is written
  int32_t stride = 0;        ///< elements of out from one sequence's row to the next one's
  /// So many columns, a head's, have a row of their own, k elements; 0: all have one.
  int32_t head_columns = 0;
};
inline constexpr int kMostSegments = 3;

/// What ProductCode::stream counts weights in that several workers read.
inline constexpr int kSharedGrain = 128;

/// How the row that a product multiplies is made of what is in memory.
enum class RowForm : uint8_t {
  plain,       ///< as it is
  rms_norm,    ///< times the norm's weights, and the sums times its factor
  rms_normed,  ///< the same, and it is there: a code before the product has made it
  layer_norm,  ///< of at most Limits::layer_norm elements
  merged,      ///< of attention's partials
  slots,       ///< of a mixture's slots, one after the other, each times its weight
  heads,       ///< of each head's part of it, `head_pitch`; of one segment, with head_columns
};
constexpr bool is_normed(RowForm form) {
  return form == RowForm::rms_norm || form == RowForm::rms_normed;
}

/// What a draw does while it waits, for the product after it, which then is RowForm::rms_normed.
enum class NextRow : uint8_t {
  none,
  made,    ///< it makes the product's row
  turned,  ///< the product before the draw has left that row, but not as these weights take it
};

/// Which draw of experts a product is about: see RouteCode.
enum class DrawOf : uint8_t {
  none,
  experts,  ///< the layer's: `slots` of them, from `first_slot` on
  shared,   ///< the expert that every token has: one slot
};

/// The row of the expert that every token has, where its second product is part of the drawn ones':
/// it comes after the slots, whole slices of it, and its weights after all experts'.
struct SharedRow {
  Version source;
  int32_t elements;  ///< 0: there is none
};

/// The rows of all sequences times weights [columns, k] that are in the worker's stream. Of drawn
/// experts the stream has `experts` times the same columns, of which those that were drawn are
/// read. Gated: the columns of each slot follow one another, each slot's to a row of `stride`
/// elements of its own; flat: of all slots' columns, of which each slot has `stride`, the product
/// has those from `first` on. Otherwise k is that of all slots, each its expert's part, up to whole
/// slices. A bias of theirs is the first expert's; the next one's is `stride` elements on.
/// Of several sequences products are of the union of what these have drawn, each expert once, and
/// rows between them are operands, `slots` times `slot_elements` of each sequence. First products
/// are flat, and this is an instruction's share where a row's slots are all there is: of more
/// experts it has as many times the columns. Second ones have the k of one slot.
struct ProductCode {
  /// RowForm::merged: attention's partials, where head_columns are not 0 of all heads; heads: the
  /// part of the head that has the first column, of operands all heads'.
  Place row = kNowhere;
  /// bf16 [k]. RowForm::merged: norm_weight has attention's sinks [query heads], or kNowhere.
  union {
    Place norm_weight = kNowhere;
    Place shared_row;  ///< RowForm::slots: see SharedRow; kNowhere: zeros
  };
  union {
    Place norm_bias = kNowhere;
    SharedRow shared;  ///< RowForm::slots
  };
  Place up_bias = kNowhere;  ///< gated_linear: a segment's bias is the gate's
  float epsilon = 0;         ///< the norm's
  float weight_offset = 0;   ///< the norm's weights are stored less this
  int32_t k = 0;
  int32_t first = 0;  ///< of the columns, in the whole product
  /// Of the first page, in units of 16 bytes from the worker's stream. Flat: all workers read the
  /// same weights, all columns of all experts; in units of kSharedGrain from the first stream.
  uint32_t stream = 0;
  Version source = kPlain;  ///< of the row, or of the partials
  union {
    Splits splits = {};     ///< of the partials
    int32_t slot_elements;  ///< RowForm::slots: of the row of one, of which the row is made
    int32_t head_pitch;     ///< RowForm::heads: elements from a head's part to the next one's
  };
  float alpha = 1;         ///< of the sums, biases included; of one segment alone
  Version prior = kPlain;  ///< of what they are added to, `accumulate`
  union {
    float soft_cap = 0;  ///< of what is written; 0: none
    float limit;  ///< of drawn experts: ExpertsUpOp::limit, which bounds second products' rows
  };
  Activation activation = Activation::none;  ///< of the sums, or of the gate's
  RowForm form = RowForm::plain;
  uint8_t accumulate = 0;  ///< to what is in out; of one segment alone
  uint8_t streamed = 0;    ///< rows come in parts, as the target cuts them; 0: they come whole
  uint8_t weights = 0;     ///< their form in the stream, as the target numbers them
  uint8_t fold = 0;        ///< of the last unit, as the target folds it
  DrawOf draw = DrawOf::none;
  uint8_t first_slot = 0, slots = 0;
  uint8_t flat = 0;
  uint16_t experts = 0;
  Segment segment[kMostSegments];
};

/// Attention of one sequence over a split of its keys, for KV heads first .. last - 1. Queries, and
/// the step's own key and value where the split has them, are normed and rotated on the way.
///
/// Over latent rows (ops/mla; latent_rank is not 0): for query heads first .. last - 1, whose
/// queries are in the rows' space, [query heads, latent_rank]; partials are of so many elements,
/// too. v has heads as projected, of `projected` elements, the last of which turn, in pairs of
/// neighbours; k the step's own row, normed by key_norm as far as latent_rank. The first heads'
/// code appends it.
struct AttentionCode {
  Place q = kNowhere, k = kNowhere, v = kNowhere;  ///< as projected
  Place keys = kNowhere, values = kNowhere;        ///< caches
  Place partials = kNowhere;
  Place query_norm = kNowhere, key_norm = kNowhere;  ///< weights; kNowhere: no norm
  Version q_version = kPlain, k_version = kPlain, v_version = kPlain;
  Version version = kPlain;  ///< of the partials
  int32_t sequence = 0;
  int32_t first = 0, last = 0;
  int32_t split = 0;
  Splits splits;
  float scale = 1;     ///< of q.k
  float soft_cap = 0;  ///< of scores; 0: none
  float epsilon = 0;
  float weight_offset = 0;  ///< norms' weights are stored less this
  uint32_t whole_norm = 0;  ///< norms are over all heads together
  int32_t rope = 0;         ///< which of the model's; below 0: heads do not turn
  int32_t latent_rank = 0, projected = 0;
};

/// Merges attention's splits of query heads first .. last - 1, of all sequences, to operands; of
/// one sequence to a tagged row.
struct CombineCode {
  Place partials = kNowhere;
  Place out = kNowhere;
  Place sinks = kNowhere;  ///< of attention, [query heads]
  int32_t first = 0, last = 0;
  Version source = kPlain;      ///< of the partials
  Version version = kOperands;  ///< of out
  Splits splits;
  int32_t latent_rank = 0;  ///< see AttentionCode
};

struct SampleCode {
  Place logits = kNowhere;  ///< f32 [sequences, vocabulary]
  int32_t vocabulary = 0;
  int32_t sequence = 0;
};

/// Draws experts from a router's logits: by each worker for itself, which keeps what it drew.
struct RouteCode {
  Place logits = kNowhere;  ///< [sequences, experts, rounded up to pairs]
  int32_t experts = 0, chosen = 0;
  Version source = kPlain;  ///< of the logits
  DrawOf draw = DrawOf::experts;
  uint8_t sigmoid = 0, renormalise = 0;  ///< see RouteArgs, likewise what follows
  uint8_t correction_f32 = 0;            ///< otherwise in bf16
  Place correction = kNowhere;
  int32_t groups = 1, kept_groups = 1;
  float scale = 1;
  NextRow next_row = NextRow::none;
};

inline constexpr uint32_t kMostTag = 0xffff;

inline constexpr int kMostWaits = 4;
inline constexpr int kMostSignals = 2;
inline constexpr uint16_t kPreviousStep = 0x8000;

/// What decides what is to be done.
struct alignas(16) CodeHead {
  Opcode opcode = Opcode::begin_step;
  uint8_t waits = 0;
  uint8_t signals = 0;
  uint8_t head = 0;                ///< makes or reads logits: not done where the token is forced
  uint16_t units = 0;              ///< of a product: what the target deals its columns in
  uint8_t ends_step = 0;           ///< the worker's last code
  uint8_t segments = 0;            ///< of a product
  uint16_t wait[kMostWaits] = {};  ///< event | kPreviousStep
};

struct Code : CodeHead {
  uint16_t signal[kMostSignals] = {};  ///< event
  int32_t operation = 0;               ///< index in the Program, for messages
  union {
    BeginStepCode begin_step;
    EmbedCode embed;
    NormAddCode norm_add;
    ProductCode product;
    AttentionCode attention;
    CombineCode combine;
    SampleCode sample;
    RouteCode route;
  };

  constexpr Code() : begin_step() {}
};
static_assert(sizeof(Code) == 208);  // a multiple of 16

/// What every code of a program shares.
struct ModelShape {
  int32_t sequences = 1;
  int32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  int32_t group = 0;     ///< query heads to a KV head
  int32_t capacity = 0;  ///< positions of the KV cache
  int32_t vocabulary = 0;
  int32_t ropes = 1;
  int32_t rope_half = 0;  ///< pairs of a head's elements that turn
  bool kv_f32 = false;
  bool f16 = false;  ///< embedding, norms and biases are f16, otherwise bf16
  /// Some layer has what few models have: soft caps, LayerNorms, norms' weights that are stored
  /// less something, an FFN without a gate or with another activation than SiLU, experts with
  /// biases or limits, attention with sinks, heads that turn in part or not at all, weights in fp8
  /// or MXFP4.
  bool general = false;
  bool experts = false;  ///< some layer is a mixture
};

inline constexpr int kMostEos = 8;

/// Host memory, mapped: what the kernel reports to the host while it runs.
struct Mailbox {
  uint32_t stop = 0;                     ///< what the host copies to Launch::stop
  uint32_t tokens[kMostSequences] = {};  ///< kernel: new tokens so far in this launch
  int32_t token[1];                      ///< [sequences, steps]
};

/// Written by the first worker that gives up.
struct Failure {
  uint32_t happened = 0;
  int32_t worker = 0;
  int32_t operation = 0;  ///< -1: waited for the next step to begin, or for its next code
  int32_t event = 0;      ///< -1: waited for data
  uint32_t tag = 0;       ///< of the step
};

/// What a worker publishes of a sequence's next token, in two 8-byte words that are each written
/// and read whole. Where the best logit is the token, all workers publish which of theirs is the
/// best, and each reader takes the best of all; otherwise who samples the sequence has drawn it and
/// publishes it alone.
struct alignas(16) Draw {
  float logit = 0;
  uint32_t number = 0;  ///< Launch::first_draw + step
  uint32_t token = 0;   ///< kNoToken: none. The uppermost bit: the host wants the sequence ended
  uint32_t again = 0;   ///< the number again

  static constexpr uint32_t kNoToken = 0x7fffffffu;
  static constexpr uint32_t kStop = 0x80000000u;
};

/// One launch: steps of a program. A target adds what its kernel wants to know beside.
struct Launch {
  char* arena = nullptr;
  const Code* codes = nullptr;              ///< all workers' codes
  const uint32_t* code_begin = nullptr;     ///< [workers + 1]
  const char* const* streams = nullptr;     ///< [workers]
  const uint32_t* event_signals = nullptr;  ///< [events]: signals in one step
  uint32_t* counters = nullptr;             ///< [events * kCounterStride], zero before the launch
  uint32_t events = 0;
  int32_t workers = 0;
  /// Elements of most activations carry the number of the write that made them, so that a reader
  /// waits for the data itself: first_tag + step * versions + the writer's Version. Of 16 bits:
  /// never 0, and never the same twice before the buffers are cleared.
  uint32_t first_tag = 1;
  uint32_t versions = 0;
  uint32_t first_draw = 1;  ///< of the first step's Draws: 1 or more, and never the same twice

  ModelShape shape;
  int32_t most_codes = 0;  ///< of a worker

  int32_t* tokens = nullptr;  ///< [sequences, capacity + 1]: of each position
  /// Of the first step, by sequence. Below 0, and from the cache's end on, a sequence is
  /// idle: it feeds its first or its last token again.
  int32_t position[kMostSequences] = {};
  int32_t forced_steps = 0;  ///< from the first on: their next tokens are forced; later ones draw
  int32_t steps = 0;
  int32_t eos[kMostEos] = {};
  int32_t eos_count = 0;

  SamplingOptions sampling;
  const float* uniforms = nullptr;  ///< [sequences, steps]
  /// [sequences, words]: a bit for each token of the vocabulary: whether it was there already
  /// (repetition penalty).
  uint32_t* seen = nullptr;
  void* kept = nullptr;   ///< [sequences, vocabulary] of 8 bytes: see sample_row()
  Draw* draws = nullptr;  ///< [2, sequences, workers]: of even steps' numbers and of odd ones
  Mailbox* mailbox = nullptr;
  /// Sequences that the host wants ended soon, a bit each. In device memory: the host copies it
  /// there while the kernel runs. (Loads from the host's memory, by a few SMs and a microsecond
  /// apart, can hold up all other loads of half of the chip's SMs.)
  uint32_t* stop = nullptr;
  uint32_t ended = 0;  ///< sequences that had ended before the launch, a bit each
  Failure* failure = nullptr;
  /// The worker's clock before a code's wait, after it, after the work and after the signal, of the
  /// last step: [worker][code of the longest list][4]; null: not wanted.
  int64_t* trace = nullptr;
  int32_t trace_codes = 0;
};

inline constexpr int kCounterStride = 32;  ///< counters lie on cache lines of their own

}  // namespace weft::resident

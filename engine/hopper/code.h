// A program as the resident kernel reads it: for each worker (a CTA on an SM) an array of
// fixed-size codes, which come into its shared memory a few ahead of their use. lower.h makes them;
// decode_kernel.cu executes them.
#pragma once

#include <cstdint>

#include "ops/linear/hopper_layout.h"
#include "ops/sample/op.h"

namespace weft::hopper {

/// A place in device memory, in units of 16 bytes from the arena's beginning.
using Place = uint32_t;
inline constexpr Place kNowhere = 0xffffffffu;

enum class Opcode : uint8_t {
  begin_step,    ///< a: inverse frequencies; n: half. The angles of RoPE to shared memory, then
                 ///< the tokens that the step before drew
  embed,         ///< a: table, b: out; n: columns; x: scale; first, last: sequences
  norm_add,      ///< a: x, b: weight, c: residual; n: columns; x: epsilon, y: scale
  linear,        ///< a: row, or attention's partials (merged); b: weight of the row's norm or
                 ///< kNowhere, x: its epsilon; k; segments
  gated_linear,  ///< as linear; one segment; first: its first column
  attention,     ///< a: q, b: k, c: v, d: keys, e: values, f: partials; first, last: KV heads; n:
                 ///< split; row; norm: weights, kNowhere: none; x: epsilon
  combine,       ///< a: attention's partials, b: out; first, last: query heads
  sample,        ///< a: logits; n: vocabulary; row. Of the worker that tells the host, too
};

/// The number of a code's result in a step, see Launch::first_tag; kPlain: a buffer of plain f32;
/// kOperands: rows of several sequences as products take them, slice by slice (store_row_quad() in
/// ops/linear/hopper.cuh).
using Version = int32_t;
inline constexpr Version kPlain = -1;
inline constexpr Version kOperands = -2;

/// Consecutive columns of one product's out.
struct Segment {
  Place out = kNowhere;
  Place bias = kNowhere;     ///< bf16, of these columns
  Place bias_up = kNowhere;  ///< gated_linear
  uint32_t columns = 0;
  float alpha = 1;
  Version version = kPlain;  ///< of what is written
  Version prior = kPlain;    ///< of what it is added to, when `accumulate`
  uint16_t accumulate = 0;
  uint16_t bias_skip = 0;  ///< elements from the biases' places to the first column's
  int32_t stride = 0;      ///< elements of out from one sequence's row to the next one's
};

/// What attention has beyond the common fields.
struct AttentionCode {
  Place query_norm = kNowhere;
  Place key_norm = kNowhere;
  uint32_t whole_norm = 0;         ///< over all heads together
  Version k = kPlain, v = kPlain;  ///< of keys and values
};

/// Threads that take turns at bringing pages: one alone brings one every 900 cycles or so.
inline constexpr int kLoaders = 2;
inline constexpr int kMostPages = 16;  ///< in the ring
inline constexpr uint32_t kMostTag = 0xffff;

inline constexpr int kMostWaits = 4;
inline constexpr int kMostSignals = 2;
inline constexpr int kMostSegments = 3;
inline constexpr uint16_t kPreviousStep = 0x8000;

/// What decides what is to be done.
struct alignas(16) CodeHead {
  Opcode opcode = Opcode::embed;
  uint8_t waits = 0;
  uint8_t signals = 0;
  uint8_t head = 0;  ///< part of the way to the logits: not done where the token is given
  uint16_t units = 0;
  uint8_t ends_step = 0;  ///< the worker's last code
  uint8_t segments = 0;
  uint16_t wait[kMostWaits] = {};  ///< event | kPreviousStep
};

struct Code : CodeHead {
  uint16_t signal[kMostSignals] = {};  ///< event
  uint8_t candidates = 0;              ///< linear: tell all workers the best of these columns
  uint8_t merged = 0;                  ///< linear: the row is attention's splits
  uint8_t fold = 0;                    ///< of a product's last unit (see ops/linear/hopper.cuh)
  int32_t operation = 0;               ///< index in the Program, for messages
  Place a = kNowhere, b = kNowhere, c = kNowhere, d = kNowhere, e = kNowhere, f = kNowhere;
  int32_t n = 0, k = 0, first = 0, last = 0;
  int32_t row = 0;  ///< the sequence's, where a code works on one sequence; else it does on all
  float x = 0, y = 0;
  uint32_t stream = 0;       ///< of the first page, in units of 16 bytes from the worker's stream
  uint8_t compressed = 0;    ///< a product's weights (see ops/linear/hopper_compress.h)
  uint8_t streamed = 0;      ///< a product's rows come slice by slice: kOperands alone
  Version source = kPlain;   ///< of what `a` is
  Version version = kPlain;  ///< of what embed and attention write
  Segment segment[kMostSegments];
  AttentionCode attention;
};
static_assert(sizeof(Code) == 224);

/// What every code of a program shares.
struct ModelShape {
  int32_t sequences = 1;
  int32_t query_heads = 0, kv_heads = 0, head_dim = 0;
  int32_t group = 0;  ///< query heads to a KV head
  int32_t window = 0, splits = 1;
  int32_t capacity = 0;  ///< positions of the KV cache
  int32_t vocabulary = 0;
  float attention_scale = 1;
  bool kv_f32 = false;
};

inline constexpr int kMostEos = 8;

/// Host memory, mapped: what the kernel tells the host while it runs.
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

/// What a worker says of a sequence's next token, in two 8-byte words that are each written and
/// read whole. Where the best logit is the token, all workers say which of theirs is the best, and
/// each reader takes the best of all; otherwise who samples the sequence has drawn it and says it
/// alone.
struct alignas(16) Draw {
  float logit = 0;
  uint32_t number = 0;  ///< Launch::first_draw + step
  uint32_t token = 0;   ///< kNoToken: none. The uppermost bit: the host wants the sequence ended
  uint32_t again = 0;   ///< the number again

  static constexpr uint32_t kNoToken = 0x7fffffffu;
  static constexpr uint32_t kStop = 0x80000000u;
};

/// One launch: steps of a program.
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
  int32_t scratch_bytes = 0;         ///< shared memory for rows and attention
  int32_t most_codes = 0;            ///< of a worker
  int32_t pages = 0;                 ///< in the ring
  int32_t page_bytes = 0;            ///< from a page to the next
  int32_t pages_in_flight = 0;       ///< of a loader, while `hungry_slots` are free (FlightLimits)
  int32_t calm_pages_in_flight = 0;  ///< otherwise
  int32_t hungry_slots = 0;          ///< 0: always as if they were

  int32_t* tokens = nullptr;  ///< [sequences, capacity + 1]: of each position
  /// Of the first step, by sequence. Below 0, and from the cache's end on, a sequence only keeps
  /// the others company: it feeds its first or its last token again.
  int32_t position[kMostSequences] = {};
  int32_t silent = 0;  ///< steps from the first on whose next tokens are given; later ones draw
  int32_t steps = 0;
  int32_t eos[kMostEos] = {};
  int32_t eos_count = 0;

  SamplingOptions sampling;
  const float* uniforms = nullptr;  ///< [sequences, steps]
  /// [sequences, words]: a bit for each token of the vocabulary: whether it was there already
  /// (repetition penalty).
  uint32_t* seen = nullptr;
  void* kept = nullptr;   ///< [sequences, vocabulary] uint2: see sample_row()
  Draw* draws = nullptr;  ///< [2, sequences, workers]: of even steps' numbers and of odd ones
  Mailbox* mailbox = nullptr;
  /// Sequences that the host wants ended soon, a bit each. In device memory: the host copies it
  /// there while the kernel runs. (Loads from the host's memory, by a few SMs and a microsecond
  /// apart, can hold up all other loads of half of the chip's SMs.)
  uint32_t* stop = nullptr;
  uint32_t ended = 0;  ///< sequences that had ended before the launch, a bit each
  Failure* failure = nullptr;
  /// Clock of the SM before a code's wait, after it, after the work and after the signal, of the
  /// last step: [worker][code of the longest list][4]; null: not wanted.
  int64_t* trace = nullptr;
  int32_t trace_codes = 0;
};

inline constexpr int kCounterStride = 32;  ///< counters lie on cache lines of their own

}  // namespace weft::hopper

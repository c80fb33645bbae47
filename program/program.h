// A program: one decode step, or one chunk of prefill, as data. It lists the operations with their
// operands, and for each worker (a CPU thread, an SM, a CU) a fixed sequence of instructions: which
// tile of which operation, what to wait for, what to announce. It names buffers, weights and events
// by index and knows no addresses, so every interpreter lays it over its own memory.
//
// Time. A program is run for one or more steps without returning. Each event counts the signals of
// its instructions; in step s a wait for the event is over when s + 1 steps' worth of signals have
// come, a wait for the previous step when s steps' worth have. Counters are never reset while a
// program runs. Within a worker, instructions take effect in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/activation.h"
#include "base/number.h"
#include "base/range.h"
#include "model/weights.h"

namespace weft {

using BufferId = int32_t;
using EventId = int32_t;
inline constexpr int32_t kNone = -1;

/// What elements a buffer holds.
enum class Element : uint8_t { f32, bf16, f16, i32 };
Element element_of(DType type);
DType dtype_of(Element element);  ///< not for i32
int64_t size_of(Element element);
std::string_view name_of(Element element);

/// Whose a buffer is and how long it lives.
enum class Space : uint8_t {
  activation,  ///< shared by the workers, alive within a step
  worker,      ///< one for each worker: a value recomputed by each instead of exchanged
  kv,          ///< a layer's keys or values, or latent rows, alive for the sequences: [sequences,
               ///< kv_heads, capacity, head_dim]
  state,       ///< the sequences: tokens, positions; written by the host and by sample
  constant,    ///< made before a run: rotary frequencies
};

struct Buffer {
  std::string name;
  Space space = Space::activation;
  Element element = Element::f32;
  int64_t rows = 0;  ///< 1 in a program of many rows: the one row that matters (Rows::last)
  int64_t columns = 0;
  int64_t layer = -1;  ///< Space::kv: whose

  int64_t bytes() const { return rows * columns * size_of(element); }
};

/// A weight by role; the interpreter finds its bytes in the model's Weights.
struct WeightRef {
  Role role = Role::embedding;
  int64_t layer = -1;
  bool present = false;
};

/// Which of a step's rows (tokens) an operation works on.
enum class Rows : uint8_t { all, last };

// Operations, with their operands by index. Shapes and arithmetic: ops/<name>/op.h.

struct EmbedOp {
  WeightRef table;
  BufferId tokens = kNone, out = kNone, copy = kNone;
  int64_t columns = 0;
  float scale = 1;
};

struct RopeAnglesOp {
  BufferId positions = kNone, inverse_frequencies = kNone, cosines = kNone, sines = kNone;
  int64_t rope = 0;  ///< the row of a sequence's inverse_frequencies: which of the model's ropes()
  int64_t half = 0;
  float scale = 1;
};

struct RmsNormOp {
  WeightRef weight;
  BufferId x = kNone, residual = kNone, out = kNone;
  int64_t columns = 0, groups = 1;  ///< an instruction's `tile` is a range of groups
  float epsilon = 0, scale = 1, weight_offset = 0;
};

struct LayerNormOp {
  WeightRef weight, bias;
  BufferId x = kNone, out = kNone;
  int64_t columns = 0;
  float epsilon = 0;
};

struct LinearOp {
  WeightRef weight, bias;
  BufferId a = kNone, out = kNone;
  int64_t n = 0, k = 0;
  float alpha = 1;
  bool accumulate = false;
  Activation activation = Activation::none;
  float soft_cap = 0;
  Fp8Rounding rounding = {};  ///< of a; Scaling::tensor: by the weight's input_scale
};

struct GatedLinearOp {
  WeightRef gate, up, gate_bias, up_bias;
  BufferId a = kNone, out = kNone;
  int64_t n = 0, k = 0;
  Activation activation = Activation::silu;
  Fp8Rounding rounding = {};  ///< of a; Scaling::tensor: by gate's input_scale
};

/// Draws a row's experts from the router's logits (ops/moe).
struct RouteOp {
  BufferId logits = kNone, ids = kNone, weights = kNone;
  int64_t experts = 0, chosen = 0;
  bool sigmoid = false, renormalise = false;
  WeightRef correction;
  int64_t groups = 1, kept_groups = 1;
  float scale = 1;
};

/// Gate and up products of the experts that each row has; the references are to the first expert's
/// weights.
struct ExpertsUpOp {
  WeightRef gate, up;
  WeightRef gate_bias, up_bias;  ///< of all experts
  BufferId a = kNone, ids = kNone;
  BufferId out = kNone;  ///< [rows * chosen, n]; of `flat` [rows, chosen * n]
  int64_t experts = 0, chosen = 0, n = 0, k = 0;
  /// Tiles are of the columns of all of a row's slots, slot after slot, so that they are as even as
  /// can be.
  bool flat = false;
  bool alone = false;  ///< Drawn::alone
  Activation activation = Activation::silu;
  Fp8Rounding rounding = {};  ///< of a; Scaling::tensor: by each gate's input_scale
  float limit = 0;
};

/// Their second products, weighted and summed.
struct ExpertsDownOp {
  WeightRef weight;
  WeightRef bias;      ///< of all experts
  BufferId a = kNone;  ///< [rows * chosen, k]; of `flat` [rows, chosen * k]
  BufferId ids = kNone, weights = kNone, out = kNone;
  int64_t experts = 0, chosen = 0, n = 0, k = 0;
  bool flat = false;
  bool alone = false;  ///< Drawn::alone
  float alpha = 1;
  bool accumulate = false;
  Fp8Rounding rounding = {};
};

struct RopeAppendOp {
  BufferId q = kNone, k = kNone, v = kNone, positions = kNone, cosines = kNone, sines = kNone;
  BufferId q_out = kNone, keys = kNone, values = kNone;
  int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t unturned = 0;  ///< head_dim: no RoPE; then cosines and sines are kNone
};

struct AttentionOp {
  BufferId q = kNone, keys = kNone, positions = kNone;
  BufferId values = kNone;    ///< keys: they are the same rows (ops/mla)
  BufferId partials = kNone;  ///< kNone: one split, straight to out
  BufferId out = kNone;
  int64_t query_heads = 0, kv_heads = 0, head_dim = 0, window = 0, splits = 1;
  float scale = 1, soft_cap = 0;
  WeightRef sinks;

  /// Fused form (PlanOptions::fuse_attention), k is not kNone: q, k and v come as projected. An
  /// instruction norms and rotates the queries of its heads for itself; the one whose keys include
  /// the step's own row also norms, rotates and appends that row.
  BufferId k = kNone, v = kNone, cosines = kNone, sines = kNone;
  WeightRef query_norm, key_norm;
  bool whole_norm = false;  ///< over all heads together
  float epsilon = 0, weight_offset = 0;
  int64_t unturned = 0;  ///< as RopeAppendOp's

  /// The fused form over latent rows: head_dim is their rank, q what LatentQueriesOp leaves (fused,
  /// too), k the step's row as projected, normed by key_norm. Attended are latents alone. An
  /// instruction turns its queries' ends for itself, of heads as projected.
  struct Latent {
    BufferId projected = kNone;
    int64_t unturned = 0, turned = 0;  ///< elements of a projected head
  };
  Latent latent;

  bool fused_latent() const { return latent.projected != kNone; }
  /// Query heads in a part of a tile.
  int64_t tile_heads() const { return fused_latent() ? 1 : query_heads / kv_heads; }
};

/// Merges what the AttentionOp it repeats left in partials.
struct AttentionCombineOp {
  AttentionOp attention;
};

// Of attention over latent rows (ops/mla).

/// Norms and turns a latent row, and appends it.
struct LatentAppendOp {
  WeightRef norm;
  BufferId x = kNone, positions = kNone, cosines = kNone, sines = kNone;
  BufferId cache = kNone;
  int64_t rank = 0, turned = 0;
  float epsilon = 0;
};

/// What the operations of heads have in common.
struct LatentHeadsOp {
  WeightRef weight;
  int64_t heads = 0, rank = 0, unturned = 0, turned = 0, value = 0;
  bool fused = false;  ///< beside AttentionOp's: what is turned is left out, tiles are of columns

  /// Elements of a head in attention's rows.
  int64_t pitch() const { return fused ? rank : rank + turned; }
};

/// Queries into the space of latent rows. Fused: cosines and sines are kNone.
struct LatentQueriesOp : LatentHeadsOp {
  BufferId q = kNone, cosines = kNone, sines = kNone, out = kNone;
};

/// Values of what was attended to.
struct LatentValuesOp : LatentHeadsOp {
  BufferId a = kNone, out = kNone;
};

/// Attention of a chunk's rows over latent rows, from queries as they are projected to each head's
/// values: what LatentQueriesOp, AttentionOp and LatentValuesOp are in a decode step. Who runs it
/// either absorbs or multiplies keys and values out (ops/mla).
struct LatentAttentionOp : LatentHeadsOp {
  BufferId q = kNone, cosines = kNone, sines = kNone, positions = kNone, cache = kNone, out = kNone;
  Element element = Element::f32;  ///< of queries, keys and values, as they are multiplied
  float scale = 1;
  bool absorbs = false;  ///< whatever the rows: PlanOptions::cut_anywhere
};

/// Reads logits and the tokens so far; writes the next token and its position for the next step.
struct SampleOp {
  BufferId logits = kNone, tokens = kNone, positions = kNone;
  int64_t vocabulary = 0;
};

struct Operation {
  std::string name;  ///< for people: "q_proj"
  int64_t layer = -1;
  Rows rows = Rows::all;
  std::variant<EmbedOp, RopeAnglesOp, RmsNormOp, LayerNormOp, LinearOp, GatedLinearOp, RopeAppendOp,
               AttentionOp, AttentionCombineOp, SampleOp, RouteOp, ExpertsUpOp, ExpertsDownOp,
               LatentAppendOp, LatentQueriesOp, LatentValuesOp, LatentAttentionOp>
      body;
};

/// The operation's kind in words: "linear".
std::string_view kind_of(const Operation& operation);

/// A wait for all signals of an event in this step, or in the steps before.
struct Wait {
  EventId event = kNone;
  bool previous_step = false;
};

struct Instruction {
  int32_t operation = 0;
  /// Rows of the step (Rows::all); clipped to the rows that the step has. Ignored for Rows::last.
  Range rows;
  /// The tile: columns of out (embed, linear, gated_linear, experts_*: embed takes all), groups
  /// (rmsnorm; layernorm, route and latent_append have one), KV heads (rope_append, attention),
  /// query heads (attention_combine; latent_queries, latent_values, latent_attention and attention
  /// over latent rows, but see `fused`: columns of out, query heads).
  Range tile;
  int32_t split = 0;  ///< attention: which split of the keys
  std::vector<Wait> waits;
  EventId signal = kNone;
};

struct Event {
  std::string name;
  int32_t signals = 0;  ///< instructions that signal it in one step
};

/// Which rows get logits, and whether a token is drawn from the last one's.
enum class Logits : uint8_t { none, last, all };

struct Program {
  std::string name;
  int64_t rows = 1;  ///< most tokens in one step
  /// 1: a step's rows are consecutive tokens of one sequence. More: row r is the next token of
  /// sequence r, and there are as many rows as sequences.
  int64_t sequences = 1;
  std::vector<Buffer> buffers;
  std::vector<Operation> operations;
  std::vector<Event> events;
  std::vector<std::vector<Instruction>> workers;  ///< in order of execution

  BufferId tokens = kNone, positions = kNone, inverse_frequencies = kNone;
  BufferId logits = kNone;
  EventId sampled = kNone;  ///< signalled when a step's token is known; kNone: one step only
};

/// What a worker moves and computes in one instruction, for `rows` tokens at `position` onward.
struct Cost {
  double weight_bytes = 0;
  double kv_bytes = 0;
  double flops = 0;
  Cost& operator+=(const Cost& other);
};

/// The cost of one instruction when the step has `rows` tokens and the first is at `position` (or,
/// in a program of several sequences, all are). Of experts that rows draw, so many are counted as
/// rows that draw at random have in the mean.
/// `weights` tells the formats the weights are stored in.
Cost cost_of(const Program& program, const Instruction& instruction, const Weights& weights,
             int64_t rows, int64_t position);

/// The sum over all instructions.
Cost cost_of(const Program& program, const Weights& weights, int64_t rows, int64_t position);

}  // namespace weft

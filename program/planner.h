// The planner: model + workers -> program. It and its parts (weaver, section, residual, plan_*) are
// the only place that knows how a transformer is woven from operations; families differ by their
// config's fields alone.
#pragma once

#include "base/result.h"
#include "model/config.h"
#include "model/weights.h"
#include "program/program.h"

namespace weft {

struct PlanOptions {
  int workers = 1;
  int64_t rows = 1;  ///< tokens in one step: 1 decodes, more is a chunk of prefill
  int64_t sequences =
      1;                 ///< that are decoded at once, each with a cache of its own; then rows is 1
  int64_t capacity = 0;  ///< positions the KV cache holds
  DType kv = DType::bf16;
  /// Round a chunk's activations to bf16 where they meet bf16 weights, as transformers does in that
  /// format: twice the rate where the processor has bf16 dot products. Decode steps never round.
  bool round_activations = true;
  /// Quantise activations where they meet weights in eight bits, as the checkpoint says
  /// (Quantization::activations), in chunks and decode steps. They are not rounded to bf16 there.
  bool quantise_activations = false;
  /// A chunk's rows are to have the same bits however a prompt is cut, as far as the program has a
  /// say: attention over latent rows is not done in the form that a chunk's rows have less to do
  /// in, and an expert's products are those of many rows.
  bool cut_anywhere = false;
  /// The device's grain in a decode step: tiles of columns are multiples of `columns`, those of
  /// gate and up projections of `gated_columns`, and attention is cut into about `attention_tasks`
  /// (KV head, key range) tasks. None of them may follow the number of workers where the bits must
  /// not depend on it.
  int64_t columns = 16;
  int64_t gated_columns = 16;
  /// The last grain of a tile may be halved, and once more, down to this many columns, where that
  /// makes workers' shares evener (16: it is not).
  int64_t fewest_columns = 16;
  int64_t attention_tasks = 32;
  /// In a decode step, let attention's instructions repeat the preparation of their queries, and
  /// the output projection's the merge of attention's splits, where that saves an exchange between
  /// workers. For devices on which an exchange costs more than the work.
  bool fuse_attention = false;
  /// With it: splits are merged once, by a worker for each query head, and the row is exchanged,
  /// instead of merged by all who read it. One exchange more, and far less is read of many splits.
  bool merge_once = false;
  /// Workers with near numbers are near on the device: in a decode step, a KV head's columns of
  /// queries, keys and values, its attention and the merge of its splits are dealt to neighbours.
  bool near_heads = false;
  /// In a decode step, deal the columns of drawn experts' first products as those
  /// of one row (ExpertsUpOp::flat). For devices that find an expert's weights wherever they lie.
  bool flat_slots = false;
  Logits logits = Logits::last;
  bool sample = true;  ///< draw a token from the last row's logits (not with Logits::none)
};

/// How many of options.workers a step of these options has work for. Where norms stand after the
/// blocks, every worker of a decode step keeps the residual itself, and so has to have a part in
/// every exchange: one without could be overtaken by the next write of what it still reads. So
/// could one that turns by a position and attends to no latent rows.
int most_workers(const ModelConfig& config, const PlanOptions& options);

/// Plans a step. Columns, heads and rows are dealt to workers such that no result depends on how
/// many there are; those beyond most_workers() have nothing to do.
Program plan(const ModelConfig& config, const Weights& weights, const PlanOptions& options);

}  // namespace weft

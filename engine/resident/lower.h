// From a program to the codes that a resident kernel executes: the order of work, what is waited
// for, which write is read, who makes what. It knows no target: how a product's weights are cut and
// packed is the target's to say.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/range.h"
#include "base/result.h"
#include "engine/resident/arena.h"
#include "engine/resident/code.h"
#include "model/config.h"
#include "model/weights.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft::resident {

/// What a target's kernel has forms for.
struct Limits {
  std::string_view device;  ///< in messages: "cuda"
  int64_t head_dim = 0;
  int64_t layer_norm = 0;         ///< elements
  bool fp8 = false;               ///< products' weights in e4m3fn, with scales
  bool f16 = false;               ///< weights in f16
  int64_t experts = 0;            ///< of a layer, of one sequence; 0: no mixtures
  int64_t chosen = 0;             ///< of them
  int64_t chosen_of_several = 0;  ///< by each of several sequences; 0: no mixtures of several
  /// Gate's weights of all experts that several sequences may draw.
  int64_t union_weights = 0;
  int64_t slot_row = 0;  ///< elements of the slots that one product takes
  bool mx = false;       ///< experts' products in MXFP4, with biases, clamped
  bool sinks = false;    ///< attention's, where a product merges its splits
  /// Of latent rows; 0: there is no attention over them.
  int64_t latent_rank = 0, latent_turned = 0;
  bool latents_of_several = false;  ///< sequences
  int64_t route_groups = 0;         ///< of experts, with them; also a correction and a scale
  int64_t head_grain = 1;  ///< columns of a head that has a row of its own are multiples of it
};

struct PlacedWeight {
  const Tensor* tensor = nullptr;
  Place place = kNowhere;   ///< in the arena: [columns of all, k]
  Place scales = kNowhere;  ///< in the arena, f32, where it has some
};

/// Columns of a product that one worker computes.
struct ProductTile {
  int32_t operation = 0;
  Range columns;
  PlacedWeight weight;
  PlacedWeight up;  ///< of a gated product

  /// Where the columns are heads' (Segment::head_columns): a head's weights lie in rows `pitch`
  /// apart, from row `first` on. Across: a column of theirs is a column of the product, its k are
  /// rows; otherwise each row is a column.
  struct Heads {
    int64_t columns = 0;  ///< of one; 0: they are not
    int64_t first = 0, pitch = 0;
    bool across = false;
  };
  Heads heads = {};
};

/// How a target deals a product's columns and packs their weights. Calls come worker by worker, in
/// the order in which the worker uses its weights.
class Target {
 public:
  virtual ~Target() = default;
  virtual Limits limits() const = 0;
  /// A product begins, of which `k` and where its row comes from are known.
  virtual void begin_product(Code& code, const Tensor& weight) = 0;
  /// Whether a product of the same row may follow in the same code.
  virtual bool may_join(const Code& code, int32_t operation, const Tensor& weight) const = 0;
  /// Its next columns: sets `units` and what else the kernel wants to know of them.
  virtual void add_columns(Code& code, const ProductTile& tile) = 0;
  /// Instead of it, of a product of drawn experts: all of its columns, and the weights that are to
  /// be packed with it, the same tile of each expert. Flat products pack all columns, or none where
  /// another worker's have. Where Limits::experts is 0 nobody calls this or the next.
  virtual void add_experts(Code& /*code*/, Range /*columns*/,
                           std::span<const ProductTile> /*experts*/) {
    WEFT_CHECK(false);
  }
  /// Whether the second product of the expert that every token has, over k elements, may be part of
  /// the drawn ones' (see SharedRow); add_experts() is called with it, then.
  virtual bool may_join_slots(const Code& /*code*/, int32_t /*operation*/, const Tensor& /*weight*/,
                              int64_t /*k*/) const {
    return false;
  }
  /// Elements of k that a slot has where the slots of a row follow one another.
  virtual int64_t slot_k(int64_t elements) const { return elements; }
  /// No more of them. `destination`: where in the packed weights they shall lie. Returns the bytes
  /// that they take, a multiple of 16.
  virtual int64_t end_product(const Code& code, int64_t destination) = 0;
};

struct Lowered {
  std::vector<std::vector<Code>> codes;  ///< [worker]
  std::vector<int64_t> streams;          ///< [worker]: beginning in the packed weights
  std::map<int32_t, int64_t> shared;     ///< likewise, of a flat product's weights, by operation
  int64_t packed_bytes = 0;
  int64_t plain_bytes = 0;              ///< of the same weights as the checkpoint has them
  int64_t saved_bytes = 0;              ///< of a step's, which has the experts that are drawn
  std::vector<uint32_t> event_signals;  ///< [event]
  ModelShape shape;
  bool latents = false;    ///< attention is over latent rows
  int32_t most_codes = 0;  ///< of a worker
};

/// Lowers a decode program (a row a sequence). Errors (input): what the kernel has no form for,
/// weights in other formats among them.
Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, Target& target);

/// Splits that have keys when a cache of options.capacity positions is full.
int64_t splits_of_full_cache(const ModelConfig& config, const PlanOptions& options);

}  // namespace weft::resident

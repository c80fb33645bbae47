// The residual stream of a step: how it begins, what blocks read of it and add to it, and the
// logits that it ends in.
#pragma once

#include <string>
#include <vector>

#include "program/section.h"

namespace weft::planning {

/// What a block ends with: a LinearOp or an ExpertsDownOp, all but where it goes to.
struct BlockOutput {
  std::string name;
  decltype(Operation::body) body;
};

class Residual {
 public:
  /// Makes its buffer.
  explicit Residual(Weaver& weaver);

  /// A chunk's copy in the format of products, where blocks read the residual itself.
  void make_copy();

  /// It begins as the tokens' embeddings. `next_step`: what the step's first instructions wait for.
  void embed(Section& all, const Waits& next_step);
  /// What a block's projections read: the norm of the residual, or the residual itself. `users`
  /// read it; `waits`: what they wait for.
  BufferId input(Section& section, const LayerSpec& spec, const std::string& name, int64_t layer,
                 Role norm, Role bias, const Users& users, Waits& waits);
  /// Adds a block's output, a sum of these, through the norm of this role where norms stand after.
  void add(Section& section, const LayerSpec& spec, int64_t layer,
           const std::vector<BlockOutput>& outputs, Role norm, const Tiles& tiles,
           const Waits& waits);
  /// The final norm and the head; the event that says so.
  EventId logits(Section& section);

 private:
  decltype(Operation::body) norm_op(const NormSpec& norm, Role weight, Role bias, int64_t layer,
                                    BufferId out) const;

  Weaver& weaver_;
  BufferId buffer_ = kNone, copy_ = kNone;
  Waits ready_;
};

/// Weights and input of a product that a block ends with.
LinearOp output_product(const Weaver& weaver, Role weight, Role bias, int64_t layer, BufferId a,
                        int64_t k);

/// An RMS norm over the hidden size.
RmsNormOp rms_norm(const Weaver& weaver, const NormSpec& norm, Role weight, int64_t layer,
                   BufferId x, BufferId out);

}  // namespace weft::planning

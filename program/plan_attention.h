// An attention block, in one of two forms: of operations that each announce their results, or fused
// (PlanOptions::fuse_attention), where who attends prepares its queries for itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/residual.h"

namespace weft::planning {

/// Whether a decode step's workers each merge attention's splits for themselves. Of several
/// sequences that would be more than an exchange costs.
bool merges_for_itself(const Weaver& weaver);

class AttentionPlanner {
 public:
  explicit AttentionPlanner(Weaver& weaver) : weaver_(weaver) {}
  AttentionPlanner(const AttentionPlanner&) = delete;
  AttentionPlanner& operator=(const AttentionPlanner&) = delete;
  virtual ~AttentionPlanner() = default;

  void make_angle_buffers();
  virtual void make_buffers();
  /// Cosines and sines of the step's positions, of every kind of RoPE that the model has.
  void angles(Section& all, const Waits& next_step);
  /// The layer's queries, keys and values, of all rows of the step.
  virtual void project(Residual& residual, Section& all, const LayerSpec& spec, int64_t layer);
  /// Attention of the section's rows and its output projection.
  virtual void attend(Residual& residual, Section& section, const LayerSpec& spec, int64_t layer);

 protected:
  /// Where angles lie, and who makes them.
  virtual Space angles_space() const = 0;
  virtual void spread_angles(int32_t op, Section& all, const Waits& next_step) = 0;
  /// What stands between the projections and attention; what attention waits for.
  virtual Waits prepare(Section& all, const LayerSpec& spec, int64_t layer, Waits projected) = 0;
  /// What the form adds to the operation.
  virtual void complete(AttentionOp& op, const LayerSpec& spec, int64_t layer) const = 0;
  /// Whether a decode step's attention leaves partial results even of one split.
  virtual bool always_splits() const = 0;

  /// Sets unturned, and cosines and sines where heads turn; what they wait for.
  template <class Op>
  void set_rope(Op& op, const AttentionSpec& attention) const {
    op.unturned = attention.head_dim;
    if (attention.rope != kNoRope) {
      const auto at = static_cast<size_t>(attention.rope);
      op.cosines = cosines_[at];
      op.sines = sines_[at];
      op.unturned -= weaver_.ropes()[at].dim;
    }
  }

  Weaver& weaver_;
  BufferId q_ = kNone, k_ = kNone, v_ = kNone, q_rotated_ = kNone, partials_ = kNone;
  std::vector<BufferId> cosines_, sines_;  // [ropes]
  std::vector<BufferId> keys_, values_;    // [layer]
  int64_t splits_ = 1;

  /// Columns of the output projection, of `size` weights each; who is `late` has none where that
  /// costs the others little.
  Tiles outputs(Section& section, int64_t size, const Users& late);
  /// Tasks in order of split, then sequence, then head; a worker's run of heads is one tile.
  Tiles by_tasks(const AttentionOp& op) const;

 private:
  /// Whether what belongs to a KV head stays with neighbours.
  bool near_heads() const;
  /// Whether attention leaves partial results, which are merged.
  bool splits() const;
  /// Merges the splits' results; what the output projection waits for.
  Waits combine(Section& section, const AttentionOp& op, int64_t layer, EventId done,
                const Tiles& readers);

  Waits ready_;
};

/// The form that the options ask for.
std::unique_ptr<AttentionPlanner> make_attention_planner(Weaver& weaver);

}  // namespace weft::planning

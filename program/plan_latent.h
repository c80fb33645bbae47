// Attention over latent rows (ModelConfig::latent, ops/mla), in decode steps and in chunks
// absorbed: no key or value is multiplied out. Fused (PlanOptions::fuse_attention, of one
// sequence): who attends turns its queries and makes the step's own row, who needs values merges
// splits.
#pragma once

#include <memory>

#include "program/plan_attention.h"

namespace weft::planning {

std::unique_ptr<AttentionPlanner> make_latent_planner(Weaver& weaver);

}  // namespace weft::planning

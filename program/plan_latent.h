// Attention over latent rows (ModelConfig::latent, ops/mla). In decode steps it is absorbed: no key
// or value is multiplied out; in chunks it is one operation, in the form that who runs it finds
// faster. Fused (PlanOptions::fuse_attention, of one
// sequence): who attends turns its queries and makes the step's own row, who needs values merges
// splits.
#pragma once

#include <memory>

#include "program/plan_attention.h"

namespace weft::planning {

std::unique_ptr<AttentionPlanner> make_latent_planner(Weaver& weaver);

}  // namespace weft::planning

// Mixtures of experts in the planner.
#pragma once

#include "program/residual.h"
#include "program/section.h"

namespace weft::planning {

/// The buffers of a section's mixtures, if the model has some, of `rows` rows.
void make_moe_buffers(Weaver& weaver, Section& section, int64_t rows);

/// A layer's experts: the router's product, the draw, which in a decode step each worker repeats,
/// the drawn experts' gated products, of which each worker has columns of every expert, and the sum
/// of their second ones, into the residual. A shared expert's gated product stands before the draw,
/// so that the exchange of the router's logits passes meanwhile.
void plan_moe(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
              int64_t layer);

}  // namespace weft::planning

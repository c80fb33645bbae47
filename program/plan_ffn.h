// An FFN block: down(f(gate) up), or down(f(up)).
#pragma once

#include "program/residual.h"

namespace weft::planning {

void plan_ffn(Weaver& weaver, Residual& residual, Section& section, const LayerSpec& spec,
              int64_t layer);

}  // namespace weft::planning

// Hopper as a target of engine/resident/: how a worker's weights are cut into units and packed in
// the order of their use. Host code with no CUDA in it: it can be made and looked at on any
// machine.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "engine/hopper/launch.h"
#include "engine/resident/lower.h"
#include "model/config.h"
#include "model/weights.h"
#include "ops/linear/forms/hopper_unit.h"
#include "ops/linear/hopper_layout.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft::hopper {

/// How a decode step of `sequences` is planned for `units` SMs (132 on an H100 or H200). Few
/// workers where each must have a part of everything (NormPlacement::after).
PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences = 1);

Arena lay_out(const Program& program, const Weights& weights, Hold hold = Hold::twice);

struct Lowered : resident::Lowered {
  std::vector<PackJob> pack;
  int32_t page_bytes = 0;  ///< of the largest pages
  int32_t scratch_bytes = 0;
};

/// Lowers a decode program (a row a sequence). plain: [program.operations], those whose weights are
/// not compressed. Errors (input): what the kernel has no form for, weights in other formats than
/// bf16 and, of products, e4m3fn among them.
Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const Arena& arena, int64_t capacity, const std::vector<bool>& plain);

/// Whether a product's normed row is the one that another has made in its place, up to the form in
/// which weights take it.
bool same_row(const Code& made, const Code& wanted);

}  // namespace weft::hopper

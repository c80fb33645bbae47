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
#include "ops/linear/hopper_fp8.h"
#include "ops/linear/hopper_layout.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft::hopper {

/// How a decode step of `sequences` is planned for `units` SMs (132 on an H100 or H200). Few
/// workers where each must have a part of everything (NormPlacement::after).
PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences = 1);

Arena lay_out(const Program& program, const Weights& weights, Hold hold = Hold::twice);

/// One unit of a product, to be packed as ops/linear/hopper.cuh says: two runs of rows, of one
/// weight or of gate and up, that fill half of it each.
struct PackJob {
  int64_t source[2] = {};     ///< in the arena: the first row
  int64_t scales[2] = {};     ///< in the arena: of the weight, or in MXFP4 of the first row
  int64_t destination = 0;    ///< in the packed weights: of the block's first slice
  int32_t first_row[2] = {};  ///< of the weight
  int32_t rows[2] = {};       ///< that there are; the others are zero
  int32_t k = 0;
  int32_t first = 0;   ///< the unit's first slice in the block
  int32_t slices = 0;  ///< of the block; 0: the unit's lie one after the other
  int32_t pitch = 0;  ///< elements from one k of a row to the next; 0: rows lie one after the other
  int16_t fold = 0;
  StreamForm form = StreamForm::plain;
  ScaleGrid grid = {};    ///< which scale is whose
  int32_t operation = 0;  ///< in the program
  int64_t stage = 0;      ///< of its weights (stage_of())
};

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

}  // namespace weft::hopper

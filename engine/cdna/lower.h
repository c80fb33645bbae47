// CDNA as a target of engine/resident/: how a worker's weights are cut into units and packed in the
// order of their use. Host code with no HIP in it: it can be made and looked at on any machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "arch/cdna/target.h"
#include "base/result.h"
#include "engine/cdna/decode.h"
#include "engine/resident/lower.h"
#include "engine/resident/verify_codes.h"
#include "model/config.h"
#include "model/weights.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft::cdna {

/// How a decode step is planned for `units` compute units (304 on an MI300X, 256 on an MI355X).
/// Fewer workers where each must have a part of everything (NormPlacement::after).
PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv);

resident::Arena lay_out(const Program& program, const Weights& weights);

/// One unit of a product, to be packed as layout.h says: two runs of rows, of one weight or of gate
/// and up, that fill half of it each.
struct PackJob {
  const Tensor* source[2] = {};
  int64_t first_row[2] = {};
  int rows[2] = {};         ///< that there are; the others are zero
  int64_t destination = 0;  ///< in the packed weights
  int k = 0;
};

/// What workers ask for ahead of their products' codes.
struct Products {
  std::vector<ProductPlace> places;  ///< of all workers, and one after them
  std::vector<uint32_t> begin;       ///< [workers + 1]
};
/// codes: [worker].
Products products_of(std::span<const std::vector<resident::Code>> codes);

struct Lowered : resident::Lowered {
  std::vector<PackJob> pack;
};

/// Lowers a decode program of one sequence. Errors (input): what the kernel has no form for,
/// weights in other formats than bf16 among them.
Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const resident::Arena& arena, int64_t capacity, Target target);

/// What is packed, [lowered.packed_bytes]: weights of tensors that have data.
void pack(const Lowered& lowered, std::span<std::byte> packed);

/// resident::verify_codes() for streams that are packed so.
Status verify_codes(const Lowered& lowered, const Program& program, resident::NextToken next,
                    int64_t position);

}  // namespace weft::cdna

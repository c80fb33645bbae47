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

/// Of the kernel that runs such a model.
KernelWeights kernel_weights(const Weights& weights);

/// How a decode step of `sequences` is planned for `units` compute units (304 on an MI300X, 256 on
/// an MI355X). Fewer workers where each must have a part of everything (NormPlacement::after).
PlanOptions plan_options(const ModelConfig& config, int units, int64_t capacity, DType kv,
                         int64_t sequences = 1);

resident::Arena lay_out(const Program& program, const Weights& weights,
                        resident::Hold hold = resident::Hold::twice);

/// One unit of a product, to be packed as layout.h says: two runs of rows, of one weight or of gate
/// and up, that fill half of it each.
struct PackJob {
  const Tensor* source[2] = {};
  int64_t first_row[2] = {};
  int rows[2] = {};         ///< that there are; the others are zero
  int64_t destination = 0;  ///< in the packed weights: of the product
  int k = 0;
  WeightForm form = WeightForm::plain;
  int32_t operation = 0;  ///< in the program
  bool gated = false;
  int unit = 0;         ///< of the product
  int block = 0;        ///< units of a whole block
  int block_units = 0;  ///< in the unit's block
  int part = 0;         ///< slices of a part
  int64_t scales = 0;   ///< in the packed weights: of the product
  int head = 0;         ///< of a product of heads: the unit's, from the product's first on
  /// -1, or the source's columns are the unit's rows, and its k are rows from this one on.
  int64_t across_from = -1;

  /// Where a slice lies in the packed weights.
  int64_t place_of(int slice) const;
};

/// What workers ask for ahead of their products' codes.
struct Products {
  std::vector<ProductPlace> places;  ///< of all workers, and one after them
  std::vector<uint32_t> begin;       ///< [workers + 1]
};

struct Lowered : resident::Lowered {
  KernelWeights weights = KernelWeights::bf16;
  std::vector<PackJob> pack;
  std::vector<uint32_t> lists_begin;  ///< [worker]: the first of its lists, see Streams::list_begin
};

/// codes: [worker], those of the lowered program or the first of each of its lists.
Products products_of(const Lowered& lowered, std::span<const std::vector<resident::Code>> codes);

/// Lowers a decode program (a row a sequence). plain: [program.operations], those whose weights are
/// not packed in 12 bits. Errors (input): what the kernel has no form for, weights in other formats
/// than the stream has forms for among them.
Result<Lowered> lower(const Program& program, const ModelConfig& config, const Weights& weights,
                      const resident::Arena& arena, int64_t capacity, Target target,
                      const std::vector<bool>& plain);

/// Weights in the order of their use, of tensors that have data.
struct Streams {
  std::vector<std::byte> bytes;      ///< [Lowered::packed_bytes]
  std::vector<Listed> listed;        ///< DecodeLaunch::listed
  std::vector<uint32_t> list_begin;  ///< DecodeLaunch::list_begin
  /// Operations with weights that the form has no room for, too far apart or too many beside the
  /// windows: they must be plain.
  std::vector<int32_t> refused;
};
Streams pack(const Lowered& lowered);

/// resident::verify_codes() for streams that are packed so.
Status verify_codes(const Lowered& lowered, const Program& program, resident::NextToken next,
                    int64_t position);

}  // namespace weft::cdna

// Where a resident kernel's weights, caches and activations lie in device memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/weights.h"
#include "program/program.h"

namespace weft::resident {

/// Where things lie in the device's arena, in bytes from its beginning, multiples of 256. The
/// weights come first, as the checkpoint has them.
struct Arena {
  std::vector<int64_t> weights;  ///< [Weights::tensors()]
  std::vector<int64_t> scales;   ///< [Weights::tensors()]: f32; -1: there are none
  std::vector<int64_t> buffers;  ///< [program.buffers]; Space::worker: worker 0's; -1: not there
  std::vector<bool> tagged;      ///< [program.buffers]: pairs of elements with their tag
  std::vector<bool> operands;    ///< [program.buffers]: rows as products take them, see kOperands
  int64_t worker_bytes = 0;      ///< from one worker's own buffers to the next's
  int64_t bytes = 0;
};

/// operand_bytes: of all sequences' rows of so many elements as the target's products take them.
Arena lay_out(const Program& program, const Weights& weights,
              const std::function<int64_t(int64_t columns)>& operand_bytes);

}  // namespace weft::resident

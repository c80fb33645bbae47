// Where a resident kernel's weights, caches and activations lie in device memory.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/weights.h"
#include "program/program.h"

namespace weft::resident {

/// Whether a weight that is packed is kept as the checkpoint has it, too.
enum class Hold : uint8_t { twice, once };

/// Where things lie in the device's arena, in bytes from its beginning, multiples of 256. The
/// weights come first, as the checkpoint has them. Those that are held once have places for as long
/// as they are packed from them or unpacked to them: layers take turns at the two halves of one
/// stage, and a head that is no embedding table takes all of it.
struct Arena {
  std::vector<int64_t> weights;  ///< [Weights::tensors()]
  std::vector<int64_t> stages;   ///< [Weights::tensors()]: the layer whose turn it is when the
                                 ///< tensor is there, kHeadStage; kKept: it always is
  std::vector<int64_t> scales;   ///< [Weights::tensors()]: f32; -1: there are none
  std::vector<int64_t> buffers;  ///< [program.buffers]; Space::worker: worker 0's; -1: not there
  std::vector<bool> tagged;      ///< [program.buffers]: pairs of elements with their tag
  std::vector<bool> operands;    ///< [program.buffers]: rows as products take them, see kOperands
  int64_t worker_bytes = 0;      ///< from one worker's own buffers to the next's
  int64_t bytes = 0;
};

inline constexpr int64_t kKept = -1;
inline constexpr int64_t kHeadStage = -2;

/// The stage of what an operation's products read, if that is held once.
constexpr int64_t stage_of(const Operation& operation) {
  return operation.layer < 0 ? kHeadStage : operation.layer;
}

/// operand_bytes: of all sequences' rows of so many elements as the target's products take them.
Arena lay_out(const Program& program, const Weights& weights,
              const std::function<int64_t(int64_t columns)>& operand_bytes,
              Hold hold = Hold::twice);

}  // namespace weft::resident

#include "engine/resident/arena.h"

#include <utility>

#include "base/divide.h"
#include "engine/resident/exchange.h"

namespace weft::resident {
namespace {

constexpr int64_t kArenaAlignment = 256;

int64_t aligned(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

}  // namespace

Arena lay_out(const Program& program, const Weights& weights,
              const std::function<int64_t(int64_t columns)>& operand_bytes) {
  Arena arena;
  const auto take = [&](int64_t bytes) {
    return std::exchange(arena.bytes, arena.bytes + aligned(bytes));
  };
  for (const Tensor& tensor : weights.tensors()) {
    arena.weights.push_back(take(tensor.bytes()));
  }
  for (const Tensor& tensor : weights.tensors()) {
    const int64_t scales = tensor.scale_count() * static_cast<int64_t>(sizeof(float));
    arena.scales.push_back(scales > 0 ? take(scales) : -1);
  }
  arena.buffers.assign(program.buffers.size(), -1);
  arena.operands = operand_buffers(program);
  arena.tagged = tagged_buffers(program, arena.operands);
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    const Buffer& buffer = program.buffers[i];
    if (buffer.space == Space::worker) {
      arena.buffers[i] = arena.worker_bytes;
      arena.worker_bytes += aligned(buffer.bytes());
    } else if (arena.operands[i]) {
      arena.buffers[i] = take(operand_bytes(buffer.columns));
    } else if (buffer.space != Space::state) {
      arena.buffers[i] = take(buffer.bytes());
    }
  }
  const int64_t own = take(arena.worker_bytes * static_cast<int64_t>(program.workers.size()));
  for (size_t i = 0; i < program.buffers.size(); ++i) {
    arena.buffers[i] += program.buffers[i].space == Space::worker ? own : 0;
  }
  return arena;
}

}  // namespace weft::resident

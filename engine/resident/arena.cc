#include "engine/resident/arena.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/divide.h"
#include "engine/resident/exchange.h"

namespace weft::resident {
namespace {

constexpr int64_t kArenaAlignment = 256;

int64_t aligned(int64_t bytes) { return round_up(bytes, kArenaAlignment); }

/// Which tensors are read by nothing but products, and in which stage: see Arena::stages.
std::vector<int64_t> stages_of_tensors(const Program& program, const Weights& weights) {
  std::vector<int64_t> stages(weights.tensors().size(), kKept);
  const auto put = [&](const WeightRef& ref, int64_t stage, int64_t count = 1) {
    const Tensor& tensor = weights.get(ref.role, ref.layer);
    std::fill_n(stages.begin() + (&tensor - weights.tensors().data()), count, stage);
  };
  const EmbedOp* embed = nullptr;
  for (const Operation& operation : program.operations) {
    if (const auto* op = std::get_if<LinearOp>(&operation.body)) {
      put(op->weight, stage_of(operation));
    } else if (const auto* gated = std::get_if<GatedLinearOp>(&operation.body)) {
      put(gated->gate, stage_of(operation));
      put(gated->up, stage_of(operation));
    } else if (const auto* experts = std::get_if<ExpertsUpOp>(&operation.body)) {
      put(experts->gate, stage_of(operation), experts->experts);
      put(experts->up, stage_of(operation), experts->experts);
    } else if (const auto* down = std::get_if<ExpertsDownOp>(&operation.body)) {
      put(down->weight, stage_of(operation), down->experts);
    } else if (const auto* first = std::get_if<EmbedOp>(&operation.body)) {
      embed = first;
    }
  }
  put(embed->table, kKept);  // of a tied head, too
  return stages;
}

/// Gives weights their places, those of stages after the others.
template <class Take>
void place_weights(const Weights& weights, Arena& arena, const Take& take) {
  std::map<int64_t, int64_t> staged;  // bytes of a stage so far
  for (size_t i = 0; i < weights.tensors().size(); ++i) {
    const int64_t bytes = weights.tensors()[i].bytes();
    const int64_t stage = arena.stages[i];
    arena.weights.push_back(stage == kKept
                                ? take(bytes)
                                : std::exchange(staged[stage], staged[stage] + aligned(bytes)));
  }
  int64_t half = 0;
  for (const auto& [stage, bytes] : staged) {
    half = std::max(half, aligned(stage == kHeadStage ? ceil_div(bytes, int64_t{2}) : bytes));
  }
  const int64_t begin = take(2 * half);
  for (size_t i = 0; i < arena.weights.size(); ++i) {
    if (const int64_t stage = arena.stages[i]; stage != kKept) {
      arena.weights[i] += begin + (stage > 0 ? stage % 2 * half : 0);
    }
  }
}

}  // namespace

Arena lay_out(const Program& program, const Weights& weights,
              const std::function<int64_t(int64_t columns)>& operand_bytes, Hold hold) {
  Arena arena;
  arena.stages = hold == Hold::once ? stages_of_tensors(program, weights)
                                    : std::vector<int64_t>(weights.tensors().size(), kKept);
  const auto take = [&](int64_t bytes) {
    return std::exchange(arena.bytes, arena.bytes + aligned(bytes));
  };
  place_weights(weights, arena, take);
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

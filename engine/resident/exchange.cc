#include "engine/resident/exchange.h"

#include <algorithm>
#include <variant>

#include "base/check.h"
#include "program/operands.h"

namespace weft::resident {

std::vector<BufferId> written_by(const Program& program, int32_t operation) {
  const Operation& writer = program.operations[static_cast<size_t>(operation)];
  std::vector<BufferId> buffers;
  if (std::holds_alternative<RopeAnglesOp>(writer.body)) {
    return buffers;
  }
  for (const Operand& operand : operands_of(writer)) {
    const Buffer& buffer = program.buffers[static_cast<size_t>(operand.buffer)];
    if (operand.written && buffer.space != Space::kv) {
      buffers.push_back(operand.buffer);
    }
  }
  return buffers;
}

int32_t last_writer(const Program& program, BufferId buffer, int32_t operation) {
  for (int32_t i = operation - 1; i >= 0; --i) {
    const auto written = written_by(program, i);
    if (std::find(written.begin(), written.end(), buffer) != written.end()) {
      return i;
    }
  }
  WEFT_CHECK(false);  // verify() has seen that every read has a write before it
}

std::vector<bool> operand_buffers(const Program& program) {
  std::vector<bool> operands(program.buffers.size(), false);
  for (int32_t i = 0; i < std::ssize(program.operations); ++i) {
    const auto& body = program.operations[static_cast<size_t>(i)].body;
    const auto* linear = std::get_if<LinearOp>(&body);
    const auto* experts = std::get_if<ExpertsUpOp>(&body);
    const bool made_whole = (experts != nullptr && experts->flat) ||
                            std::holds_alternative<GatedLinearOp>(body) ||
                            std::holds_alternative<AttentionCombineOp>(body) ||
                            std::holds_alternative<LatentValuesOp>(body) ||
                            (linear != nullptr && linear->activation != Activation::none);
    for (const BufferId id : written_by(program, i)) {
      operands[static_cast<size_t>(id)] = made_whole && program.sequences > 1;
    }
  }
  return operands;
}

std::vector<bool> tagged_buffers(const Program& program, const std::vector<bool>& operands) {
  std::vector<bool> tagged(program.buffers.size(), false);
  for (int32_t i = 0; i < std::ssize(program.operations); ++i) {
    for (const BufferId id : written_by(program, i)) {
      const Buffer& buffer = program.buffers[static_cast<size_t>(id)];
      tagged[static_cast<size_t>(id)] =
          (buffer.space == Space::activation || buffer.space == Space::worker) &&
          id != program.logits && !operands[static_cast<size_t>(id)];
    }
  }
  return tagged;
}

std::vector<bool> events_in_data(const Program& program, const std::vector<bool>& tagged) {
  std::vector<bool> result(program.events.size(), false);
  for (const auto& worker : program.workers) {
    for (const Instruction& instruction : worker) {
      if (instruction.signal != kNone && instruction.signal != program.sampled) {
        const auto written = written_by(program, instruction.operation);
        result[static_cast<size_t>(instruction.signal)] =
            std::all_of(written.begin(), written.end(),
                        [&](BufferId id) { return tagged[static_cast<size_t>(id)]; });
      }
    }
  }
  // The experts' second products do not read what the shared expert's first have made, and write
  // over the residual that these read: whoever is late must not find it gone. It is not late where
  // it has first products of drawn experts after them, which the second ones wait for: each worker
  // of one sequence; of several, it may come to have no part in what they have drawn.
  const auto operation = [&](const Instruction& instruction) -> const Operation& {
    return program.operations[static_cast<size_t>(instruction.operation)];
  };
  std::vector<bool> may_be_late(result.size());  // events
  for (const auto& worker : program.workers) {
    for (auto i = worker.begin(); i != worker.end(); ++i) {
      const Operation& gated = operation(*i);
      if (i->signal == kNone || !std::holds_alternative<GatedLinearOp>(gated.body)) {
        continue;
      }
      const bool draws = std::any_of(i, worker.end(), [&](const Instruction& later) {
        return operation(later).layer == gated.layer &&
               std::holds_alternative<ExpertsUpOp>(operation(later).body);
      });
      if (program.sequences > 1 || !draws) {
        may_be_late[static_cast<size_t>(i->signal)] = true;
      }
    }
  }
  for (const auto& worker : program.workers) {
    for (const Instruction& instruction : worker) {
      if (std::holds_alternative<ExpertsDownOp>(operation(instruction).body)) {
        for (const Wait& wait : instruction.waits) {
          const auto event = static_cast<size_t>(wait.event);
          result[event] = result[event] && !may_be_late[event];
        }
      }
    }
  }
  return result;
}

}  // namespace weft::resident

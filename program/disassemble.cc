#include "program/disassemble.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/access.h"
#include "program/operands.h"

namespace weft {
namespace {

std::string range(Range r) { return fmt::format("{}:{}", r.begin, r.end); }

/// "w+bias [4096x2048]"
std::string weights(const Operation& operation) {
  std::string text;
  for (const WeightOperand& weight : weights_of(operation)) {
    text += fmt::format("{}{}", text.empty() ? "" : "+", weight.name);
  }
  const auto size = [&](const auto& op) { text += fmt::format(" [{}x{}]", op.n, op.k); };
  const auto experts = [&](const auto& op) {
    size(op);
    text += fmt::format(" {} of {}", op.chosen, op.experts);
  };
  if (const auto* linear = std::get_if<LinearOp>(&operation.body)) {
    size(*linear);
  } else if (const auto* gated = std::get_if<GatedLinearOp>(&operation.body)) {
    size(*gated);
  } else if (const auto* up = std::get_if<ExpertsUpOp>(&operation.body)) {
    experts(*up);
  } else if (const auto* down = std::get_if<ExpertsDownOp>(&operation.body)) {
    experts(*down);
  }
  return text;
}

std::string operands(const Program& program, const Instruction& instruction) {
  std::string reads;
  std::string writes;
  for (const Access& access : accesses_of(program, instruction)) {
    std::string& list = access.write ? writes : reads;
    const std::string& name = program.buffers[static_cast<size_t>(access.buffer)].name;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", name);
  }
  return fmt::format("{} -> {}", reads, writes);
}

std::string amount(double value, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T"};
  int prefix = 0;
  while (value >= 999.5 && prefix < 4) {
    value /= 1000;
    ++prefix;
  }
  return fmt::format("{:.3g} {}{}", value, kPrefixes[prefix], unit);
}

std::string cost_text(const Cost& cost) {
  return fmt::format("{:>9} {:>9} {:>11}", amount(cost.weight_bytes, "B"),
                     amount(cost.kv_bytes, "B"), amount(cost.flops, "flop"));
}

}  // namespace

std::string disassemble(const Program& program, const Instruction& instruction) {
  const Operation& op = program.operations[static_cast<size_t>(instruction.operation)];
  std::string text = op.layer >= 0 ? fmt::format("L{:<3}", op.layer) : std::string(4, ' ');
  text += fmt::format(" {:<17} {:<14}", kind_of(op), op.name);
  text += fmt::format(" rows {:<6}", op.rows == Rows::last ? "last" : range(instruction.rows));
  text += fmt::format(" tile {:<13}", range(instruction.tile));
  if (instruction.split > 0) {
    text += fmt::format(" split {}", instruction.split);
  }
  text += fmt::format("{} {}", weights(op), operands(program, instruction));
  for (const Wait& wait : instruction.waits) {
    text += fmt::format("  wait {}#{}{}", program.events[static_cast<size_t>(wait.event)].name,
                        wait.event, wait.previous_step ? " of the step before" : "");
  }
  if (instruction.signal != kNone) {
    text +=
        fmt::format("  signal {}#{}", program.events[static_cast<size_t>(instruction.signal)].name,
                    instruction.signal);
  }
  return text;
}

std::string disassemble(const Program& program, const Weights& weights, int64_t rows,
                        int64_t position, int64_t max_layers) {
  std::string text = fmt::format(
      "program {}: {} workers, {} operations, {} events, up to {} rows a step; costs for {} rows "
      "at "
      "position {}\n\n",
      program.name, program.workers.size(), program.operations.size(), program.events.size(),
      program.rows, rows, position);
  if (program.sequences > 1) {
    text += fmt::format("each row is of another of {} sequences\n\n", program.sequences);
  }
  text += "buffers\n";
  constexpr const char* kSpaces[] = {"shared", "each worker", "kv cache", "state", "constant"};
  int64_t kv_buffers = 0;
  int64_t kv_bytes = 0;
  bool latent = false;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.space == Space::kv) {
      ++kv_buffers;
      latent |= buffer.name.starts_with("latents.");
      kv_bytes += buffer.bytes();
      continue;
    }
    text +=
        fmt::format("  {:<20} {:<12} {} [{}, {}]  {}\n", buffer.name,
                    kSpaces[static_cast<size_t>(buffer.space)], name_of(buffer.element),
                    buffer.rows, buffer.columns, amount(static_cast<double>(buffer.bytes()), "B"));
  }
  text += fmt::format("  {:<20} {:<12} {} buffers  {}\n", latent ? "latents.*" : "keys.*, values.*",
                      "kv cache", kv_buffers, amount(static_cast<double>(kv_bytes), "B"));

  Cost sum;
  for (size_t worker = 0; worker < program.workers.size(); ++worker) {
    const auto& list = program.workers[worker];
    text += fmt::format("\nworker {} ({} instructions)\n        weights        kv        work\n",
                        worker, list.size());
    Cost own;
    int64_t left_out = 0;
    for (const Instruction& instruction : list) {
      const Cost cost = cost_of(program, instruction, weights, rows, position);
      own += cost;
      const int64_t layer = program.operations[static_cast<size_t>(instruction.operation)].layer;
      if (max_layers >= 0 && layer >= max_layers) {
        ++left_out;
        continue;
      }
      if (left_out > 0) {
        text += fmt::format("  ... {} more of the other layers\n", left_out);
        left_out = 0;
      }
      text += fmt::format("  {}  {}\n", cost_text(cost), disassemble(program, instruction));
    }
    text += fmt::format("  {}  sum of worker {}\n", cost_text(own), worker);
    sum += own;
  }
  text += fmt::format("\n  {}  sum of the step\n", cost_text(sum));
  return text;
}

}  // namespace weft

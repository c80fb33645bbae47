// weft diff: a device's interpreter held against the CPU's, operation by operation.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "arch/cpu/threads.h"
#include "base/built.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/cdna/runner.h"
#include "engine/diff.h"
#include "engine/hopper/runner.h"
#include "ops/sample/op.h"

namespace weft::cli {
namespace {

struct DiffFlags {
  ModelSource source;
  EngineFlags engine;
  int64_t prompt_tokens = 16;
  int64_t steps = 1;
  int64_t until = 0;
  uint64_t seed = 1;
  DiffOptions diff;
  std::string json;
};

Result<std::unique_ptr<Subject>> open_subject(const ModelConfig& config, const Weights& weights,
                                              const EngineOptions& engine, int64_t capacity,
                                              DType kv, uint64_t seed) {
  if (!engine.device.starts_with("cuda")) {
    return cdna::create_subject(
        config, weights,
        {.device = engine.device, .workers = engine.workers, .capacity = capacity, .kv = kv});
  }
  if constexpr (built::kCuda) {
    return hopper::create_subject(config, weights,
                                  {.device = engine.device,
                                   .workers = engine.workers,
                                   .capacity = capacity,
                                   .kv = kv,
                                   .weights_seed = seed});
  } else {
    return device_error(
        fmt::format("device {} cannot be had: this build has no CUDA kernels", engine.device));
  }
}

/// The largest difference of an operation alone, over the layers and the steps.
struct Row {
  std::string operation;
  int64_t looked_at = 0;
  double largest = 0;
};

void collect(const Program& program, const StepDiff& step, std::vector<Row>& rows) {
  for (size_t i = 0; i < step.operations.size(); ++i) {
    if (!step.operations[i].has_value()) {
      continue;
    }
    const std::string& name = program.operations[i].name;
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& other) { return other.operation == name; });
    if (row == rows.end()) {
      row = rows.insert(rows.end(), Row{.operation = name});
    }
    ++row->looked_at;
    row->largest = std::max(row->largest, *step.operations[i]);
  }
}

std::vector<std::string> left_out(const Subject& subject) {
  std::vector<std::string> names;
  const std::vector<Buffer>& buffers = subject.program().buffers;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const bool compared = buffers[i].space != Space::state && buffers[i].space != Space::constant;
    if (compared && !subject.keeps(static_cast<BufferId>(i))) {
      names.push_back(buffers[i].name);
    }
  }
  return names;
}

/// Of a buffer's name: workers' copies say whose.
std::string name_of(const Program& program, const BufferDifference& buffer) {
  const Buffer& b = program.buffers[static_cast<size_t>(buffer.buffer)];
  return b.space == Space::worker ? fmt::format("{} ({})", b.name, buffer.owner) : b.name;
}

nlohmann::ordered_json to_json(const Program& program, const StepDiff& step) {
  nlohmann::ordered_json out;
  out["position"] = step.position;
  out["token"] = step.token.has_value() ? nlohmann::ordered_json(*step.token) : nullptr;
  out["cpu_token"] =
      step.expected_token.has_value() ? nlohmann::ordered_json(*step.expected_token) : nullptr;
  out["margin"] = step.margin;
  if (step.gave_up.has_value()) {
    out["gave_up"] = step.gave_up->message;
  }
  for (const BufferDifference& buffer : step.buffers) {
    out["buffers"].push_back({{"buffer", name_of(program, buffer)},
                              {"operation", buffer.operation},
                              {"relative_difference", buffer.difference.relative},
                              {"largest_difference", buffer.difference.largest}});
  }
  return out;
}

nlohmann::ordered_json to_json(const Program& program, const Fault& fault) {
  constexpr const char* kKinds[] = {"differs", "not_written", "changed", "token", "whole_step"};
  const Operation& operation = program.operations[static_cast<size_t>(fault.operation)];
  nlohmann::ordered_json out;
  out["kind"] = kKinds[static_cast<size_t>(fault.kind)];
  out["position"] = fault.position;
  out["operation"] = {
      {"index", fault.operation}, {"name", operation.name}, {"layer", operation.layer}};
  if (fault.buffer != kNone) {
    out["buffer"] = program.buffers[static_cast<size_t>(fault.buffer)].name;
    out["owner"] = fault.owner;
    out["row"] = fault.row;
    out["element"] = fault.element;
    out["count"] = fault.count;
    out["elements"] = fault.elements;
    out["relative_difference"] = fault.relative;
  }
  out["value"] = fault.got;
  out["cpu_value"] = fault.expected;
  out["instructions"] = nlohmann::ordered_json::array();
  for (const InstructionPlace& place : fault.instructions) {
    const Instruction& instruction = program.workers[place.worker][place.index];
    out["instructions"].push_back({{"worker", place.worker},
                                   {"index", place.index},
                                   {"tile", {instruction.tile.begin, instruction.tile.end}},
                                   {"split", instruction.split}});
  }
  return out;
}

Result<int> diff(const DiffFlags& flags) {
  WEFT_ASSIGN(const EngineOptions engine, flags.engine.options());
  if (engine.device == "cpu") {
    return usage_error("diff holds a device against the CPU: use --device cuda, hip or sim:gfx942");
  }
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  const int64_t total = flags.prompt_tokens + flags.steps;
  const int64_t capacity = engine.context > 0 ? engine.context : total;
  if (total > capacity || capacity > config.context) {
    return usage_error(fmt::format("{} prompt tokens and {} steps do not fit a context of {}",
                                   flags.prompt_tokens, flags.steps,
                                   std::min(capacity, config.context)));
  }
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto progress = [&](std::string_view what) {
    if (terminal) {
      fmt::print(stderr, "\r\033[K{}", what);
    }
  };

  progress("weights");
  WEFT_ASSIGN(const Weights weights,
              load_weights(flags.source, config, {.device = "cpu"}, cpu::usable_cpus()));
  Weights described;  // a preset's are made here and on the device
  const bool made_there = flags.source.directory.empty() && engine.device.starts_with("cuda");
  if (made_there) {
    described = Weights::describe(config);
  }
  const DType kv = engine.kv.value_or(default_kv(config, weights));
  WEFT_ASSIGN(const auto subject, open_subject(config, made_there ? described : weights, engine,
                                               capacity, kv, flags.source.seed));
  const Program& program = subject->program();
  const auto operations = static_cast<int64_t>(program.operations.size());
  if (flags.until > operations) {
    return usage_error(
        fmt::format("--until {} lies beyond the {} operations of a step", flags.until, operations));
  }
  DiffOptions options = flags.diff;
  options.capacity = capacity;
  options.kv = kv;
  options.threads = cpu::usable_cpus();
  WEFT_ASSIGN(const auto differ, Differ::create(config, weights, *subject, options));

  std::vector<int32_t> prompt;  // and the first step's token
  for (int64_t i = 0; i <= flags.prompt_tokens; ++i) {
    prompt.push_back(static_cast<int32_t>(uniform_draw(flags.seed, static_cast<uint64_t>(i)) *
                                          static_cast<float>(config.vocabulary)));
  }
  std::string report = fmt::format(
      "{} on {}, {} workers, against the CPU; KV cache {}; {} tokens fed, {} step{} looked at\n",
      config.name, engine.device, program.workers.size(), name_of(kv), flags.prompt_tokens,
      flags.steps, flags.steps == 1 ? "" : "s");
  progress("prompt");
  WEFT_ASSIGN(std::optional<Fault> fault,
              differ->feed(std::span(prompt).first(static_cast<size_t>(flags.prompt_tokens))));
  const bool in_prompt = fault.has_value();

  std::vector<Row> rows;
  nlohmann::ordered_json steps = nlohmann::ordered_json::array();
  StepDiff step;
  int64_t drawn = 0;
  int64_t same = 0;
  int32_t token = prompt.back();
  for (int64_t i = 0; i < flags.steps && !fault.has_value(); ++i) {
    progress(fmt::format("step {} of {}", i + 1, flags.steps));
    const bool last = i + 1 == flags.steps;
    WEFT_ASSIGN(step, differ->step(token, static_cast<int32_t>(
                                              last && flags.until > 0 ? flags.until : operations)));
    fault = step.fault;
    collect(program, step, rows);
    steps.push_back(to_json(program, step));
    drawn += step.token.has_value() ? 1 : 0;
    same += step.token.has_value() && step.token == step.expected_token ? 1 : 0;
    if (step.gave_up.has_value()) {
      report += fmt::format("position {}: {}\n", step.position, step.gave_up->message);
    } else if (step.token != step.expected_token) {
      report += fmt::format(
          "position {}: token {}, by itself the CPU draws {}: its logits are {:.2e} apart\n",
          step.position, step.token.value_or(kNone), step.expected_token.value_or(kNone),
          step.margin);
    }
    token = step.token.value_or(kNone);
  }
  progress("");

  const std::vector<std::string> skipped = left_out(*subject);
  if (!step.buffers.empty()) {
    report += fmt::format("\nthe step at position {} as a whole\n  {:<20} {:>10} {:>22}\n",
                          step.position, "buffer", "operation", "relative difference");
    for (const BufferDifference& buffer : step.buffers) {
      report += fmt::format("  {:<20} {:>10} {:>22.2e}\n", name_of(program, buffer),
                            buffer.operation, buffer.difference.relative);
    }
    report += fmt::format("not kept by the device: {}\n", fmt::join(skipped, ", "));
  }
  if (!rows.empty()) {
    report += fmt::format(
        "\noperations alone, on the same inputs (at most {:.1e})\n  {:<20} {:>10} "
        "{:>22}\n",
        options.tolerance, "operation", "looked at", "largest difference");
    for (const Row& row : rows) {
      report +=
          fmt::format("  {:<20} {:>10} {:>22.2e}\n", row.operation, row.looked_at, row.largest);
    }
  }
  report += "\n";
  if (in_prompt) {
    report +=
        fmt::format("{}the prompt's caches part here: look at this step with --prompt-tokens {}\n",
                    describe(program, *fault), fault->position);
  } else if (fault.has_value()) {
    report += describe(program, *fault);
  } else {
    report += fmt::format(
        "no difference; {} of {} tokens are the ones that the CPU draws by itself\n", same, drawn);
  }

  if (!flags.json.empty()) {
    nlohmann::ordered_json out;
    out["model"] = config.name;
    out["device"] = engine.device;
    out["workers"] = program.workers.size();
    out["kv"] = name_of(kv);
    out["tolerance"] = {{"operation", options.tolerance}, {"whole_step", options.whole_step}};
    out["not_kept"] = skipped;
    out["steps"] = steps;
    out["operations"] = nlohmann::ordered_json::array();
    for (const Row& row : rows) {
      out["operations"].push_back({{"operation", row.operation},
                                   {"looked_at", row.looked_at},
                                   {"largest_difference", row.largest}});
    }
    out["fault"] = fault.has_value() ? to_json(program, *fault) : nlohmann::ordered_json();
    WEFT_TRY(write_text(flags.json, out.dump(2) + "\n"));
  }
  if (flags.json != "-") {
    WEFT_TRY(write_text("-", report));
  }
  return fault.has_value() ? 1 : 0;
}

}  // namespace

void add_diff(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "diff", "Hold a device's decode steps against the CPU's, down to one instruction");
  auto flags = std::make_shared<DiffFlags>();
  flags->source.declare(*command, true);
  command
      ->add_option("--prompt-tokens", flags->prompt_tokens,
                   "(random) tokens fed first; of these only the caches are compared")
      ->type_name("N")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--steps", flags->steps, "steps looked at")
      ->type_name("N")
      ->check(at_least(1))
      ->capture_default_str();
  command
      ->add_option("--until", flags->until,
                   "end the last step before this operation (see inspect --program)")
      ->type_name("N")
      ->check(at_least(1));
  command->add_option("--seed", flags->seed, "of the prompt's tokens")
      ->type_name("S")
      ->capture_default_str();
  command
      ->add_option("--tolerance", flags->diff.tolerance,
                   "most that an operation's result may differ by, relative to the larger of the "
                   "element and the root mean square of its buffer")
      ->type_name("T")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command
      ->add_option("--step-tolerance", flags->diff.whole_step,
                   "most that a buffer may differ by, as a whole, after a whole step")
      ->type_name("T")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--json", flags->json, "write all of it to this file; - for standard output")
      ->type_name("F");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return diff(*flags); }; });
}

}  // namespace weft::cli

// weft inspect: what a model is, what it costs to run, and the program that runs it; what the AMD
// kernels take of a compute unit.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "arch/cdna/code_object.h"
#include "arch/cdna/embedded.h"
#include "arch/cpu/threads.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "engine/cdna/lower.h"
#include "engine/cdna/traffic.h"
#include "engine/hopper/lower.h"
#include "engine/prefill/plan.h"
#include "engine/resident/code.h"
#include "program/disassemble.h"
#include "program/planner.h"
#include "program/verify.h"

namespace weft::cli {
namespace {

struct InspectFlags {
  ModelSource source;
  EngineFlags engine;
  bool program = false;
  bool all_layers = false;
  bool kernels = false;
  std::string code_object;
  int64_t rows = 1;
  int64_t batch = 1;
  int64_t position = 0;
};

/// ", sliding window 4096 in 13 of 26 layers"
std::string describe_windows(const ModelConfig& config) {
  int64_t window = 0;
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t own = config.layer_kind(layer).window;
    window = std::max(window, own);
    layers += own > 0 ? 1 : 0;
  }
  return layers == 0 ? ""
         : layers == config.layers
             ? fmt::format(", sliding window {}", window)
             : fmt::format(", sliding window {} in {} of {} layers", window, layers, config.layers);
}

std::string describe_cap(double cap) { return cap > 0 ? fmt::format(", soft cap {}", cap) : ""; }

std::string describe_ropes(const ModelConfig& config) {
  constexpr const char* kScalings[] = {"", ", linear scaling", ", llama3 scaling", ", YaRN",
                                       ", LongRoPE"};
  int64_t turned = 0;
  int64_t local = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const LayerKind::Rope rope = config.layer_kind(layer).rope;
    turned += rope != LayerKind::Rope::none ? 1 : 0;
    local += rope == LayerKind::Rope::local ? 1 : 0;
  }
  std::string text = fmt::format("RoPE theta {}{}", config.rope_theta,
                                 kScalings[static_cast<int>(config.rope_scaling.kind)]);
  if (local > 0) {
    text += fmt::format(", theta {} in {} layers", config.local_rope_theta, local);
  }
  if (turned < config.layers) {
    text += fmt::format(", none in {} layers", config.layers - turned);
  }
  if (config.rotary_dim() < config.head_dim) {
    text += fmt::format(", of {} elements of a head", config.rotary_dim());
  }
  return text;
}

/// A line; empty: there are none.
std::string describe_experts(const ModelConfig& config) {
  const Experts& experts = config.experts;
  int64_t layers = 0;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    layers += config.has_experts(layer) ? 1 : 0;
  }
  if (layers == 0) {
    return "";
  }
  return fmt::format(
      "  experts: {} of {} of {} for a token{}{}, weights {}\n", experts.chosen, experts.count,
      experts.size,
      experts.shared_size > 0 ? fmt::format(", a shared one of {}", experts.shared_size) : "",
      layers < config.layers ? fmt::format(", in {} of {} layers", layers, config.layers) : "",
      experts.renormalise ? "renormalised" : "as the softmax has them");
}

/// What is in eight bits, a line; empty: nothing.
std::string describe_quantization(const ModelConfig& config, const Weights& weights) {
  const auto count = std::ranges::count_if(
      weights.tensors(), [](const Tensor& tensor) { return is_fp8(tensor.dtype); });
  if (count == 0) {
    return "";
  }
  const auto each = [](Scaling scaling, const char* row, const char* block) {
    return scaling == Scaling::row     ? row
           : scaling == Scaling::block ? block
                                       : "a scale of their own";
  };
  const Quantization& quantization = config.quantization;
  return fmt::format("  {} matrices in e4m3, {}; activations with --activations fp8: {}\n", count,
                     each(quantization.weights, "a scale a row", "a scale for 128 x 128"),
                     quantization.activations.scaling == Scaling::none
                         ? "as they are"
                         : each(quantization.activations.scaling, "a scale a token",
                                "a scale for 128 of a token"));
}

std::string describe(const ModelConfig& config, const Weights& weights, DType kv) {
  int64_t elements = 0;
  for (const Tensor& tensor : weights.tensors()) {
    elements += tensor.elements();
  }
  const int64_t kv_bytes = config.layers * config.cached_size() * static_cast<int64_t>(size_of(kv));
  std::string text = fmt::format("{} ({})\n", config.name, config.architecture);
  text += fmt::format("  layers {}, hidden {}, FFN {}, vocabulary {}, context {}\n", config.layers,
                      config.hidden, config.ffn, config.vocabulary, config.context);
  text += fmt::format("  attention: {} query heads, {} KV heads of {}{}{}{}\n", config.query_heads,
                      config.kv_heads, config.head_dim, describe_windows(config),
                      config.qk_norm == QkNorm::none       ? ""
                      : config.qk_norm == QkNorm::per_head ? ", q/k norm per head"
                                                           : ", q/k norm",
                      describe_cap(config.attention_soft_cap));
  text += fmt::format("  {} {} the blocks, FFN {}{}, head {}{}\n",
                      config.norm_kind == NormKind::rms ? "norms" : "LayerNorms",
                      config.norm_placement == NormPlacement::before  ? "before"
                      : config.norm_placement == NormPlacement::after ? "after"
                                                                      : "before and after",
                      config.gated_ffn ? "gated, " : "", name_of(config.activation),
                      config.tied_head ? "tied" : "untied", describe_cap(config.logits_soft_cap));
  text += describe_experts(config);
  text += "  " + describe_ropes(config) + "\n";
  text += fmt::format("  {:.3f} billion parameters in {} tensors, {:.3f} GB\n",
                      static_cast<double>(elements) / 1e9, weights.tensors().size(),
                      static_cast<double>(weights.bytes()) / 1e9);
  text += describe_quantization(config, weights);
  text += fmt::format("  KV cache {} bytes a token ({}), {:.3f} GB for the whole context\n",
                      kv_bytes, name_of(kv), static_cast<double>(kv_bytes * config.context) / 1e9);
  return text;
}

/// A line for each kernel of a code object.
Result<std::string> describe_kernels(std::span<const std::byte> bytes, std::string_view name) {
  WEFT_ASSIGN(const cdna::CodeObject code, cdna::CodeObject::parse(bytes, name));
  std::string text;
  for (const cdna::Kernel& kernel : code.kernels()) {
    const auto threads = static_cast<int>(kernel.max_workgroup_threads);
    text += fmt::format("{} {:<44} {:>4} {:>4} {:>4} {:>6} {:>7} {:>6} {:>7} {:>5}\n",
                        cdna::name_of(code.target()), kernel.name, kernel.vgprs - kernel.agprs,
                        kernel.agprs, kernel.sgprs, kernel.lds_bytes, kernel.scratch_bytes,
                        kernel.vgpr_spills + kernel.sgpr_spills, threads,
                        cdna::waves_per_simd(kernel, code.target(), threads));
  }
  return text;
}

constexpr std::string_view kKernelColumns =
    "target kernel                                       VGPR AGPR SGPR    LDS scratch spills "
    "threads waves\n";

/// What the kernels that this build carries take of a compute unit; or those of a file.
Result<std::string> describe_kernels(const std::string& path) {
  std::string text(kKernelColumns);
  if (!path.empty()) {
    WEFT_ASSIGN(const std::string file, read_text(path));
    WEFT_ASSIGN(const std::string lines, describe_kernels(std::as_bytes(std::span(file)), path));
    return text + lines;
  }
  if (cdna::embedded_code().empty()) {
    return device_error("this build has no AMD kernels: it was configured without clang-22");
  }
  for (const cdna::EmbeddedCode& code : cdna::embedded_code()) {
    WEFT_ASSIGN(const std::string lines, describe_kernels(code.bytes, code.operation));
    text += lines;
  }
  return text +
         "waves: of a SIMD, at most 8, with workgroups of as many threads as the kernel allows\n";
}

/// An AMD device's target; nothing for other devices. A simulator's is in its name.
Result<std::optional<cdna::Target>> cdna_target(const std::string& device) {
  std::optional<cdna::Target> target;
  if (device.starts_with("sim:")) {
    const std::optional<cdna::Node> node = cdna::node_named(std::string_view(device).substr(4));
    if (!node) {
      return usage_error(fmt::format(
          "--device {} is not known: use sim:gfx942 or sim:gfx950 (see `weft devices`)", device));
    }
    target = node->target;
  } else if (device.starts_with("hip")) {
    WEFT_ASSIGN(const auto opened, open_device(device));
    target = cdna::target_named(opened->info().target);
  }
  return target;
}

Result<int> inspect(const InspectFlags& flags) {
  if (flags.kernels || !flags.code_object.empty()) {
    WEFT_ASSIGN(const std::string text, describe_kernels(flags.code_object));
    WEFT_TRY(write_text("-", text));
    return 0;
  }
  WEFT_ASSIGN(const EngineOptions engine, flags.engine.options());
  WEFT_ASSIGN(const ModelConfig config, flags.source.config());
  Weights weights = Weights::describe(config);
  if (!flags.source.directory.empty()) {
    WEFT_ASSIGN(weights, Weights::open(flags.source.directory, config));
  }
  const DType kv = engine.kv.value_or(default_kv(config, weights));
  const bool round_activations =
      engine.round_activations.value_or(default_round_activations(config));
  std::string text = describe(config, weights, kv);
  WEFT_ASSIGN(const auto target, cdna_target(engine.device));
  if (engine.device != "cpu") {
    const Arch arch = target ? Arch::cdna : Arch::hopper;
    text += fmt::format("  prompts on {}: {}\n", engine.device,
                        describe_prefill(arch, config, weights, {kv, round_activations}));
  }
  if (flags.program) {
    PlanOptions options;
    options.capacity = engine.context > 0 ? engine.context : config.context;
    if (target && flags.rows == 1) {
      const int units = cdna::limits_of(*target).compute_units;
      options = cdna::plan_options(config, engine.workers > 0 ? engine.workers : units,
                                   options.capacity, kv, flags.batch);
    } else if (engine.device.starts_with("cuda") && flags.rows == 1) {
      constexpr int kSms = 132;  // of an H100 or H200
      options = hopper::plan_options(config, engine.workers > 0 ? engine.workers : kSms,
                                     options.capacity, kv, flags.batch);
    } else {
      options.workers = engine.workers > 0 ? engine.workers : cpu::usable_cpus();
      options.rows = flags.rows;
      options.sequences = flags.batch;
      options.kv = kv;
      options.round_activations = round_activations;
    }
    if (flags.position + flags.rows > options.capacity) {
      return usage_error(
          fmt::format("--position {} with {} rows lies beyond the {} positions of the context",
                      flags.position, flags.rows, options.capacity));
    }
    if (flags.batch > 1 && flags.rows > 1) {
      return usage_error("--batch is of decode steps: leave it or --rows out");
    }
    const Program program = plan(config, weights, options);
    WEFT_TRY(verify(program));
    text += "\n" + disassemble(program, weights, flags.rows * flags.batch, flags.position,
                               flags.all_layers ? -1 : 1);
    if (target && flags.rows == 1) {
      const cdna::Topology topology(*target, std::ssize(program.workers));
      text += "\n" + cdna::describe(cdna::count_traffic(program, weights, topology, flags.position),
                                    topology, flags.position);
    }
  }
  WEFT_TRY(write_text("-", text));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("inspect", "Show a model and the program that runs it");
  auto flags = std::make_shared<InspectFlags>();
  flags->source.declare(*command, true);
  command->add_flag("--program", flags->program, "print the program (verified) and its costs");
  command->add_flag("--all-layers", flags->all_layers, "every layer, not the first alone");
  command->add_option("--batch", flags->batch, "sequences that a decode step feeds at once")
      ->type_name("N")
      ->check(CLI::Range(1, resident::kMostSequences))
      ->capture_default_str();
  command->add_option("--rows", flags->rows, "tokens in a step: 1 decodes, more is prefill")
      ->type_name("N")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  command->add_option("--position", flags->position, "position of the step's first token")
      ->type_name("P")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_flag("--kernels", flags->kernels,
                    "the AMD kernels of this build: registers, LDS, scratch, occupancy");
  command
      ->add_option("--code-object", flags->code_object, "the same of an AMD code object's kernels")
      ->type_name("FILE");
  flags->engine.declare(*command);
  command->callback([flags, &action] { action = [flags] { return inspect(*flags); }; });
}

}  // namespace weft::cli

// What several sub-commands share: where the model comes from, which device runs it, output files.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arch/device.h"
#include "base/result.h"
#include "engine/engine.h"
#include "model/config.h"
#include "model/tokenizer.h"
#include "model/weights.h"
#include "ops/harness/select.h"

namespace weft::cli {

/// --model DIR or --preset NAME (with --seed-weights and --layers).
struct ModelSource {
  std::string directory;
  std::string preset;
  std::string format;
  uint64_t seed = 0;
  int64_t layers = 0;

  void declare(CLI::App& command, bool allow_preset);
  Result<ModelConfig> config() const;
};

/// A preset, its layers cut to `layers` when that is not 0, its products' weights in `format` when
/// that is not empty (quantization_of()). Error (usage): unknown, or too many.
Result<ModelConfig> preset_as(const std::string& name, int64_t layers, const std::string& format);
/// Declares --format on a command that takes a preset.
CLI::Option* declare_format(CLI::App& command, std::string& format);

/// --device, --threads, --context, --kv, --activations, --weights, --hold.
struct EngineFlags {
  std::string device;
  int workers = 0;
  int64_t context = 0;
  std::string kv = "auto";
  std::string activations = "auto";
  std::string weights = "auto";
  std::string hold = "auto";

  void declare(CLI::App& command);
  Result<EngineOptions> options() const;
};

/// --temperature and what goes with it.
void add_sampling_options(CLI::App& command, SamplingOptions& options);

/// Declares --case and --shape on a command that runs operations' cases.
void declare_cases(CLI::App& command, trial::Selection& selection);
/// Declares --in-a-row on a command that times operations.
void declare_in_a_row(CLI::App& command, int& in_a_row);
/// Declares --device on a command.
void declare_device(CLI::App& command, std::string& device);
/// The device that checks and benches operations: `device`, or the first that exists of hip, cuda,
/// cpu. Null for the CPU.
/// Errors: usage (unknown), device (not there).
Result<std::unique_ptr<Device>> operations_device(const std::string& device);
/// What runs operations, to be told before the outcomes: "cuda:0, NVIDIA H200 (sm_90a)" or "cpu,
/// avx512_bf16"; null is the CPU.
std::string describe(const Device* device);

/// Checks an option's value: a whole number of at least `least`. (CLI11's own checks tell their
/// bounds in 300 digits.)
CLI::Validator at_least(int64_t least);

/// A check that an option is a number in [least, most]; NaN, which passes CLI::Range, is none.
CLI::Validator number_within(double least, double most);

/// Reads all of a file, or of standard input for "-". Error (input): it cannot be read.
Result<std::string> read_text(const std::string& path);

/// The ids of a text. Error (input): it cannot be tokenized, with the name of where it came from
/// (an option, a file, "-" for standard input) in front.
Result<std::vector<int32_t>> encode(const Tokenizer& tokenizer, std::string_view text,
                                    const std::string& source, bool add_special = true);

/// Token ids, "1,2,3" (spaces allowed), of option --ids. Error (usage): anything else.
Result<std::vector<int32_t>> parse_ids(const std::string& text);

/// What a step reads, for figures: "compressed" or "plain", or what a checkpoint of fewer bits has,
/// "mxfp4", "fp8, a scale a row"; and why, where that was measured: "plain (products with
/// compressed weights take 1.12 of the time)".
std::string name_of_weights(const Engine& engine);
std::string describe_weights(const Engine& engine);

/// Checks an option's value: some text, in valid UTF-8.
CLI::Validator some_text();

/// Writes text to a file, or to standard output for "-". Error (input): it cannot be written.
Status write_text(const std::string& path, std::string_view text);

/// The device that runs a model: `device`, or the first that exists of cuda, cpu. Errors: usage
/// (unknown), device (not one that runs models).
Result<std::string> engine_device(const std::string& device);

/// Loads weights; threads for the ones that are generated. A preset's on cuda are only described:
/// the device makes them.
Result<Weights> load_weights(const ModelSource& source, const ModelConfig& config,
                             const EngineOptions& options, int threads);

}  // namespace weft::cli

#include "cli/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <memory>

#include "arch/cpu/dispatch.h"
#include "model/quantization.h"
#include "model/tokenizer/unicode.h"
#include "ops/check_operands.h"

namespace weft::cli {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

/// The first of `kinds` that there is a device of; "cpu" where there is none.
std::string first_device(std::initializer_list<std::string_view> kinds) {
  const std::vector<DeviceListing> listings = list_devices();
  for (const std::string_view kind : kinds) {
    for (const DeviceListing& listing : listings) {
      if (listing.kind == kind && listing.missing.empty()) {
        return std::string(kind);
      }
    }
  }
  return "cpu";
}

}  // namespace

void ModelSource::declare(CLI::App& command, bool allow_preset) {
  CLI::Option* model =
      command.add_option("--model", directory, "Hugging Face model directory")->type_name("DIR");
  if (!allow_preset) {
    model->required();
    return;
  }
  command.add_option("--preset", preset, "public config with random weights (see new-model)")
      ->type_name("NAME")
      ->excludes(model);
  declare_format(command, format)->excludes(model);
  command.add_option("--weights-seed", seed, "seed of a preset's random weights")->type_name("S");
  command.add_option("--layers", layers, "use only the preset's first N layers")
      ->type_name("N")
      ->check(at_least(1));
}

CLI::Option* declare_format(CLI::App& command, std::string& format) {
  return command
      .add_option(
          "--format", format,
          "a preset's weights in eight bits, e4m3 with scales: fp8-block (128 x 128, as "
          "DeepSeek-V3 and Qwen3-FP8), fp8-row (fbgemm, as Llama-3.1-405B-FP8), fp8-channel "
          "or fp8-tensor (compressed-tensors; static scales of activations)")
      ->type_name("FORMAT");
}

Result<ModelConfig> preset_as(const std::string& name, int64_t layers, const std::string& format) {
  WEFT_ASSIGN(ModelConfig config, weft::preset(name));
  if (layers > config.layers) {
    return usage_error(
        fmt::format("--layers {} is more than the {} layers of {}", layers, config.layers, name));
  }
  config.layers = layers > 0 ? layers : config.layers;
  if (!format.empty()) {
    if (config.quantization.method != Quantization::Method::none) {
      return usage_error(
          fmt::format("--format {}: the weights of {} have one format, MXFP4; leave --format out",
                      format, name));
    }
    WEFT_ASSIGN(config.quantization, quantization_of(format));
  }
  return config;
}

Result<ModelConfig> ModelSource::config() const {
  if (directory.empty() && preset.empty()) {
    return usage_error("say which model: --model DIR or --preset NAME");
  }
  return directory.empty() ? preset_as(preset, layers, format) : read_config(directory);
}

Result<Weights> load_weights(const ModelSource& source, const ModelConfig& config,
                             const EngineOptions& options, int threads) {
  if (source.directory.empty() && options.device.starts_with("cuda")) {
    return Weights::describe(config);  // the device makes them itself
  }
  return source.directory.empty() ? Weights::generate(config, source.seed, threads)
                                  : Weights::open(source.directory, config);
}

void EngineFlags::declare(CLI::App& command) {
  declare_device(command, device);
  command
      .add_option("--threads", workers,
                  "worker threads, or workgroups of a GPU (default: one for each usable core or "
                  "compute unit; two on a simulated GPU, but all for diff)")
      ->type_name("N")
      ->check(CLI::Range(1, 4096));
  command.add_option("--context", context, "positions of KV cache (default: the model's limit)")
      ->type_name("N")
      ->check(at_least(1));
  command
      .add_option("--kv", kv, "KV cache: bf16, f32, auto (bf16 for large models with bf16 weights)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"auto", "bf16", "f32"}));
  command
      .add_option("--activations", activations,
                  "prefill's products with weights of 8 or 16 bits: bf16, f32, auto (bf16 in large "
                  "models); fp8: quantised, in decode steps too, as a checkpoint in 8 bits says")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"auto", "bf16", "f32", "fp8"}));
  command
      .add_option("--weights", weights,
                  "what the device reads: plain, compressed (bf16 to 12 bits, without loss), auto "
                  "(compressed where that is faster; on the cpu this is measured)")
      ->type_name("FORMAT")
      ->check(CLI::IsMember({"auto", "plain", "compressed"}));
  command
      .add_option(
          "--hold", hold,
          "GPUs: weights packed for decode steps alone (once: for prompts cuda unpacks them, AMD's "
          "go token by token), or also as the checkpoint has them (twice), or auto (twice where "
          "there is room)")
      ->type_name("COPIES")
      ->check(CLI::IsMember({"auto", "once", "twice"}));
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command.add_option("--temperature", options.temperature, "0: greedy")
      ->type_name("T")
      ->check(number_within(0.0, 100.0))
      ->capture_default_str();
  command.add_option("--top-k", options.top_k, "draw from the K likeliest (0: off)")
      ->type_name("K")
      ->check(at_least(0));
  command
      .add_option("--top-p", options.top_p, "draw from the likeliest whose sum reaches P (1: off)")
      ->type_name("P")
      ->check(number_within(0.0, 1.0));
  command
      .add_option("--min-p", options.min_p, "leave out tokens below P times the likeliest (0: off)")
      ->type_name("P")
      ->check(number_within(0.0, 1.0));
  command
      .add_option("--repetition-penalty", options.repetition_penalty,
                  "above 1: repeat less (1: off)")
      ->type_name("R")
      ->check(number_within(0.01, 100.0));
  command.add_option("--seed", options.seed, "the same seed draws the same tokens")->type_name("S");
}

Result<EngineOptions> EngineFlags::options() const {
  EngineOptions options;
  WEFT_ASSIGN(options.device, engine_device(device));
  options.workers = workers;
  options.context = context;
  if (kv != "auto") {
    options.kv = kv == "bf16" ? DType::bf16 : DType::f32;
  }
  options.quantise_activations = activations == "fp8";
  if (activations == "bf16" || activations == "f32") {
    options.round_activations = activations == "bf16";
  }
  if (weights != "auto") {
    options.compress_weights = weights == "compressed";
  }
  if (hold != "auto") {
    options.hold_once = hold == "once";
  }
  return options;
}

std::string name_of_weights(const Engine& engine) {
  const Quantization& quantization = engine.config().quantization;
  switch (quantization.method) {
    case Quantization::Method::none:
      return engine.saved_bytes() > 0 ? "compressed" : "plain";
    case Quantization::Method::mxfp4:
      return "mxfp4";
    default:
      return fmt::format("fp8, a scale a {}", name_of(quantization.weights));
  }
}

std::string describe_weights(const Engine& engine) {
  std::string text = name_of_weights(engine);
  if (const std::optional<double> time = engine.compressed_time()) {
    text += fmt::format(" (products with compressed weights take {:.2f} of the time)", *time);
  }
  return text;
}

void declare_cases(CLI::App& command, trial::Selection& selection) {
  CLI::Option* cases = command.add_option("--case", selection.cases, "Glob over case names");
  command
      .add_option("--shape", selection.shapes,
                  "Instead of the cases: any shape of one operation, as its cases are named; may "
                  "be given again")
      ->type_name("KEY=VALUE,...")
      ->allow_extra_args(false)
      ->excludes(cases);
}

void declare_in_a_row(CLI::App& command, int& in_a_row) {
  command
      .add_option(
          "--in-a-row", in_a_row,
          "Launches of a run, each with operands of its own (1), on a GPU: what an operation "
          "takes among others")
      ->check(CLI::Range(1, 1000));
}

void declare_device(CLI::App& command, std::string& device) {
  command
      .add_option("--device", device,
                  "where to run: cpu, cuda, cuda:1, hip, sim:gfx942 ... (see `weft devices`)")
      ->type_name("D");
}

Result<std::string> engine_device(const std::string& device) {
  if (device.empty()) {
    return first_device({"cuda"});
  }
  const std::string kind = device.substr(0, device.find(':'));
  if (kind != "cuda" && kind != "hip" && kind != "sim" && device != "cpu") {
    return usage_error(fmt::format(
        "--device {} is not known: use cpu, cuda, hip or sim:gfx942 (see `weft devices`)", device));
  }
  return device;
}

Result<std::unique_ptr<Device>> operations_device(const std::string& device) {
  const std::string id = device.empty() ? first_device({"hip", "cuda"}) : device;
  if (id == "cpu") {
    return std::unique_ptr<Device>();
  }
  return open_device(id);
}

std::string describe(const Device* device) {
  if (device == nullptr) {
    return fmt::format("cpu, {}", cpu::name_of(cpu::current_isa()));
  }
  const DeviceInfo& info = device->info();
  return fmt::format("{}, {} ({})", info.id, info.name, info.target);
}

CLI::Validator at_least(int64_t least) {
  const auto check = [least](const std::string& text) {
    int64_t value = 0;
    return CLI::detail::lexical_cast(text, value) && value >= least
               ? std::string()
               : fmt::format("{} is not a whole number of at least {}", text, least);
  };
  return {check, fmt::format("at least {}", least)};
}

CLI::Validator number_within(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    double value = 0;
    return CLI::detail::lexical_cast(text, value) && value >= least && value <= most
               ? std::string()
               : fmt::format("{} is not a number from {} to {}", text, least, most);
  };
  return {check, fmt::format("{} to {}", least, most)};
}

Result<std::string> read_text(const std::string& path) {
  const bool standard = path == "-";
  File file(standard ? nullptr : std::fopen(path.c_str(), "rb"));
  std::FILE* stream = standard ? stdin : file.get();
  if (stream == nullptr) {
    return input_error(fmt::format("{}: cannot be opened: {}", path, std::strerror(errno)));
  }
  std::string text;
  char block[1 << 16];
  while (const size_t got = std::fread(block, 1, sizeof block, stream)) {
    text.append(block, got);
  }
  if (std::ferror(stream) != 0) {
    return input_error(fmt::format("{}: cannot be read: {}", path, std::strerror(errno)));
  }
  return text;
}

Result<std::vector<int32_t>> parse_ids(const std::string& text) {
  std::vector<int32_t> ids;
  const char* at = text.data();
  const char* end = at + text.size();
  while (at < end) {
    while (at < end && (*at == ' ' || *at == ',')) {
      ++at;
    }
    if (at == end) {
      break;
    }
    int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc()) {
      return usage_error(fmt::format(
          "--ids: '{}' at character {} is not a token id: give whole numbers with commas between",
          std::string(at, std::min<size_t>(12, static_cast<size_t>(end - at))), at - text.data()));
    }
    ids.push_back(id);
    at = next;
  }
  return ids;
}

Result<std::vector<int32_t>> encode(const Tokenizer& tokenizer, std::string_view text,
                                    const std::string& source, bool add_special) {
  Result<std::vector<int32_t>> ids = tokenizer.encode(text, add_special);
  if (!ids.ok()) {
    return input_error(
        fmt::format("{}: {}", source == "-" ? "standard input" : source, ids.error().message));
  }
  return ids;
}

CLI::Validator some_text() {
  const auto check = [](const std::string& text) -> std::string {
    if (text.empty()) {
      return "the text is empty";
    }
    return tokenizer::find_invalid_utf8(text) == std::string::npos ? ""
                                                                   : "the text is not valid UTF-8";
  };
  return {check, ""};
}

Status write_text(const std::string& path, std::string_view text) {
  const bool standard = path == "-";
  File file(standard ? nullptr : std::fopen(path.c_str(), "wb"));
  std::FILE* stream = standard ? stdout : file.get();
  if (stream == nullptr || std::fwrite(text.data(), 1, text.size(), stream) != text.size() ||
      std::fflush(stream) != 0) {
    return input_error(fmt::format("{}: cannot be written: {}", standard ? "standard output" : path,
                                   std::strerror(errno)));
  }
  return {};
}

}  // namespace weft::cli

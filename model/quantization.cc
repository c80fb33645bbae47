#include "model/quantization.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/fp8.h"
#include "model/fields.h"

namespace weft {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using Method = Quantization::Method;

constexpr size_t kMostModules = 100'000;
constexpr float kFbgemmLargest = 1200;
// FBGEMM's quantize_fp8_per_row: no scale is smaller.
constexpr float kFbgemmLeastScale = 1 / (kMax<e4m3fn> * 512);

struct MethodName {
  Method method;
  std::string_view name;
};
constexpr std::array kMethods = {MethodName{Method::fp8, "fp8"},
                                 MethodName{Method::fbgemm_fp8, "fbgemm_fp8"},
                                 MethodName{Method::compressed_tensors, "compressed-tensors"},
                                 MethodName{Method::mxfp4, "mxfp4"}};

std::vector<std::string> read_modules(Fields& fields, std::string_view key) {
  std::vector<std::string> modules;
  const json* list = fields.find(key);
  if (list == nullptr) {
    return modules;
  }
  if (!list->is_array() || list->size() > kMostModules) {
    fields.fail(key, *list, "a list of modules' names");
    return modules;
  }
  for (const json& module : *list) {
    if (!module.is_string() || module.get_ref<const std::string&>().empty()) {
      fields.fail(key, module, "a module's name");
      return modules;
    }
    modules.push_back(module.get<std::string>());
  }
  return modules;
}

void require(Fields& fields, std::string_view key, const json& wanted) {
  const json* value = fields.find(key);
  if (value != nullptr && *value != wanted) {
    fields.fail(key, *value, show(wanted));
  }
}

void read_fp8(Fields& fields, Quantization& result) {
  require(fields, "fmt", "e4m3");
  require(fields, "activation_scheme", "dynamic");
  const json blocks = json::array({kScaleBlock, kScaleBlock});
  const json* size = fields.find("weight_block_size");
  if (size == nullptr) {
    fields.fail(fmt::format("weight_block_size is missing; it must be {}", show(blocks)));
  }
  require(fields, "weight_block_size", blocks);
  result.weights = Scaling::block;
  result.activations = {.scaling = Scaling::block};
  result.plain_modules = read_modules(fields, "modules_to_not_convert");
}

void read_fbgemm(Fields& fields, Quantization& result) {
  result.weights = Scaling::row;
  result.activations = {.scaling = Scaling::row,
                        .largest = static_cast<float>(
                            fields.number("activation_scale_ub", 1e-6, 1e30, kFbgemmLargest)),
                        .least_scale = kFbgemmLeastScale};
  result.plain_modules = read_modules(fields, "modules_to_not_convert");
}

/// Numbers in e4m3, as "weights" and "input_activations" of compressed-tensors say them.
void require_fp8(Fields& fields) {
  require(fields, "num_bits", 8);
  require(fields, "type", "float");
  require(fields, "symmetric", true);
}

Status read_weights(const json& object, const std::string& where, Quantization& result) {
  Fields fields(object, where);
  require_fp8(fields);
  const std::string strategy = fields.text("strategy", "");
  if (strategy == "tensor") {
    result.weights = Scaling::tensor;
  } else if (strategy == "channel") {
    result.weights = Scaling::row;
  } else if (strategy == "block") {
    result.weights = Scaling::block;
    require(fields, "block_structure", json::array({kScaleBlock, kScaleBlock}));
  } else {
    fields.fail(fmt::format("strategy is {}; it must be tensor, channel or block", show(strategy)));
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

Status read_activations(const json& object, const std::string& where, Quantization& result) {
  Fields fields(object, where);
  require_fp8(fields);
  const std::string strategy = fields.text("strategy", "");
  const bool dynamic = fields.boolean("dynamic", false);
  if (strategy == "tensor" && !dynamic) {
    result.activations.scaling = Scaling::tensor;
  } else if (strategy == "token" && dynamic) {
    result.activations.scaling = Scaling::row;
  } else if (strategy == "group" && dynamic) {
    result.activations.scaling = Scaling::block;
    require(fields, "group_size", kScaleBlock);
  } else {
    fields.fail(fmt::format(
        "strategy is {} and dynamic {}; it must be tensor and false, or token or group and true",
        show(strategy), dynamic));
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

Status read_compressed_tensors(Fields& fields, const std::string& where, Quantization& result) {
  const std::string format = fields.text("format", "");
  if (format != "float-quantized" && format != "naive-quantized") {
    fields.fail(fmt::format("format is {}; Weft reads float-quantized weights of eight bits",
                            show(format)));
  }
  const json* groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->size() != 1) {
    fields.fail("config_groups must be an object with one group");
  }
  require(fields, "kv_cache_scheme", nullptr);
  require(fields, "sparsity_config", json::object());
  result.plain_modules = read_modules(fields, "ignore");
  WEFT_TRY_FIELDS(fields);

  const std::string name = where + ": config_groups";
  const json& group = *groups->begin();
  if (!group.is_object()) {
    return input_error(fmt::format("{}: a group is {}; it must be an object", name, show(group)));
  }
  Fields of_group(group, name);
  require(of_group, "targets", json::array({"Linear"}));
  require(of_group, "output_activations", nullptr);
  const json* weights = of_group.find("weights");
  const json* activations = of_group.find("input_activations");
  if (weights == nullptr || !weights->is_object()) {
    of_group.fail("weights must be an object that says their format");
  }
  if (activations != nullptr && !activations->is_object()) {
    of_group.fail("input_activations", *activations, "null or an object that says their format");
  }
  WEFT_TRY_FIELDS(of_group);
  WEFT_TRY(read_weights(*weights, name + ": weights", result));
  return activations == nullptr
             ? Status()
             : read_activations(*activations, name + ": input_activations", result);
}

ordered_json write_compressed_tensors(const Quantization& quantization) {
  const auto numbers = [](const char* strategy, bool dynamic) {
    return ordered_json{{"num_bits", 8},
                        {"type", "float"},
                        {"symmetric", true},
                        {"strategy", strategy},
                        {"dynamic", dynamic},
                        {"group_size", nullptr},
                        {"block_structure", nullptr}};
  };
  ordered_json weights = numbers("channel", false);
  if (quantization.weights == Scaling::tensor) {
    weights["strategy"] = "tensor";
  } else if (quantization.weights == Scaling::block) {
    weights["strategy"] = "block";
    weights["block_structure"] = {kScaleBlock, kScaleBlock};
  }
  ordered_json activations;
  if (quantization.activations.scaling == Scaling::tensor) {
    activations = numbers("tensor", false);
  } else if (quantization.activations.scaling == Scaling::row) {
    activations = numbers("token", true);
  } else if (quantization.activations.scaling == Scaling::block) {
    activations = numbers("group", true);
    activations["group_size"] = kScaleBlock;
  }
  ordered_json out;
  out["quant_method"] = "compressed-tensors";
  out["format"] = "float-quantized";
  out["quantization_status"] = "compressed";
  out["config_groups"]["group_0"] = {{"targets", {"Linear"}},
                                     {"weights", weights},
                                     {"input_activations", activations},
                                     {"output_activations", nullptr}};
  out["ignore"] = quantization.plain_modules;
  out["kv_cache_scheme"] = nullptr;
  return out;
}

std::string_view module_of(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  return weight.substr(0, weight.size() - (weight.ends_with(kWeight) ? kWeight.size() : 0));
}

}  // namespace

bool Quantization::converts(std::string_view weight) const {
  const std::string module = fmt::format(".{}.", module_of(weight));
  return method != Method::none &&
         std::ranges::none_of(plain_modules, [&](const std::string& plain) {
           return module.find(fmt::format(".{}.", plain)) != std::string::npos;
         });
}

std::string scale_name(const Quantization& quantization, std::string_view weight) {
  return fmt::format("{}.{}", module_of(weight),
                     quantization.method == Method::fp8 ? "weight_scale_inv" : "weight_scale");
}

std::string mx_scale_name(std::string_view codes) {
  constexpr std::string_view kCodes = "_blocks";
  return fmt::format("{}_scales", codes.substr(0, codes.size() - kCodes.size()));
}

std::string input_scale_name(std::string_view weight) {
  return fmt::format("{}.input_scale", module_of(weight));
}

Result<Quantization> read_quantization(const json& object, const std::string& where) {
  if (!object.is_object()) {
    return input_error(fmt::format("{} is {}; it must be an object", where, show(object)));
  }
  Fields fields(object, where);
  const std::string name = fields.text("quant_method", "");
  const auto* const found = std::ranges::find(kMethods, name, &MethodName::name);
  if (found == kMethods.end()) {
    fields.fail(
        fmt::format("quant_method is {}; of quantised weights Weft reads fp8, fbgemm_fp8 and "
                    "compressed-tensors in e4m3, and mxfp4",
                    show(name)));
  }
  WEFT_TRY_FIELDS(fields);
  Quantization result;
  result.method = found->method;
  switch (found->method) {
    case Method::fp8:
      read_fp8(fields, result);
      break;
    case Method::fbgemm_fp8:
      read_fbgemm(fields, result);
      break;
    case Method::mxfp4:  // experts alone, whatever else it lists
      result.plain_modules = read_modules(fields, "modules_to_not_convert");
      break;
    default:
      WEFT_TRY(read_compressed_tensors(fields, where, result));
  }
  WEFT_TRY_FIELDS(fields);
  return result;
}

ordered_json write_quantization(const Quantization& quantization) {
  ordered_json out;
  switch (quantization.method) {
    case Method::fp8:
      out["quant_method"] = "fp8";
      out["fmt"] = "e4m3";
      out["activation_scheme"] = "dynamic";
      out["weight_block_size"] = {kScaleBlock, kScaleBlock};
      out["modules_to_not_convert"] = quantization.plain_modules;
      break;
    case Method::fbgemm_fp8:
      out["quant_method"] = "fbgemm_fp8";
      out["activation_scale_ub"] = quantization.activations.largest;
      out["modules_to_not_convert"] = quantization.plain_modules;
      break;
    case Method::mxfp4:
      out["quant_method"] = "mxfp4";
      out["modules_to_not_convert"] = quantization.plain_modules;
      break;
    default:
      return write_compressed_tensors(quantization);
  }
  return out;
}

Result<Quantization> quantization_of(std::string_view format) {
  Quantization result;
  result.plain_modules = {"lm_head"};
  if (format == "fp8-block") {
    result.method = Method::fp8;
    result.weights = result.activations.scaling = Scaling::block;
  } else if (format == "fp8-row") {
    result.method = Method::fbgemm_fp8;
    result.weights = Scaling::row;
    result.activations = {
        .scaling = Scaling::row, .largest = kFbgemmLargest, .least_scale = kFbgemmLeastScale};
  } else if (format == "fp8-channel" || format == "fp8-tensor") {
    result.method = Method::compressed_tensors;
    const bool channel = format == "fp8-channel";
    result.weights = result.activations.scaling = channel ? Scaling::row : Scaling::tensor;
  } else {
    return usage_error(
        fmt::format("format {} is not known: use fp8-block, fp8-row, fp8-channel or fp8-tensor",
                    show(std::string(format))));
  }
  return result;
}

}  // namespace weft

#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/mx.h"
#include "model/family.h"
#include "model/fields.h"
#include "model/json.h"
#include "model/mapped_file.h"
#include "model/quantization.h"

namespace weft {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kLongestConfig = 1 << 20;  // bytes; real ones have 1 to 3 KB

// Upper bounds, several times beyond any model: with all of them met, no count of elements or bytes
// of a model overflows 64 bits (2^12 layers of at most 4 * 2^42 + 3 * 2^42 elements).
constexpr int64_t kMostVocabulary = 1 << 24;
constexpr int64_t kMostHidden = 1 << 20;
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostHeads = 1 << 14;
constexpr int64_t kMostHeadDim = 1 << 12;
constexpr int64_t kMostProjection = 1 << 22;  // heads * head_dim, and intermediate_size
constexpr int64_t kMostContext = 1 << 30;
constexpr int64_t kMostExperts = 1 << 12;
constexpr int64_t kMostExpertsInAll = 1 << 17;
constexpr int64_t kMostExpertRows = 1 << 22;  // experts * size, as one FFN's

constexpr std::string_view kRopeTypes = "default, linear, llama3, yarn, longrope";
constexpr double kMostTheta = 1e15;

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {
    {DType::bf16, "bfloat16"}, {DType::f16, "float16"}, {DType::f32, "float32"}};

Result<const Family*> read_family(Fields& fields) {
  std::string architecture;
  if (const json* list = fields.find("architectures")) {
    if (list->is_array() && !list->empty() && list->front().is_string()) {
      architecture = list->front().get<std::string>();
    } else {
      fields.fail("architectures", *list, "a list with a name");
    }
  }
  const std::string model_type = fields.text("model_type", "");
  WEFT_TRY_FIELDS(fields);

  const Family* family = nullptr;
  if (!architecture.empty()) {
    family = find_family(architecture);
  } else {
    for (const Family& candidate : families()) {
      if (candidate.model_type == model_type) {
        family = &candidate;
      }
    }
  }
  if (family == nullptr) {
    fields.fail(fmt::format("{} {} is not an architecture Weft knows; it knows {}",
                            architecture.empty() ? "model_type" : "architectures:",
                            show(architecture.empty() ? model_type : architecture),
                            join(known_architectures())));
  } else if (!model_type.empty() && model_type != family->model_type) {
    fields.fail(fmt::format("model_type is {} but the architecture {} is of type \"{}\"",
                            show(model_type), family->architecture, family->model_type));
  }
  WEFT_TRY_FIELDS(fields);
  return family;
}

/// The name that config files have for an activation.
std::string_view config_name(Activation activation) {
  return activation == Activation::gelu_tanh ? "gelu_pytorch_tanh" : "silu";
}

/// The same of DeepSeek's keys.
void reject_unsupported_latent(Fields& fields, const Family& family) {
  for (const std::string_view key : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean(key, false)) {
      fields.fail(key, *fields.find(key), "false: DeepSeek's products have no biases");
    }
  }
  if (!fields.boolean("rope_interleave", true)) {
    fields.fail("rope_interleave", *fields.find("rope_interleave"),
                "true: RoPE turns pairs of neighbours");
  }
  if (fields.integer("moe_layer_freq", 1, kMostLayers, 1) != 1) {
    fields.fail("moe_layer_freq", *fields.find("moe_layer_freq"),
                "1: all layers after the first dense ones have experts");
  }
  const std::string_view scores = family.experts.sigmoid ? "sigmoid" : "softmax";
  if (fields.text("scoring_func", std::string(scores)) != scores) {
    fields.fail("scoring_func", *fields.find("scoring_func"), show(std::string(scores)));
  }
  if (!family.experts.sigmoid && fields.boolean("norm_topk_prob", false)) {
    fields.fail("norm_topk_prob", *fields.find("norm_topk_prob"),
                "false: transformers never renormalises DeepSeek-V2's weights");
  }
}

/// Weft computes one thing for each of these keys and refuses any other.
Status reject_unsupported(Fields& fields, const Family& family) {
  const std::string_view wanted = config_name(family.activation);
  if (const json* activation = fields.find(family.activation_key);
      activation && *activation != wanted) {
    fields.fail(family.activation_key, *activation, show(wanted));
  }
  if (!family.partial_rotary && fields.number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.fail("partial_rotary_factor", *fields.find("partial_rotary_factor"),
                "1: RoPE turns whole heads");
  }
  if (family.latent) {
    reject_unsupported_latent(fields, family);
  }
  if (family.experts.limit > 0 && fields.number("swiglu_alpha", 0, 1e6, 1.702) != 1.702) {
    fields.fail("swiglu_alpha", *fields.find("swiglu_alpha"), "1.702");
  }
  if (const json* clip = fields.find("clip_qkv")) {
    fields.fail("clip_qkv", *clip, "null: Weft clips no projections");
  }
  if (const json* both = fields.find("use_bidirectional_attention"); both && *both != false) {
    fields.fail("use_bidirectional_attention", *both, "false: a decoder sees what came before");
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

/// The positions of the first training, which a config may say beside or inside its RoPE settings.
int64_t read_original_context(Fields& fields, Fields& rope, const Family& family,
                              const ModelConfig& config) {
  constexpr std::string_view kKey = "original_max_position_embeddings";
  const int64_t fallback =
      family.default_original_context > 0 ? family.default_original_context : config.context;
  return fields.integer(kKey, 1, kMostContext, rope.integer(kKey, 1, kMostContext, fallback));
}

constexpr std::string_view kMscaleAllDim = "mscale_all_dim";

/// YaRN's share of the softmax's temperature.
double yarn_attention_factor(Fields& rope, double factor) {
  const auto scale = [&](double weight) {
    return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1;
  };
  const double one = rope.number("mscale", 0, 1e6, 0);
  const double all = rope.number(kMscaleAllDim, 0, 1e6, 0);
  return one != 0 && all != 0 ? scale(one) / scale(all) : scale(1);
}

void read_yarn(Fields& rope, const Family& family, const ModelConfig& config, RopeScaling& result) {
  result.beta_fast = rope.number("beta_fast", 1e-9, 1e9, 32);
  result.beta_slow = rope.number("beta_slow", 1e-9, 1e9, 1);
  result.truncate = rope.boolean("truncate", true);
  result.attention_factor =
      rope.number("attention_factor", 1e-6, 1e6, yarn_attention_factor(rope, result.factor));
  if (family.latent) {
    result.mscale_all_dim = rope.number(kMscaleAllDim, 0, 1e6, 0);
  }
  if (result.beta_fast < result.beta_slow) {
    rope.fail(fmt::format("beta_fast {} must not be less than beta_slow {}", result.beta_fast,
                          result.beta_slow));
  }
  if (config.rope_theta <= 1) {
    rope.fail(fmt::format("yarn takes the logarithm of rope_theta {}; it must be more than 1",
                          config.rope_theta));
  }
}

void read_longrope(Fields& rope, const ModelConfig& config, RopeScaling& result) {
  if (result.original_context < 2) {
    rope.fail("original_max_position_embeddings is 1; longrope takes its logarithm");
    return;
  }
  const int64_t half = config.rotary_dim() / 2;
  result.short_factors = rope.numbers("short_factor", half, 1e-9, 1e9);
  result.long_factors = rope.numbers("long_factor", half, 1e-9, 1e9);
  const auto original = static_cast<double>(result.original_context);
  const double factor =
      rope.number("factor", 1e-9, 1e9, static_cast<double>(config.context) / original);
  const double derived = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(original));
  result.attention_factor = rope.number("attention_factor", 1e-6, 1e6, derived);
}

/// How a RoPE is scaled; config.rope_theta and what heads turn are known.
void read_scaling(Fields& fields, Fields& rope, const Family& family, ModelConfig& config) {
  const std::string old_type = rope.text("type", "");
  const std::string type = rope.text("rope_type", old_type);
  if (!old_type.empty() && old_type != type) {
    rope.fail(fmt::format("rope_type is {} but type is {}", show(type), show(old_type)));
  }
  RopeScaling& result = config.rope_scaling;
  if (type == "linear" || type == "llama3" || type == "yarn") {
    result.factor = rope.number("factor", 1, 1e9);
  }
  if (type == "linear") {
    result.kind = RopeScaling::Kind::linear;
  } else if (type == "llama3") {
    result.kind = RopeScaling::Kind::llama3;
    result.low_frequency_factor = rope.number("low_freq_factor", 1e-9, 1e9);
    result.high_frequency_factor = rope.number("high_freq_factor", 1e-9, 1e9);
    result.original_context = read_original_context(fields, rope, family, config);
    if (result.high_frequency_factor <= result.low_frequency_factor) {
      rope.fail(fmt::format("high_freq_factor {} must be larger than low_freq_factor {}",
                            result.high_frequency_factor, result.low_frequency_factor));
    }
  } else if (type == "yarn") {
    result.kind = RopeScaling::Kind::yarn;
    result.original_context = read_original_context(fields, rope, family, config);
    read_yarn(rope, family, config, result);
  } else if (type == "longrope" || type == "su") {  // its name in the first Phi-3 configs
    result.kind = RopeScaling::Kind::longrope;
    result.original_context = read_original_context(fields, rope, family, config);
    read_longrope(rope, config, result);
  } else if (!type.empty() && type != "default") {
    rope.fail(fmt::format("rope_type {} is not supported; Weft knows {}", show(type), kRopeTypes));
  } else if (type.empty() && rope.find("factor") != nullptr) {
    rope.fail(fmt::format("factor is given without a rope_type; Weft knows {}", kRopeTypes));
  }
}

/// An object in "rope_parameters" by the layers it is for; where there is none, an empty one.
const json& rope_of_layers(Fields& fields, const json& parameters, const char* layers) {
  static const json kEmpty = json::object();
  const auto found = parameters.find(layers);
  if (found == parameters.end() || found->is_null()) {
    return kEmpty;
  }
  if (!found->is_object()) {
    fields.fail(layers, *found, "an object with the settings of these layers' RoPE");
    return kEmpty;
  }
  return *found;
}

/// The RoPE of local layers: a base alone.
Status read_local_rope(Fields& fields, const json* parameters, const std::string& where,
                       ModelConfig& config) {
  config.local_rope_theta = fields.number("rope_local_base_freq", 1, kMostTheta, 10000);
  if (parameters != nullptr) {
    Fields rope(rope_of_layers(fields, *parameters, "sliding_attention"),
                where + ": sliding_attention");
    config.local_rope_theta = rope.number("rope_theta", 1, kMostTheta, config.local_rope_theta);
    const std::string type = rope.text("rope_type", "default");
    if (type != "default") {
      rope.fail(fmt::format("rope_type is {}; it must be \"default\"", show(type)));
    }
    WEFT_TRY_FIELDS(rope);
  }
  return {};
}

/// The part of heads that RoPE turns.
void read_partial_rotary(Fields& fields, Fields& rope, const Family& family, ModelConfig& config) {
  constexpr std::string_view kKey = "partial_rotary_factor";
  const double outside = family.partial_rotary ? fields.number(kKey, 0, 1, 1) : 1;
  const double factor = rope.number(kKey, 0, 1, outside);
  if (!family.partial_rotary) {
    if (factor != 1) {
      rope.fail(kKey, *rope.find(kKey), "1: RoPE turns whole heads");
    }
    return;
  }
  config.partial_rotary_factor = factor;
  if (config.rotary_dim() < 2 || config.rotary_dim() % 2 != 0) {
    fields.fail(fmt::format("partial_rotary_factor {} turns {} of head_dim {}; RoPE turns pairs",
                            config.partial_rotary_factor, config.rotary_dim(), config.head_dim));
  }
}

/// RoPE, in either spelling: "rope_theta" and "rope_scaling" {"rope_type" | "type", ...}, or (from
/// transformers 5 on) both in "rope_parameters", which with local layers holds an object for each.
Status read_rope(Fields& fields, const std::string& file, const Family& family,
                 ModelConfig& config) {
  config.rope_theta = fields.number("rope_theta", 1, kMostTheta, family.default_rope_theta);
  WEFT_TRY_FIELDS(fields);

  const json* scaling = fields.find("rope_scaling");
  const json* parameters = fields.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return input_error(file + ": rope_scaling and rope_parameters are both there and differ");
  }
  const json* object = parameters != nullptr ? parameters : scaling;
  std::string key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (object != nullptr && !object->is_object()) {
    fields.fail(key, *object, "an object or null");
    return *fields.error();
  }
  const bool by_layers =
      family.local_rope && object != nullptr &&
      (object->contains("full_attention") || object->contains("sliding_attention"));
  if (family.local_rope) {
    WEFT_TRY(read_local_rope(fields, by_layers ? object : nullptr, file + ": " + key, config));
    WEFT_TRY_FIELDS(fields);
  }
  if (by_layers) {
    object = &rope_of_layers(fields, *object, "full_attention");
    key += ": full_attention";
  }
  static const json kNone = json::object();
  Fields rope(object != nullptr ? *object : kNone, file + ": " + key);
  const double theta = rope.number("rope_theta", 1, kMostTheta, config.rope_theta);
  if (fields.find("rope_theta") != nullptr && theta != config.rope_theta) {
    rope.fail(fmt::format("rope_theta is {} here and {} outside", theta, config.rope_theta));
  }
  config.rope_theta = theta;
  if (object != nullptr) {
    for (const auto& [name, value] : object->items()) {
      if (value.is_object()) {
        rope.fail(fmt::format("{} is an object; RoPE that differs between layers is not supported",
                              show(name)));
      }
    }
  }
  read_partial_rotary(fields, rope, family, config);
  WEFT_TRY_FIELDS(fields);
  if (object != nullptr) {
    read_scaling(fields, rope, family, config);
  }
  WEFT_TRY_FIELDS(rope);
  WEFT_TRY_FIELDS(fields);
  return {};
}

/// [layers]: whether queries and keys are turned.
std::vector<bool> read_rope_layers(Fields& fields, const Family& family,
                                   const ModelConfig& config) {
  std::vector<bool> turned(static_cast<size_t>(config.layers), true);
  if (!family.skips_rope) {
    return turned;
  }
  const int64_t interval = fields.integer("no_rope_layer_interval", 1, kMostLayers, 4);
  const json* list = fields.find("no_rope_layers");
  if (list != nullptr && (!list->is_array() || std::ssize(*list) != config.layers)) {
    fields.fail("no_rope_layers", *list, fmt::format("a list of {} zeros and ones", config.layers));
    return turned;
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    if (list == nullptr) {
      turned[at] = (i + 1) % interval != 0;
    } else if ((*list)[at] == 0 || (*list)[at] == 1) {
      turned[at] = (*list)[at] == 1;
    } else {
      fields.fail("no_rope_layers", *list,
                  fmt::format("a list of {} zeros and ones", config.layers));
    }
  }
  return turned;
}

/// [layers]: whether "layer_types" says that the window holds; empty: there is no such key.
std::vector<bool> read_layer_types(Fields& fields, const ModelConfig& config) {
  const json* types = fields.find("layer_types");
  std::vector<bool> slides;
  if (types == nullptr) {
    return slides;
  }
  if (!types->is_array() || std::ssize(*types) != config.layers) {
    fields.fail("layer_types", *types, fmt::format("a list of {} names", config.layers));
    return slides;
  }
  for (const json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      fields.fail("layer_types", *types,
                  "a list of \"full_attention\" and \"sliding_attention\" alone");
    }
    slides.push_back(type == "sliding_attention");
  }
  return slides;
}

/// The smallest number of kinds that, repeated, are the layers'.
void keep_period(std::vector<LayerKind>& kinds) {
  const size_t layers = kinds.size();
  for (size_t period = 1; period < layers; ++period) {
    if (std::equal(kinds.begin() + static_cast<ptrdiff_t>(period), kinds.end(), kinds.begin())) {
      kinds.resize(period);
      return;
    }
  }
}

/// Which layers see a window of keys, and which have which RoPE.
Status read_layers(Fields& fields, const Family& family, ModelConfig& config) {
  using Window = Family::Window;
  const std::vector<bool> turned = read_rope_layers(fields, family, config);
  const bool may_be_off = family.window == Window::late_layers ||
                          family.window == Window::no_rope_layers ||
                          family.window == Window::used_by_all;
  const bool used =
      family.window != Window::none && (!may_be_off || fields.boolean("use_sliding_window", false));
  int64_t window = 0;
  if (used && !fields.has_null("sliding_window")) {
    window = family.default_sliding_window > 0 || fields.find("sliding_window") != nullptr
                 ? fields.integer("sliding_window", 1, kMostContext, family.default_sliding_window)
                 : 0;
  }
  std::vector<bool> named;
  if (family.window != Window::none && family.window != Window::all_layers &&
      family.window != Window::used_by_all) {
    named = read_layer_types(fields, config);
  }
  const int64_t first_late = family.window == Window::late_layers
                                 ? fields.integer("max_window_layers", 0, kMostLayers, 28)
                                 : 0;
  const int64_t interval =
      family.interval_key.empty()
          ? family.window_interval
          : fields.integer(family.interval_key, 1, kMostLayers, family.window_interval);
  WEFT_TRY_FIELDS(fields);
  if (window == 0 && std::ranges::count(named, true) > 0) {
    fields.fail(may_be_off ? "layer_types names sliding_attention, but use_sliding_window and "
                             "sliding_window set no window"
                           : "layer_types names sliding_attention, but sliding_window sets none");
    WEFT_TRY_FIELDS(fields);
  }
  config.layer_kinds.clear();
  for (int64_t i = 0; i < config.layers; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool slides =
        window > 0 && (!named.empty()                            ? named[at]
                       : family.window == Window::late_layers    ? i >= first_late
                       : family.window == Window::interleaved    ? (i + 1) % interval != 0
                       : family.window == Window::no_rope_layers ? !turned[at]
                                                                 : true);
    LayerKind kind;
    kind.window = slides ? window : 0;
    kind.rope = !turned[at]                   ? LayerKind::Rope::none
                : slides && family.local_rope ? LayerKind::Rope::local
                                              : LayerKind::Rope::model;
    config.layer_kinds.push_back(kind);
  }
  keep_period(config.layer_kinds);
  return {};
}

/// Which layers have no experts.
Status read_dense_layers(Fields& fields, std::vector<LayerKind>& kinds) {
  const auto layers = std::ssize(kinds);
  const int64_t step = fields.integer("decoder_sparse_step", 1, kMostLayers, 1);
  for (int64_t i = 0; i < layers; ++i) {
    kinds[static_cast<size_t>(i)].dense = (i + 1) % step != 0;
  }
  const json* list = fields.find("mlp_only_layers");
  const bool is_list = list == nullptr || list->is_array();
  for (size_t i = 0; list != nullptr && is_list && i < list->size(); ++i) {
    const json& layer = (*list)[i];
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= static_cast<uint64_t>(layers)) {
      fields.fail("mlp_only_layers", *list,
                  fmt::format("a list of layers from 0 to {}", layers - 1));
      break;
    }
    kinds[layer.get<size_t>()].dense = true;
  }
  if (!is_list) {
    fields.fail("mlp_only_layers", *list, "a list of layers");
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

/// What DeepSeek's configs say of experts besides; their number and size are known.
void read_deepseek_experts(Fields& fields, const Family& family, Experts& experts) {
  const int64_t shared = fields.integer("n_shared_experts", 1, kMostExperts);
  experts.shared_size = shared * experts.size;
  experts.shared_whole = true;
  experts.sigmoid = experts.correction = family.experts.sigmoid;
  experts.scale = fields.number("routed_scaling_factor", 1e-6, 1e6, 1);
  const std::string method =
      fields.text("topk_method", family.experts.sigmoid ? "noaux_tc" : "greedy");
  if (method == (family.experts.sigmoid ? "noaux_tc" : "group_limited_greedy")) {
    experts.groups = fields.integer("n_group", 1, kMostExperts);
    experts.kept_groups = fields.integer("topk_group", 1, kMostExperts);
  } else if (family.experts.sigmoid || method != "greedy") {
    fields.fail("topk_method", *fields.find("topk_method"),
                family.experts.sigmoid ? R"("noaux_tc")" : R"("greedy" or "group_limited_greedy")");
  }
  if (fields.error()) {
    return;
  }
  const int64_t each = experts.count / experts.groups;
  if (experts.count % experts.groups != 0 || each < (experts.correction ? 2 : 1)) {
    fields.fail(
        fmt::format("n_routed_experts {} cannot be cut into n_group {} groups of {} or more",
                    experts.count, experts.groups, experts.correction ? 2 : 1));
  } else if (experts.kept_groups > experts.groups || experts.kept_groups * each < experts.chosen) {
    fields.fail(
        fmt::format("topk_group {} of n_group {} groups of {} experts leave none to choose "
                    "num_experts_per_tok {} from",
                    experts.kept_groups, experts.groups, each, experts.chosen));
  }
}

/// The experts of a family that has some; layers are known.
Status read_experts(Fields& fields, const Family& family, ModelConfig& config) {
  const Family::Mixture& keys = family.experts;
  if (keys.count_key.empty()) {
    return {};
  }
  Experts& experts = config.experts;
  experts.count = fields.integer(keys.count_key, 1, kMostExperts, keys.default_count);
  experts.chosen = fields.integer("num_experts_per_tok", 1, kMostExperts, keys.default_chosen);
  experts.size = fields.integer(keys.size_key, 1, kMostProjection);
  experts.renormalise = keys.renormalise_key.empty()
                            ? !keys.deepseek
                            : fields.boolean(keys.renormalise_key, /*fallback=*/keys.deepseek);
  if (keys.limit > 0) {
    experts.limit = fields.number("swiglu_limit", 1e-3, 1e6, keys.limit);
  }
  if (!keys.shared_size_key.empty()) {
    experts.shared_size = fields.integer(keys.shared_size_key, 1, kMostProjection);
  }
  if (keys.deepseek) {
    read_deepseek_experts(fields, family, experts);
  }
  WEFT_TRY_FIELDS(fields);
  if (keys.mxfp4 && (experts.size % kMxBlock != 0 || config.hidden % kMxBlock != 0)) {
    fields.fail(
        fmt::format("hidden_size {} and {} {} must be multiples of {}: so many numbers in "
                    "MXFP4 share a scale",
                    config.hidden, keys.size_key, experts.size, kMxBlock));
  }
  if (experts.chosen > experts.count) {
    fields.fail(fmt::format("num_experts_per_tok {} is more than {} {}", experts.chosen,
                            keys.count_key, experts.count));
  }
  if (experts.count * config.layers > kMostExpertsInAll) {
    fields.fail(fmt::format("{} {} in {} layers are more than {}", keys.count_key, experts.count,
                            config.layers, kMostExpertsInAll));
  }
  // With this no count of bytes of a model overflows 64 bits, as without experts.
  if (experts.count * experts.size > kMostExpertRows || experts.shared_size > kMostProjection) {
    fields.fail(fmt::format("{} {} times {} {} is more than {}", keys.count_key, experts.count,
                            keys.size_key, experts.size, kMostExpertRows));
  }
  WEFT_TRY_FIELDS(fields);
  if (keys.dense_layers || keys.deepseek) {
    std::vector<LayerKind> kinds;
    for (int64_t i = 0; i < config.layers; ++i) {
      kinds.push_back(config.layer_kind(i));
    }
    if (keys.deepseek) {
      const int64_t dense = fields.integer("first_k_dense_replace", 0, kMostLayers, 0);
      for (int64_t i = 0; i < std::min(dense, config.layers); ++i) {
        kinds[static_cast<size_t>(i)].dense = true;
      }
      config.ignored_layers = fields.integer("num_nextn_predict_layers", 0, kMostLayers, 0);
      WEFT_TRY_FIELDS(fields);
    } else {
      WEFT_TRY(read_dense_layers(fields, kinds));
    }
    config.layer_kinds = std::move(kinds);
    keep_period(config.layer_kinds);
  }
  return {};
}

/// Sizes of attention over latent rows; query_heads are known.
Status read_latent(Fields& fields, ModelConfig& config) {
  LatentAttention& latent = config.latent;
  latent.rank = fields.integer("kv_lora_rank", 1, kMostHeadDim);
  latent.query_rank =
      fields.find("q_lora_rank") == nullptr ? 0 : fields.integer("q_lora_rank", 1, kMostHidden);
  latent.unturned = fields.integer("qk_nope_head_dim", 1, kMostHeadDim);
  latent.turned = fields.integer("qk_rope_head_dim", 2, kMostHeadDim);
  latent.value = fields.integer("v_head_dim", 1, kMostHeadDim);
  WEFT_TRY_FIELDS(fields);
  config.kv_heads = 1;
  config.head_dim = latent.rank + latent.turned;
  if (latent.turned % 2 != 0 || latent.rank % 2 != 0) {
    fields.fail(
        fmt::format("qk_rope_head_dim {} and kv_lora_rank {} must be even: RoPE turns pairs",
                    latent.turned, latent.rank));
  }
  const int64_t largest =
      std::max(config.head_dim, latent.unturned + std::max(latent.turned, latent.value));
  if (config.query_heads * largest > kMostProjection) {
    fields.fail(fmt::format("num_attention_heads {} times {} elements of a head is more than {}",
                            config.query_heads, largest, kMostProjection));
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

Status read_sizes(Fields& fields, const Family& family, ModelConfig& config) {
  config.vocabulary = fields.integer("vocab_size", 1, kMostVocabulary);
  config.hidden = fields.integer("hidden_size", 1, kMostHidden);
  config.layers = fields.integer("num_hidden_layers", 1, kMostLayers);
  config.ffn = fields.integer("intermediate_size", 1, kMostProjection);
  config.context = fields.integer("max_position_embeddings", 1, kMostContext);
  config.query_heads = fields.integer("num_attention_heads", 1, kMostHeads);
  if (family.latent) {
    WEFT_TRY_FIELDS(fields);
    return read_latent(fields, config);
  }
  // An explicit null means "as many as query heads" in every family.
  const bool own_default = family.default_kv_heads > 0 && !fields.has_null("num_key_value_heads");
  config.kv_heads = fields.integer("num_key_value_heads", 1, kMostHeads,
                                   own_default ? family.default_kv_heads : config.query_heads);
  WEFT_TRY_FIELDS(fields);
  if (config.query_heads % config.kv_heads != 0) {
    fields.fail(fmt::format("num_attention_heads {} is not a multiple of num_key_value_heads {}",
                            config.query_heads, config.kv_heads));
  }

  if (fields.find("head_dim") == nullptr && family.default_head_dim == 0 &&
      config.hidden % config.query_heads != 0) {
    fields.fail(fmt::format(
        "hidden_size {} is not a multiple of num_attention_heads {} and there is no head_dim",
        config.hidden, config.query_heads));
  }
  const int64_t split = config.hidden / config.query_heads;
  const bool own_head_dim = family.default_head_dim > 0 && !fields.has_null("head_dim");
  config.head_dim =
      fields.integer("head_dim", 1, kMostHeadDim, own_head_dim ? family.default_head_dim : split);
  if (config.head_dim % 2 != 0) {
    fields.fail(fmt::format("head_dim {} is odd; RoPE turns pairs", config.head_dim));
  }
  if (config.query_size() > kMostProjection) {
    fields.fail(fmt::format("num_attention_heads {} times head_dim {} is more than {}",
                            config.query_heads, config.head_dim, kMostProjection));
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

Result<DType> read_dtype(Fields& fields) {
  // transformers 5 writes "dtype", earlier ones "torch_dtype".
  const char* key = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  const std::string name = fields.text(key, "bfloat16");
  WEFT_TRY_FIELDS(fields);
  for (const DTypeName& known : kDTypeNames) {
    if (name == known.name) {
      return known.dtype;
    }
  }
  fields.fail(key, *fields.find(key), "bfloat16, float16 or float32");
  return *fields.error();
}

void read_biases(Fields& fields, const Family& family, ModelConfig& config) {
  const auto setting = [&](std::string_view key) {
    return !key.empty() && fields.boolean(key, family.default_bias);
  };
  if (family.attention_bias == Family::Bias::qkv) {
    config.qkv_bias = true;
  } else if (family.attention_bias == Family::Bias::by_setting) {
    config.qkv_bias = setting(family.attention_bias_key);
    config.attention_out_bias = config.qkv_bias;
  }
  config.ffn_bias = setting(family.ffn_bias_key);
}

/// What embeddings, scores, blocks' outputs and logits are multiplied by or bent to.
void read_scales(Fields& fields, const Family& family, ModelConfig& config) {
  constexpr double kLeast = 1e-6;
  constexpr double kMost = 1e6;
  config.attention_multiplier = natural_attention_multiplier(config);
  if (family.query_scalar) {
    const int64_t scalar = fields.integer("query_pre_attn_scalar", 1, kMostHidden, 256);
    config.attention_multiplier = 1 / std::sqrt(static_cast<double>(scalar));
  }
  if (family.embedding_scale == Family::EmbeddingScale::by_setting) {
    config.embedding_multiplier = fields.number("embedding_multiplier", kLeast, kMost, 1);
  }
  if (family.multipliers) {
    config.attention_multiplier = fields.number("attention_multiplier", kLeast, kMost, 1);
    config.residual_multiplier = fields.number("residual_multiplier", kLeast, kMost, 1);
    config.logits_divisor = fields.number("logits_scaling", kLeast, kMost, 1);
  }
  if (family.soft_caps) {
    const auto cap = [&](std::string_view key, double fallback) {
      const bool absent = fields.find(key) == nullptr;
      return absent ? (fields.has_null(key) ? 0 : fallback) : fields.number(key, 1e-3, kMost);
    };
    config.attention_soft_cap = cap("attn_logit_softcapping", family.default_attention_soft_cap);
    config.logits_soft_cap = cap("final_logit_softcapping", family.default_logits_soft_cap);
  }
}

/// The older spelling of RoPE: every version of transformers reads it.
void write_rope(const ModelConfig& config, const Family& family, ordered_json& out) {
  out["rope_theta"] = config.rope_theta;
  if (family.local_rope) {
    out["rope_local_base_freq"] = config.local_rope_theta;
  }
  if (family.partial_rotary) {
    out["partial_rotary_factor"] = config.partial_rotary_factor;
  }
  const RopeScaling& rope = config.rope_scaling;
  constexpr const char* kOriginal = "original_max_position_embeddings";
  ordered_json& scaling = out["rope_scaling"] = nullptr;
  switch (rope.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      scaling = {{"rope_type", "linear"}, {"factor", rope.factor}};
      break;
    case RopeScaling::Kind::llama3:
      scaling = {{"rope_type", "llama3"},
                 {"factor", rope.factor},
                 {"low_freq_factor", rope.low_frequency_factor},
                 {"high_freq_factor", rope.high_frequency_factor},
                 {kOriginal, rope.original_context}};
      break;
    case RopeScaling::Kind::yarn:
      scaling = {{"rope_type", "yarn"},
                 {"factor", rope.factor},
                 {"beta_fast", rope.beta_fast},
                 {"beta_slow", rope.beta_slow},
                 {"truncate", rope.truncate},
                 {"attention_factor", rope.attention_factor},
                 {kOriginal, rope.original_context}};
      if (rope.mscale_all_dim != 0) {
        scaling[kMscaleAllDim] = rope.mscale_all_dim;
      }
      break;
    case RopeScaling::Kind::longrope:
      scaling = {{"rope_type", "longrope"},
                 {"short_factor", rope.short_factors},
                 {"long_factor", rope.long_factors},
                 {"attention_factor", rope.attention_factor}};
      out[kOriginal] = rope.original_context;
      break;
  }
}

void write_layers(const ModelConfig& config, const Family& family, ordered_json& out) {
  std::vector<int> turned;
  std::vector<std::string_view> types;
  int64_t window = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerKind& kind = config.layer_kind(i);
    turned.push_back(kind.rope == LayerKind::Rope::none ? 0 : 1);
    types.emplace_back(kind.window > 0 ? "sliding_attention" : "full_attention");
    window = std::max(window, kind.window);
  }
  if (family.skips_rope) {
    out["no_rope_layers"] = turned;
  }
  if (family.window == Family::Window::none) {
    return;
  }
  out["sliding_window"] = window > 0 ? ordered_json(window) : ordered_json();
  if (family.window == Family::Window::all_layers) {
    return;
  }
  if (family.window != Family::Window::interleaved) {
    out["use_sliding_window"] = window > 0;
  }
  if (family.window == Family::Window::used_by_all) {
    return;
  }
  out["layer_types"] = types;
}

void write_deepseek_experts(const ModelConfig& config, const Family& family, ordered_json& out) {
  const Experts& experts = config.experts;
  out["n_shared_experts"] = experts.shared_size / experts.size;
  out["routed_scaling_factor"] = experts.scale;
  out["scoring_func"] = experts.sigmoid ? "sigmoid" : "softmax";
  const bool grouped = family.experts.sigmoid || experts.groups > 1;
  out["topk_method"] = family.experts.sigmoid ? "noaux_tc"
                       : grouped              ? "group_limited_greedy"
                                              : "greedy";
  if (grouped) {
    out["n_group"] = experts.groups;
    out["topk_group"] = experts.kept_groups;
  }
  int64_t dense = 0;
  while (dense < config.layers && config.layer_kind(dense).dense) {
    ++dense;
  }
  out["first_k_dense_replace"] = dense;
  out["moe_layer_freq"] = 1;
  if (config.ignored_layers > 0) {
    out["num_nextn_predict_layers"] = config.ignored_layers;
  }
}

void write_experts(const ModelConfig& config, const Family& family, ordered_json& out) {
  const Family::Mixture& keys = family.experts;
  if (keys.count_key.empty()) {
    return;
  }
  const Experts& experts = config.experts;
  out[keys.count_key] = experts.count;
  out["num_experts_per_tok"] = experts.chosen;
  out[keys.size_key] = experts.size;
  if (!keys.renormalise_key.empty()) {
    out[keys.renormalise_key] = experts.renormalise;
  }
  if (!keys.shared_size_key.empty()) {
    out[keys.shared_size_key] = experts.shared_size;
  }
  if (keys.limit > 0) {
    out["swiglu_limit"] = experts.limit;
  }
  if (keys.deepseek) {
    write_deepseek_experts(config, family, out);
  }
  if (keys.dense_layers) {
    std::vector<int64_t> dense;
    for (int64_t i = 0; i < config.layers; ++i) {
      if (config.layer_kind(i).dense) {
        dense.push_back(i);
      }
    }
    out["decoder_sparse_step"] = 1;
    out["mlp_only_layers"] = dense;
  }
}

Status reject_non_object(const json& document, const std::string& file) {
  if (!document.is_object()) {
    return input_error(fmt::format("{}: is {}; it must be a JSON object", file, show(document)));
  }
  return {};
}

}  // namespace

Result<ModelConfig> parse_config(std::string_view text, const std::string& file) {
  WEFT_ASSIGN(const json document, parse_json(text, file));
  WEFT_TRY(reject_non_object(document, file));
  Fields fields(document, file);
  WEFT_ASSIGN(const Family* family, read_family(fields));
  WEFT_TRY(reject_unsupported(fields, *family));

  ModelConfig config;
  config.name = file;
  config.architecture = family->architecture;
  WEFT_TRY(read_sizes(fields, *family, config));
  WEFT_ASSIGN(config.dtype, read_dtype(fields));
  complete(*family, config);
  WEFT_TRY(read_rope(fields, file, *family, config));
  WEFT_TRY(read_layers(fields, *family, config));
  WEFT_TRY(read_experts(fields, *family, config));
  config.norm_epsilon =
      fields.number(family->norm_epsilon_key, 1e-12, 1e-1, family->default_norm_epsilon);
  config.tied_head = fields.boolean("tie_word_embeddings", family->default_tied_head);
  read_biases(fields, *family, config);
  read_scales(fields, *family, config);
  if (const json* quantization = fields.find("quantization_config")) {
    WEFT_ASSIGN(config.quantization,
                read_quantization(*quantization, file + ": quantization_config"));
  }
  const LatentAttention& latent = config.latent;
  if (latent.rank > 0 && config.quantization.weights == Scaling::block &&
      (latent.unturned % kScaleBlock != 0 || latent.value % kScaleBlock != 0)) {
    return input_error(fmt::format(
        "{}: qk_nope_head_dim {} and v_head_dim {} must be multiples of {}, the rows that share "
        "scales in its quantization_config",
        file, latent.unturned, latent.value, kScaleBlock));
  }
  const bool mxfp4 = config.quantization.method == Quantization::Method::mxfp4;
  if (mxfp4 != family->experts.mxfp4) {
    return input_error(fmt::format(
        "{}: quantization_config {} quant_method \"mxfp4\", but Weft reads {} experts {}", file,
        mxfp4 ? "has" : "does not have", family->architecture,
        mxfp4 ? "in no such format" : "in that format alone, as they are published"));
  }
  config.eos = fields.tokens("eos_token_id", config.vocabulary);
  const std::vector<int32_t> bos = fields.tokens("bos_token_id", config.vocabulary);
  config.bos = bos.empty() ? -1 : bos.front();
  WEFT_TRY_FIELDS(fields);
  return config;
}

Result<ModelConfig> read_config(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(directory, ignored)) {
    return input_error(
        fmt::format("{}: is not a directory; a model is a directory with config.json and "
                    "safetensors files",
                    directory.string()));
  }
  const auto file = directory / "config.json";
  WEFT_ASSIGN(const std::string text, read_text_file(file, kLongestConfig));
  WEFT_ASSIGN(ModelConfig config, parse_config(text, file.string()));
  config.name = directory.string();

  // What generation stops at may be more than what the config says: chat models add their end of
  // turn.
  const auto generation = directory / "generation_config.json";
  if (std::filesystem::exists(generation, ignored)) {
    WEFT_ASSIGN(const std::string settings, read_text_file(generation, kLongestConfig));
    WEFT_ASSIGN(const json document, parse_json(settings, generation.string()));
    WEFT_TRY(reject_non_object(document, generation.string()));
    Fields fields(document, generation.string());
    if (fields.find("eos_token_id") != nullptr) {
      config.eos = fields.tokens("eos_token_id", config.vocabulary);
    }
    WEFT_TRY_FIELDS(fields);
  }
  return config;
}

std::string write_config(const ModelConfig& config) {
  const Family* family = find_family(config.architecture);
  WEFT_CHECK(family != nullptr);
  ordered_json out;
  out["architectures"] = {config.architecture};
  out["model_type"] = family->model_type;
  out["vocab_size"] = config.vocabulary;
  out["hidden_size"] = config.hidden;
  out["intermediate_size"] = config.ffn;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.query_heads;
  if (family->latent) {
    const LatentAttention& latent = config.latent;
    out["num_key_value_heads"] = config.query_heads;
    out["kv_lora_rank"] = latent.rank;
    out["q_lora_rank"] = latent.query_rank > 0 ? ordered_json(latent.query_rank) : ordered_json();
    out["qk_nope_head_dim"] = latent.unturned;
    out["qk_rope_head_dim"] = latent.turned;
    out["v_head_dim"] = latent.value;
  } else {
    out["num_key_value_heads"] = config.kv_heads;
    out["head_dim"] = config.head_dim;
  }
  out[family->activation_key] = config_name(config.activation);
  out["max_position_embeddings"] = config.context;
  out[family->norm_epsilon_key] = config.norm_epsilon;
  out["tie_word_embeddings"] = config.tied_head;

  write_rope(config, *family, out);

  if (family->attention_bias == Family::Bias::by_setting) {
    out[family->attention_bias_key] = config.qkv_bias;
  }
  if (!family->ffn_bias_key.empty()) {
    out[family->ffn_bias_key] = config.ffn_bias;
  }
  write_layers(config, *family, out);
  write_experts(config, *family, out);
  if (family->query_scalar) {
    out["query_pre_attn_scalar"] =
        std::llround(1 / (config.attention_multiplier * config.attention_multiplier));
  }
  if (family->soft_caps) {
    const auto cap = [](double value) { return value > 0 ? ordered_json(value) : ordered_json(); };
    out["attn_logit_softcapping"] = cap(config.attention_soft_cap);
    out["final_logit_softcapping"] = cap(config.logits_soft_cap);
  }
  if (family->embedding_scale == Family::EmbeddingScale::by_setting) {
    out["embedding_multiplier"] = config.embedding_multiplier;
  }
  if (family->multipliers) {
    out["attention_multiplier"] = config.attention_multiplier;
    out["residual_multiplier"] = config.residual_multiplier;
    out["logits_scaling"] = config.logits_divisor;
  }

  out["bos_token_id"] = nullptr;
  if (config.bos >= 0) {
    out["bos_token_id"] = config.bos;
  }
  out["eos_token_id"] = nullptr;
  if (config.eos.size() == 1) {
    out["eos_token_id"] = config.eos.front();
  } else if (!config.eos.empty()) {
    out["eos_token_id"] = config.eos;
  }
  for (const DTypeName& known : kDTypeNames) {
    if (known.dtype == config.dtype) {
      out["torch_dtype"] = known.name;
    }
  }
  if (config.quantization.method != Quantization::Method::none) {
    out["quantization_config"] = write_quantization(config.quantization);
  }
  return out.dump(2) + "\n";
}

std::vector<std::string> known_architectures() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    names.emplace_back(family.architecture);
  }
  return names;
}

}  // namespace weft

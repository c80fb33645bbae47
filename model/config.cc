#include "model/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "model/family.h"
#include "model/json.h"
#include "model/mapped_file.h"

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

constexpr std::string_view kRopeTypes = "default, linear, llama3";

struct DTypeName {
  DType dtype;
  std::string_view name;
};
constexpr DTypeName kDTypeNames[] = {
    {DType::bf16, "bfloat16"}, {DType::f16, "float16"}, {DType::f32, "float32"}};

/// Reads the fields of a JSON object. The first thing that is wrong is kept as the error and every
/// later read returns its fallback, so that a list of reads needs one check at its end.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// The value of a key; null when it is absent or null.
  const json* find(std::string_view key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  bool has_null(std::string_view key) const {
    const auto it = object_.find(key);
    return it != object_.end() && it->is_null();
  }

  /// Without a fallback the key is required.
  int64_t integer(std::string_view key, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = {}) {
    const json* value = find_or_fail(key, fallback.has_value());
    if (value == nullptr) {
      return fallback.value_or(low);
    }
    const bool fits =
        value->is_number_unsigned()
            ? value->get<uint64_t>() <= static_cast<uint64_t>(high) && value->get<int64_t>() >= low
            : value->is_number_integer() && value->get<int64_t>() >= low &&
                  value->get<int64_t>() <= high;
    if (!fits) {
      fail(key, *value, fmt::format("an integer from {} to {}", low, high));
      return fallback.value_or(low);
    }
    return value->get<int64_t>();
  }

  double number(std::string_view key, double low, double high,
                std::optional<double> fallback = {}) {
    const json* value = find_or_fail(key, fallback.has_value());
    if (value == nullptr) {
      return fallback.value_or(low);
    }
    const double x = value->is_number() ? value->get<double>() : NAN;
    if (!(x >= low && x <= high)) {
      fail(key, *value, fmt::format("a number from {} to {}", low, high));
      return fallback.value_or(low);
    }
    return x;
  }

  bool boolean(std::string_view key, bool fallback) {
    const json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    if (!value->is_boolean()) {
      fail(key, *value, "true or false");
      return fallback;
    }
    return value->get<bool>();
  }

  std::string text(std::string_view key, std::string fallback) {
    const json* value = find(key);
    if (value == nullptr) {
      return fallback;
    }
    if (!value->is_string()) {
      fail(key, *value, "a string");
      return fallback;
    }
    return value->get<std::string>();
  }

  /// An integer or a list of them; empty when absent. Ids beyond the vocabulary are left out: no
  /// token can match them, and configs cut down from larger ones keep them.
  std::vector<int32_t> tokens(std::string_view key, int64_t vocabulary) {
    const json* value = find(key);
    if (value == nullptr) {
      return {};
    }
    const json list = value->is_array() ? *value : json::array({*value});
    std::vector<int32_t> ids;
    for (const json& id : list) {
      if (!id.is_number_unsigned()) {
        fail(key, *value, "a token id or a list of token ids");
        return {};
      }
      if (id.get<uint64_t>() < static_cast<uint64_t>(vocabulary)) {
        ids.push_back(id.get<int32_t>());
      }
    }
    return ids;
  }

  /// "FILE: KEY is VALUE; it must be MUST."
  void fail(std::string_view key, const json& value, std::string_view must) {
    fail(fmt::format("{} is {}; it must be {}", key, show(value), must));
  }
  void fail(const std::string& sentence) {
    if (!error_) {
      error_ = input_error(where_ + ": " + sentence);
    }
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  const json* find_or_fail(std::string_view key, bool optional) {
    const json* value = find(key);
    if (value == nullptr && !optional) {
      fail(fmt::format("{} is {}", key, has_null(key) ? "null" : "missing"));
    }
    return value;
  }

  const json& object_;
  std::string where_;  // "config.json" or "config.json: rope_scaling"
  std::optional<Error> error_;
};

#define WEFT_TRY_FIELDS(fields) \
  do {                          \
    if ((fields).error()) {     \
      return *(fields).error(); \
    }                           \
  } while (false)

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

/// Weft computes one thing for each of these keys and refuses any other.
Status reject_unsupported(Fields& fields) {
  if (const json* quantization = fields.find("quantization_config")) {
    const auto method =
        quantization->is_object() ? quantization->find("quant_method") : quantization->end();
    const json& what = method == quantization->end() ? *quantization : *method;
    fields.fail("quantization_config", what,
                "absent: Weft reads BF16, F16 and F32 weights, not quantised ones");
  }
  if (const json* activation = fields.find("hidden_act"); activation && *activation != "silu") {
    fields.fail("hidden_act", *activation, "\"silu\"");
  }
  if (fields.number("partial_rotary_factor", 0, 1, 1) != 1) {
    fields.fail("partial_rotary_factor", *fields.find("partial_rotary_factor"),
                "1: RoPE turns whole heads");
  }
  WEFT_TRY_FIELDS(fields);
  return {};
}

/// RoPE, in either spelling: "rope_theta" and "rope_scaling" {"rope_type" | "type", ...}, or (from
/// transformers 5 on) both in "rope_parameters".
Status read_rope(Fields& fields, const std::string& file, ModelConfig& config) {
  constexpr double kMostTheta = 1e15;
  config.rope_theta = fields.number("rope_theta", 1, kMostTheta, 10000);
  WEFT_TRY_FIELDS(fields);

  const json* scaling = fields.find("rope_scaling");
  const json* parameters = fields.find("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return input_error(file + ": rope_scaling and rope_parameters are both there and differ");
  }
  const json* object = parameters != nullptr ? parameters : scaling;
  const std::string key = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (object == nullptr) {
    return {};
  }
  if (!object->is_object()) {
    fields.fail(key, *object, "an object or null");
    return *fields.error();
  }

  Fields rope(*object, file + ": " + key);
  const double theta = rope.number("rope_theta", 1, kMostTheta, config.rope_theta);
  if (fields.find("rope_theta") != nullptr && theta != config.rope_theta) {
    rope.fail(fmt::format("rope_theta is {} here and {} outside", theta, config.rope_theta));
  }
  config.rope_theta = theta;
  if (rope.number("partial_rotary_factor", 0, 1, 1) != 1) {
    rope.fail("partial_rotary_factor", *rope.find("partial_rotary_factor"),
              "1: RoPE turns whole heads");
  }
  for (const auto& [name, value] : object->items()) {
    if (value.is_object()) {
      rope.fail(fmt::format("{} is an object; RoPE that differs between layers is not supported",
                            show(name)));
    }
  }

  const std::string old_type = rope.text("type", "");
  const std::string type = rope.text("rope_type", old_type);
  if (!old_type.empty() && old_type != type) {
    rope.fail(fmt::format("rope_type is {} but type is {}", show(type), show(old_type)));
  }
  RopeScaling& result = config.rope_scaling;
  if (type == "linear" || type == "llama3") {
    result.factor = rope.number("factor", 1, 1e9);
  }
  if (type == "linear") {
    result.kind = RopeScaling::Kind::linear;
  } else if (type == "llama3") {
    result.kind = RopeScaling::Kind::llama3;
    result.low_frequency_factor = rope.number("low_freq_factor", 1e-9, 1e9);
    result.high_frequency_factor = rope.number("high_freq_factor", 1e-9, 1e9);
    result.original_context =
        rope.integer("original_max_position_embeddings", 1, kMostContext, config.context);
    if (result.high_frequency_factor <= result.low_frequency_factor) {
      rope.fail(fmt::format("high_freq_factor {} must be larger than low_freq_factor {}",
                            result.high_frequency_factor, result.low_frequency_factor));
    }
  } else if (!type.empty() && type != "default") {
    rope.fail(fmt::format("rope_type {} is not supported; Weft knows {}", show(type), kRopeTypes));
  } else if (type.empty() && rope.find("factor") != nullptr) {
    rope.fail(fmt::format("factor is given without a rope_type; Weft knows {}", kRopeTypes));
  }
  WEFT_TRY_FIELDS(rope);
  return {};
}

/// Keys a query sees; all layers alike, or the config is refused.
Status read_window(Fields& fields, const Family& family, ModelConfig& config) {
  if (family.window == Family::Window::none) {
    return {};
  }
  const bool late = family.window == Family::Window::late_layers;
  const bool used = !late || fields.boolean("use_sliding_window", false);
  int64_t window = 0;
  if (used && !fields.has_null("sliding_window")) {
    window = fields.integer("sliding_window", 1, kMostContext, family.default_sliding_window);
  }
  // Layers that slide: those "layer_types" names, or the ones from max_window_layers on.
  int64_t sliding = window > 0 ? config.layers : 0;
  if (late) {
    const json* types = fields.find("layer_types");
    const int64_t first_late = fields.integer("max_window_layers", 0, kMostLayers, 28);
    if (types == nullptr) {
      sliding = window > 0 ? std::max<int64_t>(config.layers - first_late, 0) : 0;
    } else if (!types->is_array() || std::ssize(*types) != config.layers) {
      fields.fail("layer_types", *types, fmt::format("a list of {} names", config.layers));
    } else {
      sliding = std::count(types->begin(), types->end(), "sliding_attention");
      const int64_t full = std::count(types->begin(), types->end(), "full_attention");
      if (sliding + full != config.layers) {
        fields.fail("layer_types", *types,
                    "a list of \"full_attention\" and \"sliding_attention\" alone");
      } else if (sliding > 0 && window == 0) {
        fields.fail(
            "layer_types names sliding_attention, but use_sliding_window and sliding_window set "
            "no window");
      }
    }
  }
  if (sliding != 0 && sliding != config.layers) {
    fields.fail(fmt::format(
        "sliding_window {} holds for {} of {} layers (max_window_layers, layer_types); Weft "
        "supports one window for all layers",
        window, sliding, config.layers));
  }
  WEFT_TRY_FIELDS(fields);
  config.sliding_window = sliding == 0 ? 0 : window;
  return {};
}

Status read_sizes(Fields& fields, const Family& family, ModelConfig& config) {
  config.vocabulary = fields.integer("vocab_size", 1, kMostVocabulary);
  config.hidden = fields.integer("hidden_size", 1, kMostHidden);
  config.layers = fields.integer("num_hidden_layers", 1, kMostLayers);
  config.ffn = fields.integer("intermediate_size", 1, kMostProjection);
  config.context = fields.integer("max_position_embeddings", 1, kMostContext);
  config.query_heads = fields.integer("num_attention_heads", 1, kMostHeads);
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
  WEFT_TRY(reject_unsupported(fields));

  ModelConfig config;
  config.name = file;
  config.architecture = family->architecture;
  config.norm_placement = family->norm_placement;
  config.qk_norm = family->qk_norm;
  WEFT_TRY(read_sizes(fields, *family, config));
  WEFT_TRY(read_rope(fields, file, config));
  WEFT_TRY(read_window(fields, *family, config));
  WEFT_ASSIGN(config.dtype, read_dtype(fields));

  config.norm_epsilon = fields.number("rms_norm_eps", 1e-12, 1e-1, family->default_norm_epsilon);
  config.tied_head = fields.boolean("tie_word_embeddings", false);
  if (family->attention_bias == Family::Bias::qkv) {
    config.qkv_bias = true;
  } else if (family->attention_bias == Family::Bias::by_setting) {
    config.qkv_bias = fields.boolean("attention_bias", false);
    config.attention_out_bias = config.qkv_bias;
  }
  config.ffn_bias = family->ffn_bias_setting && fields.boolean("mlp_bias", false);

  config.attention_multiplier = 1 / std::sqrt(static_cast<double>(config.head_dim));
  if (family->multipliers) {
    constexpr double kLeast = 1e-6;
    constexpr double kMost = 1e6;
    config.attention_multiplier = fields.number("attention_multiplier", kLeast, kMost, 1);
    config.embedding_multiplier = fields.number("embedding_multiplier", kLeast, kMost, 1);
    config.residual_multiplier = fields.number("residual_multiplier", kLeast, kMost, 1);
    config.logits_divisor = fields.number("logits_scaling", kLeast, kMost, 1);
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
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["hidden_act"] = "silu";
  out["max_position_embeddings"] = config.context;
  out["rms_norm_eps"] = config.norm_epsilon;
  out["tie_word_embeddings"] = config.tied_head;

  // The older spelling of RoPE: every version of transformers reads it.
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = nullptr;
  const RopeScaling& rope = config.rope_scaling;
  if (rope.kind == RopeScaling::Kind::linear) {
    out["rope_scaling"] = {{"rope_type", "linear"}, {"factor", rope.factor}};
  } else if (rope.kind == RopeScaling::Kind::llama3) {
    out["rope_scaling"] = {{"rope_type", "llama3"},
                           {"factor", rope.factor},
                           {"low_freq_factor", rope.low_frequency_factor},
                           {"high_freq_factor", rope.high_frequency_factor},
                           {"original_max_position_embeddings", rope.original_context}};
  }

  if (family->attention_bias == Family::Bias::by_setting) {
    out["attention_bias"] = config.qkv_bias;
  }
  if (family->ffn_bias_setting) {
    out["mlp_bias"] = config.ffn_bias;
  }
  if (family->window != Family::Window::none) {
    out["sliding_window"] = nullptr;
    if (config.sliding_window > 0) {
      out["sliding_window"] = config.sliding_window;
    }
    if (family->window == Family::Window::late_layers) {
      out["use_sliding_window"] = config.sliding_window > 0;
      out["max_window_layers"] = config.sliding_window > 0 ? 0 : config.layers;
    }
  }
  if (family->multipliers) {
    out["attention_multiplier"] = config.attention_multiplier;
    out["embedding_multiplier"] = config.embedding_multiplier;
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

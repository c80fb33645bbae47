// Presets: the public configs of well-known models, by short name.
#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "model/config.h"
#include "model/family.h"
#include "model/json.h"

namespace weft {
namespace {

RopeScaling llama3_scaling(double factor) {
  return {.kind = RopeScaling::Kind::llama3,
          .factor = factor,
          .low_frequency_factor = 1,
          .high_frequency_factor = 4,
          .original_context = 8192};
}

/// Adds what follows from the architecture, so that a preset states only what its config.json does.
ModelConfig completed(ModelConfig config) {
  const Family* family = find_family(config.architecture);
  WEFT_CHECK(family != nullptr);
  complete(*family, config);
  config.qkv_bias |= family->attention_bias == Family::Bias::qkv;
  if (config.attention_multiplier == 0) {
    config.attention_multiplier = 1 / std::sqrt(static_cast<double>(config.head_dim));
  }
  return config;
}

std::vector<ModelConfig> make_presets() {
  std::vector<ModelConfig> presets = {
      // meta-llama/Llama-3.2-1B
      {.name = "llama-3.2-1b",
       .architecture = "LlamaForCausalLM",
       .vocabulary = 128256,
       .hidden = 2048,
       .layers = 16,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 64,
       .ffn = 8192,
       .context = 131072,
       .rope_theta = 500000,
       .rope_scaling = llama3_scaling(32),
       .tied_head = true,
       .eos = {128001},
       .bos = 128000},
      // meta-llama/Llama-3.2-3B
      {.name = "llama-3.2-3b",
       .architecture = "LlamaForCausalLM",
       .vocabulary = 128256,
       .hidden = 3072,
       .layers = 28,
       .query_heads = 24,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 8192,
       .context = 131072,
       .rope_theta = 500000,
       .rope_scaling = llama3_scaling(32),
       .tied_head = true,
       .eos = {128001},
       .bos = 128000},
      // meta-llama/Llama-3.1-8B
      {.name = "llama-3.1-8b",
       .architecture = "LlamaForCausalLM",
       .vocabulary = 128256,
       .hidden = 4096,
       .layers = 32,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 14336,
       .context = 131072,
       .rope_theta = 500000,
       .rope_scaling = llama3_scaling(8),
       .eos = {128001},
       .bos = 128000},
      // meta-llama/Llama-3.3-70B-Instruct
      {.name = "llama-3.3-70b",
       .architecture = "LlamaForCausalLM",
       .vocabulary = 128256,
       .hidden = 8192,
       .layers = 80,
       .query_heads = 64,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 28672,
       .context = 131072,
       .rope_theta = 500000,
       .rope_scaling = llama3_scaling(8),
       .eos = {128001, 128008, 128009},
       .bos = 128000},
      // Qwen/Qwen2.5-Coder-1.5B
      {.name = "qwen2.5-coder-1.5b",
       .architecture = "Qwen2ForCausalLM",
       .vocabulary = 151936,
       .hidden = 1536,
       .layers = 28,
       .query_heads = 12,
       .kv_heads = 2,
       .head_dim = 128,
       .ffn = 8960,
       .context = 32768,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .tied_head = true,
       .eos = {151643},
       .bos = 151643},
      // Qwen/Qwen3-0.6B
      {.name = "qwen3-0.6b",
       .architecture = "Qwen3ForCausalLM",
       .vocabulary = 151936,
       .hidden = 1024,
       .layers = 28,
       .query_heads = 16,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 3072,
       .context = 40960,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .tied_head = true,
       .eos = {151645, 151643},
       .bos = 151643},
      // Qwen/Qwen3-1.7B
      {.name = "qwen3-1.7b",
       .architecture = "Qwen3ForCausalLM",
       .vocabulary = 151936,
       .hidden = 2048,
       .layers = 28,
       .query_heads = 16,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 6144,
       .context = 40960,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .tied_head = true,
       .eos = {151645, 151643},
       .bos = 151643},
      // Qwen/Qwen3-8B
      {.name = "qwen3-8b",
       .architecture = "Qwen3ForCausalLM",
       .vocabulary = 151936,
       .hidden = 4096,
       .layers = 36,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 12288,
       .context = 40960,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .eos = {151645, 151643},
       .bos = 151643},
      // allenai/OLMo-2-0425-1B
      {.name = "olmo-2-1b",
       .architecture = "Olmo2ForCausalLM",
       .vocabulary = 100352,
       .hidden = 2048,
       .layers = 16,
       .query_heads = 16,
       .kv_heads = 16,
       .head_dim = 128,
       .ffn = 8192,
       .context = 4096,
       .norm_epsilon = 1e-6,
       .rope_theta = 500000,
       .eos = {100257}},
      // amd/Instella-3B
      {.name = "instella-3b",
       .architecture = "InstellaForCausalLM",
       .vocabulary = 50304,
       .hidden = 2560,
       .layers = 36,
       .query_heads = 32,
       .kv_heads = 32,
       .head_dim = 80,
       .ffn = 6912,
       .context = 4096,
       .eos = {0},
       .bos = 0},
      // ibm-granite/granite-3.1-2b-base
      {.name = "granite-3.1-2b",
       .architecture = "GraniteForCausalLM",
       .vocabulary = 49155,
       .hidden = 2048,
       .layers = 40,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 64,
       .ffn = 8192,
       .context = 131072,
       .rope_theta = 5000000,
       .tied_head = true,
       .embedding_multiplier = 12,
       .attention_multiplier = 0.015625,
       .residual_multiplier = 0.22,
       .logits_divisor = 8,
       .eos = {0},
       .bos = 0},
      // mistralai/Mistral-7B-v0.1, the one with a sliding window
      {.name = "mistral-7b",
       .architecture = "MistralForCausalLM",
       .vocabulary = 32000,
       .hidden = 4096,
       .layers = 32,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 14336,
       .context = 32768,
       .layer_kinds = {{.window = 4096}},
       .eos = {2},
       .bos = 1},
      // Weft's own shape of 2 billion parameters, for measurements
      {.name = "weft-2b",
       .architecture = "LlamaForCausalLM",
       .vocabulary = 49152,
       .hidden = 2560,
       .layers = 24,
       .query_heads = 24,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 8960,
       .context = 4096,
       .tied_head = true},
  };
  for (ModelConfig& config : presets) {
    config = completed(std::move(config));
  }
  return presets;
}

const std::vector<ModelConfig>& presets() {
  static const std::vector<ModelConfig> all = make_presets();
  return all;
}

}  // namespace

Result<ModelConfig> preset(std::string_view name) {
  for (const ModelConfig& config : presets()) {
    if (config.name == name) {
      return config;
    }
  }
  return usage_error(
      fmt::format("there is no preset '{}'; there are {}", name, join(preset_names())));
}

std::vector<std::string> preset_names() {
  std::vector<std::string> names;
  for (const ModelConfig& config : presets()) {
    names.push_back(config.name);
  }
  return names;
}

}  // namespace weft

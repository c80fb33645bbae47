// Presets: the public configs of well-known models, by short name.
#include <fmt/format.h>

#include <cmath>
#include <span>
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

/// LongRoPE from 4096 positions to 131072.
RopeScaling longrope_scaling(std::span<const double> short_factors,
                             std::span<const double> long_factors) {
  constexpr double kOriginal = 4096;
  return {.kind = RopeScaling::Kind::longrope,
          .original_context = 4096,
          .short_factors = {short_factors.begin(), short_factors.end()},
          .long_factors = {long_factors.begin(), long_factors.end()},
          .attention_factor = std::sqrt(1 + std::log(131072 / kOriginal) / std::log(kOriginal))};
}

// Phi-3-mini-128k-instruct's.
constexpr double kPhi3Short[] = {
    1.1, 1.1,  1.1,  1.3,  1.35, 1.35, 1.4,  1.55, 2,    2,    2,    2,    2,    2,    2,    2,
    2,   2,    2,    2,    2,    2,    2,    2,    2,    2.05, 2.05, 2.05, 2.05, 2.05, 2.05, 2.1,
    2.1, 2.15, 2.25, 2.25, 2.25, 2.25, 2.25, 2.4,  2.45, 2.5,  2.7,  2.7,  2.75, 2.8,  2.9,  3.05};
constexpr double kPhi3Long[] = {
    1.0700000524520874, 1.1200000047683716, 1.149999976158142,  1.4199999570846558,
    1.5699999332427979, 1.7999999523162842, 2.129999876022339,  2.129999876022339,
    3.009999990463257,  5.910000324249268,  6.950000286102295,  9.070000648498535,
    9.930000305175781,  10.710000038146973, 11.130000114440918, 14.609999656677246,
    15.409998893737793, 19.809999465942383, 37.279998779296875, 38.279998779296875,
    38.599998474121094, 40.12000274658203,  46.20000457763672,  50.940006256103516,
    53.66000747680664,  54.9373893737793,   56.89738845825195,  57.28738784790039,
    59.98738479614258,  60.86738586425781,  60.887386322021484, 61.71739196777344,
    62.91739273071289,  62.957393646240234, 63.41739273071289,  63.8173942565918,
    63.83739471435547,  63.897396087646484, 63.93739700317383,  64.06739807128906,
    64.11434936523438,  64.12435150146484,  64.15435028076172,  64.19435119628906,
    64.24435424804688,  64.57435607910156,  64.69000244140625,  64.76000213623047};
// Phi-4-mini-instruct's; its short factors are all 1.
constexpr double kPhi4MiniLong[] = {
    1,           1.118320672, 1.250641126, 1.398617824, 1.564103225, 1.74916897,  1.956131817,
    2.187582649, 2.446418898, 2.735880826, 3.059592084, 3.421605075, 3.826451687, 4.279200023,
    4.785517845, 5.351743533, 5.984965424, 6.693110555, 7.485043894, 8.370679318, 9.36110372,
    10.4687158,  11.70738129, 13.09260651, 14.64173252, 16.37415215, 18.31155283, 20.47818807,
    22.90118105, 25.61086418, 28.64115884, 32.03,       32.1,        32.13,       32.23,
    32.6,        32.61,       32.64,       32.66,       32.7,        32.71,       32.93,
    32.97,       33.28,       33.49,       33.5,        44.16,       47.77};

/// Gemma-3: five layers with a window and a RoPE of their own, then one without.
std::vector<LayerKind> five_local_layers(int64_t window) {
  std::vector<LayerKind> kinds(5, {.window = window, .rope = LayerKind::Rope::local});
  kinds.emplace_back();
  return kinds;
}

/// DeepSeek: the first layers have no experts.
std::vector<LayerKind> first_dense(size_t dense, size_t layers) {
  std::vector<LayerKind> kinds(layers);
  for (size_t i = 0; i < dense; ++i) {
    kinds[i].dense = true;
  }
  return kinds;
}

/// openai/gpt-oss-*
ModelConfig gpt_oss(std::string name, int64_t layers, int64_t experts) {
  ModelConfig config;
  config.name = std::move(name);
  config.architecture = "GptOssForCausalLM";
  config.vocabulary = 201088;
  config.hidden = 2880;
  config.layers = layers;
  config.query_heads = 64;
  config.kv_heads = 8;
  config.head_dim = 64;
  config.ffn = 2880;
  config.context = 131072;
  config.layer_kinds = {{.window = 128}, {}};
  config.rope_theta = 150000;
  config.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                         .factor = 32,
                         .original_context = 4096,
                         .truncate = false,
                         .attention_factor = 0.1 * std::log(32.0) + 1};
  config.qkv_bias = config.attention_out_bias = true;
  config.experts = {.count = experts, .chosen = 4, .size = 2880, .renormalise = true, .limit = 7};
  config.quantization = {.method = Quantization::Method::mxfp4,
                         .plain_modules = {"model.layers.*.self_attn", "model.layers.*.mlp.router",
                                           "model.embed_tokens", "lm_head"}};
  config.eos = {200002, 199999, 200012};
  config.bos = 199998;
  return config;
}

/// Adds what follows from the architecture, so that a preset states only what its config.json does.
ModelConfig completed(ModelConfig config) {
  const Family* family = find_family(config.architecture);
  WEFT_CHECK(family != nullptr);
  complete(*family, config);
  config.qkv_bias |= family->attention_bias == Family::Bias::qkv;
  if (config.attention_multiplier == 0) {
    config.attention_multiplier = natural_attention_multiplier(config);
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
      // HuggingFaceTB/SmolLM3-3B
      {.name = "smollm3-3b",
       .architecture = "SmolLM3ForCausalLM",
       .vocabulary = 128256,
       .hidden = 2048,
       .layers = 36,
       .query_heads = 16,
       .kv_heads = 4,
       .head_dim = 128,
       .ffn = 11008,
       .context = 65536,
       .layer_kinds = {{}, {}, {}, {.rope = LayerKind::Rope::none}},
       .norm_epsilon = 1e-6,
       .rope_theta = 5000000,
       .tied_head = true,
       .eos = {128012},
       .bos = 128000},
      // google/gemma-2-2b
      {.name = "gemma-2-2b",
       .architecture = "Gemma2ForCausalLM",
       .vocabulary = 256000,
       .hidden = 2304,
       .layers = 26,
       .query_heads = 8,
       .kv_heads = 4,
       .head_dim = 256,
       .ffn = 9216,
       .context = 8192,
       .layer_kinds = {{.window = 4096}, {}},
       .norm_epsilon = 1e-6,
       .tied_head = true,
       .attention_soft_cap = 50,
       .logits_soft_cap = 30,
       .eos = {1},
       .bos = 2},
      // google/gemma-2-9b
      {.name = "gemma-2-9b",
       .architecture = "Gemma2ForCausalLM",
       .vocabulary = 256000,
       .hidden = 3584,
       .layers = 42,
       .query_heads = 16,
       .kv_heads = 8,
       .head_dim = 256,
       .ffn = 14336,
       .context = 8192,
       .layer_kinds = {{.window = 4096}, {}},
       .norm_epsilon = 1e-6,
       .tied_head = true,
       .attention_soft_cap = 50,
       .logits_soft_cap = 30,
       .eos = {1},
       .bos = 2},
      // google/gemma-3-1b-pt
      {.name = "gemma-3-1b",
       .architecture = "Gemma3ForCausalLM",
       .vocabulary = 262144,
       .hidden = 1152,
       .layers = 26,
       .query_heads = 4,
       .kv_heads = 1,
       .head_dim = 256,
       .ffn = 6912,
       .context = 32768,
       .layer_kinds = five_local_layers(512),
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .local_rope_theta = 10000,
       .tied_head = true,
       .eos = {1},
       .bos = 2},
      // google/gemma-3-4b-pt, its text part
      {.name = "gemma-3-4b",
       .architecture = "Gemma3ForCausalLM",
       .vocabulary = 262208,
       .hidden = 2560,
       .layers = 34,
       .query_heads = 8,
       .kv_heads = 4,
       .head_dim = 256,
       .ffn = 10240,
       .context = 131072,
       .layer_kinds = five_local_layers(1024),
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .rope_scaling = {.kind = RopeScaling::Kind::linear, .factor = 8},
       .local_rope_theta = 10000,
       .tied_head = true,
       .eos = {1},
       .bos = 2},
      // microsoft/Phi-3-mini-4k-instruct
      {.name = "phi-3-mini-4k",
       .architecture = "Phi3ForCausalLM",
       .vocabulary = 32064,
       .hidden = 3072,
       .layers = 32,
       .query_heads = 32,
       .kv_heads = 32,
       .head_dim = 96,
       .ffn = 8192,
       .context = 4096,
       .layer_kinds = {{.window = 2047}},
       .eos = {32000},
       .bos = 1},
      // microsoft/Phi-3-mini-128k-instruct
      {.name = "phi-3-mini-128k",
       .architecture = "Phi3ForCausalLM",
       .vocabulary = 32064,
       .hidden = 3072,
       .layers = 32,
       .query_heads = 32,
       .kv_heads = 32,
       .head_dim = 96,
       .ffn = 8192,
       .context = 131072,
       .layer_kinds = {{.window = 262144}},
       .rope_scaling = longrope_scaling(kPhi3Short, kPhi3Long),
       .eos = {32000},
       .bos = 1},
      // microsoft/phi-4
      {.name = "phi-4",
       .architecture = "Phi3ForCausalLM",
       .vocabulary = 100352,
       .hidden = 5120,
       .layers = 40,
       .query_heads = 40,
       .kv_heads = 10,
       .head_dim = 128,
       .ffn = 17920,
       .context = 16384,
       .rope_theta = 250000,
       .eos = {100265},
       .bos = 100257},
      // microsoft/Phi-4-mini-instruct
      {.name = "phi-4-mini",
       .architecture = "Phi3ForCausalLM",
       .vocabulary = 200064,
       .hidden = 3072,
       .layers = 32,
       .query_heads = 24,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 8192,
       .context = 131072,
       .layer_kinds = {{.window = 262144}},
       .rope_scaling = longrope_scaling(std::vector<double>(48, 1.0), kPhi4MiniLong),
       .partial_rotary_factor = 0.75,
       .tied_head = true,
       .eos = {199999},
       .bos = 199999},
      // bigcode/starcoder2-3b
      {.name = "starcoder2-3b",
       .architecture = "Starcoder2ForCausalLM",
       .vocabulary = 49152,
       .hidden = 3072,
       .layers = 30,
       .query_heads = 24,
       .kv_heads = 2,
       .head_dim = 128,
       .ffn = 12288,
       .context = 16384,
       .layer_kinds = {{.window = 4096}},
       .rope_theta = 999999.4420358813,
       .tied_head = true,
       .qkv_bias = true,
       .attention_out_bias = true,
       .ffn_bias = true,
       .eos = {0},
       .bos = 0},
      // bigcode/starcoder2-7b
      {.name = "starcoder2-7b",
       .architecture = "Starcoder2ForCausalLM",
       .vocabulary = 49152,
       .hidden = 4608,
       .layers = 32,
       .query_heads = 36,
       .kv_heads = 4,
       .head_dim = 128,
       .ffn = 18432,
       .context = 16384,
       .layer_kinds = {{.window = 4096}},
       .rope_theta = 1000000,
       .tied_head = true,
       .qkv_bias = true,
       .attention_out_bias = true,
       .ffn_bias = true,
       .eos = {0},
       .bos = 0},
      // mistralai/Mixtral-8x7B-v0.1
      {.name = "mixtral-8x7b",
       .architecture = "MixtralForCausalLM",
       .vocabulary = 32000,
       .hidden = 4096,
       .layers = 32,
       .query_heads = 32,
       .kv_heads = 8,
       .head_dim = 128,
       .ffn = 14336,
       .context = 32768,
       .rope_theta = 1000000,
       .experts = {.count = 8, .chosen = 2, .size = 14336, .renormalise = true},
       .eos = {2},
       .bos = 1},
      // Qwen/Qwen1.5-MoE-A2.7B
      {.name = "qwen1.5-moe-a2.7b",
       .architecture = "Qwen2MoeForCausalLM",
       .vocabulary = 151936,
       .hidden = 2048,
       .layers = 24,
       .query_heads = 16,
       .kv_heads = 16,
       .head_dim = 128,
       .ffn = 5632,
       .context = 8192,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .experts = {.count = 60, .chosen = 4, .size = 1408, .shared_size = 5632},
       .eos = {151643},
       .bos = 151643},
      // Qwen/Qwen3-30B-A3B
      {.name = "qwen3-30b-a3b",
       .architecture = "Qwen3MoeForCausalLM",
       .vocabulary = 151936,
       .hidden = 2048,
       .layers = 48,
       .query_heads = 32,
       .kv_heads = 4,
       .head_dim = 128,
       .ffn = 6144,
       .context = 40960,
       .norm_epsilon = 1e-6,
       .rope_theta = 1000000,
       .experts = {.count = 128, .chosen = 8, .size = 768, .renormalise = true},
       .eos = {151645, 151643},
       .bos = 151643},
      // allenai/OLMoE-1B-7B-0924
      {.name = "olmoe-1b-7b",
       .architecture = "OlmoeForCausalLM",
       .vocabulary = 50304,
       .hidden = 2048,
       .layers = 16,
       .query_heads = 16,
       .kv_heads = 16,
       .head_dim = 128,
       .ffn = 1024,
       .context = 4096,
       .experts = {.count = 64, .chosen = 8, .size = 1024},
       .eos = {50279}},
      gpt_oss("gpt-oss-20b", 24, 32),
      gpt_oss("gpt-oss-120b", 36, 128),
      // deepseek-ai/DeepSeek-V2-Lite
      {.name = "deepseek-v2-lite",
       .architecture = "DeepseekV2ForCausalLM",
       .vocabulary = 102400,
       .hidden = 2048,
       .layers = 27,
       .query_heads = 16,
       .kv_heads = 1,
       .head_dim = 576,
       .ffn = 10944,
       .context = 163840,
       .layer_kinds = first_dense(1, 27),
       .norm_epsilon = 1e-6,
       .rope_scaling = {.kind = RopeScaling::Kind::yarn,
                        .factor = 40,
                        .original_context = 4096,
                        .mscale_all_dim = 0.707},
       .latent = {.rank = 512, .unturned = 128, .turned = 64, .value = 128},
       .experts =
           {.count = 64, .chosen = 6, .size = 1408, .shared_size = 2816, .shared_whole = true},
       .eos = {100001},
       .bos = 100000},
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

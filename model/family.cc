#include "model/family.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace weft {
namespace {

// Source: configuration_*.py and modeling_*.py of transformers 4.57 and 5; Instella's are in the
// repository AMD-AIG-AIMA/Instella, hf_instella/.
constexpr std::array kFamilies = {
    Family{.architecture = "LlamaForCausalLM",
           .model_type = "llama",
           .attention_bias = Family::Bias::by_setting,
           .ffn_bias_key = "mlp_bias"},
    Family{.architecture = "MistralForCausalLM",
           .model_type = "mistral",
           .window = Family::Window::all_layers,
           .default_kv_heads = 8,
           .default_sliding_window = 4096},
    Family{.architecture = "Qwen2ForCausalLM",
           .model_type = "qwen2",
           .attention_bias = Family::Bias::qkv,
           .window = Family::Window::late_layers,
           .default_kv_heads = 32,
           .default_sliding_window = 4096},
    Family{.architecture = "Qwen3ForCausalLM",
           .model_type = "qwen3",
           .qk_norm = QkNorm::per_head,
           .attention_bias = Family::Bias::by_setting,
           .window = Family::Window::late_layers,
           .default_kv_heads = 32,
           .default_head_dim = 128,
           .default_sliding_window = 4096},
    Family{.architecture = "Olmo2ForCausalLM",
           .model_type = "olmo2",
           .attention_norm = "",
           .attention_out_norm = "post_attention_layernorm",
           .ffn_norm = "",
           .ffn_out_norm = "post_feedforward_layernorm",
           .qk_norm = QkNorm::whole,
           .attention_bias = Family::Bias::by_setting,
           .default_norm_epsilon = 1e-5},
    // OLMo-2's q and k norms, but its block norms stand before attention and FFN.
    Family{.architecture = "InstellaForCausalLM",
           .model_type = "instella",
           .attention_norm = "pre_attention_layernorm",
           .ffn_norm = "pre_feedforward_layernorm",
           .qk_norm = QkNorm::whole,
           .default_norm_epsilon = 1e-5},
    Family{.architecture = "GraniteForCausalLM",
           .model_type = "granite",
           .attention_bias = Family::Bias::by_setting,
           .ffn_bias_key = "mlp_bias",
           .embedding_scale = Family::EmbeddingScale::by_setting,
           .multipliers = true},
    Family{.architecture = "SmolLM3ForCausalLM",
           .model_type = "smollm3",
           .attention_bias = Family::Bias::by_setting,
           .ffn_bias_key = "mlp_bias",
           .window = Family::Window::no_rope_layers,
           .skips_rope = true,
           .default_kv_heads = 4,
           .default_rope_theta = 2000000,
           .default_tied_head = true},
    Family{.architecture = "Gemma2ForCausalLM",
           .model_type = "gemma2",
           .attention_out_norm = "post_attention_layernorm",
           .ffn_norm = "pre_feedforward_layernorm",
           .ffn_out_norm = "post_feedforward_layernorm",
           .norm_weight_offset = 1,
           .attention_bias = Family::Bias::by_setting,
           .activation = Activation::gelu_tanh,
           .activation_key = "hidden_activation",
           .window = Family::Window::interleaved,
           .window_interval = 2,
           .embedding_scale = Family::EmbeddingScale::root_of_hidden,
           .query_scalar = true,
           .soft_caps = true,
           .default_kv_heads = 4,
           .default_head_dim = 256,
           .default_sliding_window = 4096,
           .default_tied_head = true,
           .default_attention_soft_cap = 50,
           .default_logits_soft_cap = 30},
    // The text part of Gemma-3.
    Family{.architecture = "Gemma3ForCausalLM",
           .model_type = "gemma3_text",
           .attention_out_norm = "post_attention_layernorm",
           .ffn_norm = "pre_feedforward_layernorm",
           .ffn_out_norm = "post_feedforward_layernorm",
           .norm_weight_offset = 1,
           .qk_norm = QkNorm::per_head,
           .attention_bias = Family::Bias::by_setting,
           .activation = Activation::gelu_tanh,
           .activation_key = "hidden_activation",
           .window = Family::Window::interleaved,
           .window_interval = 6,
           .interval_key = "sliding_window_pattern",
           .local_rope = true,
           .embedding_scale = Family::EmbeddingScale::root_of_hidden,
           .query_scalar = true,
           .soft_caps = true,
           .default_kv_heads = 4,
           .default_head_dim = 256,
           .default_sliding_window = 4096,
           .default_rope_theta = 1000000,
           .default_tied_head = true},
    // Phi-3 and Phi-4.
    Family{.architecture = "Phi3ForCausalLM",
           .model_type = "phi3",
           .fused_projections = true,
           .window = Family::Window::all_layers,
           .partial_rotary = true,
           .default_norm_epsilon = 1e-5,
           .default_original_context = 4096},
    Family{.architecture = "Starcoder2ForCausalLM",
           .model_type = "starcoder2",
           .up_projection = "c_fc",
           .down_projection = "c_proj",
           .norm_kind = NormKind::layer,
           .norm_epsilon_key = "norm_epsilon",
           .attention_bias = Family::Bias::by_setting,
           .attention_bias_key = "use_bias",
           .ffn_bias_key = "use_bias",
           .gated_ffn = false,
           .activation = Activation::gelu_tanh,
           .window = Family::Window::all_layers,
           .default_kv_heads = 2,
           .default_norm_epsilon = 1e-5,
           .default_tied_head = true,
           .default_bias = true},
    Family{.architecture = "MixtralForCausalLM",
           .model_type = "mixtral",
           .experts = {.count_key = "num_local_experts",
                       .size_key = "intermediate_size",
                       .renormalise_key = "",
                       .default_count = 8,
                       .default_chosen = 2,
                       .module = "block_sparse_moe",
                       .gate = "w1",
                       .up = "w3",
                       .down = "w2"},
           .window = Family::Window::all_layers,
           .default_kv_heads = 8,
           .default_norm_epsilon = 1e-5,
           .default_rope_theta = 1000000},
    Family{.architecture = "Qwen2MoeForCausalLM",
           .model_type = "qwen2_moe",
           .experts = {.count_key = "num_experts",
                       .shared_size_key = "shared_expert_intermediate_size",
                       .dense_layers = true,
                       .default_count = 60,
                       .default_chosen = 4},
           .attention_bias = Family::Bias::qkv,
           .window = Family::Window::late_layers,
           .default_kv_heads = 16,
           .default_sliding_window = 4096},
    Family{.architecture = "Qwen3MoeForCausalLM",
           .model_type = "qwen3_moe",
           .experts = {.count_key = "num_experts",
                       .dense_layers = true,
                       .default_count = 128,
                       .default_chosen = 8},
           .qk_norm = QkNorm::per_head,
           .attention_bias = Family::Bias::by_setting,
           .window = Family::Window::used_by_all,
           .default_kv_heads = 4,
           .default_sliding_window = 4096},
    Family{.architecture = "OlmoeForCausalLM",
           .model_type = "olmoe",
           .experts = {.count_key = "num_experts",
                       .size_key = "intermediate_size",
                       .default_count = 64,
                       .default_chosen = 8},
           .qk_norm = QkNorm::whole,
           .attention_bias = Family::Bias::by_setting,
           .default_norm_epsilon = 1e-5},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

const Family* find_family(std::string_view architecture) {
  const auto* found = std::ranges::find(kFamilies, architecture, &Family::architecture);
  return found == kFamilies.end() ? nullptr : found;
}

void complete(const Family& family, ModelConfig& config) {
  config.norm_placement = family.norm_placement();
  config.norm_kind = family.norm_kind;
  config.norm_weight_offset = family.norm_weight_offset;
  config.qk_norm = family.qk_norm;
  config.gated_ffn = family.gated_ffn;
  config.activation = family.activation;
  if (family.embedding_scale == Family::EmbeddingScale::root_of_hidden) {
    const auto root = static_cast<float>(std::sqrt(static_cast<double>(config.hidden)));
    config.embedding_multiplier = config.dtype == DType::bf16  ? to_float(to_bf16(root))
                                  : config.dtype == DType::f16 ? to_float(to_f16(root))
                                                               : root;
  }
}

}  // namespace weft

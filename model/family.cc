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

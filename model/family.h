// The families of models Weft reads: what each class of Hugging Face transformers means by its
// config keys, and how it names and places its norms. A family is a row of data; nothing outside
// this table asks which family a model is of.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "model/config.h"

namespace weft {

struct Family {
  /// Biases on q, k, v and the attention output.
  enum class Bias {
    never,
    qkv,         ///< always on q, k and v, never on the output
    by_setting,  ///< attention_bias_key puts one on all four
  };
  /// How "sliding_window" is meant. But for the first three, "layer_types" may name the layers.
  enum class Window {
    none,            ///< the key has no meaning
    all_layers,      ///< it holds for every layer
    used_by_all,     ///< only with "use_sliding_window", for every layer
    late_layers,     ///< only with "use_sliding_window", and from layer "max_window_layers" on
    interleaved,     ///< for all but every so many'th layer: see window_interval
    no_rope_layers,  ///< only with "use_sliding_window", for layers without RoPE
  };
  /// What embeddings are multiplied by.
  enum class EmbeddingScale {
    none,
    by_setting,      ///< "embedding_multiplier"
    root_of_hidden,  ///< sqrt(hidden_size), rounded to the checkpoint's format
  };

  /// Experts: the keys that say how many there are and of what size, and their tensors' names.
  struct Mixture {
    std::string_view count_key = "";  ///< empty: the family has none
    std::string_view size_key = "moe_intermediate_size";
    std::string_view renormalise_key = "norm_topk_prob";  ///< empty: they always are
    std::string_view shared_size_key = "";                ///< empty: there is no shared expert
    bool dense_layers = false;  ///< "mlp_only_layers" and "decoder_sparse_step" are read
    /// DeepSeek's keys: "n_shared_experts" makes one of so many times the size that counts whole,
    /// "first_k_dense_replace" layers have no experts, weights are scaled, groups are told.
    bool deepseek = false;
    /// Of those: sigmoids, a correction, groups as good as their best two; otherwise a softmax and,
    /// where "topk_method" says so, groups as good as their best one.
    bool sigmoid = false;
    bool biases = false;  ///< of the router and the experts
    bool mxfp4 = false;   ///< experts come in MXFP4, all in one tensor, gate and up by turns
    double limit = 0;     ///< Experts::limit, unless "swiglu_limit" says otherwise
    int64_t default_count = 0, default_chosen = 0;
    std::string_view module = "mlp";
    std::string_view router = "gate";
    std::string_view shared = "shared_expert";
    std::string_view gate = "gate_proj", up = "up_proj", down = "down_proj";
  };

  std::string_view architecture;  ///< "architectures" in config.json
  std::string_view model_type;

  // Tensor names in a layer; empty: there is none.
  std::string_view attention_norm = "input_layernorm";
  std::string_view attention_out_norm = "";
  std::string_view ffn_norm = "post_attention_layernorm";
  std::string_view ffn_out_norm = "";
  std::string_view up_projection = "up_proj";
  std::string_view down_projection = "down_proj";
  Mixture experts = {};
  /// q, k and v are one matrix, "qkv_proj", and gate and up another, "gate_up_proj".
  bool fused_projections = false;

  NormKind norm_kind = NormKind::rms;
  double norm_weight_offset = 0;
  std::string_view norm_epsilon_key = "rms_norm_eps";
  QkNorm qk_norm = QkNorm::none;
  bool latent = false;  ///< attention is over latent rows: the keys of LatentAttention are read
  bool sinks = false;

  Bias attention_bias = Bias::never;
  std::string_view attention_bias_key = "attention_bias";
  std::string_view ffn_bias_key = "";  ///< empty: no bias
  bool gated_ffn = true;
  Activation activation = Activation::silu;
  std::string_view activation_key = "hidden_act";

  Window window = Window::none;
  int64_t window_interval = 0;         ///< every so many'th layer sees all keys
  std::string_view interval_key = "";  ///< what may say otherwise; empty: nothing
  bool local_rope = false;             ///< sliding layers have a RoPE of their own
  bool skips_rope = false;             ///< "no_rope_layers" is read
  bool partial_rotary = false;         ///< "partial_rotary_factor" is read
  EmbeddingScale embedding_scale = EmbeddingScale::none;
  bool multipliers = false;   ///< Granite's other three
  bool query_scalar = false;  ///< scale is "query_pre_attn_scalar"^-1/2
  bool soft_caps = false;

  // What an absent key means.
  int64_t default_kv_heads = 0;        ///< 0: as many as query heads
  int64_t default_head_dim = 0;        ///< 0: hidden_size / num_attention_heads
  int64_t default_sliding_window = 0;  ///< 0: none
  double default_norm_epsilon = 1e-6;
  double default_rope_theta = 10000;
  int64_t default_original_context = 0;  ///< 0: max_position_embeddings
  bool default_tied_head = false;
  bool default_bias = false;  ///< of attention_bias_key and ffn_bias_key
  double default_attention_soft_cap = 0;
  double default_logits_soft_cap = 0;

  constexpr NormPlacement norm_placement() const {
    return attention_norm.empty()       ? NormPlacement::after
           : attention_out_norm.empty() ? NormPlacement::before
                                        : NormPlacement::around;
  }
};

std::span<const Family> families();

/// Null when the architecture is not known.
const Family* find_family(std::string_view architecture);

/// Sets what follows from the family and the fields of config that say sizes and format.
void complete(const Family& family, ModelConfig& config);

}  // namespace weft

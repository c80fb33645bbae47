// What a model is, read from Hugging Face's config.json or taken from a preset of public configs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/activation.h"
#include "base/number.h"
#include "base/result.h"
#include "base/scaling.h"

namespace weft {

/// How rotary frequencies are rescaled for contexts longer than the model was trained on.
struct RopeScaling {
  enum class Kind { none, linear, llama3, yarn, longrope };
  Kind kind = Kind::none;
  double factor = 1;                 ///< linear, llama3, yarn
  double low_frequency_factor = 1;   ///< llama3
  double high_frequency_factor = 4;  ///< llama3
  int64_t original_context = 0;      ///< llama3, yarn, longrope: positions of the first training
  // YaRN (Peng et al. 2023): frequencies that turn more than beta_fast times in the original
  // context stay, those that turn less than beta_slow times are divided by the factor.
  double beta_fast = 32;
  double beta_slow = 1;
  bool truncate = true;  ///< to whole frequencies between which there is a ramp
  /// LongRoPE (Ding et al. 2024): [rotary_dim / 2]: what frequencies are divided by, in sequences
  /// of up to original_context tokens and in longer ones.
  std::vector<double> short_factors = {};
  std::vector<double> long_factors = {};
  double attention_factor = 1;  ///< yarn, longrope: cosines and sines are multiplied by it
  /// yarn: what else DeepSeek's scores are sharpened by; 0: nothing. See ModelConfig::latent.
  double mscale_all_dim = 0;

  bool operator==(const RopeScaling&) const = default;
};

/// What tells one layer's attention from another's.
struct LayerKind {
  /// How queries and keys are told their positions: not at all, by the model's RoPE, or by the RoPE
  /// of local layers (ModelConfig::local_rope_theta).
  enum class Rope : uint8_t { none, model, local };
  int64_t window = 0;  ///< keys a query sees, itself included; 0: all
  Rope rope = Rope::model;
  bool dense = false;  ///< of a model with experts: the FFN is one (ModelConfig::ffn)

  bool operator==(const LayerKind&) const = default;
};

/// A mixture of experts in the place of an FFN (Shazeer et al. 2017): FFNs of which a router draws
/// a few for each token, whose outputs are summed by the softmax of the router's logits, or by each
/// logit's sigmoid.
struct Experts {
  int64_t count = 0;          ///< 0: FFNs are one
  int64_t chosen = 0;         ///< for a token
  int64_t size = 0;           ///< what lies between an expert's products
  bool renormalise = false;   ///< weights are divided by the sum of the chosen ones'
  int64_t shared_size = 0;    ///< of the expert that every token has, times a sigmoid; 0: none
  bool shared_whole = false;  ///< that expert counts whole, without a router of its own
  bool sigmoid = false;       ///< a weight is its logit's sigmoid, not their softmax
  bool correction = false;    ///< a bias is added to the sigmoids by which experts are chosen
  /// Experts are of so many groups, and chosen from the best `kept_groups` of them (DeepSeek-V2): a
  /// group is as good as its best expert or, with a correction, its best two together.
  int64_t groups = 1;
  int64_t kept_groups = 1;
  double scale = 1;     ///< of all weights
  bool biases = false;  ///< the router and all experts' products have biases
  double limit = 0;     ///< SwiGLU is clamped as ExpertsUpArgs::limit says; 0: it is not

  bool operator==(const Experts&) const = default;
};

/// Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads are products of
/// one latent row of a position, which is what is cached, with a part of the key that RoPE turns
/// and that heads share.
struct LatentAttention {
  int64_t rank = 0;  ///< elements of the latent ("kv_lora_rank"); 0: keys and values are cached
  int64_t query_rank = 0;  ///< of what queries are made from ("q_lora_rank"); 0: from the input
  int64_t unturned = 0;    ///< elements of a head's query and key without RoPE ("qk_nope_head_dim")
  int64_t turned = 0;      ///< and with it, in pairs of neighbours ("qk_rope_head_dim")
  int64_t value = 0;       ///< of a head's value ("v_head_dim")

  bool operator==(const LatentAttention&) const = default;
};

/// Of the norms of latents, whatever the others' is.
inline constexpr double kLatentNormEpsilon = 1e-6;

/// Where a layer's norms stand: before attention and FFN (Llama), on their outputs, before these
/// are added to the residual (OLMo-2), or both (Gemma-2).
enum class NormPlacement { before, after, around };

/// RMS norms, or LayerNorms, which have biases.
enum class NormKind { rms, layer };

/// RMS norm on queries and keys before RoPE: none, over each head (Qwen3), or over the whole
/// projection (OLMo-2).
enum class QkNorm { none, per_head, whole };

/// How a checkpoint stores the matrices of its products in eight bits ("quantization_config"):
/// codes in e4m3fn, and scales that they are multiplied with; or its experts in four (base/mx.h).
struct Quantization {
  enum class Method : uint8_t {
    none,
    fp8,                 ///< DeepSeek-V3, Qwen3-FP8: blocks of 128 x 128
    fbgemm_fp8,          ///< Llama-3.1-405B-FP8: rows
    compressed_tensors,  ///< any
    mxfp4                ///< gpt-oss: experts alone
  };
  Method method = Method::none;
  Scaling weights = Scaling::none;
  /// How activations are quantised that meet such weights, if the checkpoint's rule is followed.
  /// Scaling::tensor: each matrix has a scale of its own for them.
  Fp8Rounding activations = {};
  /// Modules whose weights are plain, as the checkpoint writes them: names, or parts of names
  /// between dots; of compressed-tensors also expressions ("re:..."). What a file has decides.
  std::vector<std::string> plain_modules = {};

  /// Whether a matrix ("model.layers.0.mlp.up_proj.weight") is stored so. Expressions match
  /// nothing.
  bool converts(std::string_view weight) const;

  bool operator==(const Quantization&) const = default;
};

/// One decoder-only transformer: RoPE, grouped-query attention, an FFN. layer.h says it layer by
/// layer.
struct ModelConfig {
  std::string name;          ///< preset name or directory, for messages
  std::string architecture;  ///< "LlamaForCausalLM", ...
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;      ///< of layers without experts
  int64_t context = 0;  ///< positions the model was made for (max_position_embeddings)
  /// Layer i is of kind i modulo their number, which is the smallest that says it.
  std::vector<LayerKind> layer_kinds = {{}};
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  double local_rope_theta = 0;       ///< of layers with LayerKind::Rope::local; never scaled
  double partial_rotary_factor = 1;  ///< the part of each head that RoPE turns, from its beginning
  NormPlacement norm_placement = NormPlacement::before;
  NormKind norm_kind = NormKind::rms;
  double norm_weight_offset = 0;  ///< added to the stored weights of norms: 1 for Gemma
  QkNorm qk_norm = QkNorm::none;
  /// Where rank is not 0, attention is that over latent rows: there is one KV head, of rank +
  /// turned elements, queries are multiplied into its space, and its first `rank` elements are
  /// values.
  LatentAttention latent = {};
  bool sinks = false;  ///< each query head has a logit of its own that joins the softmax (gpt-oss)
  Experts experts = {};
  int64_t ignored_layers =
      0;                   ///< in the checkpoint behind the others: what predicts further tokens
  bool tied_head = false;  ///< the head is the embedding table
  bool qkv_bias = false;   ///< q, k and v projections have a bias
  bool attention_out_bias = false;
  bool ffn_bias = false;
  bool gated_ffn = true;  ///< down(f(gate) up), otherwise down(f(up))
  Activation activation = Activation::silu;
  double attention_soft_cap = 0;  ///< of scores: c tanh(score / c); 0: none
  double logits_soft_cap = 0;
  // Granite's four multipliers; 1 (and head_dim^-1/2 for attention) elsewhere.
  double embedding_multiplier = 1;
  double attention_multiplier = 0;  ///< scale of q.k; always set
  double residual_multiplier = 1;
  double logits_divisor = 1;  ///< logits are divided by it
  DType dtype = DType::bf16;  ///< format that new-model writes (torch_dtype); files may differ
  Quantization quantization = {};
  std::vector<int32_t> eos = {};  ///< generation stops at these (generation_config.json wins)
  int32_t bos = -1;               ///< -1: none

  int64_t query_size() const { return query_heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }
  /// Elements that attention hands to its output projection.
  int64_t attended_size() const {
    return latent.rank > 0 ? query_heads * latent.value : query_size();
  }
  /// Elements that a layer's cache has of a position.
  int64_t cached_size() const { return latent.rank > 0 ? head_dim : 2 * kv_size(); }
  int64_t rotary_dim() const {
    if (latent.rank > 0) {
      return latent.turned;
    }
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);
  }
  bool has_experts(int64_t layer) const { return experts.count > 0 && !layer_kind(layer).dense; }
  const LayerKind& layer_kind(int64_t layer) const {
    return layer_kinds[static_cast<size_t>(layer) % layer_kinds.size()];
  }

  bool operator==(const ModelConfig&) const = default;
};

/// Reads DIR/config.json and, when there, DIR/generation_config.json.
/// Errors (input): missing or malformed file, unknown architecture (known ones are listed), a field
/// that is missing, negative, absurd or contradicts another; the sentence names file, field, value.
Result<ModelConfig> read_config(const std::filesystem::path& directory);

/// The same from text; `file` is for messages.
Result<ModelConfig> parse_config(std::string_view json, const std::string& file);

/// config.json's text for a config, such that parse_config gives it back and transformers loads it.
std::string write_config(const ModelConfig& config);

/// The scale of q.k where nothing says otherwise: the heads' size^-1/2, times YaRN's mscale squared
/// where RopeScaling::mscale_all_dim says so.
double natural_attention_multiplier(const ModelConfig& config);

/// Preset of a public config by name ("llama-3.2-1b"). Error (usage): unknown name, lists those
/// known.
Result<ModelConfig> preset(std::string_view name);
std::vector<std::string> preset_names();

/// Architectures read_config knows ("LlamaForCausalLM", ...).
std::vector<std::string> known_architectures();

}  // namespace weft

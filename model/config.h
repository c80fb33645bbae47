// What a model is, read from Hugging Face's config.json or taken from a preset of public configs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/number.h"
#include "base/result.h"

namespace weft {

/// How rotary frequencies are rescaled for contexts longer than the model was trained on.
struct RopeScaling {
  enum class Kind { none, linear, llama3 };
  Kind kind = Kind::none;
  double factor = 1;
  double low_frequency_factor = 1;   ///< llama3 only
  double high_frequency_factor = 4;  ///< llama3 only
  int64_t original_context = 0;      ///< llama3 only: positions of the original training

  bool operator==(const RopeScaling&) const = default;
};

/// Where a block's two RMS norms stand: before attention and FFN (Llama) or on their outputs,
/// before these are added to the residual (OLMo-2).
enum class NormPlacement { before, after };

/// RMS norm on queries and keys before RoPE: none, over each head (Qwen3), or over the whole
/// projection (OLMo-2).
enum class QkNorm { none, per_head, whole };

/// One decoder-only transformer: RMSNorm, RoPE, grouped-query attention, SwiGLU.
struct ModelConfig {
  std::string name;          ///< preset name or directory, for messages
  std::string architecture;  ///< "LlamaForCausalLM", ...
  int64_t vocabulary = 0;
  int64_t hidden = 0;
  int64_t layers = 0;
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t context = 0;         ///< positions the model was made for (max_position_embeddings)
  int64_t sliding_window = 0;  ///< keys a query sees, itself included; 0: all
  double norm_epsilon = 1e-5;
  double rope_theta = 10000;
  RopeScaling rope_scaling = {};
  NormPlacement norm_placement = NormPlacement::before;
  QkNorm qk_norm = QkNorm::none;
  bool tied_head = false;  ///< the head is the embedding table
  bool qkv_bias = false;   ///< q, k and v projections have a bias
  bool attention_out_bias = false;
  bool ffn_bias = false;
  // Granite's four multipliers; 1 (and head_dim^-1/2 for attention) elsewhere.
  double embedding_multiplier = 1;
  double attention_multiplier = 0;  ///< scale of q.k; always set
  double residual_multiplier = 1;
  double logits_divisor = 1;      ///< logits are divided by it
  DType dtype = DType::bf16;      ///< format that new-model writes (torch_dtype); files may differ
  std::vector<int32_t> eos = {};  ///< generation stops at these (generation_config.json wins)
  int32_t bos = -1;               ///< -1: none

  int64_t query_size() const { return query_heads * head_dim; }
  int64_t kv_size() const { return kv_heads * head_dim; }

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

/// Preset of a public config by name ("llama-3.2-1b"). Error (usage): unknown name, lists those
/// known.
Result<ModelConfig> preset(std::string_view name);
std::vector<std::string> preset_names();

/// Architectures read_config knows ("LlamaForCausalLM", ...).
std::vector<std::string> known_architectures();

}  // namespace weft

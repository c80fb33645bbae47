// A model layer by layer: what mixes tokens, what works on each by itself, and the norms about
// them. The planner weaves each layer by its own description; ModelConfig is what they are read
// from.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config.h"

namespace weft {

/// Rotary position embedding, as some of a model's layers have it.
struct RopeSpec {
  double theta = 10000;
  RopeScaling scaling = {};
  int64_t dim = 0;  ///< elements of a head that turn, from its beginning; even

  bool operator==(const RopeSpec&) const = default;
};

/// The kinds of RoPE of a model's layers, at most two: the model's and that of local layers.
std::vector<RopeSpec> ropes(const ModelConfig& config);

/// Frequencies [dim / 2] in f32, scaled as RopeSpec::scaling says for a sequence of `length` tokens
/// in all. Only LongRoPE asks for the length.
std::vector<float> inverse_frequencies(const RopeSpec& rope, int64_t length);
/// Those of all ropes(), one after the other.
std::vector<float> inverse_frequencies(const ModelConfig& config, int64_t length);

inline constexpr int kNoRope = -1;

/// Grouped-query attention over a KV cache; of latent rows (ModelConfig::latent) with rank > 0.
struct AttentionSpec {
  int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;  ///< keys a query sees, itself included; 0: all
  int rope = 0;        ///< which of ropes(); kNoRope: queries and keys are not turned
  double scale = 1;    ///< of q.k
  double soft_cap = 0;
  QkNorm qk_norm = QkNorm::none;
  LatentAttention latent = {};
  bool sinks = false;
};

struct FfnSpec {
  int64_t size = 0;  ///< of what lies between its products; an expert's where there are some
  bool gated = true;
  Activation activation = Activation::silu;
  Experts experts = {};  ///< count 0: none
};

struct NormSpec {
  NormKind kind = NormKind::rms;
  double epsilon = 1e-5;
  double weight_offset = 0;
};

struct LayerSpec {
  AttentionSpec attention;
  FfnSpec ffn;
  NormSpec norm;  ///< all of the layer's
  NormPlacement norm_placement = NormPlacement::before;
  double residual_scale = 1;  ///< of a block's output when it is added to the residual

  bool norms_inputs() const { return norm_placement != NormPlacement::after; }
  bool norms_outputs() const { return norm_placement != NormPlacement::before; }
};

LayerSpec layer_spec(const ModelConfig& config, int64_t layer);

}  // namespace weft

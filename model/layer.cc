#include "model/layer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace weft {
namespace {

bool has(const ModelConfig& config, LayerKind::Rope rope) {
  return std::ranges::any_of(config.layer_kinds,
                             [&](const LayerKind& kind) { return kind.rope == rope; });
}

/// Wavelengths beyond the original context are stretched, those well within it stay.
float llama3_frequency(float frequency, const RopeScaling& scaling) {
  const auto factor = static_cast<float>(scaling.factor);
  const auto original = static_cast<float>(scaling.original_context);
  const auto low = static_cast<float>(scaling.low_frequency_factor);
  const auto high = static_cast<float>(scaling.high_frequency_factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;
  if (wavelength > original / low) {
    return frequency / factor;
  }
  if (wavelength >= original / high) {
    const float smooth = (original / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
  }
  return frequency;
}

/// Where YaRN's ramp begins and ends: the frequencies that turn beta_fast and beta_slow times.
struct Ramp {
  double low, high;
};
Ramp yarn_ramp(const RopeSpec& rope) {
  const RopeScaling& scaling = rope.scaling;
  const auto dim = static_cast<double>(rope.dim);
  const auto place = [&](double turns) {
    const double most = static_cast<double>(scaling.original_context);
    return dim * std::log(most / (turns * 2 * std::numbers::pi)) / (2 * std::log(rope.theta));
  };
  Ramp ramp{place(scaling.beta_fast), place(scaling.beta_slow)};
  if (scaling.truncate) {
    ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  }
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, dim - 1)};
  if (ramp.low == ramp.high) {
    ramp.high += 0.001;  // transformers' way to have no division by zero
  }
  return ramp;
}

}  // namespace

double natural_attention_multiplier(const ModelConfig& config) {
  const LatentAttention& latent = config.latent;
  const int64_t dim = latent.rank > 0 ? latent.unturned + latent.turned : config.head_dim;
  const RopeScaling& scaling = config.rope_scaling;
  const double mscale = scaling.mscale_all_dim > 0 && scaling.factor > 1
                            ? 0.1 * scaling.mscale_all_dim * std::log(scaling.factor) + 1
                            : 1;
  return mscale * mscale / std::sqrt(static_cast<double>(dim));
}

std::vector<RopeSpec> ropes(const ModelConfig& config) {
  // A model without any keeps its own: programs begin with angles.
  std::vector<RopeSpec> result;
  if (has(config, LayerKind::Rope::model) || !has(config, LayerKind::Rope::local)) {
    result.push_back({config.rope_theta, config.rope_scaling, config.rotary_dim()});
  }
  if (has(config, LayerKind::Rope::local)) {
    result.push_back({config.local_rope_theta, {}, config.rotary_dim()});
  }
  return result;
}

std::vector<float> inverse_frequencies(const RopeSpec& rope, int64_t length) {
  const RopeScaling& scaling = rope.scaling;
  const int64_t half = rope.dim / 2;
  const Ramp ramp = scaling.kind == RopeScaling::Kind::yarn ? yarn_ramp(rope) : Ramp{};
  const auto& factors =
      length > scaling.original_context ? scaling.long_factors : scaling.short_factors;
  std::vector<float> result(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    // In f32 step by step, as transformers computes them: checkpoints were trained with these.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.dim);
    const auto power = static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    const float frequency = 1.0f / power;
    float& scaled = result[static_cast<size_t>(i)];
    switch (scaling.kind) {
      case RopeScaling::Kind::none:
        scaled = frequency;
        break;
      case RopeScaling::Kind::linear:
        scaled = frequency / static_cast<float>(scaling.factor);
        break;
      case RopeScaling::Kind::llama3:
        scaled = llama3_frequency(frequency, scaling);
        break;
      case RopeScaling::Kind::yarn: {
        const auto at = (static_cast<float>(i) - static_cast<float>(ramp.low)) /
                        static_cast<float>(ramp.high - ramp.low);
        const float kept = 1 - std::clamp(at, 0.0f, 1.0f);
        const float stretched = 1.0f / (static_cast<float>(scaling.factor) * power);
        scaled = stretched * (1 - kept) + frequency * kept;
        break;
      }
      case RopeScaling::Kind::longrope:
        scaled = 1.0f / (static_cast<float>(factors[static_cast<size_t>(i)]) * power);
        break;
    }
  }
  return result;
}

std::vector<float> inverse_frequencies(const ModelConfig& config, int64_t length) {
  std::vector<float> all;
  for (const RopeSpec& rope : ropes(config)) {
    const std::vector<float> one = inverse_frequencies(rope, length);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

LayerSpec layer_spec(const ModelConfig& config, int64_t layer) {
  const LayerKind& kind = config.layer_kind(layer);
  LayerSpec spec;
  AttentionSpec& attention = spec.attention;
  attention.query_heads = config.query_heads;
  attention.kv_heads = config.kv_heads;
  attention.head_dim = config.head_dim;
  attention.latent = config.latent;
  attention.sinks = config.sinks;
  attention.window = kind.window;
  attention.scale = config.attention_multiplier;
  attention.soft_cap = config.attention_soft_cap;
  attention.qk_norm = config.qk_norm;
  attention.rope = kind.rope == LayerKind::Rope::none ? kNoRope
                   : kind.rope == LayerKind::Rope::model
                       ? 0
                       : static_cast<int>(ropes(config).size()) - 1;
  spec.ffn = {config.ffn, config.gated_ffn, config.activation};
  if (config.has_experts(layer)) {
    spec.ffn.size = config.experts.size;
    spec.ffn.experts = config.experts;
  }
  spec.norm = {config.norm_kind, config.norm_epsilon, config.norm_weight_offset};
  spec.norm_placement = config.norm_placement;
  spec.residual_scale = config.residual_multiplier;
  return spec;
}

}  // namespace weft

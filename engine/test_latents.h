// A small model whose attention is over latent rows, which tests run on a device and on the CPU.
#pragma once

#include <string_view>

#include "model/config.h"
#include "model/quantization.h"

namespace weft {

/// Latent rows of the size that mla_decode takes; experts drawn as DeepSeek-V2's or, where weights
/// are in eight bits ("fp8-block", of several blocks of scales; otherwise "bf16"), as V3's.
inline ModelConfig latent_config(std::string_view weights) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  config.hidden = 136;
  config.query_heads = 3;
  config.latent.unturned = config.latent.value = 128;
  config.ffn = 64;
  config.vocabulary = 96;
  config.context = 160;
  Experts& experts = config.experts;
  experts.count = 12;
  experts.chosen = 3;
  experts.size = 144;
  experts.shared_size = 40;
  experts.groups = 4;
  experts.kept_groups = 2;
  experts.scale = 2.5;
  if (weights != "bf16") {
    config.latent.query_rank = 72;
    experts.sigmoid = experts.correction = experts.renormalise = true;
    config.quantization = quantization_of(weights).value();
  }
  return config;
}

}  // namespace weft

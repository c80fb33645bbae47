// A small model whose attention is over latent rows, which tests run on a device and on the CPU.
#pragma once

#include <string_view>

#include "model/config.h"
#include "model/quantization.h"

namespace weft {

/// Latent rows of the size that mla_decode takes; experts and queries as DeepSeek-V2's ("bf16"), or
/// as V3's ("v3-bf16", or "fp8-block": in eight bits, of several blocks of scales).
inline ModelConfig latent_config(std::string_view kind) {
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
  if (kind != "bf16") {
    config.latent.query_rank = 72;
    experts.sigmoid = experts.correction = experts.renormalise = true;
  }
  if (kind == "fp8-block") {
    config.quantization = quantization_of(kind).value();
  }
  return config;
}

/// DeepSeek-V2-Lite becomes as V3 is, but for weights in bf16: drawn by groups, queries by way of a
/// latent of their own.
inline void make_like_v3(ModelConfig& config) {
  config.latent.query_rank = 1536;
  config.query_heads = 20;
  Experts& experts = config.experts;
  experts.sigmoid = experts.correction = experts.renormalise = true;
  experts.groups = 8;
  experts.kept_groups = 4;
  experts.scale = 2.5;
}

}  // namespace weft

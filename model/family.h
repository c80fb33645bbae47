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
    by_setting,  ///< "attention_bias" puts one on all four
  };
  /// How "sliding_window" is meant.
  enum class Window {
    none,         ///< the key has no meaning
    all_layers,   ///< it holds for every layer
    late_layers,  ///< only with "use_sliding_window", and from layer "max_window_layers" on
  };

  std::string_view architecture;  ///< "architectures" in config.json
  std::string_view model_type;

  std::string_view attention_norm = "input_layernorm";  ///< tensor names in a layer
  std::string_view ffn_norm = "post_attention_layernorm";
  NormPlacement norm_placement = NormPlacement::before;
  QkNorm qk_norm = QkNorm::none;

  Bias attention_bias = Bias::never;
  bool ffn_bias_setting = false;  ///< "mlp_bias" is read
  Window window = Window::none;
  bool multipliers = false;  ///< Granite's four

  // What an absent key means.
  int64_t default_kv_heads = 0;        ///< 0: as many as query heads
  int64_t default_head_dim = 0;        ///< 0: hidden_size / num_attention_heads
  int64_t default_sliding_window = 0;  ///< 0: none
  double default_norm_epsilon = 1e-6;
};

std::span<const Family> families();

/// Null when the architecture is not known.
const Family* find_family(std::string_view architecture);

}  // namespace weft

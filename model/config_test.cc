#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/json.h"
#include "model/test_files.h"

namespace weft {
namespace {

using nlohmann::json;

json small_llama() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "hidden_act": "silu", "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "torch_dtype": "float32", "bos_token_id": 1, "eos_token_id": 2})");
}

json small(const std::string& architecture, const std::string& model_type) {
  json config = small_llama();
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  return config;
}

ModelConfig parse(const json& config) {
  auto result = parse_config(config.dump(), "config.json");
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : ModelConfig{};
}

std::string error_of(const std::string& text) {
  auto result = parse_config(text, "config.json");
  if (result.ok()) {
    return "accepted";
  }
  EXPECT_EQ(result.error().kind, ErrorKind::input);
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}

std::string error_of(const json& config) { return error_of(config.dump()); }

/// The error after one field of the small model was changed.
std::string error_with(const std::string& key, const json& value) {
  json config = small_llama();
  config[key] = value;
  return error_of(config);
}

/// Of the repeated kinds of layers.
std::vector<int64_t> windows(const ModelConfig& config) {
  std::vector<int64_t> result;
  for (const LayerKind& kind : config.layer_kinds) {
    result.push_back(kind.window);
  }
  return result;
}

TEST(Config, Llama) {
  const ModelConfig config = parse(small_llama());
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocabulary, 100);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.query_heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.ffn, 96);
  EXPECT_EQ(config.context, 512);
  EXPECT_EQ(config.layer_kinds, (std::vector<LayerKind>{{}}));
  EXPECT_EQ(config.norm_epsilon, 1e-5);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(config.norm_placement, NormPlacement::before);
  EXPECT_EQ(config.qk_norm, QkNorm::none);
  EXPECT_FALSE(config.tied_head);
  EXPECT_FALSE(config.qkv_bias || config.attention_out_bias || config.ffn_bias);
  EXPECT_EQ(config.embedding_multiplier, 1);
  EXPECT_EQ(config.attention_multiplier, 0.25);
  EXPECT_EQ(config.residual_multiplier, 1);
  EXPECT_EQ(config.logits_divisor, 1);
  EXPECT_EQ(config.dtype, DType::f32);
  EXPECT_EQ(config.bos, 1);
  EXPECT_EQ(config.eos, std::vector<int32_t>{2});
}

TEST(Config, LlamaSettings) {
  json text = small_llama();
  text["attention_bias"] = true;
  text["mlp_bias"] = true;
  text["tie_word_embeddings"] = true;
  text["head_dim"] = 24;
  text["eos_token_id"] = {7, 8};
  text["bos_token_id"] = nullptr;
  text["num_key_value_heads"] = nullptr;
  text["dtype"] = "bfloat16";  // wins over torch_dtype
  const ModelConfig config = parse(text);
  EXPECT_TRUE(config.qkv_bias && config.attention_out_bias && config.ffn_bias);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.head_dim, 24);
  EXPECT_EQ(config.kv_heads, 4);
  EXPECT_EQ(config.eos, (std::vector<int32_t>{7, 8}));
  EXPECT_EQ(config.bos, -1);
  EXPECT_EQ(config.dtype, DType::bf16);
}

TEST(Config, RopeInBothSpellings) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 128}};
  json older = small_llama();
  older["rope_theta"] = 500000.0;
  older["rope_scaling"] = llama3;
  json newer = small_llama();
  newer["rope_parameters"] = llama3;
  newer["rope_parameters"]["rope_theta"] = 500000.0;
  const ModelConfig config = parse(older);
  EXPECT_EQ(config, parse(newer));
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.rope_scaling.low_frequency_factor, 1);
  EXPECT_EQ(config.rope_scaling.high_frequency_factor, 4);
  EXPECT_EQ(config.rope_scaling.original_context, 128);

  json linear = small_llama();
  linear["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  EXPECT_EQ(parse(linear).rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(parse(linear).rope_scaling.factor, 2.5);

  json plain = small_llama();
  plain["rope_parameters"] = {{"rope_theta", 20000}, {"rope_type", "default"}};
  EXPECT_EQ(parse(plain).rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(parse(plain).rope_theta, 20000);

  json no_original = older;
  no_original["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(parse(no_original).rope_scaling.original_context, 512);
}

TEST(Config, Mistral) {
  json text = small("MistralForCausalLM", "mistral");
  text["head_dim"] = 32;
  text["sliding_window"] = 128;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{128}));
  EXPECT_EQ(parse(text).head_dim, 32);
  text["sliding_window"] = nullptr;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0}));
  text.erase("sliding_window");
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{4096}));
  text["num_attention_heads"] = 16;
  text.erase("num_key_value_heads");
  EXPECT_EQ(parse(text).kv_heads, 8);
}

TEST(Config, Qwen2) {
  json text = small("Qwen2ForCausalLM", "qwen2");
  text["sliding_window"] = 128;
  ModelConfig config = parse(text);
  EXPECT_TRUE(config.qkv_bias);
  EXPECT_FALSE(config.attention_out_bias);
  EXPECT_EQ(config.layer_kinds, (std::vector<LayerKind>{{}}));  // use_sliding_window is off
  text["use_sliding_window"] = true;
  text["max_window_layers"] = 2;  // no layer is that late
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0}));
  text["max_window_layers"] = 0;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{128}));
  text["max_window_layers"] = 1;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0, 128}));
  text["layer_types"] = {"sliding_attention", "sliding_attention"};
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{128}));
  text["layer_types"] = {"full_attention", "full_attention"};
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0}));
  text["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{128, 0}));
  text["layer_types"] = {"linear_attention", "full_attention"};
  EXPECT_NE(error_of(text).find("layer_types is"), std::string::npos);
  text["layer_types"] = {"full_attention"};
  EXPECT_NE(error_of(text).find("a list of 2 names"), std::string::npos);
  text["layer_types"] = {"sliding_attention", "sliding_attention"};
  text["use_sliding_window"] = false;
  EXPECT_NE(error_of(text).find("set no window"), std::string::npos);
}

TEST(Config, Qwen3) {
  json text = small("Qwen3ForCausalLM", "qwen3");
  EXPECT_EQ(parse(text).qk_norm, QkNorm::per_head);
  EXPECT_EQ(parse(text).head_dim, 128);  // not hidden / heads
  EXPECT_FALSE(parse(text).qkv_bias);
  text["head_dim"] = 16;
  text["attention_bias"] = true;
  EXPECT_EQ(parse(text).head_dim, 16);
  EXPECT_TRUE(parse(text).qkv_bias && parse(text).attention_out_bias);
}

TEST(Config, Olmo2AndInstella) {
  json text = small("Olmo2ForCausalLM", "olmo2");
  text.erase("rms_norm_eps");
  EXPECT_EQ(parse(text).norm_placement, NormPlacement::after);
  EXPECT_EQ(parse(text).qk_norm, QkNorm::whole);
  EXPECT_EQ(parse(text).norm_epsilon, 1e-5);
  text = small("InstellaForCausalLM", "instella");
  EXPECT_EQ(parse(text).norm_placement, NormPlacement::before);
  EXPECT_EQ(parse(text).qk_norm, QkNorm::whole);
}

TEST(Config, Granite) {
  json text = small("GraniteForCausalLM", "granite");
  EXPECT_EQ(parse(text).attention_multiplier, 1);  // transformers' default, not head_dim^-1/2
  text["attention_multiplier"] = 0.015625;
  text["embedding_multiplier"] = 12;
  text["residual_multiplier"] = 0.22;
  text["logits_scaling"] = 8;
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.attention_multiplier, 0.015625);
  EXPECT_EQ(config.embedding_multiplier, 12);
  EXPECT_EQ(config.residual_multiplier, 0.22);
  EXPECT_EQ(config.logits_divisor, 8);
  // The keys mean nothing to another family.
  text["architectures"] = {"LlamaForCausalLM"};
  text["model_type"] = "llama";
  EXPECT_EQ(parse(text).embedding_multiplier, 1);
}

TEST(Config, SmolLM3) {
  json text = small("SmolLM3ForCausalLM", "smollm3");
  text["num_hidden_layers"] = 8;
  using Rope = LayerKind::Rope;
  const std::vector<LayerKind> every_fourth = {{}, {}, {}, {.rope = Rope::none}};
  EXPECT_EQ(parse(text).layer_kinds, every_fourth);
  EXPECT_EQ(parse(text).rope_theta, 2000000);
  EXPECT_TRUE(parse(text).tied_head);
  text["no_rope_layer_interval"] = 2;
  EXPECT_EQ(parse(text).layer_kinds, (std::vector<LayerKind>{{}, {.rope = Rope::none}}));
  text["no_rope_layers"] = {1, 1, 1, 0, 1, 1, 1, 0};
  EXPECT_EQ(parse(text).layer_kinds, every_fourth);
  text["use_sliding_window"] = true;
  text["sliding_window"] = 64;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0, 0, 0, 64}));
  for (const json& bad : {json(4), json({1, 0}), json({1, 1, 1, 2, 1, 1, 1, 0}),
                          json({1, 1, 1, 1, 1, 1, 1, 1, 1}), json({1, 1, 1, "0", 1, 1, 1, 0})}) {
    text["no_rope_layers"] = bad;
    EXPECT_EQ(error_of(text), "config.json: no_rope_layers is " + bad.dump() +
                                  "; it must be a list of 8 zeros and ones");
  }
  text.erase("no_rope_layers");
  text["no_rope_layer_interval"] = 0;
  EXPECT_NE(error_of(text).find("no_rope_layer_interval is 0"), std::string::npos);
}

TEST(Config, Gemma2) {
  json text = small("Gemma2ForCausalLM", "gemma2");
  text["hidden_act"] = "gelu_pytorch_tanh";
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.attention_multiplier, 1 / 16.0);
  EXPECT_EQ(config.attention_soft_cap, 50);
  EXPECT_EQ(config.logits_soft_cap, 30);
  EXPECT_EQ(config.norm_placement, NormPlacement::around);
  EXPECT_EQ(config.norm_weight_offset, 1);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_EQ(config.embedding_multiplier, 8);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{4096, 0}));
  EXPECT_TRUE(config.tied_head);
  text["query_pre_attn_scalar"] = 144;
  text["attn_logit_softcapping"] = nullptr;
  text["final_logit_softcapping"] = 20.5;
  text["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(parse(text).attention_multiplier, 1 / 12.0);
  EXPECT_EQ(parse(text).attention_soft_cap, 0);
  EXPECT_EQ(parse(text).logits_soft_cap, 20.5);
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0, 4096}));
  // The scale of embeddings is rounded to the format of the checkpoint.
  text["hidden_size"] = 72;
  EXPECT_EQ(parse(text).embedding_multiplier, std::sqrt(72.0f));
  text["torch_dtype"] = "bfloat16";
  EXPECT_EQ(parse(text).embedding_multiplier, 8.5);
}

TEST(Config, Gemma2HostileValues) {
  const auto error = [](const char* key, const json& value) {
    json text = small("Gemma2ForCausalLM", "gemma2");
    text[key] = value;
    return error_of(text);
  };
  for (const char* key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    for (const json& bad : {json(0), json(-50), json("NaN"), json(1e300), json(true)}) {
      EXPECT_EQ(error(key, bad), std::string("config.json: ") + key + " is " + bad.dump() +
                                     "; it must be a number from 0.001 to 1000000");
    }
  }
  for (const json& bad : {json(0), json(-1), json(64.5), json(UINT64_MAX), json("64")}) {
    EXPECT_EQ(error("sliding_window", bad).find("config.json: sliding_window is " + bad.dump()),
              0u);
    EXPECT_EQ(error("query_pre_attn_scalar", bad)
                  .find("config.json: query_pre_attn_scalar is " + bad.dump()),
              0u);
  }
  EXPECT_EQ(error("hidden_activation", "gelu"),
            "config.json: hidden_activation is \"gelu\"; it must be \"gelu_pytorch_tanh\"");
  EXPECT_NE(error("use_bidirectional_attention", true).find("it must be false"), std::string::npos);
  json none = small("Gemma2ForCausalLM", "gemma2");
  none["sliding_window"] = nullptr;
  EXPECT_EQ(windows(parse(none)), (std::vector<int64_t>{0}));
  none["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(error_of(none),
            "config.json: layer_types names sliding_attention, but sliding_window sets none");
}

TEST(Config, Gemma3) {
  json text = small("Gemma3ForCausalLM", "gemma3_text");
  text["num_hidden_layers"] = 7;
  text["sliding_window"] = 512;
  using Rope = LayerKind::Rope;
  const LayerKind local{512, Rope::local};
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.layer_kinds, (std::vector<LayerKind>{local, local, local, local, local, {}}));
  EXPECT_EQ(config.rope_theta, 1000000);
  EXPECT_EQ(config.local_rope_theta, 10000);
  EXPECT_EQ(config.qk_norm, QkNorm::per_head);
  EXPECT_EQ(config.attention_soft_cap, 0);
  text["sliding_window_pattern"] = 2;
  text["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8}};
  text["rope_local_base_freq"] = 5000;
  EXPECT_EQ(parse(text).layer_kinds, (std::vector<LayerKind>{local, {}}));
  EXPECT_EQ(parse(text).rope_scaling.factor, 8);
  EXPECT_EQ(parse(text).local_rope_theta, 5000);
  // As transformers 5 writes it.
  json newer = text;
  newer.erase("rope_scaling");
  newer.erase("rope_local_base_freq");
  newer["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 1000000}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5000}}}};
  EXPECT_EQ(parse(newer), parse(text));
  newer["rope_parameters"]["sliding_attention"] = 4;
  EXPECT_NE(error_of(newer).find("sliding_attention is 4"), std::string::npos);
  newer["rope_parameters"]["sliding_attention"] = {{"rope_type", "yarn"}};
  EXPECT_NE(error_of(newer).find("rope_type is \"yarn\"; it must be \"default\""),
            std::string::npos);
  text["sliding_window_pattern"] = 0;
  EXPECT_NE(error_of(text).find("sliding_window_pattern is 0"), std::string::npos);
}

TEST(Config, Phi3) {
  json text = small("Phi3ForCausalLM", "phi3");
  text["max_position_embeddings"] = 8192;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{0}));
  text["sliding_window"] = 2047;
  EXPECT_EQ(windows(parse(text)), (std::vector<int64_t>{2047}));
  text["partial_rotary_factor"] = 0.75;
  EXPECT_EQ(parse(text).rotary_dim(), 12);
  const json factors = {1, 1.5, 2, 2.5, 3, 3.5};
  text["rope_scaling"] = {{"type", "su"}, {"short_factor", factors}, {"long_factor", factors}};
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(config.rope_scaling.original_context, 4096);
  EXPECT_EQ(config.rope_scaling.long_factors, (std::vector<double>{1, 1.5, 2, 2.5, 3, 3.5}));
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor,
                   std::sqrt(1 + std::log(2.0) / std::log(4096.0)));
  text["original_max_position_embeddings"] = 1024;
  EXPECT_EQ(parse(text).rope_scaling.original_context, 1024);
  for (const json& bad : {json(4), json({1, 2}), json({1, 2, 3, 4, 5, "6"}),
                          json({1, 2, 3, 4, 5, 0}), json({1, 2, 3, 4, 5, -6})}) {
    text["rope_scaling"]["long_factor"] = bad;
    EXPECT_EQ(error_of(text), "config.json: rope_scaling: long_factor is " + bad.dump() +
                                  "; it must be a list of 6 numbers from 1e-09 to 1000000000");
  }
  text["rope_scaling"].erase("long_factor");
  EXPECT_EQ(error_of(text), "config.json: rope_scaling: long_factor is missing");
  text["rope_scaling"] = nullptr;
  for (const json& bad : {json(1.5), json(-0.5), json("half")}) {
    text["partial_rotary_factor"] = bad;
    EXPECT_EQ(error_of(text), "config.json: partial_rotary_factor is " + bad.dump() +
                                  "; it must be a number from 0 to 1");
  }
  text["partial_rotary_factor"] = 0.2;
  EXPECT_EQ(error_of(text),
            "config.json: partial_rotary_factor 0.2 turns 3 of head_dim 16; RoPE turns pairs");
}

TEST(Config, Starcoder2) {
  json text = small("Starcoder2ForCausalLM", "starcoder2");
  text["hidden_act"] = "gelu_pytorch_tanh";
  text["norm_epsilon"] = 1e-4;
  text["sliding_window"] = 64;
  const ModelConfig config = parse(text);
  EXPECT_EQ(config.norm_kind, NormKind::layer);
  EXPECT_EQ(config.norm_epsilon, 1e-4);
  EXPECT_TRUE(config.qkv_bias && config.attention_out_bias && config.ffn_bias);
  EXPECT_FALSE(config.gated_ffn);
  EXPECT_EQ(config.activation, Activation::gelu_tanh);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(windows(config), (std::vector<int64_t>{64}));
  text["use_bias"] = false;
  EXPECT_FALSE(parse(text).qkv_bias || parse(text).ffn_bias);
  text["hidden_act"] = "silu";
  EXPECT_NE(error_of(text).find("it must be \"gelu_pytorch_tanh\""), std::string::npos);
}

TEST(Config, Yarn) {
  json text = small_llama();
  text["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 128}};
  ModelConfig config = parse(text);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(config.rope_scaling.beta_fast, 32);
  EXPECT_EQ(config.rope_scaling.beta_slow, 1);
  EXPECT_TRUE(config.rope_scaling.truncate);
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1);
  text["rope_scaling"]["mscale"] = 2;
  text["rope_scaling"]["mscale_all_dim"] = 1;
  EXPECT_DOUBLE_EQ(parse(text).rope_scaling.attention_factor,
                   (0.2 * std::log(4.0) + 1) / (0.1 * std::log(4.0) + 1));
  text["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(parse(text).rope_scaling.attention_factor, 1.5);
  const auto error = [&](const char* key, const json& value) {
    json other = text;
    other["rope_scaling"][key] = value;
    return error_of(other);
  };
  EXPECT_NE(error("factor", 0.5).find("factor is 0.5"), std::string::npos);
  EXPECT_NE(error("attention_factor", -1).find("attention_factor is -1"), std::string::npos);
  EXPECT_NE(error("truncate", 1).find("truncate is 1"), std::string::npos);
  EXPECT_EQ(error("beta_fast", 0.5),
            "config.json: rope_scaling: beta_fast 0.5 must not be less than beta_slow 1");
  text["rope_theta"] = 1;
  EXPECT_NE(error_of(text).find("yarn takes the logarithm of rope_theta 1"), std::string::npos);
}

json small_mixture(const std::string& architecture, const std::string& model_type) {
  json text = small(architecture, model_type);
  text["num_local_experts"] = text["num_experts"] = 8;
  text["num_experts_per_tok"] = 2;
  text["moe_intermediate_size"] = 32;
  text["shared_expert_intermediate_size"] = 48;
  return text;
}

TEST(Config, Experts) {
  EXPECT_EQ(parse(small_mixture("MixtralForCausalLM", "mixtral")).experts,
            (Experts{.count = 8, .chosen = 2, .size = 96, .renormalise = true}));
  EXPECT_EQ(parse(small_mixture("OlmoeForCausalLM", "olmoe")).experts,
            (Experts{.count = 8, .chosen = 2, .size = 96}));
  EXPECT_EQ(parse(small_mixture("OlmoeForCausalLM", "olmoe")).qk_norm, QkNorm::whole);
  EXPECT_EQ(parse(small_mixture("Qwen2MoeForCausalLM", "qwen2_moe")).experts,
            (Experts{.count = 8, .chosen = 2, .size = 32, .shared_size = 48}));
  json text = small_mixture("Qwen3MoeForCausalLM", "qwen3_moe");
  text["norm_topk_prob"] = true;
  EXPECT_EQ(parse(text).experts,
            (Experts{.count = 8, .chosen = 2, .size = 32, .renormalise = true}));
  EXPECT_EQ(parse(text).ffn, 96);
  text["num_hidden_layers"] = 4;
  EXPECT_TRUE(parse(text).has_experts(0));
  text["decoder_sparse_step"] = 2;
  EXPECT_FALSE(parse(text).has_experts(0));
  EXPECT_TRUE(parse(text).has_experts(1) && parse(text).has_experts(3));
  text["mlp_only_layers"] = {3};
  EXPECT_FALSE(parse(text).has_experts(3));
  // Where it is used, a window holds for every layer.
  text["sliding_window"] = 16;
  EXPECT_EQ(parse(text).layer_kind(0).window, 0);
  text["use_sliding_window"] = true;
  EXPECT_EQ(parse(text).layer_kind(0).window, 16);
  EXPECT_EQ(parse(text).layer_kind(3).window, 16);
  EXPECT_EQ(parse(small_llama()).experts.count, 0);
}

TEST(Config, ExpertsThatCannotBe) {
  const json good = small_mixture("Qwen3MoeForCausalLM", "qwen3_moe");
  const auto error_after = [&](const char* key, const json& value) {
    json text = good;
    text[key] = value;
    return error_of(text);
  };
  EXPECT_EQ(error_after("num_experts_per_tok", 9),
            "config.json: num_experts_per_tok 9 is more than num_experts 8");
  EXPECT_EQ(error_after("num_experts", 0),
            "config.json: num_experts is 0; it must be an integer from 1 to 4096");
  EXPECT_EQ(error_after("moe_intermediate_size", 4194304),
            "config.json: num_experts 8 times moe_intermediate_size 4194304 is more than 4194304");
  EXPECT_EQ(error_after("mlp_only_layers", {2}),
            "config.json: mlp_only_layers is [2]; it must be a list of layers from 0 to 1");
  EXPECT_EQ(error_after("mlp_only_layers", 1),
            "config.json: mlp_only_layers is 1; it must be a list of layers");
  json many = good;
  many["num_experts"] = 4096;
  many["num_hidden_layers"] = 4096;
  EXPECT_EQ(error_of(many), "config.json: num_experts 4096 in 4096 layers are more than 131072");
  json clipped = small_mixture("OlmoeForCausalLM", "olmoe");
  clipped["clip_qkv"] = 8.0;
  EXPECT_EQ(error_of(clipped),
            "config.json: clip_qkv is 8.0; it must be null: Weft clips no "
            "projections");
}

/// gpt-oss-20b's, but for sizes.
json small_gpt_oss() {
  json text = small_mixture("GptOssForCausalLM", "gpt_oss");
  text.erase("num_experts");
  text["hidden_size"] = 64;
  text["num_hidden_layers"] = 4;
  text["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0},
                          {"beta_fast", 32.0},   {"beta_slow", 1.0},
                          {"truncate", false},   {"original_max_position_embeddings", 64}};
  text["quantization_config"] = {{"quant_method", "mxfp4"},
                                 {"modules_to_not_convert", {"lm_head"}}};
  return text;
}

TEST(Config, GptOss) {
  const ModelConfig config = parse(small_gpt_oss());
  EXPECT_EQ(
      config.experts,
      (Experts{
          .count = 8, .chosen = 2, .size = 96, .renormalise = true, .biases = true, .limit = 7}));
  EXPECT_TRUE(config.sinks && config.qkv_bias && config.attention_out_bias);
  EXPECT_EQ(config.layer_kinds, (std::vector<LayerKind>{{.window = 128}, {}}));
  EXPECT_EQ(config.rope_theta, 150000);
  EXPECT_FALSE(config.rope_scaling.truncate);
  EXPECT_DOUBLE_EQ(config.rope_scaling.attention_factor, 0.1 * std::log(32.0) + 1);
  EXPECT_EQ(config.quantization.method, Quantization::Method::mxfp4);

  const auto error_after = [](const char* key, const json& value) {
    json text = small_gpt_oss();
    text[key] = value;
    return error_of(text);
  };
  EXPECT_EQ(error_after("quantization_config", nullptr),
            "config.json: quantization_config does not have quant_method \"mxfp4\", but Weft reads "
            "GptOssForCausalLM experts in that format alone, as they are published");
  EXPECT_EQ(error_after("intermediate_size", 40),
            "config.json: hidden_size 64 and intermediate_size 40 must be multiples of 32: so many "
            "numbers in MXFP4 share a scale");
  EXPECT_EQ(error_after("swiglu_alpha", 1.5), "config.json: swiglu_alpha is 1.5; it must be 1.702");
  json llama = small_llama();
  llama["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_EQ(error_of(llama),
            "config.json: quantization_config has quant_method \"mxfp4\", but Weft reads "
            "LlamaForCausalLM experts in no such format");
}

json small_deepseek(const std::string& architecture, const std::string& model_type) {
  json text = small(architecture, model_type);
  text["n_routed_experts"] = 8;
  text["num_experts_per_tok"] = 2;
  text["moe_intermediate_size"] = 32;
  text["n_shared_experts"] = 2;
  text["first_k_dense_replace"] = 1;
  text["n_group"] = 4;
  text["topk_group"] = 2;
  text["routed_scaling_factor"] = 2.5;
  text["kv_lora_rank"] = 40;
  text["q_lora_rank"] = nullptr;
  text["qk_nope_head_dim"] = 12;
  text["qk_rope_head_dim"] = 8;
  text["v_head_dim"] = 10;
  text["num_nextn_predict_layers"] = 1;
  text["rope_scaling"] = {{"type", "yarn"},
                          {"factor", 40},
                          {"mscale", 0.707},
                          {"mscale_all_dim", 0.707},
                          {"original_max_position_embeddings", 64}};
  return text;
}

TEST(Config, DeepSeek) {
  json text = small_deepseek("DeepseekV2ForCausalLM", "deepseek_v2");
  const ModelConfig greedy = parse(text);
  EXPECT_EQ(greedy.experts, (Experts{.count = 8,
                                     .chosen = 2,
                                     .size = 32,
                                     .shared_size = 64,
                                     .shared_whole = true,
                                     .scale = 2.5}));
  EXPECT_EQ(greedy.latent, (LatentAttention{.rank = 40, .unturned = 12, .turned = 8, .value = 10}));
  EXPECT_EQ(greedy.kv_heads, 1);
  EXPECT_EQ(greedy.head_dim, 48);
  EXPECT_EQ(greedy.cached_size(), 48);
  EXPECT_EQ(greedy.rotary_dim(), 8);
  EXPECT_EQ(greedy.ignored_layers, 1);
  EXPECT_FALSE(greedy.has_experts(0));
  EXPECT_TRUE(greedy.has_experts(1));
  // YaRN's share of cosines and sines is 1, and of the scale of heads of 20 its square.
  EXPECT_EQ(greedy.rope_scaling.attention_factor, 1);
  const double mscale = 0.0707 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(greedy.attention_multiplier, mscale * mscale / std::sqrt(20.0));
  text["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(parse(text).experts.groups, 4);
  EXPECT_EQ(parse(text).experts.kept_groups, 2);
  text["topk_group"] = 5;
  EXPECT_EQ(error_of(text),
            "config.json: topk_group 5 of n_group 4 groups of 2 experts leave none to choose "
            "num_experts_per_tok 2 from");
  text["n_group"] = 3;
  EXPECT_EQ(error_of(text),
            "config.json: n_routed_experts 8 cannot be cut into n_group 3 groups of 1 or more");
  text["topk_method"] = "noaux_tc";
  EXPECT_EQ(error_of(text),
            "config.json: topk_method is \"noaux_tc\"; it must be \"greedy\" or "
            "\"group_limited_greedy\"");

  text = small_deepseek("DeepseekV3ForCausalLM", "deepseek_v3");
  text["q_lora_rank"] = 24;
  const ModelConfig third = parse(text);
  EXPECT_EQ(third.latent.query_rank, 24);
  EXPECT_TRUE(third.experts.sigmoid && third.experts.correction && third.experts.renormalise);
  EXPECT_EQ(third.experts.groups, 4);
  for (const auto& [key, value] : {std::pair<const char*, json>("rope_interleave", false),
                                   {"attention_bias", true},
                                   {"moe_layer_freq", 2},
                                   {"scoring_func", "softmax"},
                                   {"topk_method", "greedy"}}) {
    json other = text;
    other[key] = value;
    EXPECT_EQ(error_of(other).find("config.json: " + std::string(key) + " is "), 0U)
        << error_of(other);
  }
  text["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_EQ(error_of(text),
            "config.json: qk_nope_head_dim 12 and v_head_dim 10 must be multiples of 128, the rows "
            "that share scales in its quantization_config");
}

TEST(Config, ArchitectureFromModelType) {
  json text = small_llama();
  text.erase("architectures");
  EXPECT_EQ(parse(text).architecture, "LlamaForCausalLM");
}

TEST(Config, UnknownArchitectureListsKnown) {
  EXPECT_EQ(error_of(small("GPT2LMHeadModel", "gpt2")),
            "config.json: architectures: \"GPT2LMHeadModel\" is not an architecture Weft knows; it "
            "knows LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
            "Olmo2ForCausalLM, InstellaForCausalLM, GraniteForCausalLM, SmolLM3ForCausalLM, "
            "Gemma2ForCausalLM, Gemma3ForCausalLM, Phi3ForCausalLM, Starcoder2ForCausalLM, "
            "MixtralForCausalLM, Qwen2MoeForCausalLM, Qwen3MoeForCausalLM, OlmoeForCausalLM, "
            "GptOssForCausalLM, DeepseekV2ForCausalLM, DeepseekV3ForCausalLM");
  json text = small_llama();
  text.erase("architectures");
  text["model_type"] = "gpt2";
  EXPECT_NE(error_of(text).find("model_type \"gpt2\" is not"), std::string::npos);
  text.erase("model_type");
  EXPECT_NE(error_of(text).find("it knows LlamaForCausalLM"), std::string::npos);
  EXPECT_EQ(error_of(small("LlamaForCausalLM", "mistral")),
            "config.json: model_type is \"mistral\" but the architecture LlamaForCausalLM is of "
            "type \"llama\"");
}

TEST(Config, EveryNumberIsBounded) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "max_position_embeddings"}) {
    json missing = small_llama();
    missing.erase(key);
    EXPECT_EQ(error_of(missing), std::string("config.json: ") + key + " is missing");
    EXPECT_EQ(error_with(key, nullptr), std::string("config.json: ") + key + " is null");
    for (const json& bad : {json(0), json(-3), json(2.5), json("64"), json(true), json::array({64}),
                            json(INT64_MAX), json(UINT64_MAX), json(1e300), json::object()}) {
      const std::string error = error_with(key, bad);
      EXPECT_EQ(error.find(std::string("config.json: ") + key + " is " + bad.dump() +
                           "; it must be an integer from 1 to "),
                0u)
          << error;
    }
  }
  for (const char* key : {"num_key_value_heads", "head_dim"}) {
    for (const json& bad : {json(0), json(-1), json("x"), json(INT64_MAX)}) {
      EXPECT_NE(error_with(key, bad).find(std::string(key) + " is " + bad.dump()),
                std::string::npos);
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const json& bad : {json(0), json(-1e-5), json("1e-5"), json(false), json(1e300)}) {
      EXPECT_NE(error_with(key, bad).find(std::string(key) + " is " + bad.dump()),
                std::string::npos);
    }
  }
  EXPECT_EQ(error_with("num_hidden_layers", -3),
            "config.json: num_hidden_layers is -3; it must be an integer from 1 to 4096");
}

TEST(Config, Contradictions) {
  EXPECT_EQ(error_with("num_key_value_heads", 3),
            "config.json: num_attention_heads 4 is not a multiple of num_key_value_heads 3");
  EXPECT_EQ(error_with("hidden_size", 66),
            "config.json: hidden_size 66 is not a multiple of num_attention_heads 4 and there is "
            "no head_dim");
  EXPECT_EQ(error_with("head_dim", 15), "config.json: head_dim 15 is odd; RoPE turns pairs");
  json wide = small_llama();
  wide["num_attention_heads"] = 16384;
  wide["head_dim"] = 4096;
  EXPECT_EQ(error_of(wide),
            "config.json: num_attention_heads 16384 times head_dim 4096 is more than 4194304");
}

TEST(Config, RefusesWhatItDoesNotCompute) {
  EXPECT_EQ(error_with("hidden_act", "gelu"),
            "config.json: hidden_act is \"gelu\"; it must be \"silu\"");
  EXPECT_EQ(error_with("quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}),
            "config.json: quantization_config: quant_method is \"gptq\"; of quantised weights Weft "
            "reads fp8, fbgemm_fp8 and compressed-tensors in e4m3, and mxfp4");
  EXPECT_NE(error_with("quantization_config", 4).find("quantization_config is 4"),
            std::string::npos);
  EXPECT_NE(error_with("partial_rotary_factor", 0.5).find("partial_rotary_factor is 0.5"),
            std::string::npos);
  EXPECT_EQ(error_with("torch_dtype", "float8_e4m3fn"),
            "config.json: torch_dtype is \"float8_e4m3fn\"; it must be bfloat16, float16 or "
            "float32");
  EXPECT_EQ(error_with("rope_scaling", {{"rope_type", "dynamic"}, {"factor", 4}}),
            "config.json: rope_scaling: rope_type \"dynamic\" is not supported; Weft knows "
            "default, linear, llama3, yarn, longrope");
}

TEST(Config, RopeErrors) {
  EXPECT_NE(error_with("rope_scaling", 4).find("rope_scaling is 4; it must be an object or null"),
            std::string::npos);
  EXPECT_EQ(error_with("rope_scaling", {{"type", "linear"}}),
            "config.json: rope_scaling: factor is missing");
  EXPECT_NE(error_with("rope_scaling", {{"type", "linear"}, {"factor", 0.5}}).find("factor is 0.5"),
            std::string::npos);
  EXPECT_NE(error_with("rope_scaling", {{"factor", 2}}).find("without a rope_type"),
            std::string::npos);
  EXPECT_NE(error_with("rope_scaling", {{"type", "linear"}, {"rope_type", "llama3"}, {"factor", 2}})
                .find("rope_type is \"llama3\" but type is \"linear\""),
            std::string::npos);
  json llama3 = {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}};
  EXPECT_EQ(error_with("rope_scaling", llama3),
            "config.json: rope_scaling: high_freq_factor is missing");
  llama3["high_freq_factor"] = 4;
  EXPECT_EQ(error_with("rope_scaling", llama3),
            "config.json: rope_scaling: high_freq_factor 4 must be larger than low_freq_factor 4");
  llama3["high_freq_factor"] = 8;
  llama3["original_max_position_embeddings"] = -1;
  EXPECT_NE(error_with("rope_scaling", llama3).find("original_max_position_embeddings is -1"),
            std::string::npos);

  json both = small_llama();
  both["rope_theta"] = 20000;
  both["rope_parameters"] = {{"rope_theta", 10000}};
  EXPECT_EQ(error_of(both),
            "config.json: rope_parameters: rope_theta is 10000 here and 20000 outside");
  both.erase("rope_theta");
  both["rope_scaling"] = {{"type", "linear"}, {"factor", 2}};
  EXPECT_EQ(error_of(both),
            "config.json: rope_scaling and rope_parameters are both there and differ");
  EXPECT_NE(error_with("rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}})
                .find("differs between layers"),
            std::string::npos);
  EXPECT_NE(error_with("rope_parameters", {{"partial_rotary_factor", 0.5}})
                .find("partial_rotary_factor is 0.5"),
            std::string::npos);
}

TEST(Config, TypesOfTheRest) {
  EXPECT_NE(error_with("tie_word_embeddings", 1).find("it must be true or false"),
            std::string::npos);
  EXPECT_NE(error_with("attention_bias", "no").find("it must be true or false"), std::string::npos);
  EXPECT_NE(error_with("model_type", 3).find("model_type is 3; it must be a string"),
            std::string::npos);
  EXPECT_NE(error_with("architectures", "Llama").find("architectures is \"Llama\""),
            std::string::npos);
  EXPECT_NE(error_with("architectures", json::array()).find("architectures is []"),
            std::string::npos);
  EXPECT_EQ(error_with("eos_token_id", -1),
            "config.json: eos_token_id is -1; it must be a token id or a list of token ids");
  EXPECT_NE(error_with("eos_token_id", {1, -2}).find("eos_token_id is [1,-2]"), std::string::npos);
  EXPECT_NE(error_with("eos_token_id", "</s>").find("eos_token_id is"), std::string::npos);
  EXPECT_NE(error_with("bos_token_id", -1).find("bos_token_id is -1"), std::string::npos);
  json granite = small("GraniteForCausalLM", "granite");
  granite["residual_multiplier"] = 0;
  EXPECT_NE(error_of(granite).find("residual_multiplier is 0"), std::string::npos);
}

TEST(Config, NotJson) {
  EXPECT_EQ(error_of(std::string("{\"vocab_size\": 3,\n  oops}")),
            "config.json: not valid JSON at line 2, column 3");
  EXPECT_EQ(error_of(std::string("{\"vocab_size\": ")),
            "config.json: not valid JSON at line 1, column 16 (the text ends there: is the file "
            "complete?)");
  EXPECT_NE(error_of(std::string()).find("line 1, column 1 (the text ends there"),
            std::string::npos);
  EXPECT_EQ(error_of(std::string("[1, 2]")), "config.json: is [1,2]; it must be a JSON object");
  EXPECT_NE(error_of(std::string("{\"a\": 1e999}")).find("not valid JSON"), std::string::npos);
  EXPECT_NE(error_of(std::string("{\"a\": \"\xff\"}")).find("not valid JSON"), std::string::npos);
  EXPECT_EQ(error_of(std::string(100000, '[')),
            "config.json: JSON nested 100000 levels deep, at most 64 are read");
  // A long value is cut, whatever is in it.
  const std::string error = error_with("hidden_act", std::string(1000, '\x01') + "\xc3\xa9");
  EXPECT_LT(error.size(), 200u);
}

TEST(Config, ReadsTheDirectory) {
  TestDirectory directory;
  auto missing = read_config(directory.path() / "none");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("none: is not a directory"), std::string::npos);
  missing = read_config(directory.path());
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("config.json: cannot be opened: No such file"),
            std::string::npos);

  directory.write("config.json", small_llama().dump());
  auto config = read_config(directory.path());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->name, directory.path().string());
  EXPECT_EQ(config->eos, std::vector<int32_t>{2});

  directory.write("generation_config.json", R"({"eos_token_id": [2, 9], "temperature": 0.6})");
  config = read_config(directory.path());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->eos, (std::vector<int32_t>{2, 9}));

  directory.write("generation_config.json", R"({"eos_token_id": [100, 9]})");  // of 100 tokens
  config = read_config(directory.path());
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->eos, (std::vector<int32_t>{9}));

  directory.write("generation_config.json", R"({"eos_token_id": "</s>"})");
  config = read_config(directory.path());
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("generation_config.json: eos_token_id is"),
            std::string::npos);

  directory.write("config.json", std::string(2 << 20, ' '));
  config = read_config(directory.path());
  ASSERT_FALSE(config.ok());
  EXPECT_NE(config.error().message.find("is 2097152 bytes long, at most 1048576"),
            std::string::npos);
}

TEST(Config, WriteGivesBackWhatWasParsed) {
  json text = small_llama();
  text["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  text["eos_token_id"] = {7, 8};
  text["attention_bias"] = true;
  text["head_dim"] = 24;
  const ModelConfig llama = parse(text);
  json sliding = small("Qwen2ForCausalLM", "qwen2");
  sliding["use_sliding_window"] = true;
  sliding["max_window_layers"] = 0;
  const ModelConfig qwen = parse(sliding);
  const ModelConfig deepseek = parse(small_deepseek("DeepseekV3ForCausalLM", "deepseek_v3"));
  for (const ModelConfig& config : {llama, qwen, parse(small_gpt_oss()), deepseek}) {
    const auto again = parse_config(write_config(config), config.name);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, config);
  }
}

TEST(Preset, EveryOneSurvivesItsConfigFile) {
  ASSERT_EQ(preset_names().size(), 31u);
  for (const std::string& name : preset_names()) {
    const auto config = preset(name);
    ASSERT_TRUE(config.ok()) << name;
    const auto again = parse_config(write_config(*config), name);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, *config) << name;
  }
}

TEST(Preset, UnknownNameListsKnown) {
  const auto config = preset("llama-9");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().kind, ErrorKind::usage);
  EXPECT_EQ(config.error().message.find("there is no preset 'llama-9'; there are llama-3.2-1b, "),
            0u);
}

}  // namespace
}  // namespace weft

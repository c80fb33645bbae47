#include "model/quantization.h"

#include <gtest/gtest.h>

#include "model/config.h"

namespace weft {
namespace {

using nlohmann::json;

Quantization read(const char* text) {
  const auto result = read_quantization(json::parse(text), "config.json: quantization_config");
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *result : Quantization{};
}

std::string error_of(const std::string& text) {
  const auto result = read_quantization(json::parse(text), "q");
  if (result.ok()) {
    return "accepted";
  }
  EXPECT_EQ(result.error().kind, ErrorKind::input);
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos);
  return result.error().message;
}

TEST(Quantization, OfDeepSeekAndQwen) {
  const Quantization q = read(R"({"activation_scheme": "dynamic", "fmt": "e4m3",
    "quant_method": "fp8", "scale_fmt": "ue8m0", "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head", "model.layers.0.mlp.gate"]})");
  EXPECT_EQ(q.method, Quantization::Method::fp8);
  EXPECT_EQ(q.weights, Scaling::block);
  EXPECT_EQ(q.activations, (Fp8Rounding{.scaling = Scaling::block}));
  EXPECT_FALSE(q.converts("lm_head.weight"));
  EXPECT_FALSE(q.converts("model.layers.0.mlp.gate.weight"));
  EXPECT_TRUE(q.converts("model.layers.0.mlp.gate_proj.weight"));
  EXPECT_TRUE(q.converts("model.layers.10.mlp.gate.weight"));
  EXPECT_EQ(scale_name(q, "a.b.weight"), "a.b.weight_scale_inv");
}

TEST(Quantization, OfFbgemm) {
  const Quantization q = read(R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": 1000.0,
    "modules_to_not_convert": ["model.layers.0.self_attn"]})");
  EXPECT_EQ(q.weights, Scaling::row);
  EXPECT_EQ(q.activations.scaling, Scaling::row);
  EXPECT_EQ(q.activations.largest, 1000);
  EXPECT_EQ(q.activations.least_scale, 1.0F / (448 * 512));
  EXPECT_FALSE(q.converts("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(q.converts("model.layers.1.self_attn.q_proj.weight"));
  EXPECT_EQ(scale_name(q, "a.b.weight"), "a.b.weight_scale");
}

TEST(Quantization, OfCompressedTensors) {
  constexpr const char* kText = R"({"quant_method": "compressed-tensors",
    "format": "float-quantized", "ignore": ["lm_head", "re:.*gate$"], "kv_cache_scheme": null,
    "sparsity_config": {}, "config_groups": {"group_0": {"targets": ["Linear"],
      "weights": {"num_bits": 8, "type": "float", "strategy": "channel", "dynamic": false,
                  "symmetric": true},
      "input_activations": {"num_bits": 8, "type": "float", "strategy": "token",
                            "dynamic": true, "symmetric": true},
      "output_activations": null}}})";
  const Quantization q = read(kText);
  EXPECT_EQ(q.weights, Scaling::row);
  EXPECT_EQ(q.activations, (Fp8Rounding{.scaling = Scaling::row}));
  json changed = json::parse(kText);
  json& group = changed["config_groups"]["group_0"];
  group["weights"]["strategy"] = "tensor";
  group["input_activations"]["strategy"] = "tensor";
  group["input_activations"]["dynamic"] = false;
  const Quantization fixed = read(changed.dump().c_str());
  EXPECT_EQ(fixed.weights, Scaling::tensor);
  EXPECT_EQ(fixed.activations.scaling, Scaling::tensor);
  group["weights"]["strategy"] = "block";
  group["weights"]["block_structure"] = {128, 128};
  group["input_activations"] = nullptr;
  const Quantization blocks = read(changed.dump().c_str());
  EXPECT_EQ(blocks.weights, Scaling::block);
  EXPECT_EQ(blocks.activations.scaling, Scaling::none);

  group["weights"]["block_structure"] = {64, 128};
  EXPECT_EQ(error_of(changed.dump()),
            "q: config_groups: weights: block_structure is [64,128]; it must be [128,128]");
  group["weights"] = json::parse(kText)["config_groups"]["group_0"]["weights"];
  group["weights"]["num_bits"] = 4;
  EXPECT_EQ(error_of(changed.dump()), "q: config_groups: weights: num_bits is 4; it must be 8");
  group["weights"]["num_bits"] = 8;
  group["input_activations"] = {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}};
  EXPECT_NE(error_of(changed.dump()).find("strategy is \"token\" and dynamic false"),
            std::string::npos);
  group["input_activations"] = 3;
  EXPECT_NE(error_of(changed.dump()).find("input_activations is 3"), std::string::npos);
  changed["config_groups"]["group_1"] = group;
  EXPECT_EQ(error_of(changed.dump()), "q: config_groups must be an object with one group");
  changed["config_groups"] = {{"group_0", 1}};
  EXPECT_EQ(error_of(changed.dump()), "q: config_groups: a group is 1; it must be an object");
  changed["kv_cache_scheme"] = {{"num_bits", 8}};
  EXPECT_NE(error_of(changed.dump()).find("kv_cache_scheme is"), std::string::npos);
}

TEST(Quantization, OfAnotherKindIsRefused) {
  EXPECT_EQ(error_of("4"), "q is 4; it must be an object");
  EXPECT_EQ(error_of("{}"),
            "q: quant_method is \"\"; of quantised weights Weft reads fp8, fbgemm_fp8 and "
            "compressed-tensors in e4m3, and mxfp4");
  EXPECT_NE(error_of(R"({"quant_method": "gptq", "bits": 4})").find("quant_method is \"gptq\""),
            std::string::npos);
  EXPECT_NE(error_of(R"({"quant_method": ["fp8"]})").find("quant_method is [\"fp8\"]"),
            std::string::npos);
  EXPECT_EQ(error_of(R"({"quant_method": "fp8"})"),
            "q: weight_block_size is missing; it must be [128,128]");
  EXPECT_EQ(error_of(R"({"quant_method": "fp8", "weight_block_size": [128, 64]})"),
            "q: weight_block_size is [128,64]; it must be [128,128]");
  EXPECT_EQ(error_of(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                         "fmt": "e5m2"})"),
            "q: fmt is \"e5m2\"; it must be \"e4m3\"");
  EXPECT_EQ(error_of(R"({"quant_method": "fp8", "weight_block_size": [128, 128],
                         "activation_scheme": "static"})"),
            "q: activation_scheme is \"static\"; it must be \"dynamic\"");
  EXPECT_NE(error_of(R"({"quant_method": "fbgemm_fp8", "modules_to_not_convert": [""]})")
                .find("modules_to_not_convert is \"\"; it must be a module's name"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"quant_method": "fbgemm_fp8", "activation_scale_ub": -1})")
                .find("activation_scale_ub is -1"),
            std::string::npos);
  EXPECT_NE(error_of(R"({"quant_method": "compressed-tensors", "format": "pack-quantized"})")
                .find("format is \"pack-quantized\""),
            std::string::npos);
}

TEST(Quantization, WhatNewModelWritesIsReadBack) {
  for (const char* format : {"fp8-block", "fp8-row", "fp8-channel", "fp8-tensor"}) {
    const auto quantization = quantization_of(format);
    ASSERT_TRUE(quantization.ok()) << format;
    const json written = json::parse(write_quantization(*quantization).dump());
    const auto again = read_quantization(written, format);
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(*again, *quantization) << format;
    ModelConfig config = *preset("llama-3.2-1b");
    config.quantization = *quantization;
    EXPECT_EQ(parse_config(write_config(config), config.name)->quantization, *quantization);
  }
  const auto unknown = quantization_of("int4");
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.error().kind, ErrorKind::usage);
}

}  // namespace
}  // namespace weft

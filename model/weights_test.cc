#include "model/weights.h"
#include "model/family.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/fp8.h"
#include "model/quantization.h"
#include "model/random_weights.h"
#include "model/safetensors.h"
#include "model/test_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

/// A model of some kilobytes of each family, with everything that changes its tensors.
std::vector<ModelConfig> small_models() {
  ModelConfig base;
  base.vocabulary = 50;
  base.hidden = 24;
  base.layers = 2;
  base.query_heads = 4;
  base.kv_heads = 2;
  base.head_dim = 8;
  base.ffn = 20;
  base.context = 64;
  base.attention_multiplier = 1 / std::sqrt(8.0);

  std::vector<ModelConfig> models;
  const auto add = [&](const char* architecture) -> ModelConfig& {
    models.push_back(base);
    models.back().name = models.back().architecture = architecture;
    return models.back();
  };
  add("LlamaForCausalLM");
  ModelConfig& biases = add("LlamaForCausalLM");
  biases.qkv_bias = biases.attention_out_bias = biases.ffn_bias = biases.tied_head = true;
  biases.dtype = DType::f16;
  add("MistralForCausalLM").dtype = DType::f32;
  add("Qwen2ForCausalLM").qkv_bias = true;
  add("Qwen3ForCausalLM").qk_norm = QkNorm::per_head;
  ModelConfig& olmo = add("Olmo2ForCausalLM");
  olmo.qk_norm = QkNorm::whole;
  olmo.norm_placement = NormPlacement::after;
  add("InstellaForCausalLM").qk_norm = QkNorm::whole;
  add("GraniteForCausalLM").tied_head = true;
  ModelConfig& smol = add("SmolLM3ForCausalLM");
  smol.layer_kinds = {{}, {.rope = LayerKind::Rope::none}};
  ModelConfig& gemma2 = add("Gemma2ForCausalLM");
  gemma2.layer_kinds = {{.window = 16}, {}};
  gemma2.attention_soft_cap = 50;
  gemma2.tied_head = true;
  ModelConfig& gemma3 = add("Gemma3ForCausalLM");
  gemma3.layer_kinds = {{.window = 16, .rope = LayerKind::Rope::local}, {}};
  gemma3.local_rope_theta = 5000;
  gemma3.dtype = DType::f32;
  ModelConfig& phi = add("Phi3ForCausalLM");
  phi.partial_rotary_factor = 0.5;
  phi.rope_scaling = {.kind = RopeScaling::Kind::longrope,
                      .original_context = 32,
                      .short_factors = {1, 1.5},
                      .long_factors = {2, 3},
                      .attention_factor = 1.1};
  ModelConfig& starcoder = add("Starcoder2ForCausalLM");
  starcoder.qkv_bias = starcoder.attention_out_bias = starcoder.ffn_bias = true;
  starcoder.rope_scaling = {.kind = RopeScaling::Kind::yarn,
                            .factor = 4,
                            .original_context = 16,
                            .truncate = false,
                            .attention_factor = 1.2};
  for (ModelConfig& model : models) {
    complete(*find_family(model.architecture), model);
  }
  return models;
}

/// Three layers, of Qwen2-MoE the second one without experts.
ModelConfig small_mixture(const char* architecture) {
  ModelConfig config = small_models().front();
  config.name = config.architecture = architecture;
  config.layers = 3;
  config.experts = {.count = 4, .chosen = 2, .size = 20};
  if (config.architecture == "Qwen2MoeForCausalLM") {
    config.experts.shared_size = 12;
    config.qkv_bias = true;
    config.layer_kinds = {{}, {.dense = true}};
  }
  config.experts.renormalise = config.architecture == "MixtralForCausalLM";
  complete(*find_family(architecture), config);
  return config;
}
constexpr const char* kMixtures[] = {"MixtralForCausalLM", "Qwen2MoeForCausalLM",
                                     "Qwen3MoeForCausalLM", "OlmoeForCausalLM"};

ModelConfig small_llama() { return small_models().front(); }

std::string bytes_of(const Tensor& tensor) {
  return {reinterpret_cast<const char*>(tensor.data), static_cast<size_t>(tensor.bytes())};
}

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// Tensors of a checkpoint being made by hand.
struct HandMade {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

std::map<std::string, HandMade> hand_made(const ModelConfig& config) {
  std::map<std::string, HandMade> tensors;
  const auto weights = Weights::generate(config, 1, 1);
  for (const Tensor& tensor : weights->tensors()) {
    tensors[tensor.name] = {std::string(name_of(tensor.dtype)), tensor.shape, bytes_of(tensor)};
  }
  return tensors;
}

void write_safetensors(const fs::path& path, const std::map<std::string, HandMade>& tensors,
                       size_t extra_header = 0) {
  std::vector<SafetensorsEntry> entries;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    entries.push_back({name, tensor.dtype, tensor.shape, 0, tensor.bytes.size()});
    data += tensor.bytes;
  }
  std::string header = make_safetensors_header(entries);
  uint64_t length = header.size() - sizeof(length) + extra_header;
  std::memcpy(header.data(), &length, sizeof(length));
  std::ofstream(path, std::ios::binary) << header << std::string(extra_header, ' ') << data;
}

std::string open_error(const fs::path& directory, const ModelConfig& config) {
  const auto weights = Weights::open(directory, config);
  if (weights.ok()) {
    return "accepted";
  }
  EXPECT_EQ(weights.error().kind, ErrorKind::input);
  return weights.error().message;
}

TEST(TensorSpecs, ParametersOfThePresets) {
  const std::map<std::string, int64_t> parameters = {{"llama-3.2-1b", 1'235'814'400},
                                                     {"llama-3.2-3b", 3'212'749'824},
                                                     {"llama-3.1-8b", 8'030'261'248},
                                                     {"llama-3.3-70b", 70'553'706'496},
                                                     {"qwen2.5-coder-1.5b", 1'543'714'304},
                                                     {"qwen3-0.6b", 596'049'920},
                                                     {"qwen3-1.7b", 1'720'574'976},
                                                     {"qwen3-8b", 8'190'735'360},
                                                     {"olmo-2-1b", 1'484'916'736},
                                                     {"instella-3b", 3'112'675'840},
                                                     {"granite-3.1-2b", 2'533'531'648},
                                                     {"mistral-7b", 7'241'732'096},
                                                     {"weft-2b", 2'280'778'240},
                                                     {"smollm3-3b", 3'075'098'624},
                                                     {"gemma-2-2b", 2'614'341'888},
                                                     {"gemma-2-9b", 9'241'705'984},
                                                     {"gemma-3-1b", 999'885'952},
                                                     {"gemma-3-4b", 3'880'263'168},
                                                     {"phi-3-mini-4k", 3'821'079'552},
                                                     {"phi-3-mini-128k", 3'821'079'552},
                                                     {"phi-4", 14'659'507'200},
                                                     {"phi-4-mini", 3'836'021'760},
                                                     {"starcoder2-3b", 3'030'371'328},
                                                     {"starcoder2-7b", 7'173'923'840},
                                                     {"mixtral-8x7b", 46'702'792'704},
                                                     {"qwen1.5-moe-a2.7b", 14'315'784'192},
                                                     {"qwen3-30b-a3b", 30'532'122'624},
                                                     {"olmoe-1b-7b", 6'919'161'856},
                                                     {"gpt-oss-20b", 20'914'757'184},
                                                     {"gpt-oss-120b", 116'829'156'672},
                                                     {"deepseek-v2-lite", 15'706'484'224}};
  for (const std::string& name : preset_names()) {
    int64_t elements = 0;
    for (const TensorSpec& spec : tensor_specs(*preset(name))) {
      elements += spec.elements();
    }
    ASSERT_TRUE(parameters.contains(name)) << name;
    EXPECT_EQ(elements, parameters.at(name)) << name;
  }
}

TEST(TensorSpecs, NamesOfTheFamilies) {
  const auto has = [](const ModelConfig& config, const std::string& name) {
    const auto specs = tensor_specs(config);
    return std::ranges::count(specs, name, &TensorSpec::name) == 1;
  };
  const std::string layer = "model.layers.1.";
  for (const ModelConfig& config : small_models()) {
    EXPECT_TRUE(has(config, "model.embed_tokens.weight"));
    EXPECT_TRUE(has(config, "model.norm.weight"));
    EXPECT_TRUE(has(config, layer + "self_attn.o_proj.weight"));
    EXPECT_EQ(has(config, "lm_head.weight"), !config.tied_head);
    const bool fused = config.architecture == "Phi3ForCausalLM";
    const auto specs = tensor_specs(config);
    EXPECT_EQ(std::ranges::count(specs, layer + "self_attn.qkv_proj.weight", &TensorSpec::name),
              fused ? 3 : 0);
    EXPECT_EQ(std::ranges::count(specs, layer + "mlp.gate_up_proj.weight", &TensorSpec::name),
              fused ? 2 : 0);
    EXPECT_EQ(has(config, layer + "self_attn.q_proj.weight"), !fused);
    const bool gated = config.architecture != "Starcoder2ForCausalLM";
    EXPECT_EQ(has(config, layer + "mlp.gate_proj.weight"), gated && !fused);
    EXPECT_EQ(has(config, layer + "mlp.c_fc.bias"), !gated);
    EXPECT_EQ(has(config, layer + "input_layernorm.bias"), !gated);
    EXPECT_EQ(has(config, "model.norm.bias"), !gated);
    EXPECT_EQ(has(config, layer + "self_attn.q_proj.bias"), config.qkv_bias);
    EXPECT_EQ(has(config, layer + "self_attn.o_proj.bias"), config.attention_out_bias);
    EXPECT_EQ(has(config, layer + (gated ? "mlp.down_proj.bias" : "mlp.c_proj.bias")),
              config.ffn_bias);
    EXPECT_EQ(has(config, layer + "self_attn.q_norm.weight"), config.qk_norm != QkNorm::none);
    const bool olmo = config.architecture == "Olmo2ForCausalLM";
    const bool instella = config.architecture == "InstellaForCausalLM";
    const bool gemma = config.architecture.starts_with("Gemma");
    EXPECT_EQ(has(config, layer + "input_layernorm.weight"), !olmo && !instella);
    EXPECT_EQ(has(config, layer + "post_attention_layernorm.weight"), !instella);
    EXPECT_EQ(has(config, layer + "post_feedforward_layernorm.weight"), olmo || gemma);
    EXPECT_EQ(has(config, layer + "pre_attention_layernorm.weight"), instella);
    EXPECT_EQ(has(config, layer + "pre_feedforward_layernorm.weight"), instella || gemma);
  }
}

TEST(Experts, AreWrittenAndFoundByRoleAndNumber) {
  for (const char* architecture : kMixtures) {
    const ModelConfig config = small_mixture(architecture);
    const TestDirectory parent;
    const fs::path directory = parent.path() / "model";
    ASSERT_TRUE(write_random_model(config, 3, directory).ok());
    auto read = read_config(directory);
    ASSERT_TRUE(read.ok()) << read.error().message;
    read->name = config.name;
    EXPECT_EQ(*read, config);
    const auto weights = Weights::open(directory, config);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    const bool mixtral = config.architecture == "MixtralForCausalLM";
    const std::string place = mixtral ? "model.layers.2.block_sparse_moe." : "model.layers.2.mlp.";
    EXPECT_EQ(weights->get(Role::router, 2).name, place + "gate.weight");
    EXPECT_EQ(weights->get(Role::router, 2).shape, (std::vector<int64_t>{4, 24}));
    for (const auto& [role, name, shape] :
         {std::tuple(Role::expert_gate, mixtral ? "w1" : "gate_proj", std::vector<int64_t>{20, 24}),
          {Role::expert_up, mixtral ? "w3" : "up_proj", {20, 24}},
          {Role::expert_down, mixtral ? "w2" : "down_proj", {24, 20}}}) {
      const auto experts = weights->of_experts(role, 2, 4);
      for (size_t e = 0; e < 4; ++e) {
        EXPECT_EQ(experts[e].name, place + "experts." + std::to_string(e) + "." + name + ".weight");
        EXPECT_EQ(experts[e].shape, shape);
      }
    }
    const bool shares = config.experts.shared_size > 0;
    EXPECT_EQ(weights->find(Role::shared_down, 2) != nullptr, shares);
    EXPECT_EQ(weights->find(Role::router, 1) != nullptr, !shares) << "a layer without experts";
    EXPECT_EQ(weights->find(Role::gate, 1) != nullptr, shares);
  }
}

/// Every expert's matrices in one tensor: gate above up, and down.
TEST(Experts, MayBeStacked) {
  const ModelConfig config = small_mixture("OlmoeForCausalLM");
  std::map<std::string, HandMade> tensors = hand_made(config);
  const auto plain = Weights::generate(config, 1, 1);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    HandMade up{"BF16", {4, 40, 24}, ""};
    HandMade down{"BF16", {4, 24, 20}, ""};
    const auto take = [&](Role role, size_t expert) {
      const Tensor& tensor = plain->of_experts(role, layer, 4)[expert];
      tensors.erase(tensor.name);
      return bytes_of(tensor);
    };
    for (size_t e = 0; e < 4; ++e) {
      up.bytes += take(Role::expert_gate, e);
      up.bytes += take(Role::expert_up, e);
      down.bytes += take(Role::expert_down, e);
    }
    const std::string place = "model.layers." + std::to_string(layer) + ".mlp.experts.";
    tensors[place + "gate_up_proj"] = up;
    tensors[place + "down_proj"] = down;
  }
  const TestDirectory directory;
  const fs::path path = directory.path() / "model.safetensors";
  write_safetensors(path, tensors);
  const auto stacked = Weights::open(directory.path(), config);
  ASSERT_TRUE(stacked.ok()) << stacked.error().message;
  ASSERT_EQ(stacked->tensors().size(), plain->tensors().size());
  for (size_t i = 0; i < plain->tensors().size(); ++i) {
    EXPECT_EQ(bytes_of(stacked->tensors()[i]), bytes_of(plain->tensors()[i]));
  }
  const std::string up = "model.layers.1.mlp.experts.gate_up_proj";
  tensors[up].shape = {4, 24, 40};
  write_safetensors(path, tensors);
  EXPECT_EQ(open_error(directory.path(), config),
            path.string() + ": tensor \"" + up +
                "\" has shape [4,24,40], but the config makes it [4,40,24]");
  tensors.erase(up);
  write_safetensors(path, tensors);
  EXPECT_EQ(
      open_error(directory.path(), config),
      path.string() + ": tensor \"model.layers.1.mlp.experts.0.gate_proj.weight\" is missing");
}

ModelConfig small_gpt_oss() {
  ModelConfig config = preset("gpt-oss-20b").value();
  config.vocabulary = 40;
  config.hidden = 64;
  config.layers = 2;
  config.query_heads = 2;
  config.kv_heads = 1;
  config.head_dim = 16;
  config.ffn = config.experts.size = 32;
  config.experts.count = 3;
  config.experts.chosen = 2;
  return config;
}

/// What a directory has is what is made in memory, number by number; in the file gate's and up's
/// rows are by turns.
TEST(Experts, InMxfp4) {
  const ModelConfig config = small_gpt_oss();
  TestDirectory parent;
  const fs::path directory = parent.path() / "model";
  ASSERT_TRUE(write_random_model(config, 3, directory).ok());
  const auto opened = Weights::open(directory, read_config(directory).value());
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto made = Weights::generate(config, 3, 2);
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(opened->bytes(), made->bytes());
  EXPECT_EQ(opened->bytes(), Weights::describe(config).bytes());
  ASSERT_EQ(opened->tensors().size(), made->tensors().size());
  double squares = 0;
  int64_t numbers = 0;
  for (size_t i = 0; i < made->tensors().size(); ++i) {
    const Tensor& a = opened->tensors()[i];
    const Tensor& b = made->tensors()[i];
    ASSERT_EQ(a.shape, b.shape) << a.name;
    ASSERT_EQ(a.mx.k, b.mx.k) << a.name;
    if (a.mx.k == 0) {
      EXPECT_EQ(bytes_of(a), bytes_of(b)) << a.name;
      continue;
    }
    for (int64_t r = 0; r < a.rows(); ++r) {
      for (int64_t c = 0; c < a.columns(); ++c) {
        ASSERT_EQ(a.mx.at(r, c), b.mx.at(r, c)) << a.name << " " << r << " " << c;
        squares += static_cast<double>(a.columns()) * a.mx.at(r, c) * a.mx.at(r, c);
        ++numbers;
      }
    }
  }
  // 1 / sqrt(columns), but for a power of two.
  EXPECT_GT(squares / static_cast<double>(numbers), 0.4);
  EXPECT_LT(squares / static_cast<double>(numbers), 4);
  const auto gates = opened->of_experts(Role::expert_gate, 1, 3);
  const auto ups = opened->of_experts(Role::expert_up, 1, 3);
  EXPECT_EQ(gates[0].name, "model.layers.1.mlp.experts.gate_up_proj_blocks");
  EXPECT_EQ(ups[0].mx.row_codes(0), gates[0].mx.row_codes(0) + 32);
  EXPECT_EQ(gates[1].mx.row_codes(0), gates[0].mx.row_codes(0) + 32 * 64);
  const Tensor& bias = opened->get(Role::expert_up_bias, 0);
  EXPECT_EQ(bias.shape, (std::vector<int64_t>{96}));

  ModelConfig other = config;
  other.experts.count = 4;
  EXPECT_NE(Weights::open(directory, other).error().message.find("has shape [3,64]"),
            std::string::npos);
  other = config;
  other.experts.size = 64;
  EXPECT_NE(Weights::open(directory, other)
                .error()
                .message.find("gate_up_proj_blocks\" is U8 [3,64,2,16], but the config makes it U8 "
                              "[3,128,2,16]: MXFP4"),
            std::string::npos)
      << Weights::open(directory, other).error().message;
}

// A matrix of the checkpoint that holds those of several roles: each role's rows, where they lie.
TEST(Weights, PartsOfAMatrixLieInIt) {
  ModelConfig config;
  for (const ModelConfig& model : small_models()) {
    config = model.architecture == "Phi3ForCausalLM" ? model : config;
  }
  TestDirectory parent;
  const fs::path directory = parent.path() / "model";
  ASSERT_TRUE(write_random_model(config, 3, directory).ok());
  const Weights weights = Weights::open(directory, config).value();
  const Tensor& query = weights.get(Role::query, 1);
  EXPECT_EQ(query.shape, (std::vector<int64_t>{32, 24}));
  EXPECT_EQ(weights.get(Role::key, 1).data, query.data + query.bytes());
  EXPECT_EQ(weights.get(Role::value, 1).data,
            query.data + query.bytes() + weights.get(Role::key, 1).bytes());
  EXPECT_EQ(weights.get(Role::up, 0).data,
            weights.get(Role::gate, 0).data + weights.get(Role::gate, 0).bytes());
  config.kv_heads = 1;
  EXPECT_NE(
      Weights::open(directory, config)
          .error()
          .message.find("qkv_proj.weight\" has shape [64,24], but the config makes it [48,24]"),
      std::string::npos);
}

TEST(RandomWeights, TheDocumentedFormula) {
  const auto mix = [](uint64_t z) {
    z ^= z >> 30;
    z *= 0xbf58476d1ce4e5b9;
    z ^= z >> 27;
    z *= 0x94d049bb133111eb;
    return z ^ (z >> 31);
  };
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : std::string("w")) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  const uint64_t key = mix(mix(42) + hash);
  struct Case {
    Role role;
    std::vector<int64_t> shape;
    double middle;
    double half_width;
  };
  for (const Case& c :
       {Case{Role::gate, {60, 50}, 0, std::sqrt(3.0 / 50)},
        Case{Role::final_norm, {3000}, 1, 0.125}, Case{Role::key_bias, {3000}, 0, 0.0625}}) {
    const RandomTensor tensor = random_tensor(42, {c.role, 0, "w", c.shape});
    std::vector<float> f32(3000);
    std::vector<bf16> half(3000);
    std::vector<f16> ieee(3000);
    fill_random(tensor, DType::f32, 0, 3000, reinterpret_cast<std::byte*>(f32.data()));
    fill_random(tensor, DType::bf16, 0, 3000, reinterpret_cast<std::byte*>(half.data()));
    fill_random(tensor, DType::f16, 0, 3000, reinterpret_cast<std::byte*>(ieee.data()));
    double sum = 0;
    double squares = 0;
    for (uint64_t i = 0; i < 3000; ++i) {
      const uint64_t u = mix(key + (i / 4) * 0x9e3779b97f4a7c15) >> (16 * (i % 4)) & 0xffff;
      const double exact = c.middle + (2.0 * static_cast<double>(u) - 65535) / 65535 * c.half_width;
      ASSERT_NEAR(f32[i], exact, 1e-6) << i;
      ASSERT_EQ(half[i].bits, to_bf16(f32[i]).bits) << i;
      ASSERT_EQ(ieee[i].bits, to_f16(f32[i]).bits) << i;
      sum += f32[i] - c.middle;
      squares += (f32[i] - c.middle) * (f32[i] - c.middle);
    }
    const double deviation = c.half_width / std::sqrt(3.0);
    EXPECT_NEAR(sum / 3000, 0, 5 * deviation / std::sqrt(3000.0));
    EXPECT_NEAR(std::sqrt(squares / 3000), deviation, 0.05 * deviation);
  }
}

TEST(RandomWeights, AnyPartByItself) {
  const RandomTensor tensor = random_tensor(7, {Role::up, 0, "w", {100, 100}});
  std::vector<uint16_t> whole(10000);
  fill_random(tensor, DType::bf16, 0, 10000, reinterpret_cast<std::byte*>(whole.data()));
  for (const int64_t first : {0, 4, 1020, 1024, 9996}) {
    for (const int64_t count : {0, 1, 3, 1023, 1025, 5000}) {
      if (first + count > 10000) {
        continue;
      }
      std::vector<uint16_t> part(static_cast<size_t>(count) + 1, 0xdead);
      fill_random(tensor, DType::bf16, first, count, reinterpret_cast<std::byte*>(part.data()));
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + first, static_cast<size_t>(count) * 2), 0);
      EXPECT_EQ(part.back(), 0xdead);
    }
  }
}

TEST(Weights, GenerateDependsOnSeedAloneNotOnThreads) {
  ModelConfig config = small_llama();
  config.ffn = 40000;  // more than one part of work a tensor
  config.hidden = 40;
  config.head_dim = 10;
  const auto one = Weights::generate(config, 5, 1);
  const auto three = Weights::generate(config, 5, 3);
  const auto other = Weights::generate(config, 6, 1);
  ASSERT_TRUE(one.ok() && three.ok() && other.ok());
  std::set<std::string> all;
  for (size_t i = 0; i < one->tensors().size(); ++i) {
    const Tensor& tensor = one->tensors()[i];
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 64, 0u);
    EXPECT_EQ(bytes_of(tensor), bytes_of(three->tensors()[i])) << tensor.name;
    EXPECT_NE(bytes_of(tensor), bytes_of(other->tensors()[i])) << tensor.name;
    all.insert(bytes_of(tensor));
  }
  EXPECT_EQ(all.size(), one->tensors().size()) << "two tensors have the same values";
}

TEST(Weights, GenerateRefusesWhatDoesNotFit) {
  ModelConfig config = small_llama();
  config.layers = 4096;
  config.hidden = 1 << 20;
  config.ffn = 1 << 22;
  const auto weights = Weights::generate(config, 1, 1);
  ASSERT_FALSE(weights.ok());
  EXPECT_EQ(weights.error().kind, ErrorKind::device);
  EXPECT_EQ(weights.error().message.find("LlamaForCausalLM: its weights take 10808723308"), 0u)
      << weights.error().message;
}

TEST(Weights, FindByRole) {
  for (const ModelConfig& config : small_models()) {
    const auto weights = Weights::generate(config, 1, 1);
    ASSERT_TRUE(weights.ok());
    const auto specs = tensor_specs(config);
    int64_t bytes = 0;
    for (const TensorSpec& spec : specs) {
      const Tensor& tensor = weights->get(spec.role, spec.layer);
      EXPECT_EQ(tensor.name, spec.name);
      EXPECT_EQ(tensor.shape, spec.shape);
      EXPECT_EQ(tensor.dtype, config.dtype);
      bytes += tensor.bytes();
    }
    EXPECT_EQ(weights->bytes(), bytes);
    EXPECT_EQ(&weights->get(Role::head) == &weights->get(Role::embedding), config.tied_head);
    EXPECT_EQ(weights->find(Role::query), nullptr);
    EXPECT_EQ(weights->find(Role::gate_bias, 1) != nullptr, config.ffn_bias && config.gated_ffn);
    EXPECT_EQ(weights->find(Role::up_bias, 1) != nullptr, config.ffn_bias);
    EXPECT_EQ(weights->find(Role::query_norm, 0) != nullptr, config.qk_norm != QkNorm::none);
  }
}

/// What is in a file comes from there again; what was made is lost when it is no longer of use.
TEST(Weights, ReleaseGivesPagesBackAndTouchesNoNeighbour) {
  ModelConfig config = small_llama();
  config.vocabulary = 8000;  // pages of embeddings
  TestDirectory parent;
  const fs::path directory = parent.path() / "model";
  ASSERT_TRUE(write_random_model(config, 3, directory).ok());
  Weights opened = Weights::open(directory, config).value();
  Weights generated = Weights::generate(config, 3, 2).value();
  const Weights expected = Weights::generate(config, 3, 2).value();
  const auto all_equal = [&](const Weights& weights) {
    for (size_t i = 0; i < expected.tensors().size(); ++i) {
      if (bytes_of(weights.tensors()[i]) != bytes_of(expected.tensors()[i])) {
        return false;
      }
    }
    return true;
  };
  opened.release(opened.get(Role::embedding), Weights::Use::none);
  EXPECT_TRUE(all_equal(opened));
  generated.release(generated.get(Role::embedding), Weights::Use::rare);
  EXPECT_TRUE(all_equal(generated));
  generated.release(generated.get(Role::gate, 1), Weights::Use::none);  // less than a page
  EXPECT_TRUE(all_equal(generated));
  generated.release(generated.get(Role::embedding), Weights::Use::none);
  EXPECT_EQ(bytes_of(generated.get(Role::embedding)).substr(100'000, 4096), std::string(4096, 0));
  for (const Role role : {Role::query, Role::down, Role::ffn_norm}) {
    EXPECT_EQ(bytes_of(generated.get(role, 0)), bytes_of(expected.get(role, 0)));
  }
  EXPECT_EQ(bytes_of(generated.get(Role::head)), bytes_of(expected.get(Role::head)));
}

TEST(WriteRandomModel, IsWhatGenerateMakes) {
  for (const ModelConfig& config : small_models()) {
    TestDirectory parent;
    const fs::path directory = parent.path() / "new" / "model";
    static int64_t seen_done;
    static int64_t seen_total;
    const Status status = write_random_model(config, 3, directory, [](int64_t done, int64_t total) {
      seen_done = done;
      seen_total = total;
    });
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_EQ(seen_done, seen_total);
    EXPECT_EQ(files_in(directory), (std::set<std::string>{"config.json", "generation_config.json",
                                                          "model.safetensors"}));
    EXPECT_EQ(static_cast<int64_t>(fs::file_size(directory / "model.safetensors")), seen_total);

    auto read = read_config(directory);
    ASSERT_TRUE(read.ok()) << read.error().message;
    read->name = config.name;
    EXPECT_EQ(*read, config);
    const auto opened = Weights::open(directory, config);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const auto generated = Weights::generate(config, 3, 2);
    ASSERT_EQ(opened->tensors().size(), generated->tensors().size());
    for (size_t i = 0; i < opened->tensors().size(); ++i) {
      EXPECT_EQ(opened->tensors()[i].name, generated->tensors()[i].name);
      EXPECT_EQ(bytes_of(opened->tensors()[i]), bytes_of(generated->tensors()[i]));
    }
  }
}

TEST(WriteRandomModel, Shards) {
  TestDirectory parent;
  const ModelConfig config = small_llama();
  const fs::path directory = parent.path() / "model";
  const Status status = write_random_model(config, 3, directory, nullptr, 4096);
  ASSERT_TRUE(status.ok()) << status.error().message;
  const auto index = nlohmann::json::parse(read_file(directory / "model.safetensors.index.json"));
  const auto opened = Weights::open(directory, config);
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  const auto generated = Weights::generate(config, 3, 1);
  for (size_t i = 0; i < generated->tensors().size(); ++i) {
    EXPECT_EQ(bytes_of(opened->tensors()[i]), bytes_of(generated->tensors()[i]));
  }
  EXPECT_EQ(index["metadata"]["total_size"], generated->bytes());
  EXPECT_EQ(index["weight_map"].size(), generated->tensors().size());
  size_t shards = 0;
  for (const std::string& name : files_in(directory)) {
    if (name.ends_with(".safetensors")) {
      ++shards;
      EXPECT_LE(fs::file_size(directory / name), 4096u + 2048u) << name;
    }
  }
  EXPECT_GT(shards, 2u);
  EXPECT_TRUE(
      fs::exists(directory / ("model-00001-of-0000" + std::to_string(shards) + ".safetensors")));
}

TEST(WriteRandomModel, NeedsAnEmptyDirectory) {
  TestDirectory directory;
  EXPECT_TRUE(write_random_model(small_llama(), 1, directory.path()).ok());
  Status status = write_random_model(small_llama(), 1, directory.path());
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message,
            directory.path().string() + ": exists and is not empty; choose a new directory");
  status = write_random_model(small_llama(), 1, directory.path() / "config.json");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("config.json: exists and is not a directory"),
            std::string::npos);
  status = write_random_model(small_llama(), 1, directory.path() / "config.json" / "sub");
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("sub: cannot be created: Not a directory"),
            std::string::npos);
}

TEST(WriteRandomModel, RefusesWhatTheDiskCannotHold) {
  TestDirectory parent;
  ModelConfig config = small_llama();
  config.layers = 4096;
  config.hidden = 1 << 20;
  config.ffn = 1 << 22;
  const Status status = write_random_model(config, 1, parent.path() / "model");
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().kind, ErrorKind::input);
  EXPECT_NE(status.error().message.find("takes 10808723308"), std::string::npos)
      << status.error().message;
  EXPECT_NE(status.error().message.find("bytes, but the disk has "), std::string::npos);
  EXPECT_TRUE(files_in(parent.path()).empty());
}

/// While it lives, files of this process cannot grow beyond `bytes`: a write fails half-way, as on
/// a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(WriteRandomModel, LeavesNothingWhenWritingFails) {
  TestDirectory parent;
  const fs::path directory = parent.path() / "model";
  for (const int64_t shard_bytes : {int64_t{1} << 30, int64_t{4000}}) {
    Status status;
    {
      // With one file its weights do not fit; with small shards some fit and the index does not.
      const FileSizeLimit limit(shard_bytes > 4000 ? 20000 : 5300);
      ModelConfig config = small_llama();
      config.layers = 24;
      status = write_random_model(config, 1, directory, nullptr, shard_bytes);
    }
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().kind, ErrorKind::input);
    EXPECT_NE(status.error().message.find("the disk is full, or a quota or file size limit"),
              std::string::npos)
        << status.error().message;
    EXPECT_NE(status.error().message.find(" are needed, "), std::string::npos);
    EXPECT_FALSE(fs::exists(directory));
  }
  // So are the directories above it that were made, and no others.
  {
    const FileSizeLimit limit(3000);
    EXPECT_FALSE(write_random_model(small_llama(), 1, parent.path() / "a" / "b" / "c").ok());
  }
  EXPECT_TRUE(fs::exists(parent.path()) && fs::is_empty(parent.path()));
  // A directory that was there stays, empty.
  fs::create_directory(directory);
  {
    const FileSizeLimit limit(3000);
    EXPECT_FALSE(write_random_model(small_llama(), 1, directory).ok());
  }
  EXPECT_TRUE(fs::exists(directory) && fs::is_empty(directory));
}

TEST(WeightsOpen, NothingThere) {
  TestDirectory directory;
  EXPECT_EQ(open_error(directory.path(), small_llama()),
            directory.path().string() +
                ": there is neither model.safetensors nor model.safetensors.index.json; Weft reads "
                "weights in the safetensors format alone");
}

TEST(WeightsOpen, TensorsThatAreWrong) {
  TestDirectory directory;
  const ModelConfig config = small_llama();
  const fs::path path = directory.path() / "model.safetensors";
  const auto good = hand_made(config);
  const std::string up = "model.layers.1.mlp.up_proj.weight";

  auto tensors = good;
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"I64", {1}, "12345678"};
  write_safetensors(path, tensors);
  EXPECT_EQ(open_error(directory.path(), config), "accepted");  // what is not needed is ignored

  tensors = good;
  tensors.erase(up);
  write_safetensors(path, tensors);
  EXPECT_EQ(open_error(directory.path(), config),
            path.string() + ": tensor \"" + up + "\" is missing");

  tensors = good;
  tensors[up].shape = {24, 20};
  write_safetensors(path, tensors);
  EXPECT_EQ(
      open_error(directory.path(), config),
      path.string() + ": tensor \"" + up + "\" has shape [24,20], but the config makes it [20,24]");

  tensors = good;
  tensors[up].shape = {480};
  write_safetensors(path, tensors);
  EXPECT_NE(open_error(directory.path(), config).find("has shape [480]"), std::string::npos);

  tensors = good;
  tensors[up].dtype = "I16";
  write_safetensors(path, tensors);
  EXPECT_EQ(open_error(directory.path(), config),
            path.string() + ": tensor \"" + up +
                "\" has dtype I16; Weft reads BF16, F16 and F32, and F8_E4M3 with scales");

  write_safetensors(path, good);
  fs::resize_file(path, fs::file_size(path) - 1);
  EXPECT_NE(open_error(directory.path(), config).find("the file is truncated"), std::string::npos);
}

/// A config with fewer layers, biases or norms than the file would compute another model.
TEST(WeightsOpen, LayersThatTheConfigLeavesOut) {
  TestDirectory directory;
  const fs::path path = directory.path() / "model.safetensors";
  ModelConfig config = small_llama();
  config.qkv_bias = true;
  const auto good = hand_made(config);
  std::map<std::string, HandMade> bare;
  for (const auto& [name, tensor] : good) {
    bare[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  ModelConfig fewer = config;
  fewer.layers = 1;
  ModelConfig unbiased = config;
  unbiased.qkv_bias = false;
  for (const auto& [tensors, prefix] : {std::pair(good, "model."), std::pair(bare, "")}) {
    write_safetensors(path, tensors);
    EXPECT_EQ(open_error(directory.path(), config), "accepted");
    for (const auto& [wrong, name] : {std::pair(fewer, "layers.1.input_layernorm.weight"),
                                      std::pair(unbiased, "layers.0.self_attn.k_proj.bias")}) {
      EXPECT_EQ(open_error(directory.path(), wrong),
                path.string() + ": tensor \"" + prefix + name +
                    "\" is none of the model that config.json describes; see there "
                    "num_hidden_layers, architectures, attention_bias and mlp_bias");
    }
  }
}

TEST(WeightsOpen, MixedFormatsAndBareNames) {
  TestDirectory directory;
  const ModelConfig config = small_llama();
  auto tensors = hand_made(config);
  HandMade& norm = tensors["model.norm.weight"];
  norm = {"F32", norm.shape, std::string(4 * 24, '\0')};
  tensors["lm_head.weight"].dtype = "F16";
  std::map<std::string, HandMade> bare;
  for (const auto& [name, tensor] : tensors) {
    bare[name.starts_with("model.") ? name.substr(6) : name] = tensor;
  }
  for (const auto& chosen : {tensors, bare}) {
    write_safetensors(directory.path() / "model.safetensors", chosen);
    const auto weights = Weights::open(directory.path(), config);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    EXPECT_EQ(weights->get(Role::final_norm).dtype, DType::f32);
    EXPECT_EQ(weights->get(Role::head).dtype, DType::f16);
    EXPECT_EQ(weights->get(Role::gate, 0).dtype, DType::bf16);
  }
}

TEST(WeightsOpen, UnalignedTensorsAreCopied) {
  TestDirectory directory;
  const ModelConfig config = small_llama();
  const auto tensors = hand_made(config);
  write_safetensors(directory.path() / "model.safetensors", tensors, 1);
  const auto weights = Weights::open(directory.path(), config);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  for (const Tensor& tensor : weights->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.data) % 2, 0u);
    EXPECT_EQ(bytes_of(tensor), tensors.at(tensor.name).bytes);
  }
}

TEST(WeightsOpen, TiedHeadThatIsAlsoThere) {
  TestDirectory directory;
  ModelConfig config = small_llama();
  config.tied_head = true;
  auto tensors = hand_made(config);
  tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
  const fs::path path = directory.path() / "model.safetensors";
  write_safetensors(path, tensors);
  const auto weights = Weights::open(directory.path(), config);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->get(Role::head).name, "model.embed_tokens.weight");
  tensors["lm_head.weight"].bytes[17] ^= 1;
  write_safetensors(path, tensors);
  EXPECT_EQ(open_error(directory.path(), config),
            path.string() +
                ": tensor \"lm_head.weight\" differs from \"model.embed_tokens.weight\", but "
                "config.json has tie_word_embeddings true; set it to false, or remove the tensor");
}

TEST(WeightsOpen, Shards) {
  TestDirectory directory;
  const ModelConfig config = small_llama();
  const auto good = hand_made(config);
  std::map<std::string, HandMade> first;
  std::map<std::string, HandMade> second;
  nlohmann::json index;
  for (const auto& [name, tensor] : good) {
    const bool late = name.find("layers.1") != std::string::npos;
    (late ? second : first)[name] = tensor;
    index["weight_map"][name] = late ? "b.safetensors" : "a.safetensors";
  }
  write_safetensors(directory.path() / "a.safetensors", first);
  write_safetensors(directory.path() / "b.safetensors", second);
  const std::string index_path =
      directory.write("model.safetensors.index.json", index.dump()).string();
  EXPECT_EQ(open_error(directory.path(), config), "accepted");

  // Said to be in a shard that does not have it.
  const std::string down = "model.layers.1.mlp.down_proj.weight";
  nlohmann::json wrong = index;
  wrong["weight_map"][down] = "a.safetensors";
  directory.write("model.safetensors.index.json", wrong.dump());
  EXPECT_EQ(open_error(directory.path(), config),
            index_path + ": tensor \"" + down +
                "\" is said to be in a.safetensors, which does not have it");
  // Not in the index.
  wrong = index;
  wrong["weight_map"].erase(down);
  directory.write("model.safetensors.index.json", wrong.dump());
  EXPECT_EQ(open_error(directory.path(), config),
            index_path + ": tensor \"" + down + "\" is missing");
  // An index that leads elsewhere, or is none.
  for (const nlohmann::json& file :
       {nlohmann::json("../a.safetensors"), nlohmann::json("/etc/passwd"), nlohmann::json(".."),
        nlohmann::json(""), nlohmann::json("a\nb"), nlohmann::json(3)}) {
    wrong["weight_map"][down] = file;
    directory.write("model.safetensors.index.json", wrong.dump());
    EXPECT_EQ(open_error(directory.path(), config),
              index_path + ": weight_map: tensor \"" + down + "\" is in " + file.dump() +
                  "; it must be the name of a file beside the index");
  }
  for (const char* text : {"{}", "[]", R"({"weight_map": []})"}) {
    directory.write("model.safetensors.index.json", text);
    EXPECT_EQ(open_error(directory.path(), config),
              index_path + ": weight_map must be an object of tensor and file names");
  }
  directory.write("model.safetensors.index.json", R"({"weight_map": {}})");
  EXPECT_EQ(open_error(directory.path(), config),
            index_path + ": tensor \"model.embed_tokens.weight\" is missing");
  // A shard is not there.
  directory.write("model.safetensors.index.json", index.dump());
  fs::remove(directory.path() / "b.safetensors");
  EXPECT_EQ(open_error(directory.path(), config),
            index_path +
                ": tensor \"model.layers.1.input_layernorm.weight\" is in b.safetensors, "
                "which is not there: is the download complete?");
}

/// Codes and scales as a checkpoint has them.
std::map<std::string, HandMade> in_eight_bits(const ModelConfig& config) {
  std::map<std::string, HandMade> tensors = hand_made(config);
  const auto weights = Weights::generate(config, 1, 1);
  for (const Tensor& tensor : weights->tensors()) {
    if (tensor.scales.scaling == Scaling::none) {
      continue;
    }
    const auto count = tensor.scale_count();
    std::vector<int64_t> shape = {count};
    if (tensor.scales.scaling == Scaling::block) {
      shape = {scale_blocks(tensor.rows()), scale_blocks(tensor.columns())};
    }
    tensors[scale_name(config.quantization, tensor.name)] = {
        "F32", shape,
        std::string(reinterpret_cast<const char*>(tensor.scales.data),
                    static_cast<size_t>(count) * sizeof(float))};
    if (tensor.input_scale > 0) {
      tensors[input_scale_name(tensor.name)] = {
          "F32",
          {},
          std::string(reinterpret_cast<const char*>(&tensor.input_scale), sizeof(float))};
    }
  }
  return tensors;
}

ModelConfig small_in_eight_bits(std::string_view format) {
  ModelConfig config = small_llama();
  config.hidden = 136;  // a block and a bit
  config.ffn = 260;
  config.quantization = *quantization_of(format);
  return config;
}

TEST(EightBits, WhatIsWrittenIsWhatIsGenerated) {
  for (const char* format : {"fp8-block", "fp8-row", "fp8-channel", "fp8-tensor"}) {
    const ModelConfig config = small_in_eight_bits(format);
    const TestDirectory directory;
    ASSERT_TRUE(write_random_model(config, 5, directory.path() / "model").ok());
    const ModelConfig read = *read_config(directory.path() / "model");
    EXPECT_EQ(read.quantization, config.quantization);
    const auto opened = Weights::open(directory.path() / "model", read);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    const auto made = Weights::generate(config, 5, 2);
    EXPECT_EQ(opened->bytes(), made->bytes());
    EXPECT_EQ(opened->bytes(), Weights::describe(config).bytes());
    for (int64_t layer = -1; layer < config.layers; ++layer) {
      for (int role = 0; role < kRoles; ++role) {
        const Tensor* a = opened->find(static_cast<Role>(role), layer);
        const Tensor* b = made->find(static_cast<Role>(role), layer);
        ASSERT_EQ(a == nullptr, b == nullptr);
        if (a == nullptr) {
          continue;
        }
        const bool matrix = a->shape.size() == 2 && layer >= 0;
        EXPECT_EQ(is_fp8(a->dtype), matrix) << a->name;  // not the head, nor the embedding
        EXPECT_EQ(bytes_of(*a), bytes_of(*b)) << a->name;
        EXPECT_EQ(a->scales.scaling, b->scales.scaling);
        EXPECT_EQ(a->scales.row_stride, b->scales.row_stride);
        EXPECT_EQ(a->input_scale, b->input_scale);
        EXPECT_EQ(a->input_scale > 0, matrix && format == std::string("fp8-tensor"));
        for (int64_t i = 0; i < a->scale_count(); ++i) {
          EXPECT_EQ(a->scales.data[i], b->scales.data[i]) << a->name << " " << i;
        }
      }
    }
  }
}

/// A standard deviation of about 1 / sqrt(in), as plain matrices have.
TEST(EightBits, AreOfTheSizeOfPlainOnes) {
  const ModelConfig config = small_in_eight_bits("fp8-block");
  const auto weights = Weights::generate(config, 3, 1);
  const Tensor& down = weights->get(Role::down, 1);
  const auto* codes = reinterpret_cast<const e4m3fn*>(down.data);
  double squares = 0;
  for (int64_t r = 0; r < down.rows(); ++r) {
    for (int64_t c = 0; c < down.columns(); ++c) {
      squares += std::pow(to_float(codes[r * down.columns() + c]) * down.scales.at(r, c), 2);
    }
  }
  const double mean = squares / static_cast<double>(down.elements());
  EXPECT_NEAR(mean * static_cast<double>(down.columns()), 1, 0.2);
}

TEST(EightBits, PartsOfAFusedMatrixHaveTheirRowsScales) {
  ModelConfig config;
  for (const ModelConfig& model : small_models()) {
    config = model.architecture == "Phi3ForCausalLM" ? model : config;
  }
  config.quantization = *quantization_of("fp8-row");
  const TestDirectory directory;
  ASSERT_TRUE(write_random_model(config, 5, directory.path() / "rows").ok());
  const auto rows = Weights::open(directory.path() / "rows", config);
  ASSERT_TRUE(rows.ok()) << rows.error().message;
  const auto made = Weights::generate(config, 5, 1);
  for (const Role role : {Role::query, Role::key, Role::value, Role::gate, Role::up}) {
    const Tensor& tensor = rows->get(role, 1);
    for (int64_t row = 0; row < tensor.rows(); ++row) {
      EXPECT_EQ(tensor.scales.at(row, 0), made->get(role, 1).scales.at(row, 0)) << tensor.name;
    }
  }
  EXPECT_NE(rows->get(Role::key, 1).scales.at(0, 0), rows->get(Role::query, 1).scales.at(0, 0));

  // q, k and v end within blocks: new-model writes them plain, and a file that has them is refused.
  config.quantization = *quantization_of("fp8-block");
  ASSERT_TRUE(write_random_model(config, 5, directory.path() / "blocks").ok());
  EXPECT_EQ(Weights::open(directory.path() / "blocks", config)->get(Role::query, 0).dtype,
            DType::bf16);
  const TestDirectory hand_made_directory;
  std::map<std::string, HandMade> fused;
  for (const TensorSpec& spec : tensor_specs(config)) {
    const std::vector<int64_t> shape = spec.shape_in_file();
    HandMade& tensor = fused[spec.name];
    const bool matrix = shape.size() == 2 && spec.layer >= 0;
    int64_t elements = 1;
    for (const int64_t size : shape) {
      elements *= size;
    }
    tensor = {matrix ? "F8_E4M3" : "BF16", shape,
              std::string(static_cast<size_t>(elements * (matrix ? 1 : 2)), 0)};
    if (matrix) {
      fused[scale_name(config.quantization, spec.name)] = {
          "F32", {1, 1}, std::string(sizeof(float), 0)};
    }
  }
  write_safetensors(hand_made_directory.path() / "model.safetensors", fused);
  EXPECT_NE(open_error(hand_made_directory.path(), config).find("share scales with those before"),
            std::string::npos);
}

TEST(EightBits, ScalesMayBeInBf16) {
  const ModelConfig config = small_in_eight_bits("fp8-channel");
  auto tensors = in_eight_bits(config);
  HandMade& scales = tensors["model.layers.0.mlp.up_proj.weight_scale"];
  scales = {"BF16", {config.ffn, 1}, std::string(static_cast<size_t>(2 * config.ffn), '\x3d')};
  const TestDirectory directory;
  write_safetensors(directory.path() / "model.safetensors", tensors);
  const auto weights = Weights::open(directory.path(), config);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->get(Role::up, 0).scales.at(7, 3), to_float(bf16{0x3d3d}));
}

/// A matrix that the checkpoint left out is plain, whatever the config lists.
TEST(EightBits, WhatAFileHasDecides) {
  const ModelConfig config = small_in_eight_bits("fp8-row");
  auto tensors = in_eight_bits(config);
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  tensors[name].dtype = "BF16";
  tensors[name].bytes.append(tensors[name].bytes);
  tensors.erase("model.layers.0.self_attn.o_proj.weight_scale");
  const TestDirectory directory;
  write_safetensors(directory.path() / "model.safetensors", tensors);
  const auto weights = Weights::open(directory.path(), config);
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_EQ(weights->get(Role::attention_out, 0).dtype, DType::bf16);
  EXPECT_EQ(weights->get(Role::attention_out, 1).dtype, DType::e4m3fn);
}

TEST(EightBits, HostileOnesAreRefused) {
  const ModelConfig config = small_in_eight_bits("fp8-tensor");
  const auto good = in_eight_bits(config);
  const auto error_with = [&](const std::function<void(std::map<std::string, HandMade>&)>& change,
                              const ModelConfig& as) {
    auto tensors = good;
    change(tensors);
    const TestDirectory directory;
    write_safetensors(directory.path() / "model.safetensors", tensors);
    return open_error(directory.path(), as);
  };
  const auto expect = [&](const std::function<void(std::map<std::string, HandMade>&)>& change,
                          std::string_view part) {
    const std::string error = error_with(change, config);
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  const std::string matrix = "model.layers.1.mlp.down_proj.";
  EXPECT_EQ(error_with([](auto&) {}, config), "accepted");
  expect(
      [&](auto& t) { t.erase(matrix + "weight_scale"); },
      "down_proj.weight_scale\" is missing: the scales of \"model.layers.1.mlp.down_proj.weight");
  expect([&](auto& t) { t.erase(matrix + "input_scale"); }, "down_proj.input_scale\" is missing");
  expect([&](auto& t) { t[matrix + "weight_scale"].bytes = std::string("\0\0\xc0\x7f", 4); },
         "has nan at place 0; scales must be finite");
  expect([&](auto& t) { t[matrix + "input_scale"].bytes = std::string(4, 0); },
         "input_scale\" is 0; it must be more than 0");
  expect(
      [&](auto& t) {
        t[matrix + "weight_scale"] = {"F32", {2}, std::string(8, 0)};
      },
      "has shape [2], but the config makes it [1]");
  expect(
      [&](auto& t) {
        t[matrix + "weight_scale"] = {"I32", {1}, std::string(4, 0)};
      },
      "has dtype I32; scales are BF16, F16 or F32");
  expect(
      [&](auto& t) {
        t["model.norm.weight"] = {"F8_E4M3", {136}, std::string(136, 0)};
      },
      "has dtype F8_E4M3, but config.json has no quantization_config");
  ModelConfig plain = config;
  plain.quantization = {};
  EXPECT_NE(error_with([](auto&) {}, plain).find("has no quantization_config that says its scales"),
            std::string::npos);
}

}  // namespace
}  // namespace weft

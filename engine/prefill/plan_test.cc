#include "engine/prefill/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "model/quantization.h"
#include "ops/gemm_skinny/op.h"

namespace weft {
namespace {

constexpr int64_t kCapacity = 4096;

struct Planned {
  ModelConfig config;
  Weights weights;
  std::vector<int64_t> places;
  Program program;
  ChunkLayout layout;
};

constexpr ChunkFormats kAllF32 = {.kv = DType::f32, .round_activations = false};

/// A preset of two layers. `gap`: bytes between one weight and the next. `quantization`: weights in
/// eight bits.
Planned make(const std::string& name, Logits logits, int64_t gap = 0, ChunkFormats formats = {},
             const Quantization& quantization = {}, Arch arch = Arch::hopper) {
  Planned made;
  made.config = preset(name).value();
  made.config.layers = 2;
  made.config.quantization = quantization;
  made.weights = Weights::describe(made.config);
  int64_t at = 0;
  for (const Tensor& tensor : made.weights.tensors()) {
    made.places.push_back(at);
    at += (tensor.bytes() + 255) / 256 * 256 + gap;
  }
  made.program = plan(made.config, made.weights, chunk_options(512, kCapacity, logits, formats));
  made.layout = lay_out_chunk(arch, made.program, made.weights, made.places);
  return made;
}

/// How many products the projections of q, k and v of a layer are.
int products(const Planned& made) {
  int count = 0;
  for (size_t i = 0; i < made.program.operations.size(); ++i) {
    const std::string& name = made.program.operations[i].name;
    const bool input = name == "q_proj" || name == "k_proj" || name == "v_proj";
    count += input && made.layout.joined[i] > 0 ? 1 : 0;
  }
  return count / 2;
}

/// Whether a buffer is what rows have drawn of experts.
bool is_draw(const Program& program, size_t buffer) {
  const auto id = static_cast<BufferId>(buffer);
  return std::ranges::any_of(program.operations, [&](const Operation& operation) {
    const auto* route = std::get_if<RouteOp>(&operation.body);
    return route != nullptr && (route->ids == id || route->weights == id);
  });
}

/// No two buffers share a byte, and rows begin where 16 bytes can be read at once; draws have no
/// gaps between rows.
void expect_apart(const Planned& made) {
  std::vector<std::pair<int64_t, int64_t>> taken;  // bytes of every row
  for (size_t i = 0; i < made.program.buffers.size(); ++i) {
    const Buffer& buffer = made.program.buffers[i];
    const ChunkMatrix& place = made.layout.buffers[i];
    if (buffer.space != Space::activation) {
      continue;
    }
    const int64_t size = size_of(buffer.element);
    ASSERT_GE(place.offset, 0) << buffer.name;
    EXPECT_EQ(place.offset % 16, 0) << buffer.name;
    if (is_draw(made.program, i)) {
      EXPECT_EQ(place.stride, buffer.columns) << buffer.name;
    } else {
      EXPECT_EQ(place.stride * size % 16, 0) << buffer.name;
      EXPECT_GE(place.stride, buffer.columns) << buffer.name;
    }
    const bool logits = static_cast<BufferId>(i) == made.program.logits;
    const int64_t rows = logits ? std::min(buffer.rows, kLogitsRows) : buffer.rows;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t begin = place.offset + row * place.stride * size;
      taken.emplace_back(begin, begin + buffer.columns * size);
    }
  }
  std::sort(taken.begin(), taken.end());
  for (size_t i = 1; i < taken.size(); ++i) {
    ASSERT_LE(taken[i - 1].second, taken[i].first);
  }
  EXPECT_LE(taken.back().second, made.layout.bytes);
}

TEST(PrefillPlan, MixturesHaveRoomForTheirOrderAndProducts) {
  const Planned made = make("qwen3-30b-a3b", Logits::all);
  const int64_t slots = made.program.rows * 8;
  std::vector<int64_t> begins{made.layout.order, made.layout.products, made.layout.scratch,
                              made.layout.bytes};
  for (const ChunkMatrix& buffer : made.layout.buffers) {
    begins.push_back(buffer.offset);
  }
  const auto room_at = [&](int64_t offset) {
    std::erase_if(begins, [&](int64_t begin) { return begin < offset; });
    return *std::ranges::min_element(begins, {}, [&](int64_t begin) {
      return begin == offset ? std::numeric_limits<int64_t>::max() : begin;
    }) - offset;
  };
  EXPECT_GE(room_at(made.layout.order), (128 + 1 + slots) * 4);
  EXPECT_GE(room_at(made.layout.products), slots * made.config.hidden * 4);
}

TEST(PrefillPlan, BuffersLieApartAndAligned) {
  for (const std::string& name : preset_names()) {
    for (const Logits logits : {Logits::none, Logits::all}) {
      for (const int64_t gap : {0, 256}) {
        for (const ChunkFormats formats : {ChunkFormats{}, kAllF32}) {
          SCOPED_TRACE(name);
          expect_apart(make(name, logits, gap, formats));
        }
      }
    }
  }
}

TEST(PrefillPlan, NeighbouringWeightsAreOneProduct) {
  EXPECT_EQ(products(make("llama-3.1-8b", Logits::none)), 1);
  EXPECT_EQ(products(make("qwen2.5-coder-1.5b", Logits::none)), 1) << "biases side by side too";
  EXPECT_EQ(products(make("llama-3.1-8b", Logits::none, 256)), 3);
}

TEST(PrefillPlan, LogitsHaveRoomForWholeColumns) {
  const Planned made = make("granite-3.1-2b", Logits::all);
  ASSERT_NE(made.config.vocabulary % 8, 0) << "a vocabulary that needs it";
  EXPECT_EQ(made.layout.buffers[static_cast<size_t>(made.program.logits)].stride,
            (made.config.vocabulary + 7) / 8 * 8);
}

TEST(PrefillPlan, ScratchWhereAProductIsFinishedApart) {
  const Planned llama = make("llama-3.1-8b", Logits::none);
  EXPECT_EQ(llama.layout.bytes - llama.layout.scratch, kSkinnyRows * llama.config.hidden * 4)
      << "no bias, no factor: few rows alone";
  const Planned granite = make("granite-3.1-2b", Logits::none);
  EXPECT_GE(granite.layout.bytes - granite.layout.scratch, 512 * granite.config.hidden * 4);
  const Planned f32 = make("granite-3.1-2b", Logits::none, 0, kAllF32);
  EXPECT_EQ(f32.layout.bytes, f32.layout.scratch) << "products in f32 finish themselves";
}

TEST(PrefillPlan, WeightsInEightBitsHaveRoomToBeWidened) {
  for (const char* format : {"fp8-block", "fp8-row", "fp8-channel", "fp8-tensor"}) {
    for (const ChunkFormats formats : {ChunkFormats{}, kAllF32}) {
      const Planned made =
          make("llama-3.2-1b", Logits::all, 0, formats, quantization_of(format).value());
      const int64_t element = formats.round_activations ? 2 : 4;
      EXPECT_GE(made.layout.bytes - made.layout.widened,
                2 * made.config.ffn * made.config.hidden * element)
          << format << ": gate and up";
      EXPECT_EQ(products(made), 1) << format;
      expect_apart(made);
    }
  }
  const Planned plain = make("llama-3.2-1b", Logits::all);
  EXPECT_EQ(plain.layout.bytes, plain.layout.widened);
}

TEST(PrefillPlan, LatentRowsAndExpertsInEightBits) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  const auto refusal = [&](Arch arch) {
    return refuse_prefill(arch, config, Weights::describe(config));
  };
  EXPECT_EQ(refusal(Arch::hopper) + refusal(Arch::cdna), "");
  config.quantization = quantization_of("fp8-block").value();
  EXPECT_EQ(refusal(Arch::hopper) + refusal(Arch::cdna), "");
  const Planned made = make("deepseek-v2-lite", Logits::all, 0, {}, config.quantization);
  EXPECT_GE(made.layout.bytes - made.layout.widened, 16 * (128 + 128) * 512 * 2)
      << "keys' and values' matrix";
  expect_apart(made);
  config.quantization = quantization_of("fp8-row").value();
  EXPECT_EQ(refusal(Arch::hopper),
            "model.layers.0.self_attn.q_proj.weight is F8_E4M3 in a model with experts, and its "
            "scales are not of blocks");
  config.quantization = {};
  config.experts.groups = 64;
  EXPECT_EQ(refusal(Arch::hopper), "its experts are of 64 groups, more than 32");
  config.experts = {};
  config.head_dim = 640;
  for (const Arch arch : {Arch::hopper, Arch::cdna}) {
    EXPECT_EQ(refusal(arch), "its latent rows are of 640 elements, more than 576");
  }
}

TEST(PrefillPlan, LatentRowsAreMultipliedOutWhereThereAreKernels) {
  const auto rows = [](const Planned& made) {
    return std::pair(made.layout.multiplies_out, made.layout.absorbed_rows);
  };
  const int64_t chunk = make("deepseek-v2-lite", Logits::none).program.rows;
  EXPECT_EQ(rows(make("deepseek-v2-lite", Logits::none)), std::pair(true, kMostStepRows));
  EXPECT_EQ(rows(make("deepseek-v2-lite", Logits::none, 0, kAllF32)),
            std::pair(true, kMostStepRows));
  EXPECT_EQ(rows(make("deepseek-v2-lite", Logits::none, 0, {DType::bf16, false})),
            std::pair(false, chunk));
  EXPECT_EQ(rows(make("deepseek-v2-lite", Logits::none, 0, {}, {}, Arch::cdna)),
            std::pair(false, chunk));
  expect_apart(make("deepseek-v2-lite", Logits::none, 0, {}, {}, Arch::cdna));

  ModelConfig config = preset("deepseek-v2-lite").value();
  const auto described = [&](Arch arch, ChunkFormats formats) {
    return describe_prefill(arch, config, Weights::describe(config), formats);
  };
  const std::string chunks = "by chunks of up to 2048 tokens (fewer than 3: token by token), ";
  EXPECT_EQ(described(Arch::hopper, {}), chunks +
                                             "activations bf16, KV cache bf16, keys and values "
                                             "multiplied out of latent rows");
  EXPECT_EQ(described(Arch::cdna, {}), chunks +
                                           "activations bf16, KV cache bf16, attention over latent "
                                           "rows absorbed: there is no other kernel");
  config.latent.unturned = 72;
  EXPECT_TRUE(
      described(Arch::hopper, {})
          .ends_with(
              "absorbed: RoPE leaves no multiple of 64 elements of a head, or turns more than 64"));
}

TEST(PrefillPlan, AmdHasNoFormForAllAndWantsNoScratch) {
  const Planned granite = make("granite-3.1-2b", Logits::none, 0, {}, {}, Arch::cdna);
  EXPECT_EQ(granite.layout.bytes, granite.layout.scratch);
  EXPECT_EQ(refuse_prefill(Arch::cdna, granite.config, granite.weights), "");
  ModelConfig experts = preset("qwen3-30b-a3b").value();
  EXPECT_EQ(refuse_prefill(Arch::cdna, experts, Weights::describe(experts)), "");
  experts.quantization = quantization_of("fp8-block").value();
  EXPECT_EQ(refuse_prefill(Arch::cdna, experts, Weights::describe(experts)), "");
  ModelConfig codes = preset("llama-3.2-1b").value();
  codes.quantization = quantization_of("fp8-block").value();
  EXPECT_EQ(refuse_prefill(Arch::cdna, codes, Weights::describe(codes)), "");
}

TEST(PrefillPlan, WhatBendsAResultTakesItsPlace) {
  const Planned gemma = make("gemma-2-2b", Logits::all);
  const int64_t scratch = gemma.layout.bytes - gemma.layout.scratch;
  EXPECT_LT(scratch, kLogitsRows * gemma.config.vocabulary * 4) << "capped logits want none";
  const Planned starcoder = make("starcoder2-3b", Logits::none);
  EXPECT_GE(starcoder.layout.bytes - starcoder.layout.scratch, 512 * starcoder.config.ffn * 4)
      << "what is rounded to bf16 after its activation does";
}

TEST(PrefillPlan, PromptsAreCutEvenly) {
  EXPECT_EQ(cut_into_chunks(0, 2048).count, 0);
  for (const int64_t rows : {1, 127, 128, 2047, 2048, 2049, 4096, 5000, 131071}) {
    const Chunks chunks = cut_into_chunks(rows, 2048);
    EXPECT_LE(chunks.rows, 2048) << rows;
    const int64_t last = rows - (chunks.count - 1) * chunks.rows;
    EXPECT_GT(last, 0) << rows;
    EXPECT_LE(last, chunks.rows) << rows;
    EXPECT_EQ(chunks.count, (rows + 2047) / 2048) << rows;
    EXPECT_LT(chunks.rows - last, 128 * chunks.count) << rows << ": no slivers";
  }
}

TEST(PrefillPlan, FormatsAreTheChunks) {
  const auto element = [](const Planned& made, const std::string& name) {
    const auto& buffers = made.program.buffers;
    return std::find_if(buffers.begin(), buffers.end(),
                        [&](const Buffer& buffer) { return buffer.name == name; })
        ->element;
  };
  for (const DType kv : {DType::bf16, DType::f32}) {
    for (const bool round : {true, false}) {
      const Planned made = make("llama-3.2-1b", Logits::none, 0, {kv, round});
      EXPECT_EQ(element(made, "keys.0"), element_of(kv));
      EXPECT_EQ(element(made, "input"), round ? Element::bf16 : Element::f32);
    }
  }
}

TEST(PrefillPlan, RefusesAndSaysWhy) {
  const ModelConfig config = preset("llama-3.2-1b").value();
  const Weights weights = Weights::describe(config);
  EXPECT_EQ(refuse_prefill(Arch::hopper, config, weights), "");
  EXPECT_EQ(describe_prefill(Arch::hopper, config, weights, kAllF32),
            "by chunks of up to 2048 tokens (fewer than 6: token by token), activations f32, KV "
            "cache f32");
  ModelConfig odd = config;
  odd.head_dim = 36;
  EXPECT_EQ(describe_prefill(Arch::hopper, odd, Weights::describe(odd), {}),
            "token by token: its heads are of 36, not a multiple of 8 up to 256");
  ModelConfig wide = config;
  wide.dtype = DType::f32;
  EXPECT_EQ(describe_prefill(Arch::hopper, wide, Weights::describe(wide), {}),
            "by chunks of up to 2048 tokens (fewer than 3: token by token), activations f32, KV "
            "cache bf16")
      << "weights of other formats than bf16 are multiplied in f32";
  ModelConfig biased = preset("qwen2.5-coder-1.5b").value();
  biased.quantization = quantization_of("fp8-block").value();
  const Weights codes = Weights::describe(biased);
  EXPECT_EQ(refuse_prefill(Arch::hopper, biased, codes), "");
  EXPECT_EQ(refuse_prefill(Arch::hopper, biased, codes, kAllF32),
            "model.layers.0.self_attn.q_proj.weight is F8_E4M3 beside biases, and activations are "
            "f32");
  ModelConfig little = config;
  little.partial_rotary_factor = 0.1875;
  EXPECT_EQ(describe_prefill(Arch::hopper, little, Weights::describe(little), {}),
            "token by token: RoPE turns 12 of a head's elements, not a multiple of 8");
}

}  // namespace
}  // namespace weft

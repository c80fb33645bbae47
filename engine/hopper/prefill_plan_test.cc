#include "engine/hopper/prefill_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ops/gemm_skinny/op.h"

namespace weft::hopper {
namespace {

constexpr int64_t kCapacity = 4096;

struct Made {
  ModelConfig config;
  Weights weights;
  std::vector<int64_t> places;
  Program program;
  ChunkLayout layout;
};

/// A preset of two layers. `gap`: bytes between one weight and the next.
Made make(const std::string& name, Logits logits, int64_t gap = 0) {
  Made made;
  made.config = preset(name).value();
  made.config.layers = 2;
  made.weights = Weights::describe(made.config);
  int64_t at = 0;
  for (const Tensor& tensor : made.weights.tensors()) {
    made.places.push_back(at);
    at += (tensor.bytes() + 255) / 256 * 256 + gap;
  }
  made.program = plan(made.config, made.weights, chunk_options(512, kCapacity, logits));
  made.layout = lay_out_chunk(made.program, made.weights, made.places);
  return made;
}

/// How many products the projections of q, k and v of a layer are.
int products(const Made& made) {
  int count = 0;
  for (size_t i = 0; i < made.program.operations.size(); ++i) {
    const std::string& name = made.program.operations[i].name;
    const bool input = name == "q_proj" || name == "k_proj" || name == "v_proj";
    count += input && made.layout.joined[i] > 0 ? 1 : 0;
  }
  return count / 2;
}

TEST(PrefillPlan, BuffersLieApartAndAligned) {
  for (const std::string& name : preset_names()) {
    for (const Logits logits : {Logits::none, Logits::all}) {
      for (const int64_t gap : {0, 256}) {
        const Made made = make(name, logits, gap);
        std::vector<std::pair<int64_t, int64_t>> taken;  // bytes of every row
        for (size_t i = 0; i < made.program.buffers.size(); ++i) {
          const Buffer& buffer = made.program.buffers[i];
          const ChunkMatrix& place = made.layout.buffers[i];
          if (buffer.space != Space::activation) {
            continue;
          }
          const int64_t size = size_of(buffer.element);
          ASSERT_GE(place.offset, 0) << name << " " << buffer.name;
          EXPECT_EQ(place.offset % 16, 0) << name << " " << buffer.name;
          EXPECT_EQ(place.stride * size % 16, 0) << name << " " << buffer.name;
          EXPECT_GE(place.stride, buffer.columns) << name << " " << buffer.name;
          for (int64_t row = 0; row < buffer.rows; ++row) {
            const int64_t begin = place.offset + row * place.stride * size;
            taken.emplace_back(begin, begin + buffer.columns * size);
          }
        }
        std::sort(taken.begin(), taken.end());
        for (size_t i = 1; i < taken.size(); ++i) {
          ASSERT_LE(taken[i - 1].second, taken[i].first) << name;
        }
        EXPECT_LE(taken.back().second, made.layout.bytes) << name;
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
  const Made made = make("granite-3.1-2b", Logits::all);
  ASSERT_NE(made.config.vocabulary % 8, 0) << "a vocabulary that needs it";
  EXPECT_EQ(made.layout.buffers[static_cast<size_t>(made.program.logits)].stride,
            (made.config.vocabulary + 7) / 8 * 8);
}

TEST(PrefillPlan, ScratchWhereAProductIsFinishedApart) {
  const Made llama = make("llama-3.1-8b", Logits::none);
  EXPECT_EQ(llama.layout.bytes - llama.layout.scratch, kSkinnyRows * llama.config.hidden * 4)
      << "no bias, no factor: few rows alone";
  const Made granite = make("granite-3.1-2b", Logits::none);
  EXPECT_GE(granite.layout.bytes - granite.layout.scratch, 512 * granite.config.hidden * 4);
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

TEST(PrefillPlan, SmallAndWideModelsAreFedByStepsAndSaysWhy) {
  const ModelConfig config = preset("llama-3.2-1b").value();
  const Weights weights = Weights::describe(config);
  EXPECT_EQ(refuse_prefill(config, weights, DType::bf16, true), "");
  EXPECT_NE(refuse_prefill(config, weights, DType::f32, true), "");
  EXPECT_NE(refuse_prefill(config, weights, DType::bf16, false), "");
  ModelConfig odd = config;
  odd.head_dim = 36;
  EXPECT_NE(refuse_prefill(odd, Weights::describe(odd), DType::bf16, true), "");
  ModelConfig wide = config;
  wide.dtype = DType::f32;
  EXPECT_NE(refuse_prefill(wide, Weights::describe(wide), DType::bf16, true), "");
}

}  // namespace
}  // namespace weft::hopper

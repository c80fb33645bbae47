#include "engine/resident/readback.h"

#include <gtest/gtest.h>

#include <cstring>
#include <variant>
#include <vector>

#include "engine/hopper/lower.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {
namespace {

constexpr int kSms = 132;
constexpr int64_t kCapacity = 256;

struct ReadBack {
  explicit ReadBack(const char* preset_name) {
    config = preset(preset_name).value();
    config.layers = 2;
    weights = Weights::describe(config);
    program = plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
    arena = lay_out(program, weights);
    lowered = lower(program, config, weights, arena, kCapacity,
                    std::vector<bool>(program.operations.size()))
                  .value();
  }
  ModelConfig config;
  Weights weights;
  Program program;
  Arena arena;
  Lowered lowered;
};

// Wherever the lists are cut, they hold every column of the products before, and none after.
TEST(Readback, CutsTheListsBetweenOperations) {
  const ReadBack made("llama-3.2-1b");
  const auto operations = static_cast<int32_t>(made.program.operations.size());
  for (int32_t end = 0; end <= operations; ++end) {
    int64_t expected = 0;
    for (int32_t i = 0; i < end; ++i) {
      const auto& body = made.program.operations[static_cast<size_t>(i)].body;
      if (const auto* linear = std::get_if<LinearOp>(&body)) {
        expected += linear->n;
      } else if (const auto* gated = std::get_if<GatedLinearOp>(&body)) {
        expected += gated->n;
      }
    }
    int64_t columns = 0;
    for (const auto& worker : made.lowered.codes) {
      const std::vector<Code> cut = codes_until(worker, end);
      for (const Code& code : cut) {
        EXPECT_EQ(code.ends_step != 0, &code == &cut.back());
        EXPECT_LT(code.operation, end);
        for (int i = 0; i < code.segments; ++i) {
          columns += code.product.segment[i].columns;
        }
      }
    }
    EXPECT_EQ(columns, expected) << "cut at " << end;
  }
}

/// A list that ends at a draw does not make the row of the product after it, which would be
/// awaited.
TEST(Readback, CutAtADrawMakesNoRowAhead) {
  const ReadBack made("olmoe-1b-7b");
  int made_whole = 0;
  for (const auto& worker : made.lowered.codes) {
    for (const Code& code : worker) {
      if (code.opcode == Opcode::route && code.route.next_row != NextRow::none) {
        ++made_whole;
        const std::vector<Code> cut = codes_until(worker, code.operation + 1);
        EXPECT_EQ(cut.back().opcode, Opcode::route);
        EXPECT_EQ(cut.back().route.next_row, NextRow::none);
      }
    }
  }
  EXPECT_GT(made_whole, 0);
}

std::vector<std::byte> words(const std::vector<uint64_t>& from) {
  std::vector<std::byte> bytes(from.size() * sizeof(uint64_t));
  std::memcpy(bytes.data(), from.data(), bytes.size());
  return bytes;
}

/// Two values, of which the upper 24 bits are kept, and a tag.
uint64_t word(float first, float second, uint32_t tag) {
  uint32_t a;
  uint32_t b;
  std::memcpy(&a, &first, sizeof(a));
  std::memcpy(&b, &second, sizeof(b));
  return (a >> 8) | static_cast<uint64_t>(b >> 8) << 24 | static_cast<uint64_t>(tag) << 48;
}

TEST(Readback, ReadsValuesAndTheirWriters) {
  const ReadBack made("llama-3.2-1b");
  const auto& embed = std::get<EmbedOp>(made.program.operations[1].body);
  const Buffer& buffer = made.program.buffers[static_cast<size_t>(embed.out)];
  std::vector<uint64_t> from(static_cast<size_t>(buffer.columns / 2), word(1.5f, -0.25f, 1003));
  from[0] = word(-3, 8, 999);   // an earlier run's
  from[1] = word(-3, 8, 1000);  // operation 0's
  const Image image = decode_buffer(made.program, made.arena, embed.out, words(from), 1000);
  EXPECT_EQ(image.values[2], -3);
  EXPECT_EQ(image.values[3], 8);
  EXPECT_EQ(image.values[4], 1.5f);
  EXPECT_EQ(image.values[5], -0.25f);
  EXPECT_EQ(image.writers[1], kNone);
  EXPECT_EQ(image.writers[2], 0);
  EXPECT_EQ(image.writers[5], 3);
}

TEST(Readback, PutsASplitsTailBehindItsSums) {
  const ReadBack made("llama-3.2-1b");
  for (const Operation& operation : made.program.operations) {
    const auto* op = std::get_if<AttentionOp>(&operation.body);
    if (op == nullptr) {
      continue;
    }
    const int64_t slots = op->query_heads * op->splits;
    std::vector<uint64_t> from;
    for (int64_t slot = 0; slot < slots; ++slot) {
      for (int64_t d = 0; d < op->head_dim; d += 2) {
        from.push_back(word(static_cast<float>(slot), static_cast<float>(d), 1));
      }
    }
    for (int64_t slot = 0; slot < slots; ++slot) {
      from.push_back(word(static_cast<float>(slot), 0.5f, 1));
    }
    const Image image = decode_buffer(made.program, made.arena, op->partials, words(from), 1);
    for (int64_t slot = 0; slot < slots; ++slot) {
      const float* at = image.values.data() + slot * (op->head_dim + 2);
      EXPECT_EQ(at[0], static_cast<float>(slot));
      EXPECT_EQ(at[op->head_dim - 1], static_cast<float>(op->head_dim - 2));
      EXPECT_EQ(at[op->head_dim], static_cast<float>(slot));
      EXPECT_EQ(at[op->head_dim + 1], 0.5f);
    }
    return;
  }
  FAIL() << "no attention";
}

// What the kernel fills is what its codes write to.
TEST(Readback, KeepsWhatTheCodesWrite) {
  for (const char* name : {"llama-3.2-1b", "olmo-2-1b", "gemma-3-1b", "starcoder2-3b"}) {
    const ReadBack made(name);
    const std::vector<bool> kept = kept_buffers(made.program);
    std::vector<bool> written(made.program.buffers.size(), false);
    const auto mark = [&](Place place) {
      for (size_t i = 0; i < written.size(); ++i) {
        const Buffer& buffer = made.program.buffers[i];
        const int64_t copies = buffer.space == Space::worker ? kSms : 1;
        for (int64_t copy = 0; copy < copies && made.arena.buffers[i] >= 0; ++copy) {
          const int64_t begin = made.arena.buffers[i] + copy * made.arena.worker_bytes;
          if (place != kNowhere && place >= begin && place < begin + buffer.bytes()) {
            written[i] = true;
          }
        }
      }
    };
    for (const auto& worker : made.lowered.codes) {
      for (const Code& code : worker) {
        if (code.opcode == Opcode::embed) {
          mark(code.embed.out);
        } else if (code.opcode == Opcode::norm_add) {
          mark(code.norm_add.residual);
        } else if (code.opcode == Opcode::attention) {
          mark(code.attention.keys);
          mark(code.attention.values);
          mark(code.attention.partials);
        }
        for (int i = 0; i < code.segments; ++i) {
          mark(code.product.segment[i].out);
        }
      }
    }
    EXPECT_EQ(kept, written) << name;
  }
}

}  // namespace
}  // namespace weft::hopper

#include "program/program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "model/config.h"
#include "program/access.h"
#include "program/disassemble.h"
#include "program/planner.h"
#include "program/verify.h"

namespace weft {
namespace {

PlanOptions options(int workers, int64_t rows, Logits logits) {
  PlanOptions result;
  result.workers = workers;
  result.rows = rows;
  result.capacity = 4096;
  result.logits = logits;
  result.sample = logits == Logits::last;
  return result;
}

/// A preset with few layers: every layer is planned alike.
ModelConfig shortened(const std::string& name) {
  ModelConfig config = preset(name).value();
  config.layers = 3;
  return config;
}

TEST(Planner, EveryPresetGivesSoundPrograms) {
  for (const std::string& name : preset_names()) {
    const ModelConfig config = shortened(name);
    const Weights weights = Weights::describe(config);
    for (const int workers : {1, 2, 3, 7}) {
      for (const auto& [rows, logits] : std::initializer_list<std::pair<int64_t, Logits>>{
               {1, Logits::last}, {100, Logits::last}, {100, Logits::none}, {40, Logits::all}}) {
        const Program program = plan(config, weights, options(workers, rows, logits));
        const Status status = verify(program);
        EXPECT_TRUE(status.ok()) << name << ", " << workers << " workers, " << rows
                                 << " rows: " << (status.ok() ? "" : status.error().message);
      }
    }
  }
}

TEST(Planner, DealsADecodeStepToAWholeGpu) {
  const ModelConfig config = shortened("llama-3.1-8b");
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, options(132, 1, Logits::last));
  EXPECT_TRUE(verify(program).ok());
  EXPECT_EQ(program.workers.size(), 132);
}

TEST(Planner, WorkDoesNotDependOnWorkers) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  for (const int64_t rows : {1, 512}) {
    const Cost one =
        cost_of(plan(config, weights, options(1, rows, Logits::last)), weights, rows, 100);
    const Cost many =
        cost_of(plan(config, weights, options(5, rows, Logits::last)), weights, rows, 100);
    EXPECT_NEAR(one.flops, many.flops, 1e-3 * one.flops);
    if (rows == 1) {
      // Each worker that keeps its own copy of a norm reads the norm's weights.
      EXPECT_NEAR(one.weight_bytes, many.weight_bytes, 1e-3 * one.weight_bytes);
    }
  }
}

TEST(Planner, CountsTheBytesAndFlopsOfLlama1B) {
  const ModelConfig config = preset("llama-3.2-1b").value();
  const Weights weights = Weights::describe(config);
  const Cost decode = cost_of(plan(config, weights, options(1, 1, Logits::last)), weights, 1, 511);
  // Every weight once (the tied table as the head) and one row of it again for the embedding.
  EXPECT_NEAR(decode.weight_bytes, static_cast<double>(weights.bytes()) + 2 * 2048, 1);
  // 512 positions read, one written: 16 layers, keys and values, 8 heads of 64, bf16.
  EXPECT_NEAR(decode.kv_bytes, 513.0 * 16 * 2 * 8 * 64 * 2, 1);

  const Cost chunk = cost_of(plan(config, weights, options(1, 512, Logits::last)), weights, 512, 0);
  // 15 layers of 512 rows, the last layer's q, k, v of 512 rows, one row through the rest.
  const double qkv = 2.0 * 2048 * (2048 + 512 + 512);
  const double rest = 2.0 * (2048.0 * 2048 + 3 * 2048.0 * 8192);
  const double attention = 4.0 * 2048;  // a key seen by all query heads
  const double pairs = 512.0 * 513 / 2;
  const double needed = 512 * (16 * qkv + 15 * rest) + rest + 15 * attention * pairs +
                        attention * 512 + 2.0 * 2048 * 128256;
  EXPECT_NEAR(chunk.flops, needed, 1e-3 * needed);
}

TEST(Planner, InverseFrequenciesAreScaledAsTransformersDoes) {
  // Llama-3.2-1B's, from the published formula in double.
  const ModelConfig config = preset("llama-3.2-1b").value();
  const std::vector<float> got = inverse_frequencies(config);
  ASSERT_EQ(got.size(), 32);
  for (size_t i = 0; i < got.size(); ++i) {
    const double plain = std::pow(500000.0, -static_cast<double>(i) / 32);
    const double wavelength = 2 * M_PI / plain;
    double expected = plain;
    if (wavelength > 8192.0 / 1) {
      expected = plain / 32;
    } else if (wavelength >= 8192.0 / 4) {
      const double smooth = (8192.0 / wavelength - 1) / (4 - 1);
      expected = (1 - smooth) * plain / 32 + smooth * plain;
    }
    EXPECT_NEAR(got[i], expected, 1e-5 * expected) << i;
  }
}

// Breaks programs in every way that a planner could get wrong and asks verify to notice.

TEST(Verify, NoticesEveryMissingWait) {
  const ModelConfig config = shortened("olmo-2-1b");
  const Weights weights = Weights::describe(config);
  for (const int64_t rows : {1, 48}) {
    const Program sound = plan(config, weights, options(3, rows, Logits::last));
    const Status status = verify(sound);
    ASSERT_TRUE(status.ok()) << status.error().message;
    size_t dropped = 0;
    size_t noticed = 0;
    for (size_t worker = 0; worker < sound.workers.size(); ++worker) {
      for (size_t i = 0; i < sound.workers[worker].size(); ++i) {
        if (sound.workers[worker][i].waits.empty()) {
          continue;
        }
        Program broken = sound;
        broken.workers[worker][i].waits.clear();
        ++dropped;
        noticed += verify(broken).ok() ? 0 : 1;
      }
    }
    // A wait can be superfluous where an earlier one of the same worker already covers it (the
    // three projections share theirs); most are not.
    EXPECT_GT(noticed, dropped / 2) << dropped;
  }
}

TEST(Verify, NamesTheRaceItFinds) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  Program program = plan(config, weights, options(2, 1, Logits::last));
  for (Instruction& instruction : program.workers[0]) {
    const Operation& op = program.operations[static_cast<size_t>(instruction.operation)];
    if (op.name == "down_proj" && op.layer == 1) {
      instruction.waits.clear();
    }
  }
  const Status status = verify(program);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("ffn_row"), std::string::npos) << status.error().message;
  EXPECT_NE(status.error().message.find("down_proj"), std::string::npos) << status.error().message;
}

TEST(Verify, NoticesAWaitThatCannotEnd) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  Program program = plan(config, weights, options(2, 1, Logits::last));
  // Worker 1 waits at its start for what only its own end brings about.
  const EventId last = program.workers[0].back().waits.back().event;
  program.workers[1].front().waits.push_back({last, false});
  const Status status = verify(program);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("never gets past"), std::string::npos)
      << status.error().message;
}

TEST(Verify, NoticesWrongCountsAndIndices) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  const Program sound = plan(config, weights, options(2, 1, Logits::last));
  Program program = sound;
  program.events[0].signals += 1;
  EXPECT_FALSE(verify(program).ok());
  program = sound;
  program.workers[0][3].operation = 100000;
  EXPECT_FALSE(verify(program).ok());
  program = sound;
  program.workers[0][3].tile = {5, 5};
  EXPECT_FALSE(verify(program).ok());
  program = sound;
  program.workers.clear();
  EXPECT_FALSE(verify(program).ok());
}

TEST(Verify, NoticesATileNobodyComputes) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  Program program = plan(config, weights, options(2, 1, Logits::last));
  for (Instruction& instruction : program.workers[1]) {
    const Operation& op = program.operations[static_cast<size_t>(instruction.operation)];
    if (op.name == "gate_up_proj" && op.layer == 0) {
      instruction.tile.end -= 16;
    }
  }
  const Status status = verify(program);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("before all of it is written"), std::string::npos)
      << status.error().message;
}

TEST(Disassemble, ShowsEveryInstructionAndTheSums) {
  const ModelConfig config = shortened("llama-3.2-1b");
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, options(2, 1, Logits::last));
  const std::string text = disassemble(program, weights, 1, 0, -1);
  for (const char* word : {"embed", "rope_angles", "q_proj", "gate_up_proj", "down_proj", "sample",
                           "sum of worker 1", "sum of the step", "wait", "signal"}) {
    EXPECT_NE(text.find(word), std::string::npos) << word;
  }
  EXPECT_EQ(text.find("more of the other layers"), std::string::npos);
  EXPECT_NE(disassemble(program, weights, 1, 0, 1).find("more of the other layers"),
            std::string::npos);
}

}  // namespace
}  // namespace weft

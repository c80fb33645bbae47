#include "engine/hopper/verify_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

#include "engine/hopper/test_lowered.h"
#include "engine/test_latents.h"
#include "model/quantization.h"
#include "ops/linear/hopper_layout.h"
#include "program/verify.h"

namespace weft::hopper {
namespace {

constexpr NextToken kAll[] = {NextToken::best, NextToken::sampled, NextToken::forced};

std::string fault_of(const Made& made, NextToken next = NextToken::best,
                     int64_t position = kCapacity - 2) {
  const Status status = verify_codes(made.lowered, made.program, next, position);
  return status.ok() ? "" : status.error().message;
}

TEST(VerifyCodes, EveryPresetIsSound) {
  for (const std::string& name : lowered_presets()) {
    const Made made = make(name);
    EXPECT_EQ(fault_of(made), "") << name;
  }
}

TEST(VerifyCodes, SeveralSequencesAreSound) {
  for (const char* name : {"llama-3.2-1b", "olmo-2-1b", "gemma-3-1b", "starcoder2-3b"}) {
    for (const int64_t sequences : {3, 8}) {
      const Made made = make(name, sequences);
      for (const NextToken next : kAll) {
        EXPECT_EQ(fault_of(made, next), "") << name;
      }
    }
  }
}

TEST(VerifyCodes, SeveralSequencesOfMixturesAreSound) {
  for (const std::string& name : mixtures()) {
    for (const int64_t sequences : {3, 8}) {
      const Made made = make(name, sequences);
      for (const NextToken next : kAll) {
        EXPECT_EQ(fault_of(made, next), "") << name;
      }
    }
  }
}

TEST(VerifyCodes, FewKeysAndManyAreSound) {
  const Made made = make("gemma-2-2b", 1, false, 3);
  for (const NextToken next : kAll) {
    for (const int64_t position : {0, 63, 127, 200, 1000}) {
      EXPECT_EQ(fault_of(made, next, position), "");
    }
  }
}

/// A model of two layers whose weights are in fp8.
Made make_fp8(const std::string& format, int64_t sequences) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 2;
  config.quantization = quantization_of(format).value();
  return make(config, sequences);
}

TEST(VerifyCodes, WeightsInFp8AreSound) {
  for (const std::string format : {"fp8-block", "fp8-row", "fp8-channel", "fp8-tensor"}) {
    for (const int64_t sequences : {1, 2, 4, 8}) {
      const Made made = make_fp8(format, sequences);
      for (const NextToken next : kAll) {
        if (next == NextToken::best || format == "fp8-block") {  // the others' codes end alike
          EXPECT_EQ(fault_of(made, next), "") << format << ", " << sequences << " sequences";
        }
      }
    }
  }
}

/// The first code of a worker that `is` it.
Code& find(Made& made, size_t worker, const std::function<bool(const Code&)>& is) {
  auto& codes = made.lowered.codes[worker];
  const auto found = std::find_if(codes.begin(), codes.end(), is);
  EXPECT_NE(found, codes.end());
  return *found;
}
std::string name_of(const Made& made, const Code& code) {
  return made.program.operations[static_cast<size_t>(code.operation)].name;
}

void expect_fault(const Made& made, NextToken next, const std::string& words,
                  int64_t position = kCapacity - 2) {
  const std::string message = fault_of(made, next, position);
  EXPECT_NE(message.find(words), std::string::npos) << "'" << message << "'";
}

TEST(VerifyCodes, NoticesALostWait) {
  Made made = make("llama-3.2-1b", 3);
  Code& down = find(made, 7, [&](const Code& code) { return name_of(made, code) == "down_proj"; });
  ASSERT_GT(down.waits, 0);
  down.waits = 0;
  expect_fault(made, NextToken::best, "worker 7, down_proj of layer 0: it reads what");
}

TEST(VerifyCodes, NoticesALostSignal) {
  Made made = make("llama-3.2-1b", 3);
  Code& gate = find(made, 7, [](const Code& code) { return code.opcode == Opcode::gated_linear; });
  ASSERT_EQ(gate.signals, 1);
  gate.signals = 0;
  expect_fault(made, NextToken::best, "never goes on");
}

TEST(VerifyCodes, NoticesARowThatNobodyMakes) {
  const auto draws = [](const Code& code) { return code.opcode == Opcode::route; };
  Made made = make("olmoe-1b-7b");
  find(made, 7, draws).route.next_row = NextRow::none;
  expect_fault(made, NextToken::best, "nobody has made its row");
  Made unused = make("olmoe-1b-7b");
  find(unused, 7, [](const Code& code) {
    return code.opcode == Opcode::gated_linear;
  }).product.form = RowForm::rms_norm;
  expect_fault(unused, NextToken::best, "it has no use for the row");
}

TEST(VerifyCodes, NoticesLogitsThatAreSampledTooEarly) {
  Made made = make("llama-3.2-1b");
  Code& sample = find(made, 0, [](const Code& code) { return code.opcode == Opcode::sample; });
  ASSERT_GT(sample.waits, 0);
  sample.waits = 0;
  expect_fault(made, NextToken::sampled, "sample of layer -1: it reads what");
  EXPECT_EQ(fault_of(made), "");  // nobody reads them where all publish their best
}

TEST(VerifyCodes, NoticesTheTagOfAnotherWrite) {
  // Of one that never comes there, and of one that is gone.
  for (const int32_t by : {+1, -100}) {
    Made made = make("llama-3.2-1b");
    Code& down =
        find(made, 7, [&](const Code& code) { return name_of(made, code) == "down_proj"; });
    down.product.source = std::max(0, down.product.source + by);
    expect_fault(made, NextToken::best, by > 0 ? "never goes on" : "overwritten before");
  }
}

TEST(VerifyCodes, NoticesColumnsThatNobodyWrites) {
  Made made = make("llama-3.2-1b");
  Code& gate = find(made, 7, [](const Code& code) { return code.opcode == Opcode::gated_linear; });
  gate.product.segment[0].columns -= 8;
  expect_fault(made, NextToken::best, "never goes on");
}

TEST(VerifyCodes, MixturesAreSound) {
  for (const std::string& name : mixtures()) {
    EXPECT_EQ(fault_of(make(name)), "") << name;
  }
  ModelConfig config = preset("qwen1.5-moe-a2.7b").value();  // on few workers
  config.layers = 1;
  EXPECT_EQ(fault_of(make(config, 1, false, 3)), "");
}

/// On many workers and on few; drawn by groups, queries by way of a latent of their own.
TEST(VerifyCodes, LatentRowsAreSound) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  for (const int64_t sequences : {1, 3, 8}) {
    for (const int workers : {kSms, 3}) {
      const Made made = make(config, sequences, false, workers);
      for (const NextToken next : kAll) {
        for (const int64_t position : {0, 64, 127, 1000}) {
          EXPECT_EQ(fault_of(made, next, position), "")
              << sequences << " sequences, " << workers << " workers, " << position;
        }
      }
    }
  }
  make_like_v3(config);
  for (const int64_t sequences : {1, 2, 8}) {
    EXPECT_EQ(fault_of(make(config, sequences)), "");
  }
  config.experts = {};
  EXPECT_EQ(fault_of(make(config, 4)), "");
}

/// Of a small model most workers have neither heads nor columns.
TEST(VerifyCodes, LatentRowsOfASmallModelAreSound) {
  const ModelConfig config =
      read_config(WEFT_SOURCE_DIR "/tests/goldens/models/deepseek-v2-bf16").value();
  const Weights weights = Weights::describe(config);
  for (const int64_t sequences : {1, 3}) {
    const auto proved = verify(
        plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16, sequences)));
    EXPECT_TRUE(proved.ok()) << proved.error().message;
  }
}

TEST(VerifyCodes, NoticesLatentRowsThatAreNotThere) {
  int64_t sequences = 1;
  const auto fault = [&](const auto& change) {
    Made made = make("deepseek-v2-lite", sequences, false, 1);
    for (auto& codes : made.lowered.codes) {
      for (Code& code : codes) {
        change(code);
      }
    }
    return fault_of(made);
  };
  EXPECT_EQ(fault([](Code&) {}), "");
  // Nobody leaves what the values' products merge.
  EXPECT_NE(fault([](Code& code) {
              if (code.opcode == Opcode::attention && code.attention.split == 1) {
                code.attention.split = 0;
              }
            }),
            "");
  // A head's queries are looked for where another's are not written.
  EXPECT_NE(fault([](Code& code) {
              if (code.opcode == Opcode::attention) {
                ++code.attention.q_version;
              }
            }),
            "");
  sequences = 3;
  EXPECT_EQ(fault([](Code&) {}), "");
  // A sequence is attended to twice, another not at all.
  EXPECT_NE(fault([](Code& code) {
              if (code.opcode == Opcode::attention && code.attention.sequence == 1) {
                code.attention.sequence = 2;
              }
            }),
            "");
  // A head's splits are not merged.
  EXPECT_NE(fault([](Code& code) {
              if (code.opcode == Opcode::combine && code.combine.first == 0) {
                --code.combine.last;
              }
            }),
            "");
  // Values are read while they may still be written.
  EXPECT_NE(fault([](Code& code) {
              if (code.units > 0 && code.product.form == RowForm::heads) {
                code.waits = 0;
              }
            }),
            "");
}

TEST(VerifyCodes, NoticesExpertsThatWereNotDrawn) {
  const auto drawn = [](const Code& code) {
    return code.units > 0 && code.product.draw == DrawOf::experts;
  };
  Made made = make("olmoe-1b-7b");
  find(made, 3, drawn).product.experts = 32;
  expect_fault(made, NextToken::best, "its experts are not those that were drawn last");
  made = make("olmoe-1b-7b");
  find(made, 3, [](const Code& code) { return code.opcode == Opcode::route; }).route.chosen = 7;
  expect_fault(made, NextToken::best, "its experts are not those that were drawn last");
  made = make("mixtral-8x7b");  // two codes for two slots
  find(made, 3, [&](const Code& code) {
    return drawn(code) && code.product.first_slot == 1;
  }).product.stream += 1;
  expect_fault(made, NextToken::best, "not where the first slots' are");
}

TEST(VerifyCodes, NoticesTwoWhoWriteTheSame) {
  Made made = make("llama-3.2-1b");
  const auto is_gate = [](const Code& code) { return code.opcode == Opcode::gated_linear; };
  find(made, 8, is_gate).product.segment[0].out = find(made, 7, is_gate).product.segment[0].out;
  expect_fault(made, NextToken::best, "it writes what worker");
}

/// A worker with no part in an exchange runs ahead, or falls behind: in models that norm what
/// blocks put out, each keeps the residual itself, and others may write the next delta before a
/// late one has read this one. plan() gives such workers nothing at all (most_workers()).
TEST(VerifyCodes, NoticesAWriteThatDoesNotWaitForReaders) {
  ModelConfig config = preset("olmo-2-1b").value();
  config.layers = 2;
  config.vocabulary = 1024;
  config.hidden = 256;
  config.query_heads = config.kv_heads = config.hidden / config.head_dim;
  Made made = make(config, 1);
  EXPECT_EQ(fault_of(made), "");
  auto& workers = made.program.workers;
  const size_t last = workers.size() - 1;
  for (size_t i = workers[last].size(); i-- > 0;) {
    const Instruction taken = workers[last][i];
    const std::string& name = made.program.operations[static_cast<size_t>(taken.operation)].name;
    if (name != "gate_up_proj" && !name.starts_with("down_proj")) {
      continue;
    }
    workers[last].erase(workers[last].begin() + static_cast<ptrdiff_t>(i));
    auto& other = workers[last - 1];
    const auto place = std::find_if(other.begin(), other.end(), [&](const Instruction& x) {
      return x.operation == taken.operation;
    });
    ASSERT_NE(place, other.end());
    other.insert(place + 1, taken);
  }
  lower_again(made);
  expect_fault(made, NextToken::best, "may not have read");
}

/// Tags order a worker's write to the cache before all reads of the next step, but do not show it
/// to them: that an event does, from its head to who samples. Without a head there is none.
TEST(VerifyCodes, NoticesCachesThatAreReadTooEarly) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 2;
  config.layer_kinds = {{.window = 512}};
  Made made = make(config, 1);
  // With the window's begin in block 1 of the keys there are five splits of two blocks, of which
  // the last has the step's own row; with it in block 2 there are four.
  constexpr int64_t kPosition = 638;
  size_t writer = 0;
  for (size_t worker = 0; worker < made.lowered.codes.size(); ++worker) {
    for (const Code& code : made.lowered.codes[worker]) {
      writer = code.opcode == Opcode::attention && code.attention.split == 4 ? worker : writer;
    }
  }
  EXPECT_EQ(fault_of(made, NextToken::forced, kPosition), "");
  auto& codes = made.lowered.codes[writer];
  const Code head = codes.back();
  ASSERT_TRUE(head.head != 0 && head.signals == 1);
  codes.pop_back();
  codes.back().ends_step = 1;
  --made.lowered.event_signals[head.signal[0]];
  auto& streams = made.lowered.streams;
  const int64_t less = streams[writer + 1] - streams[writer] - int64_t{head.product.stream} * 16;
  std::for_each(streams.begin() + static_cast<ptrdiff_t>(writer) + 1, streams.end(),
                [&](int64_t& begin) { begin -= less; });
  made.lowered.packed_bytes -= less;
  expect_fault(made, NextToken::forced,
               "attention of layer 0: it reads what worker " + std::to_string(writer), kPosition);
}

TEST(VerifyCodes, NoticesWeightsInAnotherOrder) {
  Made made = make("llama-3.2-1b");
  const auto product = [](const Code& code) { return code.units > 0; };
  Code& first = find(made, 3, product);
  Code& second = find(
      made, 3, [&](const Code& code) { return product(code) && code.operation > first.operation; });
  std::swap(first.product.stream, second.product.stream);
  expect_fault(made, NextToken::best, "its weights are looked for at byte");

  made = make_fp8("fp8-block", 1);  // read as compressed, fp8's slices are too short
  find(made, 3, product).product.weights = static_cast<uint8_t>(StreamForm::compressed);
  expect_fault(made, NextToken::best, "its weights are looked for at byte");

  made = make("llama-3.2-1b");
  made.lowered.packed_bytes += kPlainSliceBytes;
  expect_fault(made, NextToken::best, "products use");
}

TEST(VerifyCodes, NoticesWhatIsOutOfPlace) {
  Made made = make("llama-3.2-1b");
  made.lowered.codes[5].front().ends_step = 1;
  expect_fault(made, NextToken::best, "begins or ends within the list");

  made = make("llama-3.2-1b", 3);
  find(made, 1, [](const Code& code) { return code.opcode == Opcode::sample; }).sample.sequence = 2;
  expect_fault(made, NextToken::best, "others look for elsewhere");

  made = make("llama-3.2-1b");
  find(made, 9, [](const Code& code) { return code.units > 0; }).head = 1;
  expect_fault(made, NextToken::best, "it follows the head");
}

TEST(VerifyCodes, NoticesWorkersThatWaitForEachOther) {
  Made made = make("llama-3.2-1b");
  // Worker 4 does its part of an exchange after it has waited for the whole of it.
  auto& codes = made.lowered.codes[4];
  const auto is = [&](const char* name) {
    return std::find_if(codes.begin(), codes.end(),
                        [&](const Code& code) { return name_of(made, code) == name; });
  };
  const auto gate = is("gate_up_proj");
  const auto down = is("down_proj");
  ASSERT_EQ(down - gate, 1);
  std::iter_swap(gate, down);
  std::swap(gate->product.stream, down->product.stream);
  const std::string message = fault_of(made);
  EXPECT_NE(message, "");
}

}  // namespace
}  // namespace weft::hopper

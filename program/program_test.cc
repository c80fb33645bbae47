#include "program/program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "model/config.h"
#include "model/layer.h"
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

/// More workers than there are tiles: some have no part in an exchange.
TEST(Planner, SmallModelsGiveSoundProgramsForManyWorkers) {
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models")) {
    const ModelConfig config = read_config(entry.path()).value();
    const Weights weights = Weights::describe(config);
    for (const int workers : {4, 6, 8, 16, 64, 132}) {
      for (const int64_t rows : {1, 40}) {
        const Program program = plan(config, weights, options(workers, rows, Logits::last));
        EXPECT_EQ(program.workers.size(), static_cast<size_t>(workers));
        const Status status = verify(program);
        EXPECT_TRUE(status.ok()) << entry.path().filename() << ", " << workers << " workers, "
                                 << rows
                                 << " rows: " << (status.ok() ? "" : status.error().message);
      }
    }
  }
}

TEST(Planner, FusedAttentionOverLatentRowsIsSound) {
  for (const char* name : {"deepseek-v2-bf16", "deepseek-v3-bf16"}) {
    const ModelConfig config =
        read_config(std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models" / name).value();
    const Weights weights = Weights::describe(config);
    for (const int workers : {1, 2, 3, 5}) {
      for (const int64_t sequences : {1, 2, 3, 8}) {
        PlanOptions plan_options = options(workers, 1, Logits::last);
        plan_options.fuse_attention = true;
        plan_options.sequences = sequences;
        const Status status = verify(plan(config, weights, plan_options));
        EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
      }
    }
  }
}

TEST(Planner, AChunkAttendsOverLatentRowsByHeadsInWhicheverForm) {
  const ModelConfig config = shortened("deepseek-v2-lite");
  const Weights weights = Weights::describe(config);
  for (const bool anywhere : {false, true}) {
    PlanOptions plan_options = options(3, 40, Logits::last);
    plan_options.cut_anywhere = anywhere;
    const Program program = plan(config, weights, plan_options);
    std::vector<int64_t> heads(program.operations.size());
    for (const auto& worker : program.workers) {
      for (const Instruction& instruction : worker) {
        heads[static_cast<size_t>(instruction.operation)] += instruction.tile.size();
      }
    }
    int64_t attended = 0;
    for (size_t i = 0; i < program.operations.size(); ++i) {
      if (const auto* op = std::get_if<LatentAttentionOp>(&program.operations[i].body)) {
        EXPECT_EQ(op->absorbs, anywhere);
        EXPECT_EQ(heads[i], config.query_heads);
        ++attended;
      }
    }
    EXPECT_EQ(attended, config.layers);
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

TEST(Planner, PartialsOfEverySequenceAreAligned) {
  ModelConfig config = shortened("llama-3.2-1b");
  config.query_heads = config.kv_heads = 3;
  const Weights weights = Weights::describe(config);
  for (const int64_t sequences : {2, 5, 8}) {
    for (const int64_t tasks : {1, 4, 132}) {
      PlanOptions several = options(3, 1, Logits::last);
      several.sequences = sequences;
      several.fuse_attention = true;
      several.attention_tasks = tasks;
      const Program program = plan(config, weights, several);
      EXPECT_TRUE(verify(program).ok());
      for (const Buffer& buffer : program.buffers) {
        if (buffer.name == "partials") {
          EXPECT_EQ(buffer.columns % 4, 0) << sequences << " sequences, " << tasks << " tasks";
        }
      }
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

/// A token reads its drawn experts alone; many that draw apart read all.
TEST(Planner, CountsTheBytesOfDrawnExperts) {
  const ModelConfig config = preset("qwen3-30b-a3b").value();
  const Weights weights = Weights::describe(config);
  const Cost decode = cost_of(plan(config, weights, options(2, 1, Logits::last)), weights, 1, 511);
  const double layer = 2048.0 * (4096 + 512 + 512) + 4096.0 * 2048 + 128 * 2048.0;
  const double experts = 8 * 3 * 2048.0 * 768;
  EXPECT_NEAR(decode.weight_bytes, 2 * (48 * (layer + experts) + 151936.0 * 2048), 1e7);
  EXPECT_NEAR(decode.weight_bytes, 6.08e9, 0.01e9);  // as published
  const Cost chunk = cost_of(plan(config, weights, options(2, 512, Logits::all)), weights, 512, 0);
  const double embedding = 2 * 151936.0 * 2048;  // of which it reads 512 rows
  EXPECT_NEAR(chunk.weight_bytes, static_cast<double>(weights.bytes()) - embedding,
              1e-3 * chunk.weight_bytes);
}

/// The shared expert's products do not wait for the draw.
TEST(Planner, TheSharedExpertComesBeforeTheDraw) {
  const ModelConfig config = shortened("qwen1.5-moe-a2.7b");
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, options(2, 1, Logits::last));
  for (const auto& worker : program.workers) {
    std::vector<std::string> names;
    for (const Instruction& instruction : worker) {
      const Operation& operation = program.operations[static_cast<size_t>(instruction.operation)];
      if (operation.layer == 1) {
        names.push_back(operation.name);
      }
    }
    const auto place = [&](const char* name) { return std::ranges::find(names, name); };
    EXPECT_LT(place("shared_up"), place("route"));
    EXPECT_LT(place("route"), place("experts_up"));
    EXPECT_LT(place("experts_down"), place("shared_down"));
    EXPECT_NE(place("shared_down"), names.end());
  }
}

/// All wait for the draw: who has the router's products has no more to do before it, where others
/// can do it without any of them having more.
TEST(Planner, TheRoutersWorkersHaveNoneOfTheSharedExpert) {
  const ModelConfig config = shortened("deepseek-v2-lite");
  const Weights weights = Weights::describe(config);
  const auto columns_of = [&](int workers) {
    PlanOptions plan_options = options(workers, 1, Logits::last);
    plan_options.columns = 16;
    plan_options.gated_columns = 8;
    const Program program = plan(config, weights, plan_options);
    int64_t of_routers = 0;  // columns of the shared expert that the router's workers have
    int64_t most = 0;
    for (const auto& worker : program.workers) {
      bool routes = false;
      int64_t shared = 0;
      for (const Instruction& instruction : worker) {
        const Operation& operation = program.operations[static_cast<size_t>(instruction.operation)];
        if (operation.layer == 1) {
          routes = routes || operation.name == "router";
          shared += operation.name == "shared_up" ? instruction.tile.size() : 0;
        }
      }
      of_routers += routes ? shared : 0;
      most = std::max(most, shared);
    }
    return std::pair(of_routers, most);
  };
  EXPECT_EQ(columns_of(132), std::pair(int64_t{0}, int64_t{24}));
  EXPECT_GT(columns_of(4).first, 0);  // nobody else is there
}

TEST(Planner, InverseFrequenciesAreScaledAsTransformersDoes) {
  // Llama-3.2-1B's, from the published formula in double.
  const ModelConfig config = preset("llama-3.2-1b").value();
  const std::vector<float> got = inverse_frequencies(ropes(config).front(), 1);
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

/// What a program's waits order, computed otherwise than verify does: for each instruction of two
/// steps all that are over before it begins, as a set, and all pairs of different workers that must
/// not meet.
class Order {
 public:
  explicit Order(const Program& program) : program_(program) {
    const int64_t steps = program.sampled == kNone ? 1 : 2;  // as it is run
    for (int64_t step = 0; step < steps; ++step) {
      for (size_t worker = 0; worker < program.workers.size(); ++worker) {
        for (const Instruction& instruction : program.workers[worker]) {
          nodes_.push_back({&instruction, worker, step});
        }
      }
    }
    EXPECT_LE(nodes_.size(), kMost);
    edges_.resize(nodes_.size());
    std::vector<std::vector<Access>> accesses;
    for (const Node& node : nodes_) {
      accesses.push_back(accesses_of(program, *node.instruction));
    }
    for (size_t later = 0; later < nodes_.size(); ++later) {
      for (size_t earlier = 0; earlier < nodes_.size(); ++earlier) {
        add_edges(later, earlier);
        if (earlier < later && nodes_[later].worker != nodes_[earlier].worker &&
            meet(accesses[later], nodes_[later].step, accesses[earlier], nodes_[earlier].step)) {
          meetings_.emplace_back(later, earlier);
        }
      }
    }
    std::vector<bool> seen(nodes_.size());
    for (size_t node = 0; node < nodes_.size(); ++node) {
      visit(node, seen);
    }
  }

  /// Whether all that must not meet is ordered without one wait of an instruction, which stands
  /// where it was when this was made (null: with all waits).
  bool holds_without(const Instruction* instruction, size_t wait) const {
    std::vector<std::bitset<kMost>> before(nodes_.size());
    for (const size_t node : sequence_) {
      for (const Edge& edge : edges_[node]) {
        if (edge.wait != wait || nodes_[node].instruction != instruction) {
          before[node] |= before[edge.from];
          before[node].set(edge.from);
        }
      }
    }
    return std::all_of(meetings_.begin(), meetings_.end(), [&](const auto& pair) {
      return before[pair.first][pair.second] || before[pair.second][pair.first];
    });
  }

 private:
  static constexpr size_t kMost = 1024;  // instructions of two steps
  static constexpr size_t kNoWait = ~size_t{0};

  struct Node {
    const Instruction* instruction;
    size_t worker;
    int64_t step;
  };
  struct Edge {
    size_t from;
    size_t wait;  ///< of the later instruction; kNoWait: both are one worker's
  };

  void add_edges(size_t later, size_t earlier) {
    const Node& to = nodes_[later];
    const Node& from = nodes_[earlier];
    if (to.worker == from.worker) {
      if (from.step < to.step || (from.step == to.step && from.instruction < to.instruction)) {
        edges_[later].push_back({earlier, kNoWait});
      }
      return;
    }
    for (size_t wait = 0; wait < to.instruction->waits.size(); ++wait) {
      const Wait& each = to.instruction->waits[wait];
      if (each.event == from.instruction->signal &&
          from.step <= to.step - (each.previous_step ? 1 : 0)) {
        edges_[later].push_back({earlier, wait});
      }
    }
  }

  static bool overlap(Range a, Range b) { return a.begin < b.end && b.begin < a.end; }
  bool meet(const std::vector<Access>& of_a, int64_t step_a, const std::vector<Access>& of_b,
            int64_t step_b) const {
    for (const Access& a : of_a) {
      for (const Access& b : of_b) {
        // What an earlier step wrote of a cache is not what a step writes.
        if ((a.earlier && step_b >= step_a) || (b.earlier && step_a >= step_b)) {
          continue;
        }
        const bool shared = program_.buffers[static_cast<size_t>(a.buffer)].space != Space::worker;
        if (shared && a.buffer == b.buffer && (a.write || b.write) && overlap(a.rows, b.rows) &&
            overlap(a.columns, b.columns)) {
          return true;
        }
      }
    }
    return false;
  }

  /// Appends a node to sequence_ after all that come before it.
  void visit(size_t node, std::vector<bool>& seen) {
    if (seen[node]) {
      return;
    }
    seen[node] = true;
    for (const Edge& edge : edges_[node]) {
      visit(edge.from, seen);
    }
    sequence_.push_back(node);
  }

  const Program& program_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Edge>> edges_;  // [node]: what comes right before it, and more
  std::vector<std::pair<size_t, size_t>> meetings_;
  std::vector<size_t> sequence_;  // all nodes, each after those before it
};

/// Leaves out one wait after another: verify notices exactly those without which something is no
/// longer ordered. (Some are superfluous: of what an earlier wait of the same worker covers.)
TEST(Verify, NoticesEveryMissingWait) {
  const ModelConfig config = shortened("olmo-2-1b");
  const Weights weights = Weights::describe(config);
  for (const auto& [rows, fused] : {std::pair<int64_t, bool>{1, false}, {48, false}, {1, true}}) {
    PlanOptions plan_options = options(3, rows, Logits::last);
    plan_options.fuse_attention = fused;
    Program program = plan(config, weights, plan_options);
    const Order order(program);
    ASSERT_TRUE(order.holds_without(nullptr, 0));
    const Status status = verify(program);
    ASSERT_TRUE(status.ok()) << status.error().message;
    size_t needed = 0;
    for (std::vector<Instruction>& worker : program.workers) {
      for (Instruction& instruction : worker) {
        for (size_t wait = 0; wait < instruction.waits.size(); ++wait) {
          const bool superfluous = order.holds_without(&instruction, wait);
          const std::vector<Wait> waits = instruction.waits;
          instruction.waits.erase(instruction.waits.begin() + static_cast<ptrdiff_t>(wait));
          EXPECT_EQ(verify(program).ok(), superfluous) << disassemble(program, instruction);
          instruction.waits = waits;
          needed += superfluous ? 0 : 1;
        }
      }
    }
    EXPECT_GT(needed, 0);
  }
}

/// Two workers attend to half of the keys each, of which one writes the step's own row; queries
/// are there.
Program attention_alone() {
  Program program;
  program.name = "attention";
  const auto add = [&](const char* name, Space space) {
    program.buffers.push_back({name, space, Element::f32, 1, 64});
    return static_cast<BufferId>(program.buffers.size() - 1);
  };
  AttentionOp op;
  op.q = op.k = op.v = add("projected", Space::state);
  op.keys = add("keys", Space::kv);
  op.values = add("values", Space::kv);
  op.partials = add("partials", Space::activation);
  op.positions = add("positions", Space::state);
  op.query_heads = op.kv_heads = 1;
  op.head_dim = 8;
  op.splits = 2;
  program.operations.push_back({"attention", 0, Rows::all, op});
  program.events = {{"sampled", 1}};
  program.sampled = 0;
  program.workers = {{{0, {0, 1}, {0, 1}, 0, {}, 0}}, {{0, {0, 1}, {0, 1}, 1, {{0, true}}, kNone}}};
  return program;
}

TEST(Verify, SeesWhatFusedAttentionReadsOfTheCache) {
  Program program = attention_alone();
  const Status sound = verify(program);
  EXPECT_TRUE(sound.ok()) << sound.error().message;
  program.workers[1].front().waits.clear();
  const Status status = verify(program);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("worker 1 reads keys while worker 0 may still write it"),
            std::string::npos)
      << status.error().message;
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

// The diff against a subject that is the CPU interpreter once more, spoiled in one place: the fault
// must be found where it is, and nothing where there is none.
#include "engine/diff.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <variant>

#include "base/number.h"
#include "program/access.h"
#include "program/planner.h"
#include "program/verify.h"

namespace weft {
namespace {

constexpr int64_t kCapacity = 256;
constexpr int kWorkers = 11;

Program make_program(const ModelConfig& config, const Weights& weights, DType kv) {
  PlanOptions options;
  options.workers = kWorkers;
  options.capacity = kCapacity;
  options.kv = kv;
  options.columns = options.gated_columns = options.fewest_columns = 8;
  options.attention_tasks = 6;
  options.fuse_attention = true;
  return plan(config, weights, options);
}

class Spoiled : public Subject {
 public:
  Spoiled(const ModelConfig& config, const Weights& weights, DType kv)
      : sequence(CpuSequence::create(config, kCapacity, kv, 1).value()),
        program_(make_program(config, weights, kv)),
        team_(1),
        cpu_(config, weights, sequence, team_) {
    load(program_);
  }
  /// Runs another program than the one that it says.
  void load(const Program& program) {
    runs_ = program;
    loaded_ = cpu_.load(program).value();
  }

  const Program& program() const override { return program_; }
  bool keeps(BufferId id) const override {
    return program_.buffers[static_cast<size_t>(id)].name != "input_row";
  }
  Result<std::optional<int32_t>> run(int32_t token, int64_t position, int32_t end) override {
    sequence.tokens[0] = token;
    sequence.positions[0] = static_cast<int32_t>(position);
    sequence.history.clear();
    writers_.clear();
    ++runs;
    if (end > longest) {
      return device_error("gave up");
    }
    for (int32_t operation = 0; operation < end; ++operation) {
      cpu_.run_operations(*loaded_, 1, {operation, operation + 1});
      mark(operation);
      if (after) {
        after(operation, static_cast<int32_t>(position));
      }
    }
    if (sequence.history.empty()) {
      return std::optional<int32_t>();
    }
    return std::optional<int32_t>(sequence.history.back());
  }
  Result<Image> read(BufferId id, size_t worker) override {
    const Buffer& buffer = program_.buffers[static_cast<size_t>(id)];
    Image image;
    if (buffer.space == Space::kv) {
      const auto& pages = buffer.name.starts_with("keys") ? sequence.keys : sequence.values;
      const std::byte* data = pages[static_cast<size_t>(buffer.layer)].data();
      for (int64_t i = 0; i < buffer.rows * buffer.columns; ++i) {
        image.values.push_back(sequence.kv == DType::bf16
                                   ? to_float(reinterpret_cast<const bf16*>(data)[i])
                                   : reinterpret_cast<const float*>(data)[i]);
      }
      return image;
    }
    const std::span<float> from = values(id, worker);
    image.values.assign(from.begin(), from.end());
    if (id != program_.logits) {  // as on a GPU
      image.writers = writers(id, worker);
    }
    return image;
  }

  std::span<float> values(BufferId id, size_t worker = 0) {
    const auto bytes = CpuInterpreter::buffer(*loaded_, id, worker);
    return {reinterpret_cast<float*>(bytes.data()), bytes.size() / sizeof(float)};
  }

  CpuSequence sequence;
  std::function<void(int32_t operation, int32_t position)> after;
  int runs = 0;
  int32_t longest = 1 << 20;  ///< it gives up in steps of more operations

 private:
  std::vector<int32_t>& writers(BufferId id, size_t worker) {
    const Buffer& buffer = program_.buffers[static_cast<size_t>(id)];
    auto& list = writers_[{id, worker}];
    list.resize(static_cast<size_t>(buffer.rows * buffer.columns), kNone);
    return list;
  }
  void mark(int32_t operation) {
    const auto& body = program_.operations[static_cast<size_t>(operation)].body;
    const auto* attention = std::get_if<AttentionOp>(&body);
    for (size_t worker = 0; worker < runs_.workers.size(); ++worker) {
      for (const Instruction& instruction : runs_.workers[worker]) {
        if (instruction.operation != operation) {
          continue;
        }
        for (const Access& access : accesses_of(runs_, instruction)) {
          const Space space = runs_.buffers[static_cast<size_t>(access.buffer)].space;
          if (!access.write || (space != Space::activation && space != Space::worker)) {
            continue;
          }
          auto& list = writers(access.buffer, space == Space::worker ? worker : 0);
          Range elements = access.columns;
          if (attention != nullptr) {
            const int64_t group = attention->query_heads / attention->kv_heads;
            for (int64_t head = instruction.tile.begin * group; head < instruction.tile.end * group;
                 ++head) {
              const auto size = attention->head_dim + 2;
              const auto first =
                  list.begin() + (head * attention->splits + instruction.split) * size;
              std::fill(first, first + size, operation);
            }
            continue;
          }
          std::fill(list.begin() + elements.begin, list.begin() + elements.end, operation);
        }
      }
    }
  }

  Program program_;
  Program runs_;
  WorkerTeam team_;
  CpuInterpreter cpu_;
  std::shared_ptr<CpuInterpreter::Loaded> loaded_;
  std::map<std::pair<BufferId, size_t>, std::vector<int32_t>> writers_;
};

struct Setting {
  explicit Setting(const std::string& model, DType kv = DType::bf16)
      : config(read_config(directory(model)).value()),
        weights(Weights::open(directory(model), config).value()),
        subject(config, weights, kv),
        differ(
            Differ::create(config, weights, subject, {.capacity = kCapacity, .kv = kv}).value()) {}
  static std::filesystem::path directory(const std::string& model) {
    return std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models" / model;
  }

  const Program& program() const { return subject.program(); }
  int32_t end() const { return static_cast<int32_t>(program().operations.size()); }
  int32_t operation(const std::string& name, int64_t layer) const {
    for (int32_t i = 0; i < end(); ++i) {
      const Operation& op = program().operations[static_cast<size_t>(i)];
      if (op.name == name && op.layer == layer) {
        return i;
      }
    }
    ADD_FAILURE() << "no " << name;
    return 0;
  }
  BufferId buffer(const std::string& name) const {
    for (size_t i = 0; i < program().buffers.size(); ++i) {
      if (program().buffers[i].name == name) {
        return static_cast<BufferId>(i);
      }
    }
    ADD_FAILURE() << "no buffer " << name;
    return 0;
  }
  const Instruction& instruction(const InstructionPlace& place) const {
    return program().workers[place.worker][place.index];
  }
  /// Some steps of a text that does not matter, the first without a look.
  std::optional<Fault> run(int64_t steps = 3) {
    EXPECT_FALSE(differ->feed(std::vector<int32_t>{5, 6}).value().has_value());
    int32_t token = 7;
    for (int64_t i = 0; i < steps; ++i) {
      const StepDiff diff = differ->step(token, end()).value();
      if (diff.fault.has_value()) {
        return diff.fault;
      }
      token = *diff.token;
    }
    return {};
  }

  ModelConfig config;
  Weights weights;
  Spoiled subject;
  std::unique_ptr<Differ> differ;
};

TEST(Diff, FindsNothingWhereNothingIs) {
  for (const char* model : {"llama-bf16", "qwen3-bf16", "olmo2-bf16", "mistral-f32", "qwen2-f32"}) {
    for (const DType kv : {DType::bf16, DType::f32}) {
      Setting setting(model, kv);
      const Status sound = verify(setting.program());
      EXPECT_TRUE(sound.ok()) << model << ": " << (sound.ok() ? "" : sound.error().message);
      // Past the first block of keys, so that more than one split has some.
      std::vector<int32_t> tokens;
      for (int32_t i = 0; i < 70; ++i) {
        tokens.push_back(i);
      }
      EXPECT_FALSE(setting.differ->feed(tokens).value().has_value()) << model;
      EXPECT_EQ(setting.differ->position(), 70);
      const StepDiff diff = setting.differ->step(3, setting.end()).value();
      EXPECT_FALSE(diff.fault.has_value())
          << model << ": " << describe(setting.program(), *diff.fault);
      EXPECT_EQ(diff.position, 70);
      EXPECT_EQ(diff.token, diff.expected_token);
      EXPECT_EQ(diff.margin, 0);
      ASSERT_FALSE(diff.buffers.empty());
      for (const BufferDifference& buffer : diff.buffers) {
        EXPECT_LT(buffer.difference.relative, 1e-6) << model;  // fed by other splits of the keys
      }
      int64_t looked_at = 0;
      for (const auto& largest : diff.operations) {
        looked_at += largest.has_value() ? 1 : 0;
        EXPECT_LT(largest.value_or(0), 1e-6) << model;
      }
      // All but the norms on the way to a product.
      EXPECT_GT(looked_at, setting.end() * 2 / 3) << model;
    }
  }
}

// A difference that one operation may have is no fault, nor does it reach the next ones.
TEST(Diff, TakesOverWhatTheSubjectMade) {
  Setting setting("llama-bf16", DType::f32);
  const int32_t spoiled = setting.operation("o_proj", 0);
  const BufferId residual = setting.buffer("residual");
  setting.subject.after = [&](int32_t operation, int32_t) {
    for (float& x : setting.subject.values(residual)) {
      x *= operation == spoiled ? 1 + 2e-4f : 1;
    }
  };
  const StepDiff diff = setting.differ->step(9, setting.end()).value();
  EXPECT_FALSE(diff.fault.has_value());
  for (int32_t i = 0; i < setting.end(); ++i) {
    const double largest = diff.operations[static_cast<size_t>(i)].value_or(0);
    EXPECT_NEAR(largest, i == spoiled ? 2e-4 : 0, 1e-5) << i;
  }
}

TEST(Diff, FindsAWrongColumn) {
  for (const char* name : {"q_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"}) {
    Setting setting("qwen3-bf16");
    const int32_t spoiled = setting.operation(name, 1);
    const auto& body = setting.program().operations[static_cast<size_t>(spoiled)].body;
    const auto* linear = std::get_if<LinearOp>(&body);
    const BufferId out = linear != nullptr ? linear->out : std::get<GatedLinearOp>(body).out;
    setting.subject.after = [&](int32_t operation, int32_t position) {
      if (operation == spoiled && position == 3) {
        setting.subject.values(out)[29] += 0.5f;
      }
    };
    const std::optional<Fault> fault = setting.run();
    ASSERT_TRUE(fault.has_value()) << name;
    EXPECT_EQ(fault->kind, Fault::Kind::differs);
    EXPECT_EQ(fault->position, 3);
    EXPECT_EQ(fault->operation, spoiled) << name;
    EXPECT_EQ(fault->buffer, out);
    EXPECT_EQ(fault->element, 29);
    EXPECT_EQ(fault->count, 1);
    EXPECT_NEAR(fault->got - fault->expected, 0.5, 1e-6);
    ASSERT_EQ(fault->instructions.size(), 1u);
    const Instruction& instruction = setting.instruction(fault->instructions[0]);
    EXPECT_EQ(instruction.operation, spoiled);
    EXPECT_LE(instruction.tile.begin, 29);
    EXPECT_GT(instruction.tile.end, 29);
    const std::string text = describe(setting.program(), *fault);
    EXPECT_NE(text.find(name), std::string::npos) << text;
    EXPECT_NE(text.find("column 29"), std::string::npos) << text;
  }
}

// A NaN differs from everything, itself included.
TEST(Diff, FindsANan) {
  Setting setting("llama-bf16");
  const int32_t spoiled = setting.operation("head", -1);
  setting.subject.after = [&](int32_t operation, int32_t) {
    if (operation == spoiled) {
      setting.subject.values(setting.program().logits)[200] = NAN;
    }
  };
  const std::optional<Fault> fault = setting.run();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->operation, spoiled);
  EXPECT_EQ(fault->element, 200);
  EXPECT_EQ(fault->count, 1);
}

// Of a few kinds, each instruction in turn.
TEST(Diff, FindsAnInstructionThatDoesNotWrite) {
  Setting whole("olmo2-bf16");
  const Program& program = whole.program();
  int tried = 0;
  for (size_t worker = 0; worker < program.workers.size(); worker += 3) {
    for (size_t i = 0; i < program.workers[worker].size(); ++i) {
      const Instruction& left_out = program.workers[worker][i];
      const Operation& op = program.operations[static_cast<size_t>(left_out.operation)];
      if (op.layer != 1 || (op.name != "k_proj" && op.name != "attention" &&
                            op.name != "o_proj_norm" && op.name != "gate_up_proj")) {
        continue;
      }
      ++tried;
      Setting setting("olmo2-bf16");
      Program shorter = program;
      shorter.workers[worker].erase(shorter.workers[worker].begin() + static_cast<int64_t>(i));
      setting.subject.load(shorter);
      const StepDiff diff = setting.differ->step(7, setting.end()).value();
      ASSERT_TRUE(diff.fault.has_value()) << op.name;
      const std::string text = describe(program, *diff.fault);
      // The last split appends the row, which tells first.
      if (diff.fault->kind != Fault::Kind::not_written) {
        EXPECT_EQ(op.name, "attention") << text;
        EXPECT_TRUE(program.buffers[static_cast<size_t>(diff.fault->buffer)].space == Space::kv);
      }
      EXPECT_EQ(diff.fault->operation, left_out.operation) << text;
      ASSERT_EQ(diff.fault->instructions.size(), 1u) << text;
      EXPECT_EQ(diff.fault->instructions[0].worker, worker) << text;
      EXPECT_EQ(diff.fault->instructions[0].index, i) << text;
    }
  }
  EXPECT_GT(tried, 5);
}

// An interpreter whose readers wait for what is not written ends with an error.
TEST(Diff, FindsItWhereTheSubjectGivesUp) {
  Setting setting("llama-bf16");
  const int32_t left_out = setting.operation("gate_up_proj", 1);
  Program shorter = setting.program();
  std::erase_if(shorter.workers[4],
                [&](const Instruction& instruction) { return instruction.operation == left_out; });
  setting.subject.load(shorter);
  setting.subject.longest = left_out + 1;
  const StepDiff diff = setting.differ->step(7, setting.end()).value();
  ASSERT_TRUE(diff.fault.has_value());
  EXPECT_EQ(diff.fault->kind, Fault::Kind::not_written);
  EXPECT_EQ(diff.fault->operation, left_out);
  ASSERT_EQ(diff.fault->instructions.size(), 1u);
  EXPECT_EQ(diff.fault->instructions[0].worker, 4u);
  ASSERT_TRUE(diff.gave_up.has_value());
  EXPECT_EQ(diff.gave_up->message, "gave up");

  Setting sound("llama-bf16");
  sound.subject.longest = left_out + 1;
  const auto gave_up = sound.differ->step(7, sound.end());
  ASSERT_FALSE(gave_up.ok());
  EXPECT_EQ(gave_up.error().kind, ErrorKind::device);
}

TEST(Diff, FindsAWrongRowOfTheCache) {
  for (const DType kv : {DType::bf16, DType::f32}) {
    Setting setting("granite-bf16", kv);
    const int32_t spoiled = setting.operation("attention", 1);
    const int64_t dim = setting.config.head_dim;
    setting.subject.after = [&](int32_t operation, int32_t position) {
      if (operation == spoiled && position == 4) {  // head 2, element 5 gets element 6's
        std::byte* row = setting.subject.sequence.values[1].data() +
                         (2 * kCapacity + position) * dim * static_cast<int64_t>(size_of(kv));
        std::copy_n(row + 6 * size_of(kv), size_of(kv), row + 5 * size_of(kv));
      }
    };
    const std::optional<Fault> fault = setting.run();
    ASSERT_TRUE(fault.has_value());
    EXPECT_EQ(fault->kind, Fault::Kind::differs);
    EXPECT_EQ(fault->operation, spoiled);
    EXPECT_EQ(fault->buffer, setting.buffer("values.1"));
    EXPECT_EQ(fault->row, 4);
    EXPECT_EQ(fault->element, 2 * dim + 5);
    ASSERT_EQ(fault->instructions.size(), 1u);
    EXPECT_EQ(setting.instruction(fault->instructions[0]).tile.end, 3);
  }
}

// Which of the splits is wrong cannot be told, since the two sides may cut the keys otherwise.
TEST(Diff, FindsAWrongHeadOfAttention) {
  Setting setting("llama3-bf16");
  const int32_t spoiled = setting.operation("attention", 0);
  const auto& op =
      std::get<AttentionOp>(setting.program().operations[static_cast<size_t>(spoiled)].body);
  setting.subject.after = [&](int32_t operation, int32_t position) {
    if (operation == spoiled &&
        position == 3) {  // query head 2, the last split, which has the only keys: element 1
      const auto slot = static_cast<size_t>((2 * op.splits + op.splits - 1) * (op.head_dim + 2));
      setting.subject.values(op.partials)[slot + 1] += 1;
    }
  };
  const std::optional<Fault> fault = setting.run();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, Fault::Kind::differs);
  EXPECT_EQ(fault->operation, spoiled);
  EXPECT_EQ(fault->buffer, op.partials);
  EXPECT_EQ(fault->element, 2 * op.head_dim + 1);
  EXPECT_EQ(static_cast<int64_t>(fault->instructions.size()), op.splits);
}

TEST(Diff, FindsAWriteToTheWrongPlace) {
  Setting setting("llama-bf16");
  const int32_t spoiled = setting.operation("gate_up_proj", 1);
  setting.subject.after = [&](int32_t operation, int32_t) {
    if (operation == spoiled) {
      setting.subject.values(setting.buffer("residual"))[11] *= 1.0001f;
    }
  };
  const std::optional<Fault> fault = setting.run();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, Fault::Kind::changed);
  EXPECT_EQ(fault->operation, spoiled);
  EXPECT_EQ(fault->buffer, setting.buffer("residual"));
  EXPECT_EQ(fault->element, 11);
}

TEST(Diff, FindsAChangedRowOfAnEarlierPosition) {
  Setting setting("llama-bf16", DType::f32);
  setting.subject.after = [&](int32_t operation, int32_t position) {
    if (operation == setting.operation("down_proj", 1) && position == 3) {
      reinterpret_cast<float*>(setting.subject.sequence.keys[0].data())[1] = 0;  // position 0
    }
  };
  const std::optional<Fault> fault = setting.run();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, Fault::Kind::changed);
  EXPECT_EQ(fault->buffer, setting.buffer("keys.0"));
  EXPECT_EQ(fault->position, 3);
  EXPECT_EQ(fault->row, 0);
  EXPECT_EQ(fault->element, 1);
}

TEST(Diff, FindsAWrongToken) {
  Setting setting("llama-bf16");
  setting.subject.after = [&](int32_t operation, int32_t) {
    if (operation == setting.end() - 1) {
      setting.subject.sequence.history.back() ^= 1;
    }
  };
  const std::optional<Fault> fault = setting.run();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->kind, Fault::Kind::token);
  EXPECT_EQ(fault->operation, setting.end() - 1);
  EXPECT_EQ(static_cast<int32_t>(fault->got), static_cast<int32_t>(fault->expected) ^ 1);
  ASSERT_EQ(fault->instructions.size(), 1u);
}

// What goes wrong only when the whole step runs: no operation alone shows it.
TEST(Diff, FindsWhatOnlyAWholeStepShows) {
  Setting setting("llama-bf16");
  setting.subject.after = [&](int32_t operation, int32_t) {
    if (operation == setting.operation("o_proj", 1) && setting.subject.runs == 1) {
      for (float& x : setting.subject.values(setting.buffer("residual"))) {
        x *= 1.5f;
      }
    }
  };
  const StepDiff diff = setting.differ->step(3, setting.end()).value();
  ASSERT_TRUE(diff.fault.has_value());
  EXPECT_EQ(diff.fault->kind, Fault::Kind::whole_step);
}

TEST(Diff, FindsWhereTheCachesOfAPromptPart) {
  Setting setting("llama-bf16");
  setting.subject.after = [&](int32_t operation, int32_t position) {
    if (operation == setting.operation("embed", -1) && position == 4) {
      setting.subject.values(setting.buffer("residual"))[0] += 3;
    }
  };
  const auto fault = setting.differ->feed(std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7}).value();
  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->position, 4);
  EXPECT_EQ(fault->buffer, setting.buffer("keys.0"));
}

TEST(Diff, StopsWhereItIsTold) {
  Setting setting("llama-bf16");
  const int32_t spoiled = setting.operation("o_proj", 1);
  setting.subject.after = [&](int32_t operation, int32_t) {
    EXPECT_LT(operation, spoiled);
    setting.subject.values(setting.buffer("residual"))[0] += operation == spoiled ? 1 : 0;
  };
  const StepDiff diff = setting.differ->step(3, spoiled).value();
  EXPECT_FALSE(diff.fault.has_value());
  EXPECT_FALSE(diff.token.has_value());
  for (const BufferDifference& buffer : diff.buffers) {
    EXPECT_NE(buffer.buffer, setting.program().logits);
  }
}

}  // namespace
}  // namespace weft

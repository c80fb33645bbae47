#include "engine/hopper/lower.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "engine/hopper/test_lowered.h"
#include "engine/prefill/plan.h"
#include "engine/resident/readback.h"
#include "model/quantization.h"
#include "ops/linear/hopper_layout.h"
#include "program/verify.h"

namespace weft::hopper {
namespace {

/// The codes of a kind of a preset's first layers, by layer; of one worker each.
std::map<int64_t, Code> by_layer(const Made& made, Opcode opcode) {
  std::map<int64_t, Code> result;
  for (const auto& codes : made.lowered.codes) {
    for (const Code& code : codes) {
      const Operation& operation = made.program.operations[static_cast<size_t>(code.operation)];
      if (code.opcode == opcode) {
        result.emplace(operation.layer, code);
      }
    }
  }
  return result;
}

/// Models that most are keep to the kernel without what few have.
TEST(Lower, FewModelsAreGeneral) {
  for (const std::string& name : lowered_presets()) {
    const bool general = name.starts_with("gemma") || name.starts_with("starcoder") ||
                         name == "phi-4-mini" || name == "smollm3-3b";
    EXPECT_EQ(make(name, 1, false, 4).lowered.shape.general, general) << name;
  }
}

/// More workers than there are tiles, of several sequences.
TEST(Lower, SmallModelsAreSoundForAllMultiprocessors) {
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(WEFT_SOURCE_DIR) / "tests/goldens/models")) {
    const ModelConfig config = read_config(entry.path()).value();
    const Weights weights = Weights::describe(config);
    for (const int64_t sequences : {1, 2, 4, 5, 8}) {
      const PlanOptions options = plan_options(config, kSms, 40, DType::bf16, sequences);
      const Status status = verify(plan(config, weights, options));
      EXPECT_TRUE(status.ok()) << entry.path().filename() << ", " << sequences
                               << " sequences: " << (status.ok() ? "" : status.error().message);
    }
  }
}

/// Weights that are held once: those of a stage lie apart, a layer's beside its neighbour's, and
/// the rest is where nothing else is.
TEST(LayOut, WeightsHeldOnceShareAStage) {
  for (const char* name : {"llama-3.1-8b", "llama-3.2-1b", "qwen2.5-coder-1.5b"}) {
    SCOPED_TRACE(name);
    ModelConfig config = preset(name).value();
    config.layers = 5;
    const Weights weights = Weights::describe(config);
    const Program program =
        plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
    const Arena twice = lay_out(program, weights);
    const Arena once = lay_out(program, weights, Hold::once);
    int64_t layer_bytes = 0;
    for (size_t i = 0; i < once.weights.size(); ++i) {
      const int64_t bytes = weights.tensors()[i].bytes();
      layer_bytes += once.stages[i] == 0 ? bytes : 0;
      EXPECT_EQ(twice.stages[i], kKept);
      for (size_t j = 0; j < i; ++j) {
        const int64_t a = once.stages[i];
        const int64_t b = once.stages[j];
        const bool layers = a >= 0 && b >= 0;
        const bool together = a == b || a == kKept || b == kKept || (layers && (a - b) % 2 != 0);
        const bool apart = once.weights[i] >= once.weights[j] + weights.tensors()[j].bytes() ||
                           once.weights[j] >= once.weights[i] + bytes;
        EXPECT_TRUE(apart || !together) << i << " and " << j;
      }
    }
    const int64_t head = config.tied_head ? 0 : weights.get(Role::head).bytes();
    const int64_t saved = 5 * layer_bytes + head - std::max(2 * layer_bytes, head);
    EXPECT_NEAR(static_cast<double>(twice.bytes - once.bytes), static_cast<double>(saved), 1 << 16);
    EXPECT_EQ(once.stages[0], kKept) << "the embedding table";
  }
}

TEST(LayOut, WeightsHeldOnceTakeATenthMoreThanPacked) {
  const ModelConfig config = preset("llama-3.1-8b").value();
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
  const Arena once = lay_out(program, weights, Hold::once);
  const auto lowered = lower(program, config, weights, once, kCapacity,
                             std::vector<bool>(program.operations.size()));
  ASSERT_TRUE(lowered.ok());
  const Program chunk = plan(config, weights, chunk_options(kChunkRows, kCapacity, Logits::none));
  const int64_t jobs = std::ssize(lowered->pack) * static_cast<int64_t>(sizeof(PackJob));
  int64_t held = lowered->packed_bytes;
  for (size_t i = 0; i < once.stages.size(); ++i) {
    held += once.stages[i] == kKept ? weights.tensors()[i].bytes() : 0;
  }
  for (const Buffer& buffer : program.buffers) {
    held += buffer.space == Space::kv ? buffer.bytes() : 0;
  }
  const int64_t all = once.bytes + lowered->packed_bytes + jobs +
                      lay_out_chunk(Arch::hopper, chunk, weights, once.weights).bytes;
  EXPECT_LE(static_cast<double>(all), 1.1 * static_cast<double>(held));
  for (const PackJob& job : lowered->pack) {
    const int64_t layer = program.operations[static_cast<size_t>(job.operation)].layer;
    ASSERT_EQ(job.stage, layer < 0 ? kHeadStage : layer);
  }
}

TEST(Lower, WindowsAndRopesAreTheLayersOwn) {
  const Made made = make("gemma-3-1b", 1, false, 7);
  EXPECT_EQ(made.lowered.shape.ropes, 2);
  EXPECT_EQ(made.lowered.shape.rope_half, 128);
  const auto attention = by_layer(made, Opcode::attention);
  ASSERT_EQ(attention.size(), 7u);
  for (const auto& [layer, code] : attention) {
    const bool local = layer % 6 != 5;
    EXPECT_EQ(code.attention.splits.window, local ? 512 : 0);
    EXPECT_EQ(code.attention.rope, local ? 1 : 0);
    EXPECT_EQ(code.attention.weight_offset, 1);
    EXPECT_NE(code.attention.query_norm, kNowhere);
  }
  // The splits that are merged are those that attention has cut.
  const auto combines = by_layer(made, Opcode::combine);
  ASSERT_EQ(combines.size(), 7u);
  for (const auto& [layer, code] : combines) {
    EXPECT_EQ(code.combine.splits.window, layer % 6 != 5 ? 512 : 0);
  }
  for (const auto& [layer, code] : by_layer(made, Opcode::norm_add)) {
    EXPECT_EQ(code.norm_add.weight_offset, 1);
  }
  for (const auto& [layer, code] : by_layer(made, Opcode::gated_linear)) {
    EXPECT_EQ(code.product.activation, Activation::gelu_tanh);
    EXPECT_EQ(code.product.form, RowForm::rms_norm);
    EXPECT_EQ(code.product.weight_offset, 1);
  }
}

TEST(Lower, SoftCapsAreLowered) {
  const Made made = make("gemma-2-2b");
  for (const auto& [layer, code] : by_layer(made, Opcode::attention)) {
    EXPECT_EQ(code.attention.soft_cap, 50);
    EXPECT_EQ(code.attention.splits.window, layer % 2 == 0 ? 4096 : 0);
  }
  const auto products = by_layer(made, Opcode::linear);
  EXPECT_EQ(products.at(-1).product.soft_cap, 30);
  EXPECT_EQ(products.at(0).product.soft_cap, 0);
}

TEST(Lower, HeadsTurnInPartOrNotAtAll) {
  const Made phi = make("phi-4-mini");
  EXPECT_EQ(phi.lowered.shape.rope_half, 48);
  EXPECT_NEAR(phi.lowered.codes[0].front().begin_step.scale[0], 1.19, 0.01);
  const Made smol = make("smollm3-3b", 1, false, 4);
  for (const auto& [layer, code] : by_layer(smol, Opcode::attention)) {
    EXPECT_EQ(code.attention.rope, layer == 3 ? -1 : 0);
  }
}

TEST(Lower, LayerNormsAndFfnsWithoutAGate) {
  for (const int64_t sequences : {1, 3}) {
    const Made made = make("starcoder2-3b", sequences);
    std::map<std::string, int> seen;
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        if (code.units == 0) {
          continue;
        }
        const std::string& name = made.program.operations[static_cast<size_t>(code.operation)].name;
        const bool down = name == "down_proj";
        const bool normed = name != "o_proj" && !down;
        EXPECT_EQ(code.product.form == RowForm::layer_norm, normed) << name;
        EXPECT_EQ(code.product.norm_bias != kNowhere, normed) << name;
        EXPECT_EQ(code.product.activation,
                  name == "up_proj" ? Activation::gelu_tanh : Activation::none);
        EXPECT_EQ(code.product.segment[0].version == kOperands, name == "up_proj" && sequences > 1);
        EXPECT_EQ(code.product.source == kOperands, sequences > 1 && (down || name == "o_proj"));
        ++seen[name];
      }
    }
    EXPECT_EQ(seen.size(), 5u);  // with the head
  }
}

TEST(Lower, RefusesALayerNormOfTooMany) {
  ModelConfig config = preset("starcoder2-3b").value();
  config.layers = 1;
  config.hidden = 8192;
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
  const auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity,
                             std::vector<bool>(program.operations.size()));
  ASSERT_FALSE(lowered.ok());
  EXPECT_EQ(lowered.error().message,
            "a LayerNorm of 8192 elements, more than 6144: the cuda device has no kernel for it; "
            "use --device cpu");
}

TEST(Lower, RefusesLatentRowsByName) {
  const auto refusal = [](DType kv, int64_t sequences, const auto& change) {
    ModelConfig config = preset("deepseek-v2-lite").value();
    config.layers = 1;
    change(config);
    const Weights weights = Weights::describe(config);
    const Program program =
        plan(config, weights, plan_options(config, kSms, kCapacity, kv, sequences));
    const auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity,
                               std::vector<bool>(program.operations.size()));
    return lowered.ok() ? "" : lowered.error().message;
  };
  const auto none = [](ModelConfig&) {};
  const std::string end = ": the cuda device has no kernel for it; use --device cpu";
  EXPECT_EQ(refusal(DType::bf16, 1, none), "");
  EXPECT_EQ(refusal(DType::bf16, 8, none), "");
  for (const int64_t sequences : {1, 2}) {
    EXPECT_EQ(refusal(DType::f32, sequences, none), "attention over latent rows in f32" + end);
  }
  EXPECT_EQ(refusal(DType::bf16, 1,
                    [](ModelConfig& config) {
                      config.latent.rank = 256;
                      config.head_dim = 256 + 64;
                    }),
            "attention over latent rows of 256 + 64" + end);
  EXPECT_EQ(refusal(DType::bf16, 1, [](ModelConfig& config) { config.latent.value = 24; }),
            "attention over latent rows with heads of 24, no multiple of 16" + end);
  EXPECT_EQ(refusal(DType::bf16, 1,
                    [](ModelConfig& config) {
                      config.quantization = quantization_of("fp8-block").value();
                    }),
            "attention over latent rows with heads in F8_E4M3" + end);
}

/// Each head's rows of the matrix are packed once: keys' as columns, values' as rows.
TEST(Lower, LatentHeadsArePackedOnce) {
  const Made made = make("deepseek-v2-lite", 1, false, 1);
  const LatentAttention& latent = made.config.latent;
  const int64_t heads = made.config.query_heads;
  const auto index =
      static_cast<size_t>(&made.weights.get(Role::latent_up, 0) - made.weights.tensors().data());
  std::vector<int> packed(static_cast<size_t>(made.weights.tensors()[index].elements()));
  for (const PackJob& job : made.lowered.pack) {
    const auto& body = made.program.operations[static_cast<size_t>(job.operation)].body;
    const bool across = std::holds_alternative<LatentQueriesOp>(body);
    if (!across && !std::holds_alternative<LatentValuesOp>(body)) {
      continue;
    }
    EXPECT_EQ(job.stage, kKept);
    EXPECT_EQ(job.k, across ? latent.unturned : latent.rank);
    EXPECT_EQ(job.pitch, across ? latent.rank : 0);
    for (int half = 0; half < 2; ++half) {
      const int64_t first = (job.source[half] - made.arena.weights[index]) / 2;
      for (int64_t row = 0; row < job.rows[half]; ++row) {
        for (int64_t k = 0; k < job.k; ++k) {
          ++packed[static_cast<size_t>(first + (across ? k * job.pitch + row : row * job.k + k))];
        }
      }
    }
  }
  EXPECT_EQ(std::ranges::count(packed, 1), std::ssize(packed));
  EXPECT_EQ(std::ssize(packed), heads * (latent.unturned + latent.value) * latent.rank);
}

/// Who attends has no columns of queries or values, who has values' none of the output's: all would
/// wait for them. Of many heads all workers have some.
TEST(Lower, NobodyComesLateToHeadsOfLatentRows) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  for (const bool many : {false, true}) {
    if (many) {
      config.query_heads = 128;
    }
    const Made made = make(config, 1, false, kSms);
    int64_t both = 0;
    for (const auto& codes : made.lowered.codes) {
      std::set<std::string> names;
      for (const Code& code : codes) {
        names.insert(made.program.operations[static_cast<size_t>(code.operation)].name);
      }
      const auto has = [&](const char* name) { return names.contains(name) ? 1 : 0; };
      both += has("attention") * (has("latent_queries") + has("latent_values")) +
              has("latent_values") * has("o_proj");
    }
    EXPECT_EQ(both > 0, many);
  }
}

/// Of one sequence the second product of the expert that every token has is part of the drawn
/// ones', its weights after all of theirs; what is run until there leaves it out.
TEST(Lower, TheSharedExpertJoinsTheSlots) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;  // the first one is dense
  const Made made = make(config, 1, false, kSms);
  const auto name_of = [&](const auto& of) {
    return made.program.operations[static_cast<size_t>(of.operation)].name;
  };
  const Experts& experts = config.experts;
  int64_t columns = 0;
  for (const auto& codes : made.lowered.codes) {
    for (size_t i = 0; i < codes.size(); ++i) {
      const Code& code = codes[i];
      EXPECT_NE(name_of(code), "shared_down");
      if (name_of(code) != "experts_down") {
        continue;
      }
      const ProductCode& product = code.product;
      columns += product.segment[0].columns;
      EXPECT_EQ(product.shared.elements, experts.shared_size);
      EXPECT_EQ(made.program.operations[static_cast<size_t>(product.shared.source)].name,
                "shared_up");
      EXPECT_EQ(
          product.k,
          (experts.chosen * slices_of(experts.size) + slices_of(experts.shared_size)) * kSliceK);
      EXPECT_EQ(product.segment[0].version, code.operation + 1);
      const std::vector<Code> before = resident::codes_until(codes, code.operation + 1);
      EXPECT_EQ(before.back().product.shared_row, kNowhere);
      EXPECT_EQ(before.back().product.segment[0].version, code.operation);
      const std::vector<Code> with = resident::codes_until(codes, code.operation + 2);
      EXPECT_EQ(with.back().product.shared_row, product.shared_row);
    }
  }
  EXPECT_EQ(columns, config.hidden);
  int64_t packed = 0;
  for (const PackJob& job : made.lowered.pack) {
    if (name_of(job) == "shared_down") {
      EXPECT_EQ(job.k, experts.shared_size);
      packed += job.rows[0] + job.rows[1];
    }
  }
  EXPECT_EQ(packed, config.hidden);
}

/// Of several sequences each has its own attention; its splits are merged once, and the values'
/// products read their heads' operands, whole where a worker has few heads, and write operands.
TEST(Lower, LatentRowsOfSeveralSequences) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  for (const int workers : {kSms, 1}) {
    const int64_t sequences = 5;
    const Made made = make(config, sequences, false, workers);
    int64_t heads = 0;  // of the first splits
    int64_t merged = 0;
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        const auto& body = made.program.operations[static_cast<size_t>(code.operation)].body;
        if (code.opcode == Opcode::attention) {
          EXPECT_LT(code.attention.sequence, sequences);
          heads += code.attention.split == 0 ? code.attention.last - code.attention.first : 0;
        } else if (code.opcode == Opcode::combine) {
          EXPECT_EQ(code.combine.latent_rank, kLatentRank);
          merged += code.combine.last - code.combine.first;
        } else if (std::holds_alternative<LatentValuesOp>(body)) {
          EXPECT_EQ(code.product.form, RowForm::heads);
          EXPECT_EQ(code.product.source, kOperands);
          EXPECT_EQ(code.product.segment[0].version, kOperands);
          EXPECT_EQ(code.product.streamed != 0, workers == 1);
        } else if (std::holds_alternative<LatentQueriesOp>(body)) {
          EXPECT_EQ(code.product.form, RowForm::heads);
          EXPECT_GE(code.product.source, 0);
        }
      }
    }
    EXPECT_EQ(heads, config.layers * config.query_heads * sequences);
    EXPECT_EQ(merged, config.layers * config.query_heads);
  }
}

/// What codes of several sequences have no form for.
TEST(Lower, RefusesSomeExpertsOfSeveralSequences) {
  const auto refused = [](ModelConfig config) {
    config.layers = 1;
    const Weights weights = Weights::describe(config);
    const Program program =
        plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16, 2));
    const auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity,
                               std::vector<bool>(program.operations.size()));
    return lowered.ok() ? "" : lowered.error().message;
  };
  const std::string ending = ": the cuda device has no kernel for it; use --device cpu";
  ModelConfig many = preset("olmoe-1b-7b").value();
  many.experts.chosen = 17;
  EXPECT_EQ(refused(many), "17 of 64 experts of several sequences" + ending);
  ModelConfig wide = preset("olmoe-1b-7b").value();
  wide.experts.size = 1 << 17;
  EXPECT_EQ(refused(wide), "experts of 131072 x 2048, of which 2 sequences draw 16" + ending);
  ModelConfig free = preset("gpt-oss-20b").value();
  EXPECT_EQ(refused(free), "");
  for (const double limit : {0, 1001}) {
    free.experts.limit = limit;
    EXPECT_EQ(refused(free), fmt::format("experts in MXFP4 of several sequences, clamped at {} (0: "
                                         "not clamped){}",
                                         limit, ending));
  }
}

/// The columns of all slots of a mixture's first products are dealt as those of one row.
TEST(Lower, DrawnExpertsSharesAreEven) {
  std::vector<std::pair<std::string, int>> made_for;
  for (const std::string& name : mixtures()) {
    made_for.emplace_back(name, 1);
    made_for.emplace_back(name, 8);
  }
  for (const auto& [name, sequences] : made_for) {
    SCOPED_TRACE(name);
    const Made made = make(name, sequences, false);
    std::map<int32_t, std::vector<int>> units;  // of an operation, by worker
    std::map<int32_t, int> wanted;
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        if (code.units > 0 && code.product.flat != 0) {
          units[code.operation].push_back(code.units);
          wanted[code.operation] = code.product.slots * expert_units(code.product);
          EXPECT_EQ(code.product.fold, 0);
        }
      }
    }
    // Of one sequence of Mixtral rows are taken slot by slot.
    EXPECT_EQ(units.empty(), name == "mixtral-8x7b" && sequences == 1);
    for (const auto& [operation, shares] : units) {
      const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
      EXPECT_LE(*most, *least + 1);
      EXPECT_EQ(std::accumulate(shares.begin(), shares.end(), 0), wanted[operation]);
    }
  }
}

/// Of one sequence a worker makes the row of its first products while it waits for the draw, or has
/// it from the router's; and mixtures keep to the kernel without what gpt-oss alone has.
TEST(Lower, RowsOfDrawnExpertsAreMadeAhead) {
  for (const std::string& name : mixtures()) {
    SCOPED_TRACE(name);
    const Made made = make(name);
    EXPECT_EQ(made.lowered.shape.general, name.starts_with("gpt-oss"));
    int rows = 0;
    int kept = 0;
    for (const auto& codes : made.lowered.codes) {
      for (size_t i = 0; i + 1 < codes.size(); ++i) {
        if (codes[i].opcode != Opcode::route) {
          continue;
        }
        const bool ahead =
            codes[i + 1].units > 0 && codes[i + 1].product.form == RowForm::rms_normed;
        const NextRow next = codes[i].route.next_row;
        EXPECT_TRUE(ahead || next == NextRow::none);
        rows += next == NextRow::made ? 1 : 0;
        kept += ahead && next != NextRow::made ? 1 : 0;
      }
    }
    EXPECT_GT(kept, 0);
    EXPECT_EQ(rows > 0, made.config.experts.shared_size == 0);
  }
  for (const auto& codes : make("olmoe-1b-7b", 8).lowered.codes) {
    for (const Code& code : codes) {
      EXPECT_FALSE(code.units > 0 && code.product.form == RowForm::rms_normed);
    }
  }
}

/// However columns are dealt, a step reads as many experts.
TEST(Lower, DealtEvenlyExpertsCostTheSame) {
  ModelConfig config = preset("qwen3-30b-a3b").value();
  config.layers = 1;
  const Weights weights = Weights::describe(config);
  for (const int64_t sequences : {1, 8}) {
    PlanOptions options = plan_options(config, kSms, kCapacity, DType::bf16, sequences);
    const auto bytes = [&] {
      return cost_of(plan(config, weights, options), weights, sequences, 0).weight_bytes;
    };
    EXPECT_TRUE(options.flat_slots);
    const double even = bytes();
    options.flat_slots = false;
    EXPECT_NEAR(even, bytes(), 1e-3 * even);  // norms are made by more workers
  }
}

/// Each expert's rows are packed once, in the order of experts, all of one size.
TEST(Lower, ExpertsLieOneAfterTheOther) {
  for (const std::string& name : mixtures()) {
    SCOPED_TRACE(name);
    const Made made = make(name, 1, false, 1);
    if (!made.config.has_experts(0)) {
      continue;
    }
    const Experts& experts = made.config.experts;
    for (const Role role : {Role::expert_gate, Role::expert_up, Role::expert_down}) {
      const int half = role == Role::expert_up ? 1 : 0;
      const auto& first = made.weights.get(role, 0);
      const auto index = static_cast<size_t>(&first - made.weights.tensors().data());
      const int64_t row_bytes = first.mx.k > 0 ? first.columns() / 2 : first.columns() * 2;
      std::vector<int64_t> rows(static_cast<size_t>(experts.count));
      for (const PackJob& job : made.lowered.pack) {
        for (int h = 0; h < 2; ++h) {
          for (size_t expert = 0; expert < rows.size(); ++expert) {
            const int64_t at = job.source[h] - made.arena.weights[index + expert];
            if (job.slices == 0 && at >= 0 && at < first.rows() * row_bytes &&
                (role == Role::expert_down || h == half)) {
              ASSERT_EQ(at % row_bytes, 0);
              rows[expert] += job.rows[h];
            }
          }
        }
      }
      EXPECT_EQ(rows, std::vector<int64_t>(rows.size(), first.rows()));
    }
    bool folded = false;
    for (const auto& worker : made.lowered.codes) {
      for (const Code& code : worker) {
        if (code.units > 0 && code.product.draw == DrawOf::experts) {
          EXPECT_EQ(code.product.experts, experts.count);
          EXPECT_TRUE(code.product.fold == 0 || code.opcode == Opcode::linear);
          folded |= code.product.fold != 0;
        }
      }
    }
    EXPECT_EQ(folded, name.starts_with("gpt-oss"));
    EXPECT_GT(made.lowered.saved_bytes, 0);
    if (!made.config.sinks) {  // gpt-oss's experts grow to whole slices
      EXPECT_LT(made.lowered.saved_bytes, made.lowered.plain_bytes - made.lowered.packed_bytes);
    }
  }
}

TEST(Lower, EveryPresetIsSound) {
  for (const std::string& name : lowered_presets()) {
    const Made made = make(name);
    const Status status = verify(made.program);
    EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
    EXPECT_LE(made.program.workers.size(), static_cast<size_t>(kSms));
  }
}

/// What decode_kernel.cu takes for granted between two steps.
TEST(Lower, StepsBeginWithTheTokenAndEndOnce) {
  for (const char* name : {"llama-3.2-1b", "olmo-2-1b", "qwen3-8b"}) {
    for (const int64_t sequences : {1, 3, 8}) {
      const Made made = make(name, sequences);
      const size_t workers = made.lowered.codes.size();
      for (size_t worker = 0; worker < workers; ++worker) {
        const std::vector<Code>& codes = made.lowered.codes[worker];
        ASSERT_FALSE(codes.empty());
        EXPECT_EQ(codes.front().opcode, Opcode::begin_step);
        for (size_t i = 0; i < codes.size(); ++i) {
          EXPECT_EQ(codes[i].opcode == Opcode::begin_step, i == 0);
          EXPECT_EQ(codes[i].ends_step != 0, i + 1 == codes.size());
          // Who samples a sequence says what it drew: readers look there. And after the head
          // nothing is written but that.
          if (codes[i].opcode == Opcode::sample) {
            EXPECT_EQ(static_cast<size_t>(codes[i].sample.sequence) % workers, worker);
          }
          if (codes[i].units > 0 && codes[i].head != 0) {
            for (size_t after = i + 1; after < codes.size(); ++after) {
              EXPECT_EQ(codes[after].opcode, Opcode::sample);
            }
          }
        }
      }
    }
  }
}

TEST(Lower, SequencesShareWeightsAndNothingElse) {
  for (const char* name : {"llama-3.2-1b", "qwen3-0.6b", "olmo-2-1b"}) {
    const Made one = make(name);
    for (const int64_t sequences : {2, 4, 5, 8}) {
      const Made many = make(name, sequences);
      const Status status = verify(many.program);
      EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
      EXPECT_EQ(many.lowered.plain_bytes, one.lowered.plain_bytes);
      int64_t heads = 0;  // of one split of one layer's attention
      std::multiset<int32_t> drawn;
      for (const auto& codes : many.lowered.codes) {
        for (const Code& code : codes) {
          const bool attention = code.opcode == Opcode::attention;
          heads += attention && code.attention.split == 0
                       ? code.attention.last - code.attention.first
                       : 0;
          if (code.opcode == Opcode::sample) {
            EXPECT_LT(code.sample.sequence, sequences);
            drawn.insert(code.sample.sequence);
          }
          EXPECT_TRUE(!attention || code.attention.sequence < sequences);
          for (int s = 0; s < code.segments; ++s) {
            EXPECT_LE(static_cast<int32_t>(code.product.segment[s].columns),
                      code.product.segment[s].stride);
          }
        }
      }
      EXPECT_EQ(heads, many.config.layers * many.config.kv_heads * sequences);
      EXPECT_EQ(drawn.size(), static_cast<size_t>(sequences));
      EXPECT_EQ(std::set<int32_t>(drawn.begin(), drawn.end()).size(), drawn.size());
      for (size_t i = 0; i < many.program.buffers.size(); ++i) {
        const Buffer& wide = many.program.buffers[i];
        if (wide.name != "partials" && wide.space != Space::constant) {  // fewer splits
          EXPECT_EQ(wide.bytes(), sequences * one.program.buffers[i].bytes()) << wide.name;
        }
      }
    }
  }
}

TEST(Lower, PacksEveryProductsWeightsOnce) {
  for (const char* name : {"llama-3.2-1b", "qwen2.5-coder-1.5b", "olmo-2-1b", "weft-2b"}) {
    const Made made = make(name);
    int64_t expected = 0;
    for (const Tensor& tensor : made.weights.tensors()) {
      const bool table = tensor.name == made.weights.get(Role::embedding).name;
      expected +=
          tensor.shape.size() == 2 && (!table || made.config.tied_head) ? tensor.elements() : 0;
    }
    int64_t packed = 0;
    std::set<int64_t> sources;
    for (const PackJob& job : made.lowered.pack) {
      for (const int half : {0, 1}) {
        EXPECT_LE(job.rows[half], kUnitColumns / 2 >> job.fold) << name;
        packed += int64_t{job.rows[half]} * job.k;
        EXPECT_TRUE(job.rows[half] == 0 || sources.insert(job.source[half]).second) << name;
      }
    }
    EXPECT_EQ(packed, expected) << name;
  }
}

TEST(Lower, WorkersStreamAboutTheSame) {
  const Made made = make("llama-3.1-8b");
  int64_t most = 0;
  for (size_t worker = 0; worker < made.lowered.streams.size(); ++worker) {
    const int64_t end = worker + 1 < made.lowered.streams.size() ? made.lowered.streams[worker + 1]
                                                                 : made.lowered.packed_bytes;
    most = std::max(most, end - made.lowered.streams[worker]);
  }
  EXPECT_LT(static_cast<double>(most * kSms),
            1.03 * static_cast<double>(made.lowered.packed_bytes));
}

/// The columns of every worker's part of each product, [product][worker].
std::map<int32_t, std::vector<int64_t>> shares_of(const Made& made) {
  std::map<int32_t, std::vector<int64_t>> shares;
  for (const auto& codes : made.lowered.codes) {
    for (const Code& code : codes) {
      int64_t columns = 0;
      for (int i = 0; i < code.segments; ++i) {
        columns += code.product.segment[i].columns;
      }
      if (code.units > 0) {
        shares[code.operation].push_back(columns);
      }
    }
  }
  return shares;
}

TEST(Lower, FoldedUnitsMakeLongSharesEven) {
  const Made made = make("weft-2b");  // 160 units of 16 columns, 1120 of 8 and 8, for 132 workers
  for (const auto& [operation, shares] : shares_of(made)) {
    const Operation& product = made.program.operations[static_cast<size_t>(operation)];
    const bool uneven = product.name == "gate_up_proj" || product.name == "down_proj";
    const int64_t sum = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    const int64_t most = *std::max_element(shares.begin(), shares.end());
    if (uneven) {
      EXPECT_EQ(shares.size(), static_cast<size_t>(kSms));
      EXPECT_LT(static_cast<double>(most * kSms), 1.04 * static_cast<double>(sum)) << product.name;
    } else if (product.name != "head") {  // in store before its row comes
      EXPECT_EQ(most % kUnitColumns, 0) << product.name;
    }
  }
}

/// Queries, keys and values are one product: no worker has more units of it than it must.
TEST(Lower, ProjectionsAreDealtTogether) {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "qwen3-8b"}) {
    const Made made = make(name);
    for (const auto& [operation, shares] : shares_of(made)) {
      if (made.program.operations[static_cast<size_t>(operation)].name == "q_proj") {
        const int64_t units =
            units_of(made.config.query_size()) + 2 * units_of(made.config.kv_size());
        EXPECT_LE(*std::max_element(shares.begin(), shares.end()),
                  (units + kSms - 1) / kSms * kUnitColumns)
            << name;
      }
    }
  }
}

/// Rows of several sequences that need nothing done on the way are written as products take them,
/// and waited for by an event.
TEST(Lower, RowsWithoutANormAreOperands) {
  for (const int64_t sequences : {3, 8}) {
    const Made made = make("qwen2.5-coder-1.5b", sequences);
    int64_t merged = 0;
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        const std::string& name = made.program.operations[static_cast<size_t>(code.operation)].name;
        const bool reads = name == "o_proj" || name == "down_proj";
        if (code.units > 0) {
          EXPECT_EQ(code.product.source == kOperands, reads) << name;
          EXPECT_NE(code.product.form, RowForm::merged) << name;
          EXPECT_EQ(code.product.segment[0].version == kOperands,
                    code.opcode == Opcode::gated_linear);
        }
        EXPECT_TRUE(!reads || code.waits > 0) << name;
        if (code.opcode == Opcode::gated_linear || code.opcode == Opcode::combine) {
          EXPECT_EQ(code.signals, 1) << name;
        }
        merged += code.opcode == Opcode::combine ? code.combine.last - code.combine.first : 0;
      }
    }
    EXPECT_EQ(merged, made.config.layers * made.config.query_heads);
  }
}

/// Second products write over the residual that the shared expert's first ones read. Who has drawn
/// experts' first products after these has read it when the second ones have their row; others must
/// be waited for.
TEST(Lower, SecondProductsWaitForWhoeverMayBeLate) {
  ModelConfig config = preset("deepseek-v2-lite").value();
  config.layers = 2;
  const auto waits = [&](int64_t sequences) {
    const Made made = make(config, sequences);
    int64_t count = 0;
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        const std::string& name = made.program.operations[static_cast<size_t>(code.operation)].name;
        count += name == "experts_down" && code.waits > 0 ? 1 : 0;
      }
    }
    return count;
  };
  EXPECT_EQ(waits(1), 0);
  EXPECT_GT(waits(3), 0);  // some may have no part in what is drawn
  config.experts.chosen = 1;
  config.experts.size = 64;  // eight units: most workers have none
  EXPECT_GT(waits(1), 0);
}

/// The first splits, which short texts have, are the first workers'.
TEST(Lower, SplitsAreMergedByTheLastWorkers) {
  const Made made = make("qwen3-30b-a3b");
  const auto& workers = made.lowered.codes;
  const auto heads = static_cast<size_t>(made.config.query_heads);
  ASSERT_LT(heads, workers.size());
  for (size_t w = 0; w < workers.size(); ++w) {
    EXPECT_EQ(std::ranges::any_of(workers[w],
                                  [](const Code& code) { return code.opcode == Opcode::combine; }),
              w >= workers.size() - heads)
        << w;
  }
}

TEST(Lower, OnlyTheLastUnitIsFolded) {
  for (const std::string& name : lowered_presets()) {
    const Made made = make(name);
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        if (code.units == 0) {
          continue;
        }
        const int64_t unit = code.opcode == Opcode::gated_linear ? kUnitColumns / 2 : kUnitColumns;
        int64_t units = 0;
        for (int i = 0; i < code.segments; ++i) {
          const int64_t columns = code.product.segment[i].columns;
          units += units_of(columns, unit);
          EXPECT_EQ(last_fold(columns, unit), i + 1 < code.segments ? 0 : code.product.fold)
              << name;
        }
        EXPECT_EQ(code.units, units) << name;
      }
    }
  }
}

TEST(Lower, ReadersNameTheWriteTheyWaitFor) {
  const Made made = make("qwen3-0.6b");
  const auto operation = [&](int32_t index) -> const Operation& {
    return made.program.operations[static_cast<size_t>(index)];
  };
  for (const auto& codes : made.lowered.codes) {
    for (const Code& code : codes) {
      const Operation& reader = operation(code.operation);
      if (code.opcode == Opcode::attention) {
        const AttentionCode& attention = code.attention;
        for (const auto& [source, name] :
             {std::pair(attention.q_version, "q_proj"), std::pair(attention.k_version, "k_proj"),
              std::pair(attention.v_version, "v_proj")}) {
          EXPECT_EQ(operation(source).name, name);
          EXPECT_EQ(operation(source).layer, reader.layer);
        }
      }
      if (code.opcode == Opcode::combine) {
        EXPECT_EQ(operation(code.combine.source).name, "attention");
        EXPECT_EQ(operation(code.combine.source).layer, reader.layer);
      }
      if (code.units == 0) {
        continue;
      }
      EXPECT_LT(code.product.source, code.operation);
      const Operation& writer = operation(code.product.source);
      if (code.product.form == RowForm::rms_norm) {
        EXPECT_TRUE(writer.name == "embed" || writer.name == "o_proj" ||
                    writer.name == "down_proj");
      } else {
        EXPECT_TRUE(reader.name == "o_proj" || reader.name == "down_proj");
        EXPECT_EQ(writer.name, reader.name == "o_proj" ? "attention_combine" : "gate_up_proj");
        EXPECT_EQ(writer.layer, reader.layer);
      }
    }
  }
}

/// Rows lie in shared memory whole; only rows that are operands may come slice by slice.
TEST(Lower, RowsHaveRoom) {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "weft-2b"}) {
    for (const int64_t sequences : {1, 3, 8}) {
      const Made made = make(name, sequences);
      for (const auto& codes : made.lowered.codes) {
        for (const Code& code : codes) {
          if (code.units == 0) {
            continue;
          }
          const int64_t slices = code.product.streamed != 0
                                     ? kTeamWarps * kStreamedSlices
                                     : row_slices(code.product.k, code.product.fold);
          EXPECT_LE(slices * row_slice_bytes(batch_of(static_cast<int>(sequences))),
                    made.lowered.scratch_bytes);
          EXPECT_GE(slices * kSliceK, code.product.streamed != 0 ? 0 : code.product.k);
          EXPECT_TRUE(code.product.streamed == 0 || code.product.source == kOperands) << name;
        }
      }
    }
  }
}

/// Runs follow one another, differ by one slice at most, and fill the stream without a hole.
TEST(Lower, RunsCoverTheStream) {
  for (int slices = 1; slices <= 700; ++slices) {
    const SliceRuns runs(slices);
    EXPECT_EQ(runs.slices(), slices);
    EXPECT_EQ(runs.first(kTeamWarps), slices);
    std::set<int> places;
    for (int warp = 0; warp < kTeamWarps; ++warp) {
      EXPECT_EQ(runs.first(warp) + runs.count(warp), runs.first(warp + 1));
      EXPECT_LE(runs.count(0) - runs.count(warp), 1);
      for (int i = 0; i < runs.count(warp); ++i) {
        const int slice = runs.first(warp) + i;
        EXPECT_EQ(runs.warp_of(slice), warp);
        EXPECT_EQ(runs.place(slice), i * kTeamWarps + warp);
        // A page holds neighbours, and a warp goes from page to page in equal steps.
        for (const StreamForm form : {StreamForm::plain, StreamForm::fp8}) {
          const int in_page = page_slices(form);
          EXPECT_EQ(runs.place(slice) / in_page, i * (kTeamWarps / in_page) + warp / in_page);
        }
        places.insert(runs.place(slice));
      }
    }
    EXPECT_EQ(std::ssize(places), slices);
    EXPECT_EQ(*places.rbegin(), slices - 1);
  }
}

/// Blocks but the last end with a page.
TEST(Lower, BlocksFillPages) {
  for (const int64_t k : {64, 300, 2048, 8960}) {
    const SliceRuns runs = block_runs(k, 1000, 1, 0);
    EXPECT_EQ(runs.slices(), slices_of(k) * kBlockUnits);
    EXPECT_EQ(runs.slices() % kFp8PageSlices, 0);
    EXPECT_EQ(block_runs(k, kBlockUnits + 1, 1, kBlockUnits).slices(), unit_slices(k, 1));
  }
}

TEST(Lower, CompressedWeightsAreThreeQuarters) {
  const Made one = make("llama-3.2-1b");
  const Made plain = make("llama-3.2-1b", 1, true);
  EXPECT_EQ(one.lowered.plain_bytes, plain.lowered.plain_bytes);
  EXPECT_EQ(plain.lowered.packed_bytes, plain.lowered.plain_bytes);
  EXPECT_NEAR(
      static_cast<double>(one.lowered.packed_bytes),
      static_cast<double>(one.lowered.plain_bytes) * kCompressedSliceBytes / kPlainSliceBytes,
      1e-3 * static_cast<double>(one.lowered.plain_bytes));
}

/// The pages that loaders put into the ring are those that the team's warps look for: every slice
/// of every unit has a place of its own, and they fill the streams. Compressed, plain, both.
TEST(Lower, SlicesFillTheStreams) {
  for (const char* name : {"qwen3-0.6b", "llama-3.2-3b", "weft-2b"}) {
    for (const int64_t sequences : {1, 8}) {
      const Made made = make(name, sequences);
      std::vector<bool> plain;
      for (const Operation& operation : made.program.operations) {
        plain.push_back(operation.name == "down_proj");
      }
      const auto lowered =
          lower(made.program, made.config, made.weights, made.arena, kCapacity, plain);
      ASSERT_TRUE(lowered.ok()) << name;
      std::set<int64_t> begins;
      size_t job = 0;
      int64_t end = 0;
      for (size_t worker = 0; worker < lowered->codes.size(); ++worker) {
        EXPECT_EQ(lowered->streams[worker], end);
        for (const Code& code : lowered->codes[worker]) {
          if (code.units == 0) {
            continue;
          }
          const StreamForm form = form_of(code);
          EXPECT_EQ(form == StreamForm::compressed, !plain[static_cast<size_t>(code.operation)]);
          EXPECT_LE(page_bytes(form), lowered->page_bytes);
          EXPECT_EQ(lowered->streams[worker] + int64_t{code.product.stream} * 16, end) << name;
          const int64_t bytes = weight_slice_bytes(form);
          for (int unit = 0; unit < code.units; ++unit, ++job) {
            const int block = unit / kBlockUnits * kBlockUnits;
            const SliceRuns runs = block_runs(code.product.k, code.units, code.product.fold, block);
            const PackJob& packed = lowered->pack.at(job);
            EXPECT_EQ(packed.fold, unit + 1 == code.units ? code.product.fold : 0);
            EXPECT_EQ(packed.form, form);
            EXPECT_EQ(packed.slices, runs.slices());
            EXPECT_EQ(packed.first, (unit - block) * slices_of(code.product.k));
            EXPECT_EQ(packed.destination, end + block * slices_of(code.product.k) * bytes);
            for (int slice = 0; slice < unit_slices(code.product.k, packed.fold); ++slice) {
              begins.insert(packed.destination + runs.place(packed.first + slice) * bytes);
            }
          }
          end += product_slices(code.product.k, code.units, code.product.fold) * bytes;
          EXPECT_EQ(*begins.rbegin() + bytes, end);
        }
      }
      EXPECT_EQ(job, lowered->pack.size());
      EXPECT_EQ(end, lowered->packed_bytes);
      int64_t slices = 0;
      for (const PackJob& packed : lowered->pack) {
        slices += unit_slices(packed.k, packed.fold);
      }
      EXPECT_EQ(std::ssize(begins), slices);
    }
  }
}

/// Products of weights in eight bits have their form, units know whose scale is whose, and what is
/// scaled in blocks is not folded.
TEST(Lower, WeightsInEightBitsComeWithTheirScales) {
  for (const char* format : {"fp8-block", "fp8-row", "fp8-tensor"}) {
    ModelConfig config = preset("qwen3-0.6b").value();
    config.layers = 2;
    config.tied_head = false;
    config.quantization = quantization_of(format).value();
    const Weights weights = Weights::describe(config);
    const Program program =
        plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
    const Arena arena = lay_out(program, weights);
    const auto lowered = lower(program, config, weights, arena, kCapacity,
                               std::vector<bool>(program.operations.size()));
    ASSERT_TRUE(lowered.ok()) << lowered.error().message;
    const bool blocks = config.quantization.weights == Scaling::block;
    size_t job = 0;
    int64_t rows = 0;
    for (const auto& codes : lowered->codes) {
      for (const Code& code : codes) {
        if (code.units == 0) {
          continue;
        }
        EXPECT_EQ(form_of(code), code.head != 0 ? StreamForm::compressed : StreamForm::fp8);
        EXPECT_TRUE(!blocks || code.head != 0 || code.product.fold == 0);
        for (int unit = 0; unit < code.units; ++unit, ++job) {
          const PackJob& packed = lowered->pack.at(job);
          for (int half = 0; half < 2 && code.head == 0; ++half) {
            // The tensor that the unit's first row lies in.
            size_t index = arena.weights.size() - 1;
            while (arena.weights[index] > packed.source[half]) {
              --index;
            }
            const Tensor& tensor = weights.tensors()[index];
            EXPECT_EQ(packed.scales[half], arena.scales[index]);
            EXPECT_EQ(packed.source[half],
                      arena.weights[index] + packed.first_row[half] * tensor.columns());
            if (packed.rows[half] > 0) {
              const int64_t row = packed.first_row[half] + packed.rows[half] - 1;
              const int64_t block = (tensor.columns() - 1) / kScaleBlock;
              const float first = 0;
              const WeightScales scales{tensor.scales.scaling, &first, tensor.scales.row_stride};
              const auto expected = scales.of_row(row) - scales.data + block * scales.step();
              EXPECT_EQ(packed.grid.index(row, block), expected);
              EXPECT_LT(expected, tensor.scale_count());
              rows += packed.rows[half];
            }
          }
        }
      }
    }
    EXPECT_EQ(rows, config.layers * (config.query_size() + 2 * config.kv_size() +
                                     2 * config.hidden + 2 * config.ffn));
  }
}

TEST(Lower, RefusesToQuantiseActivations) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.quantization = quantization_of("fp8-row").value();
  const Weights weights = Weights::describe(config);
  PlanOptions options = plan_options(config, kSms, kCapacity, DType::bf16);
  options.quantise_activations = true;
  const Program program = plan(config, weights, options);
  const auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity,
                             std::vector<bool>(program.operations.size()));
  ASSERT_FALSE(lowered.ok());
  EXPECT_NE(lowered.error().message.find("decode steps that quantise activations to fp8"),
            std::string::npos)
      << lowered.error().message;
}

TEST(Lower, RefusesWeightsThatAreNotBf16) {
  ModelConfig config = preset("llama-3.2-1b").value();
  config.layers = 1;
  config.dtype = DType::f16;
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, plan_options(config, kSms, kCapacity, DType::bf16));
  const auto lowered = lower(program, config, weights, lay_out(program, weights), kCapacity,
                             std::vector<bool>(program.operations.size()));
  ASSERT_FALSE(lowered.ok());
  EXPECT_NE(lowered.error().message.find("is F16: the cuda device has no kernel for it"),
            std::string::npos)
      << lowered.error().message;
}

}  // namespace
}  // namespace weft::hopper

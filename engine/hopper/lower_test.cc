#include "engine/hopper/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "ops/linear/hopper_layout.h"
#include "program/verify.h"

namespace weft::hopper {
namespace {

constexpr int kSms = 132;
constexpr int64_t kCapacity = 1024;

struct Made {
  ModelConfig config;
  Weights weights;
  Program program;
  Arena arena;
  Lowered lowered;
};

/// A preset of few layers, planned and lowered: every layer is alike.
Made make(const std::string& name, int64_t sequences = 1, bool plain = false) {
  Made made;
  made.config = preset(name).value();
  made.config.layers = 2;
  made.weights = Weights::describe(made.config);
  made.program = plan(made.config, made.weights,
                      plan_options(made.config, kSms, kCapacity, DType::bf16, sequences));
  made.arena = lay_out(made.program, made.weights);
  auto lowered = lower(made.program, made.config, made.weights, made.arena, kCapacity,
                       std::vector<bool>(made.program.operations.size(), plain));
  EXPECT_TRUE(lowered.ok()) << name << ": " << (lowered.ok() ? "" : lowered.error().message);
  if (lowered.ok()) {
    made.lowered = std::move(*lowered);
  }
  return made;
}

TEST(Lower, EveryPresetIsSound) {
  for (const std::string& name : preset_names()) {
    const Made made = make(name);
    const Status status = verify(made.program);
    EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
    EXPECT_LE(made.program.workers.size(), static_cast<size_t>(kSms));
  }
}

TEST(Lower, SequencesShareWeightsAndNothingElse) {
  for (const char* name : {"llama-3.2-1b", "qwen3-0.6b", "olmo-2-1b"}) {
    const Made one = make(name);
    for (const int64_t sequences : {2, 4, 5, 8}) {
      const Made many = make(name, sequences);
      const Status status = verify(many.program);
      EXPECT_TRUE(status.ok()) << name << ": " << (status.ok() ? "" : status.error().message);
      EXPECT_EQ(many.lowered.packed_bytes, one.lowered.packed_bytes);
      int64_t heads = 0;  // of one split of one layer's attention
      std::multiset<int32_t> drawn;
      for (const auto& codes : many.lowered.codes) {
        for (const Code& code : codes) {
          const bool attention = code.opcode == Opcode::attention;
          heads += attention && code.n == 0 ? code.last - code.first : 0;
          if (code.opcode == Opcode::sample) {
            drawn.insert(code.row);
          }
          EXPECT_LT(code.row, sequences);
          for (int s = 0; s < code.segments; ++s) {
            EXPECT_LE(static_cast<int32_t>(code.segment[s].columns), code.segment[s].stride);
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
    int64_t end = 0;
    std::set<int64_t> sources;
    for (const PackJob& job : made.lowered.pack) {
      EXPECT_EQ(job.destination, end) << name;
      end += unit_bytes(job.k, job.fold, job.compressed != 0);
      for (const int half : {0, 1}) {
        EXPECT_LE(job.rows[half], kUnitColumns / 2 >> job.fold) << name;
        packed += int64_t{job.rows[half]} * job.k;
        EXPECT_TRUE(job.rows[half] == 0 || sources.insert(job.source[half]).second) << name;
      }
    }
    EXPECT_EQ(end, made.lowered.packed_bytes) << name;
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
        columns += code.segment[i].columns;
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
        EXPECT_EQ(code.source == kOperands, reads) << name;
        EXPECT_TRUE(!reads || code.waits > 0) << name;
        if (code.opcode == Opcode::gated_linear || code.opcode == Opcode::combine) {
          EXPECT_EQ(code.signals, 1) << name;
        }
        EXPECT_EQ(code.merged, 0) << name;
        EXPECT_EQ(code.segment[0].version == kOperands, code.opcode == Opcode::gated_linear);
        merged += code.opcode == Opcode::combine ? code.last - code.first : 0;
      }
    }
    EXPECT_EQ(merged, made.config.layers * made.config.query_heads);
  }
}

TEST(Lower, OnlyTheLastUnitIsFolded) {
  for (const std::string& name : preset_names()) {
    const Made made = make(name);
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        if (code.units == 0) {
          continue;
        }
        const int64_t unit = code.opcode == Opcode::gated_linear ? kUnitColumns / 2 : kUnitColumns;
        int64_t units = 0;
        for (int i = 0; i < code.segments; ++i) {
          const int64_t columns = code.segment[i].columns;
          units += units_of(columns, unit);
          EXPECT_EQ(last_fold(columns, unit), i + 1 < code.segments ? 0 : code.fold) << name;
        }
        EXPECT_EQ(code.units, units) << name;
      }
    }
  }
}

TEST(Lower, ReadersNameTheWriteTheyWaitFor) {
  const Made made = make("qwen3-0.6b");
  for (const auto& codes : made.lowered.codes) {
    for (const Code& code : codes) {
      if (code.source == kPlain) {
        continue;
      }
      EXPECT_LT(code.source, code.operation);
      const Operation& writer = made.program.operations[static_cast<size_t>(code.source)];
      const Operation& reader = made.program.operations[static_cast<size_t>(code.operation)];
      if (code.opcode == Opcode::attention) {
        EXPECT_EQ(writer.name, "q_proj");
        EXPECT_EQ(writer.layer, reader.layer);
      } else if (code.merged != 0) {
        EXPECT_EQ(reader.name, "o_proj");
        EXPECT_EQ(writer.name, "attention");
        EXPECT_EQ(writer.layer, reader.layer);
      } else if (code.b != kNowhere) {
        EXPECT_TRUE(writer.name == "embed" || writer.name == "o_proj" ||
                    writer.name == "down_proj");
      } else {
        EXPECT_EQ(reader.name, "down_proj");
        EXPECT_EQ(writer.name, "gate_up_proj");
        EXPECT_EQ(writer.layer, reader.layer);
      }
    }
  }
}

TEST(Lower, KeepsWhatWouldBeMadeAgain) {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "mistral-7b"}) {
    const Made made = make(name);
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        const int64_t of_warp = (slices_of(code.k) + kTeamWarps - 1) / kTeamWarps;
        if (code.merged != 0 || (code.units > 0 && code.b != kNowhere)) {
          EXPECT_LE(of_warp, made.lowered.row_slices) << name;
        }
      }
    }
  }
}

/// What row_place() in ops/linear/hopper.cuh names lies in what lower() has asked for.
TEST(Lower, RowsHavePlaces) {
  for (const char* name : {"llama-3.2-1b", "llama-3.1-8b", "weft-2b"}) {
    const Made made = make(name);
    for (const auto& codes : made.lowered.codes) {
      for (const Code& code : codes) {
        const int64_t slices = slices_of(code.k);
        for (int64_t warp = 0; warp < kTeamWarps && code.units > 0; ++warp) {
          const int64_t count =
              slices < kTeamWarps ? 1 : (slices - warp + kTeamWarps - 1) / kTeamWarps;
          const int64_t last = count <= made.lowered.row_slices ? count - 1 : 1;
          EXPECT_LE((last * kTeamWarps + warp + 1) * row_slice_bytes(1), made.lowered.scratch_bytes)
              << name << " " << code.k;
        }
      }
    }
  }
}

/// What page_jump() says, by walking the slices as SliceShare deals them.
TEST(Lower, PageJumpIsTheFurthestAWarpGoes) {
  for (int64_t k = 32; k <= 30000; k += 32) {
    const int64_t slices = slices_of(k);
    const int64_t pages = (slices + kPageSlices - 1) / kPageSlices;
    constexpr int kUnits = 20;
    constexpr int kFolds[] = {0, 1, 2};
    int64_t furthest = 0;
    for (int64_t turn = 0; turn < kTeamWarps * std::ssize(kFolds); ++turn) {
      const int64_t warp = turn % kTeamWarps;
      const int last = kFolds[turn / kTeamWarps];
      int64_t before = -1;
      for (int64_t unit = 0; unit < kUnits; ++unit) {
        const int fold = unit + 1 == kUnits ? last : 0;
        for (int64_t slice = 0; slice < slices; ++slice) {
          const int64_t sets = std::max<int64_t>(1, kTeamWarps / slices);
          const bool mine = slices < kTeamWarps
                                ? warp / slices == unit % sets && warp % slices == slice
                                : slice % kTeamWarps == warp;
          if (mine) {
            const int64_t page = unit * pages + page_of(static_cast<int>(slice), fold);
            furthest = before >= 0 ? std::max(furthest, page - before) : furthest;
            before = page;
          }
        }
      }
    }
    EXPECT_EQ(page_jump(k, kTeamWarps), furthest) << k;
  }
}

TEST(Lower, CompressesProductsWhoseSlicesDivideAmongWarps) {
  const auto plain_of = [](const std::string& name) {
    const Made made = make(name);
    std::set<std::string> plain;
    const std::vector<bool> is_plain = plain_operations(made.program);
    for (size_t i = 0; i < is_plain.size(); ++i) {
      if (is_plain[i]) {
        plain.insert(made.program.operations[i].name);
      }
    }
    return plain;
  };
  EXPECT_EQ(plain_of("llama-3.2-1b"), std::set<std::string>{});
  EXPECT_EQ(plain_of("llama-3.1-8b"), std::set<std::string>{});
  EXPECT_EQ(plain_of("qwen3-0.6b"), std::set<std::string>{"down_proj"});  // 12 slices
  const Made one = make("llama-3.2-1b");
  const Made plain = make("llama-3.2-1b", 1, true);
  EXPECT_EQ(one.lowered.plain_bytes, plain.lowered.plain_bytes);
  EXPECT_EQ(plain.lowered.packed_bytes, plain.lowered.plain_bytes);
  EXPECT_NEAR(
      static_cast<double>(one.lowered.packed_bytes),
      static_cast<double>(one.lowered.plain_bytes) * kCompressedSliceBytes / kPlainSliceBytes,
      1e-3 * static_cast<double>(one.lowered.plain_bytes));
}

/// The pages that loaders put into the ring are those that the team's warps look for, with every
/// slice where it is looked for, whether weights are compressed, plain, or some of them both.
TEST(Lower, PagesHoldTheSlicesThatAreLookedFor) {
  for (const char* name : {"qwen3-0.6b", "llama-3.2-3b", "weft-2b", "llama-3.2-1b"}) {
    Made made = make(name);
    auto lowered = lower(made.program, made.config, made.weights, made.arena, kCapacity,
                         plain_operations(made.program));
    ASSERT_TRUE(lowered.ok()) << name;
    std::set<bool> forms;
    size_t job = 0;  // packed in the order in which they are read
    for (size_t worker = 0; worker < lowered->codes.size(); ++worker) {
      int64_t at = lowered->streams[worker];
      for (const Code& code : lowered->codes[worker]) {
        if (code.units == 0) {
          continue;
        }
        const bool compressed = code.compressed != 0;
        forms.insert(compressed);
        EXPECT_EQ(lowered->streams[worker] + int64_t{code.stream} * 16, at) << name;
        EXPECT_LE(page_bytes(compressed), lowered->page_bytes);
        const auto slices = static_cast<int>(slices_of(code.k));
        for (int unit = 0; unit < code.units; ++unit) {
          const int fold = unit + 1 == code.units ? code.fold : 0;
          const int64_t bytes = unit_bytes(code.k, fold, compressed);
          ASSERT_LT(job, lowered->pack.size());
          EXPECT_EQ(lowered->pack[job].destination, at) << name;
          EXPECT_EQ(lowered->pack[job].compressed != 0, compressed) << name;
          EXPECT_EQ(lowered->pack[job].fold, fold) << name;
          const int64_t pages = (bytes + page_bytes(compressed) - 1) / page_bytes(compressed);
          EXPECT_EQ(page_of(slices - 1, fold) + 1, pages) << name << " " << code.k;
          for (int slice = 0; slice < slices; ++slice) {
            // Plain ones have the groups that there are, compressed ones all.
            const int64_t whole = weight_slice_bytes(compressed) >> fold;
            const int64_t begin = int64_t{page_of(slice, fold)} * page_bytes(compressed) +
                                  place_in_page(slice, fold) * whole;
            EXPECT_EQ(begin, slice * whole) << name;
            EXPECT_LT(begin, bytes) << name;
            EXPECT_LE(begin + (compressed ? whole : 1), bytes) << name;
          }
          at += bytes;
          ++job;
        }
      }
    }
    EXPECT_EQ(job, lowered->pack.size());
    EXPECT_EQ(forms.size(), made.config.name == "qwen3-0.6b" || made.config.name == "llama-3.2-3b"
                                ? size_t{2}
                                : size_t{1})
        << name;
  }
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
  EXPECT_NE(lowered.error().message.find("is F16: the cuda device runs bf16 weights"),
            std::string::npos)
      << lowered.error().message;
}

}  // namespace
}  // namespace weft::hopper

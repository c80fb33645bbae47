#include "engine/cdna/traffic.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "base/divide.h"
#include "engine/cdna/lower.h"
#include "program/planner.h"

namespace weft::cdna {
namespace {

int64_t sum(const ByDistance& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}
const Exchange& find(const Traffic& traffic, const std::string& buffer, const std::string& reader) {
  for (const Exchange& e : traffic.exchanges) {
    if (e.buffer == buffer && e.reader == reader) {
      return e;
    }
  }
  ADD_FAILURE() << reader << " reads no " << buffer;
  return traffic.exchanges.front();
}

struct Counted {
  ModelConfig config;
  Traffic traffic;
};
Counted count(const char* name, Target target, int workers, int64_t position) {
  ModelConfig config = preset(name).value();
  config.layers = 2;
  const Weights weights = Weights::describe(config);
  const Program program = plan(config, weights, plan_options(config, workers, 8192, DType::bf16));
  return {config, count_traffic(program, weights, Topology(target, workers), position)};
}

TEST(CdnaTopology, SaysWhatIsShared) {
  const Topology mi300(Target::gfx942, 304);
  EXPECT_EQ(mi300.between(5, 5), Distance::cu);
  EXPECT_EQ(mi300.between(0, 37), Distance::xcd);
  EXPECT_EQ(mi300.between(37, 38), Distance::iod);
  EXPECT_EQ(mi300.between(75, 76), Distance::device);
  const Topology mi355(Target::gfx950, 256);
  EXPECT_EQ(mi355.between(32, 96), Distance::iod);
  EXPECT_EQ(mi355.between(127, 128), Distance::device);
}

/// Workgroup n is on XCD n mod 8, whatever their number; each is another worker.
TEST(CdnaTopology, WorkersAreNumberedXcdByXcd) {
  for (const int64_t workers : {1, 5, 8, 13, 256, 304}) {
    const Topology topology(Target::gfx942, workers);
    std::set<int64_t> seen;
    for (int64_t workgroup = 0; workgroup < workers; ++workgroup) {
      const int64_t worker = topology.worker(workgroup);
      EXPECT_EQ(topology.xcd(worker), workgroup % 8);
      EXPECT_TRUE(worker >= 0 && worker < workers && seen.insert(worker).second);
      EXPECT_TRUE(worker == 0 || topology.xcd(worker - 1) <= topology.xcd(worker));
    }
  }
}

/// A row that all workers read is read whole by each, and a worker's own part is near.
TEST(CdnaTraffic, EveryByteThatIsReadIsCountedOnce) {
  constexpr int kUnits = 304;
  const auto [config, traffic] = count("llama-3.1-8b", Target::gfx942, kUnits, 1000);
  const Exchange& residual = find(traffic, "residual", "ffn_norm");
  EXPECT_EQ(residual.times, 2);
  EXPECT_EQ(residual.readers, kUnits);
  EXPECT_EQ(sum(residual.bytes), 2 * kUnits * config.hidden * 4);
  EXPECT_EQ(residual.bytes[0], 2 * config.hidden * 4);  // whoever wrote a column reads it
  const Exchange& ffn = find(traffic, "ffn_row", "down_proj");
  EXPECT_EQ(sum(ffn.bytes), 2 * ffn.readers * config.ffn * 4);
  EXPECT_EQ(sum(find(traffic, "draws", "next token").bytes), kUnits * kUnits * 16);

  int64_t within = 0;
  int64_t across = 0;
  int64_t kv = 0;
  int64_t workers = 0;
  for (const XcdTraffic& xcd : traffic.xcds) {
    within += xcd.within;
    across += xcd.across;
    kv += xcd.kv;
    workers += xcd.workers;
  }
  const ByDistance all = traffic.sum();
  EXPECT_EQ(within, all[0] + all[1]);
  EXPECT_EQ(across, all[2] + all[3]);
  EXPECT_EQ(workers, kUnits);
  EXPECT_EQ(kv, 2 * 2 * 1000 * config.kv_size() * 2);  // layers, keys and values, bf16
}

/// Splits that have no keys are neither made nor read.
TEST(CdnaTraffic, CountsSplitsThatHaveKeys) {
  const auto bytes = [](int64_t position) {
    const auto counted = count("llama-3.1-8b", Target::gfx950, 256, position);
    return sum(find(counted.traffic, "partials", "attention_combine").bytes);
  };
  EXPECT_EQ(bytes(127), bytes(0));
  EXPECT_EQ(bytes(128), 2 * bytes(0));    // a third block of 64 keys
  EXPECT_EQ(bytes(8191), 16 * bytes(0));  // of eight blocks each
}

/// With a KV head for each XCD, what belongs to a head never leaves its XCD, but for the row that
/// its splits make.
TEST(CdnaTraffic, HeadsStayWithTheirXcds) {
  for (const Target target : kTargets) {
    const int units = limits_of(target).compute_units;
    const auto [config, traffic] = count("llama-3.1-8b", target, units, 4000);
    ASSERT_EQ(config.kv_heads, 8);
    for (const auto& [buffer, reader] : {std::pair("q", "attention"),
                                         {"k", "attention"},
                                         {"v", "attention"},
                                         {"partials", "attention_combine"}}) {
      const Exchange& exchange = find(traffic, buffer, reader);
      EXPECT_GT(exchange.bytes[1], 0) << buffer;
      EXPECT_EQ(exchange.bytes[2] + exchange.bytes[3], 0) << buffer;
    }
    for (const XcdTraffic& xcd : traffic.xcds) {
      EXPECT_EQ(xcd.heads, 2);  // one of each layer
    }
    // The splits are read once a query head, the row by all.
    EXPECT_EQ(find(traffic, "partials", "attention_combine").readers, config.query_heads);
    const Exchange& row = find(traffic, "attention_row", "o_proj");
    EXPECT_EQ(sum(row.bytes), 2 * row.readers * config.query_size() * 4);
  }
}

/// Rows of which all heads have the same: each group of heads reads them once, and merges of a head
/// what is its own.
TEST(CdnaTraffic, LatentRowsAreReadByGroupsOfHeads) {
  constexpr int64_t kPosition = 1000;
  const auto [config, traffic] = count("deepseek-v2-lite", Target::gfx942, 304, kPosition);
  ASSERT_EQ(config.query_heads, 16);
  int64_t kv = 0;
  for (const XcdTraffic& xcd : traffic.xcds) {
    kv += xcd.kv;
  }
  EXPECT_EQ(kv, 2 * 2 * kPosition * (512 + 64) * 2);  // layers, groups, bf16
  const Exchange& merged = find(traffic, "partials", "attention_combine");
  const int64_t splits = ceil_div(kPosition + 1, int64_t{64});
  // A unit of values' columns is of one head, and so is what its worker merges.
  EXPECT_EQ(merged.readers, 16 * 128 / 16);
  EXPECT_EQ(sum(merged.bytes), 2 * merged.readers * splits * (512 + 2) * 4);
}

TEST(CdnaTraffic, OneWorkerIsNeverFar) {
  const auto [config, traffic] = count("gemma-2-2b", Target::gfx942, 1, 40);
  const ByDistance all = traffic.sum();
  EXPECT_GT(all[0], 0);
  EXPECT_EQ(all[1] + all[2] + all[3], 0);
  EXPECT_EQ(traffic.xcds[0].workers, 1);
  EXPECT_EQ(traffic.xcds[1].weights, 0);
  EXPECT_EQ(traffic.xcds[0].heads, 2 * config.kv_heads);
}

TEST(CdnaTraffic, IsTold) {
  const auto counted = count("llama-3.2-1b", Target::gfx942, 304, 100);
  const std::string text = describe(counted.traffic, Topology(Target::gfx942, 304), 100);
  EXPECT_NE(text.find("a step at position 100"), std::string::npos);
  EXPECT_NE(text.find("\n  ffn_row          down_proj             2     128"), std::string::npos)
      << text;
  EXPECT_NE(text.find("\n    7   3      38"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::cdna

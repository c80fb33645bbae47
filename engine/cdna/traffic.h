// What a decode step's workers read of each other's writes, and how far it comes: counted from the
// program, for `weft inspect`.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/cdna/topology.h"
#include "model/weights.h"
#include "program/program.h"

namespace weft::cdna {

using ByDistance = std::array<int64_t, kDistances>;  ///< bytes

/// A buffer as one kind of operation reads it, in all layers together. Tagged words are as long as
/// the f32 that they carry.
struct Exchange {
  std::string buffer;
  std::string reader;   ///< operation
  int64_t times = 0;    ///< operations of a step that read it
  int64_t readers = 0;  ///< workers, of the operation that has most
  ByDistance bytes = {};
};

struct XcdTraffic {
  int64_t workers = 0;
  double weights = 0;  ///< bytes that its workers read of weights
  int64_t kv = 0;      ///< of keys and values
  int64_t heads = 0;   ///< KV heads, of all layers, that its workers read
  int64_t within = 0;  ///< bytes that its workers read of what its workers wrote
  int64_t across = 0;  ///< of what others wrote
};

struct Traffic {
  std::vector<Exchange> exchanges;  ///< in the order of their first readers
  std::vector<XcdTraffic> xcds;

  ByDistance sum() const;
};

/// Of a greedy step at `position`, in which every worker reads what all publish of the next token.
Traffic count_traffic(const Program& program, const Weights& weights, const Topology& topology,
                      int64_t position);

/// As a table.
std::string describe(const Traffic& traffic, const Topology& topology, int64_t position);

}  // namespace weft::cdna

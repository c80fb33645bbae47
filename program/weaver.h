// The loom that all parts of the planner share: the program as it grows, and the ways to cut an
// operation into tiles of workers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/config.h"
#include "model/layer.h"
#include "model/weights.h"
#include "program/planner.h"
#include "program/program.h"

namespace weft::planning {

/// One tile of an operation.
struct Tile {
  Range rows;
  Range tile;
  int32_t split = 0;
};
using Tiles = std::vector<std::vector<Tile>>;  ///< [worker]
using Waits = std::vector<Wait>;
using Users = std::vector<bool>;  ///< [worker]: whether it needs something

/// Marks the workers that have a tile.
void add_users(const Tiles& tiles, Users& users);

class Weaver {
 public:
  /// All outlive the weaver.
  Weaver(const ModelConfig& config, const Weights& weights, const PlanOptions& options);

  const ModelConfig& config() const { return config_; }
  const PlanOptions& options() const { return options_; }
  const std::vector<RopeSpec>& ropes() const { return ropes_; }
  bool chunk() const { return options_.rows > 1; }
  Range all_rows() const { return {0, program.rows}; }
  Users everyone() const { return Users(program.workers.size(), true); }
  /// Format of activations that meet these weights in a chunk.
  Element chunk_element(Role role, int64_t layer) const;

  // Buffers, operations, instructions.
  BufferId buffer(std::string name, Space space, Element element, int64_t rows, int64_t columns);
  const Buffer& at(BufferId id) const { return program.buffers[static_cast<size_t>(id)]; }
  WeightRef weight(Role role, int64_t layer = -1) const;
  int32_t operation(std::string name, int64_t layer, Rows rows, decltype(Operation::body) body);
  /// Gives each worker its tiles; the first waits, the last signals the event that is returned.
  EventId spread(int32_t op, const Tiles& tiles, const Waits& waits);
  /// Each of `users` does the whole of it for itself: nothing is announced.
  void repeat(int32_t op, const Waits& waits, const Users& users, Range tile = {0, 1});
  /// Likewise, of each worker's tiles.
  void repeat(int32_t op, const Waits& waits, const Tiles& tiles);

  // Ways to cut an operation.
  Tiles by_columns(int64_t n, int64_t unit) const;
  /// A chunk's rows in blocks that are dealt in turn.
  Tiles by_rows(Range tile) const;
  /// A sequence each, so that several workers are at work at once; of a chunk, all rows.
  /// `first`: the worker of the first sequence.
  Tiles by_sequences(Range tile, int64_t first = 0) const;
  Tiles by_heads(int64_t heads) const { return by_columns(heads, 1); }
  /// Of what follows attention over splits of keys, which are dealt first to the first workers:
  /// where there are fewer heads than workers, the last ones have a head each.
  Tiles by_heads_from_last(int64_t heads) const;
  Tiles on_one_worker(int64_t worker) const;
  /// Products of one row, of columns[i] columns with k weights each, in grains of `grain` columns:
  /// in a decode step, the workers that have been dealt the fewest weights so far get the grains
  /// that do not divide evenly. `busy`: workers that get none where the others' largest share is no
  /// larger for it.
  std::vector<Tiles> by_weights(const std::vector<int64_t>& columns, int64_t k, int64_t grain,
                                const Users& busy = {});
  /// Likewise, of one product, in whole grains.
  Tiles by_grains(int64_t n, int64_t k, int64_t grain);
  /// A product that all wait for, by the workers that are not `late`: these come to it from other
  /// work. Nullopt: nobody is late, or the others would take longer than they would wait.
  std::optional<Tiles> by_others(int64_t n, int64_t k, int64_t grain, const Users& late);

  /// KV heads, and the neighbouring workers [first, end) that have all of them to themselves: a
  /// head each, or several where there are fewer workers than heads.
  struct Neighbours {
    Range heads;
    size_t first = 0, end = 0;
  };
  std::vector<Neighbours> neighbours(int64_t heads) const;
  /// by_weights() of products that have each[i] columns a head, each head's with its neighbours.
  std::vector<Tiles> by_near_heads(const std::vector<int64_t>& each, int64_t heads, int64_t k,
                                   int64_t grain);

  Program program;

 private:
  /// Of what meets a weight.
  Fp8Rounding rounding(const WeightRef& weight) const;
  /// Deals n columns in grains to some workers, in ascending order. `had`: columns of the same
  /// product that a worker has already, of which it gets no more than `most` unless all have as
  /// many.
  Tiles deal(int64_t n, int64_t k, int64_t grain, const std::vector<size_t>& workers,
             std::vector<int64_t>& had, int64_t most);
  std::vector<size_t> all_workers() const;
  std::vector<size_t> workers_but(const Users& busy) const;

  const ModelConfig& config_;
  const Weights& weights_;
  const PlanOptions& options_;
  const std::vector<RopeSpec> ropes_;
  std::vector<int64_t> dealt_;  // [worker]: weights so far
};

}  // namespace weft::planning

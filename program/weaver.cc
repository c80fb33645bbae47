#include "program/weaver.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "base/divide.h"

namespace weft::planning {
namespace {

// Rows of a chunk are dealt to workers in blocks of this many, in turn, so that a chunk that is not
// full keeps all workers busy.
constexpr int64_t kRowBlock = 16;
// Shares of fewer weights than this stay whole grains: an SM of an H200 has as many in store when a
// product's row comes, so that evener ones would not end earlier.
constexpr int64_t kWeightsInStore = 1 << 17;
// And so many it multiplies in half a microsecond: less than who comes late from other work would
// be waited for.
constexpr int64_t kLittleMore = 1 << 15;

/// The largest share where n columns are dealt to workers in grains.
int64_t share_of(int64_t n, int64_t grain, int64_t workers) {
  return ceil_div(ceil_div(n, grain), workers) * grain;
}

std::vector<size_t> from_to(size_t first, size_t end) {
  std::vector<size_t> numbers(end - first);
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

}  // namespace

void add_users(const Tiles& tiles, Users& users) {
  users.resize(tiles.size());
  for (size_t w = 0; w < tiles.size(); ++w) {
    users[w] = users[w] || !tiles[w].empty();
  }
}

Weaver::Weaver(const ModelConfig& config, const Weights& weights, const PlanOptions& options)
    : config_(config), weights_(weights), options_(options), ropes_(weft::ropes(config)) {
  WEFT_CHECK(options.workers >= 1 && options.rows >= 1 && options.capacity >= 1);
  WEFT_CHECK(options.sequences == 1 || (options.sequences > 1 && options.rows == 1));
  program.name = options.rows == 1 ? "decode" : "chunk";
  program.rows = options.rows * options.sequences;
  program.sequences = options.sequences;
  program.workers.resize(static_cast<size_t>(options.workers));
  dealt_.resize(static_cast<size_t>(options.workers));
}

Element Weaver::chunk_element(Role role, int64_t layer) const {
  const DType dtype = weights_.get(role, layer).dtype;
  const bool round = options_.round_activations &&
                     (dtype == DType::bf16 || (is_fp8(dtype) && !options_.quantise_activations));
  return round ? Element::bf16 : Element::f32;
}

BufferId Weaver::buffer(std::string name, Space space, Element element, int64_t rows,
                        int64_t columns) {
  program.buffers.push_back({std::move(name), space, element, rows, columns, -1});
  return static_cast<BufferId>(program.buffers.size()) - 1;
}

Fp8Rounding Weaver::rounding(const WeightRef& weight) const {
  const bool rounds =
      options_.quantise_activations && is_fp8(weights_.get(weight.role, weight.layer).dtype);
  return rounds ? config_.quantization.activations : Fp8Rounding{};
}

WeightRef Weaver::weight(Role role, int64_t layer) const {
  return {role, layer, weights_.find(role, layer) != nullptr};
}

int32_t Weaver::operation(std::string name, int64_t layer, Rows rows,
                          decltype(Operation::body) body) {
  if (auto* linear = std::get_if<LinearOp>(&body)) {
    linear->rounding = rounding(linear->weight);
  } else if (auto* gated = std::get_if<GatedLinearOp>(&body)) {
    gated->rounding = rounding(gated->gate);
  } else if (auto* up = std::get_if<ExpertsUpOp>(&body)) {
    up->rounding = rounding(up->gate);
  } else if (auto* down = std::get_if<ExpertsDownOp>(&body)) {
    down->rounding = rounding(down->weight);
  }
  program.operations.push_back({std::move(name), layer, rows, std::move(body)});
  return static_cast<int32_t>(program.operations.size()) - 1;
}

EventId Weaver::spread(int32_t op, const Tiles& tiles, const Waits& waits) {
  const auto event = static_cast<EventId>(program.events.size());
  program.events.push_back({program.operations[static_cast<size_t>(op)].name, 0});
  for (size_t worker = 0; worker < tiles.size(); ++worker) {
    for (size_t i = 0; i < tiles[worker].size(); ++i) {
      const Tile& tile = tiles[worker][i];
      Instruction instruction{op, tile.rows, tile.tile, tile.split, {}, kNone};
      if (i == 0) {
        instruction.waits = waits;
      }
      if (i + 1 == tiles[worker].size()) {
        instruction.signal = event;
        ++program.events.back().signals;
      }
      program.workers[worker].push_back(std::move(instruction));
    }
  }
  return event;
}

void Weaver::repeat(int32_t op, const Waits& waits, const Users& users, Range tile) {
  for (size_t w = 0; w < users.size(); ++w) {
    if (users[w]) {
      program.workers[w].push_back({op, all_rows(), tile, 0, waits, kNone});
    }
  }
}

void Weaver::repeat(int32_t op, const Waits& waits, const Tiles& tiles) {
  for (size_t w = 0; w < tiles.size(); ++w) {
    for (const Tile& tile : tiles[w]) {
      program.workers[w].push_back({op, tile.rows, tile.tile, tile.split, waits, kNone});
    }
  }
}

Tiles Weaver::on_one_worker(int64_t worker) const {
  Tiles tiles(program.workers.size());
  tiles[static_cast<size_t>(worker) % tiles.size()].push_back({all_rows(), {0, 1}, 0});
  return tiles;
}

Tiles Weaver::by_columns(int64_t n, int64_t unit) const {
  const int64_t units = ceil_div(n, unit);
  const int64_t workers = options_.workers;
  Tiles tiles(static_cast<size_t>(workers));
  for (int64_t w = 0; w < workers; ++w) {
    const Range columns{units * w / workers * unit, std::min(n, units * (w + 1) / workers * unit)};
    if (!columns.empty()) {
      tiles[static_cast<size_t>(w)].push_back({all_rows(), columns, 0});
    }
  }
  return tiles;
}

Tiles Weaver::by_heads_from_last(int64_t heads) const {
  if (heads >= options_.workers) {
    return by_heads(heads);
  }
  Tiles tiles(static_cast<size_t>(options_.workers));
  for (int64_t head = 0; head < heads; ++head) {
    tiles[static_cast<size_t>(options_.workers - heads + head)].push_back(
        {all_rows(), {head, head + 1}, 0});
  }
  return tiles;
}

Tiles Weaver::by_sequences(Range tile, int64_t first) const {
  Tiles tiles(static_cast<size_t>(options_.workers));
  for (int64_t row = 0; row < program.sequences; ++row) {
    const Range rows = program.sequences > 1 ? Range{row, row + 1} : all_rows();
    tiles[static_cast<size_t>((first + row) % options_.workers)].push_back({rows, tile, 0});
  }
  return tiles;
}

Tiles Weaver::by_rows(Range tile) const {
  Tiles tiles(static_cast<size_t>(options_.workers));
  for (int64_t begin = 0, i = 0; begin < options_.rows; begin += kRowBlock, ++i) {
    const Range rows{begin, std::min(begin + kRowBlock, options_.rows)};
    tiles[static_cast<size_t>(i % options_.workers)].push_back({rows, tile, 0});
  }
  return tiles;
}

std::vector<size_t> Weaver::all_workers() const { return from_to(0, dealt_.size()); }

std::vector<size_t> Weaver::workers_but(const Users& busy) const {
  std::vector<size_t> workers = all_workers();
  std::erase_if(workers, [&](size_t w) { return w < busy.size() && busy[w]; });
  return workers;
}

Tiles Weaver::deal(int64_t n, int64_t k, int64_t grain, const std::vector<size_t>& workers,
                   std::vector<int64_t>& had, int64_t most) {
  const int64_t grains = ceil_div(n, grain);
  const auto count = static_cast<int64_t>(workers.size());
  std::vector<size_t> order = workers;
  const int64_t each = grains / count * grain;  // at least
  const auto place = [&](size_t w) { return std::pair(had[w] + each + grain > most, dealt_[w]); };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return place(a) < place(b); });
  std::vector<int64_t> counts(dealt_.size(), grains / count);
  for (int64_t i = 0; i < grains % count; ++i) {
    ++counts[order[static_cast<size_t>(i)]];
  }
  Tiles tiles(dealt_.size());
  int64_t begin = 0;
  for (const size_t w : workers) {
    const int64_t stop = std::min(n, begin + counts[w] * grain);
    if (begin < stop) {
      tiles[w].push_back({all_rows(), {begin, stop}, 0});
      dealt_[w] += counts[w] * grain * k;
      had[w] += counts[w] * grain;
    }
    begin = stop;
  }
  return tiles;
}

std::vector<Tiles> Weaver::by_weights(const std::vector<int64_t>& columns, int64_t k, int64_t grain,
                                      const Users& busy) {
  std::vector<Tiles> tiles;
  // Of whole grains, the largest share is this; a part of a grain may make it smaller. Then each
  // worker has columns of one product, so that it has but one part.
  const int64_t workers = options_.workers;
  const auto needed = [&](int64_t unit) {  // units or, of shares, workers
    return std::accumulate(columns.begin(), columns.end(), int64_t{0},
                           [&](int64_t sum, int64_t n) { return sum + ceil_div(n, unit); });
  };
  int64_t share = ceil_div(needed(grain), workers) * grain;
  int64_t part = grain;
  // No more than two halvings; three quarters of a grain take as long as a whole one.
  for (int64_t p = grain / 2; p >= std::max(options_.fewest_columns, grain / 4); p /= 2) {
    int64_t s = p;
    while (s < share && (needed(s) > workers || s % grain == grain - grain / 4)) {
      s += p;
    }
    if (s < share && share * k >= kWeightsInStore) {
      share = s;
      part = p;
    }
  }
  std::vector<int64_t> had(dealt_.size());
  if (part == grain) {
    std::vector<size_t> users = workers_but(busy);
    const auto left = static_cast<int64_t>(users.size());
    if (left == 0 || ceil_div(needed(grain), left) * grain > share) {
      users = all_workers();
    }
    for (const int64_t n : columns) {
      tiles.push_back(deal(n, k, grain, users, had, share));
    }
    return tiles;
  }
  int64_t spare = workers - needed(share);
  size_t first = 0;
  for (const int64_t n : columns) {
    const size_t end = first + static_cast<size_t>(ceil_div(n, share) + std::exchange(spare, 0));
    tiles.push_back(deal(n, k, part, from_to(first, end), had, share));
    first = end;
  }
  return tiles;
}

Tiles Weaver::by_grains(int64_t n, int64_t k, int64_t grain) {
  std::vector<int64_t> had(dealt_.size());
  return deal(n, k, grain, all_workers(), had, share_of(n, grain, options_.workers));
}

std::optional<Tiles> Weaver::by_others(int64_t n, int64_t k, int64_t grain, const Users& late) {
  const std::vector<size_t> others = workers_but(late);
  if (others.size() == dealt_.size() || 2 * others.size() < dealt_.size()) {
    return std::nullopt;
  }
  const int64_t of_all = share_of(n, grain, options_.workers);
  for (int64_t part = grain; part >= std::max(options_.fewest_columns, grain / 2); part /= 2) {
    const int64_t share = share_of(n, part, std::ssize(others));
    if ((share - of_all) * k <= kLittleMore && share * k <= kWeightsInStore) {
      std::vector<int64_t> had(dealt_.size());
      return deal(n, k, share, others, had, share);
    }
  }
  return std::nullopt;
}

std::vector<Weaver::Neighbours> Weaver::neighbours(int64_t heads) const {
  const int64_t workers = options_.workers;
  const int64_t groups = std::min(heads, workers);
  std::vector<Neighbours> result;
  for (int64_t i = 0; i < groups; ++i) {
    result.push_back({{heads * i / groups, heads * (i + 1) / groups},
                      static_cast<size_t>(workers * i / groups),
                      static_cast<size_t>(workers * (i + 1) / groups)});
  }
  return result;
}

std::vector<Tiles> Weaver::by_near_heads(const std::vector<int64_t>& each, int64_t heads, int64_t k,
                                         int64_t grain) {
  std::vector<Tiles> tiles(each.size(), Tiles(dealt_.size()));
  std::vector<int64_t> had(dealt_.size());
  for (const Neighbours& near : neighbours(heads)) {
    const int64_t needed = std::accumulate(
        each.begin(), each.end(), int64_t{0},
        [&](int64_t sum, int64_t n) { return sum + ceil_div(n * near.heads.size(), grain); });
    const int64_t share = ceil_div(needed, static_cast<int64_t>(near.end - near.first)) * grain;
    for (size_t i = 0; i < each.size(); ++i) {
      const Tiles dealt =
          deal(each[i] * near.heads.size(), k, grain, from_to(near.first, near.end), had, share);
      const int64_t first = each[i] * near.heads.begin;
      for (size_t w = near.first; w < near.end; ++w) {
        for (Tile tile : dealt[w]) {
          tile.tile = {first + tile.tile.begin, first + tile.tile.end};
          tiles[i][w].push_back(tile);
        }
      }
    }
  }
  return tiles;
}

}  // namespace weft::planning

#include "engine/cdna/traffic.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <variant>

#include "engine/resident/code.h"
#include "engine/resident/split_keys.h"
#include "program/access.h"

namespace weft::cdna {
namespace {

/// Columns of a row that a worker wrote last.
struct Written {
  Range columns;
  int64_t worker = 0;
};

class Counter {
 public:
  Counter(const Program& program, const Weights& weights, const Topology& topology,
          int64_t position)
      : program_(program), weights_(weights), topology_(topology), position_(position) {
    traffic_.xcds.resize(static_cast<size_t>(topology.xcds()));
    for (const Operation& operation : program.operations) {
      if (const auto* attention = std::get_if<AttentionOp>(&operation.body)) {
        attentions_[attention->partials] = attention;
      }
    }
  }

  Traffic run() {
    const auto workers = static_cast<int64_t>(program_.workers.size());
    std::vector<size_t> next(program_.workers.size());
    for (int64_t w = 0; w < workers; ++w) {
      ++xcd_of(w).workers;
    }
    for (int32_t i = 0; i < std::ssize(program_.operations); ++i) {
      readers_.clear();
      written_now_.clear();
      for (int64_t w = 0; w < workers; ++w) {
        const auto& list = program_.workers[static_cast<size_t>(w)];
        for (size_t& at = next[static_cast<size_t>(w)]; at < list.size() && list[at].operation == i;
             ++at) {
          instruction(w, list[at]);
        }
      }
      for (const auto& [exchange, of_it] : readers_) {
        Exchange& e = traffic_.exchanges[exchange];
        ++e.times;
        e.readers = std::max(e.readers, std::ssize(of_it));
      }
      for (auto& [place, list] : written_now_) {  // a buffer's columns are written all at once
        written_[place] = std::move(list);
      }
    }
    for (int64_t w = 0; w < workers; ++w) {
      xcd_of(w).heads = std::ssize(heads_[topology_.xcd(w)]);
    }
    draws(workers);
    return std::move(traffic_);
  }

 private:
  using Place = std::pair<BufferId, int64_t>;  // a row

  XcdTraffic& xcd_of(int64_t worker) {
    return traffic_.xcds[static_cast<size_t>(topology_.xcd(worker))];
  }
  size_t exchange_of(const std::string& buffer, const std::string& reader) {
    auto& list = traffic_.exchanges;
    const auto found = std::find_if(list.begin(), list.end(), [&](const Exchange& e) {
      return e.buffer == buffer && e.reader == reader;
    });
    if (found == list.end()) {
      list.push_back({.buffer = buffer, .reader = reader});
      return list.size() - 1;
    }
    return static_cast<size_t>(found - list.begin());
  }
  void add(Exchange& exchange, int64_t reader, int64_t writer, int64_t bytes) {
    const Distance distance = topology_.between(reader, writer);
    exchange.bytes[static_cast<size_t>(distance)] += bytes;
    XcdTraffic& xcd = xcd_of(reader);
    (distance <= Distance::xcd ? xcd.within : xcd.across) += bytes;
  }

  void instruction(int64_t worker, const Instruction& instruction) {
    const Operation& operation = program_.operations[static_cast<size_t>(instruction.operation)];
    if (const auto* op = std::get_if<AttentionOp>(&operation.body)) {
      const resident::SplitKeys keys = split_keys(*op, instruction.split);
      if (instruction.split >= keys.active) {
        return;  // it has no keys
      }
      // Latent rows are all heads' keys and values at once.
      const Range heads = op->fused_latent() ? Range{0, 1} : instruction.tile;
      for (int64_t head = heads.begin; head < heads.end; ++head) {
        heads_[topology_.xcd(worker)].insert({operation.layer, head});
      }
      const Buffer& cache = program_.buffers[static_cast<size_t>(op->keys)];
      const int64_t row = op->fused_latent() ? op->head_dim + op->latent.turned : 2 * op->head_dim;
      // The step's own key and value come from their projections.
      const int64_t read = std::min(keys.last, position_) - std::min(keys.first, position_);
      xcd_of(worker).kv += heads.size() * read * row * size_of(cache.element);
    }
    xcd_of(worker).weights += cost_of(program_, instruction, weights_, 1, position_).weight_bytes;
    for (const Access& access : accesses_of(program_, instruction)) {
      const Buffer& buffer = program_.buffers[static_cast<size_t>(access.buffer)];
      if (buffer.space != Space::activation ||
          (!access.write && access.buffer == program_.logits)) {
        continue;  // greedy: nobody reads the logits
      }
      for (int64_t row = access.rows.begin; row < access.rows.end; ++row) {
        const Place place{access.buffer, row};
        if (access.write) {
          written_now_[place].push_back({access.columns, worker});
        } else {
          read(worker, operation, instruction.tile, access, place);
        }
      }
    }
  }
  void read(int64_t worker, const Operation& operation, Range tile, const Access& access,
            Place place) {
    const Buffer& buffer = program_.buffers[static_cast<size_t>(access.buffer)];
    const size_t exchange = exchange_of(buffer.name, operation.name);
    readers_[exchange].insert(worker);
    const auto* combine = std::get_if<AttentionCombineOp>(&operation.body);
    for (const Written& written : written_[place]) {
      if (combine != nullptr) {  // of all splits, but only its query heads
        const int64_t bytes = combined_bytes(combine->attention, tile, written.columns);
        add(traffic_.exchanges[exchange], worker, written.worker, bytes);
        continue;
      }
      const Range both{std::max(written.columns.begin, access.columns.begin),
                       std::min(written.columns.end, access.columns.end)};
      if (!both.empty()) {
        add(traffic_.exchanges[exchange], worker, written.worker,
            both.size() * column_bytes(access.buffer));
      }
    }
  }
  /// Of partials' columns what query heads `tile` have.
  static int64_t combined_bytes(const AttentionOp& op, Range tile, Range columns) {
    const int64_t group = op.tile_heads();
    int64_t heads = 0;
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      const int64_t first = column % (op.query_heads / group) * group;
      heads +=
          std::max<int64_t>(0, std::min(tile.end, first + group) - std::max(tile.begin, first));
    }
    return heads * (op.head_dim + 2) * size_of(Element::f32);
  }
  /// Of partials, a column is the query heads of a part of a tile, of a split.
  int64_t column_bytes(BufferId id) const {
    const auto found = attentions_.find(id);
    if (found == attentions_.end()) {
      return size_of(program_.buffers[static_cast<size_t>(id)].element);
    }
    const AttentionOp& op = *found->second;
    return op.tile_heads() * (op.head_dim + 2) * size_of(Element::f32);
  }
  resident::SplitKeys split_keys(const AttentionOp& op, int64_t split) const {
    return {{.count = static_cast<int32_t>(op.splits), .window = static_cast<int32_t>(op.window)},
            position_,
            split,
            op.fused_latent() ? resident::KeysOf::latents : resident::KeysOf::heads};
  }
  void draws(int64_t workers) {
    const size_t exchange = exchange_of("draws", "next token");
    Exchange& e = traffic_.exchanges[exchange];
    e.times = 1;
    e.readers = workers;
    for (int64_t reader = 0; reader < workers; ++reader) {
      for (int64_t writer = 0; writer < workers; ++writer) {
        add(e, reader, writer, sizeof(resident::Draw));
      }
    }
  }

  const Program& program_;
  const Weights& weights_;
  const Topology topology_;
  const int64_t position_;
  std::map<BufferId, const AttentionOp*> attentions_;  // by their partials
  std::map<Place, std::vector<Written>> written_, written_now_;
  std::map<size_t, std::set<int64_t>> readers_;                 // of an operation: by exchange
  std::map<int, std::set<std::pair<int64_t, int64_t>>> heads_;  // by XCD: layer, KV head
  Traffic traffic_;
};

std::string amount(double bytes) {
  return bytes >= 999.5e6   ? fmt::format("{:.3g} GB", bytes / 1e9)
         : bytes >= 999.5e3 ? fmt::format("{:.3g} MB", bytes / 1e6)
         : bytes >= 999.5   ? fmt::format("{:.3g} kB", bytes / 1e3)
                            : fmt::format("{:.0f} B", bytes);
}
std::string row(const std::string& what, const std::string& reader, const std::string& times,
                const std::string& readers, const ByDistance& bytes) {
  std::string text = fmt::format("  {:<16} {:<17} {:>5} {:>7}", what, reader, times, readers);
  for (const int64_t b : bytes) {
    text += fmt::format(" {:>9}", amount(static_cast<double>(b)));
  }
  return text + "\n";
}

}  // namespace

ByDistance Traffic::sum() const {
  ByDistance sum = {};
  for (const Exchange& exchange : exchanges) {
    for (size_t i = 0; i < sum.size(); ++i) {
      sum[i] += exchange.bytes[i];
    }
  }
  return sum;
}

Traffic count_traffic(const Program& program, const Weights& weights, const Topology& topology,
                      int64_t position) {
  return Counter(program, weights, topology, position).run();
}

std::string describe(const Traffic& traffic, const Topology& topology, int64_t position) {
  std::string text = fmt::format(
      "exchanges of a step at position {}: bytes that workers read of what was written on the same "
      "compute unit, another of the XCD, of the IOD, of the device\n"
      "  {:<16} {:<17} {:>5} {:>7} {:>9} {:>9} {:>9} {:>9}\n",
      position, "buffer", "read by", "times", "workers", "CU", "XCD", "IOD", "device");
  for (const Exchange& e : traffic.exchanges) {
    text += row(e.buffer, e.reader, std::to_string(e.times), std::to_string(e.readers), e.bytes);
  }
  text += row("sum", "", "", "", traffic.sum());
  text +=
      fmt::format("\nbytes by XCD\n  {:>3} {:>3} {:>7} {:>9} {:>9} {:>8} {:>10} {:>11}\n", "XCD",
                  "IOD", "workers", "weights", "kv cache", "KV heads", "within it", "from others");
  for (size_t x = 0; x < traffic.xcds.size(); ++x) {
    const XcdTraffic& xcd = traffic.xcds[x];
    text += fmt::format("  {:>3} {:>3} {:>7} {:>9} {:>9} {:>8} {:>10} {:>11}\n", x,
                        topology.iod_of(static_cast<int>(x)), xcd.workers, amount(xcd.weights),
                        amount(static_cast<double>(xcd.kv)), xcd.heads,
                        amount(static_cast<double>(xcd.within)),
                        amount(static_cast<double>(xcd.across)));
  }
  return text;
}

}  // namespace weft::cdna

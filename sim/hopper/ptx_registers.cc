#include "sim/hopper/ptx_registers.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>

namespace weft::ptx {
namespace {

struct Register {
  uint32_t offset = 0;
  uint8_t bytes = 0;
  uint32_t first = ~0u, last = 0;  ///< instructions between which it is needed
  uint32_t block = ~0u;            ///< where all its uses are; kMany: in several
  bool carried = false;            ///< read before it is written in its block
  uint32_t number = ~0u;           ///< among those that blocks hand on
};
constexpr uint32_t kMany = ~1u;

struct Block {
  uint32_t begin = 0, end = 0;
  std::vector<uint32_t> next;
  std::vector<uint64_t> in, out, reads, writes;  ///< sets of Register::number
};

bool is_register(Slot slot) {
  return !slot.none() && (slot.offset & Slot::kConstant) == 0 && slot.offset >= frame::kRegisters;
}

class Sharing {
 public:
  Sharing(Program& program, const Function& function, const SlotUses& uses)
      : program_(program), begin_(function.begin), end_(function.end), uses_(uses) {}

  uint32_t share() {
    find_blocks();
    find_registers();
    find_liveness();
    return place();
  }

 private:
  /// Calls f(register offset, bytes, read, written, whether all lanes that come are written).
  template <class F>
  void each_use(uint32_t i, F&& f) {
    const Instruction& in = program_.code[i];
    const bool guarded = in.guard >= frame::kRegisters;
    if (guarded) {
      f(in.guard, uint8_t{0}, true, false);
    }
    const auto& slots = program_.slots[i];
    for (const bool writing : {false, true}) {
      for (size_t s = 0; s < slots.size(); ++s) {
        const SlotUse& use = uses_[i][s];
        if (!is_register(slots[s])) {
          continue;
        }
        if (!writing && (use.read || (use.written && guarded))) {
          f(slots[s].offset, use.bytes, true, false);  // a lane that is not asked keeps its value
        } else if (writing && use.written) {
          f(slots[s].offset, use.bytes, false, true);
        }
      }
    }
  }

  void targets(uint32_t i, std::vector<uint32_t>& places) const {
    const Instruction& in = program_.code[i];
    if (in.flow == Flow::branch) {
      places.push_back(static_cast<uint32_t>(in.immediate));
    } else if (in.flow == Flow::table) {
      const auto& table = program_.tables[static_cast<size_t>(in.immediate)];
      places.insert(places.end(), table.begin(), table.end());
    }
    const bool goes_on = in.flow == Flow::on || in.guard >= frame::kRegisters;
    if (goes_on && i + 1 < end_) {
      places.push_back(i + 1);
    }
  }

  void find_blocks() {
    std::vector<bool> begins(end_ - begin_ + 1, false);
    begins[0] = true;
    std::vector<uint32_t> places;
    for (uint32_t i = begin_; i < end_; ++i) {
      if (program_.code[i].flow == Flow::on) {
        continue;
      }
      places.clear();
      targets(i, places);
      for (const uint32_t place : places) {
        begins[place - begin_] = true;
      }
      begins[i + 1 - begin_] = true;
    }
    block_of_.resize(end_ - begin_);
    for (uint32_t i = begin_; i < end_; ++i) {
      if (begins[i - begin_]) {
        blocks_.emplace_back().begin = i;
      }
      blocks_.back().end = i + 1;
      block_of_[i - begin_] = static_cast<uint32_t>(blocks_.size()) - 1;
    }
    for (Block& block : blocks_) {
      places.clear();
      targets(block.end - 1, places);
      for (const uint32_t place : places) {
        block.next.push_back(block_of_[place - begin_]);
      }
    }
  }

  void find_registers() {
    for (uint32_t i = begin_; i < end_; ++i) {
      each_use(i, [&](uint32_t offset, uint8_t bytes, bool read, bool) {
        auto [known, fresh] =
            by_offset_.try_emplace(offset, static_cast<uint32_t>(registers_.size()));
        if (fresh) {
          registers_.emplace_back().offset = offset;
          registers_.back().bytes = bytes;
        }
        Register& r = registers_[known->second];
        const uint32_t block = block_of_[i - begin_];
        r.carried = r.carried || (fresh && read);
        r.block = fresh || r.block == block ? block : kMany;
        r.first = std::min(r.first, i);
        r.last = std::max(r.last, i);
      });
    }
    for (Register& r : registers_) {
      if (r.block == kMany || r.carried) {
        r.number = static_cast<uint32_t>(handed_.size());
        handed_.push_back(static_cast<uint32_t>(&r - registers_.data()));
      }
    }
  }

  void find_liveness() {
    const size_t words = (handed_.size() + 63) / 64;
    for (Block& block : blocks_) {
      for (auto* set : {&block.in, &block.out, &block.reads, &block.writes}) {
        set->assign(words, 0);
      }
      for (uint32_t i = block.begin; i < block.end; ++i) {
        each_use(i, [&](uint32_t offset, uint8_t, bool read, bool written) {
          const uint32_t n = registers_[by_offset_[offset]].number;
          if (n == ~0u) {
            return;
          }
          const uint64_t bit = 1ull << (n % 64);
          if (read && (block.writes[n / 64] & bit) == 0) {
            block.reads[n / 64] |= bit;
          }
          if (written) {
            block.writes[n / 64] |= bit;
          }
        });
      }
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t b = blocks_.size(); b-- > 0;) {
        Block& block = blocks_[b];
        for (const uint32_t next : block.next) {
          for (size_t w = 0; w < words; ++w) {
            block.out[w] |= blocks_[next].in[w];
          }
        }
        for (size_t w = 0; w < words; ++w) {
          const uint64_t in = block.reads[w] | (block.out[w] & ~block.writes[w]);
          changed = changed || in != block.in[w];
          block.in[w] = in;
        }
      }
    }
    for (const Block& block : blocks_) {
      stretch(block.in, block.begin);
      stretch(block.out, block.end);  // into the next instruction: a branch's own reads come before
    }
  }

  void stretch(const std::vector<uint64_t>& set, uint32_t place) {
    for (size_t w = 0; w < set.size(); ++w) {
      for (uint64_t bits = set[w]; bits != 0; bits &= bits - 1) {
        Register& r = registers_[handed_[w * 64 + static_cast<size_t>(__builtin_ctzll(bits))]];
        r.first = std::min(r.first, place);
        r.last = std::max(r.last, place);
      }
    }
  }

  /// In the order of their first uses, each takes a place that nobody needs any more.
  uint32_t place() {
    std::vector<uint32_t> order(registers_.size());
    for (uint32_t r = 0; r < order.size(); ++r) {
      order[r] = r;
    }
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return std::pair(registers_[a].first, a) < std::pair(registers_[b].first, b);
    });
    struct Taken {
      uint32_t last, place;
      bool operator>(const Taken& other) const { return last > other.last; }
    };
    std::unordered_map<int, std::priority_queue<Taken, std::vector<Taken>, std::greater<>>> taken;
    std::unordered_map<uint32_t, uint32_t> place_of;
    uint32_t most = frame::kRegisters;
    for (const int bytes : {16, 8, 4, 0}) {
      auto& queue = taken[bytes];
      const uint32_t size = bytes == 0 ? 4 : static_cast<uint32_t>(bytes) * kLanes;
      for (const uint32_t number : order) {
        const Register& r = registers_[number];
        if (r.bytes != bytes) {
          continue;
        }
        uint32_t place = most;
        if (!queue.empty() && queue.top().last < r.first) {
          place = queue.top().place;
          queue.pop();
        } else {
          most += size;
        }
        queue.push({r.last, place});
        place_of[r.offset] = place;
      }
    }
    for (uint32_t i = begin_; i < end_; ++i) {
      Instruction& in = program_.code[i];
      if (in.guard >= frame::kRegisters) {
        in.guard = place_of[in.guard];
      }
      for (Slot& slot : program_.slots[i]) {
        if (is_register(slot)) {
          slot.offset = place_of[slot.offset];
        }
      }
    }
    return (most - frame::kRegisters + 127) / 128 * 128;
  }

  Program& program_;
  const uint32_t begin_, end_;
  const SlotUses& uses_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> block_of_;
  std::vector<Register> registers_;
  std::vector<uint32_t> handed_;
  std::unordered_map<uint32_t, uint32_t> by_offset_;
};

}  // namespace

uint32_t share_registers(Program& program, const Function& function, const SlotUses& uses) {
  return Sharing(program, function, uses).share();
}

}  // namespace weft::ptx

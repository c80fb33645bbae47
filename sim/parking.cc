#include "sim/parking.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace weft::sim {
namespace {

constexpr size_t kMostWatched = 1024;

std::array<uint64_t, 2> value_at(uint64_t address, size_t bytes) {
  std::array<uint64_t, 2> value{};
  std::memcpy(value.data(), reinterpret_cast<const void*>(address), bytes);
  return value;
}

bool any_changed(const std::vector<Watched>& watched) {
  return std::any_of(watched.begin(), watched.end(),
                     [](const Watched& w) { return value_at(w.address, w.bytes) != w.value; });
}

/// Stops watching memory that only those who are being parked can change.
void forget_own(std::vector<Watched>& watched, const std::byte* own, size_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(own);
  std::erase_if(watched, [&](const Watched& w) { return w.address - begin < bytes; });
}

/// Of the scratch of a wave.
size_t scratch_bytes(const Workgroup& group) {
  return size_t{kLanes} * group.launch->scratch_bytes;
}

/// What a wave's next instructions depend on, but for memory.
class Snapshot {
 public:
  explicit Snapshot(Wave& wave)
      : pc_(wave.pc), s_(wave.s), scc_(wave.scc), mode_(wave.mode), trap_(wave.trap_status) {
    for_registers(wave, [&](const uint32_t* lanes, size_t words) {
      v_.insert(v_.end(), lanes, lanes + words);
      return true;
    });
  }
  bool matches(Wave& wave) const {
    const uint32_t* was = v_.data();
    return wave.pc == pc_ && wave.s == s_ && wave.scc == scc_ && wave.mode == mode_ &&
           wave.trap_status == trap_ &&
           for_registers(wave, [&](const uint32_t* lanes, size_t words) {
             const bool same = std::memcmp(lanes, was, words * sizeof *lanes) == 0;
             was += words;
             return same;
           });
  }

 private:
  template <class F>
  static bool for_registers(Wave& wave, F f) {
    const Launch& launch = *wave.group->launch;
    return f(wave.lanes(0), static_cast<size_t>(launch.vgprs) * kLanes) &&
           f(wave.lanes(256), static_cast<size_t>(launch.agprs) * kLanes);
  }

  const Instruction* pc_;
  std::array<uint32_t, 128> s_;
  uint32_t scc_;
  uint32_t mode_;
  uint32_t trap_;
  std::vector<uint32_t> v_;
};

/// Whether a wave comes back to where it is with nothing changed, within some instructions.
bool repeats(Wave& wave, void (*step)(Wave&)) {
  constexpr int kMost = 4096;
  Workgroup& group = *wave.group;
  const Snapshot before(wave);
  for (int k = 0; k < kMost; ++k) {
    step(wave);
    if (wave.state == WaveState::yielded) {
      wave.state = WaveState::running;
    }
    if (wave.state != WaveState::running || group.progressed ||
        wave.watched.size() > kMostWatched) {
      return false;
    }
    if (before.matches(wave)) {
      return !any_changed(wave.watched);
    }
  }
  return false;
}

}  // namespace

void try_park(Wave& wave, void (*step)(Wave&)) {
  constexpr uint32_t kMostPatience = 64;
  if (++wave.idle_turns < wave.patience) {
    return;
  }
  wave.idle_turns = 0;
  wave.watched.clear();
  wave.group->watch = &wave.watched;
  const bool waits = repeats(wave, step);
  wave.group->watch = nullptr;
  if (waits) {
    forget_own(wave.watched, wave.scratch, scratch_bytes(*wave.group));
    wave.state = WaveState::parked;
    wave.patience = 1;
  } else {
    wave.watched = {};
    wave.patience = std::min(2 * wave.patience, kMostPatience);
  }
}

bool woken(const Wave& wave) { return any_changed(wave.watched); }

struct GroupParking::State {
  std::vector<WaveState> states;
  std::vector<Snapshot> waves;

  explicit State(Workgroup& group) {
    for (Wave& w : group.waves) {
      states.push_back(w.state);
      waves.emplace_back(w);
    }
  }
  bool matches(Workgroup& group) const {
    for (size_t k = 0; k < waves.size(); ++k) {
      if (group.waves[k].state != states[k] || !waves[k].matches(group.waves[k])) {
        return false;
      }
    }
    return true;
  }
};

GroupParking::GroupParking() = default;
GroupParking::~GroupParking() = default;

bool GroupParking::note_round(Workgroup& group, bool progressed) {
  // Groups that work are not looked at, and others seldom: a look takes a copy of all registers.
  constexpr uint64_t kFirst = 16;
  if (progressed) {
    rounds_ = 0;
    end_visit(group);
    return false;
  }
  ++rounds_;
  if (before_ != nullptr) {
    if (watched_.size() > kMostWatched) {
      end_visit(group);
    } else if (before_->matches(group) && !any_changed(watched_)) {
      end_visit(group);
      forget_own(watched_, group.lds, group.lds_bytes);
      for (const Wave& w : group.waves) {
        forget_own(watched_, w.scratch, scratch_bytes(group));
      }
      parked_ = true;
      return true;
    }
  }
  if (rounds_ >= kFirst && std::has_single_bit(rounds_)) {
    before_ = std::make_unique<State>(group);
    watched_.clear();
    group.watch = &watched_;
  }
  return false;
}

void GroupParking::end_visit(Workgroup& group) {
  before_.reset();
  group.watch = nullptr;
}

bool GroupParking::woken() const { return any_changed(watched_); }

void GroupParking::wake() { parked_ = false; }

void note_watched(Workgroup& group, const uint64_t* addresses, uint64_t mask, size_t bytes) {
  uint64_t last = 0;
  for (uint64_t rest = mask; rest != 0; rest &= rest - 1) {
    const uint64_t begin = addresses[std::countr_zero(rest)];
    for (uint64_t at = begin; begin != last && at < begin + bytes; at += 16) {
      const auto part = static_cast<uint32_t>(std::min<uint64_t>(16, begin + bytes - at));
      group.watch->push_back({at, part, value_at(at, part)});
    }
    last = begin;
  }
}

}  // namespace weft::sim

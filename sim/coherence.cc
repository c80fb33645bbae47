#include "sim/coherence.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "sim/caches.h"
#include "sim/checks.h"
#include "sim/decode.h"
#include "sim/memory.h"
#include "sim/wave.h"

namespace weft::sim {

struct LaunchOrder::Suspect {
  uint32_t interval;
  Distance distance;
  Grain grain;
  Finding finding;
};

LaunchOrder::LaunchOrder() = default;
LaunchOrder::~LaunchOrder() = default;

namespace {

constexpr size_t kLine = 128;
constexpr size_t kMostSuspects = 64;
constexpr size_t kMostWritebacks = 1 << 16;
constexpr size_t kMostLaunches = 256;

/// How waves speak to each other; narrower accesses are data.
bool speaks(Scope scope) { return scope >= Scope::agent; }

Distance distance_of(const Wave& w, const Interval& e) {
  return e.device != w.group->launch->device ? Distance::node
         : e.xcd != w.group->xcd             ? Distance::device
                                             : Distance::xcd;
}

/// The bits of an instruction that give it the scope which reaches so far.
std::string_view bits_for(Distance distance) {
  return distance == Distance::node ? "sc0 sc1" : "sc1";
}

/// When what an interval stored had become visible at that distance; 0: not yet, and maybe never.
uint64_t visible(LaunchOrder& writer, const Interval& e, Distance distance, Grain grain) {
  const uint64_t arrived = e.complete.load(std::memory_order_acquire);
  const Scope needed = distance == Distance::xcd      ? Scope::wave
                       : distance == Distance::device ? Scope::agent
                                                      : Scope::system;
  const bool passes_l2 = e.scope >= needed || grain == Grain::uncached;
  uint64_t time = passes_l2 ? arrived : 0;
  if (time == 0) {
    const uint64_t last = e.last.load(std::memory_order_relaxed);
    LaunchOrder::Cache& l2 = writer.l2[e.xcd % writer.l2.size()];
    const std::lock_guard lock(l2.mutex);
    auto from = std::lower_bound(l2.writebacks.begin(), l2.writebacks.end(), last,
                                 [](const Writeback& b, uint64_t t) { return b.issued < t; });
    for (; from != l2.writebacks.end() && time == 0; ++from) {
      // Operations of one compute unit stay in order on their way to the L2.
      const bool covers =
          from->compute_unit == e.compute_unit || (arrived != 0 && from->issued >= arrived);
      if (covers && from->scope >= needed) {
        time = from->complete.load(std::memory_order_acquire);
      }
    }
  }
  const uint64_t ended = writer.ended.load(std::memory_order_acquire);
  return ended != 0 && (time == 0 || ended < time) ? ended : time;
}

/// A word that an access reaches, and who stored there.
struct Met {
  const Instruction& instruction;
  int lane;
  uint64_t address;
  uint32_t ordinal;  ///< of the store
  Grain grain;
  Interval& stored;
  LaunchOrder& writer;
};

std::string place(const Wave& w, uint64_t address) {
  return w.group->launch->memory->describe(address);
}

/// "workgroup 3,0,0 wave 1 (`global_store_dword ...` at file:12)"
std::string writer_text(const Wave& w, const Met& met) {
  const Launch& own = *w.group->launch;
  const Interval& e = met.stored;
  std::string text;
  if (met.writer.launch != &own) {
    return "kernel " + met.writer.kernel + " on device " + std::to_string(e.device);
  }
  const uint64_t x = own.grid[0];
  const uint64_t y = own.grid[1];
  text = "workgroup " + std::to_string(e.group % x) + "," + std::to_string(e.group / x % y) + "," +
         std::to_string(e.group / x / y) + " wave " + std::to_string(e.wave);
  const auto instructions = own.code->instructions();
  if (met.ordinal < instructions.size()) {
    const Instruction& store = instructions[met.ordinal];
    const std::string source = own.source_line(store.address);
    text += " (`" + own.code->text(store) + "`" + (source.empty() ? "" : " at " + source) + ")";
  }
  return text;
}

std::string cache_text(const Met& met) { return "the L2 of XCD " + std::to_string(met.stored.xcd); }

/// `what`: makes the rest of the sentence, where there is no such finding yet.
template <class What>
void report_met(Wave& w, const Met& met, FindingKind kind, What what) {
  if (count_again(*w.group->launch, kind, met.instruction)) {
    return;
  }
  report(w, met.instruction, kind, met.lane, "what is " + place(w, met.address) + " " + what());
}

/// What a wave of the same workgroup stored: ordered by a barrier, LDS, or a flag in memory.
bool met_in_group(const Wave& w, const Interval& e) {
  return e.wave == w.index || w.checks->clock[e.wave] >= e.step ||
         e.issued <= w.checks->order.acquired;
}

/// A load of data where an atomic worked that nothing orders before it.
void judge_guess(Wave& w, const Met& met) {
  constexpr size_t kMost = 256;
  std::vector<Guess>& guesses = w.checks->order.guesses;
  if (guesses.size() < kMost) {
    guesses.push_back({met.address, &met.instruction, met.ordinal, met.lane});
  }
}

/// A load of data that nothing orders with a store. What it brings to a register means nothing
/// until that is used.
template <class What>
void doubt(Wave& w, const Met& met, What what) {
  constexpr size_t kMost = 8;
  if (met.instruction.results == 0) {  // straight to LDS, for everybody
    report_met(w, met, FindingKind::global_race, what);
    return;
  }
  Doubts& doubts = w.checks->order.doubts;
  if (doubts.executed != w.executed) {
    doubts.executed = w.executed;
    doubts.lanes = 0;
  }
  doubts.lanes |= uint64_t{1} << met.lane;
  const auto same = [&](const Finding& f) { return f.address == met.instruction.address; };
  if (doubts.findings.size() < kMost && std::ranges::none_of(doubts.findings, same)) {
    doubts.findings.push_back(make_finding(w, met.instruction, FindingKind::global_race, met.lane,
                                           "what is " + place(w, met.address) + " " + what()));
  }
}

/// A load of data: is what it reads sure to be what was stored?
void judge_load(Wave& w, const Met& met) {
  const WaveOrder& order = w.checks->order;
  const Interval& e = met.stored;
  const auto writer = [&] { return writer_text(w, met); };
  if (met.writer.launch == w.group->launch && e.group == w.group->number) {
    if (!met_in_group(w, e) && e.atomic) {
      judge_guess(w, met);
    } else if (!met_in_group(w, e)) {
      doubt(w, met,
            [&] { return "is read while " + writer() + " stores it with no barrier between"; });
    }
    return;
  }
  const Distance distance = distance_of(w, e);
  const std::string bits(bits_for(distance));
  const uint64_t time = visible(met.writer, e, distance, met.grain);
  const uint64_t arrived = e.complete.load(std::memory_order_acquire);
  const bool fresh = time != 0 && time <= order.fresh[static_cast<size_t>(distance)];
  if (e.atomic && !fresh) {
    judge_guess(w, met);
    return;
  }
  if (time != 0 && time <= order.acquired) {
    if (!fresh) {
      report_met(w, met, FindingKind::stale_read, [&] {
        return "was stored by " + writer() +
               ", and the caches on the way may hold what was there before: between the "
               "load of the flag (and its s_waitcnt) and this one a buffer_inv " +
               bits + " is missing, or this one needs " + bits;
      });
    }
    return;
  }
  if (speaks(e.scope) && e.issued > order.acquired) {
    report_met(w, met, FindingKind::stale_read, [&] {
      return "was stored by " + writer() +
             " for others to see, and this load may be served an older copy for ever: it "
             "needs " +
             bits + ", or an order by a flag";
    });
  } else if (arrived != 0 && arrived <= order.acquired) {
    report_met(w, met, FindingKind::unseen_store, [&] {
      return "was stored by " + writer() + " and may still be in " + cache_text(met) +
             ": before the flag a buffer_wbl2 " + bits +
             " and its s_waitcnt vmcnt(0) are missing, or the store needs " + bits;
    });
  } else if (e.issued <= order.acquired) {
    report_met(w, met, FindingKind::missing_wait, [&] {
      return "was stored by " + writer() +
             ", which had not waited for it (s_waitcnt vmcnt(0)) when it stored the flag "
             "that was seen here";
    });
  } else {
    doubt(w, met, [&] {
      return "is read while " + writer() +
             " stores it, and nothing orders the two: the writer has to store a flag afterwards, "
             "with sc1, and the reader to see it first";
    });
  }
}

/// A load of device or system scope, or an atomic. The time that it acquires.
uint64_t judge_speech(Wave& w, const Met& met, Scope scope, bool atomic) {
  const Interval& e = met.stored;
  if (met.writer.launch == w.group->launch && e.group == w.group->number) {
    return e.issued;
  }
  const Distance distance = distance_of(w, e);
  if (distance == Distance::node && scope < Scope::system) {
    report_met(w, met, FindingKind::narrow_scope, [&] {
      return "was stored by " + writer_text(w, met) +
             (atomic ? ", and this atomic is of its own device's scope: it needs sc1"
                     : ", and this load is of its own device's scope: it needs sc0 sc1");
    });
    return e.issued;
  }
  const bool reaches = distance == Distance::xcd ||
                       e.scope >= (distance == Distance::node ? Scope::system : Scope::agent);
  if (!reaches && visible(met.writer, e, distance, met.grain) == 0) {
    // A later write-back may bring it: judged when the launch has ended.
    LaunchOrder& own = *w.group->launch->order;
    const std::lock_guard lock(own.mutex);
    const auto same = [&](const LaunchOrder::Suspect& s) {
      return s.finding.address == met.instruction.address;
    };
    if (own.suspects.size() < kMostSuspects && std::ranges::none_of(own.suspects, same)) {
      const std::string bits(bits_for(distance));
      own.suspects.push_back(
          {e.id.load(std::memory_order_relaxed), distance, met.grain,
           make_finding(
               w, met.instruction,
               speaks(e.scope) ? FindingKind::narrow_scope : FindingKind::unseen_store, met.lane,
               "what is " + place(w, met.address) + " was stored by " + writer_text(w, met) +
                   " and may stay in " + cache_text(met) + " for ever, where this " +
                   (atomic ? "atomic" : "load") + " never sees it: the store needs " + bits +
                   ", or a buffer_wbl2 " + bits + " after it")});
    }
  }
  return e.issued;
}

/// A store over what another wave stored.
void judge_store(Wave& w, const Met& met, Scope scope, bool same_value) {
  const WaveOrder& order = w.checks->order;
  const Interval& e = met.stored;
  if (same_value || (speaks(scope) && speaks(e.scope))) {
    return;
  }
  if (met.writer.launch == w.group->launch && e.group == w.group->number) {
    if (!met_in_group(w, e)) {
      report_met(w, met, FindingKind::global_race, [&] {
        return "is stored here and by " + writer_text(w, met) + " with no barrier between";
      });
    }
    return;
  }
  // A value that was seen is known to have been stored, whoever waited for it.
  if (speaks(e.scope) && e.issued <= order.acquired) {
    return;
  }
  const uint64_t time = visible(met.writer, e, distance_of(w, e), met.grain);
  if (time != 0 && time <= order.acquired) {
    return;
  }
  const uint64_t arrived = e.complete.load(std::memory_order_acquire);
  if (arrived != 0 && arrived <= order.acquired) {
    const std::string bits(bits_for(distance_of(w, e)));
    report_met(w, met, FindingKind::unseen_store, [&] {
      return "is stored here, and what " + writer_text(w, met) + " stored before may still be in " +
             cache_text(met) + " and be written back over it: before the flag a buffer_wbl2 " +
             bits + " is missing";
    });
  } else {
    report_met(w, met, FindingKind::global_race, [&] {
      return "is stored here and by " + writer_text(w, met) +
             ", and nothing orders the two: the first has to store a flag afterwards, with "
             "sc1, and the second to see it before";
    });
  }
}

/// The words that lanes reach, with their shadow.
template <class F>
void for_each_word(Wave& w, const Instruction& i, const GlobalAccess& access, F f) {
  const Launch& launch = *w.group->launch;
  Memory::Range range = w.group->counts->ranges[i.ordinal % 64];
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t begin = access.addresses[l];
    const uint64_t end = begin + access.bytes_of(l);
    if ((begin < range.begin || begin >= range.end) && !launch.memory->find(begin, range)) {
      continue;
    }
    if (range.shadow.words == nullptr || end > range.end) {
      continue;
    }
    for (uint64_t word = begin / 4; word < (end + 3) / 4; ++word) {
      const uint64_t first = std::max(begin, 4 * word) - 4 * word;
      const uint64_t last = std::min(end, 4 * word + 4) - 4 * word;
      const auto bytes = static_cast<uint32_t>(((1U << last) - 1) & ~((1U << first) - 1));
      f(l, 4 * word + first, bytes, range.shadow.words[word - range.begin / 4], range.placement,
        range.shadow.written[4 * word / kLine - range.begin / kLine]);
    }
  }
}

uint32_t interval_of(uint64_t write) { return static_cast<uint32_t>(write >> 32); }
uint32_t bytes_of(uint64_t write) { return write >> 28 & 15; }
uint32_t ordinal_of(uint64_t write) { return write & 0x3fffff; }

/// Who stored a word's bytes, if it was during this launch and is not known to all anyway.
std::optional<Met> meet(Wave& w, const Instruction& i, int lane, uint64_t address, uint32_t bytes,
                        uint64_t write, Grain grain, std::shared_ptr<LaunchOrder>& keep) {
  const uint32_t id = interval_of(write);
  const WaveOrder& order = w.checks->order;
  if (id == 0 || id == order.open || (bytes_of(write) & bytes) == 0) {
    return std::nullopt;
  }
  Launch& launch = *w.group->launch;
  Coherence& coherence = launch.memory->coherence();
  Interval* e = coherence.interval(id);
  if (e == nullptr) {
    return std::nullopt;
  }
  LaunchOrder* writer = launch.order.get();
  if (e->launch != writer->number) {
    keep = coherence.launch(e->launch);
    if (keep == nullptr) {
      return std::nullopt;
    }
    const uint64_t ended = keep->ended.load(std::memory_order_acquire);
    if (ended != 0 && ended <= writer->begun) {
      return std::nullopt;
    }
    writer = keep.get();
  }
  return Met{i, lane, address, ordinal_of(write), grain, *e, *writer};
}

/// WordShadow::write of a word that this instruction stores.
uint64_t mark_of(uint32_t id, uint32_t bytes, int lane, const Instruction& i) {
  return uint64_t{id} << 32 | uint64_t{bytes} << 28 | static_cast<uint64_t>(lane) << 22 |
         (i.ordinal & 0x3fffff);
}

/// A load of data by another workgroup that nothing orders before this store?
bool read_meanwhile(const Wave& w, uint32_t bytes, uint64_t read) {
  const uint64_t time = read >> 28;
  return (read >> 24 & bytes) != 0 && time > w.checks->order.acquired &&
         (read & 0xffffff) != (w.group->number & 0xffffff) && time >= w.group->launch->order->begun;
}

void report_overwritten(Wave& w, const Instruction& i, int lane, uint64_t address, uint64_t read) {
  report(w, i, FindingKind::global_race, lane,
         "what is " + place(w, address) + " is stored while workgroup number " +
             std::to_string(read & 0xffffff) +
             " reads it, and nothing orders the two: the reader has to store a flag afterwards, "
             "with sc1, and the writer to see it first");
}

/// Whether `bytes` of a word, the first of them at `there`, are what a lane stores. `value`: its
/// first word, the next 64 lanes on; `offset`: bytes before these.
bool same_bytes(const std::byte* there, const uint32_t* value, uint64_t offset, uint32_t bytes) {
  const uint64_t end = offset + static_cast<uint64_t>(std::popcount(bytes));
  for (; offset < end; ++offset, ++there) {
    if (*there != static_cast<std::byte>(value[offset / 4 * kLanes] >> (8 * (offset % 4)))) {
      return false;
    }
  }
  return true;
}

/// Data in the host's memory are not judged, since nobody sees what the host does with them. What
/// an access of system scope to it acquires whoever stored there last: the host may have
/// passed on what any wave told it.
uint64_t said_by_host(const Wave& w, const Placement& placed, Scope scope) {
  return placed.home == kHost && scope == Scope::system ? w.group->launch->memory->coherence().now()
                                                        : 0;
}

/// Whether this wave stored data to the host's memory that may not have arrived.
bool owes_host(const Wave& w) {
  const Interval* e = w.group->launch->memory->coherence().interval(w.checks->order.to_host);
  return e != nullptr && e->launch == w.group->launch->order->number && e->outstanding != 0;
}

/// The interval of the instruction's stores, opened if need be.
uint32_t issue_store(Wave& w, Scope scope, bool atomic = false) {
  Coherence& coherence = w.group->launch->memory->coherence();
  WaveOrder& order = w.checks->order;
  uint32_t id = speaks(scope) ? 0 : order.open;
  Interval* e = id != 0 ? coherence.interval(id) : nullptr;
  if (e == nullptr) {
    e = &coherence.open(w, speaks(scope) ? scope : Scope::wave, speaks(scope), atomic, id);
    if (!speaks(scope)) {
      order.open = id;
    }
  }
  e->last.store(speaks(scope) ? e->issued : coherence.now(), std::memory_order_relaxed);
  ++e->outstanding;
  order.issuing.interval = id;
  return id;
}

}  // namespace

size_t shadow_bytes(size_t bytes) {
  return (bytes + 3) / 4 * sizeof(WordShadow) + (bytes + kLine - 1) / kLine;
}

Shadow shadow_at(void* place, size_t bytes) {
  auto* words = static_cast<WordShadow*>(place);
  return {words, reinterpret_cast<uint8_t*>(words + (bytes + 3) / 4)};
}

void WaveOrder::join(const WaveOrder& other) {
  acquired = std::max(acquired, other.acquired);
  fresh_scalar = std::max(fresh_scalar, other.fresh_scalar);
  for (size_t k = 0; k < fresh.size(); ++k) {
    fresh[k] = std::max(fresh[k], other.fresh[k]);
  }
}

Coherence::Coherence() : ring_(static_cast<Interval*>(std::calloc(kIntervals, sizeof(Interval)))) {
  if (ring_ == nullptr) {
    throw std::bad_alloc();
  }
}
Coherence::~Coherence() = default;

Interval& Coherence::open(const Wave& wave, Scope scope, bool speaks, bool atomic, uint32_t& id) {
  do {
    id = next_.fetch_add(1, std::memory_order_relaxed);
  } while (id == 0);
  const Workgroup& group = *wave.group;
  Interval& e = ring_.get()[id % kIntervals];
  e.id.store(0, std::memory_order_release);
  e.scope = scope;
  e.xcd = static_cast<uint8_t>(group.xcd);
  e.device = static_cast<uint8_t>(group.launch->device);
  e.wave = static_cast<uint8_t>(wave.index);
  e.compute_unit = static_cast<uint16_t>(group.compute_unit);
  e.group = static_cast<uint32_t>(group.number);
  e.step = wave.checks->clock[wave.index];
  e.launch = group.launch->order->number;
  e.atomic = atomic;
  e.issued = speaks ? tick() : now();
  if (speaks) {
    tick();  // what is issued later has a later time
  }
  e.last.store(e.issued, std::memory_order_relaxed);
  e.complete.store(0, std::memory_order_relaxed);
  e.outstanding = 0;
  e.id.store(id, std::memory_order_release);
  return e;
}

std::shared_ptr<LaunchOrder> Coherence::begin(const Launch& launch) {
  auto order = std::make_shared<LaunchOrder>();
  order->launch = &launch;
  order->kernel = launch.kernel;
  const std::lock_guard lock(mutex_);
  if (running_++ == 0) {
    // What was stored before is everybody's: lines marked in an earlier era need no look.
    era_ = era_ == 255 ? 1 : static_cast<uint8_t>(era_ + 1);
  }
  order->era = era_;
  order->number = ++launches_begun_;
  order->begun = tick();
  tick();
  launches_.push_back(order);
  while (launches_.size() > kMostLaunches && launches_.front()->ended.load() != 0) {
    launches_.pop_front();
  }
  return order;
}

void Coherence::end(Launch& launch) {
  LaunchOrder& order = *launch.order;
  {
    const std::lock_guard lock(order.mutex);
    for (LaunchOrder::Suspect& s : order.suspects) {
      const Interval* e = interval(s.interval);
      const std::shared_ptr<LaunchOrder> writer = e == nullptr ? nullptr : this->launch(e->launch);
      if (writer != nullptr && visible(*writer, *e, s.distance, s.grain) == 0) {
        add_finding(launch, std::move(s.finding));
      }
    }
    order.suspects.clear();
  }
  const std::lock_guard lock(mutex_);
  order.launch = nullptr;
  order.ended.store(tick(), std::memory_order_release);
  if (--running_ != 0) {
    return;  // another launch may still read what was written back before this one's end
  }
  for (LaunchOrder::Cache& l2 : order.l2) {
    const std::lock_guard cache_lock(l2.mutex);
    l2.writebacks.clear();
  }
}

std::shared_ptr<LaunchOrder> Coherence::launch(uint64_t number) {
  const std::lock_guard lock(mutex_);
  if (launches_.empty() || number < launches_.front()->number) {
    return nullptr;
  }
  const uint64_t at = number - launches_.front()->number;
  return at < launches_.size() ? launches_[at] : nullptr;
}

void note_load(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope) {
  if (w.checks == nullptr) {
    return;
  }
  WaveOrder& order = w.checks->order;
  Launch& launch = *w.group->launch;
  const uint8_t era = launch.order->era;
  uint64_t acquires = 0;
  for_each_word(w, i, access,
                [&](int lane, uint64_t address, uint32_t bytes, WordShadow& word,
                    const Placement& placed, uint8_t& written) {
                  acquires = std::max(acquires, said_by_host(w, placed, scope));
                  if (__atomic_load_n(&written, __ATOMIC_RELAXED) != era) {
                    return;
                  }
                  std::shared_ptr<LaunchOrder> keep;
                  const auto met =
                      meet(w, i, lane, address, bytes, word.write.load(std::memory_order_acquire),
                           placed.grain, keep);
                  if (speaks(scope)) {
                    acquires = std::max(acquires, met ? judge_speech(w, *met, scope, false) : 0);
                    return;
                  }
                  if (met && placed.home != kHost) {
                    judge_load(w, *met);
                  }
                  word.read.store(launch.memory->coherence().now() << 28 | uint64_t{bytes} << 24 |
                                      (w.group->number & 0xffffff),
                                  std::memory_order_relaxed);
                });
  order.issuing.acquires = acquires;
  const uint64_t doubtful = doubted_lanes(w);
  for (int r = i.operand[0].index; doubtful != 0 && r < i.operand[0].index + i.operand[0].words;
       ++r) {
    w.checks->written[static_cast<size_t>(r)] &= ~doubtful;
    w.checks->update(r);
  }
}

uint64_t doubted_lanes(const Wave& w) {
  const Doubts& doubts = w.checks->order.doubts;
  return doubts.executed == w.executed ? doubts.lanes : 0;
}

void note_store(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope,
                const uint32_t* data) {
  if (w.checks == nullptr || access.mask == 0) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const bool owes = scope == Scope::system && owes_host(w);
  const uint32_t id = issue_store(w, scope);
  for_each_word(
      w, i, access,
      [&](int lane, uint64_t address, uint32_t bytes, WordShadow& word, const Placement& placed,
          uint8_t& written) {
        if (__atomic_load_n(&written, __ATOMIC_RELAXED) == era) {
          std::shared_ptr<LaunchOrder> keep;
          const auto met = meet(w, i, lane, address, bytes,
                                word.write.load(std::memory_order_acquire), placed.grain, keep);
          const auto same = [&] {
            const Caches* caches = w.group->launch->caches.get();
            const std::byte* there = caches != nullptr && met
                                         ? caches->latest(met->stored.xcd, address)
                                         : reinterpret_cast<const std::byte*>(address);
            return data == nullptr ||
                   same_bytes(there, data + lane, address - access.addresses[lane], bytes);
          };
          if (met && placed.home != kHost) {
            judge_store(w, *met, scope, same());
          }
          const uint64_t read = word.read.load(std::memory_order_relaxed);
          if (!speaks(scope) && placed.home != kHost && read_meanwhile(w, bytes, read) && !same()) {
            report_overwritten(w, i, lane, address, read);
          }
        }
        if (placed.home == kHost && owes) {
          report(w, i, FindingKind::missing_wait, lane,
                 "what is " + place(w, address) +
                     " tells the host before data that this wave stored for it have "
                     "arrived: an s_waitcnt vmcnt(0) is missing");
        } else if (placed.home == kHost && !speaks(scope)) {
          w.checks->order.to_host = id;
        }
        word.write.store(mark_of(id, bytes, lane, i), std::memory_order_release);
        __atomic_store_n(&written, era, __ATOMIC_RELAXED);
      });
}

void note_atomic(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope) {
  if (w.checks == nullptr || access.mask == 0) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const uint32_t id = issue_store(w, scope, true);
  std::vector<Guess>& guesses = w.checks->order.guesses;
  uint64_t acquires = 0;
  for_each_word(
      w, i, access,
      [&](int lane, uint64_t address, uint32_t bytes, WordShadow& word, const Placement& placed,
          uint8_t& written) {
        // In one step: of two atomics, one sees the other's mark.
        const uint64_t before =
            word.write.exchange(mark_of(id, bytes, lane, i), std::memory_order_acq_rel);
        __atomic_store_n(&written, era, __ATOMIC_RELAXED);
        std::shared_ptr<LaunchOrder> keep;
        acquires = std::max(acquires, said_by_host(w, placed, scope));
        if (const auto met = meet(w, i, lane, address, bytes, before, placed.grain, keep)) {
          acquires = std::max(acquires, judge_speech(w, *met, scope, true));
        }
        if (!guesses.empty()) {
          std::erase_if(guesses, [&](const Guess& g) { return g.address / 4 == address / 4; });
        }
      });
  w.checks->order.issuing.acquires = acquires;
}

void note_atomic_done(Wave& w, const Instruction& i, const GlobalAccess& access, bool returns) {
  if (w.checks == nullptr || access.mask == 0) {
    return;
  }
  uint64_t& acquires = w.checks->order.issuing.acquires;
  if (!returns) {
    acquires = 0;
    return;
  }
  // Another host thread's atomic may have come between: it marked the word before it changed it.
  Coherence& coherence = w.group->launch->memory->coherence();
  for_each_word(w, i, access,
                [&](int, uint64_t, uint32_t, WordShadow& word, const Placement&, uint8_t&) {
                  const Interval* e =
                      coherence.interval(interval_of(word.write.load(std::memory_order_acquire)));
                  if (e != nullptr && e->group != w.group->number) {
                    acquires = std::max(acquires, e->issued);
                  }
                });
}

void note_scalar_load(Wave& w, const Instruction& i, uint64_t address, size_t bytes) {
  if (w.checks == nullptr) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const uint64_t addresses[1] = {address};
  for_each_word(w, i, {addresses, 1, static_cast<int>(bytes)},
                [&](int, uint64_t at, uint32_t mask, WordShadow& word, const Placement& placed,
                    uint8_t& written) {
                  std::shared_ptr<LaunchOrder> keep;
                  if (__atomic_load_n(&written, __ATOMIC_RELAXED) != era) {
                    return;
                  }
                  const auto met =
                      meet(w, i, 0, at, mask, word.write.load(std::memory_order_acquire),
                           placed.grain, keep);
                  if (!met) {
                    return;
                  }
                  const uint64_t time =
                      visible(met->writer, met->stored, distance_of(w, met->stored), placed.grain);
                  if (time == 0 || time > w.checks->order.fresh_scalar) {
                    report_met(w, *met, FindingKind::stale_read, [&] {
                      return "was stored by " + writer_text(w, *met) +
                             " in this launch, and the scalar cache does not see what vector "
                             "instructions store: an s_dcache_inv after the store has "
                             "arrived is missing, or a vector load";
                    });
                  }
                });
}

void note_invalidate(Wave& w, Scope scope) {
  if (w.checks == nullptr) {
    return;
  }
  WaveOrder& order = w.checks->order;
  const auto freshen = [&](Distance distance, Scope needed) {
    if (scope >= needed) {
      order.fresh[static_cast<size_t>(distance)] = order.acquired;
    }
  };
  freshen(Distance::xcd, Scope::workgroup);
  freshen(Distance::device, Scope::agent);
  freshen(Distance::node, Scope::system);
}

void note_writeback(Wave& w, Scope scope) {
  if (w.checks == nullptr || !speaks(scope)) {
    return;
  }
  Launch& launch = *w.group->launch;
  Coherence& coherence = launch.memory->coherence();
  LaunchOrder::Cache& l2 = launch.order->l2[static_cast<size_t>(w.group->xcd) % 8];
  const std::lock_guard lock(l2.mutex);
  while (l2.writebacks.size() >= kMostWritebacks && l2.writebacks.front().complete != 0) {
    l2.writebacks.pop_front();
  }
  // Stores that are issued later have a later time.
  const uint64_t issued = coherence.tick();
  coherence.tick();
  w.checks->order.issuing.writeback =
      &l2.writebacks.emplace_back(issued, w.group->compute_unit, scope);
  w.checks->order.open = 0;
}

void note_scalar_invalidate(Wave& w) {
  if (w.checks != nullptr) {
    w.checks->order.fresh_scalar =
        std::max(w.checks->order.acquired, w.group->launch->memory->coherence().now());
  }
}

void note_done(Wave& w, const Ordering& ordering) {
  WaveOrder& order = w.checks->order;
  if (ordering.interval == 0 && ordering.acquires == 0 && ordering.writeback == nullptr) {
    return;
  }
  Coherence& coherence = w.group->launch->memory->coherence();
  if (ordering.interval != 0) {
    if (order.open == ordering.interval) {
      order.open = 0;
    }
    Interval* e = coherence.interval(ordering.interval);
    if (e != nullptr && --e->outstanding == 0) {
      e->complete.store(coherence.tick(), std::memory_order_release);
    }
  }
  order.acquired = std::max(order.acquired, ordering.acquires);
  if (ordering.writeback != nullptr) {
    ordering.writeback->complete.store(coherence.tick(), std::memory_order_release);
  }
}

void note_end(Wave& w) {
  if (w.checks == nullptr) {
    return;
  }
  const Code& code = *w.group->launch->code;
  for (const Guess& g : w.checks->order.guesses) {
    report(w, *g.load, FindingKind::stale_read, g.lane,
           "what is " + place(w, g.address) + " is changed by atomics of other waves (`" +
               (g.ordinal < code.instructions().size() ? code.text(code.instructions()[g.ordinal])
                                                       : std::string("?")) +
               "`), and this load may be served an older copy for ever: it needs sc1, or an order "
               "by a flag");
  }
  w.checks->order.guesses.clear();
}

void note_meeting(Workgroup& group) {
  WaveOrder all;
  for (const Wave& w : group.waves) {
    all.join(w.checks->order);
  }
  for (Wave& w : group.waves) {
    w.checks->order.join(all);
    w.checks->order.open = 0;
  }
}

}  // namespace weft::sim

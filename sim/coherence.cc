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

bool in_own_group(const Wave& w, const Met& met) {
  return met.writer.launch == w.group->launch && met.stored.group == w.group->number;
}

/// Whether a load of data sees what was stored.
bool sees(const Wave& w, const Met& met) {
  if (in_own_group(w, met)) {
    return met_in_group(w, met.stored);
  }
  const Distance distance = distance_of(w, met.stored);
  const uint64_t time = visible(met.writer, met.stored, distance, met.grain);
  return time != 0 && time <= w.checks->order.fresh[static_cast<size_t>(distance)];
}

/// The last interval of which an instruction found that it sees or follows it: that of the next
/// word or line, too, as a rule.
struct Settled {
  uint32_t interval = 0;  ///< 0: none
  Placement placed;

  bool holds(uint32_t id, const Placement& at) const {
    return id != 0 && id == interval && at.home == placed.home && at.grain == placed.grain;
  }
};

/// Whether a store comes after what was stored.
bool follows(const Wave& w, const Met& met) {
  if (in_own_group(w, met)) {
    return met_in_group(w, met.stored);
  }
  const uint64_t time = visible(met.writer, met.stored, distance_of(w, met.stored), met.grain);
  return time != 0 && time <= w.checks->order.acquired;
}

/// A load of data that is not sure to see what was stored.
void judge_load(Wave& w, const Met& met) {
  const WaveOrder& order = w.checks->order;
  const Interval& e = met.stored;
  const auto writer = [&] { return writer_text(w, met); };
  if (e.atomic) {
    judge_guess(w, met);
    return;
  }
  if (in_own_group(w, met)) {
    doubt(w, met,
          [&] { return "is read while " + writer() + " stores it with no barrier between"; });
    return;
  }
  const Distance distance = distance_of(w, e);
  const std::string_view bits = bits_for(distance);
  const uint64_t time = visible(met.writer, e, distance, met.grain);
  const uint64_t arrived = e.complete.load(std::memory_order_acquire);
  if (time != 0 && time <= order.acquired) {
    report_met(w, met, FindingKind::stale_read, [&] {
      return "was stored by " + writer() +
             ", and the caches on the way may hold what was there before: between the "
             "load of the flag (and its s_waitcnt) and this one a buffer_inv " +
             std::string(bits) + " is missing, or this one needs " + std::string(bits);
    });
  } else if (speaks(e.scope) && e.issued > order.acquired) {
    report_met(w, met, FindingKind::stale_read, [&] {
      return "was stored by " + writer() +
             " for others to see, and this load may be served an older copy for ever: it "
             "needs " +
             std::string(bits) + ", or an order by a flag";
    });
  } else if (arrived != 0 && arrived <= order.acquired) {
    report_met(w, met, FindingKind::unseen_store, [&] {
      return "was stored by " + writer() + " and may still be in " + cache_text(met) +
             ": before the flag a buffer_wbl2 " + std::string(bits) +
             " and its s_waitcnt vmcnt(0) are missing, or the store needs " + std::string(bits);
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

/// Whether an interval's stores are of a scope that reaches a reader at that distance.
bool reaches(const Interval& e, Distance distance) {
  return distance == Distance::xcd ||
         e.scope >= (distance == Distance::node ? Scope::system : Scope::agent);
}

/// Whether judge_speech() would find nothing.
bool speech_is_clear(const Wave& w, const Met& met, Scope scope) {
  if (in_own_group(w, met)) {
    return true;
  }
  const Distance distance = distance_of(w, met.stored);
  return (distance != Distance::node || scope == Scope::system) &&
         (reaches(met.stored, distance) ||
          visible(met.writer, met.stored, distance, met.grain) != 0);
}

/// A load of device or system scope, or an atomic. The time that it acquires.
uint64_t judge_speech(Wave& w, const Met& met, Scope scope, bool atomic) {
  const Interval& e = met.stored;
  if (in_own_group(w, met)) {
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
  if (!reaches(e, distance) && visible(met.writer, e, distance, met.grain) == 0) {
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

/// A store over what another wave stored, which nothing orders before it.
void judge_store(Wave& w, const Met& met, Scope scope, bool same_value) {
  const WaveOrder& order = w.checks->order;
  const Interval& e = met.stored;
  if (same_value || (speaks(scope) && speaks(e.scope))) {
    return;
  }
  if (in_own_group(w, met)) {
    report_met(w, met, FindingKind::global_race, [&] {
      return "is stored here and by " + writer_text(w, met) + " with no barrier between";
    });
    return;
  }
  // A value that was seen is known to have been stored, whoever waited for it.
  if (speaks(e.scope) && e.issued <= order.acquired) {
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

uint32_t interval_of(uint64_t write) { return static_cast<uint32_t>(write >> 32); }
uint32_t bytes_of(uint64_t write) { return write >> 28 & 15; }
uint32_t ordinal_of(uint64_t write) { return write & 0x3fffff; }
constexpr uint32_t kAllBytes = 15;

/// What a line's shadow says in its era.
enum class LineForm : uint8_t {
  alike,     ///< of all that was stored there the same is known
  full,      ///< likewise, and all of it was stored
  changing,  ///< a thread is about to say something else
  apart,     ///< its words have shadows of their own
  two,       ///< of what two waves stored, no byte of which is both's, the same is known of each
};
LineForm form_of(uint64_t write) { return static_cast<LineForm>(write >> 21 & 7); }
uint32_t line_ordinal_of(uint64_t write) { return write & 0x1fffff; }
bool is_alike(uint64_t write) { return form_of(write) <= LineForm::full; }
uint8_t era_of(uint64_t write) { return static_cast<uint8_t>(write >> 24); }

/// WordShadow::write and Shadow::writes.
uint64_t word_mark(uint32_t id, uint32_t bytes, uint32_t ordinal) {
  return uint64_t{id} << 32 | uint64_t{bytes} << 28 | (ordinal & 0x3fffff);
}
uint64_t line_mark(uint32_t id, uint8_t era, LineForm form, uint32_t ordinal) {
  return uint64_t{id} << 32 | uint64_t{era} << 24 | static_cast<uint64_t>(form) << 21 |
         (ordinal & 0x1fffff);
}

/// Bytes of a line.
struct LineBytes {
  std::array<uint64_t, 2> bits{};

  static LineBytes from(uint64_t begin) {
    return begin >= 64 ? LineBytes{{0, ~uint64_t{0} << (begin - 64)}}
                       : LineBytes{{~uint64_t{0} << begin, ~uint64_t{0}}};
  }
  /// `end`: 1 to 128.
  static LineBytes up_to(uint64_t end) {
    return end > 64 ? LineBytes{{~uint64_t{0}, ~uint64_t{0} >> (128 - end)}}
                    : LineBytes{{~uint64_t{0} >> (64 - end), 0}};
  }
  static LineBytes range(uint64_t begin, uint64_t end) { return from(begin) & up_to(end); }
  /// Of so many bytes, each time that many further on, those from an address on: LaneRow.
  static LineBytes each(uint64_t begin, uint64_t bytes, uint64_t step) {
    if (step == 0 || step == bytes) {
      return {{~uint64_t{0}, ~uint64_t{0}}};
    }
    const uint64_t once = ((uint64_t{1} << bytes) - 1) << begin % step;
    const uint64_t bits = step == 64 ? once : once * (~uint64_t{0} / ((uint64_t{1} << step) - 1));
    return {{bits, bits}};
  }
  bool all() const { return (bits[0] & bits[1]) == ~uint64_t{0}; }
  uint32_t word(uint64_t n) const { return bits[n / 16] >> (n % 16 * 4) & 15; }
  static constexpr uint64_t kFirst = 0x1111111111111111;  ///< bytes of words
  bool whole_words() const {
    return bits[0] == (bits[0] & kFirst) * 15 && bits[1] == (bits[1] & kFirst) * 15;
  }
  template <class Visit>
  void each_word(Visit visit) const {
    for (uint64_t half = 0; half < bits.size(); ++half) {
      for (uint64_t rest = bits[half] & kFirst; rest != 0; rest &= rest - 1) {
        visit(16 * half + static_cast<uint64_t>(std::countr_zero(rest)) / 4);
      }
    }
  }
  LineBytes operator&(const LineBytes& o) const {
    return {{bits[0] & o.bits[0], bits[1] & o.bits[1]}};
  }
  LineBytes operator|(const LineBytes& o) const {
    return {{bits[0] | o.bits[0], bits[1] | o.bits[1]}};
  }
  bool meets(const LineBytes& o) const {
    return ((bits[0] & o.bits[0]) | (bits[1] & o.bits[1])) != 0;
  }
  bool contains(const LineBytes& o) const {
    return ((o.bits[0] & ~bits[0]) | (o.bits[1] & ~bits[1])) == 0;
  }
};

/// A line of memory in an allocation.
struct Line {
  const Memory::Range& range;
  uint64_t number;  ///< address / kLine

  size_t index() const { return number - range.begin / kLine; }
  std::atomic<uint64_t>& write() const { return range.shadow.writes[index()]; }
  LineShadow& shadow() const { return range.shadow.lines[index()]; }
  WordShadow& word(uint64_t address) const {
    return range.shadow.words[address / 4 - range.begin / 4];
  }
  bool written(uint8_t era) const {
    return __atomic_load_n(&range.shadow.written[index()], __ATOMIC_RELAXED) == era;
  }
  void set_written(uint8_t era) const {
    __atomic_store_n(&range.shadow.written[index()], era, __ATOMIC_RELAXED);
  }
  /// What was stored there, of lines that are not apart: by the first wave, if there are two.
  LineBytes stored(uint64_t written_as) const {
    if (form_of(written_as) == LineForm::full) {
      return {{~uint64_t{0}, ~uint64_t{0}}};
    }
    return bytes_in(shadow().stored);
  }
  /// What the second wave stored there, if there is one.
  LineBytes stored_second(uint64_t written_as) const {
    return form_of(written_as) == LineForm::two ? bytes_in(shadow().stored_second) : LineBytes{};
  }
  static LineBytes bytes_in(const std::array<std::atomic<uint64_t>, 2>& stored) {
    return {{stored[0].load(std::memory_order_relaxed), stored[1].load(std::memory_order_relaxed)}};
  }
  /// WordShadow::write of a word of a line that is not apart.
  uint64_t word_stored(uint64_t written_as, uint64_t n) const {
    if (const uint32_t bytes = stored_second(written_as).word(n); bytes != 0) {
      const uint64_t second = shadow().second.load(std::memory_order_relaxed);
      return word_mark(interval_of(second), bytes, ordinal_of(second));
    }
    const uint32_t bytes = stored(written_as).word(n);
    return bytes == 0 ? 0 : word_mark(interval_of(written_as), bytes, line_ordinal_of(written_as));
  }

  /// Locks the shadow, if it is still what it was.
  bool lock(uint64_t was, uint8_t era) const {
    return write().compare_exchange_strong(was, line_mark(0, era, LineForm::changing, 0),
                                           std::memory_order_acquire);
  }
  void unlock(uint64_t was) const { write().store(was, std::memory_order_release); }
  /// Says of all that was stored what is known of it, and unlocks.
  void set_alike(uint32_t id, uint8_t era, uint32_t ordinal, const LineBytes& bytes) const {
    if (!bytes.all()) {
      LineShadow& line = shadow();
      line.stored[0].store(bytes.bits[0], std::memory_order_relaxed);
      line.stored[1].store(bytes.bits[1], std::memory_order_relaxed);
    }
    const LineForm form = bytes.all() ? LineForm::full : LineForm::alike;
    write().store(line_mark(id, era, form, ordinal), std::memory_order_release);
  }
  /// Says what a second wave stored besides the first one, of which `was` speaks, and unlocks.
  void set_second(uint64_t was, uint32_t id, uint8_t era, uint32_t ordinal,
                  const LineBytes& bytes) const {
    LineShadow& line = shadow();
    line.second.store(word_mark(id, 0, ordinal), std::memory_order_relaxed);
    line.stored_second[0].store(bytes.bits[0], std::memory_order_relaxed);
    line.stored_second[1].store(bytes.bits[1], std::memory_order_relaxed);
    write().store(line_mark(interval_of(was), era, LineForm::two, line_ordinal_of(was)),
                  std::memory_order_release);
  }

  /// WordShadow::write of a word, wherever it is kept.
  uint64_t last_store(uint64_t address, uint8_t era) const {
    for (;;) {
      const uint64_t line = write().load(std::memory_order_acquire);
      if (era_of(line) != era || form_of(line) == LineForm::apart) {
        return word(address).write.load(std::memory_order_acquire);
      }
      const uint64_t stored = word_stored(line, address % kLine / 4);
      std::atomic_thread_fence(std::memory_order_acquire);
      if (form_of(line) != LineForm::changing && write().load(std::memory_order_relaxed) == line) {
        return stored;
      }
    }
  }

  /// From now on, each word's shadow is its own. What theirs say from before matters to nobody.
  void set_apart(uint8_t era) const {
    for (;;) {
      const uint64_t was = write().load(std::memory_order_acquire);
      const bool known = era_of(was) == era;
      if (known && form_of(was) == LineForm::apart) {
        return;
      }
      if ((known && form_of(was) == LineForm::changing) || !lock(was, era)) {
        continue;
      }
      const uint64_t read = known ? shadow().read.load(std::memory_order_relaxed) : 0;
      const uint64_t end = std::min((number + 1) * kLine, range.end);
      for (uint64_t at = std::max(number * kLine, range.begin / 4 * 4); at < end; at += 4) {
        word(at).write.store(known ? word_stored(was, at % kLine / 4) : 0,
                             std::memory_order_relaxed);
        word(at).read.store(read, std::memory_order_relaxed);
      }
      write().store(line_mark(0, era, LineForm::apart, 0), std::memory_order_release);
      return;
    }
  }
};

/// The lines of a row, with the bytes of each, until `visit(number, bytes)` returns false: then
/// false.
template <class Visit>
bool for_each_line(const LaneRow& row, uint64_t bytes, Visit visit) {
  const LineBytes some = LineBytes::each(row.begin, bytes, row.step);
  const uint64_t begin = row.begin / kLine;
  const uint64_t end = (row.end - 1) / kLine;
  for (uint64_t n = begin; n <= end; ++n) {
    LineBytes part = some;
    if (n == begin) {
      part = part & LineBytes::from(row.begin % kLine);
    }
    if (n == end) {
      part = part & LineBytes::up_to((row.end - 1) % kLine + 1);
    }
    if (!visit(n, part)) {
      return false;
    }
  }
  return true;
}

/// What lanes reach, line by line: `whole(line, bytes of it)`, and where that returns false
/// `word(lane, address, bytes of the word, line)` for each of its words.
template <class Whole, class Word>
void for_each_part(Wave& w, const Instruction& i, const GlobalAccess& access, Whole whole,
                   Word word) {
  const Launch& launch = *w.group->launch;
  Memory::Range range = w.group->counts->ranges[i.ordinal % 64];
  const auto end_of = [&](int l) { return access.address_of(l) + access.bytes_of(l); };
  const auto within = [&](uint64_t begin, uint64_t end) {
    return ((begin >= range.begin && begin < range.end) || launch.memory->find(begin, range)) &&
           end <= range.end && range.shadow.words != nullptr;
  };
  const auto visit = [&](uint64_t number, const LineBytes& bytes, auto lanes) {
    const Line line{range, number};
    if (whole(line, bytes)) {
      return;
    }
    const auto [first, last] = lanes();
    for (int l = first; l <= last; ++l) {
      const uint64_t begin = std::max(access.address_of(l), number * kLine);
      const uint64_t end = std::min(end_of(l), (number + 1) * kLine);
      for (uint64_t n = begin / 4; (access.mask >> l & 1) != 0 && 4 * n < end; ++n) {
        const uint64_t from = std::max(begin, 4 * n) - 4 * n;
        const uint64_t to = std::min(end, 4 * n + 4) - 4 * n;
        word(l, 4 * n + from, static_cast<uint32_t>(((1U << to) - 1) & ~((1U << from) - 1)), line);
      }
    }
  };
  const LaneRow& row = access.row;
  if (access.words == nullptr && row.describes(access.mask) && within(row.begin, row.end)) {
    const int first = std::countr_zero(access.mask);
    const int last = kLanes - 1 - std::countl_zero(access.mask);
    const auto lane_at = [&](uint64_t address) {
      return first + static_cast<int>((address - row.begin) / row.step);
    };
    for_each_line(
        row, static_cast<uint64_t>(access.bytes), [&](uint64_t n, const LineBytes& bytes) {
          visit(n, bytes, [&] {
            return row.step == 0 ? std::pair(first, last)
                                 : std::pair(lane_at(std::max(row.begin, n * kLine)),
                                             lane_at(std::min(row.end, (n + 1) * kLine) - 1));
          });
          return true;
        });
    return;
  }
  // Neighbours in the same line are looked at together.
  constexpr uint64_t kNone = ~uint64_t{0};
  uint64_t number = kNone;
  LineBytes bytes;
  int begun = 0;
  int ended = 0;
  const auto flush = [&] {
    if (number != kNone) {
      visit(number, bytes, [&] { return std::pair(begun, ended); });
    }
    number = kNone;
  };
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t begin = access.address_of(l);
    const uint64_t end = end_of(l);
    if (begin < range.begin || end > range.end) {
      flush();
      if (!within(begin, end)) {
        continue;
      }
    }
    for (uint64_t n = begin / kLine; n * kLine < end; ++n) {
      if (n != number) {
        flush();
        number = n;
        bytes = {};
        begun = l;
      }
      bytes = bytes | LineBytes::range(std::max(begin, n * kLine) - n * kLine,
                                       std::min(end, (n + 1) * kLine) - n * kLine);
      ended = l;
    }
  }
  flush();
}
/// Likewise, each word by itself.
template <class Word>
void for_each_word(Wave& w, const Instruction& i, const GlobalAccess& access, Word word) {
  for_each_part(
      w, i, access, [](const Line&, const LineBytes&) { return false; }, word);
}

/// Who stored a word's bytes, if it was during this launch and is not known to all anyway.
std::optional<Met> meet(Wave& w, const Instruction& i, int lane, uint64_t address, uint64_t write,
                        uint32_t bytes, Grain grain, std::shared_ptr<LaunchOrder>& keep) {
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
  e->last.store(speaks(scope) ? e->issued.load() : coherence.now(), std::memory_order_relaxed);
  ++e->outstanding;
  order.issuing.interval = id;
  return id;
}

}  // namespace

size_t shadow_bytes(size_t bytes) {
  const size_t lines = (bytes + kLine - 1) / kLine;
  // Eight bytes of `written` are read at once, behind the last one, too.
  return lines * (sizeof(uint64_t) + sizeof(LineShadow) + 1) +
         (bytes + 3) / 4 * sizeof(WordShadow) + sizeof(uint64_t);
}

Shadow shadow_at(void* place, size_t bytes) {
  const size_t count = (bytes + kLine - 1) / kLine;
  auto* writes = static_cast<std::atomic<uint64_t>*>(place);
  auto* lines = reinterpret_cast<LineShadow*>(writes + count);
  auto* words = reinterpret_cast<WordShadow*>(lines + count);
  return {reinterpret_cast<uint8_t*>(words + (bytes + 3) / 4), writes, lines, words};
}

void WaveOrder::join(const WaveOrder& other) {
  acquired = std::max(acquired, other.acquired);
  fresh_scalar = std::max(fresh_scalar, other.fresh_scalar);
  for (size_t k = 0; k < fresh.size(); ++k) {
    fresh[k] = std::max(fresh[k], other.fresh[k]);
  }
}

void WaveOrder::begin(uint64_t time) {
  acquired = fresh_scalar = time;
  fresh.fill(time);
  open = to_host = 0;
  issuing = {};
  guesses.clear();
  doubts.findings.clear();
  doubts.lanes = doubts.executed = 0;
}

Coherence::Coherence() : ring_(static_cast<Interval*>(std::calloc(kIntervals, sizeof(Interval)))) {
  if (ring_ == nullptr) {
    throw std::bad_alloc();
  }
}
Coherence::~Coherence() = default;

Interval& Coherence::open(const Wave& wave, Scope scope, bool speaks, bool atomic, uint32_t& id) {
  const Workgroup& group = *wave.group;
  do {
    // Numbers are taken several at once, and left where others have nearly gone round the ring.
    constexpr uint32_t kAtOnce = 32;
    uint32_t& next = group.counts->next_interval;
    if (next % kAtOnce == 0 || next_.load(std::memory_order_relaxed) - next > kIntervals / 2) {
      next = next_.fetch_add(kAtOnce, std::memory_order_relaxed);
    }
    id = next++;
  } while (id == 0);
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
  e.issued = speaks ? issue() : now();
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

namespace {

/// A line's words that an access reaches, all of each, where they have shadows of their own and
/// nothing about them is new: `known(write, read)` of each that differs from the word before.
/// Then `mark` is called with each shadow. False: they have to be looked at one by one.
template <class Known, class Mark>
bool settle_words(const Line& line, const LineBytes& bytes, uint8_t era, Known known, Mark mark) {
  const uint64_t form = line.write().load(std::memory_order_acquire);
  if (era_of(form) != era || form_of(form) != LineForm::apart || !bytes.whole_words()) {
    return false;
  }
  const uint64_t begin = line.number * kLine;
  bool good = true;
  bool first = true;
  uint64_t last_write = 0;
  uint64_t last_read = 0;
  bytes.each_word([&](uint64_t n) {
    const WordShadow& word = line.word(begin + 4 * n);
    const uint64_t write = word.write.load(std::memory_order_acquire);
    const uint64_t read = word.read.load(std::memory_order_relaxed);
    if (first || write != last_write || read != last_read) {
      good = good && known(write, read);
      first = false;
      last_write = write;
      last_read = read;
    }
  });
  if (good) {
    bytes.each_word([&](uint64_t n) { mark(line.word(begin + 4 * n)); });
  }
  return good;
}

}  // namespace

void note_load(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope) {
  if (w.checks == nullptr) {
    return;
  }
  WaveOrder& order = w.checks->order;
  const Launch& launch = *w.group->launch;
  const uint8_t era = launch.order->era;
  const uint64_t read = launch.memory->coherence().now() << 28 | (w.group->number & 0xffffff);
  uint64_t acquires = 0;
  Settled seen;
  // A load of device or system scope: takes what an interval acquires. False: there is something to
  // report.
  const auto hear = [&](const Line& line, uint32_t id) {
    const Placement& placed = line.range.placement;
    if (id == 0 || seen.holds(id, placed)) {
      return true;
    }
    std::shared_ptr<LaunchOrder> keep;
    const auto met = meet(w, i, 0, line.number * kLine, word_mark(id, kAllBytes, 0), kAllBytes,
                          placed.grain, keep);
    if (met) {
      if (!speech_is_clear(w, *met, scope)) {
        return false;
      }
      acquires = std::max(acquires, met->stored.issued.load());
      seen = {id, placed};
    }
    return true;
  };
  const auto hear_line = [&](const Line& line, const LineBytes& bytes) {
    acquires = std::max(acquires, said_by_host(w, line.range.placement, scope));
    if (!line.written(era)) {
      return true;
    }
    const uint64_t stored = line.write().load(std::memory_order_acquire);
    if (era_of(stored) != era || form_of(stored) == LineForm::changing) {
      return false;
    }
    if (form_of(stored) == LineForm::apart) {
      return settle_words(
          line, bytes, era,
          [&](uint64_t write, uint64_t) { return hear(line, interval_of(write)); },
          [](const WordShadow&) {});
    }
    const bool first = line.stored(stored).meets(bytes);
    const bool second = line.stored_second(stored).meets(bytes);
    const uint32_t of_second = interval_of(line.shadow().second.load(std::memory_order_relaxed));
    std::atomic_thread_fence(std::memory_order_acquire);
    return line.write().load(std::memory_order_relaxed) == stored &&
           (!first || hear(line, interval_of(stored))) && (!second || hear(line, of_second));
  };
  const auto whole = [&](const Line& line, const LineBytes& bytes) {
    if (speaks(scope)) {
      return hear_line(line, bytes);
    }
    if (!line.written(era)) {
      return true;
    }
    const uint64_t stored = line.write().load(std::memory_order_acquire);
    std::shared_ptr<LaunchOrder> keep;
    const Placement& placed = line.range.placement;
    if (era_of(stored) == era && form_of(stored) == LineForm::apart) {
      return settle_words(
          line, bytes, era,
          [&](uint64_t write, uint64_t) {
            return write == 0 || seen.holds(interval_of(write), placed);
          },
          [&](WordShadow& word) {
            word.read.store(read | uint64_t{kAllBytes} << 24, std::memory_order_relaxed);
          });
    }
    if (!bytes.all() || era_of(stored) != era || !is_alike(stored)) {
      return false;
    }
    if (!seen.holds(interval_of(stored), placed)) {
      const auto met =
          meet(w, i, 0, line.number * kLine, word_mark(interval_of(stored), kAllBytes, 0),
               kAllBytes, placed.grain, keep);
      if (met && placed.home != kHost && !sees(w, *met)) {
        return false;
      }
      seen = {interval_of(stored), placed};
    }
    line.shadow().read.store(read | uint64_t{kAllBytes} << 24, std::memory_order_relaxed);
    return true;
  };
  for_each_part(
      w, i, access, whole, [&](int lane, uint64_t address, uint32_t bytes, const Line& line) {
        const Placement& placed = line.range.placement;
        acquires = std::max(acquires, said_by_host(w, placed, scope));
        if (!line.written(era)) {
          return;
        }
        std::shared_ptr<LaunchOrder> keep;
        const uint64_t stored = line.last_store(address, era);
        if (speaks(scope)) {
          const auto met = meet(w, i, lane, address, stored, bytes, placed.grain, keep);
          acquires = std::max(acquires, met ? judge_speech(w, *met, scope, false) : 0);
          return;
        }
        if (!seen.holds(interval_of(stored), placed)) {
          const auto met = meet(w, i, lane, address, stored, bytes, placed.grain, keep);
          if (met && placed.home != kHost) {
            if (sees(w, *met)) {
              seen = {interval_of(stored), placed};
            } else {
              judge_load(w, *met);
            }
          }
        }
        line.set_apart(era);
        line.word(address).read.store(read | uint64_t{bytes} << 24, std::memory_order_relaxed);
      });
  order.issuing.acquires = acquires;
  const uint64_t doubtful = doubted_lanes(w);
  if (doubtful != 0) {
    leave_path(w);
  }
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

namespace {

/// A store of data to a line of which another wave stored other bytes, and nobody else any. False:
/// its words have to be looked at.
bool store_second(const Wave& w, const Instruction& i, const Line& line, uint64_t was,
                  const LineBytes& bytes, uint32_t id) {
  const uint8_t era = w.group->launch->order->era;
  const bool again = form_of(was) == LineForm::two;
  if ((again && interval_of(line.shadow().second.load(std::memory_order_relaxed)) != id) ||
      !line.lock(was, era)) {
    return false;
  }
  if (bytes.meets(line.stored(was))) {  // the first wave has added to what it stored
    line.unlock(was);
    return false;
  }
  line.set_second(was, id, era, i.ordinal, bytes | line.stored_second(was));
  return true;
}

/// A store of data to a line that is nobody else's, or over all that was stored there and comes
/// before. False: its words have to be looked at.
bool store_line(Wave& w, const Instruction& i, const Line& line, const LineBytes& bytes,
                uint32_t id, Settled& followed) {
  const uint8_t era = w.group->launch->order->era;
  const uint64_t was = line.write().load(std::memory_order_acquire);
  if (line.range.placement.home == kHost) {
    return false;
  }
  const bool known = era_of(was) == era;
  const bool own = known && interval_of(was) == id;
  if (known) {
    std::shared_ptr<LaunchOrder> keep;
    if (form_of(was) == LineForm::changing || form_of(was) == LineForm::apart ||
        read_meanwhile(w, kAllBytes, line.shadow().read.load(std::memory_order_relaxed))) {
      return false;
    }
    if (!own && !bytes.meets(line.stored(was))) {
      return store_second(w, i, line, was, bytes, id);
    }
    if (!is_alike(was) || (!own && !bytes.contains(line.stored(was)))) {
      return false;
    }
    const Placement& placed = line.range.placement;
    if (!own && !followed.holds(interval_of(was), placed)) {
      const auto met = meet(w, i, 0, line.number * kLine, word_mark(interval_of(was), kAllBytes, 0),
                            kAllBytes, placed.grain, keep);
      // Who may still add to what it stored keeps the line.
      const bool open = met && !bytes.all() && !in_own_group(w, *met) &&
                        met->stored.complete.load(std::memory_order_acquire) == 0;
      if (met && (open || !follows(w, *met))) {
        return false;
      }
      followed = {interval_of(was), placed};
    }
  }
  if (!line.lock(was, era)) {
    return false;
  }
  if (known && !own && !bytes.contains(line.stored(was))) {
    line.unlock(was);
    return false;
  }
  line.set_alike(id, era, i.ordinal, own ? bytes | line.stored(was) : bytes);
  line.set_written(era);
  return true;
}

/// Whether lanes that store are in a row of an allocation of a device's.
bool in_row_of_device(const GlobalAccess& access, const Memory::Range& range) {
  const LaneRow& row = access.row;
  return access.words == nullptr && row.describes(access.mask) && row.begin >= range.begin &&
         row.end <= range.end && range.shadow.words != nullptr && range.placement.home != kHost;
}

/// A store of data to whole lines where this launch has not stored before. False: nothing is noted
/// for certain.
bool store_fresh_lines(Wave& w, const Instruction& i, const GlobalAccess& access, uint32_t id) {
  const Memory::Range& range = w.group->counts->ranges[i.ordinal % 64];
  const LaneRow& row = access.row;
  if (!in_row_of_device(access, range) || row.step != static_cast<uint64_t>(access.bytes) ||
      row.begin % kLine != 0 || row.end % kLine != 0) {
    return false;
  }
  const uint8_t era = w.group->launch->order->era;
  const uint64_t mark = line_mark(id, era, LineForm::full, i.ordinal);
  const size_t first = row.begin / kLine - range.begin / kLine;
  const size_t lines = (row.end - row.begin) / kLine;
  for (size_t k = first; k < first + lines; ++k) {
    std::atomic<uint64_t>& line = range.shadow.writes[k];
    uint64_t was = line.load(std::memory_order_relaxed);
    if (era_of(was) == era || !line.compare_exchange_strong(was, mark, std::memory_order_acq_rel)) {
      return false;
    }
    __atomic_store_n(&range.shadow.written[k], era, __ATOMIC_RELAXED);
  }
  return true;
}

/// A store of data to lines where the same interval stored already, and nobody else in this launch.
/// Only its wave adds to what it stored there, without a lock: who takes the line meanwhile is
/// noticed afterwards. False: nothing is noted for certain.
bool store_own_lines(Wave& w, const Instruction& i, const GlobalAccess& access, uint32_t id) {
  const Memory::Range& range = w.group->counts->ranges[i.ordinal % 64];
  if (!in_row_of_device(access, range)) {
    return false;
  }
  const uint8_t era = w.group->launch->order->era;
  std::array<uint64_t, kLanes + 1> marks;
  size_t count = 0;
  const size_t first = access.row.begin / kLine - range.begin / kLine;
  const auto add = [&](uint64_t number, const LineBytes& bytes) {
    const Line line{range, number};
    const uint64_t was = line.write().load(std::memory_order_acquire);
    if (interval_of(was) != id || era_of(was) != era || !is_alike(was) ||
        read_meanwhile(w, kAllBytes, line.shadow().read.load(std::memory_order_relaxed))) {
      return false;
    }
    if (form_of(was) == LineForm::alike) {
      for (size_t k = 0; k < bytes.bits.size(); ++k) {
        std::atomic<uint64_t>& stored = line.shadow().stored[k];
        stored.store(stored.load(std::memory_order_relaxed) | bytes.bits[k],
                     std::memory_order_relaxed);
      }
    }
    marks[count++] = was;
    return true;
  };
  if (!for_each_line(access.row, static_cast<uint64_t>(access.bytes), add)) {
    return false;
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (size_t k = 0; k < count; ++k) {
    if (range.shadow.writes[first + k].load(std::memory_order_relaxed) != marks[k]) {
      return false;
    }
  }
  return true;
}

}  // namespace

void note_store(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope,
                const uint32_t* data) {
  if (w.checks == nullptr || access.mask == 0) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const bool owes = scope == Scope::system && owes_host(w);
  const uint32_t id = issue_store(w, scope);
  if (!speaks(scope) &&
      (store_fresh_lines(w, i, access, id) || store_own_lines(w, i, access, id))) {
    return;
  }
  Settled followed;
  const auto whole = [&](const Line& line, const LineBytes& bytes) {
    if (speaks(scope)) {
      return false;
    }
    const Placement& placed = line.range.placement;
    const auto known = [&](uint64_t write, uint64_t read) {
      return (write == 0 || interval_of(write) == id ||
              followed.holds(interval_of(write), placed)) &&
             !read_meanwhile(w, kAllBytes, read);
    };
    const auto mark = [&](WordShadow& word) {
      word.write.store(word_mark(id, kAllBytes, i.ordinal), std::memory_order_release);
    };
    return store_line(w, i, line, bytes, id, followed) ||
           (placed.home != kHost && line.written(era) &&
            settle_words(line, bytes, era, known, mark));
  };
  const auto judge = [&](int lane, uint64_t address, uint32_t bytes, const Line& line) {
    const WordShadow& word = line.word(address);
    const Placement& placed = line.range.placement;
    const uint64_t before = word.write.load(std::memory_order_acquire);
    const uint64_t read = word.read.load(std::memory_order_relaxed);
    const bool overwrites = !speaks(scope) && read_meanwhile(w, bytes, read);
    if (!overwrites && followed.holds(interval_of(before), placed)) {
      return;
    }
    std::shared_ptr<LaunchOrder> keep;
    const auto met = meet(w, i, lane, address, before, bytes, placed.grain, keep);
    const auto same = [&] {
      const Caches* caches = w.group->launch->caches.get();
      const std::byte* there = caches != nullptr && met
                                   ? caches->latest(met->stored.xcd, address)
                                   : reinterpret_cast<const std::byte*>(address);
      return data == nullptr ||
             same_bytes(there, data + lane, address - access.address_of(lane), bytes);
    };
    if (met && follows(w, *met)) {
      followed = {interval_of(before), placed};
    } else if (met) {
      judge_store(w, *met, scope, same());
    }
    if (overwrites && !same()) {
      report_overwritten(w, i, lane, address, read);
    }
  };
  for_each_part(w, i, access, whole,
                [&](int lane, uint64_t address, uint32_t bytes, const Line& line) {
                  const bool on_host = line.range.placement.home == kHost;
                  line.set_apart(era);
                  if (line.written(era) && !on_host) {
                    judge(lane, address, bytes, line);
                  }
                  if (on_host && owes) {
                    report(w, i, FindingKind::missing_wait, lane,
                           "what is " + place(w, address) +
                               " tells the host before data that this wave stored for it have "
                               "arrived: an s_waitcnt vmcnt(0) is missing");
                  } else if (on_host && !speaks(scope)) {
                    w.checks->order.to_host = id;
                  }
                  // Lanes that store parts of a word are one store of it.
                  std::atomic<uint64_t>& write = line.word(address).write;
                  const uint64_t before = write.load(std::memory_order_relaxed);
                  const uint64_t own = word_mark(id, 0, i.ordinal);
                  write.store(own | uint64_t{bytes} << 28 |
                                  (word_mark(interval_of(before), 0, ordinal_of(before)) == own
                                       ? uint64_t{bytes_of(before)} << 28
                                       : 0),
                              std::memory_order_release);
                  line.set_written(era);
                });
}

void note_atomic(Wave& w, const Instruction& i, const GlobalAccess& access, Scope scope) {
  if (w.checks == nullptr || access.mask == 0) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const uint32_t id = issue_store(w, scope, true);
  Coherence& coherence = w.group->launch->memory->coherence();
  Interval* const own = coherence.interval(id);
  std::vector<Guess>& guesses = w.checks->order.guesses;
  uint64_t acquires = 0;
  for_each_word(w, i, access, [&](int lane, uint64_t address, uint32_t bytes, const Line& line) {
    line.set_apart(era);
    // In one step: of two atomics, one sees the other's mark. Times grow from one to the next, as
    // who sees one of them knows of all before it: another host thread's may have begun later, and
    // come here first.
    std::atomic<uint64_t>& write = line.word(address).write;
    uint64_t before = write.load(std::memory_order_acquire);
    do {
      const Interval* e = coherence.interval(interval_of(before));
      if (e != nullptr && e != own && own != nullptr && own->issued <= e->issued) {
        own->issued = coherence.issue();
        own->last.store(own->issued, std::memory_order_relaxed);
      }
    } while (!write.compare_exchange_weak(before, word_mark(id, bytes, i.ordinal),
                                          std::memory_order_acq_rel, std::memory_order_acquire));
    line.set_written(era);
    std::shared_ptr<LaunchOrder> keep;
    const Placement& placed = line.range.placement;
    acquires = std::max(acquires, said_by_host(w, placed, scope));
    if (const auto met = meet(w, i, lane, address, before, bytes, placed.grain, keep)) {
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
  for_each_word(w, i, access, [&](int, uint64_t address, uint32_t, const Line& line) {
    const Interval* e =
        coherence.interval(interval_of(line.last_store(address, w.group->launch->order->era)));
    if (e != nullptr && e->group != w.group->number) {
      acquires = std::max(acquires, e->issued.load());
    }
  });
}

void note_scalar_load(Wave& w, const Instruction& i, uint64_t address, size_t bytes) {
  if (w.checks == nullptr || !w.group->counts->written) {
    return;
  }
  const uint8_t era = w.group->launch->order->era;
  const uint64_t addresses[1] = {address};
  for_each_word(w, i, {addresses, 1, static_cast<int>(bytes)},
                [&](int, uint64_t at, uint32_t mask, const Line& line) {
                  if (!line.written(era)) {
                    return;
                  }
                  std::shared_ptr<LaunchOrder> keep;
                  const Grain grain = line.range.placement.grain;
                  const auto met = meet(w, i, 0, at, line.last_store(at, era), mask, grain, keep);
                  if (!met) {
                    return;
                  }
                  const uint64_t time =
                      visible(met->writer, met->stored, distance_of(w, met->stored), grain);
                  if (time != 0 && time <= w.checks->order.fresh_scalar) {
                    return;
                  }
                  if (met->stored.atomic) {
                    judge_guess(w, *met);
                  } else {
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
  const uint64_t issued = coherence.issue();
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

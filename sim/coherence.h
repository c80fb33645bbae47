// Which stores to global memory a read is guaranteed to see: the sanitizer of caches and order.
//
// What hardware does (LLVM, AMDGPU user guide, "Memory Model GFX942"; gfx950 is the same): every
// compute unit has an L1 that writes through, every XCD an L2 that writes back, and no L1 or L2
// learns by itself what another one's units store. So what a wave stores reaches a wave of
//
//   another workgroup of the XCD  when it was waited for (s_waitcnt vmcnt), if the reader's L1 was
//                                 invalidated since (buffer_inv) or is passed by (sc1),
//   another XCD                   when, besides, it was stored with sc1 or the L2 was written back
//                                 (buffer_wbl2 sc1, waited for), and the reader did buffer_inv sc1,
//   another device                the same with sc0 sc1 in place of sc1.
//
// A launch begins with clean caches and what it stored is everybody's when it has ended. Atomic
// operations work at the L2 and are of the device's scope, or, with sc1, of the system's.
//
// How it is checked. Accesses of device or system scope, and atomics, are how waves speak to each
// other; all others are data. One clock counts what waves do for order: it ticks when a store of
// device or system scope is issued, when a wait finds that stores have arrived, and when L2 was
// written back. A store of data is visible from some time on (above), a wave has *acquired* the
// time of the latest store that its loads of device scope returned and it waited for, and its
// caches are *fresh* as of what it had acquired when it last invalidated them. A load of data is
// right if what it reads was visible by the time for which caches are fresh. Whether hardware would
// really have kept an old copy does not matter, nor, for most mistakes, in which order the
// simulator happened to run the waves: what was visible too late, or acquired too late, is a
// finding though the number read is right.
//
// One time stands for all waves: who acquired a time is taken to know of all that was visible by
// then, by whomever it was stored. So a race may pass unseen while other waves synchronise
// properly; nothing that is right is accused. Who read a word is kept only where the launch also
// wrote to its line.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sim/lane_addresses.h"
#include "sim/report.h"

namespace weft::sim {

struct Instruction;
struct Launch;
struct Wave;
struct Workgroup;

/// How far an access reaches (sc1 sc0 of a load or store; sc1 of an atomic).
enum class Scope : uint8_t { wave, workgroup, agent, system };

/// How far a reader is from the writer of what it reads.
enum class Distance : uint8_t { xcd, device, node };
inline constexpr int kDistances = 3;

/// What is known of a word of memory.
struct WordShadow {
  /// The last store: interval << 32 | bytes of the word << 28 | ordinal.
  std::atomic<uint64_t> write;
  /// The last load of data: time << 28 | bytes of the word << 24 | workgroup.
  std::atomic<uint64_t> read;
};

/// What is known of a line in place of its words, as long as one wave stored there or two, each
/// bytes of its own, and loads were of all of it: more than Shadow::writes has.
struct LineShadow {
  std::atomic<uint64_t> read;                   ///< as in WordShadow
  std::array<std::atomic<uint64_t>, 2> stored;  ///< bit k: its byte k was, if not all were
  // Likewise of the second wave (LineForm::two).
  std::atomic<uint64_t> second;  ///< as in WordShadow::write, with no bytes
  std::array<std::atomic<uint64_t>, 2> stored_second;
};

/// The shadow of an allocation. Pages of it that nothing touches are never there.
struct Shadow {
  /// By line of 128 bytes: the era in which a kernel last stored there.
  uint8_t* written = nullptr;
  /// By line, the last store: interval << 32 | era << 24 | LineForm << 21 | ordinal. Apart from the
  /// rest, which most stores need not look at: what they cost is above all the way to memory.
  std::atomic<uint64_t>* writes = nullptr;
  LineShadow* lines = nullptr;
  WordShadow* words = nullptr;
};
/// Bytes of the shadow of so many bytes, and its parts within them.
size_t shadow_bytes(size_t bytes);
Shadow shadow_at(void* place, size_t bytes);

/// The stores of a wave between two of its waits, or one store of device or system scope. Kept in
/// a ring; what fell out of it is taken to have been visible long ago.
struct Interval {
  std::atomic<uint32_t> id;
  Scope scope;
  uint8_t xcd;
  uint8_t device;
  uint8_t wave;
  bool atomic;  ///< an atomic operation's
  uint16_t compute_unit;
  uint32_t group;
  int32_t step;                    ///< of the wave's own clock (sim/checks.h)
  uint64_t launch;                 ///< number
  std::atomic<uint64_t> issued;    ///< when the first of its stores was; of an atomic, the last
  std::atomic<uint64_t> last;      ///< when the last was
  std::atomic<uint64_t> complete;  ///< when a wait had found that all arrived; 0: not yet
  uint32_t outstanding;            ///< stores not waited for; the wave's own
};

/// A buffer_wbl2.
struct Writeback {
  uint64_t issued = 0;
  uint16_t compute_unit = 0;
  Scope scope = Scope::agent;
  std::atomic<uint64_t> complete{0};

  Writeback(uint64_t t, int unit, Scope s)
      : issued(t), compute_unit(static_cast<uint16_t>(unit)), scope(s) {}
};

/// What an operation that was issued means for order once it is waited for.
struct Ordering {
  uint32_t interval = 0;           ///< of its stores
  uint64_t acquires = 0;           ///< time of the store whose value it loads
  Writeback* writeback = nullptr;  ///< it is one
};

/// A load of data where atomics of others work. Compilers begin a loop of compare-and-swap with
/// one: what it returns is a guess, which the first swap checks. Without a swap it is a mistake.
struct Guess {
  uint64_t address = 0;
  const Instruction* load = nullptr;
  uint32_t ordinal = 0;  ///< of the atomic
  int lane = 0;
};

/// Loads that raced with a store: a finding if what they loaded is used. (A wave that a compiler
/// has repeat another's work loads it and does not.)
struct Doubts {
  std::vector<Finding> findings;
  uint64_t lanes = 0;     ///< of the last such load
  uint64_t executed = 0;  ///< Wave::executed of it
};

/// What a wave knows of others' stores.
struct WaveOrder {
  uint64_t acquired = 0;
  std::array<uint64_t, kDistances> fresh{};  ///< by distance: of caches
  uint64_t fresh_scalar = 0;                 ///< of the scalar cache
  uint32_t open = 0;                         ///< the interval that stores of data join; 0: none
  uint32_t to_host = 0;                      ///< the last interval of data in the host's memory
  Ordering issuing;                          ///< of the instruction being executed
  std::vector<Guess> guesses;
  Doubts doubts;

  void join(const WaveOrder& other);
  /// A new wave of a launch that began then.
  void begin(uint64_t time);
};

/// A launch as far as order goes.
struct LaunchOrder {
  uint64_t number = 0;
  const Launch* launch = nullptr;  ///< null when it has ended
  std::string kernel;
  uint64_t begun = 0;
  std::atomic<uint64_t> ended{0};
  uint8_t era = 0;
  struct Cache {
    std::mutex mutex;
    std::deque<Writeback> writebacks;
  };
  std::array<Cache, 8> l2;  ///< by XCD
  /// Loads of device scope that saw what no one may ever write back: reported at the end unless
  /// someone did.
  struct Suspect;
  std::mutex mutex;
  std::vector<Suspect> suspects;

  LaunchOrder();
  ~LaunchOrder();
};

/// Order among all kernels of a node.
class Coherence {
 public:
  Coherence();
  ~Coherence();
  Coherence(const Coherence&) = delete;
  Coherence& operator=(const Coherence&) = delete;

  std::shared_ptr<LaunchOrder> begin(const Launch& launch);
  /// All that the launch stored is visible to everybody. Reports what is still suspect.
  void end(Launch& launch);

  uint64_t now() const { return now_.load(std::memory_order_relaxed); }
  uint64_t tick() { return now_.fetch_add(1, std::memory_order_relaxed) + 1; }
  /// A time of what is issued now: whatever comes after it, also what does not tick, has a later
  /// one.
  uint64_t issue() { return now_.fetch_add(2, std::memory_order_relaxed) + 1; }
  /// nullptr: it fell out of the ring.
  Interval* interval(uint32_t id) {
    Interval& entry = ring_.get()[id % kIntervals];
    return entry.id.load(std::memory_order_acquire) == id ? &entry : nullptr;
  }
  /// `speaks`: a store of device or system scope, or an atomic, of which the clock ticks.
  Interval& open(const Wave& wave, Scope scope, bool speaks, bool atomic, uint32_t& id);
  /// nullptr: it ended long ago.
  std::shared_ptr<LaunchOrder> launch(uint64_t number);

 private:
  static constexpr uint32_t kIntervals = 1 << 20;
  struct Free {
    void operator()(Interval* ring) const { std::free(ring); }
  };
  std::atomic<uint64_t> now_{1};
  std::atomic<uint32_t> next_{0};
  std::unique_ptr<Interval, Free> ring_;  ///< kIntervals
  std::mutex mutex_;
  std::deque<std::shared_ptr<LaunchOrder>> launches_;
  uint64_t launches_begun_ = 0;
  int running_ = 0;
  uint8_t era_ = 0;
};

/// Global memory that lanes are about to reach, all in live allocations. `bytes`: of each lane;
/// `words`: where lanes differ, of each lane, in place of that. `addresses`: where they are in no
/// row.
struct GlobalAccess {
  const uint64_t* addresses;
  uint64_t mask;
  int bytes;
  const uint8_t* words = nullptr;
  LaneRow row = {};  ///< of the mask, if they are in one

  uint64_t address_of(int lane) const {
    return row.describes(mask) ? row.address(lane) : addresses[lane];
  }
  uint64_t bytes_of(int lane) const {
    return words != nullptr ? uint64_t{4} * words[lane] : static_cast<uint64_t>(bytes);
  }
};
// No-ops when the sanitizer is off.
// What was stored is noted before memory changes, and what was loaded after it was read: a value
// that another host thread just stored is known to be its.
void note_load(Wave& wave, const Instruction& instruction, const GlobalAccess& access, Scope scope);
/// `data`: the values that lanes store, words 64 lanes apart; null: not
/// known.
void note_store(Wave& wave, const Instruction& instruction, const GlobalAccess& access, Scope scope,
                const uint32_t* data);
void note_atomic(Wave& wave, const Instruction& instruction, const GlobalAccess& access,
                 Scope scope);
/// After it. `returns`: the old value, so that the wave learns of whoever stored it.
void note_atomic_done(Wave& wave, const Instruction& instruction, const GlobalAccess& access,
                      bool returns);
void note_scalar_load(Wave& wave, const Instruction& instruction, uint64_t address, size_t bytes);
/// buffer_inv, buffer_wbl2, s_dcache_inv.
void note_invalidate(Wave& wave, Scope scope);
void note_writeback(Wave& wave, Scope scope);
void note_scalar_invalidate(Wave& wave);
/// Lanes in which the instruction being executed loaded what it raced for.
uint64_t doubted_lanes(const Wave& wave);
/// An operation was waited for.
void note_done(Wave& wave, const Ordering& ordering);
/// A wave ended.
void note_end(Wave& wave);
/// The waves of a workgroup met.
void note_meeting(Workgroup& group);

}  // namespace weft::sim

#include "sim/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <limits>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "arch/cpu/dispatch.h"
#include "arch/cpu/threads.h"
#include "sim/checks.h"
#include "sim/decode.h"
#include "sim/disassembler.h"
#include "sim/hazards.h"
#include "sim/hostcall.h"
#include "sim/matrix.h"
#include "sim/memory.h"
#include "sim/parking.h"
#include "sim/static_checks.h"
#include "sim/wave.h"

namespace weft::sim {

namespace {

/// More findings than these say nothing new.
constexpr size_t kMostFindings = 20;

uint64_t capacity_of(Target target) {
  return (target == Target::gfx942 ? uint64_t{192} : uint64_t{288}) << 30;
}

/// Types of relocations (LLVM, "AMDGPU relocation records").
enum : uint32_t { kAbs32Lo = 1, kAbs32Hi = 2, kAbs64 = 3, kAbs32 = 6, kRelative64 = 13 };

Status relocate(const cdna::Relocation& r, uint64_t image, uint64_t image_bytes) {
  const uint64_t value = r.type == kRelative64
                             ? image + static_cast<uint64_t>(r.addend)
                             : image + r.symbol_address + static_cast<uint64_t>(r.addend);
  const size_t width = r.type == kAbs64 || r.type == kRelative64 ? 8 : 4;
  if (r.address > image_bytes || image_bytes - r.address < width) {
    return input_error("The code object has a relocation outside of its segments.");
  }
  auto* to = reinterpret_cast<void*>(image + r.address);
  switch (r.type) {
    case kAbs64:
    case kRelative64:
      std::memcpy(to, &value, 8);
      return {};
    case kAbs32:
    case kAbs32Lo:
      std::memcpy(to, &value, 4);
      return {};
    case kAbs32Hi: {
      const uint64_t high = value >> 32;
      std::memcpy(to, &high, 4);
      return {};
    }
    default:
      return input_error("The code object has a relocation of type " + std::to_string(r.type) +
                         ", which the simulator does not know.");
  }
}

/// What a kernel's descriptor asks for (LLVM, "Kernel Descriptor").
struct Descriptor {
  uint32_t rsrc1 = 0;
  uint32_t rsrc2 = 0;
  uint32_t rsrc3 = 0;
  uint16_t properties = 0;
  uint16_t preload = 0;

  explicit Descriptor(const std::array<std::byte, 64>& bytes) {
    std::memcpy(&rsrc3, &bytes[44], 4);
    std::memcpy(&rsrc1, &bytes[48], 4);
    std::memcpy(&rsrc2, &bytes[52], 4);
    std::memcpy(&properties, &bytes[56], 2);
    std::memcpy(&preload, &bytes[58], 2);
  }
  /// MODE as a wave finds it.
  uint32_t mode() const {
    return (rsrc1 >> 12 & 0xff) | (rsrc1 >> 21 & 1) << 8 | (rsrc1 >> 23 & 1) << 9 |
           (rsrc1 >> 26 & 1) << 23;
  }
  bool property(int bit) const { return (properties >> bit & 1) != 0; }
  /// From granules of 8 VGPRs, of which AGPRs have those from an offset in granules of 4 on, and of
  /// 16 SGPRs.
  Allocation registers() const {
    const auto vectors = static_cast<int>((rsrc1 & 63) + 1) * 8;
    const auto offset = static_cast<int>((rsrc3 & 63) + 1) * 4;
    return {.vgprs = std::min(vectors, offset),
            .agprs = std::max(0, vectors - offset),
            .sgprs = static_cast<int>((rsrc1 >> 6 & 15) / 2 + 1) * 16};
  }
  uint32_t preload_words() const { return preload & 127; }
  uint32_t preload_offset() const { return preload >> 7; }
};

/// What a cooperative launch's workgroups meet at (ROCm's device libraries, ockl/src/cg.cl,
/// mg_info).
struct GridMeeting {
  uint64_t grids = 0;  ///< where those of several launches meet: nowhere
  uint32_t grid = 0;
  uint32_t grid_count = 1;
  uint64_t threads_before = 0;
  uint64_t threads = 0;
  uint32_t arrived = 0;  ///< workgroups, and in the upper half how often all were
  uint32_t unused = 0;
  uint32_t workgroups = 0;
};
static_assert(offsetof(GridMeeting, arrived) == 32 && offsetof(GridMeeting, workgroups) == 40);

/// The arguments as the kernel reads them: the caller's, then the hidden ones that its metadata
/// names. `meeting`: address of the launch's GridMeeting, or 0.
std::vector<std::byte> argument_segment(const cdna::Kernel& kernel, Dim3 grid, Dim3 block,
                                        std::span<const std::byte> given, uint32_t dynamic_lds,
                                        const HostServices& host, uint64_t meeting) {
  std::vector<std::byte> segment(std::max<size_t>(kernel.argument_bytes, given.size()) + 16);
  std::copy(given.begin(), given.end(), segment.begin());
  const int dimensions = grid.z > 1 || block.z > 1 ? 3 : grid.y > 1 || block.y > 1 ? 2 : 1;
  const struct {
    std::string_view kind;
    uint64_t value;
  } hidden[] = {
      {"hidden_block_count_x", grid.x},
      {"hidden_block_count_y", grid.y},
      {"hidden_block_count_z", grid.z},
      {"hidden_group_size_x", block.x},
      {"hidden_group_size_y", block.y},
      {"hidden_group_size_z", block.z},
      {"hidden_grid_dims", static_cast<uint64_t>(dimensions)},
      {"hidden_private_base", kPrivateBase >> 32},
      {"hidden_shared_base", kSharedBase >> 32},
      {"hidden_dynamic_lds_size", dynamic_lds},
      {"hidden_hostcall_buffer", host.hostcall_buffer()},
      {"hidden_printf_buffer", host.printf_buffer()},
      {"hidden_heap_v1", host.heap()},
      {"hidden_multigrid_sync_arg", meeting},
  };
  for (const cdna::KernelArgument& a : kernel.arguments) {
    if (!a.kind.starts_with("hidden_") || a.offset > segment.size() ||
        segment.size() - a.offset < a.bytes) {
      continue;
    }
    uint64_t value = 0;  // remainders, offsets, and services of the host that there are none of
    for (const auto& h : hidden) {
      if (a.kind == h.kind) {
        value = h.value;
      }
    }
    std::memset(segment.data() + a.offset, 0, a.bytes);
    std::memcpy(segment.data() + a.offset, &value, std::min<uint64_t>(a.bytes, 8));
  }
  return segment;
}

struct alignas(64) Register {
  Lanes lanes;
};

/// Everything about a launch that its threads share.
struct Plan {
  Launch launch;
  Descriptor descriptor;
  const cdna::Kernel* kernel = nullptr;
  const Instruction* entry = nullptr;
  uint64_t arguments = 0;  ///< address of the segment
  uint64_t packet = 0;     ///< address of the dispatch packet
  std::vector<std::byte> segment;
  std::vector<uint32_t> user;  ///< user_registers()
  std::vector<Register> ids;   ///< thread_ids()
  uint32_t lds_bytes = 0;
  int threads_in_group = 0;
  int waves_in_group = 0;
  uint64_t groups = 0;
  uint64_t resident = 0;  ///< workgroups on the device at once
  int groups_per_cu = 0;
  std::unique_ptr<HostServices> host;
  std::atomic<uint64_t> next{0};
  double hang_seconds = 0;
  uint64_t workers = 0;    ///< host threads
  bool spread = false;     ///< all of them work: until it shows that there is enough, one does
  bool at_random = false;  ///< who runs next, and for how long
  std::mt19937_64 random;
  // Signs of life, beside Memory::progress().
  std::atomic<uint64_t> waiting{0};  ///< host threads all of whose waves are parked, or that ended
  std::atomic<uint64_t> wakes{0};    ///< times that one of them went on

  explicit Plan(const Descriptor& d) : descriptor(d) {}
};

/// Runs of memory for workgroups, used again when one ends.
struct Slot {
  std::unique_ptr<Register[]> registers;
  std::unique_ptr<std::byte[]> lds;
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> scratch;  ///< zeros, but for what a wave stored there
  std::vector<WaveChecks> checks;
  Workgroup group;
  uint64_t rounds = 0;    ///< turns that each of its waves had
  uint64_t executed = 0;  ///< instructions, in the last visit
  GroupParking parking;
};

constexpr int kMostUser = 102;  ///< scalar registers

/// What every wave of the launch finds in its first scalar registers.
std::vector<uint32_t> user_registers(const Plan& plan) {
  std::vector<uint32_t> user;
  const auto push64 = [&](uint64_t value) {
    user.push_back(static_cast<uint32_t>(value));
    user.push_back(static_cast<uint32_t>(value >> 32));
  };
  const Descriptor& d = plan.descriptor;
  if (d.property(0)) {  // private segment buffer: scratch has its own instructions here
    push64(0);
    push64(0);
  }
  if (d.property(1)) {
    push64(plan.packet);
  }
  if (d.property(2)) {
    push64(0);
  }
  if (d.property(3)) {
    push64(plan.arguments);
  }
  if (d.property(4)) {
    push64(0);
  }
  if (d.property(5)) {
    push64(0);
  }
  if (d.property(6)) {
    user.push_back(plan.launch.scratch_bytes);
  }
  for (uint32_t k = 0; k < d.preload_words(); ++k) {
    const size_t at = 4 * (size_t{d.preload_offset()} + k);
    uint32_t word = 0;
    if (at + 4 <= plan.segment.size()) {
      std::memcpy(&word, plan.segment.data() + at, 4);
    }
    user.push_back(word);
  }
  user.resize(std::min<size_t>(user.size(), kMostUser));
  return user;
}

/// What waves of a workgroup find in their first vector register: which thread each lane is.
std::vector<Register> thread_ids(const Plan& plan) {
  std::vector<Register> ids(static_cast<size_t>(plan.waves_in_group));
  const auto& block = plan.launch.block;
  for (uint32_t n = 0; n < ids.size() * kLanes; ++n) {
    ids[n / kLanes].lanes[n % kLanes] =
        n % block[0] | n / block[0] % block[1] << 10 | n / block[0] / block[1] << 20;
  }
  return ids;
}

void start_wave(Plan& plan, Slot& slot, int index) {
  Workgroup& group = slot.group;
  Launch& launch = plan.launch;
  Wave& w = group.waves[static_cast<size_t>(index)];
  for (size_t l = 0; w.scratch_begin < w.scratch_end && l < kLanes; ++l) {
    std::memset(w.scratch + l * launch.scratch_bytes + w.scratch_begin, 0,
                w.scratch_end - w.scratch_begin);
  }
  std::destroy_at(&w);
  std::construct_at(&w);
  w.v = slot.registers[static_cast<size_t>(index) * kVectorRegisters].lanes;
  w.group = &group;
  w.index = index;
  w.pc = plan.entry;
  if (launch.scratch_bytes != 0) {
    w.scratch = slot.scratch.get() + static_cast<size_t>(index) * kLanes * launch.scratch_bytes;
  }
  set_mode(w, plan.descriptor.mode());
  WaveChecks* checks = nullptr;
  if (launch.sanitize) {
    checks = &slot.checks[static_cast<size_t>(index)];
    w.checks = checks;
  } else {
    const auto clear = [&](int first, int count) {
      std::memset(w.lanes(first), kUnwritten, static_cast<size_t>(count) * sizeof(Lanes));
    };
    clear(0, launch.vgprs);
    clear(256, launch.agprs);
  }
  std::copy(plan.user.begin(), plan.user.end(), w.s.begin());
  auto next = static_cast<int>(plan.user.size());
  const auto push = [&](uint32_t value) {
    if (next < kMostUser) {
      w.s[static_cast<size_t>(next++)] = value;
    }
  };
  const Descriptor& d = plan.descriptor;
  for (int axis = 0; axis < 3; ++axis) {
    if ((d.rsrc2 >> (7 + axis) & 1) != 0) {
      push(group.id[static_cast<size_t>(axis)]);
    }
  }
  if ((d.rsrc2 >> 10 & 1) != 0) {
    push(static_cast<uint32_t>(plan.waves_in_group) | static_cast<uint32_t>(index) << 22);
  }
  std::memcpy(w.lanes(0), plan.ids[static_cast<size_t>(index)].lanes, sizeof(Lanes));
  const int active = std::min(kLanes, plan.threads_in_group - index * kLanes);
  const uint64_t exec = ~uint64_t{0} >> (kLanes - active);
  w.set_pair(kExec, exec);
  if (checks != nullptr) {
    Path& path = group.counts->paths[static_cast<size_t>(index)];
    path.start = {launch.vgprs, launch.agprs, next, exec};
    checks->begin(index, path);
    checks->order.begin(launch.order->begun);
  }
}

void start_group(Plan& plan, Slot& slot, uint64_t number, ThreadCounts& counts) {
  Workgroup& group = slot.group;
  Launch& launch = plan.launch;
  slot.rounds = 0;
  const int xcds = cdna::limits_of(launch.target).xcds;
  const int units = cdna::limits_of(launch.target).compute_units;
  group.number = number;
  const uint64_t x = launch.grid[0];
  const uint64_t y = launch.grid[1];
  group.id = {static_cast<uint32_t>(number % x), static_cast<uint32_t>(number / x % y),
              static_cast<uint32_t>(number / x / y)};
  group.xcd = static_cast<int>(number % static_cast<uint64_t>(xcds));
  group.compute_unit =
      static_cast<int>(number / static_cast<uint64_t>(xcds) % static_cast<uint64_t>(units / xcds));
  group.lds_bytes = plan.lds_bytes;
  group.lds = slot.lds.get();
  group.at_barrier = 0;
  group.ended = 0;
  group.epoch = 0;
  group.shares = false;
  group.progressed = false;
  group.launch = &launch;
  group.counts = &counts;
  std::memset(group.lds, kUnwritten, plan.lds_bytes);
  if (launch.sanitize) {
    clear(group.shadow, plan.lds_bytes, launch.code->spins());
  }
  for (int k = 0; k < plan.waves_in_group; ++k) {
    start_wave(plan, slot, k);
  }
  counts.counters.workgroups += 1;
  counts.counters.waves += static_cast<uint64_t>(plan.waves_in_group);
}

/// Up to so many instructions of a wave that goes the way of its path. How many it may still
/// execute: 0 when it does not run any more.
uint64_t follow_path(Wave& w, uint64_t budget) {
  WaveChecks& checks = *w.checks;
  uint64_t* executed = w.group->counts->executed.data();
  const Path::Step* step = &checks.path->steps[checks.step];
  for (; budget != 0; --budget, ++step) {
    const Instruction& i = *w.pc;
    if (step->instruction != &i || step->exec != w.exec()) {
      return budget;
    }
    w.pc = &i + 1;
    ++executed[i.ordinal];
    ++w.executed;
    if (!run_step(w, *step)) [[unlikely]] {
      return w.state == WaveState::running ? budget - 1 : 0;
    }
  }
  return 0;
}

template <bool kChecked>
void run_wave(Wave& w, uint64_t budget) {
  uint64_t* executed = w.group->counts->executed.data();
  if constexpr (kChecked) {
    if (budget != 0 && w.checks->follows()) {
      budget = follow_path(w, budget);
    }
  }
  while (budget-- != 0) {
    const Instruction& i = *w.pc;
    w.pc = &i + 1;
    ++executed[i.ordinal];
    ++w.executed;
    if constexpr (kChecked) {
      if (w.checks->path != nullptr) {
        run_beside_path(w, i);
      } else if (w.checks->ready(i)) {
        i.run(w, i);
      } else {
        run_checked(w, i);
      }
    } else {
      i.run(w, i);
    }
    if (w.state != WaveState::running) {
      return;
    }
  }
}

template <bool kChecked>
void run_one(Wave& w) {
  run_wave<kChecked>(w, 1);
}

/// A turn's length. At random, mostly a few instructions: orders that hardware rarely shows.
uint64_t turn_of(Plan& plan) {
  // Short enough that waves which wait for each other through LDS do not spin long.
  constexpr uint64_t kTurn = 4096;
  return !plan.at_random          ? kTurn
         : plan.random() % 8 == 0 ? 1 + plan.random() % 1000
                                  : 1 + plan.random() % 12;
}

/// A wave's turn, after which it may have ended, met a barrier or been parked. One that was woken
/// may find that it still has to wait, and is parked again as soon as it has.
void take_turn(Plan& plan, Wave& w, bool was_parked) {
  const bool sanitize = plan.launch.sanitize;
  Workgroup& group = *w.group;
  group.progressed = false;
  if (sanitize) {
    run_wave<true>(w, was_parked ? 0 : turn_of(plan));
  } else {
    run_wave<false>(w, was_parked ? 0 : turn_of(plan));
  }
  if (w.state == WaveState::ended) {
    note_end(w);
  }
  if (plan.at_random) {
    return;  // what a wave waits for may come to its caches, and never to the memory that is
             // watched
  }
  if (group.progressed) {
    w.idle_turns = 0;
  } else if (group.watch == nullptr &&
             (w.state == WaveState::running || w.state == WaveState::yielded)) {
    try_park(w, sanitize ? &run_one<true> : &run_one<false>);
  }
}

/// Instructions of a visit that others may wait for.
constexpr uint64_t kShort = 16384;

/// What a visit of a workgroup came to.
enum class Visit : uint8_t { done, goes_on, stuck };

/// Runs a workgroup for a while. Stuck: all its waves are parked, or wait for those that are.
Visit run_group(Plan& plan, Slot& slot) {
  Workgroup& group = slot.group;
  Launch& launch = plan.launch;
  const int waves = plan.waves_in_group;
  const uint64_t visit = plan.at_random ? 1 + plan.random() % 200
                         : plan.spread  ? 1'000'000
                                        : kShort;
  if (slot.parking.parked()) {
    if (!slot.parking.woken()) {
      return Visit::stuck;
    }
    slot.parking.wake();
  }
  slot.parking.begin_visit();
  // Every workgroup touches something new when it begins, also one that then goes round for ever.
  constexpr uint64_t kBeginning = 4;
  uint64_t touched = group.counts->first_touches;
  uint64_t executed = 0;
  for (;;) {
    int yielded = 0;
    int parked = 0;
    bool progressed = false;
    const uint64_t first = plan.at_random ? plan.random() : 0;
    for (size_t k = 0; k < group.waves.size(); ++k) {
      Wave& w = group.waves[(first + k) % group.waves.size()];
      const bool was_parked = w.state == WaveState::parked;
      if (w.state == WaveState::yielded || (was_parked && woken(w))) {
        w.state = WaveState::running;
      }
      parked += w.state == WaveState::parked ? 1 : 0;
      if (w.state != WaveState::running) {
        continue;
      }
      const uint64_t before = w.executed;
      take_turn(plan, w, was_parked);
      executed += w.executed - before;
      progressed |= group.progressed;
      group.ended += w.state == WaveState::ended ? 1 : 0;
      yielded += w.state == WaveState::yielded ? 1 : 0;
      parked += w.state == WaveState::parked ? 1 : 0;
    }
    if (++slot.rounds <= kBeginning) {
      touched = group.counts->first_touches;
    }
    if (launch.abort.load(std::memory_order_relaxed) || group.ended == waves) {
      break;
    }
    if (group.at_barrier != 0 && group.at_barrier + group.ended == waves) {
      if (launch.sanitize) {
        note_barrier(group);
      }
      for (Wave& w : group.waves) {
        if (w.state == WaveState::barrier) {
          w.state = WaveState::running;
        }
      }
      group.at_barrier = 0;
      ++group.epoch;
      ++group.counts->counters.barriers;
    }
    if (!plan.at_random && slot.parking.note_round(group, progressed)) {
      break;
    }
    const int stuck = group.at_barrier + group.ended + parked;
    if (stuck == waves || (group.shares && (stuck + yielded == waves || executed >= kShort)) ||
        executed >= visit) {
      break;
    }
  }
  slot.parking.end_visit(group);
  slot.executed = executed;
  const bool done = group.ended == waves;
  if (done || group.counts->first_touches != touched) {
    launch.memory->note_progress();
  }
  return done || launch.abort.load(std::memory_order_relaxed) ? Visit::done
         : executed == 0                                      ? Visit::stuck
                                                              : Visit::goes_on;
}

using Slots = std::deque<std::unique_ptr<Slot>>;

/// Ends a launch that hangs with a finding at a wave that does not get on.
void report_hang(Plan& plan, Workgroup& group, const std::string& why) {
  if (plan.launch.abort.exchange(true)) {
    return;
  }
  // Waves that run or are parked say more than those at a barrier.
  Wave* witness = nullptr;
  for (Wave& w : group.waves) {
    if (w.state != WaveState::ended &&
        (witness == nullptr || witness->state == WaveState::barrier)) {
      witness = &w;
    }
  }
  if (witness != nullptr) {
    report(*witness, *witness->pc, FindingKind::hang, 0,
           witness->state == WaveState::barrier
               ? "the workgroup waits at a barrier that its other waves do not reach"
               : why);
  }
}

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// A host thread's own watch over Memory::progress().
class Patience {
 public:
  /// After a visit: ends the launch when nothing has advanced for too long.
  void check(Plan& plan, Workgroup& group) {
    const uint64_t progress = plan.launch.memory->progress();
    const double now = thread_seconds();
    if (progress != seen_) {
      seen_ = progress;
      since_ = now;
    } else if (now - since_ > plan.hang_seconds) {
      report_hang(
          plan, group,
          fmt::format("in {:.3g} seconds no workgroup has begun or ended and nothing new was read "
                      "or written; this wave is among those that run",
                      now - since_));
    }
  }

 private:
  uint64_t seen_ = ~uint64_t{0};
  double since_ = 0;
};

/// For a host thread all of whose waves are parked: returns when one of them may go on, or when the
/// launch has ended. It ends it when all threads wait for too long: until then another launch, or
/// the program's own threads, may write what they wait for.
void wait_for_change(Plan& plan, const Slots& active) {
  using Clock = std::chrono::steady_clock;
  const auto any_woken = [&] {
    for (const auto& slot : active) {
      if (slot->parking.parked() && slot->parking.woken()) {
        return true;
      }
      for (const Wave& w : slot->group.waves) {
        if (w.state == WaveState::parked && woken(w)) {
          return true;
        }
      }
    }
    return false;
  };
  plan.waiting.fetch_add(1);
  // Other launches' progress counts: they may be about to write what these waves wait for.
  const auto signs = [&] { return plan.wakes.load() + plan.launch.memory->progress(); };
  uint64_t seen = signs();
  Clock::time_point since = Clock::now();
  for (int turn = 0; !plan.launch.abort.load() && !any_woken(); ++turn) {
    if (plan.waiting.load() != plan.workers || signs() != seen) {
      seen = signs();
      since = Clock::now();
    } else if (std::chrono::duration<double>(Clock::now() - since).count() > plan.hang_seconds) {
      report_hang(plan, active.front()->group,
                  fmt::format("nothing has changed for {:.3g} seconds of what the waves of the "
                              "launch wait for; this wave is among them",
                              plan.hang_seconds));
    }
    if (turn < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  plan.wakes.fetch_add(1);
  plan.waiting.fetch_sub(1);
}

/// One host thread: its share of the resident workgroups, one after the other. `spread`, if it is
/// there, is called once the launch turns out to be worth more threads.
void work(Plan& plan, uint64_t share, ThreadCounts& counts, std::function<void()> spread = {}) {
  Launch& launch = plan.launch;
  counts.executed.assign(launch.code->instructions().size(), 0);
  const auto waves = static_cast<size_t>(plan.waves_in_group);
  counts.paths.resize(launch.sanitize ? waves : 0);
  std::vector<std::unique_ptr<Slot>> free;
  Slots active;
  Patience patience;
  size_t stuck = 0;  ///< visits in a row in which nothing could go on
  uint64_t executed = 0;
  const auto start = [&] {
    const uint64_t number = plan.next.fetch_add(1);
    if (number >= plan.groups) {
      return false;
    }
    std::unique_ptr<Slot> slot;
    if (!free.empty()) {
      slot = std::move(free.back());
      free.pop_back();
    } else {
      slot = std::make_unique<Slot>();
      // Not cleared: pages that a program never touches are never there.
      slot->registers.reset(new Register[waves * kVectorRegisters]);
      slot->lds.reset(new std::byte[plan.lds_bytes + 16]);
      if (launch.scratch_bytes != 0) {
        slot->scratch.reset(
            static_cast<std::byte*>(std::calloc(waves * kLanes, launch.scratch_bytes)));
        if (slot->scratch == nullptr) {
          throw std::bad_alloc();
        }
      }
      slot->group.waves.resize(waves);
      slot->checks.resize(launch.sanitize ? waves : 0);
    }
    start_group(plan, *slot, number, counts);
    active.push_back(std::move(slot));
    launch.memory->note_progress();
    return true;
  };
  while (!launch.abort.load(std::memory_order_relaxed)) {
    if (active.empty() && !start()) {
      break;
    }
    if (plan.at_random) {
      std::swap(active.front(), active[plan.random() % active.size()]);
    }
    std::unique_ptr<Slot> slot = std::move(active.front());
    active.pop_front();
    const Visit visit = run_group(plan, *slot);
    plan.host->serve(launch);
    executed += slot->executed;
    if (spread && (visit != Visit::done || executed >= kShort)) {
      std::exchange(spread, {})();
    }
    if (visit == Visit::done) {
      free.push_back(std::move(slot));
      stuck = 0;
      continue;
    }
    active.push_back(std::move(slot));
    stuck = visit == Visit::stuck ? stuck + 1 : 0;
    if (stuck == 0) {
      patience.check(plan, active.back()->group);
    }
    // It did not end: it may be waiting for one that has not begun.
    if (active.size() < share && start()) {
      stuck = 0;
    } else if (stuck >= active.size()) {
      wait_for_change(plan, active);
      stuck = 0;
    }
  }
  plan.waiting.fetch_add(1);
}

void sum_instructions(const Launch& launch, std::span<const uint64_t> executed, Counters& total) {
  const auto instructions = launch.code->instructions();
  for (size_t k = 0; k < instructions.size(); ++k) {
    const Instruction& i = instructions[k];
    const uint64_t n = executed[k];
    if (n == 0 || i.row == nullptr) {
      continue;
    }
    total.instructions[static_cast<size_t>(i.row->cost)] += n;
    if (i.row->cost == Class::mfma) {
      const int passes = i.matrix->passes(launch.target, i.cbsz, i.blgp);
      total.matrix_cycles += n * static_cast<uint64_t>(passes) * 4;
    } else if (i.row->cost == Class::valu) {
      total.vector_cycles += n * 4;
    } else if (i.row->cost == Class::valu_slow) {
      total.vector_cycles += n * 16;
    }
  }
}

}  // namespace

Finding make_finding(const Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
                     std::string message) {
  const Launch& launch = *wave.group->launch;
  return {.kind = kind,
          .kernel = launch.kernel,
          .instruction = launch.code->text(instruction),
          .address = instruction.address,
          .source = launch.source_line(instruction.address),
          .workgroup = wave.group->id,
          .wave = wave.index,
          .lane = lane,
          .message = std::move(message)};
}

namespace {

bool count_again(Launch& launch, FindingKind kind, uint64_t address, uint64_t times) {
  for (Finding& f : launch.findings) {
    if (f.kind == kind && f.address == address) {
      f.times += times;
      if (f.times >= Finding::kMostTimes) {
        launch.abort.store(true);  // an endless loop of it would take minutes to be found one
      }
      return true;
    }
  }
  return launch.findings.size() >= kMostFindings;
}

}  // namespace

bool count_again(Launch& launch, FindingKind kind, const Instruction& instruction) {
  const std::lock_guard lock(launch.mutex);
  return count_again(launch, kind, instruction.address, 1);
}

void add_finding(Launch& launch, Finding finding) {
  const std::lock_guard lock(launch.mutex);
  if (!count_again(launch, finding.kind, finding.address, finding.times)) {
    launch.findings.push_back(std::move(finding));
  }
}

void report(Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
            std::string message) {
  if (wave.checks != nullptr) {
    leave_path(wave);  // others may do otherwise here
  }
  Launch& launch = *wave.group->launch;
  if (!count_again(launch, kind, instruction)) {
    add_finding(launch, make_finding(wave, instruction, kind, lane, std::move(message)));
  }
}

void stop(Wave& wave, const Instruction& instruction, FindingKind kind, int lane,
          std::string message) {
  report(wave, instruction, kind, lane, std::move(message));
  wave.group->launch->abort.store(true);
  wave.state = WaveState::ended;
}

Module::~Module() {
  if (memory_ != nullptr && image_ != 0) {
    (void)memory_->free(image_);
  }
}

const Kernel* Module::kernel(std::string_view name) const {
  for (const Kernel& k : kernels_) {
    if (k.info->name == name) {
      return &k;
    }
  }
  return nullptr;
}

std::optional<Module::Global> Module::global(std::string_view name) const {
  for (const cdna::Symbol& s : object_.symbols()) {
    if (s.name == name && s.kind == cdna::Symbol::Kind::data) {
      return Global{image_ + s.address, s.bytes};
    }
  }
  return std::nullopt;
}

Device::Device(Target target) : Device(target, std::make_shared<Memory>()) {}
Device::Device(Target target, std::shared_ptr<Memory> memory)
    : target_(target),
      memory_(std::move(memory)),
      index_(memory_->add_device(capacity_of(target))),
      heap_(*memory_) {}
Device::~Device() = default;

Result<uint64_t> Device::allocate(size_t bytes) {
  return memory_->allocate(bytes, {.home = index_});
}
Status Device::free(uint64_t address) { return memory_->free(address); }

Result<std::shared_ptr<Module>> Device::load(std::span<const std::byte> code_object) {
  if (cpu::detected_isa() < cpu::Isa::avx2) {
    return device_error("The simulator needs a processor with AVX2.");
  }
  const std::shared_ptr<Module> module(new Module());
  module->bytes_.assign(code_object.begin(), code_object.end());
  WEFT_ASSIGN(module->object_, cdna::CodeObject::parse(module->bytes_, "The code object"));
  const cdna::CodeObject& object = module->object_;
  if (object.target() != target_) {
    return input_error("The code object is for " + std::string(cdna::name_of(object.target())) +
                       ", but the device is a " + std::string(cdna::name_of(target_)) + ".");
  }
  WEFT_ASSIGN(module->image_, memory_->allocate(object.image_bytes(), {.home = index_}));
  module->memory_ = memory_.get();
  const uint64_t image = module->image_;
  for (const cdna::Segment& segment : object.segments()) {
    if (!segment.bytes.empty()) {
      std::memcpy(reinterpret_cast<void*>(image + segment.address), segment.bytes.data(),
                  segment.bytes.size());
    }
  }
  for (const cdna::Relocation& relocation : object.relocations()) {
    WEFT_TRY(relocate(relocation, image, object.image_bytes()));
  }
  const cdna::Section text = object.section(".text");
  WEFT_ASSIGN(Code code, Code::decode(text.bytes, text.address, target_));
  module->code_ = std::make_unique<Code>(std::move(code));
  module->hazards_ = find_hazards(*module->code_);
  module->lines_ = std::make_unique<SourceLines>(module->bytes_);
  for (const cdna::Kernel& kernel : object.kernels()) {
    module->kernels_.push_back({module.get(), &kernel});
  }
  return module;
}

int Device::groups_per_unit(const Kernel& kernel, int threads, uint64_t dynamic_lds) const {
  const int per_simd =
      cdna::waves_per_simd(*kernel.info, target_, threads, static_cast<int64_t>(dynamic_lds));
  const int waves = (threads + kLanes - 1) / kLanes;
  return per_simd == 0 ? 0 : std::max(1, per_simd * cdna::kSimds / waves);
}

Status Device::check(const Kernel& kernel, Dim3 grid, Dim3 block, uint32_t dynamic_lds,
                     size_t argument_bytes, bool cooperative) const {
  const cdna::Kernel& info = *kernel.info;
  const std::string name(info.name);
  const uint64_t most =
      info.max_workgroup_threads != 0
          ? std::min<uint64_t>(info.max_workgroup_threads, cdna::kMaxWorkgroupThreads)
          : cdna::kMaxWorkgroupThreads;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads == 0 || threads > most || block.x > most || block.y > most || block.z > most) {
    return usage_error("Kernel " + name + " cannot have workgroups of " + std::to_string(threads) +
                       " threads; 1 to " + std::to_string(most) + " are possible.");
  }
  if (info.scratch_bytes > cdna::kMaxScratchBytes) {
    return usage_error("Kernel " + name + " asks for " + std::to_string(info.scratch_bytes) +
                       " bytes of scratch a lane; " + std::to_string(cdna::kMaxScratchBytes) +
                       " are possible.");
  }
  const uint64_t plane = uint64_t{grid.x} * grid.y;
  if (plane == 0 || grid.z == 0) {
    return usage_error("Kernel " + name + " is launched with no workgroups.");
  }
  if (plane > std::numeric_limits<uint64_t>::max() / grid.z / 2) {
    return usage_error("Kernel " + name + " is launched with too many workgroups.");
  }
  const int per_unit = groups_per_unit(kernel, static_cast<int>(threads), dynamic_lds);
  if (per_unit == 0) {
    return usage_error("Kernel " + name + " does not fit on a compute unit: a workgroup of " +
                       std::to_string(threads) + " threads takes " +
                       std::to_string(uint64_t{info.lds_bytes} + dynamic_lds) +
                       " bytes of LDS and " + std::to_string(info.vgprs) + " registers a lane.");
  }
  const uint64_t resident = static_cast<uint64_t>(per_unit) *
                            static_cast<uint64_t>(cdna::limits_of(target_).compute_units);
  if (cooperative && plane * grid.z > resident) {
    return usage_error("Kernel " + name + " is launched as cooperative with " +
                       std::to_string(plane * grid.z) + " workgroups, but the device holds " +
                       std::to_string(resident) + " of them at once.");
  }
  uint64_t needed = 0;
  for (const cdna::KernelArgument& a : info.arguments) {
    if (!a.kind.starts_with("hidden_")) {
      needed = std::max(needed, a.offset + a.bytes);
    }
  }
  if (argument_bytes < needed) {
    return usage_error("Kernel " + name + " takes " + std::to_string(needed) +
                       " bytes of arguments, but the launch gives " +
                       std::to_string(argument_bytes) + ".");
  }
  return {};
}

Result<LaunchReport> Device::launch(const Kernel& kernel, Dim3 grid, Dim3 block,
                                    uint32_t dynamic_lds, std::span<const std::byte> arguments,
                                    const LaunchOptions& options) {
  WEFT_TRY(check(kernel, grid, block, dynamic_lds, arguments.size(), options.cooperative));
  const cdna::Kernel& info = *kernel.info;
  const Module& module = *kernel.module;
  const std::string name(info.name);
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  Plan plan{Descriptor(info.descriptor_bytes)};
  plan.groups = uint64_t{grid.x} * grid.y * grid.z;
  const cdna::Limits limits = cdna::limits_of(target_);
  Launch& launch = plan.launch;
  launch.code = &module.code();
  launch.memory = memory_.get();
  launch.device = index_;
  launch.target = target_;
  launch.kernel = name;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.block = {block.x, block.y, block.z};
  launch.dynamic_stack = plan.descriptor.property(11);
  launch.scratch_bytes =
      launch.dynamic_stack ? std::max(info.scratch_bytes, options.stack_bytes) : info.scratch_bytes;
  // Registers come in eights.
  launch.vgprs = static_cast<int>(std::min(256U, (info.vgprs - info.agprs + 7) / 8 * 8));
  launch.agprs = static_cast<int>(std::min(256U, (info.agprs + 7) / 8 * 8));
  launch.load_offset = module.image_;
  launch.sanitize = options.sanitize;
  launch.source_line = [&](uint64_t address) { return module.lines_->at(address); };
  plan.kernel = &info;
  plan.lds_bytes = info.lds_bytes + dynamic_lds;
  plan.threads_in_group = static_cast<int>(threads);
  plan.waves_in_group = static_cast<int>((threads + kLanes - 1) / kLanes);
  plan.hang_seconds = options.hang_seconds;
  // With preloaded arguments the code begins with 256 bytes for devices that cannot preload.
  plan.entry = launch.code->at(info.entry + (plan.descriptor.preload_words() != 0 ? 256 : 0));
  if (plan.entry == nullptr) {
    return input_error("Kernel " + name + " begins where its code object has no instruction.");
  }
  plan.groups_per_cu = groups_per_unit(kernel, plan.threads_in_group, dynamic_lds);
  plan.resident =
      static_cast<uint64_t>(plan.groups_per_cu) * static_cast<uint64_t>(limits.compute_units);
  const Memory::Use use(*memory_);
  WEFT_ASSIGN(plan.host, HostServices::open(*memory_, heap_, module.object_, info,
                                            std::min(plan.resident, plan.groups) *
                                                static_cast<uint64_t>(plan.waves_in_group)));
  uint64_t meeting = 0;
  if (options.cooperative) {
    WEFT_ASSIGN(meeting, memory_->allocate(sizeof(GridMeeting), {.home = index_}));
    const GridMeeting empty{.threads = plan.groups * threads,
                            .workgroups = static_cast<uint32_t>(plan.groups)};
    std::memcpy(reinterpret_cast<void*>(meeting), &empty, sizeof empty);
  }
  plan.segment = argument_segment(info, grid, block, arguments, dynamic_lds, *plan.host, meeting);
  memory_->note_progress();
  WEFT_ASSIGN(plan.arguments, memory_->allocate(plan.segment.size() + 64, {kHost, Grain::fine}));
  std::memcpy(reinterpret_cast<void*>(plan.arguments), plan.segment.data(), plan.segment.size());
  // The HSA dispatch packet, for kernels that ask for it: sizes of the workgroup and of the grid.
  plan.packet = (plan.arguments + plan.segment.size() + 7) & ~uint64_t{7};
  struct {
    uint16_t header, setup, block_x, block_y, block_z, reserved;
    uint32_t grid_x, grid_y, grid_z, scratch, lds;
  } const packet = {0,
                    3,
                    static_cast<uint16_t>(block.x),
                    static_cast<uint16_t>(block.y),
                    static_cast<uint16_t>(block.z),
                    0,
                    grid.x * block.x,
                    grid.y * block.y,
                    grid.z * block.z,
                    launch.scratch_bytes,
                    plan.lds_bytes};
  static_assert(sizeof packet == 32);
  std::memcpy(reinterpret_cast<void*>(plan.packet), &packet, sizeof packet);
  plan.user = user_registers(plan);
  plan.ids = thread_ids(plan);

  plan.at_random = options.seed != 0;
  const int host_threads = plan.at_random         ? 1
                           : options.threads != 0 ? std::max(1, options.threads)
                                                  : cpu::usable_cpus();
  const uint64_t workers =
      std::min({static_cast<uint64_t>(host_threads), plan.groups, plan.resident});
  if (launch.sanitize) {
    launch.order = memory_->coherence().begin(launch);
  }
  if (plan.at_random) {
    plan.random.seed(options.seed);
    launch.caches = std::make_unique<Caches>(*memory_, launch.device);
  }
  plan.workers = workers;
  std::vector<ThreadCounts> counts(workers);
  {
    const uint64_t share = plan.resident / workers;
    std::vector<std::thread> pool;
    work(plan, share, counts[0], [&] {
      plan.spread = true;
      for (uint64_t k = 1; k < workers; ++k) {
        pool.emplace_back([&, k] { work(plan, share, counts[k]); });
      }
    });
    for (std::thread& thread : pool) {
      thread.join();
    }
  }
  launch.caches.reset();
  if (launch.sanitize) {
    memory_->coherence().end(launch);
  }
  (void)memory_->free(plan.arguments);
  if (meeting != 0) {
    (void)memory_->free(meeting);
  }
  plan.host->finish(launch);

  LaunchReport report;
  report.kernel = name;
  report.target = target_;
  report.findings = std::move(launch.findings);
  std::vector<uint64_t> executed(launch.code->instructions().size());
  for (const ThreadCounts& c : counts) {
    report.counters.add(c.counters);
    for (size_t k = 0; k < c.executed.size(); ++k) {  // none: its thread was not wanted
      executed[k] += c.executed[k];
    }
  }
  sum_instructions(launch, executed, report.counters);
  if (options.sanitize) {
    for (Finding& finding :
         static_findings(launch, module.hazards_, plan.descriptor.registers(), executed)) {
      if (report.findings.size() < kMostFindings) {
        report.findings.push_back(std::move(finding));
      }
    }
  }
  launch.touched.count(report.counters.hbm_bytes_read, report.counters.hbm_bytes_written);
  const auto units = static_cast<uint64_t>(limits.compute_units);
  report.compute_units_used = static_cast<int>(std::min(plan.groups, units));
  const uint64_t fullest = (plan.groups + units - 1) / units;
  report.imbalance =
      static_cast<double>(fullest) * report.compute_units_used / static_cast<double>(plan.groups);
  return report;
}

}  // namespace weft::sim

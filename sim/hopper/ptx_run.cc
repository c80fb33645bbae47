// A launch: its CTAs and warps, and their turns.
#include <sys/mman.h>

#include <algorithm>
#include <memory>

#include "base/divide.h"
#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {
namespace {

/// Instructions that a warp executes before it is another's turn.
constexpr uint32_t kTurn = 4000;

/// Memory that is zeros and takes room when it is touched.
class Pages {
 public:
  Pages() = default;
  explicit Pages(size_t bytes) : bytes_(std::max<size_t>(bytes, 1)) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~Pages() {
    if (data_ != nullptr) {
      munmap(data_, bytes_);
    }
  }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Memory for the warps' registers, in which something may be: of one launch of this host thread
/// after the other the same, as a page that is new costs many times what it takes to clear it.
std::byte* frames_of(size_t bytes) {
  constexpr size_t kMostKept = size_t{256} << 20;
  thread_local std::unique_ptr<Pages> kept;
  if (kept == nullptr || kept->bytes() < bytes || kept->bytes() > std::max(bytes, kMostKept)) {
    kept.reset();  // before there are others
    kept = std::make_unique<Pages>(bytes);
  }
  return kept->data();
}

uint64_t product(const std::array<uint32_t, 3>& a) { return uint64_t{a[0]} * a[1] * a[2]; }

std::string place_of(const Grid& grid, const Warp& warp, uint32_t lane, uint32_t pc) {
  const Instruction& in = grid.program->code[pc];
  const auto& id = warp.cta->id;
  const auto& block = grid.launch.block;
  const uint32_t thread = warp.index * kLanes + lane;
  return grid.program->name + ", line " + std::to_string(in.line) + " (" + grid.program->texts[pc] +
         "): thread (" + std::to_string(thread % block[0]) + ", " +
         std::to_string(thread / block[0] % block[1]) + ", " +
         std::to_string(thread / block[0] / block[1]) + ") of CTA (" + std::to_string(id[0]) +
         ", " + std::to_string(id[1]) + ", " + std::to_string(id[2]) + ") of " +
         grid.function->name;
}

/// The lanes that may run, those that stand lowest: false: there are none.
bool choose(Warp& warp) {
  const uint32_t ready = warp.alive & ~warp.blocked & ~warp.parked & ~warp.yielded;
  if (ready == 0) {
    return false;
  }
  uint32_t lowest = ~0u;
  each_lane(ready, [&](uint32_t i) { lowest = std::min(lowest, warp.place[i]); });
  uint32_t group = 0;
  each_lane(warp.alive & ~warp.blocked,
            [&](uint32_t i) { group |= uint32_t{warp.place[i] == lowest} << i; });
  // Who waits at a barrier of the warp is set free by who comes, not run again.
  warp.active = group & ~(warp.at_warp_barrier & ~ready);
  warp.pc = lowest;
  return true;
}

/// Where the lanes that do not run stand next above: the others must join there.
uint32_t next_place(const Warp& warp) {
  uint32_t next = ~0u;
  each_lane(warp.alive & ~warp.blocked & ~warp.active, [&](uint32_t i) {
    if (warp.place[i] > warp.pc) {
      next = std::min(next, warp.place[i]);
    }
  });
  return next;
}

void put_down(Warp& warp, uint32_t place) {
  each_lane(warp.active, [&](uint32_t i) { warp.place[i] = place; });
}

/// Runs a warp until its turn is over. False: the launch has failed.
bool take_turn(Warp& warp) {
  const Instruction* const code = warp.program->code.data();
  const std::byte* const frame = warp.base[0];
  uint32_t left = kTurn;
  warp.polls = 0;
  warp.yielded = 0;
  while (left > 0 && choose(warp)) {
    const uint32_t limit = next_place(warp);
    const bool alone = (warp.alive & ~warp.blocked & ~warp.active) == 0;
    bool together = true;
    while (together) {
      const Instruction& in = code[warp.pc];
      uint32_t predicate;
      std::memcpy(&predicate, frame + in.guard, 4);
      const uint32_t mask = warp.active & (predicate ^ in.invert);
      --left;
      const Step step = mask != 0 ? in.run(warp, in, mask) : Step::next;
      switch (step) {
        case Step::next:
          ++warp.pc;
          if (warp.pc == limit || left == 0) {
            put_down(warp, warp.pc);
            together = false;
          }
          break;
        case Step::jump:
          if (!alone || left == 0) {
            put_down(warp, warp.pc);
            together = false;
          }
          break;
        case Step::moved:
          together = false;
          break;
        case Step::again:
        case Step::yield:
          put_down(warp, warp.pc + (step == Step::yield ? 1 : 0));
          warp.yielded |= warp.active;
          together = false;
          break;
        case Step::fault:
          return false;
      }
    }
    if (left == 0) {
      break;
    }
  }
  warp.grid->counts.warp_instructions += kTurn - left;
  return true;
}

Status check_launch(const Program& program, const Function& function, const Launch& launch,
                    size_t arguments) {
  const uint64_t threads = product(launch.block);
  const uint64_t ctas = product(launch.grid);
  if (threads < 1 || threads > 1024) {
    return device_error(function.name + " is launched with " + std::to_string(threads) +
                        " threads a CTA; use 1 to 1024.");
  }
  if (ctas < 1 || ctas > (1u << 20) || launch.cluster < 1 || launch.cluster > 16 ||
      launch.grid[0] % launch.cluster != 0) {
    return device_error(function.name + " is launched with " + std::to_string(ctas) +
                        " CTAs in clusters of " + std::to_string(launch.cluster) + ".");
  }
  if (uint64_t{program.shared_bytes} + launch.shared_bytes + window::kReserved >
      (1u << window::kRankShift)) {
    return device_error(function.name + " is launched with " + std::to_string(launch.shared_bytes) +
                        " bytes of shared memory.");
  }
  if (arguments != function.parameters.size()) {
    return device_error(function.name + " takes " + std::to_string(function.parameters.size()) +
                        " arguments, not " + std::to_string(arguments) + ".");
  }
  return {};
}

/// Instructions of all launches: the clock goes on from one to the next.
uint64_t& clock_of_all() {
  static uint64_t clock = 0;
  return clock;
}

void set_lanes(std::byte* frame, uint32_t offset, uint64_t value, uint64_t step) {
  auto* lanes = reinterpret_cast<uint64_t*>(frame + offset);
  for (uint64_t i = 0; i < kLanes; ++i) {
    lanes[i] = value + i * step;
  }
}

/// A launch: CTAs begin in the order of their numbers, as many as are resident at once; when those
/// of a cluster have ended, the next takes their place.
class Launcher {
 public:
  Launcher(const Program& program, const Function& function, const Launch& launch,
           std::span<const void* const> arguments);
  bool has_memory() const {
    return arenas_.data() != nullptr && frames_ != nullptr && locals_.data() != nullptr;
  }
  Status run(const Limits& limits);
  const Counts& counts() const { return grid_.counts; }

 private:
  /// More than any GPU has of CTAs with large shared memory: grids whose CTAs wait for one another
  /// are smaller.
  static constexpr uint32_t kResident = 264;

  void start(uint32_t slot);
  void begin_warp(Warp& warp, size_t number, uint32_t threads);
  void replace_ended();
  Status failure(std::string fault);
  std::string waits() const;

  Grid grid_;
  uint32_t all_;       ///< CTAs of the grid
  uint32_t next_ = 0;  ///< the first that has not begun
  uint32_t slots_;
  uint32_t threads_, warps_;                       ///< of a CTA
  uint32_t static_begin_ = 0, dynamic_begin_ = 0;  ///< of a CTA's shared memory
  std::vector<std::byte> parameters_;
  Pages arenas_, locals_;
  std::byte* frames_;
};

Launcher::Launcher(const Program& program, const Function& function, const Launch& launch,
                   std::span<const void* const> arguments)
    : all_(static_cast<uint32_t>(product(launch.grid))),
      slots_(std::min(all_, kResident / launch.cluster * launch.cluster)),
      threads_(static_cast<uint32_t>(product(launch.block))),
      warps_((threads_ + kLanes - 1) / kLanes),
      arenas_(size_t{slots_} << window::kRankShift),
      locals_(size_t{slots_} * warps_ * kLanes * program.local_bytes),
      frames_(frames_of(size_t{slots_} * warps_ * program.frame_bytes)) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Formal& formal = function.formals[i];
    parameters_.resize(std::max<size_t>(parameters_.size(), formal.offset + formal.bytes));
    std::memcpy(parameters_.data() + formal.offset, arguments[i], formal.bytes);
  }
  grid_.program = &program;
  grid_.function = &function;
  grid_.launch = launch;
  grid_.started = clock_of_all();
  grid_.chance = grid_.started * 0x9e3779b97f4a7c15u | 1;
  // What is dynamic comes last, so that nothing lies behind it; but first where the static memory
  // of all the module's kernels would put it beyond what a matrix's descriptor reaches.
  const uint32_t end = window::kReserved + program.shared_bytes + launch.shared_bytes;
  static_begin_ = end > window::kDescribed ? round_up(launch.shared_bytes, 1024u) : 0;
  dynamic_begin_ = static_begin_ > 0 ? 0 : program.shared_bytes;
  grid_.shared_bytes = window::kReserved + std::max(static_begin_ + program.shared_bytes,
                                                    dynamic_begin_ + launch.shared_bytes);
  grid_.arenas = {arenas_.data(), arenas_.bytes()};
  grid_.blocks = {Range{reinterpret_cast<uintptr_t>(locals_.data()), locals_.bytes()},
                  Range{reinterpret_cast<uintptr_t>(parameters_.data()), parameters_.size()},
                  Range{reinterpret_cast<uintptr_t>(program.storage), program.stored}};
  grid_.ctas.resize(slots_);
  grid_.warps.resize(size_t{slots_} * warps_);
}

void Launcher::begin_warp(Warp& warp, size_t number, uint32_t threads) {
  const Program& program = *grid_.program;
  std::byte* const frame = frames_ + number * program.frame_bytes;
  std::memset(frame, 0, program.frame_bytes);
  warp.program = &program;
  warp.grid = &grid_;
  warp.base = {
      frame, const_cast<std::byte*>(reinterpret_cast<const std::byte*>(program.constants.data()))};
  warp.alive = threads >= kLanes ? ~0u : (1u << threads) - 1;
  warp.place.fill(grid_.function->begin);
  std::memset(frame + frame::kAlways, 0xff, 4);
  const uint64_t window = (uint64_t{warp.cta->rank} << window::kRankShift) + window::kReserved;
  const std::byte* const local = locals_.data() + number * kLanes * program.local_bytes;
  set_lanes(frame, frame::kZero, 0, 0);
  set_lanes(frame, frame::kShared, window + static_begin_, 0);
  set_lanes(frame, frame::kDynamic, window + dynamic_begin_, 0);
  set_lanes(frame, frame::kLocal, reinterpret_cast<uint64_t>(local), program.local_bytes);
  set_lanes(frame, frame::kParameters, reinterpret_cast<uint64_t>(parameters_.data()), 0);
}

/// Begins the next cluster in the slots from this on.
void Launcher::start(uint32_t slot) {
  const Launch& launch = grid_.launch;
  Cta& first = grid_.ctas[slot];
  std::erase_if(grid_.landing, [&](const auto& each) {  // of those that had the slots before
    const std::ptrdiff_t place =
        each.first - arenas_.data() - (ptrdiff_t{slot} << window::kRankShift);
    return place >= 0 && place < ptrdiff_t{launch.cluster} << window::kRankShift;
  });
  for (uint32_t rank = 0; rank < launch.cluster; ++rank) {
    const uint32_t number = next_++;
    Cta& cta = grid_.ctas[slot + rank];
    cta = {};
    cta.grid = &grid_;
    cta.index = slot + rank;
    cta.id = {number % launch.grid[0], number / launch.grid[0] % launch.grid[1],
              number / launch.grid[0] / launch.grid[1]};
    cta.rank = rank;
    cta.cluster = &first;
    cta.arena = arenas_.data() + (size_t{slot} << window::kRankShift);
    cta.threads = threads_;
    // What is read before it is written is a NaN.
    std::memset(cta.arena + (size_t{rank} << window::kRankShift) + window::kReserved, 0xff,
                grid_.shared_bytes - window::kReserved);
    for (uint32_t w = 0; w < warps_; ++w) {
      const size_t place = size_t{slot + rank} * warps_ + w;
      Warp& warp = grid_.warps[place];
      warp = {};
      warp.cta = &cta;
      warp.index = w;
      cta.warps.push_back(&warp);
      begin_warp(warp, place, threads_ - w * kLanes);
    }
  }
  first.cluster_threads = threads_ * launch.cluster;
}

void Launcher::replace_ended() {
  for (uint32_t slot = 0; slot < slots_ && next_ < all_; slot += grid_.launch.cluster) {
    if (grid_.ctas[slot].cluster_threads == 0) {
      start(slot);
    }
  }
}

Status Launcher::failure(std::string fault) { return device_error(std::move(fault) + "."); }

/// Where the first threads are.
std::string Launcher::waits() const {
  std::string text;
  int said = 0;
  for (const Warp& warp : grid_.warps) {
    if (warp.alive == 0 || said == 8) {
      continue;
    }
    const auto lane = static_cast<uint32_t>(__builtin_ctz(warp.alive));
    const bool behind = (warp.blocked >> lane & 1) != 0;  // what it waits at is behind it
    text += (said++ == 0 ? ": " : "; ") +
            place_of(grid_, warp, lane, warp.place[lane] - (behind ? 1 : 0));
  }
  return text;
}

Status Launcher::run(const Limits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  replace_ended();
  for (uint64_t round = 1;; ++round) {
    bool alive = false;
    bool ran = false;
    grid_.freed = false;
    for (Warp& warp : grid_.warps) {
      alive = alive || warp.alive != 0;
      if ((warp.alive & ~warp.blocked & ~warp.parked) == 0) {
        continue;
      }
      ran = true;
      if (!take_turn(warp)) {
        return failure(grid_.fault);
      }
    }
    if (!alive) {
      return {};
    }
    if (!ran && !grid_.freed) {
      return failure("nobody can go on" + waits());
    }
    if (grid_.freed) {
      replace_ended();
    }
    if (round % 64 == 0 && std::chrono::steady_clock::now() - begin > limits.time) {
      return failure("still running after " + std::to_string(limits.time.count()) + " s" + waits());
    }
  }
}

}  // namespace

Step Warp::fault(uint32_t lane, const std::string& what) {
  if (grid->fault.empty()) {
    grid->fault = place_of(*grid, *this, lane, pc) + " " + what;
  }
  return Step::fault;
}

Result<Counts> run(const Module& module, std::string_view kernel, const Launch& launch,
                   std::span<const void* const> arguments, const Limits& limits) {
  const Program& program = module.program();
  const auto found = program.function_by_name.find(std::string(kernel));
  if (found == program.function_by_name.end() || !program.functions[found->second].entry) {
    return device_error(program.name + " has no kernel " + std::string(kernel) + ".");
  }
  const Function& function = program.functions[found->second];
  WEFT_TRY(check_launch(program, function, launch, arguments.size()));
  Launcher launcher(program, function, launch, arguments);
  if (!launcher.has_memory()) {
    return device_error(function.name + ": there is not enough memory to simulate it.");
  }
  WEFT_TRY(launcher.run(limits));
  clock_of_all() += launcher.counts().warp_instructions / product(launch.grid) + 1000;
  return launcher.counts();
}

}  // namespace weft::ptx

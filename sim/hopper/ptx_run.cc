// A launch: its CTAs and warps, and their turns.
#include <sys/mman.h>

#include <algorithm>

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
        case Step::moved:
          together = false;
          break;
        case Step::yield:
          put_down(warp, warp.pc + 1);
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

Status failure(const Grid& grid) { return device_error(grid.fault + "."); }

void describe_waits(const Grid& grid, std::string& text) {
  int said = 0;
  for (const Warp& warp : grid.warps) {
    if (warp.alive == 0 || said == 8) {
      continue;
    }
    const auto lane = static_cast<uint32_t>(__builtin_ctz(warp.alive));
    const bool behind = (warp.blocked >> lane & 1) != 0;  // what it waits at is behind it
    text += (said++ == 0 ? ": " : "; ") +
            place_of(grid, warp, lane, warp.place[lane] - (behind ? 1 : 0));
  }
}

Status run_all(Grid& grid, const Limits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Warp*> running;
  for (Warp& warp : grid.warps) {
    running.push_back(&warp);
  }
  uint64_t rounds = 0;
  while (!running.empty()) {
    bool ran = false;
    grid.freed = false;
    for (Warp* warp : running) {
      if ((warp->alive & ~warp->blocked & ~warp->parked) == 0) {
        continue;
      }
      ran = true;
      if (!take_turn(*warp)) {
        return failure(grid);
      }
    }
    std::erase_if(running, [](const Warp* warp) { return warp->alive == 0; });
    if (!ran && !grid.freed && !running.empty()) {
      grid.fault = "nobody can go on";
      describe_waits(grid, grid.fault);
      return failure(grid);
    }
    if (++rounds % 64 == 0 && std::chrono::steady_clock::now() - begin > limits.time) {
      grid.fault = "still running after " + std::to_string(limits.time.count()) + " s";
      describe_waits(grid, grid.fault);
      return failure(grid);
    }
  }
  return {};
}

void set_lanes(std::byte* frame, uint32_t offset, uint64_t value, uint64_t step) {
  auto* lanes = reinterpret_cast<uint64_t*>(frame + offset);
  for (uint64_t i = 0; i < kLanes; ++i) {
    lanes[i] = value + i * step;
  }
}

void begin_warp(Warp& warp, Grid& grid, std::byte* frame, std::byte* local,
                const std::byte* parameters, uint32_t threads) {
  const Program& program = *grid.program;
  warp.program = &program;
  warp.grid = &grid;
  warp.base = {
      frame, const_cast<std::byte*>(reinterpret_cast<const std::byte*>(program.constants.data()))};
  warp.alive = threads >= kLanes ? ~0u : (1u << threads) - 1;
  warp.place.fill(grid.function->begin);
  std::memset(frame + frame::kAlways, 0xff, 4);
  const uint64_t window = (uint64_t{warp.cta->rank} << window::kRankShift) + window::kReserved;
  set_lanes(frame, frame::kZero, 0, 0);
  set_lanes(frame, frame::kShared, window, 0);
  set_lanes(frame, frame::kDynamic, window + program.shared_bytes, 0);
  set_lanes(frame, frame::kLocal, reinterpret_cast<uint64_t>(local), program.local_bytes);
  set_lanes(frame, frame::kParameters, reinterpret_cast<uint64_t>(parameters), 0);
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

}  // namespace

Step Warp::fault(uint32_t lane, std::string what) {
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
  std::vector<std::byte> parameters(4096 + 16);
  for (size_t i = 0; i < arguments.size(); ++i) {
    parameters.resize(std::max<size_t>(parameters.size(),
                                       function.formals[i].offset + function.formals[i].bytes));
    std::memcpy(parameters.data() + function.formals[i].offset, arguments[i],
                function.formals[i].bytes);
  }
  Grid grid;
  grid.program = &program;
  grid.function = &function;
  grid.launch = launch;
  grid.started = clock_of_all();
  grid.shared_bytes = window::kReserved + program.shared_bytes + launch.shared_bytes;
  const auto ctas = static_cast<uint32_t>(product(launch.grid));
  const auto threads = static_cast<uint32_t>(product(launch.block));
  const uint32_t warps = (threads + kLanes - 1) / kLanes;
  const Pages arenas(size_t{ctas} << window::kRankShift);
  const Pages frames(size_t{ctas} * warps * program.frame_bytes);
  const Pages locals(size_t{ctas} * warps * kLanes * program.local_bytes);
  if (arenas.data() == nullptr || frames.data() == nullptr || locals.data() == nullptr) {
    return device_error(function.name + ": there is not enough memory to simulate " +
                        std::to_string(ctas) + " CTAs.");
  }
  grid.arenas = {arenas.data(), arenas.bytes()};
  grid.blocks = {Range{reinterpret_cast<uintptr_t>(locals.data()), locals.bytes()},
                 Range{reinterpret_cast<uintptr_t>(parameters.data()), parameters.size()},
                 Range{reinterpret_cast<uintptr_t>(program.storage), program.stored}};
  grid.ctas.resize(ctas);
  grid.warps.resize(size_t{ctas} * warps);
  for (uint32_t c = 0; c < ctas; ++c) {
    Cta& cta = grid.ctas[c];
    cta.grid = &grid;
    cta.index = c;
    cta.id = {c % launch.grid[0], c / launch.grid[0] % launch.grid[1],
              c / launch.grid[0] / launch.grid[1]};
    cta.rank = cta.id[0] % launch.cluster;
    cta.cluster = &grid.ctas[c - cta.rank];
    cta.arena = arenas.data() + (size_t{c - cta.rank} << window::kRankShift);
    cta.threads = threads;
    cta.cluster->cluster_threads += threads;
    for (uint32_t w = 0; w < warps; ++w) {
      const size_t number = size_t{c} * warps + w;
      Warp& warp = grid.warps[number];
      warp.cta = &cta;
      warp.index = w;
      cta.warps.push_back(&warp);
      begin_warp(warp, grid, frames.data() + number * program.frame_bytes,
                 locals.data() + number * kLanes * program.local_bytes, parameters.data(),
                 threads - w * kLanes);
    }
  }
  WEFT_TRY(run_all(grid, limits));
  clock_of_all() += grid.counts.warp_instructions / ctas + 1000;
  return grid.counts;
}

}  // namespace weft::ptx

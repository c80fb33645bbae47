// Control flow, barriers and moves: PTX ISA, "Control Flow Instructions", "Parallel Synchronization
// and Communication Instructions: bar, barrier.cluster", "mov", "cvta", special registers.
#include <algorithm>
#include <chrono>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

/// The lanes of `mask` go to a place, those of the group without it behind the instruction.
Step go(Warp& warp, uint32_t mask, uint32_t place) {
  each_lane(warp.active & ~mask, [&](uint32_t i) { warp.place[i] = warp.pc + 1; });
  each_lane(mask, [&](uint32_t i) { warp.place[i] = place; });
  return Step::moved;
}

Step branch(Warp& warp, const Instruction& in, uint32_t mask) {
  if (mask == warp.active) {
    warp.pc = static_cast<uint32_t>(in.immediate);
    return Step::jump;
  }
  return go(warp, mask, static_cast<uint32_t>(in.immediate));
}
Step branch_by_table(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto& table = warp.program->tables[static_cast<size_t>(in.immediate)];
  const uint32_t* index = warp.in<uint32_t>(in.o[0]);
  uint32_t wrong = 0;
  each_lane(mask, [&](uint32_t i) { wrong |= uint32_t{index[i] >= table.size()} << i; });
  if (wrong != 0) {
    return warp.fault(static_cast<uint32_t>(__builtin_ctz(wrong)), "branches beyond its table");
  }
  go(warp, 0, 0);
  each_lane(mask, [&](uint32_t i) { warp.place[i] = table[index[i]]; });
  return Step::moved;
}

void copy_arguments(Warp& warp, const std::vector<CallSite::Copy>& copies, uint32_t mask) {
  const uint64_t* local = warp.in<uint64_t>({frame::kLocal});
  each_lane(mask, [&](uint32_t i) {
    auto* memory = reinterpret_cast<std::byte*>(local[i]);
    for (const CallSite::Copy& copy : copies) {
      std::memmove(memory + copy.to, memory + copy.from, copy.bytes);
    }
  });
}

Step call(Warp& warp, const Instruction& in, uint32_t mask) {
  const CallSite& site = warp.program->calls[static_cast<size_t>(in.immediate)];
  const Function& function = warp.program->functions[site.function];
  if (!function.defined) {
    return warp.fault(static_cast<uint32_t>(__builtin_ctz(mask)),
                      "calls " + function.name + ", which the module does not define");
  }
  copy_arguments(warp, site.before, mask);
  each_lane(mask, [&](uint32_t i) { warp.returns[i].push_back(warp.pc); });
  return go(warp, mask, function.begin);
}

void end_threads(Warp& warp, uint32_t mask) {
  warp.stores.land(mask, CopyGroups::kNone);
  warp.alive &= ~mask;
  warp.parked &= ~mask;
  Cta& cta = *warp.cta;
  const auto ended = static_cast<uint32_t>(__builtin_popcount(mask));
  cta.threads -= ended;
  cta.cluster->cluster_threads -= ended;
  warp.grid->freed = true;
  for (uint32_t b = 0; b < cta.barriers.size(); ++b) {
    if (cta.barriers[b].arrived != 0) {
      try_complete(cta, b);
    }
  }
  try_complete_cluster(*cta.cluster);
}

Step leave(Warp& warp, const Instruction&, uint32_t mask) {
  go(warp, 0, 0);
  end_threads(warp, mask);
  return Step::moved;
}

Step give_back(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t over = 0;
  go(warp, 0, 0);
  each_lane(mask, [&](uint32_t i) {
    if (warp.returns[i].empty()) {
      over |= 1u << i;
      return;
    }
    const uint32_t from = warp.returns[i].back();
    warp.returns[i].pop_back();
    const auto number = static_cast<size_t>(warp.program->code[from].immediate);
    copy_arguments(warp, warp.program->calls[number].after, 1u << i);
    warp.place[i] = from + 1;
  });
  return over != 0 ? leave(warp, in, over) : Step::moved;
}

Step trap(Warp& warp, const Instruction&, uint32_t mask) {
  return warp.fault(static_cast<uint32_t>(__builtin_ctz(mask)), "traps");
}
Step nothing(Warp&, const Instruction&, uint32_t) { return Step::next; }
Step let_others(Warp&, const Instruction&, uint32_t) { return Step::yield; }

// Barriers of the CTA. Threads are counted, each by itself.

uint32_t value_at(const Warp& warp, Slot slot, uint32_t mask) {
  return warp.in<uint32_t>(slot)[__builtin_ctz(mask)];
}

/// Arrives at barrier `number`; false: it does not exist.
bool arrive(Warp& warp, uint32_t number, uint32_t expected, uint32_t mask) {
  if (number >= warp.cta->barriers.size()) {
    warp.fault(static_cast<uint32_t>(__builtin_ctz(mask)),
               "names barrier " + std::to_string(number) + ", of 16");
    return false;
  }
  CtaBarrier& barrier = warp.cta->barriers[number];
  if (barrier.arrived != 0 && barrier.expected != expected) {
    warp.fault(static_cast<uint32_t>(__builtin_ctz(mask)),
               "expects " + std::to_string(expected) + " threads at barrier " +
                   std::to_string(number) + ", where others expect " +
                   std::to_string(barrier.expected));
    return false;
  }
  barrier.expected = expected;
  barrier.arrived += static_cast<uint32_t>(__builtin_popcount(mask));
  return true;
}
void block(Warp& warp, uint32_t number, uint32_t mask) {
  warp.blocked |= mask;
  each_lane(mask, [&](uint32_t i) { warp.barrier[i] = number; });
  go(warp, mask, warp.pc + 1);
}

/// modifier: how many operands.
template <bool kWaits>
Step bar(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t number = value_at(warp, in.o[0], mask);
  const uint32_t expected = in.modifier > 1 ? value_at(warp, in.o[1], mask) : 0;
  if (!arrive(warp, number, expected, mask)) {
    return Step::fault;
  }
  if (kWaits) {
    block(warp, number, mask);
  }
  try_complete(*warp.cta, number);
  return kWaits ? Step::moved : Step::next;
}

Step cluster_arrive(Warp& warp, const Instruction&, uint32_t mask) {
  Cta& first = *warp.cta->cluster;
  if ((warp.cluster_phase & mask) != 0) {
    return warp.fault(static_cast<uint32_t>(__builtin_ctz(mask)),
                      "arrives twice at the cluster's barrier");
  }
  warp.cluster_phase |= mask;
  first.cluster_arrived += static_cast<uint32_t>(__builtin_popcount(mask));
  try_complete_cluster(first);
  return Step::next;
}
Step cluster_wait(Warp& warp, const Instruction&, uint32_t mask) {
  // Who has arrived and is still marked waits for the others.
  const uint32_t waiting = warp.cluster_phase & mask;
  if (waiting == 0) {
    return Step::next;
  }
  block(warp, 16, waiting);
  each_lane(mask & ~waiting, [&](uint32_t i) { warp.place[i] = warp.pc + 1; });
  return Step::moved;
}

// Moves.

template <class S>
S same(S x) {
  return x;
}
/// d = a + the displacement of a symbol.
template <class S>
Step address_of(Warp& warp, const Instruction& in, uint32_t mask) {
  S* d = warp.out<S>(in.o[0]);
  const uint64_t* a = warp.in<uint64_t>(in.o[1]);
  each_lane(mask,
            [&](uint32_t i) { d[i] = static_cast<S>(a[i] + static_cast<uint64_t>(in.immediate)); });
  return Step::next;
}
template <class S>
Step pack(Warp& warp, const Instruction& in, uint32_t mask) {
  // count is the first vector's: of the sources.
  const int n = in.modifier;
  const int bits = static_cast<int>(sizeof(S)) * 8 / n;
  S* d = warp.out<S>(in.o[0]);
  S result[kLanes] = {};
  const S ones = (S{1} << bits) - 1;
  for (int j = 0; j < n; ++j) {
    const uint32_t* a = warp.in<uint32_t>(in.o[1 + j]);
    for (int i = 0; i < kLanes; ++i) {
      result[i] |= (S{a[i]} & ones) << (bits * j);
    }
  }
  each_lane(mask, [&](uint32_t i) { d[i] = result[i]; });
  return Step::next;
}
template <class S>
Step unpack(Warp& warp, const Instruction& in, uint32_t mask) {
  const int n = in.modifier;
  const int bits = static_cast<int>(sizeof(S)) * 8 / n;
  const S ones = (S{1} << bits) - 1;
  S source[kLanes];
  std::memcpy(source, warp.in<S>(in.o[n]), sizeof(source));
  for (int j = 0; j < n; ++j) {
    if (!in.o[j].none()) {
      uint32_t* d = warp.out<uint32_t>(in.o[j]);
      each_lane(mask,
                [&](uint32_t i) { d[i] = static_cast<uint32_t>(source[i] >> (bits * j) & ones); });
    }
  }
  return Step::next;
}
/// b128 and its two halves.
Step pack_wide(Warp& warp, const Instruction& in, uint32_t mask) {
  auto* d = warp.out<std::array<uint64_t, 2>>(in.o[0]);
  const uint64_t* low = warp.in<uint64_t>(in.o[1]);
  const uint64_t* high = warp.in<uint64_t>(in.o[2]);
  each_lane(mask, [&](uint32_t i) { d[i] = {low[i], high[i]}; });
  return Step::next;
}
Step unpack_wide(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto* a = warp.in<std::array<uint64_t, 2>>(in.o[2]);
  for (int j = 0; j < 2; ++j) {
    if (!in.o[j].none()) {
      uint64_t* d = warp.out<uint64_t>(in.o[j]);
      each_lane(mask, [&](uint32_t i) { d[i] = a[i][static_cast<size_t>(j)]; });
    }
  }
  return Step::next;
}

Found find_move(const Statement& s) {
  if (s.words.size() != 2 || s.operands.size() != 2) {
    return {};
  }
  const bool wide = s.words[1].ends_with("64");
  const Operand& to = s.operands[0];
  const Operand& from = s.operands[1];
  if (s.words[1] == "b128") {
    const bool packs = from.kind == Operand::Kind::vector;
    return Form{.run = packs ? pack_wide : unpack_wide, .layout = packs ? "Qd" : "Dq"};
  }
  if (from.kind == Operand::Kind::special) {
    return Form{.run = special_register(from.text), .layout = wide ? "D." : "W."};
  }
  if (from.kind == Operand::Kind::symbol) {
    return Form{.run = wide ? address_of<uint64_t> : address_of<uint32_t>,
                .layout = wide ? "Ds" : "Ws"};
  }
  if (from.kind == Operand::Kind::vector) {
    return Form{.run = wide ? pack<uint64_t> : pack<uint32_t>,
                .layout = wide ? "Dw" : "Ww",
                .modifier = static_cast<uint32_t>(from.elements.size())};
  }
  if (to.kind == Operand::Kind::vector) {
    return Form{.run = wide ? unpack<uint64_t> : unpack<uint32_t>,
                .layout = wide ? "Wd" : "Ww",
                .modifier = static_cast<uint32_t>(to.elements.size())};
  }
  return wide ? Form{.run = lanewise<same<uint64_t>, uint64_t, uint64_t>, .layout = "Dd"}
              : Form{.run = lanewise<same<uint32_t>, uint32_t, uint32_t>, .layout = "Ww"};
}

/// Generic addresses are those of their space, but for shared memory.
template <int kSign>
Step convert_shared(Warp& warp, const Instruction& in, uint32_t mask) {
  const auto arena = reinterpret_cast<uint64_t>(warp.cta->arena);
  uint64_t* d = warp.out<uint64_t>(in.o[0]);
  const uint64_t* a = warp.in<uint64_t>(in.o[1]);
  each_lane(mask, [&](uint32_t i) {
    d[i] = a[i] + static_cast<uint64_t>(in.immediate) + (kSign > 0 ? arena : 0 - arena);
  });
  return Step::next;
}
Found find_cvta(const Statement& s) {
  if (s.words.back() != "u64") {
    return {};
  }
  const bool shared = s.has("shared") || s.has("shared::cta") || s.has("shared::cluster");
  return Form{.run = !shared       ? address_of<uint64_t>
                     : s.has("to") ? convert_shared<-1>
                                   : convert_shared<1>,
              .layout = "Ds"};
}

/// A barrier of a warp's threads, wherever they stand.
Step warp_barrier(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t* members = warp.in<uint32_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) {
    warp.members[i] = members[i];
    warp.place[i] = warp.pc;
  });
  each_lane(warp.active & ~mask, [&](uint32_t i) { warp.place[i] = warp.pc + 1; });
  warp.at_warp_barrier |= mask;
  warp.parked |= mask;
  uint32_t free = 0;
  each_lane(mask, [&](uint32_t i) {
    const uint32_t wanted = warp.members[i] & warp.alive;
    uint32_t there = 0;
    each_lane(warp.at_warp_barrier,
              [&](uint32_t j) { there |= uint32_t{warp.members[j] == warp.members[i]} << j; });
    if ((wanted & ~there) == 0) {
      free |= wanted | 1u << i;
    }
  });
  warp.at_warp_barrier &= ~free;
  warp.parked &= ~free;
  each_lane(free, [&](uint32_t i) { ++warp.place[i]; });
  return Step::moved;
}

const std::unordered_map<std::string_view, Form>& control_table() {
  static const std::unordered_map<std::string_view, Form> kTable = {
      {"bra", {.run = branch, .layout = "l", .flow = Flow::branch}},
      {"bra.uni", {.run = branch, .layout = "l", .flow = Flow::branch}},
      {"brx.idx", {.run = branch_by_table, .layout = "wl", .flow = Flow::table}},
      {"brx.idx.uni", {.run = branch_by_table, .layout = "wl", .flow = Flow::table}},
      {"call", {.run = call, .layout = "l"}},
      {"call.uni", {.run = call, .layout = "l"}},
      {"ret", {.run = give_back, .flow = Flow::end}},
      {"ret.uni", {.run = give_back, .flow = Flow::end}},
      {"exit", {.run = leave, .flow = Flow::end}},
      {"trap", {.run = trap, .flow = Flow::end}},
      {"brkpt", {.run = trap, .flow = Flow::end}},
      {"nanosleep.u32", {.run = let_others, .layout = "w"}},
      {"bar.warp.sync", {.run = warp_barrier, .layout = "w"}},
  };
  return kTable;
}

bool one_of(std::string_view word, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

Found find_bar(const Statement& s) {
  const std::string_view op = s.words[0];
  if (op == "barrier" && s.has("cluster")) {
    return s.has("arrive") ? Form{.run = cluster_arrive} : Form{.run = cluster_wait};
  }
  if (op != "bar" && op != "barrier") {
    return {};
  }
  const auto count = static_cast<uint32_t>(s.operands.size());
  if (s.has("sync")) {
    return Form{.run = bar<true>, .layout = "w?w", .modifier = count};
  }
  if (s.has("arrive")) {
    return Form{.run = bar<false>, .layout = "ww", .modifier = count};
  }
  return {};
}

}  // namespace

void try_complete(Cta& cta, uint32_t number) {
  CtaBarrier& barrier = cta.barriers[number];
  const uint32_t expected = barrier.expected != 0 ? barrier.expected : cta.threads;
  if (barrier.arrived < expected || barrier.arrived == 0) {
    return;
  }
  barrier = {};
  cta.grid->freed = true;
  for (Warp* warp : cta.warps) {
    each_lane(warp->blocked, [&](uint32_t i) {
      if (warp->barrier[i] == number) {
        warp->blocked &= ~(1u << i);
      }
    });
  }
}

void try_complete_cluster(Cta& first) {
  if (first.cluster_arrived == 0 || first.cluster_arrived < first.cluster_threads) {
    return;
  }
  first.cluster_arrived = 0;
  first.grid->freed = true;
  for (uint32_t c = 0; c < first.grid->launch.cluster; ++c) {
    for (Warp* warp : (&first)[c].warps) {
      warp->cluster_phase = 0;
      each_lane(warp->blocked, [&](uint32_t i) {
        if (warp->barrier[i] == 16) {
          warp->blocked &= ~(1u << i);
        }
      });
    }
  }
}

Found find_control(const Statement& statement) {
  const std::string_view op = statement.words[0];
  if (op == "mov") {
    return find_move(statement);
  }
  if (op == "cvta") {
    return find_cvta(statement);
  }
  const auto found = control_table().find(statement.opcode);
  if (found != control_table().end()) {
    return found->second;
  }
  // What orders memory or moves registers between warps has nothing to do here: accesses happen in
  // the order of execution.
  if (one_of(op, {"membar", "fence", "griddepcontrol", "setmaxnreg", "pmevent", "prefetch",
                  "prefetchu", "discard", "applypriority"}) ||
      statement.opcode.starts_with("cp.async.bulk.prefetch")) {
    return Form{.run = nothing, .layout = "*"};
  }
  return find_bar(statement);
}

}  // namespace weft::ptx

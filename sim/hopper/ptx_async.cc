// mbarriers, and copies that run beside the threads: PTX ISA, "mbarrier", "cp.async",
// "cp.async.bulk", "st.async", "mapa". A copy lands with its instruction or when it is waited for
// (Landing), so that a wait that is missing, or one that comes too late, shows as a wrong number.
#include <algorithm>

#include "sim/hopper/ptx_async.h"
#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {
namespace {

/// An mbarrier's 8 bytes, whose layout is the implementation's: arrivals that a phase expects and
/// those that are pending (20 bits each), bytes (22, with sign), the phase's parity.
struct Phases {
  int64_t expected = 0, pending = 0, bytes = 0;
  bool parity = false;

  static Phases of(uint64_t word) {
    return {static_cast<int64_t>(word & 0xfffff), static_cast<int64_t>(word >> 20 & 0xfffff),
            static_cast<int64_t>(word << 2) >> 42, word >> 63 != 0};
  }
  uint64_t word() const {
    return static_cast<uint64_t>(expected) | static_cast<uint64_t>(pending) << 20 |
           (static_cast<uint64_t>(bytes) & 0x3fffff) << 40 | uint64_t{parity} << 63;
  }
  void end_phase_if_complete() {
    if (pending == 0 && bytes == 0) {
      parity = !parity;
      pending = expected;
    }
  }
};
constexpr int64_t kMostArrivals = (1 << 20) - 1;

/// Changes an mbarrier; false: what is wrong has been said. `old`: its word before.
template <class F>
bool change(Warp& warp, uint32_t lane, std::byte* place, uint64_t* old, F&& f) {
  uint64_t word;
  std::memcpy(&word, place, 8);
  if (old != nullptr) {
    *old = word;
  }
  Phases phases = Phases::of(word);
  if (phases.expected == 0) {
    warp.fault(lane, "uses an mbarrier that is not initialised");
    return false;
  }
  if (const char* wrong = f(phases)) {
    warp.fault(lane, wrong);
    return false;
  }
  if (phases.bytes > kMostArrivals || phases.bytes < -kMostArrivals) {
    warp.fault(lane, "counts more bytes at an mbarrier than 2^20 - 1");
    return false;
  }
  phases.end_phase_if_complete();
  word = phases.word();
  std::memcpy(place, &word, 8);
  warp.grid->freed = true;
  return true;
}
const char* arrive_at(Phases& phases, int64_t arrivals) {
  if (arrivals < 1 || arrivals > phases.pending) {
    return "arrives at an mbarrier more often than it expects";
  }
  phases.pending -= arrivals;
  return nullptr;
}
}  // namespace

bool CopyGroups::land(uint32_t lanes, int64_t left) {
  bool good = true;
  std::erase_if(copies, [&](const Underway& copy) {
    if ((lanes >> copy.lane & 1) == 0 || copy.group + left >= committed[copy.lane]) {
      return false;
    }
    good = good && copy.land();
    return true;
  });
  return good;
}

bool land_at(Grid& grid, std::byte* barrier, std::function<bool()> land) {
  if (!grid.late()) {
    return land();
  }
  grid.landing[barrier].push_back(std::move(land));
  grid.freed = true;  // whoever waits at the barrier can go on
  return true;
}

bool complete_bytes(Warp& warp, uint32_t lane, std::byte* barrier, int64_t bytes) {
  return change(warp, lane, barrier, nullptr, [&](Phases& phases) -> const char* {
    phases.bytes -= bytes;
    return nullptr;
  });
}

namespace {

bool locate_barrier(Warp& warp, const Instruction& in, uint32_t mask, int operand, int address,
                    Places& places) {
  return locate(warp, mask, Space::shared, in.o[operand], (in.wide >> address & 1) != 0,
                address == 0 ? in.immediate : 0, 8, 8, places);
}

Step initialise(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate_barrier(warp, in, mask, 0, 0, places)) {
    return Step::fault;
  }
  const uint32_t* count = warp.in<uint32_t>(in.o[1]);
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    if (count[i] < 1 || count[i] > kMostArrivals) {
      warp.fault(i, "initialises an mbarrier for " + std::to_string(count[i]) + " arrivals");
      good = false;
      return;
    }
    const Phases phases{count[i], count[i], 0, false};
    const uint64_t word = phases.word();
    std::memcpy(places[i], &word, 8);
  });
  return good ? Step::next : Step::fault;
}
Step invalidate(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate_barrier(warp, in, mask, 0, 0, places)) {
    return Step::fault;
  }
  each_lane(mask, [&](uint32_t i) { std::memset(places[i], 0, 8); });
  return Step::next;
}

enum class Arrival : uint8_t { plain, expecting, dropping };
/// modifier: whether there is a state to return (1), a count (2).
template <Arrival kWhat>
Step arrive(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  const bool returns = (in.modifier & 1) != 0;
  const int address = returns ? 1 : 0;
  if (!locate_barrier(warp, in, mask, address, 0, places)) {
    return Step::fault;
  }
  const uint32_t* count = (in.modifier & 2) != 0 ? warp.in<uint32_t>(in.o[address + 1]) : nullptr;
  uint64_t* state = returns && !in.o[0].none() ? warp.out<uint64_t>(in.o[0]) : nullptr;
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    uint64_t old = 0;
    good = good && change(warp, i, places[i], &old, [&](Phases& phases) {
             int64_t arrivals = 1;
             if (kWhat == Arrival::expecting) {
               phases.bytes += count[i];
             } else if (count != nullptr) {
               arrivals = count[i];
             }
             if (kWhat == Arrival::dropping) {
               phases.expected -= arrivals;
             }
             return arrive_at(phases, arrivals);
           });
    if (state != nullptr) {
      state[i] = old;
    }
  });
  return good ? Step::next : Step::fault;
}
/// kSign 1: expect_tx, -1: complete_tx.
template <int kSign>
Step count_bytes(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate_barrier(warp, in, mask, 0, 0, places)) {
    return Step::fault;
  }
  const uint32_t* bytes = warp.in<uint32_t>(in.o[1]);
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    good = good && complete_bytes(warp, i, places[i], -kSign * int64_t{bytes[i]});
  });
  return good ? Step::next : Step::fault;
}

/// Copies that an mbarrier counts, before somebody looks at it.
bool land_those_of(Grid& grid, std::byte* barrier) {
  const auto found = grid.landing.find(barrier);
  if (found == grid.landing.end()) {
    return true;
  }
  const auto copies = std::move(found->second);
  grid.landing.erase(found);
  return std::all_of(copies.begin(), copies.end(), [](const auto& land) { return land(); });
}

/// Whether a phase has ended: of a parity, or of the state that an arrival returned.
template <bool kParity, bool kTry>
Step look(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate_barrier(warp, in, mask, 1, 0, places)) {
    return Step::fault;
  }
  uint32_t done = 0;
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    good = good && land_those_of(*warp.grid, places[i]);
    uint64_t word;
    std::memcpy(&word, places[i], 8);
    const Phases phases = Phases::of(word);
    if (phases.expected == 0) {
      warp.fault(i, "waits at an mbarrier that is not initialised");
      good = false;
      return;
    }
    const bool parity = kParity ? (warp.in<uint32_t>(in.o[2])[i] & 1) != 0
                                : Phases::of(warp.in<uint64_t>(in.o[2])[i]).parity;
    done |= uint32_t{phases.parity != parity} << i;
  });
  if (!good) {
    return Step::fault;
  }
  warp.set_predicate(in.o[0], done, mask);
  return done != mask ? Step::yield : Step::next;
}

bool copy_checked(Warp& warp, uint32_t lane, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes % 16 != 0) {
    warp.fault(lane, "copies " + std::to_string(bytes) + " bytes in bulk, no multiple of 16");
    return false;
  }
  std::memcpy(to, from, bytes);
  return true;
}

/// cp.async: o: to, from, bytes, bytes that are read (modifier 1).
Step copy_small(Warp& warp, const Instruction& in, uint32_t mask) {
  Places to;
  Places from;
  const uint32_t bytes = warp.in<uint32_t>(in.o[2])[0];
  const uint32_t* read = in.modifier == 1 ? warp.in<uint32_t>(in.o[3]) : nullptr;
  uint32_t reading = 0;
  each_lane(mask, [&](uint32_t i) { reading |= uint32_t{read == nullptr || read[i] != 0} << i; });
  if (!locate(warp, mask, Space::shared, in.o[0], (in.wide & 1) != 0, in.immediate, bytes, bytes,
              to) ||
      !locate(warp, reading, Space::generic, in.o[1], (in.wide & 2) != 0, in.second_displacement,
              bytes, bytes, from)) {
    return Step::fault;
  }
  const bool late = warp.grid->late();
  each_lane(mask, [&](uint32_t i) {
    const size_t n = read == nullptr ? bytes : std::min(read[i], bytes);
    const auto land = [target = to[i], source = from[i], n, bytes] {
      if (n != 0) {
        std::memcpy(target, source, n);
      }
      std::memset(target + n, 0, bytes - n);
      return true;
    };
    warp.copies.add(late, i, land);
  });
  return Step::next;
}

// Bulk copies: lanes one by one, as each has a size of its own.

bool locate_one(Warp& warp, uint32_t lane, Space space, const Instruction& in, int operand,
                int address, size_t bytes, size_t alignment, std::byte*& place) {
  Places places;
  const int64_t displacement = address == 0   ? in.immediate
                               : address == 1 ? in.second_displacement
                                              : 0;
  if (!locate(warp, 1u << lane, space, in.o[operand], (in.wide >> address & 1) != 0, displacement,
              bytes, alignment, places)) {
    return false;
  }
  place = places[lane];
  return true;
}

/// To shared memory, with bytes counted at an mbarrier: o: to, from, bytes, barrier. flags: 1, from
/// shared memory; modifier 1: to the CTAs of a mask (o[4]).
Step copy_in(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t* sizes = warp.in<uint32_t>(in.o[2]);
  const Space source = (in.flags & 1) != 0 ? Space::shared : Space::generic;
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    std::byte* to = nullptr;
    std::byte* from = nullptr;
    std::byte* barrier = nullptr;
    good = good && locate_one(warp, i, Space::shared, in, 0, 0, sizes[i], 16, to) &&
           locate_one(warp, i, source, in, 1, 1, sizes[i], 16, from) &&
           locate_one(warp, i, Space::shared, in, 3, 2, 8, 8, barrier);
    if (!good) {
      return;
    }
    const auto land = [&warp, i, from, size = sizes[i]](std::byte* target, std::byte* counter) {
      return [&warp, i, from, size, target, counter] {
        return copy_checked(warp, i, target, from, size) && complete_bytes(warp, i, counter, size);
      };
    };
    if (in.modifier == 0) {
      good = land_at(*warp.grid, barrier, land(to, barrier));
      return;
    }
    const auto size = std::ptrdiff_t{1} << window::kRankShift;
    uint32_t ctas = warp.in<uint32_t>(in.o[4])[i] & 0xffff;
    ctas &= (1u << warp.grid->launch.cluster) - 1;
    each_lane(ctas, [&](uint32_t rank) {
      const std::ptrdiff_t there = (std::ptrdiff_t{rank} - warp.cta->rank) * size;
      good = good && land_at(*warp.grid, barrier + there, land(to + there, barrier + there));
    });
  });
  return good ? Step::next : Step::fault;
}
/// From shared memory: o: to, from, bytes.
Step copy_out(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t* sizes = warp.in<uint32_t>(in.o[2]);
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    std::byte* to = nullptr;
    std::byte* from = nullptr;
    good = good && locate_one(warp, i, Space::generic, in, 0, 0, sizes[i], 16, to) &&
           locate_one(warp, i, Space::shared, in, 1, 1, sizes[i], 16, from);
    if (!good) {
      return;
    }
    good = warp.stores.add(warp.grid->late(), i, [&warp, i, to, from, size = sizes[i]] {
      return copy_checked(warp, i, to, from, size);
    });
  });
  return good ? Step::next : Step::fault;
}

/// st.async: o: to, elements (modifier of them), barrier.
template <class S>
Step store_counted(Warp& warp, const Instruction& in, uint32_t mask) {
  Places to;
  Places barrier;
  const size_t bytes = sizeof(S) * in.modifier;
  if (!locate(warp, mask, Space::shared, in.o[0], (in.wide & 1) != 0, in.immediate, bytes, bytes,
              to) ||
      !locate(warp, mask, Space::shared, in.o[1 + in.modifier], (in.wide & 2) != 0,
              in.second_displacement, 8, 8, barrier)) {
    return Step::fault;
  }
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    std::array<S, 4> elements{};
    for (uint32_t e = 0; e < in.modifier; ++e) {
      elements[e] = warp.in<S>(in.o[1 + e])[i];
    }
    good = good && land_at(*warp.grid, barrier[i],
                           [&warp, i, elements, bytes, target = to[i], counter = barrier[i]] {
                             std::memcpy(target, elements.data(), bytes);
                             return complete_bytes(warp, i, counter, static_cast<int64_t>(bytes));
                           });
  });
  return good ? Step::next : Step::fault;
}

/// An address of the window as another CTA's of the cluster.
template <class S>
Step map_address(Warp& warp, const Instruction& in, uint32_t mask) {
  S* d = warp.out<S>(in.o[0]);
  const S* a = warp.in<S>(in.o[1]);
  const uint32_t* rank = warp.in<uint32_t>(in.o[2]);
  const auto arena = sizeof(S) == 8 ? reinterpret_cast<uint64_t>(warp.cta->arena) : 0;
  uint32_t wrong = 0;
  each_lane(mask, [&](uint32_t i) {
    wrong |= uint32_t{rank[i] >= warp.grid->launch.cluster} << i;
    const uint64_t place = (a[i] - arena) & ((1u << window::kRankShift) - 1);
    d[i] = static_cast<S>(arena + place + (uint64_t{rank[i]} << window::kRankShift));
  });
  return wrong == 0 ? Step::next
                    : warp.fault(static_cast<uint32_t>(__builtin_ctz(wrong)),
                                 "maps an address to a CTA that the cluster does not have");
}

Step no_policy(Warp& warp, const Instruction& in, uint32_t mask) {
  uint64_t* d = warp.out<uint64_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { d[i] = 0; });
  return Step::next;
}
/// kGroups: &Warp::copies or &Warp::stores.
template <CopyGroups Warp::*kGroups>
Step commit(Warp& warp, const Instruction& /*in*/, uint32_t mask) {
  each_lane(mask, [&](uint32_t i) { ++(warp.*kGroups).committed[i]; });
  return Step::next;
}
/// o: how many groups may be under way still.
template <CopyGroups Warp::*kGroups>
Step wait(Warp& warp, const Instruction& in, uint32_t mask) {
  const int64_t left = warp.in<uint32_t>(in.o[0])[0];
  return (warp.*kGroups).land(mask, left) ? Step::next : Step::fault;
}
Step wait_all(Warp& warp, const Instruction& /*in*/, uint32_t mask) {
  return warp.copies.land(mask, CopyGroups::kNone) ? Step::next : Step::fault;
}
/// cp.async.mbarrier.arrive.noinc.
Step arrive_landed(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate_barrier(warp, in, mask, 0, 0, places)) {
    return Step::fault;
  }
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    good = good && warp.copies.land(1u << i, CopyGroups::kNone) &&
           change(warp, i, places[i], nullptr, [](Phases& phases) { return arrive_at(phases, 1); });
  });
  return good ? Step::next : Step::fault;
}

Found find_barrier(const Statement& s) {
  const std::string_view what = s.words.size() > 1 ? s.words[1] : "";
  if (what == "init") {
    return Form{.run = initialise, .layout = "aw"};
  }
  if (what == "inval") {
    return Form{.run = invalidate, .layout = "a"};
  }
  if (what == "expect_tx") {
    return Form{.run = count_bytes<1>, .layout = "aw"};
  }
  if (what == "complete_tx") {
    return Form{.run = count_bytes<-1>, .layout = "aw"};
  }
  if (what == "arrive" || what == "arrive_drop") {
    if (s.operands.empty() || s.has("noComplete")) {
      return {};
    }
    const bool returns = !s.operands[0].address;
    const bool counts = s.operands.size() == (returns ? 3u : 2u);
    Form form{.run = s.has("expect_tx")      ? arrive<Arrival::expecting>
                     : what == "arrive_drop" ? arrive<Arrival::dropping>
                                             : arrive<Arrival::plain>,
              .layout = returns ? "Da?w" : "a?w",
              .modifier = (returns ? 1u : 0u) | (counts ? 2u : 0u)};
    return s.has("expect_tx") && !counts ? Found() : Found(form);
  }
  const bool parity = s.has("parity");
  if (what == "test_wait") {
    return Form{.run = parity ? look<true, false> : look<false, false>,
                .layout = parity ? "Paw" : "Pad"};
  }
  if (what == "try_wait") {
    return Form{.run = parity ? look<true, true> : look<false, true>,
                .layout = parity ? "Paw?w" : "Pad?w"};
  }
  return {};
}

Found find_bulk(const Statement& s) {
  if (s.has("commit_group")) {
    return Form{.run = commit<&Warp::stores>, .layout = ""};
  }
  if (s.has("wait_group")) {
    return Form{.run = wait<&Warp::stores>, .layout = "w"};
  }
  if (s.has("tensor") || s.has("prefetch") || s.operands.size() < 3) {
    return {};
  }
  const bool multicast = s.has("multicast::cluster");
  // "cp.async.bulk", then where to and where from.
  if (s.has("mbarrier::complete_tx::bytes")) {
    const bool from_shared = s.words[4] == "shared::cta";
    return Form{.run = copy_in,
                .layout = multicast ? "aawaw?d" : "aawa?d",
                .modifier = multicast ? 1u : 0u,
                .flags = static_cast<uint8_t>(from_shared ? 1 : 0)};
  }
  return s.words[3] == "global" ? Found(Form{.run = copy_out, .layout = "aaw?d"}) : Found();
}

Found find_copy(const Statement& s) {
  if (s.words.size() < 2 || s.words[1] != "async") {
    return {};
  }
  if (s.has("bulk")) {
    return find_bulk(s);
  }
  if (s.has("commit_group")) {
    return Form{.run = commit<&Warp::copies>, .layout = ""};
  }
  if (s.has("wait_group")) {
    return Form{.run = wait<&Warp::copies>, .layout = "w"};
  }
  if (s.has("wait_all")) {
    return Form{.run = wait_all, .layout = ""};
  }
  if (s.has("mbarrier")) {
    return s.has("noinc") ? Found(Form{.run = arrive_landed, .layout = "a"}) : Found();
  }
  const bool hint = s.has("L2::cache_hint");
  const size_t sizes = s.operands.size() - (hint ? 1 : 0);
  return sizes == 4 ? Form{.run = copy_small, .layout = "aaww?d", .modifier = 1}
                    : Form{.run = copy_small, .layout = "aaw?d"};
}

}  // namespace

Found find_async(const Statement& statement) {
  const std::string_view op = statement.words[0];
  if (op == "mbarrier") {
    return find_barrier(statement);
  }
  if (op == "cp") {
    return find_copy(statement);
  }
  if (op == "createpolicy") {
    return Form{.run = no_policy, .layout = "D*"};
  }
  if (op == "mapa") {
    return statement.words.back() == "u64" ? Form{.run = map_address<uint64_t>, .layout = "Ddw"}
                                           : Form{.run = map_address<uint32_t>, .layout = "Www"};
  }
  if (op == "st" && statement.has("async") && statement.operands.size() == 3) {
    const Operand& value = statement.operands[1];
    const bool wide = statement.words.back().ends_with("64");
    return Form{.run = wide ? store_counted<uint64_t> : store_counted<uint32_t>,
                .layout = wide ? "ada" : "awa",
                .modifier = value.kind == Operand::Kind::vector
                                ? static_cast<uint32_t>(value.elements.size())
                                : 1};
  }
  return {};
}

}  // namespace weft::ptx

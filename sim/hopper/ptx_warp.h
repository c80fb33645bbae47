// What runs: a grid of CTAs, their warps and threads, and the memory that they see.
#pragma once

#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/hopper/ptx_program.h"

namespace weft::ptx {

struct Cta;
struct Grid;

/// bar.sync and its kin: who has arrived, in threads.
struct CtaBarrier {
  uint32_t arrived = 0;
  uint32_t expected = 0;  ///< 0: all threads of the CTA that have not ended
  uint32_t reduced = 0;   ///< bar.red: popc, or how many were true
};

/// What a lane has asked for and nobody has waited for yet; `land` does it (false: what is wrong
/// has been said).
struct Underway {
  uint32_t lane = 0;
  uint32_t group = 0;  ///< of the lane's: how many were committed before
  std::function<bool()> land;
};
/// cp.async, or cp.async.bulk from shared memory, with their groups.
struct CopyGroups {
  std::vector<Underway> copies;  ///< in the order in which they were asked for
  std::array<uint32_t, kLanes> committed{};

  /// One that lands now or late.
  bool add(bool late, uint32_t lane, std::function<bool()> land) {
    if (!late) {
      return land();
    }
    copies.push_back({lane, committed[lane], std::move(land)});
    return true;
  }
  /// Lands those of lanes but for the latest `left` groups that they have committed, and for what
  /// they have not committed; kNone: all.
  bool land(uint32_t lanes, int64_t left);
  static constexpr int64_t kNone = -1;
};

/// A product that a warp has asked for and not waited for: `read` gives a number of its operands in
/// shared memory, which was `mark`.
struct Product {
  uint32_t group = 0;  ///< how many were committed before
  uint64_t mark = 0;
  std::function<uint64_t()> read;
};

struct Warp {
  const Program* program = nullptr;
  std::array<std::byte*, 2> base{};  ///< frame; constants
  Cta* cta = nullptr;
  Grid* grid = nullptr;
  uint32_t index = 0;    ///< in its CTA
  uint32_t alive = 0;    ///< lanes that have not ended
  uint32_t blocked = 0;  ///< at a barrier of the CTA or the cluster
  uint32_t parked = 0;   ///< at an instruction that needs other lanes of the warp
  uint32_t yielded = 0;  ///< looked in vain; others of the warp first
  uint32_t at_warp_barrier = 0;
  uint32_t polls = 0;           ///< in this turn
  uint32_t carry = 0;           ///< CC.CF
  uint32_t products = 0;        ///< of its warpgroup that it has had its part in
  uint32_t product_groups = 0;  ///< committed
  std::vector<Product> underway;
  uint32_t pc = 0;  ///< of the lanes that run
  uint32_t active = 0;
  std::array<uint32_t, kLanes> place{};  ///< of the lanes that do not
  std::array<uint32_t, kLanes> members{};
  std::array<std::vector<uint32_t>, kLanes> returns;
  uint32_t cluster_phase = 0;  ///< barrier.cluster: lanes that have arrived and not waited
  CopyGroups copies;           ///< to shared memory
  CopyGroups stores;           ///< in bulk from there
  std::array<uint32_t, kLanes> barrier{};  ///< that blocks the lane: its number; 16: the cluster's

  template <class S>
  const S* in(Slot slot) const {
    return reinterpret_cast<const S*>(base[slot.offset >> 31] + (slot.offset & ~Slot::kConstant));
  }
  template <class S>
  S* out(Slot slot) {
    return reinterpret_cast<S*>(base[0] + slot.offset);
  }
  uint32_t predicate(Slot slot) const { return *in<uint32_t>(slot); }
  void set_predicate(Slot slot, uint32_t bits, uint32_t mask) {
    if (!slot.none()) {
      uint32_t& p = *out<uint32_t>(slot);
      p = (p & ~mask) | (bits & mask);
    }
  }
  /// Stops the launch: what is wrong, of this instruction and the lane.
  Step fault(uint32_t lane, const std::string& what);
};

struct Cta {
  Grid* grid = nullptr;
  uint32_t index = 0;
  std::array<uint32_t, 3> id{};
  uint32_t rank = 0;           ///< in its cluster
  std::byte* arena = nullptr;  ///< the cluster's: the generic address of window 0
  std::vector<Warp*> warps;
  uint32_t threads = 0;  ///< that have not ended
  std::array<CtaBarrier, 16> barriers;
  Cta* cluster = nullptr;        ///< its first CTA
  uint32_t cluster_arrived = 0;  ///< of the first: threads at barrier.cluster
  uint32_t cluster_threads = 0;  ///< of the first: threads of the cluster that have not ended
  uint32_t cluster_rounds = 0;   ///< of the first: how often it was complete
};

/// Bytes that a kernel may touch.
struct Range {
  uintptr_t begin = 0;
  size_t bytes = 0;

  bool holds(uintptr_t address, size_t wanted) const {
    return address - begin < bytes && wanted <= bytes - (address - begin);
  }
};

struct Grid {
  const Program* program = nullptr;
  const Function* function = nullptr;
  Launch launch;
  std::vector<Cta> ctas;
  std::vector<Warp> warps;
  std::span<std::byte> arenas;    ///< shared memory of all clusters
  size_t arena_bytes = 0;         ///< of a cluster
  uint32_t shared_bytes = 0;      ///< of a CTA, the reserved ones with it
  std::array<Range, 3> blocks{};  ///< local memory of all threads, parameters, variables
  Counts counts;
  uint64_t started = 0;  ///< the clock when the launch began
  bool freed = false;    ///< a barrier was completed, a thread has ended
  /// Copies that an mbarrier counts: they land when somebody looks at it.
  std::unordered_map<std::byte*, std::vector<std::function<bool()>>> landing;
  uint64_t chance = 1;
  std::string fault;  ///< why the launch ends
  uint32_t fault_pc = 0;

  /// Whether a copy is to land late.
  bool late() {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return launch.copies == Landing::late ||
           (launch.copies == Landing::either && chance >> 63 != 0);
  }
  /// Whether the launch may touch so many bytes at a generic address.
  bool known(uintptr_t address, size_t bytes) const;
};

/// The host address of `bytes` at a place of the shared window; null: out of bounds.
inline std::byte* shared_at(const Warp& warp, uint64_t address, size_t bytes) {
  const Cta& cta = *warp.cta;
  const uint64_t place = address & ((1u << window::kRankShift) - 1);
  const Grid& grid = *warp.grid;
  if (place < window::kReserved || place + bytes > grid.shared_bytes ||
      (address >> window::kRankShift) >= grid.launch.cluster) {
    return nullptr;
  }
  return cta.arena + address;
}

/// The host addresses that lanes of a mask name, of `bytes` each. False: one is out of bounds or
/// not aligned, which has been said.
enum class Space : uint8_t { generic, shared };
using Places = std::array<std::byte*, kLanes>;
bool locate(Warp& warp, uint32_t mask, Space space, Slot base, bool wide, int64_t displacement,
            size_t bytes, size_t alignment, Places& places);

/// Whether the lanes of `members` have come to the same instruction as those of `mask`; those that
/// have are to wait otherwise (Step::moved has been prepared).
bool together(Warp& warp, uint32_t members, uint32_t mask);

/// A barrier of the CTA may be complete: sets free who waits.
void try_complete(Cta& cta, uint32_t barrier);
void try_complete_cluster(Cta& first);

template <class S, class V>
V value_of(S bits) {
  if constexpr (sizeof(S) == sizeof(V)) {
    V value;
    std::memcpy(&value, &bits, sizeof(V));
    return value;
  } else {
    return static_cast<V>(bits);
  }
}

/// Does something for each lane of a mask.
template <class F>
inline void each_lane(uint32_t mask, F&& f) {
  for (; mask != 0; mask &= mask - 1) {
    f(static_cast<uint32_t>(__builtin_ctz(mask)));
  }
}

}  // namespace weft::ptx

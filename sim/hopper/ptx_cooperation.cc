// What a warp's threads do together: PTX ISA, "shfl.sync", "vote.sync", "match.sync", "redux.sync",
// "activemask", "elect.sync"; and the special registers.
#include <algorithm>
#include <bit>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_warp.h"

namespace weft::ptx {
namespace {

/// The lanes that those of `mask` want beside them.
uint32_t members_of(const Warp& warp, Slot slot, uint32_t mask) {
  const uint32_t* members = warp.in<uint32_t>(slot);
  uint32_t all = 0;
  each_lane(mask, [&](uint32_t i) { all |= members[i]; });
  return all;
}

enum class Shuffle : uint8_t { up, down, butterfly, index };
template <Shuffle kMode>
Step shuffle(Warp& warp, const Instruction& in, uint32_t mask) {
  const Slot* o = in.o + in.count;
  if (!together(warp, members_of(warp, o[3], mask), mask)) {
    return Step::moved;
  }
  uint32_t source[kLanes];
  std::memcpy(source, warp.in<uint32_t>(o[0]), sizeof(source));
  const uint32_t* b = warp.in<uint32_t>(o[1]);
  const uint32_t* c = warp.in<uint32_t>(o[2]);
  uint32_t result[kLanes];
  uint32_t within = 0;
  each_lane(mask, [&](uint32_t i) {
    const uint32_t distance = b[i] & 31;
    const uint32_t clamp = c[i] & 31;
    const uint32_t segment = c[i] >> 8 & 31;
    const uint32_t most = (i & segment) | (clamp & ~segment);
    uint32_t j = 0;
    bool good = false;
    switch (kMode) {
      case Shuffle::up:
        j = i - distance;
        good = static_cast<int32_t>(j) >= static_cast<int32_t>(most);
        break;
      case Shuffle::down:
        j = i + distance;
        good = j <= most;
        break;
      case Shuffle::butterfly:
        j = i ^ distance;
        good = j <= most;
        break;
      case Shuffle::index:
        j = (i & segment) | (distance & ~segment);
        good = j <= most;
        break;
    }
    result[i] = source[good ? j & 31 : i];
    within |= uint32_t{good} << i;
  });
  if (!in.o[0].none()) {
    uint32_t* d = warp.out<uint32_t>(in.o[0]);
    each_lane(mask, [&](uint32_t i) { d[i] = result[i]; });
  }
  if (in.count == 2) {
    warp.set_predicate(in.o[1], within, mask);
  }
  return Step::next;
}

enum class Vote : uint8_t { all, any, uniform, ballot };
template <Vote kMode>
Step vote(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!together(warp, members_of(warp, in.o[2], mask), mask)) {
    return Step::moved;
  }
  const uint32_t* members = warp.in<uint32_t>(in.o[2]);
  uint32_t bits = warp.predicate(in.o[1]);
  bits = ((in.flags & kInverted) != 0 ? ~bits : bits) & mask;
  uint32_t result = 0;
  uint32_t* d = kMode == Vote::ballot ? warp.out<uint32_t>(in.o[0]) : nullptr;
  each_lane(mask, [&](uint32_t i) {
    const uint32_t there = members[i] & mask;
    const uint32_t mine = bits & there;
    if constexpr (kMode == Vote::ballot) {
      d[i] = mine;
    } else {
      const bool value = kMode == Vote::all   ? mine == there
                         : kMode == Vote::any ? mine != 0
                                              : mine == there || mine == 0;
      result |= uint32_t{value} << i;
    }
  });
  if (kMode != Vote::ballot) {
    warp.set_predicate(in.o[0], result, mask);
  }
  return Step::next;
}

template <class S, bool kAll>
Step match(Warp& warp, const Instruction& in, uint32_t mask) {
  const Slot* o = in.o + in.count;
  if (!together(warp, members_of(warp, o[1], mask), mask)) {
    return Step::moved;
  }
  S a[kLanes];
  std::memcpy(a, warp.in<S>(o[0]), sizeof(a));
  const uint32_t* members = warp.in<uint32_t>(o[1]);
  uint32_t result[kLanes];
  uint32_t all = 0;
  each_lane(mask, [&](uint32_t i) {
    uint32_t same = 0;
    const uint32_t there = members[i] & mask;
    each_lane(there, [&](uint32_t j) { same |= uint32_t{a[j] == a[i]} << j; });
    all |= uint32_t{same == there} << i;
    result[i] = kAll ? (same == there ? there : 0) : same;
  });
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { d[i] = result[i]; });
  if (in.count == 2) {
    warp.set_predicate(in.o[1], all, mask);
  }
  return Step::next;
}

template <class T, auto kFunction>
Step reduce(Warp& warp, const Instruction& in, uint32_t mask) {
  if (!together(warp, members_of(warp, in.o[2], mask), mask)) {
    return Step::moved;
  }
  T a[kLanes];
  std::memcpy(a, warp.in<uint32_t>(in.o[1]), sizeof(a));
  const uint32_t* members = warp.in<uint32_t>(in.o[2]);
  T result[kLanes];
  each_lane(mask, [&](uint32_t i) {
    const uint32_t there = members[i] & mask;
    T value = a[__builtin_ctz(there)];
    each_lane(there & (there - 1), [&](uint32_t j) { value = kFunction(value, a[j]); });
    result[i] = value;
  });
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { d[i] = static_cast<uint32_t>(result[i]); });
  return Step::next;
}

Step active_mask(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { d[i] = mask; });
  return Step::next;
}

Step elect(Warp& warp, const Instruction& in, uint32_t mask) {
  const Slot members = in.o[in.count];
  if (!together(warp, members_of(warp, members, mask), mask)) {
    return Step::moved;
  }
  const auto leader = static_cast<uint32_t>(__builtin_ctz(mask));
  if (!in.o[0].none()) {
    uint32_t* d = warp.out<uint32_t>(in.o[0]);
    each_lane(mask, [&](uint32_t i) { d[i] = leader; });
  }
  if (in.count == 2) {
    warp.set_predicate(in.o[1], 1u << leader, mask);
  }
  return Step::next;
}

template <class T>
T lesser(T a, T b) {
  return std::min(a, b);
}
template <class T>
T greater(T a, T b) {
  return std::max(a, b);
}
uint32_t sum(uint32_t a, uint32_t b) { return a + b; }
uint32_t conjunction(uint32_t a, uint32_t b) { return a & b; }
uint32_t disjunction(uint32_t a, uint32_t b) { return a | b; }
uint32_t difference(uint32_t a, uint32_t b) { return a ^ b; }

const std::unordered_map<std::string_view, Form>& table() {
  static const std::unordered_map<std::string_view, Form> kTable = {
      {"shfl.sync.up.b32", {.run = shuffle<Shuffle::up>, .layout = "Wwwww"}},
      {"shfl.sync.down.b32", {.run = shuffle<Shuffle::down>, .layout = "Wwwww"}},
      {"shfl.sync.bfly.b32", {.run = shuffle<Shuffle::butterfly>, .layout = "Wwwww"}},
      {"shfl.sync.idx.b32", {.run = shuffle<Shuffle::index>, .layout = "Wwwww"}},
      {"vote.sync.all.pred", {.run = vote<Vote::all>, .layout = "Ppw"}},
      {"vote.sync.any.pred", {.run = vote<Vote::any>, .layout = "Ppw"}},
      {"vote.sync.uni.pred", {.run = vote<Vote::uniform>, .layout = "Ppw"}},
      {"vote.sync.ballot.b32", {.run = vote<Vote::ballot>, .layout = "Wpw"}},
      {"match.any.sync.b32", {.run = match<uint32_t, false>, .layout = "Www"}},
      {"match.any.sync.b64", {.run = match<uint64_t, false>, .layout = "Wdw"}},
      {"match.all.sync.b32", {.run = match<uint32_t, true>, .layout = "Www"}},
      {"match.all.sync.b64", {.run = match<uint64_t, true>, .layout = "Wdw"}},
      {"redux.sync.add.u32", {.run = reduce<uint32_t, sum>, .layout = "Www"}},
      {"redux.sync.add.s32", {.run = reduce<uint32_t, sum>, .layout = "Www"}},
      {"redux.sync.min.u32", {.run = reduce<uint32_t, lesser<uint32_t>>, .layout = "Www"}},
      {"redux.sync.min.s32", {.run = reduce<int32_t, lesser<int32_t>>, .layout = "Www"}},
      {"redux.sync.max.u32", {.run = reduce<uint32_t, greater<uint32_t>>, .layout = "Www"}},
      {"redux.sync.max.s32", {.run = reduce<int32_t, greater<int32_t>>, .layout = "Www"}},
      {"redux.sync.and.b32", {.run = reduce<uint32_t, conjunction>, .layout = "Www"}},
      {"redux.sync.or.b32", {.run = reduce<uint32_t, disjunction>, .layout = "Www"}},
      {"redux.sync.xor.b32", {.run = reduce<uint32_t, difference>, .layout = "Www"}},
      {"activemask.b32", {.run = active_mask, .layout = "W"}},
      {"elect.sync", {.run = elect, .layout = "Ww"}},
  };
  return kTable;
}

// Special registers. A value a lane, of the width that the operand has.

template <auto kFunction>
Step special(Warp& warp, const Instruction& in, uint32_t mask) {
  if (in.bytes == 8) {
    uint64_t* d = warp.out<uint64_t>(in.o[0]);
    each_lane(mask, [&](uint32_t i) { d[i] = kFunction(warp, i); });
  } else {
    uint32_t* d = warp.out<uint32_t>(in.o[0]);
    each_lane(mask, [&](uint32_t i) { d[i] = static_cast<uint32_t>(kFunction(warp, i)); });
  }
  return Step::next;
}

template <int kAxis>
uint64_t thread_id(const Warp& warp, uint32_t lane) {
  const auto& block = warp.grid->launch.block;
  const uint32_t thread = warp.index * kLanes + lane;
  return kAxis == 0   ? thread % block[0]
         : kAxis == 1 ? thread / block[0] % block[1]
                      : thread / block[0] / block[1];
}
template <int kAxis>
uint64_t block_size(const Warp& warp, uint32_t) {
  return warp.grid->launch.block[kAxis];
}
template <int kAxis>
uint64_t block_id(const Warp& warp, uint32_t) {
  return warp.cta->id[kAxis];
}
template <int kAxis>
uint64_t grid_size(const Warp& warp, uint32_t) {
  return warp.grid->launch.grid[kAxis];
}
uint64_t zero(const Warp&, uint32_t) { return 0; }
uint64_t one(const Warp&, uint32_t) { return 1; }
uint64_t cluster_rank(const Warp& warp, uint32_t) { return warp.cta->rank; }
uint64_t cluster_size(const Warp& warp, uint32_t) { return warp.grid->launch.cluster; }
uint64_t cluster_id(const Warp& warp, uint32_t) {
  return warp.cta->id[0] / warp.grid->launch.cluster;
}
uint64_t cluster_count(const Warp& warp, uint32_t) {
  return warp.grid->launch.grid[0] / warp.grid->launch.cluster;
}
uint64_t lane_id(const Warp&, uint32_t lane) { return lane; }
uint64_t warp_id(const Warp& warp, uint32_t) { return warp.index; }
uint64_t warp_count(const Warp& warp, uint32_t) { return warp.cta->warps.size(); }
uint64_t warp_size(const Warp&, uint32_t) { return kLanes; }
uint64_t multiprocessor(const Warp& warp, uint32_t) { return warp.cta->index; }
uint64_t multiprocessors(const Warp& warp, uint32_t) { return warp.grid->ctas.size(); }
uint64_t lanes_equal(const Warp&, uint32_t lane) { return 1u << lane; }
uint64_t lanes_below(const Warp&, uint32_t lane) { return (1u << lane) - 1; }
uint64_t lanes_upto(const Warp&, uint32_t lane) { return (2u << lane) - 1; }
uint64_t lanes_above(const Warp&, uint32_t lane) { return ~((2u << lane) - 1); }
uint64_t lanes_from(const Warp&, uint32_t lane) { return ~((1u << lane) - 1); }
uint64_t shared_size(const Warp& warp, uint32_t) { return warp.grid->shared_bytes; }
uint64_t dynamic_shared_size(const Warp& warp, uint32_t) { return warp.grid->launch.shared_bytes; }
/// Time is counted in instructions: as if each CTA executed one a cycle, and a cycle were a
/// nanosecond.
uint64_t clock(const Warp& warp, uint32_t) {
  return warp.grid->started + warp.grid->counts.warp_instructions / warp.grid->ctas.size();
}

}  // namespace

bool together(Warp& warp, uint32_t members, uint32_t mask) {
  if ((members & warp.alive & ~mask) == 0) {
    warp.parked &= ~mask;
    return true;
  }
  each_lane(warp.active & ~mask, [&](uint32_t i) { warp.place[i] = warp.pc + 1; });
  each_lane(mask, [&](uint32_t i) { warp.place[i] = warp.pc; });
  warp.parked |= mask;
  return false;
}

Found find_warp(const Statement& statement) {
  const auto found = table().find(statement.opcode);
  return found == table().end() ? Found() : Found(found->second);
}

Handler special_register(std::string_view name) {
  static const std::unordered_map<std::string_view, Handler> kRegisters = {
      {"%tid.x", special<thread_id<0>>},
      {"%tid.y", special<thread_id<1>>},
      {"%tid.z", special<thread_id<2>>},
      {"%ntid.x", special<block_size<0>>},
      {"%ntid.y", special<block_size<1>>},
      {"%ntid.z", special<block_size<2>>},
      {"%ctaid.x", special<block_id<0>>},
      {"%ctaid.y", special<block_id<1>>},
      {"%ctaid.z", special<block_id<2>>},
      {"%nctaid.x", special<grid_size<0>>},
      {"%nctaid.y", special<grid_size<1>>},
      {"%nctaid.z", special<grid_size<2>>},
      {"%cluster_ctaid.x", special<cluster_rank>},
      {"%cluster_ctaid.y", special<zero>},
      {"%cluster_ctaid.z", special<zero>},
      {"%cluster_nctaid.x", special<cluster_size>},
      {"%cluster_nctaid.y", special<one>},
      {"%cluster_nctaid.z", special<one>},
      {"%cluster_ctarank", special<cluster_rank>},
      {"%cluster_nctarank", special<cluster_size>},
      {"%clusterid.x", special<cluster_id>},
      {"%clusterid.y", special<block_id<1>>},
      {"%clusterid.z", special<block_id<2>>},
      {"%nclusterid.x", special<cluster_count>},
      {"%nclusterid.y", special<grid_size<1>>},
      {"%nclusterid.z", special<grid_size<2>>},
      {"%laneid", special<lane_id>},
      {"%warpid", special<warp_id>},
      {"%nwarpid", special<warp_count>},
      {"WARP_SZ", special<warp_size>},
      {"%smid", special<multiprocessor>},
      {"%nsmid", special<multiprocessors>},
      {"%lanemask_eq", special<lanes_equal>},
      {"%lanemask_lt", special<lanes_below>},
      {"%lanemask_le", special<lanes_upto>},
      {"%lanemask_gt", special<lanes_above>},
      {"%lanemask_ge", special<lanes_from>},
      {"%total_smem_size", special<shared_size>},
      {"%aggr_smem_size", special<shared_size>},
      {"%dynamic_smem_size", special<dynamic_shared_size>},
      {"%clock", special<clock>},
      {"%clock64", special<clock>},
      {"%globaltimer", special<clock>},
      {"%globaltimer_lo", special<clock>},
      {"%gridid", special<zero>},
  };
  const auto found = kRegisters.find(name);
  return found == kRegisters.end() ? nullptr : found->second;
}

}  // namespace weft::ptx

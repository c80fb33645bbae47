// Mixtures of experts on the resident kernel: the draw, which every worker makes for itself, and of
// one sequence the row of the second products.
#pragma once

#include "engine/hopper/decode/worker.cuh"
#include "ops/sample/hopper.cuh"

namespace weft::hopper {

/// Larger for what is chosen before: as sample_key(), but that NaN comes before all numbers. Not 0.
__device__ inline uint32_t draw_key(float logit) { return isnan(logit) ? ~0u : sample_key(logit); }

/// Of experts that are drawn by groups, by one warp: a bit for each group that is kept. `keys`: of
/// what this lane's experts are chosen by, those from kOwn * lane on.
template <int kOwn>
__device__ inline uint32_t kept_groups(const RouteCode& route, const uint32_t (&keys)[kOwn],
                                       int lane) {
  const int each = small_quotient(route.experts, route.groups);
  const bool two = route.correction != kNowhere && each > 1;
  uint32_t own = 0;  // the key of the lane's group
#pragma unroll 1
  for (int group = 0; group < route.groups; ++group) {
    const int before = kOwn * lane - group * each;
    uint32_t best[2] = {};
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const uint32_t key = before + i >= 0 && before + i < each ? keys[i] : 0;
      best[1] = max(best[1], min(best[0], key));
      best[0] = max(best[0], key);
    }
    uint32_t of_group = __reduce_max_sync(~0u, best[0]);
    if (two) {
      const bool mine = lane == __ffs(__ballot_sync(~0u, best[0] == of_group)) - 1;
      const uint32_t second = __reduce_max_sync(~0u, mine ? best[1] : best[0]);
      of_group = draw_key(logit_of(of_group) + logit_of(second));
    }
    own = lane == group ? of_group : own;
  }
  uint32_t kept = 0;
  for (int i = 0; i < route.kept_groups; ++i) {
    const uint32_t left = (kept >> lane & 1) != 0 ? 0u : own;
    const uint32_t best = __reduce_max_sync(~0u, left);
    kept |= 1u << (__ffs(__ballot_sync(~0u, left == best && lane < route.groups)) - 1);
  }
  return kept;
}

/// Of one sequence: tells the loader that the experts' numbers are there. By one warp.
template <class W>
__device__ __forceinline__ void tell_loader(const W& worker) {
  __syncwarp();
  if (worker.team().lane == 0) {
    worker.drawn().known.arrive(DrawnExperts::kArrivals);
  }
}

/// By one warp, whose lanes have kOwn experts each, one after the other. The loader is told before
/// the weights are known, which come out as those of ops/moe/op.h, but for the order of a sum.
template <int kOwn, class W>
__device__ __forceinline__ void draw_experts(const W& worker, const Code& code, int sequence) {
  const RouteCode& route = code.route;
  const int lane = worker.team().lane;
  const Tagged* from =
      at<const Tagged>(worker, route.logits) + sequence * ((route.experts + 1) / 2);
  const auto expert_of = [&](int i) { return kOwn * lane + i; };
  constexpr int kPairs = kOwn / 2;
  Tagged words[kPairs] = {};
  auto late = worker.late(code);
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (expert_of(2 * j) < route.experts) {
        words[j] = load_tagged(from + kPairs * lane + j);
        there = there && words[j].tag() == worker.tag(route.source);
      }
    }
  } while (!there && !late());
  __syncwarp();
  const auto logits = [&](int i) {
    return i % 2 == 0 ? words[i / 2].first() : words[i / 2].second();
  };
  uint32_t keys[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    keys[i] = expert_of(i) < route.experts ? draw_key(logits(i)) : 0;
  }
  [[maybe_unused]] float highest = 0;  // of all logits
  if constexpr (W::kLatents) {
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      most = max(most, keys[i]);
    }
    highest = logit_of(__reduce_max_sync(~0u, most));
    if (route.correction != kNowhere) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int e = min(expert_of(i), route.experts - 1);
        const float correction =
            route.correction_f32 != 0
                ? __ldg(at<const float>(worker, route.correction) + e)
                : load_kept(at<const __nv_bfloat16>(worker, route.correction) + e);
        const float choice = 1 / (1 + expf(-logits(i))) + correction;
        keys[i] = keys[i] != 0 ? draw_key(choice) : 0;
      }
    }
    if (route.kept_groups < route.groups) {
      const uint32_t kept = kept_groups(route, keys, lane);
      const int each = small_quotient(route.experts, route.groups);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int group = small_quotient(min(expert_of(i), route.experts - 1), each);
        keys[i] = (kept >> group & 1) != 0 ? keys[i] : 0;
      }
    }
  }
  // The best that is left, again and again; of equal ones the lowest expert.
  uint32_t left[kOwn];
  uint32_t best = 0;  // of this lane's
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    left[i] = keys[i];
    best = max(best, left[i]);
  }
  uint32_t taken = 0;  // of this lane's, a bit each
  uint32_t largest = 0;
  const int chosen = route.chosen;
#pragma unroll 1
  for (int s = 0; s < chosen; ++s) {
    const uint32_t most = __reduce_max_sync(~0u, best);
    largest = s == 0 ? most : largest;
    bool mine = lane == __ffs(__ballot_sync(~0u, best == most)) - 1;
    best = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool that = mine && left[i] == most;
      taken |= that ? 1u << i : 0u;
      left[i] = that ? 0 : left[i];
      mine = mine && !that;
      best = max(best, left[i]);
    }
  }
  // In ascending order of experts.
  int slot = 0;
  uint32_t of_lanes[kOwn];
  const uint32_t before = (1u << lane) - 1;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    of_lanes[i] = __ballot_sync(~0u, (taken >> i & 1) != 0);
    slot += __popc(of_lanes[i] & before);
  }
  if (route.draw == DrawOf::experts) {
    int own = slot;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      if ((taken >> i & 1) != 0) {
        if constexpr (W::kBatch == 1) {
          worker.drawn().id[own] = expert_of(i);
        } else {
          worker.drawn().own[sequence][own] = static_cast<uint16_t>(expert_of(i));
        }
        ++own;
      }
      if constexpr (W::kBatch > 1) {
        if (lane == 0) {
          worker.drawn().wanted[sequence][i] = of_lanes[i];
        }
      }
    }
    if constexpr (W::kBatch == 1) {
      tell_loader(worker);
    }
  }
  const auto score = [&](float logit, float most) {
    return route.sigmoid != 0 ? 1 / (1 + expf(-logit)) : expf(logit - most);
  };
  float scores[kOwn];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    // Keys may be of something else than logits, and of experts that cannot be chosen 0.
    const bool there = W::kLatents ? expert_of(i) < route.experts : keys[i] != 0;
    const bool counts = route.renormalise == 0 ? there : (taken >> i & 1) != 0;
    scores[i] = !counts       ? 0.0f
                : W::kLatents ? score(logits(i), highest)
                              : score(logit_of(keys[i]), logit_of(largest));
    sum += scores[i];
  }
  sum = route.sigmoid != 0 && route.renormalise == 0 ? 1.0f : warp_sum(sum);
  if (route.draw == DrawOf::shared) {
    if (lane == 0) {
      if constexpr (W::kBatch == 1) {
        worker.drawn().shared_weight = scores[0] / sum;
      } else {
        worker.drawn().shared_weight[sequence] = scores[0] / sum;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    if ((taken >> i & 1) != 0) {
      const float weight = scores[i] / sum * (W::kLatents ? route.scale : 1.0f);
      if constexpr (W::kBatch == 1) {
        worker.drawn().weight[slot] = weight;
      } else {
        worker.drawn().weight[sequence][slot] = weight;
      }
      ++slot;
    }
  }
}

/// Experts of a lane where there are few of them: short code is what counts.
constexpr int kUsualOwn = 4;
constexpr int kMostOwn = kMostExperts / 32;
/// Of an expert's number: how many a lane has.
__device__ inline int experts_of_lane(const RouteCode& route) {
  return route.experts <= 32 * kUsualOwn ? kUsualOwn : kMostOwn;
}

/// Apart: it is not the usual case, and long.
template <class W>
__device__ __noinline__ void draw_of_many(const W& worker, const Code& code, int sequence) {
  draw_experts<kMostOwn>(worker, code, sequence);
}

/// By one warp.
template <class W>
__device__ __forceinline__ void draw_for(const W& worker, const Code& code, int sequence) {
  if (experts_of_lane(code.route) == kUsualOwn) {
    draw_experts<kUsualOwn>(worker, code, sequence);
  } else {
    draw_of_many(worker, code, sequence);
  }
}

/// By the team: draws for all sequences, a warp each, and finds out which experts any of them has.
template <class W>
__device__ __forceinline__ void route_several(const W& worker, const Code& code) {
  auto& drawn = worker.drawn();
  const Team team = worker.team();
  const bool experts = code.route.draw == DrawOf::experts;
  const bool own = team.warp < worker.sequences() && !(experts && worker.draws_nothing(team.warp));
  if (experts) {  // products of the draw before have read it
    static_assert(sizeof(drawn.slot) % sizeof(uint32_t) == 0);
    for (int i = team.thread; i < static_cast<int>(sizeof(drawn.slot) / sizeof(uint32_t));
         i += Team::kThreads) {
      reinterpret_cast<uint32_t*>(drawn.slot)[i] = ~0u;
    }
  }
  if (own) {
    draw_for(worker, code, team.warp);
  }
  team.sync();
  if (!experts) {
    return;
  }
  const int words = experts_of_lane(code.route);
  if (team.thread < words) {
    uint32_t any = 0;
    for (int s = 0; s < worker.sequences(); ++s) {
      any |= worker.draws_nothing(s) ? 0 : drawn.wanted[s][team.thread];
    }
    drawn.wanted_by_any[team.thread] = any;
  }
  team.sync();
  if (own && team.lane < code.route.chosen) {
    const int expert = drawn.own[team.warp][team.lane];
    const int lane = expert / words;
    int place = 0;
    for (int i = 0; i < words; ++i) {
      const uint32_t any = drawn.wanted_by_any[i];
      place += __popc(any & ((1u << lane) - 1));
      place += i < expert % words ? static_cast<int>(any >> lane & 1) : 0;
    }
    drawn.place[team.warp][team.lane] = static_cast<uint8_t>(place);
    drawn.id[place] = expert;
    drawn.slot[place][team.warp] = static_cast<int8_t>(team.lane);
  }
  if (team.thread == 0) {
    int count = 0;
    for (int i = 0; i < words; ++i) {
      count += __popc(drawn.wanted_by_any[i]);
    }
    drawn.count = count;
  }
  __threadfence_block();
  team.sync();
  if (team.thread == 0) {
    volatile uint32_t& draws = drawn.draws;
    draws = draws + 1;
  }
}

/// Whether draw_by_ranks() can.
__device__ inline bool has_ranks(const RouteCode& route) {
  return route.draw == DrawOf::experts && route.experts <= kMostRanked && route.chosen <= 32 &&
         route.kept_groups == route.groups;
}

/// By the team, of one sequence: which experts are drawn is their rank among all, which some
/// threads count together; of equal ones the lowest comes first. Slots are in ascending order of
/// experts. The loader is told before the weights are known. See draw_experts(), which takes
/// longer.
template <class W>
__device__ __forceinline__ void draw_by_ranks(const W& worker, const Code& code) {
  const RouteCode& route = code.route;
  const Team team = worker.team();
  auto& drawn = worker.drawn();
  const int experts = route.experts;
  const int all = max(32, 1 << (32 - __clz(experts - 1)));
  const int parts = Team::kThreads / all;  // threads of an expert
  if (team.thread < all / 2) {
    const Tagged* from = at<const Tagged>(worker, route.logits) + team.thread;
    float2 logits{};
    uint2 keys{};
    if (2 * team.thread < experts) {
      auto late = worker.late(code);
      logits = await_pair(load_tagged(from), from, worker.tag(route.source), late);
      const auto choice = [&](float logit, int expert) {
        if (W::kLatents && route.correction != kNowhere && expert < experts) {
          const float correction =
              route.correction_f32 != 0
                  ? __ldg(at<const float>(worker, route.correction) + expert)
                  : load_kept(at<const __nv_bfloat16>(worker, route.correction) + expert);
          return 1 / (1 + expf(-logit)) + correction;
        }
        return logit;
      };
      keys.x = draw_key(choice(logits.x, 2 * team.thread));
      keys.y = 2 * team.thread + 1 < experts ? draw_key(choice(logits.y, 2 * team.thread + 1)) : 0;
    }
    reinterpret_cast<float2*>(drawn.logits)[team.thread] = logits;
    reinterpret_cast<uint2*>(drawn.keys)[team.thread] = keys;
  }
  team.sync();
  const int expert = team.thread / parts;
  const uint32_t own = drawn.keys[expert];
  int rank = 0;
#pragma unroll 4
  for (int i = team.thread % parts * 4; i < all; i += parts * 4) {
    const uint4 keys = *reinterpret_cast<const uint4*>(drawn.keys + i);
    rank += keys.x > own || (keys.x == own && i < expert) ? 1 : 0;
    rank += keys.y > own || (keys.y == own && i + 1 < expert) ? 1 : 0;
    rank += keys.z > own || (keys.z == own && i + 2 < expert) ? 1 : 0;
    rank += keys.w > own || (keys.w == own && i + 3 < expert) ? 1 : 0;
  }
  for (int distance = 1; distance < parts; distance *= 2) {
    rank += __shfl_xor_sync(~0u, rank, distance);
  }
  const bool drawn_here = team.thread % parts == 0 && rank < route.chosen;
  const uint32_t of_warp = __ballot_sync(~0u, drawn_here);
  if (team.lane == 0) {
    drawn.of_warp[team.warp] = __popc(of_warp);
  }
  team.sync();
  const uint32_t before = team.lane < team.warp ? drawn.of_warp[team.lane] : 0;
  const uint32_t first = __reduce_add_sync(~0u, before);
  if (drawn_here) {
    drawn.id[first + __popc(of_warp & ((1u << team.lane) - 1))] = expert;
    drawn.known.arrive();
  }
  if (team.thread == 0) {
    drawn.known.arrive(DrawnExperts::kArrivals - static_cast<uint32_t>(route.chosen));
  }
  team.sync();
  // While weights are on their way.
  if (team.warp == Team::kWarps - 1) {
    const int lane = team.lane;
    const bool chosen = lane < route.chosen;
    const float logit = drawn.logits[drawn.id[chosen ? lane : 0]];
    float sum = 1;
    float score = 0;
    if (route.sigmoid != 0) {
      score = chosen ? 1 / (1 + expf(-logit)) : 0;
      sum = route.renormalise != 0 ? warp_sum(score) : 1;
    } else {
      uint32_t most = 0;
      for (int e = lane; e < experts; e += 32) {
        most = max(most, draw_key(drawn.logits[e]));
      }
      const float highest = logit_of(__reduce_max_sync(~0u, most));
      score = chosen ? expf(logit - highest) : 0;
      float part = score;
      if (route.renormalise == 0) {
        part = 0;
        for (int e = lane; e < experts; e += 32) {
          part += expf(drawn.logits[e] - highest);
        }
      }
      sum = warp_sum(part);
    }
    if (chosen) {
      drawn.weight[lane] = score / sum * (W::kLatents ? route.scale : 1.0f);
    }
  }
  team.sync();
}

/// By the team: draws, and tells the loader.
template <class W>
__device__ __forceinline__ void route(const W& worker, const Code& code) {
  if constexpr (W::kBatch > 1) {
    route_several(worker, code);
  } else if (has_ranks(code.route)) {
    draw_by_ranks(worker, code);
  } else {
    if (worker.team().warp == 0) {  // products of the draw before have read it
      draw_for(worker, code, 0);
    }
    worker.team().sync();
  }
}

}  // namespace weft::hopper

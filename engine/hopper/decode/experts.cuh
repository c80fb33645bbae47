// Mixtures of experts on the resident kernel, of one sequence: the draw, which every worker makes
// for itself, and the row of the second products.
#pragma once

#include <climits>

#include "engine/hopper/decode/worker.cuh"
#include "ops/sample/hopper.cuh"

namespace weft::hopper {

/// Larger for what is chosen before: as sample_key(), but that NaN comes before all numbers. Not 0.
__device__ inline uint32_t draw_key(float logit) { return isnan(logit) ? ~0u : sample_key(logit); }

/// By one warp, whose lanes have kPairs times two experts each: expert 2 * (lane + 32 * j) and the
/// next. Weights come out as those of ops/moe/op.h, but for the order of a sum.
template <int kPairs, class W>
__device__ __noinline__ void draw_experts(const W& worker, const Code& code) {
  const RouteCode& route = code.route;
  const int lane = worker.team().lane;
  const Tagged* from = at<const Tagged>(worker, route.logits);
  constexpr int kOwn = 2 * kPairs;
  const auto expert_of = [&](int i) { return 2 * (lane + 32 * (i / 2)) + i % 2; };
  Tagged words[kPairs] = {};
  auto late = worker.late(code);
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      if (expert_of(2 * j) < route.experts) {
        words[j] = load_tagged(from + lane + 32 * j);
        there = there && words[j].tag() == worker.tag(route.source);
      }
    }
  } while (!there && !late());
  __syncwarp();
  uint32_t keys[kOwn];
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const float logit = i % 2 == 0 ? words[i / 2].first() : words[i / 2].second();
    keys[i] = expert_of(i) < route.experts ? draw_key(logit) : 0;
  }
  // The best that is left, again and again; of equal ones the lowest expert.
  uint32_t taken = 0;  // of this lane's, a bit each
  uint32_t largest = 0;
#pragma unroll 1
  for (int s = 0; s < route.chosen; ++s) {
    uint32_t best = 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      best = max(best, (taken >> i & 1) != 0 ? 0u : keys[i]);
    }
    best = __reduce_max_sync(~0u, best);
    largest = s == 0 ? best : largest;
    int first = kOwn;
#pragma unroll
    for (int i = kOwn - 1; i >= 0; --i) {
      first = (taken >> i & 1) == 0 && keys[i] == best ? i : first;
    }
    const int expert = first < kOwn ? expert_of(first) : INT_MAX;
    if (__reduce_min_sync(~0u, expert) == expert && first < kOwn) {
      taken |= 1u << first;
    }
  }
  const auto score = [&](uint32_t key) {
    const float logit = logit_of(key);
    return route.sigmoid != 0 ? 1 / (1 + expf(-logit)) : expf(logit - logit_of(largest));
  };
  float scores[kOwn];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const bool counts = route.renormalise == 0 ? keys[i] != 0 : (taken >> i & 1) != 0;
    scores[i] = counts ? score(keys[i]) : 0.0f;
    sum += scores[i];
  }
  sum = route.sigmoid != 0 && route.renormalise == 0 ? 1.0f : warp_sum(sum);
  if (route.draw == DrawOf::shared) {
    if (lane == 0) {
      worker.drawn().shared_weight = scores[0] / sum;
    }
    return;
  }
  int slot = 0;  // in ascending order of experts
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const uint32_t both = taken >> (2 * j) & 3;
    const uint32_t lows = __ballot_sync(~0u, (both & 1) != 0);
    const uint32_t highs = __ballot_sync(~0u, (both & 2) != 0);
    const uint32_t before = (1u << lane) - 1;
    int own = slot + __popc(lows & before) + __popc(highs & before);
#pragma unroll
    for (int i = 2 * j; i < 2 * j + 2; ++i) {
      if ((taken >> i & 1) != 0) {
        worker.drawn().id[own] = expert_of(i);
        worker.drawn().weight[own] = scores[i] / sum;
        ++own;
      }
    }
    slot += __popc(lows) + __popc(highs);
  }
}

/// By the team: draws, and tells the loaders.
template <class W>
__device__ __forceinline__ void route(const W& worker, const Code& code) {
  if (worker.team().warp == 0) {  // products of the draw before have read it
    constexpr int kUsual = 2;     // pairs of a lane: short code is what counts here
    if (code.route.experts <= 64 * kUsual) {
      draw_experts<kUsual>(worker, code);
    } else {
      draw_experts<kMostExperts / 64>(worker, code);
    }
    __threadfence_block();
    __syncwarp();
    if (worker.team().lane == 0 && code.route.draw == DrawOf::experts) {
      volatile uint32_t& draws = worker.drawn().draws;
      draws = draws + 1;
    }
  }
  worker.team().sync();
}

/// This thread's part of the row of slots, each times its weight, as products take it.
template <class W>
__device__ __forceinline__ void weigh_slots(const W& worker, const Code& code, char* row) {
  const ProductCode& product = code.product;
  const bool shared = product.draw == DrawOf::shared;
  const int elements = product.slot_elements;
  const int slot_k = slices_of(elements) * kSliceK;
  const int end = row_slices(product.k, product.fold) * kSliceK;
  const uint32_t tag = worker.tag(product.source);
  const Tagged* slots = at<const Tagged>(worker, product.row) +
                        product.first_slot * static_cast<int64_t>(elements) / 2;
  auto late = worker.late(code);
  constexpr int kQuads = 8;  // of a thread that are on their way at once
  const auto element = [&](int first, int q) {
    return first + 4 * (worker.team().thread + q * Team::kThreads);
  };
  const auto slot_of = [&](int e) { return shared ? 0 : small_quotient(e, slot_k); };
  // Whether there is such an element, and not the zeros between slots and after them.
  const auto has = [&](int e) {
    const int slot = slot_of(e);
    return slot < product.slots && e - slot * slot_k < elements;
  };
#pragma unroll 1
  for (int first = 0; first < end; first += kQuads * 4 * Team::kThreads) {
    TaggedQuad quads[kQuads] = {};
    bool there;
    do {  // all that is not there yet at once
      there = true;
#pragma unroll
      for (int q = 0; q < kQuads; ++q) {
        const int e = element(first, q);
        if (e < end && has(e) && !quads[q].has(tag)) {
          const int slot = slot_of(e);
          quads[q] = load_tagged_quad(slots + (slot * elements + e - slot * slot_k) / 2);
          there = there && quads[q].has(tag);
        }
      }
    } while (!there && !late());
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int e = element(first, q);
      if (e < end) {
        float4 x = {};
        if (has(e)) {
          const float weight = shared ? worker.drawn().shared_weight
                                      : worker.drawn().weight[product.first_slot + slot_of(e)];
          x = quads[q].values();
          x = {weight * x.x, weight * x.y, weight * x.z, weight * x.w};
        }
        store_row_quad<W::kBatch>(row, 0, e / 4, x);
      }
    }
  }
}

}  // namespace weft::hopper

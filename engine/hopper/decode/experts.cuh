// Mixtures of experts on the resident kernel, of one sequence: the draw, which every worker makes
// for itself, and the row of the second products.
#pragma once

#include "engine/hopper/decode/worker.cuh"

namespace weft::hopper {

/// Larger for what is chosen before: NaN before all numbers, of equal logits the lower expert.
__device__ inline uint64_t draw_key(float logit, int expert) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // one zero
  const uint32_t ordered = isnan(logit) ? ~0u : (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(expert);
}
__device__ inline uint64_t warp_most(uint64_t x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) {
    x = max(x, __shfl_xor_sync(~0u, x, lanes));
  }
  return x;
}

/// By one warp, whose lanes have two experts each at a time. Weights come out as those of
/// ops/moe/op.h, but for the order of a sum.
template <class W>
__device__ __noinline__ void draw_experts(const W& worker, const Code& code) {
  const RouteCode& route = code.route;
  const int lane = worker.team().lane;
  const Tagged* from = at<const Tagged>(worker, route.logits);
  constexpr int kPairs = kMostExperts / 64;  // of a lane
  float2 logits[kPairs] = {};
  auto late = worker.late(code);
  bool there;
  do {  // all that is not there yet at once
    there = true;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int pair = lane + 32 * j;
      if (2 * pair < route.experts) {
        const Tagged word = load_tagged(from + pair);
        there = there && word.tag() == worker.tag(route.source);
        logits[j] = {word.first(), word.second()};
      }
    }
  } while (!there && !late());
  __syncwarp();
  // f(logit, expert) for this lane's.
  const auto each = [&](const auto& f) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int expert = 2 * (lane + 32 * j);
      if (expert < route.experts) {
        f(logits[j].x, expert);
      }
      if (expert + 1 < route.experts) {
        f(logits[j].y, expert + 1);
      }
    }
  };
  // The best that is left, again and again: the last one's key divides the chosen from the others.
  uint64_t least = ~uint64_t{0};
  uint32_t first = 0;
#pragma unroll 1
  for (int s = 0; s < route.chosen; ++s) {
    uint64_t best = 0;
    each([&](float logit, int expert) {
      const uint64_t key = draw_key(logit, expert);
      best = s == 0 || key < least ? max(best, key) : best;
    });
    least = warp_most(best);
    first = s == 0 ? ~static_cast<uint32_t>(least) : first;
  }
  float largest = 0;
  each([&](float logit, int expert) {
    largest = expert == static_cast<int>(first) ? logit : largest;
  });
  largest = __shfl_sync(~0u, largest, static_cast<int>(first) / 2 % 32);
  const auto score = [&](float logit) {
    return route.sigmoid != 0 ? 1 / (1 + expf(-logit)) : expf(logit - largest);
  };
  float sum = 0;
  each([&](float logit, int expert) {
    sum += route.renormalise == 0 || draw_key(logit, expert) >= least ? score(logit) : 0.0f;
  });
  sum = route.sigmoid != 0 && route.renormalise == 0 ? 1.0f : warp_sum(sum);
  if (route.draw == DrawOf::shared) {
    if (lane == 0) {
      worker.drawn().shared_weight = score(largest) / sum;
    }
    return;
  }
  int slot = 0;
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const int expert = 2 * (lane + 32 * j);
    const bool low = expert < route.experts && draw_key(logits[j].x, expert) >= least;
    const bool high = expert + 1 < route.experts && draw_key(logits[j].y, expert + 1) >= least;
    const uint32_t lows = __ballot_sync(~0u, low);
    const uint32_t highs = __ballot_sync(~0u, high);
    const uint32_t before = (1u << lane) - 1;
    const int own = slot + __popc(lows & before) + __popc(highs & before);
    const auto keep = [&](int at, int id, float logit) {
      worker.drawn().id[at] = id;
      worker.drawn().weight[at] = score(logit) / sum;
    };
    if (low) {
      keep(own, expert, logits[j].x);
    }
    if (high) {
      keep(own + (low ? 1 : 0), expert + 1, logits[j].y);
    }
    slot += __popc(lows) + __popc(highs);
  }
}

/// By the team: draws, and tells the loaders.
template <class W>
__device__ __forceinline__ void route(const W& worker, const Code& code) {
  if (worker.team().warp == 0) {  // products of the draw before have read it
    draw_experts(worker, code);
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

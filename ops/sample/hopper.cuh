// sample on a resident CTA: the same choice as ops/sample/op.h defines, by radix selection. "Best
// first" prefixes (top-k, min-p, top-p) are all described by one threshold: every logit above it,
// and of those equal to it the first few ids. Sums of weights are in fixed point, so that the order
// in which threads add does not matter and the draw repeats.
#pragma once

#include "arch/hopper/resident.cuh"
#include "ops/sample/op.h"

namespace weft::hopper {

/// The best logit of some ids; ties go to the lower id. NaN counts as -infinity.
struct Candidate {
  float logit = -__builtin_inff();
  int32_t id = 0x7fffffff;

  __device__ void offer(float x, int32_t i) {
    if (x > logit || (x == logit && i < id) || id == 0x7fffffff) {
      logit = x == x ? x : -__builtin_inff();
      id = i;
    }
  }
};

__device__ inline Candidate warp_best(Candidate best) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    const float logit = __shfl_xor_sync(~0u, best.logit, distance);
    const int32_t id = __shfl_xor_sync(~0u, best.id, distance);
    if (id != 0x7fffffff) {
      best.offer(logit, id);
    }
  }
  return best;
}

/// Shared memory of sample_row().
struct SampleScratch {
  unsigned long long sums[256];
  uint32_t counts[256];
  unsigned long long warp_sums[Team::kWarps];
  uint32_t warp_equal[Team::kWarps];
  unsigned long long target, above;
  uint32_t prefix, count_above;
  float best;
  int32_t token;
};

/// Rising with the logit; NaN is below everything.
__device__ inline uint32_t sample_key(float logit) {
  if (!(logit == logit)) {
    return 0;
  }
  const uint32_t bits = __float_as_uint(logit);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/// Draws from logits [vocabulary] (penalised in place). seen: a bit for each token so far. uniform:
/// in [0, 1). Temperature is positive. The token is in every thread.
__device__ inline int32_t sample_row(const Team& team, float* logits, int vocabulary,
                                     const SamplingOptions& options, const uint32_t* seen,
                                     float uniform, SampleScratch& s) {
  constexpr float kOne = 1099511627776.0f;  // 2^40: a weight of 1 in fixed point
  // Penalty and maximum.
  Candidate best;
  for (int id = team.thread; id < vocabulary; id += Team::kThreads) {
    float x = __ldcg(logits + id);
    if (options.repetition_penalty != 1 && (__ldcg(seen + id / 32) >> (id % 32) & 1) != 0) {
      x = x > 0 ? x / options.repetition_penalty : x * options.repetition_penalty;
      __stcg(logits + id, x);
    }
    best.offer(x, id);
  }
  best = warp_best(best);
  if (team.lane == 0) {
    team.scratch[team.warp] = best.logit;
  }
  team.sync();
  float top = team.scratch[0];
  for (int w = 1; w < Team::kWarps; ++w) {
    top = fmaxf(top, team.scratch[w]);
  }
  const float inverse_temperature = 1.0f / options.temperature;
  const auto weight = [&](float x) {
    const float y = expf((x - top) * inverse_temperature);
    return y >= options.min_p && y == y ? y : 0.0f;
  };
  const auto fixed = [&](float x) { return static_cast<unsigned long long>(weight(x) * kOne); };

  // The kept prefix: keys above `threshold`, and the first `equal` ids with that key.
  uint32_t threshold = 0;
  uint32_t equal = 0xffffffffu;
  const auto kept = [&](uint32_t key) {
    return key > threshold || (key == threshold && equal > 0);
  };

  // One radix digit at a time, from the highest: which key is the last of the prefix?
  const auto select = [&](bool by_weight, unsigned long long target) {
    uint32_t prefix = 0;
    unsigned long long above = 0;  // count or weight of keys above the prefix's range
    for (int shift = 24; shift >= 0; shift -= 8) {
      for (int i = team.thread; i < 256; i += Team::kThreads) {
        s.sums[i] = 0;
      }
      team.sync();
      const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
      for (int id = team.thread; id < vocabulary; id += Team::kThreads) {
        const float x = __ldcg(logits + id);
        const uint32_t key = sample_key(x);
        if ((key & mask) == prefix && (!by_weight || kept(key))) {
          atomicAdd(&s.sums[key >> shift & 255], by_weight ? fixed(x) : 1ull);
        }
      }
      team.sync();
      if (team.thread == 0) {
        int digit = 255;
        while (digit > 0 && above + s.sums[digit] < target) {
          above += s.sums[digit];
          --digit;
        }
        s.prefix = prefix | static_cast<uint32_t>(digit) << shift;
        s.above = above;
      }
      team.sync();
      prefix = s.prefix;
      above = s.above;
    }
    threshold = prefix;
    return target - above;  // still wanted of the keys equal to the threshold
  };

  if (options.top_k > 0 && options.top_k < vocabulary) {
    equal = static_cast<uint32_t>(select(false, static_cast<unsigned long long>(options.top_k)));
  }

  // Sums over the kept ids in rising order: a warp takes a contiguous part of the vocabulary.
  const int part = (vocabulary + Team::kWarps * 32 - 1) / (Team::kWarps * 32) * 32;
  const int begin = min(vocabulary, team.warp * part);
  const int end = min(vocabulary, begin + part);
  const auto warp_total = [](unsigned long long x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      x += __shfl_xor_sync(~0u, x, distance);
    }
    return x;
  };
  const auto count_equal = [&] {  // s.warp_equal[w]: ids with the threshold's key before warp w's
    uint32_t mine = 0;
    for (int id = begin + team.lane; id - team.lane < end; id += 32) {
      const bool is = id < end && sample_key(__ldcg(logits + id)) == threshold;
      mine += __popc(__ballot_sync(~0u, is));
    }
    if (team.lane == 0) {
      s.warp_equal[team.warp] = mine;
    }
    team.sync();
    uint32_t before = 0;
    for (int w = 0; w < team.warp; ++w) {
      before += s.warp_equal[w];
    }
    return before;
  };
  /// Calls visit(id, fixed weight) for 32 ids at a time; 0 for those that are not kept.
  const auto walk = [&](uint32_t equal_before, auto visit) {
    for (int base = begin; base < end; base += 32) {
      const int id = base + team.lane;
      const float x = id < end ? __ldcg(logits + id) : 0;
      const uint32_t key = id < end ? sample_key(x) : 0;
      const uint32_t ties = __ballot_sync(~0u, id < end && key == threshold);
      const uint32_t rank = equal_before + __popc(ties & ((1u << team.lane) - 1));
      const bool keep = id < end && (key > threshold || (key == threshold && rank < equal));
      equal_before += __popc(ties);
      if (!visit(id, keep ? fixed(x) : 0ull)) {
        return;
      }
    }
  };
  const auto sum_kept = [&](uint32_t equal_before) {
    unsigned long long mine = 0;
    walk(equal_before, [&](int, unsigned long long w) {
      mine += w;
      return true;
    });
    mine = warp_total(mine);
    if (team.lane == 0) {
      s.warp_sums[team.warp] = mine;
    }
    team.sync();
    unsigned long long all = 0;
    for (int w = 0; w < Team::kWarps; ++w) {
      all += s.warp_sums[w];
    }
    return all;
  };

  uint32_t equal_before = count_equal();
  unsigned long long all = sum_kept(equal_before);
  if (options.top_p < 1) {
    const auto target = static_cast<unsigned long long>(static_cast<double>(options.top_p) *
                                                        static_cast<double>(all));
    const uint32_t had = threshold;
    const uint32_t had_equal = equal;
    team.sync();
    const unsigned long long wanted = select(true, target > 0 ? target : 1);
    const float logit =
        __uint_as_float((threshold & 0x80000000u) != 0 ? threshold ^ 0x80000000u : ~threshold);
    const unsigned long long each = fixed(logit);
    const uint32_t needed =
        each > 0 ? static_cast<uint32_t>((wanted + each - 1) / each) : 0xffffffffu;
    equal = threshold == had ? min(needed, had_equal) : needed;
    equal_before = count_equal();
    all = sum_kept(equal_before);
  }

  // The first id at which the running sum passes uniform * all; the last kept one if none does.
  const auto wanted =
      static_cast<unsigned long long>(static_cast<double>(uniform) * static_cast<double>(all));
  unsigned long long reached = 0;
  int last_warp = -1;
  int chosen_warp = -1;
  for (int w = 0; w < Team::kWarps; ++w) {
    if (s.warp_sums[w] > 0) {
      last_warp = w;
      if (chosen_warp < 0 && reached + s.warp_sums[w] > wanted) {
        chosen_warp = w;
      }
    }
    reached += chosen_warp < 0 ? s.warp_sums[w] : 0;
  }
  if (chosen_warp < 0) {
    chosen_warp = last_warp;  // cannot happen: uniform < 1
  }
  if (team.thread == 0) {
    s.token = best.id;  // nothing has a weight (all NaN)
  }
  team.sync();
  if (team.warp == chosen_warp) {
    walk(equal_before, [&](int id, unsigned long long w) {
      unsigned long long running = w;  // inclusive over the lanes
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const unsigned long long other = __shfl_up_sync(~0u, running, distance);
        running += team.lane >= distance ? other : 0;
      }
      const uint32_t passed = __ballot_sync(~0u, w > 0 && reached + running > wanted);
      if (passed != 0) {
        if (team.lane == __ffs(passed) - 1) {
          s.token = id;
        }
        return false;
      }
      reached += __shfl_sync(~0u, running, 31);
      return true;
    });
  }
  team.sync();
  return s.token;
}

}  // namespace weft::hopper

// sample on a resident CTA: the same choice as ops/sample/op.h defines. What is drawn from is first
// reduced to what can be drawn at all: a lower bound of the k-th best logit, or of the weights that
// top-p can reach, leaves few of a hundred thousand. Then "best first" prefixes (top-k, min-p,
// top-p) are all described by one threshold, found by radix selection: every logit above it, and of
// those equal to it the first few ids. Sums of weights are in fixed point, so that the order in
// which threads add does not matter and the draw repeats. What reads all logits has many loads on
// their way at once: one SM alone reads a large vocabulary.
#pragma once

#include "arch/hopper/resident.cuh"
#include "ops/sample/op.h"

namespace weft::hopper {

/// The best logit of some ids; ties go to the lower id. NaN counts as -infinity.
struct Candidate {
  static constexpr int32_t kNone = 0x7fffffff;

  float logit = -__builtin_inff();
  int32_t id = kNone;

  __device__ void offer(float x, int32_t i) {
    if (x > logit || (x == logit && i < id) || id == kNone) {
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
    if (id != Candidate::kNone) {
      best.offer(logit, id);
    }
  }
  return best;
}

/// Weights in fixed point, and sums of them.
using FixedWeight = unsigned long long;

/// Shared memory of sample_row().
struct SampleScratch {
  FixedWeight sums[256];
  float maxima[Team::kThreads];
  FixedWeight warp_sums[Team::kWarps];
  uint32_t warp_equal[Team::kWarps];
  Candidate warp_best[Team::kWarps];
  FixedWeight above;
  uint32_t prefix;
  float bound;
  int32_t token;
};

/// Rising with the logit, the same for both zeros; NaN is below everything.
__device__ inline uint32_t sample_key(float logit) {
  if (!(logit == logit)) {
    return 0;
  }
  const uint32_t bits = __float_as_uint(logit + 0.0f);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
/// The logit of a key.
__device__ inline float logit_of(uint32_t key) {
  return __uint_as_float((key & 0x80000000u) != 0 ? key ^ 0x80000000u : ~key);
}

/// By a warp: visit(item, i, there) for items i = 0 .. count - 1, 32 side by side (`there`: i <
/// count), until it returns false. kAhead rows of 32 are on their way at once.
template <int kAhead, class T, class Visit>
__device__ __forceinline__ void visit_items(int lane, const T* from, int count, Visit visit) {
#pragma unroll 1
  for (int base = 0; base < count; base += 32 * kAhead) {
    T items[kAhead] = {};
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + 32 * j + lane;
      if (i < count) {
        items[j] = __ldcg(from + i);
      }
    }
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int i = base + 32 * j + lane;
      if (base + 32 * j >= count || !visit(items[j], i, i < count)) {
        return;
      }
    }
  }
}

__device__ inline FixedWeight warp_sum(FixedWeight x) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}
/// Of this lane and those below it.
__device__ inline FixedWeight sum_up_to(int lane, FixedWeight x) {
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const FixedWeight other = __shfl_up_sync(~0u, x, distance);
    x += lane >= distance ? other : 0;
  }
  return x;
}

/// A warp's part of a range.
struct WarpPart {
  int begin, end;
  __device__ WarpPart(int warp, int first, int last) {
    const int part = (last - first + Team::kThreads - 1) / Team::kThreads * 32;
    begin = min(last, first + warp * part);
    end = min(last, begin + part);
  }
};

/// Draws from logits [vocabulary] (penalised in place). seen: a bit for each token so far. uniform:
/// in [0, 1). `kept`: [vocabulary], for what is left to draw from. Temperature is positive. The
/// token is in every thread.
__device__ inline int32_t sample_row(const Team& team, float* logits, int vocabulary,
                                     const SamplingOptions& options, const uint32_t* seen,
                                     float uniform, uint2* kept, SampleScratch& s) {
  constexpr int kManyAhead = 16;
  constexpr int kFewAhead = 8;
  constexpr float kOne = 1099511627776.0f;  // 2^40: a weight of 1 in fixed point
  const int lane = team.lane;
  const int warp = team.warp;

  if (options.repetition_penalty != 1) {
    const WarpPart words(warp, 0, (vocabulary + 31) / 32);
    visit_items<kFewAhead>(
        lane, seen + words.begin, words.end - words.begin, [&](uint32_t bits, int i, bool) {
          for (; bits != 0; bits &= bits - 1) {
            const int id = (words.begin + i) * 32 + __ffs(bits) - 1;
            const float x = __ldcg(logits + id);
            __stcg(logits + id,
                   x > 0 ? x / options.repetition_penalty : x * options.repetition_penalty);
          }
          __syncwarp();
          return true;
        });
    team.sync();
  }

  // The best, and each thread's best.
  const WarpPart part(warp, 0, vocabulary);
  Candidate best;
  visit_items<kManyAhead>(lane, logits + part.begin, part.end - part.begin,
                          [&](float x, int i, bool there) {
                            if (there) {
                              best.offer(x, part.begin + i);
                            }
                            return true;
                          });
  s.maxima[team.thread] = best.logit;
  best = warp_best(best);
  if (lane == 0) {
    s.warp_best[warp] = best;
  }
  team.sync();
#pragma unroll
  for (int w = 0; w < Team::kWarps; ++w) {
    if (s.warp_best[w].id != Candidate::kNone) {
      best.offer(s.warp_best[w].logit, s.warp_best[w].id);
    }
  }
  const float inverse_temperature = 1.0f / options.temperature;
  const auto weight = [&](float x) {
    const float y = expf((x - best.logit) * inverse_temperature);
    return y >= options.min_p && y == y ? y : 0.0f;
  };
  const auto fixed = [&](float y) { return static_cast<FixedWeight>(y * kOne); };
  // Leaves a warp's sum to all, and returns that of all warps.
  const auto sum_of_all = [&](FixedWeight mine) {
    mine = warp_sum(mine);
    if (lane == 0) {
      s.warp_sums[warp] = mine;
    }
    team.sync();
    FixedWeight all = 0;
    for (int w = 0; w < Team::kWarps; ++w) {
      all += s.warp_sums[w];
    }
    return all;
  };
  // The warp in whose part the running sum passes `wanted`, the last one with any weight if none
  // does; `reached`: the sum before it. -1: nothing has a weight.
  const auto choose = [&](FixedWeight wanted, FixedWeight& reached) {
    int chosen = -1;
    FixedWeight before = reached;
    for (int w = 0; w < Team::kWarps; ++w) {
      if (s.warp_sums[w] > 0) {
        chosen = w;
        reached = before;
        if (before + s.warp_sums[w] > wanted) {
          break;
        }
      }
      before += s.warp_sums[w];
    }
    return chosen;
  };
  const auto wanted_of = [&](FixedWeight all) {
    return static_cast<FixedWeight>(static_cast<double>(uniform) * static_cast<double>(all));
  };
  if (team.thread == 0) {
    s.token = best.id;  // for when nothing has a weight (all NaN)
  }
  FixedWeight reached = 0;
  // One of 32 items side by side: the first at which the running sum passes `wanted`.
  const auto found = [&](FixedWeight mine, FixedWeight wanted, int id) {
    const FixedWeight running = sum_up_to(lane, mine);
    const uint32_t passed = __ballot_sync(~0u, mine > 0 && reached + running > wanted);
    if (passed != 0 && lane == __ffs(passed) - 1) {
      s.token = id;
    }
    reached += __shfl_sync(~0u, running, 31);
    return passed != 0;
  };

  const bool by_count = options.top_k > 0 && options.top_k < vocabulary;
  if (!by_count && options.top_p >= 1) {
    // All that have a weight: an eighth of the range at a time.
    int first = 0;
    int last = vocabulary;
    FixedWeight wanted = 0;
    do {
      const WarpPart own(warp, first, last);
      FixedWeight mine = 0;
      visit_items<kManyAhead>(lane, logits + own.begin, own.end - own.begin,
                              [&](float x, int, bool there) {
                                mine += there ? fixed(weight(x)) : 0;
                                return true;
                              });
      const FixedWeight all = sum_of_all(mine);
      wanted = first == 0 && last == vocabulary ? wanted_of(all) : wanted;
      const int chosen = choose(wanted, reached);
      if (chosen < 0) {
        return s.token;
      }
      const WarpPart range(chosen, first, last);
      first = range.begin;
      last = range.end;
      team.sync();  // the sums have been read
    } while (last - first > Team::kThreads);
    if (warp == 0) {
      visit_items<kFewAhead>(lane, logits + first, last - first, [&](float x, int i, bool there) {
        return !found(there ? fixed(weight(x)) : 0, wanted, first + i);
      });
    }
    team.sync();
    return s.token;
  }

  // What can be drawn at all. Of as many threads' best logits as top-k keeps the least is a bound
  // of what it keeps. Without top-k: tokens of less than (1 - p) / vocabulary of the best's weight
  // make less than 1 - p of all, so top-p is reached before any of them.
  uint32_t bound = 0;
  if (by_count && options.top_k <= Team::kThreads) {
    const float own = s.maxima[team.thread];
    int above = 0;
    int equals = 0;
    for (int i = 0; i < Team::kThreads; ++i) {
      above += s.maxima[i] > own ? 1 : 0;
      equals += s.maxima[i] == own ? 1 : 0;
    }
    if (above < options.top_k && options.top_k <= above + equals) {
      s.bound = own;  // the same of all that find it
    }
    team.sync();
    bound = sample_key(s.bound);
  }
  const float least = 0.5f * (1 - options.top_p) / static_cast<float>(vocabulary);
  uint2* const own_kept = kept + part.begin;
  int count = 0;
  // Of 32 items side by side, puts those with `keep` at the end of a list of `length`.
  const auto append = [&](bool keep, float x, int id, int& length) {
    const uint32_t keeping = __ballot_sync(~0u, keep);
    if (keep) {
      __stcg(own_kept + length + __popc(keeping & ((1u << lane) - 1)),
             uint2{__float_as_uint(x), static_cast<uint32_t>(id)});
    }
    length += __popc(keeping);
  };
  FixedWeight of_all = 0;
  visit_items<kManyAhead>(
      lane, logits + part.begin, part.end - part.begin, [&](float x, int i, bool there) {
        const float y = there && !by_count ? weight(x) : 0;
        of_all += fixed(y);
        const bool keep = there && (by_count ? sample_key(x) >= bound : y > 0 && y >= least);
        append(keep, x, part.begin + i, count);
        return true;
      });
  __syncwarp();
  FixedWeight all = sum_of_all(of_all);
  const auto visit_kept = [&](auto visit) {
    visit_items<kFewAhead>(lane, own_kept, count, [&](uint2 item, int, bool there) {
      return visit(__uint_as_float(item.x), static_cast<int32_t>(item.y), there);
    });
  };

  // The prefix: keys above `threshold`, and the first `equal` ids with that key.
  uint32_t threshold = 0;
  uint32_t equal = 0xffffffffu;
  uint32_t equal_before = 0;  // ids with that key before this warp's
  const auto share_of = [&](FixedWeight whole) {
    const auto share =
        static_cast<FixedWeight>(static_cast<double>(options.top_p) * static_cast<double>(whole));
    return share > 0 ? share : 1;
  };

  // Without top-k many may be left. Sums of weights by their magnitude tell which are enough for
  // top-p.
  if (!by_count) {
    constexpr int kSteps = 8;
    constexpr int kBits = 3;  // powers of two in a step
    const auto step_of = [](float y) {
      return min((127 - static_cast<int>(__float_as_uint(y) >> 23)) / kBits, kSteps - 1);
    };
    FixedWeight of_step[kSteps] = {};
    visit_kept([&](float x, int32_t, bool there) {
      const float y = there ? weight(x) : 0;
      const int step = step_of(y);
#pragma unroll
      for (int i = 0; i < kSteps; ++i) {
        of_step[i] += step == i ? fixed(y) : 0;
      }
      return true;
    });
    const FixedWeight target = share_of(all);
    FixedWeight upper = 0;
    int steps = 0;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (upper < target) {
        team.sync();  // the last sum has been read
        upper += sum_of_all(of_step[i]);
        steps = i + 1;
      }
    }
    int left = 0;  // in the same place: never beyond what has been read
    visit_kept([&](float x, int32_t id, bool there) {
      append(there && step_of(weight(x)) < steps, x, id, left);
      return true;
    });
    __syncwarp();
    count = left;
  }

  // Top-k by count, then top-p by weight.
#pragma unroll 1
  for (const bool by_weight : {false, true}) {
    if (by_weight ? options.top_p >= 1 : !by_count) {
      continue;
    }
    const uint32_t had = threshold;
    const uint32_t had_equal = equal;
    FixedWeight target = static_cast<FixedWeight>(options.top_k);
    if (by_weight) {
      target = share_of(all);
    }
    // One radix digit at a time, from the highest: which key is the last of the prefix?
    uint32_t prefix = 0;
    FixedWeight above = 0;  // count or weight of keys above the prefix's range
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
      s.sums[team.thread] = 0;
      team.sync();
      const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
      visit_kept([&](float x, int32_t, bool there) {
        const uint32_t key = sample_key(x);
        const bool in_prefix = key > had || (key == had && had_equal > 0);
        if (there && (key & mask) == prefix && (!by_weight || in_prefix)) {
          atomicAdd(&s.sums[key >> shift & 255], by_weight ? fixed(weight(x)) : FixedWeight{1});
        }
        return true;
      });
      team.sync();
      if (warp == 0) {
        // Eight digits a lane, from the highest on.
        constexpr int kDigits = 256 / 32;
        const int highest = 255 - kDigits * lane;
        FixedWeight own = 0;
        for (int i = 0; i < kDigits; ++i) {
          own += s.sums[highest - i];
        }
        FixedWeight before = above + sum_up_to(lane, own) - own;
        const uint32_t reaching = __ballot_sync(~0u, before + own >= target);
        if (lane == (reaching != 0 ? __ffs(reaching) - 1 : 31)) {
          int digit = highest;
          while (digit > highest - kDigits + 1 && before + s.sums[digit] < target) {
            before += s.sums[digit--];
          }
          s.prefix = prefix | static_cast<uint32_t>(digit) << shift;
          s.above = before;
        }
      }
      team.sync();
      prefix = s.prefix;
      above = s.above;
    }
    threshold = prefix;
    const FixedWeight still = target - above;  // wanted of the keys equal to the threshold
    if (by_weight) {
      const FixedWeight each = fixed(weight(logit_of(threshold)));
      const uint32_t needed =
          each > 0 ? static_cast<uint32_t>((still + each - 1) / each) : 0xffffffffu;
      equal = threshold == had ? min(needed, had_equal) : needed;
    } else {
      equal = static_cast<uint32_t>(still);
    }

    uint32_t equals = 0;
    FixedWeight of_better = 0;  // of keys above the threshold
    visit_kept([&](float x, int32_t, bool there) {
      const uint32_t key = there ? sample_key(x) : 0;
      equals += __popc(__ballot_sync(~0u, there && key == threshold));
      of_better += there && key > threshold ? fixed(weight(x)) : 0;
      return true;
    });
    if (lane == 0) {
      s.warp_equal[warp] = equals;
    }
    team.sync();
    equal_before = 0;
    for (int w = 0; w < warp; ++w) {
      equal_before += s.warp_equal[w];
    }
    const uint32_t own_equals = equal > equal_before ? min(equals, equal - equal_before) : 0;
    const FixedWeight of_equals =
        lane == 0 && own_equals > 0 ? own_equals * fixed(weight(logit_of(threshold))) : 0;
    all = sum_of_all(of_better + of_equals);
  }

  // The first id at which the running sum passes uniform * all.
  const FixedWeight wanted = wanted_of(all);
  if (warp == choose(wanted, reached)) {
    visit_kept([&](float x, int32_t id, bool there) {
      const uint32_t key = there ? sample_key(x) : 0;
      const uint32_t ties = __ballot_sync(~0u, there && key == threshold);
      const uint32_t rank = equal_before + __popc(ties & ((1u << lane) - 1));
      const bool keep = there && (key > threshold || (key == threshold && rank < equal));
      equal_before += __popc(ties);
      return !found(keep ? fixed(weight(x)) : 0, wanted, id);
    });
  }
  team.sync();
  return s.token;
}

}  // namespace weft::hopper

// sample on the resident kernel: the same choice as ops/sample/op.h defines. "Best first" prefixes
// (top-k, top-p) are described by one threshold, found by radix selection: every logit above it,
// and of those equal to it the ids up to one. Sums of weights are in fixed point, so that the order
// in which threads add does not matter and the draw repeats. Every pass reads all logits.
#pragma once

#include "engine/cdna/decode/next_token.hip.h"

namespace weft::cdna {

/// LDS of a draw, in place of the row.
struct SampleScratch {
  uint64_t digits[256];
  uint64_t waves[kTeamWaves];
  uint32_t digit;
  uint64_t above;
};
static_assert(sizeof(SampleScratch) <= sizeof(shared.row));
WEFT_GPU SampleScratch& sample_scratch() { return *reinterpret_cast<SampleScratch*>(shared.row); }

/// x of a lane.
WEFT_GPU uint64_t of_lane(uint64_t x, int lane) {
  const auto half = [&](uint64_t bits) {
    return static_cast<uint32_t>(
        __builtin_amdgcn_ds_bpermute(4 * lane, static_cast<int>(static_cast<uint32_t>(bits))));
  };
  return half(x) | static_cast<uint64_t>(half(x >> 32)) << 32;
}
/// Of this lane and those below it.
WEFT_GPU uint64_t sum_up_to(uint64_t x) {
  const int lane = lane_index();
#pragma unroll 1
  for (int distance = 1; distance < kWaveLanes; distance *= 2) {
    const uint64_t other = of_lane(x, lane - distance);
    x += lane >= distance ? other : 0;
  }
  return x;
}

/// A row of logits, by the team.
class SampleRow {
 public:
  __device__ __attribute__((always_inline)) SampleRow(Global<const float> logits, int vocabulary)
      : logits_(logits), vocabulary_(vocabulary) {}

  /// visit(id, logit) of first .. last - 1, this wave's lanes side by side; an id of -1: there is
  /// none.
  template <class Visit>
  __device__ __attribute__((always_inline)) void visit(int first, int last,
                                                       const Visit& visit) const {
    constexpr int kAtOnce = 4;
#pragma unroll 1
    for (int base = first + lane_index(); any_lane(base < last); base += kAtOnce * kWaveLanes) {
      float x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        x[i] = load_shared_word<float>(logits_ +
                                       __builtin_elementwise_min(base + i * kWaveLanes, last - 1));
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int id = base + i * kWaveLanes;
        visit(id < last ? id : -1, x[i]);
      }
    }
  }
  /// A wave's part of a range.
  struct Part {
    int first, last;
    __device__ __attribute__((always_inline)) Part(int wave, int begin, int end) {
      const int each = ceil_div(end - begin, kTeamWaves);
      first = __builtin_elementwise_min(end, begin + wave * each);
      last = __builtin_elementwise_min(end, first + each);
    }
  };
  __device__ __attribute__((always_inline)) Part own() const {
    return {wave_index(), 0, vocabulary_};
  }

  /// Leaves each wave's sum of f(id, logit) over its part of a range in LDS.
  template <class F>
  __device__ __attribute__((always_inline)) void sum_parts(int begin, int end, const F& f) const {
    const Part part(wave_index(), begin, end);
    uint64_t sum = 0;
    visit(part.first, part.last, [&](int id, float x) { sum += id >= 0 ? f(id, x) : 0; });
    sum = sum_up_to(sum);
    barrier();  // the sums before have been read
    if (lane_index() == kWaveLanes - 1) {
      sample_scratch().waves[wave_index()] = sum;
    }
    barrier();
  }
  template <class F>
  __device__ __attribute__((always_inline)) uint64_t sum(const F& f) const {
    sum_parts(0, vocabulary_, f);
    uint64_t all = 0;
#pragma unroll 1
    for (int wave = 0; wave < kTeamWaves; ++wave) {
      all += sample_scratch().waves[wave];
    }
    return all;
  }
  /// The first id at which the running sum of f passes `wanted`, the last one with any f if none
  /// does; -1: there is no f.
  template <class F>
  __device__ __attribute__((always_inline)) int find(uint64_t wanted, const F& f) const {
    int first = 0;
    int last = vocabulary_;
    uint64_t reached = 0;  // before `first`
#pragma unroll 1
    do {
      sum_parts(first, last, f);
      int chosen = -1;
      uint64_t before = reached;
#pragma unroll 1
      for (int wave = 0; wave < kTeamWaves; ++wave) {
        const uint64_t own = sample_scratch().waves[wave];
        if (own > 0) {
          chosen = wave;
          reached = before;
          if (before + own > wanted) {
            break;
          }
        }
        before += own;
      }
      if (chosen < 0) {
        return -1;
      }
      const Part part(chosen, first, last);
      first = part.first;
      last = part.last;
    } while (last - first > kWaveLanes);
    const int id = __builtin_elementwise_min(first + lane_index(), last - 1);
    const uint64_t mine =
        first + lane_index() < last ? f(id, load_shared_word<float>(logits_ + id)) : 0;
    const uint64_t running = reached + sum_up_to(mine);
    const uint64_t passed = __builtin_amdgcn_ballot_w64(mine > 0 && running > wanted);
    const uint64_t some = __builtin_amdgcn_ballot_w64(mine > 0);
    return first + (passed != 0 ? __builtin_ctzll(passed) : 63 - __builtin_clzll(some));
  }

  /// The key at which the running sum of f, from the highest key on, reaches `target`; `above`: the
  /// sum of higher keys.
  template <class F>
  __device__ __attribute__((always_inline)) uint32_t select(uint64_t target, uint64_t& above,
                                                            const F& f) const {
    SampleScratch& scratch = sample_scratch();
    uint32_t prefix = 0;
    above = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
      barrier();
      if (thread_index() < 256) {
        scratch.digits[thread_index()] = 0;
      }
      barrier();
      const uint32_t mask = shift == 24 ? 0 : ~0u << (shift + 8);
      const Part part = own();
      visit(part.first, part.last, [&](int id, float x) {
        const uint32_t key = sample_key(x);
        if (id >= 0 && (key & mask) == prefix) {
          const uint64_t y = f(id, x);
          if (y > 0) {
            __hip_atomic_fetch_add(&scratch.digits[key >> shift & 255], y, __ATOMIC_RELAXED,
                                   __HIP_MEMORY_SCOPE_WORKGROUP);
          }
        }
      });
      barrier();
      if (thread_index() == 0) {
        int digit = 255;
        while (digit > 0 && above + scratch.digits[digit] < target) {
          above += scratch.digits[digit--];
        }
        scratch.digit = static_cast<uint32_t>(digit);
        scratch.above = above;
      }
      barrier();
      prefix |= scratch.digit << shift;
      above = scratch.above;
    }
    return prefix;
  }

 private:
  const Global<const float> logits_;
  const int vocabulary_;
};

/// Draws from logits [vocabulary] (penalised in place). seen: a bit for each token so far. uniform:
/// in [0, 1). Temperature is positive. The token is in every thread.
WEFT_GPU int sample_row(Global<float> logits, int vocabulary, float temperature, int top_k,
                        float top_p, float min_p, float penalty, Global<uint32_t> seen,
                        float uniform) {
  constexpr float kOne = 1099511627776.0f;  // 2^40: a weight of 1 in fixed point
  const SampleRow row((Global<const float>)logits, vocabulary);
  if (penalty != 1) {
    for (int word = thread_index(); word < ceil_div(vocabulary, 32); word += kTeamThreads) {
      for (uint32_t bits = load_shared_word<uint32_t>((Global<const uint32_t>)seen + word);
           bits != 0; bits &= bits - 1) {
        const int id = word * 32 + __builtin_ctz(bits);
        const float x = load_shared_word<float>((Global<const float>)logits + id);
        store_shared_word<float>(logits + id, x > 0 ? x / penalty : x * penalty);
      }
    }
    await_stores();
    barrier();
  }
  Candidate best;
  const SampleRow::Part part = row.own();
  row.visit(part.first, part.last, [&](int id, float x) {
    if (id >= 0) {
      best.offer(x, id);
    }
  });
  best = team_best(best);
  const float inverse_temperature = 1.0f / temperature;
  const auto fixed = [&](float x) {
    const float y = exp_fast((x - best.logit) * inverse_temperature);
    return y >= min_p && y == y ? static_cast<uint64_t>(y * kOne) : 0;
  };

  // The prefix: keys above `threshold`, and the ids up to `last_tie` with that key.
  uint32_t threshold = 0;
  int last_tie = vocabulary;
  const auto in_prefix = [&](int id, uint32_t key) {
    return key > threshold || (key == threshold && id <= last_tie);
  };
  const auto weight = [&](int id, float x) -> uint64_t {
    return in_prefix(id, sample_key(x)) ? fixed(x) : 0;
  };
  // Of what is in the prefix, and has the key of `at`, no more than the first `count` ids.
  const auto cut = [&](uint32_t at, uint64_t count) {
    const int end = row.find(count - 1, [&](int id, float x) -> uint64_t {
      const uint32_t key = sample_key(x);
      return key == at && in_prefix(id, key) ? 1 : 0;
    });
    threshold = at;
    last_tie = end;
  };
  if (top_k > 0 && top_k < vocabulary) {
    uint64_t above = 0;
    const uint32_t at =
        row.select(static_cast<uint64_t>(top_k), above, [](int, float) -> uint64_t { return 1; });
    cut(at, static_cast<uint64_t>(top_k) - above);
  }
  uint64_t all = row.sum(weight);
  if (top_p < 1 && all > 0) {
    const auto share = static_cast<uint64_t>(static_cast<double>(top_p) * static_cast<double>(all));
    const uint64_t target = share > 0 ? share : 1;
    uint64_t above = 0;
    const uint32_t at = row.select(target, above, weight);
    const uint64_t each = fixed(logit_of(at));
    cut(at, each > 0 ? (target - above + each - 1) / each : static_cast<uint64_t>(vocabulary));
    all = row.sum(weight);
  }
  const int token = row.find(
      static_cast<uint64_t>(static_cast<double>(uniform) * static_cast<double>(all)), weight);
  return token >= 0 ? token : best.id;  // nothing has a weight: all are NaN
}

/// Draws the next token from its logits, unless it is forced, and publishes it.
WEFT_GPU void sample(const Worker& worker, CodeRef code) {
  Candidate drawn;
  if (!worker.forced(worker.step)) {
    const auto& launch = *worker.arguments;
    const auto& options = launch.sampling;
    // Greedy with a penalty: the best of what it leaves.
    const bool greedy = options.temperature == 0;
    const int vocabulary = code.sample.vocabulary;
    const int sequence = kSeveral ? code.sample.sequence : 0;
    const auto seen = (Global<uint32_t>)reinterpret_cast<uintptr_t>(launch.seen) +
                      sequence * ceil_div(vocabulary, 32);
    drawn.id = sample_row(
        worker.at<float>(code.sample.logits) + static_cast<int64_t>(sequence) * vocabulary,
        vocabulary, greedy ? 1 : options.temperature, greedy ? 1 : options.top_k,
        greedy ? 1 : options.top_p, greedy ? 0 : options.min_p, options.repetition_penalty, seen,
        constant(launch.uniforms)[sequence * launch.steps + worker.step]);
    if (thread_index() == 0) {
      const auto word = seen + drawn.id / 32;
      store_shared_word<uint32_t>(
          word, load_shared_word<uint32_t>((Global<const uint32_t>)word) | 1u << (drawn.id % 32));
    }
  }
  if (thread_index() == 0) {
    publish(worker, code.sample.sequence, drawn);
  }
}

}  // namespace weft::cdna

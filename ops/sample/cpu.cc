// sample on the CPU. Nothing is sorted that need not be: greedy is one vector pass; top-k and top-p
// select by partition, and the draw walks the survivors in id order.
#include "ops/sample/op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// The largest of count logits, NaN counting as -infinity.
float largest(const float* logits, int64_t count) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto none = hn::Set(d, -__builtin_inff());
  FloatVec best[4] = {none, none, none, none};
  const auto number = [&](FloatVec v) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(v), none, v); };
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    for (int64_t j = 0; j < 4; ++j) {
      best[j] = hn::Max(best[j], number(load(d, logits + i + j * lanes)));
    }
  }
  for (; i + lanes <= count; i += lanes) {
    best[0] = hn::Max(best[0], number(load(d, logits + i)));
  }
  float result =
      hn::GetLane(hn::MaxOfLanes(d, hn::Max(hn::Max(best[0], best[1]), hn::Max(best[2], best[3]))));
  for (; i < count; ++i) {
    result = logits[i] > result ? logits[i] : result;
  }
  return result;
}

/// The first id whose logit is `value`; 0 if there is none.
int32_t first_equal(const float* logits, int64_t count, float value) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto wanted = hn::Set(d, value);
  int64_t i = 0;
  while (i + lanes <= count && hn::AllFalse(d, hn::Eq(load(d, logits + i), wanted))) {
    i += lanes;
  }
  for (; i < count; ++i) {
    if (logits[i] == value) {
      return static_cast<int32_t>(i);
    }
  }
  return 0;
}

/// weights[i] = exp((logits[i] - best) * inverse_temperature); NaN becomes 0.
void weigh(const float* logits, int64_t count, float best, float inverse_temperature,
           float* weights) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto top = hn::Set(d, best);
  const auto factor = hn::Set(d, inverse_temperature);
  const auto weight = [&](FloatVec logit) HWY_ATTR {
    const auto y = exp(d, hn::Mul(hn::Sub(logit, top), factor));
    return hn::IfThenZeroElse(hn::IsNaN(y), y);
  };
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, weight(load(d, logits + i)), weights + i);
  }
  if (i < count) {
    store_first(d, weight(load_first(d, logits + i, count - i)), weights + i, count - i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"
#include "base/check.h"

namespace weft::cpu {
namespace {

/// Applies the repetition penalty once to each distinct token of the history. `seen`: a bit a
/// token.
void penalise(const SampleArgs& args, std::span<uint64_t> seen) {
  std::fill(seen.begin(), seen.end(), 0);
  for (const int32_t id : args.history) {
    if (id < 0 || id >= args.vocabulary || (seen[id / 64] >> (id % 64) & 1) != 0) {
      continue;
    }
    seen[id / 64] |= uint64_t{1} << (id % 64);
    float& logit = args.logits[id];
    logit = logit > 0 ? logit / args.options.repetition_penalty
                      : logit * args.options.repetition_penalty;
  }
}

constexpr int64_t words(int64_t vocabulary) { return (vocabulary + 63) / 64; }

}  // namespace

size_t sample_scratch_bytes(int64_t vocabulary) {
  return words(vocabulary) * sizeof(uint64_t) + vocabulary * (sizeof(float) + sizeof(int32_t));
}

int32_t sample(const SampleArgs& args, std::span<std::byte> scratch) {
  WEFT_CHECK(scratch.size() >= sample_scratch_bytes(args.vocabulary));
  const SamplingOptions& options = args.options;
  const int64_t vocabulary = args.vocabulary;
  const std::span<uint64_t> seen(reinterpret_cast<uint64_t*>(scratch.data()), words(vocabulary));
  auto* weights = reinterpret_cast<float*>(seen.data() + seen.size());
  auto* ids = reinterpret_cast<int32_t*>(weights + vocabulary);

  if (options.repetition_penalty != 1) {
    penalise(args, seen);
  }
  const float best = WEFT_CPU_DISPATCH(largest)(args.logits, vocabulary);
  if (best == -std::numeric_limits<float>::infinity()) {
    return 0;  // all are -infinity or NaN, which are equal
  }
  if (options.temperature <= 0 || std::isinf(best)) {
    return WEFT_CPU_DISPATCH(first_equal)(args.logits, vocabulary, best);
  }
  WEFT_CPU_DISPATCH(weigh)
  (args.logits, vocabulary, best, 1 / options.temperature, weights);

  // Candidates in rising id: those that min-p leaves.
  int32_t* end = ids;
  for (int32_t id = 0; id < vocabulary; ++id) {
    *end = id;
    end += weights[id] > 0 && weights[id] >= options.min_p ? 1 : 0;
  }
  const auto better = [&](int32_t a, int32_t b) {
    return args.logits[a] != args.logits[b] ? args.logits[a] > args.logits[b] : a < b;
  };
  const auto sum_of = [&](const int32_t* first, const int32_t* last) {
    double sum = 0;
    for (; first != last; ++first) {
      sum += weights[*first];
    }
    return sum;
  };
  if (options.top_k > 0 && options.top_k < end - ids) {
    std::nth_element(ids, ids + options.top_k, end, better);
    end = ids + options.top_k;
  }
  double sum = sum_of(ids, end);
  if (options.top_p < 1) {
    // Sort the best in growing batches until they reach top_p of the sum.
    const double wanted = options.top_p * sum;
    double reached = 0;
    int32_t* kept = ids;
    int32_t* sorted = ids;
    while (kept == ids || (reached < wanted && kept != end)) {
      if (kept == sorted) {
        const int64_t batch = std::min<int64_t>(end - sorted, std::max<int64_t>(256, sorted - ids));
        std::partial_sort(sorted, sorted + batch, end, better);
        sorted += batch;
      }
      reached += weights[*kept++];
    }
    end = kept;
    sum = reached;
  }
  if (options.top_k > 0 || options.top_p < 1) {
    std::sort(ids, end);
  }

  const double wanted = uniform_draw(options.seed, args.draw) * sum;
  double reached = 0;
  for (const int32_t* id = ids; id != end; ++id) {
    reached += weights[*id];
    if (reached > wanted) {
      return *id;
    }
  }
  return end[-1];
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

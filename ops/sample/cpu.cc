// sample on the CPU. A vector pass finds the maximum of each block of logits, another one turns
// logits into weights and sums each block; what follows looks into few blocks. The k-th largest of
// the maxima bounds the k-th largest logit from below, which leaves top-k and top-p little to sort.
#include "ops/sample/op.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/sample/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// Logits are summed up block by block, so that most searches touch few of them.
inline constexpr int64_t kBlock = 256;

/// maxima[b]: the largest logit of block b, NaN counting as -infinity.
void find_maxima(const float* logits, int64_t count, float* maxima) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto none = hn::Set(d, -__builtin_inff());
  const auto number = [&](FloatVec v) HWY_ATTR { return hn::IfThenElse(hn::IsNaN(v), none, v); };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    auto best = none;
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      best = hn::Max(best, number(load(d, logits + i)));
    }
    float maximum = hn::GetLane(hn::MaxOfLanes(d, best));
    for (; i < end; ++i) {
      maximum = logits[i] > maximum ? logits[i] : maximum;
    }
    maxima[begin / kBlock] = maximum;
  }
}

/// weights[i] = exp((logits[i] - best) * inverse_temperature), 0 where that is below min_p or NaN.
/// sums[b]: of the weights of block b.
void weigh(const float* logits, int64_t count, float best, float inverse_temperature, float min_p,
           float* weights, float* sums) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto top = hn::Set(d, best);
  const auto factor = hn::Set(d, inverse_temperature);
  const auto least = hn::Set(d, min_p);
  const auto weight = [&](FloatVec logit) HWY_ATTR {
    const auto y = exp(d, hn::Mul(hn::Sub(logit, top), factor));
    return hn::IfThenElseZero(hn::Ge(y, least), y);
  };
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, count);
    auto sum = hn::Zero(d);
    int64_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      const auto y = weight(load(d, logits + i));
      sum = hn::Add(sum, y);
      store(d, y, weights + i);
    }
    float total = hn::GetLane(hn::SumOfLanes(d, sum));
    if (i < end) {
      store_first(d, weight(load_first(d, logits + i, end - i)), weights + i, end - i);
      for (; i < end; ++i) {
        total += weights[i];
      }
    }
    sums[begin / kBlock] = total;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"
#include "base/check.h"
#include "base/divide.h"

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
constexpr int64_t kBlock = N_SCALAR::kBlock;
constexpr int64_t blocks(int64_t vocabulary) { return ceil_div(vocabulary, kBlock); }

/// The first id in rising order, of those that `next` gives until it gives -1, at which the running
/// sum of weights passes `wanted`; the last with a weight if none does.
template <class Next>
int32_t draw(const float* weights, double wanted, double reached, Next next) {
  int32_t last = 0;
  for (int32_t id = next(); id >= 0; id = next()) {
    if (weights[id] > 0) {
      last = id;
      reached += weights[id];
      if (reached > wanted) {
        break;
      }
    }
  }
  return last;
}

/// The state of one call, in its scratch.
class Sampler {
 public:
  Sampler(const SampleArgs& args, std::byte* scratch)
      : args_(args),
        seen_(reinterpret_cast<uint64_t*>(scratch), words(args.vocabulary)),
        weights_(reinterpret_cast<float*>(seen_.data() + seen_.size())),
        maxima_(weights_ + args.vocabulary),
        sorted_maxima_(maxima_ + blocks(args.vocabulary)),
        sums_(sorted_maxima_ + blocks(args.vocabulary)),
        ids_(reinterpret_cast<int32_t*>(sums_ + blocks(args.vocabulary))) {}

  static size_t scratch_bytes(int64_t vocabulary) {
    return words(vocabulary) * sizeof(uint64_t) + vocabulary * (sizeof(float) + sizeof(int32_t)) +
           3 * blocks(vocabulary) * sizeof(float);
  }

  int32_t run() {
    const SamplingOptions& options = args_.options;
    if (options.repetition_penalty != 1) {
      penalise(args_, seen_);
    }
    WEFT_CPU_DISPATCH(find_maxima)(args_.logits, args_.vocabulary, maxima_);
    const float* at = std::max_element(maxima_, maxima_ + block_count_);
    if (*at == -std::numeric_limits<float>::infinity()) {
      return 0;  // all are -infinity or NaN, which are equal
    }
    if (options.temperature <= 0 || std::isinf(*at)) {
      const float* all = args_.logits;
      const float* end = all + args_.vocabulary;
      return static_cast<int32_t>(std::find(all + (at - maxima_) * kBlock, end, *at) - all);
    }
    WEFT_CPU_DISPATCH(weigh)
    (args_.logits, args_.vocabulary, *at, 1 / options.temperature, options.min_p, weights_, sums_);
    const bool top_k = options.top_k > 0 && options.top_k < args_.vocabulary;
    return top_k || options.top_p < 1 ? draw_among_best(top_k) : draw_among_all();
  }

 private:
  double uniform() const { return uniform_draw(args_.options.seed, args_.draw); }

  int32_t draw_among_all() const {
    const double wanted = uniform() * std::accumulate(sums_, sums_ + block_count_, 0.0);
    double reached = 0;
    int64_t block = 0;
    while (block + 1 < block_count_ && reached + sums_[block] <= wanted) {
      reached += sums_[block++];
    }
    while (sums_[block] == 0) {  // rounding ran past the last weight; the best one's is not 0
      reached -= sums_[--block];
    }
    int64_t id = block * kBlock;
    const int64_t end = std::min(id + kBlock, args_.vocabulary);
    return draw(weights_, wanted, reached,
                [&] { return id < end ? static_cast<int32_t>(id++) : -1; });
  }

  int32_t draw_among_best(bool top_k) {
    const double top_p = args_.options.top_p;
    int32_t* end = ids_;
    double sum = 0;
    if (top_k) {
      end = sort_best(args_.options.top_k);
      sum = sum_of(end);
    } else {
      sum = std::accumulate(sums_, sums_ + block_count_, 0.0);
    }
    if (top_p < 1) {
      double reached = 0;
      int32_t* kept = ids_;
      for (int64_t count = 128; kept == ids_ || reached < top_p * sum; count *= 8) {
        if (!top_k) {
          end = sort_best(std::min(count, args_.vocabulary));
        }
        reached = 0;
        kept = ids_;
        while (kept != end && (kept == ids_ || reached < top_p * sum)) {
          reached += weights_[*kept++];
        }
        if (top_k || count >= args_.vocabulary) {
          break;
        }
      }
      end = kept;
      sum = reached;
    }
    std::sort(ids_, end);
    const int32_t* id = ids_;
    return draw(weights_, uniform() * sum, 0, [&] { return id != end ? *id++ : -1; });
  }

  /// Puts the `count` best tokens into ids_, best first. Returns their end.
  int32_t* sort_best(int64_t count) {
    float bound = -std::numeric_limits<float>::infinity();
    if (count <= block_count_) {
      std::copy(maxima_, maxima_ + block_count_, sorted_maxima_);
      std::nth_element(sorted_maxima_, sorted_maxima_ + count - 1, sorted_maxima_ + block_count_,
                       std::greater<>());
      bound = sorted_maxima_[count - 1];
    }
    int32_t* end = ids_;
    for (int64_t block = 0; block < block_count_; ++block) {
      if (maxima_[block] >= bound) {
        for (int64_t id = block * kBlock; id < std::min((block + 1) * kBlock, args_.vocabulary);
             ++id) {
          *end = static_cast<int32_t>(id);
          end += args_.logits[id] >= bound ? 1 : 0;  // not NaN
        }
      }
    }
    int32_t* last = ids_ + std::min<int64_t>(count, end - ids_);
    std::partial_sort(ids_, last, end, [&](int32_t a, int32_t b) {
      return args_.logits[a] != args_.logits[b] ? args_.logits[a] > args_.logits[b] : a < b;
    });
    return last;
  }

  double sum_of(const int32_t* end) const {
    double sum = 0;
    for (const int32_t* id = ids_; id != end; ++id) {
      sum += weights_[*id];
    }
    return sum;
  }

  const SampleArgs& args_;
  const int64_t block_count_ = blocks(args_.vocabulary);
  std::span<uint64_t> seen_;  // a bit a token
  float* weights_;            // [vocabulary]
  float* maxima_;             // [block]
  float* sorted_maxima_;      // [block]
  float* sums_;               // [block]
  int32_t* ids_;              // [vocabulary]
};

}  // namespace

size_t sample_scratch_bytes(int64_t vocabulary) { return Sampler::scratch_bytes(vocabulary); }

int32_t sample(const SampleArgs& args, std::span<std::byte> scratch) {
  WEFT_CHECK(scratch.size() >= sample_scratch_bytes(args.vocabulary));
  return Sampler(args, scratch.data()).run();
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

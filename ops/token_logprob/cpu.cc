// token_logprob on the CPU: two passes over a row, the largest logit and the sum of exponentials.
// Sums of short runs are added in double: a vocabulary's worth of terms in f32 would lose digits.
#include "ops/token_logprob/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/token_logprob/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

float largest_of(const float* x, int64_t columns) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  auto largest = hn::Set(d, x[0]);
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    largest = hn::Max(largest, load(d, x + c));
  }
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; c < columns; ++c) {
    result = x[c] > result ? x[c] : result;
  }
  return result;
}

double sum_of_exponentials(const float* x, int64_t columns, float peak) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const int64_t run_columns = 16 * lanes;  // what a lane adds up loses 16 units at most
  const auto origin = hn::Set(d, peak);
  double sum = 0;
  for (int64_t begin = 0; begin < columns; begin += run_columns) {
    const int64_t end = begin + run_columns < columns ? begin + run_columns : columns;
    auto run = hn::Zero(d);
    int64_t c = begin;
    for (; c + lanes <= end; c += lanes) {
      run = hn::Add(run, exp(d, hn::Sub(load(d, x + c), origin)));
    }
    if (c < end) {
      const auto rest = exp(d, hn::Sub(load_first(d, x + c, end - c), origin));
      run = hn::Add(run, hn::IfThenElseZero(hn::FirstN(d, end - c), rest));
    }
    sum += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, run)));
  }
  return sum;
}

void token_logprob_rows(const TokenLogprobArgs& args, Range rows) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* x = row<float>(args.logits, r);
    const float peak = largest_of(x, args.columns);
    const double sum = sum_of_exponentials(x, args.columns, peak);
    args.out[r] = static_cast<float>(static_cast<double>(x[args.tokens[r]]) -
                                     static_cast<double>(peak) - std::log(sum));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void token_logprob(const TokenLogprobArgs& args, Range rows) {
  WEFT_CPU_DISPATCH(token_logprob_rows)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

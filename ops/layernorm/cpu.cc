// layernorm on the CPU: three passes over a row that stays in the first-level cache, so that the
// variance is a sum of squared differences, which does not cancel.
#include "ops/layernorm/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/layernorm/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// The sum of term(vector) over a row, lanes beyond its end left out. Four accumulators, so that a
/// sum of thousands is good to 1e-6.
template <class Term>
HWY_INLINE float sum_of(const float* x, int64_t columns, Term term) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  FloatVec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t c = 0;
  for (; c + 4 * lanes <= columns; c += 4 * lanes) {
    for (int64_t i = 0; i < 4; ++i) {
      sums[i] = hn::Add(sums[i], term(hn::LoadU(d, x + c + i * lanes)));
    }
  }
  for (int64_t i = 0; c < columns; ++i, c += lanes) {
    if (columns - c >= lanes) {
      sums[i] = hn::Add(sums[i], term(load(d, x + c)));
    } else {
      const auto rest = term(load_first(d, x + c, columns - c));
      sums[i] = hn::Add(sums[i], hn::IfThenElseZero(hn::FirstN(d, columns - c), rest));
    }
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

/// out may be x.
template <class W, class Out>
void normalise_row(const LayerNormArgs& args, const float* x, Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const int64_t columns = args.columns;
  const auto* weight = static_cast<const W*>(args.weight.data);
  const auto* bias = static_cast<const W*>(args.bias.data);
  const auto count = static_cast<float>(columns);
  const auto mean = hn::Set(d, sum_of(x, columns, [](FloatVec v) HWY_ATTR { return v; }) / count);
  const float variance = sum_of(x, columns,
                                [&](FloatVec v) HWY_ATTR {
                                  const auto difference = hn::Sub(v, mean);
                                  return hn::Mul(difference, difference);
                                }) /
                         count;
  const auto inverse = hn::Set(d, 1.0f / std::sqrt(variance + args.epsilon));
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    const auto y = hn::Mul(hn::Sub(load(d, x + c), mean), inverse);
    store(d, hn::MulAdd(y, load(d, weight + c), load(d, bias + c)), out + c);
  }
  if (c < columns) {
    const size_t rest = columns - c;
    const auto y = hn::Mul(hn::Sub(load_first(d, x + c, rest), mean), inverse);
    store_first(d, hn::MulAdd(y, load_first(d, weight + c, rest), load_first(d, bias + c, rest)),
                out + c, rest);
  }
}

void layernorm_rows(const LayerNormArgs& args, Range rows) {
  with_type(args.weight.dtype, [&](auto w) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const float* x = row<float>(args.x, r);
      if (args.out.dtype == DType::bf16) {
        normalise_row<decltype(w)>(args, x, row<bf16>(args.out, r));
      } else {
        normalise_row<decltype(w)>(args, x, row<float>(args.out, r));
      }
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void layernorm(const LayerNormArgs& args, Range rows) {
  WEFT_CPU_DISPATCH(layernorm_rows)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

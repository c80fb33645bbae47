// rmsnorm on the CPU: two passes over a row that stays in the first-level cache. The sum of squares
// runs in four vector accumulators, so that an f32 sum of thousands of squares is good to 1e-6.
#include "ops/rmsnorm/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rmsnorm/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

float sum_of_squares(const float* x, int64_t columns) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  FloatVec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  int64_t c = 0;
  for (; c + 4 * lanes <= columns; c += 4 * lanes) {
    for (int64_t i = 0; i < 4; ++i) {
      const auto v = hn::LoadU(d, x + c + i * lanes);
      sums[i] = hn::MulAdd(v, v, sums[i]);
    }
  }
  for (int64_t i = 0; c < columns; ++i, c += lanes) {
    const auto v = columns - c < lanes ? load_first(d, x + c, columns - c) : load(d, x + c);
    sums[i] = hn::MulAdd(v, v, sums[i]);
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

/// out may be x; residual and out may be null.
template <class W, class Out>
void normalise_row(const RmsNormArgs& args, const float* x, const W* weight, float* residual,
                   Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const int64_t columns = args.columns;
  const float mean = sum_of_squares(x, columns) / static_cast<float>(columns);
  const auto inverse = hn::Set(d, 1.0f / std::sqrt(mean + args.epsilon));
  const auto factor = hn::Set(d, args.scale);
  const auto offset = hn::Set(d, args.weight_offset);
  int64_t c = 0;
  for (; c + lanes <= columns; c += lanes) {
    auto y = hn::Mul(hn::Mul(load(d, x + c), inverse), hn::Add(load(d, weight + c), offset));
    if (residual != nullptr) {
      y = hn::MulAdd(y, factor, load(d, residual + c));
      store(d, y, residual + c);
    }
    if (out != nullptr) {
      store(d, y, out + c);
    }
  }
  if (c < columns) {
    const size_t rest = columns - c;
    auto y = hn::Mul(hn::Mul(load_first(d, x + c, rest), inverse),
                     hn::Add(load_first(d, weight + c, rest), offset));
    if (residual != nullptr) {
      y = hn::MulAdd(y, factor, load_first(d, residual + c, rest));
      store_first(d, y, residual + c, rest);
    }
    if (out != nullptr) {
      store_first(d, y, out + c, rest);
    }
  }
}

void rmsnorm_rows(const RmsNormArgs& args, Range rows) {
  with_type(args.weight.dtype, [&](auto w) {
    const auto* weight = static_cast<const decltype(w)*>(args.weight.data);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t line = r / args.groups;
      const int64_t first = r % args.groups * args.columns;
      const float* x = row<float>(args.x, line) + first;
      float* residual =
          args.residual.data != nullptr ? row<float>(args.residual, line) + first : nullptr;
      if (args.out.data != nullptr && args.out.dtype == DType::bf16) {
        normalise_row(args, x, weight, residual, row<bf16>(args.out, line) + first);
      } else {
        normalise_row(args, x, weight, residual,
                      args.out.data != nullptr ? row<float>(args.out, line) + first : nullptr);
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

void rmsnorm(const RmsNormArgs& args, Range rows) { WEFT_CPU_DISPATCH(rmsnorm_rows)(args, rows); }

}  // namespace weft::cpu
#endif  // HWY_ONCE

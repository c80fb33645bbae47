// rmsnorm_quant on the CPU: a pass that adds the residual and sums squares, then a pass (or two,
// where the whole row has one scale) over a row that is in the cache by then.
#include "ops/rmsnorm_quant/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rmsnorm_quant/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/quantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// The row's sum of squares of h, which is written to `h` where there is a residual.
template <class T>
float add_and_square(const T* x, T* h, int64_t columns) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  FloatVec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t c = 0, i = 0; c < columns; c += lanes, i = (i + 1) % 4) {
    const int64_t count = std::min(lanes, columns - c);
    auto v = count < lanes ? load_first(d, x + c, count) : load(d, x + c);
    if (h != nullptr && count < lanes) {
      store_first(d, hn::Add(v, load_first(d, h + c, count)), h + c, count);
      v = load_first(d, h + c, count);
    } else if (h != nullptr) {
      store(d, hn::Add(v, load(d, h + c)), h + c);
      v = load(d, h + c);
    }
    sums[i] = hn::MulAdd(v, v, sums[i]);
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

void rmsnorm_quant_rows(const RmsNormQuantArgs& args, Range rows) {
  with_type(args.x.dtype, [&](auto t) {
    using T = decltype(t);
    const T* weight = static_cast<const T*>(args.weight.data);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      T* residual = args.residual.data != nullptr ? row<T>(args.residual, r) : nullptr;
      const T* x = row<T>(args.x, r);
      const float mean =
          add_and_square(x, residual, args.columns) / static_cast<float>(args.columns);
      const float inverse = 1.0f / std::sqrt(mean + args.epsilon);
      const T* h = residual != nullptr ? residual : x;
      write_quantised(args.y, r, args.columns, [&](int64_t first, int64_t count, float* to) {
        const FloatTag d;
        const int64_t lanes = kFloatLanes;
        const auto factor = hn::Set(d, inverse);
        int64_t c = 0;
        for (; c + lanes <= count; c += lanes) {
          store(d, hn::Mul(hn::Mul(load(d, h + first + c), factor), load(d, weight + first + c)),
                to + c);
        }
        if (c < count) {
          const size_t rest = count - c;
          store_first(d,
                      hn::Mul(hn::Mul(load_first(d, h + first + c, rest), factor),
                              load_first(d, weight + first + c, rest)),
                      to + c, rest);
        }
      });
    }
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

void rmsnorm_quant(const RmsNormQuantArgs& args, Range rows) {
  WEFT_CPU_DISPATCH(rmsnorm_quant_rows)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

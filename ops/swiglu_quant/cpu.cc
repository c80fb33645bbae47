// swiglu_quant on the CPU: a block of 128 columns at a time, in f32.
#include "ops/swiglu_quant/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/swiglu_quant/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/quantise-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void swiglu_quant_rows(const SwigluQuantArgs& args, Range rows) {
  with_type(args.gate.dtype, [&](auto t) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const auto* gate = row<decltype(t)>(args.gate, r);
      const auto* up = row<decltype(t)>(args.up, r);
      write_quantised(args.y, r, args.columns, [&](int64_t first, int64_t count, float* to) {
        const FloatTag d;
        const int64_t lanes = kFloatLanes;
        const auto one = hn::Set(d, 1.0f);
        const auto product = [&](FloatVec g, FloatVec u) HWY_ATTR {
          return hn::Mul(hn::Div(g, hn::Add(one, exp(d, hn::Neg(g)))), u);
        };
        int64_t c = 0;
        for (; c + lanes <= count; c += lanes) {
          store(d, product(load(d, gate + first + c), load(d, up + first + c)), to + c);
        }
        if (c < count) {
          const size_t rest = count - c;
          store_first(
              d,
              product(load_first(d, gate + first + c, rest), load_first(d, up + first + c, rest)),
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

void swiglu_quant(const SwigluQuantArgs& args, Range rows) {
  WEFT_CPU_DISPATCH(swiglu_quant_rows)(args, rows);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

#include "ops/moe/mx_gate.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/moe/mx_gate.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/activation-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

HWY_INLINE FloatVec gated(Activation activation, float limit, FloatVec gate, FloatVec up) {
  const FloatTag d;
  if (limit == 0) {
    return hn::Mul(activate(activation, gate), up);
  }
  const auto most = hn::Set(d, limit);
  // Comparisons that NaN fails keep it.
  gate = hn::IfThenElse(hn::Gt(gate, most), most, gate);
  up = hn::IfThenElse(hn::Gt(up, most), most, up);
  up = hn::IfThenElse(hn::Lt(up, hn::Neg(most)), hn::Neg(most), up);
  return hn::Mul(times_sigmoid(gate, hn::Mul(gate, hn::Set(d, 1.702F))),
                 hn::Add(up, hn::Set(d, 1.0F)));
}

void mx_gate_rows(const GatedLinearArgs& expert, float limit, const float* gate, const float* up,
                  int64_t stride, int64_t rows, Range columns, const Matrix& out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto bias = [&](const ConstVector& vector, int64_t c, int64_t count, float* to) {
    std::fill_n(to, lanes, 0.0F);
    if (vector.data != nullptr) {
      with_type(vector.dtype, [&](auto type) {
        const auto* from = static_cast<const decltype(type)*>(vector.data) + c;
        std::transform(from, from + count, to, [](auto x) { return to_float(x); });
      });
    }
  };
  for (int64_t c = columns.begin; c < columns.end; c += lanes) {
    const int64_t count = std::min(lanes, columns.end - c);
    float gate_bias[kFloatLanes];
    float up_bias[kFloatLanes];
    bias(expert.gate_bias, c, count, gate_bias);
    bias(expert.up_bias, c, count, up_bias);
    for (int64_t r = 0; r < rows; ++r) {
      const auto sum = [&](const float* sums, const float* b) HWY_ATTR {
        return hn::Add(load_first(d, sums + r * stride + c, static_cast<size_t>(count)),
                       hn::LoadU(d, b));
      };
      const auto value = gated(expert.activation, limit, sum(gate, gate_bias), sum(up, up_bias));
      if (out.dtype == DType::bf16) {
        store_first(d, value, row<bf16>(out, r) + c, static_cast<size_t>(count));
      } else {
        store_first(d, value, row<float>(out, r) + c, static_cast<size_t>(count));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void mx_gate(const GatedLinearArgs& expert, float limit, const float* gate, const float* up,
             int64_t stride, int64_t rows, Range columns, const Matrix& out) {
  WEFT_CPU_DISPATCH(mx_gate_rows)(expert, limit, gate, up, stride, rows, columns, out);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

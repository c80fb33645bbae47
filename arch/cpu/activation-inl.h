// The activations of FFNs and the curve of soft caps, vector by vector.
#include "base/activation.h"

#if defined(WEFT_ARCH_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_ACTIVATION_INL_H_
#undef WEFT_ARCH_CPU_ACTIVATION_INL_H_
#else
#define WEFT_ARCH_CPU_ACTIVATION_INL_H_
#endif

#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

/// tanh(x) within 3 ulp; NaN stays. Near 0 an odd polynomial (Cephes tanhf), elsewhere by exp().
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  const auto z = hn::Mul(x, x);
  auto p = hn::Set(d, -5.70498872745e-3f);
  p = hn::MulAdd(p, z, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, z, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, z, hn::Set(d, -3.33332819422e-1f));
  const auto near = hn::MulAdd(hn::Mul(p, z), x, x);
  const auto one = hn::Set(d, 1.0f);
  const auto size = hn::Abs(x);
  // exp() of 2 |x| is infinite where tanh is 1 to f32 long since.
  const auto far =
      hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(exp(d, hn::Add(size, size)), one)));
  return hn::IfThenElse(hn::Lt(size, hn::Set(d, 0.625f)), near, hn::CopySign(far, x));
}

/// x / (1 + exp(-z)), with an exponential that cannot overflow: for z < 0, x exp(z) / (1 + exp(z)).
HWY_INLINE FloatVec times_sigmoid(FloatVec x, FloatVec z) {
  const FloatTag d;
  const auto one = hn::Set(d, 1.0f);
  const auto e = exp(d, hn::Neg(hn::Abs(z)));
  const auto numerator = hn::IfThenElse(hn::Lt(z, hn::Zero(d)), hn::Mul(x, e), x);
  return hn::Div(numerator, hn::Add(one, e));
}

HWY_INLINE FloatVec silu(FloatVec x) { return times_sigmoid(x, x); }

/// (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)).
HWY_INLINE FloatVec gelu_tanh(FloatVec x) {
  const FloatTag d;
  const auto cubic = hn::Set(d, 2 * 0.044715f * 0.797884561f);  // 2 sqrt(2 / pi) of each
  const auto inner = hn::MulAdd(hn::Mul(x, x), cubic, hn::Set(d, 2 * 0.797884561f));
  return times_sigmoid(x, hn::Mul(x, inner));
}

HWY_INLINE FloatVec activate(Activation activation, FloatVec x) {
  return activation == Activation::silu        ? silu(x)
         : activation == Activation::gelu_tanh ? gelu_tanh(x)
                                               : x;
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

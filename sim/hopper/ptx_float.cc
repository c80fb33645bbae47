// Floating point: PTX ISA, "Floating Point Instructions", "Half Precision Floating Point
// Instructions". What is approximate on a GPU is rounded from a better result here, which lies
// within the bounds that the manual gives.
#include <immintrin.h>

#include <cmath>
#include <limits>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/ptx_fuse.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

/// Of Instruction::modifier: the processor's rounding and flushing while an instruction is
/// executed, and what is done to its results.
constexpr uint32_t kSaturate = 1u << 0;

/// NaNs have one form.
inline float canonical(float x) { return x != x ? std::bit_cast<float>(0x7fffffffu) : x; }
inline double canonical(double x) { return x; }
template <class T>
T saturated(T x) {
  return x > T{0} ? (x < T{1} ? x : T{1}) : T{0};  // NaN becomes 0
}

/// d = f(a...), rounded to nearest.
template <auto kFunction, class T, class... A>
Step plain(Warp& warp, const Instruction& in, uint32_t mask) {
  apply<[](A... a) { return canonical(kFunction(a...)); }, T, A...>(
      warp, in, mask, std::index_sequence_for<A...>());
  return Step::next;
}

/// The same, rounded, flushed and saturated as the instruction says. Values go through memory, and
/// no arithmetic moves past the changes of MXCSR.
template <auto kFunction, class T, class... A>
Step modified(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t before = _mm_getcsr();
  _mm_setcsr((before & ~(_MM_ROUND_MASK | _MM_FLUSH_ZERO_MASK | 0x40u)) |
             (in.modifier & ~kSaturate));
  asm volatile("" ::: "memory");
  if ((in.modifier & kSaturate) != 0) {
    apply<[](A... a) { return saturated(kFunction(a...)); }, T, A...>(
        warp, in, mask, std::index_sequence_for<A...>());
  } else {
    apply<[](A... a) { return canonical(kFunction(a...)); }, T, A...>(
        warp, in, mask, std::index_sequence_for<A...>());
  }
  asm volatile("" ::: "memory");
  _mm_setcsr(before);
  return Step::next;
}

/// The processor's state that opcode words ask for.
uint32_t modifier_of(const Statement& s, bool ftz) {
  uint32_t modifier = s.has("sat") ? kSaturate : 0;
  if (ftz && s.has("ftz")) {
    modifier |= _MM_FLUSH_ZERO_ON | 0x40u;  // and denormals that are read are zeros
  }
  modifier |= s.has("rz")   ? _MM_ROUND_TOWARD_ZERO
              : s.has("rm") ? _MM_ROUND_DOWN
              : s.has("rp") ? _MM_ROUND_UP
                            : 0;
  return modifier;
}

template <auto kFunction, class T, class... A>
Form form_of(const Statement& s, std::string_view layout) {
  const uint32_t modifier = modifier_of(s, sizeof(T) == 4);
  return {.run = modifier == 0 ? plain<kFunction, T, A...> : modified<kFunction, T, A...>,
          .layout = layout,
          .modifier = modifier};
}

template <class T>
T least(T a, T b) {
  if (std::isnan(a)) {
    return b;
  }
  if (std::isnan(b)) {
    return a;
  }
  if (a == b) {
    return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}
template <class T>
T most(T a, T b) {
  if (std::isnan(a)) {
    return b;
  }
  if (std::isnan(b)) {
    return a;
  }
  if (a == b) {
    return std::signbit(a) ? b : a;
  }
  return a > b ? a : b;
}
template <class T>
T least_or_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : least(a, b);
}
template <class T>
T most_or_nan(T a, T b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<T>::quiet_NaN() : most(a, b);
}
template <class T>
T signed_as(T x, T a, T b) {
  return std::signbit(a) != std::signbit(b) ? -std::fabs(x) : std::fabs(x);
}
template <class T>
T least_xor(T a, T b) {
  return signed_as(least(std::fabs(a), std::fabs(b)), a, b);
}
template <class T>
T most_xor(T a, T b) {
  return signed_as(most(std::fabs(a), std::fabs(b)), a, b);
}

template <class T>
Found of_two(const Statement& s, std::string_view op, std::string_view layout) {
  if (op == "add") {
    return form_of<[](T a, T b) { return a + b; }, T, T, T>(s, layout);
  }
  if (op == "sub") {
    return form_of<[](T a, T b) { return a - b; }, T, T, T>(s, layout);
  }
  if (op == "mul") {
    return form_of<[](T a, T b) { return a * b; }, T, T, T>(s, layout);
  }
  if (op == "div") {
    return form_of<[](T a, T b) { return a / b; }, T, T, T>(s, layout);
  }
  const bool nan = s.has("NaN");
  const bool sign = s.has("xorsign");
  if (op == "min") {
    return sign  ? form_of<least_xor<T>, T, T, T>(s, layout)
           : nan ? form_of<least_or_nan<T>, T, T, T>(s, layout)
                 : form_of<least<T>, T, T, T>(s, layout);
  }
  if (op == "max") {
    return sign  ? form_of<most_xor<T>, T, T, T>(s, layout)
           : nan ? form_of<most_or_nan<T>, T, T, T>(s, layout)
                 : form_of<most<T>, T, T, T>(s, layout);
  }
  if (op == "copysign") {
    return Form{.run = lanewise<[](T a, T b) { return std::copysign(b, a); }, T, T, T>,
                .layout = layout};
  }
  return {};
}

template <class T>
Found of_one(const Statement& s, std::string_view op, std::string_view layout) {
  if (op == "abs") {
    return form_of<[](T a) { return std::fabs(a); }, T, T>(s, layout);
  }
  if (op == "neg") {
    return form_of<[](T a) { return -a; }, T, T>(s, layout);
  }
  if (op == "rcp") {
    return form_of<[](T a) { return T{1} / a; }, T, T>(s, layout);
  }
  if (op == "sqrt") {
    return form_of<[](T a) { return std::sqrt(a); }, T, T>(s, layout);
  }
  if (op == "rsqrt") {
    return form_of<[](T a) { return static_cast<T>(1.0 / std::sqrt(double{a})); }, T, T>(s, layout);
  }
  if constexpr (sizeof(T) == 4) {
    if (op == "ex2") {
      return form_of<[](T a) { return std::exp2(a); }, T, T>(s, layout);
    }
    if (op == "lg2") {
      return form_of<[](T a) { return std::log2(a); }, T, T>(s, layout);
    }
    if (op == "sin") {
      return form_of<[](T a) { return std::sin(a); }, T, T>(s, layout);
    }
    if (op == "cos") {
      return form_of<[](T a) { return std::cos(a); }, T, T>(s, layout);
    }
    if (op == "tanh") {
      return form_of<[](T a) { return std::tanh(a); }, T, T>(s, layout);
    }
  }
  return {};
}

template <class T>
Found find_full(const Statement& s, std::string_view op) {
  constexpr bool kWide = sizeof(T) == 8;
  if (op == "fma" && s.has(kMinusProduct)) {
    return form_of<[](T a, T b, T c) { return std::fma(-a, b, c); }, T, T, T, T>(s, "Wwww");
  }
  if (op == "fma" && s.has(kMinusAddend)) {
    return form_of<[](T a, T b, T c) { return std::fma(a, b, -c); }, T, T, T, T>(s, "Wwww");
  }
  if (op == "fma" || (op == "mad" && !s.has("lo"))) {
    return form_of<[](T a, T b, T c) { return std::fma(a, b, c); }, T, T, T, T>(
        s, kWide ? "Dddd" : "Wwww");
  }
  if (Found found = of_two<T>(s, op, kWide ? "Ddd" : "Www")) {
    return found;
  }
  return of_one<T>(s, op, kWide ? "Dd" : "Ww");
}

// Halves: values are computed in double, where a sum or product of two is exact or rounds to the
// same, and a fused one is rounded to odd so that the second rounding is the only one.
template <class H>
uint32_t rounded(const Instruction& in, double x) {
  if ((in.modifier & kSaturate) != 0) {
    x = saturated(x);
  }
  if ((in.flags & 1) != 0 && x < 0) {  // relu
    x = 0;
  }
  return H::round(x);
}

/// f of each half of a register, or of the only one.
template <class H, int kHalves, auto kFunction, int kOperands>
Step halves(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  const uint32_t* a[kOperands];
  for (int i = 0; i < kOperands; ++i) {
    a[i] = warp.in<uint32_t>(in.o[i + 1]);
  }
  each_lane(mask, [&](uint32_t lane) {
    uint32_t result = 0;
    for (int h = 0; h < kHalves; ++h) {
      double x[3] = {};
      for (int i = 0; i < kOperands; ++i) {
        x[i] = H::widen(static_cast<uint16_t>(a[i][lane] >> (16 * h)));
      }
      result |= rounded<H>(in, kFunction(x[0], x[1], x[2])) << (16 * h);
    }
    d[lane] = result;
  });
  return Step::next;
}

template <class H, int kHalves>
Found find_halves(const Statement& s, std::string_view op) {
  Form form{.layout = "Www",
            .modifier = s.has("sat") ? kSaturate : 0,
            .flags = static_cast<uint8_t>(s.has("relu") ? 1 : 0)};
  const bool nan = s.has("NaN");
  if (op == "fma") {
    form.layout = "Wwww";
    form.run =
        halves<H, kHalves, [](double a, double b, double c) { return fused_to_odd(a, b, c); }, 3>;
  } else if (op == "add") {
    form.run = halves<H, kHalves, [](double a, double b, double) { return a + b; }, 2>;
  } else if (op == "sub") {
    form.run = halves<H, kHalves, [](double a, double b, double) { return a - b; }, 2>;
  } else if (op == "mul") {
    form.run = halves<H, kHalves, [](double a, double b, double) { return a * b; }, 2>;
  } else if (op == "min" && nan) {
    form.run = halves<H, kHalves, [](double a, double b, double) { return least_or_nan(a, b); }, 2>;
  } else if (op == "max" && nan) {
    form.run = halves<H, kHalves, [](double a, double b, double) { return most_or_nan(a, b); }, 2>;
  } else if (op == "min") {
    form.run = halves<H, kHalves, [](double a, double b, double) { return least(a, b); }, 2>;
  } else if (op == "max") {
    form.run = halves<H, kHalves, [](double a, double b, double) { return most(a, b); }, 2>;
  } else {
    form.layout = "Ww";
    if (op == "neg") {
      form.run = lanewise<[](uint32_t a) { return a ^ (kHalves == 2 ? 0x80008000u : 0x8000u); },
                          uint32_t, uint32_t>;
    } else if (op == "abs") {
      form.run = lanewise<[](uint32_t a) { return a & (kHalves == 2 ? 0x7fff7fffu : 0x7fffu); },
                          uint32_t, uint32_t>;
    } else if (op == "ex2") {
      form.run = halves<H, kHalves, [](double a, double, double) { return std::exp2(a); }, 1>;
    } else if (op == "tanh") {
      form.run = halves<H, kHalves, [](double a, double, double) { return std::tanh(a); }, 1>;
    } else {
      return {};
    }
  }
  return form;
}

}  // namespace

Found find_float(const Statement& statement) {
  const std::string_view op = statement.words[0];
  const std::string_view type = statement.words.back();
  static constexpr std::string_view kOps[] = {
      "add", "sub",  "mul",   "div", "fma", "mad", "min", "max",  "abs",     "neg",
      "rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh", "copysign"};
  bool known = false;
  for (const std::string_view candidate : kOps) {
    known = known || candidate == op;
  }
  if (!known) {
    return {};
  }
  if (type == "f32") {
    return find_full<float>(statement, op);
  }
  if (type == "f64") {
    return find_full<double>(statement, op);
  }
  if (type == "f16") {
    return find_halves<F16, 1>(statement, op);
  }
  if (type == "f16x2") {
    return find_halves<F16, 2>(statement, op);
  }
  if (type == "bf16") {
    return find_halves<BF16, 1>(statement, op);
  }
  if (type == "bf16x2") {
    return find_halves<BF16, 2>(statement, op);
  }
  return {};
}

}  // namespace weft::ptx

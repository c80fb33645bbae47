// Comparisons, selections, predicates: PTX ISA, "Comparison and Selection Instructions".
#include <immintrin.h>

#include <cmath>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

/// The sign bits of 32 words, as a mask.
uint32_t mask_of(const uint32_t (&words)[kLanes]) {
  uint32_t mask = 0;
  for (int i = 0; i < kLanes; i += 8) {
    const __m256 v = _mm256_load_ps(reinterpret_cast<const float*>(words + i));
    mask |= static_cast<uint32_t>(_mm256_movemask_ps(v)) << i;
  }
  return mask;
}

/// The lanes of which f(a, b) is true; all 32 are looked at.
template <auto kFunction, class T>
uint32_t compare(const Warp& warp, Slot left, Slot right) {
  const Bits<T>* a = warp.in<Bits<T>>(left);
  const Bits<T>* b = warp.in<Bits<T>>(right);
  alignas(32) uint32_t words[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    words[i] = kFunction(from_bits<T>(a[i]), from_bits<T>(b[i])) ? ~0u : 0;
  }
  return mask_of(words);
}

enum class Join : uint8_t { none, conjunction, disjunction, difference };
uint32_t joined(uint32_t join, uint32_t bits, uint32_t other) {
  switch (static_cast<Join>(join)) {
    case Join::none:
      return bits;
    case Join::conjunction:
      return bits & other;
    case Join::disjunction:
      return bits | other;
    case Join::difference:
      return bits ^ other;
  }
  return bits;
}
/// The predicate that a comparison is joined with.
uint32_t other_of(const Warp& warp, const Instruction& in, Slot slot) {
  const uint32_t bits = warp.predicate(slot);
  return (in.flags & kInverted) != 0 ? ~bits : bits;
}

template <auto kFunction, class T>
Step set_predicate(Warp& warp, const Instruction& in, uint32_t mask) {
  const Slot* a = in.o + in.count;
  const uint32_t bits = compare<kFunction, T>(warp, a[0], a[1]);
  if (in.modifier == 0) {
    warp.set_predicate(in.o[0], bits, mask);
    if (in.count == 2) {
      warp.set_predicate(in.o[1], ~bits, mask);
    }
    return Step::next;
  }
  const uint32_t other = other_of(warp, in, a[2]);
  warp.set_predicate(in.o[0], joined(in.modifier, bits, other), mask);
  if (in.count == 2) {
    warp.set_predicate(in.o[1], joined(in.modifier, ~bits, other), mask);
  }
  return Step::next;
}

/// set: the value of true is in.immediate's place, Form::modifier's upper bits.
template <auto kFunction, class T>
Step set_value(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t bits = compare<kFunction, T>(warp, in.o[1], in.o[2]);
  if ((in.modifier & 3) != 0) {
    bits = joined(in.modifier & 3, bits, other_of(warp, in, in.o[3]));
  }
  const uint32_t one = in.modifier >> 2 == 0 ? ~0u : 0x3f800000u;
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { d[i] = (bits >> i & 1) != 0 ? one : 0; });
  return Step::next;
}

template <class T, auto kFunction>
Handler chosen(bool predicate) {
  return predicate ? set_predicate<kFunction, T> : set_value<kFunction, T>;
}

/// Of integers. lo, ls, hi, hs are unsigned.
template <class T>
Handler integer_comparison(std::string_view op, bool p) {
  if (op == "eq") {
    return chosen<T, [](T a, T b) { return a == b; }>(p);
  }
  if (op == "ne") {
    return chosen<T, [](T a, T b) { return a != b; }>(p);
  }
  if (op == "lt" || op == "lo") {
    return chosen<T, [](T a, T b) { return a < b; }>(p);
  }
  if (op == "le" || op == "ls") {
    return chosen<T, [](T a, T b) { return a <= b; }>(p);
  }
  if (op == "gt" || op == "hi") {
    return chosen<T, [](T a, T b) { return (a > b); }>(p);
  }
  if (op == "ge" || op == "hs") {
    return chosen<T, [](T a, T b) { return (a >= b); }>(p);
  }
  return nullptr;
}

/// Of floats; T is how they lie, W widens them.
template <class T, auto W>
Handler float_comparison(std::string_view op, bool p) {
  if (op == "eq") {
    return chosen<T, [](T a, T b) { return W(a) == W(b); }>(p);
  }
  if (op == "ne") {  // ordered
    return chosen<T, [](T a, T b) { return (W(a) < W(b)) || (W(a) > W(b)); }>(p);
  }
  if (op == "lt") {
    return chosen<T, [](T a, T b) { return W(a) < W(b); }>(p);
  }
  if (op == "le") {
    return chosen<T, [](T a, T b) { return W(a) <= W(b); }>(p);
  }
  if (op == "gt") {
    return chosen<T, [](T a, T b) { return (W(a) > W(b)); }>(p);
  }
  if (op == "ge") {
    return chosen<T, [](T a, T b) { return (W(a) >= W(b)); }>(p);
  }
  if (op == "equ") {
    return chosen<T, [](T a, T b) { return !((W(a) < W(b)) || (W(a) > W(b))); }>(p);
  }
  if (op == "neu") {
    return chosen<T, [](T a, T b) { return W(a) != W(b); }>(p);
  }
  if (op == "ltu") {
    return chosen<T, [](T a, T b) { return !(W(a) >= W(b)); }>(p);
  }
  if (op == "leu") {
    return chosen<T, [](T a, T b) { return !(W(a) > W(b)); }>(p);
  }
  if (op == "gtu") {
    return chosen<T, [](T a, T b) { return !(W(a) <= W(b)); }>(p);
  }
  if (op == "geu") {
    return chosen<T, [](T a, T b) { return !(W(a) < W(b)); }>(p);
  }
  if (op == "num") {
    return chosen<T, [](T a, T b) { return !std::isnan(W(a)) && !std::isnan(W(b)); }>(p);
  }
  if (op == "nan") {
    return chosen<T, [](T a, T b) { return std::isnan(W(a)) || std::isnan(W(b)); }>(p);
  }
  return nullptr;
}

Handler comparison(std::string_view op, std::string_view type, bool ftz, bool predicate) {
  if (type == "u16" || type == "b16") {
    return integer_comparison<uint16_t>(op, predicate);
  }
  if (type == "s16") {
    return integer_comparison<int16_t>(op, predicate);
  }
  if (type == "u32" || type == "b32") {
    return integer_comparison<uint32_t>(op, predicate);
  }
  if (type == "s32") {
    return integer_comparison<int32_t>(op, predicate);
  }
  if (type == "u64" || type == "b64") {
    return integer_comparison<uint64_t>(op, predicate);
  }
  if (type == "s64") {
    return integer_comparison<int64_t>(op, predicate);
  }
  if (type == "f32" && ftz) {
    return float_comparison<float, flushed>(op, predicate);
  }
  if (type == "f32") {
    return float_comparison<float, [](float x) { return x; }>(op, predicate);
  }
  if (type == "f64") {
    return float_comparison<double, [](double x) { return x; }>(op, predicate);
  }
  if (type == "f16") {
    return float_comparison<uint16_t, [](uint16_t x) { return F16::widen(x); }>(op, predicate);
  }
  if (type == "bf16") {
    return float_comparison<uint16_t, [](uint16_t x) { return BF16::widen(x); }>(op, predicate);
  }
  return nullptr;
}

bool is_wide(std::string_view type) { return type.ends_with("64"); }

template <class S>
Step select(Warp& warp, const Instruction& in, uint32_t mask) {
  S* d = warp.out<S>(in.o[0]);
  const S* a = warp.in<S>(in.o[1]);
  const S* b = warp.in<S>(in.o[2]);
  const uint32_t p = warp.predicate(in.o[3]);
  if (mask == ~0u) {
#pragma GCC ivdep
    for (int i = 0; i < kLanes; ++i) {
      const S x = a[i];
      const S y = b[i];
      d[i] = (p >> i & 1) != 0 ? x : y;
    }
  } else {
    each_lane(mask, [&](uint32_t i) { d[i] = (p >> i & 1) != 0 ? a[i] : b[i]; });
  }
  return Step::next;
}

template <auto kFunction>
Step of_predicates(Warp& warp, const Instruction& in, uint32_t mask) {
  warp.set_predicate(in.o[0], kFunction(warp.predicate(in.o[1]), warp.predicate(in.o[2])), mask);
  return Step::next;
}
template <bool kInvert>
Step of_predicate(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t bits = warp.predicate(in.o[1]);
  warp.set_predicate(in.o[0], kInvert ? ~bits : bits, mask);
  return Step::next;
}

Found find_set(const Statement& s) {
  const bool predicate = s.words[0] == "setp";
  const size_t types = predicate ? 1 : 2;
  if (s.words.size() < 2 + types) {
    return {};
  }
  const std::string_view type = s.words.back();
  Form form;
  form.run = comparison(s.words[1], type, s.has("ftz"), predicate);
  if (form.run == nullptr) {
    return {};
  }
  form.modifier = s.has("and") ? 1 : s.has("or") ? 2 : s.has("xor") ? 3 : 0;
  if (predicate) {
    form.layout =
        form.modifier != 0 ? (is_wide(type) ? "Pddp" : "Pwwp") : (is_wide(type) ? "Pdd" : "Pww");
    return form;
  }
  const std::string_view result = s.words[s.words.size() - 2];
  if (result != "u32" && result != "s32" && result != "f32") {
    return {};
  }
  form.layout =
      form.modifier != 0 ? (is_wide(type) ? "Wddp" : "Wwwp") : (is_wide(type) ? "Wdd" : "Www");
  form.modifier |= result == "f32" ? 4 : 0;
  return form;
}

Found find_predicate_logic(const Statement& s) {
  if (s.opcode == "and.pred") {
    return Form{.run = of_predicates<[](uint32_t a, uint32_t b) { return a & b; }>,
                .layout = "Ppp"};
  }
  if (s.opcode == "or.pred") {
    return Form{.run = of_predicates<[](uint32_t a, uint32_t b) { return a | b; }>,
                .layout = "Ppp"};
  }
  if (s.opcode == "xor.pred") {
    return Form{.run = of_predicates<[](uint32_t a, uint32_t b) { return a ^ b; }>,
                .layout = "Ppp"};
  }
  if (s.opcode == "not.pred") {
    return Form{.run = of_predicate<true>, .layout = "Pp"};
  }
  if (s.opcode == "mov.pred") {
    return Form{.run = of_predicate<false>, .layout = "Pp"};
  }
  return {};
}

template <auto kFunction>
Step tested(Warp& warp, const Instruction& in, uint32_t mask) {
  const uint32_t* a = warp.in<uint32_t>(in.o[1]);
  uint32_t bits = 0;
  each_lane(mask, [&](uint32_t i) { bits |= uint32_t{kFunction(from_bits<float>(a[i]))} << i; });
  warp.set_predicate(in.o[0], bits, mask);
  return Step::next;
}

Found find_test(const Statement& s) {
  Form form{.layout = "Pw"};
  if (s.opcode == "testp.finite.f32") {
    form.run = tested<[](float x) { return std::isfinite(x); }>;
  } else if (s.opcode == "testp.infinite.f32") {
    form.run = tested<[](float x) { return std::isinf(x); }>;
  } else if (s.opcode == "testp.number.f32") {
    form.run = tested<[](float x) { return !std::isnan(x); }>;
  } else if (s.opcode == "testp.notanumber.f32") {
    form.run = tested<[](float x) { return std::isnan(x); }>;
  } else {
    return {};
  }
  return form;
}

}  // namespace

Found find_compare(const Statement& statement) {
  const std::string_view op = statement.words[0];
  if (op == "setp" || op == "set") {
    return find_set(statement);
  }
  if (op == "selp" && statement.words.size() == 2) {
    return is_wide(statement.words[1]) ? Form{.run = select<uint64_t>, .layout = "Dddp"}
                                       : Form{.run = select<uint32_t>, .layout = "Wwwp"};
  }
  if (op == "slct" && statement.words.back() == "s32") {
    return is_wide(statement.words[1])
               ? Form{.run =
                          lanewise<[](uint64_t a, uint64_t b, int32_t c) { return c >= 0 ? a : b; },
                                   uint64_t, uint64_t, uint64_t, int32_t>,
                      .layout = "Dddw"}
               : Form{.run =
                          lanewise<[](uint32_t a, uint32_t b, int32_t c) { return c >= 0 ? a : b; },
                                   uint32_t, uint32_t, uint32_t, int32_t>,
                      .layout = "Wwww"};
  }
  if (op == "testp") {
    return find_test(statement);
  }
  return find_predicate_logic(statement);
}

}  // namespace weft::ptx

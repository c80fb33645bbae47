// Conversions: PTX ISA, "cvt", "cvt.pack".
#include <cmath>
#include <limits>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

enum class Rounding : uint8_t { none, nearest, zero, down, up, away };
// Of Instruction::flags.
constexpr uint8_t kToUnitRange = 1;
constexpr uint8_t kFlush = 2;
constexpr uint8_t kRelu = 4;

Rounding rounding_of(const Statement& s) {
  if (s.has("rn") || s.has("rni")) {
    return Rounding::nearest;
  }
  if (s.has("rz") || s.has("rzi")) {
    return Rounding::zero;
  }
  if (s.has("rm") || s.has("rmi")) {
    return Rounding::down;
  }
  if (s.has("rp") || s.has("rpi")) {
    return Rounding::up;
  }
  return s.has("rna") ? Rounding::away : Rounding::none;
}

double to_whole(double x, Rounding rounding) {
  switch (rounding) {
    case Rounding::nearest:
      return std::nearbyint(x);
    case Rounding::zero:
      return std::trunc(x);
    case Rounding::down:
      return std::floor(x);
    case Rounding::up:
      return std::ceil(x);
    case Rounding::away:
      return std::round(x);
    case Rounding::none:
      return x;
  }
  return x;
}

/// The f32 next to x in a direction.
float to_f32(double x, Rounding rounding) {
  const auto near = static_cast<float>(x);
  const double back = near;
  if (back == x || x != x) {
    return near;
  }
  const bool wants_less = rounding == Rounding::down || (rounding == Rounding::zero && x > 0);
  const bool wants_more = rounding == Rounding::up || (rounding == Rounding::zero && x < 0);
  if (wants_less && back > x) {
    return std::nextafter(near, -std::numeric_limits<float>::infinity());
  }
  if (wants_more && back < x) {
    return std::nextafter(near, std::numeric_limits<float>::infinity());
  }
  return near;
}
/// Of a 16-bit format: its neighbour in a direction.
template <class H>
uint16_t to_half(double x, Rounding rounding) {
  uint16_t bits = H::round(x);
  if (rounding <= Rounding::nearest || x != x) {
    return bits;
  }
  const double back = H::widen(bits);
  const bool wants_less = rounding == Rounding::down || (rounding == Rounding::zero && x > 0);
  const bool wants_more = rounding == Rounding::up || (rounding == Rounding::zero && x < 0);
  if ((wants_less && back > x) || (wants_more && back < x)) {
    // Towards zero its bits fall, away from it they rise.
    bits = static_cast<uint16_t>(bits + ((back > 0) == wants_less ? -1 : 1));
  }
  return bits;
}

// Formats as types: how they lie in a register and what their values are.
struct F32 {
  using Word = uint32_t;
  static double widen(Word bits) { return std::bit_cast<float>(bits); }
  static Word narrow(double x, Rounding rounding) {
    return x != x ? 0x7fffffffu : std::bit_cast<uint32_t>(to_f32(x, rounding));
  }
};
struct F64 {
  using Word = uint64_t;
  static double widen(Word bits) { return std::bit_cast<double>(bits); }
  static Word narrow(double x, Rounding) { return std::bit_cast<uint64_t>(x); }
};
template <class H>
struct Small {
  using Word = uint32_t;
  static double widen(Word bits) { return H::widen(static_cast<uint16_t>(bits)); }
  static Word narrow(double x, Rounding rounding) { return to_half<H>(x, rounding); }
};

bool whole_wanted(const Statement& s) {
  return s.has("rni") || s.has("rzi") || s.has("rmi") || s.has("rpi");
}

/// From float to float. Form::bytes: 1, it is rounded to a whole number.
template <class D, class S>
Step float_to_float(Warp& warp, const Instruction& in, uint32_t mask) {
  auto* d = warp.out<typename D::Word>(in.o[0]);
  const auto* a = warp.in<typename S::Word>(in.o[1]);
  const auto rounding = static_cast<Rounding>(in.modifier);
  each_lane(mask, [&](uint32_t i) {
    double x = S::widen(a[i]);
    if ((in.flags & kFlush) != 0 && sizeof(typename S::Word) == 4) {
      x = flushed(static_cast<float>(x));
    }
    if (in.bytes == 1) {
      x = to_whole(x, rounding);
    }
    if ((in.flags & kToUnitRange) != 0) {
      x = x > 0 ? (x < 1 ? x : 1) : 0;
    }
    if ((in.flags & kRelu) != 0 && x < 0) {
      x = 0;
    }
    d[i] = D::narrow(x, rounding);
    if ((in.flags & kFlush) != 0 && sizeof(typename D::Word) == 4) {
      const uint32_t bits = static_cast<uint32_t>(d[i]);
      if (std::is_same_v<D, F32> && (bits & 0x7f800000u) == 0) {
        d[i] = bits & 0x80000000u;
      }
    }
  });
  return Step::next;
}

/// The whole number next to x, saturated; what NaN becomes depends on the widths.
template <class T>
T to_integer(double x, bool from_f64) {
  constexpr T kLeast = std::numeric_limits<T>::min();
  constexpr T kMost = std::numeric_limits<T>::max();
  if (x != x) {
    return from_f64 || sizeof(T) == 8
               ? static_cast<T>(std::make_unsigned_t<T>{1} << (sizeof(T) * 8 - 1))
               : T{0};
  }
  if (x <= static_cast<double>(kLeast)) {
    return kLeast;
  }
  if (x >= static_cast<double>(kMost)) {
    return kMost;
  }
  return static_cast<T>(x);
}

template <class T, class S>
Step float_to_integer(Warp& warp, const Instruction& in, uint32_t mask) {
  auto* d = warp.out<Bits<T>>(in.o[0]);
  const auto* a = warp.in<typename S::Word>(in.o[1]);
  const auto rounding = static_cast<Rounding>(in.modifier);
  each_lane(mask, [&](uint32_t i) {
    double x = S::widen(a[i]);
    if ((in.flags & kFlush) != 0 && sizeof(typename S::Word) == 4) {
      x = flushed(static_cast<float>(x));
    }
    const T whole = to_integer<T>(to_whole(x, rounding), sizeof(typename S::Word) == 8);
    if constexpr (sizeof(T) < 4) {
      d[i] = static_cast<uint32_t>(static_cast<int32_t>(whole));  // extended, by its own sign
    } else {
      d[i] = to_bits<T>(whole);
    }
  });
  return Step::next;
}

/// x rounded to odd in 53 bits, so that rounding it again to fewer is the only rounding.
template <class T>
double odd_double(T x) {
  if constexpr (sizeof(T) < 8) {
    return static_cast<double>(x);
  } else {
    const bool negative = x < 0;
    uint64_t magnitude = negative ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
    const int extra = 11 - (magnitude == 0 ? 64 : std::countl_zero(magnitude));
    if (extra > 0) {
      const uint64_t lost = magnitude & ((1ull << extra) - 1);
      magnitude = (magnitude & ~((1ull << extra) - 1)) | (lost != 0 ? 1ull << extra : 0);
    }
    const auto value = static_cast<double>(magnitude);
    return negative ? -value : value;
  }
}
template <class T>
double exact_or_rounded(T x, Rounding rounding) {
  const auto near = static_cast<double>(x);
  if constexpr (sizeof(T) == 8) {
    const auto back = static_cast<__int128>(near);
    const bool wants_less = rounding == Rounding::down || (rounding == Rounding::zero && x > 0);
    const bool wants_more = rounding == Rounding::up || (rounding == Rounding::zero && x < 0);
    if (wants_less && back > x) {
      return std::nextafter(near, -INFINITY);
    }
    if (wants_more && back < x) {
      return std::nextafter(near, INFINITY);
    }
  }
  return near;
}

template <class D, class T>
Step integer_to_float(Warp& warp, const Instruction& in, uint32_t mask) {
  auto* d = warp.out<typename D::Word>(in.o[0]);
  const auto* a = warp.in<Bits<T>>(in.o[1]);
  const auto rounding = static_cast<Rounding>(in.modifier);
  each_lane(mask, [&](uint32_t i) {
    const T x = from_bits<T>(a[i]);
    if constexpr (sizeof(typename D::Word) == 8) {
      d[i] = D::narrow(exact_or_rounded(x, rounding), rounding);
    } else {
      d[i] = D::narrow(odd_double(x), rounding);
    }
  });
  return Step::next;
}

/// A narrow result is extended to the register, which may be wider than it.
template <class D, class S>
auto cut(S x) {
  if constexpr (sizeof(D) < 4) {
    return static_cast<uint32_t>(static_cast<int32_t>(static_cast<D>(x)));
  } else {
    return static_cast<D>(x);
  }
}
template <class D, class S>
Step integer_to_integer(Warp& warp, const Instruction& in, uint32_t mask) {
  apply<cut<D, S>, std::conditional_t<(sizeof(D) < 4), uint32_t, D>, S>(warp, in, mask,
                                                                        std::index_sequence<0>());
  return Step::next;
}
/// Of a source in a register of 8 bytes, of which the type has the lowest.
template <class D, class S>
auto cut_wide(uint64_t x) {
  return cut<D, S>(static_cast<S>(x));
}
template <class D, class S>
Step wide_to_integer(Warp& warp, const Instruction& in, uint32_t mask) {
  apply<cut_wide<D, S>, std::conditional_t<(sizeof(D) < 4), uint32_t, D>, uint64_t>(
      warp, in, mask, std::index_sequence<0>());
  return Step::next;
}
template <class D, class S>
D clamped(S x) {
  const auto wide = static_cast<__int128>(x);
  if (wide < std::numeric_limits<D>::min()) {
    return std::numeric_limits<D>::min();
  }
  return wide > std::numeric_limits<D>::max() ? std::numeric_limits<D>::max() : static_cast<D>(x);
}
template <class D, class S>
Step integer_saturated(Warp& warp, const Instruction& in, uint32_t mask) {
  apply<clamped<D, S>, D, S>(warp, in, mask, std::index_sequence<0>());
  return Step::next;
}

template <class D, class S>
Handler integers(bool saturate) {
  return saturate ? integer_saturated<D, S> : integer_to_integer<D, S>;
}

/// f of the C++ type or format that a word of an opcode names.
template <class F>
Handler with_integer(std::string_view type, F&& f) {
  if (type == "u8") {
    return f(uint8_t{});
  }
  if (type == "s8") {
    return f(int8_t{});
  }
  if (type == "u16") {
    return f(uint16_t{});
  }
  if (type == "s16") {
    return f(int16_t{});
  }
  if (type == "u32") {
    return f(uint32_t{});
  }
  if (type == "s32") {
    return f(int32_t{});
  }
  if (type == "u64") {
    return f(uint64_t{});
  }
  if (type == "s64") {
    return f(int64_t{});
  }
  return nullptr;
}
template <class F>
Handler with_float(std::string_view type, F&& f) {
  if (type == "f32") {
    return f(F32());
  }
  if (type == "f64") {
    return f(F64());
  }
  if (type == "f16") {
    return f(Small<F16>());
  }
  if (type == "bf16") {
    return f(Small<BF16>());
  }
  return nullptr;
}

Handler scalar(std::string_view to, std::string_view from, bool saturate) {
  if (Handler run = with_integer(to, [&](auto d) {
        using D = decltype(d);
        if (Handler h =
                with_integer(from, [&](auto s) { return integers<D, decltype(s)>(saturate); })) {
          return h;
        }
        return with_float(from, [](auto s) -> Handler { return float_to_integer<D, decltype(s)>; });
      })) {
    return run;
  }
  return with_float(to, [&](auto d) {
    using D = decltype(d);
    if (Handler h = with_integer(
            from, [](auto s) -> Handler { return integer_to_float<D, decltype(s)>; })) {
      return h;
    }
    return with_float(from, [](auto s) -> Handler { return float_to_float<D, decltype(s)>; });
  });
}

Handler from_wide(std::string_view to, std::string_view from) {
  return with_integer(to, [&](auto d) {
    return with_integer(
        from, [](auto s) -> Handler { return wide_to_integer<decltype(d), decltype(s)>; });
  });
}

/// Two f32 to a pair: a to the upper half, b to the lower.
template <class H>
Step to_pair(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  const uint32_t* a = warp.in<uint32_t>(in.o[1]);
  const uint32_t* b = warp.in<uint32_t>(in.o[2]);
  const auto rounding = static_cast<Rounding>(in.modifier);
  const auto one = [&](uint32_t bits) -> uint32_t {
    float x = std::bit_cast<float>(bits);
    if ((in.flags & kRelu) != 0 && x < 0) {
      x = 0;
    }
    return H::narrow(x, rounding);
  };
  each_lane(mask, [&](uint32_t i) {
    const uint32_t low = one(b[i]);
    d[i] = low | one(a[i]) << 16;
  });
  return Step::next;
}
/// bf16x2 to nearest, which is most of them.
uint32_t nearest_bf16(uint32_t u) {
  const uint32_t near = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return (u & 0x7fffffff) > 0x7f800000 ? 0x7fff : near;
}
uint32_t nearest_bf16_pair(uint32_t high, uint32_t low) {
  return nearest_bf16(high) << 16 | nearest_bf16(low);
}

/// Formats of one byte.
template <class F>
uint32_t to_fp8(double x, bool relu) {
  if (x != x) {
    return 0x7f;
  }
  if (relu && x < 0) {
    x = 0;
  }
  return saturate_to<F>(to_odd(x)).bits;
}
template <class F>
Step fp8_from_f32(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  const uint32_t* a = warp.in<uint32_t>(in.o[1]);
  const uint32_t* b = warp.in<uint32_t>(in.o[2]);
  const bool relu = (in.flags & kRelu) != 0;
  each_lane(mask, [&](uint32_t i) {
    const uint32_t low = to_fp8<F>(std::bit_cast<float>(b[i]), relu);
    d[i] = low | to_fp8<F>(std::bit_cast<float>(a[i]), relu) << 8;
  });
  return Step::next;
}
template <class F>
Step fp8_from_f16(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  const uint32_t* a = warp.in<uint32_t>(in.o[1]);
  const bool relu = (in.flags & kRelu) != 0;
  each_lane(mask, [&](uint32_t i) {
    const uint32_t pair = a[i];
    d[i] = to_fp8<F>(F16::widen(static_cast<uint16_t>(pair)), relu) |
           to_fp8<F>(F16::widen(static_cast<uint16_t>(pair >> 16)), relu) << 8;
  });
  return Step::next;
}
template <class F>
Step f16_from_fp8(Warp& warp, const Instruction& in, uint32_t mask) {
  uint32_t* d = warp.out<uint32_t>(in.o[0]);
  const uint32_t* a = warp.in<uint32_t>(in.o[1]);
  each_lane(mask, [&](uint32_t i) {
    const uint32_t pair = a[i];
    uint32_t result = 0;
    for (int h = 0; h < 2; ++h) {
      const F x{static_cast<uint8_t>(pair >> (8 * h))};
      result |= uint32_t{F16::round(to_float(x))} << (16 * h);
    }
    d[i] = result;
  });
  return Step::next;
}

template <bool kAway>
uint32_t to_tf32(uint32_t u) {
  if ((u & 0x7fffffffu) >= 0x7f800000u) {
    return (u & 0x7fffffffu) == 0x7f800000u ? u : 0x7fffffffu;
  }
  return (kAway ? u + 0x1000 : u + 0xfff + (u >> 13 & 1)) & ~0x1fffu;
}

Found find_packed(const Statement& s, std::string_view to, std::string_view from, Form form) {
  const bool nearest = s.has("rn");
  form.layout = "Www";
  if (to == "bf16x2" && from == "f32") {
    form.run = nearest && form.flags == 0
                   ? lanewise<nearest_bf16_pair, uint32_t, uint32_t, uint32_t>
                   : to_pair<Small<BF16>>;
  } else if (to == "f16x2" && from == "f32") {
    form.run = to_pair<Small<F16>>;
  } else if (to == "e4m3x2" && from == "f32") {
    form.run = fp8_from_f32<e4m3fn>;
  } else if (to == "e5m2x2" && from == "f32") {
    form.run = fp8_from_f32<e5m2>;
  } else {
    form.layout = "Ww";
    if (to == "e4m3x2" && from == "f16x2") {
      form.run = fp8_from_f16<e4m3fn>;
    } else if (to == "e5m2x2" && from == "f16x2") {
      form.run = fp8_from_f16<e5m2>;
    } else if (to == "f16x2" && from == "e4m3x2") {
      form.run = f16_from_fp8<e4m3fn>;
    } else if (to == "f16x2" && from == "e5m2x2") {
      form.run = f16_from_fp8<e5m2>;
    } else if (to == "tf32" && from == "f32") {
      form.run = nearest ? lanewise<to_tf32<false>, uint32_t, uint32_t>
                         : lanewise<to_tf32<true>, uint32_t, uint32_t>;
    } else {
      return {};
    }
  }
  return form;
}

}  // namespace

Found find_convert(const Statement& statement) {
  const auto& words = statement.words;
  if (words[0] != "cvt" || words.size() < 3) {
    return {};
  }
  const std::string_view to = words[words.size() - 2];
  const std::string_view from = words.back();
  Form form;
  form.modifier = static_cast<uint32_t>(rounding_of(statement));
  form.flags = static_cast<uint8_t>((statement.has("sat") ? kToUnitRange : 0) |
                                    (statement.has("ftz") ? kFlush : 0) |
                                    (statement.has("relu") ? kRelu : 0));
  form.bytes = whole_wanted(statement) ? 1 : 0;
  if (Found found = find_packed(statement, to, from, form)) {
    return found;
  }
  const bool wide_to = to.ends_with("64");
  if (!from.ends_with("64") && statement.operands.size() == 2 && statement.operands[1].bytes == 8) {
    form.run = statement.has("sat") ? nullptr : from_wide(to, from);
    form.layout = wide_to ? "Dd" : "Wd";
    return form.run == nullptr ? Found() : Found(form);
  }
  form.run = scalar(to, from, statement.has("sat"));
  const bool wide_from = from.ends_with("64");
  form.layout = wide_to ? (wide_from ? "Dd" : "Dw") : wide_from ? "Wd" : "Ww";
  return form.run == nullptr ? Found() : Found(form);
}

}  // namespace weft::ptx

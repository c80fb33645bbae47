// Integers and bits: PTX ISA, "Integer Arithmetic Instructions", "Extended-Precision Integer
// Arithmetic Instructions", "Logic and Shift Instructions".
#include <algorithm>
#include <limits>
#include <unordered_map>

#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

using Table = std::unordered_map<std::string, Form>;

template <class T>
using Unsigned = std::make_unsigned_t<T>;
template <class T>
constexpr int kBits = static_cast<int>(sizeof(T)) * 8;
/// Products of 16 bits would be ints.
template <class T>
using Wide = std::conditional_t<sizeof(T) == 8, unsigned __int128,
                                std::conditional_t<sizeof(T) == 4, uint64_t, uint32_t>>;
template <class T>
using Double =
    std::conditional_t<std::is_signed_v<T>,
                       std::conditional_t<sizeof(T) == 8, __int128,
                                          std::conditional_t<sizeof(T) == 4, int64_t, int32_t>>,
                       Wide<T>>;

template <class T>
T high(T a, T b) {
  return static_cast<T>((Double<T>{a} * Double<T>{b}) >> kBits<T>);
}
template <class T>
T low(T a, T b) {
  return static_cast<T>(static_cast<Wide<T>>(static_cast<Unsigned<T>>(a)) *
                        static_cast<Unsigned<T>>(b));
}
template <class T>
T plus(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) + static_cast<Unsigned<T>>(b));
}
template <class T>
T minus(T a, T b) {
  return static_cast<T>(static_cast<Unsigned<T>>(a) - static_cast<Unsigned<T>>(b));
}
/// By zero: all ones, as the hardware does.
template <class T>
T quotient(T a, T b) {
  if (b == 0) {
    return static_cast<T>(~T{0});
  }
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
    return minus<T>(0, a);
  }
  return static_cast<T>(a / b);
}
template <class T>
T remainder(T a, T b) {
  if (b == 0) {
    return a;
  }
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) {
    return 0;
  }
  return static_cast<T>(a % b);
}
template <class T>
T magnitude(T a) {
  return a < 0 ? minus<T>(0, a) : a;
}
template <class T>
T left(T a, uint32_t n) {
  return n >= kBits<T> ? T{0} : static_cast<T>(a << n);
}
template <class T>
T right(T a, uint32_t n) {
  if (n >= kBits<T>) {
    return a < 0 ? static_cast<T>(~T{0}) : T{0};
  }
  return static_cast<T>(a >> n);
}
/// The highest bit that is not the sign; ~0: there is none.
template <class T>
uint32_t top_bit(T a) {
  auto x = static_cast<Unsigned<T>>(a);
  if (std::is_signed_v<T> && a < 0) {
    x = static_cast<Unsigned<T>>(~x);
  }
  return x == 0 ? ~0u : static_cast<uint32_t>(kBits<T> - 1 - std::countl_zero(x));
}
template <class T>
uint32_t top_bit_shift(T a) {
  const uint32_t bit = top_bit<T>(a);
  return bit == ~0u ? bit : static_cast<uint32_t>(kBits<T>) - 1 - bit;
}
template <class T>
T extract(T a, uint32_t position, uint32_t length) {
  const uint32_t p = position & 0xff;
  const uint32_t n = length & 0xff;
  const auto most = static_cast<uint32_t>(kBits<T> - 1);
  if (n == 0) {
    return 0;
  }
  const uint32_t sign_bit = std::min(p + n - 1, most);
  const bool sign = std::is_signed_v<T> && ((a >> sign_bit) & 1) != 0;
  const auto x = static_cast<Unsigned<T>>(p > most ? 0 : static_cast<Unsigned<T>>(a) >> p);
  const uint32_t there = p > most ? 0 : std::min(n, most + 1 - p);
  const Unsigned<T> ones = there > most ? static_cast<Unsigned<T>>(~Unsigned<T>{0})
                                        : static_cast<Unsigned<T>>((Unsigned<T>{1} << there) - 1);
  return static_cast<T>((x & ones) | (sign ? static_cast<Unsigned<T>>(~ones) : Unsigned<T>{0}));
}
template <class T>
T insert(T a, T b, uint32_t position, uint32_t length) {
  const uint32_t p = position & 0xff;
  const uint32_t n = length & 0xff;
  if (p >= kBits<T> || n == 0) {
    return b;
  }
  const T ones = n >= kBits<T> ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << n) - 1);
  const T field = static_cast<T>(ones << p);
  return static_cast<T>((b & ~field) | ((a << p) & field));
}
template <class T>
T reversed(T x) {
  T r = 0;
  for (int i = 0; i < kBits<T>; ++i) {
    r = static_cast<T>(r << 1 | (x >> i & 1));
  }
  return r;
}
uint32_t by_table(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
  uint32_t r = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    const uint32_t bits =
        ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
    r |= bits & (0 - (table >> i & 1));
  }
  return r;
}
uint32_t permuted(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> (4 * i) & 0xf;
    auto byte = static_cast<uint8_t>(bytes >> (8 * (s & 7)));
    if ((s & 8) != 0) {
      byte = (byte & 0x80) != 0 ? 0xff : 0;
    }
    r |= uint32_t{byte} << (8 * i);
  }
  return r;
}
/// prmt's modes: the selectors that they stand for, by the two lowest bits of c.
constexpr uint32_t kForward[4] = {0x3210, 0x4321, 0x5432, 0x6543};
constexpr uint32_t kBackward[4] = {0x5670, 0x6701, 0x7012, 0x0123};
constexpr uint32_t kReplicate8[4] = {0x0000, 0x1111, 0x2222, 0x3333};
constexpr uint32_t kEdgeLeft[4] = {0x3210, 0x3211, 0x3222, 0x3333};
constexpr uint32_t kEdgeRight[4] = {0x0000, 0x1110, 0x2210, 0x3210};
constexpr uint32_t kReplicate16[4] = {0x1010, 0x3232, 0x1010, 0x3232};
template <const uint32_t (&kSelectors)[4]>
uint32_t permuted_as(uint32_t a, uint32_t b, uint32_t c) {
  return permuted(a, b, kSelectors[c & 3]);
}
template <bool kLeft, bool kClamp>
uint32_t funnel(uint32_t a, uint32_t b, uint32_t c) {
  const uint32_t n = kClamp ? std::min(c, 32u) : c & 31;
  const uint64_t both = uint64_t{b} << 32 | a;
  return static_cast<uint32_t>(kLeft ? both << n >> 32 : both >> n);
}
template <class T>
T sum_saturated(T a, T b) {
  const int64_t sum = int64_t{a} + int64_t{b};
  return static_cast<T>(
      std::clamp<int64_t>(sum, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
template <class T>
T difference_saturated(T a, T b) {
  const int64_t sum = int64_t{a} - int64_t{b};
  return static_cast<T>(
      std::clamp<int64_t>(sum, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
}
/// Products of 24 bits.
template <class T>
int64_t product24(T a, T b) {
  const auto cut = [](T x) {
    return std::is_signed_v<T> ? int64_t{static_cast<int32_t>(static_cast<uint32_t>(x) << 8) >> 8}
                               : int64_t{static_cast<uint32_t>(x) & 0xffffff};
  };
  return cut(a) * cut(b);
}
/// Four products of bytes, added.
template <class A, class B>
int32_t dot4(uint32_t a, uint32_t b, int32_t c) {
  auto sum = static_cast<uint32_t>(c);
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<uint32_t>(int32_t{static_cast<A>(a >> (8 * i))} *
                                 int32_t{static_cast<B>(b >> (8 * i))});
  }
  return static_cast<int32_t>(sum);
}

/// Sums with the carry: of T unsigned. A borrow is a carry that is set, as the hardware's
/// complement of it cannot be seen.
enum class Carry : uint8_t { add, subtract, low, high };
template <class T, Carry kWhat, bool kReads, bool kWrites>
Step with_carry(Warp& warp, const Instruction& in, uint32_t mask) {
  constexpr bool kProduct = kWhat == Carry::low || kWhat == Carry::high;
  T* d = warp.out<T>(in.o[0]);
  const T* a = warp.in<T>(in.o[1]);
  const T* b = warp.in<T>(in.o[2]);
  const T* c = kProduct ? warp.in<T>(in.o[3]) : nullptr;
  const uint32_t before = warp.carry;
  each_lane(mask, [&](uint32_t i) {
    T x = a[i];
    T y = b[i];
    if constexpr (kProduct) {
      const auto product = static_cast<Wide<T>>(Wide<T>{x} * y);
      x = static_cast<T>(kWhat == Carry::low ? product : product >> kBits<T>);
      y = c[i];
    }
    const T extra = kReads ? before >> i & 1 : 0;
    T r;
    bool carry;
    if constexpr (kWhat == Carry::subtract) {
      const auto difference = static_cast<T>(x - y);
      r = static_cast<T>(difference - extra);
      carry = x < y || difference < extra;
    } else {
      const auto sum = static_cast<T>(x + y);
      r = static_cast<T>(sum + extra);
      carry = sum < x || r < sum;
    }
    d[i] = r;
    if constexpr (kWrites) {
      warp.carry = (warp.carry & ~(1u << i)) | uint32_t{carry} << i;
    }
  });
  return Step::next;
}

template <class T>
constexpr const char* kSuffix = "";
template <>
constexpr const char* kSuffix<uint16_t> = "u16";
template <>
constexpr const char* kSuffix<int16_t> = "s16";
template <>
constexpr const char* kSuffix<uint32_t> = "u32";
template <>
constexpr const char* kSuffix<int32_t> = "s32";
template <>
constexpr const char* kSuffix<uint64_t> = "u64";
template <>
constexpr const char* kSuffix<int64_t> = "s64";

template <class T>
constexpr char kLetter = sizeof(T) == 8 ? 'd' : 'w';
template <class D, class... A>
constexpr char kLayout[sizeof...(A) + 2] = {kLetter<D> - 'a' + 'A', kLetter<A>..., 0};

template <auto kFunction, class D, class... A>
void put(Table& table, const std::string& name) {
  table[name] = {.run = lanewise<kFunction, D, A...>, .layout = kLayout<D, A...>};
}

template <class T>
void put_arithmetic(Table& table) {
  const std::string type = std::string(".") + kSuffix<T>;
  put<plus<T>, T, T, T>(table, "add" + type);
  put<minus<T>, T, T, T>(table, "sub" + type);
  put<low<T>, T, T, T>(table, "mul.lo" + type);
  put<high<T>, T, T, T>(table, "mul.hi" + type);
  put<quotient<T>, T, T, T>(table, "div" + type);
  put<remainder<T>, T, T, T>(table, "rem" + type);
  put<[](T a, T b, T c) { return plus<T>(low<T>(a, b), c); }, T, T, T, T>(table, "mad.lo" + type);
  put<[](T a, T b, T c) { return plus<T>(high<T>(a, b), c); }, T, T, T, T>(table, "mad.hi" + type);
  put<[](T a, T b) { return std::min(a, b); }, T, T, T>(table, "min" + type);
  put<[](T a, T b) { return std::max(a, b); }, T, T, T>(table, "max" + type);
  put<[](T a, T b, T c) { return plus<T>(c, a < b ? minus<T>(b, a) : minus<T>(a, b)); }, T, T, T,
      T>(table, "sad" + type);
  put<right<T>, T, T, uint32_t>(table, "shr" + type);
  if constexpr (std::is_signed_v<T>) {
    put<magnitude<T>, T, T>(table, "abs" + type);
    put<[](T a) { return minus<T>(0, a); }, T, T>(table, "neg" + type);
  }
  if constexpr (sizeof(T) < 8) {
    using D = std::conditional_t<std::is_signed_v<T>,
                                 std::conditional_t<sizeof(T) == 4, int64_t, int32_t>,
                                 std::conditional_t<sizeof(T) == 4, uint64_t, uint32_t>>;
    put<[](T a, T b) { return static_cast<D>(D{a} * D{b}); }, D, T, T>(table, "mul.wide" + type);
    put<[](T a, T b, D c) { return plus<D>(D{a} * D{b}, c); }, D, T, T, D>(table,
                                                                           "mad.wide" + type);
  }
  if constexpr (sizeof(T) > 2) {
    put<top_bit<T>, uint32_t, T>(table, "bfind" + type);
    put<top_bit_shift<T>, uint32_t, T>(table, "bfind.shiftamt" + type);
    put<extract<T>, T, T, uint32_t, uint32_t>(table, "bfe" + type);
  }
  if constexpr (sizeof(T) == 4) {
    put<[](T a, T b) { return static_cast<T>(product24<T>(a, b)); }, T, T, T>(table,
                                                                              "mul24.lo" + type);
    put<[](T a, T b) { return static_cast<T>(product24<T>(a, b) >> 16); }, T, T, T>(
        table, "mul24.hi" + type);
    put<[](T a, T b, T c) { return plus<T>(static_cast<T>(product24<T>(a, b)), c); }, T, T, T, T>(
        table, "mad24.lo" + type);
  }
}

template <class T>
void put_bits(Table& table) {
  const std::string type = ".b" + std::to_string(kBits<T>);
  put<[](T a, T b) { return static_cast<T>(a & b); }, T, T, T>(table, "and" + type);
  put<[](T a, T b) { return static_cast<T>(a | b); }, T, T, T>(table, "or" + type);
  put<[](T a, T b) { return static_cast<T>(a ^ b); }, T, T, T>(table, "xor" + type);
  put<[](T a) { return static_cast<T>(~a); }, T, T>(table, "not" + type);
  put<[](T a) { return static_cast<T>(a == 0 ? 1 : 0); }, T, T>(table, "cnot" + type);
  put<left<T>, T, T, uint32_t>(table, "shl" + type);
  put<right<T>, T, T, uint32_t>(table, "shr" + type);
  if constexpr (sizeof(T) > 2) {
    put<[](T a) { return static_cast<uint32_t>(std::popcount(a)); }, uint32_t, T>(table,
                                                                                  "popc" + type);
    put<[](T a) { return static_cast<uint32_t>(std::countl_zero(a)); }, uint32_t, T>(table,
                                                                                     "clz" + type);
    put<reversed<T>, T, T>(table, "brev" + type);
    put<insert<T>, T, T, T, uint32_t, uint32_t>(table, "bfi" + type);
  }
}

void put_words(Table& table) {
  using U = uint32_t;
  put<by_table, U, U, U, U, U>(table, "lop3.b32");
  put<permuted, U, U, U, U>(table, "prmt.b32");
  put<permuted_as<kForward>, U, U, U, U>(table, "prmt.b32.f4e");
  put<permuted_as<kBackward>, U, U, U, U>(table, "prmt.b32.b4e");
  put<permuted_as<kReplicate8>, U, U, U, U>(table, "prmt.b32.rc8");
  put<permuted_as<kEdgeLeft>, U, U, U, U>(table, "prmt.b32.ecl");
  put<permuted_as<kEdgeRight>, U, U, U, U>(table, "prmt.b32.ecr");
  put<permuted_as<kReplicate16>, U, U, U, U>(table, "prmt.b32.rc16");
  put<funnel<true, false>, U, U, U, U>(table, "shf.l.wrap.b32");
  put<funnel<true, true>, U, U, U, U>(table, "shf.l.clamp.b32");
  put<funnel<false, false>, U, U, U, U>(table, "shf.r.wrap.b32");
  put<funnel<false, true>, U, U, U, U>(table, "shf.r.clamp.b32");
  put<sum_saturated<int32_t>, int32_t, int32_t, int32_t>(table, "add.sat.s32");
  put<difference_saturated<int32_t>, int32_t, int32_t, int32_t>(table, "sub.sat.s32");
  put<dot4<uint8_t, uint8_t>, int32_t, U, U, int32_t>(table, "dp4a.u32.u32");
  put<dot4<int8_t, int8_t>, int32_t, U, U, int32_t>(table, "dp4a.s32.s32");
  put<dot4<uint8_t, int8_t>, int32_t, U, U, int32_t>(table, "dp4a.u32.s32");
  put<dot4<int8_t, uint8_t>, int32_t, U, U, int32_t>(table, "dp4a.s32.u32");
}

template <class T>
void put_carries(Table& table, const std::string& type) {
  constexpr const char* kTwo = kLayout<T, T, T>;
  constexpr const char* kThree = kLayout<T, T, T, T>;
  table["add.cc." + type] = {with_carry<T, Carry::add, false, true>, kTwo};
  table["addc." + type] = {with_carry<T, Carry::add, true, false>, kTwo};
  table["addc.cc." + type] = {with_carry<T, Carry::add, true, true>, kTwo};
  table["sub.cc." + type] = {with_carry<T, Carry::subtract, false, true>, kTwo};
  table["subc." + type] = {with_carry<T, Carry::subtract, true, false>, kTwo};
  table["subc.cc." + type] = {with_carry<T, Carry::subtract, true, true>, kTwo};
  table["mad.lo.cc." + type] = {with_carry<T, Carry::low, false, true>, kThree};
  table["madc.lo." + type] = {with_carry<T, Carry::low, true, false>, kThree};
  table["madc.lo.cc." + type] = {with_carry<T, Carry::low, true, true>, kThree};
  if (type[0] == 'u') {  // the high half of a signed product is another
    table["mad.hi.cc." + type] = {with_carry<T, Carry::high, false, true>, kThree};
    table["madc.hi." + type] = {with_carry<T, Carry::high, true, false>, kThree};
    table["madc.hi.cc." + type] = {with_carry<T, Carry::high, true, true>, kThree};
  }
}

Table integers() {
  Table table;
  put_arithmetic<uint16_t>(table);
  put_arithmetic<int16_t>(table);
  put_arithmetic<uint32_t>(table);
  put_arithmetic<int32_t>(table);
  put_arithmetic<uint64_t>(table);
  put_arithmetic<int64_t>(table);
  put_bits<uint16_t>(table);
  put_bits<uint32_t>(table);
  put_bits<uint64_t>(table);
  put_words(table);
  put_carries<uint32_t>(table, "u32");
  put_carries<uint32_t>(table, "s32");
  put_carries<uint64_t>(table, "u64");
  put_carries<uint64_t>(table, "s64");
  return table;
}

}  // namespace

Found find_integer(const Statement& statement) {
  static const Table kTable = integers();
  const auto found = kTable.find(std::string(statement.opcode));
  return found == kTable.end() ? Found() : Found(found->second);
}

}  // namespace weft::ptx

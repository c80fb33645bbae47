// Loads, stores and atomic operations: PTX ISA, "Data Movement and Conversion Instructions: ld,
// st", "atom", "red". Caches and scopes make no difference: accesses happen in the order of
// execution.
#include <algorithm>
#include <bit>
#include <unordered_map>

#include "sim/hopper/memory.h"
#include "sim/hopper/ptx_decode.h"
#include "sim/hopper/ptx_floats.h"
#include "sim/hopper/ptx_lanes-inl.h"

namespace weft::ptx {
namespace {

// Of Instruction::flags.
constexpr uint8_t kInShared = 1;  ///< the first address is in the shared window
constexpr uint8_t kPolls = 2;     ///< what others may write meanwhile

/// A warp that looks so often in a turn lets others go on.
constexpr uint32_t kPollsATurn = 16;

std::string hex(uint64_t x) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  do {
    text.insert(text.begin(), kDigits[x & 0xf]);
    x >>= 4;
  } while (x != 0);
  return "0x" + text;
}

bool fault_at(Warp& warp, uint32_t lane, Space space, uint64_t address, size_t bytes,
              size_t alignment) {
  const std::string what = std::to_string(bytes) + " bytes at " + hex(address);
  if (address % alignment != 0) {
    warp.fault(lane, "accesses " + what + ", which is not aligned");
  } else if (space == Space::shared) {
    warp.fault(lane, "accesses " + what + " of shared memory, which is from " +
                         hex(window::kReserved) + " to " + hex(warp.grid->shared_bytes));
  } else {
    warp.fault(lane, "accesses " + what + ", which is no memory of the device");
  }
  return false;
}

template <class M, class S>
Step load(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  const size_t bytes = sizeof(M) * in.count;
  if (!locate(warp, mask, (in.flags & kInShared) != 0 ? Space::shared : Space::generic,
              in.o[in.count], in.wide != 0, in.immediate, bytes, bytes, places)) {
    return Step::fault;
  }
  for (int e = 0; e < in.count; ++e) {
    if (in.o[e].none()) {
      continue;
    }
    S* d = warp.out<S>(in.o[e]);
    every_lane(mask, [&](uint32_t i) {
      M value;
      std::memcpy(&value, places[i] + static_cast<size_t>(e) * sizeof(M), sizeof(M));
      d[i] = static_cast<S>(
          static_cast<std::conditional_t<std::is_signed_v<M>, int64_t, uint64_t>>(value));
    });
  }
  if ((in.flags & kPolls) != 0 && ++warp.polls > kPollsATurn) {
    return Step::yield;
  }
  return Step::next;
}

/// modifier: elements.
template <class M, class S>
Step store(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  const uint32_t count = in.modifier;
  const size_t bytes = sizeof(M) * count;
  if (!locate(warp, mask, (in.flags & kInShared) != 0 ? Space::shared : Space::generic, in.o[0],
              in.wide != 0, in.immediate, bytes, bytes, places)) {
    return Step::fault;
  }
  for (uint32_t e = 0; e < count; ++e) {
    const S* a = warp.in<S>(in.o[1 + e]);
    every_lane(mask, [&](uint32_t i) {
      const auto value = static_cast<M>(a[i]);
      std::memcpy(places[i] + e * sizeof(M), &value, sizeof(M));
    });
  }
  return Step::next;
}

using Quad = std::array<uint64_t, 2>;
Step load_wide(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate(warp, mask, (in.flags & kInShared) != 0 ? Space::shared : Space::generic, in.o[1],
              in.wide != 0, in.immediate, 16, 16, places)) {
    return Step::fault;
  }
  auto* d = warp.out<Quad>(in.o[0]);
  each_lane(mask, [&](uint32_t i) { std::memcpy(d + i, places[i], 16); });
  return (in.flags & kPolls) != 0 && ++warp.polls > kPollsATurn ? Step::yield : Step::next;
}
Step store_wide(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  if (!locate(warp, mask, (in.flags & kInShared) != 0 ? Space::shared : Space::generic, in.o[0],
              in.wide != 0, in.immediate, 16, 16, places)) {
    return Step::fault;
  }
  const auto* a = warp.in<Quad>(in.o[1]);
  each_lane(mask, [&](uint32_t i) { std::memcpy(places[i], a + i, 16); });
  return Step::next;
}

template <template <class> class H>
Handler of_type(std::string_view type, bool wide_register) {
  if (wide_register) {
    return H<uint64_t>::of(type);
  }
  return H<uint32_t>::of(type);
}
template <class S>
struct Loads {
  static Handler of(std::string_view type) {
    if (type == "u8" || type == "b8") {
      return load<uint8_t, S>;
    }
    if (type == "s8") {
      return load<int8_t, S>;
    }
    if (type == "u16" || type == "b16" || type == "f16" || type == "bf16") {
      return load<uint16_t, S>;
    }
    if (type == "s16") {
      return load<int16_t, S>;
    }
    if (type == "u32" || type == "b32" || type == "f32") {
      return load<uint32_t, S>;
    }
    if (type == "s32") {
      return load<int32_t, S>;
    }
    if (sizeof(S) == 8 && (type == "u64" || type == "b64" || type == "f64" || type == "s64")) {
      return load<uint64_t, S>;
    }
    return nullptr;
  }
};
template <class S>
struct Stores {
  static Handler of(std::string_view type) {
    const std::string_view width = type.substr(1);
    if (type.empty() || type == "b128") {
      return nullptr;
    }
    if (width == "8") {
      return store<uint8_t, S>;
    }
    if (width == "16" || type == "bf16") {
      return store<uint16_t, S>;
    }
    if (width == "32") {
      return store<uint32_t, S>;
    }
    return sizeof(S) == 8 && width == "64" ? store<uint64_t, S> : nullptr;
  }
};

bool in_shared(const Statement& s) {
  return s.has("shared") || s.has("shared::cta") || s.has("shared::cluster");
}

/// The register that an operand's values are in has 8 bytes a lane.
bool wide_register(const Operand& operand, std::string_view type) {
  const Operand& first = operand.kind == Operand::Kind::vector ? operand.elements[0] : operand;
  return first.kind == Operand::Kind::reg ? first.bytes == 8 : type.ends_with("64");
}

Found find_load(const Statement& s) {
  if (s.operands.size() < 2) {
    return {};
  }
  const std::string_view type = s.words.back();
  Form form;
  form.flags = static_cast<uint8_t>(
      (in_shared(s) ? kInShared : 0) |
      (s.has("volatile") || s.has("relaxed") || s.has("acquire") ? kPolls : 0));
  if (type == "b128") {
    form.run = load_wide;
    form.layout = "Qa?d";
    return form;
  }
  form.run = of_type<Loads>(type, wide_register(s.operands[0], type));
  form.layout = "Ma?d";
  return form.run == nullptr ? Found() : Found(form);
}

Found find_store(const Statement& s) {
  if (s.operands.size() < 2 || s.has("async")) {
    return {};
  }
  const std::string_view type = s.words.back();
  Form form;
  form.flags = in_shared(s) ? kInShared : 0;
  if (type == "b128") {
    form.run = store_wide;
    form.layout = "aq?d";
    return form;
  }
  const Operand& value = s.operands[1];
  form.modifier =
      value.kind == Operand::Kind::vector ? static_cast<uint32_t>(value.elements.size()) : 1;
  form.run = of_type<Stores>(type, wide_register(value, type));
  form.layout = "am?d";
  form.bytes = type.ends_with("64") ? 8 : 4;
  return form.run == nullptr ? Found() : Found(form);
}

// Atomic operations. kReturns: atom, with what was there in its first operand.

template <class T, auto kFunction, bool kReturns>
Step atomic(Warp& warp, const Instruction& in, uint32_t mask) {
  Places places;
  const Slot* o = in.o + (kReturns ? 1 : 0);
  if (!locate(warp, mask, (in.flags & kInShared) != 0 ? Space::shared : Space::generic, o[0],
              in.wide != 0, in.immediate, sizeof(T), sizeof(T), places)) {
    return Step::fault;
  }
  const Bits<T>* b = warp.in<Bits<T>>(o[1]);
  const Bits<T>* c = warp.in<Bits<T>>(in.modifier > 0 ? o[2] : o[1]);
  Bits<T>* d = kReturns && !in.o[0].none() ? warp.out<Bits<T>>(in.o[0]) : nullptr;
  each_lane(mask, [&](uint32_t i) {
    T old;
    std::memcpy(&old, places[i], sizeof(T));
    const T next = kFunction(old, from_bits<T>(b[i]), from_bits<T>(c[i]));
    std::memcpy(places[i], &next, sizeof(T));
    if (d != nullptr) {
      d[i] = to_bits<T>(old);
    }
  });
  if ((in.flags & kPolls) != 0 && ++warp.polls > kPollsATurn) {
    return Step::yield;
  }
  return Step::next;
}

template <class T>
T sum(T a, T b, T) {
  return static_cast<T>(a + b);
}
template <class T>
T least(T a, T b, T) {
  return b < a ? b : a;
}
template <class T>
T most(T a, T b, T) {
  return a < b ? b : a;
}
template <class T>
T swapped(T, T b, T) {
  return b;
}
template <class T>
T swapped_if(T a, T b, T c) {
  return a == b ? c : a;
}
template <class T>
T both(T a, T b, T) {
  return a & b;
}
template <class T>
T either(T a, T b, T) {
  return a | b;
}
template <class T>
T one_of(T a, T b, T) {
  return a ^ b;
}
uint32_t counted_up(uint32_t a, uint32_t b, uint32_t) { return a >= b ? 0 : a + 1; }
uint32_t counted_down(uint32_t a, uint32_t b, uint32_t) { return a == 0 || a > b ? b : a - 1; }
template <class H>
uint32_t sum_of_pairs(uint32_t a, uint32_t b, uint32_t) {
  uint32_t result = 0;
  for (int h = 0; h < 32; h += 16) {
    result |= uint32_t{H::round(H::widen(static_cast<uint16_t>(a >> h)) +
                                H::widen(static_cast<uint16_t>(b >> h)))}
              << h;
  }
  return result;
}

struct Atomic {
  std::string_view op, type;
  Handler atom, red;
};
template <class T, auto kFunction>
constexpr Atomic row(std::string_view op, std::string_view type) {
  return {op, type, atomic<T, kFunction, true>, atomic<T, kFunction, false>};
}
template <class U, class S>
void put_integers(std::vector<Atomic>& rows, const std::string_view (&types)[3]) {
  rows.push_back(row<U, sum<U>>("add", types[0]));
  rows.push_back(row<U, sum<U>>("add", types[1]));
  rows.push_back(row<U, least<U>>("min", types[0]));
  rows.push_back(row<S, least<S>>("min", types[1]));
  rows.push_back(row<U, most<U>>("max", types[0]));
  rows.push_back(row<S, most<S>>("max", types[1]));
  rows.push_back(row<U, swapped<U>>("exch", types[2]));
  rows.push_back(row<U, swapped_if<U>>("cas", types[2]));
  rows.push_back(row<U, both<U>>("and", types[2]));
  rows.push_back(row<U, either<U>>("or", types[2]));
  rows.push_back(row<U, one_of<U>>("xor", types[2]));
}
std::vector<Atomic> atomics() {
  std::vector<Atomic> rows;
  put_integers<uint32_t, int32_t>(rows, {"u32", "s32", "b32"});
  put_integers<uint64_t, int64_t>(rows, {"u64", "s64", "b64"});
  rows.push_back(row<uint32_t, counted_up>("inc", "u32"));
  rows.push_back(row<uint32_t, counted_down>("dec", "u32"));
  rows.push_back(row<float, sum<float>>("add", "f32"));
  rows.push_back(row<double, sum<double>>("add", "f64"));
  rows.push_back(row<uint32_t, sum_of_pairs<F16>>("add", "f16x2"));
  rows.push_back(row<uint32_t, sum_of_pairs<BF16>>("add", "bf16x2"));
  return rows;
}

Found find_atomic(const Statement& s) {
  static const std::vector<Atomic> kRows = atomics();
  const bool returns = s.words[0] == "atom";
  const std::string_view type = s.words.back();
  for (const Atomic& candidate : kRows) {
    if (candidate.type != type || !s.has(candidate.op)) {
      continue;
    }
    Form form;
    const bool wide = type.ends_with("64");
    const bool swaps = candidate.op == "cas";
    form.run = returns ? candidate.atom : candidate.red;
    form.layout = !returns ? (wide ? "ad" : "aw")
                  : swaps  ? (wide ? "Dadd" : "Waww")
                           : (wide ? "Dad" : "Waw");
    form.flags = static_cast<uint8_t>((in_shared(s) ? kInShared : 0) | (returns ? kPolls : 0));
    form.modifier = swaps ? 1 : 0;
    return form;
  }
  return {};
}

}  // namespace

bool Grid::known(uintptr_t address, size_t bytes) const {
  for (const Range& range : blocks) {
    if (range.holds(address, bytes)) {
      return true;
    }
  }
  return memory_map.bytes == 0 || accessible(address, bytes);
}

namespace {

/// Whether bytes of the cluster's shared memory, by their addresses in the window, are of one CTA.
bool in_window(const Warp& warp, uint64_t low, uint64_t bytes) {
  return bytes <= (1u << window::kRankShift) && shared_at(warp, low, bytes) != nullptr;
}

bool reachable(const Warp& warp, Space space, uint64_t low, uint64_t bytes) {
  if (space == Space::shared) {
    return in_window(warp, low, bytes);
  }
  const Grid& grid = *warp.grid;
  if (low - reinterpret_cast<uintptr_t>(grid.arenas.data()) < grid.arenas.size()) {
    return in_window(warp, low - reinterpret_cast<uintptr_t>(warp.cta->arena), bytes);
  }
  return grid.known(low, bytes);
}

}  // namespace

bool locate(Warp& warp, uint32_t mask, Space space, Slot base, bool wide, int64_t displacement,
            size_t bytes, size_t alignment, Places& places) {
  if (mask == 0) {
    return true;
  }
  // All lanes' addresses, those that do not count replaced by one that does.
  uint64_t addresses[kLanes];
  const auto by = static_cast<uint64_t>(displacement);
  if (wide) {
    const uint64_t* a = warp.in<uint64_t>(base);
    for (int i = 0; i < kLanes; ++i) {
      addresses[i] = a[i] + by;
    }
  } else {
    const uint32_t* a = warp.in<uint32_t>(base);
    for (int i = 0; i < kLanes; ++i) {
      addresses[i] = static_cast<uint32_t>(a[i] + by);
    }
  }
  if (mask != ~0u) {
    const uint64_t one = addresses[__builtin_ctz(mask)];
    for (int i = 0; i < kLanes; ++i) {
      addresses[i] = (mask >> i & 1) != 0 ? addresses[i] : one;
    }
  }
  uint64_t low = ~0ull;
  uint64_t high = 0;
  uint64_t bits = 0;
  for (const uint64_t address : addresses) {
    low = std::min(low, address);
    high = std::max(high, address);
    bits |= address;
  }
  std::byte* const origin = space == Space::shared ? warp.cta->arena : nullptr;
  for (int i = 0; i < kLanes; ++i) {
    places[static_cast<size_t>(i)] = origin + addresses[i];
  }
  constexpr uint64_t kNear = 1u << 16;
  if ((bits & (alignment - 1)) == 0 && high - low < kNear &&
      reachable(warp, space, low, high - low + bytes)) {
    return true;
  }
  bool good = true;
  each_lane(mask, [&](uint32_t i) {
    const uint64_t address = addresses[i];
    if (good && ((address & (alignment - 1)) != 0 || !reachable(warp, space, address, bytes))) {
      good = fault_at(warp, i, space, address, bytes, alignment);
    }
  });
  return good;
}

Found find_memory(const Statement& statement) {
  const std::string_view op = statement.words[0];
  if (op == "ld" || op == "ldu") {
    return find_load(statement);
  }
  if (op == "st") {
    return find_store(statement);
  }
  if (op == "atom" || op == "red") {
    return find_atomic(statement);
  }
  return {};
}

}  // namespace weft::ptx

// Scalar arithmetic (SOP1, SOP2, SOPC, SOPK): one row for each instruction.
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "sim/checks.h"
#include "sim/decode.h"
#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

template <class T>
T read(const Wave& w, const Operand& o) {
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(w.read64(o));
  } else {
    return static_cast<T>(w.read32(o));
  }
}
template <class T>
void write(Wave& w, const Operand& o, T value) {
  if constexpr (sizeof(T) == 8) {
    w.write64(o, static_cast<uint64_t>(value));
  } else {
    w.write32(o, static_cast<uint32_t>(value));
  }
}
template <class T>
constexpr Type type_of() {
  return sizeof(T) != 8 ? Type::b32 : std::is_signed_v<T> ? Type::i64 : Type::b64;
}

// D f(Wave&, S...): results that say nothing of SCC leave it alone.
template <class D, class S, class F>
struct Unary {
  static void run(Wave& w, const Instruction& i) {
    write<D>(w, i.operand[0], F{}(w, read<S>(w, i.operand[1])));
  }
};
template <class D, class S, class F>
constexpr Row unary(std::string_view name, F, uint8_t flags = 0) {
  return {.name = name,
          .run = &Unary<D, S, F>::run,
          .cost = Class::salu,
          .types = {type_of<D>(), type_of<S>()},
          .flags = flags};
}

template <class D, class A, class B, class F>
struct Binary {
  static void run(Wave& w, const Instruction& i) {
    const A a = read<A>(w, i.operand[1]);
    const B b = read<B>(w, i.operand[2]);
    write<D>(w, i.operand[0], F{}(w, a, b));
  }
};
template <class D, class A, class B, class F>
constexpr Row binary(std::string_view name, F, uint8_t flags = 0) {
  return {.name = name,
          .run = &Binary<D, A, B, F>::run,
          .cost = Class::salu,
          .types = {type_of<D>(), type_of<A>(), type_of<B>()},
          .flags = flags};
}

/// SCC is whether the result has a bit.
template <class T, class F>
constexpr Row logical(std::string_view name, F) {
  constexpr auto kWithScc = [](Wave& w, T a, T b) {
    const T r = F{}(a, b);
    w.scc = r != 0 ? 1 : 0;
    return r;
  };
  return binary<T, T, T>(name, kWithScc);
}
template <class T, class F>
constexpr Row shift(std::string_view name, F) {
  constexpr auto kWithScc = [](Wave& w, T a, uint32_t n) {
    const T r = F{}(a, n);
    w.scc = r != 0 ? 1 : 0;
    return r;
  };
  return binary<T, T, uint32_t>(name, kWithScc);
}
template <class D, class S, class F>
constexpr Row unary_scc(std::string_view name, F) {
  constexpr auto kWithScc = [](Wave& w, S a) {
    const D r = F{}(a);
    w.scc = r != 0 ? 1 : 0;
    return r;
  };
  return unary<D, S>(name, kWithScc);
}

template <class A, class B, class F>
struct Comparison {
  static void run(Wave& w, const Instruction& i) {
    w.scc = F{}(read<A>(w, i.operand[0]), read<B>(w, i.operand[1])) ? 1 : 0;
  }
};
template <class A, class B = A, class F>
constexpr Row comparison(std::string_view name, F) {
  return {.name = name,
          .run = &Comparison<A, B, F>::run,
          .cost = Class::salu,
          .results = 0,
          .types = {type_of<A>(), type_of<B>()}};
}

/// EXEC combined with a mask; the old EXEC is kept.
template <class F>
void save_exec(Wave& w, const Instruction& i) {
  const uint64_t source = w.read64(i.operand[1]);
  const uint64_t old = w.exec();
  const uint64_t now = F{}(source, old);
  w.write64(i.operand[0], old);
  w.set_pair(kExec, now);
  w.scc = now != 0 ? 1 : 0;
}
template <class F>
constexpr Row saving(std::string_view name, F) {
  return {.name = name, .run = &save_exec<F>, .cost = Class::salu, .types = {Type::b64, Type::b64}};
}
/// EXEC and the destination both become the combination.
template <class F>
void write_exec(Wave& w, const Instruction& i) {
  const uint64_t now = F{}(w.read64(i.operand[1]), w.exec());
  w.set_pair(kExec, now);
  w.write64(i.operand[0], now);
  w.scc = now != 0 ? 1 : 0;
}
template <class F>
constexpr Row writing(std::string_view name, F) {
  return {
      .name = name, .run = &write_exec<F>, .cost = Class::salu, .types = {Type::b64, Type::b64}};
}

// SOPK: the constant is the instruction's 16-bit field.
template <class F>
void with_constant(Wave& w, const Instruction& i) {
  w.write32(i.operand[0], F{}(w, w.s[i.operand[0].index], i.offset));
}
template <class F>
constexpr Row constant(std::string_view name, F, bool reads) {
  return {.name = name,
          .run = &with_constant<F>,
          .cost = Class::salu,
          .types = {Type::b32, Type::b32},
          .reads_result = static_cast<uint8_t>(reads ? 1 : 0)};
}
template <class F>
void compare_constant(Wave& w, const Instruction& i) {
  w.scc = F{}(w.read32(i.operand[0]), i.offset) ? 1 : 0;
}
template <class F>
constexpr Row constant_comparison(std::string_view name, F) {
  return {.name = name,
          .run = &compare_constant<F>,
          .cost = Class::salu,
          .results = 0,
          .types = {Type::b32, Type::b32}};
}

void bit_set(Wave& w, const Instruction& i) {
  const bool wide = i.row->a == 64;
  const uint32_t n = w.read32(i.operand[1]) & (wide ? 63 : 31);
  const uint64_t bit = uint64_t{1} << n;
  const uint64_t old = wide ? w.read64(i.operand[0]) : w.read32(i.operand[0]);
  const uint64_t now = i.row->b != 0 ? old | bit : old & ~bit;
  if (wide) {
    w.write64(i.operand[0], now);
  } else {
    w.write32(i.operand[0], static_cast<uint32_t>(now));
  }
}
constexpr Row bit_row(std::string_view name, uint8_t width, uint8_t value) {
  return {.name = name,
          .run = &bit_set,
          .cost = Class::salu,
          .types = {width == 64 ? Type::b64 : Type::b32, Type::b32},
          .reads_result = 1,
          .a = width,
          .b = value};
}

void get_pc(Wave& w, const Instruction& i) {
  w.write64(i.operand[0], w.group->launch->load_offset + i.address + 4);
}
/// Continues at an address; one that holds no instruction ends the run.
void jump(Wave& w, const Instruction& i, uint64_t address) {
  const uint64_t in_code = address - w.group->launch->load_offset;
  const Instruction* target = w.group->launch->code->at(in_code);
  if (target == nullptr) {
    stop(w, i, FindingKind::unknown_instruction, 0,
         fmt::format("it jumps to {:#x}, {:#x} in the code object, where no instruction begins",
                     address, in_code));
    return;
  }
  w.pc = target;
}
void set_pc(Wave& w, const Instruction& i) { jump(w, i, w.read64(i.operand[0])); }
void swap_pc(Wave& w, const Instruction& i) {
  const uint64_t target = w.read64(i.operand[1]);
  get_pc(w, i);
  jump(w, i, target);
}
void call(Wave& w, const Instruction& i) {
  get_pc(w, i);
  jump(w, i, w.group->launch->load_offset + i.address + 4 + static_cast<int64_t>(i.offset) * 4);
}

// s_getreg and s_setreg: the field is {size - 1, offset, register}.
uint32_t hardware_register(const Wave& w, int id) {
  const Workgroup& group = *w.group;
  switch (id) {
    case 1:  // MODE
      return w.mode;
    case 2:  // STATUS: SCC, EXECZ and VCCZ, in a workgroup
      return w.scc | (w.exec() == 0 ? 1U << 9 : 0) | (w.vcc() == 0 ? 1U << 10 : 0) | 1U << 11;
    case 3:
      return w.trap_status;
    case 4: {  // HW_ID: wave 3:0, SIMD 5:4, CU 11:8, SE 14:13
      const auto cu = static_cast<uint32_t>(group.compute_unit);
      return (static_cast<uint32_t>(w.index / 4) & 15) | (static_cast<uint32_t>(w.index) & 3) << 4 |
             (cu % 10) << 8 | (cu / 10 & 3) << 13;
    }
    case 6:  // LDS_ALLOC: size in units of 64 dwords
      return (group.lds_bytes / 256) << 12;
    case 20:
      return static_cast<uint32_t>(group.xcd);
    default:
      return 0;
  }
}
bool known_register(int id) { return (id >= 1 && id <= 7) || id == 20; }
void get_register(Wave& w, const Instruction& i) {
  const auto field = static_cast<uint32_t>(i.offset);
  const int id = static_cast<int>(field & 63);
  if (!known_register(id)) {
    stop(w, i, FindingKind::unknown_instruction, 0,
         "the simulator does not have this hardware register");
    return;
  }
  const uint32_t at = field >> 6 & 31;
  const uint32_t size = (field >> 11 & 31) + 1;
  const uint32_t value = hardware_register(w, id) >> at;
  w.write32(i.operand[0], size == 32 ? value : value & ((1U << size) - 1));
}
void set_register_field(Wave& w, const Instruction& i, uint32_t value) {
  const auto field = static_cast<uint32_t>(i.offset);
  const int id = static_cast<int>(field & 63);
  const uint32_t at = field >> 6 & 31;
  const uint32_t size = (field >> 11 & 31) + 1;
  const uint32_t mask = (size == 32 ? ~0U : (1U << size) - 1) << at;
  if (id == 1) {
    set_mode(w, (w.mode & ~mask) | (value << at & mask));
  } else if (id == 3) {
    w.trap_status = (w.trap_status & ~mask) | (value << at & mask);
  } else {
    stop(w, i, FindingKind::unknown_instruction, 0,
         "the simulator does not let this hardware register be written");
  }
}
void set_register(Wave& w, const Instruction& i) {
  // The register is the last operand, printed after the hardware register.
  set_register_field(w, i, w.read32(i.operand[i.operands - 1]));
}

void quad_mask(Wave& w, const Instruction& i, bool wide) {
  const uint64_t a = wide ? w.read64(i.operand[1]) : w.read32(i.operand[1]);
  uint64_t r = 0;
  for (int k = 0; k < (wide ? 16 : 8); ++k) {
    r |= static_cast<uint64_t>((a >> (4 * k) & 15) != 0) << k;
  }
  if (wide) {
    w.write64(i.operand[0], r);
  } else {
    w.write32(i.operand[0], static_cast<uint32_t>(r));
  }
  w.scc = r != 0 ? 1 : 0;
}
template <bool kWide>
void quad_mask_row(Wave& w, const Instruction& i) {
  quad_mask(w, i, kWide);
}
uint64_t whole_quads(uint64_t a) {
  uint64_t r = 0;
  for (int k = 0; k < 64; k += 4) {
    r |= (a >> k & 15) != 0 ? uint64_t{15} << k : 0;
  }
  return r;
}

/// Bits above the sign that equal it, counted from the top; -1 when all do.
template <class T>
int32_t sign_run(T x) {
  using U = std::make_unsigned_t<T>;
  const U flipped = static_cast<U>(x < 0 ? ~x : x);
  return flipped == 0 ? -1 : std::countl_zero(flipped);
}

/// Moves between registers of which one is M0 further on. The sanitizer cannot see which, so it is
/// told here.
template <bool kFrom, int kWords>
void move_relative(Wave& w, const Instruction& i) {
  const uint32_t first = i.operand[kFrom ? 1 : 0].index + w.s[kM0];
  if (first + kWords > kVcc + 2) {
    stop(w, i, FindingKind::out_of_bounds, 0,
         "it indexes scalar register " + std::to_string(first));
    return;
  }
  const uint32_t from = kFrom ? first : i.operand[1].index;
  const uint32_t to = kFrom ? i.operand[0].index : first;
  const uint64_t value = kFrom ? w.pair(static_cast<int>(from)) : w.read64(i.operand[1]);
  const bool scalar = kFrom || i.operand[1].kind == Operand::Kind::sgpr;
  if (w.checks != nullptr) {
    leave_path(w);
  }
  for (uint32_t k = 0; k < kWords; ++k) {
    w.s[to + k] = static_cast<uint32_t>(value >> (32 * k));
    if (w.checks != nullptr) {
      w.checks->scalar_written[to + k] = scalar ? w.checks->scalar_written[from + k] : ~0U;
      w.checks->update_scalar(static_cast<int>(to + k));
    }
  }
}
constexpr Row relative_row(std::string_view name, Execute run, Type type) {
  return {.name = name, .run = run, .cost = Class::salu, .results = 0, .types = {type, type}};
}

const Row kScalarRows[] = {
    // SOP2
    binary<uint32_t, uint32_t, uint32_t>("s_add_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           uint32_t r = 0;
                                           w.scc = __builtin_add_overflow(a, b, &r) ? 1 : 0;
                                           return r;
                                         }),
    binary<uint32_t, uint32_t, uint32_t>("s_sub_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           w.scc = b > a ? 1 : 0;
                                           return a - b;
                                         }),
    binary<uint32_t, int32_t, int32_t>("s_add_i32",
                                       [](Wave& w, int32_t a, int32_t b) {
                                         int32_t r = 0;
                                         w.scc = __builtin_add_overflow(a, b, &r) ? 1 : 0;
                                         return static_cast<uint32_t>(r);
                                       }),
    binary<uint32_t, int32_t, int32_t>("s_sub_i32",
                                       [](Wave& w, int32_t a, int32_t b) {
                                         int32_t r = 0;
                                         w.scc = __builtin_sub_overflow(a, b, &r) ? 1 : 0;
                                         return static_cast<uint32_t>(r);
                                       }),
    binary<uint32_t, uint32_t, uint32_t>("s_addc_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           const uint64_t sum = uint64_t{a} + b + w.scc;
                                           w.scc = static_cast<uint32_t>(sum >> 32);
                                           return static_cast<uint32_t>(sum);
                                         }),
    binary<uint32_t, uint32_t, uint32_t>("s_subb_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           const uint32_t r = a - b - w.scc;
                                           w.scc = uint64_t{b} + w.scc > a ? 1 : 0;
                                           return r;
                                         }),
    binary<int32_t, int32_t, int32_t>("s_min_i32",
                                      [](Wave& w, int32_t a, int32_t b) {
                                        w.scc = a < b ? 1 : 0;
                                        return a < b ? a : b;
                                      }),
    binary<uint32_t, uint32_t, uint32_t>("s_min_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           w.scc = a < b ? 1 : 0;
                                           return a < b ? a : b;
                                         }),
    binary<int32_t, int32_t, int32_t>("s_max_i32",
                                      [](Wave& w, int32_t a, int32_t b) {
                                        w.scc = a >= b ? 1 : 0;
                                        return a >= b ? a : b;
                                      }),
    binary<uint32_t, uint32_t, uint32_t>("s_max_u32",
                                         [](Wave& w, uint32_t a, uint32_t b) {
                                           w.scc = a >= b ? 1 : 0;
                                           return a >= b ? a : b;
                                         }),
    binary<uint32_t, uint32_t, uint32_t>(
        "s_cselect_b32", [](Wave& w, uint32_t a, uint32_t b) { return w.scc != 0 ? a : b; },
        kMoves),
    binary<uint64_t, uint64_t, uint64_t>(
        "s_cselect_b64", [](Wave& w, uint64_t a, uint64_t b) { return w.scc != 0 ? a : b; },
        kMoves),
    logical<uint32_t>("s_and_b32", [](uint32_t a, uint32_t b) { return a & b; }),
    logical<uint64_t>("s_and_b64", [](uint64_t a, uint64_t b) { return a & b; }),
    logical<uint32_t>("s_or_b32", [](uint32_t a, uint32_t b) { return a | b; }),
    logical<uint64_t>("s_or_b64", [](uint64_t a, uint64_t b) { return a | b; }),
    logical<uint32_t>("s_xor_b32", [](uint32_t a, uint32_t b) { return a ^ b; }),
    logical<uint64_t>("s_xor_b64", [](uint64_t a, uint64_t b) { return a ^ b; }),
    logical<uint32_t>("s_andn2_b32", [](uint32_t a, uint32_t b) { return a & ~b; }),
    logical<uint64_t>("s_andn2_b64", [](uint64_t a, uint64_t b) { return a & ~b; }),
    logical<uint32_t>("s_orn2_b32", [](uint32_t a, uint32_t b) { return a | ~b; }),
    logical<uint64_t>("s_orn2_b64", [](uint64_t a, uint64_t b) { return a | ~b; }),
    logical<uint32_t>("s_nand_b32", [](uint32_t a, uint32_t b) { return ~(a & b); }),
    logical<uint64_t>("s_nand_b64", [](uint64_t a, uint64_t b) { return ~(a & b); }),
    logical<uint32_t>("s_nor_b32", [](uint32_t a, uint32_t b) { return ~(a | b); }),
    logical<uint64_t>("s_nor_b64", [](uint64_t a, uint64_t b) { return ~(a | b); }),
    logical<uint32_t>("s_xnor_b32", [](uint32_t a, uint32_t b) { return ~(a ^ b); }),
    logical<uint64_t>("s_xnor_b64", [](uint64_t a, uint64_t b) { return ~(a ^ b); }),
    shift<uint32_t>("s_lshl_b32", [](uint32_t a, uint32_t n) { return a << (n & 31); }),
    shift<uint64_t>("s_lshl_b64", [](uint64_t a, uint32_t n) { return a << (n & 63); }),
    shift<uint32_t>("s_lshr_b32", [](uint32_t a, uint32_t n) { return a >> (n & 31); }),
    shift<uint64_t>("s_lshr_b64", [](uint64_t a, uint32_t n) { return a >> (n & 63); }),
    shift<int32_t>("s_ashr_i32", [](int32_t a, uint32_t n) { return a >> (n & 31); }),
    shift<int64_t>("s_ashr_i64", [](int64_t a, uint32_t n) { return a >> (n & 63); }),
    binary<uint32_t, uint32_t, uint32_t>(
        "s_bfm_b32",
        [](Wave&, uint32_t a, uint32_t b) { return ((1U << (a & 31)) - 1) << (b & 31); }),
    binary<uint64_t, uint32_t, uint32_t>("s_bfm_b64",
                                         [](Wave&, uint32_t a, uint32_t b) {
                                           return ((uint64_t{1} << (a & 63)) - 1) << (b & 63);
                                         }),
    binary<uint32_t, uint32_t, uint32_t>("s_mul_i32",
                                         [](Wave&, uint32_t a, uint32_t b) { return a * b; }),
    binary<uint32_t, uint32_t, uint32_t>("s_mul_hi_u32",
                                         [](Wave&, uint32_t a, uint32_t b) {
                                           return static_cast<uint32_t>(uint64_t{a} * b >> 32);
                                         }),
    binary<uint32_t, int32_t, int32_t>("s_mul_hi_i32",
                                       [](Wave&, int32_t a, int32_t b) {
                                         return static_cast<uint32_t>((int64_t{a} * b) >> 32);
                                       }),
    // The second operand holds the field: offset in its low bits, width from bit 16.
    binary<uint32_t, uint32_t, uint32_t>("s_bfe_u32",
                                         [](Wave& w, uint32_t a, uint32_t f) {
                                           const uint32_t n = f >> 16 & 127;
                                           const uint32_t x = a >> (f & 31);
                                           const uint32_t r =
                                               n == 0 ? 0 : n >= 32 ? x : x & ((1U << n) - 1);
                                           w.scc = r != 0 ? 1 : 0;
                                           return r;
                                         }),
    binary<int32_t, int32_t, uint32_t>("s_bfe_i32",
                                       [](Wave& w, int32_t a, uint32_t f) {
                                         const uint32_t n = f >> 16 & 127;
                                         const int32_t x = a >> (f & 31);
                                         const int32_t r =
                                             n == 0    ? 0
                                             : n >= 32 ? x
                                                       : static_cast<int32_t>(
                                                             static_cast<uint32_t>(x) << (32 - n)) >>
                                                             (32 - n);
                                         w.scc = r != 0 ? 1 : 0;
                                         return r;
                                       }),
    binary<uint64_t, uint64_t, uint32_t>(
        "s_bfe_u64",
        [](Wave& w, uint64_t a, uint32_t f) {
          const uint32_t n = f >> 16 & 127;
          const uint64_t x = a >> (f & 63);
          const uint64_t r = n == 0 ? 0 : n >= 64 ? x : x & ((uint64_t{1} << n) - 1);
          w.scc = r != 0 ? 1 : 0;
          return r;
        }),
    binary<int64_t, int64_t, uint32_t>(
        "s_bfe_i64",
        [](Wave& w, int64_t a, uint32_t f) {
          const uint32_t n = f >> 16 & 127;
          const int64_t x = a >> (f & 63);
          const int64_t r =
              n == 0    ? 0
              : n >= 64 ? x
                        : static_cast<int64_t>(static_cast<uint64_t>(x) << (64 - n)) >> (64 - n);
          w.scc = r != 0 ? 1 : 0;
          return r;
        }),
    binary<uint32_t, int32_t, int32_t>("s_absdiff_i32",
                                       [](Wave& w, int32_t a, int32_t b) {
                                         const uint32_t d = static_cast<uint32_t>(a) -
                                                            static_cast<uint32_t>(b);
                                         const uint32_t r =
                                             static_cast<int32_t>(d) < 0 ? 0 - d : d;
                                         w.scc = r != 0 ? 1 : 0;
                                         return r;
                                       }),
#define WEFT_SHIFT_ADD(n)                                                             \
  binary<uint32_t, uint32_t, uint32_t>("s_lshl" #n "_add_u32",                        \
                                       [](Wave& w, uint32_t a, uint32_t b) {          \
                                         const uint64_t sum = (uint64_t{a} << n) + b; \
                                         w.scc = sum >> 32 != 0 ? 1 : 0;              \
                                         return static_cast<uint32_t>(sum);           \
                                       })
    WEFT_SHIFT_ADD(1),
    WEFT_SHIFT_ADD(2),
    WEFT_SHIFT_ADD(3),
    WEFT_SHIFT_ADD(4),
    binary<uint32_t, uint32_t, uint32_t>("s_pack_ll_b32_b16",
                                         [](Wave&, uint32_t a, uint32_t b) {
                                           return (a & 0xffff) | b << 16;
                                         }),
    binary<uint32_t, uint32_t, uint32_t>("s_pack_lh_b32_b16",
                                         [](Wave&, uint32_t a, uint32_t b) {
                                           return (a & 0xffff) | (b & 0xffff0000);
                                         }),
    binary<uint32_t, uint32_t, uint32_t>("s_pack_hh_b32_b16",
                                         [](Wave&, uint32_t a, uint32_t b) {
                                           return a >> 16 | (b & 0xffff0000);
                                         }),

    // SOP1
    relative_row("s_movrels_b32", &move_relative<true, 1>, Type::b32),
    relative_row("s_movrels_b64", &move_relative<true, 2>, Type::b64),
    relative_row("s_movreld_b32", &move_relative<false, 1>, Type::b32),
    relative_row("s_movreld_b64", &move_relative<false, 2>, Type::b64),
    unary<uint32_t, uint32_t>("s_mov_b32", [](Wave&, uint32_t a) { return a; }, kMoves),
    unary<uint64_t, uint64_t>("s_mov_b64", [](Wave&, uint64_t a) { return a; }, kMoves),
    {.name = "s_cmov_b32",
     .run =
         [](Wave& w, const Instruction& i) {
           if (w.scc != 0) {
             w.write32(i.operand[0], w.read32(i.operand[1]));
           }
         },
     .cost = Class::salu,
     .types = {Type::b32, Type::b32},
     .flags = kMoves},
    {.name = "s_cmov_b64",
     .run =
         [](Wave& w, const Instruction& i) {
           if (w.scc != 0) {
             w.write64(i.operand[0], w.read64(i.operand[1]));
           }
         },
     .cost = Class::salu,
     .types = {Type::b64, Type::b64},
     .flags = kMoves},
    unary_scc<uint32_t, uint32_t>("s_not_b32", [](uint32_t a) { return ~a; }),
    unary_scc<uint64_t, uint64_t>("s_not_b64", [](uint64_t a) { return ~a; }),
    unary_scc<uint32_t, uint32_t>(
        "s_wqm_b32", [](uint32_t a) { return static_cast<uint32_t>(whole_quads(a)); }),
    unary_scc<uint64_t, uint64_t>("s_wqm_b64", [](uint64_t a) { return whole_quads(a); }),
    unary<uint32_t, uint32_t>("s_brev_b32",
                              [](Wave&, uint32_t a) {
                                uint32_t r = 0;
                                for (int k = 0; k < 32; ++k) {
                                  r |= (a >> k & 1) << (31 - k);
                                }
                                return r;
                              }),
    unary<uint64_t, uint64_t>("s_brev_b64",
                              [](Wave&, uint64_t a) {
                                uint64_t r = 0;
                                for (int k = 0; k < 64; ++k) {
                                  r |= (a >> k & 1) << (63 - k);
                                }
                                return r;
                              }),
    unary_scc<uint32_t, uint32_t>(
        "s_bcnt0_i32_b32", [](uint32_t a) { return static_cast<uint32_t>(std::popcount(~a)); }),
    unary_scc<uint32_t, uint64_t>(
        "s_bcnt0_i32_b64", [](uint64_t a) { return static_cast<uint32_t>(std::popcount(~a)); }),
    unary_scc<uint32_t, uint32_t>(
        "s_bcnt1_i32_b32", [](uint32_t a) { return static_cast<uint32_t>(std::popcount(a)); }),
    unary_scc<uint32_t, uint64_t>(
        "s_bcnt1_i32_b64", [](uint64_t a) { return static_cast<uint32_t>(std::popcount(a)); }),
    unary<int32_t, uint32_t>("s_ff0_i32_b32",
                             [](Wave&, uint32_t a) { return ~a == 0 ? -1 : std::countr_one(a); }),
    unary<int32_t, uint64_t>("s_ff0_i32_b64",
                             [](Wave&, uint64_t a) { return ~a == 0 ? -1 : std::countr_one(a); }),
    unary<int32_t, uint32_t>("s_ff1_i32_b32",
                             [](Wave&, uint32_t a) { return a == 0 ? -1 : std::countr_zero(a); }),
    unary<int32_t, uint64_t>("s_ff1_i32_b64",
                             [](Wave&, uint64_t a) { return a == 0 ? -1 : std::countr_zero(a); }),
    unary<int32_t, uint32_t>("s_flbit_i32_b32",
                             [](Wave&, uint32_t a) { return a == 0 ? -1 : std::countl_zero(a); }),
    unary<int32_t, uint64_t>("s_flbit_i32_b64",
                             [](Wave&, uint64_t a) { return a == 0 ? -1 : std::countl_zero(a); }),
    unary<int32_t, int32_t>("s_flbit_i32", [](Wave&, int32_t a) { return sign_run(a); }),
    unary<int32_t, int64_t>("s_flbit_i32_i64", [](Wave&, int64_t a) { return sign_run(a); }),
    unary<int32_t, uint32_t>(
        "s_sext_i32_i8", [](Wave&, uint32_t a) { return int32_t{static_cast<int8_t>(a)}; }),
    unary<int32_t, uint32_t>(
        "s_sext_i32_i16", [](Wave&, uint32_t a) { return int32_t{static_cast<int16_t>(a)}; }),
    bit_row("s_bitset0_b32", 32, 0),
    bit_row("s_bitset0_b64", 64, 0),
    bit_row("s_bitset1_b32", 32, 1),
    bit_row("s_bitset1_b64", 64, 1),
    {.name = "s_getpc_b64", .run = &get_pc, .cost = Class::salu, .types = {Type::b64}},
    {.name = "s_setpc_b64",
     .run = &set_pc,
     .cost = Class::salu,
     .results = 0,
     .types = {Type::b64}},
    {.name = "s_swappc_b64",
     .run = &swap_pc,
     .cost = Class::salu,
     .types = {Type::b64, Type::b64}},
    {.name = "s_call_b64", .run = &call, .cost = Class::salu, .types = {Type::b64, Type::b32}},
    saving("s_and_saveexec_b64", [](uint64_t s, uint64_t e) { return s & e; }),
    saving("s_or_saveexec_b64", [](uint64_t s, uint64_t e) { return s | e; }),
    saving("s_xor_saveexec_b64", [](uint64_t s, uint64_t e) { return s ^ e; }),
    saving("s_andn2_saveexec_b64", [](uint64_t s, uint64_t e) { return s & ~e; }),
    saving("s_orn2_saveexec_b64", [](uint64_t s, uint64_t e) { return s | ~e; }),
    saving("s_nand_saveexec_b64", [](uint64_t s, uint64_t e) { return ~(s & e); }),
    saving("s_nor_saveexec_b64", [](uint64_t s, uint64_t e) { return ~(s | e); }),
    saving("s_xnor_saveexec_b64", [](uint64_t s, uint64_t e) { return ~(s ^ e); }),
    saving("s_andn1_saveexec_b64", [](uint64_t s, uint64_t e) { return ~s & e; }),
    saving("s_orn1_saveexec_b64", [](uint64_t s, uint64_t e) { return ~s | e; }),
    writing("s_andn1_wrexec_b64", [](uint64_t s, uint64_t e) { return ~s & e; }),
    writing("s_andn2_wrexec_b64", [](uint64_t s, uint64_t e) { return s & ~e; }),
    {.name = "s_quadmask_b32",
     .run = &quad_mask_row<false>,
     .cost = Class::salu,
     .types = {Type::b32, Type::b32}},
    {.name = "s_quadmask_b64",
     .run = &quad_mask_row<true>,
     .cost = Class::salu,
     .types = {Type::b64, Type::b64}},
    unary<uint32_t, uint32_t>("s_abs_i32",
                              [](Wave& w, uint32_t a) {
                                const uint32_t r = static_cast<int32_t>(a) < 0 ? 0 - a : a;
                                w.scc = r != 0 ? 1 : 0;
                                return r;
                              }),
    unary<uint64_t, uint32_t>("s_bitreplicate_b64_b32",
                              [](Wave&, uint32_t a) {
                                uint64_t r = 0;
                                for (int k = 0; k < 32; ++k) {
                                  r |= static_cast<uint64_t>(a >> k & 1) * 3 << (2 * k);
                                }
                                return r;
                              }),

    // SOPC
    comparison<int32_t>("s_cmp_eq_i32", [](auto a, auto b) { return a == b; }),
    comparison<int32_t>("s_cmp_lg_i32", [](auto a, auto b) { return a != b; }),
    comparison<int32_t>("s_cmp_gt_i32", [](auto a, auto b) { return a > b; }),
    comparison<int32_t>("s_cmp_ge_i32", [](auto a, auto b) { return a >= b; }),
    comparison<int32_t>("s_cmp_lt_i32", [](auto a, auto b) { return a < b; }),
    comparison<int32_t>("s_cmp_le_i32", [](auto a, auto b) { return a <= b; }),
    comparison<uint32_t>("s_cmp_eq_u32", [](auto a, auto b) { return a == b; }),
    comparison<uint32_t>("s_cmp_lg_u32", [](auto a, auto b) { return a != b; }),
    comparison<uint32_t>("s_cmp_gt_u32", [](auto a, auto b) { return a > b; }),
    comparison<uint32_t>("s_cmp_ge_u32", [](auto a, auto b) { return a >= b; }),
    comparison<uint32_t>("s_cmp_lt_u32", [](auto a, auto b) { return a < b; }),
    comparison<uint32_t>("s_cmp_le_u32", [](auto a, auto b) { return a <= b; }),
    comparison<uint64_t>("s_cmp_eq_u64", [](auto a, auto b) { return a == b; }),
    comparison<uint64_t>("s_cmp_lg_u64", [](auto a, auto b) { return a != b; }),
    comparison<uint32_t>("s_bitcmp0_b32", [](auto a, auto b) { return (a >> (b & 31) & 1) == 0; }),
    comparison<uint32_t>("s_bitcmp1_b32", [](auto a, auto b) { return (a >> (b & 31) & 1) == 1; }),
    comparison<uint64_t, uint32_t>("s_bitcmp0_b64",
                                   [](auto a, auto b) { return (a >> (b & 63) & 1) == 0; }),
    comparison<uint64_t, uint32_t>("s_bitcmp1_b64",
                                   [](auto a, auto b) { return (a >> (b & 63) & 1) == 1; }),

    // SOPK
    constant("s_movk_i32", [](Wave&, uint32_t, int32_t k) { return static_cast<uint32_t>(k); },
             false),
    constant(
        "s_cmovk_i32",
        [](Wave& w, uint32_t a, int32_t k) { return w.scc != 0 ? static_cast<uint32_t>(k) : a; },
        true),
    constant(
        "s_addk_i32",
        [](Wave& w, uint32_t a, int32_t k) {
          int32_t r = 0;
          w.scc = __builtin_add_overflow(static_cast<int32_t>(a), k, &r) ? 1 : 0;
          return static_cast<uint32_t>(r);
        },
        true),
    constant(
        "s_mulk_i32",
        [](Wave&, uint32_t a, int32_t k) { return a * static_cast<uint32_t>(k); }, true),
#define WEFT_CONSTANT_COMPARE(name, op)                                                    \
  constant_comparison("s_cmpk_" name "_i32",                                               \
                      [](uint32_t a, int32_t k) { return static_cast<int32_t>(a) op k; }), \
      constant_comparison("s_cmpk_" name "_u32", [](uint32_t a, int32_t k) {               \
        return a op static_cast<uint32_t>(static_cast<uint16_t>(k));                       \
      })
    WEFT_CONSTANT_COMPARE("eq", ==),
    WEFT_CONSTANT_COMPARE("lg", !=),
    WEFT_CONSTANT_COMPARE("gt", >),
    WEFT_CONSTANT_COMPARE("ge", >=),
    WEFT_CONSTANT_COMPARE("lt", <),
    WEFT_CONSTANT_COMPARE("le", <=),
    {.name = "s_getreg_b32",
     .run = &get_register,
     .cost = Class::salu,
     .types = {Type::b32, Type::b32}},
    {.name = "s_setreg_b32",
     .run = &set_register,
     .cost = Class::salu,
     .results = 0,
     .types = {Type::b32, Type::b32}},
    {.name = "s_setreg_imm32_b32",
     .run = &set_register,
     .cost = Class::salu,
     .results = 0,
     .types = {Type::b32, Type::b32}},
};

}  // namespace

std::span<const Row> scalar_rows() { return kScalarRows; }

uint64_t Wave::read_special(const Operand& operand) const {
  if (operand.kind != Operand::Kind::special) {
    return 0;
  }
  switch (operand.index) {
    case Operand::vccz:
      return vcc() == 0 ? 1 : 0;
    case Operand::execz:
      return exec() == 0 ? 1 : 0;
    case Operand::scc:
      return scc;
    case Operand::shared_base:
      return kSharedBase;
    case Operand::shared_limit:
      return kSharedBase | 0xffffffff;
    case Operand::private_base:
      return kPrivateBase;
    default:
      return kPrivateBase | 0xffffffff;
  }
}

void set_mode(Wave& wave, uint32_t mode) {
  wave.mode = mode;
  // Round to nearest and keep denormals, for both widths: what the host does.
  wave.special_float = (mode & 0xff) != 0xf0;
}

}  // namespace weft::sim

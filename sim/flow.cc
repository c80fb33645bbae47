// Branches, barriers, waits, and scalar loads (SOPP, SMEM): one row for each instruction.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "sim/access.h"
#include "sim/checks.h"
#include "sim/decode.h"
#include "sim/instruction.h"
#include "sim/memory.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

void branch_to(Wave& w, const Instruction& i) {
  if (i.target < 0) {
    stop(w, i, FindingKind::unknown_instruction, 0,
         fmt::format("it branches to {:#x}, where no instruction begins",
                     i.address + 4 + static_cast<uint64_t>(int64_t{i.offset} * 4)));
    return;
  }
  w.pc = &w.group->launch->code->instructions()[static_cast<size_t>(i.target)];
}

template <class F>
void branch_if(Wave& w, const Instruction& i) {
  if (F{}(w)) {
    branch_to(w, i);
  }
}
template <class F>
constexpr Row branch(std::string_view name, F) {
  return {.name = name, .run = &branch_if<F>, .cost = Class::branch, .results = 0};
}

void barrier(Wave& w, const Instruction&) {
  w.state = WaveState::barrier;
  ++w.group->at_barrier;
}

void wait(Wave& w, const Instruction& i) {
  // vmcnt 3:0 and 15:14, expcnt 6:4, lgkmcnt 11:8.
  const auto n = static_cast<uint32_t>(static_cast<uint16_t>(i.offset));
  note_wait(w, static_cast<int>((n & 15) | (n >> 14 & 3) << 4), static_cast<int>(n >> 8 & 15));
}

void trap(Wave& w, const Instruction& i) {
  stop(w, i, FindingKind::trap, 0,
       "the program ran into its trap " + std::to_string(i.offset & 0xff));
}

void end(Wave& w, const Instruction&) { w.state = WaveState::ended; }
/// s_setkill 1: the wave ends with its next instruction.
void kill(Wave& w, const Instruction& i) {
  if ((i.offset & 1) != 0) {
    w.state = WaveState::ended;
  }
}
void yield(Wave& w, const Instruction&) { w.state = WaveState::yielded; }
void nothing(Wave&, const Instruction&) {}

void invalidate_scalar(Wave& w, const Instruction&) { note_scalar_invalidate(w); }

// Registers chosen at run time: between s_set_gpr_idx_on and s_set_gpr_idx_off, vector operands'
// registers are counted from M0[7:0]; M0[15:12] says which: sources 0, 1, 2 and the result.
enum : uint32_t { kIndexSources = 7, kIndexResult = 8 };

/// An instruction with its registers moved. False: there are no such registers, which ends the
/// launch.
bool move_registers(Wave& w, const Instruction& i, Instruction& moved) {
  const uint32_t index = w.s[kM0] & 0xff;
  const uint32_t mode = w.s[kM0] >> 12 & 15;
  moved = i;
  for (int k = 0; k < moved.operands; ++k) {
    Operand& o = moved.operand[k];
    const bool on = k < moved.results ? (mode & kIndexResult) != 0
                                      : (mode & kIndexSources) >> (k - moved.results) & 1;
    if (o.kind != Operand::Kind::vgpr || !on) {
      continue;
    }
    if (o.index % 256 + index + o.words > 256) {
      stop(w, i, FindingKind::out_of_bounds, 0,
           "it indexes vector register " + std::to_string(o.index % 256 + index));
      return false;
    }
    o.index = static_cast<uint16_t>(o.index + index);
  }
  moved.touched_words = kTouchesMuch;  // Instruction::touched is of the registers that it names
  return true;
}

/// Executes what follows with its registers moved, up to the instruction that ends it. Compilers
/// put waits between (s_nop, s_waitcnt), never jumps.
void run_indexed(Wave& w) {
  if (w.checks != nullptr) {
    leave_path(w);
  }
  while (w.state == WaveState::running) {
    const Instruction& next = *w.pc;
    const std::string_view name = next.row != nullptr ? next.row->name : std::string_view();
    if (name == "s_set_gpr_idx_off") {
      return;
    }
    const bool waits = name == "s_nop" || name == "s_waitcnt";
    if (next.row == nullptr ||
        (next.row->cost == Class::branch && !waits && !name.starts_with("s_set_gpr_idx"))) {
      stop(w, next, FindingKind::unknown_instruction, 0,
           "between s_set_gpr_idx_on and s_set_gpr_idx_off the simulator runs no branches, "
           "barriers and the like");
      return;
    }
    w.pc = &next + 1;
    ++w.group->counts->executed[next.ordinal];
    ++w.executed;
    if (name == "s_set_gpr_idx_idx") {
      w.s[kM0] = (w.s[kM0] & ~0xffU) | (w.read32(next.operand[0]) & 0xff);
    } else if (name == "s_set_gpr_idx_mode") {
      w.s[kM0] = (w.s[kM0] & ~0xf000U) | (static_cast<uint32_t>(next.offset) & 15) << 12;
    }
    const bool arithmetic = next.row->cost == Class::valu || next.row->cost == Class::valu_slow;
    Instruction moved;
    if (arithmetic && !move_registers(w, next, moved)) {
      return;
    }
    const Instruction& i = arithmetic ? moved : next;
    if (w.checks == nullptr || (!arithmetic && w.checks->ready(i))) {
      i.run(w, i);
    } else {
      run_checked(w, i);
    }
  }
}
void index_on(Wave& w, const Instruction& i) {
  w.s[kM0] = (w.s[kM0] & ~0xf0ffU) | (w.read32(i.operand[0]) & 0xff) |
             (static_cast<uint32_t>(i.offset) & 15) << 12;
  run_indexed(w);
}

constexpr Row plain(std::string_view name, Execute run) {
  return {.name = name, .run = run, .cost = Class::branch, .results = 0};
}

const Row kFlowRows[] = {
    plain("s_nop", &nothing),
    plain("s_endpgm", &end),
    plain("s_branch", &branch_to),
    branch("s_cbranch_scc0", [](const Wave& w) { return w.scc == 0; }),
    branch("s_cbranch_scc1", [](const Wave& w) { return w.scc != 0; }),
    branch("s_cbranch_vccz", [](const Wave& w) { return w.vcc() == 0; }),
    branch("s_cbranch_vccnz", [](const Wave& w) { return w.vcc() != 0; }),
    branch("s_cbranch_execz", [](const Wave& w) { return w.exec() == 0; }),
    branch("s_cbranch_execnz", [](const Wave& w) { return w.exec() != 0; }),
    plain("s_barrier", &barrier),
    plain("s_waitcnt", &wait),
    plain("s_sleep", &yield),
    plain("s_setprio", &nothing),  // a hint to a scheduler that hardware has and results do not see
    plain("s_sendmsg", &nothing),  // to the host's interrupt handler, which nothing here waits for
    plain("s_trap", &trap),
    plain("s_icache_inv", &nothing),
    plain("s_incperflevel", &nothing),
    plain("s_decperflevel", &nothing),
    plain("s_ttracedata", &nothing),
    plain("s_wakeup", &nothing),
    plain("s_endpgm_saved", &end),
    plain("s_endpgm_ordered_ps_done", &end),
    // Conditional branches on a debugger's flags, of which none is ever set.
    plain("s_cbranch_cdbgsys", &nothing),
    plain("s_cbranch_cdbguser", &nothing),
    plain("s_cbranch_cdbgsys_or_user", &nothing),
    plain("s_cbranch_cdbgsys_and_user", &nothing),
    plain("s_setkill", &kill),
    {.name = "s_set_gpr_idx_on",
     .run = &index_on,
     .cost = Class::salu,
     .results = 0,
     .types = {Type::b32, Type::b32}},
    {.name = "s_set_gpr_idx_idx",
     .run = &nothing,
     .cost = Class::salu,
     .results = 0,
     .types = {Type::b32}},
    plain("s_set_gpr_idx_mode", &nothing),
    plain("s_set_gpr_idx_off", &nothing),
};

// --- scalar memory ------------------------------------------------------------------------------

/// s_load sdst, sbase, (soffset offset: | offset): the low two bits of the address are ignored.
uint64_t scalar_address(const Wave& w, const Instruction& i) {
  const Operand& o = i.operand[2];
  uint64_t address = w.read64(i.operand[1]) + static_cast<uint64_t>(int64_t{i.offset});
  address += o.kind == Operand::Kind::constant
                 ? static_cast<uint64_t>(int64_t{static_cast<int32_t>(o.value)})
                 : w.read32(o);
  return address & ~uint64_t{3};
}

/// Where a scalar buffer instruction goes, and how much of that is in bounds.
struct ScalarBuffer {
  uint64_t address;
  uint64_t bytes;

  ScalarBuffer(const Wave& w, const Instruction& i) {
    // The descriptor's base and size; stride multiplies the number of records.
    const Operand& resource = i.operand[1];
    const uint32_t stride = w.s[resource.index + 1] >> 16 & 0x3fff;
    const uint64_t size =
        stride == 0 ? w.s[resource.index + 2] : uint64_t{stride} * w.s[resource.index + 2];
    const uint64_t offset = (w.read32(i.operand[2]) + static_cast<uint32_t>(i.offset)) & ~3U;
    address = (w.pair(resource.index) & 0xffffffffffff) + offset;
    bytes = size - std::min(size, offset);
  }
};

template <int kWords>
void scalar_load(Wave& w, const Instruction& i) {
  uint32_t values[kWords] = {};
  if (const void* at = reach_scalar(w, i, scalar_address(w, i), sizeof values, false)) {
    std::memcpy(values, at, sizeof values);
  }
  for (int k = 0; k < kWords; ++k) {
    w.s[i.operand[0].index + k] = values[k];
  }
  note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, kWords, true);
}

template <int kWords>
void scalar_buffer_load(Wave& w, const Instruction& i) {
  const ScalarBuffer buffer(w, i);
  for (uint64_t k = 0; k < kWords; ++k) {
    uint32_t value = 0;
    if (4 * k + 4 <= buffer.bytes) {
      if (const void* at = reach_scalar(w, i, buffer.address + 4 * k, 4, false)) {
        std::memcpy(&value, at, 4);
      }
    }
    w.s[i.operand[0].index + k] = value;
  }
  note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, kWords, true);
}

template <int kWords>
void scalar_store(Wave& w, const Instruction& i) {
  if (void* at = reach_scalar(w, i, scalar_address(w, i), 4 * kWords, true)) {
    std::memcpy(at, &w.s[i.operand[0].index], 4 * kWords);
  }
  w.group->progressed = true;
  note_issue(w, i, Counter::lgkm_any_order, -1, 0, true);
}

template <int kWords>
void scalar_buffer_store(Wave& w, const Instruction& i) {
  const ScalarBuffer buffer(w, i);
  for (uint64_t k = 0; k < kWords && 4 * k + 4 <= buffer.bytes; ++k) {
    if (void* at = reach_scalar(w, i, buffer.address + 4 * k, 4, true)) {
      std::memcpy(at, &w.s[i.operand[0].index + k], 4);
    }
  }
  w.group->progressed = true;
  note_issue(w, i, Counter::lgkm_any_order, -1, 0, true);
}

/// Of one value from the data register, which takes the old one where the instruction says glc.
/// Compare and swap: the value and then what is compared with.
template <class T, class F, bool kBuffer>
void scalar_atomic(Wave& w, const Instruction& i) {
  constexpr int kWords = sizeof(T) / 4;
  const auto data = [&](int at) -> T {
    const int index = i.operand[0].index + at * kWords;
    return kWords == 2 ? static_cast<T>(w.pair(index)) : static_cast<T>(w.s[index]);
  };
  uint64_t address = 0;
  uint64_t bytes = sizeof(T);
  if constexpr (kBuffer) {
    const ScalarBuffer buffer(w, i);
    address = buffer.address;
    bytes = buffer.bytes;
  } else {
    address = scalar_address(w, i);
  }
  T old{};
  if (bytes >= sizeof(T)) {
    if (address % sizeof(T) != 0) {
      report(w, i, FindingKind::misaligned, 0,
             "an atomic's address must be a multiple of " + std::to_string(sizeof(T)));
    } else if (reach_scalar(w, i, address, sizeof(T), true) != nullptr) {
      old = update<T>(address, [&](T now) -> T {
        if constexpr (std::is_invocable_v<F, T, T, T>) {
          return F{}(now, data(0), data(1));
        } else {
          return F{}(now, data(0));
        }
      });
    }
  }
  const bool returns = (i.word >> 16 & 1) != 0;
  if (returns) {
    w.s[i.operand[0].index] = static_cast<uint32_t>(old);
    if constexpr (kWords == 2) {
      w.s[i.operand[0].index + 1] = static_cast<uint32_t>(old >> 32);
    }
  }
  w.group->progressed = true;
  w.group->shares = true;
  note_issue(w, i, Counter::lgkm_any_order, returns ? i.operand[0].index : -1, kWords, true);
}

/// Clock ticks that never repeat and never go back: instructions this wave executed, spread out.
/// Time does not exist here; what is measured with it means nothing.
void clock(Wave& w, const Instruction& i) {
  w.write64(i.operand[0], w.executed * 4);
  note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, 2, true);
}

constexpr Row load_row(std::string_view name, Execute run, Type data, Type base) {
  return {.name = name, .run = run, .cost = Class::smem, .types = {data, base, Type::b32}};
}
constexpr Row store_row(std::string_view name, Execute run, Type data) {
  return {.name = name,
          .run = run,
          .cost = Class::smem,
          .results = 0,
          .types = {data, Type::b64, Type::b32}};
}
constexpr Row buffer_store_row(std::string_view name, Execute run, Type data) {
  return {.name = name,
          .run = run,
          .cost = Class::smem,
          .results = 0,
          .types = {data, Type::b128, Type::b32}};
}
constexpr Row clock_row(std::string_view name) {
  return {.name = name, .run = &clock, .cost = Class::smem, .types = {Type::b64}};
}

template <class T, bool kBuffer, class F>
constexpr Row atomic_row(std::string_view name, F) {
  constexpr bool kTwo = std::is_invocable_v<F, T, T, T>;
  return {.name = name,
          .run = &scalar_atomic<T, F, kBuffer>,
          .cost = Class::smem,
          .results = 0,
          .types = {sizeof(T) * (kTwo ? 2 : 1) == 4   ? Type::b32
                    : sizeof(T) * (kTwo ? 2 : 1) == 8 ? Type::b64
                                                      : Type::b128,
                    kBuffer ? Type::b128 : Type::b64, Type::b32}};
}
#define WEFT_SCALAR_ATOMICS(prefix, suffix, T, Ops, buffer)     \
  atomic_row<T, buffer>(prefix "swap" suffix, Ops::swap),       \
      atomic_row<T, buffer>(prefix "add" suffix, Ops::add),     \
      atomic_row<T, buffer>(prefix "sub" suffix, Ops::sub),     \
      atomic_row<T, buffer>(prefix "smin" suffix, Ops::smin),   \
      atomic_row<T, buffer>(prefix "umin" suffix, Ops::umin),   \
      atomic_row<T, buffer>(prefix "smax" suffix, Ops::smax),   \
      atomic_row<T, buffer>(prefix "umax" suffix, Ops::umax),   \
      atomic_row<T, buffer>(prefix "and" suffix, Ops::bit_and), \
      atomic_row<T, buffer>(prefix "or" suffix, Ops::bit_or),   \
      atomic_row<T, buffer>(prefix "xor" suffix, Ops::bit_xor), \
      atomic_row<T, buffer>(prefix "inc" suffix, Ops::inc),     \
      atomic_row<T, buffer>(prefix "dec" suffix, Ops::dec),     \
      atomic_row<T, buffer>(prefix "cmpswap" suffix,            \
                            [](T old, T x, T c) { return old == c ? x : old; })
#define WEFT_BOTH_SCALAR_ATOMICS(prefix, buffer)               \
  WEFT_SCALAR_ATOMICS(prefix, "", uint32_t, Atomic32, buffer), \
      WEFT_SCALAR_ATOMICS(prefix, "_x2", uint64_t, Atomic64, buffer)

constexpr Row cache_row(std::string_view name, Execute run = &nothing) {
  return {.name = name, .run = run, .cost = Class::smem, .results = 0};
}

const Row kMemoryRows[] = {
    load_row("s_load_dword", &scalar_load<1>, Type::b32, Type::b64),
    load_row("s_load_dwordx2", &scalar_load<2>, Type::b64, Type::b64),
    load_row("s_load_dwordx4", &scalar_load<4>, Type::b128, Type::b64),
    load_row("s_load_dwordx8", &scalar_load<8>, Type::b256, Type::b64),
    load_row("s_load_dwordx16", &scalar_load<16>, Type::b512, Type::b64),
    load_row("s_buffer_load_dword", &scalar_buffer_load<1>, Type::b32, Type::b128),
    load_row("s_buffer_load_dwordx2", &scalar_buffer_load<2>, Type::b64, Type::b128),
    load_row("s_buffer_load_dwordx4", &scalar_buffer_load<4>, Type::b128, Type::b128),
    load_row("s_buffer_load_dwordx8", &scalar_buffer_load<8>, Type::b256, Type::b128),
    load_row("s_buffer_load_dwordx16", &scalar_buffer_load<16>, Type::b512, Type::b128),
    store_row("s_store_dword", &scalar_store<1>, Type::b32),
    store_row("s_store_dwordx2", &scalar_store<2>, Type::b64),
    store_row("s_store_dwordx4", &scalar_store<4>, Type::b128),
    buffer_store_row("s_buffer_store_dword", &scalar_buffer_store<1>, Type::b32),
    buffer_store_row("s_buffer_store_dwordx2", &scalar_buffer_store<2>, Type::b64),
    buffer_store_row("s_buffer_store_dwordx4", &scalar_buffer_store<4>, Type::b128),
    WEFT_BOTH_SCALAR_ATOMICS("s_atomic_", false),
    WEFT_BOTH_SCALAR_ATOMICS("s_buffer_atomic_", true),
    clock_row("s_memtime"),
    clock_row("s_memrealtime"),
    cache_row("s_dcache_inv", &invalidate_scalar),
    cache_row("s_dcache_wb"),
    cache_row("s_dcache_inv_vol", &invalidate_scalar),
    cache_row("s_dcache_wb_vol"),
    // Memory is always coherent here: there is nothing to discard, and no translation to prefetch.
    {.name = "s_dcache_discard",
     .run = &nothing,
     .cost = Class::smem,
     .results = 0,
     .types = {Type::b64, Type::b32}},
    {.name = "s_dcache_discard_x2",
     .run = &nothing,
     .cost = Class::smem,
     .results = 0,
     .types = {Type::b64, Type::b32}},
};

}  // namespace

std::span<const Row> flow_rows() { return kFlowRows; }
std::span<const Row> scalar_memory_rows() { return kMemoryRows; }

}  // namespace weft::sim

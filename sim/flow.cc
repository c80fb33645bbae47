// Branches, barriers, waits, and scalar loads (SOPP, SMEM): one row for each instruction.
#include <cstring>

#include "sim/checks.h"
#include "sim/decode.h"
#include "sim/instruction.h"
#include "sim/memory.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

void branch_to(Wave& w, const Instruction& i) {
  if (i.target < 0) {
    stop(w, i, FindingKind::unknown_instruction, 0, "it branches to where no instruction begins");
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
void yield(Wave& w, const Instruction&) { w.state = WaveState::yielded; }
void nothing(Wave&, const Instruction&) {}

// Registers chosen at run time: between s_set_gpr_idx_on and s_set_gpr_idx_off, vector operands'
// registers are counted from M0[7:0]; M0[15:12] says which: sources 0, 1, 2 and the result.
enum : uint32_t { kIndexSources = 7, kIndexResult = 8 };

/// Executes what follows with its registers moved, up to the instruction that ends it.
void run_indexed(Wave& w) {
  for (;;) {
    const Instruction& next = *w.pc;
    if (next.row == nullptr || !next.vector) {
      if (next.row != nullptr && next.row->name == "s_set_gpr_idx_idx") {
        w.s[kM0] = (w.s[kM0] & ~0xffU) | (w.read32(next.operand[0]) & 0xff);
      } else if (next.row != nullptr && next.row->name == "s_set_gpr_idx_mode") {
        w.s[kM0] = (w.s[kM0] & ~0xf000U) | (static_cast<uint32_t>(next.offset) & 15) << 12;
      } else if (next.row != nullptr && next.row->cost == Class::salu) {
        next.run(w, next);
      } else {
        return;  // s_set_gpr_idx_off, or something that has no business here and ends it
      }
    } else {
      const uint32_t index = w.s[kM0] & 0xff;
      const uint32_t mode = w.s[kM0] >> 12 & 15;
      Instruction moved = next;
      for (int k = 0; k < moved.operands; ++k) {
        Operand& o = moved.operand[k];
        const bool on = k < moved.results ? (mode & kIndexResult) != 0
                                          : (mode & kIndexSources) >> (k - moved.results) & 1;
        if (o.kind != Operand::Kind::vgpr || !on) {
          continue;
        }
        if (o.index % 256 + index + o.words > 256) {
          stop(w, next, FindingKind::out_of_bounds, 0,
               "it indexes vector register " + std::to_string(o.index % 256 + index));
          return;
        }
        o.index = static_cast<uint16_t>(o.index + index);
      }
      if (w.checks != nullptr) {
        check_sources(w, moved);
      }
      moved.run(w, moved);
      if (w.checks != nullptr) {
        note_results(w, moved);
      }
    }
    ++w.group->counts->executed[next.ordinal];
    ++w.executed;
    w.pc = &next + 1;
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

template <int kWords>
void scalar_load(Wave& w, const Instruction& i) {
  // s_load sdst, sbase, (soffset offset: | offset): the low two bits of the address are ignored.
  const Operand& o = i.operand[2];
  uint64_t address = w.read64(i.operand[1]) + static_cast<int64_t>(i.offset);
  address += o.kind == Operand::Kind::constant
                 ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(o.value)))
                 : w.read32(o);
  address &= ~uint64_t{3};
  uint32_t values[kWords] = {};
  if (const void* at = reach_scalar(w, i, address, sizeof values)) {
    std::memcpy(values, at, sizeof values);
  }
  for (int k = 0; k < kWords; ++k) {
    w.s[i.operand[0].index + k] = values[k];
  }
  note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, kWords, true);
}

template <int kWords>
void scalar_buffer_load(Wave& w, const Instruction& i) {
  // The descriptor's base and size; stride multiplies the number of records.
  const Operand& resource = i.operand[1];
  const uint64_t base = w.pair(resource.index) & 0xffffffffffff;
  const uint32_t stride = w.s[resource.index + 1] >> 16 & 0x3fff;
  const uint64_t bytes =
      stride == 0 ? w.s[resource.index + 2] : uint64_t{stride} * w.s[resource.index + 2];
  const uint64_t offset = (w.read32(i.operand[2]) + static_cast<uint32_t>(i.offset)) & ~3U;
  for (uint64_t k = 0; k < kWords; ++k) {
    uint32_t value = 0;
    if (offset + 4 * k + 4 <= bytes) {
      if (const void* at = reach_scalar(w, i, base + offset + 4 * k, 4)) {
        std::memcpy(&value, at, 4);
      }
    }
    w.s[i.operand[0].index + k] = value;
  }
  note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, kWords, true);
}

template <int kWords>
void scalar_store(Wave& w, const Instruction& i) {
  const Operand& o = i.operand[2];
  const uint64_t address =
      (w.read64(i.operand[1]) + static_cast<int64_t>(i.offset) + w.read32(o)) & ~uint64_t{3};
  if (void* at = reach_scalar(w, i, address, 4 * kWords)) {
    std::memcpy(at, &w.s[i.operand[0].index], 4 * kWords);
  }
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
constexpr Row clock_row(std::string_view name) {
  return {.name = name, .run = &clock, .cost = Class::smem, .types = {Type::b64}};
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
    clock_row("s_memtime"),
    clock_row("s_memrealtime"),
    {.name = "s_dcache_inv", .run = &nothing, .cost = Class::smem, .results = 0},
    {.name = "s_dcache_wb", .run = &nothing, .cost = Class::smem, .results = 0},
    {.name = "s_dcache_inv_vol", .run = &nothing, .cost = Class::smem, .results = 0},
    {.name = "s_dcache_wb_vol", .run = &nothing, .cost = Class::smem, .results = 0},
};

}  // namespace

std::span<const Row> flow_rows() { return kFlowRows; }
std::span<const Row> scalar_memory_rows() { return kMemoryRows; }

}  // namespace weft::sim

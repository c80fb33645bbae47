#include "sim/checks.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "sim/decode.h"
#include "sim/dpp.h"
#include "sim/known_bytes.h"
#include "sim/vector_includes.h"

#define WEFT_SIM_VECTOR "sim/lds_row-inl.h"
#include "sim/foreach_isa.h"

namespace weft::sim {

namespace {

std::string register_name(int index) {
  return index < 256 ? "v" + std::to_string(index) : "a" + std::to_string(index - 256);
}
std::string scalar_name(int index) {
  if (index == kVcc || index == kVcc + 1) {
    return "vcc";
  }
  return index == kM0 ? "m0" : "s" + std::to_string(index);
}

bool is_load(const Instruction& i) {
  return i.row->cost == Class::vmem_load || i.row->cost == Class::lds ||
         i.row->cost == Class::vmem_atomic || i.row->cost == Class::smem;
}

std::string pending_text(const Wave& wave, const std::string& name, int index, bool scalar) {
  const WaveChecks& checks = *wave.checks;
  for (const auto* queue : {&checks.vm, &checks.lgkm}) {
    for (const Outstanding& o : *queue) {
      if (o.scalar == scalar && index >= o.first && index < o.first + o.words) {
        const Code& code = *wave.group->launch->code;
        return name + " is used before a wait for the load that writes it: " +
               code.text(code.instructions()[o.ordinal]);
      }
    }
  }
  return name + " is used before a wait for the load that writes it";
}

void check_pending(Wave& wave, const Instruction& i, const Operand& o) {
  const WaveChecks& checks = *wave.checks;
  if (o.kind == Operand::Kind::vgpr) {
    for (int r = o.index; r < o.index + o.words; ++r) {
      if (checks.pending[r] != 0) [[unlikely]] {
        report(wave, i, FindingKind::missing_wait, 0,
               pending_text(wave, register_name(r), r, false));
      }
    }
  } else if (o.kind == Operand::Kind::sgpr) {
    for (int r = o.index; r < o.index + o.words && r < 128; ++r) {
      if (checks.scalar_pending[r] != 0) [[unlikely]] {
        report(wave, i, FindingKind::missing_wait, 0, pending_text(wave, scalar_name(r), r, true));
      }
    }
  }
}

/// A register's value is used that means nothing: nobody wrote it, or a load brought it that raced.
void report_meaningless(Wave& wave, const Instruction& i, int lane, const std::string& name) {
  const std::vector<Finding>& doubts = wave.checks->order.doubts.findings;
  for (const Finding& race : doubts) {
    add_finding(*wave.group->launch, race);
  }
  if (doubts.empty()) {
    report(wave, i, FindingKind::uninitialized_register, lane,
           name + " holds what was never written, or was computed from that");
  }
}

/// Lanes in which all means something that source n of an instruction reads of a register.
uint64_t read_lanes(const WaveChecks& checks, const Instruction& i, int n, int index) {
  if (checks.parts.empty() || i.operand[n].words != 1) [[likely]] {
    return checks.written[static_cast<size_t>(index)];
  }
  const KnownBytes known = known_bytes(checks, index);
  const uint32_t bytes = bytes_read(i, n);
  uint64_t lanes = ~uint64_t{0};
  for (size_t k = 0; k < known.size(); ++k) {
    lanes &= (bytes >> k & 1) != 0 ? known[k] : lanes;
  }
  return lanes;
}

void check_written(Wave& wave, const Instruction& i, int n, uint64_t lanes) {
  const WaveChecks& checks = *wave.checks;
  const Operand& o = i.operand[n];
  if (o.kind == Operand::Kind::vgpr) {
    for (int r = o.index; r < o.index + o.words; ++r) {
      const uint64_t missing = lanes & ~read_lanes(checks, i, n, r);
      if (missing != 0) [[unlikely]] {
        report_meaningless(wave, i, std::countr_zero(missing), register_name(r));
      }
    }
  } else if (o.kind == Operand::Kind::sgpr) {
    for (int r = o.index; r < o.index + o.words && r < kExec; ++r) {
      if (checks.scalar_written[r] != ~0U) [[unlikely]] {
        report_meaningless(wave, i, 0, scalar_name(r));
      }
    }
  }
}

/// Whether values of an instruction's sources matter at once: addresses, stored data, comparisons,
/// matrices. Others only hand on whether they mean something, because compilers compute with unused
/// halves of registers.
bool is_sink(const Row& row) {
  switch (row.cost) {
    case Class::vmem_store:  // a spill stores whole registers, whatever lanes of them mean
                             // something
      return !row.name.starts_with("scratch_");
    case Class::mfma:
    case Class::lds:
    case Class::vmem_load:
    case Class::vmem_atomic:
    case Class::smem:
      return true;
    default:
      return row.name.starts_with("v_cmp") || row.name.starts_with("s_cmp");
  }
}

/// Lanes in which word k of an operand, `wanted` of its words from the first, was written.
uint64_t written_lanes(const WaveChecks& checks, const Operand& o, int first, int last) {
  uint64_t lanes = ~uint64_t{0};
  last = std::min<int>(last, o.words - 1);
  if (o.kind == Operand::Kind::vgpr) {
    for (int k = first; k <= last; ++k) {
      lanes &= checks.written[o.index + k];
    }
  } else if (o.kind == Operand::Kind::sgpr) {
    for (int k = first; k <= last && o.index + k < kExec; ++k) {
      if (checks.scalar_written[o.index + k] != ~0U) {
        return 0;
      }
    }
  }
  return lanes;
}

/// Lanes whose source lane is in `lanes`, or that have none and receive 0.
uint64_t moved_lanes(uint64_t lanes, const int* from) {
  uint64_t moved = 0;
  for (int l = 0; l < kLanes; ++l) {
    moved |= static_cast<uint64_t>(from[l] < 0 || (lanes >> from[l] & 1) != 0) << l;
  }
  return moved;
}

/// The lane that DPP reads for each lane; -1: none, or an inactive one.
void active_dpp_lanes(const Wave& wave, const Instruction& i, int* from) {
  dpp_lanes(i, from);
  for (int l = 0; l < kLanes; ++l) {
    from[l] = from[l] >= 0 && (wave.exec() >> from[l] & 1) != 0 ? from[l] : -1;
  }
}

/// Lanes that an instruction writes in its results.
uint64_t result_lanes(const Wave& wave, const Instruction& i) {
  return (i.row->flags & kIgnoresExec) != 0 ? ~uint64_t{0} : write_mask(wave, i);
}

/// Lanes of source n that an instruction reads.
uint64_t source_lanes(const Wave& wave, const Instruction& i, int n) {
  const uint64_t lanes = result_lanes(wave, i);
  if (i.dpp == Dpp::none || n != i.results) {
    return lanes;
  }
  int from[kLanes];
  active_dpp_lanes(wave, i, from);
  uint64_t read = 0;
  for (int l = 0; l < kLanes; ++l) {
    read |= (lanes >> l & 1) != 0 && from[l] >= 0 ? uint64_t{1} << from[l] : 0;
  }
  return read;
}

/// v_readlane and v_readfirstlane: all lanes or none.
uint64_t known_lane(const Wave& wave, const Instruction& i) {
  const WaveChecks& checks = *wave.checks;
  uint64_t known = ~uint64_t{0};
  int lane = wave.exec() == 0 ? 0 : std::countr_zero(wave.exec());
  if (i.operands > 2) {
    known = written_lanes(checks, i.operand[2], 0, 0);
    lane = static_cast<int>(wave.read32(i.operand[2]) & 63);
  }
  return (written_lanes(checks, i.operand[1], 0, 0) >> lane & 1) != 0 ? known : 0;
}

/// Bits of a scalar operand that mean something; of a mask of lanes, the lanes.
uint64_t written_bits(const WaveChecks& checks, const Operand& o) {
  uint64_t bits = ~uint64_t{0};
  for (int k = 0; o.kind == Operand::Kind::sgpr && k < o.words && o.index + k < kExec; ++k) {
    bits &= ~(uint64_t{~checks.scalar_written[o.index + k]} << (32 * k));
  }
  return bits;
}

/// Of a bitwise scalar instruction's result, the bits that its sources decide: 0 and what was never
/// written is 0.
uint64_t decided_bits(const Wave& wave, const Instruction& i) {
  const auto value = [&](const Operand& o) {
    return o.words == 2 ? wave.read64(o) : uint64_t{wave.read32(o)};
  };
  const std::string_view name = i.row->name;
  if (name.find("exec_") != std::string_view::npos) {
    return ~uint64_t{0};  // EXEC always means something
  }
  const Operand& first = i.operand[1];
  const uint64_t a_known = written_bits(*wave.checks, first);
  if (i.operands < 3) {
    return a_known;  // s_mov, s_not
  }
  const Operand& second = i.operand[2];
  const uint64_t b_known = written_bits(*wave.checks, second);
  const uint64_t both = a_known & b_known;
  const bool inverts = name.find("n2_") != std::string_view::npos;
  const uint64_t a = value(first);
  const uint64_t b = inverts ? ~value(second) : value(second);
  if (name.starts_with("s_and") || name.starts_with("s_nand")) {
    return both | (a_known & ~a) | (b_known & ~b);
  }
  if (name.starts_with("s_or") || name.starts_with("s_nor")) {
    return both | (a_known & a) | (b_known & b);
  }
  return both;  // s_xor, s_xnor
}
bool is_bitwise(std::string_view name) {
  static constexpr std::string_view kNames[] = {"s_and", "s_or",  "s_andn2", "s_orn2", "s_nand",
                                                "s_nor", "s_xor", "s_xnor",  "s_mov",  "s_not"};
  if (name.ends_with("exec_b64")) {
    return true;
  }
  return (name.ends_with("_b32") || name.ends_with("_b64")) &&
         std::find(std::begin(kNames), std::end(kNames), name.substr(0, name.size() - 4)) !=
             std::end(kNames);
}

/// WaveChecks::moved of an instruction that is about to be executed.
uint64_t lanes_to_move(Wave& wave, const Instruction& i) {
  if (i.reader == Reader::reads_lane) {
    return known_lane(wave, i);
  }
  int from[kLanes];
  exchanged_lanes(wave, i, from);
  return moved_lanes(written_lanes(*wave.checks, i.operand[i.operands - 1], 0, 0), from);
}

/// Lanes in which word k of the result means something.
uint64_t known_lanes(const Wave& wave, const Instruction& i, int k) {
  const WaveChecks& checks = *wave.checks;
  const Row& row = *i.row;
  const int first = i.results;
  if (i.reader == Reader::reads_lane || i.reader == Reader::exchanges) {
    return checks.moved;
  }
  if (i.reader == Reader::sink) {
    return ~uint64_t{0};
  }
  if (i.reader == Reader::selects) {
    const uint64_t mask = wave.read64(i.operand[3]);
    return ((written_lanes(checks, i.operand[1], 0, 0) & ~mask) |
            (written_lanes(checks, i.operand[2], 0, 0) & mask)) &
           written_bits(checks, i.operand[3]);
  }
  uint64_t known = ~uint64_t{0};
  for (int n = first; n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    if (i.dpp != Dpp::none && n == first) {
      int from[kLanes];
      active_dpp_lanes(wave, i, from);
      known &= moved_lanes(written_lanes(checks, o, 0, o.words - 1), from);
    } else if (o.type == Type::pk32) {
      const bool moves = i.reader == Reader::moves_pair;
      if (moves && n != first + k) {
        continue;
      }
      const int bits = moves || k == 0 ? i.op_sel : i.op_sel_hi;
      const int word = bits >> (n - first) & 1;
      known &= written_lanes(checks, o, word, word);
    } else if (o.type == Type::b64 && i.operand[0].words == 2) {
      // Low words of integers depend on low words alone; bits of scalars on their own word.
      known &= written_lanes(checks, o, i.vector ? 0 : k, k);
    } else if (o.kind == Operand::Kind::vgpr && o.words == 1) {
      known &= read_lanes(checks, i, n, o.index);
    } else {
      known &= written_lanes(checks, o, 0, o.words - 1);
    }
  }
  if (row.reads_result != 0 && (row.flags & kKeepsHigh) == 0 && (row.flags & kMoves) == 0) {
    known &= written_lanes(checks, i.operand[0], k, k);
  }
  return known;
}

/// Bits of word k of a scalar result that mean something.
uint64_t known_bits(Wave& wave, const Instruction& i, int k, uint64_t lanes) {
  if (i.reader == Reader::bitwise) {
    return wave.checks->decided >> (32 * k);
  }
  if (i.reader == Reader::selects_scalar) {
    return written_bits(*wave.checks, i.operand[wave.scc != 0 ? 1 : 2]) >> (32 * k);
  }
  const uint64_t known = known_lanes(wave, i, k);
  // Of vector sources, the active lanes count.
  const bool all = i.vector ? (known & lanes) == lanes : known != 0;
  return all ? ~uint64_t{0} : 0;
}

void forget(WaveChecks& checks, const Outstanding& o) {
  if (o.first >= 0 && !checks.follows()) {
    checks.end_pending(o.first, o.words, o.scalar);
  }
}

}  // namespace

void prepare_checks(Instruction& i) {
  i.touched_words = 0;
  if (i.row == nullptr) {
    return;
  }
  const std::string_view name = i.row->name;
  const bool exchanges =
      name == "ds_permute_b32" || name == "ds_bpermute_b32" || name == "ds_swizzle_b32";
  i.reader =
      exchanges                                            ? Reader::exchanges
      : is_sink(*i.row)                                    ? Reader::sink
      : name == "v_cndmask_b32"                            ? Reader::selects
      : name == "s_cselect_b32" || name == "s_cselect_b64" ? Reader::selects_scalar
      : name == "v_pk_mov_b32"                             ? Reader::moves_pair
      : name == "v_writelane_b32"                          ? Reader::writes_lane
      : name == "v_swap_b32" || name == "v_permlane16_swap_b32" || name == "v_permlane32_swap_b32"
          ? Reader::swaps
      : name == "v_readlane_b32" || name == "v_readfirstlane_b32" ? Reader::reads_lane
      : is_bitwise(name)                                          ? Reader::bitwise
                                                                  : Reader::plain;
  i.fills = i.reader != Reader::swaps && i.reader != Reader::writes_lane;
  // Loads of words write lanes that reach nothing, too.
  i.whole = i.fills && (i.vector ? i.row->cost == Class::valu && !i.altered && i.dpp == Dpp::none &&
                                       (i.row->flags & kKeepsHigh) == 0
                                 : i.row->cost == Class::salu ||
                                       (i.row->cost == Class::vmem_load &&
                                        name.find("_load_dword") != std::string_view::npos));
  std::array<uint64_t, kTouchedWords> masks{};
  std::array<uint64_t, kTouchedWords> sources{};
  for (int k = 0; k < i.operands; ++k) {
    const Operand& o = i.operand[k];
    const bool read = k >= i.results || (i.row->reads_result >> k & 1) != 0;
    const bool scalar = o.kind == Operand::Kind::sgpr;
    for (int r = o.index; (scalar || o.kind == Operand::Kind::vgpr) && r < o.index + o.words; ++r) {
      const int bit = (scalar ? kVectorRegisters : 0) + r;
      if (bit < 64 * kTouchedWords) {
        masks[static_cast<size_t>(bit / 64)] |= uint64_t{1} << (bit % 64);
        sources[static_cast<size_t>(bit / 64)] |= uint64_t{read} << (bit % 64);
      }
    }
  }
  for (int word = 0; word < kTouchedWords; ++word) {
    const uint64_t mask = masks[static_cast<size_t>(word)];
    if (mask == 0) {
      continue;
    }
    if (i.touched_words == std::size(i.touched)) {
      i.touched_words = kTouchesMuch;
      i.whole = false;
      return;
    }
    i.touched[i.touched_words++] = {static_cast<uint8_t>(word), mask,
                                    sources[static_cast<size_t>(word)]};
  }
}

void WaveChecks::begin(int wave, Path& to_take) {
  path = &to_take;
  step = 0;
  records = !std::exchange(to_take.begun, true);
  if (records) {
    begin_registers(to_take.start);
  }
  vm.clear();
  lgkm.clear();
  issued = vm_arrived = lgkm_arrived = 0;
  lds_step = 0;
  parts.clear();
  clock.fill(0);
  clock[static_cast<size_t>(wave)] = 1;
  views.clear();
}

void WaveChecks::begin_registers(const Path::Start& start) {
  const auto forget_all = [&](int first, int count) {
    std::fill_n(written.begin() + first, count, 0);
    std::fill_n(pending.begin() + first, count, uint8_t{0});
  };
  forget_all(0, start.vgprs);
  forget_all(256, start.agprs);
  used.fill(0);
  scalar_written.fill(0);
  scalar_pending.fill(0);
  ready_.fill(0);
  written[0] = start.lanes;
  used[0] = 1;
  update(0);
  const auto set_scalar = [&](int index) {
    scalar_written[static_cast<size_t>(index)] = ~0U;
    set(kVectorRegisters + index, true);
  };
  for (int r = 0; r < start.scalars; ++r) {
    set_scalar(r);
  }
  set_scalar(kExec);
  set_scalar(kExec + 1);
}

bool WaveChecks::sources_ready(const Instruction& i, uint64_t lanes) const {
  if (!i.fills || i.touched_words == kTouchesMuch) {
    return false;
  }
  uint64_t missing = 0;
  for (int k = 0; k < i.touched_words; ++k) {
    const size_t word = i.touched[k].word;
    uint64_t some = ~ready_[word] & i.touched[k].sources;
    const bool by_lane = ~lanes != 0 && word < kVectorRegisters / 64;
    for (uint64_t rest = by_lane ? some : 0; rest != 0; rest &= rest - 1) {
      const size_t r = 64 * word + static_cast<size_t>(std::countr_zero(rest));
      some ^= pending[r] == 0 && (lanes & ~written[r]) == 0 ? rest & -rest : 0;
    }
    missing |= some;
  }
  // Loads return in order, so two of them may have the same destination.
  if (missing != 0 || (vm.empty() && lgkm.empty()) || is_load(i)) {
    return missing == 0;
  }
  for (int n = 0; n < i.results && n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    for (int r = o.index; r < o.index + o.words; ++r) {
      missing |= o.kind == Operand::Kind::vgpr              ? pending[static_cast<size_t>(r)]
                 : o.kind == Operand::Kind::sgpr && r < 128 ? scalar_pending[static_cast<size_t>(r)]
                                                            : 0;
    }
  }
  return missing == 0;
}

void WaveChecks::fill(const Instruction& i) {
  for (int n = 0; n < i.results && n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    if (o.kind == Operand::Kind::vgpr) {
      std::fill_n(written.begin() + o.index, o.words, ~uint64_t{0});
    }
    for (int r = o.index; o.kind == Operand::Kind::sgpr && r < o.index + o.words && r < 128; ++r) {
      scalar_written[static_cast<size_t>(r)] = ~0U;
    }
  }
  for (int k = 0; k < i.touched_words; ++k) {
    const Instruction::Touched& touched = i.touched[k];
    ready_[touched.word] |= touched.mask;
    if (touched.word < used.size()) {
      used[touched.word] |= touched.mask;
    }
  }
}

void WaveChecks::begin_pending(int first, int words, bool scalar) {
  auto* counts = scalar ? scalar_pending.data() : pending.data();
  for (int r = first; r < first + words; ++r) {
    ++counts[r];
    set((scalar ? kVectorRegisters : 0) + r, false);
  }
}

void WaveChecks::end_pending(int first, int words, bool scalar) {
  for (int r = first; r < first + words; ++r) {
    if (scalar) {
      --scalar_pending[static_cast<size_t>(r)];
      update_scalar(r);
    } else {
      --pending[static_cast<size_t>(r)];
      update(r);
    }
  }
}

namespace {

/// Lanes of a raw buffer's store whose offset is beyond the buffer: they store nothing, and
/// compilers give lanes such an offset that are not to store.
uint64_t lanes_beyond_buffer(Wave& wave, const Instruction& i) {
  if (!i.row->name.starts_with("buffer_store") || i.idxen || !i.offen) {
    return 0;
  }
  const uint32_t* offset = wave.lanes(i.operand[1].index);
  const uint32_t* descriptor = &wave.s[i.operand[2].index];
  const bool swizzle = (descriptor[1] >> 31) != 0;
  const bool add_lane = (descriptor[3] >> 23 & 1) != 0;
  uint64_t beyond = 0;
  for (int l = 0; !swizzle && !add_lane && l < kLanes; ++l) {
    const uint64_t place = uint64_t{offset[l]} + static_cast<uint64_t>(i.offset);
    beyond |= static_cast<uint64_t>(place >= descriptor[2]) << l;
  }
  return beyond;
}

void check_sources(Wave& wave, const Instruction& i) {
  if (i.row == nullptr || i.operands == 0) {
    return;
  }
  if (i.reader == Reader::bitwise) {
    wave.checks->decided = decided_bits(wave, i);  // while the sources are what they were
  }
  const bool load = is_load(i);
  for (int k = 0; k < i.operands; ++k) {
    // Where data goes to or comes from matters at once, the data itself where it is used.
    const bool sink = i.reader == Reader::sink ||
                      (i.reader == Reader::exchanges && k != 0 && k + 1 != i.operands);
    const bool result = k < i.results;
    // Loads return in order, so two of them may have the same destination.
    if (!(result && load)) {
      check_pending(wave, i, i.operand[k]);
    }
    const bool read = !result || (i.row->cost == Class::mfma && i.row->reads_result != 0);
    if (sink && read) {
      const uint64_t unused = k == 0 ? lanes_beyond_buffer(wave, i) : 0;
      check_written(wave, i, k, source_lanes(wave, i, k) & ~unused);
    }
  }
  if (i.reader == Reader::reads_lane || i.reader == Reader::exchanges) {
    wave.checks->moved = lanes_to_move(wave, i);
  }
  // v_readfirstlane and v_readlane make a lane's value everybody's: checked where that is used.
}

/// v_swap_b32, v_permlane16_swap_b32 and v_permlane32_swap_b32, which move what is known as well.
void note_swap(WaveChecks& checks, const Instruction& i, uint64_t exec) {
  const std::string_view name = i.row->name;
  const int row = name == "v_swap_b32" ? 0 : name == "v_permlane16_swap_b32" ? 16 : 32;
  uint64_t& first = checks.written[i.operand[0].index];
  uint64_t& second = checks.written[i.operand[1].index];
  // Lanes of the second register that take part: all, or even rows.
  const uint64_t lower = row == 0    ? ~uint64_t{0}
                         : row == 16 ? 0x0000ffff0000ffff
                                     : 0x00000000ffffffff;
  const uint64_t upper = lower << row;
  const uint64_t low = second << row;
  const uint64_t high = first >> row;
  second = (second & ~(lower & exec)) | (high & lower & exec);
  first = (first & ~(upper & exec)) | (low & upper & exec);
  for (const int r : {i.operand[0].index, i.operand[1].index}) {
    checks.update(r);
    std::erase_if(checks.parts, [&](const auto& parts) { return parts.index == r; });
  }
}

/// Lanes of a register are written, and mean something where that is `known`.
void set_written(WaveChecks& checks, int index, uint64_t lanes, uint64_t known) {
  if (!checks.parts.empty()) [[unlikely]] {
    set_known_bytes(checks, index, lanes, {known, known, known, known});
    return;
  }
  uint64_t& written = checks.written[static_cast<size_t>(index)];
  written = (written & ~lanes) | (known & lanes);
  checks.update(index);
}

void note_results(Wave& wave, const Instruction& i) {
  if (i.row == nullptr) {
    return;
  }
  WaveChecks& checks = *wave.checks;
  const uint64_t lanes = result_lanes(wave, i);
  if (i.reader == Reader::swaps) {
    note_swap(checks, i, lanes);
    return;
  }
  if (i.reader == Reader::writes_lane) {
    const uint64_t lane = uint64_t{1} << (wave.read32(i.operand[2]) & 63);
    const uint64_t known = written_lanes(checks, i.operand[1], 0, 0) != 0 ? lane : 0;
    set_written(checks, i.operand[0].index, lane, known);
    return;
  }
  // Results may be sources: what is known of all words is found first.
  uint64_t known[32];
  for (int n = 0; n < i.results && n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    const int words = std::min<int>(o.words, 32);
    for (int k = 0; k < words; ++k) {
      known[k] = o.kind == Operand::Kind::sgpr ? known_bits(wave, i, k, lanes)
                                               : known_lanes(wave, i, k) & ~doubted_lanes(wave);
    }
    const bool partly = o.kind == Operand::Kind::vgpr && (known[0] & lanes) != lanes;
    if (const auto bytes = partly ? result_bytes(wave, i) : std::nullopt) {
      set_known_bytes(checks, o.index, lanes, *bytes);
      continue;
    }
    for (int k = 0; k < words; ++k) {
      if (o.kind == Operand::Kind::vgpr) {
        set_written(checks, o.index + k, lanes, known[k]);
      } else if (o.kind == Operand::Kind::sgpr && o.index + k < 128) {
        checks.scalar_written[o.index + k] = static_cast<uint32_t>(known[k]);
        checks.update_scalar(o.index + k);
      }
    }
  }
}

/// The results of an instruction all of whose sources mean something, but lanes that raced.
void note_filled(WaveChecks& checks, const Instruction& i, uint64_t lanes, uint64_t doubted) {
  if (~lanes == 0 && checks.parts.empty() && !is_load(i)) [[likely]] {
    checks.fill(i);
    return;
  }
  const uint64_t known = lanes & ~doubted;
  for (int n = 0; n < i.results && n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    for (int r = o.index; r < o.index + o.words; ++r) {
      if (o.kind == Operand::Kind::vgpr) {
        set_written(checks, r, lanes, known);
      } else if (o.kind == Operand::Kind::sgpr && r < 128) {
        checks.scalar_written[static_cast<size_t>(r)] = ~0U;
        checks.update_scalar(r);
      }
    }
  }
}

/// Registers of an instruction's are used; `clear` is called with each that the wave has not used
/// yet, but those that the instruction is about to write in all lanes (`full`: all are active).
template <class Clear>
void use_registers(WaveChecks& checks, const Instruction& i, bool full, Clear clear) {
  constexpr int kWords = kVectorRegisters / 64;
  const auto use = [&](int word, uint64_t mask, uint64_t whole) {
    uint64_t& used = checks.used[static_cast<size_t>(word)];
    for (uint64_t rest = mask & ~used & ~whole; rest != 0; rest &= rest - 1) {
      clear(64 * word + std::countr_zero(rest));
    }
    used |= mask;
  };
  if (i.touched_words == kTouchesMuch) [[unlikely]] {
    for (const Operand& o : i.operand) {
      for (int r = o.index; o.kind == Operand::Kind::vgpr && r < o.index + o.words; ++r) {
        use(r / 64, uint64_t{1} << (r % 64), 0);
      }
    }
    return;
  }
  uint64_t unused = 0;
  for (int k = 0; k < i.touched_words && i.touched[k].word < kWords; ++k) {
    unused |= i.touched[k].mask & ~checks.used[i.touched[k].word];
  }
  if (unused == 0) {
    return;
  }
  const bool whole = i.whole && full;
  for (int k = 0; k < i.touched_words && i.touched[k].word < kWords; ++k) {
    use(i.touched[k].word, i.touched[k].mask, whole ? ~i.touched[k].sources : 0);
  }
}

/// Whether all means something that an instruction reads, and it waited for it.
bool reads_ready(const Wave& wave, const Instruction& i) {
  const bool lanes = i.vector || i.row->cost == Class::lds || i.row->cost == Class::vmem_load ||
                     i.row->cost == Class::vmem_store || i.row->cost == Class::vmem_atomic;
  const bool own_lanes = lanes && i.dpp == Dpp::none && i.reader != Reader::exchanges &&
                         i.reader != Reader::reads_lane && wave.checks->parts.empty() &&
                         (i.row->flags & kIgnoresExec) == 0;
  return wave.checks->sources_ready(i, own_lanes ? wave.exec() : ~uint64_t{0});
}

void clear_register(Wave& wave, int index) {
  std::memset(wave.lanes(index), kUnwritten, kLanes * sizeof(uint32_t));
}

/// Whether all that it reads means something, and it writes all lanes of its results.
bool writes_whole(const Wave& wave, const Instruction& i) {
  return i.whole && (!i.vector || ~wave.exec() == 0) && !is_load(i) && wave.checks->parts.empty() &&
         wave.checks->sources_ready(i);
}

/// Adds a step to the path, as long as the instruction reads nothing that means nothing.
void record_step(Wave& wave, const Instruction& i) {
  constexpr size_t kMostSteps = 1024;
  WaveChecks& checks = *wave.checks;
  Path& path = *checks.path;
  Path::Step step{&i, wave.exec(), -1, false};
  Path::Change change;
  if (path.steps.size() > kMostSteps) {
    leave_path(wave);
  }
  if (checks.ready(i)) {
    i.run(wave, i);
  } else if (writes_whole(wave, i)) {
    i.run(wave, i);
    checks.fill(i);
    change.whole = true;
    step.change = static_cast<int32_t>(path.changes.size());
  } else if (reads_ready(wave, i)) {
    use_registers(checks, i, ~wave.exec() == 0, [&](int index) {
      clear_register(wave, index);
      change.cleared.push_back(static_cast<uint16_t>(index));
    });
    i.run(wave, i);
    change.lanes = result_lanes(wave, i);
    note_filled(checks, i, change.lanes, doubted_lanes(wave));
    step.change = static_cast<int32_t>(path.changes.size());
    step.clears = !change.cleared.empty();
  } else {
    leave_path(wave);
    run_checked(wave, i);
  }
  if (!checks.records) {
    return;
  }
  if (step.change >= 0) {
    path.changes.push_back(std::move(change));
  }
  path.steps.back() = step;
  path.steps.emplace_back();
}

}  // namespace

void leave_path(Wave& wave) {
  WaveChecks& checks = *wave.checks;
  const Path* path = std::exchange(checks.path, nullptr);
  if (path == nullptr || std::exchange(checks.records, false)) {
    return;
  }
  checks.begin_registers(path->start);
  for (uint32_t k = 0; k < checks.step; ++k) {
    const Path::Step& step = path->steps[k];
    if (step.change < 0) {
      continue;
    }
    const Path::Change& change = path->changes[static_cast<size_t>(step.change)];
    if (change.whole) {
      checks.fill(*step.instruction);
    } else {
      use_registers(checks, *step.instruction, false, [](int) {});
      note_filled(checks, *step.instruction, change.lanes, 0);
    }
  }
  for (const auto* queue : {&checks.vm, &checks.lgkm}) {
    for (const Outstanding& o : *queue) {
      if (o.first >= 0) {
        checks.begin_pending(o.first, o.words, o.scalar);
      }
    }
  }
}

void run_first_use(Wave& wave, const Path::Change& change) {
  for (const uint16_t index : change.cleared) {
    clear_register(wave, index);
  }
}

/// The wave left its path amid an instruction.
void finish_off_path(Wave& wave, const Path::Step& step) {
  if (step.change >= 0) {
    const Instruction& i = *step.instruction;
    use_registers(*wave.checks, i, false, [](int) {});
    note_filled(*wave.checks, i, result_lanes(wave, i), doubted_lanes(wave));
  }
}

void run_beside_path(Wave& wave, const Instruction& i) {
  if (wave.checks->records) {
    record_step(wave, i);
    return;
  }
  leave_path(wave);
  if (wave.checks->ready(i)) {
    i.run(wave, i);
  } else {
    run_checked(wave, i);
  }
}

void run_checked(Wave& wave, const Instruction& i) {
  if (writes_whole(wave, i)) [[likely]] {
    i.run(wave, i);
    wave.checks->fill(i);
    return;
  }
  use_registers(*wave.checks, i, ~wave.exec() == 0,
                [&](int index) { clear_register(wave, index); });
  if (reads_ready(wave, i)) {
    i.run(wave, i);
    note_filled(*wave.checks, i, result_lanes(wave, i), doubted_lanes(wave));
  } else {
    check_sources(wave, i);
    i.run(wave, i);
    note_results(wave, i);
  }
}

void note_issue(Wave& wave, const Instruction& instruction, Counter counter, int first_register,
                int words, bool scalar) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  const Outstanding o{.first = first_register,
                      .words = words,
                      .scalar = scalar,
                      .any_order = counter == Counter::lgkm_any_order,
                      .ordinal = instruction.ordinal,
                      .number = ++checks->issued,
                      .lds_step = std::exchange(checks->lds_step, 0),
                      .order = std::exchange(checks->order.issuing, {})};
  if (first_register >= 0 && !checks->follows()) {
    checks->begin_pending(first_register, words, scalar);
  }
  (counter == Counter::vm ? checks->vm : checks->lgkm).push_back(o);
}

void note_wait(Wave& wave, int vm, int lgkm) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  while (checks->vm.size() > static_cast<size_t>(vm)) {
    const Outstanding& o = checks->vm.front();
    forget(*checks, o);
    checks->vm_arrived = o.number;
    note_done(wave, o.order);
    checks->vm.pop_front();
  }
  if (lgkm == 0) {
    for (const Outstanding& o : checks->lgkm) {
      forget(*checks, o);
    }
    checks->lgkm_arrived = checks->issued;
    checks->lgkm.clear();
  } else {
    // In order as long as no scalar load is among them: then any may be the ones left over.
    const bool ordered = std::none_of(checks->lgkm.begin(), checks->lgkm.end(),
                                      [](const Outstanding& o) { return o.any_order; });
    while (ordered && checks->lgkm.size() > static_cast<size_t>(lgkm)) {
      forget(*checks, checks->lgkm.front());
      checks->lgkm_arrived = checks->lgkm.front().number;
      checks->lgkm.pop_front();
    }
  }
}

namespace {

/// How an access meets those before it.
enum class Meets : uint8_t { nothing, writer, arriving, reader, some_reader };

/// What an access to LDS is about: a word or, where it was touched in parts, a byte.
struct LdsAccess {
  Wave& wave;
  const Instruction& instruction;
  int lane;
  uint32_t address;  ///< first byte of the word, or the byte
  LdsUse use;
  bool equal;  ///< it writes what is there

  bool writes() const { return use != LdsUse::read; }
  LdsShadow& shadow() const { return wave.group->shadow; }
  const Clock& clock() const { return wave.checks->clock; }
  int self() const { return wave.index; }
};

/// Notes from which step on a wave knows what it knows now.
void note_view(Wave& wave) {
  constexpr size_t kMost = 4096;  // beyond it, what is known since long counts as known always
  WaveChecks& checks = *wave.checks;
  if (!wave.group->shadow.flags) {
    return;
  }
  const int32_t step = checks.clock[wave.index];
  if (!checks.views.empty() && checks.views.back().step == step) {
    checks.views.back().clock = checks.clock;
    return;
  }
  checks.views.push_back({step, checks.clock});
  if (checks.views.size() > kMost) {
    checks.views.pop_front();
  }
}

/// A wave found a flag as another one stored it: what that one did before happened before, and its
/// LDS operations up to the flag's store are done.
void acquire(Wave& wave, const LdsByte& flag) {
  const int writer = flag.written & 15;
  const int32_t step = flag.written >> 4;
  Clock& clock = wave.checks->clock;
  WaveChecks& theirs = *wave.group->waves[static_cast<size_t>(writer)].checks;
  const auto* after = std::upper_bound(theirs.views.begin(), theirs.views.end(), step,
                                       [](int32_t s, const auto& view) { return s < view.step; });
  if (!theirs.views.empty()) {
    const Clock& known = after == theirs.views.begin() ? after->clock : std::prev(after)->clock;
    for (int k = 0; k < kMaxWaves; ++k) {
      clock[k] = k == wave.index ? clock[k] : std::max(clock[k], known[k]);
    }
  }
  clock[writer] = std::max(clock[writer], step);
  wave.checks->order.join(theirs.order);
  note_view(wave);
  if ((flag.state & kCounted) == 0) {
    theirs.lgkm_arrived = std::max(theirs.lgkm_arrived, flag.number);
  }
}

/// Whether what was written may not have arrived.
bool arriving(const LdsAccess& a, const LdsByte& was) {
  const WaveChecks& writer = *a.wave.group->waves[static_cast<size_t>(was.written & 15)].checks;
  return was.number > ((was.state & kCounted) != 0 ? writer.vm_arrived : writer.lgkm_arrived);
}

/// Meets::writer: `other` wrote; Meets::reader: `other` read.
Meets meet(const LdsAccess& a, const LdsByte& was, int& other) {
  const LdsShadow& shadow = a.shadow();
  const Clock& clock = a.clock();
  const int self = a.self();
  other = was.written & 15;
  const auto after = [&](int wave, int32_t step) { return wave == self || clock[wave] >= step; };
  bool ordered = after(other, was.written >> 4);
  bool mine = other == self;
  if ((was.state & kSame) != 0) {
    const Clock& steps = shadow.same.at(a.address);
    for (int k = 0; k < kMaxWaves; ++k) {
      if (a.writes() && !after(k, steps[k])) {
        ordered = false;  // it must come after all of them
        other = k;
      }
      ordered |= !a.writes() && steps[k] != 0 && after(k, steps[k]);  // after one of them
    }
    mine = steps[self] != 0;
  }
  if (!ordered) {
    return Meets::writer;
  }
  if ((!mine || (was.state & kStraight) != 0) && arriving(a, was)) {
    return Meets::arriving;
  }
  const int reader = was.read & 15;
  const int32_t step = was.read >> 5;
  if (!a.writes() || step <= shadow.ordered) {
    return Meets::nothing;
  }
  if ((was.read & 16) != 0 && shadow.flags) {
    const Clock& steps = shadow.readers.at(a.address);
    for (other = 0; other < kMaxWaves; ++other) {
      if (!after(other, steps[other])) {
        return Meets::reader;
      }
    }
    return Meets::nothing;
  }
  other = reader;
  if (!after(reader, step)) {
    return Meets::reader;
  }
  return reader == self && (was.read & 16) != 0 && shadow.met.empty() ? Meets::some_reader
                                                                      : Meets::nothing;
}

void report_conflict(const LdsAccess& a, const LdsByte& was, Meets meets, int other) {
  const std::string where = "LDS byte " + std::to_string(a.address);
  const std::string does = where + (a.writes() ? " is written" : " is read");
  const std::string wave = "wave " + std::to_string(other);
  const Code& code = *a.wave.group->launch->code;
  const std::string& writer = code.text(code.instructions()[was.writer]);
  FindingKind kind = FindingKind::lds_race;
  std::string text;
  switch (meets) {
    case Meets::nothing:
      return;
    case Meets::writer:
      text = does + " while " + wave + " writes it with no barrier between: " + writer;
      break;
    case Meets::arriving:
      kind = FindingKind::missing_wait;
      text = where + " is used before " + wave + " waited for what it is writing there: " + writer;
      break;
    case Meets::reader:
      text = does + " while " + wave + " reads it with no barrier between";
      break;
    case Meets::some_reader:
      text = does + " while another wave reads it with no barrier between";
      break;
  }
  report(a.wave, a.instruction, kind, a.lane, text);
}

/// One more wave has read, and what is left of the readers before depends on which there were.
int32_t read_by(const LdsAccess& a, int32_t was) {
  LdsShadow& shadow = a.shadow();
  const int self = a.self();
  const int32_t step = a.clock()[self];
  if (was >> 5 <= shadow.ordered || (was & 31) == self) {
    return step << 5 | self;
  }
  if (shadow.flags) {
    Clock& steps = shadow.readers[a.address];
    if ((was & 16) == 0) {
      steps = {};
      steps[was & 15] = was >> 5;
    }
    steps[self] = step;
  }
  return was | 16;
}

/// LdsState of what a store or load to LDS writes.
uint16_t how_written(const Instruction& i, LdsUse use) {
  return use == LdsUse::arriving ? kCounted | kStraight : i.row->cost == Class::lds ? 0 : kCounted;
}

/// How a word or byte is touched after this access.
LdsByte touched(const LdsAccess& a, LdsByte was) {
  if (a.use == LdsUse::read) {
    was.read = a.instruction.spins ? was.read : read_by(a, was.read);
    return was;
  }
  return {.written = a.clock()[a.self()] << 4 | a.self(),
          .read = 0,
          .writer = a.instruction.ordinal,
          .number = a.use == LdsUse::atomic ? 0 : a.wave.checks->issued + 1,
          .state = a.use == LdsUse::atomic ? uint16_t{0} : how_written(a.instruction, a.use)};
}

/// Likewise, of data and flags: where an order is needed, is there one?
LdsByte check_touched(const LdsAccess& a, LdsByte was) {
  int other = 0;
  const Meets meets = meet(a, was, other);
  if (meets == Meets::nothing) {
    return touched(a, was);
  }
  if (a.equal) {
    Clock& steps = a.shadow().same[a.address];
    if ((was.state & kSame) == 0) {
      steps = {};
      steps[was.written & 15] = was.written >> 4;
      was.state |= kSame;
    }
    steps[a.self()] = a.clock()[a.self()];
    return was;
  }
  if (!a.instruction.spins) {
    report_conflict(a, was, meets, other);
  } else {
    if (meets == Meets::writer) {
      acquire(a.wave, was);
    }
    was.number = 0;  // what was found there has arrived
  }
  return touched(a, was);
}

/// An atomic, or an access where atomics were done: the waves that come here meet.
void note_meeting(const LdsAccess& a, uint32_t word, const LdsByte& was) {
  LdsShadow& shadow = a.shadow();
  Clock& clock = a.wave.checks->clock;
  int other = 0;
  if ((was.state & kMet) == 0 && shadow.flags && meet(a, was, other) == Meets::writer) {
    acquire(a.wave, was);  // a flag that atomics wait for
  }
  Clock& met = shadow.met[word];
  for (int k = 0; k < kMaxWaves; ++k) {
    const int32_t latest = std::max(met[k], clock[k]);
    met[k] = a.writes() ? latest : met[k];
    clock[k] = a.use == LdsUse::write || a.use == LdsUse::arriving ? clock[k] : latest;
  }
  clock[a.self()] += a.writes() ? 1 : 0;
  note_view(a.wave);
  WaveOrder& order = a.wave.checks->order;
  if (a.writes()) {
    shadow.met_order.join(order);
  }
  order.join(shadow.met_order);
}

/// Parts of a word: different waves may have different bytes of it.
void split(LdsShadow& shadow, uint32_t word, const LdsByte& whole) {
  shadow.state[word] |= kSplit;
  if (shadow.bytes.empty()) {
    shadow.bytes.resize(shadow.state.size());
  }
  shadow.bytes[word].fill(whole);
  for (auto* steps : {&shadow.same, &shadow.readers}) {
    const auto found = steps->find(4 * word);
    if (found != steps->end()) {
      const Clock copy = found->second;
      for (uint32_t k = 1; k < 4; ++k) {
        (*steps)[4 * word + k] = copy;
      }
    }
  }
}

/// Which of the bytes `mask` of a word a lane is about to write as they are.
uint8_t equal_bytes(const Wave& wave, uint32_t address, int lane, uint32_t word, uint32_t mask,
                    LdsValues values) {
  uint32_t equal = 0;
  for (uint32_t k = 0; values.words != nullptr && k < 4; ++k) {
    if ((mask >> k & 1) != 0) {
      const uint32_t at = 4 * word + k - address;
      const uint32_t value = values.words[at / 4 * kLanes + static_cast<uint32_t>(lane)];
      const auto byte = static_cast<std::byte>(value >> values.shift >> 8 * (at % 4));
      equal |= static_cast<uint32_t>(byte == wave.group->lds[4 * word + k]) << k;
    }
  }
  return static_cast<uint8_t>(equal & wave.group->shadow.state[word]);
}

/// After a barrier it does not matter any more that several waves wrote the same.
void forget_same(LdsShadow& shadow, uint32_t word) {
  const auto found = shadow.same.find(4 * word);
  const Clock& steps = found->second;
  if (std::all_of(steps.begin(), steps.end(),
                  [&](int32_t step) { return step <= shadow.ordered; })) {
    shadow.same.erase(found);
    shadow.state[word] &= static_cast<uint16_t>(~kSame);
  }
}

/// One word of LDS, of which `mask` are the bytes: every case there is. The access is that of the
/// word's first byte among them; `equal`: bytes that it writes as they are.
void note_word(LdsAccess a, uint32_t word, uint8_t mask, uint8_t equal) {
  LdsShadow& shadow = a.shadow();
  uint16_t& state = shadow.state[word];
  const auto first = static_cast<uint32_t>(std::countr_zero(mask));
  const LdsByte whole{shadow.written[word], shadow.read[word], shadow.writer[word],
                      shadow.number[word], state};
  a.address = 4 * word;
  a.equal = equal == mask;
  LdsByte now;
  if (a.use == LdsUse::atomic || (state & kMet) != 0) {
    note_meeting(a, word, whole);
    state |= a.use == LdsUse::atomic ? kMet : 0;
    now = touched(a, whole);
  } else if (mask != kAllWritten || (state & kSplit) != 0) {
    if ((state & kSplit) == 0) {
      split(shadow, word, whole);
    }
    auto& bytes = shadow.bytes[word];
    for (uint32_t k = 0; k < 4; ++k) {
      if ((mask >> k & 1) != 0) {
        a.address = 4 * word + k;
        a.equal = (equal >> k & 1) != 0;
        bytes[k] = check_touched(a, bytes[k]);
      }
    }
    now = bytes[0];
  } else {
    now = check_touched(a, whole);
  }
  if ((a.use == LdsUse::read || a.use == LdsUse::atomic) && (state & mask) != mask) {
    report(a.wave, a.instruction, FindingKind::uninitialized_lds, a.lane,
           "LDS byte " + std::to_string(4 * word + first) + " is read and was never written");
  }
  state |= a.writes() ? mask : 0;
  if ((state & kSplit) != 0) {
    if (mask != kAllWritten || !a.writes() || (equal != 0 && (state & kMet) == 0)) {
      return;
    }
    // In one piece again.
  }
  shadow.written[word] = now.written;
  shadow.read[word] = now.read;
  shadow.writer[word] = now.writer;
  shadow.number[word] = now.number;
  if (a.writes()) {
    state = static_cast<uint16_t>((state & (kAllWritten | kMet)) | (now.state & ~kAllWritten));
  } else if ((state & kSame) != 0 && now.written >> 4 <= shadow.ordered) {
    forget_same(shadow, word);
  }
}

/// kWords aligned words of a lane, where nothing is unusual. False: something may be.
template <int kWords, bool kWrites>
bool note_words(LdsShadow& shadow, uint32_t word, const LdsByte& mark, uint32_t self) {
  uint16_t* state = &shadow.state[word];
  int32_t* written = &shadow.written[word];
  int32_t* read = &shadow.read[word];
  // Steps that no barrier has ordered yet.
  const int32_t first = shadow.ordered + 1;
  const int32_t unsettled = (shadow.settled + 1) << 4;
  int bad = 0;
  for (int k = 0; k < kWords; ++k) {
    constexpr int kLooked = kMet | kSplit | kSame | (kWrites ? 0 : kAllWritten);
    bad |= (state[k] & kLooked) ^ (kWrites ? 0 : kAllWritten);
  }
  for (int k = 0; k < kWords; ++k) {
    const bool mine =
        ((written[k] & 15) == static_cast<int32_t>(self)) & ((state[k] & kStraight) == 0);
    bad |= static_cast<int>(written[k] >= unsettled) & static_cast<int>(!mine);
  }
  if (kWrites || shadow.flags) {
    for (int k = 0; k < kWords; ++k) {
      bad |= static_cast<int>(read[k] >= first << 5) &
             static_cast<int>((read[k] & 31) != static_cast<int32_t>(self));
    }
  }
  if (bad != 0) {
    return false;
  }
  for (int k = 0; k < kWords; ++k) {
    if (kWrites) {
      state[k] = mark.state;
      written[k] = mark.written;
      shadow.writer[word + static_cast<uint32_t>(k)] = mark.writer;
      shadow.number[word + static_cast<uint32_t>(k)] = mark.number;
    } else {
      const bool alone = (read[k] < first << 5) | ((read[k] & 31) == static_cast<int32_t>(self));
      read[k] = alone ? mark.read : read[k] | 16;
    }
  }
  return true;
}

/// Lanes that must be looked at word by word.
template <int kWords, bool kWrites>
uint64_t note_lanes(Wave& wave, const uint32_t* addresses, uint64_t mask, const LdsByte& mark) {
  LdsShadow& shadow = wave.group->shadow;
  const auto self = static_cast<uint32_t>(wave.index);
  if (~mask == 0 && addresses[0] != addresses[1] &&
      (WEFT_SIM_PICK(in_a_row)(addresses, 4 * kWords)
           ? WEFT_SIM_PICK(note_row<kWords>)(shadow, addresses[0] / 4, mark, wave.index, kWrites)
           : WEFT_SIM_PICK(note_spread<kWords>)(shadow, addresses, mark, wave.index, kWrites))) {
    return 0;
  }
  uint64_t rest = 0;
  uint32_t last = ~0U;  // neighbours often reach the same word
  for (uint64_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int l = std::countr_zero(lanes);
    if (addresses[l] == last) {
      continue;
    }
    const bool known =
        addresses[l] % 4 == 0 && note_words<kWords, kWrites>(shadow, addresses[l] / 4, mark, self);
    rest |= static_cast<uint64_t>(!known) << l;
    last = known ? addresses[l] : ~0U;
  }
  return rest;
}

template <bool kWrites>
uint64_t note_lanes(Wave& wave, const uint32_t* addresses, uint64_t mask, int bytes,
                    const LdsByte& mark) {
  switch (bytes) {
    case 4:
      return note_lanes<1, kWrites>(wave, addresses, mask, mark);
    case 8:
      return note_lanes<2, kWrites>(wave, addresses, mask, mark);
    case 16:
      return note_lanes<4, kWrites>(wave, addresses, mask, mark);
    default:
      return mask;
  }
}

}  // namespace

void note_lds(Wave& wave, const Instruction& i, const uint32_t* addresses, uint64_t mask, int bytes,
              LdsUse use, LdsValues values) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr || mask == 0) {
    return;
  }
  const bool stores = use == LdsUse::write || use == LdsUse::arriving;
  const int32_t step = checks->clock[wave.index];
  const LdsByte mark{.written = step << 4 | wave.index,
                     .read = step << 5 | wave.index,
                     .writer = i.ordinal,
                     .number = checks->issued + 1,
                     .state = static_cast<uint16_t>(kAllWritten | how_written(i, use))};
  uint64_t rest = mask;
  if (use == LdsUse::read && !i.spins) {
    rest = note_lanes<false>(wave, addresses, mask, bytes, mark);
  } else if (stores) {
    rest = note_lanes<true>(wave, addresses, mask, bytes, mark);
    checks->lds_step = step;
  }
  // Parts of a word that neighbours touch together are one access: two lanes' halves are whole.
  struct {
    uint32_t word;
    int lane;
    uint32_t touched;
    uint32_t equal;
  } part{};
  const auto note_part = [&] {
    if (part.touched != 0) {
      note_word({wave, i, part.lane, 4 * part.word, use, false}, part.word,
                static_cast<uint8_t>(part.touched), static_cast<uint8_t>(part.equal));
    }
  };
  for (; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint32_t end = addresses[l] + static_cast<uint32_t>(bytes);
    for (uint32_t word = addresses[l] / 4; word < (end + 3) / 4; ++word) {
      const uint32_t begin_byte = std::max(addresses[l], 4 * word) - 4 * word;
      const uint32_t end_byte = std::min(end, 4 * word + 4) - 4 * word;
      const uint32_t touched = ((1U << end_byte) - 1) & ~((1U << begin_byte) - 1);
      const uint32_t equal = equal_bytes(wave, addresses[l], l, word, touched, values);
      if (part.touched != 0 && word == part.word && (touched & part.touched) == 0) {
        part.touched |= touched;
        part.equal |= equal;
        continue;
      }
      note_part();
      part = {word, l, touched, equal};
    }
  }
  note_part();
  if (stores && wave.group->shadow.flags) {
    ++checks->clock[wave.index];
  }
}

void note_barrier(Workgroup& group) {
  int32_t latest = 0;
  for (const Wave& wave : group.waves) {
    for (const int32_t step : wave.checks->clock) {
      latest = std::max(latest, step);
    }
  }
  group.shadow.ordered = latest;
  int32_t settled = latest;
  for (Wave& wave : group.waves) {
    for (const auto* queue : {&wave.checks->vm, &wave.checks->lgkm}) {
      for (const Outstanding& o : *queue) {
        settled = o.lds_step != 0 ? std::min(settled, o.lds_step - 1) : settled;
      }
    }
    wave.checks->clock.fill(latest);
    ++wave.checks->clock[wave.index];
    wave.checks->views.clear();
  }
  group.shadow.settled = std::max(group.shadow.settled, settled);
  note_meeting(group);
}

void clear(LdsShadow& shadow, uint32_t bytes, bool flags) {
  const size_t words = (bytes + 3) / 4;
  shadow.state.assign(words + 1, 0);  // see note_spread()
  shadow.written.assign(words, 0);
  shadow.read.assign(words, 0);
  shadow.writer.resize(words);
  shadow.number.assign(words, 0);
  shadow.met.clear();
  shadow.met_order = {};
  shadow.same.clear();
  shadow.readers.clear();
  shadow.ordered = 0;
  shadow.settled = 0;
  shadow.flags = flags;
}

}  // namespace weft::sim

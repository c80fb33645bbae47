#include "sim/checks.h"

#include <algorithm>
#include <bit>
#include <string>

#include "sim/decode.h"

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

void check_written(Wave& wave, const Instruction& i, const Operand& o, uint64_t lanes) {
  const WaveChecks& checks = *wave.checks;
  if (o.kind == Operand::Kind::vgpr) {
    for (int r = o.index; r < o.index + o.words; ++r) {
      const uint64_t missing = lanes & ~checks.written[r];
      if (missing != 0) [[unlikely]] {
        report(wave, i, FindingKind::uninitialized_register, std::countr_zero(missing),
               register_name(r) + " holds what was never written, or was computed from that");
      }
    }
  } else if (o.kind == Operand::Kind::sgpr) {
    for (int r = o.index; r < o.index + o.words && r < kExec; ++r) {
      if (!checks.scalar_written[r]) [[unlikely]] {
        report(wave, i, FindingKind::uninitialized_register, 0,
               scalar_name(r) + " holds what was never written, or was computed from that");
      }
    }
  }
}

/// Whether values of an instruction's sources matter at once: addresses, stored data, comparisons,
/// matrices. Others only hand on whether they mean something, because compilers compute with unused
/// halves of registers.
bool is_sink(const Instruction& i) {
  switch (i.row->cost) {
    case Class::vmem_store:  // a spill stores whole registers, whatever lanes of them mean
                             // something
      return !i.row->name.starts_with("scratch_");
    case Class::mfma:
    case Class::lds:
    case Class::vmem_load:
    case Class::vmem_atomic:
    case Class::smem:
      return true;
    default:
      return i.row->name.starts_with("v_cmp") || i.row->name.starts_with("s_cmp");
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
      if (!checks.scalar_written[o.index + k]) {
        return 0;
      }
    }
  }
  return lanes;
}

/// Lanes in which word k of the result means something.
uint64_t known_lanes(const Wave& wave, const Instruction& i, int k) {
  const WaveChecks& checks = *wave.checks;
  const Row& row = *i.row;
  if (is_sink(i)) {
    return ~uint64_t{0};
  }
  const int first = i.results;
  if (row.name == "v_cndmask_b32") {
    const uint64_t mask = wave.read64(i.operand[3]);
    return ((written_lanes(checks, i.operand[1], 0, 0) & ~mask) |
            (written_lanes(checks, i.operand[2], 0, 0) & mask)) &
           written_lanes(checks, i.operand[3], 0, 1);
  }
  if (row.name == "s_cselect_b32" || row.name == "s_cselect_b64") {
    return written_lanes(checks, i.operand[wave.scc != 0 ? 1 : 2], k, k);
  }
  uint64_t known = ~uint64_t{0};
  for (int n = first; n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    if (o.type == Type::pk32) {
      // v_pk_mov_b32 takes each word of its result from one source.
      if (row.name == "v_pk_mov_b32" && n != first + k) {
        continue;
      }
      const int bits = row.name == "v_pk_mov_b32" || k == 0 ? i.op_sel : i.op_sel_hi;
      const int word = bits >> (n - first) & 1;
      known &= written_lanes(checks, o, word, word);
    } else if (o.type == Type::b64 && i.operand[0].words == 2) {
      // Low words of integers depend on low words alone; bits of scalars on their own word.
      known &= written_lanes(checks, o, i.vector ? 0 : k, k);
    } else {
      known &= written_lanes(checks, o, 0, o.words - 1);
    }
  }
  if (row.reads_result != 0 && (row.flags & kKeepsHigh) == 0 && (row.flags & kMoves) == 0) {
    known &= written_lanes(checks, i.operand[0], k, k);
  }
  return known;
}

void forget(WaveChecks& checks, Workgroup& group, int wave, const Outstanding& o) {
  for (int r = o.first; o.first >= 0 && r < o.first + o.words; ++r) {
    --(o.scalar ? checks.scalar_pending[r] : checks.pending[r]);
  }
  for (const uint32_t word : o.lds_words) {
    if (group.shadow[word].arriving == wave) {
      group.shadow[word].arriving = 0xff;
    }
  }
}

}  // namespace

void check_sources(Wave& wave, const Instruction& i) {
  if (i.row == nullptr || i.operands == 0) {
    return;
  }
  const bool sink = is_sink(i);
  const bool load = is_load(i);
  const uint64_t lanes = (i.row->flags & kIgnoresExec) != 0 ? ~uint64_t{0} : wave.exec();
  for (int k = 0; k < i.operands; ++k) {
    const bool result = k < i.results;
    // Loads return in order, so two of them may have the same destination.
    if (!(result && load)) {
      check_pending(wave, i, i.operand[k]);
    }
    const bool read = !result || (i.row->cost == Class::mfma && i.row->reads_result != 0);
    if (sink && read) {
      check_written(wave, i, i.operand[k], lanes);
    }
  }
  // v_readfirstlane and v_readlane make a lane's value everybody's: checked where that is used.
}

void note_results(Wave& wave, const Instruction& i) {
  if (i.row == nullptr) {
    return;
  }
  WaveChecks& checks = *wave.checks;
  const uint64_t lanes = (i.row->flags & kIgnoresExec) != 0 ? ~uint64_t{0} : wave.exec();
  if (i.row->name == "v_writelane_b32") {
    const uint64_t lane = uint64_t{1} << (wave.read32(i.operand[2]) & 63);
    uint64_t& written = checks.written[i.operand[0].index];
    written = written_lanes(checks, i.operand[1], 0, 0) != 0 ? written | lane : written & ~lane;
    return;
  }
  // Results may be sources: what is known of all words is found first.
  uint64_t known[32];
  for (int n = 0; n < i.results && n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    const int words = std::min<int>(o.words, 32);
    for (int k = 0; k < words; ++k) {
      known[k] = known_lanes(wave, i, k);
    }
    for (int k = 0; k < words; ++k) {
      if (o.kind == Operand::Kind::vgpr) {
        uint64_t& written = checks.written[o.index + k];
        written = (written & ~lanes) | (known[k] & lanes);
      } else if (o.kind == Operand::Kind::sgpr && o.index + k < 128) {
        // Of vector sources, the active lanes count.
        checks.scalar_written[o.index + k] = i.vector ? (known[k] & lanes) == lanes : known[k] != 0;
      }
    }
  }
}

void note_issue(Wave& wave, const Instruction& instruction, Counter counter, int first_register,
                int words, bool scalar) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  Outstanding o{.first = first_register,
                .words = words,
                .scalar = scalar,
                .any_order = counter == Counter::lgkm_any_order,
                .ordinal = instruction.ordinal,
                .lds_words = {}};
  for (int r = first_register; first_register >= 0 && r < first_register + words; ++r) {
    ++(scalar ? checks->scalar_pending[r] : checks->pending[r]);
  }
  o.lds_words.swap(checks->lds_words);
  (counter == Counter::vm ? checks->vm : checks->lgkm).push_back(std::move(o));
}

void note_wait(Wave& wave, int vm, int lgkm) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  while (checks->vm.size() > static_cast<size_t>(vm)) {
    forget(*checks, *wave.group, wave.index, checks->vm.front());
    checks->vm.pop_front();
  }
  if (lgkm == 0) {
    for (const Outstanding& o : checks->lgkm) {
      forget(*checks, *wave.group, wave.index, o);
    }
    checks->lgkm.clear();
  } else {
    // In order as long as no scalar load is among them: then any may be the ones left over.
    const bool ordered = std::none_of(checks->lgkm.begin(), checks->lgkm.end(),
                                      [](const Outstanding& o) { return o.any_order; });
    while (ordered && checks->lgkm.size() > static_cast<size_t>(lgkm)) {
      forget(*checks, *wave.group, wave.index, checks->lgkm.front());
      checks->lgkm.pop_front();
    }
  }
}

void note_lds(Wave& wave, const Instruction& instruction, int lane, uint32_t address, int bytes,
              bool write, bool atomic, bool arriving) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  Workgroup& group = *wave.group;
  const auto self = static_cast<uint8_t>(wave.index);
  const uint32_t end = address + static_cast<uint32_t>(bytes);
  for (uint32_t word = address / 4; word < (end + 3) / 4; ++word) {
    LdsWord& state = group.shadow[word];
    const uint32_t begin_byte = std::max(address, 4 * word) - 4 * word;
    const uint32_t end_byte = std::min(end, 4 * word + 4) - 4 * word;
    const auto mask = static_cast<uint8_t>(((1U << end_byte) - 1) & ~((1U << begin_byte) - 1));
    const auto where = [&] { return "LDS byte " + std::to_string(4 * word + begin_byte); };
    const auto writer_text = [&] {
      const Code& code = *group.launch->code;
      return code.text(code.instructions()[state.writer_ordinal]);
    };
    if (atomic) {
      // Meets every other wave that came here: their steps so far are ordered before this one's.
      state.sync = 1;
      Clock& met = group.sync_clocks[word];
      for (int k = 0; k < kMaxWaves; ++k) {
        met[k] = checks->clock[k] = std::max(met[k], checks->clock[k]);
      }
      ++checks->clock[self];
    } else if (state.sync != 0) {
      Clock& met = group.sync_clocks[word];
      if (write) {
        for (int k = 0; k < kMaxWaves; ++k) {
          met[k] = std::max(met[k], checks->clock[k]);
        }
        ++checks->clock[self];
      } else {
        for (int k = 0; k < kMaxWaves; ++k) {
          checks->clock[k] = std::max(met[k], checks->clock[k]);
        }
      }
    } else {
      const bool other_writer = state.writer != 0xff && state.writer != self;
      if (other_writer && checks->clock[state.writer] < state.written_epoch) {
        report(wave, instruction, FindingKind::lds_race, lane,
               where() + " is " + (write ? "written" : "read") + " while wave " +
                   std::to_string(state.writer) +
                   " writes it with no barrier between: " + writer_text());
      } else if (state.arriving != 0xff && (state.arriving != self || state.direct)) {
        report(wave, instruction, FindingKind::missing_wait, lane,
               where() + " is used before wave " + std::to_string(state.arriving) +
                   " waited for what it is writing there: " + writer_text());
      }
      if (write && state.reader != 0xff && state.reader != self &&
          checks->clock[state.reader] < state.read_epoch) {
        report(wave, instruction, FindingKind::lds_race, lane,
               where() + " is written while wave " + std::to_string(state.reader) +
                   " reads it with no barrier between");
      }
    }
    if (!write || (atomic && mask != 0)) {
      if ((state.written_bytes & mask) != mask) {
        report(wave, instruction, FindingKind::uninitialized_lds, lane,
               where() + " is read and was never written");
      }
    }
    if (write) {
      state.written_bytes |= mask;
      state.writer = self;
      state.written_epoch = checks->clock[self];
      state.writer_ordinal = instruction.ordinal;
      if (!atomic) {
        state.arriving = self;
        state.direct = arriving;
        checks->lds_words.push_back(word);
      }
      state.reader = 0xff;
    } else if (state.reader != self) {
      state.reader = self;
      state.read_epoch = checks->clock[self];
    } else {
      state.read_epoch = checks->clock[self];
    }
  }
}

void note_barrier(Workgroup& group) {
  Clock joined{};
  for (const Wave& wave : group.waves) {
    for (int k = 0; k < kMaxWaves; ++k) {
      joined[k] = std::max(joined[k], wave.checks->clock[k]);
    }
  }
  for (Wave& wave : group.waves) {
    wave.checks->clock = joined;
    ++wave.checks->clock[wave.index];
  }
}

}  // namespace weft::sim

#include "sim/checks.h"

#include <algorithm>
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

/// Lanes that an instruction reads of its vector sources.
uint64_t lanes_read(const Wave& wave, const Instruction& i) {
  return (i.row->flags & kIgnoresExec) != 0 ? ~uint64_t{0} : wave.exec();
}

void check_operand(Wave& wave, const Instruction& i, const Operand& o, uint64_t lanes,
                   bool uninitialized_matters, bool pending_matters) {
  WaveChecks& checks = *wave.checks;
  if (o.kind == Operand::Kind::vgpr) {
    for (int r = o.index; r < o.index + o.words; ++r) {
      if (pending_matters && checks.pending[r] != 0) [[unlikely]] {
        report(wave, i, FindingKind::missing_wait, 0,
               pending_text(wave, register_name(r), r, false));
      }
      const uint64_t missing = lanes & ~checks.written[r];
      if (uninitialized_matters && missing != 0) [[unlikely]] {
        report(wave, i, FindingKind::uninitialized_register, __builtin_ctzll(missing),
               register_name(r) + " is read and was never written");
      }
    }
  } else if (o.kind == Operand::Kind::sgpr) {
    for (int r = o.index; r < o.index + o.words; ++r) {
      if (r >= kExec) {
        continue;
      }
      if (pending_matters && checks.scalar_pending[r] != 0) [[unlikely]] {
        report(wave, i, FindingKind::missing_wait, 0, pending_text(wave, scalar_name(r), r, true));
      }
      if (uninitialized_matters && !checks.scalar_written[r]) [[unlikely]] {
        report(wave, i, FindingKind::uninitialized_register, 0,
               scalar_name(r) + " is read and was never written");
      }
    }
  }
}

/// Whether all of an operand that a move copies was written: lanes for a vector, all or nothing for
/// a scalar.
uint64_t written_lanes(const WaveChecks& checks, const Operand& o) {
  if (o.kind == Operand::Kind::vgpr) {
    uint64_t lanes = ~uint64_t{0};
    for (int r = o.index; r < o.index + o.words; ++r) {
      lanes &= checks.written[r];
    }
    return lanes;
  }
  if (o.kind == Operand::Kind::sgpr) {
    for (int r = o.index; r < o.index + o.words && r < kExec; ++r) {
      if (!checks.scalar_written[r]) {
        return 0;
      }
    }
  }
  return ~uint64_t{0};
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
  const bool moves = (i.row->flags & kMoves) != 0;
  // A spill stores whole registers, whatever lanes of them mean something.
  const bool spill = i.row->cost == Class::vmem_store && i.row->name.starts_with("scratch_");
  const uint64_t lanes = lanes_read(wave, i);
  const bool buffer_atomic =
      i.row->cost == Class::vmem_atomic && i.row->name.starts_with("buffer_");
  for (int k = 0; k < i.operands; ++k) {
    const bool result = k < i.results;
    const bool read = !result || (i.row->reads_result >> k & 1) != 0 || (buffer_atomic && k == 0);
    // Loads return in order, so two of them may have the same destination.
    const bool pending_matters = read ? !(result && is_load(i)) : !is_load(i);
    // Part of a register is kept: it may never have meant anything.
    const bool partial = result && (i.row->flags & kKeepsHigh) != 0;
    if (read && !result) {
      check_operand(wave, i, i.operand[k], lanes, !moves && !spill, pending_matters);
    } else {
      check_operand(wave, i, i.operand[k], lanes,
                    read && !moves && !partial && !is_load(i) && i.row->reads_result != 0,
                    pending_matters);
    }
  }
}

void note_results(Wave& wave, const Instruction& i) {
  if (i.row == nullptr) {
    return;
  }
  WaveChecks& checks = *wave.checks;
  const bool moves = (i.row->flags & kMoves) != 0;
  const uint64_t lanes = (i.row->flags & kIgnoresExec) != 0 ? ~uint64_t{0} : wave.exec();
  uint64_t known = ~uint64_t{0};
  if (moves) {
    for (int k = i.results; k < i.operands; ++k) {
      known &= written_lanes(checks, i.operand[k]);
    }
  }
  const int results = i.results;
  for (int k = 0; k < results && k < i.operands; ++k) {
    const Operand& o = i.operand[k];
    if (o.kind == Operand::Kind::vgpr) {
      for (int r = o.index; r < o.index + o.words; ++r) {
        checks.written[r] =
            moves ? (checks.written[r] & ~lanes) | (known & lanes) : checks.written[r] | lanes;
      }
    } else if (o.kind == Operand::Kind::sgpr) {
      for (int r = o.index; r < o.index + o.words && r < 128; ++r) {
        checks.scalar_written[r] = !moves || known != 0;
      }
    }
  }
  if (i.row->name == "v_writelane_b32") {
    // One lane only.
    checks.written[i.operand[0].index] |= uint64_t{1} << (wave.read32(i.operand[2]) & 63);
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

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
  const int first = i.results;
  if (i.reader == Reader::sink) {
    return ~uint64_t{0};
  }
  if (i.reader == Reader::selects) {
    const uint64_t mask = wave.read64(i.operand[3]);
    return ((written_lanes(checks, i.operand[1], 0, 0) & ~mask) |
            (written_lanes(checks, i.operand[2], 0, 0) & mask)) &
           written_lanes(checks, i.operand[3], 0, 1);
  }
  if (i.reader == Reader::selects_scalar) {
    return written_lanes(checks, i.operand[wave.scc != 0 ? 1 : 2], k, k);
  }
  uint64_t known = ~uint64_t{0};
  for (int n = first; n < i.operands; ++n) {
    const Operand& o = i.operand[n];
    if (o.type == Type::pk32) {
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
    } else {
      known &= written_lanes(checks, o, 0, o.words - 1);
    }
  }
  if (row.reads_result != 0 && (row.flags & kKeepsHigh) == 0 && (row.flags & kMoves) == 0) {
    known &= written_lanes(checks, i.operand[0], k, k);
  }
  return known;
}

void forget(WaveChecks& checks, Workgroup& group, const Outstanding& o) {
  for (int r = o.first; o.first >= 0 && r < o.first + o.words; ++r) {
    if (o.scalar) {
      --checks.scalar_pending[r];
      checks.update_scalar(r);
    } else {
      --checks.pending[r];
      checks.update(r);
    }
  }
  uint8_t* state = group.shadow.state.data();
  for (const LdsWrite& write : o.lds) {
    const auto bytes = static_cast<uint32_t>(write.bytes);
    for (uint64_t rest = write.mask; rest != 0; rest &= rest - 1) {
      const uint32_t address = write.address[std::countr_zero(rest)];
      for (uint32_t word = address / 4; word < (address + bytes + 3) / 4; ++word) {
        if ((state[word] & kSplit) != 0) [[unlikely]] {
          for (uint32_t k = 0; k < 4; ++k) {
            const uint32_t byte = 4 * word + k;
            if (byte >= address && byte < address + bytes) {
              group.shadow.bytes[word][k].state = 0;
            }
          }
        }
        state[word] &= static_cast<uint8_t>(~(kArriving | kStraight));
      }
    }
  }
}

}  // namespace

void prepare_checks(Instruction& i) {
  i.touched_words = 0;
  if (i.row == nullptr) {
    return;
  }
  const std::string_view name = i.row->name;
  i.reader = is_sink(*i.row)                                      ? Reader::sink
             : name == "v_cndmask_b32"                            ? Reader::selects
             : name == "s_cselect_b32" || name == "s_cselect_b64" ? Reader::selects_scalar
             : name == "v_pk_mov_b32"                             ? Reader::moves_pair
             : name == "v_writelane_b32"                          ? Reader::writes_lane
                                                                  : Reader::plain;
  std::array<uint64_t, kTouchedWords> masks{};
  for (const Operand& o : std::span(i.operand, i.operands)) {
    const bool scalar = o.kind == Operand::Kind::sgpr;
    for (int r = o.index; (scalar || o.kind == Operand::Kind::vgpr) && r < o.index + o.words; ++r) {
      const int bit = (scalar ? kVectorRegisters : 0) + r;
      if (bit < 64 * kTouchedWords) {
        masks[static_cast<size_t>(bit / 64)] |= uint64_t{1} << (bit % 64);
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
      return;
    }
    i.touched[i.touched_words++] = {static_cast<uint8_t>(word), mask};
  }
}

void check_sources(Wave& wave, const Instruction& i) {
  if (i.row == nullptr || i.operands == 0) {
    return;
  }
  const bool sink = i.reader == Reader::sink;
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
  if (i.reader == Reader::writes_lane) {
    const uint64_t lane = uint64_t{1} << (wave.read32(i.operand[2]) & 63);
    uint64_t& written = checks.written[i.operand[0].index];
    written = written_lanes(checks, i.operand[1], 0, 0) != 0 ? written | lane : written & ~lane;
    checks.update(i.operand[0].index);
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
        checks.update(o.index + k);
      } else if (o.kind == Operand::Kind::sgpr && o.index + k < 128) {
        // Of vector sources, the active lanes count.
        checks.scalar_written[o.index + k] = i.vector ? (known[k] & lanes) == lanes : known[k] != 0;
        checks.update_scalar(o.index + k);
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
                .lds = {}};
  for (int r = first_register; first_register >= 0 && r < first_register + words; ++r) {
    if (scalar) {
      ++checks->scalar_pending[r];
      checks->update_scalar(r);
    } else {
      ++checks->pending[r];
      checks->update(r);
    }
  }
  o.lds.swap(checks->lds);
  (counter == Counter::vm ? checks->vm : checks->lgkm).push_back(std::move(o));
}

void note_wait(Wave& wave, int vm, int lgkm) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr) {
    return;
  }
  while (checks->vm.size() > static_cast<size_t>(vm)) {
    forget(*checks, *wave.group, checks->vm.front());
    checks->vm.pop_front();
  }
  if (lgkm == 0) {
    for (const Outstanding& o : checks->lgkm) {
      forget(*checks, *wave.group, o);
    }
    checks->lgkm.clear();
  } else {
    // In order as long as no scalar load is among them: then any may be the ones left over.
    const bool ordered = std::none_of(checks->lgkm.begin(), checks->lgkm.end(),
                                      [](const Outstanding& o) { return o.any_order; });
    while (ordered && checks->lgkm.size() > static_cast<size_t>(lgkm)) {
      forget(*checks, *wave.group, checks->lgkm.front());
      checks->lgkm.pop_front();
    }
  }
}

namespace {

/// What is wrong with an access to a word or byte that `was` touched like this; true: something.
bool report_conflict(Wave& wave, const Instruction& i, int lane, uint32_t address, bool writes,
                     const LdsByte& was) {
  const LdsShadow& shadow = wave.group->shadow;
  const Clock& clock = wave.checks->clock;
  const int self = wave.index;
  const int writer = was.written & 15;
  const int reader = was.read & 15;
  const int32_t read_step = was.read >> 5;
  const auto where = [&] { return "LDS byte " + std::to_string(address); };
  const auto writer_text = [&] {
    const Code& code = *wave.group->launch->code;
    return code.text(code.instructions()[was.writer]);
  };
  bool wrong = true;
  if (writer != self && clock[writer] < was.written >> 4) {
    report(wave, i, FindingKind::lds_race, lane,
           where() + " is " + (writes ? "written" : "read") + " while wave " +
               std::to_string(writer) + " writes it with no barrier between: " + writer_text());
  } else if ((was.state & kArriving) != 0 && (writer != self || (was.state & kStraight) != 0)) {
    report(wave, i, FindingKind::missing_wait, lane,
           where() + " is used before wave " + std::to_string(writer) +
               " waited for what it is writing there: " + writer_text());
  } else {
    wrong = false;
  }
  if (writes && reader != self && clock[reader] < read_step) {
    report(wave, i, FindingKind::lds_race, lane,
           where() + " is written while wave " + std::to_string(reader) +
               " reads it with no barrier between");
    wrong = true;
  } else if (writes && reader == self && (was.read & 16) != 0 && read_step > shadow.ordered &&
             shadow.met.empty()) {
    report(wave, i, FindingKind::lds_race, lane,
           where() + " is written while another wave reads it with no barrier between");
    wrong = true;
  }
  return wrong;
}

/// How a word or byte is touched after this access.
LdsByte touched(const Wave& wave, const Instruction& i, LdsUse use, LdsByte was) {
  const int self = wave.index;
  const int32_t step = wave.checks->clock[self];
  if (use == LdsUse::read) {
    const bool alone = was.read >> 5 <= wave.group->shadow.ordered || (was.read & 31) == self;
    was.read = alone ? step << 5 | self : was.read | 16;
    return was;
  }
  return {.written = step << 4 | self,
          .read = 0,
          .writer = i.ordinal,
          .state = static_cast<uint8_t>(use == LdsUse::atomic     ? 0
                                        : use == LdsUse::arriving ? kArriving | kStraight
                                                                  : kArriving)};
}

/// One word of LDS, of which `mask` are the bytes: every case there is.
void note_word(Wave& wave, const Instruction& i, int lane, uint32_t word, uint8_t mask,
               LdsUse use) {
  LdsShadow& shadow = wave.group->shadow;
  Clock& clock = wave.checks->clock;
  uint8_t& state = shadow.state[word];
  const bool writes = use != LdsUse::read;
  const auto first = static_cast<uint32_t>(std::countr_zero(mask));
  const LdsByte whole{shadow.written[word], shadow.read[word], shadow.writer[word], state};
  if (use == LdsUse::atomic) {
    // Meets every other wave that came here: their steps so far are ordered before this one's.
    state |= kMet;
    Clock& met = shadow.met[word];
    for (int k = 0; k < kMaxWaves; ++k) {
      met[k] = clock[k] = std::max(met[k], clock[k]);
    }
    ++clock[wave.index];
  } else if ((state & kMet) != 0) {
    Clock& met = shadow.met[word];
    for (int k = 0; k < kMaxWaves; ++k) {
      (writes ? met : clock)[k] = std::max(met[k], clock[k]);
    }
    clock[wave.index] += writes ? 1 : 0;
  } else if (mask != kAllWritten || (state & kSplit) != 0) {
    // Different waves may have different bytes of a word.
    if ((state & kSplit) == 0) {
      state |= kSplit;
      shadow.bytes[word].fill(whole);
    }
    auto& bytes = shadow.bytes[word];
    bool wrong = false;
    for (uint32_t k = 0; k < 4; ++k) {
      if ((mask >> k & 1) != 0) {
        wrong = wrong || report_conflict(wave, i, lane, 4 * word + k, writes, bytes[k]);
        bytes[k] = touched(wave, i, use, bytes[k]);
      }
    }
  } else {
    report_conflict(wave, i, lane, 4 * word + first, writes, whole);
  }
  if ((use == LdsUse::read || use == LdsUse::atomic) && (state & mask) != mask) {
    report(wave, i, FindingKind::uninitialized_lds, lane,
           "LDS byte " + std::to_string(4 * word + first) + " is read and was never written");
  }
  state |= writes ? mask : 0;
  if ((state & kSplit) != 0 && (mask != kAllWritten || !writes)) {
    return;
  }
  // In one piece, or again.
  if ((state & kSplit) != 0) {
    shadow.bytes.erase(word);
  }
  const LdsByte now = touched(wave, i, use, whole);
  shadow.written[word] = now.written;
  shadow.read[word] = now.read;
  shadow.writer[word] = now.writer;
  if (writes) {
    state = static_cast<uint8_t>((state & (kAllWritten | kMet)) | now.state);
  }
}

/// kWords aligned words of a lane, where nothing is unusual. False: something may be.
template <int kWords, bool kWrites>
bool note_words(LdsShadow& shadow, uint32_t word, int32_t step, int32_t self, uint32_t ordinal,
                uint8_t arriving) {
  uint8_t* state = &shadow.state[word];
  int32_t* written = &shadow.written[word];
  int32_t* read = &shadow.read[word];
  const int32_t first = shadow.ordered + 1;  // step that no barrier has ordered yet
  int bad = 0;
  for (int k = 0; k < kWords; ++k) {
    bad |= kWrites ? state[k] & (kMet | kArriving | kSplit) : state[k] ^ kAllWritten;
  }
  for (int k = 0; k < kWords; ++k) {
    bad |= static_cast<int>(written[k] >= first << 4) & static_cast<int>((written[k] & 15) != self);
  }
  if (kWrites) {
    for (int k = 0; k < kWords; ++k) {
      bad |= static_cast<int>(read[k] >= first << 5) & static_cast<int>((read[k] & 31) != self);
    }
  }
  if (bad != 0) {
    return false;
  }
  if (kWrites) {
    for (int k = 0; k < kWords; ++k) {
      state[k] = static_cast<uint8_t>(kAllWritten | arriving);
    }
    for (int k = 0; k < kWords; ++k) {
      written[k] = step << 4 | self;
    }
    for (int k = 0; k < kWords; ++k) {
      shadow.writer[word + static_cast<uint32_t>(k)] = ordinal;
    }
  } else {
    for (int k = 0; k < kWords; ++k) {
      const bool alone = (read[k] < first << 5) | ((read[k] & 31) == self);
      read[k] = alone ? step << 5 | self : read[k] | 16;
    }
  }
  return true;
}

/// Lanes that must be looked at word by word.
template <int kWords, bool kWrites>
uint64_t note_lanes(Wave& wave, const Instruction& i, const uint32_t* addresses, uint64_t mask,
                    uint8_t arriving) {
  LdsShadow& shadow = wave.group->shadow;
  const int32_t self = wave.index;
  const int32_t step = wave.checks->clock[wave.index];
  uint64_t rest = 0;
  for (uint64_t lanes = mask; lanes != 0; lanes &= lanes - 1) {
    const int l = std::countr_zero(lanes);
    const bool known =
        addresses[l] % 4 == 0 &&
        note_words<kWords, kWrites>(shadow, addresses[l] / 4, step, self, i.ordinal, arriving);
    rest |= static_cast<uint64_t>(!known) << l;
  }
  return rest;
}

template <bool kWrites>
uint64_t note_lanes(Wave& wave, const Instruction& i, const uint32_t* addresses, uint64_t mask,
                    int bytes, uint8_t arriving) {
  switch (bytes) {
    case 4:
      return note_lanes<1, kWrites>(wave, i, addresses, mask, arriving);
    case 8:
      return note_lanes<2, kWrites>(wave, i, addresses, mask, arriving);
    case 16:
      return note_lanes<4, kWrites>(wave, i, addresses, mask, arriving);
    default:
      return mask;
  }
}

}  // namespace

void note_lds(Wave& wave, const Instruction& i, const uint32_t* addresses, uint64_t mask, int bytes,
              LdsUse use) {
  WaveChecks* checks = wave.checks;
  if (checks == nullptr || mask == 0) {
    return;
  }
  uint64_t rest = mask;
  if (use == LdsUse::read) {
    rest = note_lanes<false>(wave, i, addresses, mask, bytes, 0);
  } else if (use != LdsUse::atomic) {
    const auto arriving =
        static_cast<uint8_t>(use == LdsUse::arriving ? kArriving | kStraight : kArriving);
    rest = note_lanes<true>(wave, i, addresses, mask, bytes, arriving);
    LdsWrite& write = checks->lds.emplace_back();
    write.mask = mask;
    write.bytes = bytes;
    std::copy_n(addresses, kLanes, write.address.begin());
  }
  for (; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint32_t end = addresses[l] + static_cast<uint32_t>(bytes);
    for (uint32_t word = addresses[l] / 4; word < (end + 3) / 4; ++word) {
      const uint32_t begin_byte = std::max(addresses[l], 4 * word) - 4 * word;
      const uint32_t end_byte = std::min(end, 4 * word + 4) - 4 * word;
      note_word(wave, i, l, word,
                static_cast<uint8_t>(((1U << end_byte) - 1) & ~((1U << begin_byte) - 1)), use);
    }
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
  for (Wave& wave : group.waves) {
    wave.checks->clock.fill(latest);
    ++wave.checks->clock[wave.index];
  }
}

void clear(LdsShadow& shadow, uint32_t bytes) {
  const size_t words = (bytes + 3) / 4;
  shadow.state.assign(words, 0);
  shadow.written.assign(words, 0);
  shadow.read.assign(words, 0);
  shadow.writer.resize(words);
  shadow.bytes.clear();
  shadow.met.clear();
  shadow.ordered = 0;
}

}  // namespace weft::sim

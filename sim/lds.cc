// Local data share: reads, writes, atomics, lane permutations and transposed reads. One row for
// each instruction. CDNA 3 and 4 manuals, chapter 11.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "sim/access.h"
#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

/// Addresses of an instruction's lanes, and the ones that are in bounds.
struct Access {
  uint32_t address[kLanes];
  uint64_t mask;
};

/// Whether a phase's lanes, all of them active and aligned to their size, are in different banks.
bool one_each(const Access& access, const uint8_t* lanes, int count, int bytes, uint32_t banks) {
  if ((bytes & (bytes - 1)) != 0 || bytes < 4) {
    return false;
  }
  const int shift = std::countr_zero(static_cast<uint32_t>(bytes));
  const uint32_t places = 4 * banks >> shift;
  uint64_t seen = 0;
  uint64_t active = ~uint64_t{0};
  uint32_t misaligned = 0;
  for (int k = 0; k < count; ++k) {
    const uint32_t address = access.address[lanes[k]];
    misaligned |= address & static_cast<uint32_t>(bytes - 1);
    active &= access.mask >> lanes[k];
    seen |= uint64_t{1} << ((address >> shift) & (places - 1));
  }
  return std::popcount(seen) == count && misaligned == 0 && (active & 1) != 0;
}

/// Different words in the fullest bank: lanes that read the same word are served together. 0: no
/// lane is active.
int worst_bank(const Access& access, const uint8_t* lanes, int count, int words, uint32_t banks) {
  // Mostly no bank is asked for two words.
  uint32_t first[64];
  uint64_t used = 0;
  bool conflict = false;
  for (int k = 0; k < count && !conflict; ++k) {
    for (int word = 0; (access.mask >> lanes[k] & 1) != 0 && word < words; ++word) {
      const uint32_t index = access.address[lanes[k]] / 4 + static_cast<uint32_t>(word);
      const uint32_t bank = index % banks;
      conflict |= (used >> bank & 1) != 0 && first[bank] != index;
      used |= uint64_t{1} << bank;
      first[bank] = index;
    }
  }
  if (!conflict) {
    return used != 0 ? 1 : 0;
  }
  constexpr int kKept = 8;
  uint32_t seen[64][kKept];
  uint8_t counts[64] = {};
  int worst = 0;
  for (int k = 0; k < count; ++k) {
    const int l = lanes[k];
    if ((access.mask >> l & 1) == 0) {
      continue;
    }
    for (int word = 0; word < words; ++word) {
      const uint32_t index = access.address[l] / 4 + static_cast<uint32_t>(word);
      const uint32_t bank = index % banks;
      const int kept = std::min<int>(counts[bank], kKept);
      if (std::find(seen[bank], seen[bank] + kept, index) != seen[bank] + kept) {
        continue;
      }
      if (kept < kKept) {
        seen[bank][kept] = index;
      }
      ++counts[bank];
      worst = std::max<int>(worst, counts[bank]);
    }
  }
  return worst;
}

/// Cycles of the LDS, and those that the bytes alone would take.
struct BankCycles {
  uint64_t all = 0;
  uint64_t ideal = 0;
};

/// Lanes that one phase serves, and among how many banks of four bytes. 128-bit reads: measured by
/// AMD on gfx942 (ROCm blog "Avoiding LDS bank conflicts on AMD GPUs") and by HipKittens on gfx950
/// (arXiv:2511.08083); the others go in order of the lanes. A phase takes a cycle: 128 bytes, and
/// 256 in reads of gfx950, which has 64 banks for them.
BankCycles bank_cycles(const Access& access, int bytes, bool write, bool gfx950) {
  static constexpr auto kOrders = [] {
    struct {
      std::array<uint8_t, kLanes> plain{}, wide_read{};
    } orders;
    for (int l = 0; l < kLanes; ++l) {
      orders.plain[l] = static_cast<uint8_t>(l);
    }
    // Groups of eight: 0-3 with 20-23, 12-15 with 24-27, 4-7 with 16-19, 8-11 with 28-31. On gfx950
    // two groups go together, which their order here makes lanes 0-3, 12-15, 20-27 and the rest.
    constexpr int kStarts[] = {0, 20, 12, 24, 4, 16, 8, 28};
    for (int half = 0; half < 2; ++half) {
      for (int k = 0; k < 8; ++k) {
        for (int j = 0; j < 4; ++j) {
          orders.wide_read[32 * half + 4 * k + j] =
              static_cast<uint8_t>(32 * half + kStarts[k] + j);
        }
      }
    }
    return orders;
  }();
  const bool wide_read = bytes == 16 && !write;
  const auto& order = wide_read ? kOrders.wide_read : kOrders.plain;
  const bool many_banks = gfx950 && !write && bytes >= 8;
  const uint32_t banks = many_banks ? 64 : 32;
  const int words = std::max(1, bytes / 4);
  const int per_phase = std::min(kLanes / 2, static_cast<int>(banks) / (words == 3 ? 4 : words));
  BankCycles cycles;
  for (int begin = 0; begin < kLanes; begin += per_phase) {
    const uint8_t* lanes_of_phase = &order[static_cast<size_t>(begin)];
    const int worst = one_each(access, lanes_of_phase, per_phase, bytes, banks)
                          ? 1
                          : worst_bank(access, lanes_of_phase, per_phase, words, banks);
    cycles.all += static_cast<uint64_t>(worst);
    cycles.ideal += worst != 0 ? 1 : 0;
  }
  return cycles;
}

/// The same pattern of addresses, wherever it begins, costs the same: the last ones are kept.
void lds_cost(Wave& w, const Instruction& i, const Access& access, int bytes, bool write) {
  struct Known {
    std::array<uint32_t, kLanes> apart;  ///< from the first active lane
    uint64_t mask = 0;
    int bytes = 0;
    uint32_t within = 0;  ///< its word
    bool write = false;
    bool gfx950 = false;
    BankCycles cycles;
  };
  static thread_local std::array<Known, 64> known_patterns;
  Counters& c = w.group->counts->counters;
  const auto lanes = static_cast<uint64_t>(std::popcount(access.mask));
  (write ? c.lds_bytes_written : c.lds_bytes_read) += lanes * static_cast<uint64_t>(bytes);
  if (access.mask == 0) {
    return;
  }
  const uint32_t first = access.address[std::countr_zero(access.mask)];
  const bool gfx950 = w.group->launch->target == Target::gfx950;
  std::array<uint32_t, kLanes> apart;
  for (size_t l = 0; l < kLanes; ++l) {
    apart[l] = access.address[l] - first;
  }
  for (uint64_t rest = ~access.mask; rest != 0; rest &= rest - 1) {
    apart[static_cast<size_t>(std::countr_zero(rest))] = 0;
  }
  Known& known = known_patterns[i.ordinal % known_patterns.size()];
  if (known.mask != access.mask || known.bytes != bytes || known.within != first % 4 ||
      known.write != write || known.gfx950 != gfx950 || known.apart != apart) {
    known = {apart,
             access.mask,
             bytes,
             first % 4,
             write,
             gfx950,
             bank_cycles(access, bytes, write, gfx950)};
  }
  c.lds_cycles += known.cycles.all;
  c.lds_conflict_cycles += known.cycles.all - std::min(known.cycles.all, known.cycles.ideal);
}

/// LDS addresses: the address register plus an offset; lanes beyond the workgroup's LDS are taken
/// out with a finding, as hardware reads 0 and drops writes there.
void reach_from(Wave& w, const Instruction& i, const uint32_t* base, uint32_t offset, int bytes,
                LdsUse use, Access& access, int align, LdsValues values = {}) {
  const uint32_t limit = w.group->lds_bytes;
  const uint32_t room = limit - std::min(limit, static_cast<uint32_t>(bytes));
  const auto within = static_cast<uint32_t>(align - 1);
  access.mask = w.exec();
  uint32_t most = 0;
  uint32_t any = 0;
  for (int l = 0; l < kLanes; ++l) {
    access.address[l] = base[l] + offset;  // wraps: bases may be negative
    most = std::max(most, access.address[l]);
    any |= access.address[l];
  }
  // Nearly always all lanes are in bounds, the inactive ones among them.
  const bool good = most <= room && limit >= static_cast<uint32_t>(bytes) && (any & within) == 0;
  for (uint64_t rest = good ? 0 : access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t address = access.address[l];
    if (address + static_cast<uint64_t>(bytes) > limit) [[unlikely]] {
      report(w, i, FindingKind::lds_out_of_bounds, l,
             "it reaches byte " + std::to_string(address) + " of the workgroup's " +
                 std::to_string(limit) + " bytes of LDS");
      access.mask &= ~(uint64_t{1} << l);
    } else if ((address & within) != 0) [[unlikely]] {
      report(w, i, FindingKind::misaligned, l,
             "LDS address " + std::to_string(address) + " is not a multiple of " +
                 std::to_string(align));
    }
  }
  note_lds(w, i, access.address, access.mask, bytes, use, values);
  lds_cost(w, i, access, bytes, use != LdsUse::read);
  // Stores are no progress: who waits may note something in LDS in each turn. So what is about to
  // be written is watched, too: whoever waits writes the same again.
  if (w.group->watch != nullptr) [[unlikely]] {
    uint64_t places[kLanes];
    for (int l = 0; l < kLanes; ++l) {
      places[l] = reinterpret_cast<uint64_t>(w.group->lds) + access.address[l];
    }
    watch_read(w, places, access.mask, static_cast<size_t>(bytes));
  }
}

void reach(Wave& w, const Instruction& i, int address_at, uint32_t offset, int bytes, LdsUse use,
           Access& access, int align, LdsValues values = {}) {
  reach_from(w, i, w.lanes(i.operand[address_at].index), offset, bytes, use, access, align, values);
}
/// Each lane's own word: four bytes a lane from M0 and the offset on.
void reach_own(Wave& w, const Instruction& i, LdsUse use, Access& access, LdsValues values = {}) {
  uint32_t base[kLanes];
  for (uint32_t l = 0; l < kLanes; ++l) {
    base[l] = (w.s[kM0] & 0xffff) + 4 * l;
  }
  reach_from(w, i, base, static_cast<uint32_t>(i.offset), 4, use, access, 4, values);
}

/// What LDS takes unaligned: this ABI turns unaligned access on, and compilers read and write any
/// address, also by two-address instructions (LLVM, SITargetLowering::
/// allowsMisalignedMemoryAccessesImpl()). Only atomics ask for alignment.
constexpr int kAnyAlignment = 1;

void done(Wave& w, const Instruction& i) {
  note_issue(w, i, Counter::lgkm_in_order, i.results != 0 ? i.operand[0].index : -1,
             i.results != 0 ? i.operand[0].words : 0, false);
}

template <int kWords>
void read_words(Wave& w, const Access& access, uint32_t* out, uint64_t exec) {
  const std::byte* lds = w.group->lds;
  if (access.mask == ~uint64_t{0}) {
    for (int l = 0; l < kLanes; ++l) {
      uint32_t value[kWords];
      std::memcpy(value, lds + access.address[l], sizeof value);
      for (int k = 0; k < kWords; ++k) {
        out[k * kLanes + l] = value[k];
      }
    }
    return;
  }
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    uint32_t value[kWords] = {};
    if ((access.mask >> l & 1) != 0) {
      std::memcpy(value, lds + access.address[l], sizeof value);
    }
    for (int k = 0; k < kWords; ++k) {
      out[k * kLanes + l] = value[k];
    }
  }
}

void read(Wave& w, const Instruction& i) {
  const int bytes = i.row->a;
  const auto kind = static_cast<Moved>(i.row->b);
  Access access;
  reach(w, i, 1, static_cast<uint32_t>(i.offset), bytes, LdsUse::read, access, kAnyAlignment);
  uint32_t* out = w.lanes(i.operand[0].index);
  const uint64_t exec = w.exec();
  if (kind == Moved::words) {
    switch (bytes) {
      case 4:
        read_words<1>(w, access, out, exec);
        break;
      case 8:
        read_words<2>(w, access, out, exec);
        break;
      case 12:
        read_words<3>(w, access, out, exec);
        break;
      default:
        read_words<4>(w, access, out, exec);
        break;
    }
  } else {
    static constexpr std::byte kZeros[4] = {};
    for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
      const int l = std::countr_zero(rest);
      const bool good = (access.mask >> l & 1) != 0;
      out[l] = loaded(kind, good ? w.group->lds + access.address[l] : kZeros, out[l]);
    }
  }
  done(w, i);
}

/// Two words or pairs from two offsets in units of the size, or of 64 times it.
template <int kWords, int kUnits>
void read_two(Wave& w, const Instruction& i) {
  // Both address sets are read before the result is written, which may be the address register.
  alignas(64) uint32_t out[2 * kWords * kLanes];
  const uint64_t exec = w.exec();
  for (int k = 0; k < 2; ++k) {
    Access access;
    const uint32_t offset = (k == 0 ? i.offset0 : i.offset1) * 4U * kWords * kUnits;
    reach(w, i, 1, offset, 4 * kWords, LdsUse::read, access, kAnyAlignment);
    read_words<kWords>(w, access, out + k * kWords * kLanes, exec);
  }
  uint32_t* to = w.lanes(i.operand[0].index);
  for (int word = 0; word < 2 * kWords; ++word) {
    for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
      const int l = std::countr_zero(rest);
      to[word * kLanes + l] = out[word * kLanes + l];
    }
  }
  done(w, i);
}

template <int kWords>
void write_words(Wave& w, const Access& access, const uint32_t* data) {
  std::byte* lds = w.group->lds;
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    uint32_t value[kWords];
    for (int k = 0; k < kWords; ++k) {
      value[k] = data[k * kLanes + l];
    }
    std::memcpy(lds + access.address[l], value, sizeof value);
  }
}

void write_values(Wave& w, const Access& access, const uint32_t* data, int bytes, int shift) {
  std::byte* lds = w.group->lds;
  switch (bytes) {
    case 4:
      return write_words<1>(w, access, data);
    case 8:
      return write_words<2>(w, access, data);
    case 12:
      return write_words<3>(w, access, data);
    case 16:
      return write_words<4>(w, access, data);
    default:
      for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
        const int l = std::countr_zero(rest);
        const uint32_t value = data[l] >> shift;
        std::memcpy(lds + access.address[l], &value, bytes == 1 ? 1 : 2);
      }
  }
}

void write(Wave& w, const Instruction& i) {
  Access access;
  const LdsValues values{w.lanes(i.operand[1].index), i.row->b};
  reach(w, i, 0, static_cast<uint32_t>(i.offset), i.row->a, LdsUse::write, access, kAnyAlignment,
        values);
  write_values(w, access, values.words, i.row->a, values.shift);
  done(w, i);
}

template <int kWords, int kUnits>
void write_two(Wave& w, const Instruction& i) {
  for (int k = 0; k < 2; ++k) {
    Access access;
    const uint32_t offset = (k == 0 ? i.offset0 : i.offset1) * 4U * kWords * kUnits;
    const uint32_t* data = w.lanes(i.operand[1 + k].index);
    reach(w, i, 0, offset, 4 * kWords, LdsUse::write, access, kAnyAlignment, {data});
    write_values(w, access, data, 4 * kWords, 0);
  }
  done(w, i);
}

template <class T, class F>
void atomic(Wave& w, const Instruction& i) {
  const int address_at = i.results;
  Access access;
  reach(w, i, address_at, static_cast<uint32_t>(i.offset), sizeof(T), LdsUse::atomic, access,
        sizeof(T));
  constexpr int kWords = sizeof(T) / 4;
  const auto value = [&](int operand, int l) -> T {
    const uint32_t* p = w.lanes(i.operand[operand].index);
    if constexpr (kWords == 2) {
      return p[l] | static_cast<uint64_t>(p[kLanes + l]) << 32;
    } else {
      return p[l];
    }
  };
  uint32_t* result = i.results != 0 ? w.lanes(i.operand[0].index) : nullptr;
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    std::byte* at = w.group->lds + access.address[l];
    const T old = load_as<T>(at);
    T now;
    if constexpr (std::is_invocable_v<F, T, T, T>) {
      now = F{}(old, value(address_at + 1, l), value(address_at + 2, l));
    } else {
      now = F{}(old, value(address_at + 1, l));
    }
    std::memcpy(at, &now, sizeof now);
    w.group->progressed |= now != old;  // waiting for a lock changes nothing
    if (result != nullptr) {
      result[l] = static_cast<uint32_t>(old);
      if constexpr (kWords == 2) {
        result[kLanes + l] = static_cast<uint32_t>(old >> 32);
      }
    }
  }
  done(w, i);
}

void read_own(Wave& w, const Instruction& i) {
  Access access;
  reach_own(w, i, LdsUse::read, access);
  read_words<1>(w, access, w.lanes(i.operand[0].index), w.exec());
  done(w, i);
}
void write_own(Wave& w, const Instruction& i) {
  Access access;
  const uint32_t* data = w.lanes(i.operand[0].index);
  reach_own(w, i, LdsUse::write, access, {data});
  write_values(w, access, data, 4, 0);
  done(w, i);
}

/// Two words or pairs change places with LDS, at two offsets.
template <class T, int kUnits>
void exchange_two(Wave& w, const Instruction& i) {
  constexpr int kWords = sizeof(T) / 4;
  alignas(64) uint32_t old[2 * kWords * kLanes];
  for (int k = 0; k < 2; ++k) {
    Access access;
    const uint32_t offset = (k == 0 ? i.offset0 : i.offset1) * uint32_t{sizeof(T)} * kUnits;
    reach(w, i, 1, offset, sizeof(T), LdsUse::atomic, access, sizeof(T));
    read_words<kWords>(w, access, old + k * kWords * kLanes, w.exec());
    write_values(w, access, w.lanes(i.operand[2 + k].index), sizeof(T), 0);
  }
  w.group->progressed = true;
  uint32_t* to = w.lanes(i.operand[0].index);
  for (uint64_t rest = w.exec(); rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    for (int word = 0; word < 2 * kWords; ++word) {
      to[word * kLanes + l] = old[word * kLanes + l];
    }
  }
  done(w, i);
}

/// ds_append and ds_consume: a counter at M0's base moves by the number of active lanes; each gets
/// the old value.
template <int kSign>
void count_lanes(Wave& w, const Instruction& i) {
  const uint32_t address = (w.s[kM0] >> 16) + static_cast<uint32_t>(i.offset);
  const uint64_t exec = w.exec();
  if (uint64_t{address} + 4 > w.group->lds_bytes) {
    report(w, i, FindingKind::lds_out_of_bounds, 0,
           "it reaches byte " + std::to_string(address) + " of the workgroup's " +
               std::to_string(w.group->lds_bytes) + " bytes of LDS");
    return;
  }
  note_lds(w, i, &address, 1, 4, LdsUse::atomic);
  const auto old = load_as<uint32_t>(w.group->lds + address);
  const uint32_t now = old + static_cast<uint32_t>(kSign * std::popcount(exec));
  std::memcpy(w.group->lds + address, &now, 4);
  uint32_t* out = w.lanes(i.operand[0].index);
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
    out[std::countr_zero(rest)] = old;
  }
  w.group->progressed = true;
  done(w, i);
}

/// Row::a of the instructions with which lanes exchange data.
enum Exchange : uint8_t {
  kPermute,   ///< data goes to the lane that each lane's address names
  kBpermute,  ///< data comes from there
  kSwizzle,   ///< by a pattern
};

/// Lane whose data ds_swizzle_b32 gives to lane l.
uint32_t swizzled(uint32_t l, uint32_t pattern) {
  if (pattern >= 0xe000) {  // bit reversal for fast Fourier transforms
    const uint32_t mask = pattern & 31;
    uint32_t reversed = 0;
    for (int k = 0; k < 5; ++k) {
      reversed |= (l >> k & 1) << (4 - k);
    }
    return reversed >> std::popcount(mask) | (l & mask) | (l & 32);
  }
  if (pattern >= 0xc000) {  // rotation
    const uint32_t mask = pattern & 31;
    const uint32_t by = (pattern >> 10 & 1) != 0 ? 0 - (pattern >> 5 & 31) : pattern >> 5 & 31;
    return (((l & mask) | ((l + by) & ~mask)) & 31) | (l & 32);
  }
  if ((pattern & 0x8000) != 0) {  // four lanes among themselves
    return (l & ~3U) + (pattern >> (2 * (l & 3)) & 3);
  }
  // and, or, xor of the lane's number in its half
  return (((l & 31 & pattern) | (pattern >> 5 & 31)) ^ (pattern >> 10 & 31)) | (l & 32);
}

void exchange(Wave& w, const Instruction& i) {
  int from[kLanes];
  exchanged_lanes(w, i, from);
  const uint32_t* data = w.lanes(i.operand[i.operands - 1].index);
  uint32_t moved[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    moved[l] = from[l] >= 0 ? data[from[l]] : 0;
  }
  uint32_t* out = w.lanes(i.operand[0].index);
  for (uint64_t rest = w.exec(); rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    out[l] = moved[l];
  }
  w.group->counts->counters.lds_cycles += 2;
  done(w, i);
}

/// gfx950's transposed reads. Within 16 lanes, each reads kBits * kCount bits in a row; laid end to
/// end they are a matrix with rows of 16 elements, and lane l receives column l. (The manual gives
/// which k each instruction brings, section 11.4; the matrix of 16 columns follows from it.)
template <int kBits, int kCount>
void read_transposed(Wave& w, const Instruction& i) {
  constexpr int kBytes = kBits * kCount / 8;
  constexpr int kWords = kBytes / 4;
  constexpr uint32_t kElement = (1U << kBits) - 1;
  Access access;
  reach(w, i, 1, static_cast<uint32_t>(i.offset), kBytes, LdsUse::read, access,
        kWords == 3 ? 4 : 8);
  const uint64_t exec = w.exec();
  uint32_t data[kLanes][kWords + 1] = {};
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    std::memcpy(data[l], w.group->lds + access.address[l], kBytes);
  }
  const auto element = [&](int lane, int k) {
    const int bit = k * kBits;
    const uint64_t pair = data[lane][bit / 32] | static_cast<uint64_t>(data[lane][bit / 32 + 1])
                                                     << 32;
    return static_cast<uint32_t>(pair >> (bit % 32)) & kElement;
  };
  uint32_t* out = w.lanes(i.operand[0].index);
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const int column = l & 15;
    uint64_t result[2] = {};
    for (int row = 0; row < kCount; ++row) {
      const int place = row * 16 + column;  // in the 16 lanes' elements, end to end
      const uint64_t value = element((l & ~15) + place / kCount, place % kCount);
      const int bit = row * kBits;
      result[bit / 64] |= value << (bit % 64);
      if (bit % 64 + kBits > 64) {
        result[1] |= value >> (64 - bit % 64);
      }
    }
    for (int k = 0; k < kWords; ++k) {
      out[k * kLanes + l] = static_cast<uint32_t>(result[k / 2] >> (32 * (k % 2)));
    }
  }
  done(w, i);
}

// --- tables -------------------------------------------------------------------------------------

constexpr Row read_row(std::string_view name, int bytes, Moved kind, Type type) {
  return {.name = name,
          .run = &read,
          .cost = Class::lds,
          .types = {type, Type::b32},
          .reads_result = static_cast<uint8_t>(kind >= Moved::u8_low ? 1 : 0),
          .a = static_cast<uint8_t>(bytes),
          .b = static_cast<uint8_t>(kind)};
}
constexpr Row write_row(std::string_view name, int bytes, int shift, Type type) {
  return {.name = name,
          .run = &write,
          .cost = Class::lds,
          .results = 0,
          .types = {Type::b32, type},
          .a = static_cast<uint8_t>(bytes),
          .b = static_cast<uint8_t>(shift)};
}
constexpr Row lds_row(std::string_view name, Execute run, int results, Type first, Type second,
                      Type third, uint8_t flags = 0) {
  return {.name = name,
          .run = run,
          .cost = Class::lds,
          .results = static_cast<uint8_t>(results),
          .types = {first, second, third},
          .flags = flags};
}
template <class T, class F>
constexpr Row atomic_row(std::string_view name, bool returns, F) {
  constexpr Type kType = sizeof(T) == 8 ? Type::b64 : Type::b32;
  Row row = returns ? lds_row(name, &atomic<T, F>, 1, kType, Type::b32, kType)
                    : lds_row(name, &atomic<T, F>, 0, Type::b32, kType, kType);
  if (returns) {
    row.types[3] = kType;
  }
  return row;
}

constexpr Row exchange_lanes_row(std::string_view name, Exchange kind, Type data) {
  Row row = lds_row(name, &exchange, 1, Type::b32, Type::b32, data);
  row.a = kind;
  return row;
}

constexpr Row exchange_row(std::string_view name, Execute run, Type data, Type both) {
  Row row = lds_row(name, run, 1, both, Type::b32, data);
  row.types[3] = data;
  return row;
}

#define WEFT_BOTH(T, name, rtn, suffix, ...)                \
  atomic_row<T>("ds_" name "_" suffix, false, __VA_ARGS__), \
      atomic_row<T>("ds_" rtn "_rtn_" suffix, true, __VA_ARGS__)
#define WEFT_ATOMIC(T, name, suffix, ...) WEFT_BOTH(T, name, name, suffix, __VA_ARGS__)

#define WEFT_INTEGER_ATOMICS(T, Ops, u, s, b)                                       \
  WEFT_ATOMIC(T, "add", u, Ops::add), WEFT_ATOMIC(T, "sub", u, Ops::sub),           \
      WEFT_ATOMIC(T, "rsub", u, [](T old, T x) { return x - old; }),                \
      WEFT_ATOMIC(T, "inc", u, Ops::inc), WEFT_ATOMIC(T, "dec", u, Ops::dec),       \
      WEFT_ATOMIC(T, "min", s, Ops::smin), WEFT_ATOMIC(T, "max", s, Ops::smax),     \
      WEFT_ATOMIC(T, "min", u, Ops::umin), WEFT_ATOMIC(T, "max", u, Ops::umax),     \
      WEFT_ATOMIC(T, "and", b, Ops::bit_and), WEFT_ATOMIC(T, "or", b, Ops::bit_or), \
      WEFT_ATOMIC(T, "xor", b, Ops::bit_xor),                                       \
      WEFT_ATOMIC(T, "mskor", b, [](T old, T m, T x) { return (old & ~m) | x; }),   \
      atomic_row<T>("ds_wrxchg_rtn_" b, true, Ops::swap),                           \
      WEFT_ATOMIC(T, "cmpst", b, [](T old, T c, T x) { return old == c ? x : old; })

#define WEFT_FLOAT_ATOMICS(T, F, f)                                                           \
  WEFT_ATOMIC(                                                                                \
      T, "add", f,                                                                            \
      [](T old, T x) {                                                                        \
        return std::bit_cast<T>(static_cast<F>(std::bit_cast<F>(old) + std::bit_cast<F>(x))); \
      }),                                                                                     \
      WEFT_ATOMIC(                                                                            \
          T, "min", f,                                                                        \
          [](T old, T x) { return std::bit_cast<F>(x) < std::bit_cast<F>(old) ? x : old; }),  \
      WEFT_ATOMIC(                                                                            \
          T, "max", f,                                                                        \
          [](T old, T x) { return std::bit_cast<F>(x) > std::bit_cast<F>(old) ? x : old; }),  \
      WEFT_ATOMIC(T, "cmpst", f, [](T old, T c, T x) {                                        \
        return std::bit_cast<F>(old) == std::bit_cast<F>(c) ? x : old;                        \
      })

const Row kLdsRows[] = {
    read_row("ds_read_b32", 4, Moved::words, Type::b32),
    read_row("ds_read_b64", 8, Moved::words, Type::b64),
    read_row("ds_read_b96", 12, Moved::words, Type::b96),
    read_row("ds_read_b128", 16, Moved::words, Type::b128),
    read_row("ds_read_u8", 1, Moved::u8, Type::b32),
    read_row("ds_read_i8", 1, Moved::s8, Type::b32),
    read_row("ds_read_u16", 2, Moved::u16, Type::b32),
    read_row("ds_read_i16", 2, Moved::s16, Type::b32),
    read_row("ds_read_u8_d16", 1, Moved::u8_low, Type::b32),
    read_row("ds_read_u8_d16_hi", 1, Moved::u8_high, Type::b32),
    read_row("ds_read_i8_d16", 1, Moved::s8_low, Type::b32),
    read_row("ds_read_i8_d16_hi", 1, Moved::s8_high, Type::b32),
    read_row("ds_read_u16_d16", 2, Moved::b16_low, Type::b32),
    read_row("ds_read_u16_d16_hi", 2, Moved::b16_high, Type::b32),
    lds_row("ds_read2_b32", &read_two<1, 1>, 1, Type::b64, Type::b32, Type::none),
    lds_row("ds_read2_b64", &read_two<2, 1>, 1, Type::b128, Type::b32, Type::none),
    lds_row("ds_read2st64_b32", &read_two<1, 64>, 1, Type::b64, Type::b32, Type::none),
    lds_row("ds_read2st64_b64", &read_two<2, 64>, 1, Type::b128, Type::b32, Type::none),
    write_row("ds_write_b8", 1, 0, Type::b32),
    write_row("ds_write_b16", 2, 0, Type::b32),
    write_row("ds_write_b8_d16_hi", 1, 16, Type::b32),
    write_row("ds_write_b16_d16_hi", 2, 16, Type::b32),
    write_row("ds_write_b32", 4, 0, Type::b32),
    write_row("ds_write_b64", 8, 0, Type::b64),
    write_row("ds_write_b96", 12, 0, Type::b96),
    write_row("ds_write_b128", 16, 0, Type::b128),
    lds_row("ds_write2_b32", &write_two<1, 1>, 0, Type::b32, Type::b32, Type::b32),
    lds_row("ds_write2_b64", &write_two<2, 1>, 0, Type::b32, Type::b64, Type::b64),
    lds_row("ds_write2st64_b32", &write_two<1, 64>, 0, Type::b32, Type::b32, Type::b32),
    lds_row("ds_write2st64_b64", &write_two<2, 64>, 0, Type::b32, Type::b64, Type::b64),
    exchange_lanes_row("ds_permute_b32", kPermute, Type::b32),
    exchange_lanes_row("ds_bpermute_b32", kBpermute, Type::b32),
    exchange_lanes_row("ds_swizzle_b32", kSwizzle, Type::none),
    lds_row("ds_append", &count_lanes<1>, 1, Type::b32, Type::none, Type::none),
    lds_row("ds_consume", &count_lanes<-1>, 1, Type::b32, Type::none, Type::none),
    lds_row(
        "ds_nop", [](Wave&, const Instruction&) {}, 0, Type::none, Type::none, Type::none),
    lds_row("ds_read_b64_tr_b16", &read_transposed<16, 4>, 1, Type::b64, Type::b32, Type::none,
            kOnlyGfx950),
    lds_row("ds_read_b64_tr_b8", &read_transposed<8, 8>, 1, Type::b64, Type::b32, Type::none,
            kOnlyGfx950),
    lds_row("ds_read_b64_tr_b4", &read_transposed<4, 16>, 1, Type::b64, Type::b32, Type::none,
            kOnlyGfx950),
    lds_row("ds_read_b96_tr_b6", &read_transposed<6, 16>, 1, Type::b96, Type::b32, Type::none,
            kOnlyGfx950),
    WEFT_INTEGER_ATOMICS(uint32_t, Atomic32, "u32", "i32", "b32"),
    WEFT_INTEGER_ATOMICS(uint64_t, Atomic64, "u64", "i64", "b64"),
    WEFT_FLOAT_ATOMICS(uint32_t, float, "f32"),
    WEFT_FLOAT_ATOMICS(uint64_t, double, "f64"),
    WEFT_ATOMIC(uint32_t, "pk_add", "f16", kAtomicAddF16),
    WEFT_ATOMIC(uint32_t, "pk_add", "bf16", kAtomicAddBf16),
    atomic_row<uint32_t>(
        "ds_wrap_rtn_b32", true,
        [](uint32_t old, uint32_t x, uint32_t y) { return old >= x ? old - x : old + y; }),
    // Each half only where its highest bit says so, and without that bit.
    atomic_row<uint64_t>("ds_condxchg32_rtn_b64", true,
                         [](uint64_t old, uint64_t x) {
                           constexpr uint64_t kLow = 0x7fffffff;
                           const uint64_t low = (x >> 31 & 1) != 0 ? x & kLow : old & 0xffffffff;
                           const uint64_t high = x >> 63 != 0 ? x >> 32 & kLow : old >> 32;
                           return high << 32 | low;
                         }),
    lds_row("ds_read_addtid_b32", &read_own, 1, Type::b32, Type::none, Type::none),
    lds_row("ds_write_addtid_b32", &write_own, 0, Type::b32, Type::none, Type::none),
    exchange_row("ds_wrxchg2_rtn_b32", &exchange_two<uint32_t, 1>, Type::b32, Type::b64),
    exchange_row("ds_wrxchg2st64_rtn_b32", &exchange_two<uint32_t, 64>, Type::b32, Type::b64),
    exchange_row("ds_wrxchg2_rtn_b64", &exchange_two<uint64_t, 1>, Type::b64, Type::b128),
    exchange_row("ds_wrxchg2st64_rtn_b64", &exchange_two<uint64_t, 64>, Type::b64, Type::b128),
};

}  // namespace

std::span<const Row> lds_rows() { return kLdsRows; }

void exchanged_lanes(Wave& wave, const Instruction& i, int* from) {
  const uint64_t exec = wave.exec();
  const auto named = [&](int l) {
    const uint32_t address = wave.lanes(i.operand[1].index)[l] + static_cast<uint32_t>(i.offset);
    return static_cast<int>(address / 4 % kLanes);
  };
  std::fill_n(from, kLanes, -1);
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    if (i.row->a == kPermute) {
      from[named(l)] = l;
      continue;
    }
    const int other =
        i.row->a == kBpermute
            ? named(l)
            : static_cast<int>(swizzled(static_cast<uint32_t>(l), static_cast<uint32_t>(i.offset)));
    from[l] = (exec >> other & 1) != 0 ? other : -1;
  }
}

}  // namespace weft::sim

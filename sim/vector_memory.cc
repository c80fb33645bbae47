// Vector memory: flat, global, scratch and buffer loads, stores and atomics, and loads straight to
// LDS. One row for each instruction. Addressing: CDNA 3 manual, chapters 9 and 10.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>
#include <utility>

#include "sim/access.h"
#include "sim/buffer_format.h"
#include "sim/caches.h"
#include "sim/instruction.h"
#include "sim/memory.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

enum class Space : uint8_t { flat, global, scratch, buffer };

/// Where each lane goes: host addresses, and for buffers which of a lane's words are in bounds.
struct Access {
  uint64_t address[kLanes];  ///< when `listed`
  bool listed = true;        ///< otherwise `row` says all of it
  uint64_t mask = 0;
  uint64_t global = 0;  ///< those of the mask that reach global memory
  /// Buffers only: words of lane l that are within the descriptor's bounds; others read 0.
  bool partial = false;
  uint8_t words[kLanes];
  LaneRow row;  ///< of `global`, if they are in one

  void list() {
    if (!listed) {
      row.list(address);
      listed = true;
    }
  }
  GlobalAccess to_global(int bytes) const {
    return {address, global, bytes, partial && bytes >= 4 ? words : nullptr, row};
  }
};

/// How far a load or store reaches; an atomic's sc0 says that it returns the old value.
Scope scope_of(const Instruction& i) {
  return static_cast<Scope>((i.sc0 ? 1 : 0) | (i.sc1 ? 2 : 0));
}

/// Lane values of an operand that is a VGPR, or one value for all.
struct LaneSource {
  const uint32_t* lanes;
  uint32_t value;
  uint32_t operator[](int l) const { return lanes != nullptr ? lanes[l] : value; }
};
LaneSource lane_source(Wave& w, const Operand& o) {
  if (o.kind == Operand::Kind::vgpr) {
    return {w.lanes(o.index), 0};
  }
  return {nullptr, o.kind == Operand::Kind::none ? 0 : w.read32(o)};
}

void scratch_addresses(Wave& w, const Instruction& i, Access& access, int bytes, bool write) {
  const uint32_t size = w.group->launch->scratch_bytes;
  uint64_t mask = access.mask;
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint64_t offset = access.address[l];
    if (offset > size || size - offset < static_cast<uint64_t>(bytes)) {
      report(w, i, FindingKind::out_of_bounds, l,
             "it reaches byte " + std::to_string(static_cast<int64_t>(offset)) + " of " +
                 std::to_string(size) + " bytes of scratch" +
                 (w.group->launch->dynamic_stack
                      ? ", the stack of a lane; hipDeviceSetLimit(hipLimitStackSize) sets it"
                      : ""));
      mask &= ~(uint64_t{1} << l);
      continue;
    }
    if (write) {
      w.scratch_begin = std::min(w.scratch_begin, static_cast<uint32_t>(offset));
      w.scratch_end =
          std::max(w.scratch_end, static_cast<uint32_t>(offset) + static_cast<uint32_t>(bytes));
    }
    access.address[l] =
        reinterpret_cast<uint64_t>(w.scratch) + static_cast<uint64_t>(l) * size + offset;
  }
  access.mask = mask;
  watch_read(w, access.address, mask, static_cast<size_t>(bytes));
  w.group->counts->counters.scratch_bytes +=
      static_cast<uint64_t>(std::popcount(mask)) * static_cast<uint64_t>(bytes);
}

/// LDS addresses of a flat instruction's lanes.
void shared_addresses(Wave& w, const Instruction& i, Access& access, uint64_t lanes, int bytes,
                      bool read, bool write) {
  uint32_t offsets[kLanes] = {};
  for (uint64_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const auto offset = static_cast<uint32_t>(access.address[l]);
    if (uint64_t{offset} + static_cast<uint64_t>(bytes) > w.group->lds_bytes) {
      report(w, i, FindingKind::lds_out_of_bounds, l,
             "it reaches byte " + std::to_string(offset) + " of " +
                 std::to_string(w.group->lds_bytes) + " bytes of LDS");
      access.mask &= ~(uint64_t{1} << l);
      continue;
    }
    offsets[l] = offset;
    access.address[l] = reinterpret_cast<uint64_t>(w.group->lds) + offset;
  }
  watch_read(w, access.address, access.mask & lanes, static_cast<size_t>(bytes));
  const LdsUse use = !write ? LdsUse::read : read ? LdsUse::atomic : LdsUse::write;
  const auto kind = static_cast<Moved>(i.row->b);
  const bool high = kind == Moved::u8_high || kind == Moved::b16_high;
  note_lds(
      w, i, offsets, access.mask & lanes, bytes, use,
      use == LdsUse::write ? LdsValues{w.lanes(i.operand[1].index), high ? 16 : 0} : LdsValues{});
}

/// Whether all lanes are in a row of global memory that ends by `most` at the latest, as nearly
/// always: then nothing else is to be known of their addresses, which are those of row_of(). (LDS
/// and scratch, for flat instructions, are at addresses that no allocation has.)
bool in_row(Wave& w, const Instruction& i, const uint32_t* low, const uint32_t* high, uint64_t base,
            uint64_t most, int bytes, bool read, bool write, Access& access) {
  access.row = row_of(low, high, base, access.mask, static_cast<uint64_t>(bytes));
  if (!access.row.describes(access.mask) || access.row.end > most || w.group->watch != nullptr ||
      !reach_row(w, i, access.row, bytes, read, write)) {
    access.row = {};
    return false;
  }
  access.global = access.mask;
  access.listed = false;
  return true;
}

/// Addresses of a raw buffer of so many bytes, and the active lanes that are within it. False where
/// a lane with several words may be partly in it.
bool raw_addresses(Access& access, const LaneSource& offset, uint64_t base, uint32_t immediate,
                   uint64_t records, int bytes, bool single) {
  uint32_t same[kLanes];
  if (offset.lanes == nullptr) {
    std::fill_n(same, kLanes, offset.value);
  }
  const uint64_t beyond =
      buffer_addresses(offset.lanes != nullptr ? offset.lanes : same, immediate, base,
                       static_cast<int64_t>(records) - bytes, access.address);
  for (uint64_t rest = single ? 0 : beyond & access.mask; rest != 0; rest &= rest - 1) {
    if (access.address[std::countr_zero(rest)] - base < records) {
      return false;
    }
  }
  access.partial = false;
  access.mask &= ~beyond;
  return true;
}

/// Lane addresses. `first`: the first of the printed address operands. `whole`: a lane's bytes are
/// in a buffer's bounds together or not at all.
template <Space kSpace>
void addresses(Wave& w, const Instruction& i, int first, int second, int bytes, bool read,
               bool write, Access& access, bool whole = false) {
  constexpr uint64_t kAnywhere = ~uint64_t{0};
  access.mask = w.exec();
  w.group->counts->written = false;
  const Operand& va = i.operand[first];
  if constexpr (kSpace == Space::global || kSpace == Space::flat) {
    const auto offset = static_cast<int64_t>(i.offset);
    bool scalar_base = false;
    if constexpr (kSpace == Space::global) {
      const Operand& sa = i.operand[second];
      if (sa.kind == Operand::Kind::sgpr) {
        scalar_base = true;
        const uint64_t base = w.read64(sa) + static_cast<uint64_t>(offset);
        const LaneSource lanes = lane_source(w, va);
        if (lanes.lanes != nullptr &&
            in_row(w, i, lanes.lanes, nullptr, base, kAnywhere, bytes, read, write, access)) {
          return;
        }
        for (int l = 0; l < kLanes; ++l) {
          access.address[l] = base + lanes[l];
        }
      }
    }
    if (!scalar_base) {
      const uint32_t* low = w.lanes(va.index);
      if (in_row(w, i, low, low + kLanes, static_cast<uint64_t>(offset), kAnywhere, bytes, read,
                 write, access)) {
        return;
      }
      wide_addresses(low, low + kLanes, static_cast<uint64_t>(offset), access.address);
    }
    if constexpr (kSpace == Space::flat) {
      uint64_t shared = 0;
      uint64_t scratch = 0;
      for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
        const int l = std::countr_zero(rest);
        const uint64_t top = access.address[l] >> 32 << 32;
        shared |= static_cast<uint64_t>(top == kSharedBase) << l;
        scratch |= static_cast<uint64_t>(top == kPrivateBase) << l;
      }
      if ((shared | scratch) != 0) {
        const uint64_t global = access.mask & ~(shared | scratch);
        uint64_t reached =
            reach_lanes(w, i, access.address, global, bytes, read, write, access.row);
        access.global = reached;
        access.mask = shared;
        shared_addresses(w, i, access, shared, bytes, read, write);
        reached |= access.mask;
        access.mask = scratch;
        for (uint64_t rest = scratch; rest != 0; rest &= rest - 1) {
          access.address[std::countr_zero(rest)] &= 0xffffffff;
        }
        scratch_addresses(w, i, access, bytes, write);
        access.mask |= reached;
        return;
      }
    }
    access.mask = reach_lanes(w, i, access.address, access.mask, bytes, read, write, access.row);
    access.global = access.mask;
  } else if constexpr (kSpace == Space::scratch) {
    const LaneSource lanes = lane_source(w, va);
    const LaneSource scalar = lane_source(w, i.operand[second]);
    for (int l = 0; l < kLanes; ++l) {
      access.address[l] = static_cast<uint64_t>(static_cast<int64_t>(
          static_cast<int32_t>(lanes[l] + scalar[0] + static_cast<uint32_t>(i.offset))));
    }
    scratch_addresses(w, i, access, bytes, write);
  } else {
    // Buffer: vaddr, descriptor, soffset.
    const Operand& resource = i.operand[first + 1];
    const uint32_t* d = &w.s[resource.index];
    const uint64_t base = (d[0] | static_cast<uint64_t>(d[1]) << 32) & 0xffffffffffff;
    const bool swizzle = (d[1] >> 31) != 0;
    const uint64_t records = d[2];
    const bool add_lane = (d[3] >> 23 & 1) != 0;
    const uint32_t scalar_offset = w.read32(i.operand[first + 2]);
    const uint64_t begin = base + scalar_offset;
    const bool raw = !swizzle && !add_lane && !i.idxen;
    if (raw && i.offen && va.kind == Operand::Kind::vgpr &&
        in_row(w, i, w.lanes(va.index), nullptr, begin + static_cast<uint32_t>(i.offset),
               begin + records, bytes, read, write, access)) {
      return;
    }
    // Where lanes are added and no format is asked for, the format's bits widen the stride (CDNA 3
    // and 4 manuals, table "V# Buffer Resource Constant Fields for Addressing").
    const uint32_t stride =
        (d[1] >> 16 & 0x3fff) | (add_lane && !whole ? (d[3] >> 15 & 15) << 14 : 0);
    LaneSource index{nullptr, 0};
    LaneSource offset{nullptr, 0};
    if (va.kind == Operand::Kind::vgpr) {
      if (i.idxen) {
        index = {w.lanes(va.index), 0};
      }
      if (i.offen) {
        offset = {w.lanes(va.index + (i.idxen ? 1 : 0)), 0};
      }
    }
    const bool structured = !add_lane && stride != 0 && i.idxen;
    const bool unbounded = add_lane && !i.idxen;
    const int words = std::max(1, bytes / 4);
    if (raw && raw_addresses(access, offset, begin, static_cast<uint32_t>(i.offset), records, bytes,
                             words == 1)) {
      access.mask = reach_lanes(w, i, access.address, access.mask, bytes, read, write, access.row);
      access.global = access.mask;
      return;
    }
    uint64_t in_bounds = 0;
    const uint64_t each = bytes < 4 ? static_cast<uint64_t>(bytes) : 4;
    const bool all_or_nothing = whole || (read && write);  // atomics
    access.partial = false;
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t n = index[l] + static_cast<uint64_t>(add_lane ? l : 0);
      const uint64_t at = offset[l] + static_cast<uint64_t>(static_cast<uint32_t>(i.offset));
      uint64_t place = n * stride + at;
      if (swizzle) {
        const uint64_t index_stride = uint64_t{8} << (d[3] >> 21 & 3);
        // These descriptors have no element size: it is a dword. The bits that held one before,
        // 116:115, are about unmapped pages (manuals, table "Buffer Resource Descriptor"; LLVM,
        // SIInstrInfo::getScratchRsrcWords23(): "GFX9 doesn't have ELEMENT_SIZE").
        constexpr uint64_t kElement = 4;
        place = (n / index_stride * stride + at / kElement * kElement) * index_stride +
                n % index_stride * kElement + at % kElement;
      }
      access.address[l] = begin + place;
      int good = words;
      if (structured) {
        good = n < records ? words : 0;
      } else if (!unbounded) {
        // Word by word: those that lie whole below the size. The scalar offset does not count.
        const uint64_t fit = place >= records ? 0 : (records - place) / each;
        good = static_cast<int>(std::min<uint64_t>(fit, static_cast<uint64_t>(words)));
        if (all_or_nothing && good < words) {
          good = 0;
        }
      }
      access.words[l] = static_cast<uint8_t>(good);
      in_bounds |= static_cast<uint64_t>(good > 0) << l;
      access.partial |= good != words;
    }
    const uint64_t wanted = access.mask & in_bounds;
    if (!access.partial || words == 1) {
      access.mask = reach_lanes(w, i, access.address, wanted, bytes, read, write, access.row);
      access.global = access.mask;
      return;
    }
    uint64_t reached = 0;
    for (int good = 1; good <= words; ++good) {
      uint64_t lanes = 0;
      for (int l = 0; l < kLanes; ++l) {
        lanes |= static_cast<uint64_t>(access.words[l] == good) << l;
      }
      if ((lanes & wanted) != 0) {
        reached |=
            reach_lanes(w, i, access.address, lanes & wanted, 4 * good, read, write, access.row);
      }
    }
    access.mask = reached;
    access.global = reached;
    access.row = {};
  }
}

Caches::Unit unit_of(const Wave& w) { return {w.group->xcd, w.group->compute_unit}; }

/// With caches that keep old copies: lanes' bytes as the caches have them, in place of memory's.
struct Staged {
  alignas(16) std::byte bytes[kLanes][16];
  uint64_t address[kLanes];  ///< in memory
};

void load_staged(Wave& w, const Instruction& i, Access& access, int bytes, Staged& staged) {
  access.list();
  for (uint64_t rest = access.global; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    staged.address[l] =
        std::exchange(access.address[l], reinterpret_cast<uint64_t>(staged.bytes[l]));
    w.group->launch->caches->load(unit_of(w), scope_of(i), staged.address[l],
                                  access.to_global(bytes).bytes_of(l), staged.bytes[l]);
  }
}
/// What is stored goes to `staged` first,
void stage_store(Access& access, Staged& staged) {
  access.list();
  for (uint64_t rest = access.global; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    staged.address[l] =
        std::exchange(access.address[l], reinterpret_cast<uint64_t>(staged.bytes[l]));
  }
}
/// and from there to the caches.
void store_staged(Wave& w, const Instruction& i, const Access& access, int bytes,
                  const Staged& staged) {
  for (uint64_t rest = access.global; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    w.group->launch->caches->store(unit_of(w), scope_of(i), staged.address[l],
                                   access.to_global(bytes).bytes_of(l), staged.bytes[l]);
  }
}

/// What a load's lanes see, where this launch stored on the lines that they reach. A load that
/// waits for another's store may see it though there was none yet when its lines were looked at.
void note_loaded(Wave& w, const Instruction& i, const Access& access, int bytes,
                 const Staged& staged) {
  if (w.group->counts->written || i.sc1) {
    GlobalAccess global = access.to_global(bytes);
    if (w.group->launch->caches != nullptr) {
      global.addresses = staged.address;
    }
    note_load(w, i, global, scope_of(i));
  }
}

/// Reading at device scope, or invalidating caches, is what waiting for another workgroup looks
/// like.
void note_sharing(Wave& w, const Instruction& i) {
  if (i.sc1) {
    w.group->shares = true;
  }
}

/// One or two aligned words are what other workgroups may be waiting for: never in pieces.
template <int kWords>
void load_lane(uint64_t address, uint32_t* value) {
  if constexpr (kWords == 2) {
    if (address % 8 == 0) {
      const uint64_t both =
          __atomic_load_n(reinterpret_cast<const uint64_t*>(address), __ATOMIC_RELAXED);
      value[0] = static_cast<uint32_t>(both);
      value[1] = static_cast<uint32_t>(both >> 32);
      return;
    }
  }
  std::memcpy(value, reinterpret_cast<const void*>(address), size_t{4} * kWords);
}
template <int kWords>
void store_lane(uint64_t address, const uint32_t* value) {
  if constexpr (kWords == 1) {
    if (address % 4 == 0) {
      __atomic_store_n(reinterpret_cast<uint32_t*>(address), value[0], __ATOMIC_RELAXED);
      return;
    }
  } else if constexpr (kWords == 2) {
    if (address % 8 == 0) {
      __atomic_store_n(reinterpret_cast<uint64_t*>(address),
                       value[0] | static_cast<uint64_t>(value[1]) << 32, __ATOMIC_RELAXED);
      return;
    }
  }
  std::memcpy(reinterpret_cast<void*>(address), value, size_t{4} * kWords);
}

/// Of all lanes, in a row.
template <int kWords>
void load_row(const LaneRow& row, uint32_t* out) {
  const auto* from = reinterpret_cast<const void*>(row.begin);
  if (kWords == 1 && row.step == 4) {
    std::memcpy(out, from, sizeof(Lanes));
  } else if (kWords == 1 && row.step == 8 && row.begin % 4 == 0) {
    load_every_other(from, out);
  } else if (kWords == 1 && row.step == 16 && row.begin % 4 == 0) {
    load_every_fourth(from, out);
  } else if (kWords == 2 && row.step == 8 && row.begin % 8 == 0) {
    load_pairs(from, out);
  } else if (kWords == 4 && row.step == 16) {
    load_quads(from, out);
  } else {
    for (int l = 0; l < kLanes; ++l) {
      uint32_t value[kWords];
      load_lane<kWords>(row.begin + static_cast<uint64_t>(l) * row.step, value);
      for (int k = 0; k < kWords; ++k) {
        out[k * kLanes + l] = value[k];
      }
    }
  }
}
template <int kWords>
void store_row(const LaneRow& row, const uint32_t* data) {
  auto* to = reinterpret_cast<void*>(row.begin);
  if (kWords == 1 && row.step == 4) {
    std::memcpy(to, data, sizeof(Lanes));
  } else if (kWords == 1 && row.step == 8 && row.begin % 4 == 0) {
    store_every_other(data, to);
  } else if (kWords == 1 && row.step == 16 && row.begin % 4 == 0) {
    store_every_fourth(data, to);
  } else if (kWords == 2 && row.step == 8 && row.begin % 8 == 0) {
    store_pairs(data, to);
  } else if (kWords == 4 && row.step == 16) {
    store_quads(data, to);
  } else {
    for (int l = 0; l < kLanes; ++l) {
      uint32_t value[kWords];
      for (int k = 0; k < kWords; ++k) {
        value[k] = data[k * kLanes + l];
      }
      store_lane<kWords>(row.begin + static_cast<uint64_t>(l) * row.step, value);
    }
  }
}

template <int kWords>
void load_words(Access& access, uint64_t exec, uint32_t* out) {
  if (!access.listed && ~access.mask == 0) {
    load_row<kWords>(access.row, out);
    return;
  }
  access.list();
  if (access.mask == ~uint64_t{0} && !access.partial) {
    for (int l = 0; l < kLanes; ++l) {
      uint32_t value[kWords];
      load_lane<kWords>(access.address[l], value);
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
      if (access.partial && access.words[l] != kWords) {
        std::memcpy(value, reinterpret_cast<const void*>(access.address[l]),
                    size_t{4} * access.words[l]);
      } else {
        load_lane<kWords>(access.address[l], value);
      }
    }
    for (int k = 0; k < kWords; ++k) {
      out[k * kLanes + l] = value[k];
    }
  }
}

Counter counter_of(Space) { return Counter::vm; }

/// A load straight to LDS: lane l's bytes go to M0 + offset + l * bytes.
void load_to_lds(Wave& w, const Instruction& i, Access& access, Moved kind, int bytes) {
  access.list();
  const uint32_t base =
      (w.s[kM0] & (w.group->launch->target == Target::gfx950 ? 0x3fffc : 0xfffc)) +
      static_cast<uint32_t>(i.offset);
  const uint32_t slot = static_cast<uint32_t>(std::max(bytes, 4));
  const uint64_t exec = w.exec();
  uint32_t places[kLanes] = {};
  uint32_t values[4 * kLanes];
  uint64_t reached = exec;
  for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    const uint32_t to = base + static_cast<uint32_t>(l) * slot;
    if (uint64_t{to} + slot > w.group->lds_bytes) {  // an offset below M0 is far above LDS
      report(w, i, FindingKind::lds_out_of_bounds, l,
             "it writes byte " + std::to_string(to) + " of " + std::to_string(w.group->lds_bytes) +
                 " bytes of LDS");
      reached &= ~(uint64_t{1} << l);
      continue;
    }
    places[l] = to;
    uint32_t data[4] = {};
    if ((access.mask >> l & 1) != 0) {
      const auto* from = reinterpret_cast<const void*>(access.address[l]);
      if (kind == Moved::words) {
        std::memcpy(data, from, access.partial ? size_t{4} * access.words[l] : size_t(bytes));
      } else {
        data[0] = loaded(kind, from, 0);
      }
    }
    for (int k = 0; k < 4; ++k) {
      values[k * kLanes + l] = data[k];
    }
  }
  note_lds(w, i, places, reached, static_cast<int>(slot), LdsUse::arriving, {values});
  for (uint64_t rest = reached; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    for (uint32_t k = 0; k < slot / 4; ++k) {
      std::memcpy(w.group->lds + places[l] + 4 * k, &values[k * kLanes + static_cast<uint32_t>(l)],
                  4);
    }
  }
  Counters& c = w.group->counts->counters;
  const auto lanes = static_cast<uint64_t>(std::popcount(exec));
  c.lds_bytes_written += lanes * slot;
  c.lds_cycles += (lanes * slot + 127) / 128;
  w.group->progressed = true;
}

/// What lanes received, which another thread may have written since it was noted what was there.
void watch_loaded(Wave& w, const Access& access, int bytes, const uint32_t* values) {
  uint64_t last = 0;
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    if (access.address[l] == last) {
      continue;
    }
    last = access.address[l];
    uint32_t words[4] = {};
    for (int k = 0; k < bytes / 4; ++k) {
      words[k] = values[k * kLanes + l];
    }
    Watched met{last, static_cast<uint32_t>(bytes), {}};
    std::memcpy(met.value.data(), words, sizeof words);
    w.group->watch->push_back(met);
  }
}

template <Space kSpace>
void load(Wave& w, const Instruction& i) {
  const auto kind = static_cast<Moved>(i.row->b);
  const int bytes = i.row->a;
  const bool to_lds = i.results == 0;
  const int first = to_lds ? 0 : 1;
  Access access;
  addresses<kSpace>(w, i, first, first + 1, bytes, true, false, access);
  note_sharing(w, i);
  Staged staged;
  if (w.group->launch->caches != nullptr) [[unlikely]] {
    load_staged(w, i, access, bytes, staged);
  }
  if (to_lds) {
    load_to_lds(w, i, access, kind, bytes);
    note_loaded(w, i, access, bytes, staged);
    note_issue(w, i, Counter::vm, -1, 0, false);
    return;
  }
  uint32_t* out = w.lanes(i.operand[0].index);
  const uint64_t exec = w.exec();
  if (kind == Moved::words) {
    switch (bytes / 4) {
      case 1:
        load_words<1>(access, exec, out);
        break;
      case 2:
        load_words<2>(access, exec, out);
        break;
      case 3:
        load_words<3>(access, exec, out);
        break;
      default:
        load_words<4>(access, exec, out);
        break;
    }
  } else {
    access.list();
    for (uint64_t rest = exec; rest != 0; rest &= rest - 1) {
      const int l = std::countr_zero(rest);
      if ((access.mask >> l & 1) != 0) {
        out[l] = loaded(kind, reinterpret_cast<const void*>(access.address[l]), out[l]);
      } else if (kind >= Moved::u8_low) {
        out[l] &= kind == Moved::u8_high || kind == Moved::s8_high || kind == Moved::b16_high
                      ? 0xffffU
                      : 0xffff0000U;
      } else {
        out[l] = 0;
      }
    }
  }
  if (w.group->watch != nullptr && kind == Moved::words) [[unlikely]] {
    watch_loaded(w, access, bytes, out);
  }
  note_loaded(w, i, access, bytes, staged);
  note_issue(w, i, counter_of(kSpace), i.operand[0].index, i.operand[0].words, false);
  if constexpr (kSpace == Space::flat) {
    note_issue(w, i, Counter::lgkm_any_order, i.operand[0].index, i.operand[0].words, false);
  }
}

template <int kWords>
void store_words(Access& access, const uint32_t* data) {
  if (!access.listed && ~access.mask == 0) {
    store_row<kWords>(access.row, data);
    return;
  }
  access.list();
  for (uint64_t rest = access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    uint32_t value[kWords];
    for (int k = 0; k < kWords; ++k) {
      value[k] = data[k * kLanes + l];
    }
    if (access.partial && access.words[l] != kWords) {
      std::memcpy(reinterpret_cast<void*>(access.address[l]), value, size_t{4} * access.words[l]);
    } else {
      store_lane<kWords>(access.address[l], value);
    }
  }
}

template <Space kSpace>
void store(Wave& w, const Instruction& i) {
  const auto kind = static_cast<Moved>(i.row->b);
  const int bytes = i.row->a;
  Access access;
  // Buffers print data, address, descriptor, offset; the others address, data, scalar address.
  constexpr bool kBuffer = kSpace == Space::buffer;
  addresses<kSpace>(w, i, kBuffer ? 1 : 0, 2, bytes, false, true, access);
  const uint32_t* data = w.lanes(i.operand[kBuffer ? 0 : 1].index);
  const bool high = kind == Moved::u8_high || kind == Moved::b16_high;
  note_store(w, i, access.to_global(bytes), scope_of(i), high ? nullptr : data);
  Staged staged;
  const bool keeps = w.group->launch->caches != nullptr;
  if (keeps) [[unlikely]] {
    stage_store(access, staged);
  }
  if (kind == Moved::words) {
    switch (bytes / 4) {
      case 1:
        store_words<1>(access, data);
        break;
      case 2:
        store_words<2>(access, data);
        break;
      case 3:
        store_words<3>(access, data);
        break;
      default:
        store_words<4>(access, data);
        break;
    }
  }
  if (kind != Moved::words) {
    access.list();
  }
  for (uint64_t rest = kind == Moved::words ? 0 : access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    auto* to = reinterpret_cast<void*>(access.address[l]);
    switch (kind) {
      case Moved::u8:
        std::memcpy(to, &data[l], 1);
        break;
      case Moved::u16:
        std::memcpy(to, &data[l], 2);
        break;
      case Moved::u8_high: {
        const uint32_t high = data[l] >> 16;
        std::memcpy(to, &high, 1);
        break;
      }
      case Moved::b16_high: {
        const uint32_t high = data[l] >> 16;
        std::memcpy(to, &high, 2);
        break;
      }
      default:
        break;
    }
  }
  if (keeps) [[unlikely]] {
    store_staged(w, i, access, bytes, staged);
  }
  // LDS and scratch are watched instead (sim/lds.cc). A lane that reached nothing is a finding.
  w.group->progressed |= access.global != 0 || access.mask != w.exec();
  note_sharing(w, i);
  note_issue(w, i, Counter::vm, -1, 0, false);
  if constexpr (kSpace == Space::flat) {
    note_issue(w, i, Counter::lgkm_any_order, -1, 0, false);
  }
}

template <Space kSpace, class T, class F, bool kCompare = false>
void atomic(Wave& w, const Instruction& i) {
  constexpr bool kBuffer = kSpace == Space::buffer;
  const int shift = i.results;  // the old value is printed first
  const int data_at = kBuffer ? 0 : 1 + shift;
  Access access;
  addresses<kSpace>(w, i, kBuffer ? 1 : shift, kBuffer ? 2 : 2 + shift, sizeof(T), true, true,
                    access);
  access.list();
  const uint32_t* data = w.lanes(i.operand[data_at].index);
  note_atomic(w, i, access.to_global(sizeof(T)), i.sc1 ? Scope::system : Scope::agent);
  if (Caches* caches = w.group->launch->caches.get()) {
    for (uint64_t rest = access.global; rest != 0; rest &= rest - 1) {
      caches->before_atomic(unit_of(w), access.address[std::countr_zero(rest)], sizeof(T));
    }
  }
  uint32_t* result = i.sc0 ? w.lanes(i.operand[0].index) : nullptr;
  constexpr int kWords = sizeof(T) / 4;
  const F f{};
  for (uint64_t rest = w.exec(); rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    T operand;
    T compare{};
    if constexpr (kWords == 1) {
      operand = data[l];
      if constexpr (kCompare) {
        compare = data[kLanes + l];
      }
    } else {
      operand = data[l] | static_cast<uint64_t>(data[kLanes + l]) << 32;
      if constexpr (kCompare) {
        compare = data[2 * kLanes + l] | static_cast<uint64_t>(data[3 * kLanes + l]) << 32;
      }
    }
    T old{};
    if ((access.mask >> l & 1) != 0) {
      if (access.address[l] % sizeof(T) != 0) {
        report(w, i, FindingKind::misaligned, l,
               "an atomic's address must be a multiple of " + std::to_string(sizeof(T)));
        continue;
      }
      const auto after = [&](T now) -> T {
        if constexpr (kCompare) {
          return f(now, operand, compare);
        } else {
          return f(now, operand);
        }
      };
      old = update<T>(access.address[l], after);
      if (w.group->watch != nullptr) [[unlikely]] {
        // What it met, which another thread may have written since it was noted what was there.
        w.group->watch->push_back({access.address[l], sizeof(T), {static_cast<uint64_t>(old)}});
      }
      w.group->progressed |= after(old) != old;  // waiting for a lock changes nothing
    }
    if (result != nullptr) {
      result[l] = static_cast<uint32_t>(old);
      if constexpr (kWords == 2) {
        result[kLanes + l] = static_cast<uint32_t>(old >> 32);
      }
    }
  }
  w.group->shares = true;
  note_atomic_done(w, i, access.to_global(sizeof(T)), i.sc0);
  note_issue(w, i, Counter::vm, i.sc0 ? i.operand[0].index : -1, i.sc0 ? kWords : 0, false);
  if constexpr (kSpace == Space::flat) {
    note_issue(w, i, Counter::lgkm_any_order, i.sc0 ? i.operand[0].index : -1, i.sc0 ? kWords : 0,
               false);
  }
}

/// The format of a typed access: the instruction's (kTyped), or the descriptor's, which also says
/// what each component is.
template <bool kTyped>
BufferFormat format_of(Wave& w, const Instruction& i) {
  const uint32_t word = kTyped ? i.word >> 19 : w.s[i.operand[2].index + 3] >> 15;
  const uint32_t numbers = kTyped ? i.word >> 23 : w.s[i.operand[2].index + 3] >> 12;
  return buffer_format(word & 15, numbers & 7,
                       kTyped ? kOwnComponents : w.s[i.operand[2].index + 3] & 0xfff);
}

/// Register and half of a component, and its 16 or 32 bits there.
enum class Packing : uint8_t { words, halves, high_half };

template <bool kTyped, int kComponents, Packing kPacking>
void load_format(Wave& w, const Instruction& i) {
  const BufferFormat format = format_of<kTyped>(w, i);
  Access access;
  addresses<Space::buffer>(w, i, 1, 2, std::max(format.bytes, 1), true, false, access, true);
  access.list();
  if (format.bytes == 0) {
    access.mask = access.global = 0;  // no format: nothing is bound
  }
  Staged staged;
  if (w.group->launch->caches != nullptr) [[unlikely]] {
    load_staged(w, i, access, format.bytes, staged);
  }
  uint32_t* out = w.lanes(i.operand[0].index);
  for (uint64_t rest = w.exec(); rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    uint32_t values[4] = {};
    if ((access.mask >> l & 1) != 0) {
      format.load(reinterpret_cast<const void*>(access.address[l]), kPacking != Packing::words,
                  values);
    }
    for (int k = 0; k < kComponents; ++k) {
      if constexpr (kPacking == Packing::words) {
        out[k * kLanes + l] = values[k];
      } else {
        uint32_t& word = out[k / 2 * kLanes + l];
        const bool high = kPacking == Packing::high_half || k % 2 == 1;
        word = high ? (word & 0xffff) | values[k] << 16 : (word & 0xffff0000) | values[k];
      }
    }
  }
  note_loaded(w, i, access, format.bytes, staged);
  note_issue(w, i, Counter::vm, i.operand[0].index, i.operand[0].words, false);
}

template <bool kTyped, int kComponents, Packing kPacking>
void store_format(Wave& w, const Instruction& i) {
  const BufferFormat format = format_of<kTyped>(w, i);
  Access access;
  addresses<Space::buffer>(w, i, 1, 2, std::max(format.bytes, 1), false, true, access, true);
  access.list();
  const uint32_t* data = w.lanes(i.operand[0].index);
  if (format.bytes != 0) {
    note_store(w, i, access.to_global(format.bytes), scope_of(i), nullptr);
  }
  Staged staged;
  const bool keeps = w.group->launch->caches != nullptr && format.bytes != 0;
  if (keeps) [[unlikely]] {
    stage_store(access, staged);
  }
  for (uint64_t rest = format.bytes == 0 ? 0 : access.mask; rest != 0; rest &= rest - 1) {
    const int l = std::countr_zero(rest);
    uint32_t values[4] = {};
    for (int k = 0; k < kComponents; ++k) {
      if constexpr (kPacking == Packing::words) {
        values[k] = data[k * kLanes + l];
      } else {
        const bool high = kPacking == Packing::high_half || k % 2 == 1;
        values[k] = data[k / 2 * kLanes + l] >> (high ? 16 : 0) & 0xffff;
      }
    }
    format.store(reinterpret_cast<void*>(access.address[l]), kPacking != Packing::words, values,
                 kComponents);
  }
  if (keeps) [[unlikely]] {
    store_staged(w, i, access, format.bytes, staged);
  }
  w.group->progressed = true;
  note_issue(w, i, Counter::vm, -1, 0, false);
}

void invalidate(Wave& w, const Instruction& i) {
  // That the program asks tells that it may be waiting.
  w.group->shares = true;
  note_invalidate(w, scope_of(i));
  if (Caches* caches = w.group->launch->caches.get()) {
    caches->invalidate(unit_of(w), scope_of(i));
  }
  note_issue(w, i, Counter::vm, -1, 0, false);
}
void write_back(Wave& w, const Instruction& i) {
  w.group->shares = true;
  note_writeback(w, scope_of(i));
  if (Caches* caches = w.group->launch->caches.get()) {
    caches->write_back(unit_of(w), scope_of(i));
  }
  note_issue(w, i, Counter::vm, -1, 0, false);
}

// --- float atomics: rounding to nearest; 32-bit ones flush denormals (manual, section 9.2.2) -----

float flush(float x) {
  return (std::bit_cast<uint32_t>(x) & 0x7f800000) == 0
             ? std::bit_cast<float>(std::bit_cast<uint32_t>(x) & 0x80000000)
             : x;
}
constexpr auto kAddF32 = [](uint32_t old, uint32_t x) {
  return std::bit_cast<uint32_t>(
      flush(flush(std::bit_cast<float>(old)) + flush(std::bit_cast<float>(x))));
};
constexpr auto kAddF64 = [](uint64_t old, uint64_t x) {
  return std::bit_cast<uint64_t>(std::bit_cast<double>(old) + std::bit_cast<double>(x));
};
constexpr auto kMinF64 = [](uint64_t old, uint64_t x) {
  return std::bit_cast<double>(x) < std::bit_cast<double>(old) ? x : old;
};
constexpr auto kMaxF64 = [](uint64_t old, uint64_t x) {
  return std::bit_cast<double>(x) > std::bit_cast<double>(old) ? x : old;
};
// --- the tables ---------------------------------------------------------------------------------

constexpr Row data_row(std::string_view name, Execute run, Class cost, int bytes, Moved kind,
                       int results, bool keeps = false, uint8_t flags = 0) {
  return {.name = name,
          .run = run,
          .cost = cost,
          .results = static_cast<uint8_t>(results),
          .types = {Type::any, Type::any, Type::any, Type::any},
          .reads_result = static_cast<uint8_t>(keeps ? 1 : 0),
          .flags = flags,
          .a = static_cast<uint8_t>(bytes),
          .b = static_cast<uint8_t>(kind)};
}

#define WEFT_LOADS(prefix, space)                                                                 \
  data_row(prefix "load_ubyte", &load<space>, Class::vmem_load, 1, Moved::u8, 1),                 \
      data_row(prefix "load_sbyte", &load<space>, Class::vmem_load, 1, Moved::s8, 1),             \
      data_row(prefix "load_ushort", &load<space>, Class::vmem_load, 2, Moved::u16, 1),           \
      data_row(prefix "load_sshort", &load<space>, Class::vmem_load, 2, Moved::s16, 1),           \
      data_row(prefix "load_dword", &load<space>, Class::vmem_load, 4, Moved::words, 1),          \
      data_row(prefix "load_dwordx2", &load<space>, Class::vmem_load, 8, Moved::words, 1),        \
      data_row(prefix "load_dwordx3", &load<space>, Class::vmem_load, 12, Moved::words, 1),       \
      data_row(prefix "load_dwordx4", &load<space>, Class::vmem_load, 16, Moved::words, 1),       \
      data_row(prefix "load_ubyte_d16", &load<space>, Class::vmem_load, 1, Moved::u8_low, 1,      \
               true),                                                                             \
      data_row(prefix "load_ubyte_d16_hi", &load<space>, Class::vmem_load, 1, Moved::u8_high, 1,  \
               true),                                                                             \
      data_row(prefix "load_sbyte_d16", &load<space>, Class::vmem_load, 1, Moved::s8_low, 1,      \
               true),                                                                             \
      data_row(prefix "load_sbyte_d16_hi", &load<space>, Class::vmem_load, 1, Moved::s8_high, 1,  \
               true),                                                                             \
      data_row(prefix "load_short_d16", &load<space>, Class::vmem_load, 2, Moved::b16_low, 1,     \
               true),                                                                             \
      data_row(prefix "load_short_d16_hi", &load<space>, Class::vmem_load, 2, Moved::b16_high, 1, \
               true)
#define WEFT_STORES(prefix, space)                                                                \
  data_row(prefix "store_byte", &store<space>, Class::vmem_store, 1, Moved::u8, 0),               \
      data_row(prefix "store_byte_d16_hi", &store<space>, Class::vmem_store, 1, Moved::u8_high,   \
               0),                                                                                \
      data_row(prefix "store_short", &store<space>, Class::vmem_store, 2, Moved::u16, 0),         \
      data_row(prefix "store_short_d16_hi", &store<space>, Class::vmem_store, 2, Moved::b16_high, \
               0),                                                                                \
      data_row(prefix "store_dword", &store<space>, Class::vmem_store, 4, Moved::words, 0),       \
      data_row(prefix "store_dwordx2", &store<space>, Class::vmem_store, 8, Moved::words, 0),     \
      data_row(prefix "store_dwordx3", &store<space>, Class::vmem_store, 12, Moved::words, 0),    \
      data_row(prefix "store_dwordx4", &store<space>, Class::vmem_store, 16, Moved::words, 0)
#define WEFT_TO_LDS(prefix, space)                                                             \
  data_row(prefix "load_lds_ubyte", &load<space>, Class::vmem_load, 1, Moved::u8, 0),          \
      data_row(prefix "load_lds_sbyte", &load<space>, Class::vmem_load, 1, Moved::s8, 0),      \
      data_row(prefix "load_lds_ushort", &load<space>, Class::vmem_load, 2, Moved::u16, 0),    \
      data_row(prefix "load_lds_sshort", &load<space>, Class::vmem_load, 2, Moved::s16, 0),    \
      data_row(prefix "load_lds_dword", &load<space>, Class::vmem_load, 4, Moved::words, 0),   \
      data_row(prefix "load_lds_dwordx3", &load<space>, Class::vmem_load, 12, Moved::words, 0, \
               false, kOnlyGfx950),                                                            \
      data_row(prefix "load_lds_dwordx4", &load<space>, Class::vmem_load, 16, Moved::words, 0, \
               false, kOnlyGfx950)

template <Space kSpace, class T, class F, bool kCompare = false>
constexpr Row atomic_row(std::string_view name, F) {
  return data_row(name, &atomic<kSpace, T, F, kCompare>, Class::vmem_atomic, sizeof(T),
                  Moved::words, 0);
}
#define WEFT_INTEGER_ATOMICS(prefix, suffix, space, T, Ops)           \
  atomic_row<space, T>(prefix "atomic_swap" suffix, Ops::swap),       \
      atomic_row<space, T>(prefix "atomic_add" suffix, Ops::add),     \
      atomic_row<space, T>(prefix "atomic_sub" suffix, Ops::sub),     \
      atomic_row<space, T>(prefix "atomic_smin" suffix, Ops::smin),   \
      atomic_row<space, T>(prefix "atomic_umin" suffix, Ops::umin),   \
      atomic_row<space, T>(prefix "atomic_smax" suffix, Ops::smax),   \
      atomic_row<space, T>(prefix "atomic_umax" suffix, Ops::umax),   \
      atomic_row<space, T>(prefix "atomic_and" suffix, Ops::bit_and), \
      atomic_row<space, T>(prefix "atomic_or" suffix, Ops::bit_or),   \
      atomic_row<space, T>(prefix "atomic_xor" suffix, Ops::bit_xor), \
      atomic_row<space, T>(prefix "atomic_inc" suffix, Ops::inc),     \
      atomic_row<space, T>(prefix "atomic_dec" suffix, Ops::dec),     \
      atomic_row<space, T, void>(prefix "atomic_cmpswap" suffix,      \
                                 [](T old, T x, T c) { return old == c ? x : old; })
#define WEFT_FLOAT_ATOMICS(prefix, space)                                     \
  atomic_row<space, uint32_t>(prefix "atomic_add_f32", kAddF32),              \
      atomic_row<space, uint64_t>(prefix "atomic_add_f64", kAddF64),          \
      atomic_row<space, uint64_t>(prefix "atomic_min_f64", kMinF64),          \
      atomic_row<space, uint64_t>(prefix "atomic_max_f64", kMaxF64),          \
      atomic_row<space, uint32_t>(prefix "atomic_pk_add_f16", kAtomicAddF16), \
      atomic_row<space, uint32_t>(prefix "atomic_pk_add_bf16", kAtomicAddBf16)

template <Space kSpace, class T, class, class F>
constexpr Row atomic_row(std::string_view name, F) {
  return data_row(name, &atomic<kSpace, T, F, true>, Class::vmem_atomic, sizeof(T), Moved::words,
                  0);
}

#define WEFT_ATOMICS(prefix, space)                                   \
  WEFT_INTEGER_ATOMICS(prefix, "", space, uint32_t, Atomic32),        \
      WEFT_INTEGER_ATOMICS(prefix, "_x2", space, uint64_t, Atomic64), \
      WEFT_FLOAT_ATOMICS(prefix, space)

#define WEFT_FORMATS(prefix, typed, suffix, packing)                                               \
  data_row(prefix "load_format" suffix "_x", &load_format<typed, 1, packing>, Class::vmem_load, 0, \
           Moved::words, 1, packing != Packing::words),                                            \
      data_row(prefix "load_format" suffix "_xy", &load_format<typed, 2, packing>,                 \
               Class::vmem_load, 0, Moved::words, 1),                                              \
      data_row(prefix "load_format" suffix "_xyz", &load_format<typed, 3, packing>,                \
               Class::vmem_load, 0, Moved::words, 1, packing != Packing::words),                   \
      data_row(prefix "load_format" suffix "_xyzw", &load_format<typed, 4, packing>,               \
               Class::vmem_load, 0, Moved::words, 1),                                              \
      data_row(prefix "store_format" suffix "_x", &store_format<typed, 1, packing>,                \
               Class::vmem_store, 0, Moved::words, 0),                                             \
      data_row(prefix "store_format" suffix "_xy", &store_format<typed, 2, packing>,               \
               Class::vmem_store, 0, Moved::words, 0),                                             \
      data_row(prefix "store_format" suffix "_xyz", &store_format<typed, 3, packing>,              \
               Class::vmem_store, 0, Moved::words, 0),                                             \
      data_row(prefix "store_format" suffix "_xyzw", &store_format<typed, 4, packing>,             \
               Class::vmem_store, 0, Moved::words, 0)

constexpr Row control(std::string_view name, Execute run) {
  return {.name = name, .run = run, .cost = Class::vmem_load, .results = 0};
}

const Row kRows[] = {
    WEFT_LOADS("flat_", Space::flat),
    WEFT_STORES("flat_", Space::flat),
    WEFT_ATOMICS("flat_", Space::flat),
    WEFT_LOADS("global_", Space::global),
    WEFT_STORES("global_", Space::global),
    WEFT_TO_LDS("global_", Space::global),
    WEFT_ATOMICS("global_", Space::global),
    WEFT_LOADS("scratch_", Space::scratch),
    WEFT_STORES("scratch_", Space::scratch),
    WEFT_LOADS("buffer_", Space::buffer),
    WEFT_STORES("buffer_", Space::buffer),
    WEFT_ATOMICS("buffer_", Space::buffer),
    WEFT_FORMATS("buffer_", false, "", Packing::words),
    WEFT_FORMATS("buffer_", false, "_d16", Packing::halves),
    WEFT_FORMATS("tbuffer_", true, "", Packing::words),
    WEFT_FORMATS("tbuffer_", true, "_d16", Packing::halves),
    data_row("buffer_load_format_d16_hi_x", &load_format<false, 1, Packing::high_half>,
             Class::vmem_load, 0, Moved::words, 1, true),
    data_row("buffer_store_format_d16_hi_x", &store_format<false, 1, Packing::high_half>,
             Class::vmem_store, 0, Moved::words, 0),
    control("buffer_inv", &invalidate),
    control("buffer_wbl2", &write_back),
};

}  // namespace

std::span<const Row> memory_rows() { return kRows; }

}  // namespace weft::sim

// Data-parallel primitives and sub-dword addressing, as far as they do not depend on how a vector
// instruction is executed: which lane gives a source, which lanes and bits of the result are
// written.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

/// Where DPP takes each lane's source from.
struct DppLanes {
  std::array<uint8_t, kLanes> from{};  ///< itself where there is none
  uint64_t valid = 0;                  ///< lanes that have one
  bool within_rows = true;             ///< all of them from their own 16 lanes
};

/// The lane that lane l reads under a control; -1: none.
constexpr int dpp_source(Dpp dpp, int c, int l) {
  const int row = l & 15;
  switch (dpp) {
    case Dpp::none:
      return l;
    case Dpp::quad_perm:
      return (l & ~3) + (c >> (2 * (l & 3)) & 3);
    case Dpp::row_shl:
      return row + c < 16 ? l + c : -1;
    case Dpp::row_shr:
      return row >= c ? l - c : -1;
    case Dpp::row_ror:
      return (l & ~15) + ((row + 16 - c) & 15);
    case Dpp::wave_shl:
      return l < 63 ? l + 1 : -1;
    case Dpp::wave_rol:
      return (l + 1) & 63;
    case Dpp::wave_shr:
      return l - 1;
    case Dpp::wave_ror:
      return (l + 63) & 63;
    case Dpp::row_mirror:
      return (l & ~15) + 15 - row;
    case Dpp::row_half_mirror:
      return (l & ~7) + 7 - (l & 7);
    case Dpp::row_bcast15:
      return (l & 0x30) - 1;
    case Dpp::row_bcast31:
      return l > 31 ? 31 : -1;
    case Dpp::row_newbcast:
      return (l & ~15) + c;
  }
  return -1;
}

/// The sources of an instruction's lanes, looked up: quad_perm has 256 controls, the others 16.
inline const DppLanes& find_dpp_lanes(const Instruction& i) {
  constexpr size_t kQuads = 256;
  constexpr size_t kKinds = static_cast<size_t>(Dpp::row_newbcast) + 1;
  static const auto* const kTable = [] {
    auto* table = new std::array<DppLanes, kQuads + 16 * kKinds>();
    for (size_t k = 0; k < table->size(); ++k) {
      const Dpp dpp = k < kQuads ? Dpp::quad_perm : static_cast<Dpp>((k - kQuads) / 16);
      for (int l = 0; l < kLanes; ++l) {
        const int source = dpp_source(dpp, static_cast<int>(k < kQuads ? k : k % 16), l);
        (*table)[k].from[static_cast<size_t>(l)] = static_cast<uint8_t>(source >= 0 ? source : l);
        (*table)[k].valid |= static_cast<uint64_t>(source >= 0) << l;
        (*table)[k].within_rows &= source < 0 || source / 16 == l / 16;
      }
    }
    return table;
  }();
  return (*kTable)[i.dpp == Dpp::quad_perm
                       ? i.dpp_control
                       : kQuads + 16 * static_cast<size_t>(i.dpp) + (i.dpp_control & 15)];
}

/// The lane that DPP reads for each lane; -1: none.
inline void dpp_lanes(const Instruction& i, int* from) {
  const DppLanes& lanes = find_dpp_lanes(i);
  for (size_t l = 0; l < kLanes; ++l) {
    from[l] = (lanes.valid >> l & 1) != 0 ? lanes.from[l] : -1;
  }
}

/// Lanes that have a source, and an active one.
inline uint64_t dpp_readable(const DppLanes& lanes, uint64_t exec) {
  if (exec == ~uint64_t{0}) [[likely]] {
    return lanes.valid;
  }
  uint64_t active = 0;
  for (int l = 0; l < kLanes; ++l) {
    active |= (exec >> lanes.from[static_cast<size_t>(l)] & 1) << l;
  }
  return active & lanes.valid;
}

/// Lanes that the result is written in: active ones, less those that DPP leaves alone.
inline uint64_t write_mask(const Wave& w, const Instruction& i) {
  const uint64_t exec = w.exec();
  if (i.dpp == Dpp::none) [[likely]] {
    return exec;
  }
  uint64_t mask = i.bound_control ? exec : dpp_readable(find_dpp_lanes(i), exec) & exec;
  for (int k = 0; (i.row_mask & i.bank_mask) != 15 && k < 16; ++k) {  // four lanes each
    if ((i.row_mask >> (k / 4) & 1) == 0 || (i.bank_mask >> (k % 4) & 1) == 0) {
      mask &= ~(uint64_t{15} << (4 * k));
    }
  }
  return mask;
}

/// SDWA's destination selection merges a narrow result into the register.
inline void select_destination(const Instruction& i, const uint32_t* old, uint32_t* out) {
  const int width = i.destination_select < 4 ? 8 : 16;
  const int shift =
      i.destination_select < 4 ? 8 * i.destination_select : 16 * (i.destination_select - 4);
  const uint32_t field = (width == 8 ? 0xffU : 0xffffU) << shift;
  for (int l = 0; l < kLanes; ++l) {
    const uint32_t moved = out[l] << shift & field;
    uint32_t rest = 0;
    if (i.destination_unused == 2) {
      rest = old[l] & ~field;
    } else if (i.destination_unused == 1 && (moved >> (shift + width - 1) & 1) != 0) {
      rest = shift + width < 32 ? ~0U << (shift + width) : 0;
    }
    out[l] = moved | rest;
  }
}

}  // namespace weft::sim

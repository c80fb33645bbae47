// Data-parallel primitives and sub-dword addressing, as far as they do not depend on how a vector
// instruction is executed: which lane gives a source, which lanes and bits of the result are
// written.
#pragma once

#include <cstdint>

#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {

/// The lane that DPP reads for each lane; -1: none.
inline void dpp_lanes(const Instruction& i, int* from) {
  const int c = i.dpp_control;
  for (int l = 0; l < kLanes; ++l) {
    const int row = l & 15;
    int source = -1;
    switch (i.dpp) {
      case Dpp::none:
        source = l;
        break;
      case Dpp::quad_perm:
        source = (l & ~3) + (c >> (2 * (l & 3)) & 3);
        break;
      case Dpp::row_shl:
        source = row + c < 16 ? l + c : -1;
        break;
      case Dpp::row_shr:
        source = row >= c ? l - c : -1;
        break;
      case Dpp::row_ror:
        source = (l & ~15) + ((row + 16 - c) & 15);
        break;
      case Dpp::wave_shl:
        source = l < 63 ? l + 1 : -1;
        break;
      case Dpp::wave_rol:
        source = (l + 1) & 63;
        break;
      case Dpp::wave_shr:
        source = l - 1;
        break;
      case Dpp::wave_ror:
        source = (l + 63) & 63;
        break;
      case Dpp::row_mirror:
        source = (l & ~15) + 15 - row;
        break;
      case Dpp::row_half_mirror:
        source = (l & ~7) + 7 - (l & 7);
        break;
      case Dpp::row_bcast15:
        source = (l & 0x30) - 1;
        break;
      case Dpp::row_bcast31:
        source = l > 31 ? 31 : -1;
        break;
      case Dpp::row_newbcast:
        source = (l & ~15) + c;
        break;
    }
    from[l] = source;
  }
}

/// Lanes that the result is written in: active ones, less those that DPP leaves alone.
inline uint64_t write_mask(const Wave& w, const Instruction& i) {
  const uint64_t exec = w.exec();
  if (i.dpp == Dpp::none) [[likely]] {
    return exec;
  }
  int from[kLanes];
  dpp_lanes(i, from);
  uint64_t mask = 0;
  for (int l = 0; l < kLanes; ++l) {
    const bool has_source = from[l] >= 0 && (exec >> from[l] & 1) != 0;
    if ((has_source || i.bound_control) && (i.row_mask >> (l >> 4) & 1) != 0 &&
        (i.bank_mask >> (l >> 2 & 3) & 1) != 0) {
      mask |= uint64_t{1} << l;
    }
  }
  return mask & exec;
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

// Instructions that move data between lanes and scalar registers.
#include <bit>
#include <cstring>
#include <utility>

#include "sim/instruction.h"
#include "sim/wave.h"

namespace weft::sim {
namespace {

/// A vector register's lane, or a scalar operand's value.
uint32_t lane_of(Wave& w, const Operand& o, int lane) {
  return o.kind == Operand::Kind::vgpr ? w.lanes(o.index)[lane] : w.read32(o);
}

void read_first_lane(Wave& w, const Instruction& i) {
  const uint64_t exec = w.exec();
  const int lane = exec == 0 ? 0 : std::countr_zero(exec);
  w.write32(i.operand[0], lane_of(w, i.operand[1], lane));
}

void read_lane(Wave& w, const Instruction& i) {
  const auto lane = static_cast<int>(w.read32(i.operand[2]) & 63);
  w.write32(i.operand[0], lane_of(w, i.operand[1], lane));
}

void write_lane(Wave& w, const Instruction& i) {
  const uint32_t lane = w.read32(i.operand[2]) & 63;
  w.lanes(i.operand[0].index)[lane] = w.read32(i.operand[1]);
}

/// Set bits of a mask below each lane, plus the third operand.
template <bool kHigh>
void count_below(Wave& w, const Instruction& i) {
  uint32_t* out = w.lanes(i.operand[0].index);
  const uint64_t exec = w.exec();
  for (int l = 0; l < kLanes; ++l) {
    const uint64_t below = (uint64_t{1} << l) - 1;
    const auto part = static_cast<uint32_t>(kHigh ? below >> 32 : below);
    const uint32_t mask = lane_of(w, i.operand[1], l);
    const uint32_t sum =
        static_cast<uint32_t>(std::popcount(mask & part)) + lane_of(w, i.operand[2], l);
    if ((exec >> l & 1) != 0) {
      out[l] = sum;
    }
  }
}

void swap(Wave& w, const Instruction& i) {
  uint32_t* a = w.lanes(i.operand[0].index);
  uint32_t* b = w.lanes(i.operand[1].index);
  const uint64_t exec = w.exec();
  for (int l = 0; l < kLanes; ++l) {
    if ((exec >> l & 1) != 0) {
      std::swap(a[l], b[l]);
    }
  }
}

/// Odd rows of the first register change places with even rows of the second; a row is kRow lanes.
template <int kRow>
void swap_rows(Wave& w, const Instruction& i) {
  uint32_t* first = w.lanes(i.operand[0].index);
  uint32_t* second = w.lanes(i.operand[1].index);
  const uint64_t exec = w.exec();
  for (int base = 0; base < kLanes; base += 2 * kRow) {
    for (int l = base; l < base + kRow; ++l) {
      const uint32_t low = second[l];
      const uint32_t high = first[l + kRow];
      if ((exec >> l & 1) != 0) {
        second[l] = high;
      }
      if ((exec >> (l + kRow) & 1) != 0) {
        first[l + kRow] = low;
      }
    }
  }
}

void nothing(Wave&, const Instruction&) {}

const Row kLaneRows[] = {
    {.name = "v_readfirstlane_b32", .run = &read_first_lane, .types = {Type::b32, Type::b32}},
    {.name = "v_readlane_b32", .run = &read_lane, .types = {Type::b32, Type::b32, Type::b32}},
    {.name = "v_writelane_b32",
     .run = &write_lane,
     .types = {Type::b32, Type::b32, Type::b32},
     .flags = kMoves | kIgnoresExec},
    {.name = "v_mbcnt_lo_u32_b32",
     .run = &count_below<false>,
     .types = {Type::b32, Type::b32, Type::b32}},
    {.name = "v_mbcnt_hi_u32_b32",
     .run = &count_below<true>,
     .types = {Type::b32, Type::b32, Type::b32}},
    {.name = "v_swap_b32",
     .run = &swap,
     .results = 2,
     .types = {Type::b32, Type::b32},
     .reads_result = 3,
     .flags = kMoves},
    {.name = "v_permlane16_swap_b32",
     .run = &swap_rows<16>,
     .results = 2,
     .types = {Type::b32, Type::b32},
     .reads_result = 3,
     .flags = kMoves | kOnlyGfx950},
    {.name = "v_permlane32_swap_b32",
     .run = &swap_rows<32>,
     .results = 2,
     .types = {Type::b32, Type::b32},
     .reads_result = 3,
     .flags = kMoves | kOnlyGfx950},
    {.name = "v_nop", .run = &nothing, .results = 0},
    {.name = "v_clrexcp", .run = &nothing, .results = 0},
};

}  // namespace

std::span<const Row> lane_rows() { return kLaneRows; }

}  // namespace weft::sim

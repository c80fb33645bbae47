// Which output tiles the resident blocks of a matrix product compute, and in which order. Pure
// functions, the same on the host (tests, dispatch) and on the device.
//
// The blocks of a cluster lie side by side: they compute neighbouring tiles, along n when they
// share the tile of a (kShareA), else along m. `cluster` neighbouring tiles are a super tile. All
// clusters take one super tile a round. Where tiles are too few to fill the device, the blocks of a
// cluster have one tile instead, each a part of k, and put their sums together at the end. Two such
// blocks may leave the last blocks of k for then: each goes through them for its own half of the
// columns, while its sums of the other half are on their way to the other block.
#pragma once

#include "arch/hopper/layout.h"

namespace weft::hopper {

/// What a block does in a round.
struct TileWork {
  int m = 0;  ///< tile of the output; may lie outside of it, and is then zeros that nobody stores
  int n = 0;
  int k_begin = 0;  ///< in blocks of k
  int k_end = 0;
  int part = 0;  ///< of k, which this block has
  /// From here on a block of two that leave blocks of k goes through its own half of the columns
  /// only, and `skip` blocks further along k than counted.
  int own_begin = 0;
  int skip = 0;
  int group = 0;  ///< whose b it is, where there are several (GroupedSchedule)
};

/// Division by a number that is known before the kernel starts, as a product and a shift: blocks
/// would otherwise spend a microsecond on divisions before their first load. Dividends: 0 to 2^31 -
/// 1. Granlund and Montgomery, "Division by Invariant Integers using Multiplication" (1994).
struct Divisor {
  constexpr Divisor() = default;
  constexpr explicit Divisor(int by) {
    int bits = 0;  // 2^bits is at least `by`
    while (bits < 31 && (int64_t{1} << bits) < by) {
      ++bits;
    }
    shift = 31 + bits;
    multiplier = static_cast<uint32_t>((uint64_t{1} << shift) / static_cast<uint64_t>(by) + 1);
  }
  constexpr int divide(int x) const {
    return static_cast<int>((static_cast<uint64_t>(x) * multiplier) >> shift);
  }

  uint32_t multiplier = 0;
  int shift = 0;
};

/// What follows `derived` is computed from the members above it when those are set as one
/// (TileSchedule{.m_tiles = ...}).
struct TileSchedule {
  static constexpr bool kGrouped = false;
  int m_tiles = 0;
  int n_tiles = 0;
  int k_blocks = 0;
  int cluster = 1;  ///< blocks that share an operand's tile: 1, 2 or 4
  bool share_a = true;
  int parts = 1;       ///< or blocks that cut k of one tile: 1, 2 or 4; see parts_fit()
  int own_blocks = 0;  ///< blocks of k that two parts leave; fewer where k is short
  int clusters = 1;    ///< of blocks of either kind, resident at once
  int band = 8;        ///< super tiles along m visited together, so that they share b from L2

  // derived
  int super_m = share_a ? m_tiles : ceil_div(m_tiles, cluster);
  int super_n = share_a ? ceil_div(n_tiles, cluster) : n_tiles;
  int super_tiles = super_m * super_n;
  Divisor by_band_size = Divisor(band * (super_n > 0 ? super_n : 1));
  Divisor by_band = Divisor(band);
  Divisor by_last_band = Divisor(super_m % band > 0 ? super_m % band : band);

  /// Parts are as long as each other, and there is one round of them.
  constexpr bool parts_fit() const {
    return parts == 1 || (cluster == 1 && k_blocks % parts == 0 && super_tiles <= clusters &&
                          (own_blocks == 0 || k_blocks >= 4));
  }

  /// Blocks of a launch: no more than there is work for.
  constexpr int blocks() const {
    return (super_tiles < clusters ? super_tiles : clusters) * cluster * parts;
  }
  constexpr int rounds() const { return ceil_div(super_tiles, clusters); }

  /// Round `round` of block `rank` of a cluster; false: it has none, nor any later.
  constexpr bool work(int cluster_index, int round, int rank, TileWork& work) const {
    const int super = round * clusters + cluster_index;
    if (super >= super_tiles) {
      return false;
    }
    const int place = parts > 1 ? 0 : rank;
    const int k_of_part = k_blocks >> parts / 2;  // parts: 1, 2 or 4
    work.part = parts > 1 ? rank : 0;
    work.k_begin = k_of_part * work.part;
    work.k_end = work.k_begin + k_of_part;
    if (own_blocks > 0) {
      const int own = own_blocks < k_blocks - 2 ? own_blocks : k_blocks - 2;
      const int both = (k_blocks - own) / 2;
      work.k_begin = both * work.part;
      work.own_begin = work.k_begin + both;
      work.k_end = work.own_begin + own;
      work.skip = both * (1 - work.part);
    }
    const int band_index = by_band_size.divide(super);
    const int in_band = super - band_index * band * super_n;
    const int first_m = band_index * band;
    const bool whole_band = first_m + band <= super_m;
    const int height = whole_band ? band : super_m - first_m;
    work.n = whole_band ? by_band.divide(in_band) : by_last_band.divide(in_band);
    work.m = first_m + in_band - work.n * height;
    if (share_a) {
      work.n = work.n * cluster + place;
    } else {
      work.m = work.m * cluster + place;
    }
    return true;
  }
};

/// The same where rows of a are multiplied by the b of their group. Tiles that no group has have no
/// k.
struct GroupedSchedule {
  static constexpr bool kGrouped = true;
  TileSchedule tiles;
  const int32_t* group_of = nullptr;  ///< of each 2^shift tiles along m; negative: none
  int shift = 0;

  constexpr bool work(int cluster_index, int round, int rank, TileWork& work) const {
    const bool there = tiles.work(cluster_index, round, rank, work);
    if (there) {
      find_group(work);
    }
    return there;
  }
  /// Where group_of says whose the tile is.
  constexpr const int32_t* group_of_tile(const TileWork& work) const {
    return group_of + (work.m >> shift);
  }
  /// What work() does when it knows the tile: reads group_of.
  constexpr void find_group(TileWork& work) const {
    work.group = *group_of_tile(work);
    if (work.group < 0) {
      work.k_end = work.k_begin;
    }
  }
};
constexpr const TileSchedule& tiles_of(const TileSchedule& schedule) { return schedule; }
constexpr const TileSchedule& tiles_of(const GroupedSchedule& schedule) { return schedule.tiles; }

}  // namespace weft::hopper

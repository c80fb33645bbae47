// Which output tiles the resident blocks of a matrix product compute, and in which order. Pure
// functions, the same on the host (tests, dispatch) and on the device.
//
// The blocks of a cluster lie side by side: they compute neighbouring tiles, along n when they
// share the tile of a (kShareA), else along m. `cluster` neighbouring tiles are a super tile. All
// clusters take one super tile a round. What is left in the last round can be cut along k: then
// each super tile goes to `split` clusters, whose blocks form `split` groups, each group with a
// part of k of the same cluster / split tiles; their sums are put together inside the cluster. So
// the last round takes 1 / split of the time, and a product with few tiles still fills the device.
#pragma once

#include "arch/hopper/layout.h"

namespace weft::hopper {

/// What a block does in a round.
struct TileWork {
  int m = 0;  ///< tile of the output; may lie outside of it, and is then zeros that nobody stores
  int n = 0;
  int k_begin = 0;  ///< in blocks of k
  int k_end = 0;
  int split = 1;  ///< parts that k is cut into
  int part = 0;   ///< this block's
  int group = 1;  ///< blocks that share an operand's tile
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
/// (TileSchedule{.m_tiles = ...}); only `split` may be set later.
struct TileSchedule {
  int m_tiles = 0;
  int n_tiles = 0;
  int k_blocks = 0;
  int cluster = 1;  ///< 1, 2 or 4
  bool share_a = true;
  int clusters = 1;  ///< resident at once
  int split = 1;     ///< 1, 2 or 4; divides cluster and k_blocks; fits: see splits_fit()
  int band = 8;      ///< super tiles along m visited together, so that they share b from L2

  // derived
  int super_m = share_a ? m_tiles : ceil_div(m_tiles, cluster);
  int super_n = share_a ? ceil_div(n_tiles, cluster) : n_tiles;
  int super_tiles = super_m * super_n;
  int full_rounds = super_tiles / clusters;
  int rest = super_tiles % clusters;  ///< super tiles of the last round, if that is not full
  Divisor by_band_size = Divisor(band * (super_n > 0 ? super_n : 1));
  Divisor by_band = Divisor(band);
  Divisor by_last_band = Divisor(super_m % band > 0 ? super_m % band : band);

  /// Whether the last round may be cut in so many parts.
  constexpr bool splits_fit(int parts) const {
    return cluster % parts == 0 && k_blocks % parts == 0 && rest > 0 && rest * parts <= clusters;
  }

  /// Blocks of a launch: no more than there is work for.
  constexpr int blocks() const {
    const int used = super_tiles * split;
    return (used < clusters ? used : clusters) * cluster;
  }
  /// Blocks of k that the busiest block multiplies: what the time is proportional to.
  constexpr int k_blocks_per_block() const {
    return full_rounds * k_blocks + (rest > 0 ? k_blocks / split : 0);
  }

  /// Round `round` of block `rank` of a cluster; false: it has none, nor any later.
  constexpr bool work(int cluster_index, int round, int rank, TileWork& work) const {
    int super = round * clusters + cluster_index;
    int place = rank;
    if (split > 1 && round == full_rounds) {
      if (cluster_index >= rest * split) {
        return false;
      }
      const int shift = split / 2;  // 2^shift is split: 2 or 4
      super = round * clusters + (cluster_index >> shift);
      work.split = split;
      work.group = cluster >> shift;
      work.part = rank >> (work.group / 2);  // groups of 1 or 2
      place = (cluster_index & (split - 1)) * work.group + (rank & (work.group - 1));
      work.k_begin = (k_blocks >> shift) * work.part;
      work.k_end = work.k_begin + (k_blocks >> shift);
    } else {
      if (super >= super_tiles) {
        return false;
      }
      work.split = 1;
      work.part = 0;
      work.group = cluster;
      work.k_begin = 0;
      work.k_end = k_blocks;
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

}  // namespace weft::hopper

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

struct TileSchedule {
  int m_tiles = 0;
  int n_tiles = 0;
  int k_blocks = 0;
  int cluster = 1;  ///< a power of two
  bool share_a = true;
  int clusters = 0;  ///< resident at once
  int split = 1;     ///< divides cluster and k_blocks; fits: see splits_fit()
  int band = 8;      ///< super tiles along m visited together, so that they share b from L2

  constexpr int super_m() const { return share_a ? m_tiles : ceil_div(m_tiles, cluster); }
  constexpr int super_n() const { return share_a ? ceil_div(n_tiles, cluster) : n_tiles; }
  constexpr int super_tiles() const { return super_m() * super_n(); }
  /// Super tiles of the last round, if that is not full.
  constexpr int rest() const { return super_tiles() % clusters; }
  /// Whether the last round may be cut in so many parts.
  constexpr bool splits_fit(int parts) const {
    return cluster % parts == 0 && k_blocks % parts == 0 && rest() > 0 &&
           rest() * parts <= clusters;
  }

  /// Blocks of a launch: no more than there is work for.
  constexpr int blocks() const {
    const int used = super_tiles() * split;
    return (used < clusters ? used : clusters) * cluster;
  }
  /// Blocks of k that the busiest block multiplies: what the time is proportional to.
  constexpr int k_blocks_per_block() const {
    return super_tiles() / clusters * k_blocks + (rest() > 0 ? k_blocks / split : 0);
  }

  /// Round `round` of block `rank` of a cluster; false: it has none, nor any later.
  constexpr bool work(int cluster_index, int round, int rank, TileWork& work) const {
    int super = round * clusters + cluster_index;
    int place = rank;
    if (split > 1 && round == super_tiles() / clusters) {
      if (cluster_index >= rest() * split) {
        return false;
      }
      super = round * clusters + cluster_index / split;
      work.split = split;
      work.group = cluster / split;
      work.part = rank / work.group;
      place = cluster_index % split * work.group + rank % work.group;
      work.k_begin = k_blocks / split * work.part;
      work.k_end = work.k_begin + k_blocks / split;
    } else {
      if (super >= super_tiles()) {
        return false;
      }
      work.split = 1;
      work.part = 0;
      work.group = cluster;
      work.k_begin = 0;
      work.k_end = k_blocks;
    }
    const int band_size = band * super_n();
    const int first_m = super / band_size * band;
    const int height = super_m() - first_m < band ? super_m() - first_m : band;
    const int in_band = super % band_size;
    work.m = first_m + in_band % height;
    work.n = in_band / height;
    if (share_a) {
      work.n = work.n * cluster + place;
    } else {
      work.m = work.m * cluster + place;
    }
    return true;
  }
};

}  // namespace weft::hopper

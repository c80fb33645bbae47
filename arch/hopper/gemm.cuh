// What the matrix products on sm_90a share: one warpgroup's threads feed tiles of a and b into a
// ring in shared memory, the other warpgroups multiply them. A block stays for as many output tiles
// as come to it (tile_schedule.h), and the feeder runs ahead from one to the next. The blocks of a
// cluster share one operand's tile: each loads a slice of it and the copy engine delivers that to
// all of them. A warp stores what it computed by itself, so that warpgroups drift apart and one's
// epilogue runs under the others' products.
#pragma once

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/copy.cuh"
#include "arch/hopper/layout.h"
#include "arch/hopper/tensor_map.h"
#include "arch/hopper/tile_schedule.h"
#include "arch/hopper/wgmma.cuh"

namespace weft::hopper {

/// How a kernel cuts the work of a block. (A type, because nvcc 13 cannot launch kernels whose
/// template parameters are values of a class.)
/// kM, kN: the output tile; kWarpgroups multiply, each kM / kWarpgroups rows; kShareA: the blocks
/// of a cluster lie along n and share the tile of a, else along m and share that of b; kParts,
/// where it is not 1, is kCluster: its blocks share nothing, but have a part of k each of one tile;
/// kOwnBlocks of k are left by two parts (TileSchedule::own_blocks).
template <int kM, int kN, int kWarpgroups, int kCluster, bool kShareA, int kParts = 1,
          int kOwnBlocks = 0>
struct GemmTile {
  static_assert(kM % (64 * kWarpgroups) == 0, "a warpgroup multiplies 64 rows at a time");
  static_assert(kParts == 1 || kParts == kCluster);
  static_assert(kOwnBlocks == 0 || (kParts == 2 && kShareA && kOwnBlocks % 2 == 0));
  static constexpr int m = kM;
  static constexpr int n = kN;
  static constexpr int warpgroups = kWarpgroups;
  static constexpr int cluster = kCluster;
  static constexpr bool share_a = kShareA;
  static constexpr int parts = kParts;
  static constexpr int own_blocks = kOwnBlocks;
  static constexpr int sharing = kCluster / kParts;  ///< blocks that share an operand's tile
  static constexpr int warps = kWarpgroups * 4;
  static constexpr int threads = (kWarpgroups + 1) * 128;
  /// Registers of a thread that multiplies, and of one that feeds: of the 65536 that there are.
  static constexpr int registers = kWarpgroups == 3 ? 160 : kWarpgroups == 2 ? 232 : 240;
  static constexpr int feeder_registers = kWarpgroups == 3 ? 32 : 40;
  /// Row tiles of 64 that a warpgroup multiplies one after the other.
  static constexpr int row_tiles = kM / kWarpgroups / 64;
  /// Rows of a block's slice of the shared operand's tile, which are whole swizzle patterns.
  static constexpr int shared_rows = (kShareA ? kM : kN) / sharing;
  static_assert(shared_rows % 8 == 0, "slices of a tile are whole swizzle patterns");
  /// Rows of a and of b that one copy brings. Of two halves of b, the block's own comes first.
  static constexpr int a_rows = kShareA ? shared_rows : kM;
  static constexpr int b_rows = kShareA ? kN / (kOwnBlocks > 0 ? 2 : 1) : shared_rows;
};

/// Shared memory of such a block: a ring of stages (a's tile, b's tile), what kernels keep beside
/// each stage, staging for stores, barriers, and kOwn bytes that are the kernel's.
template <class Tile, int kBesideStage, int kStagingPerWarp, int kOwn = 0>
struct GemmShared {
  static_assert(kBesideStage % 128 == 0 && kStagingPerWarp % 1024 == 0, "keeps tiles aligned");
  static constexpr int kABytes = Tile::m * kRowBytes;
  static constexpr int kBBytes = Tile::n * kRowBytes;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr int kStaging = Tile::warps * kStagingPerWarp;
  /// A barrier for each warp that gets sums of other parts of k: see gather_parts().
  static constexpr int kPartBarriers = Tile::parts > 1 ? Tile::warps : 0;
  /// What a block may have of it, less the slack to align to 1024 bytes.
  static constexpr int kMost = 232448 - 1024;
  static constexpr int kFit =
      (kMost - kStaging - kOwn - (32 + kPartBarriers) * 8) / (kStageBytes + kBesideStage);
  static constexpr int kStages = kFit < 16 ? kFit : 16;
  static_assert(kStages >= 3, "fewer stages do not hide the memory's latency");
  static constexpr int kBytes = 1024 + kStages * (kStageBytes + kBesideStage) + kStaging +
                                (2 * kStages + kPartBarriers) * 8 + kOwn;

  char* base;  ///< aligned to 1024

  __device__ explicit GemmShared(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* a(int slot) const { return base + slot * kStageBytes; }
  __device__ char* b(int slot) const { return a(slot) + kABytes; }
  __device__ char* staging(int warp) const {
    return base + kStages * kStageBytes + warp * kStagingPerWarp;
  }
  __device__ char* beside(int slot) const {
    return base + kStages * kStageBytes + kStaging + slot * kBesideStage;
  }
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(base + kStages * (kStageBytes + kBesideStage) +
                                      kStaging)[slot];
  }
  __device__ Barrier& empty(int slot) const { return (&full(0))[kStages + slot]; }
  __device__ Barrier& gathered(int warp) const { return (&full(0))[2 * kStages + warp]; }
  __device__ void* own() const { return &full(0) + 2 * kStages + kPartBarriers; }

  using Cursor = RingCursor<kStages>;

  /// By the whole block, first: the last two warps prepare the barriers, while the feeders find out
  /// what they load first. `arrivals`: at each full barrier, the feeder's included. `more` prepares
  /// what there is besides, in one thread. One barrier takes some 25 cycles, and a lane each no
  /// less.
  template <class More>
  __device__ void prepare(int warp, int arrivals, const More& more) const {
    if (warp == Tile::warps + 2 && elect_one()) {
      for (int slot = 0; slot < kStages; ++slot) {
        full(slot).init(arrivals);
      }
      more();
      fence_barriers();
    } else if (warp == Tile::warps + 3 && elect_one()) {
      for (int slot = 0; slot < kStages; ++slot) {
        empty(slot).init(Tile::sharing * Tile::warps);
      }
      for (int part = 0; part < kPartBarriers; ++part) {
        gathered(part).init(1);
      }
      fence_barriers();
    }
    __syncwarp();
  }
  __device__ void prepare(int warp, int arrivals) const {
    prepare(warp, arrivals, [] {});
  }
  /// By all warps, before they touch the barriers, in one place of the kernel: synccheck takes a
  /// barrier of all that warps come to in several for threads that diverge.
  __device__ void wait_prepared() const {
    if constexpr (Tile::sharing > 1) {
      cluster_sync_relaxed();
    } else {
      named_sync(1, Tile::threads);
    }
  }
  /// By each multiplying warp, when it has read a slot: all blocks of the cluster write into it.
  __device__ void release(int slot, int lane) const {
    if constexpr (Tile::sharing > 1) {
      if (lane < Tile::sharing) {
        empty(slot).arrive_at(lane);
      }
    } else if (lane == 0) {
      empty(slot).arrive();
    }
  }
};

/// The schedule with what the tile says of it as constants.
template <class Tile>
__device__ TileSchedule tile_schedule(TileSchedule schedule) {
  schedule.cluster = Tile::sharing;
  schedule.share_a = Tile::share_a;
  schedule.parts = Tile::parts;
  schedule.own_blocks = Tile::own_blocks;
  return schedule;
}
template <class Tile>
__device__ GroupedSchedule tile_schedule(GroupedSchedule schedule) {
  schedule.tiles = tile_schedule<Tile>(schedule.tiles);
  return schedule;
}
/// What the block does first, for the warps that feed. Known at once, not after what waits: the
/// parameters that it needs are on their way from memory for some 300 cycles.
template <class Tile>
__device__ TileWork first_work(const TileSchedule& schedule, int warp) {
  TileWork work;
  if (warp < Tile::warps) {
    return work;
  }
  tile_schedule<Tile>(schedule).work(blockIdx.x / Tile::cluster, 0,
                                     Tile::cluster > 1 ? cluster_rank() : 0, work);
  asm volatile("" ::"r"(work.m), "r"(work.n), "r"(work.k_begin), "r"(work.k_end));
  return work;
}

/// Nothing is loaded beside the tiles.
struct NothingBeside {
  __device__ uint32_t start(const TileWork& /*work*/) { return 0; }
  __device__ void load(int /*slot*/, Barrier& /*full*/) const {}
  __device__ void advance() {}
  __device__ void skip(int /*k_blocks*/) {}
};

/// Whose tile a feeder loads: the block's own operand's or that which its cluster shares.
enum class Feed : uint8_t { own, common };
template <class Tile, Feed kFeed>
inline constexpr bool kFeedsA = (kFeed == Feed::common) == Tile::share_a;
template <class Tile, Feed kFeed>
__device__ const RowBoxes& operand_of(const RowBoxes& a, const RowBoxes& b) {
  return kFeedsA<Tile, kFeed> ? a : b;
}
/// The warp that feeds b, where warp Tile::warps feeds the block's own operand and the next one the
/// other.
template <class Tile>
inline constexpr int kFeederOfB = Tile::warps + (kFeedsA<Tile, Feed::own> ? 1 : 0);

/// A feeder of tiles, `work` the first: one warp, all of it, so that what it computes is uniform.
/// Two warps feed, one each operand, because a small tile's stage must be asked for in some 200
/// cycles: two arrivals at each full barrier. The operand, a [m, k] or b [n, k], has boxes of
/// Tile::a_rows or b_rows rows and kRowBytes, which are `row_elements`; what lies outside of it is
/// not loaded, and nobody stores what comes of it. Where b is several matrices, the boxes are of
/// the one that `work` names. `beside` loads what belongs to the stages besides: start() says how
/// many bytes to each of a tile's, load() comes for each, by one thread, and then advance() by all;
/// skip() before blocks of k are.
template <class Tile, Feed kFeed, class Shared, class Schedule, class Beside = NothingBeside>
__device__ void feed_tiles(const Shared& shared, const Schedule& schedule, TileWork work,
                           const RowBoxes& operand, int row_elements, Beside beside = {}) {
  constexpr bool kA = kFeedsA<Tile, kFeed>;
  constexpr int kTileRows = kA ? Tile::m : Tile::n;
  constexpr int kBoxRows = kA ? Tile::a_rows : Tile::b_rows;
  const int cluster_index = blockIdx.x / Tile::cluster;
  const int rank = Tile::cluster > 1 ? cluster_rank() : 0;
  const bool chosen = elect_one();
  // Of the `most` rows from y on, how many there are.
  const auto rows_at = [&](int y, int most) { return max(0, min(most, operand.rows - y)); };
  // (Asked of y, because nvcc 13.0 makes one instruction of min() and a comparison of its result
  // with the bound, and takes that one's predicate the wrong way round.)
  const auto whole_at = [&](int y) { return y <= operand.rows - kBoxRows; };
  typename Shared::Cursor cursor;
  int round = 0;
  do {
    // This block's slice of the common tile, which all blocks of the cluster get; or the half of
    // the columns that is its own, and the other.
    constexpr bool kHalves = Tile::own_blocks > 0 && !kA;
    constexpr bool kShares = kFeed == Feed::common && Tile::sharing > 1;
    const int slice = kShares ? rank : 0;
    const int tile_y = (kA ? work.m : work.n) * kTileRows;
    const int y = tile_y + (kHalves ? work.part : slice) * kBoxRows;
    const int other_y = tile_y + (1 - work.part) * kBoxRows;
    const int before = Schedule::kGrouped && !kA ? work.group * operand.rows : 0;  // rows
    const int other_rows = kHalves ? rows_at(other_y, kBoxRows) : 0;
    uint32_t bytes = rows_at(tile_y, kTileRows) * kRowBytes + beside.start(work);
    // Copies of the loop for each map, because small tiles leave it few instructions.
    const auto feed = [&](const CUtensorMap& map, bool there) {
      int x = work.k_begin * row_elements;
      for (int k = work.k_begin; k < work.k_end;
           ++k, x += row_elements, cursor.advance(), beside.advance()) {
        const int slot = cursor.slot;
        if constexpr (Tile::own_blocks > 0) {
          if (k == work.own_begin) {
            x += work.skip * row_elements;
            beside.skip(work.skip);
            bytes -= other_rows * kRowBytes;
          }
        }
        shared.empty(slot).wait(cursor.parity ^ 1);
        if (chosen) {
          Barrier& full = shared.full(slot);
          char* tile = (kA ? shared.a(slot) : shared.b(slot)) + slice * kBoxRows * kRowBytes;
          full.arrive_expect(bytes);
          if (there) {
            if constexpr (kShares) {
              load_tile_to((1 << Tile::sharing) - 1, tile, map, x, before + y, full);
            } else {
              load_tile(tile, map, x, before + y, full);
            }
          }
          if (other_rows > 0 && k < work.own_begin) {
            load_tile(tile + kBoxRows * kRowBytes, whole_at(other_y) ? operand.whole : operand.last,
                      x, before + other_y, full);
          }
          beside.load(slot, full);
        }
      }
    };
    if (whole_at(y)) {
      feed(operand.whole, true);
    } else {
      feed(operand.last, y < operand.rows);
    }
  } while (tile_schedule<Tile>(schedule).work(cluster_index, ++round, rank, work));
}

/// By a warpgroup: begins the products of a stage, of 64 rows of its a from `row` on and of the
/// first 2 * kCount rows of its b. `first` describes the first stage; sums are those of wgmma(),
/// added to where `onto`.
template <class Format, class Shared, int kCount>
__device__ __forceinline__ void begin_products(uint64_t first, int slot, int row,
                                               float (&sums)[kCount], bool onto) {
  const uint64_t stage = advance_steps<Shared::kStageBytes>(first, slot);
  begin_row_products<Format, Shared::kABytes>(sums, advance_steps<kRowBytes>(stage, row), stage,
                                              onto);
}

/// By a warpgroup: the products of one tile in bf16, of its 64 rows from `row` on and all columns.
/// One batch of products stays in flight.
template <class Tile, class Shared>
__device__ __forceinline__ void multiply_bf16(const Shared& shared, const TileWork& work, int row,
                                              int lane, typename Shared::Cursor& cursor,
                                              float (&sums)[Tile::n / 2]) {
  const uint64_t first = tile_descriptor(shared.a(0));
  int last_slot = -1;
  for (int k = work.k_begin; k < work.k_end; ++k, cursor.advance()) {
    const int slot = cursor.slot;
    shared.full(slot).wait(cursor.parity);
    begin_products<Bf16, Shared>(first, slot, row, sums, k > work.k_begin);
    wgmma_wait<1>();  // the batch before is done: its slot is free
    if (last_slot >= 0) {
      shared.release(last_slot, lane);
    }
    last_slot = slot;
  }
  wgmma_wait<0>();
  hold(sums);
  shared.release(last_slot, lane);
}

/// Sends a warp's sums of the other half of the columns, which are the second half of `sums`, to
/// the block whose own it is (Tile::own_blocks): through the halves of the stages' b that are not
/// loaded any more, by the copy engine. By each multiplying warp, before it gives back the first
/// stage with its own half only. All warps of both blocks cluster_arrive() when their barriers are
/// prepared.
template <class Tile, class Shared>
__device__ void hand_over(const Shared& shared, const TileWork& work,
                          const float (&sums)[Tile::n / 2], int warp, int lane) {
  const float* other = sums + Tile::n / 4;
  constexpr int kBytes = Tile::n / 4 * 32 * static_cast<int>(sizeof(float));
  constexpr int kFits = Shared::kBBytes / 2 / kBytes;  // warps' sums in a stage
  static_assert(Tile::warps <= kFits * Shared::kStages);
  // Of the stages to come the warpgroup that is ahead takes the first: their places were read
  // longest ago.
  const int stage = work.own_begin - work.k_begin + warp / kFits;
  const int slot = stage % Shared::kStages;
  char* place = shared.b(slot) + Shared::kBBytes / 2 + warp % kFits * kBytes;
  if (stage >= Shared::kStages) {
    shared.empty(slot).wait((stage / Shared::kStages - 1) & 1);
  }
#pragma unroll
  for (int i = 0; i < Tile::n / 16; ++i) {
    reinterpret_cast<float4*>(place)[i * 32 + lane] = {other[4 * i], other[4 * i + 1],
                                                       other[4 * i + 2], other[4 * i + 3]};
  }
  fence_shared();
  __syncwarp();
  cluster_wait();
  if (lane == 0) {
    shared.gathered(warp).arrive_expect(kBytes);
    send_bytes(cluster_address(smem_address(shared.staging(warp)), 1 - work.part), place, kBytes,
               cluster_address(smem_address(&shared.gathered(warp)), 1 - work.part));
  }
  __syncwarp();
}
/// sums += what the lanes of a warp have stored, 16 bytes each in turn: `from` is this lane's
/// first.
template <int kCount>
__device__ __forceinline__ void add_stored(float* sums, const char* from) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    const float4 other = reinterpret_cast<const float4*>(from)[32 * i];
    sums[4 * i] += other.x;
    sums[4 * i + 1] += other.y;
    sums[4 * i + 2] += other.z;
    sums[4 * i + 3] += other.w;
  }
}

/// Adds up the parts of a tile whose k was cut among the blocks of a cluster (Tile::parts), inside
/// their shared memory, after the one round of tiles that there is. Warps take turns in owning the
/// sum: warp w's belongs to part w % parts. Sums are sent by stores that count at a barrier of the
/// owner's: a barrier of the cluster would have to fence all memory. By all warps of the block,
/// those that do not multiply by attend_gathering(); true where this warp holds the result. The
/// order of the sum is fixed, and so are its bits. (Tile::own_blocks: both hold the result's half
/// that is their own in the first half of `sums`, and the other block's part has come already.)
template <class Tile, class Shared, int kCount>
__device__ bool gather_parts(const Shared& shared, const TileWork& work, float (&sums)[kCount],
                             int warp, int lane) {
  if constexpr (Tile::own_blocks > 0) {
    shared.gathered(warp).wait(0);
    add_stored<kCount / 2>(sums, shared.staging(warp) + lane * 16);
  } else if constexpr (Tile::parts > 1) {
    static_assert(kCount % 4 == 0);
    constexpr int kRow = 32 * static_cast<int>(sizeof(float4));
    constexpr int kPiece = kCount / 4 * kRow;
    static_assert(Tile::warps / Tile::parts * (Tile::parts - 1) * kPiece <=
                  Shared::kStages * Shared::kStageBytes);
    const int owner = warp % Tile::parts;
    // A place for each owned warp and each part but the owner's own, in the stages' memory.
    const auto place = [&](int part) {
      const int source = part - (part > owner ? 1 : 0);
      return shared.base + (warp / Tile::parts * (Tile::parts - 1) + source) * kPiece + lane * 16;
    };
    cluster_sync_relaxed();  // all have prepared their barriers; nobody reads stages any more
    if (owner != work.part) {
      const uint32_t to = cluster_address(smem_address(place(work.part)), owner);
      const uint32_t barrier = cluster_address(smem_address(&shared.gathered(warp)), owner);
#pragma unroll
      for (int i = 0; i < kCount / 4; ++i) {
        store_remote(to + i * kRow,
                     {sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]}, barrier);
      }
      return false;
    }
    if (lane == 0) {
      shared.gathered(warp).arrive_expect((Tile::parts - 1) * kPiece);
    }
    shared.gathered(warp).wait(0);
    for (int part = 0; part < Tile::parts; ++part) {
      if (part != owner) {
        add_stored<kCount>(sums, place(part));
      }
    }
  }
  return true;
}
/// By the warps that do not multiply, at their end.
template <class Tile>
__device__ void attend_gathering() {
  if constexpr (Tile::own_blocks > 0) {
    cluster_wait();
  } else if constexpr (Tile::parts > 1) {
    cluster_sync_relaxed();
  }
}

/// The end of a block: no block of a cluster leaves while another may still arrive at its barriers,
/// nor before all that it sent has arrived. By all warps.
template <class Tile>
__device__ void leave_cluster() {
  if constexpr (Tile::cluster > 1) {
    cluster_sync_relaxed();
  }
}

/// Bytes of staging that a warp needs for 16 rows of kN columns in bf16.
template <int kN>
constexpr int staging_bytes() {
  return ceil_div(16 * kN * 2, 1024) * 1024;
}
/// Columns of the box of `out`'s tensor map, whose rows are 16: swizzled where that is 64 or 32.
template <int kN>
constexpr int out_box_columns() {
  return kN % 64 == 0 ? 64 : kN % 32 == 0 ? 32 : kN;
}
template <int kN>
constexpr bool out_box_swizzled() {
  return kN % 32 == 0;
}
/// The map that store_rows<kN>() stores through: bf16, `stride` in elements.
template <int kN>
Result<CUtensorMap> out_map(void* data, int64_t rows, int64_t columns, int64_t stride) {
  return tensor_map({.data = data,
                     .format = MapFormat::bf16,
                     .rows = rows,
                     .columns = columns,
                     .stride_bytes = stride * 2,
                     .box_rows = 16,
                     .box_columns = out_box_columns<kN>(),
                     .swizzled = out_box_swizzled<kN>()});
}

/// Stores a warp's 16 rows of a wgmma result, rounded to bf16, at (row, column) of out. `staging`
/// is this warp's alone.
template <int kN>
__device__ void store_rows(char* staging, const CUtensorMap& out, int row, int column,
                           const float (&sums)[kN / 2], int lane) {
  constexpr int kBoxChunks = out_box_columns<kN>() / 8;  // of 8 columns, 16 bytes
  if (lane == 0) {
    wait_stores_read<0>();
  }
  __syncwarp();
  const uint32_t base = smem_address(staging);
  const int r = lane % 16;
#pragma unroll
  for (int i = 0; i < kN / 16; ++i) {
    const int chunk = 2 * i + lane / 16;
    const int in_box = r * kBoxChunks + chunk % kBoxChunks;
    const uint32_t offset = (chunk / kBoxChunks * 16 * kBoxChunks +
                             (out_box_swizzled<kN>() ? in_box ^ in_box / 8 % kBoxChunks : in_box)) *
                            16;
    const float* s = sums + 8 * i;
    store_matrices_x4(base + offset, pack_bf16x2(s[0], s[1]), pack_bf16x2(s[2], s[3]),
                      pack_bf16x2(s[4], s[5]), pack_bf16x2(s[6], s[7]));
  }
  fence_shared();
  __syncwarp();
  if (lane == 0) {
#pragma unroll
    for (int i = 0; i < kN / out_box_columns<kN>(); ++i) {
      store_tile(out, column + i * out_box_columns<kN>(), row, staging + i * 16 * kBoxChunks * 16);
    }
    commit_stores();
  }
}

}  // namespace weft::hopper

// mla_decode of 64 rows (tokens times heads) at a time on sm_90a, by wgmma. Two warpgroups share a
// block's rows, each with half of the value columns, as FlashMLA does (DeepSeek, 2025), whose sums
// of 64 x 512 fill the registers of both. They take turns with tiles of 64 keys: one multiplies the
// queries with a tile, moves the softmax on and shows its probabilities and maxima to the other;
// both multiply them with their half of the tile's values. What is done alone, the softmax, runs
// while the other multiplies. A ring of two tiles is filled by the copy engine, half by half as
// warpgroups give them back, or by four warps from rows in e4m3fn. A tile's last 64 columns, which
// are no values, are the probabilities' place when the scores have been made. Where a cache has
// keys as they are before RoPE, two more warps turn those columns in place, between the copy engine
// and the products (kTurns).
#pragma once

#include <type_traits>

#include "ops/mla_decode/hopper.cuh"
#include "ops/mla_decode/hopper_turn.cuh"

namespace weft::hopper {

struct ManyLatents {
  static constexpr int kKeys = 64;  ///< of a tile
  static constexpr int kRows = 64;
  static constexpr int kSlots = 2;
  static constexpr int kTileBytes = 64 * kRowBytes;  ///< 64 columns of keys, or of queries
  static constexpr int kSlotBytes = kLatentTiles * kTileBytes;
  static constexpr int kHalfTiles = kLatentRank / kLatentTileColumns / 2;  ///< of a half's columns
  static constexpr int kHalf = kLatentRank / 2;
  /// A slot's barriers: each half of its columns full, the last 64, each half empty; the last 64
  /// there, but to be turned.
  static constexpr int kBarriers = 6;
  static constexpr int kTurners = 64;  ///< threads that turn them, a key each
  using Pieces = LatentPieces<kRows>;
  using Exchange = LatentExchange<Pieces::kRounds>;
  static constexpr int kBytes =
      1024 + 3 * kSlotBytes + 2 * kRows * 4 + kSlots * kBarriers * 8 + sizeof(Exchange);
  /// Of a row, on its way to memory; in the place of the queries.
  static constexpr int kStaged = 512;
  static_assert(latent_stage_bytes(kStaged) <= kSlotBytes && Pieces::kRoundBytes <= kSlotBytes);
  static_assert(kBytes + sizeof(KeyShares<kKeys>::Scratch) + sizeof(SharedSegments) + 16 <= 232448,
                "more than a block may have");

  char* base;  ///< aligned to 1024

  __device__ explicit ManyLatents(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* slot(int i) const { return base + i * kSlotBytes; }
  __device__ char* queries() const { return base + kSlots * kSlotBytes; }
  /// A slot's probabilities, [64 rows][64 keys], and the maxima that they are relative to.
  __device__ char* weights(int i) const { return slot(i) + (kLatentTiles - 1) * kTileBytes; }
  __device__ float* highest(int i) const {
    return reinterpret_cast<float*>(queries() + kSlotBytes) + i * kRows;
  }
  __device__ Barrier& barrier(int slot, int i) const {
    return reinterpret_cast<Barrier*>(highest(2))[slot * kBarriers + i];
  }
  __device__ Barrier& full(int slot, int part) const { return barrier(slot, part); }
  __device__ Barrier& empty(int slot, int half) const { return barrier(slot, 3 + half); }
  __device__ Barrier& unturned(int slot) const { return barrier(slot, 5); }
  /// The queries' place, when a segment's last scores have been made.
  __device__ char* results() const { return queries(); }
  // Of clusters: half of the rows go from the queries' place to the first slot's, then the others
  // from the second slot's to the queries'.
  __device__ Exchange& exchange() const {
    return *reinterpret_cast<Exchange*>(&barrier(kSlots, 0));
  }
  __device__ char* staging(int round) const { return round == 0 ? queries() : slot(1); }
  __device__ char* mail(int round) const { return round == 0 ? slot(0) : queries(); }

  // Named barriers: a slot's probabilities are there; a warpgroup alone.
  static constexpr int kWeights = 2;
  static constexpr int kAlone = 4;
};

/// A tile of the line that a block walks: its slot, and the parity of the slot's turn.
struct TileCursor {
  uint32_t tile = 0;
  __device__ int slot() const { return static_cast<int>(tile & 1); }
  __device__ uint32_t parity() const { return tile >> 1 & 1; }
};

/// The warps that fill the ring: one for each half of the columns, `half`, or four for all (kFp8).
template <int kCluster, bool kFp8, bool kTurns>
__device__ void feed_tiles(const ManyLatents& shared, KeyShares<ManyLatents::kKeys> shares,
                           const CUtensorMap& map, const MlaParams& p, int rank, int half) {
  using Memory = ManyLatents;
  const int thread = static_cast<int>(threadIdx.x) - kLatentThreads;
  const bool chosen = elect_one();
  TileCursor cursor;
  KeySegment segment;
  for (uint32_t number = 0; shares.next(segment); ++number) {
    const LatentCache& cache = p.args.cache;
    LatentPages pages(cache.tables, cache.table_stride, p.block(segment.job), segment.length);
    if (kCluster > 1 && number > 0) {
      shared.exchange().ended.wait((number - 1) & 1);
    }
    const Range tiles = block_stages<kCluster>(segment, rank);
    for (auto i = static_cast<int>(tiles.begin); i < tiles.end; ++i, ++cursor.tile) {
      const int slot = cursor.slot();
      const uint32_t parity = cursor.parity() ^ 1;
      const int first = i * Memory::kKeys;
      const int valid = segment.length - first;
      const KeyPlace place = valid > 0 ? pages.place(first) : KeyPlace{};
      if constexpr (kFp8) {
        const char* from = static_cast<const char*>(cache.rows) +
                           (place.block * cache.block_stride + place.row) * kLatentFp8Bytes;
        Fp8Rows rows;
        rows.load(from, valid, thread);
        shared.empty(slot, 0).wait(parity);
        shared.empty(slot, 1).wait(parity);
#pragma unroll 1
        for (int batch = 0; batch < 2; ++batch) {
          rows.store(shared.slot(slot), Memory::kTileBytes, batch * Fp8Rows::kRows, thread);
          if (batch == 0) {
            rows.load(from + Fp8Rows::kRows * kLatentFp8Bytes, valid - Fp8Rows::kRows, thread);
          }
        }
        fence_shared();
        for (int part = 0; part < 3; ++part) {
          shared.full(slot, part).arrive();
        }
      } else {
        const auto load = [&](int part, int begin, int end) {
          if (chosen) {
            Barrier& full = kTurns && part == 2 ? shared.unturned(slot) : shared.full(slot, part);
            if (valid > 0) {
              full.arrive_expect((end - begin) * Memory::kTileBytes);
              for (int c = begin; c < end; ++c) {
                load_plane_tile(shared.slot(slot) + c * Memory::kTileBytes, map,
                                c * kLatentTileColumns, place.row, place.block, full);
              }
            } else {  // of no keys: nothing is read of the tile but zeros
              full.arrive();
            }
          }
          __syncwarp();
        };
        shared.empty(slot, half).wait(parity);
        load(half, half * Memory::kHalfTiles, (half + 1) * Memory::kHalfTiles);
        if (half != slot) {  // where both are done with the weights
          shared.empty(slot, slot).wait(parity);
          load(2, 2 * Memory::kHalfTiles, kLatentTiles);
        }
      }
    }
  }
}

/// The last 64 columns of each tile turned, by kTurners threads.
__device__ inline void turn_tiles(const ManyLatents& shared, KeyShares<ManyLatents::kKeys> shares,
                                  const MlaParams& p, int thread) {
  using Memory = ManyLatents;
  constexpr int kPieces = kLatentTurned / 2 / 8;  // of eight elements, of half a key's
  TileCursor cursor;
  KeySegment segment;
  while (shares.next(segment)) {
    for (int i = segment.begin; i < segment.end; ++i, ++cursor.tile) {
      const int slot = cursor.slot();
      const int position = i * Memory::kKeys + thread;
      // Nobody reads the keys behind the last.
      const bool there = position < segment.length;
      const auto* angles = static_cast<const uint4*>(p.args.cache.angles) + position * 2 * kPieces;
      uint4 cosines[kPieces];
      uint4 sines[kPieces];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        cosines[piece] = there ? __ldg(angles + piece) : uint4{};
        sines[piece] = there ? __ldg(angles + kPieces + piece) : uint4{};
      }
      shared.unturned(slot).wait(cursor.parity());
      if (there) {
        char* const tile = shared.slot(slot) + (kLatentTiles - 1) * Memory::kTileBytes;
#pragma unroll
        for (int piece = 0; piece < kPieces; ++piece) {
          const auto at = [&](int column) {
            return reinterpret_cast<uint4*>(tile + swizzle_128(thread * kRowBytes + column * 16));
          };
          uint4 a = *at(piece);
          uint4 b = *at(kPieces + piece);
          turn_halves(a, b, cosines[piece], sines[piece]);
          *at(piece) = a;
          *at(kPieces + piece) = b;
        }
      }
      fence_shared();
      shared.full(slot, 2).arrive();
    }
  }
}

/// What a thread of a warpgroup has of a segment: of rows r and r + 8 of its warp's 16 the softmax,
/// and the sums of its half's columns.
struct ManySums {
  float sums[ManyLatents::kHalf / 2];
  float highest[2];  ///< score, unscaled
  float total[2];    ///< of exponentials: this thread's; of all after gather()
  float scale;       ///< of scores, to powers of two
  int warpgroup;
  int row;  ///< the first of its rows
  int lane;

  __device__ ManySums(float score_scale, int warp, int lane)
      : scale(score_scale), warpgroup(warp / 4), row(warp % 4 * 16 + lane / 4), lane(lane) {
#pragma unroll
    for (float& x : sums) {
      x = 0;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      highest[half] = -INFINITY;
      total[half] = 0;
    }
  }

  /// Moves on to maxima that are no lower.
  __device__ void rescale(const float (&next)[2]) {
    float factor[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[half] = exp2_fast((highest[half] - softmax_shift(next[half])) * scale);
      highest[half] = next[half];
      total[half] *= factor[half];
    }
    // Most tiles have no higher score.
    if (__any_sync(~0u, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
      for (int i = 0; i < ManyLatents::kHalf / 2; ++i) {
        sums[i] *= factor[i / 2 % 2];
      }
    }
  }

  // As LatentResults wants it.
  static constexpr int kGroups = 1;
  static constexpr int kColumns = ManyLatents::kHalf;
  __device__ int top(int /*group*/) const { return row - lane / 4; }
  __device__ int left() const { return warpgroup * kColumns; }
  __device__ float sum(int /*group*/, int half) const { return total[half]; }
  __device__ float2 at(int /*group*/, int half, int j) const {
    return {sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]};
  }
  __device__ float peak(int /*group*/, int half) const { return highest[half] * scale; }
  __device__ bool answers() const { return warpgroup == 0; }
};

template <int kCluster, bool kFp8, bool kTurns = false>
__global__ void __launch_bounds__(kMlaThreads, 1)
    mla_decode_many(const __grid_constant__ CUtensorMap map, const __grid_constant__ MlaParams p) {
  using Memory = ManyLatents;
  static_assert(!kTurns || (kCluster == 1 && !kFp8), "turned in blocks alone, in bf16");
  constexpr int kFeeders = kFp8 ? 128 : 1;
  extern __shared__ __align__(1024) char memory[];
  __shared__ KeyShares<Memory::kKeys>::Scratch dealing;
  __shared__ SharedSegments pending;
  const Memory shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Memory::kSlots; ++slot) {
      for (int part = 0; part < 3; ++part) {
        shared.full(slot, part).init(kTurns && part == 2 ? Memory::kTurners : kFeeders);
      }
      shared.unturned(slot).init(1);
      shared.empty(slot, 0).init(4);
      shared.empty(slot, 1).init(4);
    }
    if constexpr (kCluster > 1) {
      shared.exchange().init(kCluster);
    }
    fence_barriers();
    prefetch_map(map);
  }
  begin_in_turn();
  const int rank = kCluster > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int group = static_cast<int>(blockIdx.x) / kCluster;
  const int unit = group / p.row_tiles;
  const int row_tile = group % p.row_tiles;
  if (warp == kLatentThreads / 32) {
    look_ahead(p, unit);
  }
  auto shares = KeyShares<Memory::kKeys>::deal<kMlaThreads>(p.jobs(), p.units, unit, dealing);
  if constexpr (kCluster > 1) {
    cluster_arrive();
  }
  if (warp >= kLatentThreads / 32) {
    lower_registers<kFp8     ? kFp8FeederRegisters
                    : kTurns ? kTurningFeederRegisters
                             : kFeederRegisters>();
    const int feeder = warp - kLatentThreads / 32;
    if (kFp8 || feeder < 2) {
      feed_tiles<kCluster, kFp8, kTurns>(shared, shares, map, p, rank, feeder);
    } else if constexpr (kTurns) {
      turn_tiles(shared, shares, p, static_cast<int>(threadIdx.x) % Memory::kTurners);
    }
    if constexpr (kCluster > 1) {
      cluster_wait();
    }
    return;
  }
  raise_registers<kFp8 ? kFp8Registers : kTurns ? kTurningRegisters : kRegisters>();

  const int warpgroup = warp / 4;
  const int rows = static_cast<int>(p.args.rows());
  const uint64_t query_tile = tile_descriptor(shared.queries());
  const uint64_t key_tile = tile_descriptor(shared.slot(0));
  const uint64_t value_tile = transposed_descriptor(
      shared.slot(0) + warpgroup * Memory::kHalfTiles * Memory::kTileBytes, Memory::kTileBytes);
  // Offset of what this lane names of the operands of 16 keys, among a slot's probabilities.
  const auto weight_chunk = [&](int step) {
    return swizzle_128((warp % 4 * 16 + lane % 16) * kRowBytes + (2 * step + lane / 16) * 16);
  };
  TileCursor cursor;  // of the segment's first tile
  LatentResults<Memory, kCluster> results(p, shared, row_tile, unit, rank, threadIdx.x, &pending);
  if constexpr (kCluster > 1) {
    cluster_wait();  // all blocks' barriers are there
  }
  KeySegment segment;
  while (shares.next(segment)) {
    // Queries: swizzled tiles of 64 columns; rows that there are not are zeros. They come to where
    // the results of the segment before may still be read.
    wait_stores_read<0>();
    named_sync(kLatentTeam, kLatentThreads);
    for (int r = warp; r < Memory::kRows; r += kLatentThreads / 32) {
      const int of_all = row_tile * Memory::kRows + r;
      const bool there = of_all < rows;
      const uint16_t* from = p.query(segment.job, there ? of_all : 0);
#pragma unroll
      for (int chunk = lane; chunk < kLatentRow / 8; chunk += 32) {
        copy_async_16(shared.queries() + chunk / 8 * Memory::kTileBytes +
                          swizzle_128(r * kRowBytes + chunk % 8 * 16),
                      from + 8 * chunk, there);
      }
    }
    commit_copies();
    await_copies<0>();
    fence_shared();
    named_sync(kLatentTeam, kLatentThreads);

    ManySums held(p.score_scale, warp, lane);
    const int first_row = row_tile * Memory::kRows + held.row;
    int seen[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = first_row + 8 * half;
      seen[half] = r < rows ? p.seen(segment, r) : segment.length;
    }
    const int all_see = segment.length - static_cast<int>(p.args.tokens) + 1;
    const Range range = block_stages<kCluster>(segment, rank);
    const auto tiles = static_cast<int>(range.size());
    const auto first_key = [&](int i) {
      return (static_cast<int>(range.begin) + i) * Memory::kKeys;
    };
    const auto place = [&](int i) { return TileCursor{cursor.tile + static_cast<uint32_t>(i)}; };

    float s[Memory::kKeys / 2];
    uint32_t weights[Memory::kKeys / 16][4];
    // Scores over some columns of a tile: a half of those that are values, or the last 64 (2).
    const auto multiply_keys = [&](int i, int part, int steps, bool onto) {
      const TileCursor at = place(i);
      const uint64_t keys = advance_steps<Memory::kSlotBytes>(key_tile, at.slot());
      shared.full(at.slot(), part).wait(at.parity());
      hold(s);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < steps; ++step) {
        const uint32_t offset =
            (part * Memory::kHalfTiles + step / 4) * Memory::kTileBytes + step % 4 * kWgmmaRowBytes;
        wgmma<Bf16, Memory::kKeys>(s, advance(query_tile, offset), advance(keys, offset),
                                   onto || step > 0);
      }
      wgmma_commit();
      hold(s);
    };
    const auto multiply_values = [&](int i) {
      const uint64_t values = advance_steps<Memory::kSlotBytes>(value_tile, place(i).slot());
      hold(held.sums);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < Memory::kKeys / 16; ++step) {
        wgmma_transposed<Memory::kHalf>(held.sums, weights[step],
                                        advance(values, step * 16 * kRowBytes));
      }
      wgmma_commit();
      hold(held.sums);
    };
    // What lies behind the last key may be NaN, which no weight of zero makes harmless: zeros, in
    // this warpgroup's columns, when the tile's scores have been made.
    const auto clear_behind = [&](int i) {
      const int valid = segment.length - first_key(i);
      if (valid >= Memory::kKeys) {
        return;
      }
      const int thread = threadIdx.x % 128;
      char* to = shared.slot(place(i).slot()) + warpgroup * Memory::kHalfTiles * Memory::kTileBytes;
      for (int j = max(0, valid) * 8 + thread; j < Memory::kKeys * 8; j += 128) {
        for (int c = 0; c < Memory::kHalfTiles; ++c) {
          *reinterpret_cast<uint4*>(to + c * Memory::kTileBytes + j * 16) = {};
        }
      }
      fence_shared();
      named_sync(Memory::kAlone + warpgroup, 128);
    };
    const auto give_back = [&](int i) {
      __syncwarp();
      if (lane == 0) {
        shared.empty(place(i).slot(), warpgroup).arrive();
      }
    };
    // Begins the product of the other warpgroup's weights with values.
    const auto begin_others = [&](int i) {
      const TileCursor at = place(i);
      named_sync(Memory::kWeights + at.slot(), kLatentThreads);
      // (Seen by the one who made the scores already; now by this warpgroup, too.)
      shared.full(at.slot(), warpgroup).wait(at.parity());
      const uint32_t from = smem_address(shared.weights(at.slot()));
#pragma unroll
      for (int step = 0; step < Memory::kKeys / 16; ++step) {
        const uint4 x = load_matrices_x4(from + weight_chunk(step));
        weights[step][0] = x.x;
        weights[step][1] = x.y;
        weights[step][2] = x.z;
        weights[step][3] = x.w;
      }
      const float* highest = shared.highest(at.slot());
      const float next[2] = {highest[held.row], highest[held.row + 8]};
      held.rescale(next);
      clear_behind(i);
      multiply_values(i);
    };
    // Of this warpgroup's own tile: scores become weights, and `next` their maxima.
    const auto take = [&](int i, float(&next)[2]) {
      const TileCursor at = place(i);
      const int first = first_key(i);
      if (first + Memory::kKeys > all_see) {
#pragma unroll
        for (int j = 0; j < Memory::kKeys / 2; ++j) {
          const int key = first + j / 4 * 8 + lane % 4 * 2 + j % 2;
          s[j] = key < seen[j / 2 % 2] ? s[j] : -INFINITY;
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float peak = -INFINITY;
#pragma unroll
        for (int j = 0; j < Memory::kKeys / 2; j += 4) {
          peak = fmaxf(peak, fmaxf(s[j + 2 * half], s[j + 2 * half + 1]));
        }
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
        peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
        next[half] = fmaxf(held.highest[half], peak);
        if (lane % 4 == 0) {
          shared.highest(at.slot())[held.row + 8 * half] = next[half];
        }
        const float shift = softmax_shift(next[half]) * held.scale;
#pragma unroll
        for (int j = 0; j < Memory::kKeys / 2; j += 4) {
#pragma unroll
          for (int k = 0; k < 2; ++k) {
            float& x = s[j + 2 * half + k];
            x = exp2_fast(x * held.scale - shift);
          }
        }
      }
      const uint32_t to = smem_address(shared.weights(at.slot()));
#pragma unroll
      for (int step = 0; step < Memory::kKeys / 16; ++step) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          weights[step][j] = pack_bf16x2(s[8 * step + 2 * j], s[8 * step + 2 * j + 1]);
        }
        store_matrices_x4(to + weight_chunk(step), weights[step][0], weights[step][1],
                          weights[step][2], weights[step][3]);
      }
      named_arrive(Memory::kWeights + at.slot(), kLatentThreads);
      fence_shared();  // the copy engine writes there next
    };

    const auto multiply_others = [&](int i) {
      begin_others(i);
      wgmma_wait<0>();
      hold(held.sums);
      give_back(i);
    };
    // A tile of this warpgroup's own, whose slot is its number. Between the parts of its scores
    // comes the product with the values of the other's tile before, `others`: its slot is free
    // sooner, so that scores of the next tile begin sooner. (With rows in e4m3fn there are not the
    // registers for both.)
    const auto multiply_own = [&](int i, auto others) {
      constexpr int kHalfSteps = 4 * Memory::kHalfTiles;
      constexpr bool kBetween = others && !kFp8;
      if constexpr (others && !kBetween) {
        multiply_others(i - 1);
      }
      multiply_keys(i, warpgroup, kHalfSteps, false);
      if constexpr (kBetween) {
        begin_others(i - 1);
      }
      multiply_keys(i, 2, 4, true);
      multiply_keys(i, 1 - warpgroup, kHalfSteps, true);
      if constexpr (kBetween) {
        wgmma_wait<2>();
        hold(held.sums);
        give_back(i - 1);
      }
      wgmma_wait<0>();
      hold(s);
      float next[2];
      take(i, next);
      held.rescale(next);
#pragma unroll
      for (int j = 0; j < Memory::kKeys / 2; ++j) {
        held.total[j / 2 % 2] += s[j];
      }
      clear_behind(i);
      multiply_values(i);
      wgmma_wait<0>();
      hold(held.sums);
      give_back(i);
    };
    int i = 1;
    if (tiles > 0 && cursor.slot() == warpgroup) {
      multiply_own(0, std::false_type());
      i = 2;
    }
    for (; i < tiles; i += 2) {
      multiply_own(i, std::true_type());
    }
    if (i == tiles) {
      multiply_others(tiles - 1);
    }
    cursor.tile += static_cast<uint32_t>(tiles);

    // Exponentials are summed by who made them: the other's come through shared memory. All tiles
    // have been used, so that the maxima's place is free, and the queries', where results go.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float& x = held.total[half];
      x += __shfl_xor_sync(~0u, x, 1);
      x += __shfl_xor_sync(~0u, x, 2);
    }
    named_sync(kLatentTeam, kLatentThreads);
    if (lane % 4 == 0) {
      shared.highest(warpgroup)[held.row] = held.total[0];
      shared.highest(warpgroup)[held.row + 8] = held.total[1];
    }
    named_sync(kLatentTeam, kLatentThreads);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = held.row + 8 * half;
      held.total[half] = shared.highest(0)[r] + shared.highest(1)[r];
    }
    results.store(shares, segment, held);
  }
  results.finish(shares);
}

}  // namespace weft::hopper

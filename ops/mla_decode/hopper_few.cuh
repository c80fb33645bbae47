// mla_decode of up to 32 rows (tokens times heads) on sm_90a, bound by reading the keys. A ring of
// stages of 32 keys, which the copy engine fills through a tensor map (or four warps from rows in
// e4m3fn), passes eight warps; before a segment's keys come its queries, each 16 rows as a stage.
// For the scores each warp takes 8 keys and half of their elements; the halves meet in shared
// memory, from where all warps take them all, for the same softmax in each; for the values each
// warp has 64 of the 512 columns. Products are mma.m16n8k16 in bf16, sums f32.
#pragma once

#include "ops/mla_decode/hopper.cuh"

namespace weft::hopper {

/// kRowTiles: of 16 rows.
template <int kRowTiles>
struct FewLatents {
  static constexpr int kTiles = kRowTiles;
  static constexpr int kKeys = 32;  ///< of a stage
  static constexpr int kRows = 16 * kTiles;
  static constexpr int kTileBytes = kKeys * kRowBytes;  ///< 64 columns of a stage
  static constexpr int kStageBytes = kLatentTiles * kTileBytes;
  static constexpr int kStages = kTiles == 1 ? 5 : 4;
  static constexpr int kWarps = kLatentThreads / 32;
  static constexpr int kSteps = kLatentRow / 16 / 2;  ///< of 16 elements, in half of a key
  /// Queries as warps' operands; of 16 rows they are in registers.
  static constexpr int kQueryBytes = kTiles == 1 ? 0 : kTiles * 2 * kSteps * 32 * 16;
  /// Rows of scores are so far apart that 8-byte accesses of a warp meet no bank twice.
  static constexpr int kPitch = kKeys + 8;
  static constexpr int kScoreFloats = kRows * kPitch;  ///< of half of the elements, of a stage
  static constexpr int kScoreBytes = 2 * 2 * kScoreFloats * 4;
  static constexpr int kStaged = kTiles == 1 ? 256 : 128;  ///< of a row, on its way to memory
  static constexpr int kResultBytes = latent_stage_bytes(kStaged);
  using Pieces = LatentPieces<kRows>;
  using Exchange = LatentExchange<Pieces::kRounds>;
  static constexpr int kBytes = 1024 + kStages * kStageBytes + kQueryBytes + kScoreBytes +
                                kResultBytes + 2 * kStages * 8 + sizeof(Exchange);
  static_assert(2 * Pieces::kRoundBytes <= kStages * kStageBytes);
  static_assert(kBytes + sizeof(typename KeyShares<kKeys>::Scratch) + sizeof(SharedSegments) + 16 <=
                    232448,
                "more than a block may have");

  char* base;  ///< aligned to 1024

  __device__ explicit FewLatents(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* stage(int slot) const { return base + slot * kStageBytes; }
  /// From one row of queries to the next in a stage, so that eight of them meet no bank twice.
  static constexpr int kQueryPitch = kLatentRow * 2 + 16;
  static_assert(16 * kQueryPitch <= kStageBytes);
  __device__ uint4* queries() const {
    return reinterpret_cast<uint4*>(base + kStages * kStageBytes);
  }
  /// Of a stage (they take turns) and half of the elements: [row][kPitch].
  __device__ float* scores(int turn, int half) const {
    return reinterpret_cast<float*>(base + kStages * kStageBytes + kQueryBytes) +
           (2 * turn + half) * kScoreFloats;
  }
  __device__ char* results() const {
    return base + kStages * kStageBytes + kQueryBytes + kScoreBytes;
  }
  __device__ Barrier& full(int slot) const {
    return reinterpret_cast<Barrier*>(results() + kResultBytes)[slot];
  }
  __device__ Barrier& empty(int slot) const { return (&full(0))[kStages + slot]; }
  // Of clusters, in the ring's place.
  __device__ Exchange& exchange() const {
    return *reinterpret_cast<Exchange*>(&full(0) + 2 * kStages);
  }
  __device__ char* staging(int /*round*/) const { return base; }
  __device__ char* mail(int /*round*/) const { return base + Pieces::kRoundBytes; }

  using Cursor = RingCursor<kStages>;
};

/// The warps that fill the ring with keys: one, or four (kFp8).
template <class Memory, int kCluster, bool kFp8>
__device__ void feed_latents(const Memory& shared, KeyShares<Memory::kKeys> shares,
                             const CUtensorMap& map, const MlaParams& p, int rank) {
  constexpr int kKeys = Memory::kKeys;
  const int thread = static_cast<int>(threadIdx.x) - kLatentThreads;
  const bool chosen = elect_one();
  typename Memory::Cursor cursor;
  KeySegment segment;
  for (uint32_t number = 0; shares.next(segment); ++number) {
    const LatentCache& cache = p.args.cache;
    LatentPages pages(cache.tables, cache.table_stride, p.block(segment.job), segment.length);
    if (kCluster > 1 && number > 0) {
      shared.exchange().ended.wait((number - 1) & 1);
    }
    for (int m = 0; m < Memory::kTiles; ++m) {  // the queries' stages
      cursor.advance();
    }
    const Range stages = block_stages<kCluster>(segment, rank);
    for (auto i = static_cast<int>(stages.begin); i < stages.end; ++i, cursor.advance()) {
      const int first = i * kKeys;
      if (first >= segment.length) {  // of no keys: nothing is read of the stage but zeros
        shared.empty(cursor.slot).wait(cursor.parity ^ 1);
        if constexpr (kFp8) {
          shared.full(cursor.slot).arrive();
        } else if (chosen) {
          shared.full(cursor.slot).arrive();
        }
        continue;
      }
      const KeyPlace place = pages.place(first);
      if constexpr (kFp8) {
        Fp8Rows rows;
        rows.load(static_cast<const char*>(cache.rows) +
                      (place.block * cache.block_stride + place.row) * kLatentFp8Bytes,
                  segment.length - first, thread);
        shared.empty(cursor.slot).wait(cursor.parity ^ 1);
        rows.store(shared.stage(cursor.slot), Memory::kTileBytes, 0, thread);
        shared.full(cursor.slot).arrive();
      } else {
        shared.empty(cursor.slot).wait(cursor.parity ^ 1);
        if (chosen) {
          Barrier& full = shared.full(cursor.slot);
          full.arrive_expect(Memory::kStageBytes);
#pragma unroll
          for (int c = 0; c < kLatentTiles; ++c) {
            load_plane_tile(shared.stage(cursor.slot) + c * Memory::kTileBytes, map,
                            c * kLatentTileColumns, place.row, place.block, full);
          }
        }
        __syncwarp();
      }
    }
  }
}

/// Brings 16 rows of a segment's queries, from `first` on, into a stage, each of the warps that
/// multiply some. `arrivals`: those that the stage's barrier waits for.
template <class Memory>
__device__ void bring_queries(const Memory& shared, const MlaParams& p, int job, int first,
                              const typename Memory::Cursor& cursor, int warp, uint32_t arrivals) {
  constexpr int kBytes = kLatentRow * 2;
  const int rows = max(0, min(16, static_cast<int>(p.args.rows()) - first));
  if (elect_one()) {
    Barrier& full = shared.full(cursor.slot);
    shared.empty(cursor.slot).wait(cursor.parity ^ 1);
    if (warp == 0) {
      full.arrive_expect(rows * kBytes);
      if (arrivals > 1) {
        full.arrive(arrivals - 1);
      }
    }
#pragma unroll 1
    for (int row = warp; row < rows; row += Memory::kWarps) {
      load_bytes(shared.stage(cursor.slot) + row * Memory::kQueryPitch, p.query(job, first + row),
                 kBytes, full);
    }
  }
  __syncwarp();
}

/// What a thread of the multiplying warps has of a segment: of rows lane / 4 + {0, 8} of each tile
/// their softmax, which all warps have alike, and of the warp's 64 columns the sums.
template <int kTiles>
struct FewSums {
  float highest[kTiles][2];  ///< score, unscaled
  float total[kTiles][2];    ///< of exponentials: this thread's keys; of all after gather()
  float sums[kTiles][8][4];
  float scale;
  int warp;
  int lane;

  __device__ FewSums(float score_scale, int warp, int lane)
      : scale(score_scale), warp(warp), lane(lane) {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        highest[m][half] = -INFINITY;
        total[m][half] = 0;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[m][j][i] = 0;
        }
      }
    }
  }

  /// Turns scores of 32 keys, elements of two operands of 16 keys, into exponentials.
  __device__ void take(int m, float (&x)[2][8]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float peak = -INFINITY;
      const auto each = [&](const auto& f) {
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
          for (int i = 0; i < 8; i += 4) {
            f(x[s][i + 2 * half]);
            f(x[s][i + 2 * half + 1]);
          }
        }
      };
      each([&](float score) { peak = fmaxf(peak, score); });
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 1));
      peak = fmaxf(peak, __shfl_xor_sync(~0u, peak, 2));
      const float next = fmaxf(highest[m][half], peak);
      const float shift = softmax_shift(next) * scale;
      const float rescale = exp2_fast(highest[m][half] * scale - shift);
      highest[m][half] = next;
      float added = 0;
      each([&](float& score) {
        score = exp2_fast(score * scale - shift);
        added += score;
      });
      total[m][half] = total[m][half] * rescale + added;
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        sums[m][j][2 * half] *= rescale;
        sums[m][j][2 * half + 1] *= rescale;
      }
    }
  }
  /// After the last keys.
  __device__ void gather() {
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float& x = total[m][half];
        x += __shfl_xor_sync(~0u, x, 1);
        x += __shfl_xor_sync(~0u, x, 2);
      }
    }
  }

  // As LatentResults wants it.
  static constexpr int kGroups = kTiles;
  static constexpr int kColumns = 64;
  __device__ int top(int group) const { return 16 * group; }
  __device__ int left() const { return warp * kColumns; }
  __device__ float sum(int group, int half) const { return total[group][half]; }
  __device__ float2 at(int group, int half, int j) const {
    return {sums[group][j][2 * half], sums[group][j][2 * half + 1]};
  }
  __device__ float peak(int group, int half) const { return highest[group][half] * scale; }
  __device__ bool answers() const { return warp == 0; }
};

template <int kTiles, int kCluster, bool kFp8>
__global__ void __launch_bounds__(kMlaThreads, 1)
    mla_decode_few(const __grid_constant__ CUtensorMap map, const __grid_constant__ MlaParams p) {
  using Memory = FewLatents<kTiles>;
  constexpr int kKeys = Memory::kKeys;
  constexpr int kFeeders = kFp8 ? 128 : 1;
  extern __shared__ __align__(1024) char memory[];
  __shared__ typename KeyShares<kKeys>::Scratch dealing;
  __shared__ SharedSegments pending;
  const Memory shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int slot = 0; slot < Memory::kStages; ++slot) {
      shared.full(slot).init(kFeeders);
      shared.empty(slot).init(Memory::kWarps);
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
  if (warp == Memory::kWarps) {
    look_ahead(p, unit);
  }
  auto shares = KeyShares<kKeys>::template deal<kMlaThreads>(p.jobs(), p.units, unit, dealing);
  if constexpr (kCluster > 1) {
    cluster_arrive();
  }
  if (warp >= Memory::kWarps) {
    lower_registers<kFp8 ? kFp8FeederRegisters : kFeederRegisters>();
    if (kFp8 || warp == Memory::kWarps) {
      feed_latents<Memory, kCluster, kFp8>(shared, shares, map, p, rank);
    }
    if constexpr (kCluster > 1) {
      cluster_wait();
    }
    return;
  }
  raise_registers<kFp8 ? kFp8Registers : kRegisters>();

  const int rows = static_cast<int>(p.args.rows());
  const int key_tile = warp % 4;  // of the scores: 8 keys, and half of the elements
  const int half_key = warp / 4;
  const auto key_chunk = [&](int i) {  // offset of what this lane names of 32 elements
    const int chunk = half_key * (kLatentRow / 16) + 4 * i + lane / 8;
    return chunk / 8 * Memory::kTileBytes +
           swizzle_128((key_tile * 8 + lane % 8) * kRowBytes + chunk % 8 * 16);
  };
  const auto value_chunk = [&](int step, int pair) {  // of 16 keys and 16 columns
    const int key = 16 * step + lane % 16;
    return warp * Memory::kTileBytes + swizzle_128(key * kRowBytes + (2 * pair + lane / 16) * 16);
  };
  typename Memory::Cursor cursor;
  int turn = 0;
  LatentResults<Memory, kCluster> results(p, shared, row_tile, unit, rank, threadIdx.x, &pending);
  if constexpr (kCluster > 1) {
    cluster_wait();  // all blocks' barriers are there
  }
  KeySegment segment;
  while (shares.next(segment)) {
    const auto row_of = [&](int m, int half) {
      return row_tile * Memory::kRows + 16 * m + 8 * half + lane / 4;
    };
    if constexpr (kCluster > 1) {
      results.await_exchange();
    }
    typename Memory::Cursor next = cursor;
#pragma unroll
    for (int m = 0; m < kTiles; ++m, next.advance()) {
      bring_queries(shared, p, segment.job, row_tile * Memory::kRows + 16 * m, next, warp,
                    kFeeders);
    }
    // A warp's operands: rows as they lie, 16 elements of them at a time.
    uint4 queries[kTiles == 1 ? Memory::kSteps : 1];
#pragma unroll
    for (int m = 0; m < kTiles; ++m, cursor.advance()) {
      shared.full(cursor.slot).wait(cursor.parity);
      const uint32_t from = smem_address(shared.stage(cursor.slot)) +
                            lane % 16 * Memory::kQueryPitch + lane / 16 * 16;
      uint32_t read = 0;
      if constexpr (kTiles == 1) {
#pragma unroll
        for (int i = 0; i < Memory::kSteps; ++i) {
          queries[i] = load_matrices_x4(from + (half_key * Memory::kSteps + i) * 32);
          read = queries[i].w;
        }
      } else {
        // (All warps are beyond the last products with the queries of the segment before: they have
        // met since, where scores did.)
        for (int i = warp; i < 2 * Memory::kSteps; i += Memory::kWarps) {
          const uint4 x = load_matrices_x4(from + i * 32);
          shared.queries()[(m * 2 * Memory::kSteps + i) * 32 + lane] = x;
          read = x.w;
        }
      }
      __syncwarp();
      if (lane == 0) {
        shared.empty(cursor.slot).arrive_after(read);
      }
    }
    if constexpr (kTiles > 1) {
      named_sync(kLatentTeam, kLatentThreads);
    }
    const auto query = [&](int m, int i) {
      if constexpr (kTiles == 1) {
        return queries[i];
      } else {
        return shared
            .queries()[(m * 2 * Memory::kSteps + half_key * Memory::kSteps + i) * 32 + lane];
      }
    };
    int seen[kTiles][2];
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int r = row_of(m, half);
        seen[m][half] = r < rows ? p.seen(segment, r) : segment.length;
      }
    }
    const int all_see = segment.length - static_cast<int>(p.args.tokens) + 1;

    FewSums<kTiles> held(p.score_scale, warp, lane);
    const Range stages = block_stages<kCluster>(segment, rank);
    for (auto stage = static_cast<int>(stages.begin); stage < stages.end;
         ++stage, cursor.advance(), turn ^= 1) {
      const int first = stage * kKeys;
      char* const tiles = shared.stage(cursor.slot);
      const uint32_t address = smem_address(tiles);
      shared.full(cursor.slot).wait(cursor.parity);
      // Several sums, so that a product need not wait for the one before it.
      constexpr int kChains = kTiles == 1 ? 4 : 2;
      float chains[kTiles][kChains][4] = {};
#pragma unroll
      for (int i = 0; i < Memory::kSteps / 2; ++i) {
        const uint4 key = load_matrices_x4(address + key_chunk(i));
#pragma unroll
        for (int m = 0; m < kTiles; ++m) {
          mma_bf16(chains[m][2 * i % kChains], query(m, 2 * i), key.x, key.y);
          mma_bf16(chains[m][(2 * i + 1) % kChains], query(m, 2 * i + 1), key.z, key.w);
        }
      }
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        float* to = shared.scores(turn, half_key) + (16 * m + lane / 4) * Memory::kPitch +
                    8 * key_tile + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float2 x{chains[m][0][2 * half], chains[m][0][2 * half + 1]};
#pragma unroll
          for (int i = 1; i < kChains; ++i) {
            x.x += chains[m][i][2 * half];
            x.y += chains[m][i][2 * half + 1];
          }
          *reinterpret_cast<float2*>(to + 8 * half * Memory::kPitch) = x;
        }
      }
      named_sync(kLatentTeam, kLatentThreads);

      uint4 weights[kTiles][2];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        float x[2][8];  // as operands: rows 0, 8, then the same 8 keys further on
#pragma unroll
        for (int s = 0; s < 2; ++s) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int at = (16 * m + lane / 4 + i % 2 * 8) * Memory::kPitch + 16 * s + i / 2 * 8 +
                           lane % 4 * 2;
            const auto part = [&](int half) {
              return *reinterpret_cast<const float2*>(shared.scores(turn, half) + at);
            };
            const float2 a = part(0);
            const float2 b = part(1);
            x[s][2 * i] = a.x + b.x;
            x[s][2 * i + 1] = a.y + b.y;
          }
        }
        if (first + kKeys > all_see) {
#pragma unroll
          for (int s = 0; s < 2; ++s) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
              const int key = first + 16 * s + i / 4 * 8 + lane % 4 * 2 + i % 2;
              x[s][i] = key < seen[m][i / 2 % 2] ? x[s][i] : -INFINITY;
            }
          }
        }
        held.take(m, x);
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          weights[m][s] = {pack_bf16x2(x[s][0], x[s][1]), pack_bf16x2(x[s][2], x[s][3]),
                           pack_bf16x2(x[s][4], x[s][5]), pack_bf16x2(x[s][6], x[s][7])};
        }
      }
      if (first + kKeys > segment.length) {
        // What lies behind the last key may be NaN, which no weight of zero makes harmless: zeros,
        // of the columns that this warp alone reads as values. All have read them as keys.
        for (int key = max(0, segment.length - first) + lane / 8; key < kKeys; key += 4) {
          *reinterpret_cast<uint4*>(tiles + warp * Memory::kTileBytes + key * kRowBytes +
                                    lane % 8 * 16) = {};
        }
        fence_shared();  // the copy engine writes there next
        __syncwarp();
      }
      uint32_t read = 0;
#pragma unroll
      for (int s = 0; s < 2; ++s) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          const uint4 value = load_transposed_x4(address + value_chunk(s, pair));
#pragma unroll
          for (int m = 0; m < kTiles; ++m) {
            mma_bf16(held.sums[m][2 * pair], weights[m][s], value.x, value.y);
            mma_bf16(held.sums[m][2 * pair + 1], weights[m][s], value.z, value.w);
          }
          read = value.w;
        }
      }
      __syncwarp();
      if (lane == 0) {
        shared.empty(cursor.slot).arrive_after(read);
      }
    }
    held.gather();
    results.store(shares, segment, held);
  }
  results.finish(shares);
}

}  // namespace weft::hopper

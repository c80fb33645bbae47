// mla_layer on sm_90a: what it has beside gemm_bf16 and mla_decode, products of 128 sequences' rows
// with a head's own weights by wgmma. A block has one head, whose weights it asks for at once: what
// the products wait for is memory, not arithmetic.
#include "arch/hopper/attention.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/gemm.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/mla_decode/hopper_turn.cuh"
#include "ops/mla_layer/op.h"

namespace weft::hopper {
namespace {

constexpr int kRows = 128;             ///< sequences of a block, 64 a warpgroup
constexpr int kColumns = 128;          ///< of a result at a time
constexpr int kDepth = kRowBytes / 2;  ///< elements of k that a tile has
constexpr int kThreads = 256;
/// 128 rows of 128 bytes: sequences, results' columns or, transposed, elements of k.
constexpr int kTileBytes = 128 * kRowBytes;
constexpr int kStagingBytes = staging_bytes<kColumns>();  ///< of a warp

/// What both kernels are told.
struct HeadMaps {
  CUtensorMap a;    ///< [sequences, heads * k], boxes of kRows rows and kDepth columns
  CUtensorMap w;    ///< kv_up: boxes of 128 rows and 64 columns
  CUtensorMap out;  ///< see out_map()
  bool constant_weights = false;
};

/// Shared memory: tiles, results on their way out, barriers.
template <int kTileCount, int kBarrierCount>
struct HeadShared {
  static constexpr int kBytes =
      1024 + kTileCount * kTileBytes + kThreads / 32 * kStagingBytes + kBarrierCount * 8;

  char* base;  ///< aligned to 1024

  __device__ explicit HeadShared(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* tile(int i) const { return base + i * kTileBytes; }
  __device__ char* staging(int warp) const {
    return base + kTileCount * kTileBytes + warp * kStagingBytes;
  }
  __device__ Barrier& full(int i) const {
    return reinterpret_cast<Barrier*>(staging(kThreads / 32))[i];
  }
  /// By all threads: each barrier waits for one arrival.
  __device__ void prepare() const {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kBarrierCount; ++i) {
        full(i).init(1);
      }
      fence_barriers();
    }
    __syncthreads();
  }
};

/// The queries' part that RoPE turns, all at one position, and how many keys each sequence has.
struct QueryTurn {
  ConstMatrix q;       ///< [batch, heads * 192]
  Matrix queries;      ///< [batch, heads * 576]
  const void* angles;  ///< of the position
  int32_t* lengths;    ///< [batch]
  int length;          ///< of each
  int batch;

  /// By all threads of a block.
  __device__ void operator()(int head, int first) const {
    constexpr int kPieces = kLatentTurned / 2 / 8;
    const int count = min(kRows, batch - first);
    for (int i = static_cast<int>(threadIdx.x); i < count * kPieces; i += kThreads) {
      const int64_t row = first + i / kPieces;
      const int piece = i % kPieces;
      const auto* from = reinterpret_cast<const uint4*>(
          static_cast<const uint16_t*>(q.data) + row * q.stride + head * kLayerQuery + kLayerNope);
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(queries.data) +
                                          row * queries.stride + head * kLatentRow + kLatentRank);
      const auto* of = static_cast<const uint4*>(angles);
      uint4 a = from[piece];
      uint4 b = from[kPieces + piece];
      turn_halves(a, b, of[piece], of[kPieces + piece]);
      to[piece] = a;
      to[kPieces + piece] = b;
    }
    for (int i = static_cast<int>(threadIdx.x); head == 0 && i < count; i += kThreads) {
      lengths[first + i] = length;
    }
  }
};

// Of absorbed queries, q[128 sequences, 128] K[128, 512]: two tiles of q, and two of each 128
// columns of K.
constexpr int kAbsorbedTiles = kLayerNope / kDepth;
constexpr int kAbsorbedTurns = kLatentRank / kColumns;
using AbsorbedShared =
    HeadShared<kAbsorbedTiles + kAbsorbedTurns * kColumns / 64, 1 + kAbsorbedTurns>;

__global__ void __launch_bounds__(kThreads, 1)
    absorb_queries(const __grid_constant__ HeadMaps maps, const __grid_constant__ QueryTurn turn) {
  let_next_begin();
  extern __shared__ __align__(1024) char memory[];
  const AbsorbedShared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kRows;
  shared.prepare();
  Barrier& queries_full = shared.full(kAbsorbedTurns);
  const auto keys = [&](int n) { return shared.tile(kAbsorbedTiles + 2 * n); };
  if (threadIdx.x == 0) {
    if (!maps.constant_weights) {
      wait_for_earlier();
    }
    for (int n = 0; n < kAbsorbedTurns; ++n) {
      shared.full(n).arrive_expect(2 * kTileBytes);
      for (int half = 0; half < 2; ++half) {
        load_tile(keys(n) + half * kTileBytes, maps.w, n * kColumns + half * 64,
                  head * static_cast<int>(kLayerHeadRows), shared.full(n));
      }
    }
  }
  wait_for_earlier();
  if (threadIdx.x == 0) {
    queries_full.arrive_expect(kAbsorbedTiles * kTileBytes);
    for (int k = 0; k < kAbsorbedTiles; ++k) {
      load_tile(shared.tile(k), maps.a, head * static_cast<int>(kLayerQuery) + k * kDepth, first,
                queries_full);
    }
  }
  turn(head, first);

  // The queries' fragments, kept for all columns.
  constexpr int kSteps = kLayerNope / 16;
  uint32_t a[kSteps][4];
  queries_full.wait(0);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint4 x = load_matrices_x4(
        smem_address(shared.tile(step / 4)) +
        swizzle_128((warp * 16 + lane % 16) * kRowBytes + (step % 4 * 2 + lane / 16) * 16));
    a[step][0] = x.x;
    a[step][1] = x.y;
    a[step][2] = x.z;
    a[step][3] = x.w;
  }
#pragma unroll 1
  for (int n = 0; n < kAbsorbedTurns; ++n) {
    float sums[kColumns / 2];
#pragma unroll
    for (float& x : sums) {
      x = 0;
    }
    shared.full(n).wait(0);
    const uint64_t w = transposed_descriptor(keys(n), kTileBytes);
    hold(sums);
    wgmma_begin();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      wgmma_transposed<kColumns>(sums, a[step], advance(w, step * 16 * kRowBytes));
    }
    wgmma_commit();
    wgmma_wait<0>();
    hold(sums);
    store_rows<kColumns>(shared.staging(warp), maps.out, first + warp * 16,
                         head * static_cast<int>(kLatentRow) + n * kColumns, sums, lane);
  }
  if (lane == 0) {
    wait_stores_read<0>();
  }
}

// Of values, latents[128 sequences, 512] V[128, 512]^T: a slot has a tile of either.
constexpr int kValueSteps = kLatentRank / kDepth;
constexpr int kValueSlots = 6;
using ValueShared = HeadShared<2 * kValueSlots, kValueSteps>;

__global__ void __launch_bounds__(kThreads, 1)
    multiply_values(const __grid_constant__ HeadMaps maps) {
  let_next_begin();
  extern __shared__ __align__(1024) char memory[];
  const ValueShared shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int head = static_cast<int>(blockIdx.x);
  const int first = static_cast<int>(blockIdx.y) * kRows;
  shared.prepare();
  const auto latents = [&](int step) { return shared.tile(step % kValueSlots * 2); };
  const auto weights = [&](int step) { return latents(step) + kTileBytes; };
  const auto load_weights = [&](int step) {
    shared.full(step).arrive_expect(2 * kTileBytes);
    load_tile(weights(step), maps.w, step * kDepth,
              head * static_cast<int>(kLayerHeadRows) + static_cast<int>(kLayerNope),
              shared.full(step));
  };
  const auto load_latents = [&](int step) {
    load_tile(latents(step), maps.a, head * static_cast<int>(kLatentRank) + step * kDepth, first,
              shared.full(step));
  };
  if (threadIdx.x == 0) {
    if (!maps.constant_weights) {
      wait_for_earlier();
    }
    for (int step = 0; step < kValueSlots; ++step) {
      load_weights(step);
    }
    wait_for_earlier();
    for (int step = 0; step < kValueSlots; ++step) {
      load_latents(step);
    }
  }
  __syncwarp();
  float sums[kColumns / 2];
#pragma unroll 1
  for (int step = 0; step < kValueSteps; ++step) {
    shared.full(step).wait(0);
    begin_row_products<Bf16>(sums, tile_descriptor(latents(step) + warp / 4 * (kTileBytes / 2)),
                             tile_descriptor(weights(step)), step > 0);
    // The first slots are wanted once more.
    constexpr int kAgain = kValueSteps - kValueSlots;
    if (step == kAgain) {
      wgmma_wait<1>();
      hold(sums);
      __syncthreads();
      if (threadIdx.x == 0) {
        for (int again = kValueSlots; again < kValueSteps; ++again) {
          load_weights(again);
          load_latents(again);
        }
      }
      __syncwarp();
    }
  }
  wgmma_wait<0>();
  hold(sums);
  store_rows<kColumns>(shared.staging(warp), maps.out, first + warp * 16, head * kColumns, sums,
                       lane);
  if (lane == 0) {
    wait_stores_read<0>();
  }
}
static_assert(kLayerNope == 128 && kLayerValue == kColumns);

/// `columns` of a head in a and in out.
Result<HeadMaps> head_maps(const MlaLayerArgs& args, const Matrix& a, int64_t a_columns,
                           const Matrix& out, int64_t out_columns) {
  HeadMaps maps{.constant_weights = args.constant_weights};
  WEFT_ASSIGN(maps.a, tensor_map({.data = a.data,
                                  .format = MapFormat::bf16,
                                  .rows = args.batch,
                                  .columns = args.heads * a_columns,
                                  .stride_bytes = a.stride * 2,
                                  .box_rows = kRows,
                                  .box_columns = kDepth}));
  WEFT_ASSIGN(maps.w, tensor_map({.data = args.kv_up.data,
                                  .format = MapFormat::bf16,
                                  .rows = args.heads * kLayerHeadRows,
                                  .columns = kLatentRank,
                                  .stride_bytes = args.kv_up.stride * 2,
                                  .box_rows = 128,
                                  .box_columns = kDepth}));
  WEFT_ASSIGN(maps.out,
              out_map<kColumns>(out.data, args.batch, args.heads * out_columns, out.stride));
  return maps;
}

LaunchShape launch_shape(const MlaLayerArgs& args, int shared_bytes, Stream stream) {
  return {.blocks = static_cast<int>(args.heads),
          .blocks_y = static_cast<int>(ceil_div(args.batch, kRows)),
          .threads = kThreads,
          .shared_bytes = shared_bytes,
          .overlaps = true,
          .stream = static_cast<cudaStream_t>(stream.native)};
}

Status queries(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  WEFT_ASSIGN(const HeadMaps maps,
              head_maps(args, buffers.q, kLayerQuery, buffers.queries, kLatentRow));
  const QueryTurn turn{
      .q = to_const(buffers.q),
      .queries = buffers.queries,
      .angles = static_cast<const uint16_t*>(args.angles) + args.prefill * kLatentTurned,
      .lengths = buffers.lengths,
      .length = static_cast<int>(args.prefill + 1),
      .batch = static_cast<int>(args.batch)};
  return launch_kernel(absorb_queries, launch_shape(args, AbsorbedShared::kBytes, stream), maps,
                       turn);
}

Status values(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  WEFT_ASSIGN(const HeadMaps maps,
              head_maps(args, buffers.seen, kLatentRank, buffers.values, kLayerValue));
  return launch_kernel(multiply_values, launch_shape(args, ValueShared::kBytes, stream), maps);
}

}  // namespace

const MlaLayerKernels mla_layer = {queries, values};

}  // namespace weft::hopper

// attention of many rows on sm_90a, after FlashAttention-3 (Shah et al. 2024): a feeder loads tiles
// of keys and values into a ring, two warpgroups with 64 rows each multiply them. The scores of the
// next keys are computed while the values of the last ones are multiplied, so that the tensor cores
// work under the softmax. Sums, maxima and exponentials are f32; probabilities are rounded to bf16.
#include <algorithm>

#include "arch/hopper/attention.cuh"
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "ops/attention/hopper_prefill.h"
#include "ops/attention/hopper_sinks.cuh"
#include "ops/hopper_activation.cuh"

namespace weft::hopper {
namespace {

constexpr int kWarpgroups = 2;
constexpr int kRows = 64 * kWarpgroups;  ///< of a block
constexpr int kWarps = 4 * kWarpgroups;
constexpr int kThreads = 128 * (kWarpgroups + 1);
constexpr int kTileColumns = kRowBytes / 2;  ///< bf16 in a row of a tile

// Named barriers.
constexpr int kTurn = 1;  ///< of the first warpgroup; the next one is the second's
constexpr int kPrepared = 3;

/// kDim, kValueDim: columns of a head's keys and values, filled up with zeros to whole tiles;
/// kKeys: multiplied at a time.
template <int kDim, int kValueDim, int kKeys, int kStages>
struct Shared {
  static constexpr int kColumnTiles = kDim / kTileColumns;
  static constexpr int kValueTiles = kValueDim / kTileColumns;
  static constexpr int kQueryTile = 64 * kRowBytes;  ///< a warpgroup's rows of 64 columns
  static constexpr int kQueryBytes = kWarpgroups * kColumnTiles * kQueryTile;
  static constexpr int kKeyTile = kKeys * kRowBytes;
  static constexpr int kKeyBytes = kColumnTiles * kKeyTile;  ///< a stage
  static constexpr int kValueBytes = kValueTiles * kKeyTile;
  static constexpr int kStageBytes = kStages * (kKeyBytes + kValueBytes);  ///< of all
  static constexpr int kBytes = 1024 + kQueryBytes + kStageBytes + (4 * kStages + 1) * 8;
  static_assert(kBytes <= 232448, "more than a block may have");

  char* base;  ///< aligned to 1024

  __device__ explicit Shared(char* memory)
      : base(memory + (1024 - smem_address(memory) % 1024) % 1024) {}
  __device__ char* queries(int warpgroup) const {
    return base + warpgroup * kColumnTiles * kQueryTile;
  }
  __device__ char* keys(int slot) const { return base + kQueryBytes + slot * kKeyBytes; }
  __device__ char* values(int slot) const { return keys(kStages) + slot * kValueBytes; }
  __device__ Barrier& barrier(int index) const {
    return reinterpret_cast<Barrier*>(base + kQueryBytes + kStageBytes)[index];
  }
  __device__ Barrier& keys_full(int slot) const { return barrier(slot); }
  __device__ Barrier& keys_empty(int slot) const { return barrier(kStages + slot); }
  __device__ Barrier& values_full(int slot) const { return barrier(2 * kStages + slot); }
  __device__ Barrier& values_empty(int slot) const { return barrier(3 * kStages + slot); }
  __device__ Barrier& queries_full() const { return barrier(4 * kStages); }

  using Cursor = RingCursor<kStages>;
};

struct Params {
  void* out = nullptr;  ///< [rows, query_heads * value_dim]
  int64_t out_stride = 0;
  int rows = 0;
  int first = 0;  ///< position of row 0
  int query_heads = 0;
  int group = 1;  ///< query heads of a KV head
  int value_dim = 0;
  int shared_tile = 0;    ///< of a key's columns: the one that all heads share; -1: none
  int window = 0;         ///< 0: all keys
  float score_scale = 0;  ///< with log2(e): of scores, or of tanh() of them
  float cap_scale = 0;    ///< kCapped: what scores are multiplied by under tanh()
  ConstVector sinks = {};
};

template <int kValue>
struct Number {};

__device__ float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}
__device__ float over_quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

/// What a thread knows of the softmax of its two rows: r and r + 8 of the warp's 16.
struct SoftmaxRows {
  float peak[2] = {-INFINITY, -INFINITY};  ///< of the scores so far, unscaled
  float sum[2] = {0, 0};                   ///< of exponentials, this thread's columns

  /// Turns scores into exponentials. `rescale`: what earlier sums are to be multiplied with.
  template <int kCount>
  __device__ void take(float (&s)[kCount], float scale, float (&rescale)[2]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float highest = s[2 * half];
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        highest = fmaxf(highest, fmaxf(s[i + 2 * half], s[i + 2 * half + 1]));
      }
      const float next = fmaxf(peak[half], over_quad_max(highest));
      // A row that has seen no key yet: its exponentials are to be 0, not NaN.
      const float shift = next == -INFINITY ? 0 : __fmul_rn(next, scale);
      // Not fused, so that it is 1 where the peak is as it was: how many keys behind its own a
      // row's tile has must change none of its bits.
      rescale[half] = exp2_fast(__fadd_rn(__fmul_rn(peak[half], scale), -shift));
      peak[half] = next;
      float added = 0;
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          float& x = s[i + 2 * half + j];
          x = exp2_fast(x * scale - shift);
          added += x;
        }
      }
      sum[half] = sum[half] * rescale[half] + added;
    }
  }
};

/// Scores become operands: 16 keys are a step of the product with the values.
template <int kKeys>
__device__ void round_probabilities(const float (&s)[kKeys / 2], uint32_t (&p)[kKeys / 16][4]) {
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      p[i][j] = pack_bf16x2(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
    }
  }
}

template <int kDim, int kValueDim, int kKeys, int kStages, class Out, bool kCapped>
__global__ void __launch_bounds__(kThreads, 1)
    attention_chunk(const __grid_constant__ CUtensorMap queries,
                    const __grid_constant__ CUtensorMap keys,
                    const __grid_constant__ CUtensorMap shared_keys,
                    const __grid_constant__ CUtensorMap values, const __grid_constant__ Params p) {
  let_next_begin();
  using Memory = Shared<kDim, kValueDim, kKeys, kStages>;
  extern __shared__ __align__(1024) char memory[];
  const Memory shared(memory);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  // The feeder prepares the barriers and goes ahead; the others wait for it.
  if (warp == kWarps) {
    if (elect_one()) {
      for (int slot = 0; slot < kStages; ++slot) {
        shared.keys_full(slot).init(1);
        shared.values_full(slot).init(1);
        shared.keys_empty(slot).init(kWarps);
        shared.values_empty(slot).init(kWarps);
      }
      shared.queries_full().init(1);
      fence_barriers();
    }
    __syncwarp();
    named_arrive(kPrepared, kThreads);
  } else {
    named_sync(kPrepared, kThreads);
  }
  wait_for_earlier();

  // Blocks with the most keys first; those of one KV head side by side.
  const int head = blockIdx.x % p.query_heads;
  const int row_tiles = (p.rows + kRows - 1) / kRows;
  const int row = (row_tiles - 1 - static_cast<int>(blockIdx.x) / p.query_heads) * kRows;
  const int end = p.first + min(row + kRows, p.rows);  // of the keys
  const int oldest = p.window > 0 ? max(0, p.first + row - p.window + 1) : 0;
  const int first_tile = oldest / kKeys;
  const int tiles = (end + kKeys - 1) / kKeys - first_tile;

  constexpr int kFeederRegisters = 24;
  constexpr int kRegisters = 240;
  if (warp >= kWarps) {
    lower_registers<kFeederRegisters>();
    if (warp == kWarps) {
      const bool chosen = elect_one();  // the loop is everyone's, which keeps it uniform and short
      const auto load = [&]<int kTiles>(Number<kTiles>, char* to, const CUtensorMap& map, int y,
                                        int plane, int tile_bytes, Barrier& full, int other = -1) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          if (i == other) {
            load_plane_tile(to + i * tile_bytes, shared_keys, 0, y, 0, full);
          } else {
            load_plane_tile(to + i * tile_bytes, map, i * kTileColumns, y, plane, full);
          }
        }
      };
      constexpr Number<Memory::kColumnTiles> kOfKeys;
      constexpr Number<Memory::kValueTiles> kOfValues;
      if (chosen) {
        shared.queries_full().arrive_expect(Memory::kQueryBytes);
        for (int i = 0; i < kWarpgroups; ++i) {
          load(kOfKeys, shared.queries(i), queries, row + 64 * i, head, Memory::kQueryTile,
               shared.queries_full());
        }
      }
      const int kv_head = head / p.group;
      typename Memory::Cursor cursor;
      for (int i = 0; i < tiles; ++i, cursor.advance()) {
        const int slot = cursor.slot;
        const int key = (first_tile + i) * kKeys;
        shared.keys_empty(slot).wait(cursor.parity ^ 1);
        if (chosen) {
          shared.keys_full(slot).arrive_expect(Memory::kKeyBytes);
          load(kOfKeys, shared.keys(slot), keys, key, kv_head, Memory::kKeyTile,
               shared.keys_full(slot), p.shared_tile);
        }
        shared.values_empty(slot).wait(cursor.parity ^ 1);
        if (chosen) {
          shared.values_full(slot).arrive_expect(Memory::kValueBytes);
          load(kOfValues, shared.values(slot), values, key, kv_head, Memory::kKeyTile,
               shared.values_full(slot));
        }
      }
    }
  } else {
    raise_registers<kRegisters>();
    const int warpgroup = warp / 4;
    const uint64_t q_tile = tile_descriptor(shared.queries(warpgroup));
    const uint64_t k_tile = tile_descriptor(shared.keys(0));
    const uint64_t v_tile = transposed_descriptor(shared.values(0), Memory::kKeyTile);
    // This thread's first row; the other is 8 further on.
    const int r = row + warpgroup * 64 + warp % 4 * 16 + lane / 4;

    float s[kKeys / 2];
    float o[kValueDim / 2] = {};
    uint32_t probabilities[kKeys / 16][4];
    SoftmaxRows rows;
    float rescale[2];
    typename Memory::Cursor k_cursor;
    typename Memory::Cursor v_cursor;

    const auto multiply_keys = [&] {
      const uint64_t tile = advance_steps<Memory::kKeyBytes>(k_tile, k_cursor.slot);
      hold(s);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kDim / 16; ++i) {
        const uint32_t step = i % 4 * kWgmmaRowBytes;
        wgmma<Bf16, kKeys>(s, advance(q_tile, i / 4 * Memory::kQueryTile + step),
                           advance(tile, i / 4 * Memory::kKeyTile + step), i > 0);
      }
      wgmma_commit();
      hold(s);
    };
    const auto multiply_values = [&] {
      const uint64_t tile = advance_steps<Memory::kValueBytes>(v_tile, v_cursor.slot);
      hold(o);
      wgmma_begin();
#pragma unroll
      for (int i = 0; i < kKeys / 16; ++i) {
        wgmma_transposed<kValueDim>(o, probabilities[i], advance(tile, i * 16 * kRowBytes));
      }
      wgmma_commit();
      hold(o);
    };
    const auto free_slot = [&](Barrier& empty) {
      __syncwarp();
      if (lane == 0) {
        empty.arrive();
      }
    };
    // Soft caps; and what row r may not see of tile i gets no weight.
    const int window = p.window > 0 ? p.window : 1 << 30;
    const auto mask = [&](int i) {
      if constexpr (kCapped) {
#pragma unroll
        for (float& score : s) {
          score = tanh_fast(score * p.cap_scale);
        }
      }
      const int key = (first_tile + i) * kKeys;
      const int lowest = p.first + row + warpgroup * 64;  // position of the warpgroup's first row
      const bool ahead = key + kKeys - 1 > lowest;
      const bool behind = key < lowest + 63 - window + 1;
      if (ahead || behind) {
#pragma unroll
        for (int j = 0; j < kKeys / 2; ++j) {
          const int position = p.first + r + j / 2 % 2 * 8;
          const int column = key + j / 4 * 8 + lane % 4 * 2 + j % 2;
          const bool seen = (column <= position) & (column > position - window);
          s[j] = seen ? s[j] : -INFINITY;
        }
      }
    };

    shared.queries_full().wait(0);
    shared.keys_full(0).wait(0);
    multiply_keys();
    wgmma_wait<0>();
    hold(s);
    free_slot(shared.keys_empty(0));
    k_cursor.advance();
    mask(0);
    rows.take(s, p.score_scale, rescale);  // nothing was summed yet: rescale is of no use
    round_probabilities<kKeys>(s, probabilities);

    // Warpgroups take turns in giving the tensor cores work, so that one's softmax runs while they
    // do the other's products.
    if (warpgroup == 1) {
      named_arrive(kTurn, 256);
    }
    for (int i = 1; i < tiles; ++i) {
      shared.keys_full(k_cursor.slot).wait(k_cursor.parity);
      shared.values_full(v_cursor.slot).wait(v_cursor.parity);
      named_sync(kTurn + warpgroup, 256);
      multiply_keys();
      multiply_values();
      named_arrive(kTurn + 1 - warpgroup, 256);
      wgmma_wait<1>();
      hold(s);
      free_slot(shared.keys_empty(k_cursor.slot));
      k_cursor.advance();
      mask(i);
      rows.take(s, p.score_scale, rescale);
      wgmma_wait<0>();
      hold(o);
      free_slot(shared.values_empty(v_cursor.slot));
      v_cursor.advance();
#pragma unroll
      for (int j = 0; j < kValueDim / 2; ++j) {
        o[j] *= rescale[j / 2 % 2];
      }
      round_probabilities<kKeys>(s, probabilities);
    }
    shared.values_full(v_cursor.slot).wait(v_cursor.parity);
    multiply_values();
    wgmma_wait<0>();
    hold(o);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = over_quad_sum(rows.sum[half]);
      if (r + 8 * half >= p.rows) {
        continue;
      }
      const float factor = softmax_factor(p.sinks, head, sum, rows.peak[half] * p.score_scale);
      const int column = lane % 4 * 2;
      Out* to =
          static_cast<Out*>(p.out) + (r + 8 * half) * p.out_stride + head * p.value_dim + column;
#pragma unroll
      for (int i = 0; i < kValueDim / 8; ++i) {
        if (8 * i + column < p.value_dim) {
          const float x = o[4 * i + 2 * half] * factor;
          const float y = o[4 * i + 2 * half + 1] * factor;
          if constexpr (sizeof(Out) == 4) {
            *reinterpret_cast<float2*>(to + 8 * i) = {x, y};
          } else {
            *reinterpret_cast<uint32_t*>(to + 8 * i) = pack_bf16x2(x, y);
          }
        }
      }
    }
  }
}

template <int kDim, int kValueDim, int kKeys, int kStages, class Out>
Status start(const AttentionArgs& args, const KeyRows& cache, const Params& params,
             cudaStream_t stream) {
  using Memory = Shared<kDim, kValueDim, kKeys, kStages>;
  const int64_t dim = args.head_dim;
  WEFT_ASSIGN(const CUtensorMap queries, tensor_map({.data = args.q.data,
                                                     .format = MapFormat::bf16,
                                                     .rows = params.rows,
                                                     .columns = dim,
                                                     .stride_bytes = args.q.stride * 2,
                                                     .box_rows = 64,
                                                     .box_columns = kTileColumns,
                                                     .planes = args.query_heads,
                                                     .plane_bytes = dim * 2}));
  // Rows end where the keys do: what is behind them in the cache could be NaN, and arrives as
  // zeros.
  const auto map = [&](const HeadRows& of, int64_t heads) {
    return tensor_map({.data = of.data,
                       .format = MapFormat::bf16,
                       .rows = params.first + params.rows,
                       .columns = of.dim,
                       .stride_bytes = of.stride * 2,
                       .box_rows = kKeys,
                       .box_columns = kTileColumns,
                       .planes = heads,
                       .plane_bytes = of.pitch * 2});
  };
  WEFT_ASSIGN(const CUtensorMap keys, map(cache.keys, args.kv_heads));
  WEFT_ASSIGN(const CUtensorMap shared,
              cache.shared.dim > 0 ? map(cache.shared, 1) : Result<CUtensorMap>(keys));
  WEFT_ASSIGN(const CUtensorMap values, map(cache.values, args.kv_heads));
  const int tiles = (params.rows + kRows - 1) / kRows;
  return launch_kernel(args.soft_cap > 0
                           ? attention_chunk<kDim, kValueDim, kKeys, kStages, Out, true>
                           : attention_chunk<kDim, kValueDim, kKeys, kStages, Out, false>,
                       {.blocks = tiles * params.query_heads,
                        .threads = kThreads,
                        .shared_bytes = Memory::kBytes,
                        .overlaps = true,
                        .stream = stream},
                       queries, keys, shared, values, params);
}

template <class Out>
Status start_for(const AttentionArgs& args, const KeyRows& cache, const Params& params,
                 cudaStream_t stream) {
  const int64_t dim = std::max(args.head_dim, cache.values.dim);
  const auto launch = dim <= 64                               ? start<64, 64, 128, 4, Out>
                      : dim <= 128                            ? start<128, 128, 128, 2, Out>
                      : dim <= 192 && cache.values.dim <= 128 ? start<192, 128, 128, 2, Out>
                      : dim <= 192                            ? start<192, 192, 64, 3, Out>
                                   : start<kMostPrefillHeadDim, kMostPrefillHeadDim, 64, 2, Out>;
  return launch(args, cache, params, stream);
}

}  // namespace

std::string_view refuse_prefill_attention(const AttentionArgs& args) {
  if (args.splits > 1) {
    return "a chunk's keys are not split";
  }
  if (args.q.dtype == DType::f32) {
    return refuse_prefill_attention_f32(args);
  }
  if (args.q.dtype != DType::bf16 || args.cache.dtype != DType::bf16) {
    return "queries must be f32, or bf16 and the cache too";
  }
  if (args.head_dim % 8 != 0 || args.head_dim > kMostPrefillHeadDim || args.q.stride % 8 != 0 ||
      args.out.stride % 2 != 0) {
    return "heads must be multiples of 8 up to 256, and rows too";
  }
  return {};
}

Status prefill_attention(const AttentionArgs& args, int64_t rows, int64_t first, Stream stream) {
  const int64_t dim = args.head_dim;
  const KvCache& cache = args.cache;
  return prefill_attention_over(args,
                                {.keys = {cache.keys, dim, dim, cache.head_stride},
                                 .values = {cache.values, dim, dim, cache.head_stride},
                                 .dtype = cache.dtype},
                                rows, first, stream);
}

Status prefill_attention_over(const AttentionArgs& args, const KeyRows& cache, int64_t rows,
                              int64_t first, Stream stream) {
  if (args.q.dtype == DType::f32) {
    return prefill_attention_f32(args, cache, rows, first, stream);
  }
  const Params params{
      .out = args.out.data,
      .out_stride = args.out.stride,
      .rows = static_cast<int>(rows),
      .first = static_cast<int>(first),
      .query_heads = static_cast<int>(args.query_heads),
      .group = static_cast<int>(args.query_heads / args.kv_heads),
      .value_dim = static_cast<int>(cache.values.dim),
      .shared_tile = cache.shared.dim > 0 ? static_cast<int>(cache.keys.dim) / kTileColumns : -1,
      .window = static_cast<int>(args.window),
      .score_scale = (args.soft_cap > 0 ? args.soft_cap : args.scale) * kLog2E,
      .cap_scale = args.soft_cap > 0 ? args.scale / args.soft_cap : 0,
      .sinks = args.sinks};
  const auto native = static_cast<cudaStream_t>(stream.native);
  return args.out.dtype == DType::bf16 ? start_for<uint16_t>(args, cache, params, native)
                                       : start_for<float>(args, cache, params, native);
}

}  // namespace weft::hopper

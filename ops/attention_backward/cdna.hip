// attention_backward (FlashAttention-2, Dao 2023) in three kernels, none of which adds to what
// another workgroup has written: the same bits every time. Probabilities are made twice for that,
// which is seven products in place of five.
//
// A workgroup has 128 rows, 16 a wave: keys, whose gradients it sums over all queries of all query
// heads that read them, or queries, whose gradient it sums over the keys. What passes by goes
// through LDS, 64 rows at a time, as it is and transposed. A product's result has, in a lane, four
// rows that passed by and one of the workgroup's own: rounded to bf16, just what the next product
// takes as its operand, whose result is the gradient transposed.
#include "ops/attention_backward/cdna.h"

#include "arch/cdna/math.hip.h"
#include "arch/cdna/reduce.hip.h"
#include "arch/cdna/round.hip.h"
#include "arch/cdna/tile.hip.h"

using namespace weft::cdna;

namespace {

constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before
constexpr float kLog2E = 1.44269502f;

template <class T>
WEFT_GPU auto& lds_at(LdsBytes* lds, int offset) {
  return *reinterpret_cast<__attribute__((address_space(3))) T*>(lds + offset);
}

/// Rows of a head, from a sequence's first one on.
struct Rows {
  const char* first;
  int64_t stride;

  WEFT_GPU Rows of(const void* matrix, int64_t stride, const AttentionBackwardParams& p,
                   int sequence, int head) {
    return {&at<char>(matrix, int64_t{sequence} * p.tokens * stride +
                                  head * p.head_dim * int64_t{sizeof(bf16_t)}),
            stride};
  }
  /// Of `count` rows from `row` on.
  __device__ __attribute__((always_inline)) Buffer buffer(int row, int count, int head_dim) const {
    return {first + row * stride, static_cast<uint32_t>((count - 1) * static_cast<int>(stride)) +
                                      head_dim * static_cast<uint32_t>(sizeof(bf16_t))};
  }
};

template <int kDim>
struct Layout {
  static constexpr int kBlocks = kDim * sizeof(bf16_t) / kStripBytes;  ///< of a row
  static constexpr int kBlockBytes = kBackwardTile * kStripBytes;
  static constexpr int kTileBytes = kBlocks * kBlockBytes;  ///< transposed as many
  static constexpr int kDimStrips = kDim / kStripRows;
};

/// Half of the threads bring a tile of rows to LDS: a thread four rows' 16 bytes of a column.
template <int kDim>
class PassingRows {
 public:
  using L = Layout<kDim>;
  __device__ __attribute__((always_inline)) void fetch(const Rows& rows, int row, int left,
                                                       int head_dim) {
    if (!is_mine()) {
      return;
    }
    const Buffer buffer =
        rows.buffer(row, __builtin_elementwise_min(left, kBackwardTile), head_dim);
    const int element = unit() % kColumns * kEach;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int mine = __builtin_elementwise_min(unit() / kColumns * 4 + j, left - 1);
      const uint32_t offset =
          mine * static_cast<int>(rows.stride) + element * static_cast<int>(sizeof(bf16_t));
      staged_[j] = buffer.load(element < head_dim ? offset : kNowhere);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
    if (!is_mine()) {
      return;
    }
    const int column = unit() % kColumns;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      lds_at<u32x4>(lds, column / kRowChunks * L::kBlockBytes +
                             chunk_offset(unit() / kColumns * 4 + j, column % kRowChunks)) =
          staged_[j];
    }
  }
  __device__ __attribute__((always_inline)) void publish_turned(LdsBytes* lds) const {
    if (!is_mine()) {
      return;
    }
    const int quad = unit() / kColumns;
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const uint32_t pick = e % 2 == 0 ? 0x05040100 : 0x07060302;  // low or high halves
      lds_at<u32x2>(lds, chunk_offset(unit() % kColumns * kEach + e, quad / 2) + quad % 2 * 8) = {
          __builtin_amdgcn_perm(staged_[1][e / 2], staged_[0][e / 2], pick),
          __builtin_amdgcn_perm(staged_[3][e / 2], staged_[2][e / 2], pick)};
    }
  }

 private:
  static constexpr int kEach = kChunkBytes / sizeof(bf16_t);
  static constexpr int kColumns = kDim / kEach;
  static constexpr int kUnits = kBackwardTile / 4 * kColumns;
  WEFT_GPU int unit() { return thread_index() % (kBackwardThreads / 2); }
  WEFT_GPU bool is_mine() {  // whole waves
    return wave_index() % (kBackwardThreads / 2 / kWaveLanes) * kWaveLanes < kUnits;
  }
  u32x4 staged_[4];
};

/// The wave's own 16 rows, as an operand: lane l has row l % 16.
template <int kDim>
struct OwnRows {
  Strip block[Layout<kDim>::kBlocks];

  /// `own`: of the workgroup's rows from `tile` on, of which there are `left`.
  __device__ __attribute__((always_inline))
  OwnRows(const Rows& rows, int tile, int left, int own, int head_dim) {
    const int count = __builtin_elementwise_min(left, kBackwardRows);
    const Buffer buffer = rows.buffer(tile, count, head_dim);
    const auto mine = static_cast<uint32_t>(__builtin_elementwise_min(own, count - 1)) *
                      static_cast<uint32_t>(rows.stride);
#pragma unroll
    for (int b = 0; b < Layout<kDim>::kBlocks; ++b) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int along =
            b * kStripBytes + half * (kStripBytes / 2) + lane_index() / kStripRows * kChunkBytes;
        const bool inside = along < head_dim * static_cast<int>(sizeof(bf16_t));
        block[b].half[half] = buffer.load(inside ? mine + along : kNowhere);
      }
    }
  }
};

/// A gradient of the wave's own rows, transposed: lane l has columns 16 d + 4 (l / 16) .. + 3 of
/// row l % 16.
template <int kDim>
struct Gradient {
  f32x4 sums[Layout<kDim>::kDimStrips] = {};

  /// Adds what rows t and t + 1 (of 16) of those that passed by give: `turned` them transposed,
  /// times `factors`.
  __device__ __attribute__((always_inline)) void add(LdsBytes* turned, int t, f32x4 low,
                                                     f32x4 high) {
    const int quarter = lane_index() / kStripRows;
    const f32x8 both = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    const auto factors = __builtin_bit_cast(u32x4, round_to<bf16_t>(both));
#pragma unroll
    for (int d = 0; d < Layout<kDim>::kDimStrips; ++d) {
      const int at = d * kStripRows + lane_index() % kStripRows;
      const auto four = [&](int strip) {
        return lds_at<u32x2>(turned, chunk_offset(at, strip * 2 + quarter / 2) + quarter % 2 * 8);
      };
      const u32x2 first = four(t);
      const u32x2 second = four(t + 1);
      sums[d] = mma_bf16(__builtin_shufflevector(first, second, 0, 1, 2, 3), factors, sums[d]);
    }
  }
  __device__ __attribute__((always_inline)) void store(void* matrix, int64_t row_bytes, int head,
                                                       const AttentionBackwardParams& p,
                                                       float factor) const {
    const int size = p.bf16 != 0 ? sizeof(bf16_t) : sizeof(float);
    char* const to = &at<char>(matrix, row_bytes + head * p.head_dim * size);
#pragma unroll
    for (int d = 0; d < Layout<kDim>::kDimStrips; ++d) {
      const int column = d * kStripRows + lane_index() / kStripRows * 4;
      if (column < p.head_dim) {
        const f32x4 x = sums[d] * factor;
        if (p.bf16 != 0) {
          using Half = Vector<bf16_t, 4>;
          at<Half>(to, column * size) = __builtin_convertvector(x, Half);
        } else {
          at<f32x4>(to, column * size) = x;
        }
      }
    }
  }
};

/// Where a query's first number is in the stats, and from there the second one.
WEFT_GPU int64_t stats_place(const AttentionBackwardParams& p, int sequence, int head) {
  return (int64_t{sequence} * p.query_heads + head) * p.stats_tokens;
}
WEFT_GPU int64_t stats_size(const AttentionBackwardParams& p) {
  return int64_t{p.sequences} * p.query_heads * p.stats_tokens;
}

/// kOfKeys: the workgroup's own rows are keys, and queries pass by; otherwise the other way round.
template <int kDim, bool kOfKeys>
WEFT_GPU void backward(const AttentionBackwardParams& p) {
  using L = Layout<kDim>;
  constexpr int kStrips = kBackwardTile / kStripRows;
  __shared__ __attribute__((aligned(1024))) char shared[(kOfKeys ? 4 : 3) * L::kTileBytes];
  auto* const first_rows = (LdsBytes*)shared;                // of queries, or keys
  LdsBytes* const second_rows = first_rows + L::kTileBytes;  // of the gradients, or values
  LdsBytes* const first_turned = second_rows + L::kTileBytes;
  LdsBytes* const second_turned = first_turned + L::kTileBytes;

  const int kv_heads = p.query_heads / p.group;
  const int all_heads = p.sequences * (kOfKeys ? kv_heads : p.query_heads);
  const int head_of_all = workgroup_index() % all_heads;
  const int own_heads = kOfKeys ? kv_heads : p.query_heads;
  const int sequence = head_of_all / own_heads;
  const int head = head_of_all % own_heads;
  const int kv_head = kOfKeys ? head : head / p.group;
  const bool causal = p.causal != 0;
  // Workgroups with the most pairs first: those of the first keys, or of the last queries.
  const int place = workgroup_index() / all_heads;
  const int own_tiles = ceil_div(p.tokens, kBackwardRows);
  const int own_tile = (kOfKeys ? place : own_tiles - 1 - place) * kBackwardRows;
  const int own = own_tile + wave_index() * kStripRows + lane_index() % kStripRows;
  const int quarter = lane_index() / kStripRows;

  const auto queries = [&](int h) { return Rows::of(p.q, p.q_stride, p, sequence, h); };
  const auto gradients = [&](int h) { return Rows::of(p.d_out, p.d_out_stride, p, sequence, h); };
  const Rows keys = Rows::of(p.k, p.k_stride, p, sequence, kv_head);
  const Rows values = Rows::of(p.v, p.v_stride, p, sequence, kv_head);
  const auto own_rows = [&](const Rows& rows) {
    return OwnRows<kDim>(rows, own_tile, p.tokens - own_tile, own - own_tile, p.head_dim);
  };
  const OwnRows<kDim> first = own_rows(kOfKeys ? keys : queries(head));
  const OwnRows<kDim> second = own_rows(kOfKeys ? values : gradients(head));

  // Tiles that pass by: of each of the group's query heads, or of the keys.
  const int begin = kOfKeys && causal ? own_tile / kBackwardTile * kBackwardTile : 0;
  const int end =
      !kOfKeys && causal ? __builtin_elementwise_min(own_tile + kBackwardRows, p.tokens) : p.tokens;
  const int tiles = ceil_div(end - begin, kBackwardTile);
  const int turns = kOfKeys ? tiles * p.group : tiles;

  Gradient<kDim> of_first;   // of keys, or queries
  Gradient<kDim> of_second;  // of values
  PassingRows<kDim> passing;
  const bool brings_first = wave_index() < kBackwardThreads / 2 / kWaveLanes;
  const auto fetch = [&](int turn) {
    const int h = kv_head * p.group + turn / tiles;
    const int from = begin + turn % tiles * kBackwardTile;
    const Rows first_of = kOfKeys ? queries(h) : keys;
    const Rows second_of = kOfKeys ? gradients(h) : values;
    passing.fetch({brings_first ? first_of.first : second_of.first,
                   brings_first ? first_of.stride : second_of.stride},
                  from, p.tokens - from, p.head_dim);
  };
  const float* const stats = p.stats;
  const int64_t deltas = stats_size(p);
  float own_lse = 0;
  float own_delta = 0;
  if constexpr (!kOfKeys) {
    const int64_t mine =
        stats_place(p, sequence, head) + __builtin_elementwise_min(own, p.tokens - 1);
    own_lse = stats[mine];
    own_delta = stats[deltas + mine];
  }
  const RowReader<false> strips(0);
  fetch(0);
  for (int turn = 0; turn < turns; ++turn) {
    barrier();  // the tile before has been read
    passing.publish(brings_first ? first_rows : second_rows);
    if (kOfKeys || brings_first) {
      passing.publish_turned(brings_first ? first_turned : second_turned);
    }
    barrier();
    if (turn + 1 < turns) {
      fetch(turn + 1);
    }

    f32x4 scores[kStrips] = {};
    f32x4 products[kStrips] = {};  // of gradients and values
#pragma unroll
    for (int block = 0; block < L::kBlocks; ++block) {
#pragma unroll
      for (int t = 0; t < kStrips; ++t) {
        scores[t] = mma<Format::bf16>(strips.load(first_rows + block * L::kBlockBytes, t),
                                      first.block[block], scores[t]);
        products[t] = mma<Format::bf16>(strips.load(second_rows + block * L::kBlockBytes, t),
                                        second.block[block], products[t]);
      }
    }

    const int tile = begin + turn % tiles * kBackwardTile;
    const int64_t of_tile =
        stats_place(p, sequence, kv_head * p.group + (kOfKeys ? turn / tiles : 0)) + tile;
#pragma unroll
    for (int t = 0; t < kStrips; ++t) {
      const int passing_by = t * kStripRows + quarter * 4;
      f32x4 lse = own_lse;
      f32x4 delta = own_delta;
      if constexpr (kOfKeys) {
        lse = *reinterpret_cast<const f32x4*>(stats + of_tile + passing_by);
        delta = *reinterpret_cast<const f32x4*>(stats + deltas + of_tile + passing_by);
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int other = tile + passing_by + r;
        const int query = kOfKeys ? other : own;
        const int key = kOfKeys ? own : other;
        const bool seen = other < p.tokens && (!causal || key <= query);
        const float probability = exp2_of(__builtin_fmaf(scores[t][r], p.scale * kLog2E, -lse[r]));
        scores[t][r] = seen ? probability : 0;
        products[t][r] = seen ? probability * (products[t][r] - delta[r]) : 0;
      }
    }
#pragma unroll
    for (int t = 0; t < kStrips; t += 2) {
      if constexpr (kOfKeys) {
        of_second.add(second_turned, t, scores[t], scores[t + 1]);
      }
      of_first.add(first_turned, t, products[t], products[t + 1]);
    }
  }
  if (own >= p.tokens) {
    return;
  }
  const int64_t row = int64_t{sequence} * p.tokens + own;
  if constexpr (kOfKeys) {
    of_first.store(p.d_k, row * p.d_k_stride, head, p, p.scale);
    of_second.store(p.d_v, row * p.d_v_stride, head, p, 1);
  } else {
    of_first.store(p.d_q, row * p.d_q_stride, head, p, p.scale);
  }
}

}  // namespace

/// 16 lanes a query's head.
extern "C" __global__ __launch_bounds__(kBackwardThreads, 4) void attention_backward_stats(
    AttentionBackwardParams p) {
  const int lane = lane_index() % kRowLanes;
  const int64_t index = int64_t{workgroup_index()} * kStatsOfWorkgroup + thread_index() / kRowLanes;
  const auto of_head = static_cast<int>(index / p.stats_tokens);  // of all sequences
  const auto token = static_cast<int>(index % p.stats_tokens);
  const bool valid = of_head < p.sequences * p.query_heads && token < p.tokens;
  float delta = 0;
  if (valid) {
    const int64_t row = int64_t{of_head / p.query_heads} * p.tokens + token;
    const int column = of_head % p.query_heads * p.head_dim;
    for (int c = lane * 8; c < p.head_dim; c += kRowLanes * 8) {
      using Eight = Vector<bf16_t, 8>;
      const int64_t along = (column + c) * int64_t{sizeof(bf16_t)};
      const auto gradient =
          __builtin_convertvector(at<Eight>(p.d_out, row * p.d_out_stride + along), f32x8);
      const auto out = __builtin_convertvector(at<Eight>(p.out, row * p.out_stride + along), f32x8);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        delta += gradient[i] * out[i];
      }
    }
  }
  delta = row_reduce<Sum>(delta);
  if (lane == 0 && of_head < p.sequences * p.query_heads) {
    const float lse = valid ? p.lse[int64_t{of_head} * p.tokens + token] : 0;
    p.stats[index] = lse * kLog2E;
    p.stats[stats_size(p) + index] = delta;
  }
}

#define KERNELS(dim)                                                                          \
  extern "C" __global__ __launch_bounds__(                                                    \
      kBackwardThreads, 2) void attention_backward_keys_##dim(AttentionBackwardParams p) {    \
    backward<dim, true>(p);                                                                   \
  }                                                                                           \
  extern "C" __global__ __launch_bounds__(                                                    \
      kBackwardThreads, 2) void attention_backward_queries_##dim(AttentionBackwardParams p) { \
    backward<dim, false>(p);                                                                  \
  }
KERNELS(64)
KERNELS(128)

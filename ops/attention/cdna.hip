// attention of a chunk's rows, softmax on the fly (FlashAttention, Dao et al. 2022): a workgroup
// has 64 rows of a head, 16 a wave, and goes through the keys a tile at a time: keys in LDS as they
// are, values transposed, the next tile on its way in registers meanwhile. Scores are taken
// transposed (keys are the matrix instruction's rows), so that a lane gets four keys of one query:
// just what it has to hand to the product with the values, which is taken transposed too. Maximum,
// sum and result of a query lie in one lane and three others: nothing but the maximum, and once the
// sum, crosses lanes. Of rows of a step, which are of sequences of their own, a workgroup has one
// row's query heads of a KV head.
#include "ops/attention/cdna.h"

#include "arch/cdna/math.hip.h"
#include "arch/cdna/reduce.hip.h"
#include "arch/cdna/round.hip.h"
#include "arch/cdna/tile.hip.h"

using namespace weft::cdna;

namespace {

constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before
constexpr float kNothing = -__builtin_inff();

template <class T>
WEFT_GPU auto& lds_at(LdsBytes* lds, int offset) {
  return *reinterpret_cast<__attribute__((address_space(3))) T*>(lds + offset);
}

/// Products of queries and keys, and of probabilities and values, are of Q, the cache is of C: the
/// same, or bf16 where Q is f32. kDim: columns of a head, filled up with zeros.
template <class Q, class C, int kDim>
struct Shape {
  static constexpr bool kF32 = sizeof(Q) == 4;
  static constexpr Format kFormat = kF32 ? Format::f32 : Format::bf16;
  static constexpr int kKeys = kStripBytes / sizeof(Q);  ///< of a tile: a row of values transposed
  static constexpr int kStrips = kKeys / kStripRows;
  static constexpr int kBlocks = kDim * sizeof(Q) / kStripBytes;  ///< of a row of keys
  static constexpr int kDimStrips = kDim / kStripRows;
  static constexpr int kBlockBytes = kKeys * kStripBytes;
  static constexpr int kOfValues = kBlocks * kBlockBytes;
  static constexpr int kLdsBytes = kOfValues + kDim * kStripBytes;
};

/// What 16 bytes of LDS hold, from the cache: elements of Q.
template <class Q, class C>
WEFT_GPU u32x4 load_chunk(const Buffer& cache, uint32_t offset) {
  if constexpr (sizeof(Q) == sizeof(C)) {
    return cache.load(offset);
  } else {
    const u32x2 pairs = cache.load_pair(offset);
    return {pairs[0] << 16, pairs[0] & 0xffff0000, pairs[1] << 16, pairs[1] & 0xffff0000};
  }
}

/// Keys or values one after another, up to the end of the last one.
template <class C>
WEFT_GPU Buffer tile_of(const char* from, int64_t stride, int keys, int head_dim) {
  return {from, static_cast<uint32_t>((keys - 1) * static_cast<int>(stride)) +
                    head_dim * static_cast<uint32_t>(sizeof(C))};
}

/// A tile of keys on its way from the cache to LDS. A row is chunks of 16 bytes in LDS.
template <class Q, class C, int kDim>
class Keys {
 public:
  using S = Shape<Q, C, kDim>;
  /// Of `left` keys, `stride` bytes apart.
  __device__ __attribute__((always_inline)) void fetch(const char* from, int64_t stride, int left,
                                                       int head_dim) {
    const Buffer cache =
        tile_of<C>(from, stride, __builtin_elementwise_min(left, S::kKeys), head_dim);
    const int row = thread_index() / kRowChunks;
    const int chunk = thread_index() % kRowChunks ^ place_key(row);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int element = (i / kOfBlock * kRowChunks + chunk) * kEach;
      const int key = __builtin_elementwise_min(row + i % kOfBlock * kRows, left - 1);
      const uint32_t offset =
          key * static_cast<int>(stride) + element * static_cast<int>(sizeof(C));
      staged_[i] = load_chunk<Q, C>(cache, element < head_dim ? offset : kNowhere);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      lds_at<u32x4>(lds, (i * kTileThreads + thread_index()) * kChunkBytes) = staged_[i];
    }
  }

 private:
  static constexpr int kEach = kChunkBytes / sizeof(Q);
  static constexpr int kRows = kTileThreads / kRowChunks;  ///< that a load of all threads brings
  static constexpr int kOfBlock = S::kKeys / kRows;        ///< loads
  static constexpr int kLoads = S::kBlocks * kOfBlock;
  u32x4 staged_[kLoads];
};

/// A tile of values: a thread reads 16 bytes of LDS of four keys and turns them in registers.
template <class Q, class C, int kDim>
class Values {
 public:
  using S = Shape<Q, C, kDim>;
  /// Of `left` keys, `stride` bytes apart.
  __device__ __attribute__((always_inline)) void fetch(const char* from, int64_t stride, int left,
                                                       int head_dim) {
    const Buffer cache =
        tile_of<C>(from, stride, __builtin_elementwise_min(left, S::kKeys), head_dim);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!is_mine(i)) {
        continue;
      }
      const int element = unit(i) % kColumns * kEach;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int key = __builtin_elementwise_min(unit(i) / kColumns * 4 + j, left - 1);
        const uint32_t offset =
            key * static_cast<int>(stride) + element * static_cast<int>(sizeof(C));
        staged_[i][j] = load_chunk<Q, C>(cache, element < head_dim ? offset : kNowhere);
      }
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      if (!is_mine(i)) {
        continue;
      }
      const int quad = unit(i) / kColumns;
      const u32x4(&of)[4] = staged_[i];
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const int row = unit(i) % kColumns * kEach + e;
        if constexpr (S::kF32) {
          lds_at<u32x4>(lds, chunk_offset(row, quad)) = {of[0][e], of[1][e], of[2][e], of[3][e]};
        } else {
          const uint32_t pick = e % 2 == 0 ? 0x05040100 : 0x07060302;  // low or high halves
          lds_at<u32x2>(lds, chunk_offset(row, quad / 2) + quad % 2 * 8) = {
              __builtin_amdgcn_perm(of[1][e / 2], of[0][e / 2], pick),
              __builtin_amdgcn_perm(of[3][e / 2], of[2][e / 2], pick)};
        }
      }
    }
  }

 private:
  static constexpr int kEach = kChunkBytes / sizeof(Q);
  static constexpr int kColumns = kDim / kEach;
  static constexpr int kAll = S::kKeys / 4 * kColumns;
  static constexpr int kUnits = (kAll + kTileThreads - 1) / kTileThreads;  ///< of a thread
  WEFT_GPU int unit(int i) { return i * kTileThreads + thread_index(); }
  WEFT_GPU bool is_mine(int i) {  // whole waves
    return (i + 1) * kTileThreads <= kAll || i * kTileThreads + wave_index() * kWaveLanes < kAll;
  }
  u32x4 staged_[kUnits][4];
};

template <class Q, class C, int kDim>
WEFT_GPU void attention(const AttentionParams& p) {
  using S = Shape<Q, C, kDim>;
  __shared__ __attribute__((aligned(1024))) char shared[S::kLdsBytes];
  auto* lds = (LdsBytes*)shared;
  const bool step = p.positions != nullptr;  // rows of the tile are query heads
  const int rows = step ? p.group : p.rows;
  const int planes = step ? p.query_heads / p.group : p.query_heads * p.sequences;
  const int plane = workgroup_index() % planes;
  const int row_tiles = ceil_div(rows, kAttentionRows);
  const int tile = workgroup_index() / planes;
  const int of_step = step ? tile / row_tiles : 0;
  // Workgroups with the most keys first.
  const int row = (row_tiles - 1 - tile % row_tiles) * kAttentionRows;
  const int sequence = step ? 0 : plane / p.query_heads;
  const int head = step ? plane * p.group : plane % p.query_heads;
  const int first = step ? constant_at(p.positions, of_step) : p.first;
  const bool causal = p.causal != 0;
  const int end =  // of the keys
      step     ? first + 1
      : causal ? first + __builtin_elementwise_min(row + kAttentionRows, rows)
               : rows;
  const int window = p.window > 0 ? p.window : 1 << 30;
  const int oldest =
      causal ? __builtin_elementwise_max(0, first + (step ? 0 : row) - window + 1) : 0;
  const int64_t of_head =
      head / p.group * p.head_stride +
      (step ? constant_at(p.row_sequences, of_step) * p.sequence_stride : int64_t{0});
  const auto place = [&](const void* cache, int64_t stride, int key) {
    return &at<char>(cache, of_head + (int64_t{sequence} * rows + key) * stride);
  };
  // Where a tile's rows begin in a matrix, and from one to the next.
  const auto first_row = [&](int64_t stride, int size) {
    const int64_t of_row = step ? of_step * stride + int64_t{row} * p.head_dim * size
                                : (int64_t{sequence} * rows + row) * stride;
    return of_row + int64_t{head} * p.head_dim * size;
  };
  const auto row_stride = [&](int64_t stride, int size) {
    return step ? int64_t{p.head_dim} * size : stride;
  };

  const int lane = lane_index();
  const int quarter = lane / kStripRows;
  const int query = wave_index() * kStripRows + lane % kStripRows;  // in the workgroup's rows
  const int position = step ? first : causal ? first + row + query : rows - 1;

  Strip q[S::kBlocks];
  {
    const Buffer queries(&at<char>(p.q, first_row(p.q_stride, sizeof(Q))), kNowhere);
    const int mine = __builtin_elementwise_min(query, rows - row - 1) *
                     static_cast<int>(row_stride(p.q_stride, sizeof(Q)));
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int along = block * kStripBytes + half * (kStripBytes / 2) + quarter * kChunkBytes;
        const bool inside = along < p.head_dim * static_cast<int>(sizeof(Q));
        q[block].half[half] = queries.load(inside ? static_cast<uint32_t>(mine) + along : kNowhere);
      }
    }
  }

  f32x4 out[S::kDimStrips] = {};
  float peak = kNothing;  // of the scaled scores so far
  float sum = 0;          // of exponentials, this lane's keys
  Keys<Q, C, kDim> keys;
  Values<Q, C, kDim> values;
  const RowReader<false> strips(0);
  int key = oldest / S::kKeys * S::kKeys;
  const auto fetch = [&](int from) {
    keys.fetch(place(p.keys, p.key_stride, from), p.key_stride, end - from, p.head_dim);
    values.fetch(place(p.values, p.value_stride, from), p.value_stride, end - from, p.head_dim);
  };
  fetch(key);
  for (; key < end; key += S::kKeys) {
    barrier();  // the tile before has been read
    keys.publish(lds);
    values.publish(lds + S::kOfValues);
    barrier();
    if (key + S::kKeys < end) {
      fetch(key + S::kKeys);
    }

    f32x4 scores[S::kStrips] = {};
#pragma unroll
    for (int block = 0; block < S::kBlocks; ++block) {
#pragma unroll
      for (int t = 0; t < S::kStrips; ++t) {
        scores[t] =
            mma<S::kFormat>(strips.load(lds + block * S::kBlockBytes, t), q[block], scores[t]);
      }
    }

    float highest = kNothing;
#pragma unroll
    for (int t = 0; t < S::kStrips; ++t) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const int at = key + t * kStripRows + quarter * 4 + r;
        const bool seen = at <= position && at > position - window;
        float score = scores[t][r];
        if (p.cap_scale != 0) {
          score = tanh_of(score * p.cap_scale);
        }
        score = seen ? score * p.score_scale : kNothing;
        highest = __builtin_fmaxf(highest, score);
        scores[t][r] = score;
      }
    }
    const float next = __builtin_fmaxf(peak, column_reduce<Max>(highest));
    // A row that has seen no key yet: its exponentials are to be 0, not NaN.
    const float shift = next == kNothing ? 0 : next;
    const float rescale = exp2_of(peak - shift);
    peak = next;
    sum *= rescale;
#pragma unroll
    for (int t = 0; t < S::kStrips; ++t) {
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        scores[t][r] = exp2_of(scores[t][r] - shift);
        sum += scores[t][r];
      }
    }
#pragma unroll
    for (f32x4& strip : out) {
      strip *= rescale;
    }

    // Row d of the values transposed, from key 16 t + 4 (l / 16) on.
    LdsBytes* const turned = lds + S::kOfValues;
    if constexpr (S::kF32) {
#pragma unroll
      for (int t = 0; t < S::kStrips; ++t) {
        const auto weights = __builtin_bit_cast(u32x4, scores[t]);
#pragma unroll
        for (int d = 0; d < S::kDimStrips; ++d) {
          const int at = d * kStripRows + lane % kStripRows;
          out[d] =
              mma_f32(lds_at<u32x4>(turned, chunk_offset(at, t * 4 + quarter)), weights, out[d]);
        }
      }
    } else {
#pragma unroll
      for (int t = 0; t < S::kStrips; t += 2) {
        const f32x8 both =
            __builtin_shufflevector(scores[t], scores[t + 1], 0, 1, 2, 3, 4, 5, 6, 7);
        const auto weights = __builtin_bit_cast(u32x4, round_to<bf16_t>(both));
#pragma unroll
        for (int d = 0; d < S::kDimStrips; ++d) {
          const int at = d * kStripRows + lane % kStripRows;
          const auto four = [&](int strip) {
            return lds_at<u32x2>(turned,
                                 chunk_offset(at, strip * 2 + quarter / 2) + quarter % 2 * 8);
          };
          const u32x2 low = four(t);
          const u32x2 high = four(t + 1);
          out[d] = mma_bf16(__builtin_shufflevector(low, high, 0, 1, 2, 3), weights, out[d]);
        }
      }
    }
  }

  sum = column_reduce<Sum>(sum);
  float factor = 1 / sum;
  if (p.sinks != nullptr) {
    constexpr float kLog2E = 1.44269504088896f;
    const int whose = head + (step ? __builtin_elementwise_min(row + query, rows - 1) : 0);
    const float sink =
        kLog2E * (p.sinks_f32 != 0 ? at<const float>(p.sinks, whose * 4)
                                   : static_cast<float>(at<const bf16_t>(p.sinks, whose * 2)));
    const float highest = __builtin_fmaxf(peak, sink);
    const float keep = exp2_of(peak - highest);
    factor = keep / (sum * keep + exp2_of(sink - highest));
  }
  if (row + query >= rows) {
    return;
  }
  if (p.lse != nullptr && quarter == 0) {
    constexpr float kLn2 = 0.693147182f;
    p.lse[(int64_t{sequence} * p.query_heads + head) * rows + row + query] =
        (peak + log2_of(sum)) * kLn2;
  }
  const int size = p.out_bf16 != 0 ? sizeof(bf16_t) : sizeof(float);
  char* const to =
      &at<char>(p.out, first_row(p.out_stride, size) + query * row_stride(p.out_stride, size));
#pragma unroll
  for (int d = 0; d < S::kDimStrips; ++d) {
    const int column = d * kStripRows + quarter * 4;
    if (column < p.head_dim) {
      const f32x4 v = out[d] * factor;
      if (p.out_bf16 != 0) {
        using Half = Vector<bf16_t, 4>;
        at<Half>(to, column * size) = __builtin_convertvector(v, Half);
      } else {
        at<f32x4>(to, column * size) = v;
      }
    }
  }
}

}  // namespace

using f32_t = float;
#define KERNEL(q, cache, dim)                                           \
  extern "C" __global__ __launch_bounds__(                              \
      256, 1) void attention_##q##_##cache##_##dim(AttentionParams p) { \
    attention<q##_t, cache##_t, dim>(p);                                \
  }
#define KERNELS(q, cache) \
  KERNEL(q, cache, 64)    \
  KERNEL(q, cache, 128)   \
  KERNEL(q, cache, 192)   \
  KERNEL(q, cache, 256)
KERNELS(bf16, bf16)
KERNELS(f32, f32)
KERNELS(f32, bf16)

// mla for a chunk's rows on AMD: latent rows appended, each head's products (arch/cdna/gemm.hip.h)
// in f32, and attention over latent rows of any size, in f32. A workgroup of the last has 16 heads
// of a row and goes through the keys 16 at a time: its waves share a key's columns, as factors of
// scores and as what comes of their sums, so that keys lie in LDS once, and queries and results in
// registers. Scores are taken transposed, as in attention.
#include "ops/mla/cdna.h"

#include "arch/cdna/reduce.hip.h"
#include "ops/cdna_linear.hip.h"

using namespace weft::cdna;

namespace {

constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before

using f32x2 = Vector<float, 2>;

template <class T>
WEFT_GPU auto& lds_at(LdsBytes* lds, int offset) {
  return *reinterpret_cast<__attribute__((address_space(3))) T*>(lds + offset);
}

/// A pair of neighbours by its angle.
WEFT_GPU f32x2 turn(f32x2 x, float cosine, float sine) {
  return {x[0] * cosine - x[1] * sine, x[1] * cosine + x[0] * sine};
}
/// Elements `at` and at + 1.
WEFT_GPU void store_pair(void* to, bool bf16, int64_t at, f32x2 x) {
  if (bf16) {
    using Pair = Vector<bf16_t, 2>;
    weft::cdna::at<Pair>(to, at * 2) = __builtin_convertvector(x, Pair);
  } else {
    weft::cdna::at<f32x2>(to, at * 4) = x;
  }
}

/// A workgroup a row.
WEFT_GPU void append(const MlaAppendParams& p) {
  constexpr int kWaves = kMlaAppendThreads / kWaveLanes;
  __shared__ float partial[kWaves];
  const int row = workgroup_index();
  const void* const x = &at<char>(p.x, row * p.x_stride);
  const auto pair = [&](int i) { return at<const f32x2>(x, i * 4); };
  float squares = 0;
  for (int i = 2 * thread_index(); i < p.rank; i += 2 * kMlaAppendThreads) {
    squares += pair(i)[0] * pair(i)[0] + pair(i)[1] * pair(i)[1];
  }
  const float mean = workgroup_reduce<Sum>(squares, partial, kWaves) / static_cast<float>(p.rank);
  const float factor = 1 / __builtin_sqrtf(mean + p.epsilon);
  const bool own = p.positions != nullptr;
  const int position = own ? constant_at(p.positions, row) : p.first + row;
  const bool bf16 = p.cache_bf16 != 0;
  void* const to =
      &at<char>(p.cache, (own ? constant_at(p.sequences, row) * p.sequence_stride : int64_t{0}) +
                             int64_t{position} * (p.rank + p.turned) * (bf16 ? 2 : 4));
  for (int i = 2 * thread_index(); i < p.rank; i += 2 * kMlaAppendThreads) {
    const f32x2 weights{number_at(p.norm, p.norm_format, i),
                        number_at(p.norm, p.norm_format, i + 1)};
    store_pair(to, bf16, i, pair(i) * factor * weights);
  }
  const int half = p.turned / 2;
  for (int i = thread_index(); i < half; i += kMlaAppendThreads) {
    const int64_t angle = int64_t{row} * half + i;
    store_pair(to, bf16, p.rank + 2 * i,
               turn(pair(p.rank + 2 * i), p.cosines[angle], p.sines[angle]));
  }
}

// --- products of each head ---

/// Weights [k, columns] brought to LDS along k, as f32: a thread reads four columns of four k and
/// turns them in registers.
template <int kRows, class W>
class TransposedTile {
 public:
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;

  /// `first`: column 0 of the tile at k = 0, of `columns` left in the matrix. `stride`: bytes from
  /// one k to the next.
  __device__ __attribute__((always_inline))
  TransposedTile(const void* first, int64_t stride, int columns, int k)
      : buffer_(first, kNowhere), stride_(static_cast<uint32_t>(stride)), k_(k) {
    column_ = thread_index() % kQuads * 4;
    deep_ = thread_index() / kQuads;
    inside_ = column_ < columns;
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      place_[e] = chunk_offset(column_ + e, deep_);
    }
  }
  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    if (wave_index() >= kWaves) {
      return;
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int k = k_block * kDepth + deep_ * 4 + j;
      const uint32_t offset = k * stride_ + column_ * static_cast<int>(sizeof(W));
      if constexpr (sizeof(W) == 4) {
        staged_[j] = buffer_.load(inside_ && k < k_ ? offset : kNowhere);
      } else {
        staged_[j] = buffer_.load_pair(inside_ && k < k_ ? offset : kNowhere);
      }
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
    if (wave_index() >= kWaves) {
      return;
    }
    f32x4 of_k[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      of_k[j] = __builtin_convertvector(__builtin_bit_cast(Numbers, staged_[j]), f32x4);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      lds_at<f32x4>(lds, place_[e]) = {of_k[0][e], of_k[1][e], of_k[2][e], of_k[3][e]};
    }
  }

 private:
  using Numbers = Vector<W, 4>;
  static constexpr int kDepth = kStripBytes / 4;  ///< k of a block
  static constexpr int kQuads = kRows / 4;
  static constexpr int kWaves = kDepth / 4 * kQuads / kWaveLanes;  ///< that take part
  static_assert(kWaves <= kTileWaves && kWaves * kWaveLanes == kDepth / 4 * kQuads);
  Buffer buffer_;
  uint32_t stride_;
  int k_;
  int column_;
  int deep_;
  bool inside_;
  int place_[4];
  Vector<uint32_t, sizeof(W)> staged_[4];
};

/// The turned parts of a tile's rows, by the workgroup.
WEFT_GPU void turn_head(const MlaHeadsParams& p, int head, int first) {
  const GemmTask& task = p.task;
  const int half = p.turned / 2;
  const int count = __builtin_elementwise_min(kMlaTileRows, task.m - first) * half;
  for (int i = thread_index(); i < count; i += kTileThreads) {
    const int row = first + i / half;
    const int pair = i % half;
    const void* const x = &at<char>(task.a, row * task.a_stride + head * p.a_pitch);
    void* const out = &at<char>(task.out, row * task.out_stride + head * p.out_pitch);
    const int64_t angle = int64_t{row} * half + pair;
    store_pair(out, p.out_bf16 != 0, task.n + 2 * pair,
               turn(at<const f32x2>(x, (task.k + 2 * pair) * 4), p.cosines[angle], p.sines[angle]));
  }
}

template <class W, bool kTransposed>
WEFT_GPU void multiply_heads(const MlaHeadsParams& p) {
  using Shape = TileShape<kMlaTileRows, kMlaTileColumns, 2, 2>;
  using Of = LinearOf<float, W>;
  using TileB = std::conditional_t<kTransposed, TransposedTile<Shape::kN, W>,
                                   typename Of::template Tile<Shape::kN>>;
  __shared__ __attribute__((aligned(1024))) char shared[Shape::kLdsBytes];
  const GemmTask& task = p.task;
  const int each = task.tiles_n + (p.turned > 0 ? 1 : 0);  // tiles of a head
  const Place place = place_of(workgroup_index(), task.tiles_m, p.heads * each, 1);
  const int head = place.tile_n / each;
  const int m0 = place.tile_m * Shape::kM;
  const int n0 = place.tile_n % each * Shape::kN;
  if (n0 >= task.n) {
    turn_head(p, head, m0);
    return;
  }
  RowMajorTile<Shape::kM, true> a(&at<char>(task.a, m0 * task.a_stride + head * p.a_pitch),
                                  task.a_stride, task.m - m0, task.k * 4);
  // Columns left, and where the tile's weights begin.
  const int columns = task.n - n0;
  const int64_t from = head * p.b_pitch + n0 * (kTransposed ? int64_t{sizeof(W)} : task.b_stride);
  TileB b(&at<char>(task.b, from), task.b_stride, columns,
          kTransposed ? task.k : task.k * static_cast<int>(sizeof(W)));
  Sums<Shape> sums;
  Of::multiply(a, b, task.k, (LdsBytes*)shared, sums);
  const int size = p.out_bf16 != 0 ? sizeof(bf16_t) : sizeof(float);
  void* const out =
      &at<char>(task.out, m0 * task.out_stride + head * p.out_pitch + n0 * int64_t{size});
  if (p.out_bf16 != 0) {
    write_tile<true>(sums, static_cast<bf16_t*>(out), task.out_stride, task.m - m0, columns);
  } else {
    write_tile<true>(sums, static_cast<float*>(out), task.out_stride, task.m - m0, columns);
  }
}

// --- attention ---

constexpr int kKeys = kStripRows;  ///< in LDS at a time
static_assert(kMlaHeads == kStripRows);
/// Columns of a key that the workgroup brings at once; 16 of them are a wave's.
constexpr int kBlock = kTileWaves * kStripRows;
constexpr int kBlocks = kMlaRow / kBlock;
constexpr int kRankBlocks = kMlaRank / kBlock;
constexpr int kKeyBytes = kMlaRow * 4 + 16;  ///< in LDS: what lanes read lies in banks apart

/// 16 keys on their way to LDS: a row of them is 16 threads'.
template <class C>
class Keys {
 public:
  __device__ __attribute__((always_inline)) void fetch(const char* from, int row_size, int left) {
    const Buffer rows(from, kNowhere);
    const int key = thread_index() / kKeys;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i * kBlock < row_size) {
        const uint32_t offset = (key * row_size + column(i)) * static_cast<int>(sizeof(C));
        const bool there = key < left && column(i) < row_size;
        if constexpr (sizeof(C) == 4) {
          staged_[i] = rows.load(there ? offset : kNowhere);
        } else {
          staged_[i] = rows.load_pair(there ? offset : kNowhere);
        }
      }
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds, int row_size) const {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (i * kBlock < row_size) {
        lds_at<f32x4>(lds, thread_index() / kKeys * kKeyBytes + column(i) * 4) =
            __builtin_convertvector(__builtin_bit_cast(Numbers, staged_[i]), f32x4);
      }
    }
  }

 private:
  using Numbers = Vector<C, 4>;
  WEFT_GPU int column(int i) { return i * kBlock + thread_index() % kKeys * 4; }
  Vector<uint32_t, sizeof(C)> staged_[kBlocks];
};

template <class C>
WEFT_GPU void attend(const MlaAttentionParams& p) {
  constexpr float kNothing = -__builtin_inff();
  constexpr int kPartials = kKeys * kKeyBytes;
  __shared__
      __attribute__((aligned(1024))) char shared[kPartials + kTileWaves * kWaveLanes * kChunkBytes];
  auto* lds = (LdsBytes*)shared;
  const int row_size = p.rank + p.turned;
  const int head_tiles = ceil_div(p.heads, kMlaHeads);
  const int row = workgroup_index() / head_tiles;
  const int lane = lane_index();
  const int wave = wave_index();
  const int quarter = lane / kStripRows;
  const int along = lane % kStripRows;
  const int head = workgroup_index() % head_tiles * kMlaHeads + along;
  const bool own = p.positions != nullptr;
  const int length = (own ? constant_at(p.positions, row) : p.first + row) + 1;
  const char* const cache =
      &at<char>(p.cache, own ? constant_at(p.sequences, row) * p.sequence_stride : int64_t{0});

  // This wave's columns of each block of 64, or none.
  const auto is_mine = [&](int block, int end) { return block * kBlock + wave * kStripRows < end; };
  f32x4 q[kBlocks] = {};
  {
    const Buffer queries(&at<char>(p.q, row * p.q_stride), kNowhere);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (is_mine(i, row_size)) {
        const int column = i * kBlock + wave * kStripRows + quarter * 4;
        const uint32_t element = head * row_size + column;
        const bool there = head < p.heads && column < row_size;
        if (p.q_bf16 != 0) {
          const u32x2 pairs = queries.load_pair(there ? element * 2 : kNowhere);
          q[i] = __builtin_convertvector(__builtin_bit_cast(Vector<bf16_t, 4>, pairs), f32x4);
        } else {
          q[i] = __builtin_bit_cast(f32x4, queries.load(there ? element * 4 : kNowhere));
        }
      }
    }
  }

  f32x4 out[kRankBlocks] = {};
  float peak = kNothing;  // of the scaled scores so far
  float sum = 0;          // of exponentials, this lane's keys
  Keys<C> keys;
  const auto fetch = [&](int from) {
    keys.fetch(cache + int64_t{from} * row_size * static_cast<int>(sizeof(C)), row_size,
               length - from);
  };
  fetch(0);
  for (int key = 0; key < length; key += kKeys) {
    barrier();  // the keys before have been read
    keys.publish(lds, row_size);
    barrier();
    if (key + kKeys < length) {
      fetch(key + kKeys);
    }
    f32x4 scores = {};
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      if (is_mine(i, row_size)) {
        const int column = i * kBlock + wave * kStripRows + quarter * 4;
        scores = mma_f32(lds_at<u32x4>(lds, along * kKeyBytes + column * 4),
                         __builtin_bit_cast(u32x4, q[i]), scores);
      }
    }
    const auto partial = [&](int of) -> auto& {
      return lds_at<f32x4>(lds, kPartials + (of * kWaveLanes + lane) * kChunkBytes);
    };
    partial(wave) = scores;
    barrier();
    scores = partial(0);
#pragma unroll
    for (int of = 1; of < kTileWaves; ++of) {
      scores += partial(of);
    }

    float highest = kNothing;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      scores[r] = key + quarter * 4 + r < length ? scores[r] * p.score_scale : kNothing;
      highest = __builtin_fmaxf(highest, scores[r]);
    }
    const float next = __builtin_fmaxf(peak, column_reduce<Max>(highest));
    const float shift = next == kNothing ? 0 : next;
    const float rescale = exp2_of(peak - shift);
    peak = next;
    sum *= rescale;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      scores[r] = exp2_of(scores[r] - shift);
      sum += scores[r];
    }
#pragma unroll
    for (int i = 0; i < kRankBlocks; ++i) {
      if (is_mine(i, p.rank)) {
        const int column = i * kBlock + wave * kStripRows + along;
        out[i] *= rescale;
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float value = lds_at<float>(lds, (quarter * 4 + r) * kKeyBytes + column * 4);
          out[i] = __builtin_amdgcn_mfma_f32_16x16x4f32(value, scores[r], out[i], 0, 0, 0);
        }
      }
    }
  }
  const float factor = 1 / column_reduce<Sum>(sum);
  if (head >= p.heads) {
    return;
  }
#pragma unroll
  for (int i = 0; i < kRankBlocks; ++i) {
    const int column = i * kBlock + wave * kStripRows + quarter * 4;
    if (column < p.rank) {
      at<f32x4>(p.out, row * p.out_stride + (head * p.rank + column) * int64_t{4}) =
          out[i] * factor;
    }
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(kMlaAppendThreads, 1) void mla_append(MlaAppendParams p) {
  append(p);
}
#define KERNELS(w)                                                                         \
  extern "C" __global__ __launch_bounds__(256, 2) void mla_queries_##w(MlaHeadsParams p) { \
    multiply_heads<w##_t, true>(p);                                                        \
  }                                                                                        \
  extern "C" __global__ __launch_bounds__(256, 2) void mla_values_##w(MlaHeadsParams p) {  \
    multiply_heads<w##_t, false>(p);                                                       \
  }
KERNELS(f32)
KERNELS(bf16)
KERNELS(f16)
extern "C" __global__ __launch_bounds__(256, 1) void mla_attention_f32(MlaAttentionParams p) {
  attend<float>(p);
}
extern "C" __global__ __launch_bounds__(256, 1) void mla_attention_bf16(MlaAttentionParams p) {
  attend<bf16_t>(p);
}

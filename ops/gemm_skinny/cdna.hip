// gemm_skinny: bound by reading b once, so b goes from memory to the registers of the one wave that
// multiplies it, in the matrix instructions' own layout, with several blocks of k on their way. The
// four waves of a workgroup take turns along k and add their sums up in LDS; a, small and read
// again and again, comes out of the caches.
#include "ops/gemm_skinny/cdna.h"

#include "arch/cdna/gemm.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kScaleBlock = 128;
constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before

/// A tile's sums in LDS, one tile for each wave: rows of m, kColumns f32 each, 16-byte chunks
/// permuted.
template <int kColumns>
WEFT_GPU int sums_offset(int wave, int rows, int m, int n) {
  const int chunk = (n / 4) ^ (m % (kColumns / 4) % 8);
  return ((wave * rows + m) * kColumns + chunk * 4 + n % 4) * 4;
}
template <class T>
WEFT_GPU auto* lds_at(LdsBytes* lds, int offset) {
  return reinterpret_cast<__attribute__((address_space(3))) T*>(lds + offset);
}

/// Up to 16 kStrips rows of m, each strip of a a column of b's products; 16 kWide columns of n.
template <Format kFormat, int kStrips, int kWide>
struct Dense {
  static constexpr int kStripsN = kWide;
  static constexpr int kStripsM = kStrips;
  static constexpr int kRows = kStrips * kStripRows;
  using A = Strip;
  WEFT_GPU int a_row(int i) { return i * kStripRows + lane_index() % kStripRows; }
  WEFT_GPU A prepare(const Strip& a) { return a; }
  WEFT_GPU f32x4 multiply(const Strip& b, const A& a, f32x4 c) { return mma<kFormat>(b, a, c); }
  /// Of strip t of n and strip i of m.
  WEFT_GPU void put(LdsBytes* lds, f32x4 sums, int t, int i) {
    const int n = t * kStripRows + lane_index() / kStripRows * 4;
    *lds_at<f32x4>(lds, sums_offset<kWide * kStripRows>(wave_index(), kRows, a_row(i), n)) = sums;
  }
};

/// Up to 8 rows of m as 16 sparse ones (to_sparse()); 16 kWide columns of n.
template <int kWide>
struct Sparse {
  static constexpr int kStripsN = kWide;
  static constexpr int kStripsM = 1;
  static constexpr int kRows = 8;
  using A = SparseStrip;
  WEFT_GPU int a_row(int /*i*/) { return lane_index() % kStripRows / 2; }
  WEFT_GPU A prepare(const Strip& a) { return to_sparse(a); }
  WEFT_GPU f32x4 multiply(const Strip& b, const A& a, f32x4 c) { return mma(a, b, c); }
  WEFT_GPU void put(LdsBytes* lds, f32x4 sums, int t, int /*i*/) {
    const int n = t * kStripRows + lane_index() % kStripRows;
    const int m = lane_index() / kStripRows * 2;
    *lds_at<float>(lds, sums_offset<kWide * kStripRows>(wave_index(), kRows, m, n)) =
        sums[0] + sums[1];
    *lds_at<float>(lds, sums_offset<kWide * kStripRows>(wave_index(), kRows, m + 1, n)) =
        sums[2] + sums[3];
  }
};

/// Columns of the result in a workgroup.
template <class Product>
inline constexpr int kTileN = Product::kStripsN* kStripRows;

/// Blocks of k of a wave that are loaded ahead: as many as registers are there for.
template <class Product>
inline constexpr int kInFlight = Product::kStripsN == 1   ? 6
                                 : Product::kStripsM == 1 ? 3
                                                          : 2;

/// One block of k of a wave.
template <class Product, bool kBlockScales>
struct Block {
  Strip b[Product::kStripsN];
  Strip a[Product::kStripsM];
  float a_scale[Product::kStripsM];  ///< with kBlockScales
  float b_scale;
};

/// Fetches blocks of k; those from `end` on are zeros.
template <class Product, bool kBlockScales>
class Blocks {
 public:
  __device__ __attribute__((always_inline)) Blocks(const GemmSkinnyParams& p, int n0, int end)
      : p_(p),
        a_(p.a, p.m * p.a_stride),
        b_(&at<char>(p.b, n0 * p.b_stride),
           __builtin_elementwise_min(p.n - n0, kTileN<Product>) * p.b_stride),
        n0_(n0),
        end_(end) {
    quarter_ = lane_index() / kStripRows * kChunkBytes;
#pragma unroll
    for (int i = 0; i < Product::kStripsM; ++i) {
      const int row = __builtin_elementwise_min(Product::a_row(i), p.m - 1);
      a_offset_[i] = static_cast<uint32_t>(row * p.a_stride) + quarter_;
    }
#pragma unroll
    for (int t = 0; t < Product::kStripsN; ++t) {
      const int row =
          __builtin_elementwise_min(t * kStripRows + lane_index() % kStripRows, p.n - n0 - 1);
      b_offset_[t] = static_cast<uint32_t>(row * p.b_stride) + quarter_;
    }
  }

  __device__ __attribute__((always_inline)) void fetch(Block<Product, kBlockScales>& block,
                                                       int index) const {
    const bool any = index < end_;
    const int along = any ? index * kStripBytes : 0;
    const int left = any ? p_.row_bytes - along : 0;  // bytes of the row from here on
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int from = half * kStripBytes / 2;
      const bool inside = from + quarter_ < left;
#pragma unroll
      for (int t = 0; t < Product::kStripsN; ++t) {
        block.b[t].half[half] = b_.load(inside ? b_offset_[t] + from : kNowhere, along);
      }
#pragma unroll
      for (int i = 0; i < Product::kStripsM; ++i) {
        block.a[i].half[half] = a_.load(inside ? a_offset_[i] + from : kNowhere, along);
      }
    }
    if constexpr (kBlockScales) {
      const int scale_block = any ? index : 0;
      using Constant = const __attribute__((address_space(4))) float;
      block.b_scale = *(Constant*)(p_.b_scale + n0_ / kScaleBlock * p_.b_scale_row_stride +
                                   scale_block * p_.b_scale_block_stride);
#pragma unroll
      for (int i = 0; i < Product::kStripsM; ++i) {
        const int row = __builtin_elementwise_min(Product::a_row(i), p_.m - 1);
        block.a_scale[i] =
            p_.a_scale[row * p_.a_scale_row_stride + scale_block * p_.a_scale_block_stride];
      }
    }
  }

 private:
  const GemmSkinnyParams& p_;
  Buffer a_;
  Buffer b_;
  int n0_;
  int end_;
  int quarter_;
  uint32_t a_offset_[Product::kStripsM];
  uint32_t b_offset_[Product::kStripsN];
};

/// A wave's sums to LDS.
template <class Product>
WEFT_GPU void put_all(LdsBytes* lds, const f32x4 (&sums)[Product::kStripsN][Product::kStripsM]) {
#pragma unroll
  for (int i = 0; i < Product::kStripsM; ++i) {
#pragma unroll
    for (int t = 0; t < Product::kStripsN; ++t) {
      Product::put(lds, sums[t][i], t, i);
    }
  }
}

/// Adds up what kSummed waves have put() into LDS, in the order of the waves, and what splits of k
/// have left in memory; scales and writes. A thread has 8 columns of a row.
template <class Product, int kSummed, bool kScales>
WEFT_GPU void finish(const GemmSkinnyParams& p, LdsBytes* lds, int tile, int split) {
  constexpr int kColumns = kTileN<Product>;
  barrier();
  const int m = thread_index() / (kColumns / 8);
  const int column = thread_index() % (kColumns / 8) * 8;
  const int n = tile * kColumns + column;
  const bool mine = m < p.m && n < p.n;
  f32x8 x = {};
  if (mine) {
#pragma unroll
    for (int wave = 0; wave < kSummed; ++wave) {
      x.lo += *lds_at<f32x4>(lds, sums_offset<kColumns>(wave, Product::kRows, m, column));
      x.hi += *lds_at<f32x4>(lds, sums_offset<kColumns>(wave, Product::kRows, m, column + 4));
    }
  }

  if (p.splits > 1) {
    float* partial = p.partial + (int64_t{tile} * p.splits * p.m + m) * kColumns + column;
    const int64_t step = int64_t{p.m} * kColumns;  // from one split's to the next one's
    if (mine) {
      at<f32x8>(partial, split * step * int64_t{sizeof(float)}) = x;
    }
    barrier();  // lds is read
    if (!comes_last(p.tickets + tile, p.splits, lds)) {
      return;
    }
    x = {};
    for (int other = 0; mine && other < p.splits; ++other) {
      x += at<f32x8>(partial, other * step * int64_t{sizeof(float)});
    }
  }
  if (!mine) {
    return;
  }
  if constexpr (kScales) {
    const float a = p.a_scale[m * p.a_scale_row_stride];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] *= a * p.b_scale[(n + i) * p.b_scale_row_stride];
    }
  }
  if (p.out_f32 != 0) {
    at<f32x8>(p.out, m * p.out_stride + n * int64_t{sizeof(float)}) = x;
  } else {
    at<Vector<bf16_t, 8>>(p.out, m * p.out_stride + n * int64_t{sizeof(bf16_t)}) =
        __builtin_convertvector(x, Vector<bf16_t, 8>);
  }
}

template <class Product, bool kBlockScales, bool kScales>
WEFT_GPU void gemm_skinny(const GemmSkinnyParams& p) {
  __shared__ __attribute__((
      aligned(16))) char shared[kTileWaves * Product::kRows * kTileN<Product> * sizeof(float)];
  auto* lds = (LdsBytes*)shared;
  const int tile = workgroup_index() % p.tiles;
  const int split = workgroup_index() / p.tiles;
  const int n0 = tile * kTileN<Product>;
  const int blocks = ceil_div(p.row_bytes, kStripBytes);
  const int end = blocks * (split + 1) / p.splits;
  const int first = blocks * split / p.splits + wave_index();

  using OneBlock = Block<Product, kBlockScales>;
  const Blocks<Product, kBlockScales> source(p, n0, end);
  constexpr int kAhead = kInFlight<Product>;
  OneBlock ring[kAhead];
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) {
    source.fetch(ring[ahead], first + ahead * kTileWaves);
    __builtin_amdgcn_sched_barrier(0);
  }
  f32x4 sums[Product::kStripsN][Product::kStripsM] = {};
  for (int block = first; block < end; block += kAhead * kTileWaves) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      OneBlock& now = ring[ahead];
#pragma unroll
      for (int i = 0; i < Product::kStripsM; ++i) {
        const typename Product::A a = Product::prepare(now.a[i]);
#pragma unroll
        for (int t = 0; t < Product::kStripsN; ++t) {
          if constexpr (kBlockScales) {
            // No block, no scale: one that is not there has zeros, but its scale may be infinite.
            const bool real = block + ahead * kTileWaves < end;
            sums[t][i] +=
                Product::multiply(now.b[t], a, f32x4{}) * (real ? now.a_scale[i] * now.b_scale : 0);
          } else {
            sums[t][i] = Product::multiply(now.b[t], a, sums[t][i]);
          }
        }
      }
      // In this order: or the compiler loads the next block while it still needs this one's
      // registers, and has to wait for all loads to copy them.
#pragma unroll
      for (auto& strip : sums) {
        for (f32x4& sum : strip) {
          asm volatile("" : "+v"(sum));
        }
      }
      __builtin_amdgcn_sched_barrier(0);
      source.fetch(now, block + (kAhead + ahead) * kTileWaves);
      __builtin_amdgcn_sched_barrier(0);
    }
  }

  put_all<Product>(lds, sums);
  finish<Product, kTileWaves, kScales>(p, lds, tile, split);
}

// The queue: most waves of a large workgroup bring blocks of a and b to LDS, each with a whole
// block on its way in registers; a few multiply them. So more bytes are in flight than the
// multiplying waves' registers could hold.

/// LDS for blocks between producers and consumers, and who may touch them: a slot's state counts up
/// by one when its block is complete and by one when it has been read.
template <class Product>
struct Queue {
  static constexpr int kProducers = 8;
  static constexpr int kConsumers = 2;
  static constexpr int kSlots = 5;
  static constexpr int kRowsA = Product::kStripsM * kStripRows;
  static constexpr int kRowsB = kTileN<Product>;
  static constexpr int kSlotBytes = (kRowsA + kRowsB) * kStripBytes;
  static constexpr int kBytes = kSlots * kSlotBytes;
  static_assert(kBytes + kSlots * 4 <= 65536, "fits the LDS of gfx942");
  static_assert(kConsumers * Product::kRows * kRowsB * 4 <= kBytes, "sums go where blocks were");
};
using LdsState = __attribute__((address_space(3))) uint32_t;

/// Waits until a slot's state is `wanted`. Atomics, with no change made, so that what was written
/// to LDS before the state changed is seen after it.
WEFT_GPU void wait_until(LdsState* state, uint32_t wanted) {
  while (true) {
    uint32_t seen = wanted;
    if (lane_index() == 0) {
      __scoped_atomic_compare_exchange_n(state, &seen, wanted, false, __ATOMIC_ACQUIRE,
                                         __ATOMIC_ACQUIRE, __MEMORY_SCOPE_WRKGRP);
    }
    if (static_cast<uint32_t>(__builtin_amdgcn_readfirstlane(seen)) == wanted) {
      return;
    }
    __builtin_amdgcn_s_sleep(1);
  }
}
WEFT_GPU void advance(LdsState* state) {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  if (lane_index() == 0) {
    __scoped_atomic_fetch_add(state, 1U, __ATOMIC_RELAXED, __MEMORY_SCOPE_WRKGRP);
  }
}

/// kRows rows of a block of k, from memory to registers to LDS, by one wave.
template <int kRows>
class WaveTile {
 public:
  /// `first`: of `rows` rows left in the matrix.
  __device__ __attribute__((always_inline))
  WaveTile(const void* first, int64_t stride, int rows, int row_bytes)
      : buffer_(first, __builtin_elementwise_min(rows, kRows) * stride), row_bytes_(row_bytes) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int row = i * kRowsAtOnce + lane_index() / kRowChunks;
      offset_[i] =
          static_cast<uint32_t>(__builtin_elementwise_min(row, rows - 1) * stride) + chunk_of(i);
    }
  }
  __device__ __attribute__((always_inline)) void fetch(int block) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const bool inside = block * kStripBytes + chunk_of(i) < row_bytes_;
      staged_[i] = buffer_.load(inside ? offset_[i] : kNowhere, block * kStripBytes);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      *lds_at<u32x4>(lds, (i * kWaveLanes + lane_index()) * kChunkBytes) = staged_[i];
    }
  }

 private:
  static constexpr int kRowsAtOnce = kWaveLanes / kRowChunks;
  static constexpr int kLoads = kRows / kRowsAtOnce;
  /// Lanes lie along the places of a row and bring the chunk that belongs there.
  WEFT_GPU int chunk_of(int i) {
    const int row = i * kRowsAtOnce + lane_index() / kRowChunks;
    return (lane_index() % kRowChunks ^ place_key(row)) * kChunkBytes;
  }
  Buffer buffer_;
  int row_bytes_;
  uint32_t offset_[kLoads];
  u32x4 staged_[kLoads];
};

template <class Product, bool kScales>
WEFT_GPU void gemm_skinny_queue(const GemmSkinnyParams& p) {
  using Queue = Queue<Product>;
  __shared__ __attribute__((aligned(1024))) char shared[Queue::kBytes];
  __shared__ uint32_t states[Queue::kSlots];
  auto* lds = (LdsBytes*)shared;
  auto* state = (LdsState*)states;
  const int tile = workgroup_index() % p.tiles;
  const int split = workgroup_index() / p.tiles;
  const int n0 = tile * Queue::kRowsB;
  const int blocks = ceil_div(p.row_bytes, kStripBytes);
  const int begin = blocks * split / p.splits;
  const int count = blocks * (split + 1) / p.splits - begin;
  if (thread_index() < Queue::kSlots) {
    state[thread_index()] = 0;
  }
  barrier();

  constexpr int kOfB = Queue::kRowsA * kStripBytes;
  const auto slot_of = [&](int block) { return block % Queue::kSlots; };
  const auto round_of = [&](int block) { return 2U * (block / Queue::kSlots); };
  f32x4 sums[Product::kStripsN][Product::kStripsM] = {};
  if (wave_index() < Queue::kConsumers) {
    const int l = lane_index() % kStripRows;
    const StripReader a_reader(Product::a_row(0), Product::a_row(Product::kStripsM - 1));
    const StripReader b_reader(l, kStripRows + l);
    for (int block = wave_index(); block < count; block += Queue::kConsumers) {
      const LdsBytes* slot = lds + slot_of(block) * Queue::kSlotBytes;
      wait_until(state + slot_of(block), round_of(block) + 1);
      typename Product::A a[Product::kStripsM];
#pragma unroll
      for (int i = 0; i < Product::kStripsM; ++i) {
        a[i] = Product::prepare(a_reader.load(slot, i));
      }
#pragma unroll
      for (int t = 0; t < Product::kStripsN; ++t) {
        const Strip b = b_reader.load(slot + kOfB, t);
#pragma unroll
        for (int i = 0; i < Product::kStripsM; ++i) {
          sums[t][i] = Product::multiply(b, a[i], sums[t][i]);
        }
      }
      advance(state + slot_of(block));
    }
  } else {
    WaveTile<Queue::kRowsA> a(p.a, p.a_stride, p.m, p.row_bytes);
    WaveTile<Queue::kRowsB> b(&at<char>(p.b, n0 * p.b_stride), p.b_stride, p.n - n0, p.row_bytes);
    for (int block = wave_index() - Queue::kConsumers; block < count; block += Queue::kProducers) {
      LdsBytes* slot = lds + slot_of(block) * Queue::kSlotBytes;
      b.fetch(begin + block);
      a.fetch(begin + block);
      wait_until(state + slot_of(block), round_of(block));
      a.publish(slot);
      b.publish(slot + kOfB);
      advance(state + slot_of(block));
    }
  }
  barrier();  // all blocks are read
  if (wave_index() < Queue::kConsumers) {
    put_all<Product>(lds, sums);
  }
  finish<Product, Queue::kConsumers, kScales>(p, lds, tile, split);
}

}  // namespace

// Rows of m at most and columns of n; `ends`: scaled at the end, by scales of tensors or rows.
#define KERNEL(name, ends, blocks, ...)                                                         \
  extern "C" __global__ __launch_bounds__(256, 2) void gemm_skinny_##name(GemmSkinnyParams p) { \
    gemm_skinny<__VA_ARGS__, blocks, ends>(p);                                                  \
  }
#define KERNELS(columns, wide)                                             \
  KERNEL(bf16_16x##columns, false, false, Dense<Format::bf16, 1, wide>)    \
  KERNEL(bf16_32x##columns, false, false, Dense<Format::bf16, 2, wide>)    \
  KERNEL(fp8_16x##columns, true, false, Dense<Format::fp8, 1, wide>)       \
  KERNEL(fp8_32x##columns, true, false, Dense<Format::fp8, 2, wide>)       \
  KERNEL(fp8_block_16x##columns, false, true, Dense<Format::fp8, 1, wide>) \
  KERNEL(fp8_block_32x##columns, false, true, Dense<Format::fp8, 2, wide>) \
  KERNEL(fp8_sparse_8x##columns, true, false, Sparse<wide>)
KERNELS(64, 4)
KERNELS(16, 1)

#define QUEUE(name, ends, ...)                                                                   \
  extern "C" __global__ __launch_bounds__(640,                                                   \
                                          2) void gemm_skinny_queue_##name(GemmSkinnyParams p) { \
    gemm_skinny_queue<__VA_ARGS__, ends>(p);                                                     \
  }
QUEUE(bf16_16x64, false, Dense<Format::bf16, 1, 4>)
QUEUE(bf16_32x64, false, Dense<Format::bf16, 2, 4>)
QUEUE(fp8_16x64, true, Dense<Format::fp8, 1, 4>)
QUEUE(fp8_32x64, true, Dense<Format::fp8, 2, 4>)
QUEUE(fp8_sparse_8x64, true, Sparse<4>)

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

template <class Product, bool kBlockScales, bool kScales>
WEFT_GPU void gemm_skinny(const GemmSkinnyParams& p) {
  __shared__ __attribute__((
      aligned(16))) char shared[kTileWaves * Product::kRows * kTileN<Product> * sizeof(float)];
  auto* lds = (LdsBytes*)shared;
  const int tile = workgroup_index() % p.tiles;
  const int split = workgroup_index() / p.tiles;
  constexpr int kColumns = kTileN<Product>;
  const int n0 = tile * kColumns;
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

  // The waves' sums, added in the order of the waves: a thread has 8 columns of a row.
#pragma unroll
  for (int i = 0; i < Product::kStripsM; ++i) {
#pragma unroll
    for (int t = 0; t < Product::kStripsN; ++t) {
      Product::put(lds, sums[t][i], t, i);
    }
  }
  barrier();
  const int m = thread_index() / (kColumns / 8);
  const int column = thread_index() % (kColumns / 8) * 8;
  const int n = n0 + column;
  const bool mine = m < p.m && n < p.n;
  f32x8 x = {};
  if (mine) {
#pragma unroll
    for (int wave = 0; wave < kTileWaves; ++wave) {
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

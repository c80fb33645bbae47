// moe for a chunk's rows on AMD. Slots are sorted by expert, a workgroup for each; then a workgroup
// has some columns of one expert's product, for tile after tile of the rows that drew it, which it
// gathers (arch/cdna/gemm.hip.h otherwise). Workgroups of experts that nobody drew leave at once.
// The second products lie by slot until each row sums its own.
#include "ops/moe/cdna.h"

#include "arch/cdna/reduce.hip.h"
#include "arch/cdna/round.hip.h"
#include "base/scaling.h"
#include "ops/cdna_linear.hip.h"
#include "ops/linear/forms/fp8/cdna_numbers.hip.h"
#include "ops/linear/forms/mxfp4/cdna_numbers.hip.h"
#include "ops/moe/cdna_gathered.hip.h"

using namespace weft;
using namespace weft::cdna;

namespace {

// --- the draw ---

/// Larger for what is chosen before: NaN before all numbers, of equal logits the lower expert. No
/// key is 0.
WEFT_GPU uint64_t draw_key(float logit, int expert) {
  const auto bits = __builtin_bit_cast(uint32_t, logit + 0.0F);  // one zero
  const uint32_t ordered = logit != logit ? ~0U : (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return uint64_t{ordered} << 32 | ~static_cast<uint32_t>(expert);
}
WEFT_GPU int from_other(int x, int distance) {
  return __builtin_amdgcn_ds_bpermute((lane_index() ^ distance) * 4, x);
}
WEFT_GPU uint64_t wave_max(uint64_t x) {
#pragma unroll
  for (int distance = 1; distance < kWaveLanes; distance *= 2) {
    const auto low = static_cast<uint32_t>(from_other(static_cast<int>(x), distance));
    const auto high = static_cast<uint32_t>(from_other(static_cast<int>(x >> 32), distance));
    const uint64_t other = uint64_t{high} << 32 | low;
    x = other > x ? other : x;
  }
  return x;
}

WEFT_GPU float sigmoid(float x) { return 1 / (1 + exp_of(-x)); }

/// The best key of those that `key_of(i)` gives for i < count, 0 where it is not eligible.
template <class KeyOf>
WEFT_GPU uint64_t best_of(int count, const KeyOf& key_of) {
  uint64_t best = 0;
  for (int i = lane_index(); i < count; i += kWaveLanes) {
    const uint64_t key = key_of(i);
    best = key > best ? key : best;
  }
  return wave_max(best);
}
WEFT_GPU int number_of(uint64_t key) { return static_cast<int>(~static_cast<uint32_t>(key)); }

/// A bit for each group of experts that a row's are chosen from.
template <class Choice>
WEFT_GPU uint64_t kept_groups(const MoeRouteParams& p, const Choice& choice) {
  const int each = p.experts / p.groups;
  float score = 0;  // lane g's: group g's
  for (int g = 0; g < p.groups; ++g) {
    const auto key_of = [&](int i) { return draw_key(choice(g * each + i), i); };
    const uint64_t best = best_of(each, key_of);
    float own = choice(g * each + number_of(best));
    if (p.correction != nullptr && each > 1) {
      const uint64_t second = best_of(each, [&](int i) {
        const uint64_t key = key_of(i);
        return key < best ? key : 0;
      });
      own += choice(g * each + number_of(second));
    }
    score = lane_index() == g ? own : score;
  }
  uint64_t kept = 0;
  for (int i = 0; i < p.kept_groups; ++i) {
    const int lane = lane_index();
    const bool left = lane < p.groups && (kept >> lane & 1) == 0;
    kept |= uint64_t{1} << number_of(wave_max(left ? draw_key(score, lane) : 0));
  }
  return kept;
}

/// A wave a row.
WEFT_GPU void route(const MoeRouteParams& p) {
  const int row = workgroup_index() * kMoeRouteRows + wave_index();
  if (row >= p.rows) {
    return;
  }
  const int lane = lane_index();
  const float* const logits = p.logits + row * p.logits_stride;
  const auto choice = [&](int e) {
    return p.correction != nullptr
               ? sigmoid(logits[e]) + number_at(p.correction, p.correction_format, e)
               : logits[e];
  };
  const int each = p.experts / p.groups;
  const uint64_t kept = p.groups > 1 ? kept_groups(p, choice) : 1;
  const auto key_of = [&](int e) {
    return (kept >> (e / each) & 1) != 0 ? draw_key(choice(e), e) : 0;
  };
  // The best that is left, again and again: the last one's key divides the chosen from the others.
  uint64_t least = ~uint64_t{0};
  for (int s = 0; s < p.chosen; ++s) {
    least = best_of(p.experts, [&](int e) {
      const uint64_t key = key_of(e);
      return key < least || s == 0 ? key : 0;
    });
  }
  const float largest =
      logits[number_of(best_of(p.experts, [&](int e) { return draw_key(logits[e], e); }))];
  const auto score = [&](float logit) {
    return p.sigmoid != 0 ? sigmoid(logit) : exp_of(logit - largest);
  };
  float sum = 0;
  for (int e = lane; e < p.experts; e += kWaveLanes) {
    sum += p.renormalise == 0 || key_of(e) >= least ? score(logits[e]) : 0;
  }
  sum = wave_reduce<Sum>(sum);
  if (p.sigmoid != 0 && p.renormalise == 0) {
    sum = 1;
  }
  int64_t slot = row * p.slot_stride;
  for (int first = 0; first < p.experts; first += kWaveLanes) {
    const int e = first + lane;
    const bool taken = e < p.experts && key_of(e) >= least;
    const uint64_t all = __builtin_amdgcn_ballot_w64(taken);
    if (taken) {
      const int64_t at = slot + __builtin_popcountll(all & ((uint64_t{1} << lane) - 1));
      p.ids[at] = e;
      p.weights[at] = score(logits[e]) / sum * p.scale;
    }
    slot += __builtin_popcountll(all);
  }
}

// --- the order ---

/// A workgroup an expert: its slots, in ascending order.
WEFT_GPU void sort(const MoeSortParams& p) {
  constexpr int kThreads = 256;
  constexpr int kWaves = kThreads / kWaveLanes;
  __shared__ int lower_of[kWaves];
  __shared__ int own_of[kWaves];
  const int expert = workgroup_index();
  const int each = ceil_div(p.slots, kThreads);
  const int first = __builtin_elementwise_min(p.slots, thread_index() * each);
  const int last = __builtin_elementwise_min(p.slots, first + each);
  int lower = 0;
  int own = 0;
  for (int i = first; i < last; ++i) {
    const int id = p.ids[i];
    lower += id < expert ? 1 : 0;
    own += id == expert ? 1 : 0;
  }
  const int upto = sum_upto_lane(own);
  const int lower_upto = sum_upto_lane(lower);
  if (lane_index() == kWaveLanes - 1) {
    lower_of[wave_index()] = lower_upto;
    own_of[wave_index()] = upto;
  }
  barrier();
  int begin = 0;  // of the expert's
  int all = 0;
  int at = upto - own;  // of the thread's among them
#pragma unroll
  for (int w = 0; w < kWaves; ++w) {
    begin += lower_of[w];
    all += own_of[w];
    at += w < wave_index() ? own_of[w] : 0;
  }
  if (thread_index() == 0) {
    p.order[expert] = begin;
    if (expert + 1 == p.experts) {
      p.order[expert + 1] = begin + all;
    }
  }
  int32_t* to = p.order + p.experts + 1 + begin + at;
  for (int i = first; i < last; ++i) {
    if (p.ids[i] == expert) {
      *to++ = i;
    }
  }
}

// --- products ---

struct Mxfp4 {};
struct E4m3 {};

/// 16 bytes of LDS, elements of A, of weights in W: on their way, and as they are to lie.
template <class A, class W>
struct Chunk {
  static constexpr int kElements = kChunkBytes / sizeof(A);
  static constexpr int kBytes = kElements * sizeof(W);
  Vector<uint32_t, kBytes / 4> raw;

  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows, uint32_t offset,
                                                       uint32_t /*scale*/, int along) {
    const uint32_t uniform = along * kBytes;
    if constexpr (kBytes == 16) {
      raw = rows.load(offset, uniform);
    } else {
      raw = rows.load_pair(offset, uniform);
    }
  }
  __device__ __attribute__((always_inline)) u32x4 numbers() const {
    if constexpr (kBytes == 16) {
      return raw;
    } else {
      return __builtin_bit_cast(
          u32x4, __builtin_convertvector(__builtin_bit_cast(Vector<W, 4>, raw), f32x4));
    }
  }
};
template <class A>
struct Chunk<A, Mxfp4> {
  static constexpr int kElements = kChunkBytes / sizeof(A);
  static constexpr int kBytes = kElements / 2;
  uint32_t codes;
  uint32_t scale;

  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows, uint32_t offset,
                                                       uint32_t scale_offset, int along) {
    if constexpr (kBytes == 4) {
      codes = rows.load_word(offset, along * kBytes);
    } else {
      codes = rows.load_half(offset, along * kBytes);
    }
    scale = rows.load_byte(scale_offset, along * kElements / 32);
  }
  __device__ __attribute__((always_inline)) u32x4 numbers() const {
    if constexpr (sizeof(A) == 2) {
      return __builtin_amdgcn_ballot_w64(!MxTable::has(scale)) == 0 ? MxTable(scale).numbers(codes)
                                                                    : mx_numbers(codes, scale);
    } else {
      const float factor = mx_scale(scale);
      f32x4 x;
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        x[i] = mx_number(codes >> (4 * i), factor);
      }
      return __builtin_bit_cast(u32x4, x);
    }
  }
};

template <class A>
struct Chunk<A, E4m3> {
  static constexpr int kElements = kChunkBytes / sizeof(A);
  static constexpr int kBytes = kElements;
  Vector<uint32_t, kBytes / 4> codes;
  float scale;

  /// `scales`: of blocks.
  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows, uint32_t offset,
                                                       const Buffer& scales, uint32_t scale_offset,
                                                       int along) {
    if constexpr (kBytes == 8) {
      codes = rows.load_pair(offset, along * kBytes);
    } else {
      codes = rows.load_word(offset, along * kBytes);
    }
    scale = __builtin_bit_cast(float, scales.load_word(scale_offset));
  }
  __device__ __attribute__((always_inline)) u32x4 numbers() const {
    Vector<float, kElements> x;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      x[i] = scale * e4m3_number(codes[i / 4] >> i % 4 * 8);
    }
    if constexpr (sizeof(A) == 2) {
      return __builtin_bit_cast(u32x4, round_to<bf16_t>(x));
    } else {
      return __builtin_bit_cast(u32x4, x);
    }
  }
};

/// kMoeColumns rows of an expert's weights. Gated ones are half gate's and half up's: strips of a
/// pair, so that a lane has both sums of a column.
template <class A, class W, bool kGated>
class ExpertRows {
 public:
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr int kColumns = kGated ? kMoeColumns / 2 : kMoeColumns;

  __device__ __attribute__((always_inline))
  ExpertRows(const MoeProductParams& p, int expert, int n0)
      : buffer_{of(p, expert, 0), of(p, expert, kGated ? 1 : 0)},
        blocks_{blocks_of(p, expert, 0), blocks_of(p, expert, kGated ? 1 : 0)},
        k_(p.k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = __builtin_elementwise_min(n0 + column_of(i), p.n - 1);
      offset_[i] =
          static_cast<uint32_t>(column * p.w[which(i)].stride) + chunk() * Chunk<A, W>::kBytes;
      if constexpr (kCodes) {
        scale_[i] = column / kBlock * ceil_div(p.k, kBlock) * static_cast<int>(sizeof(float));
      } else {
        scale_[i] = static_cast<uint32_t>(p.w[which(i)].scales) + column * (p.k / 32) +
                    chunk() * kElements / 32;
      }
    }
  }
  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    const int along = k_block * kRowChunks;
    const bool inside = (along + chunk()) * kElements < k_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint32_t offset = inside ? offset_[i] : kNowhere;
      if constexpr (kCodes) {
        const uint32_t block = (along + chunk()) * kElements / kBlock * sizeof(float);
        staged_[i].fetch(buffer_[which(i)], offset, blocks_[which(i)],
                         inside ? scale_[i] + block : kNowhere, along);
      } else {
        staged_[i].fetch(buffer_[which(i)], offset, inside ? scale_[i] : kNowhere, along);
      }
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
    using At = __attribute__((address_space(3))) u32x4;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int column = column_of(i);
      const int row = kGated ? column / 4 * 8 + which(i) * 4 + column % 4 : column;
      *reinterpret_cast<At*>(lds + chunk_offset(row, chunk())) = staged_[i].numbers();
    }
  }

 private:
  static constexpr int kElements = Chunk<A, W>::kElements;
  static constexpr int kLoads = kMoeColumns / kPassRows;
  static constexpr bool kCodes = std::is_same_v<W, E4m3>;
  static constexpr int kBlock = weft::kScaleBlock;
  WEFT_GPU Buffer of(const MoeProductParams& p, int expert, int w) {
    return {&at<char>(p.w[w].first, expert * p.w[w].pitch), kNowhere};
  }
  WEFT_GPU Buffer blocks_of(const MoeProductParams& p, int expert, int w) {
    const int count = ceil_div(p.n, kBlock) * ceil_div(p.k, kBlock);
    return {&at<char>(p.w[w].block_scales, expert * p.w[w].block_pitch),
            kCodes ? static_cast<uint32_t>(count * sizeof(float)) : 0};
  }
  WEFT_GPU int chunk() { return thread_index() % kRowChunks; }
  WEFT_GPU int which(int i) { return kGated ? i % 2 : 0; }
  WEFT_GPU int column_of(int i) {
    return (kGated ? i / 2 : i) * kPassRows + thread_index() / kRowChunks;
  }

  Buffer buffer_[2];
  Buffer blocks_[2];
  int k_;
  uint32_t offset_[kLoads];
  uint32_t scale_[kLoads];
  Chunk<A, W> staged_[kLoads];
};

/// Four of an expert's biases; zeros where there are none.
WEFT_GPU f32x4 biases_of(const MoeProductParams& p, int which, int expert, int column) {
  const void* const all = p.w[which].bias;
  const int count = p.experts * p.n;
  const int first = expert * p.n + column;
  return p.bias_format == 0   ? load_four<float>(all, count, first)
         : p.bias_format == 1 ? load_four<bf16_t>(all, count, first)
                              : load_four<f16_t>(all, count, first);
}

WEFT_GPU float gated(const MoeProductParams& p, float gate, float up) {
  if (p.limit > 0) {
    // Comparisons that leave NaN as it is.
    const float g = gate > p.limit ? p.limit : gate;
    const float low = up < -p.limit ? -p.limit : up;
    const float u = low > p.limit ? p.limit : low;
    return g / (1 + exp_of(-1.702F * g)) * (u + 1);
  }
  return activate(p.activation, gate) * up;
}

template <class A, class W, bool kGated, int kRows>
WEFT_GPU void product(const MoeProductParams& p) {
  // Few rows: each wave has all of them, and some columns.
  using Shape = TileShape<kRows, kMoeColumns, kRows == 32 ? 1 : 2, kRows == 32 ? 4 : 2>;
  using Of = LinearOf<A, A>;
  using B = ExpertRows<A, W, kGated>;
  __shared__ __attribute__((aligned(1024))) char shared[Shape::kLdsBytes];
  auto* lds = (LdsBytes*)shared;
  const int n0 = workgroup_index() % p.tiles_n * B::kColumns;
  const int expert = workgroup_index() / p.tiles_n % p.experts;
  const int begin = constant_at(p.order, expert);
  const int count = constant_at(p.order, expert + 1) - begin;
  const int32_t* const slots = p.order + p.experts + 1 + begin;
  const int first = workgroup_index() / p.tiles_n / p.experts * kRows;
  for (int m0 = first; m0 < count; m0 += p.row_blocks * kRows) {
    GatheredRows<kRows, std::is_same_v<W, Mxfp4> && sizeof(A) == 2> a(
        p.a, p.a_stride, p.k * static_cast<int>(sizeof(A)), p.per_row, slots + m0, count - m0);
    B b(p, expert, n0);
    Sums<Shape> sums;
    Of::multiply(a, b, p.k, lds, sums);

    const Buffer order(slots + m0, (count - m0) * 4);
    using Out = std::conditional_t<kGated, A, float>;
#pragma unroll
    for (int i = 0; i < Shape::kStripsM; ++i) {
      const int m = Shape::wave_m() + i * kStripRows + lane_index() % kStripRows;
      const auto slot = static_cast<int>(order.load_word(m * 4));
      Out* const row = &at<Out>(p.out, slot * p.out_stride);
      constexpr int kStep = kGated ? 2 : 1;
#pragma unroll
      for (int t = 0; t < Shape::kStripsN; t += kStep) {
        const int column =
            n0 + (kGated ? Shape::wave_n() / 2 + t / 2 * kStripRows + lane_index() / kStripRows * 4
                         : column_of<Shape>(t));
        if (m0 + m >= count || column >= p.n) {
          continue;
        }
        f32x4 x = sums.of[t][i] + biases_of(p, 0, expert, column);
        if constexpr (kGated) {
          const f32x4 up = sums.of[t + 1][i] + biases_of(p, 1, expert, column);
#pragma unroll
          for (int r = 0; r < 4; ++r) {
            x[r] = gated(p, x[r], up[r]);
          }
        }
        using Four = Vector<Out, 4>;
        *reinterpret_cast<Four*>(row + column) = __builtin_convertvector(x, Four);
      }
    }
  }
}

// --- products of few rows ---

/// A block of k on its way to a wave: of two strips of weights (16 rows each, of gate and of up or
/// one after the other) and of up to 16 rows of a. kHalves: of strips, 32 numbers of k each. In
/// MXFP4 a lane has 32 codes of a row that share a scale, so a's numbers lie likewise.
template <class W>
struct FewBlock {
  static constexpr int kHalves = 2;
  static constexpr int kDepth = kHalves * 32;
  u32x4 b[2][kHalves];
  u32x4 a[kHalves];

  /// Where a lane's numbers are from a half's first on, of k.
  WEFT_GPU int along(int half) { return half * 32 + lane_index() / kStripRows * 8; }
  __device__ __attribute__((always_inline)) void fetch_weights(int strip, const Buffer& rows,
                                                               uint32_t row, uint32_t /*scales*/,
                                                               int k, int end) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int at = k + along(h);
      b[strip][h] = rows.load_once(at < end ? row + at * 2 : kNowhere, 0);
    }
  }
  __device__ __attribute__((always_inline)) void weights(int strip,
                                                         u32x4 (&halves)[kHalves]) const {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      halves[h] = b[strip][h];
    }
  }
  __device__ __attribute__((always_inline)) u32x4 rows(int half) const { return a[half]; }
};
template <>
struct FewBlock<Mxfp4> {
  static constexpr int kHalves = 4;
  static constexpr int kDepth = kHalves * 32;
  u32x4 b[2];
  uint32_t scale[2];
  u32x4 a[kHalves];

  WEFT_GPU int along(int half) { return lane_index() / kStripRows * 32 + half * 8; }
  __device__ __attribute__((always_inline)) void fetch_weights(int strip, const Buffer& rows,
                                                               uint32_t row, uint32_t scales, int k,
                                                               int end) {
    const int at = k + along(0);
    b[strip] = rows.load_once(at < end ? row + at / 2 : kNowhere, 0);
    const uint32_t own = rows.load_byte(at < end ? scales + at / 32 : kNowhere);
    scale[strip] = at < end ? own : 127;  // of zeros
  }
  __device__ __attribute__((always_inline)) void weights(int strip,
                                                         u32x4 (&halves)[kHalves]) const {
    if (__builtin_amdgcn_ballot_w64(!MxTable::has(scale[strip])) == 0) {
      const MxTable table(scale[strip]);
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        halves[h] = table.numbers(b[strip][h]);
      }
    } else {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        halves[h] = mx_numbers(b[strip][h], scale[strip]);
      }
    }
  }
  __device__ __attribute__((always_inline)) u32x4 rows(int half) const {
    return in_mx_order(a[half]);
  }
};

/// Weights go from memory to the registers of the one wave that multiplies them, as in gemm_skinny:
/// the four waves take turns along k and add their sums up in LDS.
template <class W, bool kGated>
WEFT_GPU void few_product(const MoeProductParams& p) {
  using Block = FewBlock<W>;
  constexpr int kInFlight = Block::kHalves == 2 ? 4 : 3;
  constexpr int kColumns = kGated ? kStripRows : 2 * kStripRows;
  __shared__ f32x4 sums_of[kTileWaves][2][kWaveLanes];
  const int lane = lane_index();
  const int along = lane % kStripRows;
  const int n0 = workgroup_index() % p.tiles_n * kColumns;
  const int expert = workgroup_index() / p.tiles_n % p.experts;
  const int begin = constant_at(p.order, expert);
  const int count = constant_at(p.order, expert + 1) - begin;
  const int32_t* const slots = p.order + p.experts + 1 + begin;
  const int first = workgroup_index() / p.tiles_n / p.experts * kStripRows;
  const auto weights_of = [&](int strip) {
    const MoeMatrices& w = p.w[kGated ? strip : 0];
    return Buffer(&at<char>(w.first, expert * w.pitch), kNowhere);
  };
  const Buffer weights[2] = {weights_of(0), weights_of(1)};
  uint32_t rows[2];
  uint32_t scales[2];
#pragma unroll
  for (int strip = 0; strip < 2; ++strip) {
    const MoeMatrices& w = p.w[kGated ? strip : 0];
    const int column =
        __builtin_elementwise_min(n0 + (kGated ? 0 : strip * kStripRows) + along, p.n - 1);
    rows[strip] = static_cast<uint32_t>(column * w.stride);
    scales[strip] = static_cast<uint32_t>(w.scales) + column * (p.k / 32);
  }
  const Buffer a(p.a, kNowhere);
  for (int m0 = first; m0 < count; m0 += p.row_blocks * kStripRows) {
    const Buffer order(slots + m0, (count - m0) * 4);
    const auto slot = static_cast<int>(order.load_word(along * 4));
    const auto row = static_cast<uint32_t>(slot / p.per_row * p.a_stride);
    const auto fetch = [&](Block& block, int index) {
      const int k = index * Block::kDepth;
#pragma unroll
      for (int strip = 0; strip < 2; ++strip) {
        block.fetch_weights(strip, weights[strip], rows[strip], scales[strip], k, p.k);
      }
#pragma unroll
      for (int h = 0; h < Block::kHalves; ++h) {
        const int from = k + Block::along(h);
        block.a[h] = a.load(from < p.k && m0 + along < count ? row + from * 2 : kNowhere);
      }
    };
    const int blocks = ceil_div(p.k, Block::kDepth);
    f32x4 sums[2] = {};
    Block ahead[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      fetch(ahead[i], wave_index() + i * kTileWaves);
    }
    for (int index = wave_index(); index < blocks; index += kInFlight * kTileWaves) {
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) {
        u32x4 halves[2][Block::kHalves];
        ahead[i].weights(0, halves[0]);
        ahead[i].weights(1, halves[1]);
#pragma unroll
        for (int h = 0; h < Block::kHalves; ++h) {
          const u32x4 rows_of_a = ahead[i].rows(h);
#pragma unroll
          for (int strip = 0; strip < 2; ++strip) {
            sums[strip] = mma_bf16(halves[strip][h], rows_of_a, sums[strip]);
          }
        }
        fetch(ahead[i], index + (kInFlight + i) * kTileWaves);
      }
    }
    barrier();  // what the tile before left in LDS has been read
    sums_of[wave_index()][0][lane] = sums[0];
    sums_of[wave_index()][1][lane] = sums[1];
    barrier();
    // A wave a strip, or one for both of gate and up. A lane has row `along` of a.
    const int strip = wave_index();
    const int column = n0 + (kGated ? 0 : strip * kStripRows) + lane / kStripRows * 4;
    if (strip >= (kGated ? 1 : 2) || m0 + along >= count || column >= p.n) {
      continue;
    }
    const auto all_of = [&](int of) {
      f32x4 all = biases_of(p, kGated ? of : 0, expert, column);
#pragma unroll
      for (int w = 0; w < kTileWaves; ++w) {
        all += sums_of[w][of][lane];
      }
      return all;
    };
    f32x4 x = all_of(strip);
    using Out = std::conditional_t<kGated, bf16_t, float>;
    if constexpr (kGated) {
      const f32x4 up = all_of(1);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        x[r] = gated(p, x[r], up[r]);
      }
    }
    using Four = Vector<Out, 4>;
    at<Four>(p.out, slot * p.out_stride + column * int64_t{sizeof(Out)}) =
        __builtin_convertvector(x, Four);
  }
}

/// A workgroup a row, four columns a thread at a time. T: the result's format.
template <class T>
WEFT_GPU void sum_slots(const MoeSumParams& p) {
  using Four = Vector<T, 4>;
  const int row = workgroup_index();
  for (int c = 4 * thread_index(); c < p.n; c += 4 * kTileThreads) {
    Four& out = at<Four>(p.out, row * p.out_stride + c * int64_t{sizeof(T)});
    f32x4 sum = {};
    if constexpr (__is_same(T, float)) {
      sum = p.accumulate != 0 ? out : sum;
    }
    for (int s = 0; s < p.chosen; ++s) {
      const int64_t slot = int64_t{row} * p.chosen + s;
      const float weight = p.alpha * p.weights[slot];
      const f32x4 x = *reinterpret_cast<const f32x4*>(p.products + slot * p.n + c);
      sum = __builtin_elementwise_fma(f32x4{weight, weight, weight, weight}, x, sum);
    }
    // Weights may be NaNs of any bits, which round_to() does not take.
    out = __builtin_convertvector(sum, Four);
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 2) void moe_route(MoeRouteParams p) { route(p); }
extern "C" __global__ __launch_bounds__(256, 2) void moe_sort(MoeSortParams p) { sort(p); }
#define SUM_KERNEL(T)                                                                \
  extern "C" __global__ __launch_bounds__(256, 2) void moe_sum_##T(MoeSumParams p) { \
    sum_slots<T##_t>(p);                                                             \
  }
SUM_KERNEL(f32)
SUM_KERNEL(bf16)
SUM_KERNEL(f16)

using mx_t = Mxfp4;
using fp8_t = E4m3;
#define KERNEL(which, is_gated, a, w, rows)                               \
  extern "C" __global__ __launch_bounds__(                                \
      256, 1) void moe_##which##_##a##_##w##_##rows(MoeProductParams p) { \
    product<a##_t, w##_t, is_gated, rows>(p);                             \
  }
#define KERNELS(a, w, rows)    \
  KERNEL(up, true, a, w, rows) \
  KERNEL(down, false, a, w, rows)
KERNELS(bf16, bf16, 32)
KERNELS(bf16, bf16, 128)
KERNELS(bf16, mx, 32)
KERNELS(bf16, mx, 128)
KERNELS(f16, f16, 128)
KERNELS(f32, f32, 32)
KERNELS(f32, bf16, 32)
KERNELS(f32, f16, 32)
KERNELS(f32, mx, 32)
KERNELS(bf16, fp8, 32)
KERNELS(f32, fp8, 32)
#define FEW_KERNELS(w)                                                                            \
  extern "C" __global__ __launch_bounds__(256, 2) void moe_up_bf16_##w##_16(MoeProductParams p) { \
    few_product<w##_t, true>(p);                                                                  \
  }                                                                                               \
  extern "C" __global__ __launch_bounds__(256,                                                    \
                                          2) void moe_down_bf16_##w##_16(MoeProductParams p) {    \
    few_product<w##_t, false>(p);                                                                 \
  }
FEW_KERNELS(bf16)
FEW_KERNELS(mx)

// attention_decode on AMD: bound by reading the cache once, so keys and values go from memory to
// the registers of the one wave that multiplies them. A wave takes 32 keys at a time, the four of a
// workgroup by turns. Scores are taken transposed (keys are the matrix instruction's rows): a lane
// gets four keys of one query, which is what the product with the values wants of it. For that
// product a lane has four keys' 8 adjacent columns, and each of the 8 instructions gets one column
// of every lane: which of a head's columns an instruction's rows are is free, so that nothing is
// transposed. Rows of a tile are the query heads of a KV head times the query tokens.
#include "ops/attention_decode/cdna.h"

#include "arch/cdna/memory.hip.h"
#include "arch/cdna/round.hip.h"
#include "ops/cdna_key_shares.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kWaves = 4;
constexpr int kThreads = kWaves * kWaveLanes;
constexpr int kStrips = kDecodeBlockKeys / kStripRows;
constexpr float kReach = 60 * 1.44269504f;  ///< kUnifiedReach in powers of two
constexpr int kWideColumns = 128;           ///< of values: 8 a lane
constexpr int kNarrowColumns = 64;          ///< 4 a lane: the rest of a head of 64 or 192

template <int kDim>
struct Shape {
  static constexpr int kHalves = kDim / 32;  ///< of strips, of a row of keys
  static constexpr int kWide = kDim / kWideColumns;
  static constexpr bool kNarrow = kDim % kWideColumns != 0;
  static constexpr int kSums = kDim / kStripRows;
  static constexpr int kOwn = kDim / kNarrowColumns;  ///< of f32x4, that a thread merges
};

using Params = const __attribute__((address_space(4))) AttentionDecodeParams;
WEFT_GPU Params& params() { return kernel_argument<AttentionDecodeParams>(); }

WEFT_GPU KeyJobs jobs() {
  Params& p = params();
  const int reach = p.window > 0 ? p.window + p.tokens - 1 : 0;
  return {p.lengths, p.batch, p.kv_heads * p.row_tiles, reach, 0, p.more};
}

/// Which of a job's rows a lane multiplies, and the keys that it sees.
struct Row {
  int token;
  int head;
  int begin;  ///< may be before the first
  int count;
};
WEFT_GPU Row row_of(Params& p, int job, int length, int index) {
  const int kv_head = job / p.row_tiles % p.kv_heads;
  const int row = job % p.row_tiles * kDecodeTileRows + index;
  const int token = row / p.group;
  if (token >= p.tokens) {
    return {.token = -1, .head = 0, .begin = 0, .count = 0};
  }
  const int end = __builtin_elementwise_max(0, length - p.tokens + token + 1);
  return {.token = token,
          .head = kv_head * p.group + row % p.group,
          .begin = p.window > 0 && end > 0 ? end - p.window : 0,
          .count = p.window > 0 && end > 0 ? p.window : end};
}

constexpr uint32_t kOutside = 0x40000000;  ///< what offsets of columns that there are not begin at

/// Where in a block of the cache a lane's first bytes are: of keys, and of values.
template <int kDim>
struct Offsets {
  using S = Shape<kDim>;
  uint32_t keys[S::kHalves];
  uint32_t wide[S::kWide > 0 ? S::kWide : 1];
  uint32_t narrow = 0;

  __device__ __attribute__((always_inline)) explicit Offsets(int row_bytes) {
    const int along = lane_index() % kStripRows;
    const int quarter = lane_index() / kStripRows;
    const auto offset = [&](int row, int byte) {
      uint32_t at = row * row_bytes + byte + (byte < row_bytes ? 0 : kOutside);
      asm("" : "+v"(at));  // else masks are kept, and SGPRs run out
      return at;
    };
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      keys[h] = offset(along, h * kStripBytes / 2 + quarter * kChunkBytes);
    }
#pragma unroll
    for (int g = 0; g < S::kWide; ++g) {
      wide[g] = offset(quarter * 4, g * kWideColumns * 2 + along * kChunkBytes);
    }
    if constexpr (S::kNarrow) {
      narrow = offset(quarter * 4, S::kWide * kWideColumns * 2 + along * kChunkBytes / 2);
    }
  }
};

template <int kDim>
struct Keys {
  u32x4 of[kStrips][Shape<kDim>::kHalves];

  __device__ __attribute__((always_inline)) void fetch(const Buffer& block,
                                                       const Offsets<kDim>& offsets,
                                                       int row_bytes) {
#pragma unroll
    for (int t = 0; t < kStrips; ++t) {
#pragma unroll
      for (int h = 0; h < Shape<kDim>::kHalves; ++h) {
        of[t][h] = block.load(offsets.keys[h] + t * kStripRows * row_bytes);
      }
    }
  }
};

template <int kDim>
struct Values {
  using S = Shape<kDim>;
  u32x4 wide[S::kWide > 0 ? S::kWide : 1][kStrips][4];
  u32x2 narrow[kStrips][4];

  /// Rows before `skip` are zeros.
  __device__ __attribute__((always_inline)) void fetch(const Buffer& block,
                                                       const Offsets<kDim>& offsets, int row_bytes,
                                                       int skip) {
    const int first = lane_index() / kStripRows * 4;
#pragma unroll
    for (int t = 0; t < kStrips; ++t) {
      uint32_t along = t * kStripRows * row_bytes;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const bool inside = first + t * kStripRows + j >= skip;
#pragma unroll
        for (int g = 0; g < S::kWide; ++g) {
          wide[g][t][j] = block.load(inside ? offsets.wide[g] + along : kOutside);
        }
        if constexpr (S::kNarrow) {
          narrow[t][j] = block.load_pair(inside ? offsets.narrow + along : kOutside);
        }
        along += row_bytes;
        asm("" : "+s"(along));  // else all multiples are kept, and SGPRs run out
      }
    }
  }
};

/// A wave's rows over its keys.
template <int kDim>
struct Part {
  f32x4 sums[Shape<kDim>::kSums];
  SoftmaxState state;
};

/// The sums of all waves in LDS, 128 columns of 16 rows at a time: chunks of four permuted.
WEFT_GPU auto& sums_at(LdsBytes* lds, int wave, int row, int chunk) {
  const int place = (wave * kDecodeTileRows + row) * (kWideColumns / 4) + (chunk ^ row);
  return *reinterpret_cast<__attribute__((address_space(3))) f32x4*>(lds + place * 16);
}
constexpr int kSumsBytes = kWaves * kDecodeTileRows * kWideColumns * 4;
WEFT_GPU auto& state_at(LdsBytes* lds, int wave, int row) {
  using At = __attribute__((address_space(3))) SoftmaxState;
  return *reinterpret_cast<At*>(lds + kSumsBytes +
                                (wave * kDecodeTileRows + row) * sizeof(SoftmaxState));
}
constexpr int kLdsBytes = kSumsBytes + kWaves * kDecodeTileRows * sizeof(SoftmaxState);

template <int kDim>
class Decode {
 public:
  using S = Shape<kDim>;
  __device__ __attribute__((always_inline)) explicit Decode(LdsBytes* lds) : lds_(lds) {}

  __device__ __attribute__((always_inline)) void run() {
    const int unit = workgroup_index();
    KeyShares<kDecodeBlockKeys, jobs> shares(params().workgroups, kWaves, unit);
    KeySegment segment;
    while (shares.next(segment)) {
      Part<kDim> part;
      load_queries(segment);
      // What is too far away from the unified maximum is done again.
      for (bool exact = params().unified == 0;; exact = true) {
        attend(segment, exact, part);
        if (exact || __builtin_amdgcn_ballot_w64(part.state.distance > kReach) == 0) {
          break;
        }
      }
      f32x4 sums[S::kOwn];
      SoftmaxState state;
      join_waves(part, sums, state);
      if (!segment.whole()) {
        leave(part_at(shares.place(segment, unit)), sums, state);
        const int first = shares.first_unit(segment);
        const int count = shares.unit_count(segment);
        if (!comes_last(params().tickets + first, count, lds_)) {
          continue;
        }
        merge(part_at(shares.place(segment, first)), part_at(2 * (first + 1)), count, sums, state);
      }
      finish(segment, sums, state);
    }
  }

 private:
  __device__ __attribute__((always_inline)) void load_queries(const KeySegment& segment) {
    Params& p = params();
    const int lane = lane_index();
    const int sequence = segment.job / (p.kv_heads * p.row_tiles);
    const Row row = row_of(p, segment.job, segment.length, lane % kStripRows);
    const Buffer queries(&at<char>(p.q, int64_t{sequence} * p.tokens * p.q_stride), kNowhere);
    const auto from = static_cast<uint32_t>(row.token * p.q_stride + row.head * p.head_dim * 2);
#pragma unroll
    for (int h = 0; h < S::kHalves; ++h) {
      const int byte = h * kStripBytes / 2 + lane / kStripRows * kChunkBytes;
      q_[h] = queries.load(row.token >= 0 && byte < p.head_dim * 2 ? from + byte : kNowhere);
    }
  }

  /// Where a block of keys lies, in bytes.
  __device__ __attribute__((always_inline)) int64_t place(Params& p, const KeySegment& segment,
                                                          int block) const {
    const int sequence = segment.job / (p.kv_heads * p.row_tiles);
    const int kv_head = segment.job / p.row_tiles % p.kv_heads;
    int64_t piece = sequence;
    int row = block * kDecodeBlockKeys;
    if (p.tables != nullptr) {
      const int shift = params().page_shift;  // read anew: SGPRs run out
      piece = constant_at(p.tables, sequence * p.table_stride + (row >> shift));
      row &= (1 << shift) - 1;
    }
    return (piece * p.kv_heads + kv_head) * p.head_stride + int64_t{row} * p.head_dim * 2;
  }

  __device__ __attribute__((always_inline)) void attend(const KeySegment& segment, bool exact,
                                                        Part<kDim>& part) {
    Params& p = params();
    const int lane = lane_index();
    const int quarter = lane / kStripRows;
    const Row row = row_of(p, segment.job, segment.length, lane % kStripRows);
    const int row_bytes = p.head_dim * 2;
    const int first_seen =
        p.window > 0 ? __builtin_elementwise_max(0, segment.length - p.tokens + 1 - p.window) : 0;
    const auto block_of = [&](const void* cache, int64_t from, int index) {
      const int left = segment.length - index * kDecodeBlockKeys;
      return Buffer(&at<char>(cache, from),
                    index < segment.end && left > 0
                        ? __builtin_elementwise_min(left, kDecodeBlockKeys) * row_bytes
                        : 0);
    };
    // Of a block behind the last nothing is read.
    const int last = segment.length > 0 ? segment.end - 1 : -1;
    const auto place_of = [&](int index) {
      return last < 0 ? 0 : place(p, segment, __builtin_elementwise_min(index, last));
    };

#pragma unroll
    for (f32x4& sums : part.sums) {
      sums = {};
    }
    float peak = kNoScore;
    float sum = 0;
    float distance = 0;
    int block = segment.begin + wave_index();
    const int64_t here = place_of(block);
    int64_t next = place_of(block + kWaves);
    Keys<kDim> keys;
    Values<kDim> values;
    const Offsets<kDim> offsets(row_bytes);
    keys.fetch(block_of(p.keys, here, block), offsets, row_bytes);
    values.fetch(block_of(p.values, here, block), offsets, row_bytes,
                 first_seen - block * kDecodeBlockKeys);
    for (; block < segment.end; block += kWaves) {
      const int64_t after = place_of(block + 2 * kWaves);
      Params& own = params();
      f32x4 scores[kStrips] = {};
#pragma unroll
      for (int h = 0; h < S::kHalves; ++h) {
#pragma unroll
        for (int t = 0; t < kStrips; ++t) {
          scores[t] = mma_bf16(keys.of[t][h], q_[h], scores[t]);
        }
      }
      keys.fetch(block_of(p.keys, next, block + kWaves), offsets, row_bytes);

      const int key = block * kDecodeBlockKeys + quarter * 4 - row.begin;
      float highest = kNoScore;
#pragma unroll
      for (int t = 0; t < kStrips; ++t) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const auto since = static_cast<uint32_t>(key + t * kStripRows + r);
          const bool seen = since < static_cast<uint32_t>(row.count);
          float score = scores[t][r];
          if (own.cap_scale != 0) {
            score = tanh_of(score * own.cap_scale);
          }
          score = seen ? score * own.score_scale : kNoScore;
          highest = __builtin_fmaxf(highest, score);
          if (own.unified != 0) {
            const float away = __builtin_fabsf(score - own.unified_maximum);
            distance = seen ? __builtin_fmaxf(distance, away) : distance;
          }
          scores[t][r] = score;
        }
      }
      const float peak_then =
          exact ? __builtin_fmaxf(peak, column_reduce<Max>(highest)) : own.unified_maximum;
      const float shift = softmax_shift(peak_then);
      if (exact) {
        const float rescale = exp2_of(peak - shift);
        sum *= rescale;
#pragma unroll
        for (f32x4& sums : part.sums) {
          sums *= rescale;
        }
      }
      peak = peak_then;
      f32x8 weights;
#pragma unroll
      for (int t = 0; t < kStrips; ++t) {
#pragma unroll
        for (int r = 0; r < 4; ++r) {
          const float weight = exp2_of(scores[t][r] - shift);
          sum += weight;
          weights[t * 4 + r] = weight;
        }
      }
      const auto rounded = __builtin_bit_cast(u32x4, round_to<bf16_t>(weights));
#pragma unroll
      for (int i = 0; i < S::kSums; ++i) {
        const int wide = i / 8;
        const u32x4 column = wide < S::kWide ? column_of_values(values.wide[wide], i % 8)
                                             : column_of_values(values.narrow, i % 8);
        part.sums[i] = mma_bf16(column, rounded, part.sums[i]);
      }
      values.fetch(block_of(p.values, next, block + kWaves), offsets, row_bytes, 0);
      next = after;
    }
    sum = column_reduce<Sum>(sum);
    part.state = {.highest = sum == 0 ? kNoScore : peak,
                  .sum = sum,
                  .distance = column_reduce<Max>(distance)};
  }

  /// Of row thread / 16 of all waves: columns 4 (thread % 16) of each 64, and the row's state.
  __device__ __attribute__((always_inline)) void join_waves(const Part<kDim>& part,
                                                            f32x4 (&sums)[S::kOwn],
                                                            SoftmaxState& state) {
    const int lane = lane_index();
    barrier();  // what the job before left in LDS has been read
    if (lane < kDecodeTileRows) {
      state_at(lds_, wave_index(), lane) = part.state;
    }
    barrier();
    const auto state_of = [&](int row) {
      SoftmaxState all{kNoScore, 0, 0};
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
        all.highest = __builtin_fmaxf(all.highest, state_at(lds_, w, row).highest);
        all.distance = __builtin_fmaxf(all.distance, state_at(lds_, w, row).distance);
      }
      return all;
    };
    const int mine = lane % kStripRows;
    const float factor = exp2_of(part.state.highest - softmax_shift(state_of(mine).highest));
    const int row = thread_index() / kRowLanes;
    const int chunk = thread_index() % kRowLanes;
    state = state_of(row);
#pragma unroll
    for (int w = 0; w < kWaves; ++w) {
      const SoftmaxState other = state_at(lds_, w, row);
      state.sum += other.sum * exp2_of(other.highest - softmax_shift(state.highest));
    }
    const auto add = [&](int at) {
      f32x4 all{};
#pragma unroll
      for (int w = 0; w < kWaves; ++w) {
        all += sums_at(lds_, w, row, at);
      }
      return all;
    };
#pragma unroll
    for (int g = 0; g < S::kWide; ++g) {
      if (g > 0) {
        barrier();
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          f32x4 four;
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            four[e] = part.sums[g * 8 + half * 4 + e][r] * factor;
          }
          const int at = (lane / kStripRows * 4 + r) * 2 + half;
          sums_at(lds_, wave_index(), mine, at) = four;
        }
      }
      barrier();
      sums[2 * g] = add(chunk);
      sums[2 * g + 1] = add(kRowLanes + chunk);
    }
    if constexpr (S::kNarrow) {
      if (S::kWide > 0) {
        barrier();
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        f32x4 four;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          four[e] = part.sums[S::kWide * 8 + e][r] * factor;
        }
        sums_at(lds_, wave_index(), mine, lane / kStripRows * 4 + r) = four;
      }
      barrier();
      sums[2 * S::kWide] = add(chunk);
    }
  }

  static constexpr int kPartFloats = decode_part_floats(kDim);
  __device__ __attribute__((always_inline)) float* part_at(int place) const {
    return params().parts + int64_t{place} * kPartFloats;
  }
  // A part in memory: the threads' sums side by side, then the rows' states.
  WEFT_GPU f32x4& sums_of(float* part, int i) {
    return reinterpret_cast<f32x4*>(part)[i * kThreads + thread_index()];
  }
  WEFT_GPU f32x4& state_of(float* part) {
    return reinterpret_cast<f32x4*>(part)[kDecodeTileRows * kDim / 4 + thread_index() / kRowLanes];
  }
  __device__ __attribute__((always_inline)) void leave(float* part, const f32x4 (&sums)[S::kOwn],
                                                       const SoftmaxState& state) {
    Params& p = params();
    if (thread_index() / kRowLanes >= p.group * p.tokens) {
      return;  // rows that there are not
    }
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      sums_of(part, i) = sums[i];
    }
    if (thread_index() % kRowLanes == 0) {
      state_of(part) = {state.highest, state.sum, state.distance, 0};
    }
  }
  /// The first part, and where the second is, behind which the others are the first of their
  /// workgroups'.
  __device__ __attribute__((always_inline)) void merge(float* first, float* second, int count,
                                                       f32x4 (&sums)[S::kOwn],
                                                       SoftmaxState& state) {
    Params& p = params();
    if (thread_index() / kRowLanes >= p.group * p.tokens) {
      return;
    }
    const auto part_of = [&](int i) {
      return i == 0 ? first : second + (i - 1) * int64_t{2 * kPartFloats};
    };
    state = {kNoScore, 0, 0};
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const f32x4 other = state_of(part_of(i));
      state.highest = __builtin_fmaxf(state.highest, other[0]);
      state.distance = __builtin_fmaxf(state.distance, other[2]);
    }
    const float shift = softmax_shift(state.highest);
#pragma unroll
    for (f32x4& each : sums) {
      each = {};
    }
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      float* const part = part_of(i);
      const f32x4 other = state_of(part);
      const float factor = exp2_of(other[0] - shift);
      state.sum += other[1] * factor;
#pragma unroll
      for (int j = 0; j < S::kOwn; ++j) {
        sums[j] += sums_of(part, j) * factor;
      }
    }
  }

  __device__ __attribute__((always_inline)) void finish(const KeySegment& segment,
                                                        const f32x4 (&sums)[S::kOwn],
                                                        SoftmaxState state) {
    Params& p = params();
    constexpr float kLog2E = 1.44269504f;
    constexpr float kLn2 = 0.693147182f;
    const int sequence = segment.job / (p.kv_heads * p.row_tiles);
    const Row row = row_of(p, segment.job, segment.length, thread_index() / kRowLanes);
    if (row.token < 0) {
      return;
    }
    const int64_t out_row = int64_t{sequence} * p.tokens + row.token;
    const int chunk = thread_index() % kRowLanes;
    if (p.distances != nullptr && chunk == 0) {
      p.distances[out_row * p.query_heads + row.head] = state.distance * kLn2;
    }
    float scale = 1;
    if (p.sinks != nullptr && row.count > 0) {
      const float sink = kLog2E * sink_of(p, row.head);
      const float highest = __builtin_fmaxf(state.highest, sink);
      scale = exp2_of(state.highest - softmax_shift(highest));
      state.sum = state.sum * scale + exp2_of(sink - softmax_shift(highest));
    }
    const float factor = row.count > 0 ? scale / state.sum : 0;
    const int size = p.out_bf16 != 0 ? sizeof(bf16_t) : sizeof(float);
    char* const to = &at<char>(p.out, out_row * p.out_stride + row.head * p.head_dim * size);
#pragma unroll
    for (int i = 0; i < S::kOwn; ++i) {
      const int column = i * kNarrowColumns + chunk * 4;
      if (column < p.head_dim) {
        const f32x4 x = sums[i] * factor;
        if (p.out_bf16 != 0) {
          using Half = Vector<bf16_t, 4>;
          at<Half>(to, column * size) = __builtin_convertvector(x, Half);
        } else {
          at<f32x4>(to, column * size) = x;
        }
      }
    }
  }
  __device__ __attribute__((always_inline)) float sink_of(Params& p, int head) const {
    return p.sinks_format == 0   ? static_cast<const float*>(p.sinks)[head]
           : p.sinks_format == 1 ? static_cast<float>(static_cast<const bf16_t*>(p.sinks)[head])
                                 : static_cast<float>(static_cast<const f16_t*>(p.sinks)[head]);
  }

  LdsBytes* lds_;
  u32x4 q_[S::kHalves];
};

}  // namespace

#define KERNEL(dim)                                                           \
  extern "C" __global__ __launch_bounds__(                                    \
      kThreads, 1) void attention_decode_##dim(AttentionDecodeParams /*p*/) { \
    __shared__ __attribute__((aligned(1024))) char lds[kLdsBytes];            \
    Decode<dim>((LdsBytes*)lds).run();                                        \
  }
KERNEL(64)
KERNEL(128)
KERNEL(192)
KERNEL(256)

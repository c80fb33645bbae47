// mla_decode on AMD: 32 latent rows at a time lie in LDS, as keys and as values, and are all that
// the workgroup's query rows see of memory; the next 32 are on their way in registers. Scores are
// taken by strips of keys and tiles of 16 query rows, dealt to the four waves; they go through LDS,
// where each row's softmax is made by some threads; then each wave has 128 columns of all rows'
// sums. Values are not transposed: see attention_decode.
#include "ops/mla_decode/cdna.h"

#include "arch/cdna/memory.hip.h"
#include "arch/cdna/round.hip.h"
#include "ops/cdna_key_shares.hip.h"
#include "ops/mla_decode/cdna_turn.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kPage = 64;  ///< positions of a page
constexpr int kRank = 512;
constexpr int kTurned = 64;
constexpr int kWaves = 4;
constexpr int kThreads = kWaves * kWaveLanes;
constexpr int kKeys = kMlaBlockKeys;
constexpr int kStrips = kKeys / kStripRows;
constexpr int kHalves = (kRank + kTurned) / 32;  ///< of strips, of a row
constexpr int kColumns = kRank / kWaves;         ///< of a wave's sums
constexpr int kSums = kColumns / kStripRows;

using Params = const __attribute__((address_space(4))) MlaDecodeParams;
WEFT_GPU Params& params() { return kernel_argument<MlaDecodeParams>(); }
WEFT_GPU KeyJobs jobs() {
  Params& p = params();
  return {p.lengths, p.batch, p.row_tiles, 0, p.tokens, p.more};
}

template <class T>
WEFT_GPU auto& lds_at(LdsBytes* lds, int offset) {
  return *reinterpret_cast<__attribute__((address_space(3))) T*>(lds + offset);
}

// In LDS: rows of the cache in bf16, scores, probabilities in bf16, and what sums are multiplied
// by. Rows of these are as far apart as lets many be read at once.
constexpr int kRowPitch = 2 * (kRank + kTurned);
constexpr int kScorePitch = 4 * kKeys + 16;
constexpr int kWeightPitch = 2 * kKeys + 8;

/// Chunk c of row r of the cache lies at place c ^ row_key(r). Rows are all banks of gfx942 several
/// times over; lanes that are served together (0-3 and 20-23, 12-15 and 24-27, and so on; of gfx950
/// two such groups) then meet in no bank, whether they read a chunk of 16 rows and the next one of
/// the same, or 16 chunks of a row and of the row four on.
WEFT_GPU int row_key(int row) {
  return row % 2 * 4 ^ row / 2 % 2 ^ row / 4 % 2 * 2 ^ row / 8 % 2 * 4;
}
WEFT_GPU int row_offset(int row, int chunk) {
  return row * kRowPitch + (chunk ^ row_key(row)) * kChunkBytes;
}
template <int kTiles>
struct Shape {
  static constexpr int kRows = kTiles * kStripRows;
  /// One tile's scores are of two halves of the columns.
  static constexpr int kSplits = kTiles == 1 ? 2 : 1;
  static constexpr int kScores = kKeys * kRowPitch;
  static constexpr int kWeights = kScores + kSplits * kRows * kScorePitch;
  static constexpr int kFactors = kWeights + kRows * kWeightPitch;
  static constexpr int kLdsBytes = kFactors + 4 * kRows;
  static constexpr int kOfRow = kThreads / kRows;  ///< threads that make a row's softmax
  static constexpr int kKeysEach = kKeys / kOfRow;
};

/// Over kLanes adjacent lanes, known to each of them.
template <class Op, int kLanes>
WEFT_GPU float group_reduce(float x) {
#pragma unroll
  for (int distance = 1; distance < kLanes; distance *= 2) {
    const int other =
        __builtin_amdgcn_ds_bpermute((lane_index() ^ distance) * 4, __builtin_bit_cast(int, x));
    x = Op::join(x, __builtin_bit_cast(float, other));
  }
  return x;
}

/// 32 rows in bf16 on their way to LDS.
class Bf16Rows {
 public:
  static constexpr int kRowBytes = 2 * (kRank + kTurned);
  static constexpr bool kTurns = false;
  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows,
                                                       const Buffer& /*angles*/) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      staged_[i] = rows.load((i * kThreads + thread_index()) * kChunkBytes);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int chunk = i * kThreads + thread_index();
      lds_at<u32x4>(lds, row_offset(chunk / kChunks, chunk % kChunks)) = staged_[i];
    }
  }

 private:
  static constexpr int kChunks = kRowBytes / kChunkBytes;
  static constexpr int kLoads = kKeys * kChunks / kThreads;
  u32x4 staged_[kLoads];
};

/// The same of rows whose keys are to be turned (LatentCache::angles).
class TurningRows {
 public:
  static constexpr int kRowBytes = Bf16Rows::kRowBytes;
  static constexpr bool kTurns = true;
  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows, const Buffer& angles) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int chunk = i * kThreads + thread_index();
      staged_[i] = rows.load(chunk / kChunks * kRowBytes + chunk % kChunks * kChunkBytes);
    }
    // Half the threads have two pieces of a key each, one of either half, and their angles.
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int along = half * kTurned + piece() * kChunkBytes;
      const bool mine = key() < kKeys;
      keys_[half] = rows.load(mine ? key() * kRowBytes + 2 * kRank + along : kNowhere);
      angles_[half] = angles.load(mine ? key() * 2 * kTurned + along : kNowhere);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int chunk = i * kThreads + thread_index();
      lds_at<u32x4>(lds, row_offset(chunk / kChunks, chunk % kChunks)) = staged_[i];
    }
    if (key() < kKeys) {
      u32x4 a = keys_[0];
      u32x4 b = keys_[1];
      turn_halves(a, b, angles_[0], angles_[1]);
      lds_at<u32x4>(lds, row_offset(key(), kChunks + piece())) = a;
      lds_at<u32x4>(lds, row_offset(key(), kChunks + kPieces + piece())) = b;
    }
  }

 private:
  static constexpr int kChunks = 2 * kRank / kChunkBytes;
  static constexpr int kLoads = kKeys * kChunks / kThreads;
  static constexpr int kPieces = kTurned / kChunkBytes;  ///< of half a key's elements
  static_assert(2 * kKeys * kPieces == kThreads);
  WEFT_GPU int key() { return thread_index() / kPieces; }
  WEFT_GPU int piece() { return thread_index() % kPieces; }

  u32x4 staged_[kLoads];
  u32x4 keys_[2];
  u32x4 angles_[2];
};

/// The same of rows in e4m3fn: codes, a scale for 128 of them each, the turned part in bf16.
class Fp8Rows {
 public:
  static constexpr int kRowBytes = kRank + 4 * (kRank / 128) + 2 * kTurned;
  static constexpr bool kTurns = false;
  __device__ __attribute__((always_inline)) void fetch(const Buffer& rows,
                                                       const Buffer& /*angles*/) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int from = key(i) * kRowBytes;
      codes_[i] = rows.load(from + chunk() * kChunkBytes);
      scales_[i] = __builtin_bit_cast(float, rows.load_word(from + kRank + chunk() / 8 * 4));
    }
    turned_ = rows.load(thread_index() / kTurnedChunks * kRowBytes + kRank + 4 * (kRank / 128) +
                        thread_index() % kTurnedChunks * kChunkBytes);
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
    // Without NaN, and with scales that can take a bias in, it takes half as much.
    bool plain = true;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      uint32_t nans = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        nans |= (codes_[i][j] & 0x7f7f7f7f) + 0x01010101;
      }
      plain = plain && (nans & 0x80808080) == 0 && __builtin_fabsf(scales_[i]) < 0x1p7F;
    }
    if (__builtin_amdgcn_ballot_w64(!plain) == 0) {
      put(lds, [](uint32_t code, float scale) { return biased(code) * (scale * 0x1p120F); });
    } else {
      put(lds, [](uint32_t code, float scale) {
        const bool nan = (code & 0x7f) == 0x7f;
        return (nan ? __builtin_nanf("") : biased(code) * 0x1p120F) * scale;
      });
    }
    lds_at<u32x4>(lds, row_offset(thread_index() / kTurnedChunks,
                                  kRank * 2 / kChunkBytes + thread_index() % kTurnedChunks)) =
        turned_;
  }

 private:
  static constexpr int kChunks = kRank / kChunkBytes;
  static constexpr int kTurnedChunks = 2 * kTurned / kChunkBytes;
  static constexpr int kLoads = kKeys * kChunks / kThreads;
  static_assert(kKeys * kTurnedChunks == kThreads);
  WEFT_GPU int key(int i) { return (i * kThreads + thread_index()) / kChunks; }
  WEFT_GPU int chunk() { return thread_index() % kChunks; }
  /// Exponent and mantissa of a code, which may have its sign above it, are an f32's but for the
  /// bias: what it stands for times 2^-120. (gfx942 has another fp8.)
  WEFT_GPU float biased(uint32_t code) {
    return __builtin_bit_cast(float, code << 20 & 0x87f00000);
  }
  template <class Number>
  __device__ __attribute__((always_inline)) void put(LdsBytes* lds, Number number) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        f32x8 x;
#pragma unroll
        for (int j = 0; j < 8; ++j) {
          const auto codes = static_cast<int32_t>(codes_[i][half * 2 + j / 4]);
          const int32_t code = codes << (24 - j % 4 * 8) >> 24;
          x[j] = number(static_cast<uint32_t>(code), scales_[i]);
        }
        lds_at<Vector<bf16_t, 8>>(lds, row_offset(key(i), chunk() * 2 + half)) =
            round_to<bf16_t>(x);
      }
    }
  }

  u32x4 codes_[kLoads];
  float scales_[kLoads];
  u32x4 turned_;
};

template <class Rows, int kTiles>
class Decode {
 public:
  using S = Shape<kTiles>;
  __device__ __attribute__((always_inline)) explicit Decode(LdsBytes* lds) : lds_(lds) {}

  __device__ __attribute__((always_inline)) void run() {
    const int unit = workgroup_index();
    KeyShares<kKeys, jobs> shares(params().workgroups, 4, unit);
    KeySegment segment;
    while (shares.next(segment)) {
      load_queries(segment);
      attend(segment);
      if (!segment.whole()) {
        leave(part_at(shares.place(segment, unit)));
        const int first = shares.first_unit(segment);
        const int count = shares.unit_count(segment);
        if (!comes_last(params().tickets + first, count, lds_)) {
          continue;
        }
        merge(segment, part_at(shares.place(segment, first)), part_at(2 * (first + 1)), count);
        continue;
      }
      // What each row's threads know, to the lanes that have its sums.
      barrier();
      if (thread_index() % S::kOfRow == 0) {
        lds_at<float>(lds_, S::kScores + own_row() * 8) = highest_;
        lds_at<float>(lds_, S::kScores + own_row() * 8 + 4) = sum_;
      }
      barrier();
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int row = i * kStripRows + lane_index() % kStripRows;
        finish(segment, row, sums_[i], lds_at<float>(lds_, S::kScores + row * 8),
               lds_at<float>(lds_, S::kScores + row * 8 + 4));
      }
    }
  }

 private:
  WEFT_GPU int own_row() { return thread_index() / S::kOfRow; }
  /// Of a job's rows, among the sequence's.
  WEFT_GPU int row_of(Params& p, int job, int row) { return job % p.row_tiles * S::kRows + row; }
  // What a wave does of the scores.
  WEFT_GPU int score_tile() { return kTiles == 1 ? 0 : wave_index() % kTiles; }
  static constexpr int kStripsEach = kTiles == 4 ? 2 : 1;
  static constexpr int kHalvesEach = kHalves / S::kSplits;
  WEFT_GPU int first_strip() {
    return kTiles == 1 ? wave_index() % 2 : kTiles == 2 ? wave_index() / 2 : 0;
  }
  WEFT_GPU int score_split() { return kTiles == 1 ? wave_index() / 2 : 0; }

  __device__ __attribute__((always_inline)) void load_queries(const KeySegment& segment) {
    Params& p = params();
    const int lane = lane_index();
    const int sequence = segment.job / p.row_tiles;
    const int row = row_of(p, segment.job, score_tile() * kStripRows + lane % kStripRows);
    const Buffer queries(&at<char>(p.q, int64_t{sequence} * p.tokens * p.q_stride), kNowhere);
    const auto from =
        static_cast<uint32_t>(row / p.heads * p.q_stride + row % p.heads * 2 * (kRank + kTurned)) +
        score_split() * kHalvesEach * (kStripBytes / 2) + lane / kStripRows * kChunkBytes;
#pragma unroll
    for (int h = 0; h < kHalvesEach; ++h) {
      q_[h] = queries.load(row < p.tokens * p.heads ? from + h * (kStripBytes / 2) : kNowhere);
    }
  }

  /// Where a block of keys lies, in bytes.
  __device__ __attribute__((always_inline)) int64_t place(Params& p, const KeySegment& segment,
                                                          int block) const {
    const int sequence = segment.job / p.row_tiles;
    int64_t piece = p.owners != nullptr    ? constant_at(p.owners, sequence)
                    : p.lengths != nullptr ? sequence
                                           : 0;
    int row = block * kKeys;
    if (p.tables != nullptr) {
      piece = constant_at(p.tables, sequence * p.table_stride + row / kPage);
      row %= kPage;
    }
    return piece * p.block_stride + int64_t{row} * Rows::kRowBytes;
  }

  __device__ __attribute__((always_inline)) void attend(const KeySegment& segment) {
    Params& p = params();
    const int lane = lane_index();
    const int quarter = lane / kStripRows;
    const int along = lane % kStripRows;
    const int row = row_of(p, segment.job, own_row());
    const int seen = row < p.tokens * p.heads ? segment.length - p.tokens + row / p.heads + 1 : 0;
    const int last = segment.length > 0 ? segment.end - 1 : -1;
    const auto rows_of = [&](int block) {
      const int left = segment.length - block * kKeys;
      return Buffer(
          &at<char>(p.cache,
                    last < 0 ? 0 : place(p, segment, __builtin_elementwise_min(block, last))),
          block < segment.end && left > 0 ? __builtin_elementwise_min(left, kKeys) * Rows::kRowBytes
                                          : 0);
    };
    const auto angles_of = [&](int block) {
      if constexpr (!Rows::kTurns) {
        return rows_of(block);
      }
      const int left = segment.length - block * kKeys;
      return Buffer(&at<char>(p.angles, int64_t{block} * kKeys * 2 * kTurned),
                    block < segment.end && left > 0
                        ? __builtin_elementwise_min(left, kKeys) * 2 * kTurned
                        : 0);
    };
    highest_ = kNoScore;
    sum_ = 0;
#pragma unroll
    for (auto& tile : sums_) {
#pragma unroll
      for (f32x4& each : tile) {
        each = {};
      }
    }
    Rows rows;
    rows.fetch(rows_of(segment.begin), angles_of(segment.begin));
#pragma unroll 1
    for (int block = segment.begin; block < segment.end; ++block) {
      barrier();  // the block before has been read
      rows.publish(lds_);
      barrier();
      rows.fetch(rows_of(block + 1), angles_of(block + 1));

      f32x4 scores[kStripsEach] = {};
#pragma unroll
      for (int h = 0; h < kHalvesEach; ++h) {
#pragma unroll
        for (int t = 0; t < kStripsEach; ++t) {
          const int from = (first_strip() + t) * kStripRows + along;
          const int chunk = (score_split() * kHalvesEach + h) * 4 + quarter;
          const auto keys = lds_at<u32x4>(lds_, row_offset(from, chunk));
          scores[t] = mma_bf16(keys, q_[h], scores[t]);
        }
      }
#pragma unroll
      for (int t = 0; t < kStripsEach; ++t) {
        const int to = score_split() * S::kRows + score_tile() * kStripRows + along;
        lds_at<f32x4>(lds_, S::kScores + to * kScorePitch +
                                ((first_strip() + t) * kStripRows + quarter * 4) * 4) = scores[t];
      }
      barrier();
      weigh(p.score_scale, seen - block * kKeys);
      barrier();

      // Row `along` of each tile.
      float factors[kTiles];
      bool all_one = true;
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        factors[i] = lds_at<float>(lds_, S::kFactors + (i * kStripRows + along) * 4);
        all_one = all_one && factors[i] == 1;
      }
      if (__builtin_amdgcn_ballot_w64(!all_one) != 0) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (f32x4& each : sums_[i]) {
            each *= factors[i];
          }
        }
      }
      u32x4 weights[kTiles];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const int from = S::kWeights + (i * kStripRows + along) * kWeightPitch + quarter * 8;
        const auto low = lds_at<u32x2>(lds_, from);
        const auto high = lds_at<u32x2>(lds_, from + kStripRows * 2);
        weights[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3);
      }
      u32x4 values[kStrips][4];
#pragma unroll
      for (int t = 0; t < kStrips; ++t) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          values[t][j] = lds_at<u32x4>(lds_, row_offset(t * kStripRows + quarter * 4 + j,
                                                        wave_index() * (kColumns / 8) + along));
        }
      }
#pragma unroll
      for (int e = 0; e < kSums; ++e) {
        const u32x4 column = column_of_values(values, e);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          sums_[i][e] = mma_bf16(column, weights[i], sums_[i][e]);
        }
      }
    }
  }

  /// The block's probabilities of a row, by its threads. `seen`: its keys from here on.
  __device__ __attribute__((always_inline)) void weigh(float scale, int seen) {
    const int part = thread_index() % S::kOfRow;
    float scores[S::kKeysEach];
    float highest = kNoScore;
#pragma unroll
    for (int k = 0; k < S::kKeysEach; ++k) {
      const int key = part * S::kKeysEach + k;
      float score = 0;
#pragma unroll
      for (int split = 0; split < S::kSplits; ++split) {
        score += lds_at<float>(lds_,
                               S::kScores + (split * S::kRows + own_row()) * kScorePitch + key * 4);
      }
      scores[k] = key < seen ? score * scale : kNoScore;
      highest = __builtin_fmaxf(highest, scores[k]);
    }
    const float next = __builtin_fmaxf(highest_, group_reduce<Max, S::kOfRow>(highest));
    const float shift = softmax_shift(next);
    const float factor = exp2_of(highest_ - shift);
    highest_ = next;
    float weights[S::kKeysEach];
    float sum = 0;
#pragma unroll
    for (int k = 0; k < S::kKeysEach; ++k) {
      weights[k] = exp2_of(scores[k] - shift);
      sum += weights[k];
    }
    sum_ = sum_ * factor + group_reduce<Sum, S::kOfRow>(sum);
    constexpr int kTogether = S::kKeysEach < 4 ? S::kKeysEach : 4;
    using Rounded = Vector<bf16_t, kTogether>;
#pragma unroll
    for (int k = 0; k < S::kKeysEach; k += kTogether) {
      Vector<float, kTogether> some;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        some[i] = weights[k + i];
      }
      lds_at<Rounded>(lds_,
                      S::kWeights + own_row() * kWeightPitch + (part * S::kKeysEach + k) * 2) =
          __builtin_convertvector(some, Rounded);
    }
    if (part == 0) {
      lds_at<float>(lds_, S::kFactors + own_row() * 4) = factor;
    }
  }

  // A part in memory: the threads' sums side by side, then of each row the highest and the sum.
  static constexpr int kPartFloats = mla_part_floats(S::kRows);
  __device__ __attribute__((always_inline)) float* part_at(int place) const {
    return params().parts + int64_t{place} * kPartFloats;
  }
  WEFT_GPU f32x4& sums_of(float* part, int tile, int e) {
    return reinterpret_cast<f32x4*>(part)[(tile * kSums + e) * kThreads + thread_index()];
  }
  WEFT_GPU Vector<float, 2>& state_of(float* part, int row) {
    return reinterpret_cast<Vector<float, 2>*>(part + S::kRows * kRank)[row];
  }
  __device__ __attribute__((always_inline)) void leave(float* part) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int e = 0; e < kSums; ++e) {
        sums_of(part, i, e) = sums_[i][e];
      }
    }
    if (thread_index() % S::kOfRow == 0) {
      state_of(part, own_row()) = {highest_, sum_};
    }
  }
  /// The first part, and where the second is, behind which the others are the first of their
  /// workgroups'.
  __device__ __attribute__((always_inline)) void merge(const KeySegment& segment, float* first,
                                                       float* second, int count) {
    const auto part_of = [&](int i) {
      return i == 0 ? first : second + (i - 1) * int64_t{2 * kPartFloats};
    };
#pragma unroll 1
    for (int tile = 0; tile < kTiles; ++tile) {
      const int row = tile * kStripRows + lane_index() % kStripRows;
      float highest = kNoScore;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        highest = __builtin_fmaxf(highest, state_of(part_of(i), row)[0]);
      }
      const float shift = softmax_shift(highest);
      f32x4 sums[kSums] = {};
      float sum = 0;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        float* const part = part_of(i);
        const Vector<float, 2> other = state_of(part, row);
        const float factor = exp2_of(other[0] - shift);
        sum += other[1] * factor;
#pragma unroll
        for (int e = 0; e < kSums; ++e) {
          sums[e] += sums_of(part, tile, e) * factor;
        }
      }
      finish(segment, row, sums, highest, sum);
    }
  }

  /// A row's result in this lane: of its wave's columns, 8 adjacent ones from 32 quarter + 8 r on.
  __device__ __attribute__((always_inline)) void finish(const KeySegment& segment, int tile_row,
                                                        const f32x4 (&sums)[kSums], float highest,
                                                        float sum) const {
    constexpr float kLn2 = 0.693147182f;
    Params& p = params();
    const int row = row_of(p, segment.job, tile_row);
    if (row >= p.tokens * p.heads) {
      return;
    }
    const int sequence = segment.job / p.row_tiles;
    const int64_t out_row = int64_t{sequence} * p.tokens + row / p.heads;
    const int head = row % p.heads;
    const int quarter = lane_index() / kStripRows;
    // Of keys whose scores are all -inf, NaN; of none, 0.
    const bool any = segment.length - p.tokens + row / p.heads >= 0;
    sum = any && sum == 0 ? __builtin_nanf("") : sum;
    const float factor = any ? 1 / sum : 0;
    if (p.sums != nullptr && wave_index() == 0 && quarter == 0) {
      p.sums[out_row * p.heads + head] = (highest + log2_of(sum)) * kLn2;
    }
    const int size = p.out_bf16 != 0 ? sizeof(bf16_t) : sizeof(float);
    char* const to = &at<char>(
        p.out, out_row * p.out_stride +
                   (head * kRank + wave_index() * kColumns + quarter * 32) * int64_t{size});
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      f32x8 x;
#pragma unroll
      for (int e = 0; e < kSums; ++e) {
        x[e] = sums[e][r] * factor;
      }
      if (p.out_bf16 != 0) {
        at<Vector<bf16_t, 8>>(to, r * 8 * size) = __builtin_convertvector(x, Vector<bf16_t, 8>);
      } else {
        at<f32x8>(to, r * 8 * size) = x;
      }
    }
  }

  LdsBytes* lds_;
  u32x4 q_[kHalvesEach];
  f32x4 sums_[kTiles][kSums];
  float highest_;
  float sum_;
};

}  // namespace

#define KERNEL(name, Rows, rows)                                                             \
  extern "C" __global__ __launch_bounds__(                                                   \
      kThreads, 1) void mla_decode_##name##_##rows(MlaDecodeParams /*p*/) {                  \
    __shared__ __attribute__((aligned(1024))) char lds[Shape<rows / kStripRows>::kLdsBytes]; \
    Decode<Rows, rows / kStripRows>((LdsBytes*)lds).run();                                   \
  }
KERNEL(bf16, Bf16Rows, 16)
KERNEL(bf16, Bf16Rows, 32)
KERNEL(bf16, Bf16Rows, 64)
KERNEL(turning, TurningRows, 64)
KERNEL(fp8, Fp8Rows, 16)
KERNEL(fp8, Fp8Rows, 32)
KERNEL(fp8, Fp8Rows, 64)

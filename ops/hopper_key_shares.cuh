// How the keys of sequences that differ in length are dealt to blocks on sm_90a, and how what those
// blocks made of one sequence comes together in the same launch. All keys, in stages of kKeys, are
// one line; each unit (a block, or a cluster of them) has an equal stretch of it, so that all end
// at once whatever the lengths are (Stream-K, Osama et al. 2023). Where all are as long, up to one
// unit in eight goes without if the others' stretches then end where jobs do. A sequence that units
// share has a part from each; when all are there they are merged, in a fixed order, by who comes
// last (arrives_last()) or some by each (merge_shared()).
#pragma once

#include <cstdint>

#include "arch/hopper/barrier.cuh"
#include "arch/hopper/resident.cuh"
#include "arch/hopper/tile_schedule.h"
#include "arch/hopper/warp.cuh"
#include "base/range.h"

namespace weft::hopper {

/// What is dealt: for each of `count` jobs the keys of a sequence, of which `each` jobs have the
/// same.
struct KeyJobs {
  const int32_t* lengths = nullptr;  ///< [sequence]; null: i * step
  int count = 0;
  int each = 1;
  Divisor by_each;  ///< where `each` is more than 1
  int reach = 0;    ///< the last keys that count, where earlier ones do not; 0: all
  int step = 0;
  int more = 0;        ///< keys that each sequence has besides
  bool alone = false;  ///< units have whole jobs, in turn
};

/// Stages [begin, end), which one unit has, of a job's [from, to).
struct KeySegment {
  int job = 0;
  int length = 0;  ///< keys of the sequence
  int begin = 0;
  int end = 0;
  int from = 0;
  int to = 0;
  int first = 0;  ///< of the line: the job's first stage

  __device__ bool whole() const { return begin == from && end == to; }
};

template <int kKeys>
class KeyShares {
 public:
  /// Shared memory of the constructor.
  struct Scratch {
    int of_warps[32];
    bool alike_of_warps[32];
    int job;
    int first;
  };

  /// Of jobs `alone`, by any thread. The first one's length is asked for, and not waited for.
  __device__ static KeyShares whole(const KeyJobs& jobs, int units, int unit) {
    KeyShares shares;
    shares.jobs_ = jobs;
    shares.units_ = units;
    shares.job_ = unit;
    shares.ahead_ = shares.length_of(min(unit, jobs.count - 1));
    return shares;
  }
  /// By all kThreads threads of the block, which have met when it returns. At most `units` are
  /// used.
  template <int kThreads>
  __device__ static KeyShares deal(const KeyJobs& jobs, int units, int unit, Scratch& scratch) {
    if (jobs.alone) {
      __syncthreads();
      return whole(jobs, units, unit);
    }
    KeyShares shares;
    shares.jobs_ = jobs;
    if (jobs.count == 1) {
      shares.cut(shares.stages(0), true, units, unit);
      __syncthreads();
      return shares;
    }
    const int thread = threadIdx.x;
    const int lane = thread % 32;
    const int each = (jobs.count + kThreads - 1) / kThreads;
    const int from = min(jobs.count, thread * each);
    const int to = min(jobs.count, from + each);
    int own = 0;
    for (int i = from; i < to; ++i) {
      own += shares.stages(i);
    }
    const int upto = sum_up_to(lane, own);
    const bool alike_here = __all_sync(~0u, own == (to - from) * shares.stages(0)) != 0;
    if (lane == 31) {
      scratch.of_warps[thread / 32] = upto;
      scratch.alike_of_warps[thread / 32] = alike_here;
    }
    __syncthreads();
    bool alike = true;
    int before = upto - own;
    int total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      before += w < thread / 32 ? scratch.of_warps[w] : 0;
      total += scratch.of_warps[w];
      alike = alike && scratch.alike_of_warps[w];
    }
    shares.cut(total, alike, units, unit);
    if (shares.at_ >= before && shares.at_ < before + own) {
      int job = from;
      for (int stages; shares.at_ >= before + (stages = shares.stages(job)); ++job) {
        before += stages;
      }
      scratch.job = job;
      scratch.first = before;
    }
    __syncthreads();
    shares.job_ = scratch.job;
    shares.first_ = scratch.first;
    return shares;
  }

  /// Whether the unit has another segment, and whose it is then: without its length.
  __device__ bool more() const { return jobs_.alone ? job_ < jobs_.count : at_ < end_; }
  __device__ int job() const { return job_; }

  /// The unit's next segment; false: there is none.
  __device__ bool next(KeySegment& segment) {
    if (!more()) {
      return false;
    }
    const int length = jobs_.alone ? ahead_ : length_of(job_);
    const int from = from_of(length);
    const int to = max(from + 1, to_of(length));
    if (jobs_.alone) {
      segment = {job_, length, from, to, from, to, 0};
      job_ += units_;
      if (more()) {
        ahead_ = length_of(job_);
      }
      return true;
    }
    segment = {job_, length, from + at_ - first_, min(from + end_ - first_, to), from, to, first_};
    ++job_;
    first_ += to - from;
    at_ = first_;
    return true;
  }

  /// Units first .. first + count - 1 have parts of a segment's job.
  __device__ int first_unit(const KeySegment& segment) const { return unit_of(segment.first); }
  __device__ int unit_count(const KeySegment& segment) const {
    return unit_of(segment.first + segment.to - segment.from - 1) - first_unit(segment) + 1;
  }
  /// Which of a unit's two places its part of the job has: a unit shares at most the first and the
  /// last of its jobs with others.
  __device__ int place(const KeySegment& segment, int unit) const {
    return 2 * unit + (segment.first > begin_of(unit) ? 1 : 0);
  }
  /// The place of the i-th of a job's parts, `first` being that of the first: no unit but the first
  /// has had other jobs before.
  __device__ static int place_of_part(int first, int i) {
    return i == 0 ? first : (first & ~1) + 2 * i;
  }

 private:
  /// The unit's stretch of the line of `total` stages.
  __device__ void cut(int total, bool alike, int units, int unit) {
    units_ = min(alike ? whole_units(jobs_.count, units) : units, total);
    each_ = total / units_;
    rest_ = total - each_ * units_;
    per_stage_ = static_cast<float>(units_) / static_cast<float>(total);
    at_ = unit < units_ ? begin_of(unit) : total;
    end_ = unit < units_ ? begin_of(unit + 1) : total;
  }
  __device__ int length_of(int job) const {
    const int sequence = jobs_.each == 1 ? job : jobs_.by_each.divide(job);
    const int length = jobs_.lengths != nullptr ? jobs_.lengths[sequence] : sequence * jobs_.step;
    return max(0, length + jobs_.more);
  }
  __device__ int from_of(int length) const {
    return jobs_.reach > 0 ? max(0, length - jobs_.reach) / kKeys : 0;
  }
  __device__ static int to_of(int length) { return (length + kKeys - 1) / kKeys; }
  /// A job without keys has a stage too: its result is written by who has that.
  __device__ int stages(int job) const {
    const int length = length_of(job);
    return max(1, to_of(length) - from_of(length));
  }
  /// Of jobs that are alike: as many units as each have whole jobs, or share one with no other job,
  /// where that leaves few without: parts that come together cost more.
  __device__ static int whole_units(int jobs, int units) {
    const int of_one = (jobs + units - 1) / units;
    const int used = jobs > units ? (jobs % of_one == 0 ? jobs / of_one : 0) : units / jobs * jobs;
    return used * 8 >= units * 7 ? used : units;
  }
  // In 32 bits: divisions in 64 are called, a hundred instructions and more each.
  __device__ int begin_of(int unit) const { return unit * each_ + unit * rest_ / units_; }
  __device__ int unit_of(int stage) const {
    // (units_ / total_ in f32 is off by less than half a unit, as units are few.)
    int unit = static_cast<int>(static_cast<float>(stage) * per_stage_);
    unit = min(unit, units_ - 1);
    if (begin_of(unit) > stage) {
      --unit;
    } else if (begin_of(unit + 1) <= stage) {
      ++unit;
    }
    return unit;
  }

  KeyJobs jobs_;
  int units_ = 0;
  int each_ = 0;  // stages of every unit, and those that are left to be one more of some
  int rest_ = 0;
  float per_stage_ = 0;  // units
  int at_ = 0;           // the next stage of the line, and the unit's end
  int end_ = 0;
  int ahead_ = 0;  // the next job's length, where jobs are alone
  int job_ = 0;    // of the next stage, and the job's first
  int first_ = 0;
};

/// Which block of a cache a position is in, and which of its rows it is.
struct KeyPlace {
  int block;
  int row;
};

/// Where the keys of a sequence are, asked in order: in pages 32 of them at a time, a lane each;
/// without `tables` a sequence is a block.
template <int kPage>
class KeyPages {
 public:
  __device__ KeyPages(const int32_t* tables, int64_t table_stride, int sequence, int length)
      : table_(tables != nullptr ? tables + sequence * table_stride : nullptr),
        sequence_(sequence),
        pages_((length + kPage - 1) / kPage) {}

  /// By whole warps; `first` does not go back, and lies before the sequence's end.
  __device__ KeyPlace place(int first) {
    if (table_ == nullptr) {
      return {sequence_, first};
    }
    const int page = first / kPage;
    if (page >= known_ + 32 || known_ < 0) {
      known_ = page;
      const int mine = page + static_cast<int>(threadIdx.x) % 32;
      mine_ = mine < pages_ ? table_[mine] : 0;
    }
    return {__shfl_sync(~0u, mine_, page - known_), first % kPage};
  }

 private:
  const int32_t* const table_;
  const int sequence_;
  const int pages_;
  int known_ = -1;
  int mine_ = 0;
};

/// 2^x, and 0 of what was never seen.
__device__ inline float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
/// What scores are lowered by before exp2: the highest, or nothing where there is none yet.
__device__ inline float softmax_shift(float highest) { return highest == -INFINITY ? 0 : highest; }

/// Results of rows over some of their keys: unnormalised sums [rows][kColumns], then of each row
/// the highest score, in powers of two, and the sum of exponentials. Blocks that merge slices of
/// the columns wait for those slices' writers alone, so each slice has these two for itself.
template <int kRows, int kColumns, int kSlices>
struct PartRows {
  static constexpr int kFloats = kRows * (kColumns + 2 * kSlices);

  __device__ static float2* softmax(float* part, int row, int slice) {
    return reinterpret_cast<float2*>(part + kRows * kColumns) + slice * kRows + row;
  }

  /// Adds up `count` parts, part(i) each, in that order, of the columns of slice `begin / kSlice`,
  /// and calls store(row, column, sums of four columns, highest, sum). `slice`: whose softmax
  /// counts. By kThreads threads, whole warps.
  template <int kThreads, class Part, class Store>
  __device__ static void merge(int thread, int begin, int slice, int rows, int count,
                               const Part& part, const Store& store) {
    constexpr int kSlice = kColumns / kSlices;
    constexpr int kLanes = kSlice / 4 % 32 == 0 ? 32 : 16;  // that share a row
    constexpr int kChunks = kSlice / 4 / kLanes;            // of four columns, that each has
    static_assert(kChunks * kLanes * 4 == kSlice);
    constexpr int kPitch = kThreads / kLanes;  // from one of a thread's rows to its next
    // A read takes a microsecond, so a thread asks for 16 chunks at a time: of two rows, of some
    // parts each, all that it has.
    constexpr int kRowsAtOnce = kRows / kPitch < 2 ? 1 : 2;
    constexpr int kPartsAtOnce = 16 / (kRowsAtOnce * kChunks);
    const int lane = thread % kLanes;
    const auto over_lanes = [](float x, const auto& f) {
#pragma unroll
      for (int distance = kLanes / 2; distance > 0; distance /= 2) {
        x = f(x, __shfl_xor_sync(~0u, x, distance));
      }
      return x;
    };
#pragma unroll 1
    for (int base = 0; base < rows; base += kRowsAtOnce * kPitch) {
      // Lanes of rows that there are not go along.
      const auto row = [&](int r) { return base + r * kPitch + thread / kLanes; };
      // Each lane has the softmax of some parts.
      const auto softmax_of = [&](int r, int i) {
        return i < count ? __ldcg(softmax(part(i), min(row(r), rows - 1), slice))
                         : float2{-INFINITY, 0};
      };
      float highest[kRowsAtOnce];
      float2 first[kRowsAtOnce];
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        first[r] = softmax_of(r, lane);
        highest[r] = first[r].x;
      }
#pragma unroll 1
      for (int i = kLanes + lane; i < count; i += kLanes) {
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          highest[r] = fmaxf(highest[r], softmax_of(r, i).x);
        }
      }
      float total[kRowsAtOnce] = {};
      float4 sums[kRowsAtOnce][kChunks] = {};
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        highest[r] = over_lanes(highest[r], [](float x, float y) { return fmaxf(x, y); });
      }
#pragma unroll 1
      for (int from = 0; from < count; from += kLanes) {
        float factor[kRowsAtOnce];
#pragma unroll
        for (int r = 0; r < kRowsAtOnce; ++r) {
          const float2 own = from == 0 ? first[r] : softmax_of(r, from + lane);
          factor[r] = exp2_fast(own.x - softmax_shift(highest[r]));
          total[r] += own.y * factor[r];
        }
        const int some = min(kLanes, count - from);
#pragma unroll 1
        for (int i = 0; i < some; i += kPartsAtOnce) {
          float4 x[kPartsAtOnce][kRowsAtOnce][kChunks];
#pragma unroll
          for (int j = 0; j < kPartsAtOnce; ++j) {
            const float* of = part(from + min(i + j, some - 1)) + begin;
#pragma unroll
            for (int r = 0; r < kRowsAtOnce; ++r) {
#pragma unroll
              for (int c = 0; c < kChunks; ++c) {
                x[j][r][c] = __ldcg(reinterpret_cast<const float4*>(
                    of + min(row(r), rows - 1) * kColumns + (c * kLanes + lane) * 4));
              }
            }
          }
#pragma unroll
          for (int j = 0; j < kPartsAtOnce; ++j) {
#pragma unroll
            for (int r = 0; r < kRowsAtOnce; ++r) {
              const float times = __shfl_sync(~0u, factor[r], min(i + j, some - 1), kLanes);
              if (i + j < some) {
#pragma unroll
                for (int c = 0; c < kChunks; ++c) {
                  sums[r][c].x += x[j][r][c].x * times;
                  sums[r][c].y += x[j][r][c].y * times;
                  sums[r][c].z += x[j][r][c].z * times;
                  sums[r][c].w += x[j][r][c].w * times;
                }
              }
            }
          }
        }
      }
#pragma unroll
      for (int r = 0; r < kRowsAtOnce; ++r) {
        const float sum = over_lanes(total[r], [](float x, float y) { return x + y; });
        if (row(r) < rows) {
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            store(row(r), begin + (c * kLanes + lane) * 4, sums[r][c], highest[r], sum);
          }
        }
      }
    }
  }

  /// Columns that are merged by 16 threads together; a row of a slice has kPieces such pieces.
  static constexpr int kPieceColumns = 64;
  static constexpr int kPieces = kColumns / kSlices / kPieceColumns;
  /// Floats of shared memory that kThreads threads need to merge.
  template <int kThreads>
  static constexpr int kScratchFloats = kThreads / 32 * (kPieceColumns + 4);

  /// Likewise of some pieces of a slice (numbered row by row), by one of many who each have few of
  /// them: with less code, and with threads that share a piece's parts. Adds up `count` parts, two
  /// at least, and calls store(row, column, sums of four columns, highest, sum). `at(place)`: the
  /// part at a place; they are at KeyShares::place_of_part(first, i). By kThreads threads, whole
  /// warps, all of whom `sync` waits for; `scratch`: kScratchFloats, aligned to 16.
  template <int kThreads, class At, class Store, class Sync>
  __device__ static void merge_pieces(int thread, int slice, const Range& pieces, int count,
                                      int first, const At& at, float* scratch, const Sync& sync,
                                      const Store& store) {
    constexpr int kGroups = kThreads / 16;
    // A read takes a microsecond, so a thread asks for 5 at a time. (Not more: what is executed
    // once has to be fetched. With 12 one sequence of mla_decode took 17.4 us, with 4 16.6.)
    constexpr int kAtOnce = 5;
    const auto from = static_cast<int>(pieces.begin);
    const auto to = static_cast<int>(pieces.end);
    int ways = 1;  // groups of 16 threads that share a piece, each with some of the parts
    while (ways < kGroups && ways * 2 * (to - from) <= kGroups) {
      ways *= 2;
    }
    const int lane = thread % 16;
    const int group = thread / 16;
    const int way = group % ways;
    // All parts but the first are as far from each other.
    float* const second = at((first & ~1) + 2);
    const auto apart = static_cast<int>(at((first & ~1) + 4) - second);
#pragma unroll 1
    for (int base = from; base < to; base += kGroups / ways) {
      const int piece = base + group / ways;
      const bool there = piece < to;
      const int row = min(piece, to - 1) / kPieces;
      const int column =
          (slice * kPieces + min(piece, to - 1) % kPieces) * kPieceColumns + lane * 4;
      Sum sum;
#pragma unroll 1
      for (int i = way; i < count; i += ways * kAtOnce) {
        float2 softmaxes[kAtOnce];
        float4 x[kAtOnce];
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          softmaxes[j].x = -INFINITY;
          if (i + j * ways >= count) {
            continue;
          }
          float* const of =
              j == 0 && i == 0 ? at(first) : second + int64_t{i + j * ways - 1} * apart;
          softmaxes[j] = __ldcg(softmax(of, row, slice));
          x[j] = __ldcg(reinterpret_cast<const float4*>(of + row * kColumns + column));
        }
        float highest = sum.highest;
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          highest = fmaxf(highest, softmaxes[j].x);
        }
        sum.rise(highest);
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (i + j * ways < count) {
            sum.add(softmaxes[j], x[j]);
          }
        }
      }
      if (ways > 1) {
        // All pieces are one turn's then. Two groups are a warp's.
        const float2 softmax{__shfl_xor_sync(~0u, sum.highest, 16),
                             __shfl_xor_sync(~0u, sum.total, 16)};
        const float4 x{__shfl_xor_sync(~0u, sum.sums.x, 16), __shfl_xor_sync(~0u, sum.sums.y, 16),
                       __shfl_xor_sync(~0u, sum.sums.z, 16), __shfl_xor_sync(~0u, sum.sums.w, 16)};
        sum.rise(fmaxf(sum.highest, softmax.x));
        sum.add(softmax, x);
      }
      if (ways > 2) {
        const auto place = [&](int g) { return scratch + g / 2 * (kPieceColumns + 4); };
        if (group % 2 == 0) {
          reinterpret_cast<float4*>(place(group))[lane] = sum.sums;
          *reinterpret_cast<float2*>(place(group) + kPieceColumns) = {sum.highest, sum.total};
        }
        sync();
        if (way == 0) {
          float highest = sum.highest;
#pragma unroll 1
          for (int w = 2; w < ways; w += 2) {
            highest = fmaxf(highest, place(group + w)[kPieceColumns]);
          }
          sum.rise(highest);
#pragma unroll 1
          for (int w = 2; w < ways; w += 2) {
            sum.add(*reinterpret_cast<float2*>(place(group + w) + kPieceColumns),
                    reinterpret_cast<const float4*>(place(group + w))[lane]);
          }
        }
        sync();
      }
      if (way == 0 && there) {
        store(row, column, sum.sums, sum.highest, sum.total);
      }
    }
  }

 private:
  /// Of parts so far, relative to the highest score.
  struct Sum {
    float highest = -INFINITY;
    float total = 0;
    float4 sums{};

    __device__ void rise(float next) {
      const float factor = exp2_fast(highest - softmax_shift(next));
      highest = next;
      total *= factor;
      sums = {sums.x * factor, sums.y * factor, sums.z * factor, sums.w * factor};
    }
    /// Of which no score is higher.
    __device__ void add(float2 softmax, const float4& x) {
      const float factor = exp2_fast(softmax.x - softmax_shift(highest));
      total += softmax.y * factor;
      sums = {sums.x + x.x * factor, sums.y + x.y * factor, sums.z + x.z * factor,
              sums.w + x.w * factor};
    }
  };
};

/// Whether this block is the last of `count` that come here for what `counter` counts (zero before
/// and after), whose writes are to be seen then. By kThreads threads, which named barrier `id`
/// holds together; `shared`: one word of theirs.
template <int kThreads>
__device__ bool arrives_last(uint32_t* counter, int count, int thread, int id, uint32_t* shared) {
  // (A barrier's order and a fence's add up, so that one thread's fence is for all.)
  named_sync(id, kThreads);
  if (thread == 0) {
    fence_gpu();
    const bool last = atomicAdd(counter, 1) + 1 == static_cast<uint32_t>(count);
    if (last) {
      *counter = 0;
    }
    *shared = last ? 1 : 0;
    fence_gpu();
  }
  named_sync(id, kThreads);
  return *shared != 0;
}

/// A unit's segments whose jobs other units share, in shared memory: at most two, see
/// KeyShares::place().
struct SharedSegments {
  struct Of {
    int job;
    int length;
    int stages;  ///< of the job
    int first;
    // Of merge_shared():
    uint32_t met;  ///< what the unit found when it came
    int share;     ///< the unit's; as many as there are parts: none
    int more;      ///< whose shares it merges, too, from that one on
  };
  Of of[2];

  /// By one thread.
  __device__ void put(int i, const KeySegment& segment) {
    of[i] = {segment.job, segment.length, segment.to - segment.from, segment.first};
  }
  __device__ KeySegment get(int i) const {
    return {.job = of[i].job, .length = of[i].length, .to = of[i].stages, .first = of[i].first};
  }
};

/// A word in which the units that share a job count: who has come with a part, who of these did not
/// wait until all had, and who has taken a share of the merging. Zero before and after.
struct Meeting {
  static constexpr uint32_t kCame = 1;
  static constexpr uint32_t kLeft = 1u << 10;
  static constexpr uint32_t kTook = 1u << 20;

  __device__ static int came(uint32_t word) { return static_cast<int>(word % kLeft); }
  __device__ static int left(uint32_t word) { return static_cast<int>(word % kTook / kLeft); }
  __device__ static int took(uint32_t word) { return static_cast<int>(word / kTook); }
};

/// How often a unit looks whether all parts are there, a microsecond each.
inline constexpr int kMergePatience = 256;

/// When a unit has no more segments: tells the units that share jobs with it of its parts, and
/// calls merge(segment, parts, place of the first, share) of each such job when all of its parts
/// are there, so that each unit merges some of it: all `parts` shares are merged once. (One unit
/// for each job would read all of its parts through one multiprocessor, 5 us of 64 rows of 512.)
/// Units that find no room on the device while others wait would never come, as where two launches
/// run at once: who has waited long leaves, and who comes last merges the shares of those.
/// `counter(job)`: a Meeting. By kThreads threads, which named barrier `id` holds together.
template <int kThreads, int kKeys, class Counter, class Merge>
__device__ void merge_shared(SharedSegments& segments, int count, const KeyShares<kKeys>& shares,
                             int thread, int id, int patience, const Counter& counter,
                             const Merge& merge) {
  named_sync(id, kThreads);
  if (thread == 0) {
    fence_gpu();  // see arrives_last()
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
      segments.of[i].met = atomicAdd(counter(segments.of[i].job), Meeting::kCame) + Meeting::kCame;
    }
  }
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    SharedSegments::Of& of = segments.of[i];
    const KeySegment segment = segments.get(i);
    const int parts = shares.unit_count(segment);
    if (thread == 0) {
      uint32_t* const word = counter(segment.job);
      uint32_t met = of.met;
      const bool last = Meeting::came(met) == parts;
      bool leaves = false;
      for (int looks = 0; Meeting::came(met) != parts && !leaves; ++looks) {
        if (looks < patience) {
          met = load_acquire(word);
        } else {  // unless others have come or left meanwhile
          const uint32_t found = atomicCAS(word, met, met + Meeting::kLeft);
          leaves = found == met;
          met = found;
        }
      }
      of.share = parts;
      of.more = parts;
      if (!leaves) {
        fence_gpu();
        const int present = parts - Meeting::left(met);  // nobody leaves any more
        of.share = Meeting::took(atomicAdd(word, Meeting::kTook));
        if (of.share + 1 == present) {
          *word = 0;
        }
        of.more = last ? present : parts;
      }
    }
    named_sync(id, kThreads);
    const int first = shares.place(segment, shares.first_unit(segment));
#pragma unroll 1
    for (int share = of.share; share < parts; share = max(share + 1, of.more)) {
      merge(segment, parts, first, share);
    }
  }
}

}  // namespace weft::hopper

// How the keys of sequences that differ in length are dealt to blocks on sm_90a, and how what those
// blocks made of one sequence comes together in the same launch. All keys, in stages of kKeys, are
// one line; each unit (a block, or a cluster of them) has an equal stretch of it, so that all end
// at once whatever the lengths are (Stream-K, Osama et al. 2023). A sequence that units share has a
// part from each; the last of them to arrive merges all, in the order of the keys.
#pragma once

#include <cstdint>

#include "arch/hopper/barrier.cuh"

namespace weft::hopper {

/// What is dealt: for each of `count` jobs the keys of a sequence, of which `each` jobs have the
/// same.
struct KeyJobs {
  const int32_t* lengths = nullptr;  ///< [sequence]; null: i * step
  int count = 0;
  int each = 1;
  int reach = 0;  ///< the last keys that count, where earlier ones do not; 0: all
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
    int job;
    int first;
  };

  /// By all kThreads threads of the block; `units` of them at most are used.
  template <int kThreads>
  __device__ static KeyShares deal(const KeyJobs& jobs, int units, int unit, Scratch& scratch) {
    KeyShares shares;
    shares.jobs_ = jobs;
    if (jobs.alone) {
      shares.units_ = units;
      shares.job_ = unit;
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
    int upto = own;  // of the warp's threads up to this one
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int below = __shfl_up_sync(~0u, upto, distance);
      upto += lane >= distance ? below : 0;
    }
    if (lane == 31) {
      scratch.of_warps[thread / 32] = upto;
    }
    __syncthreads();
    int before = upto - own;
    int total = 0;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      before += w < thread / 32 ? scratch.of_warps[w] : 0;
      total += scratch.of_warps[w];
    }
    shares.total_ = total;
    shares.units_ = min(units, total);
    shares.at_ = unit < shares.units_ ? shares.begin_of(unit) : total;
    shares.end_ = unit < shares.units_ ? shares.begin_of(unit + 1) : total;
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

  /// The unit's next segment; false: there is none.
  __device__ bool next(KeySegment& segment) {
    if (jobs_.alone ? job_ >= jobs_.count : at_ >= end_) {
      return false;
    }
    const int length = length_of(job_);
    const int from = from_of(length);
    const int to = max(from + 1, to_of(length));
    if (jobs_.alone) {
      segment = {job_, length, from, to, from, to, 0};
      job_ += units_;
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

 private:
  __device__ int length_of(int job) const {
    const int sequence = job / jobs_.each;
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
  __device__ int begin_of(int unit) const {
    return static_cast<int>(int64_t{unit} * total_ / units_);
  }
  __device__ int unit_of(int stage) const {
    return static_cast<int>(((int64_t{stage} + 1) * units_ - 1) / total_);
  }

  KeyJobs jobs_;
  int total_ = 0;
  int units_ = 0;
  int at_ = 0;  // the next stage of the line, and the unit's end
  int end_ = 0;
  int job_ = 0;  // of the next stage, and the job's first
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
  /// counts. By kThreads threads.
  template <int kThreads, class Part, class Store>
  __device__ static void merge(int thread, int begin, int slice, int rows, int count,
                               const Part& part, const Store& store) {
    constexpr int kSlice = kColumns / kSlices;
    constexpr int kLanes = kSlice / 4 < 32 ? kSlice / 4 : 32;  // that share a row
    constexpr int kAtOnce = 8;
    for (int row = thread / kLanes; row < rows; row += kThreads / kLanes) {
      float highest = -INFINITY;
#pragma unroll kAtOnce
      for (int i = 0; i < count; ++i) {
        highest = fmaxf(highest, __ldcg(softmax(part(i), row, slice)).x);
      }
      const float shift = softmax_shift(highest);
#pragma unroll 1
      for (int column = begin + thread % kLanes * 4; column < begin + kSlice;
           column += kLanes * 4) {
        float4 sums{};
        float total = 0;
#pragma unroll kAtOnce
        for (int i = 0; i < count; ++i) {
          const float2 own = __ldcg(softmax(part(i), row, slice));
          const float4 x =
              __ldcg(reinterpret_cast<const float4*>(part(i) + row * kColumns + column));
          const float factor = exp2_fast(own.x - shift);
          sums.x += x.x * factor;
          sums.y += x.y * factor;
          sums.z += x.z * factor;
          sums.w += x.w * factor;
          total += own.y * factor;
        }
        store(row, column, sums, highest, total);
      }
    }
  }
};

/// Whether this block is the last of `count` that come here for what `counter` counts, whose writes
/// are to be seen then. By kThreads threads, which named barrier `id` holds together; `shared`: one
/// word of theirs. The counter is zero again after the last.
template <int kThreads>
__device__ bool arrives_last(uint32_t* counter, int count, int thread, int id, uint32_t* shared) {
  __threadfence();
  named_sync(id, kThreads);
  if (thread == 0) {
    const uint32_t before = atomicAdd(counter, 1);
    *shared = before;
    if (before + 1 == static_cast<uint32_t>(count)) {
      *counter = 0;
    }
    __threadfence();
  }
  named_sync(id, kThreads);
  return *shared + 1 == static_cast<uint32_t>(count);
}

}  // namespace weft::hopper

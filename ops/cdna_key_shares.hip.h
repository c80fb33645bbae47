// How the keys of sequences that differ in length are dealt to workgroups on AMD, and how what
// those made of one sequence comes together in the same launch: as on sm_90a
// (ops/hopper_key_shares.cuh). All keys, in blocks of kKeys, are one line, of which each workgroup
// has an equal stretch (Stream-K, Osama et al. 2023); the last to come of those that share a
// sequence merges all its parts, in the order of the keys.
#pragma once

#include "arch/cdna/gemm.hip.h"
#include "arch/cdna/math.hip.h"
#include "arch/cdna/reduce.hip.h"

namespace weft::cdna {

inline constexpr float kNoScore = -__builtin_inff();
inline constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before

WEFT_GPU int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }

/// A number that all lanes have alike, kept in a vector register: scalar ones run out.
class Parked {
 public:
  Parked() = default;
  __device__ __attribute__((always_inline)) Parked(int x) : x_(x) { asm("" : "+v"(x_)); }
  __device__ __attribute__((always_inline)) operator int() const { return uniform(x_); }

 private:
  int x_;
};

/// What is dealt: `each` jobs for each of the sequences, all with the keys of that sequence.
struct KeyJobs {
  const int32_t* lengths;  ///< [sequences], or null: sequence i has i * step keys
  int sequences;
  int each;
  int reach;     ///< the last keys that count, where earlier ones do not; 0: all
  int step = 0;  ///< where there are no lengths
  int more = 0;  ///< keys that each has besides

  /// Of a sequence that is the same for all lanes.
  __device__ __attribute__((always_inline)) int length(int sequence) const {
    return (lengths != nullptr ? constant_at(lengths, sequence) : sequence * step) + more;
  }
  __device__ __attribute__((always_inline)) int length_of_lane(int sequence) const {
    return (lengths != nullptr ? lengths[sequence] : sequence * step) + more;
  }
};

/// Blocks [begin, end), which one workgroup has, of a job's [from, to).
struct KeySegment {
  int job;
  int length;  ///< keys of the sequence
  int begin;
  int end;
  Parked from;
  Parked to;
  Parked first;  ///< of the line: the job's first block

  __device__ bool whole() const { return begin == from && end == to; }
};

/// `kJobs` says what is dealt, each time it is asked: so much needs no registers in between.
template <int kKeys, KeyJobs (*kJobs)()>
class KeyShares {
 public:
  /// What workgroup `unit` has of them, if `most` of them share the keys, or fewer, so that each
  /// has `least` blocks. The same in all waves.
  __device__ __attribute__((always_inline)) KeyShares(int most, int least, int unit) {
    const KeyJobs jobs = kJobs();
    int blocks = 0;
    for (int i = 0; i < jobs.sequences; i += kWaveLanes) {
      blocks += last_lane(sum_upto_lane(blocks_of_lane(jobs, i)));
    }
    const int total = blocks * jobs.each;
    const int units = __builtin_elementwise_min(most, ceil_div(total, least));
    per_unit_ = total / units;
    longer_units_ = total % units;
    at_ = end_ = total;
    if (unit >= units) {
      return;
    }
    const int begin = begin_of(unit);
    at_ = begin;
    end_ = begin_of(unit + 1);
    // The sequence that has block at_.
    int before = 0;
    for (int i = 0;; i += kWaveLanes) {
      const int upto = sum_upto_lane(blocks_of_lane(jobs, i));
      const uint64_t behind = __builtin_amdgcn_ballot_w64((before + upto) * jobs.each <= begin);
      const int passed = __builtin_popcountll(behind);
      if (passed < kWaveLanes) {
        before += passed > 0 ? __builtin_amdgcn_readlane(upto, passed - 1) : 0;
        const int sequence = i + passed;
        const int own = blocks_of(jobs, jobs.length(sequence));
        const int job = (begin - before * jobs.each) / own;
        job_ = sequence * jobs.each + job;
        first_ = before * jobs.each + job * own;
        return;
      }
      before += last_lane(upto);
    }
  }

  /// The workgroup's next segment; false: there is none.
  __device__ __attribute__((always_inline)) bool next(KeySegment& segment) {
    if (at_ >= end_) {
      return false;
    }
    const KeyJobs jobs = kJobs();
    const int length = jobs.length(job_ / jobs.each);
    const int from = from_of(jobs, length);
    const int to = from + blocks_of(jobs, length);
    segment = {.job = job_,
               .length = length,
               .begin = from + at_ - first_,
               .end = __builtin_elementwise_min(from + end_ - first_, to),
               .from = from,
               .to = to,
               .first = first_};
    job_ = segment.job + 1;
    first_ = segment.first + to - from;
    at_ = first_;
    return true;
  }

  /// Workgroups first .. first + count - 1 have parts of a segment's job.
  __device__ int first_unit(const KeySegment& segment) const { return unit_of(segment.first); }
  __device__ int unit_count(const KeySegment& segment) const {
    return unit_of(segment.first + segment.to - segment.from - 1) - first_unit(segment) + 1;
  }
  /// Which of a workgroup's two places its part of the job has: a workgroup shares at most the
  /// first and the last of its jobs with others. The second of a job's workgroups and those behind
  /// it have it in the first.
  __device__ int place(const KeySegment& segment, int unit) const {
    return 2 * unit + (segment.first > begin_of(unit) ? 1 : 0);
  }

 private:
  WEFT_GPU int last_lane(int x) { return __builtin_amdgcn_readlane(x, kWaveLanes - 1); }
  WEFT_GPU int from_of(const KeyJobs& jobs, int length) {
    return jobs.reach > 0 ? __builtin_elementwise_max(0, length - jobs.reach) / kKeys : 0;
  }
  /// A job without keys has a block too: its result is written by who has that.
  WEFT_GPU int blocks_of(const KeyJobs& jobs, int length) {
    return __builtin_elementwise_max(1, ceil_div(length, kKeys) - from_of(jobs, length));
  }
  /// Of sequence i + the lane; 0 behind the last.
  WEFT_GPU int blocks_of_lane(const KeyJobs& jobs, int i) {
    const int sequence = i + lane_index();
    return sequence < jobs.sequences ? blocks_of(jobs, jobs.length_of_lane(sequence)) : 0;
  }
  // The first longer_units_ workgroups have a block more than the others.
  __device__ int begin_of(int unit) const {
    return unit * per_unit_ + __builtin_elementwise_min(unit, int{longer_units_});
  }
  __device__ int unit_of(int block) const {
    const int in_longer = longer_units_ * (per_unit_ + 1);
    return block < in_longer ? block / (per_unit_ + 1)
                             : longer_units_ + (block - in_longer) / per_unit_;
  }

  Parked per_unit_;
  Parked longer_units_;
  Parked at_;  // the next block of the line, and the workgroup's end
  Parked end_;
  Parked job_ = 0;  // of the next block, and the job's first
  Parked first_ = 0;
};

/// What scores, in powers of two, are lowered by before exp2: the highest, or nothing where there
/// is none yet.
WEFT_GPU float softmax_shift(float highest) { return highest == kNoScore ? 0 : highest; }

/// Of rows of a block of 32 keys' values, a lane's 8 (or 4) adjacent columns of keys 4 (l / 16) and
/// the next three of each strip: column `e` of them, as an operand of the product with the keys'
/// probabilities. Which columns of a row its 16 lanes have is free.
template <class Words>
WEFT_GPU u32x4 column_of_values(const Words (&rows)[2][4], int e) {
  const uint32_t pick = e % 2 == 0 ? 0x05040100 : 0x07060302;  // low or high halves
  u32x4 keys;
#pragma unroll
  for (int t = 0; t < 2; ++t) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      keys[2 * t + j] =
          __builtin_amdgcn_perm(rows[t][2 * j + 1][e / 2], rows[t][2 * j][e / 2], pick);
    }
  }
  return keys;
}

/// Of a row, over some of its keys.
struct SoftmaxState {
  float highest;  ///< or what exponentials are relative to; kNoScore: no key was seen
  float sum;      ///< of exponentials
  float distance;
};

}  // namespace weft::cdna

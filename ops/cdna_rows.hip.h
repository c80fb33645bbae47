// The device side of kernels on rows: how a workgroup walks along a row, and writes it quantised.
#pragma once

#include <type_traits>

#include "arch/cdna/memory.hip.h"
#include "arch/cdna/quantise.hip.h"
#include "ops/cdna_rows.h"

namespace weft::cdna {

/// How numbers that are written are scaled: Scaling of ops/scales.h; none: T itself, not fp8.
enum class RowScaling { none, tensor, row, block };

/// A thread's chunks of a row: first, first + step, ... below end.
struct RowPart {
  int first;
  int step;  ///< threads of the workgroup
  int end;
};

/// Calls f(chunk, values) for each of the thread's chunks. All lanes of a wave are there each time,
/// those beyond the row too, for which loads give zeros and stores do nothing. The first
/// kChunksKept chunks come from `kept`, what a longer row has beyond them from load(chunk).
template <class Chunk, class Load, class F>
WEFT_GPU void visit(const RowPart& part, Chunk (&kept)[kChunksKept], Load load, F f) {
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    f(part.first + i * part.step, kept[i]);
  }
  for (int ahead = kChunksKept * part.step;
       __builtin_amdgcn_readfirstlane(part.first) + ahead < part.end; ahead += part.step) {
    f(part.first + ahead, load(part.first + ahead));
  }
}

/// A row of `columns` numbers of type T in memory.
template <class T>
class RowBuffer {
 public:
  __device__ __attribute__((always_inline)) RowBuffer(const void* row, int columns)
      : buffer_(row, columns * sizeof(T)) {}
  __device__ __attribute__((always_inline)) Vector<T, kChunk> load(int chunk) const {
    return __builtin_bit_cast(Vector<T, kChunk>, buffer_.load(chunk * kChunk * sizeof(T)));
  }
  template <class V>
  __device__ __attribute__((always_inline)) void store(int chunk, V values) const {
    buffer_.store(values, chunk * kChunk * sizeof(T));
  }

 private:
  Buffer buffer_;
};

/// Writes one row's results.
template <class T, RowScaling kScaling>
class RowWriter {
 public:
  __device__ __attribute__((always_inline))
  RowWriter(const RowOutput& output, int64_t row, int columns)
      : out_(&at<char>(output.out, row * output.out_stride), columns),
        scales_(kScaling == RowScaling::tensor ? output.scales
                                               : output.scales + row * output.scale_row_stride),
        block_stride_(output.scale_block_stride),
        columns_(columns) {
    if constexpr (kScaling == RowScaling::tensor) {
      inverse_ = __builtin_amdgcn_rcpf(scales_[0]);
    }
  }

  /// For scales of rows, before the first store(): the largest magnitude of the row.
  __device__ __attribute__((always_inline)) void set_amax(float amax) {
    const Fp8Scale scale = fp8_scale_for(amax);
    inverse_ = scale.inverse;
    if (thread_index() == 0) {
      *scales_ = scale.scale;
    }
  }

  /// All lanes of the wave must be there: scales of blocks are found by 16 lanes together.
  __device__ __attribute__((always_inline)) void store(int chunk, f32x8 v) {
    if constexpr (kScaling == RowScaling::none) {
      out_.store(chunk, round_to<T>(v));
      return;
    }
    float inverse = inverse_;
    if constexpr (kScaling == RowScaling::block) {
      const Fp8Scale scale = fp8_scale_for(row_reduce<Max>(largest_magnitude(v)));
      inverse = scale.inverse;
      if (chunk % kRowLanes == 0 && chunk * kChunk < columns_) {
        scales_[chunk / kRowLanes * block_stride_] = scale.scale;
      }
    }
    out_.store(chunk, to_fp8(v * inverse));
  }

 private:
  using Stored = std::conditional_t<kScaling == RowScaling::none, T, uint8_t>;
  RowBuffer<Stored> out_;
  float* scales_;
  int64_t block_stride_;
  int columns_;
  float inverse_ = 1;
};

}  // namespace weft::cdna

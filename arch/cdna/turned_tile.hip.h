// Tiles of 16-bit matrices that lie in memory along their rows' direction, turned on their way to
// LDS.
#pragma once

#include "arch/cdna/tile.hip.h"

namespace weft::cdna {

/// Brings tiles of kRows rows, 64 of k each, of a matrix of 16-bit numbers that lies in memory
/// along its rows' direction, [k][rows]. A thread turns 4 rows of 8 k in registers.
class TurnedTile {
 public:
  static constexpr int kRows = 128;
  static constexpr int kRowsEach = 4;
  static constexpr int kDeep = 8;
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr bool kPairs = true;

  /// `matrix`: at k = 0, of `k`, a multiple of 8; `stride`: bytes from one k to the next. This
  /// thread brings rows [row, row + 4) of the tile, which begin `offset` bytes from there, and the
  /// `chunk`-th 8 of each block of k. `odd`: of each two rows the odd one is written first, so that
  /// lanes which are served together and whose rows have the same key (tile.hip.h) do not meet.
  __device__ __attribute__((always_inline))
  TurnedTile(const void* matrix, int64_t stride, int k, uint32_t offset, int row, int chunk,
             bool odd)
      : buffer_(matrix, 0xffffff00),
        stride_(static_cast<uint32_t>(stride)),
        left_(k - chunk * kDeep),
        offset_(chunk * kDeep * stride_ + offset),
        place_(chunk_offset(row, chunk) ^ (odd ? chunk_offset(1, 0) : 0)),
        halves_{odd ? kHigh : kLow, odd ? kLow : kHigh} {}

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    constexpr int kBlock = kStripBytes / 2;
    uint32_t along = k_block * kBlock * stride_;
    const uint32_t offset = k_block * kBlock < left_ ? offset_ : ~0U;
#pragma unroll
    for (int k = 0; k < kDeep; ++k) {
      staged_[k] = buffer_.load_pair(offset, along);
      along += stride_;
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      u32x4 row;
#pragma unroll
      for (int j = 0; j < kDeep / 2; ++j) {
        row[j] =
            __builtin_amdgcn_perm(staged_[2 * j + 1][i / 2], staged_[2 * j][i / 2], halves_[i % 2]);
      }
      // Its first row is a multiple of 4, and the key linear.
      using Chunk = __attribute__((address_space(3))) u32x4;
      *reinterpret_cast<Chunk*>(lds + (place_ ^ chunk_offset(i, 0))) = row;
    }
  }

 private:
  static constexpr uint32_t kLow = 0x05040100;
  static constexpr uint32_t kHigh = 0x07060302;
  static_assert(kRows * kStripBytes == kTileThreads * kRowsEach * kDeep * 2);
  Buffer buffer_;
  uint32_t stride_;
  int left_;  ///< of k, from this thread's first one on
  uint32_t offset_;
  int place_;
  uint32_t halves_[2];  ///< which of two words are the rows'
  u32x2 staged_[kDeep];
};

}  // namespace weft::cdna

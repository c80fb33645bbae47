// Rows that drew an expert, gathered on their way to LDS.
#pragma once

#include "arch/cdna/tile.hip.h"
#include "ops/linear/forms/mxfp4/cdna_numbers.hip.h"

namespace weft::cdna {

inline constexpr uint32_t kNowhere = 0xffffff00;  ///< an offset that every buffer ends before
inline constexpr int kPassRows = kTileThreads / kRowChunks;  ///< that a load of all threads brings

/// Brings tiles of kRows rows: those of slots, which have a row in every `per_row` slots.
template <int kRows, bool kMxOrder>
class GatheredRows {
 public:
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;

  /// `slots`: the tile's, of `left`. `row_bytes`: of k.
  __device__ __attribute__((always_inline))
  GatheredRows(const void* rows, int64_t stride, int row_bytes, int per_row, const int32_t* slots,
               int left)
      : buffer_(rows, kNowhere), row_bytes_(row_bytes) {
    const Buffer order(slots, left * 4);
    const int row = thread_index() / kRowChunks;
    chunk_ = thread_index() % kRowChunks ^ place_key(row);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int mine = row + i * kPassRows;
      const auto slot = static_cast<int>(order.load_word(mine * 4));
      const auto from = static_cast<uint32_t>(slot / per_row * stride) + chunk_ * kChunkBytes;
      offset_[i] = mine < left ? from : kNowhere;
    }
  }
  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    const int along = k_block * kStripBytes;
    // Of a choice between offsets, some of which are nowhere already, the compiler makes branches.
    const uint32_t beyond = along + chunk_ * kChunkBytes < row_bytes_ ? 0 : kNowhere;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_.load(offset_[i] | beyond, along);
    }
  }
  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) const {
    using Chunk = __attribute__((address_space(3))) u32x4;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      // Of the last rows there may be half as many as there are threads for.
      if (kRows % kPassRows == 0 || i + 1 < kLoads || wave_index() < kTileWaves / 2) {
        reinterpret_cast<Chunk*>(lds)[i * kTileThreads + thread_index()] =
            kMxOrder ? in_mx_order(staged_[i]) : staged_[i];
      }
    }
  }

 private:
  static_assert(kRows % (kPassRows / 2) == 0);
  static constexpr int kLoads = ceil_div(kRows, kPassRows);
  Buffer buffer_;
  int row_bytes_;
  int chunk_;
  uint32_t offset_[kLoads];
  u32x4 staged_[kLoads];
};

}  // namespace weft::cdna

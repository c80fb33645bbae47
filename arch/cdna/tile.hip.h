// Tiles in LDS: rows of 128 bytes whose 16-byte chunks are permuted by XOR, so that neither strips
// that waves read, nor chunks that threads write, meet in a bank; and how tiles come from memory.
#pragma once

#include "arch/cdna/memory.hip.h"
#include "arch/cdna/mma.hip.h"

namespace weft::cdna {

inline constexpr int kChunkBytes = 16;
inline constexpr int kRowChunks = kStripBytes / kChunkBytes;

/// LDS as an address of its own kind: what loads straight to LDS take.
using LdsBytes = __attribute__((address_space(3))) char;

/// Chunk c of row r lies at place c ^ place_key(r) of the row. A row is all 32 banks of gfx942 and
/// half the 64 of gfx950, so 8 (16) lanes that are served together must differ in their place (and
/// the row's parity). The key is linear over the bits of r, with factors such that these do:
///  - eight consecutive rows of one chunk, and rows 0-3 of a chunk with rows 4-7 of the next:
///    a wave's strip of consecutive rows, in either order in which ds_read_b128 serves its lanes;
///  - rows {0-3, 8-11, 16-19, 24-27}: a strip in the order of paired_row();
///  - every fourth row: what a transposing load writes.
WEFT_GPU int place_key(int row) {
  return (row & 7) ^ ((row & 8) != 0 ? 5 : 0) ^ ((row & 16) != 0 ? 2 : 0);
}
WEFT_GPU int chunk_offset(int row, int chunk) {
  return row * kStripBytes + (chunk ^ place_key(row)) * kChunkBytes;
}

/// The row, of 32, that a wave puts in place l of strip t, t = 0 or 1, so that of the products'
/// rows each lane gets 8 that are adjacent: element r of strip t in lane l is 8 (l / 16) + 4 t + r.
WEFT_GPU int paired_row(int t, int l) { return 8 * (l / 4) + 4 * t + l % 4; }

/// How a wave reads the strips of its part of a tile. Strips come in pairs of 32 rows: l takes row
/// even(l) of the pair in its first strip and row odd(l) in its second.
class StripReader {
 public:
  /// `even`, `odd`: this lane's rows in the first pair of strips.
  __device__ __attribute__((always_inline)) StripReader(int even, int odd) {
    const int quarter = lane_index() / kStripRows;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Four chunks on is the place whose bit 2 differs.
      offset_[0][half] = chunk_offset(even, quarter) ^ 4 * half * kChunkBytes;
      offset_[1][half] = chunk_offset(odd, quarter) ^ 4 * half * kChunkBytes;
    }
  }
  __device__ __attribute__((always_inline)) Strip load(const LdsBytes* tile, int strip) const {
    using Chunk = const __attribute__((address_space(3))) u32x4;
    const LdsBytes* pair = tile + strip / 2 * 2 * kStripRows * kStripBytes;
    return {*reinterpret_cast<Chunk*>(pair + offset_[strip % 2][0]),
            *reinterpret_cast<Chunk*>(pair + offset_[strip % 2][1])};
  }

 private:
  int offset_[2][2];
};

/// A StripReader of the strips from row `first` on: each of 16 rows that follow one another, or,
/// paired, so that products lie as paired_row() says.
template <bool kPaired>
class RowReader : public StripReader {
 public:
  __device__ __attribute__((always_inline)) explicit RowReader(int first)
      : StripReader(first + row(0), first + row(1)) {}

 private:
  WEFT_GPU int row(int t) {
    const int l = lane_index() % kStripRows;
    return kPaired ? paired_row(t, l) : t * kStripRows + l;
  }
};

inline constexpr int kTileThreads = 256;
inline constexpr int kTileWaves = kTileThreads / kWaveLanes;

/// Brings tiles of kRows rows, 128 bytes each, of a matrix whose rows lie in memory along k.
/// On gfx950 loads go straight to LDS; gfx942 could do that 4 bytes at a time only, so there 16
/// bytes go through registers: fetch() starts the loads and publish() writes them to LDS.
/// Rows beyond the matrix repeat its last one (nobody looks at their products); with kRagged, what
/// is beyond the end of a row is zero.
template <int kRows, bool kRagged>
class RowMajorTile {
 public:
  static_assert(kRows * kRowChunks % kTileThreads == 0, "every thread moves as many chunks");
  static constexpr int kLoads = kRows * kRowChunks / kTileThreads;
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr bool kPairs = true;  ///< whether readers can pair strips

  /// `first`: the tile's first row, of `rows` left in the matrix. `stride`, `row_bytes`: bytes.
  __device__ __attribute__((always_inline))
  RowMajorTile(const void* first, int64_t stride, int rows, int row_bytes)
      : buffer_(first, static_cast<uint32_t>(__builtin_elementwise_min(
                           stride * __builtin_elementwise_min(rows, kRows), int64_t{0xffffff00}))),
        row_bytes_(row_bytes) {
    // Threads lie along the places of a row, and look for the chunk that belongs there.
    const int row = thread_index() / kRowChunks;
    chunk_ = thread_index() % kRowChunks ^ place_key(row);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int mine = __builtin_elementwise_min(row + i * (kTileThreads / kRowChunks), rows - 1);
      offset_[i] = static_cast<uint32_t>(mine * stride) + chunk_ * kChunkBytes;
    }
  }

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* lds) {
    const uint32_t along = k_block * kStripBytes;
    const bool inside = !kRagged || static_cast<int>(along) + chunk_ * kChunkBytes < row_bytes_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const uint32_t offset = inside ? offset_[i] : ~0U;
      if constexpr (kStraight) {
        buffer_.load_to_lds(lds + (i * kTileThreads + wave_index() * kWaveLanes) * kChunkBytes,
                            offset, along);
      } else {
        staged_[i] = buffer_.load(offset, along);
      }
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
    if constexpr (kStraight) {
      wait_for_loads();
    } else {
      using Chunk = __attribute__((address_space(3))) u32x4;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        reinterpret_cast<Chunk*>(lds)[i * kTileThreads + thread_index()] = staged_[i];
      }
    }
  }

 private:
  static constexpr bool kStraight = kLdsLoadBytes == kChunkBytes;
  Buffer buffer_;
  int row_bytes_;
  int chunk_;
  uint32_t offset_[kLoads];
  u32x4 staged_[kStraight ? 1 : kLoads];
};

/// The same of bf16 or f16 numbers that become f32 on their way to LDS: 64 bytes of a row in memory
/// are 128 there.
template <int kRows, class T>
class WideningTile {
 public:
  static_assert(kRows * kRowChunks % kTileThreads == 0, "every thread moves as many chunks");
  static constexpr int kLoads = kRows * kRowChunks / kTileThreads;
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr bool kPairs = true;

  /// As RowMajorTile's, in memory.
  __device__ __attribute__((always_inline))
  WideningTile(const void* first, int64_t stride, int rows, int row_bytes)
      : buffer_(first, static_cast<uint32_t>(__builtin_elementwise_min(
                           stride * __builtin_elementwise_min(rows, kRows), int64_t{0xffffff00}))),
        row_bytes_(row_bytes) {
    const int row = thread_index() / kRowChunks;
    chunk_ = thread_index() % kRowChunks ^ place_key(row);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int mine = __builtin_elementwise_min(row + i * (kTileThreads / kRowChunks), rows - 1);
      offset_[i] = static_cast<uint32_t>(mine * stride) + chunk_ * (kChunkBytes / 2);
    }
  }

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    const uint32_t along = k_block * (kStripBytes / 2);
    const bool inside = static_cast<int>(along) + chunk_ * (kChunkBytes / 2) < row_bytes_;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      staged_[i] = buffer_.load_pair(inside ? offset_[i] : ~0U, along);
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
    using Chunk = __attribute__((address_space(3))) f32x4;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      reinterpret_cast<Chunk*>(lds)[i * kTileThreads + thread_index()] =
          __builtin_convertvector(__builtin_bit_cast(Vector<T, 4>, staged_[i]), f32x4);
    }
  }

 private:
  Buffer buffer_;
  int row_bytes_;
  int chunk_;
  uint32_t offset_[kLoads];
  u32x2 staged_[kLoads];
};

#if defined(__gfx950__)

/// Of a tile that lies in LDS as [k][kRows] fp8: chunk c of k lies at place c ^ column_key(k). What
/// 32 lanes of a transposed read ask for, one chunk of 16 k, is then in all 64 banks.
template <int kRows>
WEFT_GPU int column_key(int k) {
  constexpr int kChunks = kRows / kChunkBytes;
  if constexpr (kChunks == 6) {
    return k / 8 % 2;  // 8 k are in all even or all odd places of the banks
  } else {
    return k / (16 / kChunks) % kChunks;
  }
}

/// Strips out of a tile that lies in LDS as [k][kRows] fp8, of 16 rows each from `first` on.
/// ds_read_b64_tr_b8: of each 16 lanes, lanes 2 j and 2 j + 1 ask for 16 rows at one k, and lane l
/// receives row l at the 8 k.
template <int kRows, int kStrips>
class ColumnReader {
 public:
  __device__ __attribute__((always_inline)) explicit ColumnReader(int first) {
    const int k = lane_index() / kStripRows * 8 + lane_index() % kStripRows / 2;
#pragma unroll
    for (int strip = 0; strip < kStrips; ++strip) {
      const int chunk = (first / kStripRows + strip) ^ column_key<kRows>(k);
      offset_[strip] = k * kRows + chunk * kChunkBytes + lane_index() % 2 * 8;
    }
  }
  __device__ __attribute__((always_inline)) Strip load(const LdsBytes* tile, int strip) const {
    Strip result;
    using Half = __attribute__((address_space(3))) Vector<int, 2>;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const auto read =
          __builtin_bit_cast(u32x2, __builtin_amdgcn_ds_read_tr8_b64_v2i32(
                                        (Half*)(tile + offset_[strip] + i * kChunkRows * kRows)));
      result.half[i / 2][i % 2 * 2] = read[0];
      result.half[i / 2][i % 2 * 2 + 1] = read[1];
    }
    return result;
  }

 private:
  static constexpr int kChunkRows = 32;  // of k, that a read brings
  int offset_[kStrips];
};

/// The same of fp8 numbers that lie in memory along the rows' direction: [k, rows]. They go
/// straight to LDS as they are and are transposed on their way out, so paired strips are not to be
/// had. `kFromLastWave` is for the other target.
template <int kRows, bool kFromLastWave>
class ColumnMajorTile {
 public:
  static constexpr int kChunks = kRows / kChunkBytes;
  static_assert(kStripBytes * kChunks % kTileThreads == 0, "every thread moves as many chunks");
  static constexpr int kLoads = kStripBytes * kChunks / kTileThreads;
  template <int kStrips, bool kPaired>
  using Reader = ColumnReader<kRows, kStrips>;
  static constexpr bool kPairs = false;

  /// `first`: row 0 of the tile at k = 0, of `rows` left in the matrix. `stride`: bytes from one k
  /// to the next. `k`: of the matrix.
  __device__ __attribute__((always_inline))
  ColumnMajorTile(const void* first, int64_t stride, int rows, int k)
      : first_(first), stride_(static_cast<uint32_t>(stride)) {
    // What is beyond the last k is zeros; within, chunks of the next k are nobody's.
    bytes_ = static_cast<uint32_t>(k - 1) * stride_ + static_cast<uint32_t>((rows + 3) / 4 * 4);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      const int place = i * kTileThreads + thread_index();
      const int row = place / kChunks;
      const int chunk = place % kChunks ^ column_key<kRows>(row);
      offset_[i] = row * stride_ + chunk * kChunkBytes;
    }
  }

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* lds) {
    // The range check does not see a uniform offset, so the buffer begins at the block.
    const uint32_t along = k_block * kStripBytes * stride_;
    const Buffer buffer(&at<char>(first_, along), bytes_ - along);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      buffer.load_to_lds(lds + (i * kTileThreads + wave_index() * kWaveLanes) * kChunkBytes,
                         offset_[i], 0);
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* /*lds*/) { wait_for_loads(); }

 private:
  const void* first_;
  uint32_t stride_;
  uint32_t bytes_;
  uint32_t offset_[kLoads];
};

#else

/// The same of fp8 numbers that lie in memory along the rows' direction: [k, rows], brought to LDS
/// along k. A thread reads 4 rows of 16 k and transposes them in registers, so a wave reads 128
/// bytes that are adjacent.
template <int kRows, bool kFromLastWave>
class ColumnMajorTile {
 public:
  static_assert(kRows % 32 == 0 && kRows <= 128, "whole waves take part, each once");
  static constexpr int kRowsEach = 4;
  static constexpr int kDeep = 16;
  static constexpr int kWaves = kRows * kStripBytes / (kRowsEach * kDeep) / kWaveLanes;
  template <int kStrips, bool kPaired>
  using Reader = RowReader<kPaired>;
  static constexpr bool kPairs = true;

  /// `first`: row 0 of the tile at k = 0, of `rows` left in the matrix. `stride`: bytes from one k
  /// to the next.
  __device__ __attribute__((always_inline))
  ColumnMajorTile(const void* first, int64_t stride, int rows, int /*k*/)
      : buffer_(first, 0xffffffffU), stride_(static_cast<uint32_t>(stride)) {
    // Two tiles that need few waves each are brought by different ones.
    const int wave = kFromLastWave ? kTileWaves - 1 - wave_index() : wave_index();
    mine_ = kWaves == kTileWaves || wave < kWaves;
    const int unit = wave * kWaveLanes + lane_index();
    const int row = unit % (kRows / kRowsEach) * kRowsEach;
    const int deep = unit / (kRows / kRowsEach);
    const int last = (rows - 1) / kRowsEach * kRowsEach;
    offset_ = deep * kDeep * stride_ + __builtin_elementwise_min(row, last);
    place_[0] = chunk_offset(row, deep);
#pragma unroll
    for (int i = 1; i < kRowsEach; ++i) {
      place_[i] = place_[0] ^ chunk_offset(i, 0);  // row is a multiple of 4, the key linear
    }
  }

  __device__ __attribute__((always_inline)) void fetch(int k_block, LdsBytes* /*lds*/) {
    if (mine_) {
      uint32_t along = k_block * kStripBytes * stride_;
#pragma unroll
      for (int k = 0; k < kDeep; ++k) {
        staged_[k] = buffer_.load_word(offset_, along);
        along += stride_;
        asm("" : "+s"(along));  // else all multiples of the stride are kept, and SGPRs run out
      }
    }
  }

  __device__ __attribute__((always_inline)) void publish(LdsBytes* lds) {
    if (!mine_) {
      return;
    }
    u32x4 rows[kRowsEach];
#pragma unroll
    for (int quad = 0; quad < kDeep / 4; ++quad) {  // 4 x 4 bytes
      const uint32_t* k = staged_ + 4 * quad;
      const uint32_t low01 = __builtin_amdgcn_perm(k[1], k[0], 0x05010400);
      const uint32_t low23 = __builtin_amdgcn_perm(k[3], k[2], 0x05010400);
      const uint32_t high01 = __builtin_amdgcn_perm(k[1], k[0], 0x07030602);
      const uint32_t high23 = __builtin_amdgcn_perm(k[3], k[2], 0x07030602);
      rows[0][quad] = __builtin_amdgcn_perm(low23, low01, 0x05040100);
      rows[1][quad] = __builtin_amdgcn_perm(low23, low01, 0x07060302);
      rows[2][quad] = __builtin_amdgcn_perm(high23, high01, 0x05040100);
      rows[3][quad] = __builtin_amdgcn_perm(high23, high01, 0x07060302);
    }
    using Chunk = __attribute__((address_space(3))) u32x4;
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
      *reinterpret_cast<Chunk*>(lds + place_[i]) = rows[i];
    }
  }

 private:
  Buffer buffer_;
  uint32_t stride_;
  uint32_t offset_;
  int place_[kRowsEach];
  bool mine_;
  uint32_t staged_[kDeep];
};

#endif

}  // namespace weft::cdna

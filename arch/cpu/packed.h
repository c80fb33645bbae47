// bf16 weights in 12 bits each, without loss, for products that are bound by the bytes they read.
//
// A weight's lower byte (the exponent's last bit and the mantissa) is noise and is kept as it is.
// Its upper byte (the sign and seven bits of the exponent) takes few values within a row of
// weights: zero and the fifteen most frequent ones are all but about one in ten thousand. So each
// row has a dictionary of 16 upper bytes, the first of them zero, and a weight is its lower byte
// and four bits that choose an upper one. A weight whose upper byte is not in the dictionary is
// listed, and zero stands in its place. Every bf16 comes back bit for bit, whatever it is.
//
// Rows lie in groups of sixteen, so that products read one sequential stream and what they load of
// the other factor serves sixteen sums. A group is its rows' dictionaries, then blocks of 64
// elements: of eight pairs of rows each 64 bytes of choices, the first row's in the lower halves,
// then the first row's 64 lower bytes, then the second's: in the order in which they are needed.
// Within 64 bytes, elements are in the order in which interleaving upper and lower bytes in each
// 128 bits makes vectors of consecutive bf16: packed_place(). Rows end with zeros up to a whole
// block, and the last group with rows of zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/number.h"
#include "base/range.h"

namespace weft::cpu {

inline constexpr int64_t kGroupRows = 16;
inline constexpr int64_t kDictionary = 16;       ///< bytes of a row's dictionary
inline constexpr int64_t kPackedBlock = 64;      ///< elements of a row in a block
inline constexpr int64_t kLower = kPackedBlock;  ///< where in a pair's part lower bytes begin
inline constexpr int64_t kPairBytes = 3 * kPackedBlock;
inline constexpr int64_t kBlockBytes = kGroupRows / 2 * kPairBytes;
inline constexpr int64_t kGroupHeader = kGroupRows * kDictionary;

constexpr int64_t packed_blocks(int64_t k) { return (k + kPackedBlock - 1) / kPackedBlock; }
constexpr int64_t packed_groups(int64_t rows) { return (rows + kGroupRows - 1) / kGroupRows; }
constexpr int64_t packed_group_bytes(int64_t k) {
  return kGroupHeader + packed_blocks(k) * kBlockBytes;
}
/// Which of a block's 64 bytes is element i's: 0 to 63.
constexpr int64_t packed_place(int64_t i) { return i % 32 / 8 * 16 + i / 32 * 8 + i % 8; }

/// A weight beside its row's dictionary.
struct ListedWeight {
  int32_t element = 0;  ///< along k
  uint16_t row = 0;     ///< of the group
  bf16 value;
};

/// Packed rows of k elements: those of a matrix, or of `matrices` that are multiplied side by side,
/// whose groups have kGroupRows / matrices rows of each, in order.
struct PackedMatrix {
  const std::byte* groups = nullptr;  ///< aligned to 64 bytes
  int64_t k = 0;
  int matrices = 1;
  const uint32_t* list_begin =
      nullptr;  ///< [groups + 1]: where in `listed` a group's weights begin
  const ListedWeight* listed = nullptr;

  int64_t group_bytes() const { return packed_group_bytes(k); }
  int64_t group_columns() const { return kGroupRows / matrices; }  ///< of each matrix
  const std::byte* group(int64_t index) const { return groups + index * group_bytes(); }
  std::span<const ListedWeight> list(Range range) const {  ///< of these groups
    return {listed + list_begin[range.begin], listed + list_begin[range.end]};
  }
};

/// Packs sixteen rows of k elements (null: a row of zeros) into packed_group_bytes(k) bytes,
/// 64-byte aligned, and appends what is listed.
void pack_group(const bf16* const (&rows)[kGroupRows], int64_t k, std::byte* group,
                std::vector<ListedWeight>& listed);

/// Brings the line-th four cache lines of a tile's stream into the second-level cache.
inline void prefetch_packed(const PackedMatrix& packed, Range columns, int64_t line) {
  constexpr int64_t kLine = 64;
  constexpr int64_t kLines = 4;
  const std::byte* first = packed.group(columns.begin / packed.group_columns());
  const int64_t bytes = columns.size() / packed.group_columns() * packed.group_bytes();
  for (int64_t i = line * kLines; i < (line + 1) * kLines && i * kLine < bytes; ++i) {
    __builtin_prefetch(first + i * kLine, 0, 2);
  }
}

}  // namespace weft::cpu

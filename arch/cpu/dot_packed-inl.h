// Products with packed weights (packed.h): how a block becomes bf16 again in registers, for the
// stream of a decode step, or in a buffer, for the panels of prefill. Included once per instruction
// set.
#include <algorithm>
#include <cstdint>

#include "arch/cpu/dot_units-inl.h"
#include "arch/cpu/packed.h"

#if defined(WEFT_ARCH_CPU_DOT_PACKED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef WEFT_ARCH_CPU_DOT_PACKED_INL_H_
#undef WEFT_ARCH_CPU_DOT_PACKED_INL_H_
#else
#define WEFT_ARCH_CPU_DOT_PACKED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR

/// The 64 weights of row `row` of a group in one block, as bf16; what is listed is zero.
inline void unpack_block(const std::byte* group, int64_t row, int64_t block, bf16* out) {
  const auto* dictionary = reinterpret_cast<const uint8_t*>(group) + row * cpu::kDictionary;
  const auto* pair = reinterpret_cast<const uint8_t*>(group) + cpu::kGroupHeader +
                     block * cpu::kBlockBytes + row / 2 * cpu::kPairBytes;
  for (int64_t i = 0; i < cpu::kPackedBlock; ++i) {
    const int64_t place = cpu::packed_place(i);
    const int upper = dictionary[pair[place] >> row % 2 * 4 & 15];
    out[i].bits =
        static_cast<uint16_t>(upper << 8 | pair[cpu::kLower + row % 2 * cpu::kPackedBlock + place]);
  }
}

/// sums[r][c] = a[r] . row c of the group, without listed weights; rows of `a` as
/// Units::split_row() leaves them.
template <class Units, int kRows>
void packed_dots(const float* a, int64_t a_stride, const std::byte* group, int64_t blocks,
                 float (&sums)[kRows][cpu::kGroupRows]) {
  for (int64_t c = 0; c < cpu::kGroupRows; ++c) {
    for (int r = 0; r < kRows; ++r) {
      sums[r][c] = 0;
    }
    for (int64_t b = 0; b < blocks; ++b) {
      bf16 w[cpu::kPackedBlock];
      unpack_block(group, c, b, w);
      for (int r = 0; r < kRows; ++r) {
        FloatVec sum = hn::Set(FloatTag(), sums[r][c]);
        for (int64_t i = 0; i < cpu::kPackedBlock; ++i) {
          const float x = Units::element(a + r * a_stride, b * cpu::kPackedBlock + i);
          sum = Units::multiply_add(hn::Set(FloatTag(), x), Units::weights(w + i), sum);
        }
        sums[r][c] = hn::GetLane(sum);
      }
    }
  }
}

#else

using ByteTag = hn::ScalableTag<uint8_t>;
using ByteVec = hn::Vec<ByteTag>;
inline constexpr int64_t kByteLanes = hn::MaxLanes(ByteTag());
static_assert(cpu::kPackedBlock % kByteLanes == 0);

/// Upper bytes of a part of a block's pair of rows: of the first row, of the second one.
HWY_INLINE ByteVec upper_bytes(ByteVec choices, ByteVec dictionary,
                               std::integral_constant<int, 0>) {
  return hn::TableLookupBytes(dictionary, hn::And(choices, hn::Set(ByteTag(), 15)));
}
HWY_INLINE ByteVec upper_bytes(ByteVec choices, ByteVec dictionary,
                               std::integral_constant<int, 1>) {
  return hn::TableLookupBytes(dictionary, hn::ShiftRight<4>(choices));
}

/// See above.
inline void unpack_block(const std::byte* group, int64_t row, int64_t block, bf16* out) {
  const ByteTag d;
  const auto* bytes = reinterpret_cast<const uint8_t*>(group);
  const auto dictionary = hn::LoadDup128(d, bytes + row * cpu::kDictionary);
  const uint8_t* pair =
      bytes + cpu::kGroupHeader + block * cpu::kBlockBytes + row / 2 * cpu::kPairBytes;
  auto* to = reinterpret_cast<uint8_t*>(out);
  for (int64_t part = 0; part < cpu::kPackedBlock; part += kByteLanes) {
    const auto low = hn::LoadU(d, pair + cpu::kLower + row % 2 * cpu::kPackedBlock + part);
    const auto choices = hn::LoadU(d, pair + part);
    const auto high = row % 2 == 0
                          ? upper_bytes(choices, dictionary, std::integral_constant<int, 0>())
                          : upper_bytes(choices, dictionary, std::integral_constant<int, 1>());
    hn::StoreU(hn::InterleaveLower(d, low, high), d, to + part);
    hn::StoreU(hn::InterleaveUpper(d, low, high), d, to + cpu::kPackedBlock + part);
  }
}

/// Rows 2 * kFirst to 2 * (kFirst + kPairs) of the group. See packed_dots().
template <class Units, int kRows, int kFirst, int kPairs>
HWY_INLINE void packed_pairs(const float* a, int64_t a_stride, const std::byte* group,
                             int64_t blocks, float (&sums)[kRows][cpu::kGroupRows]) {
  const FloatTag d;
  const ByteTag d8;
  const auto* bytes = reinterpret_cast<const uint8_t*>(group);
  FloatVec sum[kRows][2 * kPairs];
  for (auto& row : sum) {
    std::fill(row, row + 2 * kPairs, hn::Zero(d));
  }
  const uint8_t* dictionaries = bytes + 2 * kFirst * cpu::kDictionary;
  const uint8_t* pair = bytes + cpu::kGroupHeader + kFirst * cpu::kPairBytes;
  constexpr int64_t kHalf = cpu::kPackedBlock / 2;
  // Adds a block's products, those of a vector of lower bytes, with a row of the group.
  const auto add_row = [&](const float* units, const uint8_t* at, ByteVec choices, auto part,
                           auto pair_row, auto pair) HWY_ATTR {
    constexpr int kColumn = 2 * decltype(pair)::value + decltype(pair_row)::value;
    const auto low = hn::LoadU(d8, at + cpu::kLower + pair_row * cpu::kPackedBlock);
    // Loaded each time: the registers are the sums'.
    const auto dictionary = hn::LoadDup128(d8, dictionaries + kColumn * cpu::kDictionary);
    const auto high = upper_bytes(choices, dictionary, pair_row);
    const auto first = hn::InterleaveLower(d8, low, high);
    const auto second = hn::InterleaveUpper(d8, low, high);
    const auto add = [&](int r) HWY_ATTR {
      FloatVec& s = sum[r][kColumn];
      s = Units::add_products(units + r * a_stride, part / 2, first, s);
      s = Units::add_products(units + r * a_stride, kHalf + part / 2, second, s);
    };
    [&]<int... kRow>(std::integer_sequence<int, kRow...>) HWY_ATTR { (add(kRow), ...); }
    (std::make_integer_sequence<int, kRows>());
  };
  const auto add_part = [&](const float* units, const uint8_t* pairs, auto part) HWY_ATTR {
    const auto add_pair = [&](auto pair) HWY_ATTR {
      const uint8_t* at = pairs + pair * cpu::kPairBytes + part;
      const auto choices = hn::LoadU(d8, at);
      add_row(units, at, choices, part, std::integral_constant<int, 0>(), pair);
      add_row(units, at, choices, part, std::integral_constant<int, 1>(), pair);
      asm volatile("");  // no load moves past it
    };
    [&]<int... kPair>(std::integer_sequence<int, kPair...>) HWY_ATTR {
      (add_pair(std::integral_constant<int, kPair>()), ...);
    }
    (std::make_integer_sequence<int, kPairs>());
  };
  // With no loop inside: the compiler would mix two blocks' loads (unroll and jam), and the
  // prefetchers follow lines in rising order, three times as fast.
  for (int64_t b = 0; b < blocks; ++b, pair += cpu::kBlockBytes) {
    const float* units = a + b * (cpu::kPackedBlock / Units::kElements);
    add_part(units, pair, std::integral_constant<int64_t, 0>());
    if constexpr (kByteLanes < cpu::kPackedBlock) {
      add_part(units, pair, std::integral_constant<int64_t, kByteLanes>());
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < 2 * kPairs; ++c) {
      sums[r][2 * kFirst + c] = hn::GetLane(hn::SumOfLanes(d, sum[r][c]));
    }
  }
}

template <class Units, int kRows, int kFirst, int kPairs>
HWY_INLINE void packed_pairs_from(const float* a, int64_t a_stride, const std::byte* group,
                                  int64_t blocks, float (&sums)[kRows][cpu::kGroupRows]) {
  packed_pairs<Units, kRows, kFirst, kPairs>(a, a_stride, group, blocks, sums);
  if constexpr (2 * (kFirst + kPairs) < cpu::kGroupRows) {
    packed_pairs_from<Units, kRows, kFirst + kPairs, kPairs>(a, a_stride, group, blocks, sums);
  }
}

/// sums[r][c] = a[r] . row c of the group, without listed weights; rows of `a` as
/// Units::split_row() leaves them. Every sum's order is the same whatever kRows is.
template <class Units, int kRows>
void packed_dots(const float* a, int64_t a_stride, const std::byte* group, int64_t blocks,
                 float (&sums)[kRows][cpu::kGroupRows]) {
  // Of one row all at once, of several as many as leave the sums in 16 registers: the first time a
  // group comes from memory, then from the cache.
  constexpr int kPairs = cpu::kGroupRows / (2 * kRows);
  packed_pairs_from<Units, kRows, 0, kPairs>(a, a_stride, group, blocks, sums);
}

#endif  // HWY_SCALAR

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard

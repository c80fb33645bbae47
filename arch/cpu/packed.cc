#include "arch/cpu/packed.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "arch/cpu/dispatch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "arch/cpu/packed.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

using cpu::kDictionary;
using cpu::kPackedBlock;

/// Splits 64 weights: lower bytes to `low`, to `choices` the upper bytes' places in the dictionary
/// (0 to 15). Returns whether all upper bytes are in it; those that are not get zeros.
#if HWY_TARGET == HWY_SCALAR
inline bool pack_block(const bf16* from, const uint8_t* dictionary, uint8_t* low,
                       uint8_t* choices) {
  bool all = true;
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    const auto upper = static_cast<uint8_t>(from[i].bits >> 8);
    uint8_t choice = kDictionary - 1;  // of equal ones the last
    while (choice > 0 && dictionary[choice] != upper) {
      --choice;
    }
    const bool in = dictionary[choice] == upper;
    const int64_t place = cpu::packed_place(i);
    low[place] = in ? static_cast<uint8_t>(from[i].bits) : 0;
    choices[place] = choice;
    all = all && in;
  }
  return all;
}
#else
inline bool pack_block(const bf16* from, const uint8_t* dictionary, uint8_t* low,
                       uint8_t* choices) {
  const hn::ScalableTag<uint8_t> d;
  const hn::Repartition<uint64_t, decltype(d)> d64;
  constexpr int64_t kLanes = hn::MaxLanes(d);
  static_assert(kPackedBlock % kLanes == 0);
  // Lower bytes of a 128-bit lane's eight weights first, then their upper bytes.
  alignas(16) static constexpr uint8_t kSplit[] = {0, 2, 4, 6, 8, 10, 12, 14,
                                                   1, 3, 5, 7, 9, 11, 13, 15};
  const auto split = hn::LoadDup128(d, kSplit);
  const auto* bytes = reinterpret_cast<const uint8_t*>(from);
  bool all = true;
  for (int64_t part = 0; part < kPackedBlock; part += kLanes) {
    const auto halves = [&](int64_t at) HWY_ATTR {
      return hn::BitCast(d64, hn::TableLookupBytes(hn::LoadU(d, bytes + at), split));
    };
    const auto first = halves(part);
    const auto second = halves(kPackedBlock + part);
    const auto lower = hn::BitCast(d, hn::InterleaveLower(d64, first, second));
    const auto upper = hn::BitCast(d, hn::InterleaveUpper(d64, first, second));
    auto choice = hn::Zero(d);
    for (int i = 1; i < kDictionary; ++i) {
      choice = hn::IfThenElse(hn::Eq(upper, hn::Set(d, dictionary[i])),
                              hn::Set(d, static_cast<uint8_t>(i)), choice);
    }
    const auto in = hn::Eq(hn::TableLookupBytes(hn::LoadDup128(d, dictionary), choice), upper);
    all = all && hn::AllTrue(d, in);
    hn::StoreU(hn::IfThenElseZero(in, lower), d, low + part);
    hn::StoreU(choice, d, choices + part);
  }
  return all;
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {
namespace {

using Dictionary = std::array<uint8_t, kDictionary>;

/// Zero and the most frequent upper bytes.
Dictionary make_dictionary(const bf16* row, int64_t k) {
  // Eight counts of each byte: neighbours are often alike, and a count takes a store's time.
  constexpr int64_t kCounts = 8;
  constexpr int64_t kWord = 4;  // weights
  std::array<std::array<uint32_t, 256>, kCounts> counts{};
  int64_t i = 0;
  for (; i + kCounts <= k; i += kCounts) {
    for (int64_t c = 0; c < kCounts; c += kWord) {
      uint64_t word = 0;
      std::memcpy(&word, row + i + c, sizeof(word));
      for (int64_t w = 0; w < kWord; ++w) {
        ++counts[c + w][word >> (16 * w + 8) & 255];
      }
    }
  }
  for (; i < k; ++i) {
    ++counts[0][row[i].bits >> 8];
  }
  for (int64_t c = 1; c < kCounts; ++c) {
    for (size_t value = 0; value < 256; ++value) {
      counts[0][value] += counts[c][value];
    }
  }
  struct Count {
    uint32_t count;
    uint8_t value;
  };
  std::array<Count, 256> found;
  int64_t values = 0;
  for (size_t value = 1; value < 256; ++value) {
    if (counts[0][value] > 0) {
      found[values++] = {counts[0][value], static_cast<uint8_t>(value)};
    }
  }
  const int64_t kept = std::min(values, kDictionary - 1);
  std::partial_sort(found.begin(), found.begin() + kept, found.begin() + values,
                    [](const Count& a, const Count& b) {
                      return a.count != b.count ? a.count > b.count : a.value < b.value;
                    });
  Dictionary dictionary{};
  for (int64_t v = 0; v < kept; ++v) {
    dictionary[v + 1] = found[v].value;
  }
  return dictionary;
}

}  // namespace

void pack_group(const bf16* const (&rows)[kGroupRows], int64_t k, std::byte* group,
                std::vector<ListedWeight>& listed) {
  const auto pack = WEFT_CPU_DISPATCH(pack_block);
  auto* out = reinterpret_cast<uint8_t*>(group);
  Dictionary dictionaries[kGroupRows] = {};
  for (int64_t r = 0; r < kGroupRows; ++r) {
    if (rows[r] != nullptr) {
      dictionaries[r] = make_dictionary(rows[r], k);
    }
    std::copy(dictionaries[r].begin(), dictionaries[r].end(), out + r * kDictionary);
  }
  out += kGroupHeader;
  for (int64_t first = 0; first < k; first += kPackedBlock) {
    const int64_t count = std::min(kPackedBlock, k - first);
    for (int64_t r = 0; r < kGroupRows; ++r) {
      bf16 padded[kPackedBlock] = {};
      const bf16* from = padded;
      if (rows[r] != nullptr && count == kPackedBlock) {
        from = rows[r] + first;
      } else if (rows[r] != nullptr) {
        std::memcpy(padded, rows[r] + first, count * sizeof(bf16));
      }
      uint8_t* pair = out + r / 2 * kPairBytes;
      uint8_t choices[kPackedBlock];
      const Dictionary& dictionary = dictionaries[r];
      if (!pack(from, dictionary.data(), pair + kLower + r % 2 * kPackedBlock, choices)) {
        for (int64_t i = 0; i < count; ++i) {
          const auto upper = static_cast<uint8_t>(from[i].bits >> 8);
          if (std::find(dictionary.begin(), dictionary.end(), upper) == dictionary.end()) {
            listed.push_back({static_cast<int32_t>(first + i), static_cast<uint16_t>(r), from[i]});
          }
        }
      }
      for (int64_t i = 0; i < kPackedBlock; ++i) {
        pair[i] = r % 2 == 0 ? choices[i] : static_cast<uint8_t>(pair[i] | choices[i] << 4);
      }
    }
    out += kBlockBytes;
  }
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

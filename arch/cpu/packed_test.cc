#include "arch/cpu/packed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "arch/cpu/dispatch.h"

namespace weft::cpu {
namespace {

/// One group, packed with every instruction set: the same bytes with each.
class Group {
 public:
  explicit Group(const std::vector<std::vector<bf16>>& rows) : k_(std::ssize(rows.front())) {
    const bf16* pointers[kGroupRows] = {};
    for (size_t r = 0; r < rows.size(); ++r) {
      pointers[r] = rows[r].data();
    }
    for (int i = static_cast<int>(detected_isa()); i >= 0; --i) {
      force_isa(static_cast<Isa>(i));
      std::vector<std::byte> bytes(packed_group_bytes(k_), std::byte{0xa5});
      std::vector<ListedWeight> listed;
      pack_group(pointers, k_, bytes.data(), listed);
      EXPECT_TRUE(bytes_.empty() || bytes == bytes_) << i;
      bytes_ = bytes;
      listed_ = listed;
    }
    force_isa(std::nullopt);
  }
  /// A row's weights by the definition of the format.
  std::vector<bf16> row(int64_t r) const {
    const auto* bytes = reinterpret_cast<const uint8_t*>(bytes_.data());
    std::vector<bf16> weights(static_cast<size_t>(k_));
    for (int64_t i = 0; i < k_; ++i) {
      const uint8_t* pair = bytes + kGroupHeader + i / kPackedBlock * kBlockBytes +
                            r / 2 * kPairBytes + packed_place(i % kPackedBlock);
      const int choice = r % 2 == 0 ? pair[0] & 15 : pair[0] >> 4;
      const int upper = bytes[r * kDictionary + choice];
      const int lower = pair[kLower + r % 2 * kPackedBlock];
      weights[static_cast<size_t>(i)].bits = static_cast<uint16_t>(upper << 8 | lower);
    }
    for (const ListedWeight& weight : listed_) {
      if (weight.row == r) {
        weights[static_cast<size_t>(weight.element)] = weight.value;
      }
    }
    return weights;
  }
  const std::vector<ListedWeight>& listed() const { return listed_; }

 private:
  int64_t k_;
  std::vector<std::byte> bytes_;
  std::vector<ListedWeight> listed_;
};

void expect_back(const Group& group, const std::vector<std::vector<bf16>>& rows) {
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<bf16> back = group.row(static_cast<int64_t>(r));
    EXPECT_EQ(std::memcmp(back.data(), rows[r].data(), back.size() * sizeof(bf16)), 0) << r;
  }
}

TEST(Packed, PlacesAreAPermutation) {
  std::set<int64_t> places;
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    places.insert(packed_place(i));
  }
  EXPECT_EQ(places.size(), kPackedBlock);
  EXPECT_EQ(*places.rbegin(), kPackedBlock - 1);
}

/// Every bf16, NaN, infinities and subnormals among them: in the first row alone, in the others a
/// quarter each of those with an upper byte, beside more of fifteen other upper bytes.
TEST(Packed, EveryWeightComesBack) {
  constexpr int kOthers = 15;
  for (int upper = 0; upper < 256; ++upper) {
    const auto weight = [](int high, int low) {
      return bf16{static_cast<uint16_t>((high & 255) << 8 | low)};
    };
    std::vector<std::vector<bf16>> rows(5);
    for (int i = 0; i < 256; ++i) {
      rows[0].push_back(weight(upper, i));
      rows[1 + i / 64].push_back(weight(upper, i));
    }
    for (int r = 1; r < 5; ++r) {
      for (int i = 0; i < 65 * kOthers; ++i) {
        rows[r].push_back(weight(upper + 1 + i % kOthers, i & 255));
      }
      ASSERT_GE(rows[r].size(), rows[0].size());
      rows[0].resize(rows[r].size());
    }
    const Group group(rows);
    EXPECT_EQ(group.listed().size(), upper == 0 || upper > 255 - kOthers ? 0 : 256) << upper;
    expect_back(group, rows);
  }
}

/// A dictionary holds every run of 15 upper bytes, wherever it begins, and zero.
TEST(Packed, FifteenUpperBytesAndZeroAreNotListed) {
  for (int first = 0; first < 256; ++first) {
    std::vector<bf16> row;
    for (int i = 0; i < 300; ++i) {
      const int upper = i % 16 == 0 ? 0 : (first + i % 16) % 256;
      row.push_back({static_cast<uint16_t>(upper << 8 | (7 * i & 255))});
    }
    const Group group({row});
    EXPECT_TRUE(group.listed().empty()) << first;
    expect_back(group, {row});
  }
}

/// The rarest are listed, in their rows' order, and only they.
TEST(Packed, WhatIsRareIsListed) {
  std::vector<bf16> row;
  for (int i = 0; i < 640; ++i) {
    row.push_back({static_cast<uint16_t>((1 + i % 15) << 8 | (i & 255))});
  }
  row[3].bits = 0x8001;
  row[600].bits = 0x7fc0;
  const Group group({row, row});
  ASSERT_EQ(group.listed().size(), 4u);
  for (const ListedWeight& weight : group.listed()) {
    EXPECT_EQ(weight.value.bits, row[static_cast<size_t>(weight.element)].bits);
    EXPECT_TRUE(weight.element == 3 || weight.element == 600);
  }
  expect_back(group, {row, row});
}

/// Normally distributed weights list about one in ten thousand, of any length of row.
TEST(Packed, FewOfNormalWeightsAreListed) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0, 0.02F);
  size_t listed = 0;
  size_t weights = 0;
  for (const int k : {1, 63, 64, 65, 2048, 8192}) {
    std::vector<std::vector<bf16>> rows(kGroupRows, std::vector<bf16>(static_cast<size_t>(k)));
    for (auto& row : rows) {
      for (bf16& weight : row) {
        weight = to_bf16(normal(random));
      }
    }
    const Group group(rows);
    expect_back(group, rows);
    listed += group.listed().size();
    weights += rows.size() * static_cast<size_t>(k);
  }
  EXPECT_LT(static_cast<double>(listed), 3e-4 * static_cast<double>(weights));
}

}  // namespace
}  // namespace weft::cpu

#include "ops/linear/forms/mxfp4/words.h"

#include <gtest/gtest.h>

#include <random>

#include "base/fp8.h"
#include "base/number.h"

namespace weft::mx_words {
namespace {

TEST(MxWords, EveryCodeComesBackInEveryPlace) {
  std::mt19937 random(7);
  for (uint32_t code = 0; code < 16; ++code) {
    for (int place = 0; place < 8; ++place) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const uint32_t other = i == place ? code : random() & 15;
        word |= mx_placed(other, i / 2) << i % 2 * 16;
      }
      const bf16 half{static_cast<uint16_t>(mx_pair(word, place / 2) >> place % 2 * 16)};
      EXPECT_EQ(to_float(half) * 0x1p126F, to_float(e2m1{static_cast<uint8_t>(code)}));
    }
  }
}

}  // namespace
}  // namespace weft::mx_words

// What the tests of attention over latent rows share.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/fp8.h"
#include "ops/mla/op.h"

namespace weft {

/// Heads of 128 + 2 elements whose matrix is codes with scales of 128 x 128.
struct CodedHeads {
  CodedHeads(int64_t heads, int64_t rank, std::mt19937& random)
      : codes(static_cast<size_t>(heads * 256 * rank)), of{heads, rank, 128, 2, 128, {}, {}} {
    for (e4m3fn& code : codes) {
      code.bits = static_cast<uint8_t>(random() % 0x70 + (random() % 2) * 0x80);
    }
    for (int64_t i = 0; i < 2 * heads * 2; ++i) {
      scales.push_back(std::exp2(-10.0F + static_cast<float>(i % 3)));
    }
    of.w = {codes.data(), DType::e4m3fn, rank};
    of.scales = {Scaling::block, scales.data(), 2};
  }
  CodedHeads(const CodedHeads&) = delete;
  CodedHeads& operator=(const CodedHeads&) = delete;

  std::vector<e4m3fn> codes;
  std::vector<float> scales;
  LatentHeads of;
};

}  // namespace weft

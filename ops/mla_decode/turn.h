// RoPE as LatentCache::angles says, on the host: of a key's last 64 elements, or a query's.
#pragma once

#include <cstdint>

#include "ops/mla_decode/op.h"

namespace weft {
namespace reference {
/// Without `rounded` as the same formula gives it in double.
void turn_halves(const void* angles, int64_t position, bool rounded, double* x);
}  // namespace reference

namespace cpu {
inline void turn_halves(const void* angles, int64_t position, float* x) {
  constexpr int64_t kHalf = kLatentTurned / 2;
  const bf16* cosines = static_cast<const bf16*>(angles) + position * kLatentTurned;
  const auto rounded = [](float y) { return to_float(to_bf16(y)); };
  for (int64_t i = 0; i < kHalf; ++i) {
    const float cosine = to_float(cosines[i]);
    const float sine = to_float(cosines[kHalf + i]);
    const float a = x[i];
    const float b = x[i + kHalf];
    x[i] = rounded(rounded(a * cosine) - rounded(b * sine));
    x[i + kHalf] = rounded(rounded(b * cosine) + rounded(a * sine));
  }
}
}  // namespace cpu
}  // namespace weft

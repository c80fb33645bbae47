// token_logprob on AMD: what the host hands to the kernel of cdna.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

/// A workgroup does row workgroup_index().
struct TokenLogprobParams {
  const float* logits;
  const int32_t* tokens;
  float* out;
  int64_t stride;  ///< elements
  int32_t columns;
};

inline constexpr int kTokenLogprobThreads = 512;

}  // namespace weft::cdna

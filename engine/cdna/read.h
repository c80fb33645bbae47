// What the host hands to the kernel of read.hip.
#pragma once

#include <cstdint>

namespace weft::cdna {

inline constexpr int kReadThreads = 512;
/// What a workgroup reads in one turn: 8 loads of 16 bytes a thread.
inline constexpr int64_t kReadBytes = int64_t{kReadThreads} * 8 * 16;

/// Workgroup i reads `each` bytes, less than 2^32, from i * each on.
struct ReadParams {
  const char* data;
  int64_t bytes;
  int64_t each;
  uint32_t* out;  ///< one word, written if what was read adds up to `wanted`
  uint32_t wanted;
};

}  // namespace weft::cdna

// Prompts that tests feed to a device and to the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/sample/op.h"

namespace weft {

/// `length` ids below `vocabulary`, the same ones for the same length.
inline std::vector<int32_t> test_prompt(int64_t length, int64_t vocabulary) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < length; ++i) {
    ids.push_back(
        static_cast<int32_t>(uniform_draw(static_cast<uint64_t>(length), static_cast<uint64_t>(i)) *
                             static_cast<float>(vocabulary)));
  }
  return ids;
}

}  // namespace weft

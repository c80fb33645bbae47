// What a CUtensorMap holds here: NVIDIA does not say what its driver writes there, so the simulated
// driver (runtime.cc) writes this, and the interpreter's copies of tiles read it. CUDA driver API,
// "Tensor Map Object Management"; the swizzles: PTX ISA 9.0, "Tensor swizzling modes".
#pragma once

#include <array>
#include <cstdint>

namespace weft::ptx {

/// Dimension 0 is the contiguous one.
struct TensorMap {
  static constexpr uint32_t kMark = 0x70616d74;  // what is not one of these has something else

  uint32_t mark = kMark;
  uint8_t dimensions = 0;     ///< 1 to 3
  uint8_t element_bytes = 0;  ///< 1, 2, 4 or 8
  uint8_t swizzle_bytes = 0;  ///< 0: none; 32, 64 or 128
  uint8_t reserved = 0;
  uint64_t address = 0;
  std::array<uint64_t, 3> size = {1, 1, 1};    ///< in elements
  std::array<uint64_t, 3> stride = {0, 0, 0};  ///< in bytes; of dimension 0 an element's
  std::array<uint32_t, 3> box = {1, 1, 1};     ///< in elements
};
static_assert(sizeof(TensorMap) <= 128);

}  // namespace weft::ptx

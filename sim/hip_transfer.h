// Copies and fills of the simulated HIP runtime: checked when they are asked for, done in a
// stream's order or by a node of a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "sim/hip_abi.h"

namespace weft::sim {

/// Changes memory, or returns why it cannot, as where some of it was freed meanwhile.
using Transfer = std::function<hip::hipError_t()>;

/// Where the rows of a box of bytes begin: `pitch` bytes after each other, `slice` bytes after
/// those of the slice before.
struct Rows {
  std::byte* begin = nullptr;
  size_t pitch = 0;
  size_t slice = 0;
};

/// Makes a copy of a box. Errors: hipErrorInvalidMemcpyDirection; hipErrorInvalidValue where rows
/// overlap or lie outside of an allocation in which they have to be.
hip::hipError_t make_copy(const Rows& to, const Rows& from, const hip::hipExtent& extent,
                          hip::hipMemcpyKind kind, Transfer& transfer);

/// Makes a fill of a box in an allocation with a value of 1, 2 or 4 bytes. `extent`: in bytes.
/// Errors: hipErrorInvalidValue.
hip::hipError_t make_fill(const Rows& to, const hip::hipExtent& extent, uint32_t value,
                          size_t value_bytes, Transfer& transfer);

/// As a node of a graph, or a stream, does it: an error is kept for who next waits for the device.
std::function<void()> done_later(Transfer transfer, int device);

}  // namespace weft::sim

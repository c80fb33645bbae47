// What programs hand to hipModuleLoadData: a code object, or a bundle of several for different
// targets (Clang, "Offload Bundler"), compressed or not. HIP passes an address without a size, so
// the size is read from the image itself. Nothing in it is trusted.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "sim/target.h"

namespace weft::sim {

/// Of the bytes that can be read from an image's address on, those that its headers say are its
/// own. What is no known kind of image has none.
std::span<const std::byte> image_at(std::span<const std::byte> readable);

/// The bytes from an address on that this process may read, up to the end of its mapping and of
/// those that follow without a gap; none where nothing is mapped.
std::span<const std::byte> readable_from(const void* address);

/// The code object for a target in an image: the image itself, or an entry of a bundle. `storage`
/// keeps what was decompressed. Errors (input): a damaged bundle, or none of its entries is for the
/// target.
Result<std::span<const std::byte>> code_object_in(std::span<const std::byte> image, Target target,
                                                  std::vector<std::byte>& storage);

}  // namespace weft::sim

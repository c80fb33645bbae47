// The AMD code objects that this build carries (cmake/Cdna.cmake): one per operation and target.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "arch/cdna/target.h"

namespace weft::cdna {

struct EmbeddedCode {
  std::string_view operation;  ///< the folder of ops/, or the file of engine/cdna/, it comes from
  Target target;
  std::span<const std::byte> bytes;  ///< an ELF file, aligned to 4096
};

/// In the order of operations; empty when the build had no clang-22.
std::span<const EmbeddedCode> embedded_code();

/// nullptr: this build carries no code of that operation for that target.
const EmbeddedCode* embedded_code(std::string_view operation, Target target);

}  // namespace weft::cdna

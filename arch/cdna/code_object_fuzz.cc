// Any bytes as an AMD code object: parsed or refused, and what is parsed lies inside the bytes.
#include <cstdint>
#include <cstdlib>
#include <span>

#include "arch/cdna/code_object.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  const auto code = weft::cdna::CodeObject::parse(bytes, "fuzz");
  if (!code.ok()) {
    return 0;
  }
  for (const weft::cdna::Segment& segment : code->segments()) {
    if (segment.bytes.size() > segment.memory_bytes ||
        segment.address + segment.memory_bytes > code->image_bytes()) {
      std::abort();
    }
  }
  for (const weft::cdna::Kernel& kernel : code->kernels()) {
    if (kernel.entry >= code->image_bytes() || code->kernel(kernel.name) == nullptr) {
      std::abort();
    }
  }
  return 0;
}

// Any bytes as a safetensors file: parsed or refused, and what is parsed lies inside the file.
#include <cstdint>
#include <cstdlib>

#include "model/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span file(reinterpret_cast<const std::byte*>(data), size);
  const auto entries = weft::parse_safetensors(file, "fuzz.safetensors");
  if (!entries.ok()) {
    return 0;
  }
  std::string header = weft::make_safetensors_header(*entries);
  uint64_t end = size;
  for (auto entry = entries->rbegin(); entry != entries->rend(); ++entry) {
    if (entry->offset + entry->bytes != end) {
      std::abort();
    }
    end = entry->offset;
  }
  // What was read can be written and read again.
  header.resize(header.size() + size - end);
  const auto again = weft::parse_safetensors(std::as_bytes(std::span(header)), "again");
  if (!again.ok() || again->size() != entries->size()) {
    std::abort();
  }
  return 0;
}

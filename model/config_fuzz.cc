// Any bytes as config.json: parsed or refused, and what is parsed can be written and read again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/config.h"
#include "model/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = weft::parse_config(text, "config.json");
  if (!config.ok()) {
    return 0;
  }
  const auto again = weft::parse_config(weft::write_config(*config), "config.json");
  if (!again.ok() || *again != *config) {
    std::abort();
  }
  // Sizes of all tensors and their sum are positive: nothing has overflowed.
  int64_t bytes = 0;
  for (const weft::TensorSpec& spec : weft::tensor_specs(*config)) {
    const int64_t more = spec.elements() * static_cast<int64_t>(sizeof(float));
    if (more <= 0 || __builtin_add_overflow(bytes, more, &bytes)) {
      std::abort();
    }
  }
  return 0;
}

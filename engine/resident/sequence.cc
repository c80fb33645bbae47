#include "engine/resident/sequence.h"

#include <fmt/format.h>

namespace weft::resident {

std::vector<uint32_t> seen_of(std::span<const int32_t> ids, int64_t vocabulary) {
  std::vector<uint32_t> seen(static_cast<size_t>(seen_words(vocabulary)));
  for (const int32_t id : ids) {
    seen[static_cast<size_t>(id / 32)] |= 1u << (id % 32);
  }
  return seen;
}

Error no_prefill_to_lengthen(const ModelConfig& config, int64_t length) {
  return usage_error(fmt::format(
      "{} tokens are more than {} was trained with at first, and prompts are fed token by token: "
      "use --device cpu",
      length, config.name));
}

}  // namespace weft::resident

// What runners of resident kernels do alike for a sequence when its text is fed.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/config.h"

namespace weft::resident {

/// Words of Launch::seen for a sequence: a bit for each token of the vocabulary.
constexpr int64_t seen_words(int64_t vocabulary) { return (vocabulary + 31) / 32; }
/// Those words, [seen_words()], after the tokens `ids`.
std::vector<uint32_t> seen_of(std::span<const int32_t> ids, int64_t vocabulary);

/// Of a sequence that gets so long that LongRoPE wants its tokens fed anew, where no kernels of
/// many rows could.
Error no_prefill_to_lengthen(const ModelConfig& config, int64_t length);

}  // namespace weft::resident

// The verifier of codes (engine/resident/verify_codes.h), for streams that are packed as Hopper's
// kernel takes them.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "engine/hopper/lower.h"
#include "engine/resident/verify_codes.h"
#include "program/program.h"

namespace weft::hopper {

/// Holds what resident::verify_codes() does, and that no page is larger than the ring's.
Status verify_codes(const Lowered& lowered, const Program& program, NextToken next,
                    int64_t position);

}  // namespace weft::hopper

// moe for a chunk's rows on AMD: the draw, and an expert's products for all rows that drew it, by
// the matrix units in the rows' format.
#pragma once

#include <cstdint>
#include <string_view>

#include "arch/device.h"
#include "ops/moe/prefill.h"

namespace weft::cdna {

/// Why such operands cannot be taken; empty: they can. All pointers must be aligned to 16
/// bytes besides.
std::string_view refuse_prefill_route(const RouteArgs& args);
std::string_view refuse_prefill_experts(const PrefillExpertsUp& args);
std::string_view refuse_prefill_experts(const PrefillExpertsDown& args);

/// Rows [0, rows) of args. Rows in f16 want weights in f16, and are taken as if many drew an
/// expert. Slots are summed in order, in f32. Errors: device (a launch failed).
Status prefill_route(const RouteArgs& args, int64_t rows, Stream stream);
/// drawn.order: of each expert where its slots begin, one number more, then the slots.
Status prefill_sort(const PrefillDraw& drawn, int64_t rows, Stream stream);
Status prefill_experts_up(const PrefillExpertsUp& args, int64_t rows, Stream stream);
Status prefill_experts_down(const PrefillExpertsDown& args, int64_t rows, Stream stream);

}  // namespace weft::cdna

// moe for a chunk's rows on Hopper: the draw, and an expert's products for all rows that drew it.
// Rows in bf16 meet weights on the tensor cores, rows in f32 on the CUDA cores.
// Weights in MXFP4 stay codes until a lane has them in registers.
#pragma once

#include <cstdint>
#include <string_view>

#include "arch/device.h"
#include "ops/moe/prefill.h"

namespace weft::hopper {

inline constexpr int kMostRouteGroups = 32;

/// Why the products cannot take such operands; empty: they can. All pointers must be aligned to 16
/// bytes besides.
std::string_view refuse_prefill_route(const RouteArgs& args);
std::string_view refuse_prefill_experts(const PrefillExpertsUp& args);
std::string_view refuse_prefill_experts(const PrefillExpertsDown& args);

/// Rows [0, rows) of args. Slots are summed in order, in f32. Errors: device (a launch failed).
Status prefill_route(const RouteArgs& args, int64_t rows, Stream stream);
/// drawn.order, of `rows` rows. `overlaps`: the kernel waits for the one before by itself.
Status prefill_sort(const PrefillDraw& drawn, int64_t rows, bool overlaps, Stream stream);
Status prefill_experts_up(const PrefillExpertsUp& args, int64_t rows, Stream stream);
Status prefill_experts_down(const PrefillExpertsDown& args, int64_t rows, Stream stream);

}  // namespace weft::hopper

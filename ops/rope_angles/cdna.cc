// rope_angles on AMD, the host's side.
#include "ops/rope_angles/cdna.h"

#include "ops/cdna_launch.h"
#include "ops/rope_angles/cdna_prefill.h"

namespace weft::cdna {

Status prefill_rope_angles(const RopeAnglesArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places) {
  constexpr int kThreads = 256;
  const int64_t count = rows * args.half;
  const RopeAnglesParams params{.positions = places.positions,
                                .sequences = places.sequences,
                                .inverse_frequencies = args.inverse_frequencies,
                                .cosines = args.cosines,
                                .sines = args.sines,
                                .frequency_stride = places.frequency_stride,
                                .first = static_cast<int32_t>(first),
                                .half = static_cast<int32_t>(args.half),
                                .count = static_cast<int32_t>(count),
                                .scale = args.scale};
  return hip_device(stream).launch({.operation = "rope_angles",
                                    .kernel = "rope_angles",
                                    .groups_x = static_cast<uint32_t>(ceil_div(count, kThreads)),
                                    .threads = kThreads},
                                   params, stream.native);
}

}  // namespace weft::cdna

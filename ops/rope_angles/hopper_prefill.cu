// rope_angles on sm_90a: in double and rounded once, as the CPU does it. Once a chunk.
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/rope_angles/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    rope_angles_rows(const __grid_constant__ RopeAnglesArgs args, int64_t count, int first,
                     const RowPlaces places) {
  begin_in_turn();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < count) {
    const int64_t row = i / args.half;
    const bool placed = places.positions != nullptr;
    const auto position = static_cast<float>(placed ? places.positions[row] : first + row);
    const int64_t own = placed ? places.sequences[row] * places.frequency_stride : 0;
    const double angle = position * args.inverse_frequencies[own + i % args.half];
    args.cosines[i] = static_cast<float>(cos(angle)) * args.scale;
    args.sines[i] = static_cast<float>(sin(angle)) * args.scale;
  }
}

}  // namespace

Status prefill_rope_angles(const RopeAnglesArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places) {
  const int64_t count = rows * args.half;
  return launch_kernel(rope_angles_rows,
                       {.blocks = static_cast<int>((count + kThreads - 1) / kThreads),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args, count, static_cast<int>(first), places);
}

}  // namespace weft::hopper

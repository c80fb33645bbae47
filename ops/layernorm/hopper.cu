// layernorm on sm_90a: a warp or a block a row, which is read three times, from L1 after the first:
// for the mean, for the sum of squared differences, which does not cancel, and for the result.
#include "arch/hopper/launch.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/hopper_rows.cuh"
#include "ops/layernorm/hopper_plan.h"

namespace weft::hopper {
namespace {

constexpr int kStep = 4;  ///< columns of a thread at a time

/// kLanes: threads that have a row, 32 or all of the block.
template <int kLanes, int kThreads, class W>
__global__ void __launch_bounds__(kThreads)
    layernorm_rows(const __grid_constant__ LayerNormArgs args) {
  begin_in_turn();
  __shared__ RowSlots<float> slots[2];
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (row >= args.rows) {
    return;  // whole warps; with a block a row there is none such
  }
  const float* x = static_cast<const float*>(args.x.data) + row * args.x.stride;
  const int begin = static_cast<int>(threadIdx.x) % kLanes * kStep;
  const auto columns = static_cast<int>(args.columns);
  // The mean of f(x) over the row.
  const auto mean_of = [&](RowSlots<float>& of_warps, const auto& f) {
    float sum = 0;
#pragma unroll 4
    for (int column = begin; column < columns; column += kLanes * kStep) {
      const float4 v = read_x4(x + column);
      sum += (f(v.x) + f(v.y)) + (f(v.z) + f(v.w));
    }
    sum = kLanes == 32 ? over_lanes(sum, 32, Sum{}) : over_row(sum, 1, of_warps, Sum{});
    return sum / static_cast<float>(columns);
  };
  const float mean = mean_of(slots[0], [](float v) { return v; });
  const float variance = mean_of(slots[1], [&](float v) { return (v - mean) * (v - mean); });
  const float factor = 1 / sqrtf(variance + args.epsilon);

#pragma unroll 4
  for (int column = begin; column < columns; column += kLanes * kStep) {
    const float4 v = read_x4(x + column);
    const float4 w = read_x4(static_cast<const W*>(args.weight.data) + column);
    const float4 b = read_x4(static_cast<const W*>(args.bias.data) + column);
    store_x4(args.out.data, args.out.dtype, row * args.out.stride + column,
             {fmaf((v.x - mean) * factor, w.x, b.x), fmaf((v.y - mean) * factor, w.y, b.y),
              fmaf((v.z - mean) * factor, w.z, b.z), fmaf((v.w - mean) * factor, w.w, b.w)});
  }
}

size_t workspace(const LayerNormArgs& /*args*/, const Plan& /*plan*/) { return 0; }

Status launch(const LayerNormArgs& args, const Plan& plan, Stream stream) {
  constexpr int kThreads = 256;
  const bool warps = plan.kernel == "warp";
  const int64_t each = warps ? kThreads / 32 : 1;
  return with_weights(args.weight.dtype, [&](auto w) {
    using W = decltype(w);
    return launch_kernel(
        warps ? layernorm_rows<32, kThreads, W> : layernorm_rows<kThreads, kThreads, W>,
        {.blocks = static_cast<int>((args.rows + each - 1) / each),
         .threads = kThreads,
         .overlaps = true,
         .stream = static_cast<cudaStream_t>(stream.native)},
        args);
  });
}

}  // namespace

const Kernel<LayerNormArgs> layernorm = {plan_layernorm, layernorm_candidates, workspace, launch};

}  // namespace weft::hopper

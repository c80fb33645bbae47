// rmsnorm of many rows on sm_90a: a warp or a block a row, which is read twice (the second time
// from L1), 4 columns a thread and step.
#include "arch/hopper/launch.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/hopper_rows.cuh"
#include "ops/rmsnorm/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;            ///< columns of a thread at a time
constexpr int kWarpColumns = 1024;  ///< rows up to this get a warp each

template <int kLanes, class W>
__global__ void __launch_bounds__(kThreads)
    rmsnorm_rows(const __grid_constant__ RmsNormArgs args, int64_t rows) {
  begin_in_turn();
  __shared__ RowSlots<float> slots;
  const int64_t row = int64_t{blockIdx.x} * (kThreads / kLanes) + threadIdx.x / kLanes;
  if (row >= rows) {
    return;  // whole warps; with a block a row there is none such
  }
  const int64_t line = row / args.groups;
  const int64_t first = row % args.groups * args.columns;
  const float* x = static_cast<const float*>(args.x.data) + line * args.x.stride + first;
  const auto* weight = static_cast<const W*>(args.weight.data);
  const int begin = static_cast<int>(threadIdx.x) % kLanes * kStep;
  const int columns = static_cast<int>(args.columns);

  float sum = 0;
#pragma unroll 4
  for (int column = begin; column < columns; column += kLanes * kStep) {
    const float4 v = *reinterpret_cast<const float4*>(x + column);
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  sum = kLanes == 32 ? over_lanes(sum, 32, Sum{}) : over_row(sum, 1, slots, Sum{});
  const float factor = 1 / sqrtf(sum / static_cast<float>(columns) + args.epsilon);

#pragma unroll 4
  for (int column = begin; column < columns; column += kLanes * kStep) {
    float4 v = *reinterpret_cast<const float4*>(x + column);
    const float4 w = read_x4(weight + column);
    v.x *= factor * (args.weight_offset + w.x);
    v.y *= factor * (args.weight_offset + w.y);
    v.z *= factor * (args.weight_offset + w.z);
    v.w *= factor * (args.weight_offset + w.w);
    if (args.residual.data != nullptr) {
      auto* to = reinterpret_cast<float4*>(static_cast<float*>(args.residual.data) +
                                           line * args.residual.stride + first + column);
      const float4 old = *to;
      v = {old.x + args.scale * v.x, old.y + args.scale * v.y, old.z + args.scale * v.z,
           old.w + args.scale * v.w};
      *to = v;
    }
    if (args.out.data != nullptr) {
      store_x4(args.out.data, args.out.dtype, line * args.out.stride + first + column, v);
    }
  }
}

}  // namespace

std::string_view refuse_prefill_rmsnorm(const RmsNormArgs& args) {
  if (args.out.dtype == DType::f16) {
    return "results must be bf16 or f32";
  }
  if (args.columns % kStep != 0 || args.x.stride % kStep != 0 ||
      args.residual.stride % kStep != 0 || args.out.stride % kStep != 0) {
    return "columns and strides must be multiples of 4";
  }
  return {};
}

Status prefill_rmsnorm(const RmsNormArgs& args, int64_t rows, Stream stream) {
  const bool warps = args.columns <= kWarpColumns;
  const int64_t each = warps ? kThreads / 32 : 1;
  return with_weights(args.weight.dtype, [&](auto w) {
    using W = decltype(w);
    return launch_kernel(warps ? rmsnorm_rows<32, W> : rmsnorm_rows<kThreads, W>,
                         {.blocks = static_cast<int>((rows + each - 1) / each),
                          .threads = kThreads,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)},
                         args, rows);
  });
}

}  // namespace weft::hopper

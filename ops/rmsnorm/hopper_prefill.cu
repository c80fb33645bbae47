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

/// kOffset: there is a weight_offset.
template <int kLanes, class W, bool kOffset>
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
    float4 w = read_x4(weight + column);
    if constexpr (kOffset) {
      const float offset = args.weight_offset;
      w = {w.x + offset, w.y + offset, w.z + offset, w.w + offset};
    }
    v.x *= factor * w.x;
    v.y *= factor * w.y;
    v.z *= factor * w.z;
    v.w *= factor * w.w;
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

template <class W, bool kOffset>
auto kernel_for(bool warps) {
  return warps ? rmsnorm_rows<32, W, kOffset> : rmsnorm_rows<kThreads, W, kOffset>;
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
  return with_weights(args.weight.dtype, [&](auto w) {
    const bool warps = args.columns <= kWarpColumns;
    const int64_t each = warps ? kThreads / 32 : 1;
    const auto kernel =
        args.weight_offset != 0 ? kernel_for<decltype(w), true> : kernel_for<decltype(w), false>;
    return launch_kernel(kernel(warps),
                         {.blocks = static_cast<int>((rows + each - 1) / each),
                          .threads = kThreads,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)},
                         args, rows);
  });
}

}  // namespace weft::hopper

// embed for many rows on sm_90a: a block a row, 8 columns a thread and step.
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/embed/hopper_prefill.h"
#include "ops/hopper_rows.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) embed_rows(const __grid_constant__ EmbedArgs args) {
  begin_in_turn();
  const int64_t row = blockIdx.x;
  const auto* from =
      static_cast<const uint16_t*>(args.table.data) + args.tokens[row] * args.table.stride;
  auto* out = static_cast<float*>(args.out.data) + row * args.out.stride;
  auto* copy = static_cast<uint16_t*>(args.copy.data) + row * args.copy.stride;
  for (int column = static_cast<int>(threadIdx.x) * kChunk; column < args.columns;
       column += kThreads * kChunk) {
    float values[kChunk];
    unpack<__nv_bfloat162>(*reinterpret_cast<const uint4*>(from + column), values);
#pragma unroll
    for (float& value : values) {
      value *= args.scale;
    }
    auto* to = reinterpret_cast<float4*>(out + column);
    to[0] = {values[0], values[1], values[2], values[3]};
    to[1] = {values[4], values[5], values[6], values[7]};
    if (args.copy.data != nullptr) {
      *reinterpret_cast<uint4*>(copy + column) = pack<__nv_bfloat162>(values);
    }
  }
}

}  // namespace

Status prefill_embed(const EmbedArgs& args, int64_t rows, Stream stream) {
  return launch_kernel(embed_rows,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       args);
}

}  // namespace weft::hopper

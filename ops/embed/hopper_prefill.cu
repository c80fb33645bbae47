// embed for many rows on sm_90a: a block a row, 8 columns a thread and step.
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/embed/hopper_prefill.h"
#include "ops/hopper_f32.cuh"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 8;  ///< columns of a thread at a time

template <class W>
__global__ void __launch_bounds__(kThreads) embed_rows(const __grid_constant__ EmbedArgs args) {
  begin_in_turn();
  const int64_t row = blockIdx.x;
  const auto* from = static_cast<const W*>(args.table.data) + args.tokens[row] * args.table.stride;
  for (int column = static_cast<int>(threadIdx.x) * kStep; column < args.columns;
       column += kThreads * kStep) {
    float4 values[2];
    read_x8(from + column, values);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4& v = values[i];
      v = {v.x * args.scale, v.y * args.scale, v.z * args.scale, v.w * args.scale};
      store_x4(args.out.data, DType::f32, row * args.out.stride + column + 4 * i, v);
    }
    if (args.copy.data != nullptr) {
      store_bf16_x8(args.copy.data, row * args.copy.stride + column, values);
    }
  }
}

}  // namespace

std::string_view refuse_prefill_embed(const EmbedArgs& args) {
  return args.columns % kStep == 0 && args.table.stride % kStep == 0 && args.out.stride % 4 == 0 &&
                 args.copy.stride % kStep == 0
             ? ""
             : "columns and strides must be multiples of 8";
}

Status prefill_embed(const EmbedArgs& args, int64_t rows, Stream stream) {
  return with_weights(args.table.dtype, [&](auto w) {
    return launch_kernel(embed_rows<decltype(w)>,
                         {.blocks = static_cast<int>(rows),
                          .threads = kThreads,
                          .overlaps = true,
                          .stream = static_cast<cudaStream_t>(stream.native)},
                         args);
  });
}

}  // namespace weft::hopper

// Weights in e4m3fn become what chunks' products take.
#include "engine/cdna/widen.h"

#include "base/scaling.h"
#include "ops/cdna_numbers.hip.h"
#include "ops/linear/forms/fp8/cdna_numbers.hip.h"

using namespace weft::cdna;

namespace {

template <class T>
WEFT_GPU void widen(const WidenParams& p) {
  const int row = workgroup_index();
  const float* const scales = p.scales + int64_t{row / p.scale_rows} * p.row_stride;
  const Buffer codes(&at<char>(p.codes, int64_t{row} * p.columns), p.columns);
  const Numbers<T> out(&at<char>(p.out, int64_t{row} * p.columns * sizeof(T)), p.columns);
  for (int chunk = thread_index(); chunk < p.columns / kChunk; chunk += kWidenThreads) {
    const float scale = scales[chunk * kChunk / weft::kScaleBlock * p.block_stride];
    const u32x2 eight = codes.load_pair(chunk * kChunk);
    f32x8 numbers;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      numbers[i] = scale * e4m3_number(eight[i / 4] >> i % 4 * 8);
    }
    out.store(chunk, numbers);
  }
}

}  // namespace

#define KERNEL(type)                                                                           \
  extern "C" __global__ __launch_bounds__(kWidenThreads, 4) void widen_##type(WidenParams p) { \
    widen<type##_t>(p);                                                                        \
  }
KERNEL(bf16)
KERNEL(f32)

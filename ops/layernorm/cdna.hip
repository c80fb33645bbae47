// layernorm: a workgroup per row. Each thread keeps the two chunks of x that it has read in
// registers; rows longer than 16 columns a thread read the rest again, which the L2 cache still
// has. The variance is a sum of squared differences, which does not cancel.
#include "ops/layernorm/cdna.h"

#include "ops/cdna_numbers.hip.h"
#include "ops/cdna_rows.hip.h"

using namespace weft::cdna;

namespace {

template <class W, class Out>
WEFT_GPU void layernorm(const LayerNormParams& p) {
  __shared__ float partial[2][16];
  const int64_t row = workgroup_index();
  const Numbers<f32_t> x(&at<char>(p.x, row * p.x_stride), p.columns);
  const Numbers<W> weight(p.weight, p.columns);
  const Numbers<W> bias(p.bias, p.columns);
  const Numbers<Out> out(&at<char>(p.out, row * p.out_stride), p.columns);
  const RowPart part{thread_index(), p.waves * kWaveLanes, p.columns / kChunk};
  const auto load = [&](int chunk) { return x.load(chunk); };
  f32x8 kept[kChunksKept];
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    kept[i] = load(part.first + i * part.step);
  }
  // The mean of f(x) over the row.
  const auto mean_of = [&](float* of_waves, auto f) {
    float sum = 0;
    visit(part, kept, load, [&](int chunk, f32x8 v) {
      if (chunk < part.end) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          sum += f(v[i]);
        }
      }
    });
    return workgroup_reduce<Sum>(sum, of_waves, p.waves) / static_cast<float>(p.columns);
  };
  const float mean = mean_of(partial[0], [](float v) { return v; });
  const float variance = mean_of(partial[1], [mean](float v) { return (v - mean) * (v - mean); });
  const float factor = 1 / __builtin_sqrtf(variance + p.epsilon);
  visit(part, kept, load, [&](int chunk, f32x8 v) {
    out.store(chunk, (v - mean) * factor * weight.load(chunk) + bias.load(chunk));
  });
}

}  // namespace

#define KERNEL(weight, out)                                                                       \
  extern "C" __global__ __launch_bounds__(1024,                                                   \
                                          4) void layernorm_##weight##_##out(LayerNormParams p) { \
    layernorm<weight##_t, out##_t>(p);                                                            \
  }
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(bf16, f32)
KERNEL(bf16, bf16)
KERNEL(f16, f32)
KERNEL(f16, bf16)

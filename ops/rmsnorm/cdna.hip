// rmsnorm: a wave or a workgroup per row. Each thread keeps the two chunks of x that it has read in
// registers; rows longer than 16 columns a thread read the rest again, which the L2 cache still
// has.
#include "ops/rmsnorm/cdna.h"

#include "ops/cdna_numbers.hip.h"
#include "ops/cdna_rows.hip.h"

using namespace weft::cdna;

namespace {

template <bool kWaves, class W, class Out>
WEFT_GPU void rmsnorm(const RmsNormParams& p) {
  __shared__ float partial[16];
  const int row = kWaves ? workgroup_index() * p.waves + wave_index() : workgroup_index();
  if (row >= p.rows) {
    return;  // whole waves; of workgroups there is none such
  }
  const int64_t line = row / p.groups;
  const int64_t first = row % p.groups * p.columns;
  const Numbers<f32_t> x(&at<float>(p.x, line * p.x_stride) + first, p.columns);
  const Numbers<W> weight(p.weight, p.columns);
  const Numbers<f32_t> residual(&at<float>(p.residual, line * p.residual_stride) + first,
                                p.columns);
  const Numbers<Out> out(&at<Out>(p.out, line * p.out_stride) + first,
                         p.out != nullptr ? p.columns : 0);
  const RowPart part{kWaves ? lane_index() : thread_index(),
                     kWaves ? kWaveLanes : p.waves * kWaveLanes, p.columns / kChunk};
  const auto load = [&](int chunk) { return x.load(chunk); };
  f32x8 kept[kChunksKept];
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    kept[i] = load(part.first + i * part.step);
  }
  float sum = 0;
  visit(part, kept, load, [&](int /*chunk*/, f32x8 v) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      sum += v[i] * v[i];
    }
  });
  sum = kWaves ? wave_reduce<Sum>(sum) : workgroup_reduce<Sum>(sum, partial, p.waves);
  const float factor = 1 / __builtin_sqrtf(sum / static_cast<float>(p.columns) + p.epsilon);
  visit(part, kept, load, [&](int chunk, f32x8 v) {
    v *= factor * (weight.load(chunk) + p.weight_offset);
    if (p.residual != nullptr) {
      v = residual.load(chunk) + p.scale * v;
      residual.store(chunk, v);
    }
    out.store(chunk, v);
  });
}

}  // namespace

#define KERNEL(weight, out)                                                                        \
  extern "C" __global__ __launch_bounds__(256,                                                     \
                                          4) void rmsnorm_wave_##weight##_##out(RmsNormParams p) { \
    rmsnorm<true, weight##_t, out##_t>(p);                                                         \
  }                                                                                                \
  extern "C" __global__ __launch_bounds__(                                                         \
      1024, 4) void rmsnorm_group_##weight##_##out(RmsNormParams p) {                              \
    rmsnorm<false, weight##_t, out##_t>(p);                                                        \
  }
KERNEL(f32, f32)
KERNEL(f32, bf16)
KERNEL(bf16, f32)
KERNEL(bf16, bf16)
KERNEL(f16, f32)
KERNEL(f16, bf16)

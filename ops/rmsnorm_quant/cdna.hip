// rmsnorm_quant: a workgroup per row, one pass over memory. Each thread keeps the two chunks of h
// and of the weight that it has read in registers until the row's sum is known; rows longer than 16
// columns a thread read the rest again, which the L2 cache still has. The weight's loads start
// before the sum, so that nothing but the sum itself is waited for between reading and writing.
#include "ops/rmsnorm_quant/cdna.h"

#include "ops/cdna_rows.hip.h"

using namespace weft::cdna;

namespace {

/// h and the weight of eight columns.
template <class T>
struct Columns {
  Vector<T, kChunk> h;
  Vector<T, kChunk> weight;

  __device__ f32x8 normed(float inverse_rms) const {
    return __builtin_convertvector(h, f32x8) * inverse_rms * __builtin_convertvector(weight, f32x8);
  }
};

template <class T>
WEFT_GPU float sum_of_squares(Vector<T, kChunk> h) {
  const f32x8 x = __builtin_convertvector(h, f32x8);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    sum = __builtin_fmaf(x[i], x[i], sum);
  }
  return sum;
}

template <class T, RowScaling kScaling>
WEFT_GPU void rmsnorm_quant(const RmsNormQuantParams& p) {
  __shared__ float partial[2][16];
  const int64_t row = workgroup_index();
  const bool adds = p.residual != nullptr;
  const RowBuffer<T> x(&at<char>(p.x, row * p.x_stride), p.columns);
  // Where there is no residual this buffer is empty: it reads zeros, and what is written is
  // dropped.
  const RowBuffer<T> residual(adds ? &at<char>(p.residual, row * p.residual_stride) : nullptr,
                              adds ? p.columns : 0);
  const RowBuffer<T> weight(p.weight, p.columns);
  const RowPart part{thread_index(), p.waves * kWaveLanes, p.columns / kChunk};

  RowWriter<T, kScaling> writer(p.y, row, p.columns);

  struct Operands {
    Vector<T, kChunk> x;
    Vector<T, kChunk> residual;
    Vector<T, kChunk> weight;
  };
  const auto read = [&](int chunk) {
    return Operands{x.load(chunk), residual.load(chunk), weight.load(chunk)};
  };
  // h = x + residual, written back.
  const auto add = [&](int chunk, const Operands& operands) {
    const auto h = round_to<T>(__builtin_convertvector(operands.x, f32x8) +
                               __builtin_convertvector(operands.residual, f32x8));
    residual.store(chunk, h);
    return Columns<T>{.h = h, .weight = operands.weight};
  };
  Operands operands[kChunksKept];  // all on their way before the first is waited for
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    operands[i] = read(part.first + i * part.step);
  }
  Columns<T> kept[kChunksKept];
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    kept[i] = add(part.first + i * part.step, operands[i]);
  }
  const auto load = [&](int chunk) { return add(chunk, read(chunk)); };
  float sum = 0;
  visit(part, kept, load,
        [&](int, const Columns<T>& columns) { sum += sum_of_squares<T>(columns.h); });
  sum = workgroup_reduce<Sum>(sum, partial[0], p.waves);
  float inverse_rms =
      __builtin_amdgcn_rsqf(sum * __builtin_amdgcn_rcpf(static_cast<float>(p.columns)) + p.epsilon);
  if constexpr (kScaling != RowScaling::none) {
    inverse_rms = saturate_from_here(inverse_rms);
  }

  // v, from registers, or from where h lies now.
  const RowBuffer<T> h = adds ? residual : x;
  const auto again = [&](int chunk) {
    return Columns<T>{.h = h.load(chunk), .weight = weight.load(chunk)};
  };
  if constexpr (kScaling == RowScaling::row) {
    float amax = 0;
    visit(part, kept, again, [&](int, const Columns<T>& columns) {
      amax = Max::join(amax, largest_magnitude(columns.normed(inverse_rms)));
    });
    writer.set_amax(workgroup_reduce<Max>(amax, partial[1], p.waves));
  }
  visit(part, kept, again, [&](int chunk, const Columns<T>& columns) {
    writer.store(chunk, columns.normed(inverse_rms));
  });
}

}  // namespace

#define KERNEL(type, scaling)                                                \
  extern "C" __global__ __launch_bounds__(                                   \
      1024, 4) void rmsnorm_quant_##type##_##scaling(RmsNormQuantParams p) { \
    rmsnorm_quant<type##_t, RowScaling::scaling>(p);                         \
  }
KERNEL(bf16, none)
KERNEL(bf16, tensor)
KERNEL(bf16, row)
KERNEL(bf16, block)
KERNEL(f16, none)
KERNEL(f16, tensor)
KERNEL(f16, row)
KERNEL(f16, block)

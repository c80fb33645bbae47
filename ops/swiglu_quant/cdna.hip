// swiglu_quant: reads gate and up once, 16 bytes a thread and access. Where the scale does not
// depend on the whole row, a row is cut among workgroups, so that one token's row keeps many
// compute units busy; a scale of a row needs the row in one workgroup, which keeps v in registers.
#include "ops/swiglu_quant/cdna.h"

#include "ops/cdna_rows.hip.h"

using namespace weft::cdna;

namespace {

/// silu(gate) * up. `minus_log2e`: of the exponential's base.
WEFT_GPU f32x8 swiglu(f32x8 gate, f32x8 up, float minus_log2e) {
  f32x8 v;
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const float sigmoid = __builtin_amdgcn_rcpf(1 + __builtin_amdgcn_exp2f(gate[i] * minus_log2e));
    v[i] = gate[i] * sigmoid * up[i];
  }
  return v;
}

template <class T, RowScaling kScaling>
WEFT_GPU void swiglu_quant(const SwigluQuantParams& p) {
  const int64_t row = workgroup_index();
  const RowBuffer<T> gate(&at<char>(p.gate, row * p.gate_stride), p.columns);
  const RowBuffer<T> up(&at<char>(p.up, row * p.up_stride), p.columns);
  RowPart part{thread_index(), p.waves * kWaveLanes, p.columns / kChunk};
  if constexpr (kScaling != RowScaling::row) {
    part.first += static_cast<int>(__builtin_amdgcn_workgroup_id_y()) * kChunksKept * part.step;
  }
  float minus_log2e = -1.44269504f;
  if constexpr (kScaling != RowScaling::none) {
    minus_log2e = saturate_from_here(minus_log2e);
  }
  struct Columns {
    Vector<T, kChunk> gate;
    Vector<T, kChunk> up;
  };
  const auto load = [&](int chunk) { return Columns{gate.load(chunk), up.load(chunk)}; };
  const auto v = [&](const Columns& columns) {
    return swiglu(__builtin_convertvector(columns.gate, f32x8),
                  __builtin_convertvector(columns.up, f32x8), minus_log2e);
  };
  Columns kept[kChunksKept];
#pragma unroll
  for (int i = 0; i < kChunksKept; ++i) {
    kept[i] = load(part.first + i * part.step);
  }
  RowWriter<T, kScaling> writer(p.y, row, p.columns);
  if constexpr (kScaling == RowScaling::row) {
    __shared__ float partial[16];
    float amax = 0;
    visit(part, kept, load, [&](int, const Columns& columns) {
      amax = Max::join(amax, largest_magnitude(v(columns)));
    });
    writer.set_amax(workgroup_reduce<Max>(amax, partial, p.waves));
    visit(part, kept, load,
          [&](int chunk, const Columns& columns) { writer.store(chunk, v(columns)); });
  } else {
#pragma unroll
    for (int i = 0; i < kChunksKept; ++i) {
      writer.store(part.first + i * part.step, v(kept[i]));
    }
  }
}

}  // namespace

#define KERNEL(type, scaling)                                              \
  extern "C" __global__ __launch_bounds__(                                 \
      1024, 4) void swiglu_quant_##type##_##scaling(SwigluQuantParams p) { \
    swiglu_quant<type##_t, RowScaling::scaling>(p);                        \
  }
KERNEL(bf16, none)
KERNEL(bf16, tensor)
KERNEL(bf16, row)
KERNEL(bf16, block)
KERNEL(f16, none)
KERNEL(f16, tensor)
KERNEL(f16, row)
KERNEL(f16, block)

// rope_angles: in double and rounded once, as the CPU does it. Once a chunk.
#include "ops/rope_angles/cdna.h"

#include "arch/cdna/math.hip.h"

using namespace weft::cdna;

extern "C" __global__ __launch_bounds__(256, 4) void rope_angles(RopeAnglesParams p) {
  const int i = workgroup_index() * 256 + thread_index();
  if (i < p.count) {
    const int row = i / p.half;
    const auto position =
        static_cast<float>(p.positions != nullptr ? p.positions[row] : p.first + row);
    const int64_t own = p.sequences != nullptr ? p.sequences[row] * p.frequency_stride : 0;
    const float angle = position * p.inverse_frequencies[own + i % p.half];
    const SineCosine of = sine_cosine(static_cast<double>(angle));
    p.cosines[i] = static_cast<float>(of.cosine) * p.scale;
    p.sines[i] = static_cast<float>(of.sine) * p.scale;
  }
}

#include <cuda_bf16.h>

#include <algorithm>

#include "engine/hopper/weights_kernel.h"
#include "ops/linear/hopper_layout.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__global__ void fill_random_kernel(RandomTensor tensor, int64_t groups, uint2* out) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < groups;
       i += int64_t{kThreads} * gridDim.x) {
    const uint64_t bits = mix(tensor.key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15ull);
    uint32_t halves[4];
    for (int j = 0; j < 4; ++j) {
      const int integer = 2 * static_cast<int>(bits >> (16 * j) & 0xffff) - 65535;
      const float x = static_cast<float>(integer + tensor.offset) * tensor.scale;
      halves[j] = __bfloat16_as_ushort(__float2bfloat16_rn(x));
    }
    out[i] = {halves[0] | halves[1] << 16, halves[2] | halves[3] << 16};
  }
}

/// A block a unit.
__global__ void pack_kernel(const PackJob* jobs, const char* arena, char* packed) {
  const PackJob job = jobs[blockIdx.x];
  auto* out = reinterpret_cast<uint4*>(packed + job.destination);
  const auto quad = [&](int half, int row, int k) {  // four elements of a row
    return row < job.rows[half] && k < job.k
               ? __ldg(reinterpret_cast<const uint2*>(arena + job.source[half] +
                                                      (static_cast<int64_t>(row) * job.k + k) * 2))
               : uint2{};
  };
  const int columns = kUnitColumns / 2 >> job.fold;  // of a half
  const auto groups = static_cast<int>(folded_groups(groups_of(job.k), job.fold));
  for (int i = static_cast<int>(threadIdx.x); i < groups * kGroupBytes / 16; i += kThreads) {
    const int g = i % 32 / 4;
    const int group = (i / 64 << job.fold) + g / columns;
    const int k = group * kGroupK + i % 4 * 8 + i / 32 % 2 * 4;
    const uint2 upper = quad(0, g % columns, k);
    const uint2 lower = quad(1, g % columns, k);
    // The operand's registers: a.x, a.z of column g; a.y, a.w of column g + 8.
    out[i] = {upper.x, lower.x, upper.y, lower.y};
  }
}

}  // namespace

cudaError_t launch_fill_random(const RandomTensor& tensor, int64_t elements, void* out,
                               cudaStream_t stream) {
  const int64_t groups = elements / 4;
  const auto blocks =
      static_cast<unsigned>(std::min<int64_t>(65536, (groups + kThreads - 1) / kThreads));
  fill_random_kernel<<<blocks, kThreads, 0, stream>>>(tensor, groups, static_cast<uint2*>(out));
  return cudaGetLastError();
}

cudaError_t launch_pack(const PackJob* jobs, int64_t count, const char* arena, char* packed,
                        cudaStream_t stream) {
  pack_kernel<<<static_cast<unsigned>(count), kThreads, 0, stream>>>(jobs, arena, packed);
  return cudaGetLastError();
}

}  // namespace weft::hopper

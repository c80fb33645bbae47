// rope_append of many rows on sm_90a: a block a row. Four pairs of a head are a thread's step, or
// four elements that do not turn; the steps of a row's queries come first, then those of its keys,
// which copy the values too.
#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "ops/hopper_f32.cuh"
#include "ops/rope_append/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;

struct Params {
  RopeAppendArgs args;
  int64_t first = 0;
  RowPlaces places;
};

__device__ float4 load(const float* from) { return *reinterpret_cast<const float4*>(from); }

/// kWhole: all of a head turns.
template <bool kWhole>
__global__ void __launch_bounds__(kThreads) rope_append_rows(const __grid_constant__ Params p) {
  begin_in_turn();
  const RopeAppendArgs& args = p.args;
  const int64_t row = blockIdx.x;
  const int dim = static_cast<int>(args.head_dim);
  const int unturned = kWhole ? 0 : static_cast<int>(args.unturned);
  const int half = (dim - unturned) / 2;
  const int pair_steps = half / kStep;  // of a head
  const int steps = pair_steps + unturned / kStep;
  const int heads = static_cast<int>(args.query_heads + args.kv_heads);
  const float* cosines = args.cosines + row * half;
  const float* sines = args.sines + row * half;
  for (int i = static_cast<int>(threadIdx.x); i < heads * steps; i += kThreads) {
    const int head = i / steps;
    const int step = i % steps;
    const bool turns = kWhole || step < pair_steps;
    const int column = step * kStep + (turns ? 0 : half);
    const bool query = head < args.query_heads;
    const int kv_head = head - static_cast<int>(args.query_heads);
    const float* from =
        query
            ? static_cast<const float*>(args.q.data) + row * args.q.stride + head * dim + column
            : static_cast<const float*>(args.k.data) + row * args.k.stride + kv_head * dim + column;
    float4 low = load(from);
    float4 high = {};
    if (turns) {
      const float4 a = low;
      const float4 b = load(from + half);
      const float4 c = load(cosines + column);
      const float4 s = load(sines + column);
      low = {a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z,
             a.w * c.w - b.w * s.w};
      high = {b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y, b.z * c.z + a.z * s.z,
              b.w * c.w + a.w * s.w};
    }
    const auto put = [&](void* to, DType type, int64_t at, const float4& first,
                         const float4& second) {
      store_x4(to, type, at, first);
      if (turns) {
        store_x4(to, type, at + half, second);
      }
    };
    if (query) {
      // Where queries are rotated in place, nobody else reads these.
      put(args.q_out.data, args.q_out.dtype, row * args.q_out.stride + head * dim + column, low,
          high);
    } else {
      const KvCache& cache = args.cache;
      const bool own = p.places.positions != nullptr;
      const int64_t position = own ? p.places.positions[row] : p.first + row;
      const int64_t sequence = own ? p.places.sequences[row] * p.places.sequence_stride : 0;
      const int64_t at = sequence + kv_head * cache.head_stride + position * dim + column;
      const float* v =
          static_cast<const float*>(args.v.data) + row * args.v.stride + kv_head * dim + column;
      put(cache.keys, cache.dtype, at, low, high);
      put(cache.values, cache.dtype, at, load(v), turns ? load(v + half) : float4{});
    }
  }
}

}  // namespace

std::string_view refuse_prefill_rope_append(const RopeAppendArgs& args) {
  if (args.q_out.dtype == DType::f16 || args.cache.dtype == DType::f16) {
    return "rotated queries and cache must be bf16 or f32";
  }
  if ((args.head_dim - args.unturned) % (2 * kStep) != 0 || args.unturned % kStep != 0 ||
      args.q.stride % kStep != 0 || args.k.stride % kStep != 0 || args.v.stride % kStep != 0 ||
      args.q_out.stride % kStep != 0) {
    return "what turns of a head must be a multiple of 8, the rest and strides of 4";
  }
  return {};
}

Status prefill_rope_append(const RopeAppendArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places) {
  return launch_kernel(args.unturned == 0 ? rope_append_rows<true> : rope_append_rows<false>,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       Params{args, first, places});
}

}  // namespace weft::hopper

// rope_append of many rows on sm_90a: a block a row. Four pairs of a head are a thread's step, or
// four elements that do not turn; the steps of a row's queries come first, then those of its keys,
// which copy the values too.
#include <bit>
#include <type_traits>

#include "arch/hopper/dependent.cuh"
#include "arch/hopper/launch.cuh"
#include "base/divide.h"
#include "ops/hopper_f32.cuh"
#include "ops/hopper_rows.cuh"
#include "ops/rope_append/hopper_prefill.h"

namespace weft::hopper {
namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;

struct Params {
  RopeAppendArgs args;
  HeadNorms norms;
  int64_t first = 0;
  RowPlaces places;
};

__device__ float4 load(const float* from) { return *reinterpret_cast<const float4*>(from); }

/// How heads are normed before they turn: weights of what type, or not at all.
struct NotNormed {};

/// The root of the mean square of a head, inverted: of its threads, which are as many lanes of a
/// warp, each with 2 * kStep of its elements.
__device__ float norm_factor(const float4& a, const float4& b, int threads, float epsilon) {
  const auto squares = [](const float4& v) {
    return v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  };
  const float sum = over_lanes(squares(a) + squares(b), threads, Sum{});
  return 1 / sqrtf(sum / static_cast<float>(threads * 2 * kStep) + epsilon);
}
template <class W>
__device__ float4 normed(const float4& v, float factor, const void* weight, int column,
                         float offset) {
  const float4 w = read_x4(static_cast<const W*>(weight) + column);
  return {v.x * (factor * (w.x + offset)), v.y * (factor * (w.y + offset)),
          v.z * (factor * (w.z + offset)), v.w * (factor * (w.w + offset))};
}

/// kWhole: all of a head turns. Norm: NotNormed, or the type of the norms' weights.
template <bool kWhole, class Norm>
__global__ void __launch_bounds__(kThreads) rope_append_rows(const __grid_constant__ Params p) {
  constexpr bool kNorms = !std::is_same_v<Norm, NotNormed>;
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
  // All lanes of a warp go round together where they add up squares; those beyond the last head
  // read its last step and store nothing.
  const int all = kNorms ? ceil_div(heads * steps, 32) * 32 : heads * steps;
  for (int each = static_cast<int>(threadIdx.x); each < all; each += kThreads) {
    const int i = kNorms ? min(each, heads * steps - 1) : each;
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
      float4 a = low;
      float4 b = load(from + half);
      if constexpr (kNorms) {
        const void* weight = query ? p.norms.query.data : p.norms.key.data;
        const float factor = norm_factor(a, b, steps, p.norms.epsilon);
        a = normed<Norm>(a, factor, weight, column, p.norms.weight_offset);
        b = normed<Norm>(b, factor, weight, column + half, p.norms.weight_offset);
      }
      const float4 c = load(cosines + column);
      const float4 s = load(sines + column);
      low = {a.x * c.x - b.x * s.x, a.y * c.y - b.y * s.y, a.z * c.z - b.z * s.z,
             a.w * c.w - b.w * s.w};
      high = {b.x * c.x + a.x * s.x, b.y * c.y + a.y * s.y, b.z * c.z + a.z * s.z,
              b.w * c.w + a.w * s.w};
    }
    if (kNorms && each != i) {
      continue;
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

namespace {

template <bool kWhole, class Norm>
Status launch(const Params& params, int64_t rows, Stream stream) {
  return launch_kernel(rope_append_rows<kWhole, Norm>,
                       {.blocks = static_cast<int>(rows),
                        .threads = kThreads,
                        .overlaps = true,
                        .stream = static_cast<cudaStream_t>(stream.native)},
                       params);
}

}  // namespace

Status prefill_rope_append(const RopeAppendArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places) {
  const Params params{args, {}, first, places};
  return args.unturned == 0 ? launch<true, NotNormed>(params, rows, stream)
                            : launch<false, NotNormed>(params, rows, stream);
}

bool norms_heads(const RopeAppendArgs& args) {
  const int64_t threads = args.head_dim / (2 * kStep);
  return args.unturned == 0 && args.head_dim % (2 * kStep) == 0 && threads <= 32 &&
         std::has_single_bit(static_cast<uint64_t>(threads));
}

Status prefill_normed_rope_append(const RopeAppendArgs& args, const HeadNorms& norms, int64_t rows,
                                  int64_t first, Stream stream, const RowPlaces& places) {
  return with_weights(norms.query.dtype, [&](auto w) {
    return launch<true, decltype(w)>({args, norms, first, places}, rows, stream);
  });
}

}  // namespace weft::hopper

// rope_append: a workgroup a row. Four pairs of a head are a thread's step, or four elements that
// do not turn; the steps of a row's queries come first, then those of its keys, which copy the
// values too.
#include "ops/rope_append/cdna.h"

#include "arch/cdna/gpu.hip.h"

using namespace weft::cdna;

namespace {

constexpr int kThreads = 256;
constexpr int kStep = 4;

WEFT_GPU f32x4 load(const float* from) { return *reinterpret_cast<const f32x4*>(from); }
/// At element `at`; in bf16 where `half` is not 0.
WEFT_GPU void store(void* to, int half, int64_t at, f32x4 v) {
  using Half = Vector<bf16_t, 4>;
  if (half != 0) {
    *reinterpret_cast<Half*>(static_cast<bf16_t*>(to) + at) = __builtin_convertvector(v, Half);
  } else {
    *reinterpret_cast<f32x4*>(static_cast<float*>(to) + at) = v;
  }
}

}  // namespace

extern "C" __global__ __launch_bounds__(256, 4) void rope_append(RopeAppendParams p) {
  const int64_t row = workgroup_index();
  const int half = (p.head_dim - p.unturned) / 2;
  const int pair_steps = half / kStep;  // of a head
  const int steps = pair_steps + p.unturned / kStep;
  const int all = (p.query_heads + p.kv_heads) * steps;
  const float* cosines = p.cosines + row * half;
  const float* sines = p.sines + row * half;
  for (int i = thread_index(); i < all; i += kThreads) {
    const int head = i / steps;
    const int step = i % steps;
    const bool turns = step < pair_steps;
    const int column = step * kStep + (turns ? 0 : half);
    const bool query = head < p.query_heads;
    const int kv_head = head - p.query_heads;
    const float* from = query ? p.q + row * p.q_stride + head * p.head_dim + column
                              : p.k + row * p.k_stride + kv_head * p.head_dim + column;
    f32x4 low = load(from);
    f32x4 high = {};
    if (turns) {
      const f32x4 a = low;
      const f32x4 b = load(from + half);
      const f32x4 c = load(cosines + column);
      const f32x4 s = load(sines + column);
      low = a * c - b * s;
      high = b * c + a * s;
    }
    const auto put = [&](void* to, int bf16, int64_t at, f32x4 first, f32x4 second) {
      store(to, bf16, at, first);
      if (turns) {
        store(to, bf16, at + half, second);
      }
    };
    if (query) {
      // Where queries are rotated in place, nobody else reads these.
      put(p.q_out, p.q_bf16, row * p.q_out_stride + head * p.head_dim + column, low, high);
    } else {
      const bool own = p.positions != nullptr;
      const int64_t position = own ? p.positions[row] : p.first + row;
      const int64_t sequence = own ? p.sequences[row] * p.sequence_stride : 0;
      const int64_t at = sequence + kv_head * p.head_stride + position * p.head_dim + column;
      const float* v = p.v + row * p.v_stride + kv_head * p.head_dim + column;
      put(p.keys, p.cache_bf16, at, low, high);
      put(p.values, p.cache_bf16, at, load(v), turns ? load(v + half) : f32x4{});
    }
  }
}

// attention_backward on the CPU: a KV head's keys and values widened once, its gradients in f32
// until all queries have added to them.
#include "ops/attention_backward/op.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_backward/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/sequence_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void attention_backward_heads(const AttentionBackwardArgs& args, Range kv_heads, float* scratch) {
  const SequenceShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t wide = widened(dim);
  const int64_t matrix = shape.tokens * wide;
  float* const keys = scratch;
  float* const values = keys + matrix;
  float* const d_k = values + matrix;
  float* const d_v = d_k + matrix;
  float* const weight = d_v + matrix;
  float* const q = weight + widened(shape.tokens);
  float* const out = q + wide;
  float* const d_out = out + wide;
  float* const d_q = d_out + wide;
  for (int64_t each = kv_heads.begin; each < kv_heads.end; ++each) {
    const int64_t sequence = each / shape.kv_heads;
    const int64_t first = sequence * shape.tokens;
    const int64_t kv_head = each % shape.kv_heads;
    for (int64_t j = 0; j < shape.tokens; ++j) {
      widen(args.k, first + j, kv_head * dim, dim, keys + j * wide);
      widen(args.v, first + j, kv_head * dim, dim, values + j * wide);
    }
    std::fill(d_k, d_k + 2 * matrix, 0.0f);
    for (int64_t h = kv_head * shape.group(); h < (kv_head + 1) * shape.group(); ++h) {
      const float* lse = args.lse + (sequence * shape.query_heads + h) * shape.tokens;
      for (int64_t i = 0; i < shape.tokens; ++i) {
        widen(args.q, first + i, h * dim, dim, q);
        widen(args.out, first + i, h * dim, dim, out);
        widen(args.d_out, first + i, h * dim, dim, d_out);
        const float delta = dot(d_out, out, wide);
        const int64_t seen = shape.keys_of(i);
        for (int64_t j = 0; j < seen; ++j) {
          weight[j] = dot(q, keys + j * wide, wide);
        }
        std::fill(weight + seen, weight + widened(seen), 0.0f);
        exponentials(shape.scale, lse[i], widened(seen), weight);
        std::fill(d_q, d_q + wide, 0.0f);
        for (int64_t j = 0; j < seen; ++j) {
          const float gradient = weight[j] * (dot(d_out, values + j * wide, wide) - delta);
          add(weight[j], d_out, wide, d_v + j * wide);
          add(gradient, q, wide, d_k + j * wide);
          add(gradient, keys + j * wide, wide, d_q);
        }
        put(d_q, shape.scale, args.d_q, first + i, h * dim, dim);
      }
    }
    for (int64_t j = 0; j < shape.tokens; ++j) {
      put(d_k + j * wide, shape.scale, args.d_k, first + j, kv_head * dim, dim);
      put(d_v + j * wide, 1, args.d_v, first + j, kv_head * dim, dim);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void attention_backward(const AttentionBackwardArgs& args, Range kv_heads,
                        std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(attention_backward_heads)
  (args, kv_heads, reinterpret_cast<float*>(scratch.data()));
}

size_t attention_backward_scratch_bytes(const AttentionBackwardArgs& args) {
  const int64_t wide = round_up(args.shape.head_dim, int64_t{16});
  const int64_t tokens = args.shape.tokens;
  return static_cast<size_t>(4 * tokens * wide + round_up(tokens, int64_t{16}) + 4 * wide) *
         sizeof(float);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

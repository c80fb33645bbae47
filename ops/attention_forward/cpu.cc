// attention_forward on the CPU: a head's keys and values widened once, then query by query.
#include "ops/attention_forward/op.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention_forward/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/sequence_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

void attention_forward_heads(const AttentionForwardArgs& args, Range heads, float* scratch) {
  const SequenceShape& shape = args.shape;
  const int64_t dim = shape.head_dim;
  const int64_t wide = widened(dim);
  float* const keys = scratch;
  float* const values = keys + shape.tokens * wide;
  float* const weight = values + shape.tokens * wide;
  float* const q = weight + widened(shape.tokens);
  float* const out = q + wide;
  for (int64_t each = heads.begin; each < heads.end; ++each) {
    const int64_t first = each / shape.query_heads * shape.tokens;
    const int64_t head = each % shape.query_heads;
    const int64_t column = head / shape.group() * dim;
    for (int64_t j = 0; j < shape.tokens; ++j) {
      widen(args.k, first + j, column, dim, keys + j * wide);
      widen(args.v, first + j, column, dim, values + j * wide);
    }
    for (int64_t i = 0; i < shape.tokens; ++i) {
      widen(args.q, first + i, head * dim, dim, q);
      const int64_t seen = shape.keys_of(i);
      float best = -std::numeric_limits<float>::infinity();
      for (int64_t j = 0; j < seen; ++j) {
        weight[j] = dot(q, keys + j * wide, wide);
        best = std::max(best, weight[j]);
      }
      std::fill(weight + seen, weight + widened(seen), best);
      best *= shape.scale;
      exponentials(shape.scale, best, widened(seen), weight);
      float sum = 0;
      std::fill(out, out + wide, 0.0f);
      for (int64_t j = 0; j < seen; ++j) {
        sum += weight[j];
        add(weight[j], values + j * wide, wide, out);
      }
      put(out, 1 / sum, args.out, first + i, head * dim, dim);
      if (args.lse != nullptr) {
        args.lse[each * shape.tokens + i] = best + std::log(sum);
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void attention_forward(const AttentionForwardArgs& args, Range heads,
                       std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(attention_forward_heads)
  (args, heads, reinterpret_cast<float*>(scratch.data()));
}

size_t attention_forward_scratch_bytes(const AttentionForwardArgs& args) {
  const int64_t wide = round_up(args.shape.head_dim, int64_t{16});
  const int64_t tokens = args.shape.tokens;
  return static_cast<size_t>(2 * tokens * wide + round_up(tokens, int64_t{16}) + 2 * wide) *
         sizeof(float);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

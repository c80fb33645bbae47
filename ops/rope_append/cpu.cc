// rope_append on the CPU: one pass over each head; values are converted on their way to the cache.
#include "ops/rope_append/op.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/rope_append/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class Out>
void copy_elements(const float* x, int64_t count, Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    store(d, load(d, x + i), out + i);
  }
  if (i < count) {
    store_first(d, load_first(d, x + i, count - i), out + i, count - i);
  }
}

/// Turns pairs (x[i], x[half + i]) and copies `unturned` elements behind them; out may be x.
template <class Out>
void rotate_head(const float* x, const float* cosines, const float* sines, int64_t half,
                 int64_t unturned, Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    const auto a = load(d, x + i);
    const auto b = load(d, x + half + i);
    const auto cosine = load(d, cosines + i);
    const auto sine = load(d, sines + i);
    store(d, hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), out + i);
    store(d, hn::MulAdd(a, sine, hn::Mul(b, cosine)), out + half + i);
  }
  if (i < half) {
    const size_t rest = half - i;
    const auto a = load_first(d, x + i, rest);
    const auto b = load_first(d, x + half + i, rest);
    const auto cosine = load_first(d, cosines + i, rest);
    const auto sine = load_first(d, sines + i, rest);
    store_first(d, hn::NegMulAdd(b, sine, hn::Mul(a, cosine)), out + i, rest);
    store_first(d, hn::MulAdd(a, sine, hn::Mul(b, cosine)), out + half + i, rest);
  }
  if (unturned > 0) {
    copy_elements(x + 2 * half, unturned, out + 2 * half);
  }
}

template <class Query, class Cache>
void rope_append_as(const RopeAppendArgs& args, Range rows, Range kv_heads) {
  const int64_t dim = args.head_dim;
  const int64_t unturned = args.unturned;
  const int64_t half = (dim - unturned) / 2;
  const int64_t group = args.query_heads / args.kv_heads;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    const float* cosines = args.cosines + r * half;
    const float* sines = args.sines + r * half;
    for (int64_t h = kv_heads.begin; h < kv_heads.end; ++h) {
      for (int64_t q = h * group; q < (h + 1) * group; ++q) {
        rotate_head(row<float>(args.q, r) + q * dim, cosines, sines, half, unturned,
                    row<Query>(args.q_out, r) + q * dim);
      }
      if (args.cache.keys == nullptr) {
        continue;
      }
      const int64_t place = args.cache.place(r, h, args.positions[r], dim);
      rotate_head(row<float>(args.k, r) + h * dim, cosines, sines, half, unturned,
                  static_cast<Cache*>(args.cache.keys) + place);
      copy_elements(row<float>(args.v, r) + h * dim, dim,
                    static_cast<Cache*>(args.cache.values) + place);
    }
  }
}

void rope_append_heads(const RopeAppendArgs& args, Range rows, Range kv_heads) {
  const bool bf16_q = args.q_out.dtype == DType::bf16;
  if (args.cache.dtype == DType::bf16) {
    bf16_q ? rope_append_as<bf16, bf16>(args, rows, kv_heads)
           : rope_append_as<float, bf16>(args, rows, kv_heads);
  } else {
    bf16_q ? rope_append_as<bf16, float>(args, rows, kv_heads)
           : rope_append_as<float, float>(args, rows, kv_heads);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

void rope_append(const RopeAppendArgs& args, Range rows, Range kv_heads) {
  WEFT_CPU_DISPATCH(rope_append_heads)(args, rows, kv_heads);
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

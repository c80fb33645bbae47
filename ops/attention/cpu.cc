// attention on the CPU.
#include "ops/attention/op.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "arch/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

template <class A, class B>
float dot(const A* a, const B* b, int64_t n) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  auto sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    sum = hn::MulAdd(load(d, a + i), load(d, b + i), sum);
  }
  if (i < n) {
    sum = hn::MulAdd(load_first(d, a + i, n - i), load_first(d, b + i, n - i), sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

/// y = y * scale + weight * x
template <class X>
void scale_and_add(float* y, float scale, float weight, const X* x, int64_t n) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto scaled = hn::Mul(load(d, y + i), hn::Set(d, scale));
    store(d, hn::MulAdd(load(d, x + i), hn::Set(d, weight), scaled), y + i);
  }
  for (; i < n; ++i) {
    y[i] = y[i] * scale + weight * to_float(x[i]);
  }
}

/// Attends with one query head over `keys`: unnormalised sum, maximum, sum of exponentials.
template <class Q, class K>
void attend_one(const AttentionArgs& args, const Q* q, int64_t kv_head, Range keys, float* sum) {
  const int64_t dim = args.head_dim;
  const K* key = static_cast<const K*>(args.cache.keys) + kv_head * args.cache.head_stride;
  const K* value = static_cast<const K*>(args.cache.values) + kv_head * args.cache.head_stride;
  std::fill(sum, sum + dim, 0.0f);
  float best = -__builtin_inff();
  float total = 0;
  for (int64_t p = keys.begin; p < keys.end; ++p) {
    const float score = args.scale * dot(q, key + p * dim, dim);
    const float now = score > best ? score : best;
    const float origin = now == -__builtin_inff() ? 0 : now;
    const float old = std::exp(best - origin);
    const float weight = std::exp(score - origin);
    scale_and_add(sum, old, weight, value + p * dim, dim);
    total = total * old + weight;
    best = now;
  }
  sum[dim] = best;
  sum[dim + 1] = total;
}

template <class Out>
void write_row(const float* sum, float factor, int64_t dim, Out* out) {
  const FloatTag d;
  const int64_t lanes = kFloatLanes;
  const auto f = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    store(d, hn::Mul(load(d, sum + i), f), out + i);
  }
  if (i < dim) {
    store_first(d, hn::Mul(load_first(d, sum + i, dim - i), f), out + i, dim - i);
  }
}

void attend(const AttentionArgs& args, Range rows, Range kv_heads, int64_t split, float* scratch) {
  const int64_t group = args.query_heads / args.kv_heads;
  const int64_t dim = args.head_dim;
  with_type(args.q.dtype, [&](auto q_type) {
    with_type(args.cache.dtype, [&](auto k_type) {
      using Q = decltype(q_type);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        const Range keys = attention_split(args.positions[r], args.window, args.splits, split);
        for (int64_t h = kv_heads.begin * group; h < kv_heads.end * group; ++h) {
          float* sum =
              args.splits == 1
                  ? scratch
                  : args.partials + ((r * args.query_heads + h) * args.splits + split) * (dim + 2);
          attend_one<Q, decltype(k_type)>(args, row<Q>(args.q, r) + h * dim, h / group, keys, sum);
          if (args.splits == 1) {
            const float factor = 1 / sum[dim + 1];
            if (args.out.dtype == DType::bf16) {
              write_row(sum, factor, dim, row<bf16>(args.out, r) + h * dim);
            } else {
              write_row(sum, factor, dim, row<float>(args.out, r) + h * dim);
            }
          }
        }
      }
    });
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"

namespace weft::cpu {

size_t attention_scratch_bytes(const AttentionArgs& args, int64_t /*rows*/) {
  return (args.head_dim + 2) * sizeof(float);
}

void attention(const AttentionArgs& args, Range rows, Range kv_heads, int64_t split,
               std::span<std::byte> scratch) {
  WEFT_CPU_DISPATCH(attend)
  (args, rows, kv_heads, split, reinterpret_cast<float*>(scratch.data()));
}

void attention_combine(const AttentionArgs& args, Range rows, Range query_heads) {
  const int64_t dim = args.head_dim;
  const float none = -std::numeric_limits<float>::infinity();
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = query_heads.begin; h < query_heads.end; ++h) {
      const float* parts = args.partials + (r * args.query_heads + h) * args.splits * (dim + 2);
      const auto maximum = [&](int64_t s) { return parts[s * (dim + 2) + dim]; };
      const auto total = [&](int64_t s) { return parts[s * (dim + 2) + dim + 1]; };
      float best = none;
      for (int64_t s = 0; s < args.splits; ++s) {
        best = maximum(s) > best ? maximum(s) : best;
      }
      const float origin = best == none ? 0 : best;
      float sum = 0;
      for (int64_t s = 0; s < args.splits; ++s) {
        sum += std::exp(maximum(s) - origin) * total(s);
      }
      for (int64_t i = 0; i < dim; ++i) {
        float y = 0;
        for (int64_t s = 0; s < args.splits; ++s) {
          y += std::exp(maximum(s) - origin) * parts[s * (dim + 2) + i];
        }
        if (args.out.dtype == DType::bf16) {
          row<bf16>(args.out, r)[h * dim + i] = to_bf16(y / sum);
        } else {
          row<float>(args.out, r)[h * dim + i] = y / sum;
        }
      }
    }
  }
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

// attention on the CPU: few-inl.h streams the cache for a decode step, few_dot-inl.h too where the
// processor has bf16 dot products; chunk-inl.h computes blocks for a chunk of a prompt.
#include "ops/attention/op.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/attention/cpu.cc"
#include "hwy/foreach_target.h"
// after foreach_target
#include "ops/attention/chunk-inl.h"
#include "ops/attention/few-inl.h"
#include "ops/attention/few_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft {
namespace HWY_NAMESPACE {

bool streams(const AttentionArgs& args, int64_t rows) {
  return args.splits > 1 || rows <= kAttentionFewRows;
}

/// The class for few rows; bf16_dot: VDPBF16PS is there.
template <class F>
decltype(auto) with_few_kernel(const AttentionArgs& args, [[maybe_unused]] bool bf16_dot, F&& f) {
#if HWY_TARGET == HWY_AVX3
  if (bf16_dot && FewDotAttention<float>::suits(args)) {
    return args.q.dtype == DType::bf16 ? f(static_cast<FewDotAttention<bf16>*>(nullptr))
                                       : f(static_cast<FewDotAttention<float>*>(nullptr));
  }
#endif
  return with_formats(args, [&](auto q, auto k) {
    return f(static_cast<FewAttention<decltype(q), decltype(k)>*>(nullptr));
  });
}

size_t scratch_bytes(const AttentionArgs& args, int64_t rows, bool bf16_dot) {
  const size_t few = with_few_kernel(args, bf16_dot, [&](auto* type) -> size_t {
    return std::remove_pointer_t<decltype(type)>::scratch_bytes(args);
  });
  if (streams(args, rows)) {
    return few;
  }
  const size_t chunk = with_chunk_kernel(args, bf16_dot, [&](auto* type) -> size_t {
    return std::remove_pointer_t<decltype(type)>::scratch_bytes(args);
  });
  return std::max(few, chunk);
}

void attend(const AttentionArgs& args, Range rows, Range kv_heads, int64_t split,
            std::byte* scratch, const AttentionTask* next, bool bf16_dot) {
  if (streams(args, rows.size())) {
    with_few_kernel(args, bf16_dot, [&](auto* type) {
      std::remove_pointer_t<decltype(type)> kernel(args, scratch);
      for (int64_t r = rows.begin; r < rows.end; ++r) {
        for (int64_t h = kv_heads.begin; h < kv_heads.end; ++h) {
          const bool last = h + 1 == kv_heads.end;
          const AttentionTask following =
              last ? AttentionTask{r + 1, kv_heads.begin, split} : AttentionTask{r, h + 1, split};
          kernel.run({r, h, split}, last && r + 1 == rows.end ? next : &following);
        }
      }
    });
    return;
  }
  with_chunk_kernel(args, bf16_dot, [&](auto* type) {
    std::remove_pointer_t<decltype(type)> kernel(args, scratch);
    for (int64_t h = kv_heads.begin; h < kv_heads.end; ++h) {
      kernel.run(rows, h);
    }
  });
}

/// One row and query head: the splits' sums, each scaled to the common maximum.
void combine(const AttentionArgs& args, int64_t row_index, int64_t query_head) {
  const int64_t dim = args.head_dim;
  const int64_t stride = dim + 2;
  const float* parts =
      args.partials + (row_index * args.query_heads + query_head) * args.splits * stride;
  const float none = -__builtin_inff();
  float best = none;
  for (int64_t s = 0; s < args.splits; ++s) {
    best = std::max(best, parts[s * stride + dim]);
  }
  const float origin = best == none ? 0 : best;
  const auto weight = [&](int64_t s) { return std::exp(parts[s * stride + dim] - origin); };
  float total = 0;
  for (int64_t s = 0; s < args.splits; ++s) {
    total += weight(s) * parts[s * stride + dim + 1];
  }
  const float factor = normaliser(args, query_head, origin, total);
  constexpr int64_t kColumns = 64;
  for (int64_t first = 0; first < dim; first += kColumns) {
    const Range columns{first, std::min(first + kColumns, dim)};
    float sum[kColumns] = {};
    for (int64_t s = 0; s < args.splits; ++s) {
      const float share = weight(s);
      for (int64_t i = 0; i < columns.size(); ++i) {
        sum[i] += share * parts[s * stride + first + i];
      }
    }
    write_head(args, row_index, query_head, columns, sum, factor);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace weft
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "arch/cpu/dispatch.h"
#include "base/check.h"

namespace weft::cpu {
namespace {

bool has_bf16_dot() { return current_isa() == Isa::avx512_bf16; }

}  // namespace

size_t attention_scratch_bytes(const AttentionArgs& args, int64_t rows) {
  return WEFT_CPU_DISPATCH(scratch_bytes)(args, rows, has_bf16_dot());
}

void attention(const AttentionArgs& args, Range rows, Range kv_heads, int64_t split,
               std::span<std::byte> scratch, const AttentionTask* next) {
  WEFT_CHECK(args.head_dim % 2 == 0 && args.scale > 0 && args.soft_cap >= 0);
  WEFT_CHECK(scratch.size() >= attention_scratch_bytes(args, rows.size()));
  WEFT_CPU_DISPATCH(attend)(args, rows, kv_heads, split, scratch.data(), next, has_bf16_dot());
}

void attention_combine(const AttentionArgs& args, Range rows, Range query_heads) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t h = query_heads.begin; h < query_heads.end; ++h) {
      WEFT_CPU_DISPATCH(combine)(args, r, h);
    }
  }
}

}  // namespace weft::cpu
#endif  // HWY_ONCE

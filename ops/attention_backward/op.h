// attention_backward: from the gradient of attention_forward's result, those of its queries, keys
// and values (FlashAttention-2, Dao 2023). With p = exp(scale q.k - lse), a query's probability of
// a key, and delta = sum(d_out * out) over a query's head:
//   d_v = sum p d_out,  d_s = p (d_out.v - delta),  d_q = scale sum d_s k,  d_k = scale sum d_s q.
// Gradients of a KV head are the sums over its query heads.
#pragma once

#include <cstddef>
#include <span>

#include "ops/sequence_attention.h"

namespace weft {

/// All pointers are aligned to 16 bytes and all strides are multiples of 16 bytes. What is not
/// finite in an operand may be in all gradients of its sequence.
struct AttentionBackwardArgs {
  SequenceShape shape;
  ConstMatrix q;               ///< [sequences * tokens, query_heads * head_dim], bf16
  ConstMatrix k;               ///< [sequences * tokens, kv_heads * head_dim], bf16
  ConstMatrix v;               ///< likewise
  ConstMatrix out;             ///< attention_forward's, as q
  ConstMatrix d_out;           ///< as q
  const float* lse = nullptr;  ///< attention_forward's: [sequences, query_heads, tokens]
  Matrix d_q;                  ///< as q; bf16 or f32
  Matrix d_k;                  ///< as k, in d_q's format
  Matrix d_v;                  ///< likewise
  Workspace workspace = {};
};

/// Error (usage): which of the conditions above does not hold.
Status check(const AttentionBackwardArgs& args);
PlanKey plan_key(const AttentionBackwardArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h).
Status attention_backward(const AttentionBackwardArgs& args, Stream stream);
Result<size_t> attention_backward_workspace(const AttentionBackwardArgs& args, Stream stream);
const Kernel<AttentionBackwardArgs>* attention_backward_kernel(Arch arch);

namespace reference {
/// Rows of the gradients: d_q [rows.size(), query_heads * head_dim], d_k and d_v [rows.size(),
/// kv_heads * head_dim].
struct AttentionGradients {
  double* d_q;
  double* d_k;
  double* d_v;
};
void attention_backward(const AttentionBackwardArgs& args, Range rows,
                        const AttentionGradients& out);
}  // namespace reference
namespace cpu {
/// KV heads are those of all sequences, one after the other: sequence * kv_heads + head.
void attention_backward(const AttentionBackwardArgs& args, Range kv_heads,
                        std::span<std::byte> scratch);
size_t attention_backward_scratch_bytes(const AttentionBackwardArgs& args);
}  // namespace cpu
namespace cdna {
extern const Kernel<AttentionBackwardArgs> attention_backward;  // NOLINT: named as the operation
}

}  // namespace weft

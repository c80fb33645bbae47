// attention_forward: softmax(scale q k') v of whole sequences, softmax on the fly (FlashAttention,
// Dao et al. 2022), and the logarithms of the sums of exponentials, from which attention_backward
// makes the probabilities again. Attention over a model's KV cache is ops/attention.
#pragma once

#include <cstddef>
#include <span>

#include "ops/sequence_attention.h"

namespace weft {

/// All pointers are aligned to 16 bytes and all strides are multiples of 16 bytes.
struct AttentionForwardArgs {
  SequenceShape shape;
  ConstMatrix q;         ///< [sequences * tokens, query_heads * head_dim], bf16
  ConstMatrix k;         ///< [sequences * tokens, kv_heads * head_dim], bf16
  ConstMatrix v;         ///< likewise
  Matrix out;            ///< as q; bf16 or f32
  float* lse = nullptr;  ///< [sequences, query_heads, tokens]; null: not wanted
  Workspace workspace = {};
};

/// Error (usage): which of the conditions above does not hold.
Status check(const AttentionForwardArgs& args);
PlanKey plan_key(const AttentionForwardArgs& args);

/// As gemm_bf16() (ops/gemm_bf16/op.h); on the CPU it wants a workspace.
Status attention_forward(const AttentionForwardArgs& args, Stream stream);
Result<size_t> attention_forward_workspace(const AttentionForwardArgs& args, Stream stream);
const Kernel<AttentionForwardArgs>* attention_forward_kernel(Arch arch);

namespace reference {
/// Rows of the matrices: out [rows.size(), query_heads * head_dim], lse [rows.size(), query_heads].
void attention_forward(const AttentionForwardArgs& args, Range rows, double* out, double* lse);
}  // namespace reference
namespace cpu {
/// Heads are those of all sequences, one after the other: sequence * query_heads + head.
void attention_forward(const AttentionForwardArgs& args, Range heads, std::span<std::byte> scratch);
size_t attention_forward_scratch_bytes(const AttentionForwardArgs& args);
}  // namespace cpu
namespace cdna {
extern const Kernel<AttentionForwardArgs> attention_forward;  // NOLINT: named as the operation
}

}  // namespace weft

// What attention_forward and attention_backward have in common: attention of whole sequences, as
// training and encoders want it, where every token is a query and a key.
#pragma once

#include "base/range.h"
#include "ops/check_operands.h"
#include "ops/kernel.h"
#include "ops/matrix.h"

namespace weft {

/// Query head h reads KV head h / (query_heads / kv_heads) (GQA; MHA where there are as many).
/// Matrices have a row for each token, one sequence after the other, with the heads side by side.
struct SequenceShape {
  int64_t sequences = 0;
  int64_t tokens = 0;  ///< of a sequence
  int64_t query_heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  ///< a multiple of 8
  bool causal = false;   ///< query i sees keys 0 .. i of its sequence; otherwise all of them
  float scale = 1;       ///< of q.k before the softmax; positive

  int64_t rows() const { return sequences * tokens; }
  int64_t group() const { return query_heads / kv_heads; }
  int64_t query_columns() const { return query_heads * head_dim; }
  int64_t kv_columns() const { return kv_heads * head_dim; }
  /// The keys that token `query` of a sequence sees are 0 .. this - 1.
  int64_t keys_of(int64_t query) const { return causal ? query + 1 : tokens; }
  /// Pairs of a query and a key it sees, in all.
  double pairs() const {
    const auto n = static_cast<double>(tokens);
    return static_cast<double>(sequences * query_heads) * (causal ? n * (n + 1) / 2 : n * n);
  }
};

/// Error (usage): which condition does not hold.
inline Status check(std::string_view operation, const SequenceShape& shape) {
  WEFT_TRY(check_size(operation, "sequences", shape.sequences, 1));
  WEFT_TRY(check_size(operation, "tokens", shape.tokens, 1));
  WEFT_TRY(check_size(operation, "kv_heads", shape.kv_heads, 1));
  WEFT_TRY(check_size(operation, "query_heads", shape.query_heads, shape.kv_heads, shape.kv_heads));
  return check_size(operation, "head_dim", shape.head_dim, 8, 8);
}

inline PlanKey plan_key(const SequenceShape& shape) {
  return {shape.rows(), shape.query_columns(), shape.tokens, shape.causal ? "causal" : "whole"};
}

}  // namespace weft

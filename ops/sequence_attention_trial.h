// A case of attention_forward and attention_backward.
#pragma once

#include <cmath>

#include "ops/harness/trial.h"
#include "ops/sequence_attention.h"

namespace weft::trial {

struct SequenceCase {
  Use use;
  int64_t sequences;
  int64_t tokens;
  int64_t query_heads;
  int64_t kv_heads;
  int64_t head_dim;
  bool causal;
  DType out;

  template <class Visitor>
  void fields(Visitor& v) {
    v.size("sequences", sequences);
    v.size("tokens", tokens);
    v.pair("heads", query_heads, kv_heads);
    v.size("dim", head_dim, {.least = 8, .unit = 8});
    v.flag("causal", causal);
    v.word("out", out, kFloats);
  }
  std::string_view conflict() const {
    return query_heads % kv_heads != 0 ? "query heads are no multiple of KV heads" : "";
  }
  SequenceShape shape() const {
    return {.sequences = sequences,
            .tokens = tokens,
            .query_heads = query_heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .causal = causal,
            .scale = 1.5f / std::sqrt(static_cast<float>(head_dim))};
  }
};

}  // namespace weft::trial

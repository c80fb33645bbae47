// token_logprob: out[r] = logits[r, token[r]] - log(sum_c exp(logits[r, c])), the natural
// log-probability of a token where softmax over a row of logits says what comes next. What scoring
// a text keeps of its logits.
#pragma once

#include <cstdint>

#include "base/range.h"
#include "ops/matrix.h"

namespace weft {

struct TokenLogprobArgs {
  ConstMatrix logits;               ///< [rows, columns], f32
  const int32_t* tokens = nullptr;  ///< [rows], each in [0, columns)
  int64_t columns = 0;              ///< the vocabulary
  float* out = nullptr;             ///< [rows]
};

namespace reference {
void token_logprob(const TokenLogprobArgs& args, Range rows, double* out);  ///< out: [rows.size()]
}
namespace cpu {
void token_logprob(const TokenLogprobArgs& args, Range rows);
}

}  // namespace weft

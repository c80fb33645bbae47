#include <algorithm>
#include <cmath>

#include "ops/token_logprob/op.h"

namespace weft::reference {

void token_logprob(const TokenLogprobArgs& args, Range rows, double* out) {
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    double peak = element(args.logits, r, 0);
    for (int64_t c = 1; c < args.columns; ++c) {
      peak = std::max(peak, element(args.logits, r, c));
    }
    double sum = 0;
    for (int64_t c = 0; c < args.columns; ++c) {
      sum += std::exp(element(args.logits, r, c) - peak);
    }
    *out++ = element(args.logits, r, args.tokens[r]) - peak - std::log(sum);
  }
}

}  // namespace weft::reference

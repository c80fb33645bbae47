// token_logprob on AMD, the host's side.
#include "ops/token_logprob/cdna.h"

#include "ops/cdna_launch.h"
#include "ops/token_logprob/cdna_prefill.h"

namespace weft::cdna {

Status prefill_token_logprob(const TokenLogprobArgs& args, int64_t rows, Stream stream) {
  const TokenLogprobParams params{.logits = static_cast<const float*>(args.logits.data),
                                  .tokens = args.tokens,
                                  .out = args.out,
                                  .stride = args.logits.stride,
                                  .columns = static_cast<int32_t>(args.columns)};
  return hip_device(stream).launch({.operation = "token_logprob",
                                    .kernel = "token_logprob",
                                    .groups_x = static_cast<uint32_t>(rows),
                                    .threads = kTokenLogprobThreads},
                                   params, stream.native);
}

}  // namespace weft::cdna

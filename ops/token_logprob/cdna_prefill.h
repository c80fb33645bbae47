// token_logprob of a chunk's rows on AMD.
#pragma once

#include "arch/device.h"
#include "ops/token_logprob/op.h"

namespace weft::cdna {

/// Rows [0, rows) of args, all on the device. Errors: device (the launch failed).
Status prefill_token_logprob(const TokenLogprobArgs& args, int64_t rows, Stream stream);

}  // namespace weft::cdna

// attention_decode on AMD of a launched step's rows, each at a place of its own sequence.
#pragma once

#include <cstddef>

#include "arch/device.h"
#include "ops/attention/op.h"
#include "ops/kernel.h"
#include "ops/row_places.h"

namespace weft::cdna {

/// Whether attention_decode's kernels take them: queries and a cache in bf16.
bool is_attention_decode(const AttentionArgs& args);
/// Such rows, as step_attention() (ops/attention/cdna_prefill.h), all rows' keys dealt to all
/// compute units. `workspace`: of so many bytes as the other one says. Errors: device (the launch
/// failed).
Status attend_as_attention_decode(const AttentionArgs& args, int64_t rows, const RowPlaces& places,
                                  const Workspace& workspace, Stream stream);
size_t workspace_as_attention_decode(const AttentionArgs& args, Stream stream);

}  // namespace weft::cdna

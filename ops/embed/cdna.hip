// embed: a workgroup a row, 8 columns a thread and step.
#include "ops/embed/cdna.h"

#include "ops/cdna_numbers.hip.h"

using namespace weft::cdna;

namespace {

template <class W>
WEFT_GPU void embed(const EmbedParams& p) {
  const int64_t row = workgroup_index();
  const int64_t token = p.tokens[row];
  const Numbers<W> from(&at<char>(p.table, token * p.table_stride), p.columns);
  const Numbers<f32_t> out(&at<char>(p.out, row * p.out_stride), p.columns);
  const Numbers<bf16_t> copy(&at<char>(p.copy, row * p.copy_stride),
                             p.copy != nullptr ? p.columns : 0);
  for (int chunk = thread_index(); chunk < p.columns / kChunk; chunk += p.threads) {
    const f32x8 v = from.load(chunk) * p.scale;
    out.store(chunk, v);
    copy.store(chunk, v);
  }
}

}  // namespace

#define KERNEL(table)                                                                 \
  extern "C" __global__ __launch_bounds__(256, 4) void embed_##table(EmbedParams p) { \
    embed<table##_t>(p);                                                              \
  }
KERNEL(f32)
KERNEL(bf16)
KERNEL(f16)

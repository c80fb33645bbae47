// embed on AMD, the host's side.
#include "ops/embed/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/embed/cdna_prefill.h"

namespace weft::cdna {
namespace {

constexpr int64_t kMostThreads = 256;

}  // namespace

std::string_view refuse_prefill_embed(const EmbedArgs& args) {
  return args.columns % kChunk == 0 && args.table.stride % kChunk == 0 &&
                 args.out.stride % 4 == 0 && args.copy.stride % kChunk == 0
             ? ""
             : "columns and strides must be multiples of 8";
}

Status prefill_embed(const EmbedArgs& args, int64_t rows, Stream stream) {
  const int64_t threads =
      std::min(round_up(args.columns / kChunk, int64_t{kWaveLanes}), kMostThreads);
  const EmbedParams params{.table = args.table.data,
                           .tokens = args.tokens,
                           .out = args.out.data,
                           .copy = args.copy.data,
                           .table_stride = stride_bytes(args.table),
                           .out_stride = stride_bytes(args.out),
                           .copy_stride = stride_bytes(args.copy),
                           .columns = static_cast<int32_t>(args.columns),
                           .threads = static_cast<int32_t>(threads),
                           .scale = args.scale};
  const std::string kernel = fmt::format("embed_{}", short_name(args.table.dtype));
  return hip_device(stream).launch({.operation = "embed",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(rows),
                                    .threads = static_cast<uint32_t>(threads)},
                                   params, stream.native);
}

}  // namespace weft::cdna

// mla_layer on AMD, the host's side of what it has beside gemm_bf16 and mla_decode.
#include "ops/mla_layer/cdna.h"

#include "ops/cdna_gemm_launch.h"
#include "ops/mla_layer/op.h"

namespace weft::cdna {
namespace {

static_assert(kLayerNope == 128 && kLayerValue == 128, "what the kernels know");

Status launch(const char* kernel, const MlaLayerArgs& args, const HeadsParams& params,
              Stream stream) {
  return hip_device(stream).launch(
      {.operation = "mla_layer",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(args.heads * params.of.tiles_m * params.of.tiles_n),
       .threads = 256},
      params, stream.native);
}

Status queries(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  return launch("mla_layer_queries", args,
                {.of = gemm_task(to_const(buffers.q), args.kv_up, buffers.queries, args.batch,
                                 kLatentRank, kLayerNope, kHeadTileM, kHeadTileN),
                 .a_pitch = kLayerQuery * 2,
                 .b_pitch = kLayerHeadRows * stride_bytes(args.kv_up),
                 .out_pitch = kLatentRow * 2,
                 .angles = static_cast<const uint16_t*>(args.angles) + args.prefill * kLatentTurned,
                 .lengths = buffers.lengths,
                 .length = static_cast<int32_t>(args.prefill + 1)},
                stream);
}

Status values(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  return launch(
      "mla_layer_values", args,
      {.of = gemm_task(to_const(buffers.seen), layer_values(args.kv_up, 0), buffers.values,
                       args.batch, kLayerValue, kLatentRank, kHeadTileM, kHeadTileN),
       .a_pitch = kLatentRank * 2,
       .b_pitch = kLayerHeadRows * stride_bytes(args.kv_up),
       .out_pitch = kLayerValue * 2,
       .angles = nullptr,
       .lengths = nullptr,
       .length = 0},
      stream);
}

}  // namespace

const MlaLayerKernels mla_layer = {queries, values};

}  // namespace weft::cdna

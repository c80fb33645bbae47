// mla_layer on sm_90a: what it has beside gemm_bf16 and mla_decode, products of each head.
#include "ops/mla/hopper_heads.cuh"
#include "ops/mla_decode/hopper_turn.cuh"
#include "ops/mla_layer/op.h"

namespace weft::hopper {
namespace {

/// The queries' part that RoPE turns, all at one position, and how many keys each sequence has.
struct QueryTurn {
  const uint16_t* angles = nullptr;  ///< of the position
  int32_t* lengths = nullptr;
  int length = 0;

  __device__ void operator()(const HeadProduct& p, int head, int first, int count) const {
    constexpr int kPieces = kLatentTurned / 2 / 8;
    for (int i = static_cast<int>(threadIdx.x); i < count * kPieces;
         i += static_cast<int>(blockDim.x)) {
      const int64_t row = first + i / kPieces;
      const int piece = i % kPieces;
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.a) +
                                                        row * p.a_stride + head * p.a_pitch + p.k);
      auto* to = reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.out.data) + row * p.out.stride +
                                          head * p.out_pitch + p.n);
      const auto* of = reinterpret_cast<const uint4*>(angles);
      uint4 a = from[piece];
      uint4 b = from[kPieces + piece];
      turn_halves(a, b, of[piece], of[kPieces + piece]);
      to[piece] = a;
      to[kPieces + piece] = b;
    }
    for (int i = static_cast<int>(threadIdx.x); head == 0 && i < count;
         i += static_cast<int>(blockDim.x)) {
      lengths[first + i] = length;
    }
  }
};

/// Nothing.
struct NoneBeside {
  __device__ void operator()(const HeadProduct&, int, int, int) const {}
};

template <bool kTransposed>
using Tile = HeadTile<uint16_t, 128, 128, kTransposed>;

Status queries(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  const HeadProduct product{.a = buffers.q.data,
                            .a_stride = buffers.q.stride,
                            .a_pitch = kLayerQuery,
                            .w = args.kv_up,
                            .w_pitch = kLayerHeadRows,
                            .n = static_cast<int>(kLatentRank),
                            .k = static_cast<int>(kLayerNope),
                            .out = buffers.queries,
                            .out_pitch = kLatentRow,
                            .rows = static_cast<int>(args.batch)};
  const QueryTurn turn{
      .angles = static_cast<const uint16_t*>(args.angles) + args.prefill * kLatentTurned,
      .lengths = buffers.lengths,
      .length = static_cast<int>(args.prefill + 1)};
  return launch_heads_tile<Tile<true>>(product, turn, true, static_cast<int>(args.heads),
                                       static_cast<cudaStream_t>(stream.native));
}

Status values(const MlaLayerArgs& args, const MlaLayerBuffers& buffers, Stream stream) {
  const HeadProduct product{.a = buffers.seen.data,
                            .a_stride = buffers.seen.stride,
                            .a_pitch = kLatentRank,
                            .w = layer_values(args.kv_up, 0),
                            .w_pitch = kLayerHeadRows,
                            .n = static_cast<int>(kLayerValue),
                            .k = static_cast<int>(kLatentRank),
                            .out = buffers.values,
                            .out_pitch = kLayerValue,
                            .rows = static_cast<int>(args.batch)};
  return launch_heads_tile<Tile<false>>(product, NoneBeside{}, false, static_cast<int>(args.heads),
                                        static_cast<cudaStream_t>(stream.native));
}

}  // namespace

const MlaLayerKernels mla_layer = {queries, values};

}  // namespace weft::hopper

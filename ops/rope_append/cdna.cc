// rope_append on AMD, the host's side.
#include "ops/rope_append/cdna.h"

#include "ops/cdna_launch.h"
#include "ops/rope_append/cdna_prefill.h"

namespace weft::cdna {

std::string_view refuse_prefill_rope_append(const RopeAppendArgs& args) {
  constexpr int64_t kStep = 4;
  if (args.q_out.dtype == DType::f16 || args.cache.dtype == DType::f16) {
    return "rotated queries and cache must be bf16 or f32";
  }
  if ((args.head_dim - args.unturned) % (2 * kStep) != 0 || args.unturned % kStep != 0 ||
      args.q.stride % kStep != 0 || args.k.stride % kStep != 0 || args.v.stride % kStep != 0 ||
      args.q_out.stride % kStep != 0) {
    return "what turns of a head must be a multiple of 8, the rest and strides of 4";
  }
  return {};
}

Status prefill_rope_append(const RopeAppendArgs& args, int64_t rows, int64_t first, Stream stream,
                           const RowPlaces& places) {
  const RopeAppendParams params{.q = static_cast<const float*>(args.q.data),
                                .k = static_cast<const float*>(args.k.data),
                                .v = static_cast<const float*>(args.v.data),
                                .cosines = args.cosines,
                                .sines = args.sines,
                                .q_out = args.q_out.data,
                                .keys = args.cache.keys,
                                .values = args.cache.values,
                                .positions = places.positions,
                                .sequences = places.sequences,
                                .q_stride = args.q.stride,
                                .k_stride = args.k.stride,
                                .v_stride = args.v.stride,
                                .q_out_stride = args.q_out.stride,
                                .head_stride = args.cache.head_stride,
                                .sequence_stride = places.sequence_stride,
                                .first = static_cast<int32_t>(first),
                                .query_heads = static_cast<int32_t>(args.query_heads),
                                .kv_heads = static_cast<int32_t>(args.kv_heads),
                                .head_dim = static_cast<int32_t>(args.head_dim),
                                .unturned = static_cast<int32_t>(args.unturned),
                                .q_bf16 = args.q_out.dtype == DType::bf16 ? 1 : 0,
                                .cache_bf16 = args.cache.dtype == DType::bf16 ? 1 : 0};
  return hip_device(stream).launch({.operation = "rope_append",
                                    .kernel = "rope_append",
                                    .groups_x = static_cast<uint32_t>(rows),
                                    .threads = 256},
                                   params, stream.native);
}

}  // namespace weft::cdna

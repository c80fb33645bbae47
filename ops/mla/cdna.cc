// mla on AMD, the host's side.
#include "ops/mla/cdna.h"

#include "ops/cdna_gemm_launch.h"
#include "ops/mla/cdna_prefill.h"

namespace weft::cdna {
namespace {

static_assert(kMlaRank == kMostLatentRank && kMlaRow == kMostLatentRow);

std::string_view refuse_heads(const LatentHeads& of, const Matrix& out) {
  if (is_fp8(of.w.dtype) || out.dtype == DType::f16) {
    return "weights must be no codes, and results f32 or bf16";
  }
  return of.rank % 8 == 0 && of.unturned % 8 == 0 && of.turned % 8 == 0 && of.value % 8 == 0 &&
                 of.w.stride % 8 == 0 && out.stride % 8 == 0
             ? ""
             : "parts of rows, heads and strides must be multiples of 8";
}

/// Each head's product of `k` elements of a and the w from row `row` on.
MlaHeadsParams product(const LatentHeads& of, const ConstMatrix& a, int64_t row, const Matrix& out,
                       int64_t rows, int64_t n, int64_t k) {
  MlaHeadsParams params{};
  params.task = gemm_task(a, of.w, out, rows, n, k, kMlaTileRows, kMlaTileColumns);
  params.task.b = static_cast<const std::byte*>(of.w.data) + row * stride_bytes(of.w);
  params.b_pitch = of.key_row(1) * stride_bytes(of.w);
  params.heads = static_cast<int32_t>(of.heads);
  params.out_bf16 = out.dtype == DType::bf16 ? 1 : 0;
  return params;
}

Status launch_heads(std::string_view which, const MlaHeadsParams& params, const LatentHeads& of,
                    Stream stream) {
  const GemmTask& task = params.task;
  const int32_t tiles = task.tiles_n + (params.turned > 0 ? 1 : 0);
  return hip_device(stream).launch(
      {.operation = "mla",
       .kernel = fmt::format("mla_{}_{}", which, short_name(of.w.dtype)),
       .groups_x = static_cast<uint32_t>(task.tiles_m * tiles * params.heads),
       .threads = 256},
      params, stream.native);
}

bool is_decode(const PrefillLatentAttention& args) { return is_mla_decode(args) && !args.alone; }

}  // namespace

std::string_view refuse_prefill_latents(const LatentQueriesArgs& args) {
  const std::string_view why = refuse_latents(args);
  return why.empty() ? refuse_heads(args.of, args.out) : why;
}
std::string_view refuse_prefill_latents(const LatentValuesArgs& args) {
  const std::string_view why = refuse_latents(args);
  return why.empty() ? refuse_heads(args.of, args.out) : why;
}

Status prefill_latent_append(const LatentAppendArgs& args, int64_t rows, int64_t first,
                             Stream stream, const RowPlaces& places) {
  const auto element = static_cast<int64_t>(size_of(args.cache.dtype));
  const MlaAppendParams params{.x = args.x.data,
                               .norm = args.norm.data,
                               .cache = args.cache.keys,
                               .cosines = args.cosines,
                               .sines = args.sines,
                               .positions = places.positions,
                               .sequences = places.sequences,
                               .x_stride = stride_bytes(args.x),
                               .sequence_stride = places.sequence_stride * element,
                               .first = static_cast<int32_t>(first),
                               .rank = static_cast<int32_t>(args.rank),
                               .turned = static_cast<int32_t>(args.turned),
                               .epsilon = args.epsilon,
                               .norm_format = format_number(args.norm.dtype),
                               .cache_bf16 = args.cache.dtype == DType::bf16 ? 1 : 0};
  return hip_device(stream).launch({.operation = "mla",
                                    .kernel = "mla_append",
                                    .groups_x = static_cast<uint32_t>(rows),
                                    .threads = kMlaAppendThreads},
                                   params, stream.native);
}

Status prefill_latent_queries(const LatentQueriesArgs& args, int64_t rows, Stream stream) {
  const LatentHeads& of = args.of;
  MlaHeadsParams params = product(of, args.q, of.key_row(0), args.out, rows, of.rank, of.unturned);
  params.a_pitch = (of.unturned + of.turned) * static_cast<int64_t>(sizeof(float));
  params.out_pitch = (of.rank + of.turned) * static_cast<int64_t>(size_of(args.out.dtype));
  params.cosines = args.cosines;
  params.sines = args.sines;
  params.turned = static_cast<int32_t>(of.turned);
  return launch_heads("queries", params, of, stream);
}

Status prefill_latent_values(const LatentValuesArgs& args, int64_t rows, Stream stream) {
  const LatentHeads& of = args.of;
  MlaHeadsParams params = product(of, args.a, of.value_row(0), args.out, rows, of.value, of.rank);
  params.a_pitch = args.pitch * static_cast<int64_t>(sizeof(float));
  params.out_pitch = of.value * static_cast<int64_t>(size_of(args.out.dtype));
  return launch_heads("values", params, of, stream);
}

Status prefill_latent_attention(const PrefillLatentAttention& args, int64_t rows, int64_t first,
                                Stream stream, const RowPlaces& places) {
  constexpr float kLog2E = 1.4426950408889634f;
  if (is_decode(args)) {
    return attend_as_mla_decode(args, rows, first, stream, places);
  }
  const auto element = static_cast<int64_t>(size_of(args.cache.dtype));
  const MlaAttentionParams params{.q = args.q.data,
                                  .cache = args.cache.keys,
                                  .out = static_cast<float*>(args.out.data),
                                  .positions = places.positions,
                                  .sequences = places.sequences,
                                  .q_stride = stride_bytes(args.q),
                                  .out_stride = stride_bytes(args.out),
                                  .sequence_stride = places.sequence_stride * element,
                                  .first = static_cast<int32_t>(first),
                                  .heads = static_cast<int32_t>(args.heads),
                                  .rank = static_cast<int32_t>(args.rank),
                                  .turned = static_cast<int32_t>(args.turned),
                                  .q_bf16 = args.q.dtype == DType::bf16 ? 1 : 0,
                                  .score_scale = args.scale * kLog2E};
  return hip_device(stream).launch(
      {.operation = "mla",
       .kernel = fmt::format("mla_attention_{}", short_name(args.cache.dtype)),
       .groups_x = static_cast<uint32_t>(rows * ceil_div(args.heads, int64_t{kMlaHeads})),
       .threads = 256},
      params, stream.native);
}

Result<size_t> prefill_latent_workspace(const PrefillLatentAttention& args, int64_t rows,
                                        Stream stream) {
  return is_decode(args) ? workspace_as_mla_decode(args, rows, stream) : Result<size_t>(size_t{0});
}

}  // namespace weft::cdna

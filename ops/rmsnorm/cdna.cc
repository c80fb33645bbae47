// rmsnorm on AMD, the host's side.
#include "ops/rmsnorm/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/rmsnorm/cdna_prefill.h"

namespace weft::cdna {
namespace {

constexpr int64_t kWaveRows = 4;  // of a workgroup whose waves have a row each

}  // namespace

std::string_view refuse_prefill_rmsnorm(const RmsNormArgs& args) {
  if (args.out.dtype == DType::f16) {
    return "results must be bf16 or f32";
  }
  if (args.columns % kChunk != 0 || args.x.stride % 4 != 0 || args.residual.stride % 4 != 0 ||
      args.out.stride % kChunk != 0) {
    return "columns and strides must be multiples of 8";
  }
  return {};
}

Status prefill_rmsnorm(const RmsNormArgs& args, int64_t rows, Stream stream) {
  const bool wave_each = args.columns <= kWaveColumns;
  const int64_t threads =
      wave_each
          ? kWaveRows * kWaveLanes
          : std::min(round_up(ceil_div(args.columns, kChunk * kChunksKept), int64_t{kWaveLanes}),
                     int64_t{kMaxWorkgroupThreads});
  const RmsNormParams params{.x = args.x.data,
                             .weight = args.weight.data,
                             .residual = args.residual.data,
                             .out = args.out.data,
                             .x_stride = stride_bytes(args.x),
                             .residual_stride = stride_bytes(args.residual),
                             .out_stride = stride_bytes(args.out),
                             .rows = static_cast<int32_t>(rows),
                             .columns = static_cast<int32_t>(args.columns),
                             .groups = static_cast<int32_t>(args.groups),
                             .waves = static_cast<int32_t>(threads / kWaveLanes),
                             .epsilon = args.epsilon,
                             .scale = args.scale,
                             .weight_offset = args.weight_offset};
  const std::string kernel = fmt::format("rmsnorm_{}_{}_{}", wave_each ? "wave" : "group",
                                         short_name(args.weight.dtype), short_name(args.out.dtype));
  return hip_device(stream).launch(
      {.operation = "rmsnorm",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(wave_each ? ceil_div(rows, kWaveRows) : rows),
       .threads = static_cast<uint32_t>(threads)},
      params, stream.native);
}

}  // namespace weft::cdna

// layernorm on AMD, the host's side.
#include "ops/layernorm/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/layernorm/op.h"

namespace weft::cdna {
namespace {

Plan plan(const LayerNormArgs& args, const DeviceInfo& device) {
  if (args.columns % kChunk != 0) {
    return {.why = "columns must be a multiple of 8"};
  }
  const int64_t chunks = args.columns / kChunk;
  // As rmsnorm_quant's.
  const bool few = args.rows < device.units;
  const int64_t threads = few ? chunks : (chunks + kChunksKept - 1) / kChunksKept;
  return {.kernel = "row",
          .threads = static_cast<int>(
              std::clamp<int64_t>(round_up(threads, kWaveLanes), kWaveLanes, kMaxWorkgroupThreads)),
          .why = few ? "fewer rows than compute units" : "enough rows for every compute unit"};
}

std::vector<Plan> candidates(const LayerNormArgs& args, const DeviceInfo& /*device*/) {
  std::vector<Plan> plans;
  for (int threads = kWaveLanes; args.columns % kChunk == 0 && threads <= kMaxWorkgroupThreads;
       threads *= 2) {
    plans.push_back({.kernel = "row", .threads = threads});
  }
  return plans;
}

size_t workspace(const LayerNormArgs& /*args*/, const Plan& /*plan*/) { return 0; }

Status launch(const LayerNormArgs& args, const Plan& plan, Stream stream) {
  const LayerNormParams params{.x = args.x.data,
                               .weight = args.weight.data,
                               .bias = args.bias.data,
                               .out = args.out.data,
                               .x_stride = stride_bytes(args.x),
                               .out_stride = stride_bytes(args.out),
                               .columns = static_cast<int32_t>(args.columns),
                               .waves = plan.threads / kWaveLanes,
                               .epsilon = args.epsilon};
  const std::string kernel =
      fmt::format("layernorm_{}_{}", short_name(args.weight.dtype), short_name(args.out.dtype));
  return hip_device(stream).launch({.operation = "layernorm",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(args.rows),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

}  // namespace

const weft::Kernel<LayerNormArgs> layernorm = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

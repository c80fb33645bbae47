// rmsnorm_quant on AMD, the host's side.
#include "ops/rmsnorm_quant/cdna.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/cdna_launch.h"
#include "ops/rmsnorm_quant/op.h"

namespace weft::cdna {
namespace {

Plan plan(const RmsNormQuantArgs& args, const DeviceInfo& device) {
  if (const auto why = refuse(args.y.out.dtype, device); !why.empty()) {
    return {.why = why};
  }
  const int64_t chunks = args.columns / kChunk;
  // Few rows leave compute units idle: then a row gets as many threads as it has work for. With
  // many, two chunks a thread keep the same bytes in flight with half the waves to sum up.
  const bool few = args.rows < device.units;
  const int64_t threads = few ? chunks : ceil_div(chunks, kChunksKept);
  return {.kernel = "row",
          .threads = static_cast<int>(
              std::clamp<int64_t>(round_up(threads, kWaveLanes), kWaveLanes, kMaxWorkgroupThreads)),
          .why = few ? "fewer rows than compute units" : "enough rows for every compute unit"};
}

std::vector<Plan> candidates(const RmsNormQuantArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  if (!refuse(args.y.out.dtype, device).empty()) {
    return plans;
  }
  for (int threads = kWaveLanes; threads <= kMaxWorkgroupThreads; threads *= 2) {
    plans.push_back({.kernel = "row", .threads = threads});
  }
  return plans;
}

size_t workspace(const RmsNormQuantArgs&, const Plan&) { return 0; }

Status launch(const RmsNormQuantArgs& args, const Plan& plan, Stream stream) {
  const RmsNormQuantParams params{.x = args.x.data,
                                  .residual = args.residual.data,
                                  .weight = args.weight.data,
                                  .x_stride = stride_bytes(args.x),
                                  .residual_stride = stride_bytes(args.residual),
                                  .y = row_output(args.y),
                                  .columns = static_cast<int32_t>(args.columns),
                                  .waves = plan.threads / kWaveLanes,
                                  .epsilon = args.epsilon};
  const std::string kernel = row_kernel("rmsnorm_quant", args.x.dtype, args.y.scaling);
  return hip_device(stream).launch({.operation = "rmsnorm_quant",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(args.rows),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

}  // namespace

const weft::Kernel<RmsNormQuantArgs> rmsnorm_quant = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

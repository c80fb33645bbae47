// swiglu_quant on AMD, the host's side.
#include "ops/swiglu_quant/cdna.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/cdna_launch.h"
#include "ops/swiglu_quant/op.h"

namespace weft::cdna {
namespace {

Plan plan(const SwigluQuantArgs& args, const DeviceInfo& device) {
  if (const auto why = refuse(args.y.out.dtype, device); !why.empty()) {
    return {.why = why};
  }
  const int64_t chunks = args.columns / kChunk;
  if (args.y.scaling == Scaling::row) {
    const int64_t threads = round_up(ceil_div(chunks, kChunksKept), kWaveLanes);
    return {.kernel = "row",
            .threads = static_cast<int>(std::min<int64_t>(threads, kMaxWorkgroupThreads)),
            .why = "a scale of the row needs all of it in one workgroup"};
  }
  // Small workgroups spread few rows over many compute units.
  const bool few = args.rows * chunks < int64_t{device.units} * 256 * kChunksKept;
  return {.kernel = "part",
          .threads = few ? kWaveLanes : 256,
          .why = few ? "too little for a workgroup of four waves on every compute unit"
                     : "four waves in a workgroup"};
}

std::vector<Plan> candidates(const SwigluQuantArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  const Plan first = plan(args, device);
  if (first.kernel.empty()) {
    return plans;
  }
  for (int threads = kWaveLanes; threads <= kMaxWorkgroupThreads; threads *= 2) {
    plans.push_back({.kernel = first.kernel, .threads = threads});
  }
  return plans;
}

size_t workspace(const SwigluQuantArgs&, const Plan&) { return 0; }

Status launch(const SwigluQuantArgs& args, const Plan& plan, Stream stream) {
  const SwigluQuantParams params{.gate = args.gate.data,
                                 .up = args.up.data,
                                 .gate_stride = stride_bytes(args.gate),
                                 .up_stride = stride_bytes(args.up),
                                 .y = row_output(args.y),
                                 .columns = static_cast<int32_t>(args.columns),
                                 .waves = plan.threads / kWaveLanes};
  const int64_t part = int64_t{kChunksKept} * plan.threads * kChunk;  // columns of a workgroup
  const std::string kernel = row_kernel("swiglu_quant", args.gate.dtype, args.y.scaling);
  return hip_device(stream).launch(
      {.operation = "swiglu_quant",
       .kernel = kernel,
       .groups_x = static_cast<uint32_t>(args.rows),
       .groups_y = plan.kernel == "row" ? 1U : static_cast<uint32_t>(ceil_div(args.columns, part)),
       .threads = static_cast<uint32_t>(plan.threads)},
      params, stream.native);
}

}  // namespace

const weft::Kernel<SwigluQuantArgs> swiglu_quant = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

// gemm_skinny on AMD, the host's side.
#include "ops/gemm_skinny/cdna.h"

#include <algorithm>

#include "ops/cdna_launch.h"
#include "ops/gemm_skinny/op.h"

namespace weft::cdna {
namespace {

constexpr int64_t kBlockBytes = 128;  // of k: what a wave multiplies at a time
constexpr int64_t kWaves = 4;
constexpr int kMostSplits = 32;

int64_t row_bytes(const GemmSkinnyArgs& args) {
  return args.k * static_cast<int64_t>(size_of(args.a.dtype));
}
int64_t tiles_of(const GemmSkinnyArgs& args) { return (args.n + kSkinnyTileN - 1) / kSkinnyTileN; }

Plan plan_of(const GemmSkinnyArgs& args, bool sparse, int splits, std::string_view why) {
  return {.kernel = sparse ? "sparse" : "stream",
          .tile_m = sparse         ? 8
                    : args.m <= 16 ? 16
                                   : 32,
          .tile_n = kSkinnyTileN,
          .tile_k = static_cast<int>(kBlockBytes),
          .splits = splits,
          .threads = static_cast<int>(kWaves * kWaveLanes),
          .why = why};
}

/// The 4:2-sparse form pays where the dense instruction has 32 of k only and half of its rows would
/// be empty.
bool can_be_sparse(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  return device.target == name_of(Target::gfx942) && is_fp8(args.a.dtype) && args.m <= 8 &&
         args.scaling != Scaling::block;
}

/// Bytes that the busiest compute unit has to move, with what it costs to start a workgroup counted
/// as bytes too. Two workgroups run on a compute unit at once, and share what it can read.
double bytes_of_busiest(const GemmSkinnyArgs& args, int splits, const DeviceInfo& device) {
  constexpr double kStart = 16384;  // bytes that could have been read meanwhile
  const int64_t units = std::max(device.units, 1);
  const int64_t tasks = tiles_of(args) * splits;
  const int64_t blocks = (row_bytes(args) + kBlockBytes - 1) / kBlockBytes;
  const auto deep = static_cast<double>((blocks + splits - 1) / splits * kBlockBytes);
  const double sums = splits == 1 ? 0 : 2.0 * 4 * kSkinnyTileN * static_cast<double>(args.m);
  const auto rounds = static_cast<double>((tasks + units - 1) / units);
  return rounds * (kSkinnyTileN * deep + sums + kStart);
}

Plan plan(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (const auto why = refuse(args.a.dtype, device); !why.empty()) {
    return {.why = why};
  }
  const int64_t blocks = (row_bytes(args) + kBlockBytes - 1) / kBlockBytes;
  int best = 1;
  for (int splits = 2; splits <= std::min<int64_t>(kMostSplits, blocks / kWaves); ++splits) {
    if (bytes_of_busiest(args, splits, device) < bytes_of_busiest(args, best, device)) {
      best = splits;
    }
  }
  const bool sparse = can_be_sparse(args, device);
  return plan_of(args, sparse, best,
                 sparse ? "8 rows fill a sparse operand, and would half fill a dense one"
                        : "rows in strips of 16");
}

std::vector<Plan> candidates(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  if (!refuse(args.a.dtype, device).empty()) {
    return plans;
  }
  const int64_t blocks = (row_bytes(args) + kBlockBytes - 1) / kBlockBytes;
  for (const bool sparse : {false, true}) {
    if (sparse && !can_be_sparse(args, device)) {
      continue;
    }
    for (int splits = 1; splits <= std::min<int64_t>(kMostSplits, blocks); ++splits) {
      plans.push_back(plan_of(args, sparse, splits, {}));
    }
  }
  return plans;
}

size_t workspace(const GemmSkinnyArgs& args, const Plan& plan) {
  return plan.splits == 1 ? 0
                          : kCounterBytes + static_cast<size_t>(tiles_of(args) * plan.splits *
                                                                args.m * kSkinnyTileN) *
                                                sizeof(float);
}

Status launch(const GemmSkinnyArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("gemm_skinny", args.workspace, workspace(args, plan)));
  const bool whole = args.scaling == Scaling::tensor;  // one scale: all rows find it
  const GemmSkinnyParams params{.a = args.a.data,
                                .b = args.b.data,
                                .a_scale = args.a_scale.data,
                                .b_scale = args.b_scale.data,
                                .out = args.out.data,
                                .partial = static_cast<float*>(partial_sums(args.workspace)),
                                .tickets = static_cast<uint32_t*>(args.workspace.data),
                                .a_stride = stride_bytes(args.a),
                                .b_stride = stride_bytes(args.b),
                                .out_stride = stride_bytes(args.out),
                                .a_scale_row_stride = whole ? 0 : args.a_scale.row_stride,
                                .a_scale_block_stride = args.a_scale.block_stride,
                                .b_scale_row_stride = whole ? 0 : args.b_scale.row_stride,
                                .b_scale_block_stride = args.b_scale.block_stride,
                                .m = static_cast<int32_t>(args.m),
                                .n = static_cast<int32_t>(args.n),
                                .row_bytes = static_cast<int32_t>(row_bytes(args)),
                                .tiles = static_cast<int32_t>(tiles_of(args)),
                                .splits = plan.splits,
                                .out_f32 = args.out.dtype == DType::f32 ? 1 : 0};
  const std::string kernel = fmt::format("gemm_skinny_{}{}_{}", short_name(args.a.dtype),
                                         args.scaling == Scaling::block ? "_block"
                                         : plan.kernel == "sparse"      ? "_sparse"
                                                                        : "",
                                         plan.tile_m);
  return hip_device(stream).launch({.operation = "gemm_skinny",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(params.tiles * plan.splits),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

}  // namespace

const weft::Kernel<GemmSkinnyArgs> gemm_skinny = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

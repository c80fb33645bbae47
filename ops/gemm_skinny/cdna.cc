// gemm_skinny on AMD, the host's side.
#include "ops/gemm_skinny/cdna.h"

#include <algorithm>

#include "base/divide.h"
#include "ops/cdna_launch.h"
#include "ops/gemm_skinny/op.h"

namespace weft::cdna {
namespace {

constexpr int64_t kBlockBytes = 128;  // of k: what a wave multiplies at a time
constexpr int64_t kWaves = 4;
constexpr int kMostSplits = 32;
constexpr int kTileColumns[] = {64, 16};  // what there are kernels for
constexpr int kQueueColumns = 64;

int64_t row_bytes(const GemmSkinnyArgs& args) {
  return args.k * static_cast<int64_t>(size_of(args.a.dtype));
}
int64_t tiles_of(const GemmSkinnyArgs& args, int columns) { return ceil_div(args.n, columns); }
/// Splits of k that leave every wave a block, and every tile a ticket.
int most_splits(const GemmSkinnyArgs& args, int columns) {
  const int64_t blocks = ceil_div(row_bytes(args), kBlockBytes);
  const bool tickets = tiles_of(args, columns) <= static_cast<int64_t>(kCounterBytes / 4);
  return tickets ? static_cast<int>(std::clamp<int64_t>(blocks / kWaves, 1, kMostSplits)) : 1;
}

/// The kernels: b through registers, or through a queue in LDS from producing to multiplying waves.
enum class Way : uint8_t { stream, queue };
constexpr int kQueueThreads = 640;

Plan plan_of(const GemmSkinnyArgs& args, Way way, bool sparse, int columns, int splits,
             std::string_view why) {
  return {.kernel = way == Way::queue ? (sparse ? "sparse queue" : "queue")
                                      : (sparse ? "sparse" : "stream"),
          .tile_m = sparse         ? 8
                    : args.m <= 16 ? 16
                                   : 32,
          .tile_n = columns,
          .tile_k = static_cast<int>(kBlockBytes),
          .splits = splits,
          .threads = way == Way::queue ? kQueueThreads : static_cast<int>(kWaves * kWaveLanes),
          .why = why};
}

/// The 4:2-sparse form pays where the dense instruction has 32 of k only and half of its rows would
/// be empty.
bool can_be_sparse(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  return device.target == name_of(Target::gfx942) && is_fp8(args.a.dtype) && args.m <= 8 &&
         args.scaling != Scaling::block;
}

/// Which way for which shapes: the first row that fits. From what is published of MI300X: producing
/// waves pay for few rows and deep products, and lose at 32 rows (Hugging Face, "Creating custom
/// kernels for the AMD MI300"). `weft tune` on a GPU can know better.
struct WayRow {
  int64_t most_m;
  int64_t least_n;
  int64_t least_k;
  Way way;
};
constexpr WayRow kWays[] = {
    {16, 2048, 8192, Way::queue}, {16, 8192, 6144, Way::queue}, {kSkinnyRows, 0, 0, Way::stream}};

Way way_for(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (args.scaling == Scaling::block || device.target != name_of(Target::gfx942)) {
    return Way::stream;
  }
  return std::find_if(std::begin(kWays), std::end(kWays),
                      [&](const WayRow& row) {
                        return args.m <= row.most_m && args.n >= row.least_n &&
                               args.k >= row.least_k;
                      })
      ->way;
}

/// What a plan costs, in bytes that could be read meanwhile: what the busiest compute unit reads of
/// b and of a, which comes from the L2 cache several times as fast; the start of its workgroups;
/// and its share of the sums that splits leave in memory and read again.
double cost(const GemmSkinnyArgs& args, int columns, int splits, const DeviceInfo& device) {
  constexpr double kStart = 8192;
  constexpr double kCached = 0.25;
  const int64_t units = std::max(device.units, 1);
  const int64_t tiles = tiles_of(args, columns);
  const int64_t rounds = ceil_div(tiles * splits, units);
  const int64_t blocks = ceil_div(row_bytes(args), kBlockBytes);
  const auto deep = static_cast<double>(ceil_div(blocks, splits) * kBlockBytes);
  const auto rows = static_cast<double>(args.m);
  const double sums = splits == 1 ? 0 : 2.0 * 4 * columns * rows;
  return static_cast<double>(rounds) * (deep * (columns + kCached * rows) + sums + kStart);
}

/// Sums in memory are kept to an eighth of b, which is what bounds the operation.
bool sums_are_few(const GemmSkinnyArgs& args, int splits) {
  return splits == 1 || 2 * 4 * args.m * splits * 8 <= row_bytes(args);
}

Plan plan(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  if (const auto why = refuse(args.a.dtype, device); !why.empty()) {
    return {.why = why};
  }
  const Way way = way_for(args, device);
  int best_columns = kTileColumns[0];
  int best_splits = 1;
  for (const int columns : kTileColumns) {
    if (way == Way::queue && columns != kQueueColumns) {
      continue;
    }
    for (int splits = 1; splits <= most_splits(args, columns) && sums_are_few(args, splits);
         ++splits) {
      if (cost(args, columns, splits, device) < cost(args, best_columns, best_splits, device)) {
        best_columns = columns;
        best_splits = splits;
      }
    }
  }
  const bool sparse = can_be_sparse(args, device);
  return plan_of(args, way, sparse, best_columns, best_splits,
                 way == Way::queue ? "few rows, deep: from the table of ways"
                 : sparse          ? "8 rows fill a sparse operand, and would half fill a dense one"
                                   : "rows in strips of 16");
}

std::vector<Plan> candidates(const GemmSkinnyArgs& args, const DeviceInfo& device) {
  std::vector<Plan> plans;
  if (!refuse(args.a.dtype, device).empty()) {
    return plans;
  }
  for (const Way way : {Way::stream, Way::queue}) {
    for (const bool sparse : {false, true}) {
      for (const int columns : kTileColumns) {
        const bool there =
            way == Way::stream || (columns == kQueueColumns && args.scaling != Scaling::block);
        for (int splits = 1; splits <= most_splits(args, columns) && there; ++splits) {
          if (!sparse || can_be_sparse(args, device)) {
            plans.push_back(plan_of(args, way, sparse, columns, splits, {}));
          }
        }
      }
    }
  }
  return plans;
}

size_t workspace(const GemmSkinnyArgs& args, const Plan& plan) {
  return plan.splits == 1
             ? 0
             : kCounterBytes + static_cast<size_t>(tiles_of(args, plan.tile_n) * plan.splits *
                                                   args.m * plan.tile_n) *
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
                                .tiles = static_cast<int32_t>(tiles_of(args, plan.tile_n)),
                                .splits = plan.splits,
                                .out_f32 = args.out.dtype == DType::f32 ? 1 : 0};
  const std::string kernel =
      fmt::format("gemm_skinny_{}{}{}_{}x{}", plan.threads == kQueueThreads ? "queue_" : "",
                  short_name(args.a.dtype),
                  args.scaling == Scaling::block ? "_block"
                  : plan.tile_m == 8             ? "_sparse"
                                                 : "",
                  plan.tile_m, plan.tile_n);
  return hip_device(stream).launch({.operation = "gemm_skinny",
                                    .kernel = kernel,
                                    .groups_x = static_cast<uint32_t>(params.tiles * plan.splits),
                                    .threads = static_cast<uint32_t>(plan.threads)},
                                   params, stream.native);
}

}  // namespace

const weft::Kernel<GemmSkinnyArgs> gemm_skinny = {plan, candidates, workspace, launch};

}  // namespace weft::cdna

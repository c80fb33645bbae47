// mla_decode on sm_90a: which kernel, and its launch.
#include <algorithm>

#include "arch/hopper/clusters.h"
#include "arch/hopper/launch.cuh"
#include "arch/hopper/tensor_map.h"
#include "base/divide.h"
#include "ops/check_operands.h"
#include "ops/mla_decode/hopper_few.cuh"
#include "ops/mla_decode/hopper_many.cuh"

namespace weft::hopper {
namespace {

int row_tiles(const MlaDecodeArgs& args, const Plan& plan) {
  return static_cast<int>(ceil_div(args.rows(), plan.tile_m));
}

/// Counters, then parts of sequences that units share.
size_t workspace(const MlaDecodeArgs& args, const Plan& plan) {
  return static_cast<size_t>(kCounterBytes + int64_t{plan.splits} * row_tiles(args, plan) * 2 *
                                                 latent_part_floats(plan) * 4);
}

template <int kCluster, bool kFp8>
auto kernel_of(const Plan& plan) {
  return plan.kernel == "many" ? mla_decode_many<kCluster, kFp8>
         : plan.tile_m == 16   ? mla_decode_few<1, kCluster, kFp8>
                               : mla_decode_few<2, kCluster, kFp8>;
}
template <bool kFp8>
auto kernel_of(const Plan& plan) {
  return plan.cluster == 1 ? kernel_of<1, kFp8>(plan) : kernel_of<8, kFp8>(plan);
}

Status launch(const MlaDecodeArgs& args, const Plan& plan, Stream stream) {
  WEFT_TRY(check_workspace("mla_decode", args.workspace.bytes, workspace(args, plan)));
  const LatentCache& cache = args.cache;
  const bool fp8 = cache.dtype == DType::e4m3fn;
  CUtensorMap map{};  // rows in e4m3fn are read without
  if (!fp8) {
    WEFT_ASSIGN(map, tensor_map({.data = cache.rows,
                                 .format = MapFormat::bf16,
                                 .rows = cache.block_rows,
                                 .columns = kLatentRow,
                                 .stride_bytes = cache.row_bytes(),
                                 .box_rows = plan.tile_k,
                                 .box_columns = kLatentTileColumns,
                                 .planes = cache.blocks,
                                 .plane_bytes = cache.block_stride * cache.row_bytes()}));
  }
  constexpr float kLog2E = 1.4426950408889634f;
  auto* memory = static_cast<std::byte*>(args.workspace.data);
  MlaParams p{.args = args,
              .by_heads = Divisor(static_cast<int>(args.heads)),
              .score_scale = args.scale * kLog2E,
              .units = plan.splits,
              .row_tiles = row_tiles(args, plan),
              .of_units = reinterpret_cast<float*>(memory + kCounterBytes),
              .counters = reinterpret_cast<uint32_t*>(memory)};
  const auto kernel = cache.angles != nullptr ? mla_decode_many<1, false, true>
                      : fp8                   ? kernel_of<true>(plan)
                                              : kernel_of<false>(plan);
  p.args.alone = whole_sequences(args, stream.device->info());
  LaunchShape shape{.blocks = plan.splits * p.row_tiles * plan.cluster,
                    .threads = plan.threads,
                    .cluster = plan.cluster,
                    .shared_bytes = plan.kernel == "many" ? ManyLatents::kBytes
                                    : plan.tile_m == 16   ? FewLatents<1>::kBytes
                                                          : FewLatents<2>::kBytes,
                    .overlaps = true,
                    .stream = static_cast<cudaStream_t>(stream.native)};
  if (plan.cluster > 1) {
    // Clusters that find no place at first would begin when the others end.
    WEFT_ASSIGN(const int most, resident_clusters(reinterpret_cast<const void*>(kernel), shape));
    p.units = std::max(1, std::min(p.units, most / p.row_tiles));
    shape.blocks = p.units * p.row_tiles * plan.cluster;
  }
  return launch_kernel(kernel, shape, map, p);
}

}  // namespace

const Kernel<MlaDecodeArgs> mla_decode = {plan_mla_decode, mla_decode_candidates, workspace,
                                          launch};

}  // namespace weft::hopper

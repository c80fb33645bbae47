#include "ops/gemm_fp8_blockwise/op.h"

#include <fmt/format.h>

#include <limits>

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "gemm_fp8_blockwise";

/// On the CPU, which can read them.
Status check_group_of(const GemmFp8BlockwiseArgs& args) {
  for (int64_t i = 0; args.groups > 0 && i < args.m / kGroupRows; ++i) {
    WEFT_TRY(check_size(kName, "a group in group_of", args.group_of[i], -1));
    WEFT_TRY(check_at_most(kName, "a group in group_of", args.group_of[i], args.groups - 1));
  }
  return {};
}

}  // namespace

Status check(const GemmFp8BlockwiseArgs& args) {
  WEFT_TRY(check_size(kName, "m", args.m, 1));
  WEFT_TRY(check_size(kName, "n", args.n, 8, 8));
  WEFT_TRY(check_size(kName, "k", args.k, kScaleBlock, kScaleBlock));
  const bool k_major = args.layout == Fp8Layout::k_major;
  WEFT_TRY(check_size(kName, "groups", args.groups, 0));
  if (args.groups > 0) {
    WEFT_TRY(check_size(kName, "m with groups", args.m, kGroupRows, kGroupRows));
    WEFT_TRY(check_at_most(kName, "groups * n", args.groups * args.n,
                           std::numeric_limits<int32_t>::max()));
  }
  if ((args.group_of != nullptr) != (args.groups > 0)) {
    return usage_error(fmt::format("{}: group_of {}, but groups is {}", kName,
                                   args.group_of != nullptr ? "is given" : "is null", args.groups));
  }
  if (args.groups > 0 && !k_major) {
    return usage_error(
        fmt::format("{}: layout is mn_major, but with groups must be k_major", kName));
  }
  WEFT_TRY(check_matrix(kName, "a", args.a, k_major ? args.k : args.m,
                        {DType::e4m3fn, DType::e4m3fnuz}));
  WEFT_TRY(check_matrix(kName, "b", args.b, k_major ? args.k : args.n, {args.a.dtype}));
  WEFT_TRY(check_scales(kName, "a_scale", args.a_scale.data, Scaling::block));
  WEFT_TRY(check_scales(kName, "b_scale", args.b_scale.data, Scaling::block));
  return check_matrix(kName, "out", args.out, args.n, {DType::bf16});
}

PlanKey plan_key(const GemmFp8BlockwiseArgs& args) {
  constexpr std::string_view kFormats[2][4] = {
      {"e4m3fn,k-major", "e4m3fn,mn-major", "e4m3fn,large groups", "e4m3fn,small groups"},
      {"e4m3fnuz,k-major", "e4m3fnuz,mn-major", "e4m3fnuz,large groups", "e4m3fnuz,small groups"}};
  // Small groups read more of b for a row: plans measured for large ones say nothing of them.
  constexpr int64_t kLargeGroup = 8 * kGroupRows;
  const int layout = args.groups > 0 ? (args.m >= args.groups * kLargeGroup ? 2 : 3)
                     : args.layout == Fp8Layout::mn_major ? 1
                                                          : 0;
  return {args.m, args.n, args.k, kFormats[args.a.dtype == DType::e4m3fnuz ? 1 : 0][layout]};
}

const Kernel<GemmFp8BlockwiseArgs>* gemm_fp8_blockwise_kernel(Arch arch) {
  return WEFT_KERNEL_OF(gemm_fp8_blockwise)(arch);
}

Result<size_t> gemm_fp8_blockwise_workspace(const GemmFp8BlockwiseArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::gemm_fp8_blockwise_scratch_bytes(args, args.m);
  }
  return workspace_bytes(kName, gemm_fp8_blockwise_kernel(stream.device->info().arch), args,
                         stream);
}

Status gemm_fp8_blockwise(const GemmFp8BlockwiseArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    WEFT_TRY(check_group_of(args));
    const size_t needs = cpu::gemm_fp8_blockwise_scratch_bytes(args, args.m);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::gemm_fp8_blockwise(args, {0, args.m}, {0, args.n},
                            {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, gemm_fp8_blockwise_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft

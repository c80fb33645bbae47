#include "ops/mla_decode/op.h"

#include <fmt/format.h>

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "mla_decode";

/// From 1 to `most`.
Status check_count(std::string_view name, int64_t value, int64_t most) {
  WEFT_TRY(check_size(kName, name, value, 1));
  return check_at_most(kName, name, value, most);
}

}  // namespace

Status check(const MlaDecodeArgs& args) {
  WEFT_TRY(check_count("batch", args.batch, kLatentSequences));
  WEFT_TRY(check_count("tokens", args.tokens, kLatentTokens));
  WEFT_TRY(check_count("heads", args.heads, kLatentHeads));
  WEFT_TRY(check_matrix(kName, "q", args.q, args.heads * kLatentRow, {DType::bf16}));
  WEFT_TRY(
      check_matrix(kName, "out", args.out, args.heads * kLatentRank, {DType::bf16, DType::f32}));
  const LatentCache& cache = args.cache;
  // Rows lie one after the other: what check_matrix() asks of a pointer and a format.
  const bool fp8 = cache.dtype == DType::e4m3fn;
  const int64_t columns = fp8 ? kLatentFp8Bytes : kLatentRow;
  WEFT_TRY(check_matrix(kName, "cache", {cache.rows, cache.dtype, columns}, columns,
                        {DType::bf16, DType::e4m3fn}));
  WEFT_TRY(check_size(kName, "the cache's blocks", cache.blocks, 1));
  WEFT_TRY(check_size(kName, "the cache's block_rows", cache.block_rows, 1));
  WEFT_TRY(check_size(kName, "the cache's block_stride", cache.block_stride, cache.block_rows));
  if (cache.angles != nullptr) {
    WEFT_TRY(check_matrix(kName, "the cache's angles", {cache.angles, DType::bf16, kLatentTurned},
                          kLatentTurned, {DType::bf16}));
    WEFT_TRY(check_matrix(kName, "cache (with angles)", {cache.rows, cache.dtype, columns}, columns,
                          {DType::bf16}));
  }
  if (cache.tables != nullptr && cache.block_rows != kKvPage) {
    return usage_error(
        fmt::format("{}: pages have {} rows, but must have {}", kName, cache.block_rows, kKvPage));
  }
  if (args.run && (cache.tables != nullptr || cache.owners != nullptr)) {
    return usage_error(fmt::format("{}: a run of one sequence is in block 0, not in pages", kName));
  }
  if (cache.tables == nullptr && cache.owners == nullptr && !args.run &&
      cache.blocks < args.batch) {
    return usage_error(fmt::format("{}: the cache has {} sequences, but the batch has {}", kName,
                                   cache.blocks, args.batch));
  }
  if (args.lengths == nullptr && !args.run) {
    return usage_error(
        fmt::format("{}: lengths is null, but must say how many keys each sequence has", kName));
  }
  if (!(args.scale > 0)) {
    return usage_error(fmt::format("{}: scale is {}, but must be positive", kName, args.scale));
  }
  return {};
}

PlanKey plan_key(const MlaDecodeArgs& args) {
  return {args.batch, args.rows(), 0, name_of(args.cache.dtype)};
}

const Kernel<MlaDecodeArgs>* mla_decode_kernel(Arch arch) {
  return WEFT_KERNEL_OF(mla_decode)(arch);
}

Result<size_t> mla_decode_workspace(const MlaDecodeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::mla_decode_scratch_bytes(args);
  }
  return workspace_bytes(kName, mla_decode_kernel(stream.device->info().arch), args, stream);
}

Status mla_decode(const MlaDecodeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::mla_decode_scratch_bytes(args);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::mla_decode(args, {0, args.batch}, {0, args.heads},
                    {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, mla_decode_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft

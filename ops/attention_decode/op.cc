#include "ops/attention_decode/op.h"

#include <fmt/format.h>

#include "base/built.h"
#include "ops/check_operands.h"

namespace weft {
namespace {

constexpr std::string_view kName = "attention_decode";

}  // namespace

Status check(const AttentionDecodeArgs& args) {
  WEFT_TRY(check_size(kName, "batch", args.batch, 1));
  WEFT_TRY(check_size(kName, "tokens", args.tokens, 1));
  WEFT_TRY(check_at_most(kName, "tokens", args.tokens, kDecodeTokens));
  WEFT_TRY(check_size(kName, "kv_heads", args.kv_heads, 1));
  WEFT_TRY(check_size(kName, "query_heads", args.query_heads, args.kv_heads, args.kv_heads));
  WEFT_TRY(check_size(kName, "head_dim", args.head_dim, 8, 8));
  WEFT_TRY(check_at_most(kName, "head_dim", args.head_dim, kDecodeDim));
  const int64_t columns = args.query_heads * args.head_dim;
  WEFT_TRY(check_matrix(kName, "q", args.q, columns, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "out", args.out, columns, {DType::bf16, DType::f32}));
  const KvBlocks& cache = args.cache;
  WEFT_TRY(check_size(kName, "the cache's blocks", cache.blocks, 1));
  WEFT_TRY(check_size(kName, "the cache's block_rows", cache.block_rows, 1));
  const int64_t head = cache.block_rows * args.head_dim;
  WEFT_TRY(check_matrix(kName, "keys", {cache.keys, DType::bf16, cache.head_stride}, head,
                        {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "values", {cache.values, DType::bf16, cache.head_stride}, head,
                        {DType::bf16}));
  if (cache.tables != nullptr && cache.block_rows != kKvPage) {
    return usage_error(fmt::format("{}: pages have {} positions, but must have {}", kName,
                                   cache.block_rows, kKvPage));
  }
  if (cache.tables == nullptr && cache.blocks < args.batch) {
    return usage_error(fmt::format("{}: the cache has {} sequences, but the batch has {}", kName,
                                   cache.blocks, args.batch));
  }
  if (args.lengths == nullptr) {
    return usage_error(
        fmt::format("{}: lengths is null, but must say how many keys each sequence has", kName));
  }
  if (!(args.scale > 0)) {
    return usage_error(fmt::format("{}: scale is {}, but must be positive", kName, args.scale));
  }
  if (!(args.soft_cap >= 0)) {
    return usage_error(
        fmt::format("{}: soft_cap is {}, but must be 0 (none) or more", kName, args.soft_cap));
  }
  return check_size(kName, "window", args.window, 0);
}

PlanKey plan_key(const AttentionDecodeArgs& args) {
  return {args.batch * args.kv_heads, args.query_heads / args.kv_heads * args.tokens, args.head_dim,
          name_of(args.out.dtype)};
}

const Kernel<AttentionDecodeArgs>* attention_decode_kernel(Arch arch) {
  return WEFT_KERNEL_OF(attention_decode)(arch);
}

Result<size_t> attention_decode_workspace(const AttentionDecodeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::attention_decode_scratch_bytes(args);
  }
  return workspace_bytes(kName, attention_decode_kernel(stream.device->info().arch), args, stream);
}

Status attention_decode(const AttentionDecodeArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::attention_decode_scratch_bytes(args);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::attention_decode(args, {0, args.batch}, {0, args.kv_heads},
                          {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, attention_decode_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft

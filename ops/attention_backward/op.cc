#include "ops/attention_backward/op.h"

#include "base/built.h"

namespace weft {
namespace {

constexpr std::string_view kName = "attention_backward";

}  // namespace

Status check(const AttentionBackwardArgs& args) {
  const int64_t columns = args.shape.query_columns();
  const int64_t kv_columns = args.shape.kv_columns();
  WEFT_TRY(check(kName, args.shape));
  WEFT_TRY(check_matrix(kName, "q", args.q, columns, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "k", args.k, kv_columns, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "v", args.v, kv_columns, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "out", args.out, columns, {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "d_out", args.d_out, columns, {DType::bf16}));
  if (args.lse == nullptr) {
    return usage_error("attention_backward: lse is null");
  }
  WEFT_TRY(check_matrix(kName, "d_q", args.d_q, columns, {DType::bf16, DType::f32}));
  WEFT_TRY(check_matrix(kName, "d_k", args.d_k, kv_columns, {args.d_q.dtype}));
  return check_matrix(kName, "d_v", args.d_v, kv_columns, {args.d_q.dtype});
}

PlanKey plan_key(const AttentionBackwardArgs& args) { return plan_key(args.shape); }

const Kernel<AttentionBackwardArgs>* attention_backward_kernel(Arch arch) {
  if constexpr (built::cdna(kName)) {
    return arch == Arch::cdna ? &cdna::attention_backward : nullptr;
  }
  return nullptr;
}

Result<size_t> attention_backward_workspace(const AttentionBackwardArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::attention_backward_scratch_bytes(args);
  }
  return workspace_bytes(kName, attention_backward_kernel(stream.device->info().arch), args,
                         stream);
}

Status attention_backward(const AttentionBackwardArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::attention_backward_scratch_bytes(args);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::attention_backward(args, {0, args.shape.sequences * args.shape.kv_heads},
                            {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, attention_backward_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft

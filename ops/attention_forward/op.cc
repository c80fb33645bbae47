#include "ops/attention_forward/op.h"

#include "base/built.h"

namespace weft {
namespace {

constexpr std::string_view kName = "attention_forward";

}  // namespace

Status check(const AttentionForwardArgs& args) {
  WEFT_TRY(check(kName, args.shape));
  WEFT_TRY(check_matrix(kName, "q", args.q, args.shape.query_columns(), {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "k", args.k, args.shape.kv_columns(), {DType::bf16}));
  WEFT_TRY(check_matrix(kName, "v", args.v, args.shape.kv_columns(), {DType::bf16}));
  return check_matrix(kName, "out", args.out, args.shape.query_columns(),
                      {DType::bf16, DType::f32});
}

PlanKey plan_key(const AttentionForwardArgs& args) { return plan_key(args.shape); }

const Kernel<AttentionForwardArgs>* attention_forward_kernel(Arch arch) {
  if constexpr (built::cdna(kName)) {
    return arch == Arch::cdna ? &cdna::attention_forward : nullptr;
  }
  return nullptr;
}

Result<size_t> attention_forward_workspace(const AttentionForwardArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    return cpu::attention_forward_scratch_bytes(args);
  }
  return workspace_bytes(kName, attention_forward_kernel(stream.device->info().arch), args, stream);
}

Status attention_forward(const AttentionForwardArgs& args, Stream stream) {
  WEFT_TRY(check(args));
  if (stream.device == nullptr) {
    const size_t needs = cpu::attention_forward_scratch_bytes(args);
    WEFT_TRY(check_workspace(kName, args.workspace.bytes, needs));
    cpu::attention_forward(args, {0, args.shape.sequences * args.shape.query_heads},
                           {static_cast<std::byte*>(args.workspace.data), needs});
    return {};
  }
  return launch(kName, attention_forward_kernel(stream.device->info().arch), args, stream);
}

}  // namespace weft

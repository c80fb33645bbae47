"""The plug-in for vLLM (entry point vllm.general_plugins): Weft's operations under the signatures by which vLLM
calls its own, as torch.ops.weft_vllm.*, for a quantisation method or a custom model to call.

vLLM calls register() in each of its processes. It needs no vLLM to be imported.
"""

import torch

from weft import ops

_registered = False


def w8a8_block_fp8_matmul(
    A: torch.Tensor,
    B: torch.Tensor,
    As: torch.Tensor,
    Bs: torch.Tensor,
    block_size: list[int],
    output_dtype: torch.dtype = torch.bfloat16,
) -> torch.Tensor:
    """A [..., k] fp8 with scales As [..., k / 128], B [n, k] with Bs [n / 128, k / 128]; the result
    [..., n]."""
    torch._check(list(block_size) == [128, 128], lambda: f"block_size {block_size} is not [128, 128]")
    rows = A.reshape(-1, A.shape[-1])
    scales = As.reshape(rows.shape[0], -1)
    product = ops.gemm_skinny if rows.shape[0] <= 32 else ops.gemm_fp8_blockwise
    return product(rows, B, scales, Bs).reshape(*A.shape[:-1], B.shape[0]).to(output_dtype)


def rms_norm_dynamic_per_token_quant(
    result: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    scale: torch.Tensor,
    epsilon: float,
    scale_ub: torch.Tensor | None,
    residual: torch.Tensor | None,
) -> None:
    """The norm of input (+ residual, which becomes the sum) in fp8 into result, a scale of each row into scale
    [rows, 1], both contiguous. Scales have no bound: scale_ub must be None."""
    torch._check(scale_ub is None, lambda: "scale_ub is given, but scales are not bounded here")
    fnuz = result.dtype == torch.float8_e4m3fnuz
    ops.rmsnorm_quant_out(result, scale.view(-1, 1), input, weight, residual, epsilon, 0, fnuz)


def silu_and_mul_quant(result: torch.Tensor, input: torch.Tensor, scale: torch.Tensor) -> None:
    """silu(gate) * up / scale in fp8 into result [..., d], contiguous, of input [..., 2 d], gate and up side by
    side."""
    gate, up = input.chunk(2, -1)
    ops.swiglu_quant_static_out(result, gate, up, scale, result.dtype == torch.float8_e4m3fnuz)


def register():
    """Registers torch.ops.weft_vllm.*; again does nothing."""
    global _registered
    if _registered:
        return
    _registered = True
    custom = torch.library.custom_op
    matmul = custom("weft_vllm::w8a8_block_fp8_matmul", w8a8_block_fp8_matmul, mutates_args=())
    matmul.register_fake(
        lambda A, B, As, Bs, block_size, output_dtype=torch.bfloat16: A.new_empty(
            (*A.shape[:-1], B.shape[0]), dtype=output_dtype
        )
    )
    custom(
        "weft_vllm::rms_norm_dynamic_per_token_quant",
        rms_norm_dynamic_per_token_quant,
        mutates_args=("result", "scale", "residual"),
    )
    custom("weft_vllm::silu_and_mul_quant", silu_and_mul_quant, mutates_args=("result",))

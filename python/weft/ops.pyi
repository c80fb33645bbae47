from torch import Tensor, device, dtype

BLOCK: int
NAMES: tuple[str, ...]

def gemm_bf16(a: Tensor, b: Tensor, out_f32: bool = False) -> Tensor: ...
def gemm_fp8_blockwise(a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor) -> Tensor: ...
def gemm_fp8_grouped(
    a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, group_of: Tensor
) -> Tensor: ...
def gemm_skinny(
    a: Tensor,
    b: Tensor,
    a_scale: Tensor | None = None,
    b_scale: Tensor | None = None,
    out_f32: bool = False,
) -> Tensor: ...
def rmsnorm(
    x: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-5
) -> Tensor: ...
def rmsnorm_quant(
    x: Tensor,
    weight: Tensor,
    residual: Tensor | None = None,
    epsilon: float = 1e-5,
    group: int = 0,
    fnuz: bool = False,
) -> tuple[Tensor, Tensor]: ...
def rmsnorm_quant_static(
    x: Tensor,
    weight: Tensor,
    scale: Tensor,
    residual: Tensor | None = None,
    epsilon: float = 1e-5,
    fnuz: bool = False,
) -> Tensor: ...
def swiglu(gate: Tensor, up: Tensor) -> Tensor: ...
def swiglu_quant(
    gate: Tensor, up: Tensor, group: int = 0, fnuz: bool = False
) -> tuple[Tensor, Tensor]: ...
def swiglu_quant_static(gate: Tensor, up: Tensor, scale: Tensor, fnuz: bool = False) -> Tensor: ...
def route(
    logits: Tensor,
    chosen: int,
    sigmoid: bool = False,
    renormalise: bool = False,
    correction: Tensor | None = None,
    groups: int = 1,
    kept_groups: int = 1,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]: ...
def moe(
    x: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    ids: Tensor,
    weights: Tensor,
    gate_scale: Tensor | None = None,
    up_scale: Tensor | None = None,
    down_scale: Tensor | None = None,
    gate_bias: Tensor | None = None,
    up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
    limit: float = 0.0,
    out_f32: bool = False,
) -> Tensor: ...
def mxfp4(codes: Tensor, scales: Tensor) -> Tensor: ...
def moe_layer(
    x: Tensor, router: Tensor, gate: Tensor, up: Tensor, down: Tensor, chosen: int
) -> Tensor: ...
def mla_layer(
    x: Tensor,
    q_down: Tensor,
    q_up: Tensor,
    kv_down: Tensor,
    kv_up: Tensor,
    o: Tensor,
    cache: Tensor,
    angles: Tensor,
    prefill: int,
) -> Tensor: ...
def mla_layer_angles(positions: int, device: device | str = "cpu") -> Tensor: ...
def gemm_bf16_out(
    out: Tensor, a: Tensor, b: Tensor, out_f32: bool = False
) -> None: ...
def gemm_fp8_blockwise_out(
    out: Tensor, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor
) -> None: ...
def gemm_fp8_grouped_out(
    out: Tensor, a: Tensor, b: Tensor, a_scale: Tensor, b_scale: Tensor, group_of: Tensor
) -> None: ...
def gemm_skinny_out(
    out: Tensor, a: Tensor, b: Tensor, a_scale: Tensor | None = None, b_scale: Tensor | None = None, out_f32: bool = False
) -> None: ...
def rmsnorm_out(
    out: Tensor, x: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-5
) -> None: ...
def rmsnorm_quant_out(
    out: Tensor, scales: Tensor, x: Tensor, weight: Tensor, residual: Tensor | None = None, epsilon: float = 1e-5, group: int = 0, fnuz: bool = False
) -> None: ...
def rmsnorm_quant_static_out(
    out: Tensor, x: Tensor, weight: Tensor, scale: Tensor, residual: Tensor | None = None, epsilon: float = 1e-5, fnuz: bool = False
) -> None: ...
def swiglu_out(
    out: Tensor, gate: Tensor, up: Tensor
) -> None: ...
def swiglu_quant_out(
    out: Tensor, scales: Tensor, gate: Tensor, up: Tensor, group: int = 0, fnuz: bool = False
) -> None: ...
def swiglu_quant_static_out(
    out: Tensor, gate: Tensor, up: Tensor, scale: Tensor, fnuz: bool = False
) -> None: ...
def route_out(
    ids: Tensor, weights: Tensor, logits: Tensor, chosen: int, sigmoid: bool = False, renormalise: bool = False, correction: Tensor | None = None, groups: int = 1, kept_groups: int = 1, scale: float = 1.0
) -> None: ...
def moe_out(
    out: Tensor, x: Tensor, gate: Tensor, up: Tensor, down: Tensor, ids: Tensor, weights: Tensor, gate_scale: Tensor | None = None, up_scale: Tensor | None = None, down_scale: Tensor | None = None, gate_bias: Tensor | None = None, up_bias: Tensor | None = None, down_bias: Tensor | None = None, limit: float = 0.0, out_f32: bool = False
) -> None: ...
def moe_layer_out(
    out: Tensor, x: Tensor, router: Tensor, gate: Tensor, up: Tensor, down: Tensor, chosen: int
) -> None: ...
def mla_layer_out(
    out: Tensor, x: Tensor, q_down: Tensor, q_up: Tensor, kv_down: Tensor, kv_up: Tensor, o: Tensor, cache: Tensor, angles: Tensor, prefill: int
) -> None: ...
def fp8_dtype(device: device | str) -> dtype: ...

"""Operations for PyTorch's tensors, on the CPU, NVIDIA Hopper GPUs and AMD CDNA3/4 GPUs.

Each is `torch.ops.weft.NAME`, too: it runs on PyTorch's current stream, can be captured in CUDA graphs, and has a
fake kernel, so that torch.compile takes it without a graph break. None is differentiable. What a tensor must
be is refused otherwise with a RuntimeError that says it in a sentence. `weft.reference` has the same functions in
plain PyTorch. NAME_out(out, ...), or NAME_out(out, scales, ...) where there are two results, writes into tensors that
are given.

fp8 is torch.float8_e4m3fn on Hopper, gfx950 and the CPU, torch.float8_e4m3fnuz on gfx942 and the CPU.
"""

import functools
import inspect

import torch

from weft._c import lib

if torch.version.hip and not torch.version.cuda:
    lib.weft_torch_register(b"hip")
else:
    lib.weft_torch_register(b"cuda")

BLOCK = 128
_library = torch.library.Library("weft", "DEF")


def _operator(schema, fake):
    """Declares an operator. A function of Python's around one would take a twentieth of a call. So would PyTorch's own
    __call__, which hands on what it gets in a tuple and a dictionary and nothing else: here `_op` is called without
    it. To whoever compares, a pass over a graph for one, both are the same."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.register_fake(f"weft::{name}", fake, lib=_library)
    theirs = getattr(torch.ops.weft, name).default
    direct = {
        "__call__": staticmethod(theirs._op),
        "__eq__": lambda self, other: other is self or other is theirs,
        "__hash__": torch._ops.OpOverload.__hash__,
    }
    operator = object.__new__(type("Operator", (torch._ops.OpOverload,), direct))
    vars(operator).update(vars(theirs))
    return operator


def _define(schema, given=None):
    """Declares an operator and the one whose results are given before its arguments, NAME_out. What this decorates is
    the fake kernel of the first, and its name stands for the operator itself from there on. `given`: the results'
    names there."""
    name, _, rest = schema.partition("(")
    arguments, _, results = rest.rpartition(") -> ")
    given = given or (("out", "scales") if results.startswith("(") else ("out",))

    def register(fake):
        operator = _operator(schema, fake)
        operator.__doc__, operator.__signature__ = fake.__doc__, inspect.signature(fake)
        out = ", ".join(f"Tensor({alias}!) {each}" for alias, each in zip("xy", given, strict=False))
        into = _operator(f"{name}_out({out}, {arguments}) -> ()", lambda *_, **__: None)
        either = " (float32 needs no out_f32)" if "out_f32" in arguments else ""
        into.__doc__ = (
            f"{name}() into {' and '.join(given)}, which have the shape, strides and dtype{either} of its result and share no "
            "memory with what it reads: nothing is allocated, which is a good part of a short call."
        )
        first = [inspect.Parameter(each, inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in given]
        signature = operator.__signature__
        into.__signature__ = signature.replace(parameters=[*first, *signature.parameters.values()])
        globals()[f"{name}_out"] = into
        return operator

    return register


def _fp8(fnuz):
    return torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn


def _scales(x, group):
    rows, blocks = x.numel() // x.shape[-1], 1 if group == 0 else -(-x.shape[-1] // BLOCK)
    return torch.empty_strided(
        (rows, blocks), (1, max(rows, 1)), dtype=torch.float32, device=x.device
    )


def _product(a, b, dtype):
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=dtype)


@_define("gemm_bf16(Tensor a, Tensor b, bool out_f32=False) -> Tensor")
def gemm_bf16(a, b, out_f32=False):
    """a @ b.T for many rows: a prompt's projections.

    a [..., k] and b [n, k], bfloat16, rows adjacent or evenly spaced, n and k multiples of 8, as
    torch.nn.Linear has its weight. Sums are float32; the result [..., n] is bfloat16, or float32 with `out_f32`.
    """
    return _product(a, b, torch.float32 if out_f32 else torch.bfloat16)


@_define("gemm_fp8_blockwise(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor")
def gemm_fp8_blockwise(a, b, a_scale, b_scale):
    """(a * a_scale) @ (b * b_scale).T with scales of blocks of 128, DeepSeek-V3's.

    a [m, k], b [n, k], fp8, both row-major or both column-major (a.t() of a contiguous [k, m]); n a multiple of 8,
    k of 128. a_scale [m, k / 128], one for 128 elements of a row, fastest column-major; b_scale
    [ceil(n / 128), k / 128], one for 128 x 128; float32 of any strides and signs. The result [m, n] is bfloat16.
    """
    return a.new_empty((a.shape[0], b.shape[0]), dtype=torch.bfloat16)


@_define(
    "gemm_fp8_grouped(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale, Tensor group_of) -> Tensor"
)
def gemm_fp8_grouped(a, b, a_scale, b_scale, group_of):
    """gemm_fp8_blockwise() with a b for each 128 rows of a: a mixture of experts', DeepGEMM's contiguous layout.

    a [m, k], m a multiple of 128; b [groups, n, k], rows adjacent or evenly spaced; n, k and a_scale as there; b_scale
    [groups, ceil(n / 128), k / 128], its rows evenly spaced. group_of [m / 128], int32: which b rows 128 i to
    128 i + 127 of a have, in any order, fastest where those of a group are neighbours. -1: none, and these rows of the
    result [m, n] are not written, so that they mean nothing. Numbers beyond groups are refused on the CPU; on a GPU,
    where nothing waits for them, what they do is undefined.
    """
    return a.new_empty((a.shape[0], b.shape[1]), dtype=torch.bfloat16)


@_define(
    "gemm_skinny(Tensor a, Tensor b, Tensor? a_scale=None, Tensor? b_scale=None, bool out_f32=False) -> Tensor"
)
def gemm_skinny(a, b, a_scale=None, b_scale=None, out_f32=False):
    """a @ b.T for up to 32 rows: a decode step's projections.

    a [..., k], b [n, k]: bfloat16 without scales, or fp8 with float32 scales of the whole tensors ([1] both), of
    rows ([m], [n]) or of blocks (as gemm_fp8_blockwise). n a multiple of 8, k of 16. The result [..., n] is
    bfloat16, or float32 with `out_f32`.
    """
    return _product(a, b, torch.float32 if out_f32 else torch.bfloat16)


@_define("rmsnorm(Tensor x, Tensor weight, Tensor(a!)? residual=None, float epsilon=1e-05) -> Tensor")
def rmsnorm(x, weight, residual=None, epsilon=1e-5):
    """RMS norm of h = x + residual: h / sqrt(mean(h ** 2) + epsilon) * weight, rounded once.

    x [..., columns], bfloat16 or float16, columns a multiple of 8; weight [columns] and residual (of x's shape) of
    the same dtype. h is written back to residual; without one h = x. The result is of x's shape and dtype.
    """
    return x.new_empty(x.shape)


@_define(
    "rmsnorm_quant(Tensor x, Tensor weight, Tensor(a!)? residual=None, float epsilon=1e-05, int group=0, "
    "bool fnuz=False) -> (Tensor, Tensor)"
)
def rmsnorm_quant(x, weight, residual=None, epsilon=1e-5, group=0, fnuz=False):
    """rmsnorm(), quantised to fp8: (codes, scales), number = code * scale.

    scale = max(largest |v|, 1e-10) / largest fp8 number, over each row (group 0: scales [rows, 1]) or over each
    128 columns of it (group 128: scales [rows, ceil(columns / 128)], column-major, as gemm_fp8_blockwise reads
    them fastest). `fnuz`: float8_e4m3fnuz, else float8_e4m3fn. columns must be a multiple of 16 here.
    """
    return x.new_empty(x.shape, dtype=_fp8(fnuz)), _scales(x, group)


@_define(
    "rmsnorm_quant_static(Tensor x, Tensor weight, Tensor scale, Tensor(a!)? residual=None, "
    "float epsilon=1e-05, bool fnuz=False) -> Tensor"
)
def rmsnorm_quant_static(x, weight, scale, residual=None, epsilon=1e-5, fnuz=False):
    """rmsnorm() / scale in fp8, for one given float32 scale."""
    return x.new_empty(x.shape, dtype=_fp8(fnuz))


@_define("swiglu(Tensor gate, Tensor up) -> Tensor")
def swiglu(gate, up):
    """silu(gate) * up, rounded once. gate, up [..., columns], bfloat16 or float16, columns a multiple of 8; each
    may be half of a wider tensor."""
    return gate.new_empty(gate.shape)


@_define("swiglu_quant(Tensor gate, Tensor up, int group=0, bool fnuz=False) -> (Tensor, Tensor)")
def swiglu_quant(gate, up, group=0, fnuz=False):
    """swiglu(), quantised to fp8 as by rmsnorm_quant(): (codes, scales)."""
    return gate.new_empty(gate.shape, dtype=_fp8(fnuz)), _scales(gate, group)


@_define("swiglu_quant_static(Tensor gate, Tensor up, Tensor scale, bool fnuz=False) -> Tensor")
def swiglu_quant_static(gate, up, scale, fnuz=False):
    """swiglu() / scale in fp8, for one given float32 scale."""
    return gate.new_empty(gate.shape, dtype=_fp8(fnuz))


@_define(
    "route(Tensor logits, int chosen, bool sigmoid=False, bool renormalise=False, Tensor? correction=None, "
    "int groups=1, int kept_groups=1, float scale=1.0) -> (Tensor, Tensor)",
    ("ids", "weights"),
)
def route(logits, chosen, sigmoid=False, renormalise=False, correction=None, groups=1, kept_groups=1, scale=1.0):
    """Which experts rows draw, and with what weights: (ids, weights), int32 and float32 [..., chosen].

    logits [..., experts], float32, up to 4096 experts. Drawn are the `chosen` largest, of equals those of lower number,
    in ascending order of their numbers. Weights are the softmax over all experts, or each logit's sigmoid (`sigmoid`);
    divided by the sum of the chosen ones' (`renormalise`); times `scale`. With the sigmoid a `correction` [experts],
    float32, is added for the choice, and for that alone. `groups` of equal size, one behind the other: the experts are
    chosen from the best `kept_groups` of them, each as good as its best expert or, with a correction, as the sum of its
    best two (at most 32 groups; 64 on AMD).
    """
    shape = (*logits.shape[:-1], chosen)
    return logits.new_empty(shape, dtype=torch.int32), logits.new_empty(shape, dtype=torch.float32)


@_define(
    "moe(Tensor x, Tensor gate, Tensor up, Tensor down, Tensor ids, Tensor weights, Tensor? gate_scale=None, "
    "Tensor? up_scale=None, Tensor? down_scale=None, Tensor? gate_bias=None, Tensor? up_bias=None, "
    "Tensor? down_bias=None, float limit=0.0, bool out_f32=False) -> Tensor"
)
def moe(
    x,
    gate,
    up,
    down,
    ids,
    weights,
    gate_scale=None,
    up_scale=None,
    down_scale=None,
    gate_bias=None,
    up_bias=None,
    down_bias=None,
    limit=0.0,
    out_f32=False,
):
    """Rows through the experts that they drew: the sum of weight * down(silu(gate(x)) * up(x)).

    x [..., hidden], bfloat16; ids [..., chosen], int32, and weights [..., chosen], float32, as route() gives them, in
    any order, a row's ids all different. gate and up [experts, inner, hidden], down [experts, hidden, inner], as
    torch.nn.Linear has its weight, rows adjacent or evenly spaced: gate and up may be halves of one tensor. They are

    * bfloat16 (with x in float16, on AMD alone, float16); hidden and inner multiples of 8;
    * float8_e4m3fn with scales of 128 x 128: gate_scale and up_scale [experts, ceil(inner / 128), ceil(hidden / 128)],
      down_scale likewise, float32, those of an expert contiguous; hidden and inner multiples of 16;
    * MXFP4: bytes of mxfp4(), which makes them of a checkpoint's codes and scales; hidden and inner multiples of 32.

    Biases [experts, inner] and [experts, hidden], in x's dtype. `limit`, of MXFP4, is gpt-oss's: instead of silu(g) * u
    it is min(g, limit) * sigmoid(1.702 * min(g, limit)) * (clamp(u, -limit, limit) + 1). What lies between the products
    is rounded to x's dtype. Sums are float32; the result, of x's shape, is of x's dtype, or float32 with `out_f32`. Ids
    beyond the experts are refused on the CPU; on a GPU, where nothing waits for them, what they do is undefined.
    """
    return x.new_empty(x.shape, dtype=torch.float32 if out_f32 else x.dtype)


def mxfp4(codes, scales):
    """Experts in MXFP4 as moe() takes them, uint8 [experts, n, k * 17 / 32]: of each expert all codes, then all scales.

    codes [experts, n, k / 2], or [experts, n, k / 32, 16] as gpt-oss's `blocks` are, two a byte, the even element's in
    the low bits; scales [experts, n, k / 32], e8m0; both uint8, of any strides. gpt-oss has the rows of gate and of up
    by turns: mxfp4(blocks[:, 0::2], scales[:, 0::2]) and mxfp4(blocks[:, 1::2], scales[:, 1::2]).
    """
    shape, blocks = tuple(codes.shape), tuple(scales.shape)
    if len(blocks) != 3 or shape not in {(*blocks, 16), (*blocks[:2], blocks[2] * 16)}:
        raise ValueError(
            f"codes is {list(shape)} and scales is {list(blocks)}: they must be [experts, n, k / 2] or "
            "[experts, n, k / 32, 16], and [experts, n, k / 32]"
        )
    for name, each in ("codes", codes), ("scales", scales):
        if each.dtype != torch.uint8:
            raise ValueError(f"{name} is {each.dtype}: it must be torch.uint8; .view(torch.uint8) its bytes")
    return torch.cat((codes.flatten(1), scales.flatten(1)), 1).view(*blocks[:2], blocks[2] * 17)


@_define("moe_layer(Tensor x, Tensor router, Tensor gate, Tensor up, Tensor down, int chosen) -> Tensor")
def moe_layer(x, router, gate, up, down, chosen):
    """A mixture of experts with its router: the AMD challenge's of 2025, all in float16.

    x [..., hidden], router [experts, hidden], gate and up [experts, hidden, inner], down [experts, inner, hidden]:
    an expert's matrices as [in, out], behind one another, rows adjacent or evenly spaced; hidden and inner multiples of
    8. One expert more than the router has is shared: all tokens have it, with weight 1. A token's experts are the
    `chosen` likeliest of the softmax over all, of equals those of lower number, weighted with their probabilities as
    they are, and summed in ascending order, the shared one last. Every result on the way is rounded to float16.
    """
    return x.new_empty(x.shape)


@_define(
    "mla_layer(Tensor x, Tensor q_down, Tensor q_up, Tensor kv_down, Tensor kv_up, Tensor o, Tensor(a!) cache, "
    "Tensor angles, int prefill) -> Tensor"
)
def mla_layer(x, q_down, q_up, kv_down, kv_up, o, cache, angles, prefill):
    """A decode step of multi-head latent attention with its projections: the AMD challenge's of 2025, in bfloat16.

    x [batch, dim] or [batch, 1, dim], a token of each sequence; weights as torch.nn.Linear has them: q_down
    [q_rank, dim], q_up [heads * 192, q_rank] (of a head 128, then the 64 that RoPE turns), kv_down [576, dim], kv_up
    [heads * 256, 512] (of a head keys, then values), o [dim, heads * 128]. cache [batch, capacity, 576], contiguous, has
    `prefill` rows of each sequence, [latent: 512 | key before RoPE: 64], and gets one more. angles
    [prefill + 1 or more, 64] as mla_layer_angles() gives them. The result is of x's shape.
    """
    return x.new_empty(x.shape)


def mla_layer_angles(positions, device="cpu"):
    """Of each position 32 cosines, then 32 sines, [positions, 64]: base 10000, with position, frequency, their product,
    cosine and sine each rounded to bfloat16, as the challenge's definition has it."""
    angles = torch.empty(positions, 64, dtype=torch.bfloat16)
    lib.weft_mla_layer_angles(positions, angles.data_ptr())
    return angles.to(device)


NAMES = (
    "gemm_bf16",
    "gemm_fp8_blockwise",
    "gemm_fp8_grouped",
    "gemm_skinny",
    "rmsnorm",
    "rmsnorm_quant",
    "rmsnorm_quant_static",
    "swiglu",
    "swiglu_quant",
    "swiglu_quant_static",
    "route",
    "moe",
    "moe_layer",
    "mla_layer",
)


@functools.cache
def fp8_dtype(device):
    """The fp8 format of a device's matrix units."""
    device = torch.device(device)
    if device.type == "cuda" and torch.version.hip:
        name = torch.cuda.get_device_properties(device).gcnArchName
        return torch.float8_e4m3fnuz if name.startswith("gfx942") else torch.float8_e4m3fn
    return torch.float8_e4m3fn

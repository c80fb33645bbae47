"""The functions of weft.ops in plain PyTorch: what they compute, for comparison. On any device, in float32, at
their own pace."""

import torch

BLOCK = 128
_LEAST = 1e-10


def _out(x, f32):
    return x if f32 else x.to(torch.bfloat16)


def _spread(scale, rows, columns, row_block):
    """A scale for each element, of scales for row_block x 128 elements."""
    scale = scale.float().repeat_interleave(BLOCK, 1)[:, :columns]
    return scale.repeat_interleave(row_block, 0)[:rows]


def gemm_bf16(a, b, out_f32=False):
    return _out(a.float() @ b.float().t(), out_f32)


def gemm_fp8_blockwise(a, b, a_scale, b_scale):
    a = a.float() * _spread(a_scale, *a.shape, 1)
    b = b.float() * _spread(b_scale, *b.shape, BLOCK)
    return (a @ b.t()).to(torch.bfloat16)


def gemm_fp8_grouped(a, b, a_scale, b_scale, group_of):
    out = torch.full((len(a), b.shape[1]), torch.nan, dtype=torch.bfloat16, device=a.device)
    for i, group in enumerate(group_of.tolist()):
        if group >= 0:
            rows = slice(BLOCK * i, BLOCK * (i + 1))
            out[rows] = gemm_fp8_blockwise(a[rows], b[group], a_scale[rows], b_scale[group])
    return out


def gemm_skinny(a, b, a_scale=None, b_scale=None, out_f32=False):
    if a_scale is None:
        return gemm_bf16(a, b, out_f32)
    rows, (n, k) = a.numel() // a.shape[-1], b.shape
    blocks = (-(-n // BLOCK), -(-k // BLOCK))
    a2 = a.float().reshape(rows, k)
    if b_scale.dim() == 2 and tuple(b_scale.shape) == blocks and a_scale.shape[-1] == blocks[1]:
        product = (a2 * _spread(a_scale, rows, k, 1)) @ (b.float() * _spread(b_scale, n, k, BLOCK)).t()
    else:
        product = (a2 * a_scale.reshape(-1, 1)) @ (b.float() * b_scale.reshape(-1, 1)).t()
    return _out(product.reshape(*a.shape[:-1], n), out_f32)


def _norm(x, weight, residual, epsilon):
    if residual is not None:
        residual.copy_(x + residual)
        x = residual
    h = x.float()
    return h * torch.rsqrt(h.square().mean(-1, keepdim=True) + epsilon) * weight.float()


def quantise(v, group, fnuz):
    dtype = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    most = torch.finfo(dtype).max
    columns = v.shape[-1]
    group = columns if group == 0 else group
    rows = torch.nn.functional.pad(v.reshape(-1, columns), (0, -columns % group))
    blocks = rows.unflatten(1, (-1, group))
    scales = blocks.abs().amax(-1).clamp(min=_LEAST) / most
    codes = (blocks / scales.unsqueeze(-1)).clamp(-most, most).flatten(1)[:, :columns]
    return codes.to(dtype).reshape(v.shape), scales.t().contiguous().t()


def _static(v, scale, fnuz):
    dtype = torch.float8_e4m3fnuz if fnuz else torch.float8_e4m3fn
    most = torch.finfo(dtype).max
    return (v / scale.float()).clamp(-most, most).to(dtype)


def rmsnorm(x, weight, residual=None, epsilon=1e-5):
    return _norm(x, weight, residual, epsilon).to(x.dtype)


def rmsnorm_quant(x, weight, residual=None, epsilon=1e-5, group=0, fnuz=False):
    return quantise(_norm(x, weight, residual, epsilon), group, fnuz)


def rmsnorm_quant_static(x, weight, scale, residual=None, epsilon=1e-5, fnuz=False):
    return _static(_norm(x, weight, residual, epsilon), scale, fnuz)


def _silu(gate, up):
    return torch.nn.functional.silu(gate.float()) * up.float()


def swiglu(gate, up):
    return _silu(gate, up).to(gate.dtype)


def swiglu_quant(gate, up, group=0, fnuz=False):
    return quantise(_silu(gate, up), group, fnuz)


def swiglu_quant_static(gate, up, scale, fnuz=False):
    return _static(_silu(gate, up), scale, fnuz)


def route(logits, chosen, sigmoid=False, renormalise=False, correction=None, groups=1, kept_groups=1, scale=1.0):
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = logits if correction is None else scores + correction

    def largest(x, count):  # of equals those of lower number
        return x.sort(dim=-1, descending=True, stable=True).indices[..., :count]

    if kept_groups < groups:
        parts = choice.unflatten(-1, (groups, -1))
        best = parts.topk(min(1 if correction is None else 2, parts.shape[-1]), -1).values.sum(-1)
        kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, largest(best, kept_groups), True)
        choice = parts.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(-2)
    ids = largest(choice, chosen).sort(-1).values
    weights = scores.gather(-1, ids)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids.int(), weights * scale


_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6)


def dequantised(experts, scale=None):
    """A matrix of every expert, as moe() takes it, in float32."""
    if experts.dtype == torch.uint8:
        count, n, width = experts.shape
        codes, powers = experts.flatten(1).split((n * width * 16 // 17, n * width // 17), 1)
        numbers = torch.tensor(_E2M1, device=experts.device)[torch.stack((codes & 15, codes >> 4), -1).int()]
        blocks = numbers.reshape(count, -1, 32) * torch.exp2(powers.float() - 127).unsqueeze(-1)
        return blocks.reshape(count, n, -1)
    if scale is None:
        return experts.float()
    return torch.stack(
        [e.float() * _spread(s, *e.shape, BLOCK) for e, s in zip(experts, scale, strict=True)]
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
    gate, up, down = dequantised(gate, gate_scale), dequantised(up, up_scale), dequantised(down, down_scale)
    rows, ids, weights = x.reshape(-1, x.shape[-1]), ids.flatten(0, -2), weights.flatten(0, -2)
    out = torch.zeros_like(rows, dtype=torch.float32)

    def product(a, w, bias, e):
        return a.float() @ w[e].t() + (0 if bias is None else bias[e].float())

    for e in range(len(gate)):
        row, slot = (ids == e).nonzero(as_tuple=True)
        g, u = product(rows[row], gate, gate_bias, e), product(rows[row], up, up_bias, e)
        if limit:
            g = g.clamp(max=limit)
            between = g * torch.sigmoid(1.702 * g) * (u.clamp(-limit, limit) + 1)
        else:
            between = _silu(g, u)
        out[row] += weights[row, slot, None] * product(between.to(x.dtype), down, down_bias, e)
    return out.reshape(x.shape) if out_f32 else out.reshape(x.shape).to(x.dtype)


def moe_layer(x, router, gate, up, down, chosen):
    rows = x.reshape(-1, x.shape[-1])

    def product(a, b):  # summed in float32, whatever the device has for float16
        return (a.float() @ b.float()).half()

    def expert(e, rows):
        return product(torch.nn.functional.silu(product(rows, gate[e])) * product(rows, up[e]), down[e])

    logits = product(rows, router.t())
    probabilities = logits.float().softmax(-1)
    drawn = logits.sort(dim=-1, descending=True, stable=True).indices[:, :chosen]
    out = torch.zeros_like(rows)
    for e in range(len(router)):
        token = (drawn == e).any(-1)
        out[token] += expert(e, rows[token]) * probabilities[token, e, None].half()
    for e in range(len(router), len(gate)):
        out += expert(e, rows)
    return out.reshape(x.shape)


def mla_layer_angles(positions, device="cpu"):
    frequencies = 10000 ** (-torch.arange(32, dtype=torch.bfloat16) / 32)
    angles = torch.outer(torch.arange(positions).bfloat16(), frequencies)
    return torch.cat((angles.cos(), angles.sin()), -1).to(device)


def _turned(x, angles):
    """By halves, rounded once."""
    a, b = x.float().chunk(2, -1)
    cosine, sine = angles.float().chunk(2, -1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).bfloat16()


def mla_layer(x, q_down, q_up, kv_down, kv_up, o, cache, angles, prefill):
    def product(a, b):
        return (a.float() @ b.float().transpose(-1, -2)).bfloat16()

    token, heads = x.reshape(len(cache), -1), kv_up.shape[0] // 256
    cache[:, prefill] = product(token, kv_down)
    rows, up = cache[:, : prefill + 1], kv_up.view(heads, 256, 512)
    q = product(product(token, q_down), q_up).view(-1, heads, 192)
    # Queries go to the latent space, and what they have seen comes back from it: no key or value is made.
    latent = torch.einsum("bhd,hdl->bhl", q[..., :128].float(), up[:, :128].float()).bfloat16()
    queries = torch.cat((latent, _turned(q[..., 128:], angles[prefill])), -1)
    keys = torch.cat((rows[..., :512], _turned(rows[..., 512:], angles[: prefill + 1])), -1)
    scores = torch.einsum("bhr,btr->bht", queries.float(), keys.float()) / 192**0.5
    seen = torch.einsum("bht,btl->bhl", scores.softmax(-1), rows[..., :512].float()).bfloat16()
    values = torch.einsum("bhl,hdl->bhd", seen.float(), up[:, 128:].float()).bfloat16()
    return product(values.flatten(1), o).reshape(x.shape)

"""torch.nn modules on weft.ops, and replace_modules(), which puts them into a transformers model."""

import torch
from torch import nn

from weft import ops, reference

_FORMATS = (torch.bfloat16, torch.float16)


def _with_gradients(*tensors):
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _whole(columns):
    return columns % 8 == 0


class RMSNorm(nn.Module):
    """RMS norm of x, or of x + residual, which is written back to residual. Where gradients are wanted, in plain
    PyTorch."""

    def __init__(self, weight, epsilon=1e-5):
        super().__init__()
        self.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight)
        self.epsilon = epsilon

    def forward(self, x, residual=None):
        if _with_gradients(x, residual, self.weight) or x.dtype not in _FORMATS:
            return reference.rmsnorm(x, self.weight, residual, self.epsilon)
        return ops.rmsnorm(x, self.weight, residual, self.epsilon)

    def extra_repr(self):
        return f"{self.weight.numel()}, epsilon={self.epsilon}"


class RMSNormQuant(RMSNorm):
    """The same, quantised to fp8: (codes, scales). `group`: 0 for a scale of each row, 128 for blocks."""

    def __init__(self, weight, epsilon=1e-5, group=128):
        super().__init__(weight, epsilon)
        self.group = group

    def forward(self, x, residual=None):
        fnuz = ops.fp8_dtype(x.device) == torch.float8_e4m3fnuz
        return ops.rmsnorm_quant(x, self.weight, residual, self.epsilon, self.group, fnuz)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)), the feed-forward block of Llama and its like."""

    def __init__(self, gate_proj, up_proj, down_proj):
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate_proj, up_proj, down_proj

    def forward(self, x):
        gate, up = self.gate_proj(x), self.up_proj(x)
        if _with_gradients(gate, up) or gate.dtype not in _FORMATS:
            return self.down_proj(reference.swiglu(gate, up))
        return self.down_proj(ops.swiglu(gate, up))


class SwiGLUQuant(nn.Module):
    """silu(gate) * up, quantised to fp8: (codes, scales)."""

    def __init__(self, group=128):
        super().__init__()
        self.group = group

    def forward(self, gate, up):
        fnuz = ops.fp8_dtype(gate.device) == torch.float8_e4m3fnuz
        return ops.swiglu_quant(gate, up, self.group, fnuz)


class BlockFP8Linear(nn.Module):
    """x @ (weight * scales).T with fp8 weights [n, k] and float32 scales of 128 x 128 (weight_scale_inv
    [ceil(n / 128), ceil(k / 128)]), as DeepSeek-V3 and transformers' finegrained_fp8 have them. Activations are
    quantised by 128 of a row."""

    def __init__(self, weight, weight_scale_inv, bias=None):
        super().__init__()
        self.weight = nn.Parameter(weight.data, requires_grad=False)
        self.weight_scale_inv = nn.Parameter(weight_scale_inv.data, requires_grad=False)
        self.bias = bias

    def forward(self, x):
        rows = x.reshape(-1, x.shape[-1])
        codes, scales = quantise(rows, self.weight.dtype == torch.float8_e4m3fnuz)
        if rows.shape[0] <= 32:
            out = ops.gemm_skinny(codes, self.weight, scales, self.weight_scale_inv)
        else:
            out = ops.gemm_fp8_blockwise(codes, self.weight, scales, self.weight_scale_inv)
        if self.bias is not None:
            out = out + self.bias
        return out.reshape(*x.shape[:-1], -1).to(x.dtype)

    def extra_repr(self):
        return f"in_features={self.weight.shape[1]}, out_features={self.weight.shape[0]}"


def quantise(x, fnuz=False):
    """Rows [m, k] as fp8 codes and float32 scales of 128 of a row, [m, k / 128], column-major."""
    return reference.quantise(x.float(), 128, fnuz)


def _norm(module):
    """A replacement of a module that is an RMS norm, or None."""
    epsilon = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    weight = getattr(module, "weight", None)
    if (
        not type(module).__name__.endswith("RMSNorm")
        or isinstance(module, RMSNorm)
        or not isinstance(epsilon, float)
        or not isinstance(weight, nn.Parameter)
        or weight.dtype not in _FORMATS
        or not _whole(weight.numel())
    ):
        return None
    return RMSNorm(weight, epsilon)


def _gated(module):
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    act = getattr(module, "act_fn", None)
    if isinstance(module, SwiGLU) or not all(isinstance(p, nn.Module) for p in parts):
        return None
    silu = isinstance(act, nn.SiLU) or type(act).__name__ in ("SiLU", "SiLUActivation")
    width = getattr(parts[0], "out_features", 0)
    return SwiGLU(*parts) if silu and width and _whole(width) else None


def _linear(module):
    scales = getattr(module, "weight_scale_inv", None)
    weight = getattr(module, "weight", None)
    if (
        isinstance(module, BlockFP8Linear)
        or scales is None
        or weight is None
        or weight.dtype not in (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
        or tuple(getattr(module, "block_size", None) or (128, 128)) != (128, 128)
        or weight.shape[1] % 128
        or not _whole(weight.shape[0])
    ):
        return None
    return BlockFP8Linear(weight, scales, getattr(module, "bias", None))


# The most by which a replacement's results may be off the original's, of the largest of them: norms and gates
# round once where the original rounds several times, in steps of up to 2^-8 (bfloat16).
_TOLERANCE = 2**-6


def _agrees(original, replacement, x):
    with torch.no_grad():
        expected, got = original(x).float(), replacement(x).float()
    return bool((expected - got).abs().max() <= _TOLERANCE * expected.abs().max())


def _width(module):
    linear = getattr(module, "gate_proj", None)
    return module.weight.numel() if linear is None else linear.in_features


def replace_modules(model, *, norms=True, gates=True, linears=True):
    """Swaps a model's RMS norms, SwiGLU blocks and block-scaled fp8 linears for those here, in place; weights are
    shared and state_dict() keeps its names. A norm or block is swapped only if its results on random numbers are the
    original's up to rounding: one that looks like an RMS norm and is not (Gemma's) stays. Returns the names of what
    was swapped, by kind."""
    done = {"norms": [], "gates": [], "linears": []}
    kinds = []
    if linears:
        kinds.append(("linears", _linear))
    if norms:
        kinds.append(("norms", _norm))
    if gates:
        kinds.append(("gates", _gated))
    for kind, make in kinds:
        for name, module in list(model.named_modules()):
            replacement = make(module)
            if replacement is None:
                continue
            if kind != "linears":
                weight = next(module.parameters())
                if weight.dtype == torch.float32:  # there are no kernels
                    continue
                dtype = weight.dtype if weight.dtype in _FORMATS else torch.bfloat16
                generator = torch.Generator().manual_seed(0)
                x = torch.randn(4, _width(module), generator=generator).to(weight.device, dtype)
                if not _agrees(module, replacement, x):
                    continue
            replacement.train(module.training)
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, replacement)
            done[kind].append(name)
    return done

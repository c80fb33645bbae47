"""Experts in MXFP4, as gpt-oss's checkpoints have them: how they are made, and what they mean.

A row's 32 adjacent numbers are 16 bytes of codes in e2m1, the even element's in the low bits, and a
power of two, e8m0. The rows are those of the transposed matrix that transformers holds: all experts'
in one tensor, gate and up by turns.
"""

import torch
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

CONFIG = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}

BLOCK = 32
NUMBERS = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
BIAS = 127
LARGEST_EXPONENT = 2  # of a code


def quantise(name, weight):
    """The tensors that the experts' float32 matrices [experts, in, out] become."""
    rows = weight.transpose(1, 2)
    blocks = rows.reshape(*rows.shape[:2], -1, BLOCK)
    exponents = blocks.abs().amax(-1).log2().floor() - LARGEST_EXPONENT
    scaled = blocks / exponents.exp2()[..., None]
    codes = (scaled.abs()[..., None] - NUMBERS).abs().argmin(-1)
    codes += 8 * (scaled < 0)
    packed = codes[..., 0::2] + 16 * codes[..., 1::2]
    return {
        f"{name}_blocks": packed.to(torch.uint8),
        f"{name}_scales": (exponents + BIAS).to(torch.uint8),
    }


def dequantise(blocks, scales):
    """The matrices [experts, in, out] in float32, which are transformers' own in bfloat16."""
    codes = torch.stack([blocks & 15, blocks >> 4], -1).flatten(-2).long()
    numbers = NUMBERS[codes & 7] * torch.where(codes < 8, 1.0, -1.0)
    rows = numbers * (scales.float() - BIAS).exp2()[..., None]
    weight = rows.flatten(-2).transpose(1, 2).contiguous()
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    assert torch.equal(theirs.float().cpu(), weight), "transformers reads these codes otherwise"
    return weight


def read(tensors):
    """A checkpoint's tensors as the model's parameters, in float32."""
    weights = {}
    for name, tensor in tensors.items():
        if name.endswith("_blocks"):
            parameter = name.removesuffix("_blocks")
            weights[parameter] = dequantise(tensor, tensors[f"{parameter}_scales"])
        elif not name.endswith("_scales"):
            weights[name] = tensor.float()
    return weights

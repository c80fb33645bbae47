"""Checkpoints with weights in eight bits: how they are made, and what they mean.

The arithmetic is written down here once more, after the formats' documents, and computed with
torch's float8_e4m3fn; transformers runs the model itself, with the weights that follow in float32.
Its own code for these formats wants a GPU (fp8, fbgemm_fp8), where it rounds to bfloat16 between
the products; `check_eight_bits.py` compares Weft with that.
"""

import json

import torch
from safetensors.torch import load_file

LARGEST = 448.0  # of e4m3
BLOCK = 128
FBGEMM_LARGEST = 1200.0
FBGEMM_LEAST_SCALE = 1.0 / (LARGEST * 512)


def compressed_tensors(weights, activations):
    numbers = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": numbers | weights,
                "input_activations": numbers | activations,
                "output_activations": None,
            }
        },
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
    }


# "quantization_config" of each kind. What is listed stays as it is.
KINDS = {
    "block": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "modules_to_not_convert": ["lm_head", "model.layers.1.self_attn.o_proj"],
    },
    "row": {
        "quant_method": "fbgemm_fp8",
        "activation_scale_ub": FBGEMM_LARGEST,
        "modules_to_not_convert": ["lm_head", "model.layers.0.self_attn"],
    },
    "channel": compressed_tensors(
        {"strategy": "channel"}, {"strategy": "token", "dynamic": True}
    ),
    "tensor": compressed_tensors({"strategy": "tensor"}, {"strategy": "tensor"}),
}


def kind_of(config):
    """Which of KINDS a "quantization_config" is of."""
    method = config["quant_method"]
    if method == "compressed-tensors":
        return config["config_groups"]["group_0"]["weights"]["strategy"]
    return {"fp8": "block", "fbgemm_fp8": "row"}[method]


def is_converted(name, config):
    """Whether a tensor of the bare model is stored in eight bits."""
    plain = config.get("modules_to_not_convert", config.get("ignore"))
    module = name.removesuffix(".weight")
    return name.endswith(("_proj.weight", "_with_mqa.weight")) and not any(
        module == entry or module.startswith(entry + ".") for entry in plain
    )


def spread(scales, weight):
    """A scale for each element: of the tensor, of rows, or of 128 x 128."""
    if scales.numel() == 1:
        return scales.reshape(1, 1).expand_as(weight)
    if scales.shape == (weight.shape[0], 1):
        return scales.expand_as(weight)
    each = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    return each[: weight.shape[0], : weight.shape[1]]


def quantise(name, weight, kind):
    """The tensors that a float32 matrix becomes."""
    module = name.removesuffix(".weight")
    if kind == "tensor":
        scales = (weight.abs().max() / LARGEST).reshape(1)
    elif kind == "block":
        padded = torch.zeros([-(-size // BLOCK) * BLOCK for size in weight.shape])
        padded[: weight.shape[0], : weight.shape[1]] = weight
        blocks = padded.reshape(
            padded.shape[0] // BLOCK, BLOCK, padded.shape[1] // BLOCK, BLOCK
        )
        scales = blocks.abs().amax((1, 3)) / LARGEST
    else:
        scales = weight.abs().amax(1, keepdim=True) / LARGEST
    if kind == "channel":
        scales = scales.bfloat16()
    codes = (weight / spread(scales.float(), weight)).clamp(-LARGEST, LARGEST)
    suffix = "weight_scale_inv" if kind == "block" else "weight_scale"
    tensors = {name: codes.to(torch.float8_e4m3fn), f"{module}.{suffix}": scales}
    if kind == "row":
        tensors[f"{module}.input_scale_ub"] = torch.tensor([FBGEMM_LARGEST])
    if kind == "tensor":
        tensors[f"{module}.input_scale"] = torch.tensor([4.0 / LARGEST])
    return tensors


def rounded(x, kind, input_scale):
    """Activations as they are multiplied: quantised, and back, in float32."""
    groups = x.shape[-1]
    if kind == "block":
        groups = BLOCK
    parts = []
    for part in x.split(groups, -1):
        largest = part.abs().amax(-1, keepdim=True)
        if kind == "tensor":
            scale = input_scale
        elif kind == "row":
            scale = (largest.clamp(max=FBGEMM_LARGEST) / LARGEST).clamp(min=FBGEMM_LEAST_SCALE)
        else:
            scale = torch.where(largest > 0, largest / LARGEST, torch.ones_like(largest))
        codes = (part / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        parts.append(codes.float() * scale)
    return torch.cat(parts, -1)


def read(directory):
    """The weights of a directory in float32, and what modules' inputs are rounded by."""
    kind = kind_of(json.loads((directory / "config.json").read_text())["quantization_config"])
    tensors = load_file(directory / "model.safetensors")
    weights, inputs = {}, {}
    for name, tensor in tensors.items():
        module = name.removesuffix(".weight")
        if tensor.dtype == torch.float8_e4m3fn:
            scales = tensors.get(f"{module}.weight_scale_inv", tensors.get(f"{module}.weight_scale"))
            weights[name] = tensor.float() * spread(scales.float(), tensor)
            inputs[module] = tensors.get(f"{module}.input_scale")
        elif not name.endswith(("_scale", "_scale_inv", "_scale_ub")):
            weights[name] = tensor.float()
    return weights, kind, inputs


def round_inputs(model, kind, inputs):
    """Lets the modules of `inputs` round what they multiply; returns what undoes it."""
    hooks = []
    for name, module in model.named_modules():
        if name in inputs:
            scale = inputs[name]
            hooks.append(
                module.register_forward_pre_hook(
                    lambda _, args, scale=scale: (rounded(args[0], kind, scale),)
                )
            )
    return hooks

"""Tiny random models for the GPU's tests: a Llama or a Qwen3 of any head size, in Hugging Face's
format, with the standard library alone.
"""

import json
import math
import random
import struct
from array import array
from pathlib import Path

VOCABULARY = 515
HIDDEN = 192
FFN = 264
LAYERS = 3
CONTEXT = 2048


def to_bf16(value):
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


def to_f16(value):
    return struct.unpack("<H", struct.pack("<e", value))[0]


# Names of the format in both files, and how a number is written: array's type, and its value there.
FORMATS = {
    "bf16": ("BF16", "bfloat16", "H", to_bf16),
    "f16": ("F16", "float16", "H", to_f16),
    "f32": ("F32", "float32", "f", float),
}
DISTINCT = 8192  # numbers that a tensor's elements are drawn from


def tensors(heads, kv_heads, head_dim, norms_heads):
    """Name, shape, standard deviation of every tensor; norms are 1 and a little."""
    queries, keys = heads * head_dim, kv_heads * head_dim
    yield "model.embed_tokens.weight", [VOCABULARY, HIDDEN], 1.0
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        yield layer + "input_layernorm.weight", [HIDDEN], None
        for name, rows in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            yield f"{layer}self_attn.{name}.weight", [rows, HIDDEN], HIDDEN**-0.5
        if norms_heads:
            yield layer + "self_attn.q_norm.weight", [head_dim], None
            yield layer + "self_attn.k_norm.weight", [head_dim], None
        yield layer + "self_attn.o_proj.weight", [HIDDEN, queries], queries**-0.5
        yield layer + "post_attention_layernorm.weight", [HIDDEN], None
        yield layer + "mlp.gate_proj.weight", [FFN, HIDDEN], HIDDEN**-0.5
        yield layer + "mlp.up_proj.weight", [FFN, HIDDEN], HIDDEN**-0.5
        yield layer + "mlp.down_proj.weight", [HIDDEN, FFN], FFN**-0.5
    yield "model.norm.weight", [HIDDEN], None
    yield "lm_head.weight", [VOCABULARY, HIDDEN], HIDDEN**-0.5


def write_model(directory, head_dim, heads=4, kv_heads=2, form="bf16", norms_heads=False, seed=1):
    """Writes a model directory, the same one every time, and returns its path."""
    draw = random.Random(f"{seed} {head_dim} {heads} {kv_heads} {form} {norms_heads}")
    dtype, torch_dtype, kind, convert = FORMATS[form]
    header, data = {}, bytearray()
    for name, shape, deviation in tensors(heads, kv_heads, head_dim, norms_heads):
        count = math.prod(shape)
        if deviation is None:
            values = [1 + draw.uniform(-0.2, 0.2) for _ in range(DISTINCT)]
        else:
            values = [draw.gauss(0, deviation) for _ in range(DISTINCT)]
        begin = len(data)
        data += array(kind, draw.choices(list(map(convert, values)), k=count)).tobytes()
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    config = {
        "architectures": ["Qwen3ForCausalLM" if norms_heads else "LlamaForCausalLM"],
        "model_type": "qwen3" if norms_heads else "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": VOCABULARY,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": torch_dtype,
    }
    (directory / "config.json").write_text(json.dumps(config, indent=1))
    return directory

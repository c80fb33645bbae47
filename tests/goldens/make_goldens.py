#!/usr/bin/env python3
"""Makes the tiny random models under models/ and the golden outputs that Weft is tested against.

    make_goldens.py                          every model below and the table in README.md
    make_goldens.py --only qwen2             those whose name starts so
    make_goldens.py --model DIR --out FILE   goldens of an existing model directory

The outputs are computed by Hugging Face transformers in float32 with eager attention, whatever the
stored type of the weights. Everything follows from SEED, so a second run writes the same models.
README.md lists the tensors of a golden file.
"""

import argparse
import json
import re
import shutil
import zlib
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

import eight_bits
import mxfp4
import instella  # noqa: F401  (registers the family)

HERE = Path(__file__).resolve().parent
SEED = 20260101

# What a layer adds to the residual stream, relative to the embedding. Trained layers add little each;
# with much more, two layers of random weights magnify rounding as forty trained ones do not.
LAYER_GAIN = 0.7

# One token, a few, more than a block, more than one chunk of prefill (512), more than two.
PROMPT_LENGTHS = [1, 7, 17, 130, 600, 1100]
# In the longest prompt: the ends of sliding windows (64) and of chunks (512).
POSITIONS = [0, 1, 16, 62, 63, 64, 65, 255, 511, 512, 513, 1023, 1024]
SCORE_LENGTH = 60
GREEDY_PROMPT = 17
GREEDY_TOKENS = 64
# Greedy tokens are only a fair test where the best token wins clearly, so of this many random
# prompts the one with the widest smallest margin is kept. A text of few tokens repeated is no test.
GREEDY_CANDIDATES = 512
GREEDY_MIN_MARGIN = 0.02
GREEDY_MIN_DISTINCT = 16

TEXT_GREEDY_TOKENS = 128
TEXT_PROMPTS = [
    "def fibonacci(n):",
    "class Stack:\n    def __init__(self):\n",
    "import os\nimport sys\n\n\ndef main():\n",
    "for i in range(10):\n    if i % 2 == 0:\n",
    "#include <stdio.h>\n\nint main(void)\n{\n",
]


def config(model_type, hidden, ffn, heads, kv_heads, layers, vocab, **more):
    """A config.json as the hub has it: rope_theta at the top level, torch_dtype filled in later."""
    architecture = {
        "llama": "LlamaForCausalLM",
        "mistral": "MistralForCausalLM",
        "qwen2": "Qwen2ForCausalLM",
        "qwen3": "Qwen3ForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "instella": "InstellaForCausalLM",
        "granite": "GraniteForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3_text": "Gemma3ForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
        "mixtral": "MixtralForCausalLM",
        "qwen2_moe": "Qwen2MoeForCausalLM",
        "qwen3_moe": "Qwen3MoeForCausalLM",
        "olmoe": "OlmoeForCausalLM",
        "gpt_oss": "GptOssForCausalLM",
        "deepseek_v2": "DeepseekV2ForCausalLM",
        "deepseek_v3": "DeepseekV3ForCausalLM",
    }[model_type]
    base = {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "use_cache": True,
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
    }
    base.update(more)
    return {key: value for key, value in base.items() if value != "absent"}


# name -> (config, variants). A variant is the stored type and the number of files.
# Sizes are awkward on purpose: no hidden size is a multiple of 64, no FFN of 32, no vocabulary of 4,
# head sizes are 16 to 80, and 1 to 4 query heads share a key head.
MODELS = {
    "llama": (
        config(
            "llama",
            48,
            136,
            heads=3,
            kv_heads=3,
            layers=3,
            vocab=307,
            rope_scaling=None,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "llama3": (
        config(
            "llama",
            72,
            136,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=389,
            tie_word_embeddings=True,
            rope_theta=500000.0,
            # Some of the 12 wavelengths fall in each of the three bands.
            rope_scaling={
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
                "rope_type": "llama3",
            },
            attention_bias=False,
            mlp_bias=False,
            pretraining_tp=1,
            eos_token_id=[2, 5],
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "llama-linear": (
        config(
            "llama",
            80,
            104,
            heads=2,
            kv_heads=1,
            layers=2,
            vocab=450,
            head_dim=32,
            tie_word_embeddings=True,
            rope_scaling={"type": "linear", "factor": 2.5},  # the older spelling
        ),
        [("f32", 3)],
    ),
    "llama-bias": (
        config(
            "llama",
            48,
            200,
            heads=4,
            kv_heads=1,
            layers=2,
            vocab=499,
            head_dim=16,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            rope_theta="absent",
            # The spelling of transformers 5, with every rope setting in one place.
            rope_parameters={
                "rope_theta": 20000.0,
                "rope_type": "linear",
                "factor": 2.0,
            },
        ),
        [("f16", 1), ("f32", 1)],
    ),
    "mistral": (
        config(
            "mistral",
            72,
            72,
            heads=2,
            kv_heads=1,
            layers=2,
            vocab=321,
            head_dim=64,
            sliding_window=64,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "qwen2": (
        config(
            "qwen2",
            96,
            88,
            heads=4,
            kv_heads=1,
            layers=2,
            vocab=301,
            tie_word_embeddings=True,
            rms_norm_eps=1e-6,
            rope_theta=1000000.0,
            # As published: a window that is written down but switched off.
            use_sliding_window=False,
            sliding_window=32,
            max_window_layers=1,
        ),
        [("bf16", 2), ("f32", 1)],
    ),
    "qwen3": (
        config(
            "qwen3",
            48,
            136,
            heads=2,
            kv_heads=1,
            layers=2,
            vocab=419,
            head_dim=80,
            tie_word_embeddings=True,
            rms_norm_eps=1e-6,
            attention_bias=False,
            rope_theta="absent",
            rope_parameters={"rope_theta": 1000000.0, "rope_type": "default"},
            use_sliding_window=False,
            sliding_window=None,
            max_window_layers=2,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "olmo2": (
        config(
            "olmo2",
            72,
            104,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=303,
            rms_norm_eps=1e-6,
            rope_theta=500000.0,
            rope_scaling=None,
            attention_bias=False,
            pad_token_id=1,
            bos_token_id=None,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "instella": (
        config(
            "instella",
            80,
            72,
            heads=5,
            kv_heads=5,
            layers=2,
            vocab=311,
            rope_scaling=None,
            attention_bias=False,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "granite": (
        config(
            "granite",
            96,
            88,
            heads=6,
            kv_heads=3,
            layers=2,
            vocab=333,
            tie_word_embeddings=True,
            rope_scaling=None,
            attention_bias=False,
            mlp_bias=False,
            embedding_multiplier=0.6,
            attention_multiplier=0.2,
            residual_multiplier=0.7,
            logits_scaling=2.5,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "smollm3": (
        config(
            "smollm3",
            72,
            104,
            heads=3,
            kv_heads=1,
            layers=4,
            vocab=293,
            tie_word_embeddings=True,
            rope_theta=2000000.0,
            rope_scaling=None,
            attention_bias=False,
            mlp_bias=False,
            no_rope_layers=[1, 0, 1, 0],
            # As published, one window is switched off; here the layers without rope have it.
            use_sliding_window=True,
            sliding_window=100,
            pad_token_id=0,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "gemma2": (
        config(
            "gemma2",
            72,
            104,
            heads=3,
            kv_heads=1,
            layers=4,
            vocab=301,
            head_dim=40,
            hidden_act="gelu_pytorch_tanh",
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            query_pre_attn_scalar=23,
            # Low enough to bend the scores and logits of a tiny model.
            attn_logit_softcapping=3.0,
            final_logit_softcapping=4.0,
            sliding_window=64,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "gemma3": (
        config(
            "gemma3_text",
            72,
            104,
            heads=4,
            kv_heads=2,
            layers=3,
            vocab=301,
            head_dim=24,
            hidden_act="absent",
            hidden_activation="gelu_pytorch_tanh",
            rms_norm_eps=1e-6,
            tie_word_embeddings=True,
            query_pre_attn_scalar=30,
            attn_logit_softcapping=None,
            final_logit_softcapping=None,
            sliding_window=64,
            sliding_window_pattern=3,
            rope_theta=1000000.0,
            rope_local_base_freq=10000.0,
            rope_scaling={"rope_type": "linear", "factor": 8.0},
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "phi3": (
        config(
            "phi3",
            72,
            104,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=331,
            sliding_window=200,
            rope_scaling=None,
            original_max_position_embeddings=2048,
            pad_token_id=0,
            attention_bias=False,
        ),
        [("bf16", 1), ("f32", 2)],
    ),
    # Phi-4-mini: part of each head turns, and from 65 tokens on by other frequencies.
    "phi3-longrope": (
        config(
            "phi3",
            96,
            72,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=331,
            tie_word_embeddings=True,
            partial_rotary_factor=0.75,
            original_max_position_embeddings=64,
            pad_token_id=0,
            sliding_window=None,
            rope_scaling={
                "type": "longrope",
                "short_factor": [1, 1.02, 1.05, 1.1, 1.2, 1.4, 1.5, 1.6, 1.8, 2, 2.1, 2.2],
                "long_factor": [1, 1.1, 1.4, 2, 3, 5, 7, 9, 12, 15, 17, 18],
            },
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "starcoder2": (
        config(
            "starcoder2",
            72,
            136,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=317,
            hidden_act="gelu_pytorch_tanh",
            rms_norm_eps="absent",
            norm_epsilon=1e-5,
            tie_word_embeddings=True,
            use_bias=True,
            sliding_window=100,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "mixtral": (
        config(
            "mixtral",
            72,
            56,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=307,
            num_local_experts=5,
            num_experts_per_tok=2,
            sliding_window=None,
        ),
        [("bf16", 1), ("f32", 2)],
    ),
    # The second of three layers has no experts.
    "qwen2-moe": (
        config(
            "qwen2_moe",
            72,
            72,
            heads=3,
            kv_heads=3,
            layers=3,
            vocab=301,
            rms_norm_eps=1e-6,
            num_experts=5,
            num_experts_per_tok=3,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=56,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            mlp_only_layers=[1],
            use_sliding_window=False,
            sliding_window=32,
            max_window_layers=1,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    # The second type is stored as transformers 5 holds it: all experts in one tensor.
    "qwen3-moe": (
        config(
            "qwen3_moe",
            72,
            136,
            heads=2,
            kv_heads=1,
            layers=2,
            vocab=311,
            head_dim=40,
            rms_norm_eps=1e-6,
            attention_bias=False,
            num_experts=12,
            num_experts_per_tok=4,
            moe_intermediate_size=24,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
            use_sliding_window=False,
            sliding_window=None,
            max_window_layers=2,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "olmoe": (
        config(
            "olmoe",
            80,
            32,
            heads=2,
            kv_heads=2,
            layers=2,
            vocab=303,
            num_experts=8,
            num_experts_per_tok=3,
            norm_topk_prob=False,
            attention_bias=False,
            clip_qkv=None,
            pad_token_id=1,
            bos_token_id=None,
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    # DeepSeek-V2: no query latent, the first of two layers dense, the best two of three groups.
    "deepseek-v2": (
        config(
            "deepseek_v2",
            72,
            56,
            heads=3,
            kv_heads=3,
            layers=2,
            vocab=311,
            rms_norm_eps=1e-6,
            attention_bias=False,
            q_lora_rank=None,
            kv_lora_rank=40,
            qk_nope_head_dim=24,
            qk_rope_head_dim=16,
            v_head_dim=20,
            n_routed_experts=6,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            n_shared_experts=2,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            topk_method="group_limited_greedy",
            scoring_func="softmax",
            n_group=3,
            topk_group=2,
            norm_topk_prob=False,
            routed_scaling_factor=1.5,
            rope_scaling={
                "type": "yarn",
                "factor": 8,
                "original_max_position_embeddings": 256,
                "beta_fast": 16,
                "beta_slow": 1,
                "mscale": 0.707,
                "mscale_all_dim": 0.707,
            },
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    # DeepSeek-V3: queries from a latent, sigmoids with a correction, groups by their best two.
    "deepseek-v3": (
        config(
            "deepseek_v3",
            72,
            56,
            heads=2,
            kv_heads=2,
            layers=2,
            vocab=303,
            rms_norm_eps=1e-6,
            attention_bias=False,
            q_lora_rank=28,
            kv_lora_rank=48,
            qk_nope_head_dim=32,
            qk_rope_head_dim=8,
            v_head_dim=24,
            n_routed_experts=8,
            num_experts_per_tok=3,
            moe_intermediate_size=24,
            n_shared_experts=1,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            topk_method="noaux_tc",
            scoring_func="sigmoid",
            n_group=4,
            topk_group=2,
            norm_topk_prob=True,
            routed_scaling_factor=2.5,
            num_nextn_predict_layers=1,
            rope_scaling={
                "type": "yarn",
                "factor": 40,
                "original_max_position_embeddings": 256,
                "beta_fast": 32,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        ),
        [("bf16", 1), ("f32", 1)],
    ),
    "qwen2-yarn": (
        config(
            "qwen2",
            72,
            88,
            heads=3,
            kv_heads=1,
            layers=2,
            vocab=311,
            tie_word_embeddings=True,
            rms_norm_eps=1e-6,
            # Of the 12 frequencies some are beyond either end of the ramp.
            rope_scaling={
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "beta_fast": 16.0,
            },
        ),
        [("bf16", 1), ("f32", 1)],
    ),
}

# The same with weights in eight bits: name -> (config, kind). Matrices have several blocks of 128, none
# of them whole.
EIGHT_BITS = {
    f"llama-fp8-{kind}": (
        config("llama", 144, 200, heads=3, kv_heads=1, layers=2, vocab=307, head_dim=56),
        kind,
    )
    for kind in eight_bits.KINDS
}
EIGHT_BITS["deepseek-v3-fp8"] = (
    config(
        "deepseek_v3",
        136,
        72,
        heads=2,
        kv_heads=2,
        layers=2,
        vocab=307,
        rms_norm_eps=1e-6,
        attention_bias=False,
        q_lora_rank=None,
        kv_lora_rank=136,
        qk_nope_head_dim=128,
        qk_rope_head_dim=16,
        v_head_dim=128,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=40,
        n_shared_experts=1,
        first_k_dense_replace=1,
        n_group=2,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
    ),
    "block",
)

# gpt-oss, whose experts are in MXFP4.
GPT_OSS = config(
    "gpt_oss",
    96,
    64,
    heads=4,
    kv_heads=2,
    layers=2,
    vocab=311,
    head_dim=24,
    sliding_window=64,
    num_local_experts=6,
    num_experts_per_tok=3,
    attention_bias=True,
    swiglu_limit=2.0,
    rope_theta=150000.0,
    rope_scaling={
        "rope_type": "yarn",
        "factor": 32.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
    layer_types=["sliding_attention", "full_attention"],
    quantization_config=mxfp4.CONFIG,
)

# The model whose experts stay in one tensor of each kind.
STACKED = ("qwen3-moe", "f32")

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
DTYPE_NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def seeded(text):
    return torch.Generator().manual_seed(SEED + zlib.crc32(text.encode()))


def embedding_scale(cfg, dtype):
    """What Gemma multiplies embeddings by, in a run in this type; elsewhere Granite's multiplier or 1."""
    if cfg["model_type"].startswith("gemma"):
        return torch.tensor(cfg["hidden_size"] ** 0.5).to(dtype).item()
    return cfg.get("embedding_multiplier", 1.0)


def random_weight(name, shape, cfg, generator):
    """A weight such that logits are of order 1 to 5, and attention, norms and biases all matter."""
    normal = torch.randn(shape, generator=generator)
    tied = cfg["tie_word_embeddings"]
    embedding = (
        2.0 * cfg.get("logits_scaling", 1.0) / cfg["hidden_size"] ** 0.5
        if tied
        else 1.0
    )
    if cfg["model_type"].startswith("gemma"):
        embedding /= cfg["hidden_size"] ** 0.5 / 3
    stream = embedding * embedding_scale(cfg, torch.float32)
    if name == "model.embed_tokens.weight":
        return embedding * normal
    if name.endswith("norm.weight"):
        weight = 0.5 + torch.rand(shape, generator=generator)
        if name == "model.norm.weight" and tied:
            # With a tied head the embedding would otherwise make every token predict itself.
            weight *= normal.sign()
        if cfg["model_type"] == "olmo2" and ".post_" in name:
            weight *= LAYER_GAIN
        if cfg["model_type"].startswith("gemma"):
            if ".post_" in name:
                weight *= LAYER_GAIN * stream
            weight -= 1  # as they are stored
        return weight
    if name.endswith("sinks"):
        return 1.5 * normal
    if name.endswith("e_score_correction_bias"):
        # More than most scores differ by, and some below zero.
        return 1.5 * normal - 0.5
    if name.endswith("_proj_bias"):
        return 0.3 * normal
    if name.endswith(".bias"):
        # Beyond queries and keys a large bias would make every token look the same.
        return (0.5 if re.search(r"\.[qk]_proj\.", name) else 0.1) * normal
    added = LAYER_GAIN * stream
    gains = {"lm_head": 2.0, "o_proj": added, "down_proj": added, "c_proj": added}
    if ".experts." in name:  # [experts, out, in], and no ".weight"
        # Of the experts' outputs a part of one is summed.
        inputs = shape[1] if cfg["model_type"] == "gpt_oss" else shape[2]
        part = 1 if cfg["model_type"] == "gpt_oss" else 2  # whose gates let more through
        return normal * part * gains.get(name.split(".")[-1], 0.5) / inputs**0.5
    # A router's logits are far apart, as trained ones are: what is rounded must not choose others.
    # Where what is drawn last has a weight like the others', a correction sets experts apart.
    router = {"deepseek_v3": 2.0, "gpt_oss": 8.0}.get(cfg["model_type"], 4.0)
    is_router = name.endswith((".mlp.gate.weight", ".router.weight"))
    gain = gains.get(name.split(".")[-2], router if is_router else 1.0)
    return normal * gain / shape[1] ** 0.5


def expert_names(cfg):
    """The module of experts, and gate, up and down as the hub's checkpoints call them."""
    if cfg["model_type"] == "mixtral":
        return "block_sparse_moe", ("w1", "w3", "w2")
    return "mlp", ("gate_proj", "up_proj", "down_proj")


def by_expert(tensors, cfg):
    """Tensors of all experts, as transformers 5 holds them, cut into those of each by itself."""
    module, (gate, up, down) = expert_names(cfg)
    result = {}
    for name, tensor in tensors.items():
        layer, found, kind = name.rpartition(".mlp.experts.")
        if not found:
            result[name.replace(".mlp.", f".{module}.")] = tensor
            continue
        for i, expert in enumerate(tensor):
            place = f"{layer}.{module}.experts.{i}"
            if kind == "down_proj":
                result[f"{place}.{down}.weight"] = expert.contiguous()
            else:
                halves = expert.chunk(2)
                result[f"{place}.{gate}.weight"] = halves[0].contiguous()
                result[f"{place}.{up}.weight"] = halves[1].contiguous()
    return result


def all_experts(tensors):
    """The inverse of by_expert, of the hub's usual names."""
    result = {}
    experts = {}
    for name, tensor in tensors.items():
        layer, found, rest = name.partition(".mlp.experts.")
        if found:
            number, kind = rest.split(".")[:2]
            experts.setdefault(f"{layer}{found}", {}).setdefault(kind, {})[int(number)] = tensor
        else:
            result[name] = tensor
    for place, kinds in experts.items():
        stack = {
            kind: torch.stack([of_each[i] for i in range(len(of_each))])
            for kind, of_each in kinds.items()
        }
        result[f"{place}gate_up_proj"] = torch.cat([stack["gate_proj"], stack["up_proj"]], 1)
        result[f"{place}down_proj"] = stack["down_proj"]
    return result


def write_weights(directory, tensors, files):
    if files == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    per_file = -(-len(names) // files)
    weight_map = {}
    for i in range(files):
        shard = names[i * per_file : (i + 1) * per_file]
        file = f"model-{i + 1:05}-of-{files:05}.safetensors"
        save_file(
            {name: tensors[name] for name in shard},
            directory / file,
            metadata={"format": "pt"},
        )
        weight_map.update(dict.fromkeys(shard, file))
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {
        "metadata": {"total_size": total},
        "weight_map": dict(sorted(weight_map.items())),
    }
    (directory / "model.safetensors.index.json").write_text(
        json.dumps(index, indent=2) + "\n"
    )


def make_model(family, cfg, dtype, files):
    directory = HERE / "models" / f"{family}-{dtype}"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    # Configs carry the type's name under "torch_dtype", newer ones under "dtype".
    key = "dtype" if "rope_parameters" in cfg else "torch_dtype"
    cfg = cfg | {
        key: DTYPE_NAMES[dtype],
        "transformers_version": transformers.__version__,
    }
    (directory / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")

    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(directory))
    # Every stored type of a family starts from the same float32 values.
    generator = seeded(family)
    tensors = {}
    for name, parameter in sorted(stored(empty)):
        weight = random_weight(name, tuple(parameter.shape), cfg, generator)
        tensors[name] = weight.to(DTYPES[dtype]).contiguous()
    if "num_nextn_predict_layers" in cfg:
        # A layer behind the others predicts further tokens; who decodes one by one ignores it.
        layer = cfg["num_hidden_layers"]
        tensors[f"model.layers.{layer}.eh_proj.weight"] = torch.ones(8, 16).to(DTYPES[dtype])
    if not (family, dtype) == STACKED:
        tensors = by_expert(tensors, cfg)
    write_weights(directory, tensors, files)
    return directory


def stored(model):
    """Parameters, and buffers that checkpoints hold."""
    names = model.state_dict().keys()
    buffers = ((n, b) for n, b in model.named_buffers() if n in names)
    return [*model.named_parameters(), *buffers]


def make_in_eight_bits(name, cfg, kind):
    directory = HERE / "models" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    quantization = eight_bits.KINDS[kind]
    cfg = cfg | {
        "torch_dtype": "bfloat16",
        "transformers_version": transformers.__version__,
        "quantization_config": quantization,
    }
    (directory / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(bare_config(directory))
    generator = seeded(name)
    tensors = {}
    weights = {
        tensor: random_weight(tensor, tuple(parameter.shape), cfg, generator)
        for tensor, parameter in sorted(stored(empty))
    }
    for tensor, weight in by_expert(weights, cfg).items():
        if eight_bits.is_converted(tensor, quantization):
            tensors |= eight_bits.quantise(tensor, weight, kind)
        else:
            tensors[tensor] = weight.bfloat16()
    write_weights(directory, {k: v.contiguous() for k, v in tensors.items()}, 1)
    return directory


def make_gpt_oss(name):
    """Its directory, and the model in float32."""
    directory = HERE / "models" / name
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    cfg = GPT_OSS | {
        "torch_dtype": "bfloat16",
        "transformers_version": transformers.__version__,
    }
    (directory / "config.json").write_text(json.dumps(cfg, indent=2) + "\n")
    model = AutoModelForCausalLM.from_config(bare_config(directory), attn_implementation="eager")
    generator = seeded(name)
    tensors = {}
    for parameter, value in sorted(model.named_parameters()):
        weight = random_weight(parameter, tuple(value.shape), cfg, generator)
        if parameter.endswith(("experts.gate_up_proj", "experts.down_proj")):
            tensors |= mxfp4.quantise(parameter, weight)
        else:
            tensors[parameter] = weight.bfloat16()
    write_weights(directory, {k: v.contiguous() for k, v in tensors.items()}, 1)
    model = model.float()
    model.load_state_dict(mxfp4.read(tensors))
    return directory, model.eval()


def bare_config(directory):
    """The config without its "quantization_config", which transformers would act upon."""
    cfg = json.loads((directory / "config.json").read_text())
    del cfg["quantization_config"]
    return AutoConfig.for_model(**cfg)


def load_eight_bits(directory):
    """The model in float32; its products' inputs as they are."""
    weights, kind, inputs = eight_bits.read(directory)
    model = AutoModelForCausalLM.from_config(bare_config(directory), attn_implementation="eager")
    model = model.float()
    model.load_state_dict(all_experts(weights))
    return model.eval(), kind, inputs


def goldens_in_eight_bits(directory, generator):
    """Those of ids, and logits with activations rounded as the checkpoint says."""
    model, kind, inputs = load_eight_bits(directory)
    golden = goldens_of_ids(model, generator, clear_greedy_prompt(model, generator))
    if any(".experts." in name for name in inputs):
        return golden, ()  # transformers has them in one tensor: no module's input is theirs
    hooks = eight_bits.round_inputs(model, kind, inputs)
    for length in PROMPT_LENGTHS:
        ids = golden[f"prompt.{length}.ids"]
        golden[f"rounded.{length}.logits"] = logits_of(model, ids)[0]
    for hook in hooks:
        hook.remove()
    errors = [
        relative_error(golden[f"rounded.{n}.logits"], golden[f"prompt.{n}.logits"])
        for n in PROMPT_LENGTHS
    ]
    return golden, (sorted(errors)[len(errors) // 2], max(errors))


def load(directory, dtype=torch.float32):
    """The model, run in this type; Gemma's embeddings scaled as in a run in the stored type."""
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", output_loading_info=True
    )
    ignored = f"model.layers.{model.config.num_hidden_layers}."
    unexpected = [key for key in report["unexpected_keys"] if not key.startswith(ignored)]
    if report["missing_keys"] or unexpected or report["mismatched_keys"]:
        raise SystemExit(f"{directory}: weights do not match the model: {report}")
    if hasattr(model.model.embed_tokens, "embed_scale"):
        stored = getattr(torch, json.loads((directory / "config.json").read_text())["torch_dtype"])
        scale = embedding_scale(model.config.to_dict(), stored)
        model.model.embed_tokens.embed_scale.fill_(scale)
    return model.eval()


@torch.no_grad()
def logits_of(model, ids, positions=None):
    """float32 logits at the given positions (default: the last) of one sequence."""
    positions = [len(ids) - 1] if positions is None else positions
    keep = torch.tensor(positions)
    out = model(input_ids=ids[None].long(), use_cache=False, logits_to_keep=keep)
    return out.logits[0].float()


def last_short_length(model):
    """The longest sequence that LongRoPE turns by its short factors; without LongRoPE: any."""
    rope = getattr(model.config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return 1 << 30
    return rope["original_max_position_embeddings"]


@torch.no_grad()
def greedy(model, prompts, count):
    """Continues every row of prompts by count tokens, through any end-of-text token."""
    out, cache, step = [], None, prompts
    for made in range(count):
        if prompts.shape[1] + made == last_short_length(model) + 1:
            cache, step = None, torch.cat([prompts, *out], 1)  # as generate() does
        result = model(
            input_ids=step, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache, step = result.past_key_values, result.logits[:, -1].argmax(
            -1, keepdim=True
        )
        out.append(step)
    return torch.cat(out, 1)


def greedy_margins(model, prompt, continuation):
    """Logit of the chosen token minus the best other one, at each step.

    They come from one pass over the whole text without a cache: where that pass would have chosen
    another token than the cached steps did, the margin is negative.
    """
    ids = torch.cat([prompt, continuation])[:-1]
    short = min(last_short_length(model), len(ids))
    logits = logits_of(model, ids[:short], range(len(prompt) - 1, short))
    if short < len(ids):
        logits = torch.cat([logits, logits_of(model, ids, range(short, len(ids)))])
    chosen = logits.gather(1, continuation[:, None])
    others = logits.scatter(1, continuation[:, None], -torch.inf)
    return chosen[:, 0] - others.max(-1).values


def random_ids(model, shape, generator):
    return torch.randint(model.config.vocab_size, shape, generator=generator)


def clear_greedy_prompt(model, generator):
    """A random prompt whose greedy continuation is varied, does not end, and is never a close choice."""
    prompts = random_ids(model, (GREEDY_CANDIDATES, GREEDY_PROMPT), generator)
    eos = torch.tensor(model.config.eos_token_id).flatten()
    best = (GREEDY_MIN_MARGIN, None)
    for prompt, tokens in zip(prompts, greedy(model, prompts, GREEDY_TOKENS)):
        ends = torch.isin(tokens, eos).any()
        if ends or len(tokens.unique()) < GREEDY_MIN_DISTINCT:
            continue
        margin = greedy_margins(model, prompt, tokens).min().item()
        best = max(best, (margin, prompt), key=lambda pair: pair[0])
    if best[1] is None:
        raise SystemExit("no greedy text is clear and varied: pick another seed")
    return best[1]


def goldens_of_ids(model, generator, greedy_prompt):
    """The goldens that need no tokenizer: random token ids."""
    limit = model.config.max_position_embeddings
    lengths = [n for n in PROMPT_LENGTHS if n <= limit]
    golden = {}
    for length in lengths:
        ids = random_ids(model, (length,), generator)
        if length == GREEDY_PROMPT:
            ids = greedy_prompt
        golden[f"prompt.{length}.ids"] = ids
        golden[f"prompt.{length}.logits"] = logits_of(model, ids)[0]

    # With a large vocabulary this would be the bulk of the file, so only the ends of
    # windows and chunks are kept.
    positions = POSITIONS if model.config.vocab_size <= 1000 else [63, 511, 512, 1023]
    positions = [p for p in positions if p < lengths[-1]]
    golden["positions.index"] = torch.tensor(positions)
    golden["positions.logits"] = logits_of(
        model, golden[f"prompt.{lengths[-1]}.ids"], positions
    )

    ids = random_ids(model, (SCORE_LENGTH,), generator)
    logprobs = logits_of(model, ids, range(SCORE_LENGTH)).log_softmax(-1)
    golden["score.ids"] = ids
    golden["score.logprobs"] = logprobs[:-1].gather(1, ids[1:, None])[:, 0]

    tokens = greedy(model, greedy_prompt[None], GREEDY_TOKENS)[0]
    golden["greedy.ids"] = tokens
    golden["greedy.margins"] = greedy_margins(model, greedy_prompt, tokens)
    return golden


def goldens_of_text(model, directory):
    """The goldens of code prompts, for a directory that has a tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    golden = {}
    for i, text in enumerate(TEXT_PROMPTS):
        ids = torch.tensor(tokenizer.encode(text).ids)
        tokens = greedy(model, ids[None], TEXT_GREEDY_TOKENS)[0]
        golden[f"text.{i}.utf8"] = torch.tensor(list(text.encode()), dtype=torch.uint8)
        golden[f"text.{i}.ids"] = ids
        golden[f"text.{i}.logits"] = logits_of(model, ids)[0]
        golden[f"text.{i}.greedy"] = tokens
        golden[f"text.{i}.margins"] = greedy_margins(model, ids, tokens)
        print(f"{text!r}\n{tokenizer.decode(tokens.tolist())}\n")
    return golden


def save_goldens(golden, file):
    tensors = {
        name: (tensor.int() if tensor.dtype == torch.int64 else tensor).contiguous()
        for name, tensor in golden.items()
    }
    # One entry only: safetensors writes several in no particular order.
    made_with = f"transformers {transformers.__version__}, torch {torch.__version__}"
    save_file(tensors, file, metadata={"made_with": made_with})


def relative_error(got, want):
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def own_distance(directory, golden, dtype):
    """How far transformers' own run in the stored type is from float32: median and largest."""
    model = load(directory, dtype)
    errors = [
        relative_error(
            logits_of(model, golden[f"prompt.{n}.ids"])[0], golden[f"prompt.{n}.logits"]
        )
        for n in PROMPT_LENGTHS
    ]
    return sorted(errors)[len(errors) // 2], max(errors)


def write_table(rows):
    readme = HERE / "README.md"
    head, _, rest = readme.read_text().partition("<!-- table -->\n")
    _, _, tail = rest.partition("<!-- end of table -->\n")
    lines = [
        "| model | KiB | logits, rms | smallest greedy margin "
        "| own run in the stored type: median | largest |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    table = "\n".join(lines) + "\n"
    readme.write_text(f"{head}<!-- table -->\n{table}<!-- end of table -->\n{tail}")


def row_of(name, directory, golden, distances=()):
    """A line of the table. `distances`: of transformers' own run, where there is one."""
    size = sum(file.stat().st_size for file in directory.iterdir())
    return [
        name,
        f"{size / 1024:.0f}",
        f"{golden['positions.logits'].square().mean().sqrt():.2f}",
        f"{golden['greedy.margins'].min():.3f}",
        *([f"{error:.1e}" for error in distances] or ["", ""]),
    ]


def make_all(only):
    rows = []
    for family, (cfg, variants) in MODELS.items():
        for dtype, files in variants:
            name = f"{family}-{dtype}"
            if not name.startswith(only):
                continue
            directory = make_model(family, cfg, dtype, files)
            model = load(directory)
            generator = seeded(name)
            golden = goldens_of_ids(
                model, generator, clear_greedy_prompt(model, generator)
            )
            save_goldens(golden, directory / "golden.safetensors")
            size = sum(file.stat().st_size for file in directory.iterdir())
            if size > 1_000_000:
                raise SystemExit(
                    f"{name} takes {size} bytes; at most 1000000 are allowed"
                )
            row = [
                name,
                f"{size / 1024:.0f}",
                f"{golden['positions.logits'].square().mean().sqrt():.2f}",
                f"{golden['greedy.margins'].min():.3f}",
            ]
            if dtype == "f32":
                row += ["", ""]
            else:
                row += [
                    f"{error:.1e}"
                    for error in own_distance(directory, golden, DTYPES[dtype])
                ]
            print(*row, sep="  ", flush=True)
            rows.append(row)
    for name, (cfg, kind) in EIGHT_BITS.items():
        if name.startswith(only):
            directory = make_in_eight_bits(name, cfg, kind)
            golden, distances = goldens_in_eight_bits(directory, seeded(name))
            save_goldens(golden, directory / "golden.safetensors")
            row = row_of(name, directory, golden, distances)
            print(*row, sep="  ", flush=True)
            rows.append(row)
    name = "gpt-oss-mxfp4"
    if name.startswith(only):
        directory, model = make_gpt_oss(name)
        generator = seeded(name)
        golden = goldens_of_ids(model, generator, clear_greedy_prompt(model, generator))
        save_goldens(golden, directory / "golden.safetensors")
        rows.append(row_of(name, directory, golden))
        print(*rows[-1], sep="  ", flush=True)
    if not only:
        write_table(rows)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="make only the models named so"
    )
    parser.add_argument(
        "--model", type=Path, metavar="DIR", help="an existing model directory"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="where to write its goldens"
    )
    args = parser.parse_args()
    if (args.model is None) != (args.out is None):
        parser.error("--model and --out go together")

    # One thread: sums are then always taken in the same order.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    transformers.utils.logging.disable_progress_bar()
    if args.model is None:
        make_all(args.only)
        return
    model = load(args.model)
    generator = seeded(args.model.resolve().name)
    prompt = random_ids(model, (GREEDY_PROMPT,), generator)
    golden = goldens_of_ids(model, generator, prompt)
    if (args.model / "tokenizer.json").exists():
        golden |= goldens_of_text(model, args.model)
    save_goldens(golden, args.out)


if __name__ == "__main__":
    main()

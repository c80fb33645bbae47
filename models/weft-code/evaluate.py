#!/usr/bin/env python3
"""Measure and sample the model in this folder with Hugging Face transformers.

    python3 evaluate.py [--heldout corpus/heldout.txt] [--files N]

Prints bits per byte over the held-out documents, each from its start and cut into
windows of the context length, then greedy and sampled completions. A CPU will do.
"""

import argparse
import math
import pathlib

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = pathlib.Path(__file__).parent
PROMPTS = (
    "def fibonacci(n):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n\n\ndef read_lines(path):\n",
    "def is_prime(n):\n    if n < 2:\n        return False\n",
    "import unittest\n\n\nclass TestParser(unittest.TestCase):\n    def setUp(self):\n",
    "def merge_sort(items):\n    if len(items) <= 1:\n        return items\n",
)


@torch.no_grad()
def bits_per_byte(model, tokenizer, path: pathlib.Path, files: int) -> str:
    nats, size, tokens = 0.0, 0, 0
    window = model.config.max_position_embeddings
    texts = path.read_bytes().split(b"\0")[:-1][:files]
    for raw in texts:
        ids = torch.tensor(tokenizer(raw.decode(), truncation=False)["input_ids"])
        for start in range(0, len(ids) - 1, window):
            part = ids[None, start : start + window + 1].to(model.device)
            logits = model(part[:, :-1]).logits[0].float()
            nats += torch.nn.functional.cross_entropy(
                logits, part[0, 1:], reduction="sum"
            ).item()
        size, tokens = size + len(raw), tokens + len(ids) - 1
    bits = nats / math.log(2) / size
    return (
        f"{len(texts)} files, {size} bytes, {tokens} tokens: {bits:.4f} bits per byte"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=pathlib.Path, default=HERE)
    parser.add_argument("--heldout", type=pathlib.Path)
    parser.add_argument("--files", type=int, default=10**9)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype="auto").eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    if args.heldout:
        print(bits_per_byte(model, tokenizer, args.heldout, args.files))
    for prompt in PROMPTS:
        for how in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7}):
            torch.manual_seed(0)
            inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
            out = model.generate(
                inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                max_new_tokens=args.tokens,
                **how,
            )
            title = "T=0.7" if how["do_sample"] else "greedy"
            print(f"---- {title}\n{tokenizer.decode(out[0], skip_special_tokens=True)}")


if __name__ == "__main__":
    main()

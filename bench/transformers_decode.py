#!/usr/bin/env python3
"""Times greedy decoding with Hugging Face transformers: the baseline that users know.

    python3 bench/transformers_decode.py DIR [--prompt-tokens 512] [--new-tokens 128] [--json FILE]

DIR is a model directory (weft new-model writes one). bf16 on the first CUDA device, static cache, the
forward pass compiled by torch.compile (mode "reduce-overhead", so CUDA graphs), one token a call, batch 1.
Prints the median time of a token; set it beside `weft bench decode --model DIR --device cuda`.
"""
import argparse
import datetime
import json
import statistics
import time

import torch
import transformers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()

    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.directory, dtype=torch.bfloat16, device_map="cuda"
    ).eval()
    total = options.prompt_tokens + options.new_tokens + 8
    cache = transformers.StaticCache(config=model.config, max_cache_len=total)
    prompt = torch.randint(0, model.config.vocab_size, (1, options.prompt_tokens), device="cuda")
    step = torch.compile(model.forward, mode="reduce-overhead", fullgraph=True)
    seconds = []
    with torch.inference_mode():
        positions = torch.arange(options.prompt_tokens, device="cuda")
        out = model(prompt, past_key_values=cache, cache_position=positions, use_cache=True)
        token = out.logits[:, -1:].argmax(-1)
        for i in range(options.new_tokens):
            position = torch.tensor([options.prompt_tokens + i], device="cuda")
            torch.cuda.synchronize()
            start = time.perf_counter()
            out = step(token, past_key_values=cache, cache_position=position, use_cache=True)
            token = out.logits[:, -1:].argmax(-1).clone()
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    timed = seconds[len(seconds) // 4 :]  # compilation and capture come first
    print(
        f"{options.directory}: {statistics.median(timed) * 1e6:.0f} us a token (best {min(timed) * 1e6:.0f}) over "
        f"{len(timed)}, after {options.prompt_tokens} tokens; transformers {transformers.__version__}, "
        f"torch {torch.__version__}, {torch.cuda.get_device_name()}"
    )
    if options.json:
        figures = {
            "peer": f"transformers {transformers.__version__}",
            "torch": torch.__version__,
            "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "device": "cuda",
            "name": torch.cuda.get_device_name(),
            "method": "static cache, compiled forward pass, bf16, greedy; median of the last three quarters of steps",
            "model": model.config.name_or_path,
            "prompt_tokens": options.prompt_tokens,
            "new_tokens": options.new_tokens,
            "seconds_per_token": statistics.median(timed),
        }
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()

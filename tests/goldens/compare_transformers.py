#!/usr/bin/env python3
"""Compares `weft score` with Hugging Face transformers, live, on fresh random prompts.

    compare_transformers.py --model DIR [--weft build/release/weft] [--seed N] [-- more arguments for weft]

For every prompt it prints the relative error (norm of the difference over the norm) of the last
position's logits, and the largest difference of a log-probability. Exits 1 when a relative error is
above the tolerance of the stored type, 1e-5 for float32 and 5e-3 for bfloat16 and float16. With
--own, how far transformers itself is from that when it computes in bfloat16.
"""

import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import torch
import transformers
from safetensors import safe_open

from make_goldens import load, relative_error

TOLERANCE = {"F32": 1e-5, "BF16": 5e-3, "F16": 5e-3}
# Short, and around one and two chunks of prefill.
LENGTHS = [1, 2, 5, 33, 64, 65, 127, 300, 511, 513, 1000, 1025]


def stored_type(directory):
    """The type of the embedding, which all our models share with the other tensors."""
    name = "model.embed_tokens.weight"
    for file in sorted(directory.glob("model*.safetensors")):
        with safe_open(file, "pt") as tensors:
            if name in tensors.keys():
                return tensors.get_slice(name).get_dtype()
    raise SystemExit(f"{directory}: no tensor {name}")


def weft_score(weft, directory, ids, more):
    text = ",".join(str(i) for i in ids)
    command = [
        weft,
        "score",
        "--model",
        str(directory),
        "--ids",
        text,
        "--logits",
        "--json",
        *more,
    ]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        raise SystemExit(
            f"{' '.join(command[:4])} ... exits {run.returncode}: {run.stderr.strip()}"
        )
    result = json.loads(run.stdout)
    if result["ids"] != ids:
        raise SystemExit("weft scored other ids than it was given")
    return result


@torch.no_grad()
def reference(model, ids):
    tokens = torch.tensor([ids], device=model.device)
    logits = model(input_ids=tokens, use_cache=False).logits[0].float()
    following = tokens[0, 1:, None]
    return logits[-1].cpu(), logits[:-1].log_softmax(-1).gather(1, following)[:, 0].cpu()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--weft", default="weft", metavar="FILE", help="the binary (default: weft)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--tolerance", type=float, help="instead of that of the stored type"
    )
    parser.add_argument("--device", default="cpu", help="where transformers runs")
    parser.add_argument("--lengths", help="of the prompts: 1,17,512")
    parser.add_argument("--own", action="store_true")
    parser.add_argument("more", nargs="*", help="passed on to weft score, after --")
    args = parser.parse_args()

    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    model = load(args.model).to(args.device)
    own = load(args.model, torch.bfloat16).to(args.device) if args.own else None
    dtype = stored_type(args.model)
    tolerance = args.tolerance or TOLERANCE[dtype]
    generator = torch.Generator().manual_seed(args.seed)
    print(
        f"{args.model}  stored as {dtype}, tolerance {tolerance:.0e}, seed {args.seed}"
    )
    print("tokens  logits, relative  log-probability, largest difference")

    failed = 0
    wanted = [int(n) for n in args.lengths.split(",")] if args.lengths else LENGTHS
    lengths = [n for n in wanted if n <= model.config.max_position_embeddings]
    for length in lengths:
        ids = torch.randint(
            model.config.vocab_size, (length,), generator=generator
        ).tolist()
        got = weft_score(args.weft, args.model, ids, args.more)
        logits, logprobs = reference(model, ids)
        # The first token follows nothing: weft may leave it out or give null for it.
        got_logprobs = [x for x in got["logprobs"] if x is not None]
        if len(got["logits"]) != len(logits) or len(got_logprobs) != len(logprobs):
            raise SystemExit(
                f"{len(got['logits'])} logits and {len(got_logprobs)} log-probabilities"
            )
        error = relative_error(torch.tensor(got["logits"], dtype=torch.float64), logits)
        beside = ""
        if own is not None:
            beside = f"   transformers in bfloat16 {relative_error(reference(own, ids)[0], logits):.1e}"
        difference = max(
            (abs(a - b) for a, b in zip(got_logprobs, logprobs.tolist())), default=0.0
        )
        # Written so that NaN fails.
        good = error <= tolerance and math.isfinite(difference)
        failed += not good
        print(
            f"{length:6}  {error:16.1e}  {difference:12.1e}{beside}{'' if good else '   FAILED'}"
        )
    print(f"{len(lengths) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

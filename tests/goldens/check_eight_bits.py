#!/usr/bin/env python3
"""Compares `weft score` on a directory with weights in eight bits with Hugging Face transformers.

    check_eight_bits.py --model DIR --weft ../../build/release/weft [--device cuda] [-- more for weft]

Twice: with the model in float32 on the weights that follow from eight_bits.py, which must agree
within --tolerance; and with the directory as transformers itself loads it on the device, in
bfloat16 with its own kernels for eight bits, which quantise activations too. How far apart those two
are says what the second comparison is worth, so it only reports, but for the likeliest token.
"""

import argparse
import sys
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

from compare_transformers import weft_score
from make_goldens import load_eight_bits, relative_error

LENGTHS = [1, 17, 130, 300]


@torch.no_grad()
def last_logits(model, ids):
    tokens = torch.tensor([ids], device=model.device)
    return model(input_ids=tokens, use_cache=False).logits[0, -1].float().cpu()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, metavar="DIR")
    parser.add_argument("--weft", default="weft", metavar="FILE")
    parser.add_argument("--device", default="cpu", help="where transformers runs")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("more", nargs="*", help="passed on to weft score, after --")
    args = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    exact = load_eight_bits(args.model)[0].to(args.device)
    own = None
    try:
        own = AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.bfloat16, device_map=args.device
        ).eval()
        last_logits(own, [1])
    except Exception as error:  # kernels or packages that are not there
        print(f"transformers does not run {args.model}: {type(error).__name__}: {str(error)[:200]}")
        own = None

    generator = torch.Generator().manual_seed(1)
    failed = 0
    print("tokens  weft - float32   weft - own   own - float32  (logits, relative)")
    for length in LENGTHS:
        ids = torch.randint(exact.config.vocab_size, (length,), generator=generator).tolist()
        got = torch.tensor(weft_score(args.weft, args.model, ids, args.more)["logits"])
        want = last_logits(exact, ids)
        error = relative_error(got, want)
        line = f"{length:6}  {error:14.1e}"
        good = error <= args.tolerance  # NaN fails
        if own is not None:
            theirs = last_logits(own, ids)
            line += f"  {relative_error(got, theirs):11.1e}  {relative_error(theirs, want):13.1e}"
        failed += not good
        print(line + ("" if good else "   FAILED"))
    print(f"{len(LENGTHS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

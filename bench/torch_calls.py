#!/usr/bin/env python3
"""What a call of torch.ops.weft costs on the host, beside torch.mm and a bare launch.

    python3 bench/torch_calls.py [--device cpu|cuda] [--calls 300] [--rounds 15] [--json FILE]

Operands are as small as each operation has them, so that what is timed is the call: the dispatcher, checks, the result's
allocation, the choice of a kernel and its launch. Of --rounds series of --calls calls, all operations by turns, the fastest.
On a GPU only the host's part is timed: a series ends before the GPU has caught up, and is waited for outside of the time;
`launch` is PyTorch's shortest kernel (torch.cuda._sleep(0)), and `over` what a call takes above it. At the end, of the
operations that were called both ways, what making the results costs, beside as many calls of torch.empty_strided.
"""

import argparse
import datetime
import json
import pathlib
import time

import torch
from weft import ops


def operations(device):
    """Name, and a call without arguments."""

    def bf16(*shape):
        return torch.randn(*shape, device=device).bfloat16()

    def fp8(*shape):
        return bf16(*shape).to(torch.float8_e4m3fn)

    x, weight, scale = bf16(1, 128), bf16(128), torch.full((1,), 0.5, device=device)
    b, out = bf16(128, 128), bf16(1, 128)
    blocks = fp8(1, 128), fp8(128, 128), torch.ones(1, 1, device=device), torch.ones(1, 1, device=device)
    transposed = b.t()
    calls = {
        "gemm_bf16": lambda: ops.gemm_bf16(x, b),
        "gemm_skinny": lambda: ops.gemm_skinny(x, b),
        "gemm_fp8_blockwise": lambda: ops.gemm_fp8_blockwise(*blocks),
        "rmsnorm": lambda: ops.rmsnorm(x, weight),
        "rmsnorm_quant": lambda: ops.rmsnorm_quant(x, weight),
        "rmsnorm_quant, defaults given": lambda: ops.rmsnorm_quant(x, weight, None, 1e-5, 0, False),
        "rmsnorm_quant_static": lambda: ops.rmsnorm_quant_static(x, weight, scale),
        "swiglu": lambda: ops.swiglu(x, x),
        "swiglu_quant": lambda: ops.swiglu_quant(x, x),
        "swiglu_quant_static": lambda: ops.swiglu_quant_static(x, x, scale),
        "torch.mm": lambda: torch.mm(x, transposed),
        "torch.mm, out given": lambda: torch.mm(x, transposed, out=out),
        "torch.empty_strided": lambda: torch.empty_strided((1, 128), (128, 1), dtype=torch.bfloat16, device=device),
    }
    codes, scales = ops.swiglu_quant(x, x)
    into = {
        "gemm_bf16_out": lambda: ops.gemm_bf16_out(out, x, b),
        "gemm_fp8_blockwise_out": lambda: ops.gemm_fp8_blockwise_out(out, *blocks),
        "rmsnorm_out": lambda: ops.rmsnorm_out(out, x, weight),
        "rmsnorm_quant_out": lambda: ops.rmsnorm_quant_out(codes, scales, x, weight),
        "swiglu_quant_out": lambda: ops.swiglu_quant_out(codes, scales, x, x),
    }
    calls.update(into)
    if device != "cpu":
        calls["launch"] = lambda: torch.cuda._sleep(0)
    return calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()

    def wait():
        if options.device != "cpu":
            torch.cuda.synchronize()

    calls, best = operations(options.device), {}
    with torch.no_grad():
        for _ in range(options.rounds):
            for name, call in calls.items():
                call()
                wait()
                start = time.perf_counter()
                for _ in range(options.calls):
                    call()
                seconds = (time.perf_counter() - start) / options.calls
                wait()
                best[name] = min(best.get(name, seconds), seconds)
    for name, seconds in best.items():
        over = f", {1e6 * (seconds - best['launch']):5.2f} over the launch" if "launch" in best else ""
        print(f"{name:29} {1e6 * seconds:6.2f} us a call{over}")
    for into in (name for name in best if name.endswith("_out")):
        name = into.removesuffix("_out")
        results = calls[name]()
        count = len(results) if isinstance(results, tuple) else 1
        print(f"results of {name:18} {1e6 * (best[name] - best[into]):6.2f} us, torch.empty_strided as often "
              f"{1e6 * count * best['torch.empty_strided']:6.2f}")
    if options.json:
        figures = {"date": datetime.date.today().isoformat(), "device": options.device, "torch": torch.__version__,
                   "seconds": best}
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

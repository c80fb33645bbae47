#!/usr/bin/env python3
"""Times what others have for the same shapes, by the method of `weft bench`, and prints both.

    weft bench gemm_bf16 gemm_skinny --device cuda [--in-a-row 32] --json ours.json
    bench/baselines.py ours.json [--case GLOB] [--json FILE]

Needs an NVIDIA GPU and PyTorch; DeepGEMM and FlashMLA too if they can be imported (put them on
PYTHONPATH). Run it on the machine that made ours.json, right after it: the ratio means nothing otherwise.

The method: the operation is captured in a CUDA graph; before each of 30 runs 256 MiB are written,
which leaves nothing of the operands in the L2; a run is the time between two events around the
graph's replay; the median counts. Operands are random numbers. Where ours.json is of launches in a
row, the graph has as many calls, each with operands of its own, and the time is that of one.
"""

import argparse
import datetime
import fnmatch
import json
import math
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right
except ImportError:
    sys.exit("baselines: PyTorch cannot be imported: run this with the python that has it")

try:
    import deep_gemm
except ImportError:
    deep_gemm = None
try:
    import flash_mla
except ImportError:
    flash_mla = None

RUNS = 30
FLUSH_BYTES = 256 << 20
FP8_MAX = 448.0


class Timer:
    """Median seconds of a call, as Device::time() in arch/hopper/device_cuda.cc measures them."""

    def __init__(self, in_a_row):
        self.in_a_row = in_a_row
        self.flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        self.stream = torch.cuda.Stream()

    def __call__(self, operation, operands):
        copies = [operands] + [tuple(map(copy_of, operands)) for _ in range(self.in_a_row - 1)]
        torch.cuda.synchronize()
        with torch.cuda.stream(self.stream):
            for _ in range(3):  # compilation, heuristics and workspaces come before the capture
                operation(*operands)
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                for each in copies:
                    operation(*each)
            seconds = []
            for run in range(-2, RUNS):
                start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                self.flush.fill_(run & 0xFF)
                start.record(self.stream)
                graph.replay()
                stop.record(self.stream)
                stop.synchronize()
                if run >= 0:
                    seconds.append(start.elapsed_time(stop) * 1e-3 / self.in_a_row)
        return statistics.median(seconds)


def copy_of(operand):
    """With the same strides; of DeepGEMM's pairs both."""
    return operand.clone() if isinstance(operand, torch.Tensor) else tuple(map(copy_of, operand))


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda").to(dtype)


def fields(case):
    """'m=1,n=8,e4m3fn,row,out=bf16' as a dictionary of the named parts, and a list of the others."""
    named, rest = {}, []
    for part in case.split(","):
        key, equals, value = part.partition("=")
        if equals:
            named[key] = int(value) if value.isdigit() else value
        else:
            rest.append(part)
    return named, rest


# Each of these: (call, operands).


def cublas_bf16(m, n, k):
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    call = lambda a, b, out: torch.mm(a, b.t(), out=out)
    return call, (normal(m, k), normal(n, k), out)


def scaled_mm(m, n, k, scaling):
    """cuBLAS's fp8 through torch._scaled_mm; it refuses some shapes, and says so."""
    a, b = normal(m, k, dtype=torch.float8_e4m3fn), normal(n, k, dtype=torch.float8_e4m3fn)
    ones = lambda *shape: torch.ones(shape, device="cuda")
    if scaling == "tensor":
        scale_a, scale_b = ones(1), ones(1)
    elif scaling == "row":
        scale_a, scale_b = ones(m, 1), ones(1, n)
    else:  # 1 x 128 and 128 x 128
        scale_a = ones(k // 128, m).t()
        scale_b = ones(math.ceil(n / 128), k // 128).t()
    call = lambda a, b, scale_a, scale_b: torch._scaled_mm(
        a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)
    return call, (a, b, scale_a, scale_b)


def deep_gemm_fp8(m, n, k):
    a, b = normal(m, k, dtype=torch.float8_e4m3fn), normal(n, k, dtype=torch.float8_e4m3fn)
    scale_a = torch.randn(k // 128, m, device="cuda").t()  # adjacent rows, as it wants them
    scale_b = torch.randn(math.ceil(n / 128), k // 128, device="cuda")
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    return deep_gemm.fp8_gemm_nt, ((a, scale_a), (b, scale_b), out)


def deep_gemm_grouped(m, n, k, groups):
    """Groups have as many blocks of 128 rows as each other, as in our cases that are not ragged."""
    a, b = normal(m, k, dtype=torch.float8_e4m3fn), normal(groups, n, k, dtype=torch.float8_e4m3fn)
    scale_a = torch.randn(k // 128, m, device="cuda").t()
    scale_b = torch.randn(groups, math.ceil(n / 128), k // 128, device="cuda")
    out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    blocks = m // 128
    group_of = torch.arange(blocks, dtype=torch.int32, device="cuda") * groups // blocks
    call = deep_gemm.m_grouped_fp8_gemm_nt_contiguous
    return call, ((a, scale_a), (b, scale_b), out, group_of.repeat_interleave(128))


def quantise(v, scaling, scale):
    """As ops/scales.h says."""
    if scaling is None:
        return v.to(torch.bfloat16), None
    if scaling == "block":
        rows, columns = v.shape
        v = v.view(rows, columns // 128, 128)
    if scaling != "tensor":
        scale = v.abs().amax(-1, keepdim=True).clamp(min=1e-10) / FP8_MAX
    return (v / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scale


def compiled(function, *operands):
    return torch.compile(function, mode="max-autotune-no-cudagraphs", fullgraph=True), operands


def rmsnorm_quant(rows, columns, dtype, scaling):
    x, residual = normal(rows, columns, dtype=dtype), normal(rows, columns, dtype=dtype)
    weight, scale = normal(columns, dtype=dtype), torch.full((1,), 0.01, device="cuda")

    def function(x, residual, weight, scale):
        h = x + residual
        residual.copy_(h)
        h = h.float()
        v = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-5) * weight.float()
        return quantise(v, scaling, scale)

    return compiled(function, x, residual, weight, scale)


def swiglu_quant(rows, columns, dtype, scaling):
    both = normal(rows, 2 * columns, dtype=dtype)
    scale = torch.full((1,), 0.01, device="cuda")

    def function(both, scale):
        gate, up = both.float().chunk(2, -1)
        return quantise(F.silu(gate) * up, scaling, scale)

    return compiled(function, both, scale)


def attention(rows, first, heads, dim, backend):
    """A chunk's rows, from position `first` on, over all keys up to their own."""
    query_heads, kv_heads = map(int, heads.split("/"))
    q = normal(1, rows, query_heads, dim).transpose(1, 2)
    k, v = (normal(1, kv_heads, first + rows, dim) for _ in range(2))
    mask = causal_lower_right(rows, first + rows) if first > 0 else None

    def call(q, k, v):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None,
                                                  enable_gqa=True)

    return call, (q, k, v)


def latent_lengths(batch, length, ragged):
    """Without lengths of our own: as many keys, spread alike."""
    if not ragged:
        return [length] * batch
    return [length * i // max(1, batch - 1) for i in range(batch)]


def flash_mla_decode(batch, length, tokens, heads, ragged):
    """FlashMLA over pages of 64 rows in bf16; its schedule is made before, as it asks for."""
    lengths = latent_lengths(batch, length, ragged)
    pages = math.ceil(length / 64)
    cache = normal(batch * pages, 64, 1, 576)
    tables = torch.randperm(batch * pages, dtype=torch.int32, device="cuda").view(batch, pages)
    q, seen = normal(batch, tokens, heads, 576), torch.tensor(lengths, dtype=torch.int32, device="cuda")
    made = flash_mla.get_mla_metadata(seen, tokens * heads, 1)
    schedule, splits = made if isinstance(made, tuple) else (made, None)
    call = lambda q, cache, tables, seen: flash_mla.flash_mla_with_kvcache(
        q, cache, tables, seen, 512, schedule, splits, causal=tokens > 1)
    return call, (q, cache, tables, seen)


def sdpa_latents(batch, length, tokens, heads):
    """PyTorch's attention of all heads over one KV head, whose values are the first 512 elements."""
    q, rows = normal(batch, heads, tokens, 576), normal(batch, 1, length, 576)
    mask = causal_lower_right(tokens, length) if tokens > 1 else None
    call = lambda q, rows: F.scaled_dot_product_attention(q, rows, rows[..., :512], mask, enable_gqa=True)
    return call, (q, rows)


@torch.compile
def turned(x, cosines, sines):
    """RoPE by halves."""
    a, b = x.chunk(2, -1)
    return x * cosines + torch.cat((-b, a), -1) * sines


def absorbed_layer(batch, dim, q_rank, heads, prefill, capacity):
    """The absorbed form by cuBLAS, RoPE by torch.compile. Which angles does not matter to its time."""
    sizes = (q_rank, dim), (heads * 192, q_rank), (576, dim), (heads * 256, 512), (dim, heads * 128)
    cache = normal(batch, capacity, 576)
    angles = normal(prefill + 1, 64), normal(prefill + 1, 64)

    def call(x, q_down, q_up, kv_down, kv_up, o, cache, cosines, sines):
        cache[:, prefill] = x @ kv_down.t()
        q = (x @ q_down.t() @ q_up.t()).view(batch, heads, 192)
        up = kv_up.view(heads, 256, 512)
        rows = cache[:, : prefill + 1]
        keys = torch.cat((rows[..., :512], turned(rows[..., 512:], cosines, sines)), -1)
        latent = torch.bmm(q[..., :128].transpose(0, 1), up[:, :128]).transpose(0, 1)
        queries = torch.cat((latent, turned(q[..., 128:], cosines[prefill], sines[prefill])), -1)
        weights = (torch.bmm(queries, keys.transpose(1, 2)) * 192**-0.5).softmax(-1)
        seen = torch.bmm(weights, rows[..., :512])
        values = torch.bmm(seen.transpose(0, 1), up[:, 128:].transpose(1, 2)).transpose(0, 1)
        return values.reshape(batch, -1) @ o.t()

    return call, (normal(batch, dim), *(normal(*size) for size in sizes), cache, *angles)


def layer_by_experts(rows, experts, chosen, shared, inner, hidden):
    """cuBLAS expert by expert. Who has which rows is known beforehand, so that a graph can have it."""
    half = lambda *shape, over: normal(*shape, dtype=torch.float16) / math.sqrt(over)
    x, router = half(rows, hidden, over=1), half(experts, hidden, over=hidden)
    gate, up = (half(experts + shared, hidden, inner, over=hidden) for _ in range(2))
    down = half(experts + shared, inner, hidden, over=inner)
    drawn = (x @ router.t()).topk(chosen, -1).indices
    taken = tuple((drawn == e).any(-1).nonzero()[:, 0] for e in range(experts))

    def call(x, router, gate, up, down, taken):
        expert = lambda e, rows: (F.silu(rows @ gate[e]) * (rows @ up[e])) @ down[e]
        weights = (x @ router.t()).softmax(-1)
        out = torch.zeros_like(x)
        for e, own in enumerate(taken):
            out.index_add_(0, own, expert(e, x[own]) * weights[own, e, None])
        return out + expert(-1, x) if shared else out

    return call, (x, router, gate, up, down, taken)


def sdpa_decode(batch, length, tokens, heads, dim):
    """PyTorch's attention, by the backend that it chooses itself."""
    query_heads, kv_heads = map(int, heads.split("/"))
    q = normal(batch, query_heads, tokens, dim)
    k, v = (normal(batch, kv_heads, length, dim) for _ in range(2))
    mask = causal_lower_right(tokens, length) if tokens > 1 else None
    call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
    return call, (q, k, v)


def baselines(operation, case):
    """What there is to compare a case with: (name, function that returns the call, operands)."""
    named, rest = fields(case)
    shape = [named.get(key) for key in "mnk"]
    scaling = next((part for part in rest if part in ("tensor", "row", "block")), None)
    if operation == "gemm_bf16":
        yield "cuBLAS bf16", lambda: cublas_bf16(*shape)
    elif operation == "gemm_skinny":
        yield "cuBLAS bf16", lambda: cublas_bf16(*shape)
        if scaling:
            yield f"_scaled_mm {scaling}", lambda: scaled_mm(*shape, scaling)
    elif operation == "gemm_fp8_blockwise" and "groups" in named:
        if deep_gemm is not None and "ragged" not in rest:
            yield "DeepGEMM grouped", lambda: deep_gemm_grouped(*shape, named["groups"])
    elif operation == "gemm_fp8_blockwise":
        if deep_gemm is not None:
            yield "DeepGEMM", lambda: deep_gemm_fp8(*shape)
        yield "_scaled_mm block", lambda: scaled_mm(*shape, "block")
    elif operation == "attention" and named["q"] == named["cache"] == "BF16":
        chunk = named["rows"], named["first"], named["heads"], named["dim"]
        if named["first"] == 0:  # its mask begins in the upper left corner, as PyTorch calls it
            yield "cuDNN attention", lambda: attention(*chunk, SDPBackend.CUDNN_ATTENTION)
        yield "flash attention", lambda: attention(*chunk, SDPBackend.FLASH_ATTENTION)
    elif operation == "mla_decode":
        shape = tuple(named[key] for key in ("batch", "length", "tokens", "heads"))
        if flash_mla is not None and named["cache"] == "bf16":
            yield "FlashMLA", lambda: flash_mla_decode(*shape, "ragged" in rest)
        if "ragged" not in rest:
            yield "PyTorch SDPA", lambda: sdpa_latents(*shape)
    elif operation == "mla_layer":
        keys = "batch", "dim", "q_rank", "heads", "prefill", "capacity"
        yield "PyTorch", lambda: absorbed_layer(*(named[key] for key in keys))
    elif operation == "moe_layer":
        sizes = *(named[key] for key in ("rows", "experts", "chosen")), "shared" in rest
        yield "PyTorch", lambda: layer_by_experts(*sizes, named["inner"], named["hidden"])
    elif operation == "attention_decode":
        # It has no soft caps, sinks or lengths that differ; a window's keys alone are its text.
        if not {"ragged", "sinks"} & set(rest) and "soft-cap" not in named:
            length = min(named["length"], named.get("window", named["length"]))
            shape = named["batch"], length, named["tokens"], named["heads"], named["dim"]
            yield "PyTorch SDPA", lambda: sdpa_decode(*shape)
    elif operation in ("rmsnorm_quant", "swiglu_quant"):
        dtype = torch.float16 if "f16" in rest else torch.bfloat16
        make = rmsnorm_quant if operation == "rmsnorm_quant" else swiglu_quant
        yield "torch.compile", lambda: make(named["rows"], named["columns"], dtype, scaling)


def mean_of(operation, peer, figures):
    """Geometric means over the cases that a peer was timed on."""
    group = [e for e in figures if (e["operation"], e["peer"]) == (operation, peer)]
    mean = lambda key: math.exp(sum(math.log(e[key]) for e in group) / len(group))
    return {"operation": operation, "peer": peer, "count": len(group), "ours_s": mean("ours_s"),
            "theirs_s": mean("theirs_s"), "ratio": mean("ratio"), "worst": min(e["ratio"] for e in group)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("ours", help="what `weft bench --device cuda --json` wrote")
    parser.add_argument("--case", default="*", help="glob over case names")
    parser.add_argument("--json", help="also write the figures to this file")
    arguments = parser.parse_args()
    with open(arguments.ours, encoding="utf-8") as file:
        ours = json.load(file)
    if not torch.cuda.is_available():
        sys.exit("baselines: PyTorch finds no CUDA device here")
    if torch.cuda.get_device_name() != ours["name"]:
        sys.exit(
            f"baselines: {arguments.ours} was measured on {ours['name']}, "
            f"this is {torch.cuda.get_device_name()}"
        )
    torch.manual_seed(1)
    torch._dynamo.config.cache_size_limit = 1000
    timer = Timer(ours["in_a_row"])
    figures, known = [], {}
    for case in ours["cases"]:
        if "median_s" not in case or not fnmatch.fnmatch(case["case"], arguments.case):
            continue
        for name, make in baselines(case["operation"], case["case"]):
            # Layouts that only we tell apart have one baseline.
            key = (case["operation"], name, *sorted(map(str, fields(case["case"])[0].items())),
                   *(part for part in fields(case["case"])[1] if "major" not in part))
            if key not in known:
                try:
                    known[key] = timer(*make())
                except (RuntimeError, ValueError, AssertionError) as error:
                    known[key] = str(error).split("\n")[0]
            theirs = known[key]
            line = f"{case['operation']} {case['case']}: {case['median_s'] * 1e6:.1f} us; {name} "
            if isinstance(theirs, str):
                print(f"{line}cannot: {theirs}", flush=True)
                continue
            ratio = theirs / case["median_s"]
            print(f"{line}{theirs * 1e6:.1f} us; {ratio:.2f} times as fast", flush=True)
            figures.append({"operation": case["operation"], "case": case["case"], "peer": name,
                            "ours_s": case["median_s"], "theirs_s": theirs, "ratio": ratio})
    groups = [mean_of(operation, name, figures)
              for operation, name in sorted({(e["operation"], e["peer"]) for e in figures})]
    for each in groups:
        print(f"{each['operation']} against {each['peer']}: geometric mean {each['ours_s'] * 1e6:.1f} us to "
              f"{each['theirs_s'] * 1e6:.1f} us, {each['ratio']:.2f} times as fast, "
              f"{each['count']} cases; slowest {each['worst']:.2f}")
    if arguments.json:
        # Of the same commit and device as ours: its first words, but for when.
        out = {key: ours[key] for key in ("version", "commit", "date", "device", "name", "target", "method")}
        out["date"] = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        out.update(in_a_row=ours["in_a_row"], shapes=ours["shapes"], torch=torch.__version__, means=groups, cases=figures)
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(out, file, indent=2)


if __name__ == "__main__":
    main()

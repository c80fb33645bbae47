#!/usr/bin/env python3
"""Makes the tables and charts of docs/performance/ and README.md from docs/performance/data/*.json.

    docs/performance/make.py            writes what stands between the pages' marks, and the charts
    docs/performance/make.py --check    says what differs instead, and exits 1 if anything does

A data file is what `weft bench [decode] --json` wrote, or what bench/baselines.py --json wrote beside it, as it
is; its name begins with its area. Files marked "carried_over" hold figures of pages before there were such files:
their commit and date are those of the change that recorded the figure, and [low, high] is a range of several runs.
"""

import json
import math
import pathlib
import re
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "performance"
MARK = re.compile(r"(<!-- made: ([a-z0-9-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NAMES = {
    "olmoe-1b-7b": "OLMoE-1B-7B", "qwen3-30b-a3b": "Qwen3-30B-A3B", "mixtral-8x7b": "Mixtral-8x7B",
    "deepseek-v2-lite": "DeepSeek-V2-Lite",
    "llama-3.2-1b": "Llama-3.2-1B", "llama-3.2-3b": "Llama-3.2-3B", "llama-3.1-8b": "Llama-3.1-8B",
    "qwen3-0.6b": "Qwen3-0.6B", "qwen3-8b": "Qwen3-8B", "qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B",
    "mistral-7b": "Mistral-7B", "phi-3-mini-4k": "Phi-3-mini-4k", "phi-4": "Phi-4 (14.7 B)",
    "weft-2b": "weft-2b (2.3 B)", "weft-code": "weft-code (12.5 M)",
}


# --- data


class Data:
    """Every data file of a folder, by area; what a page takes is what its area's files hold."""

    def __init__(self, folder):
        self.runs = {path.stem: json.loads(path.read_text(encoding="utf-8"))
                     for path in sorted(folder.glob("*.json"))}
        self.unused = set(self.runs)

    def of(self, area, keep=lambda run: True):
        found = [(stem, run) for stem, run in self.runs.items() if stem.startswith(area) and keep(run)]
        self.unused -= {stem for stem, _ in found}
        return [run for _, run in found]

    def problems(self):
        """What a file lacks that every figure must say."""
        for stem, run in self.runs.items():
            for key in ("commit", "date", "device", "name", "method"):
                if not run.get(key):
                    yield f"data/{stem}.json lacks '{key}'"
            if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$", run.get("date", "")):
                yield f"data/{stem}.json: '{run.get('date')}' is no date like 2026-11-23T08:00:00Z"
        for stem in sorted(self.unused):
            yield f"data/{stem}.json is on no page: its name begins with no area, or it holds nothing that one shows"


def low(value):
    """A number, or of a range the lower end."""
    return min(value) if isinstance(value, list) else value


def shown(value, scale=1.0, digits=0, unit=""):
    """A number or a range in words; nothing for None."""
    if value is None:
        return ""
    ends = [f"{each * scale:,.{digits}f}" for each in (value if isinstance(value, list) else [value])]
    return "-".join(dict.fromkeys(ends)) + unit


def day_of(run):
    year, month, day = run["date"][:10].split("-")
    months = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
    return f"{int(day)} {months[int(month) - 1]} {year}"


def days_of(runs):
    """The first and the last day that runs are of."""
    ends = [day_of(run) for run in (min(runs, key=lambda run: run["date"]), max(runs, key=lambda run: run["date"]))]
    return " to ".join(dict.fromkeys(ends))


def stamp(run):
    return f"{day_of(run)}, {run['commit'][:7]}{'*' if run.get('carried_over') else ''}"


def key_of(run):
    """The preset's or directory's name."""
    return run["model"].rstrip("/").split("/")[-1]


def model_of(run):
    return NAMES.get(key_of(run), key_of(run))


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def geometric_mean(values):
    return math.exp(sum(map(math.log, values)) / len(values))


# --- charts


def escaped(text):
    return text.replace("&", "&amp;").replace("<", "&lt;")


def bars(title, rows, reference=None, top=None, legend=()):
    """An SVG of horizontal bars. rows: (label, [(value, style, text)]), a row's bars below one another, but for the
    style "part", which lies on the one before. reference: (value, text), a line. top: the scale's end."""
    label_width, width, bar, gap = 170, 640, 11, 9
    top = top or max(value for _, row in rows for value, _, _ in row) * 1.12
    scale = (width - label_width - 60) / top
    legend_width = 0
    body, y = [], 44 if legend else 30
    for text, style in legend:
        x = label_width + legend_width
        body.append(f'<rect class="{style}" x="{x}" y="26" width="10" height="10"/>'
                    f'<text x="{x + 14}" y="35">{escaped(text)}</text>')
        legend_width += 30 + 6.2 * len(text)
    first = y
    for label, row in rows:
        begin = y
        for value, style, text in row:
            over = style == "part"
            at = y - bar - 2 if over else y
            body.append(f'<rect class="{style}" x="{label_width}" y="{at}" width="{value * scale:.1f}" '
                        f'height="{bar}"/>')
            if text:
                x = value * scale + 4
                line = reference[0] * scale if reference else -1
                x = line + 4 if x <= line + 2 and line < x + 6.2 * len(text) else x  # not across the line
                body.append(f'<text x="{label_width + x:.1f}" y="{at + 9}">{escaped(text)}</text>')
            y += 0 if over else bar + 2
        body.append(f'<text class="end" x="{label_width - 6}" y="{(begin + y) / 2 + 3:.0f}">{escaped(label)}</text>')
        y += gap
    if reference:
        x = label_width + reference[0] * scale
        body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{first - 4}" y2="{y - 4}"/>'
                    f'<text class="middle" x="{x:.1f}" y="{y + 8}">{escaped(reference[1])}</text>')
    height = y + 16
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">
<title>{escaped(title)}</title>
<style>
text {{ font: 11px sans-serif; fill: #57606a }}
.title {{ font-weight: bold }}
.end {{ text-anchor: end }}
.middle {{ text-anchor: middle }}
.ours {{ fill: #2f81f7 }}
.other {{ fill: #79b8ff }}
.part {{ fill: #1158c7 }}
.theirs {{ fill: #9aa4ae }}
line {{ stroke: #d1242f; stroke-dasharray: 3 2 }}
@media (prefers-color-scheme: dark) {{ text {{ fill: #c9d1d9 }} line {{ stroke: #ff7b72 }} .theirs {{ fill: #6e7681 }} }}
</style>
<text class="title" x="6" y="14">{escaped(title)}</text>
{chr(10).join(body)}
</svg>
"""


# --- CPU


def cpu_models(runs):
    rows = []
    for run in runs:
        prefill, decode = run.get("prefill", {}), run.get("decode", {})
        seconds = prefill.get("seconds")
        rate = prefill.get("tokens_per_second") or (seconds and [run["prompt_tokens"] / each for each in seconds[::-1]])
        name = model_of(run) + (f", {run['prompt_tokens']} tokens" if run["prompt_tokens"] != 512 else "")
        name += ", AMX" if run["target"] == "amx_bf16" else ""
        rows.append([
            name + (f" ({run['note']})" if run.get("note") else ""), run["weights"],
            shown(rate), shown(prefill.get("share_of_limit"), 100, 0, " %"),
            shown(decode.get("seconds_per_token"), 1e3, 2 if low(decode.get("seconds_per_token", 1)) < 1e-2 else 1),
            shown(run.get("limits", {}).get("read_bytes_per_second"), 1e-9, 1).replace(".0", ""),
            shown(decode.get("share_of_limit"), 100, 0, " %"),
            shown(decode.get("time_over_reading_plain_bytes"), 100, 0, " %"), stamp(run)])
    return table(["model", "weights", "prefill, tokens/s", "of the limit", "decode, ms a token", "memory, GB/s",
                  "of reading", "time, of reading bf16", "of"], rows)


def cpu_memory(runs):
    mib = lambda value: shown(value, 1 / (1 << 20)) if value else ""
    return table(["model", "weights", "at most, MiB", "then", "beyond weights and KV", "of"], [
        [model_of(run) + (f" ({run['note']})" if run.get("note") else ""), run["weights"],
         mib(run["memory"].get("peak")), mib(run["memory"].get("resident")),
         mib(run["memory"].get("beyond_weights_and_kv")), stamp(run)] for run in runs if "memory" in run])


def cpu_peers(run):
    each = lambda values: f"{statistics.median(values):g} ({' '.join(f'{v:g}' for v in values)})"
    return table(["", "prefill, tokens/s: median (all)", "decode, tokens/s: median (all)"],
                 [[r["what"], each(r["prefill"]), each(r["decode"])] for r in run["rounds"]]) + f"\n{stamp(run)}.\n"


def cpu_peers_chart(run):
    median = statistics.median
    rows = [(f"{r['what']}", [(median(r["decode"]), "ours" if r["what"].startswith("Weft") else "theirs",
                               f"{median(r['decode']):g}")]) for r in run["rounds"]]
    return bars("Llama-3.2-1B on two cores: decode, tokens/s", rows)


def cpu_tokenizers(run):
    return table(["pattern", "Weft, MB/s", run["peer"], "times as fast"], [
        [each["kind"], shown(each["ours_mb_per_s"]), shown(each["theirs_mb_per_s"], 1, 1), shown(each["ratio"])]
        for each in run["patterns"]]) + f"\n{stamp(run)}.\n"


# --- models on a GPU


def decode_models(runs):
    rows = []
    for run in sorted(runs, key=lambda run: low(run["decode"]["seconds_per_token"])):
        decode = run["decode"]
        name = model_of(run) + (f", after {run['prompt_tokens']:,} tokens" if run["prompt_tokens"] != 512 else "")
        rows.append([name, run["weights"], shown(decode["seconds_per_token"], 1e6),
                     shown(decode.get("limit_seconds"), 1e6), shown(decode.get("share_of_limit"), 100, 0, " %"),
                     shown(decode.get("plain_limit_seconds"), 1e6), stamp(run)])
    return table(["model", "weights", "us a token", "bytes it reads, us", "share", "bf16 weights alone, us", "of"], rows)


def decode_chart(runs):
    rows = []
    for run in sorted(runs, key=lambda run: low(run["decode"]["seconds_per_token"])):
        decode = run["decode"]
        if run["weights"] != "compressed" or "plain_limit_seconds" not in decode or run["prompt_tokens"] != 512:
            continue
        share = decode["seconds_per_token"] / decode["plain_limit_seconds"]
        rows.append((model_of(run), [(share, "ours", f"{decode['seconds_per_token'] * 1e6:,.0f} us, {share:.0%}"),
                                     (decode["limit_seconds"] / decode["plain_limit_seconds"], "part", "")]))
    return bars("One sequence on an H200: time of a token, of reading its bf16 weights", rows, (1, "100 %"),
                top=1.3, legend=[("time of a token", "ours"), ("of it, reading its packed bytes takes", "part")])


def decode_batches(runs, singles):
    one = {key_of(run): run for run in singles if run["weights"] != "plain" and run["prompt_tokens"] == 512}
    steps = {}
    for run in runs:
        steps.setdefault((key_of(run), run["prompt_tokens"]), {})[run["batch"]] = run
    rows = []
    for (model, prompt), batches in sorted(steps.items(), key=lambda item: low(item[1][8]["decode"]["seconds_per_token"])):
        batches.setdefault(1, one.get(model))
        cells = [shown(batches[n]["decode"]["seconds_per_token"], 1e6) if batches.get(n) else "" for n in (1, 2, 4, 8)]
        last = batches[8]
        rows.append([f"{model_of(last)}, {prompt} tokens each", *cells,
                     shown(8 / last["decode"]["seconds_per_token"]), stamp(last)])
    return table(["model", "1", "2", "4", "8", "tokens a second with 8", "of"], rows)


def sampling_of(run):
    words = {"temperature": "temperature", "top_k": "top-k", "top_p": "top-p", "min_p": "min-p",
             "repetition_penalty": "penalty"}
    off = {"temperature": 0, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1}
    return ", ".join(f"{words[key]} {run['sampling'][key]:g}" for key in words
                     if run["sampling"].get(key) not in (None, off[key]))


def decode_sampled(runs, singles):
    greedy = {key_of(run): run for run in singles if run["prompt_tokens"] == 512 and "limit_seconds" in run["decode"]
              and (run["weights"] == "compressed" or "code" in key_of(run))}
    rows = [[model_of(run), sampling_of(run), shown(run["decode"]["seconds_per_token"], 1e6),
             shown(greedy[key_of(run)]["decode"]["seconds_per_token"], 1e6), run.get("note", ""), stamp(run)]
            for run in sorted(runs, key=lambda run: (key_of(run), low(run["decode"]["seconds_per_token"])))]
    return table(["model", "sampling", "us a token", "greedy", "", "of"], rows)


def serve_loads(runs):
    rows = []
    for run in sorted(runs, key=lambda run: (model_of(run), run["options"])):
        for load in run["loads"]:
            first, between = load["first_token_seconds"], load["between_seconds"]
            rows.append([model_of(run) + (f", `{run['options']}`" if run["options"] else ""), str(load["clients"]),
                         shown(load["tokens_a_second"]), shown(first["p50"], 1e3, 1), shown(first["most"], 1e3, 1),
                         shown(between["p50"], 1e3, 2), shown(between["p99"], 1e3, 2), stamp(run)])
    return table(["model", "clients", "tokens a second", "first token, ms: median", "longest",
                  "between tokens, ms: median", "p99", "of"], rows)


def prefill_models(runs):
    rows = []
    for run in sorted(runs, key=lambda run: (model_of(run), run["kv"], run["prompt_tokens"])):
        prefill = run["prefill"]
        rows.append([model_of(run), f"{run['prompt_tokens']:,}", run["prompt_activations"].lower(),
                     shown(prefill["seconds"], 1e3, 1 if low(prefill["seconds"]) > 1e-3 else 2),
                     shown(prefill.get("limit_seconds"), 1e3, 2 if low(prefill.get("limit_seconds", 0)) < 1e-2 else 1),
                     shown(prefill.get("share_of_limit"), 100, 0, " %"), stamp(run)])
    return table(["model", "tokens", "activations and cache", "first token, ms", "needed flops at the limit, ms",
                  "share", "of"], rows)


def prefill_chart(runs):
    rows = []
    for run in sorted(runs, key=lambda run: -(run["prefill"].get("share_of_limit") or 0)):
        share = run["prefill"].get("share_of_limit")
        if share and run["prompt_tokens"] >= 512:
            style = "ours" if run["kv"] == "BF16" else "other"
            rows.append((f"{model_of(run)}, {run['prompt_tokens']:,}",
                         [(share, style, f"{share:.0%}, {run['prefill']['seconds'] * 1e3:.1f} ms")]))
    return bars("Prompts on an H200: needed flops, share of the limit", rows, (1, "limit"), top=1.12,
                legend=[("bf16, of 989.5 TFLOP/s", "ours"), ("f32, of 67", "other")])


# --- operations


def fields(case):
    return dict(part.split("=") for part in case.split(",") if "=" in part)


class Operations:
    """Cases of `weft bench --json` with what baselines.py found beside them."""

    def __init__(self, data):
        self.cases = []
        for run in data.of("hopper-", lambda run: "means" not in run):
            method = "alone" if run["in_a_row"] == 1 else "in a row"
            for case in run["cases"]:
                if "median_s" in case:
                    self.cases.append({**case, "method": method, "shapes": run["shapes"], "stamp": stamp(run),
                                       "peers": {}})
        self.means = []
        for run in data.of("hopper-", lambda run: "means" in run):
            method = "alone" if run["in_a_row"] == 1 else "in a row"
            self.means += [{**mean, "method": method, "shapes": run["shapes"], "stamp": stamp(run)}
                           for mean in run["means"] if run.get("carried_over")]
            for each in run["cases"]:
                case = self.find(each["operation"], each["case"], method, run["shapes"])
                if case:
                    case["peers"][each["peer"]] = each["theirs_s"]

    def find(self, operation, name, method, shapes="listed"):
        for case in self.cases:
            if (case["operation"], case["case"], case["method"], case["shapes"]) == (operation, name, method, shapes):
                return case
        return None

    def select(self, operation, shapes, method, part=""):
        return [case for case in self.cases if (case["operation"], case["shapes"], case["method"]) ==
                (operation, shapes, method) and re.search(part, case["case"])]

    def against(self, operation, shapes, method, part, peer, what):
        """(ratio, worst, count, stamp) against a peer (a name's beginning): of carried-over pages as they state it,
        else of the cases that both were timed on, each with the fastest of such peers; None: not measured."""
        for mean in self.means:
            if (mean["operation"], mean["shapes"], mean["method"], mean.get("what")) == (operation, shapes, method, what) \
                    and mean["peer"].startswith(peer):
                return mean["ratio"], mean["worst"], mean["count"], mean["stamp"]
        found = []
        for case in self.select(operation, shapes, method, part):
            theirs = [seconds for name, seconds in case["peers"].items() if name.startswith(peer)]
            if theirs:
                found.append((min(theirs) / case["median_s"], case["stamp"]))
        if not found:
            return None
        ratios = [ratio for ratio, _ in found]
        return geometric_mean(ratios), min(ratios), len(ratios), found[0][1]


# What the summary compares: title, operation, pattern of cases' names, peer (a name's beginning), how the pages
# before called it.
COMPARED = [
    ("block-scaled FP8 product", "gemm_fp8_blockwise", "k-major(?!.*groups)", "DeepGEMM", "k-major"),
    ("block-scaled FP8 product of groups", "gemm_fp8_blockwise", "groups=", "DeepGEMM", "groups"),
    ("bf16 product, prefill", "gemm_bf16", "", "cuBLAS", None),
    ("bf16 product, 1 to 32 rows", "gemm_skinny", ",bf16,", "cuBLAS", "bf16"),
    ("bf16 product, one row", "gemm_skinny", "^m=1,.*,bf16,", "cuBLAS", "bf16, one row"),
    ("fp8 product, 1 to 32 rows", "gemm_skinny", "e4m3fn", "_scaled_mm", "fp8, all scales"),
    ("fp8 product, one row", "gemm_skinny", "^m=1,.*e4m3fn", "_scaled_mm", "fp8, one row"),
    ("attention of a prompt in bf16", "attention", "first=0,", "cuDNN", None),
    ("latent attention (MLA), decode", "mla_decode", "", "FlashMLA", None),
    ("RMSNorm with quantisation", "rmsnorm_quant", "", "torch.compile", None),
    ("SwiGLU with quantisation", "swiglu_quant", "", "torch.compile", None),
    ("layer of experts in f16", "moe_layer", "", "PyTorch", None),
]
COLUMNS = [("listed", "alone"), ("listed", "in a row"), ("given", "alone"), ("given", "in a row")]


def peer_name(peer):
    return {"_scaled_mm": "cuBLAS (`_scaled_mm`)"}.get(peer, peer)


def operations_summary(operations, detailed):
    rows = []
    for title, operation, part, peer, what in COMPARED:
        cells, stamps = [], []
        for shapes, method in COLUMNS:
            found = operations.against(operation, shapes, method, part, peer, what)
            if found is None:
                cells.append("")
                continue
            ratio, worst, count, of = found
            cells.append(f"{ratio:.2f}, worst {worst:.2f}, {count}" if detailed else f"{ratio:.2f}")
            stamps.append(of)
        row = [title, peer_name(peer), *cells]
        rows.append(row + ["; ".join(dict.fromkeys(stamps))] if detailed else row)
    heads = ["operation", "strongest peer", "alone", "in a row", "unlisted shapes, alone", "in a row"]
    return table(heads + ["of"] if detailed else heads, rows)


def operations_chart(operations):
    rows = []
    for title, operation, part, peer, what in COMPARED:
        row = []
        for (shapes, method), style in zip(COLUMNS[:3], ("ours", "other", "theirs")):
            found = operations.against(operation, shapes, method, part, peer, what)
            if found:
                row.append((found[0], style, f"{found[0]:.2f}"))
        if row:
            rows.append((title, row))
    return bars("Operations on an H200: how many times as fast as the strongest peer", rows, (1, "1.0"), top=3.0,
                legend=[("listed, alone", "ours"), ("listed, in a row", "other"), ("unlisted, alone", "theirs")])


def microseconds(case):
    return f"{case['median_s'] * 1e6:.1f}" if case else ""


def product_shapes(operations, operation, suffix, peer, shapes, with_row):
    rows = []
    for case in operations.select(operation, shapes, "alone", suffix):
        m, n, k = (fields(case["case"])[key] for key in "mnk")
        row = [f"{m}, {n}, {k}", case.get("plan", "").split(";")[0][:40] if shapes == "given" else None,
               f"{case['limit_s'] * 1e6:.1f}" if "limit_s" in case else ""]
        for each in [case, *([operations.find(operation, case["case"], "in a row", shapes)] if with_row else [])]:
            theirs = each and each["peers"].get(peer)
            row += [microseconds(each), f"{theirs * 1e6:.1f}" if theirs else "",
                    f"{theirs / each['median_s']:.2f}" if theirs else ""]
        rows.append([cell for cell in row if cell is not None])
    heads = ["m, n, k"] + (["tile"] if shapes == "given" else []) + ["floor, us", "alone: ours, us", peer, "ratio"]
    if not any(row[-4] for row in rows) and shapes == "given":
        heads.remove("floor, us")
        rows = [row[:2] + row[3:] for row in rows]
    return table(heads + (["in a row: ours", peer, "ratio"] if with_row else []), rows)


def grouped_shapes(operations):
    """gemm_fp8_blockwise with groups, beside DeepGEMM's contiguous layout."""
    rows = []
    for case in operations.select("gemm_fp8_blockwise", "listed", "alone", "groups="):
        f = fields(case["case"])
        row = [f"{f['m']}, {f['n']}, {f['k']}", f["groups"],
               f"{case['flops'] / case['median_s'] / 1e12:,.0f} ({case['limit_s'] / case['median_s']:.0%})"]
        for each in (case, operations.find("gemm_fp8_blockwise", case["case"], "in a row")):
            theirs = each["peers"]["DeepGEMM grouped"]
            row += [microseconds(each), f"{theirs * 1e6:.1f}", f"{theirs / each['median_s']:.2f}"]
        rows.append(row)
    return table(["m, n, k", "groups", "TFLOP/s alone (of the fp8 peak)", "alone: ours, us", "DeepGEMM", "ratio",
                  "in a row: ours", "DeepGEMM", "ratio"], rows)


def skinny_shapes(operations, method):
    by_shape = {}
    for case in operations.select("gemm_skinny", "listed", method):
        f = fields(case["case"])
        form = "bf16" if ",bf16," in case["case"] else "fp8"
        by_shape.setdefault((f["n"], f["k"]), {})[(form, int(f["m"]))] = case
    rows = []
    for (n, k), cases in by_shape.items():
        row = [f"{n}, {k}"]
        for form in ("bf16", "fp8"):
            for m in (1, 8, 16, 32):
                case = cases.get((form, m))
                theirs = min(case["peers"].values(), default=None) if case else None
                row.append(microseconds(case) + (f" ({theirs / case['median_s']:.2f})" if theirs else ""))
        rows.append(row)
    return table(["n, k", *(f"{form}, {m}" for form in ("bf16", "fp8") for m in (1, 8, 16, 32))], rows)


def norm_shapes(operations):
    rows = {}
    for case in operations.cases:
        if case["operation"] not in ("rmsnorm_quant", "swiglu_quant") or case["method"] != "alone":
            continue
        f = fields(case["case"])
        form = next((part for part in ("tensor", "row", "block") if f",{part}" in case["case"]), "")
        key = (case["operation"], f["columns"], f["out"] + (f", {form}" if form else ""), case["shapes"])
        both = [case, operations.find(case["operation"], case["case"], "in a row", case["shapes"])]
        cell = " / ".join(f"{microseconds(each)} ({min(each['peers'].values()) / each['median_s']:.1f})"
                          if each["peers"] else microseconds(each) for each in both if each)
        rows.setdefault(key, {})[int(f["rows"])] = cell
    listed = [[f"`{key[0]}`, {key[1]}", key[2], *(cells.get(m, "") for m in (1, 32, 256, 2048))]
              for key, cells in rows.items() if key[3] == "listed"]
    given = [[f"`{key[0]}`, {m} x {key[1]}", key[2], cell] for key, cells in rows.items() if key[3] == "given"
             for m, cell in cells.items()]
    text = table(["operation, columns", "result", "1 row", "32", "256", "2048"], listed)
    return text + ("\nNot listed:\n\n" + table(["operation, rows x columns", "result", "us"], given) if given else "")


def attention_shapes(operations):
    rows = []
    for case in operations.select("attention", "listed", "alone") + operations.select("attention", "given", "alone"):
        f = fields(case["case"])
        row = [f"{f['rows']} rows, heads {f['heads']} of {f['dim']}, {f['first']} keys before"]
        for each in (case, operations.find("attention", case["case"], "in a row", case["shapes"])):
            peers = each["peers"] if each else {}
            row += [microseconds(each), *(f"{peers[p] * 1e6:.1f}" if p in peers else ""
                                          for p in ("cuDNN attention", "flash attention"))]
        rows.append(row)
    return table(["shape", "alone: ours, us", "cuDNN", "flash attention", "in a row: ours", "cuDNN", "flash attention"],
                 rows)


def decode_shape(case):
    """Of a decode step's attention: sequences x keys."""
    f, grouped = fields(case["case"]), case["operation"] == "attention_decode"
    return (f"{f['batch']} x {int(f.get('length') or f['prefill']):,}, {f['heads']} heads"
            + (f" of {f['dim']}" if grouped else "")
            + (f", {f['tokens']} tokens each" if f.get("tokens", "1") != "1" else "")
            + "".join(f", {word}" for word in ("paged", "unified") if grouped and word in case["case"].split(",")))


def decode_attention(operations):
    rows = []
    for operation in ("mla_decode", "mla_layer", "attention_decode"):
        for case in operations.select(operation, "listed", "alone"):
            for peer, seconds in case["peers"].items():
                rows.append([f"`{operation}`", decode_shape(case), microseconds(case),
                             f"{case['limit_s'] / case['median_s']:.0%}",
                             f"{peer} {seconds * 1e6:.1f}", f"{seconds / case['median_s']:.2f}"])
    return table(["operation", "sequences x keys", "us", "of the limit", "peer, us", "times as fast"], rows)


EXPERT_LAYERS = {  # experts, chosen, n, hidden
    "128,8,768,2048": "Qwen3-30B-A3B", "64,8,1024,2048": "OLMoE-1B-7B", "64,6,1408,2048": "DeepSeek-V2-Lite",
    "32,4,2880,2880": "gpt-oss-20b, MXFP4", "128,4,2880,2880": "gpt-oss-120b, MXFP4",
}


def expert_layer(f):
    return EXPERT_LAYERS[",".join(f[key] for key in ("experts", "chosen", "n", "hidden"))]


def few_tokens_experts(operations):
    """The operation `moe` of one layer, a token or some."""
    rows = []
    for case in operations.select("moe", "given", "alone"):
        f = fields(case["case"])
        row = operations.find("moe", case["case"], "in a row", case["shapes"])
        rows.append([expert_layer(f), f["rows"],
                     f"{case['limit_s'] * 1e6:.1f}",
                     *(cell for each in (case, row) for cell in
                       ((microseconds(each), f"{each['limit_s'] / each['median_s']:.0%}") if each else ("", ""))),
                     case["stamp"]])
    rows.sort(key=lambda row: list(EXPERT_LAYERS.values()).index(row[0]))
    return table(["layer", "tokens", "its experts' bytes, us", "alone, us", "share", "in a row, us", "share", "of"], rows)


# --- AMD


def amd_shape(case):
    f = fields(case["case"])
    if "m" in f:
        return f"{f['m']}, {f['n']}, {f['k']}"
    if case["operation"] == "moe":
        return f"{expert_layer(f)}, {int(f['rows']):,} token{'s' if f['rows'] != '1' else ''}"
    return decode_shape(case)


def amd_cases(runs, products):
    """(operation, shape) -> target -> (case, bound over the limit), of tiled products or of all others."""
    by_case = {}
    for run in runs:
        for case in run["cases"]:
            if "bound_from_counts_s" in case and products == ("m" in fields(case["case"])):
                over = case.get("bound_over_limit") or case["bound_from_counts_s"] / case["limit_s"]
                by_case.setdefault((case["operation"], amd_shape(case)), {})[run["target"]] = case, over
    if products:
        return by_case
    numbers = lambda text: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text.replace(",", ""))]
    return dict(sorted(by_case.items(), key=lambda each: (each[0][0], numbers(each[0][1]))))


def amd_shapes(by_case, shape):
    rows = []
    for (operation, name), targets in by_case.items():
        cells = [f"{targets[t][0]['bound_from_counts_s'] * 1e6:,.1f}, {targets[t][0]['bound_by']}, {targets[t][1]:.2f}"
                 if t in targets else "" for t in ("gfx942", "gfx950")]
        rows.append([f"`{operation}`", name, *[cell.replace("the kernels' bounds together", "launches") for cell in cells]])
    return table(["operation", shape, "gfx942: us, bound by, over the limit", "gfx950"], rows)


def amd_means(runs):
    rows = {}
    for run in runs:
        for mean in run.get("means", ()):
            rows.setdefault((mean["operation"], mean["what"]), {})[run["target"]] = mean["bound_over_limit"]
    text = table(["operation", "cases", "gfx942: bound over the limit", "gfx950"],
                 [[f"`{operation}`", what, shown(t.get("gfx942"), 1, 2), shown(t.get("gfx950"), 1, 2)]
                  for (operation, what), t in rows.items()])
    return text + "\n" + "; ".join(dict.fromkeys(stamp(run) for run in runs if "means" in run)) + ".\n"


def amd_chart(by_case):
    rows = [(shape, [(targets[t][1], style, f"{targets[t][1]:.2f}") for t, style in (("gfx942", "ours"), ("gfx950", "other"))
                     if t in targets]) for (operation, shape), targets in by_case.items()
            if operation == "gemm_fp8_blockwise"]
    return bars("Block-scaled FP8 products: bound from counts, over the limit", rows, (1, "1.0"), top=4.0,
                legend=[("gfx942", "ours"), ("gfx950", "other")])


# --- the whole


def readme_models(cpu, cpu_peer, gpu, gpu_peer):
    on_gpu = {key_of(run): run for run in gpu
              if run["prompt_tokens"] == 512 and (run["weights"] == "compressed" or "code" in key_of(run))
              and "limit_seconds" in run["decode"]}
    on_cpu = {key_of(run): run for run in cpu
              if run["prompt_tokens"] == 512 and run["name"].startswith("AMD") and "decode" in run
              and (run["weights"] == "compressed" and "note" not in run or "code" in key_of(run))}
    rounds = {each["what"].split()[0]: statistics.median(each["decode"]) for each in cpu_peer["rounds"]}
    rows = []
    for name in sorted({*on_gpu, *on_cpu}, key=lambda n: (n not in on_gpu, low((on_gpu.get(n) or on_cpu[n])["decode"]["seconds_per_token"]))):
        gpu_cell, share, peer = "", "", ""
        if name in on_gpu:
            decode = on_gpu[name]["decode"]
            gpu_cell, share = shown(decode["seconds_per_token"], 1e6), shown(decode.get("share_of_limit"), 100, 0, " %")
            if key_of(gpu_peer) == name:
                peer = f"{gpu_peer['peer'].split()[0]} {shown(gpu_peer['seconds_per_token'], 1e6)}"
        cpu_cell, cpu_share, cpu_other = "", "", ""
        if name in on_cpu:
            decode = on_cpu[name]["decode"]
            seconds = decode["seconds_per_token"]
            rate = [1 / s for s in reversed(seconds)] if isinstance(seconds, list) else 1 / seconds
            cpu_cell = shown(rate, 1, 0 if low(rate) > 100 else 1)
            if "note" not in on_cpu[name]:
                cpu_share = shown(decode.get("share_of_limit"), 100, 0, " %")
            if key_of(cpu_peer) == name:
                cpu_other = f"llama.cpp {rounds['llama.cpp']:g}"
        rows.append([NAMES.get(name, name), gpu_cell, share, peer, cpu_cell, cpu_share, cpu_other])
    text = table(["model", "H200: us a token", "of the limit", "peer", "CPU: tokens/s", "of the limit", "peer"], rows)
    return text + f"\nH200: {days_of([*on_gpu.values(), gpu_peer])}. CPU: {days_of([*on_cpu.values(), cpu_peer])}.\n"


def make(data):
    """(fragments by name, charts by file name)"""
    single = lambda run: run["batch"] == 1 and not sampling_of(run)
    cpu = data.of("cpu-", lambda run: "workers" in run)
    cpu_peer, tokenizers = data.of("cpu-peers")[0], data.of("cpu-tokenizers")[0]
    singles = data.of("h200-decode-", lambda run: "decode" in run and single(run) and run["prompt_tokens"] >= 512)
    sampled = data.of("h200-decode-", lambda run: "decode" in run and sampling_of(run))
    batches = data.of("h200-decode-batch-")
    peer = data.of("h200-decode-peer-")[0]
    prompts = data.of("h200-prefill-")
    operations = Operations(data)
    amd = data.of("amd-")
    amd_products, amd_steps = amd_cases(amd, True), amd_cases(amd, False)
    epyc = [run for run in cpu if run["name"].startswith("AMD")]
    fp8, bf16 = ("gemm_fp8_blockwise", ",k-major(?!.*groups)"), ("gemm_bf16", "")
    fragments = {
        "cpu-models": cpu_models(epyc),
        "cpu-intel": cpu_models([run for run in cpu if run not in epyc]),
        "cpu-memory": cpu_memory(epyc),
        "cpu-peers": cpu_peers(cpu_peer),
        "cpu-tokenizers": cpu_tokenizers(tokenizers),
        "decode-models": decode_models(singles),
        "decode-batches": decode_batches(batches, singles),
        "decode-sampled": decode_sampled(sampled, singles),
        "decode-peer": f"{peer['peer']} ({peer['method']}): {shown(peer['seconds_per_token'], 1e6)} us a token of "
                       f"{model_of(peer)} ({stamp(peer)}).\n",
        "prefill-models": prefill_models(prompts),
        "serve-loads": serve_loads(data.of("h200-serve-")),
        "operations-summary": operations_summary(operations, True),
        "operations-attention": attention_shapes(operations),
        "operations-decode-attention": decode_attention(operations),
        "operations-experts": few_tokens_experts(operations),
        "operations-fp8-grouped": grouped_shapes(operations),
        "operations-fp8": product_shapes(operations, *fp8, "DeepGEMM", "listed", True),
        "operations-bf16": product_shapes(operations, *bf16, "cuBLAS bf16", "listed", True),
        "operations-fp8-unlisted": product_shapes(operations, *fp8, "DeepGEMM", "given", False),
        "operations-bf16-unlisted": product_shapes(operations, *bf16, "cuBLAS bf16", "given", False),
        "operations-skinny-alone": skinny_shapes(operations, "alone"),
        "operations-skinny-in-a-row": skinny_shapes(operations, "in a row"),
        "operations-norms": norm_shapes(operations),
        "amd-shapes": amd_shapes(amd_products, "m, n, k"),
        "amd-steps": amd_shapes(amd_steps, "sequences x keys; layer, tokens")
                     + "\n" + "; ".join(dict.fromkeys(stamp(run) for run in amd if "means" not in run)) + ".\n",
        "amd-means": amd_means(amd),
        "readme-models": readme_models(cpu, cpu_peer, singles, peer),
        "readme-operations": operations_summary(operations, False) + f"\n{days_of(data.of('hopper-'))}.\n",
    }
    charts = {
        "cpu-peers.svg": cpu_peers_chart(cpu_peer),
        "h200-decode.svg": decode_chart(singles),
        "h200-prefill.svg": prefill_chart(prompts),
        "hopper-operations.svg": operations_chart(operations),
        "amd-bounds.svg": amd_chart(amd_products),
    }
    return fragments, charts


def pages(root=ROOT):
    return [root / "README.md", *sorted((root / "docs" / "performance").glob("*.md"))]


def filled(text, fragments, page, used):
    def replace(match):
        name = match[2]
        if name not in fragments:
            raise SystemExit(f"make.py: {page.name} asks for '{name}', which is not made")
        used.add(name)
        return f"{match[1]}{fragments[name]}{match[3]}"

    return MARK.sub(replace, text)


def main():
    data = Data(FOLDER / "data")
    fragments, charts = make(data)
    used, wanted = set(), {FOLDER / name: text for name, text in charts.items()}
    for page in pages():
        wanted[page] = filled(page.read_text(encoding="utf-8"), fragments, page, used)
    problems = [*data.problems(), *(f"'{name}' is made, and on no page" for name in fragments if name not in used)]
    if "--check" in sys.argv[1:]:
        problems += [f"{path.relative_to(ROOT)} is not what docs/performance/make.py makes: run it"
                     for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    else:
        for path, text in wanted.items():
            path.write_text(text, encoding="utf-8")
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Proves Weft on the GPU of this machine, and ends with a table of what was proved.

    scripts/test gpu [quick|least]            builds weft first
    WEFT=path/to/weft scripts/test gpu        takes this one

An NVIDIA GPU (cuda) or, where there is none, an AMD GPU (hip). What the device refuses in words is
listed and is no failure; a proof of which nothing is left is one. Every generation runs on the GPU and on the CPU, from the same directory: token for token and logits
against logits. Where both sides keep f32 the tokens must be the same, but that a token may differ
where the two candidates were a near tie, which a score of the text on the CPU decides.
"""

import argparse
import concurrent.futures
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import models

HERE = Path(__file__).resolve().parent
GOLDENS = HERE.parent / "goldens/models"
NO_DEVICE = 4

# Logits of the two sides, as a share of their length: sums of f32 in other orders, and rows of
# which the resident kernel keeps 17 bits; and what a last bit of bf16 becomes in a few layers.
F32_TOLERANCE = 3e-4
BF16_TOLERANCE = 3e-2
# Of more sequences than these, rows are rounded to bf16 where they meet weights in the resident kernel.
MOST_EXACT_SEQUENCES = 4
EXACT = ["--kv", "f32", "--activations", "f32"]
REFUSED = re.compile(r"the \S+ device (has no (kernel for it|room for them)|wants multiples of 8)")


class Proof:
    """A row of the last table."""

    def __init__(self, name):
        self.name, self.passed, self.failures, self.refused = name, 0, [], set()
        self.started = time.monotonic()
        print(f"\n==> {name}", flush=True)

    def settle(self, what, why):
        """`why`: an empty string where it is as it shall be."""
        if why:
            self.failures.append(what)
            print(f"FAILED {what}: {why}", flush=True)
        else:
            self.passed += 1

    def refuse(self, model, why):
        """Whether `why` is the device's sentence that it has no form for the model; it is noted then."""
        if not isinstance(why, str) or REFUSED.search(why) is None:
            return False
        self.refused.add(model.name)
        return True

    def row(self):
        seconds = time.monotonic() - self.started
        if self.passed == 0 and not self.failures:
            self.settle("all of it", "there is nothing that the device takes")
        verdict = "FAILED" if self.failures else "passed"
        refused = f", {len(self.refused)} refused: {' '.join(sorted(self.refused))}" if self.refused else ""
        return (
            f"{self.name:<12} {verdict}  {self.passed:>5} passed, {len(self.failures):>3} failed"
            f"{refused}, in {seconds:.0f} s"
        )


def run(command, timeout=300):
    """The process's result; a hang is a failure like another."""
    try:
        return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no end within {timeout} s")


def ids_of(length, vocabulary, seed):
    draw = random.Random(f"{seed} {length}")
    return [draw.randrange(3, vocabulary) for _ in range(length)]


def text_of(ids):
    return ",".join(map(str, ids))


def difference(a, b):
    """As a share of b's length; NaN where either has one."""
    error = math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))
    return error / math.sqrt(sum(y * y for y in b))


class Command:
    """`weft`, on the one side or the other: `device` is the GPU, `workers` flags of what runs there."""

    def __init__(self, weft, device, workers):
        self.weft, self.device, self.workers = weft, device, workers
        self.is_cuda = device.startswith("cuda")

    def side(self, device):
        return ["--device", device, *(self.workers if device == self.device else [])]

    def generate(self, model, prompts, device, tokens, flags):
        """[(ids, stop, logits)], or the sentence of a failure."""
        ids = itertools.chain.from_iterable(("--ids", text_of(p)) for p in prompts)
        result = run(
            [self.weft, "generate", "--model", model, *ids, *self.side(device), "--max-tokens", tokens]
            + ["--stats-json", "-", "--logits", *flags]
        )
        if result.returncode != 0:
            return result.stderr.strip().splitlines()[-1] if result.stderr else "no word"
        stats = json.loads(result.stdout)
        return [(s["ids"], s["stop"], s["logits"]) for s in stats.get("sequences", [stats])]

    def score(self, model, ids, device, flags):
        """(log-probabilities, last logits), or the sentence of a failure."""
        result = run(
            [self.weft, "score", "--model", model, "--ids", text_of(ids), *self.side(device)]
            + ["--json", "--logits", *flags]
        )
        if result.returncode != 0:
            return result.stderr.strip().splitlines()[-1] if result.stderr else "no word"
        out = json.loads(result.stdout)
        return out["logprobs"], out["logits"]


def near_tie(weft, model, ids, one, other, tolerance):
    """Whether either token could be the next one after `ids`, logits being off by the tolerance."""
    scored = weft.score(model, ids, "cpu", EXACT + ["--weights", "plain"])
    if isinstance(scored, str):
        return False
    logits = scored[1]
    size = math.sqrt(sum(x * x for x in logits) / len(logits))
    # A single logit is off by a few times the mean.
    return abs(logits[one] - logits[other]) <= 8 * tolerance * size


def compare_generations(weft, model, prompts, got, expected, tolerance, greedy):
    """What is wrong with what the GPU drew, or an empty string."""
    for i, (mine, theirs) in enumerate(zip(got, expected)):
        tokens, stop, logits = mine
        at = next((j for j, (a, b) in enumerate(zip(tokens, theirs[0])) if a != b), None)
        if at is not None:
            ids = prompts[i] + tokens[:at]
            if greedy and near_tie(weft, model, ids, tokens[at], theirs[0][at], tolerance):
                continue
            return f"sequence {i + 1}: token {at} is {tokens[at]}, the CPU's {theirs[0][at]}"
        if len(tokens) != len(theirs[0]) or stop != theirs[1]:
            return f"sequence {i + 1}: {len(tokens)} tokens to {stop}, the CPU's {len(theirs[0])} to {theirs[1]}"
        if logits and not difference(logits, theirs[2]) <= tolerance:  # NaN fails
            return f"sequence {i + 1}: last logits differ by {difference(logits, theirs[2]):.1e}"
    return ""


def prove_operations(weft, part):
    proof = Proof("operations")
    some = ["embed", "rmsnorm"] if part == "least" else []
    quick = ["--quick"] if part else []
    result = run([weft.weft, "check", *some, "--device", weft.device, *quick], 400)
    counts = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped\s*$", result.stdout)
    if counts is None:
        proof.settle("weft check", result.stderr.strip() or "no count at its end")
        return proof
    print(result.stdout.strip().splitlines()[-1])
    proof.passed = int(counts[1]) - 1
    lines = [line for line in result.stdout.splitlines() if "FAILED" in line or "failed:" in line]
    why = "\n".join(lines[:20]) or f"{counts[2]} failed"
    proof.settle("weft check", "" if result.returncode == 0 and counts[1] != "0" else why)
    return proof


def golden_models(part):
    if part == "least":
        return ["llama-f32", "qwen3-bf16"]
    names = sorted(p.name for p in GOLDENS.iterdir() if p.is_dir())
    return [n for n in names if n.endswith("-bf16")] if part == "quick" else names


def vocabulary_of(model):
    return json.loads((Path(model) / "config.json").read_text())["vocab_size"]


def prove_scores(weft, part):
    """Every family's prompts: whole texts, in bf16 and in f32."""
    proof = Proof("prompts")
    cases = []
    lengths = {"least": [17], "quick": [600], None: [17, 600, 1100]}[part]
    for name, length in itertools.product(golden_models(part), lengths):
        rounded = ["--kv", "bf16", "--activations", "bf16"] if name.endswith("bf16") else ["--kv", "bf16"]
        for flags, tolerance in ((EXACT, 2e-5), (rounded, BF16_TOLERANCE)):
            cases.append((GOLDENS / name, length, flags, tolerance))

    def has_experts(model):
        return any("expert" in key for key in json.loads((model / "config.json").read_text()))

    def expect(case):
        model, length, flags, _ = case
        ids = ids_of(length, vocabulary_of(model), model.name)
        return weft.score(model, ids, "cpu", flags + ["--threads", "2"])

    for case, expected in beside(expect, cases):
        model, length, flags, tolerance = case
        what = f"{model.name}, {length} tokens, {' '.join(flags)}"
        got = weft.score(model, ids_of(length, vocabulary_of(model), model.name), weft.device, flags)
        if proof.refuse(model, got):
            continue
        if isinstance(got, str) or isinstance(expected, str):
            proof.settle(what, got if isinstance(got, str) else expected)
            continue
        logits = difference(got[1], expected[1])
        # Log-probabilities are off as logits are, whose size is 2 or so here. Rounded rows may tip a router's near
        # tie, and a token then has another expert: few of a text (in f32, above, none).
        off = sorted((abs(a - b) for a, b in zip(got[0], expected[0])), reverse=True)
        tipped = length // 300 if flags is not EXACT and has_experts(model) else 0
        rated = off[min(tipped, len(off) - 1)]
        right = logits <= tolerance and rated <= 20 * tolerance
        proof.settle(what, "" if right else f"logits differ by {logits:.1e}, a token's rate by {rated:.1e}")
    return proof


def beside(function, cases):
    """(case, function(case)) in order, made in several threads ahead of their use."""
    with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 2) // 2)) as pool:
        yield from zip(cases, pool.map(function, cases))


class Generation:
    """A case of the matrix: prompts, and how they are continued."""

    def __init__(
        self, model, sequences, tokens, weights="plain", flags=(), exact=True, lengths=None, once=False
    ):
        self.model, self.tokens, self.exact = Path(model), tokens, exact
        lengths = lengths or [1 + 37 * i % 90 for i in range(1, sequences + 1)]
        vocabulary = vocabulary_of(model)
        self.prompts = [ids_of(n, vocabulary, f"{self.model.name} {i}") for i, n in enumerate(lengths)]
        self.own = ["--weights", weights] + (["--hold", "once"] if once else [])
        self.flags = list(flags) + (EXACT if exact else ["--kv", "bf16"])
        self.greedy = "--temperature" not in self.flags

    def __str__(self):
        flags = " ".join(self.own + self.flags)
        return f"{self.model.name}, {len(self.prompts)} sequences, {self.tokens} tokens, {flags}"


def matrix(part, tiny, is_cuda):
    """Which model, weights, sequences, launches and sampling go together."""
    if part == "least":
        yield Generation(tiny[64, "bf16"], 1, 4, lengths=[7])
        yield Generation(tiny[64, "bf16"], 2, 4, lengths=[1, 7])
        yield Generation(tiny[64, "bf16"], 1, 4, lengths=[7], flags=["--temperature", "1", "--top-k", "40"])
        return
    quick = part == "quick"
    sampled = ["--temperature", "1", "--top-k", "40", "--top-p", "0.95", "--seed", "5"]
    drawn = ["--temperature", "1.2", "--seed", "11", "--repetition-penalty", "1.1"]
    for model in list(map(GOLDENS.joinpath, golden_models(part))) + list(tiny.values()):
        yield Generation(model, 1, 40)
        yield Generation(model, 2, 24, "compressed" if model.name.endswith("bf16") else "plain")
        if model.name.endswith("bf16") and is_cuda:
            yield Generation(model, 2, 8, "compressed", once=True)
        if quick:
            continue
        yield Generation(model, 1, 12, exact=False)
        yield Generation(model, 1, 60, flags=sampled)
    for (_, form), model in tiny.items():
        if form != "bf16":
            continue
        for sequences in (3, 8) if quick else (3, 4, 8):
            for weights in ("plain", "compressed"):
                yield Generation(model, sequences, 32, weights)
        yield Generation(model, 4, 48, flags=drawn)
    one = tiny[64, "bf16"]
    # A sequence that ends in the middle while others go on (tokens of 515, of which one ends it),
    # contexts that end, and more steps than a launch has tags for.
    yield Generation(one, 4, 700, flags=drawn)
    yield Generation(one, 3, 200, flags=["--context", "128"], lengths=[100, 37, 128])
    yield Generation(one, 1, 200, flags=["--context", "64"], lengths=[63])
    yield Generation(one, 1, 1900, "compressed", lengths=[20])


def prove_generations(weft, part, tiny):
    proof = Proof("tokens")
    cases = list(matrix(part, tiny, weft.is_cuda))

    def expect(case):
        flags = case.flags + ["--threads", "2", "--weights", "plain"]
        return weft.generate(case.model, case.prompts, "cpu", case.tokens, flags)

    for case, expected in beside(expect, cases):
        got = weft.generate(case.model, case.prompts, weft.device, case.tokens, case.own + case.flags)
        if proof.refuse(case.model, got):
            continue
        if isinstance(got, str) or isinstance(expected, str):
            proof.settle(str(case), got if isinstance(got, str) else expected)
            continue
        exact = case.exact and len(case.prompts) <= MOST_EXACT_SEQUENCES
        tolerance = F32_TOLERANCE if exact else BF16_TOLERANCE
        why = compare_generations(weft, case.model, case.prompts, got, expected, tolerance, case.greedy)
        if not why and weft.generate(case.model, case.prompts, weft.device, case.tokens, case.own + case.flags) != got:
            why = "the second time there are other tokens or other bits in the logits"
        proof.settle(str(case), why)
    return proof


def prove_diffs(weft, part, tiny):
    """Operation by operation, from the same inputs on both sides."""
    proof = Proof("diff")
    goldens = [GOLDENS / name for name in golden_models("quick")]
    models_of = {
        "least": [GOLDENS / "llama-bf16"],
        "quick": list(tiny.values()),
        None: goldens + list(tiny.values()),
    }
    for model in models_of[part]:
        for weights in ("plain", "compressed") if model.name.endswith("bf16") and part != "least" else ("plain",):
            command = ["diff", "--model", model, *weft.side(weft.device), "--weights", weights, "--kv", "f32"]
            command += ["--steps", 1 if part == "least" else 2]
            result = run([weft.weft, *command])
            if proof.refuse(model, result.stderr):
                continue
            tail = (result.stdout + result.stderr).strip().splitlines()[-3:]
            proof.settle(f"weft {' '.join(map(str, command))}", "" if result.returncode == 0 else " ".join(tail))
    return proof


def source_lines(place):
    """What stands at "file:line" of a kernel's source, of each file of that name: "file: text"."""
    name, number = Path(place.rsplit(":", 1)[0]).name, int(place.rsplit(":", 1)[1])
    found = [path for room in ("arch", "ops", "engine") for path in (HERE.parents[1] / room).rglob(name)]
    return [f"{name}: {line.strip()}" for path in sorted(found)
            for line in path.read_text().splitlines()[number - 1 : number]]


def known_races():
    """racecheck.txt: what stands at the first access of a report -> the files that the others are in."""
    lines = [line for line in (HERE / "racecheck.txt").read_text().splitlines() if line and not line.startswith("#")]
    return {first: files.split() for first, files in (line.split(" <> ") for line in lines)}


def unknown_race(report, known):
    """Of a report of racecheck's that racecheck.txt does not know the access that it does not; else ""."""
    accesses = re.findall(r"(?:Write|Read) access (?:at|by) (.*)", report) or report.splitlines()[:1]
    places = [re.search(r" in (\S+:\d+)", access) for access in accesses]
    if None in places:
        return accesses[places.index(None)]
    first = next((line for line in source_lines(places[0][1]) if line in known), None)
    if first is None:
        return accesses[0]
    others = [access for access, place in zip(accesses[1:], places[1:])
              if Path(place[1].rsplit(":", 1)[0]).name not in known[first]]
    return f"{first} and {others[0]}" if others else ""


def prove_bench(weft, part, tiny):
    """The benchmark of decode ends: its rounds draw the same tokens, and its logits are the scored text's."""
    proof = Proof("bench")
    command = ["bench", "decode", "--model", tiny[64, "bf16"], *weft.side(weft.device), "--prompt-tokens", 9]
    command += ["--new-tokens", 4 if part == "least" else 64, "--rounds", 1 if part == "least" else 3, "--json", "-"]
    result = run([weft.weft, *command])
    figures = json.loads(result.stdout) if result.returncode == 0 else {}
    right = figures.get("decode", {}).get("share_of_limit", 0) > 0
    proof.settle(f"weft {' '.join(map(str, command))}", "" if right else result.stderr.strip() or "no share of the limit")
    return proof


def prove_slots(weft, part, tiny):
    """Requests that join, leave, share beginnings and wait for pages get what each gets alone."""
    quick = part is not None
    proof = Proof("slots")
    # The resident kernel with and without rounding where rows meet weights; launched kernels, with prompts between
    # steps and in them; kernels of experts for few rows and for many.
    dense = ["--model", tiny[64, "bf16"]]
    olmoe = ["--preset", "olmoe-1b-7b", "--layers", 2]
    gpt_oss = ["--preset", "gpt-oss-20b", "--layers", 2]
    llama = ["--preset", "llama-3.2-1b", "--layers", 2]
    cases = [(dense, n, 1000) for n in (2, 8, 12, 40)] + [(olmoe, n, 200) for n in (8, 12, 40)]
    cases += [(gpt_oss, n, 200) for n in (12, 40)] + [(llama, 12, 200)]
    for source, slots, requests in [(dense, 3, 100)] if quick else cases:
        load = ["bench", "load", *source, "--device", "cuda", "--slots", slots, "--requests", requests, "--vary",
                "--prompt-tokens", 150, "--common-tokens", 70, "--new-tokens", 20, "--json", "-"]
        answers = []
        for company in (["--clients", 1], ["--clients", 2 * slots, "--pages", 3 * slots, "--prefill-chunk", 64]):
            result = run([weft.weft, *load, *company])
            figures = json.loads(result.stdout) if result.returncode == 0 else {}
            answers.append([figures[key] for key in ("answers", "logprobs")] if figures else result.stderr)
        alone, among = answers
        proof.settle(f"{slots} slots of {source[1]}", "" if isinstance(alone, list) and alone == among else
                     "answers depend on the company" if isinstance(among, list) else among)
    return proof


def prove_sanitized(weft, part, tiny):
    proof = Proof("sanitizer")
    quick = part is not None
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(sanitizer).exists():
        print("left out: there is no compute-sanitizer here")
        return None
    known = known_races()
    model = tiny[64, "bf16"]
    decode = ["generate", "--model", model, "--ids", "5,6,7,8,9,10,11", "--max-tokens", 4, "--threads", 4, *EXACT]
    subset = [("memcheck", decode), ("synccheck", decode), ("racecheck", decode)]
    subset += [("memcheck", decode + ["--weights", "compressed"])]
    subset += [("memcheck", decode + ["--ids", "9,8", "--ids", "3", "--temperature", 1])]
    if not quick:
        tools = ("memcheck", "racecheck", "synccheck")
        operations = ("layernorm", "token_logprob", "linear", "rope_append", "moe", "attention_decode")
        subset += [(tool, ["check", operation, "--quick"]) for tool in tools for operation in operations]
        # racecheck does not know barriers of some of a block's warps.
        subset += [(tool, ["check", "mla_decode", "--quick"]) for tool in ("memcheck", "synccheck")]
        mixtures = ("qwen3-moe-bf16", "deepseek-v3-fp8", "gpt-oss-mxfp4")
        subset += [(tool, [*decode[:2], GOLDENS / mixture, *decode[3:]]) for tool in tools for mixture in mixtures]

    def sanitized(case):
        tool, command = case
        more = ["--num-cuda-barriers", 16384] if tool == "synccheck" else []
        return run([sanitizer, "--tool", tool, *more, weft.weft, *command, "--device", "cuda"], 400)

    for (tool, command), result in beside(sanitized, subset):
        what = f"{tool}: weft {' '.join(map(str, command))}"
        text = result.stdout + result.stderr
        reports = re.split(r"(?========== (?:Error|Warning|Invalid|Race|Barrier))", text)[1:]
        if tool == "racecheck":
            unknown = [why for why in (unknown_race(report, known) for report in reports) if why]
        else:
            unknown = [report.splitlines()[0] for report in reports]
        ended = result.returncode == 0 or (tool == "racecheck" and reports and not unknown)
        summary = re.search(r"(ERROR|RACECHECK) SUMMARY.*", text)
        why = unknown[0] if unknown else "" if ended and summary else text.strip().splitlines()[-1] if text else "no word"
        proof.settle(what, why)
    return proof


def make_tiny_models(directory):
    tiny = {}
    for head_dim in (64, 80, 96, 128, 256):
        tiny[head_dim, "bf16"] = models.write_model(
            directory / f"heads-of-{head_dim}-bf16", head_dim, norms_heads=head_dim == 128
        )
    for form in ("f16", "f32"):
        tiny[64, form] = models.write_model(directory / f"heads-of-64-{form}", 64, form=form)
    return tiny


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "part", nargs="?", choices=["quick", "least"], help="a subset of two minutes; a case of each kind"
    )
    parser.add_argument("--only", help="one proof: operations, prompts, tokens, diff, bench, slots, sanitizer")
    parser.add_argument("--device", choices=["cuda", "hip"], help="which of them (default: what there is)")
    parser.add_argument("--threads", help="workers of the GPU (default: one for each unit)")
    arguments = parser.parse_args()
    part = arguments.part
    devices = run([os.environ["WEFT"], "devices"]).stdout
    found = re.search(rf"^({arguments.device or '(?:cuda|hip)'}:0) .*$", devices, re.MULTILINE)
    if found is None:
        print("test gpu: there is no Hopper GPU and no AMD GPU here that weft can use, so nothing was run.")
        return NO_DEVICE
    print(found[0])
    workers = ["--threads", arguments.threads] if arguments.threads else []
    weft = Command(os.environ["WEFT"], found[1], workers)
    with tempfile.TemporaryDirectory() as directory:
        tiny = make_tiny_models(Path(directory))
        proofs = {
            "operations": lambda: prove_operations(weft, part),
            "prompts": lambda: prove_scores(weft, part),
            "tokens": lambda: prove_generations(weft, part, tiny),
            "diff": lambda: prove_diffs(weft, part, tiny),
            "bench": lambda: prove_bench(weft, part, tiny),
        }
        if weft.is_cuda:
            proofs["slots"] = lambda: prove_slots(weft, part, tiny)
            proofs["sanitizer"] = lambda: prove_sanitized(weft, part, tiny)
        chosen = [arguments.only] if arguments.only else list(proofs)
        rows = []
        failed = False
        for name in chosen:
            proof = proofs[name]()
            if proof is not None:
                rows.append(proof.row())
                failed = failed or bool(proof.failures)
    print("\n==> summary")
    print("\n".join(rows))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

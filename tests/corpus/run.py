#!/usr/bin/env python3
"""Runs the corpus: kernels as users of Triton write them, and kernels made at random, compiled by
Triton's public wheel for gfx942 and gfx950, run on the simulator and held against numpy.

    run.py LIBRARY [--target T] [--case GLOB] [--random N] [--first K] [--seed S] [--jobs J]
           [--by-turns] [--table FILE] [--keep FOLDER]

LIBRARY is libweft-amdhip64.so, the simulator that answers HIP's calls. A case fails where a number is
wrong or the simulator accuses a launch. Prints a line for each failure, then the table of kernels, with
the vector instructions of waves that the simulator executed for each second of processor time.
--random N makes N kernels at random, the first from the number K (otherwise from the seed).
--seed S makes the numbers that kernels get (otherwise the clock does).
--by-turns runs a case on one target or the other, not on both: half of the time.
--table FILE has the table and the failures written there as well; --keep FOLDER the code objects of
all launches, and commands.txt, which runs each again by `weft bench kernel`.
What Triton compiled is kept in $TRITON_CACHE_DIR, otherwise in ~/.cache/weft/triton.
Exit codes: 0 all right, 1 not, 77 where Python's packages are missing: `scripts/setup corpus` brings
them into build/corpus, which is used by itself.
"""

import argparse
import concurrent.futures
import dataclasses
import fnmatch
import os
import pathlib
import sys
import time
import zlib

SKIPPED = 77
RANDOM_AT_ONCE = 50

HOME = pathlib.Path(__file__).resolve().parents[2] / "build" / "corpus"
# What Triton compiled before, it takes from there, in a fresh clone too: compiling is nearly all of the time.
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
os.environ.setdefault("TRITON_CACHE_DIR", str(CACHE / "weft" / "triton"))

try:
    import ml_dtypes  # noqa: F401
    import numpy as np
    import triton
except ImportError as missing:
    python = HOME / "bin" / "python"
    if python.exists() and pathlib.Path(sys.prefix) != HOME:
        os.execv(python, [str(python), *sys.argv])
    print(f"corpus: skipped: Python has no {missing.name}; `scripts/setup corpus` brings it.")
    sys.exit(SKIPPED)

import atomics  # noqa: F401
import attention  # noqa: F401
import elementwise  # noqa: F401
import moves  # noqa: F401
import products  # noqa: F401
import random_kernels
import rows  # noqa: F401
from case import CASES, TARGETS
from gpu import Counts, Gpu


@dataclasses.dataclass
class Row:
    """Of the table."""

    name: str
    target: str
    cases: int
    failures: list
    counts: Counts


def run_all(library, target, keep, name, attempts):
    """Runs functions of a GPU, each with a label. A row of the table, and failures."""
    gpu = Gpu(library, target, keep)
    failures = []
    for label, attempt in attempts:
        try:
            attempt(gpu)
        except Exception as error:  # whatever goes wrong is the case's failure
            failures.append(f"{name} {target} ({label}): {type(error).__name__}: {error}")
        gpu.release()
    return Row(name, target, len(attempts), failures, gpu.counts)


def by_turns_of(target, name, attempts):
    """Those that are this target's where each has one, both targets some: in no order of the cases."""
    order = np.random.default_rng(zlib.crc32(name.encode())).permutation(len(attempts))
    return [a for a, k in zip(attempts, order) if TARGETS[k % len(TARGETS)] == target]


def run_case(library, target, keep, name, seed, by_turns):
    chosen = next(c for c in CASES if c.name == name)

    def attempt(index, variant):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode()), index])
        label = ", ".join(f"{k}={getattr(v, '__name__', v)}" for k, v in variant.items())
        return label, lambda gpu: chosen.run(gpu, rng, **variant)

    attempts = [attempt(k, v) for k, v in enumerate(chosen.variants)]
    if by_turns and len(attempts) > 1 and len(chosen.targets) > 1:
        attempts = by_turns_of(target, name, attempts)
    return run_all(library, target, keep, name, attempts)


def run_random(library, target, keep, first, count, by_turns):
    seeds = list(range(first, first + count))
    if by_turns:
        seeds = by_turns_of(target, "random", seeds)
    return run_all(
        library,
        target,
        keep,
        f"random from {first}",
        [(str(s), lambda gpu, s=s: random_kernels.run(gpu, s)) for s in seeds],
    )


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("library")
    parser.add_argument("--target", choices=TARGETS)
    parser.add_argument("--case", default="*")
    parser.add_argument("--table", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--first", type=int)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    parser.add_argument("--by-turns", action="store_true")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    arguments = parser.parse_args()
    library, seed, keep = arguments.library, arguments.seed, arguments.keep
    first = seed if arguments.first is None else arguments.first
    print(f"corpus: seed {seed}, Triton {triton.__version__}", flush=True)

    results, failures = [], []
    with concurrent.futures.ProcessPoolExecutor(arguments.jobs) as pool:
        jobs = [
            pool.submit(run_case, library, target, keep, case.name, seed, arguments.by_turns)
            for case in CASES
            for target in case.targets
            if fnmatch.fnmatch(case.name, arguments.case) and arguments.target in (None, target)
        ]
        jobs += [
            pool.submit(
                run_random,
                library,
                target,
                keep,
                first + k,
                min(RANDOM_AT_ONCE, arguments.random - k),
                arguments.by_turns,
            )
            for k in range(0, arguments.random, RANDOM_AT_ONCE)
            for target in TARGETS
            if arguments.target in (None, target)
        ]
        for job in jobs:
            results.append(job.result())
            for failure in results[-1].failures:
                failures.append(f"FAILED {failure}")
                print(failures[-1], flush=True)

    table = [f"{'kernel':28} {'target':7} {'cases':>5} {'launches':>8} {'M/s':>6}  verdict"]
    for row in results:
        counts = row.counts
        speed = counts.vector / counts.seconds / 1e6 if counts.seconds else 0
        verdict = f"{len(row.failures)} FAILED" if row.failures else "passed"
        table.append(
            f"{row.name:28} {row.target:7} {row.cases:5} {counts.launches:8} {speed:6.1f}  {verdict}"
        )
    table.append(
        f"corpus: seed {seed}, {sum(row.cases for row in results)} cases, {len(failures)} failed"
    )
    print("", *table, sep="\n")
    if arguments.table:
        arguments.table.write_text("\n".join([*table, *failures]) + "\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

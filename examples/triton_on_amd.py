#!/usr/bin/env python3
"""Checks Triton kernels for an AMD GPU on a machine that has none:

    python examples/triton_on_amd.py [gfx942|gfx950]

Triton's public wheel compiles them, weft.sim executes the code object, numpy says what is right. In a pytest of
one's own the functions below are the tests (`pip install weft[sim] triton`).
"""

import sys

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

import weft

TYPES = {"float16": "*fp16", "float32": "*fp32", "int32": "*i32"}


def launch(gpu, kernel, grid, *arguments, num_warps=4, **constants):
    """Compiles a kernel for what its arguments are (arrays, whole numbers, floats) and runs it. A finding of the
    simulator is an error."""
    names = [n for n in kernel.arg_names if n not in constants]
    signature = dict.fromkeys(constants, "constexpr")
    attributes = {}
    for name, value in zip(names, arguments, strict=True):
        if isinstance(value, np.ndarray):
            signature[name] = TYPES[str(value.dtype)]
            attributes[(kernel.arg_names.index(name),)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
    signature = {name: signature[name] for name in kernel.arg_names}
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("hip", gpu.target, 64),
        options={"num_warps": num_warps, "num_stages": 2},
    )
    meta = compiled.metadata
    loaded = gpu.load(compiled.asm["hsaco"], meta.name)
    # Behind a kernel's own arguments Triton puts pointers to scratch memory, which these need not have.
    scratch = (0,) * (len(loaded.arguments) - len(arguments))
    return loaded.launch(grid, 64 * num_warps, *arguments, *scratch, lds=meta.shared).check()


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for first in range(0, K, BK):
        k = first + tl.arange(0, BK)
        x = tl.load(a + m[:, None] * K + k[None, :], (m[:, None] < M) & (k[None, :] < K), 0.0)
        y = tl.load(b + k[:, None] * N + n[None, :], (k[:, None] < K) & (n[None, :] < N), 0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + m[:, None] * N + n[None, :], acc, (m[:, None] < M) & (n[None, :] < N))


def test_matmul(gpu):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((50, 96), (96, 70)))
    c = np.empty((50, 70), np.float32)
    report = launch(gpu, matmul_kernel, (2, 3), a, b, c, 50, 70, 96, BM=32, BN=32, BK=32)
    np.testing.assert_allclose(c, a.astype(np.float64) @ b.astype(np.float64), atol=1e-4)
    assert report.counters["matrix_cycles"] > 0


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.program_id(0) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, inside, float("-inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + at, e / tl.sum(e, 0), inside)


def test_softmax(gpu):
    x = np.random.default_rng(2).standard_normal((9, 781)).astype(np.float32) * 4
    out = np.empty_like(x)
    launch(gpu, softmax_kernel, 9, x, out, 781, BLOCK=1024)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, e / e.sum(1, keepdims=True), rtol=1e-5, atol=1e-9)


@triton.jit
def attention_kernel(q, k, v, out, scale, LENGTH: tl.constexpr, DIM: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1) * LENGTH * DIM
    d = tl.arange(0, DIM)
    queries = tl.load(q + head + rows[:, None] * DIM + d[None, :])
    most = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, DIM), tl.float32)
    for first in range(0, (tl.program_id(0) + 1) * BM, BN):
        columns = first + tl.arange(0, BN)
        keys = tl.load(k + head + columns[None, :] * DIM + d[:, None])
        s = tl.dot(queries, keys) * scale
        s = tl.where(columns[None, :] <= rows[:, None], s, float("-inf"))
        larger = tl.maximum(most, tl.max(s, 1))
        p = tl.exp(s - larger[:, None])
        shrink = tl.exp(most - larger)
        total = total * shrink + tl.sum(p, 1)
        values = tl.load(v + head + columns[:, None] * DIM + d[None, :])
        acc = acc * shrink[:, None] + tl.dot(p.to(tl.float16), values)
        most = larger
    tl.store(out + head + rows[:, None] * DIM + d[None, :], acc / total[:, None])


def test_flash_attention(gpu):
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((2, 128, 32)).astype(np.float16) for _ in range(3))
    out = np.empty((2, 128, 32), np.float32)
    scale = 32**-0.5
    launch(gpu, attention_kernel, (2, 2), q, k, v, out, scale, LENGTH=128, DIM=32, BM=64, BN=32)
    s = np.einsum("hmd,hnd->hmn", q.astype(np.float64), k.astype(np.float64)) * scale
    s[:, np.triu(np.ones((128, 128), bool), 1)] = -np.inf
    p = np.exp(s - s.max(-1, keepdims=True))
    expected = np.einsum("hmn,hnd->hmd", p / p.sum(-1, keepdims=True), v.astype(np.float64))
    np.testing.assert_allclose(out, expected, atol=2e-3)


@triton.jit
def histogram_kernel(x, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, at < n, 0)
    tl.atomic_add(counts + value, 1, at < n)


def test_atomics(gpu):
    x = np.random.default_rng(4).integers(0, 16, 1000, dtype=np.int32)
    counts = np.zeros(16, np.int32)
    launch(gpu, histogram_kernel, 4, x, counts, 1000, BLOCK=256)
    np.testing.assert_array_equal(counts, np.bincount(x, minlength=16))


def main():
    gpu = weft.sim.Device(sys.argv[1] if len(sys.argv) > 1 else "gfx942")
    for test in (test_matmul, test_softmax, test_flash_attention, test_atomics):
        test(gpu)
        print(f"{test.__name__[5:]:16} right on a simulated {gpu.target}")


if __name__ == "__main__":
    main()

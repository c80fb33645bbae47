"""Kernels whose programs meet in memory: atomics, locks, barriers of the whole grid."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

from case import case, each, same

bf16 = ml_dtypes.bfloat16


@triton.jit
def atomic_kernel(
    to_ptr,
    index_ptr,
    x_ptr,
    old_ptr,
    n,
    OP: tl.constexpr,
    SEM: tl.constexpr,
    SCOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    to = to_ptr + tl.load(index_ptr + i, mask=mask, other=0)
    x = tl.load(x_ptr + i, mask=mask)
    if OP == "add":
        old = tl.atomic_add(to, x, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "max":
        old = tl.atomic_max(to, x, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "min":
        old = tl.atomic_min(to, x, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "and":
        old = tl.atomic_and(to, x, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "or":
        old = tl.atomic_or(to, x, mask=mask, sem=SEM, scope=SCOPE)
    elif OP == "xor":
        old = tl.atomic_xor(to, x, mask=mask, sem=SEM, scope=SCOPE)
    else:
        old = tl.atomic_xchg(to, x, mask=mask, sem=SEM, scope=SCOPE)
    if OP == "xchg":
        tl.store(old_ptr + i, old, mask=mask)


SEMANTICS = ["relaxed", "acquire", "release", "acq_rel"]
BITS = [np.int32, np.uint32, np.int64, np.uint64]


@case(
    *each(op=["add"], dtype=[np.float32, np.float64, np.float16, bf16, *BITS]),
    *each(op=["max", "min"], dtype=[np.float32, np.float64, *BITS]),
    *each(op=["and", "or", "xor"], dtype=BITS),
    *each(
        op=["add", "max"],
        dtype=[np.int32],
        sem=SEMANTICS,
        scope=["gpu", "cta", "sys"],
        num_warps=[1, 8],
    ),
)
def atomic_operations(gpu, rng, op, dtype, sem="acq_rel", scope="gpu", num_warps=4):
    n, places = 1500, 38  # even: 16-bit atomics are made of 32-bit ones
    if scope == "cta":
        n = 250  # one program: workgroups would not see each other
    index = rng.integers(0, places, n, np.int32)
    if op == "add" and dtype in (np.float16, bf16):
        x = rng.integers(-2, 3, n).astype(dtype)
    elif np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, n, dtype, endpoint=True)
        if op in ("max", "min"):
            # Triton 3.9 first joins equal addresses of a wave, and compares signed numbers without their sign.
            x = x & dtype(info.max)
    else:
        x = rng.integers(-1000, 1000, n).astype(dtype)
    start = rng.integers(0, 100, places).astype(dtype)
    to = gpu.array(start)
    gpu.launch(
        atomic_kernel,
        (triton.cdiv(n, 256),),
        to,
        gpu.array(index),
        gpu.array(x),
        to,
        n,
        OP=op,
        SEM=sem,
        SCOPE=scope,
        BLOCK=256,
        options={"num_warps": num_warps},
    )
    f = {"add": np.add, "max": np.maximum, "min": np.minimum}.get(op) or getattr(
        np, f"bitwise_{op}"
    )
    expected = start.copy()
    if dtype == bf16:
        expected = expected.astype(np.float32)  # numpy's ufunc.at() knows no bf16
    f.at(expected, index, x.astype(expected.dtype))
    same(to.numpy(), expected.astype(dtype))


@case(*each(dtype=[np.int32, np.int64, np.float32]))
def exchanges(gpu, rng, dtype):
    """What was put in comes out once, or stays: nothing is lost or doubled."""
    n, places = 1000, 13
    x = (np.arange(n) + 1000).astype(dtype)
    to, old = gpu.array(np.arange(places).astype(dtype)), gpu.empty(n, dtype)
    index = gpu.array(rng.integers(0, places, n, np.int32))
    gpu.launch(
        atomic_kernel,
        (4,),
        to,
        index,
        gpu.array(x),
        old,
        n,
        OP="xchg",
        SEM="acq_rel",
        SCOPE="gpu",
        BLOCK=256,
    )
    everything = np.sort(np.concatenate([to.numpy(), old.numpy()]))
    same(everything, np.sort(np.concatenate([np.arange(places).astype(dtype), x])))


@triton.jit
def spin_lock_kernel(lock_ptr, x_ptr, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(lock_ptr, 0, 1, sem="acquire") == 1:
        pass
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(x_ptr + i, x * 3 + 1, mask=i < n)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0, sem="release")


@case(*each(programs=[2, 40], num_warps=[1, 4]))
def spin_lock(gpu, rng, programs, num_warps):
    x = rng.integers(0, 100, 200).astype(np.uint32)
    device = gpu.array(x)
    gpu.launch(
        spin_lock_kernel,
        (programs,),
        gpu.zeros(1, np.int32),
        device,
        200,
        BLOCK=256,
        options={"num_warps": num_warps},
    )
    for _ in range(programs):
        x = x * np.uint32(3) + np.uint32(1)
    same(device.numpy(), x)


@triton.jit
def swap_vectors_kernel(to_ptr, expected_ptr, x_ptr, old_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    old = tl.atomic_cas(to_ptr + i, tl.load(expected_ptr + i), tl.load(x_ptr + i))
    tl.store(old_ptr + i, old)


@case(*each(dtype=[np.int32, np.int64, np.uint32], num_warps=[1, 4]))
def compare_and_swap(gpu, rng, dtype, num_warps):
    n = 256
    start, wanted, x = (rng.integers(0, 3, n).astype(dtype) for _ in range(3))
    to, old = gpu.array(start), gpu.empty(n, dtype)
    options = {"num_warps": num_warps}
    gpu.launch(
        swap_vectors_kernel, (1,), to, gpu.array(wanted), gpu.array(x), old, N=n, options=options
    )
    same(old.numpy(), start, "old")
    same(to.numpy(), np.where(start == wanted, x, start))


@triton.jit
def grid_barrier(counter_ptr, round):
    tl.debug_barrier()
    tl.atomic_add(counter_ptr, 1, sem="release", scope="gpu")
    while tl.atomic_add(counter_ptr, 0, sem="acquire", scope="gpu") < round * tl.num_programs(0):
        pass
    tl.debug_barrier()


@triton.jit
def persistent_kernel(x_ptr, y_ptr, counter_ptr, n, ROUNDS: tl.constexpr, BLOCK: tl.constexpr):
    # Each round every program averages over what its neighbours wrote in the round before.
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for round in range(ROUNDS):
        if round % 2 == 0:
            source, to = x_ptr, y_ptr
        else:
            source, to = y_ptr, x_ptr
        left = tl.load(source + (i + n - 1) % n, cache_modifier=".cg", volatile=True)
        right = tl.load(source + (i + 1) % n, cache_modifier=".cg", volatile=True)
        tl.store(to + i, left + right)
        grid_barrier(counter_ptr, round + 1)


@case(*each(programs=[3, 60], num_warps=[1, 4]))
def persistent(gpu, rng, programs, num_warps):
    n = 64 * programs
    x = rng.integers(0, 100, n, np.int32)
    a, b = gpu.array(x), gpu.empty(n, np.int32)
    gpu.launch(
        persistent_kernel,
        (programs,),
        a,
        b,
        gpu.zeros(1, np.int32),
        n,
        ROUNDS=4,
        BLOCK=64,
        options={"num_warps": num_warps},
    )
    for _ in range(4):
        x = np.roll(x, 1) + np.roll(x, -1)
    same(a.numpy(), x)


@triton.jit
def look_back_kernel(x_ptr, out_ptr, sums_ptr, flags_ptr, BLOCK: tl.constexpr):
    # A scan in one pass: a program waits for the sum of all before it.
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    y = tl.cumsum(tl.load(x_ptr + i), 0)
    before = 0
    if p > 0:
        while tl.atomic_add(flags_ptr + p - 1, 0, sem="acquire") == 0:
            pass
        before = tl.load(sums_ptr + p - 1, cache_modifier=".cv", volatile=True)
    tl.store(sums_ptr + p, before + tl.sum(tl.load(x_ptr + i), 0))
    tl.debug_barrier()
    tl.atomic_xchg(flags_ptr + p, 1, sem="release")
    tl.store(out_ptr + i, y + before)


@case(*each(programs=[1, 30], num_warps=[1, 4]))
def scan_by_looking_back(gpu, rng, programs, num_warps):
    n = 512 * programs
    x = rng.integers(-100, 100, n, np.int32)
    out = gpu.empty(n, np.int32)
    gpu.launch(
        look_back_kernel,
        (programs,),
        gpu.array(x),
        out,
        gpu.zeros(programs, np.int32),
        gpu.zeros(programs, np.int32),
        BLOCK=512,
        options={"num_warps": num_warps},
    )
    same(out.numpy(), np.cumsum(x, dtype=np.int32))


@triton.jit
def queue_kernel(next_ptr, done_ptr, out_ptr, tasks):
    # A persistent kernel that takes its tasks from a counter.
    task = tl.atomic_add(next_ptr, 1)
    while task < tasks:
        tl.store(out_ptr + task, task * task)
        tl.atomic_add(done_ptr + tl.program_id(0), 1)
        task = tl.atomic_add(next_ptr, 1)


@case(*each(programs=[1, 17]))
def work_queue(gpu, rng, programs):
    tasks = 300
    out, done = gpu.empty(tasks, np.int32), gpu.zeros(programs, np.int32)
    gpu.launch(
        queue_kernel,
        (programs,),
        gpu.zeros(1, np.int32),
        done,
        out,
        tasks,
        options={"num_warps": 1},
    )
    same(out.numpy(), (np.arange(tasks) ** 2).astype(np.int32))
    assert done.numpy().sum() == tasks

"""Kernels that move, order and count: scans, sorts, histograms, gathers, transposes, grids."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

from case import case, close, each, same

bf16 = ml_dtypes.bfloat16


@triton.jit
def scan_kernel(
    x_ptr,
    out_ptr,
    R: tl.constexpr,
    C: tl.constexpr,
    OP: tl.constexpr,
    AXIS: tl.constexpr,
    REVERSE: tl.constexpr,
):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    x = tl.load(x_ptr + at)
    if OP == "sum":
        y = tl.cumsum(x, AXIS, reverse=REVERSE)
    elif OP == "prod":
        y = tl.cumprod(x, AXIS, reverse=REVERSE)
    else:
        y = tl.associative_scan(x, AXIS, maximum_of, reverse=REVERSE)
    tl.store(out_ptr + at, y)


@triton.jit
def maximum_of(a, b):
    return tl.maximum(a, b)


@case(
    *each(
        op=["sum", "prod", "max"], axis=[0, 1], reverse=[False, True], shape=[(8, 512), (128, 16)]
    ),
    *each(
        op=["sum"],
        axis=[0, 1],
        reverse=[False],
        shape=[(32, 64)],
        dtype=[np.int64, np.float32, np.float64],
        num_warps=[1, 8],
    ),
)
def scans(gpu, rng, op, axis, reverse, shape, dtype=np.int32, num_warps=4):
    x = rng.integers(-5, 6, shape).astype(dtype)
    out = gpu.empty(shape, dtype)
    gpu.launch(
        scan_kernel,
        (1,),
        gpu.array(x),
        out,
        R=shape[0],
        C=shape[1],
        OP=op,
        AXIS=axis,
        REVERSE=reverse,
        options={"num_warps": num_warps},
    )
    f = {"sum": np.add, "prod": np.multiply, "max": np.maximum}[op]
    y = np.flip(x, axis) if reverse else x
    y = f.accumulate(y, axis, dtype=dtype)
    same(out.numpy(), np.flip(y, axis) if reverse else y)


@triton.jit
def recurrence(a_1, b_1, a_2, b_2):
    return a_1 * a_2, b_1 * a_2 + b_2


@triton.jit
def linear_recurrence_kernel(a_ptr, b_ptr, h_ptr, N: tl.constexpr):
    # h[t] = a[t] h[t-1] + b[t], as state space models have it.
    i = tl.program_id(0) * N + tl.arange(0, N)
    _, h = tl.associative_scan((tl.load(a_ptr + i), tl.load(b_ptr + i)), 0, recurrence)
    tl.store(h_ptr + i, h)


@case(*each(n=[64, 1024], num_warps=[1, 4]))
def linear_recurrence(gpu, rng, n, num_warps):
    a = rng.uniform(0.5, 1, (3, n)).astype(np.float32)
    b = rng.standard_normal((3, n)).astype(np.float32)
    h = gpu.empty((3, n))
    gpu.launch(
        linear_recurrence_kernel,
        (3,),
        gpu.array(a),
        gpu.array(b),
        h,
        N=n,
        options={"num_warps": num_warps},
    )
    expected = np.zeros((3, n))
    state = np.zeros(3)
    for t in range(n):
        state = state * a[:, t] + b[:, t]
        expected[:, t] = state
    close(h.numpy(), expected, 1e-5)


@triton.jit
def sort_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr, DESCENDING: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    tl.store(out_ptr + at, tl.sort(tl.load(x_ptr + at), 1, DESCENDING))


@case(
    *each(
        shape=[(1, 256), (16, 64), (3, 2)],
        dtype=[np.int32, np.float32, np.int16, np.float16],
        descending=[False, True],
    )
)
def sorts(gpu, rng, shape, dtype, descending):
    shape = (triton.next_power_of_2(shape[0]), shape[1])
    x = rng.integers(-30000, 30000, shape).astype(dtype)
    out = gpu.empty(shape, dtype)
    gpu.launch(sort_kernel, (1,), gpu.array(x), out, R=shape[0], C=shape[1], DESCENDING=descending)
    y = np.sort(x, 1)
    same(out.numpy(), np.ascontiguousarray(y[:, ::-1]) if descending else y)


@triton.jit
def topk_kernel(x_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    y = tl.topk(tl.load(x_ptr + at), K)
    tl.store(out_ptr + tl.arange(0, R)[:, None] * K + tl.arange(0, K)[None, :], y)


@case(*each(columns=[64, 256], k=[2, 8], num_warps=[1, 4]))
def topk(gpu, rng, columns, k, num_warps):
    x = rng.standard_normal((4, columns)).astype(np.float32)
    out = gpu.empty((4, k))
    gpu.launch(
        topk_kernel, (1,), gpu.array(x), out, R=4, C=columns, K=k, options={"num_warps": num_warps}
    )
    same(out.numpy(), np.ascontiguousarray(np.sort(x, 1)[:, ::-1][:, :k]))


@triton.jit
def histogram_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, BINS: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    counts = tl.histogram(tl.load(x_ptr + i, mask=mask, other=0), BINS, mask=mask)
    tl.atomic_add(out_ptr + tl.arange(0, BINS), counts)


@case(*each(bins=[2, 64, 256], num_warps=[1, 4, 8]))
def histograms(gpu, rng, bins, num_warps):
    x = rng.integers(0, bins, 3333, np.int32)
    out = gpu.zeros(bins, np.int32)
    gpu.launch(
        histogram_kernel,
        (4,),
        gpu.array(x),
        out,
        x.size,
        BLOCK=1024,
        BINS=bins,
        options={"num_warps": num_warps},
    )
    same(out.numpy(), np.bincount(x, minlength=bins).astype(np.int32))


@triton.jit
def gather_kernel(
    x_ptr, index_ptr, out_ptr, R: tl.constexpr, C: tl.constexpr, K: tl.constexpr, AXIS: tl.constexpr
):
    at = tl.arange(0, R)[:, None] * C + tl.arange(0, C)[None, :]
    if AXIS == 0:
        to = tl.arange(0, K)[:, None] * C + tl.arange(0, C)[None, :]
    else:
        to = tl.arange(0, R)[:, None] * K + tl.arange(0, K)[None, :]
    tl.store(out_ptr + to, tl.gather(tl.load(x_ptr + at), tl.load(index_ptr + to), AXIS))


@case(*each(axis=[0, 1], k=[16, 128], num_warps=[1, 4]))
def gathers_in_registers(gpu, rng, axis, k, num_warps):
    shape = (32, 64)
    x = rng.standard_normal(shape).astype(np.float32)
    index = rng.integers(0, shape[axis], (k, shape[1]) if axis == 0 else (shape[0], k), np.int32)
    out = gpu.empty(index.shape)
    gpu.launch(
        gather_kernel,
        (1,),
        gpu.array(x),
        gpu.array(index),
        out,
        R=shape[0],
        C=shape[1],
        K=k,
        AXIS=axis,
        options={"num_warps": num_warps},
    )
    same(out.numpy(), np.take_along_axis(x, index, axis))


@triton.jit
def embedding_kernel(table_ptr, ids_ptr, out_ptr, width, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    id = tl.load(ids_ptr + token)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(table_ptr + id * width + i, mask=(i < width) & (id >= 0), other=0.0)
    tl.store(out_ptr + token * width + i, x, mask=i < width)


@case(*each(width=[128, 1000], dtype=[np.float32, bf16]))
def embedding(gpu, rng, width, dtype):
    table = rng.standard_normal((77, width)).astype(dtype)
    ids = rng.integers(-5, 77, 41)
    out = gpu.empty((41, width), dtype)
    gpu.launch(
        embedding_kernel,
        (41, triton.cdiv(width, 256)),
        gpu.array(table),
        gpu.array(ids),
        out,
        width,
        BLOCK=256,
    )
    same(out.numpy(), np.where(ids[:, None] >= 0, table[ids], dtype(0)))


@triton.jit
def transpose_kernel(x_ptr, out_ptr, rows, columns, B: tl.constexpr):
    r = tl.program_id(0) * B + tl.arange(0, B)
    c = tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(
        x_ptr + r[:, None] * columns + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < columns)
    )
    to = out_ptr + c[:, None] * rows + r[None, :]
    tl.store(to, tl.trans(x), mask=(c[:, None] < columns) & (r[None, :] < rows))


@case(
    *each(
        dtype=[np.int8, np.float16, np.float32, np.float64],
        shape=[(64, 64), (100, 77)],
        num_warps=[1, 4],
    )
)
def transposes(gpu, rng, dtype, shape, num_warps):
    x = rng.integers(-100, 100, shape).astype(dtype)
    out = gpu.empty(shape[::-1], dtype)
    grid = (triton.cdiv(shape[0], 32), triton.cdiv(shape[1], 32))
    gpu.launch(
        transpose_kernel, grid, gpu.array(x), out, *shape, B=32, options={"num_warps": num_warps}
    )
    same(out.numpy(), np.ascontiguousarray(x.T))


@triton.jit
def permute_kernel(x_ptr, out_ptr, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr):
    x = tl.load(x_ptr + tl.arange(0, A * B * C)).reshape(A, B, C)
    tl.store(out_ptr + tl.arange(0, A * B * C), x.permute(2, 0, 1).reshape(A * B * C))


@case(*each(num_warps=[1, 2, 8]))
def permutes(gpu, rng, num_warps):
    x = rng.standard_normal((8, 4, 32)).astype(np.float32)
    out = gpu.empty((32, 8, 4))
    gpu.launch(
        permute_kernel, (1,), gpu.array(x), out, A=8, B=4, C=32, options={"num_warps": num_warps}
    )
    same(out.numpy(), np.ascontiguousarray(x.transpose(2, 0, 1)))


@triton.jit
def shuffle_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + tl.arange(0, 2 * N), tl.interleave(x, y))
    even, odd = tl.split(tl.reshape(x, (N // 2, 2)))
    tl.store(out_ptr + 2 * N + tl.arange(0, N // 2), even - odd)
    tl.store(out_ptr + 3 * N + i, tl.flip(x))
    pairs = tl.join(x, y)
    tl.store(out_ptr + 4 * N + tl.arange(0, 2 * N), tl.reshape(tl.trans(pairs), (2 * N,)))


@case(*each(n=[64, 512], num_warps=[1, 4]))
def joins_and_splits(gpu, rng, n, num_warps):
    x, y = (rng.integers(0, 1000, n).astype(np.int32) for _ in range(2))
    out = gpu.empty(6 * n, np.int32)
    gpu.launch(
        shuffle_kernel, (1,), gpu.array(x), gpu.array(y), out, N=n, options={"num_warps": num_warps}
    )
    got = out.numpy()
    same(got[: 2 * n], np.stack([x, y], 1).reshape(-1), "interleave")
    same(got[2 * n : 2 * n + n // 2], x[::2] - x[1::2], "split")
    same(got[3 * n : 4 * n], np.ascontiguousarray(x[::-1]), "flip")
    same(got[4 * n :], np.concatenate([x, y]), "join")


@triton.jit
def grid_kernel(out_ptr, X, Y, Z):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    tl.store(out_ptr + (z * Y + y) * X + x, x + 100 * y + 10000 * z + tl.num_programs(0) * 1000000)


@case(*each(grid=[(7,), (5, 3), (4, 3, 2), (1, 1, 9), (1, 300, 1)]))
def grids(gpu, rng, grid):
    x, y, z = (*grid, 1, 1)[:3]
    out = gpu.empty((z, y, x), np.int32)
    gpu.launch(grid_kernel, grid, out, x, y, z, options={"num_warps": 1})
    k, j, i = np.indices((z, y, x))
    same(out.numpy(), (i + 100 * j + 10000 * k + x * 1000000).astype(np.int32))


@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, heads, HALF: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    i = tl.arange(0, HALF)
    c = tl.load(cos_ptr + token * HALF + i)
    s = tl.load(sin_ptr + token * HALF + i)
    x_ptr += (token * heads + head) * 2 * HALF
    a = tl.load(x_ptr + i)
    b = tl.load(x_ptr + HALF + i)
    tl.store(x_ptr + i, a * c - b * s)
    tl.store(x_ptr + HALF + i, b * c + a * s)


@case(*each(half=[32, 64], num_warps=[1, 2]))
def rotary_embedding(gpu, rng, half, num_warps):
    x = rng.standard_normal((6, 5, 2 * half)).astype(np.float32)
    angle = rng.uniform(0, 6, (6, half))
    c, s = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    device = gpu.array(x)
    gpu.launch(
        rope_kernel,
        (6, 5),
        device,
        gpu.array(c),
        gpu.array(s),
        5,
        HALF=half,
        options={"num_warps": num_warps},
    )
    a, b = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    c, s = c[:, None].astype(np.float64), s[:, None].astype(np.float64)
    close(device.numpy(), np.concatenate([a * c - b * s, b * c + a * s], 2), 1e-6)


@triton.jit
def descriptor_kernel(x_ptr, out_ptr, rows, columns, B: tl.constexpr):
    x = tl.make_tensor_descriptor(x_ptr, [rows, columns], [columns, 1], [B, B])
    out = tl.make_tensor_descriptor(out_ptr, [rows, columns], [columns, 1], [B, B])
    r, c = tl.program_id(0) * B, tl.program_id(1) * B
    out.store([r, c], x.load([r, c]) * 2)


@case(*each(shape=[(64, 64), (50, 84)], num_warps=[1, 4]))
def tensor_descriptors(gpu, rng, shape, num_warps):
    x = rng.integers(-9, 9, shape).astype(np.float32)
    twice = gpu.empty(shape)
    grid = tuple(triton.cdiv(n, 32) for n in shape)
    gpu.launch(
        descriptor_kernel, grid, gpu.array(x), twice, *shape, B=32, options={"num_warps": num_warps}
    )
    same(twice.numpy(), 2 * x)


@triton.jit
def stencil_kernel(x_ptr, out_ptr, height, width, B: tl.constexpr):
    y = tl.program_id(0) * B + tl.arange(0, B)[:, None]
    x = tl.program_id(1) * B + tl.arange(0, B)[None, :]
    total = tl.zeros((B, B), tl.float32)
    for dy in tl.static_range(-1, 2):
        for dx in tl.static_range(-1, 2):
            inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width)
            total += tl.load(x_ptr + (y + dy) * width + x + dx, mask=inside, other=0.0)
    tl.store(out_ptr + y * width + x, total, mask=(y < height) & (x < width))


@case(*each(shape=[(32, 32), (45, 61)]))
def stencil(gpu, rng, shape):
    x = rng.integers(-9, 9, shape).astype(np.float32)
    out = gpu.empty(shape)
    grid = tuple(triton.cdiv(n, 16) for n in shape)
    gpu.launch(stencil_kernel, grid, gpu.array(x), out, *shape, B=16)
    padded = np.pad(x, 1)
    same(
        out.numpy(),
        sum(padded[i : i + shape[0], j : j + shape[1]] for i in range(3) for j in range(3)),
    )

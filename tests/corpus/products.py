"""Matrix products in every format, as users of Triton tile them."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

from case import case, close, each, unit

bf16 = ml_dtypes.bfloat16
e4m3, e5m2 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2
e4m3z, e5m2z = ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2fnuz


@triton.jit
def identity(x):
    return x


@triton.jit
def leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
    ACC: tl.constexpr,
    F: tl.constexpr,
):
    # Tutorial 03.
    pid = tl.program_id(0)
    tiles_m = tl.cdiv(M, BM)
    tiles_n = tl.cdiv(N, BN)
    in_group = GROUP * tiles_n
    first_m = pid // in_group * GROUP
    group = min(tiles_m - first_m, GROUP)
    pid_m = first_m + pid % in_group % group
    pid_n = pid % in_group // group
    m = (pid_m * BM + tl.arange(0, BM)) % M
    n = (pid_n * BN + tl.arange(0, BN)) % N
    k = tl.arange(0, BK)
    a_ptrs = a_ptr + m[:, None] * stride_am + k[None, :] * stride_ak
    b_ptrs = b_ptr + k[:, None] * stride_bk + n[None, :] * stride_bn
    total = tl.zeros((BM, BN), dtype=ACC)
    for block in range(0, tl.cdiv(K, BK)):
        a = tl.load(a_ptrs, mask=k[None, :] < K - block * BK, other=0.0)
        b = tl.load(b_ptrs, mask=k[:, None] < K - block * BK, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=ACC)
        a_ptrs += BK * stride_ak
        b_ptrs += BK * stride_bk
    c = F(total).to(c_ptr.dtype.element_ty)
    m = pid_m * BM + tl.arange(0, BM)
    n = pid_n * BN + tl.arange(0, BN)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.store(c_ptr + stride_cm * m[:, None] + stride_cn * n[None, :], c, mask=mask)


def operand(rng, shape, dtype, transposed):
    if dtype == np.int8:
        x = rng.integers(-128, 128, shape, np.int8)
    else:
        x = rng.standard_normal(shape).astype(dtype)
    return np.asfortranarray(x) if transposed else x


def multiply(
    gpu,
    rng,
    dtype,
    to,
    m,
    n,
    k,
    bm=64,
    bn=64,
    bk=32,
    num_warps=4,
    num_stages=2,
    precision="ieee",
    a_t=False,
    b_t=False,
    digits=None,
    activation=None,
    dtype_b=None,
    options=None,
):
    a, b = operand(rng, (m, k), dtype, a_t), operand(rng, (k, n), dtype_b or dtype, b_t)
    arrays = []
    for x, transposed in ((a, a_t), (b, b_t)):
        arrays.append(gpu.array(np.ascontiguousarray(x.T) if transposed else x))
    c = gpu.empty((m, n), to)
    integer = to == np.int32
    gpu.launch(
        matmul_kernel,
        (triton.cdiv(m, bm) * triton.cdiv(n, bn),),
        *arrays,
        c,
        m,
        n,
        k,
        *((1, m) if a_t else (k, 1)),
        *((1, k) if b_t else (n, 1)),
        n,
        1,
        BM=bm,
        BN=bn,
        BK=bk,
        GROUP=4,
        PRECISION=precision,
        ACC=tl.int32 if integer else tl.float64 if to == np.float64 else tl.float32,
        F=activation or identity,
        options={"num_warps": num_warps, "num_stages": num_stages, **(options or {})},
    )
    a, b = a.astype(np.float64), b.astype(np.float64)
    expected, size = a @ b, np.abs(a) @ np.abs(b)
    if activation:
        expected = np.where(expected >= 0, expected, 0.01 * expected)
    if integer:
        close(c.numpy(), expected, 0)
        return
    # Operands lose digits where a format has fewer; each of k additions rounds to f32.
    error = size * (
        2 * 2.0 ** -(digits or 60) + (k + 2) * unit(np.float64 if to == np.float64 else np.float32)
    )
    close(c.numpy(), expected, error + np.abs(expected) * unit(to))


SHAPES = [dict(m=64, n=64, k=64), dict(m=130, n=77, k=100)]


@case(
    *[
        dict(dtype=np.float16, to=np.float16, **s, num_warps=w, num_stages=g)
        for s in SHAPES
        for w in (1, 4, 8)
        for g in (1, 2, 3)
    ],
    *[
        dict(dtype=t, to=u, **SHAPES[1], a_t=x, b_t=y)
        for t, u in ((np.float16, np.float32), (bf16, bf16))
        for x in (False, True)
        for y in (False, True)
    ],
    *[
        dict(dtype=np.float16, to=np.float32, **SHAPES[1], bm=bm, bn=bn, bk=bk)
        for bm, bn, bk in (
            (16, 16, 16),
            (32, 128, 64),
            (128, 32, 16),
            (16, 256, 32),
            (128, 128, 64),
        )
    ],
    *[
        dict(
            dtype=bf16,
            to=np.float32,
            m=256,
            n=256,
            k=256,
            bm=128,
            bn=128,
            bk=64,
            num_warps=w,
            num_stages=g,
        )
        for w in (4, 8)
        for g in (2, 3)
    ],
    *[
        dict(dtype=np.float16, to=np.float16, **SHAPES[1], options={"matrix_instr_nonkdim": n})
        for n in (16, 32)
    ],
    dict(dtype=bf16, to=np.float16, **SHAPES[1], activation=leaky),
)
def products_of_halves(gpu, rng, **variant):
    multiply(gpu, rng, **variant)


@case(
    *[dict(dtype=np.float32, to=np.float32, **s, num_warps=w) for s in SHAPES for w in (1, 4)],
    *[
        dict(dtype=np.float32, to=np.float32, **SHAPES[1], precision=p, digits=d)
        for p, d in (("bf16x3", 16), ("bf16x6", 22))
    ],
    dict(dtype=np.float64, to=np.float64, **SHAPES[1], bm=32, bn=32),
    dict(dtype=np.float32, to=np.float32, **SHAPES[1], num_stages=3, b_t=True),
)
def products_of_words(gpu, rng, **variant):
    multiply(gpu, rng, **variant)


@case(*[dict(**s, num_warps=w) for s in SHAPES for w in (1, 4, 8)], targets=("gfx942",))
def products_of_xf32(gpu, rng, **variant):
    multiply(gpu, rng, np.float32, np.float32, precision="tf32", digits=11, **variant)


@case(
    *[
        dict(**s, num_warps=w, bk=bk, b_t=t)
        for s in SHAPES
        for w in (1, 4)
        for bk in (32, 64)
        for t in (False, True)
    ]
)
def products_of_int8(gpu, rng, **variant):
    multiply(gpu, rng, np.int8, np.int32, **variant)


@case(
    *[
        dict(dtype=t, dtype_b=u, **s, bk=64, b_t=True)
        for t in (e4m3z, e5m2z)
        for u in (e4m3z, e5m2z)
        for s in SHAPES
    ],
    *[
        dict(dtype=e4m3z, **SHAPES[1], bk=bk, num_warps=w, num_stages=g)
        for bk in (32, 128)
        for w in (2, 8)
        for g in (1, 2)
    ],
    targets=("gfx942",),
)
def products_of_fp8_fnuz(gpu, rng, **variant):
    multiply(gpu, rng, to=np.float32, **variant)


@case(
    *[
        dict(dtype=t, dtype_b=u, **s, bk=64, b_t=True)
        for t in (e4m3, e5m2)
        for u in (e4m3, e5m2)
        for s in SHAPES
    ],
    *[
        dict(dtype=e4m3, **SHAPES[1], bk=bk, num_warps=w, num_stages=g)
        for bk in (32, 128)
        for w in (2, 8)
        for g in (1, 2)
    ],
)
def products_of_fp8(gpu, rng, **variant):
    multiply(gpu, rng, to=np.float32, **variant)


@triton.jit
def scaled_kernel(
    a_ptr,
    a_scale_ptr,
    b_ptr,
    b_scale_ptr,
    c_ptr,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    A: tl.constexpr,
    B: tl.constexpr,
    PACK_A: tl.constexpr,
    PACK_B: tl.constexpr,
):
    # a: BM x K along k; b: BN x K along k, read transposed; an e8m0 scale for 32 elements along k.
    m = tl.arange(0, BM)
    n = tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        ka = k // PACK_A + tl.arange(0, BK // PACK_A)
        kb = k // PACK_B + tl.arange(0, BK // PACK_B)
        ks = k // 32 + tl.arange(0, BK // 32)
        a = tl.load(a_ptr + m[:, None] * (K // PACK_A) + ka[None, :])
        b = tl.load(b_ptr + n[None, :] * (K // PACK_B) + kb[:, None])
        a_scale = tl.load(a_scale_ptr + m[:, None] * (K // 32) + ks[None, :])
        b_scale = tl.load(b_scale_ptr + n[:, None] * (K // 32) + ks[None, :])
        total = tl.dot_scaled(a, a_scale, A, b, b_scale, B, total)
    tl.store(c_ptr + m[:, None] * BN + n[None, :], total)


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def scaled_operand(rng, rows, k, form):
    """Bytes as they lie in memory, their values, and the bytes of the scales."""
    scale = rng.integers(120, 134, (rows, k // 32)).astype(np.uint8)
    if form == "e2m1":
        codes = rng.integers(0, 16, (rows, k)).astype(np.uint8)
        data, values = codes[:, ::2] | codes[:, 1::2] << 4, E2M1[codes]
    else:
        data = rng.standard_normal((rows, k)).astype(e4m3 if form == "e4m3" else e5m2)
        values = data.astype(np.float64)
    return data, values * np.repeat(2.0 ** (scale.astype(np.float64) - 127), 32, axis=1), scale


@case(
    *each(a=["e2m1", "e4m3", "e5m2"], b=["e2m1", "e4m3", "e5m2"]),
    *each(a=["e2m1", "e4m3"], b=["e2m1", "e4m3"], num_warps=[1, 8], bm=[32, 128], k=[512]),
)
def scaled_products(gpu, rng, a, b, num_warps=4, bm=64, bn=64, bk=128, k=256):
    a_data, a_values, a_scale = scaled_operand(rng, bm, k, a)
    b_data, b_values, b_scale = scaled_operand(rng, bn, k, b)
    c = gpu.empty((bm, bn))
    gpu.launch(
        scaled_kernel,
        (1,),
        *(gpu.array(x) for x in (a_data, a_scale, b_data, b_scale)),
        c,
        k,
        BM=bm,
        BN=bn,
        BK=bk,
        A=a,
        B=b,
        PACK_A=2 if a == "e2m1" else 1,
        PACK_B=2 if b == "e2m1" else 1,
        options={"num_warps": num_warps},
    )
    expected, size = a_values @ b_values.T, np.abs(a_values) @ np.abs(b_values).T
    close(c.numpy(), expected, size * (k + 2) * unit(np.float32))


@triton.jit
def split_k_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SPLITS: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(tl.program_id(2) * BK, K, BK * SPLITS):
        k = begin + tl.arange(0, BK)
        a = tl.load(
            a_ptr + m[:, None] * K + k[None, :], mask=(m[:, None] < M) & (k[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + k[:, None] * N + n[None, :], mask=(n[None, :] < N) & (k[:, None] < K), other=0.0
        )
        total += tl.dot(a, b)
    mask = (m[:, None] < M) & (n[None, :] < N)
    tl.atomic_add(c_ptr + m[:, None] * N + n[None, :], total, mask=mask, sem="relaxed")


@case(*each(splits=[1, 3, 8]))
def split_k(gpu, rng, splits):
    m, n, k = 40, 72, 530
    a, b = rng.standard_normal((m, k)).astype(bf16), rng.standard_normal((k, n)).astype(bf16)
    c = gpu.zeros((m, n))
    gpu.launch(
        split_k_kernel,
        (2, 2, splits),
        gpu.array(a),
        gpu.array(b),
        c,
        m,
        n,
        k,
        BM=32,
        BN=64,
        BK=32,
        SPLITS=splits,
    )
    a, b = a.astype(np.float64), b.astype(np.float64)
    close(c.numpy(), a @ b, np.abs(a) @ np.abs(b) * (k + 2) * unit(np.float32))


@triton.jit
def persistent_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    a = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BN, BK])
    c = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BM, BN])
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(
        tl.program_id(0), tl.cdiv(M, BM) * tiles_n, tl.num_programs(0), flatten=True
    ):
        m, n = tile // tiles_n * BM, tile % tiles_n * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            total = tl.dot(a.load([m, k]), b.load([n, k]).T, total)
        c.store([m, n], total.to(tl.float16))


@case(*each(programs=[1, 5], num_warps=[4, 8]))
def persistent_products(gpu, rng, programs, num_warps):
    m, n, k = 200, 136, 120
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(
        np.float16
    )
    c = gpu.empty((m, n), np.float16)
    gpu.launch(
        persistent_matmul_kernel,
        (programs,),
        gpu.array(a),
        gpu.array(b),
        c,
        m,
        n,
        k,
        BM=64,
        BN=64,
        BK=32,
        options={"num_warps": num_warps},
    )
    a, b = a.astype(np.float64), b.astype(np.float64)
    expected = a @ b.T
    close(
        c.numpy(),
        expected,
        np.abs(a) @ np.abs(b.T) * (k + 2) * unit(np.float32) + np.abs(expected) * unit(np.float16),
    )


@triton.jit
def grouped_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    tokens_ptr,
    experts_ptr,
    count,
    N,
    K,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    # A mixture of experts: tokens sorted by expert, gathered by index.
    block = tl.program_id(0)
    expert = tl.load(experts_ptr + block)
    token = tl.load(tokens_ptr + block * BM + tl.arange(0, BM))
    valid = token < count
    n = tl.program_id(1) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        a = tl.load(
            a_ptr + token[:, None] * K + k[None, :],
            mask=valid[:, None] & (k[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + (expert * N + n[None, :]) * K + k[:, None],
            mask=(n[None, :] < N) & (k[:, None] < K),
            other=0.0,
        )
        total = tl.dot(a, b, total)
    tl.store(c_ptr + token[:, None] * N + n[None, :], total, mask=valid[:, None] & (n[None, :] < N))


@case(*each(num_warps=[1, 4]))
def mixture_of_experts(gpu, rng, num_warps):
    count, experts, n, k, bm = 61, 5, 70, 96, 16
    x = rng.standard_normal((count, k)).astype(bf16)
    w = rng.standard_normal((experts, n, k)).astype(bf16)
    expert = rng.integers(0, experts, count)
    tokens, blocks = [], []
    for e in range(experts):
        mine = list(np.flatnonzero(expert == e))
        mine += [count] * (-len(mine) % bm)
        tokens += mine
        blocks += [e] * (len(mine) // bm)
    c = gpu.empty((count, n))
    gpu.launch(
        grouped_kernel,
        (len(blocks), 2),
        gpu.array(x),
        gpu.array(w),
        c,
        gpu.array(np.array(tokens, np.int32)),
        gpu.array(np.array(blocks, np.int32)),
        count,
        n,
        k,
        BM=bm,
        BN=64,
        BK=32,
        options={"num_warps": num_warps},
    )
    x, w = x.astype(np.float64), w.astype(np.float64)
    expected = np.einsum("tk,tnk->tn", x, w[expert])
    close(
        c.numpy(),
        expected,
        np.einsum("tk,tnk->tn", np.abs(x), np.abs(w[expert])) * (k + 2) * unit(np.float32),
    )


@triton.jit
def int4_kernel(
    a_ptr, b_ptr, scale_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    # Weights of four bits, two in a byte along k, with a scale for 32 of them: weights widened to f16.
    m = tl.arange(0, BM)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    total = tl.zeros((BM, BN), tl.float32)
    for begin in range(0, K, BK):
        k = begin + tl.arange(0, BK)
        a = tl.load(a_ptr + m[:, None] * K + k[None, :], mask=m[:, None] < M, other=0.0)
        packed = tl.load(b_ptr + k[:, None] // 2 * N + n[None, :], mask=n[None, :] < N, other=0)
        q = (packed >> ((k % 2) * 4)[:, None]).to(tl.int8) & 15
        scale = tl.load(
            scale_ptr + k[:, None] // 32 * N + n[None, :], mask=n[None, :] < N, other=0.0
        )
        total = tl.dot(a, ((q - 8).to(tl.float16) * scale), total)
    tl.store(c_ptr + m[:, None] * N + n[None, :], total, mask=(m[:, None] < M) & (n[None, :] < N))


@case(*each(m=[1, 13], num_warps=[1, 4]))
def products_of_int4(gpu, rng, m, num_warps):
    n, k = 100, 128
    a = rng.standard_normal((m, k)).astype(np.float16)
    q = rng.integers(0, 16, (k, n)).astype(np.uint8)
    scale = (2.0 ** rng.integers(-3, 3, (k // 32, n))).astype(np.float16)
    c = gpu.empty((m, n))
    gpu.launch(
        int4_kernel,
        (2,),
        gpu.array(a),
        gpu.array(q[::2] | q[1::2] << 4),
        gpu.array(scale),
        c,
        m,
        n,
        k,
        BM=16,
        BN=64,
        BK=32,
        options={"num_warps": num_warps},
    )
    a = a.astype(np.float64)
    b = (q.astype(np.float64) - 8) * np.repeat(scale.astype(np.float64), 32, 0)
    close(c.numpy(), a @ b, np.abs(a) @ np.abs(b) * (k + 2) * unit(np.float32))

"""Attention: flash forward and backward, and decoding over a paged cache in splits."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

from case import case, close, each, unit

bf16 = ml_dtypes.bfloat16


@triton.jit
def forward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    l_ptr,
    scale,
    Q,
    K,
    heads,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    head = tl.program_id(1)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + (head * Q + m[:, None]) * D + d[None, :], mask=m[:, None] < Q, other=0.0)
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    o = tl.zeros((BM, D), tl.float32)
    end = tl.minimum(K, (tl.program_id(0) + 1) * BM + K - Q) if CAUSAL else K
    for begin in range(0, end, BN):
        n = begin + tl.arange(0, BN)
        k = tl.load(
            k_ptr + (head * K + n[None, :]) * D + d[:, None], mask=n[None, :] < K, other=0.0
        )
        s = tl.dot(q, k) * (scale * 1.44269504)
        visible = n[None, :] < K
        if CAUSAL:
            visible = visible & (n[None, :] <= m[:, None] + K - Q)
        s = tl.where(visible, s, -1.0e6)
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        shrink = tl.exp2(most - now)
        total = total * shrink + tl.sum(p, 1)
        v = tl.load(
            v_ptr + (head * K + n[:, None]) * D + d[None, :], mask=n[:, None] < K, other=0.0
        )
        o = tl.dot(p.to(v.dtype), v, o * shrink[:, None])
        most = now
    o = o / total[:, None]
    tl.store(
        o_ptr + (head * Q + m[:, None]) * D + d[None, :],
        o.to(o_ptr.dtype.element_ty),
        mask=m[:, None] < Q,
    )
    tl.store(l_ptr + head * Q + m, most + tl.log2(total), mask=m < Q)


@triton.jit
def backward_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    dq_ptr,
    dk_ptr,
    dv_ptr,
    l_ptr,
    delta_ptr,
    scale,
    L,
    CAUSAL: tl.constexpr,
    D: tl.constexpr,
    B: tl.constexpr,
):
    # A program has one block of keys; it adds to dq by atomics.
    head = tl.program_id(1)
    n = tl.program_id(0) * B + tl.arange(0, B)
    d = tl.arange(0, D)
    at = (head * L + n[:, None]) * D + d[None, :]
    k = tl.load(k_ptr + at, mask=n[:, None] < L, other=0.0)
    v = tl.load(v_ptr + at, mask=n[:, None] < L, other=0.0)
    dk = tl.zeros((B, D), tl.float32)
    dv = tl.zeros((B, D), tl.float32)
    for begin in range(tl.program_id(0) * B if CAUSAL else 0, L, B):
        m = begin + tl.arange(0, B)
        to = (head * L + m[:, None]) * D + d[None, :]
        q = tl.load(q_ptr + to, mask=m[:, None] < L, other=0.0)
        do = tl.load(do_ptr + to, mask=m[:, None] < L, other=0.0)
        l = tl.load(l_ptr + head * L + m, mask=m < L, other=0.0)
        delta = tl.load(delta_ptr + head * L + m, mask=m < L, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * (scale * 1.44269504) - l[None, :])
        visible = (m[None, :] < L) & (n[:, None] < L)
        if CAUSAL:
            visible = visible & (n[:, None] <= m[None, :])
        p = tl.where(visible, p, 0.0)
        dv += tl.dot(p.to(do.dtype), do)
        dp = tl.dot(v, tl.trans(do))
        ds = (p * (dp - delta[None, :]) * scale).to(q.dtype)
        dk += tl.dot(ds, q)
        tl.atomic_add(dq_ptr + to, tl.dot(tl.trans(ds), k), mask=m[:, None] < L, sem="relaxed")
    tl.store(dk_ptr + at, dk, mask=n[:, None] < L)
    tl.store(dv_ptr + at, dv, mask=n[:, None] < L)


def softmax_of(q, k, scale, causal):
    s = q @ k.transpose(0, 2, 1) * scale
    if causal:
        late = (
            np.arange(k.shape[1])[None, :]
            > np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1]
        )
        s = np.where(late, -np.inf, s)
    p = np.exp(s - s.max(2, keepdims=True))
    return p / p.sum(2, keepdims=True)


@case(
    *each(causal=[False, True], width=[64, 128], length=[128, 99], dtype=[np.float16]),
    *each(
        causal=[True],
        width=[64],
        length=[99],
        dtype=[bf16],
        num_warps=[1, 4, 8],
        num_stages=[1, 2, 3],
    ),
    dict(causal=False, width=128, length=256, dtype=bf16),
)
def flash_attention(gpu, rng, causal, width, length, dtype, num_warps=4, num_stages=2):
    heads, scale = 3, width**-0.5
    q, k, v = (rng.standard_normal((heads, length, width)).astype(dtype) for _ in range(3))
    o, l = gpu.empty(q.shape, dtype), gpu.empty((heads, length))
    gpu.launch(
        forward_kernel,
        (triton.cdiv(length, 64), heads),
        gpu.array(q),
        gpu.array(k),
        gpu.array(v),
        o,
        l,
        scale,
        length,
        length,
        heads,
        CAUSAL=causal,
        D=width,
        BM=64,
        BN=32,
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    p = softmax_of(q.astype(np.float64), k.astype(np.float64), scale, causal)
    # Each probability is rounded to the format before it weighs a row of v, and so is the result.
    expected = p @ v.astype(np.float64)
    size = p @ np.abs(v.astype(np.float64))
    close(o.numpy(), expected, size * (2 * unit(dtype) + 1e-4))


@case(*each(causal=[False, True], length=[64, 77], num_warps=[4, 8]))
def flash_attention_backward(gpu, rng, causal, length, num_warps):
    heads, width = 2, 64
    scale, dtype = width**-0.5, np.float16
    q, k, v, do = (rng.standard_normal((heads, length, width)).astype(dtype) for _ in range(4))
    wide = [x.astype(np.float64) for x in (q, k, v, do)]
    s = wide[0] @ wide[1].transpose(0, 2, 1) * scale
    p = softmax_of(wide[0], wide[1], scale, causal)
    if causal:
        s = np.where(np.tri(length, dtype=bool), s, -np.inf)
    l = (np.log(np.exp(s - s.max(2, keepdims=True)).sum(2)) + s.max(2)) * np.log2(np.e)
    delta = (p @ wide[2] * wide[3]).sum(2)
    dq, dk, dv = gpu.zeros(q.shape), gpu.empty(q.shape), gpu.empty(q.shape)
    gpu.launch(
        backward_kernel,
        (triton.cdiv(length, 32), heads),
        *(gpu.array(x) for x in (q, k, v, do)),
        dq,
        dk,
        dv,
        gpu.array(l.astype(np.float32)),
        gpu.array(delta.astype(np.float32)),
        scale,
        length,
        CAUSAL=causal,
        D=width,
        B=32,
        options={"num_warps": num_warps},
    )
    ds = p * (wide[3] @ wide[2].transpose(0, 2, 1) - delta[:, :, None]) * scale
    for name, got, a, b in (
        ("dq", dq, ds, wide[1]),
        ("dk", dk, ds.transpose(0, 2, 1), wide[0]),
        ("dv", dv, p.transpose(0, 2, 1), wide[3]),
    ):
        close(got.numpy(), a @ b, np.abs(a) @ np.abs(b) * (2 * unit(dtype) + 1e-4) + 1e-4, name)


@triton.jit
def decode_kernel(
    q_ptr,
    cache_ptr,
    table_ptr,
    lengths_ptr,
    o_ptr,
    l_ptr,
    scale,
    pages,
    SPLITS: tl.constexpr,
    PAGE: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
):
    # One token of each sequence: H query heads share a key head; pages come in any order.
    batch, split = tl.program_id(0), tl.program_id(1)
    length = tl.load(lengths_ptr + batch)
    h = tl.arange(0, H)
    d = tl.arange(0, D)
    q = tl.load(q_ptr + (batch * H + h[:, None]) * D + d[None, :])
    most = tl.full((H,), -1.0e30, tl.float32)
    total = tl.zeros((H,), tl.float32)
    o = tl.zeros((H, D), tl.float32)
    each = tl.cdiv(tl.cdiv(length, PAGE), SPLITS)
    for page in range(split * each, tl.minimum((split + 1) * each, tl.cdiv(length, PAGE))):
        where = tl.load(table_ptr + batch * pages + page).to(tl.int64)
        n = tl.arange(0, PAGE)
        inside = page * PAGE + n < length
        k = tl.load(
            cache_ptr + (where * 2 * PAGE + n[None, :]) * D + d[:, None],
            mask=inside[None, :],
            other=0.0,
        )
        v = tl.load(
            cache_ptr + ((where * 2 + 1) * PAGE + n[:, None]) * D + d[None, :],
            mask=inside[:, None],
            other=0.0,
        )
        s = tl.where(inside[None, :], tl.dot(q, k) * scale, -1.0e30)
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        shrink = tl.exp(most - now)
        total = total * shrink + tl.sum(p, 1)
        o = o * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        most = now
    at = ((batch * SPLITS + split) * H + h) * 1
    tl.store(o_ptr + at[:, None] * D + d[None, :], o)
    tl.store(l_ptr + at * 2, most)
    tl.store(l_ptr + at * 2 + 1, total)


@triton.jit
def join_splits_kernel(
    o_ptr, l_ptr, out_ptr, SPLITS: tl.constexpr, H: tl.constexpr, D: tl.constexpr
):
    batch, head = tl.program_id(0), tl.program_id(1)
    s = tl.arange(0, SPLITS)
    d = tl.arange(0, D)
    at = (batch * SPLITS + s) * H + head
    most = tl.load(l_ptr + at * 2)
    weight = tl.exp(most - tl.max(most, 0))
    total = tl.sum(weight * tl.load(l_ptr + at * 2 + 1), 0)
    o = tl.load(o_ptr + at[:, None] * D + d[None, :])
    tl.store(out_ptr + (batch * H + head) * D + d, tl.sum(o * weight[:, None], 0) / total)


@case(*each(splits=[1, 4], num_warps=[1, 4], dtype=[np.float16, bf16]))
def paged_decode(gpu, rng, splits, num_warps, dtype):
    batch, heads, width, page, pages = 3, 16, 64, 16, 12
    lengths = np.array([1, 100, 192], np.int32)
    cache = rng.standard_normal((40, 2, page, width)).astype(dtype)
    table = np.stack([rng.permutation(40)[:pages] for _ in range(batch)]).astype(np.int32)
    q = rng.standard_normal((batch, heads, width)).astype(dtype)
    o, l = gpu.empty((batch, splits, heads, width)), gpu.empty((batch, splits, heads, 2))
    out = gpu.empty((batch, heads, width))
    options = {"num_warps": num_warps}
    gpu.launch(
        decode_kernel,
        (batch, splits),
        gpu.array(q),
        gpu.array(cache),
        gpu.array(table),
        gpu.array(lengths),
        o,
        l,
        width**-0.5,
        pages,
        SPLITS=splits,
        PAGE=page,
        H=heads,
        D=width,
        options=options,
    )
    gpu.launch(
        join_splits_kernel,
        (batch, heads),
        o,
        l,
        out,
        SPLITS=splits,
        H=heads,
        D=width,
        options=options,
    )
    for b in range(batch):
        k, v = (
            cache[table[b], i].reshape(-1, width)[: lengths[b]].astype(np.float64)[None]
            for i in range(2)
        )
        p = softmax_of(q[b].astype(np.float64)[None], k, width**-0.5, False)
        close(out.numpy()[b], (p @ v)[0], (p @ np.abs(v))[0] * (unit(dtype) * 1.1 + 1e-4))

"""Kernels in which the elements of a row depend on one another: softmax, norms, reductions, losses."""

import ml_dtypes
import numpy as np
import triton
import triton.language as tl

from case import case, close, each, same, unit

bf16 = ml_dtypes.bfloat16


@triton.jit
def softmax_kernel(
    out_ptr, in_ptr, in_stride, out_stride, rows, columns, BLOCK: tl.constexpr, STAGES: tl.constexpr
):
    # Triton's tutorial 02: programs walk over the rows.
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        offsets = tl.arange(0, BLOCK)
        mask = offsets < columns
        x = tl.load(in_ptr + row * in_stride + offsets, mask=mask, other=-float("inf")).to(
            tl.float32
        )
        x = tl.exp(x - tl.max(x, axis=0))
        y = x / tl.sum(x, axis=0)
        tl.store(out_ptr + row * out_stride + offsets, y.to(out_ptr.dtype.element_ty), mask=mask)


@case(
    *each(rows=[5], columns=[1, 63, 781, 1024, 4099], num_warps=[1, 4, 8]),
    *each(
        rows=[37],
        columns=[1000],
        num_warps=[2, 4],
        num_stages=[1, 2, 3],
        dtype=[np.float32, np.float16, bf16],
    ),
    dict(rows=256, columns=2048, num_warps=4),
)
def softmax(gpu, rng, rows, columns, num_warps, num_stages=2, dtype=np.float32):
    x = rng.standard_normal((rows, columns)).astype(dtype)
    out = gpu.empty((rows, columns), dtype)
    gpu.launch(
        softmax_kernel,
        (min(rows, 19),),
        out,
        gpu.array(x),
        columns,
        columns,
        rows,
        columns,
        BLOCK=triton.next_power_of_2(columns),
        STAGES=num_stages,
        options={"num_warps": num_warps, "num_stages": num_stages},
    )
    wide = x.astype(np.float64)
    y = np.exp(wide - wide.max(1, keepdims=True))
    y /= y.sum(1, keepdims=True)
    # exp() errs by some units for each power of two of its argument, the sum by the log of its length.
    # What lies below f16's normal numbers is a multiple of 2^-24.
    close(
        out.numpy(),
        y,
        y * (unit(dtype) + 40 * unit(np.float32)) + (2**-25 if dtype == np.float16 else 1e-9),
    )


@triton.jit
def layer_norm_kernel(
    x_ptr, y_ptr, w_ptr, b_ptr, mean_ptr, rstd_ptr, stride, columns, eps, BLOCK: tl.constexpr
):
    # Tutorial 05.
    row = tl.program_id(0)
    y_ptr += row * stride
    x_ptr += row * stride
    sums = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        sums += tl.load(x_ptr + i, mask=i < columns, other=0.0).to(tl.float32)
    mean = tl.sum(sums, axis=0) / columns
    squares = tl.zeros([BLOCK], dtype=tl.float32)
    for begin in range(0, columns, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < columns, other=0.0).to(tl.float32)
        x = tl.where(i < columns, x - mean, 0.0)
        squares += x * x
    rstd = 1 / tl.sqrt(tl.sum(squares, axis=0) / columns + eps)
    tl.store(mean_ptr + row, mean)
    tl.store(rstd_ptr + row, rstd)
    for begin in range(0, columns, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        mask = i < columns
        w = tl.load(w_ptr + i, mask=mask)
        b = tl.load(b_ptr + i, mask=mask)
        x = tl.load(x_ptr + i, mask=mask, other=0.0).to(tl.float32)
        tl.store(y_ptr + i, (x - mean) * rstd * w + b, mask=mask)


@triton.jit
def layer_norm_backward_kernel(
    dx_ptr,
    dy_ptr,
    dw_ptr,
    db_ptr,
    x_ptr,
    w_ptr,
    mean_ptr,
    rstd_ptr,
    locks_ptr,
    stride,
    columns,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Tutorial 05: rows add into GROUP partial sums, each under a spin lock.
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    lock = locks_ptr + row % GROUP
    count = lock + GROUP
    dw_ptr += (row % GROUP) * columns + i
    db_ptr += (row % GROUP) * columns + i
    x = tl.load(x_ptr + row * stride + i, mask=mask, other=0).to(tl.float32)
    dy = tl.load(dy_ptr + row * stride + i, mask=mask, other=0).to(tl.float32)
    w = tl.load(w_ptr + i, mask=mask).to(tl.float32)
    mean = tl.load(mean_ptr + row)
    rstd = tl.load(rstd_ptr + row)
    x_hat = tl.where(mask, (x - mean) * rstd, 0.0)
    wdy = tl.where(mask, w * dy, 0.0)
    c1 = tl.sum(x_hat * wdy, axis=0) / columns
    c2 = tl.sum(wdy, axis=0) / columns
    tl.store(dx_ptr + row * stride + i, (wdy - (x_hat * c1 + c2)) * rstd, mask=mask)
    partial_dw = dy * x_hat
    partial_db = dy
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(count) == 0:
        tl.atomic_xchg(count, 1)
    else:
        partial_dw += tl.load(dw_ptr, mask=mask)
        partial_db += tl.load(db_ptr, mask=mask)
    tl.store(dw_ptr, partial_dw, mask=mask)
    tl.store(db_ptr, partial_db, mask=mask)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@case(*each(columns=[512, 777], num_warps=[1, 4, 8]))
def layer_norm(gpu, rng, columns, num_warps):
    rows, group = 40, 8
    options = {"num_warps": num_warps}
    x, dy = (rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
    w, b = (rng.standard_normal(columns).astype(np.float32) for _ in range(2))
    dx_, dy_, x_, w_, b_ = (gpu.array(a) for a in (np.full_like(x, np.nan), dy, x, w, b))
    y, mean, rstd = gpu.empty((rows, columns)), gpu.empty(rows), gpu.empty(rows)
    gpu.launch(
        layer_norm_kernel,
        (rows,),
        x_,
        y,
        w_,
        b_,
        mean,
        rstd,
        columns,
        columns,
        1e-5,
        BLOCK=256,
        options=options,
    )
    wide = x.astype(np.float64)
    scale = 1 / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    hat = (wide - wide.mean(1, keepdims=True)) * scale
    close(y.numpy(), hat * w + b, 1e-5)
    dw, db = gpu.empty((group, columns)), gpu.empty((group, columns))
    locks = gpu.zeros(2 * group, np.int32)
    gpu.launch(
        layer_norm_backward_kernel,
        (rows,),
        dx_,
        dy_,
        dw,
        db,
        x_,
        w_,
        mean,
        rstd,
        locks,
        columns,
        columns,
        GROUP=group,
        BLOCK=triton.next_power_of_2(columns),
        options=options,
    )
    wdy = dy * w.astype(np.float64)
    dx = (wdy - (hat * (hat * wdy).mean(1, keepdims=True) + wdy.mean(1, keepdims=True))) * scale
    close(dx_.numpy(), dx, 2e-5, "dx")
    close(dw.numpy().sum(0), (dy * hat).sum(0), 2e-4, "dw")
    close(db.numpy().sum(0), dy.astype(np.float64).sum(0), 2e-4, "db")


@triton.jit
def rms_norm_kernel(x_ptr, residual_ptr, w_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    x = tl.load(x_ptr + row * columns + i, mask=mask, other=0.0).to(tl.float32)
    x += tl.load(residual_ptr + row * columns + i, mask=mask, other=0.0).to(tl.float32)
    tl.store(residual_ptr + row * columns + i, x.to(tl.bfloat16), mask=mask)
    scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + eps)
    w = tl.load(w_ptr + i, mask=mask, other=0.0).to(tl.float32)
    y = x * scale * w
    # Quantised to int8 with one scale for the row.
    most = tl.max(tl.abs(y), axis=0)
    q = tl.floor(y * (127.0 / most) + 0.5)
    tl.store(y_ptr + row * columns + i, q.to(tl.int8), mask=mask)


@case(*each(columns=[300, 1024, 5120], num_warps=[2, 4]))
def rms_norm_quant(gpu, rng, columns, num_warps):
    x, r = (rng.standard_normal((7, columns)).astype(bf16) for _ in range(2))
    w = rng.standard_normal(columns).astype(bf16)
    residual, y = gpu.array(r), gpu.empty((7, columns), np.int8)
    gpu.launch(
        rms_norm_kernel,
        (7,),
        gpu.array(x),
        residual,
        gpu.array(w),
        y,
        columns,
        1e-6,
        BLOCK=triton.next_power_of_2(columns),
        options={"num_warps": num_warps},
    )
    total = x.astype(np.float32) + r.astype(np.float32)
    same(residual.numpy(), total.astype(bf16), "residual")
    wide = total.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w.astype(np.float64)
    close(y.numpy(), expected * 127 / np.abs(expected).max(1, keepdims=True), 0.5 + 1e-3)


@triton.jit
def product_of(a, b):
    return a * b


@triton.jit
def reduce_kernel(
    x_ptr,
    out_ptr,
    rows,
    columns,
    OP: tl.constexpr,
    AXIS: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    r = tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < columns)
    if OP == "min" or OP == "argmin":
        other = 100
    elif OP == "max" or OP == "argmax":
        other = -100
    elif OP == "prod":
        other = 1
    else:
        other = 0
    x = tl.load(x_ptr + r[:, None] * columns + c[None, :], mask=mask, other=other)
    if OP == "sum":
        y = tl.sum(x, axis=AXIS)
    elif OP == "max":
        y = tl.max(x, axis=AXIS)
    elif OP == "min":
        y = tl.min(x, axis=AXIS)
    elif OP == "argmax":
        y = tl.argmax(x, axis=AXIS)
    elif OP == "argmin":
        y = tl.argmin(x, axis=AXIS)
    elif OP == "xor":
        y = tl.xor_sum(x, axis=AXIS)
    else:
        y = tl.reduce(x, AXIS, product_of)
    n = r if AXIS == 1 else c
    tl.store(out_ptr + n, y.to(out_ptr.dtype.element_ty), mask=n < (rows if AXIS == 1 else columns))


@case(
    *each(
        op=["sum", "max", "min", "argmax", "argmin"],
        axis=[0, 1],
        dtype=[np.float32, np.int32],
        shape=[(33, 57), (3, 1000)],
    ),
    *each(
        op=["sum", "max"],
        axis=[0, 1],
        dtype=[np.float64, np.float16, np.int8, np.int64],
        shape=[(17, 100)],
        num_warps=[1, 8],
    ),
    *each(
        op=["xor", "prod"],
        axis=[0, 1],
        dtype=[np.int32],
        shape=[(1, 1), (64, 65)],
        num_warps=[2, 4],
    ),
)
def reductions(gpu, rng, op, axis, dtype, shape, num_warps=4):
    x = rng.integers(-9, 9, shape).astype(dtype)
    if op == "xor":
        x = rng.integers(-(2**31), 2**31, shape, np.int32)
    if op == "sum" and dtype == np.float16:
        x = rng.integers(-3, 4, shape).astype(dtype)
    arg = op.startswith("arg")
    out = gpu.empty(shape[1 - axis], np.int32 if arg else dtype)
    gpu.launch(
        reduce_kernel,
        (1,),
        gpu.array(x),
        out,
        shape[0],
        shape[1],
        OP=op,
        AXIS=axis,
        R=triton.next_power_of_2(shape[0]),
        C=triton.next_power_of_2(shape[1]),
        options={"num_warps": num_warps},
    )
    functions = {
        "sum": lambda: x.sum(axis, dtype=dtype),
        "max": lambda: x.max(axis),
        "min": lambda: x.min(axis),
        "argmax": lambda: x.argmax(axis).astype(np.int32),
        "argmin": lambda: x.argmin(axis).astype(np.int32),
        "xor": lambda: np.bitwise_xor.reduce(x, axis),
        "prod": lambda: np.multiply.reduce(x, axis, dtype=dtype),
    }
    same(out.numpy(), functions[op]())


@triton.jit
def welford(mean_1, m2_1, n_1, mean_2, m2_2, n_2):
    n = n_1 + n_2
    delta = mean_2 - mean_1
    share = tl.where(n == 0, 0.0, n_2 / n)
    return mean_1 + delta * share, m2_1 + m2_2 + delta * delta * n_1 * share, n


@triton.jit
def welford_kernel(x_ptr, mean_ptr, var_ptr, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    x = tl.load(x_ptr + row * columns + i, mask=mask, other=0.0)
    one = mask.to(tl.float32)
    mean, m2, n = tl.reduce((x, tl.zeros_like(x), one), 0, welford)
    tl.store(mean_ptr + row, mean)
    tl.store(var_ptr + row, m2 / n)


@case(*each(columns=[700, 1024], num_warps=[1, 4]))
def variance_by_welford(gpu, rng, columns, num_warps):
    x = (rng.standard_normal((6, columns)) + 5).astype(np.float32)
    mean, var = gpu.empty(6), gpu.empty(6)
    gpu.launch(
        welford_kernel,
        (6,),
        gpu.array(x),
        mean,
        var,
        columns,
        BLOCK=1024,
        options={"num_warps": num_warps},
    )
    close(mean.numpy(), x.astype(np.float64).mean(1), 1e-5, "mean")
    close(var.numpy(), x.astype(np.float64).var(1), 1e-5, "variance")


@triton.jit
def cross_entropy_kernel(logits_ptr, labels_ptr, loss_ptr, columns, BLOCK: tl.constexpr):
    # Online over blocks of a large vocabulary.
    row = tl.program_id(0)
    logits_ptr += row.to(tl.int64) * columns
    label = tl.load(labels_ptr + row)
    most = -float("inf")
    total = 0.0
    for begin in range(0, columns, BLOCK):
        i = begin + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + i, mask=i < columns, other=-float("inf")).to(tl.float32)
        now = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(x - now), 0)
        most = now
    if label >= 0:
        loss = most + tl.log(total) - tl.load(logits_ptr + label).to(tl.float32)
    else:
        loss = 0.0
    tl.store(loss_ptr + row, loss)


@case(*each(columns=[4001, 10000], dtype=[np.float32, bf16]))
def cross_entropy(gpu, rng, columns, dtype):
    x = (4 * rng.standard_normal((9, columns))).astype(dtype)
    labels = rng.integers(0, columns, 9)
    labels[3] = -100
    loss = gpu.empty(9)
    gpu.launch(
        cross_entropy_kernel, (9,), gpu.array(x), gpu.array(labels), loss, columns, BLOCK=1024
    )
    wide = x.astype(np.float64)
    expected = np.log(np.exp(wide).sum(1)) - wide[np.arange(9), labels]
    close(loss.numpy(), np.where(labels < 0, 0, expected), 1e-4)


@triton.jit
def batch_norm_kernel(x_ptr, out_ptr, n, channels, spatial, BN: tl.constexpr, BS: tl.constexpr):
    channel = tl.program_id(0)
    batch = tl.arange(0, BN)
    total = tl.zeros((BN, BS), tl.float32)
    for begin in range(0, spatial, BS):
        s = begin + tl.arange(0, BS)
        mask = (batch[:, None] < n) & (s[None, :] < spatial)
        total += tl.load(
            x_ptr + (batch[:, None] * channels + channel) * spatial + s[None, :],
            mask=mask,
            other=0.0,
        )
    tl.store(out_ptr + channel, tl.sum(total) / (n * spatial))


@case()
def mean_of_channels(gpu, rng):
    x = rng.standard_normal((5, 6, 70)).astype(np.float32)
    out = gpu.empty(6)
    gpu.launch(batch_norm_kernel, (6,), gpu.array(x), out, 5, 6, 70, BN=8, BS=32)
    close(out.numpy(), x.astype(np.float64).mean((0, 2)), 1e-6)

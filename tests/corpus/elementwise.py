"""Kernels that compute each element by itself."""

import math

import ml_dtypes
import numpy as np
import triton
import triton.language as tl
from triton.language.extra.hip import libdevice

from case import DIGITS, case, close, each, odd, same, unit

bf16 = ml_dtypes.bfloat16


@triton.jit
def add_kernel(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(out_ptr + offsets, x + y, mask=mask)


@case(
    *each(
        dtype=[np.float32, np.float16, bf16, np.float64, np.int8, np.int16, np.int32, np.int64],
        n=[1, 4096, 98432],
    ),
    *each(dtype=[np.float32], n=[1000], num_warps=[1, 2, 8], block=[64, 256, 4096]),
)
def add(gpu, rng, dtype, n, num_warps=4, block=1024):
    if np.issubdtype(dtype, np.integer):
        x, y = (rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, n, dtype) for _ in range(2))
    else:
        x, y = (rng.standard_normal(n).astype(dtype) for _ in range(2))
    out = gpu.empty(n, dtype)
    grid = (triton.cdiv(n, block),)
    gpu.launch(
        add_kernel,
        grid,
        gpu.array(x),
        gpu.array(y),
        out,
        n,
        BLOCK=block,
        options={"num_warps": num_warps},
    )
    same(out.numpy(), x + y)


@triton.jit
def grid_stride_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    for begin in tl.range(
        tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK, num_stages=STAGES
    ):
        offsets = begin + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0)
        tl.store(out_ptr + offsets, x * 2 + 1, mask=offsets < n)


@case(*each(num_stages=[1, 2, 3]))
def grid_stride(gpu, rng, num_stages):
    x = rng.integers(-1000, 1000, 50_001).astype(np.float32)
    out = gpu.empty(x.size)
    gpu.launch(grid_stride_kernel, (13,), gpu.array(x), out, x.size, BLOCK=512, STAGES=num_stages)
    same(out.numpy(), x * 2 + 1)


@triton.jit
def unary_kernel(x_ptr, out_ptr, n, F: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=1.0)
    tl.store(out_ptr + offsets, F(x), mask=offsets < n)


# Where the compiler fuses products of the library's with additions, the library loses the digits that it
# carries beyond a double's: sinh() near 0 then errs by 2^-55.
UNFUSED = {"enable_fp_fusion": False}
numpy_erf = np.vectorize(math.erf, otypes=[np.float64])

# Function, numpy's, range, and how many units of the last place it may err by, as OpenCL grants it.
FUNCTIONS = {
    "exp": (tl.exp, np.exp, -80, 80, 3),
    "exp2": (tl.exp2, np.exp2, -120, 120, 3),
    "log": (tl.log, np.log, 1e-30, 1e30, 3),
    "log2": (tl.log2, np.log2, 1e-30, 1e30, 3),
    "sin": (tl.sin, np.sin, -1000, 1000, 4),
    "cos": (tl.cos, np.cos, -1000, 1000, 4),
    "sqrt": (tl.sqrt, np.sqrt, 0, 1e20, 3),
    "sqrt_rn": (tl.sqrt_rn, np.sqrt, 0, 1e20, 0.5),
    "rsqrt": (tl.rsqrt, lambda x: 1 / np.sqrt(x), 1e-20, 1e20, 2),
    "erf": (tl.erf, numpy_erf, -4, 4, 16),
    "floor": (tl.floor, np.floor, -1e5, 1e5, 0),
    "ceil": (tl.ceil, np.ceil, -1e5, 1e5, 0),
    "abs": (tl.abs, np.abs, -1e5, 1e5, 0),
    "tanh": (libdevice.tanh, np.tanh, -10, 10, 5),
    "sinh": (libdevice.sinh, np.sinh, -80, 80, 8),
    "cosh": (libdevice.cosh, np.cosh, -80, 80, 4),
    "tan": (libdevice.tan, np.tan, -1000, 1000, 5),
    "asin": (libdevice.asin, np.arcsin, -1, 1, 4),
    "acos": (libdevice.acos, np.arccos, -1, 1, 4),
    "atan": (libdevice.atan, np.arctan, -1e5, 1e5, 5),
    "asinh": (libdevice.asinh, np.arcsinh, -1e5, 1e5, 4),
    "acosh": (libdevice.acosh, np.arccosh, 1, 1e5, 4),
    "atanh": (libdevice.atanh, np.arctanh, -0.999, 0.999, 5),
    "log1p": (libdevice.log1p, np.log1p, -0.9, 1e20, 2),
    "expm1": (libdevice.expm1, np.expm1, -80, 80, 3),
    "log10": (libdevice.log10, np.log10, 1e-30, 1e30, 3),
    "trunc": (libdevice.trunc, np.trunc, -1e5, 1e5, 0),
    "nearbyint": (libdevice.nearbyint, np.rint, -1e5, 1e5, 0),
}


@case(
    *each(name=list(FUNCTIONS), dtype=[np.float32]),
    *each(name=[name for name in FUNCTIONS if name != "sqrt_rn"], dtype=[np.float64]),
)
def functions(gpu, rng, name, dtype):
    function, reference, low, high, units = FUNCTIONS[name]
    n = 1777
    x = rng.uniform(low, high, n).astype(dtype)
    if low > 0 and high / low > 1e10:
        x = np.exp(rng.uniform(np.log(low), np.log(high), n)).astype(dtype)
    elif low < 0:
        x[::2] *= (2.0 ** -rng.integers(0, 24, n))[::2].astype(dtype)  # near zero, too
    out = gpu.empty(n, dtype)
    gpu.launch(
        unary_kernel,
        (triton.cdiv(n, 512),),
        gpu.array(x),
        out,
        n,
        F=function,
        BLOCK=512,
        options=UNFUSED,
    )
    expected = reference(x.astype(np.float64))
    # numpy's double functions err by up to two units themselves.
    error = (
        (2 * units + (4 if dtype == np.float64 and units > 0.5 else 0))
        * np.abs(expected)
        * unit(dtype)
    )
    if name in ("exp", "exp2") and dtype == np.float32:
        # The argument is first multiplied by log2(e), in f32.
        error = error + 2 * np.abs(x * expected) * unit(dtype)
    # Near zeros, absolutely.
    absolute = {"sin": 2**-10, "cos": 2**-10, "tan": 2**-10}
    error = error + 2 * units * unit(dtype) * absolute.get(
        name, 2**-10 if name.startswith("log") else 0
    )
    close(out.numpy(), expected.astype(dtype), error, name)


@triton.jit
def binary_kernel(x_ptr, y_ptr, out_ptr, n, F: tl.constexpr, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=1.0)
    y = tl.load(y_ptr + offsets, mask=offsets < n, other=1.0)
    tl.store(out_ptr + offsets, F(x, y), mask=offsets < n)


@triton.jit
def divide(x, y):
    return x / y


@triton.jit
def fused(x, y):
    return tl.fma(x, y, x)


BINARY = {
    "divide": (divide, np.divide, 2.5),
    "div_rn": (tl.div_rn, np.divide, 0.5),
    "maximum": (tl.maximum, np.maximum, 0),
    "minimum": (tl.minimum, np.minimum, 0),
    "fma": (fused, lambda x, y: x * y + x, 0.5),
    "pow": (libdevice.pow, lambda x, y: np.power(np.abs(x), y), 16),
    "atan2": (libdevice.atan2, np.arctan2, 6),
    "hypot": (libdevice.hypot, np.hypot, 4),
    "fmod": (libdevice.fmod, np.fmod, 0),
    "copysign": (libdevice.copysign, np.copysign, 0),
}


@case(*each(name=list(BINARY)))
def functions_of_two(gpu, rng, name):
    function, reference, units = BINARY[name]
    n = 1500
    x, y = (rng.uniform(-10, 10, n).astype(np.float32) for _ in range(2))
    if name == "pow":
        x = np.abs(x)
    out = gpu.empty(n)
    gpu.launch(
        binary_kernel,
        (triton.cdiv(n, 512),),
        gpu.array(x),
        gpu.array(y),
        out,
        n,
        F=function,
        BLOCK=512,
        options=UNFUSED,
    )
    expected = reference(x.astype(np.float64), y.astype(np.float64))
    close(out.numpy(), expected, 2 * units * np.abs(expected) * unit(np.float32), name)


@triton.jit
def special_kernel(x_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    tl.store(out_ptr + i, tl.exp(x))
    tl.store(out_ptr + N + i, tl.log(x))
    tl.store(out_ptr + 2 * N + i, tl.sqrt_rn(x))
    tl.store(out_ptr + 3 * N + i, tl.maximum(x, 1.0, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out_ptr + 4 * N + i, tl.minimum(x, 1.0))
    tl.store(out_ptr + 5 * N + i, tl.where(x == x, x - x, 7.0))
    tl.store(out_ptr + 6 * N + i, tl.div_rn(1.0 + 0 * i.to(tl.float32), x))


@case()
def special_values(gpu, rng):
    tiny = np.finfo(np.float32).tiny
    x = np.array(
        [
            0,
            -0.0,
            1,
            -1,
            np.inf,
            -np.inf,
            np.nan,
            tiny,
            tiny / 4,
            -tiny / 8,
            3e38,
            -3e38,
            88,
            -104,
            0.5,
            2,
        ]
    )
    x = x.astype(np.float32)
    out = gpu.empty((7, x.size))
    gpu.launch(special_kernel, (1,), gpu.array(x), out, N=x.size, options={"num_warps": 1})
    with np.errstate(all="ignore"):
        wide = x.astype(np.float64)
        got = out.numpy()
        # tl.exp takes denormals to 0 on AMD.
        error = (4 + 2 * np.abs(wide)) * unit(np.float32) * np.exp(wide) + tiny
        close(got[0], np.exp(wide).astype(np.float32), error, "exp")
        close(
            got[1],
            np.log(wide).astype(np.float32),
            6 * unit(np.float32) * np.abs(np.log(wide)),
            "log",
        )
        same(got[2], np.sqrt(x), "sqrt")
        same(got[3], np.maximum(x, np.float32(1)), "maximum")
        same(got[4], np.fmin(x, np.float32(1)), "minimum")
        same(got[5], np.where(np.isnan(x), np.float32(7), x - x), "difference")
        same(got[6], np.float32(1) / x, "quotient")


@triton.jit
def cast_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x.to(out_ptr.dtype.element_ty), mask=offsets < n)


FLOATS = [np.float64, np.float32, np.float16, bf16]
SMALL = [
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
]
INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@case(
    *[v for v in each(source=FLOATS, to=FLOATS) if v["source"] != v["to"]],
    *each(source=INTEGERS, to=[np.float32, np.float64, np.float16]),
    *each(source=[np.float32, np.float64], to=INTEGERS),
    *each(source=SMALL, to=[np.float32, np.float16, bf16]),
    *each(source=[np.float32, np.float16, bf16], to=SMALL),
)
def casts(gpu, rng, source, to):
    n = 999
    if source in SMALL:
        x = np.arange(256, dtype=np.uint8).view(source)
        if to == bf16:
            x = x[np.isfinite(x.astype(np.float32))]  # Triton's own conversion knows no others
        n = x.size
    elif source in INTEGERS:
        info = np.iinfo(source)
        x = rng.integers(info.min, info.max, n, source, endpoint=True)
        if to == np.float16:
            x = x % source(60000 if info.max > 60000 else info.max)
    elif to in INTEGERS:
        info = np.iinfo(to)
        x = rng.uniform(max(info.min, -(2**62)), min(info.max, 2**62), n).astype(source)
        x = np.trunc(x * 0.99)
    elif to in SMALL:
        # Halves between two numbers are rounded to even; what is too large is another matter.
        every = np.arange(256, dtype=np.uint8).view(to).astype(np.float64)
        every = np.sort(every[np.isfinite(every)])
        between = (every[1:] + every[:-1]) / 2
        x = np.concatenate([every, between, rng.uniform(every[0], every[-1], 200)]).astype(source)
        n = x.size
    else:
        x = (rng.standard_normal(n) * 2.0 ** rng.integers(-20, 15, n)).astype(source)
        # Halves between two numbers, too, and what is hardly more or less.
        digits = DIGITS[np.dtype(to)]
        half = rng.integers(2 ** (digits - 1), 2**digits, n) + 0.5
        half = half * (1 + rng.integers(-1, 2, n) * 2.0 ** -rng.integers(9, 53, n))
        x[::2] = (half * 2.0 ** (1 - digits))[::2].astype(source)
    out = gpu.empty(n, to)
    gpu.launch(cast_kernel, (triton.cdiv(n, 256),), gpu.array(x), out, n, BLOCK=256)
    if source == np.float64 and to == bf16:
        # ml_dtypes rounds to f32 first, where the compiled kernel rounds once.
        x, wide = x.astype(np.float32), x
        x = odd(x, wide - x)
    same(out.numpy(), x.astype(to))


@triton.jit
def gelu(x):
    return 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def softplus(x):
    return tl.where(x > 20, x, tl.log(1 + tl.exp(x)))


@triton.jit
def swiglu_kernel(x_ptr, out_ptr, columns, F: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < columns
    gate = tl.load(x_ptr + row * 2 * columns + offsets, mask=mask).to(tl.float32)
    up = tl.load(x_ptr + row * 2 * columns + columns + offsets, mask=mask).to(tl.float32)
    tl.store(
        out_ptr + row * columns + offsets, (F(gate) * up).to(out_ptr.dtype.element_ty), mask=mask
    )


ACTIVATIONS = {
    "gelu": (gelu, lambda x: 0.5 * x * (1 + numpy_erf(x / np.sqrt(2)))),
    "silu": (silu, lambda x: x / (1 + np.exp(-x))),
    "leaky_relu": (leaky_relu, lambda x: np.where(x >= 0, x, 0.01 * x)),
    "softplus": (softplus, lambda x: np.log1p(np.exp(x))),
}


@case(*each(name=list(ACTIVATIONS), columns=[640, 1001]))
def gated_activations(gpu, rng, name, columns):
    function, reference = ACTIVATIONS[name]
    x = rng.standard_normal((5, 2 * columns)).astype(bf16)
    out = gpu.empty((5, columns), bf16)
    gpu.launch(
        swiglu_kernel,
        (5, triton.cdiv(columns, 512)),
        gpu.array(x),
        out,
        columns,
        F=function,
        BLOCK=512,
    )
    wide = x.astype(np.float64)
    expected = reference(wide[:, :columns]) * wide[:, columns:]
    # Rounded once to bf16, and before that some roundings of f32, of sums that may cancel.
    close(out.numpy(), expected, np.abs(expected) * unit(bf16) * 1.01 + 1e-5)


@triton.jit
def random_kernel(out_ptr, floats_ptr, dropped_ptr, x_ptr, n, seed, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.randint(seed, offsets).to(tl.uint32, bitcast=True), mask=mask)
    uniform = tl.rand(seed, offsets)
    tl.store(floats_ptr + offsets, uniform, mask=mask)
    x = tl.load(x_ptr + offsets, mask=mask)
    tl.store(dropped_ptr + offsets, tl.where(uniform > p, x * 2, 0.0), mask=mask)


def philox(seed, counters):
    """Philox 4x32-10 (Salmon et al., 2011): the first word of each block."""
    c = [counters.astype(np.uint64), *(np.zeros(counters.size, np.uint64) for _ in range(3))]
    k = [np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32)]
    word = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [
            (b >> np.uint64(32)) ^ c[1] ^ k[0],
            b & word,
            (a >> np.uint64(32)) ^ c[3] ^ k[1],
            a & word,
        ]
        k = [(k[0] + np.uint64(0x9E3779B9)) & word, (k[1] + np.uint64(0xBB67AE85)) & word]
    return c[0].astype(np.uint32)


@case()
def dropout(gpu, rng):
    n, seed = 1234, 987654321
    x = rng.standard_normal(n).astype(np.float32)
    out, floats, dropped = gpu.empty(n, np.uint32), gpu.empty(n), gpu.empty(n)
    gpu.launch(random_kernel, (5,), out, floats, dropped, gpu.array(x), n, seed, 0.5, BLOCK=256)
    same(out.numpy(), philox(seed, np.arange(n)))
    uniform = floats.numpy()
    assert (uniform >= 0).all() and (uniform < 1).all() and abs(uniform.mean() - 0.5) < 0.05
    same(dropped.numpy(), np.where(uniform > 0.5, x * 2, np.float32(0)))


@triton.jit
def integers_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    tl.store(out_ptr + i, x // y)
    tl.store(out_ptr + N + i, x % y)
    tl.store(
        out_ptr + 2 * N + i,
        tl.umulhi(x.to(tl.uint32, bitcast=True), y.to(tl.uint32, bitcast=True)).to(
            tl.int32, bitcast=True
        ),
    )
    tl.store(out_ptr + 3 * N + i, (x.to(tl.int64) * y >> 16).to(tl.int32))
    tl.store(out_ptr + 4 * N + i, tl.cdiv(x, y))
    tl.store(out_ptr + 5 * N + i, libdevice.popc(x))
    tl.store(out_ptr + 6 * N + i, libdevice.clz(x))


@case()
def integers(gpu, rng):
    n = 512
    x = rng.integers(-(2**31), 2**31, n, np.int32)
    y = (rng.integers(1, 2**31, n) >> rng.integers(0, 30, n)).astype(np.int32) | 1
    out = gpu.empty((7, n), np.int32)
    gpu.launch(integers_kernel, (1,), gpu.array(x), gpu.array(y), out, N=n)
    wide, divisor = x.astype(np.int64), y.astype(np.int64)
    quotient = np.trunc(wide / divisor).astype(np.int64)
    got = out.numpy()
    same(got[0], quotient.astype(np.int32), "//")
    same(got[1], (wide - quotient * divisor).astype(np.int32), "%")
    high = (x.view(np.uint32).astype(np.uint64) * y.view(np.uint32).astype(np.uint64)) >> np.uint64(
        32
    )
    same(got[2], high.astype(np.uint32).view(np.int32), "umulhi")
    same(got[3], (wide * divisor >> 16).astype(np.int32), "product")
    same(got[5], np.array([int(v).bit_count() for v in x.view(np.uint32)], np.int32), "popc")
    same(got[6], np.array([32 - int(v).bit_length() for v in x.view(np.uint32)], np.int32), "clz")


@triton.jit
def adamw_kernel(
    p_ptr, g_ptr, m_ptr, v_ptr, n, lr, b1, b2, eps, decay, c1, c2, BLOCK: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    p = tl.load(p_ptr + i, mask=mask)
    g = tl.load(g_ptr + i, mask=mask)
    m = b1 * tl.load(m_ptr + i, mask=mask) + (1 - b1) * g
    v = b2 * tl.load(v_ptr + i, mask=mask) + (1 - b2) * g * g
    p = p * (1 - lr * decay) - lr * (m / c1) / (tl.sqrt(v / c2) + eps)
    tl.store(m_ptr + i, m, mask=mask)
    tl.store(v_ptr + i, v, mask=mask)
    tl.store(p_ptr + i, p, mask=mask)


@case()
def adamw(gpu, rng):
    n = 3001
    p, g, m = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    v = rng.uniform(0.1, 1, n).astype(np.float32)
    arrays = [gpu.array(a) for a in (p, g, m, v)]
    lr, b1, b2, eps, decay, c1, c2 = 1e-2, 0.9, 0.999, 1e-8, 0.1, 0.5, 0.25
    gpu.launch(adamw_kernel, (6,), *arrays, n, lr, b1, b2, eps, decay, c1, c2, BLOCK=512)
    m = b1 * m.astype(np.float64) + (1 - b1) * g
    v = b2 * v.astype(np.float64) + (1 - b2) * g.astype(np.float64) ** 2
    p = p * (1 - lr * decay) - lr * (m / c1) / (np.sqrt(v / c2) + eps)
    for name, got, expected in zip(
        "pmv", (arrays[0], arrays[2], arrays[3]), (p, m, v), strict=True
    ):
        close(got.numpy(), expected, 1e-5 * np.abs(expected) + 1e-6, name)


@triton.jit
def pack_kernel(x_ptr, y_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    z = tl.inline_asm_elementwise(
        "v_pk_add_u16 $0, $1, $2", "=v,v,v", [x, y], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(out_ptr + i, z)


@case()
def inline_assembly(gpu, rng):
    x, y = (rng.integers(-(2**31), 2**31, 256, np.int32) for _ in range(2))
    out = gpu.empty(256, np.int32)
    gpu.launch(pack_kernel, (1,), gpu.array(x), gpu.array(y), out, N=256)
    same(out.numpy(), (x.view(np.uint16) + y.view(np.uint16)).view(np.int32))


@triton.jit
def loops_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=1)
    steps = tl.zeros([BLOCK], tl.int32)
    while tl.max(x, 0) > 1:
        odd = (x & 1) == 1
        steps += (x > 1).to(tl.int32)
        x = tl.where(x > 1, tl.where(odd, 3 * x + 1, x >> 1), x)
    tl.store(out_ptr + i, steps, mask=i < n)


@case()
def collatz(gpu, rng):
    n = 700
    x = rng.integers(1, 5000, n, np.int64)
    out = gpu.empty(n, np.int32)
    gpu.launch(loops_kernel, (6,), gpu.array(x), out, n, BLOCK=128)
    steps = np.zeros(n, np.int32)
    while (x > 1).any():
        steps += x > 1
        x = np.where(x > 1, np.where(x & 1, 3 * x + 1, x >> 1), x)
    same(out.numpy(), steps)

"""Operations of the C interface on attention and experts, on the CPU, on simulated GPUs and, where there is
one, a GPU."""

import ctypes

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

import weft  # noqa: E402
from weft import _c  # noqa: E402

RNG = np.random.default_rng(1)


class Place(_c.Owner):
    """A device of the C interface, or the CPU, and arrays in its memory."""

    _close = "weft_device_close"

    def __init__(self, name):
        super().__init__(None)
        self.name = name
        if name != "cpu":
            super().__init__(_c.opened(_c.lib.weft_device_open, name.encode()))
        self.device = self._handle
        self._arrays = {}

    def put(self, array):
        """Its address there."""
        at = array.ctypes.data
        if self.device:
            at = _c.opened(_c.lib.weft_allocate, self.device, array.nbytes).value
            _c.lib.weft_upload(self.device, at, array.ctypes.data, array.nbytes)
        self._arrays[at] = array
        return at

    def get(self, at):
        array = self._arrays[at]
        if self.device:
            _c.lib.weft_download(self.device, array.ctypes.data, at, array.nbytes)
        return array

    def run(self, name, args):
        size = ctypes.c_size_t()
        _c.lib.weft_workspace_bytes(name.encode(), ctypes.byref(args), self.device, ctypes.byref(size))
        space = np.zeros(size.value + 256, np.uint8)
        args.workspace = _c.Workspace(-(-self.put(space) // 256) * 256, size.value)
        stream = _c.lib.weft_device_stream(self.device) if self.device else None  # uploads' and downloads'
        getattr(_c.lib, "weft_" + name)(ctypes.byref(args), self.device, stream)


@pytest.fixture(params=["cpu", "sim:gfx942", "sim:gfx950", "cuda"])
def place(request):
    try:
        opened = Place(request.param)
    except weft.DeviceError as error:
        pytest.skip(str(error))
    with opened:
        yield opened


def bf16(x):
    """Rounded half up, and the numbers that these are."""
    bits = (x.astype(np.float32).view(np.uint32) + 0x8000) >> 16
    return bits.astype(np.uint16), (bits << 16).view(np.float32)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_mla_decode(place):
    batch, heads, lengths, rows = 2, 3, [70, 5], 128
    q, queries = bf16(RNG.standard_normal((batch, heads, 576)))
    cache, keys = bf16(RNG.standard_normal((batch, rows, 576)))
    out = place.put(np.zeros((batch, heads, 512), np.float32))
    args = _c.MlaArgs(
        batch=batch,
        tokens=1,
        heads=heads,
        q=_c.Matrix(place.put(q), heads * 576, _c.BF16),
        cache=place.put(cache),
        blocks=batch,
        block_rows=rows,
        lengths=place.put(np.array(lengths, np.int32)),
        out=_c.Matrix(out, heads * 512, _c.F32),
        scale=0.05,
        cache_format=_c.BF16,
    )
    place.run("mla_decode", args)
    for i, length in enumerate(lengths):
        seen = keys[i, :length]
        expected = softmax(0.05 * queries[i] @ seen.T) @ seen[:, :512]
        np.testing.assert_allclose(place.get(out)[i], expected, rtol=2e-2, atol=2e-2)
    args.heads = 200
    with pytest.raises(weft.UsageError, match="heads is 200"):
        place.run("mla_decode", args)


@pytest.mark.parametrize("format", [_c.F16, _c.BF16])
def test_moe(place, format):
    rows, chosen, experts, hidden, inner = 9, 2, 5, 64, 40

    def numbers(*shape):
        x = RNG.standard_normal(shape)
        return bf16(x) if format == _c.BF16 else 2 * (x.astype(np.float16),)

    (x_bits, x), (gate_bits, gate) = numbers(rows, hidden), numbers(experts, inner, hidden)
    (up_bits, up), (down_bits, down) = numbers(experts, inner, hidden), numbers(experts, hidden, inner)
    ids = np.array([RNG.permutation(experts)[:chosen] for _ in range(rows)], np.int32)
    weights = RNG.random((rows, chosen), np.float32)
    out = place.put(np.zeros((rows, hidden), np.float32))
    args = _c.MoeArgs(
        rows=rows,
        chosen=chosen,
        experts=experts,
        hidden=hidden,
        inner=inner,
        a=_c.Matrix(place.put(x_bits), hidden, format),
        ids=place.put(ids),
        weights=place.put(weights),
        gate=_c.Matrix(place.put(gate_bits), hidden, format),
        up=_c.Matrix(place.put(up_bits), hidden, format),
        down=_c.Matrix(place.put(down_bits), inner, format),
        out=_c.Matrix(out, hidden, _c.F32),
    )
    if place.device is None:
        with pytest.raises(weft.DeviceError, match="GPUs alone"):
            place.run("moe", args)
        return
    if place.name == "cuda" and format == _c.F16:
        with pytest.raises(weft.DeviceError, match="cannot run on cuda"):
            place.run("moe", args)
        return
    place.run("moe", args)
    x, gate, up, down = (t.astype(np.float64) for t in (x, gate, up, down))
    unit = 2**-8 if format == _c.BF16 else 2**-11  # what lies between the products is rounded once
    for r in range(rows):
        expected, bound = np.zeros(hidden), np.full(hidden, 1e-3)
        for expert, weight in zip(ids[r], weights[r], strict=True):
            g = gate[expert] @ x[r]
            between = g / (1 + np.exp(-g)) * (up[expert] @ x[r])
            expected += weight * (down[expert] @ between)
            bound += unit * weight * (np.abs(down[expert]) @ np.abs(between))
        assert (np.abs(place.get(out)[r] - expected) <= bound).all()
    args.inner = 41
    with pytest.raises(weft.UsageError, match="inner is 41"):
        place.run("moe", args)


def f16(*shape, over=1):
    return (RNG.standard_normal(shape) / over**0.5).astype(np.float16)


def rounded(x):
    return x.astype(np.float16).astype(np.float64)


def lists(place, *matrices):
    """Of each expert's matrices, the structures of the C interface."""
    return [(_c.Matrix * len(each))(*(_c.Matrix(place.put(m), m.shape[1], _c.F16) for m in each)) for each in matrices]


@pytest.mark.parametrize("given", [False, True])
def test_moe_layer(place, given):
    rows, chosen, experts, hidden, inner = 21, 2, 4, 72, 40
    x, router = f16(rows, hidden), 2 * f16(experts, hidden, over=hidden)
    gate, up = ([f16(hidden, inner, over=hidden) for _ in range(experts + 1)] for _ in range(2))
    down = [f16(inner, hidden, over=inner) for _ in range(experts + 1)]
    probabilities = softmax(rounded(x.astype(np.float64) @ router.T.astype(np.float64)))
    ids = np.sort(np.argsort(-probabilities, -1, "stable")[:, :chosen], -1)
    if given:
        ids[:, 0], ids[:, 1] = 1, 3
    weights = np.take_along_axis(probabilities, ids, -1)
    ids = np.hstack([ids, np.full((rows, 1), experts)]).astype(np.int32)
    weights = np.hstack([weights, np.ones((rows, 1))]).astype(np.float32)
    out = place.put(np.zeros((rows, hidden), np.float16))
    gates, ups, downs = lists(place, gate, up, down)
    args = _c.MoeLayerArgs(
        rows=rows,
        hidden=hidden,
        inner=inner,
        experts=experts,
        chosen=chosen,
        x=_c.Matrix(place.put(x), hidden, _c.F16),
        router=_c.Matrix(None if given else place.put(router), hidden, _c.F16),
        gate=gates,
        up=ups,
        down=downs,
        ids=place.put(ids) if given else None,
        weights=place.put(weights) if given else None,
        out=_c.Matrix(out, hidden, _c.F16),
        shared=1,
    )
    place.run("moe_layer", args)
    for r in range(rows):
        expected = np.zeros(hidden)
        for e, weight in zip(ids[r], weights[r], strict=True):
            g, u = (rounded(x[r].astype(np.float64) @ w[e]) for w in (gate, up))
            between = rounded(rounded(g / (1 + np.exp(-g))) * u)
            expected = rounded(expected + rounded(rounded(weight) * rounded(between @ down[e])))
        np.testing.assert_allclose(place.get(out)[r], expected, rtol=1e-2, atol=1e-2)  # the challenge's own
    for name, value, match in [
        ("chosen", 5, "experts is 4, but must be at least 5"),
        ("shared", 2, "shared is 2"),
        ("experts", 96, "experts, the shared one included, is 97"),
        ("inner", 41, "inner is 41"),
        ("weights" if given else "gate", None, "come with weights" if given else "gate is null"),
    ]:
        kept = getattr(args, name)
        setattr(args, name, value)
        if name == "experts":  # lists as long as that
            args.gate, args.up, args.down = lists(place, *(97 * [m[0]] for m in (gate, up, down)))
        with pytest.raises(weft.UsageError, match=match):
            place.run("moe_layer", args)
        setattr(args, name, kept)
        args.gate, args.up, args.down = gates, ups, downs


def test_mla_layer(place):
    batch, dim, q_rank, heads, prefill, capacity = 3, 64, 24, 2, 70, 80
    widths = {"q_down": (q_rank, dim), "q_up": (heads * 192, q_rank), "kv_down": (576, dim)}
    widths |= {"kv_up": (heads * 256, 512), "o": (dim, heads * 128), "x": (batch, dim)}
    bits, numbers = {}, {}
    for name, shape in widths.items():
        bits[name], numbers[name] = bf16(RNG.standard_normal(shape) / shape[1] ** (name != "x" and 0.5))
    cache_bits, cache = bf16(RNG.standard_normal((batch, capacity, 576)))
    angles = np.zeros((prefill + 1, 64), np.uint16)
    _c.lib.weft_mla_layer_angles(prefill + 1, angles.ctypes.data)
    at, out = place.put(cache_bits.copy()), place.put(np.zeros((batch, dim), np.uint16))
    args = _c.MlaLayerArgs(
        batch=batch,
        dim=dim,
        q_rank=q_rank,
        heads=heads,
        prefill=prefill,
        capacity=capacity,
        cache=at,
        angles=place.put(angles),
        out=_c.Matrix(out, dim, _c.BF16),
        **{name: _c.Matrix(place.put(b), b.shape[1], _c.BF16) for name, b in bits.items()},
    )
    place.run("mla_layer", args)

    def product(a, name):
        return bf16(a @ numbers[name].T)[1]

    def wide(b):
        return (b.astype(np.uint32) << 16).view(np.float32)

    def turned(x, angles):
        a, b = np.split(x, 2, -1)
        cosine, sine = np.split(angles, 2, -1)
        return bf16(np.concatenate((a * cosine - b * sine, b * cosine + a * sine), -1))[1]

    x, angles, written = numbers["x"], wide(angles), wide(place.get(at))
    np.testing.assert_allclose(written[:, prefill], product(x, "kv_down"), rtol=2**-7, atol=1e-4)
    cache[:, prefill] = written[:, prefill]
    np.testing.assert_array_equal(written, cache)  # and no other row is
    rows, up = cache[:, : prefill + 1], numbers["kv_up"].reshape(heads, 256, 512)
    q = product(product(x, "q_down"), "q_up").reshape(batch, heads, 192)
    latent = bf16(np.einsum("bhd,hdl->bhl", q[..., :128], up[:, :128]))[1]
    queries = np.concatenate((latent, turned(q[..., 128:], angles[prefill])), -1)
    keys = np.concatenate((rows[..., :512], turned(rows[..., 512:], angles)), -1)
    seen = np.einsum(
        "bht,btl->bhl", softmax(np.einsum("bhr,btr->bht", queries, keys) / 192**0.5), rows[..., :512]
    )
    values = bf16(np.einsum("bhl,hdl->bhd", bf16(seen)[1], up[:, 128:]))[1]
    expected = values.reshape(batch, -1) @ numbers["o"].T
    np.testing.assert_allclose(wide(place.get(out)), expected, rtol=2e-2, atol=8e-3)  # the challenge's own
    args.capacity = prefill
    with pytest.raises(weft.UsageError, match="capacity is 70, but must be at least 71"):
        place.run("mla_layer", args)
    with pytest.raises(weft.UsageError, match="positions is -1"):
        _c.lib.weft_mla_layer_angles(-1, out)

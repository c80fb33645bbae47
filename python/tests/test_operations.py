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
    """Rounded to nearest even, and the numbers that these are."""
    bits = x.astype(np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
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


def but(args, name, value):
    """A copy in which one member is another."""
    changed = type(args).from_buffer_copy(args)
    setattr(changed, name, value)
    return changed


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def drawn(logits, chosen, sigmoids, renormalised, correction, groups, kept):
    """Ids and weights of a row in float64."""
    scores = sigmoid(logits) if sigmoids else softmax(logits)
    choice = scores + correction if correction is not None else logits
    parts = choice.reshape(groups, -1)
    best = np.sort(parts, -1)[:, -1 if correction is None else -2:].sum(-1)
    out = np.ones(groups, bool)
    out[np.argsort(-best, kind="stable")[:kept]] = False
    ids = np.sort(np.argsort(-np.where(out.repeat(parts.shape[1]), -np.inf, choice), kind="stable")[:chosen])
    return ids, scores[ids] / (scores[ids].sum() if renormalised else 1)


@pytest.mark.parametrize(
    "experts, chosen, flags, groups, kept, correction, scale",
    [
        (5, 2, 0, 0, 0, False, 1),
        (60, 6, _c.RENORMALISE, 0, 0, False, 1),
        (48, 5, 0, 8, 3, False, 16),
        (64, 8, _c.SIGMOID | _c.RENORMALISE, 8, 4, True, 2.5),
        (8, 3, _c.SIGMOID, 8, 4, True, 1),  # groups of one expert
    ],
)
def test_route(place, experts, chosen, flags, groups, kept, correction, scale):
    rows, stride = 7, experts + 3
    logits = RNG.standard_normal((rows, stride)).astype(np.float32)
    bias = (RNG.standard_normal(experts) * 0.3).astype(np.float32) if correction else None
    ids, weights = place.put(np.zeros((rows, chosen), np.int32)), place.put(np.zeros((rows, chosen), np.float32))
    args = _c.RouteArgs(
        rows=rows,
        experts=experts,
        chosen=chosen,
        groups=groups,
        kept_groups=kept,
        logits=_c.Matrix(place.put(logits), stride, _c.F32),
        correction=place.put(bias) if correction else None,
        ids=ids,
        weights=weights,
        scale=scale,
        flags=flags,
    )
    place.run("route", args)
    for r in range(rows):
        want, shares = drawn(logits[r, :experts].astype(np.float64), chosen, flags & _c.SIGMOID,
                             flags & _c.RENORMALISE, bias, max(groups, 1), max(kept, 1))
        np.testing.assert_array_equal(place.get(ids)[r], want)
        np.testing.assert_allclose(place.get(weights)[r], scale * shares, rtol=2e-6)  # exponentials and sums in f32
    for name, value, match in [
        ("chosen", experts + 1, f"chosen is {experts + 1}, but must be at most"),
        ("experts", 4097, "experts is 4097, but must be at most 4096"),
        ("groups", 7, f"groups is 7, but must divide the {experts} experts"),
        ("weights", None, "weights is null"),
        ("logits", _c.Matrix(args.logits.data, experts - 1, _c.F32), f"stride of logits is {experts - 1}"),
        ("logits", _c.Matrix(args.logits.data, stride, _c.BF16), "logits is BF16, but must be F32"),
        *([("flags", 0, "correction goes with the sigmoid")] if correction else []),
    ]:
        with pytest.raises(weft.UsageError, match=match):
            place.run("route", but(args, name, value))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1 = np.concatenate((E2M1, -E2M1))
CODES = np.arange(256)
E4M3 = np.where(CODES >> 3 & 15, (1 + (CODES & 7) / 8) * 2.0 ** ((CODES >> 3 & 15) - 7), (CODES & 7) * 2.0**-9)
E4M3 = np.where(CODES < 128, E4M3, -E4M3)


class OfExperts:
    """A matrix [n, k] of every expert in some format: its numbers, and the structures of the C interface."""

    def __init__(self, place, form, experts, n, k):
        shape, self.pitch, stride = (experts, n, k), 0, k
        scales = None
        if form == _c.MXFP4:
            codes = RNG.integers(0, 256, (experts, n * k // 2), np.uint8)
            powers = RNG.integers(122, 125, (experts, n * k // 32), np.uint8)
            self.pitch = n * k * 17 // 32 + 16  # with a gap
            bits = np.concatenate((codes, powers, np.zeros((experts, 16), np.uint8)), 1)
            numbers = E2M1[np.stack((codes & 15, codes >> 4), -1)].reshape(experts, -1, 32)
            self.numbers = (numbers * 2.0 ** (powers[..., None].astype(float) - 127)).reshape(shape)
        elif form == _c.E4M3FN:
            bits = RNG.integers(0, 256, shape, np.uint8)
            bits[bits & 127 == 127] = 0  # NaN
            scales = (RNG.standard_normal((experts, -(-n // 128), -(-k // 128))) / 400).astype(np.float32)
            self.numbers = E4M3[bits] * scales.repeat(128, 1)[:, :n].repeat(128, 2)[:, :, :k]
        else:
            x = RNG.standard_normal(shape) / k**0.5
            bits, self.numbers = bf16(x) if form == _c.BF16 else 2 * (x.astype(np.float16),)
        self.numbers = self.numbers.astype(np.float64)
        self.bias = np.zeros((experts, n))
        self.matrix = _c.Matrix(place.put(bits), stride, form)
        self.more = _c.Experts(scales=scales is not None and place.put(scales) or None, pitch=self.pitch)

    def with_bias(self, place):
        bits, self.bias = bf16(RNG.standard_normal(self.bias.shape) * 0.3)
        self.more.bias = place.put(bits)


def experts_in_f64(x, ids, weights, gate, up, down, limit, unit):
    """What experts make of a row, and by how much the operation may differ: what lies between the products is rounded,
    by 2^-9 of itself at most, weights in eight bits by `unit`; sums are f32. Of a sum of errors that do not depend on
    each other, e at most, 6 sqrt(sum e^2) is passed once in 3e7 times (Hoeffding)."""
    expected, bound = np.zeros(down.bias.shape[1]), np.zeros(down.bias.shape[1])

    def product(m, e, a, off):
        w, b = m.numbers[e], m.bias[e]
        return w @ a + b, np.sqrt(w**2 @ (off**2 + (unit * a) ** 2)) + len(a) * 2**-24 * (abs(w) @ abs(a) + abs(b))

    for e, weight in zip(ids, weights, strict=True):
        (g, off_g), (u, off_u) = (product(m, e, x, 0 * x) for m in (gate, up))
        if limit:
            g, u = np.minimum(g, limit), np.clip(u, -limit, limit) + 1
        active = g * sigmoid(1.702 * g if limit else g)  # whose slope is 1.2 at most
        off = 1.2 * off_g * abs(u) + abs(active) * off_u + 2**-9 * abs(active * u)
        y, off_y = product(down, e, active * u, off)
        expected += weight * y
        bound += 6 * weight * off_y
    return expected, bound


@pytest.mark.parametrize("form", [_c.F16, _c.BF16, _c.E4M3FN, _c.MXFP4])
@pytest.mark.parametrize("rows", [1, 9, 40])
def test_moe(place, form, rows):
    chosen, experts, hidden, inner = 2, 5, 160, 96
    format = _c.F16 if form == _c.F16 else _c.BF16
    x = RNG.standard_normal((rows, hidden))
    x_bits, x = bf16(x) if format == _c.BF16 else 2 * (x.astype(np.float16),)
    gate, up = (OfExperts(place, form, experts, inner, hidden) for _ in range(2))
    down = OfExperts(place, form, experts, hidden, inner)
    limit = 1.5 if form == _c.MXFP4 else 0
    if form in (_c.BF16, _c.MXFP4):
        for each in (gate, up, down):
            each.with_bias(place)
    # All but the last row draw the first expert too, the last none of it.
    ids = np.array([[0, 1 + r % (experts - 1)] for r in range(rows - 1)] + [[4, 2]], np.int32)
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
        gate=gate.matrix,
        up=up.matrix,
        down=down.matrix,
        out=_c.Matrix(out, hidden, _c.F32),
        gate_experts=gate.more,
        up_experts=up.more,
        down_experts=down.more,
        limit=limit,
    )
    if form == _c.F16 and place.name in ("cpu", "cuda"):
        with pytest.raises(weft.DeviceError, match="AMD GPUs alone" if place.name == "cpu" else "cannot run on cuda"):
            place.run("moe", args)
        return
    place.run("moe", args)
    unit = 2**-9 if form == _c.E4M3FN else 0
    for r in range(rows):
        expected, bound = experts_in_f64(x[r].astype(np.float64), ids[r], weights[r], gate, up, down, limit, unit)
        assert (abs(place.get(out)[r] - expected) <= bound).all() and np.median(bound) < 0.25 * np.median(abs(expected))
    rounded = bf16(place.get(out))[0] if format == _c.BF16 else place.get(out).astype(np.float16).view(np.uint16)
    half = place.put(np.zeros((rows, hidden), np.uint16))
    place.run("moe", but(args, "out", _c.Matrix(half, hidden, format)))
    assert (place.get(half) == rounded).all()
    eight = form == _c.E4M3FN
    wrong = [
        ("inner", 41, "inner is 41"),
        ("chosen", 6, "chosen is 6, but must be at most 5"),
        ("ids", args.ids + 4, "ids is not aligned to 16 bytes"),
        ("a", _c.Matrix(args.a.data, hidden, _c.F32), "a is F32, but must be BF16 or F16"),
        ("out", _c.Matrix(out, hidden, _c.F16 + _c.BF16 - format), "out is B?F16, but must be F32 or B?F16"),
        ("limit", 2 if limit == 0 else -1, "limit is"),
        ("up", _c.Matrix(args.up.data, hidden, _c.BF16 if eight else _c.E4M3FN), "must be alike"),
        ("down_experts", _c.Experts(scales=None if eight else args.up.data, pitch=down.more.pitch), "but its scales"),
        ("gate_experts", _c.Experts(scales=gate.more.scales, pitch=gate.pitch + 1), "a multiple of 16"),
    ]
    if place.device is None:
        bad, twice = ids.copy(), ids.copy()
        bad[0, 1], twice[-1] = experts, 3
        wrong += [
            ("ids", place.put(bad), "row 0 of ids has expert 5, but there are 5"),
            ("ids", place.put(twice), f"row {rows - 1} of ids has expert 3 twice"),
        ]
    for name, value, match in wrong:
        with pytest.raises(weft.UsageError, match=match):
            place.run("moe", but(args, name, value))


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

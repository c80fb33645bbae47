"""Operations of the C interface that PyTorch's operators leave out, on the CPU, on simulated GPUs and, where there is
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

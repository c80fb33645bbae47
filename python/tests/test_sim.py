"""weft.sim: code objects on a simulated GPU, counters, findings."""

import pytest

np = pytest.importorskip("numpy", reason="numpy is not installed")

import weft  # noqa: E402
from weft import _c  # noqa: E402
from weft.export import Recorder, code_object  # noqa: E402


@pytest.fixture(params=["gfx942", "gfx950"])
def gpu(request):
    try:
        device = weft.sim.Device(request.param)
    except weft.DeviceError as error:
        pytest.skip(str(error))
    with device:
        yield device


def test_memory_is_numpys(gpu):
    with gpu.array(np.arange(12, dtype=np.int32).reshape(3, 4)) as buffer:
        assert buffer.array.sum() == 66 and buffer.address % 4096 == 0
        buffer.array[1, 2] = 100
        assert buffer.array.sum() == 160
    assert not gpu.empty((2, 2)).array.any()


def launch_of_swiglu(gpu, gate, up, out):
    """The launch that the operation makes for these buffers."""
    rows, columns = out.array.shape
    args = _c.RowsArgs(
        rows=rows,
        columns=columns,
        x=_c.Matrix(gate.address, columns, _c.F16),
        up=_c.Matrix(up.address, columns, _c.F16),
        out=_c.Matrix(out.address, columns, _c.F16),
    )
    with Recorder(gpu.target) as recorder:
        (launch,) = recorder.launches("swiglu_quant", args)
    return launch


def test_runs_a_kernel_and_counts(gpu):
    rng = np.random.default_rng(1)
    values = rng.standard_normal((2, 4, 256)).astype(np.float16)
    gate, up, out = gpu.array(values[0]), gpu.array(values[1]), gpu.empty((4, 256), np.float16)
    launch = launch_of_swiglu(gpu, gate, up, out)
    kernel = gpu.load(code_object("swiglu_quant", gpu.target), launch.kernel)
    assert kernel.resources["vgprs"] > 0 and kernel.resources["vgpr_spills"] == 0
    report = kernel.launch_packed(launch.grid, launch.block, launch.arguments).check()
    x = values.astype(np.float64)
    expected = x[0] / (1 + np.exp(-x[0])) * x[1]
    np.testing.assert_allclose(out.array, expected, rtol=2**-9, atol=1e-6)
    assert report.counters["hbm_bytes_read"] >= values.nbytes
    assert report.counters["waves"] > 0 and report.bound > 0 and report.bound_by


def test_a_fault_is_found(gpu):
    gate, up, out = (gpu.empty((4, 256), np.float16) for _ in range(3))
    launch = launch_of_swiglu(gpu, gate, up, out)
    kernel = gpu.load(code_object("swiglu_quant", gpu.target), launch.kernel)
    out.close()  # the kernel writes to what is no longer there
    report = kernel.launch_packed(launch.grid, launch.block, launch.arguments)
    assert report.findings and "swiglu" in report.findings[0]
    with pytest.raises(weft.WeftError):
        report.check()


def test_refusals_are_sentences(gpu):
    code = code_object("swiglu_quant", gpu.target)
    with pytest.raises(weft.InputError, match="nothing_like_it"):
        gpu.load(code, "nothing_like_it")
    with pytest.raises(weft.InputError):
        gpu.load(b"\x7fELF" + bytes(100))
    with pytest.raises(weft.UsageError, match="gfx90a"):
        weft.sim.Device("gfx90a")
    gate = gpu.empty((4, 256), np.float16)
    kernel = gpu.load(code, launch_of_swiglu(gpu, gate, gate, gate).kernel)
    with pytest.raises(weft.UsageError, match="arguments"):
        kernel[1, 64](1, 2, 3, 4, 5)
    other = "gfx950" if gpu.target == "gfx942" else "gfx942"
    with pytest.raises(weft.InputError):
        gpu.load(code_object("swiglu_quant", other))

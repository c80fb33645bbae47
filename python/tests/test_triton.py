"""The example that compiles Triton's kernels for AMD GPUs and runs them on the simulator."""

import importlib.util
import pathlib

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")
pytest.importorskip("triton", reason="triton is not installed: scripts/setup python brings it")

import weft  # noqa: E402

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "triton_on_amd.py"
_spec = importlib.util.spec_from_file_location("triton_on_amd", EXAMPLE)
example = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(example)

test_matmul = example.test_matmul
test_softmax = example.test_softmax
test_flash_attention = example.test_flash_attention
test_atomics = example.test_atomics


@pytest.fixture(params=["gfx942", "gfx950"])
def gpu(request):
    try:
        device = weft.sim.Device(request.param)
    except weft.DeviceError as error:
        pytest.skip(str(error))
    with device:
        yield device


def test_a_race_is_found(gpu):
    """Without the atomic operation the counts are wrong, and the simulator says why."""
    import numpy as np
    import triton
    import triton.language as tl

    global racy

    @triton.jit
    def racy(x, counts, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, at < n, 0)
        tl.store(counts + value, tl.load(counts + value) + 1, at < n)

    with pytest.raises(weft.WeftError, match="racy"):
        example.launch(gpu, racy, 4, np.zeros(1000, np.int32), np.zeros(16, np.int32), 1000, BLOCK=256)

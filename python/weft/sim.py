"""AMD GPUs in software: check a kernel in pytest, on a machine that has none.

    import numpy as np, weft
    gpu = weft.sim.Device("gfx942")
    kernel = gpu.load(code_object)                    # bytes, or the path of a .co, .hsaco, or bundle
    out = np.zeros(n, np.float32)
    report = kernel[grid, threads](x, y, out, n)      # arrays are copied there and back
    assert not report.findings, report.findings[0]

The simulator executes the kernel's instructions and looks for reads of what was never written, missing waits,
races, addresses in no allocation. What it counts is exact; it tells no time.
"""

import contextlib
import ctypes
import dataclasses
import os
import pathlib
import struct

import numpy as np

from weft import _c
from weft._c import lib


@dataclasses.dataclass(frozen=True)
class Report:
    """What a launch did wrong, a sentence each, and what it counted."""

    findings: list
    counters: dict
    bound: float  # the least seconds that the counts allow: never a measurement
    bound_by: str  # "HBM", "matrix", "LDS" or "issue"

    def check(self):
        """This report, if there are no findings; else a WeftError with the first."""
        if self.findings:
            more = f" (and {len(self.findings) - 1} more)" if len(self.findings) > 1 else ""
            raise _c.WeftError(self.findings[0] + more)
        return self


class Buffer(_c.Owner):
    """Memory of a simulated GPU. `array` is that memory itself, as numpy has it."""

    def __init__(self, device, shape, dtype):
        super().__init__(None)
        self._device = device
        count = int(np.prod(shape, dtype=np.int64))
        size = max(count * np.dtype(dtype).itemsize, 1)
        address = ctypes.c_void_p()
        lib.weft_sim_allocate(device.handle, size, ctypes.byref(address))
        super().__init__(address)
        raw = (ctypes.c_uint8 * size).from_address(address.value)
        self.array = np.frombuffer(raw, dtype, count).reshape(shape)

    @property
    def address(self):
        return self.handle.value

    def close(self):
        handle, self._handle = getattr(self, "_handle", None), None
        if handle and self._device._handle:
            self.array = None
            lib.weft_sim_free(self._device.handle, handle)


class Device(_c.Owner):
    """A GPU: "gfx942" (MI300X) or "gfx950" (MI355X)."""

    _close = "weft_sim_close"

    def __init__(self, target):
        super().__init__(None)
        self.target = target
        super().__init__(_c.opened(lib.weft_sim_open, target.encode()))

    def load(self, code, name=None):
        """A kernel of a code object: bytes of an ELF file or offload bundle, or a path to one. `name`: which,
        where it has several."""
        if isinstance(code, (str, os.PathLike)):
            code = pathlib.Path(code).read_bytes()
        return Kernel(self, code, name)

    def empty(self, shape, dtype=np.float32):
        """Memory that nothing was written to: the simulator zeroes it."""
        return Buffer(self, shape, dtype)

    def array(self, values):
        """Memory with a copy of an array."""
        values = np.asarray(values)
        buffer = Buffer(self, values.shape, values.dtype)
        buffer.array[...] = values
        return buffer


class Kernel(_c.Owner):
    """A kernel of a loaded code object. `kernel[grid, block]` makes a launch of it, with `block` threads a
    workgroup; each is a number or a tuple of up to three."""

    _close = "weft_sim_kernel_close"

    def __init__(self, device, code, name):
        super().__init__(None)
        self.device = device
        encoded = None if name is None else name.encode()
        super().__init__(_c.opened(lib.weft_sim_load, device.handle, code, len(code), encoded))
        info = _c.SimKernelInfo()
        lib.weft_sim_kernel_describe(self.handle, ctypes.byref(info))
        self.name = info.name.decode()
        self.resources = {
            field: getattr(info, field)
            for field, _ in _c.SimKernelInfo._fields_
            if field not in ("name", "arguments", "argument_bytes")
        }
        self.argument_bytes = info.argument_bytes
        self.arguments = []  # (offset, bytes, kind) of each explicit one
        for index in range(info.arguments):
            offset, size, kind = ctypes.c_uint32(), ctypes.c_uint32(), ctypes.c_char_p()
            lib.weft_sim_kernel_argument(
                self.handle, index, ctypes.byref(offset), ctypes.byref(size), ctypes.byref(kind)
            )
            self.arguments.append((offset.value, size.value, kind.value.decode()))

    def __getitem__(self, shape):
        grid, block = shape
        return lambda *arguments, **options: self.launch(grid, block, *arguments, **options)

    def launch(self, grid, block, *arguments, lds=0, sanitize=True, seed=0):
        """Runs it to its end: a Report. Arguments as the kernel's metadata has them: a numpy array (copied
        there and, where it is writable, back), a Buffer, an address, a number, or packed bytes. `lds`: bytes
        beside those it declares. `seed`: not 0 for waves in a random order and caches that keep old copies."""
        if len(arguments) != len(self.arguments):
            raise _c.UsageError(
                f"{self.name} takes {len(self.arguments)} arguments, {len(arguments)} were given"
            )
        with contextlib.ExitStack() as copies:
            packed = bytearray(self.argument_bytes)
            arrays = []
            for value, (offset, size, kind) in zip(arguments, self.arguments, strict=True):
                if isinstance(value, np.ndarray):
                    buffer = copies.enter_context(self.device.array(value))
                    arrays.append((value, buffer))
                    value = buffer
                packed[offset : offset + size] = _pack(self.name, value, size, kind)
            report = self.launch_packed(grid, block, bytes(packed), lds, sanitize, seed)
            for array, buffer in arrays:
                if array.flags.writeable:
                    array[...] = buffer.array
        return report

    def launch_packed(self, grid, block, packed, lds=0, sanitize=True, seed=0):
        """The same with arguments that are packed already."""
        args = _c.SimLaunchArgs(
            grid=_three(grid),
            block=_three(block),
            lds=lds,
            sanitize=sanitize,
            seed=seed,
            arguments=ctypes.cast(ctypes.c_char_p(packed), ctypes.c_void_p),
            argument_bytes=len(packed),
        )
        out = _c.SimReport()
        lib.weft_sim_run(self.handle, ctypes.byref(args), ctypes.byref(out))
        return Report(
            [out.findings[i].decode() for i in range(out.finding_count)],
            {out.counters[i].name.decode(): out.counters[i].value for i in range(out.counter_count)},
            out.bound,
            out.bound_by.decode(),
        )


def _three(shape):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    return (ctypes.c_uint32 * 3)(*shape, *(1,) * (3 - len(shape)))


def _pack(name, value, size, kind):
    """An argument's bytes."""
    if isinstance(value, (bytes, bytearray)):
        packed = bytes(value)
    elif isinstance(value, Buffer):
        packed = struct.pack("<Q", value.address)
    elif isinstance(value, np.generic):
        packed = value.tobytes()
    elif isinstance(value, float):
        packed = struct.pack({2: "<e", 4: "<f", 8: "<d"}.get(size, "<d"), value)
    elif isinstance(value, int):
        packed = value.to_bytes(size, "little", signed=value < 0)
    else:
        raise _c.UsageError(f"{name}: an argument cannot be a {type(value).__name__}")
    if len(packed) != size:
        raise _c.UsageError(f"{name}: an argument of {size} bytes ({kind}) was given {len(packed)}")
    return packed

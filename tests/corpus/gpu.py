"""A GPU through HIP's module API, and Triton's compiler as its driver would call it.

Any `libamdhip64.so` will do; the simulator's (libweft-amdhip64.so) also counts and accuses.
"""

import ctypes
import dataclasses
import os
import pathlib
import re
import struct
import time

import ml_dtypes
import numpy as np
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Triton's names of element types.
TYPES = {
    np.dtype(np.int8): "i8",
    np.dtype(np.int16): "i16",
    np.dtype(np.int32): "i32",
    np.dtype(np.int64): "i64",
    np.dtype(np.uint8): "u8",
    np.dtype(np.uint16): "u16",
    np.dtype(np.uint32): "u32",
    np.dtype(np.uint64): "u64",
    np.dtype(np.bool_): "i1",
    np.dtype(np.float16): "fp16",
    np.dtype(np.float32): "fp32",
    np.dtype(np.float64): "fp64",
    np.dtype(ml_dtypes.bfloat16): "bf16",
    np.dtype(ml_dtypes.float8_e4m3fn): "fp8e4nv",
    np.dtype(ml_dtypes.float8_e4m3fnuz): "fp8e4b8",
    np.dtype(ml_dtypes.float8_e5m2): "fp8e5",
    np.dtype(ml_dtypes.float8_e5m2fnuz): "fp8e5b16",
}
# The types that `weft bench kernel` fills memory with, for these.
BENCH_TYPES = {"fp64": "f64", "fp32": "f32", "fp16": "f16", "bf16": "bf16"}
# Launches return when they have ended, so that their time and their findings are their own.
os.environ["HIP_LAUNCH_BLOCKING"] = "1"
TO_DEVICE, TO_HOST = 1, 2
MINOR_VERSION = 61  # hipDeviceAttributeComputeCapabilityMinor
PACKED, PACKED_BYTES, PACKED_END = 1, 2, 3  # HIP_LAUNCH_PARAM_...
# Classes of instructions, as the simulator prints them, that run on vector lanes.
VECTOR = (
    "vector",
    "vector, quarter rate",
    "matrix",
    "LDS",
    "vector load",
    "vector store",
    "vector atomic",
)


class LaunchFailed(Exception):
    """A launch that HIP calls failed, with the simulator's findings where it has any."""


class Array:
    """A numpy array's copy in the device's memory."""

    def __init__(self, gpu, values):
        self.gpu = gpu
        self.shape = values.shape
        self.dtype = values.dtype
        self.bytes = values.nbytes
        self.address = ctypes.c_void_p()
        gpu.call("hipMalloc", ctypes.byref(self.address), ctypes.c_size_t(max(1, self.bytes)))
        data = np.ascontiguousarray(values)
        gpu.call(
            "hipMemcpy",
            self.address,
            ctypes.c_void_p(data.ctypes.data),
            ctypes.c_size_t(self.bytes),
            TO_DEVICE,
        )

    def numpy(self):
        values = np.empty(self.shape, self.dtype)
        self.gpu.call(
            "hipMemcpy",
            ctypes.c_void_p(values.ctypes.data),
            self.address,
            ctypes.c_size_t(self.bytes),
            TO_HOST,
        )
        return values

    def free(self):
        self.gpu.call("hipFree", self.address)


@dataclasses.dataclass
class Counts:
    """What a GPU did so far. `vector` and `matrix` are wave-instructions."""

    launches: int = 0
    vector: int = 0
    matrix: int = 0
    seconds: float = 0.0  # of processor time, in launches alone


class Gpu:
    """One simulated GPU of a target. Arrays live until `release()`. `keep`: a folder that gets each
    launch's code object, and commands.txt, which runs them again with `weft bench kernel`."""

    def __init__(self, library, target, keep=None):
        self.keep = keep
        self.hip = ctypes.CDLL(library)
        self.hip.hipGetErrorName.restype = ctypes.c_char_p
        for name in ("weft_sim_findings", "weft_sim_counters"):
            getattr(self.hip, name).restype = ctypes.c_char_p
        self.target = target
        self.arrays = []
        self.modules = {}
        self.counts = Counts()
        self.call("hipInit", 0)
        count = ctypes.c_int()
        self.call("hipGetDeviceCount", ctypes.byref(count))
        for device in range(count.value):
            minor = ctypes.c_int()
            self.call("hipDeviceGetAttribute", ctypes.byref(minor), MINOR_VERSION, device)
            if minor.value == {"gfx942": 4, "gfx950": 5}[target]:
                self.call("hipSetDevice", device)
                return
        raise RuntimeError(f"{library} has no {target}.")

    def call(self, name, *arguments):
        error = getattr(self.hip, name)(*arguments)
        if error != 0:
            findings = (
                self.hip.weft_sim_findings().decode().splitlines()
                if name == "hipModuleLaunchKernel"
                else []
            )
            more = f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""
            raise LaunchFailed(
                f"{name}: {self.hip.hipGetErrorName(error).decode()}. {''.join(findings[:1])}{more}"
            )

    def array(self, values):
        self.arrays.append(Array(self, np.asarray(values)))
        return self.arrays[-1]

    def empty(self, shape, dtype=np.float32):
        """Memory full of 0xa5: what a kernel forgets to write is seen."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        dtype = np.dtype(dtype)
        bytes_ = int(np.prod(shape)) * dtype.itemsize
        return self.array(np.full(bytes_, 0xA5, np.uint8).view(dtype).reshape(shape))

    def zeros(self, shape, dtype=np.float32):
        return self.array(np.zeros(shape, dtype))

    def release(self):
        for array in self.arrays:
            array.free()
        self.arrays = []

    def compile(self, kernel, arguments, constants, options):
        """What Triton's launcher compiles for these arguments: pointers to 16-byte boundaries in
        less than 2 GB, integers that are multiples of 16 known as such."""
        names = kernel.arg_names
        values = dict(zip([n for n in names if n not in constants], arguments, strict=True))
        signature, attributes = {}, {}
        for index, name in enumerate(names):
            value = values.get(name)
            if name in constants:
                signature[name] = "constexpr"
            elif isinstance(value, Array):
                signature[name] = "*" + TYPES[value.dtype]
                attributes[(index,)] = [["tt.divisibility", 16], ["tt.pointer_range", 32]]
            elif isinstance(value, float):
                signature[name] = "fp32"
            else:
                signature[name] = "i64" if abs(value) >= 2**31 else "i32"
                if value % 16 == 0:
                    attributes[(index,)] = [["tt.divisibility", 16]]
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes)
        return (
            triton.compile(source, target=GPUTarget("hip", self.target, 64), options=options),
            signature,
        )

    def launch(self, kernel, grid, *arguments, options=None, **constants):
        """Compiles and runs a Triton kernel. `options`: num_warps, num_stages and the like."""
        # fp_fusion: said, because Triton is about to change what it does unasked.
        options = {"num_warps": 4, "num_stages": 2, "enable_fp_fusion": True, **(options or {})}
        compiled, signature = self.compile(kernel, arguments, constants, options)
        meta = compiled.metadata
        function = self.function(compiled.asm["hsaco"], meta.name)
        packed = b""
        kinds = [k for k in signature.values() if k != "constexpr"]
        grid = tuple(grid) + (1,) * (3 - len(grid))
        # Behind the kernel's own arguments come two scratch buffers.
        scratch_sizes = (meta.global_scratch_size, meta.profile_scratch_size)
        scratch = [
            self.zeros(size * int(np.prod(grid)), np.uint8).address.value if size else 0
            for size in scratch_sizes
        ]
        for kind, value in zip(kinds + ["*i8", "*i8"], [*arguments, *scratch], strict=True):
            if kind[0] == "*":
                kind, value = "Q", value.address.value if isinstance(value, Array) else value
            form = {"fp32": "f", "i32": "i", "i64": "q"}.get(kind, kind)
            packed += b"\0" * (-len(packed) % struct.calcsize(form)) + struct.pack(
                "<" + form, value
            )
        if self.keep:
            sizes = [size * int(np.prod(grid)) for size in scratch_sizes]
            self.keep_launch(compiled, grid, list(zip(kinds, arguments, strict=True)), sizes)
        self.run(function, grid, 64 * meta.num_warps, meta.shared, packed)
        return compiled

    def keep_launch(self, compiled, grid, arguments, scratch_sizes):
        meta = compiled.metadata
        folder = pathlib.Path(self.keep)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{meta.name}-{self.counts.launches}.{self.target}.co"
        path.write_bytes(compiled.asm["hsaco"])
        texts = []
        for kind, value in arguments:
            if isinstance(value, Array):
                size = value.dtype.itemsize
                element = BENCH_TYPES.get(kind[1:], f"i{8 * size}")
                texts.append(f"{element}:{max(1, value.bytes // size)}")
            else:
                texts.append(f"{BENCH_TYPES.get(kind, kind)}={value!r}")
        texts += [f"i8:{size}" if size else "i64=0" for size in scratch_sizes]
        with open(folder / "commands.txt", "a") as commands:
            print(
                f"weft bench kernel {path} --device sim:{self.target}",
                f"--grid {','.join(map(str, grid))} --block {64 * meta.num_warps}",
                f"--lds {meta.shared}",
                *texts,
                file=commands,
            )

    def function(self, code, name):
        if code not in self.modules:
            module = ctypes.c_void_p()
            self.call("hipModuleLoadData", ctypes.byref(module), code)
            function = ctypes.c_void_p()
            self.call("hipModuleGetFunction", ctypes.byref(function), module, name.encode())
            self.modules[code] = function
        return self.modules[code]

    def run(self, function, grid, threads, shared, packed):
        buffer = ctypes.create_string_buffer(packed, len(packed))
        size = ctypes.c_size_t(len(packed))
        extra = (ctypes.c_void_p * 5)(
            PACKED, ctypes.addressof(buffer), PACKED_BYTES, ctypes.addressof(size), PACKED_END
        )
        begin = time.process_time()
        self.call(
            "hipModuleLaunchKernel", function, *grid, threads, 1, 1, shared, None, None, extra
        )
        self.counts.seconds += time.process_time() - begin
        self.counts.launches += 1
        table = self.hip.weft_sim_counters().decode()
        counted = {
            name.strip(): int(n)
            for name, n in re.findall(r"^  (.{22}) +(\d+) *$", table, re.MULTILINE)
        }
        self.counts.vector += sum(counted.get(name, 0) for name in VECTOR)
        self.counts.matrix += counted.get("matrix", 0)

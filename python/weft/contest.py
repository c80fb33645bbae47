"""Kernels for contests: an operation as one file (export), and a contest's tests and ranking for any file
(evaluate). The problems are the AMD developer challenge's of 2025; Weft has an operation for the first."""

import base64
import ctypes
import dataclasses
import importlib.util
import json
import lzma
import math
import os
import pathlib
import pprint
import re
import struct
import sys
import time

from weft import _c, problems
from weft._c import lib


@dataclasses.dataclass(frozen=True)
class Launch:
    """A launch of an AMD kernel."""

    kernel: str
    grid: tuple
    block: tuple
    lds: int
    arguments: bytes


class Recorder(_c.Owner):
    """An AMD GPU that need not be here: operations plan for it, and say what they would launch."""

    _close = "weft_device_close"

    def __init__(self, target):
        super().__init__(None)
        self.target = target
        super().__init__(_c.opened(lib.weft_device_open, f"recorded:{target}".encode()))

    def launches(self, operation, args):
        out, count = (_c.Launch * 16)(), ctypes.c_size_t()
        lib.weft_launches(
            operation.encode(), ctypes.byref(args), self.handle, out, len(out), ctypes.byref(count)
        )
        return [
            Launch(
                each.kernel.decode(),
                tuple(each.grid),
                tuple(each.block),
                each.lds,
                ctypes.string_at(each.arguments, each.argument_bytes),
            )
            for each in out[: count.value]
        ]

    def workspace(self, operation, args):
        size = ctypes.c_size_t()
        lib.weft_workspace_bytes(
            operation.encode(), ctypes.byref(args), self.handle, ctypes.byref(size)
        )
        return size.value

    def plan(self, operation, args):
        text = ctypes.c_char_p()
        lib.weft_plan(operation.encode(), ctypes.byref(args), self.handle, ctypes.byref(text))
        return text.value.decode()


class Fp8Mm:
    """`amd-fp8-mm` of 2025: C[m, n] = sum of A[m, k] B[n, k] with a scale for 1 x 128 of A and 128 x 128 of B. All
    operands are column-major; scales are any float32, C is bfloat16."""

    leaderboard = "amd-fp8-mm"
    operation = "gemm_fp8_blockwise"
    rtol, atol = 2e-2, 1e-3
    tests = problems.shapes(
        "mnk",
        [
            (64, 64, 128),
            (64, 1536, 7168),
            (64, 3072, 1536),
            (64, 576, 7168),
            (96, 7168, 256),
            (96, 7168, 2048),
            (96, 4608, 7168),
            (128, 7168, 2304),
            (128, 512, 7168),
            (512, 4096, 512),
            (512, 1536, 7168),
        ],
    )
    benchmarks = problems.shapes(
        "mnk",
        [
            (m, n, k)
            for m in (1024, 6144)
            for n, k in (
                (1536, 7168),
                (3072, 1536),
                (576, 7168),
                (7168, 256),
                (7168, 2048),
                (4608, 7168),
                (7168, 2304),
                (512, 7168),
                (4096, 512),
            )
        ],
    )

    @staticmethod
    def inputs(shape, seed, fp8):
        """The operands as custom_kernel(data) gets them, on the CPU."""
        import torch

        m, n, k = shape["m"], shape["n"], shape["k"]
        generator = torch.Generator().manual_seed(seed)

        def normal(*size):
            return torch.randn(size, generator=generator)

        a, b = (normal(k, rows).bfloat16().to(fp8) for rows in (m, n))
        a_scale, b_scale = normal(k // 128, m), normal(k // 128, -(-n // 128))
        c = torch.zeros(m, n, dtype=torch.bfloat16)
        return a.t(), b.t(), a_scale.t(), b_scale.t(), c

    @staticmethod
    def expected(data):
        from weft import reference

        return (reference.gemm_fp8_blockwise(*data[:4]),)

    @staticmethod
    def results(returned):
        """What is compared with expected()."""
        return (returned,)

    @staticmethod
    def arguments(shape, target, pointers):
        """The operation's arguments for operands at these addresses."""
        m, n, k = shape["m"], shape["n"], shape["k"]
        fp8 = _c.E4M3FNUZ if target == "gfx942" else _c.E4M3FN
        a, b, a_scale, b_scale, c, workspace = pointers
        return _c.GemmArgs(
            m=m,
            n=n,
            k=k,
            a=_c.Matrix(a, m, fp8),
            b=_c.Matrix(b, n, fp8),
            out=_c.Matrix(c, n, _c.BF16),
            a_scale=_c.Scales(a_scale, 1, m),
            b_scale=_c.Scales(b_scale, 1, -(-n // 128)),
            workspace=_c.Workspace(workspace, 1 << 40),
            scaling=_c.SCALE_BLOCK,
            flags=_c.MN_MAJOR,
        )

    strides = "[(1, m), (1, n), (1, m), (1, -(-n // 128)), (n, 1)]"
    shape_of = 'm, n, k = data[0].shape[0], data[1].shape[0], data[0].shape[1]'
    outputs = 4  # the operand that custom_kernel() returns


PROBLEMS = (Fp8Mm, problems.MixtureOfExperts, problems.MlaDecode)
GPUS = {"gfx942": "MI300", "gfx950": "MI355X"}


def problem_named(name, of):
    for problem in PROBLEMS:
        if getattr(problem, of) == name:
            return problem
    known = ", ".join(filter(None, (getattr(p, of) for p in PROBLEMS)))
    raise _c.UsageError(f"{of} {name} is not known: write {known}")


# ---- Export ----

_TEMPLATE = '''\
#!POPCORN leaderboard {leaderboard}
#!POPCORN gpus {gpu}
"""{operation} for {target}, exported by Weft {version}. Apache License 2.0.

One code object, and for each of the contest's shapes the launches that Weft's planner chose.
"""

import base64
import ctypes
import lzma
import os
import re
import struct

import torch

# Shape: bytes of workspace, and launches: kernel, grid, block, bytes of LDS, packed arguments, and where in these
# which operand's address goes (the last one is the workspace).
LAUNCHES = {launches}

CODE = (
{code}
)

_hip = None
_functions = {{}}
_workspaces = {{}}


def _library():
    """The HIP that PyTorch has loaded, or the one that the environment names."""
    if path := os.environ.get("WEFT_HIP_LIBRARY"):
        return ctypes.CDLL(path)
    with open("/proc/self/maps") as maps:
        loaded = re.findall(r"(/\\S*libamdhip64\\.so\\S*)", maps.read())
    return ctypes.CDLL(loaded[0] if loaded else "libamdhip64.so")


def _call(name, *arguments):
    error = getattr(_hip, name)(*arguments)
    if error:
        _hip.hipGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"{{name}}: {{_hip.hipGetErrorString(error).decode()}}")


def _function(name):
    global _hip, _module
    if _hip is None:
        _hip = _library()
        _module = ctypes.c_void_p()
        _call("hipModuleLoadData", ctypes.byref(_module), lzma.decompress(base64.b85decode(CODE)))
    if name not in _functions:
        _functions[name] = ctypes.c_void_p()
        _call("hipModuleGetFunction", ctypes.byref(_functions[name]), _module, name.encode())
    return _functions[name]


def _workspace(size, stream):
    """Memory whose counters are zero, which every launch leaves so."""
    kept = _workspaces.get(stream)
    if kept is None or kept[1] < size:
        kept = (ctypes.c_void_p(), size)
        _call("hipMalloc", ctypes.byref(kept[0]), ctypes.c_size_t(size))
        _call("hipMemset", kept[0], 0, ctypes.c_size_t(size))
        _workspaces[stream] = kept
    return kept[0].value


def custom_kernel(data):
    {shape_of}
    if (m, n, k) not in LAUNCHES:
        raise ValueError(f"this file has no launch for m={{m}}, n={{n}}, k={{k}}: only for the contest's shapes")
    if [t.stride() for t in data] != {strides}:
        raise ValueError("the operands are not laid out as the contest says")
    size, launches = LAUNCHES[m, n, k]
    stream = torch.cuda.current_stream().cuda_stream if data[0].is_cuda else 0
    addresses = [t.data_ptr() for t in data]
    for kernel, grid, block, lds, packed, places in launches:
        function = _function(kernel)
        addresses[len(data):] = [_workspace(size, stream) if size else 0]
        arguments = bytearray(packed)
        for at, operand, offset in places:
            struct.pack_into("<Q", arguments, at, addresses[operand] + offset)
        buffer = (ctypes.c_char * len(arguments)).from_buffer(arguments)
        count = ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(count), 3)
        _call(
            "hipModuleLaunchKernel", function, *grid, *block, lds, ctypes.c_void_p(stream), None, extra
        )
    return data[{outputs}]
'''

# Addresses that stand for the operands while launches are recorded: no number of the arguments looks like one.
_FIRST_ADDRESS = 0x5EED_0000_0000_0000 >> 8
_APART = 1 << 40


def _places(arguments, count):
    """Where a launch's packed arguments have addresses: (at, operand, offset from its beginning)."""
    for at in range(0, len(arguments) - 7, 8):
        (value,) = struct.unpack_from("<Q", arguments, at)
        operand, offset = divmod(value - _FIRST_ADDRESS, _APART)
        if 0 <= operand < count:
            yield at, operand, offset


def recorded_launches(problem, shape, target):
    """The bytes of workspace and the launches of a shape, as LAUNCHES of an exported file has them."""
    operands = [_FIRST_ADDRESS + i * _APART for i in range(6)]
    args = problem.arguments(shape, target, operands)
    with Recorder(target) as recorder:
        size = recorder.workspace(problem.operation, args)
        launches = []
        for each in recorder.launches(problem.operation, args):
            places = list(_places(each.arguments, len(operands)))
            packed = bytearray(each.arguments)
            for at, _, _ in places:
                packed[at : at + 8] = bytes(8)
            launches.append((each.kernel, each.grid, each.block, each.lds, bytes(packed), places))
    return size, launches


def code_object(operation, target):
    """The ELF file of an operation's kernels."""
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.weft_code_object(
        operation.encode(), target.encode(), ctypes.byref(data), ctypes.byref(size)
    )
    return ctypes.string_at(data, size.value)


def export(operation, target="gfx942", form="popcorn"):
    """The text of one Python file with an operation's code for a target and custom_kernel(data)."""
    if form != "popcorn":
        raise _c.UsageError(f"form {form} is not known: write popcorn")
    if target not in GPUS:
        raise _c.UsageError(f"target {target} is not known: write gfx942 or gfx950")
    problem = problem_named(operation, "operation")
    launches = {}
    for shape in problem.tests + problem.benchmarks:
        launches[tuple(shape.values())] = recorded_launches(problem, shape, target)
    code = base64.b85encode(lzma.compress(code_object(operation, target), preset=9)).decode()
    import weft

    return _TEMPLATE.format(
        leaderboard=problem.leaderboard,
        gpu=GPUS[target],
        operation=operation,
        target=target,
        version=weft.__version__,
        launches=pprint.pformat(launches, width=110, sort_dicts=False),
        code="\n".join(f"    {code[i : i + 100]!r}" for i in range(0, len(code), 100)),
        shape_of=problem.shape_of,
        strides=problem.strides,
        outputs=problem.outputs,
    )


# ---- Evaluation ----


class Simulated:
    """The simulator behind HIP's functions: tensors lie in its memory, whose addresses are the host's too."""

    times = False

    def __init__(self, target):
        path = os.environ.get("WEFT_HIP_LIBRARY") or str(
            pathlib.Path(_c.library_path()).with_name("libweft-amdhip64.so")
        )
        if not os.path.exists(path):
            raise _c.DeviceError(f"{path} is not there: this build has no simulator")
        os.environ["WEFT_HIP_LIBRARY"] = path
        os.environ["WEFT_SIM_DEVICES"] = target
        self.hip = ctypes.CDLL(path)
        for name in ("weft_sim_findings", "weft_sim_counters", "hipGetErrorString"):
            getattr(self.hip, name).restype = ctypes.c_char_p
        self._check(self.hip.hipInit(0))
        self._check(self.hip.hipSetDevice(0))
        self.target = target

    def _check(self, error):
        if error:
            findings = self.hip.weft_sim_findings().decode()
            raise _c.WeftError(findings.split("\n")[0] or self.hip.hipGetErrorString(error).decode())

    def fp8(self):
        import torch

        return torch.float8_e4m3fnuz if self.target == "gfx942" else torch.float8_e4m3fn

    def place(self, tensor):
        """A copy in the simulator's memory, with the same strides; freed when the process ends."""
        import torch

        size = tensor.numel() * tensor.element_size()
        address = ctypes.c_void_p()
        self._check(self.hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(size)))
        raw = (ctypes.c_uint8 * size).from_address(address.value)
        placed = torch.frombuffer(raw, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return placed.copy_(tensor)

    def synchronize(self):
        self._check(self.hip.hipDeviceSynchronize())

    def count(self):
        """The last launch's bound and counts, as the simulator prints them."""
        return self.hip.weft_sim_counters().decode()


class Real:
    """The CPU, or a GPU of PyTorch's."""

    times = True

    def __init__(self, device):
        import torch

        self.device = device
        if device != "cpu" and not torch.cuda.is_available():
            raise _c.DeviceError(f"PyTorch has no {device} here")

    def fp8(self):
        import torch

        if torch.version.hip and "gfx942" in torch.cuda.get_device_properties(0).gcnArchName:
            return torch.float8_e4m3fnuz
        return torch.float8_e4m3fn

    def place(self, tensor):
        return tensor.to(self.device)

    def synchronize(self):
        if self.device != "cpu":
            import torch

            torch.cuda.synchronize()

    def seconds(self, work, runs):
        """Seconds of each of so many runs; on a GPU between events, with cold caches."""
        if self.device == "cpu":
            times = []
            for _ in range(runs):
                begin = time.perf_counter()
                work()
                times.append(time.perf_counter() - begin)
            return times
        import torch

        flush = torch.empty(512 << 20, dtype=torch.uint8, device=self.device)
        times = []
        for _ in range(runs):
            flush.zero_()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            work()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e-3)
        return times


def open_device(name):
    return Simulated(name[4:]) if name.startswith("sim:") else Real(name)


def load(file):
    """The module of a contest's file."""
    spec = importlib.util.spec_from_file_location("submission", file)
    module = importlib.util.module_from_spec(spec)
    # What contests' files import for the types of their arguments.
    sys.modules.setdefault("task", type(sys)("task"))
    for name in ("input_t", "output_t"):
        setattr(sys.modules["task"], name, tuple)
    sys.modules.setdefault("reference", type(sys)("reference"))
    for named in (problems.Config, problems.KVCache):
        setattr(sys.modules["reference"], named.__name__, named)
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise _c.InputError(f"{file} cannot be loaded: {error}") from error
    if not hasattr(module, "custom_kernel"):
        raise _c.InputError(f"{file} has no function custom_kernel(data)")
    return module


def wrong(problem, got, expected):
    """What is wrong with a result, or None: the contest's tolerances; NaN is right only where expected."""
    import torch

    if not isinstance(got, torch.Tensor):
        return f"the result is {got!r}, not a tensor"
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return f"the result is {got.dtype} {list(got.shape)}, not {expected.dtype} {list(expected.shape)}"
    good = torch.isclose(
        got.float(), expected.float(), rtol=problem.rtol, atol=problem.atol, equal_nan=True
    )
    if good.all():
        return None
    at = tuple((~good).nonzero()[0].tolist())
    return (
        f"element {list(at)} is {got[at].item()} and should be {expected[at].item()}; "
        f"{int((~good).sum())} of {good.numel()} are wrong"
    )


def placed(value, place):
    """Of what a problem's data are made of, with each tensor placed."""
    import torch

    if isinstance(value, torch.Tensor):
        return place(value)
    if isinstance(value, (tuple, list)):
        return type(value)(placed(each, place) for each in value)
    if isinstance(value, dict):
        return {key: placed(each, place) for key, each in value.items()}
    if dataclasses.is_dataclass(value):
        fields = {f.name: placed(getattr(value, f.name), place) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **fields)
    return value


def wrong_results(problem, returned, expected):
    """What is wrong with what custom_kernel() returned, or None."""
    try:
        results = problem.results(returned)
    except (TypeError, IndexError):
        results = ()
    if len(results) != len(expected):
        return f"custom_kernel() returned {type(returned).__name__}, which has not the {len(expected)} results"
    for i, (got, want) in enumerate(zip(results, expected, strict=True)):
        why = wrong(problem, placed(got, lambda t: t.cpu()), want)
        if why is not None:
            return f"result {i + 1}: {why}" if len(expected) > 1 else why
    return None


def run_shape(problem, kernel, device, shape, mode, seed=1234):
    """One shape's outcome: {"shape", "error", "seconds", "counts"}."""
    outcome = {"shape": shape, "error": None, "seconds": [], "counts": None}
    cpu_data = problem.inputs(shape, seed, device.fp8())
    expected = problem.expected(cpu_data)
    data = placed(cpu_data, device.place)
    again = getattr(problem, "again", lambda data: data)

    def work():
        return kernel(again(data))

    try:
        returned = work()
        device.synchronize()
    except (_c.WeftError, RuntimeError, ValueError) as error:
        outcome["error"] = str(error)
        return outcome
    outcome["error"] = wrong_results(problem, returned, expected)
    if not device.times:
        outcome["counts"] = device.count()
    elif mode in ("benchmark", "leaderboard") and outcome["error"] is None:
        device.seconds(work, 3)
        outcome["seconds"] = device.seconds(work, 30)
    elif mode == "once" and outcome["error"] is None:
        outcome["seconds"] = device.seconds(work, 1)
    elif mode == "profile" and outcome["error"] is None:
        outcome["counts"] = _profile(work)
    return outcome


def _profile(work):
    import torch

    with torch.profiler.profile() as profile:
        work()
    return profile.key_averages().table(row_limit=12)


def _text(shape):
    return ", ".join(f"{k}={v}" for k, v in shape.items())


def _shape(text, like):
    try:
        shape = {key: int(value) for key, value in (part.split("=") for part in text.split(","))}
    except ValueError:
        shape = None
    if shape is None or set(shape) != set(like):
        raise _c.UsageError(f"--shape {text} is none of this problem: write {_text(like)}")
    return shape


def describe(outcome, device, mode):
    """A line of an outcome, and below it what a profile or the simulator counted."""
    line = f"{_text(outcome['shape']):32}"
    if outcome["error"]:
        return f"{line} WRONG: {outcome['error']}"
    seconds = outcome["seconds"]
    if seconds:
        mean = sum(seconds) / len(seconds)
        line += f" mean {mean * 1e6:10.2f} us, best {min(seconds) * 1e6:10.2f}, slowest {max(seconds) * 1e6:10.2f}"
    elif outcome["counts"] and mode != "profile":
        bound = re.search(r"bound.*", outcome["counts"])
        line += f" {bound[0].strip() if bound else 'passed'}"
    else:
        line += " passed"
    return line + ("\n" + outcome["counts"] if mode == "profile" and outcome["counts"] else "")


def main(options):
    """`weft evaluate`. Exit code 1: something is wrong."""
    try:
        text = options.file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise _c.InputError(f"{options.file} cannot be read: {error}") from error
    named = re.search(r"#!POPCORN leaderboard (\S+)", text)
    name = options.problem or (named and named[1])
    if not name:
        raise _c.UsageError(f"{options.file} names no problem: give --problem with one of "
                            + ", ".join(p.leaderboard for p in PROBLEMS))
    problem = problem_named(name, "leaderboard")
    device = open_device(options.device)
    kernel = load(options.file).custom_kernel
    shapes = problem.tests if options.mode in ("test", "once", "profile") else problem.benchmarks
    if options.shape:
        shapes = [_shape(s, shapes[0]) for s in options.shape]
    outcomes = []
    for shape in shapes:
        outcomes.append(run_shape(problem, kernel, device, shape, options.mode))
        if not options.json:
            print(describe(outcomes[-1], device, options.mode), flush=True)
    failed = sum(o["error"] is not None for o in outcomes)
    means = [sum(o["seconds"]) / len(o["seconds"]) for o in outcomes if o["seconds"]]
    ranking = None
    if means and not failed and len(means) == len(outcomes):
        ranking = math.exp(sum(map(math.log, means)) / len(means))
    if options.json:
        print(json.dumps({"problem": name, "outcomes": outcomes, "geometric_mean": ranking}))
    else:
        best = f", best {min(means) * 1e6:.2f} us, slowest {max(means) * 1e6:.2f} us" if means else ""
        score = f", geometric mean {ranking * 1e6:.2f} us" if ranking else ""
        print(f"{name} on {options.device}: {len(outcomes) - failed} of {len(outcomes)} right{best}{score}")
    return 1 if failed else 0

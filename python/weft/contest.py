"""A contest's tests and ranking for any file. The problems are the AMD developer challenge's of 2025; weft.export
writes files for them."""

import contextlib
import ctypes
import dataclasses
import importlib.util
import json
import math
import os
import pathlib
import re
import sys
import time
import weakref

from weft import _c, problems


class Fp8Mm:
    """`amd-fp8-mm` of 2025: C[m, n] = sum of A[m, k] B[n, k] with a scale for 1 x 128 of A and 128 x 128 of B. All
    operands are column-major; scales are any float32, C is bfloat16."""

    leaderboard = "amd-fp8-mm"
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


PROBLEMS = (Fp8Mm, problems.MixtureOfExperts, problems.MlaDecode)


def problem_named(leaderboard):
    for problem in PROBLEMS:
        if problem.leaderboard == leaderboard:
            return problem
    known = ", ".join(p.leaderboard for p in PROBLEMS)
    raise _c.UsageError(f"leaderboard {leaderboard} is not known: write {known}")


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
        os.environ["HIP_LAUNCH_BLOCKING"] = "1"  # PyTorch's part is done by the CPU, which waits for no stream
        self.hip = ctypes.CDLL(path)
        for name in ("weft_sim_findings", "weft_sim_counters", "hipGetErrorString"):
            getattr(self.hip, name).restype = ctypes.c_char_p
        self._check(self.hip.hipInit(0))
        self._check(self.hip.hipSetDevice(0))
        self.target = target
        self._places = set()  # where tensors begin

    def _check(self, error):
        if error:
            findings = self.hip.weft_sim_findings().decode()
            raise _c.WeftError(findings.split("\n")[0] or self.hip.hipGetErrorString(error).decode())

    def fp8(self):
        import torch

        return torch.float8_e4m3fnuz if self.target == "gfx942" else torch.float8_e4m3fn

    def place(self, tensor):
        """A copy in the simulator's memory, with the same strides. What lies there stays, and so does what is empty."""
        import torch

        if tensor.untyped_storage().data_ptr() in self._places or tensor.numel() == 0:
            return tensor
        last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = (last + 1) * tensor.element_size()
        address = ctypes.c_void_p()
        self._check(self.hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(size)))
        self._places.add(address.value)
        raw = (ctypes.c_uint8 * size).from_address(address.value)
        weakref.finalize(raw, self._free, address.value).atexit = False  # the tensor's memory holds it
        placed = torch.frombuffer(raw, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
        return placed.copy_(tensor)

    def _free(self, address):
        self._places.remove(address)
        self.hip.hipFree(ctypes.c_void_p(address))

    def running(self):
        """While it is entered, every tensor that PyTorch makes lies in the simulator's memory."""
        from torch.utils._python_dispatch import TorchDispatchMode

        device = self

        class Placing(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                return placed(function(*args, **(kwargs or {})), device.place)

        return Placing()

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

    def running(self):
        return contextlib.nullcontext()

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
    first, count = None, 0
    rows = max(1, (1 << 24) // max(1, got[:1].numel()))  # at a time: caches are large
    for begin in range(0, len(got), rows):
        part = slice(begin, begin + rows)
        good = torch.isclose(
            got[part].float(), expected[part].float(), rtol=problem.rtol, atol=problem.atol, equal_nan=True
        )
        if good.all():
            continue
        count += int((~good).sum())
        if first is None:
            row, *rest = (~good).nonzero()[0].tolist()
            first = (begin + row, *rest)
    if first is None:
        return None
    return (
        f"element {list(first)} is {got[first].item()} and should be {expected[first].item()}; "
        f"{count} of {got.numel()} are wrong"
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
        with device.running():
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


def shape_of(text, like):
    """A shape as `--shape` has it: m=64,n=64,k=128."""
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
        line += f" passed, last launch: {bound[0].strip()}" if bound else " passed"
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
    problem = problem_named(name)
    device = open_device(options.device)
    kernel = load(options.file).custom_kernel
    shapes = problem.tests if options.mode in ("test", "once", "profile") else problem.benchmarks
    if options.shape:
        shapes = [shape_of(s, shapes[0]) for s in options.shape]
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

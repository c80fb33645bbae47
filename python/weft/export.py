"""A contest's problem as one file: code objects, the launches that Weft's planner chose for each of its shapes, and
custom_kernel(data). The file needs PyTorch and HIP, not Weft."""

import base64
import ctypes
import dataclasses
import inspect
import lzma
import pprint
import struct

from weft import _c, contest, problems
from weft._c import lib

TARGETS = {"gfx942": "MI300", "gfx950": "MI355X"}  # and what contests call the GPU


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


@dataclasses.dataclass(frozen=True)
class Step:
    """An operation that custom_kernel() runs, of one shape. `arguments` gives its structure for operands at these
    addresses, `operands` of them, and a workspace at the one behind them. `code`: operations whose kernels it
    launches; none: its own."""

    operation: str
    operands: int
    arguments: object
    code: tuple = ()

    @property
    def codes(self):
        return self.code or (self.operation,)


def _workspace(address):
    return _c.Workspace(address, 1 << 40)


# ---- What each problem's file does ----


class Fp8Mm:
    problem = contest.Fp8Mm
    about = "One operation."

    @staticmethod
    def steps(shape, target):
        m, n, k = shape["m"], shape["n"], shape["k"]
        fp8 = _c.E4M3FNUZ if target == "gfx942" else _c.E4M3FN

        def arguments(a, b, a_scale, b_scale, c, workspace):
            return _c.GemmArgs(
                m=m,
                n=n,
                k=k,
                a=_c.Matrix(a, m, fp8),
                b=_c.Matrix(b, n, fp8),
                out=_c.Matrix(c, n, _c.BF16),
                a_scale=_c.Scales(a_scale, 1, m),
                b_scale=_c.Scales(b_scale, 1, -(-n // 128)),
                workspace=_workspace(workspace),
                scaling=_c.SCALE_BLOCK,
                flags=_c.MN_MAJOR,
            )

        return {"product": Step("gemm_fp8_blockwise", 5, arguments)}

    text = '''
def custom_kernel(data):
    a, b, a_scale, b_scale, c = data
    m, n, k = a.shape[0], b.shape[0], a.shape[1]
    steps = _steps(m, n, k)
    if [t.stride() for t in data] != [(1, m), (1, n), (1, m), (1, -(-n // 128)), (n, 1)]:
        raise ValueError("the operands are not laid out as the contest says")
    _run(steps["product"], a, b, a_scale, b_scale, c)
    return c
'''


class MixtureOfExperts:
    problem = problems.MixtureOfExperts
    about = """Of Weft: the experts' products, with their matrices where and as they lie (rows sorted by expert, gate and up in
one kernel), and their sum. Of PyTorch: the router, which must draw as the contest's own does. Shared experts are experts
that all rows draw, with weight 1."""

    @staticmethod
    def steps(shape, target):
        hidden, inner = shape["dhidden"], shape["dexpert"]
        routed, shared = shape["nroutedexperts"], shape["nsharedexperts"]
        experts = routed + shared

        def arguments(x, ids, amounts, out, *others):
            *matrices, workspace = others

            def of(part, stride, shared_stride):
                strides = [stride] * routed + [shared_stride] * shared
                addresses = matrices[part * experts : (part + 1) * experts]
                each = (_c.Matrix(*m, _c.F16) for m in zip(addresses, strides, strict=True))
                return (_c.Matrix * experts)(*each)

            return _c.MoeLayerArgs(
                rows=shape["bs"] * shape["seqlen"],
                hidden=hidden,
                inner=inner,
                experts=experts,
                chosen=shape["nexpertspertoken"] + shared,
                x=_c.Matrix(x, hidden, _c.F16),
                gate=of(0, inner, inner * shared),
                up=of(1, inner, inner * shared),
                down=of(2, hidden, hidden),
                ids=ids,
                weights=amounts,
                out=_c.Matrix(out, hidden, _c.F16),
                workspace=_workspace(workspace),
            )

        return {"experts": Step("moe_layer", 4 + 3 * experts, arguments, ("moe", "moe_layer"))}

    text = '''
def custom_kernel(data):
    x, weights, config = data
    experts, shared = config["n_routed_experts"], config["n_shared_experts"]
    chosen = config["n_experts_per_token"]
    steps = _steps(
        x.shape[-1], config["d_expert"], experts, shared, chosen, x.shape[0], x.shape[1]
    )
    rows = x.reshape(-1, x.shape[-1])

    scores = torch.nn.functional.linear(rows, weights["router.weight"]).softmax(-1)
    probabilities, drawn = scores.topk(chosen, -1)
    drawn, order = drawn.sort(-1)  # summed in the order of their numbers
    ids = torch.empty(len(rows), chosen + shared, dtype=torch.int32, device=x.device)
    ids[:, :chosen] = drawn
    ids[:, chosen:] = torch.arange(experts, experts + shared, device=x.device)
    amounts = torch.ones(ids.shape, dtype=torch.float32, device=x.device)
    amounts[:, :chosen] = probabilities.gather(-1, order)

    def matrices(part):
        names = [*(f"experts.{i}" for i in range(experts)), *(["shared_experts"] if shared else [])]
        each = [weights[f"{name}.{part}.weight"].contiguous() for name in names]
        return [*each[:experts], *(m for s in each[experts:] for m in s.chunk(shared, 0 if part == 2 else 1))]

    out = torch.empty_like(rows)
    _run(steps["experts"], rows, ids, amounts, out, *matrices(0), *matrices(1), *matrices(2))
    return out.view(x.shape)
'''


class MlaDecode:
    problem = problems.MlaDecode
    about = """Of Weft: the projections (gemm_bf16) and attention over the latent rows (mla_decode, whose queries have been
multiplied into the rows' space, so that no key or value is made). Of PyTorch: these two products a head by torch.bmm, RoPE
with the contest's bfloat16 angles, and the rows with their keys turned, which the cache has as they were."""

    @staticmethod
    def steps(shape, target):
        batch, dim, dq = shape["batchsize"], shape["dim"], shape["dq"]
        heads, latent, turned, v = 128, 512, 64, 128
        row = latent + turned

        def product(n, k):
            def arguments(a, weight, out, workspace):
                return _c.GemmArgs(
                    m=batch,
                    n=n,
                    k=k,
                    a=_c.Matrix(a, k, _c.BF16),
                    b=_c.Matrix(weight, k, _c.BF16),
                    out=_c.Matrix(out, n, _c.BF16),
                    workspace=_workspace(workspace),
                )

            return Step("gemm_bf16", 3, arguments)

        def attention(q, rows, lengths, out, workspace):
            return _c.MlaArgs(
                batch=batch,
                tokens=1,
                heads=heads,
                q=_c.Matrix(q, heads * row, _c.BF16),
                cache=rows,
                blocks=batch,
                block_rows=-(-(shape["prefill"] + 1) // 64) * 64,
                lengths=lengths,
                out=_c.Matrix(out, heads * latent, _c.BF16),
                workspace=_workspace(workspace),
                scale=192**-0.5,
                cache_format=_c.BF16,
            )

        return {
            "kv_down": product(row, dim),
            "q_down": product(dq, dim),
            "q_up": product(heads * 192, dq),
            "attention": Step("mla_decode", 4, attention),
            "out": product(dim, heads * v),
        }

    # The angles are the problem's definition, word for word.
    text = "\n" + inspect.getsource(problems.rotated) + '''

def custom_kernel(data):
    config, x, cache = data
    batch, heads, latent, nope = len(x), config.n_heads, config.kv_lora_rank, config.qk_nope_head_dim
    steps = _steps(batch, config.dim, config.q_lora_rank, cache.seq_len)

    def product(step, a, weight):
        out = torch.empty(batch, weight.shape[0], dtype=x.dtype, device=x.device)
        _run(steps[step], a, weight, out)
        return out

    token = x.reshape(batch, -1)
    rows, length = cache(product("kv_down", token, config.KV_proj_down_weight)[:, None])
    q = product("q_up", product("q_down", token, config.Q_proj_down_weight), config.Q_proj_up_weight)
    q = q.view(batch, heads, -1)
    up = config.KV_proj_up_weight.view(heads, -1, latent)  # of a head: keys, then values

    queries = torch.empty(batch, heads, rows.shape[-1], dtype=x.dtype, device=x.device)
    queries[..., :latent] = torch.bmm(q[..., :nope].transpose(0, 1), up[:, :nope]).transpose(0, 1)
    queries[..., latent:] = rotated(q[..., None, nope:], length - 1)[:, :, 0]
    keys = torch.empty(batch, -(-length // 64) * 64, rows.shape[-1], dtype=x.dtype, device=x.device)
    keys[:, :length, :latent] = rows[..., :latent]
    keys[:, :length, latent:] = rotated(rows[..., latent:], 0)
    keys[:, length:] = 0
    lengths = torch.full((batch,), length, dtype=torch.int32, device=x.device)
    seen = torch.empty(batch, heads, latent, dtype=x.dtype, device=x.device)
    _run(steps["attention"], queries, keys, lengths, seen)

    values = torch.bmm(seen.transpose(0, 1), up[:, nope:].transpose(1, 2)).transpose(0, 1)
    y = product("out", values.reshape(batch, -1), config.wo_weight)
    return y.view(x.shape), cache.get_data()
'''


EXPORTS = {"gemm_fp8_blockwise": Fp8Mm, "moe": MixtureOfExperts, "mla_decode": MlaDecode}


# ---- The file ----

_HEAD = '''\
#!POPCORN leaderboard {leaderboard}
#!POPCORN gpus {gpu}
"""{name} for {target}, exported by Weft {version}. Apache License 2.0.

{about}
"""

import base64
import ctypes
import lzma
import os
import re
import struct

import torch

# Shape and step: bytes of workspace, and launches: operation that the kernel is of, kernel, grid, block, bytes of LDS,
# packed arguments, and where in these which operand's address goes (the last one is the workspace).
KEYS = {keys}
LAUNCHES = {launches}

# The code object of each operation.
CODE = {{
{code}
}}
'''

_RUNTIME = '''
_hip = None
_modules = {}
_functions = {}
_workspaces = {}


def _library():
    """The HIP that PyTorch has loaded, or the one that the environment names."""
    if path := os.environ.get("WEFT_HIP_LIBRARY"):
        return ctypes.CDLL(path)
    with open("/proc/self/maps") as maps:
        loaded = re.findall(r"(/\\S*libamdhip64\\.so\\S*)", maps.read())
    return ctypes.CDLL(loaded[0] if loaded else "libamdhip64.so")


def _call(name, *arguments):
    global _hip
    if _hip is None:
        _hip = _library()
    error = getattr(_hip, name)(*arguments)
    if error:
        _hip.hipGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"{name}: {_hip.hipGetErrorString(error).decode()}")


def _function(operation, name):
    if operation not in _modules:
        module = ctypes.c_void_p()
        _call("hipModuleLoadData", ctypes.byref(module), lzma.decompress(base64.b85decode(CODE[operation])))
        _modules[operation] = module
    if name not in _functions:
        function = ctypes.c_void_p()
        _call("hipModuleGetFunction", ctypes.byref(function), _modules[operation], name.encode())
        _functions[name] = function
    return _functions[name]


def _workspace(size, stream):
    """Memory whose first 64 KiB are zero, which every launch leaves so."""
    kept = _workspaces.get(stream)
    if kept is None or kept[1] < size:
        if kept is not None:
            _call("hipFree", kept[0])
        kept = (ctypes.c_void_p(), size)
        _call("hipMalloc", ctypes.byref(kept[0]), ctypes.c_size_t(size))
        _call("hipMemset", kept[0], 0, ctypes.c_size_t(min(size, 65536)))
        _workspaces[stream] = kept
    return kept[0].value


def _steps(*shape):
    if shape not in LAUNCHES:
        text = ", ".join(f"{key}={value}" for key, value in zip(KEYS, shape))
        raise ValueError(f"this file has no launch for {text}: only for the contest's shapes")
    return LAUNCHES[shape]


def _run(step, *operands):
    """Starts a step's launches on PyTorch's stream."""
    size, launches = step
    stream = torch.cuda.current_stream().cuda_stream if operands[0].is_cuda else 0
    addresses = [t.data_ptr() for t in operands] + [_workspace(size, stream) if size else 0]
    for operation, kernel, grid, block, lds, packed, places in launches:
        arguments = bytearray(packed)
        for at, operand, offset in places:
            struct.pack_into("<Q", arguments, at, addresses[operand] + offset)
        buffer = (ctypes.c_char * len(arguments)).from_buffer(arguments)
        count = ctypes.c_size_t(len(arguments))
        extra = (ctypes.c_void_p * 5)(1, ctypes.addressof(buffer), 2, ctypes.addressof(count), 3)
        _call(
            "hipModuleLaunchKernel",
            _function(operation, kernel),
            *grid,
            *block,
            lds,
            ctypes.c_void_p(stream),
            None,
            extra,
        )

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


def recorded(step, recorder):
    """A step's bytes of workspace and launches, as LAUNCHES of an exported file has them."""
    addresses = [_FIRST_ADDRESS + i * _APART for i in range(step.operands + 1)]
    args = step.arguments(*addresses)
    launches = []
    for each in recorder.launches(step.operation, args):
        places = list(_places(each.arguments, len(addresses)))
        packed = bytearray(each.arguments)
        for at, _, _ in places:
            packed[at : at + 8] = bytes(8)
        # A kernel has its operation's name before its own.
        code = max((c for c in step.codes if each.kernel.startswith(c + "_")), key=len)
        launches.append((code, each.kernel, each.grid, each.block, each.lds, bytes(packed), places))
    return recorder.workspace(step.operation, args), launches


def code_object(operation, target):
    """The ELF file of an operation's kernels."""
    data, size = ctypes.c_void_p(), ctypes.c_size_t()
    lib.weft_code_object(
        operation.encode(), target.encode(), ctypes.byref(data), ctypes.byref(size)
    )
    return ctypes.string_at(data, size.value)


def export(operation, target="gfx942", form="popcorn", shapes=()):
    """The text of one Python file with a problem's code for a target and custom_kernel(data), for the contest's shapes
    and `shapes` ("m=64,n=64,k=128")."""
    if form != "popcorn":
        raise _c.UsageError(f"form {form} is not known: write popcorn")
    if target not in TARGETS:
        raise _c.UsageError(f"target {target} is not known: write gfx942 or gfx950")
    of = EXPORTS.get(operation.replace("-", "_"))
    if of is None:
        raise _c.UsageError(f"operation {operation} is not known: write {', '.join(EXPORTS)}")
    problem = of.problem
    launches, operations = {}, {}
    with Recorder(target) as recorder:
        more = [contest.shape_of(text, problem.tests[0]) for text in shapes]
        for shape in problem.tests + problem.benchmarks + more:
            steps = of.steps(shape, target)
            launches[tuple(shape[key] for key in problem.tests[0])] = {
                name: recorded(step, recorder) for name, step in steps.items()
            }
            operations |= {code: None for step in steps.values() for code in step.codes}
    code = []
    for name in operations:
        text = base64.b85encode(lzma.compress(code_object(name, target), preset=9)).decode()
        lines = "\n".join(f"        {text[i : i + 100]!r}" for i in range(0, len(text), 100))
        code.append(f"    {name!r}: (\n{lines}\n    ),")
    import weft

    return (
        _HEAD.format(
            leaderboard=problem.leaderboard,
            gpu=TARGETS[target],
            name=operation,
            target=target,
            version=weft.__version__,
            about=of.about,
            keys=tuple(problem.tests[0]),
            launches=pprint.pformat(launches, width=110, sort_dicts=False),
            code="\n".join(code),
        )
        + _RUNTIME
        + of.text
    )

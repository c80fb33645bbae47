"""The C interface (include/weft/weft.h) by ctypes: its structures, its functions, its errors as exceptions."""

import ctypes
import os
import pathlib
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)

MAJOR = 1
F32, BF16, F16, E4M3FN, E4M3FNUZ, MXFP4 = range(6)
SCALE_NONE, SCALE_TENSOR, SCALE_ROW, SCALE_BLOCK = range(4)
ACCUMULATE, CONSTANT_B, MN_MAJOR, SIGMOID, RENORMALISE = 1, 2, 4, 8, 16
USAGE, INPUT, DEVICE, CANCELLED = 2, 3, 4, 5


class WeftError(RuntimeError):
    """What the library refused or could not do, as one sentence."""


class UsageError(WeftError, ValueError):
    """An argument is wrong."""


class InputError(WeftError, ValueError):
    """A file or text cannot be used."""


class DeviceError(WeftError):
    """A device is not here, or failed."""


class Cancelled(WeftError):
    """The call was cancelled."""


_ERRORS = {USAGE: UsageError, INPUT: InputError, DEVICE: DeviceError, CANCELLED: Cancelled}


class Sized(Structure):
    """A structure that begins with its own size."""

    def __init__(self, **members):
        super().__init__(size=ctypes.sizeof(self), **members)


class DeviceInfo(Structure):
    _fields_ = [
        ("id", c_char_p),
        ("name", c_char_p),
        ("target", c_char_p),
        ("missing", c_char_p),
        ("units", c_int32),
        ("keeps_time", c_int32),
        ("memory", c_uint64),
        ("bandwidth", c_double),
    ]


class Matrix(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("stride", c_int64),
        ("format", c_int32),
        ("reserved", c_int32),
    ]


class Scales(Structure):
    _fields_ = [("data", c_void_p), ("row_stride", c_int64), ("block_stride", c_int64)]


class Workspace(Structure):
    _fields_ = [("data", c_void_p), ("bytes", c_size_t)]


class GemmArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("m", c_int64),
        ("n", c_int64),
        ("k", c_int64),
        ("a", Matrix),
        ("b", Matrix),
        ("out", Matrix),
        ("a_scale", Scales),
        ("b_scale", Scales),
        ("workspace", Workspace),
        ("scaling", c_int32),
        ("flags", c_int32),
        ("groups", c_int64),
        ("group_of", c_void_p),
    ]


class RowsArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("columns", c_int64),
        ("x", Matrix),
        ("up", Matrix),
        ("residual", Matrix),
        ("weight", c_void_p),
        ("out", Matrix),
        ("scales", Scales),
        ("workspace", Workspace),
        ("scaling", c_int32),
        ("epsilon", c_float),
    ]


class MlaArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("tokens", c_int64),
        ("heads", c_int64),
        ("q", Matrix),
        ("cache", c_void_p),
        ("blocks", c_int64),
        ("block_rows", c_int64),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("lengths", c_void_p),
        ("out", Matrix),
        ("workspace", Workspace),
        ("scale", c_float),
        ("cache_format", c_int32),
    ]


class RouteArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("experts", c_int64),
        ("chosen", c_int64),
        ("groups", c_int64),
        ("kept_groups", c_int64),
        ("logits", Matrix),
        ("correction", c_void_p),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("scale", c_float),
        ("flags", c_int32),
    ]


class Experts(Structure):
    _fields_ = [
        ("scales", c_void_p),
        ("scales_pitch", c_int64),
        ("bias", c_void_p),
        ("pitch", c_int64),
    ]


class MoeArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("chosen", c_int64),
        ("experts", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("a", Matrix),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("gate", Matrix),
        ("up", Matrix),
        ("down", Matrix),
        ("out", Matrix),
        ("workspace", Workspace),
        ("gate_experts", Experts),
        ("up_experts", Experts),
        ("down_experts", Experts),
        ("limit", c_float),
        ("reserved", c_int32),
    ]


class MoeLayerArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("rows", c_int64),
        ("hidden", c_int64),
        ("inner", c_int64),
        ("experts", c_int64),
        ("chosen", c_int64),
        ("x", Matrix),
        ("router", Matrix),
        ("gate", POINTER(Matrix)),
        ("up", POINTER(Matrix)),
        ("down", POINTER(Matrix)),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("out", Matrix),
        ("workspace", Workspace),
        ("shared", c_int32),
        ("reserved", c_int32),
    ]


class MlaLayerArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("batch", c_int64),
        ("dim", c_int64),
        ("q_rank", c_int64),
        ("heads", c_int64),
        ("prefill", c_int64),
        ("capacity", c_int64),
        ("x", Matrix),
        ("q_down", Matrix),
        ("q_up", Matrix),
        ("kv_down", Matrix),
        ("kv_up", Matrix),
        ("o", Matrix),
        ("cache", c_void_p),
        ("angles", c_void_p),
        ("out", Matrix),
        ("workspace", Workspace),
        ("flags", c_int32),
        ("reserved", c_int32),
    ]


class Launch(Structure):
    _fields_ = [
        ("kernel", c_char_p),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("lds", c_uint32),
        ("reserved", c_uint32),
        ("arguments", c_void_p),
        ("argument_bytes", c_size_t),
    ]


class EngineOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("device", c_char_p),
        ("workers", c_int32),
        ("sequences", c_int32),
        ("context", c_int64),
        ("kv", c_int32),
        ("activations", c_int32),
        ("compressed", c_int32),
        ("reserved", c_int32),
    ]


class EngineInfo(Structure):
    _fields_ = [
        ("vocabulary", c_int64),
        ("layers", c_int64),
        ("hidden", c_int64),
        ("context", c_int64),
        ("sequences", c_int32),
        ("workers", c_int32),
    ]


ON_TOKEN = CFUNCTYPE(c_int32, c_void_p, c_size_t, c_int32)


class GenerateOptions(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("max_tokens", c_int64),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("ignore_eos", c_int32),
        ("seed", c_uint64),
        ("on_token", ON_TOKEN),
        ("user", c_void_p),
        ("cancel", POINTER(c_int32)),
    ]


class Tokens(Structure):
    _fields_ = [("ids", POINTER(c_int32)), ("count", c_size_t)]


class Generation(Structure):
    _fields_ = [
        ("ids", POINTER(c_int32)),
        ("count", c_size_t),
        ("stop", c_int32),
        ("reserved", c_int32),
        ("prefill_seconds", c_double),
        ("decode_seconds", c_double),
    ]


class SimKernelInfo(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("argument_bytes", c_uint32),
        ("arguments", c_uint32),
        ("vgprs", c_uint32),
        ("agprs", c_uint32),
        ("sgprs", c_uint32),
        ("vgpr_spills", c_uint32),
        ("sgpr_spills", c_uint32),
        ("lds_bytes", c_uint32),
        ("scratch_bytes", c_uint32),
        ("max_threads", c_uint32),
    ]


class SimLaunchArgs(Sized):
    _fields_ = [
        ("size", c_size_t),
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("lds", c_uint32),
        ("sanitize", c_int32),
        ("seed", c_uint64),
        ("arguments", c_void_p),
        ("argument_bytes", c_size_t),
    ]


class SimCount(Structure):
    _fields_ = [("name", c_char_p), ("value", c_double)]


class SimReport(Structure):
    _fields_ = [
        ("findings", POINTER(c_char_p)),
        ("finding_count", c_size_t),
        ("counters", POINTER(SimCount)),
        ("counter_count", c_size_t),
        ("bound", c_double),
        ("bound_by", c_char_p),
    ]


# Structures by their names in C, for the test of the binary interface.
STRUCTURES = {
    "weft_device_info": DeviceInfo,
    "weft_matrix": Matrix,
    "weft_scales": Scales,
    "weft_workspace": Workspace,
    "weft_gemm_args": GemmArgs,
    "weft_rows_args": RowsArgs,
    "weft_mla_args": MlaArgs,
    "weft_route_args": RouteArgs,
    "weft_experts": Experts,
    "weft_moe_args": MoeArgs,
    "weft_moe_layer_args": MoeLayerArgs,
    "weft_mla_layer_args": MlaLayerArgs,
    "weft_launch": Launch,
    "weft_engine_options": EngineOptions,
    "weft_engine_info": EngineInfo,
    "weft_generate_options": GenerateOptions,
    "weft_tokens": Tokens,
    "weft_generation": Generation,
    "weft_sim_kernel_info": SimKernelInfo,
    "weft_sim_launch_args": SimLaunchArgs,
    "weft_sim_count": SimCount,
    "weft_sim_report": SimReport,
}

_P = POINTER
# Every function that gives a status: the types of its parameters.
_STATUS = {
    "devices": [_P(DeviceInfo), c_size_t, _P(c_size_t)],
    "device_open": [c_char_p, _P(c_void_p)],
    "device_describe": [c_void_p, _P(DeviceInfo)],
    "allocate": [c_void_p, c_size_t, _P(c_void_p)],
    "free": [c_void_p, c_void_p],
    "upload": [c_void_p, c_void_p, c_void_p, c_size_t],
    "download": [c_void_p, c_void_p, c_void_p, c_size_t],
    "synchronize": [c_void_p],
    "gemm_bf16": [_P(GemmArgs), c_void_p, c_void_p],
    "gemm_fp8_blockwise": [_P(GemmArgs), c_void_p, c_void_p],
    "gemm_skinny": [_P(GemmArgs), c_void_p, c_void_p],
    "rmsnorm_quant": [_P(RowsArgs), c_void_p, c_void_p],
    "swiglu_quant": [_P(RowsArgs), c_void_p, c_void_p],
    "mla_decode": [_P(MlaArgs), c_void_p, c_void_p],
    "route": [_P(RouteArgs), c_void_p, c_void_p],
    "moe": [_P(MoeArgs), c_void_p, c_void_p],
    "moe_layer": [_P(MoeLayerArgs), c_void_p, c_void_p],
    "mla_layer": [_P(MlaLayerArgs), c_void_p, c_void_p],
    "mla_layer_angles": [c_int64, c_void_p],
    "workspace_bytes": [c_char_p, c_void_p, c_void_p, _P(c_size_t)],
    "plan": [c_char_p, c_void_p, c_void_p, _P(c_char_p)],
    "time": [c_char_p, c_void_p, c_void_p, c_int32, _P(c_double)],
    "code_object": [c_char_p, c_char_p, _P(c_void_p), _P(c_size_t)],
    "launches": [c_char_p, c_void_p, c_void_p, _P(Launch), c_size_t, _P(c_size_t)],
    "tokenizer_open": [c_char_p, _P(c_void_p)],
    "encode": [c_void_p, c_char_p, c_size_t, c_int32, _P(c_int32), c_size_t, _P(c_size_t)],
    "decode": [c_void_p, _P(c_int32), c_size_t, c_int32, c_char_p, c_size_t, _P(c_size_t)],
    "stream_decoder_open": [c_void_p, _P(c_char_p), c_size_t, _P(c_void_p)],
    "stream_decoder_push": [c_void_p, c_int32, _P(c_void_p), _P(c_size_t), _P(c_int32)],
    "engine_open": [c_char_p, _P(EngineOptions), _P(c_void_p)],
    "engine_describe": [c_void_p, _P(EngineInfo)],
    "generate": [c_void_p, _P(Tokens), c_size_t, _P(GenerateOptions), _P(Generation)],
    "score": [c_void_p, _P(c_int32), c_size_t, _P(c_int32), _P(c_double), _P(c_float)],
    "sim_open": [c_char_p, _P(c_void_p)],
    "sim_allocate": [c_void_p, c_size_t, _P(c_void_p)],
    "sim_free": [c_void_p, c_void_p],
    "sim_load": [c_void_p, c_void_p, c_size_t, c_char_p, _P(c_void_p)],
    "sim_kernel_describe": [c_void_p, _P(SimKernelInfo)],
    "sim_kernel_argument": [c_void_p, c_uint32, _P(c_uint32), _P(c_uint32), _P(c_char_p)],
    "sim_run": [c_void_p, _P(SimLaunchArgs), _P(SimReport)],
    "torch_register": [c_char_p],
}
# And the others: the type of the result before those of the parameters.
_OTHER = {
    "version": [c_int32],
    "error": [c_char_p],
    "device_close": [None, c_void_p],
    "device_stream": [c_void_p, c_void_p],
    "tokenizer_close": [None, c_void_p],
    "tokenizer_size": [c_int64, c_void_p],
    "stream_decoder_close": [None, c_void_p],
    "engine_close": [None, c_void_p],
    "sim_close": [None, c_void_p],
    "sim_kernel_close": [None, c_void_p],
}


def library_path():
    """libweft.so of this package, or the one that WEFT_LIBRARY in the environment names."""
    name = f"libweft.so.{MAJOR}"
    return pathlib.Path(os.environ.get("WEFT_LIBRARY") or pathlib.Path(__file__).parent / name)


def _load():
    path = library_path()
    if not path.exists():
        raise ImportError(
            f"{path} is not there: install the wheel, or name a built libweft.so in WEFT_LIBRARY"
        )
    # Ordinary calls let go of the interpreter's lock.
    library = ctypes.CDLL(str(path))

    def check(status, function, arguments):
        if status != 0:
            raise _ERRORS.get(status, WeftError)(library.weft_error().decode())

    for name, parameters in _STATUS.items():
        function = getattr(library, "weft_" + name)
        function.restype, function.argtypes, function.errcheck = c_int32, parameters, check
    for name, (result, *parameters) in _OTHER.items():
        function = getattr(library, "weft_" + name)
        function.restype, function.argtypes = result, parameters
    if library.weft_version() // 1000 != MAJOR:
        raise ImportError(
            f"{path} has version {library.weft_version() // 1000} of the interface, not {MAJOR}"
        )
    return library


lib = _load()
FUNCTIONS = tuple("weft_" + name for name in (*_STATUS, *_OTHER))


class Owner:
    """Holds a handle, and closes it when it goes or when it is told to."""

    _close = None  # the function that does

    def __init__(self, handle):
        self._handle = handle

    @property
    def handle(self):
        if not self._handle:
            raise UsageError(f"this {type(self).__name__} is closed")
        return self._handle

    def close(self):
        """Frees what it holds; it cannot be used any more."""
        handle, self._handle = getattr(self, "_handle", None), None
        if handle and lib is not None:
            getattr(lib, self._close)(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        self.close()


def opened(function, *arguments):
    """Calls what opens something; its handle."""
    handle = c_void_p()
    function(*arguments, ctypes.byref(handle))
    return handle

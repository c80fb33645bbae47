"""Weft: language models at the lowest latency, fast operations for PyTorch, and AMD kernels without a GPU.

    LLM            a model: generate, stream, score (weft.llm)
    ops, nn        operations for PyTorch's tensors, and modules (need torch)
    sim            AMD GPUs in software: run a code object, get counters and findings
    devices()      what there is here

Nothing of this needs a GPU's driver to be imported.
"""

import importlib

from weft._c import Cancelled, DeviceError, InputError, UsageError, WeftError
from weft.devices import Device, devices
from weft.llm import LLM, Generation, Score, Tokenizer

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Cancelled",
    "Device",
    "DeviceError",
    "Generation",
    "InputError",
    "Score",
    "Tokenizer",
    "UsageError",
    "WeftError",
    "devices",
    "nn",
    "ops",
    "replace_modules",
    "sim",
]


def __getattr__(name):
    # What stands on torch or numpy is imported when it is first used.
    if name in ("contest", "export", "nn", "ops", "sim"):
        return importlib.import_module(f"weft.{name}")
    if name == "replace_modules":
        return importlib.import_module("weft.nn").replace_modules
    raise AttributeError(f"module 'weft' has no attribute {name!r}")

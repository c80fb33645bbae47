"""The structures and functions that the package declares are those of the C interface."""

import ctypes
import pathlib

from weft import _c

ABI = pathlib.Path(__file__).resolve().parents[2] / "tests" / "capi" / "abi.txt"
LINES = [line.split() for line in ABI.read_text(encoding="utf-8").splitlines()]


def test_functions():
    names = {name for name, *layout in LINES if not layout}
    assert set(_c.FUNCTIONS) == names


def test_structures():
    layouts = {name: layout for name, *layout in LINES if len(layout) > 1}
    found = {}
    for name, structure in _c.STRUCTURES.items():
        offsets = [f"{m[0]}:{getattr(structure, m[0]).offset}" for m in structure._fields_]
        found[name] = [str(ctypes.sizeof(structure)), *offsets]
    assert found == layouts

"""What the tests share. They run on an installed wheel, or on this tree with WEFT_LIBRARY and PYTHONPATH."""

import pathlib
import signal

import pytest

# A shell lets what it starts in the background ignore Ctrl-C, and the tests of it would wait forever.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model():
    return ROOT / "models" / "weft-code"

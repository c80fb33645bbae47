"""What the tests share. They run on an installed wheel, or on this tree with WEFT_LIBRARY and PYTHONPATH."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def model():
    return ROOT / "models" / "weft-code"

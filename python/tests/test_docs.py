"""Every example of docs/python.md runs."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^    weft (.*)$", TEXT, re.MULTILINE)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example(number, monkeypatch):
    for name in ("numpy", "torch", "transformers"):
        if re.search(rf"^(import|from) {name}\b", EXAMPLES[number], re.MULTILINE):
            pytest.importorskip(name, reason=f"{name} is not installed")
    monkeypatch.chdir(ROOT)
    import weft

    try:
        exec(compile(EXAMPLES[number], f"example {number} of docs/python.md", "exec"), {})
    except weft.DeviceError as error:
        if "simulator" not in str(error):
            raise
        pytest.skip(str(error))


def test_the_page_has_them_all():
    assert len(EXAMPLES) == 5 and len(COMMANDS) == 3

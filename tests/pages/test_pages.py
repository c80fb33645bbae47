#!/usr/bin/env python3
"""Pages say what their data say, are short, and link to what is there.

    test_pages.py [WEFT]        (the command's path; run by ctest)

Each check is also shown a copy of the pages with one fault, and must notice it.
"""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else None
ROOT = pathlib.Path(__file__).resolve().parents[2]
LONGEST = {"README.md": 95, "docs/performance": 150}  # lines
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def performance_pages(root):
    return sorted((root / "docs" / "performance").glob("*.md"))


def make(root):
    """What docs/performance/make.py --check says; "" where all is as it should be."""
    run = subprocess.run([sys.executable, "-B", root / "docs" / "performance" / "make.py", "--check"],
                         capture_output=True, text=True, timeout=60)
    assert (run.returncode == 0) == (run.stdout + run.stderr == ""), run
    return run.stdout + run.stderr


def too_long(root):
    pages = [(root / "README.md", LONGEST["README.md"])]
    pages += [(page, LONGEST["docs/performance"]) for page in performance_pages(root)]
    return [page.name for page, most in pages if len(page.read_text(encoding="utf-8").splitlines()) > most]


def bad_charts(root):
    """Charts that are no SVG, have no size, or ask for something outside themselves."""
    bad = []
    for chart in sorted((root / "docs" / "performance").glob("*.svg")):
        try:
            svg = xml.etree.ElementTree.parse(chart).getroot()
        except xml.etree.ElementTree.ParseError:
            bad.append(chart.name)
            continue
        outside = any(key.endswith("href") for each in svg.iter() for key in each.attrib)
        if svg.tag != "{http://www.w3.org/2000/svg}svg" or "viewBox" not in svg.attrib or outside \
                or "url(" in chart.read_text(encoding="utf-8"):
            bad.append(chart.name)
    return bad


def broken_links(root):
    """Relative links of Markdown pages to nothing, and charts on no page."""
    broken, linked = [], set()
    for page in [*root.glob("*.md"), *(root / "docs").rglob("*.md")]:
        for target in LINK.findall(page.read_text(encoding="utf-8")):
            if "://" not in target:
                path = (page.parent / target).resolve()
                linked.add(path)
                if not path.exists():
                    broken.append(f"{page.relative_to(root)}: {target}")
    return broken + [chart.name for chart in (root / "docs").rglob("*.svg") if chart.resolve() not in linked]


class Pages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.copy = pathlib.Path(self.folder.name)
        self.addCleanup(self.folder.cleanup)
        shutil.copytree(ROOT / "docs", self.copy / "docs")
        shutil.copy(ROOT / "README.md", self.copy)

    def edit(self, path, change):
        file = self.copy / path
        text = file.read_text(encoding="utf-8")
        changed = change(text)
        self.assertNotEqual(text, changed)
        file.write_text(changed, encoding="utf-8")

    def test_pages_and_charts_are_made_from_the_data(self):
        self.assertEqual(make(ROOT), "")
        self.assertEqual(make(self.copy), "")

    def test_a_figure_that_differs_is_noticed(self):
        data = "docs/performance/data/h200-decode-llama-3.2-1b.json"

        def slower(text):
            run = json.loads(text)
            run["decode"]["seconds_per_token"] *= 1.1
            return json.dumps(run)

        self.edit(data, slower)
        said = make(self.copy)
        for name in ("README.md", "h200-decode.md", "h200-decode.svg"):
            self.assertRegex(said, rf"{re.escape(name)} is not what")

    def test_a_page_that_was_edited_is_noticed(self):
        self.edit("docs/performance/amd-bounds.md", lambda text: text.replace("| `gemm_bf16` |", "| `gemm_f32` |"))
        self.assertIn("amd-bounds.md is not what", make(self.copy))

    def test_a_figure_without_its_origin_is_noticed(self):
        for key in ("commit", "date", "device", "name", "method"):
            data = self.copy / "docs/performance/data/cpu-qwen3-0.6b.json"
            run = json.loads(data.read_text(encoding="utf-8"))
            whole = dict(run)
            run.pop(key) if key not in ("commit", "date", "name") else run.update({key: "" if key != "date" else "today"})
            data.write_text(json.dumps(run), encoding="utf-8")
            self.assertTrue(make(self.copy), key)
            data.write_text(json.dumps(whole), encoding="utf-8")

    def test_what_the_command_writes_takes_an_old_files_place(self):
        if WEFT is None:
            self.skipTest("no command was named")
        for name in ("cpu-weft-code", "h200-decode-weft-code", "h200-prefill-weft-code-512"):
            data = self.copy / "docs/performance/data" / f"{name}.json"
            subprocess.run([WEFT, "bench", "decode", "--model", ROOT / "models/weft-code", "--device", "cpu", "--rounds", "1",
                            "--prompt-tokens", "512", "--new-tokens", "3", "--json", data],
                           check=True, capture_output=True, timeout=120)
        run = json.loads(data.read_text(encoding="utf-8"))
        self.assertEqual(subprocess.run([sys.executable, "-B", self.copy / "docs/performance/make.py"]).returncode, 0)
        self.assertEqual(make(self.copy), "")
        page = (self.copy / "docs/performance/cpu.md").read_text(encoding="utf-8")
        self.assertRegex(page, rf"weft-code[^\n]*{run['commit'][:7]} \|")  # and no star

    def test_data_on_no_page_are_noticed(self):
        data = self.copy / "docs/performance/data"
        shutil.copy(data / "cpu-qwen3-0.6b.json", data / "gpu-qwen3-0.6b.json")
        self.assertIn("gpu-qwen3-0.6b.json is on no page", make(self.copy))

    def test_pages_are_short(self):
        self.assertEqual(too_long(ROOT), [])
        self.edit("docs/performance/cpu.md", lambda text: text + "more\n" * 100)
        self.assertEqual(too_long(self.copy), ["cpu.md"])

    def test_charts_are_svg_of_their_own(self):
        self.assertEqual(bad_charts(ROOT), [])
        self.edit("docs/performance/h200-decode.svg", lambda text: text.replace("</svg>", ""))
        self.edit("docs/performance/cpu-peers.svg", lambda text: text.replace("</svg>", '<image href="a.png"/></svg>'))
        self.assertEqual(bad_charts(self.copy), ["cpu-peers.svg", "h200-decode.svg"])

    def test_links_lead_somewhere(self):
        self.assertEqual(broken_links(ROOT), [])
        (self.copy / "docs/journal/cpu-decode.md").unlink()
        broken = broken_links(self.copy)
        self.assertTrue(any("cpu.md: ../journal/cpu-decode.md" in each for each in broken), broken)


if __name__ == "__main__":
    unittest.main()

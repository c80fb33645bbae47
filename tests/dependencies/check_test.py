#!/usr/bin/env python3
"""Plants offences in a small tree and expects check.py to name each, and nothing else."""

import pathlib
import tempfile
import unittest

import check


class CheckTest(unittest.TestCase):
    def offences(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text, encoding="utf-8")
            return check.check(root)

    def expect_one(self, files, start, part):
        offences = self.offences(files)
        self.assertEqual(len(offences), 1, offences)
        self.assertTrue(offences[0].startswith(start), offences[0])
        self.assertIn(part, offences[0])

    def test_accepts_the_allowed_direction(self):
        self.assertEqual(
            self.offences(
                {
                    "base/view.h": "#pragma once\n#include <vector>\n",
                    "model/config.h": '#include "base/view.h"\n',
                    "ops/linear/op.h": '#include "base/view.h"\n',
                    "ops/linear/cpu.cc": '#include "arch/cpu/simd.h"\n#include "hwy/highway.h"\n',
                    "program/plan.cc": '#include "model/config.h"\n#include "ops/linear/op.h"\n',
                    "cli/main.cc": '#include "engine/run.h"\n',
                    "tests/consumer/main.cc": "#include <weft/engine/run.h>\n",
                    "build/release/x.cc": '#include "cli/main.h"\n',
                }
            ),
            [],
        )

    def test_finds_an_include_against_the_direction(self):
        self.expect_one(
            {"ops/linear/op.h": '#pragma once\n\n#include "model/config.h"\n'},
            "ops/linear/op.h:3: ",
            "model/config.h",
        )
        self.expect_one(
            {"base/view.cc": '#  include "engine/run.h"\n'}, "base/view.cc:1: ", "no other room"
        )
        self.expect_one(
            {"model/config.cc": "#include <ops/linear/op.h>\n"}, "model/config.cc:1: ", "base"
        )
        self.expect_one(
            {"program/plan_test.cc": '#include "engine/run.h"\n'}, "program/plan_test.cc:1: ", ""
        )

    def test_finds_a_target_in_code_for_all_targets(self):
        self.expect_one(
            {"program/plan.cc": '#include "arch/cpu/simd.h"\n'}, "program/plan.cc:1: ", "one target"
        )
        self.expect_one(
            {"ops/linear/op.h": '#include "arch/cpu/simd.h"\n'}, "ops/linear/op.h:1: ", "one target"
        )
        for target in (
            "arch/hopper/resident.cuh",
            "engine/hopper/lower.h",
            "engine/cdna/lower.h",
            "ops/linear/hopper_layout.h",
        ):
            for file in ("engine/resident/lower.cc", "engine/prefill/plan.cc"):
                self.expect_one(
                    {file: f'#include "{target}"\n'}, f"{file}:1: ", "one target"
                )
            self.assertEqual(self.offences({"engine/hopper/lower.cc": f'#include "{target}"\n'}), [])
        self.expect_one(
            {"arch/cpu/simd.h": '#include "arch/hopper/wgmma.h"\n'},
            "arch/cpu/simd.h:1: ",
            "another target",
        )

    def test_finds_a_relative_path(self):
        self.expect_one(
            {"ops/linear/cpu.cc": '#include "../../model/config.h"\n'},
            "ops/linear/cpu.cc:1: ",
            "relative",
        )
        self.expect_one(
            {"ops/linear/cpu.cc": '#include "op.h"\n', "ops/linear/op.h": ""},
            "ops/linear/cpu.cc:1: ",
            "relative",
        )

    def test_finds_a_room_that_is_not_in_the_table(self):
        self.expect_one({"attic/old.cc": ""}, "attic/old.cc:1: ", "no room")


if __name__ == "__main__":
    unittest.main()

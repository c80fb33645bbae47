#!/usr/bin/env python3
"""The command on processors that are older than this machine's, each emulated by qemu-x86_64.

    test_processors.py WEFT     (the command's path; run by ctest)

WEFT_ISA takes kernels away from the dispatch, but what runs outside of it (start-up, the readers of
files, the tables of the simulator) is compiled code too, and only a processor that lacks an
instruction shows that it is used. The emulator kills a program that uses one.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft"
ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ROOT / "models" / "weft-code"

# By the best instruction set that Weft has for each. The first is the least there is: x86-64 itself,
# whose vectors are SSE2.
PROCESSORS = {
    "Opteron_G1,-sse3": "scalar",
    "Nehalem": "scalar",  # SSE4.2
    "SandyBridge": "scalar",  # AVX
    "Haswell": "avx2",
    "EPYC-Milan": "avx2",  # AMD's: other CPUID leaves
}
DEVICE = 4  # exit code
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
# Quick ones under emulation; the model below runs the others.
OPERATIONS = "embed rmsnorm rope_append rope_angles rmsnorm_quant swiglu_quant".split()


def run(*command, isa=None):
    return subprocess.run(
        [str(a) for a in command],
        capture_output=True,
        timeout=600,
        env={**ENVIRONMENT, "WEFT_ISA": isa} if isa else ENVIRONMENT,
    )


def run_on(processor, *arguments):
    done = run("qemu-x86_64", "-cpu", processor, WEFT, *arguments)
    # Of what the emulator leaves out of a processor, none of it used here.
    lines = [line for line in done.stderr.splitlines() if b"warning: TCG doesn't support" not in line]
    done.stderr = b"\n".join(lines).decode(errors="replace")
    done.stdout = done.stdout.decode(errors="replace")
    return done


class Processors(unittest.TestCase):
    def each(self, *arguments):
        """The command's output on each processor, with the instruction set it has."""
        outputs = []
        for processor, isa in PROCESSORS.items():
            with self.subTest(processor=processor):
                done = run_on(processor, *arguments)
                self.assertEqual(done.returncode, 0, done.stderr)
                outputs.append((isa, done.stdout))
        return outputs

    def test_it_starts_and_knows_what_it_has(self):
        for isa, text in self.each("devices"):
            self.assertRegex(text.splitlines()[0], rf"^cpu .*, {isa}, ")

    def test_operations(self):
        sets = {"scalar": 1, "avx2": 2}
        for isa, text in self.each("check", *OPERATIONS):
            passed, skipped = map(int, re.search(r"^(\d+) passed, 0 failed, (\d+) skipped$",
                                                 text.splitlines()[-1]).groups())
            self.assertEqual(passed * 5, sets[isa] * (passed + skipped))

    def test_tokens_are_those_of_this_machine(self):
        for weights in ("plain", "compressed"):
            command = ("generate", "--model", CODE, "--prompt", "def f(", "--max-tokens", 2, "--threads", 1,
                       "--weights", weights)
            here = {isa: run(WEFT, *command, isa=isa).stdout.decode() for isa in set(PROCESSORS.values())}
            for isa, text in self.each(*command):
                self.assertNotEqual(text, "")
                self.assertEqual(text, here[isa])

    def test_the_simulator(self):
        if b"Weft simulator" not in run(WEFT, "devices").stdout:
            self.skipTest("this build has no simulator")
        command = ("check", "swiglu_quant", "--quick", "--case", "rows=1,columns=8,*", "--device", "sim:gfx942")
        for processor, isa in PROCESSORS.items():
            with self.subTest(processor=processor):
                done = run_on(processor, *command)
                if isa == "scalar":
                    self.assertEqual(done.returncode, DEVICE, done.stderr)
                    self.assertIn("the simulator needs a processor with AVX2", done.stderr)
                else:
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main(verbosity=1)

#!/usr/bin/env python3
"""The command as a user meets it: what it prints, where, and how it fails.

    test_cli.py WEFT     (the command's path; run by ctest)

Uses the golden models, so it needs no download. Every failure must be one sentence on
standard error that names what is wrong, with the exit code of the contract.
"""

import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft"
ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "goldens" / "models"
CODE = ROOT / "models" / "weft-code"

USAGE, INPUT, DEVICE = 2, 3, 4
INSTRUCTION_SETS = 5  # scalar, avx2, avx512, avx512_bf16, amx_bf16
# What is expected here is a machine without GPUs, also where there are some.
ENVIRONMENT = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}


def weft(*arguments, stdin=b"", isa=None):
    return subprocess.run(
        [WEFT, *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        input=stdin,
        capture_output=True,
        timeout=120,
        env={**ENVIRONMENT, "WEFT_ISA": isa} if isa else ENVIRONMENT,
    )


class Command(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="weft-cli-"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def ok(self, *arguments, stdin=b"", isa=None):
        run = weft(*arguments, stdin=stdin, isa=isa)
        self.assertEqual(run.returncode, 0, run.stderr.decode(errors="replace"))
        return run.stdout

    def fails(self, code, *arguments, says=()):
        run = weft(*arguments)
        text = run.stderr.decode(errors="replace")
        self.assertEqual(run.returncode, code, text)
        for words in says:
            self.assertIn(words, text)
        if code != USAGE:  # usage errors also point to --help
            self.assertEqual(text.count("\n"), 1, f"not one sentence: {text!r}")
        return text

    def model(self, name="llama-bf16"):
        """A copy of a golden model, to be broken."""
        target = self.folder / name
        shutil.copytree(GOLDENS / name, target)
        return target

    def edit_config(self, model, **fields):
        path = model / "config.json"
        config = json.loads(path.read_text())
        for key, value in fields.items():
            if value is None:
                config.pop(key, None)
            else:
                config[key] = value
        path.write_text(json.dumps(config))


class Contract(Command):
    def test_version_and_help(self):
        self.assertRegex(self.ok("--version").decode(), r"^weft \d+\.\d+\.\d+ \((unknown|[0-9a-f]{10,}(\+changes)?)\)\n$")
        commands = "devices generate tokenize score inspect diff check bench tune new-model"
        text = self.ok("--help").decode()
        for command in commands.split():
            self.assertIn(command, text)
            self.assertIn("--help", self.ok(command, "--help").decode())
        self.assertIn("--prompt-tokens", self.ok("bench", "decode", "--help").decode())

    def test_devices(self):
        self.assertTrue(self.ok("devices").decode().startswith("cpu "))

    def test_score_by_ids(self):
        out = json.loads(
            self.ok("score", "--model", GOLDENS / "llama-f32", "--ids", "1,2,3,4", "--logits", "--json")
        )
        self.assertEqual(out["ids"], [1, 2, 3, 4])
        self.assertEqual(len(out["logprobs"]), 3)
        self.assertTrue(all(x <= 0 for x in out["logprobs"]))
        self.assertGreater(out["perplexity"], 1)
        self.assertEqual(len(out["logits"]), 307)

    def test_inspect_prints_a_program(self):
        text = self.ok("inspect", "--preset", "llama-3.3-70b", "--program", "--threads", 8).decode()
        self.assertIn("70.554 billion parameters", text)
        self.assertIn("worker 7", text)
        self.assertIn("sum of the step", text)

    def test_new_model_and_bench(self):
        target = self.folder / "new"
        self.ok("new-model", "--preset", "qwen3-0.6b", "--layers", 1, "--seed", 5, "--out", target)
        self.ok("inspect", "--model", target)
        out = json.loads(
            self.ok("bench", "decode", "--model", target, "--prompt-tokens", 40, "--new-tokens", 8,
                    "--rounds", 1, "--json", "-")
        )
        self.says_its_origin(out)
        decode = out["decode"]
        self.assertGreater(decode["tokens_per_second"], 0)
        self.assertLessEqual(decode["best_seconds"], decode["mean_seconds"])
        self.assertLessEqual(decode["mean_seconds"], decode["slowest_seconds"])
        self.assertGreater(out["limits"]["read_bytes_per_second"], 0)
        self.assertAlmostEqual(decode["limit_seconds"] * out["limits"]["read_bytes_per_second"] / decode["bytes"], 1)
        self.fails(INPUT, "new-model", "--preset", "qwen3-0.6b", "--out", target, says=[str(target)])

    def test_weights_in_eight_bits(self):
        model = GOLDENS / "llama-fp8-block"
        self.assertIn("in e4m3, a scale for 128 x 128", self.ok("inspect", "--model", model).decode())
        plain, rounded = (
            json.loads(self.ok("score", "--model", model, "--ids", "1,2,3,4", "--logits", "--json",
                               "--activations", activations))["logits"]
            for activations in ("f32", "fp8")
        )
        self.assertNotEqual(plain, rounded)
        self.fails(USAGE, "score", "--model", GOLDENS / "llama-f32", "--ids", "1", "--activations", "fp8",
                   says=["no weights in eight bits"])
        self.fails(USAGE, "new-model", "--preset", "qwen3-0.6b", "--format", "int4", "--out",
                   self.folder / "x", says=["int4", "fp8-block"])
        self.assertIn("196 matrices in e4m3, a scale a row",
                      self.ok("inspect", "--preset", "qwen3-0.6b", "--format", "fp8-row").decode())

    def says_its_origin(self, figures):
        version = f"weft {figures['version']} ({figures['commit']})\n"
        self.assertEqual(self.ok("--version").decode(), version)
        written = datetime.datetime.fromisoformat(figures["date"].replace("Z", "+00:00"))
        age = datetime.datetime.now(datetime.timezone.utc) - written
        self.assertLess(abs(age), datetime.timedelta(minutes=5))
        listed = self.ok("devices").decode().splitlines()[0]
        for part in ("device", "name", "target"):
            self.assertIn(figures[part], listed)
        self.assertTrue(figures["method"])

    def test_usage(self):
        self.fails(USAGE)
        self.fails(USAGE, "nonsense", says=["'nonsense'", "generate, tokenize"])
        self.fails(USAGE, "generate", "--model", GOLDENS / "llama-f32")
        self.fails(USAGE, "new-model", "--preset", "gpt-9", "--out", self.folder / "x",
                   says=["gpt-9", "llama-3.2-1b"])
        self.fails(USAGE, "score", "--model", GOLDENS / "llama-f32", "--ids", "1,two", says=["two"])
        self.fails(USAGE, "inspect", "--preset", "llama-3.2-1b", "--device", "gpu", says=["gpu"])
        self.fails(USAGE, "score", "--model", GOLDENS / "llama-f32", "--ids", "1", "--context", 10**9)
        diff = ("diff", "--model", GOLDENS / "llama-bf16", "--device")
        self.fails(USAGE, *diff, "cpu", says=["--device cuda"])
        self.fails(USAGE, *diff, "cuda", "--prompt-tokens", 10**6, says=["1000000 prompt tokens"])
        self.fails(DEVICE, *diff, "cuda", says=["cuda"])
        generate = ("generate", "--model", CODE, "--prompt", "x")
        self.fails(USAGE, *generate, "--max-tokens", -1, says=["-1 is not a whole number of at least 0"])
        self.fails(USAGE, *generate, "--max-tokens", "1e3", says=["1e3 is not a whole number"])
        self.fails(USAGE, *generate, "--stop", "", says=["--stop: the text is empty"])

    def test_missing_device_of_operations(self):
        for command in (("check", "gemm_bf16"), ("bench", "gemm_bf16"), ("tune", "gemm_bf16")):
            self.fails(DEVICE, *command, "--device", "cuda:99", says=["cuda:99 cannot be had"])
            self.fails(USAGE, *command, "--device", "cuda:one", says=["cuda:one"])
            self.fails(USAGE, *command, "--device", "gpu", says=["gpu"])
        self.fails(USAGE, "tune", "gemm_bf16", says=["nothing to tune"])

    def test_operations_without_a_device(self):
        cases = self.ok("check", "embed", "--list").decode().splitlines()
        # Whatever the processor has: each case is checked with every instruction set, or skipped.
        for isa in (None, "avx2", "scalar"):
            lines = self.ok("check", "embed", isa=isa).decode().splitlines()
            self.assertEqual(lines[0], "cpu")
            summary = re.match(r"^([1-9]\d*) passed, 0 failed, (\d+) skipped$", lines[-1])
            self.assertIsNotNone(summary, lines[-1])
            passed, skipped = map(int, summary.groups())
            self.assertEqual(passed + skipped, len(cases) * len(("finite", "not finite")) * INSTRUCTION_SETS)
            if isa == "scalar":
                self.assertEqual(passed * INSTRUCTION_SETS, passed + skipped)
            for line in lines:
                if line.startswith("skipped "):
                    self.assertIn("this processor has not got it", line)
        out = json.loads(self.ok("bench", "rmsnorm", "--case", "*", "--json", "-"))
        self.says_its_origin(out)
        self.assertGreater(out["cases"][0]["median_s"], 0)
        self.fails(USAGE, "bench", "rmsnorm", "--in-a-row", 4, says=["4 launches in a row", "--device cuda"])

    def test_operations_of_any_shape(self):
        shapes = ("m=3,n=24,k=40,out=bf16", "k=8,m=1,accumulate,n=8,out=f32")
        text = self.ok("check", "gemm_bf16", "--shape", shapes[0], "--shape", shapes[1]).decode()
        self.assertRegex(text.splitlines()[-1], r"^[1-9]\d* passed, 0 failed, \d+ skipped$")
        listed = self.ok("check", "gemm_bf16", "--list", "--shape", shapes[0], "--shape", shapes[1])
        self.assertEqual(listed.decode(), f"gemm_bf16 {shapes[0]}\ngemm_bf16 m=1,n=8,k=8,out=f32,accumulate\n")
        out = json.loads(self.ok("bench", "rmsnorm", "--json", "-", "--shape",
                                 "rows=5,columns=300,groups=1,weight=F16,out=f32"))
        self.assertEqual(out["shapes"], "given")
        self.assertEqual([c["case"] for c in out["cases"]], ["rows=5,columns=300,groups=1,weight=F16,out=f32"])
        self.assertGreater(out["cases"][0]["median_s"], 0)
        keys = "m=N,n=N,k=N,out=f32|bf16,[accumulate]"
        for command in ("check", "bench"):
            for shape, wrong in (("m=3,n=24,out=bf16", "lacks k"), ("m=3,n=24,k=40,q=7,out=bf16", "no key 'q'"),
                                 ("m=3,m=4,n=24,k=40,out=bf16", "no key 'm', or has it twice"),
                                 ("m=3,n=24,k=40,out=f64", "out=f64"), ("m=3,n=25,k=40,out=bf16", "n=25"),
                                 ("m=3,n=24,k=40,out=bf16,fast", "'fast'"), ("m=x,n=24,k=40,out=bf16", "m=x")):
                self.fails(USAGE, command, "gemm_bf16", "--shape", shape, says=["gemm_bf16", wrong, keys])
            self.fails(USAGE, command, "--shape", shapes[0], says=["one operation"])
            self.fails(USAGE, command, "gemm_bf16", "--case", "*", "--shape", shapes[0], says=["--case"])
        self.fails(USAGE, "check", "attention", "--shape",
                   "rows=1,first=0,heads=3/2,dim=16,window=0,splits=1,q=F32,cache=F32,out=F32", says=["heads"])

    def test_operations_on_the_simulator(self):
        if "Weft simulator" not in self.ok("devices").decode():
            self.skipTest("this build has no simulator")
        device = ("--device", "sim:gfx942")
        text = self.ok("check", "swiglu_quant", "--quick", *device).decode()
        self.assertRegex(text.splitlines()[-1], r"^[1-9]\d* passed, 0 failed, [1-9]\d* skipped$")
        self.assertIn("gfx942 has e4m3fnuz, not e4m3fn", text)
        one_of_two = self.ok("check", "swiglu_quant", "--quick", "--case", "rows=1,*", "--device", "sim:gfx942*2:1")
        self.assertTrue(one_of_two.startswith(b"sim:gfx942*2:1, "), one_of_two)
        self.fails(USAGE, "check", "swiglu_quant", "--device", "sim:gfx942*2:2", says=["sim:gfx942*8:3"])
        figures = self.folder / "figures.json"
        self.ok("bench", "swiglu_quant", "--case", "rows=1,columns=8192,f16*", "--json", figures, *device)
        case, = json.loads(figures.read_text())["cases"]
        self.assertGreater(case["bound_from_counts_s"], 0)
        self.assertNotIn("median_s", case)  # counts are no times
        tuned = self.ok("tune", "swiglu_quant", "--case", "rows=1,columns=8192,f16*", *device)
        self.assertIn("counts say at least", tuned.decode())
        self.fails(USAGE, "tune", "swiglu_quant", *device, "--in-a-row", 4, says=["4 launches in a row"])

    def test_one_kernel_on_the_simulator(self):
        code = pathlib.Path(WEFT).parent / "sim" / "ordinary.gfx942.co"
        if not code.exists() or b"Weft simulator" not in self.ok("devices"):
            self.skipTest("this build, or this processor, has no simulator")
        add = ("bench", "kernel", code, "--name", "add", "--grid", 5, "--block", 64)
        memory = ("f32:256", "f32:256", "f32:256")
        text = self.ok(*add, *memory, "i32=256").decode()
        self.assertIn("add on gfx942: 5 workgroups, 5 waves", text)
        self.assertRegex(text, r"[0-9.]+ million vector instructions of waves a second and core")
        wrong = weft(*add, *memory, "i32=257")
        self.assertEqual(wrong.returncode, 1)
        self.assertIn(b"out of bounds: in kernel add", wrong.stdout)
        self.fails(USAGE, *add, "f32", says=["'f32' is no argument of a kernel"])
        self.fails(USAGE, *add, *memory, says=["28 bytes of arguments"])
        self.fails(USAGE, "bench", "kernel", code, says=["--name", "reduce"])
        self.fails(USAGE, *add, "--device", "cpu", says=["sim:gfx950"])
        self.fails(INPUT, "bench", "kernel", code.parent / "none", says=["none"])

    def test_missing_device(self):
        for device in ("cuda", "cuda:3", "hip"):
            self.fails(DEVICE, "score", "--model", GOLDENS / "llama-f32", "--ids", "1",
                       "--device", device, says=[device])


class BadInput(Command):
    def score(self, model, *extra, says=(), ids="1,2"):
        return self.fails(INPUT, "score", "--model", model, "--ids", ids, *extra, says=says)

    def test_no_such_model(self):
        self.score(self.folder / "nowhere", says=["nowhere"])

    def test_ids(self):
        self.score(GOLDENS / "llama-f32", ids="1,307", says=["307", "306"])
        self.score(GOLDENS / "llama-f32", "--context", 3, ids="1,2,3,4", says=["4 tokens", "3"])

    def test_config(self):
        cases = {
            "hidden_size": ("-48", -48),
            "num_attention_heads": ("0", 0),
            "num_key_value_heads": ("2", 2),  # does not divide 3 heads
            "vocab_size": (str(10**15), 10**15),
            "hidden_act": ("gelu", "gelu"),
        }
        for field, (shown, value) in cases.items():
            model = self.model()
            self.edit_config(model, **{field: value})
            self.score(model, says=["config.json", field, shown])
            shutil.rmtree(model)
        model = self.model()
        self.edit_config(model, num_hidden_layers=None)
        self.score(model, says=["config.json", "num_hidden_layers"])

    def test_unknown_architecture_lists_those_known(self):
        model = self.model()
        self.edit_config(model, architectures=["MambaForCausalLM"], model_type="mamba")
        self.score(model, says=["MambaForCausalLM", "LlamaForCausalLM", "GraniteForCausalLM"])

    def test_config_that_is_no_json(self):
        model = self.model()
        (model / "config.json").write_bytes(b'{"hidden_size": 48,')
        self.score(model, says=["config.json"])

    def test_truncated_weights(self):
        for size in (0, 5, 100, -1):
            model = self.model()
            path = model / "model.safetensors"
            data = path.read_bytes()
            path.write_bytes(data[:size])
            self.score(model, says=["model.safetensors"])
            shutil.rmtree(model)

    def test_header_longer_than_the_file(self):
        model = self.model()
        path = model / "model.safetensors"
        data = path.read_bytes()
        path.write_bytes((2**62).to_bytes(8, "little") + data[8:])
        self.score(model, says=["model.safetensors"])

    def edit_header(self, model, change):
        path = model / "model.safetensors"
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        change(header)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])

    def test_tensors(self):
        name = "model.layers.1.mlp.up_proj.weight"

        def overlapping(header):
            header[name]["data_offsets"] = header["model.norm.weight"]["data_offsets"]

        def wrong_shape(header):
            rows, columns = header[name]["shape"]
            header[name]["shape"] = [columns, rows]

        def wrong_dtype(header):
            header[name]["dtype"] = "I16"

        def missing(header):
            header["renamed"] = header.pop(name)

        def absurd(header):
            header[name]["shape"] = [2**40, 2**40]

        for change in (overlapping, wrong_shape, wrong_dtype, missing, absurd):
            model = self.model()
            self.edit_header(model, change)
            self.score(model, says=["model.safetensors", name])
            shutil.rmtree(model)

    def test_missing_shard(self):
        model = self.model("llama-linear-f32")
        shard = sorted(model.glob("model-*.safetensors"))[1]
        shard.unlink()
        self.score(model, says=[shard.name])

    def test_config_that_leaves_tensors_out(self):
        model = self.model()
        self.edit_config(model, num_hidden_layers=1)
        self.score(model, says=["model.safetensors", "model.layers.1.", "num_hidden_layers"])
        model = self.model("llama-bias-f32")
        self.edit_config(model, attention_bias=False)
        self.score(model, says=["model.safetensors", "proj.bias", "attention_bias"])

    def test_no_ids(self):
        self.score(GOLDENS / "llama-f32", ids="", says=["no tokens"])

    def test_output_that_cannot_be_written(self):
        score = ("score", "--model", GOLDENS / "llama-f32", "--ids", "1,2")
        for arguments in (score, (*score, "--json"), ("devices",), ("check", "--list"), ("check", "embed"),
                          ("--help",), ("--version",)):
            with open("/dev/full", "wb") as full:
                run = subprocess.run([WEFT, *map(str, arguments)], stdout=full, stderr=subprocess.PIPE,
                                     timeout=60, env=ENVIRONMENT)
            self.assertEqual(run.returncode, INPUT, arguments)
            self.assertIn(b"standard output: cannot be written", run.stderr)
            closed = subprocess.run(["bash", "-c", 'exec "$@" >&-', "-", WEFT, *map(str, arguments)],
                                    stderr=subprocess.PIPE, timeout=60, env=ENVIRONMENT)
            self.assertEqual(closed.returncode, INPUT, arguments)
            self.assertIn(b"standard output: cannot be written", closed.stderr)

    def test_new_model_that_does_not_fit(self):
        target = self.folder / "a" / "b" / "new"
        command = f"ulimit -f 2000; exec '{WEFT}' new-model --preset qwen3-0.6b --layers 1 --out '{target}'"
        run = subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, env=ENVIRONMENT)
        self.assertEqual(run.returncode, INPUT)
        self.assertIn(b"file size limit", run.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])


@unittest.skipUnless((CODE / "model.safetensors").exists(), "the demo model is not here")
class DemoModel(Command):
    PROMPT = "def fibonacci(n):"

    def generate(self, *extra):
        return self.ok("generate", "--model", CODE, "--prompt", self.PROMPT, *extra).decode()

    def test_greedy_is_repeatable_and_looks_like_python(self):
        text = self.generate("--max-tokens", 48)
        self.assertEqual(text, self.generate("--max-tokens", 48, "--threads", 1))
        self.assertIn("\n    ", text)

    def test_seeds(self):
        flags = ("--temperature", 1, "--top-k", 50, "--top-p", 0.95, "--max-tokens", 32)
        first = self.generate(*flags, "--seed", 1)
        self.assertEqual(first, self.generate(*flags, "--seed", 1))
        self.assertNotEqual(first, self.generate(*flags, "--seed", 2))

    def test_stop(self):
        text = self.generate("--max-tokens", 64)
        stop = text[20:26]
        self.assertEqual(self.generate("--max-tokens", 64, "--stop", stop), text[: text.index(stop)])

    def test_figures(self):
        path = self.folder / "stats.json"
        self.generate("--max-tokens", 16, "--stats-json", path)
        stats = json.loads(path.read_text())
        self.assertLessEqual(stats["new_tokens"], 16)
        self.assertGreater(stats["first_token_seconds"], 0)
        self.assertEqual(stats["weights"], "plain")  # they fit the last cache
        self.assertNotIn("compressed_over_plain_time", stats)
        self.generate("--max-tokens", 16, "--weights", "compressed", "--stats-json", path)
        self.assertEqual(json.loads(path.read_text())["weights"], "compressed")

    def test_figures_on_standard_output_are_json_alone(self):
        text = self.generate("--max-tokens", 16, "--echo")
        stats = json.loads(self.generate("--max-tokens", 16, "--echo", "--stats-json", "-"))
        self.assertEqual(stats["text"], text)

    def test_several_prompts_are_sequences_of_their_own(self):
        alone = self.generate("--max-tokens", 24)
        path = self.folder / "stats.json"
        flags = ("--max-tokens", 24, "--temperature", 1, "--seed", 4)
        other = self.folder / "other.txt"
        other.write_text("class Stack:")
        text = self.ok("generate", "--device", "cpu", "--model", CODE, "--prompt", self.PROMPT, "--prompt", "import os",
                       "--prompt-file", other, "--max-tokens", 24, "--stats-json", path).decode()
        sequences = json.loads(path.read_text())["sequences"]
        self.assertEqual(len(sequences), 3)
        self.assertEqual(sequences[0]["text"], alone)
        self.assertEqual(text, "".join(f"==> {i + 1} <==\n{s['text']}\n" for i, s in enumerate(sequences)))
        # The second one of a batch draws as one alone with the next seed would.
        both = json.loads(self.ok("generate", "--device", "cpu", "--model", CODE, "--prompt", self.PROMPT, "--prompt",
                                  self.PROMPT, *flags, "--stats-json", "-"))["sequences"]
        self.assertEqual(both[0]["text"], self.generate(*flags))
        self.assertEqual(both[1]["text"], self.generate("--max-tokens", 24, "--temperature", 1, "--seed", 5))
        self.assertEqual(both[1]["seed"], 5)

    def test_the_cpu_decodes_one_sequence_at_a_time(self):
        self.fails(USAGE, "bench", "decode", "--model", CODE, "--device", "cpu", "--batch", 2, says=["cpu", "one"])

    def test_load_is_answered_alike_in_any_company(self):
        def load(*flags, requests=5, tokens=4, model=CODE, prompt=70):
            return json.loads(self.ok("bench", "load", "--model", model, "--device", "cpu", "--requests", requests,
                                      "--prompt-tokens", prompt, "--common-tokens", 66, "--new-tokens", tokens,
                                      "--slots", 3, "--json", "-", *flags))

        alone = load("--clients", 1)
        self.assertEqual([len(answer) for answer in alone["answers"]], [4] * 5)
        self.assertEqual(load("--clients", 3)["answers"], alone["answers"])
        arriving = load("--rate", 50)
        self.assertEqual(arriving["answers"], alone["answers"])
        self.assertEqual(arriving["arrivals"], "Poisson")
        self.assertGreater(alone["cached_tokens"], 0)
        self.assertNotEqual(load("--clients", 1, "--seed", 5)["answers"], alone["answers"])
        self.assertEqual(load("--clients", 3, "--draft", "ngram:2")["answers"], alone["answers"])
        varied = [load("--vary", "--clients", *more, requests=20, tokens=9)
                  for more in ([1], [6, "--pages", 4, "--prefix-host-gib", 0.01])]
        for what in ("answers", "logprobs"):  # of who wants them: the same bits
            self.assertEqual(varied[0][what], varied[1][what])
        self.assertGreater(len({len(answer) for answer in varied[0]["answers"]}), 3)
        for mixture in ("qwen3-moe-bf16", "gpt-oss-mxfp4"):  # an expert has few of a prompt's rows, or many
            alone, among = (load("--vary", "--clients", *more, requests=60, model=GOLDENS / mixture, prompt=150)
                            for more in ([1], [6, "--prefill-chunk", 64]))
            self.assertEqual([among["answers"], among["logprobs"]], [alone["answers"], alone["logprobs"]])
        self.fails(USAGE, "bench", "load", "--model", CODE, "--draft", "3", says=["3", "ngram:1"])
        self.fails(USAGE, "bench", "load", "--model", CODE, "--device", "cpu", "--slots", 65, says=["65", "64"])
        self.fails(USAGE, "bench", "load", "--model", CODE, "--device", "cpu", "--common-tokens", 600, says=["600", "512"])

    def test_nan_is_no_temperature(self):
        self.fails(USAGE, "generate", "--model", CODE, "--prompt", "x", "--temperature", "nan", says=["nan"])

    def test_shards_give_the_same_tokens(self):
        model = self.folder / "sharded"
        model.mkdir()
        for name in ("config.json", "generation_config.json", "tokenizer.json"):
            shutil.copy(CODE / name, model)
        data = (CODE / "model.safetensors").read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        tensors = json.loads(data[8:start])
        tensors.pop("__metadata__", None)
        names = sorted(tensors)  # not the order of the file
        weight_map = {}
        for shard in range(3):
            file = f"model-{shard + 1:05}-of-00003.safetensors"
            header, body = {}, b""
            for name in names[shard::3]:
                begin, end = tensors[name]["data_offsets"]
                header[name] = {**tensors[name], "data_offsets": [len(body), len(body) + end - begin]}
                body += data[start + begin : start + end]
                weight_map[name] = file
            text = json.dumps(header).encode()
            (model / file).write_bytes(len(text).to_bytes(8, "little") + text + body)
        (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        text = self.ok("generate", "--model", model, "--prompt", self.PROMPT, "--max-tokens", 64)
        self.assertEqual(text.decode(), self.generate("--max-tokens", 64))

    def test_nobody_reads_any_more(self):
        reader, writer = os.pipe()
        os.close(reader)
        command = [WEFT, "generate", "--model", CODE, "--prompt", "x", "--max-tokens", "4"]
        run = subprocess.run(command, stdout=writer, stderr=writer, timeout=120, env=ENVIRONMENT)
        os.close(writer)
        self.assertEqual(run.returncode, INPUT)

    def test_tokenize(self):
        text = "def f(x):\n    return 'héllo 🙂'\n"
        out = json.loads(self.ok("tokenize", "--model", CODE, "--text", text, "--json"))
        self.assertEqual(out["text"], text)
        self.assertEqual(len(out["ids"]), len(out["tokens"]))
        again = self.ok("tokenize", "--model", CODE, "--file", "-", "--ids", stdin=text.encode())
        self.assertEqual([int(x) for x in again.split()], out["ids"])

    def test_score(self):
        out = json.loads(self.ok("score", "--model", CODE, "--text", "import os\nimport sys\n", "--json"))
        self.assertLess(out["bits_per_byte"], 3)

    def test_bad_prompts(self):
        bad = self.folder / "bad.txt"
        bad.write_bytes(b"def f\xff(x):")
        self.fails(INPUT, "generate", "--model", CODE, "--prompt-file", bad, says=[str(bad), "UTF-8", "5"])
        self.fails(INPUT, "generate", "--model", CODE, "--prompt", b"a\xff", says=["--prompt", "UTF-8"])
        self.fails(USAGE, "generate", "--model", CODE, "--prompt", "x", "--stop", b"\xbf", says=["UTF-8"])
        bad.write_text("x = 1\n" * 3000)
        self.fails(INPUT, "generate", "--model", CODE, "--prompt-file", bad, says=["2048"])

    def test_malformed_tokenizer(self):
        model = self.folder / "code"
        shutil.copytree(CODE, model)
        for text in ('{"model": {"type": "Unigram"}}', '{"model":', "[" * 1000000, "\0"):
            (model / "tokenizer.json").write_text(text)
            self.fails(INPUT, "generate", "--model", model, "--prompt", "x", says=["tokenizer.json"])


if __name__ == "__main__":
    os.chdir(ROOT)
    unittest.main(verbosity=1)

"""Contest files: what is exported runs on the simulator, the evaluator sees what is wrong."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed: scripts/setup python brings it")

import weft  # noqa: E402
from weft import _c, export  # noqa: E402
from weft.__main__ import main  # noqa: E402

SIMULATOR = pathlib.Path(_c.library_path()).with_name("libweft-amdhip64.so")

NAIVE = """#!POPCORN leaderboard amd-fp8-mm
import torch

def custom_kernel(data):
    a, b, a_scale, b_scale, c = data
    a = a.float() * a_scale.repeat_interleave(128, 1)
    b = b.float() * b_scale.repeat_interleave(128, 1).repeat_interleave(128, 0)[:b.shape[0]]
    c.copy_(a @ b.t(){more})
    return c
"""

# Without roundings on the way, and all of a token's experts at once.
MOE = """#!POPCORN leaderboard amd-mixture-of-experts
import torch

def mlp(x, weights, name):
    gate, up, down = (weights[name + "." + str(i) + ".weight"].float() for i in range(3))
    return (torch.nn.functional.silu(x @ gate) * (x @ up)) @ down

def custom_kernel(data):
    x, weights, config = data
    x = x.float()
    scores = (x @ weights["router.weight"].float().t()).softmax(-1)
    least = scores.topk(config["n_experts_per_token"], -1).values[..., -1:]
    out = mlp(x, weights, "shared_experts")
    for i in range(config["n_routed_experts"]):
        weight = torch.where(scores >= least, scores, 0)[..., i : i + 1]
        out = out + weight * mlp(x, weights, "experts." + str(i))MORE
    return out.half(), {}
"""
# Queries go to the latent space: no key is ever made.
MLA = """#!POPCORN leaderboard amd-mla-decode
import torch
from reference import Config, KVCache
from task import input_t, output_t

def rope(x, first):
    theta = 10000 ** (-torch.arange(32, dtype=torch.bfloat16) / 32)
    angles = torch.arange(first, first + x.shape[-2]).bfloat16()[:, None] * theta
    a, b = x.chunk(2, -1)
    return x * angles.cos().repeat(1, 2) + torch.cat((-b, a), -1) * angles.sin().repeat(1, 2)

def custom_kernel(data: input_t) -> output_t:
    config, x, cache = data
    assert isinstance(config, Config) and isinstance(cache, KVCache)
    rows, length = cache(x @ config.KV_proj_down_weight.t())
    rows = rows.float()
    latent, key_rope = rows[..., :512], rope(rows[..., 512:], 0)
    q = (x @ config.Q_proj_down_weight.t() @ config.Q_proj_up_weight.t()).view(-1, 128, 192).float()
    up = config.KV_proj_up_weight.view(128, 256, 512).float()
    scores = torch.einsum("bhd,hdl,btl->bht", q[..., :128], up[:, :128], latent)
    scores += torch.einsum("bhr,btr->bht", rope(q[:, :, None, 128:], length - 1)[:, :, 0], key_rope)
    seen = torch.einsum("bht,btl->bhl", (scores / 192**0.5).softmax(-1), latent)
    y = torch.einsum("bhl,hdl->bhd", seen, up[:, 128:]).reshape(len(x), 1, -1)
    return (y @ config.wo_weight.float().t()MORE).bfloat16(), cache.get_data()
"""
OTHERS = {
    "moe": (
        MOE,
        "dhidden=128,dexpert=64,nroutedexperts=6,nsharedexperts=2,nexpertspertoken=2,bs=2,seqlen=9",
    ),
    "mla": (MLA, "batchsize=2,dim=256,dq=128,prefill=300"),
}
SMALL = {
    "gemm_fp8_blockwise": "m=64,n=64,k=128",
    "moe": OTHERS["moe"][1],
    "mla_decode": "batchsize=2,dim=264,dq=136,prefill=70",
}


def weft_command(*arguments):
    """In a process of its own where a simulated GPU is asked for: a process has one for good."""
    arguments = [str(each) for each in arguments]
    if any(each.startswith("sim:") for each in arguments):
        command = [sys.executable, "-m", "weft", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=os.environ)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


@pytest.fixture
def naive(tmp_path):
    def write(more=""):
        file = tmp_path / "naive.py"
        file.write_text(NAIVE.format(more=more))
        return file

    return write


@pytest.mark.parametrize("target", ["gfx942", "gfx950"])
@pytest.mark.parametrize("name", SMALL)
def test_an_exported_kernel_is_right(name, target, tmp_path):
    file, shape = tmp_path / "kernel.py", ["--shape", SMALL[name]]
    done = weft_command("export-kernel", name, "--target", target, "--out", file, *shape)
    assert done.returncode == 0, done.stderr
    text = file.read_text()
    leaderboard = export.EXPORTS[name].problem.leaderboard
    assert text.startswith(f"#!POPCORN leaderboard {leaderboard}\n") and "import weft" not in text
    if not SIMULATOR.exists():
        pytest.skip("this build has no simulator")
    done = weft_command("evaluate", file, "--device", f"sim:{target}", *shape)
    assert done.returncode == 0 and "1 of 1 right" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(not SIMULATOR.exists(), reason="this build has no simulator")
def test_an_exported_kernel_has_no_other_shapes(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text(export.export("gemm_fp8_blockwise"))
    done = weft_command("evaluate", file, "--device", "sim:gfx942", "--shape", "m=64,n=64,k=256")
    assert done.returncode == 1 and "contest's shapes" in done.stdout, done.stdout + done.stderr


def test_every_shape_of_the_contest_has_launches():
    for target in export.TARGETS:
        with export.Recorder(target) as recorder:
            for of in export.EXPORTS.values():
                for shape in of.problem.tests + of.problem.benchmarks:
                    for step in of.steps(shape, target).values():
                        size, launches = export.recorded(step, recorder)
                        used = {operand for launch in launches for _, operand, _ in launch[-1]}
                        assert launches and used >= set(range(step.operands)), step.operation
                        assert size == 0 or step.operands in used


def test_plans_without_a_gpu():
    with export.Recorder("gfx942") as recorder:
        (step,) = export.Fp8Mm.steps({"m": 1024, "n": 1536, "k": 7168}, "gfx942").values()
        args = step.arguments(*[16] * 6)
        assert "(" in recorder.plan(step.operation, args)
        with pytest.raises(weft.UsageError, match="no_such"):
            recorder.plan("no_such", args)


@pytest.mark.parametrize("mode", ["test", "benchmark", "leaderboard", "once", "profile"])
def test_evaluates_on_the_cpu(naive, mode):
    shapes = ["--shape", "m=64,n=64,k=128", "--shape", "m=32,n=192,k=256"]
    done = weft_command("evaluate", naive(), "--device", "cpu", "--mode", mode, *shapes)
    assert done.returncode == 0 and "2 of 2 right" in done.stdout, done.stdout + done.stderr
    assert ("geometric mean" in done.stdout) == (mode in ("benchmark", "leaderboard", "once"))


def test_sees_what_is_wrong(naive):
    shape = ["--device", "cpu", "--shape", "m=64,n=64,k=128", "--json"]
    done = weft_command("evaluate", naive(" * 1.05"), *shape)
    outcome = json.loads(done.stdout)
    assert done.returncode == 1 and "should be" in outcome["outcomes"][0]["error"]
    assert outcome["geometric_mean"] is None
    done = weft_command("evaluate", naive(" * float('nan')"), *shape)
    assert done.returncode == 1


@pytest.mark.parametrize("name", OTHERS)
def test_the_other_problems_of_2025(name, tmp_path):
    text, shape = OTHERS[name]
    file = tmp_path / "kernel.py"
    for more, wrong in (("", False), (" * 1.05", True)):
        file.write_text(text.replace("MORE", more))
        done = weft_command(
            "evaluate", file, "--device", "cpu", "--mode", "leaderboard", "--shape", shape
        )
        assert done.returncode == wrong, done.stdout + done.stderr
        assert ("should be" in done.stdout) == wrong and ("geometric mean" in done.stdout) != wrong
    file.write_text(
        text.replace("MORE", "")
        .replace("cache.get_data()", "cache.get_data()[:, :-1]")
        .replace("out.half()", "out")
    )
    done = weft_command("evaluate", file, "--device", "cpu", "--shape", shape)
    assert done.returncode == 1 and "the result is torch." in done.stdout, done.stdout + done.stderr


def test_a_file_that_returns_too_little(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("def custom_kernel(data):\n    return None\n")
    for name, shape in (("amd-mla-decode", OTHERS["mla"][1]), ("amd-fp8-mm", "m=8,n=128,k=128")):
        done = weft_command("evaluate", file, "--problem", name, "--device", "cpu", "--shape", shape)
        assert done.returncode == 1 and "None" in done.stdout, done.stdout + done.stderr


def test_refusals_are_sentences(tmp_path, naive):
    for arguments, code, match in [
        (("evaluate", tmp_path / "none.py"), 3, "none.py"),
        (("export-kernel", "no_such"), 2, "gemm_fp8_blockwise"),
        (("export-kernel", "gemm_fp8_blockwise", "--target", "sm_90a"), 2, "gfx942"),
        (("evaluate", naive(), "--device", "cpu", "--shape", "m=1"), 2, "m=64, n=64, k=128"),
        (("evaluate", naive(), "--problem", "x", "--device", "cpu"), 2, "amd-fp8-mm"),
    ]:
        done = weft_command(*arguments)
        assert done.returncode == code and match in done.stderr, done.stdout + done.stderr
        assert done.stderr.count("\n") == 1

"""weft.LLM, the tokenizer, errors. Needs neither numpy nor torch."""

import _thread
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import weft
from weft import _c

PROMPT = "def fibonacci(n):"


@pytest.fixture(scope="module")
def llm(model):
    return weft.LLM(model)


def test_imports_without_numpy_and_torch():
    code = "import sys, weft; assert not {'numpy', 'torch'} & set(sys.modules); weft.devices()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_devices_are_there_or_say_why():
    for device in weft.devices():
        assert device.missing or device.target


def test_generates_the_same_each_time(llm):
    first = llm.generate(PROMPT, max_tokens=24)
    assert first.text and first.stop == "length" and len(first.ids) == 24
    assert first.prompt_tokens == len(llm.tokenizer.encode(PROMPT))
    assert llm.generate(PROMPT, max_tokens=24).ids == first.ids
    assert llm.generate(llm.tokenizer.encode(PROMPT), max_tokens=24).ids == first.ids
    assert first.text == llm.tokenizer.decode(first.ids)


def test_a_batch_is_its_prompts_one_by_one(llm):
    prompts = [PROMPT, "import ", "class A:"]
    batch = llm.generate(prompts, max_tokens=12, temperature=0.8, seed=5)
    for i, each in enumerate(prompts):
        assert llm.generate(each, max_tokens=12, temperature=0.8, seed=5 + i).ids == batch[i].ids
    assert llm.generate([]) == []


def test_seeds_differ(llm):
    drawn = {llm.generate(PROMPT, max_tokens=16, temperature=1.5, seed=s).text for s in range(4)}
    assert len(drawn) > 1


def test_stream_gives_the_same_text_and_can_be_left(llm):
    text = llm.generate(PROMPT, max_tokens=24).text
    assert "".join(llm.stream(PROMPT, max_tokens=24)) == text
    for _ in llm.stream(PROMPT, max_tokens=100000):
        break
    assert llm.generate(PROMPT, max_tokens=24).text == text


def test_stop_strings_cut_the_text(llm):
    text = llm.generate(PROMPT, max_tokens=32).text
    cut = text[len(text) // 2 :][:4]
    for got in (
        llm.generate(PROMPT, max_tokens=32, stop=cut).text,
        "".join(llm.stream(PROMPT, max_tokens=32, stop=[cut])),
    ):
        assert got == text[: text.index(cut)]


def test_score_and_logits_agree(llm):
    score = llm.score("def f(x):\n    return x")
    assert len(score.logprobs) == len(score.ids) - 1 and all(p < 0 for p in score.logprobs)
    assert 1 < score.perplexity < 8064
    logits = llm.logits(PROMPT)
    best = max(range(len(logits)), key=logits.__getitem__)
    assert [best] == llm.generate(PROMPT, max_tokens=1).ids


def test_tokenizer_goes_there_and_back(llm):
    text = "def f(α):\n\treturn '✓'  # 漢字"
    ids = llm.tokenizer.encode(text)
    assert llm.tokenizer.decode(ids) == text and max(ids) < len(llm.tokenizer)


def test_errors_are_sentences(llm, tmp_path):
    with pytest.raises(weft.InputError, match="config.json"):
        weft.LLM(tmp_path)
    with pytest.raises(weft.InputError):
        llm.generate([8064 * 4], max_tokens=1)
    with pytest.raises(weft.UsageError, match="temperature"):
        llm.generate(PROMPT, temperature=-1)
    with pytest.raises(TypeError, match="warmth"):
        llm.generate(PROMPT, warmth=1)
    with pytest.raises(weft.UsageError, match="fp4"):
        weft.LLM("x", kv="fp4")
    with pytest.raises(weft.WeftError, match="nowhere"):
        weft.LLM(llm.directory, device="nowhere")


def test_closed_models_say_so(model):
    with weft.LLM(model) as llm:
        llm.generate("x", max_tokens=1)
    with pytest.raises(weft.UsageError, match="closed"):
        llm.generate("x", max_tokens=1)


def test_two_models_run_at_once_and_the_lock_is_free(model, llm):
    expected = llm.generate(PROMPT, max_tokens=64).ids
    results = []
    with weft.LLM(model, threads=1) as other:
        threads = [
            threading.Thread(target=lambda m=m: results.append(m.generate(PROMPT, max_tokens=64).ids))
            for m in (llm, other, llm)
        ]
        for thread in threads:
            thread.start()
        turns = 0
        while any(thread.is_alive() for thread in threads):
            turns += 1
            time.sleep(0.0001)
        assert turns > 10
    assert results == [expected] * 3


def test_errors_in_the_loop_of_a_stream_end_it(llm):
    with pytest.raises(ZeroDivisionError):
        for _ in llm.stream(PROMPT, max_tokens=100000):
            raise ZeroDivisionError
    assert llm.generate(PROMPT, max_tokens=2).ids


@pytest.mark.parametrize("how", ["generate", "stream"])
def test_interrupt_ends_a_generation(llm, how):
    threading.Timer(0.5, _thread.interrupt_main).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        for seed in range(1000):
            options = {"max_tokens": 2000, "ignore_eos": 1, "temperature": 1.0, "seed": seed}
            if how == "generate":
                llm.generate(PROMPT, **options)
            else:
                for _ in llm.stream(PROMPT, **options):
                    pass
    assert time.monotonic() - begin < 20  # far less than a generation's 2000 tokens and the next ones'
    assert llm.generate(PROMPT, max_tokens=2).ids


def test_a_cancelled_call_says_so(llm):
    cancel = ctypes.c_int32(1)
    ids = (ctypes.c_int32 * 1000)(*[5] * 1000)
    with pytest.raises(weft.Cancelled):
        _c.lib.weft_score(llm.handle, ids, 1000, ctypes.byref(cancel), None, None)
    assert llm.generate(PROMPT, max_tokens=2).ids


def test_sigint_from_outside_ends_a_program(model):
    code = f"""
import weft
llm = weft.LLM({str(model)!r})
print("ready", flush=True)
try:
    for seed in range(100000):
        llm.generate("x", max_tokens=500, ignore_eos=1, temperature=1.0, seed=seed)
except KeyboardInterrupt:
    print("ended", llm.generate("x", max_tokens=1).stop)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=os.environ
    ) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)
    assert out == "ended length\n"

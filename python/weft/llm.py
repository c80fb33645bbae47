"""Models: text in, text out."""

import ctypes
import dataclasses
import math
import os
import queue
import threading

from weft import _c
from weft._c import lib

_STOPS = ("eos", "length", "context", "stop")
_FORMATS = {None: -1, "auto": -1, "f32": _c.F32, "bf16": _c.BF16}


@dataclasses.dataclass(frozen=True)
class Generation:
    """A prompt's continuation."""

    text: str
    ids: list  # new tokens, without the end-of-sequence token
    stop: str  # "eos", "length", "context", or "stop": a stop string was seen
    prompt_tokens: int
    prefill_seconds: float  # to the first new token
    decode_seconds: float  # all further steps together

    def __str__(self):
        return self.text


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a model finds a text."""

    ids: list
    logprobs: list  # natural log-probability of ids[1:], each given those before

    @property
    def perplexity(self):
        return math.exp(-sum(self.logprobs) / len(self.logprobs)) if self.logprobs else math.nan


class Tokenizer(_c.Owner):
    """A model's tokenizer.json. May be used by several threads at once."""

    _close = "weft_tokenizer_close"

    def __init__(self, directory):
        super().__init__(None)
        super().__init__(_c.opened(lib.weft_tokenizer_open, os.fsencode(directory)))

    def __len__(self):
        """The highest id + 1."""
        return lib.weft_tokenizer_size(self.handle)

    def encode(self, text, add_special=True):
        """The ids of a text. `add_special`: with the tokens around it that the model was trained with."""
        data = text.encode()
        capacity = len(data) + 16
        while True:
            ids, count = (ctypes.c_int32 * capacity)(), ctypes.c_size_t()
            lib.weft_encode(
                self.handle, data, len(data), add_special, ids, capacity, ctypes.byref(count)
            )
            if count.value <= capacity:
                return ids[: count.value]
            capacity = count.value

    def decode(self, ids, skip_special=True):
        """The text of ids."""
        ids = list(ids)
        array = (ctypes.c_int32 * len(ids))(*ids)
        capacity = 16 * len(ids) + 16
        while True:
            text, count = ctypes.create_string_buffer(capacity), ctypes.c_size_t()
            lib.weft_decode(
                self.handle, array, len(ids), skip_special, text, capacity, ctypes.byref(count)
            )
            if count.value <= capacity:
                return text.raw[: count.value].decode()
            capacity = count.value


class _Decoder(_c.Owner):
    """Ids that come one by one, as text up to a stop string."""

    _close = "weft_stream_decoder_close"

    def __init__(self, tokenizer, stops):
        super().__init__(None)
        self._tokenizer = tokenizer  # outlives this
        texts = [s.encode() for s in stops]
        array = (ctypes.c_char_p * len(texts))(*texts)
        super().__init__(
            _c.opened(lib.weft_stream_decoder_open, tokenizer.handle, array, len(texts))
        )
        self.stopped = False

    def push(self, token):
        text, count, stopped = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int32()
        lib.weft_stream_decoder_push(
            self.handle, token, ctypes.byref(text), ctypes.byref(count), ctypes.byref(stopped)
        )
        self.stopped = stopped.value != 0
        return ctypes.string_at(text, count.value).decode() if count.value else ""

    def finish(self):
        return "" if self.stopped else self.push(-1)


class LLM(_c.Owner):
    """A model from a Hugging Face directory (config.json, safetensors, tokenizer.json).

        llm = weft.LLM("models/weft-code", device="cpu")
        llm.generate("def fibonacci(n):", max_tokens=64).text

    `device`: "cpu", "cuda", "cuda:1". `threads`: of the CPU, default all usable. `context`: positions of the KV
    cache, default the model's. `sequences`: prompts decoded at once, on cuda up to 8. `kv`, `activations`: "f32",
    "bf16" or "auto". `compressed`: read weights in 12 bits without loss; default where that is faster.

    Calls let go of the interpreter's lock. One call at a time runs, others wait for it; several models may
    run at once. Ctrl-C ends a generation after its present step.
    """

    _close = "weft_engine_close"

    def __init__(
        self,
        directory,
        device="cpu",
        *,
        threads=0,
        context=0,
        sequences=1,
        kv="auto",
        activations="auto",
        compressed=None,
    ):
        super().__init__(None)
        for name, value in (("kv", kv), ("activations", activations)):
            if value not in _FORMATS:
                raise _c.UsageError(f"{name} {value!r} is not known: use 'f32', 'bf16' or 'auto'")
        options = _c.EngineOptions(
            device=device.encode(),
            workers=threads,
            sequences=sequences,
            context=context,
            kv=_FORMATS[kv],
            activations=_FORMATS[activations],
            compressed=-1 if compressed is None else int(compressed),
        )
        self.directory = os.fspath(directory)
        self.device = device
        self._lock = threading.Lock()
        self._tokenizer = None
        super().__init__(
            _c.opened(lib.weft_engine_open, os.fsencode(directory), ctypes.byref(options))
        )
        info = _c.EngineInfo()
        lib.weft_engine_describe(self.handle, ctypes.byref(info))
        self.vocabulary, self.context, self.sequences = (
            info.vocabulary,
            info.context,
            info.sequences,
        )

    def __repr__(self):
        return f"weft.LLM({self.directory!r}, device={self.device!r})"

    @property
    def tokenizer(self):
        if self._tokenizer is None:
            self._tokenizer = Tokenizer(self.directory)
        return self._tokenizer

    def generate(self, prompts, *, max_tokens=256, stop=(), **sampling):
        """Continues a prompt (str or list of ids) or a list of prompts: a Generation or a list of them.

        `stop`: a text or several, before the first of which it ends. Sampling: temperature (0: greedy), top_k,
        top_p, min_p, repetition_penalty, seed (prompt i draws with seed + i), ignore_eos.
        """
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        ids = [self._ids(p) for p in ([prompts] if single else prompts)]
        stops = [stop] if isinstance(stop, str) else list(stop)
        decoders = [_Decoder(self.tokenizer, stops) for _ in ids]
        texts = [""] * len(ids)

        def take(sequence, token):
            texts[sequence] += decoders[sequence].push(token)
            return not decoders[sequence].stopped

        # Without stop strings no step waits for Python.
        run = _generation(self, ids, max_tokens, sampling, take if stops else None)
        results = []
        for i, (new, ended, prefill, decode) in enumerate(run.wait()):
            text = texts[i] + decoders[i].finish() if stops else self.tokenizer.decode(new)
            results.append(Generation(text, new, ended, len(ids[i]), prefill, decode))
        return results[0] if single else results

    def stream(self, prompt, *, max_tokens=256, stop=(), **sampling):
        """Continues one prompt: an iterator of pieces of text, each as soon as it is certain. Leaving the
        loop ends the generation."""
        stops = [stop] if isinstance(stop, str) else list(stop)
        decoder = _Decoder(self.tokenizer, stops)
        pieces = queue.SimpleQueue()

        def take(_, token):
            piece = decoder.push(token)
            if piece:
                pieces.put(piece)
            return not decoder.stopped

        run = _generation(
            self, [self._ids(prompt)], max_tokens, sampling, take, lambda: pieces.put(None)
        )
        try:
            while (piece := _next(pieces)) is not None:
                yield piece
            run.wait()
            if piece := decoder.finish():
                yield piece
        finally:
            run.cancel()

    def score(self, text):
        """Log-probabilities of a text's tokens (str or list of ids): a Score."""
        ids = self._ids(text)
        logprobs = (ctypes.c_double * max(len(ids) - 1, 1))()
        self._score(ids, logprobs, None)
        return Score(ids, logprobs[: max(len(ids) - 1, 0)])

    def logits(self, text):
        """The logits after the last token of a text (str or list of ids): [vocabulary] floats."""
        logits = (ctypes.c_float * self.vocabulary)()
        self._score(self._ids(text), None, logits)
        return logits[:]

    def _score(self, ids, logprobs, logits):
        handle, array = self.handle, (ctypes.c_int32 * len(ids))(*ids)
        _Call(
            self,
            lambda cancel: lib.weft_score(handle, array, len(ids), cancel, logprobs, logits),
        ).wait()

    def _ids(self, prompt):
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)


# Seconds after which who waits looks whether it was interrupted: a signal need not wake it.
_AWAKE = 0.05


def _next(pieces):
    while True:
        try:
            return pieces.get(timeout=_AWAKE)
        except queue.Empty:
            pass


class _Call:
    """A call in a thread of its own: whoever waits for it can be interrupted. `work` gets the number that
    cancels it."""

    def __init__(self, llm, work, at_end=lambda: None):
        self._lock = llm._lock
        self._work = work
        self._at_end = at_end
        self._result = None
        self._error = None
        self._ended = threading.Event()
        self._cancel = ctypes.c_int32(0)
        threading.Thread(target=self._run, name="weft", daemon=True).start()

    def _run(self):
        try:
            with self._lock:
                self._result = self._work(ctypes.pointer(self._cancel))
        except BaseException as error:  # goes to who waits
            self._error = error
        self._ended.set()
        self._at_end()

    def wait(self):
        """What `work` returned or raised."""
        try:
            while not self._ended.wait(_AWAKE):
                pass
        except BaseException:  # Ctrl-C
            self.cancel()
            raise
        if self._error:
            raise self._error
        return self._result

    def cancel(self):
        """Ends it after its present step, and waits until then."""
        self._cancel.value = 1
        self._ended.wait()


_DEFAULTS = {
    "temperature": 0.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "ignore_eos": 0,
    "seed": 0,
}


def _generation(llm, prompts, max_tokens, sampling, take, at_end=lambda: None):
    """A _Call of weft_generate() for lists of ids: of each (ids, stop, seconds of the prompt, of the rest)."""
    if unknown := set(sampling) - set(_DEFAULTS):
        raise TypeError(f"no such option: {', '.join(sorted(unknown))}")
    handle, count = llm.handle, len(prompts)
    arrays = [(ctypes.c_int32 * len(ids))(*ids) for ids in prompts]
    tokens = (_c.Tokens * count)(*(_c.Tokens(array, len(array)) for array in arrays))
    errors = []

    def on_token(_, sequence, token):
        try:
            return int(take(sequence, token))
        except BaseException as error:  # goes to who waits
            errors.append(error)
            return 0

    def work(cancel):
        options = _c.GenerateOptions(
            **{**_DEFAULTS, **sampling},
            max_tokens=max_tokens,
            on_token=_c.ON_TOKEN(on_token) if take else _c.ON_TOKEN(),
            cancel=cancel,
        )
        out = (_c.Generation * count)()
        lib.weft_generate(handle, tokens, count, ctypes.byref(options), out)
        if errors:
            raise errors[0]
        return [(g.ids[: g.count], _STOPS[g.stop], g.prefill_seconds, g.decode_seconds) for g in out]

    return _Call(llm, work, at_end)

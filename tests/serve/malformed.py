"""Requests that no server may take: each is a good one with one thing made wrong."""

import copy
import json

GOOD = {
    "/v1/completions": {"prompt": "def f(", "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "n": 1, "seed": 1,
                        "stop": ["x"], "logprobs": 1, "logit_bias": {"300": 1}, "stream": False, "echo": False,
                        "presence_penalty": 0, "frequency_penalty": 0, "min_tokens": 0, "top_k": 5, "min_p": 0.1,
                        "repetition_penalty": 1, "stop_token_ids": [5], "ignore_eos": False},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1, "temperature": 0,
                             "logprobs": True, "top_logprobs": 2, "stream": False, "n": 1, "top_p": 1, "stop": "x"},
    "/v1/responses": {"input": "hello", "max_output_tokens": 1, "temperature": 0, "top_p": 1, "stream": False},
    "/tokenize": {"prompt": "hello", "add_special_tokens": True},
    "/detokenize": {"tokens": [300, 301]},
}
NUMBERS = {"max_tokens", "temperature", "top_p", "n", "seed", "presence_penalty", "frequency_penalty", "min_tokens",
           "top_k", "min_p", "repetition_penalty", "top_logprobs", "max_output_tokens"}
RANGES = {"temperature": (-0.1, 101), "top_p": (-0.5, 1.5), "n": (0, -3, 1000), "presence_penalty": (-2.5, 3),
          "frequency_penalty": (-3, 2.1), "min_p": (-1, 2), "repetition_penalty": (0, -1), "max_tokens": (-1, 1e18),
          "top_k": (-2, 1e12), "min_tokens": (-1,), "top_logprobs": (-1, 1000), "max_output_tokens": (-1,)}
REQUIRED = {"/v1/completions": "prompt", "/v1/chat/completions": "messages", "/v1/responses": "input",
            "/detokenize": "tokens", "/tokenize": "prompt"}


def wrong_value(rng, key, good):
    """A value of a type that this field cannot have."""
    values = [{"a": {}}, [[[]]], [{}]]
    if not isinstance(good, str) and key != "stop":
        values += ["text", ""]
    if not isinstance(good, bool) and key not in ("logprobs",):
        values += [True]
    if key not in NUMBERS and key != "logprobs":
        values += [1.5, -7]
    if key in RANGES:
        values += list(RANGES[key])
    if key in NUMBERS and isinstance(good, int) and key not in ("temperature", "top_p", "presence_penalty",
                                                                 "frequency_penalty", "repetition_penalty"):
        values += [0.5]
    return rng.choice(values)


def broken_text(rng, text):
    """JSON that is none."""
    kind = rng.randrange(6)
    at = rng.randrange(len(text))
    if kind == 0:
        return text[:at]
    if kind == 1:
        return text + rng.choice([b"}", b"x", b"{}", b"\0"])
    if kind == 2:
        return text[:1] + rng.choice([b"\x01", b"'", b"//", b",", b":"]) + text[1:]
    if kind == 3:
        return b'{"prompt": "' + bytes([rng.choice([0xFF, 0xC0, 0xED])]) + b'"}'
    if kind == 4:
        return b'{"prompt":' + b"[" * rng.choice([10, 1000, 100000])
    return rng.choice([b"", b"null", b"[]", b'"text"', b"5", b"\xef\xbb\xbf", b"NaN", b"{'a':1}"])


def malformed(rng, count):
    """(path, body) pairs."""
    paths = list(GOOD)
    for _ in range(count):
        path = rng.choice(paths)
        request = copy.deepcopy(GOOD[path])
        kind = rng.randrange(4)
        if kind == 0:
            yield path, broken_text(rng, json.dumps(request).encode())
            continue
        if kind == 1:
            del request[REQUIRED[path]]
        elif kind == 2:
            request["model"] = rng.choice(["other", "gpt-4", "..", "weft-code "])
            if path in ("/tokenize", "/detokenize"):
                request.pop(REQUIRED[path])
        else:
            key = rng.choice(list(request))
            request[key] = wrong_value(rng, key, request[key])
        yield path, json.dumps(request).encode()

#!/usr/bin/env python3
"""What HTTP adds to each token and to the first one, against the engine in process: by turns, in one run.

    python3 bench/serve_latency.py [--weft build/release/weft] [--model models/weft-code] [--threads N]
        [--rounds 5] [--tokens 400] [--json FILE]

A round is `weft generate` and then one client that streams the same tokens from `weft serve`: a socket and a loop that
notes when bytes come. Of the times between tokens the mean, the median and the 99th percentile are those of the round
with the least mean, which others' work on the machine has disturbed least; `added` is the difference. A client that
is kept from its core sees tokens in bunches, and then the mean alone tells something. First tokens are of prompts of
512 tokens, fresh each time, that a chat template puts together: the client's time is held against what the server says
passed between the engine's being given that request and its first token; of all requests the median of the difference.
`io` is the processor's time that the server spent a token on threads that do not step the engine. On a machine whose
cores are all taken by --threads, the client and the server's thread for HTTP take theirs from the engine: leave two.
Where others work on the machine, `chrt -f 10 python3 bench/serve_latency.py --threads 1` keeps its cores, not its caches.
"""

import argparse
import datetime
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/serve"))
from server import MODEL, ROOT, Server  # noqa: E402

PROMPT = "def fibonacci(n):\n"


FIRST = 512  # tokens of the prompts whose first token is timed
PROMPTS = 4  # of them in a round


def quantiles(seconds):
    ordered = sorted(seconds)
    return {"mean": statistics.fmean(ordered), "p50": statistics.median(ordered), "p99": ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]}


def command(options, *arguments):
    threads = ["--threads", str(options.threads)] if options.threads else []
    return [options.weft, *arguments, "--model", options.model, *threads]


def in_process(options):
    """Seconds between tokens."""
    run = subprocess.run(command(options, "generate", "--prompt", PROMPT, "--max-tokens", str(options.tokens), "--stats-json", "-"),
                         capture_output=True, check=True)
    return json.loads(run.stdout)["decode_seconds"]


def prefill_seconds(server):
    """Of all requests so far, from the engine's being given one to its first token."""
    page = server.send("/metrics").read().decode()
    return float(re.search(r"request_prefill_time_seconds_sum\{.*\} (.*)", page).group(1))


def prompt_of(server, words, rng):
    """A text of FIRST tokens."""
    text, count = "", 0
    while count != FIRST:
        text = "" if count > FIRST else text + rng.choice(words)
        count = server.ask("/tokenize", {"prompt": text})[1]["count"] if text else 0
    return text


def stream(server, path, body):
    """Seconds from the request's last byte to each of its tokens' events, and to the end of the answer."""
    text = json.dumps({**body, "stream": True, "temperature": 0}).encode()
    with server.socket() as connection:
        times, held = [], b""
        start = time.perf_counter()
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        while b"[DONE]" not in held:
            held = connection.recv(65536)
            now = time.perf_counter() - start
            assert held, "the server closed the connection"
            times += [now] * held.count(b'"finish_reason":null')
    return times, now


def other_threads(server):
    """Seconds that threads other than the one that steps the engine, and its workers, have run."""
    seconds = 0
    for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir():
        if (task / "comm").read_text().startswith("weft-http"):
            seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--json", help="also write the figures to this file")
    options = parser.parse_args()

    rng = random.Random(1)
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as template:
        template.write("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
        template.flush()
        arguments = ["--threads", str(options.threads)] if options.threads else []
        server = Server(options.weft, "--chat-template", template.name, "--no-log", *arguments, model=options.model)
        words = [server.ask("/detokenize", {"tokens": [rng.randrange(400, 8000)]})[1]["prompt"] for _ in range(300)]
        rounds = {name: [] for name in ("generate", "http", "engine_first", "http_first", "io")}
        for _ in range(options.rounds):
            rounds["generate"].append(quantiles(in_process(options)))
            before = other_threads(server)
            times, _ = stream(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": options.tokens})
            rounds["io"].append((other_threads(server) - before) / len(times))
            rounds["http"].append(quantiles([b - a for a, b in zip(times, times[1:])]))
            for text in [prompt_of(server, words, rng) for _ in range(PROMPTS)]:
                chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "ignore_eos": True}
                before = prefill_seconds(server)
                rounds["http_first"].append(stream(server, "/v1/chat/completions", chat)[1])
                rounds["engine_first"].append(prefill_seconds(server) - before)
        assert server.stop() == 0, server.said()

    best = {name: min(rounds[name], key=lambda each: each["mean"]) for name in ("generate", "http")}
    least = {f"{name}_{q}": value for name, figures in best.items() for q, value in figures.items()}
    first = {name: statistics.median(rounds[name]) for name in ("engine_first", "http_first")}
    first_added = statistics.median(http - engine for http, engine in zip(rounds["http_first"], rounds["engine_first"]))
    figures = {
        "date": datetime.date.today().isoformat(), "model": pathlib.Path(options.model).name,
        "threads": options.threads or len(os.sched_getaffinity(0)), "rounds": options.rounds, "tokens": options.tokens,
        "seconds": least | first | {"io": min(rounds["io"])},
        "added_seconds": {q: least[f"http_{q}"] - least[f"generate_{q}"] for q in ("mean", "p50", "p99")}
        | {"first": first_added},
        "all_rounds": rounds,
    }
    us = {name: f"{1e6 * value:.0f} us" for name, value in (figures["seconds"] | figures["added_seconds"]).items()}
    for q in ("mean", "p50", "p99"):
        print(f"between tokens, {q}: generate {us[f'generate_{q}']}, HTTP {us[f'http_{q}']}: {us[q]} added")
    print(f"first of {FIRST} tokens: engine {us['engine_first']}, HTTP {us['http_first']}: {us['first']} added")
    print(f"the server's HTTP threads ran {us['io']} a token")
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

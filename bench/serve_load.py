#!/usr/bin/env python3
"""Tokens a second through HTTP: closed clients that ask for one streamed answer after another.

    python3 bench/serve_load.py --model DIR [--weft build/release/weft] [--device cpu] [--clients 1 8 64]
        [--prompt-tokens 512] [--new-tokens 256] [--each 4] [--processes 4] [--json FILE] [-- SERVE OPTIONS]

For each number of clients a server with as many slots answers --each requests of every client, of random tokens, after
one that warms it. (A directory of `weft new-model` gets a tokenizer of made-up words.) Tokens a second: all tokens of all
answers over the time from the first request to the last token. First token: from a request's last byte to the first event
with a token. Between tokens: from one event to the next of an answer; tokens that come in one read have nothing between
them. An answer that is not whole ends the run.
"""

import argparse
import datetime
import json
import multiprocessing
import pathlib
import random
import re
import selectors
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/serve"))
from server import MODEL, ROOT, Server  # noqa: E402

TOKEN = b'"finish_reason":null'  # in every event that brings one, but the answer's last


class Client:
    """One connection after another, each with one request."""

    def __init__(self, server, options, each, seed):
        self.server, self.options, self.left, self.rng = server, options, each, random.Random(seed)
        self.first, self.between = [], []

    def ask(self):
        prompt = [self.rng.randrange(300, self.options.vocabulary) for _ in range(self.options.prompt_tokens)]
        body = json.dumps({"prompt": prompt, "max_tokens": self.options.new_tokens, "ignore_eos": True, "temperature": 0,
                           "stream": True, "stream_options": {"include_usage": True}}).encode()
        self.connection = self.server.socket()
        self.tail, self.tokens = b"", 0
        self.connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.last = time.perf_counter()
        self.left -= 1
        return self.connection

    def read(self):
        """Whether the answer is whole."""
        piece = self.connection.recv(1 << 18)
        now = time.perf_counter()
        if not piece:
            raise SystemExit(f"serve_load: an answer broke off after {self.tokens} tokens: {self.tail!r}")
        more = (self.tail[1 - len(TOKEN):] + piece).count(TOKEN)
        if more > 0:
            (self.between if self.tokens else self.first).append(now - self.last)
            self.last, self.tokens = now, self.tokens + more
        self.tail = (self.tail + piece)[-1000:]
        if b"data: [DONE]" not in self.tail:
            return False
        if f'"completion_tokens":{self.options.new_tokens}'.encode() not in self.tail:
            raise SystemExit(f"serve_load: an answer is not of {self.options.new_tokens} tokens: {self.tail!r}")
        self.connection.close()
        return True


def work(server, options, seeds, begin, results):
    """A process's clients."""
    clients = [Client(server, options, options.each, seed) for seed in seeds]
    begin.wait()
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client.ask(), selectors.EVENT_READ, client)
        while selector.get_map():
            for key, _ in selector.select():
                if key.data.read():
                    selector.unregister(key.fileobj)
                    if key.data.left > 0:
                        selector.register(key.data.ask(), selectors.EVENT_READ, key.data)
    results.put(([t for c in clients for t in c.first], [t for c in clients for t in c.between]))


def give_tokenizer(directory, vocabulary):
    """Random weights come without one, and the server wants one: weft-code's, and a word for each further id."""
    tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
    words = tokenizer["model"]["vocab"]
    taken = {*words.values(), *(token["id"] for token in tokenizer["added_tokens"])}
    words |= {f"w{i}": i for i in range(vocabulary) if i not in taken}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def load(options, clients):
    arguments = ["--slots", str(clients), "--no-log", "--context", str(options.prompt_tokens + options.new_tokens),
                 "--device", options.device, *options.serve]
    server = Server(options.weft, *arguments, model=options.model, gpus=options.device != "cpu")
    warm = Client(server, options, 1, 0)
    warm.ask()
    while not warm.read():
        pass
    processes = min(options.processes, clients)
    begin, results = multiprocessing.Barrier(processes + 1), multiprocessing.Queue()
    workers = [multiprocessing.Process(target=work, args=(server, options, range(1 + i, 1 + clients, processes), begin, results))
               for i in range(processes)]
    for worker in workers:
        worker.start()
    begin.wait()
    start = time.perf_counter()
    first, between = [], []
    for _ in workers:
        got = results.get(timeout=Server.PATIENCE * options.each)
        first += got[0]
        between += got[1]
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.join()
    assert server.stop() == 0, server.said()
    between.sort()
    return {
        "clients": clients,
        "tokens_a_second": clients * options.each * options.new_tokens / seconds,
        "first_token_seconds": {"p50": statistics.median(first), "most": max(first)},
        "between_seconds": {"p50": statistics.median(between), "p99": between[round(0.99 * (len(between) - 1))]},
    }


def origin(options):
    """Which command, where and when, as `weft bench --json` says it."""
    def said(*arguments):
        return subprocess.run([options.weft, *arguments], check=True, capture_output=True, text=True).stdout

    version, commit = re.match(r"weft (\S+) \((\w+)\)", said("--version")).groups()
    name = next((line.split(maxsplit=1)[1].split(" (")[0].split(",")[0] for line in said("devices").splitlines()
                 if line.split()[0].split(":")[0] == options.device.split(":")[0]), options.device)
    return {"version": version, "commit": commit, "date": f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
            "device": options.device, "name": name,
            "method": f"closed clients in up to {options.processes} processes of the same machine, {options.each} streamed answers each"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--weft", default=str(ROOT / "build/release/weft"))
    parser.add_argument("--model", default=str(MODEL))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--each", type=int, default=4, help="requests of a client")
    parser.add_argument("--processes", type=int, default=4, help="that the clients are spread over")
    parser.add_argument("--json", help="also write the figures to this file")
    parser.add_argument("serve", nargs="*", help="options for weft serve, after --")
    options = parser.parse_args()
    directory = pathlib.Path(options.model)
    vocabulary = json.loads((directory / "config.json").read_text())["vocab_size"]
    options.vocabulary = min(30000, vocabulary)
    if not (directory / "tokenizer.json").exists():
        give_tokenizer(directory, vocabulary)
    figures = {**origin(options), "model": pathlib.Path(options.model).name, "prompt_tokens": options.prompt_tokens,
               "new_tokens": options.new_tokens, "options": " ".join(options.serve), "loads": []}
    for clients in options.clients:
        figures["loads"].append(load(options, clients))
        each = figures["loads"][-1]
        print(f"{clients:3} clients: {each['tokens_a_second']:8.1f} tokens a second; first token p50 "
              f"{1e3 * each['first_token_seconds']['p50']:.1f} ms, most {1e3 * each['first_token_seconds']['most']:.1f}; between tokens "
              f"p50 {1e3 * each['between_seconds']['p50']:.3f} ms, p99 {1e3 * each['between_seconds']['p99']:.3f}", flush=True)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()

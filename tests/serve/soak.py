#!/usr/bin/env python3
"""A soak of the server: clients that join, leave and are cut off, a queue that is full, logs that have no room, a
process that is killed. Every request that is accepted gets exactly the tokens that it gets alone.

    soak.py [--minutes M] WEFT [OPTION...]     (the command's path and options of `weft serve`, such as --threads 1 on a
                                               busy machine; run by ctest, label long, for ten minutes)
"""

import argparse
import http.client
import json
import os
import random
import socket
import subprocess
import sys
import threading
import time

from server import MODEL, Server

CLIENTS = 12
SLOTS = 4
REQUESTS = 8  # that the server lets in: CLIENTS are more, so that some are refused
LIMIT = Server.PATIENCE = 300  # seconds that an answer may take, of a sanitized build on a busy machine


def kinds(rng):
    """Requests that differ in all that the engine does for them; many begin alike."""
    beginnings = [[rng.randrange(300, 1300) for _ in range(size)] for size in (3, 70, 200, 700)]
    for number in range(48):
        beginning = rng.choice(beginnings)
        body = {"prompt": beginning[:rng.randrange(1, len(beginning) + 1)] + [300 + number],
                "max_tokens": rng.choice((1, 8, 40, 150)), "seed": number, "return_token_ids": True,
                "temperature": rng.choice((0, 0.8)), "ignore_eos": rng.random() < 0.5}
        match number % 6:
            case 0:
                body["logprobs"] = 3
            case 1:
                body |= {"logit_bias": {"487": 2}, "presence_penalty": 0.5, "frequency_penalty": 0.2}
            case 2:
                body["structured_outputs"] = {"regex": "[a-z]{3,12}( [0-9]+)*;"}
            case 3:
                body |= {"n": 2, "top_p": 0.9, "top_k": 40}
            case 4:
                body["stop"] = ["\n\n", "return"]
        yield body


def outcome(answer):
    """What of an answer must not depend on the company: all but times, names and what was cached."""
    return [{key: choice[key] for key in ("index", "text", "logprobs", "finish_reason", "token_ids")}
            for choice in answer["choices"]]


def streamed_outcome(text):
    """Text and end of each choice; None: the stream was cut off."""
    if not text.endswith("data: [DONE]\n\n"):
        return None
    choices = {}
    for part in text.split("\n\n")[:-2]:
        if part.startswith(":"):
            continue
        event = json.loads(part.removeprefix("data: "))
        assert "error" not in event, event
        for choice in event["choices"]:
            one = choices.setdefault(choice["index"], ["", None])
            one[0] += choice["text"]
            one[1] = choice["finish_reason"]
    return [choices[index] for index in sorted(choices)]


class Soak:
    def __init__(self, weft, minutes, arguments):
        self.weft = weft
        self.arguments = arguments
        self.lock = threading.Lock()
        self.counts = dict.fromkeys(("whole", "streamed", "left", "reset", "refused", "malformed", "lost", "killed"), 0)
        self.faults = []
        self.bodies = list(kinds(random.Random(1)))
        self.port = 0  # 0: the server is being started again
        self.killing = False
        alone = Server(weft, "--slots", "1", "--threads", "1")
        start = time.monotonic()
        self.expected = [self.alone(alone, body) for body in self.bodies]
        print(f"{len(self.bodies)} requests were answered alone in {time.monotonic() - start:.0f} s", flush=True)
        assert alone.stop() == 0, alone.said()
        self.end = time.monotonic() + 60 * minutes
        self.least_gone = 1000 if minutes >= 10 else 1  # clients that leave

    @staticmethod
    def alone(server, body):
        status, answer = server.ask("/v1/completions", body)
        assert status == 200, answer
        return outcome(answer)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fault(self, what):
        with self.lock:
            self.faults.append(what)

    def start(self):
        with socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
        full = open("/dev/full", "w")  # the disk for logs is full
        self.errors = open(f"/tmp/weft-soak-{os.getpid()}.log", "a+")
        command = [self.weft, "serve", "--model", MODEL, "--port", str(port), "--slots", str(SLOTS), "--context", "1024",
                   "--max-requests", str(REQUESTS), "--draft", "ngram:3", *self.arguments]
        # A sanitizer's report has to be seen, so that its log goes elsewhere.
        options = {name: f"log_path={self.errors.name}:{os.environ.get(name, '')}"
                   for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS")}
        self.process = subprocess.Popen(command, stderr=full, stdin=subprocess.DEVNULL, env={**os.environ, **options})
        full.close()
        end = time.monotonic() + LIMIT
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    break
            except OSError:
                pass
            assert time.monotonic() < end and self.process.poll() is None, "the server does not start"
            time.sleep(0.05)
        self.port = port

    def metric(self, name):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
        connection.close()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{"))

    def settle(self):
        """With all clients gone: nothing is kept of them."""
        end = time.monotonic() + LIMIT
        while (held := [name for name in ("vllm:num_requests_running", "vllm:num_requests_waiting",
                                          "vllm:kv_cache_usage_perc") if self.metric(name)]):
            if time.monotonic() > end:
                return self.fault(f"still held: {held}")
            time.sleep(0.05)
        connections = len([name for name in os.listdir(f"/proc/{self.process.pid}/fd")])
        if connections > self.descriptors + 2:
            self.fault(f"{connections} descriptors are open, at the beginning {self.descriptors}")

    def client(self, seed):
        rng = random.Random(seed)
        while not self.pause.is_set():
            port, killing = self.port, self.killing
            try:
                self.request(rng, port)
            except (OSError, http.client.HTTPException) as error:
                # A connection may break only when the server is killed.
                if killing or self.killing or self.pause.is_set():
                    self.count("lost")
                    time.sleep(0.05)
                else:
                    self.fault(f"{type(error).__name__}: {error}")

    def request(self, rng, port):
        number = rng.randrange(len(self.bodies))
        what = rng.choices(("whole", "streamed", "left", "reset", "malformed"), (3, 3, 2, 2, 1))[0]
        body = {**self.bodies[number], "stream": what == "streamed" or rng.random() < 0.5}
        if what == "whole":
            body["stream"] = False
        text = json.dumps(body)
        if what == "malformed":
            text = text[:rng.randrange(1, len(text))]
        if what in ("left", "reset"):
            with socket.create_connection(("127.0.0.1", port), timeout=LIMIT) as connection:
                sent = text.encode()
                connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(sent)
                                   + sent[:rng.choice((len(sent), len(sent), len(sent) // 2))])
                time.sleep(rng.choice((0, 0.001, 0.02, 0.2)))
                if what == "reset":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            return self.count(what)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        try:
            connection.request("POST", "/v1/completions", text)
            response = connection.getresponse()
            if what == "streamed" and response.status == 200 and rng.random() < 0.2:
                time.sleep(rng.random())  # a slow reader
            got = response.read().decode()
        finally:
            connection.close()
        if response.status == 503:
            if "Retry-After" not in response.headers:
                self.fault("503 without Retry-After")
            time.sleep(rng.random() * 0.4)
            return self.count("refused")
        if what == "malformed":
            if response.status != 400 or "error" not in json.loads(got):
                self.fault(f"a malformed request got {response.status}: {got[:200]}")
            return self.count(what)
        if response.status != 200:
            return self.fault(f"{response.status}: {got[:300]}")
        expected = self.expected[number]
        if what == "streamed":
            right = streamed_outcome(got) == [[choice["text"], choice["finish_reason"]] for choice in expected]
        else:
            right = outcome(json.loads(got)) == expected
        if not right:
            self.fault(f"request {number} ({what}) was answered otherwise than alone: {got[:2000]}")
        self.count(what)

    def run(self):
        """Rounds: clients come, and all go; every third round the server is killed amid them."""
        round_ = 0
        self.start()
        self.descriptors = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        while time.monotonic() < self.end and not self.faults:
            self.pause = threading.Event()
            threads = [threading.Thread(target=self.client, args=(1000 * round_ + i,)) for i in range(CLIENTS)]
            for thread in threads:
                thread.start()
            self.pause.wait(min(15, max(1, self.end - time.monotonic())))
            if round_ % 3 == 2:
                self.killing = True
                self.process.kill()
                self.process.wait()
                self.counts["killed"] += 1
                self.start()
                time.sleep(2)  # slow readers meet what is broken late
                self.killing = False
                time.sleep(2)
            self.pause.set()
            for thread in threads:
                thread.join()
            if self.process.poll() is not None:
                self.fault(f"the server ended with {self.process.returncode}")
                break
            self.settle()
            round_ += 1
            print(f"{max(0, self.end - time.monotonic()):.0f} s left: {self.counts}", flush=True)
        if self.process.poll() is None:
            self.process.terminate()
            if self.process.wait(LIMIT) != 0:
                self.fault(f"after SIGTERM the server ended with {self.process.returncode}")
        reports = []
        for name in os.listdir("/tmp"):
            if name.startswith(os.path.basename(self.errors.name) + "."):
                with open(f"/tmp/{name}") as report:
                    reports.append(report.read())
        self.faults += reports
        for fault in self.faults:
            print(f"fault: {fault[:6000]}")
        gone = self.counts["left"] + self.counts["reset"]
        if not (self.counts["whole"] and self.counts["streamed"] and self.counts["refused"] and gone >= self.least_gone):
            self.faults.append("too little happened")
            print("fault: too little happened")
        print(f"{'failed' if self.faults else 'right'}: {self.counts}")
        return 1 if self.faults else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("weft")
    options, arguments = parser.parse_known_args()
    sys.exit(Soak(options.weft, options.minutes, arguments).run())

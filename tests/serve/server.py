"""A server under test, and a client that is no library: requests as bytes, so that what is wrong can be sent."""

import http.client
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "models" / "weft-code"


class Server:
    """`weft serve` on a free port; ready when this is constructed."""

    PATIENCE = 60  # seconds that an answer may take

    def __init__(self, weft, *arguments, model=MODEL, gpus=False):
        self.log = tempfile.TemporaryFile("a+")  # its reader moves the place where the server writes, too
        self.process = subprocess.Popen(
            [weft, "serve", "--model", model, "--port", "0", *arguments],
            stderr=self.log, stdout=subprocess.PIPE,
            env=os.environ if gpus else {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""})
        self.port = int(self.wait_for(r"http://[^ ]*:(\d+)/ loads").group(1))
        self.wait_for(r"/ serves ")

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def wait_for(self, pattern, seconds=None):
        end = time.monotonic() + (seconds or self.PATIENCE)
        while not (match := re.search(pattern, self.said())):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"the server did not say {pattern}: {self.said()}")
            time.sleep(0.02)
        return match

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    # Requests.

    def send(self, path, body=None, headers=None, method=None):
        """The open response of http.client; a body that is no text is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.PATIENCE)
        if body is not None and not isinstance(body, (str, bytes)):
            body = json.dumps(body)
        connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
        response = connection.getresponse()
        response.connection = connection  # that one lives as long as the other
        return response

    def ask(self, path, body=None, headers=None, method=None):
        """(status, JSON) of a request."""
        response = self.send(path, body, headers, method)
        text = response.read()
        response.connection.close()
        return response.status, json.loads(text) if text else None

    def events(self, path, body):
        """The data of a stream's events, as texts."""
        response = self.send(path, {**body, "stream": True})
        text = response.read().decode("utf-8")
        response.connection.close()
        assert response.status == 200, text
        return [part.removeprefix("data: ") for part in text.split("\n\n") if part]

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=self.PATIENCE)

    def begin(self, path, body):
        """A connection on which a request was sent."""
        text = json.dumps(body).encode()
        connection = self.socket()
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
                           .encode() + text)
        return connection

    def metric(self, name):
        response = self.send("/metrics")
        page = response.read().decode()
        response.connection.close()
        return sum(float(line.split()[-1]) for line in page.splitlines()
                   if line.startswith(name + "{"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def wait_until_idle(self, seconds=20):
        end = time.monotonic() + (seconds or self.PATIENCE)
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting"):
            assert time.monotonic() < end, "slots are not given back"
            time.sleep(0.02)

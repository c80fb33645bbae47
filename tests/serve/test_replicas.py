#!/usr/bin/env python3
"""Two replicas behind nginx, as deploy/nginx.conf has them; one is killed in mid-stream. Skipped (77) without nginx.

    test_replicas.py WEFT     (the command's path; run by ctest)
"""

import http.client
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from server import ROOT, Server

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft"
BODY = {"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}


def free_port():
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Replicas(unittest.TestCase):
    def setUp(self):
        self.replicas = [Server(WEFT, "--threads", "1") for _ in range(2)]
        self.folder = tempfile.TemporaryDirectory()
        self.port = free_port()
        text = (ROOT / "deploy/nginx.conf").read_text()
        for was, becomes in (("127.0.0.1:8001", f"127.0.0.1:{self.replicas[0].port}"),
                             ("127.0.0.1:8002", f"127.0.0.1:{self.replicas[1].port}"),
                             ("listen 8443 ssl", f"listen 127.0.0.1:{self.port}"),
                             ("http {", f"http {{ access_log off; client_body_temp_path {self.folder.name}; "
                                        f"proxy_temp_path {self.folder.name}/proxy;")):
            self.assertIn(was, text)
            text = text.replace(was, becomes)
        text = re.sub(r"\n *ssl_certificate.*;", "", text)
        path = pathlib.Path(self.folder.name) / "nginx.conf"
        path.write_text(f"daemon off; pid {self.folder.name}/pid; error_log {self.folder.name}/log;\n" + text)
        self.nginx = subprocess.Popen(["nginx", "-c", path], stderr=subprocess.DEVNULL)
        end = time.monotonic() + 10
        while self.ask()[0] != 200:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def tearDown(self):
        self.nginx.terminate()
        self.nginx.wait(10)
        for replica in self.replicas:
            replica.stop()
        self.folder.cleanup()

    def send(self, **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", "/v1/completions", json.dumps({**BODY, **fields}))
        response = connection.getresponse()
        response.connection = connection
        return response

    def ask(self, **fields):
        try:
            response = self.send(**fields)
            text = response.read()
            response.connection.close()
            return response.status, text
        except OSError as error:
            return 0, error

    def test_one_is_killed_in_mid_stream(self):
        streams = [self.send(max_tokens=1500, stream=True, ignore_eos=True) for _ in range(4)]
        for stream in streams:
            self.assertTrue(stream.readline().startswith(b"data: "))  # tokens come before the end
        self.assertGreater(min(r.metric("vllm:num_requests_running") for r in self.replicas), 0)
        self.replicas[0].process.kill()
        self.replicas[0].process.wait()
        for _ in range(20):
            status, text = self.ask()
            self.assertEqual(status, 200, text)
        whole = 0
        for stream in streams:
            try:
                whole += b"[DONE]" in stream.read()
            except http.client.IncompleteRead:
                pass
            stream.connection.close()
        self.assertEqual(whole, 2)

    def test_one_drains(self):
        stream = self.send(max_tokens=800, stream=True, ignore_eos=True)
        stream.readline()
        for replica in self.replicas:
            if replica.metric("vllm:num_requests_running"):
                replica.process.terminate()
        for _ in range(20):
            status, text = self.ask()
            self.assertEqual(status, 200, text)
        self.assertIn(b"[DONE]", stream.read())
        stream.connection.close()


if __name__ == "__main__":
    if shutil.which("nginx") is None:
        print("skipped: nginx is not there (apt-get install nginx-light)")
        sys.exit(77)
    unittest.main()

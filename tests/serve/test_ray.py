#!/usr/bin/env python3
"""deploy/ray_serve.py with two replicas of the demo model: who answers what, and one that is killed in mid-stream.

    test_ray.py WEFT     (the command's path; run by with_packages.sh)
"""

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

# Ray gives up soon on processes that take long to start, as they do on a busy machine.
os.environ |= {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "120", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "120",
               "RAY_worker_register_timeout_seconds": "300", "RAY_raylet_start_wait_time_s": "300",
               "RAY_USAGE_STATS_ENABLED": "0"}
import ray  # noqa: E402
from ray import serve  # noqa: E402

from server import MODEL, ROOT  # noqa: E402

WEFT = os.path.abspath(sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft")
sys.path.insert(0, str(ROOT / "deploy"))
import ray_serve  # noqa: E402

PORT = 18432
BODY = {"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}


def send(**fields):
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}/v1/completions", json.dumps({**BODY, **fields}).encode(),
                                     {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)


class Choice(unittest.TestCase):
    def test_the_cache_decides_until_one_is_much_busier(self):
        one, two = ray_serve.Peer(None), ray_serve.Peer(None)
        text = "x" * 1000
        blocks = ray_serve.blocks_of(json.dumps({"prompt": text + "a" * 300}))
        self.assertEqual(len(blocks), 5)
        two.remember(ray_serve.blocks_of(json.dumps({"prompt": text + "b" * 300})))
        self.assertEqual((one.common(blocks), two.common(blocks)), (0, 3))
        self.assertIs(ray_serve.choose([one, two], blocks), two)
        tickets = [ray_serve.Ticket() for _ in range(ray_serve.SLACK + 1)]
        for ticket in tickets:
            two.tickets.add(ticket)
        self.assertIs(ray_serve.choose([one, two], blocks), one)
        del ticket, tickets
        self.assertEqual(two.load, 0)
        busy = ray_serve.Ticket()
        one.tickets.add(busy)
        self.assertIs(ray_serve.choose([one, two], []), two)  # the least busy one, without a prompt in common
        self.assertEqual(ray_serve.blocks_of(b"no JSON"), [])


class Replicas(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        ray.init(num_cpus=4, include_dashboard=False, object_store_memory=100 << 20, logging_level=logging.ERROR,
                 log_to_driver=False, _temp_dir=cls.folder.name,
                 runtime_env={"env_vars": {"PYTHONPATH": str(ROOT / "deploy")}})
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": PORT})
        except TimeoutError:
            pass  # after a minute; it goes on starting, and what follows waits for it
        serve.run(ray_serve.build({"model": str(MODEL), "weft": WEFT, "options": "--threads 1"}), name="weft")
        end = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=30):
                    break
            except OSError:
                assert time.monotonic() < end, "Ray's proxy does not answer"
                time.sleep(0.5)
        cls.handles = [serve.get_deployment_handle(f"weft-{i}", app_name="weft") for i in range(2)]

    @classmethod
    def tearDownClass(cls):
        serve.shutdown()
        ray.shutdown()
        cls.folder.cleanup()

    def where(self, index):
        return self.handles[index].address.remote().result(timeout_s=30)

    def metric(self, index, name):
        with urllib.request.urlopen(self.where(index)["url"] + "/metrics", timeout=30) as page:
            return sum(float(line.split()[-1]) for line in page.read().decode().splitlines()
                       if line.startswith(name + "{"))

    def answered(self, index):
        return self.metric(index, "vllm:request_success_total")

    def test_common_beginnings_go_to_one_and_load_to_both(self):
        for round_ in range(3):
            before = [self.answered(i) for i in range(2)]
            for i in range(4):
                text = f"# {round_}\n" + "def f(a):\n    return a\n" * 40 + f"# {i}\n"
                with send(prompt=text, max_tokens=2) as response:
                    json.load(response)
            grown = sorted(self.answered(i) - was for i, was in enumerate(before))
            self.assertEqual(grown, [0, 4])
        before = [self.answered(i) for i in range(2)]
        threads = [threading.Thread(target=lambda i=i: send(prompt=f"x{i}", max_tokens=200, ignore_eos=True).read())
                   for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for i, was in enumerate(before):
            self.assertGreaterEqual(self.answered(i) - was, 2)

    def test_a_client_that_leaves_frees_the_slot(self):
        with send(max_tokens=1900, ignore_eos=True, stream=True) as stream:
            stream.readline()
        end = time.monotonic() + 20
        while any(self.metric(i, "vllm:num_requests_running") for i in range(2)):
            self.assertLess(time.monotonic(), end)
            time.sleep(0.05)

    def test_what_a_replica_refuses_is_passed_on(self):
        with self.assertRaises(urllib.error.HTTPError) as caught:
            send(prompt=5)
        with caught.exception as error:
            self.assertEqual((error.code, json.load(error)["error"]["param"]), (400, "prompt"))

    def test_one_is_killed_in_mid_stream(self):
        streams = [send(prompt=f"# {i}", max_tokens=1500, stream=True, ignore_eos=True) for i in range(4)]
        for stream in streams:
            self.assertTrue(stream.readline().startswith(b"data: "))
        self.assertGreater(min(self.metric(i, "vllm:num_requests_running") for i in range(2)), 0)
        killed = self.where(0)["process"]
        os.kill(killed, signal.SIGKILL)
        for i in range(10):  # the other one answers
            with send(prompt=f"x = {i}") as response:
                self.assertEqual(json.load(response)["usage"]["completion_tokens"], 12)
        whole = cut = 0
        for stream in streams:
            text = stream.read()
            stream.close()
            whole += text.endswith(b"data: [DONE]\n\n")
            cut += b"the replica that answered has ended" in text
        self.assertEqual((whole, cut), (2, 2))
        end = time.monotonic() + 90  # it is started again
        while True:
            try:
                if self.where(0)["process"] != killed:
                    break
            except Exception:  # whatever Ray raises of a replica that is not there
                pass
            self.assertLess(time.monotonic(), end)
            time.sleep(0.2)
        before = self.answered(0)
        end = time.monotonic() + 30
        while self.answered(0) == before:  # and answers
            with send(prompt=f"# {time.monotonic()}") as response:
                json.load(response)
            streams = [send(prompt=f"# {i}", max_tokens=50, stream=True) for i in range(2)]
            for stream in streams:
                stream.read()
            self.assertLess(time.monotonic(), end)


if __name__ == "__main__":
    unittest.main()

"""Replicas of `weft serve` under Ray Serve, behind one address that spreads requests by load and common prefix.

    serve run deploy.ray_serve:build model=models/weft-code replicas=2      (from this repository's folder)

Arguments: model; replicas (2); weft, the command's path (weft); cpus and gpus of each replica (1 and 0), of
which Ray keeps account; options, of `weft serve` (--threads 1, say), as one text.

Each replica is a process of its own that Ray starts, and starts again when it ends. Tokens go from it to the
router over HTTP: Ray passes none between the two.
"""

import asyncio
import collections
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
import weakref

import aiohttp
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

START_LIMIT = 600  # seconds, for large models
DRAIN_LIMIT = 40  # seconds; weft serve gives what is being answered 30
BLOCK = 256  # bytes of a request that are compared as one
KEPT_BLOCKS = 1 << 16  # for each replica
SLACK = 4  # requests that a replica may have more than the least busy one, for the sake of its cache


@serve.deployment(health_check_period_s=1, health_check_timeout_s=10, graceful_shutdown_timeout_s=DRAIN_LIMIT,
                  max_ongoing_requests=1000)
class Replica:
    """A process that serves the model on a port of its own."""

    def __init__(self, weft, model, options):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([weft, "serve", "--model", model, "--port", "0", *options], stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        end = time.monotonic() + START_LIMIT
        while not (said := re.search(r"(http://[^ ]*)/ serves ", self.said())):
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"weft serve did not start: {self.said()[-2000:]}")
            time.sleep(0.05)
        self.url = said.group(1)

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def address(self):
        return {"url": self.url, "process": self.process.pid}

    def check_health(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"weft serve ended with {self.process.returncode}: {self.said()[-2000:]}")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)  # it drains
            try:
                self.process.wait(DRAIN_LIMIT)
            except subprocess.TimeoutExpired:
                self.process.kill()

    __del__ = stop


class Ticket:
    """A request while a replica answers it, whatever becomes of it."""


class Peer:
    """A replica as the router knows it."""

    def __init__(self, handle):
        self.handle = handle
        self.url = None  # while it is not known where it is
        self.tickets = weakref.WeakSet()  # of requests that it is answering
        self.seen = collections.OrderedDict()  # blocks of earlier requests, the latest last

    @property
    def load(self):
        return len(self.tickets)

    def common(self, blocks):
        count = 0
        while count < len(blocks) and blocks[count] in self.seen:
            count += 1
        return count

    def remember(self, blocks):
        for block in blocks:
            self.seen[block] = None
            self.seen.move_to_end(block)
        while len(self.seen) > KEPT_BLOCKS:
            self.seen.popitem(last=False)

    def lost(self):
        """Whoever starts in its place has an empty cache and another port."""
        self.url = None
        self.seen.clear()


def blocks_of(body):
    """What names each beginning of a prompt, block by block: equal names, equal text up to there."""
    try:
        request = json.loads(body)
        prompt = request.get("prompt") or request.get("messages") or request.get("input") or ""
    except (ValueError, AttributeError):
        return []  # the replica says what is wrong
    text = prompt if isinstance(prompt, str) else json.dumps(prompt)
    names, name = [], 0
    for begin in range(0, len(text) - BLOCK + 1, BLOCK):
        name = hash((name, text[begin:begin + BLOCK]))
        names.append(name)
    return names


def choose(peers, blocks):
    """The peer that knows most of the beginning, among those that are not much busier than others."""
    least = min(peer.load for peer in peers)
    return max((peer for peer in peers if peer.load <= least + SLACK),
               key=lambda peer: (peer.common(blocks), -peer.load))


def error(status, message):
    body = {"error": {"message": message, "type": "server_error", "param": None, "code": "unavailable"}}
    return json.dumps(body), {"status_code": status, "media_type": "application/json", "headers": {"Retry-After": "1"}}


@serve.deployment(max_ongoing_requests=10000)
class Router:
    def __init__(self, *handles):
        self.peers = [Peer(handle) for handle in handles]
        self.session = None

    async def find(self, peer):
        """Asks a replica where it is; one that is being started says nothing yet."""
        try:
            peer.url = (await asyncio.wait_for(peer.handle.address.remote(), 1))["url"]
        except Exception:  # whatever Ray raises of a replica that is not there
            peer.url = None

    async def here(self, but):
        unknown = [peer for peer in self.peers if peer.url is None and peer not in but]
        known = [peer for peer in self.peers if peer.url is not None and peer not in but]
        looks = [asyncio.ensure_future(self.find(peer)) for peer in unknown]
        if not known:
            await asyncio.gather(*looks)
        return [peer for peer in self.peers if peer.url is not None and peer not in but]

    async def __call__(self, request: Request):
        if self.session is None:  # of this event loop
            self.session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None),
                                                 connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        body = await request.body()
        blocks = blocks_of(body) if request.method == "POST" else []
        tried = []
        while peers := await self.here(tried):
            peer = choose(peers, blocks)
            ticket = Ticket()
            peer.tickets.add(ticket)
            try:
                answer = await self.session.request(
                    request.method, peer.url + request.url.path, data=body,
                    headers={name: request.headers[name] for name in ("authorization", "content-type")
                             if name in request.headers})
            except aiohttp.ClientError:  # nothing was answered yet: another one may
                peer.lost()
                tried.append(peer)
                continue
            peer.remember(blocks)
            headers = {name: answer.headers[name] for name in ("Retry-After",) if name in answer.headers}
            return StreamingResponse(self.passed_on(peer, ticket, answer), answer.status, headers,
                                     answer.headers.get("Content-Type"))
        text, fields = error(503, "no replica is ready: come again")
        return Response(text, **fields)

    async def passed_on(self, peer, ticket, answer):
        """The answer's bytes as they come. A client that leaves ends this, and with it the answer."""
        try:
            async for piece in answer.content.iter_any():
                yield piece
        except aiohttp.ClientError:
            peer.lost()
            yield f"data: {error(502, 'the replica that answered has ended')[0]}\n\n".encode()
        finally:
            answer.close()
            peer.tickets.discard(ticket)


def build(arguments):
    unknown = set(arguments) - {"model", "replicas", "weft", "cpus", "gpus", "options"}
    if unknown or "model" not in arguments:
        raise ValueError(f"unknown: {sorted(unknown)}; give model, and of replicas, weft, cpus, gpus and options "
                         "what you wish")
    replicas = [
        Replica.options(name=f"weft-{i}", ray_actor_options={"num_cpus": float(arguments.get("cpus", 1)),
                                                             "num_gpus": float(arguments.get("gpus", 0))})
        .bind(arguments.get("weft", "weft"), os.path.abspath(arguments["model"]),
              shlex.split(arguments.get("options", "")))
        for i in range(int(arguments.get("replicas", 2)))]
    return Router.options(ray_actor_options={"num_cpus": 0}).bind(*replicas)

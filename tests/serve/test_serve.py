#!/usr/bin/env python3
"""The server as its clients meet it: what it answers byte for byte, how it refuses, who leaves.

    test_serve.py WEFT     (the command's path; run by ctest)
"""

import json
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from malformed import malformed
from server import MODEL, ROOT, Server

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft"
PROMPT = "def add(a, b):\n"
GREEDY = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0}
SHAPE = {"message", "type", "param", "code"}


class ServerTest(unittest.TestCase):
    ARGUMENTS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(WEFT, *cls.ARGUMENTS)

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.said()

    def answer(self, path, body):
        status, answer = self.server.ask(path, body)
        self.assertEqual(status, 200, answer)
        return answer

    def complete(self, **fields):
        return self.answer("/v1/completions", {**GREEDY, **fields})

    def refused(self, status, path, body, headers=None, method=None):
        got, answer = self.server.ask(path, body, headers, method)
        self.assertEqual(got, status, answer)
        self.assertEqual(set(answer["error"]), SHAPE)
        return answer["error"]


class Wire(ServerTest):
    def test_tokens_are_those_of_generate(self):
        run = subprocess.run([WEFT, "generate", "--model", MODEL, "--prompt", PROMPT, "--max-tokens", "40",
                              "--stats-json", "-"], capture_output=True, check=True)
        answer = self.complete(max_tokens=40)
        self.assertEqual(answer["choices"][0]["text"], json.loads(run.stdout)["text"])
        self.assertEqual(answer["usage"]["prompt_tokens"], 7)
        self.assertEqual(answer["usage"]["completion_tokens"], 40)

    def test_stream_byte_for_byte(self):
        response = self.server.send("/v1/completions", {
            **GREEDY, "max_tokens": 2, "stream": True, "stream_options": {"include_usage": True}})
        self.assertEqual(response.headers["Content-Type"], "text/event-stream; charset=utf-8")
        text = response.read().decode()
        response.connection.close()
        identity = json.loads(text.split("\n\n")[0].removeprefix("data: "))
        head = (f'data: {{"id":"{identity["id"]}","object":"text_completion",'
                f'"created":{identity["created"]},"model":"weft-code","choices":[')
        tail = ']'
        choice = '{"index":0,"text":%s,"logprobs":null,"finish_reason":%s}'
        expected = "".join(
            head + choice % pair + '],"usage":null}\n\n'
            for pair in [('"   "', "null"), (r'" \"\"\""', "null"), ('""', '"length"')])
        expected += (head + tail + ',"usage":{"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,'
                     '"prompt_tokens_details":{"cached_tokens":0}}}\n\ndata: [DONE]\n\n')
        self.assertEqual(text, expected)

    def test_streamed_is_whole(self):
        for fields in ({}, {"n": 3, "temperature": 1, "seed": 7}, {"stop": ["to the"]}, {"logprobs": 2}):
            body = {**GREEDY, "max_tokens": 40, **fields}
            whole = self.answer("/v1/completions", body)
            *chunks, done = self.server.events("/v1/completions", body)
            self.assertEqual(done, "[DONE]")
            texts, ends, tokens = {}, {}, {}
            for chunk in map(json.loads, chunks):
                for choice in chunk["choices"]:
                    at = choice["index"]
                    texts[at] = texts.get(at, "") + choice["text"]
                    ends[at] = choice["finish_reason"]
                    tokens[at] = tokens.get(at, []) + (choice["logprobs"] or {"tokens": []})["tokens"]
            for choice in whole["choices"]:
                at = choice["index"]
                self.assertEqual(texts[at], choice["text"])
                self.assertEqual(ends[at], choice["finish_reason"])
                if "logprobs" in fields:
                    self.assertEqual(tokens[at], choice["logprobs"]["tokens"])

    def test_characters_and_stop_strings_come_whole(self):
        # Every byte of these is a token of its own somewhere, so that characters are cut by tokens.
        text = "# Grüße 🙂🙂 ¿qué? 日本語\n"
        for seed in range(8):
            body = {"prompt": text * 4, "max_tokens": 60, "temperature": 1.5, "seed": seed}
            for event in self.server.events("/v1/completions", body)[:-1]:
                json.loads(event)["choices"][0]["text"].encode("utf-8")
        whole = self.complete(max_tokens=40)["choices"][0]["text"]
        for stop in (whole[20:29], whole[7:10]):  # over several tokens
            cut = self.complete(max_tokens=40, stop=stop)["choices"][0]
            self.assertEqual(cut["text"], whole[:whole.find(stop)])
            self.assertEqual(cut["finish_reason"], "stop")
            shown = self.complete(max_tokens=40, stop=[stop], include_stop_str_in_output=True)
            self.assertEqual(shown["choices"][0]["text"], whole[:whole.find(stop) + len(stop)])

    def test_nulls_are_absent_and_unknown_fields_ignored(self):
        names = ("model suffix max_completion_tokens n stream stream_options logprobs echo stop seed top_p top_k "
                 "min_p presence_penalty frequency_penalty repetition_penalty logit_bias user best_of "
                 "response_format structured_outputs min_tokens stop_token_ids").split()
        nulls = dict.fromkeys(names) | {"nobody_knows_this": {"a": [1]}}
        self.assertEqual(self.complete(**nulls)["choices"], self.complete()["choices"])

    def test_prompts(self):
        ids = self.answer("/tokenize", {"prompt": PROMPT})["tokens"]
        one = self.complete()["choices"][0]
        for prompt in (ids, [PROMPT], [ids]):
            self.assertEqual(self.complete(prompt=prompt)["choices"], [one])
        two = self.complete(prompt=["import", PROMPT], n=2)["choices"]
        self.assertEqual([choice["index"] for choice in two], [0, 1, 2, 3])
        self.assertEqual([two[2]["text"], two[3]["text"]], [one["text"]] * 2)
        self.assertEqual(self.answer("/detokenize", {"tokens": ids[1:]})["prompt"], PROMPT)
        pieces = self.answer("/tokenize", {"content": PROMPT, "with_pieces": True})
        self.assertEqual("".join(pieces["token_strs"]), PROMPT)

    def test_seeds(self):
        drawn = lambda seed: [c["text"] for c in self.complete(n=3, temperature=1, seed=seed)["choices"]]
        self.assertEqual(drawn(3), drawn(3))
        self.assertNotEqual(drawn(3), drawn(4))
        self.assertEqual(len(set(drawn(3))), 3)

    def test_logits_are_changed(self):
        forced = self.complete(logit_bias={"487": 100}, max_tokens=4, return_token_ids=True)
        self.assertEqual(forced["choices"][0]["token_ids"], [487] * 4)
        free = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        without = self.complete(logit_bias={str(free[0]): -100}, return_token_ids=True)
        self.assertNotEqual(without["choices"][0]["token_ids"][0], free[0])
        allowed = self.complete(allowed_token_ids=[487, 1078], temperature=1, return_token_ids=True)
        self.assertLessEqual(set(allowed["choices"][0]["token_ids"]), {487, 1078})
        pair = {"logit_bias": {"487": 60, "1078": 59}, "max_tokens": 4, "return_token_ids": True}
        for penalty in ("presence_penalty", "frequency_penalty"):
            ids = self.complete(**pair, **{penalty: 2})["choices"][0]["token_ids"]
            self.assertEqual(len(set(ids)), 2, ids)

    def test_bad_words_are_not_said(self):
        free = self.complete(max_tokens=40)["choices"][0]["text"]
        words = [word for word in free.split() if word.isalpha()][:3]
        kept = self.complete(max_tokens=40, bad_words=words)["choices"][0]["text"]
        for word in words:
            self.assertNotIn(word, kept.split())
        self.refused(400, "/v1/completions", {**GREEDY, "bad_words": [""]})

    def test_prompts_are_cut_where_that_is_asked_for(self):
        ids = self.answer("/tokenize", {"prompt": PROMPT})["tokens"]
        end = self.complete(prompt=ids[-3:], echo=True)
        for prompt in (PROMPT, ids):
            cut = self.complete(prompt=prompt, truncate_prompt_tokens=3, echo=True)
            self.assertEqual(cut["choices"], end["choices"])
            self.assertEqual(cut["usage"]["prompt_tokens"], 3)
        context = self.answer("/v1/models", None)["data"][0]["max_model_len"]
        full = self.complete(prompt=[487] * 3 * context, truncate_prompt_tokens=-1)
        self.assertEqual(full["usage"]["prompt_tokens"], context - 1)

    def test_ids_are_shown(self):
        body = {**GREEDY, "return_token_ids": True, "request_id": "mine"}
        whole = self.answer("/v1/completions", body)
        self.assertEqual(whole["id"], "cmpl-mine")
        [choice] = whole["choices"]
        chunks = [json.loads(event)["choices"][0] for event in self.server.events("/v1/completions", body)[:-1]]
        self.assertEqual([i for chunk in chunks for i in chunk["token_ids"]], choice["token_ids"])
        self.assertEqual([chunk.get("prompt_token_ids") for chunk in chunks],
                         [choice["prompt_token_ids"]] + [None] * (len(chunks) - 1))

    def test_prompts_have_log_probabilities(self):
        answer = self.complete(prompt_logprobs=2, echo=True, logprobs=2, return_token_ids=True)["choices"][0]
        shown = answer["logprobs"]
        first, *rest = answer["prompt_logprobs"]
        self.assertIsNone(first)
        self.assertEqual(len(rest), len(answer["prompt_token_ids"]) - 1)
        for i, entries in enumerate(rest, 1):
            own = entries[str(answer["prompt_token_ids"][i])]
            self.assertEqual((own["decoded_token"], own["logprob"]), (shown["tokens"][i], shown["token_logprobs"][i]))
            ranks = sorted(entry["rank"] for entry in entries.values())
            self.assertEqual(ranks[:2], [1, 2])
            self.assertEqual(len(ranks), 2 if own["rank"] <= 2 else 3)

    def test_scores_are_those_of_score(self):
        text = (MODEL / "train.py").read_text()[:1200]
        run = subprocess.run([WEFT, "score", "--model", MODEL, "--text", text, "--json"],
                             capture_output=True, check=True)
        expected = json.loads(run.stdout)
        # As evaluation harnesses ask: ids, echo, one token more that is thrown away.
        answer = self.complete(prompt=expected["ids"], echo=True, logprobs=1, max_tokens=1)
        logprobs = answer["choices"][0]["logprobs"]
        values = logprobs["token_logprobs"]
        self.assertEqual(len(values), len(expected["ids"]) + 1)
        self.assertIsNone(values[0])
        self.assertAlmostEqual(sum(values[1:-1]), sum(expected["logprobs"]), delta=1e-4)
        for got, want in zip(values[1:-1], expected["logprobs"]):
            self.assertAlmostEqual(got, want, delta=1e-4)
        self.assertEqual("".join(logprobs["tokens"][1:-1]), text)
        self.assertTrue(answer["choices"][0]["text"].startswith(text))
        for name in ("tokens", "top_logprobs", "text_offset"):
            self.assertEqual(len(logprobs[name]), len(values))
        nothing = self.complete(prompt=expected["ids"][:20], echo=True, logprobs=1, max_tokens=0)
        got = nothing["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(len(got), 20)
        self.assertAlmostEqual(sum(got[1:]), sum(expected["logprobs"][:19]), delta=1e-3)

    def test_ends(self):
        self.assertEqual(self.complete()["choices"][0]["finish_reason"], "length")
        whole = self.complete(return_token_ids=True)["choices"][0]["token_ids"]
        stopped = self.complete(stop_token_ids=[whole[5]])["choices"][0]
        self.assertEqual(stopped["finish_reason"], "stop")
        longer = self.complete(stop_token_ids=[whole[5]], min_tokens=8, return_token_ids=True)
        self.assertGreaterEqual(len(longer["choices"][0]["token_ids"]), 8)
        context = self.answer("/v1/models", None)["data"][0]["max_model_len"]
        full = self.complete(prompt=[487] * (context - 4), max_tokens=100, ignore_eos=True)
        self.assertEqual(full["choices"][0]["finish_reason"], "length")

    def test_cached_beginnings_are_told(self):
        prompt = [487, 1078] * 100
        self.complete(prompt=prompt)
        cached = self.complete(prompt=prompt)["usage"]["prompt_tokens_details"]["cached_tokens"]
        self.assertGreaterEqual(cached, 128)

    def test_connections_are_kept_and_requests_may_be_sent_ahead(self):
        body = json.dumps({**GREEDY, "max_tokens": 1}).encode()
        request = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                   .encode() + body)
        with self.server.socket() as connection:
            connection.sendall(request * 3)
            got = b""
            while got.count(b'"finish_reason"') < 3:
                piece = connection.recv(65536)
                self.assertTrue(piece)
                got += piece
        self.assertEqual(got.count(b"HTTP/1.1 200 OK"), 3)

    def test_page_models_and_metrics(self):
        response = self.server.send("/")
        page = response.read().decode()
        response.connection.close()
        self.assertIn("<!doctype html>", page)
        self.assertNotRegex(page, r"(src|href)=[\"']?https?:")
        self.assertEqual(self.answer("/v1/models/weft-code", None)["id"], "weft-code")
        self.assertEqual(self.server.ask("/health"), (200, {"status": "ok"}))
        before = self.server.metric("vllm:generation_tokens_total")
        self.complete()
        self.assertEqual(self.server.metric("vllm:generation_tokens_total"), before + 12)
        for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency", "request_queue_time",
                     "request_inference_time", "request_time_per_output_token"):
            self.assertGreater(self.server.metric(f"vllm:{name}_seconds_count"), 0)
        line = json.loads(self.server.said().splitlines()[-1])
        self.assertEqual((line["path"], line["status"]), ("/v1/completions", 200))


class Chat(ServerTest):
    MESSAGES = [{"role": "user", "content": "def add(a, b):\n"}]
    BODY = {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}

    @classmethod
    def setUpClass(cls):
        cls.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        cls.template.write("{% for m in messages %}{{ '# ' + m.role + '\n' + m.content }}{% endfor %}"
                           "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}")
        cls.template.flush()
        cls.server = Server(WEFT, "--chat-template", cls.template.name)

    def test_chat_is_the_templates_completion(self):
        chat = self.answer("/v1/chat/completions", {**self.BODY, "logprobs": True, "top_logprobs": 2})
        text = self.complete(prompt="# user\ndef add(a, b):\n", max_tokens=8, add_special_tokens=False)
        choice = chat["choices"][0]
        self.assertEqual(choice["message"], {"role": "assistant", "content": text["choices"][0]["text"]})
        self.assertEqual(chat["object"], "chat.completion")
        tokens = choice["logprobs"]["content"]
        self.assertEqual(len(tokens), 8)
        self.assertEqual(len(tokens[0]["top_logprobs"]), 2)
        self.assertEqual(bytes(b for t in tokens for b in t["bytes"]).decode(), choice["message"]["content"])
        parts = [{"role": "user", "content": [{"type": "text", "text": "def add(a, b):\n"}]}]
        again = self.answer("/v1/chat/completions", {**self.BODY, "messages": parts})
        self.assertEqual(again["choices"][0]["message"], choice["message"])

    def test_chat_streams(self):
        whole = self.answer("/v1/chat/completions", self.BODY)["choices"][0]["message"]["content"]
        *chunks, done = self.server.events("/v1/chat/completions",
                                           {**self.BODY, "stream_options": {"include_usage": True}})
        self.assertEqual(done, "[DONE]")
        first, *middle, last, usage = map(json.loads, chunks)
        self.assertEqual(first["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual("".join(c["choices"][0]["delta"]["content"] for c in middle), whole)
        self.assertEqual((last["choices"][0]["delta"], last["choices"][0]["finish_reason"]), ({}, "length"))
        self.assertEqual((usage["choices"], usage["usage"]["completion_tokens"]), ([], 8))

    def test_responses(self):
        body = {"input": "def add(a, b):\n", "max_output_tokens": 8, "temperature": 0}
        whole = self.answer("/v1/responses", body)
        self.assertEqual((whole["object"], whole["status"]), ("response", "incomplete"))
        text = whole["output"][0]["content"][0]["text"]
        events = self.server.events("/v1/responses", body)
        datas = [json.loads(event.split("data: ", 1)[1]) for event in events]
        self.assertEqual([d["sequence_number"] for d in datas], list(range(len(datas))))
        self.assertEqual("".join(d["delta"] for d in datas if d["type"].endswith("text.delta")), text)
        self.assertEqual(datas[-1]["response"]["output"][0]["content"][0]["text"], text)

    def test_a_call_cannot_be_demanded_where_the_template_shows_none(self):
        tool = {"type": "function", "function": {"name": "f"}}
        for choice in ("required", tool):
            error = self.refused(400, "/v1/chat/completions", {**self.BODY, "tools": [tool], "tool_choice": choice})
            self.assertEqual(error["param"], "tool_choice")

    def test_what_a_template_raises_is_told(self):
        error = self.refused(400, "/v1/chat/completions",
                             {**self.BODY, "messages": [{"role": "user", "content": "no"}]})
        self.assertIn("not this", error["message"])

    def test_structured_output(self):
        schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                                   "old": {"type": "boolean"}},
                  "required": ["name", "old"], "additionalProperties": False}
        form = {"type": "json_schema", "json_schema": {"name": "one", "strict": True, "schema": schema}}
        for seed in range(5):
            answer = self.answer("/v1/chat/completions", {
                **self.BODY, "max_tokens": 120, "temperature": 1.5, "seed": seed, "response_format": form})
            value = json.loads(answer["choices"][0]["message"]["content"])
            self.assertEqual(set(value), {"name", "old"})
            self.assertIsInstance(value["old"], bool)
        for fields, pattern in (({"structured_outputs": {"regex": "[a-f]{3}-[0-9]{1,5};"}}, r"[a-f]{3}-\d{1,5};"),
                                ({"guided_choice": ["yes", "no"]}, "yes|no"),
                                ({"grammar": 'root ::= "a" "b"{1,5} "!"'}, "ab+!")):
            text = self.complete(max_tokens=60, temperature=1, seed=1, **fields)["choices"][0]["text"]
            self.assertRegex(text, f"^({pattern})$")
        form["json_schema"]["schema"] = {"type": "object", "patternProperties": {"a": {}}}
        error = self.refused(400, "/v1/chat/completions", {**self.BODY, "response_format": form})
        self.assertIn("patternProperties", error["message"])


class TemplatesTest(unittest.TestCase):
    """A server for each of FORMATS' chat templates."""

    @classmethod
    def setUpClass(cls):
        cls.servers = {name: Server(WEFT, "--threads", "1", "--chat-template",
                                    ROOT / "tests/templates" / f"{name}.jinja") for name in cls.FORMATS}

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers.values():
            assert server.stop() == 0, server.said()

    def answer(self, server, **fields):
        status, answer = server.ask("/v1/chat/completions", {**self.BODY, **fields})
        self.assertEqual(status, 200, answer)
        return answer


class Tools(TemplatesTest):
    """Calls of tools, in the three ways to write them."""

    CITY = {"type": "string", "maxLength": 8}
    TOOLS = [
        {"type": "function", "function": {
            "name": "get_weather", "strict": True,
            "parameters": {"type": "object", "properties": {"city": CITY, "days": {"type": "integer", "maximum": 9}},
                           "required": ["city", "days"], "additionalProperties": False}}},
        {"type": "function", "function": {
            "name": "get_time", "parameters": {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}},
                                               "required": ["zone"], "additionalProperties": False}}}]
    NAMED = {"type": "function", "function": {"name": "get_time"}}
    BODY = {"messages": [{"role": "user", "content": "What time is it?"}], "tools": TOOLS, "max_tokens": 120,
            "temperature": 1}
    # Template, and an answer with two calls (Llama's template knows one alone).
    FORMATS = {
        "qwen2.5": 'I look.\n<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>\n'
                   '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}\n</tool_call>',
        "llama-3.2": '{"name": "get_time", "parameters": {"zone": "UTC"}}; '
                     '{"name": "get_weather", "parameters": {"city": "Oslo", "days": 1}}',
        "mistral-nemo": '[TOOL_CALLS][{"name": "get_time", "arguments": {"zone": "UTC"}}, '
                        '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}]'}
    CALLS = [("get_time", {"zone": "UTC"}), ("get_weather", {"city": "Oslo", "days": 1})]

    def chat(self, server, **fields):
        return self.answer(server, **fields)["choices"][0]

    def streamed(self, server, **fields):
        """A choice of what a stream says, put together."""
        calls, content, end = [], "", None
        for event in server.events("/v1/chat/completions", {**self.BODY, **fields})[:-1]:
            choice = json.loads(event)["choices"][0]
            end = choice["finish_reason"]
            content += choice["delta"].get("content") or ""
            for delta in choice["delta"].get("tool_calls", []):
                if delta["index"] == len(calls):
                    self.assertEqual(delta["type"], "function")
                    calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
                else:
                    self.assertEqual(set(delta["function"]), {"arguments"})
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
        return content, calls, end

    @staticmethod
    def literally(text):
        return {"structured_outputs": {"grammar": "root ::= " + json.dumps(text)}, "max_tokens": 250}

    @staticmethod
    def called(message):
        return [(call["function"]["name"], json.loads(call["function"]["arguments"]))
                for call in message["tool_calls"]]

    def test_calls_that_the_model_makes_are_read(self):
        for name, answer in self.FORMATS.items():
            with self.subTest(template=name):
                server = self.servers[name]
                choice = self.chat(server, **self.literally(answer))
                message = choice["message"]
                self.assertEqual(self.called(message), self.CALLS)
                self.assertEqual(message["content"], "I look." if name == "qwen2.5" else None)
                self.assertEqual(choice["finish_reason"], "tool_calls")
                ids = [call["id"] for call in message["tool_calls"]]
                self.assertEqual(len(set(ids)), 2)
                self.assertRegex(ids[0], r"^\w{9}$" if name == "mistral-nemo" else r"^call_\w{24}$")
                content, calls, end = self.streamed(server, **self.literally(answer))
                self.assertEqual([(c["name"], json.loads(c["arguments"])) for c in calls], self.CALLS)
                self.assertEqual((content, end), (message["content"] or "", "tool_calls"))
                one = self.chat(server, parallel_tool_calls=False, **self.literally(answer))
                self.assertEqual(self.called(one["message"]), self.CALLS[:1])
                # The same text is an answer where no tools are to be called.
                none = self.chat(server, tool_choice="none", **self.literally(answer))
                self.assertEqual(none["message"], {"role": "assistant", "content": answer})
                self.assertEqual(none["finish_reason"], "stop")

    def test_stream_byte_for_byte(self):
        server = self.servers["qwen2.5"]
        text = '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>'
        events = server.events("/v1/chat/completions", {**self.BODY, **self.literally(text)})
        first = json.loads(events[0])
        head = (f'{{"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},'
                '"model":"weft-code","choices":[{"index":0,"delta":')
        identity = json.loads(events[1])["choices"][0]["delta"]["tool_calls"][0]["id"]
        self.assertEqual(events[0], head + '{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}')
        self.assertEqual(events[1], head + f'{{"tool_calls":[{{"index":0,"id":"{identity}","type":"function",'
                         '"function":{"name":"get_time","arguments":""}}]},"logprobs":null,"finish_reason":null}]}')
        for event in events[2:-2]:
            part = json.loads(event)["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"]
            self.assertEqual(event, head + f'{{"tool_calls":[{{"index":0,"function":{{"arguments":{json.dumps(part)}}}}}]'
                             '},"logprobs":null,"finish_reason":null}]}')
        self.assertEqual(events[-2:], [head + '{},"logprobs":null,"finish_reason":"tool_calls"}]}', "[DONE]"])

    def test_calls_that_are_demanded_are_made(self):
        """Though the model never learned to call anything."""
        for name, server in self.servers.items():
            for seed in range(4):
                with self.subTest(template=name, seed=seed):
                    fields = {"seed": seed, "tool_choice": "required", "parallel_tool_calls": False}
                    choice = self.chat(server, **fields)
                    self.assertEqual(choice["finish_reason"], "tool_calls", choice)
                    [(tool, arguments)] = self.called(choice["message"])
                    if tool == "get_weather":
                        self.assertEqual(set(arguments), {"city", "days"})
                        self.assertIsInstance(arguments["days"], int)
                    else:
                        self.assertIn(arguments["zone"], ("UTC", "CET"))
                    content, calls, end = self.streamed(server, **fields)
                    self.assertEqual((content, end), ("", "tool_calls"))
                    self.assertEqual([(c["name"], json.loads(c["arguments"])) for c in calls], [(tool, arguments)])
                    named = self.chat(server, seed=seed, tool_choice=self.NAMED, n=2)
                    self.assertEqual(self.called(named["message"])[0][0], "get_time")
            cut = self.chat(server, max_tokens=3, tool_choice="required")
            self.assertEqual(cut["finish_reason"], "length")

    def test_earlier_calls_and_their_results_are_in_the_prompt(self):
        call = {"id": "abcdefghi", "type": "function",
                "function": {"name": "get_time", "arguments": '{"zone":   "UTC"}'}}
        messages = [*self.BODY["messages"], {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "abcdefghi", "content": "12:34"}]
        for name, server in self.servers.items():
            status, answer = server.ask("/tokenize", {"messages": messages, "tools": self.TOOLS})
            self.assertEqual(status, 200, answer)
            prompt = server.ask("/detokenize", {"tokens": answer["tokens"]})[1]["prompt"]
            for part in ('{"zone": "UTC"}', "12:34", "get_weather"):
                self.assertIn(part, prompt)
            self.assertTrue(self.chat(server, messages=messages, max_tokens=4)["message"]["content"])

    def test_what_is_wrong_is_told(self):
        server = self.servers["qwen2.5"]
        odd = {"type": "function", "function": {"name": "odd", "strict": True,
                                                "parameters": {"type": "object", "not": {}}}}
        for fields, param, word in (
                ({"tools": 5}, "tools", "list"),
                ({"tools": [{}]}, "tools", "name"),
                ({"tools": self.TOOLS[:1] * 2}, "tools", "get_weather"),
                ({"tool_choice": "maybe"}, "tool_choice", "maybe"),
                ({"tool_choice": {"function": {"name": "other"}}}, "tool_choice", "other"),
                ({"tools": None, "tool_choice": "required"}, "tool_choice", "no tools"),
                ({"tools": [odd], "tool_choice": "required"}, "tools", "'not'"),
                ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "leave")):
            status, answer = server.ask("/v1/chat/completions", {**self.BODY, **fields})
            self.assertEqual(status, 400, answer)
            self.assertEqual(answer["error"]["param"], param)
            self.assertIn(word, answer["error"]["message"])


class Thoughts(TemplatesTest):
    """What a model thinks is told from what it says."""

    # Template, and an answer. DeepSeek's begins the thought itself.
    FORMATS = {
        "qwen3": "<think>\nHm, two.\n</think>\n\nTwo.",
        "deepseek-r1": "Hm, two.\n</think>\n\nTwo.",
        "gpt-oss": "<|channel|>analysis<|message|>Hm, two.<|end|><|start|>assistant<|channel|>final<|message|>Two."}
    BODY = {"messages": [{"role": "user", "content": "1 + 1"}], "temperature": 1}
    TOOLS = Tools.TOOLS

    def test_are_read(self):
        for name, text in self.FORMATS.items():
            with self.subTest(template=name):
                server, said = self.servers[name], Tools.literally(text)
                answer = self.answer(server, **said)
                self.assertEqual(answer["choices"][0]["message"],
                                 {"role": "assistant", "reasoning_content": "Hm, two.", "content": "Two."})
                self.assertEqual(answer["choices"][0]["finish_reason"], "stop")
                thought = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
                self.assertTrue(3 <= thought < answer["usage"]["completion_tokens"], answer["usage"])
                deltas = [json.loads(event)["choices"][0]["delta"]
                          for event in server.events("/v1/chat/completions", {**self.BODY, **said})[:-1]]
                for field, whole in (("reasoning_content", "Hm, two."), ("content", "Two.")):
                    self.assertEqual("".join(delta.get(field, "") for delta in deltas), whole)
                self.assertGreater(sum("reasoning_content" in delta for delta in deltas), 2)
                untold = self.answer(server, include_reasoning=False, **said)["choices"][0]["message"]
                self.assertEqual(untold, {"role": "assistant", "content": "Two."})
                raw = self.answer(server, reasoning_format="none", **said)["choices"][0]["message"]
                self.assertEqual(raw, {"role": "assistant", "content": text})
                cut = self.answer(server, **{**said, "max_tokens": answer["usage"]["completion_tokens"] // 2 - 3})
                self.assertEqual(cut["choices"][0]["message"]["content"], None)
                self.assertIn(cut["choices"][0]["message"]["reasoning_content"], text)

    def test_are_items_of_responses(self):
        for name, text in self.FORMATS.items():
            with self.subTest(template=name):
                server = self.servers[name]
                body = {"input": "1 + 1", **Tools.literally(text)}
                body["max_output_tokens"] = body.pop("max_tokens")
                status, answer = server.ask("/v1/responses", body)
                self.assertEqual(status, 200, answer)
                self.assertEqual([(item["type"], item["content"][0]["type"], item["content"][0]["text"])
                                  for item in answer["output"]],
                                 [("reasoning", "reasoning_text", "Hm, two."), ("message", "output_text", "Two.")])
                self.assertGreater(answer["usage"]["output_tokens_details"]["reasoning_tokens"], 2)
                events = [json.loads(event.split("data: ", 1)[1]) for event in server.events("/v1/responses", body)]
                kinds = [event["type"].removeprefix("response.") for event in events]
                self.assertEqual([kind for i, kind in enumerate(kinds) if kind != kinds[i - 1]],
                                 ["created", "in_progress"] + [
                                     kind for part in ("reasoning_text", "output_text") for kind in
                                     ("output_item.added", "content_part.added", f"{part}.delta", f"{part}.done",
                                      "content_part.done", "output_item.done")] + ["completed"])
                self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
                for index, (part, whole) in enumerate((("reasoning_text", "Hm, two."), ("output_text", "Two."))):
                    deltas = [event for event in events if event["type"] == f"response.{part}.delta"]
                    self.assertEqual("".join(event["delta"] for event in deltas), whole)
                    self.assertEqual({event["output_index"] for event in deltas}, {index})
                    self.assertEqual({event["item_id"] for event in deltas},
                                     {events[-1]["response"]["output"][index]["id"]})

    def test_calls_are_messages_of_gpt_oss(self):
        server = self.servers["gpt-oss"]
        text = ('<|channel|>analysis<|message|>A call.<|end|><|start|>assistant<|channel|>commentary '
                'to=functions.get_time <|constrain|>json<|message|>{"zone": "UTC"}')
        [choice] = self.answer(server, tools=self.TOOLS, **Tools.literally(text))["choices"]
        self.assertEqual(choice["finish_reason"], "tool_calls")
        self.assertEqual(choice["message"]["reasoning_content"], "A call.")
        self.assertEqual(Tools.called(choice["message"]), [("get_time", {"zone": "UTC"})])
        for demand in ("required", Tools.NAMED):
            [choice] = self.answer(server, tools=self.TOOLS, tool_choice=demand, seed=1, max_tokens=120)["choices"]
            self.assertEqual(choice["finish_reason"], "tool_calls", choice)
            [(tool, arguments)] = Tools.called(choice["message"])
            self.assertIn(tool, ("get_time", "get_weather") if demand == "required" else ("get_time",))
        call = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": '{"zone":   "UTC"}'}}
        messages = [*self.BODY["messages"],
                    {"role": "assistant", "reasoning_content": "A call.", "content": None, "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "a", "content": "12:34"}]
        status, answer = server.ask("/tokenize", {"messages": messages, "tools": self.TOOLS})
        self.assertEqual(status, 200, answer)
        prompt = server.ask("/detokenize", {"tokens": answer["tokens"]})[1]["prompt"]
        self.assertIn('to=functions.get_time<|channel|>commentary json<|message|>{"zone": "UTC"}<|call|>', prompt)

    def test_a_format_that_is_none_is_refused(self):
        status, answer = self.servers["qwen3"].ask("/v1/chat/completions", {**self.BODY, "reasoning_format": "x"})
        self.assertEqual(status, 400)
        self.assertEqual(answer["error"]["param"], "reasoning_format")


class Errors(ServerTest):
    def test_each_names_what_is_wrong(self):
        cases = [
            ({"prompt": 5}, 400, "prompt", "prompt"),
            ({"prompt": []}, 400, "prompt", "prompt"),
            ({}, 400, "prompt", "missing"),
            ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "hot"),
            ({"prompt": "a", "max_tokens": -1}, 400, "max_tokens", "-1"),
            ({"prompt": "a", "n": 0}, 400, "n", "0"),
            ({"prompt": "a", "model": "other"}, 404, "model", "other"),
            ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "x"),
            ({"prompt": "a", "logit_bias": {"9999999": 1}}, 400, "logit_bias", "below"),
            ({"prompt": [9999999]}, 400, "prompt", "9999999"),
            ({"prompt": [-1]}, 400, "prompt", "-1"),
            ({"prompt": [487] * 2048}, 400, "prompt", "2048"),
            ({"prompt": "a", "stream_options": {}}, 400, "stream_options", "stream"),
        ]
        for body, status, param, word in cases:
            with self.subTest(body=str(body)[:80]):
                got, answer = self.server.ask("/v1/completions", {"max_tokens": 1, **body})
                self.assertEqual(got, status, answer)
                if status != 200:
                    self.assertEqual(set(answer["error"]), SHAPE)
                    self.assertEqual(answer["error"]["param"], param)
                    self.assertIn(word, answer["error"]["message"])

    def test_paths_and_methods(self):
        self.refused(404, "/v1/nothing", {})
        self.refused(404, "/v1/models/other", None)
        self.refused(405, "/v1/completions", None)
        self.refused(405, "/v1/models", {})
        self.refused(400, "/v1/completions", "{")
        self.refused(400, "/v1/completions", b'{"prompt": "\xff"}')

    def test_what_is_no_http(self):
        for bytes_, status in ((b"nonsense\r\n\r\n", 400), (b"GET / HTTP/9.9\r\n\r\n", 400),
                               (b"GET / HTTP/1.1\r\nA: " + b"x" * 70000 + b"\r\n\r\n", 431),
                               (b"POST /tokenize HTTP/1.1\r\nContent-Length: 999999999\r\n\r\n", 413)):
            with self.server.socket() as connection:
                connection.sendall(bytes_)
                got = connection.recv(65536)
                self.assertTrue(got.startswith(f"HTTP/1.1 {status} ".encode()), got)
                self.assertIn(b'{"error":{"message":', got)

    def test_malformed_requests_get_4xx(self):
        """10,000 requests, each wrong in one way, over a few connections."""
        wrong = list(malformed(random.Random(20260727), 10000))
        failures = []

        def send(part):
            connection = None
            for path, body in part:
                try:
                    if connection is None:
                        connection = self.server.socket()
                        stream = connection.makefile("rb")
                    connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                                       .encode() + body)
                    status = int(stream.readline().split()[1])
                    length = 0
                    while (line := stream.readline().strip()):
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    answer = json.loads(stream.read(length))
                    if not 400 <= status < 500 or set(answer["error"]) != SHAPE:
                        failures.append((status, path, body[-400:], answer["object"]))
                except Exception as error:  # a connection that breaks is a failure, too
                    failures.append((repr(error), path, body[:300]))
                    connection = None
            if connection is not None:
                stream.close()
                connection.close()

        threads = [threading.Thread(target=send, args=(wrong[i::4],)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures[:3], [])
        self.server.wait_until_idle()


class Keys(ServerTest):
    ARGUMENTS = ("--api-key", "one", "--api-key", "two", "--cors-origins", "http://friend.example")

    def test_keys(self):
        for key in (None, "Bearer", "Bearer on", "Bearer onee", "Bearer one two", "one", "Basic one"):
            headers = {"Authorization": key} if key else {}
            error = self.refused(401, "/v1/completions", GREEDY, headers)
            self.assertEqual(error["code"], "invalid_api_key")
        for key in ("one", "two"):
            status, _ = self.server.ask("/v1/completions", GREEDY, {"Authorization": "Bearer " + key})
            self.assertEqual(status, 200)
        self.assertEqual(self.server.ask("/health")[0], 200)

    def test_origins(self):
        key = {"Authorization": "Bearer one"}
        friend = {"Origin": "http://friend.example", **key}
        response = self.server.send("/v1/models", None, friend)
        self.assertEqual(response.headers["Access-Control-Allow-Origin"], "http://friend.example")
        response.connection.close()
        response = self.server.send("/v1/completions", None, {"Origin": "http://friend.example"}, "OPTIONS")
        self.assertEqual(response.status, 204)
        self.assertIn("Authorization", response.headers["Access-Control-Allow-Headers"])
        response.connection.close()
        self.refused(403, "/v1/models", None, {"Origin": "http://foe.example", **key})
        own = {"Origin": f"http://127.0.0.1:{self.server.port}", **key}
        self.assertEqual(self.server.ask("/v1/models", None, own)[0], 200)


class Load(ServerTest):
    ARGUMENTS = ("--slots", "2", "--max-requests", "6", "--context", "1024")

    def test_more_than_may_are_refused_at_once(self):
        long = {**GREEDY, "max_tokens": 1000, "ignore_eos": True, "stream": True}
        with_slots = [self.server.begin("/v1/completions", long) for _ in range(6)]
        end = time.monotonic() + 10
        while self.server.metric("vllm:num_requests_waiting") < 4 and time.monotonic() < end:
            time.sleep(0.01)
        response = self.server.send("/v1/completions", GREEDY)
        self.assertEqual(response.status, 503)
        self.assertGreaterEqual(int(response.headers["Retry-After"]), 1)
        self.assertEqual(set(json.loads(response.read())["error"]), SHAPE)
        response.connection.close()
        for connection in with_slots:
            connection.close()
        self.server.wait_until_idle()
        self.assertEqual(self.complete()["choices"][0]["finish_reason"], "length")

    def test_who_leaves_frees_the_slot(self):
        """In the queue, in the prompt, in the answer; streamed or not."""
        before = self.server.descriptors()
        rng = random.Random(5)
        for i in range(60):
            body = {"prompt": [rng.randrange(300, 1300) for _ in range(rng.choice((5, 900)))],
                    "max_tokens": 100, "stream": bool(i % 2), "n": rng.choice((1, 3))}
            connection = self.server.begin("/v1/completions", body)
            time.sleep(rng.choice((0, 0.001, 0.03)))
            if i % 3 == 0:  # with a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()
        self.server.wait_until_idle()
        self.assertEqual(self.server.metric("vllm:kv_cache_usage_perc"), 0)
        end = time.monotonic() + 5
        while self.server.descriptors() > before and time.monotonic() < end:
            time.sleep(0.02)
        self.assertLessEqual(self.server.descriptors(), before)
        generated = self.server.metric("vllm:generation_tokens_total")
        connection = self.server.begin("/v1/completions", {**GREEDY, "max_tokens": 1000, "ignore_eos": True})
        while self.server.metric("vllm:num_requests_running") == 0:
            time.sleep(0.002)
        connection.close()
        self.server.wait_until_idle()
        self.assertLess(self.server.metric("vllm:generation_tokens_total") - generated, 1000)

    def test_a_slow_reader_slows_nobody(self):
        slow = [self.server.begin("/v1/completions",
                                  {**GREEDY, "max_tokens": 900, "ignore_eos": True, "logprobs": 5, "stream": True})]
        self.complete(max_tokens=30)
        self.server.wait_until_idle(60)  # its answer is made, and waits for it
        got = b""
        while b"[DONE]" not in got:
            piece = slow[0].recv(65536)
            self.assertTrue(piece)
            got += piece
        slow[0].close()


class Many(ServerTest):
    ARGUMENTS = ("--slots", "64")

    def test_64_clients_get_each_its_own_and_fairly(self):
        bodies = [{"prompt": f"def f{i}(a):\n", "max_tokens": 32, "temperature": i % 2, "seed": i,
                   "ignore_eos": True, "return_token_ids": True} for i in range(64)]
        answers, seconds = [None] * 64, [0.0] * 64
        ready = threading.Barrier(64)

        def ask(i):
            ready.wait()
            start = time.monotonic()
            answers[i] = self.server.ask("/v1/completions", bodies[i])
            seconds[i] = time.monotonic() - start

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(64)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([status for status, _ in answers], [200] * 64)
        # All had to be let in before the first ended: then they share the steps, however busy the machine is.
        lines = [json.loads(line) for line in self.server.said().splitlines() if line.startswith("{")]
        taken = sorted(line["seconds"] for line in lines[:64])
        print(f"64 clients: {taken[0]:.2f} to {taken[-1]:.2f} s, as they see it {min(seconds):.2f} to {max(seconds):.2f}",
              file=sys.stderr)
        self.assertLess(taken[-1], 2 * taken[0])
        for i in range(0, 64, 3):
            self.assertEqual(answers[i][1]["choices"], self.complete(**bodies[i])["choices"])


class Life(unittest.TestCase):
    def wait_until_refused(self, server):
        """Until a server that was told to end takes no connection any more."""
        end = time.monotonic() + 10
        with self.assertRaises(OSError):
            while time.monotonic() < end:
                server.socket().close()
                time.sleep(0.02)

    def test_drains_at_sigterm(self):
        server = Server(WEFT)
        running = server.begin("/v1/completions", {**GREEDY, "max_tokens": 150, "ignore_eos": True, "stream": True})
        got = running.recv(65536)
        server.process.terminate()
        self.wait_until_refused(server)
        while (piece := running.recv(65536)):
            got += piece
        running.close()
        self.assertIn(b"data: [DONE]\n\n", got)
        self.assertEqual(server.process.wait(10), 0)
        server.stop()

    def test_second_signal_ends_it(self):
        server = Server(WEFT)
        running = server.begin("/v1/completions", {**GREEDY, "max_tokens": 2000, "ignore_eos": True, "stream": True})
        running.recv(65536)
        server.process.terminate()
        self.wait_until_refused(server)
        server.process.terminate()
        self.assertEqual(server.process.wait(10), 0)
        running.close()
        server.stop()

    def test_a_full_disk_for_logs_is_no_matter(self):
        with open("/dev/full", "w") as full, socket.socket() as any_port:
            any_port.bind(("127.0.0.1", 0))
            port = any_port.getsockname()[1]
            any_port.close()
            process = subprocess.Popen([WEFT, "serve", "--model", MODEL, "--port", str(port)], stderr=full)
        end = time.monotonic() + 30
        for _ in range(3):
            while True:
                try:
                    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
                        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                                           b"Content-Length: 29\r\n\r\n" + b'{"prompt":"x","max_tokens":1}')
                        got = connection.recv(65536)
                    break
                except OSError:
                    self.assertLess(time.monotonic(), end)
                    time.sleep(0.05)
            self.assertTrue(got.startswith(b"HTTP/1.1 "), got)
        process.terminate()
        self.assertEqual(process.wait(10), 0)

    def test_what_cannot_be_served(self):
        for arguments, code, word in ((("--model", "/nowhere"), 3, "/nowhere"),
                                      (("--model", MODEL, "--host", "somewhere"), 2, "--host"),
                                      (("--model", MODEL, "--host", "192.0.2.1"), 2, "192.0.2.1"),
                                      (("--model", MODEL, "--context", "999999", "--port", "0"), 2, "999999")):
            run = subprocess.run([WEFT, "serve", *arguments], capture_output=True, timeout=60)
            self.assertEqual(run.returncode, code, run.stderr)
            self.assertIn(word, run.stderr.decode())


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The server as clients of OpenAI's protocol meet it: the official one in Python, LangChain's, curl.

    test_clients.py WEFT     (the command's path; run by with_packages.sh)
"""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest

import openai

from server import ROOT, Server

WEFT = sys.argv.pop(1) if len(sys.argv) > 1 else "build/release/weft"


class OpenAI(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        cls.template.write("{% for m in messages %}{{ m.content }}{% endfor %}")
        cls.template.flush()
        cls.server = Server(WEFT, "--api-key", "secret", "--chat-template", cls.template.name)
        cls.client = openai.OpenAI(base_url=f"http://127.0.0.1:{cls.server.port}/v1", api_key="secret",
                                   max_retries=0)

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.said()

    def chat(self, **fields):
        return self.client.chat.completions.create(
            model="weft-code", messages=[{"role": "user", "content": "def add(a, b):\n"}], max_tokens=12,
            temperature=0, **fields)

    def test_models(self):
        self.assertEqual([model.id for model in self.client.models.list()], ["weft-code"])

    def test_completions(self):
        fields = {"model": "weft-code", "prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}
        whole = self.client.completions.create(**fields, logprobs=2)
        self.assertEqual(whole.usage.completion_tokens, 12)
        self.assertEqual(len(whole.choices[0].logprobs.tokens), 12)
        stream = self.client.completions.create(**fields, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in stream), whole.choices[0].text)

    def test_chat(self):
        whole = self.chat(logprobs=True, top_logprobs=3, n=2, seed=1)
        self.assertEqual(len(whole.choices), 2)
        self.assertEqual(len(whole.choices[0].logprobs.content[0].top_logprobs), 3)
        text, usage = "", None
        for chunk in self.chat(stream=True, stream_options={"include_usage": True}):
            text += chunk.choices[0].delta.content or "" if chunk.choices else ""
            usage = chunk.usage or usage
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(usage.completion_tokens, 12)

    def test_tools(self):
        """Over a template that shows calls as Hermes writes them."""
        tool = {"type": "function", "function": {
            "name": "get_time", "strict": True,
            "parameters": {"type": "object", "properties": {"zone": {"type": "string", "enum": ["UTC", "CET"]}},
                           "required": ["zone"], "additionalProperties": False}}}
        server = Server(WEFT, "--chat-template", ROOT / "tests/templates/qwen2.5.jinja")
        self.addCleanup(server.stop)
        chat = openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="any").chat.completions
        messages = [{"role": "user", "content": "What time is it?"}]
        fields = {"model": "weft-code", "tools": [tool], "parallel_tool_calls": False, "seed": 1, "max_tokens": 100}
        whole = chat.create(messages=messages, tool_choice="required", **fields).choices[0]
        call = whole.message.tool_calls[0]
        self.assertEqual((whole.finish_reason, call.function.name), ("tool_calls", "get_time"))
        self.assertIn(json.loads(call.function.arguments)["zone"], ("UTC", "CET"))
        with chat.stream(messages=messages, tool_choice="required", **fields) as stream:
            pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
            final = stream.get_final_completion().choices[0]
        self.assertEqual("".join(pieces), call.function.arguments)
        self.assertEqual(final.message.tool_calls[0].function.parsed_arguments,
                         json.loads(call.function.arguments))
        # The message goes back as the client has it, with the tool's result.
        messages += [whole.message, {"role": "tool", "tool_call_id": call.id, "content": "12:34"}]
        self.assertTrue(chat.create(messages=messages, **fields).choices[0].message.content)

    def test_responses(self):
        whole = self.client.responses.create(model="weft-code", input="def add(a, b):\n", max_output_tokens=12,
                                             temperature=0)
        with self.client.responses.stream(model="weft-code", input="def add(a, b):\n", max_output_tokens=12,
                                          temperature=0) as stream:
            text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        self.assertEqual(text, whole.output_text)

    def test_langchain(self):
        try:
            import langchain_openai
        except ImportError:
            self.skipTest("langchain-openai is not installed (scripts/setup clients)")
        chat = langchain_openai.ChatOpenAI(model="weft-code", base_url=f"http://127.0.0.1:{self.server.port}/v1",
                                           api_key="secret", temperature=0, max_tokens=12)
        whole = chat.invoke("def add(a, b):\n")
        self.assertEqual(whole.content, self.chat().choices[0].message.content)
        self.assertEqual(whole.usage_metadata["output_tokens"], 12)
        self.assertEqual("".join(chunk.content for chunk in chat.stream("def add(a, b):\n")), whole.content)

    @unittest.skipUnless(shutil.which("curl"), "curl is not installed")
    def test_curl(self):
        """As the documentation shows it; -f ends with an error at an error's status."""
        def curl(*arguments):
            return subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, text=True)

        url = f"http://127.0.0.1:{self.server.port}/v1/completions"
        body = {"prompt": "def add(a, b):\n", "max_tokens": 12, "temperature": 0}
        key = ("-H", "Authorization: Bearer secret")
        whole = curl("-f", *key, url, "-d", json.dumps(body))
        self.assertEqual(whole.returncode, 0, whole.stderr)
        stream = curl("-f", "-N", *key, url, "-d", json.dumps({**body, "stream": True}))
        events = [part.removeprefix("data: ") for part in stream.stdout.split("\n\n") if part]
        self.assertEqual(events.pop(), "[DONE]")
        self.assertEqual("".join(json.loads(event)["choices"][0]["text"] for event in events),
                         json.loads(whole.stdout)["choices"][0]["text"])
        # A body that curl announces and sends when it is told to.
        announced = curl("-f", *key, "-H", "Expect: 100-continue", url, "-d", json.dumps(body))
        self.assertEqual(json.loads(announced.stdout)["choices"], json.loads(whole.stdout)["choices"])
        self.assertEqual(curl("-f", url, "-d", json.dumps(body)).returncode, 22)

    def test_errors(self):
        with self.assertRaises(openai.AuthenticationError):
            self.client.with_options(api_key="wrong").models.list()
        with self.assertRaises(openai.NotFoundError):
            self.client.completions.create(model="other", prompt="x")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.client.completions.create(model="weft-code", prompt=[9999999])
        self.assertEqual(caught.exception.param, "prompt")


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""The page at / in headless Chromium: streams, stops, goes on; by keyboard, on a phone, dark and light.
Skipped (77) where Chromium and its driver are not (`scripts/setup browser`).

    test_page.py WEFT [--screenshots DIR] [TEST...]     (the command's path; run by ctest)
"""

import base64
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from server import Server

ARGUMENTS = sys.argv[1:]
sys.argv[1:] = [argument for argument in ARGUMENTS if argument.startswith("Page")]
WEFT = ARGUMENTS[0] if ARGUMENTS else "build/release/weft"
SCREENSHOTS = pathlib.Path(ARGUMENTS[2]) if ARGUMENTS[1:2] == ["--screenshots"] else None
ENTER, ESCAPE, TAB, RIGHT, SHIFT = "\ue007", "\ue00c", "\ue004", "\ue014", "\ue008"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the key that WebDriver gives elements under


class Browser:
    """Chromium by its driver's HTTP."""

    def __init__(self):
        self.home = tempfile.TemporaryDirectory()
        self.log = pathlib.Path(self.home.name) / "driver.log"
        with open(self.log, "w") as log:
            self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=log, stderr=log,
                                           env={**os.environ, "HOME": self.home.name})
        end = time.monotonic() + 30
        while not (port := re.search(r"successfully on port (\d+)", self.log.read_text())):
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)
        self.base = f"http://127.0.0.1:{port.group(1)}/session"
        options = {"args": ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            "--window-size=1200,800", f"--user-data-dir={self.home.name}/profile"]}
        session = self.ask("POST", "", {"capabilities": {"alwaysMatch": {
            "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.base += "/" + session["sessionId"]

    def close(self):
        try:
            self.ask("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(10)
            self.home.cleanup()

    def ask(self, method, path, body=None):
        data = None if method != "POST" else json.dumps(body or {}).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.base + path, data, method=method), timeout=90) as got:
                return json.load(got)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(error.read().decode()) from None

    def run(self, script, *arguments):
        return self.ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def value(self, expression):
        return self.run("return " + expression)

    def devtools(self, command, **parameters):
        return self.ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def find(self, selector):
        return self.ask("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.ask("POST", f"/element/{self.find(selector)}/click")

    def keys(self, text):
        """Presses keys, one after the other, at what has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.ask("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def wait(self, expression, seconds=60):
        end = time.monotonic() + seconds
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"{expression} stays {value}; the page says: {self.value('document.body.innerText')}"
            time.sleep(0.02)
        return value

    def picture(self, name):
        if SCREENSHOTS:
            SCREENSHOTS.mkdir(parents=True, exist_ok=True)
            (SCREENSHOTS / f"{name}.png").write_bytes(base64.b64decode(self.ask("GET", "/screenshot")))


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.template = tempfile.NamedTemporaryFile("w", suffix=".jinja")
        cls.template.write("{% for m in messages %}{{ m.content }}{% endfor %}")
        cls.template.flush()
        cls.server = Server(WEFT, "--threads", "1", "--chat-template", cls.template.name)
        cls.browser = Browser()

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        assert cls.server.stop() == 0, cls.server.said()

    def setUp(self):
        self.browser.devtools("Emulation.clearDeviceMetricsOverride")
        self.open()

    def tearDown(self):
        told = [line for line in self.browser.ask("POST", "/se/log", {"type": "browser"})
                if line["level"] in ("WARNING", "SEVERE")]
        self.assertEqual(told, [])  # no error of the script, nothing that its policy forbids
        origin = f"http://127.0.0.1:{self.server.port}/"
        asked = self.browser.value("performance.getEntriesByType('resource').map(entry => entry.name)")
        self.assertEqual([url for url in asked if not url.startswith(origin)], [])

    def open(self):
        self.browser.ask("POST", "/url", {"url": f"http://127.0.0.1:{self.server.port}/"})
        self.browser.wait("model === 'weft-code'")

    def set(self, **values):
        for name, value in values.items():
            self.browser.run("document.getElementById(arguments[0]).value = arguments[1]", name, str(value))

    def answer(self):
        return self.browser.value("turns.at(-1).text")

    def test_chat_streams(self):
        self.set(temperature=0, max_tokens=400)
        self.browser.keys("def add(a, b):" + ENTER)
        lengths = set()
        while self.browser.value("running !== null"):
            lengths.add(self.browser.value("turns.at(-1).body.textContent.length"))
        self.assertGreater(len(lengths), 2)  # it came in pieces
        status, whole = self.server.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "def add(a, b):"}], "temperature": 0, "max_tokens": 400})
        self.assertEqual(status, 200)
        self.assertEqual(self.answer(), whole["choices"][0]["message"]["content"])
        self.assertEqual(self.browser.value("turns.at(-1).body.textContent"), self.answer())
        self.assertRegex(self.browser.value("document.getElementById('rate').textContent"),
                         r"\d+ tokens/s, first after \d+ ms")
        self.assertEqual(self.browser.value("document.getElementById('input').value"), "")
        self.browser.picture("chat")

    def test_stops_and_continues(self):
        for stop in (lambda: self.browser.keys(ESCAPE), lambda: self.browser.click("#stop")):
            self.open()
            self.set(temperature=0, max_tokens=1500)
            self.browser.keys("import os" + ENTER)
            self.browser.wait("turns.length && turns.at(-1).text.length > 20")
            stop()
            self.browser.wait("running === null", 5)
            self.server.wait_until_idle(5)
            first = self.answer()
            self.set(max_tokens=20)
            self.browser.click("#more")
            self.browser.wait("running === null")
            self.assertTrue(self.answer().startswith(first))
            self.assertGreater(len(self.answer()), len(first))
            self.assertEqual(self.browser.value("document.querySelectorAll('.turn').length"), 2)
            self.assertEqual(self.browser.value("document.querySelectorAll('.error').length"), 0)

    def test_by_keyboard_alone(self):
        self.set(max_tokens=8)
        self.assertEqual(self.browser.value("document.activeElement.id"), "input")
        self.browser.run("document.getElementById('input').dispatchEvent(new KeyboardEvent('keydown', "
                         "{key: 'Enter', shiftKey: true, bubbles: true, cancelable: true}))")
        self.assertEqual(self.browser.value("turns.length"), 0)  # that only begins a line
        self.browser.keys("x = 1" + TAB + ENTER)  # the button Send
        self.browser.wait("turns.length === 2 && running === null")
        self.browser.run("document.getElementById('input').focus()")
        reached = []
        for _ in range(3):
            self.browser.keys(TAB)
            reached.append(self.browser.value("document.activeElement.id"))
        self.assertEqual(reached, ["send", "more", "clear"])  # what is disabled is passed over
        self.browser.run("document.getElementById('talk').focus()")
        self.browser.keys(RIGHT)
        self.assertEqual(self.browser.value("document.activeElement.className"), "token")
        tip = self.browser.value("getComputedStyle(document.getElementById('tip')).display === 'block' && "
                                 "document.getElementById('tip').textContent")
        self.assertRegex(tip, r"^ *\d+\.\d %  +-?\d+\.\d+  \".*\"\n\n")
        self.browser.picture("probabilities")

    def test_what_the_server_refuses_is_shown(self):
        self.set(max_tokens=-5)
        self.browser.keys("x" + ENTER)
        self.browser.wait("document.querySelectorAll('.error').length === 1")
        self.assertIn("max_tokens", self.browser.value("document.querySelector('.error').textContent"))
        self.browser.ask("POST", "/se/log", {"type": "browser"})  # the browser notes the 400 by itself

    def test_on_a_phone(self):
        self.browser.devtools("Emulation.setDeviceMetricsOverride", width=360, height=640, deviceScaleFactor=2,
                              mobile=True)
        self.open()
        self.assertFalse(self.browser.value("document.getElementById('panel').open"))
        self.browser.click("summary")
        self.assertTrue(self.browser.value("document.getElementById('panel').open"))
        self.set(max_tokens=120)
        self.browser.picture("phone-settings")
        self.browser.click("summary")
        self.browser.click("#input")
        self.browser.keys("def " + "a_long_name" * 12 + "(x):" + ENTER)
        self.browser.wait("turns.length === 2 && running === null")
        self.assertLessEqual(self.browser.value("document.documentElement.scrollWidth"), 360)
        self.assertLessEqual(self.browser.value("document.getElementById('talk').scrollWidth"), 360)
        for name in ("input", "send", "stop", "more", "clear"):
            box = self.browser.value(f"document.getElementById('{name}').getBoundingClientRect()")
            self.assertTrue(box["left"] >= 0 and box["right"] <= 360 and box["bottom"] <= 640 and box["height"] >= 30,
                            (name, box))
        for name in ("send", "stop", "more", "clear"):  # no label is cut
            self.assertTrue(self.browser.value(f"document.getElementById('{name}').scrollWidth <= "
                                               f"document.getElementById('{name}').clientWidth"), name)
        self.browser.picture("phone")

    def test_dark_and_light(self):
        colours = {}
        for scheme in ("light", "dark"):
            self.browser.devtools("Emulation.setEmulatedMedia",
                                  features=[{"name": "prefers-color-scheme", "value": scheme}])
            colours[scheme] = self.browser.value("getComputedStyle(document.body).backgroundColor")
            self.browser.picture(scheme)
        self.browser.devtools("Emulation.setEmulatedMedia", features=[])
        self.assertNotEqual(colours["light"], colours["dark"])


if __name__ == "__main__":
    if shutil.which("chromedriver") is None or shutil.which("chromium") is None:
        print("skipped: Chromium and its driver are not here (scripts/setup browser brings them)")
        sys.exit(77)
    unittest.main()

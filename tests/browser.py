"""Chromium, driven through its chromedriver (the W3C WebDriver protocol): pages are opened, clicked and drawn."""

import base64
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
LACKING = "no chromium and chromedriver on this machine (apt-get install chromium chromium-driver)"
LIMIT = 120
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --hide-scrollbars"
).split()


class Browser:
    """A session of the browser."""

    def __init__(self, port):
        self._port = port
        options = {"binary": BROWSER, "args": OPTIONS}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        self._session = ""
        self._session = (
            "/session/" + self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        )

    def _ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LIMIT)
        try:
            connection.request(method, self._session + path, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            value = json.loads(answer.read())["value"]
        finally:
            connection.close()
        assert answer.status == 200, value
        return value

    def size(self, width, height):
        """Give the page a size, as a phone has it: headless windows have a least width of their own."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, name):
        """Prefer light or dark colours, as the system says it."""
        self.command("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def command(self, name, parameters):
        """Send a command of the DevTools protocol."""
        return self._ask("POST", "/goog/cdp/execute", {"cmd": name, "params": parameters})

    def open(self, address):
        self._ask("POST", "/url", {"url": address})

    def run(self, script, *arguments):
        """Return what a function's body returns in the page."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": arguments})

    def text(self, selector):
        """Return the text of the first element that fits, as it is shown."""
        return self.run("return document.querySelector(arguments[0])?.innerText ?? ''", selector)

    def click(self, selector):
        found = self._ask("POST", "/element", {"using": "css selector", "value": selector})[_ELEMENT]
        self._ask("POST", f"/element/{found}/click", {})

    def complaints(self):
        """Return the lines of the console since the last call."""
        return [line["message"] for line in self._ask("POST", "/se/log", {"type": "browser"})]

    def draw(self, path, whole=False):
        """Write a PNG of the window, or of the whole page."""
        data = self.command("Page.captureScreenshot", {"captureBeyondViewport": whole, **self._clip(whole)})["data"]
        path.write_bytes(base64.b64decode(data))

    def _clip(self, whole):
        if not whole:
            return {}
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}

    def close(self):
        self._ask("DELETE", "")


@contextlib.contextmanager
def started(folder):
    """A browser whose profile is in a folder."""
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    driver = subprocess.Popen([DRIVER, "--port=0"], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        port = next(
            int(found[1]) for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
        )
        browser = Browser(port)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.stdout.close()
        driver.wait(LIMIT)

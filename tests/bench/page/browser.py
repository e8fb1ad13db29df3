"""A headless Chromium, controlled by its DevTools protocol. Standard library only: the protocol uses a pair of pipes
(--remote-debugging-pipe) with zero-terminated JSON messages."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time


class Browser:
    """One browser with one page; a context manager."""

    def __init__(self, width=1280, height=800, dark=False, phone=False):
        self.size = (width, height, phone)
        self.dark = dark

    def __enter__(self):
        self.home = tempfile.mkdtemp(prefix="paceline-page-")
        down, self.write_to = os.pipe()
        self.read_from, up = os.pipe()
        # The shell sets the pipes to the descriptors that the browser expects.
        line = (
            f'exec "$0" --headless --no-sandbox --disable-gpu --disable-extensions --no-first-run --hide-scrollbars '
            f'--user-data-dir="$1" --remote-debugging-pipe about:blank 3<&{down} 4>&{up}'
        )
        self.process = subprocess.Popen(
            ["bash", "-c", line, shutil.which("chromium") or "chromium", self.home],
            pass_fds=(down, up), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )
        os.close(down)
        os.close(up)
        self.buffer, self.number, self.console = b"", 0, []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Performance"):
            self.call(f"{domain}.enable")
        width, height, phone = self.size
        self.resize(width, height, phone)
        scheme = "dark" if self.dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        return self

    def resize(self, width, height, phone=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=2 if phone else 1, mobile=phone)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.write_to)
        os.close(self.read_from)
        shutil.rmtree(self.home, ignore_errors=True)

    def message(self):
        while b"\0" not in self.buffer:
            more = os.read(self.read_from, 1 << 20)
            if not more:
                raise EOFError("the browser has ended")
            self.buffer += more
        text, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(text)

    def call(self, method, **params):
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        os.write(self.write_to, json.dumps(request).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                self.console.append(json.dumps(answer["params"])[:600])

    def run(self, script):
        """Evaluates JavaScript and returns its value; awaits promises."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:600])
        return answer["result"].get("value")

    def until(self, script, seconds=60):
        end = time.monotonic() + seconds
        # An exception counts as false.
        look = f"(() => {{ try {{ return {script} }} catch {{ return false }} }})()"
        while not (value := self.run(look)):
            if time.monotonic() > end:
                raise TimeoutError(f"{script}\n{self.run('document.body.innerText')[:2000]}\n{self.console}")
            time.sleep(0.05)
        return value

    def open(self, url):
        self.call("Page.navigate", url=url)

    def picture(self, path, whole=False):
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))

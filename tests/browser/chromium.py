"""Drives headless Chromium by its DevTools protocol through a pipe, which needs no package besides Chromium itself.

Chromium reads commands from file descriptor 3 and writes answers and events to 4: JSON texts that end with a zero byte.
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SECONDS = 30.0  # a busy machine may need long for one answer
# The launcher moves the pipes to the descriptors 3 and 4 and becomes Chromium.
LAUNCHER = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # the tests may run as root, in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--no-first-run",
)


class BrowserError(Exception):
    """Chromium did not answer, or answered with an error."""


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """A running browser with one tab."""

    def __init__(self, program: str, profile: Path) -> None:
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # numbers from 10 on cannot be overwritten when the launcher sets 3 and 4
        passed = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (commands, answers)]
        started = [sys.executable, "-c", LAUNCHER, *map(str, passed), program, *FLAGS]
        self._process = subprocess.Popen(
            [*started, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for end in (commands, answers, *passed):
            os.close(end)
        self._buffer, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        targets = self.send("Target.getTargets")["targetInfos"]
        tab = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.send("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result. Events that arrive in the meantime are kept."""
        self._number += 1
        number, command = self._number, {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        until = time.monotonic() + SECONDS
        while (answer := self._next(until, method)).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, page: Path, *, width: int, height: int = 900, dark: bool = False, media: str = "screen") -> None:
        """Open a local page in a window of this size and wait until it is loaded."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", media=media, features=[scheme])
        is_phone = width < 700
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        self.send("Page.navigate", url=page.resolve().as_uri())
        until = time.monotonic() + SECONDS
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next(until, "Page.navigate"))

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the open page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']['exception']['description']}")
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Write a picture of the whole page."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def pdf(self) -> bytes:
        """Return the page as it is printed on A4."""
        answer = self.send("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False)
        return base64.b64decode(answer["data"])

    @property
    def problems(self) -> list[str]:
        """Errors and warnings of the console since the page was opened."""
        found = []
        for event in self.events:
            parameters = event.get("params", {})
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event.get("method") == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning"):
                found.append(json.dumps(parameters["args"]))
            elif event.get("method") == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
        return found

    @property
    def requests(self) -> list[str]:
        """The addresses that the page has requested, without data inside the page."""
        sent = [event for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        addresses = [str(event["params"]["request"]["url"]) for event in sent]
        return [address for address in addresses if not address.startswith("data:")]

    def close(self) -> None:
        """End the browser and all its processes."""
        os.close(self._commands)
        os.close(self._answers)
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _next(self, until: float, waiting_for: str) -> dict[str, Any]:
        """Return the next answer or event."""
        while b"\0" not in self._buffer:
            is_ready, _, _ = select.select([self._answers], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._answers, 1 << 20) if is_ready else b""
            if not part:
                raise BrowserError(f"no answer to {waiting_for}")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

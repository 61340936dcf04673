"""A headless Chromium, controlled through its DevTools protocol over two pipes, without port, driver or network."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find() -> str | None:
    """Return the path of a Chromium, None if this machine has none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab of a running Chromium; ``requests`` and ``failures`` record its network traffic and errors."""

    def __init__(self, write_to: int, read_from: int, seconds: float) -> None:
        self._write_to, self._read_from = write_to, read_from
        self._seconds = seconds
        self._ids = itertools.count(1)
        self._unread = b""
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        self.requests: list[str] = []
        """Requested URLs in their order."""
        self.failures: list[str] = []
        """Requests that failed, uncaught errors of scripts, and errors on the console."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Network", "Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; `RuntimeError` if it failed, `TimeoutError` if late."""
        number = next(self._ids)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write_to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, page: Path) -> None:
        """Open a file and wait until it is loaded."""
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression; `RuntimeError` if it throws."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, script: str) -> None:
        """Wait until an expression is true; `TimeoutError` if it takes too long."""
        until = time.monotonic() + self._seconds
        while not self.run(script):
            if time.monotonic() > until:
                raise TimeoutError(f"not true after {self._seconds:g} s: {script}")
            time.sleep(0.05)

    def screenshot(self, file: Path) -> None:
        """Write a screenshot of the tab as PNG."""
        file.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._read_from], [], [], self._seconds)
            if not ready:
                raise TimeoutError(f"no message from the browser for {self._seconds:g} s")
            part = os.read(self._read_from, 1 << 20)
            if not part:
                raise RuntimeError("the browser ended")
            self._unread += part
        line, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        self._note(message)
        return message

    def _note(self, message: dict[str, Any]) -> None:
        found = message.get("params", {})
        match message.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(found["request"]["url"])
            case "Network.loadingFailed":
                self.failures.append(f"request: {found['errorText']}")
            case "Runtime.exceptionThrown":
                self.failures.append(f"script: {found['exceptionDetails']}")
            case "Log.entryAdded" if found["entry"]["level"] == "error":
                self.failures.append(f"log: {found['entry']['text']} {found['entry'].get('url', '')[:200]}")


@contextmanager
def running(profile: Path, *, seconds: float = 60) -> Iterator[Browser]:
    """Run a browser with its settings in ``profile``; ``seconds`` is the longest time for an answer."""
    to_browser, from_browser = os.pipe(), os.pipe()
    command = [
        *(str(find()), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
        *("--remote-debugging-pipe", "--window-size=1400,1000", "--no-first-run", "--disable-background-networking"),
        "--disable-component-update",
        "--disable-ipc-flooding-protection",  # it ignores a change of address after 200 others in ten seconds
        *("--disable-sync", "--disable-default-apps", f"--user-data-dir={profile}"),
    ]
    # Chromium reads the protocol from descriptor 3 and answers on 4.
    script = f'exec "$@" 3<&{to_browser[0]} 4>&{from_browser[1]}'
    process = subprocess.Popen(
        ["bash", "-c", script, "bash", *command],
        pass_fds=(to_browser[0], from_browser[1]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for descriptor in (to_browser[0], from_browser[1]):
        os.close(descriptor)
    try:
        browser = Browser(to_browser[1], from_browser[0], seconds)
        yield browser
        browser.call("Browser.getVersion")
    finally:
        for descriptor in (to_browser[1], from_browser[0]):
            os.close(descriptor)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

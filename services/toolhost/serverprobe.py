"""Starts a server, asks it one question or takes steps on its page, and tells what came of it: the other side of the `http`
and `browser` checks.

Its text is run as a program inside of the sandbox (`python3 -I -c`), standard library only (and playwright for steps), because
the server is seen only from there. Invariant: the last line that it prints is its report; it ends within the time that it was given, and
whatever it started ends with it (its launcher sees to what leaves its group).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import importlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from types import FrameType
from typing import IO, Any

# Of a body, for the pattern; of what the server says, for people.
BODY_BYTES_MAX = 256 * 1024
SAID_BYTES_MAX = 8 * 1024
_LOOK_S = 0.05
_READ_BYTES = 16 * 1024
# Reaching a port of this machine takes no longer unless its queue is full.
_CONNECT_S = 5.0
# What servers say that are there and not ready; it is asked again, unless it is what is wanted.
_NOT_YET = 503
_CHROMIUMS = (
    "/usr/lib/chromium/chromium",
    "/usr/lib/chromium-browser/chromium-browser",
    "/opt/google/chrome/chrome",
    "/usr/bin/chromium",
)
# The sandbox that the check runs in is the only one; inside of it Chromium can make none of its own.
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
INSTALL = "install both where the tool host runs: pip install 'perdure[browser]', apt-get install chromium"
# What is not there by then does not come: pages of this machine load in milliseconds.
_STEP_MS = 10_000
_TEXT_MS = 2_000
_PROBLEM_CHARS_MAX = 300


class _TimeIsUp(Exception):
    """Out of whatever is waited for."""


class Probe:
    """One check: `start` is the server's argv, if it has to be started; `host`, `port` and `target` are asked for; `steps`
    are those of a browser."""

    def __init__(
        self,
        *,
        start: list[str] | None,
        host: str,
        port: int,
        target: str,
        expect_status: int = 200,
        steps: list[dict[str, str]] | None = None,
    ) -> None:
        self._steps = steps
        self._start, self._host, self._port, self._target = start, host, port, target
        self._expect_status = expect_status
        self._last: dict[str, object] = {"problem": f"other checks used port {port} all the time"}

    def run(self, timeout_s: float) -> dict[str, object]:
        """`status`, `body` and `sha256` of the answer, or the `problem`; `said` is the end of the server's output."""
        signal.signal(signal.SIGALRM, _up)
        with socket.socket(socket.AF_UNIX) as turn, tempfile.TemporaryFile() as said:
            try:
                signal.setitimer(signal.ITIMER_REAL, timeout_s)
                self._take(turn)
                found = self._asked_in_turn(said)
            except _TimeIsUp:
                found = self._last
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
            said.seek(max(0, said.seek(0, os.SEEK_END) - SAID_BYTES_MAX))
            return {**found, "said": base64.b64encode(said.read(SAID_BYTES_MAX)).decode()}

    def _take(self, turn: socket.socket) -> None:
        """Be the only check at this port: the name lives in the network namespace that the port lives in."""
        while True:
            try:
                turn.bind(f"\0perdure-check-{self._port}")
            except OSError:
                time.sleep(_LOOK_S)
            else:
                return

    def _asked_in_turn(self, said: IO[bytes]) -> dict[str, object]:
        self._last = {"problem": "it did not answer in time"}
        if self._start is None:
            return self._seen(self._answer(None))
        if self._is_taken():
            return {"problem": f"something else listens on port {self._port}; choose another one"}
        try:
            server = subprocess.Popen(
                self._start, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        except OSError as error:
            return {"problem": f"the server could not be started: {error.strerror}"}
        try:
            return self._seen(self._answer(server))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def _seen(self, answer: dict[str, object]) -> dict[str, object]:
        """The answer, or with steps what a browser saw after it."""
        if self._steps is None or "problem" in answer:
            return answer
        return walked(f"http://{self._host}:{self._port}", self._target, self._steps, self._doing)

    def _doing(self, what: str) -> None:
        self._last = {"problem": f"{what} was not done in time"}

    def _is_taken(self) -> bool:
        try:
            socket.create_connection((self._host, self._port), _CONNECT_S).close()
        except OSError:
            return False
        return True

    def _answer(self, server: subprocess.Popen[bytes] | None) -> dict[str, object]:
        while True:
            try:
                found = self._asked()
            except (OSError, http.client.HTTPException) as error:
                self._last = {"problem": f"it did not answer in time: {type(error).__name__}: {error}"}
            else:
                self._last = found
                if found["status"] != _NOT_YET or self._expect_status == _NOT_YET:
                    return found
            if server is not None and (code := server.poll()):
                return {"problem": f"the server ended with {code} before it answered"}
            time.sleep(_LOOK_S)

    def _asked(self) -> dict[str, object]:
        connection = http.client.HTTPConnection(self._host, self._port)
        with contextlib.closing(connection):
            connection.connect()
            self._last = {"problem": "it took the question and did not answer in time"}
            connection.request("GET", self._target, headers={"User-Agent": "perdure-check", "Accept": "*/*"})
            response = connection.getresponse()
            body = b""
            while block := response.read1(_READ_BYTES):
                body += block
                if len(body) > BODY_BYTES_MAX:
                    problem = f"its body has more than {BODY_BYTES_MAX} bytes"
                    return {"status": response.status, "problem": problem}
        return {
            "status": response.status,
            "body": base64.b64encode(body).decode(),
            "sha256": hashlib.sha256(body).hexdigest(),
        }


def walked(
    origin: str, target: str, steps: list[dict[str, str]], told: Callable[[str], None]
) -> dict[str, object]:
    """Take the steps in a headless Chromium; `body` is the page's text behind the last one that was taken. `told` hears
    what comes next."""
    told("the start of Chromium")
    try:
        playwright = importlib.import_module("playwright.sync_api")
    except ImportError:
        return {"problem": f"playwright is not installed, so nothing can be seen in a browser; {INSTALL}"}
    with playwright.sync_playwright() as play:
        try:
            browser = play.chromium.launch(executable_path=_chromium(), args=_ARGUMENTS)
        except playwright.Error as error:
            return {"problem": f"Chromium does not start ({_first(error)}); {INSTALL}"}
        page = browser.new_page()
        doing = f"goto {target}"
        try:
            told(doing)
            page.goto(origin + target, timeout=_left_ms())
            for number, step in enumerate(steps, 1):
                doing = f"step {number} ({', '.join(f'{name} {value}' for name, value in step.items())})"
                told(doing)
                _take(page, origin, step)
        except (playwright.Error, ValueError) as error:
            return {"problem": f"{doing} failed: {_first(error)}", "body": _text_of(page, playwright.Error)}
        return {"status": 200, "body": _text_of(page, playwright.Error)}


def _take(page: Any, origin: str, step: dict[str, str]) -> None:
    left_ms = _left_ms()
    if (path := step.get("goto")) is not None:
        page.goto(origin + path, timeout=left_ms)
    elif (selector := step.get("click")) is not None:
        page.click(selector, timeout=left_ms)
    elif (selector := step.get("fill")) is not None:
        page.fill(selector, step["text"], timeout=left_ms)
    else:
        found = page.locator(step["expect"])
        if "text" in step:
            found = found.filter(has_text=re.compile(step["text"]))
        found.first.wait_for(state="visible", timeout=left_ms)


def _text_of(page: Any, fault: type[Exception]) -> str:
    try:
        text = page.inner_text("body", timeout=_TEXT_MS)
    except fault:
        return ""
    return base64.b64encode(text.encode("utf-8", "replace")[:BODY_BYTES_MAX]).decode()


def _left_ms() -> float:
    """What a step may take: not all of the check's time, and something is left for the report."""
    return min(_STEP_MS, max(1.0, (signal.getitimer(signal.ITIMER_REAL)[0] - 1.0) * 1000))


def _chromium() -> str | None:
    """The system's own, past the script that wraps it; `None`: the one that playwright has downloaded."""
    return next((path for path in _CHROMIUMS if os.access(path, os.X_OK)), None)


def _first(error: Exception) -> str:
    return (
        str(error).strip().splitlines()[0][:_PROBLEM_CHARS_MAX]
        if str(error).strip()
        else type(error).__name__
    )


def _up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TimeIsUp


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    json.dump(Probe(**wanted["check"]).run(wanted["timeout_s"]), sys.stdout)
    sys.stdout.write("\n")

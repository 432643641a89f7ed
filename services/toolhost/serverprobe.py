"""Starts a server, asks it one question, and tells what it answered: one side of the `http` check.

Its text is run as a program inside of the sandbox (`python3 -I -S -c`), standard library only, because the server is seen
only from there. Invariant: the last line that it prints is its report; it ends within the time that it was given, and
whatever it started ends with it (its launcher sees to what leaves its group).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from types import FrameType
from typing import IO

# Of a body, for the pattern; of what the server says, for people.
BODY_BYTES_MAX = 256 * 1024
SAID_BYTES_MAX = 8 * 1024
_LOOK_S = 0.05
_READ_BYTES = 16 * 1024
# Reaching a port of this machine takes no longer unless its queue is full.
_CONNECT_S = 5.0
# What servers say that are there and not ready; it is asked again, unless it is what is wanted.
_NOT_YET = 503


class _TimeIsUp(Exception):
    """Out of whatever is waited for."""


class Probe:
    """One check: `start` is the server's argv; `host`, `port` and `target` are asked for."""

    def __init__(self, *, start: list[str], host: str, port: int, target: str, expect_status: int) -> None:
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
        if self._is_taken():
            return {"problem": f"something else listens on port {self._port}; choose another one"}
        try:
            server = subprocess.Popen(
                self._start, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        except OSError as error:
            return {"problem": f"the server could not be started: {error.strerror}"}
        try:
            return self._answer(server)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            with contextlib.suppress(OSError):
                os.killpg(server.pid, signal.SIGKILL)
            server.wait()

    def _is_taken(self) -> bool:
        try:
            socket.create_connection((self._host, self._port), _CONNECT_S).close()
        except OSError:
            return False
        return True

    def _answer(self, server: subprocess.Popen[bytes]) -> dict[str, object]:
        while True:
            try:
                found = self._asked()
            except (OSError, http.client.HTTPException) as error:
                self._last = {"problem": f"it did not answer in time: {type(error).__name__}: {error}"}
            else:
                self._last = found
                if found["status"] != _NOT_YET or self._expect_status == _NOT_YET:
                    return found
            if code := server.poll():
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


def _up(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise _TimeIsUp


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    json.dump(Probe(**wanted["check"]).run(wanted["timeout_s"]), sys.stdout)
    sys.stdout.write("\n")

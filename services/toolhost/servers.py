"""The `http` and `browser` checks on the host's side: which command asks a server of the workspace, what its report says.

Invariant: a report that is missing or broken is a problem with a reason, never an answer.
"""

import base64
import sys
from pathlib import Path

import msgspec

from libs.contracts.checks import local_address
from libs.contracts.evidence import BrowserQuestion, HttpQuestion
from services.toolhost import serverprobe

# The probe keeps to its time by itself; beyond this it hangs, and is ended.
GRACE_S = 10.0
# Body and output of the server as base64, and the rest of the report.
REPORT_BYTES_MAX = 2 * (serverprobe.BODY_BYTES_MAX + serverprobe.SAID_BYTES_MAX)
# Of a body that people and models read: the heading of a page, not the page.
_BODY_CHARS_MAX = 1_000
_TAIL_CHARS_MAX = 300

_PROGRAM = Path(serverprobe.__file__)


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe found. `body` and `told` are text."""

    status: int | None
    sha256: str | None
    problem: str
    body: str
    told: str


class _Wire(msgspec.Struct, frozen=True, kw_only=True):
    status: int | None = None
    sha256: str | None = None
    problem: str = ""
    body: str = ""
    said: str = ""


def probe(question: HttpQuestion | BrowserQuestion, sandbox: str) -> list[str]:
    """The argv that starts the server and asks it. The sandbox has the program's text, because it has not its file."""
    address = local_address(question.url)
    where = {"start": question.start, "host": address.host, "port": address.port, "target": address.target}
    match question:
        case HttpQuestion():
            # Nothing that is installed beside Python is needed, or wanted.
            python = ["python3", "-I", "-S"]
            check = {**where, "expect_status": question.expect_status}
        case BrowserQuestion():
            # Playwright is where Perdure is, or in the operator's image.
            python = ["python3" if sandbox == "docker" else sys.executable, "-I"]
            check = {**where, "steps": question.steps}
    wanted = msgspec.json.encode({"check": check, "timeout_s": question.timeout_s}).decode()
    return [*python, "-c", _PROGRAM.read_text("utf-8"), wanted]


def reported(output: str) -> Report | str:
    """The report at the end of the probe's output, or why there is none."""
    *_, last = output.rstrip("\n").split("\n")
    try:
        wire = msgspec.json.decode(last, type=_Wire)
        body, said = _text(wire.body), _text(wire.said)
    except ValueError:
        return unavailable(output.strip()[-_TAIL_CHARS_MAX:] or "it said nothing")
    if wire.status is None and not wire.problem:
        return unavailable("its report is not whole")
    shown = body if len(body) <= _BODY_CHARS_MAX else f"{body[:_BODY_CHARS_MAX]}…"
    heading = f"HTTP {wire.status}" if wire.status is not None else "the page read:"
    parts = [f"{heading}\n{shown}".strip()] if wire.status is not None or shown else []
    parts += [f"the server said:\n{said.strip()}"] if said.strip() else []
    return Report(
        status=wire.status,
        sha256=wire.sha256,
        problem=wire.problem,
        body=body,
        told="\n\n".join(parts),
    )


def unavailable(why: str) -> str:
    """The problem of a check that could not be made at all."""
    return f"the server could not be asked: {why}. The sandbox needs python3 on its PATH for http checks"


def _text(encoded: str) -> str:
    return base64.b64decode(encoded, validate=True).decode("utf-8", "replace")

"""The tools of a workspace, one file each: a `SPEC` and an async `run(context, arguments)`.

Invariant: a tool touches the world only through its `ToolContext`, and answers either an `Outcome` or a `ToolFailure`.
Which tools there are stands in `catalog.py`.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from libs.bus.ports import Blobs
from libs.policy.redaction import Redaction
from services.toolhost.errors import InvalidArguments
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.knowledge.backends import Knowledge
from services.toolhost.processes import OnStarted, Processes
from services.toolhost.repository import HiddenRepository
from services.toolhost.sandbox import Sandbox
from services.toolhost.undo import UndoLog

Arguments = dict[str, object]
_T = TypeVar("_T", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolContext:
    """What one call may use. `baseline_commit` is the state in which the run found the workspace; `stop` ends a
    running command (it is the run's cancellation); `on_started` journals its process group before it is executed; `seen`
    are the digests of files as the run saw them last; `ripgrep` is where that program is, if it is; `redaction`
    knows this host's secrets, `hidden` the files that a look at many has to pass over; `knowledge` holds the documents
    of all tenants, of which a call sees its `tenant`'s; `objects` is what commits travel through (`branches.py`)."""

    call_id: str
    guard: WorkspaceGuard
    repository: HiddenRepository
    undo: UndoLog
    processes: Processes
    sandbox: Sandbox
    tenant: str = ""
    knowledge: Knowledge | None = None
    objects: Blobs | None = None
    baseline_commit: str | None = None
    ripgrep: str | None = None
    run_tests_command: tuple[str, ...] = ()
    redaction: Redaction = field(default_factory=Redaction)
    hidden: Callable[[str], bool] | None = None
    seen: Mapping[str, str] = field(default_factory=dict[str, str])
    output_chars_max: int = 30_000
    timeout_s: float = 120.0
    on_started: OnStarted | None = None
    stop: asyncio.Event | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the model reads (`output`) and what the record keeps beside it (`metadata`, JSON values)."""

    ok: bool
    output: str
    metadata: dict[str, object] = {}


def decoded(arguments: Arguments, into: type[_T]) -> _T:
    """The arguments as the tool's own struct. The host has checked the schema; this only types them."""
    try:
        return msgspec.convert(arguments, into)
    except msgspec.ValidationError as error:
        raise InvalidArguments(f"{error}") from None

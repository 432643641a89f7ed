"""A tool host that many tests share, each with a run and a workspace of its own, and a shell there that somebody approves."""

from __future__ import annotations

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.connection import connect
from libs.bus.ports import Bus
from libs.chassis.clock import SystemClock
from libs.contracts.events import InputReceived, InputRequested, RunReleased
from libs.contracts.tools import Semantics, ToolCall, ToolResult
from libs.policy.approval import approval_hash
from tests.fakes.bus import bus_settings
from tests.service.hosting_owner import Owner, toolhost


class Host(NamedTuple):
    """A tool host and what is needed to talk to it."""

    bus: Bus
    boot: str
    root: Path


@asynccontextmanager
async def hosted(node: NatsServer, root: Path, sandbox: str = "none") -> AsyncGenerator[Host]:
    """A tool host in this process, on a bus that others may use, too."""
    needs_bubblewrap(sandbox)
    async with connect(bus_settings(node.address), SystemClock()) as bus:
        await bus.ensure_topology()
        known = frozenset(entry.key for entry in await bus.bucket("catalog").entries())
        async with toolhost(bus, root, sandbox=sandbox, known=known) as boot:
            yield Host(bus, boot, root)


def needs_bubblewrap(sandbox: str) -> None:
    if sandbox == "auto" and shutil.which("bwrap") is None:
        pytest.skip("the program bwrap is not installed")


class Shell:
    """A run with a workspace of its own, whose commands somebody approves."""

    def __init__(self, host: Host, owner: Owner) -> None:
        self._host, self._owner = host, owner
        self.root = host.root / owner.workspace
        self._calls = 0

    async def approved(self, name: str, **arguments: object) -> ToolCall:
        self._calls += 1
        call_id, owner = f"call_1_{self._calls}", self._owner
        bound = approval_hash(name, arguments, call_id)
        asked = InputRequested(
            question_id=call_id, kind="approval", question="May it?", call_id=call_id, approval_hash=bound
        )
        owner.folded = await owner.runs.commit(
            owner.folded, [RunReleased(reason="suspended", waiting_for="input"), asked]
        )
        received = InputReceived(
            question_id=call_id,
            kind="approval",
            answer="",
            by="test",
            decision="approve",
            approval_hash=bound,
        )
        owner.folded = await owner.runs.commit(owner.folded, [received])
        sequence = owner.folded.state.sequence
        await owner.claim()
        return owner.call(
            name,
            arguments,
            call_id,
            semantics=Semantics.NON_IDEMPOTENT,
            approval_sequence=sequence,
            approval_hash=bound,
        )

    async def run(self, command: str, **arguments: object) -> ToolResult:
        return await self.do(await self.approved("run_command", command=command, **arguments))

    async def do(self, call: ToolCall) -> ToolResult:
        return await self._owner.effect(self._host.boot, call)

    async def begin(self, call: ToolCall) -> None:
        await self._owner.send(self._host.bus.subjects.tool_host(self._host.boot), call)

    async def cancel(self) -> None:
        await self._owner.cancel(self._host.boot)

    async def result(self, call: ToolCall) -> ToolResult:
        return await self._owner.result(call)

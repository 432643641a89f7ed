"""A test as the owner of a run: claims it, calls hosts by the documented messages, reads the journal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from deploy.dev.nats_server import NatsServer
from libs.bus.checkpoints import Checkpoints
from libs.bus.journal import Journal
from libs.bus.liveness import death_of
from libs.bus.ports import Bus, Draft, LogKey
from libs.bus.runs import Folded, Runs
from libs.chassis.clock import SystemClock
from libs.chassis.run import Chassis
from libs.chassis.settings import ServiceSettings
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event
from libs.contracts.events import (
    LogEvent,
    RunCancelled,
    RunClaimed,
    RunCreated,
    RunStartRequested,
    WorkspaceAttached,
)
from libs.contracts.ids import random_run_id, task_id_of, workspace_id
from libs.contracts.subjects import catalog_key, replica_key
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import (
    WORKSPACE_ATTACH,
    CancelCalls,
    ControlReply,
    HostCatalog,
    JournalEntry,
    JournalState,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
)
from libs.contracts.values import Usage
from services.toolhost.app import serve as serve_toolhost
from services.toolhost.settings import ToolhostSettings
from services.verifier.app import serve as serve_verifier
from services.verifier.settings import VerifierSettings
from tests.fakes.waiting import eventually

TENANT = "local"
DEADLINE_S = 20.0
S = TypeVar("S", bound=ServiceSettings)


class Owner:
    """Owns one run."""

    def __init__(self, bus: Bus, folded: Folded, workspace: str) -> None:
        self.bus, self.folded, self.workspace = bus, folded, workspace
        self.clock = SystemClock()
        self.runs = runs_of(bus)
        self.journal = Journal(bus.bucket("journal"))
        self.baseline: str | None = None
        self.boot = ""

    @property
    def run_id(self) -> str:
        return self.folded.state.run_id

    @property
    def epoch(self) -> int:
        return self.folded.state.epoch

    async def claim(self, boot: str = "bexecutor") -> None:
        state = self.folded.state
        body = RunClaimed(owner="executor-1", boot=boot, epoch=state.epoch + 1, attempt=state.attempt + 1)
        self.folded = await self.runs.commit(self.folded, [body])

    async def end(self) -> None:
        self.folded = await self.runs.commit(self.folded, [RunCancelled(by="test", usage=Usage())])

    def call(self, name: str, arguments: Mapping[str, object], call_id: str, **changes: object) -> ToolCall:
        call = ToolCall(
            tenant=TENANT,
            run_id=self.run_id,
            call_id=call_id,
            attempt=1,
            epoch=self.epoch,
            name=name,
            arguments=dict(arguments),
            semantics=Semantics.IDEMPOTENT,
            idempotency_key=f"{self.run_id}:{call_id}",
            not_after=rfc3339(self.clock.now() + timedelta(seconds=60)),
            timeout_s=30.0,
            output_chars_max=30_000,
            workspace=self.workspace,
            workspace_id=workspace_id(1, TENANT, self.workspace),
        )
        return msgspec.structs.replace(call, **changes)

    async def ask(self, boot: str, call: ToolCall) -> ToolResult:
        """A READ_ONLY call."""
        subject = self.bus.subjects.call_host(boot)
        reply = await self.bus.wire.request(subject, msgspec.json.encode(call), timeout_s=DEADLINE_S)
        return msgspec.json.decode(reply, type=ToolResult)

    async def read(self, boot: str, name: str, /, **arguments: object) -> ToolResult:
        return await self.ask(boot, self.call(name, arguments, f"read_{name}"))

    async def send(self, subject: str, call: ToolCall) -> None:
        await self.bus.queue.publish(subject, msgspec.json.encode(call))

    async def entry(self, call: ToolCall) -> JournalEntry | None:
        found = await self.journal.read(call.run_id, call.call_id, call.attempt)
        return found.entry if found is not None else None

    async def effect(self, boot: str, call: ToolCall) -> ToolResult:
        """A call with an effect, until its result is in the journal."""
        await self.send(self.bus.subjects.tool_host(boot), call)
        return await self.result(call)

    async def result(self, call: ToolCall) -> ToolResult:
        async def finished() -> ToolResult | None:
            entry = await self.entry(call)
            return entry.result if entry is not None and entry.state is JournalState.FINISHED else None

        return await eventually(finished, "the call is finished")

    async def name_host(self, boot: str) -> None:
        """Append `workspace.attached` to the workspace's own log."""
        key = LogKey(TENANT, workspace_id(1, TENANT, self.workspace))
        tail = await self.bus.log.tail(key)
        body = WorkspaceAttached(workspace_id=key.log_id, host=boot, replica="toolhost-1")
        sequence = tail.header.last + 1 if tail is not None else 1
        expected = tail.header.stream_sequence if tail is not None else 0
        event = Event(sequence, key.log_id, rfc3339(self.clock.now()), body)
        await self.bus.log.append(Draft(key, expected, [event], 0, "ATTACHED"))

    async def ask_attach(self, boot: str, files: Mapping[str, str] | None = None) -> ToolResult:
        arguments = {"baseline": self.baseline, "files": dict(files or {})}
        return await self.ask(boot, self.call(WORKSPACE_ATTACH, arguments, WORKSPACE_ATTACH))

    async def attached(self, boot: str, files: Mapping[str, str] | None = None) -> ToolResult:
        """What the host says once it is ready; until then it is asked again, as an executor does."""
        return await eventually(
            lambda: self.ask_attach(boot, files),
            "the workspace is prepared",
            fits=lambda result: result.refused != Refusal.WORKSPACE_BUSY,
        )

    async def attach(self, boot: str) -> None:
        """Both steps of attaching, which must succeed."""
        await self.name_host(boot)
        result = await self.attached(boot)
        assert result.ok, result
        baseline = result.metadata["baseline"]
        assert isinstance(baseline, str)
        self.baseline = baseline

    async def cancel(self, boot: str) -> ControlReply:
        message = msgspec.json.encode(CancelCalls(run_id=self.run_id, epoch=self.epoch))
        reply = await self.bus.wire.request(self.bus.subjects.control(boot), message, timeout_s=5.0)
        return msgspec.json.decode(reply, type=ControlReply)


def runs_of(bus: Bus) -> Runs:
    return Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), SystemClock())


async def owned_run(bus: Bus, workspace: str | None = "project") -> Owner:
    """A fresh run that the test owns; without a `workspace` it has one of its own."""
    run_id = random_run_id(SystemClock(), 0)
    workspace = workspace or run_id
    bodies: list[LogEvent] = [
        RunCreated(
            tenant=TENANT,
            task_id=task_id_of(run_id),
            task=TaskSpec(goal="test"),
            limits=Limits(),
            workspace=workspace,
            body_hash="0",
        ),
        RunStartRequested(by="test"),
    ]
    owner = Owner(bus, await runs_of(bus).create(TENANT, run_id, bodies), workspace)
    await owner.claim()
    return owner


@asynccontextmanager
async def toolhost(
    bus: Bus,
    root: Path,
    *,
    tests: str = "",
    sandbox: str = "none",
    policy: str = "",
    known: frozenset[str] = frozenset(),
    more: Mapping[str, str] | None = None,
) -> AsyncGenerator[str]:
    """A tool host in this process, with `more` variables; gives its boot, which is none of `known`."""
    environment = {
        "WORKSPACE_DIR": str(root),
        "SANDBOX": sandbox,
        "RUN_TESTS_COMMAND": tests,
        "PERDURE_POLICY": policy,
        "REPLICA_ID": "toolhost-1",
        "PERDURE_LEASE_TTL_S": "1",
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        **(more or {}),
    }
    settings = ToolhostSettings.load("toolhost", environment)
    async with served(bus, serve_toolhost, settings):
        yield (await host_of(bus, shared=False, known=known)).boot


@asynccontextmanager
async def toolhost_process(
    node: NatsServer,
    bus: Bus,
    root: Path,
    *,
    tests: str = "",
    sandbox: str = "none",
    within: Sequence[str] = (),
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A tool host as a process of its own; `within` is the argv of what executes it."""
    environment = {
        "PATH": os.environ["PATH"],
        "NATS_URL": node.address.url,
        "NATS_USER": node.address.user,
        "NATS_PASSWORD": node.address.password,
        "NATS_MONITOR_URL": node.address.monitor_url,
        "PERDURE_PREFIX": bus.subjects.prefix,
        "PERDURE_DATA": str(root.with_name(f"{root.name}-data")),
        "PERDURE_LEASE_TTL_S": "1",
        "WORKSPACE_DIR": str(root),
        "SANDBOX": sandbox,
        "RUN_TESTS_COMMAND": tests,
        "REPLICA_ID": "toolhost-9",
    }
    process = await asyncio.create_subprocess_exec(
        *within, sys.executable, "-m", "services.toolhost", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@asynccontextmanager
async def verifier(bus: Bus, more: Mapping[str, str] | None = None) -> AsyncGenerator[str]:
    """A verifier in this process, with `more` variables; gives its boot."""
    environment = {"REPLICA_ID": "verifier-1", "PERDURE_LEASE_TTL_S": "1", **(more or {})}
    settings = VerifierSettings.load("verifier", environment)
    async with served(bus, serve_verifier, settings):
        yield (await host_of(bus, shared=True)).boot


@asynccontextmanager
async def served(
    bus: Bus, serve: Callable[[Chassis[S]], Coroutine[Any, Any, None]], settings: S
) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    serving = asyncio.create_task(serve(Chassis(settings, SystemClock(), bus, runs_of(bus), stop)))
    try:
        yield
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await serving


async def host_of(bus: Bus, *, shared: bool, known: frozenset[str] = frozenset()) -> HostCatalog:
    """The catalog of a host of that kind that is not `known`."""

    async def found() -> HostCatalog | None:
        for entry in await bus.bucket("catalog").entries():
            catalog = msgspec.json.decode(entry.value, type=HostCatalog)
            assert entry.key == catalog_key(catalog.boot)
            if catalog.shared is shared and catalog.boot not in known:
                return catalog
        return None

    return await eventually(found, "a host in the catalog")


async def declare_dead(bus: Bus, boot: str) -> None:
    """Write the death, as the scheduler does, over whatever the lease holds."""
    await bus.bucket("leases").put(replica_key(boot), death_of(boot), ttl_s=60)

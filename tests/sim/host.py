"""A tool host with in-memory tools and workspaces, over the real protocol of `libs/chassis`.

Invariant: an effect changes the world at one moment between its start and its end, and every change is kept in
`World.effects` with who made it; a workspace is changed by the holder of its lock alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec

from libs.bus.liveness import Registration, register
from libs.bus.ports import Liveness, LogKey
from libs.chassis.effects import Effect as HostEffect
from libs.chassis.effects import Prepared, Stopped, failed, refused
from libs.chassis.hosting import EFFECTS_MAX, HostSetting, ToolHost
from libs.contracts.envelope import decode_events
from libs.contracts.errors import LeaseLost
from libs.contracts.events import WorkspaceAttached
from libs.contracts.evidence import (
    Change,
    CommandAnswer,
    CommandQuestion,
    FileAnswer,
    FilesAnswer,
    FilesQuestion,
    SnapshotAnswer,
    SnapshotQuestion,
)
from libs.contracts.streams import host_consumer
from libs.contracts.tools import (
    VERIFY_COMMAND,
    VERIFY_FILES,
    VERIFY_SNAPSHOT,
    WORKSPACE_ATTACH,
    WORKSPACE_SNAPSHOT,
    HostCatalog,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from services.toolhost.approvals import is_approved
from tests.sim.errands import ERRANDS, WANTED
from tests.sim.world import Disk, Effect, Machine, World

TTL_S = 3.0
# What only the runtime asks for.
_RUNTIME = ERRANDS | {VERIFY_SNAPSHOT, VERIFY_COMMAND}


def _spec(
    name: str, semantics: Semantics, *, workspace: bool, risk: str = "low", timeout_s: float = 20.0
) -> ToolSpec:
    return ToolSpec(
        name=name,
        description=name,
        parameters={"type": "object"},
        semantics=semantics,
        risk=risk,
        timeout_s=timeout_s,
        needs_workspace=workspace,
    )


# `count` and `launch` change something that a repetition would change again; `launch` needs an approval.
TOOLS = (
    _spec("look", Semantics.READ_ONLY, workspace=True),
    _spec("write", Semantics.IDEMPOTENT, workspace=True),
    _spec("count", Semantics.NON_IDEMPOTENT, workspace=False),
    _spec("bump", Semantics.NON_IDEMPOTENT, workspace=True),
    _spec("launch", Semantics.NON_IDEMPOTENT, workspace=False, risk="high"),
)
_BY_NAME = {spec.name: spec for spec in TOOLS}


async def serve_host(world: World, machine: Machine) -> None:
    """Host tools until the process ends; as `services/toolhost/app.py`."""
    died = asyncio.Event()
    tools = _Tools(world, machine)
    host = ToolHost(machine.bus, machine.clock, tools)
    registration = Registration("toolhost", machine.name, EFFECTS_MAX, False, TTL_S, {})
    async with register(
        machine.bus, machine.clock, registration, control=host.control, on_death=died.set
    ) as liveness:
        tools.liveness = liveness
        catalog = HostCatalog(
            boot=liveness.boot, replica=machine.name, host="here", tools=list(TOOLS), workspaces=True
        )
        effects = host_consumer(machine.bus.subjects, liveness.boot)
        await host.serve(liveness, HostSetting(catalog, effects), stop=machine.stop, died=died)
        if died.is_set():
            raise LeaseLost("declared dead")
        await machine.bus.queue.remove_consumer(effects)


class _Tools:
    """`ToolService` of a host."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world, self._machine = world, machine
        self.liveness: Liveness | None = None
        self._held: dict[str, Disk] = {}

    async def answer(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        if call.name == WORKSPACE_ATTACH:
            return await self._attach(call)
        if call.workspace_id not in self._held:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        if call.name == WORKSPACE_SNAPSHOT:
            # Every machine of the simulation sees the same disks; what counts is that it is asked and recorded.
            await self._busy(stop)
            return _done(call, "", {"snapshot": "s", "commit": "c", "chain": ["s"], "changed": 0})
        if call.name == VERIFY_FILES:
            return _facts(call, self._file_facts(call))
        if _BY_NAME.get(call.name) is not _BY_NAME["look"]:
            return refused(call, Refusal.UNKNOWN_TOOL)
        await self._busy(stop)
        return _done(call, ", ".join(sorted(self._held[call.workspace_id].files)) or "nothing")

    @asynccontextmanager
    async def effect(self, call: ToolCall) -> AsyncGenerator[Prepared]:
        yield await self._prepared(call)

    async def _prepared(self, call: ToolCall) -> Prepared:
        spec = _BY_NAME.get(call.name)
        if spec is None and call.name not in _RUNTIME:
            return refused(call, Refusal.UNKNOWN_TOOL, call.name)
        if (spec is None or spec.needs_workspace) and call.workspace_id not in self._held:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        if spec is not None and spec.risk == "high" and not await is_approved(self._machine.bus.log, call):
            return failed(call, "NOT_APPROVED")

        async def perform(stop: asyncio.Event) -> ToolResult:
            running = self._world.running
            place = (self._machine.name, self._world.starts[self._machine.name], call.run_id)
            running[place] += 1
            try:
                return await self._perform(call, stop)
            finally:
                running[place] -= 1

        return HostEffect(perform, before={}, after={})

    async def _perform(self, call: ToolCall, stop: asyncio.Event) -> ToolResult:
        await self._busy(stop)
        if stop.is_set():
            raise Stopped("cancelled")
        if self._world.may_die(self._machine.process, call, done=False):
            return await asyncio.get_running_loop().create_future()
        result = self._change(call)
        if self._world.may_die(self._machine.process, call, done=True):
            return await asyncio.get_running_loop().create_future()
        await self._busy(stop)
        return result

    def _change(self, call: ToolCall) -> ToolResult:
        """The moment at which the world becomes another."""
        world, boot = self._world, self.liveness.boot if self.liveness is not None else ""
        disk = self._held.get(call.workspace_id)
        if disk is not None and disk.holder is not self._machine.process:
            world.finding(
                f"{boot} changes a workspace that {disk.holder_boot} holds ({call.name} of {call.run_id})"
            )
        if call.name == VERIFY_SNAPSHOT:
            return _facts(call, self._snapshot(call))
        if call.name == VERIFY_COMMAND:
            question = msgspec.convert(call.arguments, CommandQuestion)
            passed = WANTED in question.commit
            return _facts(call, CommandAnswer(argv=question.argv or [], exit_code=0 if passed else 1))
        if call.name in ERRANDS:
            assert disk is not None
            repository = world.repositories[call.workspace]
            return _done(call, "", repository.perform(call.name, call.arguments, disk.files))
        world.say(f"EFFECT {call.name} {call.call_id}.{call.attempt} of {call.run_id}")
        world.effect(Effect(call.run_id, call.call_id, call.name, call.attempt, boot, world.loop.time()))
        if call.name != "write":
            return _done(call, f"did {call.name}")
        path, content = str(call.arguments["path"]), str(call.arguments.get("content", ""))
        assert disk is not None
        disk.files[path] = content
        digest = hashlib.sha256(content.encode()).hexdigest()
        return _done(call, f"wrote {path}", {"path": path, "sha256": digest})

    async def _busy(self, stop: asyncio.Event) -> None:
        """A while of work, mostly short, ended early by `stop`."""
        chance = self._world.chance
        seconds = (
            chance.choice((0.002, 0.01, 0.05, 0.3)) if chance.random() < 0.9 else chance.uniform(1.0, 8.0)
        )
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            return

    async def _attach(self, call: ToolCall) -> ToolResult:
        assert self.liveness is not None
        tail = await self._machine.bus.log.tail(LogKey(call.tenant, call.workspace_id))
        newest = decode_events(tail)[-1].body if tail is not None else None
        if not isinstance(newest, WorkspaceAttached) or newest.host != self.liveness.boot:
            return refused(call, Refusal.NOT_MY_WORKSPACE)
        disk = self._world.disks[call.workspace]
        if call.workspace_id not in self._held:
            holder = disk.holder
            if holder is not None and holder.alive:
                if not await self.liveness.declare_dead_if_gone(disk.holder_boot):
                    return refused(call, Refusal.WORKSPACE_BUSY)
                if disk.holder is not holder:
                    return refused(call, Refusal.WORKSPACE_BUSY)  # The lock: somebody took it meanwhile.
                self._world.say(f"kills the former holder {disk.holder_boot}")
                self._world.kill(holder)
            disk.holder, disk.holder_boot = self._machine.process, self.liveness.boot
            self._held[call.workspace_id] = disk
        files = msgspec.convert(call.arguments["files"], dict[str, str])
        changed = [path for path, digest in files.items() if _digest(disk, path) != digest]
        return _done(call, "", {"baseline": "base", "changed": sorted(changed)})

    def _snapshot(self, call: ToolCall) -> SnapshotAnswer:
        question = msgspec.convert(call.arguments, SnapshotQuestion)
        files = self._held[call.workspace_id].files
        return SnapshotAnswer(
            # The commit names what is in it, so that a command in its checkout knows without a store of commits.
            commit="commit " + " ".join(sorted(files)),
            baseline=question.baseline,
            changed=[Change(path=path, kind="added") for path in sorted(files)],
            tests_command=[],
            protected_folders=[],
            unkept=[],
        )

    def _file_facts(self, call: ToolCall) -> FilesAnswer:
        question = msgspec.convert(call.arguments, FilesQuestion)
        disk = self._held[call.workspace_id]
        return FilesAnswer(
            files=[
                FileAnswer(path=file.path, before=None, after=_digest(disk, file.path))
                for file in question.files
            ]
        )


def _digest(disk: Disk, path: str) -> str | None:
    content = disk.files.get(path)
    return hashlib.sha256(content.encode()).hexdigest() if content is not None else None


def _done(call: ToolCall, output: str, metadata: dict[str, object] | None = None) -> ToolResult:
    return ToolResult(
        call_id=call.call_id, attempt=call.attempt, ok=True, output=output, metadata=metadata or {}
    )


def _facts(call: ToolCall, answer: msgspec.Struct) -> ToolResult:
    return _done(call, "", msgspec.to_builtins(answer))

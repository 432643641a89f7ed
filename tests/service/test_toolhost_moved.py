"""A workspace that went to another machine, and what a host does that finds an outdated folder of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Draft, LogKey
from libs.chassis.clock import SystemClock
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event
from libs.contracts.events import RunDeleted, WorkspaceAttached
from libs.contracts.ids import workspace_id
from libs.contracts.project_events import ProjectCancelled, ProjectCreated
from libs.contracts.projects import ProjectSpec
from libs.contracts.tools import WORKSPACE_ATTACH, WORKSPACE_SNAPSHOT, Refusal, ToolCall, ToolResult
from libs.contracts.workspaces import Saved, lane_workspace
from services.toolhost.attach import Attached, Inheritance, Replay, Workspaces
from services.toolhost.clearing import Clearing, Pace
from services.toolhost.leftovers import Leftovers
from services.toolhost.room import Quota
from services.toolhost.sandbox.none import NoSandbox
from services.toolhost.snapshots import Snapshots
from services.toolhost.underway import Underway
from services.toolhost.workspace import HIDDEN_FOLDER
from tests.fakes.waiting import eventually
from tests.service.hosting_owner import TENANT, Owner, declare_dead, host_of, owned_run, toolhost
from tests.unit.toolhost_workspace import processes


async def name(owner: Owner, host: str, root: str, held: str, saved: Saved | None) -> None:
    """What an owner appends to the workspace's own log."""
    key = LogKey(TENANT, workspace_id(1, TENANT, owner.workspace))
    tail = await owner.bus.log.tail(key)
    sequence, expected = (tail.header.last + 1, tail.header.stream_sequence) if tail is not None else (1, 0)
    body = WorkspaceAttached(
        workspace_id=key.log_id, host=host, replica="r", root=root, held=held, saved=saved
    )
    event = Event(sequence, key.log_id, rfc3339(owner.clock.now()), body)
    await owner.bus.log.append(Draft(key, expected, [event], 0, "ATTACHED"))


async def root_of(bus: Bus, boot: str, known: frozenset[str]) -> str:
    catalog = await host_of(bus, shared=False, known=known)
    assert catalog.boot == boot
    return catalog.root


async def kept(owner: Owner, host: str) -> Saved:
    call = owner.call(WORKSPACE_SNAPSHOT, {"chain": []}, WORKSPACE_SNAPSHOT)
    result = await owner.ask(host, call)
    assert result.ok, result
    fields = {**result.metadata, "run_id": owner.run_id, "at_sequence": owner.folded.state.sequence}
    return msgspec.convert(fields, Saved)


async def test_an_outdated_folder_is_recorded_and_replaced_and_a_current_one_is_not_touched(
    bus: Bus, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "project").mkdir(parents=True)
    (here / "project" / "a.txt").write_text("old")
    owner = await owned_run(bus)
    async with toolhost(bus, here) as first:
        home = await root_of(bus, first, frozenset())
        await name(owner, first, home, home, None)
        assert (await owner.attached(first)).ok
        saved = await kept(owner, first)
    await declare_dead(bus, first)
    async with toolhost(bus, there, known=frozenset({first})) as second:
        away = await root_of(bus, second, frozenset({first}))
        assert away != home
        await name(owner, second, away, home, saved)
        result = await owner.attached(second)
        assert result.metadata["snapshot"] == saved.snapshot
        assert (there / "project" / "a.txt").read_text() == "old"
        (there / "project" / "a.txt").write_text("new")
        newer = await kept(owner, second)
    await declare_dead(bus, second)
    known = frozenset({first, second})
    async with toolhost(bus, here, known=known) as third:
        assert await root_of(bus, third, known) == home
        await name(owner, third, home, away, newer)
        assert (await owner.attached(third)).metadata["snapshot"] == newer.snapshot
        assert (here / "project" / "a.txt").read_text() == "new"
        (here / "project" / "a.txt").write_text("newest")
    await declare_dead(bus, third)
    async with toolhost(bus, here, known=known | {third}) as fourth:
        await name(owner, fourth, home, home, newer)
        result = await owner.attached(fourth)
        assert (result.metadata["snapshot"], result.metadata["lost"]) == (None, [])
        assert (here / "project" / "a.txt").read_text() == "newest"


async def test_a_snapshot_that_is_not_there_any_more_is_a_fault_that_says_so(
    bus: Bus, tmp_path: Path
) -> None:
    async with toolhost(bus, tmp_path) as host:
        owner = await owned_run(bus)
        lost = Saved(snapshot="a" * 40, commit="b" * 40, chain=["a" * 40], run_id=owner.run_id, at_sequence=1)
        await name(owner, host, await root_of(bus, host, frozenset()), "elsewhere", lost)
        result = await owner.attached(host)
        assert result.refused is not None
        assert "is not there" in result.output


class SlowReplay:
    """Does again what was done, once it is let."""

    def __init__(self) -> None:
        self.runs = 0
        self.go = asyncio.Event()

    async def run(self, call: ToolCall, attached: Attached, saved: Saved | None) -> list[str]:
        del call, attached, saved
        self.runs += 1
        await self.go.wait()
        return ["something"]


@asynccontextmanager
async def workspaces_of(bus: Bus, root: Path, replay: Replay) -> AsyncGenerator[tuple[Workspaces, str]]:
    """What a host holds, without the host; with its boot."""
    clock = SystemClock()
    inheritance = Inheritance(
        Leftovers(processes(), NoSandbox(), None), Snapshots(bus.store("workspaces")), replay
    )
    registration = Registration("toolhost", "toolhost-1", 1, False, 5.0, {})
    async with (
        register(bus, clock, registration, on_death=lambda: None) as liveness,
        Underway[ToolResult].open(0.05) as underway,
    ):
        workspaces = Workspaces(
            bus.log,
            clock,
            inheritance,
            underway,
            root=root,
            secure=False,
            program_path=os.environ["PATH"],
            quota=Quota(),
        )
        workspaces.begin(liveness, "here")
        yield workspaces, liveness.boot
        workspaces.close()


async def test_the_folders_of_lanes_go_that_the_end_of_their_project_names(bus: Bus, tmp_path: Path) -> None:
    project = LogKey(TENANT, "project_0_" + "1" * 26)
    created = ProjectCreated(
        tenant=TENANT, spec=ProjectSpec(name="p", brief="b"), workspace=project.log_id, body_hash="", by=""
    )
    at = rfc3339(SystemClock().now())
    await bus.log.append(Draft(project, 0, [Event(1, project.log_id, at, created)], 0, "ACTIVE"))
    async with workspaces_of(bus, tmp_path, SlowReplay()) as (workspaces, boot):
        owners = [await owned_run(bus, lane_workspace(project.log_id, lane)) for lane in range(3)]
        for owner in owners:
            await owner.name_host(boot)

            async def asked(owner: Owner = owner) -> ToolResult:
                return await workspaces.attach(owner.call(WORKSPACE_ATTACH, {}, WORKSPACE_ATTACH))

            await eventually(asked, "it is attached", fits=lambda result: result.refused is None)
        clearing = Clearing(
            bus.log, SystemClock(), workspaces, tmp_path, secure=False, pace=Pace(0.0, 3600.0)
        )
        await clearing.step()
        folders = [tmp_path / owner.workspace for owner in owners]
        # From here on only those are looked at that are told of.
        workspaces.leaving |= set(folders)
        for forgotten in (owners[0], owners[1]):
            key = LogKey(TENANT, workspace_id(1, TENANT, forgotten.workspace))
            tail = await bus.log.tail(key)
            assert tail is not None
            await bus.log.purge(key, tail.header.stream_sequence + 1)
        await clearing.step()
        assert [folder.exists() for folder in folders] == [True, True, True], "the project goes on"
        tail = await bus.log.tail(project)
        assert tail is not None
        end = Event(2, project.log_id, at, ProjectCancelled(by="me", removed=[0, 2]))
        await bus.log.append(Draft(project, tail.header.stream_sequence, [end], 0, "CANCELLED"))
        await clearing.step()
        assert [folder.exists() for folder in folders] == [False, True, True], (
            "one is not named, and somebody may work in the other"
        )
        assert workspaces.leaving == set(folders[1:])
        assert not list((tmp_path / HIDDEN_FOLDER).glob(f"{owners[0].workspace}*"))


async def test_what_takes_long_goes_on_while_its_owner_asks_how_far_it_is(bus: Bus, tmp_path: Path) -> None:
    replay = SlowReplay()
    async with workspaces_of(bus, tmp_path, replay) as (workspaces, boot):
        owner = await owned_run(bus)
        await name(owner, boot, "here", "elsewhere", None)
        call = owner.call(WORKSPACE_ATTACH, {}, WORKSPACE_ATTACH)

        async def asked() -> ToolResult:
            return await workspaces.attach(call)

        busy = await eventually(asked, "it is at the replay", fits=lambda result: "again" in result.output)
        assert busy.refused == Refusal.WORKSPACE_BUSY
        replay.go.set()
        ready = await eventually(asked, "it is attached", fits=lambda result: result.refused is None)
        assert ready.metadata["lost"] == ["something"]
        assert replay.runs == 1


async def test_the_folder_of_a_deleted_run_goes_once_its_workspace_is_forgotten_and_no_other(
    bus: Bus, tmp_path: Path
) -> None:
    async with workspaces_of(bus, tmp_path, SlowReplay()) as (workspaces, boot):
        owners = [await owned_run(bus, workspace=None) for _ in range(3)] + [await owned_run(bus)]
        for owner in owners:
            await owner.name_host(boot)

            async def asked(owner: Owner = owner) -> ToolResult:
                return await workspaces.attach(owner.call(WORKSPACE_ATTACH, {}, WORKSPACE_ATTACH))

            await eventually(asked, "it is attached", fits=lambda result: result.refused is None)
            (tmp_path / owner.workspace / "a.txt").write_text("a")
            (tmp_path / owner.workspace / "shut" / "inside").mkdir(parents=True)
            (tmp_path / owner.workspace / "shut" / "inside").chmod(0o000)
            (tmp_path / owner.workspace / "shut").chmod(0o000)
            # What stood in the way when the workspace came here from another machine.
            (tmp_path / HIDDEN_FOLDER / f"{owner.workspace}.before" / "shut").mkdir(mode=0o000, parents=True)
            await owner.end()
        clearing = Clearing(bus.log, SystemClock(), workspaces, tmp_path, secure=False, pace=Pace(0.0, 0.0))
        # The first is deleted and forgotten, the second is deleted while others work in its folder.
        for owner in (owners[0], owners[1], owners[3]):
            await owner.runs.commit(owner.folded, [RunDeleted(body_hash="0", by="test")])
        for owner in (owners[0], owners[3]):
            forgotten = LogKey("local", workspace_id(1, "local", owner.workspace))
            tail = await bus.log.tail(forgotten)
            assert tail is not None
            await bus.log.purge(forgotten, tail.header.stream_sequence + 1)
        for _ in range(2):
            await clearing.step()
        there = [(tmp_path / owner.workspace).exists() for owner in owners]
        assert there == [False, True, True, True], "a workspace that was named may be anybody's"
        beside = [path.name for path in (tmp_path / HIDDEN_FOLDER).iterdir()]
        assert not [file for file in beside if file.startswith(owners[0].workspace)]
        assert f"{owners[1].workspace}.git" in beside

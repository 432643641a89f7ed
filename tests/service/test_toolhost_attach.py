"""Whose workspace it is: two runs on one host, and one host after another's death."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
from pathlib import Path

import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus
from libs.contracts.tools import JournalState, Refusal
from services.toolhost.guard import WorkspaceGuard
from services.toolhost.marks import marked
from services.toolhost.undo import UndoLog
from services.toolhost.workspace import place_of, undo_folder
from tests.fakes.waiting import eventually
from tests.service.hosting_owner import Owner, declare_dead, host_of, owned_run, toolhost, toolhost_process

SLEEPER = json.dumps(["bash", "-c", "sleep 1000 & sleep 1000"])


async def test_what_a_killed_host_left_half_done_is_taken_back_before_anything_else(
    bus: Bus, tmp_path: Path
) -> None:
    place = place_of(tmp_path, "project")
    place.directory.mkdir()
    (place.directory / "a.txt").write_bytes(b"old")
    digests = [hashlib.sha256(data).hexdigest() for data in (b"old", b"new", b"never written")]
    with WorkspaceGuard(place.directory) as guard:
        UndoLog(undo_folder(place)).begin(
            guard, [("a.txt", digests[0], digests[1]), ("b.txt", None, digests[2])]
        )
    (place.directory / "a.txt").write_bytes(b"new")
    (place.directory / ".perdure-tmp-1-0").write_bytes(b"half")
    async with toolhost(bus, tmp_path) as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        assert (await owner.read(host, "read_file", path="a.txt")).output.endswith("1\told")
    assert [path.name for path in place.directory.iterdir()] == ["a.txt"]


async def test_two_runs_share_a_workspace_on_one_host_each_with_its_own_baseline(
    bus: Bus, tmp_path: Path
) -> None:
    async with toolhost(bus, tmp_path) as host:
        first = await owned_run(bus)
        await first.attach(host)
        await first.effect(host, first.call("write_file", {"path": "a.txt", "content": "1"}, "call_1_0"))
        second = await owned_run(bus)
        assert (await second.attached(host)).ok
        result = await second.attached(host)
        second_baseline = result.metadata["baseline"]
        assert second_baseline != first.baseline
        await second.effect(host, second.call("write_file", {"path": "b.txt", "content": "2"}, "call_1_0"))
        seen_by_first = (await first.read(host, "get_git_diff")).output
        seen_by_second = (await second.read(host, "get_git_diff")).output
        assert "a.txt" in seen_by_first
        assert "b.txt" in seen_by_first
        assert "a.txt" not in seen_by_second
        assert "b.txt" in seen_by_second
        # Attaching again changes neither.
        assert (await first.attached(host)).metadata["baseline"] == first.baseline


async def test_a_host_that_the_workspaces_log_does_not_name_refuses(bus: Bus, tmp_path: Path) -> None:
    async with toolhost(bus, tmp_path) as host:
        owner = await owned_run(bus)
        assert (await owner.attached(host)).refused == Refusal.NOT_MY_WORKSPACE
        assert (await owner.read(host, "read_file", path="a")).refused == Refusal.NOT_MY_WORKSPACE
        await owner.name_host("bsomebodyelse")
        assert (await owner.attached(host)).refused == Refusal.NOT_MY_WORKSPACE
        await owner.attach(host)
        foreign = msgspec.structs.replace(
            owner.call("read_file", {"path": "a"}, "call_1_0"), workspace="another"
        )
        assert (await owner.ask(host, foreign)).refused == Refusal.NOT_MY_WORKSPACE


async def test_files_that_changed_meanwhile_are_named(bus: Bus, tmp_path: Path) -> None:
    async with toolhost(bus, tmp_path) as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        written = [
            await owner.effect(
                host, owner.call("write_file", {"path": name, "content": name}, f"call_1_{name}")
            )
            for name in ("kept.txt", "changed.txt", "deleted.txt")
        ]
        files = {str(result.metadata["path"]): str(result.metadata["sha256"]) for result in written}
        (tmp_path / "project" / "changed.txt").write_text("by somebody else")
        (tmp_path / "project" / "deleted.txt").unlink()
        result = await owner.attached(host, files)
        assert result.metadata["changed"] == ["changed.txt", "deleted.txt"]


async def test_a_link_of_the_operator_in_the_root_is_the_workspace(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("hello")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "project").symlink_to(tmp_path / "mine")
    async with toolhost(bus, tmp_path / "root") as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        assert "hello" in (await owner.read(host, "read_file", path="a.txt")).output
        result = await owner.effect(
            host, owner.call("write_file", {"path": "b.txt", "content": "b"}, "call_1_0")
        )
        assert result.ok
    assert sorted(entry.name for entry in (tmp_path / "mine").iterdir()) == ["a.txt", "b.txt"]


async def test_similar_names_are_different_workspaces(bus: Bus, tmp_path: Path) -> None:
    async with toolhost(bus, tmp_path) as host:
        for name in ("a/b", "a_b"):
            owner = await owned_run(bus, name)
            await owner.attach(host)
            call = owner.call("write_file", {"path": "who.txt", "content": name}, "call_1_0")
            assert (await owner.effect(host, call)).ok
    assert sorted(file.read_text() for file in tmp_path.glob("*/who.txt")) == ["a/b", "a_b"]


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_second_host_takes_a_workspace_over_once_the_first_is_dead(
    nats_node: NatsServer, bus: Bus, tmp_path: Path, frozen: bool
) -> None:
    root = tmp_path / "root"
    async with toolhost_process(nats_node, bus, root, tests=SLEEPER) as process:
        first = (await host_of(bus, shared=False)).boot
        owner = await owned_run(bus)
        await owner.attach(first)
        await owner.effect(first, owner.call("write_file", {"path": "a.txt", "content": "1"}, "call_1_0"))
        running = owner.call("run_tests", {}, "call_1_1")
        await owner.send(bus.subjects.tool_host(first), running)
        marker = f"{owner.run_id}.call_1_1.1"

        async def it_runs() -> bool:
            return len(marked(marker)) >= 3

        await eventually(it_runs, "it runs")
        await take_over(bus, owner, first, process, root, frozen=frozen)
        assert marked(marker) == []
        entry = await owner.entry(running)
        assert entry is not None
        assert (entry.state, entry.boot) == (JournalState.STARTED, first)
        await process.wait()


async def take_over(
    bus: Bus, owner: Owner, first: str, process: asyncio.subprocess.Process, root: Path, *, frozen: bool
) -> None:
    """Stop or kill the first host, have a second one attach, and see that it serves what the first had written."""
    process.send_signal(signal.SIGSTOP if frozen else signal.SIGKILL)
    async with toolhost(bus, root, known=frozenset({first})) as second:
        await owner.name_host(second)
        if frozen:
            # It holds the lock, and nobody has said yet that it is dead.
            assert (await owner.ask_attach(second)).refused == Refusal.WORKSPACE_BUSY
        await declare_dead(bus, first)
        result = await owner.attached(second)
        assert result.ok, result
        assert result.metadata["baseline"] == owner.baseline
        assert "1" in (await owner.read(second, "read_file", path="a.txt")).output
        again = await owner.effect(
            second, owner.call("write_file", {"path": "b.txt", "content": "2"}, "call_1_2")
        )
        assert again.ok


async def test_a_drained_host_leaves_the_catalog_and_ends_its_calls(bus: Bus, tmp_path: Path) -> None:
    async with toolhost(bus, tmp_path, tests=json.dumps(["bash", "-c", "sleep 0.3; echo finished"])) as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        call = owner.call("run_tests", {}, "call_1_0")
        await owner.send(bus.subjects.tool_host(host), call)

        async def started() -> bool:
            return await owner.entry(call) is not None

        await eventually(started, "started")
    result = await owner.result(call)
    assert result.ok
    assert "finished" in result.output
    assert await bus.bucket("catalog").entries() == []


async def test_a_host_that_reads_its_own_death_kills_its_tools_and_asks_to_be_started_again(
    nats_node: NatsServer, bus: Bus, tmp_path: Path
) -> None:
    async with toolhost_process(nats_node, bus, tmp_path / "root", tests=SLEEPER) as process:
        host = (await host_of(bus, shared=False)).boot
        owner = await owned_run(bus)
        await owner.attach(host)
        call = owner.call("run_tests", {}, "call_1_0")
        await owner.send(bus.subjects.tool_host(host), call)
        marker = f"{owner.run_id}.call_1_0.1"

        async def it_runs() -> bool:
            return len(marked(marker)) >= 3

        await eventually(it_runs, "it runs")
        await declare_dead(bus, host)
        async with asyncio.timeout(15):
            assert await process.wait() == 75
        assert marked(marker) == []
        # Ended with its host, so it has no result that a model could read.
        assert (await owner.result(call)).refused == Refusal.STOPPED

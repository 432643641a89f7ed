"""A real tool host on a real bus: what it does with the calls of an owner."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.bus.ports import Bus
from libs.contracts.tools import JournalState, Refusal, ToolNotice, ToolResult
from services.toolhost.marks import marked
from tests.fakes.waiting import eventually
from tests.service.hosting_owner import Owner, host_of, owned_run, toolhost

SLEEPERS = json.dumps(["bash", "-c", "echo $$ > pid; sleep 1000 & sleep 1000"])


@pytest.fixture
async def host(bus: Bus, tmp_path: Path) -> AsyncIterator[str]:
    async with toolhost(bus, tmp_path / "root", tests=SLEEPERS) as boot:
        yield boot


@pytest.fixture
async def owner(bus: Bus, host: str) -> Owner:
    owner = await owned_run(bus)
    await owner.attach(host)
    return owner


def workspace_of(tmp_path: Path) -> Path:
    return tmp_path / "root" / "project"


async def test_the_catalog_names_the_tools_of_a_living_host(bus: Bus, host: str) -> None:
    catalog = await host_of(bus, shared=False)
    assert catalog.boot == host
    assert catalog.workspaces
    assert {"read_file", "write_file", "run_tests", "echo"} <= {spec.name for spec in catalog.tools}


async def test_programs_are_offered_where_the_operator_says_so(bus: Bus, tmp_path: Path) -> None:
    for more, offered in (({}, False), ({"ENABLE_PROGRAM_TOOL": "true"}, True)):
        async with toolhost(bus, tmp_path / "root", more=more):
            names = {spec.name for spec in (await host_of(bus, shared=False)).tools}
        assert ("run_program" in names, "run_command" in names) == (offered, True)


async def test_a_tool_without_workspace_is_answered_on_request(bus: Bus, host: str) -> None:
    owner = await owned_run(bus)
    result = await owner.read(host, "echo", text="héllo")
    assert (result.ok, result.output, result.refused) == (True, "héllo", None)


async def test_wrong_arguments_are_a_tool_error_that_names_the_field(bus: Bus, host: str) -> None:
    owner = await owned_run(bus)
    result = await owner.read(host, "echo", text=7)
    assert not result.ok
    assert result.refused is None
    assert "text: 7 is not of type 'string'" in result.output
    missing = await owner.read(host, "echo")
    assert "'text' is a required property" in missing.output


async def test_an_effect_is_carried_out_once_however_often_it_is_delivered(
    bus: Bus, host: str, owner: Owner, tmp_path: Path
) -> None:
    call = owner.call("write_file", {"path": "a.txt", "content": "one"}, "call_1_0")
    subject = bus.subjects.tool_host(host)
    async with bus.wire.listen(bus.subjects.live("local", owner.run_id)) as notices:
        for _ in range(5):
            await owner.send(subject, call)
        result = await owner.result(call)
        async with asyncio.timeout(5):
            notice = msgspec.json.decode((await anext(notices)).body, type=ToolNotice)
    assert result.ok
    assert (notice.call_id, notice.state) == ("call_1_0", JournalState.FINISHED)
    digest = hashlib.sha256(b"one").hexdigest()
    assert (result.metadata["path"], result.metadata["sha256"]) == ("a.txt", digest)
    entry = await owner.entry(call)
    assert entry is not None
    assert (entry.boot, entry.before, entry.after) == (host, {"a.txt": None}, {"a.txt": digest})
    # A later delivery of the same call finds the key and changes nothing.
    (workspace_of(tmp_path) / "a.txt").write_text("two")
    await owner.send(subject, call)
    other = owner.call("write_file", {"path": "b.txt", "content": "b"}, "call_1_1")
    await owner.effect(host, other)
    assert (workspace_of(tmp_path) / "a.txt").read_text() == "two"


async def test_changes_of_one_file_happen_in_the_order_in_which_they_were_sent(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    (workspace_of(tmp_path) / "n.txt").write_text("0")
    calls = [
        owner.call("edit_file", {"path": "n.txt", "old_str": str(n), "new_str": str(n + 1)}, f"call_2_{n}")
        for n in range(5)
    ]
    for call in calls:
        await owner.send(owner.bus.subjects.tool_host(host), call)
    assert [(await owner.result(call)).ok for call in calls] == [True] * 5
    assert (workspace_of(tmp_path) / "n.txt").read_text() == "5"


async def test_the_next_attempt_finds_what_a_dead_attempt_had_written(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    file = workspace_of(tmp_path) / "e.txt"
    file.write_text("new")
    arguments = {"path": "e.txt", "old_str": "old", "new_str": "new"}
    first = owner.call("edit_file", arguments, "call_3_0")
    entry_of_a_dead_host = {
        "state": "started",
        "boot": "bdead",
        "replica": "toolhost-0",
        "host": "here",
        "at": "2026-01-01T00:00:00.000Z",
        "before": {"e.txt": hashlib.sha256(b"old").hexdigest()},
        "after": {"e.txt": hashlib.sha256(b"new").hexdigest()},
    }
    await owner.bus.bucket("journal").create(
        f"{owner.run_id}.call_3_0.1", json.dumps(entry_of_a_dead_host).encode()
    )
    second = msgspec.structs.replace(first, attempt=2)
    result = await owner.effect(host, second)
    assert result.ok, result
    assert file.read_text() == "new"


async def test_the_next_attempt_of_a_patch_is_no_error_once_all_of_it_is_there(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    root = workspace_of(tmp_path)
    (root / "p.txt").write_text("old\n")
    (root / "gone.txt").write_text("x\n")
    patch = "*** Begin Patch\n*** Update File: p.txt\n-old\n+new\n*** Delete File: gone.txt\n*** End Patch"
    first = owner.call("apply_patch", {"patch": patch}, "call_8_0")
    done = await owner.effect(host, first)
    assert done.ok, done
    entry = await owner.entry(first)
    assert entry is not None
    assert entry.after == {"p.txt": hashlib.sha256(b"new\n").hexdigest(), "gone.txt": ""}
    started = msgspec.structs.replace(entry, state=JournalState.STARTED, boot="bdead", result=None)
    key = f"{owner.run_id}.call_8_0.2"
    await owner.bus.bucket("journal").create(key, msgspec.json.encode(started))
    again = await owner.effect(host, msgspec.structs.replace(first, attempt=3))
    assert again.ok, again
    assert again.metadata["files"] == {"p.txt": entry.after["p.txt"], "gone.txt": None}
    # Under another key it is another patch, which does not fit any more.
    other = await owner.effect(host, owner.call("apply_patch", {"patch": patch}, "call_8_1"))
    assert not other.ok


async def test_a_file_that_changed_since_the_run_saw_it_is_not_replaced(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    file = workspace_of(tmp_path) / "s.txt"
    file.write_text("theirs")
    seen = {"s.txt": hashlib.sha256(b"as it was").hexdigest()}
    call = owner.call("write_file", {"path": "./s.txt", "content": "mine"}, "call_9_0", seen=seen)
    result = await owner.effect(host, call)
    assert (result.ok, result.metadata) == (False, {"error_code": "FILE_CHANGED"})
    assert "read it again" in result.output
    assert file.read_text() == "theirs"


@pytest.mark.parametrize(
    "path",
    [
        "../outside.txt",
        "/etc/passwd",
        "a/../../x",
        "nul\0l",
        "link.txt",
        "dangling",
        "folder/x",
        "../project_b/x",
    ],
)
async def test_a_path_that_leads_out_is_a_tool_error(
    host: str, owner: Owner, tmp_path: Path, path: str
) -> None:
    workspace = workspace_of(tmp_path)
    (tmp_path / "secret.txt").write_text("secret")
    (workspace / "link.txt").symlink_to(tmp_path / "secret.txt")
    (workspace / "dangling").symlink_to(tmp_path / "nothing")
    (workspace / "folder").symlink_to(tmp_path)
    read = await owner.read(host, "read_file", path=path)
    assert not read.ok
    assert read.refused is None
    assert "secret" not in read.output.removeprefix("secret.txt")
    write = await owner.effect(host, owner.call("write_file", {"path": path, "content": "x"}, "call_4_0"))
    assert not write.ok
    assert write.refused is None
    assert (tmp_path / "secret.txt").read_text() == "secret"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["root", "secret.txt"]


async def test_an_older_claim_is_refused_and_a_newer_one_must_stand_in_the_log(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    stale = owner.call("echo", {"text": "x"}, "call_5_0")
    await owner.claim("bsecond")
    future = msgspec.structs.replace(stale, epoch=owner.epoch + 1)
    assert (await owner.ask(host, future)).refused == Refusal.STALE_EPOCH
    current = msgspec.structs.replace(stale, epoch=owner.epoch)
    assert (await owner.ask(host, current)).ok
    assert (await owner.ask(host, stale)).refused == Refusal.STALE_EPOCH
    effect = owner.call("write_file", {"path": "s.txt", "content": "x"}, "call_5_1", epoch=owner.epoch - 1)
    await owner.send(owner.bus.subjects.tool_host(host), effect)
    await owner.effect(host, owner.call("write_file", {"path": "t.txt", "content": "x"}, "call_5_2"))
    assert await owner.entry(effect) is None
    assert not (workspace_of(tmp_path) / "s.txt").exists()


async def test_a_run_that_is_over_or_unknown_is_refused(host: str, owner: Owner, tmp_path: Path) -> None:
    unknown = owner.call("echo", {"text": "x"}, "call_6_0", run_id="run_0_00000000000000000000000000")
    assert (await owner.ask(host, unknown)).refused == Refusal.RUN_NOT_LIVE
    malformed = owner.call("echo", {"text": "x"}, "call_6_0", run_id="nonsense")
    assert (await owner.ask(host, malformed)).refused == Refusal.MALFORMED
    await owner.end()
    effect = owner.call("write_file", {"path": "over.txt", "content": "x"}, "call_6_1")
    await owner.send(owner.bus.subjects.tool_host(host), effect)
    other = await owned_run(owner.bus)
    await other.attach(host)
    await other.effect(host, other.call("write_file", {"path": "t.txt", "content": "x"}, "call_6_2"))
    assert await owner.entry(effect) is None
    assert not (workspace_of(tmp_path) / "over.txt").exists()


async def test_a_call_that_nobody_waits_for_any_more_is_dropped(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    late = owner.call(
        "write_file", {"path": "late.txt", "content": "x"}, "call_7_0", not_after="2020-01-01T00:00:00Z"
    )
    await owner.send(owner.bus.subjects.tool_host(host), late)
    await owner.effect(host, owner.call("write_file", {"path": "t.txt", "content": "x"}, "call_7_1"))
    assert await owner.entry(late) is None
    assert not (workspace_of(tmp_path) / "late.txt").exists()


async def test_cancel_kills_every_process_of_the_run(host: str, owner: Owner, tmp_path: Path) -> None:
    call = owner.call("run_tests", {}, "call_8_0")
    await owner.send(owner.bus.subjects.tool_host(host), call)
    marker = f"{owner.run_id}.call_8_0.1"

    async def both_sleep() -> bool:
        return (workspace_of(tmp_path) / "pid").exists() and len(marked(marker)) >= 3

    await eventually(both_sleep, "both sleep")
    reply = await owner.cancel(host)
    assert reply.ended == 1
    assert marked(marker) == []
    result = await owner.result(call)
    # No result of the tool: what ended it may be the host's own end, and the model must not read that as a fact.
    assert (result.ok, result.refused) == (False, Refusal.STOPPED)
    assert "cancelled" in result.output.lower()


async def test_a_call_that_arrives_behind_its_cancel_is_not_started(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    await owner.cancel(host)
    call = owner.call("write_file", {"path": "late.txt", "content": "x"}, "call_9_0")
    await owner.send(owner.bus.subjects.tool_host(host), call)
    await owner.end()
    other = await owned_run(owner.bus)
    await other.attach(host)
    await other.effect(host, other.call("write_file", {"path": "t.txt", "content": "x"}, "call_9_1"))
    assert await owner.entry(call) is None
    assert not (workspace_of(tmp_path) / "late.txt").exists()


async def test_an_unknown_tool_is_said_and_not_waited_for(host: str, owner: Owner) -> None:
    assert (await owner.read(host, "no_such_tool")).refused == Refusal.UNKNOWN_TOOL
    result = await owner.effect(host, owner.call("no_such_tool", {}, "call_10_0"))
    assert result.refused == Refusal.UNKNOWN_TOOL


async def test_an_effect_is_not_answered_on_request(host: str, owner: Owner, tmp_path: Path) -> None:
    result = await owner.read(host, "write_file", path="r.txt", content="x")
    assert result.refused == Refusal.MALFORMED
    assert not (workspace_of(tmp_path) / "r.txt").exists()


async def test_output_is_cut_between_characters_with_a_mark_that_counts(bus: Bus, host: str) -> None:
    owner = await owned_run(bus)
    call = owner.call("echo", {"text": "é" * 1000}, "call_11_0", output_chars_max=100)
    result = await owner.ask(host, call)
    assert "900 characters left out" in result.output
    assert result.output.count("é") == 100


async def test_what_no_message_holds_is_said_so_at_once(host: str, owner: Owner, tmp_path: Path) -> None:
    (workspace_of(tmp_path) / "large.txt").write_text(f"{'x' * 99}\n" * 20_000)
    arguments = {"path": "large.txt", "max_lines": 20_000}
    large = await owner.ask(
        host, owner.call("read_file", arguments, "read_large", output_chars_max=3_000_000)
    )
    assert (large.ok, large.metadata["error_code"]) == (False, "RESULT_TOO_LARGE")


async def test_what_is_not_a_call_is_said_so_and_blocks_nobody(bus: Bus, host: str, owner: Owner) -> None:
    reply = await bus.wire.request(bus.subjects.call_host(host), b"not json", timeout_s=5)
    assert msgspec.json.decode(reply, type=ToolResult).refused == Refusal.MALFORMED
    await bus.queue.publish(bus.subjects.tool_host(host), b"not json")
    result = await owner.effect(
        host, owner.call("write_file", {"path": "t.txt", "content": "x"}, "call_12_0")
    )
    assert result.ok


async def test_a_call_goes_on_when_its_run_is_taken_over(bus: Bus, tmp_path: Path) -> None:
    command = json.dumps(["bash", "-c", "until test -e go; do sleep 0.02; done; echo went on"])
    async with toolhost(bus, tmp_path / "root", tests=command) as host:
        owner = await owned_run(bus)
        await owner.attach(host)
        call = owner.call("run_tests", {}, "call_13_0")
        await owner.send(bus.subjects.tool_host(host), call)

        async def started() -> bool:
            return await owner.entry(call) is not None

        await eventually(started, "started")
        await owner.claim("bsecond")
        (workspace_of(tmp_path) / "go").touch()
        assert "went on" in (await owner.result(call)).output


async def test_the_calls_of_a_run_that_is_over_are_ended_without_being_asked(host: str, owner: Owner) -> None:
    call = owner.call("run_tests", {}, "call_14_0")
    await owner.send(owner.bus.subjects.tool_host(host), call)
    marker = f"{owner.run_id}.call_14_0.1"

    async def all_sleep() -> bool:
        return len(marked(marker)) >= 3

    await eventually(all_sleep, "all sleep")
    await owner.end()

    async def none_is_left() -> bool:
        return marked(marker) == []

    await eventually(none_is_left, "none is left")


async def test_a_key_that_was_written_by_this_boot_and_never_started_is_started(
    host: str, owner: Owner, tmp_path: Path
) -> None:
    """The outcome of an own write was unknown: the message comes again, and finds what this process had written."""
    entry = {
        "state": "started",
        "boot": host,
        "replica": "toolhost-1",
        "host": "here",
        "at": "2026-01-01T00:00:00Z",
    }
    await owner.bus.bucket("journal").create(f"{owner.run_id}.call_15_0.1", json.dumps(entry).encode())
    call = owner.call("write_file", {"path": "own.txt", "content": "x"}, "call_15_0")
    assert (await owner.effect(host, call)).ok
    assert (workspace_of(tmp_path) / "own.txt").exists()


async def test_a_key_of_another_boot_is_left_to_the_owner(host: str, owner: Owner, tmp_path: Path) -> None:
    entry = {
        "state": "started",
        "boot": "bother",
        "replica": "toolhost-2",
        "host": "there",
        "at": "2026-01-01T00:00:00Z",
    }
    await owner.bus.bucket("journal").create(f"{owner.run_id}.call_16_0.1", json.dumps(entry).encode())
    call = owner.call("write_file", {"path": "other.txt", "content": "x"}, "call_16_0")
    await owner.send(owner.bus.subjects.tool_host(host), call)
    await owner.effect(host, owner.call("write_file", {"path": "t.txt", "content": "x"}, "call_16_1"))
    found = await owner.entry(call)
    assert found is not None
    assert (found.state, found.boot) == (JournalState.STARTED, "bother")
    assert not (workspace_of(tmp_path) / "other.txt").exists()

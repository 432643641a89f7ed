"""A tool host decides by its own policy, whatever the executor that calls it decided."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from libs.bus.ports import Bus
from libs.contracts.events import InputReceived, InputRequested, RunReleased
from libs.contracts.tools import Semantics, ToolCall
from libs.policy.approval import approval_hash
from tests.service.hosting_owner import Owner, owned_run, toolhost

POLICY = {
    "rules": [
        {"effect": "deny", "path": ["secrets/", "*.pem"], "reason": "keys are no business of a model"},
        {"effect": "ask", "tool": "write_file", "path": "live/", "reason": "it is in use"},
        {"effect": "deny", "command": "rm *", "reason": "nothing is removed"},
        {"effect": "allow", "tool": "run_command", "command": ["ls *", "echo *", "> *"]},
    ]
}
FILES = {"a.txt": "needle a", "secrets/key": "needle b", "b.pem": "needle c", "live/x": "needle d"}


@pytest.fixture
async def owner(bus: Bus, tmp_path: Path) -> AsyncIterator[Owner]:
    """A run on a host with that policy; its workspace holds the files."""
    owner = await owned_run(bus)
    for name, text in FILES.items():
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).write_text(text)
    async with toolhost(bus, tmp_path, policy=json.dumps(POLICY)) as boot:
        await owner.attach(boot)
        owner.boot = boot
        yield owner


async def approved(owner: Owner, call: ToolCall) -> ToolCall:
    """The call after somebody approved it, as its owner would send it."""
    bound = approval_hash(call.name, call.arguments, call.call_id)
    asked = InputRequested(
        question_id="q", kind="approval", question="May it?", call_id=call.call_id, approval_hash=bound
    )
    received = InputReceived(
        question_id="q", kind="approval", answer="", by="t", decision="approve", approval_hash=bound
    )
    released = RunReleased(reason="suspended", waiting_for="input")
    owner.folded = await owner.runs.commit(owner.folded, [released, asked])
    owner.folded = await owner.runs.commit(owner.folded, [received])
    sequence = owner.folded.state.sequence
    await owner.claim()
    return msgspec.structs.replace(
        call, epoch=owner.epoch, approval_sequence=sequence, approval_hash=bound, attempt=call.attempt + 1
    )


def shell(owner: Owner, line: str, call_id: str) -> ToolCall:
    return owner.call("run_command", {"command": line}, call_id, semantics=Semantics.NON_IDEMPOTENT)


async def test_what_only_the_host_denies_is_refused_even_if_it_was_approved(
    owner: Owner, tmp_path: Path
) -> None:
    read = await owner.read(owner.boot, "read_file", path="secrets/key")
    assert (read.ok, read.metadata) == (False, {"error_code": "DENIED"})
    assert "keys are no business of a model" in read.output
    write = owner.call("write_file", {"path": "Secrets/new", "content": "x"}, "call_1_0")
    assert (await owner.effect(owner.boot, write)).metadata == {"error_code": "DENIED"}
    anyway = await owner.effect(owner.boot, await approved(owner, write))
    assert anyway.metadata == {"error_code": "DENIED"}
    assert not (tmp_path / "project" / "Secrets").exists()


async def test_what_only_the_host_asks_about_needs_the_record_of_an_approval(
    owner: Owner, tmp_path: Path
) -> None:
    write = owner.call("write_file", {"path": "live/x", "content": "new"}, "call_1_0")
    refused = await owner.effect(owner.boot, write)
    assert refused.metadata == {"error_code": "NOT_APPROVED"}
    assert "it is in use" in refused.output
    assert "stricter" in refused.output
    invented = msgspec.structs.replace(
        write,
        attempt=2,
        approval_sequence=1,
        approval_hash=approval_hash(write.name, write.arguments, write.call_id),
    )
    assert (await owner.effect(owner.boot, invented)).metadata == {"error_code": "NOT_APPROVED"}
    call = await approved(owner, invented)
    other = msgspec.structs.replace(call, arguments={"path": "live/x", "content": "other"}, attempt=9)
    assert (await owner.effect(owner.boot, other)).metadata == {"error_code": "NOT_APPROVED"}
    assert (tmp_path / "project" / "live" / "x").read_text() == "needle d"
    assert (await owner.effect(owner.boot, call)).ok
    assert (tmp_path / "project" / "live" / "x").read_text() == "new"


async def test_a_line_is_carried_out_when_each_of_its_commands_is_allowed(
    owner: Owner, tmp_path: Path
) -> None:
    allowed = await owner.effect(owner.boot, shell(owner, "ls && echo made > made", "call_1_0"))
    assert allowed.ok, allowed.output
    assert (tmp_path / "project" / "made").read_text() == "made\n"
    for number, (line, code) in enumerate(
        {
            "ls; rm made": "DENIED",
            "ls | $(echo rm) made": "DENIED",
            "ls secrets": "DENIED",
            "ls | sort": "NOT_APPROVED",
            "ls *": "NOT_APPROVED",
        }.items()
    ):
        refused = await owner.effect(owner.boot, shell(owner, line, f"call_2_{number}"))
        assert refused.metadata == {"error_code": code}, line
    assert (tmp_path / "project" / "made").exists()


async def test_looking_around_passes_over_what_the_policy_closes(owner: Owner, tmp_path: Path) -> None:
    listed = await owner.read(owner.boot, "list_files")
    assert "a.txt" in listed.output
    assert "(2 left out by the policy)" in listed.output
    found = await owner.read(owner.boot, "search_text", pattern="needle")
    assert "needle a" in found.output
    assert "needle d" in found.output
    assert "not searched: 2 left out by the policy" in found.output
    (tmp_path / "project" / "b.pem").write_text("new key")
    (tmp_path / "project" / "a.txt").write_text("needle is new, too")
    changed = await owner.read(owner.boot, "get_git_diff")
    assert "needle is new, too" in changed.output
    assert "(1 changed files left out by the policy)" in changed.output
    for result in (listed, found, changed):
        assert not [
            word
            for word in ("b.pem", "secrets/key", "needle b", "needle c", "new key")
            if word in result.output
        ]

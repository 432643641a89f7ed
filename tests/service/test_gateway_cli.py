"""The commands of people against a real gateway: decisions on a terminal and from scripts, with their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import sys
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import httpx
import pytest

from deploy.cli import dead, runs
from deploy.cli.__main__ import parser
from deploy.cli.outcome import failed
from libs.bus.ports import Bus, Delivery
from libs.client import PerdureClient
from libs.contracts import events as e
from libs.contracts.errors import PerdureError
from libs.contracts.tools import Semantics
from tests.service.gateway_served import Owner, Served, created

DEADLINE_S = 30.0
SLY = "rm -rf /srv/\u202ekcab\u200b\tx"
SHOWN = 'command = "rm -rf /srv/\\u202ekcab\\u200b\\tx"'


class Ended(NamedTuple):
    code: int | None
    output: str
    errors: str


def environment(served: Served) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return {**inherited, "PERDURE_URL": served.url, "TERM": "xterm"}


Command = Callable[..., Awaitable[Ended]]


@pytest.fixture
def perdure(served: Served, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process: a start of the interpreter each time would be most of the test."""

    async def carry_out(*words: str) -> Ended:
        args = parser().parse_args(words)
        capsys.readouterr()
        try:
            code = await (dead if args.module == "dead" else runs).carry_out(PerdureClient(served.url), args)
        except PerdureError as error:
            code = failed(error)
        told = capsys.readouterr()
        return Ended(code, told.out, told.err)

    return carry_out


async def started(served: Served, *words: str) -> Ended:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", *words),
        env=environment(served),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, errors = await process.communicate()
    return Ended(process.returncode, output.decode(), errors.decode())


async def test_a_run_is_forked_and_tried_again_from_the_command_line(
    perdure: Command, client: httpx.AsyncClient, bus: Bus
) -> None:
    owner = await Owner.of(bus, await created(client))
    await owner.turn(1)
    await owner.complete()
    forked = await perdure("runs", "fork", owner.run_id, "--after", "4", "--goal", "Paint it.", "--json")
    view = json.loads(forked.output)
    assert (view["status"], view["after_sequence"]) == ("QUEUED", 4)
    told = await perdure("runs", "retry", owner.run_id)
    assert told.output.strip().endswith("QUEUED, from the start")
    again = await perdure("runs", "retry", owner.run_id, "--from", "last_checkpoint")
    assert "from event 4; its workspace begins empty" in again.output
    refused = await perdure("runs", "fork", owner.run_id, "--after", "99")
    assert refused.code != 0
    assert "after_sequence" in refused.errors


async def ask_approval(owner: Owner, call_id: str) -> None:
    await owner.write(
        e.RunReleased(reason="suspended", waiting_for="input"),
        e.InputRequested(
            question_id=f"approval_{call_id}",
            kind="approval",
            question="May run_command be called with these arguments?",
            call_id=call_id,
            options=["approve", "reject"],
            tool="run_command",
            arguments={"command": SLY, "timeout_s": 5},
            approval_hash="4" * 64,
        ),
    )


async def lose_call(owner: Owner, call_id: str) -> None:
    await owner.write(
        e.ToolRequested(
            call_id=call_id,
            name="run_command",
            arguments={"command": SLY},
            semantics=Semantics.NON_IDEMPOTENT,
            idempotency_key="k",
        )
    )
    await owner.write(
        e.ToolUncertain(call_id=call_id, attempt=1, reason="the host died", host="toolhost-1", boot="b"),
        e.RunReleased(reason="suspended", waiting_for="reconciliation"),
        e.ReconciliationRequired(
            call_id=call_id,
            name="run_command",
            arguments={"command": SLY},
            attempt=1,
            host="toolhost-1",
            boot="b",
        ),
    )


async def submitted(client: httpx.AsyncClient, bus: Bus) -> Owner:
    """The run that a command has just made, claimed."""
    async with asyncio.timeout(DEADLINE_S):
        while not (listed := (await client.get("/api/runs?status=QUEUED")).json()["runs"]):
            await asyncio.sleep(0.02)
    return await Owner.of(bus, listed[0]["run_id"])


async def claimed_again(client: httpx.AsyncClient, owner: Owner) -> None:
    """Once a person has decided."""
    async with asyncio.timeout(DEADLINE_S):
        while (await client.get(f"/api/runs/{owner.run_id}")).json()["status"] != "QUEUED":
            await asyncio.sleep(0.02)
    await owner.refresh()
    await owner.claim()


async def test_on_a_terminal_calls_are_approved_by_what_they_really_are_and_lost_ones_reconciled(
    served: Served, client: httpx.AsyncClient, bus: Bus
) -> None:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "run", "Tidy up."),
        env=environment(served),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    terminal = Terminal(master)
    owner = await submitted(client, bus)
    await ask_approval(owner, "call_1_0")
    shown = await terminal.until("approve or reject> ")
    assert SHOWN in shown
    assert "timeout_s = 5" in shown
    assert "\u202e" not in shown
    # Anything but a word that was offered is no decision.
    for word in ("", "ok", "approve it"):
        terminal.type(word)
        await terminal.until("approve or reject> ")
    terminal.type("reject")
    await terminal.until("reason")
    terminal.type("Not on this machine.")
    await claimed_again(client, owner)
    await ask_approval(owner, "call_2_0")
    await terminal.until("approve or reject> ")
    terminal.type("a")
    await claimed_again(client, owner)
    await lose_call(owner, "call_3_0")
    assert "toolhost-1" in await terminal.until("accept, retry or fail> ")
    terminal.type("accept")
    await terminal.until("what do you observe> ")
    terminal.type(" ")
    await terminal.until("what do you observe> ")
    terminal.type("It is gone.")
    await claimed_again(client, owner)
    await owner.complete()
    await terminal.until("COMPLETED")
    async with asyncio.timeout(DEADLINE_S):
        assert await process.wait() == 0
    os.close(master)
    asked = (await client.get(f"/api/runs/{owner.run_id}/questions")).json()["questions"]
    decided = {one["call_id"]: (one["decision"], one["answer"]) for one in asked}
    assert decided == {"call_1_0": ("reject", "Not on this machine."), "call_2_0": ("approve", "")}
    events = (await client.get(f"/api/runs/{owner.run_id}/events")).json()["events"]
    (resolved,) = [one["payload"] for one in events if one["type"] == "reconciliation.resolved"]
    assert (resolved["decision"], resolved["observation"]) == ("accept", "It is gone.")


class Terminal:
    """What a person at the other end of a pseudo terminal sees and types."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._seen = ""

    def type(self, line: str) -> None:
        os.write(self._master, f"{line}\n".encode())

    async def until(self, wanted: str) -> str:
        """What was shown since the last time, up to and with `wanted`."""
        loop = asyncio.get_running_loop()
        more = asyncio.Event()
        loop.add_reader(self._master, more.set)
        try:
            async with asyncio.timeout(DEADLINE_S):
                while wanted not in self._seen:
                    await more.wait()
                    more.clear()
                    self._seen += os.read(self._master, 65_536).decode("utf-8", "replace")
        finally:
            loop.remove_reader(self._master)
        shown, _, self._seen = self._seen.partition(wanted)
        return shown + wanted


@pytest.mark.parametrize("waits_for", ["approval", "reconciliation"])
async def test_without_a_terminal_a_run_that_needs_a_person_exits_3_with_the_commands(
    served: Served, client: httpx.AsyncClient, bus: Bus, perdure: Command, waits_for: str
) -> None:
    running = asyncio.create_task(started(served, "run", "Tidy up."))
    owner = await submitted(client, bus)
    await (ask_approval if waits_for == "approval" else lose_call)(owner, "call_1_0")
    result = await running
    assert (result.code, SHOWN in result.output) == (3, True), result
    verb = "approve" if waits_for == "approval" else "reconcile"
    assert f"perdure runs {verb} {owner.run_id} call_1_0" in result.output
    tailed = await perdure("runs", "tail", owner.run_id)
    assert tailed.code == 3
    told = await perdure("runs", "show", owner.run_id)
    assert SHOWN in told.output


async def test_a_run_is_steered_paused_answered_and_deleted_from_a_shell(
    client: httpx.AsyncClient, bus: Bus, perdure: Command
) -> None:
    owner = await Owner.of(bus, await created(client))
    run = owner.run_id
    await ask_approval(owner, "call_1_0")
    late = await perdure("runs", "approve", run, "call_9_0")
    assert (late.code, "INVALID_STATE" in late.errors) == (1, True)
    rejected = await perdure("runs", "approve", run, "call_1_0", "--reject", "--reason", "No.", "--json")
    assert (rejected.code, json.loads(rejected.output)) == (0, {"run_id": run, "status": "QUEUED"})
    await claimed_again(client, owner)
    await lose_call(owner, "call_2_0")
    bare = await perdure("runs", "reconcile", run, "call_2_0", "accept")
    assert (bare.code, "observation" in bare.errors) == (2, True)
    observed = ("--observation", "It is there.")
    resolved = await perdure("runs", "reconcile", run, "call_2_0", "accept", *observed)
    assert (resolved.code, resolved.output) == (0, f"{run} QUEUED\n")
    for words, output in (
        (("message", run, "Left."), f"{run} QUEUED\n"),
        (("pause", run), f"{run} PAUSED\n"),
        (("resume", run), f"{run} QUEUED\n"),
        (("cancel", run), f"{run} CANCELLED\n"),
        (("delete", run), f"{run} was deleted\n"),
    ):
        result = await perdure("runs", *words)
        assert (result.code, result.output) == (0, output), result
    again = await perdure("runs", "delete", run)
    assert (again.code, "NOT_FOUND" in again.errors) == (1, True)


async def test_dead_letters_are_listed_harmless_and_sent_again(perdure: Command, bus: Bus) -> None:
    empty = await perdure("dead", "list")
    assert (empty.code, empty.output) == (0, "no dead letters here\n")
    delivery = Delivery(
        bus.subjects.work("normal"), {}, b"\x1b[2J\xe2\x80\xae", 1, 1, "2026-11-29T12:00:00.000Z"
    )
    await bus.queue.dead_letter(bus.subjects.dead("work"), delivery, "not a ticket")
    told = await perdure("dead", "list", "--kind", "work")
    assert (told.code, "not a ticket" in told.output, "\\x1b[2J\\u202e" in told.output) == (0, True, True)
    assert "\x1b" not in told.output
    (letter,) = json.loads((await perdure("dead", "list", "--json")).output)["dead_letters"]
    replayed = await perdure("dead", "replay", letter["id"])
    assert (replayed.code, bus.subjects.work("normal") in replayed.output) == (0, True)
    again = await perdure("dead", "replay", letter["id"])
    assert (again.code, "NOT_FOUND" in again.errors) == (1, True)

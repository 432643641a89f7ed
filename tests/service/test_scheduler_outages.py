"""Outages: whatever the design calls a hint is lost under load, or the server itself, and every run still ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from deploy.dev.nats_server import NatsServer, ServerSettings, nats_server
from libs.bus.connection import connect
from libs.bus.ports import Bus, Draft, LogKey
from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.envelope import Event
from libs.contracts.ids import new_boot_id
from libs.contracts.run import TERMINAL, RunStatus
from tests.fakes.bus import bus_settings
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, Deployment, Executor, executor, scheduler
from tests.service.test_scheduler_takeover import is_dead

HINTS = ("work", "tools", "timers", "KV_leases", "KV_checkpoints", "KV_catalog")
SOON_S = 1.0


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def waits_of_every_kind(place: Deployment, peer: Executor) -> list[LogKey]:
    """Runs that wait for a time, an answer, a child; all of them end without anybody's help."""
    asked, retrying, parent = [await place.create(input_timeout_s=SOON_S) for _ in range(3)]
    await until(lambda: len(peer.held) == 3, "all are claimed")
    (child,) = await peer.delegate(place, parent, "c1")
    await until(lambda: child.log_id in peer.held, "the child is claimed")
    await peer.ask(asked.log_id, "q")
    await peer.wait_for_children(parent.log_id)
    soon = rfc3339(CLOCK.now() + timedelta(seconds=SOON_S))
    for run in (retrying, child):
        await peer.fail_until(run.log_id, soon)
    return [asked, retrying, parent, child]


async def all_ended(place: Deployment, runs: list[LogKey]) -> None:
    for run in runs:
        await place.until_status(run, *TERMINAL)


async def test_every_hint_may_be_deleted_under_load_and_every_run_ends(place: Deployment) -> None:
    async with executor(place, slots=200) as peer, scheduler(place), scheduler(place):
        runs = await waits_of_every_kind(place, peer)
        peer.completes = True
        for hint in HINTS:
            runs += [await place.create() for _ in range(5)]
            deletion = asyncio.create_task(place.delete_stream(hint))
            runs += [await place.create() for _ in range(5)]
            await deletion
        await all_ended(place, runs)


async def test_a_death_that_was_lost_with_its_bucket_is_written_again(place: Deployment) -> None:
    boot = new_boot_id(CLOCK)
    run = await place.create(start=False)
    claim = e.RunClaimed(owner="gone", boot=boot, epoch=1, attempt=1)
    await place.command(run, e.RunStartRequested(by="test"), claim)
    async with scheduler(place):
        await eventually(lambda: is_dead(place, boot), "its owner is written dead")
        await place.delete_stream("KV_leases")
        await eventually(lambda: is_dead(place, boot), "its owner is written dead again")
        # Whoever claims it now asks the bucket, not the scheduler.
        async with executor(place) as peer:
            await until(lambda: run.log_id in peer.held, "it is claimed")


async def test_the_server_may_crash_under_a_running_scheduler(tmp_path: Path) -> None:
    async with (
        nats_server(ServerSettings(tmp_path)) as server,
        connect(bus_settings(server.address), CLOCK) as bus,
    ):
        await bus.ensure_topology()
        place = Deployment(server, bus)
        async with executor(place, slots=200) as peer, scheduler(place), scheduler(place):
            runs = await waits_of_every_kind(place, peer)
            peer.completes = True
            runs += [await place.create() for _ in range(10)]
            await server.kill()
            await server.start()
            runs += [await place.create() for _ in range(10)]
            await all_ended(place, runs)


async def test_a_log_that_does_not_fold_stops_nobody_else(place: Deployment) -> None:
    defect = await place.create()
    folded = await place.runs.load(*defect)
    # Claimed twice with one epoch, by a writer that does not fold: no version can read on from there.
    boot = new_boot_id(CLOCK)
    claim = e.RunClaimed(owner="x", boot=boot, epoch=1, attempt=1)
    await append_unchecked(place, defect, folded.last, folded.state.sequence, claim, claim)
    async with executor(place) as peer, scheduler(place):
        run = await place.create()
        await until(lambda: run.log_id in peer.held, "the other is claimed")
        await peer.complete(run.log_id)
        await eventually(lambda: is_dead(place, boot), "its owner is written dead, so it is read")
        after = await place.create()
        await until(lambda: after.log_id in peer.held, "and so is the next")


async def append_unchecked(
    place: Deployment, run: LogKey, expected: int, sequence: int, *bodies: e.LogEvent
) -> None:
    events = [
        Event(sequence + 1 + index, run.log_id, rfc3339(CLOCK.now()), body)
        for index, body in enumerate(bodies)
    ]
    await place.bus.log.append(Draft(run, expected, events, 1, RunStatus.RUNNING))

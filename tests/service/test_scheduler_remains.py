"""What runs leave behind: of the deleted only a tombstone, of the long ended no journal, of all others everything."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import signal
from pathlib import Path

import httpx
import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.checkpoints import Checkpoints
from libs.bus.creation import CreateRequest, Creation
from libs.bus.history import blob_name
from libs.bus.ports import Bus, LogKey
from libs.contracts import events as e
from libs.contracts.errors import NotFound, RunDeleted
from libs.contracts.ids import SHARDS, workspace_id
from libs.contracts.run import COPYING, RunStatus
from libs.contracts.subjects import checkpoint_key, journal_key
from libs.contracts.tasks import Limits, TaskSpec
from services.scheduler.blobs import OldBlobs, Pace
from tests.fakes.waiting import eventually, until
from tests.service.gateway_served import Served, free_port, process, until_ready
from tests.service.scheduler_peers import CLOCK, NO_SWEEP, QUICK, Deployment, executor, scheduler

KEYED = CreateRequest(
    "local", TaskSpec(goal="x"), "0", auto_start=False, by="test", source="test", cause=("key", "k1")
)


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def ended(place: Deployment, *, keyed: bool = False) -> LogKey:
    """A cancelled run with a checkpoint and two keys in the journal."""
    if keyed:
        creation = Creation(place.runs, CLOCK, shards=1, limits=Limits())
        run = LogKey("local", (await creation.create(KEYED)).run_id)
    else:
        run = await place.create(start=False)
    for _ in range(5):
        await place.command(run, e.MessageReceived(text="hurry", by="test"))
    await place.cancel(run)
    bus = place.bus
    folded = await place.runs.load(*run)
    await Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log).save(folded)
    await journal(place, run)
    return run


async def journal(place: Deployment, run: LogKey) -> None:
    for attempt in (1, 2):
        await place.bus.bucket("journal").put(journal_key(run.log_id, "call_1_0", attempt), b"{}")


async def delete(place: Deployment, run: LogKey) -> None:
    """What the gateway appends."""
    await place.command(run, e.RunDeleted(body_hash="0", by="test"))


async def journal_of(place: Deployment, run: LogKey) -> list[str]:
    return [entry.key for entry in await place.bus.bucket("journal").entries(f"{run.log_id}.")]


async def is_purged(place: Deployment, run: LogKey) -> bool:
    """Whether a tombstone is all that there is."""
    records = await place.bus.log.read(run)
    return (
        len(records) == 1
        and await journal_of(place, run) == []
        and await place.bus.bucket("checkpoints").get(checkpoint_key(run.log_id)) is None
    )


async def test_of_a_deleted_run_only_its_tombstone_remains(place: Deployment) -> None:
    async with scheduler(place, timing=NO_SWEEP) as process:
        await until(lambda: process.leads, "it leads")
        deleted, kept = await ended(place), await ended(place)
        await delete(place, deleted)
        await eventually(lambda: is_purged(place, deleted), "it is purged")
    assert len(await place.bus.log.read(kept)) == 7
    assert len(await journal_of(place, kept)) == 2
    assert (await place.state(kept)).cancel_requested_by == "test"
    assert await place.runs.find(*deleted) is None
    with pytest.raises(NotFound):
        await place.runs.load(*deleted)


async def test_deletions_that_nobody_finished_are_finished_by_the_next_scheduler(place: Deployment) -> None:
    runs = [await ended(place) for _ in range(3)]
    for run in runs:
        await delete(place, run)
    # One of them was half done: what goes first is gone, and the log is not.
    await place.bus.bucket("journal").remove(f"{runs[0].log_id}.")
    async with scheduler(place), scheduler(place):
        for run in runs:
            await eventually(lambda run=run: is_purged(place, run), "it is purged")


async def test_the_key_of_a_deleted_run_is_used_up_for_ninety_days(place: Deployment) -> None:
    async with scheduler(place):
        run = await ended(place, keyed=True)
        await delete(place, run)
        await eventually(lambda: is_purged(place, run), "it is purged")
    with pytest.raises(RunDeleted):
        await Creation(place.runs, CLOCK, shards=1, limits=Limits()).create(KEYED)
    stream = place.bus.subjects.log_stream(0)
    query = msgspec.json.encode({"last_by_subj": place.bus.subjects.log(*run, "life")})
    answer = await place.bus.wire.request(f"$JS.API.STREAM.MSG.GET.{stream}", query, timeout_s=5)
    headers = base64.b64decode(msgspec.json.decode(answer)["message"]["hdrs"]).decode()
    assert f"Nats-TTL: {90 * 24 * 3600}s" in headers


async def test_a_writer_that_thaws_after_the_deletion_brings_nothing_back(place: Deployment) -> None:
    async with scheduler(place):
        run = await ended(place)
        frozen = await place.runs.load(*run)
        await delete(place, run)
        await eventually(lambda: is_purged(place, run), "it is purged")
        # Its checkpoint is an empty shell: nothing in the log proves it.
        await place.runs.checkpoint(frozen)
        assert await place.runs.find(*run) is None


async def test_what_a_frozen_host_and_owner_write_behind_a_deletion_goes(place: Deployment) -> None:
    """Within the next listing, not a day after the end of the run; also when another scheduler did the deletion."""
    run, kept = await ended(place), await ended(place)
    frozen = await place.runs.load(*run)
    await delete(place, run)
    async with scheduler(place):
        await eventually(lambda: is_purged(place, run), "it is purged")
    await journal(place, run)
    await place.runs.checkpoint(frozen)
    async with scheduler(place, timing=QUICK._replace(journals_s=0.1)):
        await eventually(lambda: is_purged(place, run), "it is purged again")
        # Nobody works on it any more: what is left behind now is a checkpoint alone.
        await place.runs.checkpoint(frozen)
        await eventually(lambda: is_purged(place, run), "its checkpoint is gone")
    assert len(await journal_of(place, kept)) == 2
    assert await place.bus.bucket("checkpoints").get(checkpoint_key(kept.log_id)) is not None


async def test_the_journals_of_ended_runs_go_and_those_of_live_ones_stay(place: Deployment) -> None:
    timing = QUICK._replace(journal_kept_s=0.0, journals_s=0.1)
    async with executor(place) as peer, scheduler(place, timing=timing):
        live, over = await place.create(), await ended(place)
        unknown = LogKey("local", "run_0_" + "0" * 26)
        await until(lambda: live.log_id in peer.held, "it is claimed")
        for run in (live, unknown):
            await journal(place, run)
        for run in (over, unknown):
            await eventually(lambda run=run: has_no_journal(place, run), "its journal is gone")
        assert len(await journal_of(place, live)) == 2
        await peer.complete(live.log_id)
        await eventually(lambda: has_no_journal(place, live), "its journal is gone, too")


async def test_the_journal_of_a_run_that_ended_just_now_stays(place: Deployment) -> None:
    timing = QUICK._replace(journals_s=0.1)
    over, last = await ended(place), LogKey("local", "run_0_" + "z" * 26)
    # Journals are looked at in the order of their names; nobody ever heard of the last one.
    await journal(place, last)
    async with scheduler(place, timing=timing):
        await eventually(lambda: has_no_journal(place, last), "all have been looked at")
        assert len(await journal_of(place, over)) == 2


async def has_no_journal(place: Deployment, run: LogKey) -> bool:
    return await journal_of(place, run) == []


async def test_a_fork_without_a_key_whose_gateway_was_killed_half_way_is_removed(
    place: Deployment, nats_node: NatsServer, tmp_path: Path
) -> None:
    origin, port, bus = await ended(place), free_port(), place.bus
    settings = {"REPLICA_ID": "forks", "PERDURE_TEST_CRASH": str(tmp_path)}
    async with process(bus, nats_node, tmp_path / "data", port, settings) as killed:
        served = Served(f"http://127.0.0.1:{port}", asyncio.Event(), port)
        await until_ready(served)
        # Its workspace, then the copied events; what makes a run of them never comes.
        (tmp_path / "forks").write_text("append 2 after")
        async with httpx.AsyncClient(base_url=served.url) as client:
            with pytest.raises(httpx.HTTPError):
                await client.post(f"/api/runs/{origin.log_id}/fork", json={"after_sequence": 3})
        assert await killed.wait() == -signal.SIGKILL
    ((run_id, sequence),) = await bus.timers.standing()
    left = LogKey("local", run_id)
    own = LogKey("local", workspace_id(SHARDS, "local", run_id))
    tail = await bus.log.tail(left)
    assert (sequence, tail and tail.header.state, await bus.log.tail(own) is None) == (0, COPYING, False)
    async with scheduler(place) as process_of_scheduler:
        await until(lambda: process_of_scheduler.leads, "it leads")
        # The time has come, also for the timer of one that is a run by now.
        for run in (left, origin):
            await bus.timers.arm(run, 0, CLOCK.now())

        async def removed() -> bool:
            return await is_purged(place, left) and await bus.log.tail(own) is None

        await eventually(removed, "log and workspace are gone")

        async def fired() -> bool:
            return not await bus.timers.standing()

        await eventually(fired, "both were handled")
    assert (await place.state(origin)).status is RunStatus.CANCELLED


async def test_a_blob_goes_with_the_last_run_that_names_it_and_not_while_it_is_young(
    place: Deployment,
) -> None:
    bus, store = place.bus, place.bus.store("blobs")
    blobs = OldBlobs(bus.log, store, CLOCK, shards=1, pace=Pace(kept_s=0.0, page_s=0.0))
    young = OldBlobs(bus.log, store, CLOCK, shards=1, pace=Pace(page_s=0.0))
    runs = [await place.create(start=False) for _ in range(2)]
    for run, text in zip(runs, ("shared " * 90_000, "shared " * 90_000), strict=True):
        await place.command(run, e.MessageReceived(text=text, by="test"))
        await place.cancel(run)
    digest = hashlib.sha256(("shared " * 90_000).encode()).hexdigest()
    name, checkpoint = blob_name("local", digest), blob_name("local", f"checkpoint-{runs[0].log_id}")
    orphan, other = blob_name("local", "0" * 64), "local/something"
    for more in (checkpoint, orphan, other):
        await store.put(more, b"x")
    async with scheduler(place):
        assert await young.clear(lambda: True)
        assert sorted(await store.names()) == sorted([name, checkpoint, orphan, other])
        assert await blobs.clear(lambda: True)
        assert sorted(await store.names()) == sorted([name, checkpoint, other])
        await delete(place, runs[0])
        await eventually(lambda: is_purged(place, runs[0]), "it is purged")
        assert not await blobs.clear(lambda: False), "who does not lead any more removes nothing"
        assert await blobs.clear(lambda: True)
        assert sorted(await store.names()) == sorted([name, other])
        (message,) = await place.events(runs[1], e.MessageReceived)
        assert isinstance(message, e.MessageReceived)
        assert message.text == "shared " * 90_000
        await delete(place, runs[1])
        await eventually(lambda: is_purged(place, runs[1]), "it is purged")
        assert await blobs.clear(lambda: True)
        assert await store.names() == [other]

"""Checkpoints: a cache that is used when the log confirms it, and never believed against it."""

from __future__ import annotations

import msgspec
import pytest

from libs.bus.checkpoints import (
    INDEX_EVENTS,
    INDEX_PAIRS_MAX,
    Checkpointed,
    Checkpoints,
    Folded,
    Index,
    indexed,
    place_before,
)
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import Runs
from libs.chassis.clock import SystemClock
from libs.contracts.envelope import RecordHeader
from libs.contracts.errors import AppendConflict, NotFound
from libs.contracts.events import LogEvent, MessageReceived, RunCreated
from libs.contracts.ids import random_run_id, task_id_of
from libs.contracts.run import RunState
from libs.contracts.subjects import checkpoint_key
from libs.contracts.tasks import Limits, TaskSpec

TENANT = "acme"


@pytest.fixture
def checkpoints(bus: Bus) -> Checkpoints:
    return Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log)


@pytest.fixture
def runs(bus: Bus, checkpoints: Checkpoints) -> Runs:
    return Runs(bus.log, checkpoints, SystemClock())


async def begun(runs: Runs, messages: int, text: str = "hello") -> Folded:
    """A run with some messages, one record each."""
    run_id = random_run_id(SystemClock(), 0)
    created = RunCreated(
        tenant=TENANT,
        task_id=task_id_of(run_id),
        task=TaskSpec(goal="g"),
        limits=Limits(),
        workspace=run_id,
        body_hash="h",
    )
    folded = await runs.create(TENANT, run_id, [created])
    for _ in range(messages):
        folded = await runs.commit(folded, [message(text)])
    return folded


def message(text: str) -> LogEvent:
    return MessageReceived(text=text, by="me")


async def test_a_run_is_folded_from_its_checkpoint_and_what_lies_behind(
    runs: Runs, checkpoints: Checkpoints
) -> None:
    early = await begun(runs, 3)
    await checkpoints.save(early)
    late = await runs.commit(await runs.commit(early, [message("a")]), [message("b")])
    run_id = early.state.run_id
    resumed = await checkpoints.resume(LogKey(TENANT, run_id))
    assert resumed.checkpoint is not None
    assert resumed.checkpoint.state == early.state
    assert [record.header.stream_sequence for record in resumed.behind][-1] == late.last
    assert len(resumed.behind) == 2
    assert await runs.load(TENANT, run_id) == late


async def test_the_index_of_a_log_is_the_same_wherever_folding_began_and_leads_near_every_event(
    bus: Bus, runs: Runs, checkpoints: Checkpoints
) -> None:
    folded = await begun(runs, 150)
    run_id, key = folded.state.run_id, LogKey(TENANT, folded.state.run_id)
    await checkpoints.save(folded)
    for _ in range(100):
        folded = await runs.commit(folded, [message("one"), message("two")])
    found = await checkpoints.load(key)
    assert found is not None
    assert found.index == folded.places[:1]
    assert await runs.load(TENANT, run_id) == folded
    await bus.bucket("checkpoints").delete(checkpoint_key(run_id))
    assert await runs.load(TENANT, run_id) == folded
    assert len(folded.places) == 2
    headers = [record.header for record in await bus.log.read(key)]
    for header in headers:
        place = place_before(folded.places, header.first)
        behind = [one for one in headers if place < one.stream_sequence <= header.stream_sequence]
        assert behind[-1] == header
        assert header.first - behind[0].first < 2 * INDEX_EVENTS


def test_the_places_in_a_log_stay_few_however_old_it_is_and_still_lead_near() -> None:
    header = RecordHeader(
        stream_sequence=1,
        previous=0,
        message_id="m",
        record_class="life",
        epoch=0,
        boot="b",
        first=1,
        event_count=3,
        state="ACTIVE",
    )
    index: Index = ()
    firsts = range(1, 1_000_000, 3)
    for place, first in enumerate(firsts):
        index = indexed(index, header._replace(first=first, stream_sequence=place + 1))
        assert len(index) < INDEX_PAIRS_MAX
    for sequence in range(1, firsts[-1], 9_999):
        behind = firsts[place_before(index, sequence)]
        assert behind <= sequence
        assert sequence - behind <= firsts[-1] / 100


async def test_a_checkpoint_that_the_log_does_not_confirm_is_not_used(
    bus: Bus, runs: Runs, checkpoints: Checkpoints
) -> None:
    folded = await begun(runs, 5)
    run_id = folded.state.run_id
    key = LogKey(TENANT, run_id)
    for wrong in (
        folded._replace(message_id="another"),
        folded._replace(last=folded.last + 1),
        folded._replace(last=1),
    ):
        await checkpoints.save(wrong)
        assert await checkpoints.load(key) is None
        assert await runs.load(TENANT, run_id) == folded
    await checkpoints.save(folded)
    stored = await bus.bucket("checkpoints").get(checkpoint_key(run_id))
    assert stored is not None
    older = msgspec.structs.replace(
        msgspec.json.decode(stored.value, type=Checkpointed[RunState]), fold_version=0, state=folded.state
    )
    for value in (msgspec.json.encode(older), b"{garbled", b'{"elsewhere":"acme/nowhere"}'):
        await bus.bucket("checkpoints").put(checkpoint_key(run_id), value)
        assert await checkpoints.load(key) is None
        assert await runs.load(TENANT, run_id) == folded


async def test_a_large_checkpoint_is_kept_as_a_blob(bus: Bus, runs: Runs, checkpoints: Checkpoints) -> None:
    folded = await begun(runs, 3, "text " * 60_000)
    for _ in range(2):
        folded = await runs.commit(folded, [message("more")])
        await checkpoints.save(folded)
        stored = await bus.bucket("checkpoints").get(checkpoint_key(folded.state.run_id))
        assert stored is not None
        assert len(stored.value) < 1_000
        found = await checkpoints.load(LogKey(TENANT, folded.state.run_id))
        assert found is not None
        assert found.state == folded.state


async def test_a_run_that_nobody_made_is_not_found(runs: Runs) -> None:
    run_id = random_run_id(SystemClock(), 0)
    assert await runs.find(TENANT, run_id) is None
    with pytest.raises(NotFound):
        await runs.load(TENANT, run_id)


async def test_a_command_is_carried_out_on_what_is_true_now(runs: Runs) -> None:
    stale = await begun(runs, 1)
    run_id = stale.state.run_id
    current = await runs.commit(stale, [message("first")])
    with pytest.raises(AppendConflict):
        await runs.commit(stale, [message("second")])
    seen: list[int] = []

    def decide(state: RunState) -> list[LogEvent]:
        seen.append(state.sequence)
        return [message("second")]

    after = await runs.command(TENANT, run_id, decide)
    assert seen == [current.state.sequence]
    assert after.state.sequence == current.state.sequence + 1
    assert await runs.load(TENANT, run_id) == after

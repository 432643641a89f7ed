"""A scheduler over a real server: who gets a ticket, when, and how often."""

from __future__ import annotations

import asyncio

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus
from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import RunStatus
from libs.contracts.values import Usage
from services.scheduler.replicas import PROMISED_MAX
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, NO_SWEEP, QUICK, Deployment, executor, scheduler


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def test_a_started_run_gets_one_ticket_and_is_claimed(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        runs = [await place.create() for _ in range(20)]
        for run in runs:
            await place.until_status(run, RunStatus.RUNNING)
            await peer.complete(run.log_id)
        last = await place.create()
        await place.until_status(last, RunStatus.RUNNING)
        assert [peer.tickets_of(run) for run in runs] == [1] * 20


async def test_runs_that_were_queued_before_the_scheduler_began_get_their_tickets(place: Deployment) -> None:
    runs = [await place.create() for _ in range(5)]
    async with executor(place) as peer, scheduler(place):
        for run in runs:
            await place.until_status(run, RunStatus.RUNNING)
            assert peer.tickets_of(run) == 1


async def test_a_pending_run_waits_for_its_start(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        pending = await place.create(start=False)
        started = await place.create()
        await place.until_status(started, RunStatus.RUNNING)
        assert peer.tickets_of(pending) == 0
        await place.command(pending, e.RunStartRequested(by="test"))
        await place.until_status(pending, RunStatus.RUNNING)
        assert peer.tickets_of(pending) == 1


async def test_without_a_free_slot_there_is_no_ticket(place: Deployment) -> None:
    async with executor(place, slots=2) as peer, scheduler(place) as process:
        held = [await place.create(), await place.create()]
        for run in held:
            await place.until_status(run, RunStatus.RUNNING)
        waiting = await place.create()
        await until(lambda: process.scheduler.rows.get(waiting.log_id) is not None, "the run is seen")
        row = process.scheduler.rows.get(waiting.log_id)
        assert row is not None
        assert row.ticketed_at is None
        await peer.complete(held[0].log_id)
        await place.until_status(waiting, RunStatus.RUNNING)


async def test_no_more_tickets_are_under_way_than_an_executor_takes_soon(place: Deployment) -> None:
    timing = NO_SWEEP._replace(claim_s=600.0)
    async with executor(place, slots=1_000) as peer, scheduler(place, timing=timing) as process:
        peer.claims = False
        rows = process.scheduler.rows
        await asyncio.gather(*(place.create() for _ in range(PROMISED_MAX + 5)))
        await until(lambda: len(rows) == PROMISED_MAX + 5, "all runs are seen")
        await until(lambda: len(peer.tickets) == PROMISED_MAX, "as many tickets as are allowed came")
        assert sum(row.ticketed_at is not None for row in rows) == PROMISED_MAX


async def test_an_executor_without_a_model_gets_no_ticket(place: Deployment) -> None:
    async with scheduler(place), executor(place, model=False) as idle:
        run = await place.create()
        async with executor(place) as able:
            await place.until_status(run, RunStatus.RUNNING)
            assert len(able.tickets) + len(idle.tickets) == 1


async def test_a_tenant_at_its_cap_stays_queued_and_others_do_not(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, tenant_runs_max=2):
        capped = [await place.create("a") for _ in range(3)]
        other = await place.create("b")
        await place.until_status(other, RunStatus.RUNNING)
        for run in capped[:2]:
            await place.until_status(run, RunStatus.RUNNING)
        assert peer.tickets_of(capped[2]) == 0
        await peer.complete(capped[0].log_id)
        await place.until_status(capped[2], RunStatus.RUNNING)


async def test_the_scarce_slot_goes_to_the_higher_priority(place: Deployment) -> None:
    async with executor(place, slots=1) as peer, scheduler(place) as process:
        first = await place.create()
        await place.until_status(first, RunStatus.RUNNING)
        low, high = await place.create(priority="low"), await place.create(priority="high")
        await until(lambda: len(process.scheduler.rows) == 3, "both are seen")
        await peer.complete(first.log_id)
        await place.until_status(high, RunStatus.RUNNING)
        await peer.complete(high.log_id)
        await place.until_status(low, RunStatus.RUNNING)
        assert peer.priorities == ["normal", "high", "low"]


async def test_a_released_run_goes_to_an_executor_again(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        run = await place.create()
        await place.until_status(run, RunStatus.RUNNING)
        await peer.release(run.log_id)
        await until(lambda: peer.tickets_of(run) == 2 and run.log_id in peer.held, "it is claimed again")
        assert (await place.state(run)).epoch == 2


async def test_a_run_that_was_answered_goes_to_an_executor_again(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        run = await place.create()
        await place.until_status(run, RunStatus.RUNNING)
        question = e.InputRequested(question_id="q", kind="question", question="?", call_id="c")
        await place.command(run, e.RunReleased(reason="suspended", waiting_for="input"), question)
        del peer.held[run.log_id]
        await place.command(run, e.InputReceived(question_id="q", kind="question", answer="!", by="test"))
        await place.until_status(run, RunStatus.RUNNING)
        assert peer.tickets_of(run) == 2


async def test_a_retrying_run_gets_its_ticket_when_it_is_due(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        now, later = await place.create(), await place.create()
        for run in (now, later):
            await place.until_status(run, RunStatus.RUNNING)
        far = CLOCK.now().replace(year=CLOCK.now().year + 1)
        await peer.fail_until(later.log_id, rfc3339(far))
        await peer.fail_until(now.log_id, rfc3339(CLOCK.now()))
        await until(lambda: now.log_id in peer.held, "the due one is claimed")
        assert peer.tickets_of(later) == 1


async def test_ended_runs_leave_nothing_in_memory(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as process:
        run, pending = await place.create(), await place.create(start=False)
        await place.until_status(run, RunStatus.RUNNING)
        await peer.complete(run.log_id)
        cancel = (e.RunCancelRequested(by="test"), e.RunCancelled(by="test", usage=Usage()))
        await place.command(pending, *cancel)
        await until(lambda: len(process.scheduler.rows) == 0, "no row is left")


async def test_a_ticket_that_is_lost_is_sent_again_by_the_sweep(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        peer.claims = False
        run = await place.create()
        await until(lambda: peer.tickets_of(run) == 1, "the first ticket came and was dropped")
        peer.claims = True
        await place.until_status(run, RunStatus.RUNNING)


async def test_the_ticket_of_a_run_that_a_process_is_made_for_is_waited_for_longer(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, timing=QUICK._replace(alone_s=600.0)):
        peer.claims = False
        fragile = await place.create(start=False)
        claims = [e.RunClaimed(owner="gone", boot=f"b{n}", epoch=n, attempt=n) for n in (1, 2)]
        await place.command(fragile, e.RunStartRequested(by="test"), *claims)
        await until(lambda: peer.tickets_of(fragile) == 1, "its owner is dead, and its ticket out")
        ordinary = await place.create()
        await until(lambda: peer.tickets_of(ordinary) == 3, "that of another one is sent again and again")
        assert peer.tickets_of(fragile) == 1


async def test_a_lost_ticket_does_not_hold_its_slot_for_ever(place: Deployment) -> None:
    timing = NO_SWEEP
    async with executor(place, slots=1) as peer, scheduler(place, timing=timing):
        peer.claims = False
        lost = await place.create()
        await until(lambda: peer.tickets_of(lost) == 1, "the ticket came and was dropped")
        peer.claims = True
        other = await place.create()
        await place.until_status(other, RunStatus.RUNNING)


async def test_the_work_stream_may_be_deleted_under_load(place: Deployment) -> None:
    async with executor(place, slots=200) as peer, scheduler(place, timing=QUICK):
        first = [await place.create() for _ in range(10)]
        deletion = asyncio.create_task(place.delete_stream("work"))
        rest = [await place.create() for _ in range(60)]
        await deletion
        last = await place.create()

        async def all_claimed() -> bool:
            return peer.held.keys() >= {run.log_id for run in [*first, *rest, last]}

        await eventually(all_claimed, "every run is claimed although its ticket may have been deleted")

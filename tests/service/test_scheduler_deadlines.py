"""Deadlines: what waits ends in time, on durable timers that act only on the very wait they were set for."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, LogKey
from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import RunStatus
from libs.contracts.tasks import Timer
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, NO_SWEEP, QUICK, Deployment, Executor, executor, scheduler

S = RunStatus
# A scheduler that looks at no clock of its own: only a timer tells it that a time has come.
TIMERS_ALONE = NO_SWEEP._replace(tick_s=600.0)
SOON_S, LATE_S = 0.4, 3600.0


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


async def asked(place: Deployment, peer: Executor, timeout_s: float | None, name: str = "q") -> LogKey:
    """A run that waits for an answer."""
    run = await place.create(input_timeout_s=timeout_s)
    await until(lambda: run.log_id in peer.held, "it is claimed")
    await peer.ask(run.log_id, name)
    return run


async def answer(place: Deployment, run: LogKey, name: str = "q") -> None:
    await place.command(run, e.InputReceived(question_id=name, kind="question", answer="!", by="test"))


async def stands(place: Deployment, run: LogKey, count: int = 1) -> None:
    """Wait until so many timers stand for a run."""

    async def look() -> bool:
        standing = await place.bus.timers.standing()
        return sum(run_id == run.log_id for run_id, _ in standing) == count

    await eventually(look, f"{count} timers stand for {run.log_id}")


async def test_a_run_that_nobody_answers_in_time_fails(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, timing=TIMERS_ALONE):
        question = await asked(place, peer, SOON_S)
        approval = await place.create(input_timeout_s=SOON_S)
        await until(lambda: approval.log_id in peer.held, "it is claimed")
        await peer.ask(approval.log_id, "a", "approval")
        for run in (question, approval):
            state = await place.until_status(run, S.FAILED)
            assert state.error is not None
            assert state.error.error_code == "INPUT_TIMEOUT"
            assert len(await place.events(run, e.RunFailed)) == 1


async def test_an_answer_in_time_is_all_that_counts(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        run = await asked(place, peer, SOON_S)
        await stands(place, run)
        await answer(place, run)
        await until(lambda: run.log_id in peer.held, "it is claimed again")
        # The second question is another wait: the timer of the first says nothing about it, and neither does another's.
        await peer.ask(run.log_id, "q2")
        other = await asked(place, peer, SOON_S)
        await place.until_status(other, S.FAILED)
        state = await place.until_status(run, S.FAILED)
        assert state.error is not None
        assert "q2" in state.error.message


async def test_without_a_limit_a_question_waits_and_nothing_stands_for_it(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        patient = await asked(place, peer, None)
        other = await asked(place, peer, SOON_S)
        await place.until_status(other, S.FAILED)
        assert (await place.state(patient)).status is S.WAITING_FOR_INPUT
        assert patient.log_id not in {run_id for run_id, _ in await place.bus.timers.standing()}


async def test_a_retry_is_due_when_its_timer_says_so(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, timing=TIMERS_ALONE):
        run, late = await place.create(), await place.create()
        await until(lambda: len(peer.held) == 2, "both are claimed")
        await peer.fail_until(late.log_id, rfc3339(CLOCK.now() + timedelta(seconds=LATE_S)))
        await peer.fail_until(run.log_id, rfc3339(CLOCK.now() + timedelta(seconds=SOON_S)))
        released = (await place.state(run)).waiting_since
        await until(lambda: run.log_id in peer.held, "the due one is claimed again")
        # The executor is told which wait is over: its own clock need not agree.
        assert [ticket.due for ticket in peer.tickets if ticket.run_id == run.log_id] == [None, released]
        assert peer.tickets_of(late) == 1
        await stands(place, late)


async def test_a_time_that_came_while_no_scheduler_ran_is_seen_by_the_next(place: Deployment) -> None:
    async with executor(place) as peer:
        async with scheduler(place, timing=TIMERS_ALONE):
            fired, unset = await asked(place, peer, SOON_S), await asked(place, peer, SOON_S)
            for run in (fired, unset):
                await stands(place, run)
            asleep = await asked(place, peer, LATE_S)
            await stands(place, asleep)
        # One of them lost its timer, too, before anybody saw it fire.
        await place.bus.timers.cancel(unset.log_id, (await place.state(unset)).waiting_since or 0)
        async with scheduler(place):
            for run in (fired, unset):
                await place.until_status(run, S.FAILED)
            assert (await place.state(asleep)).status is S.WAITING_FOR_INPUT


async def test_all_timers_may_be_deleted_and_are_set_again_from_the_log(place: Deployment) -> None:
    async with executor(place) as peer:
        async with scheduler(place):
            soon, known = await asked(place, peer, 1.0), await asked(place, peer, LATE_S)
            await stands(place, known)
            await place.delete_stream("timers")
            await stands(place, known)
            asleep = await asked(place, peer, LATE_S)
            await stands(place, asleep)
        await place.delete_stream("timers")
        # The next scheduler has seen nothing of these runs but their latest record.
        async with scheduler(place):
            await stands(place, asleep)
            await place.until_status(soon, S.FAILED)


async def test_another_leader_sets_what_the_last_one_did_not(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place) as one:
        await until(lambda: one.leads, "the first leads")
        async with scheduler(place) as two:
            run = await place.create(input_timeout_s=SOON_S)
            await until(lambda: run.log_id in peer.held, "it is claimed")
            await one.kill()
            await peer.ask(run.log_id, "q")
            await place.until_status(run, S.FAILED)
            assert two.leads


async def test_timers_that_stand_for_nothing_are_taken_back(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place):
        answered, ended, waits = [await asked(place, peer, LATE_S) for _ in range(3)]
        for run in (answered, ended, waits):
            await stands(place, run)
        await answer(place, answered)
        await place.cancel(ended)
        await stands(place, answered, 0)
        await stands(place, ended, 0)
        await stands(place, waits)


async def test_what_fires_and_is_no_timer_is_kept_aside_and_the_others_are_handled(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, timing=TIMERS_ALONE):
        nobody = LogKey("local", "run_0_" + "0" * 26)
        for subject, body in (
            (place.bus.subjects.fired("x", 1), b"{"),
            (
                place.bus.subjects.fired("x", 2),
                msgspec.json.encode(Timer(tenant="*", run_id="x", sequence=1)),
            ),
            (
                place.bus.subjects.fired(nobody.log_id, 1),
                msgspec.json.encode(Timer(tenant="t", run_id=nobody.log_id, sequence=1)),
            ),
        ):
            await place.bus.queue.publish(subject, body)
        run = await asked(place, peer, SOON_S)
        await place.until_status(run, S.FAILED)
        letters = (await place.bus.dead_letters.newest(kind="timers")).letters
        assert sorted(letter.body[:1] for letter in letters) == [b"{", b"{"]


async def test_a_retry_without_a_time_needs_no_timer(place: Deployment) -> None:
    async with executor(place) as peer, scheduler(place, timing=QUICK):
        run = await place.create()
        await until(lambda: run.log_id in peer.held, "it is claimed")
        await peer.fail_until(run.log_id, None)
        await until(lambda: run.log_id in peer.held, "it is claimed again")
        assert peer.tickets_of(run) == 2

"""Schedules on a real server: each time has one run, whoever dies, and what was lost on the way is found again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.ports import Bus, LogKey
from libs.bus.runs import Schedules, schedules_of
from libs.contracts import schedule_events as s
from libs.contracts.clock import rfc3339
from libs.contracts.ids import random_schedule_id, scheduled_run_id
from libs.contracts.run import RunStatus
from libs.contracts.schedule import ScheduleState
from libs.contracts.schedules import Overlap, ScheduleSpec
from libs.contracts.tasks import LimitOverrides, TaskSpec
from tests.fakes.waiting import eventually, until
from tests.service.scheduler_peers import CLOCK, QUICK, Deployment, executor, scheduler

YEARLY = "0 0 1 1 *"
EVERY_SECOND = "* * * * * *"


class Times:
    """Schedules of a deployment, made as the gateway makes them but for their first time, which is given."""

    def __init__(self, place: Deployment) -> None:
        self.place = place
        self.schedules: Schedules = schedules_of(place.bus, CLOCK)

    async def create(
        self,
        cron: str = YEARLY,
        *,
        overlap: Overlap = "skip",
        ago_s: float = 0.0,
        limits: LimitOverrides | None = None,
    ) -> LogKey:
        task = TaskSpec(goal="Tidy up.", limits=limits or LimitOverrides())
        spec = ScheduleSpec(name="n", cron=cron, task=task, task_hash="h", overlap=overlap)
        key = LogKey("local", random_schedule_id(CLOCK, 0))
        next_at = rfc3339(CLOCK.now() - timedelta(seconds=ago_s))
        created = s.ScheduleCreated(tenant="local", spec=spec, body_hash="b", by="test", next_at=next_at)
        await self.schedules.create(*key, [created])
        return key

    async def state(self, key: LogKey) -> ScheduleState:
        return (await self.schedules.load(*key)).state

    async def write(self, key: LogKey, body: s.ScheduleEvent) -> None:
        await self.schedules.command(*key, lambda _: [body])

    async def until_fired(self, key: LogKey, count: int = 1) -> ScheduleState:
        async def look() -> bool:
            return (await self.state(key)).fires >= count

        await eventually(look, f"{key.log_id} has fired {count} times")
        return await self.state(key)

    async def run_of(self, key: LogKey) -> LogKey:
        """The run of its last fire, once it is there."""
        last = (await self.state(key)).last_fire
        assert last is not None
        run = LogKey(key.tenant, last.run_id)

        async def look() -> bool:
            return await self.place.bus.log.tail(run) is not None

        await eventually(look, f"{run.log_id} is made")
        return run


@pytest.fixture
def place(nats_node: NatsServer, bus: Bus) -> Deployment:
    return Deployment(nats_node, bus)


@pytest.fixture
def times(place: Deployment) -> Times:
    return Times(place)


async def test_a_time_becomes_a_run_and_the_next_one_is_known(place: Deployment, times: Times) -> None:
    async with executor(place) as peer, scheduler(place):
        key = await times.create()
        state = await times.until_fired(key)
        run = await times.run_of(key)
        assert state.last_fire is not None
        assert run.log_id == scheduled_run_id(key.log_id, state.last_fire.due_at)
        await until(lambda: run.log_id in peer.held, "it is claimed like any run")
        task = (await place.state(run)).task
        assert (task.goal, task.schedule) == ("Tidy up.", key.log_id)
        assert state.next_at is not None
        assert state.next_at > rfc3339(CLOCK.now())


async def test_a_time_that_nobody_saw_fires_once(place: Deployment, times: Times) -> None:
    key = await times.create("* * * * *", ago_s=600)
    async with scheduler(place):
        state = await times.until_fired(key)
        assert (state.fires, state.missed) == (1, 10)


async def test_times_wait_or_pass_while_a_run_goes_on(place: Deployment, times: Times) -> None:
    async with executor(place) as peer, scheduler(place):
        queue = await times.create(EVERY_SECOND, overlap="queue")
        skip = await times.create(EVERY_SECOND)
        first = await times.run_of(queue) if await times.until_fired(queue) else queue
        await until(lambda: first.log_id in peer.held, "the first run goes on")

        async def waits() -> bool:
            return bool((await times.state(queue)).held) and bool((await times.state(skip)).skipped)

        await eventually(waits, "one time waits, one has passed")
        assert (await times.state(queue)).fires == 1
        await peer.complete(first.log_id)
        state = await times.until_fired(queue, 2)
        assert state.last_fire is not None
        assert (await times.state(skip)).fires == 1


async def test_a_person_has_it_done_now_although_it_is_paused(place: Deployment, times: Times) -> None:
    async with scheduler(place):
        key = await times.create()
        await times.until_fired(key)
        paused = (await times.state(key)).spec
        await times.write(key, s.ScheduleChanged(spec=paused, by="test", next_at=None))
        asked = scheduled_run_id(key.log_id, "by hand")
        await times.write(key, s.ScheduleFireRequested(run_id=asked, by="test"))
        await times.until_fired(key, 2)
        assert (await times.run_of(key)).log_id == asked


async def test_a_fire_whose_run_was_never_made_is_made_by_the_next_scheduler(
    place: Deployment, times: Times
) -> None:
    keys = [await times.create(ago_s=-3600) for _ in range(3)]
    due_at = rfc3339(CLOCK.now() - timedelta(minutes=5))
    for key in keys:
        fired = s.ScheduleFired(
            due_at=due_at,
            run_id=scheduled_run_id(key.log_id, due_at),
            next_at=rfc3339(CLOCK.now() + timedelta(hours=1)),
        )
        await times.write(key, fired)
    # One of them was changed since: its newest record says nothing of the run.
    changed = (await times.state(keys[2])).spec
    soon = rfc3339(CLOCK.now() - timedelta(seconds=1))
    await times.write(keys[2], s.ScheduleChanged(spec=changed, by="test", next_at=soon))
    async with scheduler(place):
        for key in keys:
            run = LogKey("local", scheduled_run_id(key.log_id, due_at))

            async def is_there(run: LogKey = run) -> bool:
                return await place.bus.log.tail(run) is not None

            await eventually(is_there, "the run is there")


async def test_a_task_that_this_deployment_does_not_allow_any_more_is_said_so(
    place: Deployment, times: Times
) -> None:
    async with scheduler(place):
        key = await times.create(limits=LimitOverrides(max_iterations=10**6))

        async def is_said() -> bool:
            return "max_iterations" in (await times.state(key)).last_error

        await eventually(is_said, "the schedule says why it has no run")
        other = await times.create()
        await times.until_fired(other)
        await times.run_of(other)


async def test_a_deleted_schedule_leaves_a_tombstone_and_its_runs(place: Deployment, times: Times) -> None:
    lost = await times.create(ago_s=-3600)
    await times.write(lost, s.ScheduleDeleted(body_hash="b", by="test"))
    async with scheduler(place):
        key = await times.create()
        await times.until_fired(key)
        run = await times.run_of(key)
        await times.write(key, s.ScheduleDeleted(body_hash="b", by="test"))
        for deleted in (key, lost):

            async def is_purged(deleted: LogKey = deleted) -> bool:
                records = await place.bus.log.read(deleted)
                return len(records) == 1 and records[0].header.state == "DELETED"

            await eventually(is_purged, "only the tombstone is left")
        assert (await place.state(run)).status is RunStatus.QUEUED


async def test_two_schedulers_and_a_kill_make_each_run_once(place: Deployment, times: Times) -> None:
    async with scheduler(place) as one, scheduler(place) as two:
        await until(lambda: one.leads or two.leads, "one leads")
        keys = [await times.create(YEARLY, ago_s=-index * 0.05) for index in range(60)]
        leader, other = (one, two) if one.leads else (two, one)
        await times.until_fired(keys[20])
        await leader.kill()
        for key in keys:
            state = await times.until_fired(key)
            assert (state.fires, state.missed, state.sequence) == (1, 0, 2)
            await times.run_of(key)
        assert other.leads


async def test_the_clock_that_named_a_time_of_another_century_is_put_right(
    place: Deployment, times: Times
) -> None:
    key = await times.create(EVERY_SECOND, ago_s=-(10**9))

    class Ahead:
        """A clock of 2058."""

        now = staticmethod(lambda: CLOCK.now() + timedelta(days=11_000))
        monotonic, sleep, entropy = CLOCK.monotonic, CLOCK.sleep, CLOCK.entropy

    wrong = schedules_of(place.bus, Ahead())
    folded = await wrong.load(*key)
    await wrong.commit(
        folded,
        [s.ScheduleChanged(spec=folded.state.spec, by="test", next_at=rfc3339(Ahead.now()))],
    )
    async with scheduler(place, timing=QUICK):
        await times.until_fired(key)

"""Many schedules, two scheduler processes, and a kill: each time has its one run, and how late they are is told.

`SCHEDULES` (40; soak: 2,000) come within `SCHEDULES_S` seconds (4; soak: 60); 0 seconds have all of them come at once.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Liveness
from libs.bus.runs import Schedules, schedules_of
from libs.chassis.clock import SystemClock
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.envelope import decode_events
from libs.contracts.events import RunCreated
from libs.contracts.ids import random_schedule_id
from libs.contracts.schedule_events import ScheduleCreated
from libs.contracts.schedules import ScheduleSpec
from libs.contracts.subjects import leader_key
from libs.contracts.tasks import TaskSpec
from tests.fakes.waiting import eventually, until

COUNT = int(os.environ.get("SCHEDULES", "40"))
WITHIN_S = int(os.environ.get("SCHEDULES_S", "4"))
# From the last schedule that is made to the first that comes; and at once, with 64 made at a time.
AHEAD_S, AT_ONCE = 2, 64

CLOCK = SystemClock()


class Made:
    """The runs that schedules had made, as the log shows them: the schedule, and when the run was recorded."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, datetime]] = []

    @property
    def schedules(self) -> set[str]:
        return {schedule for schedule, _ in self.runs}

    async def follow(self, bus: Bus) -> None:
        async with bus.log.life(0, 0) as records:
            async for record in records:
                for event in decode_events(record):
                    if isinstance(event.body, RunCreated) and event.body.task.schedule is not None:
                        self.runs.append((event.body.task.schedule, parse_rfc3339(event.at)))


async def create(schedules: Schedules, at: datetime) -> tuple[str, datetime]:
    """A schedule whose only time of the year is that second."""
    cron = f"{at.second} {at.minute} {at.hour} {at.day} {at.month} *"
    spec = ScheduleSpec(name="load", cron=cron, task=TaskSpec(goal="Tidy up."), task_hash="h", overlap="skip")
    schedule_id = random_schedule_id(CLOCK, 0)
    # Given, so that on a busy machine one that is made too late comes late, and not in a year.
    created = ScheduleCreated(tenant="local", spec=spec, body_hash="b", by="test", next_at=rfc3339(at))
    await schedules.create("local", schedule_id, [created])
    return schedule_id, at


async def planned(bus: Bus) -> dict[str, datetime]:
    """All schedules, with when each comes: evenly spread from a full second that lies far enough ahead."""
    schedules, found = schedules_of(bus, CLOCK), dict[str, datetime]()
    making_s = COUNT / 200
    first = (CLOCK.now() + timedelta(seconds=AHEAD_S + making_s)).replace(microsecond=0)
    times = [first + timedelta(seconds=index * WITHIN_S // COUNT) for index in range(COUNT)]
    for start in range(0, COUNT, AT_ONCE):
        found |= await asyncio.gather(*(create(schedules, at) for at in times[start : start + AT_ONCE]))
    return found


@asynccontextmanager
async def scheduler(bus: Bus, node: NatsServer, data: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A scheduler as a process of its own."""
    environment = {
        "PATH": os.environ["PATH"],
        "NATS_URL": node.address.url,
        "NATS_USER": node.address.user or "",
        "NATS_PASSWORD": node.address.password or "",
        "NATS_MONITOR_URL": node.address.monitor_url or "",
        "PERDURE_PREFIX": bus.subjects.prefix,
        "PERDURE_DATA": str(data),
    }
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.scheduler"),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
        cwd=Path(__file__).resolve().parents[2],
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def leading_pid(bus: Bus, liveness: Liveness) -> int | None:
    """The process that leads, once one does."""
    lease = await bus.bucket("leases").get(leader_key(0))
    if lease is None:
        return None
    pids = {replica.boot: replica.pid for replica in await liveness.replicas("scheduler")}
    return pids.get(lease.value.decode())


def told(late: list[float], *, killed: bool) -> str:
    late.sort()
    p50, p99 = late[len(late) // 2], late[min(len(late) - 1, int(len(late) * 0.99))]
    what = "one of two schedulers killed" if killed else "undisturbed"
    return f"{len(late)} schedules within {WITHIN_S} s, {what}: late p50 {p50:.3f} s, p99 {p99:.3f} s, at most {late[-1]:.3f} s"


# Undisturbed, it is only for its figures.
@pytest.mark.parametrize("killed", [False, True] if COUNT >= 1_000 else [True])
async def test_each_time_has_its_one_run(
    bus: Bus, nats_node: NatsServer, tmp_path: Path, *, killed: bool
) -> None:
    made = Made()
    registration = Registration("executor", "onlooker", 0, False, 3.0, {})
    async with AsyncExitStack() as stack:
        liveness = await stack.enter_async_context(register(bus, CLOCK, registration, on_death=lambda: None))
        for number in range(2):
            await stack.enter_async_context(scheduler(bus, nats_node, tmp_path / str(number)))
        following = asyncio.create_task(made.follow(bus))
        stack.callback(following.cancel)

        async def leads() -> bool:
            return await leading_pid(bus, liveness) is not None

        await eventually(leads, "a scheduler leads")
        due = await planned(bus)
        await until(lambda: len(made.runs) >= COUNT // 3, "a third is made")
        if killed:
            pid = await leading_pid(bus, liveness)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        await until(lambda: len(made.runs) >= COUNT * 2 // 3, "two thirds are made")
        await until(lambda: len(made.schedules) == COUNT, "each is made")
        assert sorted(schedule for schedule, _ in made.runs) == sorted(due)
        states = [(await schedules_of(bus, CLOCK).load("local", schedule)).state for schedule in due]
        assert {(state.fires, state.missed, state.skipped) for state in states} == {(1, 0, 0)}
    sys.stdout.write(
        told([(at - due[schedule]).total_seconds() for schedule, at in made.runs], killed=killed) + "\n"
    )

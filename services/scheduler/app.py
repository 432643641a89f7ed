"""The scheduler, put together.

Invariant: on SIGTERM the lead is let go of first, so that another scheduler acts within moments; nothing else has to be
finished, because nothing here is the truth.
"""

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any

from libs.bus.copies import Copies
from libs.bus.creation import Creation
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Liveness
from libs.bus.runs import Runs, projects_of
from libs.bus.starts import places_of
from libs.chassis.run import Chassis
from libs.contracts.clock import Clock
from libs.contracts.errors import LeaseLost
from libs.contracts.ids import SHARDS
from libs.contracts.leases import LeaseValue
from services.scheduler.blobs import OldBlobs, Pace
from services.scheduler.chores import Advance, Chores, Removers, unfinished
from services.scheduler.deadlines import Deadlines
from services.scheduler.endings import Endings
from services.scheduler.family import Family
from services.scheduler.halting import Halting
from services.scheduler.leadership import Leadership
from services.scheduler.places import Places
from services.scheduler.projects.orchestrator import Orchestrator
from services.scheduler.projects.rows import ProjectRows
from services.scheduler.projects.silences import overdue
from services.scheduler.projects.vacated import Vacated
from services.scheduler.remains import Remains
from services.scheduler.replicas import Replicas
from services.scheduler.retention import Keeping, Retention
from services.scheduler.rows import Rows
from services.scheduler.schedules.keeper import Keeper
from services.scheduler.schedules.rows import ScheduleRows
from services.scheduler.schedules.times import Times
from services.scheduler.settings import SchedulerSettings, TenantQuota, Timing
from services.scheduler.snapshots import OldSnapshots
from services.scheduler.sources.intake import Intake, sources_of
from services.scheduler.sources.wish import Source
from services.scheduler.sweep import Sweep
from services.scheduler.takeover import Takeover
from services.scheduler.tasks import Tasks, held_tasks
from services.scheduler.tickets import Tickets
from services.scheduler.wakeups import Others, Wakeups
from services.scheduler.webhooks.keeper import Webhooks

# All shards are one group while one scheduler keeps up with them.
GROUP = 0


class Scheduler:
    """One scheduler process over a bus."""

    def __init__(
        self,
        bus: Bus,
        runs: Runs,
        clock: Clock,
        liveness: Liveness,
        creation: Creation,
        *,
        quota: TenantQuota,
        timing: Timing,
        sources: Sequence[Source] = (),
    ) -> None:
        self._clock, self._timing = clock, timing
        leases = bus.bucket("leases")
        self.rows = Rows()
        self._replicas = Replicas(leases, self.rows, changed=self._reconsider, died=self._died)
        endings = Endings(runs, liveness)
        family = Family(runs, bus.log, endings)
        snapshots = OldSnapshots(bus.log, bus.store("workspaces"), clock, timing)
        buckets = bus.bucket("checkpoints"), bus.bucket("journal")
        remains = Remains(bus.log, *buckets, snapshots, self.rows, clock, timing)
        self._tickets = Tickets(
            bus.queue, bus.subjects, self.rows, self._replicas, family, clock, cap=quota.runs_max
        )
        halting = Halting(bus.wire, bus.subjects, self._replicas)
        project_logs, silences = projects_of(bus, clock), self._replicas.silences
        self._orchestrator = Orchestrator(
            project_logs, runs, bus.timers, liveness, clock, creation.limits, silences, bus.log
        )
        others = Others(ProjectRows(self._orchestrator.known), ScheduleRows())
        keeper = Keeper(bus, others.schedules, creation, clock)
        vacated = Vacated(bus.log, runs, self.rows, others.projects.vacated)
        removers = Removers(remains, vacated)
        self._chores = Chores(
            family, endings, self._orchestrator, keeper, bus.timers, removers, halting, clock
        )
        self._wakeups = Wakeups(
            bus.log, runs, self.rows, clock, self._reconsider, self._chores.add, remains.note, others
        )
        self._times = Times(others.schedules, keeper, self._chores, bus.log, clock)
        copies = Copies(bus, runs, clock)
        self._deadlines = Deadlines(bus, runs, self.rows, self._wakeups, self._chores, copies)
        self._takeover = Takeover(liveness, self._replicas, bus.queue, bus.subjects, bus.bucket("catalog"))
        projects, deadlines, hosts = others.projects, self._deadlines.compare, self._takeover.find_hosts
        clearing = (remains.finish_deletions, remains.clear, snapshots.clear, vacated.finish)
        steps = (hosts, deadlines, *clearing, self._times.find_lost)
        self._sweep = Sweep(
            self.rows, self._wakeups, self._replicas, self._chores, clock, timing, projects, steps
        )
        self.leadership = Leadership(
            leases, clock, boot=liveness.boot, group=GROUP, ttl_s=timing.lead_s, gained=self._gained
        )
        most = places_of(quota.runs_max, quota.queued_max)
        places = Places(bus.bucket("quotas"), bus.log, self.rows, clock, most=most)
        self._tasks = Tasks(bus.queue, bus.subjects, creation, runs, places, held_tasks(bus, clock))
        self._intake = Intake(sources, runs, bus.log, creation, endings, clock, self.rows.wished_by)

    async def run(self, stop: asyncio.Event) -> None:
        """Work until `stop` is set, then let go of the lead."""
        parts: list[Coroutine[Any, Any, None]] = [
            self._wakeups.follow(),
            self._wakeups.read(),
            self._replicas.watch(),
            self._tickets.send(self.leadership, self._wakeups.settled),
            self._takeover.attend(self.leadership, again_s=self._timing.tick_s),
            self._sweep.sweep(self.leadership),
            self._sweep.find_lost_tickets(self.leadership),
            self._chores.work(self.leadership),
            self._times.watch(self.leadership),
            self._intake.watch(self.leadership),
            self._deadlines.consume(self.leadership),
            self._tasks.consume(self._wakeups.settled),
            self._tick(),
            self.leadership.watch(),
        ]
        async with asyncio.TaskGroup() as group:
            campaign = group.create_task(self.leadership.campaign())
            tasks = [group.create_task(part) for part in parts]
            await stop.wait()
            campaign.cancel()
            await self.leadership.release()
            for task in tasks:
                task.cancel()

    async def _tick(self) -> None:
        while True:
            await self._clock.sleep(self._timing.tick_s)
            self.rows.expire(self._clock.monotonic() - self._timing.claim_s)
            self.rows.fall_due(self._clock.now())
            self._replicas.suspect_owners()
            silent = overdue(self._orchestrator.watched, self._replicas.all_silences())
            self._chores.add(Advance(project) for project in silent)
            self._reconsider()

    def _reconsider(self) -> None:
        self._tickets.reconsider()

    def _gained(self) -> None:
        self._sweep.soon()
        self._reconsider()

    def _died(self, replica: LeaseValue) -> None:
        for row in self.rows.bury(replica.boot):
            self._wakeups.look_into(row)
            self._chores.add(unfinished(row, orphaned=True))
        self._takeover.died(replica)


async def serve(chassis: Chassis[SchedulerSettings]) -> None:
    """Run the service until its chassis says stop. Raises `LeaseLost` when the others declared this process dead."""
    settings, dead = chassis.settings, asyncio.Event()
    registration = Registration(
        service="scheduler",
        replica=settings.replica_id,
        slots=0,
        model_configured=False,
        ttl_s=settings.lease_ttl_s,
        info={},
    )

    def on_death() -> None:
        dead.set()
        chassis.stop.set()

    async with register(chassis.bus, chassis.clock, registration, on_death=on_death) as liveness:
        scheduler = Scheduler(
            chassis.bus,
            chassis.runs,
            chassis.clock,
            liveness,
            Creation(chassis.runs, chassis.clock, shards=SHARDS, limits=settings.limits),
            quota=TenantQuota(settings.tenant_runs_max, settings.tenant_queued_max),
            timing=Timing(),
            sources=sources_of(settings.sources, chassis.clock, linear_key=settings.linear_key),
        )
        async with asyncio.TaskGroup() as group:
            beside = [group.create_task(part) for part in _beside(chassis, scheduler.leadership)]
            await scheduler.run(chassis.stop)
            for task in beside:
                task.cancel()
    if dead.is_set():
        raise LeaseLost("the others declared this process dead; it starts again under a new boot id")


def _beside(
    chassis: Chassis[SchedulerSettings], leadership: Leadership
) -> Iterator[Coroutine[Any, Any, None]]:
    """What the leader does that no run waits for."""
    bus, clock, settings = chassis.bus, chassis.clock, chassis.settings
    yield Webhooks(bus, clock, settings.webhook_allow).run(leadership)
    others = (bus.store("workspaces"),)
    blobs = OldBlobs(bus.log, bus.store("blobs"), clock, shards=SHARDS, pace=Pace(), others=others)
    yield blobs.run(leadership)
    if settings.retention_days is not None:
        keeping = Keeping(settings.retention_days, settings.export_folder)
        yield Retention(bus, chassis.runs, projects_of(bus, clock), clock, keeping).run(leadership)

"""The gateway, put together.

Invariant: on SIGTERM streams end first, so that clients reconnect elsewhere with the sequence they have; then running
requests finish, within their grace (`requests.py`), and the lease is let go of last. All of it fits the chassis's drain
deadline, also while the bus is away.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from starlette.types import ASGIApp

from libs.bus.checkpoints import Checkpoints
from libs.bus.copies import Copies
from libs.bus.creation import Creation
from libs.bus.liveness import Registration, register
from libs.bus.ports import Bus, Liveness
from libs.bus.rates import Rates
from libs.bus.runs import Runs, projects_of, schedules_of
from libs.bus.spending import Spending
from libs.bus.starts import HOLDING, Starts, places_of
from libs.chassis.logs import get_logger
from libs.chassis.run import VERSION, Chassis
from libs.contracts.clock import Clock
from libs.contracts.errors import LeaseLost
from libs.contracts.ids import SHARDS
from libs.projection.follow import Projection, projection
from libs.projection.postgres import open_postgres
from libs.projection.rows import Index
from libs.projection.sqlite import open_index
from libs.projection.tallies import Tallies
from services.gateway.artifacts import ArtifactsApi
from services.gateway.auth import Keyring
from services.gateway.commands import CommandsApi
from services.gateway.copies import CopiesApi
from services.gateway.deadletters import DeadLettersApi
from services.gateway.health import HealthApi, Identity
from services.gateway.measures import Gauges
from services.gateway.metrics import MetricsApi
from services.gateway.places import Places
from services.gateway.policies import PoliciesApi
from services.gateway.projects import ProjectsApi
from services.gateway.protocol import PATIENCE, Patience
from services.gateway.quotas import Quotas
from services.gateway.requests import Requests
from services.gateway.roster import Roster
from services.gateway.routes import Handler, application
from services.gateway.runs import RunsApi
from services.gateway.schedules import SchedulesApi
from services.gateway.server import listen, make_room, serve_until
from services.gateway.settings import GatewaySettings
from services.gateway.stream import StreamApi
from services.gateway.tasks import TasksApi
from services.gateway.traffic import Traffic
from services.gateway.watch import Watches
from services.gateway.webhooks import WebhooksApi

_log = get_logger("gateway")


class Gateway:
    """One gateway over a bus. Made by `gateway`."""

    def __init__(
        self, bus: Bus, runs: Runs, clock: Clock, liveness: Liveness, settings: GatewaySettings
    ) -> None:
        self._bus, self._runs, self._clock = bus, runs, clock
        self._liveness, self._settings = liveness, settings
        self._requests, self._traffic = Requests(), Traffic(clock)
        self._projects = projects_of(bus, clock)
        self._spending = Spending(
            bus.bucket("spending"), clock, limit=settings.tenant_tokens_per_day, boot=liveness.boot
        )

    def app(self, rows: Projection, watches: Watches) -> ASGIApp:
        """The HTTP application over this gateway's parts."""
        settings, quotas = self._settings, self._quotas(rows)
        roster = Roster(self._liveness, self._bus.bucket("catalog"), self._clock)
        keyring = Keyring(settings.keys, settings.operator_key)
        letters = DeadLettersApi(self._bus.dead_letters)
        identity = Identity(
            settings.replica_id,
            VERSION,
            keyring.secure,
            "sqlite" if settings.database_url is None else "postgresql",
            sorted(settings.test_hooks),
        )
        health = HealthApi(
            bus=self._bus, liveness=self._liveness, roster=roster, identity=identity, policy=settings.policy
        )
        policies = PoliciesApi(settings.policy, roster, secure=keyring.secure)
        handlers = {
            **self._reading(rows, watches, roster),
            **self._changing(rows, roster, quotas),
            **self._projects_api(rows, roster, quotas),
            **self._schedules_api(rows, roster, quotas),
            **self._webhooks_api(),
            "explain_policy": policies.explain,
            "list_dead_letters": letters.find,
            "replay_dead_letter": letters.replay,
            **self._measuring(watches, roster),
        }
        opened = {"health": health.health, "ready": health.ready}
        return application(handlers, opened, keyring, self._clock, self._requests, self._traffic, quotas)

    def _reading(self, rows: Projection, watches: Watches, roster: Roster) -> dict[str, Handler]:
        """What shows runs, by the names of the operations."""
        reading = RunsApi(
            runs=self._runs,
            log=self._bus.log,
            blobs=self._bus.store("blobs"),
            rows=rows,
            watches=watches,
            shards=SHARDS,
        )
        artifacts = ArtifactsApi(self._runs, Places(self._bus, roster), shards=SHARDS)
        streams = StreamApi(watches, shards=SHARDS)
        return {
            "list_runs": reading.find,
            "show_run": reading.show,
            "list_questions": reading.questions,
            "list_events": reading.events,
            "show_event": reading.event,
            "show_recording": reading.recording,
            "list_artifacts": artifacts.find,
            "download_artifact": artifacts.download,
            "show_diff": artifacts.diff,
            "stream_run": streams.stream,
            "stream_project": streams.stream,
        }

    def _quotas(self, rows: Projection) -> Quotas:
        """What tenants may do at most."""
        bucket = self._bus.bucket("quotas")
        rates = Rates(bucket, self._clock, limit=self._settings.tenant_requests_per_minute)

        async def known(tenant: str, run_ids: Collection[str]) -> Mapping[str, str]:
            return await rows.statuses(tenant, HOLDING, run_ids)

        most = places_of(self._settings.tenant_runs_max, self._settings.tenant_queued_max)
        starts = Starts(bucket, self._clock, known, most=most)
        return Quotas(rates, starts, self._spending, self._clock)

    def _changing(self, rows: Projection, roster: Roster, quotas: Quotas) -> dict[str, Handler]:
        """What makes and changes runs."""
        runs = self._runs
        creation = Creation(runs, self._clock, shards=SHARDS, limits=self._settings.limits)
        tasks = TasksApi(creation=creation, runs=runs, rows=rows, roster=roster, quotas=quotas, shards=SHARDS)
        commands = CommandsApi(
            runs=runs, rows=rows, liveness=self._liveness, roster=roster, quotas=quotas, shards=SHARDS
        )
        copies = CopiesApi(
            copies=Copies(self._bus, runs, self._clock),
            creation=creation,
            runs=runs,
            rows=rows,
            roster=roster,
            quotas=quotas,
            clock=self._clock,
            shards=SHARDS,
        )
        return {
            "create_task": tasks.create,
            "show_task": tasks.show,
            "start_run": commands.start,
            "cancel_run": commands.cancel,
            "reply_to_run": commands.reply,
            "approve_call": commands.approve,
            "reconcile_call": commands.reconcile,
            "message_run": commands.message,
            "pause_run": commands.pause,
            "resume_run": commands.resume,
            "fork_run": copies.fork,
            "retry_run": copies.retry,
            "delete_run": commands.delete,
        }

    def _projects_api(self, rows: Projection, roster: Roster, quotas: Quotas) -> dict[str, Handler]:
        """What makes, shows and changes projects."""
        return ProjectsApi(
            projects=self._projects,
            runs=self._runs,
            rows=rows,
            roster=roster,
            quotas=quotas,
            clock=self._clock,
            settings=self._settings,
            shards=SHARDS,
        ).handlers()

    def _measuring(self, watches: Watches, roster: Roster) -> dict[str, Handler]:
        """What tells numbers."""
        path = self._index_file("counts.json")
        gauges = Gauges(
            bus=self._bus,
            roster=roster,
            tallies=Tallies(self._bus.log, path, shards=SHARDS),
            traffic=self._traffic,
            watches=watches,
            boot=self._liveness.boot,
        )
        metrics = MetricsApi(gauges)
        return {"metrics": metrics.text, "metrics_view": metrics.view}

    def _index_file(self, suffix: str) -> Path:
        """A file of this replica's own, which may be deleted and costs a rebuild then."""
        name = f"{self._bus.subjects.prefix}-{self._settings.replica_id}.{suffix}"
        return self._settings.data / "index" / name

    def _schedules_api(self, rows: Projection, roster: Roster, quotas: Quotas) -> dict[str, Handler]:
        """What makes, shows and changes schedules."""
        limits = self._settings.limits
        return SchedulesApi(
            schedules=schedules_of(self._bus, self._clock),
            creation=Creation(self._runs, self._clock, shards=SHARDS, limits=limits),
            rows=rows,
            roster=roster,
            quotas=quotas,
            clock=self._clock,
            limits=limits,
            shards=SHARDS,
        ).handlers()

    def _webhooks_api(self) -> dict[str, Handler]:
        """What registers webhooks."""
        bus, allowed = self._bus, self._settings.webhook_allow
        webhooks = WebhooksApi(
            bus.bucket("webhooks"), bus.queue, bus.subjects, allowed, self._clock, shards=SHARDS
        )
        return {
            "create_webhook": webhooks.create,
            "list_webhooks": webhooks.find,
            "delete_webhook": webhooks.delete,
        }

    def _index(self) -> AbstractAsyncContextManager[Index]:
        """The rows: in the database of all gateways, or in a file of this one."""
        prefix, url = self._bus.subjects.prefix, self._settings.database_url
        if url is not None:
            return open_postgres(url.get_secret_value(), prefix, self._clock)
        return open_index(self._index_file("sqlite"))

    @asynccontextmanager
    async def parts(self) -> AsyncGenerator[tuple[Projection, Watches]]:
        """The read model and the watches, with the tasks that keep them up to date."""
        checkpoints = Checkpoints(self._bus.bucket("checkpoints"), self._bus.store("blobs"), self._bus.log)
        async with (
            self._index() as index,
            projection(self._bus.log, index, SHARDS) as rows,
            asyncio.TaskGroup() as group,
        ):
            watching = group.create_task(self._spending.watch())
            yield (
                rows,
                Watches(
                    runs=self._runs,
                    projects=self._projects,
                    log=self._bus.log,
                    wire=self._bus.wire,
                    checkpoints=checkpoints,
                    subjects=self._bus.subjects,
                    clock=self._clock,
                    group=group,
                ),
            )
            watching.cancel()

    async def run(self, bound: socket.socket, stop: asyncio.Event, patience: Patience = PATIENCE) -> None:
        """Serve on `bound` until `stop`; then drain."""
        async with self.parts() as (rows, watches), asyncio.TaskGroup() as group:
            host, port = bound.getsockname()[:2]
            _log.info("gateway.listening", host=host, port=port)
            stopped = asyncio.Event()
            group.create_task(serve_until(stopped, self.app(rows, watches), bound, self._clock, patience))
            await stop.wait()
            watches.drain()
            self._requests.drain()
            stopped.set()


async def serve(chassis: Chassis[GatewaySettings]) -> None:
    """Run the service until its chassis says stop. Raises `LeaseLost` when the others declared this process dead."""
    settings, dead = chassis.settings, asyncio.Event()
    registration = Registration(
        service="gateway",
        replica=settings.replica_id,
        slots=0,
        model_configured=False,
        ttl_s=settings.lease_ttl_s,
        info={"version": VERSION},
    )

    def on_death() -> None:
        dead.set()
        chassis.stop.set()

    make_room()
    with listen(settings.host, settings.port) as bound:
        async with register(chassis.bus, chassis.clock, registration, on_death=on_death) as liveness:
            gateway = Gateway(chassis.bus, chassis.runs, chassis.clock, liveness, settings)
            await gateway.run(bound, chassis.stop)
    if dead.is_set():
        raise LeaseLost("the others declared this process dead; it starts again under a new boot id")

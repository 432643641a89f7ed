"""The bus as a process holds it: one connection, and the logs, queues, buckets, stores and wire over it.

Invariant: there is one `Bus` per process; it is usable again by itself after any outage of the server.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from libs.bus.blobs import ServerBlobs
from libs.bus.consumer import ServerQueue
from libs.bus.counts import Backlog, Count
from libs.bus.deadletters import ServerDeadLetters
from libs.bus.facts import ServerFacts, backlogs, examine
from libs.bus.jetstream import NO_MESSAGE, JetStream, Refused
from libs.bus.kv import ServerBucket
from libs.bus.link import Credentials, Link
from libs.bus.listing import counted_subjects, subjects_of
from libs.bus.log import ServerLog, Writer
from libs.bus.micro import Announcement, announced
from libs.bus.ports import Blobs, Bucket, DeadLetters, Log, LogKey, Queue, Timers, Wire
from libs.bus.timers import ServerTimers
from libs.bus.topology import Topology, check_durability
from libs.bus.wire import ServerWire
from libs.contracts.clock import Clock
from libs.contracts.errors import BusUnavailable
from libs.contracts.ids import SHARDS, is_id
from libs.contracts.streams import buckets, streams
from libs.contracts.subjects import Subjects

# How long a health check waits for the log's leader.
USABLE_S = 2.0


class BusSettings(NamedTuple):
    """Where the bus is and what this deployment looks like on it."""

    url: str
    user: str | None
    password: str | None
    creds: str | None
    prefix: str = "perdure"
    replicas: int = 1
    shards: int = SHARDS
    allow_lazy_sync: bool = False
    monitor_url: str | None = None
    name: str = "perdure"


class ServerBus:
    """`Bus` over a NATS server. Made by `connect`."""

    def __init__(self, settings: BusSettings, link: Link, clock: Clock) -> None:
        self._settings, self._link, self._clock = settings, link, clock
        self.subjects = Subjects(settings.prefix)
        self._js = JetStream(link, clock)
        self._topology = Topology(self._js, self.subjects, replicas=settings.replicas, shards=settings.shards)
        self._js.repair = self._topology.repair
        self.counts: Counter[Count] = Counter()
        self._log = ServerLog(
            self._js, self.subjects, self.store("blobs"), self.counts, shards=settings.shards
        )
        self._buckets = {spec.name: spec for spec in buckets(self.subjects)}
        self.log: Log = self._log
        self.queue: Queue = ServerQueue(self._js, self.subjects, self.counts)
        self.timers: Timers = ServerTimers(self._js, self.subjects)
        self.dead_letters: DeadLetters = ServerDeadLetters(self._js, self.subjects)
        self._wire = ServerWire(link, clock)
        self.wire: Wire = self._wire
        # `leases`, `checkpoints`, `journal`, `catalog`, `spending`, `quotas` or `webhooks`.
        self.bucket: Callable[[str], Bucket] = self._bucket

    def store(self, name: str) -> Blobs:
        """`blobs` or `workspaces`."""
        return ServerBlobs(self._js, self.subjects.stream(name))

    async def ensure_topology(self) -> None:
        """Create or verify all streams, buckets and stores; idempotent.

        Raises `ConfigurationError` for a server that is too old, that acknowledges before it is on disk (unless that
        is allowed), or that holds them in another form.
        """
        await check_durability(self._settings.monitor_url, allow_lazy=self._settings.allow_lazy_sync)
        await self._topology.ensure()

    def connected(self) -> bool:
        return self._link.connected

    async def usable(self) -> bool:
        """Whether the leader of the first log stream answers within 2 s."""
        stream = self.subjects.log_stream(0)
        try:
            async with asyncio.timeout(USABLE_S):
                await self._js.api(f"STREAM.MSG.GET.{stream}", {"seq": 1})
        except Refused as refused:
            # "There is no such message" is an answer.
            return refused.number == NO_MESSAGE
        except (TimeoutError, BusUnavailable):
            return False
        return True

    async def facts(self) -> ServerFacts:
        """What the server says about itself and about this deployment's streams, buckets and stores; only read."""
        return await examine(self._js, self._topology.names)

    async def runs(self) -> list[LogKey]:
        """All runs whose logs hold a `life` record, deleted ones too, in the order of their ids. For operators."""
        found: list[LogKey] = []
        for shard in range(self._settings.shards):
            life = self.subjects.life_of_shard(shard)
            for subject in await subjects_of(self._js, self.subjects.log_stream(shard), life):
                place = self.subjects.parse_log(subject)
                if is_id("run", place.log_id):
                    found.append(LogKey(place.tenant, place.log_id))
        return sorted(found, key=lambda key: key.log_id)

    @asynccontextmanager
    async def announced(self, service: str, version: str, description: str) -> AsyncGenerator[None]:
        """While the context lasts, `nats micro ls|info|stats` shows this process as `<prefix>-<service>`."""

        def metadata() -> dict[str, str]:
            return {"connection": self._settings.name, "boot": self._log.writer.boot}

        name = f"{self.subjects.prefix}-{service}"
        announcement = Announcement(name, version, description, metadata)
        async with announced(self._link, self._clock, announcement, lambda: list(self._wire.answering)):
            yield

    async def backlogs(self) -> list[Backlog]:
        names = [spec.name for spec in streams(self.subjects, 0) if spec.retention == "workqueue"]
        return await backlogs(self._js, names)

    async def letters_kept(self) -> dict[str, int]:
        return await counted_subjects(self._js, self.subjects.stream("dead"), ">")

    def set_writer(self, boot: str, version: str) -> None:
        """Who writes, for the header of every record from now on."""
        self._log.writer = Writer(boot, version)

    def _bucket(self, name: str) -> Bucket:
        return ServerBucket(self._js, self._buckets[self.subjects.stream(name)])

    async def watch_follows(self) -> None:
        """Runs for as long as the connection; started by `connect`."""
        await self._log.follows.run()


@asynccontextmanager
async def connect(settings: BusSettings, clock: Clock) -> AsyncGenerator[ServerBus]:
    """Connect, waiting up to 30 s for the server; afterwards the connection comes back by itself for ever.

    Raises `BusUnavailable`, or `ConfigurationError` when the server does not let this process in.
    """
    link = Link(
        Credentials(settings.url, settings.user, settings.password, settings.creds, settings.name), clock
    )
    try:
        await link.open()
        bus = ServerBus(settings, link, clock)
        watching = asyncio.create_task(bus.watch_follows())
        try:
            yield bus
        finally:
            watching.cancel()
            await asyncio.wait({watching})
    finally:
        await link.close()

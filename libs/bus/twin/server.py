"""The twin's server, and a process's bus on it.

Invariant: what is stored outlives every connection; one server serves one deployment (one prefix) in one event loop.
"""

from collections import Counter
from collections.abc import Callable

from libs.bus.counts import Backlog, Count
from libs.bus.ports import Blobs, Bucket, DeadLetters, Log, Queue, Wire
from libs.bus.ports import Timers as TimersPort
from libs.bus.twin.letters import TwinDeadLetters
from libs.bus.twin.link import Link, Timers
from libs.bus.twin.logs import LogStore, TwinLog
from libs.bus.twin.network import Network
from libs.bus.twin.queue import TwinQueue, stream_of
from libs.bus.twin.stores import BlobStore, BucketStore, TwinBlobs, TwinBucket
from libs.bus.twin.timers import TimerStore, TwinTimers
from libs.bus.twin.wire import TwinWire, WireStore
from libs.bus.twin.work import StreamStore
from libs.contracts.clock import Clock
from libs.contracts.streams import buckets, stores, streams
from libs.contracts.subjects import Subjects


class TwinServer:
    """Everything that a deployment keeps on its servers. Make it inside of the event loop's context that it is to use."""

    def __init__(self, clock: Clock, *, prefix: str = "perdure", shards: int = 1) -> None:
        self.subjects = Subjects(prefix)
        self.clock = clock
        self.timers = Timers()
        self.logs = LogStore(shards)
        logs = {self.subjects.log_stream(shard) for shard in range(shards)}
        self.streams = [
            StreamStore(spec, self.timers, clock)
            for spec in streams(self.subjects, shards)
            if spec.name not in logs
        ]
        self._by_subject: dict[str, StreamStore] = {}
        self.buckets = {spec.name: BucketStore(self.timers) for spec in buckets(self.subjects)}
        self.stores = {spec.name: BlobStore(clock) for spec in stores(self.subjects)}
        self.wires = WireStore()
        self.scheduled = TimerStore(
            self.timers, self.subjects, self.stream(self.subjects.fired("", 0)), clock
        )

    def connect(self, name: str, network: Network) -> "TwinBus":
        """A process's bus; `name` is for traces."""
        return TwinBus(self, Link(name, self.timers, network))

    def disconnect(self, link: Link) -> None:
        """A process is gone: nobody answers for it, and what it had pulled comes again in time."""
        link.closed = True
        self.wires.disconnect(link)
        for stream in self.streams:
            stream.disconnect(link)

    def stream(self, subject: str) -> StreamStore:
        """The stream that takes messages on this subject."""
        found = self._by_subject.get(subject)
        if found is None:
            found = self._by_subject[subject] = stream_of(self.streams, subject)
        return found


class TwinBus:
    """`Bus` on the twin."""

    def __init__(self, server: TwinServer, link: Link) -> None:
        self._server, self.link = server, link
        self.subjects = server.subjects
        self.counts: Counter[Count] = Counter()
        blobs = server.stores[server.subjects.stream("blobs")]
        self._log = TwinLog(link, server.logs, blobs, server.clock, self.counts)
        self.log: Log = self._log
        self.queue: Queue = TwinQueue(link, server.subjects, server.stream, server.clock, self.counts)
        self.timers: TimersPort = TwinTimers(link, server.scheduled)
        self.dead_letters: DeadLetters = TwinDeadLetters(link, server.subjects, server.stream, server.clock)
        self.bucket: Callable[[str], Bucket] = self._bucket
        self.wire: Wire = TwinWire(link, server.wires)

    def _bucket(self, name: str) -> Bucket:
        return TwinBucket(self.link, name, self._server.buckets[self.subjects.stream(name)])

    def store(self, name: str) -> Blobs:
        return TwinBlobs(self.link, self._server.stores[self.subjects.stream(name)])

    async def ensure_topology(self) -> None:
        """There is nothing to create."""

    def connected(self) -> bool:
        return not self.link.closed

    async def usable(self) -> bool:
        return not self.link.closed

    async def backlogs(self) -> list[Backlog]:
        return [one for stream in self._server.streams for one in stream.backlogs()]

    async def letters_kept(self) -> dict[str, int]:
        kept = self._server.stream(self.subjects.dead("run")).messages.values()
        return Counter(message.subject for message in kept)

    def set_writer(self, boot: str, version: str) -> None:
        del version
        self._log.boot = boot

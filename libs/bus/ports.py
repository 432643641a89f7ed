"""What the rest of Perdure may ask of the bus: protocols with two real implementations, the server and the twin.

Invariant: no type or exception of the client library crosses this file; every failure is one of
`libs/contracts/errors.py` (`BusUnavailable` once the patience of a call is used up, `AppendConflict`, `StorageFull`).
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Protocol

from libs.bus.counts import Counted, Extent
from libs.bus.letters import DeadLetter, Letters
from libs.contracts.envelope import Event, Record, record_class
from libs.contracts.run import COPYING
from libs.contracts.streams import ConsumerSpec
from libs.contracts.subjects import RecordClass, Subjects


class LogKey(NamedTuple):
    """Which log: a run's, a workspace's, a project's."""

    tenant: str
    log_id: str


class Draft(NamedTuple):
    """A record about to be appended: `events` become true together iff the log's last record is `expected`."""

    key: LogKey
    expected: int
    events: Sequence[Event]
    epoch: int
    state: str

    @property
    def record_class(self) -> RecordClass:
        """Copied history wakes nobody and is in no list: its marker is what makes it a run."""
        return "work" if self.state == COPYING else record_class([event.body for event in self.events])


class Wakeup(NamedTuple):
    """A `life` record went by: fold the log and act on what is true now. `header_state` is only a hint.

    `record` is that record with its body: it spares the scheduler a read before the ticket of a fresh run.
    """

    key: LogKey
    stream_sequence: int
    header_state: str
    record: Record | None = None


class Log(Protocol):
    """The durable logs. Stream sequences are positions in a log (0: before its first record)."""

    async def append(self, draft: Draft) -> Record:
        """Store one record behind the fence, whatever happens to the connection meanwhile.

        Returns the stored record. Raises `AppendConflict` (somebody else wrote: nothing of this draft is stored),
        `StorageFull`, or `BusUnavailable` after 15 s of patience, when the outcome stays unknown.
        """
        ...

    async def read(self, key: LogKey, after: int = 0) -> list[Record]:
        """All records behind stream sequence `after`, complete up to the leader's tail at the time of the call.
        Served by any replica, and one that lags shows for a moment what was purged."""
        ...

    async def page(self, key: LogKey, after: int) -> list[Record]:
        """The first of the records behind `after`, as many as fit a page; none only if the leader has none."""
        ...

    async def tail(self, key: LogKey) -> Record | None:
        """The newest record, from the leader; `None` is a definite answer."""
        ...

    async def tails(self, keys: Sequence[LogKey]) -> dict[LogKey, int]:
        """Stream sequences of the newest records that any replica knows of, in one round trip a shard."""
        ...

    def follow(self, key: LogKey, after: int) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """Records behind `after` as they are stored, without a gap or a double; ends only with its context."""
        ...

    def wakeups(self) -> AbstractAsyncContextManager[AsyncIterator[Wakeup]]:
        """First the latest `life` record of every log, then each new one. May repeat; must not lose a latest one."""
        ...

    def life(self, shard: int, after: int) -> AbstractAsyncContextManager[AsyncIterator[Record]]:
        """All `life` records of a shard behind stream sequence `after`, in order, then live. For projections."""
        ...

    async def extent(self, shard: int) -> Extent:
        """How far a shard goes, from the leader."""
        ...

    async def across(self, shard: int, after: int) -> list[Record]:
        """A page of the records of all logs of a shard behind `after`, in order, as they are stored: strings that were
        moved out stay where they are. For counting; any replica answers, and one that lags shows less."""
        ...

    async def bodies(self, shard: int, after: int) -> list[tuple[int, bytes]]:
        """A page of the bodies of all records of a shard behind `after`, in order, with their sequences, also of those
        that this version cannot read: for finding what nobody names. From the leader, so none is missed."""
        ...

    async def purge(self, key: LogKey, up_to: int) -> None:
        """Remove a whole prefix below stream sequence `up_to` (a tombstone's). Only for deletion."""


class Outcome(NamedTuple):
    """What becomes of a delivered message. Build it by the names below."""

    kind: str
    delay_s: float = 0.0
    reason: str = ""


ACK = Outcome("ack")


def nak(delay_s: float) -> Outcome:
    """Deliver it again after `delay_s`."""
    return Outcome("nak", delay_s=delay_s)


def dead(reason: str) -> Outcome:
    """Nobody can handle it: it moves to the dead-letter stream with its reason, and is acked there."""
    return Outcome("dead", reason=reason)


class Delivery(NamedTuple):
    """One message of a work queue. `delivered` counts deliveries, `stream_created` (RFC 3339) with `stream_sequence`
    names the message for ever."""

    subject: str
    headers: dict[str, str]
    body: bytes
    stream_sequence: int
    delivered: int
    stream_created: str


Handler = Callable[[Delivery], Awaitable[Outcome]]


class Queue(Protocol):
    """Work queues: at-least-once, so every handler is idempotent."""

    async def publish(self, subject: str, body: bytes, *, message_id: str | None = None) -> None:
        """Store a message. An equal `message_id` within the stream's window is stored once."""

    async def consume(
        self,
        spec: ConsumerSpec,
        handler: Handler,
        *,
        concurrency: int,
        ready: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Pull and handle until cancelled; creates the consumer when it is missing and survives its deletion.

        `ready` is awaited before each pull (an executor waits there for a free slot). Cancelling waits for nothing:
        unacked messages come again.
        """

    async def prepare(self, spec: ConsumerSpec) -> None:
        """Make the consumer if it is missing, so that it gets what is stored from now on. Raises `Unavailable`."""

    async def dead_letter(self, subject: str, delivery: Delivery, reason: str) -> None:
        """Keep a message that nobody could handle, with its reason, under `subject` (`Subjects.dead/rejected`)."""

    async def remove_consumer(self, spec: ConsumerSpec) -> None:
        """Remove a consumer and what waits for it on its subject; quiet when there is none."""


class Timers(Protocol):
    """Durable timers, one for each event that a run waits on. A fired one is a delivery of `streams.fired_consumer`
    whose body is a `tasks.Timer`. All of them are hints."""

    async def arm(self, key: LogKey, sequence: int, due_at: datetime) -> None:
        """Have the timer fire at `due_at` (aware), at once when that is past; replaces the one for the same event."""

    async def cancel(self, run_id: str, sequence: int) -> None:
        """Take it back; quiet when there is none. One that has fired stays fired."""

    async def standing(self) -> set[tuple[str, int]]:
        """Run and sequence of all timers that are set, or fired and not yet handled."""
        ...


class DeadLetters(Protocol):
    """What nobody could handle, for people."""

    async def newest(
        self,
        *,
        before: int | None = None,
        limit: int = 50,
        kind: str | None = None,
        tenant: str | None = None,
    ) -> Letters:
        """Letters older than `before` (a sequence), newest first; all kinds, or one; of `rejected`, one tenant's."""
        ...

    async def get(self, sequence: int) -> DeadLetter:
        """One letter. Raises `NotFound`."""
        ...

    async def replay(self, sequence: int) -> DeadLetter:
        """Send a letter's message to where it came from, then remove the letter.

        Raises `NotFound`, or `InvalidState` when it does not say where it came from.
        """
        ...


class Entry(NamedTuple):
    """A live value of a bucket. `revision` is what `update` compares."""

    key: str
    value: bytes
    revision: int


class Bucket(Protocol):
    """One KV bucket. Reads are leader reads; expired and deleted keys read as `None`."""

    async def get(self, key: str) -> Entry | None: ...

    async def create(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        """Write iff there is no live value; returns the revision. Raises `AppendConflict`."""
        ...

    async def update(self, key: str, value: bytes, revision: int, *, ttl_s: float | None = None) -> int:
        """Write iff the newest revision is `revision`; returns the new one. Raises `AppendConflict`."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int: ...

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        """Remove; with a `revision` only if that is the newest. Raises `AppendConflict`."""

    async def entries(self, prefix: str = "") -> list[Entry]:
        """All live values whose key begins with `prefix` (a whole token and a dot, or empty)."""
        ...

    async def keys(self, prefix: str = "") -> list[str]:
        """Like `entries`, without the values. May name keys that went within the last minute."""
        ...

    async def remove(self, prefix: str) -> None:
        """Remove all keys whose name begins with `prefix` in one go; no watch is told at once."""

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes | None]]]:
        """First every live value, then `("", None)` once, then each change (`None`: gone). Survives restarts and the
        loss of the bucket: then values may be told again, and whatever went meanwhile is told."""
        ...


class Blobs(Protocol):
    """Content-addressed bytes (`<p>-blobs`) or named ones (`<p>-workspaces`)."""

    async def put(self, name: str, data: bytes) -> None: ...

    async def get(self, name: str) -> bytes | None: ...

    async def put_file(self, name: str, path: Path) -> None:
        """The same for what is too large to be held; the file stands still meanwhile."""

    async def get_file(self, name: str, path: Path) -> bool:
        """Write the bytes into a file; whether there are any. What was written is of no use if this raises."""
        ...

    async def names(self, prefix: str = "") -> list[str]:
        """The names that begin with `prefix`. For sweeps: it reads all of them."""
        ...

    async def remove(self, name: str) -> None:
        """Remove a name and its bytes; quiet when there are none."""

    async def remove_older(self, name: str, before: datetime) -> bool:
        """The same, unless it was stored, or stored again, since then, also in this very moment; whether it was removed."""
        ...

    async def remove_unnamed(self, before: datetime, most: int) -> int:
        """Remove what writers (so many at most) left without a name and added nothing to since then; of how many it was."""
        ...


class Message(NamedTuple):
    """A core message: a feed note, a delta, a request."""

    subject: str
    body: bytes
    headers: dict[str, str]


Responder = Callable[[Message], Awaitable[bytes]]


class Wire(Protocol):
    """What is not stored: requests, replies, transient messages."""

    async def request(self, subject: str, body: bytes, *, timeout_s: float) -> bytes:
        """Raises `BusUnavailable` when nobody answers in time (`NobodyThere` when nobody listens at all)."""
        ...

    async def publish(self, subject: str, body: bytes) -> None: ...

    def respond(self, subject: str, responder: Responder) -> AbstractAsyncContextManager[None]:
        """Answer requests on `subject` while the context lasts; each in its own task, at most 1,000 at once."""
        ...

    def listen(self, subject: str) -> AbstractAsyncContextManager[AsyncIterator[Message]]:
        """Messages as they come; a slow listener loses the oldest beyond 4,096.

        As with every iterator of this file, a cancelled `anext` loses nothing and may be called again: bounding a
        wait is `asyncio.timeout` around it.
        """
        ...


class Bus(Counted, Protocol):
    """The bus as a process holds it: the server's (`connection.py`) or the twin's (`twin/server.py`)."""

    subjects: Subjects
    log: Log
    queue: Queue
    timers: Timers
    dead_letters: DeadLetters
    wire: Wire
    # `leases`, `checkpoints`, `journal`, `catalog`, `spending`, `quotas` or `webhooks`.
    bucket: Callable[[str], Bucket]

    def store(self, name: str) -> Blobs:
        """`blobs` or `workspaces`."""
        ...

    async def ensure_topology(self) -> None:
        """Create or verify all that the deployment needs; idempotent. Raises `ConfigurationError`."""

    def connected(self) -> bool: ...

    async def usable(self) -> bool:
        """Whether the logs answer within 2 s."""
        ...

    def set_writer(self, boot: str, version: str) -> None:
        """Who writes, for the header of every record from now on."""


class Replica(NamedTuple):
    """A process as its liveness key tells it. `dead` is the written death; a missing key is only a suspicion."""

    boot: str
    service: str
    replica: str
    host: str
    pid: int
    process_start: int
    slots: int
    free: int
    model_configured: bool
    dead: bool
    info: dict[str, str]


class Liveness(Protocol):
    """This process's lease, and what is known of the others."""

    @property
    def boot(self) -> str: ...

    def confirmed(self) -> bool:
        """Whether the own lease was renewed less than its TTL ago, counted from the moment the renewal was sent."""
        ...

    async def replicas(self, service: str | None = None) -> list[Replica]:
        """All replicas with a live key and all written deaths, from the leader."""
        ...

    async def is_dead(self, boot: str) -> bool:
        """Whether a death is written for `boot` (leader read)."""
        ...

    async def declare_dead_if_gone(self, boot: str) -> bool:
        """Ask twice, then write the death by compare-and-set if the own lease held for one TTL meanwhile."""
        ...

"""Who is alive: one lease a process, suspicion by absence, death by a write.

Invariant: a process is dead when, and only when, `dead` stands in its key by a leader's word; between the process
that renews and the one that writes the death, compare-and-set lets exactly one win, for good.
"""

import asyncio
import logging
import os
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.bus.parting import let_go
from libs.bus.ports import Bucket, Bus, Entry, Message, Replica
from libs.bus.vitals import vitals
from libs.contracts.clock import Clock
from libs.contracts.errors import UNREADABLE, AppendConflict, BusUnavailable, PerdureError
from libs.contracts.ids import new_boot_id
from libs.contracts.leases import LeaseValue
from libs.contracts.subjects import replica_key
from libs.contracts.tools import AreYouAlive, ControlMessage, ControlReply, HowAreYou, Vitals

# A death is remembered for as long as a run may name the boot and still be picked up.
DEATH_S = 7 * 24 * 3600.0
# How long a suspect may take to say that it lives; it is asked twice.
ASK_S = 0.4
RENEWALS_PER_TTL = 3

Control = Callable[[ControlMessage], Awaitable[ControlReply]]

_VERSION = installed_version("perdure")

_log = logging.getLogger("perdure.bus")


class Registration(NamedTuple):
    """What a process says of itself. `free` and `notes`, which adds to `info`, are asked at each renewal; without the
    former all slots count as free. `silences` as in `LeaseValue`."""

    service: str
    replica: str
    slots: int
    model_configured: bool
    ttl_s: float
    info: dict[str, str]
    free: Callable[[], int] | None = None
    notes: Callable[[], dict[str, str]] | None = None
    silences: Callable[[], dict[str, float]] | None = None


@asynccontextmanager
async def register(
    bus: Bus,
    clock: Clock,
    registration: Registration,
    *,
    control: Control | None = None,
    on_death: Callable[[], None],
) -> AsyncGenerator["Lease"]:
    """Hold a lease for a fresh boot id while the context lasts, and answer on its control subject.

    `on_death` is called once, when this process reads that it was declared dead: its runs are other processes' now.
    """
    boot = new_boot_id(clock)
    bus.set_writer(boot, _VERSION)
    lease = Lease(bus, clock, registration, boot, on_death)
    answerer = _Answerer(lease, control)
    async with bus.wire.respond(bus.subjects.control(boot), answerer.answer):
        await lease.begin()
        renewing = asyncio.create_task(lease.renew_forever())
        try:
            yield lease
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            await lease.end()


class Lease:
    """`Liveness` of this process."""

    def __init__(
        self, bus: Bus, clock: Clock, registration: Registration, boot: str, on_death: Callable[[], None]
    ) -> None:
        self._bus, self._clock, self._registration = bus, clock, registration
        self._boot, self._on_death = boot, on_death
        self._bucket: Bucket = bus.bucket("leases")
        self._ttl_s = registration.ttl_s
        self._started_at = clock.now().timestamp()
        self._process_start = process_start(os.getpid()) or 0
        self._revision = 0
        self._beat = 0
        self._dead = False
        self._confirmed_at = float("-inf")
        self._heard_at = float("-inf")
        self._unbroken_since = float("inf")

    @property
    def boot(self) -> str:
        return self._boot

    def confirmed(self) -> bool:
        return not self._dead and self._clock.monotonic() - self._confirmed_at < self._ttl_s

    async def replicas(self, service: str | None = None) -> list[Replica]:
        found = [value for entry in await self._bucket.entries(replica_key("")) if (value := _decoded(entry))]
        # A death that was written over a lapsed key no longer knows the service.
        return [_replica(value) for value in found if service is None or value.service in ("", service)]

    async def is_dead(self, boot: str) -> bool:
        entry = await self._bucket.get(replica_key(boot))
        return entry is not None and _says_dead(entry)

    async def declare_dead_if_gone(self, boot: str) -> bool:
        """Ask twice, then write the death by compare-and-set if the own lease held for one TTL meanwhile."""
        for _ in range(2):
            entry = await self._bucket.get(replica_key(boot))
            if entry is not None:
                # A living key is no suspicion; a written death is final.
                return _says_dead(entry)
            if await self._answers(boot):
                return False
        if not self._held_for_one_ttl():
            # The bus itself may have been away: then nobody could renew, and absence says nothing. Ask again later.
            return False
        return await self._write_death(boot)

    def vitals(self) -> Vitals:
        return vitals(self._boot, self._started_at, self._bus.counts)

    # --- The own lease ---

    async def begin(self) -> None:
        """Write the key for the first time; declare a predecessor that is certainly gone."""
        sent = self._clock.monotonic()
        self._revision = await self._bucket.create(self._key, self._value(), ttl_s=self._ttl_s)
        self._confirm(sent)
        await self._bury_predecessors()

    async def renew_forever(self) -> None:
        interval_s = wait_s = self._ttl_s / RENEWALS_PER_TTL
        while not self._dead:
            await self._clock.sleep(wait_s)
            began = self._clock.monotonic()
            try:
                # The lease outlives one renewal that nobody answers, if the next one is not kept waiting by it.
                async with asyncio.timeout(self._ttl_s / 2):
                    await self._renew()
            except (PerdureError, TimeoutError, *UNREADABLE) as error:
                # Whatever it is: a lease that is not renewed lapses, and the others will say so.
                _log.warning("bus.lease_not_renewed", extra={"fields": {"error": repr(error)}})
            # A renewal whose answer came late must not delay the next one: the lease would lapse in between.
            wait_s = max(0.0, interval_s - (self._clock.monotonic() - began))

    async def end(self) -> None:
        """Let go at once: the own death is written over the own last value, so that nobody has to suspect it."""
        self._confirmed_at = float("-inf")
        # A process that overran its time comes here when the connection is closed already.
        if not self._dead and self._bus.connected():
            await let_go("lease", self._write_own_death())

    @property
    def is_declared_dead(self) -> bool:
        return self._dead

    async def _write_own_death(self) -> None:
        value = _encode(msgspec.structs.replace(self._lease_value(), dead=True, free=0))
        try:
            await self._bucket.update(self._key, value, self._revision, ttl_s=DEATH_S)
        except AppendConflict as conflict:
            # A renewal that was cancelled may have arrived; a death that somebody else wrote stays.
            await self._bucket.update(self._key, value, conflict.last, ttl_s=DEATH_S)

    async def _renew(self) -> None:
        # Counted from before it is sent: the server's clock of this lease starts later, never earlier.
        sent = self._clock.monotonic()
        self._beat += 1
        try:
            self._revision = await self._bucket.update(
                self._key, self._value(), self._revision, ttl_s=self._ttl_s
            )
        except AppendConflict:
            await self._recover()
            return
        self._confirm(sent)

    async def _recover(self) -> None:
        """Somebody else wrote the key, or it lapsed, or an own write that was given up has arrived."""
        sent = self._clock.monotonic()
        entry = await self._bucket.get(self._key)
        if entry is not None and _says_dead(entry):
            self._die()
            return
        try:
            if entry is None:
                # From here on the lease is a new one: it has not held without a break. (An own renewal that was given up
                # and has arrived is none: on a key that had lapsed it would have been refused.)
                self._unbroken_since = float("inf")
                _log.warning("bus.lease_lapsed", extra={"fields": {"boot": self._boot}})
                self._revision = await self._bucket.create(self._key, self._value(), ttl_s=self._ttl_s)
            else:
                self._revision = await self._bucket.update(
                    self._key, self._value(), entry.revision, ttl_s=self._ttl_s
                )
        except AppendConflict:
            # Whatever won will be read at the next renewal; until then the lease is not confirmed.
            return
        self._confirm(sent)

    def _confirm(self, sent: float) -> None:
        now = self._clock.monotonic()
        if now - self._heard_at >= self._ttl_s or sent - self._confirmed_at >= self._ttl_s:
            self._unbroken_since = now
        self._unbroken_since = min(self._unbroken_since, now)
        self._confirmed_at, self._heard_at = sent, now

    def _die(self) -> None:
        if not self._dead:
            self._dead = True
            _log.error("bus.declared_dead", extra={"fields": {"boot": self._boot}})
            self._on_death()

    def _held_for_one_ttl(self) -> bool:
        return self.confirmed() and self._clock.monotonic() - self._unbroken_since >= self._ttl_s

    @property
    def _key(self) -> str:
        return replica_key(self._boot)

    def _value(self) -> bytes:
        return _encode(self._lease_value())

    def _lease_value(self) -> LeaseValue:
        given = self._registration
        return LeaseValue(
            boot=self._boot,
            service=given.service,
            replica=given.replica,
            host=socket.gethostname(),
            pid=os.getpid(),
            process_start=self._process_start,
            slots=given.slots,
            free=given.slots if given.free is None else given.free(),
            model_configured=given.model_configured,
            beat=self._beat,
            info=given.info if given.notes is None else given.info | given.notes(),
            silences=None if given.silences is None else given.silences(),
        )

    # --- Others ---

    async def _answers(self, boot: str) -> bool:
        question = _encode(AreYouAlive(asker=self._boot))
        try:
            answer = await self._bus.wire.request(self._bus.subjects.control(boot), question, timeout_s=ASK_S)
            return msgspec.json.decode(answer, type=ControlReply).boot == boot
        except (BusUnavailable, *UNREADABLE):
            return False

    async def _write_death(self, boot: str) -> bool:
        try:
            await self._bucket.create(replica_key(boot), death_of(boot), ttl_s=DEATH_S)
        except AppendConflict:
            return await self.is_dead(boot)
        _log.warning("bus.death_written", extra={"fields": {"boot": boot}})
        return True

    async def _bury_predecessors(self) -> None:
        """An older boot of this replica on this machine whose process is gone need not be waited for."""
        for entry in await self._bucket.entries(replica_key("")):
            other = _decoded(entry)
            if other is None:
                continue
            same = (other.replica, other.service) == (self._registration.replica, self._registration.service)
            if other.dead or other.boot == self._boot or not same or other.host != socket.gethostname():
                continue
            if process_start(other.pid) == other.process_start:
                continue
            value = msgspec.structs.replace(other, dead=True, free=0)
            try:
                await self._bucket.update(entry.key, _encode(value), entry.revision, ttl_s=DEATH_S)
            except AppendConflict:
                # It renewed or lapsed this moment; the scheduler will look again.
                continue
            _log.info("bus.predecessor_buried", extra={"fields": {"boot": other.boot}})


def death_of(boot: str) -> bytes:
    """The value of a key that lapsed before its death was written: nothing is known of the process any more."""
    value = LeaseValue(
        boot=boot,
        service="",
        replica="",
        host="",
        pid=0,
        process_start=0,
        slots=0,
        free=0,
        model_configured=False,
        dead=True,
    )
    return _encode(value)


class _Answerer:
    """Answers on `<p>.ctl.<boot>`."""

    def __init__(self, lease: Lease, control: Control | None) -> None:
        self._lease, self._control = lease, control

    async def answer(self, message: Message) -> bytes:
        try:
            asked = msgspec.json.decode(message.body, type=ControlMessage)
        except UNREADABLE as error:
            raise PerdureError(f"a control message does not decode: {error}") from error
        if self._lease.is_declared_dead:
            raise PerdureError("this process was declared dead and answers nobody")
        if isinstance(asked, HowAreYou):
            return _encode(self._lease.vitals())
        if isinstance(asked, AreYouAlive) or self._control is None:
            return _encode(ControlReply(boot=self._lease.boot))
        return _encode(await self._control(asked))


def process_start(pid: int) -> int | None:
    """When a process of this machine started, in clock ticks since boot; `None` when there is none.

    Where the system does not tell (no /proc), 0 for a living process.
    """
    stat = Path(f"/proc/{pid}/stat")
    try:
        # The name of the program may contain blanks and brackets: count from the last one.
        return int(stat.read_text("utf-8", "replace").rpartition(")")[2].split()[19])
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


def _decoded(entry: Entry) -> LeaseValue | None:
    """Hosts in other languages write here too: what does not decode is nobody's lease, and no word of a death. Those who
    watch the bucket log it, once."""
    try:
        return _decoder.decode(entry.value)
    except UNREADABLE:
        return None


def _says_dead(entry: Entry) -> bool:
    value = _decoded(entry)
    return value is not None and value.dead


def _replica(value: LeaseValue) -> Replica:
    return Replica(
        boot=value.boot,
        service=value.service,
        replica=value.replica,
        host=value.host,
        pid=value.pid,
        process_start=value.process_start,
        slots=value.slots,
        free=value.free,
        model_configured=value.model_configured,
        dead=value.dead,
        info=value.info,
    )


_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(LeaseValue)

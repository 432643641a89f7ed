"""Who is alive: the liveness keys of all processes, as the leases bucket tells them.

Invariant: a missing key is only a suspicion; dead is a boot whose written death was seen. Nothing here is asked of
the server for a ticket: the watch has told before.
"""

import asyncio
from collections.abc import Callable, Iterator

import msgspec

from libs.bus.ports import Bucket
from libs.chassis.logs import get_logger
from libs.contracts.errors import UNREADABLE
from libs.contracts.leases import LeaseValue
from libs.contracts.subjects import REPLICAS
from services.scheduler.rows import Rows

# Nothing that these hold needs anybody's death: no tools, no workspaces. An executor's death matters to its runs.
HARMLESS = frozenset({"gateway", "scheduler", "executor"})
# Tickets on their way to one executor: twice what it claims at once, a second's work of a slow one.
PROMISED_MAX = 64

_log = get_logger("replicas")


class Replicas:
    """The processes of the deployment. `changed` is called when slots may have changed, `died` for written deaths."""

    def __init__(
        self, leases: Bucket, rows: Rows, *, changed: Callable[[], None], died: Callable[[LeaseValue], None]
    ) -> None:
        self._leases, self._rows = leases, rows
        self._changed, self._died = changed, died
        self._decoder = msgspec.json.Decoder(LeaseValue)
        self._alive: dict[str, LeaseValue] = {}
        self._dead: set[str] = set()
        # Boots whose key is gone and that may hold something: to be asked, and written dead if they do not answer.
        self.suspects: set[str] = set()
        self.suspected = asyncio.Event()
        self.known = asyncio.Event()

    async def watch(self) -> None:
        """Follow the bucket until cancelled."""
        async with self._leases.watch(REPLICAS) as changes:
            async for key, value in changes:
                if key == "":
                    self.known.set()
                    self._changed()
                elif value is None:
                    self._gone(key.removeprefix(REPLICAS))
                else:
                    self._told(key, value)

    def suspect_owners(self) -> None:
        """Suspect the owners of runs, if nobody knows of them: they died while no scheduler ran."""
        if self.known.is_set():
            for boot in self._rows.owners() - self._alive.keys() - self._dead:
                self.suspect(boot)

    def suspect(self, boot: str) -> None:
        """Have a boot asked."""
        if boot not in self.suspects:
            _log.info("replica.suspected", boot=boot)
            self.suspects.add(boot)
            self.suspected.set()

    def is_dead(self, boot: str) -> bool:
        return boot in self._dead

    def is_alive(self, boot: str) -> bool:
        return boot in self._alive

    def silences(self, boot: str) -> dict[str, float] | None:
        """For how long each run that it holds was silent when it last said so; `None`: nothing is known."""
        replica = self._alive.get(boot)
        return replica.silences if replica is not None else None

    def all_silences(self) -> Iterator[dict[str, float]]:
        return (replica.silences for replica in self._alive.values() if replica.silences)

    def hosts(self) -> list[str]:
        """The living processes that may run something for a run."""
        return [boot for boot, replica in self._alive.items() if replica.service not in HARMLESS]

    def free(self) -> int:
        """Slots for tickets: of the executors that live and have a model, without those taken or promised; never more
        at once than they take soon, so that a ticket that waits is a lost one, and the urgent run the next one."""
        executors = {
            boot: replica.slots
            for boot, replica in self._alive.items()
            if replica.service == "executor" and replica.model_configured
        }
        left = sum(executors.values()) - self._rows.occupied(executors.keys())
        return min(left, PROMISED_MAX * len(executors) - self._rows.promised)

    def _told(self, key: str, value: bytes) -> None:
        try:
            self._seen(self._decoder.decode(value))
        except UNREADABLE as error:
            # Of another version, or not ours: a process that cannot be read gets no tickets.
            _log.warning("replica.unreadable", key=key, message=str(error))

    def _seen(self, replica: LeaseValue) -> None:
        boot = replica.boot
        self.suspects.discard(boot)
        if not replica.dead:
            known = self._alive.get(boot)
            self._alive[boot] = replica
            if known is None or (known.slots, known.model_configured) != (
                replica.slots,
                replica.model_configured,
            ):
                self._changed()
        elif boot not in self._dead:
            # Who writes a death may not know what it was that died.
            known = self._alive.pop(boot, replica)
            self._dead.add(boot)
            self._died(known)
            self._changed()

    def _gone(self, boot: str) -> None:
        replica = self._alive.pop(boot, None)
        if boot in self._dead:
            self._dead.discard(boot)
            self._rows.exhume(boot)
        if (replica is not None and replica.service not in HARMLESS) or boot in self._rows.owners():
            self.suspect(boot)
        self._changed()

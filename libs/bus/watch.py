"""What a watch of a bucket tells: a list as the leader knows it, and the changes behind it.

Invariant: what the leader has not is never told as live, however far behind the replica is that serves the changes.
After each interruption the list is read again and the difference is told: an expiry leaves its marker for moments
only, and a bucket that was deleted leaves none.
"""

import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from libs.bus.jetstream import JetStream, Stored, is_gone
from libs.bus.ordered import Ordered
from libs.bus.ports import Entry
from libs.contracts.errors import Unavailable

# The calls of the bus are patient by themselves; this only keeps a bus that says no at once from being asked at once.
_PAUSE_S = 0.25

_log = logging.getLogger("perdure.bus")


class Listing(NamedTuple):
    """The live entries under a prefix, and the stream sequence that the list is complete up to, in the stream that was
    `created` then."""

    entries: list[Entry]
    up_to: int
    created: str


class Watch(AsyncIterator[tuple[str, bytes | None]]):
    """First every live value, then `("", None)` once, then each change (`None`: gone)."""

    def __init__(
        self,
        js: JetStream,
        stream: str,
        subject_prefix: str,
        prefix: str,
        listing: Callable[[], Awaitable[Listing]],
    ) -> None:
        self._js, self._stream, self._listing = js, stream, listing
        self._skip = len(subject_prefix)
        self._filter = f"{subject_prefix}{prefix}>"
        self._ordered: Ordered | None = None
        self._interruptions = 0
        self._caught_up = False
        # The revision of each key whose value was told and not its end.
        self._live: dict[str, int] = {}
        # Older messages say nothing that the list does not say better.
        self._up_to = 0
        self._created = ""
        self._untold: deque[tuple[str, bytes | None]] = deque()

    async def open(self) -> None:
        """Read the list and ask for what comes behind it. Raises `BusUnavailable` after the patience of a call."""
        listing = await self._listing()
        self._take(listing)
        self._ordered = Ordered(
            self._js, self._stream, self._filter, listing.up_to + 1, created=listing.created
        )
        await self._ordered.open()

    async def close(self) -> None:
        if self._ordered is not None:
            await self._ordered.close()

    async def __anext__(self) -> tuple[str, bytes | None]:
        ordered = self._ordered
        assert ordered is not None
        while True:
            if self._untold:
                return self._untold.popleft()
            if not self._caught_up:
                self._caught_up = True
                return "", None
            if self._interruptions != ordered.interruptions:
                await self._list_again(ordered.interruptions)
                continue
            stored = await ordered.step()
            if stored is not None:
                ordered.drop()
                self._change(stored)

    async def _list_again(self, interruptions: int) -> None:
        try:
            listing = await self._listing()
        except Unavailable as error:
            fields = {"stream": self._stream, "error": error.message}
            _log.warning("bus.watch_waits", extra={"fields": fields})
            await self._js.clock.sleep(_PAUSE_S)
            return
        self._interruptions = interruptions
        self._take(listing)

    def _take(self, listing: Listing) -> None:
        now = {entry.key: entry.revision for entry in listing.entries}
        # The revisions of a bucket that was made anew say nothing about the former one's.
        told = self._live if listing.created == self._created else {}
        self._untold += ((key, None) for key in self._live if key not in now)
        self._untold += (
            (entry.key, entry.value) for entry in listing.entries if told.get(entry.key) != entry.revision
        )
        self._live, self._up_to, self._created = now, listing.up_to, listing.created

    def _change(self, stored: Stored) -> None:
        key = stored.subject[self._skip :]
        if stored.sequence <= max(self._up_to, self._live.get(key, 0)):
            return
        if not is_gone(stored):
            self._live[key] = stored.sequence
            self._untold.append((key, stored.body))
        elif self._live.pop(key, None) is not None:
            self._untold.append((key, None))

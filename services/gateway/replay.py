"""What a run's log holds, in pieces that many clients share.

Invariant: memory is bounded by the budget below, not by the length of a run or the number of its readers; pieces that
were evicted are read again.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from libs.bus.checkpoints import Checkpoints, Index, place_before
from libs.bus.ports import Log, LogKey
from libs.contracts.envelope import Record
from services.gateway.frames import Shown, shown_events

# One piece: a few socket buffers, so that a slow client holds little.
PIECE_BYTES_MAX = 256 * 1024
PIECE_EVENTS_MAX = 512
# What is kept of one run for the next clients that replay it.
KEPT_BYTES_MAX = 2 * 1024 * 1024
# A shorter log is read from its start: that costs less than asking for its checkpoint.
INDEXED_FROM = 256


class Piece(NamedTuple):
    """Consecutive events; the next piece begins behind stream sequence `position`."""

    events: tuple[Shown, ...]
    position: int
    size: int


class Replay:
    """The stored events of one run."""

    def __init__(self, log: Log, checkpoints: Checkpoints, key: LogKey, chars_max: int) -> None:
        self._log, self._checkpoints, self._key, self._chars_max = log, checkpoints, key, chars_max
        self._kept: OrderedDict[int, Piece] = OrderedDict()
        self._kept_bytes = 0
        self._index: Index | None = None
        self._reading = asyncio.Lock()

    async def start(self, sequence: int) -> int:
        """A stream sequence to read behind, so that event `sequence` is among the first pieces."""
        if sequence < INDEXED_FROM:
            return 0
        if self._index is None:
            checkpoint = await self._checkpoints.load(self._key)
            self._index = checkpoint.index if checkpoint is not None else ()
        return place_before(self._index, sequence)

    async def piece(self, position: int) -> Piece:
        """The events behind `position`; empty when there are none. Concurrent readers share one read."""
        async with self._reading:
            kept = self._kept.get(position)
            if kept is not None:
                self._kept.move_to_end(position)
                return kept
            # A page of the log at a time: a run of ten thousand events is never held whole.
            pieces = _pieces(position, await self._log.page(self._key, position), self._chars_max)
            # The last ones first: should not all fit, the first ones stay, and they are asked for next.
            for start, piece in reversed(pieces):
                self._keep(start, piece)
        return pieces[0][1] if pieces else Piece((), position, 0)

    def _keep(self, start: int, piece: Piece) -> None:
        self._kept_bytes += piece.size - (self._kept.pop(start).size if start in self._kept else 0)
        self._kept[start] = piece
        while self._kept_bytes > KEPT_BYTES_MAX:
            _, evicted = self._kept.popitem(last=False)
            self._kept_bytes -= evicted.size


def _pieces(position: int, records: Sequence[Record], chars_max: int) -> list[tuple[int, Piece]]:
    """The records cut into pieces, each with the position that it begins behind."""
    pieces: list[tuple[int, Piece]] = []
    events: list[Shown] = []
    start, size = position, 0
    for record in records:
        added = shown_events(record, chars_max)
        weight = sum(len(event.data) for event in added)
        if events and (size + weight > PIECE_BYTES_MAX or len(events) + len(added) > PIECE_EVENTS_MAX):
            pieces.append((start, Piece(tuple(events), position, size)))
            events, start, size = [], position, 0
        events += added
        size += weight
        position = record.header.stream_sequence
    if position > start:
        pieces.append((start, Piece(tuple(events), position, size)))
    return pieces

"""Keeps a tally of all logs: read when somebody asks, kept in a file so that a restart goes on where it stopped.

Invariant: the counts and the places up to which they stand are written in one file in one go, so no crash counts a
record twice or leaves one out; what the file says of another log is not believed. Nobody who asks costs nothing.
"""

import asyncio
import logging
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import msgspec

from libs.bus.counts import Extent
from libs.bus.ports import Log
from libs.contracts.errors import Unavailable
from libs.projection.tally import Key, OpenRun, Tally

# Raise it with every change of what is counted: older files are counted anew, from the logs that are still there.
VERSION = 1
# How long one who asks waits for the counting: half of what a collector waits for its answer (10 s). After a pause the
# rest is counted over several questions.
CATCH_UP_S = 5.0

_log = logging.getLogger("perdure.projection")


class _Place(msgspec.Struct, frozen=True):
    made_at: str
    last: int


class _Kept(msgspec.Struct, frozen=True):
    version: int
    places: dict[str, _Place]
    counts: list[tuple[list[str], float]]
    runs: dict[str, OpenRun]


class Counted(NamedTuple):
    """The counts, the runs that have not ended by tenant and status, and by shard how many sequences of the stream are
    not looked at yet. `reached`: whether the bus answered."""

    counts: dict[Key, float]
    open: Counter[tuple[str, str]]
    behind: dict[int, int]
    reached: bool


class Tallies:
    """The tally of one gateway."""

    def __init__(self, log: Log, path: Path, *, shards: int) -> None:
        self._log, self._path, self._shards = log, path, shards
        self._tally = Tally()
        self._places: dict[int, _Place] = {}
        self._extents: dict[int, Extent] = {}
        self._turn = asyncio.Lock()
        self._opened = False

    async def current(self) -> Counted:
        """What is counted by now. During an outage of the bus: what was counted before."""
        async with self._turn:
            if not self._opened:
                await asyncio.to_thread(self._open)
                self._opened = True
            reached = True
            before = dict(self._places)
            try:
                async with asyncio.timeout(CATCH_UP_S):
                    await self._catch_up()
            except TimeoutError:
                _log.info("tally.behind", extra={"fields": {"places": str(self._behind())}})
            except Unavailable as error:
                _log.warning("tally.stands", extra={"fields": {"error": error.message}})
                reached = False
            if before != self._places:
                await asyncio.to_thread(self._keep, self._encoded())
            runs = Counter((run.tenant, run.status) for run in self._tally.open.values())
            return Counted(dict(self._tally.counts), runs, self._behind(), reached)

    async def _catch_up(self) -> None:
        for shard in range(self._shards):
            extent = await self._log.extent(shard)
            self._extents[shard] = extent
            place = self._places.get(shard)
            if place is not None and place.made_at != extent.made_at:
                # Another log: nothing that was counted is true of it.
                self._tally, self._places = Tally(), {}
            after = self._places.get(shard, _Place(extent.made_at, 0)).last
            while after < extent.last:
                records = await self._log.across(shard, after)
                if not records:
                    break
                for record in records:
                    self._tally.take(record)
                after = records[-1].header.stream_sequence
                self._places[shard] = _Place(extent.made_at, after)

    def _behind(self) -> dict[int, int]:
        nowhere = _Place("", 0)
        return {
            shard: max(0, extent.last - self._places.get(shard, nowhere).last)
            for shard, extent in self._extents.items()
        }

    # --- The file ---

    def _open(self) -> None:
        try:
            kept = msgspec.json.decode(self._path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return
        except (OSError, msgspec.MsgspecError) as error:
            _log.warning("tally.unreadable", extra={"fields": {"file": str(self._path), "error": str(error)}})
            return
        if kept.version == VERSION:
            counts: dict[Key, float] = {tuple(key): number for key, number in kept.counts}
            self._tally = Tally(counts, kept.runs)
            self._places = {int(shard): place for shard, place in kept.places.items()}

    def _encoded(self) -> bytes:
        return msgspec.json.encode(
            _Kept(
                version=VERSION,
                places={str(shard): place for shard, place in self._places.items()},
                counts=[(list(key), number) for key, number in self._tally.counts.items()],
                runs=self._tally.open,
            )
        )

    def _keep(self, data: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh.write_bytes(data)
            fresh.replace(self._path)
        except OSError as error:
            # A full disk: the next one who asks counts the same records again, from the older file after a restart.
            _log.warning("tally.unkept", extra={"fields": {"file": str(self._path), "error": str(error)}})

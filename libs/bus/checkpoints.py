"""Checkpoints: folds kept beside the log, so that a long run is not folded from its beginning each time.

Invariant: a checkpoint is a cache. It counts only if the log holds the message id that it names at the stream sequence
that it names and the fold's version is this one's; it is written from acknowledged records only.
"""

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from libs.bus.history import blob_name
from libs.bus.ports import Blobs, Bucket, Log, LogKey
from libs.contracts.envelope import Event, Record, RecordHeader
from libs.contracts.errors import UNREADABLE, BusUnavailable
from libs.contracts.evolve import evolve
from libs.contracts.evolve_project import evolve_project
from libs.contracts.project import PROJECT_FOLD_VERSION, ProjectState
from libs.contracts.run import FOLD_VERSION, RunState
from libs.contracts.schedule import SCHEDULE_FOLD_VERSION, ScheduleState, evolve_schedule
from libs.contracts.subjects import checkpoint_key

# A larger one becomes a blob: the bucket's stream takes no message over the server's 1 MiB.
CHECKPOINT_BYTES_MAX = 512 * 1024
# A public sequence is paired with its stream sequence once in about so many: less than a page of the log.
INDEX_EVENTS = 128
# A longer index is thinned to every second pair, and its later pairs lie twice as far apart: it stays at some 12 KB
# however old the log, and leads to within a part in 256 of its length.
INDEX_PAIRS_MAX = 512

_log = logging.getLogger("perdure.bus")


class State(Protocol):
    """What every folded state says of its log. `status` stands in the headers of its records."""

    @property
    def tenant(self) -> str: ...
    @property
    def log_id(self) -> str: ...
    @property
    def sequence(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def deleted(self) -> bool: ...


S = TypeVar("S", bound=State)


# Pairs of the public sequence that a record begins with and its stream sequence, in order: so that reading from the
# middle of a long log begins near it.
Index: TypeAlias = tuple[tuple[int, int], ...]


class FoldedLog(NamedTuple, Generic[S]):
    """A log as read: its state, the stream sequence and message id of the last record in it, and its sparse index."""

    state: S
    last: int
    message_id: str
    places: Index = ()

    def then(self, state: S, header: RecordHeader) -> "FoldedLog[S]":
        """The log with one record more, whose fold is `state`."""
        places = indexed(self.places, header)
        return FoldedLog(state, header.stream_sequence, header.message_id, places)


def indexed(index: Index, header: RecordHeader) -> Index:
    """The index once this record lies behind it. It follows from the log alone, wherever folding began."""
    newest = index[-1][0] if index else 1
    if header.first - newest < _apart(index):
        return index
    index = (*index, (header.first, header.stream_sequence))
    return index if len(index) < INDEX_PAIRS_MAX else index[1::2]


def _apart(index: Index) -> int:
    """How many events lie between two pairs: doubled each time the index was thinned, which its first pair tells."""
    thinned = ((index[0][0] - 1) // INDEX_EVENTS).bit_length() - 1 if index else 0
    return INDEX_EVENTS << thinned


def place_before(index: Sequence[tuple[int, int]], sequence: int) -> int:
    """A stream sequence to read behind, so that the event with this public sequence is near."""
    place = bisect_right(index, sequence, key=itemgetter(0))
    return index[place - 1][1] - 1 if place else 0


Folded: TypeAlias = FoldedLog[RunState]


class Checkpointed(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What a checkpoint key holds. It counts only if the log holds `message_id` at `last` and the fold is the same."""

    fold_version: int
    last: int
    message_id: str
    state: S
    index: Index = ()


class Fold(NamedTuple, Generic[S]):
    """How logs of one kind (`noun`) are folded. A checkpoint of another `version` is not used."""

    noun: str
    version: int
    checkpoint: "type[Checkpointed[S]]"
    evolve: Callable[[S | None, Event], S]


RUN_FOLD = Fold("run", FOLD_VERSION, Checkpointed[RunState], evolve)
PROJECT_FOLD = Fold("project", PROJECT_FOLD_VERSION, Checkpointed[ProjectState], evolve_project)
SCHEDULE_FOLD = Fold("schedule", SCHEDULE_FOLD_VERSION, Checkpointed[ScheduleState], evolve_schedule)


class Resumed(NamedTuple, Generic[S]):
    """Where folding may begin: the checkpoint (`None`: at the beginning) and all records behind it."""

    checkpoint: Checkpointed[S] | None
    behind: list[Record]


class FoldCheckpoints(Generic[S]):
    """The checkpoints of a deployment's logs of one kind."""

    def __init__(self, bucket: Bucket, blobs: Blobs, log: Log, fold: Fold[S]) -> None:
        self._bucket, self._blobs, self._log, self.fold = bucket, blobs, log, fold
        self._decoder = msgspec.json.Decoder(fold.checkpoint)

    async def load(self, key: LogKey) -> Checkpointed[S] | None:
        """The run's checkpoint if it is valid."""
        return (await self.resume(key)).checkpoint

    async def resume(self, key: LogKey) -> Resumed[S]:
        """All that a fold needs: no round trip more than the log itself takes, mostly one or two."""
        found, tail = await asyncio.gather(self._bucket.get(checkpoint_key(key.log_id)), self._log.tail(key))
        if tail is None:
            return Resumed(None, [])
        if tail.header.previous == 0:
            return Resumed(None, [tail])
        checkpoint = await self._decoded(key, found.value) if found is not None else None
        if checkpoint is None or checkpoint.fold_version != self.fold.version:
            return Resumed(None, await self._log.read(key))
        # The record that the checkpoint ends with is read again: it is the proof.
        behind = await self._log.read(key, checkpoint.last - 1)
        if behind:
            first = behind[0].header
            if (first.stream_sequence, first.message_id) == (checkpoint.last, checkpoint.message_id):
                return Resumed(checkpoint, behind[1:])
        _log.warning("bus.checkpoint_ignored", extra={"fields": {"log": key.log_id, "last": checkpoint.last}})
        return Resumed(None, await self._log.read(key))

    async def save(self, folded: FoldedLog[S]) -> None:
        """Keep a fold of acknowledged records."""
        state = folded.state
        value = _encoder.encode(
            Checkpointed(
                fold_version=self.fold.version,
                last=folded.last,
                message_id=folded.message_id,
                state=state,
                index=folded.places,
            )
        )
        if len(value) > CHECKPOINT_BYTES_MAX:
            # One name a run: the former checkpoint goes when the next one comes.
            name = blob_name(state.tenant, f"checkpoint-{state.log_id}")
            await self._blobs.put(name, value)
            value = _encoder.encode(_Elsewhere(elsewhere=name))
        await self._bucket.put(checkpoint_key(state.log_id), value)

    async def _decoded(self, key: LogKey, value: bytes) -> Checkpointed[S] | None:
        """`None` when it cannot be read: then the log is folded from its beginning, which is always right."""
        try:
            if value.startswith(b'{"elsewhere":'):
                name = msgspec.json.decode(value, type=_Elsewhere).elsewhere
                value = await self._blobs.get(name) or b""
            return self._decoder.decode(value)
        except (BusUnavailable, *UNREADABLE) as error:
            # Garbled, of another version, or being replaced this moment.
            _log.warning(
                "bus.checkpoint_unreadable", extra={"fields": {"log": key.log_id, "error": str(error)}}
            )
            return None


class Checkpoints(FoldCheckpoints[RunState]):
    """The checkpoints of runs."""

    def __init__(self, bucket: Bucket, blobs: Blobs, log: Log) -> None:
        super().__init__(bucket, blobs, log, RUN_FOLD)


class _Elsewhere(msgspec.Struct, frozen=True, kw_only=True):
    """In place of a checkpoint that is a blob: its name."""

    elsewhere: str


_encoder = msgspec.json.Encoder()

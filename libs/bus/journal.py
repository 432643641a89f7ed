"""The journal: what became of each call with an effect, by run, call and attempt.

Invariant: a key is created once, before its effect starts, by the host that will start it, and finished once by a
compare-and-set on what that host wrote; whoever finds a key adopts what it says.
"""

from typing import NamedTuple

import msgspec

from libs.bus.ports import Bucket
from libs.contracts.errors import UNREADABLE, UnreadableRecord
from libs.contracts.subjects import journal_key
from libs.contracts.tools import JournalEntry, JournalState, ToolCall


class Journaled(NamedTuple):
    """An entry as read; `revision` is what `finish` compares."""

    entry: JournalEntry
    revision: int


class Journal:
    """Typed access to the journal bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    async def read(self, run_id: str, call_id: str, attempt: int) -> Journaled | None:
        """The entry, from the leader; `None`: nobody has begun this attempt. Raises `UnreadableRecord`."""
        key = journal_key(run_id, call_id, attempt)
        found = await self._bucket.get(key)
        if found is None:
            return None
        try:
            entry = _decoder.decode(found.value)
        except UNREADABLE as error:
            raise UnreadableRecord(f"journal entry {key} does not decode: {error}") from error
        told = entry.result
        if told is None and entry.state is JournalState.FINISHED:
            raise UnreadableRecord(f"journal entry {key} is finished and has no result")
        if told is not None and (told.call_id, told.attempt) != (call_id, attempt):
            raise UnreadableRecord(f"journal entry {key} holds the result of {told.call_id}, {told.attempt}")
        return Journaled(entry, found.revision)

    async def create(self, call: ToolCall, entry: JournalEntry) -> int:
        """Begin an attempt; returns the revision. Raises `AppendConflict` when the key exists."""
        return await self._bucket.create(key_of(call), _encoder.encode(entry))

    async def finish(self, call: ToolCall, entry: JournalEntry, revision: int) -> None:
        """Put the result in the place of what stood at `revision`. Raises `AppendConflict` when that has changed."""
        await self._bucket.update(key_of(call), _encoder.encode(entry), revision)


def key_of(call: ToolCall) -> str:
    """The journal key of a call: its identity in the world."""
    return journal_key(call.run_id, call.call_id, call.attempt)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(JournalEntry)

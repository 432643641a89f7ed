"""Reading logs: complete up to the leader's tail, whatever the replicas that answer know.

Invariant: the records handed out form an unbroken chain of back pointers, or the leader itself said that there is
nothing in between. Common cases cost one round trip (nothing new, one record new, a short log read whole) or two.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import NamedTuple

from libs.bus.jetstream import (
    MULTI_SUBJECTS_MAX,
    PAGE_BYTES,
    PAGE_MESSAGES,
    JetStream,
    Page,
    Refused,
    Stored,
)
from libs.bus.ports import Blobs, Delivery, LogKey
from libs.contracts.envelope import EXPECTED_LAST, MESSAGE_ID, Record, parse_header
from libs.contracts.errors import UnreadableRecord
from libs.contracts.ids import shard_of
from libs.contracts.offload import digests, put_back
from libs.contracts.subjects import Subjects

_log = logging.getLogger("perdure.bus")


class Part(NamedTuple):
    """Records in order. `tail` is the stream sequence of the newest record that the leader knew of (0: none)."""

    records: list[Record]
    tail: int


class History:
    """Reads the logs of one deployment."""

    def __init__(self, js: JetStream, subjects: Subjects, blobs: Blobs) -> None:
        self._js, self._subjects, self._blobs = js, subjects, blobs

    async def read(self, key: LogKey, after: int) -> list[Record]:
        """All records behind `after`."""
        part = await self.part(key, after)
        records = part.records
        while part.records and records[-1].header.stream_sequence < part.tail:
            part = await self._direct_part(key, records[-1].header.stream_sequence, part.tail)
            records += part.records
        return records

    async def find(self, key: LogKey, after: int, message_id: str) -> tuple[int, int]:
        """The leader's word on all records behind `after`: the sequence of the one with this id, and of the last one.

        0 stands for "none". The bodies are not looked at.
        """
        stream, log_filter = self._place(key)
        last = after
        while (stored := await self._js.next(stream, log_filter, last + 1)) is not None:
            last = stored.sequence
            if stored.headers.get(MESSAGE_ID) == message_id:
                return last, last
        return 0, last if last > after else 0

    async def part(self, key: LogKey, after: int) -> Part:
        """The first page of the records behind `after`; empty only if the leader has none."""
        stream, log_filter = self._place(key)
        if after == 0:
            # A log that is read whole is mostly short: ask both at once.
            tail, page = await asyncio.gather(
                self._js.last(stream, log_filter), self._page(stream, log_filter, 1)
            )
            if tail is None:
                return Part([], 0)
            return await self._chained(key, after, tail.sequence, page.messages)
        tail = await self._js.last(stream, log_filter)
        if tail is None or tail.sequence <= after:
            return Part([], tail.sequence if tail is not None else 0)
        if _previous(tail) <= after:
            return Part([await self.record(tail)], tail.sequence)
        return await self._direct_part(key, after, tail.sequence)

    async def tail(self, key: LogKey) -> Record | None:
        """The newest record, from the leader."""
        stored = await self._js.last(*self._place(key))
        return await self.record(stored) if stored is not None else None

    async def tails(self, keys: Sequence[LogKey], behind: int = 0) -> tuple[dict[LogKey, int], int]:
        """The newest stream sequences behind `behind`, as any replica knows them, and how far the replicas knew.

        With a `behind`, all keys must be of one shard; the answer then holds only what changed since.
        """
        found: dict[LogKey, int] = {}
        up_to = 0
        for shard, mine in _by_shard(keys).items():
            for start in range(0, len(mine), MULTI_SUBJECTS_MAX):
                some = mine[start : start + MULTI_SUBJECTS_MAX]
                filters = [self._subjects.log_filter(key.tenant, key.log_id) for key in some]
                page = await self._lasts(
                    self._subjects.log_stream(shard), filters, behind + 1 if behind else 0
                )
                up_to = page.up_to if start == 0 else min(up_to, page.up_to)
                for stored in page.messages:
                    place = self._subjects.parse_log(stored.subject)
                    key = LogKey(place.tenant, place.log_id)
                    found[key] = max(found.get(key, 0), stored.sequence)
        return found, up_to

    async def across(self, shard: int, after: int) -> list[Record]:
        """A page of the records of all logs of a shard behind `after`, as any replica knows them, as they are stored. What
        cannot be read is left out."""
        page = await self._page(
            self._subjects.log_stream(shard), self._subjects.log_of_shard(shard), after + 1
        )
        found: list[Record] = []
        for stored in page.messages:
            try:
                found.append(record_of(self._subjects, stored))
            except UnreadableRecord as error:
                _log.warning("bus.record_left_out", extra={"fields": {"error": error.message}})
        return found

    async def bodies(self, shard: int, after: int) -> list[tuple[int, bytes]]:
        """A page of a shard's bodies behind `after`, with their sequences; empty only if the leader has none.

        The leader hands out each of them, a round trip a record: a page of a replica does not say what it lacks.
        """
        stream, log_filter = self._subjects.log_stream(shard), self._subjects.log_of_shard(shard)
        found: list[tuple[int, bytes]] = []
        size = 0
        while len(found) < PAGE_MESSAGES and size < PAGE_BYTES:
            stored = await self._js.next(stream, log_filter, after + 1)
            if stored is None:
                break
            found.append((stored.sequence, stored.body))
            after, size = stored.sequence, size + len(stored.body)
        return found

    async def record(self, stored: Stored) -> Record:
        """A stored message as a record, its moved strings fetched. Raises `UnreadableRecord`."""
        return await self.whole(record_of(self._subjects, stored))

    async def whole(self, record: Record) -> Record:
        """The record with `whole` filled when strings of it were moved out."""
        names = digests(record.body)
        if not names:
            return record
        found = {name: await self._blobs.get(blob_name(record.tenant, name)) for name in sorted(names)}
        blobs = {name: data for name, data in found.items() if data is not None}
        return record._replace(whole=put_back(record.body, blobs))

    # --- Inside ---

    def _place(self, key: LogKey) -> tuple[str, str]:
        log_filter = self._subjects.log_filter(key.tenant, key.log_id)
        return self._subjects.log_stream(shard_of(key.log_id)), log_filter

    async def _direct_part(self, key: LogKey, after: int, tail: int) -> Part:
        stream, log_filter = self._place(key)
        page = await self._page(stream, log_filter, after + 1)
        return await self._chained(key, after, tail, page.messages)

    async def _chained(self, key: LogKey, after: int, tail: int, messages: list[Stored]) -> Part:
        """The messages as a chain from `after`; the leader fills what the replica did not have."""
        stream, log_filter = self._place(key)
        records: list[Record] = []
        position = after
        for stored in messages:
            if _previous(stored) > position:
                # A gap: the replica lost it on the way, or a purge removed it. Only the leader knows which.
                first = await self._js.next(stream, log_filter, position + 1)
                if first is not None and first.sequence < stored.sequence:
                    return Part([*records, await self.record(first)], tail)
            records.append(await self.record(stored))
            position = stored.sequence
        if not records and after < tail:
            first = await self._js.next(stream, log_filter, after + 1)
            if first is not None:
                records.append(await self.record(first))
        return Part(records, tail)

    async def _page(self, stream: str, log_filter: str, sequence: int) -> Page:
        try:
            return await self._js.page(stream, log_filter, sequence)
        except Refused as refused:
            raise refused.translated() from refused

    async def _lasts(self, stream: str, filters: list[str], sequence: int) -> Page:
        try:
            return await self._js.lasts(stream, filters, sequence)
        except Refused as refused:
            raise refused.translated() from refused


def record_of(subjects: Subjects, stored: Stored) -> Record:
    """A stored message as a record. Raises `UnreadableRecord`."""
    try:
        place = subjects.parse_log(stored.subject)
    except ValueError as error:
        raise UnreadableRecord(str(error)) from error
    try:
        header = parse_header(
            stored.headers, stream_sequence=stored.sequence, record_class=place.record_class
        )
    except UnreadableRecord as error:
        error.log_id = place.log_id
        raise
    return Record(header, place.tenant, place.log_id, stored.body)


def record_in(subjects: Subjects, delivery: Delivery) -> Record:
    """The record that a queue over a log delivers, its moved strings left out. Raises `UnreadableRecord`."""
    headers, sequence = delivery.headers, delivery.stream_sequence
    return record_of(subjects, Stored(delivery.subject, sequence, headers, delivery.body))


def blob_name(tenant: str, digest: str) -> str:
    """Blobs are kept per tenant, so that nobody learns from a digest what another one stored."""
    return f"{tenant}/{digest}"


def _previous(stored: Stored) -> int:
    text = stored.headers.get(EXPECTED_LAST, "")
    return int(text) if text.isdigit() else 0


def _by_shard(keys: Sequence[LogKey]) -> dict[int, list[LogKey]]:
    shards: dict[int, list[LogKey]] = {}
    for key in keys:
        shards.setdefault(shard_of(key.log_id), []).append(key)
    return shards

"""KV buckets by their wire form (ADR-8, ADR-48): compare-and-set, expiry, markers.

Invariant: a deleted or expired key reads as absent and can be created again, whatever marker the server left in its
place; every write carries an id of its own, so a write whose answer was lost is recognised instead of repeated.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from libs.bus.jetstream import (
    MULTI_SUBJECTS_MAX,
    NO_STREAM,
    OPERATION,
    REPAIR_TRIES,
    JetStream,
    Page,
    Patience,
    Refused,
    is_gone,
)
from libs.bus.ports import Entry
from libs.bus.watch import Listing, Watch
from libs.contracts.envelope import EXPECTED_LAST, MESSAGE_ID
from libs.contracts.errors import AppendConflict, BusUnavailable, NobodyThere
from libs.contracts.streams import BucketSpec

_ROLLUP = "Nats-Rollup"
_TTL = "Nats-TTL"
# The server knows no shorter life.
TTL_S_MIN = 1.0
# A page of subjects that the leader lists at once.
_SUBJECTS_PAGE = 100_000
_TOO_MANY = 413
# A conflict although the leader shows the expected revision: a race of three nodes, over in a moment, or a marker
# that expired meanwhile.
CONFLICT_TRIES = 5


class _State(msgspec.Struct):
    last_seq: int = 0
    subjects: dict[str, int] = {}


class _StreamInfo(msgspec.Struct):
    state: _State
    created: str = ""


class ServerBucket:
    """`Bucket` over JetStream."""

    def __init__(self, js: JetStream, spec: BucketSpec) -> None:
        self._js, self._spec = js, spec
        self._stream = f"KV_{spec.name}"
        self._prefix = f"$KV.{spec.name}."

    async def get(self, key: str) -> Entry | None:
        stored = await self._js.last(self._stream, self._prefix + key)
        if stored is None or is_gone(stored):
            return None
        return Entry(key, stored.body, stored.sequence)

    async def create(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        try:
            return await self._compare_and_set(key, value, 0, self._headers(ttl_s))
        except AppendConflict as conflict:
            stored = await self._js.last(self._stream, self._prefix + key)
            if stored is not None and not is_gone(stored):
                raise
            revision = stored.sequence if stored is not None else 0
            if revision == conflict.last == 0:
                raise
        return await self._compare_and_set(key, value, revision, self._headers(ttl_s))

    async def update(self, key: str, value: bytes, revision: int, *, ttl_s: float | None = None) -> int:
        return await self._compare_and_set(key, value, revision, self._headers(ttl_s))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> int:
        return await self._write(key, value, self._headers(ttl_s))

    async def delete(self, key: str, *, revision: int | None = None) -> None:
        headers = self._headers(self._spec.marker_ttl_s) | {OPERATION: "PURGE", _ROLLUP: "sub"}
        if revision is None:
            await self._write(key, b"", headers)
        else:
            await self._compare_and_set(key, b"", revision, headers)

    async def entries(self, prefix: str = "") -> list[Entry]:
        return (await self._listing(prefix)).entries

    async def _listing(self, prefix: str) -> Listing:
        subject = f"{self._prefix}{prefix}>"
        patience = Patience(self._js.clock)
        while True:
            info = await self._info()
            up_to = info.state.last_seq
            page = await self._lasts([subject])
            # A replica that knows less than the leader did is asked again; an empty answer does not say what it knows.
            if page is None:
                entries = await self._many_entries(subject, up_to)
                if entries is not None:
                    return Listing(entries, up_to, info.created)
            elif page.up_to >= up_to or (not page.messages and await self._leader_has_none(subject)):
                return Listing(self._live(page), up_to, info.created)
            if patience.over:
                raise BusUnavailable(
                    f"the replicas of {self._stream} lag behind their leader", retry_after_s=1
                )
            await patience.pause()

    async def keys(self, prefix: str = "") -> list[str]:
        skip = len(self._prefix)
        return [subject[skip:] for subject in await self._subjects(f"{self._prefix}{prefix}>")]

    async def remove(self, prefix: str) -> None:
        query = {"filter": f"{self._prefix}{prefix}>"}
        try:
            await self._js.api_patiently(f"STREAM.PURGE.{self._stream}", query)
        except Refused as refused:
            raise refused.translated() from refused

    @asynccontextmanager
    async def watch(self, prefix: str = "") -> AsyncGenerator[AsyncIterator[tuple[str, bytes | None]]]:
        watch = Watch(self._js, self._stream, self._prefix, prefix, lambda: self._listing(prefix))
        try:
            await watch.open()
            yield watch
        finally:
            await watch.close()

    # --- Inside ---

    def _headers(self, ttl_s: float | None) -> dict[str, str]:
        headers = {MESSAGE_ID: self._js.clock.entropy(12).hex()}
        if ttl_s is not None:
            headers[_TTL] = f"{int(max(ttl_s, TTL_S_MIN) * 1000)}ms"
        return headers

    async def _write(self, key: str, value: bytes, headers: dict[str, str]) -> int:
        try:
            return (await self._js.publish_patiently(self._prefix + key, value, headers)).sequence
        except Refused as refused:
            raise refused.translated() from refused

    async def _compare_and_set(self, key: str, value: bytes, revision: int, headers: dict[str, str]) -> int:
        subject = self._prefix + key
        headers = headers | {EXPECTED_LAST: str(revision)}
        patience = Patience(self._js.clock)
        while True:
            refused: Refused | None = None
            try:
                ack = await self._js.publish(subject, value, headers, patience.try_s())
                if not ack.duplicate:
                    return ack.sequence
            except Refused as error:
                if error.kind not in {"conflict", "again"}:
                    raise error.translated() from error
                refused = error
            except NobodyThere:
                # Nothing was stored: an election, or somebody deleted the bucket.
                if patience.over:
                    raise
                if patience.tries % REPAIR_TRIES == 0:
                    await self._js.repair()
                await patience.pause()
                continue
            except BusUnavailable:
                if patience.over:
                    raise
            # A lost answer, or a conflict, perhaps with this very write: the leader knows.
            stored = await self._js.last(self._stream, subject)
            if stored is not None and stored.headers.get(MESSAGE_ID) == headers[MESSAGE_ID]:
                return stored.sequence
            newest = stored.sequence if stored is not None else 0
            if newest != revision or (refused is not None and patience.tries > CONFLICT_TRIES):
                raise AppendConflict(f"{key} is at {newest}, not at {revision}", last=newest)
            if patience.over:
                raise BusUnavailable(f"whether {key} was written is not known", retry_after_s=1)
            await patience.pause()

    async def _info(self, subject: str | None = None, offset: int = 0) -> _StreamInfo:
        query = None if subject is None else {"subjects_filter": subject, "offset": offset}
        name = f"STREAM.INFO.{self._stream}"
        try:
            answer = await self._js.api_patiently(name, query)
        except Refused as refused:
            if refused.number != NO_STREAM:
                raise refused.translated() from refused
            # Somebody deleted the bucket.
            await self._js.repair()
            answer = await self._again(name, query)
        return msgspec.json.decode(answer, type=_StreamInfo)

    async def _again(self, name: str, query: object) -> bytes:
        try:
            return await self._js.api_patiently(name, query)
        except Refused as refused:
            raise refused.translated() from refused

    async def _leader_has_none(self, subject: str) -> bool:
        return await self._js.last(self._stream, subject) is None

    async def _lasts(self, subjects: list[str]) -> Page | None:
        """`None` when there are too many for one answer."""
        try:
            return await self._js.lasts(self._stream, subjects)
        except Refused as refused:
            if refused.status_number == _TOO_MANY:
                return None
            raise refused.translated() from refused

    async def _subjects(self, subject: str) -> list[str]:
        names: list[str] = []
        while True:
            state = (await self._info(subject, len(names))).state
            names += state.subjects
            if len(state.subjects) < _SUBJECTS_PAGE:
                return names

    async def _many_entries(self, subject: str, up_to: int) -> list[Entry] | None:
        """More keys than fit one answer: the leader lists them, then they are read a handful at a time. `None` when a
        replica answered that may not have all up to there."""
        names = await self._subjects(subject)
        found: list[Entry] = []
        for start in range(0, len(names), MULTI_SUBJECTS_MAX):
            page = await self._lasts(names[start : start + MULTI_SUBJECTS_MAX])
            if page is None or page.up_to < up_to:
                return None
            found += self._live(page)
        return found

    def _live(self, page: Page) -> list[Entry]:
        skip = len(self._prefix)
        return [Entry(m.subject[skip:], m.body, m.sequence) for m in page.messages if not is_gone(m)]

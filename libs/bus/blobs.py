"""Object stores by their wire form (ADR-20): bytes of any size under a name.

Invariant: a name points only to bytes that are stored completely; what is read is compared with the digest that was
written with it. Each chunk of a writer, and the name, is stored only behind the chunk before: whoever lost one to the sweep,
having stood still for longer than a day, stores all of them anew.
"""

import asyncio
import base64
import hashlib
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from io import BufferedIOBase, BytesIO
from pathlib import Path

import msgspec

from libs.bus.jetstream import Ack, JetStream, Refused, Stored
from libs.bus.listing import subjects_of
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.envelope import EXPECTED_LAST, EXPECTED_LAST_FILTER, MESSAGE_ID
from libs.contracts.errors import UNREADABLE, BusUnavailable

# ADR-20's own size: small enough to share a connection with records.
CHUNK_BYTES = 128 * 1024
# As many store the same bytes at once as runs begin at once; whoever loses this often stores them anew.
RENEWALS_MAX = 100
# Whoever stood still for so long that the sweep took what it had stored begins anew; twice in a row is no accident.
UPLOADS_MAX = 3
_ROLLUP = "Nats-Rollup"

_log = logging.getLogger("perdure.bus")


class _Options(msgspec.Struct, omit_defaults=True):
    max_chunk_size: int = 0


class _Meta(msgspec.Struct, omit_defaults=True):
    """The description of an object, as every client of object stores reads it."""

    name: str
    bucket: str = ""
    nuid: str = ""
    size: int = 0
    mtime: str = ""
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    options: _Options | None = None


class ServerBlobs:
    """`Blobs` over JetStream."""

    def __init__(self, js: JetStream, store: str) -> None:
        self._js, self._store = js, store
        self._stream = f"OBJ_{store}"

    async def put(self, name: str, data: bytes) -> None:
        """Store under a name; what the name pointed to before is removed. An equal object is only renewed in time."""
        with BytesIO(data) as file:
            await self._put(name, file)

    async def put_file(self, name: str, path: Path) -> None:
        with await asyncio.to_thread(path.open, "rb") as file:
            await self._put(name, file)

    async def _put(self, name: str, file: BufferedIOBase) -> None:
        size, digest = await asyncio.to_thread(_measured, file)
        meta = _Meta(
            name=name,
            bucket=self._store,
            size=size,
            mtime=rfc3339(self._js.clock.now()),
            chunks=-(-size // CHUNK_BYTES),
            digest=digest,
            options=_Options(max_chunk_size=CHUNK_BYTES),
        )
        former, at = await self._former(name)
        for _ in range(RENEWALS_MAX):
            if former is None or not former.nuid or former.digest != digest:
                break
            if await self._named(meta, former.nuid, at):
                return
            # Somebody removed or renewed it this moment.
            former, at = await self._former(name)
        for _ in range(UPLOADS_MAX):
            if await self._uploaded(meta, file):
                break
            await asyncio.to_thread(file.seek, 0)
        else:
            raise BusUnavailable(
                f"object {name} of {self._store} could not be stored: somebody else removes its chunks",
                retry_after_s=1,
            )
        if former is not None and former.nuid:
            await self._purge(former.nuid)

    async def _uploaded(self, meta: _Meta, file: BufferedIOBase) -> bool:
        """Store the bytes and let the name point to them; whether nobody removed any meanwhile."""
        nuid, last = self._js.clock.entropy(12).hex(), 0
        subject = self._chunk_subject(nuid)
        for number in range(meta.chunks):
            chunk = await asyncio.to_thread(file.read, CHUNK_BYTES)
            headers = {MESSAGE_ID: f"{nuid}.{number}", EXPECTED_LAST: str(last)}
            ack = await self._published(subject, chunk, headers)
            if ack is None:
                return False
            last = ack.sequence
        return await self._named(meta, nuid, last, subject)

    async def _named(self, meta: _Meta, nuid: str, expected: int, of: str | None = None) -> bool:
        """Let a name point to these bytes, only if its newest description is `expected`, or, with `of`, the newest message there
        is. Whether it does."""
        headers = {
            MESSAGE_ID: self._js.clock.entropy(12).hex(),
            EXPECTED_LAST: str(expected),
            _ROLLUP: "sub",
        }
        if of is not None:
            headers[EXPECTED_LAST_FILTER] = of
        body = msgspec.json.encode(msgspec.structs.replace(meta, nuid=nuid))
        return await self._published(self._meta_subject(meta.name), body, headers) is not None

    async def get(self, name: str) -> bytes | None:
        with BytesIO() as file:
            return file.getvalue() if await self._get(name, file) else None

    async def get_file(self, name: str, path: Path) -> bool:
        with await asyncio.to_thread(path.open, "wb") as file:
            return await self._get(name, file)

    async def _get(self, name: str, file: BufferedIOBase) -> bool:
        meta = await self._meta(name)
        if meta is None or meta.deleted:
            return False
        size, seen = 0, hashlib.sha256()
        async for chunk in self._chunks(meta):
            size += len(chunk)
            seen.update(chunk)
            await asyncio.to_thread(file.write, chunk)
        if size != meta.size or _digest(seen.digest()) != meta.digest:
            raise BusUnavailable(
                f"object {name} of {self._store} is not complete; restore it", retry_after_s=1
            )
        return True

    async def names(self, prefix: str = "") -> list[str]:
        known = f"$O.{self._store}.M."
        subjects = await subjects_of(self._js, self._stream, f"{known}>")
        found = [base64.urlsafe_b64decode(subject.removeprefix(known)).decode() for subject in subjects]
        return sorted(name for name in found if name.startswith(prefix))

    async def remove(self, name: str) -> None:
        meta = await self._meta(name)
        if meta is None:
            return
        # The name first: it must not point to bytes that are gone.
        await self._purge_subject(self._meta_subject(name))
        if meta.nuid:
            await self._purge(meta.nuid)

    async def remove_older(self, name: str, before: datetime) -> bool:
        subject = self._meta_subject(name)
        meta, at = await self._former(name)
        if meta is None or parse_rfc3339(meta.mtime) >= before:
            return False
        # First the name loses its bytes, by compare-and-set: who stores them again meanwhile has renewed the name, or
        # stores all of them anew.
        headers = {
            MESSAGE_ID: self._js.clock.entropy(12).hex(),
            EXPECTED_LAST: str(at),
            _ROLLUP: "sub",
        }
        gone = _Meta(name=name, bucket=self._store, mtime=meta.mtime, deleted=True)
        ack = await self._published(subject, msgspec.json.encode(gone), headers)
        if ack is None:
            return False
        await self._purge_subject(subject, up_to=ack.sequence + 1)
        if meta.nuid:
            await self._purge(meta.nuid)
        return True

    async def remove_unnamed(self, before: datetime, most: int) -> int:
        known = f"$O.{self._store}.C."
        stored = await subjects_of(self._js, self._stream, f"{known}>")
        unnamed = {subject.removeprefix(known) for subject in stored}
        # Any replica's word spares most of them the questions to the leader; what it says of none is no answer.
        await self._without_named(unnamed, by_leader=False)
        old: dict[str, int] = {}
        for nuid in sorted(unnamed):
            newest = await self._js.last(self._stream, self._chunk_subject(nuid))
            if newest is not None and parse_rfc3339(newest.at) < before:
                old[nuid] = newest.sequence
            if len(old) == most:
                break
        unnamed = set(old)
        await self._without_named(unnamed, by_leader=True)
        # A writer that comes back after so long finds another message behind its last one, and begins anew. So what is not
        # named now never is. Where it was named in between, an empty chunk more is nothing.
        marked = {nuid for nuid in unnamed if await self._marked(nuid, old[nuid])}
        await self._without_named(marked, by_leader=True)
        for nuid in marked:
            await self._purge(nuid)
        return len(marked)

    async def _marked(self, nuid: str, last: int) -> bool:
        headers = {MESSAGE_ID: self._js.clock.entropy(12).hex(), EXPECTED_LAST: str(last)}
        return await self._published(self._chunk_subject(nuid), b"", headers) is not None

    async def _without_named(self, nuids: set[str], *, by_leader: bool) -> None:
        """Take those out that a name points to. In the order of the stream, where a name that is renewed meanwhile comes again:
        none is missed. Raises `Unavailable`."""
        subject, position = f"$O.{self._store}.M.>", 1
        while nuids:
            if by_leader:
                one = await self._js.next(self._stream, subject, position)
                page = [one] if one is not None else []
            else:
                page = await self._page(subject, position)
            if not page:
                return
            try:
                nuids.difference_update(_decode(stored.body).nuid for stored in page)
            except UNREADABLE as error:
                raise BusUnavailable(f"a description in {self._store} cannot be read: {error}") from error
            position = page[-1].sequence + 1

    async def _purge_subject(self, subject: str, up_to: int | None = None) -> None:
        query = {"filter": subject} if up_to is None else {"filter": subject, "seq": up_to}
        try:
            await self._js.api_patiently(f"STREAM.PURGE.{self._stream}", query)
        except Refused as refused:
            raise refused.translated() from refused

    async def _meta(self, name: str) -> _Meta | None:
        return (await self._former(name))[0]

    async def _former(self, name: str) -> tuple[_Meta | None, int]:
        """The newest description of a name, and its sequence."""
        stored = await self._js.last(self._stream, self._meta_subject(name))
        if stored is None:
            return None, 0
        return _decode(stored.body), stored.sequence

    async def _chunks(self, meta: _Meta) -> AsyncIterator[bytes]:
        """All chunks, from any replica, and from the leader where a replica lags."""
        subject = self._chunk_subject(meta.nuid)
        found, position = 0, 1
        while found < meta.chunks:
            page = await self._page(subject, position)
            if not page:
                first = await self._js.next(self._stream, subject, position)
                if first is None:
                    break
                page = [first]
            for stored in page:
                yield stored.body
            found, position = found + len(page), page[-1].sequence + 1

    async def _page(self, subject: str, position: int) -> list[Stored]:
        try:
            return (await self._js.page(self._stream, subject, position)).messages
        except Refused as refused:
            raise refused.translated() from refused

    async def _published(self, subject: str, body: bytes, headers: dict[str, str]) -> Ack | None:
        """`None` when the expected message is not the newest any more."""
        try:
            return await self._js.publish_patiently(subject, body, headers)
        except Refused as refused:
            if refused.kind == "conflict":
                return None
            raise refused.translated() from refused

    async def _purge(self, nuid: str) -> None:
        try:
            await self._js.api_patiently(
                f"STREAM.PURGE.{self._stream}", {"filter": self._chunk_subject(nuid)}
            )
        except (Refused, BusUnavailable) as error:
            # Chunks that nothing points to cost space only; the sweep finds them.
            _log.info("bus.chunks_left", extra={"fields": {"nuid": nuid, "error": error.message}})

    def _chunk_subject(self, nuid: str) -> str:
        return f"$O.{self._store}.C.{nuid}"

    def _meta_subject(self, name: str) -> str:
        return f"$O.{self._store}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


_decode = msgspec.json.Decoder(_Meta).decode


def _measured(file: BufferedIOBase) -> tuple[int, str]:
    """Size and digest of a file that is at its beginning, and will be again. Blocking."""
    seen = hashlib.sha256()
    while block := file.read(CHUNK_BYTES):
        seen.update(block)
    size = file.tell()
    file.seek(0)
    return size, _digest(seen.digest())


def _digest(sha256: bytes) -> str:
    return f"SHA-256={base64.urlsafe_b64encode(sha256).decode()}"

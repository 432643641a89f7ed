"""Object stores by their wire form (ADR-20): bytes of any size under a name.

Invariant: a name points only to bytes that are stored completely; what is read is compared with the digest that was
written with it.
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

from libs.bus.jetstream import EXPECTED_LAST, MESSAGE_ID, Ack, JetStream, Refused, Stored
from libs.bus.listing import subjects_of
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.errors import BusUnavailable

# ADR-20's own size: small enough to share a connection with records.
CHUNK_BYTES = 128 * 1024
# As many store the same bytes at once as runs begin at once; whoever loses this often stores them anew.
RENEWALS_MAX = 100
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
        nuid = self._js.clock.entropy(12).hex()
        for number in range(meta.chunks):
            chunk = await asyncio.to_thread(file.read, CHUNK_BYTES)
            await self._publish(f"$O.{self._store}.C.{nuid}", chunk, {MESSAGE_ID: f"{nuid}.{number}"})
        await self._named(meta, nuid, None)
        if former is not None and former.nuid:
            await self._purge(former.nuid)

    async def _named(self, meta: _Meta, nuid: str, expected: int | None) -> bool:
        """Let a name point to these bytes; with `expected` only if its newest description is that one. Whether it does."""
        headers = {MESSAGE_ID: self._js.clock.entropy(12).hex(), _ROLLUP: "sub"}
        if expected is not None:
            headers[EXPECTED_LAST] = str(expected)
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
        return msgspec.json.decode(stored.body, type=_Meta), stored.sequence

    async def _chunks(self, meta: _Meta) -> AsyncIterator[bytes]:
        """All chunks, from any replica, and from the leader where a replica lags."""
        subject = f"$O.{self._store}.C.{meta.nuid}"
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

    async def _publish(self, subject: str, body: bytes, headers: dict[str, str]) -> None:
        await self._published(subject, body, headers)

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
                f"STREAM.PURGE.{self._stream}", {"filter": f"$O.{self._store}.C.{nuid}"}
            )
        except (Refused, BusUnavailable) as error:
            # Chunks that nothing points to cost space only, and so do those of a writer that was killed; nobody looks for
            # them.
            _log.info("bus.chunks_left", extra={"fields": {"nuid": nuid, "error": error.message}})

    def _meta_subject(self, name: str) -> str:
        return f"$O.{self._store}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


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

"""What a server says of itself over HTTP: what it promises when it acknowledges, how much it may store, and whether it
can.

Invariant: only read, never needed to work; a server without a monitor is unknown, not bad.
"""

import asyncio
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from libs.contracts.errors import ConfigurationError

_PATIENCE_S = 5.0
_ANSWER_BYTES_MAX = 1024 * 1024
_PORT = 8222
# Of all that `/healthz` may complain of, what no patience helps with.
_CANNOT_WRITE = "write error"

T = TypeVar("T")


class Monitored(msgspec.Struct, frozen=True, kw_only=True):
    """`sync_always`: an acknowledged message is on disk. `storage_bytes_max` is the server's own limit; `ailment` what
    `ailment` said, if it was asked."""

    sync_always: bool = False
    storage_bytes_max: int = msgspec.field(default=0, name="max_storage")
    ailment: str = ""


class _JetStream(msgspec.Struct):
    config: Monitored | None = None


class _Varz(msgspec.Struct):
    jetstream: _JetStream | None = None


class _Health(msgspec.Struct):
    error: str = ""


async def look(url: str) -> Monitored:
    """Ask the monitor at `url`. Raises `ConfigurationError` when it does not answer, or has no JetStream behind it."""
    varz = await _asked(url, "/varz", _Varz)
    if varz.jetstream is None or varz.jetstream.config is None:
        raise ConfigurationError(f"the server behind {url} has no JetStream; turn it on")
    return varz.jetstream.config


async def ailment(url: str) -> str:
    """What keeps the server behind `url` from storing, in its own words; empty when nothing does.

    A stream that met a full disk is ill until the server is started again. Raises `ConfigurationError`.
    """
    said = (await _asked(url, "/healthz", _Health)).error
    return said if _CANNOT_WRITE in said else ""


async def _asked(url: str, path: str, kind: type[T]) -> T:
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            # HTTP/1.0 needs no client library.
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or _PORT, ssl=True if parts.scheme == "https" else None
            )
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
                answer = await reader.read(_ANSWER_BYTES_MAX)
                while chunk := await reader.read(_ANSWER_BYTES_MAX):
                    answer += chunk
            finally:
                writer.close()
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=kind)
    except (OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"the monitor at {url} does not answer: {error!r}; correct NATS_MONITOR_URL"
        ) from error

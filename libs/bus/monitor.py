"""What a server says of itself over HTTP: what it promises when it acknowledges, and how much it may store.

Invariant: only read, never needed to work; a server without a monitor is unknown, not bad.
"""

import asyncio
from urllib.parse import urlsplit

import msgspec

from libs.contracts.errors import ConfigurationError

_PATIENCE_S = 5.0
_ANSWER_BYTES_MAX = 1024 * 1024
_PORT = 8222


class Monitored(msgspec.Struct, frozen=True, kw_only=True):
    """`sync_always`: an acknowledged message is on disk. `storage_bytes_max` is the server's own limit."""

    sync_always: bool = False
    storage_bytes_max: int = msgspec.field(default=0, name="max_storage")


class _JetStream(msgspec.Struct):
    config: Monitored | None = None


class _Varz(msgspec.Struct):
    jetstream: _JetStream | None = None


async def look(url: str) -> Monitored:
    """Ask the monitor at `url`. Raises `ConfigurationError` when it does not answer, or has no JetStream behind it."""
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            # HTTP/1.0 needs no client library.
            reader, writer = await asyncio.open_connection(
                parts.hostname, parts.port or _PORT, ssl=True if parts.scheme == "https" else None
            )
            try:
                writer.write(f"GET /varz HTTP/1.0\r\nHost: {parts.hostname}\r\n\r\n".encode())
                answer = await reader.read(_ANSWER_BYTES_MAX)
                while chunk := await reader.read(_ANSWER_BYTES_MAX):
                    answer += chunk
            finally:
                writer.close()
        varz = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=_Varz)
    except (OSError, TimeoutError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"the monitor at {url} does not answer: {error!r}; correct NATS_MONITOR_URL"
        ) from error
    if varz.jetstream is None or varz.jetstream.config is None:
        raise ConfigurationError(f"the server behind {url} has no JetStream; turn it on")
    return varz.jetstream.config

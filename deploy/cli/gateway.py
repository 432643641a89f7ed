"""Where the commands find the gateway: `PERDURE_URL`, else where `PERDURE_HOST` and `PERDURE_PORT` make it listen; and
who asks: `PERDURE_TOKEN`, `PERDURE_OPERATOR_KEY`.

Invariant: a secret is read here and goes into the client, nowhere else.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from deploy.cli.outcome import Exit, failed, refused
from libs.chassis.addresses import address
from libs.chassis.settings import read_environment
from libs.client import PerdureClient
from libs.client.wire import DEFAULT_URL
from libs.contracts.errors import ConfigurationError, PerdureError

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def connected(*, operator: bool = False) -> PerdureClient:
    """A client of the configured gateway, an operator's if there is a key for that.

    Raises `ConfigurationError` when the address is none.
    """
    known = read_environment()
    url = url_of(known)
    try:
        address(url, ("http", "https"), DEFAULT_URL)
    except ValueError as error:
        raise ConfigurationError(f"PERDURE_URL {url!r} {error}") from error
    key = known.get("PERDURE_OPERATOR_KEY") if operator else None
    return PerdureClient(url.rstrip("/"), key or known.get("PERDURE_TOKEN") or None)


def with_client(command: Callable[[PerdureClient], Awaitable[Exit]]) -> Exit:
    """How a command over a client of the configured gateway ended; it says what was wrong with its arguments or files by
    a `ValueError` or an `OSError`."""

    async def carried_out(client: PerdureClient) -> Exit:
        async with client:
            return await command(client)

    try:
        return asyncio.run(carried_out(connected()))
    except ConfigurationError as error:
        return refused(error.message)
    except (ValueError, OSError) as error:
        return refused(str(error))
    except PerdureError as error:
        return failed(error)


def url_of(known: Mapping[str, str]) -> str:
    """The gateway's address, as these settings tell it."""
    if url := known.get("PERDURE_URL"):
        return url
    host, port = known.get("PERDURE_HOST") or "127.0.0.1", known.get("PERDURE_PORT") or "8000"
    if port == "0":
        # Any free port: only its `ready` line tells which.
        return DEFAULT_URL
    # A gateway that listens on every address is reached on the loopback.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_here(known: Mapping[str, str]) -> bool:
    """Whether the gateway runs on this machine, as far as its address tells."""
    return urlsplit(url_of(known)).hostname in _LOOPBACK

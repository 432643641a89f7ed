"""Addresses in settings: what is none is refused before anything waits for it.

Invariant: a message says how an address is written and never repeats one, because it may hold a password.
"""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

# No websockets: the client is started without them (libs/bus/__init__.py).
_BUS_SCHEMES = ("nats", "tls")


def address(value: str, schemes: Sequence[str], example: str) -> str:
    """`value`, which has one of the schemes and a host. Raises `ValueError`."""
    if not _is_address(value, schemes):
        raise ValueError(f"is no address; write it as {example}")
    return value


def bus_addresses(value: str) -> str:
    """One or several servers, separated by commas; a server may be a bare `host:port`. Raises `ValueError`."""
    for part in value.split(","):
        place = part.strip()
        whole = place if "://" in place or place.count(":") != 1 else f"nats://{place}"
        if not _is_address(whole, _BUS_SCHEMES):
            raise ValueError("is no address of a NATS server; write it as nats://127.0.0.1:4222")
    return value


def without_secrets(urls: str) -> str:
    """The addresses without the user and password that an address may carry."""
    return ",".join(
        f"{head}{slashes}{rest.rpartition('@')[2]}"
        for head, slashes, rest in (_split(url.strip()) for url in urls.split(","))
    )


def _split(url: str) -> tuple[str, str, str]:
    head, slashes, rest = url.partition("://")
    return (head, slashes, rest) if slashes else ("", "", url)


def _is_address(value: str, schemes: Sequence[str]) -> bool:
    try:
        parts = urlsplit(value)
        usable = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return usable and parts.scheme in schemes and bool(parts.hostname) and not any(map(str.isspace, value))


def _http(value: str) -> str:
    return address(value, ("http", "https"), "https://host/path")


def _http_list(value: str) -> str:
    for part in value.split(","):
        _http(part.strip())
    return value


Http = Annotated[str, AfterValidator(_http)]
# One for each server of a cluster, separated by commas.
HttpList = Annotated[str, AfterValidator(_http_list)]

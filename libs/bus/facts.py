"""What the server says about itself and about the streams of a deployment, for whoever examines it.

Invariant: only read; what is missing is a fact too, not an error.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from libs.bus.counts import Backlog
from libs.bus.jetstream import NO_STREAM, JetStream, Refused
from libs.contracts.clock import parse_rfc3339


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the account; -1 is none."""

    storage_bytes_max: int = msgspec.field(default=-1, name="max_storage")
    streams_max: int = msgspec.field(default=-1, name="max_streams")
    consumers_max: int = msgspec.field(default=-1, name="max_consumers")


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """What the account of this connection uses of JetStream."""

    storage_bytes: int = msgspec.field(default=0, name="storage")
    streams: int = 0
    consumers: int = 0
    limits: Limits = Limits()


class StreamFacts(NamedTuple):
    """A stream as its leader describes it; `behind` are replicas that are offline or not current."""

    name: str
    replicas: int
    messages: int
    size_bytes: int
    behind: tuple[str, ...]


class ServerFacts(NamedTuple):
    """`server_time` was read between `asked_s` and `answered_s` of this process's monotonic clock, at `asked_at` of its
    wall clock; `None` without any stream to ask about."""

    version: tuple[int, int, int]
    message_bytes_max: int
    account: Account
    streams: list[StreamFacts]
    missing: list[str]
    server_time: datetime | None
    asked_at: datetime
    round_trip_s: float


class _Peer(msgspec.Struct):
    name: str = ""
    current: bool = True
    offline: bool = False


class _Cluster(msgspec.Struct):
    replicas: list[_Peer] = []


class _Config(msgspec.Struct):
    num_replicas: int = 1


class _State(msgspec.Struct):
    messages: int = 0
    size_bytes: int = msgspec.field(default=0, name="bytes")


class _Info(msgspec.Struct):
    config: _Config
    state: _State
    cluster: _Cluster = msgspec.field(default_factory=_Cluster)
    ts: str | None = None


class _Consumer(msgspec.Struct):
    name: str
    num_pending: int = 0
    num_ack_pending: int = 0
    num_redelivered: int = 0


class _Consumers(msgspec.Struct):
    total: int = 0
    consumers: list[_Consumer] = []


async def examine(js: JetStream, names: Sequence[str]) -> ServerFacts:
    """Ask about the account and the streams `names`. Raises `BusUnavailable` when nobody answers for JetStream."""
    try:
        account = msgspec.json.decode(await js.api_patiently("INFO"), type=Account)
        found: list[StreamFacts] = []
        missing: list[str] = []
        server_time, asked_at, round_trip_s = None, js.clock.now(), 0.0
        for name in names:
            before_s, before = js.clock.monotonic(), js.clock.now()
            info = await _info(js, name)
            if info is None:
                missing.append(name)
                continue
            behind = tuple(peer.name for peer in info.cluster.replicas if peer.offline or not peer.current)
            found.append(
                StreamFacts(
                    name, info.config.num_replicas, info.state.messages, info.state.size_bytes, behind
                )
            )
            took_s = js.clock.monotonic() - before_s
            # The quickest answer tells the time best.
            if info.ts is not None and (server_time is None or took_s < round_trip_s):
                server_time, asked_at, round_trip_s = parse_rfc3339(info.ts), before, took_s
    except Refused as refused:
        raise refused.translated() from refused
    link = js.link
    return ServerFacts(
        version=link.server_version,
        message_bytes_max=link.message_bytes_max,
        account=account,
        streams=found,
        missing=missing,
        server_time=server_time,
        asked_at=asked_at,
        round_trip_s=round_trip_s,
    )


async def backlogs(js: JetStream, names: Sequence[str]) -> list[Backlog]:
    """What waits at each durable consumer of the streams `names`; what is missing has none. Raises `Unavailable`."""
    found: list[Backlog] = []
    for name in names:
        while True:
            offset = sum(one.stream == name for one in found)
            try:
                answer = await js.api_patiently(f"CONSUMER.LIST.{name}", {"offset": offset})
            except Refused as refused:
                if refused.number == NO_STREAM:
                    break
                raise refused.translated() from refused
            page = msgspec.json.decode(answer, type=_Consumers)
            found += (
                Backlog(name, one.name, one.num_pending, one.num_ack_pending, one.num_redelivered)
                for one in page.consumers
            )
            if offset + len(page.consumers) >= page.total or not page.consumers:
                break
    return found


async def _info(js: JetStream, name: str) -> _Info | None:
    try:
        return msgspec.json.decode(await js.api_patiently(f"STREAM.INFO.{name}"), type=_Info)
    except Refused as refused:
        if refused.number == NO_STREAM:
            return None
        raise

"""Streams and buckets on the server: created as `libs/contracts/streams.py` declares them, or verified against it.

Invariant: any number of processes may do this at the same time and again; a stream is never made smaller, less
durable or less replicated by it, and what cannot be changed is refused with the difference.
"""

import asyncio
import logging
from typing import cast

import msgspec

from libs.bus.jetstream import NO_STREAM, JetStream, Patience, Refused
from libs.bus.monitor import look
from libs.contracts.errors import BusUnavailable, ConfigurationError
from libs.contracts.streams import (
    SERVER_VERSION_MIN,
    BucketSpec,
    ConsumerSpec,
    StoreSpec,
    StreamSpec,
    buckets,
    stores,
    streams,
)
from libs.contracts.subjects import Subjects

Config = dict[str, object]

# Differences that the server lets nobody change, or that would lose data if it did.
_FIXED = frozenset({"retention", "storage", "name"})
# Switches that can be turned on later and never off.
_ONE_WAY = frozenset({"deny_delete", "allow_msg_ttl", "allow_msg_schedules"})
_EXISTS = 10058
# Many callers find the same stream missing at once; one of them repairs.
REPAIR_PAUSE_S = 1.0

_log = logging.getLogger("perdure.bus")


class _StreamInfo(msgspec.Struct):
    config: Config
    created: str = ""


class Topology:
    """What a deployment needs on its server."""

    def __init__(self, js: JetStream, subjects: Subjects, *, replicas: int, shards: int) -> None:
        self._js = js
        self._replicas = replicas
        self._logs = {subjects.log_stream(shard) for shard in range(shards)}
        self._configs = [
            *(stream_config(spec, replicas) for spec in streams(subjects, shards)),
            *(bucket_config(spec, replicas) for spec in buckets(subjects)),
            *(store_config(spec, replicas) for spec in stores(subjects)),
        ]
        self._repairing = asyncio.Lock()
        self._repaired_at = float("-inf")

    @property
    def names(self) -> list[str]:
        """The names of all streams, those of buckets and stores included."""
        return [str(config["name"]) for config in self._configs]

    async def ensure(self) -> None:
        """Create what is missing, verify the rest. Raises `ConfigurationError` on what it may not change."""
        version = self._js.link.server_version
        if version < SERVER_VERSION_MIN:
            raise ConfigurationError(
                f"the NATS server is version {_dotted(version)}, Perdure needs {_dotted(SERVER_VERSION_MIN)} or newer; "
                "upgrade it"
            )
        # One after the other: five processes do this at once when a machine starts, the server is busy enough.
        for config in self._configs:
            await self._ensure_stream(config)

    async def repair(self) -> None:
        """Create again what somebody deleted under load; called by whoever finds a stream missing.

        Never a log: one that is gone is a loss, and an empty one in its place would hide it.
        """
        async with self._repairing:
            if self._js.clock.monotonic() - self._repaired_at < REPAIR_PAUSE_S:
                return
            made = [
                str(config["name"])
                for config in self._configs
                if config["name"] not in self._logs and await self._ensure_stream(config)
            ]
            if made:
                _log.warning("bus.topology_repaired", extra={"fields": {"streams": made}})
            self._repaired_at = self._js.clock.monotonic()

    async def _ensure_stream(self, wanted: Config) -> bool:
        """Whether it was missing, and this call made it."""
        name = str(wanted["name"])
        patience = Patience(self._js.clock)
        while True:
            try:
                info = msgspec.json.decode(
                    await self._js.api_patiently(f"STREAM.INFO.{name}"), type=_StreamInfo
                )
            except Refused as refused:
                if refused.number != NO_STREAM:
                    raise ConfigurationError(f"cannot look at {name}: {refused.message}") from refused
                if await self._created(name, wanted):
                    return True
            else:
                change = _difference(name, info.config, wanted)
                if change:
                    await self._update(name, info.config | change)
                return False
            if patience.over:
                raise BusUnavailable(f"stream {name} can neither be read nor created; is the cluster whole?")
            await patience.pause()

    async def _created(self, name: str, wanted: Config) -> bool:
        """Whether this call made it; if not, somebody else may have."""
        try:
            await self._js.api_patiently(f"STREAM.CREATE.{name}", wanted)
        except Refused as refused:
            if refused.number == _EXISTS:
                return False
            raise ConfigurationError(f"the server refuses stream {name}: {refused.message}") from refused
        return True

    async def _update(self, name: str, config: Config) -> None:
        try:
            await self._js.api_patiently(f"STREAM.UPDATE.{name}", config)
        except Refused as refused:
            raise ConfigurationError(f"stream {name} cannot be changed: {refused.message}") from refused
        _log.info("bus.stream_updated", extra={"fields": {"stream": name}})


async def check_durability(monitor_url: str | None, *, allow_lazy: bool) -> None:
    """Refuse a server that acknowledges before it is on disk, where its monitor can be read.

    Without a monitor address the durability of a foreign server is unknown; that is logged, not refused.
    """
    if monitor_url is None:
        _log.warning("bus.durability_unknown", extra={"fields": {"hint": "set NATS_MONITOR_URL"}})
        return
    away: list[ConfigurationError] = []
    urls = [url.strip() for url in monitor_url.split(",")]
    for url in urls:
        try:
            server = await look(url)
        except ConfigurationError as error:
            # A cluster that has lost a server must still let services start.
            _log.warning("bus.durability_unknown", extra={"fields": {"hint": error.message}})
            away.append(error)
            continue
        if server.sync_always:
            continue
        if not allow_lazy:
            raise ConfigurationError(
                f"the server behind {url} acknowledges before it is on disk; set `sync_interval: always` in its "
                "jetstream block, or accept the loss with PERDURE_ALLOW_LAZY_SYNC=true"
            )
        _log.warning("bus.lazy_sync_allowed", extra={"fields": {"monitor": url}})
    if len(away) == len(urls):
        raise away[0]


def stream_config(spec: StreamSpec, replicas: int) -> Config:
    """A stream as the server's API writes it. Every field that matters is named, so that it is verified too."""
    config: Config = {
        "name": spec.name,
        "subjects": list(spec.subjects),
        "retention": spec.retention,
        "discard": spec.discard,
        "storage": "file",
        "max_msgs": spec.messages_max if spec.messages_max is not None else -1,
        "max_msg_size": spec.message_bytes_max,
        "max_age": (spec.age_max_s or 0) * 1_000_000_000,
        "num_replicas": replicas,
        "duplicate_window": spec.duplicate_window_s * 1_000_000_000,
        "allow_direct": spec.direct,
        "deny_delete": spec.deny_delete,
        "allow_msg_ttl": spec.message_ttl,
        "allow_msg_schedules": spec.schedules,
        "allow_rollup_hdrs": spec.schedules,
        "metadata": {"perdure.why": spec.why},
    }
    if spec.republish is not None:
        config["republish"] = {"src": spec.republish[0], "dest": spec.republish[1]}
    return config


def bucket_config(spec: BucketSpec, replicas: int) -> Config:
    """A KV bucket (ADR-8) with a history of one; single keys expire (ADR-48)."""
    return {
        "name": f"KV_{spec.name}",
        "subjects": [f"$KV.{spec.name}.>"],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "max_msgs_per_subject": 1,
        "num_replicas": replicas,
        "allow_direct": True,
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_msg_ttl": spec.marker_ttl_s is not None,
        "subject_delete_marker_ttl": (spec.marker_ttl_s or 0) * 1_000_000_000,
        "metadata": {"perdure.why": spec.why},
    }


def store_config(spec: StoreSpec, replicas: int) -> Config:
    """An object store (ADR-20)."""
    return {
        "name": f"OBJ_{spec.name}",
        "subjects": [f"$O.{spec.name}.C.>", f"$O.{spec.name}.M.>"],
        "retention": "limits",
        "discard": "new",
        "storage": "file",
        "num_replicas": replicas,
        "allow_direct": True,
        "allow_rollup_hdrs": True,
        "metadata": {"perdure.why": spec.why},
    }


def consumer_config(spec: ConsumerSpec, replicas: int = 0) -> Config:
    """A durable pull consumer. Replicas 0: as many as its stream has."""
    config: Config = {
        "durable_name": spec.name,
        "name": spec.name,
        "ack_policy": "explicit",
        "ack_wait": int(spec.ack_wait_s * 1e9),
        "max_deliver": -1,
        "max_ack_pending": spec.ack_pending_max,
        "filter_subject": spec.filter_subject,
        "deliver_policy": "new" if spec.fresh else "all",
        "replay_policy": "instant",
        "num_replicas": replicas,
        "metadata": {"perdure.why": spec.why},
    }
    if spec.inactive_s is not None:
        config["inactive_threshold"] = int(spec.inactive_s * 1e9)
    return config


def _difference(name: str, existing: Config, wanted: Config) -> Config:
    """What has to be changed. Raises `ConfigurationError` on what must not be."""
    change: Config = {}
    for field, value in wanted.items():
        is_value = existing.get(field, _absent(value))
        if field == "metadata" or _same(is_value, value):
            continue
        fewer = (
            field == "num_replicas"
            and isinstance(is_value, int)
            and isinstance(value, int)
            and value < is_value
        )
        if fewer or field in _FIXED or (field in _ONE_WAY and not value):
            raise ConfigurationError(
                f"stream {name} exists with {field}={is_value!r}, this deployment wants {value!r}, and that cannot be "
                "changed in place; correct the setting (PERDURE_REPLICAS, PERDURE_PREFIX), or move the stream away"
            )
        change[field] = value
    return change


def _same(existing: object, wanted: object) -> bool:
    match wanted:
        case dict():
            return isinstance(existing, dict) and wanted.items() <= existing.items()
        case list():
            return isinstance(existing, list) and _texts(cast("list[object]", existing)) == _texts(
                cast("list[object]", wanted)
            )
        case _:
            return existing == wanted


def _texts(values: list[object]) -> list[str]:
    return sorted(map(str, values))


def _absent(wanted: object) -> object:
    """What the server means by leaving a field out."""
    match wanted:
        case bool():
            return False
        case int():
            return 0
        case _:
            return None


def _dotted(version: tuple[int, int, int]) -> str:
    return ".".join(map(str, version))

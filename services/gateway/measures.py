"""Takes the numbers behind the metrics: from the logs, this gateway, the bus and the processes.

Invariant: whatever does not answer in time is left out and `perdure_bus_up` says so; what this gateway knows by itself is
always there.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from libs.bus.counts import COUNTS
from libs.bus.ports import Bus, Replica
from libs.contracts.errors import UNREADABLE, BusUnavailable, Unavailable
from libs.contracts.tools import HowAreYou, Vitals
from libs.projection import tally
from libs.projection.tallies import Counted, Tallies
from services.gateway.roster import Roster
from services.gateway.traffic import BOUNDS, Durations, Traffic
from services.gateway.watch import Watches

# What a process may take to say how it is; one that is frozen is left out.
ASK_S = 1.0
# What all questions to the bus may take together, beside the counting of the logs: a collector waits 10 s in all.
ASKING_S = 3.0
# Processes that are asked: more would not fit a page that people read, nor one message each within the second.
REPLICAS_MAX = 500

_encode = msgspec.json.Encoder().encode
_vitals = msgspec.json.Decoder(Vitals)
_log = logging.getLogger("perdure.gateway")

Labels = tuple[str, ...]


class Distribution(NamedTuple):
    """A histogram: how many fell below each upper bound and above the one before, and the sum."""

    buckets: list[tuple[str, float]]
    sum: float


class Measures(NamedTuple):
    """Samples by the name of their metric."""

    numbers: dict[str, dict[Labels, float]]
    distributions: dict[str, dict[Labels, Distribution]]


class Gauges:
    """Measures one gateway and its deployment."""

    def __init__(
        self, *, bus: Bus, roster: Roster, tallies: Tallies, traffic: Traffic, watches: Watches, boot: str
    ) -> None:
        self._bus, self._roster, self._tallies = bus, roster, tallies
        self._traffic, self._watches, self._boot = traffic, watches, boot

    async def take(self) -> Measures:
        """All there is to know now."""
        counted = await self._tallies.current()
        measures = Measures({}, {})
        reached = counted.reached
        try:
            async with asyncio.timeout(ASKING_S):
                measures.numbers.update(await self._of_the_bus())
        except (TimeoutError, Unavailable) as error:
            _log.warning("metrics.bus_silent", extra={"fields": {"error": repr(error)}})
            reached = False
        _add_counted(measures, counted)
        self._add_own(measures)
        measures.numbers["perdure_bus_up"] = {(): float(reached)}
        return measures

    def _add_own(self, measures: Measures) -> None:
        requests: dict[Labels, float] = {labels: count for labels, count in self._traffic.requests.items()}  # noqa: C416 the wider key is the point
        measures.numbers["agent_http_requests_total"] = requests
        measures.numbers["agent_dropped_events_total"] = {("delta",): self._watches.lost}
        measures.numbers["agent_stream_clients"] = {(): self._watches.clients}
        measures.distributions["agent_http_request_duration_seconds"] = {
            labels: _distribution(durations) for labels, durations in self._traffic.durations.items()
        }

    async def _of_the_bus(self) -> dict[str, dict[Labels, float]]:
        replicas = await self._roster.replicas(fresh=True)
        backlogs, letters, alive = await asyncio.gather(
            self._bus.backlogs(), self._bus.letters_kept(), self._asked(replicas[:REPLICAS_MAX])
        )
        found: dict[str, dict[Labels, float]] = {}
        for one in backlogs:
            labels = (self._short(one.stream), _kind_of(one.consumer))
            _add(found, "perdure_bus_lag_messages", labels, one.pending)
            _add(found, "perdure_bus_unanswered_messages", labels, one.unanswered)
            _add(found, "perdure_bus_redelivered_messages", labels, one.again)
        for subject, number in letters.items():
            _add(found, "perdure_bus_dead_letters_kept", (self._letter_kind(subject),), number)
        for replica, told in alive:
            _add_replica(found, replica, told)
        return found

    async def _asked(self, replicas: list[Replica]) -> list[tuple[Replica, Vitals | None]]:
        return list(zip(replicas, await asyncio.gather(*map(self._ask, replicas)), strict=True))

    async def _ask(self, replica: Replica) -> Vitals | None:
        question = _encode(HowAreYou(asker=self._boot))
        try:
            answer = await self._bus.wire.request(
                self._bus.subjects.control(replica.boot), question, timeout_s=ASK_S
            )
            return _vitals.decode(answer)
        except (BusUnavailable, *UNREADABLE):
            # Frozen, going, or of a version that does not know the question.
            return None

    def _short(self, stream: str) -> str:
        return stream.removeprefix(self._bus.subjects.stream(""))

    def _letter_kind(self, subject: str) -> str:
        # `<p>.rejected.<tenant>` counts as one kind.
        _, _, rest = subject.partition(".")
        kind, _, name = rest.partition(".")
        return name if kind == "dead" else kind


def _kind_of(consumer: str) -> str:
    """The consumers of single hosts and webhooks are as many as there ever were: those of a kind count together."""
    return next((kind for kind in ("host", "hook") if consumer.startswith(f"{kind}-")), consumer)


def _add(found: dict[str, dict[Labels, float]], name: str, labels: Labels, number: float) -> None:
    samples = found.setdefault(name, {})
    samples[labels] = samples.get(labels, 0) + number


def _add_replica(found: dict[str, dict[Labels, float]], replica: Replica, told: Vitals | None) -> None:
    labels = (replica.service, replica.replica)
    values: dict[str, float | None] = {"perdure_replica_up": 1}
    if replica.slots:
        values |= {"perdure_replica_slots": replica.slots, "perdure_replica_slots_free": replica.free}
    if told is not None:
        values |= {
            "process_start_time_seconds": told.started_at,
            "process_cpu_seconds_total": told.cpu_seconds,
            "process_resident_memory_bytes": told.resident_bytes,
            "process_open_fds": told.open_files,
            **{f"perdure_bus_{name}_total": told.counts.get(name, 0) for name in COUNTS},
        }
    for name, value in values.items():
        if value is not None:
            # Two boots of one replica, while the former's lease lapses: the newer one is listed behind it.
            found.setdefault(name, {})[labels] = value


def _add_counted(measures: Measures, counted: Counted) -> None:
    seconds: dict[str, dict[str, float]] = {}
    sums: dict[str, float] = {}
    for (name, *labels), number in counted.counts.items():
        if name == tally.RUN_SECONDS:
            seconds.setdefault(labels[0], {})[labels[1]] = number
        elif name == tally.RUN_SECONDS_SUM:
            sums[labels[0]] = number
        else:
            measures.numbers.setdefault(name, {})[tuple(labels)] = number
    bounds = [*(f"{bound:g}" for bound in tally.BOUNDS), tally.BEYOND]
    measures.distributions[tally.RUN_SECONDS] = {
        (status,): Distribution([(bound, found.get(bound, 0)) for bound in bounds], sums.get(status, 0))
        for status, found in seconds.items()
    }
    measures.numbers["agent_runs_open"] = _bounded(counted.open.items())
    measures.numbers["perdure_metrics_records_behind"] = {
        (str(shard),): number for shard, number in counted.behind.items()
    }


def _bounded(samples: Iterable[tuple[tuple[str, str], int]]) -> dict[Labels, float]:
    """By tenant and status; the tenants beyond the bound together."""
    found: dict[Labels, float] = {}
    tenants: set[str] = set()
    for (tenant, status), number in samples:
        if tenant not in tenants and len(tenants) >= tally.LABELS_MAX:
            tenant = tally.OTHER
        tenants.add(tenant)
        found[tenant, status] = found.get((tenant, status), 0) + number
    return found


def _distribution(durations: Durations) -> Distribution:
    bounds = [*(f"{bound:g}" for bound in BOUNDS), tally.BEYOND]
    return Distribution(list(zip(bounds, durations.counts, strict=True)), durations.sum_s)

"""Counts of what the logs tell, for metrics: every record counted once, in the order of its shard. Pure.

Invariant: counts follow from the records alone, so any process that read the same ones has the same numbers; copied
history (of forks and imports) is not counted again. Labels that come from outside are bounded (`LABELS_MAX`).
"""

from typing import Final

import msgspec

from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Record, raw_events
from libs.contracts.errors import UNREADABLE, UnreadableRecord
from libs.contracts.ids import is_id
from libs.contracts.run import COPYING, EXPERIMENT, TERMINAL
from libs.contracts.values import RunError, Usage

# Names of counts; what each means is told in the gateway's table of metrics. Label values follow the name in a key.
RUNS_CREATED: Final = "agent_runs_created_total"  # tenant, source
RUNS: Final = "agent_runs_total"  # tenant, status
RUN_FAILURES: Final = "agent_run_failures_total"  # tenant, error_code
RUN_SECONDS: Final = "agent_run_duration_seconds"  # status, upper bound
RUN_SECONDS_SUM: Final = "agent_run_duration_seconds_sum"  # status
MODEL_CALLS: Final = "agent_model_calls_total"  # model, outcome
MODEL_TOKENS: Final = "agent_model_tokens_total"  # tenant, model, kind
MODEL_COST: Final = "agent_model_cost_usd_total"  # tenant, model
TOOL_CALLS: Final = "agent_tool_calls_total"  # tenant, tool, ok
VERDICTS: Final = "agent_verifications_total"  # status

# Upper bounds of run durations, in seconds: from a question that is answered at once to a day.
BOUNDS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 24 * 3600.0)
BEYOND = "+Inf"
# Different values of one label that comes from a tenant, a model or a provider: a table that people and a time series
# database can bear. What is beyond counts as `OTHER`.
LABELS_MAX = 200
LABEL_CHARS_MAX = 100
OTHER = "other"

Key = tuple[str, ...]

_ENDS = frozenset(status.value for status in TERMINAL)


class OpenRun(msgspec.Struct, kw_only=True):
    """A run that has not ended. `began`: when it was claimed first; `calls`: the tools of calls without a result."""

    tenant: str
    status: str
    began: str | None = None
    calls: dict[str, str] = msgspec.field(default_factory=dict[str, str])


class _Call(msgspec.Struct, frozen=True):
    call_id: str
    name: str


class _Payload(msgspec.Struct, frozen=True):
    """What is looked at of any event; each kind has some of it."""

    source: str = ""
    call_id: str = ""
    name: str = ""
    ok: bool = False
    status: str = ""
    model: str = ""
    tool_calls: list[_Call] = []
    usage: Usage | None = None
    error: RunError | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str
    at: str
    payload: msgspec.Raw


_event = msgspec.json.Decoder(_Event)
_payload = msgspec.json.Decoder(_Payload)


class Tally:
    """The counts of all records that were taken in."""

    def __init__(
        self, counts: dict[Key, float] | None = None, runs: dict[str, OpenRun] | None = None
    ) -> None:
        self.counts: dict[Key, float] = counts if counts is not None else {}
        self.open: dict[str, OpenRun] = runs if runs is not None else {}
        self._labels: dict[tuple[str, int], set[str]] = {}
        for name, *labels in self.counts:
            for place, label in enumerate(labels):
                self._labels.setdefault((name, place), set()).add(label)

    def take(self, record: Record) -> None:
        """Count one record. What this version does not understand of it is passed over."""
        if not is_id("run", record.log_id) or record.header.state in (COPYING, EXPERIMENT):
            return
        run = self.open.setdefault(record.log_id, OpenRun(tenant=record.tenant, status=record.header.state))
        run.status = record.header.state
        try:
            events = [_event.decode(raw) for _, raw in raw_events(record)]
        except (UnreadableRecord, *UNREADABLE):
            events = []
        for event in events:
            try:
                self._count(run, event)
            except (ValueError, *UNREADABLE):
                continue
        if run.status in _ENDS:
            del self.open[record.log_id]

    def _count(self, run: OpenRun, event: _Event) -> None:
        match event.type:
            case "run.created":
                self._add(RUNS_CREATED, run.tenant, _payload.decode(event.payload).source)
            case "run.claimed":
                run.began = run.began or event.at
            case "model.completed" | "model.failed" | "context.compacted":
                self._count_model(run, event)
            case "tool.requested":
                payload = _payload.decode(event.payload)
                run.calls[payload.call_id] = payload.name
            case "tool.completed":
                payload = _payload.decode(event.payload)
                tool = run.calls.pop(payload.call_id, OTHER)
                self._add(TOOL_CALLS, run.tenant, tool, "true" if payload.ok else "false")
            case "verification.completed":
                self._add(VERDICTS, _payload.decode(event.payload).status)
            case "run.completed" | "run.failed" | "run.cancelled":
                self._count_end(run, event)
            case _:
                return

    def _count_model(self, run: OpenRun, event: _Event) -> None:
        payload = _payload.decode(event.payload)
        # A call that was given no usable answer does not say by whom.
        model = payload.model or OTHER
        run.calls.update((call.call_id, call.name) for call in payload.tool_calls)
        usage = payload.usage or Usage()
        if event.type != "context.compacted" or usage.requests:
            self._add(MODEL_CALLS, model, "failed" if event.type == "model.failed" else "completed")
        for kind, tokens in (
            ("input", usage.input_tokens),
            ("cached", usage.cached_tokens),
            ("output", usage.output_tokens),
            ("reasoning", usage.reasoning_tokens),
        ):
            if tokens:
                self._add(MODEL_TOKENS, run.tenant, model, kind, by=tokens)
        if usage.cost_usd:
            self._add(MODEL_COST, run.tenant, model, by=usage.cost_usd)

    def _count_end(self, run: OpenRun, event: _Event) -> None:
        self._add(RUNS, run.tenant, run.status)
        error = _payload.decode(event.payload).error
        if error is not None:
            self._add(RUN_FAILURES, run.tenant, error.error_code)
        if run.began is None:
            return
        took_s = max(0.0, (parse_rfc3339(event.at) - parse_rfc3339(run.began)).total_seconds())
        bound = next((f"{bound:g}" for bound in BOUNDS if took_s <= bound), BEYOND)
        self._add(RUN_SECONDS, run.status, bound)
        self._add(RUN_SECONDS_SUM, run.status, by=took_s)

    def _add(self, name: str, *labels: str, by: float = 1) -> None:
        key = (name, *(self._bounded(name, place, label) for place, label in enumerate(labels)))
        self.counts[key] = self.counts.get(key, 0) + by

    def _bounded(self, name: str, place: int, label: str) -> str:
        known = self._labels.setdefault((name, place), set())
        label = label[:LABEL_CHARS_MAX]
        if label in known:
            return label
        if len(known) >= LABELS_MAX:
            return OTHER
        known.add(label)
        return label

"""Every metric in one table: its name, its labels, and what it means.

Invariant: what `/api/metrics` says and what `/api/metrics/view` explains are both made from this table. Labels are
bounded: tenants, tools and models by the tally, routes by the API, replicas by who is alive.
"""

from typing import Literal, NamedTuple

from libs.projection import tally

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """`labels` in the order of the values of its samples; `help` is for people."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


LOG = "What the logs tell"
HERE = "This gateway"
BUS = "The bus"
PROCESSES = "The processes"

# The counts of the log are those of the whole deployment, the same at every gateway: take one gateway's, do not add them.
METRICS: dict[str, tuple[Metric, ...]] = {
    LOG: (
        Metric(
            tally.RUNS_CREATED,
            "counter",
            ("tenant", "source"),
            "Runs that were made, by where they came from.",
        ),
        Metric(
            tally.RUNS,
            "counter",
            ("tenant", "status"),
            "Runs that ended, by how: COMPLETED, FAILED, CANCELLED.",
        ),
        Metric(
            tally.RUN_FAILURES, "counter", ("tenant", "error_code"), "Runs that FAILED, by their error code."
        ),
        Metric(
            tally.RUN_SECONDS,
            "histogram",
            ("status",),
            "Seconds from a run's first claim to its end, its waiting for people included.",
        ),
        Metric(
            tally.MODEL_CALLS,
            "counter",
            ("model", "outcome"),
            "Calls of models that gave a turn, or failed; retries too.",
        ),
        Metric(
            tally.MODEL_TOKENS,
            "counter",
            ("tenant", "model", "kind"),
            "Tokens as the providers count them. cached tokens are input tokens too, reasoning tokens are output tokens.",
        ),
        Metric(
            tally.MODEL_COST,
            "counter",
            ("tenant", "model"),
            "What the tokens of models with a known price cost, in USD.",
        ),
        Metric(
            tally.TOOL_CALLS,
            "counter",
            ("tenant", "tool", "ok"),
            "Calls of tools that have a result, by whether they went well.",
        ),
        Metric(
            tally.VERDICTS,
            "counter",
            ("status",),
            "Verification rounds by verdict: PASSED, FAILED, UNVERIFIED.",
        ),
        Metric(
            "agent_runs_open", "gauge", ("tenant", "status"), "Runs that have not ended, by what they do now."
        ),
        Metric(
            "perdure_metrics_records_behind",
            "gauge",
            ("shard",),
            "Records that the counts above do not hold yet. They are counted as metrics are read; 0 is usual.",
        ),
    ),
    HERE: (
        Metric(
            "agent_http_requests_total",
            "counter",
            ("method", "route", "status"),
            "Requests that this gateway answered since it began.",
        ),
        Metric(
            "agent_http_request_duration_seconds",
            "histogram",
            ("method", "route"),
            "Seconds until the answer began; of a stream until its first byte.",
        ),
        Metric(
            "agent_dropped_events_total",
            "counter",
            ("kind",),
            "Transient events that slow readers of streams lost. Stored events are never dropped.",
        ),
        Metric("agent_stream_clients", "gauge", (), "Streams that are open at this gateway."),
    ),
    BUS: (
        Metric(
            "perdure_bus_up", "gauge", (), "1 when the bus answered while these metrics were taken, else 0."
        ),
        Metric(
            "perdure_bus_lag_messages",
            "gauge",
            ("stream", "consumer"),
            "Messages of a work queue that nobody has taken yet.",
        ),
        Metric(
            "perdure_bus_unanswered_messages",
            "gauge",
            ("stream", "consumer"),
            "Messages of a work queue that somebody has and did not answer for yet.",
        ),
        Metric(
            "perdure_bus_redelivered_messages",
            "gauge",
            ("stream", "consumer"),
            "Those of them that were delivered before: their first receiver died, froze or failed.",
        ),
        Metric(
            "perdure_bus_dead_letters_kept",
            "gauge",
            ("kind",),
            "Messages that nobody could handle and that wait for an operator (GET /api/dead-letters).",
        ),
        Metric(
            "perdure_bus_appends_total",
            "counter",
            ("service", "replica"),
            "Records that a process appended to logs.",
        ),
        Metric(
            "perdure_bus_append_conflicts_total",
            "counter",
            ("service", "replica"),
            "Appends that found a record of somebody else in their place and were decided again. Some are usual.",
        ),
        Metric(
            "perdure_bus_redeliveries_total",
            "counter",
            ("service", "replica"),
            "Messages that came to a process again.",
        ),
        Metric(
            "perdure_bus_dead_letters_total",
            "counter",
            ("service", "replica"),
            "Messages that a process gave up and kept as dead letters.",
        ),
    ),
    PROCESSES: (
        Metric(
            "perdure_replica_up", "gauge", ("service", "replica"), "1 for each process whose lease is alive."
        ),
        Metric(
            "perdure_replica_slots",
            "gauge",
            ("service", "replica"),
            "Runs that an executor may hold at once.",
        ),
        Metric("perdure_replica_slots_free", "gauge", ("service", "replica"), "Those of them that are free."),
        Metric(
            "process_start_time_seconds",
            "gauge",
            ("service", "replica"),
            "When the process took its lease, in seconds since 1970.",
        ),
        Metric(
            "process_cpu_seconds_total",
            "counter",
            ("service", "replica"),
            "Processor time of the process, in seconds.",
        ),
        Metric(
            "process_resident_memory_bytes", "gauge", ("service", "replica"), "Memory that the process holds."
        ),
        Metric(
            "process_open_fds",
            "gauge",
            ("service", "replica"),
            "Files and sockets that the process has open.",
        ),
    ),
}

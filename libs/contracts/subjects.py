"""Every subject and every stream or bucket name, built here and nowhere else (contract, section 5).

Invariant: a run's log is addressed by exactly one filter string, `Subjects.log_filter`; two different filters over
one run would let the server admit two winners.
"""

import re
from typing import Literal, NamedTuple

from libs.contracts.ids import is_token, shard_of

RecordClass = Literal["life", "work"]
Priority = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")

# The second token of everything that some part of a deployment consumes.
_CONSUMED = frozenset(
    {
        "log",
        "feed",
        "live",
        "tasks",
        "work",
        "tool",
        "call",
        "ctl",
        "timer",
        "fired",
        "dead",
        "rejected",
        "hook",
    }
)
_KEY_SAFE = re.compile(r"[^A-Za-z0-9_-]")


class LogSubject(NamedTuple):
    """What the subject of a record says."""

    shard: int
    tenant: str
    log_id: str
    record_class: RecordClass


class Subjects:
    """The names of one deployment. `prefix` is `PERDURE_PREFIX`."""

    def __init__(self, prefix: str = "perdure") -> None:
        if not is_token(prefix):
            raise ValueError(f"PERDURE_PREFIX {prefix!r} must match [a-z0-9_-]{{1,64}}")
        self.prefix = prefix

    # The log and what the server derives from it.
    def log(self, tenant: str, log_id: str, record_class: RecordClass) -> str:
        return f"{self.prefix}.log.{shard_of(log_id)}.{tenant}.{log_id}.{record_class}"

    def log_filter(self, tenant: str, log_id: str) -> str:
        """The one filter over a log's prefix: for its fence, its reads and its purge alike."""
        return f"{self.prefix}.log.{shard_of(log_id)}.{tenant}.{log_id}.>"

    def log_of_shard(self, shard: int) -> str:
        return f"{self.prefix}.log.{shard}.*.*.*"

    def life_of_shard(self, shard: int) -> str:
        return f"{self.prefix}.log.{shard}.*.*.life"

    def parse_log(self, subject: str) -> LogSubject:
        """The inverse of `log`. Raises `ValueError` when the subject is not one of a log."""
        match subject.split("."):
            case [self.prefix, "log", shard, tenant, log_id, ("life" | "work") as record_class] if (
                shard.isdigit()
            ):
                return LogSubject(int(shard), tenant, log_id, record_class)
            case _:
                raise ValueError(f"{subject!r} is not the subject of a record")

    def feed(self, tenant: str, log_id: str) -> str:
        return f"{self.prefix}.feed.{tenant}.{log_id}"

    def feed_republish(self, shard: int) -> tuple[str, str]:
        """Source and destination of the server's republish rule of a log stream."""
        return (
            f"{self.prefix}.log.{shard}.*.*.*",
            f"{self.prefix}.feed.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}",
        )

    def live(self, tenant: str, run_id: str) -> str:
        return f"{self.prefix}.live.{tenant}.{run_id}"

    # Work.
    def tasks(self, tenant: str) -> str:
        return f"{self.prefix}.tasks.{tenant}"

    def all_tasks(self) -> str:
        return f"{self.prefix}.tasks.*"

    def tenant_of_task(self, subject: str) -> str:
        return subject.removeprefix(f"{self.prefix}.tasks.")

    def work(self, priority: Priority) -> str:
        return f"{self.prefix}.work.{priority}"

    def hook(self, webhook_id: str) -> str:
        return f"{self.prefix}.hook.{webhook_id}"

    def all_hooks(self) -> str:
        return f"{self.prefix}.hook.*"

    def all_work(self) -> str:
        return f"{self.prefix}.work.*"

    def tool_any(self, name: str) -> str:
        return f"{self.prefix}.tool.any.{name}"

    def tool_host(self, boot: str) -> str:
        return f"{self.prefix}.tool.host.{boot}"

    def all_tools(self) -> str:
        return f"{self.prefix}.tool.>"

    def call_host(self, boot: str) -> str:
        return f"{self.prefix}.call.host.{boot}"

    def call_look(self, boot: str) -> str:
        return f"{self.prefix}.call.look.{boot}"

    def control(self, boot: str) -> str:
        return f"{self.prefix}.ctl.{boot}"

    # Timers.
    def timer(self, run_id: str, sequence: int) -> str:
        return f"{self.prefix}.timer.{run_id}.{sequence}"

    def fired(self, run_id: str, sequence: int) -> str:
        return f"{self.prefix}.fired.{run_id}.{sequence}"

    def parse_timer(self, subject: str) -> tuple[str, int] | None:
        """The run and sequence of a timer, set or fired; `None` when the subject is not one."""
        match subject.split("."):
            case [self.prefix, "timer" | "fired", run_id, sequence] if sequence.isdigit():
                return run_id, int(sequence)
            case _:
                return None

    def all_timers(self) -> tuple[str, str]:
        return f"{self.prefix}.timer.>", f"{self.prefix}.fired.>"

    # What nobody could handle.
    def dead(self, kind: str) -> str:
        return f"{self.prefix}.dead.{kind}"

    def rejected(self, tenant: str) -> str:
        return f"{self.prefix}.rejected.{tenant}"

    def all_dead(self) -> tuple[str, str]:
        return f"{self.prefix}.dead.*", f"{self.prefix}.rejected.*"

    # Streams, buckets, stores.
    def log_stream(self, shard: int) -> str:
        return f"{self.prefix}-log-{shard}"

    def stream(self, name: str) -> str:
        """The stream, bucket or store `<prefix>-<name>`."""
        return f"{self.prefix}-{name}"


# In place of a tenant, to read the tail of a log whose tenant is not known. Never to write: the fence has one filter.
ANY_TENANT = "*"

# Keys of the buckets: a KV key is a subject token, so whatever a model or a user named is made safe first.
REPLICAS = "replica."
LEADERS = "leader."


def is_taken(subject: str, prefix: str) -> bool:
    """Whether nobody but Perdure or the server may publish there, or nobody at all: subjects of this deployment or of
    any other, the server's own, inboxes, and what is no subject to publish to."""
    tokens = subject.split(".")
    if any(not token or not token.isprintable() or {" ", "*", ">"} & set(token) for token in tokens):
        return True
    if tokens[0].startswith(("$", "_INBOX")) or tokens[0] == prefix:
        return True
    return len(tokens) > 1 and tokens[1] in _CONSUMED


def replica_key(boot: str) -> str:
    return f"{REPLICAS}{boot}"


def leader_key(shard_group: int) -> str:
    return f"{LEADERS}{shard_group}"


def journal_key(run_id: str, call_id: str, attempt: int) -> str:
    return f"{journal_prefix(run_id)}{_KEY_SAFE.sub('_', call_id)}.{attempt}"


def journal_prefix(run_id: str) -> str:
    """What all journal keys of a run begin with."""
    return f"{run_id}."


def checkpoint_key(run_id: str) -> str:
    return run_id


def catalog_key(boot: str) -> str:
    return boot


# What people registered begins with this in the bucket of webhooks; how it goes is beside it.
HOOKS = "hook."


def webhook_key(tenant: str, webhook_id: str) -> str:
    return f"{HOOKS}{tenant}.{webhook_id}"


def webhook_of(key: str) -> str:
    """The id of the webhook that a key stands for."""
    return key.rpartition(".")[2]


def webhook_state_key(webhook_id: str) -> str:
    return f"state.{webhook_id}"


def rate_key(tenant: str) -> str:
    return f"rate.{tenant}"


def starts_key(tenant: str) -> str:
    return f"starts.{tenant}"


def spending_key(day: str, tenant: str, boot: str) -> str:
    return f"{day}.{tenant}.{boot}"


def spending_of(key: str) -> tuple[str, str, str] | None:
    """The day, tenant and boot of a spending key."""
    match key.split("."):
        case [day, tenant, boot]:
            return day, tenant, boot
        case _:
            return None

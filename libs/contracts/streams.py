"""Every stream, consumer, bucket and object store, declared with the reason of each limit.

Invariant: `libs/bus/topology.py` creates exactly what stands here and verifies what exists against it; no other
module configures anything on the server.
"""

from typing import Literal, NamedTuple

from libs.contracts.envelope import RECORD_BYTES_MAX
from libs.contracts.subjects import PRIORITIES, Subjects

# The server's own limit of a message is 1 MiB, headers included; a stream takes a little less.
MESSAGE_BYTES_MAX = 1000 * 1024
HEADER_BYTES_MAX = 16 * 1024

DAY_S = 24 * 3600
# How long a tombstone keeps its key from being used again (contract, section 3).
TOMBSTONE_S = 90 * DAY_S
# The oldest server whose behaviour the bus was measured on (docs/adr/0003).
SERVER_VERSION_MIN = (2, 15, 1)


class StreamSpec(NamedTuple):
    """One stream. `None` means the server's account limit decides."""

    name: str
    subjects: tuple[str, ...]
    why: str
    retention: Literal["limits", "workqueue"] = "limits"
    discard: Literal["new", "old"] = "new"
    messages_max: int | None = None
    message_bytes_max: int = MESSAGE_BYTES_MAX
    age_max_s: int | None = None
    duplicate_window_s: int = 120
    republish: tuple[str, str] | None = None
    schedules: bool = False
    message_ttl: bool = False
    deny_delete: bool = False
    direct: bool = False


# What a receiver did not take in this time is old news: older than its last try by far.
HOOKS_KEPT_S = 3 * DAY_S


class ConsumerSpec(NamedTuple):
    """One durable pull consumer with explicit acks. `max_deliver` is unlimited: poison is folded from the log.

    A pull waits `pull_s` at the server, so an idle process costs one request in that time; for as long the server
    gives messages to a process that is frozen. A handler that is still at a message after `ack_wait_s` keeps it for
    `held_s` more, as long as its process lives; 0: it goes to another one then.
    """

    stream: str
    name: str
    filter_subject: str
    why: str
    ack_wait_s: float = 30.0
    ack_pending_max: int = 1000
    inactive_s: float | None = None
    pull_s: float = 30.0
    held_s: float = 0.0
    # Only what is stored after the consumer was made.
    fresh: bool = False


class BucketSpec(NamedTuple):
    """One KV bucket with a history of one. `marker_ttl_s` lets single keys expire."""

    name: str
    why: str
    marker_ttl_s: int | None = None


class StoreSpec(NamedTuple):
    """One object store."""

    name: str
    why: str


def log_stream(subjects: Subjects, shard: int) -> StreamSpec:
    """The truth: never expires, never drops, and only whole prefixes are ever purged."""
    return StreamSpec(
        name=subjects.log_stream(shard),
        subjects=(subjects.log_of_shard(shard),),
        why="no max_age: a suspended run may be older than any limit; discard new: wait rather than lose",
        message_bytes_max=RECORD_BYTES_MAX + HEADER_BYTES_MAX,
        republish=subjects.feed_republish(shard),
        message_ttl=True,
        deny_delete=True,
        direct=True,
    )


def streams(subjects: Subjects, shards: int = 1) -> tuple[StreamSpec, ...]:
    """All streams of a deployment with `shards` log shards."""
    return (
        *(log_stream(subjects, shard) for shard in range(shards)),
        StreamSpec(
            name=subjects.stream("tasks"),
            subjects=(subjects.all_tasks(),),
            why="a million accepted tasks is more than a week of any deployment; then publishers are told to wait",
            retention="workqueue",
            messages_max=1_000_000,
        ),
        StreamSpec(
            name=subjects.stream("work"),
            subjects=(subjects.all_work(),),
            why="tickets go out only against free slots, so this is far above all slots; window: one re-send a sweep",
            retention="workqueue",
            messages_max=100_000,
            message_bytes_max=16 * 1024,
            duplicate_window_s=20,
        ),
        StreamSpec(
            name=subjects.stream("tools"),
            subjects=(subjects.all_tools(),),
            why="one message a call in flight; a call that nobody takes is given up after its deadline",
            retention="workqueue",
            messages_max=100_000,
            age_max_s=DAY_S,
        ),
        StreamSpec(
            name=subjects.stream("timers"),
            subjects=subjects.all_timers(),
            why="at most one timer for what a run waits on; schedules need discard old (ADR-51), the sweep restores any",
            retention="workqueue",
            discard="old",
            messages_max=1_000_000,
            message_bytes_max=16 * 1024,
            schedules=True,
            message_ttl=True,
        ),
        StreamSpec(
            name=subjects.stream("hooks"),
            subjects=(subjects.all_hooks(),),
            why="what waits for receivers of webhooks; the oldest go when one that is down lets a million events wait",
            retention="workqueue",
            discard="old",
            messages_max=1_000_000,
            age_max_s=HOOKS_KEPT_S,
        ),
        StreamSpec(
            name=subjects.stream("dead"),
            subjects=subjects.all_dead(),
            why="kept for people; the oldest go when a hundred thousand wait, a flood must not stop the runs",
            discard="old",
            messages_max=100_000,
            direct=True,
        ),
    )


def tickets(subjects: Subjects) -> tuple[ConsumerSpec, ...]:
    """One consumer a priority, so that pulling the higher first is all that priority takes."""
    return tuple(
        ConsumerSpec(
            stream=subjects.stream("work"),
            name=f"executors-{priority}",
            filter_subject=subjects.work(priority),
            why="redelivered after 5 s: a claim takes milliseconds, a puller that died must not delay a run; pulls are "
            "shorter than a lease: an executor whose death is written must not be given the tickets of its runs",
            ack_wait_s=5.0,
            # A process that is made for one run may take longer to claim it on a busy machine.
            held_s=20.0,
            pull_s=2.0,
            ack_pending_max=20_000,
        )
        for priority in PRIORITIES
    )


# What may wait for places in all schedulers together (`services/scheduler/tasks.py`), and room for everybody else.
TASKS_PENDING_MAX = 24_000


def tasks_consumer(subjects: Subjects) -> ConsumerSpec:
    return ConsumerSpec(
        stream=subjects.stream("tasks"),
        name="schedulers",
        filter_subject=subjects.all_tasks(),
        why="one append makes the run; 30 s outlast a leader election of the log; tasks that wait for a place of their tenant "
        "are given back and stay unacked, some thousands a scheduler",
        ack_pending_max=TASKS_PENDING_MAX,
    )


def shared_tool_consumer(subjects: Subjects, name: str) -> ConsumerSpec:
    return ConsumerSpec(
        stream=subjects.stream("tools"),
        name=f"any-{name}",
        filter_subject=subjects.tool_any(name),
        why="acked once the journal holds the start, which takes milliseconds; who died or froze before must not delay "
        "a round, and of two that have the message one creates the key",
        ack_wait_s=5.0,
        pull_s=5.0,
    )


def host_consumer(subjects: Subjects, boot: str) -> ConsumerSpec:
    return ConsumerSpec(
        stream=subjects.stream("tools"),
        name=f"host-{boot}",
        filter_subject=subjects.tool_host(boot),
        why="acked once the journal holds the start; the scheduler removes it with the boot, a day later the server",
        ack_wait_s=15.0,
        inactive_s=DAY_S,
    )


def fired_consumer(subjects: Subjects) -> ConsumerSpec:
    return ConsumerSpec(
        stream=subjects.stream("timers"),
        name="schedulers-fired",
        filter_subject=subjects.all_timers()[1],
        why="a fired timer is a wake-up: fold, act, ack",
    )


def matching_consumer(subjects: Subjects, shard: int, *, everything: bool) -> ConsumerSpec:
    """Reads a shard for webhooks: its `life`, or all of it for those that ask for more."""
    return ConsumerSpec(
        stream=subjects.log_stream(shard),
        name="webhooks-all" if everything else "webhooks-life",
        filter_subject=subjects.log_of_shard(shard) if everything else subjects.life_of_shard(shard),
        why="one record at a time, so that whoever reads next goes on in order",
        ack_pending_max=1,
        fresh=True,
    )


def hook_consumer(subjects: Subjects, webhook_id: str) -> ConsumerSpec:
    return ConsumerSpec(
        stream=subjects.stream("hooks"),
        name=f"hook-{webhook_id}",
        filter_subject=subjects.hook(webhook_id),
        why="one delivery at a time, so that a receiver gets events in order; a try takes 15 s at most",
        ack_pending_max=1,
        inactive_s=HOOKS_KEPT_S + DAY_S,
    )


def buckets(subjects: Subjects) -> tuple[BucketSpec, ...]:
    return (
        BucketSpec(
            subjects.stream("leases"), "liveness and leadership; keys expire by themselves", marker_ttl_s=5
        ),
        BucketSpec(subjects.stream("checkpoints"), "one a run, a cache of its fold", marker_ttl_s=60),
        BucketSpec(
            subjects.stream("journal"), "tool outcomes; purged a day after the run's end", marker_ttl_s=60
        ),
        BucketSpec(subjects.stream("catalog"), "tools of live hosts", marker_ttl_s=60),
        BucketSpec(
            subjects.stream("spending"), "tokens by day, tenant and boot, for two days", marker_ttl_s=60
        ),
        BucketSpec(
            subjects.stream("webhooks"), "what tenants registered, kept like the journal", marker_ttl_s=60
        ),
        BucketSpec(
            subjects.stream("quotas"),
            "requests of a minute and runs being started, by tenant",
            marker_ttl_s=60,
        ),
    )


def stores(subjects: Subjects) -> tuple[StoreSpec, ...]:
    return (
        StoreSpec(subjects.stream("blobs"), "strings too large for a record, by digest"),
        StoreSpec(subjects.stream("workspaces"), "snapshots of workspaces, by commit"),
    )

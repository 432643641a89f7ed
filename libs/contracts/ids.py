"""Identifiers: how they are made, what they say, and how each is told from a forgery.

Invariant: the shard is part of a run's id, so any process finds a run's log from its id alone; ids that the
machinery makes derive from their cause, so the same cause never makes two.

    run_<shard>_<body>   task_<shard>_<body>   project_<shard>_<body>   schedule_<shard>_<body>   ws_<shard>_<body>
    body: 26 characters of Crockford's base 32 (128 bits): time + random, or the hash of the cause
"""

import hashlib
import re
import uuid
from datetime import datetime

from libs.contracts.clock import Clock

# Log shards of the first generation: what ids derived from a cause hash over, in this deployment and for ever.
SHARDS = 1

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_BODY_CHARS = 26
_KINDS = ("run", "task", "project", "schedule", "ws")
_ID = re.compile(rf"^({'|'.join(_KINDS)})_(0|[1-9][0-9]{{0,2}})_([{_ALPHABET}]{{{_BODY_CHARS}}})$")
_WEBHOOK = re.compile(rf"^hook_[{_ALPHABET}]{{{_BODY_CHARS}}}$")
# Tenant names, replica ids and the prefix become tokens of a subject: nothing that NATS gives a meaning to.
_TOKEN = re.compile(r"^[a-z0-9_-]{1,64}$")


def is_token(text: str) -> bool:
    """Whether `text` may stand as a tenant, a replica id or a prefix: `[a-z0-9_-]{1,64}`."""
    return _TOKEN.fullmatch(text) is not None


def is_id(kind: str, text: str) -> bool:
    """Whether `text` is a well-formed id of this kind (`run`, `task`, `project`, `schedule`, `ws`)."""
    match = _ID.fullmatch(text)
    return match is not None and match.group(1) == kind


def shard_of(identifier: str) -> int:
    """The shard whose stream holds this log. Raises `ValueError` for anything that is not an id."""
    match = _ID.fullmatch(identifier)
    if match is None:
        raise ValueError(f"{identifier!r} is not an id of Perdure")
    return int(match.group(2))


def random_run_id(clock: Clock, shard: int) -> str:
    """A fresh run id in an open shard; sorts by creation time within the shard."""
    return f"run_{shard}_{_timed_body(clock.now(), clock.entropy(10))}"


def derived_run_id(shards: int, *cause: str) -> str:
    """The run id of a cause (tenant and key, message and stream, ...): hashed over the first `shards` shards."""
    digest = hashlib.sha256("\0".join(cause).encode()).digest()
    return f"run_{int.from_bytes(digest[16:24]) % shards}_{_encode(digest[:16])}"


def child_run_id(parent_run_id: str, call_id: str) -> str:
    """The id of the child that a parent's call makes: always the same, always in the parent's shard."""
    digest = hashlib.sha256(f"{parent_run_id}\0{call_id}".encode()).digest()
    return f"run_{shard_of(parent_run_id)}_{_encode(digest[:16])}"


def random_project_id(clock: Clock, shard: int) -> str:
    """A fresh project id in an open shard."""
    return f"project_{shard}_{_timed_body(clock.now(), clock.entropy(10))}"


def derived_project_id(shards: int, *cause: str) -> str:
    """The project id of a cause, as `derived_run_id` makes those of runs."""
    return "project_" + derived_run_id(shards, "project", *cause).removeprefix("run_")


def random_schedule_id(clock: Clock, shard: int) -> str:
    """A fresh schedule id in an open shard."""
    return f"schedule_{shard}_{_timed_body(clock.now(), clock.entropy(10))}"


def derived_schedule_id(shards: int, *cause: str) -> str:
    """The schedule id of a cause, as `derived_run_id` makes those of runs."""
    return "schedule_" + derived_run_id(shards, "schedule", *cause).removeprefix("run_")


def random_webhook_id(clock: Clock) -> str:
    """A fresh webhook id. A webhook has no log, so no shard."""
    return "hook_" + _timed_body(clock.now(), clock.entropy(10))


def derived_webhook_id(*cause: str) -> str:
    """The webhook id of a cause."""
    return "hook_" + _encode(hashlib.sha256("\0".join(("webhook", *cause)).encode()).digest()[:16])


def is_webhook_id(text: str) -> bool:
    return _WEBHOOK.fullmatch(text) is not None


def scheduled_run_id(schedule_id: str, mark: str) -> str:
    """The run of a schedule's time (RFC 3339), or of a client's request: always the same, in the schedule's shard."""
    digest = hashlib.sha256(f"{schedule_id}\0{mark}".encode()).digest()
    return f"run_{shard_of(schedule_id)}_{_encode(digest[:16])}"


def session_run_id(project_id: str, session: int, stage: str) -> str:
    """The run of a stage of a project's session: always the same, always in the project's shard."""
    digest = hashlib.sha256(f"{project_id}\0{session}\0{stage}".encode()).digest()
    return f"run_{shard_of(project_id)}_{_encode(digest[:16])}"


def task_id_of(run_id: str) -> str:
    """The task that a first run belongs to; both share shard and body, so one finds the other without an index."""
    return "task_" + run_id.removeprefix("run_")


def first_run_of(task_id: str) -> str:
    """The inverse of `task_id_of`."""
    return "run_" + task_id.removeprefix("task_")


def workspace_id(shards: int, tenant: str, workspace: str) -> str:
    """The id of a workspace's own log: every run that names the workspace finds the same."""
    digest = hashlib.sha256(f"{tenant}\0{workspace}".encode()).digest()
    return f"ws_{int.from_bytes(digest[16:24]) % shards}_{_encode(digest[:16])}"


def new_boot_id(clock: Clock) -> str:
    """A process's identity from its start to its death."""
    return "b" + _encode(clock.entropy(10))


def new_idempotency_key() -> str:
    """A key for one wish of a client, so that it may say it twice."""
    return uuid.uuid4().hex


def new_message_id(clock: Clock) -> str:
    """The id of one record: fresh per record, reused only to send the same bytes again."""
    return "m" + _encode(clock.entropy(12))


def call_id(iteration: int, index: int) -> str:
    """The id of the `index`-th call of a turn. Providers' own ids repeat or are empty, so none of them is kept."""
    return f"call_{iteration}_{index}"


def verify_call_id(round_number: int) -> str:
    """The id of the verification call of a round."""
    return f"verify-{round_number}"


def _timed_body(at: datetime, entropy: bytes) -> str:
    return _encode(int(at.timestamp() * 1000).to_bytes(6) + entropy)


def _encode(data: bytes) -> str:
    """Crockford's base 32, lower case, most significant first, zero-padded on the left."""
    number, chars = int.from_bytes(data), (len(data) * 8 + 4) // 5
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range((chars - 1) * 5, -1, -5))

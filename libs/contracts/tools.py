"""Tools as the bus sees them: what a host advertises, what a call carries, what comes back, what the journal keeps.

Invariant: a call with an effect is known by run, call and attempt; its journal key is created before it starts
and holds its result before anyone is told (design, section 5).
"""

from enum import StrEnum

import msgspec


class Semantics(StrEnum):
    """What a repetition of the call would do."""

    READ_ONLY = "READ_ONLY"
    IDEMPOTENT = "IDEMPOTENT"
    NON_IDEMPOTENT = "NON_IDEMPOTENT"


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of a host. `parameters` is a JSON Schema object; `timeout_s` bounds one call; `risk` is low, medium or
    high, as the host sees it (decisions go by `libs/policy/risk.py`).

    A tool that does not need a workspace is called on any live host that offers it. `tenants` are those that may see
    and call it; none named: all.
    """

    name: str
    description: str
    parameters: dict[str, object]
    semantics: Semantics
    risk: str = "low"
    timeout_s: float = 120.0
    needs_workspace: bool = True
    tenants: list[str] = []

    def is_for(self, tenant: str) -> bool:
        return not self.tenants or tenant in self.tenants


# The tools that change the run and not the world: they have no host, and no host's tool may be called so.
RUN_TOOLS = {
    "ask_user": Semantics.READ_ONLY,
    "write_todos": Semantics.IDEMPOTENT,
    "delegate": Semantics.IDEMPOTENT,
}


class HostCatalog(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a host's key in the catalog bucket; it counts only while the host's boot lives.

    `shared` tools are served on `<p>.tool.any.<name>` by whichever host is free (`verify`); the others on the
    subjects of this boot. `workspaces` says whether the host can hold workspaces.
    """

    boot: str
    replica: str
    host: str
    tools: list[ToolSpec]
    shared: bool = False
    workspaces: bool = False
    sandbox: str = "none"
    # Names the folder of all workspaces: hosts with the same one see the same folders.
    root: str = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call on its way to a host, for both paths (request/reply and work queue).

    `epoch` is the run's claim: the host refuses a lower one and takes a higher one only after a leader read.
    `not_after` (RFC 3339): a call that is still queued then is dropped, its owner has given up on it.
    `arguments` are the full, unclipped, schema-checked arguments; `seen` are the digests (by path) of the files that it
    names, as the run saw them last, so that nothing is overwritten that changed since.
    """

    tenant: str
    run_id: str
    call_id: str
    attempt: int
    epoch: int
    name: str
    arguments: dict[str, object]
    semantics: Semantics
    idempotency_key: str
    not_after: str
    timeout_s: float
    output_chars_max: int
    workspace: str = ""
    workspace_id: str = ""
    approval_sequence: int | None = None
    approval_hash: str | None = None
    seen: dict[str, str] = {}


class Refusal(StrEnum):
    """Why a host did not do what a call asked for. But for `STOPPED` nothing happened; the owner decides what to do."""

    STALE_EPOCH = "STALE_EPOCH"  # The caller does not hold the run's newest claim.
    RUN_NOT_LIVE = "RUN_NOT_LIVE"  # Unknown, not owned, terminal, deleted or being cancelled.
    NOT_MY_WORKSPACE = (
        "NOT_MY_WORKSPACE"  # The workspace's log names another host, or it is not attached here.
    )
    WORKSPACE_BUSY = "WORKSPACE_BUSY"  # The former host is alive or being replaced: ask again.
    WORKSPACE_FAULT = "WORKSPACE_FAULT"  # The workspace cannot be prepared (disk, git): the message says why.
    UNKNOWN_TOOL = "UNKNOWN_TOOL"
    EXPIRED = "EXPIRED"  # `not_after` has passed.
    MALFORMED = "MALFORMED"
    HOST_SUSPECT = "HOST_SUSPECT"  # The host could not confirm its own lease in time.
    HOST_GONE = (
        "HOST_GONE"  # The host ends, or a verifier lost the workspace's: attach again, then the next attempt.
    )
    STOPPED = (
        "STOPPED"  # Ended before it was done (a cancel, the host's own end): how far it got is not known.
    )


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a host answers. A tool's own failure is `ok=False`; the run goes on with it.

    `refused` is a `Refusal` of this host or a code of a later one: the call was not carried out.
    """

    call_id: str
    attempt: int
    ok: bool
    output: str
    duration_ms: int = 0
    metadata: dict[str, object] = {}
    refused: str | None = None


class JournalState(StrEnum):
    STARTED = "started"
    FINISHED = "finished"


class JournalEntry(msgspec.Struct, frozen=True, kw_only=True):
    """The value of `run.call.attempt` in the journal.

    `before` maps a path to its sha256 before the effect (null: it did not exist), `after` to the one it will have
    (empty: it will be gone);
    `process` is retired: which processes may outlive a killed host matters on its machine alone, which remembers them.
    """

    state: JournalState
    boot: str
    replica: str
    host: str
    at: str
    before: dict[str, str | None] = {}
    after: dict[str, str] = {}
    process: list[int] | None = None
    result: ToolResult | None = None


class ToolNotice(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="tool.notice"):
    """On the live subject: the journal has news of a call. A lost notice costs a poll, never a hang."""

    run_id: str
    call_id: str
    attempt: int
    state: JournalState


# Internal calls of the runtime itself: served by every workspace host on `<p>.call.host.<boot>`, never offered to a model.
# `workspace_attach` {baseline: commit|null, files: {path: sha256}} -> metadata {baseline, changed: [path], instructions, lost}
WORKSPACE_ATTACH = "workspace_attach"
# `workspace_snapshot` {chain: [snapshot]} -> metadata {snapshot, commit, changed, chain}
WORKSPACE_SNAPSHOT = "workspace_snapshot"
# Of a verifier to the workspace's host; their arguments and answers are in `evidence.py`. The first four go over the work
# queue (their intent is `verification.requested`), the last two by request.
VERIFY_SNAPSHOT = "verify_snapshot"
VERIFY_COMMAND = "verify_command"
VERIFY_HTTP = "verify_http"
VERIFY_BROWSER = "verify_browser"
VERIFY_FILES = "verify_files"
VERIFY_DIFF = "verify_diff"
# The call of a verification round, on `<p>.tool.any.verify`:
# arguments `VerifyArguments` -> metadata {"verification": Verification}, output: feedback for the model.
VERIFY = "verify"


class CancelCalls(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cancel_calls"):
    """On `<p>.ctl.<boot>`: kill what runs for this run at an epoch up to this one. Answered by `ControlReply`."""

    run_id: str
    epoch: int
    call_id: str | None = None


class AreYouAlive(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="are_you_alive"):
    """On `<p>.ctl.<boot>`: asked before a death is written."""

    asker: str


class HowAreYou(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="how_are_you"):
    """On `<p>.ctl.<boot>`: asked for metrics. Answered by `Vitals`."""

    asker: str


class Vitals(msgspec.Struct, frozen=True, kw_only=True):
    """What a process tells of itself. `started_at` is in seconds since 1970; a value that the system does not tell is
    `None`. `counts` of its dealings with the bus only grow while it lives."""

    boot: str
    started_at: float
    cpu_seconds: float
    resident_bytes: int | None = None
    open_files: int | None = None
    counts: dict[str, int] = {}


ControlMessage = CancelCalls | AreYouAlive | HowAreYou


class ControlReply(msgspec.Struct, frozen=True, kw_only=True):
    """The answer on `<p>.ctl.<boot>`: who answers, and how many calls the message ended."""

    boot: str
    ended: int = 0

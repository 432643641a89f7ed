"""Values that events and states share: usage, errors, calls as the model made them, the plan.

Invariant: sums only grow; a cost that is not known is null and never guessed.
"""

import math
from typing import Literal

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens and money, as sums. Cached tokens (read from a provider's cache) and those written into it are input tokens
    too, reasoning tokens are output tokens. `cost_usd` is null as soon as one part of it is unknown."""

    requests: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float | None = 0.0
    estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        cost_usd = None
        if self.cost_usd is not None and other.cost_usd is not None:
            # A sum beyond what a float holds has no JSON; it would come back as null from a checkpoint.
            cost_usd = total if math.isfinite(total := self.cost_usd + other.cost_usd) else None
        return Usage(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cost_usd=cost_usd,
            estimated=self.estimated or other.estimated,
        )


class Share(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one session may use of its project's caps; `None`: no cap of that kind."""

    tokens: int | None = None
    cost_usd: float | None = None


# The error code of a request that the provider calls too long, and of a run of which nothing more can leave.
CONTEXT_EXHAUSTED = "CONTEXT_EXHAUSTED"


class RunError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run failed: a permanent code of contract section 3, and what to do next."""

    error_code: str
    message: str


class ModelToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call as the model made it, under our own id. One with a `problem` is not carried out: the problem is its result.
    `arguments` is null when they could not be read or kept; then `raw_arguments` may hold what came, clipped. `extra_content` is the provider's
    own, a signature say, which it wants back with the call."""

    call_id: str
    name: str
    arguments: dict[str, object] | None
    raw_arguments: str | None = None
    problem: str | None = None
    extra_content: dict[str, object] | None = None


class Todo(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    status: Literal["pending", "in_progress", "completed"] = "pending"


class ProjectInstructions(msgspec.Struct, frozen=True, kw_only=True):
    """What a project tells every agent that works on it, as a run found it: the file, its digest, its beginning.

    `clipped`: there is more in the file than `text`. `problem` says why a file that is there was not used.
    """

    path: str
    text: str = ""
    sha256: str = ""
    clipped: bool = False
    problem: str | None = None


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """What lists show of a run whose history came as a copy: they read `life` records only, and a copy has one."""

    task_id: str
    goal: str
    workspace: str
    priority: str
    metadata: dict[str, str]
    created_at: str
    attempt: int = 0
    started_at: str | None = None
    finished_at: str | None = None
    answer: str | None = None
    verdict: str | None = None
    error: RunError | None = None
    usage: Usage = Usage()


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """The tools that a model is offered: their names, in order, and where their specs are: a blob of the tenant, the JSON of
    a list of `ToolSpec`, named by its SHA-256."""

    digest: str
    names: list[str]


class WireRecording(msgspec.Struct, frozen=True, kw_only=True):
    """Where the recording of a model call is: the digest of its blob, and how large it is."""

    blob: str
    bytes: int

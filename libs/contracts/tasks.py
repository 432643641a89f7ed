"""Tasks and their limits: what somebody wants done, and how much it may cost.

Invariant: a task may lower the deployment's limits and never raise them (`Limits.lowered_by`).
"""

from typing import Literal

import msgspec

from libs.contracts.checks import Check
from libs.contracts.sessions import Errand, SessionRef
from libs.contracts.subjects import Priority

ContextStrategy = Literal["sliding-window", "summarising"]


class LimitOverrides(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The limits that a task, a project or a deployment names; unset ones are inherited."""

    max_iterations: int | None = None
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    timeout_s: float | None = None
    tool_timeout_s: float | None = None
    max_tool_output_chars: int | None = None
    max_event_payload_chars: int | None = None
    context_tokens: int | None = None
    max_verification_rounds: int | None = None
    max_depth: int | None = None
    context_strategy: ContextStrategy | None = None
    input_timeout_s: float | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits in force for one run. `None` means no limit of that kind.

    `timeout_s` counts owned time only; `input_timeout_s` bounds the wait for each answer or approval (`None`: for ever),
    after which the run fails with `INPUT_TIMEOUT`.
    """

    max_iterations: int = 50
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None
    timeout_s: float = 3600.0
    tool_timeout_s: float = 120.0
    max_tool_output_chars: int = 30_000
    max_event_payload_chars: int = 16_000
    context_tokens: int = 128_000
    max_verification_rounds: int = 3
    max_depth: int = 2
    context_strategy: ContextStrategy = "sliding-window"
    input_timeout_s: float | None = None

    def lowered_by(self, wanted: LimitOverrides) -> "Limits":
        """These limits with what `wanted` lowers. Raises `ValueError` naming every limit that it would raise."""
        changes: dict[str, object] = {}
        raised: list[str] = []
        for name in LimitOverrides.__struct_fields__:
            value, current = getattr(wanted, name), getattr(self, name)
            if value is None:
                continue
            if name == "context_strategy" or current is None or value <= current:
                changes[name] = value
            else:
                raised.append(f"{name}={value} is above the deployment's {current}")
        if raised:
            raise ValueError("; ".join(raised))
        return msgspec.structs.replace(self, **changes)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was asked for, as accepted: the part of a request that a run carries through its life.

    `workspace` is the name as given (`None`: a workspace of the run's own); `model` and `tools` narrow what the
    deployment offers; `instructions` are added to the system prompt; `unattended` runs never wait for a person.

    Of projects: the `session` that the run is a stage of; `errands`, the steps of a run that asks no model; `baseline`,
    the snapshot of the workspace that the run's changes are compared with (`None`: as the run found it).
    `schedule`: whose time the run was made for. `wish`: by which name the run's source knows it, and
    `wish_label`, the label that it had there (`None`: it needs none, or nobody wrote it down).
    """

    goal: str
    workspace: str | None = None
    acceptance: list[Check] = []
    limits: LimitOverrides = LimitOverrides()
    model: str | None = None
    tools: list[str] | None = None
    priority: Priority = "normal"
    metadata: dict[str, str] = {}
    instructions: str | None = None
    unattended: bool = False
    session: SessionRef | None = None
    errands: list[Errand] = []
    baseline: str | None = None
    schedule: str | None = None
    wish: str | None = None
    wish_label: str | None = None


class Parent(msgspec.Struct, frozen=True, kw_only=True):
    """Whose call made this run, and how deep it stands below the first (children of a first run: 1)."""

    run_id: str
    call_id: str
    depth: int


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A hint to an executor that a run may be claimed; `sequence` is the stream sequence of the cause.

    `due` is the public sequence of the release whose retry time has come: a run that still waits since that very event
    (`RunState.waiting_since`) is due, whatever the reader's clock says.
    """

    tenant: str
    run_id: str
    sequence: int
    due: int | None = None


class Timer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a durable timer: the run, and the public sequence of the event that it waits on."""

    tenant: str
    run_id: str
    sequence: int

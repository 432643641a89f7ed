"""What the HTTP API takes: request bodies and headers, with their bounds; `views.py` holds what it gives.

Invariant: a body that passed `parse_body` is valid all the way down (unknown fields, lengths, regular expressions,
numbers), so nothing behind the edge checks it again; every problem is named by its field.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar

import msgspec
from pydantic import (
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from libs.contracts.bodies import BLANK, TEXT_CHARS_MAX, Brief, Count, Name, Request, Seconds, Tenant, Text
from libs.contracts.checkhttp import CHECKS_MAX, SUPPORTED_CHECKS, CheckIn
from libs.contracts.errors import ValidationFailed
from libs.contracts.subjects import Priority
from libs.contracts.tasks import ContextStrategy, TaskSpec

# The contract's bound of a request: read before it is parsed, so nobody fills the memory with one body.
BODY_BYTES_MAX = 1024 * 1024
# A task travels in its run's first record, and a record holds 512 KiB with its headers and escapes.
TASK_BYTES_MAX = 384 * 1024
# Metadata is for labels that lists show and filters name.
METADATA_ENTRIES_MAX = 64
METADATA_KEY_CHARS_MAX = 128
METADATA_VALUE_CHARS_MAX = 4096
TOOLS_MAX = 256
IDEMPOTENCY_KEY_CHARS_MAX = 255

# How the validator tells of an empty text; of a list or an object it speaks by that name.
_EMPTY_TEXT = ("String should have at least 1 ", "Value should have at least 1 ")


class Nothing(Request):
    """The body of a command that takes none; `{}` and no body at all are the same."""


class LimitsIn(Request):
    """Limits of one task; each may lower the deployment's and not raise it."""

    max_iterations: Count | None = None
    max_total_tokens: Count | None = None
    max_cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    timeout_s: Seconds | None = None
    tool_timeout_s: Seconds | None = None
    max_tool_output_chars: Count | None = None
    max_event_payload_chars: Count | None = None
    context_tokens: Count | None = None
    max_verification_rounds: Annotated[int, Field(ge=0, le=2**53)] | None = None
    max_depth: Annotated[int, Field(ge=0, le=2**53)] | None = None
    context_strategy: ContextStrategy | None = None
    input_timeout_s: Seconds | None = None


class TaskCreate(Request):
    """The body of `POST /api/tasks`, and of a task published on the bus."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "goal": "Make the failing test pass.",
                    "workspace": "shop",
                    "auto_start": True,
                    "acceptance": [{"kind": "tests"}],
                }
            ]
        }
    )

    goal: Brief
    auto_start: bool = False
    workspace: Name | None = None
    acceptance: list[CheckIn] = Field(default=[], max_length=CHECKS_MAX)
    limits: LimitsIn | None = None
    model: Name | None = None
    tools: Annotated[list[Name], Field(max_length=TOOLS_MAX)] | None = Field(
        default=None,
        description="The only tools that the run may use. If one of them is offered by no tool host when the run begins, "
        "it fails with DEPENDENCY_FAILED before the model is asked.",
    )
    priority: Priority = "normal"
    metadata: dict[
        Annotated[Text, Field(min_length=1, max_length=METADATA_KEY_CHARS_MAX)],
        Annotated[Text, Field(max_length=METADATA_VALUE_CHARS_MAX)],
    ] = Field(default={}, max_length=METADATA_ENTRIES_MAX)
    instructions: Annotated[Text, Field(max_length=TEXT_CHARS_MAX)] | None = None
    unattended: Annotated[
        bool,
        Field(
            description="Nobody can be asked: a question of the model is answered with 'decide by yourself', a call that "
            "needs an approval is rejected. A call whose outcome is unknown still waits for a person to reconcile it."
        ),
    ] = False

    @model_validator(mode="after")
    def _fits_a_record(self) -> "TaskCreate":
        size = len(msgspec.json.encode(self.model_dump(exclude_defaults=True)))
        if size > TASK_BYTES_MAX:
            raise ValueError(
                f"the task takes {size} bytes, at most {TASK_BYTES_MAX} fit; put long texts into files of the workspace"
            )
        return self

    def spec(self) -> TaskSpec:
        """The task as a run carries it."""
        return msgspec.convert(self.model_dump(exclude_none=True, exclude={"auto_start"}), TaskSpec)


class Reply(Request):
    """The body of `POST /api/runs/{id}/reply`. Without `question_id` the pending question is meant."""

    answer: Annotated[Text, Field(max_length=TEXT_CHARS_MAX)]
    question_id: Name | None = None


class Approval(Request):
    """The body of `POST /api/runs/{id}/approve`. The decision holds for this call with exactly the arguments shown."""

    call_id: Name
    decision: Literal["approve", "reject"]
    reason: Annotated[
        Text, Field(max_length=TEXT_CHARS_MAX, description="Reaches the model when the call is rejected.")
    ] = ""


class Reconciliation(Request):
    """The body of `POST /api/runs/{id}/reconcile`: what became of a call whose outcome nobody knows.

    `accept`: it took effect, `observation` becomes its result; `retry`: it did not, carry it out again; `fail`: give
    the run up.
    """

    call_id: Name
    decision: Literal["accept", "retry", "fail"]
    observation: Annotated[
        Annotated[Text, Field(max_length=TEXT_CHARS_MAX)] | None,
        Field(
            validate_default=True,
            description="What is there now, as the model shall read it; accept needs it.",
        ),
    ] = None

    @field_validator("observation")
    @classmethod
    def _accept_observes(cls, observation: str | None, info: ValidationInfo) -> str | None:
        if info.data.get("decision") == "accept" and not (observation or "").strip():
            raise ValueError("say what you observed: it becomes the result of the accepted call")
        return observation


class SteeringMessage(Request):
    """The body of `POST /api/runs/{id}/message`."""

    text: Brief


R = TypeVar("R", bound=Request)


def parse_body(model: type[R], body: bytes) -> R:
    """Validate a JSON body. Raises `ValidationFailed` with one entry a field; the input itself is never repeated."""
    try:
        return model.model_validate_json(body or (b"{}" if is_optional(model) else b"null"))
    except ValidationError as error:
        raise _failed(error) from error


def is_optional(model: type[Request]) -> bool:
    """Whether no body at all is as good as `{}`."""
    return not any(field.is_required() for field in model.model_fields.values())


def read_body(model: type[R], given: Mapping[str, object]) -> R:
    """A body made of plain values, as a client makes one. Raises `ValidationFailed` like `parse_body`."""
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        raise _failed(error) from error


class PolicyQuestion(Request):
    """A call as a model would make it. `tenant`: for operators, who may ask for anyone."""

    tool: Name
    arguments: dict[str, object] = Field(default={})
    tenant: Tenant | None = None


def parse_task(body: bytes) -> TaskCreate:
    """The task of a request or of a message on the bus. Raises `ValidationFailed`."""
    return parse_body(TaskCreate, body)


def body_hash(body: Request) -> str:
    """The identity of a validated body: order, spacing and spelled-out defaults make no difference."""
    canonical = json.dumps(
        body.model_dump(mode="json", exclude_defaults=True), sort_keys=True, separators=(",", ":")
    )
    return hashlib.sha256(canonical.encode()).hexdigest()


def idempotency_key(value: str | None) -> str | None:
    """A client's `Idempotency-Key`, checked. Raises `ValidationFailed`."""
    if value is None:
        return None
    if not 0 < len(value) <= IDEMPOTENCY_KEY_CHARS_MAX or not value.isprintable():
        message = f"must be 1..{IDEMPOTENCY_KEY_CHARS_MAX} printable characters"
        raise ValidationFailed(
            f"Idempotency-Key {message}", details=[{"field": "Idempotency-Key", "message": message}]
        )
    return value


def client_request(key: str | None, body: Request) -> str | None:
    """How a command names the client's request in the log: the hashes of its key and of its body, or nothing."""
    if key is None:
        return None
    return f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.{body_hash(body)[:32]}"


def _failed(error: ValidationError) -> ValidationFailed:
    details = [
        {"field": _field(item["loc"]), "message": _message(item["type"], item["msg"])}
        for item in error.errors(include_url=False, include_input=False, include_context=False)
    ]
    first = details[0]
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return ValidationFailed(
        f"the request is not valid: {first['field']}: {first['message']}{more}", details=details
    )


def _field(location: tuple[int | str, ...]) -> str:
    """The path of a field as a client wrote it: the tags that the validator inserts behind an index are left out."""
    parts: list[str] = []
    for index, part in enumerate(location):
        tagged = index > 0 and isinstance(location[index - 1], int) and part in SUPPORTED_CHECKS
        if not tagged:
            parts.append(str(part))
    return ".".join(parts) or "body"


def _message(kind: str, message: str) -> str:
    match kind:
        case "union_tag_invalid":
            return f"this kind is not supported; supported: {', '.join(SUPPORTED_CHECKS)}"
        case "union_tag_not_found":
            return f"'kind' is missing; supported: {', '.join(SUPPORTED_CHECKS)}"
        case "extra_forbidden":
            return "unknown field; remove it or correct its spelling"
        case "string_too_short" | "too_short" if message.startswith(_EMPTY_TEXT):
            return BLANK
        case _:
            return message.removeprefix("Value error, ")

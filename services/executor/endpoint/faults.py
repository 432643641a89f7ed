"""Faults of a model endpoint, judged: try again, when, give up, or make the request smaller.

Invariant: pure and total; a fault is judged by its status first and by the words of its body where statuses lie
(an overflow may come as 400, 413, 422 or 500, a quota that is used up as 429).

| status                                                | judgement |
|-------------------------------------------------------|-----------|
| any, the body says that the context is exceeded; 413  | overflow  |
| any, the body says that a quota or balance is used up | final     |
| 408 409 425 429, 5xx but 501 and 505                  | transient, not before Retry-After |
| connection lost, refused, idle too long               | transient |
| everything else (400 401 403 404 422 ...)             | final     |

`x-should-retry: true | false` overrides transient and final.
"""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Literal, cast

import msgspec

from libs.contracts.retryafter import retry_after_s
from services.executor.ingress.turn import WireFault

_TRANSIENT = frozenset({408, 409, 425, 429})
_NOT_TRANSIENT = frozenset({501, 505})

_OVERFLOW = re.compile(
    r"context_length_exceeded|exceed_context_size|maximum context length|context window (?:exceeds|is full)"
    r"|exceed(?:s|ed)? the (?:available |model'?s |maximum )*context|exceed(?:s|ed)? (?:the )?context limit"
    r"|prompt is too long|input is too long|input length exceeds|reduce the length of|too many (?:input )?tokens"
    r"|string_above_max_length|range of input length should be",
    re.IGNORECASE,
)
_QUOTA = re.compile(
    r"insufficient_quota|exceeded your current quota|billing_hard_limit|billing_not_active|insufficient[ _]balance"
    r"|credit balance is too low|insufficient credits|arrearage|quota_exceeded",
    re.IGNORECASE,
)
# Errors inside a stream carry no status; these words say that another try is pointless.
_INVALID = re.compile(
    r"invalid_request|invalid_api_key|authentication|permission|not_found|unsupported", re.IGNORECASE
)
# What is shown of a provider's words. They go into the log, so they are short.
MESSAGE_CHARS_MAX = 600


# What the operator can do about refusals that say nothing about the request itself.
_ADVICE = {
    401: "; check OPENAI_API_KEY and OPENAI_BASE_URL, then start again",
    403: "; check what OPENAI_API_KEY may use",
    404: "; check MODEL_ID and OPENAI_BASE_URL",
}


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A judged fault. `retry_after_s` is what the provider asked for; `status` is 0 without a response."""

    kind: Literal["transient", "final", "overflow"]
    message: str
    status: int = 0
    retry_after_s: float | None = None
    error_code: str = "MODEL_ERROR"


class Unreachable(Exception):
    """The connection failed or stayed silent: no response, or no more of it. `lasting`: asking again changes nothing."""

    def __init__(self, message: str, *, lasting: bool = False) -> None:
        super().__init__(message)
        self.lasting = lasting


class Refused(Exception):
    """The endpoint answered with an error status. `body` is clipped text, `headers` have lower-case names."""

    def __init__(self, status: int, headers: Mapping[str, str], body: str) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.headers = headers
        self.body = body


def judge_refusal(refused: Refused, now: datetime) -> Fault:
    """The fault behind an error status."""
    wanted = refused.headers.get("x-should-retry", "").strip().lower()
    fault = _judged(refused.status, refused.body, wanted)
    if fault.kind != "transient":
        return fault
    return msgspec.structs.replace(fault, retry_after_s=retry_after_s(refused.headers, now))


def judge_wire(wire: WireFault) -> Fault:
    """The fault behind a response that was no turn. An error inside a stream may carry the status it should have had."""
    if wire.kind in ("foreign", "too_large"):
        return Fault(kind="final", message=wire.message[:MESSAGE_CHARS_MAX])
    if wire.kind != "error":
        return Fault(kind="transient", message=wire.message[:MESSAGE_CHARS_MAX])
    body = msgspec.json.encode(wire.error).decode()
    status = _status_in(wire.error)
    if status or _OVERFLOW.search(body) or _QUOTA.search(body):
        return _judged(status or 500, body, "")
    kind = "final" if _INVALID.search(body) else "transient"
    return Fault(kind=kind, message=_message("error in the response", body))


def refusal_in(outcome: object) -> Refused | None:
    """The error status that a response should have had, if it reports an error inside of a success that names one."""
    if not isinstance(outcome, WireFault) or outcome.kind != "error":
        return None
    status = _status_in(outcome.error)
    return Refused(status, {}, msgspec.json.encode(outcome.error).decode()) if status else None


def _judged(status: int, body: str, should_retry: str) -> Fault:
    message = _message(f"HTTP {status}", body) + _ADVICE.get(status, "")
    # A rate limit may ask to reduce the length too; that is about the minute, not about the window.
    if status == 413 or (status != 429 and _OVERFLOW.search(body)):
        return Fault(kind="overflow", status=status, message=message, error_code="CONTEXT_EXHAUSTED")
    transient = status in _TRANSIENT or (status >= 500 and status not in _NOT_TRANSIENT)
    if should_retry in ("true", "false"):
        transient = should_retry == "true"
    if not transient or _QUOTA.search(body):
        return Fault(kind="final", status=status, message=message)
    return Fault(kind="transient", status=status, message=message)


def _status_in(error: object) -> int:
    """The HTTP status in an error object, 0 if there is none."""
    if not isinstance(error, dict):
        return 0
    fields = cast(dict[str, object], error)
    for name in ("status", "status_code", "code"):
        value = fields.get(name)
        if isinstance(value, str) and value.isdigit():
            value = int(value)
        if isinstance(value, int) and 400 <= value <= 599:
            return value
    return 0


def _message(what: str, body: str) -> str:
    """The provider's words out of an error body, behind what happened."""
    said = " ".join(body.split())
    try:
        match cast(object, msgspec.json.decode(body)):
            case {"error": {"message": str(found)}} | {"message": str(found)} | {"error": str(found)}:
                said = found
            case _:
                pass
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    return f"{what}: {said}"[:MESSAGE_CHARS_MAX] if said else what

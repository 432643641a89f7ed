"""The finish matrix: what a turn means for the run.

Invariant: total and pure; whether a turn ends the run is decided by what it holds, not by the provider's word for it.

The first row that fits, from the top. "nudges left" counts the nudges since the last tool call.

| calls | text | finish reason                       | verdict |
|-------|------|-------------------------------------|---------|
| yes   | any  | any, tools were offered             | RunTools (a call that was cut off or unreadable is answered with its problem) |
| -     | any  | refusal, content_filter             | Fail MODEL_REFUSED |
| -     | any  | error, network_error, overloaded, a call that the provider could not read | Retry |
| yes   | none | any, no tools were offered          | Nudge, no nudges left: Fail EMPTY_RESPONSE |
| no    | none | length                              | Fail MAX_TOKENS |
| no    | none | any, with reasoning                 | Nudge, no nudges left: Fail EMPTY_RESPONSE |
| no    | none | any, without reasoning              | Retry |
| -     | yes  | length                              | Nudge, no nudges left: Fail MAX_TOKENS |
| -     | a tool call written as text, tools offered | any | Nudge, no nudges left: Fail MODEL_ERROR |
| -     | ends by announcing a step, tools offered   | any | Nudge, the third in a row: Fail STUCK |
| -     | yes  | any                                 | Final |

`Retry` is carried out by the model client, which owns all retries; a turn that stays empty ends as EMPTY_RESPONSE.
"""

import re
from typing import assert_never

import msgspec

from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from services.executor.ingress.spoken import has_calls
from services.executor.ingress.turn import REFUSAL, UNOFFERED, ModelTurn

# A model that has not understood after this many is not going to.
NUDGES_MAX = 3
# One that says three times in a row what it will do now, and does not, is not going to either.
MONOLOGUE_MAX = 3

# Finish reasons by the words of many providers, in lower case.
_REFUSED = frozenset(
    {
        *(
            REFUSAL,
            "content_filter",
            "content-filter",
            "content_filtered",
            "safety",
            "sensitive",
            "blocklist",
        ),
        *("prohibited_content", "recitation", "spii", "guardrail_intervened"),
    }
)
_BROKEN = frozenset(
    {
        *("error", "network_error", "overloaded", "engine_overloaded", "insufficient_system_resource"),
        *("abort", "aborted", "cancelled", "timeout", "unexpected_tool_call"),
    }
)
# The provider's own parser could not read a call; the wording varies around this.
_UNREADABLE_CALL = "malformed_function_call"
_LENGTH = frozenset(
    {
        "length",
        "max_tokens",
        "max_output_tokens",
        "max_new_tokens",
        "model_length",
        "model_context_window_exceeded",
    }
)

# The last line: "Let me look at the tests:", "Now I'll run them." Said so, it is not the end of anything.
_ANNOUNCEMENT = re.compile(
    r"(?:(?:ok|okay|great|good|next|first|then|so),? )?"
    r"(?:(?:let me|let's|i'll|i will|i am going to|i'm going to)(?! know\b)\b.{0,200}(?::|\.\.\.|…)"
    r"|(?:now,? (?:i'll|i will|let me|i am going to|i'm going to)|(?:i'll|i will|let me) now)\b.{0,200})",
    re.IGNORECASE,
)

_NUDGE_EMPTY = (
    "Your last message had no answer and no tool call. Go on with the task, or give the final answer as text."
)
_NUDGE_LENGTH = (
    "Your last message was cut off at the output limit. Give it again, shorter, or work in smaller steps."
)
_NUDGE_ANNOUNCED = (
    "You said what you will do next, but called no tool, so nothing happened. Do it now; or, if all is done, give the "
    "final answer and say what was done."
)
_NUDGE_TEXT = "Your last message holds a tool call written as text, which nothing runs. Call the tool itself."


def without_unoffered(turn: ModelTurn) -> ModelTurn:
    """A turn of a request without tools: its calls are not carried out, so they are no part of it."""
    if not turn.calls:
        return turn
    reason = turn.finish_reason if turn.content.strip() else UNOFFERED
    return msgspec.structs.replace(turn, calls=[], finish_reason=reason)


class RunTools(msgspec.Struct, frozen=True, kw_only=True):
    """Execute the turn's calls."""


class Final(msgspec.Struct, frozen=True, kw_only=True):
    """The model claims to be done."""

    answer: str


class Nudge(msgspec.Struct, frozen=True, kw_only=True):
    """Tell the model what was wrong and ask again."""

    text: str


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The turn holds nothing: the same request again. `error_code` is the run's when no retry is left."""

    error_code: str
    message: str


class Fail(msgspec.Struct, frozen=True, kw_only=True):
    """The run cannot go on."""

    error_code: str
    message: str


Verdict = RunTools | Final | Nudge | Retry | Fail


def judge(turn: ModelTurn | AssistantItem, *, tools_offered: bool, nudges: int) -> Verdict:
    """The verdict of the matrix, on a turn as it came or as the log has it. `nudges` is how many were given since the last tool call (`nudges_in`)."""
    text = turn.content.strip()
    if turn.calls and tools_offered:
        return RunTools()
    word = turn.finish_reason.lower()
    if word in _REFUSED:
        reason = text or f"finish reason {turn.finish_reason}"
        return Fail(error_code="MODEL_REFUSED", message=f"The model refused: {reason[:500]}")
    if word in _BROKEN or _UNREADABLE_CALL in word:
        return Retry(error_code="MODEL_ERROR", message=f"The provider ended the turn: {turn.finish_reason}")
    if not text:
        return _without_text(turn, nudges)
    if turn.finish_reason.lower() in _LENGTH:
        return _nudge(nudges, _NUDGE_LENGTH, "MAX_TOKENS", "The answer does not fit into the output limit.")
    if tools_offered and has_calls(text):
        return _nudge(
            nudges, _NUDGE_TEXT, "MODEL_ERROR", "The model writes tool calls as text and never calls one."
        )
    if tools_offered and _ANNOUNCEMENT.fullmatch(text.rsplit("\n", 1)[-1].strip(" *_")):
        if nudges >= MONOLOGUE_MAX - 1:
            why = f"The model announces what it will do and does nothing, {nudges + 1} turns in a row: {text[:300]}"
            return Fail(error_code="STUCK", message=why)
        return Nudge(text=_NUDGE_ANNOUNCED)
    return Final(answer=turn.content)


def nudges_in(transcript: tuple[Item, ...]) -> int:
    """The nudges since the last tool call or verification, in a transcript that ends before the turn to judge."""
    turns = 0
    for item in reversed(transcript):
        match item:
            case AssistantItem(calls=[]):
                turns += 1
            case UserItem(origin="steering" | "runtime"):
                pass
            case AssistantItem() | UserItem() | ToolItem():
                return turns
            case _:
                assert_never(item)
    return turns


def _without_text(turn: ModelTurn | AssistantItem, nudges: int) -> Verdict:
    if turn.calls or turn.finish_reason == UNOFFERED:
        return _nudge(
            nudges, _NUDGE_EMPTY, "EMPTY_RESPONSE", "The model calls tools where none were offered."
        )
    if turn.finish_reason.lower() in _LENGTH:
        return Fail(
            error_code="MAX_TOKENS", message="The output limit was reached before the model wrote anything."
        )
    if turn.reasoning.strip():
        return _nudge(nudges, _NUDGE_EMPTY, "EMPTY_RESPONSE", "The model thinks and never answers.")
    return Retry(error_code="EMPTY_RESPONSE", message="The model answered with nothing, again and again.")


def _nudge(nudges: int, text: str, error_code: str, message: str) -> Verdict:
    return Nudge(text=text) if nudges < NUDGES_MAX else Fail(error_code=error_code, message=message)

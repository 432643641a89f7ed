"""Whether a run turns in circles: told from the latest steps of its transcript, and from nothing else.

Invariant: pure; at most `ALTERNATING_MAX` steps are looked at, so nothing has to be remembered. A step that differs in
what was called or in what came back is progress; what differs only in volatile parts (times, durations, ids, process
numbers, addresses) does not differ.

A step is a turn with the results of its calls. Two patterns, each announced to the model one step before its end:

| pattern                                       | the model is told at | the run is stopped at |
|-----------------------------------------------|----------------------|-----------------------|
| the same calls with the same results, in a row | 3                   | 4                     |
| two such steps in turn, A-B-A-B-A-B            | 5                   | 6                     |

A model that only talks is the finish matrix's affair. So polling goes on while its output changes, and tests may be run
again and again as long as something else happens in between. A message of a person or of the verifier begins anew.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from libs.contracts.run import RunState
from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall
from services.executor.ingress.text import one_line

REPEATED_MAX = 4
ALTERNATING_MAX = 6
# Arguments longer than this are compared as they are: nobody writes the same long text with another time in it.
_VOLATILE_CHARS_MAX = 20_000
_SHOWN_CHARS_MAX = 160

_TIMES = (
    r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?)?(?: ?(?:Z|UTC|[+-]\d{2}:?\d{2}))?\b",
    r"\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? (?:\d{1,2} )?[A-Z][a-z]{2,8}\.? +\d{1,4}\b",
    r"\b\d{1,2}:\d{2}:\d{2}(?:[.,]\d+)?\b",
    # Seconds, milli-, micro- or nanoseconds since 1970, in this generation.
    r"\b1[5-9]\d{8}(?:\d{3}){0,3}(?:\.\d+)?\b",
)
_OTHERS = (
    r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b",
    r"\b0x[0-9a-fA-F]+\b",
    # Hashes and ids, bare or behind a name: letters and digits mixed.
    r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}\b",
    r"\b[a-z]{2,12}[_-](?:\d+_)?(?=[a-z0-9]*[0-9])(?=[a-z0-9]*[a-z])[a-z0-9]{8,64}\b",
    r"\btmp(?=[a-z0-9_]*[0-9_])[a-z0-9_]{6,12}\b|\bpytest-\d+\b",
    r"\b(?:p?pid|tid)s?\b[ :=#(]{0,3}\d+|\b(?:process|thread|worker)[ :=#(-]{1,3}\d{3,}|\[\d{3,}(?:\.\d+)?\]",
    r"(?<=localhost):\d{2,5}\b|(?<=\d\.\d):\d{2,5}\b|\bport[ :=]{1,2}\d{4,5}\b",
    r"\b(?:\d+(?:\.\d+)? ?(?:ns|[µu]s|ms|s|secs?|seconds?|m|mins?|minutes?|h|hours?)\b ?)+",
)
_IN_ARGUMENTS = re.compile("|".join(_TIMES))
_IN_RESULTS = re.compile("|".join(_TIMES + _OTHERS), re.IGNORECASE)


class Circling(NamedTuple):
    """What repeats. `over`: the run is to be stopped; until then the model is to be told."""

    over: bool
    message: str


class _Step(NamedTuple):
    turn: AssistantItem
    results: dict[str, ToolItem]


def circling(state: RunState) -> Circling | None:
    """What the latest steps repeat; `None` while there is progress, or once the model has been told of it."""
    if any(item.origin != "runtime" for item in state.inbox):
        return None
    steps = list(_latest(state.transcript))
    found = _pattern(steps)
    if found is None:
        return None
    told = [*_behind_last_result(state.transcript), *state.inbox]
    return None if any(item.text == found.message for item in told) else found


def _pattern(steps: Sequence[_Step]) -> Circling | None:
    """The pattern that the steps, newest first, end with."""
    if len(steps) < REPEATED_MAX - 1:
        return None
    repeated = 1
    while repeated < min(len(steps), REPEATED_MAX) and _same(steps[0], steps[repeated]):
        repeated += 1
    if repeated >= REPEATED_MAX - 1:
        what = f"the same call with the same result {repeated} times in a row: {_shown(steps[0])}"
        return _said(what, over=repeated == REPEATED_MAX)
    if repeated > 1:
        return None
    alternating = 2
    while alternating < min(len(steps), ALTERNATING_MAX) and _same(
        steps[alternating - 2], steps[alternating]
    ):
        alternating += 1
    if alternating >= ALTERNATING_MAX - 1:
        what = f"the same two steps in turn, {alternating} in all: {_shown(steps[1])} and {_shown(steps[0])}"
        return _said(what, over=alternating == ALTERNATING_MAX)
    return None


def _said(what: str, *, over: bool) -> Circling:
    if over:
        return Circling(over, f"the model goes round in circles: {what}")
    return Circling(
        over,
        f"SYSTEM NOTE: You are going round in circles: {what}. Once more, and the run is stopped as stuck. Find out why "
        "it does not help and try something else; or finish now, and say in your answer what stands in the way.",
    )


def _latest(transcript: Sequence[Item]) -> Iterator[_Step]:
    """The latest steps, newest first, as far back as something new was said to the model."""
    results: dict[str, ToolItem] = {}
    count = 0
    for item in reversed(transcript):
        match item:
            case ToolItem():
                results[item.call_id] = item
            case AssistantItem():
                yield _Step(item, results)
                results, count = {}, count + 1
            case UserItem() if item.origin != "runtime":
                return
            case UserItem():
                pass
        if count == ALTERNATING_MAX:
            return


def _behind_last_result(transcript: Sequence[Item]) -> Iterator[UserItem]:
    for item in reversed(transcript):
        if not isinstance(item, UserItem):
            return
        yield item


def _same(one: _Step, other: _Step) -> bool:
    """Whether nothing but volatile parts differs. Nearly always the names or the arguments do, and that is cheap."""
    ours, theirs = one.turn.calls, other.turn.calls
    if len(ours) != len(theirs):
        return False
    if not ours:
        return _alike(one.turn.content, other.turn.content, _IN_RESULTS)
    if not all(_same_call(mine, its) for mine, its in zip(ours, theirs, strict=True)):
        return False
    return all(
        _same_result(one.results.get(mine.call_id), other.results.get(its.call_id))
        for mine, its in zip(ours, theirs, strict=True)
    )


def _same_call(one: ModelToolCall, other: ModelToolCall) -> bool:
    if one.name != other.name:
        return False
    if one.arguments is None or other.arguments is None:
        # What could not be read was not run: it is told apart by what was wrong with it, which is the result.
        return one.arguments is other.arguments
    if one.arguments == other.arguments:
        return True
    return _alike(_encoded(one.arguments), _encoded(other.arguments), _IN_ARGUMENTS)


def _same_result(one: ToolItem | None, other: ToolItem | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.ok == other.ok and _alike(one.output, other.output, _IN_RESULTS)


def _alike(one: str, other: str, volatile: re.Pattern[str]) -> bool:
    if one == other:
        return True
    if max(len(one), len(other)) > _VOLATILE_CHARS_MAX and volatile is _IN_ARGUMENTS:
        return False
    return volatile.sub("~", one) == volatile.sub("~", other)


def _encoded(arguments: dict[str, object]) -> str:
    return msgspec.json.encode(arguments, order="deterministic").decode()


def _shown(step: _Step) -> str:
    """A step for people, and for the model."""
    if not step.turn.calls:
        return one_line(step.turn.content, _SHOWN_CHARS_MAX)
    call = step.turn.calls[0]
    arguments = call.raw_arguments or "" if call.arguments is None else _encoded(call.arguments)
    more = f" and {len(step.turn.calls) - 1} more" if len(step.turn.calls) > 1 else ""
    result = step.results.get(call.call_id)
    seen = (
        ""
        if result is None
        else f" → {'' if result.ok else 'error: '}{one_line(result.output, _SHOWN_CHARS_MAX)}"
    )
    return f"{call.name} {one_line(arguments, _SHOWN_CHARS_MAX)}{more}{seen}"

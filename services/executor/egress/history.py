"""Egress: a run's state → the messages that its model sees, legal for the strictest server.

Invariant: from any prefix of any log, each call is answered exactly once and directly behind its turn, no result
stands without its call, no message is empty, no user message follows another, and the last message is not the
model's. The transcript itself is never changed.

    system | user: (note of what was left out +) goal (+ texts before the first turn) | unit | unit | ...
    unit = assistant [+ one tool message a call] [+ user: the texts that came before the next turn, in one message]

A unit that would take more than its share (`budget.turn_tokens_max`) is shown with its longest texts clipped; what a
person said never is. `messages` is the specification. `History` gives the same bytes incrementally: a unit is encoded when it appears or
grows, so an iteration costs what it adds and not what went before.
"""

from collections.abc import Sequence
from typing import assert_never

import msgspec

from libs.contracts.run import RunState
from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall
from services.executor.egress.budget import turn_tokens_max
from services.executor.egress.clipping import TEXT_TOKENS_MIN, clipped, clipped_strings
from services.executor.egress.messages import (
    AssistantMessage,
    Call,
    Function,
    Message,
    SystemMessage,
    ToolMessage,
    UserMessage,
    in_dialect,
)
from services.executor.egress.note import CALLS_MAX, note
from services.executor.egress.profile import Profile
from services.executor.ingress.text import clean, without_surrogates
from services.executor.ingress.tokens import MESSAGE_TOKENS, tokens_in

# A host clips outputs to the limit and says so in a few words more; that is not clipped a second time.
_CLIP_SLACK_CHARS = 500
# How a call that left is told: its beginning is enough to know it again.
_CALL_CHARS_MAX = 120

INTERRUPTED = "interrupted before a result was produced; whether it had an effect is unknown: look before you call it again"
_NO_OUTPUT = "(no output)"
_NO_GOAL = "(no goal was given)"
_GO_ON = UserItem(text="Go on.", origin="runtime")

_ENCODER = msgspec.json.Encoder()


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """An atomic part of the history: it stays or leaves as one. `first` is the index of its turn in the transcript."""

    first: int
    fragment: bytes
    messages: int
    tokens: int


class Outbound(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of one request. `fragments` are JSON, each some whole messages joined by commas; `head_tokens` is
    what the system prompt, the goal and the note take, `tokens` what all messages take."""

    fragments: list[bytes]
    message_count: int
    head_tokens: int
    tokens: int
    units: list[Unit]


def messages(state: RunState, system: str, profile: Profile, *, paging: bool = False) -> list[Message]:
    """The whole history as messages: what `History` must give, made from nothing. `paging`: the model has a tool that
    reads earlier results on."""
    transcript = _Groups()
    transcript.extend(state.transcript)
    groups = transcript.groups
    found = in_dialect(_head(state, system, transcript, paging), profile)
    for group in groups:
        if group.first >= state.compacted:
            closing = _closing(state, group is groups[-1], group)
            found.extend(_fitted(group, state, profile, closing, paging)[0])
    return found


class History:
    """One run's outbound history, kept by its owner from request to request. Holds no unit that left the context."""

    def __init__(self, system: str, *, paging: bool = False) -> None:
        self._system, self._paging = system, paging
        self._made_for: object = None
        self._transcript = _Groups()
        # The units of the groups behind the first `_left`, which left the context.
        self._units: list[Unit] = []
        self._left = 0
        self._seen: tuple[Item, ...] = ()
        self._head_key: object = None
        self._head = Unit(first=0, fragment=b"", messages=0, tokens=0)

    def outbound(self, state: RunState, profile: Profile) -> Outbound:
        """The messages of a request made in this state."""
        self._follow(state, profile)
        return _outbound(self._encoded_head(state, profile), self._units)

    def foreseen(self, state: RunState, profile: Profile, after: RunState) -> Outbound:
        """What `outbound` would give once more has left: `after` is `state` but for that. Nothing is forgotten yet."""
        self._follow(state, profile)
        groups = self._transcript.groups
        if turn_tokens_max(after) == turn_tokens_max(state):
            units = [unit for unit in self._units if unit.first >= after.compacted]
        else:
            left = [group for group in groups if group.first >= after.compacted]
            units = [self._made(group, after, profile) for group in left]
        head = _head(after, self._system, self._transcript, self._paging)
        return _outbound(_unit(0, in_dialect(head, profile)), units)

    def _follow(self, state: RunState, profile: Profile) -> None:
        """Take in what the transcript gained; another profile or another bound begins from nothing."""
        made_for = (profile, turn_tokens_max(state))
        if made_for != self._made_for:
            self._transcript, self._units, self._left, self._made_for = _Groups(), [], 0, made_for
        transcript, seen = state.transcript, self._seen
        known = min(len(transcript), len(seen), self._transcript.items)
        # What was foreseen and then stored are equal items, not the same ones; only the newest few are ever affected.
        while known and transcript[known - 1] is not seen[known - 1]:
            known -= 1
        self._transcript.rewind(known)
        # The newest unit may grow, its results may come, its closing may go: it is always made again.
        fresh = max(0, len(self._transcript.groups) - 1)
        self._transcript.extend(transcript[self._transcript.items :])
        self._seen = transcript
        left = sum(group.first < state.compacted for group in self._transcript.groups)
        if left > self._left:
            # What left has become light; what is kept of it here does too.
            self._transcript = _Groups()
            self._transcript.extend(transcript)
        groups = self._transcript.groups
        if left < self._left:
            self._units, fresh = [], left
        else:
            del self._units[max(0, fresh - self._left) :]
            del self._units[: left - self._left]
        self._left = left
        for group in groups[max(fresh, left) :]:
            self._units.append(self._made(group, state, profile))

    def _made(self, group: "_Group", state: RunState, profile: Profile) -> Unit:
        closing = _closing(state, group is self._transcript.groups[-1], group)
        return _fitted(group, state, profile, closing, self._paging)[1]

    def _encoded_head(self, state: RunState, profile: Profile) -> Unit:
        groups = self._transcript
        inbox = () if groups.groups else state.inbox
        key: object = (profile, tuple(groups.leading), inbox)
        if state.compacted:
            # Nothing of the note changes before more leaves: it is the beginning of what a provider keeps in its cache.
            # (The texts of the newest turn that left grow only where a log lets even the newest turn leave.)
            growing = len(groups.groups[self._left - 1].texts) if self._left else 0
            key = (key, state.compacted, state.summary, state.kept, turn_tokens_max(state), growing)
        if key != self._head_key:
            self._head_key = key
            head = _head(state, self._system, groups, self._paging)
            self._head = _unit(0, in_dialect(head, profile))
        return self._head


# --- The transcript in units ------------------------------------------------------------------------------------


class _Group:
    """A turn, the results of its calls, and the texts that came before the next turn."""

    def __init__(self, first: int, turn: AssistantItem) -> None:
        self.first = first
        self.turn = turn
        self.results: dict[str, ToolItem] = {}
        self.texts: list[UserItem] = []


class _Groups:
    """A transcript, item by item. A turn without text and calls is no message and opens no group."""

    def __init__(self) -> None:
        self.items = 0
        self.leading: list[UserItem] = []
        self.groups: list[_Group] = []

    def extend(self, items: Sequence[Item]) -> None:
        for item in items:
            match item:
                case AssistantItem():
                    if item.calls or item.content.strip():
                        self.groups.append(_Group(self.items, item))
                case ToolItem():
                    if self.groups:
                        self.groups[-1].results.setdefault(item.call_id, item)
                case UserItem():
                    if item.text.strip():
                        texts = self.groups[-1].texts if self.groups else self.leading
                        texts.append(item)
                case _:
                    assert_never(item)
            self.items += 1

    def rewind(self, items: int) -> None:
        """Forget what came behind the first `items` items, and up to one group more."""
        if items == self.items:
            return
        while self.groups and self.groups[-1].first >= items:
            self.groups.pop()
        # The group before may hold some of them too; without one, the texts before the first turn may.
        self.items = self.groups.pop().first if self.groups else 0
        if self.items == 0:
            self.leading = []

    def last_text_before(self, index: int, *, of_a_person: bool) -> str | None:
        """The newest text of a person, or of the runtime, in the groups that begin before `index`."""
        for group in reversed(self.groups):
            if group.first < index:
                for item in reversed(group.texts):
                    if (item.origin == "steering") is of_a_person:
                        return item.text
        return None

    def calls_before(self, index: int) -> list[str]:
        """The newest calls in the groups that begin before `index`, one a line, the newest last."""
        lines: list[str] = []
        for group in reversed(self.groups):
            if group.first < index:
                for call in reversed(group.turn.calls):
                    arguments = _ENCODER.encode(clean(call.arguments or {})).decode()
                    lines.append(f"- {call.call_id}: {call.name} {arguments}"[:_CALL_CHARS_MAX])
                if len(lines) >= CALLS_MAX:
                    break
        return lines[CALLS_MAX - 1 :: -1]


# --- Messages ---------------------------------------------------------------------------------------------------


def _head(state: RunState, system: str, groups: _Groups, paging: bool) -> list[Message]:
    """What never leaves the context: the system prompt, the goal, texts from before the first turn; and the note."""
    texts = [
        state.task.goal if state.task.goal.strip() else _NO_GOAL,
        *(item.text for item in groups.leading),
    ]
    if not groups.groups:
        texts.extend(item.text for item in state.inbox if item.text.strip())
    if state.compacted:
        calls = groups.calls_before(state.compacted) if paging else []
        feedback = groups.last_text_before(state.compacted, of_a_person=False)
        latest = groups.last_text_before(state.compacted, of_a_person=True)
        texts = note(state, calls, feedback, texts, latest)
    head: list[Message] = [SystemMessage(content=without_surrogates(system))] if system.strip() else []
    return [*head, UserMessage(content=_joined(texts))]


def _closing(state: RunState, newest: bool, group: _Group) -> list[UserItem]:
    """Texts behind a unit that are not in the transcript: behind the newest the inbox; and the model never speaks twice
    in a row, nor has the last word."""
    waiting = [item for item in state.inbox if item.text.strip()] if newest else []
    return [_GO_ON] if not (waiting or group.texts or group.turn.calls) else waiting


def _fitted(
    group: _Group, state: RunState, profile: Profile, closing: list[UserItem], paging: bool
) -> tuple[list[Message], Unit]:
    """The messages of one unit, and the unit: with its longest texts clipped as far as its share asks for it."""
    share = texts_max = turn_tokens_max(state)
    found = _turn(group, state, profile, closing, paging, None)
    made = _unit(group.first, found)
    while made.tokens > share and texts_max > TEXT_TOKENS_MIN:
        texts_max = texts_max * 2 // 3
        found = _turn(group, state, profile, closing, paging, texts_max)
        made = _unit(group.first, found)
    return found, made


def _turn(
    group: _Group,
    state: RunState,
    profile: Profile,
    closing: list[UserItem],
    paging: bool,
    texts_max: int | None,
) -> list[Message]:
    """The messages of one unit, no text of the model, a tool or the runtime longer than `texts_max` tokens."""
    turn = group.turn

    def fitted(text: str) -> str:
        return clipped(without_surrogates(text), chars_max=len(text), tokens_max=texts_max)

    content = fitted(turn.content)
    found: list[Message] = [
        AssistantMessage(
            content=content if content.strip() else None,
            reasoning_content=fitted(turn.reasoning),
            tool_calls=[_call(call, texts_max) for call in turn.calls] or msgspec.UNSET,
        )
    ]
    for call in turn.calls:
        result = group.results.get(call.call_id)
        output = _output(result, state, paging, texts_max) if result is not None else _missing(call, state)
        found.append(ToolMessage(tool_call_id=call.call_id, content=output))
    if texts := [*group.texts, *closing]:
        said = [item.text if item.origin == "steering" else fitted(item.text) for item in texts]
        found.append(UserMessage(content=_joined(said)))
    return in_dialect(found, profile)


def _call(call: ModelToolCall, texts_max: int | None) -> Call:
    """Arguments that nobody could read are not shown to a server again: it would refuse the whole request."""
    arguments: object = call.arguments or {}
    try:
        encoded = msgspec.json.encode(arguments)
    except UnicodeEncodeError:
        arguments = clean(arguments)
        encoded = msgspec.json.encode(arguments)
    if texts_max is not None and len(encoded) > texts_max:
        encoded = msgspec.json.encode(clipped_strings(arguments, texts_max))
    return Call(
        id=call.call_id,
        function=Function(name=call.name or "unknown", arguments=encoded.decode()),
        extra_content=call.extra_content or msgspec.UNSET,
    )


def _output(result: ToolItem, state: RunState, paging: bool, texts_max: int | None) -> str:
    output = without_surrogates(result.output) if result.output.strip() else _NO_OUTPUT
    if not result.ok and not output.startswith("ERROR"):
        output = f"ERROR: {output}"
    chars_max = state.limits.max_tool_output_chars + _CLIP_SLACK_CHARS
    call_id = result.call_id if paging else None
    return clipped(output, chars_max=chars_max, tokens_max=texts_max, call_id=call_id)


def _missing(call: ModelToolCall, state: RunState) -> str:
    if call.problem is not None:
        return f"ERROR: {without_surrogates(call.problem)}"
    for question in state.questions:
        if question.call_id == call.call_id and question.kind == "question" and question.answer:
            return without_surrogates(question.answer) if question.answer.strip() else _NO_OUTPUT
    return INTERRUPTED


def _joined(texts: Sequence[str]) -> str:
    return without_surrogates("\n\n".join(texts))


def _unit(first: int, found: list[Message]) -> Unit:
    fragment = b",".join([_ENCODER.encode(message) for message in found])
    tokens = tokens_in(fragment) + MESSAGE_TOKENS * len(found)
    return Unit(first=first, fragment=fragment, messages=len(found), tokens=tokens)


def _outbound(head: Unit, units: list[Unit]) -> Outbound:
    return Outbound(
        fragments=[head.fragment, *(unit.fragment for unit in units)],
        message_count=head.messages + sum(unit.messages for unit in units),
        head_tokens=head.tokens,
        tokens=head.tokens + sum(unit.tokens for unit in units),
        units=list(units),
    )

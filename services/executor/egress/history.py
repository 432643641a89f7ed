"""Egress: a run's state → the messages that its model sees, legal for the strictest server.

Invariant: from any prefix of any log, each call is answered exactly once and directly behind its turn, no result
stands without its call, no message is empty, no user message follows another, and the last message is not the
model's. The transcript itself is never changed.

    system | user: goal (+ note of what was left out) (+ texts before the first turn) | unit | unit | ...
    unit = assistant [+ one tool message a call] [+ user: the texts that came before the next turn, in one message]

`messages` is the specification. `History` gives the same bytes incrementally: a unit is encoded when it appears or
grows, so an iteration costs what it adds and not what went before.
"""

import re
from collections.abc import Sequence
from typing import Literal, assert_never

import msgspec

from libs.contracts.run import RunState
from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall
from services.executor.egress.request import Profile
from services.executor.ingress.text import clean, clipped, without_surrogates
from services.executor.ingress.tokens import MESSAGE_TOKENS, estimated_tokens

# The longest name that strict servers take back, and what they do not want to see in it.
NAME_CHARS_MAX = 64
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]")
# A host clips outputs to the limit and says so in a few words more; that is not clipped a second time.
_CLIP_SLACK_CHARS = 500

INTERRUPTED = "interrupted before a result was produced"
_NO_OUTPUT = "(no output)"
_NO_GOAL = "(no goal was given)"
_GO_ON = "Go on."

_ENCODER = msgspec.json.Encoder()


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: Function
    type: Literal["function"] = "function"


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    content: str


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    content: str


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


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


def messages(state: RunState, system: str, profile: Profile) -> list[Message]:
    """The whole history as messages: what `History` must give, made from nothing."""
    transcript = _Groups()
    transcript.extend(state.transcript)
    groups = transcript.groups
    found = _head(state, system, transcript)
    for group in groups:
        if group.first >= state.compacted:
            found.extend(_turn(group, state, profile, _closing(state, group is groups[-1], group)))
    return found


class History:
    """One run's outbound history, kept by its owner from request to request."""

    def __init__(self, system: str) -> None:
        self._system = system
        self._profile = Profile()
        self._transcript = _Groups()
        self._units: list[Unit] = []
        self._seen: tuple[Item, ...] = ()
        self._head_key: object = None
        self._head = Unit(first=0, fragment=b"", messages=0, tokens=0)

    def outbound(self, state: RunState, profile: Profile) -> Outbound:
        """The messages of a request made in this state."""
        self._follow(state, profile)
        head = self._encoded_head(state)
        units = [unit for unit in self._units if unit.first >= state.compacted]
        return Outbound(
            fragments=[head.fragment, *(unit.fragment for unit in units)],
            message_count=head.messages + sum(unit.messages for unit in units),
            head_tokens=head.tokens,
            tokens=head.tokens + sum(unit.tokens for unit in units),
            units=units,
        )

    def _follow(self, state: RunState, profile: Profile) -> None:
        """Take in what the transcript gained; another profile begins from nothing."""
        if profile != self._profile:
            self._transcript, self._units, self._profile = _Groups(), [], profile
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
        groups = self._transcript.groups
        del self._units[fresh:]
        for group in groups[fresh:]:
            closing = _closing(state, group is groups[-1], group)
            self._units.append(_unit(group.first, _turn(group, state, profile, closing)))

    def _encoded_head(self, state: RunState) -> Unit:
        groups = self._transcript
        inbox = () if groups.groups else state.inbox
        key: object = (tuple(groups.leading), inbox)
        if state.compacted:
            last_text = groups.last_text_before(state.compacted)
            key = (key, state.compacted, state.summary, state.todos, last_text)
        if key != self._head_key:
            self._head_key = key
            self._head = _unit(0, _head(state, self._system, groups))
        return self._head


# --- The transcript in units ------------------------------------------------------------------------------------


class _Group:
    """A turn, the results of its calls, and the texts that came before the next turn."""

    def __init__(self, first: int, turn: AssistantItem) -> None:
        self.first = first
        self.turn = turn
        self.results: dict[str, ToolItem] = {}
        self.texts: list[str] = []


class _Groups:
    """A transcript, item by item. A turn without text and calls is no message and opens no group."""

    def __init__(self) -> None:
        self.items = 0
        self.leading: list[str] = []
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
                        texts.append(item.text)
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

    def last_text_before(self, index: int) -> str | None:
        """The newest text in the groups that begin before `index`."""
        for group in reversed(self.groups):
            if group.first < index and group.texts:
                return group.texts[-1]
        return None


# --- Messages ---------------------------------------------------------------------------------------------------


def _head(state: RunState, system: str, groups: _Groups) -> list[Message]:
    """What never leaves the context: the system prompt, the goal, texts from before the first turn, the note."""
    texts = [state.task.goal if state.task.goal.strip() else _NO_GOAL, *groups.leading]
    if not groups.groups:
        texts.extend(item.text for item in state.inbox if item.text.strip())
    if state.compacted:
        texts.append(_note(state, groups.last_text_before(state.compacted)))
    head: list[Message] = [SystemMessage(content=without_surrogates(system))] if system.strip() else []
    return [*head, UserMessage(content=_joined(texts))]


def _note(state: RunState, last_text: str | None) -> str:
    """What stands for the turns that were left out: a summary if there is one, the plan, the last text among them."""
    parts = [
        "[The earlier part of this conversation was left out to save space. What follows is context, no new task.]"
    ]
    if state.summary:
        parts.append(f"[Summary of it]\n{state.summary}")
    if state.todos:
        lines = "\n".join(f"- {todo.content} ({todo.status})" for todo in state.todos)
        parts.append(f"[The plan as it stands]\n{lines}")
    if last_text:
        parts.append(f"[The last message to you in that part]\n{last_text}")
    return "\n\n".join(parts)


def _closing(state: RunState, newest: bool, group: _Group) -> list[str]:
    """Texts behind the newest unit that are not in the transcript: the inbox; the model never has the last word."""
    if not newest:
        return []
    waiting = [item.text for item in state.inbox if item.text.strip()]
    return [_GO_ON] if not (waiting or group.texts or group.turn.calls) else waiting


def _turn(group: _Group, state: RunState, profile: Profile, closing: list[str]) -> list[Message]:
    """The messages of one unit. A missing result is the answer of a person, if one came, else an interruption."""
    turn = group.turn
    content = without_surrogates(turn.content)
    found: list[Message] = [
        AssistantMessage(
            content=content if content.strip() else None,
            reasoning_content=without_surrogates(turn.reasoning)
            if profile.replay_reasoning
            else msgspec.UNSET,
            tool_calls=[_call(call) for call in turn.calls] or msgspec.UNSET,
        )
    ]
    for call in turn.calls:
        result = group.results.get(call.call_id)
        output = _output(result, state) if result is not None else _missing(call, state)
        found.append(ToolMessage(tool_call_id=call.call_id, content=output))
    if texts := [*group.texts, *closing]:
        found.append(UserMessage(content=_joined(texts)))
    return found


def _call(call: ModelToolCall) -> Call:
    """Arguments that nobody could read are not shown to a server again: it would refuse the whole request."""
    name = _NOT_IN_NAMES.sub("_", call.name)[:NAME_CHARS_MAX] or "unknown"
    arguments = call.arguments or {}
    try:
        encoded = msgspec.json.encode(arguments)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(clean(arguments))
    return Call(id=call.call_id, function=Function(name=name, arguments=encoded.decode()))


def _output(result: ToolItem, state: RunState) -> str:
    output = without_surrogates(result.output) if result.output.strip() else _NO_OUTPUT
    if not result.ok and not output.startswith("ERROR"):
        output = f"ERROR: {output}"
    return clipped(output, state.limits.max_tool_output_chars + _CLIP_SLACK_CHARS)


def _missing(call: ModelToolCall, state: RunState) -> str:
    if call.problem is not None:
        return f"ERROR: {without_surrogates(call.problem)}"
    for question in state.questions:
        if question.call_id == call.call_id and question.kind == "question" and question.answer:
            return without_surrogates(question.answer)
    return INTERRUPTED


def _joined(texts: Sequence[str]) -> str:
    return without_surrogates("\n\n".join(texts))


def _unit(first: int, found: list[Message]) -> Unit:
    fragment = b",".join([_ENCODER.encode(message) for message in found])
    tokens = estimated_tokens(len(fragment)) + MESSAGE_TOKENS * len(found)
    return Unit(first=first, fragment=fragment, messages=len(found), tokens=tokens)

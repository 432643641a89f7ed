"""The messages of a chat completion request, and how a model wants them written.

Invariant: pure; a dialect changes how things are said, never what: no text is lost, no message becomes empty.
"""

import base64
import hashlib
from typing import Literal

import msgspec

from services.executor.egress.profile import Profile
from services.executor.ingress.names import wire_name


class Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str


class Call(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    function: Function
    type: Literal["function"] = "function"
    extra_content: dict[str, object] | msgspec.UnsetType = msgspec.UNSET


class SystemMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="system"):
    content: str


class UserMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="user"):
    content: str


class AssistantMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="assistant"):
    content: str | None
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    reasoning: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[Call] | msgspec.UnsetType = msgspec.UNSET


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="role", tag="tool"):
    tool_call_id: str
    content: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage


def in_dialect(messages: list[Message], profile: Profile) -> list[Message]:
    """The head of a history, or one of its units, as a model wants it."""
    if not profile.tools:
        messages = _as_texts(messages)
    if not profile.system_role:
        messages = _without_system(messages)
    if not profile.user_after_tool:
        messages = _with_last_result(messages)
    return [_written(one, profile) for one in messages]


def _written(message: Message, profile: Profile) -> Message:
    match message:
        case AssistantMessage():
            return _turn(message, profile)
        case ToolMessage() if not profile.long_ids:
            return ToolMessage(tool_call_id=_short(message.tool_call_id), content=message.content)
        case _:
            return message


def _turn(turn: AssistantMessage, profile: Profile) -> AssistantMessage:
    content, thought = turn.content, turn.reasoning_content
    if content is None and not profile.null_content:
        content = ""
    calls = turn.tool_calls
    if not isinstance(calls, msgspec.UnsetType):
        calls = [_call(call, profile) for call in calls]
    return AssistantMessage(
        content=content,
        reasoning_content=thought if profile.reasoning == "reasoning_content" else msgspec.UNSET,
        reasoning=thought if profile.reasoning == "reasoning" else msgspec.UNSET,
        tool_calls=calls,
    )


def _call(call: Call, profile: Profile) -> Call:
    name = wire_name(call.function.name, profile.aliases, plain=profile.plain_names)
    extra = call.extra_content if profile.extra_content else msgspec.UNSET
    if name == call.function.name and extra is call.extra_content and profile.long_ids:
        return call
    return Call(
        id=call.id if profile.long_ids else _short(call.id),
        function=Function(name=name, arguments=call.function.arguments),
        extra_content=extra,
    )


def _as_texts(messages: list[Message]) -> list[Message]:
    """Without tools on offer, what was called and what came of it is told in words: servers refuse the calls."""
    found: list[Message] = []
    names: dict[str, str] = {}
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=list(calls)):
                names = {call.id: call.function.name for call in calls}
                told = [f"[I called {call.function.name} with {call.function.arguments}]" for call in calls]
                content = "\n".join([message.content, *told] if message.content else told)
                found.append(msgspec.structs.replace(message, content=content, tool_calls=msgspec.UNSET))
            case ToolMessage():
                text = f"[Result of {names.get(message.tool_call_id, 'a call')}]\n{message.content}"
                _say(found, text)
            case UserMessage():
                _say(found, message.content)
            case _:
                found.append(message)
    return found


def _say(found: list[Message], text: str) -> None:
    """Add what a user says: one message, however often in a row."""
    if found and isinstance(found[-1], UserMessage):
        text = f"{found.pop().content}\n\n{text}"
    found.append(UserMessage(content=text))


def _with_last_result(messages: list[Message]) -> list[Message]:
    """What a user says behind results stands in the last of them."""
    match messages:
        case [*before, ToolMessage() as result, UserMessage(content=said)]:
            text = f"{result.content}\n\n[Message of the user]\n{said}"
            return [*before, ToolMessage(tool_call_id=result.tool_call_id, content=text)]
        case _:
            return messages


def _short(ident: str) -> str:
    """Nine letters and digits for an id of ours."""
    digest = hashlib.blake2s(ident.encode(), digest_size=8).digest()
    return base64.b32encode(digest).decode().lower()[:9]


def _without_system(messages: list[Message]) -> list[Message]:
    """The instructions go before the first thing that the user says."""
    match messages:
        case [SystemMessage(content=rules), UserMessage(content=said), *rest]:
            return [UserMessage(content=f"{rules}\n\n{said}"), *rest]
        case _:
            return messages

"""What strict endpoints refuse with 400, as they refuse it.

Invariant: a history that passes all rules of `ALWAYS` is accepted by every endpoint we know of; the others name
habits of single providers.
"""

import re
from collections.abc import Callable
from itertools import pairwise

import msgspec

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    arguments: str = ""


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    function: CalledFunction = CalledFunction()


class SentMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: str | list[dict[str, object]] | None = None
    tool_calls: list[CalledTool] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | msgspec.UnsetType | None = msgspec.UNSET

    @property
    def text(self) -> str:
        """The content as one text."""
        if isinstance(self.content, list):
            return "".join(str(part.get("text", "")) for part in self.content)
        return self.content or ""


class SentRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that the scripted model looks at."""

    messages: list[SentMessage]
    model: str = ""
    stream: bool = False
    stream_options: dict[str, object] | None = None


def broken_rule(request: SentRequest, rules: frozenset[str]) -> str | None:
    """The message of the first rule that the request breaks."""
    for name, rule in RULES.items():
        if name in rules and (message := rule(request)) is not None:
            return message
    return None


def _pairing(request: SentRequest) -> str | None:
    open_ids: list[str] = []
    seen: set[str] = set()
    for index, message in enumerate(request.messages):
        if message.role == "tool":
            if message.tool_call_id not in open_ids:
                return (
                    f"Invalid parameter: messages.[{index}] with role 'tool' must be a response to a preceding message "
                    "with 'tool_calls'."
                )
            open_ids.remove(message.tool_call_id)
            continue
        if open_ids:
            break
        open_ids = [call.id for call in message.tool_calls or ()]
        if len(set(open_ids)) < len(open_ids) or seen.intersection(open_ids) or "" in open_ids:
            return f"Invalid parameter: messages.[{index}].tool_calls: duplicate or empty 'id'."
        seen.update(open_ids)
    if open_ids:
        return (
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
            f"The following tool_call_ids did not have response messages: {', '.join(open_ids)}"
        )
    return None


def _content(request: SentRequest) -> str | None:
    if not request.messages:
        return "Invalid 'messages': empty array. Expected an array with minimum length 1."
    for index, message in enumerate(request.messages):
        if not message.text.strip() and not message.tool_calls:
            return f"Invalid parameter: messages.[{index}]: {message.role} message must have content, must not be empty."
        if message.tool_calls == []:
            return f"Invalid 'messages[{index}].tool_calls': empty array."
    return None


def _arguments(request: SentRequest) -> str | None:
    for index, message in enumerate(request.messages):
        for call in message.tool_calls or ():
            try:
                msgspec.json.decode(call.function.arguments, type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, UnicodeEncodeError):
                return f"Invalid parameter: messages.[{index}].tool_calls: function.arguments must be valid JSON."
    return None


def _names(request: SentRequest) -> str | None:
    for index, message in enumerate(request.messages):
        for call in message.tool_calls or ():
            if _NAME.fullmatch(call.function.name) is None:
                return f"Invalid 'messages[{index}].tool_calls[0].function.name': string does not match '^[a-zA-Z0-9_-]+$'."
    return None


def _alternation(request: SentRequest) -> str | None:
    roles = [message.role for message in request.messages if message.role not in ("system", "tool")]
    for before, after in pairwise(roles):
        if before == after == "user":
            return "Conversation roles must alternate user/assistant/user/assistant/..."
    if roles and request.messages[-1].role == "assistant":
        return "The last message must not be of the assistant: prefill is not supported."
    return None


def _no_stream_options(request: SentRequest) -> str | None:
    return "Unrecognized request argument supplied: stream_options" if request.stream_options else None


def _reasoning_required(request: SentRequest) -> str | None:
    for message in request.messages:
        if message.tool_calls and message.reasoning_content is msgspec.UNSET:
            return "The reasoning_content in the thinking mode must be passed back to the API."
    return None


def _reasoning_refused(request: SentRequest) -> str | None:
    for index, message in enumerate(request.messages):
        if message.reasoning_content is not msgspec.UNSET:
            return f"messages.{index}.assistant.reasoning_content: property is unsupported"
    return None


RULES: dict[str, Callable[[SentRequest], str | None]] = {
    "content": _content,
    "pairing": _pairing,
    "arguments": _arguments,
    "names": _names,
    "alternation": _alternation,
    "no_stream_options": _no_stream_options,
    "reasoning_required": _reasoning_required,
    "reasoning_refused": _reasoning_refused,
}
ALWAYS = frozenset({"content", "pairing", "arguments", "names", "alternation"})

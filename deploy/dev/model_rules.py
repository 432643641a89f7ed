"""What strict endpoints refuse with 400, as they refuse it.

Invariant: a history that passes all rules of `ALWAYS` is accepted by every endpoint we know of; the others name
habits of single providers.
"""

import re
from collections.abc import Callable
from itertools import pairwise

import msgspec

_OUR_CALL = re.compile(r"call_(\d{1,9})_\d+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
_ID = re.compile(r"[a-zA-Z0-9_-]{1,40}")
_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
# What one provider can write at most.
OUTPUT_TOKENS_MAX = 16_384


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    arguments: str = ""


class CalledTool(msgspec.Struct, frozen=True, kw_only=True):
    id: str = ""
    function: CalledFunction = CalledFunction()
    extra_content: dict[str, object] | None = None


class OfferedFunction(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    parameters: dict[str, object] = {}


class OfferedTool(msgspec.Struct, frozen=True, kw_only=True):
    function: OfferedFunction = OfferedFunction()


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
    tools: list[OfferedTool] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None

    @property
    def calls(self) -> list[CalledTool]:
        """All calls in the history."""
        return [call for message in self.messages for call in message.tool_calls or ()]


def turn_of(request: SentRequest) -> int:
    """How many turns came before: counted, or read from our call ids when the older ones were left out."""
    turns = 0
    for message in request.messages:
        if message.role == "assistant":
            turns += 1
            for call in message.tool_calls or ():
                if (match := _OUR_CALL.fullmatch(call.id)) is not None:
                    turns = max(turns, int(match[1]))
    return turns


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


def _offered(request: SentRequest) -> str | None:
    names = [tool.function.name for tool in request.tools or ()]
    if request.tools == []:
        return "[] is too short - 'tools'"
    if len(set(names)) < len(names):
        return "tools: Tool names must be unique."
    for index, tool in enumerate(request.tools or ()):
        if _NAME.fullmatch(tool.function.name) is None:
            return (
                f"Invalid 'tools[{index}].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'."
            )
        if tool.function.parameters.get("type") != "object":
            return f"tools[{index}].function.parameters: schema must be of type object."
    if request.calls and not request.tools:
        return "The tools= param is required when messages contain tool calls."
    return None


def _ids(request: SentRequest) -> str | None:
    for call in request.calls:
        if _ID.fullmatch(call.id) is None:
            return f"Invalid tool call id {call.id!r}: at most 40 of a-z, A-Z, 0-9, _ and -."
    return None


def _roles(request: SentRequest) -> str | None:
    for index, message in enumerate(request.messages):
        if message.role not in ("system", "user", "assistant", "tool"):
            return f"messages.[{index}].role: {message.role!r} is not one of ['system', 'assistant', 'user', 'tool']."
        if message.role == "system" and index > 0:
            return "System message must be at the beginning."
    return None


def _alternation(request: SentRequest) -> str | None:
    roles = [message.role for message in request.messages if message.role not in ("system", "tool")]
    for before, after in pairwise(roles):
        if before == after == "user":
            return _ALTERNATE
    if any(before.role == after.role == "assistant" for before, after in pairwise(request.messages)):
        return _ALTERNATE
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


def _no_max_tokens(request: SentRequest) -> str | None:
    if request.max_tokens is None:
        return None
    return "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."


def _no_max_completion_tokens(request: SentRequest) -> str | None:
    if request.max_completion_tokens is None:
        return None
    return "Unrecognized request argument supplied: max_completion_tokens"


def _small_output(request: SentRequest) -> str | None:
    wanted = request.max_tokens or request.max_completion_tokens or 0
    if wanted <= OUTPUT_TOKENS_MAX:
        return None
    return f"max_tokens is too large: {wanted}. This model supports at most {OUTPUT_TOKENS_MAX} completion tokens."


def _no_system(request: SentRequest) -> str | None:
    return "System role not supported" if request.messages[0].role == "system" else None


def _no_null_content(request: SentRequest) -> str | None:
    for index, message in enumerate(request.messages):
        if message.content is None:
            return f"messages.{index}.content: none is not an allowed value: a valid string is required."
    return None


def _plain_names(request: SentRequest) -> str | None:
    for index, tool in enumerate(request.tools or ()):
        if _PLAIN_NAME.fullmatch(tool.function.name) is None:
            return f"tools[{index}].function.name: invalid, must be at most 32 small letters, digits or underscores."
    return None


def _reserved_names(request: SentRequest) -> str | None:
    reserved = any(tool.function.name == "echo" for tool in request.tools or ())
    return "The tool name 'echo' is reserved." if reserved else None


def _short_ids(request: SentRequest) -> str | None:
    for call in request.calls:
        if _SHORT_ID.fullmatch(call.id) is None:
            return f"Tool call id was {call.id} but must be a-z, A-Z, 0-9, with a length of 9."
    return None


def _no_user_after_tool(request: SentRequest) -> str | None:
    for before, after in pairwise(request.messages):
        if (before.role, after.role) == ("tool", "user"):
            return "Unexpected role 'user' after role 'tool'"
    return None


def _signed_calls(request: SentRequest) -> str | None:
    if all(call.extra_content for call in request.calls):
        return None
    return "Function call is missing a thought_signature in functionCall parts."


def _no_extra_content(request: SentRequest) -> str | None:
    return "Unknown name extra_content" if any(call.extra_content for call in request.calls) else None


RULES: dict[str, Callable[[SentRequest], str | None]] = {
    "content": _content,
    "pairing": _pairing,
    "arguments": _arguments,
    "names": _names,
    "alternation": _alternation,
    "offered": _offered,
    "ids": _ids,
    "roles": _roles,
    "no_stream_options": _no_stream_options,
    "reasoning_required": _reasoning_required,
    "reasoning_refused": _reasoning_refused,
    "no_max_tokens": _no_max_tokens,
    "no_max_completion_tokens": _no_max_completion_tokens,
    "small_output": _small_output,
    "no_system": _no_system,
    "no_null_content": _no_null_content,
    "plain_names": _plain_names,
    "reserved_names": _reserved_names,
    "short_ids": _short_ids,
    "no_user_after_tool": _no_user_after_tool,
    "signed_calls": _signed_calls,
    "no_extra_content": _no_extra_content,
}
ALWAYS = frozenset({"content", "pairing", "arguments", "names", "alternation", "offered", "ids", "roles"})
# Habits of single providers; some contradict each other.
HABITS = RULES.keys() - ALWAYS

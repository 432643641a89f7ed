"""What a scripted model says: plain data, and its rendering as the bytes of the OpenAI wire.

Invariant: which answer a request gets depends on the request alone (its goal and the turns in it), so a request that
is repeated after a crash gets the same answer. Only a turn with `attempts` counts how often it was asked.

A script is a JSON object:

    {"conversations": [
        {"marker": "repair", "turns": [
            {"text": "I look first.", "calls": [{"name": "list_files", "arguments": {}}]},
            {"calls": [{"name": "echo", "arguments": {"text": "x"}}], "repeat": 2},
            {"attempts": [{"status": 429, "headers": {"Retry-After": "1"}}, {"text": "Done."}]}]},
        {"marker": "", "turns": [{"text": ["Hel", "lo."], "chunk_delay_s": 0.05}]}]}

The first conversation whose `marker` occurs in the first user message, with all texts that it names in `also`, answers;
the turn is the number of assistant messages in the request (or what our call ids say, when older turns were left out of
the context). An answer is

    text, reasoning     a string, or a list of strings: one chunk each
    calls               [{name, arguments: an object, or a string sent as it is, id?}]
    finish_reason       default: tool_calls with calls, else stop
    usage               default: counted from the lengths; null: none is sent
    delay_s             before anything is sent; chunk_delay_s: before each chunk
    status, headers, body   an HTTP error instead (body: any JSON, or a string sent as it is)
    raw                 a list of strings sent as they are instead of rendered chunks, each in its own write;
                        `base64` does the same for bytes
    wire                the whole response instead, status line and headers included: base64, each in its own write
    end                 complete (default) | eof (connection closed without the end of the body) | reset (TCP RST)
                        | hang (nothing more comes, the connection stays open)
"""

import base64
from typing import Literal

import msgspec

CHUNK_HEAD = b'data: {"id":"chatcmpl-script","object":"chat.completion.chunk","created":1,"model":"scripted","choices":['
DONE = b"data: [DONE]\n\n"


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, object] | str = {}
    id: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    text: str | list[str] = []
    reasoning: str | list[str] = []
    calls: list[ScriptedCall] = []
    finish_reason: str | None = None
    usage: dict[str, object] | msgspec.UnsetType | None = msgspec.UNSET
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    status: int = 200
    headers: dict[str, str] = {}
    body: object = None
    raw: list[str] | None = None
    base64: list[str] | None = None
    wire: list[str] | None = None
    end: Literal["complete", "eof", "reset", "hang"] = "complete"
    attempts: list["Answer"] = []
    repeat: int = 1


class Conversation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rules` are what is refused here beside the script's own."""

    turns: list[Answer]
    marker: str = ""
    also: list[str] = []
    rules: list[str] = []


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`rules` names what the server refuses with 400 (`model_rules.py`); `latency_s` comes before every answer."""

    conversations: list[Conversation]
    rules: list[str] | None = None
    latency_s: float = 0.0

    def find(self, goal: str) -> int | None:
        """The conversation for a goal, by index."""
        for index, conversation in enumerate(self.conversations):
            if all(text in goal for text in (conversation.marker, *conversation.also)):
                return index
        return None

    def turn(self, conversation: int, turn: int) -> Answer | None:
        """The answer of a turn, from 0; `None` behind the last."""
        for answer in self.conversations[conversation].turns:
            if turn < answer.repeat:
                return answer
            turn -= answer.repeat
        return None


def load_script(data: bytes) -> Script:
    """The script in `data`. Raises `msgspec.ValidationError` naming what is wrong."""
    return msgspec.json.decode(data, type=Script)


def event(delta: dict[str, object], finish_reason: str | None = None) -> bytes:
    """One chunk as an event of the stream; handy for `raw` answers too."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return CHUNK_HEAD + msgspec.json.encode(choice) + b"]}\n\n"


def pieces(answer: Answer) -> list[bytes]:
    """The events of an answer up to its usage, each as it is written."""
    if answer.raw is not None:
        return [piece.encode() for piece in answer.raw]
    if answer.base64 is not None:
        return [base64.b64decode(piece) for piece in answer.base64]
    found = [event({"role": "assistant", "content": ""})]
    found += [event({"reasoning_content": text}) for text in _texts(answer.reasoning)]
    found += [event({"content": text}) for text in _texts(answer.text)]
    for index, call in enumerate(answer.calls):
        function = {"name": call.name, "arguments": ""}
        opened = {"index": index, "id": call.id or f"call_{index}", "type": "function", "function": function}
        found.append(event({"tool_calls": [opened]}))
        found.append(event({"tool_calls": [{"index": index, "function": {"arguments": arguments(call)}}]}))
    found.append(event({}, finish_reason(answer)))
    return found


def usage_event(usage: dict[str, object]) -> bytes:
    """The event behind the last choice that carries the usage."""
    return CHUNK_HEAD + b'],"usage":' + msgspec.json.encode(usage) + b"}\n\n"


def usage_of(answer: Answer, request_bytes: int) -> dict[str, object] | None:
    """What the answer cost: as scripted, or counted at four characters a token."""
    if not isinstance(answer.usage, msgspec.UnsetType):
        return answer.usage
    said = sum(len(text) for text in (*_texts(answer.text), *_texts(answer.reasoning)))
    said += sum(len(call.name) + len(arguments(call)) for call in answer.calls)
    prompt, completion = -(-request_bytes // 4), max(1, said // 4)
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def completion(answer: Answer, usage: dict[str, object] | None) -> dict[str, object]:
    """The same answer for a request without `stream`."""
    message: dict[str, object] = {"role": "assistant", "content": "".join(_texts(answer.text)) or None}
    if answer.reasoning:
        message["reasoning_content"] = "".join(_texts(answer.reasoning))
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.id or f"call_{index}",
                "type": "function",
                "function": {"name": call.name, "arguments": arguments(call)},
            }
            for index, call in enumerate(answer.calls)
        ]
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(answer)}
    return {
        "id": "chatcmpl-script",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [choice],
        "usage": usage,
    }


def finish_reason(answer: Answer) -> str:
    return answer.finish_reason or ("tool_calls" if answer.calls else "stop")


def arguments(call: ScriptedCall) -> str:
    """The arguments as they stand on the wire: a string of JSON, or what the script says they are."""
    return call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()


def _texts(text: str | list[str]) -> list[str]:
    if isinstance(text, list):
        return text
    return [text] if text else []

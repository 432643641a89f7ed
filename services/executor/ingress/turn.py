"""Ingress: whatever bytes of a chat completion a provider sends → one canonical turn.

Invariant: the same bytes give the same turn however they are split; what is not a turn is a `WireFault`, never half
a turn. The stream is over at `[DONE]`, or at its end once a finish reason has come.

A finish reason that more text or calls follow was none: some providers write one into every chunk. Such a stream is
over at its end only.
"""

import re
from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from libs.contracts.values import ModelToolCall, Usage
from services.executor.ingress.assembly import CallList
from services.executor.ingress.chunks import (
    CallDelta,
    Choice,
    Chunk,
    MessageDelta,
    UnreadableChunk,
    decode_chunks,
    error_in,
    number_of,
    reasoning_of,
    text_of,
    word_of,
)
from services.executor.ingress.sse import DONE, EventParser
from services.executor.ingress.text import clean, without_surrogates
from services.executor.ingress.thoughts import Thoughts
from services.executor.ingress.tokens import estimated_tokens
from services.executor.ingress.usage import Frame, read_frame

# A turn is text for a context window; this is far above any and still fits into memory beside 63 others.
TURN_BYTES_MAX = 32 * 1024 * 1024

# The finish reason of a turn that came as a refusal.
REFUSAL = "refusal"
# The finish reason of a turn that held nothing but calls where none were offered; they are not in it any more.
UNOFFERED = "unoffered_calls"

# Signs of life that should have been comments.
_PING = re.compile(rb"\W*(?:ping|pong|keep[-_ ]?alive|heartbeat)\W*", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
# Finish reasons of servers that write nothing as a word.
_NO_WORDS = frozenset({"", "null", "none"})


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What one piece of the stream added to the text."""

    content: str = ""
    reasoning: str = ""


class ModelTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn of a model. `finish_reason` is the provider's word, "" if it gave none, `REFUSAL` if it sent a refusal
    (whose text is then the content).

    `calls` stand under our ids; one whose arguments nobody could read has a `problem` to tell the model. `cut_off`:
    the last call's arguments end in the middle. `calls_dropped` more came behind the last. `attempt` and `model` say which attempt on which model gave the turn.
    """

    content: str
    reasoning: str
    calls: list[ModelToolCall]
    finish_reason: str
    usage: Usage
    cut_off: bool = False
    calls_dropped: int = 0
    attempt: int = 1
    model: str = ""


class WireFault(msgspec.Struct, frozen=True, kw_only=True):
    """A response that is no turn.

    `cut`: it broke off. `garbled`: something in the stream is no chunk. `error`: it reports an error inside a success,
    which stands in `error`. `foreign`: it is something else entirely. `too_large`: see `TURN_BYTES_MAX`.
    """

    kind: Literal["cut", "garbled", "error", "foreign", "too_large"]
    message: str
    error: object = None


class TurnBuilder:
    """Feed it the bytes of one response, then `finish`."""

    def __init__(self) -> None:
        self._form: Literal["unknown", "events", "whole"] = "unknown"
        self._events = EventParser()
        self._held: list[
            bytes
        ] = []  # The bytes of a form that is unknown yet, or of a body that is one whole.
        self._bytes = 0
        self._calls = CallList()
        self._thoughts = Thoughts()
        self._content = _Text()
        self._reasoning = _Text()
        self._refusal = _Text()
        self._finish_reason = ""
        self._unreliable = False  # More came behind a finish reason.
        self._strays = 0
        self._frame: Frame | None = None
        self._fault: WireFault | None = None
        self._done = False

    @property
    def over(self) -> bool:
        """Nothing that follows can change the outcome."""
        return self._done or self._fault is not None

    @property
    def settled(self) -> bool:
        """The model has said that it is finished; only usage and the end marker may follow."""
        return self._finish_reason != "" and not self._unreliable

    @property
    def strays(self) -> int:
        """Choices other than the first, which nobody asked for; they were passed over."""
        return self._strays

    @property
    def counted(self) -> Usage | None:
        """What the provider has counted so far; `None` when it has counted nothing."""
        return self._frame.usage() if self._frame is not None else None

    def feed(self, piece: bytes) -> Delta | None:
        """Take the next bytes; the text they added, if any."""
        if self.over:
            return None
        self._bytes += len(piece)
        if self._bytes > TURN_BYTES_MAX:
            self._fault = WireFault(kind="too_large", message=f"more than {TURN_BYTES_MAX} bytes in one turn")
            return None
        if self._form == "events":
            return self._take(self._events.feed(piece))
        self._held.append(piece)
        if self._form == "unknown":
            head = b"".join(self._held)
            self._form = _form_of(head)
            if self._form == "events":
                return self._take(self._events.feed(head))
            # Space before anything else says nothing; half a byte order mark may.
            self._held = [head] if head.strip() else []
        return None

    def finish(
        self,
        *,
        iteration: int,
        schemas: Mapping[str, Mapping[str, object]],
        input_tokens: int,
        names: Mapping[str, str] | None = None,
    ) -> ModelTurn | WireFault:
        """The turn, once the stream is over. `schemas` are the offered tools' parameters by name; `names` are their
        names where the provider knows them under others; `input_tokens` is the estimate that counts when the provider
        counted nothing."""
        if self._form == "whole":
            self._take_whole(b"".join(self._held))
        elif not self.over:
            self._take(self._events.close())
        if self._fault is not None:
            return self._fault
        if not self._done and not self._finish_reason:
            return WireFault(kind="cut", message="the response broke off before the model was finished")
        made = self._calls.finish(iteration, schemas, names or {})
        # Without a finish reason the end marker may stand for a stream that was cut: a call that has no arguments yet
        # may have been meant to get some.
        if not self._finish_reason and (made.cut_off or made.bare):
            return WireFault(kind="cut", message="the response ended in the middle of a tool call")
        said, thought = self._thoughts.close()
        self._content.add([said])
        self._reasoning.add([thought])
        content, reasoning = self._content.whole(), self._reasoning.whole()
        usage = self.counted
        if usage is None:
            output = estimated_tokens(len(content) + len(reasoning) + self._calls.chars)
            usage = Usage(requests=1, input_tokens=input_tokens, output_tokens=output, estimated=True)
        refusal = self._refusal.whole()
        return ModelTurn(
            content=content or refusal,
            reasoning=reasoning,
            calls=made.calls,
            finish_reason=REFUSAL if refusal else self._finish_reason,
            usage=usage,
            cut_off=made.cut_off,
            calls_dropped=made.dropped,
        )

    def _take_whole(self, body: bytes) -> None:
        """A body that is no event stream: a completion sent at once, an error with status 200, or a page."""
        body = body.removeprefix(_BOM).strip()
        if not body.startswith(b"<"):
            self._take([body])
        if self._fault is None and not self._finish_reason and not self._done:
            shown = body[:200].decode("utf-8", "replace")
            self._fault = WireFault(
                kind="foreign", message=f"the endpoint answered with no completion: {shown}"
            )

    def _take(self, payloads: list[bytes]) -> Delta | None:
        content: list[str] = []
        reasoning: list[str] = []
        for payload in payloads:
            if payload == DONE:
                self._done = True
                break
            for chunk in self._decode(payload):
                self._take_chunk(chunk, content, reasoning)
        said, thought = self._thoughts.split("".join(content)) if content else ("", "")
        shown = self._content.add([said]), self._reasoning.add([*reasoning, thought])
        return Delta(content=shown[0], reasoning=shown[1]) if shown[0] or shown[1] else None

    def _decode(self, payload: bytes) -> list[Chunk]:
        """The chunks of an event; several when the server forgot the blank lines between its events, or writes one JSON
        a line without calling it an event."""
        payload = payload.strip()
        while payload.startswith(b"data:"):  # A proxy that made events of events.
            payload = payload[5:].strip()
        if payload == DONE:
            self._done = True
            return []
        if not payload or _PING.fullmatch(payload):
            return []
        try:
            return decode_chunks(payload)
        except UnreadableChunk as error:
            if b"\n" in payload:
                return [chunk for line in payload.split(b"\n") for chunk in self._decode(line)]
            self._fault = self._fault or WireFault(kind="garbled", message=without_surrogates(str(error)))
            return []

    def _take_chunk(self, chunk: Chunk, content: list[str], reasoning: list[str]) -> None:
        if (error := _cleaned(error_in(chunk))) is not None:
            self._fault = self._fault or WireFault(kind="error", message=error_message(error), error=error)
            return
        self._count(chunk.usage)
        if isinstance(chunk.x_groq, dict):
            self._count(cast(dict[str, object], chunk.x_groq).get("usage"))
        for position, choice in enumerate(chunk.choices or ()):
            index = number_of(choice.index)
            # More than one choice was never asked for; some servers send others all the same.
            if (position if index is None else index) == 0:
                self._take_choice(choice, content, reasoning)
            else:
                self._strays += 1

    def _take_choice(self, choice: Choice, content: list[str], reasoning: list[str]) -> None:
        self._count(choice.usage)
        before = (len(content), len(reasoning), self._calls.fragments)
        if choice.delta is not None:
            self._take_message(choice.delta, content, reasoning)
        if choice.message is not None:
            self._take_snapshot(choice.message, choice.delta is not None, content, reasoning)
        if text := text_of(choice.text):
            content.append(text)
        if self._finish_reason and before != (len(content), len(reasoning), self._calls.fragments):
            self._unreliable = True
        word = without_surrogates(word_of(choice.finish_reason))
        if word.lower() not in _NO_WORDS:
            self._finish_reason = word
        elif self._form == "whole" and (choice.message is not None or choice.text is not None):
            self._finish_reason = self._finish_reason or "stop"

    def _take_message(self, delta: MessageDelta, content: list[str], reasoning: list[str]) -> None:
        if text := text_of(delta.content):
            content.append(text)
        if text := reasoning_of(delta):
            reasoning.append(text)
        if text := text_of(delta.refusal):
            self._refusal.add([text])
        for position, fragment in enumerate(delta.tool_calls or ()):
            self._calls.take(fragment, position)
        # Some send a call in the old form and in the new one.
        if delta.function_call is not None and not delta.tool_calls:
            self._calls.take(CallDelta(index=0, function=delta.function_call), 0)

    def _take_snapshot(
        self, message: MessageDelta, beside_delta: bool, content: list[str], reasoning: list[str]
    ) -> None:
        """A `message` inside of a stream is the turn so far; only what it has more is new."""
        rest: dict[str, object] = {}
        for name, text, known in (
            ("content", text_of(message.content), self._content.received + "".join(content)),
            ("reasoning_content", reasoning_of(message), self._reasoning.received + "".join(reasoning)),
        ):
            fresh = text.removeprefix(known) if text.startswith(known) else "" if beside_delta else text
            rest[name] = fresh or None
        plain = {"reasoning": None, "reasoning_text": None, "reasoning_details": None, "thinking": None}
        if not isinstance(message.content, str):
            plain["reasoning_details"] = None
        self._take_message(msgspec.structs.replace(message, **plain, **rest), content, reasoning)

    def _count(self, usage: object) -> None:
        """Usage frames are cumulative: of several, each count's largest is the turn's."""
        if usage is None:
            return
        frame = read_frame(usage)
        if frame is not None:
            self._frame = frame if self._frame is None else self._frame.joined(frame)


class _Text:
    """A text that grows; one half of a surrogate pair is shown when its other half is there."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""

    @property
    def received(self) -> str:
        """All of it, as it came."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0] if self._pieces else ""

    def add(self, pieces: list[str]) -> str:
        """Append; gives what can be shown now."""
        fresh = "".join(pieces)
        if not fresh:
            return ""
        self._pieces.append(fresh)
        text = self._held + fresh
        self._held = text[-1] if "\ud800" <= text[-1] <= "\udbff" else ""
        return without_surrogates(text[:-1] if self._held else text)

    def whole(self) -> str:
        return without_surrogates(self.received)


def _form_of(head: bytes) -> Literal["unknown", "events", "whole"]:
    """A JSON value or a page of markup is no event stream, and neither begins like one; headers are often wrong."""
    if _BOM.startswith(head):
        return "unknown"
    start = head.removeprefix(_BOM).lstrip()[:1]
    if not start:
        return "unknown"
    return "whole" if start in (b"{", b"[", b"<") else "events"


def error_message(error: object) -> str:
    """What a provider's `error` value says."""
    match error:
        case {"message": str(message)} if message:
            return message
        case str():
            return error
        case _:
            return msgspec.json.encode(error).decode()


def _cleaned(error: object) -> object:
    """A reported error as it can be stored."""
    try:
        return clean(error)
    except (ValueError, RecursionError):
        return "an error that cannot be read"

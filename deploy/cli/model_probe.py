"""What `perdure check-model` asks an endpoint, and what it makes of the answers.

Invariant: a check passes only on what the server itself sent in the right place: a call that the model wrote into its
text is no call.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import msgspec

from deploy.cli.terminal import one_line
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.transcript import AssistantItem, ToolItem
from libs.contracts.values import ModelToolCall
from services.executor.egress.history import History
from services.executor.egress.profile import Profile
from services.executor.egress.request import ModelFailure, ModelRequest, Post, unseen
from services.executor.egress.toolset import toolset
from services.executor.endpoint.completion import Model
from services.executor.endpoint.faults import Refused, Unreachable
from services.executor.ingress.spoken import has_calls
from services.executor.ingress.turn import ModelTurn

CHECKS = ("Connection", "Text completion", "Streaming", "Function calling", "Tool round trip")
# A model may decide not to call; one that does not twice in a row, when it is told to, will not in a run either.
_TRIES = 2
# What is kept of a response, to tell what it was.
_HEAD_BYTES = 2_000
_SHOWN_CHARS = 160

_ECHO = ToolSpec(
    name="echo",
    description="Repeats a text and says the word of the day.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The text to repeat."}},
        "required": ["text"],
        "additionalProperties": False,
    },
    semantics=Semantics.READ_ONLY,
    needs_workspace=False,
)
_SYSTEM = "You are a helpful assistant. Do exactly what the user asks, and nothing else."
_COUNT = "Count from one to twelve in English words, separated by spaces."
_CALL = 'Call the tool `echo` with the text "perdure". Then tell me the word of the day that it returns.'
# No model says it by chance.
_WORD = "zephyranth"

_EVENT = re.compile(rb"^\s*(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
_NO_TOOLS = re.compile(r"tool|function", re.IGNORECASE)
_MODEL = re.compile(r"model", re.IGNORECASE)

_CALLS_ADVICE = (
    "runs need a model and a server that call tools by themselves: turn on the server's parser of tool calls (vLLM: "
    "--enable-auto-tool-choice --tool-call-parser, llama.cpp: --jinja), or choose another model"
)
_BASE_ADVICE = "OPENAI_BASE_URL usually ends in /v1, and is not the address of a web page"


class Finding(NamedTuple):
    name: str
    passed: bool
    message: str


class _Seen:
    """What went over the wire in one check: the last response's beginning, how many pieces, and how it failed."""

    def __init__(self) -> None:
        self.head = b""
        self.events = 0
        self.refused: Refused | None = None
        self.unreachable = ""

    def tap(self, post: Post) -> Post:
        @asynccontextmanager
        async def tapped(body: bytes) -> AsyncGenerator[AsyncIterator[bytes]]:
            self.head, self.events, self.refused, self.unreachable = b"", 0, None, ""
            try:
                async with post(body) as pieces:
                    yield self._pieces(pieces)
            except Refused as refused:
                self.refused = refused
                raise
            except Unreachable as error:
                self.unreachable = str(error)
                raise

        return tapped

    async def _pieces(self, pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        async for piece in pieces:
            self.head += piece[: max(0, _HEAD_BYTES - len(self.head))]
            self.events += piece.count(b"\ndata:") + piece.startswith(b"data:")
            yield piece

    @property
    def streamed(self) -> bool:
        return _EVENT.match(self.head) is not None


class Probe:
    """One examination of one model."""

    def __init__(self, model: Model, *, model_id: str, url: str, timeout_s: float) -> None:
        self._model, self._model_id, self._url, self._timeout_s = model, model_id, url, timeout_s
        self._tools = toolset([_ECHO])

    async def findings(self) -> AsyncGenerator[Finding]:
        """All of them, in the order of `CHECKS`."""
        connection, text, streaming, calling, trip = CHECKS
        seen = _Seen()
        said = await self._ask(seen, self._state(_COUNT), tools=False)
        trouble = self._unconnected(seen, said)
        yield Finding(connection, trouble is None, trouble or f"{self._url} answers and takes the key")
        if trouble is not None:
            for name in CHECKS[1:]:
                yield Finding(name, False, "not tried: no connection")
            return
        yield self._text(text, seen, said)
        yield self._streaming(streaming, seen, said)
        turn, finding = await self._calling(calling)
        yield finding
        if turn is None:
            yield Finding(trip, False, "not tried: no function calling")
            return
        yield await self._round_trip(trip, turn)

    # --- The checks ---

    def _unconnected(self, seen: _Seen, said: "ModelTurn | _Failed") -> str | None:
        """Why this is no endpoint at all, or none for this key; `None` when it is one, whatever it said."""
        if isinstance(said, ModelTurn):
            return None
        if seen.refused is not None:
            return self._turned_away(seen.refused, said)
        if seen.unreachable and not seen.head:
            return f"{self._url}: {seen.unreachable}; {_network_advice(seen.unreachable)}"
        if said.late and not seen.head:
            return (
                f"{self._url} said nothing for {self._timeout_s:g} s; is it the right address, and is the model loaded? "
                "A model that thinks for longer needs --timeout"
            )
        if seen.head and not seen.streamed and not said.late and not seen.unreachable:
            return f"{said.message}; {_BASE_ADVICE}"
        return None

    def _turned_away(self, refused: Refused, said: "_Failed") -> str | None:
        match refused.status:
            case 401 | 403 | 407:
                return said.message
            case 404 | 405 if not _MODEL.search(refused.body):
                return f"there is no {self._url}/chat/completions ({said.message}); {_BASE_ADVICE}"
            case _:
                return None

    def _text(self, name: str, seen: _Seen, said: "ModelTurn | _Failed") -> Finding:
        if isinstance(said, _Failed):
            advice = ""
            if seen.refused is not None and seen.refused.status == 429:
                advice = "; wait, or look at the limits of the account"
            elif seen.unreachable or said.late:
                advice = "; look at the server's log, and at a proxy in between"
            elif seen.refused is not None and seen.refused.status in (400, 404, 422):
                advice = f"; is MODEL_ID {self._model_id!r} a chat model of this endpoint?"
            return Finding(name, False, f"{said.message}{advice}")
        if not said.content.strip():
            more = "it only reasoned" if said.reasoning else f"finish reason {said.finish_reason or 'none'}"
            return Finding(name, False, f"the answer has no text ({more}); choose another model")
        usage = said.usage
        counted = "no usage reported, so tokens are estimated" if usage.estimated else "usage reported"
        return Finding(name, True, f"{one_line(said.content, _SHOWN_CHARS)} ({counted})")

    def _streaming(self, name: str, seen: _Seen, said: "ModelTurn | _Failed") -> Finding:
        if isinstance(said, _Failed):
            return Finding(name, False, "not tried: no text completion")
        if not seen.streamed:
            told = "the answer came as one piece although a stream was asked for: runs work, but show nothing while the model writes"
            return Finding(
                name, False, f"{told}; turn on streaming (SSE) at the server, or at the proxy before it"
            )
        return Finding(name, True, f"server-sent events, {seen.events} of them")

    async def _calling(self, name: str) -> tuple[ModelTurn | None, Finding]:
        problem = ""
        for _ in range(_TRIES):
            seen = _Seen()
            said = await self._ask(seen, self._state(_CALL), tools=True)
            if isinstance(said, _Failed):
                refusal = seen.refused
                about = refusal is not None and refusal.status < 500 and _NO_TOOLS.search(refusal.body)
                advice = f"; {_CALLS_ADVICE}" if about else ""
                return None, Finding(name, False, f"{said.message}{advice}")
            problem = _call_problem(said)
            if not problem:
                return said, Finding(
                    name, True, "the model called the tool, with arguments that fit its schema"
                )
        return None, Finding(name, False, f"{problem}; {_CALLS_ADVICE}")

    async def _round_trip(self, name: str, turn: ModelTurn) -> Finding:
        called = AssistantItem(
            iteration=1,
            content=turn.content,
            calls=turn.calls,
            finish_reason=turn.finish_reason,
            reasoning=turn.reasoning,
        )
        answered = [_answer(call) for call in turn.calls]
        state, told = self._state(_CALL, called, *answered), ""
        for _ in range(_TRIES):
            said = await self._ask(_Seen(), state, tools=True)
            if isinstance(said, _Failed):
                return Finding(
                    name, False, f"{said.message}; the endpoint does not take tool results as it should"
                )
            if _WORD in said.content.lower():
                return Finding(name, True, "the model used the tool's result")
            told = "it called again" if said.calls else one_line(said.content, _SHOWN_CHARS)
        return Finding(
            name,
            False,
            f"the model did not use the tool's result ({told}); choose a model that is made for tools",
        )

    # --- Asking ---

    async def _ask(self, seen: _Seen, state: RunState, *, tools: bool) -> "ModelTurn | _Failed":
        history = History(_SYSTEM)

        def render(profile: Profile) -> Sequence[bytes]:
            return history.outbound(state, profile).fragments

        request = ModelRequest(
            iteration=len(state.transcript) + 1,
            render=render,
            estimated_tokens=0,
            tools=self._tools.json if tools else None,
            schemas=self._tools.schemas if tools else {},
            model=self._model_id,
            tap=seen.tap,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._model.complete(request, unseen)
        except ModelFailure as failure:
            return _Failed(failure.message, late="ReadTimeout" in seen.unreachable)
        except TimeoutError:
            return _Failed(f"no whole answer within {self._timeout_s:g} s", late=True)

    def _state(self, goal: str, *transcript: AssistantItem | ToolItem) -> RunState:
        """A run that has got this far; it is in no log."""
        return RunState(
            run_id="check",
            tenant="check",
            task_id="check",
            task=TaskSpec(goal=goal),
            limits=Limits(),
            workspace="check",
            body_hash="",
            created_at="",
            transcript=transcript,
        )


class _Failed(NamedTuple):
    message: str
    late: bool = False


def _answer(call: ModelToolCall) -> ToolItem:
    output = f"perdure (the word of the day is {_WORD})"
    return ToolItem(call_id=call.call_id, name=call.name, ok=True, output=output)


def _call_problem(turn: ModelTurn) -> str:
    """What is wrong with the calls of a turn that was asked for one; empty: nothing."""
    if not turn.calls:
        if has_calls(turn.content) or '"arguments"' in turn.content or f'"{_ECHO.name}"' in turn.content:
            return f"the model wrote the call into its text, and the server did not make a call of it ({one_line(turn.content, _SHOWN_CHARS)})"
        return f"the model answered in words instead of calling the tool ({one_line(turn.content, _SHOWN_CHARS)})"
    call = turn.calls[0]
    if call.problem is not None:
        return f"the arguments of the call cannot be read ({call.problem})"
    if call.name != _ECHO.name or not isinstance((call.arguments or {}).get("text"), str):
        return f"the model called {call.name} with {one_line(msgspec.json.encode(call.arguments).decode(), _SHOWN_CHARS)}, which nobody offered"
    return ""


def _network_advice(reason: str) -> str:
    if re.search(r"SSL|TLS|CERTIFICATE", reason, re.IGNORECASE):
        return (
            "the secure connection failed: is it http:// rather than https://? A private authority's certificate goes "
            "into SSL_CERT_FILE"
        )
    if re.search(r"name or service|getaddrinfo|nodename|resolution|resolve", reason, re.IGNORECASE):
        return "the host is not known: check the spelling of OPENAI_BASE_URL, and the network"
    if re.search(r"refused|attempts failed", reason, re.IGNORECASE):
        return "nothing listens there: start the server, or correct OPENAI_BASE_URL"
    return "check OPENAI_BASE_URL, the network, and a proxy in between"

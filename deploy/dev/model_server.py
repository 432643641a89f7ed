"""A scripted model behind the real OpenAI wire, for the demo, the bench and the tests.

    python -m deploy.dev.model_server --script FILE [--port 0]      prints `ready http://127.0.0.1:PORT/v1`
    python -m deploy.dev.model_server --replay FILE [--port 0]      answers like a recording (`wire_replay.py`)

Invariant: it costs next to nothing (it is the floor of the bench) and remembers what it was asked.

`model_script.py` says what a script looks like. Example: a run that echoes twice and is done, another that is refused
once:

    {"conversations": [
        {"marker": "twice", "turns": [
            {"calls": [{"name": "echo", "arguments": {"text": "hi"}}], "repeat": 2},
            {"text": "Echoed twice."}]},
        {"marker": "", "turns": [
            {"attempts": [{"status": 503, "body": {"error": {"message": "busy"}}}, {"text": "Hello."}]}]}]}

Served: `POST /v1/chat/completions` (streaming or not), `POST /v1/embeddings`, `GET /v1/models`, and for who watches:
`GET /requests` gives `{"requests": [{at, conversation, turn, attempt, model, bytes, status, aborted}]}` (`at` in seconds
of the machine's monotonic clock), `GET /requests/N` the body of one of the last 512, `DELETE /requests` forgets them.
"""

import argparse
import asyncio
import base64
import contextlib
import re
import socket
import struct
import time
from collections import deque
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import cast

import httptools
import msgspec
import uvloop

from deploy.dev import model_script as script_of
from deploy.dev.model_embeddings import Embeddings
from deploy.dev.model_rules import ALWAYS, SentRequest, broken_rule, turn_of
from deploy.dev.model_script import Answer, Script, load_script
from deploy.dev.wire_replay import replayed

# A request is a history for one context window; one that is larger is a defect worth seeing.
BODY_BYTES_MAX = 64 * 1024 * 1024
# What is remembered: every request in a line, the bodies of the latest.
REQUESTS_MAX = 200_000
BODIES_MAX = 512

_REASONS = {200: b"OK", 204: b"No Content", 400: b"Bad Request", 404: b"Not Found", 429: b"Too Many Requests"}
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\ntransfer-encoding: chunked\r\n"
)


class Asked(msgspec.Struct, kw_only=True):
    """One request as it was answered. `aborted`: the client went away before the answer was complete."""

    at: float
    conversation: int | None
    turn: int
    attempt: int
    model: str
    bytes: int
    status: int = 200
    aborted: bool = False


class ModelServer:
    """The server's state: its script and what it was asked."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.rules = ALWAYS if script.rules is None else frozenset(script.rules)
        self.asked: deque[Asked] = deque(maxlen=REQUESTS_MAX)
        self.bodies: deque[bytes] = deque(maxlen=BODIES_MAX)
        self.headers: deque[dict[str, str]] = deque(maxlen=BODIES_MAX)
        self.connections = 0
        self.connected: set[asyncio.Transport] = set()
        self.count = 0
        self.embeddings = Embeddings()
        self._attempts: dict[tuple[int, int], int] = {}
        self._rendered: dict[int, tuple[Answer, bytes]] = {}

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Asked, Answer, SentRequest | None]:
        """What to answer, and the record of the question."""
        at = time.monotonic()
        try:
            request = msgspec.json.decode(body, type=SentRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            asked = Asked(at=at, conversation=None, turn=0, attempt=1, model="", bytes=len(body))
            return (
                self._remember(asked, body, headers),
                _refusal(f"We could not parse the JSON body: {error}"),
                None,
            )
        goal = next((message.text for message in request.messages if message.role == "user"), "")
        turn, conversation = turn_of(request), self.script.find(goal)
        asked = Asked(
            at=at, conversation=conversation, turn=turn, attempt=1, model=request.model, bytes=len(body)
        )
        self._remember(asked, body, headers)
        habits = () if conversation is None else self.script.conversations[conversation].rules
        if (message := broken_rule(request, self.rules.union(habits))) is not None:
            return asked, _refusal(message), request
        answer = None if conversation is None else self.script.turn(conversation, turn)
        if conversation is None or answer is None:
            return asked, _refusal(f"The script has no turn {turn} for the goal {goal[:80]!r}."), request
        if answer.attempts:
            asked.attempt = self._attempts.get((conversation, turn), 0) + 1
            self._attempts[conversation, turn] = asked.attempt
            answer = answer.attempts[min(asked.attempt, len(answer.attempts)) - 1]
        return asked, answer, request

    def at_once(self, answer: Answer, request_bytes: int) -> bytes:
        """The whole stream of an answer without delays, as one write; all but the usage is rendered once."""
        known = self._rendered.get(id(answer))
        if known is None or known[0] is not answer:
            parts = script_of.pieces(answer)
            known = self._rendered[id(answer)] = (answer, b"".join(chunk(piece) for piece in parts))
        if answer.raw is not None or answer.base64 is not None:
            return known[1]
        usage = script_of.usage_of(answer, request_bytes)
        tail = script_of.DONE if usage is None else script_of.usage_event(usage) + script_of.DONE
        return known[1] + chunk(tail)

    def forget(self) -> None:
        self.asked.clear()
        self.bodies.clear()
        self.headers.clear()

    def _remember(self, asked: Asked, body: bytes, headers: dict[str, str]) -> Asked:
        self.count += 1
        self.asked.append(asked)
        self.bodies.append(body)
        self.headers.append(headers)
        return asked


def chunk(data: bytes) -> bytes:
    """`data` in the chunked transfer coding."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def _refusal(message: str) -> Answer:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return Answer(status=400, body={"error": error})


class _Connection(asyncio.Protocol):
    """One client. Requests are answered in the order they come."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._url = b""
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._running: tuple[asyncio.Task[None], Asked] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections += 1
        self._server.connected.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 asyncio names it so
        if self._transport is not None:
            self._server.connected.discard(self._transport)
        self._transport = None
        if self._running is not None:
            task, asked = self._running
            asked.aborted = True
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._close()

    # --- Called by the parser ---

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", {}, []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        method, path = self._parser.get_method(), self._url.split(b"?")[0]
        if method == b"POST" and path.endswith(b"/chat/completions"):
            self._complete(b"".join(self._body))
        elif method == b"POST" and path.endswith(b"/embeddings"):
            self._reply(*self._server.embeddings.answer(b"".join(self._body)))
        elif method == b"GET" and path.endswith(b"/models"):
            self._reply(
                200, {"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "script"}]}
            )
        elif path.startswith(b"/requests"):
            self._watch(method, path)
        else:
            self._reply(
                404, {"error": {"message": f"no such path: {path!r}", "type": "invalid_request_error"}}
            )

    # --- Answers ---

    def _watch(self, method: bytes, path: bytes) -> None:
        if method == b"DELETE":
            self._server.forget()
            self._reply(204, None)
        elif path == b"/requests":
            self._reply(200, {"requests": list(self._server.asked)})
        else:
            number = path.rsplit(b"/", 1)[1]
            kept = len(self._server.bodies)
            wanted = int(number) - (len(self._server.asked) - kept) if number.isdigit() else -1
            found = self._server.bodies[wanted] if 0 <= wanted < kept else None
            self._reply(404 if found is None else 200, None if found is None else msgspec.Raw(found))

    def _complete(self, body: bytes) -> None:
        asked, answer, request = self._server.answer(body, self._headers)
        asked.status = answer.status
        delay_s = self._server.script.latency_s + answer.delay_s
        if answer.wire is not None:
            self._run(self._write_wire(answer, answer.wire, delay_s), asked)
            return
        streamed = answer.status == 200 and (request is None or request.stream or answer.raw is not None)
        if delay_s == answer.chunk_delay_s == 0 and answer.end == "complete":
            if streamed and answer.raw is None and answer.base64 is None:
                whole = self._server.at_once(answer, len(body))
                self._write(_STREAM_HEAD + b"\r\n" + whole + b"0\r\n\r\n")
                return
            if not streamed:
                self._reply_to(answer, len(body))
                return
        self._run(self._tell(answer, len(body), delay_s, streamed), asked)

    def _run(self, telling: Coroutine[None, None, None], asked: Asked) -> None:
        running = asyncio.get_running_loop().create_task(telling)
        self._running = (running, asked)
        running.add_done_callback(self._told)

    def _told(self, task: asyncio.Task[None]) -> None:
        self._running = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self._close()
            raise error

    async def _tell(self, answer: Answer, request_bytes: int, delay_s: float, streamed: bool) -> None:
        """An answer that takes its time or does not end well."""
        if delay_s:
            await asyncio.sleep(delay_s)
        if not streamed:
            if answer.end == "complete":
                self._reply_to(answer, request_bytes)
                return
        elif answer.status == 200:
            await self._stream(answer, request_bytes)
        if answer.end == "complete":
            self._write(b"0\r\n\r\n")
        await self._end(answer)

    async def _write_wire(self, answer: Answer, pieces: list[str], delay_s: float) -> None:
        """A response that is scripted to the byte; its end comes together with its last piece."""
        for number, piece in enumerate(pieces):
            await asyncio.sleep(answer.chunk_delay_s if number else delay_s)
            self._write(base64.b64decode(piece))
        await self._end(answer)

    async def _end(self, answer: Answer) -> None:
        match answer.end:
            case "complete":
                pass
            case "eof":
                self._close()
            case "reset":
                self._reset()
            case "hang":
                await asyncio.Event().wait()

    async def _stream(self, answer: Answer, request_bytes: int) -> None:
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items()).encode("latin-1")
        head = _STREAM_HEAD
        if any(name.lower() == "content-type" for name in answer.headers):
            # An empty value: the header is left out.
            head = head.replace(b"content-type: text/event-stream; charset=utf-8\r\n", b"")
            extra = re.sub(rb"(?i)content-type: *\r\n", b"", extra)
        self._write(head + extra + b"\r\n")
        for piece in script_of.pieces(answer):
            # A turn of the loop between two writes, so that each leaves as a segment of its own.
            await asyncio.sleep(answer.chunk_delay_s)
            self._write(chunk(piece))
        if answer.raw is None and answer.base64 is None and answer.end != "eof":
            usage = script_of.usage_of(answer, request_bytes)
            self._write(chunk((script_of.usage_event(usage) if usage else b"") + script_of.DONE))

    def _reply_to(self, answer: Answer, request_bytes: int) -> None:
        if answer.status == 200:
            self._reply(
                200, script_of.completion(answer, script_of.usage_of(answer, request_bytes)), answer.headers
            )
        else:
            self._reply(answer.status, answer.body, answer.headers)

    def _reply(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        body = (
            value.encode() if isinstance(value, str) else b"" if value is None else msgspec.json.encode(value)
        )
        head = b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b"Scripted"))
        fields = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
        head += "".join(f"{name}: {text}\r\n" for name, text in fields.items()).encode("latin-1")
        self._write(head + b"\r\n" + body)

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        if self._transport is not None:
            # Lingering for no time makes the kernel send RST instead of FIN.
            peer = self._transport.get_extra_info("socket")
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()


@contextlib.asynccontextmanager
async def serve(server: ModelServer, port: int = 0) -> AsyncGenerator[str]:
    """Serve on the loopback interface; yields the base URL for clients."""
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: _Connection(server), "127.0.0.1", port, backlog=1024)
    try:
        bound: int = listener.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{bound}/v1"
    finally:
        listener.close()
        for connection in list(server.connected):
            connection.abort()


async def _main(script: Script, port: int) -> None:
    async with serve(ModelServer(script), port) as url:
        print(f"ready {url}", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A scripted model behind the OpenAI wire.")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--script", type=Path, help="the script, JSON")
    source.add_argument("--replay", type=Path, help="a recording, of `perdure runs export --wire`")
    parser.add_argument("--port", type=int, default=0, help="0: any free port")
    options = parser.parse_args()
    try:
        script = (
            load_script(options.script.read_bytes())
            if options.script is not None
            else replayed(options.replay.read_bytes())
        )
    except (OSError, ValueError) as error:
        parser.error(str(error))
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(_main(script, options.port))


if __name__ == "__main__":
    main()

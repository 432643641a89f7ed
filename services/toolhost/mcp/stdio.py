"""The way to a server that is a program: lines of JSON over its standard input and output.

Invariant: the program runs like any command of a tool, in the sandbox, in a control group, and dead with this host; what it
writes is bounded (its complaints by the ring that keeps all output of commands), and a line that is no message costs that
line alone.

Its input and output are two named pipes in its own folder, which a shell attaches before it becomes the program. This host
holds both ends of both until the program is over, so that nothing seems to end before it does.
"""

import asyncio
import errno
import os
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import PARSE_ERROR, ErrorData, JSONRPCError, JSONRPCMessage, jsonrpc_message_adapter

from libs.chassis.logs import Logger
from services.toolhost.errors import ToolFailure
from services.toolhost.mcp.configuration import McpServer
from services.toolhost.mcp.ending import Ending
from services.toolhost.mcp.joining import Surroundings
from services.toolhost.processes import Command

# One message: ten megabytes of text, escaped.
LINE_BYTES_MAX = 32 << 20
# What is kept of its complaints.
_COMPLAINTS_BYTES_MAX = 16 * 1024
# Lines that are no messages are told of so often; then they are counted.
_SKIPPED_TOLD_MAX = 3
# A program that goes on for a year is started anew.
_LIFE_S = 365 * 24 * 3600.0
# After its input ends it may end by itself for so long, then after SIGTERM; a host that ends has little more time itself.
_LEAVE_S, _GRACE_S = 0.7, 0.5
_READ_BYTES = 1 << 16
_ATTACHED = 'exec "$@" <"$0.in" >"$0.out"'

Messages = SessionMessage | Exception


@asynccontextmanager
async def program(
    around: Surroundings, server: McpServer, ending: Ending, token: str, log: Logger
) -> AsyncGenerator[TransportStreams]:
    """Messages to and from the program while the context lasts; `token` is of this connection alone."""
    folder = around.folder / server.name
    folder.mkdir(parents=True, exist_ok=True)
    heard, incoming = anyio.create_memory_object_stream[Messages](0)
    outgoing, spoken = anyio.create_memory_object_stream[SessionMessage](0)
    with _pipes(folder / f".{token}") as pipes, heard, incoming, outgoing, spoken:
        stop = asyncio.Event()
        running = asyncio.create_task(_run(around, server, folder, token, stop))
        running.add_done_callback(lambda _: pipes.let_go())
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_listen, pipes, heard, running, ending, log)
                tasks.start_soon(_speak, pipes, spoken)
                try:
                    yield incoming, outgoing
                finally:
                    tasks.cancel_scope.cancel()
        finally:
            pipes.hang_up()
            try:
                await asyncio.wait({running}, timeout=_LEAVE_S)
            finally:
                stop.set()
                log.info("mcp.program_ended", said=ending.fit(await running))


async def _run(around: Surroundings, server: McpServer, folder: Path, token: str, stop: asyncio.Event) -> str:
    """The program from its start to its end; how it ended, with the end of its complaints."""
    command = Command(
        argv=["sh", "-c", _ATTACHED, str(folder / f".{token}"), *server.command],
        directory=folder,
        call_id=f"mcp.{server.name}.{token}",
        timeout_s=_LIFE_S,
        output_bytes_max=_COMPLAINTS_BYTES_MAX,
        environment=dict(server.environment),
        readable=list(server.readable),
        grace_s=_GRACE_S,
    )
    confined = around.sandbox.confine(command, root=folder, network=server.network)
    try:
        ended = await around.processes.run(confined, stop=stop)
    except ToolFailure as failure:
        return failure.message
    how = f"signal {ended.signal}" if ended.signal is not None else f"exit code {ended.exit_code}"
    return f"{how}; {ended.output[-1000:]}"


async def _listen(
    pipes: "_Pipes",
    heard: MemoryObjectSendStream[Messages],
    running: asyncio.Task[str],
    ending: Ending,
    log: Logger,
) -> None:
    skipped = 0
    with heard, suppress(anyio.BrokenResourceError):
        async for line in _lines(pipes.answers):
            # It has both pipes open, so nobody needs their names any more.
            pipes.hide()
            if len(line) > LINE_BYTES_MAX:
                ending.tell(f"it wrote a line of more than {LINE_BYTES_MAX >> 20} MiB")
                return
            for part in _parts(line):
                message = _message(part)
                if message is not None:
                    await heard.send(SessionMessage(message))
                    continue
                skipped += 1
                if skipped <= _SKIPPED_TOLD_MAX:
                    log.warning("mcp.line_skipped", line=ending.fit(part[:400].decode("utf-8", "replace")))
        ending.tell(f"the program has ended: {await running}")


async def _speak(pipes: "_Pipes", spoken: MemoryObjectReceiveStream[SessionMessage]) -> None:
    with spoken, suppress(BrokenPipeError):
        async for message in spoken:
            line = message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
            view = memoryview(line)
            while view:
                await anyio.wait_writable(pipes.orders)
                with suppress(BlockingIOError):
                    view = view[os.write(pipes.orders, view) :]


async def _lines(fd: int) -> AsyncGenerator[bytes]:
    """Line by line, as far as one is not too long; the rest of such a one is never read."""
    held = bytearray()
    while True:
        await anyio.wait_readable(fd)
        try:
            block = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            continue
        if not block:
            return
        *lines, rest = block.split(b"\n")
        for line in lines:
            yield bytes(held) + line
            held.clear()
        held += rest
        if len(held) > LINE_BYTES_MAX:
            yield bytes(held)
            return


def _parts(line: bytes) -> list[bytes]:
    """The messages of a line: one, or several in an array, as the protocol of 2025-03-26 has it."""
    text = line.strip()
    if not text.startswith(b"["):
        return [text] if text else []
    try:
        return list(map(bytes, msgspec.json.decode(text, type=list[msgspec.Raw])))
    except msgspec.MsgspecError:
        return [text]


class _Answered(msgspec.Struct):
    """As much as says which request an answer is for."""

    id: int | str
    result: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()


def _message(text: bytes) -> JSONRPCMessage | None:
    """`None` for what is no message. An answer that breaks the protocol is an error for who waits for it."""
    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        pass
    try:
        answered = msgspec.json.decode(text, type=_Answered)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not (bytes(answered.result) or bytes(answered.error)):
        return None
    broken = ErrorData(code=PARSE_ERROR, message="its answer is not one that the protocol allows")
    return JSONRPCError(jsonrpc="2.0", id=answered.id, error=broken)


class _Pipes:
    """`orders` leads to the program, `answers` from it; the other ends are held for it."""

    def __init__(self, orders: "_Fifo", answers: "_Fifo") -> None:
        self.orders, self.answers = orders.writing, answers.reading
        self._others = [orders.reading, answers.writing]
        self._paths = [orders.path, answers.path]
        self._hung_up = False

    def hide(self) -> None:
        while self._paths:
            self._paths.pop().unlink(missing_ok=True)

    def hang_up(self) -> None:
        """The program's input ends."""
        if not self._hung_up:
            self._hung_up = True
            os.close(self.orders)

    def let_go(self) -> None:
        """The program is over: what it wrote last is the end."""
        while self._others:
            os.close(self._others.pop())


class _Fifo(NamedTuple):
    """A named pipe, and both ends of it."""

    path: Path
    reading: int
    writing: int


@contextmanager
def _pipes(path: Path) -> Generator[_Pipes]:
    with ExitStack() as unless_owned:
        orders = _fifo(path.with_name(f"{path.name}.in"), unless_owned)
        answers = _fifo(path.with_name(f"{path.name}.out"), unless_owned)
        unless_owned.pop_all()
    pipes = _Pipes(orders, answers)
    try:
        yield pipes
    finally:
        pipes.hang_up()
        pipes.let_go()
        pipes.hide()
        os.close(pipes.answers)


def _fifo(path: Path, stack: ExitStack) -> _Fifo:
    """Makes it, for nobody else; what the stack undoes. Raises `OSError`."""
    os.mkfifo(path, 0o600)
    stack.callback(path.unlink, missing_ok=True)
    ends: list[int] = []
    for way in (os.O_RDONLY, os.O_WRONLY):
        # Another program of this server may work in the folder: what it put there instead is not opened.
        ends.append(os.open(path, way | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW))
        stack.callback(os.close, ends[-1])
        if not stat.S_ISFIFO(os.fstat(ends[-1]).st_mode):
            raise OSError(errno.EINVAL, "something else is where the pipe was made")
    return _Fifo(path, *ends)

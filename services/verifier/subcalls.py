"""Asking the workspace's host during a round: the owner's side of the protocol, for the owner's verifier.

Invariant: a sub-call belongs to one round and attempt (`verify-<round>-<what>`, same attempt and epoch), and its result
comes from the host or its journal. No host, no result: `HostGone`, never a guess.
"""

import asyncio
from datetime import timedelta
from typing import TypeVar

import msgspec

from libs.bus.journal import Journal
from libs.bus.ports import Bus, Liveness
from libs.chassis.asking import ask_living, noticed
from libs.chassis.effects import Stopped
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import BusUnavailable, NobodyThere, PerdureError
from libs.contracts.evidence import (
    BrowserQuestion,
    CommandAnswer,
    CommandQuestion,
    DiffAnswer,
    DiffQuestion,
    FilesAnswer,
    FilesQuestion,
    HttpAnswer,
    HttpQuestion,
    SnapshotAnswer,
    SnapshotQuestion,
)
from libs.contracts.tools import (
    VERIFY_BROWSER,
    VERIFY_COMMAND,
    VERIFY_DIFF,
    VERIFY_FILES,
    VERIFY_HTTP,
    VERIFY_SNAPSHOT,
    JournalState,
    Refusal,
    Semantics,
    ToolCall,
    ToolResult,
)

# Without a key after this long the message is sent again: the queue may have been deleted.
_RESEND_S = 10.0
# A host that has not begun by then will not: it would have refused, or it is gone.
_BEGIN_S = 60.0
# A snapshot of 200,000 files takes a minute or two; questions about files take milliseconds.
_SNAPSHOT_S = 300.0
_FILES_S = 60.0
# What of a command's output is asked for: the tail that the model and the evidence get, and some more before it.
_OUTPUT_CHARS = 16_000

_T = TypeVar("_T", bound=msgspec.Struct)


class HostGone(PerdureError):
    """The workspace's host cannot answer: the owner attaches again and asks for the next attempt."""

    code, retryable = "HOST_GONE", True


class HostFault(PerdureError):
    """The host answered that it cannot: the snapshot or the checkout failed, and would again."""

    code = "HOST_FAULT"


class Subcalls:
    """The questions of one round."""

    def __init__(
        self, bus: Bus, clock: Clock, liveness: Liveness, call: ToolCall, host: str, stop: asyncio.Event
    ) -> None:
        self._bus, self._clock, self._liveness = bus, clock, liveness
        self._call, self._host, self._stop = call, host, stop
        self._journal = Journal(bus.bucket("journal"))

    async def snapshot(self, question: SnapshotQuestion) -> SnapshotAnswer:
        result = await self._effect("snapshot", VERIFY_SNAPSHOT, question, _SNAPSHOT_S)
        return _answer(result, SnapshotAnswer)

    async def command(self, index: int, question: CommandQuestion) -> tuple[CommandAnswer, str]:
        """With its output. `timeout_s` of the question bounds the command."""
        result = await self._effect(str(index), VERIFY_COMMAND, question, question.timeout_s)
        return _answer(result, CommandAnswer), result.output

    async def http(self, index: int, question: HttpQuestion) -> tuple[HttpAnswer, str]:
        """With the answer's body and the server's output. `timeout_s` of the question bounds both."""
        result = await self._effect(str(index), VERIFY_HTTP, question, question.timeout_s)
        return _answer(result, HttpAnswer), result.output

    async def browser(self, index: int, question: BrowserQuestion) -> tuple[HttpAnswer, str]:
        """With the page's text and the server's output. `timeout_s` of the question bounds all of it."""
        result = await self._effect(str(index), VERIFY_BROWSER, question, question.timeout_s)
        return _answer(result, HttpAnswer), result.output

    async def files(self, question: FilesQuestion, what: str = "files") -> FilesAnswer:
        return _answer(await self._asked(what, VERIFY_FILES, question), FilesAnswer)

    async def diff(self, question: DiffQuestion) -> DiffAnswer:
        result = await self._asked("diff", VERIFY_DIFF, question)
        if result.refused == Refusal.UNKNOWN_TOOL:
            raise HostFault(
                "the workspace's tool host is of an earlier version and tells no diff; upgrade it"
            )
        return _answer(result, DiffAnswer)

    async def _asked(self, what: str, name: str, question: msgspec.Struct) -> ToolResult:
        """By request and reply: nothing changes, so nothing is journaled."""
        call = self._subcall(what, name, question, _FILES_S, Semantics.READ_ONLY)
        subject = self._bus.subjects.call_host(self._host)
        try:
            reply = await ask_living(
                self._bus.wire,
                subject,
                _encoder.encode(call),
                timeout_s=_FILES_S,
                gone=lambda: self._liveness.declare_dead_if_gone(self._host),
            )
        except NobodyThere as error:
            raise HostGone(f"nobody listens on the workspace's host {self._host}") from error
        except BusUnavailable as error:
            raise HostGone(f"the workspace's host {self._host} does not answer") from error
        if reply is None:
            raise HostGone(f"the workspace's host {self._host} is dead")
        return _result_decoder.decode(reply)

    async def _effect(self, what: str, name: str, question: msgspec.Struct, timeout_s: float) -> ToolResult:
        call = self._subcall(what, name, question, timeout_s, Semantics.IDEMPOTENT)
        begin_by_s = self._clock.monotonic() + _BEGIN_S
        end_by_s = begin_by_s + timeout_s
        sent_s: float | None = None
        live = self._bus.subjects.live(call.tenant, call.run_id)
        async with self._bus.wire.listen(live) as messages:
            while True:
                found = await self._journal.read(call.run_id, call.call_id, call.attempt)
                now_s = self._clock.monotonic()
                if found is not None and found.entry.state is JournalState.FINISHED:
                    assert found.entry.result is not None
                    return found.entry.result
                if self._stop.is_set():
                    raise Stopped("the round was cancelled")
                if now_s > (begin_by_s if found is None else end_by_s):
                    raise HostGone(f"the workspace's host {self._host} did not do {name} in time")
                if sent_s is not None and await self._liveness.declare_dead_if_gone(self._host):
                    raise HostGone(f"the workspace's host {self._host} is dead")
                if found is None and (sent_s is None or now_s - sent_s >= _RESEND_S):
                    await self._bus.queue.publish(
                        self._bus.subjects.tool_host(self._host), _encoder.encode(call)
                    )
                    sent_s = now_s
                await noticed(messages, call)

    def _subcall(
        self, what: str, name: str, question: msgspec.Struct, timeout_s: float, semantics: Semantics
    ) -> ToolCall:
        not_after = self._clock.now() + timedelta(seconds=_BEGIN_S)
        return ToolCall(
            tenant=self._call.tenant,
            run_id=self._call.run_id,
            call_id=f"{self._call.call_id}-{what}",
            attempt=self._call.attempt,
            epoch=self._call.epoch,
            name=name,
            arguments=msgspec.to_builtins(question),
            semantics=semantics,
            idempotency_key=f"{self._call.idempotency_key}/{what}",
            not_after=rfc3339(not_after),
            timeout_s=timeout_s,
            output_chars_max=_OUTPUT_CHARS,
            workspace=self._call.workspace,
            workspace_id=self._call.workspace_id,
        )


def _answer(result: ToolResult, into: type[_T]) -> _T:
    if result.refused is not None:
        raise HostGone(f"the workspace's host refused ({result.refused}) {result.output}".strip())
    if not result.ok:
        raise HostFault(result.output)
    return msgspec.convert(result.metadata, into)


_encoder = msgspec.json.Encoder()
_result_decoder = msgspec.json.Decoder(ToolResult)

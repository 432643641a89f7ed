"""A call with an effect, from its message to its notice (design, section 5).

Invariant: an effect starts only after (1) the leader's tail of its run named its epoch, (2) its journal key was created
by this boot, (3) its message was answered for and (4) the own lease was confirmed; its result is in the journal before
anybody is told. A call whose key exists is dropped: only the run's owner decides what to do with it.
"""

import asyncio
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import NamedTuple, Protocol

import msgspec

from libs.bus.fence import CLOSING_S, EpochFence
from libs.bus.journal import Journal, key_of
from libs.bus.ports import ACK, Bus, Delivery, Liveness, Outcome, dead, nak
from libs.chassis.execution import Execution, Executions
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, parse_rfc3339, rfc3339
from libs.contracts.errors import UNREADABLE, AppendConflict, BusUnavailable, PerdureError, Unavailable
from libs.contracts.streams import HEADER_BYTES_MAX, MESSAGE_BYTES_MAX
from libs.contracts.tools import (
    HostCatalog,
    JournalEntry,
    JournalState,
    Refusal,
    ToolCall,
    ToolNotice,
    ToolResult,
)

# A started call whose lease is unconfirmed waits this long for the lease; a death would be written by then.
LEASE_PATIENCE_S = 30.0
# A host that cannot say that it lives leaves calls to others for so long.
SUSPECT_S = 1.0
# A key that may be written is tried for until that is certain: started by a live host, its owner would wait for it.
CREATE_PATIENCE_S = 60.0
# A tail that was read so long ago says too little about who owns the run now.
ADMITTED_S = 5.0
# The journal is written until this has passed: an outage of the bus that is longer ends the host anyway.
JOURNAL_PATIENCE_S = 600.0
# What a result may take of the message that holds it; the rest is for what else stands in its entry, digests of files.
RESULT_BYTES_MAX = MESSAGE_BYTES_MAX - HEADER_BYTES_MAX - 200 * 1024
# What a defect in a tool raises. One tool's defect ends its call, not the other calls of the process.
DEFECTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    PerdureError,
    RuntimeError,
    TypeError,
    ValueError,
    ExceptionGroup,
)
# These refusals leave no trace: somebody else owns the run or the workspace, and there is nobody to tell.
_SILENT = frozenset(
    {Refusal.STALE_EPOCH, Refusal.RUN_NOT_LIVE, Refusal.NOT_MY_WORKSPACE, Refusal.MALFORMED, Refusal.EXPIRED}
)


class Stopped(PerdureError):
    """`stop` ended a call before it was done. No result of its tool: what it says to the model would not be true of the
    next attempt."""

    code = "STOPPED"


class Perform(Protocol):
    """Carries a prepared effect out. `stop` asks it to end early; it returns when nothing of it is running, and raises
    `Stopped` when it was not done by then."""

    async def __call__(self, stop: asyncio.Event) -> ToolResult: ...


class Effect(NamedTuple):
    """An effect that is checked and ready to start; the digests go into the journal first."""

    perform: Perform
    before: dict[str, str | None]
    after: dict[str, str]


Prepared = Effect | ToolResult


class Prepare(Protocol):
    """Prepares a call with an effect, or says its result at once; the context lasts until the effect is over."""

    def __call__(self, call: ToolCall, /) -> AbstractAsyncContextManager[Prepared]: ...


class Effects:
    """Carries calls with effects out for one host. `calls` owns the tasks, which outlive the answer to the message."""

    def __init__(
        self, bus: Bus, clock: Clock, fence: EpochFence, executions: Executions, prepare: Prepare
    ) -> None:
        self._bus, self._clock, self._fence = bus, clock, fence
        self._executions, self._prepare = executions, prepare
        self._journal = Journal(bus.bucket("journal"))
        # Keys whose effect began here and whose result is not in the journal: a message that comes again must not take
        # such a key for one that was never started. What stays are the few whose results an outage lost.
        self._begun: set[str] = set()
        self._log = get_logger("effects")

    async def accept(
        self, delivery: Delivery, host: HostCatalog, liveness: Liveness, calls: asyncio.TaskGroup
    ) -> Outcome:
        """Take one call; answers once the journal holds it. Idempotent by the journal key: run, call, attempt."""
        try:
            call = call_decoder.decode(delivery.body)
            expired = self._clock.now() > parse_rfc3339(call.not_after)
        except (ValueError, *UNREADABLE) as error:
            return dead(f"this is not a tool call: {error}")
        if expired:
            self._log.info("call.expired", run_id=call.run_id, call_id=call.call_id, attempt=call.attempt)
            return ACK
        if self._fence.is_closing(call):
            return nak(CLOSING_S)
        if not liveness.confirmed():
            # Perhaps declared dead already: what it started nobody would wait for, and each start costs an attempt.
            return nak(SUSPECT_S)
        accepted: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        calls.create_task(self._carry_out(call, host, liveness, accepted))
        return await accepted

    async def _carry_out(
        self, call: ToolCall, host: HostCatalog, liveness: Liveness, accepted: asyncio.Future[Outcome]
    ) -> None:
        if self._executions.holds(key_of(call)):
            _settle(accepted, ACK)
            return
        with self._executions.running(call, read_only=False) as execution:
            try:
                async with AsyncExitStack() as stack:
                    prepared = await self._prepared(call, stack)
                    asked_s = self._clock.monotonic()
                    refusal = await self._refusal(call, prepared)
                    if refusal is not None:
                        self._log.info(
                            "call.refused", run_id=call.run_id, call_id=call.call_id, reason=refusal
                        )
                        _settle(accepted, ACK)
                        return
                    entry = self._entry(host, prepared)
                    revision = await self._create(call, entry)
                    _settle(accepted, ACK)
                    if revision is not None:
                        if self._clock.monotonic() - asked_s > ADMITTED_S:
                            execution.admitted = False
                        await self._from_the_journal(call, prepared, entry, revision, liveness, execution)
            except PerdureError as error:
                self._log.warning(
                    "call.postponed", run_id=call.run_id, call_id=call.call_id, error=error.message
                )
            finally:
                _settle(accepted, nak(1.0))

    async def _prepared(self, call: ToolCall, stack: AsyncExitStack) -> Prepared:
        try:
            prepared = await stack.enter_async_context(self._prepare(call))
            return prepared if isinstance(prepared, Effect) else fitting(call, prepared)
        except BusUnavailable:
            raise
        except DEFECTS as error:
            return self._defect(call, error)

    async def _refusal(self, call: ToolCall, prepared: Prepared) -> Refusal | None:
        refusal = await self._fence.admit(call, fresh=True)
        if refusal is None and isinstance(prepared, ToolResult) and prepared.refused in _SILENT:
            return Refusal(prepared.refused)
        return refusal

    def _entry(self, host: HostCatalog, prepared: Prepared) -> JournalEntry:
        entry = JournalEntry(
            state=JournalState.STARTED,
            boot=host.boot,
            replica=host.replica,
            host=host.host,
            at=rfc3339(self._clock.now()),
        )
        if isinstance(prepared, ToolResult):
            # Known without an effect (bad arguments, denied): there is nothing to start, only something to tell.
            return msgspec.structs.replace(entry, state=JournalState.FINISHED, result=prepared)
        return msgspec.structs.replace(entry, before=prepared.before, after=prepared.after)

    async def _create(self, call: ToolCall, entry: JournalEntry) -> int | None:
        """Create the key, as long as it takes to be sure of it. Its revision, or `None` when it is somebody else's."""
        give_up_s = self._clock.monotonic() + CREATE_PATIENCE_S
        while True:
            try:
                return await self._created(call, entry)
            except Unavailable:
                # A bus without room refuses this try; an earlier one may still arrive.
                if self._clock.monotonic() > give_up_s:
                    raise
                await self._clock.sleep(1.0)

    async def _created(self, call: ToolCall, entry: JournalEntry) -> int | None:
        """One try. An entry that this very process wrote and never started (the outcome of an earlier write was
        unknown) is taken over."""
        try:
            return await self._journal.create(call, entry)
        except AppendConflict:
            found = await self._journal.read(call.run_id, call.call_id, call.attempt)
        if found is None or found.entry.boot != entry.boot or found.entry.state is not JournalState.STARTED:
            return None
        if key_of(call) in self._begun:
            return None
        return found.revision

    async def _from_the_journal(
        self,
        call: ToolCall,
        prepared: Prepared,
        entry: JournalEntry,
        revision: int,
        liveness: Liveness,
        execution: Execution,
    ) -> None:
        """What follows once the key is there: start, finish, tell."""
        if isinstance(prepared, Effect):
            began_s = self._clock.monotonic()
            self._begun.add(key_of(call))
            result = await self._perform(call, prepared, liveness, execution)
            result = timed(result, self._clock.monotonic() - began_s)
            finished = msgspec.structs.replace(entry, state=JournalState.FINISHED, result=result)
            if not await self._finish(call, finished, revision):
                return
            self._begun.discard(key_of(call))
        await self._notify(call)

    async def _perform(
        self, call: ToolCall, effect: Effect, liveness: Liveness, execution: Execution
    ) -> ToolResult:
        refusal = await self._may_start(call, liveness, execution)
        if refusal is not None:
            return refused(call, refusal)
        if execution.stop.is_set():
            return refused(call, Refusal.HOST_GONE, "it was ended before it started")
        try:
            # What the journal could not hold (half a surrogate pair) is a defect of the tool, too.
            return fitting(call, await effect.perform(execution.stop))
        except Stopped as stopped:
            return refused(call, Refusal.STOPPED, stopped.message)
        except DEFECTS as error:
            return self._defect(call, error)

    async def _may_start(self, call: ToolCall, liveness: Liveness, execution: Execution) -> Refusal | None:
        if execution.admitted and liveness.confirmed():
            return None
        give_up_s = self._clock.monotonic() + LEASE_PATIENCE_S
        while not liveness.confirmed():
            if self._clock.monotonic() > give_up_s:
                return Refusal.HOST_SUSPECT
            await self._clock.sleep(0.1)
        # Time has passed since the tail was read.
        try:
            return await self._fence.admit(call, fresh=True)
        except BusUnavailable:
            # The journal must say that nothing was started, or a person would be asked about it.
            return Refusal.HOST_SUSPECT

    async def _finish(self, call: ToolCall, entry: JournalEntry, revision: int) -> bool:
        """Write the result, however long the bus is away; false when the key is no longer this host's."""
        give_up_s = self._clock.monotonic() + JOURNAL_PATIENCE_S
        while True:
            try:
                await self._journal.finish(call, entry, revision)
                return True
            except AppendConflict:
                found = await self._journal.read(call.run_id, call.call_id, call.attempt)
                return found is not None and found.entry.state is JournalState.FINISHED
            except PerdureError as error:
                if self._clock.monotonic() > give_up_s:
                    self._log.error(
                        "call.result_lost", run_id=call.run_id, call_id=call.call_id, error=error.message
                    )
                    return False
                await self._clock.sleep(1.0)

    async def _notify(self, call: ToolCall) -> None:
        notice = ToolNotice(
            run_id=call.run_id, call_id=call.call_id, attempt=call.attempt, state=JournalState.FINISHED
        )
        try:
            await self._bus.wire.publish(
                self._bus.subjects.live(call.tenant, call.run_id), encoder.encode(notice)
            )
        except BusUnavailable:
            # A lost notice costs the owner a poll.
            self._log.debug("notice.lost", run_id=call.run_id, call_id=call.call_id)

    def _defect(self, call: ToolCall, error: BaseException) -> ToolResult:
        self._log.exception("call.defect", run_id=call.run_id, call_id=call.call_id, tool=call.name)
        return defect(call, error)


def failed(call: ToolCall, output: str, metadata: dict[str, object] | None = None) -> ToolResult:
    """The tool's own failure; the run goes on with it."""
    return ToolResult(
        call_id=call.call_id, attempt=call.attempt, ok=False, output=output, metadata=metadata or {}
    )


def refused(call: ToolCall, refusal: Refusal, message: str = "") -> ToolResult:
    """The host did not carry the call out."""
    return ToolResult(call_id=call.call_id, attempt=call.attempt, ok=False, output=message, refused=refusal)


def defect(call: ToolCall, error: BaseException) -> ToolResult:
    """The tool broke in a way that nobody foresaw."""
    return failed(
        call,
        f"INTERNAL_ERROR: {call.name} broke ({type(error).__name__}); what it did until then is not known",
    )


def fitting(call: ToolCall, result: ToolResult) -> ToolResult:
    """The result, or what is said in its place when no message could hold it."""
    size = len(encoder.encode(result))
    if size <= RESULT_BYTES_MAX:
        return result
    told = f"RESULT_TOO_LARGE: {call.name} was carried out, and its result of {size} bytes is over {RESULT_BYTES_MAX}"
    return failed(call, f"{told}; ask for less", {"error_code": "RESULT_TOO_LARGE"})


def timed(result: ToolResult, duration_s: float) -> ToolResult:
    """The result with its duration, unless the tool knows better."""
    return (
        result
        if result.duration_ms
        else msgspec.structs.replace(result, duration_ms=round(duration_s * 1000))
    )


def _settle(accepted: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not accepted.done():
        accepted.set_result(outcome)


encoder = msgspec.json.Encoder()
call_decoder = msgspec.json.Decoder(ToolCall)

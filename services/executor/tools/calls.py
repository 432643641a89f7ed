"""Calls to tool hosts and verifiers, from the owner's side of the protocol (design, section 5).

Invariant: a call is sent only after its intent is in the log; whatever happens to a process on the way, the outcome
comes from the journal by the table in `recovery.py`, never from a guess.
"""

from datetime import timedelta
from typing import NamedTuple

import msgspec

from libs.bus.journal import Journal
from libs.bus.ports import Bus, Liveness
from libs.chassis.asking import ask_living, noticed
from libs.chassis.logs import get_logger
from libs.contracts.clock import Clock, rfc3339
from libs.contracts.errors import UNREADABLE, BusUnavailable, UnreadableRecord
from libs.contracts.tools import (
    CancelCalls,
    ControlReply,
    JournalEntry,
    JournalState,
    Refusal,
    ToolCall,
    ToolResult,
)
from services.executor.tools.hosts import Hosts
from services.executor.tools.recovery import (
    OVERDUE_AFTER_TIMEOUT_S,
    Adopt,
    NextAttempt,
    Recovery,
    SendAgain,
    Uncertain,
    Wait,
    recover,
)

# A message whose key does not appear is sent again (to a host: after a look at who hosts the workspace now): the queue
# may have been deleted, or the host refused it. If it only takes long, its copy comes to nothing: the host drops a call
# that it has in hand, and of two hosts one creates the key.
RESEND_S = 10.0
# A living host that says nothing for so many times a call's time has a defect or too much to do; nobody waits for it for
# ever.
UNANSWERED_MAX = 3
# Between two questions to a host that is not there and not dead: each time twice as long, unless a host comes, goes or
# dies.
ASK_AGAIN_S, ASK_AGAIN_MAX_S = 0.25, 2.0
# Pauses between copies for a shared tool that nobody serves grow up to this.
RESEND_MAX_S = 120.0
# A refusal in the journal says that nothing was started; the next attempt waits, each time twice as long.
REFUSED_PAUSE_S, REFUSED_PAUSE_MAX_S = 0.5, 10.0
# How long a host may take to confirm that what ran for a run is dead; the host kills within a grace of 1 s.
CANCEL_S = 1.8
# A READ_ONLY call is answered this long after its own timeout at the latest, or the host is asked for its health.
REPLY_GRACE_S = 2.0


class HostGone(NamedTuple):
    """The host of the workspace is dead or refuses: attach anew, then send again."""

    reason: str


class HostSilent(NamedTuple):
    """The host lives and did not answer, however often it was asked."""

    host: str


CallOutcome = ToolResult | HostGone | HostSilent | NextAttempt | Uncertain


class Calls:
    """Sends calls and finds out what became of them; one object a process."""

    def __init__(self, bus: Bus, clock: Clock, liveness: Liveness, hosts: Hosts) -> None:
        self._bus, self._clock, self._liveness, self._hosts = bus, clock, liveness, hosts
        self._journal = Journal(bus.bucket("journal"))
        self._log = get_logger("calls")
        self._encoder = msgspec.json.Encoder()
        self._results = msgspec.json.Decoder(ToolResult)

    async def ask(self, call: ToolCall, boot: str) -> CallOutcome:
        """A READ_ONLY call to one host, by request and reply; safe to repeat on another one."""
        subject = self._bus.subjects.call_host(boot)
        body = self._encoder.encode(self._dated(call))
        patience_s, pause_s = call.timeout_s + REPLY_GRACE_S, ASK_AGAIN_S
        give_up_at = self._clock.monotonic() + UNANSWERED_MAX * patience_s
        while self._clock.monotonic() < give_up_at:
            try:
                reply = await ask_living(
                    self._bus.wire, subject, body, timeout_s=patience_s, gone=lambda: self._gone(boot)
                )
            except BusUnavailable as error:
                if await self._gone(boot):
                    return HostGone(error.message)
                await self._hosts.pause(pause_s)
                pause_s = min(2 * pause_s, ASK_AGAIN_MAX_S)
                continue
            if reply is None:
                return HostGone("it died before it answered")
            result = self._result(reply, call)
            return HostGone(result.output or result.refused) if result.refused in _ASK_AGAIN else result
        return HostSilent(boot)

    async def effect(self, call: ToolCall, boot: str | None, *, fresh: bool) -> CallOutcome:
        """A journaled call: to the host `boot`, or to whoever takes it (`None`: a shared tool).

        `fresh`: the intent was appended by this owner just now, so the journal cannot hold anything yet.
        """
        overdue_at = self._clock.monotonic() + call.timeout_s + OVERDUE_AFTER_TIMEOUT_S
        sent_at: float | None = None
        resend_s = RESEND_S
        entry = None
        async with self._bus.wire.listen(self._bus.subjects.live(call.tenant, call.run_id)) as messages:
            if not fresh:
                entry = await self._entry(call)
            while True:
                now = self._clock.monotonic()
                step = await self._step(call, entry, boot, overdue=now > overdue_at)
                match step:
                    case Adopt(result):
                        return result
                    case NextAttempt() | Uncertain() | HostGone():
                        return step
                    case SendAgain():
                        if sent_at is not None and now - sent_at >= RESEND_S and boot is not None:
                            return HostGone("it did not take the call")
                        if sent_at is None or now - sent_at >= resend_s:
                            resend_s = min(2 * resend_s, RESEND_MAX_S) if sent_at is not None else RESEND_S
                            await self._send(call, boot)
                            sent_at = now
                    case Wait():
                        pass
                await noticed(messages, call)
                entry = await self._entry(call)

    async def known(self, call: ToolCall) -> CallOutcome | Wait | None:
        """What the journal knows of a journaled call that nobody can take now: `Wait` while a host has it, `None` when it
        holds nothing."""
        match await self._step(call, await self._entry(call), None, overdue=False):
            case Adopt(result):
                return result
            case (NextAttempt() | Uncertain() | HostGone()) as step:
                return step
            case Wait():
                return Wait()
            case SendAgain():
                return None

    async def kill(self, run_id: str, epoch: int, boot: str, call_id: str | None = None) -> None:
        """Have the host kill what runs for this run (or one call of it); returns once it says so, or after its time to
        do so."""
        message = self._encoder.encode(CancelCalls(run_id=run_id, epoch=epoch, call_id=call_id))
        try:
            reply = await self._bus.wire.request(
                self._bus.subjects.control(boot), message, timeout_s=CANCEL_S
            )
        except BusUnavailable as error:
            # The host reads the run's tail every 5 s and kills the calls of a terminal run by itself.
            self._log.warning("calls.kill_unconfirmed", run_id=run_id, host=boot, reason=error.message)
            return
        try:
            ended = msgspec.json.decode(reply, type=ControlReply).ended
        except UNREADABLE as error:
            self._log.warning("calls.kill_unconfirmed", run_id=run_id, host=boot, reason=str(error))
            return
        self._log.info("calls.killed", run_id=run_id, host=boot, ended=ended)

    def _result(self, reply: bytes, call: ToolCall) -> ToolResult:
        """What a host answered, whoever wrote it. An answer that nobody can use is the tool's own failure: asking again
        would not change the host."""
        try:
            result = self._results.decode(reply)
        except UNREADABLE as error:
            problem = f"the answer of its host cannot be read: {error}"
        else:
            ours = (result.call_id, result.attempt) == (call.call_id, call.attempt)
            # Who could not read the call does not know which it was.
            if ours or result.refused == Refusal.MALFORMED:
                return result
            problem = f"its host answered for attempt {result.attempt} of call {result.call_id}"
        self._log.warning("calls.unusable_answer", run_id=call.run_id, call_id=call.call_id, reason=problem)
        return ToolResult(
            call_id=call.call_id, attempt=call.attempt, ok=False, output=f"{call.name} failed: {problem}"
        )

    async def _step(
        self, call: ToolCall, entry: JournalEntry | None, boot: str | None, *, overdue: bool
    ) -> Recovery | HostGone:
        dead = entry is not None and entry.result is None and await self._gone(entry.boot)
        step = recover(call.semantics, entry, host_dead=dead, overdue=overdue and entry is not None)
        if isinstance(step, SendAgain) and boot is not None and await self._gone(boot):
            return HostGone("it died before it took the call")
        if isinstance(step, Adopt) and step.result.refused in _NEVER_STARTED:
            await self._clock.sleep(min(REFUSED_PAUSE_S * 2 ** (call.attempt - 1), REFUSED_PAUSE_MAX_S))
            return NextAttempt()
        if isinstance(step, NextAttempt | Uncertain) and entry is not None and not (dead or entry.result):
            # Overdue on a host that lives: two attempts must not run side by side.
            await self.kill(call.run_id, call.epoch, entry.boot, call.call_id)
        return step

    async def _gone(self, boot: str) -> bool:
        """Whether the boot is dead; asked only when its key is not there, and written if nobody has yet."""
        return not self._hosts.alive(boot) and await self._liveness.declare_dead_if_gone(boot)

    async def _send(self, call: ToolCall, boot: str | None) -> None:
        subjects = self._bus.subjects
        subject = subjects.tool_host(boot) if boot is not None else subjects.tool_any(call.name)
        await self._bus.queue.publish(subject, self._encoder.encode(self._dated(call)))

    def _dated(self, call: ToolCall) -> ToolCall:
        """The call with its deadline: nobody starts it once its owner has stopped to wait."""
        not_after = self._clock.now() + timedelta(seconds=call.timeout_s + OVERDUE_AFTER_TIMEOUT_S)
        return msgspec.structs.replace(call, not_after=rfc3339(not_after))

    async def _entry(self, call: ToolCall) -> JournalEntry | None:
        try:
            found = await self._journal.read(call.run_id, call.call_id, call.attempt)
        except UnreadableRecord as error:
            # Somebody began, and nobody knows how it ended: the same as an attempt that was stopped half-way.
            self._log.warning("calls.unreadable_entry", run_id=call.run_id, reason=error.message)
            return _unreadable(call, error.message)
        return found.entry if found is not None else None


def _unreadable(call: ToolCall, problem: str) -> JournalEntry:
    result = ToolResult(
        call_id=call.call_id, attempt=call.attempt, ok=False, output=problem, refused=Refusal.STOPPED
    )
    return JournalEntry(
        state=JournalState.FINISHED, boot="", replica="unknown", host="", at="", result=result
    )


# Refusals that say nothing about the call itself: the workspace has to be attached again first.
_ATTACH_AGAIN: frozenset[str] = frozenset(
    {
        Refusal.NOT_MY_WORKSPACE,
        Refusal.WORKSPACE_BUSY,
        Refusal.HOST_SUSPECT,
        Refusal.HOST_GONE,
        Refusal.EXPIRED,
    }
)
# A READ_ONLY call that was stopped is repeated like one that never began.
_ASK_AGAIN: frozenset[str] = _ATTACH_AGAIN | {Refusal.STOPPED}
# Refusals that a host may have put into the journal before it started anything: the attempt is over, the call is not.
_NEVER_STARTED: frozenset[str] = _ATTACH_AGAIN | {Refusal.STALE_EPOCH, Refusal.RUN_NOT_LIVE}

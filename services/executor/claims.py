"""How this process gets runs and what it does with them: tickets, claims, and the supervision of sessions.

Invariant: a ticket is a hint; only `run.claimed` in the log makes an owner, and the ticket is acked after it is
stored. Keyed by run: a second ticket for a run that is held changes nothing.
"""

import asyncio
from collections.abc import Mapping
from datetime import timedelta

import msgspec

from libs.bus.ports import ACK, Delivery, Liveness, LogKey, Outcome, dead, nak
from libs.chassis.logs import get_logger
from libs.chassis.run import leaves
from libs.contracts import events as e
from libs.contracts.clock import parse_rfc3339, rfc3339
from libs.contracts.errors import UNREADABLE, AppendConflict, NotFound, PerdureError, Unavailable
from libs.contracts.ids import is_id, is_token
from libs.contracts.run import OWNED, RunState, RunStatus
from libs.contracts.tasks import Ticket
from services.executor.activities import Activities, Workbench
from services.executor.endpoint.pulse import Pulse
from services.executor.quarantine import Quarantine, give_up, poisoned
from services.executor.session import BUS_AWAY_S, Session, SessionParts

# Before a run whose session met a defect is tried again.
DEFECT_RETRY_S = 10.0
# Defects that a run may meet in a row before it is given up: the fault is in the run, not in its owners.
DEFECTS_MAX = 3
# A claim takes milliseconds; a session that has not claimed by now is behind a bus that is away.
CLAIM_WAIT_S = 20.0
# So long after the bus is back a claim of which nobody heard may still arrive: longer than a server holds a message back
# over an election, and than a dead connection's buffers last.
CLAIM_LATE_S = 60.0


class Claims:
    """The runs of this process. `slots` bounds how many it holds."""

    def __init__(
        self,
        parts: SessionParts,
        workbench: Workbench,
        liveness: Liveness,
        group: asyncio.TaskGroup,
        *,
        slots: int,
        quarantine: Quarantine | None,
        held: dict[str, "Held"] | None = None,
    ) -> None:
        """`quarantine` is `None` in a process that carries one run alone; `held` is where the lease counts the runs."""
        self._parts, self._workbench, self._liveness, self._group = parts, workbench, liveness, group
        self._slots, self._quarantine = slots, quarantine
        self._held: dict[str, Held] = {} if held is None else held
        self._freed = asyncio.Event()
        self._draining = False
        self._log = get_logger("claims")
        self._tickets = msgspec.json.Decoder(Ticket)

    async def free_slot(self) -> None:
        """Wait until another run may be held."""
        while len(self._held) >= self._slots or self._draining:
            self._freed.clear()
            await self._freed.wait()

    async def take(self, delivery: Delivery) -> Outcome:
        """Handle one ticket. Keyed by run; idempotent because the log decides."""
        try:
            ticket = self._tickets.decode(delivery.body)
        except UNREADABLE as error:
            return dead(f"not a ticket: {error}")
        if not (is_token(ticket.tenant) and is_id("run", ticket.run_id)):
            return dead("not a ticket of a run")
        known = self._held.get(ticket.run_id)
        if known is not None:
            known.wanted, known.due = True, ticket.due
            return ACK if known.claimed.is_set() else nak(1.0)
        if self._draining or not self._liveness.confirmed() or len(self._held) >= self._slots:
            return nak(0.5)
        held, task = self.carry(ticket)
        claimed = asyncio.create_task(held.claimed.wait())
        try:
            await asyncio.wait({task, claimed}, timeout=CLAIM_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            claimed.cancel()
        settled = held.claimed.is_set() or (task.done() and self._liveness.confirmed())
        return ACK if settled else nak(1.0)

    def carry(self, ticket: Ticket) -> tuple["Held", asyncio.Task[None]]:
        """Work on a run from now on, as far as it may be claimed; the task ends when there is nothing more to do."""
        held = self._held[ticket.run_id] = Held(ticket)
        return held, self._group.create_task(self._supervise(held), name=ticket.run_id)

    async def drain(self) -> None:
        """Release every run, and return when all sessions have ended."""
        self._draining = True
        for held in self._held.values():
            held.drain()
        while self._held:
            self._freed.clear()
            await self._freed.wait()

    async def _claimable(self, state: RunState, due: int | None) -> bool:
        match state.status:
            case RunStatus.QUEUED:
                return True
            case RunStatus.RETRYING:
                # A fired timer counts, whatever the local clock says.
                if state.retry_at is None or (due is not None and due == state.waiting_since):
                    return True
                return parse_rfc3339(state.retry_at) <= self._parts.clock.now()
            case status if status in OWNED and state.owner is not None:
                return await self._liveness.is_dead(state.owner.boot)
            case _:
                return False

    def _claim(self, state: RunState) -> e.RunClaimed:
        return e.RunClaimed(
            owner=self._parts.replica, boot=self._parts.boot, epoch=state.epoch + 1, attempt=state.attempt + 1
        )

    async def _supervise(self, held: "Held") -> None:
        """Run sessions until one ends well, or the run belongs to nobody here."""
        try:
            while held.wanted:
                # A ticket that comes while the last session winds down is for what that session let go of.
                held.wanted = False
                while (session := await self._next_session(held)) is not None:
                    held.session = session
                    if held.stop.is_set():
                        session.drain()
                    if await self._run_session(session, held):
                        break
        except (PerdureError, OSError) as error:
            # The run is unreadable here, or its own process cannot be made: it stays as the log says.
            self._log.error("run.left", run_id=held.run_id, reason=str(error))
        finally:
            del self._held[held.run_id]
            self._freed.set()

    async def _next_session(self, held: "Held") -> Session | None:
        """A session on what the log says now: with a claim, without one for a run that is ours, or none at all."""
        while True:
            try:
                folded = await self._parts.runs.load(held.tenant, held.run_id)
                state = folded.state
                if held.pulse is None:
                    held.pulse = Pulse(self._parts.clock)
                held.of_project = state.task.session is not None
                activities = Activities(self._workbench, state, held.pulse)
                if state.owner is not None and state.owner.boot == self._parts.boot:
                    claim = None
                elif (
                    not held.stop.is_set()
                    and self._liveness.confirmed()
                    and await self._claimable(state, held.due)
                ):
                    if self._quarantine is not None and self._quarantine.wanted(state):
                        await self._quarantine.carry(state, held.claimed, held.stop)
                        return None
                    claim = self._claim(state)
                elif not state.terminal and held.in_doubt(self._parts.clock.monotonic()):
                    # The claim may still arrive, and then nobody else would carry the run of a living owner.
                    await self._parts.clock.sleep(BUS_AWAY_S)
                    continue
                else:
                    return None
                await activities.recall(state)
            except NotFound:
                return None
            except Unavailable as error:
                self._log.warning("claims.bus_away", run_id=held.run_id, reason=error.message)
                await self._parts.clock.sleep(BUS_AWAY_S)
                held.still_in_doubt(self._parts.clock.monotonic())
                continue
            return Session(self._parts, activities, folded, claim, held.claimed)

    async def _run_session(self, session: Session, held: "Held") -> bool:
        """Run one session; whether that was all. Everything that a session may raise ends here."""
        try:
            await session.run()
        except AppendConflict:
            return False  # A claim lost to a command or to another owner: look at the log again.
        except Exception as error:  # noqa: BLE001 a defect in one run must not take the other 63 with it
            if all(isinstance(leaf, Unavailable) for leaf in leaves(error)):
                self._log.warning("session.bus_away", run_id=session.run_id, reason=str(leaves(error)[0]))
                held.doubt(self._parts.clock.monotonic())
                await self._parts.clock.sleep(BUS_AWAY_S)
                return False
            self._log.exception("session.defect", run_id=session.run_id)
            await self._give_back(session)
            return True
        return True

    async def _give_back(self, session: Session) -> None:
        """A session met a defect of ours: another try later, a few times, then say so instead of trying for ever."""

        def decide(state: RunState) -> list[e.LogEvent]:
            if state.owner is None or state.owner.boot != self._parts.boot:
                return []
            if state.claims_without_progress >= DEFECTS_MAX:
                reason = f"{state.claims_without_progress} owners met a defect on this run; see their logs"
                return [poisoned(state, reason)]
            delay_s = DEFECT_RETRY_S * 2 ** (state.claims_without_progress - 1)
            retry_at = rfc3339(self._parts.clock.now() + timedelta(seconds=delay_s))
            return [e.RunReleased(reason="failure", retry_at=retry_at, message="the executor met a defect")]

        while True:
            try:
                await give_up(
                    self._parts.bus, self._parts.runs, LogKey(session.tenant, session.run_id), decide
                )
            except Unavailable as error:
                self._log.warning("claims.bus_away", run_id=session.run_id, reason=error.message)
                await self._parts.clock.sleep(BUS_AWAY_S)
            else:
                return


def silences(held: Mapping[str, "Held"]) -> dict[str, float]:
    """How long each run of a project has shown no sign of life, in seconds; as many as there are slots at most."""
    return {
        run_id: round(one.pulse.silent_s, 1)
        for run_id, one in held.items()
        if one.of_project and one.pulse is not None
    }


class Held:
    """A run that this process works on, across the sessions that it may take."""

    def __init__(self, ticket: Ticket) -> None:
        self.tenant, self.run_id, self.due = ticket.tenant, ticket.run_id, ticket.due
        self.claimed = asyncio.Event()
        self.session: Session | None = None
        # Since this process has it; and whether somebody wants to know.
        self.pulse: Pulse | None = None
        self.of_project = False
        self.wanted = True
        self.stop = asyncio.Event()
        self._in_doubt_until: float | None = None

    def doubt(self, now: float) -> None:
        """What became of the last append is not known."""
        self._in_doubt_until = now + CLAIM_LATE_S

    def still_in_doubt(self, now: float) -> None:
        """The bus is still away: what is on its way to it stays so."""
        if self._in_doubt_until is not None:
            self.doubt(now)

    def in_doubt(self, now: float) -> bool:
        """Whether an append may still arrive. A process that drains does not wait: its death tells the others."""
        return self._in_doubt_until is not None and now < self._in_doubt_until and not self.stop.is_set()

    def drain(self) -> None:
        self.stop.set()
        if self.session is not None:
            self.session.drain()

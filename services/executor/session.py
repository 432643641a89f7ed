"""One owned run, from its claim to the moment this process lets go of it.

Invariant: the loop is read, fold, settle, append, act; nothing is done whose intent is not in the log, and nothing is
appended on top of a state that was not read. Losing the run ends the session like a cancellation.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from libs.bus.ports import Bus, LogKey
from libs.bus.runs import Folded, Runs
from libs.chassis.logs import get_logger
from libs.contracts import events as e
from libs.contracts.clock import Clock
from libs.contracts.envelope import Record, decode_events
from libs.contracts.errors import AppendConflict, BusUnavailable, LeaseLost, NotFound, Unavailable
from libs.contracts.run import RunState
from libs.contracts.tools import VERIFY
from services.executor.activities import Activities, Footing, Lost
from services.executor.decision.activity import (
    Activity,
    Attach,
    CallModel,
    CallTool,
    Offer,
    ReadResult,
    Save,
    SpawnChild,
    Summarise,
    Verify,
)
from services.executor.decision.decide import Do, Leave, Settled, foresee, settle
from services.executor.decision.limits import deadline

# A result that waits longer than this for a slower sibling is appended alone.
SIBLING_WAIT_S = 1.0
# A checkpoint after this many records of an owner: reading a run never costs more than twice this many.
CHECKPOINT_RECORDS = 64
# Between two looks at a log, and two tries of a session, while the bus is away.
BUS_AWAY_S = 1.0

_MODEL = "model-"
_SAVE = "save"
# What an owner says last.
_ENDS = (e.RunReleased, e.RunCompleted, e.RunFailed, e.RunCancelled)


class SessionParts(NamedTuple):
    """What a session needs of its process. `until_progress`: let go of a run once it has got anywhere."""

    bus: Bus
    runs: Runs
    clock: Clock
    boot: str
    replica: str
    until_progress: bool = False


class Session:
    """Owns one run. Sets `claimed` once the claim is in the log."""

    def __init__(
        self,
        parts: SessionParts,
        activities: Activities,
        folded: Folded,
        claim: e.RunClaimed | None,
        claimed: asyncio.Event,
    ) -> None:
        """`claim` is `None` when this process owns the run already and begins again from the log."""
        self._parts, self._activities, self._folded = parts, activities, folded
        self._claimed = claimed
        self._pending: list[e.LogEvent] = [claim] if claim is not None else []
        self._running: dict[str, asyncio.Task[None]] = {}
        self._held_since: float | None = None
        self._appended: set[str] = set()
        self._records = 0
        self._wake = asyncio.Event()
        self._news: list[Record] = []
        # What was to become the next record, of which nobody knows yet whether it has: the newest try last.
        self._tried: list[list[e.LogEvent]] = []
        self._draining = False
        self._doubted = False
        # This session itself has let go of the run, or ended it: whoever owns it from now on takes nothing away.
        self._over = False
        self._log = get_logger("session").bind(run_id=folded.state.run_id)

    @property
    def tenant(self) -> str:
        return self._folded.state.tenant

    @property
    def run_id(self) -> str:
        return self._folded.state.run_id

    def drain(self) -> None:
        """Let go of the run as soon as possible; another replica goes on with it."""
        self._draining = True
        self._wake.set()

    async def run(self) -> None:
        """Carry the run until it ends, waits or is lost. Raises `Unavailable` when the bus stays away; the
        supervisor then begins again from what the log says."""
        state = self._folded.state
        if self._pending:
            await self._claim()
        key = LogKey(state.tenant, state.run_id)
        async with (
            self._parts.bus.log.follow(key, self._folded.last) as records,
            asyncio.TaskGroup() as group,
        ):
            follower = group.create_task(self._hear(records))
            try:
                await self._loop(group)
            except (LeaseLost, NotFound) as lost:
                # No checkpoint either: it would replace a newer owner's, or come back for a run that was deleted.
                self._log.warning("session.lost", reason=lost.message)
                return
            finally:
                follower.cancel()
                for task in self._running.values():
                    task.cancel()
        if not self._folded.state.terminal:
            await self._save_checkpoint()

    async def _claim(self) -> None:
        """Append the claim together with what follows from it. Raises `AppendConflict` when somebody was faster."""
        former = self._folded.state
        if former.cancel_requested_by is not None and (
            former.calls or former.verification_pending is not None
        ):
            # What a former owner set going must not outlive the run's end, which is recorded with the claim.
            await self._activities.kill(self._foreseen())
        settled = self._settle()
        bodies = self._pending + settled.events
        self._folded = await self._parts.runs.commit(self._folded, bodies)
        self._stored(bodies)
        self._claimed.set()
        self._log.info("run.claimed", attempt=self._folded.state.attempt)

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        while not self._over:
            self._wake.clear()
            await self._fold_news()
            settled = self._settle()
            if self._to_append(settled):
                await self._append(settled.events)
                continue
            if isinstance(settled.then, Leave):
                return
            await self._adjust(settled.then, group)
            if self._wake.is_set():
                continue
            await self._wait(settled.state)

    def _settle(self) -> Settled:
        state = self._foreseen()
        return settle(
            state,
            self._activities.env(
                state, busy=bool(self._running), saving=_SAVE in self._running, draining=self._draining
            ),
        )

    def _foreseen(self) -> RunState:
        """The state with what was observed and is not stored yet; a run that somebody ended wants none of it, and one
        that is to be cancelled no further attempt of a call that was stopped for that."""
        if self._folded.state.terminal:
            self._pending = []
        elif self._folded.state.cancel_requested_by is not None:
            self._pending = [body for body in self._pending if not isinstance(body, e.ToolRequested)]
        return foresee(self._folded.state, self._pending, self._parts.clock.now())

    def _to_append(self, settled: Settled) -> bool:
        """Whether what is known goes into the log now. Results wait for their siblings, but not for long."""
        if settled.events or not self._pending:
            return bool(settled.events)
        if not all(isinstance(body, e.ToolCompleted) for body in self._pending) or isinstance(
            settled.then, Leave
        ):
            return True
        if self._begins_something(settled.then):
            # It may have waited for just this: a read that a later owner asks for again must not see a change that was
            # made after it.
            return True
        now = self._parts.clock.monotonic()
        if self._held_since is None:
            self._held_since = now
        return not self._running or now - self._held_since >= SIBLING_WAIT_S

    def _begins_something(self, then: Do) -> bool:
        return any(activity_key(activity) not in self._running for activity in then.activities)

    async def _append(self, decided: list[e.LogEvent]) -> None:
        """Append what is pending with what was decided on it; what comes in meanwhile stays pending."""
        bodies = self._pending + decided
        self._tried.append(bodies)
        try:
            self._folded = await self._parts.runs.commit(self._folded, bodies)
        except AppendConflict:
            # Nothing of it is stored: a command came first, or an earlier try. Fold it in and decide again, carrying
            # along what is held.
            self._tried.pop()
            await self._catch_up()
        except Unavailable as error:
            # The outcome is unknown. What is held must not be bought twice, so the log has to tell.
            self._log.warning("session.append_unknown", reason=error.message)
            await self._catch_up()
            if self._tried:
                # It may still arrive. A bus without room refuses at once: trying again at once would be a busy loop.
                await self._parts.clock.sleep(BUS_AWAY_S)
        else:
            self._tried.clear()
            self._stored(bodies)
            return
        if not self._over:
            self._check_ownership()

    async def _catch_up(self) -> None:
        """Fold in what is behind the folded state, however long the bus stays away. If it begins with a record of this
        owner, that is one of those whose outcome was unknown; once anything is there, no other of them will be.

        Raises `BusUnavailable` when it is of an earlier session, whose last append was still on its way: what is held here
        may be in it already, so the supervisor begins again from the log.
        """
        key = LogKey(self.tenant, self.run_id)
        while True:
            try:
                behind = await self._parts.bus.log.read(key, self._folded.last)
                break
            except Unavailable as error:
                self._log.warning("session.bus_away", reason=error.message)
                await self._parts.clock.sleep(BUS_AWAY_S)
        if not behind:
            return
        for record in behind:
            self._folded = self._parts.runs.fold_record(self._folded, record)
        tried, self._tried = self._tried, []
        if behind[0].header.boot == self._parts.boot:
            recorded = [event.body for event in decode_events(behind[0])]
            bodies = next((bodies for bodies in tried if bodies == recorded), None)
            if bodies is None:
                raise BusUnavailable("a record of an earlier session of this owner has arrived late")
            self._stored(bodies)

    def _stored(self, bodies: list[e.LogEvent]) -> None:
        recorded = {id(body) for body in bodies}
        self._pending = [body for body in self._pending if id(body) not in recorded]
        self._held_since = None
        self._records += 1
        if self._parts.until_progress and self._folded.state.claims_without_progress == 0:
            self._draining = True
        self._over = any(isinstance(body, _ENDS) for body in bodies)
        for body in bodies:
            if isinstance(body, e.ToolRequested):
                self._appended.add(f"{body.call_id}.{body.attempt}")
            elif isinstance(body, e.VerificationRequested):
                self._appended.add(f"{VERIFY}-{body.round}.{body.attempt}")

    async def _adjust(self, then: Do, group: asyncio.TaskGroup) -> None:
        """Start what should be going on and is not; stop what is and should not."""
        wanted = {activity_key(activity): activity for activity in then.activities}
        unwanted = [key for key in self._running if key not in wanted]
        if unwanted:
            # Only the end of a run or of its ownership kills what is running; a call that has lost sight of its host
            # finds its outcome in the journal later.
            await self._stop(unwanted, kill=not wanted and not self._draining)
            return  # What ended meanwhile has changed what is wanted.
        for key, activity in wanted.items():
            if key not in self._running:
                task = group.create_task(self._carry_out(key, activity), name=key)
                self._running[key] = task
        if self._records >= CHECKPOINT_RECORDS:
            group.create_task(self._save_checkpoint())

    async def _stop(self, keys: list[str], *, kill: bool) -> None:
        # First nobody waits for their results, then their hosts are told: what they say of calls that were cut off is
        # no news to a run that ends.
        tasks = [self._running.pop(key) for key in keys]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if kill and any(key != _SAVE and not key.startswith(_MODEL) for key in keys):
            await self._activities.kill(self._folded.state)
        self._wake.set()

    async def _carry_out(self, key: str, activity: Activity) -> None:
        state, fresh = self._foreseen(), key in self._appended
        footing = Footing(self._tell, self._folded.places, fresh)
        observed = await self._activities.carry_out(state, activity, footing)
        self._running.pop(key, None)
        if isinstance(observed, Lost):
            self._doubted = True
        else:
            self._pending += observed
        self._wake.set()

    def _tell(self, event: e.LogEvent) -> None:
        self._pending.append(event)
        self._wake.set()

    async def _wait(self, state: RunState) -> None:
        """Until something happens, a held result is due, or the run's time is up."""
        timeout_s = max(0.0, (deadline(state) - self._parts.clock.now()).total_seconds())
        if self._held_since is not None:
            left = self._held_since + SIBLING_WAIT_S - self._parts.clock.monotonic()
            timeout_s = min(timeout_s, max(0.0, left))
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _hear(self, records: AsyncIterator[Record]) -> None:
        """Keep what others append for the loop to fold in."""
        async for record in records:
            if record.header.boot != self._parts.boot:
                self._news.append(record)
                self._wake.set()

    async def _fold_news(self) -> None:
        """Fold in what others appended; raise `LeaseLost` when one of them is the new owner."""
        news, self._news = self._news, []
        behind = [record for record in news if record.header.stream_sequence > self._folded.last]
        if not behind and not self._doubted:
            return
        if behind and behind[0].header.previous == self._folded.last and not self._doubted:
            # On top of what is folded lies what somebody else wrote: nothing that was tried here ever will.
            self._tried.clear()
            for record in behind:
                self._folded = self._parts.runs.fold_record(self._folded, record)
        else:
            # Below what is new may lie what was appended here; it must not be appended again.
            await self._catch_up()
            self._doubted = False
        if not self._over:
            self._check_ownership()

    def _check_ownership(self) -> None:
        owner = self._folded.state.owner
        if owner is None and not self._folded.state.terminal:
            raise LeaseLost("the run was released by somebody else")
        if owner is not None and owner.boot != self._parts.boot:
            raise LeaseLost(f"{owner.replica} claimed the run with epoch {self._folded.state.epoch}")

    async def _save_checkpoint(self) -> None:
        """A checkpoint is a cache: failing to write one is no reason to fail anything."""
        self._records = 0
        try:
            await self._parts.runs.checkpoint(self._folded)
        except Unavailable as error:
            self._log.warning("session.no_checkpoint", reason=error.message)


def activity_key(activity: Activity) -> str:
    """What identifies an activity while it runs; another attempt of a call is another activity."""
    match activity:
        case Attach():
            return "attach"
        case Offer():
            return f"{_MODEL}offer"
        case CallModel(iteration):
            return f"{_MODEL}{iteration}"
        case ReadResult(call):
            return f"read-{call.call_id}.{call.attempt}"
        case Summarise(compacted):
            return f"{_MODEL}summary-{compacted}"
        case CallTool(call):
            return f"{call.call_id}.{call.attempt}"
        case SpawnChild(call):
            return f"child-{call.call_id}"
        case Save():
            return _SAVE
        case Verify(pending):
            return f"{VERIFY}-{pending.round}.{pending.attempt}"

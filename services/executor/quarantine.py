"""A run that keeps losing its owners is carried by a process of its own, so that the others never suffer for it.

Invariant: a run is called poisoned only when its own process died of it while its supervisor lived to see that;
processes that are killed for other reasons never poison a run.
"""

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress

import msgspec

from libs.bus.ports import Bus, Delivery, LogKey
from libs.bus.runs import Decide, Folded, Runs
from libs.chassis.logs import get_logger
from libs.contracts import events as e
from libs.contracts.clock import Clock
from libs.contracts.run import RunState
from libs.contracts.tasks import Ticket
from libs.contracts.values import RunError

# Processes at once; each takes about 60 MB. More runs wait for their turn, which lasts one step of a run.
AT_ONCE_MAX = 4
# They start one by one, because a start costs a core for a second or more, and an executor that gets too little of it is
# taken for dead, with all of its runs. One that has not claimed its run by then is no reason to wait for.
START_PATIENCE_S = 30.0
POISONED = "POISONED"
# What the process says on its stdout once its claim is in the log.
CLAIMED = b"claimed\n"
# After SIGTERM the process releases its run; the chassis gives it 10 s for that.
DRAIN_S = 12.0

_PR_SET_PDEATHSIG = 1


class Quarantine:
    """The supervisor's side."""

    def __init__(self, bus: Bus, runs: Runs, clock: Clock) -> None:
        self._bus, self._runs, self._clock = bus, runs, clock
        self._room = asyncio.Semaphore(AT_ONCE_MAX)
        self._door = asyncio.Lock()

    def wanted(self, state: RunState) -> bool:
        """Whether the run has to be carried alone from now on."""
        return state.carried_alone

    async def carry(self, state: RunState, claimed: asyncio.Event, stop: asyncio.Event) -> None:
        """Have a process of its own claim the run and carry it to its first progress, after which it is a run like any
        other; returns when that process has ended, or when its turn comes and the run is another's by then."""
        async with self._room, AsyncExitStack() as starting:
            await starting.enter_async_context(self._door)
            now = (await self._runs.load(state.tenant, state.run_id)).state
            if now.epoch == state.epoch and not (now.terminal or stop.is_set()):
                await self._carry(state, claimed, stop, starting.aclose)

    async def _carry(
        self,
        state: RunState,
        claimed: asyncio.Event,
        stop: asyncio.Event,
        started: Callable[[], Awaitable[None]],
    ) -> None:
        log = get_logger("quarantine").bind(run_id=state.run_id)
        process = await asyncio.create_subprocess_exec(
            *(
                sys.executable,
                "-m",
                "services.executor",
                "--only",
                state.tenant,
                state.run_id,
                str(os.getpid()),
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        log.warning("run.quarantined", pid=process.pid, fruitless_claims=state.claims_without_progress)
        try:
            async with asyncio.TaskGroup() as group:
                watching = [
                    group.create_task(_hear(process, claimed)),
                    group.create_task(self._end(process, stop)),
                    group.create_task(_let_the_next_begin(claimed, started)),
                ]
                code = await process.wait()
                for task in watching:
                    task.cancel()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        log.info("quarantine.ended", exit=code)
        if code < 0 and not stop.is_set():
            await self._given_up(state, signal.Signals(-code).name)

    async def _given_up(self, before: RunState, killed_by: str) -> None:
        """Give the run up if its process died of it; one that got further, or never began, is taken over as usual."""
        lost = before.claims_without_progress
        reason = f"its own process died by {killed_by} after {lost} owners were lost"

        def decide(state: RunState) -> list[e.LogEvent]:
            if state.owner is None or state.epoch <= before.epoch or state.claims_without_progress == 0:
                return []
            return [poisoned(state, reason)]

        await give_up(self._bus, self._runs, LogKey(before.tenant, before.run_id), decide)

    async def _end(self, process: asyncio.subprocess.Process, stop: asyncio.Event) -> None:
        """Have the process release its run when this one drains."""
        await stop.wait()
        process.terminate()
        await self._clock.sleep(DRAIN_S)
        process.kill()


def poisoned(state: RunState, reason: str) -> e.RunFailed:
    """The end of a run that no owner gets anywhere with."""
    message = f"{reason}; see the dead letters before trying again"
    return e.RunFailed(error=RunError(error_code=POISONED, message=message), usage=state.usage)


async def give_up(bus: Bus, runs: Runs, run: LogKey, decide: Decide) -> None:
    """Append what `decide` says of a run. If that is its end, its ticket is kept first, so that somebody who has mended
    the cause finds it: the end is the last that anybody does for a run. A letter of a run that went on all the same, a
    crash later, is a ticket as good as any."""
    folded = await runs.load(*run)
    for body in decide(folded.state):
        if isinstance(body, e.RunFailed):
            await _keep_dead_letter(bus, folded, body.error.message)
    await runs.command(*run, decide)


async def _keep_dead_letter(bus: Bus, folded: Folded, reason: str) -> None:
    state = folded.state
    ticket = Ticket(tenant=state.tenant, run_id=state.run_id, sequence=folded.last)
    delivery = Delivery(
        subject=bus.subjects.work(state.task.priority),
        headers={},
        body=msgspec.json.encode(ticket),
        stream_sequence=folded.last,
        delivered=state.claims_without_progress,
        # With the sequence it names the letter: tried again, it is kept once.
        stream_created=state.created_at,
    )
    await bus.queue.dead_letter(bus.subjects.dead("run"), delivery, reason)


def tie_to_parent(parent: int) -> None:
    """Die with the supervisor. Called first thing in the quarantine process; quits when it is an orphan already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)


async def _let_the_next_begin(claimed: asyncio.Event, started: Callable[[], Awaitable[None]]) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(START_PATIENCE_S):
            await claimed.wait()
    await started()


async def _hear(process: asyncio.subprocess.Process, claimed: asyncio.Event) -> None:
    assert process.stdout is not None
    while line := await process.stdout.readline():
        if line == CLAIMED:
            claimed.set()

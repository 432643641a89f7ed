"""One schedule's world: the loop, the twin, the processes with their restarts, and the things that effects change.

Invariant: what a process did to the world stays when it dies; everything else of it is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from libs.bus.checkpoints import Checkpoints
from libs.bus.runs import Runs
from libs.bus.twin.server import TwinBus, TwinServer
from libs.chassis.run import leaves
from libs.contracts.envelope import decode_events
from libs.contracts.errors import LeaseLost, Unavailable
from libs.contracts.events import ToolRequested
from libs.contracts.tools import Semantics, ToolCall
from tests.sim.clock import SimClock
from tests.sim.errands import Repository
from tests.sim.faults import Plan, SimNetwork, Trouble
from tests.sim.loop import PROCESS, Process, SimLoop, SimTask

# From a process's end to the next one of its name.
RESTART_S = (0.2, 2.0)
# A host that could not be told of a run's end looks for it every 5 s, and kills within 3 s.
KILLED_S = 10.0
# Tools that somebody has to approve.
APPROVED = frozenset({"launch"})


class Machine(NamedTuple):
    """What a process finds when it starts. `stop` is SIGTERM."""

    name: str
    process: Process
    stop: asyncio.Event
    bus: TwinBus
    runs: Runs
    clock: SimClock


Main = Callable[[Machine], Coroutine[Any, Any, None]]


class Effect(NamedTuple):
    """Something that a tool did, once."""

    run_id: str
    call_id: str
    name: str
    attempt: int
    boot: str
    at_s: float


class Disk:
    """A workspace's directory: its files, and the process that holds its lock."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.holder: Process | None = None
        self.holder_boot = ""


class World:
    """Make one per schedule; `close` it."""

    def __init__(self, seed: int, plan: Plan, *, traced: bool = False) -> None:
        SimTask.begin_again()
        self.seed = seed
        self.loop = SimLoop()
        self.clock = SimClock(self.loop, seed)
        self.chance = random.Random(f"{seed} world")
        trouble = Trouble(
            self._crash_named,
            self._freeze_named,
            self._drain_named,
            self._vandal,
            self._disturb,
            self.loop.time,
        )
        self.network = SimNetwork(seed, plan, trouble)
        self.network.trace = [] if traced else None
        self.server = TwinServer(self.clock)
        self.machines: dict[str, Machine] = {}
        self.starts: Counter[str] = Counter()
        self.disks: defaultdict[str, Disk] = defaultdict(Disk)
        self.repositories: defaultdict[str, Repository] = defaultdict(Repository)
        self.effects: list[Effect] = []
        self.running: Counter[tuple[str, int, str]] = Counter()
        self.bought: Counter[tuple[str, int]] = Counter()
        self.findings: list[str] = []
        # When each run ended, in seconds of the loop.
        self.ends: dict[str, float] = {}
        self.closed = False
        # Whether a process was killed, frozen, cut off or ended: then work may be done again.
        self.disturbed = False
        self.frozen = False
        # The host of the n-th effect dies of it, before it is done (`False`) or after it.
        self.deadly: dict[int, bool] = {}
        self._performed = 0
        self._mains: dict[str, Main] = {}
        self._log = _Listener(self)
        logger = logging.getLogger("perdure")
        logger.handlers, logger.propagate = [self._log], False
        logger.setLevel(logging.INFO if traced else logging.ERROR)

    def start(self, name: str, main: Main) -> None:
        """Start a service; when it ends, for whatever reason, it is started again."""
        self._mains[name] = main
        self._boot(name, main)

    def start_once(self, name: str, main: Main, *, parent: Process, ended: asyncio.Future[None]) -> Machine:
        """Start a process that is not started again and dies with its parent."""
        process = self._boot(name, main)
        process.ended = ended
        parent.children.append(process)
        return self.machines[name]

    def die(self, process: Process) -> None:
        """The process dies of what it does."""
        self.say("DIES of it")
        process.broke = True
        self.kill(process)

    def kill(self, process: Process) -> None:
        """SIGKILL."""
        if not process.alive:
            return
        self.disturbed = True
        process.alive = False
        process.backlog.clear()
        name = process.name
        self.server.disconnect(self.machines[name].bus.link)
        for child in process.children:
            self.kill(child)
        if process.ended is not None:
            ended = process.ended
            self.server.timers.at(0.001, lambda: ended.done() or ended.set_result(None))
        elif name in self._mains:
            self.server.timers.at(
                self.chance.uniform(*RESTART_S), lambda: self._boot(name, self._mains[name])
            )

    def effect(self, effect: Effect) -> None:
        """Something was done. Its intent must be in the log, and a person's approval if it needs one."""
        self.effects.append(effect)
        intent = self._intent(effect)
        if intent is None:
            # A host in the middle of a call learns of the deletion of its run by its next look at it.
            late_s = self.loop.time() - self.ends.get(effect.run_id, float("inf"))
            if not (self.frozen or 0.0 <= late_s <= KILLED_S):
                self.finding(f"{effect} has no intent in the log")
        elif effect.name in APPROVED and intent.approval_sequence is None:
            self.finding(f"{effect} was approved by nobody")

    def may_die(self, process: Process, call: ToolCall, *, done: bool) -> bool:
        """Kill the process in the middle of an effect if the scenario wants it so."""
        if call.semantics is not Semantics.NON_IDEMPOTENT:
            return False
        if not done:
            self._performed += 1
        if self.deadly.get(self._performed) is not done:
            return False
        self.say(f"DIES {'after' if done else 'before'} doing {call.name}")
        self.kill(process)
        return True

    def _intent(self, effect: Effect) -> ToolRequested | None:
        for key, records in self.server.logs.records.items():
            if key.log_id != effect.run_id:
                continue
            for event in (event for record in records for event in decode_events(record)):
                body = event.body
                if isinstance(body, ToolRequested) and (body.call_id, body.attempt) == (
                    effect.call_id,
                    effect.attempt,
                ):
                    return body
        return None

    def say(self, text: str) -> None:
        """A line for the trace."""
        if self.network.trace is not None and not self.closed:
            process = PROCESS.get()
            self.network.trace.append(f"{self.loop.time():9.3f} {process.name if process else '':14} {text}")

    def finding(self, text: str) -> None:
        """Something that must not be."""
        if self.closed:
            return
        self.say(f"FINDING {text}")
        self.findings.append(text)

    def close(self) -> None:
        """Forget everything; what the processes still have to say is not heard."""
        self.closed = True
        for machine in self.machines.values():
            machine.process.alive = False
            machine.bus.link.closed = True
        self.loop.close()

    def _boot(self, name: str, main: Main) -> Process:
        self.starts[name] += 1
        process = Process(name)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        bus = self.server.connect(name, self.network)
        runs = Runs(bus.log, Checkpoints(bus.bucket("checkpoints"), bus.store("blobs"), bus.log), self.clock)
        machine = self.machines[name] = Machine(name, process, asyncio.Event(), bus, runs, self.clock)
        if self.network.trace is not None:
            self.network.trace.append(f"{self.loop.time():9.3f} {name:14} STARTS ({self.starts[name]})")
        self.loop.create_task(self._supervised(machine, main), name=f"main {name}", context=context)
        return process

    async def _supervised(self, machine: Machine, main: Main) -> None:
        try:
            await main(machine)
        except Exception as error:  # noqa: BLE001 whatever a service dies of is judged here
            ends = leaves(error)
            # What is left of a dead process when it is collected has nothing more to say.
            if machine.process.alive and not all(isinstance(end, (LeaseLost, Unavailable)) for end in ends):
                self.finding(f"{machine.name} died of {ends!r}")
            self.say(f"ENDS: {ends!r}")
        self.kill(machine.process)

    def _crash_named(self, name: str) -> None:
        self.kill(self.machines[name].process)

    def _disturb(self) -> None:
        self.disturbed = True

    def _drain_named(self, name: str) -> None:
        self.machines[name].stop.set()

    def _vandal(self, chance: random.Random) -> str:
        """Delete something that holds only hints; the servers make it again, empty."""
        subjects, server = self.server.subjects, self.server
        what = chance.choice(("work", "tools", "timers", "leases", "catalog", "checkpoints"))
        match what:
            case "timers":
                server.scheduled.lose_all()
            case "work":
                server.stream(subjects.work("normal")).lose_all()
            case "tools":
                server.stream(subjects.tool_any("any")).lose_all()
            case _:
                server.buckets[subjects.stream(what)].lose_all()
        return what

    def _freeze_named(self, name: str, seconds: float) -> None:
        process = self.machines[name].process
        if process.frozen or not process.alive:
            return
        process.frozen = True
        self.disturbed = self.frozen = True

        def thaw() -> None:
            self.say(f"{name} thaws")
            self.loop.thaw(process)

        self.server.timers.at(seconds, thaw)


class _Listener(logging.Handler):
    """What the services log: lines of the trace, and defects that they caught."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if self._world.closed:
            return
        fields = getattr(record, "fields", {})
        self._world.say(f"  log {record.getMessage()} {fields}")
        if record.exc_info:
            process = PROCESS.get()
            if process is None or process.alive:
                self._world.finding(f"{record.getMessage()}: {record.exc_info[1]!r} {fields}")
                if self._world.network.trace is not None and record.exc_text is None:
                    self._world.say(logging.Formatter().formatException(record.exc_info))

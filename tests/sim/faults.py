"""What goes wrong in a schedule: the network between the simulated processes and the twin, and when a process dies.

Invariant: all of it follows from the seed and the plan; an operation that nothing happens to takes a few milliseconds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from libs.bus.twin.network import Fate, Op
from libs.contracts.errors import StorageFull

# One way, in seconds: near enough to each other that operations of different processes overtake.
WAY_S = (0.0002, 0.003)
# What keeps its process alive or asks for work is no step of a run: a crash there is like one between two steps.
IDLE = frozenset({"leases.update", "leases.get", "pull", "catalog.put", "ack", "nak"})
# Three in four operations are such; without this most faults would hit them.
IDLE_LUCK = 6.0

# What needs room at the servers: they refuse it at once while there is none.
STORING = frozenset({"append", "publish", "put", "create", "update", "arm"})
# When what its caller has given up is done all the same: once that has looked, and before it tries again.
LATE_S = 15.5
# Requests and replies get lost with a connection only: a host that is never heard is not what is simulated.
SPOKEN = frozenset({"asked", "reply", "request", "answer"})
UNHEARD_MAX = 2
SERVICES = ("executor", "toolhost", "scheduler", "verifier")
# The queues that may be deleted under load.
HINTS = frozenset({"work", "tool"})


# What may happen at a point; see `Point`.
CRASHES = ("crash before", "crash after")
FREEZES = ("freeze",)
TROUBLES = ("drain", "isolate", "unknown, done", "unknown, not done", "unknown, done late", "lost")
LOST = "lost"
FREEZE_S = 8.0
ISOLATION_S = 6.0


class Point(NamedTuple):
    """The `number`-th step after the start, and what happens then to the process whose step it is.

    It dies `before` the server did it or `after`, is frozen, told to end, or cut off; or it never hears what became of
    its step. `lost` counts what is brought to processes, and acks, instead of steps: that one never arrives.
    """

    number: int
    how: str

    def __str__(self) -> str:
        return f"{self.how} at {self.number}"


class Noise(NamedTuple):
    """How often things go wrong, per operation (down to `full`) or per delivery.

    `unknown`: the caller gives up without knowing. `vanish`: a hint is acked and lost. `isolate`: a process hears and is
    heard of nobody for a while. `drain`: SIGTERM. `vandal`: somebody deletes a stream or bucket that holds only hints. `outage`: everybody is cut off for a while.
    `full`: the servers store nothing for a while.
    """

    crash: float = 0.0
    freeze: float = 0.0
    slow: float = 0.0
    lost_answer: float = 0.0
    unknown: float = 0.0
    vanish: float = 0.0
    isolate: float = 0.0
    drain: float = 0.0
    vandal: float = 0.0
    outage: float = 0.0
    full: float = 0.0
    late: float = 0.0
    lost: float = 0.0

    def more_of_processes(self, times: float) -> Noise:
        """The same with more of what happens to processes."""
        return self._replace(
            crash=self.crash * times,
            freeze=self.freeze * times,
            isolate=self.isolate * times,
            drain=self.drain * times,
        )


_PER_OPERATION = Noise._fields.index("late")
QUIET = Noise()


class Plan(NamedTuple):
    """`services`: which processes may be crashed and frozen, by the beginning of their names. More crashes would be more
    than a run lives through by design (quarantine), and so would more than `blows_max` of all that happens to processes
    (ten broken verifications)."""

    noise: Noise = QUIET
    point: Point | None = None
    crashes_max: int = 3
    blows_max: int = 8
    services: tuple[str, ...] = SERVICES


class Trouble(NamedTuple):
    """What the network may do to processes."""

    crash: Callable[[str], None]
    freeze: Callable[[str, float], None]
    drain: Callable[[str], None]
    vandal: Callable[[random.Random], str]
    disturbed: Callable[[], None]
    now: Callable[[], float]


class SimNetwork:
    """`Network` of the simulation. `armed` once the system is up: before that nothing goes wrong."""

    def __init__(self, seed: int, plan: Plan, trouble: Trouble) -> None:
        self._chance = random.Random(f"{seed} network")
        self._plan, self._trouble = plan, trouble
        self.armed = False
        # Everything that each process asked of the servers, by its name and the kind of it.
        self.asked: Counter[tuple[str, str]] = Counter()
        self.steps = 0
        self.brought = 0
        self.trace: list[str] | None = None
        self._crashes = self._blows = 0
        self._dying: Op | None = None
        self._isolated: dict[str, float] = {}
        # Until when nobody is heard, and nothing is stored.
        self._back_at = self._room_at = 0.0
        self._unheard = 0

    def fate(self, op: Op) -> Fate:
        self.asked[op.client, op.kind] += 1
        chance = self._chance.random
        there_s, back_s = _way(chance()), _way(chance())
        if not self.armed:
            return Fate(there_s, back_s)
        if op.kind not in IDLE and op.client.startswith(self._plan.services):
            self.steps += 1
            point = self._plan.point
            if point is not None and point.number == self.steps and point.how != LOST:
                return self._at_point(op, point.how, Fate(there_s, back_s))
        elif op.kind == "ack" and self._is_lost(op):
            return Fate(None, None)
        noise = self._plan.noise
        if noise is QUIET and op.client not in self._isolated:
            return Fate(there_s, back_s)
        cut_off_s = self._cut_off_s(op)
        if cut_off_s:
            # The client tries again every two seconds; what it wrote to the broken connection may be lost all the same.
            return Fate(cut_off_s + 2.0 * chance(), back_s) if chance() < 0.8 else Fate(None, None)
        fate = Fate(there_s, back_s)
        if self._room_at > self._trouble.now() and op.kind.rpartition(".")[2] in STORING:
            # A new one each time: an exception keeps the frames of all who raised it, and with them their worlds.
            refusal = StorageFull("the disk of the simulation is full", retry_after_s=30)
            return self._told(op, "NO ROOM", fate._replace(refusal=refusal))
        return self._unlucky(op, fate, noise)

    def delivery_s(self, op: Op) -> float | None:
        delay_s = _way(self._chance.random())
        if not self.armed:
            return delay_s
        if self._is_lost(op):
            return None
        noise = self._plan.noise
        delay_s += self._cut_off_s(op)
        if noise is QUIET:
            return delay_s
        drawn = self._chance.random()
        if drawn < noise.lost and (op.kind not in SPOKEN or self._unheard < UNHEARD_MAX):
            self._unheard += op.kind in SPOKEN
            self._say(op, "LOST on its way")
            return None
        if drawn < noise.lost + noise.late:
            late_s = self._chance.uniform(0.05, 4.0)
            self._say(op, f"LATE by {late_s:.2f} s")
            return late_s
        return delay_s

    def done(self, op: Op, outcome: str) -> None:
        if self.trace is not None and op.kind not in IDLE:
            self._say(op, outcome)
        if op is self._dying:
            self._dying = None
            self._say(op, "CRASH after it")
            self._trouble.crash(op.client)

    def _at_point(self, op: Op, how: str, fate: Fate) -> Fate:
        """What the plan has happen at this step."""
        match how:
            case "crash before" | "crash after":
                return self._crash(op, before=how == "crash before", fate=fate)
            case "freeze":
                self._freeze(op, FREEZE_S)
                return fate
            case "drain":
                self._drain(op)
                return fate
            case "isolate":
                self._isolate(op, ISOLATION_S)
                return Fate(None, None)
            case "unknown, done":
                return self._told(op, "UNKNOWN, done", Fate(fate.there_s, None))
            case "unknown, not done":
                return self._told(op, "UNKNOWN, not done", Fate(None, None))
            case "unknown, done late":
                return self._told(op, "UNKNOWN, done late", Fate(LATE_S, None))
            case _:
                raise LookupError(f"nothing is called {how!r}")

    def _is_lost(self, op: Op) -> bool:
        """Whether this, which nobody would miss at once, is what the plan has lost."""
        if not op.client.startswith(self._plan.services):
            return False
        self.brought += 1
        point = self._plan.point
        if point is None or point.how != LOST or point.number != self.brought:
            return False
        self._say(op, "LOST")
        return True

    def _unlucky(self, op: Op, fate: Fate, noise: Noise) -> Fate:
        chance = self._chance
        drawn = chance.random()
        if op.kind in IDLE:
            drawn *= IDLE_LUCK
        if drawn >= sum(noise[:_PER_OPERATION]):
            return fate
        may_die = op.client.startswith(self._plan.services) and self._blows < self._plan.blows_max
        if drawn < noise.isolate:
            if may_die:
                self._isolate(op, chance.choice((1.0, 5.0, 12.0, 20.0)))
            return fate
        drawn -= noise.isolate
        for rate, happen in (
            (noise.drain, self._drain),
            (noise.vandal, self._vandal),
            (noise.outage, self._outage),
            (noise.full, self._full),
        ):
            if drawn < rate:
                if may_die:
                    happen(op)
                return fate
            drawn -= rate
        if drawn < noise.crash:
            if may_die and self._crashes < self._plan.crashes_max:
                return self._crash(op, before=chance.random() < 0.5, fate=fate)
            return fate
        drawn -= noise.crash
        if drawn < noise.freeze:
            if may_die:
                self._freeze(op, chance.choice((0.3, 1.0, 4.0, 8.0, 15.0)))
            return fate
        drawn -= noise.freeze
        assert fate.there_s is not None
        if drawn < noise.slow:
            return self._told(op, "SLOW", Fate(fate.there_s + chance.uniform(0.05, 3.0), fate.back_s))
        drawn -= noise.slow
        if drawn < noise.lost_answer:
            return self._told(op, "ANSWER LOST at first", Fate(fate.there_s, 2.0))
        drawn -= noise.lost_answer
        if drawn < noise.unknown:
            return self._unknown(op, fate)
        if op.kind == "publish" and op.subject.split(".")[1] in HINTS:
            # Acked, and gone with its stream before anybody saw it.
            return self._told(op, "VANISHES", Fate(fate.there_s, fate.back_s, kept=False))
        return fate

    def _unknown(self, op: Op, fate: Fate) -> Fate:
        """The caller gives up without knowing: it was done, is not done, or is done later."""
        if op.kind in SPOKEN:
            if self._unheard >= UNHEARD_MAX:
                return fate
            self._unheard += 1
        match self._chance.randrange(3):
            case 0:
                return self._told(op, "UNKNOWN, done", Fate(fate.there_s, None))
            case 1:
                return self._told(op, "UNKNOWN, not done", Fate(None, None))
            case _:
                late_s = self._chance.uniform(5.0, 30.0)
                return self._told(op, f"UNKNOWN, done after {late_s:.1f} s", Fate(late_s, None))

    def _crash(self, op: Op, *, before: bool, fate: Fate) -> Fate:
        self._crashes += 1
        self._blows += 1
        if before:
            self._say(op, "CRASH before it")
            self._trouble.crash(op.client)
            return Fate(None, None)
        self._dying = op
        return fate

    def _freeze(self, op: Op, seconds: float) -> None:
        self._blows += 1
        self._say(op, f"FREEZE for {seconds} s")
        self._trouble.freeze(op.client, seconds)

    def _isolate(self, op: Op, seconds: float) -> None:
        self._blows += 1
        self._say(op, f"ISOLATED for {seconds} s")
        self._isolated[op.client] = self._trouble.now() + seconds
        self._trouble.disturbed()

    def _drain(self, op: Op) -> None:
        self._blows += 1
        self._say(op, "SIGTERM")
        self._trouble.drain(op.client)

    def _vandal(self, op: Op) -> None:
        self._say(op, f"meanwhile somebody deletes {self._trouble.vandal(self._chance)}")

    def _outage(self, op: Op) -> None:
        seconds = self._chance.choice((0.5, 3.0, 8.0, 20.0))
        self._blows += 1
        self._say(op, f"OUTAGE of {seconds} s")
        self._back_at = self._trouble.now() + seconds
        self._trouble.disturbed()

    def _full(self, op: Op) -> None:
        seconds = self._chance.choice((0.5, 5.0, 20.0))
        self._blows += 1
        self._say(op, f"NO ROOM for {seconds} s")
        self._room_at = self._trouble.now() + seconds
        self._trouble.disturbed()

    def _cut_off_s(self, op: Op) -> float:
        """For how long the process is cut off yet."""
        until_s = max(self._isolated.get(op.client, 0.0), self._back_at)
        return max(0.0, until_s - self._trouble.now())

    def _told(self, op: Op, what: str, fate: Fate) -> Fate:
        self._say(op, what)
        return fate

    def _say(self, op: Op, what: str) -> None:
        if self.trace is not None:
            self.trace.append(
                f"{self._trouble.now():9.3f} {op.client:14} {op.kind:16} {op.subject} {what}".rstrip()
            )


def _way(drawn: float) -> float:
    return WAY_S[0] + drawn * drawn * (WAY_S[1] - WAY_S[0])

"""Faults at random: what is done to which process, when, and for how long.

Invariant: what is frozen is thawed and what is down comes up again, also when the driver is told to stop; of several
servers at most one is away at a time, which is what a cluster of three is for.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from random import Random
from typing import Any, NamedTuple

from deploy.dev.launcher import Launcher
from deploy.dev.nats_server import NatsServer
from libs.chassis.clock import SystemClock

# Between two faults.
PAUSE_S = (2.0, 5.0)
# A lease lasts 3 s: the first freeze is survived, the second one is a death.
SHORT_S = (0.5, 2.0)
LONG_S = (5.0, 8.0)
# How long a killed server stays down, and a frozen one frozen: within the 15 s that every append has patience.
NODE_S = (1.0, 6.0)

# Executors hold runs and tool hosts effects, so they are hit more often than the others.
KINDS = {
    "kill": 5,
    "freeze-long": 3,
    "freeze-short": 2,
    "restart": 2,
    "node-kill": 1,
    "node-freeze": 1,
    "delete": 1,
}
VICTIMS = {"executor": 4, "toolhost": 3, "countinghost": 3, "scheduler": 2, "verifier": 2, "gateway": 2}
# What a deployment must survive the loss of (design, section 1.4).
HINTS = (
    "perdure-work",
    "perdure-tools",
    "perdure-timers",
    "KV_perdure-leases",
    "KV_perdure-catalog",
    "KV_perdure-checkpoints",
)

Delete = Callable[[str], Coroutine[Any, Any, None]]


class Fault(NamedTuple):
    """One fault as it was made."""

    at: datetime
    kind: str
    victim: str
    seconds: float


class Faults:
    """Makes faults until it is told to stop. `delete` removes a stream from the server."""

    def __init__(
        self, perdure: Launcher, servers: Sequence[NatsServer], random: Random, delete: Delete
    ) -> None:
        self._perdure, self._servers, self._random, self._delete = perdure, servers, random, delete
        self._clock = SystemClock()
        self._frozen: dict[str, int] = {}
        self._healing: set[asyncio.Task[None]] = set()
        self._node = asyncio.Lock()
        self.made: list[Fault] = []

    async def run(self, stop: asyncio.Event) -> None:
        """One fault after the other, their ends overlapping; returns healed, some time after `stop`."""
        while not stop.is_set():
            await self._wait(stop, self._random.uniform(*PAUSE_S))
            if not stop.is_set():
                self._make()
        if self._healing:
            await asyncio.wait(self._healing)

    def _make(self) -> None:
        kind = self._chosen(KINDS)
        if kind.startswith("node-"):
            self._begin(self._hit_node(kind, self._random.uniform(*NODE_S)))
            return
        if kind == "delete":
            name = self._random.choice(HINTS)
            self._note(kind, name, 0.0)
            self._begin(self._delete(name))
            return
        victim = self._chosen(VICTIMS) + self._random.choice(("", "-2"))
        if victim not in self._perdure.pids or victim in self._frozen:
            # It is between two lives, or frozen: that is fault enough.
            return
        match kind:
            case "kill":
                self._note(kind, victim, 0.0)
                self._perdure.kill(victim)
            case "restart":
                self._note(kind, victim, 0.0)
                self._perdure.kill(victim, signal.SIGTERM)
            case _:
                seconds = self._random.uniform(*(SHORT_S if kind == "freeze-short" else LONG_S))
                self._note(kind, victim, seconds)
                self._frozen[victim] = self._perdure.kill(victim, signal.SIGSTOP)
                self._begin(self._thaw(victim, seconds))

    async def _thaw(self, victim: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        # A successor on the same machine may have killed it.
        if self._perdure.pids.get(victim) == self._frozen.pop(victim):
            self._perdure.kill(victim, signal.SIGCONT)

    async def _hit_node(self, kind: str, seconds: float) -> None:
        if self._node.locked():
            return
        async with self._node:
            number = self._random.randrange(len(self._servers))
            server = self._servers[number]
            self._note(kind, f"n{number}", seconds)
            if kind == "node-kill":
                await server.kill()
                await asyncio.sleep(seconds)
                await server.start()
            else:
                server.send(signal.SIGSTOP)
                await asyncio.sleep(seconds)
                server.send(signal.SIGCONT)
            # It has to catch up before the next one may go.
            await asyncio.sleep(SHORT_S[1])

    def _chosen(self, weights: dict[str, int]) -> str:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _begin(self, healing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(healing)
        self._healing.add(task)
        task.add_done_callback(self._healing.discard)

    def _note(self, kind: str, victim: str, seconds: float) -> None:
        self.made.append(Fault(self._clock.now(), kind, victim, seconds))

    @staticmethod
    async def _wait(stop: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stop.wait()
        except TimeoutError:
            return

"""The people and clients of a schedule: they make runs, answer, approve, reconcile, cancel, pause, and watch the end.

Invariant: they act through the same functions as the gateway, from what the log told them; a request whose outcome is
unknown is made again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

import msgspec

from libs.bus.creation import CreateRequest, Creation
from libs.bus.ports import LogKey
from libs.bus.runs import Decide
from libs.contracts import deleting
from libs.contracts.envelope import decode_events
from libs.contracts.errors import RequestError, Unavailable
from libs.contracts.events import LogEvent, RunCreated
from libs.contracts.evolve import evolve
from libs.contracts.http import Approval, Reconciliation, Reply, SteeringMessage
from libs.contracts.run import WAITING, Question, RunState, RunStatus
from libs.contracts.subjects import replica_key
from libs.contracts.tasks import Limits, TaskSpec, Ticket
from services.gateway import decisions
from tests.sim.world import Machine, World

T = TypeVar("T")
Act = Callable[[LogKey], Awaitable[None]]

TENANT = "local"
ME = "person"


class Habits(NamedTuple):
    """What a person does with a run; numbers `_at` are public sequences at which it comes to their mind.

    `rivals`: how many give each answer at once. `answer_after_s`: how long they think. `gives_up`: cancels what waits
    for them. `child_cancel_at`: `cancel_at` of the first children. `posts`: how many send the same request at once.
    """

    cancel_at: int | None = None
    pause_at: int | None = None
    message_at: int | None = None
    tickets: bool = False
    answers: bool = True
    rivals: int = 1
    answer_after_s: float | None = None
    gives_up: bool = False
    child_cancel_at: int | None = None
    posts: int = 1
    delete: bool = False
    approval: str = "approve"
    reconciliation: str = "any"


class Person:
    """One client with a connection of its own. It never dies: what a person wants is not lost with a process."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world, self._machine = world, machine
        self._chance = random.Random(f"{world.seed} person")
        self._creation = Creation(machine.runs, machine.clock, shards=1, limits=Limits())
        # By the number of their stories.
        self.created: dict[int, LogKey] = {}
        self.deleted: set[LogKey] = set()

    async def ask_for(self, number: int, task: TaskSpec, habits: Habits, *, published: bool = False) -> None:
        """Make a run and attend to it until it ends."""
        if published:
            key = await self._publish(number, task)
        else:
            async with asyncio.TaskGroup() as group:
                posts = [group.create_task(self._post(number, task)) for _ in range(habits.posts)]
            key, *others = (post.result() for post in posts)
            if any(other != key for other in others):
                self._world.finding(f"one request made {key} and {others}")
        self.created[number] = key
        await self._attend(key, habits)
        if habits.delete:
            await self._carry_out(key, "delete", self._delete)
            self.deleted.add(key)

    async def _publish(self, number: int, task: TaskSpec) -> LogKey:
        """Publish a task on the bus, and find the run that it becomes."""
        bus = self._machine.bus
        body = msgspec.json.encode({"goal": task.goal})
        async with bus.log.wakeups() as wakeups:
            await self._until_done(
                lambda: bus.queue.publish(bus.subjects.tasks(TENANT), body, message_id=f"task {number}")
            )
            async for wakeup in wakeups:
                if wakeup.record is None:
                    continue
                first = decode_events(wakeup.record)[0].body
                if isinstance(first, RunCreated) and first.task.goal == task.goal:
                    return wakeup.key
        raise AssertionError("wake-ups end only with their context")

    async def _post(self, number: int, task: TaskSpec) -> LogKey:
        request = CreateRequest(
            tenant=TENANT,
            task=task,
            body_hash=f"hash {number}",
            auto_start=True,
            by=ME,
            source="api",
            cause=("key", f"task {number}"),
        )
        created = await self._until_done(lambda: self._creation.create(request))
        return LogKey(TENANT, created.run_id)

    async def _until_done(self, act: Callable[[], Awaitable[T]]) -> T:
        """Ask again while the bus does not say what became of it."""
        while True:
            try:
                return await act()
            except Unavailable:
                await self._machine.clock.sleep(1.0)

    async def _attend(self, key: LogKey, habits: Habits) -> None:
        state: RunState | None = None
        done: set[str] = set()
        async with self._machine.bus.log.follow(key, 0) as records, asyncio.TaskGroup() as group:
            async for record in records:
                for event in decode_events(record):
                    state = evolve(state, event)
                assert state is not None
                first = not done & set(state.children)
                for call_id, child in state.children.items():
                    if call_id not in done:
                        done.add(call_id)
                        wants = Habits(cancel_at=habits.child_cancel_at if first else None)
                        group.create_task(self._attend(LogKey(key.tenant, child), wants))
                if state.terminal:
                    break
                for name, act in self._wishes(state, habits):
                    if name not in done:
                        done.add(name)
                        think_s = habits.answer_after_s if name.startswith("answer") else None
                        group.create_task(self._carry_out(key, name, act, think_s))

    def _wishes(self, state: RunState, habits: Habits) -> list[tuple[str, Act]]:
        """What the person wants now: each by a name under which it is wanted once."""
        wishes: list[tuple[str, Act]] = []
        for at, name in (
            (habits.cancel_at, "cancel"),
            (habits.pause_at, "pause"),
            (habits.message_at, "message"),
        ):
            if at is not None and state.sequence >= at:
                wishes.append((name, self._acts[name]))
        if habits.tickets and state.sequence % 3 == 0:
            wishes.append((f"tickets {state.sequence}", self._tickets))
        if state.status is RunStatus.PAUSED:
            wishes.append((f"resume {state.waiting_since}", self._acts["resume"]))
        pending = state.pending_question if habits.answers else None
        if pending is not None:
            act = self._acts["reply"] if pending.kind == "question" else self._deciding(pending, habits)
            wishes += [(f"answer {rival} to {pending.question_id}", act) for rival in range(habits.rivals)]
        if habits.gives_up and state.status in WAITING:
            wishes.append(("cancel", self._cancel))
        unsure = state.reconciliation
        if state.status is RunStatus.RECONCILIATION_REQUIRED and unsure is not None:
            wishes.append((f"reconcile {state.waiting_since}", self._reconciling(state, habits)))
        return wishes

    @property
    def _acts(self) -> dict[str, Act]:
        reply = Reply.model_validate({"answer": "forty-two"})
        text = SteeringMessage.model_validate({"text": "be quick"})
        return {
            "cancel": self._cancel,
            "pause": lambda key: self._command(key, lambda s: decisions.pause(s, ME)),
            "resume": lambda key: self._command(key, lambda s: decisions.resume(s, ME)),
            "reply": lambda key: self._command(key, lambda s: decisions.reply(s, reply, ME, None)),
            "message": lambda key: self._command(key, lambda s: decisions.message(s, text, ME, None)),
        }

    def _deciding(self, pending: Question, habits: Habits) -> Act:
        body = Approval.model_validate({"call_id": pending.call_id, "decision": habits.approval})
        return lambda key: self._command(key, lambda s: decisions.approve(s, body, ME, None))

    def _reconciling(self, state: RunState, habits: Habits) -> Act:
        pending = state.reconciliation
        assert pending is not None
        decision = habits.reconciliation
        if decision == "any":
            decision = self._chance.choice(("accept", "retry"))
        body = Reconciliation.model_validate(
            {
                "call_id": pending.call_id,
                "decision": decision,
                "observation": "it happened" if decision == "accept" else None,
            }
        )
        return lambda key: self._command(key, lambda s: decisions.reconcile(s, body, ME, None))

    async def _carry_out(self, key: LogKey, name: str, act: Act, think_s: float | None = None) -> None:
        some_s = self._chance.choice((0.0, 0.001, 0.05, 0.5))
        await self._machine.clock.sleep(some_s if think_s is None else think_s + some_s / 100)
        self._world.say(f"WANTS {name} on {key.log_id}")
        try:
            await self._until_done(lambda: act(key))
        except RequestError as error:
            self._world.say(f"is refused {name}: {error.message}")

    async def _command(self, key: LogKey, decide: Decide) -> None:
        await self._machine.runs.command(*key, decide)

    async def _cancel(self, key: LogKey) -> None:
        """As `services/gateway/commands.py` does it."""
        owner = (await self._machine.runs.load(*key)).state.owner
        dead = owner.boot if owner is not None and await self._is_dead(owner.boot) else None

        def decide(state: RunState) -> list[LogEvent]:
            owned_by_the_dead = state.owner is not None and state.owner.boot == dead
            return decisions.cancel(state, ME, owner_is_dead=owned_by_the_dead)

        await self._command(key, decide)

    async def _delete(self, key: LogKey) -> None:
        """Once more after an unknown outcome finds it deleted, which is refused."""
        await self._command(key, lambda state: deleting.deleted(state, ME, parent_waits=False))

    async def _is_dead(self, boot: str) -> bool:
        entry = await self._machine.bus.bucket("leases").get(replica_key(boot))
        return entry is not None and b'"dead":true' in entry.value

    async def _tickets(self, key: LogKey) -> None:
        """Tickets that nobody sent for a reason."""
        ticket = msgspec.json.encode(Ticket(tenant=TENANT, run_id=key.log_id, sequence=1))
        for _ in range(3):
            await self._machine.bus.queue.publish(self._machine.bus.subjects.work("normal"), ticket)

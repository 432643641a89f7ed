"""What must hold after every schedule, read from the logs and from what was really done.

Invariant: nothing here knows what went wrong on the way; whatever did, all of this is true.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator

from libs.bus.ports import LogKey
from libs.contracts import events as e
from libs.contracts.clock import parse_rfc3339
from libs.contracts.envelope import Event, Record, decode_events
from libs.contracts.errors import PerdureError
from libs.contracts.evolve import evolve
from libs.contracts.ids import is_id
from libs.contracts.run import OWNED, TERMINAL, RunState, RunStatus
from libs.contracts.subjects import REPLICAS
from libs.contracts.values import Usage
from services.executor.quarantine import POISONED
from tests.sim.host import TOOLS
from tests.sim.loop import SimTask
from tests.sim.scenarios import Scenario, Story
from tests.sim.world import KILLED_S, World

# What only an owner says. Others append commands.
_OWNERS = (
    e.ModelRequested,
    e.ModelCompleted,
    e.ModelFailed,
    e.ToolRequested,
    e.ToolCompleted,
    e.ToolUncertain,
    e.WorkspaceAttached,
    e.VerificationRequested,
    e.VerificationCompleted,
    e.RunReleased,
    e.RunCompleted,
)
_COUNTED = frozenset(spec.name for spec in TOOLS if spec.semantics == "NON_IDEMPOTENT")


def runs_in(world: World) -> dict[LogKey, list[Record]]:
    return {key: records for key, records in world.server.logs.records.items() if is_id("run", key.log_id)}


def broken(world: World, scenario: Scenario, created: dict[int, LogKey]) -> Iterator[str]:
    """Everything that does not hold."""
    states: dict[str, RunState] = {}
    for key, records in runs_in(world).items():
        if _is_tombstone(records[-1]):
            continue
        reader = _Reader(key)
        try:
            yield from reader.read(records)
        except (PerdureError, AssertionError) as error:
            yield f"{key.log_id} does not fold: {error!r}"
            continue
        state = states[key.log_id] = reader.folded
        yield from _end(state)
        yield from _effects(world, state, records)
        yield from _children(state)
        yield from _late(world, state)
    yield from _bought(world)
    yield from _letters(world, states)
    roots = [state.run_id for state in states.values() if state.parent is None]
    if len(roots) > len(scenario.stories):
        yield f"{len(scenario.stories)} stories have made {len(roots)} runs: {roots}"
    for number, story in enumerate(scenario.stories):
        key = created.get(number)
        if key is None:
            yield f"story {number} was never accepted"
        elif key.log_id in states:
            yield from _story(states[key.log_id], story)
    yield from remains(world)
    yield from left_over(world)


class _Reader:
    """Reads a log as it was written: it folds, is numbered without a gap, and its owners alone wrote what is theirs."""

    def __init__(self, key: LogKey) -> None:
        self._key = key
        self._state: RunState | None = None
        self._usage, self._owner = Usage(), ""
        self._iterations: list[int] = []

    @property
    def folded(self) -> RunState:
        assert self._state is not None
        return self._state

    def read(self, records: list[Record]) -> Iterator[str]:
        run_id, previous = self._key.log_id, 0
        for record in records:
            if record.header.previous != previous:
                yield f"{run_id}: record {record.header.stream_sequence} names {record.header.previous}, not {previous}"
            previous = record.header.stream_sequence
            events = decode_events(record)
            for event in events:
                yield from self._event(event, record)
            yield from self._header(events, record)
        if self._iterations != list(range(1, len(self._iterations) + 1)):
            yield f"{run_id}: iterations {self._iterations}"

    def _event(self, event: Event, record: Record) -> Iterator[str]:
        body, before = event.body, self._state
        if before is not None and before.terminal:
            yield f"{self._key.log_id}: {body.type} (event {event.sequence}) behind its end"
        if before is not None:
            yield from _premature(before, event)
        self._state = evolve(before, event)
        match body:
            case e.ModelCompleted(usage=used, iteration=iteration):
                self._usage = self._usage.plus(used)
                self._iterations.append(iteration)
            case e.ChildFinished(usage=used) | e.ContextCompacted(usage=used):
                self._usage = self._usage.plus(used)
            case e.RunClaimed(boot=boot):
                self._owner = boot
            case _:
                pass
        if isinstance(body, _OWNERS) and record.header.boot != self._owner:
            yield f"{self._key.log_id}: {body.type} (event {event.sequence}) by {record.header.boot}, not {self._owner}"

    def _header(self, events: list[Event], record: Record) -> Iterator[str]:
        state, header = self.folded, record.header
        told = (header.state, header.epoch, header.first, header.event_count)
        true = (state.status, state.epoch, events[0].sequence, len(events))
        if told != true:
            yield f"{self._key.log_id}: the header of record {header.stream_sequence} says {told}, the fold {true}"
        counted, usage = self._usage, state.usage
        if (usage.total_tokens, usage.requests) != (counted.total_tokens, counted.requests):
            yield f"{self._key.log_id}: usage {usage} at event {state.sequence}, summed up {counted}"


def _end(state: RunState) -> Iterator[str]:
    if not state.terminal:
        yield f"{state.run_id} ({state.task.goal}) is {state.status} for ever, since event {state.sequence}"
    if state.owner is not None and state.status not in OWNED:
        yield f"{state.run_id} is {state.status} and owned by {state.owner.boot}"


def _effects(world: World, state: RunState, records: list[Record]) -> Iterator[str]:
    """Each effect that counts was made at most once, unless a person said: again."""
    retried: Counter[str] = Counter()
    succeeded: set[str] = set()
    by_person: set[str] = set()
    names: dict[str, str] = {}
    for record in records:
        for event in decode_events(record):
            match event.body:
                case e.ReconciliationResolved(decision="retry", call_id=call_id):
                    retried[call_id] += 1
                case e.ReconciliationResolved(call_id=call_id):
                    by_person.add(call_id)
                case e.ToolRequested(call_id=call_id, name=name):
                    names[call_id] = name
                case e.ToolCompleted(call_id=call_id, ok=True):
                    succeeded.add(call_id)
                case _:
                    pass
    done = Counter(effect.call_id for effect in world.effects if effect.run_id == state.run_id)
    for call_id, name in names.items():
        if name in _COUNTED and done[call_id] > 1 + retried[call_id]:
            yield f"{state.run_id}: {name} {call_id} was done {done[call_id]} times, {retried[call_id]} retries"
        if name in (*_COUNTED, "write") and call_id in succeeded - by_person and not done[call_id]:
            yield f"{state.run_id}: {name} {call_id} is said to be done and was not"


def remains(world: World) -> Iterator[str]:
    """Of a deleted run nothing is left but its tombstone."""
    for key, records in runs_in(world).items():
        if not _is_tombstone(records[-1]):
            continue
        if len(records) > 1:
            yield f"{key.log_id} was deleted, and {len(records)} records are left"
        for bucket in ("checkpoints", "journal"):
            left = world.server.buckets[world.server.subjects.stream(bucket)].entries(key.log_id)
            if left:
                yield f"{key.log_id} was deleted, and {[entry.key for entry in left]} are left in {bucket}"


def _is_tombstone(record: Record) -> bool:
    return isinstance(decode_events(record)[-1].body, e.RunDeleted)


def _children(state: RunState) -> Iterator[str]:
    """A parent that completed has the result of every child."""
    if state.status is RunStatus.COMPLETED and set(state.children) - set(state.child_results):
        yield f"{state.run_id} completed without the results of {set(state.children) - set(state.child_results)}"


def _late(world: World, state: RunState) -> Iterator[str]:
    """Nothing is done for a run that has ended; a host that was frozen cannot know."""
    ended_s = world.ends.get(state.run_id)
    if world.frozen or ended_s is None:
        return
    for effect in world.effects:
        if effect.run_id == state.run_id and effect.at_s > ended_s + KILLED_S:
            yield f"{effect} was done {effect.at_s - ended_s:.1f} s after the end of its run"


def _bought(world: World) -> Iterator[str]:
    """No turn of the model is bought twice, unless a process or a whole connection was lost."""
    if not world.disturbed:
        for (run_id, iteration), count in world.bought.items():
            if count > 1:
                yield f"{run_id}: turn {iteration} was bought {count} times, and no process was lost"


def _letters(world: World, states: dict[str, RunState]) -> Iterator[str]:
    """Everything that is sent can be handled; a poisoned run is kept for people."""
    kept = list(world.server.stream(world.server.subjects.dead("any")).messages.values())
    poisoned = {
        run_id
        for run_id, state in states.items()
        if state.error is not None and state.error.error_code == POISONED
    }
    for letter in kept:
        if not any(run_id.encode() in letter.body for run_id in poisoned):
            yield f"a dead letter of {letter.subject}: {letter.headers}"
    for run_id in poisoned:
        if not any(run_id.encode() in letter.body for letter in kept):
            yield f"{run_id} is poisoned and there is no dead letter"


def _story(state: RunState, story: Story) -> Iterator[str]:
    if state.terminal and state.status not in story.ends:
        yield f"{state.run_id} ({state.task.goal}) ended {state.status}: {state.error}"
    if state.status is RunStatus.COMPLETED:
        verdict = state.verification.status if state.verification is not None else None
        wanted = "PASSED" if story.task.acceptance else "UNVERIFIED"
        if verdict != wanted:
            yield f"{state.run_id} ({state.task.goal}) completed {verdict}, not {wanted}"


def _premature(before: RunState, event: Event) -> Iterator[str]:
    """What has to wait waits: for its time, and for what was accepted before."""
    at = parse_rfc3339(event.at)
    match event.body:
        case e.RunClaimed() if before.status is RunStatus.RETRYING and before.retry_at is not None:
            if at < parse_rfc3339(before.retry_at):
                yield f"{before.run_id}: claimed at {event.at}, although it was to wait until {before.retry_at}"
        case e.RunFailed(error=error) if error.error_code == "INPUT_TIMEOUT":
            asked, patience_s = before.pending_question, before.limits.input_timeout_s
            waited_s = (at - parse_rfc3339(asked.asked_at)).total_seconds() if asked is not None else 0.0
            if patience_s is None or waited_s < patience_s:
                yield f"{before.run_id}: gave up after {waited_s} s of {patience_s}"
        case e.RunCompleted() if any(item.origin == "steering" for item in before.inbox):
            yield f"{before.run_id}: completed without a look at a message that was accepted"
        case e.InputReceived(question_id=question_id):
            if any(
                question.question_id == question_id and question.answered_at for question in before.questions
            ):
                yield f"{before.run_id}: {question_id} was answered twice"
        case e.ChildFinished(call_id=call_id) if call_id in before.child_results:
            yield f"{before.run_id}: the end of the child of {call_id} was told twice"
        case _:
            pass


class Takeovers:
    """Watches claims as they are stored: nobody is replaced who is not written dead by then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners: dict[str, str] = {}
        self._dead: set[str] = set()
        world.server.logs.observers.append(self._see_record)
        leases = world.server.buckets[world.server.subjects.stream("leases")]
        leases.observers.append(self._see_lease)

    def _see_lease(self, key: str, value: bytes | None) -> None:
        if value is not None and b'"dead":true' in value:
            self._dead.add(key.removeprefix(REPLICAS))

    def _see_record(self, record: Record) -> None:
        if record.header.record_class != "life" or not is_id("run", record.log_id):
            return
        for event in decode_events(record):
            match event.body:
                case e.RunClaimed(boot=boot):
                    former = self._owners.get(record.log_id)
                    if former is not None and former not in self._dead:
                        self._world.finding(
                            f"{boot} claims {record.log_id} from {former}, which is not written dead"
                        )
                    self._owners[record.log_id] = boot
                case e.RunReleased():
                    self._owners.pop(record.log_id, None)
                case _:
                    pass


def left_over(world: World) -> Iterator[str]:
    """Nobody works on a run that has ended."""
    ended = {key.log_id for key, records in runs_in(world).items() if records[-1].header.state in TERMINAL}
    for task in asyncio.all_tasks(world.loop):
        if task.get_name() in ended and isinstance(task, SimTask):
            process = task.process
            if process is not None and process.alive and not process.frozen:
                yield f"{process.name} still holds {task.get_name()}, which has ended"
    for (name, start, run_id), count in world.running.items():
        if count and run_id in ended and world.starts[name] == start and world.machines[name].process.alive:
            yield f"{name} still runs {count} calls of {run_id}, which has ended"

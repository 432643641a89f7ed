"""Projects over many items: each is done once, whatever fails, and no decision grows with the list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from libs.contracts import project_events as e
from libs.contracts.checks import FileCheck
from libs.contracts.envelope import Event, encode_record
from libs.contracts.evolve_project import evolve_project
from libs.contracts.items import ItemMap, index_of, item_id
from libs.contracts.progress import progress_text
from libs.contracts.project import ProjectState
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projects import FeatureStatus, ProjectLimits, ProjectSpec, ProjectStatus
from libs.contracts.projectviews import feature_views, project_view
from libs.contracts.run import RunStatus
from libs.contracts.values import RunError, Usage
from services.gateway import projectcommands
from services.scheduler.projects.decide import foresee, settle
from services.scheduler.projects.effects import Effect, Env, MakeItem, StopRun, Wait, Watch
from services.scheduler.projects.facts import RunSeen
from services.scheduler.projects.items import task_of

PROJECT = "project_0_" + "0" * 26
BEGIN = datetime(2026, 11, 30, tzinfo=UTC)
F = FeatureStatus


class World:
    """A project over items and the runs that it asks for."""

    def __init__(self, count: int, *, concurrency: int = 8, attempts: int = 3, max_failed: int = 100) -> None:
        mapped = ItemMap(
            items=[f"paper {number}" for number in range(count)], goal="Read {item}.", max_failed=max_failed
        )
        spec = ProjectSpec(
            name="n", brief="b", map=mapped, concurrency=concurrency, max_attempts_per_feature=attempts
        )
        self.now = BEGIN
        created = e.ProjectCreated(tenant="t", spec=spec, workspace=PROJECT, body_hash="0", by="me")
        self.state: ProjectState = evolve_project(
            None, Event(1, PROJECT, "2026-11-30T00:00:00.000Z", created)
        )
        self.stored: list[e.ProjectEvent] = [created]
        self.largest = 0
        # The runs, by item and attempt; each item's completed run.
        self.runs: dict[str, RunSeen] = {}
        self.made: dict[str, tuple[int, int]] = {}
        self.done: list[int] = []
        self.effects: tuple[Effect, ...] = ()

    def say(self, events: list[e.ProjectEvent]) -> None:
        if events:
            first = self.state.sequence + 1
            record = [
                Event(first + place, PROJECT, "2026-11-30T00:00:00.000Z", body)
                for place, body in enumerate(events)
            ]
            self.largest = max(self.largest, len(encode_record(record)))
        self.state = foresee(self.state, events, self.now)
        self.stored += events

    def settle(self) -> None:
        """What a scheduler does that looks at the project."""
        settled = settle(self.state, Env(self.now, self.runs))
        self.say(settled.events)
        assert self.state == settled.state
        self.effects = settled.then.effects
        for effect in self.effects:
            match effect:
                case MakeItem(index):
                    assert self.state.items is not None
                    work = self.state.items.going[index]
                    assert work.run_id not in self.runs, "a run is made once"
                    assert index not in self.done, "an item is done once"
                    self.runs[work.run_id] = RunSeen(work.run_id, RunStatus.RUNNING)
                    self.made[work.run_id] = (index, work.attempt)
                case StopRun(run_id, by):
                    self.end(run_id, RunStatus.CANCELLED, cancelled_by=by)
                case _:
                    pass
        assert len(self.live) <= self.state.spec.concurrency

    @property
    def live(self) -> list[str]:
        return [run_id for run_id, run in self.runs.items() if not run.ended]

    def end(
        self,
        run_id: str,
        status: RunStatus,
        *,
        error: RunError | None = None,
        cancelled_by: str | None = None,
    ) -> None:
        if status is RunStatus.COMPLETED:
            self.done.append(self.made[run_id][0])
        usage = Usage(requests=1, output_tokens=7)
        self.runs[run_id] = self.runs[run_id]._replace(
            status=status, usage=usage, error=error, cancelled_by=cancelled_by
        )

    def complete(self, run_id: str) -> None:
        self.end(run_id, RunStatus.COMPLETED)

    def fail(self, run_id: str) -> None:
        self.end(run_id, RunStatus.FAILED, error=RunError(error_code="MODEL_ERROR", message="no"))

    def forget_ended(self) -> None:
        """Runs that have ended are read no more."""
        self.runs = {run_id: run for run_id, run in self.runs.items() if not run.ended}

    def refold(self) -> ProjectState:
        """The state as a scheduler that knows only the log sees it."""
        state: ProjectState | None = None
        for sequence, body in enumerate(self.stored, 1):
            state = evolve_project(state, Event(sequence, PROJECT, "2026-11-30T00:00:00.000Z", body))
        assert state is not None
        return state


def test_five_thousand_items_are_done_once_each_and_no_record_knows_them_all() -> None:
    world = World(5_000, concurrency=16)
    failing = {index for index in range(5_000) if index % 100 == 50}
    world.settle()
    while world.state.status is ProjectStatus.ACTIVE:
        for run_id in world.live:
            index, attempt = world.made[run_id]
            (world.fail if index in failing and attempt == 1 else world.complete)(run_id)
        world.now += timedelta(seconds=1)
        world.settle()
        world.forget_ended()
    assert world.state.status is ProjectStatus.COMPLETED
    assert sorted(world.done) == list(range(5_000))
    assert len(world.made) == 5_050
    assert world.state.counts == {
        F.PENDING: 0,
        F.IN_PROGRESS: 0,
        F.COMMITTED: 5_000,
        F.BLOCKED: 0,
        F.SKIPPED: 0,
    }
    assert world.state.usage.requests == 5_050
    assert world.largest < 16_000
    size = len(msgspec.json.encode(world.state)) - len(msgspec.json.encode(world.state.spec))
    assert size < 3_000
    assert project_view(world.state, {}, world.now).features["committed"] == 5_000


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["complete", "fail", "wait", "restart", "pause", "resume"]), st.integers(0, 100)
    ),
    max_size=60,
)


@given(MOVES, st.integers(1, 12), st.integers(1, 5))
def test_no_item_is_done_twice_or_forgotten(
    moves: list[tuple[str, int]], count: int, concurrency: int
) -> None:
    world = World(count, concurrency=concurrency)
    world.settle()
    for move, number in [*moves, *[("resume", 0), ("wait", 0), ("complete", 0)] * 40]:
        live = world.live
        match move:
            case "complete" if live:
                world.complete(live[number % len(live)])
            case "fail" if live:
                world.fail(live[number % len(live)])
            case "wait":
                world.now += timedelta(seconds=number)
                waits = [effect for effect in world.effects if isinstance(effect, Wait)]
                world.now = max([world.now, *(wait.until for wait in waits)])
            case "pause" if world.state.status is ProjectStatus.ACTIVE:
                world.say(projectcommands.pause(world.state, "me"))
            case "resume" if world.state.status in (ProjectStatus.PAUSED, ProjectStatus.BLOCKED):
                world.say(projectcommands.resume(world.state, "me"))
            case _:
                pass
        world.settle()
        assert sum(world.state.counts.values()) == count
    assert world.state.status is ProjectStatus.COMPLETED
    assert sorted(world.done) == list(range(count))


def test_a_restart_of_everything_in_the_middle_changes_nothing() -> None:
    world = World(40, concurrency=4)
    world.settle()
    for step in range(200):
        if world.state.terminal:
            break
        if world.live:
            (world.fail if step % 9 == 0 else world.complete)(world.live[0])
        world.now += timedelta(seconds=5)
        world.settle()
        assert world.refold().items == world.state.items
    assert sorted(world.done) == list(range(40))


def test_what_fails_too_often_blocks_and_a_person_decides() -> None:
    world = World(3, concurrency=3, attempts=2)
    for _ in range(12):
        world.settle()
        for run_id in world.live:
            index, _ = world.made[run_id]
            (world.complete if index == 1 else world.fail)(run_id)
        world.now += timedelta(seconds=400)
    assert world.state.status is ProjectStatus.BLOCKED
    assert world.state.block is not None
    assert world.state.block.cap == "items"
    assert "item-0" in world.state.block.reason
    assert "item-2: MODEL_ERROR: no" in progress_text(world.state)
    assert [view.status for view in feature_views(world.state)] == [F.BLOCKED, F.COMMITTED, F.BLOCKED]
    world.say(projectcommands.skip(world.state, item_id(0), "me"))
    assert world.state.status is ProjectStatus.BLOCKED
    world.say(projectcommands.retry(world.state, item_id(2), "me"))
    world.settle()
    assert world.state.status is ProjectStatus.ACTIVE
    world.complete(world.live[0])
    world.settle()
    assert world.state.status is ProjectStatus.COMPLETED
    assert isinstance(world.stored[-1], e.ProjectCompleted)
    assert (world.stored[-1].committed, world.stored[-1].skipped) == (2, 1)


def test_resuming_tries_all_again_that_were_given_up() -> None:
    world = World(10, attempts=1, max_failed=3, concurrency=2)
    for _ in range(4):
        world.settle()
        for run_id in world.live:
            world.fail(run_id)
    world.settle()
    assert world.state.status is ProjectStatus.BLOCKED
    assert world.state.count(F.BLOCKED) == 4, "those that went on when the third failed have ended as well"
    assert world.state.count(F.PENDING) == 6
    world.say(projectcommands.resume(world.state, "me"))
    for _ in range(12):
        world.settle()
        for run_id in world.live:
            world.complete(run_id)
    assert world.state.status is ProjectStatus.COMPLETED


def test_a_cap_blocks_once_what_goes_on_has_ended() -> None:
    world = World(10, concurrency=2)
    limits = ProjectLimits(max_sessions=4)
    world.state = msgspec.structs.replace(world.state, limits=limits)
    for _ in range(5):
        world.settle()
        for run_id in world.live:
            world.complete(run_id)
    assert world.state.block is not None
    assert (world.state.block.cap, len(world.made)) == ("sessions", 4)


def test_a_silent_item_is_ended_and_tried_again_and_one_that_lives_never_is() -> None:
    world = World(2, concurrency=2)
    world.settle()
    silent, slow = world.live
    world.runs[silent] = world.runs[silent]._replace(silent_s=world.state.limits.stall_s)
    world.runs[slow] = world.runs[slow]._replace(silent_s=world.state.limits.stall_s - 1)
    world.settle()
    assert Watch(slow, world.state.limits.stall_s) in world.effects
    assert world.live == [slow]
    world.settle()
    assert world.state.items is not None
    (waiting,) = world.state.items.waiting.values()
    assert waiting.error.startswith("STALLED")
    world.now += timedelta(seconds=60)
    world.settle()
    for run_id in world.live:
        world.complete(run_id)
    world.settle()
    assert world.state.status is ProjectStatus.COMPLETED


def test_without_a_limit_no_item_is_too_silent() -> None:
    world = World(1)
    world.state = msgspec.structs.replace(world.state, limits=ProjectLimits(stall_s=0))
    world.settle()
    world.runs[world.live[0]] = world.runs[world.live[0]]._replace(silent_s=1e6)
    world.settle()
    assert world.effects == ()


def test_a_cancelled_project_stops_its_runs_and_then_ends() -> None:
    world = World(10, concurrency=4)
    world.settle()
    world.complete(world.live[0])
    world.say(projectcommands.cancel(world.state, "me"))
    for _ in range(3):
        world.settle()
    assert world.state.status is ProjectStatus.CANCELLED
    assert world.live == []


def test_the_template_has_the_item_in_its_place() -> None:
    world = World(3)
    mapped = msgspec.structs.replace(
        world.state.spec.map or ItemMap(items=[], goal=""),
        acceptance=[FileCheck(path="out/{item}.md", contains="{item}")],
        workspace="papers",
    )
    state = msgspec.structs.replace(world.state, spec=msgspec.structs.replace(world.state.spec, map=mapped))
    world.state = state
    world.settle()
    assert world.state.items is not None
    task = task_of(world.state, 2, world.state.items.going[2])
    assert (task.goal, task.workspace, task.instructions) == ("Read paper 2.", "papers", "b")
    assert task.acceptance == [FileCheck(path="out/paper 2.md", contains="paper 2")]
    assert index_of("item-2", 3) == 2
    assert [index_of(wrong, 3) for wrong in ("item-3", "item-", "item-02", "2", "item-٢")] == [None] * 5


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"map": {"items": ["a"], "goal": "Read it."}}, "{item}"),
        ({"map": {"items": ["a", "a"], "goal": "Read {item}."}}, "twice"),
        (
            {
                "map": {
                    "items": ["a"],
                    "goal": "Read {item}.",
                    "acceptance": [{"kind": "review", "rubric": "Is it {item}?"}],
                }
            },
            "a review alone proves nothing",
        ),
        ({"map": {"items": [], "goal": "Read {item}."}}, "items"),
        ({"map": {"items": ["a"], "goal": "Read {item}."}, "init": ["true"]}, "init"),
        ({"concurrency": 17}, "concurrency"),
        (
            {
                "map": {
                    "items": ["../a"],
                    "goal": "Read {item}.",
                    "acceptance": [{"kind": "file", "path": "out/{item}"}],
                }
            },
            "inside the workspace",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, object], named: str) -> None:
    with pytest.raises(ValidationError) as refused:
        ProjectCreate.model_validate({"name": "n", "brief": "b", **fields})
    assert named in str(refused.value)

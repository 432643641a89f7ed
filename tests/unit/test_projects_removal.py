"""The end of lanes: what only their workspaces hold comes home before they go, and nothing keeps a project from its end."""

from __future__ import annotations

import pytest

from libs.contracts.project_events import ProjectCancelled, ProjectCompleted, SessionEnded
from libs.contracts.projects import REMOVALS_MAX, FeatureStatus, Hooks, Outcome, Phase, ProjectStatus
from libs.contracts.run import StepResult
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMAND,
    WORKSPACE_GATHER,
    WORKSPACE_LEAVE,
    lane_of,
    lane_workspace,
)
from services.gateway import projectcommands as commands
from services.scheduler.projects.decide import REMOVAL_S
from services.scheduler.projects.sessions import run_of
from tests.fakes.project_world import PROJECT, ProjectWorld, begun

HOOKS = Hooks(before_remove=["make", "bye"], after_create=["make", "tools"], timeout_s=7.0)


def pass_all(world: ProjectWorld, *, until: Stage) -> None:
    """Pass whatever goes on, until a run of this stage does."""
    while not any(work.stage is until for work in world.state.works.values()):
        for lane in list(world.state.works):
            if world.live_in(lane) is not None:
                world.pass_run(lane)
        world.settle()


def leaving(*features: str) -> ProjectWorld:
    """A project whose features are committed and proved, and whose lanes are to go."""
    world = begun(*features, concurrency=2, hooks=HOOKS)
    pass_all(world, until=Stage.LEAVE)
    return world


def task(world: ProjectWorld, lane: int) -> TaskSpec:
    return run_of(world.state, world.state.works[lane], Limits()).task


def step(world: ProjectWorld, lane: int) -> None:
    world.pass_run(lane)
    world.settle()


def test_lanes_are_emptied_one_after_the_other_before_the_project_is_completed() -> None:
    world = leaving("a", "b")
    assert {work.kind for work in world.state.works.values()} == {SessionKind.REMOVE}
    sessions = world.state.sessions
    left = task(world, 1)
    assert left.workspace == lane_workspace(PROJECT, 1)
    assert [(errand.name, errand.must_pass) for errand in left.errands] == [
        (WORKSPACE_COMMAND, False),
        (WORKSPACE_LEAVE, True),
    ]
    assert (left.errands[0].arguments, left.errands[0].timeout_s) == ({"argv": ["make", "bye"]}, 7.0)
    world.pass_run(1)
    world.pass_run(0)
    world.settle()
    assert [work.stage for work in world.state.works.values()] == [Stage.GATHER, None], (
        "one at a time at home"
    )
    assert task(world, 0).workspace == PROJECT
    assert [errand.name for errand in task(world, 0).errands] == [WORKSPACE_GATHER]
    step(world, 0)
    assert world.state.status is ProjectStatus.ACTIVE
    step(world, 1)
    assert world.state.status is ProjectStatus.COMPLETED
    *_, last = world.events
    assert isinstance(last, ProjectCompleted)
    assert last.removed == [0, 1]
    assert world.state.sessions - world.state.removals == sessions - 2, "no cap is about them"
    assert world.state.phase is Phase.DONE


def test_what_the_branch_holds_needs_no_way_home() -> None:
    world = leaving("a")
    assert list(world.state.works) == [0], "the other lane was never begun"
    said = StepResult(name=WORKSPACE_LEAVE, ok=True, metadata={"offered": False})
    world.pass_run(0, steps=(StepResult(name=WORKSPACE_COMMAND, ok=False, output="no"), said))
    world.settle()
    *_, last = world.events
    assert isinstance(last, ProjectCompleted)
    assert last.removed == [0, 1]


def test_a_workspace_that_cannot_be_emptied_stays_and_the_project_ends() -> None:
    world = leaving("a", "b")
    step(world, 0)
    step(world, 0)
    for tried in range(1, REMOVALS_MAX + 1):
        assert world.state.status is ProjectStatus.ACTIVE
        assert world.state.works[1].attempt == tried
        world.fail_run("WORKSPACE_ERROR", "the store is away", lane=1)
        world.settle()
        world.until_due()
        world.settle()
    *_, ended = [event for event in world.events if isinstance(event, SessionEnded)]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason == "the workspace of lane 1 stays as it is: WORKSPACE_ERROR: the store is away"
    *_, last = world.events
    assert isinstance(last, ProjectCompleted)
    assert last.removed == [0]
    assert "lane 1 stays" in world.state.last_error


@pytest.mark.parametrize("rests", [False, True])
def test_a_project_that_is_cancelled_brings_home_what_its_lanes_hold(rests: bool) -> None:
    world = begun("a", "b", concurrency=2)
    pass_all(world, until=Stage.AGENT)
    if rests:
        world.say(commands.pause(world.state, "me"))
        world.settle()
    world.say(commands.cancel(world.state, "me"))
    world.settle()
    assert {work.kind for work in world.state.works.values()} == {SessionKind.REMOVE}
    assert {known.state for known in world.state.features.values()} == {FeatureStatus.PENDING}
    while world.live is not None:
        world.pass_run()
        world.settle()
    *_, last = world.events
    assert isinstance(last, ProjectCancelled)
    assert (last.by, last.removed) == ("me", [0, 1])


def test_nobody_who_could_empty_a_lane_is_waited_for_for_ever() -> None:
    world = begun("a", concurrency=2, hooks=HOOKS)
    pass_all(world, until=Stage.AGENT)
    world.say(commands.cancel(world.state, "me"))
    world.settle()
    for _ in range(REMOVALS_MAX):
        world.advance(HOOKS.timeout_s + REMOVAL_S)
        world.settle()
        world.until_due()
        world.settle()
    *_, last = world.events
    assert isinstance(last, ProjectCancelled)
    assert last.removed == [1], "nobody knows what lane 0 holds"


def test_a_feature_that_is_wanted_again_meanwhile_is_worked_on_in_a_workspace_made_anew() -> None:
    world = leaving("a")
    world.say(commands.retry(world.state, "a", "me"))
    step(world, 0)
    step(world, 0)
    assert world.state.works[1].feature_id == "a"
    pass_all(world, until=Stage.LEAVE)
    assert world.state.works[1].stage is Stage.LEAVE
    world.say(commands.retry(world.state, "a", "me"))
    step(world, 1)
    assert world.state.works[0].stage is Stage.BEGIN
    assert [errand.name for errand in task(world, 0).errands] == [WORKSPACE_BEGIN, WORKSPACE_COMMAND]
    pass_all(world, until=Stage.LEAVE)
    while world.state.status is ProjectStatus.ACTIVE:
        for lane in list(world.state.works):
            if world.live_in(lane) is not None:
                step(world, lane)
    *_, last = world.events
    assert isinstance(last, ProjectCompleted)
    assert last.removed == [0, 1]


def test_only_what_is_called_as_a_lane_is_one() -> None:
    assert lane_of(lane_workspace(PROJECT, 12)) == (PROJECT, 12)
    for name in (PROJECT, f"{PROJECT}-lane-", f"{PROJECT}-lane-01", "papers-lane-1", f"{PROJECT}-lane-²"):
        assert lane_of(name) is None

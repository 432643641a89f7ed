"""A session that shows no sign of life is ended and tried again, with the reason; one that lives never is."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec
import pytest

from libs.bus.ports import LogKey
from libs.contracts.errors import IllegalTransition
from libs.contracts.project_events import SessionEnded, SessionRunEnded, SessionStalled
from libs.contracts.projects import FeatureStatus, Outcome, ProjectLimits
from libs.contracts.run import OWNED, RunStatus
from libs.contracts.sessions import Stage
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import Usage
from services.executor.endpoint.pulse import Pulse
from services.scheduler.projects.decide import Env, StopRun, Watch, settle
from services.scheduler.projects.prompt import goal_of
from services.scheduler.projects.silences import STALL, overdue, silence_of
from tests.fakes.clock import QuickClock
from tests.fakes.histories import created
from tests.fakes.project_world import ProjectWorld, begun

KEY = LogKey("local", "project_0_a")


def with_agent(stall_s: float = 60.0) -> ProjectWorld:
    """The agent of the first feature works."""
    world = begun("a", limits=ProjectLimits(stall_s=stall_s))
    world.pass_run()
    world.settle()
    assert world.state.works[0].stage is Stage.AGENT
    return world


def silent(world: ProjectWorld, seconds: float | None) -> str:
    run = world.live
    assert run is not None
    world.runs[run.run_id] = run._replace(silent_s=seconds)
    return run.run_id


def stalls(world: ProjectWorld) -> list[SessionStalled]:
    return [event for event in world.events if isinstance(event, SessionStalled)]


def test_a_silent_session_is_ended_and_tried_again_with_the_reason() -> None:
    world = with_agent()
    run_id = silent(world, 61.0)
    first = settle(world.state, Env(world.now, world.runs))
    assert isinstance(first.events[0], SessionStalled), "the intent is recorded first"
    assert first.then.effects == (StopRun(run_id, STALL),)
    world.settle()
    assert world.runs[run_id].status is RunStatus.CANCELLED
    assert world.state.works[0].stage is Stage.CLOSE, "what it left is set aside"
    world.pass_run()
    world.settle()
    (*_, ended) = [event for event in world.events if isinstance(event, SessionEnded)]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason.startswith("STALLED: it showed no sign of life for 61 s")
    world.until_due()
    world.settle()
    world.pass_run()
    world.settle()
    goal = goal_of(world.state, world.state.works[0])
    assert "This is attempt 2." in goal
    assert "STALLED: it showed no sign of life for 61 s, 60 s are allowed" in goal


@pytest.mark.parametrize("stall_s, seconds", [(60.0, 59.9), (60.0, None), (0.0, 1e6), (-1.0, 1e6)])
def test_what_lives_or_is_not_known_or_not_to_be_watched_goes_on(
    stall_s: float, seconds: float | None
) -> None:
    world = with_agent(stall_s)
    run_id = silent(world, seconds)
    world.advance(1e6)
    settled = settle(world.state, Env(world.now, world.runs))
    assert settled.events == []
    assert settled.then.effects == ((Watch(run_id, stall_s),) if stall_s > 0 else ())


def test_the_end_that_a_run_found_meanwhile_counts() -> None:
    world = with_agent()
    silent(world, 61.0)
    world.say(settle(world.state, Env(world.now, world.runs)).events)
    world.pass_run()
    world.settle()
    assert world.state.features["a"].state is FeatureStatus.VERIFIED


def test_a_revoked_attempt_that_reports_later_changes_nothing() -> None:
    world = with_agent()
    run_id = silent(world, 61.0)
    world.settle()
    before = world.state
    world.runs[run_id] = world.runs[run_id]._replace(status=RunStatus.COMPLETED)
    world.settle()
    assert world.state == before
    late = SessionRunEnded(
        session=before.works[0].session,
        stage=Stage.AGENT,
        run_id=run_id,
        status="COMPLETED",
        usage=Usage(),
    )
    with pytest.raises(IllegalTransition):
        world.say([late])


def test_what_its_owner_says_of_a_run_is_its_silence_and_a_run_that_waits_has_none() -> None:
    now = datetime(2026, 11, 29, 12, 1, tzinfo=UTC)
    run = msgspec.structs.replace(created(Limits(), TaskSpec(goal="g")), status=RunStatus.RUNNING)
    assert silence_of(run, {run.run_id: 7.0}, now) == 7.0
    # Nobody holds it, so its last event counts; of an owner that says nothing at all nothing is concluded.
    assert silence_of(run, {}, now) == 60.0
    assert silence_of(run, None, now) is None
    for status in set(RunStatus) - OWNED:
        assert silence_of(msgspec.structs.replace(run, status=status), {run.run_id: 7.0}, now) is None


def test_only_projects_with_a_run_that_is_silent_for_long_enough_are_looked_at() -> None:
    watched = {KEY: {"run_a": 60.0}, KEY._replace(log_id="project_0_b"): {"run_b": 60.0}}
    assert overdue(watched, [{"run_a": 61.0, "run_c": 1e6}, {"run_b": 59.0}]) == [KEY]


def test_a_tool_that_takes_hours_is_no_silence_and_a_wait_on_purpose_neither() -> None:
    clock = QuickClock()
    pulse = Pulse(clock)
    clock.slept.append(5)
    assert pulse.silent_s == 5, "before the first sign the beginning counts"
    with pulse.vouched():
        clock.slept.append(10_000)
        assert pulse.silent_s == 0
    clock.slept.append(7)
    assert pulse.silent_s == 7
    pulse.rest(30)
    clock.slept.append(33)
    assert pulse.silent_s == 10
    pulse.beat()
    assert pulse.silent_s == 0

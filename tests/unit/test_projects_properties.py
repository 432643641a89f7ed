"""Whatever happens to a project, and in whatever order: its log stays legal and what it says stays proved."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.checks import Verdict
from libs.contracts.errors import RequestError
from libs.contracts.project import ACTIVE_FEATURE
from libs.contracts.projects import FeatureStatus, ProjectLimits, ProjectStatus
from libs.contracts.run import RunStatus
from libs.contracts.sessions import Stage
from services.gateway import projectcommands as commands
from tests.fakes.project_world import ProjectWorld, feature, spec

F = FeatureStatus


@st.composite
def _shapes(draw: st.DrawFn) -> ProjectWorld:
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    listed = [
        feature(name, after=tuple(draw(st.sets(st.sampled_from(names[:index])))) if index else ())
        for index, name in enumerate(names)
    ]
    limits = ProjectLimits(max_sessions=draw(st.none() | st.integers(1, 6)))
    attempts, lanes = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    return ProjectWorld(spec(*listed, limits=limits, max_attempts_per_feature=attempts, concurrency=lanes))


_STEPS = st.sampled_from(
    ["pass"] * 8 + ["fail", "cut", "break", "delete", "pause", "resume", "cancel", "skip", "retry", "time"]
)


@settings(max_examples=150, deadline=None)
@given(_shapes(), st.lists(st.tuples(_STEPS, st.integers(0, 2)), max_size=60))
def test_whatever_happens_a_project_stays_sound(world: ProjectWorld, steps: list[tuple[str, int]]) -> None:
    """The fold refuses illegal transitions, the world refuses a second run; here is what else must hold."""
    for step, lane in steps:
        world.settle()
        _happens(world, step, lane if world.live_in(lane) is not None else 0)
        active = [known for known in world.state.features.values() if known.state in ACTIVE_FEATURE]
        assert len(active) <= world.state.spec.concurrency
        assert {known.id for known in active} == {known.id for known in world.state.active_features}
        counted = {status: world.state.counts.get(status, 0) for status in F}
        assert counted == {
            status: sum(known.state is status for known in world.state.features.values()) for status in F
        }
        for known in world.state.features.values():
            if known.state is F.COMMITTED:
                assert known.evidence is not None
                assert known.evidence.commit == known.commit
                assert known.evidence.verdict == Verdict.PASSED
            assert known.failures <= world.state.attempts_max
        if world.state.status is ProjectStatus.COMPLETED:
            assert {known.state for known in world.state.features.values()} <= {F.COMMITTED, F.SKIPPED}
        limit = world.state.limits.max_sessions
        assert limit is None or world.state.sessions - world.state.removals <= limit


def _happens(world: ProjectWorld, step: str, lane: int) -> None:
    state, run = world.state, world.live_in(lane)
    with suppress(RequestError):
        match step:
            case "pass" if run is not None and run.status is RunStatus.RUNNING:
                world.pass_run(lane)
            case "fail" if run is not None:
                world.fail_run("STUCK", lane=lane)
            case "cut" if run is not None:
                world.fail_run("TIMEOUT", lane=lane)
            case "break" if run is not None and state.works[lane].stage is Stage.HEALTH:
                world.break_features(*state.works[lane].reverify, lane=lane)
            case "delete" if run is not None:
                world.runs[run.run_id] = run._replace(deleted=True)
            case "pause":
                world.say(commands.pause(state, "me"))
            case "resume":
                world.say(commands.resume(state, "me"))
            case "cancel":
                world.say(commands.cancel(state, "me"))
            case "skip":
                world.say(commands.skip(state, next(reversed(state.features), ""), "me"))
            case "retry":
                world.say(commands.retry(state, next(iter(state.features), ""), "me"))
            case "time":
                world.until_due()
            case _:
                pass

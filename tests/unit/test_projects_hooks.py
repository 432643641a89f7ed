"""The hooks of a project: where they run, and what their failure means (case 133)."""

from __future__ import annotations

from libs.contracts.project_events import SessionEnded
from libs.contracts.projects import FeatureStatus, Hooks, Outcome
from libs.contracts.run import StepResult
from libs.contracts.workspaces import WORKSPACE_COMMAND, WORKSPACE_SET_ASIDE
from services.scheduler.projects.sessions import close_steps, health_steps
from tests.fakes.project_world import ProjectWorld, begun, feature, spec


def test_a_hook_that_must_pass_ends_the_session_before_its_agent_begins() -> None:
    world = begun("a", hooks=Hooks(before_run=["sh", "before.sh"]))
    said = StepResult(name=WORKSPACE_COMMAND, ok=False, output="no database\n[exit code 2]")
    world.fail_run("HOOK_FAILED", "hook before_run failed: no database", steps=(said,))
    world.settle()
    (*_, ended) = [event for event in world.events if isinstance(event, SessionEnded)]
    assert ended.outcome is Outcome.FAILED
    assert ended.reason.startswith("HOOK_FAILED")
    assert "no database" in world.state.last_error
    assert world.state.features["a"].state is FeatureStatus.PENDING
    assert world.timer is not None


def test_hooks_stand_where_they_are_to_run_and_only_what_comes_before_must_pass() -> None:
    hooks = Hooks(after_create=["1"], before_run=["2"], after_run=["3"], timeout_s=7.0)
    first = ProjectWorld(spec(feature("a"), hooks=hooks))
    first.settle()
    later = begun("a", hooks=hooks)

    def placed(world: ProjectWorld) -> list[tuple[str, bool]]:
        steps = [
            *health_steps(world.state, world.state.works[0]),
            *close_steps(world.state, world.state.works[0]),
        ]
        hooked = [step for step in steps if step.label.startswith("hook ")]
        assert {(step.timeout_s, step.error_code) for step in hooked} == {(7.0, "HOOK_FAILED")}
        return [(step.label, step.must_pass) for step in hooked]

    around = [("hook before_run", True), ("hook after_run", False)]
    assert placed(first) == [("hook after_create", True), *around]
    assert placed(later) == around
    *_, last = close_steps(later.state, later.state.works[0])
    assert (last.name, last.arguments["head"]) == (WORKSPACE_SET_ASIDE, "HEAD"), (
        "the next session finds a clean tree"
    )

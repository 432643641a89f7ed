"""The core of projects: one session at a time, nothing committed without proof, a cap is never an end."""

from __future__ import annotations

import msgspec
import pytest

from libs.contracts.checks import CommandCheck, DiffCheck, ReviewCheck, Verdict, Verification
from libs.contracts.errors import IllegalTransition, InvalidState
from libs.contracts.featurelist import problems
from libs.contracts.project_events import (
    FeatureListRejected,
    FeatureStateChanged,
    ProjectBlocked,
    SessionEnded,
    SessionStarted,
)
from libs.contracts.projects import (
    Evidence,
    FeatureSpec,
    FeatureStatus,
    Handoff,
    Outcome,
    Phase,
    ProjectLimits,
    ProjectStatus,
)
from libs.contracts.run import RunStatus, StepResult
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.tasks import Limits
from libs.contracts.workspaces import WORKSPACE_COMMAND
from services.gateway import projectcommands as commands
from services.scheduler.projects.decide import Env, MakeRun, settle
from services.scheduler.projects.prompt import goal_of
from services.scheduler.projects.proofs import checks_of
from services.scheduler.projects.selection import backoff_s
from services.scheduler.projects.sessions import health_steps, run_of
from tests.fakes.project_world import CHECK, ProjectWorld, begun, feature, spec

F = FeatureStatus


def work_on(world: ProjectWorld) -> None:
    """Go through a whole session without trouble."""
    for _ in range(3):
        world.pass_run()
        world.settle()


def states(world: ProjectWorld) -> dict[str, str]:
    return {name: known.state.value for name, known in world.state.features.items()}


def stage(world: ProjectWorld) -> Stage | None:
    return world.state.works[0].stage


def ends(world: ProjectWorld) -> list[SessionEnded]:
    return [event for event in world.events if isinstance(event, SessionEnded)]


def test_a_project_goes_through_its_phases_to_the_end() -> None:
    world = begun("a", "b")
    work_on(world)
    work_on(world)
    assert states(world) == {"a": "committed", "b": "committed"}
    assert world.state.works[0].kind is SessionKind.FINAL
    assert world.state.phase is Phase.VERIFY
    world.pass_run()
    world.settle()
    assert (world.state.status, world.state.phase) == (ProjectStatus.COMPLETED, Phase.DONE)
    commits = [known.commit for known in world.state.features.values()]
    assert len(set(commits)) == 2
    assert None not in commits


def test_without_a_list_the_first_session_has_to_write_one_that_holds() -> None:
    world = ProjectWorld(spec())
    world.settle()
    world.pass_run()
    world.settle()
    assert stage(world) is Stage.AGENT
    world.pass_run(features=[feature("a"), feature("a")])
    world.settle()
    rejected = [event for event in world.events if isinstance(event, FeatureListRejected)]
    assert any("twice" in problem for problem in rejected[0].problems)
    assert any("at least 5" in problem for problem in rejected[0].problems)
    world.pass_run()
    world.settle()
    assert ends(world)[-1].outcome is Outcome.FAILED
    assert not world.state.features
    world.until_due()
    world.settle()
    for features_ in (None, [feature(name) for name in "abcde"], None):
        world.pass_run(None, **({"features": features_} if features_ else {}))
        world.settle()
    assert list(world.state.features) == list("abcde")
    assert world.state.phase is Phase.IMPLEMENT


def test_what_a_model_says_makes_no_feature_verified() -> None:
    world = begun("a")
    world.pass_run()
    world.settle()
    world.pass_run(verification=Verification(status=Verdict.UNVERIFIED, round=1))
    world.settle()
    assert states(world) == {"a": "in_progress"}
    world.pass_run()
    world.settle()
    assert states(world) == {"a": "pending"}
    assert ends(world)[-1].outcome is Outcome.FAILED


def test_a_feature_is_judged_by_all_checks_of_the_project_and_its_own() -> None:
    own = CommandCheck(argv=["grep", "basket", "shop.py"])
    world = ProjectWorld(spec(FeatureSpec(id="a", title="a basket", acceptance=[own])))
    world.settle()
    for _ in range(3):
        world.pass_run()
        world.settle()
    work = world.state.works[0]
    assert work.stage is Stage.AGENT
    assert run_of(world.state, work, Limits()).task.acceptance == [*world.state.spec.verify, own]
    assert world.state.spec.verify == [CHECK]


def test_what_a_session_changed_is_judged_with_it_and_never_again() -> None:
    touches, review = DiffCheck(must_touch=["shop.py"]), ReviewCheck(rubric="Is it readable?")
    listed = [FeatureSpec(id=name, title=name, acceptance=[review, touches, CHECK]) for name in "ab"]
    assert problems(listed) == []
    assert "proved again" in problems([msgspec.structs.replace(listed[0], acceptance=[touches, review])])[0]
    world = ProjectWorld(spec(*listed, verify=[CHECK, touches]))
    world.settle()
    work_on(world)
    asked = run_of(world.state, world.state.works[0], Limits()).task.acceptance
    assert touches in asked
    assert review in asked
    for _ in range(2):
        world.pass_run()
        world.settle()
    work = world.state.works[0]
    assert (work.feature_id, work.stage, work.reverify) == ("b", Stage.HEALTH, ["a"])
    assert checks_of(world.state, work) == [CHECK, CHECK]
    world.break_features("a")
    world.settle()
    assert states(world) == {"a": "pending", "b": "pending"}


def test_a_verified_feature_without_a_commit_goes_back() -> None:
    world = begun("a")
    for _ in range(2):
        world.pass_run()
        world.settle()
    assert states(world) == {"a": "verified"}
    assert world.state.phase is Phase.COMMIT
    world.fail_run("WORKSPACE_ERROR", "the disk is full")
    world.settle()
    assert states(world) == {"a": "pending"}
    assert world.state.phase is Phase.IMPLEMENT
    assert "disk is full" in world.state.features["a"].last_error


def test_what_broke_goes_first() -> None:
    world = begun("a", "b", "c")
    work_on(world)
    work_on(world)
    world.break_features("a")
    world.settle()
    assert states(world) == {"a": "pending", "b": "committed", "c": "pending"}
    assert ends(world)[-1].outcome is Outcome.REGRESSED
    world.until_due()
    world.settle()
    assert world.state.works[0].feature_id == "a"


def test_what_is_not_in_order_when_a_session_begins_is_told_to_its_agent() -> None:
    world = begun("a", "b", init=["sh", "init.sh"])
    work_on(world)
    work = world.state.works[0]
    assert (work.feature_id, work.stage, work.reverify) == ("b", Stage.HEALTH, ["a"])
    assert [step.label for step in health_steps(world.state, work)] == ["init", "prove what is committed"]
    assert checks_of(world.state, work) == [CHECK, CHECK], "the project's own, and that of the feature"
    red = StepResult(name=WORKSPACE_COMMAND, ok=False, output="no such table: goods")
    world.pass_run(steps=(red,))
    world.settle()
    assert stage(world) is Stage.AGENT
    assert "no such table: goods" in goal_of(world.state, world.state.works[0])


def test_what_an_agent_is_told_is_bounded_however_long_everything_is() -> None:
    many = [feature(f"f{number}") for number in range(300)]
    world = ProjectWorld(spec(*many, brief="b" * 1_000_000))
    world.settle()
    for _ in range(3):
        world.pass_run()
        world.settle()
    world.fail_run("STUCK", "e" * 1_000_000)
    world.settle()
    world.pass_run(steps=())
    world.settle()
    world.until_due()
    world.settle()
    world.pass_run(steps=(StepResult(name=WORKSPACE_COMMAND, ok=False, output="o" * 1_000_000),))
    world.settle()
    told = goal_of(world.state, world.state.works[0])
    assert "This is attempt 2." in told
    assert "For later sessions (299)" in told
    assert "characters more]" in told
    assert len(told) < 35_000


def test_priority_comes_before_the_order_of_the_list_and_dependencies_before_both() -> None:
    world = ProjectWorld(
        spec(feature("late"), feature("needs", after=("base",), priority=1), feature("base", priority=5))
    )
    world.settle()
    for _ in range(2):
        world.pass_run()
        world.settle()
    order: list[str | None] = []
    for _ in range(3):
        order.append(world.state.works[0].feature_id)
        work_on(world)
    assert order == ["base", "needs", "late"]


def test_a_session_that_was_cut_off_goes_on_after_a_second() -> None:
    world = begun("a")
    world.pass_run()
    world.settle()
    world.fail_run("MAX_ITERATIONS", "50 iterations are used up")
    world.settle()
    world.pass_run(steps=())
    world.settle()
    assert ends(world)[-1].outcome is Outcome.UNFINISHED
    assert world.timer is not None
    assert (world.timer.until - world.now).total_seconds() == 1.0
    world.advance(1.0)
    world.settle()
    started = [event for event in world.events if isinstance(event, SessionStarted)]
    assert started[-1].attempt == 2


@pytest.mark.parametrize("failures, wait_s", [(1, 10), (2, 20), (5, 160), (6, 300), (2000, 300)])
def test_failures_are_retried_ever_later_up_to_a_bound(failures: int, wait_s: float) -> None:
    assert backoff_s(failures) == wait_s


def test_the_attempts_of_a_feature_are_capped_and_blocked_is_not_done() -> None:
    world = begun("a", "b", max_attempts_per_feature=2)
    for _ in range(2):
        world.pass_run()
        world.settle()
        world.fail_run("STUCK", "the same call again and again")
        world.settle()
        world.pass_run(steps=())
        world.settle()
        world.until_due()
        world.settle()
    assert states(world) == {"a": "blocked", "b": "pending"}
    work_on(world)
    assert world.state.status is ProjectStatus.BLOCKED
    blocked = [event for event in world.events if isinstance(event, ProjectBlocked)]
    assert "a (" in blocked[-1].reason
    assert "STUCK" in blocked[-1].reason
    world.say(commands.retry(world.state, "a", "me"))
    world.settle()
    assert world.state.status is ProjectStatus.ACTIVE
    assert world.state.works[0].feature_id == "a"


@pytest.mark.parametrize(
    "limits, cap",
    [
        (ProjectLimits(max_sessions=2), "sessions"),
        (ProjectLimits(max_total_tokens=500), "tokens"),
        (ProjectLimits(max_cost_usd=0.05), "cost"),
        (ProjectLimits(wall_time_s=60), "wall_time"),
    ],
)
def test_a_cap_blocks_with_its_reason_and_a_higher_one_goes_on(limits: ProjectLimits, cap: str) -> None:
    world = begun("a", "b", limits=limits)
    world.advance(100)
    work_on(world)
    assert world.state.status is ProjectStatus.BLOCKED
    assert world.state.block is not None
    assert world.state.block.cap == cap
    assert "resume it with a higher limit" in world.state.block.reason
    assert states(world) == {"a": "committed", "b": "pending"}
    world.settle()
    assert world.live is None
    world.say(commands.resume(world.state, "me", ProjectLimits()))
    world.settle()
    assert world.state.works[0].feature_id == "b"


def test_a_pause_brings_the_run_to_a_rest_and_a_resume_wakes_it() -> None:
    world = begun("a")
    world.say(commands.pause(world.state, "me"))
    world.settle()
    assert world.live is not None
    assert world.live.status is RunStatus.PAUSED
    world.say(commands.resume(world.state, "me"))
    world.settle()
    assert world.live.status is RunStatus.RUNNING


@pytest.mark.parametrize("passed", range(6))
def test_a_cancelled_project_ends_whatever_it_is_at(passed: int) -> None:
    world = ProjectWorld(spec(feature("a"), feature("b")))
    world.settle()
    for _ in range(passed):
        world.pass_run()
        world.settle()
    world.say(commands.cancel(world.state, "me"))
    world.settle()
    assert world.state.status is ProjectStatus.CANCELLED
    assert world.live is None
    assert not set(states(world).values()) & {"in_progress", "verified"}


def test_two_schedulers_that_decide_at_once_ask_for_the_same_run() -> None:
    one, other = ProjectWorld(spec(feature("a"))), ProjectWorld(spec(feature("a")))
    one.decide()
    other.advance(3)
    other.decide()
    assert list(one.runs) == list(other.runs)


def test_a_run_that_was_asked_for_and_is_missing_is_made_again() -> None:
    world = begun("a")
    (run_id,) = [run.run_id for run in world.runs.values() if not run.ended]
    del world.runs[run_id]
    assert settle(world.state, Env(world.now, world.runs)).then.effects == (MakeRun(0),)


def test_decisions_of_an_earlier_session_outlive_a_handoff_that_forgets_them() -> None:
    world = begun("a", "b")
    for handoff in (Handoff(decisions=["use sqlite"]), Handoff(next=["b"])):
        world.pass_run()
        world.settle()
        world.pass_run(handoff=handoff)
        world.settle()
        world.pass_run()
        world.settle()
    assert world.state.handoff == Handoff(decisions=["use sqlite"], next=["b"])


def test_a_session_may_add_features_and_change_none() -> None:
    world = begun("a")
    world.pass_run()
    world.settle()
    world.pass_run(features=[feature("a", priority=1), feature("b")])
    world.settle()
    assert list(world.state.features) == ["a"]
    assert "was changed" in world.state.problems[0]
    world.pass_run()
    world.settle()
    world.until_due()


def test_a_feature_that_is_skipped_before_its_agent_begins_gets_none() -> None:
    world = begun("a", "b")
    world.say(commands.skip(world.state, "a", "me"))
    world.pass_run()
    world.settle()
    assert ends(world)[-1].outcome is Outcome.ABANDONED
    assert world.state.works[0].feature_id == "b"


def test_what_a_person_says_meanwhile_does_not_shift_whose_check_failed() -> None:
    world = begun("a", "b", "c")
    work_on(world)
    work_on(world)
    assert set(world.state.works[0].reverify) == {"a", "b"}
    world.say(commands.retry(world.state, world.state.works[0].reverify[0], "me"))
    world.break_features(world.state.works[0].reverify[1])
    world.settle()
    assert states(world)["a"] == states(world)["b"] == "pending"


def test_a_feature_that_is_worked_on_is_not_skipped() -> None:
    world = begun("a", "b")
    world.pass_run()
    world.settle()
    with pytest.raises(InvalidState):
        commands.skip(world.state, "a", "me")
    world.say(commands.skip(world.state, "b", "me"))
    assert states(world)["b"] == "skipped"


def test_no_evidence_no_commit() -> None:
    world = begun("a")
    changed = FeatureStateChanged(
        feature_id="a", before=F.PENDING, state=F.COMMITTED, evidence=Evidence(commit="c"), session=2
    )
    with pytest.raises(IllegalTransition, match="goes from pending to committed"):
        world.say([changed])

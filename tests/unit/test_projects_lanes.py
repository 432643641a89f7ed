"""Features beside each other: whatever comes first, each is committed once, one merge at a time, after what it depends on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts.checks import ReviewCheck
from libs.contracts.project import ProjectState
from libs.contracts.project_events import (
    FeatureStateChanged,
    SessionEnded,
    SessionRunRequested,
    SessionStarted,
)
from libs.contracts.projects import LANES_MAX, FeatureStatus, Handoff, Hooks, Outcome, Phase, ProjectStatus
from libs.contracts.projectviews import project_view
from libs.contracts.run import StepResult
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.tools import VERIFY
from libs.contracts.workspaces import (
    WORKSPACE_BEGIN,
    WORKSPACE_COMMAND,
    WORKSPACE_COMMIT,
    WORKSPACE_MERGE,
    WORKSPACE_RESTORE,
)
from services.gateway import projectcommands as commands
from services.scheduler.projects.sessions import run_of
from tests.fakes.project_world import CHECK, ProjectWorld, begun, feature, spec

F = FeatureStatus


def lanes(*features_: str, **more: object) -> ProjectWorld:
    return begun(*features_, concurrency=2, **more)


def stages(world: ProjectWorld) -> dict[int, Stage | None]:
    return {lane: work.stage for lane, work in world.state.works.items()}


def bring(world: ProjectWorld, lane: int, stage: Stage | None) -> None:
    """Pass the runs of the lane until this stage goes on (`None`: until the next one waits for its turn)."""
    while world.state.works[lane].stage is not stage:
        world.pass_run(lane)
        world.settle()


def committed(world: ProjectWorld) -> list[str]:
    """The features in the order of their commits."""
    changes = [event for event in world.events if isinstance(event, FeatureStateChanged)]
    return [change.feature_id for change in changes if change.state is F.COMMITTED]


def task(world: ProjectWorld, lane: int) -> TaskSpec:
    state: ProjectState = world.state
    return run_of(state, state.works[lane], Limits()).task


def steps(world: ProjectWorld, lane: int) -> list[str]:
    return [step.name for step in task(world, lane).errands]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 1), max_size=40), st.permutations([1, 2, 3]))
def test_any_interleaving_gives_one_commit_a_feature_and_what_it_depends_on_first(
    order: list[int], priorities: list[int]
) -> None:
    a, b, c = priorities
    listed = feature("a", priority=a), feature("b", priority=b), feature("c", after=("a",), priority=c)
    world = ProjectWorld(spec(*listed, concurrency=2))
    world.settle()
    for lane in [*order, *[0, 1] * 20]:
        if world.live_in(lane) is not None:
            world.pass_run(lane)
            world.settle()
    assert world.state.status is ProjectStatus.COMPLETED
    assert sorted(committed(world)) == ["a", "b", "c"]
    assert committed(world).index("a") < committed(world).index("c")
    begun_at = {event.feature_id: event for event in world.events if isinstance(event, SessionStarted)}
    commits = {known.id: known.commit for known in world.state.features.values()}
    assert begun_at["c"].base is not None
    assert commits["a"] is not None
    assert begun_at["c"].base >= commits["a"], "it begins on top of what it depends on"
    assert begun_at["a" if a < b else "b"].session < begun_at["b" if a < b else "a"].session
    assert world.commits == 1 + 2 * 3, "the baseline; each feature in its lane and on the branch"


def test_of_two_that_are_ready_the_one_that_began_first_is_merged_first() -> None:
    world = lanes("a", "b", "c")
    bring(world, 1, Stage.CLOSE)
    bring(world, 0, Stage.CLOSE)
    # Both end within one look.
    world.pass_run(1)
    world.pass_run(0)
    world.settle()
    assert stages(world) == {0: Stage.MERGE, 1: None}
    assert {known.id: known.state for known in world.state.features.values()}["b"] is F.VERIFIED
    assert world.state.phase is Phase.COMMIT
    told = {active.feature_id: active.activity for active in project_view(world.state, {}, world.now).active}
    assert told["b"] == "waits for its turn to be merged"
    assert steps(world, 0) == [WORKSPACE_MERGE, VERIFY, WORKSPACE_COMMIT], (
        "what git ignores stayed in the lane"
    )
    assert task(world, 0).acceptance == [
        *world.state.spec.verify,
        *world.state.features["a"].spec.acceptance,
    ]
    world.pass_run(0)
    world.settle()
    assert stages(world) == {0: Stage.BEGIN, 1: Stage.MERGE}, "the lane goes on with the next one meanwhile"
    assert world.state.works[0].feature_id == "c"
    assert steps(world, 1) == [WORKSPACE_MERGE, VERIFY, WORKSPACE_COMMIT], "the branch has moved: together"
    own = [*world.state.spec.verify, *world.state.features["b"].spec.acceptance]
    assert task(world, 1).acceptance == [*own, *world.state.features["a"].spec.acceptance]
    world.pass_run(1)
    world.settle()
    assert committed(world) == ["a", "b"]
    assert world.state.phase is Phase.IMPLEMENT


def test_a_session_that_waits_for_a_person_holds_up_nobody() -> None:
    world = lanes("a", "b")
    bring(world, 0, Stage.AGENT)
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert committed(world) == ["b"]


def test_each_lane_has_a_workspace_of_its_own_and_merges_happen_at_home() -> None:
    hooks = Hooks(after_create=["make", "tools"])
    world = ProjectWorld(spec(feature("a"), feature("b"), feature("c"), concurrency=2, hooks=hooks))
    world.settle()
    home = world.state.workspace
    assert task(world, 0).workspace == home
    for _ in range(2):
        world.pass_run(0)
        world.settle()
    assert [work.base for work in world.state.works.values()] == [world.state.head] * 2
    own = [task(world, lane).workspace for lane in (0, 1)]
    assert len({home, *own}) == 3
    assert steps(world, 0) == [WORKSPACE_BEGIN, "workspace_command"]
    bring(world, 0, Stage.AGENT)
    assert task(world, 0).workspace == own[0]
    assert task(world, 0).baseline == "b" * 40, "what the lane began from, not the project's own"
    bring(world, 0, Stage.MERGE)
    assert task(world, 0).workspace == home
    assert task(world, 0).baseline == world.state.baseline
    world.pass_run(0)
    world.settle()
    assert world.state.works[0].feature_id == "c"
    assert steps(world, 0) == [WORKSPACE_BEGIN], "its workspace is there already"


@pytest.mark.parametrize("red", ["conflict", "checks"])
def test_what_does_not_go_together_goes_back_with_the_evidence_and_its_work(red: str) -> None:
    world = lanes("a", "b")
    bring(world, 0, Stage.CLOSE)
    bring(world, 1, Stage.CLOSE)
    bring(world, 0, Stage.MERGE)
    world.pass_run(0)
    world.settle()
    head = world.state.head
    bring(world, 1, Stage.MERGE)
    if red == "conflict":
        told = "merge failed: these files contradict each other: shop.py"
        step = StepResult(name=WORKSPACE_MERGE, ok=False, output=told)
        world.fail_run("MERGE_CONFLICT", told, lane=1, steps=(step,))
    else:
        world.fail_run(message="a check failed", lane=1)
    world.settle()
    assert committed(world) == ["a"]
    assert world.state.head == head
    (*_, ended) = [event for event in world.events if isinstance(event, SessionEnded)]
    assert ended.outcome is Outcome.UNFINISHED
    feature_b = world.state.features["b"]
    assert (feature_b.state, feature_b.failures) == (F.PENDING, 0), "nothing speaks against its work"
    assert ("shop.py" if red == "conflict" else "VERIFICATION_FAILED") in feature_b.last_error
    assert not world.state.works, "it is this lane that goes on with it, after a second"
    world.until_due()
    world.settle()
    assert world.state.works[1].base == head
    bring(world, 1, Stage.HEALTH)
    (restored,) = [step for step in task(world, 1).errands if step.name == WORKSPACE_RESTORE]
    assert restored.must_pass, "what this session leaves replaces it in the store"
    told = "these files hold both versions between conflict markers: basket.py"
    step = StepResult(name=WORKSPACE_RESTORE, ok=True, output=told, metadata={"problem": True})
    world.pass_run(1, steps=(step,))
    world.settle()
    assert told in task(world, 1).goal
    assert "go together" in task(world, 1).goal
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert committed(world) == ["a", "b"]
    assert world.state.works[0].kind is SessionKind.FINAL
    assert steps(world, 0)[0] == WORKSPACE_BEGIN, "what a red merge left at home is not what is proved"


def test_a_review_is_made_of_the_sessions_own_change_and_not_of_the_merge() -> None:
    review = ReviewCheck(rubric="Is it readable?")
    world = begun("a", concurrency=2, verify=[CHECK, review])
    bring(world, 0, Stage.AGENT)
    assert review in task(world, 0).acceptance
    bring(world, 0, Stage.MERGE)
    assert CHECK in task(world, 0).acceptance
    assert review not in task(world, 0).acceptance


def test_what_holds_only_in_its_lane_is_not_committed() -> None:
    world = begun("a", concurrency=2, init=["make", "tools"])
    bring(world, 0, Stage.MERGE)
    assert steps(world, 0) == [WORKSPACE_MERGE, WORKSPACE_COMMAND, VERIFY, WORKSPACE_COMMIT]
    world.fail_run(message="a check failed", lane=0)
    world.settle()
    assert not committed(world)
    known = world.state.features["a"]
    assert (known.state, known.failures) == (F.PENDING, 0)
    assert "files of its lane that git ignores" in known.last_error
    assert known.side_ref is not None


def test_the_last_attempt_begins_without_the_work_before_rather_than_not_at_all() -> None:
    world = begun("a", concurrency=2, max_attempts_per_feature=3)
    bring(world, 0, Stage.MERGE)
    world.fail_run(message="a check failed", lane=0)
    must_pass: list[bool] = []
    for _ in range(3):
        world.settle()
        world.until_due()
        world.settle()
        bring(world, 0, Stage.HEALTH)
        must_pass += [step.must_pass for step in task(world, 0).errands if step.name == WORKSPACE_RESTORE]
        world.fail_run("WORKSPACE_ERROR", "the store is away", lane=0)
    assert must_pass == [True, True, False]


def test_what_was_mended_since_a_session_began_is_no_regression_of_it() -> None:
    world = lanes("a", "b", "c")
    bring(world, 0, Stage.MERGE)
    world.pass_run(0)
    world.settle()
    bring(world, 0, Stage.HEALTH)
    work = world.state.works[0]
    assert (work.feature_id, work.reverify) == ("c", ["a"])
    world.say(commands.retry(world.state, "a", "me"))
    world.advance(1)
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert world.state.works[1].feature_id == "a"
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert committed(world) == ["a", "b", "a"]
    world.break_features("a", lane=0)
    world.settle()
    assert world.state.features["a"].state is F.COMMITTED
    assert world.state.works[0].stage is Stage.AGENT


def test_a_failure_is_waited_out_by_all_lanes_and_they_do_other_things() -> None:
    world = lanes("a", "b", "c")
    bring(world, 0, Stage.AGENT)
    world.fail_run("STUCK", lane=0)
    world.settle()
    world.pass_run(0)
    world.settle()
    assert 0 not in world.state.works
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert world.state.works[1].feature_id == "c", "a waits for its lane"
    bring(world, 1, Stage.MERGE)
    world.pass_run(1)
    world.settle()
    assert not world.state.works
    assert world.state.status is ProjectStatus.ACTIVE, "nothing is stuck, something waits"
    world.until_due()
    world.settle()
    assert world.state.works[0].feature_id == "a"


def test_a_project_that_is_cancelled_leaves_nothing_going_in_any_lane() -> None:
    world = lanes("a", "b")
    bring(world, 0, Stage.CLOSE)
    bring(world, 1, Stage.CLOSE)
    world.pass_run(0)
    world.pass_run(1)
    world.settle()
    world.say(commands.cancel(world.state, "me"))
    world.settle()
    assert {work.kind for work in world.state.works.values()} == {SessionKind.REMOVE}
    while world.live is not None:
        world.pass_run()
        world.settle()
    assert world.state.status is ProjectStatus.CANCELLED
    assert not committed(world)
    asked = [event.run_id for event in world.events if isinstance(event, SessionRunRequested)]
    assert len(asked) == len(set(asked)) == len(world.runs)
    assert all(run.ended for run in world.runs.values())


def test_all_lanes_at_once_are_decided_on_in_one_look() -> None:
    names = [f"f{number}" for number in range(40)]
    world = ProjectWorld(spec(*(feature(name) for name in names), concurrency=LANES_MAX))
    world.settle()
    most = 0
    while world.state.status is ProjectStatus.ACTIVE:
        going = [lane for lane in world.state.works if world.live_in(lane) is not None]
        most = max(most, len(going))
        for lane in going:
            world.pass_run(lane)
        world.settle()
    assert most == LANES_MAX
    assert sorted(committed(world)) == sorted(names)


def test_sessions_beside_each_other_leave_what_both_of_them_did_and_one_behind_them_replaces_it() -> None:
    world = lanes("a", "b", "c", "d")
    for lane, name in ((0, "a"), (1, "b")):
        world.advance(1)
        bring(world, lane, Stage.AGENT)
        world.pass_run(lane, handoff=Handoff(done=[f"{name} is there"], next=["c"], decisions=[name]))
        world.settle()
        bring(world, lane, Stage.MERGE)
        world.pass_run(lane)
        world.settle()
    assert world.state.handoff == Handoff(done=["a is there", "b is there"], next=["c"], decisions=["a", "b"])
    world.advance(1)
    (lane,) = [lane for lane, work in world.state.works.items() if work.feature_id == "d"]
    bring(world, lane, Stage.AGENT)
    world.pass_run(lane, handoff=Handoff(done=["d is there"]))
    world.settle()
    bring(world, lane, Stage.MERGE)
    world.pass_run(lane)
    world.settle()
    assert world.state.handoff == Handoff(done=["d is there"], decisions=["a", "b"])

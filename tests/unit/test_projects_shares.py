"""What is left of a project's caps is shared by the sessions that go on at once: together they stay within."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from libs.contracts import project_events as e
from libs.contracts.envelope import Event
from libs.contracts.evolve_project import evolve_project
from libs.contracts.items import ItemMap
from libs.contracts.project import ProjectState
from libs.contracts.projects import FeatureStatus, ProjectLimits, ProjectSpec, ProjectStatus
from libs.contracts.run import RunStatus
from libs.contracts.sessions import SessionKind, Stage
from libs.contracts.tasks import LimitOverrides, Limits
from libs.contracts.values import RunError, Share, Usage
from services.gateway import projectcommands as commands
from services.scheduler.projects.decide import foresee, settle
from services.scheduler.projects.effects import Env, Wait
from services.scheduler.projects.facts import RunSeen
from services.scheduler.projects.sessions import run_of
from tests.fakes.project_world import ProjectWorld, begun, feature, spec

F = FeatureStatus
FREE = Usage(requests=0)
CUT = RunError(error_code="BUDGET_EXCEEDED", message="no")


def used(tokens: int, cost_usd: float | None = 0.0) -> Usage:
    return Usage(requests=1, output_tokens=tokens, cost_usd=cost_usd)


def lanes(*features_: str, cap: int, concurrency: int = 3, **more: object) -> ProjectWorld:
    """A project whose baseline is there, for nothing."""
    world = ProjectWorld(
        spec(
            *(feature(name) for name in features_),
            concurrency=concurrency,
            limits=ProjectLimits(max_total_tokens=cap),
            **more,
        )
    )
    for _ in range(2):
        world.settle()
        world.pass_run(usage=FREE)
    world.settle()
    return world


def to_agent(world: ProjectWorld, lane: int) -> None:
    """Pass the errands before the lane's agent; no errand asks a model."""
    while world.state.works[lane].stage is not Stage.AGENT:
        world.pass_run(lane, usage=FREE)
        world.settle()


def tokens(world: ProjectWorld) -> dict[int, int | None]:
    """What the run of each agent that goes on may use, as it is made."""
    works = {lane: work for lane, work in world.state.works.items() if work.stage is Stage.AGENT}
    return {lane: run_of(world.state, work, Limits()).limits.max_total_tokens for lane, work in works.items()}


def test_what_is_left_is_shared_by_those_that_begin_at_once() -> None:
    world = lanes("a", "b", "c", "d", cap=900)
    for lane in range(3):
        to_agent(world, lane)
    assert tokens(world) == {0: 300, 1: 300, 2: 300}


def test_what_one_did_not_use_is_given_to_the_next() -> None:
    world = lanes("a", "b", "c", "d", cap=900)
    to_agent(world, 0)
    world.pass_run(0, usage=used(100))
    world.settle()
    assert world.state.works[0].stage is Stage.CLOSE
    for _ in range(2):
        world.pass_run(0, usage=FREE)
        world.settle()
    to_agent(world, 0)
    assert world.state.works[0].feature_id == "d"
    assert tokens(world)[0] == 900 - 100 - 2 * 300


def test_a_feature_that_goes_on_alone_gets_all_that_is_left() -> None:
    listed = feature("a"), feature("b", after=("a",)), feature("c", after=("b",)), feature("d", after=("x",))
    limits = ProjectLimits(max_total_tokens=800)
    world = ProjectWorld(spec(*listed, feature("x"), concurrency=16, limits=limits))
    for _ in range(2):
        world.settle()
        world.pass_run(usage=FREE)
    world.say(commands.skip(world.state, "x", "me"))
    world.settle()
    to_agent(world, 0)
    assert tokens(world) == {0: 800}, "the others wait for it, or for a person"


def test_the_limit_of_each_run_bounds_what_it_keeps_from_others() -> None:
    limits = ProjectLimits(max_total_tokens=1_000, session=LimitOverrides(max_total_tokens=100))
    world = begun("a", "b", "c", concurrency=3, limits=limits)
    shares = [work.share for work in world.state.works.values()]
    assert [share.tokens if share is not None else None for share in shares] == [100, 100, 100]


def test_nobody_begins_beside_others_with_less_than_sessions_use() -> None:
    world = lanes("a", "b", "c", "d", cap=900)
    for lane in range(3):
        to_agent(world, lane)
    world.pass_run(0, usage=used(280))
    for _ in range(3):
        world.settle()
        if world.live_in(0) is not None:
            world.pass_run(0, usage=FREE)
    assert world.state.features["a"].state is F.COMMITTED
    assert sorted(world.state.works) == [1, 2], "20 tokens are left to the next one, and sessions use 140"
    world.pass_run(1, usage=used(100))
    world.settle()
    work = world.state.works[0]
    assert (work.feature_id, work.share) == ("d", Share(tokens=220))


def test_with_less_than_sessions_use_one_waits_for_the_others_and_then_gets_all() -> None:
    world = lanes("a", "b", "c", cap=1_000, concurrency=2)
    for lane, amount in ((0, 480), (1, 450)):
        to_agent(world, lane)
        world.pass_run(lane, usage=used(amount))
    world.settle()
    for _ in range(4):
        for lane in (0, 1):
            work = world.state.works.get(lane)
            if work is not None and work.feature_id != "c" and world.live_in(lane) is not None:
                world.pass_run(lane, usage=FREE)
        world.settle()
    (work,) = world.state.works.values()
    assert (work.feature_id, work.share) == ("c", Share(tokens=70))
    world.say(commands.retry(world.state, "a", "me"))
    world.settle()
    assert len(world.state.works) == 1, "nothing is left beside it"
    assert world.state.status is ProjectStatus.ACTIVE
    to_agent(world, work.lane)
    world.fail_run("BUDGET_EXCEEDED", lane=work.lane)
    for _ in range(3):
        world.settle()
        if world.live is not None:
            world.pass_run(usage=FREE)
        world.until_due()
    assert world.state.block is not None
    assert world.state.block.cap == "tokens"


def test_a_session_of_before_there_were_shares_holds_all_that_is_left() -> None:
    world = lanes("a", "b", "c", cap=900)
    old = {lane: msgspec.structs.replace(work, share=None) for lane, work in world.state.works.items()}
    world.state = msgspec.structs.replace(world.state, works={0: old[0]})
    world.runs = {run_id: run for run_id, run in world.runs.items() if run_id == old[0].run_id or run.ended}
    world.settle()
    assert list(world.state.works) == [0]
    to_agent(world, 0)
    assert tokens(world) == {0: 900}
    world.pass_run(0, usage=used(100))
    world.settle()
    assert sorted(world.state.works) == [0, 1, 2]


# --- Whatever happens -------------------------------------------------------------------------------------------


class _Ledger:
    """What may be used at most: by those that have ended, and those that go on. A run may use more than it was given by its
    last turn, which nobody can foresee."""

    def __init__(self) -> None:
        self.over_tokens, self.over_usd = 0, 0.0

    def use(self, share: Share | None, part: int, turn: int, price: float) -> Usage:
        """The usage of a run that had this share, of which it used so many per cent and a last turn beyond."""
        assert share is not None
        assert share.tokens is not None
        amount = share.tokens * part // 100
        cost_usd = amount * price
        if share.cost_usd is not None:
            cost_usd = min(cost_usd, share.cost_usd)
        if part == 100:
            amount, cost_usd = amount + turn, cost_usd + turn * price
            self.over_tokens += turn
            self.over_usd += turn * price
        return used(amount, cost_usd)

    def holds(self, state: ProjectState, going: list[Share | None]) -> None:
        shares = [share or Share() for share in going]
        cap, cost = state.limits.max_total_tokens, state.limits.max_cost_usd
        assert cap is not None
        given_tokens = sum(share.tokens or 0 for share in shares)
        assert all(share.tokens is not None and share.tokens >= 1 for share in shares)
        assert state.usage.total_tokens + given_tokens <= cap + self.over_tokens
        if cost is not None:
            assert state.usage.cost_usd is not None
            given_usd = sum(share.cost_usd or 0.0 for share in shares)
            assert all(share.cost_usd for share in shares)
            assert state.usage.cost_usd + given_usd <= cost + self.over_usd + 1e-9


def asking(state: ProjectState) -> list[Share | None]:
    asks = SessionKind.INITIALIZE, SessionKind.FEATURE
    return [work.share for work in state.works.values() if work.kind in asks and Stage.AGENT not in work.ends]


CAPS = st.builds(
    ProjectLimits,
    max_total_tokens=st.integers(1, 5_000),
    max_cost_usd=st.none() | st.floats(0.001, 5.0),
    session=st.builds(LimitOverrides, max_total_tokens=st.none() | st.integers(1, 1_000)),
)
# Which lane or item, how much of its share it uses, how much its last turn is, whether it reaches what it was for.
ENDS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 30, 100]), st.integers(0, 200), st.booleans()),
    max_size=50,
)


@settings(max_examples=150, deadline=None)
@given(CAPS, st.integers(1, 4), st.lists(st.booleans(), min_size=1, max_size=5), ENDS)
def test_features_beside_each_other_never_get_more_than_there_is_and_come_to_an_end(
    limits: ProjectLimits, concurrency: int, chained: list[bool], ends: list[tuple[int, int, int, bool]]
) -> None:
    names = "abcde"[: len(chained)]
    listed = [
        feature(name, after=(names[place - 1],) if place and chained[place] else ())
        for place, name in enumerate(names)
    ]
    world, ledger = ProjectWorld(spec(*listed, limits=limits, concurrency=concurrency)), _Ledger()
    world.settle()
    for lane, part, turn, good in [*ends, *[(lane, 30, 0, True) for lane in range(4)] * 60]:
        run, work = world.live_in(lane), world.state.works.get(lane)
        if run is None and world.live is None:
            world.until_due()
        elif run is not None and work is not None and work.stage is Stage.AGENT:
            usage = ledger.use(work.share, part, turn, 0.001)
            if good:
                world.pass_run(lane, usage=usage)
            else:
                error = RunError(error_code="BUDGET_EXCEEDED", message="no")
                ended = run._replace(status=RunStatus.FAILED, error=error, usage=usage)
                world.runs[run.run_id] = ended
        elif run is not None:
            world.pass_run(lane, usage=FREE)
        world.settle()
        ledger.holds(world.state, asking(world.state))
        if world.state.status is ProjectStatus.ACTIVE:
            assert world.state.works or world.timer is not None, "with something left, somebody goes on"
    assert world.state.status is not ProjectStatus.ACTIVE
    if world.state.status is ProjectStatus.BLOCKED:
        assert world.state.block is not None
        assert world.state.block.reason
        if world.state.block.cap == "tokens":
            assert world.state.usage.total_tokens >= (limits.max_total_tokens or 0)


@settings(max_examples=150, deadline=None)
@given(CAPS, st.integers(1, 8), st.integers(1, 12), ENDS)
def test_items_at_a_time_never_get_more_than_there_is_and_come_to_an_end(
    limits: ProjectLimits, concurrency: int, count: int, ends: list[tuple[int, int, int, bool]]
) -> None:
    mapped = ItemMap(items=[f"paper {number}" for number in range(count)], goal="Read {item}.")
    shape = ProjectSpec(name="n", brief="b", map=mapped, concurrency=concurrency, limits=limits)
    created = e.ProjectCreated(tenant="t", spec=shape, workspace="w", body_hash="0", by="me")
    now: datetime = datetime(2026, 11, 30, tzinfo=UTC)
    project = "project_0_" + "0" * 26
    state = evolve_project(None, Event(1, project, "2026-11-30T00:00:00.000Z", created))
    ledger, runs = _Ledger(), dict[str, RunSeen]()
    for place, part, turn, good in [*ends, *[(0, 30, 0, True)] * 60]:
        settled = settle(state, Env(now, runs))
        state, runs = foresee(state, settled.events, now), {}
        assert state.items is not None
        going = list(state.items.going.values())
        ledger.holds(state, [work.share for work in going])
        if state.status is not ProjectStatus.ACTIVE:
            break
        waits = [effect.until for effect in settled.then.effects if isinstance(effect, Wait)]
        assert going or waits, "with something left, somebody goes on"
        assert all(until > now for until in waits), "nobody is woken for what waits for others"
        now += timedelta(seconds=1)
        if not going:
            now = max(now, *waits)
        for work in going:
            runs[work.run_id] = RunSeen(work.run_id, RunStatus.RUNNING)
        if going:
            work = going[place % len(going)]
            status, error = (RunStatus.COMPLETED, None) if good else (RunStatus.FAILED, CUT)
            usage = ledger.use(work.share, part, turn, 0.001)
            runs[work.run_id] = RunSeen(work.run_id, status, usage=usage, error=error)
    assert state.status is not ProjectStatus.ACTIVE


@pytest.mark.parametrize("cost_usd, share", [(0.0, 1.0), (None, None)])
def test_a_cost_that_nobody_knows_is_not_shared(cost_usd: float | None, share: float | None) -> None:
    world = ProjectWorld(
        spec(feature("a"), feature("b"), concurrency=2, limits=ProjectLimits(max_cost_usd=2.0))
    )
    for _ in range(2):
        world.settle()
        world.pass_run(usage=used(1, cost_usd))
    world.settle()
    given_usd = [work.share.cost_usd for work in world.state.works.values() if work.share is not None]
    assert given_usd == [share, share]

"""A world of runs for the core of projects: what it asks for is made, and a test says how it ends.

Invariant: it notices what must never happen: a run that is made twice, two runs at once in one workspace, a run that was
made before it was asked for in the log.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from libs.contracts.checks import CheckResult, CheckStatus, CommandCheck, Verdict, Verification
from libs.contracts.envelope import Event
from libs.contracts.evolve_project import evolve_project
from libs.contracts.project import ProjectState
from libs.contracts.project_events import ProjectCreated, ProjectEvent
from libs.contracts.projects import FeatureSpec, ProjectSpec
from libs.contracts.run import RunStatus, StepResult
from libs.contracts.sessions import Stage
from libs.contracts.values import RunError, Usage
from libs.contracts.workspaces import WORKSPACE_BEGIN, WORKSPACE_COMMIT, WORKSPACE_LEAVE
from services.scheduler.projects.decide import foresee, settle
from services.scheduler.projects.effects import (
    Env,
    MakeItem,
    MakeRun,
    PauseRun,
    ResumeRun,
    StopRun,
    Wait,
    Watch,
)
from services.scheduler.projects.facts import RunSeen
from services.scheduler.projects.lanes import workspace_for
from services.scheduler.projects.proofs import checks_of, proofs

PROJECT = "project_0_" + "0" * 26
BEGIN = datetime(2026, 11, 30, tzinfo=UTC)
CHECK = CommandCheck(argv=["true"])


def feature(identifier: str, *, after: tuple[str, ...] = (), priority: int = 100) -> FeatureSpec:
    return FeatureSpec(
        id=identifier, title=f"do {identifier}", acceptance=[CHECK], depends_on=list(after), priority=priority
    )


class ProjectWorld:
    """One project and its runs. `decide` does what a scheduler does; `end` is the world's answer."""

    def __init__(self, spec: ProjectSpec) -> None:
        self.now = BEGIN
        created = ProjectCreated(tenant="local", spec=spec, workspace=PROJECT, body_hash="0", by="local")
        self.state: ProjectState = evolve_project(
            None, Event(1, PROJECT, "2026-11-30T00:00:00.000Z", created)
        )
        self.events: list[ProjectEvent] = [created]
        self.runs: dict[str, RunSeen] = {}
        self.timer: Wait | None = None
        self.commits = 0

    @property
    def live(self) -> RunSeen | None:
        return next((run for run in self.runs.values() if not run.ended), None)

    def live_in(self, lane: int) -> RunSeen | None:
        """The run that goes on in a lane."""
        work = self.state.works.get(lane)
        run = self.runs.get(work.run_id or "") if work is not None else None
        return run if run is not None and not run.ended else None

    def _workspaces(self) -> list[str]:
        """The workspaces in which a run goes on."""
        works = [work for work in self.state.works.values() if self.live_in(work.lane) is not None]
        return [workspace_for(self.state, work) for work in works]

    def say(self, events: list[ProjectEvent]) -> None:
        self.state = foresee(self.state, events, self.now)
        self.events += events

    def decide(self) -> None:
        """Settle, record, and make true what was decided; asked again, nothing more is to be said."""
        settled = settle(self.state, Env(self.now, self.runs))
        self.say(settled.events)
        assert self.state == settled.state
        self.timer = None
        for effect in settled.then.effects:
            match effect:
                case MakeRun(lane):
                    run_id = self.state.works[lane].run_id
                    assert run_id is not None
                    assert run_id not in self.runs, "a run is made once"
                    workspace = workspace_for(self.state, self.state.works[lane])
                    assert workspace not in self._workspaces(), "one run at a time in a workspace"
                    self.runs[run_id] = RunSeen(run_id, RunStatus.RUNNING)
                case StopRun(run_id, by):
                    self._set(run_id, status=RunStatus.CANCELLED, cancelled_by=by)
                case PauseRun(run_id, _):
                    self._set(run_id, status=RunStatus.PAUSED)
                case ResumeRun(run_id, _):
                    self._set(run_id, status=RunStatus.RUNNING)
                case Watch():
                    pass
                case MakeItem():
                    raise AssertionError("a project of features has no items")
                case Wait():
                    self.timer = min(effect, self.timer or effect, key=lambda wait: wait.until)

    def settle(self) -> None:
        """Decide until the world stands still."""
        for _ in range(10):
            before = (len(self.events), dict(self.runs))
            self.decide()
            if before == (len(self.events), self.runs):
                return
        raise AssertionError("the decisions do not come to rest")

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def until_due(self) -> None:
        if self.timer is not None:
            self.now = max(self.now, self.timer.until)

    def pass_run(self, lane: int | None = None, **more: Any) -> None:
        """The run that goes on (in the lane, if one is named) does what it shall."""
        run = self._open(lane)
        work = next(work for work in self.state.works.values() if work.run_id == run.run_id)
        match work.stage:
            case Stage.BEGIN:
                begun: dict[str, object] = {"head": work.base, "baseline": "b" * 40}
                more.setdefault("steps", (StepResult(name=WORKSPACE_BEGIN, ok=True, metadata=begun),))
            case Stage.HEALTH:
                results = [_result(failed=False) for _ in checks_of(self.state, work)]
                more.setdefault("verification", _verification(results))
            case Stage.AGENT:
                more.setdefault("verification", _verification([_result(failed=False)]))
            case Stage.LEAVE:
                step = StepResult(name=WORKSPACE_LEAVE, ok=True, metadata={"offered": True})
                more.setdefault("steps", (step,))
            case Stage.GATHER:
                pass
            case _:
                if work.stage is Stage.MERGE:
                    more.setdefault("verification", _verification([_result(failed=False)]))
                self.commits += 1
                commit = f"{self.commits:040x}"
                done: dict[str, object] = {"commit": commit, "head": commit, "baseline": commit}
                step = StepResult(name=WORKSPACE_COMMIT, ok=True, metadata=done)
                more.setdefault("steps", (step,))
        more.setdefault("usage", Usage(requests=1, input_tokens=90, output_tokens=10, cost_usd=0.01))
        self._set(run.run_id, status=RunStatus.COMPLETED, **more)

    def fail_run(
        self,
        code: str = "VERIFICATION_FAILED",
        message: str = "no",
        lane: int | None = None,
        **more: Any,
    ) -> None:
        run = self._open(lane)
        self._set(
            run.run_id,
            status=RunStatus.FAILED,
            error=RunError(error_code=code, message=message),
            usage=Usage(requests=1, input_tokens=90, output_tokens=10, cost_usd=0.01),
            **more,
        )

    def break_features(self, *broken: str, lane: int | None = None) -> None:
        """The errand finds that the acceptance of these features fails."""
        run = self._open(lane)
        work = next(work for work in self.state.works.values() if work.run_id == run.run_id)
        places = proofs(self.state, work)
        results = [_result(failed=False) for _ in checks_of(self.state, work)]
        for identifier in broken:
            for index in range(places[identifier].start, places[identifier].stop):
                results[index] = _result(failed=True)
        self.fail_run(verification=_verification(results), lane=lane)

    def _open(self, lane: int | None) -> RunSeen:
        run = self.live if lane is None else self.live_in(lane)
        assert run is not None
        return run

    def _set(self, run_id: str, **changes: Any) -> None:
        if not self.runs[run_id].ended:
            self.runs[run_id] = self.runs[run_id]._replace(**changes)


def _result(*, failed: bool) -> CheckResult:
    status = CheckStatus.FAILED if failed else CheckStatus.PASSED
    return CheckResult(kind="command", subject="true", status=status, reason="exit code 1" if failed else "")


def _verification(results: list[CheckResult]) -> Verification:
    statuses = {result.status for result in results}
    verdict = Verdict.UNVERIFIED
    if CheckStatus.PASSED in statuses:
        verdict = Verdict.PASSED
    if CheckStatus.FAILED in statuses:
        verdict = Verdict.FAILED
    return Verification(status=verdict, round=1, checks=results, commit="a" * 40)


def spec(*features: FeatureSpec, **more: Any) -> ProjectSpec:
    given = ProjectSpec(name="shop", brief="build a shop", features=list(features), verify=[CHECK])
    return msgspec.structs.replace(given, **more)


def begun(*features_: str, **more: object) -> ProjectWorld:
    """A project with these features whose baseline is committed; the errand of its first session goes on."""
    world = ProjectWorld(spec(*(feature(name) for name in features_), **more))
    world.settle()
    world.pass_run()  # the look at the environment
    world.settle()
    world.pass_run()  # the baseline
    world.settle()
    return world

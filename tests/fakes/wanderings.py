"""Whole runs at random: the real decision, and a world that does anything it may.

Invariant: each state is a fold of a log that an owner could have written; a pick chooses what the world does next, so
the same picks give the same run.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import assert_never

from libs.contracts import events as e
from libs.contracts.checks import Verdict
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import ContextStrategy, Limits, TaskSpec
from libs.contracts.tools import Semantics, ToolSpec
from libs.contracts.values import ModelToolCall, Offered, Usage
from services.executor.decision.activity import (
    Activity,
    Attach,
    CallModel,
    CallTool,
    Offer,
    ReadResult,
    Save,
    SpawnChild,
    Summarise,
    Verify,
)
from services.executor.decision.decide import Do, Env, foresee, settle
from services.executor.egress.context import Compact, Window, fit
from services.executor.egress.history import History, Outbound
from services.executor.egress.profile import Profile
from services.executor.tools.runtime import RUNTIME_TOOLS
from tests.fakes.histories import created
from tests.fakes.transcripts import SYSTEM

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
_PLAIN = Profile()
_SPECS = {
    spec.name: spec
    for spec in (
        ToolSpec(name="read_file", description="", parameters={}, semantics=Semantics.READ_ONLY),
        ToolSpec(name="write_file", description="", parameters={}, semantics=Semantics.IDEMPOTENT),
        ToolSpec(
            name="mcp.odd name/" + "x" * 70, description="", parameters={}, semantics=Semantics.NON_IDEMPOTENT
        ),
    )
} | RUNTIME_TOOLS
_TEXTS = ("", " ", "ok", "日本🎉", "x" * 3_000, "ERROR: no", "<tool_call>{}</tool_call>")
_NAMES = (*_SPECS, "unknown", "", "ü x", "n" * 90)


class Wandering:
    """One run. `states` gives each of its states once, the first included."""

    def __init__(self, picks: Sequence[int]) -> None:
        self._picks = iter(picks)
        strategy: ContextStrategy = "summarising" if self._pick(2) else "sliding-window"
        limits = Limits(context_tokens=(128_000, 3_000)[self._pick(2)], context_strategy=strategy)
        self.state = created(limits, TaskSpec(goal="Mend it.", unattended=bool(self._pick(2))))
        self._attached = False
        self._spawned: set[str] = set()
        self._offer: Offered | None = None

    def states(self) -> Iterator[RunState]:
        yield self.state
        yield from self._happen(e.RunStartRequested(by="test"))
        yield from self._claim()
        while not self.state.terminal and (pick := self._next()) is not None:
            if pick % 8 == 0:
                yield from self._happen(e.MessageReceived(text=self._text(), by="test"))
            if pick % 16 == 1 and self.state.owner is not None:
                yield from self._claim()  # The owner died: whatever was going on is begun again.
            settled = settle(self.state, self._env())
            yield from self._happen(*settled.events)
            if self.state.terminal:
                return
            if isinstance(settled.then, Do):
                for activity in settled.then.activities[:1]:
                    yield from self._carried_out(activity)
            else:
                yield from self._waited_for()

    def _next(self) -> int | None:
        return next(self._picks, None)

    def _pick(self, below: int) -> int:
        return (self._next() or 0) % below

    def _text(self) -> str:
        return _TEXTS[self._pick(len(_TEXTS))]

    def _happen(self, *events: e.LogEvent) -> Iterator[RunState]:
        for event in events:
            self.state = foresee(self.state, [event], NOW)
            yield self.state

    def _claim(self) -> Iterator[RunState]:
        self._attached, self._spawned, self._offer = False, set(), None
        number = self.state.epoch + 1
        yield from self._happen(e.RunClaimed(owner="x", boot=f"b{number}", epoch=number, attempt=number))

    def _env(self) -> Env:
        return Env(
            now=NOW,
            model="m",
            specs=_SPECS,
            attached=self._attached,
            busy=False,
            draining=False,
            window=self._window,
            spawned=frozenset(self._spawned),
            to_offer=self.state.offered is None,
            offer=self._offer,
        )

    def _window(self, state: RunState, overflowed: bool) -> tuple[int, Window]:
        history = History(SYSTEM)
        outbound = history.outbound(state, _PLAIN)

        def foreseen(after: RunState) -> Outbound:
            return history.foreseen(state, _PLAIN, after)

        return outbound.message_count, fit(outbound, state, foreseen, tool_tokens=100, overflowed=overflowed)

    def _carried_out(self, activity: Activity) -> Iterator[RunState]:
        match activity:
            case Attach():
                self._attached = True
                attached = e.WorkspaceAttached(
                    workspace_id="w", host=f"h{self._pick(2)}", replica="r", changed=["a"]
                )
                yield from self._happen(attached)
            case Offer():
                self._offer = Offered(digest="0" * 64, names=sorted(_SPECS))
            case CallModel(iteration=iteration):
                yield from self._happen(self._turn(iteration))
            case Summarise(overflowed=overflowed):
                _, window = self._window(self.state, overflowed)
                if isinstance(window, Compact):
                    yield from self._happen(window.event)
            case CallTool(call=call):
                uncertain = call.semantics is Semantics.NON_IDEMPOTENT and self._pick(3) == 0
                if uncertain:
                    yield from self._happen(
                        e.ToolUncertain(
                            call_id=call.call_id, attempt=call.attempt, reason="gone", host="h", boot="b"
                        )
                    )
                else:
                    yield from self._happen(self._result(call.call_id))
            case ReadResult(call=call):
                yield from self._happen(self._result(call.call_id))
            case SpawnChild(call=call):
                self._spawned.add(call.call_id)
            case Verify(pending=pending):
                verdict = (Verdict.UNVERIFIED, Verdict.FAILED, Verdict.PASSED)[self._pick(3)]
                yield from self._happen(
                    e.VerificationCompleted(
                        round=pending.round, status=verdict, checks=[], feedback=self._text()
                    )
                )
            case Save():
                problem = "no room" if self._pick(3) == 0 else None
                yield from self._happen(e.WorkspaceSnapshotted(commit="c", changed=1, problem=problem))
            case _:
                assert_never(activity)

    def _result(self, call_id: str) -> e.ToolCompleted:
        metadata: dict[str, object] = {"path": "a", "sha256": "0" * 64} if self._pick(3) == 0 else {}
        ok = bool(self._pick(3))
        return e.ToolCompleted(call_id=call_id, ok=ok, output=self._text(), duration_ms=1, metadata=metadata)

    def _turn(self, iteration: int) -> e.ModelCompleted | e.ModelFailed:
        kind = self._pick(10)
        if kind == 0:
            code, retry_at = (("CONTEXT_EXHAUSTED", None), ("MODEL_ERROR", "2026-11-29T12:00:30.000Z"))[
                self._pick(2)
            ]
            return e.ModelFailed(
                iteration=iteration, error_code=code, message="no", attempt=1, retry_at=retry_at
            )
        calls = [self._call(iteration, index) for index in range(self._pick(5) if kind > 2 else 0)]
        return e.ModelCompleted(
            iteration=iteration,
            content=self._text(),
            tool_calls=calls,
            finish_reason=("stop", "length", "tool_calls")[self._pick(3)],
            usage=Usage(requests=1, input_tokens=10, output_tokens=5),
            latency_ms=1,
            reasoning=self._text(),
        )

    def _call(self, iteration: int, index: int) -> ModelToolCall:
        broken = self._pick(5) == 0
        arguments: dict[str, object] = {"question": "q?", "goal": "g", "todos": [], "text": self._text()}
        arguments["path"] = "result:call_1_0" if index % 2 else "a"
        return ModelToolCall(
            call_id=f"call_{iteration}_{index}",
            name=_NAMES[self._pick(len(_NAMES))],
            arguments=None if broken else arguments,
            raw_arguments='{"a' if broken else None,
            problem="cut off" if broken else None,
            extra_content={"vendor": "signed"} if self._pick(4) == 0 else None,
        )

    def _waited_for(self) -> Iterator[RunState]:
        """What a run that has no owner waits for comes, and somebody claims it."""
        state = self.state
        match state.status:
            case RunStatus.WAITING_FOR_INPUT if state.pending_question is not None:
                question = state.pending_question
                yield from self._happen(
                    e.InputReceived(
                        question_id=question.question_id,
                        kind="approval" if question.kind == "approval" else "question",
                        answer=self._text() or "yes",
                        by="test",
                        decision=("approve", "reject")[self._pick(2)]
                        if question.kind == "approval"
                        else None,
                        approval_hash=question.approval_hash,
                    )
                )
            case RunStatus.RECONCILIATION_REQUIRED if state.reconciliation is not None:
                decision = ("accept", "retry")[self._pick(2)]
                yield from self._happen(
                    e.ReconciliationResolved(
                        call_id=state.reconciliation.call_id, decision=decision, by="test", observation="seen"
                    )
                )
            case RunStatus.WAITING_FOR_CHILD:
                for call_id, child in state.children.items():
                    if call_id not in state.child_results:
                        yield from self._happen(
                            e.ChildFinished(
                                call_id=call_id, child_run_id=child, status="COMPLETED", answer=self._text()
                            )
                        )
            case _:
                pass
        if self.state.status in (RunStatus.QUEUED, RunStatus.RETRYING):
            yield from self._claim()

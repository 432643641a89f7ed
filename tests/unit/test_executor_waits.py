"""A run whose workspace is held by a living host that does not answer: it waits, and not for ever."""

from datetime import UTC, datetime, timedelta

from libs.contracts import events as e
from libs.contracts.clock import rfc3339
from libs.contracts.run import RunState, RunStatus
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import Usage
from services.executor.decision.decide import foresee
from services.executor.decision.waits import SILENCE_PAUSE_S, SILENCES_MAX, silent
from tests.fakes.histories import created

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def _claimed(state: RunState) -> RunState:
    claim = e.RunClaimed(owner="x", boot="b1", epoch=state.epoch + 1, attempt=state.attempt + 1)
    return foresee(state, [claim], NOW)


def test_a_silent_host_parks_the_run_for_longer_each_time_and_then_fails_it_with_the_reason() -> None:
    state = foresee(created(Limits(), TaskSpec(goal="x")), [e.RunStartRequested(by="x")], NOW)
    for time in range(SILENCES_MAX):
        state = foresee(_claimed(state), [silent(state, "btoolhost", NOW)], NOW)
        assert (state.status, state.silences) == (RunStatus.RETRYING, time + 1)
        assert state.retry_at == rfc3339(NOW + timedelta(seconds=SILENCE_PAUSE_S * 2**time))
        # The host is at fault: the run is not on its way to a process of its own.
        assert state.claims_without_progress == 0
    state = foresee(_claimed(state), [silent(state, "btoolhost", NOW)], NOW)
    assert state.status is RunStatus.FAILED
    assert state.error is not None
    assert state.error.error_code == "WORKSPACE_ERROR"
    assert "btoolhost" in state.error.message


def test_a_host_that_answers_again_is_forgiven_its_silence() -> None:
    state = foresee(created(Limits(), TaskSpec(goal="x")), [e.RunStartRequested(by="x")], NOW)
    state = _claimed(foresee(_claimed(state), [silent(state, "btoolhost", NOW)], NOW))
    attached = e.WorkspaceAttached(workspace_id="ws_0_x", host="btoolhost", replica="toolhost-1")
    answered = e.ModelCompleted(
        iteration=1, content="", tool_calls=[], finish_reason="stop", usage=Usage(), latency_ms=1
    )
    assert state.silences == 1
    assert foresee(state, [attached], NOW).silences == foresee(state, [answered], NOW).silences == 0

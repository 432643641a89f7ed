"""A run's limits: which one does not allow another turn, and which one is near enough for the model to be told.

Invariant: pure; a limit is judged before a turn and never takes one back, so what the last allowed turn says counts.
The model hears of each limit once (`RunState.told`), while there is still a turn or two to finish in. What a run's
children used counts as its own.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple

from libs.contracts import events as e
from libs.contracts.checks import Verdict
from libs.contracts.clock import parse_rfc3339
from libs.contracts.run import RunState
from libs.contracts.transcript import UserItem

# "Near": less is left than this share of the limit, or than two more turns like those before take.
_NEAR_SHARE = 0.1
_NEAR_TURNS = 2


class _Gauge(NamedTuple):
    """One limit: how much of it is used, and about how much a turn takes. `unit` names what is left, `name` the limit."""

    name: str
    unit: str
    limit: float
    used: float
    per_turn: float
    error_code: str = "BUDGET_EXCEEDED"

    @property
    def left(self) -> float:
        return self.limit - self.used


def deadline(state: RunState) -> datetime:
    """When the owned time of the run and its children is used up, if its owner keeps it."""
    assert state.owner is not None
    left_ms = state.limits.timeout_s * 1000 - state.owned_ms - state.children_owned_ms
    return parse_rfc3339(state.owner.since) + timedelta(milliseconds=left_ms)


def timed_out(state: RunState) -> tuple[str, str]:
    told = f"{_whose(state)} used up the {state.limits.timeout_s:g} s that it may be worked on (timeout_s)"
    return "TIMEOUT", f"{told}; raise timeout_s or split the task"


def spent(state: RunState) -> tuple[str, str] | None:
    """The limit that does not allow another turn: its error code, and what to tell people."""
    over = next((gauge for gauge in _gauges(state, 0) if gauge.left <= 0), None)
    if over is None:
        return None
    used = f"{_whose(state)} used {_amount(over, over.used)} of {_amount(over, over.limit)} {over.unit} ({over.name})"
    return over.error_code, f"{used} without finishing"


def _whose(state: RunState) -> str:
    return "the run and its children" if state.children else "the run"


def notice(state: RunState, now: datetime, next_tokens: int) -> e.MessageReceived | None:
    """What the model is to be told before its next turn, a request of `next_tokens`, about a limit that is near."""
    if made_turns(state) == 0:
        return None
    for gauge in (*_gauges(state, next_tokens), _time(state, now)):
        if gauge.name not in state.told and gauge.left <= max(
            gauge.limit * _NEAR_SHARE, _NEAR_TURNS * gauge.per_turn
        ):
            left, limit = _amount(gauge, max(0.0, gauge.left)), _amount(gauge, gauge.limit)
            text = (
                f"SYSTEM NOTE: {left} of {limit} {gauge.unit} are left to you; then the run is stopped. Begin nothing "
                "new. Bring what you have to a good end and give your final answer; what you cannot finish, hand off in "
                "it: what is done, what is next, and what stands in the way."
            )
            return e.MessageReceived(text=text, by="runtime", about=gauge.name)
    return None


def _gauges(state: RunState, next_tokens: int) -> Iterator[_Gauge]:
    limits, usage, made = state.limits, state.usage, made_turns(state)
    turns, asked = max(1, made), made + state.children_iterations
    yield _Gauge("max_iterations", "turns", limits.max_iterations, asked, 1, "MAX_ITERATIONS")
    if limits.max_total_tokens is not None:
        per_turn = max(next_tokens, usage.input_tokens / turns) + usage.output_tokens / turns
        yield _Gauge("max_total_tokens", "tokens", limits.max_total_tokens, usage.total_tokens, per_turn)
    # A cost that is not known cannot be held against a limit; tokens can.
    if limits.max_cost_usd is not None and usage.cost_usd is not None:
        yield _Gauge("max_cost_usd", "USD", limits.max_cost_usd, usage.cost_usd, usage.cost_usd / turns)


def _time(state: RunState, now: datetime) -> _Gauge:
    limit = state.limits.timeout_s
    used = limit - (deadline(state) - now).total_seconds()
    return _Gauge("timeout_s", "seconds", limit, used, used / max(1, made_turns(state)), "TIMEOUT")


def made_turns(state: RunState) -> int:
    """The turns that this run made itself: a fork does not pay for its origin."""
    return state.iteration - state.copied_iterations


def _amount(gauge: _Gauge, value: float) -> str:
    return f"{value:.4f}" if gauge.unit == "USD" else f"{value:.0f}"


def rounds_used_up(state: RunState, last: object) -> bool:
    """Whether the verification that the model was told of last was the last one that the run may have."""
    verdict = state.verification
    if (
        verdict is None
        or verdict.status is not Verdict.FAILED
        or verdict.round < state.limits.max_verification_rounds
    ):
        return False
    return isinstance(last, UserItem) and last.origin == "verification"

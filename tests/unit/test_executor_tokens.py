"""The token estimate: near the truth for what agents read, and what a run learns from its model's own counts."""

from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts import events as e
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.values import Usage
from services.executor.decision.decide import foresee
from services.executor.ingress.tokens import tokens_in
from tests.fakes.histories import created
from tests.unit.token_samples import SAMPLES

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

# Tokens by cl100k_base, o200k_base and Qwen's vocabulary.
COUNTED = {
    "prose": (480, 480, 480),
    "code": (678, 672, 678),
    "JSON": (1818, 1818, 2496),
    "HTML": (1480, 1480, 1480),
    "log": (2578, 2580, 3823),
    "numbers": (2399, 2399, 3359),
    "base64": (2895, 2757, 2986),
    "base64 in lines": (2899, 2797, 2983),
    "hashes": (2643, 2659, 3849),
    "UUIDs": (1406, 1401, 1942),
    "Chinese": (900, 640, 600),
    "Japanese": (1100, 740, 660),
    "Korean": (920, 600, 700),
    "Russian": (761, 441, 581),
    "Arabic": (1021, 462, 580),
    "Hindi": (1561, 421, 1461),
    "emoji": (1250, 750, 450),
    "blank": (150, 150, 150),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_the_estimate_is_never_far_under_what_a_tokeniser_counts(name: str) -> None:
    estimate, counted = tokens_in(msgspec.json.encode(SAMPLES[name])), COUNTED[name]
    # The most that one vocabulary needs and another does not, numbers above all, is what a run's ratio learns.
    assert estimate >= 0.68 * max(counted)
    assert estimate >= 0.85 * sorted(counted)[1]
    assert estimate <= 4 * min(counted)


@pytest.mark.parametrize("name", ["prose", "code", "base64", "hashes", "Chinese", "Japanese", "Korean"])
def test_code_encoded_data_and_cjk_are_not_underestimated(name: str) -> None:
    assert tokens_in(msgspec.json.encode(SAMPLES[name])) >= 0.95 * max(COUNTED[name])


@given(st.binary(max_size=300), st.binary(max_size=60))
def test_a_longer_text_never_has_fewer_tokens_than_its_beginning(text: bytes, more: bytes) -> None:
    assert tokens_in(text) <= tokens_in(text + more)
    assert tokens_in(text) <= 2 * len(text)


def asked(estimate: int, ratio: float = 1.0) -> RunState:
    request = e.ModelRequested(
        iteration=1, model="m", message_count=2, estimated_tokens=estimate, token_ratio=ratio
    )
    claim = e.RunClaimed(owner="x", boot="b1", epoch=1, attempt=1)
    start = e.RunStartRequested(by="test")
    state = foresee(created(Limits(), TaskSpec(goal="g")), [start, claim], NOW)
    return foresee(msgspec.structs.replace(state, token_ratio=ratio), [request], NOW)


def counted(state: RunState, tokens: int, *, requests: int = 1, estimated: bool = False) -> float:
    usage = Usage(requests=requests, input_tokens=tokens, output_tokens=1, estimated=estimated)
    done = e.ModelCompleted(
        iteration=1, content="hm", tool_calls=[], finish_reason="stop", usage=usage, latency_ms=1
    )
    return foresee(state, [done], NOW).token_ratio


def test_a_run_learns_from_its_models_own_counts_fast_upwards_and_slowly_downwards() -> None:
    assert counted(asked(10_000), 15_000) == 1.5
    assert counted(asked(15_000, 1.5), 15_000) == 1.5
    assert counted(asked(20_000, 2.0), 10_000) == 1.75


def test_counts_that_say_nothing_about_one_request_teach_nothing() -> None:
    assert counted(asked(10_000), 30_000, requests=3) == 1.0
    assert counted(asked(10_000), 30_000, estimated=True) == 1.0
    assert counted(asked(900), 3_000) == 1.0


def test_an_absurd_count_moves_the_ratio_to_its_bounds_only() -> None:
    assert counted(asked(10_000), 10_000_000) == 4.0
    state, ratio = asked(10_000), 1.0
    for _ in range(40):
        ratio = counted(msgspec.structs.replace(state, token_ratio=ratio), 0)
    assert ratio >= 0.5


def test_the_shortest_request_that_was_called_too_long_is_remembered() -> None:
    failed = e.ModelFailed(iteration=1, error_code="CONTEXT_EXHAUSTED", message="too long", attempt=1)
    assert foresee(asked(10_000), [failed], NOW).refused_tokens == 10_000
    known = msgspec.structs.replace(asked(10_000), refused_tokens=7_000)
    assert foresee(known, [failed], NOW).refused_tokens == 7_000
    other = msgspec.structs.replace(failed, error_code="MODEL_ERROR")
    assert foresee(asked(10_000), [other], NOW).refused_tokens is None

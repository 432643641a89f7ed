"""Whole runs at random: from any prefix of any log, every strict endpoint takes the history (`EXAMPLES=20000` for long)."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.dev.model_rules import ALWAYS, HABITS, SentRequest, broken_rule
from libs.contracts.run import RunState
from libs.contracts.transcript import AssistantItem
from services.executor.egress.body import body
from services.executor.egress.history import History, messages
from services.executor.egress.profile import Learned, Profile, learned
from services.executor.egress.request import ModelRequest
from tests.fakes.transcripts import SYSTEM, TOOLS
from tests.fakes.wanderings import Wandering

PICKS = st.lists(st.integers(0, 1_000), min_size=30, max_size=150)
# What only the outside can satisfy: a signature that nobody sent, another field of the request.
OUTSIDE = {"signed_calls", "plain_names", "reserved_names"}


def request_for(state: RunState, history: History, profile: Profile) -> bytes:
    def render(dialect: Profile) -> list[bytes]:
        return history.outbound(state, dialect).fragments

    request = ModelRequest(
        iteration=1, render=render, estimated_tokens=7, tools=TOOLS, output_tokens_max=99_999
    )
    return body("m", request, profile)


def refusal(raw: bytes, rules: frozenset[str]) -> str | None:
    return broken_rule(msgspec.json.decode(raw, type=SentRequest), rules)


def accepted(state: RunState, rules: frozenset[str]) -> bool:
    """Whether an endpoint with these rules takes a request in this state, once it has taught what it wants."""
    profile, known = Profile(), frozenset[str]()
    while (said := refusal(request_for(state, History(SYSTEM), profile), rules)) is not None:
        taught: Learned | None = learned(profile, 400, said, known)
        if taught is None:
            return False
        profile, known = taught.profile, known | {taught.about}
    return True


@given(PICKS)
def test_from_any_prefix_of_any_run_a_history_is_legal_for_strict_endpoints(picks: list[int]) -> None:
    history = History(SYSTEM)
    for state in Wandering(picks).states():
        raw = request_for(state, history, Profile())
        assert refusal(raw, ALWAYS) is None
        # Kept from state to state, it gives what is made from nothing: what the next owner sends after a crash.
        fresh = b",".join(map(msgspec.json.encode, messages(state, SYSTEM, Profile())))
        assert fresh in raw


@given(PICKS, st.integers(0, 1_000), st.sampled_from(sorted(HABITS - OUTSIDE)))
def test_a_history_becomes_legal_for_each_single_endpoint_as_it_teaches_its_habits(
    picks: list[int], at: int, habit: str
) -> None:
    states = list(Wandering(picks).states())
    assert accepted(states[at % len(states)], ALWAYS | {habit})


@pytest.mark.parametrize("habit", sorted(HABITS))
def test_every_habit_is_one_that_somebody_breaks(habit: str) -> None:
    """A rule that nothing breaks would prove nothing."""
    call = b'{"id":"call_1_0","type":"function","function":{"name":"f","arguments":"{}"}%b}'
    head = (
        b'{"stream_options":{"include_usage":true},"max_tokens":99999,"max_completion_tokens":99999,"tools":'
    )
    head += b'[{"function":{"name":"echo","parameters":{"type":"object"}}},{"function":{"name":"A-b","parameters":{}}}]'
    turn = b'{"role":"assistant","content":null,%b"tool_calls":[' + call + b"]}"
    told = b'{"role":"system","content":"s"},{"role":"user","content":"u"},' + turn
    told += b',{"role":"tool","tool_call_id":"call_1_0","content":"x"},{"role":"user","content":"u"}'
    plain = head + b',"messages":[' + told % (b"", b"") + b"]}"
    adorned = (
        head + b',"messages":[' + told % (b'"reasoning_content":"x",', b',"extra_content":{"a":1}') + b"]}"
    )
    assert any(refusal(raw, frozenset({habit})) for raw in (plain, adorned))


@given(PICKS)
def test_a_run_asks_with_messages_that_begin_as_the_ones_before(picks: list[int]) -> None:
    history, before, compacted = History(SYSTEM), b"", (0, None)
    requested = 0
    for state in Wandering(picks).states():
        if state.iteration == requested:
            continue
        requested = state.iteration
        asked = msgspec.structs.replace(state, inbox=())
        sent = b",".join(history.outbound(asked, Profile()).fragments)
        left = (state.compacted, state.turn_tokens_max)
        empty = _empty_turn(state)
        assert left != compacted or empty or sent.startswith(before), (before[-300:], sent[-600:])
        before, compacted = sent.removesuffix(b'"}'), left


def _empty_turn(state: RunState) -> bool:
    """A turn without anything is no message: what is said behind it is said with what was said before."""
    turn = next((item for item in reversed(state.transcript) if isinstance(item, AssistantItem)), None)
    return turn is not None and not turn.content.strip() and not turn.calls

"""The egress sanitiser: legal from any prefix of any log, and the same bytes incrementally."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from deploy.dev.model_rules import ALWAYS, broken_rule
from libs.contracts.run import Kept, Question
from libs.contracts.tasks import Limits
from libs.contracts.transcript import AssistantItem, Item
from libs.contracts.values import ModelToolCall, Todo
from services.executor.egress.history import INTERRUPTED, History, messages
from services.executor.egress.profile import Profile
from services.executor.ingress.names import wire_name
from tests.fakes.transcripts import (
    PLAIN,
    SYSTEM,
    TEXT,
    TRANSCRIPT,
    expected_bytes,
    result,
    run,
    said,
    sent,
    shape,
    user,
)

# --- Single cases -----------------------------------------------------------------------------------------------


def test_a_fresh_run_sends_its_prompt_and_its_goal() -> None:
    assert shape(run()) == [("system", SYSTEM), ("user", "Mend it.")]


def test_each_missing_result_is_filled_in_place_and_in_order() -> None:
    state = run(said(1, calls=3), result(1, 2, "third"), result(1, 0, "first"), user("and now?"))
    assert shape(state)[2:] == [
        ("assistant", ""),
        ("tool", "first"),
        ("tool", INTERRUPTED),
        ("tool", "third"),
        ("user", "and now?"),
    ]


def test_a_message_between_a_call_and_its_result_waits_for_the_result() -> None:
    state = run(said(1, calls=1), user("stop"), result(1))
    assert shape(state)[3:] == [("tool", "out"), ("user", "stop")]


def test_results_without_a_call_and_second_results_are_left_out() -> None:
    state = run(result(7), said(1, calls=1), result(1), result(1, output="again"), result(9))
    assert shape(state)[2:] == [("assistant", ""), ("tool", "out")]


def test_empty_turns_and_empty_texts_are_left_out_and_users_are_joined() -> None:
    state = run(
        user("first"), said(1, " "), user("second"), said(2, "hm"), user(" "), user("a"), said(3), user("b")
    )
    assert shape(state) == [
        ("system", SYSTEM),
        ("user", "Mend it.\n\nfirst\n\nsecond"),
        ("assistant", "hm"),
        ("user", "a\n\nb"),
    ]


def test_the_model_never_has_the_last_word() -> None:
    assert shape(run(said(1, "done")))[-1] == ("user", "Go on.")
    assert shape(run(said(1, "done"), inbox=(user("not yet"),)))[-1] == ("user", "not yet")
    assert shape(run(inbox=(user("quick"),)))[-1] == ("user", "Mend it.\n\nquick")


def test_unreadable_arguments_are_not_sent_again_but_their_problem_is() -> None:
    call = ModelToolCall(
        call_id="call_1_0", name="a b!", arguments=None, raw_arguments='{"a', problem="cut off"
    )
    state = run(AssistantItem(iteration=1, content="", calls=[call], finish_reason="length"))
    request = sent(state)
    assert request.messages[2].tool_calls is not None
    assert request.messages[2].tool_calls[0].function.arguments == "{}"
    assert request.messages[2].tool_calls[0].function.name == wire_name("a b!", {})
    assert request.messages[3].text == "ERROR: cut off"


def test_an_answer_of_a_person_stands_in_for_a_result_that_is_not_recorded_yet() -> None:
    question = Question(
        question_id="q",
        kind="question",
        question="?",
        call_id="call_1_0",
        asked_at="",
        asked_sequence=1,
        answer="blue",
    )
    state = run(said(1, calls=1))
    history = History(SYSTEM)
    assert b"interrupted" in b"".join(history.outbound(state, PLAIN).fragments)
    answered = msgspec.structs.replace(state, questions=(question,))
    assert b"blue" in b"".join(history.outbound(answered, PLAIN).fragments)


def test_a_failed_result_says_so_and_an_empty_one_is_not_empty() -> None:
    state = run(said(1, calls=2), result(1, 0, "no such file", ok=False), result(1, 1, ""))
    assert shape(state)[3:] == [("tool", "ERROR: no such file"), ("tool", "(no output)")]


def test_lone_surrogates_never_leave() -> None:
    call = ModelToolCall(call_id="call_1_0", name="echo", arguments={"t\ud83d": ["\udf78"]})
    state = run(
        AssistantItem(iteration=1, content="a\ud83d", calls=[call], finish_reason="stop"),
        result(1, output="\udf78"),
    )
    assert broken_rule(sent(state), ALWAYS) is None
    assert "\N{REPLACEMENT CHARACTER}" in shape(state)[2][1]


def test_long_results_are_clipped_between_code_points() -> None:
    state = run(said(1, calls=1), result(1, output="🎉" * 2_000), limits=Limits(max_tool_output_chars=100))
    text = shape(state)[3][1]
    assert len(text) < 700
    assert text.startswith("🎉")
    assert text.endswith("🎉")


def test_reasoning_is_replayed_only_to_endpoints_that_want_it() -> None:
    state = run(said(1, calls=1, reasoning="think"), result(1), said(2, calls=1), result(2))
    required, refused = frozenset({"reasoning_required"}), frozenset({"reasoning_refused"})
    wanted = sent(state, Profile(reasoning="reasoning_content"))
    assert broken_rule(wanted, required) is None
    assert broken_rule(wanted, refused) is not None
    assert broken_rule(sent(state), refused) is None
    assert wanted.messages[2].reasoning_content == "think"
    assert wanted.messages[4].reasoning_content == ""


# --- Properties -------------------------------------------------------------------------------------------------


@given(transcript=TRANSCRIPT, inbox=st.lists(TEXT, max_size=2), cut=st.integers(0, 14))
def test_any_prefix_of_any_log_is_legal_for_strict_servers(
    transcript: tuple[Item, ...], inbox: list[str], cut: int
) -> None:
    state = run(*transcript[:cut], inbox=tuple(user(text) for text in inbox))
    assert broken_rule(sent(state), ALWAYS) is None
    compacted = msgspec.structs.replace(
        state, compacted=min(cut, 5), summary="So far: much.", kept=Kept(todos=(Todo(content="x"),))
    )
    assert broken_rule(sent(compacted), ALWAYS) is None


@given(
    transcript=TRANSCRIPT,
    steps=st.lists(st.integers(1, 4), max_size=8),
    replay=st.booleans(),
    data=st.data(),
)
def test_the_incremental_history_gives_the_bytes_of_its_specification(
    transcript: tuple[Item, ...], steps: list[int], replay: bool, data: st.DataObject
) -> None:
    history, profile, known = History(SYSTEM), Profile(reasoning="reasoning_content" if replay else ""), 0
    for step in [*steps, len(transcript)]:
        known = min(len(transcript), known + step)
        inbox = tuple(user(text) for text in data.draw(st.lists(TEXT, max_size=1)))
        state = run(
            *transcript[:known],
            inbox=inbox,
            compacted=data.draw(st.sampled_from([0, 0, known // 2])),
            turn_tokens_max=data.draw(st.sampled_from([None, None, None, 60])),
        )
        outbound = history.outbound(state, profile)
        assert b",".join(outbound.fragments) == expected_bytes(state, profile)
        assert outbound.message_count == len(messages(state, SYSTEM, profile))
        shorter = data.draw(st.sampled_from([None, None, 40, 400]))
        then = msgspec.structs.replace(state, compacted=known, summary="s", turn_tokens_max=shorter)
        assert b",".join(history.foreseen(state, profile, then).fragments) == expected_bytes(then, profile)


def test_a_text_behind_a_turn_that_left_is_in_the_head_as_soon_as_it_comes() -> None:
    history, state = History(SYSTEM), run(said(1, calls=1), result(1), compacted=2)
    history.outbound(state, PLAIN)
    later = msgspec.structs.replace(state, transcript=(*state.transcript, user("Stop.")))
    assert b",".join(history.outbound(later, PLAIN).fragments) == expected_bytes(later)


@given(transcript=TRANSCRIPT, cuts=st.lists(st.integers(0, 14), max_size=8))
def test_foreseen_items_that_are_stored_as_equal_ones_change_nothing(
    transcript: tuple[Item, ...], cuts: list[int]
) -> None:
    history = History(SYSTEM)
    for cut in cuts:
        copies = tuple(msgspec.structs.replace(item) for item in transcript[cut:])
        state = run(*transcript[:cut], *copies)
        assert b",".join(history.outbound(state, PLAIN).fragments) == expected_bytes(state)


def test_only_the_newest_few_units_are_made_again() -> None:
    turns: list[Item] = [item for turn in range(1, 50) for item in (said(turn, calls=1), result(turn))]
    history = History(SYSTEM)
    foreseen = run(*turns[:-2], *(msgspec.structs.replace(item) for item in turns[-2:]))
    before = history.outbound(foreseen, PLAIN).fragments
    after = history.outbound(run(*turns, said(50, calls=1), result(50)), PLAIN).fragments
    assert all(one is other for one, other in zip(before[:47], after, strict=False))
    assert len(after) == len(before) + 1

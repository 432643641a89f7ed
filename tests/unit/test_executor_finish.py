"""The finish matrix, row by row."""

import pytest

from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall, Usage
from services.executor.ingress.finish import (
    NUDGES_MAX,
    Fail,
    Final,
    Nudge,
    Retry,
    RunTools,
    judge,
    nudges_in,
    without_unoffered,
)
from services.executor.ingress.turn import REFUSAL, UNOFFERED, ModelTurn

CALL = ModelToolCall(call_id="call_1_0", name="f", arguments={})
BROKEN = ModelToolCall(call_id="call_1_0", name="f", arguments=None, raw_arguments="{", problem="cut off")
AS_TEXT = [
    '<tool_call>{"name":"bash","arguments":{"command":"ls"}}</tool_call>',
    "<function=bash><parameter=command>ls</parameter></function>",
    '<invoke name="Bash">ls</invoke>',
]


def turn(
    content: str = "", *, calls: tuple[ModelToolCall, ...] = (), reasoning: str = "", reason: str = "stop"
) -> ModelTurn:
    return ModelTurn(
        content=content, reasoning=reasoning, calls=list(calls), finish_reason=reason, usage=Usage()
    )


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "length", "", "content_filter", "whatever"])
def test_calls_run_whatever_the_finish_reason_says(reason: str) -> None:
    assert judge(turn("x", calls=(CALL,), reason=reason), tools_offered=True, nudges=0) == RunTools()
    assert judge(turn(calls=(BROKEN,), reason=reason), tools_offered=True, nudges=0) == RunTools()


@pytest.mark.parametrize("reason", ["stop", "tool_calls", "", "end_turn"])
def test_text_without_calls_is_final_whatever_the_finish_reason_says(reason: str) -> None:
    assert judge(turn("done", reason=reason), tools_offered=True, nudges=0) == Final(answer="done")


@pytest.mark.parametrize("nudges", range(NUDGES_MAX + 1))
@pytest.mark.parametrize(
    "said, error_code",
    [
        (turn(reasoning="hm"), "EMPTY_RESPONSE"),
        (turn("half an ans", reason="length"), "MAX_TOKENS"),
        *((turn(text), "MODEL_ERROR") for text in AS_TEXT),
    ],
)
def test_a_turn_that_is_no_answer_is_nudged_a_few_times_and_then_fails(
    said: ModelTurn, error_code: str, nudges: int
) -> None:
    verdict = judge(said, tools_offered=True, nudges=nudges)
    if nudges < NUDGES_MAX:
        assert isinstance(verdict, Nudge)
    else:
        assert isinstance(verdict, Fail)
        assert verdict.error_code == error_code


@pytest.mark.parametrize(
    "text",
    [
        "Let me look at the tests:",
        "I found the cause.\n\nNow I'll fix it.",
        "I will now run the tests.",
        "**Next, I'll read the file...**",
    ],
)
def test_a_step_that_is_announced_and_not_done_is_nudged_and_the_third_in_a_row_is_stuck(text: str) -> None:
    assert [type(judge(turn(text), tools_offered=True, nudges=n)) for n in range(4)] == [
        Nudge,
        Nudge,
        Fail,
        Fail,
    ]
    stuck = judge(turn(text), tools_offered=True, nudges=2)
    assert isinstance(stuck, Fail)
    assert stuck.error_code == "STUCK"
    assert judge(turn(text), tools_offered=False, nudges=0) == Final(answer=text)


@pytest.mark.parametrize(
    "text",
    [
        "Done. Let me know if you need more...",
        "All tests pass now.",
        "I will stop here: nothing is left to do.",
        "Let me now summarise.\nThe bug was an off-by-one.",
        "The next step would be a release.",
    ],
)
def test_an_answer_that_only_sounds_like_an_announcement_is_final(text: str) -> None:
    assert judge(turn(text), tools_offered=True, nudges=0) == Final(answer=text)


@pytest.mark.parametrize("reason", ["STOP", "MAX_TOKENS", "Length", "model_length"])
def test_words_for_the_end_are_read_in_any_case(reason: str) -> None:
    verdict = judge(turn("half", reason=reason), tools_offered=True, nudges=0)
    assert isinstance(verdict, Final if reason == "STOP" else Nudge)


def test_a_call_that_the_provider_could_not_read_is_asked_for_again() -> None:
    verdict = judge(
        turn("x", reason="function_call_filter: MALFORMED_FUNCTION_CALL"), tools_offered=True, nudges=0
    )
    assert isinstance(verdict, Retry)


def test_calls_that_were_not_offered_leave_the_turn() -> None:
    assert without_unoffered(turn("x", calls=(CALL,))) == turn("x")
    bare = without_unoffered(turn(calls=(CALL,)))
    assert (bare.calls, bare.finish_reason) == ([], UNOFFERED)
    assert isinstance(judge(bare, tools_offered=False, nudges=0), Nudge)
    assert isinstance(judge(bare, tools_offered=False, nudges=NUDGES_MAX), Fail)


@pytest.mark.parametrize("reason", ["length", "max_tokens"])
@pytest.mark.parametrize("reasoning", ["", "hm"])
def test_an_output_limit_without_any_text_fails(reason: str, reasoning: str) -> None:
    verdict = judge(turn(reasoning=reasoning, reason=reason), tools_offered=True, nudges=0)
    assert isinstance(verdict, Fail)
    assert verdict.error_code == "MAX_TOKENS"


@pytest.mark.parametrize(
    "said",
    [turn("I can't.", reason=REFUSAL), turn(reason="content_filter"), turn("x", reason="content_filter")],
)
def test_a_refusal_fails_the_run_with_its_own_code(said: ModelTurn) -> None:
    verdict = judge(said, tools_offered=True, nudges=0)
    assert isinstance(verdict, Fail)
    assert verdict.error_code == "MODEL_REFUSED"


def test_an_empty_or_broken_turn_is_asked_for_again() -> None:
    empty = judge(turn(" \n"), tools_offered=True, nudges=0)
    broken = judge(turn("half", reason="network_error"), tools_offered=True, nudges=0)
    assert isinstance(empty, Retry)
    assert isinstance(broken, Retry)
    assert (empty.error_code, broken.error_code) == ("EMPTY_RESPONSE", "MODEL_ERROR")


def test_calls_where_none_were_offered_are_not_run() -> None:
    assert judge(turn("answer", calls=(CALL,)), tools_offered=False, nudges=0) == Final(answer="answer")
    assert isinstance(judge(turn(calls=(CALL,)), tools_offered=False, nudges=0), Nudge)
    assert isinstance(judge(turn(calls=(CALL,)), tools_offered=False, nudges=NUDGES_MAX), Fail)
    assert judge(turn(AS_TEXT[0]), tools_offered=False, nudges=0) == Final(answer=AS_TEXT[0])


def test_nudges_are_counted_since_the_last_tool_call_or_verification() -> None:
    said = AssistantItem(iteration=1, content="", calls=[], finish_reason="stop")
    nudge = UserItem(text="go on", origin="runtime")
    called = AssistantItem(iteration=1, content="", calls=[CALL], finish_reason="stop")
    result = ToolItem(call_id=CALL.call_id, name="f", ok=True, output="")
    verified = UserItem(text="a check failed", origin="verification")
    tables: list[tuple[tuple[Item, ...], int]] = [
        ((), 0),
        ((said, nudge), 1),
        ((said, nudge, said, nudge), 2),
        ((said, nudge, called, result), 0),
        ((called, result, said, nudge), 1),
        ((said, nudge, said, verified), 0),
        ((UserItem(text="hurry", origin="steering"),), 0),
    ]
    assert [nudges_in(transcript) for transcript, _ in tables] == [count for _, count in tables]

"""Stuck detection: which repetitions are circles, which are work, and what the model is told before it is stopped."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.contracts.ids import call_id
from libs.contracts.run import RunState
from libs.contracts.tasks import Limits, TaskSpec
from libs.contracts.transcript import AssistantItem, Item, ToolItem, UserItem
from libs.contracts.values import ModelToolCall
from services.executor.decision.stuck import ALTERNATING_MAX, REPEATED_MAX, circling
from tests.fakes.histories import created

NOTE = UserItem(text="a note", origin="runtime")


def step(number: int, name: str, output: str, *, ok: bool = True, **arguments: object) -> list[Item]:
    """A turn with one call, and its result."""
    call = ModelToolCall(call_id=call_id(number, 0), name=name, arguments=arguments)
    return [
        AssistantItem(iteration=number, content=f"turn {number}", calls=[call], finish_reason="tool_calls"),
        ToolItem(call_id=call.call_id, name=name, ok=ok, output=output),
    ]


def run(*steps: list[Item], inbox: tuple[UserItem, ...] = ()) -> RunState:
    state = created(Limits(), TaskSpec(goal="g"))
    transcript = tuple(item for one in steps for item in one)
    return msgspec.structs.replace(state, transcript=transcript, inbox=inbox, iteration=len(steps))


def repeated(times: int, *outputs: str, ok: bool = True) -> RunState:
    return run(*(step(n, "read_file", outputs[n % len(outputs)], ok=ok, path="a.txt") for n in range(times)))


def over(state: RunState) -> bool | None:
    """`None`: no circle; `False`: the model is told; `True`: the run is stopped."""
    found = circling(state)
    return None if found is None else found.over


@pytest.mark.parametrize("ok", [True, False])
def test_the_same_call_with_the_same_result_is_told_of_and_then_stopped(ok: bool) -> None:
    assert [over(repeated(times, "out", ok=ok)) for times in range(1, 6)] == [None, None, False, True, True]
    found = circling(repeated(REPEATED_MAX, "out", ok=ok))
    assert found is not None
    assert 'read_file {"path":"a.txt"}' in found.message
    assert ("error: out" in found.message) is not ok


def test_the_model_is_told_once_whether_the_note_still_waits_or_has_reached_it() -> None:
    state = repeated(REPEATED_MAX - 1, "no such file", ok=False)
    found = circling(state)
    assert found is not None
    note = UserItem(text=found.message, origin="runtime")
    assert over(msgspec.structs.replace(state, inbox=(note,))) is None
    assert over(msgspec.structs.replace(state, transcript=(*state.transcript, note))) is None
    again = step(9, "read_file", "no such file", ok=False, path="a.txt")
    assert over(msgspec.structs.replace(state, transcript=(*state.transcript, note, *again))) is True


def test_polling_whose_output_changes_is_work() -> None:
    outputs = [f"status: running, {n * 10} % done" for n in range(8)]
    assert over(repeated(8, *outputs)) is None


def test_tests_that_are_run_again_after_edits_are_work() -> None:
    steps: list[list[Item]] = []
    for n in range(0, 12, 2):
        steps.append(step(n, "edit_file", "edited", path="a.py", old_str=f"x{n}", new_str=f"y{n}"))
        steps.append(step(n + 1, "run_tests", "1 failed in 0.12s", ok=False))
    assert over(run(*steps)) is None


def test_the_same_call_on_different_things_is_work() -> None:
    # Also when every one of them answers the same, as deletions do.
    steps = [step(n, "remove", "done", item=f"0f8fad5b-d9cb-469f-a165-70867728950{n}") for n in range(6)]
    assert over(run(*steps)) is None


def test_two_steps_in_turn_are_told_of_and_then_stopped() -> None:
    def alternating(times: int) -> RunState:
        return run(*(step(n, "read_file", "text", path="ab"[n % 2]) for n in range(times)))

    outcomes = [over(alternating(times)) for times in range(2, 8)]
    assert outcomes == [None, None, None, False, True, True]
    found = circling(alternating(ALTERNATING_MAX))
    assert found is not None
    assert '"a"' in found.message
    assert '"b"' in found.message


def test_a_batch_of_calls_is_one_step_whose_results_may_come_in_any_order() -> None:
    def batch(number: int) -> list[Item]:
        made = [
            ModelToolCall(call_id=call_id(number, n), name="echo", arguments={"text": n}) for n in range(3)
        ]
        results = [ToolItem(call_id=call.call_id, name="echo", ok=True, output="x") for call in made]
        turn = AssistantItem(iteration=number, content="", calls=made, finish_reason="tool_calls")
        return [turn, *(results if number % 2 else reversed(results))]

    assert over(run(*(batch(n) for n in range(4)))) is True


def test_a_call_that_could_not_be_read_is_compared_by_what_was_wrong_with_it() -> None:
    def broken(number: int, raw: str) -> list[Item]:
        call = ModelToolCall(
            call_id=call_id(number, 0),
            name="write_file",
            arguments=None,
            raw_arguments=raw,
            problem="cut off",
        )
        turn = AssistantItem(iteration=number, content="", calls=[call], finish_reason="length")
        told = ToolItem(call_id=call.call_id, name="write_file", ok=False, output="was not called: cut off")
        return [turn, told]

    assert over(run(*(broken(n, "{" * n) for n in range(4)))) is True


@pytest.mark.parametrize("origin", ["steering", "verification"])
def test_a_word_of_a_person_or_of_the_verifier_begins_anew(origin: str) -> None:
    word = msgspec.convert({"role": "user", "text": "try b.txt", "origin": origin}, UserItem)
    before = repeated(REPEATED_MAX - 1, "out").transcript
    after = step(9, "read_file", "out", path="a.txt")
    state = repeated(REPEATED_MAX, "out")
    assert over(msgspec.structs.replace(state, transcript=(*before, word, *after))) is None
    assert over(msgspec.structs.replace(state, inbox=(word,))) is None
    assert over(msgspec.structs.replace(state, transcript=(*before, NOTE, *after))) is True


VOLATILE = {
    "a process number": st.integers(1, 4_000_000).map("started with pid {}".format),
    "a job": st.integers(100, 99_999).map("sshd[{}]: closed".format),
    "a duration": st.floats(0, 9_999).map(lambda s: f"3 failed in {s:.2f}s"),
    "a long duration": st.tuples(st.integers(0, 59), st.integers(0, 59)).map(
        lambda t: f"took {t[0]}m {t[1]}s"
    ),
    "a time": st.datetimes().map(lambda at: f"{at:%H:%M:%S} no such host"),
    "a timestamp": st.datetimes().map(lambda at: f"at {at.isoformat()}Z: refused"),
    "a date": st.datetimes().map(lambda at: f"{at:%a %b %d %H:%M:%S} failed"),
    "an epoch": st.integers(1_500_000_000, 1_999_999_999).map("ts={} failed".format),
    "a uuid": st.uuids().map("request {} failed".format),
    "an address": st.integers(0, 2**48).map("<object at 0x{:x}>".format),
    "a port": st.integers(1024, 65535).map("cannot connect to 127.0.0.1:{}".format),
    "a run": st.integers(0, 2**64).map(lambda n: f"run_0_a1{n:020x}bc failed"),
}


@pytest.mark.parametrize("what", VOLATILE)
def test_what_differs_in_volatile_parts_only_does_not_differ(what: str) -> None:
    @given(st.lists(VOLATILE[what], min_size=REPEATED_MAX, max_size=REPEATED_MAX))
    def check(outputs: list[str]) -> None:
        assert over(repeated(REPEATED_MAX, *outputs)) is True

    check()


def test_a_time_in_the_arguments_does_not_make_another_call() -> None:
    steps = [step(n, "run_command", "refused", command=f"log '2026-11-30 09:0{n}:00' x") for n in range(4)]
    assert over(run(*steps)) is True


def any_step(number: int, name: str, path: str, output: str, ok: bool) -> list[Item]:
    return step(number, name, output, ok=ok, path=path)


STEPS = st.builds(
    any_step,
    st.integers(1, 9),
    st.sampled_from(["read_file", "run_tests"]),
    st.sampled_from("ab"),
    st.sampled_from(["same", "0.1s", "0.2s", "other"]),
    st.booleans(),
)
TALK = st.sampled_from(
    [
        [NOTE],
        [UserItem(text="hurry", origin="steering")],
        [AssistantItem(iteration=1, content="hm", calls=[], finish_reason="stop")],
    ]
)


@given(st.lists(STEPS | TALK, max_size=14))
def test_only_a_run_that_was_told_of_a_circle_is_ever_stopped_for_it(steps: list[list[Item]]) -> None:
    told: set[int] = set()
    for count in range(len(steps) + 1):
        state = run(*steps[:count])
        found = circling(state)
        if found is None:
            continue
        if found.over:
            # The step before the last one, whatever notes came in between, was told of.
            assert told
        told.add(count)
        turns = sum(isinstance(item, AssistantItem) for item in state.transcript)
        assert turns >= REPEATED_MAX - 1


@given(st.lists(STEPS, max_size=12), st.integers(0, 12))
def test_what_lies_further_back_than_the_longest_pattern_never_matters(
    steps: list[list[Item]], cut: int
) -> None:
    whole, tail = run(*steps), run(*steps[-max(cut, ALTERNATING_MAX) :])
    assert circling(whole) == circling(tail)


@given(st.lists(st.integers(0, 3), min_size=4, max_size=30))
def test_steps_that_are_all_different_are_never_a_circle(moves: list[int]) -> None:
    outputs = [f"state {n} of {move}" for n, move in enumerate(moves)]
    assert over(run(*(step(n, "poll", output, id=7) for n, output in enumerate(outputs)))) is None

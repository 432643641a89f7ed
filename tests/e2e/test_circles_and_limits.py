"""Runs that go round in circles (cases 58 and 59) or come to a limit, through five real processes.

The runs begin together, so that no test waits for another's.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pytest

from libs.contracts.ids import child_run_id
from libs.contracts.views import EventView, RunView
from tests.e2e.stage import Script, Stage, call, calls, says, stage

USED = {"usage": {"prompt_tokens": 900, "completion_tokens": 100, "total_tokens": 1000}}
ANNOUNCED = says("I have an idea.\nLet me look at the files:")
READ = calls(call("read_file", path="missing.txt"))
# Which tests a workspace has.
VOLATILE = 'echo "worker pid $$ failed after 0.$(date +%N)s at $(date) in /tmp/tmp$(date +%N)ab"; exit 1\n'
POLLED = 'echo x >> n; echo "$(wc -l < n) of 8 are done"\n'
EDITED = "grep -q 'version 5' a.txt || { echo '1 failed in 0.01s'; exit 1; }\n"


def steps(count: int, **fields: object) -> list[dict[str, object]]:
    return [calls(call("echo", text=f"step {n}"), **fields) for n in range(count)]


SCRIPT: Script = {
    "[58 error]": [READ] * 8,
    "[58 same]": [calls(call("list_files"))] * 8,
    "[58 volatile]": [calls(call("run_tests"))] * 8,
    "[58 alternating]": [calls(call("read_file", path=f"{'ab'[n % 2]}.txt")) for n in range(12)],
    "[58 monologue]": [ANNOUNCED] * 5,
    "[58 heeded]": [*[READ] * 3, calls(call("list_files")), says("It is not there.")],
    "[59 polling]": [*[calls(call("run_tests"))] * 8, says("All are done.")],
    "[59 edits]": [
        turn
        for n in range(6)
        for turn in (
            calls(call("write_file", path="a.txt", content=f"version {n}")),
            calls(call("run_tests")),
        )
    ]
    + [says("It passes.")],
    "[last turn]": [*steps(3), says("Just in time.")],
    "[iterations]": steps(9),
    "[tokens]": steps(9, **USED),
    "[cost]": steps(9, **USED),
    "[unpriced]": [*steps(3, **USED), says("Whatever it cost.", **USED)],
    "[time]": [*steps(1), says("Too late.", delay_s=30)],
    "[parent]": [
        calls(call("delegate", goal="[child] a"), call("delegate", goal="[child] b"), **USED),
        says("?"),
    ],
    "[child]": steps(9, **USED),
    "[turns]": [
        calls(call("delegate", goal="[idle] a"), call("delegate", goal="[idle] b"), call("echo", text="x")),
        says("?"),
    ],
    "[idle]": steps(9),
    "[last]": [calls(call("delegate", goal="[idle] c"), call("echo", text="at last"))],
    "[greedy]": [
        calls(call("delegate", goal="[large] a"), call("delegate", goal="[slow] b"), **USED),
        says("?"),
    ],
    "[large]": [says("Much ado.", usage={"prompt_tokens": 5_000, "completion_tokens": 9})],
    "[slow]": [says("Nobody waits for me.", delay_s=60)],
    "[fallback]": [
        calls(call("echo", text="by the first")),
        {"attempts": [{"status": 404, "body": "no such model"}, {"status": 403}, says("By the third.")]},
    ],
    "[uncounted]": [says("Nobody counted this.", usage=None)],
}
LIMITS: dict[str, dict[str, object]] = {
    "[last turn]": {"max_iterations": 4},
    "[iterations]": {"max_iterations": 4},
    "[tokens]": {"max_total_tokens": 4_000},
    "[cost]": {"max_cost_usd": 4.0},
    "[unpriced]": {"max_cost_usd": 0.0001},
    "[time]": {"timeout_s": 2.0},
    "[parent]": {"max_total_tokens": 3_000},
    "[greedy]": {"max_total_tokens": 3_000},
    "[turns]": {"max_iterations": 6},
    "[last]": {"max_iterations": 1},
}
FILES = {
    "[58 alternating]": {"a.txt": "a", "b.txt": "b"},
    "[58 volatile]": {"run_tests.sh": VOLATILE},
    "[59 polling]": {"run_tests.sh": POLLED},
    "[59 edits]": {"run_tests.sh": EDITED},
}


class Begun(NamedTuple):
    """The stage with a run for each conversation."""

    on: Stage
    runs: dict[str, str]

    async def failed(self, marker: str) -> tuple[str, str]:
        """The error code and message that the run ended with."""
        run = await self.ended(marker)
        assert run.status == "FAILED", run.answer
        assert run.error is not None
        return run.error.error_code, run.error.message

    async def ended(self, marker: str) -> RunView:
        return await self.on.ended(self.runs[marker])

    async def events(self, marker: str, kind: str) -> list[EventView]:
        return [event for event in await self.on.events(self.runs[marker]) if event.type == kind]

    async def notes(self, marker: str) -> list[str]:
        """What the runtime told the model; each stands once in the last request, unless the run ended before."""
        events = await self.events(marker, "message.received")
        return [str(event.payload["text"]) for event in events if event.payload["by"] == "runtime"]

    def requests(self, marker: str) -> list[dict[str, object]]:
        bodies = [msgspec.json.decode(body, type=dict[str, object]) for body in self.on.model.bodies]
        return [body for body in bodies if marker in str(body["messages"])]

    def last_request(self, marker: str) -> str:
        return str(self.requests(marker)[-1]["messages"])


@pytest.fixture(scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Begun]:
    folder = tmp_path_factory.mktemp("circles")
    prices = folder / "prices.json"
    prices.write_text(json.dumps({"scripted": {"input": 1000, "output": 1000}}))
    environment = {"PERDURE_MODEL_PRICES": str(prices), "PERDURE_FALLBACK_MODELS": "second, third"}
    async with stage(folder, SCRIPT, environment) as on:
        begun = [marker for marker in SCRIPT if marker not in ("[child]", "[large]", "[slow]", "[idle]")]

        async def submit(number: int, marker: str) -> str:
            workspace = f"circle-{number}"
            on.workspace(workspace, {"run_tests.sh": "exit 0\n"} | FILES.get(marker, {}))
            model = {"model": "unpriced"} if marker == "[unpriced]" else {}
            return await on.submit(marker, workspace=workspace, limits=LIMITS.get(marker, {}), **model)

        runs = await asyncio.gather(*(submit(number, marker) for number, marker in enumerate(begun)))
        yield Begun(on, dict(zip(begun, runs, strict=True)))


@pytest.mark.parametrize(
    "marker, count, named",
    [
        ("[58 error]", 4, "missing.txt"),
        ("[58 same]", 4, "list_files"),
        ("[58 volatile]", 4, "run_tests"),
        ("[58 alternating]", 6, "in turn"),
    ],
)
async def test_58_a_circle_is_told_of_once_and_then_ends_the_run_naming_it(
    at: Begun, marker: str, count: int, named: str
) -> None:
    code, message = await at.failed(marker)
    assert (code, named in message) == ("STUCK", True)
    assert len(await at.events(marker, "tool.completed")) == count
    (note,) = await at.notes(marker)
    assert "circles" in note
    assert at.last_request(marker).count("going round in circles") == 1


async def test_58_a_model_that_only_announces_what_it_will_do_is_nudged_twice_and_then_stuck(
    at: Begun,
) -> None:
    code, message = await at.failed("[58 monologue]")
    assert (code, "Let me look" in message) == ("STUCK", True)
    assert len(await at.events("[58 monologue]", "model.completed")) == 3
    assert len(await at.notes("[58 monologue]")) == 2


async def test_58_a_model_that_heeds_the_note_goes_on(at: Begun) -> None:
    run = await at.ended("[58 heeded]")
    assert (run.status, run.answer) == ("COMPLETED", "It is not there.")
    assert len(await at.notes("[58 heeded]")) == 1


@pytest.mark.parametrize("marker", ["[59 polling]", "[59 edits]"])
async def test_59_polling_and_tests_that_are_run_again_after_edits_are_work(at: Begun, marker: str) -> None:
    run = await at.ended(marker)
    assert run.status == "COMPLETED", run.error
    assert await at.notes(marker) == []


async def test_an_answer_on_the_last_turn_is_a_success_and_the_model_was_told_in_time(at: Begun) -> None:
    run = await at.ended("[last turn]")
    assert (run.status, run.iteration) == ("COMPLETED", 4)
    (note,) = await at.notes("[last turn]")
    assert "2 of 4 turns are left" in note
    assert at.last_request("[last turn]").count("turns are left") == 1


@pytest.mark.parametrize(
    "marker, code, named",
    [
        ("[iterations]", "MAX_ITERATIONS", "max_iterations"),
        ("[tokens]", "BUDGET_EXCEEDED", "max_total_tokens"),
        ("[cost]", "BUDGET_EXCEEDED", "max_cost_usd"),
        ("[time]", "TIMEOUT", "timeout_s"),
    ],
)
async def test_each_limit_ends_a_run_with_a_code_of_its_own_and_says_which_it_was(
    at: Begun, marker: str, code: str, named: str
) -> None:
    found, message = await at.failed(marker)
    assert (found, named in message) == (code, True)
    if marker != "[time]":
        assert len(await at.events(marker, "model.completed")) == 4
        assert len(await at.notes(marker)) == 1


async def test_169_a_model_without_a_price_costs_null_and_is_not_stopped_for_it(at: Begun) -> None:
    run = await at.ended("[unpriced]")
    assert (run.status, run.usage.cost_usd, run.usage.output_tokens) == ("COMPLETED", None, 400)


async def test_children_share_their_parents_budget_and_their_use_ends_it(at: Begun) -> None:
    code, message = await at.failed("[parent]")
    assert code == "BUDGET_EXCEEDED"
    assert "the run and its children" in message
    ends = await at.events("[parent]", "child.finished")
    children = [await at.on.ended(str(end.payload["child_run_id"])) for end in ends]
    assert {child.limits["max_total_tokens"] for child in children} == {1_000}
    assert {child.error.error_code for child in children if child.error is not None} == {"BUDGET_EXCEEDED"}
    run = await at.ended("[parent]")
    assert run.usage.input_tokens + run.usage.output_tokens == 3_000


async def test_children_share_their_parents_turns_and_time_and_their_use_ends_it(at: Begun) -> None:
    code, message = await at.failed("[turns]")
    assert code == "MAX_ITERATIONS"
    assert "the run and its children used 6 of 6 turns" in message
    ends = [end.payload for end in await at.events("[turns]", "child.finished")]
    children = [await at.on.ended(str(end["child_run_id"])) for end in ends]
    assert sorted(child.iteration for child in children) == [2, 3]
    assert [end["iterations"] for end in ends] == [child.iteration for child in children]
    assert all(int(str(end["owned_ms"])) > 0 for end in ends)
    shares = [float(str(child.limits["timeout_s"])) for child in children]
    assert all(1_700 < share < 1_800 for share in shares)
    assert {child.error.error_code for child in children if child.error is not None} == {"MAX_ITERATIONS"}


async def test_a_last_turn_carries_out_what_it_can_and_delegates_to_nobody(at: Begun) -> None:
    code, message = await at.failed("[last]")
    assert (code, "what it had delegated is stopped" in message) == ("MAX_ITERATIONS", True)
    (result,) = await at.events("[last]", "tool.completed")
    assert (result.payload["ok"], result.payload["output"]) == (True, "at last")
    assert not any(
        "[idle] c" in str(body["messages"]) and "[last]" not in str(body) for body in at.requests("[idle]")
    )


async def test_a_child_that_uses_up_its_parents_budget_stops_its_siblings(at: Begun) -> None:
    code, message = await at.failed("[greedy]")
    assert (code, "what it had delegated is stopped" in message) == ("BUDGET_EXCEEDED", True)
    made = {str(event.payload["call_id"]) for event in await at.events("[greedy]", "tool.requested")}
    slow = child_run_id(at.runs["[greedy]"], max(made))
    assert (await at.on.ended(slow)).status == "CANCELLED"


async def test_fallback_models_are_asked_in_their_order_and_named_by_the_turn(at: Begun) -> None:
    run = await at.ended("[fallback]")
    assert (run.status, run.answer) == ("COMPLETED", "By the third.")
    asked = [body["model"] for body in at.requests("[fallback]")]
    assert asked == ["scripted", "scripted", "second", "third"]
    turns = await at.events("[fallback]", "model.completed")
    assert [event.payload["model"] for event in turns] == ["scripted", "third"]
    assert run.usage.cost_usd is None


async def test_usage_that_the_endpoint_does_not_count_is_estimated_and_says_so(at: Begun) -> None:
    usage = (await at.ended("[uncounted]")).usage
    assert (usage.estimated, usage.requests) == (True, 1)
    assert usage.input_tokens > 100
    assert not (await at.ended("[cost]")).usage.estimated

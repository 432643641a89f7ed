"""The cases from the field about streams, calls and histories (A, B and C), each a run through five real processes.

All runs begin together, so that no test waits for another's. Those that need a silence or a crash (40, 61 and 62) are
in `test_silences_and_crashes.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec
import pytest

from deploy.dev.model_rules import SentRequest
from libs.contracts.views import UsageView
from services.executor.endpoint.talk import WAIT_SCALE
from tests.e2e.call_cases import CALL_CASES
from tests.e2e.field_case import Case, asked, check, habits, legal, script, submitted
from tests.e2e.stage import Stage, call, calls, says, stage
from tests.e2e.stream_cases import STREAM_CASES
from tests.fakes.waiting import eventually

CASES = (*STREAM_CASES, *CALL_CASES)
STEERED = (
    Case("74a", "what a person says waits for the results", [calls(call("run_tests"), call("echo", text="x")), says("Done.")]),
    Case("74b", "and stands in the last of them where a user may not follow", [calls(call("run_tests")), says("Done.")],
        rules=("no_user_after_tool",), refused=1),
)  # fmt: skip
# Goes on when the test lets it.
WAITING = "while [ ! -f go ]; do sleep 0.02; done\n"
PROFILES = {
    "spoken": {"text_calls": True},
    "large": {"output_tokens_max": 128_000, "context_tokens": 128_000},
    "larger": {"output_tokens_max": 100_000},
    "newer": {"output_tokens_max": 4_096},
}

PRICE = {"input": 1_000, "cached": 100, "cache_write": 2_000, "output": 10_000}


class Played(NamedTuple):
    """The stage with a run for each case."""

    on: Stage
    runs: dict[str, str]


@pytest.fixture(scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Played]:
    folder = tmp_path_factory.mktemp("cases")
    (folder / "prices.json").write_text(json.dumps({"model-5a": PRICE}))
    settings = {
        WAIT_SCALE: "0.002",
        "PERDURE_MODEL_PROFILES": json.dumps(PROFILES),
        "PERDURE_MODEL_PRICES": str(folder / "prices.json"),
    }
    async with stage(folder, script((*CASES, *STEERED)), settings, rules=habits((*CASES, *STEERED))) as on:
        runs = await asyncio.gather(*(submitted(on, case) for case in CASES))
        yield Played(on, {case.number: run_id for case, run_id in zip(CASES, runs, strict=True)})


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.number}: {case.must}")
async def test_a_case_from_the_field_holds_over_http(at: Played, case: Case) -> None:
    await check(at.on, case, at.runs[case.number])


@pytest.mark.parametrize("case", STEERED, ids=lambda case: f"{case.number}: {case.must}")
async def test_what_a_person_says_during_a_tool_never_parts_a_call_from_its_result(
    at: Played, case: Case
) -> None:
    folder = at.on.workspace(f"case-{case.number}", {"run_tests.sh": WAITING})
    run_id = await at.on.submit(f"{case.marker} Go.", workspace=folder.name, model=case.model)
    await at.on.event(run_id, "tool.requested")
    await at.on.client.message(run_id, "Use tabs.")
    (folder / "go").touch()
    run = await at.on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    events = await at.on.events(run_id)
    legal(events)
    body = asked(at.on, case)[-1]
    last = msgspec.json.decode(body, type=SentRequest).messages[-1]
    assert last.role == ("user" if case.number == "74a" else "tool")
    assert last.text.endswith("Use tabs.")


async def test_76_the_schemas_of_tools_count_as_context(at: Played) -> None:
    case = CASES[0]
    requested = await at.on.event(at.runs[case.number], "model.requested")
    body = asked(at.on, case)[0]
    tools = msgspec.json.decode(body, type=dict[str, msgspec.Raw])["tools"]
    estimated = int(str(requested.payload["estimated_tokens"]))
    assert len(bytes(tools)) > len(body) / 4
    assert len(body) / 6 < estimated < len(body) / 2


async def test_5_what_a_cache_gave_and_took_is_counted_and_priced(at: Played) -> None:
    run = await at.on.ended(at.runs["5a"])
    counts = run.usage.model_dump(exclude={"cost_usd"})
    assert counts == {
        "requests": 1,
        "input_tokens": 1_000,
        "cached_tokens": 900,
        "cache_write_tokens": 60,
        "output_tokens": 5,
        "reasoning_tokens": 3,
        "estimated": False,
    }
    # In thousandths of a USD: 40 at 1, 900 at 0.1, 60 at 2, 5 at 10.
    assert run.usage.cost_usd == pytest.approx((40 + 90 + 120 + 50) / 1_000)
    turn = await at.on.event(at.runs["5a"], "model.completed")
    assert turn.payload["usage"] == {**counts, "cost_usd": run.usage.cost_usd}

    async def listed() -> UsageView:
        found = await at.on.client.runs(q="[case 5a]")
        return found.runs[0].usage

    await eventually(listed, "the usage in the list", fits=lambda usage: usage == run.usage)

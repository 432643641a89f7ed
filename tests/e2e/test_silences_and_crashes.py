"""Silent streams, a provider that fails at random, and crashes between calls and their results (cases 40, 61 and 62),
through five real processes.

The executor is the product's but for the silence that it bears, so that a test can sit one out; a host of a tool that
must not be repeated stands beside it. Runs go on together, and one crash serves both cases.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from deploy.dev.model_rules import SentMessage, SentRequest
from deploy.dev.plan import SERVICES, Service
from libs.contracts.http import Reconciliation
from libs.contracts.views import EventView
from tests.e2e.field_case import legal, sent, text, tries
from tests.e2e.flaky_runs import FLAKY, flaky_runs, flaky_server, no_effect_twice
from tests.e2e.stage import Script, Stage, call, calls, eventually, says, stage
from tests.fakes.flaky import FlakyServer
from tests.fakes.impatient_executor import IDLE_S
from tests.fakes.waiting import PATIENCE_S, until
from tests.fakes.wire import DONE, chunk, fin, usage

COUNTING_HOST = Service(name="countinghost", argv=(sys.executable, "-m", "tests.fakes.counting_host"))
IMPATIENT = (sys.executable, "-m", "tests.fakes.impatient_executor")
PINGS = 6
PING_S = 0.25
LONGER_THAN_SILENCE_S = IDLE_S + 0.3
assert PINGS * PING_S > IDLE_S

COUNTED = {"index": 0, "id": "x", "type": "function", "function": {"name": "count"}}
SLOWLY = json.dumps({"counter": "slowly", "seconds": LONGER_THAN_SILENCE_S})
SILENCES: Script = {
    "[40 comments]": [sent(*[b":\n\n"] * PINGS, text("Thought."), chunk_delay_s=PING_S)],
    "[40 nothing]": [tries(says("Late.", delay_s=PATIENCE_S), says("Back."))],
    "[40 no more]": [tries(sent(b":\n\n", end="hang"), says("Back."))],
    # The connection stays open behind the end of the stream.
    "[40 over]": [
        sent(
            chunk(tool_calls=[{**COUNTED, "function": {"name": "count", "arguments": SLOWLY}}]),
            fin("tool_calls") + usage(10, 5) + DONE,
            end="hang",
        ),
        says("Counted."),
    ],
}
CRASHES: Script = {
    f"[{marker}]": [calls(call("echo", text="one"), second, call("echo", text="three")), says("Done.")]
    for marker, second in (
        ("61", call("count", counter="two")),
        ("62 again", call("run_tests")),
        ("62 unknown", call("count", counter="held", hold=True)),
    )
}
# Goes on while its reader stands still.
STREAMED = [
    chunk(content="I count."),
    chunk(tool_calls=[{**COUNTED, "function": {"name": "count", "arguments": '{"counter":"frozen"}'}}]),
    fin("tool_calls") + usage(10, 5) + DONE,
]
FROZEN: Script = {"[40 frozen]": [sent(*STREAMED, chunk_delay_s=0.5), says("Counted.")]}
# An owner's appends: its claim with the request, then the model's turn with the intents of its calls.
AT_THE_CALLS = "append 2 after 61"
# Goes on when the test lets it.
TESTS = "touch begun\nwhile [ ! -f go ]; do sleep 0.02; done\necho tested\n"


@pytest.fixture(scope="module")
async def on(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("silences")
    settings = {"COUNTING_FOLDER": str(folder), "PERDURE_TEST_CRASH": str(folder)}
    services = tuple(
        msgspec.structs.replace(service, argv=IMPATIENT) if service.name == "executor" else service
        for service in SERVICES
    )
    script = {**SILENCES, **CRASHES, **FROZEN, **FLAKY}
    async with stage(
        folder, script, settings, services=(*services, COUNTING_HOST), server=flaky_server
    ) as ready:
        yield ready


@pytest.fixture(scope="module")
async def silences(on: Stage) -> dict[str, str]:
    """A run for each silence; all begin together."""
    runs = await asyncio.gather(*(on.submit(marker) for marker in SILENCES))
    return dict(zip(SILENCES, runs, strict=True))


@pytest.fixture(scope="module")
async def counted(on: Stage, silences: dict[str, str]) -> list[str]:  # noqa: ARG001 they begin before these do
    """The runs on a provider that fails at random, at their ends: they go on while the silences are sat out."""
    return await flaky_runs(on)


class Crashed(NamedTuple):
    """What became of a run that a crash found between its calls and their results."""

    events: list[EventView]
    request: list[SentMessage]

    @property
    def behind_the_calls(self) -> list[SentMessage]:
        (turn,) = [at for at, message in enumerate(self.request) if message.tool_calls]
        return self.request[turn + 1 :]

    @property
    def call_ids(self) -> list[str]:
        return [made.id for message in self.request for made in message.tool_calls or ()]

    def before_the_next_owner(self, kind: str) -> list[str]:
        """The calls of all events of a kind that were there when the next owner came."""
        second = [event.sequence for event in self.events if event.type == "run.claimed"][1]
        found = [event for event in self.events[: second - 1] if event.type == kind]
        return [str(event.payload.get("call_id")) for event in found]


@pytest.fixture(scope="module")
async def crashed(on: Stage, silences: dict[str, str], counted: list[str]) -> dict[str, Crashed]:  # noqa: ARG001 they are over
    """Runs whose second call is at work while executor and hosts die, and one that had not begun its calls."""
    await asyncio.gather(*(on.ended(run_id) for run_id in silences.values()))
    folder = on.workspace("crashed", {"run_tests.sh": TESTS})
    unknown, again = await on.submit("[62 unknown]"), await on.submit("[62 again]", workspace=folder.name)
    await eventually(lambda: _effects(on, "held"), "the effect of unknown outcome")
    await eventually(lambda: _there(folder / "begun"), "the tests at work")
    await eventually(lambda: _results(on, again, 2), "the results beside the tests")
    # Nothing but the run of case 61 appends from here on.
    await on.event(again, "workspace.snapshotted")
    order = on.data.parent / "executor-1"
    order.write_text(AT_THE_CALLS)
    begun = await on.submit("[61]")
    await eventually(lambda: _gone(order), "the death of the executor")
    for host in ("toolhost", "countinghost"):
        on.perdure.kill(host)
    (folder / "go").touch()
    runs = {"[61]": begun, "[62 again]": again, "[62 unknown]": unknown}
    for run_id in runs.values():
        await on.client.message(run_id, "Use tabs.")
    call_id = str((await on.event(unknown, "reconciliation.required")).payload["call_id"])
    word = Reconciliation(call_id=call_id, decision="accept", observation="seen: counted")
    await on.client.reconcile(unknown, word)
    return {marker: await _crashed(on, run_id, marker) for marker, run_id in runs.items()}


async def _crashed(on: Stage, run_id: str, marker: str) -> Crashed:
    run = await on.ended(run_id)
    assert (run.status, run.answer) == ("COMPLETED", "Done."), run.error
    events = await on.events(run_id)
    legal(events)
    return Crashed(events, msgspec.json.decode(_bodies(on, marker)[-1], type=SentRequest).messages)


async def _there(path: Path) -> bool:
    return path.exists()


async def _gone(path: Path) -> bool:
    return not path.exists()


async def _results(on: Stage, run_id: str, number: int) -> bool:
    return sum(event.type == "tool.completed" for event in await on.events(run_id)) == number


async def _effects(on: Stage, counter: str) -> list[str]:
    path = on.data.parent / "effects"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.endswith(f" {counter}")]


def _bodies(on: Stage, marker: str) -> list[bytes]:
    return [body for body in on.model.bodies if marker.encode() in body]


async def _asked(on: Stage, marker: str) -> bool:
    return bool(_bodies(on, marker))


async def _failures(on: Stage, run_id: str) -> list[dict[str, object]]:
    return [dict(event.payload) for event in await on.events(run_id) if event.type == "model.failed"]


async def test_every_run_on_a_provider_that_fails_at_random_completes_without_repeating_an_effect(
    on: Stage, counted: list[str]
) -> None:
    assert isinstance(on.model, FlakyServer)
    no_effect_twice(on.model, counted, (on.data.parent / "effects").read_text().splitlines())


async def test_40a_comments_keep_a_stream_alive_for_longer_than_the_silence_that_is_borne(
    on: Stage, silences: dict[str, str]
) -> None:
    run_id = silences["[40 comments]"]
    run = await on.ended(run_id)
    assert (run.status, run.answer, run.usage.requests) == ("COMPLETED", "Thought.", 1)
    assert await _failures(on, run_id) == []
    assert len(_bodies(on, "[40 comments]")) == 1
    legal(await on.events(run_id))


@pytest.mark.parametrize("marker", ["[40 nothing]", "[40 no more]"])
async def test_40b_silence_is_an_idle_timeout_and_asked_again(
    on: Stage, silences: dict[str, str], marker: str
) -> None:
    run = await on.ended(silences[marker])
    assert (run.status, run.answer) == ("COMPLETED", "Back.")
    (failure,) = await _failures(on, silences[marker])
    assert failure["final"] is False
    assert "ReadTimeout" in str(failure["message"])
    first, second = _bodies(on, marker)
    assert first == second
    legal(await on.events(silences[marker]))


async def test_40c_no_timeout_comes_late_when_the_stream_is_over(on: Stage, silences: dict[str, str]) -> None:
    run_id = silences["[40 over]"]
    run = await on.ended(run_id)
    assert (run.status, run.answer, run.usage.requests) == ("COMPLETED", "Counted.", 2)
    assert await _failures(on, run_id) == []
    assert len(_bodies(on, "[40 over]")) == 2
    assert len(await _effects(on, "slowly")) == 1
    legal(await on.events(run_id))


async def test_40d_a_process_that_stood_still_does_not_take_that_for_the_endpoints_silence(
    on: Stage, crashed: dict[str, Crashed]
) -> None:
    assert crashed  # Nobody else is at work any more.
    run_id = await on.submit("[40 frozen]")
    await eventually(lambda: _asked(on, "[40 frozen]"), "the request")
    on.perdure.kill("executor", signal.SIGSTOP)
    clock = asyncio.get_running_loop()
    began = clock.time()
    try:
        await until(lambda: clock.time() - began > LONGER_THAN_SILENCE_S + 0.5, "it stands still")
    finally:
        on.perdure.kill("executor", signal.SIGCONT)
    run = await on.ended(run_id)
    assert (run.status, run.answer) == ("COMPLETED", "Counted."), run.error
    legal(await on.events(run_id))
    assert len(await _effects(on, "frozen")) == 1
    if run.lease.epoch == 1:
        # On a machine so busy that it was taken for dead its successor asks again.
        assert await _failures(on, run_id) == []
        assert len(_bodies(on, "[40 frozen]")) == 2
        assert run.usage.requests == 2


async def test_61_calls_that_a_crash_kept_from_results_are_answered_once_each_before_the_next_user_turn(
    on: Stage, crashed: dict[str, Crashed]
) -> None:
    case = crashed["[61]"]
    assert len(case.before_the_next_owner("model.completed")) == 1
    assert case.before_the_next_owner("tool.completed") == []
    *answered, last = case.behind_the_calls
    assert [message.tool_call_id for message in answered] == case.call_ids
    assert [message.text for message in answered] == ["one", "counted two", "three"]
    assert (last.role, last.text) == ("user", "Use tabs.")
    assert len(await _effects(on, "two")) == 1


@pytest.mark.parametrize("how", ["again", "unknown"])
async def test_62_only_the_missing_result_of_three_is_filled_in_and_the_order_is_kept(
    on: Stage, crashed: dict[str, Crashed], how: str
) -> None:
    """What may be repeated is; of what may not a person says what became of it, and what must wait for it waited."""
    case = crashed[f"[62 {how}]"]
    first, second, third = case.call_ids
    had = case.before_the_next_owner("tool.completed")
    assert sorted(had) == ([first, third] if how == "again" else [first])
    *answered, last = case.behind_the_calls
    assert [message.tool_call_id for message in answered] == [first, second, third]
    outputs = [message.text for message in answered]
    assert (outputs[0], outputs[2]) == ("one", "three")
    assert ("tested" if how == "again" else "seen: counted") in outputs[1]
    assert (last.role, last.text) == ("user", "Use tabs.")
    assert len(await _effects(on, "held")) == 1

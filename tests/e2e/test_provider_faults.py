"""A provider that fails in all the ways that were reported (cases 31 and 79 to 89), through five real processes.

The runs begin together, so that no test waits for another's; the waits between attempts are shortened, and what was
announced of them is looked at instead.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import httpx
import msgspec
import pytest

from deploy.dev.model_rules import SentRequest
from deploy.dev.model_script import Answer
from deploy.dev.model_server import Asked, ModelServer
from libs.contracts.views import EventView, RunView
from services.executor.endpoint.completion import Patience
from services.executor.endpoint.talk import PARKS_MAX, WAIT_SCALE
from tests.e2e.stage import Script, Stage, call, calls, eventually, says, stage, write_dotenv
from tests.fakes.waiting import PATIENCE_S
from tests.fakes.wire import DONE, chunk, data, fin, usage

ATTEMPTS = 1 + len(Patience().waits_s)
RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
REFUSED = (400, 401, 403, 404, 422)
WISHES = (
    {"retry-after-ms": "1500"},
    {"retry-after": "Sun, 29 Nov 2026 12:00:30 GMT"},
    {"retry-after": "0"},
    {"retry-after": "-5"},
    {"retry-after": "NaN"},
    {"retry-after": "abc"},
    {"x-should-retry": "true"},
)


def refusal(status: int, message: str = "no", code: str | None = None, **headers: str) -> dict[str, object]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {"status": status, "headers": named, "body": {"error": {"message": message, "code": code}}}


def sent(*stream: bytes, end: str = "complete") -> dict[str, object]:
    return {"base64": [base64.b64encode(piece).decode() for piece in stream], "end": end}


def tries(*answers: dict[str, object]) -> dict[str, object]:
    return {"attempts": list(answers)}


def echoes(number: int, *before: dict[str, object]) -> dict[str, object]:
    """A turn with a call of its own, behind what goes wrong first."""
    return tries(*before, calls(call("echo", text=f"step {number}")))


OVERFLOW = "This model's maximum context length is 10 tokens"
SCRIPT: Script = {
    "[31 before]": [tries(sent(end="reset"), says("abcdef"))],
    "[31 after]": [
        tries(
            sent(chunk(content="abc"), chunk(content="x"), end="reset") | {"chunk_delay_s": 0.2},
            says("abcdef"),
        )
    ],
    "[79]": [tries(*[refusal(429, retry_after="1")] * 10, says("Patience."))],
    "[80]": [refusal(429, "come back later", retry_after="11180")],
    "[82]": [*(echoes(n, refusal(429) | {"headers": wish}) for n, wish in enumerate(WISHES)), says("Done.")],
    "[82 never]": [refusal(500, x_should_retry="false")],
    "[83]": [*(echoes(n, refusal(status)) for n, status in enumerate(RETRIED)), says("Done.")],
    **{f"[83 {status}]": [refusal(status)] for status in (*REFUSED, 413)},
    "[85]": [tries(sent(end="reset"), says("Once."))],
    "[86]": [tries(sent(fin("stop"), usage(10, 0), DONE), says("Something."))],
    "[88 parent]": [calls(call("delegate", goal="[88 child] read on")), says("My child was cut off.")],
    "[88 child]": [
        calls(call("echo", text="half"), text="I have read the first half."),
        refusal(429, "rate limited"),
    ],
    "[89 status]": [*(echoes(n) for n in range(3)), tries(refusal(500, OVERFLOW), says("Shorter."))],
    "[89 stream]": [
        *(echoes(n) for n in range(3)),
        tries(
            sent(data({"error": {"message": "upstream", "code": "context_length_exceeded"}})), says("Short.")
        ),
    ],
    "[quota]": [refusal(429, "You exceeded your current quota", code="insufficient_quota")],
    "[cut]": [tries(sent(chunk(content="abc"), end="eof"), says("whole"))],
    "[down]": [refusal(503, "down for maintenance")],
    "[well]": [says("I am well.")],
    "[key]": [calls(call("run_tests")), says("Done.")],
}
# Started by their own tests.
LATER = ("[31 after]", "[88 child]", "[down]", "[well]", "[key]")


def key(name: str) -> str:
    return f"the-{name}-key-of-the-endpoint"


class Guarded(ModelServer):
    """Takes one key in the conversation about keys, and shows the one that it does not take."""

    key = key("first")

    def answer(self, body: bytes, headers: dict[str, str]) -> tuple[Asked, Answer, SentRequest | None]:
        given = headers["authorization"]
        if b"[key]" not in body or given == f"Bearer {self.key}":
            return super().answer(body, headers)
        request = msgspec.json.decode(body, type=SentRequest)
        asked = Asked(at=0, conversation=None, turn=0, attempt=1, model=request.model, bytes=len(body))
        error = {"error": {"message": f"Incorrect API key provided: {given}"}}
        return self._remember(asked, body, headers), Answer(status=401, body=error), request


class Faulty(NamedTuple):
    """The stage with a run for each conversation."""

    on: Stage
    runs: dict[str, str]
    folder: Path
    server: Guarded

    def configure(self, name: str) -> None:
        write_dotenv(self.folder, {"OPENAI_API_KEY": key(name)})

    async def ended(self, marker: str) -> RunView:
        return await self.on.ended(self.runs[marker])

    async def events(self, marker: str, kind: str) -> list[EventView]:
        return [event for event in await self.on.events(self.runs[marker]) if event.type == kind]

    def requests(self, marker: str) -> list[dict[str, object]]:
        """The bodies that were sent for a conversation: its HTTP calls."""
        bodies = [msgspec.json.decode(body, type=dict[str, object]) for body in self.on.model.bodies]
        return [body for body in bodies if marker in str(body["messages"])]


@pytest.fixture(scope="module")
async def at(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Faulty]:
    folder = tmp_path_factory.mktemp("faults")
    given = {"OPENAI_API_KEY": key("first")}
    async with stage(folder, SCRIPT, {WAIT_SCALE: "0.002"}, dotenv=given, server=Guarded) as on:
        begun = [marker for marker in SCRIPT if marker not in LATER]
        runs = await asyncio.gather(*(on.submit(marker) for marker in begun))
        assert isinstance(on.model, Guarded)
        yield Faulty(on, dict(zip(begun, runs, strict=True)), folder, on.model)


def patience_of(failures: list[EventView]) -> list[float]:
    """How long each failed attempt said that the next one would wait, in seconds."""
    waits: list[float] = []
    for event in failures:
        if event.payload["final"] is False:
            retry_at = datetime.fromisoformat(str(event.payload["retry_at"]))
            waits.append((retry_at - datetime.fromisoformat(event.at)).total_seconds())
    return waits


async def test_31_a_reset_before_the_first_delta_is_tried_again_and_nobody_sees_more_than_that(
    at: Faulty,
) -> None:
    run = await at.ended("[31 before]")
    assert (run.status, run.answer) == ("COMPLETED", "abcdef")
    assert [event.payload["final"] for event in await at.events("[31 before]", "model.failed")] == [False]
    assert len(await at.events("[31 before]", "model.completed")) == 1


async def test_31_a_reset_after_a_delta_shows_the_next_attempt_under_a_higher_number(at: Faulty) -> None:
    run_id = await at.on.submit("[31 after]", auto_start=False)
    shown: dict[int, str] = {}
    async with asyncio.timeout(PATIENCE_S), httpx.AsyncClient(timeout=PATIENCE_S) as http:
        url = f"{at.on.perdure.url}/api/runs/{run_id}"
        async with http.stream("GET", f"{url}/stream") as response:
            lines = response.aiter_lines()
            await anext(lines)
            assert (await http.post(f"{url}/start")).status_code == 202
            async for line in lines:
                if line.startswith("data:"):
                    event = EventView.model_validate_json(line.removeprefix("data:"))
                    if event.type == "model.delta":
                        attempt = int(str(event.payload["attempt"]))
                        shown[attempt] = shown.get(attempt, "") + str(event.payload["content"])
    assert shown[1] in ("abc", "abcx")
    assert shown.get(2, "abcdef") == "abcdef"
    completed = (await at.on.event(run_id, "model.completed")).payload
    assert (completed["content"], completed["attempt"]) == ("abcdef", 2)


async def test_79_a_tiny_retry_after_does_not_use_up_the_patience(at: Faulty) -> None:
    assert (await at.ended("[79]")).status == "COMPLETED"
    assert len(at.requests("[79]")) == 11
    waits = patience_of(await at.events("[79]", "model.failed"))[: ATTEMPTS - 1]
    assert sum(waits) >= 60
    assert min(waits) >= 0.9


async def test_80_a_long_retry_after_parks_the_run_without_an_owner_until_then(at: Faulty) -> None:
    run_id = at.runs["[80]"]
    run = await at.on.until(run_id, lambda run: run.status == "RETRYING")
    assert run.lease.owner is None
    released = (await at.on.event(run_id, "run.released")).payload
    requested = datetime.fromisoformat((await at.on.event(run_id, "model.requested")).at)
    waits = (datetime.fromisoformat(str(released["retry_at"])) - requested).total_seconds()
    assert 11_180 <= waits < 11_180 + PATIENCE_S
    assert "come back later" in str(released["message"])
    assert len(at.requests("[80]")) == 1
    await at.on.client.cancel(run_id)
    assert (await at.ended("[80]")).status == "CANCELLED"


async def test_82_every_form_of_a_wish_is_honoured_or_ignored(at: Faulty) -> None:
    assert (await at.ended("[82]")).status == "COMPLETED"
    assert len(at.requests("[82]")) == 2 * len(WISHES) + 1
    waits = patience_of(await at.events("[82]", "model.failed"))
    assert len(waits) == len(WISHES)
    # The wish for 1.5 s, less what it took to record it, and not the first wait of our own.
    assert waits[0] > 1
    run = await at.ended("[82 never]")
    assert (run.status, len(at.requests("[82 never]"))) == ("FAILED", 1)


async def test_83_statuses_of_passing_trouble_are_tried_again(at: Faulty) -> None:
    run = await at.ended("[83]")
    assert (run.status, run.iteration) == ("COMPLETED", len(RETRIED) + 1)
    assert len(at.requests("[83]")) == 2 * len(RETRIED) + 1


@pytest.mark.parametrize("status", REFUSED)
async def test_83_statuses_of_our_own_mistakes_are_not(at: Faulty, status: int) -> None:
    run = await at.ended(f"[83 {status}]")
    assert run.error is not None
    assert (run.status, run.error.error_code) == ("FAILED", "MODEL_ERROR")
    assert f"HTTP {status}" in run.error.message
    # The key may have been replaced: that is looked at once.
    assert len(at.requests(f"[83 {status}]")) == (2 if status == 401 else 1)


async def test_83_a_key_that_is_replaced_reaches_a_run_that_is_under_way(at: Faulty) -> None:
    folder = at.on.workspace("keys", {"run_tests.sh": "while [ ! -f go ]; do sleep 0.02; done\n"})
    at.server.key = key("first")
    at.configure("first")
    run_id = await at.on.submit("[key] Go.", workspace=folder.name)
    await at.on.event(run_id, "tool.requested")
    before, pids = len(at.requests("[key]")), at.on.perdure.pids
    at.server.key = key("second")
    at.configure("second")
    (folder / "go").touch()
    run = await at.on.ended(run_id)
    assert run.status == "COMPLETED", run.error
    assert len(at.requests("[key]")) == before + 2
    events = await at.on.events(run_id)
    (failed,) = [event.payload for event in events if event.type == "model.failed"]
    assert (failed["final"], "HTTP 401" in str(failed["message"])) == (False, True)
    assert at.on.perdure.pids == pids


async def test_83_a_key_that_stays_wrong_ends_the_run_after_one_more_look_and_says_what_to_do(
    at: Faulty,
) -> None:
    at.server.key = key("third")
    before = len(at.requests("[key]"))
    run = await at.on.ended(await at.on.submit("[key] Go."))
    assert run.error is not None
    assert (run.status, run.error.error_code) == ("FAILED", "MODEL_ERROR")
    assert "OPENAI_API_KEY" in run.error.message
    assert ".env" in run.error.message
    assert len(at.requests("[key]")) == before + 2
    shown = "".join(str(event.payload) for event in await at.on.events(run.run_id)) + run.error.message
    assert "-of-the-endpoint" not in shown


async def test_83_a_request_that_is_too_large_is_not_sent_again_as_it_is(at: Faulty) -> None:
    run = await at.ended("[83 413]")
    assert run.error is not None
    assert run.error.error_code == "CONTEXT_EXHAUSTED"
    assert len(at.requests("[83 413]")) == 1


async def test_85_a_retry_does_not_repeat_what_the_user_said(at: Faulty) -> None:
    assert (await at.ended("[85]")).status == "COMPLETED"
    first, second = at.requests("[85]")
    assert first == second
    assert str(second["messages"]).count("[85]") == 1
    kinds = [event.type for event in await at.on.events(at.runs["[85]"])]
    assert (kinds.count("run.created"), kinds.count("model.requested")) == (1, 1)


async def test_86_an_empty_turn_is_asked_for_again_by_the_only_path_there_is_and_counted_once_each(
    at: Faulty,
) -> None:
    run = await at.ended("[86]")
    assert (run.status, run.answer, run.usage.requests) == ("COMPLETED", "Something.", 2)
    first, second = at.requests("[86]")
    assert first == second


async def test_88_a_child_that_is_cut_off_by_rate_limits_is_an_error_with_its_partial_work(
    at: Faulty,
) -> None:
    run = await at.ended("[88 parent]")
    assert run.status == "COMPLETED", run.error
    (result,) = [event.payload for event in await at.events("[88 parent]", "tool.completed")]
    assert result["ok"] is False
    assert "FAILED" in str(result["output"])
    assert "rate limited" in str(result["output"])
    assert "I have read the first half." in str(result["output"])
    (finished,) = [event.payload for event in await at.events("[88 parent]", "child.finished")]
    child = await at.on.client.run(str(finished["child_run_id"]))
    assert child.error is not None
    assert child.error.error_code == "MODEL_ERROR"
    assert run.usage.input_tokens > child.usage.input_tokens > 0
    asked = [body for body in at.requests("[88 child]") if "[88 parent]" not in str(body["messages"])]
    assert len(asked) == 1 + ATTEMPTS * (1 + PARKS_MAX)


@pytest.mark.parametrize("marker", ["[89 status]", "[89 stream]"])
async def test_89_an_overflow_in_disguise_is_compacted_and_asked_once_more(at: Faulty, marker: str) -> None:
    run = await at.ended(marker)
    assert run.status == "COMPLETED", run.error
    assert len(await at.events(marker, "context.compacted")) == 1
    assert len(at.requests(marker)) == 5


async def test_a_quota_that_is_used_up_ends_the_run_after_one_request(at: Faulty) -> None:
    run = await at.ended("[quota]")
    assert (run.status, len(at.requests("[quota]"))) == ("FAILED", 1)


async def test_a_stream_that_is_cut_off_is_asked_for_again(at: Faulty) -> None:
    assert (await at.ended("[cut]")).answer == "whole"


async def test_a_model_that_stays_down_is_left_alone_and_health_says_so_while_others_work(at: Faulty) -> None:
    run_id = await at.on.submit("[down]", model="downed")

    async def left_alone() -> str | None:
        async with httpx.AsyncClient(timeout=PATIENCE_S) as http:
            health = (await http.get(f"{at.on.perdure.url}/api/health")).json()
        executors = health["services"]["executor"]
        return next(
            (info["models_left_alone"] for one in executors if "models_left_alone" in (info := one["info"])),
            None,
        )

    assert "downed" in await eventually(left_alone, "an open circuit")
    assert (await at.on.ended(await at.on.submit("[well]"))).status == "COMPLETED"
    run = await at.on.until(run_id, lambda run: run.status == "RETRYING")
    assert run.activity.startswith("tries again")
    await at.on.client.cancel(run_id)
    await at.on.ended(run_id)

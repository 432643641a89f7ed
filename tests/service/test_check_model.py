"""`perdure check-model` against endpoints that are what they should be, and against those that people really have."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.cli.check_model import examined, public
from deploy.cli.model_probe import CHECKS, Finding
from deploy.dev.model_script import Answer, Conversation, Script, ScriptedCall
from deploy.dev.model_server import ModelServer, serve
from services.executor.settings import ExecutorSettings
from tests.fakes.model import KEY, sent
from tests.fakes.wire import DONE, chunk, fin

DEADLINE_S = 30.0
ECHO = Answer(calls=[ScriptedCall(name="echo", arguments={"text": "perdure"})])
COUNTED = Answer(text=["one ", "two ", "three"])
USED = Answer(text="The word is zephyranth.")
ALL = dict.fromkeys(CHECKS, True)
HTML = "<html><body>Sign in</body></html>"
# What a model writes where the server does not read its calls.
SPOKEN = '<tool_call>{"name": "echo", "arguments": {"text": "perdure"}}</tool_call>'


def refused(status: int, message: str) -> Answer:
    return Answer(status=status, body={"error": {"message": message}})


@asynccontextmanager
async def endpoint(
    text: Answer = COUNTED, call: Answer = ECHO, result: Answer = USED, rules: list[str] | None = None
) -> AsyncGenerator[tuple[str, ModelServer]]:
    """A server that answers the three requests like this."""
    conversations = [Conversation(marker="Count", turns=[text]), Conversation(turns=[call, result])]
    server = ModelServer(Script(conversations=conversations, rules=rules))
    async with asyncio.timeout(DEADLINE_S), serve(server) as url:
        yield url, server


async def findings(url: str, *, timeout_s: float = 10.0, model: str = "m") -> list[Finding]:
    settings = ExecutorSettings.load("check-model", {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url})
    found = [finding async for finding in examined(settings, model, url, timeout_s)]
    assert tuple(finding.name for finding in found) == CHECKS
    assert not [finding for finding in found if KEY in finding.message]
    return found


def passed(found: list[Finding]) -> dict[str, bool]:
    return {finding.name: finding.passed for finding in found}


async def test_an_endpoint_that_can_carry_runs_passes_and_is_asked_three_times() -> None:
    async with endpoint() as (url, server):
        found = await findings(url)
        assert passed(found) == ALL
        assert server.count == 3
        # The result goes back under the call's own id, as in a run.
        last = json.loads(server.bodies[-1])["messages"]
        assert last[-1]["tool_call_id"] == last[-2]["tool_calls"][0]["id"]


async def test_habits_that_the_executor_learns_to_live_with_are_no_failure() -> None:
    async with endpoint(rules=["content", "pairing", "no_stream_options", "reasoning_required"]) as (url, _):
        assert passed(await findings(url)) == ALL


@pytest.mark.parametrize(
    "answer, advice",
    [
        (refused(401, f"Incorrect API key provided: {KEY}"), "OPENAI_API_KEY"),
        (refused(403, "not yours"), "OPENAI_API_KEY"),
        (Answer(status=404, body=HTML, headers={"content-type": "text/html"}), "/v1"),
        (Answer(raw=[HTML], headers={"content-type": "text/html"}), "/v1"),
        (Answer(raw=['{"detail":"hello"}'], headers={"content-type": "application/json"}), "/v1"),
    ],
    ids=["key", "forbidden", "path", "page", "something else"],
)
async def test_what_is_no_endpoint_for_this_key_fails_the_connection_with_advice(
    answer: Answer, advice: str
) -> None:
    async with endpoint(text=answer) as (url, server):
        found = await findings(url)
        assert server.count == 1
    assert not any(passed(found).values())
    assert advice in found[0].message
    assert "not tried" in found[1].message


@pytest.mark.parametrize(
    "answer, told",
    [
        (refused(404, "The model `m` does not exist"), "MODEL_ID 'm'"),
        (refused(429, "Rate limit reached"), "wait"),
        (refused(503, "overloaded"), "overloaded"),
        (Answer(base64=sent(chunk(content="one")), end="reset"), "server's log"),
        (Answer(base64=sent(fin("stop") + DONE)), ""),
        (Answer(reasoning="hm", text=""), "only reasoned"),
    ],
    ids=["model", "rate", "busy", "reset", "empty", "thoughts"],
)
async def test_an_endpoint_that_gives_no_text_is_connected_all_the_same(answer: Answer, told: str) -> None:
    async with endpoint(text=answer) as (url, _):
        found = await findings(url)
    assert [finding.passed for finding in found[:2]] == [True, False]
    assert told in found[1].message


async def test_an_answer_in_one_piece_fails_the_streaming_alone() -> None:
    whole = {"choices": [{"message": {"content": "one two"}, "finish_reason": "stop"}]}
    answer = Answer(raw=[json.dumps(whole)], headers={"content-type": "application/json"})
    async with endpoint(text=answer) as (url, _):
        assert passed(await findings(url)) == {**ALL, "Streaming": False}


@pytest.mark.parametrize(
    "answer, told",
    [
        (refused(400, "this model does not support tools"), "another model"),
        (Answer(text=SPOKEN), "into its text"),
        (Answer(text='{"name": "echo", "arguments": {"text": "perdure"}}'), "into its text"),
        (Answer(text="perdure"), "in words"),
        (Answer(calls=[ScriptedCall(name="sing", arguments={})]), "nobody offered"),
        (Answer(calls=[ScriptedCall(name="echo", arguments='{"text": [}')]), "cannot be read"),
    ],
    ids=["refused", "tags", "json", "words", "another tool", "broken arguments"],
)
async def test_a_model_that_does_not_call_fails_and_is_not_helped_along(answer: Answer, told: str) -> None:
    async with endpoint(call=answer) as (url, _):
        found = await findings(url)
    assert passed(found) == {**ALL, "Function calling": False, "Tool round trip": False}
    assert told in found[3].message
    assert "another model" in found[3].message


async def test_a_model_that_calls_at_the_second_try_can_call() -> None:
    async with endpoint(call=Answer(attempts=[Answer(text="perdure"), ECHO])) as (url, _):
        assert passed(await findings(url)) == ALL


@pytest.mark.parametrize("answer", [Answer(text="perdure"), ECHO, refused(400, "role 'tool' is unknown")])
async def test_a_result_that_is_not_used_fails_the_round_trip(answer: Answer) -> None:
    async with endpoint(result=answer) as (url, _):
        assert passed(await findings(url)) == {**ALL, "Tool round trip": False}


@pytest.mark.parametrize("answer", [Answer(text="late", delay_s=60), Answer(raw=[": ping\n\n"], end="hang")])
async def test_silence_ends_at_the_deadline(answer: Answer) -> None:
    async with endpoint(text=answer) as (url, _):
        found = await findings(url, timeout_s=0.4)
    assert not found[1].passed
    assert found[0].passed == (answer.raw is not None)


async def test_connections_that_fail_say_why() -> None:
    async with endpoint() as (url, _):
        secure = await findings(url.replace("http:", "https:"))
    assert "secure connection" in secure[0].message
    assert "nothing listens" in (await findings(url))[0].message
    unknown = await findings("http://no-such-host.invalid/v1")
    assert not any(passed(unknown).values())


async def test_nothing_configured_says_what_to_set() -> None:
    settings = ExecutorSettings.load("check-model", {})
    found = [finding async for finding in examined(settings, "", "", 1.0)]
    assert "OPENAI_API_KEY and MODEL_ID" in found[0].message
    assert not any(passed(found).values())


def test_an_address_is_shown_without_what_may_be_secret_in_it() -> None:
    assert public("https://me:pw@host:1/v1?key=1#2") == "https://host:1/v1"
    assert public("http://host") == "http://host"


async def command(folder: Path, environment: Mapping[str, str], *words: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "check-model", *words),
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), **environment},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode is not None
    assert KEY.encode() not in output
    return process.returncode, output.decode()


async def test_the_command_prints_a_line_a_check_and_exits_by_them(tmp_path: Path) -> None:
    async with endpoint() as (url, _):
        (tmp_path / ".env").write_text(f"OPENAI_API_KEY={KEY}\nOPENAI_BASE_URL={url}\nMODEL_ID=m\n")
        code, output = await command(tmp_path, {})
    assert code == 0
    assert [line.split()[0] for line in output.splitlines()[1:]] == ["PASS"] * len(CHECKS)


async def test_the_command_fails_without_function_calling_also_in_json(tmp_path: Path) -> None:
    call = Answer(base64=sent(chunk(content=SPOKEN) + fin("stop") + DONE))
    async with endpoint(call=call) as (url, _):
        known = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": url, "MODEL_ID": "m"}
        code, output = await command(tmp_path, known, "--json", "--model", "another")
    told = json.loads(output)
    assert (code, told["ok"], told["model"]) == (1, False, "another")
    assert [check["status"] for check in told["checks"]] == ["PASS"] * 3 + ["FAIL"] * 2

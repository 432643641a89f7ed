"""The demo as a user starts it: it proves the main job, and leaves the machine as it was."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from deploy.dev import demo_repair
from deploy.dev.model_script import Answer, Conversation, Script, load_script
from deploy.dev.model_server import ModelServer, serve
from deploy.dev.nats_server import free_port
from tests.e2e.demos import demo, living

# The demo bounds itself at 60 s and its drain behind that; this is for a demo whose own watchdog fails.
_DEADLINE_S = 100.0


async def test_the_demo_ends_completed_and_passed_and_leaves_nothing_behind(tmp_path: Path) -> None:
    async with demo(tmp_path) as process, asyncio.timeout(_DEADLINE_S):
        output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    for part in (
        "tool.completed",
        "verification PASSED",
        "+    share, left_over = divmod",
        "COMPLETED, PASSED",
    ):
        assert part in text, text
    assert "\x1b" not in text
    assert not list(tmp_path.iterdir())
    assert not living(tmp_path)


async def test_with_a_real_model_the_demo_is_what_that_model_makes_of_it(tmp_path: Path) -> None:
    turns = load_script(demo_repair.script().encode()).conversations[0].turns
    # It claims to be done before it is, like models do; the verifier says so, and it goes on.
    claim = Answer(text="All tests pass now.")
    server = ModelServer(Script(conversations=[Conversation(turns=[claim, *turns])]))
    async with serve(server) as url, asyncio.timeout(_DEADLINE_S):
        known = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "key-of-a-user", "MODEL_ID": "theirs"}
        async with demo(tmp_path, "--model", "real", **known) as process:
            output, _ = await process.communicate()
    text = output.decode()
    assert process.returncode == 0, text
    for part in (
        "model: theirs",
        "verification.completed FAILED",
        "verification PASSED",
        "COMPLETED, PASSED",
    ):
        assert part in text, text
    assert {asked.model for asked in server.asked} == {"theirs"}
    assert {headers["authorization"] for headers in server.headers} == {"Bearer key-of-a-user"}
    assert "key-of-a-user" not in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "known, told",
    [
        ({"OPENAI_API_KEY": "", "MODEL_ID": ""}, b"OPENAI_API_KEY and MODEL_ID not set"),
        ({"OPENAI_API_KEY": "k", "MODEL_ID": "m"}, b"nothing listens there"),
    ],
    ids=["unset", "nobody there"],
)
async def test_without_a_model_the_demo_of_a_real_one_starts_nothing_and_says_what_to_do(
    tmp_path: Path, known: dict[str, str], told: bytes
) -> None:
    known = {"DASHSCOPE_API_KEY": "", "OPENAI_BASE_URL": f"http://127.0.0.1:{free_port()}/v1", **known}
    async with demo(tmp_path, "--model", "real", **known) as process, asyncio.timeout(_DEADLINE_S):
        output, _ = await process.communicate()
    assert process.returncode == 2
    assert told in output
    assert not list(tmp_path.iterdir())


async def test_an_interrupted_demo_stops_all_that_it_started(tmp_path: Path) -> None:
    async with demo(tmp_path) as process, asyncio.timeout(_DEADLINE_S):
        assert process.stdout is not None
        while b"ready after" not in await process.stdout.readline():
            assert process.returncode is None
        process.send_signal(signal.SIGINT)
        await process.communicate()
    assert process.returncode == 130
    assert not living(tmp_path)
    assert not list(tmp_path.iterdir())

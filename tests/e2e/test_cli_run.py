"""`perdure run` and `perdure runs` against five real services: what they show, ask, and exit with."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.model_script import load_script
from deploy.dev.model_server import ModelServer, serve
from deploy.dev.plan import Plan

_DEADLINE_S = 60.0
_SCRIPT: dict[str, object] = {
    "conversations": [
        {"marker": "Greet", "turns": [{"text": "Hello there."}]},
        {
            "marker": "Paint",
            "turns": [
                {
                    "calls": [
                        {"name": "ask_user", "arguments": {"question": "Which?", "options": ["red", "blue"]}}
                    ]
                },
                {"text": "Painted."},
            ],
        },
        {"marker": "Ponder", "turns": [{"text": ["Let me "], "end": "hang"}]},
        {"marker": "Refuse", "turns": [{"status": 401, "body": {"error": {"message": "no such key"}}}]},
        {
            "marker": "Write",
            "turns": [
                {"calls": [{"name": "write_file", "arguments": {"path": "note.txt", "content": "kept\n"}}]},
                {"text": "I wrote `note.txt`."},
            ],
        },
    ]
}


class Ended(msgspec.Struct, frozen=True):
    """A command that has ended."""

    code: int | None
    output: str
    errors: str


@pytest.fixture(scope="module")
async def perdure(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Launcher]:
    """Everything on this machine, with a scripted model behind it."""
    log = MergedLog(io.StringIO(), readable=False)
    data = tmp_path_factory.mktemp("cli") / "data"
    async with serve(ModelServer(load_script(json.dumps(_SCRIPT).encode()))) as model_url:
        environment = {
            "PATH": os.environ["PATH"],
            "OPENAI_API_KEY": "any",
            "OPENAI_BASE_URL": model_url,
            "MODEL_ID": "scripted",
        }
        plan = Plan(data=data, environment=environment, port=0, directory=data.parent)
        async with Launcher(plan, log) as launcher:
            yield launcher
    log.close()


def environment(perdure: Launcher) -> dict[str, str]:
    """What a person's shell would hold."""
    return {**os.environ, "PERDURE_URL": perdure.url, "PERDURE_DATA": str(perdure.plan.data), "TERM": "xterm"}


async def start(perdure: Launcher, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", *words),
        env=environment(perdure),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def ended(process: asyncio.subprocess.Process) -> Ended:
    async with asyncio.timeout(_DEADLINE_S):
        output, errors = await process.communicate()
    return Ended(process.returncode, output.decode(), errors.decode())


async def command(perdure: Launcher, *words: str) -> Ended:
    return await ended(await start(perdure, *words))


async def test_a_run_that_completes_shows_its_answer_and_exits_0(perdure: Launcher) -> None:
    result = await command(perdure, "run", "Greet me.")
    assert result.code == 0, result
    assert "Hello there." in result.output
    assert "UNVERIFIED" in result.output
    assert "\x1b" not in result.output


async def test_json_gives_every_event_and_then_the_run(perdure: Launcher) -> None:
    result = await command(perdure, "run", "Greet me.", "--json")
    *events, run = [json.loads(line) for line in result.output.splitlines()]
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] == "run.completed"
    assert run["status"] == "COMPLETED"


async def test_a_directory_is_worked_on_in_place_and_accepted_by_its_command(
    perdure: Launcher, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    result = await command(
        perdure, "run", "Write a note.", "--workspace", str(project), "--accept", "grep kept note.txt"
    )
    assert result.code == 0, result
    assert "verification PASSED" in result.output
    assert (project / "note.txt").read_text() == "kept\n"


async def test_a_run_that_fails_exits_1_with_the_reason(perdure: Launcher) -> None:
    result = await command(perdure, "run", "Refuse me.")
    assert result.code == 1, result
    assert "MODEL_ERROR: HTTP 401: no such key" in result.output


async def test_without_a_terminal_a_question_exits_3_and_a_reply_goes_on(perdure: Launcher) -> None:
    result = await command(perdure, "run", "Paint it.")
    assert result.code == 3, result
    assert "the run asks: Which?" in result.output
    line = next(line for line in result.output.splitlines() if "perdure runs reply" in line)
    run_id = line.split()[-2]
    replied = await command(perdure, "runs", "reply", run_id, "blue", "--json")
    assert json.loads(replied.output)["run_id"] == run_id
    tailed = await command(perdure, "runs", "tail", run_id)
    assert tailed.code == 0
    assert "input.received         blue" in tailed.output
    shown = json.loads((await command(perdure, "runs", "show", run_id, "--json")).output)
    assert (shown["status"], shown["answer"]) == ("COMPLETED", "Painted.")
    listed = json.loads((await command(perdure, "runs", "list", "--status", "COMPLETED", "--json")).output)
    assert run_id in [run["run_id"] for run in listed["runs"]]
    again = await command(perdure, "runs", "reply", run_id, "red")
    assert again.code == 1
    assert "INVALID_STATE" in again.errors


async def test_on_a_terminal_the_question_is_asked_and_a_number_chooses(perdure: Launcher) -> None:
    master, slave = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "run", "Paint it."),
        env=environment(perdure),
        stdin=slave,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    shown = await until_shown(master, b"your answer> ")
    os.write(master, b"2\n")
    shown += await until_shown(master, b"COMPLETED")
    async with asyncio.timeout(_DEADLINE_S):
        assert await process.wait() == 0
    os.close(master)
    assert b"2. blue" in shown
    assert b"input.received" in shown


async def until_shown(terminal: int, wanted: bytes) -> bytes:
    """What a person sees until `wanted` stands there."""
    loop = asyncio.get_running_loop()
    seen, more = b"", asyncio.Event()
    loop.add_reader(terminal, more.set)
    try:
        async with asyncio.timeout(_DEADLINE_S):
            while wanted not in seen:
                await more.wait()
                more.clear()
                seen += os.read(terminal, 4096)
    finally:
        loop.remove_reader(terminal)
    return seen


async def test_an_interrupt_cancels_the_run_on_the_server_and_exits_130(perdure: Launcher) -> None:
    process = await start(perdure, "run", "Ponder it.")
    assert process.stdout is not None
    run_id = (await process.stdout.readline()).decode().split()[0]
    async with asyncio.timeout(_DEADLINE_S):
        while b"model.requested" not in await process.stdout.readline():
            assert process.returncode is None
    process.send_signal(signal.SIGINT)
    result = await ended(process)
    assert result.code == 130, result
    assert "CANCELLED" in result.output
    events = (await command(perdure, "runs", "events", run_id, "--json")).output.splitlines()
    assert json.loads(events[-1])["type"] == "run.cancelled"


async def test_what_the_server_refuses_is_told_with_its_code(perdure: Launcher) -> None:
    unknown = await command(perdure, "runs", "show", "run_0_" + "0" * 26)
    assert (unknown.code, "NOT_FOUND" in unknown.errors) == (1, True)
    blank = await command(perdure, "run", " ")
    assert blank.code == 2


async def test_without_a_server_the_way_to_start_one_is_named() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "deploy.cli", "runs", "list"),
        env={**os.environ, "PERDURE_URL": "http://127.0.0.1:1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    result = await ended(process)
    assert result.code == 1
    assert "perdure up" in result.errors

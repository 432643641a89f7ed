"""The launcher over stand-in services: what it keeps alive, refuses, drains, and never leaves behind."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import socket
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from deploy.cli.up import answers
from deploy.dev.child import Child, Program
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from libs.contracts.errors import ConfigurationError
from tests.fakes.standin_up import standin_health, standin_plan, standin_program
from tests.fakes.waiting import until

_DEADLINE_S = 20.0
_NOWHERE = "nats://127.0.0.1:1"


@asynccontextmanager
async def launched(
    folder: Path, *, nats_url: str | None = _NOWHERE, manners: dict[str, str] | None = None, port: int = 0
) -> AsyncGenerator[Launcher]:
    """A launcher over stand-ins, without a server unless `nats_url` is None."""
    log = MergedLog(io.StringIO(), readable=False)
    plan = standin_plan(folder, nats_url=nats_url, manners=manners, port=port)
    try:
        async with Launcher(plan, log, health=standin_health(folder)) as launcher:
            yield launcher
    finally:
        log.close()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be collected does not."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return fields[0] != "Z"


async def until_gone(pids: list[int]) -> None:
    await until(lambda: not any(is_alive(pid) for pid in pids), f"{pids} are gone")


async def test_a_child_that_is_killed_is_started_again(tmp_path: Path) -> None:
    async with launched(tmp_path) as perdure:
        before = perdure.kill("executor")
        await perdure.healthy(_DEADLINE_S)
        assert perdure.pids["executor"] != before
        assert set(perdure.pids) == {"gateway", "scheduler", "executor", "verifier", "toolhost"}


async def test_children_drain_in_order_and_the_server_last(tmp_path: Path) -> None:
    async with launched(tmp_path, nats_url=None) as perdure:
        server = perdure.pids["nats"]
        assert is_alive(server)
    order = (tmp_path / "drained").read_text().split()
    assert order == ["gateway", "scheduler", "executor", "verifier", "toolhost"]
    assert not is_alive(server)


async def test_a_child_that_does_not_drain_is_killed_at_its_deadline(tmp_path: Path) -> None:
    async with launched(tmp_path, manners={"executor": "stubborn"}) as perdure:
        stubborn = perdure.pids["executor"]
    assert not is_alive(stubborn)
    assert (tmp_path / "drained").read_text().split() == ["gateway", "scheduler", "verifier", "toolhost"]


async def test_a_folder_in_use_is_refused_with_the_pid_of_its_owner(tmp_path: Path) -> None:
    async with launched(tmp_path):
        with pytest.raises(ConfigurationError, match=f"in use by process {os.getpid()}"):
            async with launched(tmp_path):
                pytest.fail("two launchers own one folder")


async def test_a_busy_port_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1 port {port}"):
            async with launched(tmp_path, port=port):
                pytest.fail("it started on a busy port")
    assert not list(tmp_path.glob("*.pid"))


async def test_a_service_that_refuses_its_settings_ends_the_start_with_its_words(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"scheduler does not start: .*unknown variable PERDURE_TYPO"
    ):
        async with launched(tmp_path, manners={"scheduler": "refusing"}):
            pytest.fail("it became healthy without a scheduler")


async def test_a_program_that_refuses_its_settings_is_not_started_again(tmp_path: Path) -> None:
    output = io.StringIO()
    log = MergedLog(output, readable=False)
    program = standin_program(tmp_path, "scheduler", "refusing")
    child = Child(program, log)
    async with asyncio.timeout(_DEADLINE_S):
        await child.run()
    log.close()
    assert (child.starts, child.last_exit) == (1, 2)
    assert output.getvalue().count("PERDURE_TYPO") == 1


async def test_of_a_refusal_only_the_reason_is_told(tmp_path: Path) -> None:
    log = MergedLog(io.StringIO(), readable=False)
    said = json.dumps({"event": "service.misconfigured", "message": "the folder is none"})
    path = tmp_path / "refusing.py"
    path.write_text(f"print('starting')\nprint('{said}')\nraise SystemExit(2)\n")
    child = Child(
        Program(name="toolhost", argv=(sys.executable, "-S", str(path)), environment={}, drain_s=2.0), log
    )
    async with asyncio.timeout(_DEADLINE_S):
        await child.run()
    log.close()
    assert child.last_lines == "the folder is none"


async def test_a_foreign_server_is_asked_for_before_anything_is_started() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        assert await answers(f"nats://127.0.0.1:1, 127.0.0.1:{port}")
    assert not await answers(f"nats://127.0.0.1:{port}")


async def test_credentials_and_port_of_the_server_outlive_a_restart(tmp_path: Path) -> None:
    async with launched(tmp_path, nats_url=None) as perdure:
        first = perdure.credentials
    kept = tmp_path / "data" / "nats.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    async with launched(tmp_path, nats_url=None) as perdure:
        assert perdure.credentials == first
        assert set(json.loads(kept.read_text())) == {"url", "user", "password"}


async def test_the_server_that_is_killed_comes_back_on_its_port(tmp_path: Path) -> None:
    async with launched(tmp_path, nats_url=None) as perdure:
        before = perdure.kill("nats")
        assert perdure.credentials is not None
        port = int(perdure.credentials.url.rpartition(":")[2])
        async with asyncio.timeout(_DEADLINE_S):
            while "nats" not in perdure.pids or not await is_listening(port):
                await asyncio.sleep(0.02)
        assert perdure.pids["nats"] != before


async def is_listening(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


async def test_the_key_of_the_model_reaches_the_executor_and_the_verifier_only(tmp_path: Path) -> None:
    async with launched(tmp_path):
        told = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("*.environment")}
    knowing = {name for name, environment in told.items() if "OPENAI_API_KEY" in environment}
    assert knowing == {"executor", "verifier"}
    assert {environment["MODEL_ID"] for environment in told.values()} == {"scripted"}
    assert told["toolhost"]["REPLICA_ID"] == "toolhost-1"


@asynccontextmanager
async def up(folder: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    """The launcher as a process of its own, over stand-ins and a real server."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.standin_up", str(folder)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def ready_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(_DEADLINE_S):
        return (await process.stdout.readline()).decode()


async def test_up_says_ready_in_one_line_and_drains_on_sigterm(tmp_path: Path) -> None:
    async with up(tmp_path) as process:
        line = await ready_line(process)
        assert line.startswith("ready http://127.0.0.1:")
        # `timeout` and systemd tell the child and then the whole group.
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(_DEADLINE_S):
            rest, log = await process.communicate()
    assert process.returncode == 0
    assert rest == b""
    assert all(json.loads(text) for text in log.splitlines())
    assert (tmp_path / "drained").read_text().split()[0] == "gateway"


async def test_a_killed_launcher_leaves_no_process_and_a_free_folder(tmp_path: Path) -> None:
    async with up(tmp_path) as process:
        await ready_line(process)
        children = children_of(process.pid)
        assert len(children) == 6
        process.kill()
        await process.wait()
        await until_gone(children)
    async with launched(tmp_path, nats_url=None):
        assert not (tmp_path / "drained").exists()


def children_of(parent: int) -> list[int]:
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(path.parent.name))
    return found

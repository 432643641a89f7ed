"""The sandbox: a command reaches its workspace and little else; without one, everybody is told."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import pytest

from libs.contracts.errors import ConfigurationError
from services.toolhost.processes import Command, ProcessOutcome, marked
from services.toolhost.sandbox import Sandbox, SandboxMode, choose
from services.toolhost.sandbox.none import NoSandbox
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import PATIENCE_S, asleep, processes


@pytest.fixture
async def sandbox() -> Sandbox:
    chosen = await choose(SandboxMode.AUTO)
    if chosen.name == "none":
        pytest.skip(f"{chosen.warning}")
    return chosen


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "nats.json").write_text("secret of the bus")
    return tmp_path / "work"


async def run(
    sandbox: Sandbox,
    root: Path,
    script: str,
    *,
    timeout_s: float = PATIENCE_S,
    stop: asyncio.Event | None = None,
) -> ProcessOutcome:
    command = Command(
        argv=sandbox.wrap(["sh", "-c", script], root=root, directory=root),
        directory=root,
        call_id=f"call-{root.parent.name}",
        timeout_s=timeout_s,
        output_bytes_max=10_000,
        spare_leader=sandbox.spare_leader,
    )
    return await processes().run(command, stop=stop)


async def test_a_command_works_in_its_workspace_and_exits_as_it_does(sandbox: Sandbox, work: Path) -> None:
    outcome = await run(
        sandbox, work, f"pwd; echo x > made; {sys.executable} -c 'import json; print(json.dumps(1))'; exit 7"
    )
    assert outcome.exit_code == 7
    assert outcome.output == f"{work}\n1\n"
    assert (work / "made").read_text() == "x\n"


async def test_nothing_else_of_the_machine_is_seen_or_changed(sandbox: Sandbox, work: Path) -> None:
    script = "cat ../nats.json; cat /etc/shadow; ls /home /var; touch /usr/x /etc/x; touch /x ../y; ls -A ..; ls /tmp"
    outcome = await run(sandbox, work, script)
    assert "secret" not in outcome.output
    assert not Path("/usr/x").exists()
    assert not Path("/x").exists()
    assert os.listdir(work) == []
    assert sorted(os.listdir(work.parent)) == ["nats.json", "work"]


async def test_there_is_no_network_and_no_foreign_process(sandbox: Sandbox, work: Path) -> None:
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    program = f"import socket; socket.create_connection(('127.0.0.1', {port}), 2)"
    outcome = await run(
        sandbox, work, f'{sys.executable} -c "{program}"; ls -d /proc/[0-9]* | wc -l; kill -0 {os.getpid()}'
    )
    server.close()
    assert "ConnectionRefusedError" in outcome.output or "unreachable" in outcome.output
    counts = [int(line) for line in outcome.output.splitlines() if line.isdigit()]
    assert len(counts) == 1
    assert counts[0] < 10
    assert outcome.exit_code != 0


async def test_the_polite_signal_lets_traps_run_inside(sandbox: Sandbox, work: Path) -> None:
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(
            run(sandbox, work, "trap 'rm lock; exit 3' TERM; touch lock; sleep 1000", stop=stop)
        )
        await until(lambda: asleep(f"call-{work.parent.name}") == 1, "all of the call sleep")
        stop.set()
    assert (running.result().cancelled, running.result().exit_code) == (True, 3)
    assert os.listdir(work) == []


async def test_nothing_inside_survives_the_command(sandbox: Sandbox, work: Path) -> None:
    outcome = await run(sandbox, work, "setsid sleep 1000 & (env -i setsid sleep 1000 &); echo ok")
    assert (outcome.output, outcome.exit_code) == ("ok\n", 0)
    stubborn = await run(sandbox, work, "trap '' TERM; setsid sleep 1000 & sleep 1000", timeout_s=0.3)
    assert stubborn.timed_out
    assert marked(f"call-{work.parent.name}") == []


async def test_no_sandbox_says_so_and_runs_the_command_as_it_is(work: Path) -> None:
    chosen = await choose(SandboxMode.NONE)
    assert chosen.warning is not None
    assert "without a sandbox" in chosen.warning
    assert chosen.wrap(["a", "b"], root=work, directory=work) == ["a", "b"]
    assert "not installed" in str(NoSandbox(reason="bwrap is not installed").warning)


async def test_a_sandbox_that_was_asked_for_must_work() -> None:
    if shutil.which("bwrap") is None:
        with pytest.raises(ConfigurationError, match="apt-get install bubblewrap"):
            await choose(SandboxMode.BWRAP)
    else:
        assert (await choose(SandboxMode.BWRAP)).name == "bwrap"
    with pytest.raises(ValueError, match="docker"):
        SandboxMode("docker")

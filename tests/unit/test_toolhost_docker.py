"""Commands in containers: what docker is asked for, and that no container stays, whoever dies."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.chassis.clock import SystemClock
from services.toolhost.cgroups import Bounds
from services.toolhost.processes import Command, Processes
from services.toolhost.sandbox.docker import Docker, container_of
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import PATIENCE_S

BOUNDS = Bounds(memory_bytes=1 << 30, processes=100)
# Stands in for the client: says what it was asked for, and keeps its containers as files.
CLIENT = """#!/bin/sh
here=$(dirname "$0")
echo "$@" >> "$here/asked"
if [ "$1" = rm ]; then for last; do :; done; rm -f "$here/$last.up"; exit 0; fi
while [ "$1" != IMAGE ]; do
    [ "$1" = --name ] && name=$2
    [ "$1" = --entrypoint ] && program=$2
    shift
done
shift
echo up > "$here/$name.up"
"$program" "$@"
code=$?
rm -f "$here/$name.up"
exit $code
"""


@pytest.fixture
def client(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(CLIENT)
    (folder / "docker").chmod(0o755)
    return folder


@pytest.fixture
async def hosts(client: Path) -> AsyncIterator[Processes]:
    inherited = {"PATH": f"{client}:{os.environ['PATH']}"}
    async with aclosing(Processes(clock=SystemClock(), inherited=inherited)) as made:
        yield made


def command(folder: Path, *argv: str, **changes: object) -> Command:
    fields: dict[str, object] = {
        "argv": list(argv),
        "directory": folder,
        "call_id": "run_1.call_1.1",
        "timeout_s": PATIENCE_S,
        "output_bytes_max": 1000,
    }
    return Command(**(fields | changes))  # pyright: ignore[reportArgumentType] - the names are checked at run time.


def test_a_container_gets_the_workspace_and_nothing_else() -> None:
    sandbox = Docker("IMAGE", BOUNDS, cpus=2)
    root = Path("/w/s")
    asked = sandbox.confine(
        command(root / "below", "make", "a b", "--x", environment={"MINE": "secret", "PATH": "/p"}), root=root
    )
    name = container_of("run_1.call_1.1")
    assert asked.argv[:4] == ["docker", "run", "--name", name]
    assert asked.removal == ["docker", "rm", "--force", "--volumes", name]
    # What it is given is no word of a command, which everybody on the machine sees; the client keeps its own.
    assert asked.environment == {"MINE": "secret"}
    assert not any("secret" in word for word in asked.argv)
    assert asked.argv[asked.argv.index("--entrypoint") :] == ["--entrypoint", "make", "IMAGE", "a b", "--x"]
    said = " ".join(asked.argv)
    for wanted in (
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--memory 1073741824 --memory-swap 1073741824",
        "--pids-limit 100",
        "--cpus 2",
        "--ulimit core=0:0",
        "--ulimit nofile=4096:4096",
        "--ulimit fsize=2147483648:2147483648",
        "--tmpfs /tmp:rw,exec,nosuid,nodev,mode=1777,size=1073741824",
        "--mount type=bind,source=/w/s,target=/w/s",
        "--workdir /w/s/below",
        f"--user {os.geteuid()}:{os.getegid()}",
        "--label perdure.call=run_1.call_1.1",
        "--ipc private",
        "--rm --init --pull never --no-healthcheck --log-driver none",
        "--env MINE",
        "--env PATH=/p",
        "--env HOME=/tmp",
        "--env GIT_TERMINAL_PROMPT=0",
        "--env PERDURE_CALL=run_1.call_1.1",
    ):
        assert f" {wanted} " in said, wanted
    for never in (
        "--privileged",
        "--cap-add",
        "--volume",
        "--device",
        "--pid ",
        "--userns",
        "docker.sock",
        "-it",
        " sh ",
    ):
        assert never not in said
    assert said.count("--mount") == 1


def test_a_container_has_a_network_only_when_it_is_given_one() -> None:
    sandbox = Docker("IMAGE", BOUNDS, address="tcp://daemon:2375")
    asked = sandbox.confine(command(Path("/w"), "true"), root=Path("/w"), network=True)
    assert asked.argv[:4] == ["docker", "--host", "tcp://daemon:2375", "run"]
    assert asked.argv[asked.argv.index("--network") + 1] == "bridge"
    assert asked.removal[:3] == ["docker", "--host", "tcp://daemon:2375"]


def test_a_container_sees_more_only_where_the_command_may_read_it() -> None:
    more = [Path("/srv/a,b"), Path("/opt/tool")]
    asked = Docker("IMAGE", BOUNDS).confine(command(Path("/w"), "true", readable=more), root=Path("/w"))
    mounts = [asked.argv[at + 1] for at, word in enumerate(asked.argv) if word == "--mount"]
    assert mounts == [
        "type=bind,source=/w,target=/w",
        'type=bind,"source=/srv/a,b","target=/srv/a,b",readonly',
        "type=bind,source=/opt/tool,target=/opt/tool,readonly",
    ]


def test_a_path_cannot_add_an_option_to_the_mount() -> None:
    root = Path('/w/a,readonly="x')
    asked = Docker("IMAGE", BOUNDS).confine(command(root, "true"), root=root)
    mount = asked.argv[asked.argv.index("--mount") + 1]
    assert mount == 'type=bind,"source=/w/a,readonly=""x","target=/w/a,readonly=""x"'


async def test_a_command_that_ends_by_itself_needs_no_removal(
    hosts: Processes, client: Path, tmp_path: Path
) -> None:
    sandbox = Docker("IMAGE", BOUNDS)
    ended = await hosts.run(sandbox.confine(command(tmp_path, "sh", "-c", "echo out; exit 3"), root=tmp_path))
    assert (ended.exit_code, ended.output) == (3, "out\n")
    asked = (client / "asked").read_text().splitlines()
    assert [line.split()[0] for line in asked] == ["run"]


@pytest.mark.parametrize("manner", ["timeout", "cancel", "host"])
async def test_no_container_stays_when_its_client_is_killed(
    hosts: Processes, client: Path, tmp_path: Path, manner: str
) -> None:
    sandbox = Docker("IMAGE", BOUNDS)
    asked = sandbox.confine(command(tmp_path, "sleep", "1000", timeout_s=PATIENCE_S), root=tmp_path)
    up = client / f"{container_of('run_1.call_1.1')}.up"
    if manner == "host":
        program = f"""
import asyncio, sys
from pathlib import Path
from libs.chassis.clock import SystemClock
from services.toolhost.processes import Command, Processes
command = Command(argv={asked.argv!r}, directory=Path({str(tmp_path)!r}), call_id="run_1.call_1.1", timeout_s=100,
                  output_bytes_max=10, removal={asked.removal!r})
asyncio.run(Processes(clock=SystemClock(), inherited={{"PATH": sys.argv[1]}}, scratch=Path({str(tmp_path)!r})).run(command))
"""
        host = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, f"{client}:{os.environ['PATH']}"
        )
        await until(up.exists, "the container is up")
        host.send_signal(signal.SIGKILL)
        await host.wait()
    else:
        stop = asyncio.Event()
        changed = sandbox.confine(
            command(
                tmp_path, "sleep", "1000", timeout_s=0.5 if manner == "timeout" else PATIENCE_S, grace_s=0.1
            ),
            root=tmp_path,
        )
        async with asyncio.TaskGroup() as group:
            running = group.create_task(hosts.run(changed, stop=stop))
            await until(up.exists, "the container is up")
            if manner == "cancel":
                stop.set()
        assert running.result().timed_out is (manner == "timeout")
    await until(lambda: not up.exists(), "the container is removed")
    assert f"rm --force --volumes {up.stem}" in (client / "asked").read_text()

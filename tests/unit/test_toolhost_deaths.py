"""What is left when somebody in the chain from host to command is killed: nothing, or what the others can end."""

import asyncio
import os
import shutil
import signal
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from services.toolhost.cgroups import Group
from services.toolhost.launchpad import Launchpad
from services.toolhost.marks import kill_group, kill_marked, marked
from services.toolhost.proc import descendants, start_time
from tests.fakes.waiting import until
from tests.unit.test_toolhost_processes import run, shell
from tests.unit.toolhost_workspace import asleep, processes, run_alone


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_nothing_outlives_a_killed_tool_host(tmp_path: Path) -> None:
    host = """
import asyncio, os, sys
from pathlib import Path
from libs.chassis.clock import SystemClock
from services.toolhost.proc import descendants, start_time
from services.toolhost.processes import Command, Processes
folder, script = Path(sys.argv[1]), "trap '' TERM; sleep 1000 & setsid sleep 1000 & sleep 1000"
command = Command(argv=["sh", "-c", script], directory=folder, call_id=sys.argv[2], timeout_s=100, output_bytes_max=10)
asyncio.run(Processes(clock=SystemClock(), inherited=os.environ, scratch=folder).run(command))
"""
    call = f"call-{tmp_path.name}"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", host, tmp_path, call)
    await until(lambda: asleep(call) == 3, "all of the call sleep")
    below = [(pid, start_time(pid)) for pid in descendants(process.pid)]
    # The command's three processes with their shell, a launcher, and what that was forked from.
    assert len(below) >= 6
    process.kill()
    await process.wait()
    await until(lambda: marked(call) == [], "nothing of the call is left")
    await until(lambda: all(start_time(pid) != at for pid, at in below), "nothing below the host is left")


async def test_nothing_outlives_a_killed_launcher_and_its_host_knows(tmp_path: Path) -> None:
    call = f"call-{tmp_path.name}"
    running = asyncio.create_task(run(tmp_path, "setsid sleep 1000 & sleep 1000"))
    await until(lambda: asleep(call) == 2, "all of the call sleep")
    leader = min(marked(call))
    launcher = int(Path(f"/proc/{leader}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(launcher, signal.SIGKILL)
    outcome = await running
    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (None, None, False)
    await until(lambda: marked(call) == [], "nothing of the call is left")


async def test_a_killed_launchpad_takes_no_command_along_and_the_next_one_gets_another(
    tmp_path: Path,
) -> None:
    call = f"call-{tmp_path.name}"
    # Other tests of this process may have left helpers of their own, a watcher of semaphores for one.
    others = set(children_of(os.getpid()))

    def children() -> list[int]:
        return [pid for pid in children_of(os.getpid()) if pid not in others]

    async with aclosing(processes()) as hosts:
        running = asyncio.create_task(hosts.run(shell(tmp_path, "sleep 1000 & wait; echo well")))
        await until(lambda: asleep(call) == 1, "the command runs")
        (launchpad,) = children()
        os.kill(launchpad, signal.SIGKILL)
        await until(lambda: not children(), "it is gone")
        other = await hosts.run(shell(tmp_path, "echo too", call_id="another"))
        assert other.output == "too\n"
        for pid in marked(call):
            if Path(f"/proc/{pid}/comm").read_text() == "sleep\n":
                os.kill(pid, signal.SIGKILL)
        assert (await running).output == "well\n"
    await until(lambda: not children(), "no child of this process is left")


async def test_a_launch_while_a_launchpad_ends_has_one_that_stays() -> None:
    others = set(children_of(os.getpid()))
    pad = Launchpad()
    first = await pad.launch(Group(()))
    await first.started()
    # It waits for its launchers, of which there is one.
    _, second = await asyncio.gather(pad.close(), pad.launch(Group(())))
    third = await pad.launch(Group(()))
    for launched in (second, third):
        await launched.started()
    assert len(set(children_of(os.getpid())) - others) == 1
    for launched in (first, second, third):
        await launched.close()
    await pad.close()
    assert set(children_of(os.getpid())) == others


async def test_a_recorded_group_is_killed_only_if_it_is_still_the_same(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    async def note(group: int, start: int) -> None:
        told.append((group, start))

    running = asyncio.create_task(run_alone(shell(tmp_path, "sleep 1000"), on_started=note))
    await until(lambda: bool(marked(f"call-{tmp_path.name}")), "the call runs")
    group, start = told[0]
    assert not kill_group(group, start + 1)
    assert not kill_group(group, 0)
    assert kill_group(group, start)
    assert (await running).signal == signal.SIGKILL
    assert kill_marked(f"call-{tmp_path.name}") == 0


async def test_a_host_that_is_the_first_process_of_a_container_leaves_no_zombie(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("the program bwrap is not installed")
    host = """
import asyncio, os, sys
from contextlib import aclosing
from pathlib import Path
from libs.chassis.clock import SystemClock
from services.toolhost.processes import Command, Processes
async def main():
    async with aclosing(Processes(clock=SystemClock(), inherited=os.environ)) as hosts:
        for number in range(30):
            argv = ["sh", "-c", "(setsid sleep 100 &) ; (true &) ; (sleep .01 &)"]
            await hosts.run(Command(argv=argv, directory=Path("/"), call_id="c", timeout_s=100, output_bytes_max=10))
    # Who has just ended may be seen for a moment; a zombie of nobody stays.
    async with asyncio.timeout(30):
        while [pid for pid in os.listdir("/proc") if pid.isdigit()] != ["1"]:
            await asyncio.sleep(0.05)
    return "alone"
assert os.getpid() == 1
print(asyncio.run(main()))
"""
    container = ("bwrap", "--unshare-pid", "--as-pid-1", "--dev-bind", "/", "/", "--proc", "/proc")
    outcome = await run_alone(
        shell(tmp_path, "", argv=[*container, sys.executable, "-c", host], directory=Path.cwd())
    )
    assert (outcome.exit_code, outcome.output) == (0, "alone\n")

"""Control groups: where they can be made, what they bound, and what a dead host left in them."""

import asyncio
import os
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.chassis.clock import SystemClock
from services.toolhost.cgroups import MOUNTED, Bounds, Cgroups, Group, places
from services.toolhost.leftovers import Leftovers
from services.toolhost.marks import marked
from services.toolhost.predecessor import HolderRecord
from services.toolhost.processes import Command, Processes
from services.toolhost.sandbox.docker import Docker, container_of
from services.toolhost.sandbox.none import NoSandbox
from services.toolhost.workspace import place_of
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import PATIENCE_S, processes

BOUNDS = Bounds(memory_bytes=64 << 20, processes=30)


@pytest.fixture
def groups() -> Cgroups:
    found = Cgroups.probe(BOUNDS)
    if found is None:
        pytest.skip("control groups cannot be made here")
    return found


def test_the_place_is_below_this_process_in_either_version_of_the_interface(tmp_path: Path) -> None:
    old = tmp_path / "old"
    (old / "memory" / "service" / "x").mkdir(parents=True)
    (old / "pids").mkdir()
    lines = "8:pids:/not/there\n4:cpu,memory:/service/x\n0::/\n"
    assert list(places(lines, old)) == [(old / "memory" / "service" / "x", old / "pids")]
    new = tmp_path / "new"
    (new / "user.slice" / "x.scope").mkdir(parents=True)
    (new / "cgroup.controllers").write_text("memory pids")
    home = new / "user.slice" / "x.scope"
    assert list(places("0::/user.slice/x.scope\n", new)) == [(home,), (home.parent,)]
    assert list(places("0::/elsewhere\n", new)) == [(new,)]
    assert list(places("", tmp_path / "none")) == []


def test_where_no_group_can_be_made_there_are_none(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids")
    assert Cgroups.probe(BOUNDS, tmp_path) is None
    assert os.listdir(tmp_path) == ["cgroup.controllers"]


def test_a_group_without_folders_is_empty_and_harmless() -> None:
    nothing = Group(())
    nothing.remove()
    assert (nothing.doors, nothing.members(), nothing.kill(), nothing.ran_out_of_memory()) == (
        [],
        [],
        0,
        False,
    )


async def test_a_command_is_in_its_group_and_the_group_goes_with_it(groups: Cgroups, tmp_path: Path) -> None:
    command = Command(
        argv=["sh", "-c", "cat /proc/self/cgroup; (setsid env -i sleep 1000 &)"],
        directory=tmp_path,
        call_id=f"call-{tmp_path.name}",
        timeout_s=PATIENCE_S,
        output_bytes_max=5000,
    )
    async with aclosing(Processes(clock=SystemClock(), inherited=os.environ, cgroups=groups)) as hosts:
        ended = await hosts.run(command)
    assert f"/perdure-{os.getpid()}-" in ended.output
    assert ended.leftovers == 1
    paths = [
        line.split(":", 2)[2] for line in ended.output.splitlines() if f"/perdure-{os.getpid()}-" in line
    ]
    assert paths
    assert not list(MOUNTED.glob(f"*{paths[0]}"))


async def test_the_next_host_ends_what_a_dead_one_left_however_it_hides(
    groups: Cgroups, tmp_path: Path
) -> None:
    program = """
import os, subprocess, sys
from services.toolhost.cgroups import Bounds, Cgroups
group = Cgroups.probe(Bounds(64 << 20, 30)).make()
child = subprocess.Popen(["setsid", "env", "-i", "sleep", "1000"], stdout=subprocess.DEVNULL)
for door in group.doors:
    open(door, "w").write(str(child.pid))
print(child.pid, flush=True)
sys.stdout.close()
os.kill(os.getpid(), 9)
"""
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    told, _ = await host.communicate()
    pid = int(told)
    record = HolderRecord(place_of(tmp_path, "w", tenant=None))
    await Leftovers(processes(), NoSandbox(), groups).end(record)

    def is_gone() -> bool:
        groups.sweep()
        return (
            not list(MOUNTED.glob(f"pids/**/perdure-{host.pid}-*")) and not Path(f"/proc/{pid}/exe").exists()
        )

    await until(is_gone, "process and group are gone")


async def test_what_was_running_is_ended_by_its_mark_and_its_container_removed(tmp_path: Path) -> None:
    client = tmp_path / "docker"
    client.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    client.chmod(0o755)
    place = place_of(tmp_path, "w", tenant=None)
    record = HolderRecord(place)
    commands = place.git_dir.with_name(f"{place.key}.commands")
    commands.mkdir(parents=True)
    record.note_command("run_1.call_1.1", 1, 1)
    environment = {"PERDURE_CALL": "run_1.call_1.1", "PATH": os.environ["PATH"]}
    left = await asyncio.create_subprocess_exec("sleep", "1000", env=environment)
    await until(lambda: marked("run_1.call_1.1") == [left.pid], "the process has its mark")
    inherited = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    async with aclosing(Processes(clock=SystemClock(), inherited=inherited)) as hosts:
        leftovers = Leftovers(hosts, Docker("IMAGE", BOUNDS), None)
        assert await leftovers.end(record) == 1
    assert await left.wait() == -9
    assert (tmp_path / "asked").read_text() == f"rm --force --volumes {container_of('run_1.call_1.1')}\n"
    assert await leftovers.end(record) == 0


def test_only_a_sandbox_or_a_group_is_certain_to_find_everything(groups: Cgroups) -> None:
    assert not Leftovers(processes(), NoSandbox(), None).finds_all
    assert Leftovers(processes(), NoSandbox(), groups).finds_all
    assert Leftovers(processes(), Docker("IMAGE", BOUNDS), None).finds_all

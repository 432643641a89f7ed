"""Reported faults of other runtimes' shell tools (cases 91 to 104), each against a real tool host over the bus, after a
real approval."""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest

from deploy.dev.nats_server import NatsServer
from libs.bus.journal import key_of
from libs.bus.ports import Bus
from libs.contracts.tools import ToolResult
from services.toolhost.marks import marked
from services.toolhost.proc import descendants, start_time
from tests.bench.processes import rss_mb
from tests.fakes.waiting import until
from tests.service.hosted import Host, Shell, hosted, needs_bubblewrap
from tests.service.hosting_owner import host_of, owned_run, toolhost_process
from tests.unit.toolhost_workspace import asleep

# What a command may well say; `make soak` has the two gigabytes of the report.
HUGE_MIB = int(os.environ.get("HUGE_MIB", "50"))

_numbers = itertools.count()


@pytest.fixture(scope="module", params=["auto", "none"])
async def host(
    request: pytest.FixtureRequest, nats_node: NatsServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Host]:
    async with hosted(nats_node, tmp_path_factory.mktemp("workspaces"), str(request.param)) as shared:
        yield shared


@pytest.fixture
async def shell(host: Host) -> Shell:
    owner = await owned_run(host.bus, f"p{next(_numbers)}")
    await owner.attach(host.boot)
    return Shell(host, owner)


def lines(result: ToolResult) -> Sequence[str]:
    assert result.refused is None
    return result.output.splitlines()


async def test_a_background_child_that_keeps_writing_does_not_hold_the_call(shell: Shell) -> None:
    result = await shell.run("(while :; do echo x; sleep .1; done) & sleep .2; echo fg")
    assert result.ok
    assert "fg" in lines(result)
    assert len(result.output) < 5000


async def test_cancelling_ends_every_process_of_a_tree_that_floods_and_hides(shell: Shell) -> None:
    call = await shell.approved("run_command", command="bash -c 'setsid sleep 1000 & sleep 1000 & yes'")
    await shell.begin(call)
    await until(lambda: len(marked(key_of(call))) >= 4, "the tree runs")
    await shell.cancel()
    result = await shell.result(call)
    assert not result.ok
    await until(lambda: not marked(key_of(call)), "no process is left")


@pytest.mark.parametrize("sandbox", ["auto", "none"])
async def test_nothing_of_a_tree_that_floods_and_hides_outlives_its_killed_host(
    nats_node: NatsServer, bus: Bus, tmp_path: Path, sandbox: str
) -> None:
    needs_bubblewrap(sandbox)
    root = tmp_path / "root"
    async with toolhost_process(nats_node, bus, root, sandbox=sandbox) as process:
        host = Host(bus, (await host_of(bus, shared=False)).boot, root)
        owner = await owned_run(bus)
        await owner.attach(host.boot)
        shell = Shell(host, owner)
        call = await shell.approved("run_command", command="bash -c 'setsid sleep 1000 & sleep 1000 & yes'")
        await shell.begin(call)
        await until(lambda: asleep(key_of(call)) == 2, "the tree runs")
        below = [(pid, start_time(pid)) for pid in descendants(process.pid)]
        assert len(below) >= 6
        process.kill()
        await process.wait()
        await until(lambda: all(start_time(pid) != at for pid, at in below), "no process is left")
        assert not marked(key_of(call))


async def test_a_timeout_lets_traps_run_and_then_kills(shell: Shell) -> None:
    polite = await shell.run("trap 'rm -f lock' TERM; touch lock; sleep 100", timeout_s=0.5)
    assert lines(polite)[-1] == "[timed out after 0.5 s and was ended]"
    assert polite.metadata["timed_out"] is True
    assert not (shell.root / "lock").exists()
    stubborn = await shell.run("trap '' TERM; sleep 100", timeout_s=0.5)
    assert stubborn.metadata["timed_out"] is True


async def test_huge_output_is_cut_with_exact_counts(shell: Shell) -> None:
    before = rss_mb(os.getpid())
    result = await shell.run(f"yes | head -c {HUGE_MIB}M; echo end", timeout_s=600)
    assert rss_mb(os.getpid()) < before + HUGE_MIB / 2
    assert result.metadata["output_bytes"] == HUGE_MIB * 1024 * 1024 + 4
    dropped = result.metadata["dropped_bytes"]
    assert f"[{dropped} bytes left out]" in result.output
    assert lines(result)[-2:] == ["end", "[exit code 0]"]
    assert len(result.output) < 31_000


async def test_no_program_waits_for_a_person(shell: Shell) -> None:
    result = await shell.run(
        "git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m m && git log --oneline"
        " && git -c user.name=a -c user.email=b commit --amend -q --allow-empty; python3; read x; cat;"
        " git push https://127.0.0.1:1/x.git HEAD; sudo -n true; cat /dev/tty; echo through",
        timeout_s=20,
    )
    assert result.metadata["timed_out"] is False
    assert "through" in lines(result)


async def test_what_is_meant_for_a_terminal_is_left_out(shell: Shell) -> None:
    result = await shell.run(
        r"printf 'a\033[6n b\033]11;?\007c \033[31mred\033[0m \033]8;;http://x\033\\link\033]8;;\033\\ \033Pq\033\\d\000e\n'"
    )
    assert lines(result)[0] == "a bc red link de"


@pytest.mark.parametrize("code", [1, 137, 143])
async def test_an_exit_code_is_the_programs_own(shell: Shell, code: int) -> None:
    result = await shell.run(f"exit {code}")
    assert (result.ok, result.metadata["exit_code"], result.metadata["timed_out"]) == (False, code, False)
    assert lines(result) == [f"[exit code {code}]"]


async def test_a_long_line_and_a_large_document_reach_the_shell_whole(shell: Shell) -> None:
    text = "é'\"$x`\\ " * 25_000
    result = await shell.run(f"cat <<'EOF' > f\n{text}\nEOF\nwc -c f; echo $#")
    assert result.ok, result.output[:300]
    assert (shell.root / "f").read_text() == f"{text}\n"
    assert lines(result)[-2:] == ["0", "[exit code 0]"]
    large = await shell.run(
        "export BIG=$(head -c 3000000 /dev/zero | tr '\\0' x); true; echo on; /bin/true; echo $?"
    )
    assert "126" in lines(large)


async def test_no_secret_is_inherited_or_shown(shell: Shell) -> None:
    key = "sk-" + "a1B2c3D4" * 4
    result = await shell.run(
        f"env; echo key {key}; git remote add o https://u:{key}@host/x; cat /proc/self/environ"
    )
    assert key not in result.output
    names = {line.partition("=")[0] for line in lines(result) if "=" in line}
    assert not {name for name in names if "KEY" in name or "TOKEN" in name or "NATS" in name}


async def test_bytes_that_are_no_text_are_no_fault(shell: Shell) -> None:
    result = await shell.run("printf '\\377\\376a\\000b\\n'; head -c 3000 /dev/urandom; echo; echo end")
    assert result.ok
    assert lines(result)[0] == "\ufffd\ufffdab"
    assert "end" in lines(result)


async def test_half_an_order_to_a_terminal_hides_nothing_behind_it(shell: Shell) -> None:
    result = await shell.run("printf 'a\\033]0;title\\007b\\033]0;half\\nc\\033Pd\\n'; echo end")
    assert lines(result)[:3] == ["ab0;half", "cd", "end"]


async def test_many_short_commands_leave_no_zombie_and_no_descriptor(shell: Shell) -> None:
    await shell.run("true")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert (await shell.run("(sleep .01 &) ; true")).ok
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    states = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] for pid in children]
    assert "Z" not in states
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_git_commits_and_compares_files_with_odd_names(shell: Shell) -> None:
    names = ["naïve—é.txt", "nai\u0308ve.txt", "日本 語.md", "-rf", "a\nb.txt", "```x", "é" * 127 + "x"]
    for name in names:
        (shell.root / name).write_text("one\n")
    identity = "git -c user.name=a -c user.email=b"
    result = await shell.run(
        f"git init -q . && git add -A && {identity} commit -qm odd && git ls-tree -z --name-only HEAD | tr '\\0' '|'"
        " && echo two >> ./-rf && git diff --name-only -z"
    )
    assert result.ok, result.output
    committed, changed = "".join(result.output.split("\n[exit")[0]).rsplit("|", 1)
    assert set(committed.split("|")) == set(names)
    assert changed.strip("\0\n") == "-rf"


async def test_a_command_that_nobody_approved_is_not_run(shell: Shell) -> None:
    call = await shell.approved("run_command", command="touch approved")
    result = await shell.do(msgspec.structs.replace(call, arguments={"command": "touch other"}))
    assert result.metadata["error_code"] == "NOT_APPROVED"
    assert not (shell.root / "other").exists()


async def test_a_shell_has_every_form_of_bash_where_there_is_one(shell: Shell) -> None:
    result = await shell.run("a=(1 2); [[ x == x ]] && echo ${a[1]} " + shlex.quote("q'q"))
    if shutil.which("bash"):
        assert lines(result)[0] == "2 q'q"

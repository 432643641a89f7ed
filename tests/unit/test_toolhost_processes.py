"""Commands: an honest end, bounded output, a chosen environment, and no survivors."""

import asyncio
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.chassis.clock import SystemClock
from libs.policy.redaction import AROUND_BYTES, Redaction
from services.toolhost.errors import CommandNotStarted
from services.toolhost.launched import ProcessOutcome
from services.toolhost.marks import kill_group, marked
from services.toolhost.output import OutputRing, shown
from services.toolhost.processes import Command, Processes
from services.toolhost.sandbox import SandboxMode, choose
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import PATIENCE_S, asleep, processes, run_alone


def shell(folder: Path, script: str, **changes: object) -> Command:
    fields: dict[str, object] = {
        "argv": ["sh", "-c", script],
        "directory": folder,
        "call_id": f"call-{folder.name}",
        "timeout_s": PATIENCE_S,
        "output_bytes_max": 10_000,
    }
    return Command(**(fields | changes))  # pyright: ignore[reportArgumentType] - the names are checked at run time.


async def run(folder: Path, script: str, **changes: object) -> ProcessOutcome:
    return await run_alone(shell(folder, script, **changes))


def zombies() -> list[int]:
    """The zombies among the descendants of this process."""
    parents = {int(file.parent.name): state_and_parent(file) for file in Path("/proc").glob("[0-9]*/stat")}
    found = [pid for pid, (state, _) in parents.items() if state == "Z"]

    def is_ours(pid: int) -> bool:
        while pid in parents and pid != os.getpid():
            pid = parents[pid][1]
        return pid == os.getpid()

    return [pid for pid in found if is_ours(pid)]


def state_and_parent(stat: Path) -> tuple[str, int]:
    try:
        state, parent, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return "", 0
    return state, int(parent)


@pytest.mark.parametrize("code", [0, 1, 125, 137, 143])
async def test_an_exit_code_is_the_programs_own(tmp_path: Path, code: int) -> None:
    outcome = await run(tmp_path, f"echo out; echo err >&2; exit {code}")
    assert (outcome.exit_code, outcome.signal, outcome.timed_out, outcome.cancelled) == (
        code,
        None,
        False,
        False,
    )
    assert outcome.output == "out\nerr\n"
    assert (outcome.output_bytes, outcome.dropped_bytes, outcome.leftovers) == (8, 0, 0)


async def test_a_command_closes_no_descriptor_twice(tmp_path: Path) -> None:
    """By the second time it may be another file's: here threads open and close some all the time."""
    done, lost = threading.Event(), list[OSError]()

    def open_and_close() -> None:
        while not done.wait(0.001):
            for fd in [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]:
                try:
                    os.close(fd)
                except OSError as error:
                    lost.append(error)

    with ThreadPoolExecutor(16) as pool:
        others = [pool.submit(open_and_close) for _ in range(16)]
        try:
            async with aclosing(processes()) as started:
                for _ in range(10):
                    await asyncio.gather(*(started.run(shell(tmp_path, "exit 0")) for _ in range(10)))
        finally:
            done.set()
    assert not lost
    assert all(other.exception() is None for other in others)


async def test_a_signal_of_somebody_else_is_not_called_a_timeout(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "kill -9 $$")
    assert (outcome.exit_code, outcome.signal, outcome.timed_out) == (None, signal.SIGKILL, False)


async def test_a_timeout_ends_the_command_and_is_called_one(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "exec sleep 1000", timeout_s=0.2)
    assert (outcome.timed_out, outcome.cancelled, outcome.exit_code, outcome.signal) == (
        True,
        False,
        None,
        signal.SIGTERM,
    )


async def test_the_polite_signal_lets_traps_run(tmp_path: Path) -> None:
    stop = asyncio.Event()
    command = shell(tmp_path, "trap 'rm lock; exit 3' TERM; touch lock; sleep 1000", grace_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(run_alone(command, stop=stop))
        await until(lambda: asleep(command.call_id) == 1, "all of the call sleep")
        stop.set()
    assert (running.result().cancelled, running.result().exit_code) == (True, 3)
    assert os.listdir(tmp_path) == []
    assert marked(command.call_id) == []


async def test_who_ignores_the_polite_signal_is_killed_after_the_grace(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "trap '' TERM; sleep 1000 & sleep 1000", timeout_s=0.3, grace_s=0.2)
    assert (outcome.timed_out, outcome.signal) == (True, signal.SIGKILL)
    assert marked(f"call-{tmp_path.name}") == []


async def test_a_background_child_that_keeps_writing_does_not_hold_the_call(tmp_path: Path) -> None:
    outcome = await run(
        tmp_path, "(while :; do echo x; sleep .01; done) & sleep .1; echo fg", timeout_s=PATIENCE_S
    )
    assert (outcome.exit_code, outcome.timed_out) == (0, False)
    assert "fg\n" in outcome.output
    assert outcome.leftovers > 0
    assert marked(f"call-{tmp_path.name}") == []


async def test_a_daemon_in_a_session_of_its_own_and_without_the_marker_dies_too(tmp_path: Path) -> None:
    script = "(setsid env -i sh -c 'echo $$ > daemon; exec sleep 1000' &) ; while [ ! -s daemon ]; do sleep .01; done"
    outcome = await run(tmp_path, script)
    daemon = int((tmp_path / "daemon").read_text())
    assert outcome.leftovers == 1
    assert not Path(f"/proc/{daemon}").exists()


async def test_stopping_ends_the_whole_tree(tmp_path: Path) -> None:
    stop = asyncio.Event()
    call = f"call-{tmp_path.name}"
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(
            run_alone(shell(tmp_path, "sleep 1000 & setsid sleep 1000 & sleep 1000"), stop=stop)
        )
        await until(lambda: asleep(call) == 3, "all of the call sleep")
        stop.set()
    outcome = running.result()
    assert (outcome.cancelled, outcome.timed_out) == (True, False)
    assert marked(call) == []


async def test_cancelling_the_task_ends_the_whole_tree(tmp_path: Path) -> None:
    call = f"call-{tmp_path.name}"
    running = asyncio.create_task(run(tmp_path, "trap 'touch cleaned; exit' TERM; sleep 1000 & sleep 1000"))
    await until(lambda: asleep(call) == 2, "all of the call sleep")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert marked(call) == []
    assert os.listdir(tmp_path) == ["cleaned"]


async def test_a_command_inherits_no_descriptor_and_no_odd_disposition_of_a_signal(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        os.set_inheritable(server.fileno(), True)
        told = await run(tmp_path, "ls -l /proc/self/fd; grep -E 'SigIgn|SigBlk' /proc/self/status")
    lines = told.output.splitlines()
    # Those of standard, and the folder that `ls` looks at.
    assert len([line for line in lines if "->" in line]) == 4, told.output
    # 32 and 33 belong to the C library: no program that uses it can set them, so they are as the machine's first
    # process left them.
    settable = ~(0b11 << 31)
    assert [int(line.split()[1], 16) & settable for line in lines if "Sig" in line] == [0, 0]


async def test_the_process_group_is_told_before_the_command_starts(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    async def note(group: int, start: int) -> None:
        assert os.listdir(tmp_path) == []
        told.append((group, start))

    outcome = await run_alone(shell(tmp_path, "touch started; echo $$"), on_started=note)
    assert outcome.output == f"{told[0][0]}\n"
    assert not kill_group(*told[0])


async def test_a_command_whose_start_cannot_be_recorded_never_starts(tmp_path: Path) -> None:
    async def fail(group: int, start: int) -> None:
        raise ConnectionError(f"no journal for {group}, {start}")

    with pytest.raises(ConnectionError):
        await run_alone(shell(tmp_path, "touch started"), on_started=fail)
    assert os.listdir(tmp_path) == []


async def test_huge_output_is_bounded_and_counted_exactly(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "echo begin; yes | head -c 100000000; echo end", output_bytes_max=1000)
    assert outcome.output_bytes == 100_000_010
    assert outcome.dropped_bytes == 100_000_010 - 1000
    assert outcome.output.startswith("begin\ny\n")
    assert outcome.output.endswith("\ny\nend\n")
    assert f"[{outcome.dropped_bytes} bytes left out]" in outcome.output
    assert len(outcome.output) < 1100


async def test_output_that_is_not_text_does_not_hurt(tmp_path: Path) -> None:
    outcome = await run(tmp_path, "printf '\\377\\376a\\000b'")
    assert outcome.output == "\ufffd\ufffda\0b"


@pytest.mark.parametrize(
    "script",
    [
        'read x; echo "got $? [$x]"',
        "cat",
        "python3 -i -c '' 2>&1 | tail -1",
        "git init -q . && git -c user.name=a -c user.email=b commit -q --allow-empty -m m && git log && git commit --amend",
        "git clone -q https://127.0.0.1:1/x.git",
        "cat /dev/tty",
    ],
)
async def test_an_interactive_program_never_waits_for_a_person(tmp_path: Path, script: str) -> None:
    assert not (await run(tmp_path, script)).timed_out


async def test_a_broken_pipe_ends_its_writer_silently(tmp_path: Path) -> None:
    assert (await run(tmp_path, "yes | head -1")).output == "y\n"


async def test_a_command_inherits_only_what_is_on_the_list(tmp_path: Path) -> None:
    inherited = {
        "PATH": os.environ["PATH"],
        "OPENAI_API_KEY": "sk-secret",
        "NATS_URL": "nats://u:p@h",
        "LD_PRELOAD": "/x.so",
    }
    async with aclosing(Processes(clock=SystemClock(), inherited=inherited)) as hosts:
        outcome = await hosts.run(shell(tmp_path, "env; ls -d $HOME", environment={"EXTRA": "1"}))
    seen = dict(line.split("=", 1) for line in outcome.output.splitlines() if "=" in line)
    assert "secret" not in outcome.output
    assert seen["EXTRA"] == "1"
    assert seen["PAGER"] == seen["GIT_PAGER"] == "cat"
    assert seen["GIT_TERMINAL_PROMPT"] == "0"
    assert not {"NATS_URL", "LD_PRELOAD", "OPENAI_API_KEY"} & seen.keys()
    assert not Path(seen["HOME"]).exists()


async def test_what_the_system_cannot_pass_is_an_answer_not_a_crash(tmp_path: Path) -> None:
    with pytest.raises(CommandNotStarted, match="BIG is longer"):
        await run(tmp_path, "true", environment={"BIG": "x" * 3_000_000})
    with pytest.raises(CommandNotStarted, match="argument 2 is longer"):
        await run(tmp_path, "x" * 200_000)
    with pytest.raises(CommandNotStarted, match="longer than the system"):
        await run(tmp_path, "true", environment={f"V{index}": "x" * 100_000 for index in range(30)})
    with pytest.raises(CommandNotStarted, match="NUL"):
        await run(tmp_path, "a\0b")
    with pytest.raises(CommandNotStarted, match="empty"):
        await run(tmp_path, "", argv=[])
    big = {f"V{index}": "x" * 100_000 for index in range(15)}
    assert (await run(tmp_path, "echo ${#V14}", environment=big)).output == "100000\n"


@pytest.mark.parametrize(
    "argv,reason", [(["no-such-program"], "no such"), (["/etc/passwd"], "denied"), (["/"], "denied")]
)
async def test_a_program_that_cannot_run_is_named(tmp_path: Path, argv: list[str], reason: str) -> None:
    with pytest.raises(CommandNotStarted, match=reason):
        await run(tmp_path, "", argv=argv, environment={"PATH": "/usr/bin:/bin"})
    with pytest.raises(CommandNotStarted, match="no such"):
        await run(tmp_path, "", argv=["true"], directory=tmp_path / "none")


@pytest.mark.parametrize("mode", [SandboxMode.AUTO, SandboxMode.NONE])
async def test_many_short_commands_leave_no_zombie_and_no_descriptor(
    tmp_path: Path, mode: SandboxMode
) -> None:
    async with aclosing(processes()) as hosts:
        sandbox = await choose(mode, hosts, tmp_path)

        async def one() -> None:
            command = shell(tmp_path, "(true &); (sleep .01 &)")
            assert (await hosts.run(sandbox.confine(command, root=tmp_path))).exit_code == 0

        await one()
        before = len(os.listdir("/proc/self/fd"))
        # A thousand under `make soak`.
        for _ in range(int(os.environ.get("SHORT_COMMANDS", "60")) // 10):
            await asyncio.gather(*(one() for _ in range(10)))
        assert len(os.listdir("/proc/self/fd")) <= before
        await until(lambda: not zombies(), "no zombie is left")
    assert marked(f"call-{tmp_path.name}") == []


def test_a_ring_keeps_both_ends_however_the_blocks_fall() -> None:
    data = bytes(range(97, 123)) * 100
    for size in (1, 7, 64, 5000):
        ring = OutputRing(50)
        for start in range(0, len(data), size):
            ring.add(data[start : start + size])
        assert ring.text() == f"{data[:20].decode()}\n… [2550 bytes left out] …\n{data[-30:].decode()}"
    ring = OutputRing(2600)
    ring.add(data)
    assert (ring.text(), ring.dropped_bytes) == (data.decode(), 0)


@pytest.mark.parametrize("behind", [0, 100_000])
def test_a_secret_that_is_split_over_blocks_and_over_the_cut_is_not_shown(behind: int) -> None:
    redaction = Redaction(lambda: [b"key-4-this-deployment"])
    pem = "PRIVATE " + "KEY-----"
    key = f"-----BEGIN {pem}\n" + ("A1b2" * 16 + "\n") * 30 + f"-----END {pem}\n"
    for secret in ("key-4-this-deployment", "sk-proj-a1B2c3D4e5F6g7H8", key):
        # The cut is at 400 and at the last 600: before, within and behind the secret.
        for at in range(400 - len(secret) - 3, 403, max(1, len(secret) // 7)):
            data = b"x " * 50 + b"\n" * max(0, at - 100) + secret.encode() + b"." * behind + b"y\n" * 700
            for size in (1, 977):
                ring = OutputRing(1000)
                for start in range(0, 5000, size):
                    ring.add(data[start : min(5000, start + size)])
                ring.add(data[5000:])
                assert ring.total_bytes == len(data)
                told = ring.kept().told(redaction)
                assert not [part for part in ("deployment", "c3D4", "A1b2A1b2") if part in told], (at, told)
                assert f"[{ring.dropped_bytes} bytes left out]" in told


def test_a_secret_at_the_end_of_what_is_dropped_is_not_shown() -> None:
    redaction = Redaction(lambda: [b"key-4-this-deployment"])
    ring = OutputRing(1000)
    ring.add(b"a\n" * 2 * AROUND_BYTES + b"key-4-this-deployment" + b"b" * 590)
    told = ring.kept().told(redaction)
    assert told.endswith("\n[redacted]" + "b" * 590)


def test_a_clip_counts_what_it_leaves_out() -> None:
    assert shown("🎉" * 10, 10, Redaction()) == "🎉" * 10
    assert shown("ab🎉" * 10, 10, Redaction()) == "ab🎉a\n… [20 characters left out] …\nab🎉ab🎉"

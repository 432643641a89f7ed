"""The sandbox: a command reaches its workspace and little else; without one, everybody is told."""

import asyncio
import errno
import os
import platform
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from libs.chassis.clock import SystemClock
from libs.contracts.errors import ConfigurationError
from services.toolhost.cgroups import Bounds, Cgroups
from services.toolhost.launched import ProcessOutcome
from services.toolhost.marks import marked
from services.toolhost.processes import Command, Limits, Processes
from services.toolhost.sandbox import Sandbox, SandboxMode, choose, seccomp
from services.toolhost.sandbox.etc import copied
from services.toolhost.sandbox.none import NoSandbox
from tests.fakes.waiting import until
from tests.unit.toolhost_workspace import PATIENCE_S, asleep, processes, run_alone

# Enough for a shell with its Python, and soon used up.
BOUNDS = Bounds(memory_bytes=96 << 20, processes=40)


@pytest.fixture(scope="module")
async def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    chosen = await chosen_alone(SandboxMode.AUTO, tmp_path_factory.mktemp("sandbox"))
    if chosen.name == "none":
        pytest.skip(f"{chosen.warning}")
    return chosen


@pytest.fixture(scope="module")
async def bounded() -> AsyncIterator[Processes]:
    groups = Cgroups.probe(BOUNDS)
    if groups is None:
        pytest.skip("control groups cannot be made here")
    async with aclosing(Processes(clock=SystemClock(), inherited=os.environ, cgroups=groups)) as hosts:
        yield hosts


async def chosen_alone(
    mode: SandboxMode, folder: Path, *, readable: Sequence[Path] = (), hidden: Sequence[Path] = ()
) -> Sandbox:
    async with aclosing(processes()) as alone:
        return await choose(mode, alone, folder, readable=readable, hidden=hidden)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    (tmp_path / "nats.json").write_text("secret of the bus")
    return tmp_path / "work"


def command(root: Path, *argv: str, **changes: object) -> Command:
    fields: dict[str, object] = {
        "argv": list(argv),
        "directory": root,
        "call_id": f"call-{root.parent.name}",
        "timeout_s": PATIENCE_S,
        "output_bytes_max": 10_000,
    }
    return Command(**(fields | changes))  # pyright: ignore[reportArgumentType] - the names are checked at run time.


async def run(
    sandbox: Sandbox,
    root: Path,
    script: str,
    *,
    hosts: Processes | None = None,
    stop: asyncio.Event | None = None,
    **changes: object,
) -> ProcessOutcome:
    confined = sandbox.confine(command(root, "sh", "-c", script, **changes), root=root)
    return await (hosts.run(confined, stop=stop) if hosts else run_alone(confined, stop=stop))


async def python(
    sandbox: Sandbox, root: Path, program: str, *, hosts: Processes | None = None
) -> ProcessOutcome:
    confined = sandbox.confine(command(root, sys.executable, "-c", program), root=root)
    return await (hosts.run(confined) if hosts else run_alone(confined))


async def test_a_command_works_in_its_workspace_and_exits_as_it_does(sandbox: Sandbox, work: Path) -> None:
    outcome = await run(
        sandbox, work, f"pwd; echo x > made; {sys.executable} -c 'import json; print(json.dumps(1))'; exit 7"
    )
    assert outcome.exit_code == 7
    assert outcome.output == f"{work}\n1\n"
    assert (work / "made").read_text() == "x\n"


async def test_nothing_outside_of_the_workspace_is_read(sandbox: Sandbox, work: Path) -> None:
    (work / "link").symlink_to("../nats.json")
    (work / "shadow").symlink_to("/etc/shadow")
    script = """
    cat ../nats.json link shadow /etc/shadow /proc/1/root/etc/shadow /proc/self/cwd/../nats.json
    ls -A .. /home /root /var /sys; ls /tmp; cat /proc/*/environ
    """
    outcome = await run(sandbox, work, script, environment={"MINE": "1"})
    assert "secret" not in outcome.output
    assert ":99999:" not in outcome.output
    assert "OPENAI" not in outcome.output


def test_what_is_shown_of_etc_is_a_copy_of_what_is_listed_and_new_when_that_changes(tmp_path: Path) -> None:
    etc = tmp_path / "etc"
    (etc / "ssl" / "certs").mkdir(parents=True)
    (etc / "ssl" / "private").mkdir()
    (etc / "ssl" / "private" / "key").write_text("secret")
    (etc / "ssl" / "certs" / "ca.pem").write_text("certificate")
    (etc / "ssl" / "certs" / "link").symlink_to("ca.pem")
    (tmp_path / "zone").write_text("UTC")
    (etc / "localtime").symlink_to("../zone")
    (etc / "resolv.conf").symlink_to("/nowhere/at/all")
    os.mkfifo(etc / "magic")
    for name in ("shadow", "hosts"):
        (etc / name).write_text(name)
    shown = copied(tmp_path / "kept", etc)
    files = {str(path.relative_to(shown)) for path in shown.rglob("*") if not path.is_dir()}
    assert files == {"hosts", "localtime", "ssl/certs/ca.pem", "ssl/certs/link"}
    assert not (shown / "localtime").is_symlink()
    assert (shown / "ssl" / "certs" / "link").is_symlink()
    assert copied(tmp_path / "kept", etc) == shown
    (etc / "hosts").write_text("others")
    newer = copied(tmp_path / "kept", etc)
    assert (newer / "hosts").read_text() == "others"
    assert (shown / "hosts").read_text() == "hosts"
    assert sorted(os.listdir(tmp_path / "kept")) == sorted([shown.name, newer.name])


async def test_secrets_among_what_is_visible_are_hidden(sandbox: Sandbox, tmp_path: Path) -> None:
    work = tmp_path / "app" / "workspaces" / "mine"
    for folder in (work, tmp_path / "app" / "workspaces" / "other", tmp_path / "app" / "data"):
        folder.mkdir(parents=True)
        (folder / "key").write_text(f"key of {folder.name}")
    (tmp_path / "app" / ".env").write_text("key of all")
    if sandbox.name != "bwrap":
        pytest.skip("only bubblewrap shows folders of this machine")
    app = tmp_path / "app"
    hidden = [app / "workspaces", app / "data", app / ".env", app / "missing", Path("/elsewhere")]
    look = f"find {app} -type f -exec cat {{}} + 2>/dev/null; cat {app}/.env 2>/dev/null"
    hiding = await chosen_alone(SandboxMode.BWRAP, tmp_path / "kept", readable=[app], hidden=hidden)
    assert (await run(hiding, work, look)).output == "key of mine"
    # The same for what one command alone may read.
    (app / "open").write_text("open to it")
    closed = await chosen_alone(SandboxMode.BWRAP, tmp_path / "kept", hidden=hidden)
    assert (await run(closed, work, look)).output == "key of mine"
    shown = (await run(closed, work, look, readable=[app])).output
    assert sorted(shown) == sorted("open to it" + "key of mine")


async def test_nothing_outside_of_the_workspace_is_written(sandbox: Sandbox, work: Path) -> None:
    (work / "up").symlink_to("..")
    script = """
    for path in /x /usr/x /etc/x /dev/x /proc/sys/kernel/hostname /srv/x /var/x; do
        { echo x > $path; } 2>/dev/null && echo "wrote $path"
    done
    echo x > /tmp/perdure-sandbox-test && echo x > /dev/shm/x; echo x > ../y; echo x > up/y
    mount -t tmpfs none /usr; mkdir -p /a/b; rm -rf ../nats.json
    """
    outcome = await run(sandbox, work, script)
    assert "wrote" not in outcome.output
    assert not Path("/tmp/perdure-sandbox-test").exists()
    assert sorted(os.listdir(work.parent)) == ["nats.json", "work"]
    assert os.listdir(work) == ["up"]


async def test_there_is_no_network_not_even_the_machines_own(sandbox: Sandbox, work: Path) -> None:
    abstract = f"\0perdure-{os.getpid()}"
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    hidden = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), abstract)
    port = server.sockets[0].getsockname()[1]
    program = f"""
import socket
for make, address in (
    (lambda: socket.socket(), ("127.0.0.1", {port})),
    (lambda: socket.socket(socket.AF_INET6), ("::1", {port})),
    (lambda: socket.socket(), ("192.0.2.1", 80)),
    (lambda: socket.socket(socket.AF_UNIX), {abstract!r}),
    (lambda: socket.socket(socket.AF_VSOCK), (2, 1)),
    (lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW), ("lo", 0)),
):
    try:
        one = make(); one.settimeout(5); one.connect(address); print("connected", address)
    except TimeoutError:
        print("routed", address)
    except OSError as error:
        print("no", error.errno)
"""
    outcome = await python(sandbox, work, program)
    server.close()
    hidden.close()
    assert [line.split()[0] for line in outcome.output.splitlines()] == ["no"] * 6, outcome.output


async def test_no_other_process_is_seen_signalled_or_traced(sandbox: Sandbox, work: Path) -> None:
    script = f"ls -d /proc/[0-9]* | wc -l; kill -0 {os.getpid()}; kill -9 -1; echo gone"
    outcome = await run(sandbox, work, script)
    count = int(outcome.output.split()[0])
    assert count < 10
    assert outcome.signal == 9 or outcome.exit_code in (0, 137)


async def test_what_reaches_into_the_kernel_is_refused_and_ordinary_programs_are_not(
    sandbox: Sandbox, work: Path
) -> None:
    program = """
import ctypes, errno, fcntl, os, platform, subprocess, sys, threading
libc = ctypes.CDLL(None, use_errno=True)
numbers = dict(pair.split("=") for pair in sys.argv[1].split(","))
for name, number in numbers.items():
    ctypes.set_errno(0)
    if libc.syscall(int(number), 0, 0, 0, 0, 0) != -1:
        print("done", name)
    elif ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS):
        print("not refused", name, ctypes.get_errno())
if hasattr(os, "unshare"):
    for flags in (0x10000000, 0x00020000):
        try:
            os.unshare(flags); print("unshared", flags)
        except OSError:
            pass
clone = {"x86_64": 56, "aarch64": 220}[platform.machine()]
ctypes.set_errno(0)
if (pid := libc.syscall(clone, 0x10000000 | 17, 0, 0, 0, 0)) == 0:
    os._exit(0)
print("cloned" if pid > 0 else "clone", ctypes.get_errno())
for request in (0x5412, 0x541C):
    try:
        fcntl.ioctl(0, request, b"x"); print("typed")
    except OSError as error:
        print("ioctl", error.errno)
thread = threading.Thread(target=lambda: print("thread", flush=True)); thread.start(); thread.join()
print(subprocess.run(["echo", "child"], capture_output=True, text=True).stdout, end="")
import multiprocessing, socket
one, other = socket.socketpair(); one.send(b"x"); print(other.recv(1)); multiprocessing.Lock()
"""
    machine = platform.machine()
    refused = seccomp.refused(machine)
    if not refused:
        pytest.skip(f"there is no filter for {machine}")
    numbers = ",".join(f"{name}={number}" for name, number in refused.items())
    confined = sandbox.confine(command(work, sys.executable, "-c", program, numbers), root=work)
    outcome = await run_alone(confined)
    assert (
        outcome.output
        == f"clone {errno.EPERM}\nioctl {errno.EPERM}\nioctl {errno.EPERM}\nthread\nchild\nb'x'\n"
    )
    assert outcome.exit_code == 0


async def test_memory_of_the_host_is_not_exhausted(sandbox: Sandbox, work: Path, bounded: Processes) -> None:
    one = await python(sandbox, work, "held = b'x' * (500 << 20); print(len(held))", hosts=bounded)
    assert "524288000" not in one.output
    assert one.exit_code != 0
    program = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        held = b"x" * (30 << 20); time.sleep(0.2); print("held", flush=True); os._exit(0)
try:
    while True: os.wait()
except ChildProcessError: pass
"""
    many = await python(sandbox, work, program, hosts=bounded)
    assert many.output.count("held") < 8
    assert many.out_of_memory
    files = await run(
        sandbox, work, "head -c 500M /dev/zero > /dev/shm/f; head -c 500M /dev/zero > /tmp/f", hosts=bounded
    )
    assert files.exit_code != 0
    assert (await run(sandbox, work, "echo well", hosts=bounded)).output == "well\n"


async def test_processes_of_the_host_are_not_exhausted(
    sandbox: Sandbox, work: Path, bounded: Processes
) -> None:
    program = """
import os, time
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            time.sleep(1000)
        count += 1
except OSError as error:
    print(count, type(error).__name__)
"""
    outcome = await python(sandbox, work, program, hosts=bounded)
    count, name = outcome.output.split()
    assert name == "BlockingIOError"
    assert int(count) <= BOUNDS.processes
    bomb = await run(sandbox, work, "b() { b | b & }; b; sleep .3", hosts=bounded)
    assert marked(f"call-{work.parent.name}") == []
    assert not bomb.timed_out


async def test_a_user_who_is_not_root_is_bounded_without_control_groups(tmp_path: Path) -> None:
    limits = Limits(processes=20, data_bytes=128 << 20, file_bytes=1 << 20, open_files=64)
    program = """
import os, resource, time
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
for kind in ("DATA", "FSIZE", "NOFILE", "CORE"):
    print(resource.getrlimit(getattr(resource, f"RLIMIT_{kind}"))[0])
try:
    b"x" * (300 << 20)
except MemoryError:
    print("no memory")
"""
    outcome = await run_alone(command(tmp_path, sys.executable, "-c", program, limits=limits))
    assert outcome.output.split("\n")[:5] == [str(128 << 20), str(1 << 20), "64", "0", "no memory"]
    large = await run_alone(command(tmp_path, "sh", "-c", "head -c 2M /dev/zero > f", limits=limits))
    assert large.exit_code != 0
    assert (tmp_path / "f").stat().st_size <= 1 << 20


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


async def test_cancelling_leaves_no_process_of_a_tree_that_floods_and_hides(
    sandbox: Sandbox, work: Path
) -> None:
    call = f"call-{work.parent.name}"
    stop = asyncio.Event()
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        running = group.create_task(run(sandbox, work, "setsid sleep 1000 & sleep 1000 & yes", stop=stop))
        await until(lambda: asleep(call) == 2, "all of the call sleep")
        stop.set()
    assert running.result().cancelled
    assert marked(call) == []


async def test_no_sandbox_says_so_and_runs_the_command_as_it_is(work: Path) -> None:
    chosen = await choose(SandboxMode.NONE, processes(), work)
    assert chosen.warning is not None
    assert "without a sandbox" in chosen.warning
    plain = command(work, "a", "b")
    assert chosen.confine(plain, root=work) == plain
    assert "not installed" in str(NoSandbox(reason="bwrap is not installed").warning)


async def test_a_sandbox_that_was_asked_for_must_work(tmp_path: Path) -> None:
    if shutil.which("bwrap") is None:
        with pytest.raises(ConfigurationError, match="apt-get install bubblewrap"):
            await chosen_alone(SandboxMode.BWRAP, tmp_path)
    else:
        assert (await chosen_alone(SandboxMode.BWRAP, tmp_path)).name == "bwrap"
    with pytest.raises(ConfigurationError, match="SANDBOX_IMAGE"):
        await chosen_alone(SandboxMode.DOCKER, tmp_path)
    async with aclosing(processes()) as hosts:
        with pytest.raises(ConfigurationError, match="docker pull"):
            await choose(
                SandboxMode.DOCKER,
                hosts,
                tmp_path,
                image="perdure-no-such-image",
                docker_address="unix:///nowhere",
            )


def test_the_filter_is_a_program_that_the_kernel_can_check() -> None:
    for machine in ("x86_64", "aarch64"):
        program = seccomp.program(machine)
        assert len(program) % 8 == 0
        assert len(program) // 8 < 256
        assert not set(seccomp.refused(machine).values()) - set(range(512))
    assert seccomp.program("riscv64") == b""

"""`make demo`: one run from task to verdict, offline, through five real services; `make demo MODEL=real`: the same with
the model that `OPENAI_*` and `MODEL_ID` name.

Invariant: it exits 0 only when the run is COMPLETED and its verification PASSED, whatever the model says.
"""

import argparse
import asyncio
import difflib
import json
import shutil
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path

from deploy.cli.eventlines import show_checks, show_event, whole
from deploy.cli.payloads import fields, text
from deploy.cli.progress import Progress
from deploy.cli.terminal import Screen, Tone, printable
from deploy.dev import demo_model, demo_repair
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.performance import perform
from deploy.dev.plan import Plan
from libs.chassis.settings import read_environment
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError
from libs.contracts.http import TaskCreate
from libs.contracts.run import RunStatus
from libs.contracts.views import RunView

# With the script the whole demo takes 5 to 10 s on two cores; whatever is slower than this hangs. A real model may think,
# and takes its own way.
_WATCHDOG_S, _REAL_WATCHDOG_S = 60.0, 900.0
# Enough for a detour; a model that needs more will not get there. Nobody answers questions in a demo.
_REAL_TASK: dict[str, object] = {"limits": {"max_iterations": 30, "timeout_s": 800}, "unattended": True}
_DIFF_TONES: dict[str, Tone] = {"+": "good", "-": "bad", "@": "dim"}


def main() -> None:
    """Run the demo; the exit code tells whether it held."""
    parser = argparse.ArgumentParser(prog="make demo", description="One run from task to verdict.")
    parser.add_argument(
        "--model",
        choices=("scripted", "real"),
        default="scripted",
        help="scripted, offline (default), or the one that OPENAI_* and MODEL_ID name (make demo MODEL=real)",
    )
    try:
        real = demo_model.real(read_environment()) if parser.parse_args().model == "real" else None
        if real is not None:
            asyncio.run(demo_model.require_endpoint(real))
    except ConfigurationError as error:
        sys.stderr.write(f"demo: {error.message}\n")
        sys.exit(2)

    async def play(folder: Path, log: MergedLog, screen: Screen) -> bool:
        return await _demo(folder, log, screen, real)

    advice = "`.venv/bin/perdure check-model` examines the model's endpoint" if real is not None else ""
    perform(play, watchdog_s=_WATCHDOG_S if real is None else _REAL_WATCHDOG_S, advice=advice)


async def _demo(folder: Path, log: MergedLog, screen: Screen, real: dict[str, str] | None) -> bool:
    data = folder / "data"
    project = data / "workspaces" / demo_repair.WORKSPACE
    shutil.copytree(demo_repair.PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    began = time.monotonic()
    model = demo_model.scripted(folder, log, demo_repair.script()) if real is None else nullcontext(real)
    async with model as told:
        environment = {**told, "RUN_TESTS_COMMAND": json.dumps(demo_repair.TESTS_COMMAND)}
        plan = Plan(data=data, environment=environment, port=0, directory=folder)
        async with Launcher(plan, log) as perdure:
            names = ", ".join(f"{name} {pid}" for name, pid in sorted(perdure.pids.items()))
            screen.line(
                screen.paint(f"ready after {time.monotonic() - began:.1f} s at {perdure.url}", "bold")
            )
            screen.line(screen.paint(f"processes: {names}", "dim"))
            screen.line(screen.paint(f"model: {printable(told['MODEL_ID'])}", "dim"))
            with ExitStack() as unless_watched:
                # A demo that fails or is stopped has nothing to drain.
                unless_watched.callback(perdure.hurry)
                async with PerdureClient(perdure.url) as client:
                    run, progress, elapsed_s = await _watch(client, screen, _REAL_TASK if real else {})
                unless_watched.pop_all()
    screen.line()
    screen.line(whole(run.answer or (run.error.message if run.error else "(no answer)")))
    screen.line()
    show_checks(screen, run.verification or {})
    screen.line()
    _show_diff(screen, project)
    passed = run.status is RunStatus.COMPLETED and text(fields(run.verification).get("status")) == "PASSED"
    verdict = text(fields(run.verification).get("status")) or "no verdict"
    screen.line(screen.paint(f"{run.status}, {verdict}", "good" if passed else "bad"))
    screen.line(f"{progress.totals(elapsed_s)} · whole demo {time.monotonic() - began:.1f} s")
    return passed


async def _watch(
    client: PerdureClient, screen: Screen, more: Mapping[str, object]
) -> tuple[RunView, Progress, float]:
    """Submit the task and show its events as they happen, until it ends."""
    task = TaskCreate.model_validate(
        {
            "goal": demo_repair.GOAL,
            "workspace": demo_repair.WORKSPACE,
            "acceptance": demo_repair.ACCEPTANCE,
            "auto_start": True,
            **more,
        }
    )
    progress, began = Progress(), time.monotonic()
    created = await client.create_task(task)
    screen.line(screen.paint(f"run: {created.run_id}", "dim"))
    async for event in client.stream(created.run_id):
        progress.see(event)
        if not event.transient:
            show_event(screen, event)
        screen.status(progress.line(time.monotonic() - began))
    screen.status("")
    return await client.run(created.run_id), progress, time.monotonic() - began


def _show_diff(screen: Screen, project: Path) -> None:
    """What the run changed, file by file, against the project as it was."""
    names = {path.name for folder in (demo_repair.PROJECT, project) for path in folder.glob("*.*")}
    for name in sorted(names):
        before, after = (_lines(folder / name) for folder in (demo_repair.PROJECT, project))
        for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", n=2, lineterm=""):
            screen.line(screen.paint(printable(line), _DIFF_TONES.get(line[:1], "plain")))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


if __name__ == "__main__":
    main()

"""`make demo-project`: from a brief to verified, committed features, over many sessions, offline, through five services.

Invariant: it exits 0 only when every feature was verified by real checks and is committed with its evidence, and when what
was planned to go wrong on the way (a red verification, a silence, a regression) did, and was healed.
"""

import argparse
import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from deploy.cli.eventlines import show_event
from deploy.cli.payloads import Fields, fields, text, texts
from deploy.cli.terminal import Screen, Tone, one_line, printable
from deploy.dev import demo_brief, demo_model
from deploy.dev.demo_brief import BROKEN, RED, SILENT, Tale
from deploy.dev.launcher import Launcher
from deploy.dev.mergedlog import MergedLog
from deploy.dev.nats_server import free_port
from deploy.dev.performance import perform
from deploy.dev.plan import Plan
from libs.client import PerdureClient
from libs.contracts.projecthttp import ProjectCreate
from libs.contracts.projectviews import ProjectView
from libs.contracts.views import EventView

# It takes a minute and a half on two cores, the short form fifteen seconds; whatever is several times slower than this on a
# machine that does something else still gets there.
_WATCHDOG_S, _SHORT_WATCHDOG_S = 600.0, 240.0
# Of a project's log, what a reader can do without.
_BETWEEN = frozenset({"session.run_requested", "project.phase_changed"})
_GIT = ("git", "-c", "safe.directory=*", "-c", "core.fsmonitor=false")
_FIELDS = (
    "%h",
    "%s",
    *(
        f"%(trailers:key=Perdure-{name},valueonly,separator=%x2C)"
        for name in ("Feature", "Session", "Evidence")
    ),
)
_INTRODUCTION = (
    "A brief becomes a list of features; each is built in a session with a fresh context, proved by real tests in a clean",
    "checkout, and committed by the runtime. The model is a script, and goes wrong on purpose: it says that it is done and",
    "is not, it falls silent, it breaks what another session had built.",
)


class Commit(NamedTuple):
    """One commit of the project's repository, with its trailers."""

    name: str
    subject: str
    feature: str
    session: str
    evidence: str


class Story:
    """What went wrong and what was proved, folded from the project's events."""

    def __init__(self) -> None:
        self.seen = Counter[str]()
        self.checks: dict[str, list[str]] = {}

    def see(self, event: EventView) -> None:
        """Fold one event in."""
        payload = event.payload
        match event.type:
            case "session.stalled":
                self.seen[SILENT] += 1
            case "session.ended":
                error = text(payload.get("reason"))
                self.seen[RED] += error.startswith("VERIFICATION_FAILED")
                self.seen[BROKEN] += payload.get("outcome") == "regressed"
            case "feature.state_changed" if payload.get("state") == "verified":
                evidence = fields(payload.get("evidence"))
                self.checks[text(payload.get("feature_id"))] = texts(evidence.get("checks"))
            case _:
                return

    def lacks(self, tale: Tale, card: ProjectView, commits: list[Commit]) -> list[str]:
        """What did not come as it had to."""
        found = [f"the project is {card.status}"] if card.status != "COMPLETED" else []
        for part in tale.parts:
            mine = [commit for commit in commits if commit.feature == part.id]
            if not mine or not all(commit.evidence for commit in mine):
                found.append(f"{part.id} has no commit with its evidence")
            if not self.checks.get(part.id):
                found.append(f"nothing proved {part.id}")
        if not any("http GET" in check for checks in self.checks.values() for check in checks):
            found.append("no http check was made")
        return [*found, *(f"there was not {what}" for what in tale.planned if not self.seen[what])]


def main() -> None:
    """Run the demo; the exit code tells whether it held."""
    parser = argparse.ArgumentParser(
        prog="make demo-project", description="From a brief to verified, committed features."
    )
    parser.add_argument(
        "--short", action="store_true", help="three features and one regression, in about 20 s (ARGS=--short)"
    )
    args = parser.parse_args()

    async def play(folder: Path, log: MergedLog, screen: Screen) -> bool:
        port = free_port()
        tale = demo_brief.short(folder / "seed", port) if args.short else demo_brief.whole()
        async with demo_model.scripted(folder, log, demo_brief.script(port)) as told:
            return await _demo(tale, told, folder, log, screen)

    perform(play, watchdog_s=_SHORT_WATCHDOG_S if args.short else _WATCHDOG_S)


async def _demo(tale: Tale, told: Mapping[str, str], folder: Path, log: MergedLog, screen: Screen) -> bool:
    began = time.monotonic()
    data = folder / "data"
    plan = Plan(data=data, environment=told, port=0, directory=folder)
    async with Launcher(plan, log) as perdure:
        ready = f"ready after {time.monotonic() - began:.1f} s at {perdure.url}"
        screen.line(screen.paint(ready, "bold"))
        for line in _INTRODUCTION:
            screen.line(screen.paint(line, "dim"))
        with ExitStack() as unless_watched:
            # A demo that fails or is stopped has nothing to drain.
            unless_watched.callback(perdure.hurry)
            async with PerdureClient(perdure.url) as client:
                story, card = await _watch(tale, client, screen)
            unless_watched.pop_all()
    commits = await asyncio.to_thread(history, data / "workspaces" / card.workspace)
    _show_history(screen, commits)
    lacks = story.lacks(tale, card, commits)
    for problem in lacks:
        screen.line(screen.paint(f"not as it had to be: {problem}", "bad"))
    features, healed = (
        card.features.get("committed", 0),
        ", ".join(what for what, count in story.seen.items() if count),
    )
    told_end = f"{card.status}: {features} of {card.features_total} features verified and committed in {card.sessions} sessions"
    screen.line(screen.paint(told_end, "bad" if lacks else "good"))
    tokens = card.usage.input_tokens + card.usage.output_tokens
    screen.line(
        f"healed on the way: {healed or 'nothing'} · {tokens} tokens · whole demo {time.monotonic() - began:.1f} s"
    )
    return not lacks


async def _watch(tale: Tale, client: PerdureClient, screen: Screen) -> tuple[Story, ProjectView]:
    """Submit the brief and show what becomes of it, until the project ends."""
    story = Story()
    made = await client.create_project(ProjectCreate.model_validate(tale.body))
    async for event in client.stream(made.project_id):
        story.see(event)
        if event.type not in _BETWEEN and not _is_quiet(event):
            show_event(screen, event)
            _show_evidence(screen, event)
        if screen.live:
            card = await client.project(made.project_id)
            screen.status(
                "; ".join(f"{each.feature_id or each.kind}: {each.activity}" for each in card.active)
            )
        if event.type in ("project.blocked", "project.completed"):
            break
    screen.status("")
    return story, await client.project(made.project_id)


def _is_quiet(event: EventView) -> bool:
    """The stages of a session that went well, and the steps between its beginning and its verdict."""
    payload = event.payload
    if event.type == "session.run_ended":
        return payload.get("error") is None
    return event.type == "feature.state_changed" and payload.get("state") == "in_progress"


def _show_evidence(screen: Screen, event: EventView) -> None:
    """Each check behind what just became of a feature."""
    if event.type != "feature.state_changed" or event.payload.get("state") == "committed":
        return
    evidence: Fields = fields(event.payload.get("evidence"))
    for check in texts(evidence.get("checks")):
        tone: Tone = "bad" if check.startswith("failed") else "dim"
        screen.line(screen.paint(f"{'':>6}{one_line(check, screen.width - 6)}", tone))


def history(workspace: Path) -> list[Commit]:
    """The commits of the project's repository, oldest first; none where it was never made. Blocking."""
    if not (workspace / ".git").is_dir():
        return []
    command = [*_GIT, "-C", str(workspace), "log", "--reverse", f"--format={'%x09'.join(_FIELDS)}"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [Commit(*line.split("\t")) for line in said.splitlines()]


def _show_history(screen: Screen, commits: list[Commit]) -> None:
    screen.line()
    screen.line(
        "the project's repository, oldest commit first; each names the evidence that it was committed upon:"
    )
    known = set[str]()
    for commit in commits:
        session = f"session {commit.session.rpartition('/')[2]}"
        session += ", again" if commit.feature in known else ""
        known.add(commit.feature)
        evidence = f", evidence {commit.evidence[:12]}" if commit.evidence else ""
        screen.line(
            f"  {commit.name}  {printable(commit.subject)}  {screen.paint(f'{session}{evidence}', 'dim')}"
        )
    screen.line()


if __name__ == "__main__":
    main()

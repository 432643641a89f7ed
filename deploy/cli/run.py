"""`perdure run`: submit a goal, watch the run, ask its person, end with its outcome.

Invariant: the exit code is the run's outcome; Ctrl-C cancels the run on the server before the command ends.
"""

import argparse
import asyncio
import json
import secrets
import signal
import sys
import time
from collections.abc import Mapping

from deploy.cli.acceptance import argv_of
from deploy.cli.asking import approval_lines, ask, reconciliation_lines
from deploy.cli.eventlines import show_checks, show_event, whole
from deploy.cli.gateway import connected, is_here
from deploy.cli.outcome import Exit, failed, of_status, refused
from deploy.cli.progress import Progress
from deploy.cli.terminal import Screen, one_line, printable
from deploy.cli.workspaces import choose
from libs.chassis.settings import read_environment
from libs.client import PerdureClient
from libs.contracts.errors import ConfigurationError, InvalidState, PerdureError, ValidationFailed
from libs.contracts.http import TaskCreate, parse_task
from libs.contracts.views import RunView

# How often the status line moves, and how long a cancelled run may take to say so.
_TICK_S = 0.2
_CANCEL_S = 10.0


def main(args: argparse.Namespace) -> Exit:
    """Carry out the command."""
    try:
        task, client, known = task_of(args), connected(), _known(args)
    except (ConfigurationError, ValidationFailed) as error:
        return refused(error.message)
    except ValueError as error:
        return refused(str(error))
    try:
        return asyncio.run(_run(client, task, known, as_json=args.json))
    except PerdureError as error:
        return failed(error)


class Watch:
    """One run on the terminal, from its creation to its outcome."""

    def __init__(self, client: PerdureClient, run_id: str, screen: Screen, *, as_json: bool) -> None:
        self._client, self.run_id, self._screen, self._json = client, run_id, screen, as_json
        self._asks = not as_json and sys.stdin.isatty() and sys.stderr.isatty()
        self._progress = Progress()
        self._began = time.monotonic()
        self._seen = 0

    async def until_outcome(self) -> RunView:
        """Show events until the run has ended or nobody here can answer it."""
        while True:
            await self._follow()
            run = await self._client.run(self.run_id)
            if of_status(run.status) is None:
                continue
            if not self._asks or not await ask(self._client, run):
                return run

    async def _follow(self) -> None:
        ticking = asyncio.create_task(self._tick())
        try:
            async for event in self._client.stream(
                self.run_id,
                after_sequence=self._seen,
                deltas=self._screen.live and not self._json,
                reconnecting=self._reconnecting,
            ):
                self._progress.see(event)
                self._show_status()
                if event.transient:
                    continue
                self._seen = event.sequence
                if self._json:
                    self._screen.line(event.model_dump_json(exclude_defaults=True))
                else:
                    show_event(self._screen, event)
        finally:
            ticking.cancel()
            self._screen.status("")

    async def _tick(self) -> None:
        while self._screen.live and not self._json:
            self._show_status()
            await asyncio.sleep(_TICK_S)

    def _show_status(self) -> None:
        """With each event, so that the status never tells less than the line above it, and as time goes by."""
        if not self._json:
            self._screen.status(self._progress.line(time.monotonic() - self._began))

    def _reconnecting(self, error: PerdureError) -> None:
        if not self._json:
            self._screen.aside(f"perdure: {error.message}; reconnecting")

    def conclude(self, run: RunView) -> Exit:
        """Tell the outcome; its exit code."""
        outcome = of_status(run.status)
        assert outcome is not None
        if self._json:
            self._screen.line(run.model_dump_json())
            return outcome
        screen = self._screen
        screen.line()
        if run.status == "COMPLETED":
            screen.line(whole(run.answer or "(no answer)"))
        elif run.error is not None:
            screen.line(screen.paint(f"{run.error.error_code}: {whole(run.error.message)}", "bad"))
        if run.verification is not None:
            show_checks(screen, run.verification)
        if outcome is Exit.PERSON:
            self._tell_person(run)
        screen.line(f"{run.status} · {self._progress.totals(time.monotonic() - self._began)} · {run.run_id}")
        return outcome

    def _tell_person(self, run: RunView) -> None:
        for line in _needed(run):
            self._screen.line(line)
        self._screen.line(f"and follow: perdure runs tail {run.run_id} --after {run.last_sequence}")


def _needed(run: RunView) -> list[str]:
    """What a person has to do, with the command that does it."""
    question, unsure = run.pending_question, run.pending_reconciliation
    if unsure is not None:
        command = f"perdure runs reconcile {run.run_id} {unsure.call_id}"
        return [
            *reconciliation_lines(unsure),
            f"it took effect:      {command} accept --observation TEXT",
            f"carry it out again:  {command} retry",
            f"give the run up:     {command} fail",
        ]
    if question is None:
        return [f"a person has to look at it: {one_line(run.activity, 300)}"]
    if question.kind == "approval":
        command = f"perdure runs approve {run.run_id} {question.call_id}"
        return [
            *approval_lines(question),
            f"approve with: {command}",
            f"reject with:  {command} --reject --reason TEXT",
        ]
    options = " | ".join(printable(option) for option in question.options)
    return [
        f"the run asks: {whole(question.question)}",
        *([f"options: {options}"] if options else []),
        f"reply with: perdure runs reply {run.run_id} ANSWER",
    ]


def task_of(args: argparse.Namespace) -> TaskCreate:
    """The request, its workspace as it was given. Raises `ValueError` or `ValidationFailed` for what cannot be meant."""
    goal: str = sys.stdin.read() if args.goal == "-" else args.goal
    checks = [{"kind": "command", "argv": argv_of(command)} for command in args.accept]
    body = {"goal": goal, "auto_start": True, "workspace": args.workspace, "acceptance": checks}
    return parse_task(json.dumps(body).encode())


def _known(args: argparse.Namespace) -> dict[str, str]:
    return {**read_environment(), **({"PERDURE_DATA": args.data} if args.data else {})}


async def _run(client: PerdureClient, task: TaskCreate, known: Mapping[str, str], *, as_json: bool) -> Exit:
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    screen = Screen()
    async with client:
        if task.workspace is not None:
            try:
                chosen = await choose(client, task.workspace, known, here=is_here(known))
            except ConfigurationError as error:
                return refused(error.message)
            task = task.model_copy(update={"workspace": chosen.name})
            if chosen.note:
                sys.stderr.write(f"perdure: {chosen.note}\n")
        created = await client.create_task(task, idempotency_key=secrets.token_urlsafe(16))
        watch = Watch(client, created.run_id, screen, as_json=as_json)
        if not as_json:
            screen.line(screen.paint(f"{created.run_id} submitted; Ctrl-C cancels it", "dim"))
        watching = asyncio.create_task(watch.until_outcome())
        waiting = asyncio.create_task(interrupted.wait())
        try:
            await asyncio.wait({watching, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                return watch.conclude(watching.result())
        finally:
            waiting.cancel()
            watching.cancel()
            await asyncio.gather(watching, waiting, return_exceptions=True)
        return await _cancel(client, created.run_id, screen, as_json=as_json)


async def _cancel(client: PerdureClient, run_id: str, screen: Screen, *, as_json: bool) -> Exit:
    """Ask the server to cancel and wait for its word; a second Ctrl-C does not wait."""
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
    if not as_json:
        screen.line("cancelling …")
    try:
        await client.cancel(run_id)
    except InvalidState as error:
        sys.stderr.write(f"perdure: {error.message}\n")
    try:
        async with asyncio.timeout(_CANCEL_S):
            # The stream ends with the run, and at once when it has ended already.
            async for _ in client.stream(run_id, deltas=False, follow_suspended=True):
                pass
            run = await client.run(run_id)
    except TimeoutError:
        sys.stderr.write(f"perdure: cancellation of {run_id} was asked for and is not confirmed yet\n")
        return Exit.INTERRUPTED
    screen.line(run.model_dump_json() if as_json else f"{run.status} · {run_id}")
    return Exit.INTERRUPTED
